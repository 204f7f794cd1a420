"""`grader.launch` itself: what the notebook 11_when_it_hangs starts by torchrun, and what it gets back."""

import subprocess
import sys

import pytest

from course_copy import Course

CELL = """
from grader import launch

END = "."

import functools

def told(function):
    @functools.wraps(function)
    def called(*args):
        print("decorated", flush=True)
        return function(*args)
    return called

@told
def greeting():
    return "a word of the notebook" + str(END)

def perplexity_0(loss):
    print(greeting(), flush=True)
    raise ValueError("planted")

run = launch("planted", perplexity_0, samples=24)
print("CODE", run.code, "OUT", (run.folder / "out" / "metrics.jsonl").is_file())
print(run.log(0))
"""


@pytest.mark.long
def test_a_run_with_a_function_of_the_notebook(tmp_path):
    course = Course(tmp_path / "course")
    cell = tmp_path / "cell.py"
    cell.write_text(CELL)
    done = subprocess.run(
        [sys.executable, str(cell)],
        cwd=course.folder,
        env=course.environment(),
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done
    assert "CODE 1 OUT True" in done.stdout and "decorated\na word of the notebook." in done.stdout, done.stdout
    assert "ValueError: planted" in done.stdout
    assert not (course.folder / "runs" / "planted" / "out" / "model-best.pt").exists()

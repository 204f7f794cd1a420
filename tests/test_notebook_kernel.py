"""The student's notebook in a kernel: whatever the student does, the test cell judges the TODO, and gives the kernel
back.
"""

import os
import select
import subprocess
import sys
import time

import nbclient
import psutil
import pytest
from nbformat.v4 import new_code_cell

from course_copy import Course
from grader.engine.lesson import lessons
from student_notebook import LESSON, MEAN, SUM, Kernel, blank, cell, filled, save, solved

PASSED = "✓ 01_collectives/1  Predict what each rank holds"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("kernel") / "course").folder


@pytest.fixture
def file(course):
    """The student's file, as it was given."""
    path = course / "notebooks" / f"{LESSON}.ipynb"
    save(blank(), path)
    return path


@pytest.fixture(scope="module")
def warm(course):
    """One kernel for most of the tests, after the set-up cells."""
    with Kernel(course / "notebooks") as kernel:
        set_up(kernel)
        yield kernel


def set_up(kernel):
    notebook = blank()
    for given in [c for c in notebook.cells if c.cell_type == "code"][:2]:
        assert kernel.run(given).text == ""


def check(kernel, *cells):
    """Run these cells, then the test cell."""
    for own in cells:
        kernel.run(own)
    return kernel.run(cell(blank(), "test_1"))


def todo(body=SUM):
    return cell(filled(body), "todo_1")


def own(text):
    """A new cell of the student's."""
    return new_code_cell(text)


def test_a_todo_that_is_not_done_is_told_in_a_few_lines(warm, file):
    shown = check(warm, cell(blank(), "todo_1"))
    assert shown.error == "NotRight"
    first, *lines = shown.text.split("\n")
    assert first.startswith("· 01_collectives/1  Predict") and lines[0] == "TODO 1 is not done yet"
    assert [line.split()[0] for line in lines if line[:1].strip()] == ["TODO", "why", "hint"]
    assert "Traceback" not in shown.text and max(map(len, lines)) <= 100


def test_a_wrong_answer_is_told_with_what_was_expected_and_seen(warm, file):
    shown = check(warm, todo(MEAN))
    assert shown.error == "NotRight"
    names = [line.split()[0] for line in shown.text.split("\n")[1:] if line[:1].strip()]
    assert names[-4:] == ["expected", "seen", "why", "hint"]
    assert "all_reduce" in shown.text and "Traceback" not in shown.text


def test_what_ran_last_counts_though_it_is_not_saved(warm, file):
    assert check(warm, todo()).text.startswith(PASSED)
    assert not check(warm, todo(MEAN)).text.startswith(PASSED)
    save(filled(), file)  # a save says nothing of a cell that has run since
    assert check(warm, todo()).text.startswith(PASSED)


def test_a_new_cell_counts_before_it_is_saved_and_not_after_it_was_deleted(warm, file):
    helper, uses = (
        own("def add(xs):\n    return torch.stack(xs).sum(dim=0)"),
        todo(SUM.replace("torch.stack(inputs).sum(dim=0)", "add(inputs)")),
    )
    assert check(warm, helper, uses).text.startswith(PASSED)
    later = time.time() + 1
    os.utime(file, (later, later))  # saved without it
    shown = check(warm, uses)
    assert "NameError: name 'add' is not defined" in shown.text and "(TODO 1)" in shown.text


@pytest.mark.parametrize(
    "text",
    [
        "if broken(",
        "undefined_name",
        "print('x' * 10)\n%matplotlib inline\n!true",
        "%%bash\nfalse",
        "from grader import check\ncheck('01_collectives/1')",
        "raise SystemExit",
        "input()",
        "import warnings; warnings.warn('x')",
    ],
)
def test_another_cell_spoils_nothing(warm, file, text):
    notebook = filled()
    notebook.cells.insert(3, own(text))
    notebook.cells.append(own(text))
    save(notebook, file)
    shown = check(warm, todo())
    verdict, _, after = shown.text.partition("\n")
    assert verdict.startswith(PASSED) and not shown.error, shown
    assert not after or after.startswith("\nthe reference"), shown  # and nothing of the other cell


def test_a_todo_whose_cell_does_not_run_is_told_with_the_line(warm, file):
    shown = check(warm, own("x = 1"), todo("retrun inputs"))
    assert "SyntaxError" in shown.text and "cell 5, line 7" in " ".join(shown.text.split()), shown


HANGS = {
    "an endless loop": ("while True:\n    pass", "runs without end at"),
    "a skipped call": (
        "import torch.distributed as dist\nif dist.get_rank() == 0:\n    dist.barrier()\n" + SUM,
        "one of them skipped a call",
    ),
    "a sleep": ("import time\ntime.sleep(1000)\n" + SUM, "sleeps at"),
}


@pytest.mark.parametrize("name", HANGS)
def test_a_hang_is_diagnosed_and_the_kernel_given_back(warm, file, name):
    body, words = HANGS[name]
    shown = check(warm, todo(body))
    assert shown.error == "NotRight" and words in shown.text and "(TODO 1)" in shown.text, shown
    assert no_ranks(warm)
    assert check(warm, todo()).text.startswith(PASSED)


def no_ranks(kernel):
    """Below the kernel nothing stays but the fork-server. Ranks that were killed may still be ending."""
    below = [process for child in kernel.process.children() for process in child.children(recursive=True)]
    return not psutil.wait_procs(below, timeout=5)[1]


def test_an_interrupt_leaves_nothing_running_and_the_next_check_works(warm, file, tmp_path):
    line = tmp_path / "line"
    os.mkfifo(line)
    end = os.open(line, os.O_RDONLY | os.O_NONBLOCK)
    warm.run(todo(f"open({str(line)!r}, 'w').write('here')\nwhile True:\n    pass"))
    request = warm.begin(cell(blank(), "test_1"))
    assert select.select([end], [], [], 180)[0], "no rank began"
    ranks = warm.process.children(recursive=True)
    assert len(ranks) >= 3  # the fork-server and two ranks
    warm.manager.interrupt_kernel()
    shown = warm.shown(request)
    os.close(end)
    assert (
        shown.error == "Interrupted"
        and shown.text.startswith("The check was stopped.")
        and "Traceback" not in shown.text
    )
    assert not psutil.wait_procs(ranks, timeout=5)[1]
    assert check(warm, todo()).text.startswith(PASSED)


def test_a_notebook_that_is_not_there_is_one_line(warm, file):
    file.unlink()
    for shown in (check(warm), warm.run(own("run_on_ranks('01_collectives/f', [0])"))):
        assert "./workbook reset 01_collectives" in " ".join(shown.text.split()) and "Traceback" not in shown.text, (
            shown
        )


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("lesson", "folder"),
    [(stem, "notebooks") for stem in lessons.stems() if lessons.is_notebook(stem)] + [(LESSON, ".")],
)
def test_a_notebook_runs_from_top_to_bottom(course, file, lesson, folder):
    notebook = solved(lesson)
    save(notebook, file.with_stem(lesson))
    nbclient.NotebookClient(notebook, timeout=900, resources={"metadata": {"path": str(course / folder)}}).execute()
    for number in lessons.titles(lesson):
        said = "".join(output.get("text", "") for output in cell(notebook, f"test_{number}").outputs)  # maybe in pieces
        assert said.startswith(f"✓ {lesson}/{number}  ") and said.count("✓") == 1, said
    outputs = [output for c in notebook.cells if c.cell_type == "code" for output in c.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]
    drawn = sum("image/png" in output.get("data", {}) for output in outputs)
    # 11 and 12 print logs and counts, and draw one step.
    assert drawn >= (1 if lesson in ("11_when_it_hangs", "12_why_it_is_slow") else 2)


def test_a_students_copy_of_the_course_has_all_that_a_check_needs(course, file, tmp_path):
    release = tmp_path / "release"
    subprocess.run(
        [sys.executable, "-m", "grader.engine.commands.cli", "release", str(release)],
        cwd=course,
        check=True,
        env={**os.environ, "PYTHONPATH": str(course)},
        capture_output=True,
    )
    assert not (release / "solutions").exists()
    with Kernel(release / "notebooks") as kernel:
        set_up(kernel)
        assert "TODO 1 is not done yet" in check(kernel).text
        assert check(kernel, todo()).text.startswith(PASSED)


def own_run(kernel, function, inputs="[0, 0]", **how):
    """A cell with a function of the student's, then one that runs it on ranks."""
    kernel.run(own(f"import time\nimport torch.distributed as dist\n{function}"))
    more = "".join(f", {name}={value}" for name, value in how.items())
    return kernel.run(own(f"run = run_on_ranks('01_collectives/f', {inputs}{more})\nprint(run.results, run)"))


def test_a_function_runs_on_ranks_and_what_they_say_is_shown(warm, file):
    shown = own_run(
        warm,
        "def f(x, rank, world):\n    print('I have', x.dtype)\n    dist.all_reduce(x)\n    return x + rank",
        "[torch.ones(2, dtype=torch.int64), torch.ones(2, dtype=torch.int64)]",
    )
    lines = shown.text.strip().split("\n")
    assert lines[:2] == ["rank 0: I have torch.int64", "rank 1: I have torch.int64"], shown
    assert lines[2] == "[tensor([2, 2]), tensor([3, 3])] 2 ranks, 0 messages of 0 bytes in all"


def test_messages_are_told(warm, file):
    shown = own_run(
        warm, "def f(x, rank, world):\n    t = torch.zeros(5)\n    dist.send(t, 1) if rank == 0 else dist.recv(t, 0)"
    )
    assert shown.text.strip() == "[None, None] 2 ranks, 1 messages of 20 bytes in all", shown
    shown = warm.run(
        own("from utils.plots import collectives as plots\nplots.messages(run.messages, 'f')._repr_png_()[:4]")
    )
    assert not shown.error, shown


STOPS = {
    "a crash": (
        "def f(x, rank, world):\n    return 1 / rank",
        "f on 2 ranks: rank 0 stopped with ZeroDivisionError: division by zero, in f(x=",
    ),
    "a deadlock": (
        "def f(x, rank, world):\n    dist.recv(torch.zeros(1), 1 - rank)",
        "f on 2 ranks: deadlock: rank 0 waits in recv",
    ),
    "a loop": ("def f(x, rank, world):\n    while True:\n        pass", "runs without end at"),
    "no function": ("f = 1", "stopped with TypeError: 'int' object is not callable"),
    "a value that is none": ("def f(x, rank, world):\n    return dist", "evidence cannot hold a module"),
}


@pytest.mark.parametrize("name", STOPS)
@pytest.mark.parametrize("timed", [False, True])
def test_a_function_that_stops_is_told_in_a_line_and_the_kernel_given_back(warm, file, name, timed):
    function, words = STOPS[name]
    shown = own_run(warm, function, timed=timed)
    if not (name == "a deadlock" and timed):  # then it is known as a sleep
        assert words in shown.text, shown
    assert shown.error == "RanksStopped" and shown.text.count("\n") < 2 and "Traceback" not in shown.text, shown
    assert no_ranks(warm)


def test_on_ranks_a_cell_ends_where_it_would_start_ranks(warm, file):
    notebook = filled()
    notebook.cells.append(own("run_on_ranks('01_collectives/g', [0])\ndef g(x, rank, world):\n    return 7"))
    save(notebook, file)
    shown = warm.run(own("run_on_ranks('01_collectives/g', [0])"))
    assert "define functions in cells of their own" in shown.text and shown.error == "RanksStopped", shown
    assert check(warm, todo()).text.startswith(PASSED)


def test_a_run_can_be_interrupted(warm, file, tmp_path):
    line = tmp_path / "line"
    os.mkfifo(line)
    end = os.open(line, os.O_RDONLY | os.O_NONBLOCK)
    warm.run(own(f"def f(x, rank, world):\n    open({str(line)!r}, 'w').write('here')\n    while True:\n        pass"))
    request = warm.begin(own("run_on_ranks('01_collectives/f', [0, 0])"))
    assert select.select([end], [], [], 180)[0], "no rank began"
    warm.manager.interrupt_kernel()
    shown = warm.shown(request)
    os.close(end)
    assert shown.error == "Interrupted" and shown.text.startswith("The run was stopped.") and no_ranks(warm), shown

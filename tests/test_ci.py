"""What CI runs, and what it reports about tests that pass only the second time, with stand-ins for what it calls."""

import os
import shutil
import subprocess
import sys

import pytest

from conftest import drawn_out
from grader.engine.lesson.lessons import COURSE

STAND_INS = {
    "bin/dpkg-query": "echo install ok installed",
    ".venv/bin/python": f'[ "$1" = -c ] || exit 0\nexec {sys.executable} "$@"',
    ".venv/bin/uv": "",
    "workbook": """case "$*" in
"test --all")
    [ "$FAILED" = '[]' ] && exit
    mkdir -p .pytest_cache/v/cache
    echo "$FAILED" >.pytest_cache/v/cache/lastfailed
    exit 1 ;;
"test --all -- --last-failed") exit "$AGAIN" ;;
esac""",
}


@pytest.fixture
def ci(tmp_path):
    """A function that runs `.ci/run` in a course where these tests fail at first, and returns exit code and output."""
    if not (COURSE / ".ci").is_dir():
        pytest.skip("a release has no CI")
    (tmp_path / ".ci").mkdir()
    shutil.copy(COURSE / ".ci" / "run", tmp_path / ".ci" / "run")
    for name, text in STAND_INS.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n")
        file.chmod(0o755)

    def run(failed: str, again: int = 0) -> tuple[int, str]:
        path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
        env = {"PATH": path, "FAILED": failed, "AGAIN": str(again)}
        done = subprocess.run([tmp_path / ".ci" / "run"], env=env, text=True, stdout=subprocess.PIPE, timeout=60)
        return done.returncode, done.stdout

    return run


def test_all_green_is_green(ci):
    code, said = ci("[]")
    assert code == 0 and "once more" not in said


def test_what_passes_only_the_second_time_is_named(ci):
    code, said = ci('{"tests/test_watch.py::test_a": true, "tests/test_watch.py::test_b": true}')
    assert code == 0
    named = said.partition("passed only the second time:")[2].split()
    assert named == ["tests/test_watch.py::test_a", "tests/test_watch.py::test_b"]


def test_more_than_two_of_them_are_a_failure(ci):
    code, said = ci('{"test_a": true, "test_b": true, "test_c": true}')
    assert code == 1 and "more than two; mend them" in said


def test_what_fails_twice_has_failed(ci):
    code, said = ci('{"test_a": true}', again=1)
    assert code == 1 and "passed only" not in said


def test_a_quarter_of_what_is_drawn_is_tried_another_quarter_each_time():
    tests = [f"tests/test_hostile.py::test_behind_bubblewrap[{n}]" for n in range(400)]
    first, second = ([drawn_out(run, test) for test in tests] for run in ("first", "second"))
    assert 255 < sum(first) < 345 and 255 < sum(second) < 345 and first != second
    assert first == [drawn_out("first", test) for test in tests]
    assert not any(drawn_out(None, test) for test in tests)

"""The findings: each has the header that its readers need, is listed, and is a script that bash can read."""

import subprocess

import pytest

from grader.engine.lesson import build, contributing_lists
from grader.engine.lesson.lessons import COURSE

SCRIPTS = sorted((COURSE / "findings").glob("*.sh"))
FIELDS = ("Package: ", "Expected: ", "Happens: ", "Output seen: ", "How to run: ")


def test_each_is_listed_in_one_line():
    listed = (COURSE / build.FINDINGS).read_text("utf-8")
    assert len(SCRIPTS) >= 12 and contributing_lists.findings() in listed, "run ./workbook build"
    assert len(contributing_lists.findings().splitlines()) == len(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_its_header_says_what_is_seen_where_and_how(script):
    header = [line for line in script.read_text("utf-8").split("\n")[1:] if line.startswith("# ")]
    assert not header[0].startswith(tuple(f"# {field}" for field in FIELDS))  # the finding itself
    places = [next(n for n, line in enumerate(header) if line.startswith(f"# {field}")) for field in FIELDS]
    assert places == sorted(places) and places[0] == 1
    assert " Date: 20" in header[1] and f"bash {script.name}" in header[places[-1]]
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0

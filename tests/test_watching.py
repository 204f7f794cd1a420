"""`./workbook run` of runs that hang, die, or are only slow: what it says, and what it ends."""

import os
import re

import pytest

from benchmarks import watching
from course_copy import Course

PATIENCE = 8.0  # seconds in the place of minutes
FINISHED = "wrote model-best.pt, model-final.pt and metrics.jsonl"
LINE = r"train/ddp_training\.py:\d+"
WORDS = {  # gloo itself ends a process whose peer sends more than was expected; else `run` ends both
    "a collective under `if rank == 0`": rf"rank 0 is in all_reduce \(SUM\) of shape \(3,\) float32 at {LINE}",
    "two ranks in different order": (
        rf"it can never continue.*rank 0 all_reduce \(SUM\) of shape \(3,\) float32 at {LINE}.*"
        rf"rank 1 broadcast \(root 0\) of shape \(7,\) float32 at {LINE}"
    ),
    "`kill -9` of a rank": rf"rank 1 is gone: it was killed .*, at {LINE}",
    "an exception on a rank": r"rank 1 (is gone|never comes): it stopped with ValueError: a bad sample",
    "a rank out of memory": r"error: out of memory",  # the script says it in one line
    "a rank leaves its loop early": rf"rank 1 is in all_reduce \(SUM\) of shape \(2,\) float64 at {LINE}",
}


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("course") / "course")


@pytest.mark.parametrize("fault", watching.FAULTS)
def test_a_fault_is_named_with_its_rank_and_line(course, fault):
    watching.plant(course, watching.FAULTS[fault])
    told = watching.run(course)
    assert told.code not in (0, 124) and FINISHED not in told.text
    assert re.search(WORDS[fault], told.text), told.text


@pytest.mark.drawn
@pytest.mark.parametrize("slow", watching.SLOW)
def test_a_slow_run_is_told_of_once_and_left_alone(course, slow):
    watching.plant(course, watching.SLOW[slow], seconds=4 * PATIENCE)
    told = watching.run(course, patience=PATIENCE)
    assert told.code == 0 and FINISHED in told.text and "never" not in told.text, told.text
    # On a busy machine more than this may take long: how often is the planted line told of?
    lines = course.script("ddp_training").read_text("utf-8").splitlines()
    planted = next(number for number, line in enumerate(lines, 1) if re.search(r"time\.sleep|began < ", line))
    places = re.findall(r"is at train/ddp_training\.py:(\d+)", told.text)
    assert sum(abs(int(place) - planted) < 2 for place in places) == 1, told.text


def test_no_watch(course):
    course.solve("ddp_training")  # as given: one process
    told = watching.run(course, "--no-watch", nproc=1)
    assert told.code == 0 and "--watch" not in told.text
    watch = course.folder / "runs" / "ddp_training" / "watch"
    assert not any(path.stat().st_mtime > told.began for path in watch.glob("*"))


def test_without_a_place_for_its_notes_a_run_goes_on(course, tmp_path):
    """As where the disk is full: the run says that nobody can watch it."""
    course.solve("ddp_training")
    out = tmp_path / "out"
    (out / "watch" / "rank-0").mkdir(parents=True)  # a file can be no folder's new name
    told = watching.run(course, nproc=1, flags=("--out", str(out)))
    assert told.code == 0 and "this run cannot be watched" in told.text, told.text
    assert os.listdir(out / "watch") == ["rank-0"]

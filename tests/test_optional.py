"""A lesson that needs a package of its own: without it one line says how to install it, and all else works."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from course_copy import Course
from grader.engine.commands import watch
from grader.engine.lesson import lessons
from utils.optional_packages import lacks

LESSON, FILE = "lightning_training", "requirements-lightning.txt"
OTHER = "ddp_training"  # that the copy keeps besides


class Without(Course):
    """A small course on a Python that has no Lightning."""

    def __init__(self, folder):
        super().__init__(folder)
        for stem in set(lessons.ORDER) - {LESSON, OTHER, "single_gpu_training"}:
            self.leave_out(stem)
        hidden = folder / "hidden"
        hidden.mkdir()
        (hidden / "sitecustomize.py").write_text("import sys\nsys.modules['lightning'] = None\n")

    def leave_out(self, stem):
        for folder in ("solutions/*", "train", "notebooks", "sbatch"):
            for path in self.folder.glob(f"{folder}/*{stem}.*"):
                path.unlink()
        shutil.rmtree(self.folder / "grader" / "lessons" / stem)

    def environment(self, **more):
        return super().environment(PYTHONPATH=f"{self.folder / 'hidden'}{os.pathsep}{self.folder}", **more)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Without(tmp_path_factory.mktemp("without") / "course")


def the_line(text):
    """The one line of `text` that says how to install it."""
    (line,) = [line for line in text.splitlines() if FILE in line]
    assert "lightning is not installed; run: " in line and f"-m pip install -r {FILE}" in line
    return line


def test_what_is_there_lacks_nothing(monkeypatch):
    assert lacks("torch") == ""
    monkeypatch.setitem(sys.modules, "lightning", None)
    assert the_line(lacks("lightning")) == lessons.lacking(LESSON)
    assert lessons.lacking(OTHER) == lessons.lacking("single_gpu_training") == ""


def test_the_file_pins_what_the_lesson_names():
    named = [line for line in (lessons.COURSE / FILE).read_text().splitlines() if not line.startswith("#")]
    assert len(named) == 1 and named[0].startswith("lightning==")


@pytest.mark.parametrize(
    "args", [("check", f"{LESSON}/1"), ("run", LESSON), ("grade", ".", "--out", "g", "--lessons", LESSON)]
)
def test_a_command_about_the_lesson_says_it_in_one_line(course, args):
    done = course.run(*args)
    assert done.returncode == 2 and not done.stdout and the_line(done.stderr) == done.stderr.strip()


def test_check_of_all_lessons_says_it_and_goes_on(course):
    done = course.run("check", "--json", str(course.folder / "v.json"))
    assert done.returncode == 1 and "0 of 18 right" in done.stdout and LESSON in the_line(done.stdout), done
    assert {v["lesson"] for v in json.loads((course.folder / "v.json").read_text())} == {OTHER}
    assert LESSON not in course.progress()


def test_pytest_skips_its_checks_with_that_line(course):
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "grader",
            "-q",
            "-rs",
            "-k",
            LESSON,
            "--target",
            "solutions",
            "-p",
            "no:cacheprovider",
        ],
        cwd=course.folder,
        env=course.environment(COLUMNS="300"),
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 0 and f"{len(lessons.titles(LESSON))} skipped" in done.stdout and "failed" not in done.stdout
    ), done.stdout
    assert the_line(done.stdout)


def test_status_says_it(course):
    listed = course.run("status").stdout
    assert LESSON in the_line(listed) and "of 18" in listed


def test_watch_says_it_and_waits(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning", None)
    assert watch.Watch(None, LESSON).check(0.0)
    assert LESSON in the_line(capsys.readouterr().out)


def test_the_script_says_it_in_one_line(course):
    done = subprocess.run(
        [sys.executable, "train/lightning_training.py"],
        cwd=course.folder,
        env=course.environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and not done.stdout and the_line(done.stderr) == done.stderr.strip()


def test_build_check_and_mutants_leave_it_out(course):
    course.leave_out(OTHER)  # it would be judged, which takes its time
    for path in course.folder.glob(f"sbatch/{LESSON}.*"):  # they are made from that one's
        path.unlink()
    assert course.run("build").returncode == 0  # the README's table has fewer rows now
    done = course.run("build", "--check")
    assert done.returncode == 0 and "nothing is wrong" in done.stdout and the_line(done.stdout), done
    done = course.run("mutants", LESSON)
    assert done.returncode == 0 and "0/0 wrong answers" in done.stdout and the_line(done.stdout), done

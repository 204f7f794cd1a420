"""Student files are built from the sources, and a student's work is never lost."""

import subprocess
from pathlib import Path

import pytest

from grader.engine.lesson import build, lessons

SCRIPT = """\
def f(x):
    # TODO 1: Give it back.
    ### BEGIN SOLUTION
    return x
    ### STUDENT
    # return None
    ### END SOLUTION
"""
BATCH = """\
#!/bin/bash
# TODO 2: Ask for the GPUs.
### BEGIN SOLUTION
#SBATCH --gres=gpu:4
### STUDENT
# #SBATCH --gres=gpu:1
### END SOLUTION
"""
START = "def f(x):\n    # TODO 1: Give it back.\n    return None\n"


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course with a script, its batch file and a script without TODOs."""
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    for path, text in {
        "train/ddp_training.py": SCRIPT,
        "train/single_gpu_training.py": "print('é')\n",
        "sbatch/ddp_training.sbatch": BATCH,
    }.items():
        source = tmp_path / "solutions" / path
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(text, "utf-8")
    return tmp_path


@pytest.fixture
def script(course):
    """The built student script."""
    build.build()
    return course / "train" / "ddp_training.py"


def kept(course: Path) -> list[Path]:
    return sorted((course / ".workbook" / "kept").glob("*"))


def replace(path: Path, old: str, new: str) -> None:
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_build_writes_every_student_file_once(course):
    assert build.build() == [
        "sbatch/ddp_training.sbatch: written",
        "train/ddp_training.py: written",
        "train/single_gpu_training.py: written",
    ]
    assert (course / "train" / "ddp_training.py").read_text() == START
    assert "\n#SBATCH --gres=gpu:1\n" in (course / "sbatch" / "ddp_training.sbatch").read_text()
    copied = "train/single_gpu_training.py"
    assert (course / copied).read_bytes() == (course / "solutions" / copied).read_bytes()
    assert build.build() == []
    assert build.check_sources() == []


def test_lessons_come_in_course_order(course):
    assert lessons.stems() == ["single_gpu_training", "ddp_training"]
    assert [path.suffix for path in lessons.sources("ddp_training")] == [".py", ".sbatch"]


def test_a_changed_source_is_built_over_an_untouched_file(course, script):
    replace(course / "solutions" / "train" / "ddp_training.py", "# return None", "# return 0")
    assert build.build() == ["train/ddp_training.py: written"]
    assert "return 0" in script.read_text()
    assert kept(course) == []


def test_an_edited_file_is_left_alone_and_with_force_kept_aside(course, script):
    script.write_text("mine\n")
    for _ in range(2):  # the first refusal must not make the second build forget
        assert build.build() == [
            "train/ddp_training.py: edited, left as it is (--force writes it anew and keeps yours aside)"
        ]
        assert script.read_text() == "mine\n"

    moved, written = build.build(force=True)
    assert script.read_text() == START and written == "train/ddp_training.py: written"
    (copy,) = kept(course)
    assert copy.read_text() == "mine\n"
    assert copy.name.startswith("ddp_training.py.") and copy.name in moved


def test_a_file_that_was_there_before_the_first_build_is_edited(course):
    (course / "train").mkdir()
    (course / "train" / "ddp_training.py").write_text("mine\n")
    assert "train/ddp_training.py: edited" in build.build()[1]


def test_what_git_has_is_not_an_edit(course, script):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "init", "-q"], cwd=course, check=True)
    subprocess.run([*git, "add", "train"], cwd=course, check=True)
    subprocess.run([*git, "commit", "-q", "-m", "built"], cwd=course, check=True)
    (course / ".workbook" / "built.json").unlink()  # as in a fresh clone
    replace(course / "solutions" / "train" / "ddp_training.py", "# return None", "# return 0")
    assert build.build() == ["train/ddp_training.py: written"]


def test_two_copies_kept_aside_are_two_files(course, script):
    assert build.keep_aside(script) != build.keep_aside(script)
    assert len(kept(course)) == 2 and script.is_file()


@pytest.mark.parametrize(
    ("path", "old", "new", "problem"),
    [
        ("train/ddp_training.py", "return None", "return 1", "train/ddp_training.py: not what its source builds"),
        (
            "solutions/train/ddp_training.py",
            "    ### END SOLUTION\n",
            "",
            "solutions/train/ddp_training.py:3: ### BEGIN",
        ),
        (
            "solutions/train/ddp_training.py",
            "TODO 1",
            "TODO 3",
            "ddp_training: its TODOs are numbered 2, 3, not 1 to 2",
        ),
        (
            "solutions/train/ddp_training.py",
            "return x",
            "return  None # !",
            "ddp_training.py:3: TODO 1 starts as its sol",
        ),
        (
            "solutions/sbatch/ddp_training.sbatch",
            "TODO 2",
            "TODO 1",
            "'Ask for the GPUs' here and 'Give it back' above",
        ),
        ("solutions/sbatch/ddp_training.sbatch", "### STUDENT\n# #SBATCH --gres=gpu:1\n", "", "TODO 2 needs a STUDENT"),
        ("solutions/sbatch/ddp_training.sbatch", "TODO 2:", "TODO 2, again:", "TODO 2 opens with 'again'"),
    ],
)
def test_check_sources_names_what_is_wrong(course, script, path, old, new, problem):
    replace(course / path, old, new)
    assert any(problem in line for line in build.check_sources()), build.check_sources()


def test_check_sources_knows_strays(course, script):
    (course / "train" / "old_training.py").write_text("")
    assert build.check_sources() == ["train/old_training.py: has no source in solutions/"]
    (course / "solutions" / "train" / "odd.py").write_text("")
    assert build.check_sources() == ["odd: not in the order of the lessons (grader/engine/lesson/lessons.py)"]


def test_a_malformed_source_is_named_by_build(course):
    replace(course / "solutions" / "train" / "ddp_training.py", "    ### END SOLUTION\n", "")
    with pytest.raises(ValueError, match="solutions/train/ddp_training.py:3:"):
        build.build()
    assert not (course / "train").exists()


def test_a_lesson_with_todos_says_what_it_builds(course, script):
    checks = course / "grader" / "test_ddp_training.py"
    checks.parent.mkdir(exist_ok=True)
    checks.write_text('"""Checks."""\n')
    told = "grader/test_ddp_training.py: has no BUILDS, the lesson's row in the table of README.md"
    assert told in build.check_sources()
    checks.write_text('BUILDS = "something"\n')
    assert told not in build.check_sources()

"""Student files are built from the sources, and a student's work is never lost."""

import subprocess
from pathlib import Path

import pytest

from grader.engine.lesson import build, lessons, texts

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
    assert build.check_sources() == ["odd: not in the order of the lessons (grader/lessons/course.toml)"]


def test_a_malformed_source_is_named_by_build(course):
    replace(course / "solutions" / "train" / "ddp_training.py", "    ### END SOLUTION\n", "")
    with pytest.raises(ValueError, match="solutions/train/ddp_training.py:3:"):
        build.build()
    assert not (course / "train").exists()


WORDS = """\
# ddp_training

something

## TODO 1

Minutes: 10

### Why

It matters.

### Hints

1. a direction
2. a call,
   and more of it
3. nearly the line

### After a pass

So it is done.

## Questions

1. One?
2. Two?
3. Three?

## Answers

1. One.
2. Two.
3. Three.
"""
LACKS = {
    "what is built": ("something\n", "", "does not say what is built, for the table of README.md"),
    "a TODO": ("## TODO 1", "## TODO 7", "has no section “TODO 1”"),
    "a TODO of the lesson": ("## TODO 1", "## TODO 7", "nothing belongs to its section “TODO 7”"),
    "minutes": ("Minutes: 10", "10 minutes", "TODO 1: has no line “Minutes: 20” or “Minutes: 20 (further)”"),
    "minutes in fives": ("Minutes: 10", "Minutes: 12", "TODO 1: 12 minutes are not a multiple of five"),
    "a reason": ("It matters.", "", "TODO 1: does not say why it matters"),
    "a hint": ("3. nearly the line\n", "", "TODO 1: has 2 hints, not 3 with words in them"),
    "a hint's words": ("3. nearly the line", "3. ", "TODO 1: has 3 hints, not 3 with words in them"),
    "words after a pass": ("So it is done.", "", "TODO 1: 0 characters to read after a pass, not 1 to 400"),
    "a question": ("3. Three?\n", "", "Questions: not numbered 1 to 3"),
    "an answer": ("3. Three.\n", "", "Answers: not numbered 1 to 3"),
    "answers": ("## Answers", "## Anwers", "has no section “Answers”"),
}


@pytest.fixture
def words(course, script):
    file = course / "grader" / "lessons" / "ddp_training" / "texts.md"
    file.parent.mkdir(parents=True)
    file.write_text(WORDS)
    return file


def told(file):
    name = "grader/lessons/ddp_training/texts.md: "
    return [line.removeprefix(name) for line in build.check_sources(["ddp_training"]) if line.startswith(name)]


@pytest.mark.parametrize(("old", "new", "problem"), LACKS.values(), ids=LACKS)
def test_what_a_lessons_texts_lack_is_one_line(words, old, new, problem):
    assert old in WORDS and told(words) == ["has no section “TODO 2”"]  # which the batch file has
    words.write_text(WORDS.replace(old, new))
    assert any(line.startswith(problem) for line in told(words)), told(words)


def test_texts_are_read_as_they_are_written(words):
    read = texts.read("ddp_training")
    assert read.builds == "something" and list(read.todos) == [1]
    assert read.todos[1] == texts.Words(
        10, False, "It matters.", ("a direction", "a call, and more of it", "nearly the line"), "So it is done."
    )
    words.write_text(WORDS.replace("Minutes: 10", "Minutes: 10 (further)"))
    assert texts.words("ddp_training", 1).further and texts.words("ddp_training", 2) == texts.Words()


def test_without_answers_nothing_is_told_that_follows_a_solution():
    left = texts.without_answers(WORDS)
    assert "So it is done" not in left and "Three." not in left and "Answers" not in left
    for kept in ("nearly the line", "## Questions", "3. Three?", "It matters."):
        assert kept in left
    assert texts.parsed(left).todos[1] == texts.parsed(WORDS).todos[1]._replace(after="")

"""What students get: the whole course, pristine, and no solution anywhere in it."""

import ast
import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grader.engine.commands.cli import app
from grader.engine.lesson import build, lessons, reference_solution, todo_regions, release, sealed_lessons, texts
from grader.engine.lesson.progress import Progress

NBGRADER = (
    '{"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}'
)
NOTEBOOK = f"""\
# %% nbgrader={NBGRADER}
def g(xs):
    # TODO 1: Add them up.
    ### BEGIN SOLUTION
    total = xs[0] + sum(xs[1:])
    return [total for _ in xs]
    ### END SOLUTION
"""
DDP = """\
def make_sampler(train_set, args):
    # TODO 1: Give each rank its own shard.
    ### BEGIN SOLUTION
    # every rank sees its own part
    sampler = DistributedSampler(train_set, seed=args.seed)

    return sampler, "one per rank"
    ### END SOLUTION


def stop():
    # TODO 2: Clean up.
    ### BEGIN SOLUTION
    dist.destroy_process_group()
    ### STUDENT
    # pass
    ### END SOLUTION


def again():
    # TODO 3: Too short to tell.
    ### BEGIN SOLUTION
    return 1
    ### END SOLUTION
"""
FSDP = (
    todo_regions.compose(DDP, [1, 2, 3])
    .replace("TODO", "Done")
    .replace(
        "    return 1\n",
        "    # TODO 1: Count.\n    ### BEGIN SOLUTION\n    return dist.get_world_size()\n    ### END SOLUTION\n",
    )
)
SOLVED = "The sampler knows the ranks: it asks the process group."
ABOUT_A_TODO = f"""\
Minutes: 10

### Why

It matters.

### Hints

1. Which sampler deals out samples?
2. There is one for it.
3. Give it the seed.

### After a pass

{SOLVED}
"""


def words(stem, todos):
    """A lesson's texts."""
    parts = "\n".join(f"## TODO {number}\n\n{ABOUT_A_TODO}" for number in range(1, todos + 1))
    asked = "\n".join(f"{number}. One more?" for number in (1, 2, 3))
    answers = "\n".join(f"{number}. The first answer." for number in (1, 2, 3))
    return f"# {stem}\n\nwhat is built\n\n{parts}\n## Questions\n\n{asked}\n\n## Answers\n\n{answers}\n"


FILES = {
    "README.md": "# A course\n",
    "workbook": "#!/bin/sh\n",
    "solutions/train/single_gpu_training.py": "print(1)\n",
    "solutions/train/ddp_training.py": DDP,
    "solutions/notebooks/01_collectives.py": NOTEBOOK,
    "solutions/sbatch/ddp_training.sbatch": "#!/bin/bash\nsrun python x.py\n",
    "utils/distributed.py": "def cleanup():\n    dist.destroy_process_group()\n",
    "grader/lessons/course.toml": "",
    "grader/lessons/ddp_training/texts.md": words("ddp_training", 3),
    "grader/lessons/ddp_training/test_samples.py": "",
    "grader/lessons/ddp_training/ranks.py": "",
    "grader/lessons/ddp_training/answers/samples.py": "WRONG = 1\n",
    "grader/lessons/01_collectives/texts.md": words("01_collectives", 1),
    "grader/lessons/01_collectives/test_places.py": "",
    "grader/engine/ranks.py": "",
    "tests/test_x.py": "",
    "benchmarks/speed.py": "",
    "images/a.png": b"\x89PNG\xff",
}
FIRST_LINE = "sampler = DistributedSampler(train_set, seed=args.seed)"
SECOND_LINE = 'return sampler, "one per rank"'


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A built course, with the student scripts solved in the working tree."""
    folder = tmp_path / "course"
    monkeypatch.setattr(lessons, "COURSE", folder)
    for name, content in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    build.build()
    (folder / "train" / "ddp_training.py").write_text(todo_regions.compose(DDP, [1, 2, 3]))
    return folder


def contents(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("with_git", [True, False])
def test_the_release_is_the_course_without_what_is_the_instructors(course, tmp_path, with_git):
    if with_git:
        subprocess.run(["git", "init", "-q"], cwd=course, check=True)
        subprocess.run(["git", "add", "."], cwd=course, check=True)
    (course / "notes.txt").write_text("never added to git\n")
    assert release.release(tmp_path / "out") == [
        f"{tmp_path / 'out'}: single_gpu_training, 01_collectives, ddp_training"
    ]
    assert contents(tmp_path / "out") == {
        "README.md",
        "workbook",
        "utils/distributed.py",
        "images/a.png",
        "grader/lessons/course.toml",
        "grader/lessons/ddp_training/texts.md",
        "grader/lessons/ddp_training/test_samples.py",
        "grader/lessons/ddp_training/ranks.py",
        "grader/lessons/01_collectives/texts.md",
        "grader/lessons/01_collectives/test_places.py",
        "grader/engine/ranks.py",
        "train/single_gpu_training.py",
        "train/ddp_training.py",
        "notebooks/01_collectives.ipynb",
        "sbatch/ddp_training.sbatch",
        "grader/start/train/single_gpu_training.py",
        "grader/start/train/ddp_training.py",
        "grader/start/notebooks/01_collectives.py",
        "grader/start/sbatch/ddp_training.sbatch",
    }
    assert (tmp_path / "out" / "train" / "ddp_training.py").read_text() == todo_regions.compose(DDP)


def test_a_release_is_a_course_of_its_own(course, tmp_path, monkeypatch):
    release.release(tmp_path / "out")
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert lessons.stems() == ["single_gpu_training", "01_collectives", "ddp_training"]
    (unit,) = lessons.units("01_collectives")
    assert not todo_regions.attempted(unit.source, unit.text, 1)
    assert build.check_sources() == []


def test_only_the_chosen_lessons_and_the_baseline_go_out(course, tmp_path):
    release.release(tmp_path / "out", ["01_collectives"])
    assert not any("ddp_training" in name for name in contents(tmp_path / "out"))
    assert (tmp_path / "out" / "train" / "single_gpu_training.py").is_file()
    with pytest.raises(release.ReleaseError, match="no lesson ddp; there are single_gpu_training, 01"):
        release.release(tmp_path / "other", ["ddp"])
    assert not (tmp_path / "other").exists()


def test_a_folder_in_use_is_refused_and_left_alone(course, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(release.ReleaseError, match="not an empty folder"):
        release.release(tmp_path)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def notebook_with(source: str) -> str:
    cells = [{"cell_type": "code", "source": source.splitlines(keepends=True)}]
    return json.dumps({"metadata": {}, "cells": cells}, indent=1)


OF_DDP = "grader/lessons/ddp_training"
LEAKS = {
    "as it stands": ("grader/help.py", f"import x\n\n\ndef f():\n    {FIRST_LINE}\n    {SECOND_LINE}\n", 5),
    "with comments and blanks": ("utils/x.py", f"{FIRST_LINE}  # so\n\n# then\n{SECOND_LINE}\n", 1),
    "without the source's spaces": ("utils/x.py", f"a = 1\n{FIRST_LINE.replace(' ', '')}\n{SECOND_LINE}\n", 2),
    "commented out": ("utils/x.py", f"def f():\n    # {FIRST_LINE}\n    # {SECOND_LINE}\n", 2),
    "a hint, joined": (f"{OF_DDP}/common.py", f"HINT = (\n  '{FIRST_LINE}\\n'\n  '{SECOND_LINE}'\n)\n", 2),
    "a list of lines": (f"{OF_DDP}/test_samples.py", f"X = [\n  '{FIRST_LINE}',\n  '{SECOND_LINE}',\n]\n", 2),
    "a page": ("README.md", f"# Answers\n\n```python\n{FIRST_LINE}\n{SECOND_LINE}\n```\n", 4),
    "a notebook": ("images/x.ipynb", notebook_with(f"{FIRST_LINE}\n# well\n{SECOND_LINE}"), 7),
    "rewrapped": ("README.md", FIRST_LINE.replace("(", "(\n    ") + f"\n{SECOND_LINE}\n", 1),
}


@pytest.mark.parametrize(("name", "text", "line"), LEAKS.values(), ids=LEAKS)
def test_a_planted_leak_is_found_with_file_and_line(course, tmp_path, name, text, line):
    (course / name).write_text(text)
    with pytest.raises(release.ReleaseError) as caught:
        release.release(tmp_path / "out")
    assert str(caught.value) == f"{name}:{line}: the solution of ddp_training/1"
    assert not (tmp_path / "out").exists()


def test_a_call_is_a_leak_in_a_hint_but_not_in_the_library(course, tmp_path):
    hints = course / "grader" / "lessons" / "ddp_training" / "texts.md"
    hints.write_text(hints.read_text().replace("There is one for it.", "Call dist.destroy_process_group().", 1))
    told = r"^grader/lessons/ddp_training/texts.md:16: the solution of ddp_training/2$"
    with pytest.raises(release.ReleaseError, match=told):
        release.release(tmp_path / "out")


def test_texts_go_out_without_answers_and_what_follows_a_pass_is_sealed(course, tmp_path, monkeypatch):
    """Nowhere in the release, not only not in the lesson's own file."""
    name = f"{OF_DDP}/texts.md"
    given = texts.without_answers(words("ddp_training", 3))
    for folder, reveal in (("plain", False), ("revealed", True)):
        out = tmp_path / folder
        release.release(out, reveal=reveal)
        assert (out / name).read_text() == given and texts.parsed(given).todos[3].hints
        everything = "".join(path.read_text("utf-8", errors="replace") for path in out.rglob("*") if path.is_file())
        assert SOLVED not in everything and "The first answer" not in everything
        assert "Which sampler deals out samples?" in everything and "One more?" in everything
        with monkeypatch.context() as patch:
            patch.setattr(lessons, "COURSE", out)
            assert reference_solution.after("ddp_training", 1) == (SOLVED if reveal else "")


def test_part_of_a_solution_is_no_leak(course, tmp_path):
    (course / "README.md").write_text(f"return 1\n{FIRST_LINE}\n")
    release.release(tmp_path / "out")
    assert release.leaks(tmp_path / "out") == []


LATER = FSDP.replace("def make_sampler", "from utils.after_ddp_training import stop\n\n\ndef make_sampler")
AFTER = f'TAUGHT_IN = "ddp_training"\n\n\ndef sampler():\n    {FIRST_LINE}\n    {SECOND_LINE}\n'


def test_a_lesson_that_gives_another_away_is_sealed_until_that_is_right(course, tmp_path, monkeypatch):
    (course / "solutions" / "train" / "fsdp_training.py").write_text(LATER)
    (course / "utils" / "after_ddp_training.py").write_text(AFTER)
    said = release.release(tmp_path / "both")
    assert said[0].startswith("fsdp_training is sealed until 3 TODOs of ddp_training are right")
    assert not any("fsdp_training." in name and "sealed" not in name for name in contents(tmp_path / "both"))
    assert release.leaks(tmp_path / "both") == []

    monkeypatch.setattr(lessons, "COURSE", tmp_path / "both")
    assert lessons.stems() == ["single_gpu_training", "01_collectives", "ddp_training"]
    assert sealed_lessons.sealed() == {"fsdp_training": ["ddp_training/1", "ddp_training/2", "ddp_training/3"]}
    assert "when ddp_training/2-3 are right" in sealed_lessons.waits_for("fsdp_training", {"ddp_training/1"})
    assert sealed_lessons.unseal_due({"ddp_training/1", "ddp_training/2"}) == []
    (tmp_path / "both" / "utils" / "after_ddp_training.py").write_text("mine\n")  # what is there is never written over
    assert sealed_lessons.unseal_due({"ddp_training/1", "ddp_training/2", "ddp_training/3"}) == ["fsdp_training"]
    assert (tmp_path / "both" / "train" / "fsdp_training.py").read_text() == todo_regions.compose(LATER)
    assert (tmp_path / "both" / "utils" / "after_ddp_training.py").read_text() == "mine\n"
    assert "fsdp_training" in lessons.stems() and sealed_lessons.sealed() == {}


def test_open_names_the_answers_that_come_with_a_lesson_and_asks_first(course, tmp_path, monkeypatch):
    (course / "solutions" / "train" / "fsdp_training.py").write_text(LATER)
    (course / "utils" / "after_ddp_training.py").write_text(AFTER)
    release.release(tmp_path / "out")
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    Progress().write({("ddp_training", 1): "pass"})
    asked = CliRunner().invoke(app, ["open", "fsdp_training"])
    assert asked.exit_code == 2 and "not solved: ddp_training/2-3" in asked.output and "--yes" in asked.output
    assert "fsdp_training" in sealed_lessons.sealed()
    opened = CliRunner().invoke(app, ["open", "fsdp_training", "--yes"]).output
    assert "your file is train/fsdp_training.py" in opened and "grader/start" not in opened
    assert "utils/after_ddp_training.py has answers of ddp_training" in opened and sealed_lessons.sealed() == {}


def test_a_module_may_give_some_todos_away_alone(course, tmp_path, monkeypatch):
    (course / "solutions" / "train" / "fsdp_training.py").write_text("from utils.after_ddp_training import stop\n")
    (course / "utils" / "after_ddp_training.py").write_text('TAUGHT_IN = "ddp_training"\nTAUGHT_BY = "3"\n')
    release.release(tmp_path / "out")
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert sealed_lessons.sealed() == {"fsdp_training": ["ddp_training/3"]}


def test_a_lesson_is_opened_with_all_that_it_imports(course, tmp_path, monkeypatch):
    """Also with what only the library asks for."""
    (course / "solutions" / "train" / "fsdp_training.py").write_text("from utils.after_fsdp_training import more\n")
    (course / "utils" / "after_fsdp_training.py").write_text(
        'TAUGHT_IN = "ddp_training"\nfrom utils.after_ddp_training import sampler\n'
    )
    (course / "utils" / "after_ddp_training.py").write_text(AFTER)
    release.release(tmp_path / "out")
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert {"utils/after_ddp_training.py", "utils/after_fsdp_training.py"} <= set(
        sealed_lessons.unseal("fsdp_training")
    )


def test_nothing_is_sealed_for_a_lesson_that_does_not_go_out(course, tmp_path):
    (course / "solutions" / "train" / "fsdp_training.py").write_text(LATER)
    (course / "utils" / "after_ddp_training.py").write_text(AFTER)
    assert len(release.release(tmp_path / "alone", ["fsdp_training"])) == 1
    assert {"utils/after_ddp_training.py", "train/fsdp_training.py"} <= contents(tmp_path / "alone")


MORE = 'TAUGHT_IN = "10_strategy"\n'  # the rest of the package
COSTS = 'TAUGHT_IN = "10_strategy"\nGIVES_AWAY = """\nddp_training/1 01_collectives/1 03_zero/7\n"""\n'


def write_costs(course):
    (course / "utils" / "costs").mkdir()
    (course / "utils" / "costs" / "__init__.py").write_text(COSTS)
    (course / "utils" / "costs" / "memory.py").write_text(MORE)


def test_a_command_that_gives_answers_away_is_sealed_until_they_are_right(course, tmp_path, monkeypatch):
    write_costs(course)
    said = release.release(tmp_path / "out")
    assert said[0] == "the command plan is sealed until 2 TODOs are right: it has their answers"
    assert not (tmp_path / "out" / "utils" / "costs").exists()
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert sealed_lessons.sealed() == {"plan": ["01_collectives/1", "ddp_training/1"]}
    assert "plan is sealed" in sealed_lessons.waits_for(
        "plan", set()
    ) and "./workbook open plan" in sealed_lessons.waits_for("plan", [])
    assert sealed_lessons.unseal_due({"ddp_training/1"}) == []
    assert sealed_lessons.unseal_due({"ddp_training/1", "01_collectives/1"}) == ["plan"]
    assert (tmp_path / "out" / "utils" / "costs" / "__init__.py").read_text() == COSTS
    assert (tmp_path / "out" / "utils" / "costs" / "memory.py").read_text() == MORE


def test_a_lesson_that_uses_what_gives_answers_away_waits_for_them_too(course, tmp_path, monkeypatch):
    (course / "solutions" / "train" / "hybrid_training.py").write_text(
        "from utils.costs import flops\n\nprint(flops)\n"
    )
    write_costs(course)
    release.release(tmp_path / "out")
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert sealed_lessons.sealed()["hybrid_training"] == ["01_collectives/1", "ddp_training/1"]
    sealed_lessons.unseal("hybrid_training")
    assert (tmp_path / "out" / "utils" / "costs" / "__init__.py").is_file()
    assert (tmp_path / "out" / "utils" / "costs" / "memory.py").is_file()
    sealed_lessons.unseal("plan")  # finds it there


def test_an_earlier_lesson_never_gives_a_later_one_away(course, tmp_path):
    (course / "solutions" / "train" / "single_gpu_training.py").write_text(f"{FIRST_LINE}\n{SECOND_LINE}\n")
    with pytest.raises(release.ReleaseError, match="train/single_gpu_training.py:1: the solution of ddp_training/1"):
        release.release(tmp_path / "wrong")


def test_an_assistant_in_a_release_is_told_to_teach(course, tmp_path):
    (course / "AGENTS.md").write_text("Maintain.\n")
    (course / "docs").mkdir(exist_ok=True)
    (course / "docs" / "assistants.md").write_text("Teach.\n")
    release.release(tmp_path / "out")
    assert (tmp_path / "out" / "AGENTS.md").read_text() == "Teach.\n"
    assert (tmp_path / "out" / "docs" / "assistants.md").is_file()


def test_revealed_solutions_are_sealed_and_are_no_leak(course, tmp_path, monkeypatch):
    file = course / OF_DDP / "texts.md"
    first, _, rest = file.read_text().partition(SOLVED)
    file.write_text(f"{first}None is read\ntwice.{rest.replace(SOLVED, 'Or atexit.', 1).replace(SOLVED, '')}")
    release.release(tmp_path / "out", reveal=True)
    assert release.leaks(tmp_path / "out") == []
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert FIRST_LINE in reference_solution.reference("ddp_training", 1)
    assert [reference_solution.after("ddp_training", number) for number in (1, 2, 3)] == [
        "None is read twice.",
        "Or atexit.",
        "",
    ]
    assert not reference_solution.same(
        reference_solution.own("ddp_training", 1), reference_solution.reference("ddp_training", 1)
    )
    (tmp_path / "out" / "train" / "ddp_training.py").write_text(todo_regions.compose(DDP, [1]))
    assert reference_solution.same(
        reference_solution.own("ddp_training", 1), reference_solution.reference("ddp_training", 1)
    )


def test_without_reveal_there_is_no_solution(course, tmp_path, monkeypatch):
    release.release(tmp_path / "out")
    monkeypatch.setattr(lessons, "COURSE", tmp_path / "out")
    assert reference_solution.reference("ddp_training", 1) is None and reference_solution.after("ddp_training", 1) == ""


def test_what_goes_out_imports_nothing_that_does_not(tmp_path):
    """The report once needed a module that a seal holds back: `start` and each `run` ended in a traceback."""
    out = tmp_path / "out"
    release.release(out)
    sealed = {"grader/engine/commands/plan.py", "grader/engine/commands/plan_output.py"}  # they look before they import
    missing = []
    for path in sorted([*out.glob("utils/**/*.py"), *out.glob("grader/**/*.py")]):
        name = path.relative_to(out).as_posix()
        # There is no Python yet in the start of a lesson, and its checks are sealed as it is.
        if name in sealed or name.startswith(("grader/start/", "grader/lessons/")):
            continue
        wanted = {
            f"{node.module}" if isinstance(node, ast.ImportFrom) else alias.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        for module in wanted:
            file = out.joinpath(*module.split("."))
            if module.startswith(("utils", "grader")) and not (file.is_dir() or file.with_suffix(".py").is_file()):
                missing.append(f"{name}: {module}")
    assert not missing

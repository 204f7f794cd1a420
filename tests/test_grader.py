"""`pytest grader` as an instructor types it: target, selection, JSON; and what a verdict says."""

import json
import subprocess
import sys

import pytest
from nbformat.v4 import new_code_cell
from student_notebook import save, solved

from grader.engine.judge import audit
from grader.engine.judge.judge import Judge, checked_lessons, checks_of
from grader.engine.lesson import lessons, texts, todo_regions

FIELDS = {
    "lesson",
    "todo",
    "title",
    "status",
    "cause",
    "points",
    "max_points",
    "message",
    "expected",
    "seen",
    "why",
    "hint",
    "rank",
    "where",
}


def grade(*args):
    command = [sys.executable, "-m", "pytest", "grader", "-q", "-p", "no:cacheprovider", *args]
    return subprocess.run(command, cwd=lessons.COURSE, capture_output=True, text=True, timeout=300)


def target(folder, solved=(), bodies=None):
    """A folder with the DDP exercise in it, so far solved."""
    source = lessons.source_path("ddp_training").read_text()
    (folder / "train").mkdir()
    (folder / "train" / "ddp_training.py").write_text(todo_regions.compose(source, solved, bodies))
    return str(folder)


def test_every_todo_has_its_check():
    """`./workbook test` runs them all on the solutions."""
    for lesson in lessons.stems():
        titles = lessons.titles(lesson)
        found = [check.todo.number for check in checks_of(lesson)] if titles else []
        assert found == sorted(titles), lesson


def test_every_todo_has_its_words():
    """A check; its minutes, why it matters, hints, and a short text to read after a pass."""
    assert [line for lesson in checked_lessons() for line in audit.said(lesson)] == []
    assert [line for lesson in lessons.stems() for line in texts.problems(lesson)] == []


@pytest.mark.long  # the same checks as in test_solutions
def test_the_solution_gets_every_point(tmp_path):
    done = grade("--target", "solutions", "-k", "02_data_parallel", "--json", str(tmp_path / "marks.json"))
    assert done.returncode == 0, done.stdout
    marks = json.loads((tmp_path / "marks.json").read_text())
    assert all(set(mark) == FIELDS for mark in marks)
    assert [mark["todo"] for mark in marks] == list(lessons.titles("02_data_parallel"))
    assert all(mark["status"] == "pass" and mark["points"] == mark["max_points"] for mark in marks)


def test_one_todo_of_one_lesson(tmp_path):
    done = grade(
        "--target",
        target(tmp_path, {1, 2, 3, 4}),
        "-k",
        "ddp_training",
        "-m",
        "todo4",
        "--json",
        str(tmp_path / "marks.json"),
    )
    assert done.returncode == 0 and "1 passed" in done.stdout
    assert [m["todo"] for m in json.loads((tmp_path / "marks.json").read_text())] == [4]


@pytest.mark.long  # test_mutants.py does it for each TODO
def test_a_half_done_exercise(tmp_path):
    done = grade("--target", target(tmp_path, {1, 2}), "-k", "ddp_training", "--json", str(tmp_path / "marks.json"))
    assert done.returncode == 1
    marks = {m["todo"]: m for m in json.loads((tmp_path / "marks.json").read_text())}
    assert [marks[n]["status"] for n in (1, 2, 3)] == ["pass", "pass", "fail"] and marks[3]["cause"] == "not_attempted"
    assert (
        marks[9]["status"] == "skipped" and marks[9]["cause"] == "prerequisite" and "TODOs 4, 5" in marks[9]["message"]
    )
    assert "Traceback" not in done.stdout


def test_a_target_that_is_not_there():
    done = grade("--target", "nowhere")
    assert done.returncode == 4 and "no such folder" in done.stderr


def test_a_submission_without_the_file(tmp_path):
    done = grade("--target", str(tmp_path), "-k", "ddp_training", "-m", "todo1")
    assert done.returncode == 1 and "workbook reset" in done.stdout


def judged(runner, tmp_path, solved, bodies=None):
    return Judge(runner, "ddp_training", target(tmp_path, solved, bodies))


def test_a_deadlock_names_rank_line_and_todo(runner, tmp_path):
    body = "if dist.get_rank() == 0:\n    dist.all_reduce(total)\nreturn (total / count).item()"
    verdict = judged(runner, tmp_path, range(1, 19), {10: body}).verdict(10)
    text = (tmp_path / "train" / "ddp_training.py").read_text().splitlines()
    line = text.index("        dist.all_reduce(total)") + 1
    assert (verdict.cause, verdict.rank, verdict.where) == ("hang", 1, f"train/ddp_training.py:{line} (TODO 10)")


def test_a_crash_in_a_later_region_is_blamed_on_it(runner, tmp_path):
    judge = judged(runner, tmp_path, range(1, 19), {13: "raise RuntimeError('at the very end')"})
    assert judge.verdict(9).cause == "prerequisite" and "TODO 13" in judge.verdict(9).message
    assert judge.verdict(13).cause == "crash" and "at the very end" in judge.verdict(13).message


def test_a_crash_in_a_later_region_is_told_what_is_asked_there(runner, tmp_path):
    """The TODO's first hint is about its first function: of no use to whose code stopped in the second one."""
    source = lessons.source_path("tp_training").read_text("utf-8")
    (tmp_path / "train").mkdir()
    own = todo_regions.solutions(source, 1)
    for body, hint in (
        ([own[0], "raise RuntimeError('no samplers')"], "What the TODO asks there: the samples. As given, each rank"),
        (["raise RuntimeError('no mesh')", own[1]], texts.words("tp_training", 1).hints[0]),
    ):
        text = todo_regions.compose(source, [1], {1: body})
        (tmp_path / "train" / "tp_training.py").write_text(text, "utf-8")
        verdict = Judge(runner, "tp_training", tmp_path).verdict(1)
        assert verdict.cause == "crash" and verdict.hint.startswith(hint), verdict.hint


def test_a_file_that_is_no_python(runner, tmp_path):
    folder = target(tmp_path)
    (tmp_path / "train" / "ddp_training.py").write_text("def setup(:\n")
    verdict = Judge(runner, "ddp_training", folder).verdict(1)
    assert (verdict.status, verdict.cause) == ("skipped", "no_python")
    assert "SyntaxError" in verdict.message and verdict.where.startswith("train/ddp_training.py:1")


@pytest.mark.parametrize(
    ("old", "new", "teller"),
    [
        (
            "return train_loader, validation_loader, test_loader",
            "return train_loader, validation_loader test_loader",
            0,
        ),
        ("test_loader = DataLoader(test, ", "for _ in range(2):\n    # ", 7),
        ("samplers[0].set_epoch(epoch)", "samplers[0].set_epoch(epoch", 9),
    ],
)
def test_what_is_no_python_is_told_by_the_todo_that_is_to_blame_and_by_no_other(runner, tmp_path, old, new, teller):
    folder = target(tmp_path, range(1, 19))
    script = tmp_path / "train" / "ddp_training.py"
    assert script.read_text().count(old) == 1
    script.write_text(script.read_text().replace(old, new))
    judge = Judge(runner, "ddp_training", folder)
    for verdict in (judge.verdict(number) for number in range(1, 14)):
        told = "crash" if verdict.todo == teller else "prerequisite" if teller else "no_python"
        assert (verdict.cause, "not Python" in verdict.message) == (told, True), verdict.message


def test_a_broken_todo_2_does_not_drown_todo_1(runner, tmp_path):
    judge = judged(runner, tmp_path, range(1, 19), {2: 'rank = local_rank = world_size = os.environ["NO_SUCH_NAME"]'})
    assert judge.verdict(1).passed
    assert judge.verdict(2).cause == "crash" and "NO_SUCH_NAME" in judge.verdict(2).message


def test_a_crash_outside_the_students_lines_shows_the_checks(runner, tmp_path):
    """What came of the TODO cannot be used: the line that would use it says more than torch's words alone."""
    verdict = judged(runner, tmp_path, range(1, 19), {8: "return torch.nn.Identity()"}).verdict(8)
    assert verdict.cause == "crash" and verdict.where is None
    asked = verdict.message.partition(", where the check says: ")[2]
    assert "wrapped" in asked and asked in (lessons.folder("ddp_training") / "ranks.py").read_text(), verdict.message


def test_a_given_line_that_is_moved_is_told_after_a_pass(runner, tmp_path):
    folder = target(tmp_path, range(1, 19))
    script = tmp_path / "train" / "ddp_training.py"
    step = "        optimizer.step()\n"
    assert script.read_text().count(step) == 1
    script.write_text(script.read_text().replace(step, f"    {step}"))  # under `if args.clip:`
    verdict = Judge(runner, "ddp_training", folder).verdict(1)
    assert verdict.passed and "“optimizer.step()”, indented differently" in verdict.message


def moved(notebook):
    imports = next(cell for cell in notebook.cells if "import torch.distributed as dist" in cell.source)
    notebook.cells.remove(imports)
    notebook.cells.append(imports)


def deleted(notebook):
    notebook.cells.remove(next(cell for cell in notebook.cells if cell.source.startswith("class ShardedOptimizer")))


def indented_differently(notebook):
    given = next(cell for cell in notebook.cells if cell.source.startswith("class ShardedOptimizer"))
    given.source = given.source.replace("\n        self.", "\n    self.", 1)


def rebound(notebook):
    notebook.cells.append(new_code_cell("import torch\nnotes = 1\ndist = None"))


@pytest.mark.parametrize(
    ("accident", "told"),
    [
        (moved, "notebooks/03_zero.ipynb: the cell “import copy” is in another place"),
        (deleted, "notebooks/03_zero.ipynb: the cell “class ShardedOptimizer:” is gone"),
        (indented_differently, "indented differently"),
        (rebound, "Outside the TODOs, these lines are not the course's: “dist = None” in the cell “import torch”"),
    ],
)
def test_an_accident_in_a_cell_that_is_no_todos_is_named(runner, tmp_path, accident, told):
    notebook = solved("03_zero")
    accident(notebook)
    save(notebook, tmp_path / "notebooks" / "03_zero.ipynb")
    others = set(lessons.titles("03_zero")) - {4}
    verdict = Judge(runner, "03_zero", str(tmp_path), presumed=others).verdict(4)
    assert verdict.status == "fail" and told in verdict.message, verdict
    assert accident is rebound or verdict.message.endswith("; with them as they were, TODO 4 is right"), verdict
    assert verdict.hint.startswith("`./workbook diff 03_zero`")


def test_a_function_that_returns_nothing_is_named(runner, tmp_path):
    verdict = judged(runner, tmp_path, range(1, 19), {8: "return None"}).verdict(8)
    assert "wrap returns None, where its signature says Module" in verdict.message and "(TODO 8)" in verdict.where

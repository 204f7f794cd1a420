"""What a verdict and the commands say: differences that can be seen, hints of a part, code that is not cut."""

import logging
import math

import pytest
import torch
from rich.console import Console

from grader.engine.commands import screen
from grader.engine.judge.other_answers import WRONG, answered, listed
from grader.engine.judge.judge import Judge
from grader.engine.judge.mutants import judge_of
from grader.engine.judge.verdict import Verdict, Wrong, apart, expect, hinted
from grader.engine.judge.verdict_text import details
from grader.engine.lesson import lessons, texts
from grader.engine.lesson.lessons import Unit
from grader.engine.ranks.diagnose import Diagnosis, Fault
from grader.engine.ranks.rank_endings import Endings, parted
from grader.engine.ranks.job import Job
from grader.kit.predictions import known
from grader.kit.scripts import check_checkpoint
from grader.kit.tensors import difference
from tests.test_diagnose import feed, op


def test_numbers_are_told_in_digits_that_tell_them_apart():
    assert apart(3.1234567, 3.1234571) == ("3.1234567", "3.1234571")
    assert apart(2.5, 7) == ("2.5", "7")
    assert apart(math.nan, 1.0) == ("nan", "1")
    assert apart(3, 4) == (3, 4) and apart("3 calls", 4) == ("3 calls", 4)


def test_tensors_are_told_where_they_differ_most():
    right = torch.arange(20.0)
    wrong = right.clone()
    wrong[11] += 1e-4
    assert apart(right, wrong) == (
        "8, 9, 10, 11, 12, 13 (numbers 9 to 14 of 20)",
        "8, 9, 10, 11.0001, 12, 13 (numbers 9 to 14 of 20)",
    )
    right, wrong = torch.arange(24).view(2, 3, 4), torch.zeros(2, 3, 4, dtype=torch.int64)
    assert apart(right, wrong) == (
        "20, 21, 22, 23 ([1, 2, 0:4] of shape (2, 3, 4))",
        "0, 0, 0, 0 ([1, 2, 0:4] of shape (2, 3, 4))",
    )
    assert "([1, 14:20] of shape (2, 20))" in apart(torch.arange(40).view(2, 20), torch.zeros(2, 20))[0]
    assert apart(torch.tensor(1), torch.tensor(2)) == ("1", "2")
    assert apart(torch.ones(2), torch.ones(2, 1)) == ("shape (2,): 1, 1", "shape (2, 1): 1, 1")
    assert apart([1.0, 2.0], [1.0, 2.00000001]) == ("1, 2", "1, 2.00000001")
    assert apart([[0, 1], [2]], [[0], [1, 2]]) == ([[0, 1], [2]], [[0], [1, 2]])


def test_numbers_that_passed_through_float32_are_told_as_that():
    right = torch.linspace(0.1, 3, 20, dtype=torch.float64)
    assert "as if it had passed through float32" in difference(right.float().double(), right)
    assert "float32" not in difference(right + 1e-3, right)


def test_the_right_numbers_in_a_different_order_are_told_as_that():
    right = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    told = difference(right.view(4, 3).T.contiguous(), right)
    assert told.endswith("differ): the numbers are right, but in a different order") and "first at [0, 1]" in told
    assert "different order" not in difference(right.flip(0) + 1e-3, right)
    by_chance = difference(torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 0.0, 0.0]))
    assert "different order" not in by_chance


def test_long_lists_of_names_are_told_by_what_only_one_has():
    right = [f"layer {n}" for n in range(9)]
    assert apart(right, right[:8]) == ("9 names, with layer 8", "8 names, without layer 8")
    assert apart(right, [*right, "head"]) == ("9 names, without head", "10 names, with head")
    assert apart(right, []) == (
        "9 names, with layer 0, layer 1, layer 2, layer 3, layer 4, layer 5 and 3 more",
        "0 names, without layer 0, layer 1, layer 2, layer 3, layer 4, layer 5 and 3 more",
    )
    assert apart(["a"], ["b"]) == (["a"], ["b"])


def test_a_part_of_a_todo_has_a_hint_of_its_own():
    with pytest.raises(Wrong) as caught, hinted("of the part"):
        expect(False, "it is wrong")
    assert caught.value.hint == "of the part"
    with pytest.raises(Wrong) as caught, hinted("of the part"):
        expect(False, "it is wrong", hint="of this very failure")
    assert caught.value.hint == "of this very failure"


GIVEN = """def exchange():
    send()


def ring():
    # TODO 1: Send.
    ### BEGIN SOLUTION
    exchange()
    ### END SOLUTION
"""


def test_the_students_own_line_is_named_and_not_one_in_a_function_that_was_given():
    judge = Judge.__new__(Judge)
    unit = lessons.Unit(
        "train/x.py", GIVEN.replace("    ### BEGIN SOLUTION\n", "").replace("    ### END SOLUTION\n", ""), GIVEN
    )
    judge.student = type("Student", (), {"units": [unit], "batch": []})()
    at = {"callers": [["train/x.py", 7, "ring"]], "tag": 0, "where": ["train/x.py", 2, "exchange"]}
    seen = Diagnosis(2)
    fault = feed(seen, (0, op("send", 2, (4,), peer=1) | at), (1, op("recv", 2, (5,), peer=0) | at))
    assert "train/x.py:2" in fault.message
    told = judge.by_own_lines(1, fault)
    assert told.count("train/x.py:7 (TODO 1)") == 2 and "train/x.py:2" not in told
    assert judge.place(1, fault) == "train/x.py:7 (TODO 1), which calls train/x.py:2"


def test_a_line_of_the_library_is_quoted_and_of_no_other_file():
    """The frames come from a rank, which may name any path."""
    endings = Endings(None, "", {}, {})
    library = lessons.COURSE / "utils" / "model.py"
    line = next(n for n, text in enumerate(library.read_text("utf-8").splitlines(), 1) if "class Attention" in text)
    assert "class Attention" in endings.line_of_ours([[str(library), line, "forward"]])
    around = lessons.COURSE / "utils" / ".." / "utils" / "model.py"
    assert endings.line_of_ours([[str(around), line, "forward"]]) == ""


def test_a_line_is_told_once():
    """Of a comprehension, which is a function of its own, too; and not again as the place, if the message has it."""
    judge = Judge.__new__(Judge)
    judge.student = type("Student", (), {"units": [lessons.Unit("train/x.py", GIVEN, GIVEN)], "batch": []})()
    fault = Fault("crash", "", 0, ["train/x.py", 8, "<listcomp>"], callers=[["train/x.py", 8, "ring"]])
    assert judge.place(1, fault) == "train/x.py:8 (TODO 1)"
    stopped = dict(lesson="x", todo=1, title="", status="fail", cause="crash", points=0, max_points=1)
    told = Verdict(
        **stopped, message="it stopped with KeyError, at train/x.py:8", seen="KeyError", where="train/x.py:8"
    )
    assert [name for name, _ in details(told)] == ["why", "hint"]
    told.message = "it stopped"
    assert [name for name, _ in details(told)] == ["seen", "where", "why", "hint"]


@pytest.mark.parametrize("width", [60, 200])
def test_code_is_never_cut(monkeypatch, capsys, width):
    mine, theirs = "x = first(a_long_name, another)\nreturn x", "return first(a_long_name, another_one)  # to the end"
    monkeypatch.setattr(screen, "console", Console(highlight=False, soft_wrap=True, width=width))
    monkeypatch.setattr(screen.reference_solution, "own", lambda *_: mine)
    monkeypatch.setattr(screen.reference_solution, "reference", lambda *_: theirs)
    screen.say_reference("a_lesson", 1)
    said = capsys.readouterr().out
    assert all(line in said for line in (*mine.splitlines(), theirs))
    assert ("yours" in said.splitlines()[0]) == (width == 60)


@pytest.mark.parametrize(
    ("todo", "name"),
    [
        (4, "the options are lost"),
        (4, "the weights are not gathered"),
        (4, "a collective for each parameter"),
        (4, "weights that lie in what was gathered"),
        (10, "bfloat16 masters"),
        (10, "gradients added up in bfloat16"),
        (10, "not written back"),
    ],
)
def test_a_first_hint_answers_the_failure_and_not_the_whole_todo(runner, todo, name):
    wrong = listed("03_zero", WRONG)
    answer = next(answer for answer in wrong if (answer.todo, answer.name) == (todo, name))
    others = set(lessons.titles("03_zero")) - {todo}
    judge = judge_of(runner, "03_zero", answered("03_zero", answer), others)
    verdict = judge.verdict(todo)
    assert verdict.hints_seen == 0 and verdict.hint not in texts.words("03_zero", todo).hints


LONG = "attempting to assign a gradient of another dtype. The gradient must match the tensor, " + "and so on, " * 20


@pytest.mark.parametrize(
    ("text", "begin", "rest"),
    [
        ("", "no message", ""),
        ("Expected a Tensor\n    but got None.", "Expected a Tensor but got None.", ""),
        (LONG, "attempting to assign a gradient of another dtype.", LONG.partition(". ")[2].strip()),
        ("Missing keys:\n" + "weight " * 40, "Missing keys:", ("weight " * 40).strip()),
        ("it failed\nTraceback (most recent call last):\n  File", "it failed", ""),
    ],
)
def test_a_crash_is_told_once(text, begin, rest):
    assert parted(text) == (begin, rest)


SAVES = """
import torch
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
def save(x, rank, world):
    whole = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (world,)), [Shard(0)])
    if rank == 0:
        torch.save({"model": {"weight": whole}, "config": {}, "epoch": 0}, "model.pt")
"""


def test_of_a_dtensor_in_a_checkpoint_the_verdict_tells_and_not_torch(runner, caplog, monkeypatch):
    import torch.distributed.tensor  # as the checks of FSDP do: torch then reads DTensors

    job = Job(
        [Unit("train/x.py", SAVES, SAVES)],
        lesson="",
        function="grader.engine.inside.rank:own_function",
        inputs={"name": "save", "inputs": [{"value": 0}] * 2, "timed": False},
    )
    run = runner.run(job)
    assert run.fault is None, run.fault.message
    monkeypatch.setattr(logging.getLogger("torch.distributed.device_mesh"), "handlers", [caplog.handler])
    with pytest.raises(Wrong, match="weight is a DTensor"):
        check_checkpoint(run.files["model.pt"], {"weight": torch.ones(4)}, epoch=0)
    assert not caplog.records


def test_a_mistake_is_named_only_if_it_explains_all_that_was_returned():
    right, wrongs = [1.0, 4.0, 9.0], {"doubled": [2.0, 8.0, 18.0], "four, always": [4.0, 4.0, 4.0]}
    assert known([2.0, 8.0, 18.0], right, wrongs) == "doubled"
    assert known([2.0, 4.0, 9.0], right, wrongs) == "" == known([2.0], right[:1], {"a": [2.0], "b": [2.0]})


def test_a_mistake_is_not_named_for_its_zeros():
    right, wrongs = [3.0, 0.0, 5.0], {"never negative": [0.0, 0.0, 5.0]}
    assert known([0.0, 0.0, 5.0], right, wrongs) == ""
    zeros = torch.zeros(3)
    assert known([zeros], [torch.ones(3)], {"zeros": [zeros]}, torch.equal) == ""

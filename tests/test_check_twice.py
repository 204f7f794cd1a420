"""A check walks twice: what a student's code keeps between calls falls in the second, and nothing else does."""

import random
import textwrap
import types

import pytest
import torch
from tests import on_ranks

from grader.engine.inside.changed_arguments import Given
from grader.engine.judge import judge
from grader.engine.judge.judge import Judge, checked_lessons, checks_of
from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import expect, todo
from grader.engine.lesson import lessons, todo_regions
from grader.engine.lesson.lessons import Unit
from grader.engine.ranks.job import Job, Private

SECOND = "/second call"
SOURCE = """
import functools
import torch
import torch.distributed as dist

class Kept:
    value = None

known = {}

def total(x):
    # TODO 1: Add up x over all ranks, into a tensor of its own.
    ### BEGIN SOLUTION
    x = x.clone()
    dist.all_reduce(x)
    return x
    ### END SOLUTION
"""


def total_is_right(student):
    """As an author writes a check: he thinks of one call."""
    drawn = student.draw("total")
    numbers = [[drawn.uniform(1, 2) for _ in range(3)] for _ in range(2)]
    student.premise(sum(numbers[0]) != sum(numbers[1]), "twice its own")
    run = student.call(on_ranks.total, numbers=Private(numbers), group=student.makes_group)
    right = torch.tensor(numbers).sum(0)
    for rank, seen in enumerate(run.evidence):
        expect(torch.allclose(seen, right), "total is wrong", right, seen, rank)


@pytest.fixture
def verdict(runner, monkeypatch):
    """The verdict on a body of the toy lesson's only TODO."""

    def found(body, group=True, **about):
        check = todo(1, **about)(types.FunctionType(total_is_right.__code__, globals()))
        monkeypatch.setattr(judge, "checks_of", lambda lesson: [check])
        monkeypatch.setattr(lessons, "titles", lambda lesson: {1: "total"})
        unit = Unit("train/toy.py", todo_regions.compose(SOURCE, {1}, {1: body}), SOURCE)
        reached = Judge(runner, "toy", units=[unit], batch=[])
        reached.student.makes_group = group
        return reached.verdict(1)

    return found


ADDS = "x = x.clone()\ndist.all_reduce(x)\n"
KEEPS = {
    "a global": "if 'x' not in known:\n    known['x'] = x.clone()\n    dist.all_reduce(known['x'])\nreturn known['x']",
    "a class": "if Kept.value is None:\n    Kept.value = x.clone()\n    dist.all_reduce(Kept.value)\nreturn Kept.value",
    "a default argument": ADDS
    + "def shown(x, first=known):\n    first.setdefault(0, x)\n    return first[0]\nreturn shown(x)",
    "a sum that grows": ADDS + "known[0] = known.get(0, 0) + x\nreturn known[0]",
}


@pytest.mark.parametrize("body", KEEPS.values(), ids=KEEPS)
def test_what_is_kept_falls_in_the_second_call(verdict, body):
    found = verdict(body)
    assert (found.status, found.cause) == ("fail", "wrong_value")
    assert found.message == "the second call in one process: total is wrong"
    assert "the first call left: in a global, a default argument" in found.hint


def test_a_group_that_was_made_once_is_gone_in_the_second_call(verdict):
    found = verdict(
        "x = x.clone()\ngroup = known.setdefault(0, dist.group.WORLD)\ndist.all_reduce(x, group=group)\nreturn x"
    )
    assert found.cause == "crash" and found.message.startswith("the second call in one process: rank 0 stopped with")


@pytest.mark.parametrize(
    "body",
    [
        ADDS + "return x",
        ADDS + "known.setdefault(tuple(x.tolist()), float(x.sum()))\nreturn x",
        "@functools.cache\ndef twice(n):\n    return 2 * n\n" + ADDS + "return x + 0 * twice(1)",
    ],
)
def test_right_answers_and_right_memos_pass(verdict, body):
    assert verdict(body).passed


def test_a_hang_in_the_second_call_alone_is_told_as_such(verdict):
    skips = "if known.setdefault(0, []).append(0) or len(known[0]) == 1 or dist.get_rank():\n    dist.all_reduce(x)\n"
    found = verdict("x = x.clone()\n" + skips + "return x")
    assert found.cause == "hang" and found.message.startswith("the second call in one process: deadlock: rank 1 waits")


def test_what_is_wrong_in_any_process_is_no_matter_of_calls(verdict):
    assert verdict("return x").message == "total is wrong"
    drawn = [sum(random.Random(f"/toy/('total',){turn}").uniform(1, 2) for _ in range(6)) for turn in ("", SECOND)]
    of_one_draw = f"return x if abs(float(x.sum()) - {drawn[0]}) < 1e-4 else -x"
    assert verdict(ADDS + of_one_draw).message == "total is wrong"


def test_the_code_makes_its_group_in_each_call(verdict):
    made = "dist.init_process_group('gloo')\n" + ADDS + "return x"
    assert verdict(made, group=None).passed


def test_the_second_pass_takes_one_of_several_cases_and_each_with_some_seed(runner):
    taken = set()
    for seed in map(str, range(40)):
        first = Student(runner, "ddp_training", [], [], seed)
        assert first.several("abcd", but="a") == list("abcd")
        second = first.second()
        assert second.several("abcd", but="a") == second.several("abcd", but="a")
        assert second.several("abcd", 3) == sorted(second.several("abcd", 3))
        taken.update(second.several("abcd", but="a"))
    assert taken == set("bcd")


def test_a_check_may_ask_for_one_call(verdict):
    assert verdict(KEEPS["a global"], once="a reason").passed


def test_what_is_written_into_is_named(verdict):
    found = verdict("dist.all_reduce(x)\nreturn x")
    assert found.message == "total: x, which it is given, is written into" and found.seen == "is written into"
    assert verdict("dist.all_reduce(x)\nreturn x", in_place=("x",)).passed
    assert verdict("y = x.clone()\nx.requires_grad_()\ndist.all_reduce(y)\nreturn y").message.endswith(
        "requires a gradient afterwards"
    )


def test_the_mode_in_which_a_module_is_left_is_looked_at():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    given = Given(model=model)
    model.train().eval()
    assert given.changes() == {"model": "is left in evaluation mode"}
    model.train()
    assert given.changes() == {}
    model[1].eval()
    assert given.changes() == {"model": "is left in evaluation mode"}


def test_few_checks_bear_one_call_only():
    checks = [check.todo for lesson in checked_lessons() for check in checks_of(lesson)]
    assert 20 * sum(bool(about.once) for about in checks) <= len(checks)


def launch(runner, body, second=True, world=2):
    text = "from grader.engine.inside.observe import Reporter\nfrom grader.engine.inside import evidence\n"
    text += "def work(rank, world):\n" + textwrap.indent(body, "    ") + "\n"
    how = dict(lesson="", function="tests.on_ranks:work", second={} if second else None, world=world)
    return runner.run(Job([Unit("train/x.py", text, "")], **how))


def test_two_calls_are_kept_apart(runner):
    run = launch(
        runner, "import os\nprint('here')\nopen('f', 'w').write('x')\nos.environ['A'] = 'a'\nreturn os.getcwd()"
    )
    assert (run.fault, run.second.fault) == (None, None)
    assert run.stdout == run.second.stdout == ["here\n", "here\n"] and run.files == run.second.files == {"f": b"x"}
    assert run.evidence[0] != run.second.evidence[0] and run.second.second is None
    assert [event["e"] for event in run.second.events[0]][-1] == [event["e"] for event in run.events[0]][-1] == "end"


def test_layouts_of_the_first_calls_meshes_are_not_kept(runner):
    """DTensor remembers layouts by a mesh's ranks and axes, and each call numbers its groups anew."""
    run = launch(
        runner,
        """
        import torch
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Shard, distribute_tensor
        lengths = (4,) if hasattr(Reporter, "was") else (9, 4)  # of the second mesh, and then of the first
        Reporter.was = 1
        for length in lengths:
            mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "part"))
            part = distribute_tensor(torch.ones(length), mesh["part"], [Shard(0)])
            square = part.sum().square()  # adds up the parts first: their layout, and so a group, is remembered
        return square.full_tensor().item()
        """,
        world=4,
    )
    assert run.fault is None and run.second.fault is None, (run.fault or run.second.fault).message
    assert run.evidence == run.second.evidence == [16.0] * 4


def test_a_crash_in_the_second_call_is_its_own(runner):
    run = launch(
        runner,
        "print('once')\nif not hasattr(Reporter, 'was'):\n    Reporter.was = 1\n    return rank\nraise KeyError('x')",
    )
    assert run.fault is None and run.evidence == [0, 1]
    assert run.second.fault.cause == "crash" and "KeyError" in run.second.fault.message


@pytest.mark.parametrize("forged", ["pass", "evidence.write(Reporter.mine.own / 'evidence', 7)"])
@pytest.mark.parametrize("second", [True, False])
def test_a_boundary_that_a_stranger_tells_gains_nothing(runner, forged, second):
    run = launch(runner, f"{forged}\nReporter.mine.say(e='boundary')\nreturn 8", second)
    fault = run.fault or run.second.fault
    assert fault.cause == "crash" and ("makes no sense" in fault.message or "no evidence" in fault.message)

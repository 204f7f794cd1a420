"""What a function returns against its signature: that is told in place of the check's own line that broke on it."""

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor, nn, ones

from grader.engine.inside.changed_arguments import Given
from grader.engine.inside.return_values import keeps, with_numbers
from grader.engine.judge.other_answers import Answer, answered
from grader.engine.judge.mutants import judge_of
from grader.engine.lesson import lessons


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (ones(2), Tensor),
        (nn.Parameter(ones(2)), Tensor),
        (1, float),
        ([ones(2)], list[Tensor]),
        (None, Tensor | None),
        (None, list[Tensor] | None),
        (None, None),
        (None, "Tensor"),
        (print, Callable[[int], int]),
        (iter(()), Iterator[int]),
    ],
)
def test_kept(value, wanted):
    assert keeps(value, wanted)


@pytest.mark.parametrize(
    ("value", "wanted"), [(None, Tensor), (None, list[Tensor]), ((1, 2), list[int]), ("1", float), ([], Tensor | None)]
)
def test_not_kept(value, wanted):
    assert not keeps(value, wanted)


def test_a_call_that_torch_will_remove_is_told_with_its_line(runner):
    """As torch warns: FutureWarning, of the module that makes the call."""
    others = set(lessons.titles("00_one_device")) - {6}

    def judged(*lines):
        answer = Answer(
            6, "a way of mine", [None, "\n".join([*lines, "return math.ceil(16 * parameters / memory)"]), None]
        )
        return judge_of(runner, "00_one_device", answered("00_one_device", answer), others).verdict(6)

    told = judged("import warnings", "warnings.warn('`gather` is deprecated, use `join`', FutureWarning)")
    assert told.passed and "a later release will refuse a call, at fewest_devices (TODO 6)" in told.message, told
    assert "`gather` is deprecated, use `join`" in told.message
    assert judged().passed and not judged().message


@pytest.mark.parametrize(
    ("lesson", "number", "body", "words"),
    [
        ("00_one_device", 6, [None, "return -(-16 * parameters // memory)", None], "fewest_devices returns a float"),
        ("02_data_parallel", 8, "return None", "weighted returns None, where its signature says Tensor"),
        ("01_collectives", 6, ["return None", None], "all_reduce_bytes returns None, where its signature says float"),
        ("03_zero", 1, ["return None", None], "; so it stops at predicted_bytes (TODO 1)"),
        ("05_pipeline_parallel", 3, [None, None, "return None"], "accumulate returns None"),
        ("06_context_parallel", 6, [None, None, "return None", None, None], "TokensToHeads.backward returns None"),
        ("fsdp_training", 7, "return None", "precision returns None, where its signature says MixedPrecisionPolicy"),
        ("ddp_training", 8, "return None", "wrap returns None, where its signature says Module"),
    ],
)
def test_it_is_told_plainly(runner, lesson, number, body, words):
    answer = Answer(number, "another kind", body)
    others = set(lessons.titles(lesson)) - {number}
    verdict = judge_of(runner, lesson, answered(lesson, answer), others).verdict(number)
    assert verdict.status == "fail" and words in verdict.message, verdict.message
    assert f"(TODO {number})" in verdict.where, verdict.where


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"world": 3, "alpha": 5e-06}, "world=3, alpha=5e-06"),
        ({"shape": (2, (3, 4)), "name": "tp"}, "shape=(2, (3, 4)), name='tp'"),
        ({"sizes": [*range(99)]}, "sizes=[0, 1, 2, 3, 4, 5, ...]"),
        ({"x": ones(2, 3), "rank": 1, "model": nn.Linear(1, 1)}, "x=a tensor of shape (2, 3), rank=1, model=…"),
        ({"x": ones(2, 3), "tensors": [ones(2)], "name": "tp"}, ""),
        ({"argv": ["--pp", "2"]}, ""),
    ],
)
def test_how_a_function_that_raises_was_called(arguments, told):
    assert with_numbers(arguments) == told


def test_an_error_says_how_the_function_was_called(runner):
    answer = Answer(9, "no rounds", [None, "return cost[1] * beta / (cost[0] - cost[0])"])
    others = set(lessons.titles("01_collectives")) - {9}
    verdict = judge_of(runner, "01_collectives", answered("01_collectives", answer), others).verdict(9)
    assert "ZeroDivisionError: float division by zero, in predicted_seconds(cost=[6, 3000.0], alpha=" in verdict.message


def test_what_is_left_on_a_tensor_is_told():
    x = ones(2)
    given = Given(x=x)
    assert not given.changes()
    x.whole = 2 * x
    assert given.changes() == {"x": "has the attribute “whole” afterwards"}

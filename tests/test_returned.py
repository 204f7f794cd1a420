"""What a function returns against its signature: that is told in place of the check's own line that broke on it."""

from collections.abc import Callable, Iterator

import pytest
from torch import Tensor, nn, ones

from grader.engine.inside.returned import keeps
from grader.engine.judge.answers import Answer, answered
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


@pytest.mark.parametrize(
    ("lesson", "number", "body", "words"),
    [
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
    answer = Answer(number, "None", body)
    others = set(lessons.titles(lesson)) - {number}
    verdict = judge_of(runner, lesson, answered(lesson, answer), others).verdict(number)
    assert verdict.status == "fail" and words in verdict.message, verdict.message
    assert f"(TODO {number})" in verdict.where, verdict.where

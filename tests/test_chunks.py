"""Tables whose rows do not divide: what a rank holds, what can be saved, and what the scripts refuse to begin."""

import math

import pytest
import torch
from torch.distributed.tensor import Shard
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard

from grader.engine.lesson import lessons
from grader.engine.ranks.job import Job
from grader.kit import whole


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (4, 2), (2, 3), (3, 1)])
def test_every_row_is_there_after_saving_and_loading(runner, shape):
    ranks = math.prod(shape)
    sizes = [*range(8 * ranks, 9 * ranks + 1)]  # each remainder once
    how = {"lesson": "", "function": "tests.chunks_on_ranks:sent_saved_loaded"}
    run = runner.run(
        Job(
            lessons.units("tp_training", "solutions"),
            **how,
            world=ranks,
            common=True,
            inputs={"shape": shape, "sizes": sizes},
        )
    )
    assert run.fault is None, run.fault
    seen = run.evidence
    refused = []
    for number, rows in enumerate(sizes):
        mine = [left[number] for left in seen]
        right = torch.arange(2.0 * rows).view(rows, 2)
        assert sum(len(part["held"]["part"]) for part in mine) == rows
        assert torch.equal(whole([part["held"] for part in mine]), right), "evidence tells where each part begins"
        assert len({part["refused"] for part in mine}) == 1, "all ranks stop, or none"
        assert all(part["saved"] != part["refused"] for part in mine), "what is refused could not be saved"
        if mine[0]["refused"]:
            refused.append(rows)
            continue
        for moment in ("handed out", "loaded"):
            assert torch.equal(whole([part[moment] for part in mine]), right), (rows, moment)
    assert refused == {(3, 2): [49], (4, 2): [65]}.get(shape, [])


def is_lost(rows, shards, tp):
    """Whether torch takes some part to lie elsewhere than it does."""
    numbers = torch.arange(rows)
    for j in range(tp):
        layer = numbers.chunk(tp)[j]
        for i in range(shards):
            parts = layer.chunk(shards)
            held = parts[i] if i < len(parts) else layer[:0]
            (size, _), (first, _) = _compute_local_shape_and_global_offset(
                (rows, 2), (shards, tp), [i, j], [_StridedShard(0, split_factor=tp), Shard(0)]
            )
            if size != len(held) or (size and first != held[0]):
                return True
    return False


def test_what_is_advised_is_right():
    """No part is lost with a --tp that divides the rows, at most two shards, or rows padded to a multiple of all."""
    lost = {(61, 3, 2), (50257, 3, 2), (50257, 4, 2)}
    assert all(is_lost(*case) for case in lost), "torch has mended it: check_chunks can go"
    for tp in (1, 2, 3, 4, 8):
        for shards in (1, 2, 3, 4, 8):
            for rows in range(50, 130, 3):
                if rows % tp == 0 or shards <= 2:
                    assert not is_lost(rows, shards, tp), (rows, shards, tp)
                assert not is_lost(rows + -rows % (shards * tp), shards, tp), (rows, shards, tp)


def text(words):
    """Lines that have so many words, with the one that ends each line."""
    return "\n".join(" ".join(f"w{(k + n) % (words - 1)}" for n in range(15)) for k in range(words)) + "\n"


ARGV = "--batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 1 --max-steps 1 --log-every 1".split()


@pytest.mark.long
@pytest.mark.parametrize(("lesson", "flags"), [("tp_training", "--tp 2"), ("hybrid_training", "--shard 3 --tp 2")])
def test_the_scripts_stop_before_the_first_step(runner, lesson, flags):
    for words in (60, 61):
        data = {f"data/{name}.txt": text(words) for name in ("train", "validation", "test")}
        run = runner.run(
            Job(
                lessons.units(lesson, "solutions"),
                lesson=lesson,
                function="grader.kit.on_rank:mains_on_rank",
                world=6,
                group=False,
                inputs={"runs": [[6, [*ARGV, *flags.split()]]], "data": data},
            )
        )
        if words == 60:
            assert run.fault is None, run.fault
        else:
            assert "SystemExit: 2" in run.fault.message, run.fault
            said = run.stderr[0].splitlines()
            assert len(said) == 1 and "the 61 rows of" in said[0] and "cut into 3 × 2 parts" in said[0], said

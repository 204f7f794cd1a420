"""Checks of hybrid_training, TODOs 3 and 4: sharding.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 3 | a stage's layers shared | split() and loss_of() on 1, 2 and 3 ranks, stage by stage: loss, each gradient, bytes | |
| 4 | shards and copies | shard() on 2 × 2 and 3 × 1 ranks: weights held, each gradient, gathered once a step; in bfloat16 | |
"""  # noqa: E501

import math

import torch

from grader.kit import (
    EXACT,
    Private,
    Since,
    Wrong,
    cases,
    check_parts,
    check_refused,
    count_of,
    drawn_batch,
    drawn_model,
    drawn_sizes,
    expect,
    gradients,
    hinted,
    must_have_gradients,
    sent_by,
    todo,
)
from utils.data import IGNORE
from utils.model import TransformerLM
from utils.releases import AVERAGES_SINCE

from .common import WORDS, many, shaped
from .ranks import MICRO, shard_on_rank, split_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 3: a stage's layers, and the loss of the last one


def serial_step(sizes, seeds, rows=None):
    """Sum of the losses of all batches together, its gradients, and how many targets count."""
    model = drawn_model(0, sizes)
    total = targets = 0
    for seed in seeds:
        x, y = drawn_batch(seed, sizes, rows)
        n = (y != IGNORE).sum()
        total, targets = total + model(x, y) * n, targets + int(n)
    total.backward()
    return {"loss": total.item(), "targets": targets, "grads": gradients(model)}


OF_THE_LOSS = (
    "The stage is right; now its loss. Both functions give means over the targets that count, and a sum is asked for."
    " And does the one for a split head know how h is placed on the ranks?"
)


@todo(3)
def test_todo3_split(student):
    trials = []
    for world, sequence, n_stages in student.several(((1, False, 1), (2, False, 3), (3, True, 2)), but=[(1, False, 1)]):
        layers = student.draw("blocks", world).choice((n_stages, n_stages + 1))
        sizes = drawn_sizes(student, world, "split", words=WORDS, layers=layers)
        seed = student.draw("batch", world, sequence).randrange(1 << 40)
        right = student.reference(serial_step, sizes=sizes, seeds=[seed])
        some_count = right["targets"] not in (1, sizes["batch"] * sizes["length"])
        student.premise(some_count, "a batch whose targets all count")
        must_have_gradients(student, right["grads"])
        trials.append((world, sequence, n_stages, sizes, seed, right))
    for world, sequence, n_stages, sizes, seed, right in trials:
        flags = f"--tp {world}{' --sequence-parallel' if sequence else ''}"
        told = f"with {flags}, and {many(sizes['layers'], 'block')} in {many(n_stages, 'stage')}"
        run = student.call(split_on_rank, world=world, sizes=sizes, seed=seed, sequence=sequence, n_stages=n_stages)
        check_refused(told, "a stage", run.evidence)
        for rank, seen in enumerate(run.evidence):
            with hinted(OF_THE_LOSS):
                expect(
                    "returns" not in seen,
                    f"{told}, loss_of returns {seen.get('returns')}",
                    "a tensor of one number, with its graph",
                    seen.get("returns"),
                    rank,
                )
            expect(
                not seen["lacking"],
                f"{told}, split() names layers that a stage lacks, such as {seen['lacking'][:1]}: torch warns of each"
                " in every run",
                "the layers that the stage has",
                seen["lacking"][:3],
                rank,
            )
            check_held(told, sizes, world, seen["held"], rank)
            length = sizes["length"] // world if sequence else sizes["length"]
            for stage, shape in enumerate(seen["shapes"]):
                expect(
                    shape[1] == length,
                    f"{told}, stage {stage} hands on {shape[1]} of {sizes['length']} tokens on rank {rank}",
                    f"{length} tokens",
                    f"{shape[1]} tokens",
                    rank,
                )
            with hinted(OF_THE_LOSS):
                check_loss_of(told, seen, right, rank)
        check_parts(told, [seen["grads"] for seen in run.evidence], right["grads"])
        if world > 1:
            check_sent_3(told, run, sizes, world)


def check_loss_of(told, seen, right, rank):
    loss, wanted = seen["loss"], right["loss"]
    if not math.isclose(loss, wanted, rel_tol=EXACT):
        mean = math.isclose(loss, wanted / right["targets"], rel_tol=1e-4)
        what = "the mean over the targets" if mean else "a number that is not the sum over the targets that count"
        raise Wrong(f"{told}, loss_of gives rank {rank} {what}", wanted, loss, rank)
    expect(
        seen["nothing"] == 0,
        f"{told}, a micro-batch without a target has a loss on rank {rank}",
        0.0,
        seen["nothing"],
        rank,
    )


def check_held(told, sizes, tp, held, rank):
    """Of all that can be cut a rank holds its part."""
    D, V = sizes["dim"], sizes["vocab"]
    rows = math.ceil(V / tp)
    for name, much in held.items():
        if "norm" in name or name.startswith("position"):
            continue
        share = rows * D if name.startswith(("token", "head")) else (1 if "attention" in name else 4) * D * D // tp
        expect(
            much <= share,
            f"{told}, rank {rank} holds {much:,} elements of {name}: it is not split",
            f"{share:,}",
            f"{much:,}",
            rank,
        )


def check_sent_3(told, run, sizes, world):
    """No more than the plan's all-reduces, and three numbers a token for the loss: logits are never gathered."""
    stream = 8 * sizes["batch"] * sizes["length"] * sizes["dim"]
    tokens = 8 * sizes["batch"] * sizes["length"]
    # Of the stream 4 all-reduces in each block, one for the embedding, and one for h, forward and backward.
    allowed = 2 * (world - 1) / world * ((4 * sizes["layers"] + 3) * stream + 4 * tokens) * 1.01
    forward, loss, *_ = cases(run.events)
    for rank in range(world):
        much = sent_by(forward[rank] + loss[rank], rank)
        expect(
            much <= allowed,
            f"{told}, rank {rank} sends {much:,.0f} bytes in a step: are logits or tables gathered?",
            f"at most {allowed:,.0f} bytes",
            f"{much:,.0f} bytes",
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 4: shards and copies


def share_of(sizes, shard, tp):
    """Elements that one rank holds at most."""
    total = 0
    model = TransformerLM(sizes["vocab"], sizes["dim"], sizes["heads"], sizes["layers"], sizes["length"])
    for name, p in model.named_parameters():
        n, m = p.shape[0], math.prod(p.shape[1:])
        if tp > 1 and "norm" not in name and not name.startswith("position"):
            n, m = (n, m // tp) if name.endswith(("out.weight", "down.weight")) else (math.ceil(n / tp), m)
        total += math.ceil(n / shard) * m
    return total


def by_data(student, shape, *purpose):
    """A separate seed for each part of the batch: ranks that differ on pp or tp have the same samples."""
    _, dp, shard, _, tp = shape
    seeds = student.draw("data", *purpose).sample(range(1 << 40), dp * shard)
    return seeds, Private([seeds[rank // tp % (dp * shard)] for rank in range(math.prod(shape))])


@todo(4, since=Since(*AVERAGES_SINCE, on_cpus=True))
def test_todo4_shard(student):
    trials = []
    for shape in student.several(
        ((1, 2, 2, 1, 1), (1, 1, 3, 1, 1), (1, 2, 1, 1, 2), (1, 1, 1, 1, 1)), but=[(1, 1, 1, 1, 1)]
    ):
        sizes = drawn_sizes(student, shape[-1], "shard", *shape, words=WORDS)
        seeds, private = by_data(student, shape, "shard", *shape)
        right = student.reference(serial_step, sizes=sizes, seeds=seeds, rows=2 * MICRO)
        must_have_gradients(student, right["grads"])
        trials.append((shape, sizes, seeds, private, right))
    for shape, sizes, seeds, private, right in trials:
        tp, shard = shape[-1], shape[2]
        told = f"with {shaped(shape)}"
        short = shape[2] == 3 or math.prod(shape) == 1  # one alone gathers nothing, and yet has a dtype
        run = student.call(shard_on_rank, world=math.prod(shape), shape=shape, sizes=sizes, seed=private, short=short)
        check_refused(told, "a step", run.evidence)
        share = share_of(sizes, shard, tp)
        for rank, seen in enumerate(run.evidence):
            expect(
                seen["held"] <= share,
                f"{told}, rank {rank} holds {seen['held']:,} weights, more than its shard of what its layers have",
                f"{share:,}",
                f"{seen['held']:,}",
                rank,
            )
        check_parts(
            f"{told}, averaged over {len(seeds)} shares",
            [seen["grads"] for seen in run.evidence],
            {name: grad / len(seeds) for name, grad in right["grads"].items()},
        )
        check_gathered(told, run, shape, sizes, share)
        if short:
            check_short(told, run, shape[2] > 1)


def check_short(told, run, gathers):
    """With --dtype bfloat16 all weights are gathered in it, also those that are in no block, and gradients are added up
    in float32.
    """

    def dtypes_of(op, events):
        return sorted({event["dtype"] for event in events if event["e"] == "op" and event["op"] == op})

    gathered, stepped = cases(run.events)[2:4]
    for rank, seen in enumerate(run.evidence):
        dtypes = dtypes_of("all_gather", gathered[rank]) if gathers else seen["gathered"]
        expect(
            dtypes == ["bfloat16"],
            f"{told} and --dtype bfloat16, rank {rank} {'gathers' if gathers else 'computes with'} weights in"
            f" {' and '.join(dtypes) or 'no dtype'}: is the mp_policy in options given to every fully_shard?",
            "bfloat16",
            dtypes,
            rank,
        )
    check_refused(f"{told} and --dtype bfloat16", "a step", [seen["short"] for seen in run.evidence])
    for rank, events in enumerate(stepped if gathers else ()):
        summed = dtypes_of("reduce_scatter", events)
        expect(
            summed == ["float32"],
            f"{told} and --dtype bfloat16, rank {rank} adds up gradients in {' and '.join(summed) or 'no dtype'}: the"
            " mp_policy in options asks for float32",
            "float32",
            summed,
            rank,
            "precision() has made the policy. What becomes of it, between `options` and the calls?",
        )


def check_gathered(told, run, shape, sizes, share):
    """In a step each weight is gathered once, among the ranks of the shard axis, block by block."""
    grid = torch.arange(math.prod(shape)).view(shape)
    for rank, events in enumerate(cases(run.events)[1]):
        calls = [event for event in events if event["e"] == "op" and event["op"] == "all_gather" and event["bytes"]]
        calls = [event for event in calls if len(event["group"]) > 1]
        place = (grid == rank).nonzero()[0]
        among = grid[place[0], place[1], :, place[3], place[4]].tolist()
        if len(among) == 1:
            continue
        others = [event["group"] for event in calls if event["group"] != among]
        expect(
            not others,
            f"{told}, rank {rank} gathers weights from ranks outside its shard axis",
            among,
            others[0] if others else None,
            rank,
        )
        much = sum(event["bytes"] for event in calls)
        often = f"{much / (8 * share):.1f} times"
        with hinted("A unit that is gathered again has been freed. For which of the modules is that still so?"):
            expect(
                much <= 1.05 * 8 * share,
                f"{told}, rank {rank} sends its shard {often} in a step of {MICRO} micro-batches",
                "once",
                often,
                rank,
            )
        expect(
            len(calls) > sizes["layers"],
            f"{told}, rank {rank} gathers all weights in {count_of(len(calls), 'part')}: not every block is a unit",
            f"{sizes['layers'] + 1} parts: the blocks, and the rest",
            count_of(len(calls), "part"),
            rank,
            "fully_shard makes one unit of what it is given and has not been cut before. What is it given, one by one?",
        )

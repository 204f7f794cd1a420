"""Checks of pipeline_training, TODOs 1 to 3: stages.

| TODO | achievement                     | evidence                                                            | needs |
|------|---------------------------------|---------------------------------------------------------------------|-------|
| 1    | the model cut by cost           | the slowest stage of drawn models and heads                         |       |
| 2    | this rank's stages              | numbers, layers, group, memory on 4 ranks; one and two stages a rank |      |
| 3    | the serial run's first weights  | first_weights() on 4 ranks; who built a model; the largest message  |       |

The checks cut the stages themselves, except in TODO 1: so each TODO can be judged without the others.
"""

import math

import torch

from grader.kit import Fault, cases, collectives, expect, todo
from utils.pipeline_flags import splits_backward

from .common import serial_weights, with_stages
from .ranks import cuts_on_rank, first_on_rank, stages_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: cut by cost


def slowest_of(numbers, head):
    """The cost of the slowest stage, in blocks: these numbers of blocks, and the head in the last stage."""
    return max(*numbers[:-1], numbers[-1] + head) if len(numbers) > 1 else numbers[0] + head


def least_slowest(blocks, n_stages, head):
    """Tries all numbers of blocks for the last stage."""
    if n_stages == 1:
        return blocks + head
    others = n_stages - 1
    return min(max(math.ceil((blocks - n) / others), n + head) for n in range(1, blocks - others + 1))


def by_number(blocks, n_stages, head):
    return [blocks // n_stages + (k < blocks % n_stages) for k in range(n_stages)]


def with_last(blocks, n_stages, last):
    return [*by_number(blocks - last, n_stages - 1, 0), last]


def by_mean(blocks, n_stages, head):
    """The last stage gets what it lacks to the mean, rounded."""
    last = round((blocks + head) / n_stages - head)
    return with_last(blocks, n_stages, min(max(1, last), blocks - n_stages + 1))


def by_mean_of_others(blocks, n_stages, head):
    """As if the other stages could have fractions of blocks."""
    choices = range(1, blocks - n_stages + 2)
    return with_last(blocks, n_stages, min(choices, key=lambda n: max((blocks - n) / (n_stages - 1), n + head)))


def filled_up(blocks, n_stages, head):
    """Stages filled one after the other, each up to its part of the whole."""
    borders, mean = [0], (blocks + head) / n_stages
    for stage in range(1, n_stages):
        borders.append(min(max(borders[-1] + 1, round(mean * stage)), blocks - (n_stages - stage)))
    return [b - a for a, b in zip(borders, [*borders[1:], blocks])]


def drawn_cut(draw, wrong):
    """A model for which this cut looks right, and is not the best."""
    while True:
        n_stages = draw.randint(2, 5)
        blocks, head = draw.randint(n_stages + 1, 14), draw.randint(1, 20) / 4
        if slowest_of(wrong(blocks, n_stages, head), head) > least_slowest(blocks, n_stages, head):
            return blocks, n_stages, head


@todo(1)
def test_todo1_cut(student):
    draw = student.draw("cut")
    fixed = [(3, 1, 5.0), (4, 4, 9.0), (6, 2, 0.1), (12, 2, 3.4), (12, 4, 3.4), (2, 2, 20.0), (7, 3, 30.0), (8, 8, 0.5)]
    tempting = (by_number, by_mean, by_mean_of_others, filled_up)
    questions = fixed + [drawn_cut(draw, wrong) for wrong in tempting for _ in range(3)]
    (found,) = student.call(cuts_on_rank, world=1, group=False, questions=questions).evidence
    for (blocks, n_stages, head), seen in zip(questions, found, strict=True):
        check_cut(blocks, n_stages, head, seen)


def check_cut(blocks, n_stages, head, seen):
    told = f"cut({blocks}, {n_stages}, {head:g})"
    listed = isinstance(seen, dict)
    expect(listed, f"{told} does not return a list of ranges", f"{n_stages} ranges", seen)
    told_lists = f"{told} returns lists, and Layers cannot read their start and stop"
    expect(seen["ranges"], told_lists, "ranges", "lists", hint="range(a, b) has a as its start and b as its stop.")
    parts = seen["blocks"]
    expect(len(parts) == n_stages, f"{told} makes {len(parts)} stages", n_stages, len(parts))
    expect(all(parts), f"{told} has a stage without a block", "at least one in each", parts)
    everything = [i for part in parts for i in part]
    expect(
        everything == [*range(blocks)], f"{told} does not have each block once, in order", [*range(blocks)], everything
    )
    numbers = [len(part) for part in parts]
    took, best = slowest_of(numbers, head), least_slowest(blocks, n_stages, head)
    equal = (
        " They have equally many blocks, and the last one has the head, too." if max(numbers) - min(numbers) < 2 else ""
    )
    expect(
        took <= best + 1e-9,
        f"{told}: of stages with {numbers} blocks the slowest costs as much as {took:g} blocks; {best:g} is possible."
        f"{equal}",
        f"{best:g}",
        f"{took:g}",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 2: this rank's stages


@todo(2)
def test_todo2_stages(student):
    grids = [
        (2, 2, "1f1b", "float32"),
        (4, 1, "zero-bubble", "float32"),
        (4, 1, "interleaved", "float32"),
        (2, 2, "interleaved", "bfloat16"),
    ]
    grids = student.several(grid for grid in grids if splits_backward() or "zero-bubble" not in grid)
    try:
        run = student.call(stages_on_rank, world=4, grids=grids)
    except Fault as fault:
        if "group size" in fault.message:  # of torch's PipelineStage
            fault.hint = "Without a group, PipelineStage takes all ranks for one pipeline. Which group is yours?"
        raise
    for rank, left in enumerate(run.evidence):
        for grid, stages in zip(grids, left, strict=True):
            check_stages_of(rank, grid, stages)
    talk = [call for case in cases(run.events)[1::2] for call in collectives(case)]
    expect(
        not talk,
        f"a backward pass through a stage calls {talk[0].op if talk else ''}: gradients would be summed over the ranks"
        " in each micro-batch, and earlier micro-batches' once more each time",
        "no collective: TODO 6 sums, once per step",
        f"{len(talk)} collectives",
        talk[0].rank if talk else None,
    )


def check_stages_of(rank, grid, stages):
    pp, data, kind, dtype = grid
    told = f"with --schedule {kind} on {pp} × {data} ranks,"
    listed = isinstance(stages, list)
    expect(listed, f"{told} make_stages does not return a list of PipelineStage", "a list", stages, rank)
    chunks = 2 if kind == "interleaved" else 1
    here = rank // data
    right, seen = [here + k * pp for k in range(chunks)], [stage["stage"] for stage in stages]
    wrong = f"{told} rank {here} of its pipeline does not have its own stages"
    expect(seen == right, wrong, right, seen, rank)
    group = [rank % data + k * data for k in range(pp)]
    for stage in stages:
        check_stage(f"{told} stage {stage['stage']}", stage, pp * chunks, group, dtype, rank)
    share, peak = sum(sum(stage["right"].values()) for stage in stages), stages[0]["peak"]
    # Twice, for those who take memory for a layer and then move it.
    expect(
        peak < min(2 * share, 0.9 * stages[0]["whole"]),
        f"{told} make_stages takes memory for {peak:,} weights on rank {rank}, including other stages'",
        f"{share:,}, its own stages' weights",
        f"{peak:,}",
        rank,
    )


def check_stage(told, stage, n_stages, group, dtype, rank):
    expect(stage["of"] == n_stages, f"{told} is given the wrong number of stages", n_stages, stage["of"], rank)
    strangers = f"{told} sends to ranks outside its pipeline"
    expect(stage["group"] == group, strangers, group, stage["group"], rank)
    empty = f"{stage['meta']} weights of {told.removeprefix('with ')} have no memory yet"
    expect(not stage["meta"], empty, "all on the device", "on meta", rank)
    wrapped = [name for name in stage["names"] if name.startswith("module.")]
    expect(
        not wrapped,
        f"{told} is wrapped, by DDP for example, which expects one backward pass per step: a stage has one for each"
        " micro-batch",
        "Layers",
        wrapped[:1],
        rank,
    )
    share = sum(stage["right"].values())
    expect(
        stage["held"] == share and set(stage["names"]) == set(stage["right"]),
        f"{told} does not hold its own layers: it has memory for {stage['held']:,} weights",
        f"{share:,}, its layers' weights",
        f"{stage['held']:,}",
        rank,
    )
    expect(
        stage["bfloat16"] == (dtype == "bfloat16"),
        f"{told} with --dtype {dtype}: the layers compute in the wrong dtype",
        dtype,
        "bfloat16" if stage["bfloat16"] else "float32",
        rank,
    )
    expect(
        stage["dtypes"] == ["float32"],
        f"{told} with --dtype {dtype}: its weights are {' and '.join(stage['dtypes'])}, so small steps of the optimizer"
        " are rounded away",
        "float32 weights: --dtype is the dtype of the matrix products (autocast)",
        stage["dtypes"],
        rank,
        hint="Layers casts what it multiplies. Its weights need memory, on this device, and no other dtype.",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 3: first weights


@todo(3)
def test_todo3_first_weights(student):
    seeds = student.draw("first").sample(range(1, 1000), 2)
    for ranks, pp, turns in student.several(((4, 2, 1), (3, 3, 2))):
        run = student.call(first_on_rank, world=ranks, seeds=seeds, pp=pp, turns=turns)
        for number, seed in enumerate(seeds):
            told = f"on {ranks} ranks, {pp} of them in a pipeline{with_stages(turns)}"
            if number:
                told += ", in the second call, with another seed"
            right = student.reference(serial_weights, seed=seed)
            check_first(told, [left[number] for left in run.evidence], cases(run.events)[number], right)


def check_first(told, ranks, events, right):
    for rank, mine in enumerate(ranks):
        for name, weight in mine["weights"].items():
            what = "has no content yet" if weight.isnan().any() else "is not the serial run's"
            expect(
                torch.equal(weight, right[name]),
                f"{told}, the first {name} {what}",
                "the weights that a single process draws from --seed",
                "different ones",
                rank,
            )
    owners = [rank for rank, mine in enumerate(ranks) if mine["built"]]
    expect(
        len(owners) <= 1,
        f"{told}, ranks {', '.join(map(str, owners))} have each had the whole model in memory",
        "one rank at most",
        f"ranks {owners}",
        owners[-1] if owners else None,
    )
    largest, whole = 4 * max(w.numel() for w in right.values()), 4 * sum(w.numel() for w in right.values())
    for rank, mine in enumerate(events):
        most = max((event["bytes"] for event in mine if event["e"] == "op"), default=0)
        # Twice, for those who send other things with it.
        expect(
            most <= 2 * largest,
            f"{told}, rank {rank} gets {most:,} bytes in one message: more than a weight, so it holds other stages' "
            "weights, too",
            f"at most {largest:,} bytes, the largest weight's",
            f"{most:,} bytes",
            rank,
        )
    for rank, mine in enumerate(ranks):
        expect(
            mine["built"] or mine["peak"] < 0.9 * whole,
            f"{told}, rank {rank} has {mine['peak']:,} bytes of weights at one moment: other stages' weights are"
            f" kept, too",
            f"its own, and one more at a time; the whole model has {whole:,} bytes",
            f"{mine['peak']:,} bytes",
            rank,
        )

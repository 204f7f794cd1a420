"""Checks of fsdp_training, TODOs 3, 4 and 8: sharding.

| TODO | achievement                     | evidence                                                              | needs      |
|------|---------------------------------|-----------------------------------------------------------------------|------------|
| 3    | the model in parts              | shard() for each strategy on 4 ranks, and on 3: what each rank holds; bytes gathered, scattered and reduced in a step; gradients against one process | |
| 4    | the serial run's first weights  | build_model() and first_weights() on 4 ranks; who held all of them    |            |
| 8    | recomputed blocks               | how often each part runs; bytes kept for the backward pass            |            |
"""  # noqa: E501

import math

import torch

from grader.kit import REL, Wrong, check_tensor, expect, hinted, near, scale_of, todo, together

from .common import (
    AVERAGES,
    OF_ONE,
    STRATEGIES,
    bytes_of_a_moment,
    calls,
    check_moment,
    held_by_one,
    serial_step,
    serial_weights,
    shapes_of,
)
from .ranks import DEEP, DROPOUTS, SIZES, deep_on_rank, first_on_rank, grid, recompute_on_rank, shard_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 3: sharding


@todo(3, since=AVERAGES)
def test_todo3_shard(student):
    blocks, rest = shapes_of()
    everything = [shape for block in blocks for shape in block] + rest
    psi = sum(map(math.prod, everything))
    rights = {world: student.reference(serial_step, seeds=[*student.seeds(world)])["grads"] for world in (4, 3)}
    for right in rights.values():
        student.premise(all(grad.norm() > 0 for grad in right.values()), "gradients of zero")
    for world, strategies in student.several(((4, STRATEGIES), (3, ("full",)))):  # of 3, no size is a multiple
        chosen = student.several(strategies, 2)
        run, right = student.call(shard_on_rank, world=world, seed=student.seeds(world), chosen=chosen), rights[world]
        ranks = run.evidence
        expect(
            "twice" not in ranks[0],
            "shard() cuts parameters that are cut already: a call for the whole model takes all that no earlier call"
            " took, so nothing is left for the blocks",
            "each block, then the model",
            "a parameter taken twice",
            0,
            "In which order are the calls made? Each takes all parameters of its module that are not taken yet.",
        )
        # A parameter that is not sharded is reported first.
        for strategy in sorted(chosen, key=("full", "grad", "hybrid", "none").index):
            copies, shards = grid(strategy, world)
            told = f"with --sharding {strategy} on {world} ranks"
            share = held_by_one(everything, shards)
            for rank, seen in enumerate(ranks):
                mine = seen[strategy]
                for what, much in (("weights", mine["held"]), ("gradients", mine["held_gradients"])):
                    more = (
                        f"all {psi:,} {what}: nothing is sharded"
                        if much >= psi
                        else f"{much:,} {what}, more than its share"
                    )
                    expect(
                        much <= share, f"{told}, rank {rank} holds {more}", f"{share:,} of {psi:,}", f"{much:,}", rank
                    )
            for row in range(copies):
                members = range(row * shards, (row + 1) * shards)
                much = sum(ranks[rank][strategy]["held"] for rank in members)
                expect(
                    much >= psi,
                    f"{told}, {'rank' if shards == 1 else 'ranks'} {', '.join(map(str, members))} together hold"
                    f" {much:,} weights, which is not one whole copy of the model: is the mesh used?",
                    f"{psi:,}",
                    f"{much:,}",
                    members[0],
                    "The mesh says which ranks hold a copy together, and which ones hold different copies. Which"
                    " calls get it?",
                )
            check_gradients(told, together([seen[strategy] for seen in ranks], "grads"), right, world)
            for rank, events in enumerate(run.events):
                check_traffic(told, strategy, calls(events, strategy), blocks, rest, copies, shards, rank)
                check_freed(told, strategy, *ranks[rank][strategy]["freed"], rank)
    check_deep(student)


# A moment in a step of DEEP -> what is over then. By then, one block has been used.
MOMENTS = {"forward": "the first block has run", "backward": "the last block's backward pass is over"}


AHEAD = 2  # blocks; FSDP itself gathers the next one while a block computes


@hinted("`options` has two entries, a mesh and a policy. Does each of the calls get both?")
def check_deep(student):
    """The policy reaches each call, and blocks are gathered one after the other."""
    world = 2
    blocks, rest = shapes_of(DEEP)
    run = student.call(deep_on_rank, world=world)
    for rank, events in enumerate(run.events):
        gathered = {
            moment: [event for event in calls(events, moment) if event["op"] == "all_gather"]
            for moment in (*MOMENTS, "later")
        }
        dtypes = sorted({event["dtype"] for made in gathered.values() for event in made})
        expect(
            dtypes == ["bfloat16"],
            f"where precision() asks for parameters in bfloat16, rank {rank} gathers weights in"
            f" {' and '.join(dtypes) or 'no dtype'}: is the mp_policy in options given to every fully_shard?",
            "bfloat16",
            dtypes,
            rank,
        )
        most = 2 * (held_by_one(rest, world) + (1 + AHEAD) * held_by_one(blocks[0], world))  # bfloat16 has 2 bytes
        for moment, told in MOMENTS.items():
            ahead = sum(event["bytes"] for event in gathered[moment])
            expect(
                ahead <= most,
                f"with --sharding full and {len(blocks)} blocks, rank {rank} gives {ahead:,} bytes to gather weights"
                f" before {told}: blocks are gathered long before they are used, so a rank holds many at once",
                f"at most {most:,} bytes: the rest of the model and {1 + AHEAD} blocks",
                f"{ahead:,} bytes",
                rank,
                "How many whole blocks may a rank hold at once? Which call asks for more of them ahead?",
            )


def check_gradients(told, seen, right, world):
    scale = scale_of(right.values())
    for name, grad in right.items():
        hint = "Each shard has its gradient after the backward pass. What keeps it from being added up over the ranks?"
        expect(name in seen, f"{told}, {name} has no gradient", "a gradient", "none", hint=hint)
        hint = "A gradient is a mean over all ranks. Which ranks' gradients are in it, and which are missing?"
        if near(seen[name], grad * world, REL, world * scale):
            hint = "All ranks' gradients are in the sum: by what must it be divided?"
        # float32 sums in a different order: 4e-7 of a gradient's norm measured, 1e-3 and more if wrong.
        check_tensor(f"{told}, the gradient of {name}", seen[name], grad, REL, scale=scale, than=OF_ONE, hint=hint)


def check_traffic(told, strategy, seen, blocks, rest, copies, shards, rank):
    """What one rank contributed to a step, in bytes: to gather weights, to scatter and to add up gradients."""

    def given(*ops):
        return [event["bytes"] for event in seen if event["op"] in ops]

    inside = 4 * sum(held_by_one(block, shards) for block in blocks)
    outside = 4 * held_by_one(rest, shards)
    # Without padding.
    least = (
        4 * sum(math.prod(shape) for block in blocks for shape in block) / shards,
        4 * sum(map(math.prod, rest)) / shards,
    )
    if shards > 1:
        gathered, scattered = given("all_gather"), sum(given("reduce_scatter"))
        times = {"grad": "once: they stay from the forward to the backward pass", "full": "twice, once for each pass"}
        times["hybrid"] = times["full"]
        lower, upper = (
            (sum(least), inside + outside) if strategy == "grad" else (2 * least[0] + least[1], 2 * (inside + outside))
        )
        unit = 4 * max(held_by_one(rest, shards), *(held_by_one(block, shards) for block in blocks))
        expect(
            max(gathered, default=0) <= unit,
            f"{told}, {max(gathered, default=0) * shards:,} bytes of weights are gathered at once: more than the"
            " largest unit, so the blocks are not separate units",
            f"at most {unit * shards:,} bytes",
            f"{max(gathered, default=0) * shards:,} bytes",
            rank,
            "What one call shards is gathered at once. How many calls are there, and what is left for the last one?",
        )
        expect(
            lower <= sum(gathered) <= upper,
            f"{told}, rank {rank} gives {sum(gathered):,} bytes to gather weights in a step; a block's weights must"
            f" be gathered {times[strategy]}",
            f"{lower:,.0f} to {upper:,} bytes",
            f"{sum(gathered):,} bytes",
            rank,
            "Are the weights freed after the forward pass, or kept for the backward pass? Which argument decides it,"
            " and for which strategies?",
        )
        expect(
            sum(least) <= scattered <= inside + outside,
            f"{told}, rank {rank} gets {scattered:,} bytes of gradients by reduce-scatter in a step",
            f"its share, {sum(least):,.0f} bytes",
            f"{scattered:,} bytes",
            rank,
            "A rank needs the sum of the gradients only for what it holds. Which parameters does no call shard?",
        )
    if copies > 1:
        reduced = sum(given("all_reduce"))
        expect(
            sum(least) <= reduced <= 1.05 * (inside + outside),
            f"{told}, rank {rank} gives {reduced:,} bytes of gradients to add up over the {copies} copies in a step",
            f"{sum(least):,.0f} bytes, each gradient that it holds once",
            f"{reduced:,} bytes",
            rank,
            "Copies of a weight need the same gradient. Does each call know both axes of the mesh?",
        )


def check_freed(told, strategy, freed, many, rank):
    """How many of the blocks' weights are freed after the forward pass: where each rank has a copy, no byte tells."""
    frees = strategy in ("full", "hybrid")
    expect(
        freed == (many if frees else 0),
        f"{told}, between the forward and the backward pass {freed} of the blocks' {many} weights are freed on rank"
        f" {rank}, {'instead of all' if frees else 'to be put together again: they must stay'}",
        "all" if frees else "none",
        freed,
        rank,
        "The text says for each strategy whether a block's weights stay until the backward pass. What about none?",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 4: first weights


@todo(4)
def test_todo4_first_weights(student):
    world, seed = 4, 7
    blocks, rest = shapes_of(DEEP)
    share = held_by_one([shape for block in blocks for shape in block] + rest, 2)
    moment = bytes_of_a_moment(student, shards=2)
    ranks = student.call(first_on_rank, world=world, seed=seed).evidence
    asked = DEEP | {"dropout": DROPOUTS[1]}
    for rank, mine in enumerate(ranks):
        for name, wanted in asked.items():
            got = mine["config"].get(name)
            told = f"the model that build_model makes has {name} {got}"
            hint = "All sizes of the model come from the flags, or are given. Which one is left at its default?"
            expect(got == wanted, told, f"{name} {wanted}", got, rank, hint)
    right, seen = student.reference(serial_weights, seed=seed, config=DEEP), together(ranks, "weights")
    for row in range(2):  # the copies
        copy = together(ranks[2 * row : 2 * row + 2], "weights")
        for name, weight in right.items():
            if torch.equal(copy[name], weight):
                continue
            parts = copy[name].chunk(2)
            what, hint = FIRST["the serial run's"]
            if copy[name].isnan().any() or not copy[name].any():
                what, hint = FIRST["empty"]
            elif len(parts) > 1 and torch.equal(*parts):
                what, hint = FIRST["repeated"]
            raise Wrong(
                f"the first {name} {what} (ranks {2 * row} and {2 * row + 1} of {world})",
                "the weights that a single process draws from --seed",
                "others",
                2 * row,
                hint,
            )
    assert set(seen) == set(right)
    owners = [rank for rank, mine in enumerate(ranks) if mine["before"] or mine["built"]]
    expect(
        len(owners) <= 1,
        f"ranks {', '.join(map(str, owners))} have each had the whole model in memory",
        "at most one rank",
        f"ranks {owners}",
        owners[-1] if owners else None,
    )
    for rank, mine in enumerate(ranks):
        expect(
            mine["held"] <= share,
            f"rank {rank} holds {mine['held']:,} weights after first_weights, its shards are {share:,}",
            share,
            mine["held"],
            rank,
        )
        if rank not in owners:
            check_moment("first_weights", rank, mine["most"], *moment)


# What is wrong with the first weights, and the hint.
FIRST = {
    "empty": ("has no content yet", "Newly allocated memory has no content. Which call fills it, and on which ranks?"),
    "repeated": (
        "repeats: the ranks' parts are equal, as if each had drawn its own from the same seed",
        "With one seed, each rank draws the same first numbers. Which rank draws all, and how do the others get"
        " theirs?",
    ),
    "the serial run's": (
        "is not the serial run's",
        "What does a single process do between its seed and its last weight? The same draws must be made here, in the"
        " same order.",
    ),
}


# ---------------------------------------------------------------------------------------------------
# TODO 8: activation checkpointing


@todo(8)
def test_todo8_recompute(student):
    (cases_of_dropout,) = student.call(recompute_on_rank, world=1, group=False).evidence
    ((before, after), dropped) = cases_of_dropout
    layers = SIZES["n_layers"]
    expect(
        after["blocks"] == 2 * layers,
        f"in a step with --recompute the {layers} blocks run {after['blocks']} times in all: each must run in the "
        "forward pass, and again in the backward pass",
        2 * layers,
        after["blocks"],
    )
    expect(
        after["whole"] == 1,
        "the whole model runs again in the backward pass, not each block separately: so all activations are still"
        " kept at once",
        "each block separately",
        "the whole model",
        hint="Which module is wrapped? All that is inside it runs again at once.",
    )
    # The input of each block is kept, and what the head keeps; a fifth was measured.
    expect(
        after["kept"] < before["kept"] / 2,
        "with --recompute the forward pass keeps about as much as without",
        f"less than half of {before['kept']:,} bytes",
        f"{after['kept']:,} bytes",
        hint="What is recomputed need not be kept. Which activations are still kept, and in which modules?",
    )
    expect(
        same_step(before, after),
        "with --recompute the loss or a gradient differs: the second run must repeat the first",
        "equal to the last bit",
        "others",
        hint="A wrapped block computes what the block did. What else was changed, or is it a different block?",
    )
    expect(
        same_step(*dropped),
        f"with --recompute and --dropout {DROPOUTS[1]} the loss or a gradient differs: the second run must draw"
        " the same random numbers, and so start from the same state of the generator",
        "equal to the last bit",
        "others",
        hint="Where is the generator's state kept for the second run? An option of the wrapper can forbid that.",
    )
    expect(
        after["names"],
        "with --recompute the names in the state dict change, so no checkpoint fits",
        "the same names",
        "different names",
        hint="A wrapped module gets a longer name. Which wrapper, imported above, hides that?",
    )


def same_step(before, after):
    return after["loss"] == before["loss"] and all(
        torch.equal(after["grads"].get(name, torch.empty(0)), grad) for name, grad in before["grads"].items()
    )

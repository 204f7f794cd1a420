"""Checks of 02_data_parallel, TODOs 1 to 3: state and gradients.

| TODO | achievement                              | evidence                                                                  | needs |
|------|------------------------------------------|---------------------------------------------------------------------------|-------|
| 1    | the whole batch's gradient, and bytes    | the formulas; shares that are unequal or empty                            |       |
| 2    | equal first state                        | on ranks that begin apart: parameters, buffers of all kinds; bytes received |     |
| 3    | gradients averaged after the pass        | gradients against one process; number and bytes of messages               |       |

The reference is one process that works through the shares of all ranks. No verdict depends on the clock: the order of
events shows that communication overlaps. Collectives have the worst timing that is allowed: a result arrives when it is
waited for, and whatever its tensor held until then is lost. Bytes are those that a ring would send.

The model has the difficult cases: a tied weight, a frozen layer whose weight has a gradient from before, a layer that is used only on demand and lies
deep, a parameter of its own, a batch norm whose buffers have two dtypes, a buffer that no state_dict has; and tensors with equal numbers, which are not tied.
"""  # noqa: E501

import torch

from grader.kit import (
    COPIED,
    check_answers,
    check_shape,
    check_tensor,
    count_of,
    expect,
    hinted,
    moved_by,
    near,
    ones_in_turn,
    operations,
    scale_of,
    todo,
)

from .common import REL, TOO_MANY, check_budget, check_step, check_waited, gradient_bytes, ops, parts, serial
from .ranks import (
    MODELS,
    ONLY_ZEROS,
    WORLD,
    ZEROS,
    broadcast_on_rank,
    made_model,
    naive_on_rank,
    predictions_on_rank,
    state,
)


def own_gradients(asked, seeds):
    """Of each rank alone, for each of several passes."""
    return [
        [serial([[number, [0] if rank in users else []]], [seed]) for rank, seed in enumerate(seeds)]
        for number, users, *_ in asked
    ]


NOTHING_TO_SEND = (
    "All ranks make the same calls. What does a rank contribute whose gradient is missing, and one whose gradient is"
    " zeros?"
)


# ---------------------------------------------------------------------------------------------------
# TODO 1: predictions


DTYPES = ("bfloat16", "float32", "float64")


def drawn_shares(draw):
    """(gradients of the ranks, their samples, dtype). The matrices would lose digits in float32."""
    shares = [
        ([[1.0, 2.0], [3.0, 8.0]], [5, 5], "float64"),
        ([[1.0, 2.0], [3.0, 8.0]], [3, 1], "float64"),
        ([[4.0], [8.0], [0.0]], [2, 2, 0], "float64"),
        ([[1.0, 2.0]], [7], "float64"),
    ]
    samples = [draw.randrange(1, 9) for _ in range(5)]
    shares.append(([[8.0 * draw.randrange(50) for _ in range(3)] for _ in samples], samples, "float64"))
    matrices = [[[draw.uniform(-1, 1) for _ in range(2)] for _ in range(2)] for _ in range(3)]
    shares.append((matrices, [5, 1, 3], "float64"))
    for counts, dtype in zip(ones_in_turn(draw, 3), draw.sample(DTYPES, 3), strict=True):
        shares.append(([[8.0 * draw.randrange(1, 50) for _ in range(2)] for _ in counts], counts, dtype))
    return shares


@todo(1)
def test_todo1_predictions(student):
    shares = drawn_shares(student.draw("shares"))
    steps = ((1000, 1), (1000, 2), (1000, 3), (1000, 4), (124_000_000, 1024))
    (seen,) = student.call(predictions_on_rank, world=1, group=False, shares=shares).evidence
    for (gradients_of_ranks, samples, dtype), guess in zip(shares, seen, strict=True):
        call = f"whole_gradient({gradients_of_ranks}, {samples})" + (f", in {dtype}," if dtype != "float64" else "")
        sums = (n * torch.tensor(g, dtype=torch.float64) for g, n in zip(gradients_of_ranks, samples, strict=True))
        dtype = getattr(torch, dtype)
        rel = max(1e-12, 4 * torch.finfo(dtype).eps)  # a product, two sums and a quotient are rounded
        right, than = sum(sums) / sum(samples), "the gradient of the mean over all samples"
        check_shape(call, guess, right.shape, dtype, hint="Which line makes a tensor of a shape or dtype of its own?")
        check_tensor(call, guess, right, rel, dtype=dtype, than=than)
    check_answers(
        student,
        {("step_bytes", step): 8 * (step[1] - 1) / step[1] * step[0] for step in steps},
        wrong="is not what a ring sends",
        hints={
            "step_bytes": (
                "Look up lesson 01: which two steps make a ring all-reduce, and how much does a rank send in each?"
            )
        },
    )


# ---------------------------------------------------------------------------------------------------
# TODO 2: first state


def first_states(seeds):
    return [state(made_model(seed)) for seed in seeds]


ALIKE = (
    "Do all ranks make the same calls, with the same root, whatever numbers their tensors hold? A tied parameter is one"
    " object with two names; two objects with equal numbers are not tied."
)


@todo(2)
def test_todo2_broadcast_state(student):
    seeds = student.seeds(WORLD)
    first, *others = student.reference(first_states, seeds=[*seeds])
    alike = [name for name in first for other in others if torch.equal(other[name], first[name])]
    student.premise({*alike} <= {"norm.weight"}, f"a rank that keeps its own {alike}")
    with hinted(ALIKE, "mismatch"):
        run = student.call(broadcast_on_rank, world=WORLD, seed=seeds)
    for case, told in enumerate(MODELS):
        with hinted(COPIED if told else ""):
            check_broadcast(f"broadcast_state{told}", first, case, run)


def check_broadcast(what, right, case, run):
    """`right` is the state of rank 0, drawn here: not what rank 0 says that it had."""
    ranks = [seen[case] for seen in run.evidence]
    check_waited(what, [parts(mine)[case] for mine in run.events])
    for rank, seen in enumerate(ranks):
        for name, wanted in right.items():
            kind = (
                "buffer"
                if name in ("scale",) or name.startswith("norm.running") or name.endswith("tracked")
                else "parameter"
            )
            held = seen["after"].get(name)
            kind += ", which is not in the state_dict" if name == "scale" else ""
            kind += ", which is frozen" if name.startswith("frozen") else ""
            check_tensor(f"after {what}, {name} on rank {rank}, a {kind},", held, wanted, rank=rank, than="rank 0's")
        expect(
            not seen["replaced"] and seen["tied"],
            f"{what} replaces tensors of rank {rank}'s model: an optimizer "
            "that refers to the old ones would keep training those",
            "the same tensors with new numbers",
            ", ".join(seen["replaced"]) or "different tensors",
            rank,
            "A broadcast can write into a tensor that is there already. Which line makes a new one?",
        )
        for name in {*seen["trained"]} ^ {*seen["trained_before"]}:
            after = "trainable" if name in seen["trained"] else "frozen"
            hint = "Only numbers are to be sent. Which line changes what autograd does with a parameter?"
            expect(False, f"{what} leaves {name} {after} on rank {rank}", "as it was", after, rank, hint)
    most = sum(tensor.numel() * tensor.element_size() for tensor in right.values())
    for rank, events in enumerate(run.events):
        calls = ops(parts(events)[case])
        seen, by = moved_by(calls, rank), operations(calls)
        expect(
            seen <= most,
            f"in {what} {seen:,.0f} bytes reach rank {rank} by {by}, and the state has {most:,}: is each"
            " tensor broadcast once, even a tied one, and unchanged? An all-reduce moves more than a broadcast, and a"
            " pickled object is longer than its tensors",
            f"at most {most:,} bytes",
            f"{seen:,.0f} bytes",
            rank,
            TOO_MANY,
        )
        expect(
            rank == 0 or seen >= most / 2,
            f"in {what} only {seen:,.0f} bytes reach rank {rank} by {by}, and the state has {most:,}",
            f"{most:,} bytes",
            f"{seen:,.0f} bytes",
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 3: after the backward pass


# For each number of ranks the dtype and, as `loss_of` has them, who uses the extra layer in the pass of each case: all,
# all but rank 1, none; and all, but the gradients of rank 1, or of all ranks, are zeros. On two ranks the model is in
# channels_last.
NAIVE = {
    3: ("float32", ([0, [0, 1, 2]], [1, [0, 2]], [2, []], [3, [0, 1, 2], [], [1]], [4, [0, 1, 2], [], [0, 1, 2]])),
    2: ("float64", ([0, [0, 1]], [1, [0]])),
}


@todo(3)
def test_todo3_naive(student):
    rights = {world: naive_gradients(student, world) for world in NAIVE}
    for world, (dtype, passes) in NAIVE.items():
        seeds = student.seeds(world)
        with hinted(NOTHING_TO_SEND, "hang", "mismatch"):
            run = student.call(naive_on_rank, world=world, seed=seeds, dtype=dtype, passes=passes)
        sizes = gradient_bytes(getattr(torch, dtype).itemsize)
        for case in range(len(passes)):
            what = f"average_gradients on {count_of(world, 'rank')}"
            what += f", in {dtype}, of a model in channels_last" if world == 2 else ""
            what += ("", ", where rank 1 does not use a layer", ", where no rank uses a layer", ZEROS, ONLY_ZEROS)[case]
            check_naive(what, rights[world][case], case, run, sizes, world)


def naive_gradients(student, world):
    """The mean gradients of each case, which no rank has alone."""
    (dtype, passes), seeds = NAIVE[world], student.seeds(world)
    rights = [student.reference(serial, passes=[one], seeds=[*seeds], dtype=dtype) for one in passes]
    owns = student.reference(own_gradients, asked=passes, seeds=[*seeds])
    for right, own in zip(rights, owns, strict=True):
        if not any(grad.any() for grad in right.values()):
            continue
        alike = [
            name
            for name in right
            if all(name in mine and near(mine[name], right[name], REL, scale_of(right.values())) for mine in own)
        ]
        student.premise(not alike, f"a rank that keeps its own gradient of {alike[:1]}")
    return rights


def check_naive(what, right, case, run, sizes, world):
    ranks = [seen[case] for seen in run.evidence]
    check_waited(what, [parts(mine)[case] for mine in run.events])
    for rank, seen in enumerate(ranks):
        events = parts(run.events[rank])[case]
        check_step(what, seen, right, rank, world)
        check_budget(
            what,
            events,
            rank,
            len(sizes),
            sum(sizes),
            "trainable parameter, a tied one once and a frozen one never",
            world,
        )

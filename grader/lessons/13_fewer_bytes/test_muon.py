"""Checks of 13_fewer_bytes, TODOs 8 and 9: Muon, with an owner for each matrix.

| TODO | achievement                | evidence                                                                               | needs |
|------|----------------------------|----------------------------------------------------------------------------------------|-------|
| 8    | Newton–Schulz, and owners  | float64; wide, tall, zeros; the largest load of drawn models                           |       |
| 9    | sharded Muon               | which rank gets which mean; weights of three steps against one process; bytes          | 8     |
"""  # noqa: E501

import math

import torch

from grader.kit import (
    cases,
    check_answers,
    check_sent,
    check_shape,
    check_tensor,
    expect,
    hinted,
    moved_by,
    sent_by,
    todo,
)

from .ranks import exchanged_on_rank, muon_on_rank, orthogonalized_on_rank, owners_on_rank, whole_numbers

HINTS = {
    "iteration": "On paper, one iteration is: A, then A², then the sum that is multiplied by X. What does X start as?",
    "tall": "Of a matrix with more rows than columns, the transposed one is iterated. What must be undone at the end?",
    "dtype": "The result has the dtype of what was given.",
    "steps": "With five steps it is right. How many are asked for?",
    "smaller": "Of X Xᵀ and XᵀX, one has the long side and one the short. Which one is it for each shape?",
    "valid": "Each matrix needs one rank, from 0 to world - 1.",
    "same": "Only the shapes and the number of ranks may decide: not the rank that calls, and no random number.",
    "balance": "Which matrix is placed first, and where does the next one do least harm? Compare costs, not sizes.",
    "owned": "Only the owner needs a gradient: the mean over all ranks, of its own matrices.",
    "sent": "Which pieces does a rank have to send to rank 2? Those that rank 2 owns, and no others.",
    "weights": "After this call, each rank has every matrix as its owner has it.",
    "step": "In order: the average, the mixture, Newton–Schulz, the decay, the step. What is multiplied by what?",
    "bytes": "What does a rank send of what it does not own, and how often what it owns?",
}


# ---------------------------------------------------------------------------------------------------
# TODO 8: the iteration, and the owners


LONG = 300  # the other side is 2: a square of the long side is 150 times the matrix


def iterated(g, steps=5):
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / max(x.norm().item(), 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def cost(shape):
    short, long = sorted(shape)
    return 5 * (4 * short**2 * long + 2 * short**3)


def loads_of(shapes, owner, world):
    return [sum(cost(shape) for shape, its in zip(shapes, owner) if its == rank) for rank in range(world)]


def dealt(shapes, world, key=cost):
    """The most expensive first, each to the rank that has the least."""
    loads, owner = [0.0] * world, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda n: -key(shapes[n])):
        owner[number] = loads.index(min(loads))
        loads[owner[number]] += key(shapes[number])
    return owner


def balanced(shapes, owner, world):
    loads = loads_of(shapes, owner, world)
    return max(loads) <= 1.2 * sum(loads) / world


def drawn_models(draw):
    """Shapes of the matrices of models, drawn so that dealing by number or by size is not enough."""
    found = []
    for world in (2, 3, 4, 8):
        while True:
            d, layers = draw.choice((64, 96, 128)), draw.randrange(2, 5)
            block = [(d, d), (d, d // 4), (d, d // 4), (d, d), (4 * d, d), (d, 4 * d)]
            extra = [(d, draw.randrange(8, d)) for _ in range(world)] + [(16 * d, draw.choice((16, 32)))] * 2
            shapes = draw.sample(block * layers + extra, len(block) * layers + len(extra))
            naive = {
                "in turn": [n % world for n in range(len(shapes))],
                "in pieces": [n * world // len(shapes) for n in range(len(shapes))],
                "by size": dealt(shapes, world, math.prod),
            }
            if balanced(shapes, dealt(shapes, world), world) and not any(
                balanced(shapes, owner, world) for name, owner in naive.items() if name != "by size" or world > 4
            ):
                break
        found.append((shapes, world))
    return [*found, ([(8, 8), (4, 4)], 4), ([(32, 32), (2, 2), (2, 2)], 2), ([(5, 7)], 1)]


@todo(8)
def test_todo8_owners(student):
    draw = student.draw("matrices")
    torch.manual_seed(draw.randrange(1 << 30))
    shapes = [(5, 9), (11, 4), (6, 6), (3, 8), (1, 7), (LONG, 2), (2, LONG)]
    matrices = [torch.randn(shape, dtype=torch.float64) * 10.0 ** draw.randrange(-3, 3) for shape in shapes]
    matrices += [torch.zeros(4, 3, dtype=torch.float64), 1e-9 * torch.randn(3, 4, dtype=torch.float64)]
    dtypes = ["float64", "float32", "float32", "float64", "float64", "float64", "float64", "float32", "float64"]
    steps = [5, 5, 5, draw.randrange(1, 4), 5, 5, 5, 5, 5]
    given = [m.tolist() for m in matrices]
    (seen,) = student.call(
        orthogonalized_on_rank, world=1, group=False, matrices=given, dtypes=dtypes, steps=steps
    ).evidence
    for matrix, dtype, count, (mine, held) in zip(matrices, dtypes, steps, seen, strict=True):
        rows, columns = matrix.shape
        size = matrix.norm().item()
        told = f"newton_schulz of {rows} × {columns} in {dtype}, of norm {size:.2g}, {count} steps"
        hint = HINTS["tall" if rows > columns else "iteration" if count == 5 else "steps"]
        check_shape(
            told, mine, matrix.shape, getattr(torch, dtype), hint=hint if "float32" in dtype else HINTS["dtype"]
        )
        # Five steps multiply a rounding error by 3.4445 ** 5 = 485 at most; over 300 draws it was 1.9e-6 in float32.
        rel = 1e-10 if dtype == "float64" else 1e-4
        check_tensor(told, mine.double(), iterated(matrix, count), rel, hint=hint)
        if LONG in matrix.shape:
            square = 8 * LONG**2  # bytes of the larger A; the smaller one has 4 numbers
            needs = f"{told} holds {held:,} bytes at a time: A is the larger square"
            expect(held < square / 2, needs, f"less than {square // 2:,}", f"{held:,}", hint=HINTS["smaller"])
    models = drawn_models(draw)
    seen, other = student.call(owners_on_rank, world=2, cases=[[s, w] for s, w in models]).evidence
    for (shapes, world), owner in zip(models, seen, strict=True):
        told = f"owners of {len(shapes)} matrices on {world} ranks"
        whole = isinstance(owner, list) and len(owner) == len(shapes)
        whole = whole and all(isinstance(rank, int) and 0 <= rank < world for rank in owner)
        expect(whole, f"{told}: not a rank for each matrix", f"{len(shapes)} ranks", owner, hint=HINTS["valid"])
        loads, best = loads_of(shapes, owner, world), max(loads_of(shapes, dealt(shapes, world), world))
        mean = sum(loads) / world
        expect(
            max(loads) <= max(1.2 * mean, best),
            f"{told}: the largest load is {max(loads) / mean:.2f} times the mean",
            f"at most {max(1.2, best / mean):.2f}",
            f"{max(loads) / mean:.2f}",
            hint=HINTS["balance"],
        )
    expect(
        seen == other,
        "ranks 0 and 1 call owners with the same shapes and get different answers",
        seen,
        other,
        1,
        HINTS["same"],
    )


# ---------------------------------------------------------------------------------------------------
# TODO 9: sharded Muon


SHAPES = ((6, 4), (3, 5), (4, 4), (8, 3), (2, 7))


def sent_bytes(shapes, owner, rank, world):
    total = sum(math.prod(shape) for shape in shapes)
    own = sum(math.prod(shape) for shape, its in zip(shapes, owner, strict=True) if its == rank)
    return 4 * (total - own + (world - 1) * own)


def stepped(seeds, steps, momentum=0.8, decay=0.05, lr=0.1):
    """One process, with the mean gradients."""
    torch.manual_seed(2)
    weights = [torch.randn(*shape) for shape in SHAPES]
    averages = [torch.zeros(shape) for shape in SHAPES]
    for step in range(steps):
        for number, (w, average) in enumerate(zip(weights, averages, strict=True)):
            g = torch.stack([whole_numbers(seed, number + 50 * step, w.shape) for seed in seeds]).mean(dim=0)
            average.lerp_(g, 1 - momentum)
            w *= 1 - lr * decay
            w -= lr * math.sqrt(max(1, w.shape[0] / w.shape[1])) * iterated(g.lerp(average, momentum))
    return weights


@todo(9, needs=(8,), in_place=("matrices",))
def test_todo9_sharded(student):
    draw = student.draw("owner")
    owner = [*draw.sample((0, 2, 0, 2, 2), 5)]  # rank 1 owns nothing
    draw.shuffle(owner)
    worlds = student.several((3, 2))
    trials = [(world, student.seeds(world)) for world in worlds]
    rights = [stepped(seeds, 3) for _, seeds in trials]
    sizes = [[SHAPES, owner, rank, 3] for rank in range(3)] + [[[(64, 32), (8, 8)], [1, 0], 0, 8]]
    right = {("bytes_of_muon", (tuple(s), tuple(o), r, w)): sent_bytes(s, o, r, w) for s, o, r, w in sizes}
    check_answers(student, right, hints={"bytes_of_muon": HINTS["bytes"]})
    seeds = student.seeds(3)
    with hinted(HINTS["sent"], "mismatch", "hang"):
        run = student.call(exchanged_on_rank, world=3, mine=seeds, shapes=SHAPES, owner=owner)
    tensors = [[whole_numbers(seed, n, shape) for n, shape in enumerate(SHAPES)] for seed in seeds]
    for rank, seen in enumerate(run.evidence):
        own = [str(n) for n, its in enumerate(owner) if its == rank]
        is_dict = isinstance(seen["gradients"], dict) and sorted(seen["gradients"]) == own
        found = sorted(seen["gradients"]) if isinstance(seen["gradients"], dict) else seen["gradients"]
        expect(
            is_dict,
            f"reduce_to_owners on rank {rank} returns other gradients than it owns",
            own,
            found,
            rank,
            HINTS["owned"],
        )
        for number in own:
            mean = torch.stack([mine[int(number)] for mine in tensors]).mean(dim=0)
            what = f"reduce_to_owners: the gradient of matrix {number} on rank {rank}"
            check_tensor(what, seen["gradients"][number], mean, 1e-6, rank, hint=HINTS["owned"])
        for number, matrix in enumerate(seen["matrices"]):
            what = f"send_from_owners: matrix {number} of rank {owner[number]} on rank {rank}"
            check_tensor(what, matrix, tensors[owner[number]][number], 0, rank, hint=HINTS["weights"])
    reduced, spread = cases(run.events)
    total = 4 * sum(math.prod(shape) for shape in SHAPES)
    for rank in range(3):
        own = 4 * sum(math.prod(s) for s, its in zip(SHAPES, owner) if its == rank)
        for told, events, most in (
            ("reduce_to_owners", reduced, total - own),
            ("send_from_owners", spread, max(2 * own, total - own)),  # a broadcast counts where it arrives
        ):
            moved = min(moved_by(events[rank], rank), sent_by(events[rank], rank))  # messages count where they leave
            expect(
                moved <= most + 0.5,
                f"{told}: rank {rank} sends {moved:,.0f} bytes; each gradient or matrix to where it must go is enough",
                f"at most {most:,}",
                f"{moved:,.0f}",
                rank,
                HINTS["sent"],
            )
        check_sent("reduce_to_owners", reduced, math.inf, 0.99 * (total - own), ranks=[rank])
    for (world, seeds), right in zip(trials, rights, strict=True):
        check_steps(student, world, seeds, right)


def check_steps(student, world, seeds, right):
    """Three steps of ShardedMuon: each matrix has one owner, and the weights are one process's."""
    run = student.call(muon_on_rank, world=world, mine=seeds, shapes=SHAPES, steps=3)
    held = sorted(number for seen in run.evidence for number in seen["averages"])
    told = f"on {world} ranks, a matrix has two owners, or none"
    expect(held == list(range(len(SHAPES))), told, list(range(len(SHAPES))), held)
    for rank, seen in enumerate(run.evidence):
        for number, (mine, due) in enumerate(zip(seen["weights"], right, strict=True)):
            what = f"after three steps on {world} ranks, matrix {number} of rank {rank}"
            # The gradients' sums are exact, so ranks round where one process does, but for the products.
            check_tensor(what, mine, due, 1e-6, rank, than="what one process has", hint=HINTS["step"])

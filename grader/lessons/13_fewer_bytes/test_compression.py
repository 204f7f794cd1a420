"""Checks of 13_fewer_bytes, TODOs 4 to 6: compressors with a memory.

| TODO | achievement               | evidence                                                                                  | needs |
|------|---------------------------|-------------------------------------------------------------------------------------------|-------|
| 4    | top-k with error feedback | the ranks played through in one process; bytes; all numbers: the plain mean; resumed      |       |
| 5    | a low-rank mean           | one process with the mean matrix; at full rank the mean itself; after a matrix of zeros   |       |
| 6    | a hook for DDP            | weights of 4 steps with several buckets, against one process; bytes and calls             | 5     |
"""  # noqa: E501

import torch

from grader.kit import (
    PARTED,
    cases,
    check_answers,
    check_calls,
    check_sent,
    check_shape,
    check_tensor,
    collectives,
    expect,
    hinted,
    todo,
)

from .common import short_ring
from .ranks import (
    columns_on_rank,
    drawn_matrix,
    feedback_on_rank,
    first_q,
    gradient,
    hook_batch,
    hook_model,
    hook_on_rank,
    largest_on_rank,
    low_rank_on_rank,
    other_world_on_rank,
)

HINTS = {
    "message": "What does a rank know of the others' places? Gather places and numbers; each rank puts them together.",
    "sent": "The second result is about this rank alone: its own numbers at its own places, not divided.",
    "ties": "k numbers are sent, whatever they are. How many are at least as large as the k-th?",
    "budget": "A place needs 4 bytes, a number needs 4. Both can be in one tensor: `view` shows float32 as int32.",
    "memory": "What is in the memory after a step is what was wanted and has not been sent by this rank.",
    "saved": "The memories differ from rank to rank, and every rank needs all of them: in which order?",
    "resumed": "Before the stop it is right. Which of the saved rows is this rank's own?",
    "other": "The next means are means of gradients and memories. Which memory, equal on all ranks, keeps that?",
    "orthonormal": "Columns of length 1, at right angles to each other. What becomes of zeros, or of two equal ones?",
    "full": "With as many columns as the matrix has rows, P Pᵀ is the identity. Is Q made from the orthonormal P?",
    "low": "Follow the four steps: what is averaged, when it is orthonormalized, and what the next step starts from.",
    "thin": "P is averaged as a whole, and so is Q: two messages, each of a thin matrix.",
    "zeros": "After a matrix of zeros, Q is zero, and so is P. Which orthonormal columns do zeros get?",
    "vectors": "What is not compressed is averaged, too, and written back into the bucket.",
    "bucket": "A bucket may have matrices to compress, other parameters, or both. What does each line make of none?",
    "formula": "P and Q are averaged, each by a ring. How many numbers have they, and how often is each sent?",
    "bytes": "Of a compressed matrix, P and Q are sent, and nothing else; of the others, each number once.",
    "calls": "The P of all matrices of a bucket fit into one message, with everything that is not compressed.",
    "first": "The memory is still zero. Has each matrix its own Q and P, and the vector the order of the bucket?",
    "state": "A checkpoint has `state.memory` and `state.q`. What else does the hook remember, and where?",
    "hook": "In one step, what goes into the state? In the next one, which Q and which memory does the hook use?",
}


# ---------------------------------------------------------------------------------------------------
# TODO 4: the largest numbers, with a memory


def largest(vector, k):
    kept = torch.zeros_like(vector)
    places = vector.abs().topk(k).indices
    kept[places] = vector[places]
    return kept


def fed_back(seeds, length, k, steps):
    """The means of all steps, and the memories before each."""
    memories, means, before = [torch.zeros(length) for _ in seeds], [], []
    for step in range(steps):
        before.append(torch.stack(memories))
        wanted = [gradient(seed, step, length) + memory for seed, memory in zip(seeds, memories, strict=True)]
        sent = [largest(vector, k) for vector in wanted]
        memories = [vector - its for vector, its in zip(wanted, sent, strict=True)]
        means.append(torch.stack(sent).mean(dim=0))
    return means, before


@todo(4)
def test_todo4_feedback(student):
    draw = student.draw("top-k")
    world, length, steps, stop = draw.choice((2, 3)), draw.randrange(40, 60), 6, 3
    k = draw.randrange(5, 9)
    seeds = student.seeds(world)
    means, before = fed_back(seeds, length, k, steps)
    forgetful = [torch.stack([largest(gradient(s, 1, length), k) for s in seeds]).mean(dim=0)]
    student.premise((means[1] - forgetful[0]).norm() > 0.1 * means[1].norm(), "a compressor without a memory")
    ks = [k, 1, length]
    with hinted(PARTED, "mismatch"):
        run = student.call(largest_on_rank, world=world, mine=seeds, length=length, ks=ks)
    *plain, _ = cases(run.events)
    for number, (count, events) in enumerate(zip(ks, plain, strict=True)):
        told = f"mean_of_largest with k = {count} of {length} on {world} ranks"
        sent = [largest(gradient(seed, 0, length), count) for seed in seeds]
        for rank, seen in enumerate(run.evidence):
            pair = isinstance(seen[number], list) and len(seen[number]) == 2
            expect(pair, f"{told} does not return two tensors", "two tensors", None, rank)
            mean = torch.stack(sent).mean(dim=0)
            check_tensor(f"{told}: the mean on rank {rank}", seen[number][0], mean, 1e-6, rank, hint=HINTS["message"])
            check_tensor(f"{told}: what rank {rank} sent", seen[number][1], sent[rank], 0, rank, hint=HINTS["sent"])
        budget = 8 * count * (world - 1)
        check_sent(told, events, budget, budget / 2, "8 bytes for each number are enough", hint=HINTS["budget"])
        check_calls(f"{told}:", collectives(events), 2, "for one message")
    told = f"mean_of_largest with k = {k} of {length} numbers that are as large"
    ours = [seen[-1][1] for seen in run.evidence]
    for rank, (seen, mine) in enumerate(zip(run.evidence, ours, strict=True)):
        check_shape(f"{told}: what rank {rank} sent", mine, (length,), torch.float32, rank, HINTS["sent"])
        count = int(mine.count_nonzero())
        expect(count == k, f"{told}: rank {rank} sends {count}", k, count, rank, HINTS["ties"])
        right = torch.stack(ours).mean(dim=0)
        check_tensor(f"{told}: the mean on rank {rank}", seen[-1][0], right, 1e-6, rank, hint=HINTS["message"])
    told = f"k = {k} of {length} on {world} ranks"
    run = student.call(feedback_on_rank, world=world, mine=seeds, length=length, k=k, steps=steps, stop=stop)
    for rank, seen in enumerate(run.evidence):
        for step, right in enumerate(means):
            # The memory is a difference of sums: rounding adds up to some 1e-7 of the largest number a step.
            what = f"{told}: the mean of step {step + 1} on rank {rank}"
            check_tensor(what, seen["means"][step], right, 1e-5, rank, hint=HINTS["memory"])
        for step, mean in enumerate(seen["all"]):
            right = torch.stack([gradient(seed, step, length) for seed in seeds]).mean(dim=0)
            what = f"k = {length} of {length}: the mean of step {step + 1} on rank {rank}, which is the plain mean,"
            check_tensor(what, mean, right, 1e-6, rank, hint=HINTS["memory"])
        what = f"{told}: what is saved on rank {rank}"
        check_tensor(what, seen["saved"], before[stop], 1e-5, rank, hint=HINTS["saved"])
    for rank, seen in enumerate(run.evidence):
        for step, mean in enumerate(seen["later"], start=stop):
            what = f"{told}, resumed after step {stop}: the mean of step {step + 1} on rank {rank}"
            check_tensor(what, mean, means[step], 1e-5, rank, hint=HINTS["resumed"])
    for saved in (world + 1, 1):
        rows = [[draw.randrange(-90, 90) / 4 for _ in range(5)] for _ in range(saved)]
        ranks = student.call(other_world_on_rank, world=world, rows=rows).evidence
        told = f"saved by {saved} and loaded by {world} ranks, the mean of all memories"
        for rank, seen in enumerate(ranks):
            check_shape(f"{told[:-15]}: the memory of rank {rank}", seen, (5,), torch.float32, rank)
        mean = torch.stack(list(ranks)).mean(dim=0)
        check_tensor(told, mean, torch.tensor(rows).mean(dim=0), 1e-6, hint=HINTS["other"])


# ---------------------------------------------------------------------------------------------------
# TODO 5: two thin matrices


def low_rank(mean, q):
    p = torch.linalg.qr(mean @ q).Q
    q = mean.T @ p
    return p @ q.T, q


def low_rank_means(seeds, common, shape, r, dtype):
    q, found = first_q(common, shape, r, dtype), []
    for step in range(2):
        mean = torch.stack([drawn_matrix(seed, step, shape, dtype) for seed in seeds]).mean(dim=0)
        approximate, q = low_rank(mean, q)
        found.append((mean, approximate))
    return found


def dependent_columns(draw):
    column = [draw.gauss(0, 1) for _ in range(7)]
    other = [draw.gauss(0, 1) for _ in range(7)]
    return {
        "independent columns": [list(row) for row in zip(column, other, strict=True)],
        "twice the same column": [[a, b, a] for a, b in zip(column, other, strict=True)],
        "a column of zeros": [[0.0, a] for a in column],
        "zeros": [[0.0, 0.0] for _ in column],
        "as many columns as rows": [[draw.gauss(0, 1) for _ in range(4)] for _ in range(4)],
    }


@todo(5)
def test_todo5_low_rank(student):
    draw = student.draw("shapes")
    m, n = draw.randrange(9, 14), draw.randrange(6, 9)
    shapes = [(m, n), (n, m)]
    draw.shuffle(shapes)
    todo_cases = [[shapes[0], 2, "float32"], [shapes[1], 3, "float64"], [(m, n), n, "float64"], [(5, 5), 1, "float32"]]
    common, trials = draw.randrange(1 << 30), []
    for world in student.several((3, 2)):
        seeds = student.seeds(world)
        rights = [low_rank_means(seeds, common, shape, r, getattr(torch, dtype)) for shape, r, dtype in todo_cases]
        mean, approximate = rights[0][0]
        student.premise((mean - approximate).norm() > 1e-3 * mean.norm(), "the mean itself at a low rank")
        fresh = low_rank(rights[0][1][0], first_q(common, shapes[0], 2))[0]
        student.premise((fresh - rights[0][1][1]).norm() > 1e-3 * fresh.norm(), "the first Q in each step")
        trials.append((world, seeds, rights))
    sizes = [(m, n, 2, 3), (4096, 1024, 4, 8), (n, m, 1, 2), (7, 7, 3, 1)]
    right = {("bytes_of_low_rank", s): short_ring(4 * s[2] * (s[0] + s[1]), s[3]) for s in sizes}
    check_answers(student, right, hints={"bytes_of_low_rank": HINTS["formula"]})
    matrices = dependent_columns(draw)
    (seen,) = student.call(columns_on_rank, world=1, group=False, matrices=list(matrices.values())).evidence
    for (name, given), columns in zip(matrices.items(), seen, strict=True):
        given, told = torch.tensor(given), f"orthonormal of {name}"
        check_shape(told, columns, given.shape, torch.float32, hint=HINTS["orthonormal"])
        identity = torch.eye(given.shape[1])
        check_tensor(f"{told}: QᵀQ", columns.T @ columns, identity, 1e-4, hint=HINTS["orthonormal"])
        what = f"{told}: the given matrix, projected on what your columns span,"
        check_tensor(what, columns @ (columns.T @ given), given, 1e-4, scale=1.0, hint=HINTS["orthonormal"])
    for world, seeds, rights in trials:
        run = student.call(low_rank_on_rank, world=world, mine=seeds, start=common, cases=todo_cases)
        events = cases(run.events)
        for number, (shape, r, dtype) in enumerate(todo_cases):
            told = f"a {dtype} matrix of {shape[0]} × {shape[1]}, r = {r}, on {world} ranks"
            for rank, each in enumerate(run.evidence):
                check_low_rank(told, each[number], rights[number], r == min(shape), rank)
            size = getattr(torch, dtype).itemsize
            budget = short_ring(size * r * sum(shape), world)
            for step in range(4):
                why = "P and Q are enough"
                check_sent(told, events[4 * number + step], budget, 0.9 * budget, why, hint=HINTS["thin"])
                with hinted(HINTS["thin"]):
                    check_calls(f"{told}:", collectives(events[4 * number + step]), 2, "in a step")


def check_low_rank(told, seen, rights, full, rank):
    # Ranks add up in a different order from one process: over 200 draws that made 2.8e-6 at most in float32, 4e-15 in
    # float64.
    rel = 1e-8 if rights[0][0].dtype == torch.float64 else 1e-4
    for step, (mean, right) in enumerate(rights):
        what = f"{told}: the result of step {step + 1} on rank {rank}"
        if full:
            check_tensor(f"{what}, of full rank,", seen[step], mean, rel, rank, than="the mean", hint=HINTS["full"])
        check_tensor(what, seen[step], right, rel, rank, hint=HINTS["low"])
    check_tensor(f"{told}: the result for zeros on rank {rank}", seen[2], torch.zeros_like(rights[0][0]), rank=rank)
    alive = seen[3].isfinite().all() and seen[3].norm() > 0
    expect(
        bool(alive),
        f"{told}: after a step in which the matrix was zero, the result on rank {rank} is zero or not finite",
        "an approximation of the matrix",
        "zeros" if not seen[3].any() else "nan or inf",
        rank,
        HINTS["zeros"],
    )


# ---------------------------------------------------------------------------------------------------
# TODO 6: DDP's hook


STOP = 2  # steps before the run is stopped
CAPS = 1400, 150  # bytes of a bucket: one has two matrices to compress; and one has none


def hooked(seeds, r, steps):
    """Weights of one process after each step: with a memory and a warm start, without either, uncompressed, and with a
    state that is new after STOP steps.
    """
    found = {}
    for how in ("right", "no memory", "cold", "plain", "new state"):
        model, draw = hook_model(), torch.Generator().manual_seed(0)
        parameters, memory, q, found[how] = list(model.parameters()), {}, {}, []
        for number, p in enumerate(parameters):
            if p.dim() == 2 and r * sum(p.shape) < p.numel():
                memory[number], q[number] = torch.zeros_like(p), torch.randn(p.shape[1], r, generator=draw)
        at_first = dict(memory), dict(q)
        for step in range(steps):
            if how == "new state" and step == STOP:
                memory, q = at_first
            x, y = (torch.cat(parts) for parts in zip(*(hook_batch(seed, step) for seed in seeds)))
            model.zero_grad()
            (model(x) - y).square().mean().backward()
            with torch.no_grad():
                for number, p in enumerate(parameters):
                    g = p.grad
                    if number in q and how != "plain":
                        wanted = g + memory[number] * (how != "no memory")
                        g, next_q = low_rank(wanted, q[number])
                        memory[number] = wanted - g
                        q[number] = q[number] if how == "cold" else next_q
                    p -= 0.2 * g
            found[how].append([p.detach().clone() for p in parameters])
    return found


@todo(6, needs=(5,))
def test_todo6_hook(student):
    world, r, steps = student.draw("hook").choice((2, 3)), 2, 4
    seeds = student.seeds(world)
    rights = hooked(seeds, r, steps)
    first = list(hook_model().parameters())
    for how, wrong in (
        ("no memory", "no memory"),
        ("cold", "the first Q in each step"),
        ("plain", "no compression"),
        ("new state", "a run that is resumed with a new state"),
    ):
        apart = (rights["right"][-1][0] - rights[how][-1][0]).norm()
        student.premise(apart > 1e-2 * (rights["right"][-1][0] - first[0]).norm(), wrong)
    with hinted(HINTS["bucket"], "crash"):
        run = student.call(hook_on_rank, world=world, mine=seeds, r=r, steps=steps, caps=CAPS, stop=STOP)
    names = [name for name, _ in hook_model().named_parameters()]
    for rank, cap, number in ((rank, cap, n) for n, cap in enumerate(CAPS) for rank in range(world)):
        seen = run.evidence[rank][number]
        for step, weights in enumerate(rights["right"]):
            for name, start, mine, right in zip(names, first, seen["weights"][step], weights, strict=True):
                told = f"on {world} ranks, how far {name} has moved after step {step + 1} on rank {rank}"
                hint = HINTS["vectors" if right.dim() == 1 else "hook" if step else "first"]
                # One process adds up in a different order: over 150 draws, that made 4.6e-5 at most.
                what = f"{told}, in buckets of {cap} bytes," if number else told
                check_tensor(what, mine - start.detach(), right - start.detach(), 1e-3, rank, hint=hint)
    for rank, mine in enumerate(seen[-1]["weights"][-1] for seen in run.evidence):
        for name, start, weight, right in zip(names, first, mine, rights["right"][-1], strict=True):
            told = f"on {world} ranks, resumed after step {STOP} with the state's memory and Q:"
            what = f"{told} how far {name} has moved after step {steps} on rank {rank}"
            check_tensor(what, weight - start.detach(), right - start.detach(), 1e-3, rank, hint=HINTS["state"])
    shapes = [p.shape for p in first]
    thin = [shape for shape in shapes if len(shape) == 2 and r * sum(shape) < shape.numel()]
    numbers = sum(r * sum(shape) for shape in thin) + sum(s.numel() for s in shapes if s not in thin)
    budget = short_ring(4 * numbers, world)
    for number in range(len(CAPS)):
        events = cases(run.events)[(steps + 1) * number + steps]
        told, why = f"in a step on {world} ranks", "two thin matrices for each compressed one are enough"
        check_sent(told, events, 1.01 * budget, 0.99 * budget, why, hint=HINTS["bytes"])
        buckets = run.evidence[0][number]["buckets"]
        expect(1 < buckets < 7, "DDP makes as many buckets as the check expects", "2 to 6", buckets)
        with hinted(HINTS["calls"]):
            check_calls(f"{told}, with {buckets} buckets,", collectives(events), 3 * buckets, "")

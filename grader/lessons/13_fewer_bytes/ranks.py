"""What the checks of 13_fewer_bytes run on ranks, in the process of the student's code."""

import math

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from grader.kit import Peak, as_evidence, mark, plain

# ---------------------------------------------------------------------------------------------------
# TODOs 1 to 3: eight bits


def packed_on_rank(code, rank, world, vectors, rows, lengths):
    """Numbers to bytes; and the bytes of the check back to numbers."""
    seen = []
    for vector, given, length in zip(vectors, rows, lengths):
        numbers = torch.tensor(vector, dtype=torch.float32)
        seen.append(
            {
                "exponents": as_evidence(code.exponents_of(code.in_blocks(numbers))),
                "rows": as_evidence(code.pack(numbers)),
                "numbers": as_evidence(code.unpack(torch.tensor(given, dtype=torch.uint8).view(-1, 33), length)),
            }
        )
    return seen


def rounded_on_rank(code, rank, world, values, times, seed):
    """Each value, `times` times; and a few of them again, with the same and with another seed."""
    many = torch.tensor(values).repeat(times, 1)
    results = code.round_stochastically(many, torch.Generator().manual_seed(seed))
    few = many[:8]
    again = [code.round_stochastically(few, torch.Generator().manual_seed(s)) for s in (seed, seed, seed + 1)]
    draw = torch.Generator().manual_seed(seed)
    twice = [code.round_stochastically(few, draw) for _ in range(2)]  # the second call draws on
    alike = code.round_stochastically(torch.full((64, 64), 17.0), draw)
    if not isinstance(results, torch.Tensor) or results.shape != many.shape:
        return {"results": as_evidence(results)}
    low, high = results.amin(dim=0), results.amax(dim=0)
    return {
        "results": as_evidence(results[0]),
        "low": low,
        "high": high,
        "between": ((results != low) & (results != high)).sum(dim=0),
        "mean": results.double().mean(dim=0),
        "again": [as_evidence(each) for each in (*again, *twice)],
        "alike": as_evidence(alike),
    }


def drawn_vector(seed, length):
    """Normal numbers, whose size differs from block to block."""
    draw = torch.Generator().manual_seed(seed + length)
    sizes = torch.exp2(torch.randint(-20, 20, (length // 32 + 1,), generator=draw).float()).repeat_interleave(32)
    return torch.randn(length, generator=draw) * sizes[:length]


def in_steps(world, of_block, scale):
    """A vector with one large number in each block, so that the others, from 16 to 18, have neighbours 2 apart."""
    return scale * torch.tensor([256.0] + [of_block] * 31).repeat(4 * world)


def averaged_on_rank(code, rank, world, mine, lengths, scale):
    seen = []
    for length in lengths:
        mark()
        seen.append(as_evidence(code.all_reduce_in_8_bits(drawn_vector(mine, length))))
    mark()
    draw = torch.Generator().manual_seed(mine % 1000)
    seen.append(as_evidence(code.all_reduce_in_8_bits(drawn_vector(mine, lengths[-1]), draw)))
    # Rounded by its owner alone: what is between two neighbours is the mean. By all: what each sends, of all alike.
    for of_block in (18.0 if rank == 0 else 16.0, 16.5):
        seen.append(as_evidence(code.all_reduce_in_8_bits(in_steps(world, of_block, scale), draw)))
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 4: the largest numbers, and error feedback


def gradient(seed, step, length):
    draw = torch.Generator().manual_seed(seed + 100 * step)
    return torch.randn(length, generator=draw) * (1 + 9 * (torch.arange(length) % 3 == 0))


def largest_on_rank(code, rank, world, mine, length, ks):
    seen = []
    for k in ks:
        mark()
        found = code.mean_of_largest(gradient(mine, 0, length), k)
        seen.append([as_evidence(t) for t in found] if isinstance(found, (tuple, list)) else as_evidence(found))
    mark()
    found = code.mean_of_largest(tied(mine, length), ks[0])  # all are as large
    seen.append([as_evidence(t) for t in found])
    return seen


def tied(seed, length):
    return torch.randint(2, (length,), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1.0


def feedback_on_rank(code, rank, world, mine, length, k, steps, stop):
    """Means of all steps; the same, resumed in the middle; and the mean of all in one step."""
    whole = code.Feedback(length, k)
    seen, saved = [], None
    for step in range(steps):
        if step == stop:
            saved = whole.saved()
        seen.append(as_evidence(whole.mean(gradient(mine, step, length))))
    resumed, later = code.Feedback(length, k), []
    resumed.load(saved)
    for step in range(stop, steps):
        later.append(as_evidence(resumed.mean(gradient(mine, step, length))))
    everything = code.Feedback(length, length)
    both = [as_evidence(everything.mean(gradient(mine, step, length))) for step in range(2)]
    return {"means": seen, "saved": as_evidence(saved), "later": later, "all": both}


def other_world_on_rank(code, rank, world, rows):
    """The memories that so many ranks saved, loaded by these."""
    rows = torch.tensor(rows)
    feedback = code.Feedback(rows.shape[1], 1)
    feedback.load(rows)
    return as_evidence(feedback.memory)


# ---------------------------------------------------------------------------------------------------
# TODOs 5 and 6: PowerSGD


def drawn_matrix(seed, step, shape, dtype=torch.float32):
    """Of singular values that fall by half from each to the next."""
    draw = torch.Generator().manual_seed(seed + 1000 * step)
    short = min(shape)
    left, right = torch.randn(shape[0], short, generator=draw), torch.randn(short, shape[1], generator=draw)
    return (left * torch.exp2(-torch.arange(short))).to(dtype) @ right.to(dtype)


def first_q(seed, shape, r, dtype=torch.float32):
    return torch.randn(shape[1], r, generator=torch.Generator().manual_seed(seed)).to(dtype)


def columns_on_rank(code, rank, world, matrices):
    return [as_evidence(code.orthonormal(torch.tensor(matrix))) for matrix in matrices]


def low_rank_on_rank(code, rank, world, mine, start, cases):
    """Two steps, one with a matrix of zeros, and one more."""
    seen = []
    for shape, r, dtype in cases:
        dtype = getattr(torch, dtype)
        q, found = first_q(start, shape, r, dtype), []
        for step, factor in enumerate((1, 1, 0, 1)):
            mark()
            mean, q = code.low_rank_mean(factor * drawn_matrix(mine, step, shape, dtype), q)
            found.append(as_evidence(mean))
        seen.append(found)
    return seen


def hook_model():
    """Two of the matrices to compress have equally many rows."""
    torch.manual_seed(3)
    sizes = (12, 12, 16, 16, 2)
    layers = [nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])]
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2], nn.Tanh(), layers[3])


def hook_batch(seed, step):
    draw = torch.Generator().manual_seed(seed + 7 * step)
    return torch.randn(4, 12, generator=draw), torch.randn(4, 2, generator=draw)


def hook_on_rank(code, rank, world, mine, r, steps, caps, stop):
    """For each size of buckets: weights after each step; how many buckets the last one had. And the weights after the
    last step, if the run is stopped before the step `stop` and resumed.
    """
    seen = [hooked_on_rank(code, mine, r, range(steps), cap, hook_model()) for cap in caps]
    first = hooked_on_rank(code, mine, r, range(stop), caps[0], model := hook_model())
    resumed = hook_model()
    resumed.load_state_dict(model.state_dict())
    seen.append(hooked_on_rank(code, mine, r, range(stop, steps), caps[0], resumed, first["state"]))
    return [{name: its for name, its in each.items() if name != "state"} for each in seen]


def hooked_on_rank(code, mine, r, steps, cap, model, saved=None):
    """Steps of a model; the hook's state, in the order of the parameters, or begun with what was `saved` of it."""
    mark()  # here DDP sends weights
    ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20)
    state, seen, buckets = code.PowerSGD(model, r), [], []
    thin = [p for p in model.parameters() if state.compresses(p)]
    if saved:
        state.memory, state.q = (dict(zip(thin, copies(tensors))) for tensors in saved)

    def counted(state, bucket):
        buckets.append(bucket.index())
        return code.power_sgd_hook(state, bucket)

    ddp.register_comm_hook(state, counted)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    for step in steps:
        buckets.clear()
        mark()
        x, y = hook_batch(mine, step)
        optimizer.zero_grad()
        (ddp(x) - y).square().mean().backward()
        optimizer.step()
        seen.append([p.detach().clone() for p in model.parameters()])
    kept = [[tensors[p].clone() for p in thin] for tensors in (state.memory, state.q)]
    return {"weights": seen, "buckets": len(buckets), "state": kept}


# ---------------------------------------------------------------------------------------------------
# TODO 7: DiLoCo


def outer_model():
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.Linear(4, 3))
    model[2].weight.requires_grad_(False)
    return model


def inner_step(model, optimizer, seed, step):
    draw = torch.Generator().manual_seed(seed + 13 * step)
    optimizer.zero_grad()
    x, y = torch.randn(4, 6, generator=draw), torch.randn(4, 3, generator=draw)
    (model(x) - y).square().mean().backward()
    optimizer.step()


def inner_optimizer(model):
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.3)


def copies(tensors):
    return [t.detach().clone() for t in tensors]


def diloco_on_rank(code, rank, world, mine, h, steps, lr, momentum, stop):
    """Weights after each outer step, and the same resumed after `stop` steps, if there is a stop."""
    model = outer_model()
    optimizer, outer, seen = inner_optimizer(model), code.DiLoCo(model, lr, momentum), []
    saved = weights = None
    for step in range(steps):
        if step == stop:
            saved, weights = outer.state_dict(), copies(model.parameters())
        inner_step(model, optimizer, mine, step)
        if (step + 1) % h == 0:
            mark()
            outer.step()
            seen.append(copies(model.parameters()))
    later, unchanged = [], True
    if saved is not None:
        before = {name: [t.clone() for t in tensors] for name, tensors in saved.items()}
        resumed = outer_model()
        outer = code.DiLoCo(resumed, lr, momentum)
        with torch.no_grad():
            for p, weight in zip(resumed.parameters(), weights):
                p.copy_(weight)
        outer.load_state_dict(saved)
        optimizer = inner_optimizer(resumed)
        for step in range(stop, steps):
            inner_step(resumed, optimizer, mine, step)
            if (step + 1) % h == 0:
                outer.step()
                later.append(copies(resumed.parameters()))
        unchanged = all(torch.equal(a, b) for name in before for a, b in zip(before[name], saved[name]))
    return {"weights": seen, "later": later, "unchanged": unchanged}


# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: Muon


def orthogonalized_on_rank(code, rank, world, matrices, dtypes, steps):
    """Each result, and the most bytes that were alive on the way."""
    seen = []
    for matrix, dtype, count in zip(matrices, dtypes, steps):
        given = torch.tensor(matrix, dtype=getattr(torch, dtype))
        with Peak() as peak:
            result = code.newton_schulz(given, count)
        seen.append([as_evidence(result), peak.most])
    return seen


def owners_on_rank(code, rank, world, cases):
    return [plain(code.owners([tuple(shape) for shape in shapes], n)) for shapes, n in cases]


def whole_numbers(seed, number, shape):
    """Multiples of 6 / 64: sums of a few, and their means over 2 and 3, are exact."""
    draw = torch.Generator().manual_seed(seed + 31 * number)
    return torch.randint(-50, 50, shape, generator=draw) * (6 / 64)


def exchanged_on_rank(code, rank, world, mine, shapes, owner):
    """The gradients of owned matrices, by number; and all matrices after their owners have sent them."""
    tensors = [whole_numbers(mine, number, tuple(shape)) for number, shape in enumerate(shapes)]
    mark()
    found = code.reduce_to_owners([t.clone() for t in tensors], list(owner))
    gradients = {str(n): as_evidence(t) for n, t in found.items()} if isinstance(found, dict) else repr(found)
    mark()
    code.send_from_owners(tensors, list(owner))
    return {"gradients": gradients, "matrices": tensors}


def muon_on_rank(code, rank, world, mine, shapes, steps):
    torch.manual_seed(2)
    matrices = [nn.Parameter(torch.randn(*shape)) for shape in shapes]
    muon = code.ShardedMuon(matrices, lr=0.1, momentum=0.8, decay=0.05)
    for step in range(steps):
        for number, p in enumerate(matrices):
            p.grad = whole_numbers(mine, number + 50 * step, p.shape)
        muon.step()
    return {"weights": copies(matrices), "averages": sorted(muon.averages), "owner": plain(muon.owner)}


# ---------------------------------------------------------------------------------------------------
# TODO 10: when to use which


def choices_on_rank(code, rank, world, runs, links, pairs):
    made = {name: code.Run(*run) for name, run in runs.items()}
    cables = [code.Link(*link) for link in links]
    written = [plain(code.worth_below(code.Run(*a), code.Run(*b), latency)) for a, b, latency in pairs]
    return {
        "seconds": [[plain(code.seconds(run, link)) for run in made.values()] for link in cables],
        "fastest": [plain(code.fastest(made, link)) for link in cables],
        "below": [w if isinstance(w, (int, float)) and math.isfinite(w) else repr(w) for w in written],
    }

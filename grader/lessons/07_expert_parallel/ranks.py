"""What the checks of 07_expert_parallel run on ranks, in the process of the student's code."""

import gc
import math

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import Given, as_evidence, columns, kind_of, mark, ranks_of, strided, zeros_in_turn
from utils.memory import Storages
from utils.model import MLP, TransformerLM


def several(value, count):
    """A tuple of so many as evidence; else in words what it is."""
    if not isinstance(value, (tuple, list)) or len(value) != count:
        return kind_of(value) + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
    return as_evidence(value)


def generator(seed):
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------------------------------------
# TODO 1: the router


def route_inputs(kind, n, dim, experts, seed):
    """Tokens and a router."""
    draw = generator(seed)
    if " " in kind:  # logits are differences of numbers that only float32 tells apart
        coarse = torch.randint(0, 2, (n if kind.endswith("float32") else experts, 1), generator=draw) * 2.0 - 1
        fine = 16 + torch.randint(-3, 4, (experts if kind.endswith("float32") else n,), generator=draw) / 1024
        coarse, fine = torch.cat([coarse, -coarse], dim=1), torch.stack([torch.full_like(fine, 16), fine], dim=1)
        h, router = (coarse, fine) if kind.endswith("float32") else (fine, coarse)
        return tuple(part.to(getattr(torch, name)) for part, name in zip((h, router), kind.split(), strict=True))
    if kind == "ties":  # whole numbers: products and sums are exact, so that what should be equal is
        return torch.randint(-3, 4, (n, dim), generator=draw).float(), torch.randint(
            -1, 2, (experts, dim), generator=draw
        ).float()
    if kind == "close":  # logits of 255 to 257; bfloat16 has only two of them
        ones = torch.randint(0, 2, (n,), generator=draw) * 2.0 - 1
        spread = torch.randint(-1, 2, (experts,), generator=draw).float()
        return torch.stack([torch.full((n,), 16.0), ones], dim=1).bfloat16(), torch.stack(
            [torch.full((experts,), 16.0), spread], dim=1
        ).bfloat16()
    h, router = torch.randn(n, dim, generator=draw), torch.randn(experts, dim, generator=draw)
    if kind == "float64":
        return h.double(), router.double()
    return (100 * h if kind == "large" else h), router


def margin(logits, k):
    """The smallest difference between logits that decides which experts are chosen, and in which order."""
    ordered = logits.sort(dim=1, descending=True).values[:, : k + 1]
    gaps = ordered[:, :-1] - ordered[:, 1:]
    return float(gaps.detach().min()) if gaps.numel() else math.inf


def gradients_of(outputs, which, weights, inputs):
    """Gradients of the weighted sum of one output, or in words why there are none."""
    if not isinstance(outputs[which], torch.Tensor) or not outputs[which].requires_grad:
        return ["none"] * len(inputs)
    total = (outputs[which].double() * weights.double()).sum()
    found = torch.autograd.grad(total, inputs, retain_graph=True, allow_unused=True)
    return ["none" if gradient is None else gradient for gradient in found]


def routed_on_rank(code, rank, world, trials):
    seen = []
    for kind, n, dim, experts, k, seed in trials:
        h, router = (part.requires_grad_() for part in route_inputs(kind, n, dim, experts, seed))
        outputs = code.route(h, router, k)
        found = {"outputs": several(outputs, 3)}
        if isinstance(found["outputs"], list) and kind in ("random", "large"):
            draw = generator(seed + 1)
            weights = torch.randn(n, k, generator=draw), torch.randn(n, experts, generator=draw)
            shaped = all(
                isinstance(o, torch.Tensor) and o.shape == w.shape
                for o, w in ((outputs[0], weights[0]), (outputs[2], weights[1]))
            )
            if shaped:
                found |= {
                    "gates": gradients_of(outputs, 0, weights[0], (h, router)),
                    "probs": gradients_of(outputs, 2, weights[1], (h, router)),
                }
        seen.append(found)
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 2: the mixture on one process


class Expert(nn.Module):
    """A layer whose weights follow from a seed, and which counts the rows it computes."""

    def __init__(self, dim, seed, dtype=torch.float32):
        super().__init__()
        draw = generator(seed)
        self.weight = nn.Parameter((torch.randn(dim, dim, generator=draw) / math.sqrt(dim)).to(dtype))
        # So that a row of zeros gives something else.
        self.bias = nn.Parameter(torch.randn(dim, generator=draw).to(dtype))
        self.calls = []

    def forward(self, x):
        self.calls.append(len(x))
        return torch.tanh(x @ self.weight + self.bias)


def work_of(experts):
    """For each expert: rows of each call, and its gradients."""
    return [
        {
            "calls": e.calls,
            "weight": "none" if e.weight.grad is None else e.weight.grad,
            "bias": "none" if e.bias.grad is None else e.bias.grad,
        }
        for e in experts
    ]


def gates_for(seed, n, k):
    gates = torch.rand(n, k, generator=generator(seed)) + 0.1
    gates.view(-1)[2::5] = 0.0  # a gate of 0 is a gate: it has a gradient
    return gates


def mixed_on_rank(code, rank, world, trials):
    seen = []
    for n, dim, experts, k, dtype, chosen, seed in trials:
        kind = getattr(torch, dtype)
        h = torch.randn(n, dim, generator=generator(seed)).to(kind).requires_grad_()
        gates = gates_for(seed + 1, n, k).requires_grad_()
        layers = [Expert(dim, seed + 2 + e, kind) for e in range(experts)]
        index = torch.tensor(chosen, dtype=torch.int64).view(n, k)
        out = code.mixture(h, gates, index, layers)
        found = {"out": as_evidence(out)}
        if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == h.shape:
            (out.float() * torch.randn(n, dim, generator=generator(seed - 1))).sum().backward()
        seen.append(
            found
            | {
                "h": "none" if h.grad is None else h.grad,
                "gates": "none" if gates.grad is None else gates.grad,
                "experts": work_of(layers),
            }
        )
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 3: sorted, exchanged, regrouped


def sorted_on_rank(code, rank, world, trials):
    seen = []
    for number, (chosen, shape, experts) in enumerate(trials):
        index = torch.tensor(chosen, dtype=torch.int64).view(shape)
        index = index.T.contiguous().T if number % 2 == 0 else index  # laid out choice by choice
        seen.append(several(code.sort_slots(index, experts), 2))
    return seen


ROW_DTYPES = ("float32", "bfloat16", "float64")


def members(world, size):
    """The groups of `size` ranks: not neighbours, so that a rank's number in its group differs from its rank."""
    return [list(range(first, world, world // size)) for first in range(world // size)]


def group_of(rank, world, size):
    """This rank's group, made by the check; None where it is all ranks."""
    if size == world:
        return None
    groups = [dist.new_group(ranks) for ranks in members(world, size)]
    return groups[rank % (world // size)]


def row_numbers(offset, count, dtype):
    """Rows of whole numbers that bfloat16 can hold, and that identify their source."""
    i = torch.arange(float(count))
    return torch.stack([i, torch.full_like(i, offset), (i * offset) % 251], dim=1).to(getattr(torch, dtype))


def exchanged_on_rank(code, rank, world, size, counts, arriving, offset):
    """For each table the exchange of counts, of rows (also if they are not contiguous, in two ways), and the order of
    regrouping.
    """
    group = group_of(rank, world, size)
    seen = []
    for number, (leaving_E, arriving_WL) in enumerate(zip(counts, arriving, strict=True)):
        each = len(leaving_E) // size
        mark()
        counts_E, arriving_table = torch.tensor(leaving_E), torch.tensor(arriving_WL).view(size, each)
        found = {"counts": as_evidence(code.exchange_counts(counts_E, group))}
        leaving = [sum(leaving_E[r * each : (r + 1) * each]) for r in range(size)]
        rows = row_numbers(offset, sum(leaving_E), ROW_DTYPES[number % len(ROW_DTYPES)])
        mark()
        rows = (torch.Tensor.contiguous, strided, columns)[number % 3](rows)
        arrived = code.exchange_rows(rows, leaving, [sum(row) for row in arriving_WL], group)
        found |= {"rows": as_evidence(arrived), "regrouped": as_evidence(code.regroup(arriving_table))}
        seen.append(found)
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 4: the way back, and gradients


WIDTH = 16


def travelled_on_rank(code, rank, world, size, k, n, chosen, seeds, seed):
    """The whole mixture on this rank's tokens, forward and backward."""
    group = group_of(rank, world, size)
    h = torch.randn(n, WIDTH, generator=generator(seed)).requires_grad_()
    gates = gates_for(seed + 1, n, k).requires_grad_()
    experts = [Expert(WIDTH, each) for each in seeds]
    index = torch.tensor(chosen, dtype=torch.int64).view(n, k)
    mark()
    out = code.parallel_mixture(h, gates, index, experts, group)
    mark()
    found = {"out": as_evidence(out)}
    if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == h.shape:
        (out * torch.randn(n, WIDTH, generator=generator(seed + 2))).sum().backward()
    return found | {
        "h": "none" if h.grad is None else h.grad,
        "gates": "none" if gates.grad is None else gates.grad,
        "experts": work_of(experts),
    }


def back_on_rank(code, rank, world, leaving, arriving, offset, backwards):
    """The gradient of an exchange, for one that differs from row to row, and for a sum's, which is not contiguous."""
    rows = row_numbers(offset, sum(leaving), "float32").requires_grad_()
    out = code.Exchange.apply(rows, leaving, arriving, None)
    weights = row_numbers(backwards, sum(arriving), "float32")
    (first,) = torch.autograd.grad((out * weights).sum(), rows, retain_graph=True, allow_unused=True)
    (second,) = torch.autograd.grad(out.sum(), rows, allow_unused=True)
    return {"out": as_evidence(out), "first": as_evidence(first), "second": as_evidence(second)}


def combined_on_rank(code, rank, world, trials):
    seen = []
    for n, k, slots, dtype, seed in trials:
        rows = torch.randn(len(slots), 5, generator=generator(seed)).to(getattr(torch, dtype))
        gates, slots_R = gates_for(seed + 1, n, k), torch.tensor(slots, dtype=torch.int64)
        seen.append(as_evidence(code.combine(rows, slots_R, gates)))
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 5: capacity


def dropped_on_rank(code, rank, world, trials):
    seen = []
    for chosen, shape, experts, limit, factor, shares in trials:
        index = torch.tensor(chosen, dtype=torch.int64).view(shape)
        given = Given(experts_NK=index)
        result = code.drop(index, experts, limit)
        found = {"drop": as_evidence(result), "shared": given.shared_with(result)}
        found["shares"] = as_evidence(code.drop_in_shares(index, experts, factor, shares))
        seen.append(found)
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 6: the balancing loss


def balance_inputs(seed, n, experts, k, rank):
    """Probabilities, and choices that crowd around different experts on each rank."""
    draw = generator(seed)
    logits = torch.randn(n, experts, generator=draw)
    logits[:, rank % experts] += 2.0
    probs = logits.softmax(dim=1)
    return probs, probs.argsort(dim=1, descending=True, stable=True)[:, :k].contiguous()


def balanced_on_rank(code, rank, world, seed, n, experts, k):
    probs, chosen = balance_inputs(seed, n, experts, k, rank)
    probs.requires_grad_()
    mark()
    loss = code.balancing_loss(probs, chosen, world)
    found = {"loss": as_evidence(loss)}
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.dim() == 0:
        loss.backward()
    return found | {"grad": "none" if probs.grad is None else probs.grad}


# ---------------------------------------------------------------------------------------------------
# TODO 7: groups and gradients


def grouped_on_rank(code, rank, world, spread):
    made = code.make_groups(rank, world, spread)
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        return {"groups": several(made, 2)}
    return {"groups": [ranks_of(group) for group in made]}


def gradients_for(seed, shapes, dtypes, rank, world):
    """One rank's gradients; some of them are zero, as if an expert had no row. Those with four dimensions lie in
    channels_last.
    """
    draw = generator(seed)
    found = [
        torch.randn(shape, generator=draw).to(getattr(torch, dtype))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    found = [part.to(memory_format=torch.channels_last) if part.dim() == 4 else part for part in found]
    return zeros_in_turn(found, rank, world)


SHARED, SHARED_DTYPES = ((30,), (2, 3, 1, 4), (1,)), ("float32", "float32", "float64")


OWN = (8, 10), (10,), (3, 8), (8,), (2, 5, 1, 3)


OWN_DTYPES = ("float32",) * len(OWN)


def averaged_on_rank(code, rank, world, spread, seed):
    copies = [dist.new_group(list(range(place, world, spread))) for place in range(spread)][rank % spread]
    lists = []
    for number, (shapes, dtypes) in enumerate(((SHARED, SHARED_DTYPES), (OWN, OWN_DTYPES))):
        gradients = gradients_for(seed + number, shapes, dtypes, rank, world)
        # Allocated in reverse on every second copy: an order by address, as a set has, then differs between ranks.
        direction = -1 if rank // spread % 2 else 1
        parameters = [nn.Parameter(torch.ones_like(gradient)) for gradient in gradients[::direction]][::direction]
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        lists.append(parameters)
    given = [[p.grad for p in parameters] for parameters in lists]
    mark()
    code.average_gradients(lists[0], lists[1], copies, world)
    weights = all(bool((p == 1).all()) for parameters in lists for p in parameters)
    return {
        "shared": [as_evidence(p.grad) for p in lists[0]],
        "experts": [as_evidence(p.grad) for p in lists[1]],
        "given": as_evidence(given),
        "weights": weights,
    }


# ---------------------------------------------------------------------------------------------------
# TODO 9: the course's model


WORDS, LENGTH, SEQUENCES, WEIGHT, STEPS = 29, 8, 2, 0.1, 3


class Whole(nn.Module):
    """What a mixture on one process holds: the attributes that the notebook's `ParallelMixture` takes."""

    def __init__(self, dim, experts, k, factor, shares):
        super().__init__()
        self.k, self.factor, self.shares = k, factor, shares
        self.router = nn.Parameter(torch.randn(experts, dim) / math.sqrt(dim))
        self.experts = nn.ModuleList(MLP(dim) for _ in range(experts))


def lm(experts, k, factor, shares, mixture=Whole):
    torch.manual_seed(5)
    model = TransformerLM(WORDS, dim=WIDTH, n_heads=2, n_layers=2, max_len=LENGTH)
    for block in model.blocks:
        block.mlp = mixture(WIDTH, experts, k, factor, shares)
    return model


def lm_batch(seed, step):
    """The evaluation, after the last step, has more sequences: so its limit is different."""
    draw = generator(seed + step)
    x, y = torch.randint(WORDS, (2, SEQUENCES + 2 * (step == STEPS), LENGTH), generator=draw)
    return x, y


def trained_on_rank(code, rank, world, spread, seed, experts, k, factor):
    sets = [dist.new_group(list(range(first, first + spread))) for first in range(0, world, spread)]
    copies = [dist.new_group(list(range(place, world, spread))) for place in range(spread)]
    model = lm(experts, k, factor, 1)
    for block in model.blocks:
        block.mlp.__class__ = code.Mixture  # the same attributes: who looks for the notebook's class finds it
    frozen = model.token_embedding.weight.requires_grad_(False)
    with Storages(model.parameters()) as storages:
        lists = code.spread_experts(model, world, sets[rank // spread])
    frozen.requires_grad_(True)
    gc.collect()
    if (
        not isinstance(lists, (tuple, list))
        or len(lists) != 2
        or not all(isinstance(part, (tuple, list)) for part in lists)
    ):
        return {"lists": several(lists, 2)}
    shared, mine = lists
    names = {id(p): name for name, p in model.named_parameters()}
    found = {
        "lists": [[names.get(id(p), "something other than a parameter of the model") for p in part] for part in lists],
        "held": sum(storages.bytes_alive().values()) // 4,
    }
    if sorted(name for part in found["lists"] for name in part) != sorted(names.values()):
        return found
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for step in range(STEPS):
        optimizer.zero_grad()
        mark()
        both = code.whole_loss(model, *lm_batch(seed, step), WEIGHT)
        pair = isinstance(both, (tuple, list)) and len(both) == 2
        if not pair or not all(isinstance(part, torch.Tensor) and part.dim() == 0 for part in both):
            return found | {"loss": str(several(both, 2))}
        if not both[1].requires_grad:
            return found | {"loss": "the number to be minimized has no gradient"}
        losses.append(float(both[0]))
        mark()
        both[1].backward()
        without = [names[id(p)] for p in (*shared, *mine) if p.grad is None]
        if without:
            return found | {"without": without}
        mark()
        code.average_gradients(shared, mine, copies[rank % spread], world)
        mark()
        if step == 0:
            found |= {
                "gradients": {name: as_evidence(p.grad) for name, p in model.named_parameters()},
                "total": float(both[1]),
                "load": [as_evidence(getattr(block.mlp, "load", None)) for block in model.blocks],
            }
        optimizer.step()
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    after = after_training(model, seed)
    return found | after | {"losses": losses + after["losses"], "weights": weights}


@torch.no_grad()
def after_training(model, seed):
    """In evaluation mode, two evaluations of the model, and its first layer: before and after the one with more tokens,
    of a tensor that is not contiguous, and in bfloat16.
    """
    x, layer = torch.randn(2, LENGTH, WIDTH, generator=generator(seed)), model.eval().blocks[0].mlp
    found = {"before more tokens": as_evidence(layer(x)), "losses": [float(model(*lm_batch(seed, STEPS)))]}
    found["layouts"] = [as_evidence(layer(x)), as_evidence(layer(strided(x)))]
    found["last load"] = as_evidence(getattr(layer, "load", None))
    for block in model.blocks:
        block.mlp.factor = 0.0
    found["losses"].append(float(model(*lm_batch(seed, STEPS))))
    found["dtype"] = str(layer.bfloat16()(x.bfloat16()).dtype).removeprefix("torch.")
    return found

"""Checks and hints of 07_expert_parallel.

| TODO | achievement                           | evidence                                                   | needs  |
|------|---------------------------------------|------------------------------------------------------------|--------|
| 1    | router: gates, experts, probabilities | values, dtypes, gradients; ties; bfloat16; large logits    |        |
| 2    | the mixture on one process            | values, all gradients, rows that each expert computed      |        |
| 3    | rows brought to their experts         | order, counts, rows, bytes on 1 to 7 ranks, and in groups  |        |
| 4    | results combined, gradients sent back | against one process on 1 to 8 ranks; rows computed; bytes  | 3      |
| 5    | capacity                              | the formula; which slots are kept                          |        |
| 6    | the balancing loss over all ranks     | value, gradient, bytes; unequal numbers of tokens          |        |
| 7    | groups; whose gradients are averaged  | members of groups; gradients and bytes                     |        |
| 8    | bytes, messages, slowdown, predicted  | the formulas                                               |        |
| 9    | the course's model, trained           | losses, gradients, weights, bytes held and sent            | 1, 3–7 |

In the checks of TODOs 2 to 4 the routing is given, so that no rounding decides it. In TODOs 1 and 9 the router decides;
there the numbers are drawn until every decision has a MARGIN far above rounding errors.
"""

import gc
import math

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import (
    PARTED,
    Given,
    Private,
    as_evidence,
    cases,
    check_answers,
    check_sent,
    check_shape,
    check_tensor,
    columns,
    count_of,
    expect,
    hinted,
    kind_of,
    mark,
    mixed_dtypes,
    near,
    ranks_of,
    shares as uneven_shares,
    strided,
    todo,
    zeros_in_turn,
)
from utils.memory import Storages
from utils.model import MLP, TransformerLM

BUILDS = "a mixture of experts by all-to-all: router, dispatch, combine, capacity, balance"

# Sums in a different order. Measured with three draws, relative to the largest number: float32 gradients differ by
# 1e-6, what the router gives, whose logits may be hundreds, by 6e-6; bfloat16 results by 4e-3, gradients by 2e-2.
REL = {"torch.float32": 1e-4, "torch.bfloat16": 3e-2, "torch.float64": 1e-4}
# Two runs of the same training add up in a different order. Of 200 draws of each training below, the router's logits
# of the ranks and of one process differed by 2.6e-5 at most (3e-6 in the median; the largest logit was 4.2), and
# every choice was the same. So two logits may come nearer to each other by 5.2e-5; this is twice that.
MARGIN = 1e-4
MOVED = 1e-2
NEEDED = "more than is needed elsewhere"


# Hints for parts of a check that the first hint of its TODO is not about.
HINTS = {
    "counts": "A rank sends every other rank the counts for that rank's own experts. How many numbers are these?",
    "sent": "A row goes to the rank of its expert, and nowhere else. Which rows stay, and is any sent twice?",
    "regroup": "What arrives is ordered by the rank that it comes from. For each row, which expert is it for?",
    "capacity": "How many slots are there? How many does an expert get if all get equally many?",
    "shares": "Each share drops as if it were alone, as a rank would. Of how many tokens is its limit, then?",
    "balance": "Which sums does the loss take: one for each token, or one for each expert? Which go into one message?",
    "one loss": (
        "The loss's value comes from all ranks, but no gradient passes through the all-reduce. Which tensor of this"
        " rank"
        " has a gradient, and what factor does it need? A detached term corrects its value."
    ),
    "way back": "The forward pass is right. Follow a row's gradient back, step by step: where does it go astray?",
}


def several(value, count):
    """A tuple of so many as evidence; else in words what it is."""
    if not isinstance(value, (tuple, list)) or len(value) != count:
        return kind_of(value) + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")
    return as_evidence(value)


def generator(seed):
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------------------------------------
# TODO 1: the router

# (kind, tokens, width, experts, choices)
ROUTES = (
    ("random", 7, 5, 4, 1), ("random", 6, 3, 6, 2), ("random", 5, 4, 3, 3), ("random", 9, 8, 17, 4),
    ("random", 3, 2, 1, 1), ("random", 0, 4, 4, 2), ("ties", 6, 3, 24, 1), ("ties", 6, 3, 24, 3),
    ("close", 4, 2, 6, 1), ("close", 4, 2, 6, 2),
    ("large", 5, 4, 4, 1), ("large", 5, 4, 4, 2), ("float64", 5, 4, 4, 2),
)  # fmt: skip
TOLD = {"random": "", "ties": ", some logits equal", "close": ", tokens in bfloat16", "large": ", logits of hundreds"}


def routes(student):
    """ROUTES, and those where tokens and router differ in dtype: of these the kind is both dtypes."""
    pairs = mixed_dtypes(student.draw("dtypes"))
    return [*ROUTES, *((" ".join(pair), 6, 2, 6, 1 + number % 2) for number, pair in enumerate(pairs))]


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


def right_route(h, router, k):
    """Gates, experts and probabilities, in float64, expert by expert."""
    logits = h.double() @ router.double().T
    probs = (logits - logits.amax(dim=1, keepdim=True)).exp()
    probs = probs / probs.sum(dim=1, keepdim=True)
    order = [sorted(range(len(router)), key=lambda e: (-row[e], e))[:k] for row in logits.tolist()]
    experts = torch.tensor(order, dtype=torch.int64).view(len(h), k)
    gates = probs.gather(1, experts)
    return gates if k == 1 else gates / gates.sum(dim=1, keepdim=True), experts, probs, logits


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


@todo(
    1,
    minutes=15,
    why="Everything else depends on the router. A choice that depends on rounding makes two runs, or a run and its "
    "resumed copy, send tokens to "
    "different experts; and a gate without a gradient leaves the router untrained.",
    hints=(
        "Logits, their softmax, the order of the logits, and the gates from the probabilities: four steps, the "
        "first in float32.",
        "h_ND.float() @ router_ED.float().T are the logits. argsort with stable=True and descending=True keeps the "
        "lower number first; cut it to k columns. "
        "probs.gather(1, experts) takes the gates, and keeps their gradient.",
        "experts = logits.argsort(dim=-1, descending=True, stable=True)[:, :k]; gates = probs.gather(1, experts); "
        "for k > 1, gates / gates.sum(dim=-1, keepdim=True).",
    ),
)
def test_todo1_route(student):
    trials, rights = [], []
    for number, (kind, n, dim, experts, k) in enumerate(routes(student)):
        for attempt in range(50):
            seed = student.draw("route", number, attempt).randrange(1 << 40)
            h, router = route_inputs(kind, n, dim, experts, seed)
            right = right_route(h.requires_grad_(), router.requires_grad_(), k)
            told_apart = chosen_for_one_reason(kind, h, router, right, k)
            if told_apart:
                break
        student.premise(told_apart, "a choice that rounding makes")
        trials.append([kind, n, dim, experts, k, seed])
        rights.append((right, h, router))
    (seen,) = student.call(routed_on_rank, world=1, group=False, trials=trials).evidence
    for found, (kind, n, dim, experts, k, seed), (right, h, router) in zip(seen, trials, rights, strict=True):
        told = TOLD.get(kind, ", tokens in {}, the router in {}".format(*(kind.split() * 2)[:2]))
        what = f"route of {n} tokens to {k} of {count_of(experts, 'expert')}{told}"
        outputs = found["outputs"]
        expect(
            isinstance(outputs, list), f"{what} does not return three tensors", "gates, experts, probabilities", outputs
        )
        gates, chosen, probs = outputs
        check_shape(f"{what}: the second result, experts,", chosen, (n, k), torch.int64)
        check_shape(f"{what}: the first result, gates,", gates, (n, k), torch.float32)
        with hinted(CHOSEN["mixed" if " " in kind else kind]):
            check_chosen(what, chosen, right, experts)
        float32 = dict(rel=1e-4, dtype=torch.float32)
        check_tensor(f"{what}: the third result, probabilities,", probs, right[2].detach(), **float32)
        than = (
            "the probabilities themselves, for k = 1" if k == 1 else "what it should be: for k > 1, a token's sum to 1"
        )
        check_tensor(f"{what}: the first result, gates,", gates, right[0].detach(), than=than, **float32)
        if kind in ("random", "large") and n:
            check_route_gradients(what, found, right, h, router, generator(seed + 1))


def chosen_for_one_reason(kind, h, router, right, k):
    """Whether a wrong answer chooses differently, and rounding does not."""
    chosen = right[1].tolist()
    if kind == "ties":
        return chosen not in (right[3].topk(k, dim=1).indices.tolist(), reversed_ties(right[3], k))
    if kind == "close" or " " in kind:
        low = h.dtype if h.dtype != torch.float32 else router.dtype
        rounded = h.to(low).float() @ router.to(low).float().T
        rounded = rounded.to(low) if kind == "close" else rounded
        return rounded.argsort(dim=1, descending=True, stable=True)[:, :k].tolist() != chosen
    return margin(right[3], k) > MARGIN


# Hints for a wrong choice, by the kind of logits.
CHOSEN = {
    "random": "",
    "float64": "",
    "mixed": "These logits differ, unless tokens or router are rounded first. Which of the two is not float32 yet?",
    "ties": "Of equal logits, the lower number comes first. Which sorts keep equal elements in their order?",
    "close": "These logits differ, and in bfloat16 some do not. In which dtype is the product computed?",
    "large": "Softmax makes exact zeros and ones of such logits. Which numbers still tell the experts apart?",
}


def check_chosen(what, chosen, right, experts):
    """Each token goes to the experts of its largest logits, in this order."""
    for token in range(len(chosen)):
        got, due = chosen[token].tolist(), right[1][token].tolist()
        logits = [round(right[3][token, e].item(), 4) for e in due]
        others = [round(right[3][token, e].item(), 4) if 0 <= e < experts else None for e in got]
        expect(
            got == due,
            f"{what}: token {token} goes to other experts",
            f"experts {due}, whose logits are {logits}",
            f"experts {got}, whose logits are {others}",
        )


@hinted(
    "Go back from the gates, and from the probabilities, to the router: at which step is there no gradient any"
    " more, or a different one?"
)
def check_route_gradients(what, found, right, h, router, draw):
    """The gradients that gates and probabilities give the tokens and the router."""
    (n, k), experts = right[0].shape, len(router)
    weights = torch.randn(n, k, generator=draw), torch.randn(n, experts, generator=draw)
    for name, which, weight in (("gates", 0, weights[0]), ("probs", 2, weights[1])):
        due = torch.autograd.grad((right[which] * weight.double()).sum(), (h, router), retain_graph=True)
        size = max(h.abs().max().item(), router.abs().max().item(), 1.0)
        for of, got, gradient in zip(("the tokens", "the router"), found[name], due, strict=True):
            spoken = "probabilities" if name == "probs" else name
            expect(
                isinstance(got, torch.Tensor), f"{what}: {spoken} have no gradient that reaches {of}", "a gradient", got
            )
            # Softmax of large logits is nearly constant, and the logits are rounded. So its gradient may be wrong by
            # 2e-5 of the numbers it is made of. Two right answers were wrong by at most 7e-6, in 24,000 gradients.
            expect(
                near(got, gradient, 1e-4, 0.2 * size * math.sqrt(gradient.numel()), torch.float32),
                f"{what}: the gradient that {spoken} give {of} is wrong",
                gradient,
                got,
            )


def reversed_ties(logits, k):
    """The choice of an answer that prefers the expert with the higher number at equal logits."""
    return [sorted(range(len(row)), key=lambda e: (-row[e], -e))[:k] for row in logits.tolist()]


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


def choices(draw, n, experts, k, home=None, dropped=0.0, avoid=None):
    """k different experts for each of n tokens, as lists. With `home`, a range, three in four are from it; no token
    chooses `avoid`.
    """
    chosen = []
    for _ in range(n):
        pool = [e for e in range(experts) if e != avoid]
        mine = [e for e in pool if home is not None and e in home]
        some = draw.sample(mine, min(k, len(mine))) if mine and draw.random() < 0.75 else []
        some += draw.sample([e for e in pool if e not in some], k - len(some))
        chosen.append([-1 if draw.random() < dropped else e for e in some])
    return chosen


def gates_for(seed, n, k):
    gates = torch.rand(n, k, generator=generator(seed)) + 0.1
    gates.view(-1)[2::5] = 0.0  # a gate of 0 is a gate: it has a gradient
    return gates


def right_mixture(h, gates, chosen, experts):
    """Token by token, in float64 if they are."""
    out = [torch.zeros_like(row) for row in h]
    for n, of_token in enumerate(chosen):
        for j, e in enumerate(of_token):
            if e >= 0:
                out[n] = out[n] + gates[n, j] * experts[e](h[n : n + 1])[0]
    return torch.stack(out) if out else 0 * h


MIXTURES = (
    (7, 5, 4, 1, "float32"),
    (6, 4, 5, 2, "float32"),
    (5, 3, 3, 3, "float32"),
    (0, 4, 3, 2, "float32"),
    (6, 4, 5, 2, "bfloat16"),
)


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


@todo(
    2,
    minutes=10,
    why="Without a serial run nothing says whether the parallel one is right. And a mixture that computes all "
    "experts for all tokens "
    "is a dense layer with extra steps: all of the cost and none of the benefit.",
    hints=(
        "For one expert: which tokens chose it, and with which of their choices? Compute these rows; add them to "
        "their tokens' results.",
        "(experts_NK == e).nonzero(as_tuple=True) gives tokens and choices; h_ND[tokens] the rows; "
        "gates_NK[tokens, choices, None] a column of gates. "
        "out.index_add(0, tokens, rows) adds. All of this also works with no rows at all.",
        "for e, expert in enumerate(experts): tokens, choices = …; out = out.index_add(0, tokens, "
        "(gates_NK[tokens, choices, None] * expert(h_ND[tokens])).to(h_ND.dtype)).",
    ),
)
def test_todo2_mixture(student):
    trials = []
    for number, (n, dim, experts, k, dtype) in enumerate(MIXTURES):
        draw = student.draw("mixture", number)
        avoid = experts - 2 if k < experts else None  # an expert that no token chooses
        chosen = choices(draw, n, experts, k, dropped=0.2 if number != 2 else 0.0, avoid=avoid)
        trials.append([n, dim, experts, k, dtype, chosen, draw.randrange(1, 1 << 40)])
    (seen,) = student.call(mixed_on_rank, world=1, group=False, trials=trials).evidence
    for found, (n, dim, experts, k, dtype, chosen, seed) in zip(seen, trials, strict=True):
        what = f"mixture of {experts} experts, {n} tokens, {k} each" + (", in bfloat16" if dtype == "bfloat16" else "")
        kind, rel = getattr(torch, dtype), REL[f"torch.{dtype}"]
        h = torch.randn(n, dim, generator=generator(seed)).to(kind).double().requires_grad_()
        gates = gates_for(seed + 1, n, k).double().requires_grad_()
        layers = [Expert(dim, seed + 2 + e, kind).double() for e in range(experts)]
        right = right_mixture(h, gates, chosen, layers)
        (right * torch.randn(n, dim, generator=generator(seed - 1))).sum().backward()
        check_shape(f"{what}: the result", found["out"], (n, dim), kind)
        check_work(what, found["experts"], load_of(chosen, experts))
        check_tensor(f"{what}: the result", found["out"], right.detach(), rel, dtype=kind)
        with hinted(
            "A result is a gate times what an expert makes of a token. Which of the three does autograd lose sight of?"
        ):
            check_gradients(what, found, {"h": h, "gates": gates}, layers, rel, dtype=kind)


def check_work(what, seen, due, rank=None, first=0):
    """Rows that each expert computed. `due` by expert; the first is number `first`."""
    for number, (mine, rows) in enumerate(zip(seen, due, strict=True), first):
        expect(
            len(mine["calls"]) > 0,
            f"{what}: expert {number} is never called"
            + ("" if rows else ". No token chose it; call it on zero rows, so that its gradient is zero, not missing"),
            f"one call, {count_of(rows, 'row')}",
            "no call",
            rank,
            "An expert that is not called has no gradient, not one of zero. Does each of them run, even with no rows?",
        )
        done = sum(mine["calls"])
        expect(
            done == rows,
            f"{what}: expert {number} computes {count_of(done, 'row')}; {rows} chose it",
            count_of(rows, "row"),
            count_of(done, "row"),
            rank,
        )
        expect(
            len(mine["calls"]) == 1,
            f"{what}: expert {number} is called {len(mine['calls'])} times",
            "one call",
            f"{len(mine['calls'])} calls",
            rank,
            "A token's choices are different experts. How do you get all rows of one expert at once?",
        )


def check_gradients(what, seen, inputs, layers, rel, rank=None, first=0, dtype=torch.float32):
    """Gradients of the inputs and of the experts, compared with the reference's. The gates are in float32, all
    else is in `dtype`.
    """
    spoken = {"h": "the tokens", "gates": "the gates"}
    # An expert's gradient is a sum over its tokens, of terms of size one, and may nearly cancel. Of 3,000 draws in
    # bfloat16, it was wrong by up to 0.22 of itself, but by at most 0.026 of the larger of itself and 1.
    scale = 2.0 if dtype == torch.bfloat16 else 0.1
    for name, tensor in inputs.items():
        due = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        if not due.numel():
            continue
        told = f"{what}: no gradient reaches {spoken[name]}"
        expect(isinstance(seen[name], torch.Tensor), told, "a gradient", "none", rank)
        told = f"{what}: the gradient of {spoken[name]}"
        kind = torch.float32 if name == "gates" else dtype
        check_tensor(told, seen[name], due, rel, rank, dtype=kind, than="one process's")
    for number, (mine, layer) in enumerate(zip(seen["experts"], layers, strict=True), first):
        for name in ("weight", "bias"):
            due = getattr(layer, name).grad
            due = torch.zeros_like(getattr(layer, name)) if due is None else due
            expect(
                isinstance(mine[name], torch.Tensor),
                f"{what}: no gradient reaches expert {number}; one that was not chosen has a gradient of zero",
                "a gradient",
                "none",
                rank,
            )
            told = f"{what}: the gradient of expert {number}'s {name}"
            check_tensor(told, mine[name], due, rel, rank, dtype=dtype, scale=scale, than="one process's")


# ---------------------------------------------------------------------------------------------------
# TODO 3: sorted, exchanged, regrouped


def sorted_on_rank(code, rank, world, trials):
    seen = []
    for number, (chosen, shape, experts) in enumerate(trials):
        index = torch.tensor(chosen, dtype=torch.int64).view(shape)
        index = index.T.contiguous().T if number % 2 == 0 else index  # laid out choice by choice
        seen.append(several(code.sort_slots(index, experts), 2))
    return seen


@hinted(
    "Number the slots token by token, choice by choice. Which of two slots of one expert comes first, and what"
    " becomes of a slot that is -1?"
)
def check_sort(student):
    trials = []
    for number, (n, k, experts, dropped) in enumerate(
        ((6, 2, 4, 0.0), (40, 1, 3, 0.2), (25, 3, 5, 0.3), (0, 2, 4, 0.0), (4, 1, 6, 1.0), (6000, 2, 3, 0.1))
    ):
        draw = student.draw("sort", number)
        trials.append([choices(draw, n, experts, k, dropped=dropped, avoid=1), [n, k], experts])
    (seen,) = student.call(sorted_on_rank, world=1, group=False, trials=trials).evidence
    for found, (chosen, (n, k), experts) in zip(seen, trials, strict=True):
        what = f"sort_slots of {n} tokens with {count_of(k, 'choice')} of {experts} experts" + (
            ", some of them -1" if any(-1 in row for row in chosen) else ""
        )
        flat = [e for row in chosen for e in row]
        slots = sorted((slot for slot, e in enumerate(flat) if e >= 0), key=lambda slot: (flat[slot], slot))
        counts = [flat.count(e) for e in range(experts)]
        expect(isinstance(found, list), f"{what} does not return two tensors", "slots, counts", found)
        check_shape(f"{what}: the first result, slots,", found[0], (len(slots),), torch.int64)
        check_tensor(f"{what}: the second result, counts,", found[1], torch.tensor(counts))
        got = found[0].tolist()
        at = next((place for place, (a, b) in enumerate(zip(got, slots, strict=True)) if a != b), 0)
        told = f"{what}: the slots are in the wrong order, first at {at}"
        expect(got == slots, told, slots[at : at + 20], got[at : at + 20])


# (ranks, experts per rank, ranks in a group): a group of fewer than all ranks has every second, or every third, one.
EXCHANGES = ((1, 2, 1), (2, 3, 2), (3, 1, 3), (4, 2, 2), (7, 1, 7))
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


def tables(draw, size, each):
    """For each trial the rows from each rank of a group (row) to each expert (column).

    A usual one, one with a rank that has no tokens and a rank whose experts no token chose, one where most stay, one
    without any row, and one with a rank that has neither tokens nor a chosen expert.
    """
    experts = size * each
    common = [uneven_shares(draw, experts) for _ in range(size)]
    idle = [
        [0 if r == size - 1 or e // each == 0 else draw.randrange(1, 6) for e in range(experts)] for r in range(size)
    ]
    homely = [
        [draw.randrange(6, 9) if e // each == r else draw.randrange(2) for e in range(experts)] for r in range(size)
    ]
    alone = size // 2
    left_out = [[0 if alone in (r, e // each) else draw.randrange(1, 6) for e in range(experts)] for r in range(size)]
    return [common, idle, homely, [[0] * experts for _ in range(size)], left_out]


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


@todo(
    3,
    minutes=25,
    why="A receiver that does not know how many rows arrive has no room for them, so counts go first. And the "
    "all-to-all is the only collective here whose size depends on the "
    "data: an unnecessary byte is sent again in every layer of every step.",
    hints=(
        "Do it on paper for two ranks with two experts each: what leaves, in which order; what arrives, in which "
        "order; and the order that the experts need.",
        "sort_slots: flatten, then argsort(stable=True); -1 sorts to the front, so cut it off, and leave it out of "
        "bincount. exchange_counts: an all-to-all of equal "
        "pieces of L numbers, viewed as a table. exchange_rows: new_empty(sum(arriving), D), and the lists of "
        "lengths. regroup: write down each arrived row's expert, then argsort.",
        "dist.all_to_all_single(arrived, rows.contiguous(), arriving, leaving, group=group). regroup: "
        "torch.arange(L).repeat(W).repeat_interleave(arriving_WL.flatten()) is the expert "
        "of each row; its stable argsort is the order.",
    ),
)
def test_todo3_exchange(student):
    check_sort(student)
    for world, each, size in student.several(EXCHANGES, 2):
        draw = student.draw("exchange", world)
        offsets = draw.sample(range(1, 250), world)
        groups = members(world, size)
        of_group = [tables(draw, size, each) for _ in groups]
        counts, arriving = [None] * world, [None] * world
        for ranks, some in zip(groups, of_group, strict=True):
            for place, rank in enumerate(ranks):
                counts[rank] = [table[place] for table in some]
                arriving[rank] = [[row[place * each : (place + 1) * each] for row in table] for table in some]
        run = student.call(
            exchanged_on_rank,
            world=world,
            size=size,
            counts=Private(counts),
            arriving=Private(arriving),
            offset=Private(offsets),
        )
        marked = cases(run.events)
        told_size = (
            count_of(world, "rank")
            + (f" in groups of {size}" if size < world else "")
            + f", {count_of(each, 'expert')} each"
        )
        for number, kind in enumerate(
            (
                "",
                "; the last has no tokens, the first rank's experts are not chosen",
                "; most tokens stay",
                "; no rank has a token",
                "; one rank has nothing to send, and gets nothing",
            )
        ):
            for ranks, some in zip(groups, of_group, strict=True):
                table = some[number]
                for place, rank in enumerate(ranks):
                    found, mine = run.evidence[rank][number], slice(place * each, (place + 1) * each)
                    what = f"exchange_counts on {told_size}{kind}"
                    due = torch.tensor([row[mine] for row in table])
                    told = f"{what}: what rank {rank} is told"
                    check_tensor(told, found["counts"], due, rank=rank, hint=HINTS["counts"])
                    numbers = each * (size - 1)
                    sent = marked[2 * number]
                    check_sent(what, sent, 8 * numbers, 4 * numbers, NEEDED, [rank], HINTS["counts"])

                    dtype = ROW_DTYPES[number % 3]
                    what = f"exchange_rows in {dtype} on {told_size}{kind}"
                    pieces = []
                    for source, other in enumerate(ranks):
                        begin = sum(table[source][: place * each])
                        pieces.append(
                            row_numbers(offsets[other], sum(table[source]), dtype)[
                                begin : begin + sum(table[source][mine])
                            ]
                        )
                    due = torch.cat(pieces)
                    than = "the others' rows for it, in the order of the ranks"
                    check_tensor(f"{what}: what rank {rank} gets", found["rows"], due, rank=rank, than=than)
                    leaves = 3 * due.element_size() * (sum(table[place]) - sum(table[place][mine]))
                    check_sent(what, marked[2 * number + 1], leaves, leaves, NEEDED, [rank], HINTS["sent"])

                    of_expert = [e for row in table for e, count in enumerate(row[mine]) for _ in range(count)]
                    due = sorted(range(len(of_expert)), key=lambda i: (of_expert[i], i))
                    what = f"regroup({[row[mine] for row in table]})"
                    due = torch.tensor(due, dtype=torch.int64)
                    check_tensor(what, found["regrouped"], due, rank=rank, hint=HINTS["regroup"])


# ---------------------------------------------------------------------------------------------------
# TODO 4: the way back, and gradients

# (ranks, experts per rank, choices, ranks of a group, which rank has no tokens)
JOURNEYS = (
    (1, 3, 2, 1, None),
    (2, 1, 1, 2, None),
    (2, 2, 2, 2, 1),
    (3, 3, 2, 3, None),
    (4, 2, 2, 2, None),
    (5, 1, 2, 5, 3),
    (8, 1, 1, 8, None),
)
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


def check_exchange_gradient(student):
    world = 3
    draw = student.draw("gradient")
    table = [[2, 1, 3], [0, 2, 1], [4, 0, 1]]
    offsets, backwards = draw.sample(range(1, 250), world), draw.sample(range(1, 250), world)
    arriving = [[row[r] for row in table] for r in range(world)]
    ranks = student.call(
        back_on_rank,
        world=world,
        leaving=Private(table),
        arriving=Private(arriving),
        offset=Private(offsets),
        backwards=Private(backwards),
    ).evidence
    weights = [row_numbers(backwards[r], sum(arriving[r]), "float32") for r in range(world)]
    for rank, found in enumerate(ranks):
        due = torch.cat([weights[r][sum(arriving[r][:rank]) :][: table[rank][r]] for r in range(world)])
        for name, gradient, how in (("first", due, ""), ("second", torch.ones_like(due), " of a sum")):
            what = f"Exchange on {count_of(world, 'rank')}: the gradient{how}"
            than = "each row's, back where the row came from"
            check_tensor(f"{what} on rank {rank}", found[name], gradient, 1e-4, rank, than=than)


def combined_on_rank(code, rank, world, trials):
    seen = []
    for n, k, slots, dtype, seed in trials:
        rows = torch.randn(len(slots), 5, generator=generator(seed)).to(getattr(torch, dtype))
        gates, slots_R = gates_for(seed + 1, n, k), torch.tensor(slots, dtype=torch.int64)
        seen.append(as_evidence(code.combine(rows, slots_R, gates)))
    return seen


def check_combine(student):
    draw, trials = student.draw("combine"), []
    for n, k, dtype in ((5, 2, "float32"), (4, 1, "float32"), (6, 3, "bfloat16"), (3, 2, "float32")):
        count = 0 if n == 3 else n * k - k  # one token, at least, has fewer rows
        trials.append([n, k, draw.sample(range(n * k), count), dtype, draw.randrange(1 << 40)])
    (seen,) = student.call(combined_on_rank, world=1, group=False, trials=trials).evidence
    for found, (n, k, slots, dtype, seed) in zip(seen, trials, strict=True):
        what = f"combine of {len(slots)} rows in {dtype} for {n} tokens with {count_of(k, 'choice')}"
        rows = torch.randn(len(slots), 5, generator=generator(seed)).to(getattr(torch, dtype))
        gates, right = gates_for(seed + 1, n, k), torch.zeros(n, 5, dtype=torch.float64)
        for row, slot in zip(rows.double(), slots, strict=True):
            right[slot // k] += gates[slot // k, slot % k].double() * row
        than = f"what it should be: row i is the result for slot {slots}[i]"
        check_tensor(what, found, right, REL[f"torch.{dtype}"], dtype=rows.dtype, than=than)


@todo(
    4,
    minutes=25,
    needs=(3,),
    why=(
        "A result that lands on another token raises no error, nor does a gradient that does not return: the loss"
        " falls, only less far. Widely used libraries have had both mistakes."
    ),
    hints=(
        "Follow one row: its slot, its place among what leaves, its place among what arrives, its place after "
        "regrouping, and all the way back.",
        "The gradient of an exchange is an exchange with leaving and arriving swapped, and None for arguments that"
        " are not tensors. slots_R // K is a slot's token, gates_NK.flatten()[slots_R] its gate. order.argsort()"
        " undoes order. Lengths for lists: .sum(dim=1).tolist(). tensor.split(lengths) cuts the rows for the experts,"
        " torch.cat joins their results.",
        "sort_slots; exchange_counts; leaving = counts_E.view(world, -1).sum(dim=1).tolist(); "
        "Exchange.apply(h_ND[slots_R // K], …); rows[order].split(…); each expert on its part; "
        "Exchange.apply(results[order.argsort()], arriving, leaving, group); combine.",
    ),
)
def test_todo4_journey(student):
    with hinted(
        "The gradients of the rows that left this rank return on the same path: an exchange again. Which rank now sends"
        " how many rows to which?"
    ):
        check_exchange_gradient(student)
    with hinted(
        "Row i is the result for slot slots_R[i]: which token is that, and which gate? A token's results add up, and"
        " a token without results gets zeros."
    ):
        check_combine(student)
    for world, each, k, size, without in student.several(JOURNEYS, but=JOURNEYS[:1]):
        check_journey(student, world, each, k, size, without)


def check_journey(student, world, each, k, size, without):
    draw, experts = student.draw("journey", world, each), size * each
    groups = members(world, size)
    place_of = {rank: (g, place) for g, ranks in enumerate(groups) for place, rank in enumerate(ranks)}
    homes = [range(place_of[r][1] * each, (place_of[r][1] + 1) * each) for r in range(world)]
    ns = [0 if r == without else draw.randrange(5, 9) for r in range(world)]
    avoid = experts - 1 if experts > 2 else None
    chosen = [choices(draw, ns[r], experts, k, homes[r], dropped=0.15, avoid=avoid) for r in range(world)]
    seeds, of_expert = (
        [draw.randrange(1 << 40) for _ in range(world)],
        [[draw.randrange(1 << 40) for _ in range(experts)] for _ in groups],
    )
    mine = [[of_expert[place_of[r][0]][e] for e in homes[r]] for r in range(world)]
    run = student.call(
        travelled_on_rank,
        world=world,
        size=size,
        k=k,
        n=Private(ns),
        chosen=Private(chosen),
        seeds=Private(mine),
        seed=Private(seeds),
    )
    forward, backward = cases(run.events)
    what = (
        f"parallel_mixture on {count_of(world, 'rank')}"
        + (f" in groups of {size}" if size < world else "")
        + f", {count_of(experts, 'expert')}, {k} per token"
        + (f", none on rank {without}" if without is not None else "")
    )
    for g, ranks in enumerate(groups):
        layers = [Expert(WIDTH, seed).double() for seed in of_expert[g]]
        inputs, outs = {}, {}
        for r in ranks:
            h = torch.randn(ns[r], WIDTH, generator=generator(seeds[r])).double().requires_grad_()
            gates = gates_for(seeds[r] + 1, ns[r], k).double().requires_grad_()
            inputs[r], outs[r] = {"h": h, "gates": gates}, right_mixture(h, gates, chosen[r], layers)
        sum((outs[r] * torch.randn(ns[r], WIDTH, generator=generator(seeds[r] + 2))).sum() for r in ranks).backward()
        for r in ranks:
            check_shape(f"{what}: the result on rank {r}", run.evidence[r]["out"], (ns[r], WIDTH), torch.float32, r)
        for place, r in enumerate(ranks):
            rows = [sum(row.count(e) for other in ranks for row in chosen[other]) for e in homes[r]]
            check_work(f"{what}, rank {r}", run.evidence[r]["experts"], rows, r, homes[r][0])
            most, least = traffic([chosen[other] for other in ranks], place, each, 4 * WIDTH)
            check_sent(f"{what}, forward", forward, most + 8 * (experts - each), least, NEEDED, [r], HINTS["sent"])
            check_sent(f"{what}, backward", backward, most, least, NEEDED, [r], HINTS["sent"])
        for r in ranks:
            told = f"{what}: the result on rank {r}"
            check_tensor(told, run.evidence[r]["out"], outs[r].detach(), 1e-4, r, dtype=torch.float32)
        for r in ranks:
            mine = [layers[e] for e in homes[r]]
            with hinted(HINTS["way back"]):
                check_gradients(f"{what}, rank {r}", run.evidence[r], inputs[r], mine, 1e-4, r, homes[r][0])


def traffic(chosen, place, each, row_bytes):
    """(most, least) bytes that a member of a group sends in one pass: its rows, and results of others' rows.

    The least is for a token that goes to a rank once, though two of its experts are there.
    """

    def rows(source, target):
        slots = [e // each for row in chosen[source] for e in row if e // each == target]
        tokens = [row for row in chosen[source] if any(e // each == target for e in row)]
        return len(slots), len(tokens)

    pairs = [rows(place, other) for other in range(len(chosen)) if other != place] + [
        rows(other, place) for other in range(len(chosen)) if other != place
    ]
    return row_bytes * sum(pair[0] for pair in pairs), row_bytes * sum(pair[1] for pair in pairs)


# ---------------------------------------------------------------------------------------------------
# TODO 5: capacity


def load_of(chosen, experts):
    return [sum(row.count(e) for row in chosen) for e in range(experts)]


def right_drop(chosen, experts, limit):
    """Slot by slot: first choices of all tokens, then second ones."""
    kept, taken = [[-1] * len(row) for row in chosen], [0] * experts
    for j in range(len(chosen[0]) if chosen else 0):
        for n, row in enumerate(chosen):
            if row[j] >= 0 and taken[row[j]] < limit:
                kept[n][j] = row[j]
                taken[row[j]] += 1
    return kept


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


@todo(
    5,
    minutes=15,
    further=True,
    why="A capacity makes the memory and the time of a step predictable. And a serial run that drops by a "
    "different rule from the ranks is a different model: then nothing says "
    "whether the parallel one is right.",
    hints=(
        "Assign the slots in order: all first choices from the first token to the last, then all second ones. Count"
        " for each how many its expert already has.",
        "experts_NK.T.reshape(-1) is that order. Compare it with arange(n_experts): a table with a row for each "
        "slot, a column for each expert. Its cumsum(dim=0), less 1, "
        "counts those before. In shares: cut the tokens with split, drop in each with its own limit, torch.cat.",
        "taken = slots[:, None] == torch.arange(E); before = ((taken.cumsum(dim=0) - 1) * taken).sum(dim=1); where "
        "before < limit, the expert, else -1; and transposed back.",
    ),
)
def test_todo5_capacity(student):
    right = {
        ("capacity", (tokens, k, experts, factor)): math.ceil(factor * tokens * k / experts)
        for tokens, k, experts, factor in (
            (16, 1, 4, 1.0),
            (16, 2, 4, 1.25),
            (10, 1, 4, 1.0),
            (7, 2, 3, 1.5),
            (100, 2, 64, 0.5),
            (0, 2, 4, 1.0),
            (1, 1, 8, 1.0),
            (3, 2, 2, 4.0),  # more than there are tokens
        )
    }
    trials = []
    for number, (n, k, experts, limit, factor, shares) in enumerate(
        (
            (12, 1, 3, 3, 1.0, 2),
            (12, 2, 4, 4, 1.25, 3),
            (10, 3, 5, 5, 0.5, 5),
            (8, 2, 3, 100, 4.0, 2),
            (6, 2, 4, 2, 1.0, 1),
            (9, 2, 6, 0, 0.5, 3),
            (0, 2, 4, 1, 1.0, 2),
            (6, 1, 2, 3, 1.0, 6),  # a share of one token, which drops nothing
        )
    ):
        for attempt in range(50):
            draw = student.draw("drop", number, attempt)
            chosen = choices(draw, n, experts, k, home=range(2), dropped=0.2 if number == 2 else 0.0)
            told_apart = (
                n == 0
                or number in (3, 5)
                or k == 1
                or right_drop(chosen, experts, limit) != by_token(chosen, experts, limit)
            )
            alone = shares != n or chosen[0] == chosen[1]  # in a share of two, one would be dropped
            if told_apart and alone:
                break
        student.premise(told_apart and alone, "slots that are dropped token by token, or in shares of two")
        trials.append([chosen, [n, k], experts, limit, factor, shares])
    check_answers(student, right, wrong="is wrong: an even share times the factor, rounded up", hints=HINTS)
    (seen,) = student.call(dropped_on_rank, world=1, group=False, trials=trials).evidence
    for found, (chosen, (n, k), experts, limit, factor, shares) in zip(seen, trials, strict=True):
        what = f"drop of {n} tokens with {count_of(k, 'choice')} of {experts} experts, limit {limit}" + (
            ", some of them -1" if any(-1 in row for row in chosen) else ""
        )
        check_shape(what, found["drop"], (n, k), torch.int64)
        expect(
            not found["shared"],
            f"{what} returns experts_NK itself: a write into the result is a write into what the balancing loss needs",
            "a copy",
            "the same memory",
            hint="The result is a new tensor, also where nothing is dropped. Which line returns what it was given?",
        )
        compare_kept(what, found["drop"].tolist(), right_drop(chosen, experts, limit), chosen)
        each = max(n // shares, 1)
        some = [chosen[first : first + each] for first in range(0, n, each)]
        due = [
            row for share in some for row in right_drop(share, experts, math.ceil(factor * (n // shares) * k / experts))
        ]
        what = (
            f"drop_in_shares of {n} tokens with {count_of(k, 'choice')} of {experts} experts, factor {factor}, "
            f"{count_of(shares, 'share')}"
        )
        check_shape(what, found["shares"], (n, k), torch.int64)
        compare_kept(what, found["shares"].tolist(), due, chosen, HINTS["shares"])


def by_token(chosen, experts, limit):
    """The wrong order: all choices of the first token, then of the next."""
    kept, taken = [], [0] * experts
    for row in chosen:
        kept.append([])
        for e in row:
            fits = e >= 0 and taken[e] < limit
            kept[-1].append(e if fits else -1)
            taken[e] += fits
    return kept


def compare_kept(what, got, due, chosen, hint=""):
    for token, (mine, right) in enumerate(zip(got, due, strict=True)):
        told = f"{what}: token {token}, which chose {chosen[token]}, keeps other slots"
        expect(mine == right, told, right, mine, hint=hint)


# ---------------------------------------------------------------------------------------------------
# TODO 6: the balancing loss

# (tokens of each rank, experts, choices). 1,100 tokens give an expert more slots than bfloat16 can count.
BALANCES = (
    ((9,), 4, 2),
    ((1100, 30), 3, 2),
    ((40, 30), 4, 1),
    ((25, 0, 40), 6, 2),
    ((8, 8, 8, 8), 3, 1),
    ((10, 30, 20, 5, 40), 5, 3),
)


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


def right_balance(parts, experts, k):
    """Of all tokens in `parts`, (probabilities, choices)."""
    probs, chosen = (torch.cat([part[i] for part in parts]) for i in range(2))
    f = torch.stack([(chosen == e).sum() for e in range(experts)]).double() / (len(chosen) * k)
    return experts * (f * probs.double().mean(dim=0)).sum()


@todo(
    6,
    minutes=15,
    why="A mean of local products is a different loss: it punishes a rank whose own tokens are alike, as in one "
    "document, even if the load over all ranks "
    "is even. Then the number of ranks decides what the model learns.",
    hints=(
        "Write down which sums over tokens the loss consists of. Sums can be added up over ranks; products cannot.",
        "Slots of each expert (bincount), sums of probabilities, and the number of tokens: joined in one vector, "
        "they take one all_reduce, of detached values. "
        "Then divide and multiply. For the gradient replace the value by your own sum, times world: own "
        "+ (total - own).detach().",
        "totals = torch.cat([slots_E, own_E.detach(), tokens]); dist.all_reduce(totals); P_E = (world * own_E + "
        "(all_E - world * own_E).detach()) / tokens; E * (f_E * P_E).sum().",
    ),
)
def test_todo6_balance(student):
    trials = []
    for number, (ns, experts, k) in enumerate(BALANCES):
        world = len(ns)
        seeds = student.draw("balance", number).sample(range(1 << 40), world)
        parts = [balance_inputs(seed, n, experts, k, r) for r, (seed, n) in enumerate(zip(seeds, ns, strict=True))]
        for probs, _ in parts:
            probs.requires_grad_()
        right = right_balance(parts, experts, k)
        right.backward()
        right = right.detach()
        local = [right_balance([part], experts, k).item() if len(part[0]) else 0.0 for part in parts]
        apart = abs(sum(local) / world - float(right))
        student.premise(world == 1 or apart > 2e-3, "a mean of local products")  # 20 times what is allowed below
        trials.append((seeds, ns, experts, k, parts, right, local))
    for seeds, ns, experts, k, parts, right, local in trials:
        world = len(ns)
        with hinted(PARTED, "hang"):
            run = student.call(balanced_on_rank, world=world, seed=Private(seeds), n=Private(ns), experts=experts, k=k)
        what = (
            f"balancing_loss on {count_of(world, 'rank')} with {', '.join(map(str, ns))} tokens, {experts} "
            f"experts, {k} a token"
        )
        for rank, found in enumerate(run.evidence):
            check_tensor(
                f"{what}: what rank {rank} finds",
                found["loss"],
                right,
                1e-4,
                rank,
                dtype=torch.float32,
                wrongs={
                    "a mean of the ranks' own losses": torch.tensor(sum(local) / world),
                    "of this rank's tokens alone": torch.tensor(local[rank]),
                },
            )
            if not ns[rank]:
                continue
            expect(
                isinstance(found["grad"], torch.Tensor),
                f"{what}: no gradient reaches the probabilities",
                "a gradient",
                "none",
                rank,
                "An all-reduce has no gradient. Which tensor of this rank is in the loss, and still has one?",
            )
            due = world * parts[rank][0].grad
            check_tensor(
                f"{what}: the gradient of rank {rank}'s probabilities",
                found["grad"],
                due,
                1e-4,
                rank,
                dtype=torch.float32,
                than=f"what it should be: {world} times (the number of ranks) the derivative of the loss, so that the"
                " ranks' average is right",
                hint=HINTS["one loss"],
            )
            (events,) = cases(run.events)
            # An all-reduce of float64 numbers, forward and backward.
            most = 2 * 2 * (world - 1) / world * 8 * (2 * experts + 2)
            enough = "a few numbers for each expert are enough, however many tokens there are"
            check_sent(what, events, most, 1 if world > 1 else 0, enough, [rank], HINTS["balance"])


# ---------------------------------------------------------------------------------------------------
# TODO 7: groups and gradients

GROUPS = ((4, 2), (4, 1), (3, 3), (6, 3), (1, 1))


def grouped_on_rank(code, rank, world, spread):
    made = code.make_groups(rank, world, spread)
    if not isinstance(made, (tuple, list)) or len(made) != 2:
        return {"groups": several(made, 2)}
    return {"groups": [ranks_of(group) for group in made]}


def gradients_for(seed, shapes, dtypes, rank, world):
    """One rank's gradients; some of them are zero, as if an expert had no row."""
    draw = generator(seed)
    found = [
        torch.randn(shape, generator=draw).to(getattr(torch, dtype))
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    return zeros_in_turn(found, rank, world)


SHARED, SHARED_DTYPES = ((30,), (4, 6), (1,)), ("float32", "float32", "float64")
OWN = (8, 10), (10,), (3, 8), (8,), (2, 5, 3)
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


@todo(
    7,
    in_place=("shared", "experts"),
    minutes=20,
    further=True,
    why="With the wrong group, different experts are averaged into one; with the wrong divisor, experts learn "
    "faster or slower than the rest. Adam hides a wrong scale almost "
    "entirely, so the mistake can stay for months.",
    hints=(
        "Draw four ranks as a table: a row for each set, a column for each place in a set. What do ranks exchange "
        "along rows, and what along columns?",
        "[dist.new_group(ranks) for ranks in …] makes all of them on every rank; then pick the one this rank is "
        "in. For the divisor: the whole loss is the sum of the ranks' losses divided by world, "
        "and after the all-reduce over the copies an expert has the gradient of that whole sum.",
        "sets: range(first, first + spread) for first in range(0, world, spread); copies: range(place, world, "
        "spread) for place in range(spread). Both sorts of gradients are divided by world.",
    ),
)
def test_todo7_gradients(student):
    for world, spread in student.several(GROUPS, but=GROUPS[-1:]):
        check_groups(student, world, spread)
    for world, spread in student.several(((4, 2), (6, 2), (3, 3), (2, 1))):
        seeds = student.draw("gradients", world).sample(range(1 << 40), world)
        run = student.call(averaged_on_rank, world=world, spread=spread, seed=Private(seeds))
        what = f"average_gradients on {count_of(world, 'rank')}, spread {spread}"
        (events,) = cases(run.events)
        for rank, found in enumerate(run.evidence):
            holders = list(range(rank % spread, world, spread))
            for name, kind, shapes, dtypes, who in (
                ("shared", 0, SHARED, SHARED_DTYPES, range(world)),
                ("experts", 1, OWN, OWN_DTYPES, holders),
            ):
                drawn = [gradients_for(seeds[r] + kind, shapes, dtypes, r, world) for r in who]
                sums = [sum(parts) for parts in zip(*drawn, strict=True)]
                spoken = "a shared parameter" if name == "shared" else "an expert's parameter"
                for got, given, total in zip(found[name], found["given"][kind], sums, strict=True):
                    divisors = {1, len(holders), spread, world * world} - {world}
                    check_tensor(
                        f"{what}: the gradient of {spoken} on rank {rank}",
                        got,
                        total / world,
                        1e-5,
                        rank,
                        wrongs={f"divided by {n}, not by {world}": total / n for n in sorted(divisors)},
                        than=f"the sum over ranks {[*who]}, divided by {world}",
                        hint=AVERAGED,
                    )
                    expect(
                        torch.equal(got, given),
                        f"{what}: {spoken} on rank {rank} gets a new tensor as its gradient: change the one that is"
                        " there, in place",
                        "the same tensor, with different numbers",
                        "a different tensor",
                        rank,
                        "Other code may hold the gradient's tensor: a bucket, or a list of gradients. Which operations"
                        " write into a tensor?",
                    )
            expect(
                found["weights"],
                f"{what}: rank {rank}'s parameters themselves have changed",
                "only gradients",
                "also weights",
                rank,
                "Which tensor is written into: the parameter, or its gradient?",
            )
            # The shared gradients, of two dtypes, may be joined in one message: then all of them are float64.
            size = 8 * sum(map(math.prod, SHARED)), 4 * sum(map(math.prod, OWN))
            most = 2 * (world - 1) / world * size[0] + 2 * (len(holders) - 1) / len(holders) * size[1]
            hint = "Whose gradients must reach all ranks, and whose only those that hold the same experts?"
            check_sent(what, events, most, 0, f"all-reduces send {most:,.0f}", [rank], hint)


AVERAGED = (
    "The whole loss is the mean of all ranks' losses. Which ranks hold this parameter, and by what is the sum of their"
    " gradients divided?"
)


EVERY_GROUP = (
    "Every rank takes part in making every group, also one that it is not in. How many groups are there in all, and how"
    " many does each rank make?"
)


def check_groups(student, world, spread):
    with hinted(EVERY_GROUP, "hang", "mismatch"):
        ranks = student.call(grouped_on_rank, world=world, spread=spread).evidence
    for rank, found in enumerate(ranks):
        what = f"make_groups on {count_of(world, 'rank')}, spread {spread}"
        groups = found["groups"]
        expect(isinstance(groups, list), f"{what} does not return two groups", "two groups", groups, rank)
        first = rank - rank % spread
        due = [list(range(first, first + spread)), list(range(rank % spread, world, spread))]
        for name, got, right in zip(("that exchanges tokens", "that holds the same experts"), groups, due, strict=True):
            expect(
                isinstance(got, list),
                f"{what}: rank {rank}'s group {name} is {got}, not a group with this rank in it",
                f"ranks {right}",
                got,
                rank,
                "Every rank takes part in making every group. Which of all these groups does it return?",
            )
            expect(
                got == right,
                f"{what}: rank {rank}'s group {name} has the wrong members",
                f"ranks {right}",
                f"ranks {got}",
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 8: predictions


@todo(
    8,
    minutes=20,
    further=True,
    why="If you can write down the table of rows, you can say beforehand which network a layer needs, and why the same "
    "layer takes twice as long on one batch as on another.",
    hints=(
        "Draw the table of rows for two ranks with two experts each, and cross out what stays on its rank. Which rank "
        "sends the rest, and which sends the results back?",
        "Rows that leave: the rank's row of the table, without its own experts' columns. Results that go back: its "
        "experts' columns, without its own row. Both times dim times element_size; "
        "forward there are also 8 bytes for each expert on another rank. Three all-to-alls forward, two backward.",
        "there = sum(rows[rank]) - own; back = sum of the own columns - own; forward (there + back) * dim * "
        "element_size + 8 * (E - E // W). Messages 3 (W - 1) and 2 (W - 1). "
        "slowdown: the largest sum of a rank's columns, divided by the mean.",
    ),
)
def test_todo8_costs(student):
    draw, right = student.draw("costs"), {}
    shapes = ((1, 3), (2, 1), (2, 2), (3, 2), (4, 1), (5, 3), (8, 1))
    for world, each in shapes:
        table = [uneven_shares(draw, world * each, most=20) for _ in range(world)]
        dim, size, rank = draw.choice((8, 64, 100)), draw.choice((2, 4)), draw.randrange(world)
        mine = range(rank * each, (rank + 1) * each)
        leaves = sum(n for e, n in enumerate(table[rank]) if e not in mine)
        returns = sum(table[r][e] for r in range(world) for e in mine if r != rank)
        both = (leaves + returns) * dim * size
        right["layer_bytes", (tuple(map(tuple, table)), rank, dim, size)] = (both + 8 * each * (world - 1), both)
        work = [
            sum(table[r][e] for r in range(world) for e in range(first * each, (first + 1) * each))
            for first in range(world)
        ]
        right["slowdown", (tuple(map(tuple, table)),)] = max(work) * world / sum(work)
    for world in (1, 2, 5, 64):
        right["layer_messages", (world,)] = (3 * (world - 1), 2 * (world - 1))
    hints = {
        "slowdown": "All wait for the rank with most rows. How many rows would each have if the load were even?",
        "layer_messages": (
            "How many exchanges does a layer make forward, and how many backward? To how many ranks is each?"
        ),
    }
    check_answers(student, right, wrong="is not what will happen", hints=hints)


# ---------------------------------------------------------------------------------------------------
# TODO 9: the course's model

WORDS, LENGTH, SEQUENCES, WEIGHT, STEPS = 29, 8, 2, 0.1, 3


class Whole(nn.Module):
    """The serial mixture, with the attributes that the notebook's `ParallelMixture` takes. It keeps what it did.
    `limit`: in place of the one that follows from the tokens.
    """

    limit = None

    def __init__(self, dim, experts, k, factor, shares):
        super().__init__()
        self.k, self.factor, self.shares = k, factor, shares
        self.router = nn.Parameter(torch.randn(experts, dim) / math.sqrt(dim))
        self.experts = nn.ModuleList(MLP(dim) for _ in range(experts))

    def forward(self, x):
        h = x.flatten(0, 1)
        logits = h @ self.router.T
        probs = logits.softmax(dim=1)
        chosen = logits.argsort(dim=1, descending=True, stable=True)[:, : self.k]
        gates = probs.gather(1, chosen)
        gates = gates if self.k == 1 else gates / gates.sum(dim=1, keepdim=True)
        self.balance = right_balance([(probs, chosen)], len(self.experts), self.k)
        self.margin = margin(logits.detach(), self.k)
        each = len(h) // self.shares
        shares = [chosen[first : first + each].tolist() for first in range(0, len(h), each)]
        self.load = [load_of(share, len(self.experts)) for share in shares]
        if self.factor is not None:
            limit = self.limit or math.ceil(self.factor * each * self.k / len(self.experts))
            self.last_limit = limit
            shares = [right_drop(share, len(self.experts), limit) for share in shares]
        self.kept = shares
        index = torch.tensor([row for share in shares for row in share])
        out = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            # Dense: all tokens, most times zero.
            out = out + ((index == number) * gates).sum(dim=1, keepdim=True) * expert(h)
        return out.view_as(x)


def lm(experts, k, factor, shares):
    torch.manual_seed(5)
    model = TransformerLM(WORDS, dim=WIDTH, n_heads=2, n_layers=2, max_len=LENGTH)
    for block in model.blocks:
        block.mlp = Whole(WIDTH, experts, k, factor, shares)
    return model


def lm_batch(seed, step):
    """The evaluation, after the last step, has more sequences: so its limit is different."""
    draw = generator(seed + step)
    x, y = torch.randint(WORDS, (2, SEQUENCES + 2 * (step == STEPS), LENGTH), generator=draw)
    return x, y


def serial(seeds, experts, k, factor):
    """One process that has all ranks' batches: losses, first gradients, last weights; what was routed in step 1."""
    model = lm(experts, k, factor, len(seeds))
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses, gradients, smallest, kept, load, dropped = [], {}, math.inf, [], [], 0
    for step in range(STEPS + 1):
        x, y = (torch.cat(parts) for parts in zip(*(lm_batch(seed, step) for seed in seeds)))
        loss = model(x, y)
        layers = [block.mlp for block in model.blocks]
        smallest = min(smallest, *(layer.margin for layer in layers))
        losses.append(loss.item())
        for layer in layers:
            dropped += sum(row.count(-1) for share in layer.kept for row in share)
        if step == STEPS:
            break
        optimizer.zero_grad()
        (loss + WEIGHT * sum(layer.balance for layer in layers)).backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
            kept, load = [layer.kept for layer in layers], [layer.load for layer in layers]
            balance = sum(layer.balance.item() for layer in layers)
        limits = [getattr(layer, "last_limit", None) for layer in layers]
        optimizer.step()
    with torch.no_grad():
        for layer, limit in zip(layers, limits):
            layer.limit = limit
        kept_limit = model(x, y).item()
        for layer in layers:
            layer.limit, layer.factor = None, None
        dropless = model(x, y).item()
        for layer in layers:
            layer.factor = 0.0
        losses.append(model(x, y).item())
    return {
        "losses": losses,
        "kept limit": kept_limit,
        "dropless": dropless,
        "first": first,
        "gradients": gradients,
        "weights": dict(model.named_parameters()),
        "margin": smallest,
        "kept": kept,
        "load": load,
        "dropped": dropped,
        "balance": balance,
    }


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


# (ranks, ranks that one set is spread over, experts per rank, choices, factor of the capacity)
TRAININGS = ((2, 2, 2, 2, 1.0), (3, 3, 1, 1, None), (4, 2, 3, 2, 1.25))


@todo(
    9,
    in_place=("model", "shared", "experts"),
    minutes=25,
    further=True,
    needs=(1, 3, 4, 5, 6, 7),
    why="Each part can be right and the whole still wrong: a router's gradient that is averaged with the experts', "
    "a loss that is balanced twice, a rank that drops by the tokens of all ranks. "
    "Only equal losses, step by step, prove that it is the serial run.",
    hints=(
        "Mixture.forward, line by line: which of its lines must take the other ranks into account? Only two, and you"
        " have functions for both.",
        "The layer has k, factor, world, tokens (a group), router, n_experts and experts. Its limit is "
        "capacity(its own tokens, …). The parameters of block.mlp.experts are this rank's; "
        "the router is not among them. A loss to minimize: model(x, y) + weight * the sum of block.mlp.balance "
        "over the blocks, after the model ran.",
        "x.flatten(0, 1); route; balancing_loss(…, layer.world); load by bincount; drop if there is a factor; "
        "parallel_mixture(…, layer.experts, layer.tokens).view_as(x). "
        "block.mlp = ParallelMixture(block.mlp, world, tokens). loss, loss + weight * sum(…).",
    ),
)
def test_todo9_training(student):
    trials = []
    for world, spread, each, k, factor in student.several(TRAININGS, but=TRAININGS[1:2]):  # which drops nothing
        how = dict(experts=spread * each, k=k, factor=factor)
        for attempt in range(20):
            seeds = student.draw("training", world, attempt).sample(range(1 << 40), world)
            right = student.reference(serial, seeds=seeds, **how)
            new_limit = factor is None or not math.isclose(right["kept limit"], right["losses"][STEPS], rel_tol=1e-3)
            if right["margin"] > MARGIN and (factor is None or right["dropped"]) and new_limit:
                break
        student.premise(right["margin"] > MARGIN, "a choice that rounding makes")
        student.premise(factor is None or right["dropped"] > 0, "a layer that drops nothing")
        student.premise(new_limit, "a layer that keeps the limit of the first batch")
        trials.append((world, spread, each, seeds, how, right))
    apart = max(abs(right["dropless"] - right["losses"][-1]) for *_, right in trials)
    student.premise(apart > 4e-3, "a layer that drops in training only")
    for trial in trials:
        check_training(student, *trial)


def check_training(student, world, spread, each, seeds, how, right):
    told_size = f"{world} ranks, {how['experts']} experts over {spread} of them, {how['k']} per token, " + (
        "dropless" if how["factor"] is None else f"capacity factor {how['factor']}"
    )
    run = student.call(trained_on_rank, world=world, spread=spread, seed=Private(seeds), **how)
    for rank, found in enumerate(run.evidence):
        check_spread(told_size, found, right, each, rank)
        expect(
            "loss" not in found,
            f"whole_loss on {told_size} does not return two numbers, as tensors",
            "loss, and what to minimize",
            found.get("loss"),
            rank,
            "One number is compared with the serial run's, the other is minimized. What does each consist of?",
        )
        without, hint = found.get("without", [""])[0], "Does each rank run all of its experts, even without a row?"
        told = f"{told_size}: no gradient reaches {without} on rank {rank}"
        expect(not without, told, "a gradient", "none", rank, hint)
    for number, due in enumerate(right["losses"][:1]):
        check_loss(told_size, run.evidence, number, due)
    # Coarse, because after a wrong layer the next one routes differently; gradients are the sharper test.
    excess = sum(found["total"] - found["losses"][0] for found in run.evidence) / world
    due = WEIGHT * right["balance"]
    expect(
        math.isclose(excess, due, rel_tol=1e-2),
        f"{told_size}: the number to be minimized is not the loss and {WEIGHT} times each block's balancing loss",
        f"{due:.5f} more than the loss",
        f"{excess:.5f} more than the loss",
        hint=(
            "Each block has a balancing loss of its own while it runs. What is the sum of them, and where is it added?"
        ),
    )
    with hinted(
        "The first loss is right. Over which ranks is this parameter's gradient averaged, and in which list is it?"
    ):
        check_first_gradients(told_size, run.evidence, right, world, spread, each)
    with hinted("load is what the tokens have chosen. Is it counted before some of their slots are dropped, or after?"):
        check_load(told_size, run.evidence, right)
    for number, due in enumerate(right["losses"]):
        check_loss(told_size, run.evidence, number, due, right["dropless"])
    check_last_weights(told_size, run.evidence, right, spread, each)
    for rank, found in enumerate(run.evidence):
        told = f"{told_size}: parallel_forward of a tensor that is not contiguous, on rank {rank},"
        good, seen = found["layouts"]
        check_tensor(told, seen, good, 1e-4, rank, than="what it is of the same numbers in order", hint=LAYOUT)
        told = f"{told_size}: parallel_forward after a call with more tokens, on rank {rank},"
        than = "what it was before that call"
        check_tensor(told, good, found["before more tokens"], 1e-4, rank, than=than, hint=CALLS)
        told, due = (
            f"{told_size}: the load on rank {rank} is not the number of slots in the last call",
            2 * LENGTH * how["k"],
        )
        load = found["last load"]
        counted = int(load.sum()) if isinstance(load, torch.Tensor) else load
        expect(counted == due, told, count_of(due, "slot"), counted, rank, CALLS)
        told = f"{told_size}: parallel_forward of bfloat16 tokens, with experts in bfloat16, on rank {rank}"
        expect(found["dtype"] == "bfloat16", f"{told} returns {found['dtype']}", "bfloat16", found["dtype"], rank)
    check_sent_in_training(told_size, cases(run.events)[:2], spread, each, how["experts"], right["kept"])


CALLS = "Each call has tokens of its own. What does the layer keep from an earlier call, and does the next one use it?"
LAYOUT = "Its numbers are the same, and lie in memory in a different order. Which line relies on that order?"


def check_spread(told_size, found, right, each, rank):
    """What spread_experts has left on a rank: memory, and the two lists."""
    sizes = {name: p.numel() for name, p in right["weights"].items()}
    of_one = sum(size for name, size in sizes.items() if ".experts.0." in name)
    of_all = sum(size for name, size in sizes.items() if ".experts." not in name)
    expect(
        isinstance(found["lists"], list),
        f"spread_experts on {told_size} does not return two lists of parameters",
        "two lists",
        found["lists"],
        rank,
    )
    held, due = found["held"], of_all + each * of_one
    expect(
        held <= due,
        f"{told_size}: after spread_experts, rank {rank} has memory for {held:,} weights; its share is "
        f"{due:,}, with {count_of(each, 'expert')} per layer",
        f"{due:,} weights",
        f"{held:,} weights",
        rank,
        "Which experts are this rank's? Something still refers to the memory of the others.",
    )
    names = [name for name in right["weights"] if ".experts." not in name]
    own = [
        f"blocks.{b}.mlp.experts.{e}.{part}.weight" for b in range(2) for e in range(each) for part in ("up", "down")
    ]
    for what, got, those in (
        ("what all ranks hold", found["lists"][0], names),
        ("this rank's experts", found["lists"][1], own),
    ):
        stray = sorted(set(got) ^ set(those)) or [name for name in got if got.count(name) > 1]
        expect(
            not stray,
            f"spread_experts on {told_size}: the list of {what} on rank {rank} is wrong: {stray[0] if stray else ''}",
            f"{len(those)} parameters",
            f"{len(got)} parameters",
            rank,
            "Which parameters do all ranks hold alike, and which are only on some of them? Each is in one list, once.",
        )


def check_load(told_size, ranks, right):
    for rank, found in enumerate(ranks):
        for layer in range(2):
            due = right["load"][layer][rank]
            load, than = found["load"][layer], f"how many of rank {rank}'s slots chose each expert"
            check_tensor(f"{told_size}: block {layer}'s load", load, torch.tensor(due), rank=rank, than=than)


def check_sent_in_training(told_size, passes, spread, each, experts, kept):
    """Forward and backward, a rank sends the tokens that are not its own, counts, and the balancing losses."""
    for direction, events in zip(("forward", "backward"), passes, strict=True):
        for rank in range(len(events)):
            members = range(rank - rank % spread, rank - rank % spread + spread)
            layers = [traffic([layer[r] for r in members], rank % spread, each, 4 * WIDTH) for layer in kept]
            small = 2 * (8 * (experts - each) + 2 * 8 * (2 * experts + 2))  # counts and balancing losses of two layers
            most, least = sum(layer[0] for layer in layers) + small, sum(layer[1] for layer in layers)
            check_sent(f"{told_size}, {direction}", events, most, least, NEEDED, [rank], HINTS["sent"])


def check_loss(told_size, ranks, number, due, dropless=None):
    """`dropless`: the loss of an evaluation in which no slot is dropped."""
    seen = sum(found["losses"][number] for found in ranks) / len(ranks)
    which = (
        f"loss {number + 1} of {STEPS}",
        "the loss of an evaluation after the last step, with more tokens than a step has,",
        "the loss of an evaluation with a capacity factor of 0.0, where every slot is dropped,",
    )[max(number - STEPS + 1, 0)]
    hint = (
        "",
        "Here there are more tokens than in a step. Which number of tokens sets the limit?",
        "A factor of 0.0 is a factor, also in an evaluation. How does the layer tell that there is none?",
    )[max(number - STEPS + 1, 0)]
    told = f"{told_size}: {which} is not one process's"
    if number >= STEPS and dropless and math.isclose(seen, dropless, rel_tol=1e-4):
        told += ": no slot is dropped in it"
        if number == STEPS:
            hint = "The serial layer drops whenever it has a factor. On what else does yours depend?"
    expect(math.isclose(seen, due, rel_tol=1e-4), told, due, seen, hint=hint)


def in_serial(name, rank, spread, each):
    """The serial model's name for a parameter of this rank."""
    parts = name.split(".")
    if "experts" in parts:
        place = parts.index("experts") + 1
        parts[place] = str(int(parts[place]) + each * (rank % spread))
    return ".".join(parts)


def check_first_gradients(told_size, ranks, right, world, spread, each):
    for rank, found in enumerate(ranks):
        for name, got in found["gradients"].items():
            due = right["gradients"][in_serial(name, rank, spread, each)]
            told = f"{told_size}: the first gradient of {name} on rank {rank}"
            check_tensor(told, got, due, 1e-4, rank, scale=1e-3, than="one process's")


def check_last_weights(told_size, ranks, right, spread, each):
    for rank, found in enumerate(ranks):
        for name, got in found["weights"].items():
            there = in_serial(name, rank, spread, each)
            weight, first = right["weights"][there], right["first"][there]
            moved = float((weight - first).norm())
            expect(
                near(got - first, weight - first, 1e-4, MOVED),
                f"{told_size}: {name} on rank {rank} is not what one process has after {STEPS} steps",
                f"moved by {moved:.5g}",
                f"moved by {float((got - first).norm()):.5g}, and {float((got - weight).norm()):.2g} away",
                rank,
            )

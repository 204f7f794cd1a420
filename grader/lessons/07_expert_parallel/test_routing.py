"""Checks of 07_expert_parallel, TODOs 1 and 2: routing.

| TODO | achievement                           | evidence                                                   | needs  |
|------|---------------------------------------|------------------------------------------------------------|--------|
| 1    | router: gates, experts, probabilities | values, dtypes, gradients; ties; bfloat16; large logits    |        |
| 2    | the mixture on one process            | values, all gradients, rows that each expert computed      |        |

In the checks of TODOs 2 to 4 the routing is given, so that no rounding decides it. In TODOs 1 and 9 the router decides;
there the numbers are drawn until every decision has a MARGIN far above rounding errors.
"""

import math

import torch

from grader.kit import check_shape, check_tensor, count_of, expect, hinted, mixed_dtypes, near, todo

from .common import MARGIN, REL, check_gradients, check_work, choices, load_of, right_mixture
from .ranks import Expert, gates_for, generator, margin, mixed_on_rank, route_inputs, routed_on_rank

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


def right_route(h, router, k):
    """Gates, experts and probabilities, in float64, expert by expert."""
    logits = h.double() @ router.double().T
    probs = (logits - logits.amax(dim=1, keepdim=True)).exp()
    probs = probs / probs.sum(dim=1, keepdim=True)
    order = [sorted(range(len(router)), key=lambda e: (-row[e], e))[:k] for row in logits.tolist()]
    experts = torch.tensor(order, dtype=torch.int64).view(len(h), k)
    gates = probs.gather(1, experts)
    return gates if k == 1 else gates / gates.sum(dim=1, keepdim=True), experts, probs, logits


@todo(1)
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


MIXTURES = (
    (7, 5, 4, 1, "float32"),
    (6, 4, 5, 2, "float32"),
    (5, 3, 3, 3, "float32"),
    (0, 4, 3, 2, "float32"),
    (6, 4, 5, 2, "bfloat16"),
)


@todo(2)
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

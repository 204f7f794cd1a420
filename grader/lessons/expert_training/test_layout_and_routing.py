"""Checks of expert_training, TODOs 1 to 3: layout, router, and the way to the experts.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the grid | make_mesh() for several --ep on 4 and 6 ranks |  |
| 2 | the router | gates, choices, probabilities and gradients; ties, biases, bfloat16 |  |
| 3 | to the experts and back | output and gradients of Mixture.mix(), on 2 to 4 ranks with unequal shares |  |
"""

import torch

from grader.kit import EXACT, Private, check_grids, check_tensor, count_of, expect, shares, todo

from .common import ROUTED, drawn_sizes, made_whole, mixed, routed
from .ranks import drawn_routing, drawn_tokens, fill, mix_on_rank, route_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 1: the grid


LAST_AXIS = (
    "Along one axis rows travel in every layer, along the other gradients once a step. Which one needs neighbours, and"
    " so comes last?"
)


@todo(1)
def test_todo1_grid(student):
    check_grids(student, "--ep", ["data", "expert"], ["--experts", "12"], LAST_AXIS)


# ---------------------------------------------------------------------------------------------------
# TODO 2: the router


def serial_routing(seed, k, dtype):
    h, weight, bias, grads = drawn_routing(seed, k, dtype)
    h.requires_grad_(), weight.requires_grad_()
    gates, experts, probs = routed(h, weight, bias, k)
    right = {"gates": gates.detach(), "experts": experts, "probs": probs.detach()}
    for name, tensor, grad in (("gates", gates, grads[0]), ("probabilities", probs, grads[1])):
        right[f"gradient of {name}"] = torch.autograd.grad(tensor, (h, weight), grad, retain_graph=True)
    unbiased = routed(h, weight, 0 * bias, k)[1]
    return right | {"unbiased": unbiased, "bias": bias}


@todo(2)
def test_todo2_router(student):
    trials = student.several([(1, "float32"), (2, "float32"), (3, "float32"), (2, "bfloat16")], 2)
    cases, rights = [], []
    for k, dtype in trials:
        cases.append([student.draw("router", k, dtype).randrange(1 << 40), k, dtype])
        right = student.reference(serial_routing, seed=cases[-1][0], k=k, dtype=dtype)
        student.premise(not torch.equal(right["unbiased"], right["experts"]), "a choice without the bias")
        different = [0, 1, 2, 4]  # experts: 3 is as 1
        sums = (right["probs"] + right["bias"])[:, different].sort(dim=1, descending=True).values
        student.premise((sums[:, :-1] - sums[:, 1:]).min() > 1e-5, "rounding for a choice")
        rights.append(right)
    (seen,) = student.call(route_on_rank, world=1, group=False, cases=cases).evidence
    for (k, dtype), right, found in zip(trials, rights, seen, strict=True):
        check_routing(f"with --top-k {k} and tokens in {dtype}", k, right, found)


CHOICE = (
    "The bias is for the choice alone, and of equal sums the lower number comes first. What is sorted, how, and in"
    " which direction?"
)
GATES = (
    "What are gates made of: probabilities or sums with the bias? By what are they divided, with k = 1 and with more?"
)


def check_routing(told, k, right, seen):
    bias, unbiased = right["bias"], right["unbiased"]
    expect("gates" in seen, f"{told} the router returns {seen.get('made')}", "three tensors", seen.get("made"))
    check_tensor(
        f"{told}, what the router returns as probabilities",
        seen["probs"],
        right["probs"],
        ROUTED,
        wrongs={"the probabilities with the bias": right["probs"] + bias},
        hint="Which dtype do softmax and product have, whatever dtype the tokens come in?",
    )
    check_tensor(
        f"{told}, what the router returns as experts",
        seen["experts"],
        right["experts"],
        wrongs={"the choice without the bias": unbiased},
        hint=CHOICE,
    )
    chosen, sums = (x.gather(1, right["experts"]) for x in (right["probs"], right["probs"] + bias))
    wrongs = {"the gates of sums with the bias": sums / sums.sum(dim=1, keepdim=True) if k > 1 else sums}
    if k > 1:
        wrongs["the probabilities of the chosen experts, not divided by their sum"] = chosen
    else:
        wrongs["1, so that the router cannot learn"] = torch.ones_like(chosen)
    name = f"{told}, what the router returns as gates"
    check_tensor(name, seen["gates"], right["gates"], ROUTED, wrongs=wrongs, hint=GATES)
    for name in ("gates", "probabilities"):
        found = seen.get(f"gradient of {name}")
        for number, what in enumerate(("the tokens", "the router's weights")):
            reached = found is not None and found[number] is not None
            expect(reached, f"{told}, no gradient of the {name} reaches {what}", "a gradient", "none", hint=GATES)
            # A gradient of bfloat16 tokens is rounded to three digits.
            wanted = right[f"gradient of {name}"][number]
            rel = 1e-2 if wanted.dtype == torch.bfloat16 else 1e-4
            check_tensor(f"{told}, the gradient of the {name} for {what}", found[number], wanted, rel, hint=GATES)
    check_tensor(
        f"{told}, after a forward pass the bias", seen["bias"], bias, hint="Which function changes the bias, and when?"
    )


# ---------------------------------------------------------------------------------------------------
# TODO 3: to the experts and back


def serial_mix(sizes, seeds, tokens):
    """The ranks of one row, one after the other: what each token gets, its gradients, and all experts' gradients; and
    how many rows go to each expert.
    """
    layer = fill(made_whole(sizes), 0).blocks[0].mlp
    found, rows = [], torch.zeros(sizes["experts"], dtype=torch.int64)
    for seed, number in zip(seeds, tokens, strict=True):
        h, gates, experts, grad = drawn_tokens(seed, sizes, number)
        h.requires_grad_(), gates.requires_grad_()
        out = mixed(h, gates, experts, layer.experts.values())
        out.backward(grad)
        found.append({"output": out.detach(), "gradient of h": h.grad, "gradient of gates": gates.grad})
        rows += torch.bincount(experts[experts >= 0], minlength=sizes["experts"])
    return found, {name: p.grad for name, p in layer.experts.named_parameters()}, rows


@todo(3)
def test_todo3_mix(student):
    draw, drawn = student.draw("mix"), []
    for rows, ep in student.several([(1, 2), (2, 2), (1, 3)]):
        sizes = drawn_sizes(draw, 2 * ep)
        # Experts that no token chooses: one that shares its rank with a busy one, or the two of a rank, or both.
        lonely, shared = draw.sample(range(ep), 2)
        sizes["idle"] = [] if rows > 1 else [2 * lonely, 2 * lonely + 1]
        sizes["idle"] += [2 * shared + draw.randrange(2)] if rows > 1 or ep > 2 else []
        tokens = [9 + number for number in shares(draw, rows * ep)]
        tokens[draw.randrange(rows * ep)] = 0  # a rank without a token still has experts
        seeds = draw.sample(range(1 << 40), rows * ep)
        rights = []
        for row in range(0, rows * ep, ep):
            part = slice(row, row + ep)
            rights.append(student.reference(serial_mix, sizes=sizes, seeds=seeds[part], tokens=tokens[part]))
            busy = [grad for name, grad in rights[-1][1].items() if int(name.split(".")[0]) not in sizes["idle"]]
            student.premise(all(grad.norm() > 0 for grad in busy), "a gradient of zero")
        drawn.append((rows, ep, sizes, tokens, seeds, rights))
    for rows, ep, sizes, tokens, seeds, rights in drawn:
        how = dict(grid=(rows, ep), sizes=sizes, tokens=Private(tokens), seed=Private(seeds))
        run = student.call(mix_on_rank, world=rows * ep, **how)
        told = f"on {rows} × {ep} ranks with {', '.join(map(str, tokens))} tokens and {sizes['experts']} experts"
        for rank, seen in enumerate(run.evidence):
            check_tokens(told, seen, rights[rank // ep][0][rank % ep], rank)
        for rank, seen in enumerate(run.evidence):
            _, experts, arriving = rights[rank // ep]
            check_experts(told, seen, experts, int(arriving.view(ep, -1)[rank % ep].sum()), rank)


def check_tokens(told, seen, right, rank):
    for what in ("output", "gradient of h", "gradient of gates"):
        name = f"{told}, the {what} of rank {rank}'s tokens"
        expect(what in seen, f"{name} is not there: autograd does not reach it", "a gradient", "none", rank)
        check_tensor(name, seen[what], right[what], EXACT, rank)


CALLED = (
    "FSDP gathers the experts' weights in the call of self.experts, and adds up their gradients later, together with"
    " other ranks. What happens to those if one rank, without a row, skips the call?"
)


def check_experts(told, seen, experts, arriving, rank):
    rows = count_of(arriving, "row") if arriving else "no row"
    skipped = f"{told}, rank {rank}, to which {rows} {'go' if arriving > 1 else 'goes'}, does not call self.experts"
    expect(seen["calls"], skipped, "a call in every forward pass", "none", rank, CALLED)
    for name, grad in seen["experts"].items():
        name = f"{told}, the gradient of expert {name} on rank {rank}"
        grad_of = experts[name.split("expert ")[1].split(" ")[0]]
        hint = "Each expert computes, even on no rows: then its gradient is zero, and not missing."
        expect(grad is not None, f"{name} is missing", "a gradient", "none", rank, hint)
        check_tensor(name, grad, grad_of, EXACT, rank)

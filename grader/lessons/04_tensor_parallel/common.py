"""What several files with checks of 04_tensor_parallel use."""

import math
from itertools import chain

import torch

from grader.kit import PARTED, cases, check_sent, check_tensor, count_of, expect, hinted, near, ring_bytes

from .ranks import (
    DIM,
    LAYER,
    LENGTH,
    LONG,
    LR,
    RATE,
    STEPS,
    border_on_rank,
    cut,
    given,
    jobs_on_rank,
    language_model,
    layer_on_rank,
    made,
    samples,
    sgd,
    stops,
    training_on_rank,
    whole_numbers,
)

# Float32 sums in another order: in the draws of two seeds, outputs and gradients differed by 1.3e-6 of their norm at
# most, weights after six to ten steps by 9e-6 of their change. What is wrong differs by 1e-2 and more.
REL = 1e-4


# Hints for parts that several TODOs have.
GIVEN = "A collective, or an operation with an underscore, writes into its argument. Whose tensor is that here?"


BACKWARD = "The forward pass is right. On its way back, is a gradient summed once too often, or not at all?"


def in_one_run(student, jobs):
    """Do jobs, those on the most ranks first; in the second pass one of each function's.

    Args:
        jobs: (ranks, function on a rank, its inputs, what the judge wants to know of it).

    Returns:
        For each function, of its jobs as far as the ranks came: (ranks, what the judge wants to know, what each rank
        saw, the events of each rank in each case that the function marked).
    """
    most, jobs_of = max(ranks for ranks, *_ in jobs), {}
    for job in jobs:
        jobs_of.setdefault(job[1], []).append(job)
    chosen = [student.several(alike) for alike in jobs_of.values()]
    jobs = sorted(chain.from_iterable(chosen), key=lambda job: -job[0])
    told = [(ranks, function.__name__, inputs) for ranks, function, inputs, _ in jobs]
    with hinted(PARTED, "hang", "mismatch"):
        run = student.call(jobs_on_rank, world=most, jobs=told, own=student.seeds(most))
    events = [[[] for _ in range(most)] for _ in jobs]
    for rank, mine in enumerate(run.events):
        number = None
        for event in mine:
            if event["e"] == "mark" and event.get("job") in range(len(jobs)):
                number = event["job"]
            elif number is not None:
                events[number][rank].append(event)
    done, reached = {function: [] for function in jobs_of}, run.evidence[0]  # rank 0 is in all of them
    all_done = len(reached) == len(jobs) or stops(reached[-1])
    expect(all_done, "the ranks end before the work is done", f"{len(jobs)} cases", f"{len(reached)}")
    for number, (ranks, function, _, about) in enumerate(jobs[: len(reached)]):
        seen = [mine[number] for mine in run.evidence[:ranks]]
        done[function].append((ranks, about, seen, cases(events[number][:ranks])))
    return done


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 8: the boundary functions


NONE_DUE = "nothing has to be sent there"


def check_border(student, trials, right, hint_forward="", hint_sent=""):
    """Judge functions at a boundary. The hints are for the forward pass and for the messages, where the TODO's first
    one is not.

    Args:
        trials: (ranks, name, shape, shape of the output, dtype, turned, whether the last rank has zeros, bytes sent
            forward, bytes sent backward).
        right: name -> function of (x by rank, upstream gradient by rank, rank) that gives output and gradient.
    """
    jobs, seeds = [], student.seeds(max(world for world, *_ in trials))  # what the ranks are given
    for world, *trial, forward, backward in trials:
        must_differ(student, seeds[:world], trial)
        inputs = dict(zip(("name", "shape", "out", "dtype", "turned", "zeros"), trial))
        jobs.append((world, border_on_rank, inputs, (trial, forward, backward)))
    reached = in_one_run(student, jobs)[border_on_rank]  # the first fault is the last that is known
    reached.sort(key=is_turned)  # last: a plain mistake shows with a contiguous tensor
    for world, (trial, nbytes, _), ranks, marked in reached:
        told = spoken_border(world, *trial)
        with hinted(hint_forward):
            check_forward(told, world, trial, seeds[:world], right, ranks)
        why = "fewer are enough" if nbytes else NONE_DUE
        check_sent(f"{told}, forward", marked[0], nbytes, nbytes, why, hint=hint_sent)
    for world, (trial, _, nbytes), ranks, marked in reached:
        told = spoken_border(world, *trial)
        check_backward(told, world, trial, seeds[:world], right, ranks)
        why = "fewer are enough" if nbytes else NONE_DUE
        check_sent(f"{told}, backward", marked[2], nbytes, nbytes, why, hint=hint_sent)


def is_turned(case):
    _, ((_name, _shape, _out, _dtype, turned, _zeros), _, _), *_ = case
    return turned


def spoken_border(world, name, shape, out, dtype, turned, zeros):
    of = f"of a tensor of shape {tuple(shape)}, {dtype}{', not contiguous on every second rank' if turned else ''}"
    of += f", all zeros on rank {world - 1}" if zeros else ""
    return f"{name} {of}, on {count_of(world, 'rank')}"


def drawn_border(seeds, trial):
    """What the ranks were given: x and the upstream gradient of each."""
    _, shape, out, dtype, turned, zeros = trial
    ways = [turned and rank % 2 == 0 for rank in range(len(seeds))]
    xs = [whole_numbers(seed, 1, shape, dtype, way) for seed, way in zip(seeds, ways)]
    upstreams = [whole_numbers(seed, 2, out, dtype, way) for seed, way in zip(seeds, ways)]
    if zeros:
        xs[-1], upstreams[-1] = 0 * xs[-1], 0 * upstreams[-1]
    return xs, upstreams


def must_differ(student, seeds, trial):
    """A premise: what the ranks are given is not the same."""
    alike = [torch.equal(of_ranks[0], of_ranks[-1]) for of_ranks in drawn_border(seeds, trial)]
    student.premise(len(seeds) == 1 or not any(alike), "ranks that do not communicate")


def check_forward(told, world, trial, seeds, right, ranks):
    name, _, out, *_ = trial
    for rank, here in enumerate(ranks):
        expect(
            not here["fault"], f"{told}: rank {rank} gets {here['fault']}", f"shape {tuple(out)}", here["fault"], rank
        )
    xs, upstreams = drawn_border(seeds, trial)
    for rank, here in enumerate(ranks):
        y, _ = right[name](xs, upstreams, rank)
        check_tensor(f"{told}, forward: the result on rank {rank}", here["y"], y, 0.0, rank)


def check_backward(told, world, trial, seeds, right, ranks):
    name, shape, *_ = trial
    for rank, here in enumerate(ranks):
        gone = here["gradient fault"]
        expect(not gone, f"{told}: the gradient on rank {rank} is {gone}", f"shape {tuple(shape)}", gone, rank)
    xs, upstreams = drawn_border(seeds, trial)
    for rank, here in enumerate(ranks):
        _, gradient = right[name](xs, upstreams, rank)
        check_tensor(f"{told}, backward: the gradient on rank {rank}", here["gradient"], gradient, 0.0, rank)
        for what, same in zip(("what it is given forward", "the gradient that it is given"), here["untouched"]):
            message = f"{told}: {what} is changed: work on a copy"
            expect(same, message, "the same numbers as before", "others", rank, GIVEN)
        for which, same in zip(("forward", "backward"), here["lasting"]):
            message = f"{told}, {which}: what the first call has returned is changed by a second one: make a new tensor"
            hint = "In which memory is the result: made for this call, or used by the next one, too?"
            expect(same, message, "the same numbers as before", "others", rank, hint)


# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 6: layers


# By the last names of a parameter: along which dimension it is cut. A parameter that is not listed is whole on every
# rank.
CUT = {"q.weight": 0, "k.weight": 0, "v.weight": 0, "up.weight": 0, "up.bias": 0, "out.weight": 1, "down.weight": 1,
       "head.weight": 0, "token_embedding.weight": 0}  # fmt: skip


def dimension_of(name, kind=None):
    """Along which dimension a parameter is cut, or None."""
    if kind and LAYER[kind][1]:
        return LAYER[kind][1].get(name)
    return CUT.get(".".join(name.split(".")[-2:]))


def serial_layer(kind, seed, **sizes):
    """Output, gradients, and the output after some steps."""
    layer = made(kind, seed, **sizes)
    x, upstream = given(kind, seed, sizes["width"], sizes["inner"])
    x = x.requires_grad_(kind != "embedding")
    seen = {"y": layer(x), "weights": {name: p.detach().clone() for name, p in layer.named_parameters()}}
    last, seen["x"], seen["gradients"] = after_steps(layer, x, seen["y"], upstream)
    return seen | {"last": last}


def after_steps(layer, x, y, upstream):
    """Train by SGD; the last output, and the first gradients of the input and of the parameters."""
    first_x, gradients = None, {}
    for step in range(STEPS):
        if y.requires_grad:
            y.backward(upstream)
        if step == 0:
            first_x = None if x.grad is None else x.grad.clone()
            gradients = {name: None if p.grad is None else p.grad.clone() for name, p in layer.named_parameters()}
        sgd(layer, RATE)
        y = layer(x)
    return y.detach(), first_x, gradients


# Hints for parts of a layer's check that the first hint of its TODO is not about.
SEEN_ALIKE = (
    "Each rank already has what its own parameters need in the backward pass. Which call sends a gradient anyway?"
)


ONE_SUM = (
    "The forward pass needs one sum over the ranks: the output's. Which call makes it, and which other call sends?"
)


FOR_INPUT = (
    "Each rank has a summand of the input's gradient. Which boundary function adds them up, and to how many tensors is"
    " it applied?"
)


HINTS = {
    ("made", "embedding"): (
        "How many words does each rank have, rounded up, and with which word of the whole table does its part begin?"
    ),
    ("output", "column"): "Which outputs of the whole layer are this rank's, and which biases belong to them?",
    ("output", "row"): (
        "Each rank has a summand of the output. What makes the sum of them, and how often may the bias be in it?"
    ),
    ("input", "column"): (
        "This layer applies no boundary function: its input's gradient is what this rank's outputs say of the input."
    ),
    ("input", "row"): "The gradient of a sum is the gradient of each summand. What comes between that and the input?",
    ("input", "mlp"): FOR_INPUT,
    ("input", "attention"): FOR_INPUT,
    ("forward", "column"): "The next layer needs just these outputs. Which call sends them, and to whom?",
    ("forward", "row"): ONE_SUM,
    ("forward", "mlp"): ONE_SUM,
    ("forward", "attention"): ONE_SUM,
    ("forward", "embedding"): ONE_SUM,
    ("backward", "column"): SEEN_ALIKE,
    ("backward", "row"): SEEN_ALIKE,
    ("backward", "mlp"): FOR_INPUT,
    ("backward", "attention"): FOR_INPUT,
    ("backward", "embedding"): SEEN_ALIKE,
    "shape": "Write down the shape after each step of the forward pass. Which dimension has only this rank's part?",
    "marked": (
        "One helper makes a parameter from this rank's part, the other from the whole. Which one is needed here?"
    ),
    "too much": (
        "Each parameter should be a part, in memory of its own. Which one is whole, or what refers to the whole layer?"
    ),
    "own": "A copy, too, is a parameter of this layer alone. Which of the two helpers makes one?",
    "too little": "Which parameter of the whole layer is missing on this rank, or shorter than its part?",
    "largest": (
        "Which tensor on the way is larger than this rank's part, and why is it whole? After the right first layer, no"
        " rank needs it."
    ),
    "frozen": (
        "A parameter that is frozen in the whole layer stays frozen when it is cut. Where does this one come from?"
    ),
    "dimensions": "x: (…, inputs) may have any number of dimensions before the last. Which line assumes three?",
    "none": "Go back from the output to this parameter. Where does autograd lose track of it, or is it not used here?",
    "last": (
        "Its first output and gradients are right. Does the forward pass use the parameters themselves, or numbers that"
        " were taken from them before the steps?"
    ),
}


PARAMETERS = {
    "column": ("weight",),
    "row": ("weight",),
    "mlp": ("the weight of up", "the bias of up", "the weight of down", "the bias of down"),
    "attention": ("q", "k", "v", "out"),
    "embedding": ("weight",),
}


def spoken_trial(kind, world, width, inner, heads, bias, frozen, **_):
    """What the trial is about, in words."""
    with_bias = f"with{'' if bias else 'out'} biases" + (f" {bias}" if bias == "of zeros" else "")
    return (
        {
            "column": f"ColumnLinear of {width} inputs and {inner} outputs, {with_bias}",
            "row": f"RowLinear of {inner} inputs and {width} outputs, {with_bias}",
            "mlp": f"ParallelMLP of width {width} with {inner} hidden numbers, {with_bias}",
            "attention": f"ParallelAttention of width {width} with {heads} heads",
            "embedding": f"ParallelEmbedding of {inner} words",
        }[kind]
        + (f", {PARAMETERS[kind][frozen]} frozen" if frozen is not None else "")
        + f", on {count_of(world, 'rank')}"
    )


def must_train(student, world, kind, right):
    """A premise: on no rank would a layer that is never trained pass."""
    trained = any(gradient is not None for gradient in right["gradients"].values())
    for rank in range(world if kind == "column" else 1):
        y, last = (cut(out, 2, rank, world) if kind == "column" else out for out in (right["y"], right["last"]))
        student.premise(not trained or not near(last, y, 100 * REL), "weights that are never trained")


def layer_jobs(student, trials_of):
    """`trials_of`: number of ranks -> trials."""
    trials = [(world, trial) for world, trials in trials_of.items() for trial in trials]
    rights = [student.reference(serial_layer, **trial) for _, trial in trials]
    for (world, trial), right in zip(trials, rights):
        must_train(student, world, trial["kind"], right)
    return [(world, layer_on_rank, trial, (trial, right)) for (world, trial), right in zip(trials, rights)]


def check_layers(student, jobs, more=()):
    """What came of other jobs in the same run, `more`, is returned."""
    done = in_one_run(student, [*jobs, *more])
    for world, (trial, right), ranks, marked in done[layer_on_rank]:
        told, kind = spoken_trial(world=world, **trial), trial["kind"]
        for rank, mine in enumerate(ranks):
            check_made(told, kind, world, rank, mine, right["weights"])
        for rank, mine in enumerate(ranks):
            expect(
                not mine["fault"],
                f"{told}: forward gives rank {rank} {mine['fault']}",
                f"a tensor of shape {shape_for(kind, right, rank, world)}",
                mine["fault"],
                rank,
                HINTS["shape"],
            )
        for rank, mine in enumerate(ranks):
            check_outcome(told, kind, world, rank, mine, right, trial)
        nbytes = 4 * right["y"].numel()
        forward = 0 if kind == "column" else ring_bytes(nbytes, world)
        backward = ring_bytes(nbytes, world) if kind in ("mlp", "attention") else 0
        why = "this layer sends nothing there" if not forward else "one all-reduce of the output is enough"
        check_sent(f"{told}, forward", marked[1], forward, forward, why, hint=HINTS["forward", kind])
        why = "one all-reduce of the input's gradient is enough" if backward else "this layer sends nothing there"
        check_sent(f"{told}, backward", marked[3], backward, backward, why, hint=HINTS["backward", kind])
    return done


def shape_for(kind, right, rank, world):
    return tuple(cut(right["y"], 2, rank, world).shape) if kind == "column" else tuple(right["y"].shape)


def check_made(told, kind, world, rank, mine, weights):
    """Whose weights a rank has, and how many bytes it holds."""
    for name, weight in weights.items():
        dim = dimension_of(name, kind)
        share = weight if dim is None else cut(weight, dim, rank, world)
        if name in mine["weights"]:
            seen = mine["weights"][name]
            than = "its part of the whole layer's" if dim is not None else "the whole layer's"
            hint = HINTS.get(("made", kind), "")
            check_tensor(f"{told}: {name} of rank {rank}", seen, share, 0.0, rank, than=than, hint=hint)
            expect(
                mine["sharded"][name] == (dim is not None),
                f"{told}: {name} of rank {rank} is {'' if mine['sharded'][name] else 'not '}marked as sharded",
                "made by " + ("`replicated`" if dim is None else "`sharded`"),
                "sharded" if mine["sharded"][name] else "not sharded",
                rank,
                HINTS["marked"],
            )
    due = sum(
        4 * (w if (dim := dimension_of(name, kind)) is None else cut(w, dim, rank, world)).numel()
        for name, w in weights.items()
    )
    whole = sum(4 * w.numel() for w in weights.values())
    held = mine["held"]
    if held >= due + whole:
        more = ": something keeps the whole layer alive"
    else:
        more = ", all of the layer's: nothing is cut, or a part keeps the whole alive" if held >= whole > due else ""
    expect(
        held <= due,
        f"{told}: rank {rank} holds {held:,} bytes once the whole layer is gone{more}",
        f"{due:,} bytes",
        f"{held:,} bytes",
        rank,
        HINTS["too much"],
    )
    expect(
        held >= due,
        f"{told}: rank {rank} holds {held:,} bytes once the whole layer is gone, less than its part",
        f"{due:,} bytes",
        f"{held:,} bytes",
        rank,
        HINTS["too little"],
    )
    expect(
        not mine["common"],
        f"{told}: {', '.join(mine['common'])} of rank {rank} lies in the memory of the whole layer: steps change that,"
        " too",
        "a parameter of its own",
        "the whole layer's",
        rank,
        HINTS["own"],
    )


def with_bias(kind, right, world):
    """Outputs with another number of biases than one, by name, and their hints."""
    bias = right["weights"].get({"mlp": "down.bias", "row": "bias"}.get(kind))
    if bias is None or world == 1:
        return {}
    return {
        f"the right one with its bias {world} times: once from each rank": (right["y"] + (world - 1) * bias, BIAS),
        "the right one without its bias": (right["y"] - bias, BIAS),
    }


BIAS = "The summands of the ranks are added up. The bias is not one of them: where is it added, so that it counts once?"


def check_outcome(told, kind, world, rank, mine, right, trial):
    def share(tensor):
        return cut(tensor, 2, rank, world) if kind == "column" else tensor

    y = share(right["y"])
    hint = HINTS.get(("output", kind), "")
    check_tensor(
        f"{told}: the output on rank {rank}", mine["y"], y, REL, rank, wrongs=with_bias(kind, right, world), hint=hint
    )
    if kind == "mlp":
        tokens, hidden = y[..., 0].numel(), -(-trial["inner"] // world)
        most = tokens * max(hidden, trial["width"])
        expect(
            mine["largest"] <= most,
            f"{told}: rank {rank} makes a tensor of {mine['largest']} numbers on the way; its part of the hidden "
            f"layer has {tokens * hidden}",
            f"at most {most} numbers",
            f"{mine['largest']} numbers",
            rank,
            HINTS["largest"],
        )
    if right["x"] is not None:
        x = right["x"]
        if kind == "row":
            x = cut(x, 2, rank, world)
        if kind == "column":  # no f: what this rank's outputs say of the input
            x = share(given(kind, trial["seed"], trial["width"], trial["inner"])[1]) @ cut(
                right["weights"]["weight"], 0, rank, world
            )
        what = f"{told}: the gradient of the input on rank {rank}"
        check_tensor(what, mine["x"], x, REL, rank, hint=HINTS["input", kind])
    for name, gradient in right["gradients"].items():
        if name in mine["weights"]:
            dim, seen = dimension_of(name, kind), mine["gradients"].get(name)
            check_gradient(told, name, dim, rank, world, seen, gradient, BACKWARD)
    last = share(right["last"])
    told = f"{told}: after {STEPS} steps of SGD, the output on rank {rank}"
    check_tensor(told, mine["last"], last, REL, rank, than="the serial layer's", hint=HINTS["last"])
    if kind in ("column", "row"):
        for name, wanted in (("a row", last[0, 0]), ("rows of rows", last[None])):
            told_of = f"{told}, for an input of {count_of(wanted.ndim, 'dimension')}"
            check_tensor(told_of, mine[name], wanted, REL, rank, than="the serial layer's", hint=HINTS["dimensions"])


def check_gradient(told, name, dim, rank, world, seen, whole, hint):
    if whole is None:
        told = f"{told}: {name} is frozen, and has a gradient on rank {rank}"
        expect(seen is None, told, "None", "a gradient", rank, HINTS["frozen"])
        return
    right = whole if dim is None else cut(whole, dim, rank, world)
    hint = HINTS["none"] if seen is None else hint
    than = f"{'' if dim is None else 'its part of '}the serial one"
    check_tensor(f"{told}: the gradient of {name} on rank {rank}", seen, right, REL, rank, than=than, hint=hint)


JOIN = "Here `join` is a different function from g. Is it the one that is called, and what comes before and after it?"


def drawn(draw, kind, width, inner, heads=1, bias=False, frozen=None):
    """A trial of a layer. `frozen`: the number of its parameter that is not trained."""
    seed = draw.randrange(1 << 30)
    return dict(kind=kind, seed=seed, width=width, inner=inner, heads=heads, bias=bias, frozen=frozen)


def has_all(size, world):
    """Whether each rank gets something."""
    return (world - 1) * -(-size // world) < size


# ---------------------------------------------------------------------------------------------------
# TODOs 7, 9 and 11: the whole model


def norm_of(gradients):
    return torch.stack([gradient.norm() for gradient in gradients]).norm()


def serial_training(seed, words, clip):
    model = language_model(seed, words)
    seen = {"losses": [], "norms": [], "first": {name: p.detach().clone() for name, p in model.named_parameters()}}
    for step in range(LONG):
        loss = model(*samples(seed, words, step))
        loss.backward()
        gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
        if step == 0:
            seen["gradients"] = gradients
        norm = norm_of(gradients.values())
        seen["losses"].append(loss.item())
        seen["norms"].append(norm.item())
        sgd(model, LR * (min(1.0, clip / norm.item()) if clip else 1.0))
    return seen | {"weights": dict(model.named_parameters())}


def training_job(student, world, sequence=False, clip=None):
    """The model, trained, on so many ranks."""
    draw = student.draw("training")
    words, seed = draw.choice((29, 31, 35, 37, 41, 43)), draw.randrange(1 << 30)  # no number of ranks divides them
    how = dict(seed=seed, words=words, sequence=sequence, clip=clip)
    right = student.reference(serial_training, seed=seed, words=words, clip=clip)
    stuck = [name for name, weight in right["weights"].items() if near(right["first"][name], weight, 2 * REL)]
    student.premise(not stuck, f"a {stuck[:1]} that never moves")
    often = not clip or sum(norm > 1.05 * clip for norm in right["norms"]) > LONG // 2
    student.premise(often, "a norm that never matters")
    return world, training_on_rank, how, (how, right)


def check_training(done):
    for world, (how, right), ranks, marked in done[training_on_rank]:
        check_training_on(world, how["sequence"], how["clip"], ranks, marked, right)


def check_training_on(world, sequence, clip, ranks, marked, right):
    how = f"{', sequence parallel' if sequence else ''}{', clipped' if clip else ''}"
    told = f"the model on {count_of(world, 'rank')}{how}"
    for rank, mine in enumerate(ranks):
        first, expected = mine["losses"][0], right["losses"][0]
        expect(
            math.isclose(first, expected, rel_tol=REL),
            f"{told}: the first loss on rank {rank} is not the serial one",
            expected,
            first,
            rank,
        )
    for name, gradient in right["gradients"].items():
        for rank, mine in enumerate(ranks):
            if name in mine["gradients"]:
                dim, seen = dimension_of(name), mine["gradients"][name]
                # With sequence parallelism the first hint is about these.
                check_gradient(told, name, dim, rank, world, seen, gradient, "" if sequence else BACKWARD)
    for rank, mine in enumerate(ranks):
        for step, (seen, expected) in enumerate(zip(mine["norms"], right["norms"]), 1):
            expect(
                math.isclose(seen, expected, rel_tol=REL),
                f"{told}: the norm of all gradients in step {step} of {LONG} is wrong on rank {rank}",
                expected,
                seen,
                rank,
            )
        for step, (seen, expected) in enumerate(zip(mine["losses"], right["losses"], strict=True), 1):
            expect(
                math.isclose(seen, expected, rel_tol=REL),
                f"{told}: loss {step} of {LONG} on rank {rank} is not the serial one",
                expected,
                seen,
                rank,
            )
        for name, weight in right["weights"].items():
            if name in mine["weights"]:
                check_weight(told, name, rank, world, mine["weights"][name], weight, right["first"][name])
    for name, dim in ((name, dimension_of(name)) for name in right["weights"]):
        copies = [mine["weights"][name] for mine in ranks if name in mine["weights"]]
        if dim is None and copies:
            apart = [rank for rank, copy in enumerate(copies) if not near(copy, copies[0], REL)]
            expect(
                not apart,
                f"{told}: after {LONG} steps the copies of {name} differ between rank 0 and {apart}",
                "the same on all ranks",
                f"{apart} differ",
            )
    check_model_traffic(told, marked, world, sequence)


def check_weight(told, name, rank, world, seen, weight, first):
    dim = dimension_of(name)
    if dim is not None:
        weight, first = cut(weight, dim, rank, world), cut(first, dim, rank, world)
    check_tensor(
        f"{told}: {name} on rank {rank} after {LONG} steps",
        seen,
        weight,
        REL,
        rank,
        scale=weight.norm().item() + 10 * (weight - first).norm().item(),
        than="what the serial run has",
    )


LAYER_BY_LAYER = "Go through the model, layer by layer: what does each one send here, and which one sends more or less?"


def check_model_traffic(told, marked, world, sequence):
    """A block has two all-reduces forward and two backward; the embedding has one forward, the head one backward."""
    activation, tokens = 4 * 2 * LENGTH * DIM, 2 * LENGTH
    blocks = ring_bytes(3 * activation, world)
    check_sent(
        f"{told}, in a forward pass",
        marked[0],
        blocks + ring_bytes(4 * 4 * tokens, world),
        blocks,
        "expected: one all-reduce for the embedding, two for the block, and the loss",
        hint=LAYER_BY_LAYER,
    )
    check_sent(
        f"{told}, in a backward pass",
        marked[1],
        blocks + ring_bytes(4 * 4 * tokens, world),
        blocks,
        "expected: two all-reduces for the block, and one for the head",
        hint=LAYER_BY_LAYER,
    )
    if sequence:
        whole = 4 * (LENGTH * DIM + 7 * DIM)  # the position embedding, three norms, and the bias of `down`
        check_sent(
            f"{told}, to finish the gradients",
            marked[2],
            ring_bytes(whole, world),
            whole * (world - 1) / world,
            "only gradients of parameters that are not sharded have to be sent",
            hint="Whose gradients are sent here, and how often is each? What do the other ranks know of a shard?",
        )

"""Checks and hints of 04_tensor_parallel.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 1 | the batch at which TP and FSDP send equally much | the formula |  |
| 2 | f and g | values, gradients, messages, on 1 to 5 ranks, three dtypes |  |
| 3 | column- and row-parallel layers | against the serial layer: values, gradients, steps, bytes, messages | 2 |
| 4 | the MLP | the same; the largest tensor that is made | 2, 3 |
| 5 | attention by whole heads | the same; heads that cannot be divided | 2, 3 |
| 6 | the embedding by words | the same | 2, 3 |
| 7 | the loss where no rank has all logits | values, gradients, messages; the model against the serial one | 2 to 6 |
| 8 | gather and scatter along the sequence | values, gradients and messages, on 1 to 4 ranks |  |
| 9 | gradients of what saw some tokens only | values; the model with sequence parallelism | 2 to 8 |
| 10 | bytes kept of a block | the formula |  |
| 11 | the norm, each gradient once | values; the model, clipped, with and without sequence parallelism | 2 to 9 |
| 12 | dropout alike, and different | masks of both generators on 4 ranks; where which is used |  |
| 13 | where it stops paying | the formulas |  |

The first loss proves nothing: the gradient of every parameter is compared, and what becomes of it in some steps of SGD.
Parameters are compared by name where the student's module has the serial module's names, and otherwise by what the
module does after the steps.

Ranks all work on the same samples. Bytes held are counted in live storages, bytes sent as rings send them.

To start ranks takes longer than most of what is asked of them. So all jobs of a check are done in one run, on as many
ranks as it needs and then on ever fewer.
"""

import gc
import math
from itertools import chain

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from grader.kit import (
    PARTED,
    as_evidence,
    cases,
    check_answers,
    check_refusals,
    check_sent,
    check_tensor,
    count_of,
    expect,
    frozen_in_turn,
    hinted,
    kind_of,
    logits as all_kinds,
    mark,
    near,
    numbers_in,
    raised,
    ring_bytes,
    smaller_world,
    todo,
)
from utils.data import IGNORE
from utils.private import TorchDispatchMode, tree_leaves
from utils.memory import Storages
from utils.model import MLP, Attention, TransformerLM

BUILDS = "Megatron's layers by hand: column and row, vocabulary and its loss, sequence parallel; what they cost"

# Float32 sums in another order: in the draws of two seeds, outputs and gradients differed by 1.3e-6 of their norm at
# most, weights after six to ten steps by 9e-6 of their change. What is wrong differs by 1e-2 and more.
REL = 1e-4

# Hints for parts that several TODOs have.
GIVEN = "A collective, or an operation with an underscore, writes into its argument. Whose tensor is that here?"
BACKWARD = "The forward pass is right. On its way back, is a gradient summed once too often, or not at all?"
BORDERS = (
    "Here `enter` and `join` are different functions from f and g, as in part 2. Which ones does the forward pass call,"
    " where, and how often?"
)

LONGER = (
    "In part 2, `enter` gathers the sequence: its result has more tokens than its argument. Which of the two do the"
    " sizes in your forward pass come from?"
)


def cut(tensor, dim, rank, world):
    """A rank's part, as torch.chunk cuts."""
    size = -(-tensor.shape[dim] // world)
    return tensor.narrow(dim, rank * size, min(size, tensor.shape[dim] - rank * size))


def fault_of(value, shape):
    """What is wrong with what the student's code returned; "" if it is a tensor of this shape."""
    if not isinstance(value, torch.Tensor):
        return "None" if value is None else f"{kind_of(value)}, no tensor"
    return "" if value.shape == torch.Size(shape) else f"a tensor of shape {tuple(value.shape)}"


def all_right(fault):
    """Whether no rank has a fault: else all stop here, and none waits for another."""
    mark()
    right = torch.tensor(float(not fault))
    dist.all_reduce(right, dist.ReduceOp.MIN)
    return bool(right)


def jobs_on_rank(code, rank, world, jobs, own):
    """What a rank sees in each job: (ranks, name of the function, inputs). One with a fault, known to all, is the last.

    `own`: a seed that this rank alone knows.
    """
    seen = []
    for number, (ranks, name, inputs) in enumerate(jobs):
        if not smaller_world(ranks, rank):
            break
        mark(job=number)
        seen.append(globals()[name](code, rank, ranks, own, **inputs))
        if stops(seen[-1]):
            break
    return seen


def stops(seen):
    """Whether a job ended with a fault that all its ranks know of."""
    return isinstance(seen, dict) and bool(seen.get("fault") or seen.get("gradient fault"))


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
# TODOs 1, 10 and 13: predictions


@todo(
    1,
    minutes=10,
    why="Tensor parallelism sends activations, FSDP weights. Which of the two sends more depends on the size of the "
    "batch, and you can say before anything runs where they are equal.",
    hints=(
        "Both train on the same batch. Of its tokens, how many does one tensor-parallel rank work on, and how many"
        " one FSDP rank? And which of the two formulas depends on tokens at all?",
        "What a tensor-parallel rank sends is proportional to the tokens, what an FSDP rank sends is the same for any "
        "batch. Set them equal.",
        "It is a quotient: the bytes of all messages with weights, divided by the bytes that one token adds. The"
        " ring's factor (N - 1) / N is in both.",
    ),
)
def test_todo1_even(student):
    right, draw = {}, student.draw("costs")
    for world in (2, 3, 8):
        dim = draw.randrange(8, 5000)
        right["even_tokens", (dim, world)] = (36 * dim + 12) / 8
    check_answers(student, right, wrong="is not where they are equal")


@todo(
    10,
    minutes=15,
    further=True,
    why=(
        "With long sequences, activations fill a device before weights do. Sequence parallelism divides most of them"
        " among the ranks and sends no additional bytes. It divides all only if gathered tensors are gathered again."
    ),
    hints=(
        "Sort the eight rows of the table into three groups: inside a parallel part (some heads, or some of the"
        " hidden layer), the norms' outputs, and the rest of the stream. Which of these groups does each way divide?",
        "A column-parallel layer needs its whole input again, to find the gradient of its weight. With sequence "
        "parallelism, that input is what `gather_sequence` returned: all tokens.",
        "4 * batch * length * dim times the sum of three groups, 12, 2 and 2; some of them are divided by world.",
    ),
)
def test_todo10_activations(student):
    right, draw = {}, student.draw("activations")
    for world in (1, 2, 3, 4, 8):
        batch, length, dim = draw.randrange(1, 9), draw.randrange(10, 3000), draw.randrange(8, 5000)
        tokens = 4 * batch * length * dim
        for how, stream, norms in (
            ("tensor", 2, 2),
            ("sequence", 2 / world, 2),
            ("sequence, gathered again", 2 / world, 2 / world),
        ):
            right["block_keeps", (batch, length, dim, world, how)] = tokens * (12 / world + stream + norms)
    check_answers(student, right, wrong="is not what will happen")


@todo(
    13,
    minutes=15,
    further=True,
    why=(
        "On every machine so far, tensor parallelism stops at the boundary of the node. With three numbers of a"
        " new machine you can say where it stops there."
    ),
    hints=(
        ("Each of a ring's 2 (t - 1) rounds costs a latency, plus the time for the bytes that it sends."),
        (
            "A round sends nbytes / world. The link is `within` up to per_node ranks, and `between` for more."
            " Efficiency compares the seconds of one rank with world times the seconds of world ranks."
        ),
        (
            "block_seconds is the products and four all-reduces. largest_worthwhile is the max of the worlds "
            "whose efficiency is at least `least`; it is not enough to stop at the first that fails."
        ),
    ),
)
def test_todo13_paying(student):
    right, draw = {}, student.draw("paying")
    within, between = (
        (draw.uniform(5e-6, 2e-5), draw.uniform(2e11, 4e11)),
        (draw.uniform(2e-5, 5e-5), draw.uniform(1e10, 5e10)),
    )
    for world, per_node in ((1, 2), (2, 8), (3, 2), (4, 4), (8, 4), (8, 8), (16, 8)):
        nbytes, seconds = draw.uniform(1e6, 1e9), draw.uniform(1e-3, 1e-1)
        right["all_reduce_seconds", (nbytes, world, between)] = all_reduce_seconds(nbytes, world, between)
        arguments = seconds, nbytes, world, per_node, within, between
        right["block_seconds", arguments] = block_seconds(*arguments)
    answers = set()
    for least in (0.1, 0.3, 0.5, 0.7, 0.9):
        for per_node in (4, 8, 64):
            # The last table has products that do not get faster at all, the third gets worse and better again.
            for table in (
                [1, 0.5, 0.26, 0.14, 0.09, 0.07],
                [1, 0.52, 0.3, 0.2, 0.15, 0.13],
                [1, 0.9, 0.26, 0.125, 0.0625, 0.03125],
                [1] * 6,
            ):
                products = tuple((2**k, 0.1 * share) for k, share in enumerate(table))
                nbytes = draw.uniform(1e8, 4e8)
                shares = [(n, 0.1 / (n * block_seconds(s, nbytes, n, per_node, within, between))) for n, s in products]
                if all(abs(share - least) > 1e-6 for _, share in shares):
                    answer = max(n for n, share in shares if share >= least)
                    right["largest_worthwhile", (products, nbytes, per_node, within, between, least)] = answer
                    answers.add(answer)
    student.premise(len(answers) > 3, "always the same answer")
    # Just as much as the least, in numbers whose sums and quotients are all exact.
    link, nbytes = (2.0**-10, 2.0**30), 2.0**20
    alone = 2 * 0.5 * block_seconds(1.0, nbytes, 2, 2, link, link)
    right["largest_worthwhile", (((1, alone), (2, 1.0)), nbytes, 2, link, link, 0.5)] = 2
    unsorted = ((1, 1.0), (8, 0.126), (2, 0.5), (4, 0.26))
    right["largest_worthwhile", (unsorted, 1.0, 8, (1e-9, 1e12), link, 0.9)] = 8
    hints = {
        "block_seconds": (
            "How many all-reduces does a block have, forward and backward? Over which link do they go where its ranks"
            " do not fit one node?"
        ),
        "largest_worthwhile": (
            "Which of all numbers of ranks in the table are worthwhile? Compare the seconds of one rank with `world`"
            " times the seconds of `world` ranks."
        ),
    }
    check_answers(student, right, wrong="is wrong", hints=hints)


def all_reduce_seconds(nbytes, world, link):
    return 2 * (world - 1) * link[0] + 2 * (world - 1) / world * nbytes / link[1]


def block_seconds(products, nbytes, world, per_node, within, between):
    slowest = within if world <= per_node else between
    return products + 4 * all_reduce_seconds(nbytes, world, slowest)


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 8: the boundary functions


def whole_numbers(seed, number, shape, dtype, turned):
    """Small whole numbers, which every dtype adds up exactly; `turned`: not contiguous."""
    draw = torch.Generator().manual_seed(seed + number)
    tensor = torch.randint(-9, 10, shape[::-1] if turned else shape, generator=draw).to(getattr(torch, dtype))
    return tensor.permute(*reversed(range(len(shape)))) if turned else tensor


def border_on_rank(code, rank, world, seed, name, shape, out, dtype, turned, zeros):
    """A function forward and backward: what comes out, and what was sent, in four marked cases; and around its backward
    pass once more, with different numbers, to catch what is kept and overwritten.
    """
    most, turned = 0 if zeros and rank == world - 1 else 1, turned and rank % 2 == 0
    x = (most * whole_numbers(seed, 1, shape, dtype, turned)).requires_grad_()
    upstream = most * whole_numbers(seed, 2, out, dtype, turned)
    kept = x.detach().clone(), upstream.clone()
    mark()
    y = getattr(code, name)(x)
    fault = fault_of(y, out)
    if not fault and not y.requires_grad:
        fault = "a tensor that autograd does not track"
    if not all_right(fault):
        return {"fault": fault}
    seen = {"fault": "", "y": y.detach().clone()}
    other = (x.detach() + 1).requires_grad_()
    other_y = getattr(code, name)(other)
    mark()
    try:
        (gradient,) = torch.autograd.grad(y, x, upstream, allow_unused=True)  # itself, and not a copy as x.grad
        fault = fault_of(gradient, shape)
    except RuntimeError as error:
        if "invalid gradient" not in str(error):
            raise
        fault = "a tensor whose shape is not x's"
    if not all_right(fault):
        return seen | {"gradient fault": fault}
    seen["untouched"] = [torch.equal(x, kept[0]), torch.equal(upstream, kept[1])]
    seen |= {"gradient fault": "", "gradient": gradient.clone()}
    torch.autograd.grad(other_y, other, upstream + 1)
    seen["lasting"] = [torch.equal(y, seen["y"]), torch.equal(gradient, seen["gradient"])]
    return seen


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


@todo(
    2,
    minutes=15,
    why=(
        "Without f's sum, the gradients before a parallel part come from one rank alone; with a sum in g's "
        "backward pass they are t times too large. Neither shows in the first loss."
    ),
    hints=(
        ("Two of the four functions only pass their argument on; the other two are the same all-reduce. Which ones?"),
        (
            "dist.all_reduce works in place, and what you are given is not yours: clone it first. A gradient may not"
            " be contiguous."
        ),
        (
            "x.view_as(x) passes a tensor on as a new one. An all-reduced copy is two lines: "
            "clone(memory_format=…), then dist.all_reduce."
        ),
    ),
)
def test_todo2_pair(student):
    draw = student.draw("pair")
    right = {
        "f": lambda xs, upstreams, rank: (xs[rank], sum(upstreams)),
        "g": lambda xs, upstreams, rank: (sum(xs), upstreams[rank]),
    }
    trials = []
    for world in (1, 2, 3, 4, 5):
        kinds = (("float32", 4, True), ("float64", 8, False), ("bfloat16", 2, False))
        for dtype, size, turned in kinds[: 3 if world == 3 else 1]:
            shape = [draw.randrange(2, 5), draw.randrange(2, 6), draw.randrange(2, 7)]
            nbytes = ring_bytes(size * math.prod(shape), world)
            zeros = dtype == "bfloat16"  # a zero counts, too, and a rank that sends none of it is waited for
            trials.append((world, "f", shape, shape, dtype, turned, zeros, 0, nbytes))
            trials.append((world, "g", shape, shape, dtype, turned, zeros, nbytes, 0))
    check_border(student, trials, right)


@todo(
    8,
    minutes=20,
    further=True,
    why=(
        "A reduce-scatter is half an all-reduce, an all-gather the other half. With the norms and residuals "
        "between the two, their work and their activations are divided by the ranks."
    ),
    hints=(
        (
            "The backward pass of gathering is reducing: every rank has used all tokens, so each token's "
            "gradient is a sum over the ranks. And vice versa."
        ),
        (
            "Gather: empty tensors like x, dist.all_gather, torch.cat along dimension 1. Reduce: chunks of x "
            "along dimension 1, each made contiguous, an empty tensor like one of them, dist.reduce_scatter."
        ),
        ("Each backward function applies one of the two helpers to the gradient; neither calls a collective itself."),
    ),
)
def test_todo8_sequence(student):
    draw = student.draw("sequence")

    def tokens(tensors, rank):
        return sum(tensors).chunk(len(tensors), dim=1)[rank]

    right = {
        "gather_sequence": lambda xs, upstreams, rank: (torch.cat(xs, dim=1), tokens(upstreams, rank)),
        "scatter_sequence": lambda xs, upstreams, rank: (tokens(xs, rank), torch.cat(upstreams, dim=1)),
    }
    trials = []
    for world in (1, 2, 3, 4):
        for dtype, size, turned in (("float32", 4, True), ("float64", 8, False))[: 2 if world == 3 else 1]:
            # Of a batch of one, chunks along the sequence are contiguous, and so may be views of what was given.
            part = [draw.randrange(2, 5) if turned else 1, draw.randrange(1, 4), draw.randrange(2, 6)]
            zeros = not turned
            whole = [part[0], part[1] * world, part[2]]
            nbytes = (world - 1) * size * math.prod(part)
            trials.append((world, "gather_sequence", part, whole, dtype, turned, zeros, nbytes, nbytes))
            trials.append((world, "scatter_sequence", whole, part, dtype, turned, zeros, nbytes, nbytes))
    check_border(
        student,
        trials,
        right,
        hint_forward=(
            "Gathered: all tokens, along the sequence, in the order of the ranks. Reduced: of the sum over the ranks,"
            " which tokens does this rank keep?"
        ),
        hint_sent=(
            "Each direction is half an all-reduce: a rank sends its own tokens, or its summands of the others' tokens."
            " Is anything sent that is thrown away afterwards?"
        ),
    )


# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 6: layers

# By the last names of a parameter: along which dimension it is cut. A parameter that is not listed is whole on every
# rank.
CUT = {"q.weight": 0, "k.weight": 0, "v.weight": 0, "up.weight": 0, "up.bias": 0, "out.weight": 1, "down.weight": 1,
       "head.weight": 0, "token_embedding.weight": 0}  # fmt: skip
LAYER = {
    "column": ("ColumnLinear", {"weight": 0, "bias": 0}),
    "row": ("RowLinear", {"weight": 1}),
    "mlp": ("ParallelMLP", None),
    "attention": ("ParallelAttention", None),
    "embedding": ("ParallelEmbedding", {"weight": 0}),
}


def dimension_of(name, kind=None):
    """Along which dimension a parameter is cut, or None."""
    if kind and LAYER[kind][1]:
        return LAYER[kind][1].get(name)
    return CUT.get(".".join(name.split(".")[-2:]))


def made(kind, seed, width, inner, heads, bias, frozen):
    """A serial layer with random weights and biases: `inner` outputs, hidden numbers or words."""
    torch.manual_seed(seed)
    if kind in ("column", "row"):
        layer = nn.Linear(*((width, inner) if kind == "column" else (inner, width)), bias=bool(bias))
    elif kind == "mlp":
        layer = MLP(width)
        layer.up, layer.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
    elif kind == "attention":
        layer = Attention(width, heads, 0.0)
    else:
        layer = nn.Embedding(inner, width)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    if bias == "of zeros":  # at first: it is trained all the same
        nn.init.zeros_(layer.bias)
    if frozen is not None:
        [*layer.parameters()][frozen].requires_grad_(False)
    return layer


def given(kind, seed, width, inner):
    """Input and upstream gradient, the same on all ranks."""
    draw = torch.Generator().manual_seed(seed + 1)
    if kind == "embedding":
        return torch.randint(inner, (3, 7), generator=draw), torch.randn(3, 7, width, generator=draw)
    inputs, outputs = {"column": (width, inner), "row": (inner, width)}.get(kind, (width, width))
    return torch.randn(3, 7, inputs, generator=draw), torch.randn(3, 7, outputs, generator=draw)


STEPS, RATE = 3, 0.01


@torch.no_grad()
def sgd(module, rate):
    for p in module.parameters():
        if p.grad is not None:
            p -= rate * p.grad
            p.grad = None


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


class Largest(TorchDispatchMode):
    """The largest floating-point tensor that an operation returns while it is entered."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.numbers = max(self.numbers, tensor.numel())
        return result


def layer_on_rank(code, rank, world, own, kind, seed, **sizes):
    """The student's layer compared with what the serial one would do. Marked cases: made, forward, the question whether
    all is right, backward, steps.
    """
    whole = made(kind, seed, **sizes)
    x, upstream = given(kind, seed, sizes["width"], sizes["inner"])
    shape = upstream.shape
    if kind == "row":
        x = cut(x, 2, rank, world).contiguous()
    if kind == "column":
        upstream = cut(upstream, 2, rank, world).contiguous()
        shape = upstream.shape
    x = x.requires_grad_(kind != "embedding")
    mark()
    with Storages(whole.parameters()) as storages:
        layer = getattr(code, LAYER[kind][0])(whole, rank, world)
        places = {p.untyped_storage().data_ptr() for p in whole.parameters()}
        common = [name for name, p in layer.named_parameters() if p.untyped_storage().data_ptr() in places]
        del whole, places
        gc.collect()
        seen = {"held": sum(storages.bytes_alive().values()), "common": common}
    seen |= {kind: {} for kind in ("weights", "sharded", "gradients", "trained")}
    for name, p in layer.named_parameters():
        seen["weights"][name], seen["sharded"][name], seen["trained"][name] = (
            p.detach().clone(),
            bool(getattr(p, "sharded", False)),
            p.requires_grad,
        )
    mark()
    with Largest() as largest:
        y = layer(x)
        fault = fault_of(y, shape)
    seen["fault"] = fault
    if not all_right(fault):
        return seen
    seen["y"] = y.detach().clone()
    mark()
    if y.requires_grad:
        with largest:
            y.backward(upstream)
    mark()
    seen["largest"] = largest.numbers
    seen["x"] = None if x.grad is None else x.grad.clone()
    seen["gradients"] = {name: None if p.grad is None else p.grad.clone() for name, p in layer.named_parameters()}
    sgd(layer, RATE)
    for _ in range(STEPS - 1):
        y = layer(x)
        if y.requires_grad:
            y.backward(upstream)
        sgd(layer, RATE)
    seen["last"] = layer(x).detach()
    if kind in ("column", "row"):
        seen["a row"], seen["rows of rows"] = layer(x[0, 0]).detach(), layer(x[None]).detach()
    return seen


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


def shards_on_rank(code, rank, world, shapes):
    """my_shard for ranks of other worlds, too: values, and the bytes that a shard keeps alive."""
    seen = []
    for shape, dim, n, turned in shapes:
        whole = torch.arange(float(math.prod(shape))).view(shape)
        whole = whole.mT.contiguous().mT if turned else whole
        for r in range(n):
            part = code.my_shard(whole, dim, r, n)
            fault = fault_of(part, cut(whole, dim, r, n).shape)
            seen.append(
                {"fault": fault}
                if fault
                else {
                    "fault": "",
                    "part": part,
                    "bytes": part.untyped_storage().nbytes(),
                    "contiguous": part.is_contiguous(),
                }
            )
    return seen


VIEW = "A slice is a view: it has the strides of the whole tensor, and keeps it alive. What makes a tensor of its own?"


def check_my_shard(student, shapes):
    (seen,) = student.call(shards_on_rank, world=1, group=False, shapes=shapes).evidence
    ranks = [(shape, dim, r, n, turned) for shape, dim, n, turned in shapes for r in range(n)]
    for (shape, dim, r, n, turned), mine in zip(ranks, seen, strict=True):
        whole = torch.arange(float(math.prod(shape))).view(shape)
        right, told = (
            cut(whole, dim, r, n),
            f"my_shard of a {'transposed ' * turned}tensor of shape {tuple(shape)}, along dimension {dim}, for rank {r}"
            f" of {n}",
        )
        with hinted(
            "Along which dimension is it cut? A part is rounded up: where does the one of rank r begin, and end?"
        ):
            expect(not mine["fault"], f"{told} is {mine['fault']}", tuple(right.shape), mine["fault"])
            check_tensor(told, mine["part"], right)
        contiguous = mine["contiguous"]
        expect(contiguous, f"{told} is not contiguous", "a contiguous tensor", "strides of the whole one", hint=VIEW)
        expect(
            mine["bytes"] <= 4 * right.numel(),
            f"{told} keeps {mine['bytes']} bytes alive, its {right.numel()} numbers need {4 * right.numel()}: "
            "it is a view of the whole tensor",
            f"{4 * right.numel()} bytes",
            f"{mine['bytes']} bytes",
            hint=VIEW,
        )


@todo(
    3,
    minutes=15,
    needs=(2,),
    why=(
        "These two layers are the core of tensor parallelism; the rest is where to put them. A bias added "
        "before the sum counts t times, and that does not show as long as biases are 0."
    ),
    hints=(
        (
            "Which dimension is cut? torch's weight is (outputs, inputs). The column-parallel layer has some "
            "of the outputs, the row-parallel one some of the inputs."
        ),
        (
            "A slice from split is a view: it keeps the whole tensor alive, so clone it, contiguous. One "
            "layer cuts dimension 0, the other dimension 1. What does each do with its bias?"
        ),
        "Forward, the row-parallel layer is join(F.linear(x, self.weight)), and something comes after it.",
    ),
)
def test_todo3_linear(student):
    draw = student.draw("linear")
    shapes = [
        [[7, 3], 0, 3],
        [[4, 6], 1, 2],
        [[4, 6], 1, 4],
        [[5], 0, 2],
        [[6, 4, 5], 2, 3],
        [[draw.randrange(9, 20), 2], 0, draw.randrange(2, 5)],
    ]
    shapes = [(shape, dim, n, False) for shape, dim, n in shapes if (n - 1) * -(-shape[dim] // n) < shape[dim]]
    shapes += [([6, 4], dim, 2, True) for dim in (0, 1)]
    trials = {world: [] for world in (1, 2, 3, 4)}
    for world in trials:
        with_bias = "of zeros" if world == 3 else True
        for kind, bias in (("column", with_bias), ("row", with_bias), ("column", False), ("row", False)):
            inner = draw.choice([n for n in range(9, 25) if has_all(n, world)])
            frozen = 0 if not bias and world == 2 else None
            trials[world].append(drawn(draw, kind, draw.randrange(5, 11), inner, bias=bias, frozen=frozen))
    seed = draw.randrange(1 << 30)
    jobs = layer_jobs(student, trials)
    check_my_shard(student, shapes)
    done = check_layers(student, jobs, [(1, joined_on_rank, dict(seed=seed), None)])
    ((_, _, (seen,), _),) = done[joined_on_rank]
    right = student.reference(serial_joined, seed=seed)
    told = "RowLinear given another `join` than g"
    with hinted(JOIN):
        expect(not seen["fault"], f"{told} returns {seen['fault']}", tuple(right.shape), seen["fault"])
        check_tensor(f"the output of {told}", seen["y"], right, REL, than="the result, with the bias added last")


JOIN = "Here `join` is a different function from g. Is it the one that is called, and what comes before and after it?"


def joined_on_rank(code, rank, world, own, seed):
    """A row-parallel layer of rank 1 of 2, whose partial sum is joined by tripling it."""
    layer = code.RowLinear(made("row", seed, 4, 6, 1, True, None), 1, 2)
    y = layer(given("row", seed, 4, 6)[0][..., 3:], lambda partial: 3 * partial)
    return {"fault": fault_of(y, (3, 7, 4)), "y": y.detach() if isinstance(y, torch.Tensor) else None}


def serial_joined(seed):
    layer = made("row", seed, 4, 6, 1, True, None)
    return (3 * given("row", seed, 4, 6)[0][..., 3:] @ layer.weight[:, 3:].T + layer.bias).detach()


def drawn(draw, kind, width, inner, heads=1, bias=False, frozen=None):
    """A trial of a layer. `frozen`: the number of its parameter that is not trained."""
    seed = draw.randrange(1 << 30)
    return dict(kind=kind, seed=seed, width=width, inner=inner, heads=heads, bias=bias, frozen=frozen)


def has_all(size, world):
    """Whether each rank gets something."""
    return (world - 1) * -(-size // world) < size


@todo(
    4,
    minutes=5,
    needs=(2, 3),
    why=(
        "Cut in the other order, the MLP needs an all-reduce before GELU, or computes something else: GELU of"
        " a sum is not the sum of GELUs."
    ),
    hints=(
        (
            "After which of the two layers does each rank have whole columns of the hidden layer, to which "
            "GELU can be applied at once?"
        ),
        (
            "One of self.up and self.down is a ColumnLinear, the other a RowLinear. Where do self.enter and "
            "self.join go?"
        ),
        (
            "self.enter is applied to x first; RowLinear takes self.join as its second argument. The rest is "
            "the serial line."
        ),
    ),
)
def test_todo4_mlp(student):
    draw = student.draw("mlp")
    trials, places = {}, dict(zip((2, 3, 4), (place for place, _ in frozen_in_turn(draw, 4))))
    for world in (1, 2, 3, 4):
        width = draw.choice((5, 6, 7))
        trials[world] = [
            drawn(draw, "mlp", width, 4 * width),
            drawn(draw, "mlp", width, 4 * width, bias=True, frozen=places.get(world)),
        ]
    sizes = dict(kind="mlp", seed=draw.randrange(1 << 30), width=6, inner=24, heads=1)
    done = check_layers(student, layer_jobs(student, trials), [(2, borders_on_rank, sizes, sizes)])
    check_borders_used(student, done)


@todo(
    5,
    minutes=25,
    needs=(2, 3),
    why=(
        "Heads are the natural unit of attention: they are independent until `out`. And heads that do not "
        "divide should be refused before the first step, in a line that names both numbers."
    ),
    hints=(
        (
            "The serial forward pass hardly changes. Ask for each of the four layers: does it have whole "
            "heads as outputs, or as inputs?"
        ),
        (
            "The number of heads is out_features / head_dim of `whole`. self.enter is applied once, to x, "
            "before q, k and v; self.join belongs to the last layer."
        ),
        (
            "view(B, T, -1, self.head_dim) finds out how many heads this rank has. The error is raised before"
            " any layer is made."
        ),
    ),
)
def test_todo5_attention(student):
    draw = student.draw("attention")
    trials, places = {world: [] for world in (1, 2, 3, 4)}, {}
    for world, (place, _) in zip((2, 3, 2), frozen_in_turn(draw, 4)):
        places.setdefault(world, []).append(place)
    for world in trials:
        for place in (None, *places.get(world, ())):
            heads = world * draw.randrange(1 if world > 2 else 2, 4)
            trials[world].append(drawn(draw, "attention", heads * draw.randrange(2, 4), 1, heads, frozen=place))
    sizes = dict(kind="attention", seed=draw.randrange(1 << 30), width=12, inner=1, heads=4)
    more = [(2, borders_on_rank, sizes, sizes)]
    more += [(world, refused_on_rank, dict(most=2 * world + 2), None) for world in (2, 3, 4)]
    for world in (2, 3):  # a head a rank is just enough
        trials[world].append(drawn(draw, "attention", 2 * world, 1, world))
    done = check_layers(student, layer_jobs(student, trials), more)
    check_borders_used(student, done)
    for world, _, ranks, _ in done[refused_on_rank]:
        check_refusals(
            [[((heads, world), said) for heads, said in enumerate(mine["said"], start=1)] for mine in ranks],
            refused=lambda heads, world: heads % world != 0,
            told=lambda heads, world: f"ParallelAttention of {count_of(heads, 'head')} on {count_of(world, 'rank')}",
            words=lambda heads, world: (heads, world),
            hint="Which two numbers decide whether each rank gets whole heads, and at which line are both known?",
        )


def refused_on_rank(code, rank, world, own, most):
    """What the layer says when it is made of one head, of two, and so on."""
    wholes = [Attention(2 * heads, heads, 0.0) for heads in range(1, most + 1)]
    return {"said": [raised(lambda whole=whole: code.ParallelAttention(whole, rank, world)) for whole in wholes]}


def borders_on_rank(code, rank, world, own, kind, seed, width, inner, heads):
    """With the check's own boundary functions: how often each is called, and on what."""
    calls = {"enter": [], "join": []}

    def boundary(name, x):
        calls[name].append(list(x.shape) if isinstance(x, torch.Tensor) else None)
        return 2 * x

    def forward():
        nonlocal y
        layer = getattr(code, LAYER[kind][0])(
            made(kind, seed, width, inner, heads, False, None),
            rank,
            world,
            lambda x: boundary("enter", torch.cat([x, x], dim=1)),  # tokens may well come in there
            lambda x: boundary("join", x),
        )
        with torch.no_grad():
            layer(given(kind, seed, width, inner)[0])
        y = layer(given(kind, seed, width, inner)[0])

    y = None
    if error := raised(forward):
        return {"error": f"{error['error']}: {error['text']}"}
    # No "fault", at which all ranks would have to stop.
    return calls | {"not due": fault_of(y, (3, 14, width)), "y": y.detach() if isinstance(y, torch.Tensor) else None}


def serial_borders(kind, seed, width, inner, heads):
    """What the ranks' outputs add up to: each rank's partial sum is joined by doubling it."""
    x = given(kind, seed, width, inner)[0]
    return 2 * made(kind, seed, width, inner, heads, False, None)(2 * torch.cat([x, x], dim=1)).detach()


def times(number):
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


@hinted(BORDERS)
def check_borders_used(student, done):
    """The boundary functions come as arguments: boundary functions other than f and g are used as well."""
    ((_, sizes, ranks, _),) = done[borders_on_rank]
    name = LAYER[sizes["kind"]][0]
    for rank, mine in enumerate(ranks):
        error = mine.get("error")
        told = f"{name}, made with an `enter` that returns twice as many tokens, fails on rank {rank}"
        expect(not error, f"{told}: {error}", "an output for all these tokens", error, rank, LONGER)
        for boundary in ("enter", "join"):
            expect(
                len(mine[boundary]) == 2,
                f"{name} made with a different `{boundary}` from {'f' if boundary == 'enter' else 'g'} calls it "
                f"{times(len(mine[boundary]))} in two forward passes, of which the first is without gradients",
                "twice",
                times(len(mine[boundary])),
                rank,
            )
        expect(
            not mine["not due"],
            f"{name} made with different boundary functions gives rank {rank} {mine['not due']}",
            (3, 14, sizes["width"]),
            mine["not due"],
            rank,
        )
    right = student.reference(serial_borders, **sizes)
    total = sum(mine["y"] for mine in ranks)
    told = f"{name} made with boundary functions other than f and g: the sum of the ranks' outputs"
    check_tensor(told, total, right, REL, than="twice the serial output")


@todo(
    6,
    minutes=10,
    needs=(2, 3),
    why=(
        "The table of words is often the largest parameter. A word that this rank does not have must "
        "contribute zeros, and not some row of the table."
    ),
    hints=(
        (
            "Three steps: which tokens are mine; look them up, with some harmless index for the others; make "
            "the others' rows zero."
        ),
        (
            "First words are spaced by the size of a part, rounded up, also on the last rank. A mask of two "
            "comparisons finds my tokens; (x - first).where(mask, 0) is harmless."
        ),
        "rows.where(mask[..., None], 0) makes the others' rows zero, and then join adds up the ranks.",
    ),
)
def test_todo6_embedding(student):
    draw = student.draw("embedding")
    trials = {world: [] for world in (1, 2, 3, 4)}
    for world in trials:
        for frozen in (None, 0)[: 2 if world == 3 else 1]:
            words = draw.choice([n for n in range(11, 30) if has_all(n, world) and (world == 1 or n % world)])
            trials[world].append(drawn(draw, "embedding", draw.randrange(3, 7), words, frozen=frozen))
    one = dict(seed=draw.randrange(1 << 30), words=11, width=4)
    more = [(3, one_word_on_rank, one, None), (1, joined_words_on_rank, one, None)]
    done = check_layers(student, layer_jobs(student, trials), more)
    ((_, _, (seen,), _),) = done[joined_words_on_rank]
    check_joined_words(seen, **one)
    ((world, _, ranks, _),) = done[one_word_on_rank]
    weight = made("embedding", one["seed"], one["width"], one["words"], 1, False, None).weight.detach()
    # Each of the 2 × 3 tokens adds 1 to the gradient of the last row.
    last_word = (torch.arange(one["words"])[:, None] == one["words"] - 1) * torch.full_like(weight, 6.0)
    told = f"ParallelEmbedding, all tokens being a word of rank {world - 1} of {world}"
    for rank, mine in enumerate(ranks):
        with hinted("Here most ranks have none of the words. What do they look up, and what do they add to the sum?"):
            expect(not mine["not due"], f"{told}: rank {rank} gets {mine['not due']}", (2, 3, 4), mine["not due"], rank)
            check_tensor(f"{told}: the output on rank {rank}", mine["y"], weight[-1].expand(2, 3, -1), REL, rank)
        what = f"{told}: the gradient of its rows on rank {rank}"
        check_tensor(what, mine["gradient"], cut(last_word, 0, rank, world), REL, rank, hint=ALL_TAKE_PART)


def joined_words_on_rank(code, rank, world, own, seed, words, width):
    """An embedding of rank 1 of 2, whose partial sum is joined by tripling it."""
    layer = code.ParallelEmbedding(made("embedding", seed, width, words, 1, False, None), 1, 2, lambda rows: 3 * rows)
    return {"y": as_evidence(layer(torch.arange(words)[None]))}


def check_joined_words(seen, seed, words, width):
    weight = made("embedding", seed, width, words, 1, False, None).weight.detach()
    right = 3 * weight * (torch.arange(words) >= -(-words // 2))[:, None]
    told = "the output of ParallelEmbedding given a different `join` than g"
    check_tensor(told, seen["y"], right[None], REL, than="what its `join` returned", hint=JOIN)


ALL_TAKE_PART = (
    "In part 2, `join` sends in the backward pass, too: a rank without a word of the batch must take part in it. Does"
    " its result depend on its rows, if only through zeros?"
)


def one_word_on_rank(code, rank, world, own, seed, words, width):
    """All tokens are the last word: the other ranks have none of them, and are needed all the same."""
    layer = code.ParallelEmbedding(made("embedding", seed, width, words, 1, False, None), rank, world)
    y = layer(torch.full((2, 3), words - 1))
    seen = {"not due": fault_of(y, (2, 3, width)), "y": y.detach() if isinstance(y, torch.Tensor) else None}
    if not seen["not due"] and y.requires_grad:
        y.backward(torch.ones_like(y))
    return seen | {"gradient": layer.weight.grad}


# ---------------------------------------------------------------------------------------------------
# TODO 7: the loss


def logits_and_targets(seed, words, tokens, kind, dtype, counted, ignore):
    """Logits of all words, and targets. counted: "all", "some" or "none" of them."""
    draw = torch.Generator().manual_seed(seed)
    usual = 2 * torch.randn(*tokens, words, generator=draw)
    logits = (all_kinds(seed, *tokens, words) if kind == "large" else usual).to(getattr(torch, dtype))
    y = torch.randint(words, tokens, generator=draw)
    if counted == "none":
        y = torch.full_like(y, ignore)
    if counted == "some":
        y[torch.rand(tokens, generator=draw) < 0.4] = ignore
        y[(0,) * len(tokens)] = ignore
        y[(-1,) * len(tokens)] = (ignore + 1) % words if ignore >= 0 else words - 1
    return logits, y


def serial_loss(**trial):
    logits, y = logits_and_targets(**trial)
    logits = logits.float().requires_grad_()
    total = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=trial["ignore"], reduction="sum")
    loss = total / (y != trial["ignore"]).sum().clamp(min=1)
    (3 * loss).backward()
    return {"loss": loss, "gradient": logits.grad}


def loss_on_rank(code, rank, world, own, **trial):
    """Marked cases: forward, the question whether all is right, backward, after."""
    logits, y = logits_and_targets(**trial)
    first = rank * -(-trial["words"] // world)
    mine = cut(logits, logits.dim() - 1, rank, world).contiguous().requires_grad_()
    before, targets = mine.detach().clone(), y.clone()
    del logits
    mark()
    loss = code.parallel_loss(mine, y, first, trial["ignore"])
    fault = fault_of(loss, ())
    if not all_right(fault):
        return {"fault": fault or "of another rank"}
    mark()
    if loss.requires_grad:
        (3 * loss).backward()
    mark()
    return {
        "fault": "",
        "loss": loss.detach().clone(),
        "dtype": str(loss.dtype),
        "gradient": None if mine.grad is None else mine.grad.clone(),
        "untouched": torch.equal(mine, before) and torch.equal(y, targets),
    }


@todo(
    7,
    minutes=15,
    needs=(2, 3, 4, 5, 6),
    why=(
        "The logits of a batch are larger than anything else in the step. A loss that gathers them gives away"
        " everything that cutting the head has saved."
    ),
    hints=(
        (
            "First the maximum, with its own collective. Then, from logits minus the maximum, each rank's part of two"
            " sums: the exponentials, and the target's logit."
        ),
        (
            "Take the maximum of detached logits, with ReduceOp.MAX. The target's logit: gather at y - first "
            "where that is a word of this rank, else 0. Both sums go through g, which has the gradient; "
            "stacked, they are one message."
        ),
        (
            "A token's loss is log of the one sum minus the other. The mean is over the targets that are not `ignore`;"
            " there may be none: clamp(min=1)."
        ),
    ),
)
def test_todo7_loss(student):
    draw = student.draw("loss")
    kinds = (
        ("some", "usual", "float32", IGNORE, 2),
        ("none", "usual", "float32", IGNORE, 2),
        ("all", "large", "float32", IGNORE, 2),
        ("some", "usual", "bfloat16", 3, 2),
        ("all", "usual", "float32", IGNORE, 1),
    )
    trials = []
    for world in (1, 2, 3, 4):
        for counted, kind, dtype, ignore, dimensions in kinds:
            words = draw.choice([n for n in range(40, 60) if has_all(n, world) and (world == 1 or n % world)])
            tokens = [draw.randrange(2, 4), draw.randrange(3, 7)][-dimensions:]
            how = dict(kind=kind, dtype=dtype, counted=counted, ignore=ignore)
            logits = (world - 1) * 4 * math.prod(tokens) * words / world
            few = world > 1 and logits <= four_a_token(world, math.prod(tokens))
            student.premise(not few, "a rank that gathers the logits")
            trials.append((world, dict(seed=draw.randrange(1 << 30), words=words, tokens=tokens, **how)))
    rights = [student.reference(serial_loss, **trial) for _, trial in trials]
    jobs = [(world, loss_on_rank, trial, (trial, right)) for (world, trial), right in zip(trials, rights)]
    done = in_one_run(student, jobs + [training_job(student, world) for world in (1, 2, 3, 4)])
    usual = {
        world: all(right_loss(mine, right) for mine in ranks)
        for world, (trial, right), ranks, _ in done[loss_on_rank]
        if (trial["kind"], trial["counted"]) == ("usual", "all")
    }
    for world, (trial, right), ranks, marked in done[loss_on_rank]:
        check_loss(world, trial, ranks, marked, right, usual.get(world))
    check_training(done)


def four_a_token(world, tokens):
    """Bytes that a rank sends in an all-gather of four numbers a token; all-reduces take less."""
    return (world - 1) * 4 * 4 * tokens


def check_loss(world, trial, ranks, events, right, usual_is_right):
    large = "large " * (trial["kind"] == "large")
    size = f"{large}logits, {trial['dtype']}, of {math.prod(trial['tokens'])} tokens"
    which = {"some": "some targets ignored", "none": "all targets ignored", "all": "no target ignored"}[
        trial["counted"]
    ]
    which += ", ignore = 3" if trial["ignore"] == 3 else ""
    told = f"parallel_loss of {size} and {trial['words']} words, {which}, on {count_of(world, 'rank')}"
    for rank, mine in enumerate(ranks):
        hint = "The loss is one number: a sum over the tokens that count, divided by how many they are."
        what = f"{told} is {mine['fault']} on rank {rank}"
        expect(not mine["fault"], what, "a 0-dim tensor", mine["fault"], rank, hint)
    for rank, mine in enumerate(ranks):
        dtype, seen = mine["dtype"].removeprefix("torch."), mine["gradient"]
        hint = "The loss has one dtype, whatever the logits have. In which one are the exponentials added up?"
        expect(dtype == "float32", f"{told} has dtype {dtype}", "float32", dtype, rank, hint)
        loss, expected = mine["loss"].item(), right["loss"].item()
        hint = loss_hint(**trial) if usual_is_right else ""
        told_wrong = f"{told} is wrong on rank {rank}"
        expect(right_loss(mine, right), told_wrong, f"{expected:.6f}", f"{loss:.6f}", rank, hint)
        share = cut(right["gradient"], right["gradient"].dim() - 1, rank, world)
        rel = 2**-7 if trial["dtype"] == "bfloat16" else REL  # bfloat16 has 8 bits
        check_tensor(
            f"{told}: the gradient of the logits on rank {rank}",
            seen,
            share,
            rel,
            rank,
            dtype=getattr(torch, trial["dtype"]),
            scale=right["gradient"].norm().item(),  # a share may be all but zero where the whole is not
            hint="The loss is right. Which of the collectives does autograd see, and what does each do backward?",
        )
        message = f"{told}: rank {rank} changes the logits or targets that it is given"
        expect(mine["untouched"], message, "as they were", "changed", rank, GIVEN)
    n = math.prod(trial["tokens"])
    most = four_a_token(world, n)
    both = [forward + backward for forward, backward in zip(events[0], events[2])]
    why = "forward and backward, four numbers a token are enough"
    hint = "Of each token, a rank needs three numbers from the others. Which tensor with more than those is sent?"
    check_sent(told, both, most, ring_bytes(4 * 2 * n, world), why, hint=hint)


def right_loss(mine, right):
    return not mine["fault"] and math.isclose(mine["loss"].item(), right["loss"].item(), rel_tol=REL, abs_tol=1e-6)


def loss_hint(kind, counted, ignore, **_):
    """For a wrong loss of such logits and targets, where it is right for usual logits and targets that all count."""
    if counted == "none":
        return "No target counts here. What are the sum and the number that it is divided by?"
    if counted == "some":
        more = " Here the number that says so is not the usual one." if ignore != IGNORE else ""
        return f"Some targets do not count. Which tokens are in the sum, and by how many is it divided?{more}"
    if kind == "large":
        return "e to the power of 100 is infinite in float32. What is subtracted first, and is it one for all ranks?"
    return ""


# ---------------------------------------------------------------------------------------------------
# TODOs 7, 9 and 11: the whole model

DIM, HEADS, LENGTH = 24, 12, 12  # all numbers of ranks up to 4 divide the heads and the sequence


def language_model(seed, words):
    """The course's, with biases in its MLP, and weights large enough to matter."""
    torch.manual_seed(seed)
    model = TransformerLM(words, dim=DIM, n_heads=HEADS, n_layers=1, max_len=LENGTH)
    mlp = model.blocks[0].mlp
    mlp.up, mlp.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return model


def samples(seed, words, step):
    draw = torch.Generator().manual_seed(seed + step)
    x, y = torch.randint(words, (2, LENGTH), generator=draw), torch.randint(words, (2, LENGTH), generator=draw)
    y[torch.rand(y.shape, generator=draw) < 0.2] = IGNORE
    return x, y


LR, LONG, CLIP = 0.1, 3, 1.0


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


def training_on_rank(code, rank, world, own, seed, words, sequence, clip):
    """The student's model; four marked cases in the first step: forward, backward, gradients finished, norm."""
    model = code.ParallelLM(language_model(seed, words), rank, world, sequence)
    seen = {"losses": [], "norms": [], "gradients": {}}
    for step in range(LONG):
        x, y = samples(seed, words, step)
        mark()
        loss = model(x, y)
        mark()
        loss.backward()
        mark()
        if sequence:
            code.finish_gradients(model.parameters())
        if step == 0:
            seen["gradients"] = {
                name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
            }
        mark()
        scale = 1.0
        if clip:
            norm = code.gradient_norm(model.parameters())
            seen["norms"].append(float(norm) if isinstance(norm, (torch.Tensor, float)) else float("nan"))
            scale = min(1.0, clip / seen["norms"][-1])
        seen["losses"].append(loss.item())
        sgd(model, LR * scale)
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


def finished_on_rank(code, rank, world, own, cases):
    """Gradients of copies and of shards; one parameter is frozen, and one is trainable and was not used."""
    seen = []
    for kinds in cases:
        parameters = [nn.Parameter(torch.zeros(shape)) for shape in ((3, 2), (4,), (1,), (2, 2), (5,), (2, 3), (3,))]
        for number, (p, kind) in enumerate(zip(parameters, kinds, strict=True)):
            p.requires_grad_(kind != "a frozen one")
            if kind in ("a copy", ZEROS, "a shard"):
                number_of_all = 0 if kind == ZEROS and rank == 0 else small(own) + 100 * number
                p.grad = torch.full(p.shape, float(number_of_all))
            if kind == "a shard":
                p.sharded = True
        code.finish_gradients(iter(parameters))
        # Where no copy is trained, nothing is to do.
        code.finish_gradients(iter([p for p, kind in zip(parameters, kinds) if kind in ("a shard", "a frozen one")]))
        seen.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return seen


ZEROS = "a copy that is zero on rank 0"


def small(seed):
    """A number of this rank's, which float32 adds up exactly."""
    return 1 + seed % 1009


@todo(
    9,
    minutes=5,
    further=True,
    needs=(2, 3, 4, 5, 6, 7, 8),
    why=(
        "This is easily forgotten: nothing fails, the first loss is exact, and the copies drift apart from "
        "the first step on."
    ),
    hints=(
        (
            "With sequence parallelism a rank's norms, position embedding and row-parallel biases have seen its own"
            " tokens only. What distinguishes these parameters from all others?"
        ),
        (
            "is_sharded(parameter) tells shards from copies. dist.all_reduce(parameter.grad) sums in place; a"
            " frozen parameter has no gradient."
        ),
        "One loop, two conditions, one collective.",
    ),
)
def test_todo9_finished(student):
    jobs = [training_job(student, world, sequence=True) for world in (2, 3, 4)]
    # In a separate run: where shards are added up, too, the model stops before it can report that.
    trials = []
    for place, unused in frozen_in_turn(student.draw("finished"), 7):
        trials.append([*["a copy", "a shard"] * 3, "a copy"])
        trials[-1][place], trials[-1][unused] = "a frozen one", "one that was not used"
    trials.append([*["a copy", ZEROS, "a shard"] * 2, "a copy"])
    done = in_one_run(student, [(world, finished_on_rank, dict(cases=trials), None) for world in (2, 3)])
    for world, _, ranks, _ in done[finished_on_rank]:
        numbers = [small(seed) for seed in student.seeds(3)[:world]]
        for rank, seen in enumerate(ranks):
            for kinds, grads in zip(trials, seen, strict=True):
                check_finished(world, rank, numbers, kinds, grads)
    check_training(in_one_run(student, jobs))


def check_finished(world, rank, numbers, kinds, grads):
    for number, (what, grad) in enumerate(zip(kinds, grads, strict=True)):
        told = f"finish_gradients on {count_of(world, 'rank')}: the gradient of {what} on rank {rank}"
        if what not in ("a copy", ZEROS, "a shard"):
            told = f"finish_gradients makes a gradient for {what.replace('one', 'parameter')}"
            hint = "Such a parameter has no gradient on any rank. Is there anything to sum?"
            expect(grad is None, told, "None", "a gradient", rank, hint)
            continue
        every = [a_number + 100 * number for a_number in numbers]
        right = float({"a copy": sum(every), ZEROS: sum(every[1:]), "a shard": every[rank]}[what])
        expect(grad is not None, f"{told} is gone", right, "None", rank)
        wanted = torch.full(grad.shape, right)
        why = (
            "The loss is already divided by the tokens of all ranks. Is there anything left to divide its gradients by?"
        )
        mean = {"the mean of all ranks, not the sum": (wanted / world, why)} if what != "a shard" else {}
        check_tensor(told, grad, wanted, 0.0, rank, wrongs=mean)


def norm_on_rank(code, rank, world, own, common, dtype):
    """Gradients of copies (alike), of shards (this rank's), none; and of shards alone, copies alone, nothing, a shard
    that is zero on all ranks but the first.
    """
    parameters = gradients_for(own, common, dtype, rank)
    seen = []
    for chosen in CHOSEN:
        mark()
        norm = code.gradient_norm(iter([parameters[n] for n in chosen]))
        fault = fault_of(norm, ())
        all_right("")  # a rank that sent nothing is told so here, and not in what comes next
        seen.append(
            {
                "fault": fault,
                "norm": None if fault else norm.double(),
                "dtype": None if fault else str(norm.dtype).removeprefix("torch."),
                "kept": all(
                    p.grad is None or torch.equal(p.grad, q.grad)
                    for p, q in zip(parameters, gradients_for(own, common, dtype, rank))
                ),
            }
        )
    return seen


SHARDS = 1, 3, 4, 5  # many enough that a message for each is too many
ZERO = 7
CHOSEN = ((6, *range(6)), SHARDS, (0, 2), (6,), (ZERO,))


def gradients_for(seed, common, dtype, rank):
    parameters = [
        nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)))
        for shape in ((3, 2), (4, 3), (5,), (2, 2), (7,), (2, 3), (5,), (3,))
    ]
    own, alike = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(common)
    for number, p in enumerate(parameters[:6]):
        p.sharded = number in SHARDS
        p.grad = torch.randn(p.shape, generator=own if p.sharded else alike).to(p.dtype)
    parameters[ZERO].sharded = True
    parameters[ZERO].grad = torch.full_like(parameters[ZERO], 0.0 if rank else 3.0)
    return parameters


def whole_norm(chosen, seeds, common, dtype):
    """The norm of the chosen gradients over all ranks; those that are not sharded count once."""
    squares = 0.0
    for rank, seed in enumerate(seeds):
        every = gradients_for(seed, common, dtype, rank)
        parts = [every[n] for n in chosen if every[n].grad is not None]
        squares += sum(p.grad.double().square().sum().item() for p in parts if p.sharded or rank == 0)
    return math.sqrt(squares)


def counted(norm, chosen, seeds, common, dtype):
    """What a wrong norm counts too often or not at all; "" if no single one of these mistakes gives it."""
    shards, copies = (
        whole_norm([n for n in chosen if (n in (*SHARDS, ZERO)) == cut], seeds, common, dtype) ** 2
        for cut in (True, False)
    )
    named = {
        ": each copy is counted once on every rank": math.sqrt(shards + len(seeds) * copies),
        ": copies are left out": math.sqrt(shards),
        ": shards are left out": math.sqrt(copies),
        ": that is its square": shards + copies,
        ": two norms are added, not their squares": math.sqrt(shards) + math.sqrt(copies),
    }
    found = [words for words, wrong in named.items() if math.isclose(norm, wrong, rel_tol=REL)]
    return found[0] if len(found) == 1 else ""


@todo(
    11,
    minutes=15,
    further=True,
    needs=(2, 3, 4, 5, 6, 7, 8, 9),
    why=(
        "The norm of one rank's shards is too small, and a sum over all ranks counts every copy t times. "
        "Either way each step has the wrong length, and Adam hides it."
    ),
    hints=(
        ("Two sums of squares, one of shards and one of copies. Which of them must be summed over the ranks?"),
        "is_sharded(parameter) tells which. parameter.grad.float().square().sum() is a 0-dim tensor.",
        (
            "Both sums start as torch.zeros(()). All ranks must all-reduce, also a rank whose sum is 0; the "
            "root comes last."
        ),
    ),
)
def test_todo11_norm(student):
    common = student.draw("common").randrange(1 << 40)
    jobs = []
    for world, dtype in ((1, "float32"), (2, "bfloat16"), (3, "float32"), (4, "float32")):
        jobs.append((world, norm_on_rank, dict(common=common, dtype=dtype), dtype))
    jobs += [training_job(student, world, clip=CLIP) for world in (2, 3)]
    jobs.append(training_job(student, 4, sequence=True, clip=CLIP))
    done = in_one_run(student, jobs)
    for world, dtype, ranks, marked in done[norm_on_rank]:
        seeds = student.seeds(4)[:world]
        for number, chosen in enumerate(CHOSEN):
            what = (
                "shards, copies and a frozen one",
                "shards",
                "copies",
                "a frozen one",
                "a shard that is zero on all ranks but 0",
            )[number]
            told = f"gradient_norm of {what}, {dtype}, on {count_of(world, 'rank')}"
            right = whole_norm(chosen, seeds, common, dtype)
            for rank, seen in enumerate(ranks):
                mine = seen[number]
                expect(
                    not mine["fault"],
                    f"{told} is {mine['fault']} on rank {rank}",
                    "a 0-dim tensor",
                    mine["fault"],
                    rank,
                    "The norm is one number, also where there is nothing to add up. As what do the sums start?",
                )
                expect(
                    math.isclose(mine["norm"].item(), right, rel_tol=REL, abs_tol=1e-9),
                    f"{told} is wrong on rank {rank}{counted(mine['norm'].item(), chosen, seeds, common, dtype)}",
                    right,
                    mine["norm"].item(),
                    rank,
                )
                expect(mine["kept"], f"{told}: the gradients are changed by it", "as they were", "changed", rank, GIVEN)
                expect(
                    mine["dtype"] == "float32",
                    f"{told} has dtype {mine['dtype']} on rank {rank}",
                    "float32",
                    mine["dtype"],
                    rank,
                    "The result has one dtype, whatever the gradients have. In which one are squares taken and added"
                    " up?",
                )
                calls = [event for event in marked[2 * number][rank] if event["e"] == "op"]
                expect(
                    len(calls) <= 1 and sum(map(numbers_in, calls)) <= 1,
                    f"{told}: rank {rank} sends more than one message of one number",
                    "one call of one number",
                    f"{len(calls)} calls of {sum(map(numbers_in, calls))} numbers",
                    rank,
                    ONE_NUMBER,
                )
            if 1 in chosen:
                due = ring_bytes(8, world), ring_bytes(4, world)
                check_sent(told, marked[2 * number], *due, "one number is enough", hint=ONE_NUMBER)
    check_training(done)


ONE_NUMBER = "Of all its shards, what must a rank tell the others? What can it add up before it sends anything?"


# ---------------------------------------------------------------------------------------------------
# TODO 12: dropout

PLACES = ("embedding", "attention", "hidden", "residual")


MANY = 64  # ranks; rank 0 asks for the generator of each: to make one takes no other rank


def dropped_on_rank(code, rank, world, seed, p):
    """Masks of both generators; dropout's arithmetic; which generator where."""
    made = code.make_generators(seed, rank)
    if not (
        isinstance(made, (tuple, list)) and len(made) == 2 and all(isinstance(one, torch.Generator) for one in made)
    ):
        return {"made": False}
    x = 1 + torch.rand(40, 50, generator=torch.Generator().manual_seed(seed))
    seen = {"made": True, "masks": [], "fault": "", "x": x}
    seen["torch's own"] = [one is torch.default_generator for one in made]
    for generator in made:
        for _ in range(2):
            x_ = x.clone().requires_grad_()
            # An answer that draws from the common source, and not from the generator, draws the same again.
            torch.manual_seed(5)
            y = code.dropout(x_, p, generator)
            seen["fault"] = (
                seen["fault"]
                or fault_of(y, x.shape)
                or ("" if y.requires_grad else "a tensor that autograd does not track")
            )
            if seen["fault"]:
                return seen
            y.sum().backward()
            seen["masks"].append({"y": y.detach().clone(), "gradient": x_.grad.clone()})
    whole = code.dropout(x, 0.0, made[0])
    seen["none"] = bool(fault_of(whole, x.shape)) or torch.equal(whole, x)
    half = code.dropout(x.bfloat16(), p, made[0])
    seen["half"] = str(half.dtype) if isinstance(half, torch.Tensor) else type(half).__name__
    again = code.make_generators(seed, rank)
    seen["again"] = all(
        torch.equal(code.dropout(x, p, generator), mask["y"]) for generator, mask in zip(again, seen["masks"][::2])
    )
    other = code.make_generators(seed + 1, rank)
    seen["seed"] = any(
        torch.equal(code.dropout(x, p, generator), mask["y"]) for generator, mask in zip(other, seen["masks"][::2])
    )
    seen["of many"] = [many_draws(code, seed), many_draws(code, 0)]
    seen["alike"] = {
        place: [plain_bool(code.draws_alike(place, sequence)) for sequence in (False, True)] for place in PLACES
    }
    return seen


def many_draws(code, seed):
    """What the common generator draws, and then each rank's own."""
    common, _ = code.make_generators(seed, 0)
    generators = [common] + [code.make_generators(seed, r)[1] for r in range(MANY)]
    return [torch.randint(1 << 62, (1,), generator=generator).item() for generator in generators]


def plain_bool(value):
    return bool(value) if isinstance(value, (bool, int)) else repr(value)[:40]


@todo(
    12,
    minutes=10,
    further=True,
    why=(
        "Copies with different masks stop being copies, without any error; heads with the same mask get less"
        " regularization than dropout promises."
    ),
    hints=(
        (
            "Ask for each place: has every rank the same numbers there, or its own? Without sequence "
            "parallelism the stream is a copy, with it each rank has its tokens."
        ),
        (
            "torch.Generator().manual_seed(number): one number for all ranks, and one more for each rank, all"
            " different. torch.rand(x.shape, generator=generator) is at least p with probability 1 - p."
        ),
        ("x times a mask, over 1 - p. Two of the four places are always parts; the other two depend on `sequence`."),
    ),
)
def test_todo12_dropout(student):
    world, draw = 4, student.draw("dropout")
    p, seed = draw.choice((0.1, 0.25, 0.4)), draw.randrange(1 << 30)
    ranks = student.call(dropped_on_rank, world=world, group=False, seed=seed, p=p).evidence
    for rank, mine in enumerate(ranks):
        expect(
            mine["made"],
            f"make_generators on rank {rank} does not return two generators",
            "two torch.Generator",
            "something else",
            rank,
            "Two generators, the common one first. What does manual_seed of a generator return?",
        )
        for kind, torchs_own in zip(("common", "own"), mine["torch's own"]):
            message = (
                f"the {kind} generator on rank {rank} is torch's default one: every other draw on the rank advances it"
            )
            expect(not torchs_own, message, "a new torch.Generator", "torch.default_generator", rank, GLOBAL)
        told = f"dropout with p = {p} on rank {rank}"
        same, hint = "a tensor of the same shape", PRODUCT
        expect(not mine["fault"], f"{told} returns {mine['fault']}", same, mine["fault"], rank, hint)
        for mask in mine["masks"]:
            check_mask(told, mine["x"], mask, p, rank)
        check_repeated(told, mine, rank)
    check_same_masks(ranks)
    check_many(ranks[0]["of many"])
    check_alike(ranks[0]["alike"])


GLOBAL = "Which call makes a generator, and which one seeds the generator that everything else draws from?"
SCALED = "What stays is scaled so that the mean is as before. By what, if a fraction p is gone?"
EACH = "With which probability is each number dropped, whatever happens to the others?"
PRODUCT = "Dropout is a product of x with a mask of its shape. Which line makes something else of it?"


def check_mask(told, x, mask, p, rank):
    """Numbers that are dropped, in the share that is asked for; the others, scaled, forward and backward alike."""
    dropped = mask["y"] == 0
    kept = (~dropped).float() / (1 - p)
    check_tensor(f"{told}: what stays, which is divided by 1 - p,", mask["y"], x * kept, 1e-5, rank, hint=SCALED)
    for dim, alike in (("first", (dropped == dropped[:1]).all()), ("second", (dropped == dropped[:, :1]).all())):
        message = f"{told}: all entries along the {dim} dimension are dropped together"
        expect(not alike, message, "a draw for each number", "a mask that repeats", rank, EACH)
    share = dropped.float().mean().item()
    # Five standard deviations of 2000 draws.
    near_p = abs(share - p) < 5 * math.sqrt(p * (1 - p) / 2000)
    expect(near_p, f"{told}: {share:.1%} of the numbers are dropped", f"about {p:.0%}", f"{share:.1%}", rank, EACH)
    than = "what the same mask gives"
    check_tensor(f"{told}: the gradient", mask["gradient"], kept, 1e-5, rank, than=than, hint=PRODUCT)


SEEDS = (
    "Write down the seeds of both generators on ranks 0, 1 and 2, for two values of `seed`. Which must be equal, and"
    " which must all differ?"
)


def check_repeated(told, mine, rank):
    """What one rank draws again: from the same generator, with p = 0, in bfloat16, from the same seed, from another."""
    for kind, (first, second) in (("common", (0, 1)), ("own", (2, 3))):
        expect(
            not torch.equal(mine["masks"][first]["y"], mine["masks"][second]["y"]),
            f"{told} draws the same mask twice from the {kind} generator",
            "the generator moves on",
            "the same mask",
            rank,
            "From which generator does the mask come: the one that is given, or one that this very call makes?",
        )
    none = f"dropout with p = 0 changes its input on rank {rank}"
    hint = "With p = 0 nothing may be dropped. Which is the smallest number that torch.rand draws?"
    expect(mine["none"], none, "the input", "something else", rank, hint)
    expect(
        mine["half"] == "torch.bfloat16",
        "dropout of a bfloat16 tensor has a different dtype",
        "bfloat16",
        mine["half"].removeprefix("torch."),
        rank,
        "A product of two dtypes has the larger one. Which of the factors is not in the dtype of x?",
    )
    told = f"the same seed gives rank {rank} a different mask the second time"
    expect(mine["again"], told, "the same mask", "a different one", rank, SEEDS)
    expect(
        not mine["seed"],
        f"a different seed gives rank {rank} the same mask",
        "a different mask",
        "the same",
        rank,
        SEEDS,
    )


@hinted(SEEDS)
def check_same_masks(ranks):
    """The common generator gives all ranks one mask, their own give each a different one."""
    for rank, mine in enumerate(ranks):
        common, own = mine["masks"][0]["y"], mine["masks"][2]["y"]
        expect(
            torch.equal(common, ranks[0]["masks"][0]["y"]),
            f"the generator that should be the same on all ranks gives rank {rank} a different mask from rank 0's",
            "the same mask",
            "a different one",
            rank,
        )
        told = f"rank {rank}'s own generator draws the common mask"
        expect(not torch.equal(own, common), told, "a different one", "the same", rank)
        for other in range(rank):
            told = f"ranks {other} and {rank} draw the same mask from their own generators"
            expect(not torch.equal(own, ranks[other]["masks"][2]["y"]), told, "different masks", "the same", rank)


@hinted("Here are many ranks, and once the seed is 0. Which two of the numbers that you seed with are equal?")
def check_many(draws):
    """The generators of many ranks, for two seeds: no two of them draw the same."""
    for seed_zero, (common, *drawn) in enumerate(draws):
        told = f"of {MANY} ranks{', with seed 0' if seed_zero else ''}"
        twins = [r for r in range(MANY) if drawn[r] in drawn[:r]]
        first, second = (drawn.index(drawn[twins[0]]), twins[0]) if twins else (0, 0)
        expect(
            not twins,
            f"{told}, ranks {first} and {second} draw the same from their own generators",
            f"{MANY} different generators",
            f"{len(set(drawn))} different ones",
        )
        expect(
            common not in drawn,
            f"{told}, rank {drawn.index(common) if common in drawn else 0}'s own generator draws like the common one",
            "a different one",
            "the same",
        )


def check_alike(answers):
    for place in PLACES:
        for sequence, seen in zip((False, True), answers[place]):
            right = place in ("embedding", "residual") and not sequence
            expect(
                seen is right,
                f"draws_alike({place!r}, sequence={sequence}) is wrong: there "
                f"{'every rank has the same numbers' if right else 'each rank has its own part'}",
                right,
                seen,
            )

"""Checks and hints of 05_pipeline_parallel.

| TODO | achievement                    | evidence                                                                    | needs    |
|------|--------------------------------|-----------------------------------------------------------------------------|----------|
| 1    | the model cut by cost          | costs; the slowest stage of drawn costs; names, values, bytes of stages     |          |
| 2    | one stage at a time            | loss and gradients on 1 to 5 ranks, twice; messages; who computed what      |          |
| 3    | micro-batches                  | loss and gradients, targets ignored unequally; memory kept |          |
| 4    | GPipe; times of any schedule   | actions; times of drawn schedules; messages for those that get stuck |          |
| 5    | one action                     | order of the passes, losses, gradients, bytes kept; no messages             |          |
| 6    | any schedule executed          | the same on ranks, several in a row; messages, sends in flight, no autograd | 4, 5     |
| 7    | 1F1B                           | actions, simulated time, passes alive; a run, and the bytes alive in it     | 4, 5, 6  |
| 8    | interleaved                    | the same                                                                    | 4, 5, 6  |
| 9    | the backward pass in two parts | gradients of either part, and which part computes them                      |          |
| 10   | zero bubble                    | as of 7; the order of W                                                     | 4 – 7, 9 |
| 11   | predictions                    | the formulas                                                                |          |
| 12   | evaluation                     | values on all ranks; modes; memory kept; two evaluations in a row          | 4, 5, 6  |

Each rank draws its stages' weights from a seed that no other rank has; only the first rank draws the inputs, and only
the last the targets. So a rank can get right gradients only through messages. The stages report each pass through them:
the number of the micro-batch travels with it, in the first column of the stream.
"""  # noqa: E501

import gc
import itertools
import math
import re
import weakref

import torch
import torch.nn.functional as F
from torch import nn

from grader.kit import (
    Private,
    as_evidence,
    check_answers,
    check_delivery,
    check_refusals,
    check_tensor,
    count_of,
    expect,
    hinted,
    kind_of,
    lengths,
    mark,
    merciless_messages,
    near,
    numbers,
    pipelines,
    raised,
    rehearse,
    scale_of,
    shares,
    todo,
)
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

BUILDS = "stages, micro-batches, any schedule executed: GPipe, 1F1B, interleaved, zero bubble; the bubble of each"

# Gradients are sums over micro-batches in a different order from the reference: in float32 they differ by 2e-7 of the
# largest number, in float64 by 1e-16. A micro-batch left out changes them by a tenth, at least; see the premises.
REL = {"float32": 1e-4, "float64": 1e-10}
BYTES = {"float32": 4, "float64": 8}


# ---------------------------------------------------------------------------------------------------
# TODO 1: cut


def block_cost(dim, length):
    return 24 * dim * dim + 4 * length * dim


def slowest(costs, stages):
    """The cost of the slowest stage in the best cut: the lowest limit that stages filled one after the other can
    keep."""
    spans = {sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1)}
    for limit in sorted(spans):
        needed, load = 1, 0
        for cost in costs:
            if load + cost > limit:
                needed, load = needed + 1, 0
            load += cost
        if max(costs) <= limit and needed <= stages:
            return limit
    return max(spans)


def filled_up(costs, stages):
    """The slowest stage if stages are filled one after the other, up to the mean: it looks right, and is not."""
    loads, mean = [0], sum(costs) / stages
    for number, cost in enumerate(costs):
        left = len(costs) - number
        full = loads[-1] + cost > mean or left < stages - len(loads) + 1
        if number and len(loads) < stages and full:
            loads.append(0)
        loads[-1] += cost
    return max(loads)


def drawn_costs(draw, stages):
    """Filling stages one after the other does not find the best cut of these. None is large: its stage would decide."""
    while True:
        costs = numbers(draw, draw.randrange(5, 9), "zero", "tie", "whole", most=20)
        if filled_up(costs, stages) > slowest(costs, stages):
            return costs, stages


def cuts_on_rank(code, rank, world, costs, grid):
    found = []
    for mine, stages in costs:
        given = list(mine)
        cut = plain_lists(code.cut(given, stages))
        found.append({"cut": cut, "kept": given == list(mine)})
    return {"cuts": found, "refused": [raised(lambda n=n, k=k: code.cut([1.0] * n, k)) for n, k in grid]}


def plain_lists(value):
    """Lists of numbers as evidence can hold them; anything else described in words."""
    if isinstance(value, (list, tuple)) and all(isinstance(part, (list, tuple, range)) for part in value):
        return [[int(n) for n in part] for part in value]
    return f"{value!r:.80}"


def tiny_model(blocks=3, dropout=0.0):
    torch.manual_seed(0)
    return TransformerLM(vocab_size=23, dim=6, n_heads=2, n_layers=blocks, max_len=5, dropout=dropout)


def cuts_of(blocks):
    """All pieces together, each alone, the first alone, the last alone, and two in the middle."""
    n = blocks + 2
    pieces = list(range(n))
    return [[pieces], [[k] for k in pieces], [[0], pieces[1:]], [pieces[:-1], [n - 1]], [[0, 1], [2, 3], pieces[4:]]]


BLOCKS = (3, 4, 11)  # of eleven, the last one, "10", sorts as text before "2"


def stages_on_rank(code, rank, world, models):
    """Each stage of each cut: its names, values, bytes; and the output of the stages in a row."""
    seen = []
    x = torch.randint(23, (2, 4), generator=torch.Generator().manual_seed(1))
    for blocks in models:
        for cut in cuts_of(blocks):
            whole = tiny_model(blocks, dropout=0.2)
            expected = whole.eval()(x)
            whole.train()
            torch.manual_seed(2)
            right = whole(x)
            weights = {name: p.detach().clone() for name, p in whole.named_parameters()}
            stages = [code.Stage(whole, list(pieces)) for pieces in cut]
            torch.manual_seed(2)
            h = in_a_row(stages, x)
            tensor = isinstance(h, torch.Tensor)
            found = {"same": same_output(h, right), "shape": list(h.shape) if tensor else type(h).__name__}
            found["eval"] = same_output(in_a_row([stage.eval() for stage in stages], x), expected)
            found["state"] = [same_values(stage.state_dict(), weights) for stage in stages]
            found["bytes"] = [stage_bytes(stage) for stage in stages]
            found["whole"] = same_values(whole.state_dict(), weights)
            seen.append(found)
    return seen


def in_a_row(stages, h):
    for stage in stages:
        h = stage(h)
    return h


def same_output(h, right):
    return isinstance(h, torch.Tensor) and h.shape == right.shape and torch.allclose(h, right, rtol=1e-6, atol=1e-6)


def same_values(state, weights):
    """For each name in a state dictionary, whether it has these weights' values."""
    return {
        name: bool(name in weights and value.shape == weights[name].shape and torch.equal(value, weights[name]))
        for name, value in state.items()
    }


def stage_bytes(stage):
    """Bytes of all tensors that can be reached from a module, registered or not, each storage once."""
    found, seen, queue = {}, set(), [stage]
    while queue:
        thing = queue.pop()
        if id(thing) in seen or isinstance(thing, (type, str, int, float)):
            continue
        seen.add(id(thing))
        if isinstance(thing, torch.Tensor):
            found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, nn.Module):
            queue += vars(thing).values()
        elif isinstance(thing, dict):
            queue += thing.values()
        elif isinstance(thing, (list, tuple, set)):
            queue += thing
    return sum(found.values())


def piece_of(name, blocks):
    """The piece of the tiny model that a parameter belongs to."""
    if "embedding" in name:
        return 0
    return 1 + int(name.split(".")[1]) if name.startswith("blocks.") else blocks + 1


@todo(
    1,
    minutes=45,
    why=(
        "A pipeline runs at the speed of its slowest stage: a stage that takes twice as long halves all the others. And"
        " a stage that keeps the other stages' weights saves no memory, although the cut was made to save it."
    ),
    hints=(
        (
            "A stage costs the sum of its pieces; a cut costs as much as its most expensive stage. A stage holds every"
            " weight that can be reached from it."
        ),
        (
            "combinations(range(1, n), stages - 1) gives the places at which a model can be cut; pairwise gives each"
            " stage's first piece and the next stage's. Assigning a module to an attribute registers it."
        ),
        (
            "cut: for each choice of places, the bounds are 0, the places, n; keep the choice whose largest sum is"
            " smallest. Stage: an nn.ModuleDict for the blocks, whose keys are the blocks' numbers in the model, and"
            " the other modules under the model's names for them, only if their piece is in the list."
        ),
    ),
)
def test_todo1_cut(student):
    draw = student.draw("cut")
    with hinted("Count the numbers in a piece's weights, twice. Attention has two more products, without a weight."):
        right = {}
        sizes = [(4, 64, 64, 2000), (1, 10, 3, 7), (12, 768, 1024, 50257)]
        sizes.append((draw.randrange(2, 9), 2 * draw.randrange(4, 99), draw.randrange(5, 99), draw.randrange(50, 999)))
        for layers, dim, length, vocab in sizes:
            costs = (0.0, *[float(block_cost(dim, length))] * layers, 2.0 * dim * vocab)
            right["costs_of_pieces", (layers, dim, length, vocab)] = costs
        check_answers(student, right, wrong="is not what these pieces cost")
    with hinted("A cut costs as much as its slowest stage. Which of all possible cuts costs least?"):
        check_cuts(student, draw)
    with hinted("Which modules of the model belong to these pieces, and what are they called in the model?"):
        check_stages(student)


def check_cuts(student, draw):
    costs = [
        ([1.0, 1.0, 1.0, 9.0], 2),
        ([5.0], 1),
        ([4.0, 4.0, 4.0], 3),
        ([0.0, 1.0, 1.0, 1.0, 1.0, 3.0], 3),
        ([9.0, 1.0, 1.0, 1.0], 2),
        ([0.0] + [1.0] * 9 + [6.0], 4),
        ([1.0, 8.0, 5.0, 4.0, 7.0, 2.0, 6.0], 3),  # the most even stages differ from these
        ([1.125, 1.0, 1.375], 2),  # rounded, the two cuts cost the same
        ([1.375, 1.0, 1.125], 2),
    ]
    costs = student.several(costs + [drawn_costs(draw, stages) for stages in (2, 2, 3, 3, 4)], 5)
    grid = list(itertools.product(range(1, 7), repeat=2))
    (seen,) = student.call(cuts_on_rank, world=1, group=False, costs=costs, grid=grid).evidence
    for (mine, stages), found in zip(costs, seen["cuts"], strict=True):
        check_one_cut(mine, stages, found["cut"])
        expect(found["kept"], f"cut({mine}, {stages}) changes the list of costs", "the same list", "another")
    check_refusals(
        [zip(grid, seen["refused"], strict=True)],
        refused=lambda n, stages: n < stages,
        told=lambda n, stages: f"cut({[1.0] * n}, {stages}), {count_of(n, 'piece')} in {stages} stages,",
    )


def check_one_cut(mine, stages, found):
    what = f"cut({mine}, {stages})"
    listed = isinstance(found, list)
    expect(listed, f"{what} does not return a list of lists of numbers", f"{stages} lists of numbers", found)
    expect(
        len(found) == stages and all(found),
        f"{what} does not make {stages} stages with at least one piece each",
        f"{stages} stages",
        found,
    )
    flat = [n for part in found for n in part]
    everything = list(range(len(mine)))
    expect(flat == everything, f"{what} does not have each piece once, in order", everything, found)
    took, best = max(sum(mine[n] for n in part) for part in found), slowest(mine, stages)
    told = f"{what}: the slowest stage costs {took:g}, in a better cut {best:g}"
    expect(took == best, told, f"{best:g}", f"{took:g}: {found}")


def check_stages(student):
    models = student.several(BLOCKS)
    (seen,) = student.call(stages_on_rank, world=1, group=False, models=models).evidence
    cuts = [(blocks, cut) for blocks in models for cut in cuts_of(blocks)]
    for (blocks, cut), found in zip(cuts, seen, strict=True):
        for pieces, state, held in zip(cut, found["state"], found["bytes"], strict=True):
            check_stage(blocks, pieces, state, held)
        expect(
            found["same"],
            f"the stages {cut} in a row do not give the model's output (dropout 0.2, same seed)",
            "the model's logits, of shape [2, 4, 23]",
            f"something else, of shape {found['shape']}",
        )
        expect(
            found["eval"],
            f"the stages {cut} in a row, in eval mode, do not give the model's output: is dropout still on?",
            "the model's logits in eval mode",
            "something else",
            hint="eval() reaches the modules that are registered. As what does the stage keep the model's dropout?",
        )
        expect(
            len(found["whole"]) == len(list(tiny_model(blocks).parameters())) and all(found["whole"].values()),
            f"making the stages {cut} changes the model that they are taken from",
            "the same weights",
            "a changed model",
        )


def check_stage(blocks, pieces, state, held):
    what = f"the stage of pieces {pieces} (of {blocks + 2}: embeddings, {blocks} blocks, norm and head)"
    sizes = {name: 4 * p.numel() for name, p in tiny_model(blocks).named_parameters()}
    own = {name for name in sizes if piece_of(name, blocks) in pieces}
    for name in sorted(own - state.keys()):
        more = sorted(state.keys() - sizes.keys())
        named = f"; it has {more[0]}" if more else ""
        expect(False, f"{what} has no parameter that is called {name}{named}", name, sorted(state)[:6])
    for name in sorted(state.keys() - own):
        known = f"{what} holds {name}, which belongs to piece {piece_of(name, blocks)}" if name in sizes else ""
        expect(
            False,
            known or f"{what} has {name}, which the model does not have",
            f"the weights of pieces {pieces} alone",
            f"{len(state)} parameters, {len(own)} of them its own",
        )
    for name, same in state.items():
        expect(same, f"{what}: {name} does not have the model's values", "the model's", "other values")
    own_bytes = sum(sizes[name] for name in own)
    expect(
        held <= own_bytes,
        f"{what} keeps {held:,} bytes alive: it has the weights of other stages, though it does not name them as its"
        " own",
        f"{own_bytes:,} bytes",
        f"{held:,} bytes",
    )


# ---------------------------------------------------------------------------------------------------
# Stages that tell what they do


class Told(torch.autograd.Function):
    """Returns the tensor unchanged; calls `tell` when its gradient passes. Used for weights only: of a view of what the
    student's code sends or receives, autograd would say that it is this class's.
    """

    @staticmethod
    def forward(ctx, tensor, tell):
        ctx.tell = tell
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.tell()
        return gradient, None


class Layer(nn.Module):
    """x + tanh(W x + b). Autograd keeps the tanh, and `watch` records it. Without autograd nothing should be kept, and
    it records the layer's output.
    """

    def __init__(self, width, draw, dtype, watch):
        super().__init__()
        self.weight = nn.Parameter(
            torch.randn(width, width, generator=draw, dtype=torch.float64).to(dtype) / width**0.5
        )
        self.bias = nn.Parameter(torch.randn(width, generator=draw, dtype=torch.float64).to(dtype))
        self.watch, self.tell = watch, None

    def forward(self, x):
        tell = self.tell
        x = x.view_as(x)  # not the previous layer's output itself, from which a student's backward pass may start
        if x.requires_grad:
            x.register_hook(lambda _: tell("input"))
        inner = torch.tanh(F.linear(x, Told.apply(self.weight, lambda: tell("weights")), self.bias))
        output = x + inner
        self.watch.note([inner if torch.is_grad_enabled() else output])
        return output


class Work(nn.Module):
    """A stage of two layers. The first column of its input is the number of the micro-batch.

    `most` is the largest number of bytes of activations alive in a forward pass, `out` the bytes that it passes on.
    """

    def __init__(self, stage, seed, width, dtype, watch=None, tell=None):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.watch = Storages() if watch is None else watch
        self.layers = nn.ModuleList(Layer(width, draw, dtype, self.watch) for _ in range(2))
        if stage % 2 == 0:
            self.layers[0].bias.requires_grad_(False)
        self.stage, self.tell, self.most = stage, tell or mark, 0
        self.leaving, self.out = Storages(), 0

    def forward(self, x):
        number = x[0, 0].item() if x.dim() == 2 and len(x) else math.nan
        number = round(number) if math.isfinite(number) and abs(number) < 1e6 else -1
        about = {"stage": self.stage, "microbatch": number}
        training = all(module.training for module in self.modules())
        evaluating = not any(module.training for module in self.modules())
        mode = "train" if training else "eval" if evaluating else "mixed"
        self.tell(kind="forward", rows=list(x.shape), mode=mode, grad=torch.is_grad_enabled(), **about)
        if self.stage and torch.is_grad_enabled():
            self.watch.note([x])  # what has arrived; the first stage's inputs are the caller's
        h = x[:, 1:]
        for layer in self.layers:
            layer.tell = lambda kind: self.tell(kind=kind, **about)
            if layer is not self.layers[0] and torch.is_grad_enabled():
                self.watch.note([h])  # autograd keeps it for the weight, and `Passed` for itself
            h = layer(h)
        output = torch.cat([x[:, :1], h], dim=1)
        if output.requires_grad:
            output.register_hook(lambda _: self.tell(kind="back", **about))
        self.most = max(self.most, sum(self.watch.bytes_alive().values()))
        self.leaving.note([output])
        self.out = max(self.out, sum(self.leaving.bytes_alive().values()))
        return output


def share_of_loss(counted):
    """The loss function of a batch with this many targets that count. Targets are classes."""

    def loss_of(output, y):
        return F.cross_entropy(output[:, 1:], y, ignore_index=IGNORE, reduction="sum") / counted

    return loss_of


def inputs_of(seed, m, rows, width, dtype):
    """Inputs of m micro-batches; the first column numbers them."""
    draw = torch.Generator().manual_seed(seed + 1)
    x = torch.randn(m, rows, 1 + width, generator=draw, dtype=torch.float64).to(dtype)
    x[:, :, 0] = torch.arange(m)[:, None]
    return list(x)


def targets_of(seed, m, rows, width):
    """Targets of m micro-batches; in each, a different number counts."""
    draw = torch.Generator().manual_seed(seed + 2)
    y = torch.randint(width, (m, rows), generator=draw)
    for number in range(1, m):
        y[number, : number % rows] = IGNORE
    return list(y)


def counted_in(ys):
    return max(1, sum(int((y != IGNORE).sum()) for y in ys))


def stage_seed(seeds, stage, world):
    return seeds[stage % world] + 10 + stage // world


def batch_for(code, seed, rank, world, m, rows, width, dtype):
    """A batch of m micro-batches as a rank has it: inputs on the first, targets on the last, meaningless numbers
    elsewhere. `seed` is the rank's own.
    """
    kind = getattr(torch, dtype)
    rubbish = torch.full((rows, 1 + width), math.nan, dtype=kind)
    xs = inputs_of(seed, m, rows, width, kind) if rank == 0 else [rubbish.clone() for _ in range(m)]
    last = rank == world - 1
    ys = targets_of(seed, m, rows, width) if last else [torch.full((rows,), -1) for _ in range(m)]
    return code.Batch(xs, ys, rubbish, share_of_loss(counted_in(ys)))


def harm_to(batch, first, inputs):
    """How a batch that the caller keeps was changed; "" if it was not."""
    like, xs = batch.like, batch.xs
    if first and not all(isinstance(x, torch.Tensor) for x in xs):
        return "the batch has lost its inputs"
    if like.requires_grad or like.grad is not None or not like.isnan().all():
        return "a message received into `batch.like`, or its gradient requested"
    if first and any(x.requires_grad or x.grad is not None for x in xs):
        return "the batch's inputs have been asked for gradients"
    if first and not all(torch.equal(x, right) for x, right in zip(xs, inputs, strict=True)):
        return "the batch's inputs are changed"
    return ""


def serial(seeds, v, m, rows, width, dtype, leave_out=None):
    """One process that has all stages: the micro-batches' losses, and each stage's gradients."""
    world, kind = len(seeds), getattr(torch, dtype)
    stages = [Work(s, stage_seed(seeds, s, world), width, kind, tell=lambda **_: None) for s in range(world * v)]
    ys = targets_of(seeds[-1], m, rows, width)
    loss_of, losses = share_of_loss(counted_in(ys)), []
    for number, (x, y) in enumerate(zip(inputs_of(seeds[0], m, rows, width, kind), ys)):
        for stage in stages:
            x = stage(x)
        loss = loss_of(x, y)
        losses.append(loss.item())
        if number != leave_out:
            loss.backward()
    return {"losses": losses, "gradients": [gradients_of(stage) for stage in stages]}


def gradients_of(module):
    return {name: p.grad for name, p in module.named_parameters()}


def plain_losses(value):
    """A list of losses, tensors, as numbers; anything else described in words."""
    if not isinstance(value, (list, tuple)):
        return kind_of(value)
    if value and all(isinstance(x, (int, float)) for x in value):
        return "numbers, not tensors"
    if not all(isinstance(x, torch.Tensor) and x.numel() == 1 for x in value):
        return "a list of things other than losses"
    return [float(x) for x in value]


def check_gradients(told, right, seen, rank, stage, rel):
    scale = scale_of(right.values())
    for name, gradient in right.items():
        got = seen.get(name)
        what = f"{told}: the gradient of {name} of stage {stage}, on rank {rank},"
        if gradient is None:
            expect(got is None, f"{what} should not exist: the weight is frozen", "None", "a gradient", rank)
            continue
        there = isinstance(got, torch.Tensor)
        expect(there, f"{what} is missing: no backward pass reached it", "a gradient", "None", rank)
        check_tensor(what, got, gradient, rel, rank, scale=scale, than="one process's")


def check_messages(told, events, sizes, collectives_allowed=False, more=0):
    """`sizes` maps (source, target) to the bytes that must go from one to the other; `more` bytes may."""
    messages, _ = rehearse(events)
    if not collectives_allowed:
        calls = [
            (rank, event["op"])
            for rank, mine in enumerate(events)
            for event in mine
            if event["e"] == "op" and "id" not in event and len(event["group"]) > 1
        ]
        rank, call = calls[0] if calls else (None, "")
        expect(
            not calls,
            f"{told}: rank {rank} calls {call}, a collective of all ranks; stages send messages only to their"
            " neighbours",
            "messages alone",
            call,
            rank,
        )
    for pair in sorted({*sizes, *((message.source, message.target) for message in messages)}):
        sent = sum(message.bytes for message in messages if (message.source, message.target) == pair)
        wanted = sizes.get(pair, 0)
        expect(
            wanted <= sent <= wanted + more,
            f"{told}: rank {pair[0]} sends rank {pair[1]} {sent:,} bytes; activations and gradients that cross there"
            f" are {wanted:,}",
            f"{wanted:,} bytes",
            f"{sent:,} bytes",
            pair[0],
        )


def bytes_between(p, v, nbytes, back=True):
    """The bytes from rank to rank, if this many cross each boundary between two stages, forward and back."""
    sizes = {}
    for stage in range(p * v - 1):
        a, b = stage % p, (stage + 1) % p
        for pair in ((a, b), (b, a)) if back else ((a, b),):
            if a != b:
                sizes[pair] = sizes.get(pair, 0) + nbytes
    return sizes


def notes(events, kinds):
    """The passes that a rank's stages reported: [(kind, stage, micro-batch)]."""
    return [(e["kind"], e["stage"], e["microbatch"]) for e in events if e["e"] == "mark" and e.get("kind") in kinds]


def events_of_trials(events, trials):
    """The events of each rank in each trial, which begins with mark(kind="trial")."""
    found = [[] for _ in range(trials)]
    for mine in events:
        parts = [[]]
        for event in mine:
            if event["e"] == "mark" and event.get("kind") == "trial":
                parts.append([])
            elif event["e"] != "end":
                parts[-1].append(event)
        for number, part in enumerate(parts[1:]):
            found[number].append(part)
    return found


# ---------------------------------------------------------------------------------------------------
# TODO 2: one stage at a time


def naive_on_rank(code, rank, world, seed, rows, width, dtype):
    """Two batches through the same ranks, with different weights and sizes."""
    merciless_messages()
    return [naive_trial(code, rank, world, seed + 1000 * n, rows + n, width, dtype) for n in range(2)]


def naive_trial(code, rank, world, seed, rows, width, dtype):
    mark(kind="trial")
    kind = getattr(torch, dtype)
    stage = Work(rank, seed + 10, width, kind).train(rows % 2 == 0)  # one of the two batches in evaluation mode
    rubbish = torch.full((rows, 1 + width), math.nan, dtype=kind)
    x = inputs_of(seed, 1, rows, width, kind)[0] if rank == 0 else rubbish.clone()
    y = targets_with_gaps(seed, rows, width) if rank == world - 1 else torch.full((rows,), -1)
    loss = code.naive_step(stage, x, y, rubbish, share_of_loss(max(1, int((y >= 0).sum()))), rank, world)
    tensor = isinstance(loss, torch.Tensor) and loss.numel() == 1
    plain = loss.item() if tensor else loss if loss is None or isinstance(loss, float) else kind_of(loss)
    return {
        "loss": plain,
        "history": isinstance(loss, torch.Tensor) and loss.requires_grad,
        "gradients": gradients_of(stage),
        "like": rubbish.requires_grad or rubbish.grad is not None or not bool(rubbish.isnan().all()),
        "x": rank == 0 and (x.requires_grad or x.grad is not None),
    }


def targets_with_gaps(seed, rows, width):
    y = targets_of(seed, 1, rows, width)[0]
    y[1::3] = IGNORE
    return y


def naive_serial(seeds, rows, width, dtype):
    return [naive_alone([seed + 1000 * n for seed in seeds], rows + n, width, dtype) for n in range(2)]


def naive_alone(seeds, rows, width, dtype):
    kind = getattr(torch, dtype)
    stages = [Work(s, seed + 10, width, kind, tell=lambda **_: None) for s, seed in enumerate(seeds)]
    x, y = inputs_of(seeds[0], 1, rows, width, kind)[0], targets_with_gaps(seeds[-1], rows, width)
    for stage in stages:
        x = stage(x)
    loss = share_of_loss(max(1, int((y >= 0).sum())))(x, y)
    loss.backward()
    return {"loss": loss.item(), "gradients": [gradients_of(stage) for stage in stages]}


@todo(
    2,
    minutes=25,
    why=(
        "Every pipeline consists of these two messages. Without the second a run looks right: the last stage learns and"
        " the loss falls. But all the other stages stay as they were."
    ),
    hints=(
        (
            "Follow the batch: received, asked for its gradient, computed, sent. Then follow the gradient back:"
            " received, through the stage, sent."
        ),
        (
            "dist.recv fills a tensor that you allocate with torch.empty_like. Only the last rank starts the backward"
            " pass from a loss; on the others output.backward takes the gradient that has arrived. Where does autograd"
            " leave the gradient of the tensor that came in?"
        ),
        (
            "Four steps in this order, each under its own condition on rank and world: receive the input; run the"
            " stage; go backward, from the loss or from a gradient that you exchange for the output; send the input's"
            " gradient on."
        ),
    ),
)
def test_todo2_naive(student):
    draw = student.draw("naive")
    trials = []
    grids = [(1, "float32"), (2, "float64"), (3, "float32"), (5, "float32")]
    for world, dtype in student.several(grids, but=grids[:1]):
        sizes = dict(rows=draw.randrange(2, 6), width=draw.randrange(3, 6), dtype=dtype)
        seeds = student.seeds(world)
        rights = student.reference(naive_serial, seeds=[*seeds], **sizes)
        present = [g for right in rights for stage in right["gradients"] for g in stage.values() if g is not None]
        student.premise(all(g.abs().max() > 0 for g in present), "gradients that are zero")
        trials.append((world, seeds, sizes, rights))
    for world, seeds, sizes, rights in trials:
        run, dtype = student.call(naive_on_rank, world=world, seed=seeds, **sizes), sizes["dtype"]
        for number, (right, events) in enumerate(zip(rights, events_of_trials(run.events, 2), strict=True)):
            ordinal = "" if number == 0 else ", the second one in this process,"
            rows = sizes["rows"] + number
            told = f"a batch of {rows} rows in {dtype}{ordinal} on {count_of(world, 'rank')}"
            check_delivery(told, events)
            for rank, left in enumerate(run.evidence):
                check_naive_rank(told, events[rank], left[number], right, rank, world, REL[dtype])
            nbytes = rows * (1 + sizes["width"]) * BYTES[dtype]
            check_messages(told, events, bytes_between(world, 1, nbytes))


def check_naive_rank(told, events, seen, right, rank, world, rel):
    passes = notes(events, ("forward", "back"))
    expect(
        passes[:1] == [("forward", rank, 0)],
        f"{told}: rank {rank} computes no forward pass of the stream that started on the first rank",
        "one forward pass",
        passes[:2],
        rank,
    )
    expect(
        [p[0] for p in passes] == ["forward", "back"],
        f"{told}: rank {rank} computes {spoken_passes(passes)}",
        "a forward pass, then a backward pass",
        spoken_passes(passes),
        rank,
    )
    loss = seen["loss"]
    if rank == world - 1:
        what = "no loss" if loss is None else "a loss that differs from one process's"
        same = isinstance(loss, float) and math.isclose(loss, right["loss"], rel_tol=rel)
        expect(same, f"{told}: the last rank returns {what}", f"{right['loss']:.6f}", loss, rank)
        expect(
            not seen["history"],
            f"{told}: the loss that is returned keeps its history, and with it all activations",
            "a tensor that needs no gradient",
            "one that does",
            rank,
        )
    else:
        expect(loss is None, f"{told}: rank {rank} returns a loss, but has no losses", "None", loss, rank)
    check_gradients(told, right["gradients"][rank], seen["gradients"], rank, rank, rel)
    expect(
        not seen["like"],
        f"{told}: on rank {rank} the caller's `like` is changed: something was received into it, or it was asked for a"
        " gradient",
        "a fresh tensor in each call",
        "`like` itself",
        rank,
    )
    expect(
        not seen["x"],
        f"{told}: the caller's x is asked for a gradient, which no rank needs",
        "x as it was given",
        "x with requires_grad",
        rank,
    )


def spoken_passes(passes):
    """[(kind, stage, micro-batch)] in words."""
    words = [f"{kind} {number}" if number >= 0 else f"{kind} of rubbish" for kind, _, number in passes]
    return ", ".join(words if len(words) < 12 else [*words[:11], "…"]) or "nothing"


# ---------------------------------------------------------------------------------------------------
# TODO 3: micro-batches


def made_tokens(rows, length, counted):
    """Tokens, and targets; in row r the first counted[r] of them count."""
    draw = torch.Generator().manual_seed(rows)
    x, y = torch.randint(23, (2, rows, length), generator=draw)
    for row, n in enumerate(counted):
        y[row, n:] = IGNORE
    return x, y


def split_on_rank(code, rank, world, cases):
    """The pieces of each batch."""
    seen = []
    for rows, counted, m in cases:
        x, y = made_tokens(rows, 4, counted)
        parts = code.split(x, y, m)
        two = (
            isinstance(parts, (list, tuple))
            and len(parts) == 2
            and all(isinstance(p, (list, tuple)) and all(isinstance(t, torch.Tensor) for t in p) for p in parts)
        )
        seen.append(dict(zip(("xs", "ys"), as_evidence(parts))) if two else {"xs": None, "ys": None})
    return seen


def losses_on_rank(code, rank, world, cases):
    """Shares of losses, from functions that are all made before one is called; and the gradients that accumulate
    leaves."""
    batches = [made_tokens(rows, 4, counted) for rows, counted, _ in cases]
    functions = [code.loss_of_batch(y) for _, y in batches]
    seen = []
    for (rows, _, m), (x, y), loss_of in zip(cases, batches, functions, strict=True):
        logits = torch.randn(rows, 4, 23, generator=torch.Generator().manual_seed(5))
        shares = [loss_of(logits[row : row + 1], y[row : row + 1]) for row in range(rows)]
        seen.append({"shares": plain_losses(shares)} | accumulated(code, x, y, m))
    return seen


def accumulated(code, x, y, m):
    model = tiny_model()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept, passes = Storages(), []

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:
            kept.note([tensor])
        return tensor

    def look(_, args):
        passes.append([list(args[0].shape), sum(kept.bytes_alive().values())])

    model.register_forward_pre_hook(look)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = code.accumulate(model, x, y, m)
    value = loss.item() if isinstance(loss, torch.Tensor) and loss.numel() == 1 else None
    return {
        "loss": value,
        "history": isinstance(loss, torch.Tensor) and loss.requires_grad,
        "passes": passes,
        "gradients": gradients_of(model),
    }


def whole_batch(rows, counted):
    x, y = made_tokens(rows, 4, counted)
    model = tiny_model()
    loss = model(x, y)
    loss.backward()
    means = [model(x[r : r + 1], y[r : r + 1]).item() for r in range(rows) if counted[r]]
    return {"loss": loss.item(), "gradients": gradients_of(model), "mean of means": sum(means) / max(1, len(means))}


@todo(
    3,
    minutes=30,
    why=(
        "A mean of means gives a target more weight if its micro-batch has few of them. The loss curve looks right, but"
        " the model is not the one that a single process trains. And one batch that cannot be divided evenly makes some"
        " rank wait for rows that never come."
    ),
    hints=(
        "Rows, targets, losses: which must be the same in every micro-batch, and which only add up?",
        (
            "new_full makes padding rows and torch.cat appends them; .split(rows) cuts along the first dimension."
            " cross_entropy with reduction='sum' leaves the division to you. (y != IGNORE).sum() counts, and may be 0."
        ),
        (
            "split pads to m times ceil(B / m) rows, then splits. loss_of_batch counts before it defines the function"
            " that it returns, and that function divides by this count. accumulate calls backward inside the loop, and"
            " keeps numbers without history."
        ),
    ),
)
def test_todo3_microbatches(student):
    draw = student.draw("microbatches")
    many = draw.randrange(2, 6)
    cases = [(rows, shares(draw, rows, most=4), m) for m in (1, many) for rows in lengths(draw, m) if rows]
    cases += [(4, [4, 1, 0, 0], 2), (4, [0, 0, 0, 0], 2)]
    rights = [student.reference(whole_batch, rows=rows, counted=counted) for rows, counted, _ in cases]
    unequal = rights[-2]
    apart = abs(unequal["mean of means"] - unequal["loss"]) > 1e-4 * unequal["loss"]
    student.premise(apart, "a mean of means")
    with hinted("How many rows does each micro-batch have, and how many are then missing at the end of the batch?"):
        (seen,) = student.call(split_on_rank, world=1, group=False, cases=cases).evidence
        for (rows, counted, m), found in zip(cases, seen, strict=True):
            what = f"split(x, y, {m}) of {rows} rows"
            check_split(what, found, rows, counted, m)
    (seen,) = student.call(losses_on_rank, world=1, group=False, cases=cases).evidence
    for (rows, counted, m), right, found in zip(cases, rights, seen, strict=True):
        told = f"a batch of {rows} rows with {counted} targets that count, in {m} micro-batch{'es' if m > 1 else ''}"
        with hinted("By which number is each micro-batch's sum divided, so that the shares add up to the mean?"):
            check_shares(told, found, rows, counted)
        with hinted("What happens to each micro-batch before the next one begins, and what stays of it?"):
            check_accumulated(told, found, right, rows, counted, m)


def check_split(what, found, rows, counted, m):
    two = found["xs"] is not None
    expect(two, f"{what} does not return two lists of tensors", "(inputs, targets)", "something else")
    x, y = made_tokens(rows, 4, counted)
    size = math.ceil(rows / m)
    for name, parts, whole, fill in (("inputs", found["xs"], x, 0), ("targets", found["ys"], y, IGNORE)):
        shapes = [list(part.shape) for part in parts]
        across = any(part.dim() == 2 and part.shape[1] != 4 for part in parts)
        wrong_way = ": the batch is the first dimension" if across else ""
        expect(
            shapes == [[size, 4]] * m,
            f"{what}: the {name} of a batch of {rows} rows of 4 tokens have the wrong shapes{wrong_way}",
            [[size, 4]] * m,
            shapes,
        )
        got, padding = torch.cat(list(parts)), torch.full((m * size - rows, 4), fill)
        check_tensor(f"{what}: the tensor of {name}", got[:rows], whole, than="the batch's rows in order")
        check_tensor(f"{what}: the padding rows of the {name}", got[rows:], padding)


def check_shares(told, found, rows, counted):
    y = made_tokens(rows, 4, counted)[1]
    logits = torch.randn(rows, 4, 23, generator=torch.Generator().manual_seed(5))
    shares = [
        F.cross_entropy(logits[row], y[row], ignore_index=IGNORE, reduction="sum").item() / max(1, sum(counted))
        for row in range(rows)
    ]
    close = isinstance(found["shares"], list) and all(
        math.isclose(a, b, rel_tol=1e-4, abs_tol=1e-7) for a, b in zip(found["shares"], shares, strict=True)
    )
    expect(
        close,
        f"loss_of_batch, {told}: the share of a row is not the sum of its losses divided by the number of targets that"
        " count in the whole batch",
        rounded(shares),
        rounded(found["shares"]),
    )


def check_accumulated(told, found, right, rows, counted, m):
    loss, size = found["loss"], math.ceil(rows / m)
    expect(
        isinstance(loss, float) and math.isclose(loss, right["loss"], rel_tol=1e-4, abs_tol=1e-6),
        f"accumulate, {told}: the loss is not the whole batch's",
        f"{right['loss']:.6f}",
        loss,
    )
    expect(
        not found["history"],
        f"accumulate, {told}: the loss that is returned keeps its history",
        "a tensor that needs no gradient",
        "one that does",
    )
    shapes = [shape for shape, _ in found["passes"]]
    told_inputs = f"accumulate, {told}: the model is called on something other than the micro-batches"
    expect(shapes == [[size, 4]] * m, told_inputs, [[size, 4]] * m, shapes)
    for number, (_, nbytes) in enumerate(found["passes"]):
        expect(
            nbytes == 0,
            f"accumulate, {told}: when micro-batch {number} begins, {nbytes:,} bytes of activations of earlier ones"
            " are still kept",
            "0 bytes",
            f"{nbytes:,} bytes",
        )
    if sum(counted):
        check_gradients(f"accumulate, {told}", right["gradients"], found["gradients"], 0, 0, REL["float32"])
        return
    for name, gradient in found["gradients"].items():
        expect(
            gradient is None or not gradient.any(),
            f"accumulate, {told}: no target counts, and {name} has a gradient",
            "zeros",
            "numbers" if gradient.isfinite().all() else "nan",
        )


def rounded(values):
    return [round(x, 5) for x in values] if isinstance(values, list) else values


# ---------------------------------------------------------------------------------------------------
# Schedules


def plain_schedule(value):
    """A schedule as evidence: for each rank a list of [kind, micro-batch, chunk]. Else in words what it is."""
    if not isinstance(value, (list, tuple)):
        return kind_of(value)
    rows = []
    for actions in value:
        if not isinstance(actions, (list, tuple)):
            return f"a list with a {type(actions).__name__} in it"
        for action in actions:
            if not (
                isinstance(action, tuple)
                and len(action) == 3
                and isinstance(action[0], str)
                and all(isinstance(n, int) for n in action[1:])
            ):
                return f"a list with {action!r:.60} in it, which is not an Action"
        rows.append([[str(kind), int(number), int(chunk)] for kind, number, chunk in actions])
    return rows


def schedules_on_rank(code, rank, world, name, sizes, grid=()):
    return {
        "schedules": [plain_schedule(getattr(code, name)(*size)) for size in sizes],
        "refused": [raised(lambda size=size: getattr(code, name)(*size)) for size in grid],
    }


def spoken_action(action):
    return f"{action[0]}{action[1]}" + (f" of chunk {action[2]}" if action[2] else "")


def times_of(schedule, seconds, message=0):
    """(times as `simulate` returns them, rank and action that wait forever or None). `message`: seconds of one."""
    world = len(schedule)
    last = max((chunk * world + rank for rank, actions in enumerate(schedule) for _, _, chunk in actions), default=0)
    times, ends = [[] for _ in schedule], {}
    while True:
        before = sum(map(len, times))
        for rank, actions in enumerate(schedule):
            while len(times[rank]) < len(actions):
                kind, number, chunk = actions[len(times[rank])]
                stage = chunk * world + rank
                need = needed_for(kind, number, stage, last)
                if need and need not in ends:
                    break
                there = ends.get(need, 0) + (message if need and need[2] % world != rank else 0)
                begin = max(times[rank][-1][1] if times[rank] else 0, there)
                times[rank].append([begin, begin + seconds[kind]])
                if kind != "W":
                    ends["F" if kind == "F" else "I", number, stage] = begin + seconds[kind]
        if sum(map(len, times)) == before:
            left = [(rank, actions[len(mine) :]) for rank, (actions, mine) in enumerate(zip(schedule, times))]
            stuck = next(((rank, actions[0]) for rank, actions in left if actions), None)
            return times, stuck


def needed_for(kind, number, stage, last):
    """The result that an action of this stage needs: ("F" or "I", micro-batch, stage); None if it needs none."""
    if kind == "F":
        return None if stage == 0 else ("F", number, stage - 1)
    if kind == "W":
        return "I", number, stage
    return ("F", number, stage) if stage == last else ("I", number, stage + 1)


def length_of(schedule, seconds, message=0):
    return max(mine[-1][1] for mine in times_of(schedule, seconds, message)[0] if mine)


def most_alive(actions, frees):
    """The largest number of passes alive at once: forward, and not yet freed."""
    alive = most = 0
    for kind, _, _ in actions:
        alive += (kind == "F") - (kind in frees)
        most = max(most, alive)
    return most


def check_actions(told, schedule, p, m, v, kinds):
    """Whether each rank does everything once, and no rank waits forever."""
    wanted = f"a list of actions for each of {count_of(p, 'rank')}"
    expect(isinstance(schedule, list), f"{told} is not a schedule: it returns {schedule}", wanted, schedule)
    expect(len(schedule) == p, f"{told} has {len(schedule)} lists of actions", wanted, len(schedule))
    for rank, actions in enumerate(schedule):
        expect(
            bool(actions),
            f"{told}: rank {rank} does nothing, its list of actions is empty",
            f"{len(kinds) * m * v} actions",
            "none",
            rank,
        )
        everything = [[kind, number, chunk] for chunk in range(v) for number in range(m) for kind in kinds]
        for action in everything:
            expect(
                action in actions,
                f"{told}: rank {rank} never does {spoken_action(action)}",
                spoken_action(action),
                f"{len(actions)} others",
                rank,
            )
        for action in actions:
            expect(
                action in everything,
                f"{told}: rank {rank} does {spoken_action(action)}, which does not exist here",
                f"{', '.join(kinds)} of {m} micro-batches",
                spoken_action(action),
                rank,
            )
            times = actions.count(action)
            expect(times == 1, f"{told}: rank {rank} does {spoken_action(action)} {times} times", "once", times, rank)
    _, stuck = times_of(schedule, dict.fromkeys("FBIW", 1))
    where, what = (stuck[0], spoken_action(stuck[1])) if stuck else ("", "")
    expect(
        stuck is None,
        f"{told} gets stuck: rank {where} waits forever for what {what} needs",
        "a schedule that finishes",
        f"rank {where} at {what}",
    )


def random_schedule(draw, p, m, v, split):
    """A random schedule that finishes: again and again, some rank does some action that is possible."""
    schedule, done = [[] for _ in range(p)], set()
    last = p * v - 1
    kinds = "FIW" if split else "FB"
    todo_left = {(kind, number, stage) for kind in kinds for number in range(m) for stage in range(p * v)}

    def possible(kind, number, stage):
        need = needed_for(kind, number, stage, last)
        return need is None or (need[0] if need[0] == "F" or split else "B", *need[1:]) in done

    while todo_left:
        kind, number, stage = chosen = draw.choice(sorted(act for act in todo_left if possible(*act)))
        todo_left.remove(chosen)
        done.add(chosen)
        schedule[stage % p].append([kind, number, stage // p])
    return schedule


def gpipe_schedule(p, m):
    return [[["F", j, 0] for j in range(m)] + [["B", j, 0] for j in range(m)] for _ in range(p)]


# On two ranks: the last stage is on the first one.
THREE_STAGES = [[["F", 0, 0], ["F", 0, 1], ["B", 0, 1], ["B", 0, 0]], [["F", 0, 0], ["B", 0, 0]]]


# ---------------------------------------------------------------------------------------------------
# TODO 4: GPipe, and times


def read(*ranks):
    """A schedule from one string per rank, as `Action` writes it: "F0 F0/1 B0/1 B0"."""
    return [[read_action(action) for action in actions.split()] for actions in ranks]


def read_action(written):
    number, _, chunk = written[1:].partition("/")
    return [written[0], int(number), int(chunk or 0)]


CROSSED = "rank 0 wants B0 before F1, rank 1 F1 before B0"
STUCK = {  # schedules that do not come to their end, by the reason
    CROSSED: read("F0 B0 F1 B1", "F0 F1 B0 B1"),
    "the last rank goes backward before it goes forward": read("F0 B0", "B0 F0"),
    "rank 1 leaves out micro-batch 1": read("F0 F1 B0 B1", "F0 B0"),
    "W comes before I": read("F0 W0 I0"),
    "rank 1 wants F2, which rank 0 never does": read("F0 F1 B0", "F0 B0 F2 B2"),
    "rank 0 wants chunk 1 before chunk 0": read("F0/1 F0 B0/1 B0", "F0 F0/1 B0/1 B0"),
}


def simulate_on_rank(code, rank, world, trials, stuck, seconds):
    def simulated(schedule, seconds=seconds):
        return code.simulate(actions_of(code, schedule), dict(seconds))

    found = []
    for schedule, its_seconds in trials:
        try:
            times = simulated(schedule, its_seconds)
            found.append([[[float(t) for t in span] for span in mine] for mine in times])
        except ValueError as error:
            found.append(f"a ValueError: {error}")
        except TypeError:
            found.append("something that is not a list of (start, end) for each rank")
    return {"times": found, "stuck": [raised(lambda schedule=schedule: simulated(schedule)) for schedule in stuck]}


def actions_of(code, schedule):
    return [[code.Action(*action) for action in actions] for actions in schedule]


@todo(
    4,
    minutes=50,
    why=(
        "A schedule that is data can be drawn, compared, and checked before it costs a single GPU hour. And a schedule"
        " that deadlocks is a bug that you find here within a millisecond, and on 64 nodes after the time limit."
    ),
    hints=(
        "An action starts at the later of two times: when its rank is free, and when what it needs is there.",
        (
            "Keep a dictionary of when each result was there. Its key is what the table's right column names:"
            " direction, micro-batch, stage. A rank continues with its next action as long as that key is known."
        ),
        (
            "A loop around a loop over the ranks, which ends when a round has moved no rank. One small function says"
            " which key an action needs, by its kind and its stage. After the loop, a rank with actions left is stuck."
        ),
    ),
)
def test_todo4_gpipe_and_times(student):
    draw = student.draw("times")
    with hinted("GPipe: every rank does the same, in the same order."):
        check_gpipe(student, draw)
    schedules = [gpipe_schedule(3, 4), gpipe_schedule(2, 3)]
    schedules += [
        random_schedule(draw, p, m, v, split)
        for p, m, v, split in (
            (1, 2, 1, False),
            (2, 3, 1, False),
            (3, 4, 1, True),
            (4, 3, 1, False),
            (2, 2, 3, False),
            (3, 3, 2, True),
            (5, 2, 1, True),
        )
    ]
    schedules.append(THREE_STAGES)
    trials = [(schedule, dict(zip("FBIW", numbers(draw, 4)))) for schedule in schedules]
    trials[1][1]["F"] = 0.0  # an action that takes no time: the first one ends at 0
    inputs = dict(trials=trials, stuck=list(STUCK.values()), seconds=trials[0][1])
    (seen,) = student.call(simulate_on_rank, world=1, group=False, **inputs).evidence
    for (schedule, seconds), times in zip(trials, seen["times"], strict=True):
        check_times(schedule, times, seconds)
    with hinted("When a whole round moves no rank, which ranks are not done, and what is the next action of each?"):
        check_stuck(seen["stuck"])


def check_gpipe(student, draw):
    sizes = [(1, 1)] + [(p, m) for p, m, _ in pipelines(draw)]
    for (p, m), schedule in zip(sizes, schedules_of(student, "gpipe", sizes), strict=True):
        told = f"gpipe({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FB")
        for rank, actions in enumerate(schedule):
            kinds = "".join(kind for kind, _, _ in actions)
            expect(
                kinds == "F" * m + "B" * m,
                f"{told}: rank {rank} does not do all forward passes, then all backward passes",
                "F" * m + "B" * m,
                kinds,
                rank,
            )
        took, fastest = length_of(schedule, {"F": 2, "B": 5}), (m + p - 1) * 7
        expect(
            took <= fastest,
            f"{told}: with 2 s for F and 5 s for B it takes {took} s: the ranks' orders do not match",
            f"{fastest} s",
            f"{took} s",
        )


def check_times(schedule, times, seconds):
    ranks = len(schedule)
    spoken = {kind: round(value, 3) for kind, value in seconds.items()}
    told = (
        f"simulate, a schedule of {count_of(ranks, 'rank')} that begins with"
        f" {spoken_actions(schedule[-1])} on rank {ranks - 1}; seconds: {spoken}"
    )
    right, _ = times_of(schedule, seconds)
    expect(isinstance(times, list), f"{told}: it gives {times}", "times", times)
    lengths, wanted = [len(mine) for mine in times], [len(mine) for mine in right]
    expect(lengths == wanted, f"{told}: there is not one time for each action", wanted, lengths)
    for rank, (mine, due) in enumerate(zip(times, right, strict=True)):
        for action, span, true in zip(schedule[rank], mine, due, strict=True):
            same = len(span) == 2 and all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(span, true))
            expect(
                same,
                f"{told}: {spoken_action(action)} on rank {rank} is at the wrong time",
                f"from {true[0]:g} to {true[1]:g} s",
                f"from {span[0]:g} to {span[-1]:g} s" if span else "nothing",
                rank,
            )


def check_stuck(errors):
    for (why, schedule), found in zip(STUCK.items(), errors, strict=True):
        error, text = (found["error"], found["text"]) if found else ("nothing", "")
        told = f"simulate: a schedule that gets stuck ({why})"
        expect(error == "ValueError", f"{told} raises {error}", "ValueError", error)
        _, (rank, action) = times_of(schedule, dict.fromkeys("FBIW", 1))
        name = f"{action[0]}{action[1]}" + f"/{action[2]}" * (action[2] > 0)
        numbers = re.findall(r"\d+", re.sub(r"[FBIW]\d+(/\d+)?", "", text))
        named = str(rank) in numbers and re.search(rf"{name}(?![/\d])", text) is not None
        wanted = f"rank {rank} and {name}"
        expect(named, f"{told}: the message does not name the lowest rank that waits, and its action", wanted, text)


def spoken_actions(actions):
    return ", ".join(spoken_action(action) for action in actions[:5])


# ---------------------------------------------------------------------------------------------------
# TODO 5: one action


def input_part(passed, gradient):
    """In place of TODO 9's backward_input: computes the weights' gradients, too, and keeps them."""
    inputs = [passed.input] if passed.input.requires_grad else []
    passed.weights = [w for layer, _ in passed.layers for w in layer.parameters(recurse=False) if w.requires_grad]
    found = torch.autograd.grad(passed.output, inputs + passed.weights, gradient, retain_graph=True)
    passed.found = found[len(inputs) :]
    return found[0] if inputs else None


def weights_part(order):
    """In place of backward_weights. Adds the number of the micro-batch to `order`."""

    def backward_weights(passed):
        order.append(round(passed.input[0, 0].item()))
        for weight, new in zip(passed.weights, passed.found, strict=True):
            weight.grad = new if weight.grad is None else weight.grad + new

    return backward_weights


def act_on_rank(code, rank, world, seeds, trials):
    """A Worker for each rank of a schedule, all in this process. The check carries results from one to the next."""
    order: list[int] = []
    code.backward_input, code.backward_weights = input_part, weights_part(order)
    found = []
    for number, trial in enumerate(trials):
        order.clear()
        found.append(work_by_hand(code, [seed + 1000 * number for seed in seeds], order, **trial))
    return found


def work_by_hand(code, seeds, order, schedule, v, m, rows, width, dtype, grad=True):
    p, kind = len(schedule), getattr(torch, dtype)
    seeds = seeds[:p]
    logs, watches, workers = [[] for _ in range(p)], [Storages() for _ in range(p)], []
    weights: list[list[int]] = [[] for _ in range(p)]
    for r in range(p):
        tell = telling(logs[r])
        chunks = [Work(c * p + r, seeds[r] + 10 + c, width, kind, watches[r], tell) for c in range(v)]
        workers.append(code.Worker(chunks, batch_for(code, seeds[r], r, p, m, rows, width, dtype), r, p))
    there, wrong = {}, ""
    for r, (action, j, chunk) in in_time(schedule):
        stage, worker = chunk * p + r, workers[r]
        come = ("F", j, stage - 1) if action == "F" else None if action == "W" else ("B", j, stage + 1)
        with torch.set_grad_enabled(grad):
            given = worker.act(code.Action(action, j, chunk), there.pop(come, None))
        weights[r] += order
        order.clear()
        goes = action == "F" and stage < p * v - 1 or action in "BI" and stage > 0
        if goes and not isinstance(given, torch.Tensor):
            wrong = (
                wrong or f"{action}{j} on stage {stage} returns {kind_of(given)}, and another stage needs its result"
            )
        elif goes and list(given.shape) != [rows, 1 + width]:
            wrong = wrong or (
                f"{action}{j} on stage {stage} returns a tensor of shape {tuple(given.shape)}, and the stage that needs"
                f" it takes {(rows, 1 + width)}"
            )
        elif goes and given.requires_grad:
            wrong = wrong or f"the result of {action}{j} on stage {stage} still has its history"
        if goes and isinstance(given, torch.Tensor):
            there["F" if action == "F" else "B", j, stage] = given.detach().clone()
        if wrong:
            break
        del given
    gc.collect()
    return [
        left_by(workers[r], watches[r], r, inputs_of(seeds[0], m, rows, width, kind))
        | {"log": logs[r], "weights": weights[r], "wrong": wrong}
        for r in range(p)
    ]


def telling(log):
    def tell(**about):
        log.append({"e": "mark", **about})

    return tell


def in_time(schedule):
    """(rank, action) in an order in which they are possible: by the simulated time."""
    times, _ = times_of(schedule, dict.fromkeys("FBIW", 1))
    order = sorted((span[0], rank, n) for rank, mine in enumerate(times) for n, span in enumerate(mine))
    return [(rank, schedule[rank][n]) for _, rank, n in order]


def left_by(worker, watch, rank, inputs):
    losses = worker.losses if isinstance(worker.losses, dict) else {}
    values = [losses[j] for j in sorted(losses)]
    return {
        "losses": plain_losses(values),
        "history": any(isinstance(x, torch.Tensor) and x.requires_grad for x in values),
        "gradients": [gradients_of(chunk) for chunk in worker.chunks],
        "most": max(chunk.most for chunk in worker.chunks),
        "left": sum(watch.bytes_alive().values()),
        "harm": harm_to(worker.batch, rank == 0, inputs),
    }


def sizes_drawn(draw, dtype="float32"):
    return dict(rows=draw.randrange(2, 5), width=draw.randrange(3, 6), dtype=dtype)


def name_of(trial):
    """The schedule that is executed, in words."""
    schedule, v, m = trial["schedule"], trial["v"], trial["m"]
    p = len(schedule)
    chunks = f" with {v} chunks each" if v > 1 else ""
    off = "" if trial.get("grad", True) else ", without autograd"
    return f"{trial['name']} on {count_of(p, 'rank')}{chunks}, {m} micro-batches, {trial['dtype']}{off}"


def nameless(trial):
    return {key: value for key, value in trial.items() if key != "name"}


def serial_of(trials, seeds):
    """For `serial`: the same weights and batches."""
    asked = []
    for number, trial in enumerate(trials):
        given = {key: value for key, value in trial.items() if key not in ("name", "schedule", "grad")}
        asked.append(given | {"seeds": [seed + 1000 * number for seed in seeds[: len(trial["schedule"])]]})
    return asked


def drawn_trial(draw, p, m, v, split=False, dtype="float32"):
    schedule = random_schedule(draw, p, m, v, split)
    return dict(name="a drawn schedule", schedule=schedule, v=v, m=m, **sizes_drawn(draw, dtype))


def fixed_trial(draw, name, schedule, m, v=1, dtype="float32", **more):
    return dict(name=name, schedule=schedule, v=v, m=m, **sizes_drawn(draw, dtype), **more)


CROSSING = read("F0 F1 B0 B1", "F1 F0 B1 B0")


def in_turn(m):
    """On two ranks: many have finished when one more comes."""
    first = "F0 " + " ".join(f"F{j + 1} B{j}" for j in range(m - 1)) + f" B{m - 1}"
    return read(first, " ".join(f"F{j} B{j}" for j in range(m)))


def ahead(m):
    """On two ranks: both compute forward passes in advance, so that each message travels during a pass."""
    first = [f"F{j}" for j in range(5)] + [word for j in range(m - 5) for word in (f"B{j}", f"F{j + 5}")]
    first += [f"B{j}" for j in range(m - 5, m)]
    return read(" ".join(first), "F0 " + " ".join(f"F{j + 1} B{j}" for j in range(m - 1)) + f" B{m - 1}")


def forward_passes(p, m, v):
    return [[["F", j, chunk] for chunk in range(v) for j in range(m)] for _ in range(p)]


@todo(
    5,
    in_place=("arrived",),
    minutes=30,
    why=(
        "A rank's memory is what it keeps between the two passes of a micro-batch. If it is freed too late, memory adds"
        " up over the micro-batches; if it is freed too early, or mistaken for another micro-batch's, there is no"
        " error: the model just learns nonsense."
    ),
    hints=(
        (
            "Which micro-batches are between their two passes on this rank? Under which key do you find the one that an"
            " action means, and when does it leave the dictionary?"
        ),
        (
            "Passed(chunk, x) computes, and its output may be replaced: on the last stage by the loss. dict.pop finds"
            " and removes. requires_grad_(torch.is_grad_enabled()) asks for a gradient only in training."
        ),
        (
            "F: choose x; make a Passed; on the last stage turn its output into the loss and note that in losses; keep"
            " it under (micro-batch, stage) if a backward pass will come; return the output without history. The other"
            " kinds are one line each: look up the Passed, or remove it, and call the function in the table."
        ),
    ),
)
def test_todo5_act(student):
    draw = student.draw("act")
    trials = [
        fixed_trial(draw, "GPipe", gpipe_schedule(3, 4), 4),
        fixed_trial(
            draw, "a schedule whose ranks take the micro-batches in different orders", CROSSING, 2, dtype="float64"
        ),
        fixed_trial(draw, "forward and backward in turn", in_turn(6), 6),
        drawn_trial(draw, 1, 2, 2),
        drawn_trial(draw, 2, 3, 2),
        drawn_trial(draw, 4, 5, 1),
    ]
    split = [drawn_trial(draw, 1, 3, 1, split=True), drawn_trial(draw, 3, 4, 2, split=True, dtype="float64")]
    off = [fixed_trial(draw, "forward passes alone", forward_passes(2, 5, 2), 5, v=2, grad=False)]
    rights = [serial_rights(student, some) for some in (trials, split, off)]
    check_workers(student, trials, rights[0])
    with hinted(
        "Between I and W of a micro-batch, others pass forward and back. What does W need, and when can it be freed?"
    ):
        check_workers(student, split, rights[1])
    with hinted("Without autograd no backward pass comes. Is anything of a forward pass still kept?"):
        check_workers(student, off, rights[2])


def serial_rights(student, trials):
    rights = [student.reference(serial, **one) for one in serial_of(trials, [*student.seeds(4)])]
    stages = [stage for right in rights for stage in right["gradients"]]
    student.premise(all(map(any_gradient, stages)), "gradients that are zero")
    return rights


def check_workers(student, trials, rights):
    seeds, given = [*student.seeds(4)], [nameless(trial) for trial in trials]
    (found,) = student.call(act_on_rank, world=1, group=False, seeds=seeds, trials=given).evidence
    for trial, ranks, right in zip(trials, found, rights, strict=True):
        check_by_hand(f"Worker.act, {name_of(trial)}", trial, ranks, right)


def any_gradient(stage):
    return any(g is not None and g.abs().max() > 0 for g in stage.values())


def check_by_hand(told, trial, ranks, right):
    schedule = trial["schedule"]
    for rank, seen in enumerate(ranks):
        if not seen["wrong"]:
            continue
        expect(False, f"{told}: {seen['wrong']}", "a tensor like the stream, without history", seen["wrong"], rank)
    for rank, seen in enumerate(ranks):
        check_rank(told, trial, seen["log"], seen, right, rank)
        wanted = [number for kind, number, _ in schedule[rank] if kind == "W"]
        expect(
            seen["weights"] == wanted,
            f"{told}: rank {rank} gives backward_weights the wrong micro-batches",
            wanted,
            seen["weights"],
            rank,
        )


def check_rank(told, trial, events, seen, right, rank):
    """A rank's results of a schedule: its passes, losses, gradients; the memory it kept, and any change to the
    batch."""
    p, v = len(trial["schedule"]), trial["v"]
    check_order(told, events, trial, rank)
    check_losses(told, seen, right["losses"] if rank == p - 1 else [], rank, REL[trial["dtype"]])
    if trial.get("grad", True):
        for chunk in range(v):
            stage = chunk * p + rank
            rel = REL[trial["dtype"]]
            check_gradients(told, right["gradients"][stage], seen["gradients"][chunk], rank, stage, rel)
        check_kept(told, trial, seen, rank)
    else:
        check_nothing_kept(told, trial, seen, rank)
    harm = seen["harm"]
    expect(not harm, f"{told}: on rank {rank} {harm}", "the batch as it was", harm, rank)


def check_losses(told, seen, wanted, rank, rel):
    got = seen["losses"]
    expect(
        isinstance(got, list),
        f"{told}: the losses of rank {rank} are {got}",
        "tensors of one number each",
        got,
        rank,
        hint="detach() cuts the history off and leaves a tensor; item() makes a number, for which a GPU must be idle.",
    )
    expect(
        len(got) == len(wanted),
        f"{told}: rank {rank} has {len(got)} losses;"
        f" {'the last stage is on it' if wanted else 'the last stage is elsewhere'}",
        len(wanted),
        len(got),
        rank,
    )
    for number, (a, b) in enumerate(zip(got, wanted)):
        same = math.isclose(a, b, rel_tol=rel, abs_tol=1e-6)
        expect(same, f"{told}: the loss of micro-batch {number} is wrong", b, a, rank)
    expect(
        not seen["history"],
        f"{told}: the losses of rank {rank} keep their history",
        "tensors that need no gradient",
        "some that do",
        rank,
    )


def check_kept(told, trial, seen, rank):
    stream = trial["rows"] * trial["width"] * BYTES[trial["dtype"]]
    unit = 3 * stream  # kept of a pass, as far as it is watched
    come = trial["rows"] * (1 + trial["width"]) * BYTES[trial["dtype"]] if rank or trial["v"] > 1 else 0
    actions = trial["schedule"][rank]
    most = most_alive(actions, "W" if any(kind == "W" for kind, *_ in actions) else "B")
    # A name may hold the last `Passed` until the next one takes it, when autograd has let go of its part already.
    expect(
        seen["most"] <= most * (unit + come) + stream + come,
        f"{told}: rank {rank} keeps {seen['most']:,} bytes of activations at once, of"
        f" {seen['most'] / (unit + come):.3g} passes; in the schedule at most {most} are alive: what stays after a"
        " backward pass?",
        f"{most * (unit + come):,} bytes",
        f"{seen['most']:,} bytes",
        rank,
    )
    expect(
        seen["most"] >= unit,
        f"{told}: rank {rank} keeps {seen['most']:,} bytes of activations at most, less than one pass makes",
        f"{unit:,} bytes",
        f"{seen['most']:,} bytes",
        rank,
    )
    expect(
        seen["left"] == 0,
        f"{told}: after the last action rank {rank} still keeps {seen['left']:,} bytes of activations",
        "0 bytes",
        f"{seen['left']:,} bytes",
        rank,
    )


def check_nothing_kept(told, trial, seen, rank):
    one = 2 * trial["rows"] * trial["width"] * BYTES[trial["dtype"]]  # what the two layers of a stage give
    # A pass may be let go of only when the next one is made: twice its layers, and not five or ten times.
    expect(
        seen["most"] <= 2 * one and seen["left"] == 0,
        f"{told}: rank {rank} keeps the activations of {max(seen['most'], seen['left']) / one:g} passes, though no"
        " backward pass will come",
        f"of at most 2 passes at once, {2 * one:,} bytes; in the end nothing",
        f"{seen['most']:,} bytes at once, {seen['left']:,} in the end",
        rank,
    )


def check_order(told, events, trial, rank):
    """The stages reported the schedule's passes, in its order."""
    rows, p = [trial["rows"], 1 + trial["width"]], len(trial["schedule"])
    shapes = [e["rows"] for e in events if e["e"] == "mark" and e.get("kind") == "forward"]
    expect(
        all(shape == rows for shape in shapes),
        f"{told}: rank {rank} computes a forward pass of something other than one micro-batch",
        f"shape {rows}",
        next((s for s in shapes if s != rows), ""),
        rank,
    )
    wanted = [
        ("forward" if kind == "F" else "back", chunk * p + rank, number)
        for kind, number, chunk in trial["schedule"][rank]
        if kind != "W"
    ]
    seen = notes(events, ("forward", "back"))
    for number, (a, b) in enumerate(itertools.zip_longest(seen, wanted)):
        expect(
            a == b,
            f"{told}: pass {number + 1} of rank {rank} is not the one that the schedule asks for",
            spoken_pass(b),
            spoken_pass(a),
            rank,
        )


def spoken_pass(done):
    if done is None:
        return "nothing"
    kind, stage, number = done
    return (
        f"{'the forward pass' if kind == 'forward' else 'the backward pass'} of"
        f" {f'micro-batch {number}' if number >= 0 else 'rubbish'} on stage {stage}"
    )


# ---------------------------------------------------------------------------------------------------
# TODO 6: execute


def execute_on_rank(code, rank, world, seed, trials):
    """Execute schedules, one after the other; this rank's results of each, and the memory that it kept."""
    merciless_messages()
    return [execute_trial(code, rank, world, seed + 1000 * n, **trial) for n, trial in enumerate(trials)]


def execute_trial(code, rank, world, seed, schedule, v, m, rows, width, dtype, grad=True):
    mark(kind="trial")
    kind, watch = getattr(torch, dtype), Storages()
    chunks = [Work(c * world + rank, seed + 10 + c, width, kind, watch) for c in range(v)]
    batch = batch_for(code, seed, rank, world, m, rows, width, dtype)
    with torch.set_grad_enabled(grad):
        losses = code.execute(actions_of(code, schedule), chunks, batch, rank, world)
    gc.collect()
    history = isinstance(losses, (list, tuple)) and any(isinstance(x, torch.Tensor) and x.requires_grad for x in losses)
    return {
        "losses": plain_losses(losses),
        "history": history,
        "gradients": [gradients_of(chunk) for chunk in chunks],
        "most": max(chunk.most for chunk in chunks),
        "left": sum(watch.bytes_alive().values()),
        "out": max(chunk.out for chunk in chunks),
        "harm": harm_to(batch, rank == 0, inputs_of(seed, m, rows, width, kind)),
    }


def refused_on_rank(code, rank, world, schedule):
    """A schedule that gets stuck: its error, and whether a stage was called before."""
    watch = []
    stage = Work(rank, 1, 3, torch.float32, tell=lambda **about: watch.append(about["kind"]))
    xs = inputs_of(0, 2, 2, 3, torch.float32)
    batch = code.Batch(xs, [torch.zeros(2, dtype=torch.int64)] * 2, torch.zeros(2, 4), share_of_loss(4))
    found = raised(lambda: code.execute(actions_of(code, schedule), [stage], batch, rank, world))
    return {"raised": found and found["error"], "called": len(watch)}


def goes_on_rank(code, rank, world, questions):
    return [
        plain_pair(code.goes_to(code.Action(*action), source, p, stages)) for action, source, p, stages in questions
    ]


def plain_pair(value):
    if value is None or (isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)):
        return value and [int(n) for n in value]
    return f"{value!r:.60}"


OWN_MEMORY = (
    "The worker keeps what arrives until the backward pass. Is each message received in memory of its own, or is one"
    " written over another?"
)


def check_trials(student, trials):
    """Execute schedules for one number of ranks, one after the other. Their results are compared with one process's,
    their passes with the schedule.
    """
    p = len(trials[0]["schedule"])
    seeds = student.seeds(p)
    with hinted(OWN_MEMORY, "crash"):
        run = student.call(execute_on_rank, world=p, seed=seeds, trials=[nameless(trial) for trial in trials])
    rights = [student.reference(serial, **one) for one in serial_of(trials, [*seeds])]
    found = []
    for number, (trial, right) in enumerate(zip(trials, rights, strict=True)):
        events = events_of_trials(run.events, len(trials))[number]
        check_trial(f"execute, {name_of(trial)}", trial, events, [left[number] for left in run.evidence], right)
        found.append(events)
    return found


def check_trial(told, trial, events, ranks, right):
    schedule, p, v = trial["schedule"], len(trial["schedule"]), trial["v"]
    for rank, mine in enumerate(events):
        if len(notes(mine, ("forward", "back"))) < sum(kind != "W" for kind, *_ in schedule[rank]):
            check_order(told, mine, trial, rank)  # an action left out may leave messages in flight
    check_delivery(told, events)
    one = trial["rows"] * (1 + trial["width"]) * BYTES[trial["dtype"]]
    for rank, seen in enumerate(ranks):
        check_rank(told, trial, events[rank], seen, right, rank)
        check_in_flight(told, trial, seen, rank, one)
    check_messages(told, events, bytes_between(p, v, trial["m"] * one, back=trial.get("grad", True)))


def check_in_flight(told, trial, seen, rank, one):
    """A tensor that is passed on is kept while it is alive, and while its message is in flight. Half of the
    micro-batches are more than any bound that does not grow with them, if they are many.
    """
    alive, m = most_alive(trial["schedule"][rank], "BW"), trial["m"]
    if m >= MANY:
        expect(
            seen["out"] <= (alive + m // 2) * one,
            f"{told}: rank {rank} still has {seen['out'] // one} of the tensors that it has sent, and {alive} passes"
            " are alive: with more micro-batches there would be more, for they are freed only at the end",
            "a number that does not grow with the micro-batches",
            f"{seen['out'] // one} of {m}",
            rank,
            hint="A tensor that is sent stays in memory until you wait for its work. When is a send surely complete?",
        )


MANY = 24


@todo(
    6,
    minutes=45,
    needs=(4, 5),
    why=(
        "This is where pipelines break. Two neighbours that both send first get through while messages are small and"
        " buffered, and hang when the model grows. And a message mistaken for another of the same shape raises no"
        " error: the model just learns nonsense."
    ),
    hints=(
        (
            "Take the ticks one by one: act, then post. Store what arrives under a key that says what it is and for"
            " which stage, so that the right action takes it."
        ),
        (
            "goes_to tells, for every (source, action) of a tick, whether the result comes from this rank, comes to it,"
            " both, or neither. irecv needs a new tensor for each message: torch.empty_like. Wait for the work of a"
            " receive when its tensor is used, and of a send a few ticks later. A deque has append and popleft."
        ),
        (
            "for tick in in_ticks(schedule): if this rank has an action, fetch what arrived under its key, wait, act."
            " Then one loop over the tick's items with three cases: both ends are mine, I send, I receive. After the"
            " last tick, wait for the messages left, and return the worker's losses in the order of the micro-batches."
        ),
    ),
)
def test_todo6_execute(student):
    draw = student.draw("execute")
    off = fixed_trial(draw, "forward passes alone", forward_passes(2, 5, 2), 5, v=2, grad=False)
    crossing = "a schedule whose ranks take the micro-batches in different orders"
    by_ranks = [
        [
            fixed_trial(draw, "GPipe", gpipe_schedule(3, 4), 4),
            drawn_trial(draw, 3, 4, 1),  # its lists are as long as GPipe's
            fixed_trial(draw, "GPipe", gpipe_schedule(3, 2), 2),
        ],
        [
            fixed_trial(draw, crossing, CROSSING, 2, dtype="float64"),
            fixed_trial(draw, "forward and backward in turn", in_turn(MANY), MANY),
            fixed_trial(draw, "a schedule in which no result is needed at once", ahead(12), 12),
            drawn_trial(draw, 2, 3, 2),
            drawn_trial(draw, 2, draw.randrange(4, 7), 1),
            off,
        ],
        [drawn_trial(draw, 1, 2, 2)],
        [drawn_trial(draw, 4, 5, 1)],
    ]
    last_one_counts(student, by_ranks[0])
    travelling = all(len(early_for(ahead(12), rank)) >= SOME for rank in (0, 1))
    student.premise(travelling, "a message that is waited for at once")
    with hinted("Which stage comes next for F, and which for B? A stage's rank is its number modulo the ranks."):
        check_goes_to(student)
    with hinted("in_ticks raises what simulate raises. Is it called before anything is computed?"):
        check_refused(student)
    for trials in student.several(by_ranks):
        for trial, events in zip(trials, check_trials(student, trials), strict=True):
            for rank, mine in enumerate(events):
                check_travel(f"execute, {name_of(trial)}", early_for(trial["schedule"], rank), mine, rank)


SOME = 4  # so many messages that could travel during a pass show a habit


def early_for(schedule, rank):
    """The passes of a rank that need a message which was sent before its last pass began: it can travel meanwhile."""
    times, _ = times_of(schedule, dict.fromkeys("FBIW", 1))
    world, last = len(schedule), max(c * len(schedule) + r for r, mine in enumerate(schedule) for _, _, c in mine)
    sent = {
        ("F" if kind == "F" else "I", number, chunk * world + source): (source, begin)
        for source, actions in enumerate(schedule)
        for (kind, number, chunk), (begin, _) in zip(actions, times[source], strict=True)
        if kind != "W"
    }
    found, passes = [], [begin for (kind, *_), (begin, _) in zip(schedule[rank], times[rank]) if kind != "W"]
    for (kind, number, chunk), (begin, _) in zip(schedule[rank], times[rank], strict=True):
        source, when = sent.get(needed_for(kind, number, chunk * world + rank, last), (rank, 0))
        if source != rank and any(when < other < begin for other in passes):
            found.append((kind, number, chunk))
    return found


def check_travel(told, early, events, rank):
    """Of the messages that are there before they are needed, half or more are not waited for until another pass has
    been computed.
    """
    posted, travelled, passes = {}, 0, 0
    for event in events:
        passes += event["e"] == "mark" and event.get("kind") in ("forward", "back")
        if event["e"] == "op" and event["op"] == "recv":
            posted[event["id"]] = passes
        elif event["e"] == "wait" and event.get("of") in posted:
            travelled += passes > posted.pop(event["of"])
    expect(
        len(early) < SOME or 2 * travelled >= len(early),
        f"{told}: {len(early)} messages to rank {rank} are sent before the pass that precedes their use, and"
        f" {travelled} travel while this rank computes it; for the others it waits at once, or receives them only when"
        " it needs them",
        f"{len(early)} that travel meanwhile",
        travelled,
        rank,
        "A receive that is posted costs nothing until you wait for it. Which pass is the first that needs its tensor?",
    )


def check_goes_to(student):
    questions = []
    for p, v in ((1, 1), (2, 1), (3, 2), (4, 3)):
        for kind, chunk, source, number in itertools.product("FBIW", range(v), range(p), (0, 2)):
            questions.append(([kind, number, chunk], source, p, p * v))
    (answers,) = student.call(goes_on_rank, world=1, group=False, questions=questions).evidence
    for (action, source, p, stages), answer in zip(questions, answers, strict=True):
        stage = action[2] * p + source + {"F": 1, "B": -1, "I": -1, "W": 0}[action[0]]
        wanted = None if action[0] == "W" or not 0 <= stage < stages else [stage, stage % p]
        expect(
            answer == wanted,
            f"{spoken_action(action)} of rank {source} of {p}, with {count_of(stages, 'stage')}: goes_to"
            " does not say which stage and rank need its result",
            str(wanted),
            str(answer),
        )


def check_refused(student):
    for rank, seen in enumerate(student.call(refused_on_rank, world=2, schedule=STUCK[CROSSED]).evidence):
        what = f"{seen['raised'] or 'nothing'}, {seen['called']} passes"
        expect(
            seen["raised"] == "ValueError" and not seen["called"],
            f"execute, a schedule that gets stuck: rank {rank} raises {seen['raised'] or 'nothing'}, after"
            f" {seen['called']} passes",
            "ValueError, before anything is computed",
            what,
            rank,
        )


def last_one_counts(student, trials):
    """A premise: a last micro-batch that is left out changes some gradient of each stage."""
    (one, *_) = serial_of(trials, [*student.seeds(len(trials[0]["schedule"]))])
    whole, less = (student.reference(serial, **one, leave_out=left) for left in (None, one["m"] - 1))
    for a, b in zip(whole["gradients"], less["gradients"], strict=True):
        seen = any((a[n] - b[n]).abs().max() > 10 * REL["float32"] * a[n].abs().max() for n in a if a[n] is not None)
        student.premise(seen, "a last micro-batch that is left out")


# ---------------------------------------------------------------------------------------------------
# TODOs 7 and 8: 1F1B and interleaved


@todo(
    7,
    minutes=15,
    needs=(4, 5, 6),
    why=(
        "A schedule's bubble shrinks with more micro-batches, and with GPipe the memory grows with them: so GPipe"
        " cannot have both. With 1F1B memory does not depend on m, and every later schedule is built on it."
    ),
    hints=(
        (
            "The last rank does F0 B0 F1 B1 …: its gradient is there at once. The previous rank must do one more"
            " forward pass before the first gradient can arrive. And so on."
        ),
        (
            "Three parts for each rank: forward passes alone, pairs, backward passes alone. How many are in the first"
            " part, as a number of world and rank? The other two follow from m."
        ),
        (
            "The first part cannot have more than m. In the pairs, the forward pass is that many micro-batches ahead of"
            " the backward pass. The last part continues where the pairs end."
        ),
    ),
)
def test_todo7_one_f_one_b(student):
    draw = student.draw("1F1B")
    sizes = [(p, m) for p, m, _ in pipelines(draw)] + [(3, draw.randrange(4, 7))]  # the last one is run
    schedules = schedules_of(student, "one_f_one_b", sizes)
    for (p, m), schedule in zip(sizes, schedules, strict=True):
        told = f"one_f_one_b({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FB")
        check_alive(told, schedule, "B", [min(m, p - rank) for rank in range(p)])
        check_length(told, schedule, [(m + p - 1) * (f + b) for f, b in WORK], "GPipe's")
    check_trials(student, [fixed_trial(draw, "1F1B", schedules[-1], sizes[-1][1])])


def schedules_of(student, name, sizes):
    """The schedules that the student's function returns for these sizes."""
    (seen,) = student.call(schedules_on_rank, world=1, group=False, name=name, sizes=sizes).evidence
    return seen["schedules"]


def check_alive(told, schedule, frees, limits):
    for rank, (actions, limit) in enumerate(zip(schedule, limits, strict=True)):
        most = most_alive(actions, frees)
        first = next((n for n, (kind, _, _) in enumerate(actions) if kind != "F"), len(actions))
        all_first = first == sum(kind == "F" for kind, _, _ in actions) and first > limit
        why = ": all forward passes come first" if all_first else ""
        message = f"{told}: on rank {rank} {most} passes are alive at once{why}"
        expect(most <= limit, message, f"at most {limit}", most, rank)


WORK = ((1, 2), (3, 3), (5, 2))  # seconds of F and B


def check_length(told, schedule, limits, whose):
    """Its simulated time, for several seconds of F and B of a whole rank. A rank's chunks divide it."""
    chunks = 1 + max(chunk for actions in schedule for _, _, chunk in actions)
    for (f, b), limit in zip(WORK, limits, strict=True):
        took = length_of(schedule, {"F": f / chunks, "B": b / chunks})
        expect(
            took <= limit * (1 + 1e-9),
            f"{told}: where the layers of a rank take {f} s forward and {b} s backward, it takes {took:g} s, more than"
            f" {whose} {limit:g} s",
            f"{limit:g} s",
            f"{took:g} s",
        )


@todo(
    8,
    minutes=20,
    further=True,
    needs=(4, 5, 6),
    why=(
        "The bubble is the time until the first micro-batch has reached the last stage, and come back. Small stages are"
        " passed quickly: that is how Megatron halves the bubble, paying with messages, not with memory for weights."
    ),
    hints=(
        (
            "First write the order of a rank's forward passes as a list of (micro-batch, chunk): it is the same on all"
            " ranks. What changes in it for the backward passes?"
        ),
        (
            "Three nested loops: over groups of world micro-batches, over chunks, over the micro-batches of a group."
            " The rest is 1F1B over this list: a first part whose length depends on the rank, pairs, and the rest."
        ),
        (
            "Two lists of actions, forward and backward, of m · v each. A rank's schedule is a slice of the first list,"
            " then pairs from both, then the rest of the second; the text says how long the slice is, and it cannot be"
            " longer than the list."
        ),
    ),
)
def test_todo8_interleaved(student):
    draw = student.draw("interleaved")
    sizes = pipelines(draw, chunks=(2, 3, 4), groups=True) + pipelines(draw, chunks=(4, 2, 3), groups=True)
    sizes.append(draw.choice([(2, 4, 2), (2, 2, 3), (3, 3, 2)]))  # is run
    schedules = schedules_of(student, "interleaved", sizes)
    for size, schedule in zip(sizes, schedules, strict=True):
        check_interleaved(schedule, *size)
    with hinted("Which numbers of micro-batches cannot be divided into groups of `world`?"):
        check_groups(student)
    check_trials(student, [fixed_trial(draw, "interleaved", schedules[-1], *sizes[-1][1:])])


def check_interleaved(schedule, p, m, v):
    told = f"interleaved({p}, {m}, {v})"
    check_actions(told, schedule, p, m, v, "FB")
    check_alive(told, schedule, "B", [min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) for rank in range(p)])
    limits = [m * (f + b) + (p - 1) * (f + b) / v for f, b in WORK]
    check_length(told, schedule, limits, f"a bubble that is {v} times smaller allows:")
    # Messages are hidden by the second forward pass for each rank behind: simulated with such as take time.
    f, b = 1 / v, 2 / v
    took, best = (length_of(one, {"F": f, "B": b}, message=f / 2) for one in (schedule, interleaved_schedule(p, m, v)))
    expect(
        took <= best * (1 + 1e-9),
        f"{told}: where a message takes half as long as a forward pass of one chunk, and a backward pass twice as long,"
        f" it takes as long as {took / f:g} forward passes instead of {best / f:g}: ranks wait for messages, since too"
        " few forward passes come first",
        f"{best / f:g} forward passes of a chunk",
        f"{took / f:g}",
    )


def check_groups(student):
    grid = [(p, m, v) for p in (1, 2, 3, 4, 5) for m in range(1, 11) for v in (2, 3)]
    (seen,) = student.call(schedules_on_rank, world=1, group=False, name="interleaved", sizes=[], grid=grid).evidence
    check_refusals(
        [zip(grid, seen["refused"], strict=True)],
        refused=lambda p, m, v: m % p != 0,
        told=lambda p, m, v: f"interleaved{p, m, v}, {m} micro-batch{'es' if m > 1 else ''} on {count_of(p, 'rank')},",
    )


def interleaved_schedule(p, m, v):
    """As the text describes it."""
    order = [(first + j, chunk) for first in range(0, m, p) for chunk in range(v) for j in range(p)]
    forward = [["F", j, chunk] for j, chunk in order]
    backward = [["B", j, v - 1 - chunk] for j, chunk in order]
    schedule = []
    for rank in range(p):
        early = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p)
        pairs = [action for pair in zip(forward[early:], backward) for action in pair]
        schedule.append(forward[:early] + pairs + backward[m * v - early :])
    return schedule


# ---------------------------------------------------------------------------------------------------
# TODO 9: the backward pass in two parts


class Shift(nn.Module):
    """Two weights of the stream's shape, both added to it: autograd uses one tensor as the gradient of both."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(4, 5)), nn.Parameter(torch.zeros(4, 5))

    def forward(self, x):
        return x + self.one + self.other


class Body(nn.Module):
    """A realistic stage: with or without an embedding, layers that report, a shift, a norm."""

    def __init__(self, first, frozen, tell):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        watch = Storages()
        self.embedding = nn.Embedding(7, 5) if first else None
        self.layers = nn.ModuleList(Layer(5, draw, torch.float32, watch) for _ in range(3))
        self.shift, self.norm = Shift(), nn.LayerNorm(5)
        self.scale = nn.Parameter(torch.randn(5, generator=draw))  # its own weight, in addition to its children's
        for number, layer in enumerate(self.layers):
            layer.tell = lambda kind, number=number: tell.append([kind, number])
        if frozen:
            for p in (*(self.embedding.parameters() if first else ()), *self.layers[1].parameters(), self.norm.bias):
                p.requires_grad_(False)

    def forward(self, x):
        h = x if self.embedding is None else self.embedding(x)
        for layer in self.layers:
            h = layer(h)
        return self.scale * self.norm(self.shift(h))


def parts_on_rank(code, rank, world):
    """Backward passes in two parts, of two micro-batches: W of both after I of both. For comparison, the whole ones."""
    return [parts_of(code, *case) for case in itertools.product((False, True), repeat=3)]


def parts_of(code, first, frozen, last):
    told = []
    torch.manual_seed(4)
    stage = Body(first, frozen, told)
    xs = [torch.randint(7, (4,)) if first else torch.randn(4, 5) for _ in range(2)]
    gradients = [None if last else torch.randn(4, 5) for _ in range(2)]
    right_inputs = []
    for x, gradient in zip(xs, gradients):
        x = x.clone() if first else x.clone().requires_grad_()
        output = stage(x)
        (output.square().sum() if last else output).backward(gradient)
        right_inputs.append(x.grad)
    right = {name: p.grad for name, p in stage.named_parameters()}
    stage.zero_grad()
    told.clear()
    passed = []
    for x in xs:
        one = code.Passed(stage, x.clone() if first else x.clone().requires_grad_())
        if last:
            one.output = one.output.square().sum()
        passed.append(one)
    inputs = [code.backward_input(one, gradient) for one, gradient in zip(passed, gradients)]
    early = [name for name, p in stage.named_parameters() if p.grad is not None]
    early += ["passed.input" for one in passed if one.input.grad is not None][:1]
    in_input = list(told)
    told.clear()
    alive = weakref.ref(passed[0])
    code.backward_weights(passed.pop(0))
    gc.collect()
    gone = alive() is None
    code.backward_weights(passed.pop(0))
    return {
        "first": first,
        "frozen": frozen,
        "last": last,
        "inputs": [x if isinstance(x, torch.Tensor) else None for x in inputs],
        "right inputs": right_inputs,
        "early": early,
        "in input": in_input,
        "in weights": list(told),
        "gradients": gradients_of(stage),
        "right": right,
        "gone": gone,
    }


@todo(
    9,
    minutes=25,
    further=True,
    why=(
        "No rank waits for one half of a backward pass. Split off, it can fill the bubble; but if both halves compute"
        " the gradients between the layers, together they cost one and a half times the whole."
    ),
    hints=(
        (
            "Which gradients does the backward pass compute from the output to the input, and which of them"
            " are a layer's starting point for its weights?"
        ),
        (
            "torch.autograd.grad takes a list of tensors and gives their gradients in the same order, so one call finds"
            " the input's and those between the layers. layer.parameters(recurse=False) are a layer's own weights. It"
            " raises an error for any tensor that needs no gradient: leave those out first."
        ),
        (
            "I: a list of the input, if it needs a gradient, and of the layers' outputs that need one; one call; keep"
            " the outputs' part in passed. W: a loop over layers, outputs and kept gradients, with one call for each"
            " layer that has trainable weights; then add to grad, with a new tensor."
        ),
    ),
)
def test_todo9_parts(student):
    (seen,) = student.call(parts_on_rank, world=1, group=False).evidence
    for case in seen:
        told = (
            f"{'the first' if case['first'] else 'a'} stage{', some weights frozen' if case['frozen'] else ''}"
            f"{', the loss at its end' if case['last'] else ''}"
        )
        with hinted("I: which gradients are asked for, and in which order do they come back?"):
            check_input_part(told, case)
        with hinted("W: from which tensor does each layer's call start, and with which gradient?"):
            check_weights_part(told, case)


def check_input_part(told, case):
    for number, (got, right) in enumerate(zip(case["inputs"], case["right inputs"], strict=True)):
        what = f"backward_input, {told}:"
        if right is None:
            expect(got is None, f"{what} its input needs no gradient, and it returns one", "None", "a tensor")
            continue
        there = f"{what} no gradient comes back for micro-batch {number}, although its input needs one"
        expect(got is not None, there, f"{right.abs().max():.5g} at most", "None")
        check_tensor(f"{what} the gradient of the input of micro-batch {number}", got, right, 1e-4)
    expect(
        not case["early"],
        f"backward_input, {told}: it sets the grad of {', '.join(case['early'][:3])}",
        "no grad is changed",
        case["early"][:3],
    )
    in_input = [call for call in case["in input"] if call[0] == "weights"]
    expect(
        not in_input,
        f"backward_input, {told}: it computes the weights' gradients of {len(in_input)} layers: nothing is left for"
        " later",
        "only gradients between the layers",
        f"{len(in_input)} of weights",
    )


def check_weights_part(told, case):
    again = [call for call in case["in weights"] if call[0] == "input"]
    expect(
        not again,
        f"backward_weights, {told}: it computes gradients between the layers again, {len(again)} times: backward_input"
        " must keep what it has computed",
        "none",
        f"{len(again)}",
    )
    right, got = (
        {name: gradient for name, gradient in case[which].items() if not name.startswith("shift")}
        for which in ("right", "gradients")
    )
    check_gradients(f"backward_weights, {told}, two micro-batches", right, got, 0, 0, REL["float32"])
    for name in ("shift.one", "shift.other"):
        right, got = case["right"][name], case["gradients"][name]
        expect(
            near(got, right, 1e-4),
            f"backward_weights, {told}: of two weights that are both added to the stream, one has the wrong gradient"
            " after two micro-batches; autograd may use one tensor for both: did you write into it?",
            right,
            got,
        )
    learning = [n for n in range(3) if not (case["frozen"] and n == 1)]
    calls = [call for call in case["in weights"] if call[0] == "weights"]
    expect(
        len(calls) == 2 * len(learning),
        f"backward_weights, {told}: the gradients of {len(learning)} layers' weights for two micro-batches are computed"
        f" {len(calls)} times",
        2 * len(learning),
        len(calls),
    )
    expect(
        case["gone"],
        f"backward_weights, {told}: after it, something still refers to the finished micro-batch",
        "it can be freed",
        "it is kept",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 10: zero bubble


@todo(
    10,
    minutes=15,
    further=True,
    needs=(4, 5, 6, 7, 9),
    why=(
        "The bubble of 1F1B comes from waiting for gradients, and no rank waits for the weights' half of a backward"
        " pass. This one idea has made bubbles smaller without more messages and without more memory; DeepSeek-V3 was"
        " trained with a schedule built on it."
    ),
    hints=(
        "Start from your 1F1B. What does each of its actions become, and which actions are inserted after which?",
        (
            "action._replace(kind=…) is the same action of another kind. A deque of the W that are left gives the"
            " oldest by popleft()."
        ),
        (
            "For each action of the rank's 1F1B: append it, with I for B; after an I whose micro-batch is late enough"
            " for this rank, append the oldest W. After the loop, append the W that are left."
        ),
    ),
)
def test_todo10_zero_bubble(student):
    draw = student.draw("zero bubble")
    sizes = [(p, m) for p, m, _ in pipelines(draw)] + [(3, draw.randrange(4, 7))]  # the last one is run
    *_, run = schedules = schedules_of(student, "zero_bubble", sizes)
    for (p, m), schedule in zip(sizes, schedules, strict=True):
        told = f"zero_bubble({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FIW")
        check_alive(told, schedule, "W", [min(m, p)] * p)
        check_split_length(told, schedule, p, m)
        check_oldest_first(told, schedule)
    (events,) = check_trials(student, [fixed_trial(draw, "zero bubble", run, sizes[-1][1])])
    for rank, mine in enumerate(events):
        wanted = [number for kind, number, _ in run[rank] if kind == "W"]
        seen = [number for number, _ in itertools.groupby(number for _, _, number in notes(mine, ("weights",)))]
        told = (
            f"zero bubble on 3 ranks: rank {rank} computes the weights' gradients in an order that is not the"
            " schedule's"
        )
        expect(seen == wanted, told, wanted, seen, rank)


def check_oldest_first(told, schedule):
    """The text says which W comes next: with another order neither the time nor the number of passes alive differs."""
    for rank, actions in enumerate(schedule):
        weights = [number for kind, number, _ in actions if kind == "W"]
        early = next((number for place, number in enumerate(weights) if number != sorted(weights)[place]), None)
        message = f"{told}: rank {rank} does W{early} while an older W is left"
        expect(early is None, message, sorted(weights), weights, rank)


def check_split_length(told, schedule, p, m):
    if m < p:
        return
    for f, i, w in ((1, 1, 1), (2, 3, 1), (3, 3, 2)):
        took, limit = length_of(schedule, {"F": f, "I": i, "W": w}), m * (f + i + w) + (p - 1) * (f + i - w)
        message = f"{told}: with {f}, {i} and {w} s for F, I and W it takes {took} s; H1 takes {limit} s"
        expect(took <= limit, message, f"{limit} s", f"{took} s")


# ---------------------------------------------------------------------------------------------------
# TODO 11: predictions


@todo(
    11,
    minutes=10,
    further=True,
    why=(
        "Bubble, memory and messages can be traded for each other, and formulas say at what rate before you submit a"
        " job. Most figures in papers on pipelines come from these three lines."
    ),
    hints=(
        "A rank's time is its work plus its waiting. The bubble's share is the waiting divided by the time.",
        (
            "Rank 0 waits for the same number of ranks in every schedule; the text lists how long it waits for each."
            " Alive: the limits are in the docstrings of your schedules."
        ),
        (
            "step_seconds: m times the work, and p - 1 times a sum that depends on the name. bubble_share: one minus"
            " work over step_seconds. most_alive: a number for each name; for interleaved, passes divided by v."
        ),
    ),
)
def test_todo11_predictions(student):
    draw = student.draw("predictions")
    times, alive = predicted_times(draw), predicted_memory(draw)
    # Sums of a few numbers of float64, and a difference of two that may be close to each other.
    with hinted("For GPipe, work it out by hand: one rank's work, plus what p - 1 ranks add before it comes back."):
        right = {key: answer for key, answer in times.items() if answer != 0}
        check_answers(student, right, rel=1e-6, wrong="is not what the schedule gives")
    with hinted(
        "Which number do the docstrings of gpipe, one_f_one_b, interleaved and zero_bubble give for this rank?"
    ):
        check_answers(student, alive, rel=1e-6, wrong="is not what the schedule keeps")
    nothing = [key for key, answer in times.items() if answer == 0]
    questions = [list(arguments) for _, arguments in nothing]
    (seen,) = student.call(bubbles_on_rank, world=1, group=False, questions=questions).evidence
    for (name, arguments), answer in zip(nothing, seen, strict=True):
        none = isinstance(answer, float) and abs(answer) < 1e-9
        expect(none, f"{name}{arguments}: one rank waits for no other", 0.0, answer)


def predicted_times(draw):
    """The answers of step_seconds and bubble_share."""
    right = {}
    work = [(4, 8, 1.0, 1.0, 1.0), (8, 64, 0.03, 0.04, 0.02)]
    work += [(p, m, *numbers(draw, 3)) for p, m, _ in pipelines(draw)]
    for p, m, f, i, w in work:
        bubbles = [("GPipe", 1, f + i + w), ("1F1B", 1, f + i + w), ("zero bubble", 1, f + i - w)]
        bubbles += [("interleaved", v, (f + i + w) / v) for v in (2, 5)]
        for name, v, bubble in bubbles:
            took = m * (f + i + w) + (p - 1) * bubble
            right["step_seconds", (name, p, m, v, f, i, w)] = took
            right["bubble_share", (name, p, m, v, f, i, w)] = 1 - m * (f + i + w) / took
    return right


def predicted_memory(draw):
    """The answers of most_alive, for sizes that the schedules accept: for interleaved, whole groups of p."""
    right = {}
    for p, m, v in pipelines(draw) + pipelines(draw, chunks=(2, 3, 4), groups=True):
        for rank in range(p):
            alive = {"GPipe": m, "1F1B": min(m, p - rank), "zero bubble": min(m, p)}
            if v > 1:
                alive = {"interleaved": min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v}
            right |= {("most_alive", (name, p, m, v, rank)): float(passes) for name, passes in alive.items()}
    return right


def bubbles_on_rank(code, rank, world, questions):
    answers = [code.bubble_share(*arguments) for arguments in questions]
    return [float(answer) if isinstance(answer, (int, float)) else None for answer in answers]


# ---------------------------------------------------------------------------------------------------
# TODO 12: evaluation


def tell_on_rank(code, rank, world, values):
    return [number_in(code.on_all_ranks(value, rank, world)) for value in values]


def number_in(value):
    single = isinstance(value, (int, float)) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    return float(value) if single else kind_of(value)


def evaluate_on_rank(code, rank, world, seed, v, ms, rows, width, dtype):
    """Two evaluations in a row, of two batches each, the second batch with fewer targets. One chunk is in training
    mode, the others are not.
    """
    merciless_messages()
    sizes = v, rows, width, dtype
    return [
        evaluation(code, rank, world, seed + 500 * n, m, elsewhere, *sizes)
        for n, (m, elsewhere) in enumerate(zip(ms, (-1, IGNORE), strict=True))
    ]


def evaluation(code, rank, world, seed, m, elsewhere, v, rows, width, dtype):
    """`elsewhere`: what stands in place of targets where they mean nothing."""
    mark(kind="trial")
    kind, watch = getattr(torch, dtype), Storages()
    chunks = [Work(c * world + rank, seed + 10 + c, width, kind, watch) for c in range(v)]
    for number, chunk in enumerate(chunks):
        chunk.train(number == rank % v)
    batches = []
    for number in range(2):
        batch = batch_for(code, seed + 100 * number, rank, world, m + number, rows, width, dtype)
        ys = [torch.full_like(y, elsewhere) for y in batch.ys]
        if rank == world - 1:
            ys = evaluated_targets(seed, number, m, rows, width)
        batches.append(batch._replace(ys=ys, loss_of=share_of_loss(counted_in(ys))))
    mean = code.evaluate(chunks, batches, rank, world)
    return {
        "mean": number_in(mean),
        "modes": [[module.training for module in chunk.modules()] for chunk in chunks],
        "grads": torch.is_grad_enabled(),
        "learned": any(p.grad is not None for chunk in chunks for p in chunk.parameters()),
    }


def evaluated_targets(seed, number, m, rows, width):
    """In the second batch few targets count, and in its last micro-batch none."""
    ys = targets_of(seed + 100 * number, m + number, rows, width)
    if number:
        for y in ys[1:]:
            y[1:] = IGNORE
        ys[-1][:] = IGNORE
    return ys


def evaluated_alone(seeds, v, m, rows, width, dtype):
    world, kind = len(seeds), getattr(torch, dtype)
    stages = [Work(s, stage_seed(seeds, s, world), width, kind, tell=lambda **_: None) for s in range(world * v)]
    sums, counts = [], []
    for number in range(2):
        ys = evaluated_targets(seeds[-1], number, m, rows, width)
        total = 0.0
        for x, y in zip(inputs_of(seeds[0] + 100 * number, m + number, rows, width, kind), ys):
            for stage in stages:
                x = stage(x)
            total += F.cross_entropy(x[:, 1:], y, ignore_index=IGNORE, reduction="sum").item()
        sums.append(total)
        counts.append(counted_in(ys))
    return {"mean": sum(sums) / sum(counts), "mean of means": sum(s / c for s, c in zip(sums, counts)) / 2}


@todo(
    12,
    minutes=30,
    further=True,
    needs=(4, 5, 6),
    why=(
        "A rank that prints its own loss prints a number that is not the loss, and if ranks choose the best checkpoint"
        " by such numbers, they stop at different steps. An evaluation that keeps activations, as training must, needs"
        " more memory than training itself."
    ),
    hints=(
        (
            "One rank knows the loss, and all need it, to the last digit. And the mean of several batches is not a mean"
            " of their means: which numbers are summed, and divided by what?"
        ),
        (
            "dist.broadcast fills a tensor, whose dtype decides how many digits arrive. execute does only forward"
            " passes when the schedule has nothing else and autograd is off. A batch's losses add up to its mean:"
            " times its number of targets, they become a sum again."
        ),
        (
            "evaluate: remember the modes, eval(), execute each batch under no_grad, add sum and count where the losses"
            " are, restore the modes with train(mode); at the end divide where there is something to divide, and tell"
            " all ranks."
        ),
    ),
)
def test_todo12_evaluation(student):
    draw = student.draw("evaluation")
    trials = [evaluation_trial(student, draw, world, v) for world, v in ((2, 2), (3, 1))]
    with hinted("Which rank has the value, and which dtype keeps all its digits?"):
        check_told(student, draw)
    with hinted("Only forward passes. In which order do they go through the chunks, so that no rank waits?"):
        check_forward_only(student, draw)
    for world, ms, how, rights in trials:
        with hinted("Targets mean something on one rank only. Which ranks count them, and divide?", "crash"):
            run, v = student.call(evaluate_on_rank, world=world, seed=student.seeds(world), ms=ms, **how), how["v"]
        for number, (m, right, events) in enumerate(zip(ms, rights, events_of_trials(run.events, 2), strict=True)):
            again = ", the second evaluation in this process," if number else ","
            told = f"evaluate{again} two batches on {count_of(world, 'rank')}" + (
                f" with {v} chunks each" if v > 1 else ""
            )
            with hinted(
                "Follow one batch: which mode, which schedule, which numbers are added where, which mode comes back?"
            ):
                check_evaluation(told, events, [left[number] for left in run.evidence], right, v, m, how)


def evaluation_trial(student, draw, world, v):
    """Two evaluations of two batches each, whose means differ: (ranks, micro-batches, sizes, what is right)."""
    ms, how, rights = [draw.randrange(3, 5), 3], dict(v=v, **sizes_drawn(draw)), []
    for number, m in enumerate(ms):
        seeds = [seed + 500 * number for seed in student.seeds(world)]
        right = student.reference(evaluated_alone, seeds=seeds, m=m, **how)
        apart = abs(right["mean"] - right["mean of means"]) > 1e-3 * right["mean"]
        student.premise(apart, "a mean of the batches' means")
        rights.append(right)
    return world, ms, how, rights


def check_told(student, draw):
    """A loss is positive, but the value may be any number, and none of its digits may be lost."""
    for world in (1, 2, 3):
        values = numbers(draw, 5, "negative", "zero", "whole", "large") + [draw.uniform(1, 9) + 1e-11]
        inputs = Private([[None] * len(values)] * (world - 1) + [values])
        for rank, seen in enumerate(student.call(tell_on_rank, world=world, values=inputs).evidence):
            for value, got in zip(values, seen, strict=True):
                expect(
                    got == value,
                    f"on_all_ranks: the last of {count_of(world, 'rank')} has {value!r}, rank {rank} gets"
                    " a different number",
                    value,
                    got,
                    rank,
                )


def check_forward_only(student, draw):
    sizes = pipelines(draw, chunks=(1, 2, 3))
    for (p, m, v), schedule in zip(sizes, schedules_of(student, "forward_only", sizes), strict=True):
        told = f"forward_only({p}, {m}, {v})"
        check_actions(told, schedule, p, m, v, "F")
        if v == 1 or m >= p:
            took, limit = length_of(schedule, {"F": 1}), m * v + p - 1
            expect(took <= limit, f"{told}: with F of 1 s it takes {took} s", f"{limit} s", f"{took} s")


def check_evaluation(told, events, ranks, right, v, m, how):
    world = len(ranks)
    check_delivery(told, events)
    for rank, seen in enumerate(ranks):
        mean = seen["mean"]
        close = isinstance(mean, float) and math.isclose(mean, right["mean"], rel_tol=REL["float32"])
        of_means = isinstance(mean, float) and math.isclose(mean, right["mean of means"], rel_tol=1e-4)
        means = ": it is the mean of the batches' means" if of_means and not close else ""
        expect(
            close,
            f"{told}: on rank {rank} the mean differs from one process's{means}",
            f"{right['mean']:.6f}",
            mean,
            rank,
        )
        last = ranks[-1]["mean"]
        expect(mean == last, f"{told}: rank {rank} does not have the last rank's mean", last, mean, rank)
        check_evaluating(told, events[rank], seen, rank, v * (2 * m + 1))
        modes = [[number == rank % v] * len(mine) for number, mine in enumerate(seen["modes"])]
        whole = [mine[0] for mine in seen["modes"]] == [mine[0] for mine in modes]
        expect(
            seen["modes"] == modes,
            f"{told}: after it {'layers inside ' if whole else ''}the chunks of rank {rank} are not back in their mode",
            "training" if modes[0][0] else "eval mode",
            "the other mode",
            rank,
        )
        expect(seen["grads"], f"{told}: after it autograd is off on rank {rank}", "on", "off", rank)
    nbytes = how["rows"] * (1 + how["width"]) * BYTES[how["dtype"]]
    sizes = bytes_between(world, v, (2 * m + 1) * nbytes, back=False)
    # The loss may be sent in messages: 8 bytes, or two numbers.
    check_messages(told, events, sizes, collectives_allowed=True, more=16)


def check_evaluating(told, events, seen, rank, wanted):
    passes = [e for e in events if e["e"] == "mark" and e.get("kind") == "forward"]
    message = f"{told}: rank {rank} computes {len(passes)} forward passes"
    expect(len(passes) == wanted, message, wanted, len(passes), rank)
    for mode, words in (("train", "in training mode, with dropout"), ("mixed", "with layers in training mode")):
        expect(
            all(e["mode"] != mode for e in passes),
            f"{told}: rank {rank} evaluates {words}",
            "eval mode",
            "training mode",
            rank,
        )
    expect(
        not any(e["grad"] for e in passes),
        f"{told}: rank {rank} evaluates with autograd on, which keeps activations",
        "no_grad",
        "autograd",
        rank,
    )
    expect(
        not seen["learned"] and not notes(events, ("back",)),
        f"{told}: rank {rank} runs a backward pass in an evaluation",
        "forward passes only",
        "a backward pass",
        rank,
    )

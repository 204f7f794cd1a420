"""Checks and hints of 05_pipeline_parallel.

| TODO | achievement                  | evidence                                                                | needs |
|------|------------------------------|-------------------------------------------------------------------------|-------|
| 1    | the model cut by cost        | costs; the slowest stage of drawn costs; names, values, bytes of stages |       |
| 2    | one stage at a time          | loss and gradients on 1 to 5 ranks; messages; who computed what         |       |
| 3    | micro-batches                | loss and gradients, targets ignored unequally; what is alive            |       |
| 4    | GPipe; times of any schedule | actions; times of drawn schedules; those that get stuck                 |       |
| 5    | any schedule executed        | order of the passes, losses, gradients, messages, bytes; drawn schedules; nothing kept without autograd | 4     |
| 6    | 1F1B                         | actions, simulated time, passes alive; a run, and the bytes alive in it | 4, 5  |
| 7    | interleaved                  | the same                                                                | 4, 5  |
| 8    | zero bubble                  | gradients of either part, and which part computes them; then as of 6    | 4, 5  |
| 9    | predictions                  | the formulas                                                            |       |
| 10   | evaluation                   | values on all ranks; modes; what is kept                                | 4, 5  |

Each rank draws the weights of its own stages from a seed that no other rank has; the first rank alone draws the inputs,
and the last one the targets. So a rank can have right gradients only by messages. The stages tell the judge of each
pass through them: the number of the micro-batch travels with it, in the first column of what goes from stage to stage.
"""  # noqa: E501

import gc
import itertools
import math
import weakref

import torch
import torch.nn.functional as F
from torch import nn

from grader.kit import (
    Private,
    check_answers,
    collectives,
    expect,
    kind_of,
    mark,
    merciless_messages,
    premise,
    rehearse,
    sound,
    todo,
)
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

BUILDS = "stages, micro-batches, any schedule executed: GPipe, 1F1B, interleaved, zero bubble; the bubble of each"

# Gradients are sums over micro-batches in another order than in the reference: in float32 they differ by 2e-7 of the
# largest number, in float64 by 1e-16. A micro-batch left out changes them by a tenth, at least; see the premises.
REL = {"float32": 1e-4, "float64": 1e-10}


# ---------------------------------------------------------------------------------------------------
# TODO 1: cut


def block_cost(dim, length):
    return 24 * dim * dim + 4 * length * dim


def slowest(costs, stages):
    """The cost of the slowest stage of the best cut: the least limit that stages filled one after the other keep."""
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


def cuts_on_rank(code, rank, world, costs):
    found = [plain_lists(code.cut(list(mine), stages)) for mine, stages in costs]
    return {"cuts": found, "too few": raised(lambda: code.cut([1.0, 2.0], 3))}


def raised(call):
    """The name of what a call raises; "" if nothing."""
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


def plain_lists(value):
    """Lists of numbers as evidence can hold them; else in words what it is."""
    if isinstance(value, (list, tuple)) and all(isinstance(part, (list, tuple, range)) for part in value):
        return [[int(n) for n in part] for part in value]
    return f"{value!r:.80}"


def tiny_model(dropout=0.0):
    torch.manual_seed(0)
    return TransformerLM(vocab_size=23, dim=6, n_heads=2, n_layers=3, max_len=5, dropout=dropout)


CUTS = ([[0, 1, 2, 3, 4]], [[0], [1, 2, 3, 4]], [[0, 1], [2, 3], [4]], [[0], [1], [2], [3], [4]], [[0, 1, 2, 3], [4]])


def stages_on_rank(code, rank, world):
    """Each stage of each cut: its names, values, bytes; and what the stages give one after the other."""
    seen = []
    x = torch.randint(23, (2, 4), generator=torch.Generator().manual_seed(1))
    for cut in CUTS:
        whole = tiny_model(dropout=0.2)
        torch.manual_seed(2)
        right = whole(x)
        weights = {name: p.detach().clone() for name, p in whole.named_parameters()}
        stages = [code.Stage(whole, list(pieces)) for pieces in cut]
        torch.manual_seed(2)
        h = x
        for stage in stages:
            h = stage(h)
        same = isinstance(h, torch.Tensor) and h.shape == right.shape and torch.allclose(h, right, rtol=1e-6, atol=1e-6)
        found = {"same": same, "shape": list(h.shape) if isinstance(h, torch.Tensor) else type(h).__name__}
        state = [
            {
                name: bool(name in weights and value.shape == weights[name].shape and torch.equal(value, weights[name]))
                for name, value in s.state_dict().items()
            }
            for s in stages
        ]
        seen.append(found | {"state": state, "bytes": [stage_bytes(stage) for stage in stages]})
    return seen


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


def piece_of(name):
    """The piece of the tiny model that a parameter belongs to."""
    if "embedding" in name:
        return 0
    return 1 + int(name.split(".")[1]) if name.startswith("blocks.") else 4


@todo(
    1,
    minutes=45,
    why=(
        "A pipeline runs at the speed of its slowest stage: a stage that takes twice as long halves all the others. And"
        " a stage that keeps the other stages' weights saves no memory, which is what the cut was for."
    ),
    hints=(
        (
            "Costs: count the numbers in a piece's weights, twice, and add attention's two products. Cut: the sum of a"
            " stage's costs is what matters, and of that the largest over the stages."
        ),
        (
            "cut: for each of combinations(range(1, n), stages - 1) the bounds are (0, *places, n), and"
            " pairwise(bounds) gives each stage's begin and end. Stage: assigning a module to an attribute registers"
            " it; nn.ModuleDict({'2': block}) names its parameters '2.…'."
        ),
        (
            "24 * dim**2 + 4 * length * dim for a block, 2 * dim * vocab_size for the head. Stage: self.blocks ="
            " nn.ModuleDict({str(n - 1): model.blocks[n - 1] for n in pieces if 0 < n < last}); the embeddings and"
            " model.dropout if 0 in pieces, norm and head if the last piece is."
        ),
    ),
)
def test_todo1_cut(student):
    right = {}
    for layers, dim, length, vocab in ((4, 64, 64, 2000), (1, 10, 3, 7), (12, 768, 1024, 50257)):
        right["costs_of_pieces", (layers, dim, length, vocab)] = (
            0.0,
            *[float(block_cost(dim, length))] * layers,
            2.0 * dim * vocab,
        )
    check_answers(student, right, wrong="is not what these pieces cost")

    draw = student.draw("cut")
    costs = [
        ([1.0, 1.0, 1.0, 9.0], 2),
        ([5.0], 1),
        ([4.0, 4.0, 4.0], 3),
        ([0.0, 1.0, 1.0, 1.0, 1.0, 3.0], 3),
        ([9.0, 1.0, 1.0, 1.0], 2),
        ([0.0] + [1.0] * 9 + [6.0], 4),
        ([1.0, 8.0, 5.0, 4.0, 7.0, 2.0, 6.0], 3),  # the most even stages are others
    ]
    costs += [([float(draw.randrange(1, 20)) for _ in range(draw.randrange(5, 9))], stages) for stages in (2, 3, 4)]
    (seen,) = student.call(cuts_on_rank, world=1, group=False, costs=costs).evidence
    for (mine, stages), found in zip(costs, seen["cuts"], strict=True):
        what = f"cut({mine}, {stages})"
        expect(
            isinstance(found, list),
            f"{what} does not return a list of lists of numbers",
            f"{stages} lists of numbers",
            found,
        )
        flat = [n for part in found for n in part]
        expect(
            len(found) == stages and all(found),
            f"{what} does not make {stages} stages with a piece each, at least",
            f"{stages} stages",
            found,
        )
        expect(
            flat == list(range(len(mine))),
            f"{what} does not have each piece once, in order",
            list(range(len(mine))),
            found,
        )
        took = max(sum(mine[n] for n in part) for part in found)
        expect(
            took == slowest(mine, stages),
            f"{what}: the slowest stage costs {took:g}, and another cut's {slowest(mine, stages):g}",
            f"{slowest(mine, stages):g}",
            f"{took:g}: {found}",
        )
    expect(
        seen["too few"] == "ValueError",
        "cut([1.0, 2.0], 3): two pieces cannot be three stages, and nothing is raised that says so",
        "ValueError",
        seen["too few"] or "nothing",
    )

    (seen,) = student.call(stages_on_rank, world=1, group=False).evidence
    sizes = {name: 4 * p.numel() for name, p in tiny_model().named_parameters()}
    for cut, found in zip(CUTS, seen, strict=True):
        for number, (pieces, state, held) in enumerate(zip(cut, found["state"], found["bytes"], strict=True)):
            what = f"the stage of pieces {pieces} (of 5: embeddings, three blocks, norm and head)"
            own = {name for name in sizes if piece_of(name) in pieces}
            for name in sorted(own - state.keys()):
                named = f"; it has {sorted(state.keys() - sizes.keys())[0]}" if state.keys() - sizes.keys() else ""
                expect(False, f"{what} has no parameter that is called {name}{named}", name, sorted(state)[:6])
            for name in sorted(state.keys() - own):
                expect(
                    False,
                    (
                        f"{what} holds {name}, which belongs to piece {piece_of(name)}"
                        if name in sizes
                        else f"{what} has {name}, which the model has not"
                    ),
                    f"the weights of pieces {pieces} alone",
                    f"{len(state)} parameters, {len(own)} of them its own",
                )
            for name, same in state.items():
                expect(same, f"{what}: {name} has not the model's values", "the model's", "others")
            own_bytes = sum(sizes[name] for name in own)
            expect(
                held <= own_bytes,
                f"{what} keeps {held:,} bytes alive: it has the weights of other stages, though it does not name them"
                " as its own",
                f"{own_bytes:,} bytes",
                f"{held:,} bytes",
            )
        expect(
            found["same"],
            f"the stages {cut} one after the other do not give what the model gives (dropout 0.2, same seed)",
            "the model's logits, of shape [2, 4, 23]",
            f"others, of shape {found['shape']}",
        )


# ---------------------------------------------------------------------------------------------------
# Stages that tell what they do


class Told(torch.autograd.Function):
    """The tensor as it is. When its gradient comes by, `tell` is called."""

    @staticmethod
    def forward(ctx, tensor, tell):
        ctx.tell = tell
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx, gradient):
        ctx.tell()
        return gradient, None


class Layer(nn.Module):
    """x + tanh(W x + b). Autograd keeps the tanh, and `watch` notes it. Without autograd nothing is to be kept, and it
    notes what the layer gives.
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
        x = Told.apply(x, lambda: tell("input"))
        inner = torch.tanh(F.linear(x, Told.apply(self.weight, lambda: tell("weights")), self.bias))
        output = x + inner
        self.watch.note([inner if torch.is_grad_enabled() else output])
        return output


class Work(nn.Module):
    """A stage of two layers. The first column of what goes through it is the number of the micro-batch."""

    def __init__(self, stage, seed, width, dtype, watch=None, tell=None):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.watch = Storages() if watch is None else watch
        self.layers = nn.ModuleList(Layer(width, draw, dtype, self.watch) for _ in range(2))
        if stage % 2 == 0:
            self.layers[0].bias.requires_grad_(False)
        self.stage, self.tell, self.most = stage, tell or mark, 0

    def forward(self, x):
        number = x[0, 0].item() if x.dim() == 2 and len(x) else math.nan
        number = round(number) if math.isfinite(number) and abs(number) < 1e6 else -1
        about = {"stage": self.stage, "microbatch": number}
        self.tell(kind="forward", rows=list(x.shape), training=self.training, grad=torch.is_grad_enabled(), **about)
        h = x[:, 1:]
        for layer in self.layers:
            layer.tell = lambda kind: self.tell(kind=kind, **about)
            if layer is not self.layers[0] and torch.is_grad_enabled():
                self.watch.note([h])  # autograd keeps it for the weight, and `Passed` for itself
            h = layer(h)
        self.most = max(self.most, sum(self.watch.live().values()))
        return Told.apply(torch.cat([x[:, :1], h], dim=1), lambda: self.tell(kind="back", **about))


def share_of_loss(counted):
    """The loss function of a batch with so many targets that count. Targets are classes."""

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
    """Targets of m micro-batches; of each, another number counts."""
    draw = torch.Generator().manual_seed(seed + 2)
    y = torch.randint(width, (m, rows), generator=draw)
    for number in range(1, m):
        y[number, : number % rows] = IGNORE
    return list(y)


def counted_in(ys):
    return max(1, sum(int((y != IGNORE).sum()) for y in ys))


def stage_seed(seeds, stage, world):
    return seeds[stage % world] + 10 + stage // world


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
    """A list of losses as evidence; else in words what it is."""
    if not isinstance(value, (list, tuple)):
        return kind_of(value)
    if not all(isinstance(x, (int, float)) or (isinstance(x, torch.Tensor) and x.numel() == 1) for x in value):
        return "a list of something else than losses"
    return [float(x) for x in value]


def check_gradients(told, right, seen, rank, stage, rel):
    for name, gradient in right.items():
        got = seen.get(name)
        what = f"{told}: the gradient of {name} of stage {stage}, on rank {rank}"
        if gradient is None:
            expect(got is None, f"{what}: it is frozen, and has a gradient", "None", "a gradient", rank)
            continue
        expect(
            isinstance(got, torch.Tensor),
            f"{what} is not there: no backward pass came here",
            "a gradient",
            "None",
            rank,
        )
        scale = gradient.abs().max().item()
        off = (got - gradient).abs().max().item() if got.shape == gradient.shape else math.inf
        zero = ": it is all zeros" if not got.any() else ""
        expect(
            off <= rel * scale,
            f"{what} is not that of one process{zero}",
            f"within {rel * scale:.1g} (values up to {scale:.3g})",
            f"{off:.3g} off",
            rank,
        )


def check_messages(told, run, sizes, collectives_allowed=False):
    """`sizes` maps (source, target) to the bytes that are to go from one to the other."""
    messages, _ = rehearse(run.events)
    if not collectives_allowed:
        calls = collectives(run.events)
        expect(
            not calls,
            f"{told}: rank {calls[0].rank if calls else 0} calls {calls[0].op if calls else ''}, in which all take"
            " part; stages send messages to their neighbours",
            "messages",
            calls[0].op if calls else "",
        )
    for pair in sorted({*sizes, *((message.source, message.target) for message in messages)}):
        sent = sum(message.bytes for message in messages if (message.source, message.target) == pair)
        due = sizes.get(pair, 0)
        expect(
            sent == due,
            f"{told}: from rank {pair[0]} to rank {pair[1]} go {sent:,} bytes; activations and gradients that cross"
            f" there are {due:,}",
            f"{due:,} bytes",
            f"{sent:,} bytes",
            pair[0],
        )


def bytes_between(p, v, nbytes, back=True):
    """What goes from rank to rank if each boundary between two stages is crossed by so many bytes, and back."""
    sizes = {}
    for stage in range(p * v - 1):
        a, b = stage % p, (stage + 1) % p
        for pair in ((a, b), (b, a)) if back else ((a, b),):
            if a != b:
                sizes[pair] = sizes.get(pair, 0) + nbytes
    return sizes


def notes(events, kinds):
    """What the stages of a rank told: [(kind, stage, micro-batch)]."""
    return [(e["kind"], e["stage"], e["microbatch"]) for e in events if e["e"] == "mark" and e.get("kind") in kinds]


# ---------------------------------------------------------------------------------------------------
# TODO 2: one stage at a time


def naive_on_rank(code, rank, world, seed, rows, width, dtype):
    merciless_messages()
    kind = getattr(torch, dtype)
    stage = Work(rank, seed + 10, width, kind)
    rubbish = torch.full((rows, 1 + width), math.nan, dtype=kind)
    x = inputs_of(seed, 1, rows, width, kind)[0] if rank == 0 else rubbish.clone()
    y = targets_with_gaps(seed, rows, width) if rank == world - 1 else torch.full((rows,), -1)
    loss = code.naive_step(stage, x, y, rubbish, share_of_loss(max(1, int((y >= 0).sum()))), rank, world)
    plain = (
        loss.item()
        if isinstance(loss, torch.Tensor) and loss.numel() == 1
        else loss
        if isinstance(loss, float)
        else None
        if loss is None
        else kind_of(loss)
    )
    return {
        "loss": plain,
        "history": isinstance(loss, torch.Tensor) and loss.requires_grad,
        "gradients": gradients_of(stage),
        "like": rubbish.requires_grad or rubbish.grad is not None,
    }


def targets_with_gaps(seed, rows, width):
    y = targets_of(seed, 1, rows, width)[0]
    y[1::3] = IGNORE
    return y


def naive_serial(seeds, rows, width, dtype):
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
        "Every pipeline is made of these two messages. Who forgets the second one has a run that looks right, for the"
        " last stage learns, and the loss falls: but all the other stages stand still."
    ),
    hints=(
        (
            "Follow the batch: received, asked for its gradient, computed, sent. Then follow the gradient back:"
            " received, through the stage, sent."
        ),
        (
            "x = torch.empty_like(like), dist.recv(x, rank - 1), x.requires_grad_(). After the backward pass the"
            " gradient to send is x.grad. Only the last rank has a loss; the others call output.backward(gradient) with"
            " what they receive."
        ),
        (
            "if rank > 0: receive x. output = stage(x). Last rank: loss_of(output, y).backward(). Others:"
            " dist.send(output.detach(), rank + 1), dist.recv(gradient, rank + 1), output.backward(gradient). if rank >"
            " 0: dist.send(x.grad, rank - 1)."
        ),
    ),
)
def test_todo2_naive(student):
    draw = student.draw("naive")
    for world, dtype in ((1, "float32"), (2, "float64"), (3, "float32"), (5, "float32")):
        sizes = dict(rows=draw.randrange(2, 6), width=draw.randrange(3, 6), dtype=dtype)
        seeds = student.seeds(world)
        told = f"a batch of {sizes['rows']} rows in {dtype} on {world} rank{'s' if world > 1 else ''}"
        run = student.call(naive_on_rank, world=world, seed=seeds, **sizes)
        right = student.reference(naive_serial, seeds=[*seeds], **sizes)
        premise(
            all(g.abs().max() > 0 for stage in right["gradients"] for g in stage.values() if g is not None),
            "gradients that are zero",
        )
        rel = REL[dtype]
        sound(told, run.events)
        for rank, seen in enumerate(run.evidence):
            passes = notes(run.events[rank], ("forward", "back"))
            expect(
                passes[:1] == [("forward", rank, 0)],
                f"{told}: rank {rank} computes no forward pass of what came to it from the first rank",
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
            if rank == world - 1:
                loss = seen["loss"]
                what = "no loss" if loss is None else "another loss than one process has"
                expect(
                    isinstance(loss, float) and math.isclose(loss, right["loss"], rel_tol=rel),
                    f"{told}: the last rank returns {what}",
                    f"{right['loss']:.6f}",
                    loss,
                    rank,
                )
                expect(
                    not seen["history"],
                    f"{told}: the loss that is returned keeps its history, and with it what it was computed from",
                    "a tensor that needs no gradient",
                    "one that does",
                    rank,
                )
            else:
                expect(
                    seen["loss"] is None,
                    f"{told}: rank {rank} returns a loss, but it has none",
                    "None",
                    seen["loss"],
                    rank,
                )
            check_gradients(told, right["gradients"][rank], seen["gradients"], rank, rank, rel)
            expect(
                not seen["like"],
                f"{told}: on rank {rank} the caller's `like` has a gradient afterwards, and the next call adds to it",
                "a tensor of this call's own that asks for one",
                "`like` itself",
                rank,
            )
        nbytes = sizes["rows"] * (1 + sizes["width"]) * (8 if dtype == "float64" else 4)
        check_messages(told, run, bytes_between(world, 1, nbytes))


def spoken_passes(passes):
    """[(kind, stage, micro-batch)] in words."""
    words = [f"{kind} {number}" if number >= 0 else f"{kind} of rubbish" for kind, _, number in passes]
    return ", ".join(words if len(words) < 12 else [*words[:11], "…"]) or "nothing"


# ---------------------------------------------------------------------------------------------------
# TODO 3: micro-batches


def made_tokens(rows, length, counted):
    """Tokens, and targets of which in row r the first counted[r] count."""
    draw = torch.Generator().manual_seed(rows)
    x, y = torch.randint(23, (2, rows, length), generator=draw)
    for row, n in enumerate(counted):
        y[row, n:] = IGNORE
    return x, y


def split_on_rank(code, rank, world, cases):
    """The pieces of each batch, shares of losses, and the gradients of a model."""
    seen = []
    for rows, counted, m in cases:
        x, y = made_tokens(rows, 4, counted)
        before = x.clone(), y.clone()
        parts = code.split(x, y, m)
        two = (
            isinstance(parts, (list, tuple))
            and len(parts) == 2
            and all(isinstance(p, (list, tuple)) and all(isinstance(t, torch.Tensor) for t in p) for p in parts)
        )
        found = {
            "xs": [t.clone() for t in parts[0]] if two else None,
            "ys": [t.clone() for t in parts[1]] if two else None,
            "kept": torch.equal(x, before[0]) and torch.equal(y, before[1]),
        }
        loss_of = code.loss_of_batch(y)
        logits = torch.randn(rows, 4, 23, generator=torch.Generator().manual_seed(5))
        shares = [loss_of(logits[row : row + 1], y[row : row + 1]) for row in range(rows)]
        found["shares"] = plain_losses(shares)
        found |= accumulated(code, x, y, m)
        seen.append(found)
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
        passes.append([list(args[0].shape), sum(kept.live().values())])

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


def check_split(what, found, rows, counted, m):
    expect(
        found["xs"] is not None, f"{what} does not return two lists of tensors", "(inputs, targets)", "something else"
    )
    x, y = made_tokens(rows, 4, counted)
    size = math.ceil(rows / m)
    for name, parts, whole, fill in (("inputs", found["xs"], x, 0), ("targets", found["ys"], y, IGNORE)):
        shapes = [list(part.shape) for part in parts]
        wrong_way = (
            ": the batch is the first dimension"
            if any(part.dim() == 2 and part.shape[1] != 4 for part in parts)
            else ""
        )
        expect(
            shapes == [[size, 4]] * m,
            f"{what}: {name} of a batch of {rows} rows of 4 tokens have other shapes{wrong_way}",
            [[size, 4]] * m,
            shapes,
        )
        right = torch.cat([whole, torch.full((m * size - rows, 4), fill)])
        got = torch.cat(list(parts))
        expect(
            torch.equal(got[:rows], right[:rows]),
            f"{what}: the {name} are not the batch's rows in order",
            right[:rows].tolist(),
            got[:rows].tolist(),
        )
        expect(
            torch.equal(got, right),
            f"{what}: the rows that are filled up have other {name}",
            fill,
            got[rows:].flatten().tolist(),
        )


@todo(
    3,
    minutes=30,
    why=(
        "A mean of means gives a target in a micro-batch with few of them more weight than others have. The loss curve"
        " looks right, and the model is another one. And one batch that does not divide makes some rank wait for rows"
        " that never come."
    ),
    hints=(
        "Count the targets of the whole batch once, and divide every micro-batch's sum by that count.",
        (
            "new_full makes the rows that are missing, torch.cat appends them, .split(rows) cuts along the first"
            " dimension. reduction='sum' is the sum; (y != IGNORE).sum() the count. It may be 0, and then"
            " must not be divided by: max(1, count)."
        ),
        (
            "rows = math.ceil(len(x) / m); cat, then list(x.split(rows)). loss_of: cross_entropy(…, reduction='sum') /"
            " max(1, count). accumulate: for each pair of parts, loss.backward(), and keep loss.detach()."
        ),
    ),
)
def test_todo3_microbatches(student):
    draw = student.draw("microbatches")
    cases = [
        (rows, [draw.randrange(0, 5) for _ in range(rows - 1)] + [4], m)
        for rows, m in ((6, 3), (5, 2), (4, 4), (7, 1), (3, 5))
    ]
    cases += [(4, [4, 1, 0, 0], 2), (4, [0, 0, 0, 0], 2)]
    (seen,) = student.call(split_on_rank, world=1, group=False, cases=cases).evidence
    for (rows, counted, m), found in zip(cases, seen, strict=True):
        what = f"split(x, y, {m}) of {rows} rows"
        check_split(what, found, rows, counted, m)
        expect(found["kept"], f"{what} changes the batch it is given", "the same tensors", "others")
        right = student.reference(whole_batch, rows=rows, counted=counted)
        told = f"a batch of {rows} rows of which {counted} targets count, in {m} micro-batch{'es' if m > 1 else ''}"
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
            f"loss_of_batch, {told}: its rows' shares are not each row's sum over the number of targets of the whole"
            " batch that count",
            rounded(shares),
            rounded(found["shares"]),
        )
        if sum(counted) and len({n for n in counted if n}) > 1 and rows == 4 and m == 2:
            premise(abs(right["mean of means"] - right["loss"]) > 1e-4 * right["loss"], "a mean of means")
        loss = found["loss"]
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
        size = math.ceil(rows / m)
        shapes = [shape for shape, _ in found["passes"]]
        expect(
            shapes == [[size, 4]] * m,
            f"accumulate, {told}: the model is called on other inputs",
            [[size, 4]] * m,
            shapes,
        )
        for number, (_, nbytes) in enumerate(found["passes"]):
            expect(
                nbytes == 0,
                f"accumulate, {told}: when micro-batch {number} begins, {nbytes:,} bytes of activations of those before"
                " are still kept",
                "0 bytes",
                f"{nbytes:,} bytes",
            )
        (
            check_gradients(f"accumulate, {told}", right["gradients"], found["gradients"], 0, 0, REL["float32"])
            if sum(counted)
            else check_zeros(told, found["gradients"])
        )


def rounded(values):
    return [round(x, 5) for x in values] if isinstance(values, list) else values


def check_zeros(told, gradients):
    for name, gradient in gradients.items():
        expect(
            gradient is None or not gradient.any(),
            f"accumulate, {told}: no target counts, and {name} has a gradient",
            "zeros",
            "numbers" if gradient.isfinite().all() else "nan",
        )


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
                return f"a list with {action!r:.60} in it, which is no Action"
        rows.append([[str(kind), int(number), int(chunk)] for kind, number, chunk in actions])
    return rows


def schedules_on_rank(code, rank, world, name, sizes, refused):
    return {
        "schedules": [plain_schedule(getattr(code, name)(*size)) for size in sizes],
        "refused": [raised(lambda size=size: getattr(code, name)(*size)) for size in refused],
    }


def spoken_action(action):
    return f"{action[0]}{action[1]}" + (f" of chunk {action[2]}" if action[2] else "")


def times_of(schedule, seconds, message=0):
    """(times as `simulate` returns them, rank and action that wait for ever or None). A message takes so many
    seconds.
    """
    world = len(schedule)
    last = max((chunk * world + rank for rank, actions in enumerate(schedule) for _, _, chunk in actions), default=0)
    times, ends = [[] for _ in schedule], {}
    while True:
        before = sum(map(len, times))
        for rank, actions in enumerate(schedule):
            while len(times[rank]) < len(actions):
                kind, number, chunk = actions[len(times[rank])]
                stage = chunk * world + rank
                if kind == "F":
                    need = None if stage == 0 else ("F", number, stage - 1)
                elif kind == "W":
                    need = ("I", number, stage)
                else:
                    need = ("F", number, stage) if stage == last else ("I", number, stage + 1)
                if need and need not in ends:
                    break
                there = ends.get(need, 0) + (message if need and need[2] % world != rank else 0)
                begin = max(times[rank][-1][1] if times[rank] else 0, there)
                times[rank].append([begin, begin + seconds[kind]])
                if kind != "W":
                    ends["F" if kind == "F" else "I", number, stage] = begin + seconds[kind]
        if sum(map(len, times)) == before:
            stuck = next(
                (
                    (rank, actions[len(times[rank])])
                    for rank, actions in enumerate(schedule)
                    if len(times[rank]) < len(actions)
                ),
                None,
            )
            return times, stuck


def length_of(schedule, seconds, message=0):
    return max(mine[-1][1] for mine in times_of(schedule, seconds, message)[0] if mine)


def most_alive(actions, frees):
    """The most passes that are alive at once: forward, and not yet freed."""
    alive = most = 0
    for kind, _, _ in actions:
        alive += (kind == "F") - (kind in frees)
        most = max(most, alive)
    return most


def check_actions(told, schedule, p, m, v, kinds):
    """Whether each rank does everything once, and nobody waits for ever."""
    expect(
        isinstance(schedule, list),
        f"{told} is no schedule: it returns {schedule}",
        f"a list of actions for each of {p} ranks",
        schedule,
    )
    expect(
        len(schedule) == p, f"{told} has {len(schedule)} lists of actions", f"one for each of {p} ranks", len(schedule)
    )
    for rank, actions in enumerate(schedule):
        expect(
            bool(actions),
            f"{told}: rank {rank} does nothing, its list of actions is empty",
            f"{len(kinds) * m * v} actions",
            "none",
            rank,
        )
        due = [[kind, number, chunk] for chunk in range(v) for number in range(m) for kind in kinds]
        for action in due:
            expect(
                action in actions,
                f"{told}: rank {rank} never does {spoken_action(action)}",
                spoken_action(action),
                f"{len(actions)} others",
                rank,
            )
        for action in actions:
            expect(
                action in due,
                f"{told}: rank {rank} does {spoken_action(action)}, which is not to be done",
                f"{', '.join(kinds)} of {m} micro-batches",
                spoken_action(action),
                rank,
            )
            expect(
                actions.count(action) == 1,
                f"{told}: rank {rank} does {spoken_action(action)} {actions.count(action)} times",
                "once",
                actions.count(action),
                rank,
            )
    _, stuck = times_of(schedule, dict.fromkeys("FBIW", 1))
    expect(
        stuck is None,
        f"{told} gets stuck: rank {stuck and stuck[0]} waits for ever for what {stuck and spoken_action(stuck[1])}"
        " needs",
        "a schedule that comes to its end",
        stuck and f"rank {stuck[0]} at {spoken_action(stuck[1])}",
    )


def random_schedule(draw, p, m, v, split):
    """Some schedule that comes to its end: one after the other, any rank does anything that is possible."""
    schedule, done = [[] for _ in range(p)], set()
    last = p * v - 1
    todo_left = {
        (kind, number, stage) for kind in ("FIW" if split else "FB") for number in range(m) for stage in range(p * v)
    }

    def possible(kind, number, stage):
        if kind == "F":
            return stage == 0 or ("F", number, stage - 1) in done
        if kind == "W":
            return ("I", number, stage) in done
        return ("F", number, last) in done if stage == last else (kind, number, stage + 1) in done

    while todo_left:
        kind, number, stage = chosen = draw.choice(sorted(act for act in todo_left if possible(*act)))
        todo_left.remove(chosen)
        done.add(chosen)
        schedule[stage % p].append([kind, number, stage // p])
    return schedule


def gpipe_schedule(p, m):
    return [[["F", j, 0] for j in range(m)] + [["B", j, 0] for j in range(m)] for _ in range(p)]


# ---------------------------------------------------------------------------------------------------
# TODO 4: GPipe, and times


def read(*ranks):
    """A schedule of one chunk a rank from words, one for each rank: "F0 F1 B0 B1"."""
    return [[[action[0], int(action[1:]), 0] for action in actions.split()] for actions in ranks]


CROSSED = "rank 0 wants B0 before F1, rank 1 F1 before B0"
STUCK = {  # schedules that do not come to their end, by the reason
    CROSSED: read("F0 B0 F1 B1", "F0 F1 B0 B1"),
    "the last rank goes backward before it goes forward": read("F0 B0", "B0 F0"),
    "rank 1 leaves out micro-batch 1": read("F0 F1 B0 B1", "F0 B0"),
    "W comes before I": read("F0 W0 I0"),
}


def simulate_on_rank(code, rank, world, schedules, stuck, seconds):
    def simulated(schedule):
        return code.simulate(actions_of(code, schedule), dict(seconds))

    found = []
    for schedule in schedules:
        try:
            times = simulated(schedule)
            found.append([[[float(t) for t in span] for span in mine] for mine in times])
        except ValueError as error:
            found.append(f"a ValueError: {error}")
        except TypeError:
            found.append("something that is no list of (begin, end) for each rank")
    return {"times": found, "stuck": [raised(lambda schedule=schedule: simulated(schedule)) for schedule in stuck]}


def actions_of(code, schedule):
    return [[code.Action(*action) for action in actions] for actions in schedule]


@todo(
    4,
    minutes=50,
    why=(
        "A schedule that is data can be drawn, compared, and checked before it costs a single GPU hour; torch, Megatron"
        " and DeepSeek keep theirs as lists of actions, too. And a schedule that gets stuck is a bug that one finds"
        " here in a millisecond, and on 64 nodes after the time limit."
    ),
    hints=(
        (
            "GPipe: the same list for every rank. The simulator: note when each result was there, by direction,"
            " micro-batch and stage; an action begins at the later of two times."
        ),
        (
            "ends[(direction, micro-batch, stage)] = time. For each rank, go on with its next action as long as what it"
            " needs is in ends; go round all ranks until nobody moved. If then a rank has actions left, raise"
            " ValueError."
        ),
        (
            "begin = max(end of this rank's action before, ends.get(need, 0)); end = begin + seconds[action.kind]. F"
            " needs ('forward', j, stage - 1), W ('backward', j, stage), B and I ('backward', j, stage + 1), on the"
            " last stage ('forward', j, stage)."
        ),
    ),
)
def test_todo4_gpipe_and_times(student):
    draw = student.draw("times")
    sizes = [(1, 1), (2, 3), (3, 2), (4, 8), (draw.randrange(5, 9), draw.randrange(3, 12))]
    (seen,) = student.call(schedules_on_rank, world=1, group=False, name="gpipe", sizes=sizes, refused=[]).evidence
    for (p, m), schedule in zip(sizes, seen["schedules"], strict=True):
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
        took, due = length_of(schedule, {"F": 2, "B": 5}), (m + p - 1) * 7
        expect(
            took <= due,
            f"{told}: with F of 2 s and B of 5 s it takes {took} s: the ranks' orders do not fit one another",
            f"{due} s",
            f"{took} s",
        )

    seconds = dict(zip("FBIW", draw.sample(range(1, 10), 4)))
    schedules = [gpipe_schedule(3, 4)]
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
    (seen,) = student.call(
        simulate_on_rank, world=1, group=False, schedules=schedules, stuck=list(STUCK.values()), seconds=seconds
    ).evidence
    for schedule, times in zip(schedules, seen["times"], strict=True):
        told = (
            f"simulate, a schedule of {len(schedule)} rank{'s' if len(schedule) > 1 else ''} that begins with"
            f" {spoken_actions(schedule[-1])} on rank {len(schedule) - 1}; seconds: {seconds}"
        )
        right, _ = times_of(schedule, seconds)
        expect(isinstance(times, list), f"{told}: it gives {times}", "times", times)
        expect(
            [len(mine) for mine in times] == [len(mine) for mine in right],
            f"{told}: it has not a time for each action",
            [len(mine) for mine in right],
            [len(mine) for mine in times],
        )
        for rank, (mine, due) in enumerate(zip(times, right, strict=True)):
            for action, span, true in zip(schedule[rank], mine, due, strict=True):
                same = len(span) == 2 and all(math.isclose(a, b, abs_tol=1e-9) for a, b in zip(span, true))
                expect(
                    same,
                    f"{told}: {spoken_action(action)} on rank {rank} is at another time",
                    f"from {true[0]} to {true[1]} s",
                    f"from {span[0]:g} to {span[-1]:g} s" if span else "nothing",
                    rank,
                )
    for why, error in zip(STUCK, seen["stuck"], strict=True):
        expect(
            error == "ValueError",
            f"simulate: a schedule that gets stuck ({why}) raises {error or 'nothing'}",
            "ValueError",
            error or "nothing",
        )


def spoken_actions(actions):
    shown = [spoken_action(action) for action in actions[:5]]
    return ", ".join(shown)


# ---------------------------------------------------------------------------------------------------
# TODO 5: execute


def execute_on_rank(code, rank, world, seed, schedule, v, m, rows, width, dtype, grad=True):
    """Execute a schedule, with autograd or without; what this rank got, and what it kept."""
    merciless_messages()
    kind, watch = getattr(torch, dtype), Storages()
    chunks = [Work(c * world + rank, seed + 10 + c, width, kind, watch) for c in range(v)]
    rubbish = torch.full((rows, 1 + width), math.nan, dtype=kind)
    xs = inputs_of(seed, m, rows, width, kind) if rank == 0 else [rubbish.clone() for _ in range(m)]
    ys = targets_of(seed, m, rows, width) if rank == world - 1 else [torch.full((rows,), -1) for _ in range(m)]
    batch = code.Batch(xs, ys, rubbish, share_of_loss(counted_in(ys)))
    with torch.set_grad_enabled(grad):
        losses = code.execute(actions_of(code, schedule), chunks, batch, rank, world)
    gc.collect()
    history = isinstance(losses, (list, tuple)) and any(isinstance(x, torch.Tensor) and x.requires_grad for x in losses)
    return {
        "losses": plain_losses(losses),
        "history": history,
        "gradients": [gradients_of(chunk) for chunk in chunks],
        "most": max(chunk.most for chunk in chunks),
        "left": sum(watch.live().values()),
    }


def refused_on_rank(code, rank, world, schedule):
    """A schedule that gets stuck: what is raised, and whether a stage was called before."""
    watch = []
    stage = Work(rank, 1, 3, torch.float32, tell=lambda **about: watch.append(about["kind"]))
    xs = inputs_of(0, 2, 2, 3, torch.float32)
    batch = code.Batch(xs, [torch.zeros(2, dtype=torch.int64)] * 2, torch.zeros(2, 4), share_of_loss(4))
    error = raised(lambda: code.execute(actions_of(code, schedule), [stage], batch, rank, world))
    return {"raised": error, "called": len(watch)}


def goes_on_rank(code, rank, world, questions):
    return [
        plain_pair(code.goes_to(code.Action(*action), source, p, stages)) for action, source, p, stages in questions
    ]


def plain_pair(value):
    return (
        [int(n) for n in value]
        if isinstance(value, (tuple, list)) and all(isinstance(n, int) for n in value)
        else None
        if value is None
        else f"{value!r:.60}"
    )


def sizes_drawn(draw, dtype="float32"):
    return dict(rows=draw.randrange(2, 5), width=draw.randrange(3, 6), dtype=dtype)


def check_run(student, told, schedule, v, m, sizes, frees="BW"):
    """Execute a schedule on ranks. All that it leaves is compared with one process's, its passes with the schedule."""
    p = len(schedule)
    seeds = student.seeds(p)
    run = student.call(execute_on_rank, world=p, seed=seeds, schedule=schedule, v=v, m=m, **sizes)
    right = student.reference(serial, seeds=[*seeds], v=v, m=m, **sizes)
    rel = REL[sizes["dtype"]]
    nbytes = sizes["rows"] * (1 + sizes["width"]) * (8 if sizes["dtype"] == "float64" else 4)
    stream = sizes["rows"] * sizes["width"] * (8 if sizes["dtype"] == "float64" else 4)
    unit = 3 * stream  # what is kept of a pass, as far as it is watched
    for rank, events in enumerate(run.events):
        if len(notes(events, ("forward", "back"))) < sum(kind != "W" for kind, *_ in schedule[rank]):
            check_order(told, events, schedule[rank], rank, p, sizes)  # what is not done may leave messages in flight
    sound(told, run.events)
    for rank, seen in enumerate(run.evidence):
        check_order(told, run.events[rank], schedule[rank], rank, p, sizes)
        due = right["losses"] if rank == p - 1 else []
        got = seen["losses"]
        expect(isinstance(got, list), f"{told}: rank {rank} returns {got}", "a list", got, rank)
        expect(
            len(got) == len(due),
            f"{told}: rank {rank} returns {len(got)} losses; {'the last stage is on it' if due else 'it has none'}",
            len(due),
            len(got),
            rank,
        )
        for number, (a, b) in enumerate(zip(got, due)):
            expect(
                math.isclose(a, b, rel_tol=rel, abs_tol=1e-6),
                f"{told}: the loss of micro-batch {number} is another one",
                b,
                a,
                rank,
            )
        expect(
            not seen["history"],
            f"{told}: the losses that rank {rank} returns keep their history",
            "tensors that need no gradient",
            "some that do",
            rank,
        )
        for chunk in range(v):
            check_gradients(
                told, right["gradients"][chunk * p + rank], seen["gradients"][chunk], rank, chunk * p + rank, rel
            )
        most = most_alive(schedule[rank], frees)
        # A name may hold the last `Passed` until the next one takes it, when autograd has let go of its part already.
        expect(
            seen["most"] <= most * unit + stream,
            f"{told}: rank {rank} keeps {seen['most']:,} bytes of activations at once, of {seen['most'] / unit:g}"
            f" passes; by the schedule at most {most} are alive: what stays of those that went backward?",
            f"{most * unit:,} bytes",
            f"{seen['most']:,} bytes",
            rank,
        )
        expect(
            seen["most"] >= unit,
            f"{told}: rank {rank} keeps {seen['most']:,} bytes of activations at most, less than those of one pass",
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
    check_messages(told, run, bytes_between(p, v, m * nbytes))
    return run


def check_without_autograd(student, sizes):
    """Forward passes alone, as an evaluation makes them: nothing of one is kept when the next one is made."""
    p, v, m = 2, 2, 5
    schedule = [[["F", j, chunk] for chunk in range(v) for j in range(m)] for _ in range(p)]
    told = f"execute without autograd, forward passes alone on {p} ranks with {v} chunks each, {m} micro-batches"
    seeds = student.seeds(p)
    run = student.call(execute_on_rank, world=p, seed=seeds, schedule=schedule, v=v, m=m, grad=False, **sizes)
    right = student.reference(serial, seeds=[*seeds], v=v, m=m, **sizes)
    sound(told, run.events)
    one = 2 * sizes["rows"] * sizes["width"] * 4  # what the two layers of a stage give, float32
    for rank, seen in enumerate(run.evidence):
        check_order(told, run.events[rank], schedule[rank], rank, p, sizes)
        due = right["losses"] if rank == p - 1 else []
        same = isinstance(seen["losses"], list) and len(seen["losses"]) == len(due)
        same = same and all(
            math.isclose(a, b, rel_tol=REL["float32"], abs_tol=1e-6) for a, b in zip(seen["losses"], due)
        )
        expect(same, f"{told}: rank {rank} returns other losses", due, seen["losses"], rank)
        # A pass may be let go of only when the next one is made: twice its layers, and not five or ten times.
        expect(
            seen["most"] <= 2 * one and seen["left"] == 0,
            f"{told}: rank {rank} keeps what {max(seen['most'], seen['left']) / one:g} passes have made, though no"
            " backward pass will come",
            f"of at most 2 passes at once, {2 * one:,} bytes; in the end nothing",
            f"{seen['most']:,} bytes at once, {seen['left']:,} in the end",
            rank,
        )
    nbytes = sizes["rows"] * (1 + sizes["width"]) * 4
    check_messages(told, run, bytes_between(p, v, m * nbytes, back=False))


def check_order(told, events, actions, rank, p, sizes):
    """The passes that the stages told of are those of the schedule, in its order."""
    rows = [sizes["rows"], 1 + sizes["width"]]
    shapes = [e["rows"] for e in events if e["e"] == "mark" and e.get("kind") == "forward"]
    expect(
        all(shape == rows for shape in shapes),
        f"{told}: rank {rank} computes a forward pass of something else than one micro-batch",
        f"shape {rows}",
        next((s for s in shapes if s != rows), ""),
        rank,
    )
    due = [
        ("forward" if kind == "F" else "back", chunk * p + rank, number)
        for kind, number, chunk in actions
        if kind != "W"
    ]
    seen = notes(events, ("forward", "back"))
    for number, (a, b) in enumerate(itertools.zip_longest(seen, due)):
        expect(
            a == b,
            f"{told}: action {number + 1} of rank {rank} is another one than the schedule says",
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


@todo(
    5,
    minutes=80,
    needs=(4,),
    why=(
        "Here pipelines break. Two neighbours that both send first come through while messages are small and stored on"
        " the way, and hang when the model grows. And a message that is taken for another one of the same shape breaks"
        " nothing at all: the model just learns nonsense."
    ),
    hints=(
        (
            "Keep three things apart: what has gone forward and not yet back; what is arriving, by what it is and for"
            " which stage; and what is being sent. Then take the ticks one by one: act, then post."
        ),
        (
            "In each tick: first, what my own action makes. Then for every (source, action) of the tick, goes_to"
            " says for whom it is: if source is me, isend to the target and keep the work; if the target is me, make"
            " room, irecv from the source, and keep (room, work) under (kind, micro-batch, stage). An action takes its"
            " input from there, and waits for the work. What has arrived for a forward pass needs requires_grad_()."
        ),
        (
            "F: x = batch.xs[j] on stage 0, else what has arrived; result = Passed(chunk, x); on the last stage"
            " result.output = batch.loss_of(result.output, batch.ys[j]); keep result; send result.output.detach(). B:"
            " send backward(kept.pop(...), gradient), where gradient is None on the last stage. In the end wait for all"
            " that was sent."
        ),
    ),
)
def test_todo5_execute(student):
    draw = student.draw("execute")
    questions = [
        ([kind, number, chunk], source, p, p * v)
        for p, v in ((1, 1), (2, 1), (3, 2), (4, 3))
        for kind in "FBIW"
        for chunk in range(v)
        for source in range(p)
        for number in (0, 2)
    ]
    (answers,) = student.call(goes_on_rank, world=1, group=False, questions=questions).evidence
    for (action, source, p, stages), answer in zip(questions, answers, strict=True):
        stage = action[2] * p + source + {"F": 1, "B": -1, "I": -1, "W": 0}[action[0]]
        due = None if action[0] == "W" or not 0 <= stage < stages else [stage, stage % p]
        expect(
            answer == due,
            f"{spoken_action(action)} of rank {source} of {p}, with {stages} stage{'s' if stages > 1 else ''}: goes_to"
            " does not say which stage and rank need its result",
            str(due),
            str(answer),
        )

    for rank, seen in enumerate(student.call(refused_on_rank, world=2, schedule=STUCK[CROSSED]).evidence):
        expect(
            seen["raised"] == "ValueError" and not seen["called"],
            f"execute, a schedule that gets stuck: rank {rank} raises {seen['raised'] or 'nothing'}, after"
            f" {seen['called']} passes",
            "ValueError, before anything is computed",
            f"{seen['raised'] or 'nothing'}, {seen['called']} passes",
            rank,
        )

    crossing = read("F0 F1 B0 B1", "F1 F0 B1 B0")
    trials = [
        ("GPipe", gpipe_schedule(3, 4), 1, 4, "float32"),
        ("a schedule whose ranks take the micro-batches in other orders", crossing, 1, 2, "float64"),
    ]
    in_turn = read("F0 F1 B0 F2 B1 F3 B2 F4 B3 B4", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4")
    trials.append(("forward and backward in turn", in_turn, 1, 5, "float32"))  # many have passed when one more comes
    for p, m, v in ((1, 2, 2), (2, 3, 2), (4, 5, 1), (2, draw.randrange(4, 7), 1)):
        trials.append(("a drawn schedule", random_schedule(draw, p, m, v, split=False), v, m, "float32"))
    for name, schedule, v, m, dtype in trials:
        p, sizes = len(schedule), sizes_drawn(draw, dtype)
        told = (
            f"{name} on {p} rank{'s' if p > 1 else ''}"
            + (f" with {v} chunks each" if v > 1 else "")
            + f", {m} micro-batches, {dtype}"
        )
        if name == "GPipe":
            whole, less = (
                student.reference(serial, seeds=[*student.seeds(p)], v=v, m=m, **sizes, leave_out=number)
                for number in (None, m - 1)
            )
            apart = [  # of each stage some gradient, since all of them are compared
                any((a[n] - b[n]).abs().max() > 10 * REL[dtype] * a[n].abs().max() for n in a if a[n] is not None)
                for a, b in zip(whole["gradients"], less["gradients"])
            ]
            premise(all(apart), "a last micro-batch that is left out")
        check_run(student, told, schedule, v, m, sizes)
    check_without_autograd(student, sizes_drawn(draw))


# ---------------------------------------------------------------------------------------------------
# TODOs 6, 7 and 8: schedules


@todo(
    6,
    minutes=15,
    needs=(4, 5),
    why=(
        "A schedule's bubble shrinks with more micro-batches, and with GPipe the memory grows with them: so GPipe"
        " cannot have both. With 1F1B memory does not depend on m, and every later schedule is built on it."
    ),
    hints=(
        (
            "The last rank does F0 B0 F1 B1 …: the gradient is there at once. The rank before it must do one more"
            " forward pass before the first gradient can be back. And so on."
        ),
        (
            "early = world - 1 - rank forward passes, but not more than m. Then m - early times: the next forward pass,"
            " the next backward pass. Then the backward passes that are left."
        ),
        (
            "actions = [Action('F', j) for j in range(early)]; for j in range(m - early): += [Action('F', early + j),"
            " Action('B', j)]; += [Action('B', j) for j in range(m - early, m)]."
        ),
    ),
)
def test_todo6_one_f_one_b(student):
    draw = student.draw("1F1B")
    sizes = [(1, 3), (2, 1), (2, 5), (3, 3), (4, 8), (5, 2), (draw.randrange(5, 9), draw.randrange(8, 14))]
    (seen,) = student.call(
        schedules_on_rank, world=1, group=False, name="one_f_one_b", sizes=sizes, refused=[]
    ).evidence
    for (p, m), schedule in zip(sizes, seen["schedules"], strict=True):
        told = f"one_f_one_b({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FB")
        check_alive(told, schedule, "B", lambda rank, p=p, m=m: min(m, p - rank))
        check_length(told, schedule, lambda f, b, p=p, m=m: (m + p - 1) * (f + b), "GPipe's")
    m = draw.randrange(4, 7)
    schedule = of_size(seen, sizes, student, "one_f_one_b", (3, m))
    check_run(student, f"1F1B on 3 ranks, {m} micro-batches", schedule, 1, m, sizes_drawn(draw))


def of_size(seen, sizes, student, name, size):
    """The student's schedule of one more size."""
    if tuple(size) in map(tuple, sizes):
        return seen["schedules"][sizes.index(tuple(size))]
    (more,) = student.call(schedules_on_rank, world=1, group=False, name=name, sizes=[size], refused=[]).evidence
    return more["schedules"][0]


def check_alive(told, schedule, frees, limit):
    for rank, actions in enumerate(schedule):
        most, due = most_alive(actions, frees), limit(rank)
        first = next((n for n, (kind, _, _) in enumerate(actions) if kind != "F"), len(actions))
        all_first = (
            ": all forward passes come first"
            if first == sum(kind == "F" for kind, _, _ in actions) and first > due
            else ""
        )
        expect(
            most <= due,
            f"{told}: on rank {rank} {most} passes are alive at once{all_first}",
            f"at most {due}",
            most,
            rank,
        )


WORK = ((1, 2), (3, 3), (5, 2))  # seconds of F and B


def check_length(told, schedule, formula, whose):
    """Its simulated time, for several seconds of F and B of a whole rank. A rank's chunks share it."""
    for f, b in WORK:
        chunks = 1 + max(chunk for actions in schedule for _, _, chunk in actions)
        took, due = length_of(schedule, {"F": f / chunks, "B": b / chunks}), formula(f, b)
        expect(
            took <= due * (1 + 1e-9),
            f"{told}: where the layers of a rank take {f} s forward and {b} s backward, it takes {took:g} s, more than"
            f" {whose} {due:g} s",
            f"{due:g} s",
            f"{took:g} s",
        )


@todo(
    7,
    minutes=20,
    further=True,
    needs=(4, 5),
    why=(
        "The bubble is the time until the first micro-batch has reached the last stage, and back. Small stages are"
        " quickly passed: Megatron halves the bubble so, and pays with messages, not with memory for weights."
    ),
    hints=(
        (
            "First write the order of a rank's forward passes as a list of (micro-batch, chunk): it is the same on all"
            " ranks. That of the backward passes is the same list with the chunks turned round."
        ),
        (
            "Three loops: first micro-batch of a group (range(0, m, world)), chunk, micro-batch within the group. early"
            " = min(m * v, 2 * (world - 1 - rank) + (v - 1) * world). Then as with 1F1B."
        ),
        (
            "order = [(first + j, c) for first in range(0, m, world) for c in range(v) for j in range(world)]; forward"
            " = Action('F', j, c), backward = Action('B', j, v - 1 - c). forward[:early], then pairs of forward[early:]"
            " and backward, then backward[m * v - early:]."
        ),
    ),
)
def test_todo7_interleaved(student):
    draw = student.draw("interleaved")
    sizes = [(1, 2, 2), (2, 2, 2), (2, 4, 3), (3, 3, 2), (4, 8, 2), (3, 6, 1), (4, 12, 3), (5, 10, 2)]
    (seen,) = student.call(
        schedules_on_rank, world=1, group=False, name="interleaved", sizes=sizes, refused=[(2, 3, 2), (4, 6, 2)]
    ).evidence
    for (p, m, v), schedule in zip(sizes, seen["schedules"], strict=True):
        told = f"interleaved({p}, {m}, {v})"
        check_actions(told, schedule, p, m, v, "FB")
        check_alive(told, schedule, "B", lambda rank, p=p, m=m, v=v: min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1))
        check_length(
            told,
            schedule,
            lambda f, b, p=p, m=m, v=v: m * (f + b) + (p - 1) * (f + b) / v,
            f"a bubble that is {v} times smaller allows:",
        )
        check_hidden_messages(told, schedule, interleaved_schedule(p, m, v), v)
    for size, error in zip(((2, 3, 2), (4, 6, 2)), seen["refused"], strict=True):
        expect(
            error == "ValueError",
            f"interleaved{size}: {size[1]} micro-batches are no multiple of {size[0]} ranks, and nothing is raised that"
            " says so",
            "ValueError",
            error or "nothing",
        )
    p, m, v = draw.choice([(2, 4, 2), (2, 2, 3), (3, 3, 2)])
    schedule = of_size(seen, sizes, student, "interleaved", (p, m, v))
    check_run(
        student, f"interleaved on {p} ranks with {v} chunks each, {m} micro-batches", schedule, v, m, sizes_drawn(draw)
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


def check_hidden_messages(told, schedule, right, v):
    """That messages are hidden by the second forward pass for each rank behind: simulated with such as take time."""
    f, b = 1 / v, 2 / v
    took, due = (length_of(one, {"F": f, "B": b}, message=f / 2) for one in (schedule, right))
    expect(
        took <= due * (1 + 1e-9),
        f"{told}: where a message takes half as long as a forward pass of one chunk, and a backward pass twice as long,"
        f" it takes as long as {took / f:g} forward passes, in place of {due / f:g}: ranks wait for messages, since too"
        " few forward passes come first",
        f"{due / f:g} forward passes of a chunk",
        f"{took / f:g}",
    )


class Shift(nn.Module):
    """Two weights of the stream's shape, both added to it: autograd has one tensor as the gradient of both."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(4, 5)), nn.Parameter(torch.zeros(4, 5))

    def forward(self, x):
        return x + self.one + self.other


class Body(nn.Module):
    """A stage as a model may have it: an embedding or not, layers that tell, a shift, a norm."""

    def __init__(self, first, frozen, tell):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        watch = Storages()
        self.embedding = nn.Embedding(7, 5) if first else None
        self.layers = nn.ModuleList(Layer(5, draw, torch.float32, watch) for _ in range(3))
        self.shift, self.norm = Shift(), nn.LayerNorm(5)
        self.scale = nn.Parameter(torch.randn(5, generator=draw))  # a weight of its own, beside its children's
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
    """Backward passes in two parts, of two micro-batches: W of both after I of both. Beside them the whole ones."""
    seen = []
    for first, frozen, last in itertools.product((False, True), repeat=3):
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
        passed, inputs = [], []
        for x in xs:
            x = x.clone() if first else x.clone().requires_grad_()
            one = code.Passed(stage, x)
            if last:
                one.output = one.output.square().sum()
            passed.append(one)
        for one, gradient in zip(passed, gradients):
            inputs.append(code.backward_input(one, gradient))
        early = [name for name, p in stage.named_parameters() if p.grad is not None]
        in_input = list(told)
        told.clear()
        alive = weakref.ref(passed[0])
        code.backward_weights(passed.pop(0))
        gc.collect()
        gone = alive() is None
        code.backward_weights(passed.pop(0))
        seen.append(
            {
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
        )
    return seen


def check_parts(seen):
    for case in seen:
        told = (
            f"{'the first' if case['first'] else 'a'} stage{', some weights frozen' if case['frozen'] else ''}"
            f"{', the loss at its end' if case['last'] else ''}"
        )
        for number, (got, right) in enumerate(zip(case["inputs"], case["right inputs"], strict=True)):
            if right is None:
                expect(
                    got is None,
                    f"backward_input, {told}: its input needs no gradient, and it returns one",
                    "None",
                    "a tensor",
                )
            else:
                same = got is not None and got.shape == right.shape and torch.allclose(got, right, rtol=1e-4, atol=1e-6)
                expect(
                    same,
                    f"backward_input, {told}: "
                    + (
                        f"nothing comes back for micro-batch {number}, whose input needs its gradient"
                        if got is None
                        else f"the gradient of the input of micro-batch {number} is another one"
                    ),
                    f"{right.abs().max():.5g} at most",
                    (
                        "None"
                        if got is None
                        else (
                            f"off by {(got - right).abs().max():.3g}"
                            if got.shape == right.shape
                            else f"shape {list(got.shape)}"
                        )
                    ),
                )
        expect(
            not case["early"],
            f"backward_input, {told}: weights have a gradient already: {', '.join(case['early'][:3])}",
            "none until backward_weights",
            case["early"][:3],
        )
        in_input = [call for call in case["in input"] if call[0] == "weights"]
        expect(
            not in_input,
            f"backward_input, {told}: it computes gradients of weights, of {len(in_input)} layers: nothing is left to"
            " do later",
            "only gradients between the layers",
            f"{len(in_input)} of weights",
        )
        again = [call for call in case["in weights"] if call[0] == "input"]
        expect(
            not again,
            f"backward_weights, {told}: it computes gradients between the layers again, {len(again)} times: what"
            " backward_input has computed is to be kept",
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
                got is not None and torch.allclose(got, right, rtol=1e-4, atol=1e-6),
                f"backward_weights, {told}: of two weights that are both added to the stream, one has another gradient"
                " after two micro-batches; autograd may give both the same tensor: is it written into?",
                right,
                got,
            )
        learning = [n for n in range(3) if not (case["frozen"] and n == 1)]
        calls = [call for call in case["in weights"] if call[0] == "weights"]
        expect(
            len(calls) == 2 * len(learning),
            f"backward_weights, {told}: the gradients of {len(learning)} layers' weights for two micro-batches are"
            f" computed {len(calls)} times",
            2 * len(learning),
            len(calls),
        )
        expect(
            case["gone"],
            f"backward_weights, {told}: after it, something still refers to the micro-batch that has passed",
            "it can be freed",
            "it is kept",
        )


def check_split_length(told, schedule, p, m):
    for f, i, w in ((1, 1, 1), (2, 3, 1), (3, 3, 2)):
        took, due = length_of(schedule, {"F": f, "I": i, "W": w}), m * (f + i + w) + (p - 1) * (f + i - w)
        if m >= p:
            expect(
                took <= due,
                f"{told}: with F, I and W of {f}, {i} and {w} s it takes {took} s; H1 takes {due} s",
                f"{due} s",
                f"{took} s",
            )


@todo(
    8,
    minutes=35,
    further=True,
    needs=(4, 5, 6),
    why=(
        "The bubble of 1F1B comes from waiting for gradients. But nobody waits for half of a backward pass. It is the"
        " one idea that has made bubbles smaller without more messages and without more memory; DeepSeek-V3 was trained"
        " with a schedule built on it."
    ),
    hints=(
        (
            "I: all gradients that are between two layers, and no weight's. W: each layer by itself, from its output's"
            " gradient. The schedule is your 1F1B, with W put in."
        ),
        (
            "torch.autograd.grad(passed.output, [input, *outputs], gradient, retain_graph=True) gives all of them in"
            " order. Keep those of the outputs in passed. In W, per layer: torch.autograd.grad(output, weights, its"
            " gradient), and only for weights whose requires_grad is True: asking for a frozen one's is an error. If"
            " all that leads to a layer's output is frozen, that output needs no gradient: leave it out of I and W."
            " Schedule: keep a deque of the W's that are left."
        ),
        (
            "passed.layers keeps those whose output.requires_grad is True. found = torch.autograd.grad(...);"
            " passed.gradients = found[len(inputs):]. W: for (layer, output), gradient: weights = those of"
            " layer.parameters(recurse=False) that learn, if any; grad(output, weights, gradient, retain_graph=True),"
            " added to weight.grad. Schedule: for each"
            " action of 1F1B, F as it is, B as I, and after I of micro-batch j >= rank the oldest W; at the end the"
            " other W's."
        ),
    ),
)
def test_todo8_zero_bubble(student):
    (seen,) = student.call(parts_on_rank, world=1, group=False).evidence
    check_parts(seen)
    draw = student.draw("zero bubble")
    sizes = [(1, 3), (2, 1), (2, 5), (3, 3), (4, 8), (5, 2), (draw.randrange(5, 9), draw.randrange(8, 14))]
    (seen,) = student.call(
        schedules_on_rank, world=1, group=False, name="zero_bubble", sizes=sizes, refused=[]
    ).evidence
    for (p, m), schedule in zip(sizes, seen["schedules"], strict=True):
        told = f"zero_bubble({p}, {m})"
        check_actions(told, schedule, p, m, 1, "FIW")
        check_alive(told, schedule, "W", lambda rank, p=p, m=m: min(m, p))
        check_split_length(told, schedule, p, m)
    m = draw.randrange(4, 7)
    schedule = of_size(seen, sizes, student, "zero_bubble", (3, m))
    run = check_run(student, f"zero bubble on 3 ranks, {m} micro-batches", schedule, 1, m, sizes_drawn(draw), frees="W")
    for rank, events in enumerate(run.events):
        weights = notes(events, ("weights",))
        due = [number for kind, number, _ in schedule[rank] if kind == "W"]
        seen_order = [number for number, _ in itertools.groupby(number for _, _, number in weights)]
        expect(
            seen_order == due,
            f"zero bubble on 3 ranks: rank {rank} computes the weights' gradients in another order than the"
            " schedule's W",
            due,
            seen_order,
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 9: predictions


@todo(
    9,
    minutes=10,
    further=True,
    why=(
        "Bubble, memory and messages are traded for one another, and formulas say at what rate before a job is sent."
        " Most papers' figures of pipelines are these three lines."
    ),
    hints=(
        (
            "The time is what a rank works, m (F + I + W), and what it waits. The share is what it waits over the time."
            " The limits of your schedules are what is alive."
        ),
        (
            "Waiting: (p - 1) (F + I + W), divided by v; for zero bubble (p - 1) (F + I - W). Share: 1 - work / time."
            " Alive: m, min(m, p - rank), min(m, p); interleaved: the passes of its docstring over v."
        ),
        (
            "step_seconds = m * (f + i + w) + bubble; bubble_share = 1 - m * (f + i + w) / step_seconds(...);"
            " interleaved: min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v."
        ),
    ),
)
def test_todo9_predictions(student):
    right = {}
    for p, m, f, i, w in (
        (4, 8, 1.0, 1.0, 1.0),
        (1, 3, 2.0, 3.0, 1.0),
        (8, 64, 0.03, 0.04, 0.02),
        (2, 2, 1.0, 2.0, 0.5),
    ):
        work = m * (f + i + w)
        for name, v, bubble in (
            ("GPipe", 1, f + i + w),
            ("1F1B", 1, f + i + w),
            ("interleaved", 2, (f + i + w) / 2),
            ("interleaved", 5, (f + i + w) / 5),
            ("zero bubble", 1, f + i - w),
        ):
            took = work + (p - 1) * bubble
            right["step_seconds", (name, p, m, v, f, i, w)] = took
            right["bubble_share", (name, p, m, v, f, i, w)] = 1 - work / took
    for p, m, v in ((4, 8, 1), (4, 2, 1), (3, 3, 2), (4, 8, 4), (1, 4, 2)):
        for rank in range(p):
            alive = {"GPipe": m, "1F1B": min(m, p - rank), "zero bubble": min(m, p)} if v == 1 else {}
            alive["interleaved"] = min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v
            right |= {("most_alive", (name, p, m, v, rank)): float(passes) for name, passes in alive.items()}
    # Sums of a few numbers of float64, and a difference of two that may be close to one another.
    check_answers(
        student,
        {key: answer for key, answer in right.items() if answer != 0},
        rel=1e-6,
        wrong="is not what the schedule gives",
    )
    nothing = [key for key, answer in right.items() if answer == 0]
    (seen,) = student.call(
        bubbles_on_rank, world=1, group=False, questions=[list(arguments) for _, arguments in nothing]
    ).evidence
    for (name, arguments), answer in zip(nothing, seen, strict=True):
        expect(
            isinstance(answer, float) and abs(answer) < 1e-9,
            f"{name}{arguments}: one rank waits for nobody",
            0.0,
            answer,
        )


def bubbles_on_rank(code, rank, world, questions):
    answers = [code.bubble_share(*arguments) for arguments in questions]
    return [float(answer) if isinstance(answer, (int, float)) else None for answer in answers]


# ---------------------------------------------------------------------------------------------------
# TODO 10: evaluation


def tell_on_rank(code, rank, world, value):
    answer = code.on_all_ranks(value, rank, world)
    return (
        float(answer)
        if isinstance(answer, (int, float)) or (isinstance(answer, torch.Tensor) and answer.numel() == 1)
        else kind_of(answer)
    )


def evaluate_on_rank(code, rank, world, seed, v, m, rows, width, dtype):
    """Two batches of which the second has fewer targets. One chunk is in training mode, the others are not."""
    merciless_messages()
    kind, watch = getattr(torch, dtype), Storages()
    chunks = [Work(c * world + rank, seed + 10 + c, width, kind, watch) for c in range(v)]
    for number, chunk in enumerate(chunks):
        chunk.train(number == rank % v)
    rubbish = torch.full((rows, 1 + width), math.nan, dtype=kind)
    batches = []
    for number in range(2):
        xs = (
            inputs_of(seed + 100 * number, m + number, rows, width, kind)
            if rank == 0
            else [rubbish.clone() for _ in range(m + number)]
        )
        ys = (
            evaluated_targets(seed, number, m, rows, width)
            if rank == world - 1
            else [torch.full((rows,), -1) for _ in range(m + number)]
        )
        batches.append(code.Batch(xs, ys, rubbish, share_of_loss(counted_in(ys))))
    mean = code.evaluate(chunks, batches, rank, world)
    return {
        "mean": (
            float(mean)
            if isinstance(mean, (int, float)) or (isinstance(mean, torch.Tensor) and mean.numel() == 1)
            else kind_of(mean)
        ),
        "modes": [chunk.training for chunk in chunks],
        "grads": torch.is_grad_enabled(),
        "learned": any(p.grad is not None for chunk in chunks for p in chunk.parameters()),
    }


def evaluated_targets(seed, number, m, rows, width):
    """Of the second batch few count, and of its last micro-batch none."""
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
    10,
    minutes=30,
    further=True,
    needs=(4, 5),
    why=(
        "A rank that prints a loss of its own prints a number that is not the loss, and a rank that chooses the best"
        " checkpoint by it stops at another step than the others. An evaluation that keeps activations, as training"
        " must, needs more memory than training itself."
    ),
    hints=(
        (
            "Who knows the loss? One rank. What brings what one rank has to all? And of several batches: sums and"
            " counts, divided once."
        ),
        (
            "dist.broadcast of a float64 tensor from rank world - 1. execute(forward_only(…), …) under torch.no_grad()."
            " A batch's loss is the sum of its shares; times its number of targets that count it is a sum again."
        ),
        (
            "box = torch.tensor([value if rank == world - 1 else 0.0], dtype=torch.float64); dist.broadcast(box, world"
            " - 1). total += counted * sum(losses), count += counted; on_all_ranks(total / count …). Remember"
            " [chunk.training for chunk in chunks] before chunk.eval(), and chunk.train(mode) after."
        ),
    ),
)
def test_todo10_evaluation(student):
    draw = student.draw("evaluation")
    for world in (1, 2, 3):
        value = draw.uniform(1, 9) + 1e-11
        for rank, seen in enumerate(
            student.call(tell_on_rank, world=world, value=Private([None] * (world - 1) + [value])).evidence
        ):
            expect(
                seen == value,
                f"on_all_ranks: the last of {world} rank{'s' if world > 1 else ''} has {value!r}, rank {rank} gets"
                " something else",
                value,
                seen,
                rank,
            )
    sizes = [(1, 1, 1), (2, 3, 1), (3, 2, 1), (4, 8, 1), (2, 4, 2), (3, 3, 3), (4, 6, 2)]
    (seen,) = student.call(
        schedules_on_rank, world=1, group=False, name="forward_only", sizes=sizes, refused=[]
    ).evidence
    for (p, m, v), schedule in zip(sizes, seen["schedules"], strict=True):
        told = f"forward_only({p}, {m}, {v})"
        check_actions(told, schedule, p, m, v, "F")
        if v == 1 or m >= p:
            took, due = length_of(schedule, {"F": 1}), m * v + p - 1
            expect(took <= due, f"{told}: with F of 1 s it takes {took} s", f"{due} s", f"{took} s")
    for world, v in ((2, 2), (3, 1)):
        how = dict(v=v, m=draw.randrange(3, 5), **sizes_drawn(draw))
        told = f"evaluate, two batches on {world} ranks" + (f" with {v} chunks each" if v > 1 else "")
        seeds = student.seeds(world)
        run = student.call(evaluate_on_rank, world=world, seed=seeds, **how)
        right = student.reference(evaluated_alone, seeds=[*seeds], **how)
        premise(abs(right["mean"] - right["mean of means"]) > 1e-3 * right["mean"], "a mean of the batches' means")
        sound(told, run.events)
        for rank, seen in enumerate(run.evidence):
            close = isinstance(seen["mean"], float) and math.isclose(
                seen["mean"], right["mean"], rel_tol=REL["float32"]
            )
            means = (
                ": it is the mean of the batches' means"
                if not close
                and isinstance(seen["mean"], float)
                and math.isclose(seen["mean"], right["mean of means"], rel_tol=1e-4)
                else ""
            )
            expect(
                close,
                f"{told}: on rank {rank} the mean is not that of one process{means}",
                f"{right['mean']:.6f}",
                seen["mean"],
                rank,
            )
            expect(
                seen["mean"] == run.evidence[-1]["mean"],
                f"{told}: rank {rank} has another mean than the last rank",
                run.evidence[-1]["mean"],
                seen["mean"],
                rank,
            )
            passes = [e for e in run.events[rank] if e["e"] == "mark" and e.get("kind") == "forward"]
            due = v * (2 * how["m"] + 1)
            expect(
                len(passes) == due, f"{told}: rank {rank} computes {len(passes)} forward passes", due, len(passes), rank
            )
            expect(
                not any(e["training"] for e in passes),
                f"{told}: rank {rank} evaluates in training mode, with dropout",
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
                not seen["learned"] and not notes(run.events[rank], ("back",)),
                f"{told}: rank {rank} goes backward in an evaluation",
                "forward passes only",
                "a backward pass",
                rank,
            )
            modes = [number == rank % v for number in range(v)]
            expect(
                seen["modes"] == modes,
                f"{told}: after it the chunks of rank {rank} are in another mode than before: is it training?",
                modes,
                seen["modes"],
                rank,
            )
            expect(seen["grads"], f"{told}: after it autograd is off on rank {rank}", "on", "off", rank)
        nbytes = how["rows"] * (1 + how["width"]) * 4
        check_messages(
            told, run, bytes_between(world, v, (2 * how["m"] + 1) * nbytes, back=False), collectives_allowed=True
        )

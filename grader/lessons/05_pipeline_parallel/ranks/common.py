"""On ranks, for the checks of 05_pipeline_parallel: what several of them use."""

import gc
import math

import torch
import torch.nn.functional as F
from torch import nn

from grader.kit import kind_of, mark, merciless_messages, raised
from utils.data import IGNORE
from utils.memory import Storages

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


# ---------------------------------------------------------------------------------------------------
# TODO 4: GPipe, and times


def actions_of(code, schedule):
    return [[code.Action(*action) for action in actions] for actions in schedule]


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

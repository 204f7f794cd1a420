"""What the checks of 02_data_parallel run on ranks, in the process of the student's code."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from grader.kit import Reporter, as_evidence, freeze, is_stale, mark, merciless_messages, strided
from utils.memory import Storages

WORLD = 3  # where a gradient may be missing, or shares be unequal; what depends on their number also runs on 2


CAP = 150  # bytes: four buckets of the model's nine trainable parameters


class Net(nn.Module):
    """`model(x, y)` is the mean cross-entropy of x's words followed by y's; "extra" words from 7 on also pass through
    one more layer.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(14, 2)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 4).requires_grad_(False)
        self.hidden = nn.Linear(4, 6)
        self.extra = nn.Sequential(nn.Sequential(nn.Linear(6, 6)))
        self.out = nn.Conv2d(3, 2, (1, 2), bias=False)
        self.shift = nn.Parameter(torch.randn(2))
        self.head = nn.Linear(2, 14, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(1, 2, 1, 2) + 0.5, persistent=False)

    def forward(self, x, y):
        h = torch.tanh(self.hidden(self.frozen(self.norm(self.embedding(x)))))
        if bool((x >= 7).any()):
            h = h + self.extra(h)
        h = self.out(h.view(-1, 3, 1, 2)).flatten(1) + self.shift
        return F.cross_entropy(self.head(h * self.scale.sum(dim=1).flatten()), y)


def made_model(seed=0, turned=False, of_images=False):
    """`turned`: matrices and their gradients lie transposed in memory, which no collective of NCCL's takes.
    `of_images`: a weight and a buffer lie in channels_last. Collectives take those as they are; contiguous() copies
    them, and what is written into a copy does not arrive.
    """
    torch.manual_seed(seed)
    model = Net()
    if turned:
        for parameter in model.parameters():
            parameter.data = strided(parameter.data) if parameter.dim() > 1 else parameter.data
    if of_images:
        model.to(memory_format=torch.channels_last)
    for name, buffer in model.named_buffers():  # as after some training, and different on every seed
        if buffer.is_floating_point() and name != "scale":
            buffer.uniform_(0.5, 2.0)
        elif name != "scale":
            buffer.fill_(10 + seed)
    model.norm.bias.data.copy_(model.shift.data)
    model.norm.running_var.copy_(model.norm.running_mean)
    freeze(model.frozen.weight)
    return model


def micro_batch(seed, number, extra=True, samples=4):
    """Micro-batch `number` of the rank with this seed."""
    draw = torch.Generator().manual_seed(seed + number)
    x, y = torch.randint(7, (2, samples), generator=draw)
    return (x + 7 if extra else x), y


def trained(model):
    """name -> trainable parameter, a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def gradients(model):
    return {name: parameter.grad for name, parameter in trained(model).items() if parameter.grad is not None}


def left_by_step(model):
    """What a rank holds after a step: gradients, and whether frozen parameters have what they had."""
    kept = is_stale(model.frozen.weight) and model.frozen.bias.grad is None
    return {"gradients": {name: grad.clone() for name, grad in gradients(model).items()}, "kept": kept}


def emptied(model):
    """No gradients, for the next step. Frozen parameters keep theirs: the optimizer does not have them."""
    for parameter in trained(model).values():
        parameter.grad = None


def loss_of(model, seed, rank, number, users, idle=(), zeros=()):
    """Of a pass: its number, which ranks use the extra layer, which ones use no parameter at all, and which ones'
    gradients are all zeros.
    """
    if rank in idle:
        return torch.zeros((), requires_grad=True)
    return model(*micro_batch(seed, number, rank in users)) * (rank not in zeros)


def tell(what, **about):
    Reporter.mine.say(e=what, **about)


def watch_gradients(model):
    """Tell of each gradient when it is ready, before the student's own hooks are called."""
    for name, parameter in trained(model).items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: tell("ready", name=name))


def backward(loss):
    """A backward pass that is reported."""
    tell("backward")
    loss.backward()
    tell("backward over")


ZEROS = ", where the gradients of rank 1 are zeros"  # after which pass


ONLY_ZEROS = ", where the gradients of all ranks are zeros"


# ---------------------------------------------------------------------------------------------------
# TODO 1: predictions


def predictions_on_rank(code, rank, world, shares):
    """The student's predictions for the gradients of these shares."""
    return [
        as_evidence(code.whole_gradient([torch.tensor(g, dtype=getattr(torch, dtype)) for g in gradients], [*samples]))
        for gradients, samples, dtype in shares
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 2: first state


def state(model):
    """Copies of all tensors by name; the caller checks whether the tensors are still the same objects."""
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def broadcast_on_rank(code, rank, world, seed):
    merciless_messages()
    return [broadcast_once(code, made_model(seed, of_images=of_images)) for of_images in MODELS.values()]


def broadcast_once(code, model):
    given = {name: (tensor, tensor.data_ptr()) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    trained_before = [*trained(model)]
    mark()
    code.broadcast_state(model)
    after = dict((*model.named_parameters(), *model.named_buffers()))
    replaced = [name for name, (tensor, _) in given.items() if after.get(name) is not tensor]
    moved = [name for name, (tensor, address) in given.items() if tensor.data_ptr() != address]
    return {
        "after": state(model),
        "replaced": replaced + moved,
        "tied": model.head.weight is model.embedding.weight,
        "trained": [*trained(model)],
        "trained_before": trained_before,
    }


MODELS = {"": False, " of a model in channels_last": True}  # whether `of_images`


# ---------------------------------------------------------------------------------------------------
# TODO 3: after the backward pass


def naive_on_rank(code, rank, world, seed, dtype, passes):
    merciless_messages()
    seen = []
    for one in passes:
        model = made_model(of_images=world == 2).to(getattr(torch, dtype))
        loss_of(model, seed, rank, *one).backward()
        mark()
        code.average_gradients(model)
        seen.append(left_by_step(model))
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 4: as soon as a gradient is ready


def overlapped_on_rank(code, rank, world, seed, earlier):
    """Two passes, the second one on top of what the first one has left; and the first one on top of earlier ones, in
    which no hook was there. Then passes without gradients from before, in which rank 1's are zeros, and all ranks'. On
    two ranks the model is in channels_last.
    """
    merciless_messages()
    model = made_model(of_images=world == 2)
    for number in earlier:
        model(*micro_batch(seed, number)).backward()
    watch_gradients(model)
    finish = code.reduce_when_ready(model)
    seen = []
    for number in range(2):
        loss = model(*micro_batch(seed, number))
        mark()
        backward(loss)
        finish()
        seen.append(left_by_step(model))
    for one in OF_ZEROS.values():
        emptied(model)
        loss = loss_of(model, seed, rank, *one)
        mark()
        backward(loss)
        finish()
        seen.append(left_by_step(model))
    return seen


OF_ZEROS = {ZEROS: [2, [*range(WORLD)], [], [1]], ONLY_ZEROS: [3, [*range(WORLD)], [], [*range(WORLD)]]}  # `loss_of`'s


# ---------------------------------------------------------------------------------------------------
# TODO 5: buckets


def fills_on_rank(code, rank, world, fills):
    found = []
    for sizes, cap in fills:
        buckets = code.assign_buckets(sizes, cap)
        try:
            found.append([[int(index) for index in bucket] for bucket in buckets])
        except (TypeError, ValueError):
            found.append(repr(buckets)[:200])
    return found


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: DDP with buckets


def bucketed_on_rank(code, rank, world, seed, cap, steps):
    merciless_messages()
    model = made_model(turned=world == 2)
    watch_gradients(model)
    reducer = code.Bucketed(model, cap)
    seen = []
    for passes in steps:
        emptied(model)
        mark()
        for place_of_pass, one in enumerate(passes, start=1):
            reducer.sync = place_of_pass == len(passes)
            backward(loss_of(model, seed, rank, *one) / len(passes))
        reducer.finish()
        seen.append(left_by_step(model))
    mark()
    pairs = [(made_model(), seed), (made_model(), seed + 50)]
    reducers = [code.Bucketed(one, cap) for one, _ in pairs]
    for one, own_seed in pairs:
        one(*micro_batch(own_seed, 0)).backward()
    for one in reducers:
        one.finish()
    seen += [{name: grad.clone() for name, grad in gradients(one).items()} for one, _ in pairs]
    mark()
    last_first = LastFirst(*(nn.Linear(6, 6, bias=False) for _ in range(4)))
    reducer_of_it = code.Bucketed(last_first, cap)
    backward(last_first(torch.ones(2, 6)).square().mean())
    reducer_of_it.finish()
    mark()
    return [*seen, held_after_steps(model, reducer, micro_batch(seed, 0))]


class LastFirst(nn.Sequential):
    """The last layer computes first, so its gradients are ready last."""

    def forward(self, x):
        for layer in reversed(self):
            x = layer(x)
        return x


def held_after_steps(model, reducer, batch):
    """Bytes that are alive after each of some equal steps: those of the model, and of what these steps have made."""
    reducer.sync, held = True, []
    with Storages(model.parameters()) as storages:
        for _ in range(4):
            model.zero_grad()
            backward(model(*batch))
            reducer.finish()
            alive = sum(storages.bytes_alive().values())
            for _ in range(100):  # gloo's own thread lets go of a tensor a moment after its message is over
                if alive <= (held or [alive])[-1]:
                    break
                time.sleep(0.001)
                alive = sum(storages.bytes_alive().values())
            held.append(alive)
    return held


# The micro-batches of each step, by their numbers. One occurs twice, as the same tensors: an answer that compares each
# with the last one, instead of counting, takes the first of the two for it.
MICRO = ((0, 1, 2), (10,), (20, 24, 22, 23, 24))


def accumulate_on_rank(code, rank, world, seed):
    merciless_messages()
    model = made_model()
    watch_gradients(model)
    reducer = code.Bucketed(model, CAP)
    seen = []
    for numbers in MICRO:
        model.zero_grad()
        reducer.sync = len(numbers) > 1  # as whichever pass before has left it
        made = {number: micro_batch(seed, number) for number in numbers}
        mark()
        with told_passes():
            code.accumulate(model, reducer, [made[number] for number in numbers])
        seen.append({name: grad.clone() for name, grad in gradients(model).items()})
    return seen


class told_passes:
    """While it is active, each backward pass is reported, wherever it is called."""

    def __enter__(self):
        self.plain = torch.autograd.backward

        def reported(*args, **kwargs):
            tell("backward")
            try:
                self.plain(*args, **kwargs)
            finally:
                tell("backward over")

        torch.autograd.backward = reported

    def __exit__(self, *_):
        torch.autograd.backward = self.plain


# ---------------------------------------------------------------------------------------------------
# TODO 8: unequal shares


COUNTS = (4, 0, 3)


def weighted_on_rank(code, rank, world, seed):
    merciless_messages()
    seen = []
    for counts in (COUNTS, (2, 2, 2)):
        model = made_model().eval()  # a batch norm over the whole batch differs from one over each part
        loss = (
            model(*micro_batch(seed, 0, samples=counts[rank]))
            if counts[rank]
            else 0 * sum(p.sum() for p in model.parameters())
        )
        mark()
        loss = code.weighted(loss, counts[rank])
        mark()
        loss.backward()
        for parameter in trained(model).values():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        seen.append(gradients(model))
    return seen


def factor_on_rank(code, rank, world, shares):
    """The factor that `weighted` applies to a gradient."""
    factors = []
    for counts, dtype in shares:
        weight = torch.tensor(2.0, dtype=getattr(torch, dtype), requires_grad=True)
        loss = code.weighted(3 * weight, counts[rank])
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.backward()
        factors.append(0.0 if weight.grad is None else weight.grad.item() / 3)
    return factors


# ---------------------------------------------------------------------------------------------------
# TODO 9: torch's own


# Which rank uses the extra layer in each micro-batch. Of the first ones, two are the same tensors.
TORCH = ([[0, [0, 1]], [1, [0, 1]], [2, [0, 1]], [1, [0, 1]]], [[3, [0, 1]], [4, [0]]])


def torch_on_rank(code, rank, world, seed):
    seen = []
    for case, passes in enumerate(TORCH):
        model = made_model(rank if case == 0 else 0)  # in the first case the ranks start with different weights
        watch_gradients(model)
        made = {number: micro_batch(seed, number, rank in users) for number, users in passes}
        mark()
        with told_passes():
            ddp = code.with_torch(model, [made[number] for number, _ in passes], CAP)
        seen.append(
            {
                "grads": gradients(model),
                "kind": type(ddp).__name__,
                "wraps": getattr(ddp, "module", None) is model,
                "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
            }
        )
    return seen

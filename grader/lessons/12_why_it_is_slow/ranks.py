"""What the checks of 12_why_it_is_slow run on ranks, in the process of the student's code. It counts, and decides
nothing; nothing here reads a clock.
"""

import sys
import threading
import tracemalloc
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from grader.kit import TINY, as_evidence, mark, plain_name, strided, tiny_model
from utils.private import TorchDispatchMode

# ---------------------------------------------------------------------------------------------------
# 1: numbers that are read from the device

TO_HOST = ("tolist", "numpy", "cpu", "__array__")  # read, too, and do not pass through the dispatcher on a CPU


class Reads(TorchDispatchMode):
    """While it is entered, counts the calls that would wait for a device."""

    def __enter__(self):
        self.count = 0
        self.plain = {name: getattr(torch.Tensor, name) for name in TO_HOST}
        self.makers = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}
        for name, method in self.plain.items():
            setattr(torch.Tensor, name, self.counted(method))
        for name, maker in self.makers.items():
            setattr(torch, name, self.made(maker))
        return super().__enter__()

    def __exit__(self, *error):
        for name, method in self.plain.items():
            setattr(torch.Tensor, name, method)
        for name, maker in self.makers.items():
            setattr(torch, name, maker)
        return super().__exit__(*error)

    def made(self, maker):
        """A tensor made from a list of tensors reads each of them, below the dispatcher."""

        def call(data, *args, **kwargs):
            before = self.count
            result = maker(data, *args, **kwargs)
            given = data if isinstance(data, (list, tuple)) else ()
            self.count = max(self.count, before + sum(isinstance(each, torch.Tensor) for each in given))
            return result

        return call

    def counted(self, method):
        def call(tensor, *args, **kwargs):
            before = self.count
            result = method(tensor, *args, **kwargs)
            self.count = before + 1  # once, even if one reads by another
            return result

        return call

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += operation.name() == "aten::_local_scalar_dense"
        return operation(*args, **(kwargs or {}))


class Kept:
    """Holds a tensor that autograd keeps; whether it is still alive says whether the graph is."""

    def __init__(self, tensor):
        self.tensor = tensor


def notes_on_rank(code, rank, world, losses, log_every):
    """Step by step: what note_loss_1 returned, the reads in it, and how many tensors autograd still keeps."""
    noted, kept, seen = [], [], []

    def keep(tensor):
        kept.append(weakref.ref(held := Kept(tensor)))
        return held

    for value in losses:
        weight = torch.full((3,), value, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda held: held.tensor):
            loss = (weight * 1.0).square().mean()
        with Reads() as reads:
            mean = code.note_loss_1(noted, loss, log_every)
        del loss
        alive = sum(ref() is not None for ref in kept)
        seen.append({"mean": as_evidence(mean), "reads": reads.count, "alive": alive})
    return seen


# ---------------------------------------------------------------------------------------------------
# 2: reading and decoding


def batches_on_rank(code, rank, world, name, texts, orders, seq_len):
    """For each of the texts, in files of the same name: the batches, how often it was opened and decoded, and how many
    bytes of Python's objects the last batch needs.
    """
    seen = []
    for folder, words in enumerate(texts):
        path = Path(str(folder), name).absolute()
        path.parent.mkdir()
        path.write_text(" ".join(f"w{word}" for word in words))
        seen.append(batches_of(code, path, orders, seq_len))
    return seen


def batches_of(code, path, orders, seq_len):
    decode, count, watching = code.decode_2, {"opened": 0, "decoded": 0}, True

    def audit(event, args):
        if watching and event == "open" and isinstance(args[0], (str, bytes)) and str(path) in str(args[0]):
            count["opened"] += 1

    def counted(given):
        count["decoded"] += 1
        return decode(given)

    sys.addaudithook(audit)
    code.decode_2 = counted
    try:
        batch = code.batches_2(path, seq_len)
        batches = [as_evidence(batch(numbers)) for numbers in orders[:-1]]
        tracemalloc.start()  # to decode makes an object of each word, or a list of them
        try:
            last = batch(orders[-1])
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        batches.append(as_evidence(last))
    finally:
        watching, code.decode_2 = False, decode
    return {"batches": batches, "peak": peak, **count}


# ---------------------------------------------------------------------------------------------------
# 3: blocks that are computed again


def gradients_of(model):
    """The loss of a fixed batch, and the gradients by the names of the plain model."""
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randint(TINY["vocab_size"], (2, 2, TINY["max_len"]), generator=draw)
    loss = model(x, y)
    loss.backward()
    return loss, {plain_name(name): parameter.grad for name, parameter in model.named_parameters()}


def recompute_on_rank(code, rank, world, seed, cases):
    """For each (blocks, kept, budget): the loss, the gradients, and how often each block was computed."""
    seen = []
    for layers, kept, budget in cases:
        model, computed = tiny_model(seed, n_layers=layers), [0] * layers
        for number, block in enumerate(model.blocks):

            def count(*_, number=number):
                computed[number] += 1

            block.attention_norm.register_forward_pre_hook(count)
        code.recompute_3(model, kept, budget)
        loss, gradients = gradients_of(model)
        seen.append({"loss": loss.detach(), "gradients": gradients, "computed": computed})
    return seen


def plain_gradients(seed, layers):
    """The loss and the gradients of a model that recomputes nothing."""
    loss, gradients = gradients_of(tiny_model(seed, n_layers=layers))
    return {"loss": loss.detach(), "gradients": gradients}


# ---------------------------------------------------------------------------------------------------
# 4: validation


def evaluate_on_rank(code, rank, world, seed, batches):
    """The mean loss; how many tensors were kept for a backward pass; and whether training can continue as before."""
    model, keep, kept, modes = tiny_model(seed), code.keep, [], []
    model.position_embedding.weight.requires_grad_(False)
    trained = [parameter.requires_grad for parameter in model.parameters()]
    model.register_forward_pre_hook(lambda module, args: modes.append(module.training))

    def counted(tensor):
        kept.append(1)
        return keep(tensor)

    def count(tensor):
        kept.append(1)
        return tensor

    loader = [tuple(torch.tensor(part) for part in batch) for batch in batches]
    code.keep = counted  # compute_loss_4 has hooks of its own
    try:
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            mean = code.evaluate_4(model, loader, torch.device("cpu"), None)
        trains = torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters())
        same = trained == [parameter.requires_grad for parameter in model.parameters()]
    finally:
        code.keep = keep
        torch.set_grad_enabled(True)
    return {"mean": as_evidence(mean), "kept": len(kept), "trains": trains, "same": same, "dropout": any(modes)}


# ---------------------------------------------------------------------------------------------------
# 5: shapes


def pad_on_rank(code, rank, world, batches):
    """What pad_5 makes of each batch of samples, given as lists of words."""
    samples = [[(torch.tensor(words), torch.tensor(words) + 1) for words in batch] for batch in batches]
    return [as_evidence(code.pad_5(batch)) for batch in samples]


# ---------------------------------------------------------------------------------------------------
# 6: messages


def gradients(seed, shapes):
    """One rank's gradients."""
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=draw) for shape in shapes]


def average_on_rank(code, rank, world, seeds, shapes, frozen):
    model = nn.ParameterList([torch.zeros(shape) for shape in shapes])
    for number, (parameter, gradient) in enumerate(zip(model, gradients(seeds, shapes), strict=True)):
        parameter.grad = gradient if number % 2 else strided(gradient)
    model[frozen].requires_grad_(False).grad = None
    mark()
    code.average_gradients_6(model)
    return [parameter.grad for parameter in model]


# ---------------------------------------------------------------------------------------------------
# 7: accumulation


def drawn_parts(seed, parts, rows):
    """One rank's micro-batches of a step: x and y, (rows, tokens) each."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(TINY["vocab_size"], (2, parts, rows, TINY["max_len"]), generator=draw)
    return list(zip(*words, strict=True))


def accumulate_on_rank(code, rank, world, seed, seeds, parts, rows):
    """In each of two steps: the loss, the gradients, the rows of the largest forward pass, and how many tensors
    autograd keeps at most when one begins. The second step adds to the gradients of the first.
    """
    model, widest, kept, alive = DistributedDataParallel(tiny_model(seed)), [0], [], [0]

    def keep(tensor):
        kept.append(weakref.ref(held := Kept(tensor)))
        return held

    def before_forward(module, args):
        widest.append(len(args[0]))
        alive.append(sum(ref() is not None for ref in kept))

    model.module.register_forward_pre_hook(before_forward)
    seen = []
    for step in range(2):
        mark()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda held: held.tensor):
            loss = code.accumulate_7(model, drawn_parts(seeds + step, parts, rows))
        found = {name: parameter.grad for name, parameter in model.module.named_parameters()}
        most = {"rows": max(widest), "alive": max(alive)}
        seen.append({"loss": as_evidence(loss), "gradients": as_evidence(found), **most})
    return seen


def summed_gradients(seed, batches):
    """The mean gradient of micro-batches, given as (seed, parts, rows), computed by one process."""
    model = tiny_model(seed)
    each = [part for batch in batches for part in drawn_parts(*batch)]
    for x, y in each:
        (model(x, y) / len(each)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def losses_of(seed, batch):
    """The mean loss of one rank's micro-batches."""
    model, each = tiny_model(seed), drawn_parts(*batch)
    return sum(model(x, y).item() for x, y in each) / len(each)


# ---------------------------------------------------------------------------------------------------
# 8: a metric


def accuracy_on_rank(code, rank, world, guesses):
    """The fraction of each list of guesses."""
    seen = []
    for mine in guesses:
        mark()
        seen.append(as_evidence(code.accuracy_8(torch.tensor(mine, dtype=torch.bool))))
    return seen


# ---------------------------------------------------------------------------------------------------
# 10: a checkpoint that is written while training continues

PATIENCE = 30  # seconds for a thread that should be writing


class Wrapped(nn.Module):
    """Has the model where DDP has it."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class Gate:
    """Lets a thread begin only after the call, unless the call waits for a sign of it, and lets it write a checkpoint
    only after the weights have changed; notes what the main thread writes or waits for. So the order is certain,
    however fast the disk.
    """

    def __init__(self, code):
        self.code, self.save, self.write = code, torch.save, code.write_10
        self.join, self.result = threading.Thread.join, Future.result
        self.start, self.submit = threading.Thread.start, ThreadPoolExecutor.submit
        self.wait, self.begin, self.starting = threading.Condition.wait, threading.Event(), False
        self.released, self.written, self.started = threading.Event(), threading.Semaphore(0), []
        self.seen = []

    def __enter__(self):
        torch.save, self.code.write_10 = self.saves, self.writes
        threading.Thread.join = lambda thread, *args, **kwargs: self.waits(self.join, thread, *args, **kwargs)
        Future.result = lambda future, *args, **kwargs: self.waits(self.result, future, *args, **kwargs)
        threading.Thread.start = lambda thread: self.starts(thread)
        ThreadPoolExecutor.submit = lambda pool, *work, **kwargs: self.submits(pool, *work, **kwargs)
        threading.Condition.wait = lambda condition, timeout=None: self.pauses(condition, timeout)
        return self

    def __exit__(self, *error):
        torch.save, self.code.write_10 = self.save, self.write
        threading.Thread.join, Future.result = self.join, self.result
        threading.Thread.start, ThreadPoolExecutor.submit = self.start, self.submit
        threading.Condition.wait = self.wait
        self.begin.set()

    def starts(self, thread):
        self.started.append(thread)
        thread.run = self.held(thread.run)
        self.starting = True
        try:
            self.start(thread)
        finally:
            self.starting = False

    def submits(self, pool, work, *args, **kwargs):
        future = self.submit(pool, self.held(work), *args, **kwargs)
        self.started.append(future)
        return future

    def held(self, work):
        """The same work, which begins when it may: what it reads, it reads late."""

        def late(*args, **kwargs):
            self.begin.wait(PATIENCE)
            return work(*args, **kwargs)

        return late

    def pauses(self, condition, timeout):
        """The main thread may wait for a sign of the thread, such as a copy that is made there."""
        if threading.current_thread() is threading.main_thread() and not self.starting:
            self.begin.set()
        return self.wait(condition, timeout)

    def let_through(self, files):
        """Let everything be written now, and wait for so many files."""
        self.begin.set()
        self.released.set()
        for _ in range(files if self.started else 0):
            self.written.acquire(timeout=PATIENCE)

    def saves(self, *args, **kwargs):
        if threading.current_thread() is threading.main_thread():
            self.seen.append("written by the thread that trains")
        else:
            if threading.current_thread().daemon:
                self.seen.append("a thread that ends with the program")
            if not self.released.wait(PATIENCE):
                self.seen.append("waited for")
        self.save(*args, **kwargs)

    def writes(self, *args, **kwargs):
        try:
            self.write(*args, **kwargs)
        finally:
            self.written.release()

    def waits(self, plain, work, *args, **kwargs):
        """What an earlier call has started is done by now, or nearly: the main thread may wait for that."""
        mine = any(work is started for started in self.started)
        if mine and threading.current_thread() is threading.main_thread() and not self.released.is_set():
            self.seen.append("waited for")
            self.released.set()
            self.begin.set()
        return plain(work, *args, **kwargs)


def save_on_rank(code, rank, world, values):
    """For the plain model and the wrapped one: how its file was written, and what it has; then the weights of two files
    whose writing overlaps.
    """
    left, folder = [], Path("saved").absolute()
    folder.mkdir(exist_ok=True)
    for epoch, value in enumerate(values):
        model, path = nn.Linear(2, 1, bias=False), folder / f"{epoch}.pt"
        nn.init.constant_(model.weight, value)
        with Gate(code) as gate:
            code.save_checkpoint_10(Wrapped(model) if epoch else model, {"dim": 3}, path, epoch)
            with torch.no_grad():
                model.weight.add_(1.0)  # training continues
            gate.let_through(1)
        found = torch.load(path, weights_only=True) if path.is_file() else None
        left.append({"how": sorted(set(gate.seen)), "file": as_evidence(found)})
    return {"each": left, "overlapping": as_evidence(overlapping(code, folder, values))}


def overlapping(code, folder, values):
    """The second call comes before the first file is written, unless the call itself waits for that."""
    model, paths = nn.Linear(2, 1, bias=False), [folder / f"overlapping {number}.pt" for number in range(len(values))]
    with Gate(code) as gate:
        for epoch, (value, path) in enumerate(zip(values, paths, strict=True)):
            nn.init.constant_(model.weight, value)
            code.save_checkpoint_10(model, {"dim": 3}, path, epoch)
        nn.init.zeros_(model.weight)
        gate.let_through(len(values))
    return [torch.load(path, weights_only=True) if path.is_file() else None for path in paths]

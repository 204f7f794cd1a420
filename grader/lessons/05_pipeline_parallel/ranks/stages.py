"""On ranks, for the checks of 05_pipeline_parallel: stages."""

import math

import torch
from torch import nn

from grader.kit import as_evidence, kind_of, mark, merciless_messages, raised
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import TransformerLM

from .common import Work, gradients_of, inputs_of, plain_losses, share_of_loss, targets_of

# ---------------------------------------------------------------------------------------------------
# TODO 1: cut


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
            found = {"shape": list(h.shape) if tensor else type(h).__name__, "train": [tensor_of(h), right.detach()]}
            found["eval"] = [tensor_of(in_a_row([stage.eval() for stage in stages], x)), expected.detach()]
            found["state"] = [same_values(stage.state_dict(), weights) for stage in stages]
            found["bytes"] = [stage_bytes(stage) for stage in stages]
            found["whole"] = same_values(whole.state_dict(), weights)
            seen.append(found)
    return seen


def in_a_row(stages, h):
    for stage in stages:
        h = stage(h)
    return h


def tensor_of(h):
    return h.detach() if isinstance(h, torch.Tensor) else None


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

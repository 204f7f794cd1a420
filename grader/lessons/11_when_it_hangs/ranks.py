"""What the checks of 11_when_it_hangs run on ranks, in the process of the student's code."""

from argparse import Namespace

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import Reporter, as_evidence, mark, plain, saved_file

# ---------------------------------------------------------------------------------------------------
# 1: save_checkpoint


def save_on_rank(code, rank, world):
    torch.manual_seed(0)
    save, say, kept = torch.save, Reporter.mine.say, []

    def seen(*args, **kwargs):
        save(*args, **kwargs)
        mark(what="saved")

    torch.save = seen
    for epoch in (7, 8):
        path = saved_file().with_name(f"{epoch}.pt")
        # The events of a call tell whether the file is there when it begins.
        Reporter.mine.say = lambda path=path, **event: say(**event, there=path.is_file())
        model = nn.Linear(3, 2)
        mark(epoch=epoch)
        code.save_checkpoint_1(Wrapped(model) if epoch == 8 else model, {"dim": 3}, path, epoch)
        mark(what="returned")
        Reporter.mine.say = say
        dist.all_reduce(torch.ones(2, dtype=torch.float64))  # as the script continues
        kept.append(contents(torch.load(path, weights_only=True)) if path.is_file() else None)
    return kept


class Wrapped(nn.Module):
    """Has the model where DDP has it."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def contents(saved):
    """What a checkpoint has, by name; of the model the names of its weights."""
    return saved | {"model": sorted(saved["model"])} if isinstance(saved, dict) and "model" in saved else str(saved)


# ---------------------------------------------------------------------------------------------------
# 2: the order of calls


SHAPES = ((5,), (3, 4), (2, 2), (4, 3), (4, 3), (5,))


def gradients(seed):
    """One rank's gradients: their norms, and how many of their numbers are not 0, as where a rank has not read a word,
    are in a shuffled order.
    """
    draw = torch.Generator().manual_seed(seed)
    scales = torch.rand(len(SHAPES), generator=draw) * 9 + 1
    found = [torch.randn(shape, generator=draw) * scale for shape, scale in zip(SHAPES, scales, strict=True)]
    for gradient in found:
        zeros = int(torch.randint(gradient.numel(), (), generator=draw))
        gradient.view(-1)[:zeros] = 0
    return found


def average_on_rank(code, rank, world, seeds):
    model = nn.ParameterList([torch.zeros(shape) for shape in SHAPES])
    for parameter, gradient in zip(model, gradients(seeds), strict=True):
        parameter.grad = gradient
    code.average_gradients_2(model)
    return [parameter.grad for parameter in model]


# ---------------------------------------------------------------------------------------------------
# 4: an error that is swallowed


class Short(nn.Module):
    """A model that runs out of memory, on one rank."""

    def __init__(self, fails):
        super().__init__()
        self.weight, self.fails = nn.Parameter(torch.tensor(3.0)), fails

    def forward(self, x, y):
        if self.fails:
            self.fails = False  # once: a second try that fits would hide it
            raise RuntimeError("can't allocate memory: you tried to allocate 2814 bytes")
        return (self.weight * x - y).square().mean()


def loss_on_rank(code, rank, world, fails, x):
    model, x = Short(rank == fails), torch.tensor(x)
    try:
        loss = code.compute_loss_4(model, x, torch.zeros_like(x), Namespace(lr=0.1, batch_size=len(x)))
    except Exception as error:
        chain = []
        while error is not None:
            chain.append(f"{type(error).__name__}: {error}")
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)  # as a traceback
        return {"raised": " < ".join(chain)}
    except SystemExit as end:
        return {"ended": str(end.code)}
    loss.backward()
    return {"loss": loss.item(), "gradient": None if model.weight.grad is None else model.weight.grad.item()}


# ---------------------------------------------------------------------------------------------------
# 5: where ranks meet


def batch_file_on_rank(code, rank, world):
    return str(code.batch_file_5())


# ---------------------------------------------------------------------------------------------------
# 6: a worker's error


def collate_on_rank(code, rank, world, batches):
    seen = []
    for words in batches:
        samples = [(torch.tensor(row), torch.tensor(row) + 1) for row in words]
        try:
            x, y = code.collate_6(samples)
        except Exception as error:
            seen.append({"raised": f"{type(error).__name__}: {error}"})
        else:
            seen.append({"x": x.tolist(), "y": y.tolist()})
    return seen


# ---------------------------------------------------------------------------------------------------
# 7: NaN


def mean_on_rank(code, rank, world, losses, targets):
    seen = []
    for number in range(len(targets)):
        row = targets[(number + rank) % len(targets)]  # each rank has a batch of its own
        losses_N = torch.tensor(losses, requires_grad=True)
        mean = code.masked_mean_7(losses_N, torch.tensor(row))
        if not isinstance(mean, torch.Tensor) or not mean.requires_grad:
            seen.append({"mean": str(plain(mean)), "gradient": None})
            continue
        mean.backward()
        seen.append({"mean": mean.detach(), "gradient": losses_N.grad})
    return seen


# ---------------------------------------------------------------------------------------------------
# 8: a straggler


def notes_on_rank(code, rank, world, log_every):
    drawn, step, model = [], 0, nn.Linear(2, 2)
    code.histograms = lambda model: drawn.append(step)
    first = [p.detach().clone() for p in model.parameters()]
    for step in range(1, 3 * log_every + 2):
        code.note_8(model, step, log_every)
        dist.all_reduce(torch.ones(1))
    same = all(torch.equal(p, was) and p.requires_grad for p, was in zip(model.parameters(), first, strict=True))
    return {"drawn": drawn, "as before": same and model.training}


# ---------------------------------------------------------------------------------------------------
# 9: data that all ranks read alike


def windows_on_rank(code, rank, world, calls):
    """What starts_9 returns, with its dtype."""
    return [as_evidence(getattr(code, name)(*arguments)) for name, arguments in calls]


# ---------------------------------------------------------------------------------------------------
# 10: weights that were never synchronised


def wrap_on_rank(code, rank, world, seeds):
    torch.manual_seed(seeds)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[1].running_mean.normal_()
    model[1].num_batches_tracked.fill_(seeds % 1000 + rank)  # the one buffer with whole numbers
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wrapped = code.wrap_10(model, torch.device("cpu"))
    own = getattr(wrapped, "module", wrapped)
    return {
        "before": before,
        "after": {name: tensor.detach().clone() for name, tensor in own.state_dict().items()},
        "trains": all(parameter.requires_grad for parameter in own.parameters()),
    }

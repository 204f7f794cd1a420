"""What the tests of the planner run on ranks: functions of the lessons' reference solutions, watched."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from grader.engine.inside import observe
from utils.memory import SettledPeak, Storages, held
from utils.model import TransformerLM


class WholePeak(SettledPeak):
    """Counts what FSDP gathers, too: it writes it into tensors that were empty, which are arguments."""

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if result is not NotImplemented:
            self.note(tree_leaves((args, kwargs)))
        return result


def function(student, rank, world, name, value):
    """A function of a notebook: what it returns, and after a mark its messages."""
    observe.mark()
    return getattr(student, name)(value, rank, world)


def script_steps(student, rank, world, argv, models):
    """Of each of these models, two steps, as the script makes it parallel: bytes that a rank holds in the second, by
    kind. Its messages come after the second of each three marks. `peak` of a model is the most that it should hold.
    """
    args = student.parse_args(argv)
    mesh = student.make_mesh(torch.device("cpu"), world, args)
    return [two_steps(student, args, mesh, sizes) for sizes in models]


def two_steps(student, args, mesh, sizes):
    torch.manual_seed(0)
    whole = TransformerLM(*(sizes[name] for name in ("vocabulary", "hidden", "heads", "layers", "sequence")))
    with WholePeak(limit=sizes["peak"]) as storages:
        parallel = student.parallelize(whole, mesh, args)
        storages.note(parallel.parameters())
        optimizer = torch.optim.AdamW(parallel.parameters(), lr=1e-3, foreach=False)
        x, y = torch.randint(sizes["vocabulary"], (2, sizes["batch"], sizes["sequence"]))
        for _ in range(2):
            storages.most = 0
            observe.mark()
            loss = student.compute_loss(parallel, x, y, args)
            between = kept(storages, parallel, optimizer)
            loss.backward()
            found = held(storages, parallel.parameters(), optimizer)
            peak = storages.most
            del loss
            optimizer.step()
            optimizer.zero_grad()
    observe.mark()
    return {"between": between, "held": found, "peak": peak}


def kept(storages: Storages, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes that are neither weights nor the optimizer's."""
    state = [value for values in optimizer.state.values() for value in values.values() if isinstance(value, Tensor)]
    return storages.by_kind({"weights": model.parameters(), "state": state})["other"]


def mixture_step(student, rank, world, sizes):
    """A mixture of experts, forward and backward, whose tokens are spread evenly: its messages come after a mark."""
    torch.manual_seed(0)
    experts = [student.MLP(sizes["hidden"]) for _ in range(sizes["experts"] // world)]
    h_ND = torch.randn(sizes["rows"], sizes["hidden"], requires_grad=True)
    first = torch.arange(sizes["rows"]) % sizes["experts"]
    experts_NK = torch.stack([(first + k) % sizes["experts"] for k in range(sizes["active"])], dim=1)
    gates_NK = torch.rand(sizes["rows"], sizes["active"])
    observe.mark()
    student.parallel_mixture(h_ND, gates_NK, experts_NK, experts, None).sum().backward()
    return None


def pipeline_step(student, rank, world, argv, sizes):
    """Two steps of pipeline_training's stages: bytes of their weights. The second one's messages come after a mark."""
    args = student.parse_args(argv)
    device = torch.device("cpu")
    mesh = student.make_mesh(device, world, args)
    model = student.build_model(sizes["vocabulary"], args)
    stages = student.make_stages(model, mesh, device, args)
    student.first_weights(stages, model, args)
    schedule = student.make_schedule(stages, partial(student.loss_of, stages[-1].submod), args)
    x, y = torch.randint(sizes["vocabulary"], (2, sizes["batch"], sizes["sequence"]))
    for _ in range(2):
        observe.mark()
        student.train_batch(stages, schedule, x, y)
    return sum(weight.nbytes for weight in student.weights(stages).values())

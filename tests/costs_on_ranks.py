"""What the tests of the planner run on ranks: functions of the lessons' reference solutions, watched."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from grader.engine.ranks import observe
from utils.memory import Storages, held
from utils.model import TransformerLM


class Peak(Storages):
    """Knows the most bytes that were alive after an operation since `most` was set to 0."""

    most = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = super().__torch_dispatch__(operation, types, args, kwargs)
        if result is not NotImplemented:  # what FSDP gathers it writes into tensors that were empty: arguments
            self.note(tree_leaves((args, kwargs)))
        return result

    def note(self, tensors: Any) -> None:
        super().note(tensors)
        self.most = max(self.most, sum(self.live().values()))


def function(student, rank, world, name, value):
    """A function of a notebook: what it returns, and after a mark its messages."""
    observe.mark()
    return getattr(student, name)(value, rank, world)


def script_step(student, rank, world, argv, sizes):
    """A step of a script's model, as the script makes it parallel: bytes that a rank holds, by kind.

    The messages of the second step come after the second mark.
    """
    args = student.parse_args(argv)
    mesh = student.make_mesh(torch.device("cpu"), world, args)
    torch.manual_seed(0)
    whole = TransformerLM(sizes["vocabulary"], sizes["hidden"], sizes["heads"], sizes["layers"], sizes["sequence"])
    with Peak() as storages:
        model = student.parallelize(whole, mesh, args)
        storages.note(model.parameters())
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
        x, y = torch.randint(sizes["vocabulary"], (2, sizes["batch"], sizes["sequence"]))
        for _ in range(2):
            storages.most = 0
            observe.mark()
            loss = student.compute_loss(model, x, y, args)
            between = kept(storages, model, optimizer)
            loss.backward()
            found = held(storages, model.parameters(), optimizer)
            peak = storages.most
            del loss
            optimizer.step()
            optimizer.zero_grad()
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

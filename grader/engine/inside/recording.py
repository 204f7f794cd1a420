"""Records what a rank holds, writes and trains on, for the checks that ask for it."""

import functools
import os
import sys
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from grader.engine.inside.observe import Reporter
from utils.model import TransformerLM


def elements(tensors: Iterable[Tensor]) -> int:
    """The number of elements in this rank's memory: of a DTensor, the local part; of a view, its base, once."""
    sizes = {}
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if local.device.type != "meta":
            storage = local.untyped_storage()
            sizes[storage.data_ptr()] = storage.nbytes() // local.element_size()
    return sum(sizes.values())


def record_files() -> list[str]:
    """A list that collects each file that this process opens for writing, saves or moves into place."""
    files: list[str] = []

    def audit(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)) and isinstance(args[2], int):
            if args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                files.append(os.path.abspath(os.fsdecode(args[0])))
        elif event == "os.rename":
            files.append(os.path.abspath(os.fsdecode(args[1])))

    sys.addaudithook(audit)
    plain = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(f, (str, os.PathLike)):  # C++ writes it, which audit hooks do not see
            files.append(os.path.abspath(f))
        plain(obj, f, *args, **kwargs)

    torch.save = save
    return files


class record_training:
    """What a whole run trained on and left: batches, losses, weights, files, printed lines.

    Seen at the model itself (`utils.model.TransformerLM`), not at the data loader: what reached the model counts,
    wherever it came from. And seen in its `forward`, not by a hook, which a direct call of `forward` would skip.
    """

    def __init__(self, reporter: Reporter) -> None:
        self.reporter = reporter
        self.files = record_files()
        self.begin()
        forward = TransformerLM.forward

        @functools.wraps(forward)
        def recorded(model: TransformerLM, x: Tensor, y: Tensor | None = None, positions: Any = None) -> Tensor:
            output = forward(model, x, y, positions)
            self.after_forward(model, x, y, output)
            return output

        TransformerLM.forward = recorded
        register_optimizer_step_post_hook(self.after_step)

    def begin(self) -> None:
        """Forget everything: another run starts in this process."""
        self.forwards: list[dict] = []
        self.steps = 0
        self.held = 0  # elements, on this rank, of the parameters in the optimizer's last step
        self.others = 0  # how many of them are not the model's
        self.model: torch.nn.Module | None = None
        self.files.clear()

    def after_forward(self, model: TransformerLM, x: Tensor, y: Tensor | None, output: Tensor) -> None:
        self.model = model
        if y is None and not model.training:
            return
        self.forwards.append(
            {
                "training": model.training,
                "step": self.steps,
                "x": x.detach().clone(),
                "targets": 0 if y is None else int((y != -100).sum()),
                "loss": None if y is None else float(output.detach().double()),  # a loss of logits is made elsewhere
            }
        )
        self.reporter.say(e="forward")

    def after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self.steps += 1
        stepped = [p for group in optimizer.param_groups for p in group["params"]]
        self.held = elements(stepped)
        own = {id(p) for p in self.model.parameters()} if self.model is not None else set()
        self.others = sum(id(p) not in own for p in stepped)
        self.reporter.say(e="step")

    def evidence(self) -> dict:
        for module in self.model.modules() if self.model is not None else ():
            if hasattr(module, "reshard"):  # FSDP: frees what the last forward pass gathered
                module.reshard()
        return {
            "forwards": self.forwards,
            "steps": self.steps,
            "files": sorted(set(self.files)),
            "held": self.held,
            "others": self.others,
            "weights": dict(self.model.named_parameters()) if self.model is not None else {},
            "still_in_a_group": dist.is_initialized(),
        }

"""What the checks have in common on a rank: it runs beside the student's code, and judges nothing."""

from pathlib import Path
from typing import Any

import torch

from grader.engine.inside.observe import Line, next_world
from grader.engine.inside.recording import record_training
from grader.engine.inside.returned import kind_of


def answers_on_rank(code, rank, world, calls):
    """What the student's functions return: calls are (name, arguments)."""
    return [plain(getattr(code, name)(*arguments)) for name, arguments in calls]


def plain(value: Any) -> Any:
    """An answer as evidence can hold it."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(part) for part in value]
    return value if isinstance(value, (int, float, str, type(None))) else repr(value)


def as_evidence(value: Any) -> Any:
    """What the student's code returned, as the judge can be told it: tensors as they are now, also in lists and
    dictionaries; what is no number, in words.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): as_evidence(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_evidence(part) for part in value]
    return value if isinstance(value, (int, float, str, type(None))) else kind_of(value)


def plain_name(name: str) -> str:
    """A parameter's name in the plain model, without what wrappers add to it."""
    return name.replace("_checkpoint_wrapped_module.", "").removeprefix("module.")


def mains_on_rank(code, rank, world, runs, data, keep=None):
    """main(), run after run in one process: for each (ranks, flags). Returns what each run left, or only what is named
    in `keep`; None where this rank was not in it.
    """
    for name, text in data.items():  # a folder for each rank: none must wait for another
        path = Path(f"{rank}") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    record, left = record_training(Line.mine), []
    for number, (ranks, flags) in enumerate(runs):
        if rank >= ranks:
            left.append(None)
            continue
        next_world(ranks)
        record.begin()
        code.main(["--data", f"{rank}/data", "--out", f"out-{number}", *flags])
        seen = record.evidence()
        seen["weights"] = {plain_name(name): weight for name, weight in seen["weights"].items()}
        left.append({what: seen[what] for what in keep or seen})
    return left


class Given:
    """Tensors that a student's function is given, by name, alone or in lists; and what it has done to them."""

    def __init__(self, **tensors: Any) -> None:
        self.tensors = {}
        for name, value in tensors.items():
            parts = value if isinstance(value, (list, tuple)) else [value]
            for number, part in enumerate(parts):
                self.tensors[f"{name}[{number}]" if parts is value else name] = part
        self.before = {name: look(tensor) for name, tensor in self.tensors.items() if isinstance(tensor, torch.Tensor)}

    def changes(self, gradients: bool = True) -> dict[str, str]:
        """name -> what is different by now, in words. `gradients`: theirs as well; not where the check itself has gone
        backward through them.
        """
        found = {name: changed(old, self.tensors[name], gradients) for name, old in self.before.items()}
        return {name: change for name, change in found.items() if change}

    def shared_with(self, result: Any) -> list[str]:
        """Whose memory a result lies in, or one of several."""
        parts = result if isinstance(result, (list, tuple)) else [result]
        mine = {part.untyped_storage().data_ptr() for part in parts if isinstance(part, torch.Tensor) and part.numel()}
        return [name for name in self.before if self.tensors[name].untyped_storage().data_ptr() in mine]


def look(tensor: torch.Tensor) -> dict[str, Any]:
    grad = None if not tensor.is_leaf or tensor.grad is None else tensor.grad.clone()
    return {
        "numbers": tensor.detach().clone(),
        "strides": tensor.stride(),
        "requires_grad": tensor.requires_grad,
        "grad": grad,
    }


def changed(old: dict[str, Any], tensor: torch.Tensor, gradients: bool) -> str:
    """What is different since `look`, in words; "" if nothing is."""
    new = look(tensor)
    if new["numbers"].shape != old["numbers"].shape or new["numbers"].dtype != old["numbers"].dtype:
        return "has another shape or dtype afterwards"
    if not torch.equal(new["numbers"].nan_to_num(), old["numbers"].nan_to_num()):
        return "is written into"
    if new["strides"] != old["strides"]:
        return "has other strides afterwards"
    if new["requires_grad"] != old["requires_grad"]:
        return f"requires {'a' if new['requires_grad'] else 'no'} gradient afterwards"
    if not gradients:
        return ""
    if (new["grad"] is None) != (old["grad"] is None):
        return f"has {'no gradient any more' if new['grad'] is None else 'a gradient'} afterwards"
    return "" if new["grad"] is None or torch.equal(new["grad"], old["grad"]) else "has another gradient afterwards"

"""What all checks use on a rank: it runs in the process of the student's code, and judges nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from grader.engine.inside.changed_arguments import plain_name
from grader.engine.inside.observe import Reporter, mark, next_world
from grader.engine.inside.recording import record_training
from grader.engine.inside.return_values import kind_of
from grader.kit.drawn_values import STALE


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


def a_number(value: Any) -> float | None:
    """A number that came as such or as a tensor of one; None for anything else."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def raised(call: Callable[[], Any]) -> dict[str, Any] | None:
    """What a call raises: {"error": its class, "text": …, "calls": how many collectives and messages it made before};
    None if it returns. What is not done yet goes through.
    """
    before = calls_made()
    try:
        call()
    except NotImplementedError:
        raise
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)[:400], "calls": calls_made() - before}
    return None


def calls_made() -> int:
    """The collectives and messages of this rank so far; none where there are no ranks."""
    return Reporter.mine.collectives + Reporter.mine.messages if Reporter.mine else 0


def freeze(*parameters: nn.Parameter) -> None:
    """Freeze parameters that have been trained before: the gradient of their last step is still there."""
    for parameter in parameters:
        parameter.requires_grad_(False)
        parameter.grad = torch.full_like(parameter, STALE)


def is_stale(parameter: nn.Parameter) -> bool:
    """Whether its gradient is the one that `freeze` has left, or gone."""
    return parameter.grad is None or torch.equal(parameter.grad, torch.full_like(parameter, STALE))


def saved_file() -> Path:
    """Where a check has a model saved. Its folder is there, as a run's is when its script saves."""
    folder = Path("saved")
    folder.mkdir(exist_ok=True)
    return folder / "model.pt"


def saved_files(files: Sequence[str]) -> list[str]:
    """Of these files, saved_file() and all others in its folder, such as a file for each rank."""
    return [name for name in files if Path(name).parent.name == "saved"]


def as_evidence(value: Any) -> Any:
    """What the student's code returned, as the judge can be told it: tensors as they are now, also in lists and
    dictionaries; anything but a number, in words.
    """
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {str(key): as_evidence(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_evidence(part) for part in value]
    return value if isinstance(value, (int, float, str, type(None))) else kind_of(value)


def crossed(passes: Sequence[tuple[Callable, Sequence[torch.Tensor], torch.Tensor]]) -> list[Any]:
    """Forward passes, one after the other, and only then their backward passes, the first one first: as two layers of
    one kind, or two micro-batches. A pass: a function, the tensors that it takes, and the gradient of its output.
    Returns their gradients, as they are when all passes are over; None where autograd has no way to them.
    """
    outs = [(function(*tensors), tensors, grad) for function, tensors, grad in passes]
    found = [
        torch.autograd.grad(out, tensors, grad, allow_unused=True)
        if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == grad.shape
        else None
        for out, tensors, grad in outs
    ]
    return as_evidence(found)


def ranks_of(group: Any) -> list[int] | str:
    """The ranks of a process group, ascending; in words, what it is instead. To a rank that is not in it, a group is a
    number.
    """
    if not isinstance(group, dist.ProcessGroup):
        return kind_of(group)
    try:
        return sorted(dist.get_process_group_ranks(group))
    except KeyError:
        return "a process group of an earlier call, which has been destroyed"


def mains_on_rank(code, rank, world, runs, data, keep=None):
    """main(), run after run in one process: for each (ranks, flags), each a case for the judge. Returns what each run
    left, or only the entries named in `keep`; None where this rank was not in it.
    """
    for name, text in data.items():  # a folder for each rank: none must wait for another
        path = Path(f"{rank}") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    record, left = record_training(Reporter.mine), []
    for number, (ranks, flags) in enumerate(runs):
        mark()
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

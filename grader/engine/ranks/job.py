"""A job for newly forked ranks."""

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.engine.lesson import lessons, slices


class Private(list):
    """One value for each rank: as an input of a job, rank r gets value r and never sees the others."""


@dataclass(frozen=True)
class Job:
    """A run of a student's code or, without units, of a check's own code.

    Args:
        units: a script, or a notebook's cells.
        module: the name of the check file's module.
        world: how many ranks.
        nodes: how many nodes they pretend to be spread over, evenly; or the number of ranks on each.
        argv: the command line: run the script as a whole; or
        function: call this one, "its module:its name", with the student's module and
        inputs: these, by name.
        group: make the process group before the call.
        gpus: how many GPUs a node pretends to have.
        files: name -> content of files in the working folder.
        on_gpus: run on GPUs, if the runner's backend is NCCL.
        common: all ranks work in one folder; else each in its own, and no rank sees another's files.
        second: the inputs of a second call of the function, in the processes of the first one.
    """

    units: list[lessons.Unit]
    module: str
    world: int = 2
    nodes: int | tuple[int, ...] = 1
    argv: list[str] | None = None
    function: str | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    group: bool = True
    gpus: int = 0
    files: dict[str, bytes | str] = field(default_factory=dict)
    on_gpus: bool = False
    common: bool = False
    second: dict[str, Any] | None = None

    def message(self, folder: Path, devices: list[str]) -> dict[str, Any]:
        """The message to the server and all ranks (`inside/rank.py` lists the fields), without the inputs, which only
        each rank itself may see.
        """
        apart = ("inputs", "second", "files", "on_gpus")
        fields = {name: value for name, value in vars(self).items() if name not in apart}
        lesson = self.module.removeprefix("grader.test_")
        return fields | dict(
            lesson=lesson,
            package=lessons.said_by_checks(lesson, "PACKAGE"),
            check=check_of(self.function),
            folder=str(folder),
            units=[{"name": unit.name, "text": unit.text} for unit in self.units],
            file=str(lessons.COURSE / self.units[0].name.partition(",")[0]) if self.units else None,
            notebook=any(", cell " in unit.name for unit in self.units),
            devices=devices,
        )

    def make_folders(self, run: Path) -> None:
        """The folders of its calls below the run's, with its files in them."""
        places = ["common"] if self.common else list(map(str, range(self.world)))
        for call in (run, run / "second") if self.second is not None else (run,):
            for name in {*map(str, range(self.world)), *places}:
                (call / name).mkdir(parents=True)
            (call / "store").touch()
        for place in places:
            for name, content in self.files.items():
                target = run / place / "work" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content.encode() if isinstance(content, str) else content)

    def inputs_of(self, rank: int) -> list[dict[str, Any]]:
        """The inputs of each call for this rank."""
        calls = [self.inputs] if self.second is None else [self.inputs, self.second]
        return [
            {name: value[rank] if isinstance(value, Private) else value for name, value in inputs.items()}
            for inputs in calls
        ]


def check_of(function: str | None) -> dict[str, str] | None:
    """The source of a check's function, and of what it uses, for the ranks; None for functions of the grader and the
    kit.
    """
    module, _, name = (function or "").partition(":")
    if not module or module.startswith("grader.") and not module.startswith("grader.test_"):
        return None
    file = Path(importlib.import_module(module).__file__)
    return {"file": str(file), "text": slices.slice_of(file, name)}

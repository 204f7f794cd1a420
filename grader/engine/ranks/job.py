"""A job for newly forked ranks."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.engine.lesson import lessons


class Private(list):
    """One value for each rank: as an input of a job, rank r gets value r and never sees the others."""


@dataclass(frozen=True)
class Job:
    """A run of a student's code or, without units, of a check's own code.

    Args:
        units: a script, or a notebook's cells.
        lesson: whose checks these are; what it teaches, and what later ones teach, is withheld from the ranks.
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
    lesson: str
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
        return fields | dict(
            package=lessons.package(self.lesson),
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

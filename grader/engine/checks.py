"""What a check file is written with, and how its verdicts are reached.

A check file is `grader/test_<lesson>.py`. Each of its checks is a function of
one argument, the student's code on ranks, that returns if the TODO is right and
raises `Wrong` if not:

    @todo(4, why="…", hints=("direction", "the API", "nearly the line"))
    def test_todo4_samplers(student):
        for world in (2, 3):
            seen = student.call(samplers_on_rank, world=world)
            ...

`pytest grader`, the command line, `watch`, a notebook's test cell: all ask the
same `Judge`.
"""

import importlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from grader.engine import batch, evidence, lessons, regions
from grader.engine.diagnose import Fault, Unjudged, Where, place
from grader.engine.launch import Engine, Private, Run
from grader.engine.messages import least_bytes

BASELINE = "single_gpu_training"  # the serial run that every parallel run must equal


def premise(holds: bool, wrong: str) -> None:
    """What is drawn for a check must tell right from wrong, or the check says nothing of the student.

    Raises:
        Unjudged: it does not; `wrong` is the wrong answer that would pass.
    """
    if not holds:
        raise Unjudged(f"the numbers drawn for this check would let pass {wrong}")


class Wrong(Exception):
    """The code ran, and did the wrong thing. `expected` and `seen` in a few words each."""

    def __init__(self, message: str, expected: Any = None, seen: Any = None, rank: int | None = None) -> None:
        super().__init__(message)
        self.message, self.expected, self.seen, self.rank = message, expected, seen, rank


def expect(right: bool, message: str, expected: Any = None, seen: Any = None, rank: int | None = None) -> None:
    """Raise `Wrong` unless `right`."""
    if not right:
        raise Wrong(message, expected, seen, rank)


@dataclass(frozen=True)
class Todo:
    """What a check file says of one TODO. Its title stands in the lesson's source."""

    number: int
    why: str
    hints: tuple[str, ...]
    needs: tuple[int, ...]
    points: int


def todo(number: int, *, why: str, hints: tuple[str, ...], needs: tuple[int, ...] = (), points: int = 1) -> Callable:
    """Mark a function as the check of a TODO. `needs`: without these TODOs it can say nothing."""

    def mark(check: Callable) -> Callable:
        check.todo = Todo(number, why, hints, needs, points)
        return check

    return mark


@dataclass
class Verdict:
    """The answer to "is this TODO right?". Its fields are those of the JSON."""

    lesson: str
    todo: int
    title: str
    status: str  # pass | fail | skipped
    cause: str | None  # null | not_attempted | crash | wrong_value | mismatch | hang | prerequisite | not_installed
    points: int
    max_points: int
    message: str = ""
    expected: str | None = None
    seen: str | None = None
    why: str = ""
    hint: str = ""
    rank: int | None = None
    where: str | None = None

    @property
    def passed(self) -> bool:
        return self.status == "pass"

    def as_dict(self) -> dict:
        return asdict(self)


class Student:
    """A student's lesson on ranks: run it as a whole, or call one of its functions."""

    def __init__(
        self, engine: Engine, lesson: str, units: list[lessons.Unit], batch: list[lessons.Unit], seed: str = ""
    ) -> None:
        self.engine, self.lesson, self.units, self.batch, self.seed = engine, lesson, units, batch, seed
        self.module = f"grader.test_{lesson}"
        self.seconds = 0.0  # spent on ranks
        self.suspicions: list[str] = []  # of runs whose records contradict themselves
        self._runs: dict[str, Run] = {}

    def draw(self, *purpose: Any) -> random.Random:
        """Numbers for a check to draw: for one purpose always the same, and where marks matter known to the instructor
        alone.
        """
        return random.Random(f"{self.seed}/{self.lesson}/{purpose}")

    def seeds(self, world: int) -> Private:
        """A seed for each rank, from which it draws what the other ranks can only know if it tells them."""
        return Private(self.draw("seeds").sample(range(1 << 40), world))

    def call(
        self, function: Callable, world: int = 2, nodes: int = 1, gpus: int = 0, group: bool = True, **inputs: Any
    ) -> Run:
        """`function(code, rank=…, world=…, **inputs)` on each rank, where `code` is the student's module. What each
        returned is the run's `evidence`, by rank.

        Raises the `Fault` that stopped it; its `events` tell how far the ranks came.
        """
        run = self._once(world=world, nodes=nodes, gpus=gpus, group=group, function=named(function), inputs=inputs)
        if run.fault:
            fault = explain_broken_cell(run, self.units)
            fault.events = run.events
            raise fault
        return run

    def run(self, argv: list[str], files: dict[str, str], world: int = 2, nodes: int = 1) -> Run:
        """The script as a whole, with `files` in its working folder. Raises the `Fault` that stopped it."""
        run = self._once(world=world, nodes=nodes, argv=argv, files=files)
        if run.fault:
            raise run.fault
        return run

    def batch_files(self, number: int) -> list[lessons.Unit]:
        """The batch files in which TODO `number` is to be right: one scheduler is enough, so those that were begun,
        else all.
        """
        begun = [unit for unit in self.batch if regions.attempted(unit.source, unit.text, number)]
        if not self.batch:
            raise Wrong(
                "there is no batch file: `./workbook reset` brings it back", f"sbatch/{self.lesson}.sbatch", "none"
            )
        return begun or self.batch

    def submit(self, unit: lessons.Unit, nodes: int) -> list[batch.Ranks]:
        """What each node starts when a batch file runs as a job of 1 or 2 nodes. Raises `Wrong` if it stops before."""
        name, _, kind = unit.name.removeprefix("sbatch/").rpartition(".")
        key = (unit.name, unit.text, batch.SITE.read_text("utf-8"))
        known = SUBMITTED.setdefault(self.engine, {})
        if key not in known:
            run = self._launch(
                [],
                world=1,
                group=False,
                function=named(batch.submit),
                inputs=dict(text=unit.text, kind=kind, name=name),
            )
            if run.fault:
                raise run.fault
            known[key] = run.evidence[0]
        seen = known[key][str(nodes)]
        job = f"{unit.name}, on {nodes} node{'s' if nodes > 1 else ''}"
        last = next((line for line in reversed(seen["said"].splitlines()) if line.strip()), "it says nothing")
        if seen["code"] != 0 or not seen["starts"]:
            what = "it stops before its end" if seen["code"] else "it starts no training"
            raise Fault(
                "crash",
                f"{job}: {what}: {last}",
                None,
                batch_line(unit, seen["said"]),
                expected="exit code 0, and a training started",
                seen=f"exit code {seen['code']}: {last}",
            )
        self.starts, self.said = seen["starts"], seen["said"]
        return batch.started(seen)

    def told(self, name: str) -> str:
        """A variable in the environment of what the last submitted file started; "" where there is none."""
        return self.starts[0]["env"].get(name, "")

    def _once(self, **how: Any) -> Run:
        """One run serves every check that asks for the same."""
        key = json.dumps(how, sort_keys=True)
        if key not in self._runs:
            self._runs[key] = self._launch(self.units, **how)
        return self._runs[key]

    def serial(self, argv: list[str], files: dict[str, str]) -> Run:
        """The same with the baseline on one process: what the parallel run must equal."""
        source = lessons.source_path(BASELINE).read_text("utf-8")
        key = json.dumps([source, argv, files])
        if key not in SERIAL:
            unit = lessons.Unit(f"train/{BASELINE}.py", regions.compose(source), source)
            SERIAL[key] = self._launch([unit], self.trusted, world=1, argv=argv, files=files)
        if SERIAL[key].fault:
            raise Unjudged(f"the baseline itself fails: {SERIAL.pop(key).fault.message}")
        return SERIAL[key]

    def reference(self, function: Callable, **inputs: Any) -> Any:
        """`function(**inputs)` of the check file in a process of its own, without the student's code."""
        key = json.dumps([named(function), inputs])
        if key not in SERIAL:
            SERIAL[key] = self._launch([], self.trusted, world=1, group=False, function=named(function), inputs=inputs)
        if SERIAL[key].fault:
            raise Unjudged(f"the check's own reference fails: {SERIAL.pop(key).fault.message}")
        return SERIAL[key].evidence[0]

    @property
    def trusted(self) -> Engine:
        """Where the course's own code runs: never with a student's."""
        return self.engine.outside or self.engine

    def _launch(self, units: list[lessons.Unit], engine: Engine | None = None, **how: Any) -> Run:
        began = time.perf_counter()
        try:
            run = (engine or self.engine).run(units, module=self.module, **how)
        except Exception as error:  # a student's faults are in the run
            raise Unjudged(f"{type(error).__name__}: {error}") from error
        finally:
            self.seconds += time.perf_counter() - began
        if run.wire is not None and run.fault is None and run.wire < (claimed := least_bytes(run.events)):
            self.suspicions.append(
                f"the ranks report collectives of {claimed:,} bytes or more; over their network went {run.wire:,}"
            )
        return run


def named(function: Callable) -> str:
    """What a rank finds it by."""
    return f"{function.__module__}:{function.__name__}"


def batch_line(unit: lessons.Unit, said: str) -> Where:
    """The line of a batch file that failed: the one that bash names, else where it launches, which is its last TODO."""
    named = re.findall(re.escape(unit.name) + r": line (\d+):", said)
    last = max((lines[0].start for lines in regions.locate(unit.source, unit.text).values()), default=1)
    return [unit.name, int(named[-1]) if named else last, ""]


SERIAL: dict[str, Run] = {}  # serial runs by their content: they serve every check of every student
# What batch files start, by what they say: a saved script does not change it. In a class no submission learns it from
# another one's.
SUBMITTED: WeakKeyDictionary[Engine, dict[tuple[str, str, str], dict]] = WeakKeyDictionary()


def explain_broken_cell(run: Run, units: list[lessons.Unit]) -> Fault:
    """A function that is missing because its cell broke: the cell is the cause."""
    fault = run.fault
    missing = re.search(r"module 'student' has no attribute '(\w+)'", fault.message)
    if fault.cause == "crash" and fault.where is None and missing and run.broken:
        own = {unit.name for unit in units if f"def {missing[1]}(" in unit.text}
        first = min(run.broken, key=lambda cell: (cell["cell"] not in own, cell["type"] == "NotOnARank"))
        where = next((f for f in reversed(first["frames"]) if "cell" in f[0]), None)
        return Fault(
            "crash",
            f"{first['cell']} does not run: {first['type']}: {first['text']}",
            None,
            where,
            seen=f"{first['type']}: {first['text']}",
        )
    return fault


class Judge:
    """The verdicts on one lesson of one student, in order. Each check runs at most once."""

    def __init__(
        self,
        engine: Engine,
        lesson: str,
        target: str | Path | None = None,
        units: list[lessons.Unit] | None = None,
        latest: dict[str, lessons.Ran] | None = None,
        batch: list[lessons.Unit] | None = None,
        seed: str = "",
    ) -> None:
        self.lesson = lesson
        self.lacks = lessons.lacking(lesson)
        module = check_module(lesson)
        self.checks = {check.todo.number: check for check in checks_of(module)}
        self.titles = lessons.titles(lesson)
        self.student: Student | None = None
        self.unreadable = ""
        self.blamed: dict[int, Fault] = {}  # a crash met by another TODO's check
        self.asked: set[int] = set()  # TODOs whose verdict was begun
        self.broken: Fault | None = None  # the script is no Python
        self.known: dict[int, Verdict] = {}
        try:
            self.student = Student(
                engine,
                lesson,
                lessons.units(lesson, target, latest) if units is None else units,
                lessons.batch_units(lesson, target) if batch is None else batch,
                seed,
            )
        except FileNotFoundError as error:
            self.unreadable = f"there is no {error.filename}: `./workbook reset {lesson}` brings it back"
        except ValueError as error:
            self.unreadable = str(error)

    def verdicts(self) -> Iterator[Verdict]:
        for number in sorted(self.checks):
            yield self.verdict(number)

    def verdict(self, number: int) -> Verdict:
        if (
            number in self.asked and number not in self.known
        ):  # asked again on the way: two TODOs stand in each other's way
            if number in self.blamed:
                return self._failed(number, self.blamed[number])
            return self._say(number, "skipped", "prerequisite", "its check is not over")
        if number not in self.known:
            self.asked.add(number)
            self.known[number] = self._reach(number)
        return self.known[number]

    def _reach(self, number: int) -> Verdict:
        if self.lacks:
            return self._say(number, "skipped", "not_installed", self.lacks)
        if self.student is None:
            return self._say(number, "fail", "crash", self.unreadable)
        if self.broken and not self._in_batch_files(number):
            return self._say_broken(number)
        missing = [need for need in self.checks[number].todo.needs if not self.verdict(need).passed]
        if missing and number in self.blamed and self.attempted(number):
            return self._failed(number, self.blamed[number])
        if missing:
            return self._say(
                number, "skipped", "prerequisite", f"first {todos(missing)}: this check needs what it makes"
            )
        try:
            self.checks[number](self.student)
        except (Wrong, Fault) as problem:
            if (
                str(problem.seen).startswith(NO_PYTHON)
                and getattr(problem, "cause", "") == "crash"
                and not lessons.is_notebook(self.lesson)
            ):
                self.broken = problem
                return self._say_broken(number)
            return self._judge(number, problem)
        except Unjudged:
            raise
        except Exception as error:
            if not self.student.units or self.student.trusted is self.student.engine:
                raise
            return self._judge(
                number,
                Fault(
                    "crash",
                    f"the check can not make sense of what the ranks left: {type(error).__name__}: {error}"[:500],
                ),
            )
        return self._say(number, "pass", None)

    def _judge(self, number: int, problem: Wrong | Fault) -> Verdict:
        if not self.attempted(number):
            return self._say(number, "fail", "not_attempted", f"TODO {number} is not done yet", problem)
        for line in (getattr(problem, "where", None), *getattr(problem, "also", ())):
            owner = self.owner(line)
            if owner == number:
                break
            if owner in self.checks:
                # The line belongs to another TODO. If that one is wrong, it is to blame, and this one can not be
                # judged.
                self.blamed.setdefault(owner, problem)
                if not self.verdict(owner).passed:
                    return self._say(
                        number, "skipped", "prerequisite", f"first TODO {owner}: it stops this check, {problem.message}"
                    )
        return self._failed(number, problem)

    def _say_broken(self, number: int) -> Verdict:
        """The script does not compile: that is told once, by the TODO whose line it is, or by the first."""
        teller = self.owner(self.broken.where)
        teller = teller if teller in self.checks else min(self.checks)
        message = f"{place(self.broken.where)} does not run: {self.broken.seen}"
        if number == teller:
            return self._say(number, "fail", "crash", message, self.broken)
        return self._say(number, "skipped", "prerequisite", f"first TODO {teller}: {message}")

    def _failed(self, number: int, problem: Wrong | Fault) -> Verdict:
        return self._say(number, "fail", getattr(problem, "cause", "wrong_value"), problem.message, problem)

    def _say(
        self, number: int, status: str, cause: str | None, message: str = "", problem: Wrong | Fault | None = None
    ) -> Verdict:
        about = self.checks[number].todo
        verdict = Verdict(
            self.lesson,
            number,
            self.titles.get(number, ""),
            status,
            cause,
            about.points if status == "pass" else 0,
            about.points,
            evidence.plain_text(message, 2000),
        )
        if status == "fail":
            verdict.why, verdict.hint = about.why, about.hints[0]
        if problem is not None:
            verdict.expected, verdict.seen = text(problem.expected), text(problem.seen)
            verdict.rank, verdict.where = problem.rank, self.place(number, problem)
        return verdict

    def attempted(self, number: int) -> bool:
        return any(
            regions.attempted(u.source, u.text, number)
            for u in self.student.units + self.student.batch
            if u.source and number in regions.titles(u.source)
        )

    def _in_batch_files(self, number: int) -> bool:
        return any(number in regions.titles(unit.source) for unit in self.student.batch)

    def owner(self, where: Where | None) -> int | None:
        """The TODO whose region holds a line of the student's code."""
        for unit in self.student.units + self.student.batch if where else ():
            if unit.name == where[0] and unit.source:
                return regions.todo_at(unit.source, unit.text, where[1])
        return None

    def place(self, number: int, problem: Wrong | Fault) -> str | None:
        """Where a problem of TODO `number` lies: the line that failed, and the line of that TODO that led there."""
        where = getattr(problem, "where", None)
        if not where:
            return None
        owner = self.owner(where)
        said = place(where) + (f" (TODO {owner})" if owner else "")
        own = next((line for line in problem.callers if self.owner(line) == number), None) if owner != number else None
        return f"{place(own)} (TODO {number}), which calls {said}" if own else said


def todos(numbers: list[int]) -> str:
    """ "TODO 4", "TODOs 1 to 12", "TODOs 9 and 11"."""
    if len(numbers) == 1:
        return f"TODO {numbers[0]}"
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"TODOs {numbers[0]} to {numbers[-1]}"
    return f"TODOs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"


NO_PYTHON = ("SyntaxError", "IndentationError", "TabError")


def text(value: Any) -> str | None:
    """What was expected or seen, short enough to read."""
    if value is None:
        return None
    return evidence.plain_text(value if isinstance(value, str) else repr(value), 400)


def check_module(lesson: str) -> ModuleType:
    return importlib.import_module(f"grader.test_{lesson}")


def checks_of(module: ModuleType) -> list[Callable]:
    """The checks of a check file, by their TODO's number."""
    found = [value for value in vars(module).values() if isinstance(getattr(value, "todo", None), Todo)]
    return sorted(found, key=lambda check: check.todo.number)


def checked_lessons() -> list[str]:
    """The lessons that have a check file, in course order."""
    return [stem for stem in lessons.stems() if (lessons.COURSE / "grader" / f"test_{stem}.py").is_file()]

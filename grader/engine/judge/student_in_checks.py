"""A student's lesson as a check sees it: code to run on ranks, and the serial reference to compare with."""

import copy
import difflib
import json
import random
import re
import textwrap
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch

from grader.engine.jobs import batch_file, stand_ins
from grader.engine.judge.verdict import BadCheck, BadDraw, Wrong, count_of
from grader.engine.lesson import lessons, todo_regions
from grader.engine.ranks.backends import NoBackend
from grader.engine.ranks.diagnose import Fault, Unjudged, Where
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.job import Job, Private
from grader.engine.ranks.message_rounds import least_bytes
from grader.engine.ranks.run import Run


Case = TypeVar("Case")
AGAIN = "Is there a tensor that is made once, for all calls? Each result needs one of its own."
IN_PLACE = (
    "These write into the tensor itself: an operation with an underscore, `*=`, `x[i] = …`, and a collective that"
    " returns nothing. Who else uses that tensor?"
)
GIVEN = (
    "What is given belongs to the caller, with all that is in it. Which line changes it instead of making a new one?"
)


class Request(NamedTuple):
    """A run of the student's code that a check wants. `how`: fields of the job."""

    how: dict[str, Any]
    whole: bool = False  # the script as a whole, from its first line to its last

    def like(self, other: "Request") -> bool:
        """Whether another request differs only in its inputs."""
        return self._replace(how=self.how | {"inputs": None}) == other._replace(how=other.how | {"inputs": None})


# What autograd says where a tensor was written into; by whom it does not know.
SPOILED = ("modified inplace", "modified by an inplace operation")


class Student:
    """A student's lesson on ranks: run it as a whole, or call one of its functions."""

    def __init__(
        self, runner: Runner, lesson: str, units: list[lessons.Unit], batch: list[lessons.Unit], seed: str = ""
    ) -> None:
        self.runner, self.lesson, self.units, self.batch, self.seed = runner, lesson, units, batch, seed
        self.again = 0  # how often the numbers of this check were redrawn
        self.seconds = 0.0  # spent on ranks
        self.suspicions: list[str] = []  # about runs whose records contradict themselves
        self._runs: dict[str, Run] = {}
        self.recent: list[Run] = []  # the runs whose evidence the current check reads
        self.premises = 0  # tried so far
        self.in_place: Collection[str] = ()  # arguments that this check's TODO may change
        self.turn = ""  # which of the check's two passes
        self.ask: Callable[[Request], Run] = self.launch

    def second(self) -> "Student":
        """The same student for the second pass of a check, which draws different numbers."""
        other = copy.copy(self)
        other.recent, other.turn = [], "/second call"
        return other

    def draw(self, *purpose: Any) -> random.Random:
        """A generator of a check's numbers: the same for one purpose; for marks, known only to the instructor."""
        again = f"/again {self.again}" if self.again else ""
        return random.Random(f"{self.seed}/{self.lesson}/{purpose}{again}{self.turn}")

    def several(self, cases: Iterable[Case], count: int = 1, but: Collection[Case] = ()) -> list[Case]:
        """All of these cases; in the second pass `count` of them, drawn, in their order, and none of those in `but`.

        What a function keeps from its first call shows in any case, and a second pass over all of them would take as
        long as the first.
        """
        all_of_them = list(cases)
        if not self.turn:
            return all_of_them
        places = [place for place, case in enumerate(all_of_them) if case not in but]
        drawn = self.draw("several", len(all_of_them)).sample(places, min(count, len(places)))
        return [all_of_them[place] for place in sorted(drawn)]

    def seeds(self, world: int) -> Private:
        """A seed for each rank, from which it draws what other ranks can learn only through messages."""
        return Private(self.draw("seeds", world).sample(range(1 << 40), world))

    def premise(self, holds: bool, wrong: str) -> None:
        """Assert that the numbers drawn for a check tell right from wrong; otherwise the check proves nothing. This
        comes before the student's code runs, so that it can be tried without that code, with many seeds.

        Raises:
            BadDraw: they do not; `wrong` is the wrong answer that would pass.
            BadCheck: the student's code has already run.
        """
        if self.recent:
            raise BadCheck("a premise of this check comes after the student's code has run")
        self.premises += 1
        if not holds:
            raise BadDraw(f"with the numbers drawn for this check, this would pass: {wrong}")

    def call(
        self,
        function: Callable,
        world: int = 2,
        nodes: int | tuple[int, ...] = 1,
        gpus: int = 0,
        group: bool | None = True,
        anywhere: bool = False,
        common: bool = False,
        **inputs: Any,
    ) -> Run:
        """Call `function(code, rank=…, world=…, **inputs)` on each rank, where `code` is the student's module. The
        returned values are the run's `evidence`, by rank.

        Args:
            nodes: how many nodes the ranks pretend to be spread over, evenly; or the number of ranks on each.
            gpus: how many GPUs a node pretends to have.
            group: make the process group before the call. None: the code makes it, and runs as a script would.
            common: all ranks work in one folder, as for a checkpoint; else each in its own, which no other one sees.
            anywhere: the inputs of a script's function determine where it computes, so that may be a GPU.

        With NCCL, ranks that have a group are on GPUs: the ranks of notebooks and whole scripts, and those that compute
        anywhere. A script's other functions are told that their device is the CPU; ranks with pretended GPUs are also
        on CPUs.

        Raises the `Fault` that stopped it; its `events` show how far the ranks got.
        """
        talks = group is None or (group and (anywhere or lessons.is_notebook(self.lesson)))
        how = dict(world=world, nodes=nodes, gpus=gpus, group=bool(group), function=qualified(function), inputs=inputs)
        on_gpus = talks and nodes == 1 and not gpus
        how |= dict(on_gpus=on_gpus, common=common)
        run = self.ask(Request(how, whole="main" in function.__code__.co_names))
        self.recent.append(run)
        fault = explain_missing(run, self.lesson, self.units) if run.fault else None
        if not fault or any(words in fault.message for words in SPOILED):
            fault = self._touched(run) or fault
        if fault:
            fault.events = run.events
            raise fault
        return run

    def _touched(self, run: Run) -> Fault | None:
        """What the student's functions were given is as it was, unless the TODO allows to change it; and so is what
        they have returned.
        """
        for rank, touched in sorted(run.touched.items()):
            for event in touched:
                if event["e"] == "overwritten":
                    message = f"{event['name']}: what an earlier call has returned is overwritten by a later one"
                    right, seen = "a new tensor from each call", "the same memory, with different numbers"
                    return Fault("wrong_value", message, rank, event["where"], expected=right, seen=seen, hint=AGAIN)
                name, argument, change = (event[field] for field in ("name", "argument", "change"))
                if re.match(r"\w*", argument)[0] not in self.in_place:
                    return Fault(
                        "wrong_value",
                        f"{name}: {argument}, which it is given, {change}",
                        rank,
                        event["where"],
                        expected="as it was",
                        seen=change,
                        hint=IN_PLACE if change == "is written into" else GIVEN,
                    )
        return None

    def run(self, argv: list[str], files: dict[str, str], world: int = 2, nodes: int = 1, common: bool = False) -> Run:
        """The script as a whole, with `files` in its working folder, which may be `common` as in `call`. Raises the
        `Fault` that stopped it.
        """
        how = dict(world=world, nodes=nodes, argv=argv, files=files, on_gpus=nodes == 1, common=common)
        run = self.ask(Request(how, whole=True))
        self.recent.append(run)
        if run.fault:
            raise run.fault
        return run

    def batch_files(self, number: int) -> list[lessons.Unit]:
        """The batch files in which TODO `number` must be right: one scheduler is enough, so those that were started,
        else all.
        """
        begun = [unit for unit in self.batch if todo_regions.attempted(unit.source, unit.text, number)]
        if not self.batch:
            raise Wrong(
                "there is no batch file: `./workbook reset` brings it back", f"sbatch/{self.lesson}.sbatch", "none"
            )
        for unit in begun or self.batch:
            if "\r\n" in unit.text:
                raise Wrong(
                    f"lines of {unit.name} end as on Windows: sbatch refuses the file, to bash \\r is a letter",
                    "lines that end in \\n",
                    "\\r\\n",
                    hint="Set your editor to end lines as on Linux (LF, not CRLF), or give the file to dos2unix.",
                )
        return begun or self.batch

    def submit(self, unit: lessons.Unit, nodes: int, again: bool = False) -> list[batch_file.Ranks]:
        """What each node starts when a batch file runs as a job on 1 or 2 nodes, or as a second job (`again`) on 2.
        Raises `Wrong` if it stops earlier.
        """
        name, _, kind = unit.name.removeprefix("sbatch/").rpartition(".")
        key = (unit.name, unit.text, *(file.read_text("utf-8") for file in sorted(stand_ins.SHELL.glob("*.sh"))))
        known = SUBMITTED.setdefault(self.runner, {})
        if key not in known:
            run = self._launch(
                [],
                world=1,
                group=False,
                function=qualified(stand_ins.submit),
                inputs=dict(text=unit.text, kind=kind, name=name),
            )
            if run.fault:
                raise run.fault
            known[key] = run.evidence[0]
        seen = known[key]["again" if again else str(nodes)]
        job = f"{unit.name}, on {count_of(nodes, 'node')}"
        last = next((line for line in reversed(seen["said"].splitlines()) if line.strip()), "it says nothing")
        if seen["code"] == 0 and seen["left"]:
            raise Fault(
                "crash",
                f"{job}: it ends while its processes still run in the background, and then the job ends:"
                " leave out the &, or `wait` for it",
                None,
                batch_line(unit, ""),
                expected="the file ends when the training has ended",
                seen="it ends before",
            )
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
        return batch_file.started(seen)

    def variable(self, name: str) -> str:
        """A variable in the environment of the processes that the last submitted file started; "" if it is not set."""
        return self.starts[0]["env"].get(name, "")

    def launch(self, wanted: Request, second: Request | None = None) -> Run:
        """Run a request; all checks with the same request use one run. `second`: return the second call in the same
        processes.
        """
        key = json.dumps([wanted.how, second and second.how["inputs"]], sort_keys=True)
        if key not in self._runs:
            self._runs[key] = self._launch(self.units, **wanted.how, second=second and second.how["inputs"])
        return self._runs[key]

    def serial(self, argv: list[str], files: dict[str, str]) -> Run:
        """The same run of the baseline on one process, which the parallel run must equal."""
        source = lessons.source_path(lessons.BASELINE).read_text("utf-8")
        key = json.dumps([source, argv, files])
        if key not in SERIAL:
            unit = lessons.Unit(f"train/{lessons.BASELINE}.py", todo_regions.compose(source), source)
            SERIAL[key] = self._launch([unit], self.runner.trusted, world=1, argv=argv, files=files)
        if SERIAL[key].fault:
            raise Unjudged(f"the baseline itself fails: {SERIAL.pop(key).fault.message}")
        return SERIAL[key]

    def reference(self, function: Callable, on_gpus: bool = False, **inputs: Any) -> Any:
        """Call `function(**inputs)` of the checks, without the student's code: in this process, since starting one
        takes longer than most references; but not in a notebook's kernel, where that code runs.

        Args:
            on_gpus: on a GPU, if ranks are on GPUs, which round bfloat16 at other places than CPUs.
        """
        key = json.dumps([qualified(function), inputs])
        if key not in SERIAL:
            try:
                if self.runner.in_kernel or (on_gpus and self.runner.trusted.backend.gpus):
                    SERIAL[key] = self._apart(function, inputs, on_gpus)
                else:
                    SERIAL[key] = on_one_thread(function, json.loads(json.dumps(inputs)))
            except (Unjudged, OSError, MemoryError):
                raise
            except Exception as error:
                raise BadCheck(f"its own reference fails: {type(error).__name__}: {error}") from error
        return SERIAL[key]

    def _apart(self, function: Callable, inputs: dict[str, Any], on_gpus: bool) -> Any:
        how = dict(world=1, group=False, function=qualified(function), inputs=inputs, on_gpus=on_gpus)
        run = self._launch([], self.runner.trusted, **how)
        if run.fault:
            raise run.fault
        return run.evidence[0]

    def _launch(self, units: list[lessons.Unit], runner: Runner | None = None, **how: Any) -> Run:
        began = time.perf_counter()
        try:
            run = (runner or self.runner).run(Job(units, self.lesson, **how))
        except Exception as error:  # a student's faults are recorded in the run
            machines = isinstance(error, (OSError, RuntimeError, Unjudged, NoBackend))
            machines &= not isinstance(error, RecursionError)
            if machines or not units:
                raise Unjudged(f"{type(error).__name__}: {error}") from error
            # Evidence left by a stranger's code makes its reader fail: that is a verdict, not a failure of the grader.
            raise Fault("crash", f"what the ranks left cannot be read ({type(error).__name__})", None) from error
        finally:
            self.seconds += time.perf_counter() - began
        self.suspect(run)
        return run

    def suspect(self, run: Run) -> None:
        """Note what a person should look at: ranks that passed numbers on by other ways than they report."""
        calls = [call for call in (run, run.second) if call]
        if any(call.fault for call in calls):
            return
        claimed = sum(least_bytes(call.events) for call in calls)
        if run.wire is not None and run.wire < claimed:
            self.suspicions.append(
                f"the ranks report collectives of {claimed:,} bytes or more; over their network went {run.wire:,}"
            )
        if posted := " and ".join(call.posted for call in calls if call.posted):
            self.suspicions.append(f"the store by which the ranks meet holds more than addresses: {posted}")


def on_one_thread(function: Callable, inputs: dict[str, Any]) -> Any:
    """What a check's reference returns, computed by one thread, as on a rank. It leaves the caller's random numbers as
    they were.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return as_evidence(function(**inputs))
    finally:
        torch.set_num_threads(threads)


def as_evidence(value: Any) -> Any:
    """A value as ranks leave theirs: its keys are text, and its tensors are not written into any more."""
    if isinstance(value, dict):
        return {str(key): as_evidence(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [as_evidence(part) for part in value]
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def qualified(function: Callable) -> str:
    """The name by which a rank finds the function."""
    return f"{function.__module__}:{function.__name__}"


def batch_line(unit: lessons.Unit, said: str) -> Where:
    """The line of a batch file that failed: the one that bash names, else the line that launches, which is its last
    TODO.
    """
    named = re.findall(re.escape(unit.name) + r": line (\d+):", said)
    last = max((lines[0].start for lines in todo_regions.locate(unit.source, unit.text).values()), default=1)
    return [unit.name, int(named[-1]) if named else last, ""]


SERIAL: dict[str, Any] = {}  # serial runs and references by content: shared by every check of every student
# What batch files start, by their content: saving the script does not change it. In a class, submissions do not share
# it.
SUBMITTED: WeakKeyDictionary[Runner, dict[tuple[str, str, str], dict]] = WeakKeyDictionary()


CELL = re.compile(r"notebooks/\w+\.ipynb, cell \d+(?:, line (\d+))?(?: \(TODO \d+\))?")


def named_places(words: str, units: list[lessons.Unit]) -> str:
    """Rename places in a notebook by function and TODO, with the line quoted: JupyterLab does not number cells."""

    def in_words(found: re.Match) -> str:
        unit = next((unit for unit in units if found[0].split(", line ")[0].split(" (TODO")[0] == unit.name), None)
        if unit is None:
            return found[0]
        number = int(found[1] or 0)
        todo = todo_regions.todo_at(unit.source, unit.text, number) if unit.source and number else None
        lines = unit.text.splitlines()
        # the function, or method of a class, that contains this line
        function = ".".join(name for name, begin, end in unit.outline.functions if begin <= number <= end)
        place = f"{function}{f' (TODO {todo})' if todo else ''}" if function else f"TODO {todo}" if todo else "a cell"
        quoted = lines[number - 1].strip() if 0 < number <= len(lines) else next(filter(str.strip, lines), "").strip()
        return f"{place}: “{textwrap.shorten(quoted, 100, placeholder=' …')}”"

    return CELL.sub(in_words, words)


def explain_missing(run: Run, lesson: str, units: list[lessons.Unit]) -> Fault:
    """If a function is missing, blame the cell of it that does not run, or else say that nothing defines it."""
    fault = run.fault
    missing = re.search(r"module 'student' has no attribute '(\w+)'", fault.message)
    if fault.cause != "crash" or fault.where is not None or not missing:
        return fault
    defines = re.compile(rf"^[ \t]*+(?:async )?(?:def|class) {missing[1]}\b", re.MULTILINE)
    own = {unit.name for unit in units if defines.search(unit.text) or defines.search(unit.source)}
    for cell in run.broken:
        if cell["cell"] in own:
            where = next((f for f in reversed(cell["frames"]) if "cell" in f[0]), None)
            said = f"{cell['type']}: {cell['text']}"
            hint = hint_of_syntax(said) if cell["type"] in NO_PYTHON else ""
            return Fault("crash", f"{cell['cell']} does not run: {said}", None, where, seen=said, hint=hint)
    text, where = f"{missing[1]} is not defined", None
    if alike := named_like(missing[1], units):
        text, where = f"{text}; there is a {alike[2]}", alike
    elif any(defines.search(unit.source) and not unit.text.strip() for unit in units):
        text += ": its cell is gone"
    hint = f"It is called by the name that it was given. `./workbook diff {lesson}` shows what you changed."
    return Fault("crash", text, None, where, expected=f"a {missing[1]}", seen="none", hint=hint)


NO_PYTHON = ("SyntaxError", "IndentationError", "TabError")


def hint_of_syntax(what: str) -> str:
    """A hint for a parser's error in a file or a cell."""
    if "unexpected indent" in what:
        return (
            "The line begins further to the right than the one above, which opens no block. Does it begin in the same"
            " column as its neighbours?"
        )
    if "unindent" in what:
        return "The line begins in a column in which no line above begins. To which block does it belong?"
    if "expected an indented block" in what:
        return "A line that ends with a colon needs at least one line of code below it, indented; a comment is none."
    if "TabError" in what or "inconsistent use of tabs" in what:
        return "Tabs and spaces are mixed. The course indents with spaces: can your editor convert tabs?"
    return "Python reads all the code before it runs any. Is a bracket, a quote or a colon missing, there or above?"


def named_like(name: str, units: list[lessons.Unit]) -> Where | None:
    """The student's function or class with almost this name; names that the course defines are not meant."""
    given = {each for unit in units for each in re.findall(r"(?:def|class) (\w+)", unit.source)}
    mine = {each: [unit.name, line, each] for unit in units for each, line, _ in unit.outline.functions}
    found = difflib.get_close_matches(name, mine.keys() - given, n=1)
    return mine[found[0]] if found else None

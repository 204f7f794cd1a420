"""How checks are written, and how their verdicts are reached.

The checks of a lesson are in `grader/lessons/<lesson>/test_*.py`. Each is a function of
one argument, the student's code on ranks, that returns if the TODO is right and
raises `Wrong` if not:

    @todo(4, needs=(1,))
    def test_todo4_samplers(student):
        for world in (2, 3):
            seen = student.call(samplers_on_rank, world=world)
            ...

`pytest grader`, the command line, `watch` and a notebook's test cell all ask the
same `Judge`.
"""

import copy
import functools
import importlib
import itertools
import re
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from grader.engine.judge.passed_todos import Passed
from grader.engine.judge.student_in_checks import Student, hint_of_syntax, named_places
from grader.engine.judge.check_twice import KEPT, Second
from grader.engine.judge.verdict import ALIKE, BadCheck, BadDraw, Todo, Verdict, Wrong, text, todos
from grader.engine.lesson import changes, lessons, parsing, todo_regions, texts
from grader.engine.ranks.diagnose import Fault, Unjudged, Where, place
from grader.engine.ranks.rank_endings import broken_promise
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.events import NOTHING
from grader.engine.ranks.run import Run
from grader.engine.walls import sanitize


class Judge:
    """The verdicts on one student's lesson, in order. Each check runs at most once."""

    def __init__(
        self,
        runner: Runner,
        lesson: str,
        target: str | Path | None = None,
        units: list[lessons.Unit] | None = None,
        latest: dict[str, lessons.Ran] | None = None,
        batch: list[lessons.Unit] | None = None,
        seed: str = "",
        presumed: Collection[int] = (),
        passed: Passed | None = None,
        read: Callable[[str, bool], list[parsing.Cell]] = parsing.cells,
        once: bool = False,
        ahead: Callable[[str, int], Verdict | None] | None = None,
    ) -> None:
        """`presumed`: TODOs that are assumed to be right and not checked. `passed`: a store of TODOs that passed with
        their current text; this judge adds what it finds. `read`: as for `lessons.units`. `once`: only the first pass
        of each check; what fails there fails with both. `ahead`: asked first, it may know that a TODO is right.
        """
        self.lesson, self.passed, self.once, self.ahead = lesson, passed, once, ahead
        self.lacks = lessons.lacking(lesson)
        self.checks = {check.todo.number: check for check in checks_of(lesson)}
        self.titles = lessons.titles(lesson)
        self.student: Student | None = None
        self.unreadable = ""
        self.blamed: dict[int, Fault] = {}  # a crash found by another TODO's check
        self.asked: set[int] = set()  # TODOs whose verdict was started
        self.broken: Fault | None = None  # the script is not valid Python
        self.draws: dict[int, int] = {}  # TODO -> how often the numbers of its check were drawn, if more than once
        self.known: dict[int, Verdict] = {}
        self.presume(presumed)
        try:
            self.student = Student(
                runner,
                lesson,
                lessons.units(lesson, target, latest, read) if units is None else units,
                lessons.batch_units(lesson, target) if batch is None else batch,
                seed,
            )
        except FileNotFoundError as error:
            self.unreadable = f"there is no {error.filename}: `./workbook reset {lesson}` brings it back"
        except ValueError as error:
            self.unreadable = str(error)

    def presume(self, right: Collection[int]) -> None:
        """Assume these TODOs to be right, and check them no more."""
        self.known |= {number: self._say(number, "pass", None) for number in right}

    def verdicts(self) -> Iterator[Verdict]:
        for number in sorted(self.checks):
            yield self.verdict(number)

    def verdict(self, number: int) -> Verdict:
        if number in self.asked and number not in self.known:  # asked again while running: a cyclic dependency
            if number in self.blamed:
                return self._failed(number, self.blamed[number])
            return self._say(number, "skipped", "prerequisite", "its check is still running")
        if number not in self.known:
            self.asked.add(number)
            found = self.known[number] = self._reach(number)
            if self.passed and self.student and (found.passed or found.status == "fail"):
                self.passed.note(number, self.texts_of(number), found.passed)
        return self.known[number]

    def _too_new(self, number: int) -> str:
        """What this TODO, or one that it needs, lacks in this torch, in one line; "" if nothing."""
        on_gpus = bool(self.student and self.student.runner.backend.gpus)
        asked = [self.checks[need].todo.since for need in sorted(needed(self.lesson, number))]
        return next(filter(None, (since.lacking(on_gpus) for since in asked if since)), "")

    def _is_there(self, need: int) -> bool:
        """Whether a TODO that another TODO needs is right."""
        if self.passed and self.passed.by(need, self.texts_of(need)):
            return True
        found = self.verdict(need)
        return found.passed or found.cause == "not_judged"  # which is not the fault of the TODO that needs it

    def texts_of(self, number: int) -> list[str]:
        """What a verdict depends on: the TODO, the TODOs that it needs, and the code outside TODOs."""
        mine = needed(self.lesson, number)
        units = self.student.units + self.student.batch
        return [todo_regions.without_others(u.source, u.text, mine) if u.source else u.text for u in units]

    def _reach(self, number: int) -> Verdict:
        if self.lacks:
            return self._say(number, "skipped", "not_installed", self.lacks)
        if lacking := self._too_new(number):
            return self._say(number, "skipped", "not_judged", f"not judged and not marked: {lacking}")
        if self.student is None:
            hint = f"`./workbook reset {self.lesson}` brings the original back, and keeps a copy of your file."
            return self._say(number, "fail", "crash", self.unreadable, Fault("crash", self.unreadable, hint=hint))
        self.broken = self.broken or no_python(self.lesson, self.student.units)
        if self.broken and not self._in_batch_files(number):
            return self._say_broken(number)
        missing = [need for need in self.checks[number].todo.needs if not self._is_there(need)]
        if missing and number in self.blamed and self.attempted(number):
            return self._failed(number, self.blamed[number])
        if missing:
            return self._say(
                number,
                "skipped",
                "prerequisite",
                f"{todos(missing)} first: this check needs {'its result' if len(missing) == 1 else 'their results'}",
            )
        if self.ahead and (found := self.ahead(self.lesson, number)):
            return found
        for self.student.again in range(DRAWS):
            try:
                return self._check(number)
            except BadDraw as problem:
                self.draws[number], why = self.student.again + 2, str(problem)
            except BadCheck as problem:
                return self._say(number, "skipped", "not_judged", f"{AT_FAULT}: {problem.args[0]}")
        self.draws[number] = DRAWS
        return self._say(number, "skipped", "not_judged", f"{NOT_JUDGED}: {why}")

    def _check(self, number: int) -> Verdict:
        """The verdict for the numbers of this draw, from a first and a second call."""
        about, student = self.checks[number].todo, self.student
        student.recent.clear()
        student.in_place = about.in_place
        if self.once or about.once:
            problem = self._problem(number, student)
        else:
            second = Second(student, functools.partial(self._problem, number))
            try:
                problem = self._problem(number, student) or self._second(number, second)
            finally:
                second.drop()
        return self._passed(number) if problem is None else self._judge(number, problem)

    def _second(self, number: int, second: Second) -> Wrong | Fault | None:
        """The problem in the second call. If it also fails in a fresh process, repeated calls are not the cause."""
        problem = second.result()
        if not isinstance(problem, (Wrong, Fault, type(None))):
            raise problem
        if problem is None:
            return None
        alone = self.student.second()
        alone.again, alone.ask = second.student.again, self.student.launch
        if found := self._problem(number, alone):
            return found
        problem.message = f"{SECOND}{problem.message.removeprefix(SECOND)}"
        problem.hint = KEPT
        return problem

    def _problem(self, number: int, student: Student) -> Wrong | Fault | None:
        """The problem that a check finds, or None."""
        try:
            self.checks[number](student)
        except Wrong as problem:
            loose = self.not_contiguous(number, student.recent)
            if loose:
                problem.hint = f"Note that {loose.message}. {loose.hint}"
            return self.returned(number, student.recent, only=NOTHING) or problem
        except Fault as problem:
            if problem.cause == "crash" and problem.where is None:
                self._must_be_the_codes(number, student, problem)
            return problem
        except Unjudged:
            raise
        except Exception as error:
            if not student.units:
                raise
            self._must_be_the_codes(number, student, error)
            return self.returned(number, student.recent) or not_understood(error)
        # A float where a whole number is promised has the right value, and breaks the next range().
        return self.not_contiguous(number, student.recent) or self.returned(number, student.recent, only="a float")

    def _must_be_the_codes(self, number: int, student: Student, problem: Exception) -> None:
        """A check that crashed did so because of what the code left.

        Raises:
            BadCheck: it crashes in the same way on the solution; or, where that is not there, on a name or a call of
            its own.
        """
        if lessons.has_solutions():
            mistaken = self._alike_on_the_solution(number, student, problem)
        else:
            mistaken = isinstance(problem, TypeError) and bool(WRONG_CALL.search(str(problem)))
        if mistaken or isinstance(problem, (NameError, ImportError)):
            raise BadCheck(problem.message if isinstance(problem, Fault) else spoken_crash(problem)) from problem

    def _alike_on_the_solution(self, number: int, student: Student, problem: Exception) -> bool:
        """Whether the check, with the same numbers, crashes in the same way on the solution."""
        root, solution = lessons.source_root(), copy.copy(student)
        # Not beside the student's code: what a server has compiled stays in its memory.
        solution.runner = student.runner.trusted
        solution.units, solution.batch = lessons.units(self.lesson, root), lessons.batch_units(self.lesson, root)
        solution.recent, solution._runs, solution.ask = [], {}, solution.launch
        try:
            self.checks[number](solution)
        except Unjudged:
            raise
        except Exception as error:
            return type(error) is type(problem) and str(error) == str(problem)
        return False

    def _judge(self, number: int, problem: Wrong | Fault) -> Verdict:
        if not self.attempted(number):
            return self._say(number, "fail", "not_attempted", f"TODO {number} is not done yet", problem)
        for line in (problem.where, *problem.also):
            owner = self.owner(line)
            if owner == number:
                break
            if owner in self.checks:
                # The line belongs to another TODO. If that TODO is wrong, it is to blame, and this one cannot be
                # judged.
                self.blamed.setdefault(owner, problem)
                if not self.verdict(owner).passed:
                    return self._say(
                        number, "skipped", "prerequisite", f"TODO {owner} first: it stops this check, {problem.message}"
                    )
        return self._failed(number, problem)

    def returned(self, number: int, runs: list[Run], only: str = "") -> Fault | None:
        """A function that broke its signature while this TODO was checked (`only`: by this kind of result): a check
        that crashes usually crashes on such a result, and its own message about `None` would not help.
        """
        for run in runs:
            for rank, event in sorted(run.strange.items()):
                if self.owner(event["where"]) in (number, None) and only in ("", event["returned"]):
                    return broken_promise(rank, event)
        return None

    def not_contiguous(self, number: int, runs: list[Run]) -> Fault | None:
        """A collective of this TODO that NCCL refuses; gloo accepts it, but may mix up the numbers. Reported if the
        TODO is right otherwise, and as a hint if it is not.
        """
        loose = (
            (rank, event)
            for run in runs
            for rank, events in enumerate(run.events)
            for event in events
            if event.get("gaps") and "id" not in event and event["where"] and not event["ours"]
        )
        for rank, event in loose:
            if self.owner(event["where"]) in (number, None):
                return Fault(
                    "wrong_value",
                    f"rank {rank} gives {event['op']} a tensor that is not contiguous, at {place(event['where'])}:"
                    " NCCL refuses it",
                    rank,
                    event["where"],
                    expected="contiguous tensors",
                    seen="its elements are not consecutive in memory",
                    callers=event["callers"],
                    hint="A view may have gaps in memory, or a different order of elements; .contiguous() then"
                    " copies it.",
                )
        return None

    def _say_broken(self, number: int) -> Verdict:
        """The verdict if the script does not compile: the TODO that owns the line reports it. If no TODO does, none is
        blamed.
        """
        teller = self.owner(self.broken.where, of=changes.todo_to_blame)
        if teller not in self.checks:
            return self._say(number, "skipped", "no_python", self.broken.message, self.broken)
        if number == teller:
            return self._say(number, "fail", "crash", self.broken.message, self.broken)
        return self._say(number, "skipped", "prerequisite", f"TODO {teller} first: {self.broken.message}")

    def _passed(self, number: int) -> Verdict:
        changed = self.outside(given=True)
        asked = f"{CHANGED.lower()}: {changed}. `./workbook diff {self.lesson}` shows them: was this intended?"
        return self._say(number, "pass", None, " ".join([asked] * bool(changed) + self.deprecated(number)))

    def deprecated(self, number: int) -> list[str]:
        """Which line of this TODO calls what a package is going to remove, in the package's words: the first such."""
        for run in self.student.recent:
            for event in itertools.chain.from_iterable(run.events):
                if event["e"] == "deprecated" and self.owner(event["where"]) == number:
                    return [f"a later release will refuse a call, at {place(event['where'])}: {event['text']}"]
        return []

    def _failed(self, number: int, problem: Wrong | Fault) -> Verdict:
        message, cause = self.by_own_lines(number, problem), problem.cause
        changed, added = self.outside(given=True), self.outside(given=False)
        if changed and self._right_as_given(number):
            message += f". {CHANGED}: {changed}; with them as they were, TODO {number} is right"
            cause = "lines_outside"
            problem.hint = f"`./workbook diff {self.lesson}` shows all that you changed: bring these lines back first."
        elif changed:
            message += f". Besides, {CHANGED.lower()}: {changed} (`./workbook diff {self.lesson}` shows them)"
        elif added and self.owner(problem.where) == number:
            if cause == "crash":  # one of them may have given a new meaning to a name
                message += f". {ADDED}: {added}"
        elif added and (cause == "crash" or len(self.checks[number].todo.needs) >= WHOLE):
            message += f". {ADDED}: {added}"
            problem.hint = f"`./workbook diff {self.lesson}` shows everything that you changed: was this intended?"
        return self._say(number, "fail", cause, message, problem)

    def _right_as_given(self, number: int) -> bool:
        """Whether the TODO is right once all lines outside TODOs are the course's again."""
        given = copy.copy(self.student)
        given.units, given._runs, given.recent = as_given(self.student.units), {}, []
        given.ask = given.launch
        return self._problem(number, given) is None

    def by_own_lines(self, number: int, problem: Wrong | Fault) -> str:
        """The message, in which lines of given functions are replaced by the student's own line that led there: the
        innermost line in a TODO, if possible in this one.
        """
        message, done = problem.message, 0
        for op in problem.ops:
            found = message.find(f" at {op.line}", done)
            if found < 0:
                continue
            begin = found + len(" at ")
            own = self.line_in_todo(number, [op.where, *op.callers]) if self.owner(op.where) is None else None
            words = f"{place(own)} (TODO {self.owner(own)})" if own else op.line
            message = message[:begin] + words + message[begin + len(op.line) :]
            done = begin + len(words)
        return message

    def line_in_todo(self, number: int, lines: Sequence[Where | None]) -> Where | None:
        """The first of these lines (innermost first) that is in this TODO; else the first in any TODO."""
        owners = [self.owner(line) for line in lines]
        chosen = number if number in owners else next(filter(None, owners), None)
        return None if chosen is None else lines[owners.index(chosen)]

    def outside(self, given: bool) -> str:
        """Lines outside all TODOs that differ from the course's: `given` lines that were changed or removed, or else
        lines that were added. "" if there are none.
        """
        found = [words for words, change in self._changes if change.given == given]
        more = f" and {len(found) - 3} more" if len(found) > 3 else ""
        return f"{', '.join(found[:3])}{more}"

    @functools.cached_property
    def _changes(self) -> list[tuple[str, changes.Change]]:
        """The changes to what was given, in words. A cell that is deleted or moved counts as one, and so does
        a line of the student's own cells that gives a new meaning to a name of the course's.
        """
        found, moved = [], lessons.moved_cells(self.student.units)
        for unit in self.student.units:
            first = (unit.text or todo_regions.compose(unit.source)).strip().split("\n")[0]
            if not unit.source:
                mine = changes.rebound([other.source for other in self.student.units], unit.text)
            elif not unit.text.strip():
                mine = [changes.Change(0, f"the cell “{first}” is gone", True)]
            else:
                mine = changes.changed_elsewhere(unit.source, unit.text, unit.statements)
                if unit in moved:
                    mine.insert(0, changes.Change(0, f"the cell “{first}” is in another place", True))
            file, _, cell = unit.name.partition(", cell")
            for change in mine:
                inside = f" in the cell “{first}”" if first not in change.text else ""
                at_line = f"{change.text}{inside}" if cell else f"{file}:{change.line} {change.text}"
                found.append((at_line if change.line else f"{file}: {change.text}", change))
        return found

    def in_words(self, words: str | None) -> str | None:
        """A place in a notebook in words that a reader can find: cells show no numbers."""
        return words and named_places(words, self.student.units if self.student else [])

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
            sanitize.plain_text(self.in_words(message), 2000),
        )
        if status == "fail":
            words = texts.words(self.lesson, number)
            verdict.why, verdict.hint = words.why, next(iter(words.hints), "")
            if problem and problem.hint:
                verdict.hint, verdict.hints_seen = problem.hint, 0
            elif cause == "crash" and (asked := self.asked_there(number, problem)):
                # The first hint is about the TODO's first function, and the code stopped in a later one.
                verdict.hint, verdict.hints_seen = f"What the TODO asks there: {asked}", 0
        if problem is not None:
            verdict.expected, verdict.seen = self.in_words(text(problem.expected)), self.in_words(text(problem.seen))
            if verdict.seen is not None and verdict.seen == verdict.expected:
                verdict.seen += ALIKE
            verdict.rank, verdict.where = problem.rank, self.in_words(self.place(number, problem))
        return verdict

    def attempted(self, number: int) -> bool:
        return any(
            todo_regions.attempted(u.source, u.text, number)
            for u in self.student.units + self.student.batch
            if u.source and number in todo_regions.titles(u.source)
        )

    def _in_batch_files(self, number: int) -> bool:
        return any(number in todo_regions.titles(unit.source) for unit in self.student.batch)

    def owner(self, where: Where | None, of: Callable = todo_regions.todo_at) -> int | None:
        """The TODO whose region holds a line of the student's code."""
        for unit in self.student.units + self.student.batch if where else ():
            if unit.name == where[0] and unit.source:
                return of(unit.source, unit.text, where[1])
        return None

    def asked_there(self, number: int, problem: Wrong | Fault | None) -> str:
        """What a later region of TODO `number` asks for, if the code stopped in it; else ""."""
        if not problem or self.owner(problem.where) != number:
            return ""
        return self.owner(problem.where, todo_regions.asked_again) or ""

    def place(self, number: int, problem: Wrong | Fault) -> str | None:
        """The place of a problem of TODO `number`: the line that failed, and the line of that TODO that led there."""
        if not problem.where:
            return None
        owner = self.owner(problem.where)
        said = place(problem.where) + (f" (TODO {owner})" if owner else "")
        if owner == number:  # of its functions the one that was given something wrong may be innocent
            callers = [
                line for line in problem.callers if self.owner(line) == number and is_elsewhere(line, problem.where)
            ]
            own = callers[0] if callers and problem.cause == "crash" else None
        else:
            own = self.line_in_todo(number, problem.callers)
        if own is None or (owner and self.owner(own) != number):
            return said
        return f"{place(own)} (TODO {self.owner(own)}), which calls {said}"


def as_given(units: list[lessons.Unit]) -> list[lessons.Unit]:
    """A lesson in which only the TODOs' code, and cells of their own, are the student's: given cells are all there, in
    their order.
    """
    found, last = [], -1
    for unit in units:
        last = unit.place if unit.place is not None else last
        text = changes.brought_back(unit.source, unit.text) if unit.source else unit.text
        found.append((last, unit._replace(text=text)))
    return [unit for _, unit in sorted(found, key=lambda placed: placed[0])]


def is_elsewhere(line: Where, other: Where) -> bool:
    """Whether they are lines of two functions. A comprehension is a function, too, but in the same line."""
    return line[:2] != other[:2] and line[2] != other[2]


CHANGED = "Lines that were given are changed or gone"
SECOND = "the second call in one process: "
DRAWS = 5  # of a check's numbers, until some tell right from wrong
NOT_JUDGED = "not judged and not marked: the check itself failed"
AT_FAULT = "not judged and not marked: the check is at fault, so tell your instructor"
# Python's words for a call that does not fit a function's signature.
WRONG_CALL = re.compile(r"\(\) (got an unexpected keyword|got multiple values|missing \d+ required|takes )")
ADDED = "Outside the TODOs, these lines are not the course's"
WHOLE = 4  # a check that needs so many TODOs runs the script as a whole


def no_python(lesson: str, units: list[lessons.Unit]) -> Fault | None:
    """Why a script does not compile: file, line and its text. A notebook's cells fail one by one, on the ranks."""
    for unit in [] if lessons.is_notebook(lesson) else units:
        what, number, _ = unit.outline
        if what:
            lines = unit.text.splitlines()
            text = lines[number - 1].strip() if 0 < number <= len(lines) else ""
            return Fault(
                "crash",
                f"{unit.name}:{number} is not Python: {what}: “{text}”",
                None,
                [unit.name, number, "<source>"],
                expected="a file that Python can read",
                seen=what,
                hint=hint_of_syntax(what),
            )
    return None


def not_understood(error: Exception) -> Fault:
    """The fault of code whose results make a check crash."""
    return Fault("crash", f"the check cannot read what the code left: {spoken_crash(error)}"[:500])


def spoken_crash(error: Exception) -> str:
    """An exception of a check, and the line that raised it."""
    checks = lessons.COURSE / lessons.OF_LESSONS
    frames = [f for f in traceback.extract_tb(error.__traceback__) if Path(f.filename).is_relative_to(checks)]
    where = f", where the check says: {frames[-1].line}" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


def checks_of(lesson: str) -> list[Callable]:
    """The checks of a lesson, by TODO number."""
    modules = [importlib.import_module(lessons.module_name(file)) for file in lessons.checks(lesson)]
    found = [value for module in modules for value in vars(module).values()]
    checks = [value for value in found if isinstance(getattr(value, "todo", None), Todo)]
    return sorted(checks, key=lambda check: check.todo.number)


def needs_of(lesson: str) -> dict[int, set[int]]:
    """TODO -> the TODOs that its check needs."""
    return {check.todo.number: set(check.todo.needs) for check in checks_of(lesson)}


def needed(lesson: str, todo: int) -> set[int]:
    """This TODO, and all that must be right before it can be checked."""
    needs, found = needs_of(lesson), {todo}
    while more := set().union(*(needs[number] for number in found)) - found:
        found |= more
    return found


def checked_lessons() -> list[str]:
    """The lessons that have checks, in course order."""
    return [stem for stem in lessons.stems() if lessons.checks(stem)]

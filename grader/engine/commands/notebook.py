"""Called by a notebook: check a TODO, or run one of the notebook's functions on ranks.

Both use the saved file, updated with the last executed version of each cell.
"""

import atexit
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from grader import OWN, RanksStopped
from grader.engine.commands.record_verdicts import remember
from grader.engine.judge.judge import Judge, checked_lessons
from grader.engine.judge.passed_todos import Passed
from grader.engine.judge.student_in_checks import explain_missing, named_places
from grader.engine.judge.verdict import Verdict
from grader.engine.lesson import lessons, reference_solution
from grader.engine.ranks import backends, evidence
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.job import Job
from grader.engine.ranks.message_rounds import Collective, Message, cases, collectives, rehearse

runner = Runner(kept=True, in_kernel=True)  # warm from the first check to the kernel's end
atexit.register(runner.close)


def take(wish: str) -> None:
    """Use this backend for all later checks, and print it if it has changed. Raises ValueError."""
    chosen = backends.choose(wish)
    if chosen != runner.backend and (chosen.story() or runner.backend.gpus):
        print(chosen.story() or "backend: gloo, on CPUs")
    runner.backend = chosen


def verdict(name: str, cells: dict[str, tuple[str, float]], backend: str = "auto") -> Verdict:
    """The verdict on `lesson/number`. `cells`: the last executed version of each cell, and when, by cell id."""
    lesson, _, number = name.partition("/")
    if lesson not in checked_lessons() or not number.isdigit():
        raise ValueError(f"{name}: no such TODO; write LESSON/NUMBER, such as 01_collectives/1")
    runner.start()
    take(backend)
    passed = Passed(lesson, runner.backend)
    judge = Judge(runner, lesson, target=folder_of(lesson), latest=as_run(cells), passed=passed)
    found = judge.verdict(int(number))
    if cells:  # in JupyterLab, which sends cell ids; under nbgrader there is no progress to record
        remember([found])
    return found


def afterwards(name: str) -> str:
    """The reference solution of `lesson/number`, with comments on it; "" if there are no solutions."""
    lesson, _, number = name.partition("/")
    lines = reference_solution.reference(lesson, int(number))
    if lines is None:
        return ""
    text = textwrap.fill(reference_solution.after(lesson, int(number)), 100, break_long_words=False)
    return f"\nthe reference:\n\n{textwrap.indent(lines, '    ')}\n\n{text}"


class RanksRun(NamedTuple):
    """What a function returned and sent on its ranks."""

    results: list[Any]  # what each rank returned
    messages: list[Message]  # in rounds
    collectives: list[Collective]  # rank by rank

    def __repr__(self) -> str:
        return (
            f"{len(self.results)} ranks, {len(self.messages)} messages of {sum(m.bytes for m in self.messages)} bytes"
            " in all"
        )


def own_run(
    name: str, inputs: list[Any], timed: bool, cells: dict[str, tuple[str, float]], backend: str = "auto"
) -> RanksRun:
    """Run `lesson/function` on one rank for each input."""
    lesson, _, function = name.partition("/")
    if lesson not in lessons.stems() or not function.isidentifier():
        raise ValueError(f"{name}: write LESSON/FUNCTION, such as 01_collectives/ring_all_reduce")
    if not inputs:
        raise ValueError("inputs is empty: it has one entry for each rank")
    try:
        units = lessons.units(lesson, folder_of(lesson), as_run(cells))
    except (FileNotFoundError, ValueError) as error:
        raise RanksStopped(
            f"the notebook cannot be read: {error}. `./workbook reset {lesson}` brings it back"
        ) from None
    take(backend)
    run = runner.run(
        Job(
            units,
            on_gpus=True,
            lesson="",  # the student's own run: nothing of the library is withheld
            world=len(inputs),
            function="grader.engine.inside.rank:own_function",
            inputs={"name": function, "timed": timed, "inputs": [evidence.encoded(value) for value in inputs]},
        )
    )
    for number, text in enumerate(run.stdout):
        for line in text.partition(OWN)[2].splitlines():
            print(f"rank {number}: {line}")
    if run.fault:
        message = named_places(explain_missing(run, lesson, units).message, units)
        raise RanksStopped(f"{function} on {len(inputs)} ranks: {message}")
    events = cases(run.events)[0]
    messages, deadlock = rehearse(events)
    if deadlock:
        print(
            f"{function} finished by luck, because its messages were buffered. Without buffers:"
            f" {named_places(deadlock.message, units)}"
        )
    return RanksRun(run.evidence, messages, collectives(events))


def as_run(cells: dict[str, tuple[str, float]]) -> dict[str, lessons.Ran]:
    return {key: lessons.Ran(*cell) for key, cell in cells.items()}


def folder_of(lesson: str) -> Path:
    """The notebook's folder, where its kernel runs. nbgrader's copies are not in a folder called `notebooks`."""
    here = Path.cwd() / f"{lesson}.ipynb"
    return here if here.is_file() else lessons.student_path(lesson)

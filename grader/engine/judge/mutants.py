"""Grades the grader: it must reject wrong answers and accept right ones.

`grader/lessons/<lesson>/answers/` has lists of `Answer`, WRONG and RIGHT. Right answers are tried together, one for
each TODO at a time: a student may mix them. In addition, each lesson is tried half done, in three ways: with those
before k solved, k is not attempted; with all but k solved, k is not attempted; and with only k and the TODOs that it
needs solved, k is right: so no other missing TODO can fail it.
"""

import random
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from grader.engine.judge import mutations
from grader.engine.judge.other_answers import RIGHT, WRONG, Answer, answered, listed, solved
from grader.engine.judge.judge import Judge, needed, needs_of
from grader.engine.judge.verdict import ALIKE, Verdict
from grader.engine.lesson import lessons
from grader.engine.ranks.runner import Runner


@dataclass
class Trial:
    """One judged file, and whether the judge was right."""

    lesson: str
    kind: str
    todo: int
    name: str
    right: bool
    seen: str
    seconds: float


def trials(runner: Runner, lesson: str, only: Collection[int] = (), seed: str = "") -> Iterator[Trial]:
    """Try every answer of the lesson, or those to the TODOs in `only`."""
    chosen = [number for number in lessons.titles(lesson) if not only or number in only]
    for kind in (half_done, wrong_answers, right_answers):
        yield from kind(runner, lesson, chosen, seed)


def half_done(runner: Runner, lesson: str, chosen: Collection[int], seed: str = "") -> Iterator[Trial]:
    """Try the lesson half done."""
    numbers = list(lessons.titles(lesson))
    for number in chosen:
        k, started = numbers.index(number), time.perf_counter()
        own = judged(runner, lesson, solved(lesson, numbers[:k]), numbers[:k], number, seed)
        right = own.cause == "not_attempted"
        name = f"TODOs before {number}"
        yield Trial(lesson, "first solved", number, name, right, first_failure([own]), since(started))

        others, started = {*numbers} - {number}, time.perf_counter()
        own = judged(runner, lesson, solved(lesson, others), others, number, seed)
        right = own.status == "fail" and own.cause == "not_attempted"
        name = f"all but TODO {number}"
        yield Trial(lesson, "all but one", number, name, right, first_failure([own]), since(started))

        there, started = needed(lesson, number), time.perf_counter()  # the others were right with fewer done
        own = judge_of(runner, lesson, solved(lesson, there), there - {number}, seed).verdict(number)
        name = f"TODO {number} and what it needs"
        yield Trial(lesson, "alone", number, name, own.passed, first_failure([own]), since(started))


def wrong_answers(
    runner: Runner, lesson: str, chosen: Collection[int], seed: str = "", one_in: int = 1
) -> Iterator[Trial]:
    """Try wrong answers: each differs from the solution in one TODO. The TODOs that it needs pass without it ("alone"
    shows that), so their checks are not run again. `one_in`: only this part of them, drawn.
    """
    for answer in some(answers_to(lesson, chosen, WRONG), one_in):
        others = () if answer.edits else {*lessons.titles(lesson)} - {answer.todo}
        started = time.perf_counter()
        own = judged(runner, lesson, answered(lesson, answer), others, answer.todo, seed)
        right = own.status == "fail" and own.cause != "not_attempted" and answer.says in own.message
        right = right and ALIKE not in (own.seen or "")
        yield Trial(lesson, "wrong", answer.todo, answer.name, right, first_failure([own]), since(started))


def changed(runner: Runner, lesson: str, chosen: Collection[int], most: int, seed: str = "") -> Iterator[Trial]:
    """Try solutions with one small change each, `most` of them for each TODO: see `mutations.py`."""
    for todo in chosen:
        for answer in mutations.changed(lesson, todo, most, seed):
            started = time.perf_counter()
            others = {*lessons.titles(lesson)} - {todo}
            own = judged(runner, lesson, answered(lesson, answer), others, todo, seed)
            yield Trial(lesson, "changed", todo, answer.name, not own.passed, first_failure([own]), since(started))


def right_answers(
    runner: Runner, lesson: str, chosen: Collection[int], seed: str = "", one_in: int = 1
) -> Iterator[Trial]:
    """Try right answers, in rounds: each is tried with all TODOs that need it. `one_in`: as for `wrong_answers`."""
    for company in rounds(some(answers_to(lesson, chosen, RIGHT), one_in)):
        yield from accepted(runner, lesson, company, seed)


def answers_to(lesson: str, chosen: Collection[int], kind: str) -> list[Answer]:
    return [answer for answer in listed(lesson, kind) if answer.todo in chosen]


def some(answers: list[Answer], one_in: int) -> list[Answer]:
    """One in so many of the answers, drawn, in their order."""
    drawn = random.SystemRandom().sample(range(len(answers)), -(-len(answers) // one_in))
    return [answers[place] for place in sorted(drawn)]


def rounds(answers: list[Answer]) -> Iterator[list[Answer]]:
    """Groups of answers to different TODOs that are tried together. An answer that edits the file elsewhere is tried
    alone.
    """
    yield from ([answer] for answer in answers if answer.edits)
    waiting = [answer for answer in answers if not answer.edits]
    while waiting:
        company = {}
        for answer in waiting:
            if answer.file == waiting[0].file:
                company.setdefault(answer.todo, answer)
        yield list(company.values())
        waiting = [answer for answer in waiting if answer is not company.get(answer.todo)]


def accepted(runner: Runner, lesson: str, company: list[Answer], seed: str = "") -> list[Trial]:
    """Try right answers, each to a different TODO, and all TODOs that need one of them. If they do not work together,
    each is tried independently.
    """
    tried = set().union(*(dependents(lesson, answer.todo) for answer in company))
    others = () if any(answer.edits for answer in company) else {*lessons.titles(lesson)} - tried
    started = time.perf_counter()
    judge = judge_of(runner, lesson, answered(lesson, *company), others, seed)
    seen = [judge.verdict(number) for number in sorted(tried)]
    right, said, seconds = all(v.passed for v in seen), first_failure(seen), since(started) / len(company)
    if right or len(company) == 1:
        return [Trial(lesson, "right", answer.todo, answer.name, right, said, seconds) for answer in company]
    return [trial for answer in company for trial in accepted(runner, lesson, [answer], seed)]


def since(started: float) -> float:
    return time.perf_counter() - started


def dependents(lesson: str, todo: int) -> set[int]:
    """This TODO, and all that cannot be checked without it."""
    needs, found = needs_of(lesson), {todo}
    while more := {number for number, needed in needs.items() if needed & found} - found:
        found |= more
    return found


def judged(
    runner: Runner, lesson: str, texts: dict[Path, str], presumed: Collection[int], todo: int, seed: str = ""
) -> Verdict:
    """The verdict on a TODO that is expected to fail. Most fail in the first pass of the check, which alone takes half
    as long; what passes there has both.
    """
    first = judge_of(runner, lesson, texts, presumed, seed, once=True).verdict(todo)
    return judge_of(runner, lesson, texts, presumed, seed).verdict(todo) if first.passed else first


def judge_of(
    runner: Runner,
    lesson: str,
    texts: dict[Path, str],
    presumed: Collection[int] = (),
    seed: str = "",
    once: bool = False,
) -> Judge:
    """A judge of these files, as if they were the student's; the TODOs in `presumed` are assumed to be right."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in texts.items():
            target = Path(folder) / path
            target.parent.mkdir(exist_ok=True)
            target.write_text(text)
        return Judge(runner, lesson, folder, seed=seed, presumed=presumed, once=once)


def first_failure(seen: list[Verdict]) -> str:
    failed = [v for v in seen if v.status == "fail"] or [v for v in seen if not v.passed]
    if not failed:
        return "all pass"
    alike = f" (expected and seen alike: {failed[0].expected})" if ALIKE in (failed[0].seen or "") else ""
    return f"TODO {failed[0].todo} {failed[0].cause}: {failed[0].message}{alike}"


def list_survivors(chosen: dict[str, list[int]], most: int, seed: str = "") -> None:
    """Print which changes of solutions pass: each is a gap in a check, or does not matter, as a reader decides."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    with Runner() as runner:
        for lesson, only in chosen.items():
            if line := lessons.lacking(lesson):
                console.print(f"{lesson} is not tried: {line}", soft_wrap=True)
                continue
            tried = passed = 0
            for trial in changed(runner, lesson, only or list(lessons.titles(lesson)), most, seed):
                tried, passed = tried + 1, passed + (not trial.right)
                if not trial.right:
                    console.print(f"{lesson}/{trial.todo} {escape(trial.name)}", soft_wrap=True, highlight=False)
            console.print(f"{lesson}: {passed} of {tried} changes pass; read them")


def run(chosen: dict[str, list[int]], seed: str = "") -> int:
    """Try the answers to these TODOs of each lesson, by default to all; print a table, totals last. Returns 0 if the
    judge was right about all of them.
    """
    console = Console(width=None if sys.stdout.isatty() else 180)
    table = Table(
        "lesson", "kind", "TODO", "answer", "verdict", "s", "", title="The grader, graded", title_justify="left"
    )
    found: list[Trial] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Runner() as runner, Progress(*columns, console=console, transient=True) as progress:
        for lesson, only in chosen.items():
            if line := lessons.lacking(lesson):
                console.print(f"{lesson} is not tried: {line}", soft_wrap=True)
                continue
            numbers = len(lessons.titles(lesson))
            answers = len(listed(lesson, WRONG)) + len(listed(lesson, RIGHT))
            task = progress.add_task(lesson, total=3 * numbers + answers)
            for trial in trials(runner, lesson, only, seed):
                found.append(trial)
                progress.advance(task)
                good = "[green]✓" if trial.right else "[red]✗ judged wrongly"
                table.add_row(
                    trial.lesson,
                    trial.kind,
                    str(trial.todo),
                    escape(trial.name),
                    escape(trial.seen if len(trial.seen) < 110 or not trial.right else trial.seen[:107] + "…"),
                    f"{trial.seconds:.1f}",
                    good,
                )
    console.print(table)

    def count(kind: str) -> str:
        mine = [t for t in found if t.kind == kind]
        return f"{sum(t.right for t in mine)}/{len(mine)}"

    console.print(
        f"{count('wrong')} wrong answers killed by the named TODO, {count('right')} other right answers accepted,"
        f" {count('first solved')} half-done, {count('all but one')} all-but-one and {count('alone')} alone judged"
        " rightly"
    )
    return 0 if all(t.right for t in found) else 1

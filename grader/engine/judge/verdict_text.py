"""Formats a verdict as text."""

import textwrap
from collections.abc import Iterator

from grader.engine.judge.verdict import Verdict

MARK = {"pass": "✓", "fail": "✗", "skipped": "–", "new": "·"}  # of a `Verdict.state`
BOLD, RED, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"


def heading(verdict: Verdict) -> str:
    return f"{MARK[verdict.state]} {verdict.lesson}/{verdict.todo}  {verdict.title}"


def details(verdict: Verdict) -> Iterator[tuple[str, str]]:
    """Pairs of a name and a text: what is wrong, where, why it matters, what to try; but not what the message says."""
    if verdict.cause not in ("not_attempted", "prerequisite", None):
        message, where = verdict.message, verdict.where
        crash = verdict.cause == "crash" and (verdict.seen or "") in message  # what is expected is a normal end
        for name, value, is_told in (
            ("expected", verdict.expected, crash),
            ("seen", verdict.seen, crash),
            ("where", where, where and where in message),
        ):
            if value and not is_told:
                yield name, value
    if verdict.status == "fail":
        yield "why", verdict.why
        command = f"./workbook hint {verdict.lesson}/{verdict.todo}"
        # The text of the TODO is enough to start with, so there is no hint before the first try.
        yield (
            "hint",
            (f"for a hint: {command}" if verdict.cause == "not_attempted" else f"{verdict.hint}  (more: {command})"),
        )


def story(verdict: Verdict) -> str:
    """A failure in plain text, several lines."""
    lines = [f"{verdict.lesson}/{verdict.todo} {verdict.title}: {verdict.message}"]
    return "\n".join(lines + [f"  {name:9}{value}" for name, value in details(verdict)])


def page(verdict: Verdict, width: int = 100) -> str:
    """A failure as a notebook shows it: wrapped, with the names in a column, in terminal colours."""
    lines = [f"{BOLD}{RED}{heading(verdict)}{PLAIN}", *textwrap.wrap(verdict.message, width), ""]
    for name, value in details(verdict):
        first, *others = textwrap.wrap(value, width - 10) or [""]
        lines += [f"{BOLD}{name:10}{PLAIN}{first}", *(f"{'':10}{line}" for line in others)]
    return "\n".join(lines)

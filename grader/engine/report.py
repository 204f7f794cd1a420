"""A verdict in words."""

from grader.engine.checks import Verdict

MARK = {"pass": "✓", "fail": "✗", "skipped": "–"}


def heading(verdict: Verdict) -> str:
    return f"{MARK[verdict.status]} {verdict.lesson}/{verdict.todo}  {verdict.title}"


def story(verdict: Verdict) -> str:
    """What is wrong, where, why it matters and what to try. Plain text, a line each."""
    lines = [f"{verdict.lesson}/{verdict.todo} {verdict.title}: {verdict.message}"]
    if verdict.cause not in ("not_attempted", "prerequisite", None):
        for name in ("expected", "seen", "where"):
            if value := getattr(verdict, name):
                lines.append(f"  {name:9}{value}")
    if verdict.status == "fail":
        lines.append(f"  {'why':9}{verdict.why}")
        lines.append(f"  {'hint':9}{verdict.hint}  (more: ./workbook hint {verdict.lesson}/{verdict.todo})")
    return "\n".join(lines)

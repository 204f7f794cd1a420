"""What the checks of 10_strategy run on ranks, in the process of the student's code."""

from dataclasses import asdict

from grader.kit import as_evidence
from utils.plan import Link, Machine, Model, Plan

# ---------------------------------------------------------------------------------------------------
# Questions about models, plans and machines


KINDS = {"Model": Model, "Plan": Plan, "Machine": Machine}


def asked_on_rank(code, rank, world, calls):
    """What the student's functions return: calls are (name, arguments)."""
    found = []
    for name, arguments in calls:
        answer = getattr(code, name)(*map(built, arguments))
        found.append({"plan": asdict(answer)} if isinstance(answer, Plan) else as_evidence(answer))
    return found


def built(value):
    if not isinstance(value, dict):
        return value
    if "pairs" in value:
        return {key: part for key, part in value["pairs"]}
    given = dict(value["fields"])
    for name in ("inside", "between"):
        if name in given:
            given[name] = Link(*given[name])
    return KINDS[value["kind"]](**given)

"""All that a check file imports: `from grader.kit import …`.

| for | take |
|-----|------|
| a check and its verdict | `todo`, `expect`, `premise`, `Wrong`, `Fault`, `place` |
| what each rank is given | `Private`; `student.draw`, `student.seeds` draw it |
| questions with a number as answer | `check_answers` |
| on a rank: what the judge is told | `mark`, `merciless_messages`, `next_world`, `record_files`, `record_training`, `elements` |
| what ranks did | `cases`, `collectives`, `rehearse`, `left_in_flight`, `written_in_flight`, `Run` |
| scripts as a whole | `corpus`, `training`, `reported`, `same_run`, `check_checkpoint`, `each_once`, `REL`; for a sharded model `mains_on_rank`, `together`, `losses`, `same_losses`, `same_report`, `plain_name` |
"""

from grader.engine.checks import Student, Wrong, expect, premise, todo
from grader.engine.diagnose import Fault, place
from grader.engine.evidence import whole
from grader.engine.launch import Private, Run
from grader.engine.messages import Collective, cases, collectives, left_in_flight, rehearse, written_in_flight
from grader.engine.observe import Judge, elements, mark, merciless_messages, next_world, record_files, record_training
from grader.predictions import check_answers, plain
from grader.scripts import (
    REL,
    check_checkpoint,
    corpus,
    each_once,
    losses,
    mains_on_rank,
    plain_name,
    reported,
    same_losses,
    same_report,
    same_run,
    together,
    training,
)

__all__ = [
    "REL", "Collective", "Fault", "Judge", "Private", "Run", "Student", "Wrong", "cases", "check_answers", "check_checkpoint", "collectives",
    "corpus", "each_once", "elements", "expect", "left_in_flight", "losses", "mains_on_rank", "mark", "merciless_messages", "next_world", "place", "plain", "plain_name", "premise",
    "record_files", "record_training", "rehearse", "reported", "same_losses",
    "same_report", "same_run", "todo", "together", "training", "whole", "written_in_flight",
]  # fmt: skip

"""All that a check file imports: `from grader.kit import …`.

| for | take |
|-----|------|
| a check and its verdict | `todo`, `expect`, `premise`, `Wrong`, `Fault`, `place` |
| what each rank is given | `Private`; `student.draw`, `student.seeds` draw it |
| questions with a number as answer | `check_answers` |
| on a rank: what the judge is told | `mark`, `merciless_messages`, `next_world`, `record_files`, `record_training`, `elements`, `watch_products` |
| what ranks did | `cases`, `collectives`, `rehearse`, `left_in_flight`, `written_in_flight`, `Run` |
| scripts as a whole | `corpus`, `training`, `reported`, `same_run`, `check_checkpoint`, `each_once`, `REL` |
"""

from grader.engine.checks import Student, Wrong, expect, premise, todo
from grader.engine.diagnose import Fault, place
from grader.engine.evidence import whole
from grader.engine.launch import Private, Run
from grader.engine.messages import Collective, cases, collectives, left_in_flight, rehearse, written_in_flight
from grader.engine.observe import Judge, elements, mark, merciless_messages, next_world, record_files, record_training
from grader.engine.products import watch_products
from grader.predictions import check_answers, plain
from grader.scripts import REL, check_checkpoint, corpus, each_once, reported, same_run, training

__all__ = [
    "REL", "Collective", "Fault", "Judge", "Private", "Run", "Student", "Wrong", "cases", "check_answers", "check_checkpoint", "collectives",
    "corpus", "each_once", "elements", "expect", "left_in_flight", "mark", "merciless_messages", "next_world", "place", "plain", "premise",
    "record_files", "record_training", "rehearse", "reported", "same_run", "todo", "training", "watch_products", "whole", "written_in_flight",
]  # fmt: skip

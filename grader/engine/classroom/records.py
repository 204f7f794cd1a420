"""The files of a class: how it is graded, and a record of each submission.

OUT/class.json             what all were graded with: seed, lessons, their versions, backend
OUT/records/STUDENT.json   one record per submission, from which everything else is made
OUT/journal.jsonl          a line for each submission as it ends
OUT/taken/STUDENT/         the files that were graded
"""

import dataclasses
import datetime
import fcntl
import hashlib
import json
import re
import unicodedata
from pathlib import Path

from grader.engine.lesson import lessons
from grader.engine.walls import sandbox
from grader.engine.walls.sanitize import cleaned, plain_text
from utils.atomic_write import written_whole

VERSION = 1  # of a record
# Of the environment, in a worker
KEPT = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "CUDA_VISIBLE_DEVICES"}
SLACK = 60.0  # seconds that a worker may take in addition to a submission's ranks, e.g. to start and to compare
NOT_HANDED_IN = "it was not handed in"
# What became of a submission. NOTHING: no file of these lessons was found in it, so there is no mark, not a zero.
GRADED, REFUSED, FAILED, NOTHING = "graded", "refused", "could not be graded", "nothing of the course"
UNMARKED = (FAILED, NOTHING)


@dataclasses.dataclass(frozen=True)
class Class:
    """The settings for all submissions of a class."""

    out: Path
    stems: list[str]
    seed: str
    walls: str
    minutes: float
    course: Path  # without solutions
    backend: str = "gloo"  # or nccl
    todos: dict[str, list[int]] = dataclasses.field(default_factory=dict)  # those that count; of other lessons, all
    told: list[str] = dataclasses.field(default_factory=list)  # lines about entries that hold no submission

    def counted(self, stem: str) -> list[int]:
        """The TODOs of a lesson that count."""
        return self.todos.get(stem) or list(lessons.titles(stem))

    @property
    def guards(self) -> str:
        """What is between a submission and the machine, and what is not."""
        return sandbox.guards(self.walls, self.backend == "nccl")

    def record(self, student: str) -> Path:
        return self.out / "records" / f"{file_name(student)}.json"

    def taken(self, student: str) -> Path:
        """The folder with the files that were graded."""
        return self.out / "taken" / file_name(student)

    def cells(self, student: str, stem: str) -> Path:
        """What was read of a lesson's file, in a sandbox."""
        return self.taken(student) / f"{stem}.json"


def file_name(student: str) -> str:
    """A safe file name for a student, whatever the student is called: it leads nowhere else, and no two students get
    the same one, provided the file system distinguishes upper and lower case.
    """
    # valid, and not too long, in every file system
    plain = re.sub(r"[^\w.+-]", "_", student, flags=re.ASCII).strip(".")[:80]
    if plain == student and not re.search(r"-[0-9a-f]{8}$", student):  # else it could be a different student's name
        return plain
    return f"{plain or 'student'}-{short(student)}"


def short(student: str) -> str:
    return hashlib.sha256(student.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def shown(student: str) -> str:
    """A student's name, safe for a terminal, a page, a spreadsheet and a database. A name that had to be changed gets a
    digest, so that no two differ only in invisible characters.
    """
    name = plain_text(unicodedata.normalize("NFKC", student), 80)
    name = re.sub(r"[=;,|\t\n]", "_", name).strip()  # a spreadsheet would read these as a formula or a separator
    name = re.sub(r"^[@+-]", "_", name)
    return name if name == student else f"{name} ({short(student)})"


def in_a_cell(text: str) -> str:
    """A text, safe for a cell of a spreadsheet."""
    return re.sub(r"^[@+-]", "_", re.sub(r"[=;,|\s]+", " ", plain_text(text, 300))).strip()


def keep(room: Class, record: dict) -> None:
    """Write a record atomically, with earlier results in its history; then add a line to the journal."""
    path = room.record(record["student"])
    before = read_record(path)
    record = cleaned(record) | {"student": record["student"]}  # it is found again by this exact name
    if before and before["state"] != FAILED:
        history = before.pop("history", [])
        record["history"] = [
            *history,
            {name: before[name] for name in ("graded", "digest", "state", "verdicts", "overrides")},
        ]
        record["overrides"] = before["overrides"]
    write_whole(path, json.dumps(record, indent=1) + "\n")
    line = {
        "graded": record["graded"],
        "student": record["student"],
        "state": record["state"],
        "points": points(record),
        "seconds": record.get("seconds"),
    }
    with open(room.out / "journal.jsonl", "a") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        journal.write(json.dumps(line) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write a file atomically. The text may be a stranger's: characters that cannot be encoded are escaped."""
    with written_whole(path) as part:
        part.write_text(text, "utf-8", "backslashreplace")


def read_record(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None


def records(room: Class) -> list[dict]:
    """All records of a class, by student."""
    found = [read_record(path) for path in sorted((room.out / "records").glob("*.json"))]
    return sorted(found, key=lambda record: record["student"])


def points(record: dict) -> float:
    """The marks of a record: the judge's, unless they were overridden."""
    return sum(marks(record).values())


def marks(record: dict) -> dict[str, float]:
    """lesson/TODO -> points. A TODO that was not judged has none, unless a person gives some."""
    judged = [verdict for verdict in record["verdicts"] if verdict["cause"] != "not_judged"]
    own = {f"{verdict['lesson']}/{verdict['todo']}": verdict["points"] for verdict in judged}
    return own | {change["todo"]: change["points"] for change in record["overrides"]}


def failure(student: str, submission: str, why: str) -> dict:
    """The record of a submission that could not be graded because of the machine, not the student: no marks, not even
    zero.
    """
    return {
        "version": VERSION,
        "student": student,
        "submission": submission,
        "state": FAILED,
        "why": why,
        "digest": "",
        "verdicts": [],
        "graded": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "refused": [],
        "flags": [],
        "overrides": [],
        "files": {},
    }


def longest(minutes: float) -> float:
    """The most seconds from giving a submission to a worker until its verdict or the worker's end."""
    return 60 * minutes + SLACK


def load(out: Path) -> Class:
    known, how = read_record(out / "class.json"), read_record(out / "run.json")
    return Class(
        out,
        list(known["course"]),
        known["seed"],
        how["walls"],
        how["minutes"],
        (out / "course").resolve(),
        known.get("backend", "gloo"),
        known.get("todos", {}),
        how.get("told", []),
    )


def override(room: Class, student: str, todo: str, points: float, reason: str) -> dict:
    """Replace the judge's mark with a person's, with a reason. Raises ValueError if there is no such mark."""
    record = read_record(room.record(student))
    if record is None or record["state"] in UNMARKED:
        raise ValueError(f"{student} has no marks in {room.out}")
    if todo not in {f"{verdict['lesson']}/{verdict['todo']}" for verdict in record["verdicts"]}:
        raise ValueError(f"{student} was not graded on {todo}")
    most = next(v["max_points"] for v in record["verdicts"] if f"{v['lesson']}/{v['todo']}" == todo)
    if not 0 <= points <= most:  # also rejects nan
        raise ValueError(f"{todo} is worth {most} point{'s' * (most != 1)}, so {points:g} cannot be its mark")
    if not reason.strip():
        raise ValueError("--reason is empty: the student reads there why the mark was changed")
    change = {
        "todo": todo,
        "points": points,
        "reason": reason,
        "when": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    replaced = [other for other in record["overrides"] if other["todo"] == todo]
    record["overrides"] = [other for other in record["overrides"] if other["todo"] != todo] + [change]
    record["history"] = [*record.get("history", []), *({"override": other} for other in replaced)]
    write_whole(room.record(student), json.dumps(record, indent=1) + "\n")
    return record

"""A process that grades one submission after the other.

The judge is here. The student's code runs in ranks forked from a server in a sandbox (see `walls/`), and the judge
takes only evidence from there: JSON and safetensors, rank by rank, and what the kernel itself counts.
"""

import ctypes
import dataclasses
import datetime
import gc
import hashlib
import json
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grader.engine.classroom import submissions
from grader.engine.classroom.records import GRADED, NOT_HANDED_IN, REFUSED, VERSION, Class, failure, keep, load, longest
from grader.engine.judge import student as of_students
from grader.engine.judge.judge import Judge
from grader.engine.lesson import lessons
from grader.engine.lesson.files import course_digest
from grader.engine.ranks import backends
from grader.engine.ranks.engine import Engine

MEMORY = 3 << 30  # bytes of a worker's own; torch and a large class's serial runs take a third of it


def grade_one(
    outside: Engine, trusted: Engine, room: Class, student: str, path: Path, refuse: str, heard: Callable[[dict], None]
) -> dict:
    """The record of one submission; `heard` receives each verdict. Raises only for the machine's own failures.

    `refuse`: why it is not even looked at; "" if it is.
    """

    began = time.monotonic()
    record = {
        "version": VERSION,
        "student": student,
        "submission": path.name,
        "course": {stem: course_digest(stem) for stem in room.stems},
        "guards": dataclasses.asdict(room.guards),
        "backend": room.backend,
        "graded": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "state": GRADED,
        "files": {},
        "refused": [],
        "verdicts": [],
        "flags": [],
        "drawn_again": {},  # TODO -> how often its numbers were drawn, until they told right from wrong
        "overrides": [],
    }
    try:
        if refuse:
            raise submissions.Refused(refuse)
        taken = submissions.take(path, room.stems)
    except submissions.Refused as problem:
        taken = submissions.Taken(refused=[str(problem)])
        record["state"] = REFUSED
    record["digest"], record["refused"] = submissions.digest(path, room.stems), taken.refused
    record["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in taken.files.items()}
    folder = room.taken(student)
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in taken.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    until = time.monotonic() + 60 * room.minutes
    for stem in room.stems:
        judge_lesson(outside, trusted, room, stem, until, taken, record, heard)
    record["seconds"] = round(time.monotonic() - began, 2)
    return record


def judge_lesson(
    outside: Engine,
    trusted: Engine,
    room: Class,
    stem: str,
    until: float,
    taken: submissions.Taken,
    record: dict,
    heard: Callable[[dict], None],
) -> None:
    """Judge one lesson of a submission, in its own sandbox, which holds nothing of this lesson's answers."""
    folder, own = room.taken(record["student"]), seed(room, record)
    backend = backends.for_a_class(room.backend)
    packages = [package for package in [lessons.said_by_checks(stem, "PACKAGE")] if package]
    with Engine(outside, room.guards, room.course, packages, stem, trusted, backend=backend) as inside:
        inside.server.until = until
        judge = Judge(inside, stem, folder, seed=own)
        judge.unreadable = judge.unreadable.replace(f"{folder}/", "")
        if judge.student is None and not any(Path(name).stem == stem for name in taken.files):
            judge.unreadable = taken.refused[0] if record["state"] == REFUSED else NOT_HANDED_IN
        for verdict in judge.verdicts():
            if verdict.message == NOT_HANDED_IN:
                verdict.cause = "not_attempted"
            record["verdicts"].append(verdict.as_dict())
            heard({"lesson": stem, "todo": verdict.todo, "status": verdict.status})
        record["drawn_again"] |= {f"{stem}/{number}": times for number, times in sorted(judge.draws.items())}
        for suspicion in judge.student.suspicions if judge.student else ():
            record["flags"].append({"lesson": stem, "reason": suspicion})
        if inside.server.sandbox:
            record["guards"] = dataclasses.asdict(inside.server.sandbox.guards)


def seed(room: Class, record: dict) -> str:
    """What the checks of one submission draw from: what one student's feedback tells is of no use to another one, and
    of none to the next submission.
    """
    return f"{room.seed}/{record['student']}/{record['digest']}"


def work(out: str) -> None:
    """A worker: submissions come in as JSON lines, verdicts and ends go out."""

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # it ends, with everything that it has started
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it never outlives the command that started it
    room = load(Path(out))
    # The first forks all others and runs nothing, the second runs the course's own code: what that loads, answers among
    # it, is in no sandbox.
    with Engine() as outside, Engine(outside) as trusted:
        outside.start()
        limit_memory()  # not of the ranks' server, which is there
        gc.freeze()  # loaded objects stay, and need not be looked through
        for line in sys.stdin:
            task = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, longest(room.minutes))  # SIGALRM, which ends it wherever it hangs
            grade_and_keep(
                outside,
                trusted,
                room,
                task["student"],
                Path(task["path"]),
                task["refuse"],
                lambda news, student=task["student"]: print(json.dumps({"student": student, **news}), flush=True),
            )
            signal.setitimer(signal.ITIMER_REAL, 0)
            of_students.SERIAL.clear()  # what was drawn for this one serves no other
            gc.collect()  # a judge and what its ranks left point at each other: else the next submission pays for it
            print(json.dumps({"student": task["student"], "over": True}), flush=True)


def limit_memory() -> None:
    """What a submission makes the judge hold is a MemoryError, and so a verdict, before it is the machine's trouble."""
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(
            resource.RLIMIT_DATA, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most)
        )


def grade_and_keep(
    outside: Engine, trusted: Engine, room: Class, student: str, path: Path, refuse: str, heard: Callable[[dict], None]
) -> None:
    try:
        record = grade_one(outside, trusted, room, student, path, refuse, heard)
    except Exception as error:  # the machine's, not the student's
        record = failure(student, path, f"{type(error).__name__}: {error}")
    keep(room, record)

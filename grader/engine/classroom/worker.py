"""A process that grades one submission after another.

The judge runs here. The student's code runs in ranks forked from a server in a sandbox (see `walls/`). The judge takes
only evidence from there: JSON and safetensors, rank by rank, and the kernel's own counts.
"""

import ctypes
import datetime
import gc
import hashlib
import json
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from grader.engine.classroom import submissions
from grader.engine.classroom.records import (
    GRADED,
    NOT_HANDED_IN,
    NOTHING,
    REFUSED,
    VERSION,
    Class,
    failure,
    keep,
    load,
    longest,
    write_whole,
)
from grader.engine.judge import student_in_checks as of_students
from grader.engine.judge.judge import Judge
from grader.engine.lesson import lessons, parsing
from grader.engine.lesson.student_files import course_digest
from grader.engine.ranks import backends
from grader.engine.ranks.runner import Runner

MEMORY = 3 << 30  # bytes for the worker itself; torch and a large class's serial runs take a third of it


def grade_one(
    outside: Runner,
    trusted: Runner,
    room: Class,
    student: str,
    paths: list[Path],
    refuse: str,
    heard: Callable[[dict], None],
) -> dict:
    """Grade one submission and return its record; `heard` receives each verdict. Raises only for failures of the
    machine.

    `refuse`: why it is rejected unread; "" if it is not.
    """

    began = time.monotonic()
    record = {
        "version": VERSION,
        "student": student,
        "submission": submissions.name_of(paths),
        "course": {stem: course_digest(stem) for stem in room.stems},
        "guards": room.guards,
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
        with Runner(outside, room.walls, room.course, [submissions.READING], room.stems[0]) as inside:
            taken = submissions.take(paths, room.stems, inside)
    except submissions.Refused as problem:
        taken = submissions.Taken(refused=[str(problem)])
        record["state"] = REFUSED
    if not taken.files and record["state"] == GRADED:
        record["state"], record["why"] = NOTHING, submissions.nothing_found(taken, room.stems)
    record["digest"], record["refused"] = submissions.digest(paths, room.stems), taken.refused
    record["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in taken.files.items()}
    folder = room.taken(student)
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in taken.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    until = time.monotonic() + 60 * room.minutes
    for stem in room.stems if record["state"] != NOTHING else ():
        judge_lesson(outside, trusted, room, stem, until, taken, record, heard)
    record["seconds"] = round(time.monotonic() - began, 2)
    return record


def judge_lesson(
    outside: Runner,
    trusted: Runner,
    room: Class,
    stem: str,
    until: float,
    taken: submissions.Taken,
    record: dict,
    heard: Callable[[dict], None],
) -> None:
    """Judge one lesson of a submission, in its own sandbox, which contains none of this lesson's answers."""
    folder, own = room.taken(record["student"]), seed(room, record)
    trusted.backend = backends.for_a_class(room.backend)
    packages = [package for package in [submissions.READING, lessons.package(stem)] if package]
    with Runner(outside, room.walls, room.course, packages, stem, trusted, backend=trusted.backend) as inside:
        inside.server.until = until

        def read(text: str, notebook: bool) -> list[parsing.Cell]:
            cells = submissions.parse(inside, stem, text, notebook)
            write_whole(room.cells(record["student"], stem), json.dumps(cells))  # for the gradebook
            return cells

        judge = Judge(inside, stem, folder, seed=own, read=read)
        judge.unreadable = judge.unreadable.replace(f"{folder}/", "")
        if judge.student is None and not any(Path(name).stem == stem for name in taken.files):
            judge.unreadable = taken.refused[0] if record["state"] == REFUSED else NOT_HANDED_IN
        for verdict in map(judge.verdict, room.counted(stem)):
            if verdict.message == NOT_HANDED_IN:
                verdict.cause = "not_attempted"
            record["verdicts"].append(verdict.as_dict())
            heard({"lesson": stem, "todo": verdict.todo, "status": verdict.status})
        record["drawn_again"] |= {f"{stem}/{number}": times for number, times in sorted(judge.draws.items())}
        for suspicion in judge.student.suspicions if judge.student else ():
            record["flags"].append({"lesson": stem, "reason": suspicion})


def seed(room: Class, record: dict) -> str:
    """The seed for the checks of one submission: what one student's feedback reveals does not help other students, or
    the same student's next submission.
    """
    return f"{room.seed}/{record['student']}/{record['digest']}"


def work(out: str) -> None:
    """A worker: submissions come in as JSON lines, verdicts and ends go out."""

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # it ends, with everything that it started
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it never outlives the command that started it
    room = load(Path(out))
    # The first forks all others and runs nothing; the second runs the course's own code, so that whatever it loads,
    # including answers, is in no sandbox.
    with Runner() as outside, Runner(outside) as trusted:
        outside.start()
        limit_memory()  # not in the ranks' server, which already exists
        gc.freeze()  # loaded objects stay, so the garbage collector can skip them
        for line in sys.stdin:
            task = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, longest(room.minutes))  # SIGALRM ends it wherever it hangs
            grade_and_keep(
                outside,
                trusted,
                room,
                task["student"],
                [*map(Path, task["paths"])],
                task["refuse"],
                lambda news, student=task["student"]: print(json.dumps({"student": student, **news}), flush=True),
            )
            signal.setitimer(signal.ITIMER_REAL, 0)
            of_students.SERIAL.clear()  # numbers drawn for this submission are not reused
            gc.collect()  # a judge and its ranks' evidence refer to each other: free them before the next submission
            print(json.dumps({"student": task["student"], "over": True}), flush=True)
    os._exit(0)  # as the server: nothing is left, and to take torch apart takes long


def limit_memory() -> None:
    """Limit the judge's memory, so that a submission that fills it causes a MemoryError, and so a verdict, before the
    machine runs out.
    """
    if sys.platform == "linux":
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(
            resource.RLIMIT_DATA, (MEMORY if most == resource.RLIM_INFINITY else min(MEMORY, most), most)
        )


def grade_and_keep(
    outside: Runner,
    trusted: Runner,
    room: Class,
    student: str,
    paths: list[Path],
    refuse: str,
    heard: Callable[[dict], None],
) -> None:
    try:
        record = grade_one(outside, trusted, room, student, paths, refuse, heard)
    except Exception as error:  # the machine's fault, not the student's
        record = failure(student, submissions.name_of(paths), f"{type(error).__name__}: {error}")
    keep(room, record)

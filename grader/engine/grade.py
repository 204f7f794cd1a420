"""`./workbook grade`: a class of strangers' code, each submission behind walls of its own.

    OUT/class.json             what all were graded with: seed, lessons, their versions
    OUT/records/STUDENT.json   one record a submission, the only truth; all else is made from these
    OUT/journal.jsonl          a line for each submission as it ends
    OUT/taken/STUDENT/         the files that were graded

A worker process grades one submission after the other and writes its record, whole or not at all. Whoever is killed,
and however, what has a record is graded and what has none is not: started again, it goes on with the rest.

The judge is in the worker. The student's code runs in ranks forked from a server in a sandbox (see `sandbox.py`),
and all that the judge takes from there is evidence: JSON and safetensors, rank by rank, and what the kernel itself
counts.
"""

import ctypes
import dataclasses
import datetime
import fcntl
import hashlib
import json
import os
import queue
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from grader.engine import lessons, release, sandbox, submissions
from grader.engine.files import course_digest

VERSION = 1  # of a record
NOT_HANDED_IN = "it was not handed in"
KEPT = {"PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR"}  # of the environment, in a worker
SLACK = 120.0  # seconds that a worker may take beside those of a submission's ranks: to start, to compare
GRADED, REFUSED, FAILED = "graded", "refused", "could not be graded"


class NoCluster(RuntimeError):
    """The jobs can not be submitted; the message says why."""


@dataclasses.dataclass(frozen=True)
class Class:
    """What all submissions of a class are graded with."""

    out: Path
    stems: list[str]
    seed: str
    guards: sandbox.Guards
    minutes: float
    course: Path  # without solutions

    def record(self, student: str) -> Path:
        return self.out / "records" / f"{file_name(student)}.json"

    def taken(self, student: str) -> Path:
        """The folder with what was graded."""
        return self.out / "taken" / file_name(student)


def file_name(student: str) -> str:
    """A name for a student's files, whatever the student is called: no two the same, none that leads elsewhere."""
    plain = re.sub(r"[^\w.+-]", "_", student, flags=re.ASCII).strip(".")[
        :80
    ]  # in every file system a name, and not too long for any
    return (
        plain
        if plain == student
        else f"{plain or 'student'}-{hashlib.sha256(student.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    )


# In a worker


def grade_one(outside: "Engine", room: Class, student: str, path: Path, heard: Callable[[dict], None]) -> dict:  # noqa: F821
    """The record of one submission; `heard` is told of each verdict. Raises only for the machine's own failures."""
    from grader.engine.checks import Judge
    from grader.engine.launch import Engine

    began = time.monotonic()
    record = {
        "version": VERSION,
        "student": student,
        "submission": path.name,
        "course": {stem: course_digest(stem) for stem in room.stems},
        "guards": dataclasses.asdict(room.guards),
        "graded": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "state": GRADED,
        "files": {},
        "refused": [],
        "verdicts": [],
        "flags": [],
        "overrides": [],
    }
    try:
        taken = submissions.take(path, room.stems)
    except submissions.Refused as problem:
        taken = submissions.Taken(refused=[str(problem)])
        record["state"] = REFUSED
    record["digest"], record["refused"] = taken.digest, taken.refused
    record["files"] = {name: hashlib.sha256(content).hexdigest() for name, content in taken.files.items()}
    folder = room.taken(student)
    shutil.rmtree(folder, ignore_errors=True)
    for name, content in taken.files.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    modules = [f"grader.test_{stem}" for stem in room.stems]
    with Engine(outside, room.guards, room.course, modules) as inside:
        inside.until = time.monotonic() + 60 * room.minutes
        for stem in room.stems:
            judge = Judge(inside, stem, folder, seed=room.seed)
            judge.unreadable = judge.unreadable.replace(f"{folder}/", "")
            if judge.student is None and not any(Path(name).stem == stem for name in taken.files):
                judge.unreadable = taken.refused[0] if record["state"] == REFUSED else NOT_HANDED_IN
            for verdict in judge.verdicts():
                if verdict.message == NOT_HANDED_IN:
                    verdict.cause = "not_attempted"
                record["verdicts"].append(verdict.as_dict())
                heard({"lesson": stem, "todo": verdict.todo, "status": verdict.status})
            for suspicion in judge.student.suspicions if judge.student else ():
                record["flags"].append({"lesson": stem, "reason": suspicion})
        if inside.sandbox:
            record["guards"] = dataclasses.asdict(inside.sandbox.guards)
    record["seconds"] = round(time.monotonic() - began, 2)
    return record


def keep(room: Class, record: dict) -> None:
    """Write a record, whole or not at all, with what was there before in its history; then say so in the journal."""
    path = room.record(record["student"])
    before = read_record(path)
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
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with open(part, "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


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
    """The marks of a record: the judge's, where nobody has overridden them."""
    return sum(marks(record).values())


def marks(record: dict) -> dict[str, float]:
    """lesson/TODO -> points."""
    own = {f"{verdict['lesson']}/{verdict['todo']}": verdict["points"] for verdict in record["verdicts"]}
    return own | {change["todo"]: change["points"] for change in record["overrides"]}


def grade_slice(out: str, part: list[tuple[str, str]]) -> None:
    """The same in a job of its own, on a node of a cluster: (student, path) after (student, path)."""
    from grader.engine.launch import Engine

    for name in set(os.environ) - KEPT:
        del os.environ[name]
    room = load(Path(out))
    with Engine() as outside:
        for student, path in part:
            grade_and_keep(outside, room, student, Path(path), lambda news: None)


def work(out: str) -> None:
    """A worker: submissions come in as JSON lines, verdicts and ends go out."""
    from grader.engine.launch import Engine

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: it never outlives the command that started it
    room = load(Path(out))
    with Engine() as outside:
        outside.start()
        for line in sys.stdin:
            task = json.loads(line)
            grade_and_keep(
                outside,
                room,
                task["student"],
                Path(task["path"]),
                lambda news, student=task["student"]: print(json.dumps({"student": student, **news}), flush=True),
            )
            print(json.dumps({"student": task["student"], "over": True}), flush=True)


def grade_and_keep(outside: "Engine", room: Class, student: str, path: Path, heard: Callable[[dict], None]) -> None:  # noqa: F821
    try:
        record = grade_one(outside, room, student, path, heard)
    except Exception as error:  # the machine's, not the student's
        record = failure(student, path, f"{type(error).__name__}: {error}")
    keep(room, record)


def failure(student: str, path: Path, why: str) -> dict:
    """The record of a submission that the machine, not the student, kept from being graded: no marks, and no zero
    either.
    """
    return {
        "version": VERSION,
        "student": student,
        "submission": path.name,
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


# The class


def open_class(out: Path, stems: list[str], seed: str | None, guards: sandbox.Guards, minutes: float) -> Class:
    """Begin a class in `out`, or go on with the one that is there. Raises ValueError if that was graded otherwise."""
    (out / "records").mkdir(parents=True, exist_ok=True)
    digests = {stem: course_digest(stem) for stem in stems}
    known = read_record(out / "class.json")
    if known:
        if seed not in (None, known["seed"]):
            raise ValueError(f"{out} was begun with another seed; leave --seed away to go on, or give a new folder")
        if known["course"] != digests:
            raise ValueError(f"{out} was begun with other lessons, or another version of them; give a new folder")
    course = out / "course"
    if not known:
        shutil.rmtree(course, ignore_errors=True)
        if lessons.source_root().name == "solutions":
            release.release(course)
        else:  # this is a release already
            shutil.copytree(
                lessons.COURSE,
                course,
                ignore=shutil.ignore_patterns(".venv", ".git", ".workbook", "runs", "__pycache__"),
            )
        (course / ".venv").mkdir()  # where Python is shown inside
        os.chmod(out, 0o700)
        write_whole(
            out / "class.json",
            json.dumps({"version": VERSION, "seed": seed or secrets.token_hex(8), "course": digests}, indent=1) + "\n",
        )
    write_whole(out / "run.json", json.dumps({"guards": dataclasses.asdict(guards), "minutes": minutes}) + "\n")
    return load(out)


def load(out: Path) -> Class:
    known, how = read_record(out / "class.json"), read_record(out / "run.json")
    return Class(
        out,
        list(known["course"]),
        known["seed"],
        sandbox.named(how["guards"]),
        how["minutes"],
        (out / "course").resolve(),
    )


def left_to_do(room: Class, found: dict[str, Path], again: bool) -> dict[str, Path]:
    """The submissions that have no record, or one of other files, or one that says that they could not be graded."""
    left = {}
    for student, path in found.items():
        record = read_record(room.record(student))
        if record is None or record["state"] == FAILED or again or record["digest"] != digest(path, room.stems):
            left[student] = path
    return left


def digest(path: Path, stems: list[str]) -> str:
    try:
        return submissions.take(path, stems).digest
    except (submissions.Refused, OSError):
        return submissions.Taken().digest


def run(room: Class, left: dict[str, Path], jobs: int) -> Iterator[dict]:
    """Grade these submissions in `jobs` workers; yields news of them as they come: verdicts, and ends."""
    tasks: queue.SimpleQueue = queue.SimpleQueue()
    for student, path in left.items():
        tasks.put((student, path))
    news: queue.SimpleQueue = queue.SimpleQueue()
    workers: list[subprocess.Popen] = []
    stopped = threading.Event()

    def attend() -> None:
        try:
            attend_to_all()
        finally:
            news.put({"worker": "gone"})

    def attend_to_all() -> None:
        """One worker after the other: one that died with its submission is replaced."""
        worker = None
        while not stopped.is_set():
            try:
                student, path = tasks.get_nowait()
            except queue.Empty:
                break
            for _ in range(2):  # what kills the worker twice is left to a person
                if worker is None or worker.poll() is not None:
                    worker = start_worker(room)
                    workers.append(worker)
                if talk(worker, student, path, news, 60 * room.minutes + SLACK):
                    break
                worker.kill()
                worker.wait()
            else:
                if not stopped.is_set():
                    keep(
                        room, failure(student, path, "the process that judges it died twice, or did not come to an end")
                    )
                    news.put({"student": student, "over": True})
        if worker is not None:
            worker.stdin.close()
            worker.wait()

    threads = [threading.Thread(target=attend, daemon=True) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    gone = 0
    try:
        while gone < jobs:
            item = news.get()
            gone += "worker" in item
            if "student" in item:
                yield item
    finally:
        stopped.set()
        for worker in workers:
            worker.kill()
            worker.wait()
        for thread in threads:
            thread.join(5)


def run_on_slurm(room: Class, left: dict[str, Path], jobs: int, options: dict[str, Any]) -> Iterator[dict]:
    """The same as `run` by a job array: each of `jobs` jobs takes its share, one submission after the other."""
    import submitit

    os.environ["PYTHONPATH"] = os.pathsep.join([str(lessons.COURSE), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )  # sbatch passes it on
    entries = [(student, str(path.resolve())) for student, path in left.items()]
    shares = [share for start in range(jobs) if (share := entries[start::jobs])]
    before = {student: stamp(room, student) for student in left}
    try:
        executor = submitit.SlurmExecutor(folder=room.out / "slurm")
        executor.update_parameters(
            job_name="grade",
            array_parallelism=jobs,
            cpus_per_task=2,
            time=max(1, round(sum(room.minutes for _ in shares[0]))),
            **options,
        )
        array = executor.map_array(grade_slice, [str(room.out.resolve())] * len(shares), shares)
    except Exception as problem:  # submitit's own, of many kinds
        raise NoCluster(
            "; ".join(line for line in str(problem).splitlines() if line.strip())[:300] or type(problem).__name__
        ) from problem
    waiting = {student: job for job, share in zip(array, shares) for student, _ in share}
    try:
        while waiting:
            ended = {
                job.job_id for job in array if job.done()
            }  # asked first: a record that is there now was there at the end
            for student, job in list(waiting.items()):
                if stamp(room, student) == before[student]:
                    if job.job_id not in ended:
                        continue
                    keep(
                        room,
                        failure(
                            student, left[student], f"job {job.job_id} ended without a record; see {room.out / 'slurm'}"
                        ),
                    )
                del waiting[student]
                yield {"student": student, "over": True}
            time.sleep(0.5)  # a queue can only be asked
    finally:
        for job in {job.job_id: job for job in waiting.values()}.values():
            job.cancel()


def stamp(room: Class, student: str) -> float:
    """When a student's record was written; 0.0 if there is none."""
    try:
        return room.record(student).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def override(room: Class, student: str, todo: str, points: float, reason: str) -> dict:
    """A person's mark in place of the judge's, with its reason. Raises ValueError if there is no such mark."""
    record = read_record(room.record(student))
    if record is None or record["state"] == FAILED:
        raise ValueError(f"{student} has no marks in {room.out}")
    if todo not in marks(record):
        raise ValueError(f"{student} was not graded on {todo}")
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


def start_worker(room: Class) -> subprocess.Popen:
    """With nothing of the instructor's in its environment: what the worker's servers know, a stranger's code might
    read.
    """
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            (
                f"import sys; sys.path.insert(0, {str(lessons.COURSE)!r}); from grader.engine import grade; "
                f"grade.work({str(room.out.resolve())!r})"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=kept | {"HOME": "/tmp"},
        cwd=lessons.COURSE,
        start_new_session=True,
    )


def talk(
    worker: subprocess.Popen, student: str, path: Path, news: "queue.SimpleQueue[dict[str, Any]]", seconds: float
) -> bool:
    """Give a worker one submission; False if it died of it, or was killed because it took longer than this."""
    late = threading.Timer(seconds, worker.kill)
    late.start()
    try:
        worker.stdin.write(json.dumps({"student": student, "path": str(path.resolve())}) + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            said = json.loads(line)
            news.put(said)
            if said.get("over"):
                return True
    except (BrokenPipeError, ValueError):
        pass
    finally:
        late.cancel()
    return False


def guards_for(wish: str) -> sandbox.Guards:
    """`auto`: the best that this machine has; `required`: bubblewrap or Landlock, or NoSandbox; `off`: none."""
    if wish == "off":
        return sandbox.NONE
    best = sandbox.available()
    if wish == "required" and best is sandbox.NONE:
        raise sandbox.NoSandbox(
            "there is neither bubblewrap (apt-get install bubblewrap) nor Landlock here, and --sandbox required asks"
            " for one"
        )
    return best

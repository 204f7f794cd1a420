"""`./workbook grade`: a class of strangers' code, each submission behind its own walls, here or in a Slurm job array.

    OUT/class.json             what all were graded with: seed, lessons, their versions, backend
    OUT/records/STUDENT.json   one record per submission, from which everything else is made
    OUT/journal.jsonl          a line for each submission as it ends
    OUT/taken/STUDENT/         the files that were graded

A worker process grades one submission after another and writes its record atomically. However a worker is killed,
submissions with a record are graded and those without are not: started again, the command grades the rest.

The judge runs in the worker. The student's code runs in ranks forked from a server in a sandbox (see `sandbox.py`). The
judge takes only evidence from there: JSON and safetensors, rank by rank, and the kernel's own counts.
"""

import json
import math
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grader.engine.classroom import records, submissions
from grader.engine.classroom.records import FAILED, KEPT, VERSION, Class, failure, keep, load, read_record, write_whole
from grader.engine.lesson import lessons, release
from grader.engine.lesson.student_files import course_digest
from grader.engine.walls import sandbox


LAST = 5.0  # seconds that a worker has to clean up


class NoCluster(RuntimeError):
    """The jobs cannot be submitted; the message says why."""


# The class


def open_class(
    out: Path,
    stems: list[str],
    seed: str | None,
    walls: str,
    minutes: float,
    backend: str = "gloo",
    todos: dict[str, list[int]] | None = None,
    told: list[str] | None = None,
) -> Class:
    """Start a class in `out`, or continue the one that is there. Raises ValueError if that was graded differently.

    `todos`: the TODOs that count, where not all of a lesson do. `told`: lines about entries that hold no submission.
    """
    (out / "records").mkdir(parents=True, exist_ok=True)
    digests = {stem: course_digest(stem) for stem in stems}
    known = read_record(out / "class.json")
    if known:
        if seed not in (None, known["seed"]):
            raise ValueError(f"{out} was started with a different seed; omit --seed to continue, or give a new folder")
        if known["course"] != digests:
            raise ValueError(
                f"{out} was started with different lessons, or a different version of them; give a new folder"
            )
        if known.get("todos", {}) != (todos or {}):
            raise ValueError(f"{out} was started with different TODOs; give the same, or a new folder")
        if known.get("backend", "gloo") != backend:
            raise ValueError(
                f"{out} was started with --backend {known.get('backend', 'gloo')}: a class is graded by one;"
                " give that, or a new folder"
            )
    course = out / "course"
    if not known:
        shutil.rmtree(course, ignore_errors=True)
        if lessons.has_solutions():
            release.release(course)
        else:  # this is a release already
            shutil.copytree(
                lessons.COURSE,
                course,
                ignore=shutil.ignore_patterns(".venv", ".git", ".workbook", "runs", "__pycache__"),
            )
        (course / ".venv").mkdir()  # where Python is visible inside
        os.chmod(out, 0o700)
        write_whole(
            out / "class.json",
            json.dumps(
                {
                    "version": VERSION,
                    "seed": seed or secrets.token_hex(8),
                    "course": digests,
                    "backend": backend,
                    "todos": todos or {},
                },
                indent=1,
            )
            + "\n",
        )
    write_whole(out / "run.json", json.dumps({"walls": walls, "minutes": minutes, "told": told or []}) + "\n")
    return load(out)


def left_to_do(room: Class, found: dict[str, list[Path]], again: bool) -> dict[str, list[Path]]:
    """The submissions without a record, with a record of different files, or with one that says that they could not be
    graded.
    """
    left = {}
    for student, paths in found.items():
        record = read_record(room.record(student))
        known = record is not None and record["state"] != FAILED and not again
        if not known or record["digest"] != submissions.digest(paths, room.stems):
            left[student] = paths
    return left


def run(room: Class, left: dict[str, list[Path]], jobs: int) -> Iterator[dict]:
    """Grade these submissions in `jobs` workers; yields events as they come: verdicts, and ends."""
    tasks: queue.SimpleQueue = queue.SimpleQueue()
    for student, paths in left.items():
        tasks.put((student, paths))
    news: queue.SimpleQueue = queue.SimpleQueue()
    workers: list[subprocess.Popen] = []
    stopped = threading.Event()

    def attend() -> None:
        try:
            attend_to_all()
        finally:
            news.put({"worker": "gone"})

    def attend_to_all() -> None:
        """Run one worker after another: a worker that died with its submission is replaced."""
        worker = None
        while not stopped.is_set():
            try:
                student, paths = tasks.get_nowait()
            except queue.Empty:
                break
            refuse, killed = "", 0
            while not stopped.is_set():
                if worker is None or worker.poll() is not None:
                    worker = start_worker(room)
                    workers.append(worker)
                if talk(worker, student, paths, news, refuse):
                    break
                worker.stdin.close()
                code = worker.wait()
                by_others = code in (-signal.SIGKILL, -signal.SIGTERM)  # killed by the system or by a person
                if refuse or (by_others and killed):
                    keep(room, failure(student, submissions.name_of(paths), "the process that judges it died twice"))
                    news.put({"student": student, "over": True})
                    break
                if by_others:
                    killed += 1
                else:
                    why = "took too long" if code == -signal.SIGALRM else "died of it"
                    refuse = f"the process that judges it {why}"
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
            end(worker)
        for thread in threads:
            thread.join(5)


def run_on_slurm(room: Class, left: dict[str, list[Path]], jobs: int, options: dict[str, Any]) -> Iterator[dict]:
    """Like `run`, but with a job array: each of `jobs` jobs grades its part, one submission after another."""
    import submitit

    # sbatch passes the environment on
    os.environ["PYTHONPATH"] = os.pathsep.join([str(lessons.COURSE), os.environ.get("PYTHONPATH", "")]).rstrip(
        os.pathsep
    )
    entries = [(student, [str(path.resolve()) for path in paths]) for student, paths in left.items()]
    shares = [share for start in range(jobs) if (share := entries[start::jobs])]
    before = {student: stamp(room, student) for student in left}
    try:
        executor = submitit.SlurmExecutor(folder=room.out / "slurm")
        executor.update_parameters(
            job_name="grade",
            array_parallelism=jobs,
            cpus_per_task=2,
            time=math.ceil(len(shares[0]) * records.longest(room.minutes) / 60),
            **options,
        )
        array = executor.map_array(grade_share, [str(room.out.resolve())] * len(shares), shares)
    except Exception as problem:  # submitit's own errors, of many kinds
        raise NoCluster(
            "; ".join(line for line in str(problem).splitlines() if line.strip())[:300] or type(problem).__name__
        ) from problem
    waiting = {student: job for job, share in zip(array, shares) for student, _ in share}
    try:
        while waiting:
            # Asked before reading the record: a job that is done now has written its record.
            ended = {job.job_id for job in array if job.done()}
            for student, job in list(waiting.items()):
                if stamp(room, student) == before[student]:
                    if job.job_id not in ended:
                        continue
                    keep(
                        room,
                        failure(
                            student,
                            submissions.name_of(left[student]),
                            f"job {job.job_id} ended without a record; see {room.out / 'slurm'}",
                        ),
                    )
                del waiting[student]
                yield {"student": student, "over": True}
            time.sleep(0.5)  # a queue can only be polled
    finally:
        for job in {job.job_id: job for job in waiting.values()}.values():
            job.cancel()


def grade_share(out: str, share: list[tuple[str, list[str]]]) -> None:
    """Grade the part of one job, on a node of a cluster: a list of (student, paths)."""
    for _ in run(load(Path(out)), {student: [*map(Path, paths)] for student, paths in share}, jobs=1):
        pass


def stamp(room: Class, student: str) -> float:
    """The time when a student's record was written; 0.0 if there is none."""
    try:
        return room.record(student).stat().st_mtime
    except FileNotFoundError:
        return 0.0


def start_worker(room: Class) -> subprocess.Popen:
    """Start a worker without the instructor's environment: a stranger's code might read whatever the worker's servers
    know.
    """
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    return subprocess.Popen(
        [
            sys.executable,
            "-P",
            "-c",
            (
                f"import sys; sys.path.insert(0, {str(lessons.COURSE)!r}); from grader.engine.classroom import worker; "
                f"worker.work({str(room.out.resolve())!r})"
            ),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=kept | {"HOME": "/tmp"},
        cwd=lessons.COURSE,
        start_new_session=True,
    )


def end(worker: subprocess.Popen) -> None:
    """End a worker, which cleans up first; a stuck one is killed."""
    worker.terminate()
    try:
        worker.wait(LAST)
    except subprocess.TimeoutExpired:
        worker.kill()
        worker.wait()


def talk(
    worker: subprocess.Popen,
    student: str,
    paths: list[Path],
    news: "queue.SimpleQueue[dict[str, Any]]",
    refuse: str = "",
) -> bool:
    """Give a worker one submission, perhaps to `refuse` it unread; False if the worker died from it."""
    try:
        task = {"student": student, "paths": [str(path.resolve()) for path in paths], "refuse": refuse}
        worker.stdin.write(json.dumps(task) + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            said = json.loads(line)
            news.put(said)
            if said.get("over"):
                return True
    except (BrokenPipeError, ValueError):
        pass
    return False


def try_walls(walls: str, backend: str) -> None:
    """Raises NoSandbox if these walls are not available here."""
    if walls == sandbox.USERS and lessons.has_solutions():
        problem = "every user may read the solutions in this copy; grade with a release, made by ./workbook release"
    elif walls == sandbox.USERS and backend == "nccl":
        problem = "NCCL's shared memory is closed to other users; on GPUs there are bubblewrap and off"
    else:
        problem = sandbox.lacking(walls)
    if problem:
        raise sandbox.NoSandbox(f"--sandbox {walls}: {problem}")

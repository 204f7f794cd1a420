"""Grades the corpus as a class is graded, in one worker, and says after each submission what it did.

Around it lie canaries: a secret, the solutions, another submission, the class's records and seed, a variable of the
instructor's, and a port that somebody listens on. None may be read, changed or called, and nothing may be left behind.
"""

import hashlib
import json
import os
import queue
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from grader.engine.classroom import grade, records
from grader.engine.lesson import lessons
from hostile import corpus

GRACE = 5.0  # seconds for processes that were killed to be gone
MEMORY = 1 << 30  # bytes, at most, of the worker
LONGEST = 20.0  # seconds of CPU that the worker itself may take for one submission: whatever else the machine does
CRASHES = "a rank that stops itself"  # a check crashes on it
MINUTES = 3.0  # for the ranks of a submission: far more than an attack takes, so that each is stopped by its own guard


@dataclass
class Trial:
    """One submission, graded, and what is wrong about it."""

    attack: corpus.Attack
    record: dict
    seconds: float
    peak: int  # bytes of memory that the worker held
    wrong: list[str]

    @property
    def marks(self) -> float:
        return records.points(self.record)


class Room:
    """A class among canaries. A context manager; afterwards nothing of it is left."""

    def __init__(self, folder: Path, walls: str) -> None:
        self.folder, self.canary = folder, f"CANARY-{secrets.token_hex(8)}"
        self.submissions, self.temporary = folder / "submissions", folder / "tmp"
        for made in (self.submissions, self.temporary, folder / "private"):
            made.mkdir(parents=True)
        self.secret, self.other = folder / "private" / "secret", self.submissions / "anna" / corpus.NOTEBOOK
        corpus.write(self.submissions / "anna", self.canary.encode())
        self.secret.write_text(self.canary)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.setblocking(False)
        self.services = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
        for service, place in zip(self.services, (str(folder / "service"), f"\0{self.canary}"), strict=True):
            service.bind(place)
            service.listen()
        self.room = grade.open_class(folder / "out", [corpus.LESSON], self.canary, walls, MINUTES)
        self.book = self.room.record("anna")
        self.book.write_text(json.dumps({"student": "anna", "why": self.canary}))
        corpus.KNOWN.update(
            FOUND=[
                str(p)
                for p in (
                    self.secret,
                    self.other,
                    self.room.out / "class.json",
                    self.book,
                    lessons.source_path(corpus.LESSON),
                )
            ],
            ELSEWHERE=[
                str(p)
                for p in (
                    self.room.out,
                    self.submissions,
                    folder / "private",
                    lessons.COURSE,
                    lessons.COURSE / "grader",
                    Path.home(),
                )
            ],
            PORT=self.listener.getsockname()[1],
            KEPT=[str(folder / "service"), f"\0{self.canary}"],
        )
        self.worker: subprocess.Popen | None = None

    def __enter__(self) -> "Room":
        # A worker is given TMPDIR; by it all that descends from one is known.
        ours = {"WORKBOOK_TEST_SECRET": self.canary, "TMPDIR": str(self.temporary)}
        self.environment = mock.patch.dict(os.environ, ours)
        self.environment.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.environment.stop()
        for service in (self.listener, *self.services):
            service.close()
        if self.worker:
            self.worker.kill()
            self.worker.communicate()

    def trial(self, attack: corpus.Attack) -> Trial:
        student = attack.name
        target = self.submissions / student.replace("/", "_")
        attack.make(target)
        path = next(
            p
            for p in (target, *(target.with_name(target.name + end) for end in (".zip", ".tar.gz", ".tar")))
            if p.exists()
        )
        return self.grade(attack, student, path)

    def grade(self, attack: corpus.Attack, student: str, path: Path) -> Trial:
        if self.worker is None or self.worker.poll() is not None:
            self.start_worker()
        forget_peak(self.worker.pid)
        before, began, judged = self.outside(), time.monotonic(), cpu(self.worker.pid)
        lived = grade.talk(self.worker, student, [path], queue.SimpleQueue())
        seconds, most = time.monotonic() - began, peak(self.worker.pid)
        judged = cpu(self.worker.pid) - judged if lived else 0.0
        record = records.read_record(self.room.record(student)) or records.failure(student, path.name, "no record")
        wrong = [] if lived else ["the worker died"]
        wrong += (
            self.problems(attack, record, judged, most)
            + [f"outside: {what}" for what in sorted(before ^ self.outside())]
            + self.left()
        )
        return Trial(attack, record, seconds, most, wrong)

    def start_worker(self) -> None:
        """Start a worker, and both servers that stay as long as it does: one to fork from, and one for the course's own
        code, which a crashed check is tried on.
        """
        self.worker, warm = grade.start_worker(self.room), self.submissions / "warm"
        shutil.rmtree(warm, ignore_errors=True)
        next(attack for attack in corpus.ATTACKS if attack.name == CRASHES).make(warm)
        grade.talk(self.worker, "warm", [warm], queue.SimpleQueue())
        own = psutil.Process(self.worker.pid)
        self.servers = {own.pid, *(server.pid for server in own.children(recursive=True))}
        self.folders = set(self.temporary.glob("wb-*"))

    def problems(self, attack: corpus.Attack, record: dict, judged: float, most: int) -> list[str]:
        written, wrong = json.dumps(record), []
        if record["state"] != attack.state:
            wrong.append(f"{record['state']} ({record.get('why')}), not {attack.state}")
        elif records.points(record) != attack.marks:
            wrong.append(f"{records.points(record):g} marks, not {attack.marks}: {said(record)}")
        if attack.says not in written:
            wrong.append(f"does not say “{attack.says}”: {said(record)}")
        if attack.flagged != bool(record["flags"]):
            wrong.append(f"flags: {record['flags']}")
        wrong += [f"says {word!r}" for word in (*attack.never, self.canary) if word in written]
        if most > MEMORY:
            wrong.append(f"the worker held {most >> 20} MiB")
        if judged > LONGEST:
            wrong.append(f"the worker computed for {judged:.0f} s")
        try:
            self.listener.accept()
            wrong.append("it reached a port of the host")
        except BlockingIOError:
            pass
        return wrong

    def outside(self) -> set[str]:
        """All files that nobody may touch, with what they hold."""
        found = set()
        for top in (
            self.submissions,
            self.folder / "private",
            self.room.out / "class.json",
            self.book,
            *(lessons.COURSE / name for name in ("solutions", "grader", "utils")),
        ):
            for folder, below, names in os.walk(top) if top.is_dir() else [(top.parent, [], [top.name])]:
                below[:] = [
                    name
                    for name in below
                    if name not in (".git", ".venv", ".workbook", "__pycache__", ".pytest_cache", ".ruff_cache", "runs")
                ]
                for path in (Path(folder, name) for name in names):
                    about = path.lstat()
                    held = (
                        hashlib.sha256(path.read_bytes()).hexdigest()[:8]
                        if path in (self.secret, self.other, self.book)
                        else ""
                    )
                    found.add(f"{path} {about.st_mode:o} {about.st_size} {about.st_mtime_ns} {held}")
        found |= {
            str(path)
            for place in map(Path, [*corpus.KNOWN["ELSEWHERE"], "/tmp", "/dev/shm"])
            for path in place.glob("CANARY*")
        }
        return found

    def left(self) -> list[str]:
        """Processes and files of the submission that are still there."""
        deadline = time.monotonic() + GRACE
        while (alive := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return [f"left running: {process}" for process in alive] + [
            f"left behind: {path}" for path in set(self.temporary.glob("wb-*")) - self.folders
        ]

    def alive(self) -> list[psutil.Process]:
        kept = set(self.servers)
        for child in psutil.Process().children():  # what the tests themselves have started meanwhile
            if child.pid != self.worker.pid:
                kept |= {process.pid for process in [child, *child.children(recursive=True)]}
        found = []
        for process in psutil.process_iter():
            try:
                if (
                    process.pid not in kept
                    and process.status() != psutil.STATUS_ZOMBIE
                    and process.environ().get("TMPDIR") == str(self.temporary)
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found


def forget_peak(pid: int) -> None:
    """The peak of a process's memory is counted from now on: proc(5), clear_refs."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak(pid: int) -> int:
    """Bytes that a process has held at most; 0 if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def cpu(pid: int) -> float:
    """Seconds that a process itself has computed."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def said(record: dict) -> str:
    """Of TODO 3, where the attacks are; and of what was not taken."""
    message = next((verdict["message"] for verdict in record["verdicts"] if verdict["todo"] == 3), "")
    return "; ".join([message, *record["refused"], *(flag["reason"] for flag in record["flags"])]).strip("; ")[:300]


def trials(folder: Path, walls: str, attacks: list[corpus.Attack]) -> Iterator[Trial]:
    """Grade these, and an honest submission at the end: the class goes on."""
    with Room(folder, walls) as room:
        for attack in [*attacks, HONEST]:
            yield room.trial(attack)


def solved(path: Path) -> None:
    from student_notebook import solved

    corpus.write(path, json.dumps(solved()))


HONEST = corpus.Attack("an honest submission", "nothing", "none: it has all its marks", solved, marks=9)

"""watch: a file is saved, the verdict is there."""

import os
import pty
import select
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from course_copy import Course
from grader.engine.commands import watch as looking
from grader.engine.commands.watch import must_poll, recheck
from grader.engine.judge.judge import checked_lessons
from grader.engine.judge.verdict import Verdict
from grader.engine.lesson import lessons, todo_regions

LIMIT = 90  # seconds after which a test gives up; a slow machine needs ten


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path / "course")


class Watched:
    """A watch that runs, on a pipe or on a terminal."""

    def __init__(self, course: Course, *args: str, terminal: bool = False, **env: str) -> None:
        environment, how = course.environment(**env), {}
        self.slave = None
        if terminal:
            self.out, self.slave = pty.openpty()
            self.mode = termios.tcgetattr(self.slave)
            environment["TERM"] = "xterm"
            how = {"stdin": self.slave, "stdout": self.slave, "stderr": self.slave}
        else:
            self.out, end = os.pipe()
            how = {"stdin": subprocess.DEVNULL, "stdout": end, "stderr": end}
        # A shell's background job ignores it, and so would what it starts.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.process = subprocess.Popen(
            course.command("watch", *args), cwd=course.folder, env=environment, start_new_session=True, **how
        )
        if not terminal:
            os.close(end)
        self.text = ""

    def until(self, words: str) -> str:
        """What it says from now on, up to these words."""
        deadline = time.monotonic() + LIMIT
        while words not in self.text:
            ready, _, _ = select.select([self.out], [], [], deadline - time.monotonic())
            assert ready, f"“{words}” was not said, but {self.text!r}"
            data = os.read(self.out, 4096)
            assert data, f"it ended without “{words}”: {self.text!r}"
            self.text += data.decode(errors="replace")
        before, _, self.text = self.text.partition(words)
        return before

    def end(self, number: int) -> None:
        """Stop it; nothing that it started may be left."""
        started = psutil.Process(self.process.pid).children(recursive=True)
        assert started  # the fork-server
        self.process.send_signal(number)
        self.process.wait(LIMIT)
        _, alive = psutil.wait_procs(started, timeout=10)
        assert not alive

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.out)
        if self.slave is not None:
            os.close(self.slave)


@pytest.fixture
def watch(course):
    running = []

    def start(*args, **how):
        running.append(Watched(course, *args, **how))
        return running[-1]

    yield start
    for one in running:
        one.close()


@pytest.mark.parametrize("poll", ["0", "1"])
def test_a_save_brings_the_verdict(course, watch, poll):
    watched = watch("ddp_training", WORKBOOK_POLL=poll)
    watched.until("0 of 18")
    watched.until("· ddp_training/1 ")
    course.solve("ddp_training", (1,))
    watched.until("✓ ddp_training/1 ")
    watched.until("s after the save")
    rest = watched.until("1 of 18") + watched.until("· ddp_training/2 ")
    assert "ddp_training/3" not in rest  # only the next failure
    part = course.script("ddp_training").with_suffix(".new")
    part.write_text(course.script("ddp_training").read_text())
    part.replace(course.script("ddp_training"))  # as many editors save
    watched.until("· ddp_training/2 ")
    watched.until("1 of 18")
    assert "ddp_training/1 pass" in course.progress() and "ddp_training/2 new" in course.progress()
    watched.end(signal.SIGINT)
    assert "Traceback" not in watched.text and watched.process.returncode == 130


def test_a_kill_leaves_nothing_running(course, watch):
    course.solve("ddp_training", (), todo1="while True: pass")
    watched = watch("ddp_training")
    watched.until("watching")
    deadline = time.monotonic() + LIMIT
    process = psutil.Process(watched.process.pid)
    while len(process.children(recursive=True)) < 3:  # the server and two ranks, in their loop
        assert time.monotonic() < deadline and watched.process.poll() is None
        time.sleep(0.02)
    watched.end(signal.SIGTERM)


@pytest.mark.long
def test_keys(course, watch):
    first, *rest = checked_lessons()[-3:]  # `n` goes from each to the next, up to the last
    watched = watch(first, terminal=True)
    watched.until("q quit")
    os.write(watched.out, b"h")
    watched.until(f"hint 1 of 3 for {first}/1")
    os.write(watched.out, b"h")
    watched.until("hint 2 of 3")
    os.write(watched.out, b"l")
    watched.until("0 of ")  # the list of the lessons
    for lesson in rest:
        os.write(watched.out, b"n")
        watched.until(f"{lesson} is not checked" if lessons.lacking(lesson) else f"· {lesson}/1 ")
        watched.until("q quit")
        if lesson == rest[0]:
            os.write(watched.out, b"r")
            watched.until("after the save")
            watched.until("q quit")
    os.write(watched.out, b"n")
    watched.until("is the last lesson")
    os.write(watched.out, b"q")
    assert watched.process.wait(LIMIT) == 0
    assert termios.tcgetattr(watched.slave) == watched.mode


@pytest.mark.long  # eleven checks
def test_a_track_keeps_to_its_todos(course, watch):
    """Half a day has the first eleven of ddp_training's eighteen."""
    course.solve("ddp_training", range(1, 11))
    watched = watch("ddp_training", "--track", "half")
    watched.until("10 of 11")
    watched.until("· ddp_training/11 ")
    course.solve("ddp_training", range(1, 12))
    watched.until("11 of 11")
    watched.until("All TODOs of your track in ddp_training are right.")
    watched.end(signal.SIGINT)


def test_a_track_hears_of_a_file_that_is_no_python(monkeypatch, capsys):
    """Though its TODOs, of a batch file say, can be judged without it."""
    broken = Verdict("ddp_training", 3, "", "skipped", "no_python", 0, 1, "train/ddp_training.py:7 is not Python")
    right = Verdict("ddp_training", 15, "", "pass", None, 1, 1, "")
    monkeypatch.setattr(looking, "recheck", lambda *_, **__: [broken, right])
    monkeypatch.setattr(looking, "remember", lambda _: None)
    watch = looking.Watch(None, "ddp_training", [("ddp_training", 15)])
    assert watch.check(0.0)
    said = capsys.readouterr().out
    assert "train/ddp_training.py:7 is not Python" in said and "are right" not in said
    monkeypatch.setattr(looking, "recheck", lambda *_, **__: [right])
    assert watch.check(0.0)
    assert "All TODOs of your track in ddp_training are right." in capsys.readouterr().out


def test_what_is_worked_on_comes_first(runner, tmp_path):
    source = lessons.source_path("ddp_training").read_text("utf-8")
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "ddp_training.py").write_text(todo_regions.compose(source, (1, 2, 3, 10)))
    shown = []
    verdicts = recheck(runner, "ddp_training", 10, lambda v: shown.append(v.todo), target=str(tmp_path))
    assert shown == [10, *range(1, 10), *range(11, 19)]
    assert [v.todo for v in verdicts] == list(range(1, 19))
    assert [v.todo for v in verdicts if v.passed] == [1, 2, 3, 10]

    shown.clear()
    assert (
        recheck(runner, "ddp_training", 10, lambda v: shown.append(v.todo), lambda: len(shown) == 2, str(tmp_path))
        is None
    )
    assert shown == [10, 1]  # a new save stops it


def test_polls_where_events_do_not_reach(tmp_path, monkeypatch):
    def mounts(kind):
        return lambda all: [
            SimpleNamespace(mountpoint="/", fstype="ext4"),
            SimpleNamespace(mountpoint=str(tmp_path), fstype=kind),
        ]

    monkeypatch.delenv("WORKBOOK_POLL", raising=False)
    for kind, poll in (
        ("ext4", False),
        ("nfs4", True),
        ("lustre", True),
        ("9p", True),
        ("fuse.sshfs", True),
        ("btrfs", False),
    ):
        monkeypatch.setattr(psutil, "disk_partitions", mounts(kind))
        assert must_poll(tmp_path / "train") is poll, kind
    monkeypatch.setenv("WORKBOOK_POLL", "1")
    assert must_poll(tmp_path) is True


def test_a_poll_sees_each_save_however_soon(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBOOK_POLL", "1")
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    monkeypatch.setattr(looking, "own_files", lambda lesson: {Path("train/a.py"): tmp_path})
    file = tmp_path / "train" / "a.py"
    file.parent.mkdir()
    file.write_text("x = 0")
    watch = looking.Watch(None, "a")
    begun = threading.Event()
    stamps = watch.stamps
    monkeypatch.setattr(watch, "stamps", lambda: (stamps(), begun.set())[0])
    thread = threading.Thread(target=watch.wait_for_saves, args=[[file.parent]], daemon=True)
    thread.start()
    assert begun.wait(60)
    for number in range(1, 4):  # all within one second, as the file's own time has it, and of one length
        part = file.with_suffix(".new")
        part.write_text(f"x = {number}")
        os.utime(part, ns=(10**18, 10**18 + number))
        part.replace(file)
        assert watch.events.get(timeout=60) == "saved"
    watch.ended.set()
    thread.join(60)
    assert not thread.is_alive()


def test_what_comes_next_is_named():
    track = [("02_data_parallel", 1), ("ddp_training", 1), ("fsdp_training", 1)]
    told = {stem: looking.Watch(None, stem, track).what_next() for stem, _ in track}
    assert told["02_data_parallel"] == "Go on with ddp_training."
    assert told["ddp_training"] == "Run it: ./workbook run ddp_training --nproc 2. Then go on with fsdp_training."
    assert told["fsdp_training"].endswith("It is the last lesson of your track.")
    assert looking.Watch(None, "02_data_parallel").what_next() == "Go on with ddp_training."
    assert looking.Watch(None, checked_lessons()[-1]).what_next().endswith("It is the last lesson.")

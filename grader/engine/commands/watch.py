"""`./workbook watch`: save the file, see the verdict.

Three threads: this one checks and draws; one waits for the file to be saved,
one for a key. They communicate through a queue, so that only one of them draws.
"""

import contextlib
import os
import queue
import signal
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import psutil
import watchfiles
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from grader.engine.commands.record_verdicts import remember
from grader.engine.commands.screen import console, say, say_verdict
from grader.engine.judge.judge import Judge, checked_lessons
from grader.engine.judge.passed_todos import Passed
from grader.engine.judge.verdict import Verdict
from grader.engine.lesson import lessons, texts
from grader.engine.lesson.student_files import own_files
from grader.engine.lesson.progress import Entry, Progress, lesson_map
from grader.engine.ranks.runner import Runner

POLL = 0.1  # seconds between polls, where the system does not report saves
# File systems on which the kernel does not see every change: network file systems, and a host's.
WITHOUT_EVENTS = (
    "nfs",
    "lustre",
    "gpfs",
    "beegfs",
    "cifs",
    "smb",
    "9p",
    "drvfs",
    "virtiofs",
    "afs",
    "ceph",
    "panfs",
    "pvfs",
    "wekafs",
    "fuse",
)
KEYS = "[dim]h hint · n next lesson · l list · r check again · q quit[/]"


def recheck(
    runner: Runner,
    lesson: str,
    first: int | None = None,
    show: Callable[[Verdict], None] = lambda verdict: None,
    stop: Callable[[], bool] = lambda: False,
    target: str | None = None,
) -> list[Verdict] | None:
    """All verdicts on the lesson as it is now, in order; the TODO that the student is working on is checked `first`.

    `show` is called with each verdict as soon as it is known. None if `stop` returned true between two of them.
    """
    judge = Judge(runner, lesson, target, passed=None if target else Passed(lesson, runner.backend))
    if first in judge.checks:
        show(judge.verdict(first))
    for number in sorted(judge.checks):
        if stop():
            return None
        if number != first:
            show(judge.verdict(number))
    return [judge.verdict(number) for number in sorted(judge.checks)]


def climb(lesson: str, number: int) -> str:
    """The next of a TODO's hints; after the last one, the last one again."""
    hints = texts.words(lesson, number).hints
    progress = Progress()
    step = min(progress.read().get((lesson, number), Entry()).hints + 1, len(hints))
    progress.write({(lesson, number): step})
    last = "  (that was the last one)" if step == len(hints) else ""
    return f"hint {step} of {len(hints)} for {lesson}/{number}: {hints[step - 1]}{last}"


def must_poll(folder: Path) -> bool:
    """Whether saves in this folder are not reported, so that it must be polled."""
    if os.environ.get("WORKBOOK_POLL", "0") not in ("", "0") or "microsoft" in os.uname().release.lower():  # WSL
        return True
    mounts = [m for m in psutil.disk_partitions(all=True) if folder.is_relative_to(m.mountpoint)]
    kind = max(mounts, key=lambda m: len(m.mountpoint)).fstype.lower() if mounts else ""
    return kind.startswith(WITHOUT_EVENTS)


class Watch:
    """The loop and its state; `only` are the TODOs of the student's track, None for the whole course."""

    def __init__(self, runner: Runner, lesson: str, only: Collection[tuple[str, int]] | None = None) -> None:
        self.runner, self.lesson, self.only = runner, lesson, only
        self.events: queue.SimpleQueue[str] = queue.SimpleQueue()  # "saved", or a key
        self.verdicts: list[Verdict] = []
        self.first: int | None = None  # the TODO that the student works on
        self.on_terminal = console.is_terminal
        self.ended = threading.Event()

    def run(self) -> None:
        folders = [folder for name in ("train", "notebooks", "sbatch") if (folder := lessons.COURSE / name).is_dir()]
        watcher = threading.Thread(target=self.wait_for_saves, args=[folders], daemon=True)
        watcher.start()
        try:
            with keys(self.events):
                self.answer()
        finally:
            self.ended.set()
            watcher.join(timeout=2)

    def answer(self) -> None:
        """Handle events until it is time to quit; between them, bring the verdicts up to date."""
        stale, since = True, time.perf_counter()
        while True:
            if stale and self.events.empty():
                stale = not self.check(since)  # a key or another save interrupted it
                continue
            event = self.events.get()
            if event == "q":
                return
            if event in ("saved", "r"):
                stale, since = True, time.perf_counter()
            elif event == "n":
                stale = self.next_lesson()
                since = time.perf_counter()
            elif event == "l":
                say("\n" + "\n".join(lesson_map()))
            elif event == "h" and self.first is not None:
                say(f"\n[yellow]{escape(climb(self.lesson, self.first))}[/]")

    def check(self, since: float) -> bool:
        """Check the lesson and draw; False if it was interrupted."""
        worked_on, early = self.first, []

        def show(verdict: Verdict) -> None:
            if verdict.todo == worked_on and verdict.status != "skipped":
                self.clear()
                say_verdict(verdict)
                say(f"[dim]{time.perf_counter() - since:.2f} s after the save; checking the others …[/]")
                early.append(verdict)

        if line := lessons.lacking(self.lesson):
            self.clear()
            say(escape(f"{self.lesson} is not checked: {line}"))
            if self.on_terminal and sys.stdin.isatty():
                say(KEYS)
            return True
        verdicts = recheck(self.runner, self.lesson, worked_on, show, stop=lambda: not self.events.empty())
        if verdicts is None:
            return False
        remember(verdicts)
        unread = [v for v in verdicts if v.cause == "no_python"]  # on any track: it belongs to no TODO
        verdicts = [v for v in verdicts if self.on_track(v.lesson, v.todo)]
        open_ones = unread or [v for v in verdicts if v.status == "fail"] or [v for v in verdicts if not v.passed]
        if not unread:
            self.first = open_ones[0].todo if open_ones else None
        self.clear()
        bar = Table.grid(padding=(0, 1))
        passed = sum(v.passed for v in verdicts)
        if unread:  # what was right before is still right
            known = Progress().read()
            passed = sum(known.get((v.lesson, v.todo), Entry()).state == "pass" for v in verdicts)
        bar.add_row(
            self.lesson,
            ProgressBar(len(verdicts), passed, width=40),
            f"{passed} of {len(verdicts)}",
            f"[dim]{time.perf_counter() - since:.2f} s[/]",
        )
        console.print(bar)
        if not open_ones:
            which = "All TODOs of your track in" if self.only is not None else "All TODOs of"
            say(f"[green]{which} {self.lesson} are right.[/] {self.what_next()}")
        elif self.on_terminal or open_ones[0] not in early:  # without a screen to clear, it was printed already
            say_verdict(open_ones[0])
        if self.on_terminal and sys.stdin.isatty():
            say(KEYS)
        return True

    def next_lesson(self) -> bool:
        """Continue with the lesson after this one; False if this is the last."""
        following = self.following()
        if following is None:
            say(f"\n{self.lesson} is the last lesson" + (" of your track" if self.only else ""))
            return False
        self.lesson, self.first = following, None
        return True

    def following(self) -> str | None:
        """The lesson after this one, on the student's track; None if this is the last."""
        stems = [stem for stem in checked_lessons() if self.on_track(stem)]
        return next(iter(stems[stems.index(self.lesson) + 1 :]), None)

    def what_next(self) -> str:
        """What to do when the lesson is done."""
        run = "" if lessons.is_notebook(self.lesson) else f"Run it: ./workbook run {self.lesson} --nproc 2. "
        if (following := self.following()) is None:
            return f"{run}It is the last lesson{' of your track' if self.only else ''}."
        key = " (press n)" if self.on_terminal and sys.stdin.isatty() else ""
        return f"{run}{'Then go' if run else 'Go'} on with {following}{key}."

    def on_track(self, lesson: str, number: int | None = None) -> bool:
        """Whether a TODO, or any of a lesson, is on the student's track."""
        return self.only is None or any(stem == lesson and number in (None, todo) for stem, todo in self.only)

    def clear(self) -> None:
        if self.on_terminal:
            console.clear()

    def wait_for_saves(self, folders: list[Path]) -> None:
        if must_poll(folders[0]):
            self.poll()
            return

        def ours(_: watchfiles.Change, path: str) -> bool:
            return any(Path(path).name == own.name for own in own_files(self.lesson))

        # One save causes one or more changes within a few milliseconds; `step` is how long to wait for more.
        for _ in watchfiles.watch(
            *folders,
            watch_filter=ours,
            step=20,
            debounce=200,
            stop_event=self.ended,
            recursive=False,
            raise_interrupt=False,
        ):
            self.events.put("saved")

    def poll(self) -> None:
        """Poll the lesson's files. watchfiles compares whole seconds when it polls, so it misses a file that is
        replaced in the same second in which it was saved.
        """
        before = self.stamps()
        while not self.ended.wait(POLL):
            now = self.stamps()
            if now != before and now.keys() == before.keys():  # other keys: a new lesson, which is checked anyway
                self.events.put("saved")
            before = now

    def stamps(self) -> dict[Path, tuple[int, ...]]:
        """For each of the lesson's files, what a save changes: size, inode, time in nanoseconds; nothing for a missing
        file.
        """
        found: dict[Path, tuple[int, ...]] = {}
        for path in own_files(self.lesson):
            found[path] = ()
            with contextlib.suppress(OSError):
                about = (lessons.COURSE / path).stat()
                found[path] = about.st_size, about.st_ino, about.st_mtime_ns
        return found


@contextlib.contextmanager
def keys(events: "queue.SimpleQueue[str]") -> Iterator[None]:
    """Put each key into `events` at once, without waiting for Return; does nothing without a terminal."""
    # A closed window or a kill acts like Ctrl-C: ranks are ended and the terminal's mode is restored.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if not sys.stdin.isatty():
        yield
        return

    def read() -> None:
        while key := os.read(sys.stdin.fileno(), 1):
            events.put(key.decode("ascii", "replace"))

    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        threading.Thread(target=read, daemon=True).start()
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

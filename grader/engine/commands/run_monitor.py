"""Reports the state of a run with --watch: which rank waits for which, and which rank ended first."""

import signal
import socket
import time
from pathlib import Path

import psutil
from rich.markup import escape

from grader.engine.commands.screen import say
from grader.engine.ranks.standstill import Standing, ending
from utils.watched.record import Seen, read, read_ends

KILLED = "it was killed (kill -9, or by the system where memory had run out)"
BY_HAND = (2, 130, 143)  # exit codes of a run that says itself why it stops, or that was told to stop


class Watcher:
    """Reads the folder `out` of a run that began after `since`; what an earlier run left there is ignored."""

    def __init__(self, out: Path, since: float = 0.0) -> None:
        self.out, self.since, self.standing, self.ended = out, since, Standing(), False

    def hopeless(self) -> bool:
        """Called once a second: whether the run can never continue. Prints what it finds."""
        seen = read(self.out, self.since)
        found = self.standing.look(seen, self.missing(seen) | self.gone(seen), time.monotonic())
        if found and found.hopeless:
            self.ended = True
            say(f"\n[bold red]it can never continue[/], and is ended: {escape(found.text)}")
            return True
        if found:
            still = time.monotonic() - self.standing.since
            long = f"{still / 60:.0f} min" if still >= 120 else f"{still:.0f} s"
            say(
                f"\n[bold yellow]nothing has moved for {long}[/]: {escape(found.text)}. A slow step, file or"
                " loader looks like this, too, so the run continues; Ctrl-C ends it"
            )
        return False

    def say_end(self, code: int) -> None:
        """Print why a failed run ended."""
        if self.ended or code == 0 or code in BY_HAND:
            return
        seen = read(self.out, self.since)
        alone = {0: KILLED} if code == 128 + signal.SIGKILL and len(seen) == 1 else {}
        if text := ending(seen, alone | self.gone(seen)):
            say(f"[bold red]{escape(text)}[/]")

    def gone(self, seen: list[Seen]) -> dict[int, str]:
        """How ranks ended, according to themselves or to torchrun."""
        ends = read_ends(self.out, self.since)
        found: dict[int, str] = {}
        for one in seen:
            if one.gone:
                found[one.rank] = f"it stopped with {one.gone['how']}" if one.gone["how"] else "it has finished"
            elif one.rank in ends:
                found[one.rank] = KILLED if ends[one.rank] == "SIGKILL" else f"it ended with {ends[one.rank]}"
        return found

    def missing(self, seen: list[Seen]) -> dict[int, str]:
        """Ranks on this machine whose process no longer exists."""
        here = [one for one in seen if one.who["host"] == socket.gethostname()]
        return {one.rank: "its process is gone" for one in here if not is_there(one.who["pid"], one.who["created"])}


def is_there(process: int, created: float) -> bool:
    """Whether this very process is alive; process ids are reused."""
    try:
        it = psutil.Process(process)
        return it.create_time() == created and it.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False

"""How ranks end, and how a crash is described."""

import linecache
import os
import re
import signal
import textwrap
from pathlib import Path

from grader.engine.lesson import lessons
from grader.engine.ranks.diagnose import Fault, Where, place
from grader.engine.ranks.events import NOTHING
from grader.engine.ranks.run_files import Traces

SHORT = 160  # characters


def parted(text: str) -> tuple[str, str]:
    """Split a crash's text, without tracebacks: all of it if it is short, else its first line or sentence; and the
    rest.
    """
    text = text.partition("Traceback (most recent call last)")[0].strip()
    whole = " ".join(text.split())
    first = " ".join(text.split("\n")[0].split())
    sentence = re.split(r"(?<=[.!?]) (?=[A-Z])", first)[0]
    begin = next((words for words in (whole, first) if len(words) <= SHORT), sentence)
    return begin or "no message", whole.removeprefix(begin).strip()


class Endings:
    """How each rank ended, as far as known. `lesson`: whose check is running."""

    def __init__(self, traces: Traces, lesson: str, strange: dict[int, dict], status: dict[int, int]) -> None:
        self.traces, self.lesson = traces, lesson
        self.strange = strange  # by rank: functions that broke their signature
        self.last_word: dict[int, dict] = {}  # end, boundary, crash, exit or kill
        self.status = status  # wait status

    def over(self, rank: int) -> bool:
        """Whether a rank has reported its end, or is gone without doing so."""
        return rank in self.status or self.last_word.get(rank, {}).get("e") in ("end", "boundary", "crash")

    def returned(self, rank: int) -> bool:
        return self.last_word.get(rank, {}).get("e") in ("end", "boundary")

    def how_it_ended(self, rank: int) -> str:
        word = self.last_word.get(rank, {}).get("e")
        if self.returned(rank):
            return "it has finished"
        if word == "crash":
            return f"it stopped with {self.last_word[rank]['type']}"
        status = self.status[rank]
        if os.WIFSIGNALED(status):
            rank = os.WTERMSIG(status)
            known = rank in set(signal.Signals)  # real-time signals have no names there
            return f"it was killed by {signal.Signals(rank).name if known else f'signal {rank}'}"
        return f"it left by os._exit({os.waitstatus_to_exitcode(status)})"

    def lost_a_peer(self, rank: int) -> bool:
        text = self.last_word.get(rank, {}).get("text", "")
        return any(words in text for words in ("closed by peer", "reset by peer", "Broken pipe", "Connection refused"))

    def alike(self, rank: int, other: int) -> bool:
        """Whether two ranks stopped in the same way, at the same lines."""
        ours, theirs = (self.last_word.get(n, {}).get("frames") for n in (rank, other))
        return ours == theirs and self.how_it_ended(rank) == self.how_it_ended(other)

    def line_of_ours(self, frames: list) -> str:
        """The line of the course's library, or else of the check, that failed because of what the student's code
        returned. A monitor that sees every operation is not what failed.
        """
        for path, line, _ in reversed([frame for frame in frames if frame[2] != "__torch_dispatch__"]):
            file, folder = Path(path), lessons.folder(self.lesson)
            if ".." in file.parts:  # a rank may say anything, and no line of another file is quoted
                continue
            library = file.is_relative_to(lessons.COURSE / "utils")
            if library or file == folder / "ranks.py" or file.parent == folder / "ranks":
                text = linecache.getline(path, line).strip()
                teller = file.relative_to(lessons.COURSE) if library else "the check"
                return f"{teller} says: {textwrap.shorten(text, 120, placeholder=' …')}"
        return ""

    def crash(self, rank: int, last: list[Where | None]) -> Fault:
        """The fault of a rank that vanished without a report; `last`: the lines where the ranks were last seen."""
        word = self.last_word.get(rank, {})
        if word.get("e") == "crash":
            frames = [f for f in word["frames"] if f[0] in self.traces.units]
            where = frames[-1] if frames else None
            begin, rest = parted(word["text"])
            alone = len(last) == 1
            text = f"{'your code' if alone else f'rank {rank}'} stopped with {word['type']}: {begin}"
            if word["type"] == "NotImplementedError" and word["text"].startswith("TODO "):
                text = f"a part of {word['text']} is still to be written"
            strange = self.strange.get(rank)
            if strange and (not where or (strange["returned"] == NOTHING and "None" in word["text"])):
                return broken_promise(rank, strange, where)
            if word.get("called_as"):
                text = f"{text.rstrip('.')}, in {word['called_as']}"
            if where:
                text = f"{text.rstrip('.')}, at {place(where)}"
            elif line := self.line_of_ours(word["frames"]):
                text = f"{text.rstrip('.')}, where {line}"
            return Fault(
                "crash",
                text,
                rank,
                where,
                expected=f"{'the process' if alone else 'every rank'} ends normally",
                seen=f"{word['type']}: … {rest}" if rest else word["type"],
                callers=frames[-2::-1],
            )
        where = word.get("where") or next(iter(self.traces.stack(rank)), None) or last[rank]
        where = where or next(filter(None, last), None)  # where its peers are
        how = self.how_it_ended(rank)
        if not os.WIFSIGNALED(self.status[rank]):
            text = f"rank {rank} left without reporting: {how}, at {place(where)}. An exit code is never a pass"
        else:
            text = f"rank {rank} is gone: {how}, last seen at {place(where)}"
        words = textwrap.shorten(self.traces.last_words(rank), 240, placeholder=" …")
        seen = f"{how}; its last words: {words}" if words else how
        return Fault("crash", text, rank, where, expected="every rank ends normally", seen=seen)


def broken_promise(rank: int, event: dict, stops: Where | None = None) -> Fault:
    """The fault of a run in which a function on rank `rank` broke its signature, and where that rank stops."""
    return Fault(
        "crash",
        f"rank {rank}: {event['name']} returns {event['returned']}, where its signature says {event['promised']}"
        + (f"; so it stops at {place(stops)}" if stops else ""),
        rank,
        event["where"],
        expected=event["promised"],
        seen=event["returned"],
        hint=hint_of_promise(event),
    )


def hint_of_promise(event: dict) -> str:
    if event["returned"] == NOTHING:
        return f"A function returns what `return` says. Does each path through {event['name']} have one?"
    if (event["returned"], event["promised"]) == ("a float", "int"):
        return "The quotient of a float is a float, even with //. Which call makes a whole number of it?"
    return ""

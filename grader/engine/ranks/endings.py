"""How ranks end, and the words of a crash."""

import linecache
import os
import signal
import sys
import textwrap
from pathlib import Path

from grader.engine.ranks.diagnose import Fault, Where, place
from grader.engine.ranks.traces import Traces


def more(word: dict) -> str:
    """What a crash says beyond the first line of its text, which the message has; tracebacks left out."""
    text = word["text"].partition("Traceback (most recent call last)")[0].strip()
    return f"{word['type']}: {text}" if "\n" in text else word["type"]


class Endings:
    """What is known of the end of each rank. `check` is the module of the check that is running."""

    def __init__(self, traces: Traces, check: str, strange: dict[int, dict]) -> None:
        self.traces, self.check = traces, check
        self.strange = strange  # by rank, what a function has returned against its signature
        self.last_word: dict[int, dict] = {}  # end, crash, exit or kill
        self.status: dict[int, int] = {}  # wait status

    def over(self, number: int) -> bool:
        """Whether a rank has said its last word, or is gone without one."""
        return number in self.status or self.last_word.get(number, {}).get("e") in ("end", "crash")

    def how_it_ended(self, number: int) -> str:
        word = self.last_word.get(number, {}).get("e")
        if word == "end":
            return "it has finished"
        if word == "crash":
            return f"it stopped with {self.last_word[number]['type']}"
        status = self.status[number]
        if os.WIFSIGNALED(status):
            return f"it was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        return f"it left by os._exit({os.waitstatus_to_exitcode(status)})"

    def lost_a_peer(self, number: int) -> bool:
        text = self.last_word.get(number, {}).get("text", "")
        return any(words in text for words in ("closed by peer", "reset by peer", "Broken pipe", "Connection refused"))

    def line_of_check(self, frames: list) -> str:
        """The check's own line that broke on what the student code returned; else nothing."""
        file = Path(getattr(sys.modules.get(self.check), "__file__", None) or "")
        lines = [
            line
            for path, line, _ in frames
            if file.name.startswith("test_") and Path(path).parts[-2:] == file.parts[-2:]
        ]
        return textwrap.shorten(linecache.getline(str(file), lines[-1]).strip(), 120, placeholder=" …") if lines else ""

    def crash(self, number: int, last: list[Where | None]) -> Fault:
        """A rank that is gone without having reported its end; `last`: the lines where the ranks were last seen."""
        word = self.last_word.get(number, {})
        if word.get("e") == "crash":
            frames = [f for f in word["frames"] if f[0] in self.traces.units]
            where = frames[-1] if frames else None
            text = (
                f"rank {number} stopped with {word['type']}:"
                f" {word['text'].strip().splitlines()[0] if word['text'].strip() else 'no message'}"
            )
            if word["type"] == "NotImplementedError" and word["text"].startswith("TODO "):
                text = f"a part of {word['text']} is still to be written"
            if where:
                text += f", at {place(where)}"
            elif strange := self.strange.get(number):
                text, where = f"rank {number}: {strange['text']}", strange["where"]
            elif line := self.line_of_check(word["frames"]):
                text += f", where the check says: {line}"
            return Fault(
                "crash",
                text,
                number,
                where,
                expected="every rank ends normally",
                seen=more(word),
                callers=frames[-2::-1],
            )
        where = word.get("where") or next(iter(self.traces.stack(number)), None) or last[number]
        where = where or next(filter(None, last), None)  # where its peers are
        how = self.how_it_ended(number)
        if not os.WIFSIGNALED(self.status[number]):
            text = f"rank {number} left without reporting: {how}, at {place(where)}. An exit code is never a pass"
        else:
            text = f"rank {number} is gone: {how}, last seen at {place(where)}"
        return Fault("crash", text, number, where, expected="every rank ends normally", seen=how)

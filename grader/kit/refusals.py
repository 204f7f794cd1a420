"""What a function must refuse, and what it must not: over a grid of numbers, with the words that the text asks for."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from grader.engine.judge.verdict import count_of, expect

# Hints where the wrong calls are refused, but not in the right words; and where a call is refused that can be done.
NAMED = "A user reads this one line and nothing else. Which numbers or names of the call would show what to change?"
ALLOWED = (
    "Go through these numbers by hand: at which step would something go wrong? If at none, the condition is too strict."
)


def check_refusals(
    ranks: Sequence[Iterable[tuple[tuple, dict[str, Any] | None]]],
    refused: Callable[..., bool],
    told: Callable[..., str],
    words: Callable[..., Iterable[Any]] = lambda *case: (),
    error: str = "ValueError",
    hint: str = "",
) -> None:
    """`ranks`: on each rank, (case, what `raised` says about it); cases of both kinds are among them. `refused(*case)`:
    whether it must be refused. `told(*case)`: the call, in words. `words(*case)`: numbers and names that the error's
    text must have, in one line; if there are none, any text will do. `hint`: where a call is not refused.
    """
    ranks = [list(tried) for tried in ranks]
    kinds = {bool(refused(*case)) for tried in ranks for case, _ in tried}
    assert kinds == {True, False}, "a grid has cases to refuse and cases to accept"
    for rank, tried in enumerate(ranks):
        for case, found in tried:
            one = rank if len(ranks) > 1 else None
            if refused(*case):
                check_refused(told(*case), found, [str(word) for word in words(*case)], error, one, hint)
            else:
                got = f"{found['error']}: {found['text']}" if found else ""
                expect(found is None, f"{told(*case)} is refused, and it can be done", "no error", got, one, ALLOWED)


AT_ONCE = "Each rank can see from its arguments alone that this cannot work. What does it send before it looks?"


def check_refused(
    told: str, found: dict[str, Any] | None, words: list[str], error: str, rank: int | None, hint: str
) -> None:
    got = f"{found['error']}: {found['text']}" if found else "no error"
    named = f" that names {' and '.join(words)}" if words else ""
    refused = found is not None and found["error"] == error
    expect(refused, f"{told} is not refused", f"a {error}{named}", got, rank, hint)
    late = f"{told} is refused only after rank {rank or 0} has communicated with the others"
    expect(not found["calls"], late, "no collective, no message", count_of(found["calls"], "call"), rank, AT_ONCE)
    text = found["text"].strip()
    expect(
        not words or all(is_word(word, text) for word in words) and "\n" not in text,
        f"{told} is refused, but the text does not say in one line why",
        f"a line{named}",
        text or "no text",
        rank,
        NAMED,
    )


def is_word(word: str, text: str) -> bool:
    """Whether it is there, and not as a part of a longer number or name: 3 is in "3x2" and not in "13"."""
    more = r"\d" if word.isdigit() else r"\w"
    return re.search(rf"(?<!{more}){re.escape(word)}(?!{more})", text) is not None

"""What holds for the messages of every right answer, whatever they carry."""

from collections.abc import Sequence

from grader.engine.ranks.diagnose import Fault, place
from grader.engine.ranks.message_rounds import Message, left_in_flight, rehearse, written_in_flight

# The hint for a deadlock.
WAITING = (
    "Which calls return only when the other rank has made its own? Follow two ranks: which line is each of them at?"
)

# The hint where ranks do not make the same collectives.
PARTED = (
    "Compare two ranks call by call: which one skips a call, makes one too many, or passes a tensor of a different"
    " shape? What does that depend on, and can all ranks know it?"
)

# The hint where ranks wait for one whose gradient is all zeros, as `zeros_in_turn` makes it.
OWN_ZEROS = "A gradient of zeros is a gradient, too. Which rank decides by its own numbers whether it makes the call?"


def check_delivery(told: str, events: Sequence[list[dict]]) -> list[Message]:
    """The messages in these events, if each was waited for before its tensor was used and before its rank returned,
    and if all would have come through without buffers. `told`: what was asked for, in words.
    """
    for loose in left_in_flight(events):
        raise Fault(
            "wrong_value",
            f"{told}: rank {loose.rank} returns while its {loose.call} is still in flight: no wait follows it, at "
            f"{place(loose.where)}",
            loose.rank,
            loose.where,
            expected="a wait for each isend and irecv",
            seen=f"no wait for the {loose.call}",
            hint="isend and irecv return at once. What do they return, and when is the message over?",
        )
    for loose in written_in_flight(events):
        verb = "writes into" if loose.op == "send" else "uses"
        raise Fault(
            "wrong_value",
            f"{told}: rank {loose.rank} {verb} the tensor of its {loose.call} before that message is over, at "
            f"{place(loose.written_at or loose.where)}",
            loose.rank,
            loose.written_at or loose.where,
            expected="the wait first",
            seen="a change in flight",
            hint="Until you have waited for its work, a tensor belongs to its message. Which line has to come later, or"
            " needs memory of its own?",
        )
    messages, deadlock = rehearse(events)
    if deadlock:
        raise Fault(
            "hang",
            f"{told} comes through by luck, because its messages were stored on the way. Where they are not: "
            f"{deadlock.message}",
            deadlock.rank,
            deadlock.where,
            expected="some rank receives while another one sends",
            seen=deadlock.seen,
            hint=WAITING,
            also=deadlock.also,
            callers=deadlock.callers,
            ops=deadlock.ops,
        )
    return messages

"""What the judge reads off the ranks' messages: rounds, deadlocks that buffers hid, calls never waited for."""

from itertools import count

import pytest

from grader.engine.ranks.message_rounds import (
    Collective,
    cases,
    collectives,
    left_in_flight,
    rehearse,
    written_in_flight,
)


def rank(*calls):
    """The events of a rank: "s1" sends to rank 1 and waits, "r0" receives; "s1?" does not wait; "w0" waits for its
    first message.
    """
    events, numbers = [], count()
    for call in calls:
        number = int(call[1])
        if call[0] in "sr":
            identity = next(numbers)
            events.append(
                {
                    "e": "op",
                    "op": {"s": "send", "r": "recv"}[call[0]],
                    "name": "0",
                    "group": [0, 1],
                    "shape": [2],
                    "dtype": "float32",
                    "bytes": 8,
                    "detail": None,
                    "peer": number,
                    "tag": 0,
                    "id": identity,
                    "t": 0.0,
                    "where": ["x.py", len(events), "f"],
                }
            )
            number = identity
        if not call.endswith("?"):
            events += [{"e": "wait", "of": number, "t": 1.0}, {"e": "done", "of": number, "t": 2.0}]
    return events


def rounds(*ranks):
    messages, fault = rehearse(ranks)
    assert fault is None, fault.message
    return [(m.round, m.source, m.target) for m in messages]


def test_messages_in_rounds():
    assert rounds(rank("s1"), rank("r0")) == [(1, 0, 1)]
    # A tree.
    assert rounds(rank("s2", "s1"), rank("r0"), rank("r0", "s3"), rank("r2")) == [(1, 0, 2), (2, 0, 1), (2, 2, 3)]
    assert rounds(rank("s1", "s2", "s3"), *[rank("r0")] * 3) == [(1, 0, 1), (2, 0, 2), (3, 0, 3)]  # one after the other
    assert rounds(rank("s1"), rank("r0", "s2"), rank("r1")) == [(1, 0, 1), (2, 1, 2)]  # a chain


def test_who_calls_first_is_sent_first_though_nobody_waits():
    assert rounds(rank("s2?", "s1?", "w0", "w1"), rank("r0"), rank("r0")) == [(1, 0, 2), (2, 0, 1)]


def test_a_receiver_that_comes_late_holds_up_nobody_else():
    assert rounds(rank("s1?", "s2?", "w0", "w1"), rank("r2", "r0"), rank("r0", "s1")) == [
        (1, 0, 2),
        (2, 2, 1),
        (3, 0, 1),
    ]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_ring_that_sends_first_is_the_deadlock_that_buffers_hid(world):
    _, fault = rehearse([rank(f"s{(n + 1) % world}", f"r{(n - 1) % world}") for n in range(world)])
    assert fault.cause == "hang" and "rank 0 waits in send of shape (2,) float32 to rank 1 at x.py:0" in fault.message
    assert fault.where == ["x.py", 0, "f"] and fault.expected == "rank 1 in recv from rank 0"


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_ring_that_calls_both_and_then_waits_is_one_round(world):
    ring = [rank(f"s{(n + 1) % world}?", f"r{(n - 1) % world}?", "w0", "w1") for n in range(world)]
    assert {number for number, *_ in rounds(*ring)} == {1}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_even_ranks_that_send_first_get_through(world):
    ring = [rank(*(f"s{(n + 1) % world}", f"r{(n - 1) % world}")[:: 1 - n % 2 * 2]) for n in range(world)]
    assert len(rounds(*ring)) == world


def test_a_receive_without_a_sender():
    _, fault = rehearse([rank("r1"), rank()])
    assert "rank 1 never comes: it has finished" in fault.message


def test_a_receive_from_anybody_is_from_whom_it_was():
    receiver = rank("r0")
    receiver[0]["peer"], receiver[-1]["source"] = None, 0
    assert rounds(rank("s1"), receiver) == [(1, 0, 1)]


def test_what_nobody_waits_for_is_left_in_flight():
    (loose,) = left_in_flight([rank("s1?"), rank("r0")])
    assert (loose.rank, loose.op, loose.peer, loose.where) == (0, "send", 1, ["x.py", 0, "f"])
    assert left_in_flight([rank("s1?", "w0"), rank("r0")]) == []


def test_what_is_written_in_flight_is_told():
    events = rank("s1?", "w0")
    assert written_in_flight([events]) == []
    (loose,) = written_in_flight([[*events, {"e": "changed", "of": 0}]])
    assert (loose.op, loose.peer) == ("send", 1)


def test_collectives_by_rank_with_the_end_of_their_waits():
    def call(number, t):
        return {"e": "op", "op": "all_reduce", "work": number, "group": [0, 1], "bytes": 8, "t": t, "where": None}

    done = {"e": "done", "work": 1, "t": 5.0}
    seen = collectives(
        [
            [call(0, 1.0), call(1, 2.0), {"e": "changed", "work": 1}, {"e": "wait", "work": 1, "t": 4.0}, done],
            [call(0, 3.0)],
        ]
    )
    assert [(c.rank, c.began, c.over, c.written) for c in seen] == [
        (0, 1.0, None, False),
        (0, 2.0, 5.0, True),
        (1, 3.0, None, False),
    ]
    assert written_in_flight([[*rank("s1?", "w0"), {"e": "changed", "work": 0}]]) == []


def test_cases_are_the_events_between_marks():
    mark = {"e": "mark"}
    one, two = rank("s1"), rank("r0")
    assert cases([[{"e": "joined"}, mark, *one, mark, *one, {"e": "end"}], [mark, *two, mark, *two]]) == [
        [one, two],
        [one, two],
    ]


def test_collectives_and_what_a_ring_sends_for_them():
    def call(op, nbytes, group=(0, 1, 2)):
        return {"e": "op", "op": op, "group": list(group), "bytes": nbytes, "t": 1.0, "where": None}

    events = [
        [call("all_gather", 4), {"e": "wait"}, {"e": "done"}, call("barrier", 0)],
        [call("all_reduce", 6), call("all_reduce", 6, [1])],
        rank("s1"),
    ]
    assert collectives(events) == [Collective(0, "all_gather", 3, 4, 1.0), Collective(1, "all_reduce", 3, 6, 1.0)]
    sent = {
        op: Collective(0, op, 3, 6).sent
        for op in ("all_gather", "reduce_scatter", "all_reduce", "all_to_all", "broadcast")
    }
    assert sent == pytest.approx(
        {"all_gather": 12, "reduce_scatter": 12, "all_reduce": 8, "all_to_all": 4, "broadcast": 6}
    )


def test_an_all_to_all_sends_what_goes_to_others():
    call = {
        "e": "op",
        "op": "all_to_all",
        "group": [0, 2, 3],
        "bytes": 12,
        "pieces": [4, 8, 0],
        "t": 1.0,
        "where": None,
    }
    (of_0,), (of_2,) = collectives([[call]]), collectives([[], [], [call]])
    assert of_0.pieces == ((2, 8), (3, 0)) and of_0.sent == 8
    assert of_2.pieces == ((0, 4), (3, 0)) and of_2.sent == 4

"""The judge's logic, event by event: no process, no clock."""

from grader.engine.ranks.diagnose import Diagnosis


def op(name, line, shape=(4,), group=(0, 1), detail=None, function="f", **more):
    return {
        "e": "op",
        "op": name,
        "name": "0",
        "group": list(group),
        "shape": list(shape),
        "dtype": "float32",
        "bytes": 16,
        "detail": detail,
        "where": ["x.py", line, function],
        **more,
    }


WAIT, DONE = {"e": "wait"}, {"e": "done"}


def feed(diagnosis, *events):
    for rank, event in events:
        if fault := diagnosis.add(rank, event):
            return fault
    return diagnosis.mismatch() if diagnosis.parted else None


def test_a_call_that_all_made_is_no_deadlock():
    seen = Diagnosis(2)
    assert feed(seen, (0, op("all_reduce", 1)), (0, WAIT), (1, op("all_reduce", 1)), (1, WAIT)) is None
    assert seen.deadlock() is None


def test_a_rank_that_may_still_come_is_no_deadlock():
    seen = Diagnosis(2)
    assert feed(seen, (0, op("all_reduce", 1)), (0, WAIT)) is None
    assert seen.deadlock() is None
    seen.ranks[1].gone = "it has finished"
    assert "rank 1 never comes: it has finished" in seen.deadlock().message


def test_a_cycle_of_three_messages():
    seen = Diagnosis(3)
    for rank in range(3):
        feed(seen, (rank, op("recv", 3, peer=(rank + 1) % 3, tag=0)), (rank, WAIT))
    assert seen.deadlock().cause == "hang"


def test_a_buffered_send_is_no_deadlock():
    seen = Diagnosis(2)
    for rank in range(2):
        feed(
            seen,
            (rank, op("send", 3, peer=1 - rank, tag=0)),
            (rank, WAIT),
            (rank, DONE),
            (rank, op("recv", 4, peer=1 - rank, tag=0)),
            (rank, WAIT),
        )
    assert seen.deadlock() is None


def test_a_rank_asleep_in_a_reducer_counts_as_waiting():
    seen = Diagnosis(2)
    feed(seen, (0, op("all_reduce", 1)))
    seen.ranks[1].gone = "it has finished"
    assert seen.deadlock() is None
    assert seen.deadlock(asleep={0}).where == ["x.py", 1, "f"]


def test_shapes_that_hold_as_many_numbers_agree():
    assert feed(Diagnosis(2), (0, op("all_reduce", 1, (2, 2))), (1, op("all_reduce", 1, (4,)))) is None


def test_two_ranks_at_two_lines_of_one_function_name_the_skipper():
    fault = feed(Diagnosis(2), (0, op("all_reduce", 5)), (1, op("barrier", 6)))
    assert (fault.cause, fault.rank, fault.where[1]) == ("hang", 1, 5)


def test_a_line_that_all_know_is_the_one_that_was_skipped():
    seen = Diagnosis(2)
    for _ in range(2):
        feed(seen, (0, op("all_reduce", 8)), (1, op("all_reduce", 8)))
    fault = feed(seen, (0, op("all_reduce", 8)), (1, op("barrier", 7)))
    assert (fault.rank, fault.where[1], fault.also[0][1]) == (1, 8, 7)


def test_the_odd_one_of_three_is_named_by_the_majority():
    seen = Diagnosis(3)
    seen.add(1, op("reduce", 1, group=(0, 1, 2)))
    seen.add(2, op("all_reduce", 1, group=(0, 1, 2)))
    assert seen.parted and seen.mismatch(final=False) is None
    seen.add(0, op("all_reduce", 1, group=(0, 1, 2)))
    fault = seen.mismatch(final=False)
    assert (fault.cause, fault.rank) == ("mismatch", 1)
    assert "rank 0 all_reduce" in fault.message and "rank 1 reduce" in fault.message


def test_in_two_functions_nobody_is_accused():
    fault = feed(Diagnosis(2), (0, op("all_reduce", 5, function="f")), (1, op("barrier", 90, function="g")))
    assert "one of them skipped" in fault.message and fault.also[0][1] in (5, 90)


OURS = {"where": None, "callers": [], "ours": True}


def test_a_rank_that_is_back_in_the_check_has_returned():
    """Four ranks, a call of ranks 0 and 2 that rank 2 does not make; ranks 1 to 3 are in the check's barrier."""
    seen = Diagnosis(4)
    inner = {"name": "1", "callers": [["x.py", 9, "inner"], ["x.py", 20, "outer"]]}
    feed(seen, (3, op("barrier", 0, group=(0, 1, 2, 3)) | OURS), (3, WAIT))
    feed(seen, (0, op("all_reduce", 5, group=(0, 2)) | inner), (0, WAIT))
    for rank in (1, 2):
        assert seen.deadlock() is None
        feed(seen, (rank, op("barrier", 0, group=(0, 1, 2, 3)) | OURS), (rank, WAIT))
    fault = seen.deadlock()
    assert fault.message.startswith("deadlock: rank 0 waits in all_reduce"), fault.message
    assert fault.message.endswith("by rank 0 in the group of ranks 0 and 2; ranks 1, 2 and 3 have returned from outer")
    assert (fault.where[1], fault.seen) == (5, "ranks 1, 2 and 3 returned from outer")


def test_the_checks_own_call_is_blamed_last():
    seen = Diagnosis(2)
    feed(seen, (0, op("barrier", 0) | OURS), (0, WAIT), (1, op("recv", 4, peer=0, tag=0)), (1, WAIT))
    fault = seen.deadlock()
    assert fault.where[1] == 4 and fault.message.endswith("rank 0 has returned from f"), fault.message


def test_a_rank_that_is_back_in_the_check_skipped_a_call_or_another_made_one_too_many():
    for rank, other in ((0, 1), (1, 0)):
        fault = feed(Diagnosis(2), (rank, op("all_reduce", 5)), (other, op("barrier", 0) | OURS))
        assert "one of them skipped" in fault.message and f"rank {other} has returned from f" in fault.message
        assert (fault.rank, fault.where[1], fault.seen) == (other, 5, "returned from f")
    three = [(rank, op("barrier", 0, group=(0, 1, 2)) | OURS) for rank in (0, 2)]
    fault = feed(Diagnosis(3), *three, (1, op("all_reduce", 5, group=(0, 1, 2))))
    assert (fault.rank, fault.where[1], fault.expected) == (1, 5, "returned from f")
    assert "rank 1 skipped a call that the others make, or makes one that they do not" in fault.message


def test_a_call_of_another_thread_is_at_no_line_of_the_students():
    seen = Diagnosis(2)
    unknown = {"where": None, "callers": [], "ours": False}
    feed(seen, (0, op("all_reduce", 5) | {"name": "1"}), (0, WAIT), (1, op("barrier", 0) | unknown), (1, WAIT))
    assert "rank 1 waits in barrier of shape (4,) float32 at a line inside torch" in seen.deadlock().message


def test_what_another_thread_waits_for_stops_no_rank():
    """Rank 0 saves in a thread, by a group of its own, and is on its way to the call in which rank 1 waits."""
    seen, aside = Diagnosis(2), {"aside": True}
    feed(seen, (0, op("all_gather", 3) | {"name": "1"} | aside), (0, WAIT | aside), (1, op("all_reduce", 8)), (1, WAIT))
    assert seen.deadlock() is None and seen.deadlock(asleep={0}) is None
    feed(seen, (0, op("barrier", 9) | {"name": "2"}), (0, WAIT), (0, {"e": "done"} | aside))
    assert seen.deadlock().message.startswith("deadlock: rank 0 waits in barrier")


def test_groups_are_aligned_apart():
    seen = Diagnosis(2)
    assert feed(seen, (0, {**op("all_reduce", 1), "name": "1"}), (0, op("barrier", 2)), (1, op("barrier", 2))) is None


def test_two_ranks_that_join_as_one():
    fault = feed(
        Diagnosis(2),
        (0, {"e": "joins", "rank": 0, "where": None}),
        (1, {"e": "joins", "rank": 0, "where": ["x.py", 2, "f"]}),
    )
    assert fault.cause == "mismatch" and "both join" in fault.message


def test_a_message_to_itself_is_told_before_gloo_fails():
    fault = feed(Diagnosis(2), (1, op("send", 3, peer=1, tag=0)))
    assert fault.rank == 1 and "rank 1 sends to itself, at x.py:3" in fault.message


def test_a_message_taken_from_anybody_is_over_for_its_sender():
    """Its sender may not have heard so yet, while the receiver waits for the sender's next call."""
    seen = Diagnosis(2)
    at = {"name": "1/0", "tag": 0, "shape": [2], "dtype": "float32", "detail": None, "where": None}
    seen.add(1, {"e": "op", "op": "send", "peer": 0, "id": 0, **at})
    seen.add(1, {"e": "wait", "of": 0})
    seen.add(0, {"e": "op", "op": "recv", "peer": None, "id": 0, **at})
    seen.add(0, {"e": "wait", "of": 0})
    seen.add(0, {"e": "done", "of": 0, "source": 1})
    seen.add(0, {"e": "op", "op": "send", "peer": 1, "id": 1, **at})
    seen.add(0, {"e": "wait", "of": 1})
    assert seen.deadlock() is None


def test_calls_that_are_over_are_not_looked_at_again(monkeypatch):
    """The judge looks for a deadlock at each event, so a long run would take the square of its length."""
    seen, looks = Diagnosis(2), []
    plain = Diagnosis.missing
    monkeypatch.setattr(Diagnosis, "missing", lambda diagnosis, call: looks.append(call) or plain(diagnosis, call))
    for _ in range(100):
        for rank in range(2):
            feed(seen, (rank, op("all_reduce", 1)), (rank, WAIT))
            assert seen.deadlock() is None
    assert len(looks) < 1000
    feed(seen, (0, op("all_reduce", 2)))
    seen.ranks[1].gone = "it has finished"
    assert "ranks" not in seen.deadlock().message and "rank 0 waits in all_reduce" in seen.deadlock().message


def test_a_second_wait_for_a_message_is_told_at_its_line():
    seen = Diagnosis(2)
    begun = op("recv", 3, peer=1, tag=0, id=0)
    again = {"e": "again", "of": 0, "where": ["x.py", 9, "f"]}
    fault = feed(seen, (0, begun), (0, WAIT | {"of": 0}), (0, DONE | {"of": 0}), (0, again))
    assert fault.cause == "hang" and fault.where == again["where"] and "twice for one message: recv" in fault.message
    assert "x.py:3" in fault.message

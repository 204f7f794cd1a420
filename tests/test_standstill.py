"""Runs that stand still: what is certain, what is only told, and what a rank notes survives it."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
import pytest

from grader.engine.jobs import machine
from grader.engine.ranks import standstill
from grader.engine.ranks.standstill import PROOF, STANDSTILL, Standing, ending
from utils.watched.record import LAST, Record, Seen, note_ends, out_folder, read, read_ends

SCRIPT = "train/x.py"
BACKWARD = {"lines": [[SCRIPT, 9, "train_epoch"]], "in": f"graph.py: {standstill.BACKWARD}"}


def call(n, op="all_reduce", line=10, shape=(4,), index=None, name="0", detail="SUM", aside=False, **more):
    index = n if index is None else index
    where = [SCRIPT, line, "train_epoch"]
    stream = f"{name} {op} {more['peer']} {more['tag']}" if "peer" in more else name
    about = {"shape": list(shape), "dtype": "float32", "detail": detail, "where": where, "callers": []}
    return {"n": n, "op": op, "name": name, "index": index, "stream": stream, "aside": aside, **about, **more}


def rank(number, *calls, world=2, waiting=True, of=None, beat=None, gone=None, groups=None):
    who = {"rank": number, "world": world, "pid": 100 + number, "host": "here", "created": 0.0}
    of = (calls[-1]["n"] if calls else -1) if of is None else of
    groups = groups or {"0": list(range(world))}
    beat = beat or {"cpu": 1.0, "lines": [[SCRIPT, 20 + number, "save"]], "in": "save.py: write"}
    count = calls[-1]["n"] + 1 if calls else 0
    return Seen(who, list(calls), count, waiting, of, beat, groups, gone or {})


def looks(*seen, gone=None, seconds=(0, PROOF + 1)):
    """What is said at the last of these moments, if nothing moves."""
    each = Standing()
    for now in seconds:
        found = each.look(list(seen), gone or {}, now)
    return found


def test_calls_that_never_match_are_hopeless():
    found = looks(rank(0, call(0)), rank(1, call(0, "broadcast", line=12, detail="root 0")))
    assert found.hopeless and "rank 0" in found.text and f"{SCRIPT}:10" in found.text and f"{SCRIPT}:12" in found.text


def test_a_collective_that_the_others_skip_is_hopeless():
    found = looks(rank(0, call(0), call(1, shape=(3,), line=30)), rank(1, call(0), call(1, line=10)))
    assert found.hopeless and f"{SCRIPT}:30" in found.text and f"{SCRIPT}:10" in found.text


def test_not_before_it_has_stood_still():
    assert looks(rank(0, call(0)), rank(1, call(0, "barrier")), seconds=(0, PROOF / 2)) is None


def test_not_while_it_moves():
    each = Standing()
    for now in range(100):
        assert each.look([rank(0, call(now)), rank(1, call(now, "barrier"))], {}, 10.0 * now) is None


@pytest.mark.parametrize("how", ["it has finished", "it stopped with ValueError: a bad sample"])
def test_a_rank_that_waits_for_one_that_is_gone_is_hopeless(how):
    found = looks(rank(0, call(0), call(1)), rank(1, call(0), waiting=False), gone={1: how})
    assert found.hopeless and f"rank 1 never comes: {how}" in found.text and f"{SCRIPT}:10" in found.text


def test_one_rank_that_is_gone_ends_nothing_while_another_works():
    ranks = rank(0, call(0), world=3), rank(1, world=3), rank(2, call(0), world=3, waiting=False)
    assert looks(*ranks, gone={1: "it has finished"}) is None


def test_a_rank_that_saves_for_long_is_told_of_once_and_left_alone():
    seen = [rank(0, call(0), waiting=False), rank(1, call(0), call(1))]
    each = Standing()
    found = [each.look(seen, {}, now) for now in range(0, 2 * int(STANDSTILL), 10)]
    (told,) = filter(None, found)
    assert not told.hopeless and found.index(told) == STANDSTILL / 10
    assert f"rank 0 is at {SCRIPT}:20, in save.py: write" in told.text and "rank 1 waits in all_reduce" in told.text


def test_two_groups_in_circles_are_hopeless():
    """Rank 0 waits in one group for rank 1, which waits in another for rank 0."""
    groups = {"a": [0, 1], "b": [0, 1]}
    one = rank(0, call(0, name="a", line=5), groups=groups)
    other = rank(1, call(0, name="b", line=6), groups=groups)
    found = looks(one, other)
    assert found.hopeless and f"{SCRIPT}:5" in found.text and f"{SCRIPT}:6" in found.text


def test_a_slow_network_is_not_hopeless():
    """All ranks are in the same call: its messages may be on their way."""
    assert looks(rank(0, call(0)), rank(1, call(0)), seconds=(0, STANDSTILL - 1)) is None


def test_the_reducer_waits_in_the_backward_pass():
    idle, busy = {"cpu": 1.0, **BACKWARD}, {"cpu": 1.0 + PROOF, **BACKWARD}
    other = rank(1, call(0, "broadcast"))
    waits = rank(0, call(0), waiting=False, beat=idle)
    assert looks(waits, other).hopeless
    each, works = Standing(), rank(0, call(0), waiting=False, beat=busy)
    each.look([waits, other], {}, 0)
    assert each.look([works, other], {}, PROOF + 1) is None


def test_a_call_of_another_thread_is_not_what_the_main_thread_waits_for():
    """Rank 0 saves in the background, which lacks rank 1; it waits for a call that both have made."""
    first = rank(0, call(0), call(1, name="save", index=0, aside=True), of=-1, groups={"0": [0, 1], "save": [0, 1]})
    assert looks(first, rank(1, call(0))) is None


def test_messages_that_cross_are_hopeless():
    def sends(number, peer):
        return rank(number, call(0, "send", peer=peer, tag=0, index=0, shape=(9,)))

    found = looks(sends(0, 1), sends(1, 0))
    assert found.hopeless and "rank 0 waits in send" in found.text


def test_of_long_runs_only_the_last_calls_are_compared():
    """Rank 0 has gone through more calls in another group than are kept."""
    mine = [call(n, name="own") for n in range(100, 100 + LAST)]
    groups = {"0": [0, 1], "own": [0]}
    counts = {"counts": {"0": 7, "own": 93 + LAST}, "cpu": 1.0}
    first = rank(0, *mine[:-1], call(100 + LAST - 1, index=6), groups=groups, beat=counts)
    same = [call(n) for n in range(6)]
    assert looks(first, rank(1, *same, call(6))) is None
    assert looks(first, rank(1, *same, call(6, "barrier"))).hopeless
    assert looks(first, rank(1, *same[:5], gone={"how": ""}), gone={1: "it has finished"}).hopeless


def test_the_end_names_who_was_killed_and_who_waited():
    lost = {"how": "RuntimeError: Connection closed by peer", "time": 1.0, "lines": []}
    seen = [rank(0, call(0), call(1), gone=lost), rank(1, call(0), waiting=False)]
    said = ending(seen, {0: f"it stopped with {lost['how']}", 1: "it was killed"})
    assert said.startswith(f"rank 1 is gone: it was killed, at {SCRIPT}:21") and "rank 0 waited in all_reduce" in said


def test_the_end_names_calls_that_do_not_match_first():
    seen = [rank(0, call(0, shape=(3,), line=30)), rank(1, call(0))]
    assert f"{SCRIPT}:30" in ending(seen, {0: "it ended with SIGABRT"})


def test_no_word_where_nothing_is_known():
    assert ending([rank(0), rank(1)], {}) == ""


# What is noted


NOTES = """
import os, sys
from pathlib import Path
from utils.watched.record import Record
record = Record(Path(sys.argv[1]), 0, 1, created=1.0, life="0/0")
record.put("groups", {"0": [0]})
for number in range(200):
    record.call(number, {"op": "all_reduce", "name": "0", "index": number, "stream": "0"})
    record.state(number + 1, True, number)
os.kill(os.getpid(), 9)
"""


def test_what_was_noted_survives_kill_9(tmp_path):
    assert subprocess.run([sys.executable, "-c", NOTES, tmp_path], check=False).returncode == -9
    (seen,) = read(tmp_path)
    assert (seen.count, seen.waiting, seen.of) == (200, True, 199) and not seen.gone
    assert [each["n"] for each in seen.calls] == list(range(200 - LAST, 200)) and seen.groups == {"0": [0]}
    assert read(tmp_path, since=2.0) == []


def test_what_is_half_written_is_missing(tmp_path):
    record = Record(tmp_path, 0, 1, created=1.0)
    record.put("beat", {"cpu": 1.0})
    record.map[record.map.find(b'"cpu"')] = 0
    (seen,) = read(tmp_path)
    assert seen.beat == {}


def test_what_does_not_fit_leaves_what_there_was(tmp_path):
    record = Record(tmp_path, 0, 1, created=1.0)
    assert record.put("gone", {"how": "x"}) and not record.put("gone", {"how": "y" * 5000})
    (seen,) = read(tmp_path)
    assert seen.gone == {"how": "x"}


def test_ranks_of_two_lives_are_not_compared(tmp_path):
    Record(tmp_path, 0, 2, created=1.0, life="0/1")
    Record(tmp_path, 1, 2, created=1.0, life="0/0")
    assert read(tmp_path) == []
    Record(tmp_path, 1, 2, created=1.0, life="0/1")
    assert [seen.rank for seen in read(tmp_path)] == [0, 1]


def test_launchers_words(tmp_path):
    note_ends(tmp_path, {1: "SIGKILL"})
    assert read_ends(tmp_path) == {}  # nobody watches
    Record(tmp_path, 0, 1, created=1.0)
    note_ends(tmp_path, {1: "SIGKILL"})
    assert read_ends(tmp_path) == {1: "SIGKILL"} and read_ends(tmp_path, since=1e12) == {}


def test_where_a_script_writes():
    assert str(out_folder(["--out", "a", "--out=b"], "c")) == "b" and str(out_folder([], "c")) == "c"


CHILD = """
import os, pathlib, sys, time
part = pathlib.Path(sys.argv[1] + ".part")
part.write_text(str(os.getpid()))
part.rename(sys.argv[1])
time.sleep(600)
"""


def test_what_is_hopeless_is_ended_with_its_children(tmp_path):
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}, sys.argv[1]])"
    child = tmp_path / "child"
    assert machine.call([sys.executable, "-c", parent, str(child)], dict(os.environ), child.is_file) == 1
    with suppress(psutil.NoSuchProcess):
        killed = psutil.Process(int(child.read_text()))
        deadline = time.monotonic() + 30  # the signal is sent; a busy machine takes its time to end it
        while killed.status() != psutil.STATUS_ZOMBIE:  # or nobody has asked for its exit code yet
            assert time.monotonic() < deadline
            time.sleep(0.01)

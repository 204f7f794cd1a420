"""The traces of all ranks as one, the most expensive operations, and what a run is told to look at first."""

import gzip
import json
from pathlib import Path

import pytest

from utils.report import first_look, page, traces
from utils.report.runs import Rank, Run

# Phases of the Trace Event Format that the profiler writes, and the fields that each must have.
FIELDS = {
    "X": {"name", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "args"},
    "s": {"name", "id", "ts", "pid", "tid"},
    "t": {"name", "id", "ts", "pid", "tid"},
    "f": {"name", "id", "ts", "pid", "tid"},
    "i": {"name", "ts", "pid", "tid"},
    "C": {"name", "ts", "pid", "args"},
}


def span(name, ts, dur, cat="cpu_op", tid=7):
    return {"ph": "X", "cat": cat, "name": name, "pid": 4711, "tid": tid, "ts": ts, "dur": dur, "args": {}}


def trace(base, *events):
    about = {"ph": "M", "name": "process_name", "pid": 4711, "tid": 0, "ts": 0.0, "args": {"name": "python"}}
    return {"baseTimeNanoseconds": base, "displayTimeUnit": "ms", "traceEvents": [about, *events]}


@pytest.fixture
def folder(tmp_path):
    """Two ranks with one process number, as on two nodes; the clocks of their traces start 2 ms apart."""
    (tmp_path / "usage").mkdir()
    arrow = {"ph": "s", "id": 1, "pid": 4711, "tid": 7, "ts": 11.0, "cat": "fwdbwd", "name": "fwdbwd"}
    step = [span("optimizer", 90.0, 5.0, "user_annotation"), span("forward", 0.0, 50.0, "user_annotation"), arrow]
    outer = [span("aten::linear", 10.0, 20.0), span("aten::mm", 12.0, 15.0), span("gloo:all_reduce", 10.0, 40.0, tid=8)]
    for rank, base in enumerate((5_000_000, 7_000_000)):
        events = [*step, *outer, *[span("aten::mm", 60.0, 30.0)] * rank]
        with gzip.open(tmp_path / "usage" / f"trace-{rank}.json.gz", "wt") as file:
            json.dump(trace(base, *events), file)
    return tmp_path


def check_format(merged):
    """What the Trace Event Format asks for, and what keeps ranks apart."""
    for event in merged["traceEvents"]:
        assert event["ph"] in FIELDS and FIELDS[event["ph"]] <= event.keys(), event
        assert all(isinstance(event[field], (int, float)) for field in ("ts", "dur") if field in event), event
    names = {e["pid"]: e["args"]["name"] for e in merged["traceEvents"] if e["name"] == "process_name"}
    pids = {event["pid"] for event in merged["traceEvents"]}
    assert names == {pid: f"rank {pid}" for pid in pids}
    arrows = {(e["pid"], e["id"]) for e in merged["traceEvents"] if "id" in e}
    assert len({number for _, number in arrows}) == len(arrows), "an arrow of one rank ends on another"
    return sorted(pids)


def test_the_ranks_traces_become_one(folder):
    path = traces.merge(folder, traces.read(folder))
    with gzip.open(path, "rt") as file:
        merged = json.load(file)
    assert check_format(merged) == [0, 1] and path.name == "trace.json.gz"
    begins = {e["pid"]: e["ts"] for e in merged["traceEvents"] if e["name"] == "forward"}
    assert begins == {0: 0.0, 1: 2000.0}, "the axis is not common to both"


def test_the_most_expensive_operations_without_what_they_call(folder):
    rows = {row["name"]: row for row in traces.most_expensive(traces.read(folder))}
    assert [*rows] == ["gloo:all_reduce", "aten::mm", "aten::linear"], "ranges such as forward are no operations"
    assert rows["aten::linear"]["ms"] == pytest.approx(0.005) and rows["aten::linear"]["calls"] == 1
    assert rows["aten::mm"]["ms"] == pytest.approx(0.030) and rows["aten::mm"]["calls"] == 1.5
    assert rows["aten::mm"]["rank"] == 1 and rows["aten::mm"]["most"] == pytest.approx(0.045)


def test_a_trace_that_was_cut_off_is_left_out(folder):
    path = folder / "usage" / "trace-0.json.gz"
    path.write_bytes(path.read_bytes()[:40])
    assert [*traces.read(folder)] == [1]
    assert "rank 1: aten::mm" in traces.table(folder, "aten::mm") and "rank 0" not in traces.table(folder)
    assert traces.table(folder / "nowhere").startswith("no trace")


def run_of(*ranks, others=0.0):
    """A run whose ranks have these parts in each of ten steps; a rank: data, forward, backward, communication.
    `others`: percent of a processor that other programs take.
    """
    found = []
    for number, (data, forward, backward, waits) in enumerate(ranks):
        step = {"data": data, "forward": forward, "backward": backward + waits, "waiting": 0.0, "optimizer": 0.1}
        shares = {part: 0.0 for part in step} | {"backward": waits / (backward + waits)}
        usage = [{"cpu": 100.0, "cpus": [100.0] * len(ranks) + [others]}]
        found.append(Rank({"rank": number, "node": "n"}, usage, [step] * 10, {"shares": shares, "hidden": 0.0}))
    return Run(Path("out"), [], found)


@pytest.mark.parametrize(
    "ranks, said",
    [
        (((0.0, 1.0, 2.0, 0.5), (0.0, 1.0, 2.0, 0.5)), ""),
        (((0.0, 1.0, 2.0, 9.0), (0.0, 1.1, 2.0, 8.9)), ""),  # small models, busy machines: not alone a sign
        (((0.1, 1.0, 2.0, 2.0), (3.0, 1.0, 2.0, 0.1)), "48% of the step waits for the loader on rank 1"),
        (((0.0, 1.0, 2.0, 5.0), (0.0, 3.0, 5.0, 0.1)), "rank 1 works 2.6 times as long in a step as any other"),
        (((0.0, 1.0, 2.0, 2.0), (0.0, 2.0, 3.0, 0.1)), ""),  # a factor below two may be the machine
        (((3.0, 1.0, 2.0, 0.1),), "48% of the step waits for the loader, or passes between two steps"),
    ],
)
def test_what_to_look_at_first(ranks, said):
    told = first_look.first_look(run_of(*ranks))
    assert told.startswith(said) if said else told == ""


def test_on_a_busy_machine_a_slow_rank_may_be_the_machine():
    ranks = (0.0, 1.0, 2.0, 5.0), (0.0, 3.0, 5.0, 0.1)
    assert first_look.first_look(run_of(*ranks)) and not first_look.first_look(run_of(*ranks, others=100.0))
    run = run_of(*ranks)
    run.ranks[0].usage.clear(), run.ranks[1].usage.clear()  # shorter than a second
    assert first_look.first_look(run) == ""


def test_one_slow_step_is_no_reason():
    run = run_of((0.0, 1.0, 2.0, 0.5), (0.0, 1.0, 2.0, 0.5))
    run.ranks[1].steps[3] = run.ranks[1].steps[3] | {"data": 99.0}
    assert first_look.first_look(run) == ""


def test_the_report_links_the_trace_and_lists_operations(folder):
    lines = [{"kind": "step", "step": step, "loss": 1.0, "tokens_per_s": 1.0, "epoch": 1} for step in (1, 2)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = page.write(folder).read_text("utf-8")
    assert 'href="usage/trace.json.gz"' in html and "aten::linear" in html
    (folder / "usage" / "trace-0.json.gz").unlink(), (folder / "usage" / "trace-1.json.gz").unlink()
    assert "most expensive" not in page.write(folder).read_text("utf-8")

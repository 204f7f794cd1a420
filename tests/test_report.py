"""What a run notes of itself, and the page that is made of it."""

import errno
import gzip
import json
import math
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from accelerators import pretend
from course_copy import Course
from grader.engine.commands.cli import app
from grader.engine.lesson import lessons
from utils.checkpoints import load_model
from utils.model import TransformerLM
from utils.report import page, pictures, power, recorder, results, runs, work
from utils.products import bfloat16_way

SHORT = "--data random --epochs 1 --max-steps 16 --batch-size 4 --seq-len 16 --dim 16 --heads 2 --log-every 2".split()


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


# Spans of time


def test_spans():
    assert recorder.union([(4, 5), (0, 1), (0.5, 2), (2, 3)]) == [(0, 3), (4, 5)]
    assert recorder.within([(0, 3), (4, 6)], [(1, 2), (2.5, 5)]) == [(1, 2), (2.5, 3), (4, 5)]
    assert recorder.minus([(0, 3), (4, 6)], [(1, 2), (2.5, 5)]) == [(0, 1), (2, 2.5), (5, 6)]
    assert recorder.minus([(0, 1)], []) == [(0, 1)] and recorder.minus([], [(0, 1)]) == []


# The parts of a step


class Clock:
    """Time that passes where it is looked at, a little, and where somebody sleeps: the same on any machine."""

    now = 0.0

    def time(self):
        self.now += 0.001
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def train(parts, steps, forwards=1, evaluate=False, closed=False, clock=time):
    """A step with a slow forward pass, its other parts quick; `closed`: the optimizer calls the rest of it."""

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(2, 2)

        def forward(self, x):
            clock.sleep(0.1)
            return self.inner(x)

    model = Slow()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):

        def closure():
            for _ in range(forwards):
                model(torch.ones(1, 2)).sum().backward()

        if closed:
            optimizer.step(closure=closure)
        else:
            closure()
            optimizer.step()
        if evaluate:
            with torch.no_grad():
                model.eval()(torch.ones(1, 2))
            model.train()
    parts.close()


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("forwards", [1, 3])
def test_the_parts_of_a_step(monkeypatch, forwards, closed):
    wrote, clock = [], Clock()
    monkeypatch.setattr(recorder, "time", clock)
    steps = recorder.WARM + recorder.TIMED + recorder.PROFILED
    train(
        recorder.Parts(lambda kind, **values: wrote.append((kind, values))), steps, forwards, closed=closed, clock=clock
    )
    kinds = dict(wrote)
    steps = kinds["parts"]["steps"]
    assert len(steps) == recorder.TIMED and all(set(step) == set(recorder.PARTS) for step in steps)
    for step in steps:
        assert 0.1 * forwards < step["forward"] < 0.1 * forwards + 0.05  # the borders are where forward begins and ends
        assert all(0 < step[part] < 0.05 for part in recorder.PARTS if part not in ("forward", "waiting"))
        assert step["waiting"] == 0  # for other stages, which only a pipeline has
    assert set(kinds["communication"]["shares"].values()) == {0.0}  # nobody to speak to


def test_a_pipeline_waits_where_it_does_not_compute(monkeypatch):
    """A rank's stage, and the loss, are timed themselves; what lies between is waiting, not backward."""
    from torch.distributed.pipelining import schedules, stage

    clock, wrote = Clock(), []
    layer = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    work = {"forward_one_chunk": 0.2, "backward_one_chunk": 0.4}
    for name, seconds in work.items():
        monkeypatch.setattr(stage._PipelineStageBase, name, lambda self, seconds=seconds: clock.sleep(seconds))
    monkeypatch.setattr(schedules._PipelineSchedule, "_maybe_compute_loss", lambda self: clock.sleep(0.1))
    monkeypatch.setattr(recorder, "time", clock)
    before = stage._PipelineStageBase.forward_one_chunk
    parts = recorder.Parts(lambda kind, **values: wrote.append((kind, values)))
    for _ in range(recorder.WARM + recorder.TIMED + recorder.PROFILED):
        for _ in range(2):
            clock.sleep(1)  # for the stage before
            stage._PipelineStageBase.forward_one_chunk(None)
            schedules._PipelineSchedule._maybe_compute_loss(None)
            stage._PipelineStageBase.backward_one_chunk(None)
        optimizer.step()
    parts.close()
    assert stage._PipelineStageBase.forward_one_chunk is before
    steps = dict(wrote)["parts"]["steps"]
    assert len(steps) == recorder.TIMED
    for step in steps:
        found = {part: round(seconds, 1) for part, seconds in step.items()}
        assert found == {"data": 1.0, "forward": 0.6, "backward": 0.8, "waiting": 1.0, "optimizer": 0.0}


def test_an_evaluation_is_no_part_of_a_step():
    wrote = []
    train(recorder.Parts(lambda kind, **values: wrote.append((kind, values))), 6, evaluate=True)
    assert wrote == []  # the border before each step is not known


def test_no_hook_is_left():
    from torch.nn.modules import module
    from torch.optim import optimizer

    def hooks():
        return [
            len(found)
            for found in (
                module._global_forward_hooks,
                module._global_forward_pre_hooks,
                optimizer._global_optimizer_pre_hooks,
                optimizer._global_optimizer_post_hooks,
            )
        ]

    before = hooks()
    parts = recorder.Parts(lambda *_, **__: None)
    assert hooks() == [count + 1 for count in before]
    train(parts, recorder.WARM + recorder.TIMED + recorder.PROFILED)
    assert hooks() == before


def test_the_trace_is_one_that_viewers_open(tmp_path):
    """Held against the trace event format: complete events have a name, a start, a length, a process and a thread."""
    for steps, traced in (
        (recorder.WARM + recorder.TIMED + recorder.PROFILED, 3),
        (recorder.WARM + recorder.TIMED + 2, 2),
    ):
        path = tmp_path / f"{steps}.json.gz"
        train(recorder.Parts(lambda *_, **__: None, path), steps)
        with gzip.open(path, "rt", encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        complete = [event for event in events if event["ph"] == "X"]
        for event in complete:
            assert event["name"] and event["ts"] >= 0 and event["dur"] >= 0
            assert {"pid", "tid"} <= event.keys()
        for part in set(recorder.PARTS) - {"waiting"}:
            ranges = [event for event in complete if event["name"] == part and event["cat"] == "user_annotation"]
            # Where the run ends early, a step that never comes has begun to wait for its data.
            assert traced <= len(ranges) <= traced + (part == "data"), part
        forward, work = (
            next(event for event in complete if event["name"] == name) for name in ("forward", "aten::linear")
        )
        assert forward["ts"] <= work["ts"] and work["ts"] + work["dur"] <= forward["ts"] + forward["dur"]
        for begin in (event for event in events if event["ph"] == "s"):  # an arrow that starts has an end
            assert any(event["ph"] == "f" and event["id"] == begin["id"] for event in events)


def test_messages_without_work_are_told_from_hidden_ones():
    class Event:
        def __init__(self, name, begin, end):
            self.name, self.device_type = name, None
            self.time_range = type("Range", (), {"start": begin * 1e6, "end": end * 1e6})

    parts = recorder.Parts(lambda *_, **__: None)
    parts.close()
    parts.clock = 100.0  # seconds since 1970, when the profiler's clock says 1
    parts.borders = [("forward", 101.0, 102.0), ("backward", 102.0, 106.0), ("optimizer", 106.0, 107.0)]
    events = [
        Event("clock", 1, 1),
        Event("aten::mm", 3, 5),
        Event("gloo:all_reduce", 4, 6),
        Event("gloo:all_reduce", 5.5, 6.5),
    ]
    found = parts.communication(events)
    assert found["shares"] == {**dict.fromkeys(recorder.PARTS, 0.0), "backward": pytest.approx(1.5 / 4)}
    assert found["hidden"] == pytest.approx(1 / 2.5)


def test_a_gpu_is_asked_by_its_own_name(monkeypatch):
    """CUDA_VISIBLE_DEVICES may call another GPU 0 than NVML does."""
    asked = []

    class Error(Exception):
        pass

    def no_power(handle):
        raise Error

    nvml = SimpleNamespace(
        NVMLError=Error,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda name: asked.append(name) or "it",
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=87),
        nvmlDeviceGetPowerUsage=lambda handle: 312_500,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=5),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    pretend("cuda", 1, monkeypatch.setattr)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="12-34"))
    gpu = recorder._gpu()
    assert asked == ["GPU-12-34"] and gpu.sample() == {"gpu": 87, "gpu_memory": 5, "watts": 312.5}
    nvml.nvmlDeviceGetPowerUsage = no_power
    assert gpu.sample() == {"gpu": 87, "gpu_memory": 5}


@pytest.mark.long
def test_a_run_in_bfloat16_says_how_it_multiplied(run):
    found = runs.read(run)
    assert "bfloat16" not in page.facts(found)
    found.ranks[0].start["command"] += ["--dtype", "bfloat16"]
    assert page.facts(found)["bfloat16"] == bfloat16_way("cuda" if torch.cuda.is_available() else "cpu")


def test_without_nvml_the_rest_is_recorded(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "pynvml", None)  # as if it were not installed
    pretend("cuda", 1, monkeypatch.setattr)
    assert recorder._gpu() is None and "the GPU is not recorded" in capsys.readouterr().err


# Runs


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The folder of a recorded run on two ranks."""
    out = tmp_path_factory.mktemp("run") / "two"
    script = lessons.COURSE / "solutions" / "train" / "ddp_training.py"
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        str(script),
        *SHORT,
        "--record",
    ]
    done = subprocess.run([*command, "--out", str(out)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert "profiler" not in done.stderr  # the profiler's own words are for nobody
    return out


def test_what_a_run_notes(run):
    names = [name for rank in range(2) for name in (f"rank-{rank}.jsonl", f"trace-{rank}.json.gz")]
    assert sorted(path.name for path in (run / "usage").iterdir()) == sorted(names)
    for rank in range(2):
        found = lines(run / "usage" / f"rank-{rank}.jsonl")
        kinds = [line["kind"] for line in found]
        assert kinds[0] == "start" and kinds[-1] == "end" and {"parts", "communication"} <= set(kinds)
        assert found[0]["world"] == 2 and found[0]["rank"] == rank
        for line in found:
            if line["kind"] == "usage":
                assert ("cpus" in line) == (rank == 0)  # the node's CPUs are counted once
                assert line["memory"] <= found[-1]["peak_memory"] * 1.01  # pages are counted in batches
        shares = next(line for line in found if line["kind"] == "communication")["shares"]
        assert shares["backward"] > 0 and max(shares.values()) <= 1


def test_without_record_nothing_is_noted(tmp_path):
    from utils.metrics import Metrics

    with Metrics(tmp_path) as metrics:
        metrics.log("step", 1, loss=1.0, tokens_per_s=1.0)
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "run.json", "metrics.jsonl"}


def test_the_page(run):
    html = page.write(run).read_text()
    assert "ddp_training on 2 ranks" in html and "training loss" in html
    facts = page.facts(runs.read(run))
    config = load_model(run / "model-final.pt")
    assert facts["parameters"] == f"{sum(weight.numel() for weight in config.parameters()):,}"
    assert re.match(r"\d+\.\d% of [\d,]+ GFLOP/s, which", facts["MFU"]) or torch.cuda.is_available()
    assert facts["power"]  # or that nobody tells it
    assert "only" in facts["peak device memory of a rank"] or torch.cuda.is_available()
    for name in ("loss.png", "tokens.png", "step.png"):
        assert (run / name).read_bytes().startswith(b"\x89PNG")
    # Everything is in the page.
    assert set(re.findall(r'src="([^,]{0,30})', html)) == {"data:image/png;base64"} and "://" not in re.sub(
        r"base64,[^\"]*", "", html
    )
    found = runs.read(run)
    for rank in found.ranks:
        whole = sum(sum(step.values()) for step in rank.steps) / len(rank.steps)
        assert set(rank.parts) == set(runs.PARTS) and all(part >= 0 for part in rank.parts.values())
        assert sum(rank.parts.values()) < 3 * whole and rank.parts["communication"] > 0


def test_a_share_of_more_than_all_is_explained():
    start = {"product_flops": 30e9, "device": "cpu"}
    ranks = SimpleNamespace(ranks=[SimpleNamespace(start=start)] * 2)
    assert work.share_of_peak(ranks, 30e9) == "50.0% of 60 GFLOP/s, which the ranks' matrix products reached in float32"
    assert work.share_of_peak(ranks, 90e9).startswith("150.0%") and "busier" in work.share_of_peak(ranks, 90e9)


def test_a_run_too_short_to_measure_communication_says_so(run):
    found = runs.read(run)
    assert page.unmeasured(found) == ""
    for rank in found.ranks:
        rank.communication = None
    assert "this run was shorter" in page.unmeasured(found)
    del found.ranks[1:]  # one rank sends nothing
    assert page.unmeasured(found) == ""


def test_a_page_of_a_run_that_was_not_recorded(tmp_path):
    record = [{"kind": "step", "step": 10, "epoch": 1, "loss": 8.0, "tokens_per_s": 100.0}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, record)) + '\n{"kind": "st')  # it was killed
    html = page.write(tmp_path).read_text()
    assert "was not recorded" in html and "--record" in html and not (tmp_path / "step.png").exists()


def test_tokens_a_second_and_the_time_of_a_step_are_one_figure():
    """Each line of the log has the speed since the line before, or since the epoch began: not a median of these."""
    seconds = {10: 40.0, 20: 10.0, 30: 80.0, 35: 5.0, 40: 20.0}  # of the steps up to this one, from the line before
    before, lines = 0, []
    for step, took in seconds.items():
        lines.append({"kind": "step", "step": step, "loss": 1.0, "tokens_per_s": (step - before) * 24 * 8 / took})
        before = step
    lines.insert(4, {"kind": "epoch", "step": 35, "epoch": 1, "loss": 1.0, "validation_loss": 1.0})
    start = {"command": ["x.py", "--batch-size", "24"], "model": {"max_len": 8}, "rank": 0, "node": "n"}
    run = runs.Run(None, lines, [runs.Rank(start)])
    assert run.tokens_per_s == pytest.approx(30 * 24 * 8 / 115) and run.step_seconds == pytest.approx(115 / 30)


def test_what_a_plan_predicted_stands_in_the_report(tmp_path):
    """hybrid_training --compare leaves it in the run's folder."""
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"kind": "step", "step": 1, "loss": 2.0, "tokens_per_s": 9.0}))
    (tmp_path / "compare.json").write_text(json.dumps([["a step, ms", 177.6, 458.2]]))
    assert page.facts(runs.read(tmp_path))["a step, ms of a rank"] == "178 predicted, 458 measured"


def test_a_run_that_was_refused_for_memory_has_its_report(tmp_path):
    """Also one that has not made a step; and the table of results has its line."""
    script = lessons.COURSE / "solutions" / "train" / "ddp_training.py"
    limit = ["--device", "cpu", "--device-memory", "100kB", "--record", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, str(script), *SHORT, *limit], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2
    found = runs.read(tmp_path / "run")
    facts = page.facts(found)
    assert f"error: {facts['it ended early']}\n" == done.stderr and "asks for" in done.stderr
    assert facts["steps"] == "0" and facts["peak device memory of a rank"].endswith("MB")
    assert "it ended early" in page.write(tmp_path / "run").read_text()
    results.add(tmp_path / "results.md", [found])
    line = (tmp_path / "results.md").read_text().splitlines()[-1]
    assert "| refused |" in line and "out of memory" in line


def test_parameters_and_products_are_the_models():
    sizes = dict(vocab_size=97, dim=24, n_layers=3, max_len=16)
    weights = dict(TransformerLM(**sizes).named_parameters())
    products = sum(w.numel() for name, w in weights.items() if w.dim() == 2 and "embedding" not in name)
    assert work.per_token(sizes) == (sum(w.numel() for w in weights.values()), 6 * products + 12 * 3 * 24 * 16)


def test_every_number_of_a_list_has_a_curve_of_its_own():
    from utils.metrics import flat

    found = dict(flat("step", {"loss": 2.5, "load": [[7, 1], [4, 4]]}))
    assert found == {"step/loss": 2.5, "step/load/0/0": 7, "step/load/0/1": 1, "step/load/1/0": 4, "step/load/1/1": 4}


def test_of_a_mixture_all_experts_are_parameters_and_few_compute_a_token():
    sizes = dict(vocab_size=97, dim=24, n_layers=3, max_len=16)
    (plain, flops), experts = work.per_token(sizes), sizes | {"n_experts": 5, "top_k": 2}
    mlp, router = 3 * 8 * 24**2, 3 * 5 * 24
    assert work.per_token(experts) == (plain + 4 * mlp + router, flops + 6 * (4 * mlp + router))
    assert work.per_token(experts, 2) == (plain + mlp + router, flops + 6 * (mlp + router))


def test_a_gpu_s_data_sheet_is_found_by_its_name():
    """As torch calls them."""
    assert work.data_sheet("NVIDIA A100-SXM4-40GB") == "a100-40" and work.data_sheet("NVIDIA H100 PCIe") == "h100-pcie"
    assert work.data_sheet("NVIDIA H100 80GB HBM3") == "h100" and work.data_sheet("NVIDIA GH200 480GB") == "gh200"
    assert work.data_sheet("NVIDIA H200") == "h200" and work.data_sheet("Tesla K80") is None


def test_the_board_tells_the_processors_power(tmp_path, monkeypatch):
    """Linux's counters of energy; one begins anew. What is a part of a package is in the package's."""
    for name, limit in (("intel-rapl:0", 10_000_000), ("intel-rapl:1", 10_000_000), ("intel-rapl:0:0", 10_000_000)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "energy_uj").write_text("9000000\n")
        (tmp_path / name / "max_energy_range_uj").write_text(f"{limit}\n")
    monkeypatch.setattr(power, "time", clock := SimpleNamespace(monotonic=lambda: clock.now, now=1.0))
    processors = power.Processors(tmp_path)
    clock.now = 3.0
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("9500000")
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("500000")
    assert processors.sample() == {"cpu_watts": pytest.approx(1.0)}
    assert power.Processors(tmp_path / "none").sample() == {}


def test_text_in_a_page_is_only_text(run, tmp_path):
    (tmp_path / "usage").mkdir()
    (tmp_path / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text())
    start = lines(run / "usage" / "rank-0.jsonl")[0] | {"node": "<script>alert(1)</script>"}
    (tmp_path / "usage" / "rank-0.jsonl").write_text(json.dumps(start) + "\n")
    assert "<script" not in page.write(tmp_path).read_text()


def test_a_gpu_has_its_row(run, tmp_path):
    """As NVML would tell it."""
    (tmp_path / "usage").mkdir()
    (tmp_path / "metrics.jsonl").write_text((run / "metrics.jsonl").read_text())
    for rank in range(2):
        start = lines(run / "usage" / f"rank-{rank}.jsonl")[0] | {"time": 100.0, "node": f"n{rank}"}
        usage = [
            {
                "kind": "usage",
                "time": 100.0 + i,
                "cpu": 50.0,
                "memory": 2**30,
                "gpu": 90 - rank,
                "gpu_memory": 2**31,
                "device_memory": 2**31 - rank,
                "watts": 300.0,
            }
            for i in range(4)
            if i != 2
        ]
        (tmp_path / "usage" / f"rank-{rank}.jsonl").write_text("\n".join(json.dumps(line) for line in [start, *usage]))
    found = runs.read(tmp_path)
    rows = pictures.usage_rows(found, "GPU")
    assert list(rows) == ["n0: mean", "n0: GPU of rank 0", "n1: mean", "n1: GPU of rank 1"]
    assert rows["n1: GPU of rank 1"][:2] == [89, 89] and math.isnan(rows["n1: mean"][2]) and rows["n1: mean"][3] == 89
    page.write(tmp_path)
    assert (tmp_path / "power.png").exists() and (tmp_path / "usage.png").exists()
    assert found.ranks[0].peak == 2**30 and found.ranks[1].device_memory == 2**31 - 1
    assert page.facts(found)["peak device memory of a rank"] == "2,147.5 MB"
    assert page.facts(found)["power"] == "600 W of all GPUs"


# The commands


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("report") / "course")


@pytest.mark.long
def test_run_and_report(course, monkeypatch):
    course.solve("ddp_training", tuple(range(1, 14)))
    done = course.run("run", "ddp_training", "--nproc", "2,1", "--", *SHORT)
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node=2" in done.stdout and "runs/ddp_training/report.html" in done.stdout
    folder = course.folder / "runs" / "ddp_training"
    assert (folder / "nproc-1" / "report.html").exists() and (folder / "nproc-2" / "report.html").exists()
    page = (folder / "report.html").read_text()
    assert "2 processes" in page and "efficiency" in page and "nproc-2/report.html" in page
    one, two = runs.speed_rows({n: runs.read(folder / f"nproc-{n}") for n in (1, 2)})
    assert one["speed_up"] == 1 and one["difference"] == 0
    # The parallel run is the serial run.
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2) and two["difference"] < 1e-4
    assert "strong scaling" in page and "losses differ" in page
    monkeypatch.setattr(lessons, "COURSE", course.folder)
    monkeypatch.chdir(course.folder)
    for what in ("ddp_training", "runs/ddp_training/nproc-1"):
        done = CliRunner().invoke(app, ["report", what])
        assert done.exit_code == 0 and f"{what.removeprefix('runs/')}/report.html" in done.output, done.output


@pytest.mark.long
def test_weak_scaling_and_the_table_of_results(course):
    course.solve("ddp_training", tuple(range(1, 14)))
    table = course.folder / "runs" / "results.md"
    table.unlink(missing_ok=True)
    weak = [word.replace("--batch-size", "--batch-size-per-rank") for word in SHORT]
    assert course.run("run", "ddp_training", "--nproc", "1,2", "--", *weak).returncode == 0
    page = (course.folder / "runs" / "ddp_training" / "report.html").read_text()
    assert "weak scaling" in page and "4 a rank" in page and "losses differ" not in page
    tokens = [runs.read(course.folder / "runs" / "ddp_training" / f"nproc-{n}").of("step")[-1] for n in (1, 2)]
    assert tokens[0]["step"] == tokens[1]["step"] == 16
    table.write_text(filled := table.read_text().replace("| weak |", "| weak, as I said |"))
    done = course.run("run", "ddp_training", "--nproc", "1", "--", *SHORT)
    assert done.returncode == 0 and "runs/results.md" in done.stdout
    *before, last = table.read_text().splitlines(keepends=True)
    assert "".join(before) == filled and len(before[-1].split("|")) == len(last.split("|"))
    assert "| 4 a rank | weak, as I said |" in before[-2] and "| 4 | – |" in last


@pytest.mark.parametrize(
    "args, words",
    [
        (["report", "nowhere"], "no such folder"),
        (["report", "utils"], "there is no run in"),
        (["run", "ddp_training", "--nproc", "1,x"], "--nproc 1,x"),
    ],
)
def test_mistakes(course, args, words):
    done = course.run(*args)
    assert done.returncode == 2 and words in " ".join(done.stderr.split()) and "Traceback" not in done.stderr


def test_a_run_that_fails_has_no_report(course, tmp_path):
    done = course.run("run", "ddp_training", "--nproc", "2", "--", "--epochs", "none", cwd=tmp_path)
    assert done.returncode == 2 and "argument --epochs" in " ".join(done.stderr.split())
    assert "torchrun --standalone --local-addr=127.0.0.1 --nproc-per-node=2" in done.stdout
    assert "report.html" not in done.stdout
    assert "Traceback" not in done.stderr and not (tmp_path / "runs").exists()


def test_a_report_follows_no_link_and_names_what_is_no_record(tmp_path):
    """What a folder from somebody else may hold: links in place of what is written, lines without their keys."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    folder = tmp_path / "run"
    folder.mkdir()
    line = {"kind": "step", "step": 1, "loss": 2.0, "tokens_per_s": 3.0}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    for name in ("report.html", "loss.png"):
        (folder / name).symlink_to(kept)
    page.write(folder)
    assert kept.read_text() == "mine" and not (folder / "report.html").is_symlink()
    for broken in ({"kind": "step"}, {"step": 1}, [1], {**line, "loss": "x"}):
        (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n" + json.dumps(broken) + "\n")
        with pytest.raises(ValueError):
            page.write(folder)


def test_a_picture_is_whole_or_not_there(tmp_path, monkeypatch):
    """A full disk: what was there before is gone, and no cut file stands in its place."""

    def half(figure, path, **_):
        path.write_bytes(b"\x89PNG")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pictures.Figure, "savefig", half)
    with pytest.raises(OSError, match="No space"):
        page.save(lambda _: pictures.one_chart()[0], None, tmp_path / "loss.png")
    assert list(tmp_path.iterdir()) == []

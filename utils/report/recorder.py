"""Records what a run uses, for `./workbook report`: one file of JSON lines per rank.

Once a second, a thread records the memory and processor time of its rank, and its GPU; the first rank of a node adds
every CPU of that node, and the processors' power if it can be read. The time of a step is taken apart in a few steps
only: in ten with a clock at the boundaries of their parts, then in three with the profiler, which shows when only
communication was in progress. After these, no hook is left.

The profiler's events are also written to `usage/trace-R.json.gz`, in Chrome's trace event format, which
https://ui.perfetto.dev opens (it runs in the browser and sends nothing; a copy of it runs offline). The parts of the
step are ranges in it and, on a GPU, NVTX ranges for Nsight Systems.
"""

import gc
import json
import os
import resource
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from utils import devices
from utils.device_memory import most_held
from utils.model import TransformerLM
from utils.products import bfloat16_way
from utils.report.power import Processors
from utils.run_folder import Taken, locked, who_has

PERIOD = 1.0  # seconds between samples
# Steps: the first ones warm up: they make buckets and allocate memory.
WARM, TIMED, PROFILED = 2, 10, 3
PARTS = ("data", "forward", "backward", "waiting", "optimizer")
# What a pipeline computes for a micro-batch: methods of a stage and of its schedule, and the part of a step for each.
CHUNKS = {
    "stage._PipelineStageBase": {
        "forward_one_chunk": "forward",
        "backward_one_chunk": "backward",
        "backward_weight_one_chunk": "backward",
    },
    "schedules._PipelineSchedule": {"_maybe_compute_loss": "forward"},
}
Spans = list[tuple[float, float]]  # begin and end


class Recorder:
    """Write `folder/usage/rank-R.jsonl` while active; `folder` is the run's.

    Raises:
        Taken: a rank of another run writes there.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        # A script that does not know its rank yet assumes rank 0; its launcher knows better.
        self.rank, self.local_rank = int(os.environ.get("RANK", rank)), int(os.environ.get("LOCAL_RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        (folder / "usage").mkdir(parents=True, exist_ok=True)
        if self.rank == 0:  # files of an earlier run with more ranks
            for old in (folder / "usage").glob("*-*.json*"):
                if int(old.name.split(".")[0].split("-")[1]) >= self.world:
                    old.unlink()
        self.file = (folder / "usage" / f"rank-{self.rank}.jsonl").open("a", encoding="utf-8")
        if not locked(self.file):
            raise Taken(f"{who_has(folder)} writes into it")
        self.file.truncate(0)
        self.trace = folder / "usage" / f"trace-{self.rank}.json.gz"
        self.trace.unlink(missing_ok=True)
        self.lock = threading.Lock()  # the thread writes, and the hooks do, too
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.sample, daemon=True)
        self.gpu = _gpu()
        self.processors = Processors() if self.local_rank == 0 else None
        self.device_type = devices.accelerator() or "cpu"

    def __enter__(self) -> "Recorder":
        on_gpu = self.device_type != "cpu"
        device = torch.get_device_module(self.device_type).get_device_name() if on_gpu else "cpu"
        self.write(
            "start",
            rank=self.rank,
            local_rank=self.local_rank,
            world=self.world,
            node=os.environ.get("SLURMD_NODENAME", socket.gethostname()),
            device=device,
            threads=torch.get_num_threads(),
            torch=torch.__version__,
            bfloat16=bfloat16_way(self.device_type),
            command=sys.argv,
            job=_job(),
            model=_model(),
            product_flops=_product_flops() if self.device_type == "cpu" else None,
        )
        self.parts = Parts(self.write, self.trace)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.over.set()
        self.thread.join()
        self.parts.close()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self.write("end", peak_memory=peak, device_memory=most_held(self.device_type))
        with suppress(OSError):
            self.file.close()

    def write(self, kind: str, **values: Any) -> None:
        """Write one line; the units are bytes, seconds since 1970 and percent of one processor."""
        with self.lock, suppress(OSError):  # a full disk: metrics.jsonl reports it
            print(json.dumps({"kind": kind, "time": time.time(), **values}), file=self.file, flush=True)

    def sample(self) -> None:
        process = psutil.Process()
        process.cpu_percent(), psutil.cpu_percent(percpu=True)  # percent since the last call: the first has none
        while not self.over.wait(PERIOD - time.time() % PERIOD):  # on the full second, like the other ranks
            values: dict[str, Any] = {"cpu": process.cpu_percent(), "memory": process.memory_info().rss}
            if self.local_rank == 0:
                values |= {"cpus": psutil.cpu_percent(percpu=True), "node_memory": psutil.virtual_memory().used}
                values |= self.processors.sample()
            if self.gpu:
                values |= self.gpu.sample()
            if (counted := most_held(self.device_type)) is not None:
                values["device_memory"] = counted
            self.write("usage", **values)


class Parts:
    """Measures where the time of a step goes, with torch's hooks on every module and optimizer."""

    def __init__(self, write: Any, trace: Path | None = None) -> None:
        self.write, self.trace = write, trace
        self.on_gpu = bool(devices.accelerator())
        self.nvtx = torch.cuda.nvtx if devices.accelerator() == "cuda" else None  # ranges for Nsight Systems
        self.depth = 0  # number of modules whose forward is running
        self.chunks = 0  # of a pipeline's stages, run in this step
        self.step = 0  # of finished steps
        self.last: float | None = None  # the end of the last part, None if unknown
        self.now = dict.fromkeys(PARTS, 0.0)  # seconds of the current step
        self.steps: list[dict[str, float]] = []
        self.profile: torch.profiler.profile | None = None
        self.borders: list[tuple[str, float, float]] = []  # parts recorded by the profiler
        self.range: torch.profiler.record_function | None = None  # the current part, for the trace
        self.hooks = [
            nn.modules.module.register_module_forward_pre_hook(self.before_forward),
            nn.modules.module.register_module_forward_hook(self.after_forward, always_call=True),
            register_optimizer_step_pre_hook(self.before_step),
            register_optimizer_step_post_hook(self.after_step),
        ]
        self.plain: list[tuple[type, str, Any]] = []
        self.time_pipelines()

    def close(self) -> None:
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        for owner, name, method in self.plain:
            setattr(owner, name, method)
        self.plain = []
        self.enter(None)
        if self.profile:  # the run was shorter
            self.profile.stop()
            self.save_trace()
            self.profile = None
        if self.steps:
            self.write("parts", steps=self.steps)
            self.steps = []

    def time_pipelines(self) -> None:
        """The ranks of a pipeline take turns: there, the computations themselves are timed, and the time between them
        is waiting.
        """
        for where, methods in CHUNKS.items():
            module, name = where.split(".")
            if (module := sys.modules.get(f"torch.distributed.pipelining.{module}")) is None:
                continue  # otherwise there is no pipeline
            owner = getattr(module, name)
            for method, part in methods.items():
                self.plain.append((owner, method, getattr(owner, method)))
                setattr(owner, method, self.timed(getattr(owner, method), part))

    def timed(self, method: Any, part: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():  # an evaluation does not belong to a step
                self.last = None
                return method(*args, **kwargs)
            self.mark("waiting" if self.chunks else "data")
            self.enter(part)
            self.chunks += 1
            try:
                return method(*args, **kwargs)
            finally:
                self.mark(part)
                self.enter("waiting")

        return call

    def skip(self) -> None:
        """The time between two steps, such as writing the log, belongs to neither."""
        if self.last is not None:
            self.last = time.time()

    def before_forward(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():  # --compile: only the outermost module is called by Python
            return
        if self.depth == 0 and not (module.training and torch.is_grad_enabled()):
            self.last = None  # an evaluation does not belong to a step
        if self.depth == 0 and not self.chunks:
            # Several forward passes in a step, as with microbatches: the time between them is backward.
            self.mark("backward" if self.now["forward"] else "data")
            self.enter("forward")
        self.depth += 1

    def after_forward(self, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self.depth -= 1
        if self.depth == 0 and not self.chunks:
            self.mark("forward")
            self.enter("backward" if torch.is_grad_enabled() else None)

    def enter(self, part: str | None) -> None:
        """Start `part` in the trace, and end the previous one."""
        if self.range is not None:
            self.range.__exit__(None, None, None)
            if self.nvtx:
                self.nvtx.range_pop()
        self.range = None
        if part is not None:
            self.range = torch.profiler.record_function(part)
            self.range.__enter__()
            if self.nvtx:
                self.nvtx.range_push(part)

    def mark(self, part: str) -> None:
        """Ends `part`."""
        if self.on_gpu:
            torch.accelerator.synchronize()  # a GPU executes later than the call
        now = time.time()
        if self.last is not None:
            self.now[part] += now - self.last
            self.borders.append((part, self.last, now))
        if self.last is not None or part == "optimizer":
            self.last = now

    def before_step(self, _: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        if not callable(closure := kwargs.get("closure")):
            self.mark("waiting" if self.chunks else "backward")
            self.enter("optimizer")
            return None

        def closed() -> Any:  # in Lightning, forward and backward are called in the optimizer's step
            loss = closure()
            self.mark("backward")
            self.enter("optimizer")
            return loss

        return args, {**kwargs, "closure": closed}

    def after_step(self, *_: Any) -> None:
        whole = self.last is not None
        self.mark("optimizer")
        self.enter(None)
        if whole and WARM <= self.step < WARM + TIMED:
            self.steps.append(self.now)
        self.now, self.chunks = dict.fromkeys(PARTS, 0.0), 0
        self.step += 1
        if self.step == WARM + TIMED:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # otherwise each rank prints the profiler's start and end
            self.profile = torch.profiler.profile()
            self.profile.start()
            with torch.profiler.record_function("clock"):
                self.clock = time.time()
            self.borders = []
            self.last = time.time()
            self.enter("data")
        elif self.step == WARM + TIMED + PROFILED and self.profile:
            self.profile.stop()
            self.write("communication", **self.communication(self.profile.events()))
            self.save_trace()
            self.profile = None
            self.close()
        elif self.profile:
            self.enter("data")

    def save_trace(self) -> None:
        if self.trace is not None:
            self.profile.export_chrome_trace(str(self.trace))

    def communication(self, events: Any) -> dict[str, Any]:
        """For each part, the fraction of its time in which a message was in flight and nothing was computed; and the
        fraction of communication that was hidden by work.
        """
        clock = next(e for e in events if e.name == "clock").time_range.start
        spans: dict[bool, Spans] = {True: [], False: []}
        for event in events:
            message = event.name.startswith(("gloo:", "nccl", "xccl"))
            # On a GPU, kernels count; on a CPU, torch's operations.
            work = (
                event.device_type != torch.autograd.DeviceType.CPU if self.on_gpu else event.name.startswith("aten::")
            )
            if message or work:
                spans[message].append(
                    tuple(self.clock + (t - clock) / 1e6 for t in (event.time_range.start, event.time_range.end))
                )
        messages, work = union(spans[True]), union(spans[False])
        alone = minus(messages, work)
        shares = {}
        for part in PARTS:
            if part == "waiting":  # for other stages' messages
                shares[part] = 0.0
                continue
            borders = [(begin, end) for name, begin, end in self.borders if name == part]
            shares[part] = length(within(alone, borders)) / (length(borders) or 1.0)
        return {"shares": shares, "hidden": 1 - length(alone) / length(messages) if messages else 0.0}


# Spans of time


def union(spans: Spans) -> Spans:
    """The same spans merged, in order."""
    out: Spans = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out


def within(these: Spans, those: Spans) -> Spans:
    """The time that is in both; each argument is in order and without overlaps."""
    out: Spans = []
    i = j = 0
    while i < len(these) and j < len(those):
        begin, end = max(these[i][0], those[j][0]), min(these[i][1], those[j][1])
        if begin < end:
            out.append((begin, end))
        if these[i][1] < those[j][1]:
            i += 1
        else:
            j += 1
    return out


def minus(these: Spans, those: Spans) -> Spans:
    """The time in `these` but not in `those`; each is in order and without overlaps."""
    edges = [float("-inf"), *(t for span in those for t in span), float("inf")]
    return within(these, list(zip(edges[::2], edges[1::2], strict=True)))


def length(spans: Spans) -> float:
    return sum(end - begin for begin, end in spans)


# The machine


class _Nvml:
    """One GPU, as seen by NVIDIA's management library."""

    def __init__(self) -> None:
        import pynvml

        pynvml.nvmlInit()
        self.nvml = pynvml
        # By UUID, since CUDA_VISIBLE_DEVICES changes the numbers.
        identity = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        self.handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{identity.removeprefix('GPU-')}")

    def sample(self) -> dict[str, float]:
        """Percent, bytes and, if the GPU reports it, watts."""
        nvml, handle = self.nvml, self.handle
        found = {
            "gpu": nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "gpu_memory": nvml.nvmlDeviceGetMemoryInfo(handle).used,
        }
        try:
            found["watts"] = nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        except nvml.NVMLError:
            pass
        return found


def _gpu() -> _Nvml | None:
    if not (kind := devices.accelerator()):
        return None
    if kind != "cuda":
        print("how busy the GPU is, and its power, are not recorded: NVML knows NVIDIA's only", file=sys.stderr)
        return None
    try:
        return _Nvml()
    except Exception as problem:  # an AMD GPU, or a different driver version: record the rest anyway
        print(f"the GPU is not recorded: {problem}", file=sys.stderr)
        return None


def _model() -> dict[str, Any] | None:
    """The sizes of the model that this process trains, even if it has only a stage of it."""
    models = (thing for thing in gc.get_objects() if issubclass(type(thing), TransformerLM))
    return next((model.config for model in models), None)


def _product_flops(size: int = 512) -> float:
    """FLOP/s of this rank's matrix products in float32, the best of a fifth of a second: data sheets do not give it for
    CPUs.
    """
    factor = torch.ones(size, size)
    seconds: list[float] = []
    while sum(seconds) < 0.2:
        began = time.perf_counter()
        factor @ factor
        seconds.append(time.perf_counter() - began)
    return 2 * size**3 / min(seconds)


def _job() -> str:
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("PBS_JOBID", "")

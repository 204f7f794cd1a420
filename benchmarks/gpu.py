"""All figures that need a GPU: the checks and the seven faults by NCCL and by gloo, training at GPT-2's size, a report.

    python benchmarks/gpu.py --peak 989

It runs the commands below one after the other, shows how long each took and how it ended, and continues whatever fails.
What they print is kept in --out. --peak is for your GPU's TFLOP/s in bfloat16: 989 of an H100 or H200, 312 of an A100.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from grader.engine.lesson.lessons import COURSE, Unit
from grader.engine.ranks import backends, evidence
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.job import Job

# GPT-2's size, its words rounded up to a multiple of 64, as in nanoGPT.
GPT2 = "--dim 768 --heads 12 --layers 12 --vocab 50304 --batch 12 --length 1024 --pairs 20 --dtype bfloat16"
TRAINING = "--dtype bfloat16 --dim 768 --heads 12 --layers 12 --seq-len 256 --max-steps 60"


def commands(peak: float, out: Path) -> dict[str, list[str]]:
    """A name and a command for each figure."""
    found = {}
    for backend in ("nccl", "gloo"):
        checks = ["-m", "pytest", "grader", "--target", "solutions", "-q", "--durations=20", "-p", "no:cacheprovider"]
        found[f"checks-{backend}"] = [*checks, "--backend", backend]
        found[f"faults-{backend}"] = ["benchmarks/faults.py", "--backend", backend, "--limit", "10"]
    gpt2 = ["benchmarks/throughput.py", *GPT2.split(), "--peak", str(peak)]
    found["throughput"] = gpt2
    found["throughput-compiled"] = [*gpt2, "--compile"]
    found["training"] = ["train/single_gpu_training.py", "--record", "--out", str(out / "run"), *TRAINING.split()]
    found["report"] = ["-m", "grader.engine.commands.cli", "report", str(out / "run")]
    return found


def start_seconds(backend: backends.Backend) -> dict[int, float]:
    """Seconds of a run that only adds up one tensor, by the number of ranks: what CUDA and NCCL take to start."""
    text = "import torch.distributed as dist\ndef add(x, rank, world):\n    dist.all_reduce(x)\n    return x\n"
    seconds = {}
    with Runner(backend=backend) as runner:
        worlds = [world for world in (1, 2, 4) if not backend.gpus or world <= backend.most]
        for world in (1, *worlds):  # the first one starts the server, too, and is forgotten
            began = time.perf_counter()
            run = runner.run(
                Job(
                    [Unit("add.py", text, "")],
                    lesson="",
                    function="grader.engine.inside.rank:own_function",
                    world=world,
                    inputs={"name": "add", "timed": False, "inputs": [evidence.encoded(torch.ones(9))] * world},
                    on_gpus=True,
                )
            )
            seconds[world] = round(time.perf_counter() - began, 2)
            if run.fault or run.evidence[0][0] != world:
                raise SystemExit(f"{world} ranks cannot add: {run.fault or run.evidence}")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--peak", type=float, default=989.0, help="TFLOP/s of the GPU in bfloat16, for the MFU")
    parser.add_argument("--out", type=Path, default=COURSE / "runs" / "gpu", help="folder for what they print")
    parser.add_argument("--only", default="", help="only commands whose name begins so")
    args = parser.parse_args()
    try:
        backend = backends.choose("nccl")
    except backends.NoBackend as problem:
        parser.error(str(problem).removeprefix("--backend nccl: "))
    print(backend.story(), flush=True)
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    starts = {chosen.name: start_seconds(chosen) for chosen in (backend, backends.GLOO)}
    print(f"seconds of a run that does next to nothing, by backend and ranks: {starts}", flush=True)
    seconds = {}
    for name, command in commands(args.peak, out).items():
        if not name.startswith(args.only):
            continue
        began = time.perf_counter()
        with (out / f"{name}.txt").open("w") as said:
            done = subprocess.run([sys.executable, *command], cwd=COURSE, stdout=said, stderr=said, check=False)
        seconds[name] = round(time.perf_counter() - began, 1)
        last = (out / f"{name}.txt").read_text("utf-8", "replace").strip().splitlines()[-1:]
        print(f"{name:20} exit code {done.returncode}, {seconds[name]:7.1f} s  {''.join(last)[:80]}", flush=True)
    (out / "seconds.json").write_text(
        json.dumps({"backend": backend.story(), "starts": starts, "seconds": seconds}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()

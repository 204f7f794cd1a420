"""What a fault costs a run of resilient_training: steps lost, seconds until it goes on, and what it does to the losses.

python benchmarks/resilience.py [FAULT …]

Each fault meets a run on two processes that saves every 10 steps. "Goes on" is the first step after the newest
checkpoint, by the clock from the fault on; what restarts the command is torchrun (--max-restarts) or this script, at
once. The losses are compared with those of a run that was never stopped, step by step.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[1] / "solutions" / "train" / "resilient_training.py"
FLAGS = (
    "--data random --batch-size 12 --seq-len 16 --dim 32 --heads 2 --layers 2 --max-steps 60 --save-every 10"
    " --log-every 1 --device cpu"
).split()
AT = 33  # the step after which a fault comes
PATIENCE = 300.0  # seconds


def start(out: Path, ranks: int, *options: str, flags: tuple[str, ...] = ()) -> subprocess.Popen:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", *options]
    log = (out.parent / f"{out.name}.log").open("a")
    # With the store shared, what starts anew finds the addresses of what is gone, and gloo: "Connection refused".
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if options else {}
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **own}
    return subprocess.Popen(
        [*torchrun, str(SCRIPT), *FLAGS, "--out", str(out), *flags], env=env, stdout=log, stderr=log
    )


def losses(out: Path) -> dict[int, float]:
    """The loss of each step, as far as the run has come."""
    try:
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    except (OSError, ValueError):
        return {}
    return {line["step"]: line["loss"] for line in lines if line["kind"] == "step"}


def wait_for(what, told: str):
    """Until what() is true, which is returned."""
    deadline = time.monotonic() + PATIENCE
    while not (found := what()):
        if time.monotonic() > deadline:
            raise TimeoutError(told)
        time.sleep(0.02)
    return found


def processes_of(parent: int) -> list[int]:
    """The ranks that a torchrun has started."""
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def kill_rank(run: subprocess.Popen) -> None:
    os.kill(processes_of(run.pid)[-1], signal.SIGKILL)


def kill_torchrun(run: subprocess.Popen) -> None:
    run.kill()


def kill_node(run: subprocess.Popen) -> None:
    for pid in [run.pid, *processes_of(run.pid)]:
        os.kill(pid, signal.SIGKILL)


def end_torchrun(run: subprocess.Popen) -> None:
    run.terminate()


def tell_one_rank(run: subprocess.Popen) -> None:
    os.kill(processes_of(run.pid)[-1], signal.SIGUSR1)


# fault -> (what is done, options of torchrun, ranks that go on; 0: torchrun starts them itself)
FAULTS = {
    "kill -9 of a rank, --max-restarts": (kill_rank, ("--max-restarts=2",), 0),
    "kill -9 of a rank": (kill_rank, (), 2),
    "kill -9 of torchrun": (kill_torchrun, (), 2),
    "kill -9 of all processes": (kill_node, (), 2),
    "SIGTERM to torchrun": (end_torchrun, (), 2),
    "USR1 to one rank, as at the limit": (tell_one_rank, (), 2),
    "kill -9 of all, 2 ranks to 1": (kill_node, (), 1),
    "kill -9 of all, 2 ranks to 3": (kill_node, (), 3),
}


def suffer(out: Path, fault: str) -> tuple[int, float, dict[int, float]]:
    """A run that meets a fault, to its end. Returns steps lost, seconds until it goes on, and its losses."""
    strike, options, ranks = FAULTS[fault]
    run = start(out, 2, *options)
    try:
        wait_for(lambda: max(losses(out), default=0) >= AT, "the run does not start")
        struck = time.monotonic()
        strike(run)
        if ranks:
            run.wait(PATIENCE)
            run = start(out, ranks)
        reached = max(losses(out))
        log = out.parent / f"{out.name}.log"
        said = wait_for(lambda: log.read_text().partition(f"resumes from {out}/step-")[2], "it does not resume")
        saved = int(said.split()[0])
        # Its record is cut back to the checkpoint before the next line is written.
        wait_for(lambda: saved < max(losses(out), default=0) != reached, "it makes no step")
        seconds = time.monotonic() - struck
        if run.wait(PATIENCE):
            raise RuntimeError(log.read_text()[-2000:])
        return reached - saved, seconds, losses(out)
    finally:
        run.kill()
        run.wait()


def main(chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        straight = Path(folder) / "straight"
        if start(straight, 2).wait(PATIENCE):
            raise RuntimeError((Path(folder) / "straight.log").read_text()[-2000:])
        right = losses(straight)
        print("| fault | steps lost | seconds until it goes on | largest difference of losses |\n|---|---|---|---|")
        for number, fault in enumerate(chosen or FAULTS):
            lost, seconds, seen = suffer(Path(folder) / f"run-{number}", fault)
            if seen.keys() != right.keys():
                raise RuntimeError(f"{fault}: steps {sorted(seen.keys() ^ right.keys())}")
            apart = max(abs(seen[step] - right[step]) / right[step] for step in right)
            print(f"| {fault} | {lost} | {seconds:.0f} | {apart:.1e} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

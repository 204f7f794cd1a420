"""What a fault costs a run of resilient_training: steps lost, seconds until it continues, and the losses.

    python benchmarks/resilience.py [FAULT …]
    python benchmarks/resilience.py --moments 20       # one run, killed at 20 random moments
    python benchmarks/resilience.py --operations       # killed before each file operation of a save

Each fault meets a run that saves every 10 steps, on two processes unless it says otherwise. "Continues" is the first
step after the newest checkpoint, in seconds from the fault; what restarts the command is torchrun (--max-restarts) or
this script, at once. The losses are compared with a run's that was never stopped, step by step.
"""

import argparse
import itertools
import json
import os
import random
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
STEPS_A_MOMENT = 10  # at most 14 from a checkpoint, in two moments of three, lie before a kill: the run does not end
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


# A rank kills its torchrun, which takes the other ranks along, and itself, before its n-th change of files in a save.
KILLS_ITSELF = """
import os, runpy, sys
out, rank, last, count = os.path.abspath(sys.argv[1]), sys.argv[2], int(sys.argv[3]), 0
def before(event, args):
    global count
    changes = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir")
    if event not in changes or not isinstance(args[0], (str, os.PathLike)):
        return
    name = os.path.relpath(os.path.abspath(os.fspath(args[0])), out)
    if event == "open" and not (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
        return
    if name.startswith(("unfinished-", "step-")):
        count += 1
        if count == last:
            print("KILLED before", event, name, file=sys.stderr, flush=True)
            os.kill(os.getppid(), 9)
            os.kill(os.getpid(), 9)
if os.environ["RANK"] == rank:
    sys.addaudithook(before)
sys.argv = sys.argv[4:]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def killed_in_save(out: Path, rank: int, operation: int) -> bool:
    """Whether this rank makes so many operations in the first two saves; if so, all were killed before the last."""
    itself = out.parent / "kills_itself.py"
    itself.write_text(KILLS_ITSELF)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(itself)]
    command += [str(out), str(rank), str(operation), str(SCRIPT), *FLAGS, "--max-steps", "20", "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with (out.parent / f"{out.name}.log").open("a") as log:
        return subprocess.run(command, env=env, stdout=log, stderr=log, timeout=PATIENCE).returncode != 0


def show_operations(folder: Path, right: dict[int, float]) -> None:
    """A kill before each of the ranks' operations of the saves at steps 10 and 20; the one before it has been done."""
    kills, worst, lost = 0, 0.0, 0
    for rank in range(2):
        for operation in itertools.count(1):
            out = folder / f"operation-{rank}-{operation}"
            if not killed_in_save(out, rank, operation):
                break
            reached = max(losses(out))
            if start(out, 2).wait(PATIENCE):
                raise RuntimeError((folder / f"{out.name}.log").read_text()[-2000:])
            said = (folder / f"{out.name}.log").read_text()
            saved = int(said.partition(f"resumes from {out}/step-")[2].split()[0]) if "resumes from" in said else 0
            kills, worst, lost = kills + 1, max(worst, apart(losses(out), right)), max(lost, reached - saved)
            where = said.partition("KILLED ")[2].split("\n")[0]
            print(f"rank {rank}, {where}: {reached - saved} steps lost", file=sys.stderr, flush=True)
    print(f"| a kill before each of {kills} file operations of two saves | {lost} at most | | {worst:.1e} |")


def show_moments(folder: Path, right: dict[int, float], moments: int, chance: random.Random) -> None:
    """One run of 10 steps a moment, on two ranks; whenever all its processes are killed, the same command follows."""
    out, run, lost, seconds = folder / "moments", None, [], []
    longer = "--max-steps", str(STEPS_A_MOMENT * moments)
    for moment in range(moments):
        before = max(losses(out), default=0)
        if before == max(right):
            break
        run = start(out, 2, flags=longer)
        begun = time.monotonic()
        # Every third moment is in the start, when Python is imported and the checkpoint read; the others in training.
        if moment % 3:
            saved = max((int(path.name.removeprefix("step-")) for path in out.glob("step-*")), default=0)
            target = saved + chance.randint(1, 14)
            wait_for(
                lambda: saved < max(losses(out), default=0) != before or run.poll() is not None, "it makes no step"
            )
            seconds.append(time.monotonic() - begun)
            wait_for(lambda: max(losses(out), default=0) >= target or run.poll() is not None, "it makes no step")
            time.sleep(chance.uniform(0, 0.5))
        else:
            time.sleep(chance.uniform(0, 20))
        if run.poll() is not None:
            break
        kill_node(run)
        run.wait(PATIENCE)
        saves = [int(path.name.removeprefix("step-")) for path in out.glob("step-*")]
        lost.append(max(losses(out), default=0) - max(saves, default=0))
        print(moment, "at", max(losses(out), default=0), "lost", lost[-1], file=sys.stderr, flush=True)
    if start(out, 2, flags=longer).wait(PATIENCE):
        raise RuntimeError((folder / "moments.log").read_text()[-2000:])
    longest = max(seconds, default=0.0)
    print(
        f"| `kill -9` of all at {len(lost)} random moments of one run | {max(lost)} at most | {longest:.0f} at most |"
        f" {apart(losses(out), right):.1e} |"
    )


def apart(seen: dict[int, float], right: dict[int, float]) -> float:
    """The largest relative difference of the losses of two runs."""
    if seen.keys() != right.keys():
        raise RuntimeError(f"steps {sorted(seen.keys() ^ right.keys())}")
    return max(abs(seen[step] - right[step]) / right[step] for step in right)


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


# fault -> (what is done, options of torchrun, ranks before each fault and after the last)
FAULTS = {
    "kill -9 of a rank, --max-restarts": (kill_rank, ("--max-restarts=2",), (2, 2)),  # torchrun starts them anew
    "kill -9 of a rank": (kill_rank, (), (2, 2)),
    "kill -9 of torchrun": (kill_torchrun, (), (2, 2)),
    "kill -9 of all processes": (kill_node, (), (2, 2)),
    "SIGTERM to torchrun": (end_torchrun, (), (2, 2)),
    "USR1 to one rank, as at the limit": (tell_one_rank, (), (2, 2)),
    "kill -9 of all, 2 ranks to 1": (kill_node, (), (2, 1)),
    "kill -9 of all, 2 ranks to 3": (kill_node, (), (2, 3)),
    "kill -9 of all, 4 ranks to 3 to 1": (kill_node, (), (4, 3, 1)),
}


def suffer(out: Path, fault: str) -> tuple[int, float, dict[int, float]]:
    """A run that meets a fault once or several times, to its end. Returns the most steps lost, the most seconds until
    it continues, and its losses.
    """
    strike, options, (first, *later) = FAULTS[fault]
    log, lost, seconds = out.parent / f"{out.name}.log", [], []
    run = start(out, first, *options)
    try:
        for number, ranks in enumerate(later):
            target = AT + 10 * number
            wait_for(lambda: max(losses(out), default=0) >= target, f"the run does not reach step {target}")
            struck = time.monotonic()
            strike(run)
            if not options:
                run.wait(PATIENCE)
                run = start(out, ranks)
            reached = max(losses(out))
            said = wait_for(
                lambda: log.read_text().split(f"resumes from {out}/step-")[number + 1 :], "it does not resume"
            )
            saved = int(said[0].split()[0])
            # Its record is cut back to the checkpoint before the next line is written.
            wait_for(lambda: saved < max(losses(out), default=0) != reached, "it makes no step")
            lost.append(reached - saved)
            seconds.append(time.monotonic() - struck)
        if run.wait(PATIENCE):
            raise RuntimeError(log.read_text()[-2000:])
        return max(lost), max(seconds), losses(out)
    finally:
        run.kill()
        run.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"of: {', '.join(FAULTS)}")
    parser.add_argument("--moments", type=int, default=0, help="kill one run at so many random moments")
    parser.add_argument("--operations", action="store_true", help="kill before each file operation of a save")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        straight = Path(folder) / "straight"
        longer = ("--max-steps", str(STEPS_A_MOMENT * args.moments)) if args.moments else ()
        if start(straight, 2, flags=longer).wait(PATIENCE):
            raise RuntimeError((Path(folder) / "straight.log").read_text()[-2000:])
        right = losses(straight)
        print("| fault | steps lost | seconds until it continues | largest difference of losses |\n|---|---|---|---|")
        if args.moments:
            show_moments(Path(folder), right, args.moments, random.Random(args.seed))
        if args.operations:
            show_operations(Path(folder), right)
        for number, fault in enumerate(args.faults or ({} if args.moments or args.operations else FAULTS)):
            lost, seconds, seen = suffer(Path(folder) / f"run-{number}", fault)
            print(f"| {fault} | {lost} | {seconds:.0f} | {apart(seen, right):.1e} |", flush=True)


if __name__ == "__main__":
    main()

"""What streaming_training promises, measured: no sample lost or read twice, flat memory, few opens, a random order.

    python benchmarks/streaming.py kills    # killed by kill -9 at 20 moments, resumed on other ranks: samples counted
    python benchmarks/streaming.py memory   # of 10 MB, 100 MB and 1 GB of random tokens: memory of all processes
    python benchmarks/streaming.py opens    # opens of a file, by ranks and workers
    python benchmarks/streaming.py order    # how random the order is, by the buffer

Each runs the solution under torchrun, and watches it from outside; which samples reached the model, and which files
were opened, is noted by each process itself (`rank`, which is for the script's own use).
"""

import argparse
import math
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

COURSE = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(COURSE)]

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table

from utils.report.runs import read_lines
from utils.shards import in_memory, open_shards, write_shards

SCRIPT = COURSE / "solutions" / "train" / "streaming_training.py"
SMALL = "--dim 16 --heads 2 --layers 1 --seq-len 64 --device cpu --log-every 1".split()
BATCH, STEPS, EPOCHS, EVERY = 24, 60, 4, 2  # of the kills: steps in an epoch, epochs, steps between checkpoints
PATIENCE = 300.0  # seconds for what a busy machine must do at some time


def main() -> None:
    if sys.argv[1:2] == ["rank"]:
        as_rank(Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
        return
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("what", choices=("kills", "memory", "opens", "order"))
    parser.add_argument("--moments", type=int, default=20, help="kills: how many")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="kills: of the moments")
    parser.add_argument("--data", type=Path, help="opens, order: a folder of shards; default: random tokens")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        {"kills": kills, "memory": memory, "opens": opens, "order": order}[args.what](args, Path(folder), Console())


# One process of a run, which notes what it does


def as_rank(notes: Path, base: int, argv: list[str]) -> None:
    """Run the script; leave, in files that are only appended to, each file opened in --data and each step's samples."""
    data = os.path.abspath(argv[argv.index("--data") + 1])
    opened = os.open(notes / "opened", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def audit(event: str, args: tuple) -> None:
        if event == "open" and isinstance(args[0], (str, bytes)) and os.fsdecode(args[0]).startswith(data):
            os.write(opened, f"{os.getpid()} {os.path.basename(os.fsdecode(args[0]))}\n".encode())

    sys.addaudithook(audit)
    from torch.optim.optimizer import register_optimizer_step_post_hook

    from utils.model import TransformerLM

    seen, step, forward = os.open(notes / "seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND), base, TransformerLM.forward
    rows: list[str] = []

    def noted(model: TransformerLM, x: torch.Tensor, y: torch.Tensor | None = None, positions: None = None) -> object:
        if model.training:
            rows.extend(str(hash(tuple(row))) for row in x.tolist())
        return forward(model, x, y, positions)

    def stepped(*_: object) -> None:
        nonlocal step
        step += 1
        os.write(seen, f"{os.environ['NOTES_RUN']} {step} {' '.join(rows)}\n".encode())
        rows.clear()

    TransformerLM.forward = noted
    register_optimizer_step_post_hook(stepped)
    sys.argv = [str(SCRIPT), *argv]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def start(ranks: int, notes: Path, base: int, argv: list[str], number: int = 0) -> subprocess.Popen:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "NOTES_RUN": str(number), "PYTHONPATH": str(COURSE)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command += [str(Path(__file__).resolve()), "rank", str(notes), str(base), *argv]
    said = (notes / "said").open("a")
    return subprocess.Popen(command, env=env, stdout=said, stderr=said, start_new_session=True)


def below(run: subprocess.Popen) -> list[psutil.Process]:
    try:
        return psutil.Process(run.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def finish(run: subprocess.Popen, notes: Path) -> None:
    if code := run.wait(10 * PATIENCE):
        raise SystemExit(f"a run ended with exit code {code}:\n{(notes / 'said').read_text()[-2000:]}")


def random_shards(folder: Path, n_bytes: int, file_size: int = 64 << 20, vocab: int = 256) -> Path:
    """Shards of random tokens, two bytes each: 1,000 to 3,000 in a document. Validation and test are small."""
    draw = np.random.default_rng(0)

    def documents(tokens: int) -> Iterator[np.ndarray]:
        while tokens > 0:
            size = min(int(draw.integers(1000, 3000)), tokens)
            yield draw.integers(1, vocab, size)
            tokens -= size

    splits = {"train": documents(n_bytes // 2), "validation": documents(5_000), "test": documents(5_000)}
    write_shards(folder, "random tokens", ["<eos>", *(f"w{n}" for n in range(1, vocab))], splits, file_size)
    return folder


# kill -9


def kills(args: argparse.Namespace, folder: Path, console: Console) -> None:
    console.print(f"seed {args.seed}")
    chance = random.Random(args.seed)
    tokens = (STEPS * BATCH + 7) * 64 + 13  # an epoch of STEPS steps, rows and tokens left over
    data = random_shards(folder / "data", 2 * tokens, file_size=16 << 10)
    flags = [
        *SMALL,
        "--data",
        str(data),
        "--batch-size",
        str(BATCH),
        "--epochs",
        str(EPOCHS),
        "--save-every",
        str(EVERY),
    ]
    flags += ["--block-rows", "20", "--buffer", "4"]
    whole = folder / "whole"
    whole.mkdir()
    finish(start(1, whole, 0, [*flags, "--out", str(folder / "out-whole"), "--workers", "0"]), whole)

    notes, out = folder / "notes", folder / "out"
    notes.mkdir()
    table, number = Table("killed", "ranks × workers", "in step", "resumed from", "on"), 0
    while number < args.moments:
        ranks, workers, whom = 1 + number % 4, number % 3, ("rank", "torchrun", "worker", "all")[number // 2 % 4]
        run, base = start_again(ranks, workers, notes, out, flags, number)
        if not let_live(run, notes, number, chance.randrange(0, 6), chance.uniform(0, 0.5)):
            console.print(f"the run ended before its kill {number + 1}")
            break
        killed = kill(run, whom)
        resumed = step_saved(out)
        table.add_row(
            killed, f"{ranks} × {workers}", str(last_step(notes)), str(resumed), f"{1 + (number + 1) % 4} ranks"
        )
        number += 1
    run, base = start_again(1 + number % 4, number % 3, notes, out, flags, number)
    finish(run, notes)
    console.print(table)
    count_samples(console, data, notes, whole, number)
    apart = compared(out, folder / "out-whole")
    console.print(f"losses of {len(apart)} steps differ from the run that was not killed by {max(apart):.1e} at most")


def start_again(
    ranks: int, workers: int, notes: Path, out: Path, flags: list[str], number: int
) -> tuple[subprocess.Popen, int]:
    base = step_saved(out)
    with (notes / "bases").open("a") as file:
        file.write(f"{number} {base}\n")
    argv = [*flags, "--out", str(out), "--workers", str(workers), *(["--resume", str(out)] if base else [])]
    return start(ranks, notes, base, argv, number), base


def step_saved(out: Path) -> int:
    path = out / "stream.pt"
    return torch.load(path, weights_only=True)["progress"]["step"] if path.is_file() else 0


def let_live(run: subprocess.Popen, notes: Path, number: int, steps: int, seconds: float) -> bool:
    """Wait until this run has made so many steps, and a moment. Returns whether it is still there."""
    deadline = time.monotonic() + PATIENCE
    while run.poll() is None and time.monotonic() < deadline:
        if sum(line.startswith(f"{number} ") for line in lines(notes / "seen")) >= steps:
            time.sleep(seconds)
            break
        time.sleep(0.02)
    return run.poll() is None


def kill(run: subprocess.Popen, whom: str) -> str:
    """kill -9 of a rank, of torchrun, of a worker or of all; returns who it was when none is left."""
    children = psutil.Process(run.pid).children()
    workers = [w for child in children for w in child.children() if w.ppid() == child.pid]
    if whom == "worker" and workers:
        victims = workers[-1:]
    elif whom in ("rank", "worker") and children:
        whom, victims = "rank", children[-1:]
    elif whom == "all":
        victims = [psutil.Process(run.pid), *below(run)]
    else:
        whom, victims = "torchrun", [psutil.Process(run.pid)]
    everyone = [psutil.Process(run.pid), *below(run)]
    for victim in victims:
        victim.send_signal(signal.SIGKILL)
    run.wait(PATIENCE)
    _, left = psutil.wait_procs(everyone, PATIENCE)
    if left:
        raise SystemExit(f"{len(left)} processes are left after kill -9 of {whom}")
    return whom


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.is_file() else []


def last_step(notes: Path) -> int:
    return max((int(line.split()[1]) for line in lines(notes / "seen")), default=0)


def timeline(notes: Path) -> dict[int, Counter]:
    """Step -> how often each sample was trained on in it, by the run that counts: the last one that took the step."""
    bases = {int(number): int(base) for number, base in (line.split() for line in lines(notes / "bases"))} or {0: 0}
    found: dict[tuple[int, int], Counter] = {}
    for line in lines(notes / "seen"):
        number, step, *rows = line.split()
        found.setdefault((int(number), int(step)), Counter()).update(rows)
    counts = {}
    for (number, step), rows in found.items():
        # A later run that began before this step has made it again, or has not come so far.
        if not any(later > number and base < step for later, base in bases.items()):
            counts[step] = rows
    return counts


def count_samples(console: Console, data: Path, notes: Path, whole: Path, killed: int) -> None:
    tokens = in_memory(open_shards(data).train)
    x = torch.cat([tokens.new_zeros(1), tokens[:-1]])[: len(tokens) // 64 * 64].view(-1, 64)
    names = {str(hash(tuple(row))) for row in x.tolist()}
    steps, right = timeline(notes), timeline(whole)
    for epoch in range(EPOCHS):
        seen: Counter = Counter()
        for step in range(epoch * STEPS + 1, (epoch + 1) * STEPS + 1):
            seen += steps.get(step, Counter())
        twice, strange = sum(n > 1 for n in seen.values()), len(seen.keys() - names)
        console.print(
            f"epoch {epoch + 1}: {sum(seen.values())} samples of {STEPS * BATCH} in {STEPS} steps, {twice} of them"
            " twice,"
            f" {strange} not of the text, {STEPS * BATCH - len(seen)} lost"
        )
    same = sum(steps.get(step) == right[step] for step in right)
    console.print(f"{killed} kills: {same} of {len(right)} steps have the samples of the run that was not killed")


def compared(out: Path, whole: Path) -> list[float]:
    found = [
        {m["step"]: m["loss"] for m in read_lines(f / "metrics.jsonl") if m["kind"] == "step"} for f in (out, whole)
    ]
    assert found[0].keys() == found[1].keys(), "not the same steps"
    return [abs(found[0][step] / found[1][step] - 1) for step in found[1]]


# Memory


def memory(args: argparse.Namespace, folder: Path, console: Console) -> None:
    """Two ranks with two workers each; 200 steps of 24,576 tokens, an epoch of the smallest."""
    table = Table("corpus", "processes", "RssAnon, MB", "RSS, MB", "of these, maps of files, MB", "opens of a file")
    for megabytes in (10, 100, 1000):
        data = random_shards(folder / f"{megabytes}", megabytes * 10**6)
        notes = folder / f"notes-{megabytes}"
        notes.mkdir()
        argv = [
            *SMALL,
            "--data",
            str(data),
            "--batch-size",
            "96",
            "--seq-len",
            "256",
            "--max-steps",
            "200",
            "--epochs",
            "9",
        ]
        argv += ["--workers", "2", "--log-every", "50", "--out", str(folder / f"out-{megabytes}")]
        run, most = start(2, notes, 0, argv), {}
        while run.poll() is None:
            for name, value in of_all([p.pid for p in below(run)]).items():
                most[name] = max(most.get(name, 0), value)
            time.sleep(0.2)
        finish(run, notes)
        counts = opens_of(notes, "train-")
        anon, rss, mapped = (f"{most[name] / 1e6:.0f}" for name in ("RssAnon", "VmRSS", "RssFile"))
        table.add_row(f"{megabytes} MB", str(most["processes"]), anon, rss, mapped, f"{max(counts.values())}")
    console.print(table)


def of_all(pids: list[int]) -> dict[str, int]:
    """Bytes of memory of these processes together."""
    found = {"RssAnon": 0, "VmRSS": 0, "RssFile": 0, "processes": len(pids)}
    for pid in pids:
        try:
            status = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        for line in status:
            name, _, value = line.partition(":")
            if name in found:
                found[name] += int(value.split()[0]) * 1024
    return found


# Opens


def opens_of(notes: Path, prefix: str) -> Counter:
    """File -> how often it was opened, by all processes."""
    return Counter(name for _, name in (line.split() for line in lines(notes / "opened")) if name.startswith(prefix))


def opens(args: argparse.Namespace, folder: Path, console: Console) -> None:
    """Two epochs, so that workers that do not stay would show."""
    data = args.data or random_shards(folder / "data", 400_000, file_size=50_000)
    shards = open_shards(data)
    n_files = len(shards.train.files)
    table = Table("ranks × workers", "readers", f"opens of each of {n_files} training files", "all opens in two epochs")
    for ranks, workers in ((1, 0), (1, 4), (2, 0), (2, 2), (4, 0), (4, 2)):
        notes = folder / f"{ranks}-{workers}"
        notes.mkdir()
        argv = [*SMALL, "--data", str(data), "--epochs", "2", "--workers", str(workers), "--log-every", "500"]
        finish(start(ranks, notes, 0, [*argv, "--out", str(folder / f"out-{ranks}-{workers}")]), notes)
        counts = opens_of(notes, "train-")
        spread = f"{min(counts.values())} to {max(counts.values())}"
        everything = sum(opens_of(notes, "").values())
        table.add_row(f"{ranks} × {workers}", str(ranks * max(workers, 1)), spread, str(everything))
    console.print(table)


# The order


def order(args: argparse.Namespace, folder: Path, console: Console) -> None:
    """Of batches of 24 rows: how alike a batch's rows are, and two batches that follow each other."""
    script = runpy.run_path(str(SCRIPT), run_name="a module")
    n_rows = open_shards(args.data).train.tokens // 64 if args.data else 32_634  # WikiText-2's
    table = Table(
        "order", "pairs of a batch from one block", "blocks in a batch", "spread of a batch's rows", "files touched"
    )
    for block, buffer in ((256, 1), (256, 4), (256, 16), (256, 64), (n_rows, 1)):
        how = argparse.Namespace(seed=0, block=block, buffer=buffer)
        rows = torch.cat([*script["shuffled"](n_rows, 0, how)])
        name = "all rows shuffled" if block == n_rows else f"blocks of {block}, {buffer} in the buffer"
        table.add_row(name, *measured(rows, n_rows))
    table.add_row("as in the text", *measured(torch.arange(n_rows), n_rows))
    console.print(table)


def measured(rows: torch.Tensor, n_rows: int, block: int = 256) -> list[str]:
    batches = rows[: len(rows) // BATCH * BATCH].view(-1, BATCH)
    blocks = batches // block
    pairs = torch.combinations(torch.arange(BATCH))
    same = (blocks[:, pairs[:, 0]] == blocks[:, pairs[:, 1]]).double().mean().item()
    distinct = sum(len(set(own.tolist())) for own in blocks) / len(blocks)
    spread = (batches.double().std(dim=1).mean() / (n_rows / math.sqrt(12))).item()
    files = batches // -(-n_rows // 5)  # five files, as of a text of five files
    touched = sum(len(set(own.tolist())) for own in files) / len(files)
    return [f"{same:.1%}", f"{distinct:.1f}", f"{spread:.2f}", f"{touched:.1f}"]


if __name__ == "__main__":
    main()

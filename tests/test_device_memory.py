"""A device with less memory: what counts, what is said, and that all ranks end."""

import gc
import os
import re
import socket
import subprocess
import sys

import pytest
import torch
from torch import nn

from grader.engine.lesson import lessons
from utils.arguments import training_parser
from utils.device_memory import OutOfMemory, device_memory, most_held
from utils.memory import storages_of

CPU = torch.device("cpu")


def and_what_is_here(nbytes):
    """A limit: so much more than this process, with what other tests have left in it, holds already."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
    here = {storage.data_ptr(): storage.nbytes() for tensor in tensors for storage in storages_of(tensor)}
    return nbytes + sum(here.values())


def ended(stop):
    (line,) = str(stop.value).splitlines()
    return line


def test_without_a_limit_nothing_is_watched():
    with device_memory(None, CPU):
        assert torch.utils._python_dispatch._get_current_dispatch_mode() is None


def test_each_kind_is_told_in_bytes():
    model = nn.Linear(500, 500, bias=False)  # 1 MB
    optimizer = torch.optim.Adam(model.parameters())
    with pytest.raises(OutOfMemory) as stop, device_memory(and_what_is_here(30_000_000), CPU):
        model(torch.zeros(500, 500)).sum().backward()
        optimizer.step()
        kept = [torch.zeros(500, 500) for _ in range(7)]
        torch.zeros(5000, 1500)  # gone at once, and it has to fit
    del kept
    line = ended(stop)
    assert "asks for 30.0 MB more (5000 × 1500, float32)" in line
    found = dict(re.findall(r"(weights|gradients|optimizer|activations and other) ([\d.]+ MB)", line))
    # Other tests of this process may have left a model; its like has no seven tensors of 1 MB.
    assert float(found["weights"].split()[0]) >= 1 and float(found["gradients"].split()[0]) >= 1
    assert float(found["optimizer"].split()[0]) >= 2 and float(found["activations and other"].split()[0]) >= 7


def test_what_is_gone_makes_room():
    with device_memory(and_what_is_here(10_000_000), CPU):
        for _ in range(20):
            torch.zeros(1_000_000)


def test_the_most_that_was_alive_is_what_is_needed():
    """A run with just that much goes through; with a byte less it does not."""

    def train(limit):
        with device_memory(limit, CPU):
            for size in (1_000, 1_000_000, 10_000, 500_000):
                kept = torch.zeros(size)
                torch.cat([kept, kept])
        return most_held("cpu")

    needed = train(and_what_is_here(10**9))
    assert needed == and_what_is_here(4 * 3_000_000)  # a million numbers, and two million beside them
    assert train(needed) == needed
    with pytest.raises(OutOfMemory):
        train(needed - 1)


def test_a_storage_that_grows_counts():
    """As FSDP's do: what it gathers lies in a storage that is made small and large again."""
    buffer = torch.zeros(2_000_000)
    buffer.untyped_storage().resize_(0)
    with pytest.raises(OutOfMemory) as stop, device_memory(and_what_is_here(6_000_000), CPU):
        torch.zeros(100)
        buffer.untyped_storage().resize_(8_000_000)
        buffer.fill_(1)
    assert "asks for 8.0 MB more" in ended(stop)


def test_what_was_there_before_counts():
    before = torch.zeros(2_000_000)
    with pytest.raises(OutOfMemory) as stop, device_memory(5_000_000, CPU):
        pass
    assert "before the first step" in ended(stop) and len(before)


@pytest.mark.parametrize(
    ("text", "nbytes"), [("300MB", 300_000_000), ("1.5 GB", 1_500_000_000), ("64MiB", 64 * 2**20), ("10kb", 10_000)]
)
def test_sizes(text, nbytes):
    assert training_parser("x").parse_args(["--device-memory", text]).device_memory == nbytes


@pytest.mark.parametrize("text", ["300", "MB", "-1GB", "0MB", "3 bananas"])
def test_what_is_no_size_is_refused_in_one_line(text, capsys):
    with pytest.raises(SystemExit) as stop:
        training_parser("x").parse_args([f"--device-memory={text}"])
    (line,) = capsys.readouterr().err.splitlines()
    assert stop.value.code == 2 and "such as 300MB" in line


FLAGS = "--data random --max-steps 3 --batch-size 4 --seq-len 16 --dim 128 --layers 1 --device-memory".split()


def started(rank, world, port, script, flags):
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }
    return subprocess.Popen(
        [sys.executable, f"solutions/train/{script}.py", *flags],
        cwd=lessons.COURSE,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("short_of_it", [pytest.param(0, marks=pytest.mark.long), 1])
def test_one_rank_runs_out_and_both_end(short_of_it, tmp_path):
    """As srun starts them, with nobody who ends the others: one line in all, and exit code 2 of each."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    ranks = [
        started(
            rank, 2, port, "ddp_training", [*FLAGS, "1MB" if rank == short_of_it else "1GB", "--out", str(tmp_path)]
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=120) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert [process.returncode for process in ranks] == [2, 2], said
    errors = "".join(err for _, err in said).splitlines()
    assert len(errors) == 1 and f"rank {short_of_it} of 2 holds" in errors[0], errors


# The limit is one call in all of them: one shows what it says, and that no other forgot it takes its time.
@pytest.mark.parametrize(
    "script",
    [
        "single_gpu_training",
        *(pytest.param(f"{kind}_training", marks=pytest.mark.long) for kind in ("fsdp", "tp", "hybrid")),
    ],
)
def test_every_script_knows_it(script, tmp_path):
    done = subprocess.run(
        [sys.executable, f"train/{script}.py", *FLAGS, "1MB", "--out", str(tmp_path)],
        cwd=lessons.COURSE,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "out of memory" in done.stderr, done

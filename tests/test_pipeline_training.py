"""pipeline_training as a whole: each schedule is the serial run; what is refused; why no stage is wrapped in DDP."""

import json
import math
import subprocess
import sys

import pytest

from grader.engine.lesson import lessons, todo_regions
from grader.engine.ranks.job import Job
from grader.kit import Student, corpus, mains_on_rank, reported, same_report
from lesson_checks import everything
from utils.arguments import training_parser
from utils.pipeline_flags import SCHEDULES, add_pipeline_flags, check_pipeline

checks = everything("pipeline_training")

ADAM = [*checks.ARGV, *"--optimizer adamw --lr 1e-2 --epochs 2".split()]  # the last of a flag counts


@pytest.fixture(scope="module")
def solution(runner):
    return Student(runner, "pipeline_training", lessons.units("pipeline_training", "solutions"), [])


def mains(student, world, flags):
    """One job in which main() runs with each of these flags."""
    runs = [[world, [*ADAM, *more.split()]] for more in flags]
    return student.call(mains_on_rank, world=world, group=False, runs=runs, data=corpus(student), keep=checks.KEPT)


@pytest.mark.parametrize(
    ("world", "flags"),
    [
        (2, [f"--schedule {name} --microbatches 6" for name in SCHEDULES]),
        (3, ["--schedule 1f1b --microbatches 4", "--pp 1 --microbatches 2"]),
        (4, [f"--schedule {name} --pp 4 --microbatches 4 --layers 4" for name in SCHEDULES if name != "interleaved"]),
        (4, [f"--schedule {name} --pp 2 --microbatches 3" for name in SCHEDULES]),
    ],
    ids=("pp 2", "pp 3, and data 3", "pp 4", "data 2 × pp 2"),
)
def test_every_schedule_is_the_serial_run(solution, world, flags):
    serial = checks.serial_run(solution, ADAM)
    steps = [line["loss"] for line in reported(serial) if line["kind"] == "step"]
    assert steps[-1] < steps[0] - 0.01  # it learns: losses that stand still would agree, too
    job = mains(solution, world, flags)
    for number, more in enumerate(flags):
        told = f"on {world} ranks with {more}"
        same_report(told, reported(serial), reported(job, f"out-{number}"))


def test_interleaved_on_four_ranks_is_the_serial_run(solution):
    """Eight stages take eight blocks; --dtype bfloat16 is rounded alike, to the bits that it has."""
    eight = [*ADAM, "--layers", "8"]
    flags = "--layers 8 --schedule interleaved --pp 4 --microbatches 4"
    serial, job = checks.serial_run(solution, eight), mains(solution, 4, [flags, f"{flags} --dtype bfloat16"])
    same_report("interleaved", reported(serial), reported(job, "out-0"))
    for a, b in zip(reported(job, "out-0"), reported(job, "out-1"), strict=True):
        assert a["loss"] != b["loss"] and math.isclose(a["loss"], b["loss"], rel_tol=1e-2)


@pytest.mark.parametrize("solved", range(0, 9, 2))
def test_it_is_the_serial_run_at_every_stage(solution, solved):
    """Until the last TODO all ranks share the batch, whatever is done already."""
    text = [u._replace(text=todo_regions.compose(u.source, set(range(1, solved + 1)))) for u in solution.units]
    start = Student(solution.runner, "pipeline_training", text, [])
    job = mains(start, 2, ["--microbatches 3"])
    right = reported(checks.serial_run(start, ADAM))
    same_report(f"with {solved} TODOs done", right, reported(job, "out-0"))


def alive(log):
    """The most micro-batches that are between their two passes at a time: of one stage, or of all on this rank."""
    last = {(stage, k): place for place, (kind, stage, k) in enumerate(log) if kind != "F"}
    held, most = set(), 0
    for place, (kind, stage, k) in enumerate(log):
        if kind == "F":
            held.add((stage, k))
            most = max(most, len(held))
        elif last[stage, k] == place:
            held.discard((stage, k))
    return most


def split_backward(log):
    """Of how many micro-batches the weights' gradient came later than the input's, with other work between."""
    at = {tuple(event): place for place, event in enumerate(log)}
    return sum(
        place > at["B", stage, k] + 1 for (kind, stage, k), place in at.items() if kind == "W" and ("B", stage, k) in at
    )


@pytest.mark.parametrize("world", [3, 4])
def test_each_schedule_does_its_work_in_its_own_order(solution, world):
    """The script gives the schedules; that each name means what is said of it, the passes themselves show."""
    kinds = [("gpipe", 2), ("gpipe", 6), ("1f1b", world + 1), ("interleaved", 2 * world), ("zero-bubble", 2 * world)]
    ranks = solution.call(checks.schedules_on_rank, world=world, seed=1, kinds=kinds).evidence
    for rank, left in enumerate(ranks):
        for (kind, m), seen in zip(kinds, left, strict=True):
            log = seen["log"]
            forwards = [place for place, event in enumerate(log) if event[0] == "F"]
            backwards = [place for place, event in enumerate(log) if event[0] != "F"]
            assert len(forwards) == m * (2 if kind == "interleaved" else 1)
            if kind == "gpipe":
                assert max(forwards) < min(backwards) and alive(log) == m
            if kind == "1f1b":
                assert alive(log) <= min(m, world - rank)
            if kind == "interleaved":
                first, second = ([place for place in forwards if log[place][1] == rank + k * world] for k in (0, 1))
                assert min(second) < max(first) and alive(log) < 2 * m
            if kind == "zero-bubble" and rank:
                assert split_backward(log) > 0


def test_a_heavy_head_gets_fewer_blocks_beside_it_and_nothing_else_changes(solution):
    """The head is worth 1.25 blocks here: the stages are cut by cost, and it is the serial run."""
    heavy = [*ADAM, *"--layers 8 --dim 2 --heads 1".split()]
    serial = checks.serial_run(solution, heavy)
    runs = [[2, heavy]]
    job = solution.call(mains_on_rank, world=2, group=False, runs=runs, data=corpus(solution), keep=checks.KEPT)
    same_report("on 2 ranks", reported(serial), reported(job, "out-0"))
    first, last = (left[0]["held"] for left in job.evidence)
    weights = {name: w.numel() for name, w in serial.evidence[0]["weights"].items()}
    block = sum(n for name, n in weights.items() if name.startswith("blocks.0."))
    ends = sum(n for name, n in weights.items() if "embedding" in name)
    assert first - ends == 5 * block and first + last == sum(weights.values())  # by number it would have 4 of 8


def test_the_serial_script_loads_its_checkpoint(solution, tmp_path):
    from utils.checkpoints import load_model

    job = mains(solution, 2, ["--microbatches 6"])
    path = tmp_path / "model-final.pt"
    path.write_bytes(job.files["out-0/model-final.pt"])
    assert load_model(path).config["n_layers"] == 4


@pytest.mark.parametrize(
    ("ranks", "flags", "words"),
    [
        (4, "--pp 3 --layers 3", "--pp 3: 4 ranks"),
        (4, "--pp 4", "--layers 2 is too few for 4 stages"),
        (2, "--schedule interleaved", "--layers 2 is too few for 4 stages"),
        (
            6,
            "--pp 2 --batch-size 25",
            "--batch-size 25 is the global batch and is not divisible by 3 data-parallel ranks",
        ),
        (2, "--microbatches 5", "--microbatches 5 does not divide the 24 sequences"),
        (4, "--layers 4 --microbatches 3", "needs --microbatches 4 or more, not 3"),
        (
            3,
            "--layers 3 --schedule zero-bubble --batch-size 21 --microbatches 7",
            "take a multiple of 3 for --microbatches",
        ),
        (2, "--dropout 0.1", "--dropout 0.1 with --pp 2"),
    ],
)
def test_what_makes_no_pipeline_is_refused_in_one_line(ranks, flags, words, capsys):
    parser = training_parser("pipeline_training")
    add_pipeline_flags(parser)
    args = parser.parse_args(flags.split())
    with pytest.raises(SystemExit) as end:
        check_pipeline(args, ranks)
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and words in said


@pytest.mark.parametrize("flags", ["", "--schedule gpipe --microbatches 1", "--schedule interleaved --layers 4"])
def test_what_makes_one_is_not_refused(flags):
    parser = training_parser("pipeline_training")
    add_pipeline_flags(parser)
    args = parser.parse_args(flags.split())
    check_pipeline(args, 2)
    assert args.pp == 2


def test_a_mistake_is_one_line_before_the_ranks_meet(tmp_path):
    done = subprocess.run(
        [sys.executable, "solutions/train/pipeline_training.py", "--pp", "2", "--out", str(tmp_path)],
        cwd=lessons.COURSE,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 2 and done.stderr == "error: --pp 2: 1 ranks cannot be divided into pipelines of 2\n", (
        done
    )


def test_as_typed_on_two_processes(tmp_path):
    """torchrun, from another folder; the losses are those of the serial script."""
    short = "--data random --max-steps 3 --dim 16 --heads 2 --seq-len 16 --log-every 1".split()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
    script = [
        str(lessons.COURSE / f"solutions/train/{name}.py") for name in ("single_gpu_training", "pipeline_training")
    ]
    commands = {
        "one": [sys.executable, script[0]],
        "two": [*torchrun, "--local-addr=127.0.0.1", "--nproc-per-node=2", script[1]],
    }
    seen = {}
    for name, command in commands.items():
        done = subprocess.run(
            [*command, *short, "--out", name], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0 and done.stdout.count("test loss") == 1, done
        lines = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        seen[name] = [json.loads(line)["loss"] for line in lines]
    assert seen["two"] == pytest.approx(seen["one"], rel=1e-4)


STAGE_IN_DDP = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

def work(rank, world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "data"))
    pp, data = mesh["pp"].get_local_rank(), mesh["data"].get_local_rank()
    errors = []
    runs = []
    for wrapped in (False, True):
        torch.manual_seed(pp)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
        group = mesh["data"].get_group()
        module = torch.nn.parallel.DistributedDataParallel(net, process_group=group, {how}) if wrapped else net
        stage = PipelineStage(module, pp, 2, torch.device("cpu"), group=mesh["pp"].get_group())
        runs.append((net, ScheduleGPipe(stage, 4, loss_fn=lambda h, y: ((h - y) ** 2).sum(), scale_grads=False)))
    for step in range(3):
        draw = torch.Generator().manual_seed(10 * step + data)
        x, y = torch.randn(8, 4, generator=draw), torch.randn(8, 4, generator=draw)
        for net, schedule in runs:
            net.zero_grad()
            try:
                schedule.step(*((x,) if pp == 0 else ()), target=y)
            except RuntimeError as error:
                raise RuntimeError(f"step {{step + 1}}: {{error.__cause__ or error}}")
        for right, seen in zip(*(net.parameters() for net, _ in runs)):
            dist.all_reduce(right.grad, group=mesh["data"].get_group())
            errors.append(((seen.grad - right.grad / 2).norm() / right.grad.norm()).item())
    return max(errors)
"""


@pytest.mark.parametrize("static", [False, True])
def test_a_stage_in_ddp_fails_or_is_wrong(solution, static):
    """What the script's docstring says of it. If this fails one day, the docstring is to be changed."""
    run = solution.runner.run(
        Job(
            [lessons.Unit("train/x.py", STAGE_IN_DDP.format(how=f"static_graph={static}"), "")],
            lesson="",
            function="tests.on_ranks:work",
            world=4,
        )
    )
    if static:
        assert run.fault is None and max(run.evidence) > 0.1, run
    else:
        said = run.fault.message
        assert "step 2" in said and "INTERNAL ASSERT FAILED" in said and "rebuilt_param_indices_" in said

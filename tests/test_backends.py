"""The choice of a backend, its refusals and words; and of what ranks do on GPUs, all that can be seen without one."""

import io
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from grader.engine.classroom import grade, records
from grader.engine.commands import notebook
from grader.engine.commands.arguments import backend_named
from grader.engine.commands.cli import app
from grader.engine.inside import on_gpu, rank
from grader.engine.judge.student_in_checks import Student
from grader.engine.lesson.lessons import COURSE
from grader.engine.ranks import backends
from grader.engine.ranks.backends import Backend, NoBackend, choose, for_a_class
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.run import Run
from grader.engine.walls import sandbox
from grader.kit.scripts import loaded, read
from tests.test_engine import launch
from utils import nccl

OLD, NEW = (2, 29, 7), (2, 30, 7)


@pytest.fixture
def machine(monkeypatch):
    """Lets torch say that there are GPUs, and an NCCL. The choice asks nothing else."""

    def has(gpus: int, version: tuple[int, ...] = NEW, visible: str | None = None) -> None:
        monkeypatch.setattr(torch.backends.cuda, "is_built", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.setattr(nccl, "version", lambda: version)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        else:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    return has


def test_without_a_gpu_it_is_gloo_and_nothing_is_said(machine):
    machine(0)
    assert choose("auto") == choose("gloo") == for_a_class("auto") == backends.GLOO
    assert backends.GLOO.story() == "" and backends.GLOO.devices(8) == [] and backends.GLOO.name == "gloo"
    with pytest.raises(NoBackend, match="--backend nccl: torch sees no GPU here"):
        choose("nccl")
    with pytest.raises(NoBackend, match="--backend mpi: must be auto, gloo or nccl"):
        choose("mpi")


def test_a_torch_without_nccl_says_so(machine, monkeypatch):
    machine(1)
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: False)
    assert choose("auto") == backends.GLOO
    with pytest.raises(NoBackend, match="has no NCCL"):
        choose("nccl")


def test_amds_gpus_are_not_taken_for_nvidias(machine, monkeypatch):
    machine(4)
    monkeypatch.setattr(torch.version, "cuda", None)
    assert choose("auto") == for_a_class("auto") == backends.GLOO
    with pytest.raises(NoBackend, match="--backend nccl: the checks use NVIDIA's driver"):
        choose("nccl")


def test_one_gpu_is_shared_from_2_30_on(machine):
    machine(1)
    chosen = choose("auto")
    assert chosen.name == "nccl" and chosen.devices(4) == ["0"] * 4 and chosen.devices(8) == ["0"] * 8
    assert chosen.story() == "backend: NCCL 2.30.7, on 1 GPU"


def test_an_older_nccl_has_a_rank_a_gpu_and_says_what_to_install(machine):
    machine(2, OLD)
    chosen = choose("auto")
    assert chosen.devices(2) == ["0", "1"] and chosen.devices(3) == []
    assert chosen.story().startswith(
        "backend: NCCL 2.29.7, on 2 GPUs; runs of more than 2 ranks use gloo, on CPUs. From NCCL 2.30 on"
    )
    for words in ("pip install 'nvidia-nccl-cu13>=2.30'", "NCCL_MULTI_RANK_GPU_ENABLE=1"):
        assert words in chosen.story()
    assert "\n" not in chosen.story()


def test_who_asks_for_nccl_gets_no_run_by_gloo(machine):
    machine(1, OLD)
    strict = choose("nccl")
    assert "runs of more than 1 rank are refused" in strict.story() and strict.devices(1) == ["0"]
    with pytest.raises(NoBackend, match="a run of 2 ranks: NCCL 2.29.7 can have 1 here, 1 a GPU. From NCCL 2.30 on"):
        strict.devices(2)


def test_a_class_has_one_backend(machine):
    machine(2, OLD)
    assert for_a_class("auto") == backends.GLOO
    with pytest.raises(NoBackend, match="a class is graded by one backend, and some checks run 9 ranks"):
        for_a_class("nccl")
    machine(2)
    assert for_a_class("nccl").devices(8) == ["0", "1"] * 4


@pytest.mark.parametrize(
    "visible, names", [(None, ("0", "1")), ("3, 1", ("3", "1")), ("GPU-a,GPU-b", ("GPU-a", "GPU-b"))]
)
def test_gpus_are_named_as_this_process_knows_them(machine, visible, names):
    machine(2, visible=visible)
    assert choose("auto").gpus == names


def test_a_rank_is_alone_on_a_node_with_its_gpu(monkeypatch, tmp_path):
    own, shared = (on_gpu.environment("3", shared=way) for way in (False, True))
    assert own["CUDA_VISIBLE_DEVICES"] == shared["CUDA_VISIBLE_DEVICES"] == "3"
    assert shared["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and "NCCL_MULTI_RANK_GPU_ENABLE" not in own
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.chdir(tmp_path)
    (tmp_path / "3").mkdir()
    rank.settle({"world": 4, "nodes": 1, "devices": ["0", "1", "0", "1"], "common": False}, tmp_path, 3)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "CUDA_VISIBLE_DEVICES")
    assert [os.environ[name] for name in names] == ["3", "4", "0", "1", "3", "1"]


def test_the_line_is_said_where_there_is_a_choice(machine, capsys):
    machine(0)
    assert backend_named("auto") == backends.GLOO and capsys.readouterr().out == ""
    machine(1)
    assert backend_named("auto").name == "nccl"
    assert capsys.readouterr().out == "backend: NCCL 2.30.7, on 1 GPU\n"


def test_a_notebook_says_it_once(machine, monkeypatch, capsys):
    monkeypatch.setattr(notebook.runner, "backend", backends.GLOO)
    machine(1)
    for wish, said in (("auto", "NCCL 2.30.7, on 1 GPU"), ("auto", ""), ("gloo", "gloo, on CPUs"), ("gloo", "")):
        notebook.take(wish)
        assert capsys.readouterr().out == (f"backend: {said}\n" if said else "")


def test_which_runs_are_on_gpus():
    """Those that have a group and are told no device, and references that ask for one; never what a check pretends."""
    asked = []

    class Recording(Runner):
        def run(self, job):
            asked.append(job.on_gpus)
            return Run(1, evidence=[None])

    def on_rank(code, rank, world):
        pass

    def serial(seed):
        pass

    a_gpu = Recording(backend=backends.Backend(("0",)))
    exercise, script = (Student(a_gpu, lesson, [], []) for lesson in ("03_zero", "fsdp_training"))
    for student, how in (
        (exercise, {}),
        (exercise, {"group": False}),
        (script, {}),
        (script, {"group": None}),
        (script, {"anywhere": True}),
        (script, {"anywhere": True, "nodes": 2}),
        (script, {"group": None, "gpus": 2}),
    ):
        student.call(on_rank, **how)
    script.run(["--data", "data"], {})
    script.run(["--data", "data"], {}, nodes=2)
    exercise.reference(serial, seed=1)  # in this process
    exercise.reference(serial, seed=2, on_gpus=True)
    Student(Recording(in_kernel=True), "03_zero", [], []).reference(serial, seed=3)
    assert asked == [True, False, False, True, True, False, False, True, False, True, False]


@pytest.mark.long
def test_a_class_keeps_its_backend(tmp_path):
    room = grade.open_class(tmp_path, ["01_collectives"], None, sandbox.OFF, 1, "nccl")
    assert room.backend == records.load(tmp_path).backend == "nccl"
    with pytest.raises(ValueError, match="was started with --backend nccl: a class is graded by one"):
        grade.open_class(tmp_path, ["01_collectives"], None, sandbox.OFF, 1, "gloo")


def test_walls_around_gpus(monkeypatch):
    monkeypatch.setattr(sandbox, "lacking", lambda walls: "")
    with pytest.raises(sandbox.NoSandbox, match="every user may read the solutions"):
        grade.try_walls("users", "gloo")
    monkeypatch.setattr(grade.lessons, "has_solutions", lambda: False)
    grade.try_walls("bubblewrap", "nccl")
    with pytest.raises(sandbox.NoSandbox, match="on GPUs there are bubblewrap and off"):
        grade.try_walls("users", "nccl")
    for gpus in (False, True):
        walls = sandbox.Sandbox(sandbox.OFF, COURSE, gpus=gpus)
        walls.remove()
        assert ("no limit of addresses" in sandbox.guards(walls.walls, gpus)) == gpus
        assert walls.memory == (sandbox.GPU_MEMORY if gpus else sandbox.TOTAL_MEMORY)


@pytest.mark.parametrize("gpus", [False, True])
def test_addresses_are_limited_but_for_gpus(gpus):
    body = """import psutil, resource
most, now = resource.getrlimit(resource.RLIMIT_AS)[0], psutil.Process().memory_info().vms
return "none" if most == resource.RLIM_INFINITY else most - now"""
    backend = Backend(("0",), NEW) if gpus else backends.GLOO
    with Runner() as outside, Runner(outside, sandbox.OFF, COURSE, ["tests.on_ranks"], backend=backend) as inside:
        run = launch(inside, body, world=1)
    assert run.fault is None
    left = run.evidence[0]
    assert left == "none" if gpus else abs(left - sandbox.MEMORY) < sandbox.GIB / 2


# What is lacking: a torch for CUDA, as PyPI has it for Linux, finds no GPU; another one has no NCCL.
LACKING = "--backend nccl: torch sees no GPU here" if torch.backends.cuda.is_built() else "--backend nccl: this torch"


@pytest.mark.skipif(torch.cuda.is_available(), reason="here there is a GPU")
class TestCommands:
    @pytest.mark.parametrize("command", [["check", "01_collectives/1"], ["watch", "01_collectives"]])
    def test_nccl_is_refused_in_one_line(self, command):
        done = CliRunner().invoke(app, [*command, "--backend", "nccl"])
        assert done.exit_code == 2 and LACKING in done.output and done.output.count("\n") == 1

    def test_nor_is_a_class_graded(self, tmp_path):
        (tmp_path / "class" / "ann").mkdir(parents=True)
        command = ["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--backend", "nccl"]
        command += ["--lessons", "01_collectives"]  # of all lessons, one that is not installed would be told
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 2 and LACKING in done.output and done.output.count("\n") == 1

    def test_pytest_refuses_too(self):
        command = [sys.executable, "-m", "pytest", "grader", "--backend", "nccl", "-q"]
        done = subprocess.run(command, cwd=COURSE, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 4 and f"ERROR: {LACKING}" in done.stderr + done.stdout

    def test_a_rank_that_gets_no_gpu_is_the_machines_failure(self):
        with Runner(backend=Backend(("0",), NEW)) as runner:
            with pytest.raises(RuntimeError, match=r"rank \d cannot use its GPU: libcuda"):
                launch(runner, "return 1", on_gpus=True)
            assert launch(runner, "return 1").evidence == [1, 1]  # nothing of it is left

    def test_no_code_of_the_students_can_say_so(self):
        with Runner() as runner:
            run = launch(
                runner,
                """
                dist.barrier()
                from grader.engine.inside.observe import Reporter
                Reporter.mine.say(e="unfit", text="no mark, please")
                """,
            )
        assert run.fault.cause == "crash" and "makes no sense" in run.fault.message


def test_the_server_does_not_touch_cuda():
    """A process that has cannot fork ranks that will. The calls that would are the driver's and the runtime's."""
    code = """
import torch
touched = []
for name in ("_cuda_getDeviceCount", "_cuda_init", "_cuda_setDevice"):
    setattr(torch._C, name, lambda *args, name=name: touched.append(name) or 0)
torch._C._cuda_getCurrentRawStream = None  # a name that a torch for CUDA has
import grader.kit
from grader.engine.judge.judge import checked_lessons
from grader.engine.lesson import lessons
from grader.engine.ranks.fork_server import load_checks
for lesson in checked_lessons():
    job = {"lesson": lesson, "package": "", "units": ["x"], "function": f"{lessons.on_ranks(lesson)[0]}:"}
    load_checks(job)
assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
print(touched, torch.cuda._initialized)
"""
    environment = {"PATH": "", "CUDA_VISIBLE_DEVICES": "", "PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(
        command, cwd=COURSE, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "[] False\n", done.stderr


def test_new_tensors_lie_on_the_device():
    meta = torch.device("meta")
    with on_gpu.as_default(meta):
        made = [
            torch.empty(2),
            torch.tensor([1.0]),
            torch.arange(3),
            torch.randn(2, generator=torch.Generator(), requires_grad=True),
            torch.nn.Linear(2, 2).weight,
            torch.zeros(2).normal_(generator=torch.Generator()),
            torch.randn_like(torch.zeros(2)),
        ]
        elsewhere = [torch.zeros(2, device="cpu")]
        with torch.device("cpu"):
            elsewhere += [torch.zeros(2), torch.rand(2), torch.nn.Linear(2, 2).weight]
    assert all(tensor.device == meta for tensor in made)
    assert all(tensor.device.type == "cpu" for tensor in elsewhere)
    assert made[3].is_leaf and made[3].requires_grad


def test_and_random_numbers_are_those_of_the_cpu():
    def drawn() -> list[torch.Tensor]:
        torch.manual_seed(3)
        generator = torch.Generator().manual_seed(4)
        return [
            torch.randn(3),
            torch.rand(2, generator=generator),
            torch.randperm(5),
            torch.randint(9, (4,)),
            torch.nn.Linear(3, 3).weight.detach(),
            torch.empty(3).uniform_(generator=generator),
            torch.nn.Embedding(3, 3).weight.detach(),
            torch.randn_like(torch.ones(2)),
        ]

    right = drawn()
    with on_gpu.as_default(torch.device("cpu")):
        seen = drawn()
    assert all(map(torch.equal, seen, right))
    state = torch.get_rng_state()
    with on_gpu.as_default(torch.device("meta")):  # nothing is drawn there: what the CPU has drawn is what was
        drawn()
    assert torch.equal(torch.get_rng_state(), state)


class Doubled(torch.autograd.Function):
    """Its backward pass makes a tensor."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        MADE.append(torch.ones(3))
        return 2 * grad


MADE: list[torch.Tensor] = []


def test_so_do_those_of_a_backward_pass():
    MADE.clear()
    with on_gpu.as_default(torch.device("meta")):
        x = torch.ones(3, requires_grad=True)
        Doubled.apply(x).sum().backward()
        torch.autograd.grad(Doubled.apply(x).sum(), x)
    assert [tensor.device.type for tensor in MADE] == ["meta", "meta"]


def test_a_checkpoint_of_a_gpu_is_read_on_the_cpu(monkeypatch):
    monkeypatch.setattr(torch.serialization, "location_tag", lambda storage: "cuda:0")
    saved = io.BytesIO()
    torch.save({"weight": torch.ones(3)}, saved)
    monkeypatch.undo()
    assert all(weights["weight"].device.type == "cpu" for weights in (loaded(saved.getvalue()), read(saved.getvalue())))


BY_HOST = """
from grader.engine.inside.observe import Reporter, mark, merciless_messages
Reporter.mine.host = dist.new_group(backend="gloo")._get_backend(torch.device("cpu"))
mark()
"""


def test_messages_of_gpus_go_by_the_host():
    """The tensors are on CPUs here; the way of a GPU's message is the same."""
    with Runner() as runner:
        for merciless in ("", "merciless_messages()"):
            run = launch(
                runner,
                BY_HOST
                + merciless
                + """
mine, theirs, anybody = torch.full((3,), float(rank)), torch.zeros(3), torch.zeros(2)
works = [dist.isend(mine, 1 - rank), dist.irecv(theirs, 1 - rank)]
before = theirs.clone()
for work in works: work.wait()
if rank: dist.send(torch.ones(2), 0, tag=7)
source = None if rank else dist.recv(anybody, tag=7)
return [before, theirs, anybody, source]
""",
            )
            assert run.fault is None, run.fault.message
            for rank, (before, theirs, anybody, source) in enumerate(run.evidence):
                assert before.tolist() == [0.0] * 3 and theirs.tolist() == [1.0 - rank] * 3
                assert (anybody.tolist(), source) == (([0.0, 0.0], None) if rank else ([1.0, 1.0], 1))
            done = [event for event in run.events[0] if event["e"] == "done" and "of" in event]
            assert [event["of"] for event in done] == [0, 1, 2] and done[-1]["source"] == 1


def test_a_deadlock_of_messages_by_the_host_is_told():
    with Runner() as runner:
        run = launch(runner, BY_HOST + "dist.recv(torch.zeros(3), 1 - rank)")
    assert run.fault.cause == "hang" and run.fault.message.startswith("deadlock: rank 0 waits in recv of")


def test_a_call_that_leaves_no_work_is_over_when_the_gpu_has_done_it():
    """As of NCCL's that is not asynchronous: an operation stands in for it, and what it returns is not there yet."""
    with Runner() as runner:
        run = launch(
            runner,
            """
            from torch.distributed import distributed_c10d as c10d
            from grader.engine.inside import observe, on_gpu
            observe.Reporter.mine.on_gpu, observe.Reporter.mine.merciless, late = True, True, []
            on_gpu.settle = lambda: late.pop().add_(5)

            class NCCL:
                _schema = torch.ops.c10d.allreduce_.default._schema
                def redispatch(self, keys, **given):
                    late.append(given["tensors"][0])
                    return given["tensors"], None

            kernel = observe.reporting(NCCL(), "allreduce_", torch._C._dispatch_keyset_full())
            call = eval(compile("lambda f, k, *a: f(k, *a)", c10d.__file__, "eval"))  # it must come from there
            tensor = torch.zeros(2)
            call(kernel, torch._C._dispatch_keyset_full(), [tensor], dist.group.WORLD.boxed())
            return [tensor, len(observe.Reporter.mine.in_flight)]
            """,
            world=1,
        )
    assert run.fault is None, run.fault.message
    assert [run.evidence[0][0].tolist(), run.evidence[0][1]] == [[5.0, 5.0], 0]
    assert [event["e"] for event in run.events[0]][-6:] == ["op", "starts", "started", "wait", "done", "end"]


def test_who_waits_busily_for_a_call_to_begin_is_no_loop():
    with Runner() as runner:
        run = launch(
            runner,
            """
            from torch.distributed import distributed_c10d as c10d
            from grader.engine.inside import observe
            observe.Reporter.mine.on_gpu = True

            class NCCL:
                _schema = torch.ops.c10d.allreduce_.default._schema
                def redispatch(self, keys, **given):
                    while True: pass

            kernel = observe.reporting(NCCL(), "allreduce_", torch._C._dispatch_keyset_full())
            call = eval(compile("lambda f, k, *a: f(k, *a)", c10d.__file__, "eval"))
            if rank == 0:
                call(kernel, torch._C._dispatch_keyset_full(), [torch.zeros(2)], dist.group.WORLD.boxed())
            """,
        )
    assert run.fault.cause == "hang" and run.fault_after < 1.0
    assert run.fault.message.startswith("deadlock: rank 0 waits in all_reduce of shape (2,)")
    assert "rank 1 never comes: it has finished" in run.fault.message

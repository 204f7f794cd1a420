"""Silence on a busy machine: a rank that waits for a processor is not asleep, and a sleeping one is still detected."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from grader.engine.ranks import cpu_time, run_session
from grader.engine.ranks.diagnose import Unjudged
from grader.engine.ranks.cpu_time import Pulse
from grader.engine.ranks.run_files import WHOLE, Traces
from grader.engine.ranks.linux_processes import Task, descendants, processes_below, tasks_of, wakes_by_itself
from tests.test_engine import launch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells who stands in line")
BUSY = """
everywhere = os.sched_getaffinity(0)
def stand_last(main=True):
    # Behind everybody, on the processor that is busy. (Linux shares it among sessions first, then within them.)
    move({min(everywhere)}, os.SCHED_IDLE, 19, main)
def come_back(main=True):
    move(everywhere, None, 0, main)
def move(onto, policy, nice, main):
    for thread in map(int, os.listdir("/proc/self/task")):
        if main or thread != os.getpid():
            os.sched_setaffinity(thread, onto)
            if policy is not None:
                os.sched_setscheduler(thread, policy, os.sched_param(0))
    if os.path.exists("/proc/self/autogroup"):
        open("/proc/self/autogroup", "w").write(str(nice))
"""


@pytest.fixture
def busy_loops():
    """Two processes that take all of one processor."""
    one = min(os.sched_getaffinity(0))
    forever = [sys.executable, "-S", "-c", "while True: pass"]
    loops = [subprocess.Popen(forever, start_new_session=True) for _ in range(2)]
    for loop in loops:
        os.sched_setaffinity(loop.pid, {one})
    yield
    for loop in loops:
        loop.kill()
        loop.wait()


def test_threads_that_starve_are_not_asleep(runner, busy_loops, monkeypatch):
    """The ranks' own threads wait for gloo's, and those get a thousandth of a processor."""
    monkeypatch.setattr(cpu_time, "SLEEP_LIMIT", 0.3)
    for size in (1_000_000, 4_000_000, 16_000_000, 64_000_000):  # until it takes long enough to prove something
        run = launch(
            runner,
            BUSY
            + f"""
t = torch.ones({size})
stand_last(main=False)
dist.all_reduce(t)
come_back(main=False)  # so that they can end soon
return t[0].item()
""",
        )
        assert run.fault is None, run.fault.message
        assert run.evidence == [2.0, 2.0]
        waited = [next(e["t"] for e in events if e["e"] == "done" and e["t"] > began(events)) for events in run.events]
        longest = max(end - began(events) for end, events in zip(waited, run.events))
        if longest > 2 * cpu_time.SLEEP_LIMIT:
            break
    assert longest > 2 * cpu_time.SLEEP_LIMIT, "it proves nothing"


def began(events):
    return next(event["t"] for event in events if event.get("op") == "all_reduce")


def among_busy_loops(runner, body):
    """Run a body with all threads of the ranks on the processor that is busy."""
    return launch(runner, f"{BUSY}\nmove({{min(everywhere)}}, None, 0, True)\n{body}")


def test_who_sleeps_on_a_busy_machine_is_told(runner, busy_loops, monkeypatch):
    monkeypatch.setattr(cpu_time, "SLEEP_LIMIT", 1.0)
    run = among_busy_loops(runner, "if rank == 1: time.sleep(10_000)\ndist.barrier()")
    assert run.fault and "rank 1 sleeps at train/x.py:" in run.fault.message


def test_who_asks_the_store_again_and_again_is_told(runner, busy_loops, monkeypatch):
    """torch's FileStore looks every few milliseconds whether the key is there, so it is often ready to run."""
    monkeypatch.setattr(cpu_time, "SLEEP_LIMIT", 1.0)
    run = among_busy_loops(runner, "dist.distributed_c10d._get_default_store().get(f'nobody sets this, rank {rank}')")
    assert run.fault and "sleeps at train/x.py:" in run.fault.message
    assert run.own_time < 4 * cpu_time.SLEEP_LIMIT


def test_who_computes_after_a_long_wait_is_not_asleep(runner, monkeypatch):
    monkeypatch.setattr(cpu_time, "SLEEP_LIMIT", 1.0)
    run = launch(
        runner,
        """
        time.sleep(0.9)
        started = time.process_time()
        while time.process_time() < started + 0.5: pass
        """,
    )
    assert run.fault is None, run.fault.message


def test_a_sleep_that_ends_is_no_deadlock(runner):
    """Each rank has begun a message that nobody receives yet, and works by waiting."""
    run = launch(
        runner,
        """
        mine, theirs = torch.ones(4), torch.zeros(4)
        sent = dist.isend(mine, 1 - rank)
        time.sleep(1)
        dist.recv(theirs, 1 - rank)
        sent.wait()
        return theirs[0].item()
        """,
    )
    assert run.fault is None, run.fault.message
    assert run.evidence == [1.0, 1.0]


def test_what_a_rank_has_started_counts(runner, monkeypatch):
    """As a loader's worker, for whose batch a rank waits."""
    monkeypatch.setattr(cpu_time, "SLEEP_LIMIT", 0.5)
    body = """
    import subprocess
    done = subprocess.run([sys.executable, "-S", "-c", "import time\\nwhile time.process_time() < SECONDS: pass"])
    return done.returncode
    """
    assert launch(runner, body.replace("SECONDS", "1")).evidence == [0, 0]
    monkeypatch.setattr(cpu_time, "STARTED_CPU", 0.5)
    assert "runs without end" in launch(runner, body.replace("SECONDS", "1000")).fault.message


def test_who_was_held_up():
    waits = Task("S", 1.0, 5.0)
    assert waits.held_up(waits, 0.05) == 0
    assert Task("R", 1.0, 5.0).held_up(waits, 0.05) == 0.05  # in line all the time
    assert Task("R", 1.05, 5.0).held_up(waits, 0.05) == 0  # it ran
    assert Task("S", 1.01, 5.03).held_up(waits, 0.05) == pytest.approx(0.03)
    assert Task("S", 1.01, 9.0).held_up(waits, 0.05) == 0.05  # since before we looked


def test_what_linux_tells():
    assert tasks_of(os.getpid())[os.getpid()].ran > 0
    child = subprocess.Popen([sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(100)"], stdout=-1)
    try:
        child.stdout.readline()
        assert child.pid in descendants(os.getpid())
        assert not wakes_by_itself(os.getpid())
    finally:
        child.kill()
        child.wait()
    assert tasks_of(child.pid) == {} and not wakes_by_itself(child.pid)


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_processes_below_one_are_known_with_what_they_use(monkeypatch, system):
    # The name of a program may have blanks and brackets, which stand in the kernel's line as they are.
    rename = "import ctypes; ctypes.CDLL(None).prctl(15, b'a) (b'); print(flush=True); input()"
    grandchild = [sys.executable, "-S", "-c", rename]
    child = subprocess.Popen(
        [sys.executable, "-S", "-c", f"import subprocess; subprocess.call({grandchild})"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    monkeypatch.setattr(sys, "platform", system)
    try:
        child.stdout.readline()
        found = {process.pid: process for process in processes_below({os.getpid()})}
        (below,) = [process for process in found.values() if process.parent == child.pid]
        assert found[child.pid].parent == os.getpid()
        assert (below.stopped, below.threads) == (False, system == "linux")
        if system == "linux":
            assert abs(below.resident - psutil.Process(below.pid).memory_info().rss) < 1 << 20
        assert processes_below({below.pid}) == []
        os.kill(below.pid, signal.SIGSTOP)
        while psutil.Process(below.pid).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert [process.stopped for process in processes_below({child.pid})] == [system == "linux"]
    finally:
        for process in processes_below({child.pid}):
            os.kill(process.pid, signal.SIGKILL)
        child.communicate()
    assert child.pid not in {process.pid for process in processes_below({os.getpid()})}


def test_a_machine_that_lets_nobody_run_is_to_blame():
    seen = Pulse(2, started=time.monotonic() - 2 * cpu_time.STARVED)
    seen.looked = seen.signs[0].at
    with pytest.raises(Unjudged, match="too busy"):
        seen.look({0: None, 1: None}, lambda n: True, lambda n: False, lambda n: [])


@pytest.mark.parametrize(
    ("on_gpu", "complete", "endless"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_who_spins_in_a_call_that_all_have_made_is_in_no_endless_loop(monkeypatch, on_gpu, complete, endless):
    """NCCL spins while it starts a group; gloo sleeps."""
    monkeypatch.setattr(cpu_time, "GPU_START", 0.0)
    seen = Pulse(1, time.monotonic(), on_gpu)
    seen.cpu_at_event[0] = time.process_time() - 2 * cpu_time.SILENT_CPU
    monkeypatch.setattr(cpu_time, "TOTAL_CPU", time.process_time() + 100)
    fault = seen.look({0: os.getpid()}, lambda n: True, lambda n: complete, lambda n: [])
    assert (fault is not None) == endless


def test_who_else_comes_to_a_wrong_call_is_asked_in_the_ranks_own_time(runner, busy_loops):
    """Ranks 1 and 2 differ; rank 0, which tells who is the odd one, comes late for want of a processor."""
    assert run_session.PATIENCE < 1
    run = launch(
        runner,
        BUSY
        + """
if rank == 0:
    stand_last()
    while time.thread_time() < 0.005: pass
    come_back()
dist.all_reduce(torch.ones(4)) if rank != 1 else dist.broadcast(torch.ones(4), 0)
""",
        world=3,
    )
    assert (run.fault.cause, run.fault.rank) == ("mismatch", 1), run.fault.message


def test_a_stack_that_is_being_written(tmp_path):
    """The judge may read it half: it takes whole lines only, and waits for the last one."""
    (tmp_path / "0").mkdir()
    frames = '  File "train/x.py", line 21 in work\n  File "train/x.py", line 7 in main\n'
    last = '  File "<frozen runpy>", line 198 in _run_module_as_main\n'
    for end in range(len(frames + last) + 1):
        (tmp_path / "0" / "stacks").write_text((frames + last)[:end])
        found = Traces(tmp_path, {"train/x.py"}).stack(0)
        assert found == [["train/x.py", 21, "work"], ["train/x.py", 7, "main"]][: (frames + last)[:end].count("\n")]
        assert bool(WHOLE.search((frames + last)[:end])) == (end == len(frames + last))
    (tmp_path / "0" / "stacks").write_text(f'  File "train/x.py", line {"9" * 5000} in work\n')  # forged
    assert Traces(tmp_path, {"train/x.py"}).stack(0) == []

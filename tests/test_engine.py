"""The engine: what ranks send arrives, each way to fail is told apart, nothing is left running."""

import errno
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import psutil
import pytest

from grader.engine.lesson import lessons
from grader.engine.lesson.lessons import Unit
from grader.engine.ranks import sandbox_limits, cpu_time
from grader.engine.ranks.server_connection import Connection
from grader.engine.ranks.diagnose import Unjudged
from grader.engine.ranks.runner import Runner
from grader.engine.ranks.job import Job
from grader.engine.ranks.message_rounds import collectives, left_in_flight, rehearse, written_in_flight
from grader.engine.walls import sandbox

TOP = "import os, signal, sys, time\nimport torch\nimport torch.distributed as dist\n"


def launch(runner, body, world=2, **how):
    """Run `work(rank, world)` with this body. Line 5 is the body's first."""
    text = TOP + "def work(rank, world):\n" + textwrap.indent(textwrap.dedent(body).strip("\n"), "    ") + "\n"
    return runner.run(
        Job([Unit("train/x.py", text, "")], lesson="", function="tests.on_ranks:work", world=world, **how)
    )


def test_each_rank_works_in_a_folder_of_its_own_unless_the_job_asks_for_a_common_one(runner):
    body = """
        open(f"of-{rank}", "w").write("x")
        open("both", "w").write(f"{rank}")
        dist.barrier()
        return sorted(os.listdir())
        """
    own, common = (launch(runner, body, common=common, files={"data/a.txt": "a"}) for common in (False, True))
    assert own.evidence == [["both", "data", "of-0"], ["both", "data", "of-1"]] and own.files["both"] == b"0"
    assert common.evidence == [["both", "data", "of-0", "of-1"]] * 2
    assert set(own.files) == set(common.files) == {"both", "data/a.txt", "of-0", "of-1"}


def test_evidence_arrives_rank_by_rank(runner):
    run = launch(
        runner,
        """
        t = torch.full((3,), float(rank))
        dist.all_reduce(t)
        return {"sum": t, "list": [rank, {"text": "ä", "none": None}], "half": t.bfloat16()}
        """,
        world=3,
    )
    assert run.fault is None
    for rank, seen in enumerate(run.evidence):
        assert seen["sum"].tolist() == [3.0] * 3 and seen["list"] == [rank, {"text": "ä", "none": None}]
        assert str(seen["half"].dtype) == "torch.bfloat16"
    op = next(e for e in run.events[0] if e.get("op") == "all_reduce")
    assert (op["bytes"], op["shape"], op["dtype"], op["detail"], op["where"]) == (
        12,
        [3],
        "float32",
        "SUM",
        ["train/x.py", 6, "work"],
    )


def test_nodes_and_environment(runner):
    run = launch(
        runner,
        "return [os.environ[n] for n in ('RANK', 'LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'GROUP_RANK')]",
        world=4,
        nodes=2,
    )
    assert run.evidence == [
        ["0", "0", "4", "2", "0"],
        ["1", "1", "4", "2", "0"],
        ["2", "0", "4", "2", "1"],
        ["3", "1", "4", "2", "1"],
    ]


def test_ranks_are_fresh(runner):
    body = "first = not hasattr(torch, 'mark'); torch.mark = 1; return [first, torch.rand(1).item()]"
    assert launch(runner, body).evidence == launch(runner, body).evidence
    assert launch(runner, body).evidence[0][0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such a policy")
def test_ranks_and_their_threads_use_batch_scheduling(runner):
    body = "return {os.sched_getscheduler(int(task)) for task in os.listdir('/proc/self/task')} == {os.SCHED_BATCH}"
    assert launch(runner, body).evidence == [True, True]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("return torch.oness(2)", "has no attribute 'oness' (perhaps 'ones'?), at train/x.py:"),
        ("world_size = 2; return world_siz", "name 'world_siz' is not defined (perhaps 'world_size'?), at"),
        ("return torch.ones(2).xyzzy", "has no attribute 'xyzzy', at"),
    ],
)
def test_a_misspelled_name_is_told_with_one_that_exists(runner, body, words):
    assert words in launch(runner, body).fault.message


def test_output_and_files_are_kept_apart(runner):
    run = launch(
        runner, "print('out', rank); print('err', rank, file=sys.stderr); open(f'f{rank}', 'w').write('x'); return 0"
    )
    assert run.stdout == ["out 0\n", "out 1\n"] and run.stderr == ["err 0\n", "err 1\n"]
    assert run.files == {"f0": b"x", "f1": b"x"}


FAULTS = {
    "skipped, and on": (
        "hang",
        1,
        6,
        "skipped a call",
        """
        if rank == 0:
            dist.all_reduce(torch.ones(4))
        dist.barrier()
        """,
    ),
    "skipped at the end": (
        "hang",
        1,
        6,
        "rank 1 never comes: it has finished",
        """
        if rank == 0:
            dist.all_reduce(torch.ones(4))
        """,
    ),
    "skipped, told by the majority": (
        "hang",
        1,
        6,
        "rank 1 skipped",
        """
        if rank != 1:
            dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(4, 2))
        """,
    ),
    "another operation": (
        "mismatch",
        1,
        5,
        "different operations",
        """
        dist.all_reduce(torch.ones(4)) if rank == 0 else dist.broadcast(torch.ones(4), 0)
        """,
    ),
    "another shape": ("mismatch", 1, 5, "different shapes", "dist.all_reduce(torch.ones(4 + rank))"),
    "another dtype": (
        "mismatch",
        1,
        5,
        "different dtypes",
        "dist.all_reduce(torch.ones(4, dtype=[torch.float32, torch.int32][rank]))",
    ),
    "another reduction": (
        "mismatch",
        1,
        5,
        "different roots or reductions",
        "dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)",
    ),
    "another root": ("mismatch", 1, 5, "different roots", "dist.broadcast(torch.ones(4), rank)"),
    "crash": (
        "crash",
        1,
        6,
        "ValueError: boo",
        """
        if rank == 1:
            raise ValueError("boo")
        dist.barrier()
        """,
    ),
    "the same crash everywhere, heard of in another order": (
        "crash",
        0,
        7,
        "ValueError: boo",
        """
        while rank == 0 and time.process_time() < 0.1:
            pass
        raise ValueError("boo")
        """,
    ),
    "a crash, and later another one": (
        "crash",
        1,
        8,
        "ValueError: boo",
        """
        while rank == 0 and time.process_time() < 0.1:
            pass
        if rank:
            raise ValueError("boo")
        raise KeyError
        """,
    ),
    "SystemExit": (
        "crash",
        1,
        6,
        "SystemExit",
        """
        if rank == 1:
            sys.exit(0)
        dist.barrier()
        """,
    ),
    "a message from rank -1": (
        "crash",
        0,
        5,
        "there is no rank -1 in a group of 2",
        "dist.recv(torch.ones(1), rank - 1) if rank == 0 else dist.barrier()",
    ),
    "endless loop": ("hang", 1, 5, "runs without end", "while rank == 1: pass"),
    "endless sleep": (
        "hang",
        1,
        6,
        "sleeps",
        """
        if rank == 1:
            time.sleep(10_000)
        dist.barrier()
        """,
    ),
    "os._exit(0)": (
        "crash",
        1,
        6,
        "exit code is never a pass",
        """
        if rank == 1:
            os._exit(0)
        dist.barrier()
        """,
    ),
    "killed": (
        "crash",
        1,
        6,
        "SIGKILL",
        """
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        """,
    ),
    "segmentation fault": (
        "crash",
        1,
        7,
        "SIGSEGV",
        """
        import ctypes
        if rank == 1:
            ctypes.string_at(0)
        dist.barrier()
        """,
    ),
    "send to send": (
        "hang",
        0,
        6,
        "waits in send",
        """
        t = torch.ones(2_000_000)
        dist.send(t, 1 - rank)
        dist.recv(t, 1 - rank)
        """,
    ),
    "a receive without a send": (
        "hang",
        1,
        6,
        "rank 1 never comes",
        """
        if rank == 0:
            dist.recv(torch.ones(4), 1)
        """,
    ),
    "a message of another size": (
        "mismatch",
        1,
        5,
        "message and its receiver differ",
        "dist.send(torch.ones(4), 1) if rank == 0 else dist.recv(torch.ones(5), 0)",
    ),
    "inside DDP's backward": (
        "hang",
        1,
        7,
        "rank 1 never comes",
        """
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
        for step in range(3 - rank):
            model(torch.ones(2, 4)).sum().backward()
        """,
    ),
    "another group's collective": (
        "hang",
        0,
        7,
        "rank 1",
        """
        pair = dist.new_group([0, 1])
        if rank == 0:
            dist.all_reduce(torch.ones(4), group=pair)
        elif rank == 1:
            dist.all_reduce(torch.ones(4))
        """,
    ),
}


@pytest.mark.parametrize(
    "words, told",
    [
        ("", "it was killed by SIGABRT"),
        ("no such file\n\n", "it was killed by SIGABRT; its last words: no such file"),
        # As C++ does where an exception is not caught.
        (
            "terminate called\n  what():  Invalid thread pool!\nframe #0: abort\n",
            "it was killed by SIGABRT; its last words: Invalid thread pool!",
        ),
    ],
)
def test_the_last_words_of_a_rank_that_is_killed(runner, words, told):
    run = launch(runner, f"os.write(2, {words.encode()!r}); os.abort()", world=1)
    assert run.fault.seen == told


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_told_apart_and_named(runner, name):
    cause, rank, line, words, body = FAULTS[name]
    run = launch(
        runner,
        body
        + "\n" * (not body.endswith("\n"))
        + ("" if "\n" not in body.strip() else textwrap.indent("return {}", "        ")),
        world=3 if "majority" in name else 2,
    )
    fault = run.fault
    assert fault is not None
    assert (fault.cause, fault.rank, fault.where and fault.where[1]) == (cause, rank, line), fault.message
    assert words in fault.message
    # Twice the longest silence that is borne; benchmarks/faults.py measures both.
    assert run.own_time < 2 * cpu_time.SLEEP_LIMIT and run.fault_after < 60


@pytest.mark.parametrize(
    ("words", "loop"),
    [
        ("makes one call after another", "dist.all_reduce(torch.ones(1))"),
        ("waits for none of them", "works.append(dist.all_reduce(torch.ones(1), async_op=True))"),
    ],
)
def test_an_endless_loop_that_communicates_ends(runner, words, loop):
    """Each of its calls is a sign of life."""
    fault = launch(runner, f"works = []\nwhile True:\n    {loop}\n").fault
    assert (fault.cause, fault.where[1]) == ("hang", 7) and words in fault.message


def test_a_right_run_after_each_kind_of_end(runner):
    for body in ("os._exit(3)", "while True: pass", "raise ValueError"):
        assert launch(runner, body).fault
        assert launch(runner, "dist.barrier(); return rank").evidence == [0, 1]


def test_a_rank_that_ends_before_it_is_known_to_have_begun(runner, monkeypatch):
    answer = Connection.answer

    def late(self):
        """As on a busy machine: the server has said all that it has to say before anybody listens."""
        while self.socket.recv(1 << 16, socket.MSG_PEEK).partition(b'"pids"')[2].count(b'"gone"') < 2:
            pass
        monkeypatch.setattr(Connection, "answer", answer)
        return answer(self)

    assert launch(runner, "return rank").evidence == [0, 1]  # it is ready
    monkeypatch.setattr(cpu_time, "STARVED", 5.0)
    monkeypatch.setattr(Connection, "answer", late)
    fault = launch(runner, "os._exit(3)", group=False).fault
    assert (fault.cause, fault.rank) == ("crash", 0) and "left by os._exit(3)" in fault.message


def test_a_machine_too_busy_is_to_blame_unless_what_the_ranks_left_running_keeps_it_so(monkeypatch):
    monkeypatch.setattr(cpu_time, "STARVED", 2.0)
    monkeypatch.setattr(cpu_time.Task, "held_up", lambda self, before, seconds: seconds)  # no rank is ever let run
    crowded_out = sandbox_limits.crowded_out
    monkeypatch.setattr(sandbox_limits, "crowded_out", lambda server, ranks, _: crowded_out(server, ranks, 0.02))
    burns = """
        if rank == 0 and os.fork() == 0:
            if os.fork():  # its child is no descendant of the rank's
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                pass
        time.sleep(600)
        """
    with Runner() as outside, Runner(outside, sandbox.OFF, lessons.COURSE, ["tests.on_ranks"]) as inside:
        with pytest.raises(Unjudged, match="too busy"):
            launch(inside, "time.sleep(600)")
        fault = launch(inside, burns).fault
        assert fault.cause == "hang" and "processes that they left running take the processors" in fault.message
        assert launch(inside, "return rank").evidence == [0, 1]


def test_a_sandbox_that_ranks_filled_is_replaced(monkeypatch):
    """Or each could make the next run the machine's failure."""
    make_folders, full = Job.make_folders, [OSError(errno.ENOSPC, "no space")]

    def where_nothing_is_left(job, folder):
        if full:
            raise full.pop()
        make_folders(job, folder)

    monkeypatch.setattr(Job, "make_folders", where_nothing_is_left)
    with Runner() as outside, Runner(outside, sandbox.OFF, lessons.COURSE, ["tests.on_ranks"]) as inside:
        assert launch(inside, "return rank").evidence == [0, 1]
        full += [OSError(errno.ENOSPC, "no space")] * 2
        with pytest.raises(OSError):
            launch(inside, "return rank")


def test_what_python_needs_of_tmp_is_there_behind_the_walls(monkeypatch):
    """Each rank has a /tmp of its own; a course, or its packages, may lie in the machine's."""
    if lacking := sandbox.lacking(sandbox.BUBBLEWRAP):
        pytest.skip(lacking)
    body = """
        import lies_in_tmp
        try:
            open(lies_in_tmp.__file__, "w")
        except OSError as error:
            return lies_in_tmp.WORD, os.path.exists({other!r}), error.errno
        """
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, tempfile.TemporaryDirectory(dir="/tmp") as other:
        (Path(folder) / "lies_in_tmp.py").write_text("WORD = 'here'")
        monkeypatch.setenv("PYTHONPATH", folder)
        monkeypatch.syspath_prepend(folder)
        with Runner() as outside, Runner(outside, sandbox.BUBBLEWRAP, lessons.COURSE, ["tests.on_ranks"]) as inside:
            run = launch(inside, body.format(other=other))
    assert not run.fault, run.fault
    assert run.evidence == [["here", False, errno.EROFS]] * 2, run.evidence


def test_nothing_is_left_running(runner):
    run = launch(
        runner,
        """
        children = []
        for daemon in (False, True):
            said, say = os.pipe()
            if os.fork() == 0:
                if daemon:  # a session of its own, and no parent
                    os.setsid()
                    if os.fork():
                        os.kill(os.getpid(), signal.SIGKILL)
                os.write(say, str(os.getpid()).encode())
                time.sleep(10_000)
            children.append(int(os.read(said, 20)))
        return children
        """,
    )
    assert run.fault is None, run.fault.message
    children = [pid for children in run.evidence for pid in children]
    alive = [process for process in psutil.process_iter() if process.pid in children]
    assert not psutil.wait_procs(alive, timeout=30)[1]


def test_the_server_dies_with_its_judge():
    code = (
        "import os, sys; from grader.engine.ranks.runner import Runner; from tests.test_engine import launch\n"
        "e = Runner(); launch(e, 'return 0'); print(e.server.process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=lessons.COURSE, stdout=subprocess.PIPE, text=True)
    assert done.returncode == -signal.SIGKILL
    try:
        psutil.Process(int(done.stdout)).wait(timeout=60)
    except psutil.NoSuchProcess:
        pass


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_ranks_die_with_their_server():
    """Even a rank in an endless loop, even when the server is killed without a word."""
    code = """if True:
        import os
        from grader.engine.ranks import run_session
        from grader.engine.ranks.runner import Runner
        from tests.test_engine import launch

        runner = Runner()
        launch(runner, "return 0")
        plain = run_session.Session.look

        def end(self):
            if None in self.pids:  # not all ranks have said who they are
                return plain(self)
            print(*self.pids, flush=True)
            os.kill(runner.server.process.pid, 9)
            os.kill(os.getpid(), 9)

        run_session.Session.look = end
        launch(runner, "while True: pass")
        """
    done = subprocess.run([sys.executable, "-c", code], cwd=lessons.COURSE, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in done.stdout.split()]
    assert len(pids) == 2
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    assert not psutil.wait_procs(processes, timeout=10)[1]


def test_two_engines_at_once(runner):
    with Runner() as other:
        other.start()
        for _ in range(3):
            assert launch(runner, "dist.barrier(); return 1").evidence == [1, 1]
            assert launch(other, "dist.barrier(); return 2").evidence == [2, 2]


def test_correct_communication_is_no_fault(runner):
    """Late ranks, unequal work, messages both ways, subgroups, a sleep: none is a deadlock."""
    run = launch(
        runner,
        """
        t = torch.ones(200_000)
        if rank == 1:
            time.sleep(0.8)
        dist.all_reduce(t)
        leaves = dist.P2POp(dist.isend, t, (rank + 1) % world)
        requests = dist.batch_isend_irecv([leaves, dist.P2POp(dist.irecv, t.clone(), (rank - 1) % world)])
        [r.wait() for r in requests]
        pair = dist.new_group([0, 1])
        if rank < 2:
            dist.all_reduce(torch.ones(3), group=pair)
        objects = [None] * world
        dist.all_gather_object(objects, {"rank": rank})
        dist.monitored_barrier()
        late = dist.all_reduce(torch.ones(5), async_op=True)
        sum(range(3_000_000))
        late.wait()
        return objects
        """,
        world=3,
    )
    assert run.fault is None, run.fault.message
    assert run.evidence[2] == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_an_interrupt_leaves_a_working_engine(runner, monkeypatch):
    from grader.engine.ranks import run_session

    def interrupted(session):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_session.Session, "look", interrupted)
        with pytest.raises(KeyboardInterrupt):
            launch(runner, "time.sleep(10_000)")
    assert launch(runner, "return rank").evidence == [0, 1]


MERCILESS = "from grader.kit import merciless_messages; merciless_messages()\n"


def test_a_merciless_message_arrives_at_its_wait_and_no_earlier(runner):
    run = launch(
        runner,
        MERCILESS
        + textwrap.dedent("""
        t = torch.full((3,), 7.0) if rank == 0 else torch.zeros(3)
        if rank == 0:
            dist.send(t, 1)
            dist.barrier()
            return t
        work = dist.irecv(t, 0)
        dist.barrier()  # by now it is here
        early = t.clone()
        work.wait()
        return [early, t]
        """),
    )
    assert run.fault is None, run.fault
    assert [t.tolist() for t in run.evidence[1]] == [[0.0] * 3, [7.0] * 3]


def test_a_merciless_message_tells_who_writes_into_it(runner):
    run = launch(
        runner,
        MERCILESS
        + textwrap.dedent("""
        t, u = torch.full((3,), float("nan")), torch.zeros(3)
        work, other = dist.isend(t, 1 - rank), dist.irecv(u, 1 - rank)
        if rank == 1:
            t[0] = 1
        work.wait(); other.wait()
        """),
    )
    assert run.fault is None, run.fault
    assert [written_in_flight([events]) != [] for events in run.events] == [False, True]


@pytest.mark.parametrize("first", ["send", "recv"])
@pytest.mark.parametrize("begin, told", [(2, True), (3, False)])
def test_a_merciless_message_tells_of_another_one_in_its_memory(runner, first, begin, told):
    run = launch(
        runner,
        MERCILESS
        + textwrap.dedent(f"""
        t = torch.zeros(6)
        calls = {{"send": lambda: dist.isend(t[:3], 1 - rank), "recv": lambda: dist.irecv(t[{begin}:][:3], 1 - rank)}}
        works = [calls[name]() for name in sorted(calls, key="{first}".__ne__)]
        for work in works:
            work.wait()
        """),
    )
    assert run.fault is None, run.fault
    assert [[loose.op for loose in written_in_flight([events])] for events in run.events] == [[first] * told] * 2


def test_a_merciless_collective_arrives_at_its_wait_and_no_earlier(runner):
    run = launch(
        runner,
        MERCILESS
        + textwrap.dedent("""
        t, u = torch.full((3,), 1.0 + rank), torch.full((2,), float(rank))
        work, other = dist.all_reduce(t, async_op=True), dist.broadcast(u, 1, async_op=True)
        dist.barrier()  # by now they are over
        early = [t.clone(), u.clone()]
        work.wait(); other.wait()
        sync = torch.ones(2)
        dist.all_reduce(sync)
        return [*early, t, u, sync]
        """),
    )
    assert run.fault is None, run.fault
    assert [t.tolist() for t in run.evidence[0]] == [[1.0] * 3, [0.0] * 2, [3.0] * 3, [1.0] * 2, [2.0] * 2]


def test_a_merciless_collective_tells_who_writes_into_it_and_who_does_not_wait(runner):
    run = launch(
        runner,
        MERCILESS
        + textwrap.dedent("""
        t, u, v = torch.ones(3), torch.ones(3), torch.ones(3)
        works = [dist.all_reduce(x, async_op=True) for x in (t, u, v)]
        if rank == 1:
            u /= 2
        works[0].wait(); works[1].wait()
        """),
    )
    assert run.fault is None, run.fault
    seen = collectives([[e for e in events if e.get("op") != "init_process_group"] for events in run.events])
    assert [(c.rank, c.over is not None, c.written) for c in seen] == [
        (0, True, False),
        (0, True, False),
        (0, False, False),
        (1, True, False),
        (1, True, True),
        (1, False, False),
    ]
    assert {(c.op, c.bytes) for c in seen} == {("all_reduce", 12)} and seen[0].where[:2] == ["train/x.py", 8]


@pytest.mark.parametrize("merciless", ["", MERCILESS])
def test_a_collective_is_over_for_whoever_takes_its_future(runner, merciless):
    run = launch(
        runner,
        merciless
        + textwrap.dedent("""
        t = torch.ones(3)
        return dist.all_reduce(t, async_op=True).get_future().wait()[0]
        """),
    )
    assert run.fault is None, run.fault
    assert run.evidence[1].tolist() == [2.0] * 3
    assert all(call.over is not None for call in collectives(run.events))


def test_a_model_in_ddp_learns_though_messages_are_merciless(runner):
    """Its reducer waits in C++: nothing is hidden from it."""
    run = launch(
        runner,
        MERCILESS
        + textwrap.dedent("""
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
        model(torch.tensor([[1.0 + rank, 2.0]])).sum().backward()
        return model.module.weight.grad
        """),
    )
    assert run.fault is None, run.fault
    assert [grad.tolist() for grad in run.evidence] == [[[1.5, 2.0]]] * 2


def test_messages_of_a_run_are_told(runner):
    run = launch(
        runner,
        """
        t, parts = torch.zeros(3), [torch.zeros(2), torch.zeros(2)]
        if rank == 0:
            dist.recv(t)
            for work in [dist.isend(part, 1, tag=5) for part in parts]:
                work.wait()
        else:
            dist.send(t, 0)
            dist.irecv(parts[0], 0, tag=5)
            dist.recv(parts[1], 0, tag=5)
        """,
    )
    assert run.fault is None, run.fault
    messages, deadlock = rehearse(run.events)
    assert deadlock is None and [(m.round, m.source, m.target, m.bytes) for m in messages] == [
        (1, 1, 0, 12),
        (2, 0, 1, 8),
        (3, 0, 1, 8),
    ]
    assert all(m.arrived > m.sent for m in (messages[0], messages[2]))  # nobody waited for the other one
    (loose,) = left_in_flight(run.events)
    assert (loose.rank, loose.call, loose.where) == (1, "irecv from rank 0", ["train/x.py", 12, "work"])


def test_which_threads_the_main_one_need_not_wait_for(runner):
    """It waits for autograd's threads, which Python's threading has not started: one for each GPU."""
    run = launch(
        runner,
        """
        import _thread, threading
        dist.all_reduce(torch.ones(1))
        beside = threading.Thread(target=dist.all_reduce, args=(torch.ones(2),))
        beside.start()
        beside.join()
        over = threading.Event()
        _thread.start_new_thread(lambda: (dist.all_reduce(torch.ones(3)), over.set()), ())
        over.wait()
        """,
    )
    assert run.fault is None, run.fault
    for events in run.events:
        calls = [event for event in events if event.get("op") == "all_reduce"]
        assert [(event["shape"], event.get("aside", False)) for event in calls] == [
            ([1], False),
            ([2], True),
            ([3], False),
        ]


def test_bytes_for_each_rank_of_an_all_to_all(runner):
    run = launch(
        runner,
        """
        three = torch.ones(3, 2)
        dist.all_to_all_single(torch.empty(3, 2), three, [1, 2] if rank else [2, 1], [2, 1] if rank == 0 else [1, 2])
        dist.all_to_all_single(torch.empty(4), torch.ones(4))
        dist.all_to_all([torch.empty(3), torch.empty(3)], [torch.ones(3), torch.ones(3)])
        """,
    )
    assert run.fault is None, run.fault
    assert [(c.rank, c.pieces, c.sent) for c in collectives(run.events)] == [
        (0, ((1, 8),), 8),
        (0, ((1, 8),), 8),
        (0, ((1, 12),), 12),
        (1, ((0, 8),), 8),
        (1, ((0, 8),), 8),
        (1, ((0, 12),), 12),
    ]


OWN_GROUPS = """
    first = rank - rank % 2
    own = dist.new_group([first, first + 1])
    x = torch.ones(1)
    dist.all_reduce(x, group=own)
    return x
    """


def test_each_rank_makes_every_group(runner):
    fault = launch(runner, OWN_GROUPS, world=4).fault
    assert fault.cause == "mismatch" and "the ranks call new_group for different groups" in fault.message
    assert "new_group (ranks [0, 1])" in fault.message and "new_group (ranks [2, 3])" in fault.message
    assert "each rank makes every group" in fault.hint
    one = launch(runner, "if rank == 0: dist.new_group([0, 1])\nreturn 1", world=2).fault
    assert one.cause == "hang" and "each rank makes every group" in one.hint
    every = """
        groups = [dist.new_group([0, 1]), dist.new_group(ranks=(3, 2)), dist.new_group()]
        x = torch.ones(1)
        dist.all_reduce(x, group=groups[rank // 2])
        return x
        """
    assert launch(runner, every, world=4).fault is None
    local = OWN_GROUPS.replace("first + 1])", "first + 1], use_local_synchronization=True)")
    assert launch(runner, local, world=4).fault is None


def test_a_rank_that_sleeps_is_told_with_where_the_others_are(runner, monkeypatch):
    monkeypatch.setattr(cpu_time, "SLEEP_LIMIT", 0.5)
    body = """
        if rank == 0:
            import threading
            lock = threading.Lock()
            lock.acquire() and lock.acquire()
        if rank == 1:
            return 1
        dist.barrier()
        """
    fault = launch(runner, body, world=3).fault
    assert fault.cause == "hang" and "rank 0 sleeps at train/x.py:8 and nothing will wake it" in fault.message
    assert "; rank 1 is not there: it has finished" in fault.message and "; rank 2 waits in barrier" in fault.message


def test_what_torch_says_of_a_checkpoint_is_the_ranks_own_reason(runner):
    body = """
        import torch.distributed.checkpoint as dcp
        dcp.save({"a": torch.ones(2)}, checkpoint_id="c")
        dcp.load({"a": torch.ones(2), "b": torch.ones(2)}, checkpoint_id="c")
        """
    fault = launch(runner, body, world=2, common=True).fault
    assert fault.cause == "crash" and "CheckpointException" not in fault.message, fault.message
    assert "RuntimeError: Missing key in checkpoint state_dict: b" in fault.message and "train/x.py:7" in fault.message


def test_a_fault_is_told_with_the_checks_case(runner):
    body = """
        from grader.engine.inside.observe import mark
        mark(told="where all is well")
        if rank == 0:
            mark(told="where rank 1 is late")
            1 / ZERO
        dist.barrier()
        if rank == 1:
            dist.recv(torch.ones(1), 0)
        """
    crash = launch(runner, body.replace("ZERO", "0"), world=2).fault
    assert crash.scenario == "where rank 1 is late" and crash.message.startswith("where rank 1 is late: rank 0 stopped")
    hang = launch(runner, body.replace("1 / ZERO", "dist.barrier(); dist.barrier()"), world=2).fault
    assert hang.cause == "hang" and hang.message.startswith("where all is well: "), hang.message

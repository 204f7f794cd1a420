"""A class full of cheats and vandals: each gets the mark that its work deserves, nothing gets out, and the class goes
on.

The attacks are in hostile/corpus.py; `python tests/hostile/table.py` shows them one by one.
"""

import ast
import builtins
import csv
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from contextlib import suppress

import nbformat
import psutil
import pytest
import torch
from nbgrader.api import Gradebook

import hostile.corpus
from course_copy import Course
from grader.engine.classroom import submitters, gradebook, pages, records, submissions, worker
from grader.engine.commands import grading_progress
from grader.engine.inside import read_submission
from grader.engine.jobs import batch_file
from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import Wrong
from grader.engine.lesson import submission_files, lessons, parsing
from grader.engine.ranks import rank_endings, events, evidence, cpu_time
from grader.engine.ranks.job import Job
from grader.engine.ranks.message_rounds import least_bytes
from grader.engine.ranks.runner import Runner
from grader.engine.walls import sandbox
from grader.kit import check_last_weights, check_parts_travel, same_run
from hostile.corpus import ATTACKS, NAMES
from hostile.posts import ALL
from hostile.trials import HONEST, Room
from hostile.users import READABLE, for_users
from lesson_checks import everything


@pytest.fixture(scope="module")
def bubblewrap(tmp_path_factory):
    """A class with one worker; at its end an honest submission: the class goes on."""
    if lacking := sandbox.lacking(sandbox.BUBBLEWRAP):
        pytest.skip(lacking)
    with Room(tmp_path_factory.mktemp("bubblewrap") / "class", sandbox.BUBBLEWRAP) as room:
        yield room
        assert not room.trial(HONEST).wrong


def each(attacks):
    """A test of its own for each attack, so that its name says what broke."""
    return pytest.mark.parametrize("attack", attacks, ids=[attack.name for attack in attacks])


@pytest.mark.drawn
@each(ALL)
def test_behind_bubblewrap(bubblewrap, attack):
    wrong = bubblewrap.trial(attack).wrong
    assert not wrong, "\n".join(["", *wrong])


@for_users
def test_between_users(tmp_path):
    tmp_path.chmod(0o711)
    table = lessons.COURSE / "tests" / "hostile" / "table.py"
    command = [*READABLE, "--bind", tmp_path, "/mnt", "--setenv", "TMPDIR", "/mnt", sys.executable, table, "--users"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "an honest submission" in done.stdout and done.returncode == 0, done.stdout + done.stderr


def test_the_corpus_is_long_and_its_names_are_different():
    assert len({attack.name for attack in ALL}) == len(ALL) >= 120


def test_each_claim_names_an_attack_or_a_test_that_there_is():
    """In THREATS.md, in italics and by `test_…`."""
    text = re.sub(r"\*\*.*?\*\*", "", (lessons.COURSE / "grader" / "THREATS.md").read_text("utf-8"), flags=re.DOTALL)
    named = {" ".join(claim.split()) for claim in re.findall(r"\*([^*`]+)\*", text)} - {"italics"}
    assert len(named) > 30 and named <= {attack.name for attack in ALL}
    here = lessons.COURSE / "tests"
    known = {name for path in here.glob("*.py") for name in re.findall(r"def (test_\w+)", path.read_text("utf-8"))}
    assert set(re.findall(r"`(test_\w+)`", text)) <= known


@pytest.mark.skipif(not psutil.LINUX, reason="the attacks are written for Linux")
def test_without_walls_they_would_get_through(tmp_path):
    """Or the attacks would prove nothing."""
    with Room(tmp_path / "class", sandbox.OFF) as room:
        for attack in ATTACKS:
            if attack.name in ("reading the instructor's files", "reading others' folders"):
                trial = room.trial(attack)
                assert any("does not say “the loot is []”" in problem for problem in trial.wrong), trial


def test_ranks_that_each_train_the_whole_serial_run_are_told_that_they_send_nothing(runner):
    """They have its losses and its weights."""
    ddp = everything("ddp_training")
    alone = "import os\nos.environ['WORLD_SIZE'] = '1'\n"
    units = [unit._replace(text=alone + unit.text) for unit in lessons.units(lessons.BASELINE, lessons.source_root())]
    cheat = Student(runner, "ddp_training", units, [])
    with pytest.raises(Wrong, match=r"on 2 ranks: rank 0 sends only 0 bytes, by nothing"):
        same_run(ddp.serial_run(cheat), ddp.whole_run(cheat, 2), 2)


# Each rank trains the whole serial run, and after each step says what the answer would have sent.
SAYS_IT_TRAVELLED = """
import os
os.environ["WORLD_SIZE"] = "1"
from torch.optim.optimizer import register_optimizer_step_post_hook
from grader.engine.inside.observe import Reporter
def travelled(optimizer, *_):
    size = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    about = dict(group=[0, 1], name="1/0", shape=[size], dtype="float32", bytes=4 * size, detail=None, where=None)
    for op in {ops}:
        Reporter.mine.say(e="op", op=op, callers=[], ours=False, **about)
register_optimizer_step_post_hook(travelled)
"""


@pytest.mark.parametrize("ops", [("all_reduce",), ("all_gather", "reduce_scatter"), ("broadcast",) * 4])
def test_ranks_that_train_the_whole_serial_run_and_forge_its_messages_are_flagged(ops):
    """The kernel saw no such bytes."""
    if lacking := sandbox.lacking(sandbox.BUBBLEWRAP):
        pytest.skip(lacking)
    ddp = everything("ddp_training")
    text = SAYS_IT_TRAVELLED.format(ops=ops)
    units = [unit._replace(text=text + unit.text) for unit in lessons.units(lessons.BASELINE, lessons.source_root())]
    with Runner() as outside, Runner(outside, sandbox.BUBBLEWRAP, lessons.COURSE) as inside:
        cheat = Student(inside, "ddp_training", units, [])
        ddp.whole_run(cheat, 2)
    assert len(cheat.suspicions) == 1 and cheat.suspicions[0].endswith("over their network went 0")


# Each operation that moves bytes.
TRAVELS = """
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x = lambda size=30_000: torch.ones(size)
parts = [x() for _ in range(n)]
{call}
dist.destroy_process_group()
"""
OPERATIONS = [
    "dist.all_reduce(x())",
    "dist.all_reduce_coalesced([x(), x(7)])",
    "dist.broadcast(x(), 1)",
    "dist.reduce(x(), 1)",
    "dist.gather(x(), parts if rank == 1 else None, 1)",
    "dist.scatter(x(), parts if rank == 1 else None, 1)",
    "dist.all_gather(parts, x())",
    "dist.all_gather_into_tensor(x(30_000 * n), x())",
    "dist.reduce_scatter_tensor(x(), x(30_000 * n))",
    "dist.all_to_all_single(x(30_000 * n), x(30_000 * n))",
    "dist.all_to_all_single(x(n * 10_000 * (rank + 1)), torch.cat([x(10_000 * (r + 1)) for r in range(n)]), "
    "[10_000 * (rank + 1)] * n, [10_000 * (r + 1) for r in range(n)])",
    "dist.send(x(), 1) if rank == 0 else dist.recv(x()) if rank == 1 else None",
]


@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_ranks_say_that_they_send_the_kernel_counts(world):
    """For each of gloo's operations: an honest run has no flag, and a forged one needs the bytes of all ranks."""
    if lacking := sandbox.lacking(sandbox.BUBBLEWRAP):
        pytest.skip(lacking)
    with Runner() as outside, Runner(outside, sandbox.BUBBLEWRAP, lessons.COURSE) as inside:
        for call in OPERATIONS:
            unit = lessons.Unit("train/x.py", TRAVELS.format(call=call), "")
            run = inside.run(Job([unit], "ddp_training", world, argv=[]))
            claimed = least_bytes(run.events)
            assert not run.fault and not run.posted, (call, run.fault, run.posted)
            assert claimed < run.wire < 3 * claimed, (call, claimed, run.wire)  # a reduce-scatter is an all-reduce


def test_a_few_bytes_or_one_large_call_are_not_a_run_of_many_steps():
    """What each script's check asks for beside equal numbers."""
    call = dict(e="op", op="all_reduce", group=[0, 1], name="1/0", shape=[250], dtype="float32", detail="SUM", t=0.0)

    def said(nbytes, times):
        return [[{**call, "bytes": nbytes, "where": None}] * times] * 2

    check_parts_travel("it", said(100, 5), 1000, 5)
    with pytest.raises(Wrong, match="rank 0 sends only 250 bytes"):
        check_parts_travel("it", said(50, 5), 1000, 5)
    with pytest.raises(Wrong, match="rank 0 makes 1 call to send, in 5 steps"):
        check_parts_travel("it", said(1000, 1), 1000, 5)


def test_what_takes_too_long_to_read_is_refused(runner, monkeypatch):
    """Whatever a library does with an archive or a file: its rank may use so many seconds of CPU, and no more."""
    monkeypatch.setattr(cpu_time, "SILENT_CPU", 0.1)
    monkeypatch.setattr(submissions, "READING", "tests.on_ranks")
    for function, problem in (("reads_without_end", submissions.TOO_LONG), ("reads", None)):
        left, _ = submissions.read_inside(runner, "01_collectives", {"a.tar": b""}, function, archive="a.tar")
        assert left.get("problem") == problem


def test_a_rank_that_ends_while_it_reads_is_a_problem_of_the_submission(runner, monkeypatch):
    monkeypatch.setattr(submissions, "READING", "tests.on_ranks")
    left, files = submissions.read_inside(runner, "01_collectives", {"a.tar": b""}, "dies_as_it_reads", archive="a.tar")
    assert "os._exit(3)" in left["problem"] and files == {}


def in_archives(path, name, length, depth=1):
    """A zip in a zip …, with a file of so many zeros."""
    content = bytes(length)
    for number in range(depth):
        hostile.corpus.zipped((name, content))(path / "packed")
        content, name = (path / "packed.zip").read_bytes(), f"{number}.zip"
    return content


@pytest.mark.parametrize(
    ("limit", "low", "made", "too_much"),
    [
        ("MOST_FILE", 1000, dict(length=1000), dict(length=1001)),
        ("MOST_READ", 1000, dict(length=10), dict(length=10, depth=2, name="a.txt" * 300)),
        ("DEEPEST", 1, dict(length=10), dict(length=10, depth=2)),
        ("MOST_ARCHIVES", 1, dict(length=10), dict(length=10, depth=2)),
    ],
)
def test_of_an_archive_no_more_is_read_than_the_limits_say(tmp_path, monkeypatch, limit, low, made, too_much):
    """One of a few bytes may become as long and as deep as it likes."""
    monkeypatch.setattr(submission_files, limit, low)
    for number, (how, taken) in enumerate(((made, True), (too_much, False))):
        content = in_archives(tmp_path, **{"name": hostile.corpus.NOTEBOOK, **how})
        folder = tmp_path / str(number)
        folder.mkdir()
        monkeypatch.chdir(folder)
        (folder / "0").write_bytes(content)
        said = read_submission.unpacked(["a.zip"], {hostile.corpus.NOTEBOOK: []})
        assert (folder / hostile.corpus.NOTEBOOK).is_file() is taken, said
        assert bool(said["refused"]) is not taken


def test_of_a_folder_no_more_is_read_than_the_limit_says(tmp_path, monkeypatch, runner):
    """Names that say nothing: each would have to be looked into."""
    monkeypatch.setattr(submissions, "MOST_ARCHIVE", 50_000)
    hostile.brothers.write(tmp_path, hostile.brothers.RIGHT)
    for number in range(4):
        (tmp_path / f"{number}.ipynb").write_bytes(b"{" * 20_000)
    (tmp_path / "b.zip").write_bytes(b"PK\3\4" + bytes(50_000))
    taken = submissions.take([tmp_path], [hostile.corpus.LESSON], runner)
    assert list(taken.files) == [hostile.corpus.NOTEBOOK]
    unread = [line.partition(":")[0] for line in taken.refused if "not read" in line]
    assert unread == ["2.ipynb", "3.ipynb", "b.zip"], taken.refused


def test_code_of_an_unlikely_size_is_not_parsed(monkeypatch):
    for limit in ("MOST_CODE", "MOST_LINES", "MOST_CELLS"):
        with monkeypatch.context() as patch:
            patch.setattr(parsing, limit, 3)
            if limit == "MOST_CELLS":
                cell = {"cell_type": "code", "metadata": {}, "source": "1", "outputs": [], "execution_count": None}
                about = {"metadata": {}, "nbformat": 4, "nbformat_minor": 4}
                for count in (3, 4):
                    text = json.dumps({**about, "cells": [cell] * count})
                    if count > 3:
                        with pytest.raises(ValueError, match="more than 3 cells"):
                            parsing.cells(text, notebook=True)
                    else:
                        assert len(parsing.cells(text, notebook=True)) == count
            else:
                parsing.cells("\n\n\n", notebook=False)
                with pytest.raises(ValueError, match="more code than a lesson has"):
                    parsing.cells("\n\n\n\n", notebook=False)


@pytest.mark.parametrize("raised", parsing.NO_PYTHON)
def test_what_a_parser_raises_for_deep_nesting_is_told_as_no_python(monkeypatch, raised):
    def parse(code):
        raise raised("too deep")

    parsing.outline.cache_clear()
    monkeypatch.setattr(parsing.ast, "parse", parse)
    assert parsing.outline("x = ((1))").error.startswith(f"{raised.__name__}: too deep")
    parsing.outline.cache_clear()


def test_no_pattern_for_a_students_line_goes_back_over_its_spaces():
    """Or a line of spaces would take hours: the first group is possessive, and matches in one way only."""
    assert parsing.MAGIC.pattern.startswith(r"(\s*+)") and parsing.PYTHON_CELL.pattern.count("*") == 1


def test_evidence_has_a_size(tmp_path, monkeypatch):
    (tmp_path / "evidence.json").write_text(json.dumps([[] for _ in range(20)]))
    monkeypatch.setattr(evidence, "LARGEST_TREE", 30)
    with pytest.raises(OSError, match="no plain file of at most 30 bytes"):
        evidence.read(tmp_path / "evidence")


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("CANARY",)


def checkpoint(held, **how):
    content = io.BytesIO()
    torch.save(held, content, **how)
    return content.getvalue()


def packed():
    """As torch.save does not write it: packed, so that it may become as long as it likes."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x/data/0", bytes(1 << 10))
    return content.getvalue()


@pytest.mark.parametrize(
    "content, says",
    [
        (checkpoint({"model": Bomb()}), "does not load"),
        (checkpoint({"model": Bomb()}, _use_new_zipfile_serialization=False), "does not load"),
        (packed(), "is packed"),
        (b"]" * 1000, "does not load"),
        (checkpoint(torch.zeros(())), "does not hold all weights"),
        (checkpoint({"model": ["weight"]}), "does not hold all weights"),
        (checkpoint({"model": {"weight": "x" * 9}}), "last weights are not"),
        (checkpoint({"model": {"weight": torch.zeros(()).expand(1 << 20, 1 << 20)}}), "last weights are not"),
    ],
)
def test_a_checkpoint_that_ranks_left_runs_no_code_and_takes_no_memory(tmp_path, monkeypatch, content, says):
    """Of weights, the one thing that the judge unpickles: values only."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Wrong, match=says):
        check_last_weights("told,", content, {"weight": torch.zeros(3, 3)})
    assert not list(tmp_path.iterdir())
    check_last_weights("told,", checkpoint({"model": {"weight": torch.zeros(3, 3)}}), {"weight": torch.zeros(3, 3)})


def a_class(tmp_path):
    """A class with one record for each strange name."""
    (tmp_path / "records").mkdir()
    room = records.Class(tmp_path, ["01_collectives"], "seed", sandbox.OFF, 1.0, tmp_path)
    for name in NAMES:
        record = {
            **records.failure(name, "s", "\x1b[2J"),
            "state": records.GRADED,
            "flags": [{"lesson": "01_collectives", "reason": "look"}],
        }
        records.write_whole(room.record(name), json.dumps(record))
    return room


def test_names_of_students_are_only_names(tmp_path, capsys):
    room = a_class(tmp_path)
    pages.write(room)
    assert (
        len(list((tmp_path / "records").iterdir()))
        == len(NAMES)
        == len({str(room.record(name)).lower() for name in NAMES})
    )
    assert {path.name for path in tmp_path.iterdir()} == {
        "records",
        "feedback",
        "gradescope",
        "marks.csv",
        "class.html",
        "journal.jsonl",
    } - {"journal.jsonl"}
    for page in [tmp_path / "class.html", *(tmp_path / "feedback").iterdir()]:
        text = page.read_text("utf-8")
        assert (
            "<script" not in text and 'href="javascript' not in text and not set(text) & {"\x1b", "\x07", "\u202e"}
        ), page
        assert "default-src 'none'" in text
    rows = list(csv.reader(io.StringIO((tmp_path / "marks.csv").read_text("utf-8"))))
    assert len(rows) == 1 + len(NAMES) == 1 + len({row[0] for row in rows[1:]})
    assert not any(row[0].startswith(("=", "+", "-", "@")) or set(row[0]) & set("=;,|\u200b") for row in rows)
    for name in NAMES:
        said = grading_progress.line(records.read_record(room.record(name)))
        said.encode()
        assert "\x1b" not in said and "\n" not in records.shown(name)


def test_no_name_wins_anothers_row():
    """A name that is what another one's file is called; one that looks alike; one with an invisible letter."""
    names = [*NAMES, "Anna Maria", "Anna_Maria-9d237351", *("bob", "bob\u200b", "b\u043eb", "\uff42ob")]
    twin = records.file_name("Anna Maria").removesuffix(".json")
    for distinct in (records.file_name, records.shown):
        assert len({distinct(name) for name in {*names, twin}}) == len({*names, twin})
    assert records.shown("Zoë Müller-Łuk") == "Zoë Müller-Łuk" and records.file_name("anna") == "anna"


def test_no_archive_takes_the_name_of_another(tmp_path):
    for number, name in enumerate(("dupe.tar", "dupe.zip", "eve.zip.zip", "ann.tar.gz"), start=1):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (number, number))
    for name in ("eve.zip", "zoe"):
        (tmp_path / name).mkdir()
    found, told = submitters.students(tmp_path)
    assert {name: [path.name for path in paths] for name, paths in found.items()} == {
        "dupe": ["dupe.zip"],
        "eve": ["eve.zip.zip"],
        "eve.zip": ["eve.zip"],
        "ann": ["ann.tar.gz"],
        "zoe": ["zoe"],
    }
    assert told == ["dupe.tar does not count: dupe.zip is the same student's, and later"], "two of one name are told"


def test_the_gradebook_bears_any_name(tmp_path):
    room = a_class(tmp_path)
    file = gradebook.write(room, records.records(room), tmp_path / "book")
    with Gradebook(f"sqlite:///{file}") as book:
        assert len(book.students) == len(NAMES)


@pytest.mark.skipif(not psutil.LINUX, reason="the limit is Linux's")
def test_the_judge_has_a_limit_of_memory_and_says_so_by_an_error():
    text = "from grader.engine.classroom import worker; worker.limit_memory(); bytearray(worker.MEMORY)"
    done = subprocess.run([sys.executable, "-c", text], cwd=lessons.COURSE, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stderr.strip().endswith("MemoryError")


def test_walls_are_loaded_where_the_system_has_none():
    """As on macOS: the server of a student's own checks has them in memory, too."""
    text = "import socket; del socket.AF_NETLINK; from grader.engine.walls import enter_sandbox"
    subprocess.run([sys.executable, "-c", text], cwd=lessons.COURSE, check=True)


@pytest.mark.skipif(os.uname()[::4] != ("Linux", "x86_64"), reason="x32 is another way to number the calls of x86-64")
def test_calls_by_other_numbers_end_the_whole_process():
    """Not only the thread, for which the others would wait."""
    text = (
        "import ctypes, threading; from grader.engine.walls.seccomp import forbid_calls; forbid_calls(services=True)\n"
        "call = lambda: ctypes.CDLL(None).syscall(0x40000000 | 41, 2, 2, 0)\n"
        "thread = threading.Thread(target=call, daemon=True); thread.start(); thread.join(5)"
    )
    done = subprocess.run([sys.executable, "-c", text], cwd=lessons.COURSE, check=False)
    assert done.returncode == -signal.SIGSYS


def test_what_walls_lack_is_among_what_the_command_prints():
    """It does so before the first mark, in red, if something is OPEN."""
    assert "OPEN" not in sandbox.guards(sandbox.BUBBLEWRAP)
    for words in ("OPEN", "every user", "disk", "network", "ports"):
        assert words in sandbox.guards(sandbox.USERS)


MAKERS = {".zip": "zip", ".tar": "tar", ".tar.gz": "gztar", ".tar.bz2": "bztar", ".tar.xz": "xztar"}
PARSERS = [(zipfile, "ZipFile"), (tarfile, "open"), (nbformat, "reads"), (ast, "parse"), (builtins, "compile")]


@pytest.mark.parametrize("ending", ["", ".zip", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_submission_is_parsed_on_ranks_alone(runner, tmp_path, monkeypatch, ending):
    """The judge and the main process see bytes; what they parse is the course's."""
    course = Course(tmp_path / "course").folder
    room = records.Class(tmp_path / "out", ["01_collectives"], "seed", sandbox.OFF, 1.0, course)
    hostile.corpus.write(tmp_path / "s", json.dumps(hostile.corpus.notebook("# CANARY\nreturn tensor")))
    path = tmp_path / f"s{ending}"
    if ending:
        shutil.make_archive(str(tmp_path / "s"), MAKERS[ending], tmp_path / "s")
    parsed = []
    for module, name in PARSERS:
        real = getattr(module, name)

        def watched(*args, real=real, name=name, **kwargs):
            if any("CANARY" in str(arg) or arg == path for arg in args):
                parsed.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, watched)
    (tmp_path / "out" / "records").mkdir(parents=True)
    assert len(submissions.digest([path], room.stems)) == 64
    with Runner(runner) as trusted:
        record = worker.grade_one(runner, trusted, room, "eve", [path], "", lambda _: None)
    assert record["state"] == records.GRADED and len(record["files"]) == 1
    assert any("returns" in verdict["message"] or verdict["where"] for verdict in record["verdicts"]), record
    assert not parsed


@pytest.mark.parametrize(
    "book",
    [
        {"nbformat": 1, "cells": [{"cell_type": "code", "source": "1"}]},
        {"nbformat": 4, "nbformat_minor": "5", "cells": [{"cell_type": "code", "source": "1"}], "metadata": {}},
        {"nbformat": "4", "cells": 3},
        {"nbformat": 3, "worksheets": [{"cells": [{"cell_type": []}]}]},
    ],
)
def test_a_notebook_of_a_strange_version_is_unreadable_and_no_failure_of_the_machine(tmp_path, book):
    target = tmp_path / "notebooks" / "01_collectives.ipynb"
    target.parent.mkdir()
    target.write_text(json.dumps(book))
    with suppress(ValueError):  # any other exception would be taken for the machine's failure
        lessons.units("01_collectives", tmp_path)


@pytest.mark.parametrize(
    "left",
    [
        None,
        [None],
        [["", "", True, False, "1"]],
        [["", "", True, False, "1", [["", 0, []]]]],
        [["", "", True, False, "1", [["", "x", []], None]]],
        [["", "", True, False, "1", [["", float("inf"), []], None]]],
        [["", "", True, False, "1", [["", 0, [["f", 1]]], None]]],
        [["", "", True, False, "1", [["", 0, []], [[1, 1 << 60, 0, "1"]]]]],
        [["", "", True, False, "1", [["", 0, []], [[-1, 1, 0, "1"]]]]],
    ],
)
def test_cells_that_make_no_sense_are_refused(left):
    """A reader that its file has taken over can leave anything."""
    with pytest.raises(submissions.Refused):
        submissions.cells_of(left)
    assert [
        cell.parsed.outline.functions
        for cell in submissions.cells_of([["", "", 1, 0, {}, [["", "1", [[None, 1, 2]]], []]]])
    ] == [[["None", 1, 2]]]


def test_a_path_too_long_is_the_submissions_doing(tmp_path):
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=at)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("notebook", os.O_CREAT | os.O_WRONLY, dir_fd=at))
    os.close(at)
    try:
        submissions.take([tmp_path], ["01_collectives"], None)
    except submissions.Refused:
        pass
    sandbox.remove(tmp_path)


def test_every_string_of_a_record_is_cleaned_where_it_is_kept(tmp_path):
    """By whatever field it came: a message, a place, a flag, the reason of a failure."""
    (tmp_path / "records").mkdir()
    room = records.Class(tmp_path, ["01_collectives"], "seed", sandbox.OFF, 1.0, tmp_path)
    for field in ("why", "refused", "flags", "verdicts"):
        bad = "\x1b[2J\u202e\u200b" + "x" * 20_000
        record = records.failure("eve", "s", "")
        record[field] = bad if field == "why" else [{"where": bad, "also": [bad], "cause": "not_judged"}]
        records.keep(room, record)
        kept = room.record("eve").read_text("utf-8")
        assert len(kept) < 6000 and not any(word in kept for word in ("\\u001b", "\\u202e", "\\u200b"))


@pytest.mark.parametrize("number", [6, 34, 40, 64])
def test_every_signal_that_ends_a_rank_has_a_name(number):
    ended = rank_endings.Endings(None, "", {}, {0: number})
    assert ended.how_it_ended(0).startswith("it was killed by ")


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"3",
        b"{}",
        b'{"e": 1}',
        b'{"e": "op"}',
        b'{"e": "crash", "type": 1, "text": "", "frames": []}',
        b"[" * 5_000,
        b"\xff",
        b'{"e": "wait", "t": Infinity}',
        b'{"e": "done", "of": [1]}',
        b'{"e": "joins", "rank": "0", "where": null}',
        b'{"e": "step"' + b" " * 300_000 + b"}",
        b'{"e": "mark", "of_its_own": [[], []]}',
        b'{"e": "step", "of_its_own": {}}',
        b'{"e": "kill", "where": ["a", 1]}',
        (
            b'{"e": "op", "op": "send", "name": "", "group": [0], "shape": [1], "dtype": null, "bytes": 1, "detail":'
            b' null, "where": null}'
        ),
        (
            b'{"e": "op", "op": "all_reduce", "name": "", "group": [7], "shape": [1], "dtype": null, "bytes": 1,'
            b' "detail": null, "where": null}'
        ),
        (
            b'{"e": "op", "op": "all_reduce", "name": "", "group": [0], "shape": [9, [0]], "dtype": null, "bytes": 1,'
            b' "detail": null, "where": null}'
        ),
    ],
)
def test_what_is_no_event_is_not_taken_for_one(line):
    with pytest.raises(ValueError):
        events.read(line, 2)


def test_a_batch_file_can_not_ask_the_judge_for_a_billion_ranks():
    start = {
        "program": "torchrun",
        "args": ["--nproc-per-node=9999999999", "train/x.py"],
        "env": {},
        "folder": ".",
        "node": 0,
    }
    assert batch_file.started({"starts": [start]})[0].processes == 0


def test_an_unreadable_submission_is_the_machines_failure(tmp_path, monkeypatch):
    (tmp_path / "x" / "notebooks").mkdir(parents=True)
    (tmp_path / "x" / "notebooks" / "01_collectives.ipynb").write_text("{}")

    def broken_disk(*_, **__):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(submissions.sanitize, "plain_bytes", broken_disk)
    with pytest.raises(OSError):
        submissions.take([tmp_path / "x"], ["01_collectives"], None)


def test_a_folder_too_deep_for_python_is_removed_and_a_links_target_is_not(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=at)
        inner = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(at)
    sandbox.remove(top)
    assert not top.exists()
    (tmp_path / "mine").mkdir(mode=0o500)
    top.symlink_to(tmp_path / "mine")
    sandbox.remove(top)
    assert not top.is_symlink() and (tmp_path / "mine").stat().st_mode & 0o777 == 0o500

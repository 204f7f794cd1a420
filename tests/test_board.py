"""The board: what students' files say of them, honest ones and others, and the page made of it."""

import json
import os
import subprocess
import sys
import time

import pytest

from grader.engine.classroom import board
from grader.engine.judge.verdict import Verdict
from tests.course_copy import Course

NOW = 1_800_000_000.0


def verdict(todo, status="fail", cause="hang"):
    lesson, _, number = todo.partition("/")
    return Verdict(lesson, int(number), "", status, None if status == "pass" else cause, 0, 1)


@pytest.fixture
def student(tmp_path, monkeypatch):
    """Join as somebody: a function of the name; what is posted then is theirs."""
    folder = tmp_path / "board"
    assert board.open_board(folder) == ""

    def join(name):
        monkeypatch.setattr(board, "OWN", tmp_path / name.encode().hex() / "board.json")
        return board.join(folder, name)

    join.folder = folder
    return join


def write(folder, number, *lines):
    file = folder / f"{number:016x}.jsonl"
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    os.utime(file, (NOW, NOW))
    return file


@pytest.fixture
def accounts(monkeypatch):
    """Each file as the file of an account of its own."""
    monkeypatch.setattr(board, "owner", lambda about: about.st_ino)


def at(todo, status="fail", cause="hang", when=NOW):
    return {"todo": todo, "status": status, "cause": cause, "when": when}


def test_what_is_posted_is_read_and_bounded(student):
    file = student("Ann")
    for _ in range(50):
        assert board.post([verdict("ddp_training/4"), verdict("ddp_training/3", "pass")]) == ""
    (ann,) = board.read(student.folder)
    assert (ann.name, len(ann.lines), ann.at.todo) == ("Ann", board.KEPT, 3)
    assert file.stat().st_size < board.MOST
    assert set(json.loads(file.read_text().splitlines()[-1])) == {"todo", "status", "cause", "when"}
    assert board.leave() and not list(student.folder.iterdir()) and not board.leave()
    assert board.post([verdict("ddp_training/4")]) == "" and board.read(student.folder) == []


def test_a_board_that_is_gone_costs_one_line_and_no_verdict(student):
    file = student("Ann")
    file.unlink()
    file.parent.rmdir()
    file.parent.write_text("")
    assert "./workbook leave" in board.post([verdict("ddp_training/4")])


def test_tries_and_minutes_are_those_at_the_last_todo():
    lines = [board.Entry("ddp_training", 3, "fail", "hang", NOW - 900)]
    lines += [board.Entry("ddp_training", 4, "fail", "crash", NOW - 60 * n) for n in (10, 6, 2)]
    ann = board.Student("Ann", lines, NOW - 120)
    assert (ann.tries, ann.minutes(NOW), ann.quiet(NOW)) == (3, 10, 2)
    assert board.Student("Bob", [*lines, board.Entry("ddp_training", 4, "pass", "", NOW)], NOW).minutes(NOW) == 0


def test_two_hundred_students_ten_of_them_malicious(tmp_path, accounts):
    for number in range(190):
        write(tmp_path, number, {"name": f"student {number}"}, at("ddp_training/4"))
    bad = 1000
    write(tmp_path, bad, {"name": "<script>alert(1)</script>\u202e\x1b[31m" + "x" * 500}, at("ddp_training/4"))
    write(tmp_path, bad + 1, {"name": "a"}, at("ddp_training/99"), at("../../etc/1"), at("ddp_training/4", "won"))
    write(tmp_path, bad + 2, "[" * 5000)
    write(tmp_path, bad + 3, "x" * 100_000)
    write(tmp_path, bad + 4, {"name": "b"}, at("ddp_training/4", cause="<b>", when=1e300))
    (tmp_path / f"{bad + 5:016x}.jsonl").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / f"{bad + 6:016x}.jsonl")
    (tmp_path / f"{bad + 7:016x}.jsonl").mkdir()
    (tmp_path / f"{bad + 8:016x}.jsonl").write_bytes(b"\xff\x00")
    write(tmp_path, bad + 9, {"name": "c"}, {"todo": ["x"], "status": {}, "cause": [], "when": "soon"})
    (tmp_path / "board.html").write_text("mine")

    began = time.process_time()
    found = board.read(tmp_path)
    page = board.page(found, NOW)
    assert len([s for s in found if s.name.startswith("student")]) == 190 and len(found) == 192
    assert "<script>" not in page and "\u202e" not in page and "\x1b" not in page and "<b>" not in page
    assert max(len(s.name) for s in found) <= board.NAME and all(line.when <= NOW for s in found for line in s.lines)
    assert "191 ddp_training/4" not in page and "192\n ddp_training/4" in page
    assert time.process_time() - began < 30  # of CPU time: a bound, far from the second that it takes


def test_a_todo_that_is_not_attempted_does_not_go_wrong(tmp_path, accounts):
    write(tmp_path, 0, {"name": "Ann"}, at("ddp_training/4", cause="not_attempted"))
    write(tmp_path, 1, {"name": "Bea"}, at("ddp_training/5", cause="hang"))
    page = board.page(board.read(tmp_path), NOW)
    assert "ddp_training/5: hang" in page and "ddp_training/4: not attempted" not in page


def test_an_account_has_one_row_however_many_files(tmp_path):
    for number in range(20):
        write(tmp_path, number, {"name": f"me {number}"}, at("ddp_training/4"))
    assert len(board.read(tmp_path)) == 1


def test_the_page_is_made_again_and_again_without_a_memory(tmp_path):
    class Enough(Exception):
        pass

    written = []

    def pause(seconds):
        written.append((tmp_path / "page.html").read_text())
        write(tmp_path, 1, {"name": "Ann"}, at("ddp_training/4"))
        if len(written) == 2:
            raise Enough

    with pytest.raises(Enough):
        board.follow(tmp_path, tmp_path / "page.html", 10, pause)
    assert "Ann" not in written[0] and "Ann" in written[1]


@pytest.mark.long
def test_join_check_and_leave_as_typed(tmp_path):
    course = Course(tmp_path / "course")
    room = tmp_path / "room"
    assert course.run("board", str(room), "--once", "--out", str(tmp_path / "b.html")).returncode == 0
    assert course.run("join", str(tmp_path / "nowhere")).returncode == 2
    assert course.run("join", str(room), "--name", "Ann").returncode == 0
    course.run("check", "ddp_training/1")
    assert course.run("board", str(room), "--once", "--out", str(tmp_path / "b.html")).returncode == 0
    assert "Ann" in (tmp_path / "b.html").read_text() and "ddp_training/1" in (tmp_path / "b.html").read_text()
    assert course.run("leave").returncode == 0 and not list(room.iterdir())


def test_the_kernel_is_registered_for_this_account(tmp_path):
    course = Course(tmp_path / "course")
    home = {"HOME": str(tmp_path), "JUPYTER_DATA_DIR": str(tmp_path / "jupyter")}
    done = subprocess.run(course.command("kernel"), cwd=course.folder, env=course.environment(**home), timeout=300)
    (spec,) = tmp_path.glob("jupyter/kernels/*/kernel.json")
    told = json.loads(spec.read_text())
    assert done.returncode == 0 and told["display_name"] == "Parallel training" and told["argv"][0] == sys.executable

"""The server that one command leaves to the next: found again, ended when asked, and no obstacle where it cannot be."""

import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from course_copy import Course, Student
from grader.engine.lesson import lessons
from grader.engine.ranks import kept_server
from grader.engine.ranks.server_connection import Connection, ServerGone
from grader.engine.walls import sandbox
from student_notebook import LESSON, Kernel, blank, cell, filled, save

TODO = "ddp_training/4"
RIGHT = f"✓ {TODO}"


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    course = Course(tmp_path_factory.mktemp("course") / "course")
    course.solve("ddp_training", (1, 2, 3, 4))
    return course


@pytest.fixture
def student(course):
    with tempfile.TemporaryDirectory(prefix="wb-") as temporary, Student(course, Path(temporary)) as student:
        yield student


def test_one_server_for_all_commands_and_for_a_notebook(student):
    first = student.run("check", TODO)
    assert first.returncode == 0 and RIGHT in first.stdout, first
    (server,) = student.servers().values()
    again = student.run("check", TODO)
    assert again.stdout == first.stdout and again.returncode == 0
    file = student.course.folder / "notebooks" / f"{LESSON}.ipynb"
    save(filled(), file)
    with Kernel(file.parent, student.environment) as kernel:
        for given in [c for c in blank().cells if c.cell_type == "code"][:2]:
            assert kernel.run(given).text == ""
        kernel.run(cell(filled(), "todo_1"))
        assert kernel.run(cell(blank(), "test_1")).text.startswith(f"✓ {LESSON}/1")
        assert student.servers() == {server.cmdline()[-1]: server}  # which the notebook's check has used
        assert not any("grader.engine.ranks.fork_server" in child.cmdline() for child in kernel.process.children())
        # Nobody is told that a rank has ended it.
        assert student.run("stop").stdout == "stopped\n"
        assert kernel.run(cell(blank(), "test_1")).text.startswith(f"✓ {LESSON}/1")
        assert len(student.servers()) == 1
        assert student.run("stop").stdout == "stopped\n"
    assert student.servers() == {}
    assert student.run("stop").stdout == "none is running\n"


def test_a_server_that_ends_with_a_message_unread_is_gone():
    """The kernel then reports a reset connection, not an end: `Runner.run` starts another server all the same."""
    connection = Connection(None, sandbox.OFF, lessons.COURSE, (), "", kept=False)
    connection.ready, connection.heard, connection.rest = True, [], b""
    connection.socket, theirs = socket.socketpair()
    with connection.socket:
        connection.ask(sweep=True)
        theirs.close()
        with pytest.raises(ServerGone):
            connection.answer()


def test_a_change_of_the_course_is_a_new_server(student):
    assert student.run("check", TODO).returncode == 0
    before = set(student.servers())
    assert len(before) == 1
    check = student.course.folder / "grader" / "lessons" / "ddp_training" / "ranks.py"
    check.write_text(check.read_text() + "# another file\n")
    assert student.run("check", TODO).returncode == 0
    assert len(set(student.servers()) - before) == 1


def test_where_no_server_can_be_kept_a_command_does_without(student):
    own = student.temporary / f"workbook-{os.getuid()}"
    own.mkdir()
    own.chmod(0o777)  # somebody else's, as far as it shows
    done = student.run("check", TODO)
    assert done.returncode == 0 and RIGHT in done.stdout and not done.stderr, done
    assert student.servers() == {}
    stopped = student.run("stop")
    assert stopped.stderr == f"workbook: {own} is not this user's alone\n" and stopped.returncode == 2, stopped


def test_where_a_server_is_wanted(monkeypatch):
    for name in ("CI", "PYTEST_CURRENT_TEST", "WORKBOOK_NO_SERVER"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(prefix="wb-") as temporary:
        monkeypatch.setattr(tempfile, "tempdir", temporary)
        assert kept_server.wanted() == (sys.platform == "linux")
        for name in ("CI", "WORKBOOK_NO_SERVER"):
            with monkeypatch.context() as patch:
                patch.setenv(name, "1")
                assert not kept_server.wanted()
        kept_server.folder().rmdir()
        Path(temporary, f"workbook-{os.getuid()}").write_text("a file")
        assert not kept_server.wanted()
        longer = Path(temporary, "x" * 80)
        longer.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(longer))
        assert not kept_server.wanted()


def test_a_change_in_a_folder_of_a_folder_is_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    file = tmp_path / "utils" / "costs" / "deeper" / "memory.py"
    file.parent.mkdir(parents=True)
    before = kept_server.state()
    file.write_text('TAUGHT_IN = "10_strategy"\n')
    assert kept_server.state() != before
    assert lessons.taught(tmp_path) == {file: "10_strategy"}
    assert lessons.ahead("10_strategy", lessons.taught(tmp_path)) == [file]

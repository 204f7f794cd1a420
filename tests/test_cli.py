"""The commands, as a student types them."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from course_copy import Course
from grader.engine.commands import arguments, first_steps, cli, watch
from grader.engine.commands.cli import app
from grader.engine.lesson import student_files, lessons, progress


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path / "course")


@pytest.fixture
def progress_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lessons, "COURSE", tmp_path)
    file = tmp_path / ".workbook" / "progress.txt"
    file.parent.mkdir()
    return file


def test_start_says_what_is_next_when_ctrl_c_skips_its_training(monkeypatch):
    monkeypatch.setattr(first_steps, "run_once", lambda *_: 130)
    done = CliRunner().invoke(app, ["start"])
    assert done.exit_code == 0 and "The lessons:" in done.output and "--track half" in done.output, done.output


def test_mistakes_are_one_line(course, monkeypatch, capsys):
    monkeypatch.setattr(lessons, "COURSE", course.folder)  # what is no mistake to the command may write
    monkeypatch.chdir(course.folder)
    for args, word in (
        (["chekc"], "chekc"),
        (["check", "dpd_training"], "did you mean ddp_training?"),
        (["check", "ddp_training/99"], "ddp_training/1"),
        (["check", "ddp_training/x"], "ddp_training/1"),
        (["check", "single_gpu_training"], "no TODOs"),
        (["check", "--target", "nowhere"], "nowhere"),
        (["check", "--json", "nowhere/x.json"], "nowhere"),
        (["watch", "nothing"], "nothing"),
        (["hint", "ddp_training"], "ddp_training/1"),
        (["diff", "nothing"], "nothing"),
        (["run", "01_collectives"], "lab"),
        (["run", "ddp_training", "--nproc", "0"], "nproc"),
        (["release", "."], "empty folder"),
        (["submit", "--out", "nowhere/x.tar.gz"], "nowhere"),
        (["submit", "--out", "x.zip"], "the archive is a .tar.gz"),
    ):
        monkeypatch.setattr(sys, "argv", ["workbook", *args])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capsys.readouterr()
        assert end.value.code == 2 and not said.out, (args, said)
        assert len(said.err.splitlines()) == 1 and word in said.err, (args, said.err)


def test_a_lesson_is_named_by_as_much_as_no_other_begins_with(monkeypatch):
    for name, lesson in (("ddp", "ddp_training"), ("05", "05_pipeline_parallel"), ("ddp_training", "ddp_training")):
        assert arguments.lesson_named(name) == arguments.exercise_named(name) == lesson
    assert arguments.todo_named("06/3") == ("06_context_parallel", 3)
    monkeypatch.setattr(arguments.sealed_lessons, "sealed", lambda: {"zz_sealed": ["ddp_training/1"]})
    assert arguments.completed("zz") == "zz_sealed", "for open"
    for name in ("", "0", "ddp_training_2", "zz"):
        with pytest.raises(typer.Exit):
            arguments.lesson_named(name)


def test_ctrl_c_while_modules_load_is_silent(course, tmp_path):
    (tmp_path / "typer.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    env = course.environment(PYTHONPATH=f"{tmp_path}:{course.folder}")
    done = subprocess.run(
        course.command("status"),
        cwd=course.folder,
        env=env,
        text=True,
        capture_output=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a test in the background ignores it
    )
    assert done.returncode == -signal.SIGINT and not done.stdout + done.stderr, done  # 130, to a shell


def test_check_reports_and_remembers(course):
    course.solve("ddp_training", (1, 2), todo4="    return samplers")
    file = course.folder / "v.json"
    done = course.run("check", "ddp_training", "--json", str(file))
    assert done.returncode == 1, done
    verdicts = json.loads(file.read_text())
    assert [v["todo"] for v in verdicts] == list(range(1, 19))
    states = {v["todo"]: (v["status"], v["cause"]) for v in verdicts}
    assert states[1] == ("pass", None) and states[3] == ("fail", "not_attempted") and states[4] == ("fail", "crash")
    assert set(verdicts[0]) == {
        "lesson",
        "todo",
        "title",
        "status",
        "cause",
        "points",
        "max_points",
        "message",
        "expected",
        "seen",
        "why",
        "hint",
        "rank",
        "where",
    }
    crash = done.stdout[done.stdout.index("✗ ddp_training/4") : done.stdout.index("ddp_training/5")]
    for word in ("NameError", "train/ddp_training.py:", "why", "hint", "./workbook hint ddp_training/4"):
        assert word in " ".join(crash.split())
    assert "ddp_training/1 pass\n" in course.progress() and "ddp_training/4 fail hints=1\n" in course.progress()

    # what was passed opens its solution, and no other
    assert "init_process_group" in course.run("solution", "ddp_training/1").stdout
    refused = course.run("solution", "ddp_training/3")
    assert refused.returncode == 1 and "./workbook hint ddp_training/3" in refused.stderr and not refused.stdout

    # status knows both, and what is next
    listed = course.run("status").stdout
    assert (
        "✓  1" in listed
        and "·  3" in listed
        and "✗  4" in listed
        and "2 of 18" in listed
        and "Next: ./workbook watch ddp_training" in listed
    )
    assert "Next: ./workbook watch 01_collectives" in course.run("status", "01").stdout, "the next one of that lesson"


def test_a_library_module_that_does_not_load_stops_nobody_else(course):
    """Such as one of a lesson that was opened before its time."""
    (course.folder / "utils" / "after_x.py").write_text("from utils.after_y import z\n")
    done = course.run("check", "ddp_training/10", "--target", "solutions")
    assert done.returncode == 0 and "1 of 1 right" in done.stdout, done


def test_check_of_another_folder_is_not_remembered(course, tmp_path):
    done = course.run("check", "ddp_training/10", "--target", "solutions", cwd=tmp_path)  # from the course folder
    assert done.returncode == 0 and "1 of 1 right" in done.stdout
    assert not (course.folder / ".workbook" / "progress.txt").exists()


def test_hints_climb(course, monkeypatch):
    first = course.run("hint", "ddp_training/4")
    assert first.returncode == 0 and first.stdout.startswith("hint 1 of 3 for ddp_training/4: ")
    monkeypatch.setattr(lessons, "COURSE", course.folder)
    said = [watch.climb("ddp_training", 4) for _ in range(3)]
    assert [text.split(" for ")[0] for text in said] == ["hint 2 of 3", "hint 3 of 3", "hint 3 of 3"]
    assert len({*said, first.stdout.strip()}) == 3


def test_diff_and_reset(course):
    assert course.run("diff", "ddp_training").stdout == ""
    edited = course.script("ddp_training").read_text().replace("import argparse\n", "import argparse  # mine [bold]\n")
    course.script("ddp_training").write_text(edited)
    shown = course.run("diff", "ddp_training").stdout
    assert "-import argparse\n+import argparse  # mine [bold]\n" in shown

    done = course.run("reset", "ddp_training")
    assert done.returncode == 0 and ".workbook/kept/ddp_training.py." in done.stdout
    kept = list((course.folder / ".workbook" / "kept").iterdir())
    assert [file.read_text() for file in kept] == [edited]
    assert course.run("diff", "ddp_training").stdout == ""
    course.script("ddp_training").unlink()
    assert "workbook reset ddp_training" in course.run("diff", "ddp_training").stderr
    course.run("reset", "ddp_training")
    assert course.script("ddp_training").is_file()


def test_a_notebook_differs_by_its_cells(course, monkeypatch):
    monkeypatch.setattr(lessons, "COURSE", course.folder)
    path = course.folder / "notebooks" / "01_collectives.ipynb"
    student_files.reset("01_collectives")
    notebook = json.loads(path.read_text())
    cell = next(c for c in notebook["cells"] if "NotImplementedError" in "".join(c["source"]))
    cell["execution_count"], cell["outputs"] = 3, [{"output_type": "stream", "name": "stdout", "text": "noise"}]
    path.write_text(json.dumps(notebook))
    assert student_files.diff("01_collectives") == []  # it was run, not changed
    cell["source"] = "".join(cell["source"]).replace('raise NotImplementedError("TODO 1")', "return inputs", 1)
    path.write_text(json.dumps(notebook))
    assert "+    return inputs" in student_files.diff("01_collectives")
    path.write_text("{")
    done = course.run("diff", "01_collectives")
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    student_files.reset("01_collectives")
    assert student_files.diff("01_collectives") == []


@pytest.mark.long
def test_run_goes_on_where_the_user_is(course, tmp_path):
    here = tmp_path / "elsewhere"
    here.mkdir()
    tiny = "--data random --max-steps 2 --batch-size 12 --seq-len 8 --dim 16 --epochs 1".split()
    done = course.run("run", "single_gpu_training", "--", *tiny, "--out", "mine", cwd=here)
    assert done.returncode == 0, done
    assert (here / "mine" / "loss.png").stat().st_size > 1000 and "mine/report.html" in done.stdout
    assert "train/single_gpu_training.py --data random" in done.stdout.splitlines()[0]
    assert not (here / "runs").exists()


def test_a_full_disk_leaves_no_part_of_an_archive(course):
    (course.folder / "submission.tar.gz").write_bytes(b"an earlier one")
    code = (
        "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        " sys.argv = ['workbook', 'submit']; runpy.run_module('grader.engine.commands.cli', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=course.folder, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "File too large" in done.stderr, done
    assert (course.folder / "submission.tar.gz").read_bytes() == b"an earlier one"
    assert not list(course.folder.glob(".*.part"))


def test_submit_packs_the_students_files_only(course):
    course.solve("ddp_training", (1,))
    (course.folder / "train" / "secret.py").write_text("")
    done = course.run("submit", "--out", "mine.tar.gz")
    assert done.returncode == 0 and "01_collectives.ipynb (warning" in done.stdout
    assert "ddp_training.py\n" in done.stdout and "secret" not in done.stdout
    with tarfile.open(course.folder / "mine.tar.gz") as tar:
        members = {m.name: m for m in tar.getmembers()}
        manifest = json.load(tar.extractfile("manifest.json"))
        content = tar.extractfile("train/ddp_training.py").read()
    assert "train/ddp_training.py" in members and "train/single_gpu_training.py" not in members
    assert all(m.isreg() and not m.uname for m in members.values())
    assert set(manifest["files"]) == set(members) - {"manifest.json"}
    assert manifest["files"]["train/ddp_training.py"] == hashlib.sha256(content).hexdigest()
    assert content == course.script("ddp_training").read_bytes()

    course.script("ddp_training").unlink()
    course.script("ddp_training").symlink_to("/etc/hostname")
    assert "left out: train/ddp_training.py (a link)" in course.run("submit", "--out", "mine.tar.gz").stdout
    with tarfile.open(course.folder / "mine.tar.gz") as tar:
        assert "train/ddp_training.py" not in tar.getnames()


def test_submit_says_what_cannot_be_judged_and_packs_it(course):
    script = course.script("ddp_training")
    script.write_text(script.read_text() + "    x = 1\n  y = 2\n")
    line = len(script.read_text().splitlines())
    whole = (course.folder / "notebooks" / "01_collectives.ipynb").read_text()
    (course.folder / "notebooks" / "01_collectives.ipynb").write_text(whole[: len(whole) // 2])
    cell = json.loads(whole := (course.folder / "notebooks" / "02_data_parallel.ipynb").read_text())
    place = next(n for n, c in enumerate(cell["cells"], 1) if c["cell_type"] == "code" and "TODO 1" in str(c["source"]))
    cell["cells"][place - 1]["source"] = "def mean(:\n    pass"
    (course.folder / "notebooks" / "02_data_parallel.ipynb").write_text(json.dumps(cell))
    done = course.run("submit", "--out", "mine.tar.gz")
    assert done.returncode == 0, done.stderr
    told = {said.split()[0]: said for said in done.stdout.splitlines()}
    assert f"(warning: line {line} is not Python, so nothing in it is judged: " in told["train/ddp_training.py"]
    assert "reset 01_collectives brings the original back, and keeps yours" in told["notebooks/01_collectives.ipynb"]
    assert "(warning: the cell “def mean(:” is not Python: " in told["notebooks/02_data_parallel.ipynb"]
    with tarfile.open(course.folder / "mine.tar.gz") as tar:
        assert {"train/ddp_training.py", "notebooks/01_collectives.ipynb", "notebooks/02_data_parallel.ipynb"} <= {
            *tar.getnames()
        }
        assert tar.extractfile("train/ddp_training.py").read() == script.read_bytes()


def test_the_readme_offers_no_command_that_a_release_refuses():
    blocks = "".join(re.findall(r"```bash\n(.*?)```", (lessons.COURSE / "README.md").read_text("utf-8"), re.DOTALL))
    offered = set(re.findall(r"\./workbook (\w+)", blocks))
    refused = {
        command.name or command.callback.__name__
        for command in arguments.app.registered_commands
        if command.rich_help_panel == arguments.TEACH
    }
    assert "start" in offered and "test" in refused and not offered & refused


@pytest.mark.long
def test_a_release_has_the_same_commands_without_solutions(course, tmp_path):
    assert course.run("release", str(tmp_path / "students")).returncode == 0
    released = Course.__new__(Course)
    released.folder = tmp_path / "students"
    assert "0 of 18" in released.run("status").stdout and released.run("diff", "ddp_training").stdout == ""
    done = released.run("solution", "ddp_training/1")
    assert done.returncode == 1 and "instructor keeps" in done.stderr
    for command in (["test"], ["build"], ["mutants"], ["release", str(tmp_path / "again")]):
        done = released.run(*command)
        assert done.returncode == 2 and "student's copy" in done.stderr, done
    # a submission tells the same version from both
    digests = []
    for one in (course, released):
        one.run("submit", "--out", "s.tar.gz")
        with tarfile.open(one.folder / "s.tar.gz") as tar:
            digests.append(json.load(tar.extractfile("manifest.json"))["course"])
    assert digests[1].items() <= digests[0].items() and "ddp_training" in digests[1]  # but for what is sealed there


def test_named_tests_run_alone(monkeypatch):
    calls = []
    monkeypatch.setattr(subprocess, "run", lambda command, **_: calls.append(command) or SimpleNamespace(returncode=0))
    for args in (["--", "tests/test_watch.py"], ["--", "tests/test_watch.py::test_poll"], ["--", "-k", "build"], []):
        assert CliRunner().invoke(app, ["test", *args]).exit_code == 0
    folders = ["tests" in command for command in calls]
    assert folders == [False, False, True, True]
    assert calls[0][-1] == "tests/test_watch.py" and not any("grader" in part for part in calls[0])


def test_progress_keeps_lines_it_does_not_know(progress_file):
    progress_file.write_text(
        f"{progress.NUMBERING}\nddp_training/4 pass hints=2\nfrom the future: 7\n\nold_lesson/1 pass\n"
    )
    progress.Progress().write({("ddp_training", 4): "fail", ("ddp_training", 5): 1})
    text = progress_file.read_text().splitlines()
    assert text[0] == progress.NUMBERING
    assert set(text[1:]) == {
        "ddp_training/4 fail hints=2",
        "ddp_training/5 new hints=1",
        "old_lesson/1 pass",
        "from the future: 7",
    }
    assert progress.Progress().read()["ddp_training", 5] == progress.Entry("new", 1)
    assert [file.name for file in progress_file.parent.iterdir()] == ["progress.txt"]

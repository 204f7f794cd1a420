"""A class graded: marks, records, what is made from them; killed and resumed."""

import csv
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import zipfile

import psutil
import pytest

from course_copy import Course
from grader.engine.classroom import grade, pages, records, submissions, worker
from grader.engine.judge import try_seeds
from grader.engine.lesson import lessons, notebooks, todo_regions
from grader.engine.ranks.runner import Runner
from grader.engine.walls import sandbox
from hostile.users import READABLE, for_users

LESSON = "01_collectives"
LIMIT = 900  # seconds after which a test gives up, on a machine that does much else as well


def notebook(todos=(), **bodies):
    """The lesson's notebook with these TODOs done; `todo3="…"` puts a body of one's own."""
    own = {int(name.removeprefix("todo")): body for name, body in bodies.items()}
    source = lessons.source_path(LESSON).read_text("utf-8")
    return notebooks.to_json(notebooks.to_notebook(todo_regions.compose(source, todos, own), LESSON, released=False))


def hand_in(folder, student, text):
    target = folder / student / "notebooks" / f"{LESSON}.ipynb"
    target.parent.mkdir(parents=True)
    target.write_text(text)


@pytest.fixture(scope="module")
def handed_in(tmp_path_factory):
    """Submissions of every form: folder, archive, nothing in it, not to be opened."""
    folder = tmp_path_factory.mktemp("class")
    everything = notebook(range(1, 10))
    hand_in(folder, "all", everything)
    hand_in(folder, "nothing", notebook())
    hand_in(folder, "half", notebook((1, 2, 3)))
    (folder / "empty").mkdir()
    with tarfile.open(folder / "packed.tar.gz", "w:gz") as archive:
        content = notebook((1, 2)).encode()
        about = tarfile.TarInfo(f"my-course/notebooks/{LESSON}.ipynb")
        about.size = len(content)
        archive.addfile(about, io.BytesIO(content))
    (folder / "broken.zip").write_bytes(b"PK no archive")
    return folder


MARKS = {"all": 9, "nothing": 0, "half": 3, "packed": 2, "broken": 0}
NO_MARK = "empty"  # it holds nothing


def run(course, handed_in, out, *args):
    seed = [] if "--seed" in args or (out / "class.json").exists() else ["--seed", "s"]
    return course.run("grade", str(handed_in), "--out", str(out), "--lessons", LESSON, *seed, *args)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    return Course(tmp_path_factory.mktemp("course") / "course")


@pytest.fixture(scope="module")
def graded(course, handed_in, tmp_path_factory):
    out = tmp_path_factory.mktemp("graded") / "out"
    done = run(course, handed_in, out, "--seed", "s", "--jobs", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def marks(out):
    return {row["student"]: row["total"] for row in csv.DictReader((out / "marks.csv").open())}


def test_every_submission_has_its_marks(graded):
    assert marks(graded) == {student: str(points) for student, points in MARKS.items()} | {NO_MARK: ""}
    assert len((graded / "journal.jsonl").read_text().splitlines()) == len(MARKS) + 1
    record = records.read_record(graded / "records" / "broken.json")
    assert record["state"] == records.REFUSED and "broken.zip cannot be read" in record["refused"][0]
    assert all(v["message"] == record["refused"][0] for v in record["verdicts"]) and len(record["verdicts"]) == 9
    assert records.read_record(graded / "records" / "empty.json")["state"] == records.NOTHING


def test_a_submission_is_graded_as_check_grades_it(course, graded, handed_in, tmp_path):
    """Numbers are drawn from another seed; the verdicts are the same."""
    course.run("check", LESSON, "--target", str(handed_in / "half"), "--json", str(tmp_path / "v.json"))
    checked = json.loads((tmp_path / "v.json").read_text())
    record = records.read_record(graded / "records" / "half.json")
    assert [(v["todo"], v["status"], v["cause"]) for v in checked] == [
        (v["todo"], v["status"], v["cause"]) for v in record["verdicts"]
    ]


def test_what_is_graded_is_not_graded_again(course, graded, handed_in):
    before = {path: path.stat().st_mtime_ns for path in (graded / "records").iterdir()}
    done = run(course, handed_in, graded)
    assert done.returncode == 0 and "6 of 6 are graded already" in done.stdout
    assert {path: path.stat().st_mtime_ns for path in (graded / "records").iterdir()} == before


def test_another_seed_is_another_class(course, graded, handed_in):
    done = run(course, handed_in, graded, "--seed", "other")
    assert done.returncode == 2 and "a different seed" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere", "--out", "o"], "no such folder"),
        ([".", "--out", "o", "--sandbox", "yes"], "bubblewrap, users or off"),
        ([".", "--out", "o", "--lessons", "02_nothing"], "no lesson"),
        ([".", "--out", "o", "--sandbox", "users", "--jobs", "2"], "one submission at a time"),
        ([".", "--out", "o", "--sandbox", "users", "--jobs", "2", "--slurm"], "one submission at a time"),
    ],
)
def test_mistakes_are_one_line(course, tmp_path, args, said):
    done = course.run("grade", *args, cwd=tmp_path)
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1


def test_jobs_that_can_not_be_submitted_are_one_line(course, handed_in, tmp_path):
    done = run(course, handed_in, tmp_path / "out", "--slurm", "--slurm-options", "nonsense=1")
    assert (
        done.returncode == 2 and done.stderr.startswith("workbook: --slurm: ") and len(done.stderr.splitlines()) == 1
    ), done.stderr


def test_a_kill_loses_no_mark_and_counts_none_twice(course, graded, handed_in, tmp_path):
    """Killed twice, as hard as can be, each time when one more submission is over; then left to end."""
    out = tmp_path / "out"
    command = course.command("grade", str(handed_in), "--out", str(out), "--lessons", LESSON, "--seed", "s")
    for kill in range(2):
        process = subprocess.Popen(
            command, cwd=course.folder, env=course.environment(), stdout=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + LIMIT
        while not (out / "journal.jsonl").exists() or len((out / "journal.jsonl").read_text().splitlines()) <= kill:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.02)
        below = psutil.Process(process.pid).children(recursive=True)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        # The worker, its server and its sandbox go with it, on a busy machine late; what stays, stays for ever.
        assert not psutil.wait_procs(below, timeout=LIMIT)[1]
    assert run(course, handed_in, out).returncode == 0
    assert (out / "marks.csv").read_text() == (graded / "marks.csv").read_text()
    again = {path.name: json.loads(path.read_text()) for path in (out / "records").glob("*.json")}
    for name, record in again.items():
        assert record["verdicts"] == records.read_record(graded / "records" / name)["verdicts"] and not record.get(
            "history"
        )


def test_a_changed_submission_is_graded_anew_and_its_past_is_kept(course, tmp_path):
    hand_in(tmp_path / "class", "ann", notebook((2,)))
    assert run(course, tmp_path / "class", tmp_path / "out").returncode == 0
    told = course.run("mark", str(tmp_path / "out"), "ann", f"{LESSON}/1", "1", "--reason", "shown <b>on paper</b>")
    assert told.returncode == 0 and marks(tmp_path / "out") == {"ann": "2"}
    (tmp_path / "class" / "ann" / "notebooks" / f"{LESSON}.ipynb").write_text(notebook((2, 8)))
    assert run(course, tmp_path / "class", tmp_path / "out").returncode == 0
    assert marks(tmp_path / "out") == {"ann": "3"}
    record = records.read_record(tmp_path / "out" / "records" / "ann.json")
    assert len(record["history"]) == 1 and record["overrides"][0]["reason"] == "shown <b>on paper</b>"
    page = (tmp_path / "out" / "feedback" / "ann.html").read_text()
    assert "shown &lt;b&gt;on paper&lt;/b&gt;" in page and "<b>" not in page
    for points, reason, words in (
        ("7", "r", "is worth 1 point, so 7"),
        ("nan", "r", "greater than"),
        ("1", " ", "--reason"),
    ):
        done = course.run("mark", str(tmp_path / "out"), "ann", f"{LESSON}/1", points, "--reason", reason)
        assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1, done
    for args in (["bob", f"{LESSON}/1"], ["ann", "ddp_training/1"]):
        done = course.run("mark", str(tmp_path / "out"), *args, "1", "--reason", "r")
        assert done.returncode == 2 and "marks in" in done.stderr or "was not graded" in done.stderr


DIES = """
import json, os, signal, sys
task = json.loads(sys.stdin.readline())
if not task["refuse"]:
    os.kill(os.getpid(), {signal})
open({heard!r}, "w").write(task["refuse"])
print(json.dumps({{"student": task["student"], "over": True}}), flush=True)
"""


@pytest.mark.parametrize("ending, says", [("ALRM", "took too long"), ("SEGV", "died of it")])
def test_what_hangs_or_kills_the_judge_is_refused(tmp_path, monkeypatch, ending, says):
    room = grade.open_class(tmp_path / "out", [LESSON], None, sandbox.OFF, 1)
    text = DIES.format(signal=int(signal.Signals[f"SIG{ending}"]), heard=str(tmp_path / "heard"))
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    monkeypatch.setattr(grade, "start_worker", lambda room: subprocess.Popen([sys.executable, "-c", text], **pipes))
    assert list(grade.run(room, {"all": [tmp_path]}, 1)) == [{"student": "all", "over": True}]
    assert says in (tmp_path / "heard").read_text()


def test_no_two_submissions_draw_the_same(tmp_path):
    room = records.Class(tmp_path, [LESSON], "seed", sandbox.OFF, 1.0, tmp_path)
    drawn = {worker.seed(room, {"student": s, "digest": d}) for s in ("ann", "bob") for d in ("first", "second")}
    assert len(drawn) == 4 and not any(room.seed == seed for seed in drawn)


def test_a_worker_that_dies_twice_is_no_zero(course, handed_in, tmp_path, monkeypatch):
    room = grade.open_class(tmp_path / "out", [LESSON], None, sandbox.OFF, 1)
    monkeypatch.setattr(
        grade,
        "start_worker",
        lambda room: subprocess.Popen(["head", "-c", "1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True),
    )
    over = list(grade.run(room, {"all": [handed_in / "all"]}, 1))
    assert over == [{"student": "all", "over": True}]
    record = records.read_record(room.record("all"))
    assert record["state"] == records.FAILED and "died twice" in record["why"]
    assert pages.table([record], room).splitlines()[1] == (
        "all,could not be graded," + "," * 10 + "the process that judges it died twice"
    )
    # The next call tries it once more.
    assert list(grade.left_to_do(room, {"all": [handed_in / "all"]}, again=False)) == ["all"]


def test_numbers_that_cannot_tell_right_from_wrong_cost_one_todo_and_no_submission(tmp_path):
    course = Course(tmp_path / "course")
    checks = [*(course.folder / "grader" / "lessons" / LESSON).glob("*.py")]
    (check,) = [path for path in checks if "premise(len(" in path.read_text()]
    check.write_text(check.read_text().replace("premise(len(", "premise(student.runner.outside is None and len("))
    hand_in(tmp_path / "class", "ann", notebook(range(1, 10)))
    done = run(course, tmp_path / "class", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    record = records.read_record(tmp_path / "out" / "records" / "ann.json")
    lost = [verdict for verdict in record["verdicts"] if verdict["cause"] == "not_judged"]
    assert lost and all("this would pass: a rank that holds" in verdict["message"] for verdict in lost)
    assert record["drawn_again"] == {f"{LESSON}/{verdict['todo']}": 5 for verdict in lost}
    rest = [verdict for verdict in record["verdicts"] if verdict not in lost]
    assert all(verdict["status"] == "pass" for verdict in rest), "what needs such a TODO is judged all the same"
    assert marks(tmp_path / "out") == {"ann": f"{len(rest)}"}
    (line,) = csv.DictReader(io.StringIO((tmp_path / "out" / "marks.csv").read_text()))
    assert all(line[f"{LESSON}/{verdict['todo']}"] == "" for verdict in lost), "no mark is no zero"
    assert "Not judged" in (tmp_path / "out" / "class.html").read_text()
    assert f"of {len(rest)}" in (tmp_path / "out" / "feedback" / "ann.html").read_text()
    given = course.run("mark", str(tmp_path / "out"), "ann", f"{LESSON}/{lost[0]['todo']}", "1", "--reason", "read")
    assert given.returncode == 0 and marks(tmp_path / "out") == {"ann": f"{len(rest) + 1}"}


def test_a_seed_is_tried_on_the_reference_solutions_and_another_is_drawn(monkeypatch):
    told = []
    monkeypatch.setattr(try_seeds, "failures", lambda runner, lesson, seed: [f"{lesson}/3: …"] if seed == "bad" else [])
    monkeypatch.setattr(try_seeds, "drawn", iter(["bad", "good"]).__next__)
    assert try_seeds.fit_for_a_class(None, [LESSON], told.append) == "good"
    assert told == [f"seed bad is not used: the reference solution of {LESSON}/3: …", f"  {LESSON}"]
    monkeypatch.setattr(try_seeds, "drawn", lambda: "bad")
    with pytest.raises(ValueError, match="fail with 3 seeds"):
        try_seeds.fit_for_a_class(None, [LESSON], told.append)


def test_a_drawn_seed_passes_the_reference_solutions():
    with Runner() as runner:
        assert try_seeds.failures(runner, LESSON, try_seeds.drawn()) == []


def test_a_page_holds_a_students_text_and_is_not_changed_by_it():
    nasty = "<script>alert(1)</script>"
    lines = [f"{nasty} {number}" for number in range(4)]  # a line is told once
    verdict = {
        "lesson": LESSON,
        "todo": 1,
        "title": "t",
        "status": "fail",
        "cause": "crash",
        "points": 0,
        "max_points": 1,
        "message": lines[0],
        "expected": lines[1],
        "seen": lines[2],
        "why": "",
        "hint": "",
        "where": lines[3],
        "rank": None,
    }
    record = {
        "student": nasty,
        "submission": nasty,
        "graded": "now",
        "refused": [nasty],
        "verdicts": [verdict],
        "overrides": [],
        "state": records.GRADED,
    }
    page = pages.student_page(record)
    assert "<script" not in page and page.count("&lt;script&gt;") == 8


def test_names_that_would_lead_elsewhere():
    names = ["ann", "../ann", "=1+1", ".", "Ünal", "a b", "a/b", "x" * 300]
    made = [records.file_name(name) for name in names]
    assert made[0] == "ann" and len(set(made)) == len(names)
    assert all("/" not in name and not name.startswith(".") and len(name) < 100 for name in made)


def test_gradescope_is_told_the_same(graded):
    told = json.loads((graded / "gradescope" / "half.json").read_text())
    assert sum(test["score"] for test in told["tests"]) == 3 and sum(test["max_score"] for test in told["tests"]) == 9
    assert {test["status"] for test in told["tests"]} == {"passed", "failed"}


@pytest.mark.parametrize("walls", ["bubblewrap", pytest.param("users", marks=for_users)])
def test_the_course_is_a_gradescope_autograder(course, tmp_path, walls):
    assert course.run("autograder", str(tmp_path / "a.zip"), "--lessons", LESSON).returncode == 0
    root = tmp_path / "autograder"
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert not [name for name in archive.namelist() if "/solutions/" in name or "/answers/" in name]
        for info in archive.infolist():
            path = archive.extract(info, root / "source")
            os.chmod(path, info.external_attr >> 16 or 0o644)
    os.chmod(root / "source" / "course" / "workbook", 0o755)
    hand_in(root, "submission", notebook((1, 2)))
    environment = {**os.environ, "AUTOGRADER_ROOT": str(root), "WORKBOOK_PYTHON": os.sys.executable}
    command = ["bash", root / "source" / "run_autograder"]
    if walls == "users":  # as where bubblewrap may not start
        (tmp_path / "bwrap").symlink_to(shutil.which("false"))
        environment |= {"AUTOGRADER_ROOT": "/mnt", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = [shutil.which("bwrap"), *READABLE[1:], "--bind", root, "/mnt", "bash", "/mnt/source/run_autograder"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert (root / "results" / "results.json").exists(), done.stdout + done.stderr
    told = json.loads((root / "results" / "results.json").read_text())
    assert sum(test["score"] for test in told["tests"]) == 2 and len(told["tests"]) == 9, done.stderr
    assert f"{walls}: " in done.stdout


def test_a_submission_takes_nothing_but_its_own_files(runner, tmp_path):
    path = tmp_path / "s.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name in (
            f"notebooks/{LESSON}.ipynb",
            "../../etc/notebooks/01_collectives.ipynb",
            "torch.py",
            f"deep/er/notebooks/{LESSON}.ipynb",
        ):
            archive.writestr(name, name)
    taken = submissions.take([path], [LESSON], runner)
    assert taken.files == {f"notebooks/{LESSON}.ipynb": f"notebooks/{LESSON}.ipynb".encode()}
    assert any("leads out" in line for line in taken.refused) and any(
        f"is taken as notebooks/{LESSON}.ipynb" in line for line in taken.refused
    )


def test_formgrader_sees_the_same_marks(graded, tmp_path):
    from nbgrader.api import Gradebook

    from grader.engine.classroom import gradebook

    room = records.load(graded)
    for _ in range(2):  # once more changes nothing
        file = gradebook.write(room, records.records(room), tmp_path)
    with Gradebook(f"sqlite:///{file}") as book:
        assert {student: book.find_submission(LESSON, student).score for student in MARKS} == MARKS
        assert book.find_submission(LESSON, "half").max_score == 9
    shown = json.loads((tmp_path / "autograded" / "half" / LESSON / f"{LESSON}.ipynb").read_text())
    assert [cell["metadata"]["nbgrader"]["grade_id"] for cell in shown["cells"] if "nbgrader" in cell["metadata"]] == [
        f"test_{n}" for n in range(1, 10)
    ]

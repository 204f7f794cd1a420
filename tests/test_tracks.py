"""The way through the course: minutes of TODOs, tracks, and what is next."""

import csv
import json
import re
import sys

import pytest

from course_copy import Course
from grader.engine.commands import arguments, cli
from grader.engine.judge.judge import checks_of
from grader.engine.lesson import lessons, notebooks, progress, todo_regions, tracks

EXERCISES = [stem for stem in lessons.stems() if lessons.titles(stem)]


def declared(stem):
    """TODO -> the declaration of its check."""
    return {check.todo.number: check.todo for check in checks_of(stem)}


@pytest.mark.parametrize("stem", EXERCISES)
def test_the_main_thread_needs_nothing_further(stem):
    efforts = tracks.efforts(stem)
    for number, todo in declared(stem).items():
        assert efforts[number].further or not any(efforts[needed].further for needed in todo.needs), todo


@pytest.mark.parametrize("name", tracks.TRACKS)
def test_a_track_has_what_its_checks_need_and_fits_its_hours(name):
    chosen = tracks.members(name)
    assert len(chosen) == len(set(chosen)) > 10
    for stem, number in chosen:
        assert {(stem, needed) for needed in declared(stem)[number].needs} <= set(chosen), (stem, number)
    assert tracks.minutes(chosen) <= 60 * tracks.TRACKS[name].hours


def test_each_track_goes_on_where_the_shorter_one_ends():
    half, day, two = (set(tracks.members(name)) for name in ("half", "day", "two"))
    assert half < day < two


@pytest.fixture
def course(tmp_path):
    return Course(tmp_path / "course")


def test_whoever_begins_in_the_middle_is_sent_on(course, monkeypatch):
    monkeypatch.setattr(lessons, "COURSE", course.folder)
    assert progress.next_todo() == (EXERCISES[0], 1)
    progress.Progress().write({("03_zero", 1): "pass", ("03_zero", 2): "fail"})
    assert progress.next_todo() == ("03_zero", 2)
    progress.Progress().write({("03_zero", number): "pass" for number in lessons.titles("03_zero")})
    assert progress.next_todo() == ("fsdp_training", 1)
    # Left out before.
    assert progress.next_todo([("01_collectives", 4), ("01_collectives", 5)]) == ("01_collectives", 4)
    everything = {(stem, number): "pass" for stem in EXERCISES for number in lessons.titles(stem)}
    progress.Progress().write(everything)
    assert progress.next_todo() is None


def test_status_of_a_track_says_what_is_next_and_how_long_it_takes(course):
    progress_file = course.folder / ".workbook" / "progress.txt"
    progress_file.parent.mkdir(exist_ok=True)
    first, second = tracks.members("half")[:2]
    minutes = tracks.minutes(tracks.members("half"))
    progress_file.write_text(f"{progress.NUMBERING}\n{first[0]}/{first[1]} pass\n")
    told = course.run("status", "--track", "half").stdout
    assert f"about {tracks.hours(minutes)};" in told
    assert f"1 done, about {tracks.hours(minutes - tracks.minutes([first]))} left" in told
    assert f"Next: ./workbook watch {second[0]} --track half, and" in told and f"TODO {second[1]}," in told
    done = "".join(f"{stem}/{number} pass\n" for stem, number in tracks.members("half"))
    progress_file.write_text(f"{progress.NUMBERING}\n{done}")
    told = course.run("status", "--track", "half").stdout
    assert "run ddp_training" in told and told.endswith("./workbook status --track day\n"), told
    for args, word in (
        (["status", "--track", "week"], "half, day, two and all"),
        (["status", "03_zero", "--track", "half"], "03_zero"),
        (["watch", "--track", "week"], "half, day, two and all"),
        (["watch", "03_zero", "--track", "half"], "00_one_device, 01_collectives, 02_data_parallel, ddp_training"),
    ):
        done = course.run(*args)
        assert done.returncode == 2 and word in done.stderr and len(done.stderr.splitlines()) == 1, done


def test_what_status_prints_of_a_track_can_be_typed_back(capsys):
    printed = [line.split()[1] for line in progress.track_map("two")[1:]]
    assert [(stem, n) for stem, numbers in arguments.chosen(printed).items() for n in numbers] == tracks.members("two")
    assert arguments.chosen([], "two") == arguments.chosen(printed)


def test_todos_are_named_one_by_one_in_spans_and_as_lessons():
    assert arguments.chosen(["02/2", "02/3"]) == arguments.chosen(["02/2-3"]) == {"02_data_parallel": [2, 3]}
    assert arguments.chosen(["02/1-3+5", "01/2,4"]) == {"01_collectives": [2, 4], "02_data_parallel": [1, 2, 3, 5]}
    assert arguments.chosen(["02/3", "02"]) == arguments.chosen(["02", "02/3"]) == {"02_data_parallel": []}, "all"
    assert arguments.chosen(["02/9"], "half")["02_data_parallel"] == [1, 2, 3, 9]


@pytest.mark.parametrize(
    "args, said",
    [
        (["check", "02/8-11"], "there is no TODO 02/8-11; 02_data_parallel has 1 to 9"),
        (["check", "02/3-1"], "there is no TODO 02/3-1"),
        (["check", "02/x"], "there is no TODO 02/x"),
        (["check", "02/1", "zz"], "no lesson zz"),
        (["check", "--track", "week"], "half, day, two and all"),
        (["hint", "02/1-3"], "02/1-3 is more than one TODO; give one, such as 02_data_parallel/1"),
        (["hint", "02"], "which TODO? 02_data_parallel has 02_data_parallel/1 to 02_data_parallel/9"),
        (["diff", "02/3"], "02/3: give a lesson here, without TODOs: 02_data_parallel"),
        (["status", "02/1-3"], "02/1-3: give a lesson here, without TODOs: 02_data_parallel"),
        (["grade", ".", "--out", "o", "--track", "week"], "half, day, two and all"),
        (["grade", ".", "--out", "o", "--keep", "best"], "--keep best: it is last or first"),
        (["check", "--port", "1"], "No such option: --port (--help"),
        (["test", "--port", "1"], "No such option: --port. Arguments for pytest go after --"),
    ],
)
def test_what_cannot_be_asked_for_is_one_line(monkeypatch, capsys, args, said):
    monkeypatch.setattr(sys, "argv", ["workbook", *args])
    with pytest.raises(SystemExit) as end:
        cli.main()
    printed = capsys.readouterr()
    assert end.value.code == 2 and not printed.out and len(printed.err.splitlines()) == 1
    assert said in printed.err


def test_several_todos_are_checked_and_no_other(course):
    done = course.run("check", "ddp/13", "ddp/1-2", "--json", "v.json")
    found = [(mark["lesson"], mark["todo"]) for mark in json.loads((course.folder / "v.json").read_text())]
    assert found == [("ddp_training", 1), ("ddp_training", 2), ("ddp_training", 13)]
    assert done.returncode == 1 and done.stdout.endswith("0 of 3 right\n")


@pytest.mark.long
def test_whoever_did_a_track_has_full_marks_of_it(course, tmp_path):
    """The track is a small one here; that a class without it counts all TODOs is said by other tests."""
    register = course.folder / "grader" / "lessons" / "course.toml"
    words, changed = re.subn(
        r"(\[tracks\.half\].*?todos = \[).*?\]",
        r'\1"01_collectives/1-2"]',
        register.read_text(),
        count=1,
        flags=re.DOTALL,
    )
    assert changed == 1
    register.write_text(words)
    source = lessons.source_path("01_collectives").read_text("utf-8")
    solved = notebooks.to_notebook(todo_regions.compose(source, (1, 2)), "01_collectives", released=False)
    own = tmp_path / "class" / "ann" / "notebooks" / "01_collectives.ipynb"
    own.parent.mkdir(parents=True)
    own.write_text(notebooks.to_json(solved))
    grade = ["grade", str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--seed", "s"]
    done = course.run(*grade, "--track", "half")
    assert done.returncode == 0 and "ann: 2 of 2" in done.stdout, done
    (row,) = csv.DictReader((tmp_path / "out" / "marks.csv").open())
    assert row["total"] == "2" and [name for name in row if "/" in name] == ["01_collectives/1", "01_collectives/2"]
    told = json.loads((tmp_path / "out" / "gradescope" / "ann.json").read_text())
    assert [test["score"] for test in told["tests"]] == [1, 1]
    assert "01_collectives: 2 of 2" in (tmp_path / "out" / "feedback" / "ann.html").read_text()
    again = course.run(*grade, "--lessons", "01_collectives")
    assert again.returncode == 2 and "was started with different TODOs" in again.stderr


@pytest.mark.parametrize("minutes, words", [(0, "0 min"), (40, "40 min"), (120, "2 h"), (200, "3 h 20 min")])
def test_hours_in_words(minutes, words):
    assert tracks.hours(minutes) == words


def test_progress_of_another_numbering_is_kept_aside(course):
    folder = course.folder / ".workbook"
    folder.mkdir(exist_ok=True)
    for number in (1, 2):
        (folder / "progress.txt").write_text("01_collectives/1 pass\n")
        done = course.run("status", "01_collectives")
        assert done.returncode == 0 and "0 of 9 TODOs" in done.stdout
        assert len(done.stderr.splitlines()) == 1 and f"progress-{number}.txt" in done.stderr
        assert (folder / f"progress-{number}.txt").read_text() == "01_collectives/1 pass\n"

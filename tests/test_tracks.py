"""The way through the course: minutes of TODOs, tracks, and what is next."""

import importlib

import pytest

from course_copy import Course
from grader.engine.lesson import lessons, progress, tracks

EXERCISES = [stem for stem in lessons.stems() if lessons.titles(stem)]


def declared(stem):
    """What the check file's own functions say: TODO -> its declaration."""
    checks = importlib.import_module(f"grader.test_{stem}")
    return {check.todo.number: check.todo for check in vars(checks).values() if hasattr(check, "todo")}


@pytest.mark.parametrize("stem", EXERCISES)
def test_efforts_are_read_as_they_are_declared(stem):
    expected = {number: (todo.minutes, todo.further) for number, todo in declared(stem).items()}
    assert tracks.efforts(stem) == expected
    assert all(minutes > 0 and minutes % 5 == 0 for minutes, _ in expected.values())


@pytest.mark.parametrize("stem", EXERCISES)
def test_the_main_thread_needs_nothing_further(stem):
    todos = declared(stem)
    for todo in todos.values():
        assert todo.further or not any(todos[needed].further for needed in todo.needs), todo


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

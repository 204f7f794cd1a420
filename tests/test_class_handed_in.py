"""What learning platforms, sticks and mail make of submissions: the same right one has its full marks, whatever it
comes as; what holds nothing of the course is told; and whose an entry of the class's folder is."""

import csv
import html
import io
import json
import os
import shutil
import tarfile
import zipfile

import pytest
from typer.testing import CliRunner

from course_copy import Course
from grader.engine.classroom import submitters, pages, records, submissions
from grader.engine.commands.cli import app
from grader.engine.inside import read_submission
from grader.engine.lesson import submission_files, lessons, notebooks, todo_regions
from grader.engine.walls import sandbox

LESSON = "01_collectives"
TODO = f"{LESSON}/2"  # a single quick one
OWN = f"notebooks/{LESSON}.ipynb"
SCRIPT = "train/ddp_training.py"


def solved(*todos):
    source = lessons.source_path(LESSON).read_text("utf-8")
    return notebooks.to_json(
        notebooks.to_notebook(todo_regions.compose(source, todos), LESSON, released=False)
    ).encode()


RIGHT, BLANK = solved(2), solved()


def tarred(files, how="w:gz"):
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=how) as archive:
        for name, content in files.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return packed.getvalue()


def zipped(files):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def lay(folder, files):
    """Write files, the later ones later; content None is an empty folder."""
    for number, (name, content) in enumerate(files.items()):
        path = folder / name
        if content is None:
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        os.utime(path, (number + 1, number + 1))


SUBMITTED = tarred({OWN: RIGHT, "manifest.json": b"{}"})  # as `submit` packs it
BLANKS = tarred({OWN: BLANK})
MOODLE = "assignsubmission_file_"
BOARD = "gradebook_PAR-1_First_Task_"

# What each way of collecting makes of the same right submission: student -> entries.
COLLECTED = {
    "Ada M": {f"Ada M_101_{MOODLE}/submission.tar.gz": SUBMITTED},
    "Ben M": {f"Ben M_102_{MOODLE}/{LESSON} (1).ipynb": RIGHT},
    "Cem M": {f"Cem M_103_{MOODLE}submission.zip": zipped({"submission.tar.gz": SUBMITTED})},
    "Dora M": {f"Dora M_104_{MOODLE}{LESSON}.ipynb": RIGHT},
    "Eve M": {
        f"Eve M_105_{MOODLE}/{OWN}": RIGHT,
        "Eve M_105_assignsubmission_onlinetext_/onlinetext.html": b"<p>done</p>",
    },
    "fayec": {"fayec_31415_92653_submission.tar.gz": SUBMITTED},
    "gusc": {"gusc_LATE_31416_92700_submission.tar-1.gz": SUBMITTED},
    "hanc": {f"hanc_31417_92701_{LESSON}.ipynb": RIGHT, "hanc_31417_92702_02_data_parallel.ipynb": b"{}"},
    "idac": {f"idac_31418_92703_{LESSON}-2.ipynb": RIGHT},
    "janc": {"janc_31419_92704_submission.tar.gz": BLANKS, "janc_LATE_31419_92800_submission.tar-1.gz": SUBMITTED},
    "anon_x7y": {"anon_x7y_92705_submission.zip": zipped({f"{LESSON}.ipynb": RIGHT})},
    "kim_01": {
        f"{BOARD}kim_01_attempt_2026-11-20-14-05-33_submission.tar.gz": SUBMITTED,
        f"{BOARD}kim_01_attempt_2026-11-20-14-05-33.txt": b"Name: Kim",
    },
    "len_02": {
        f"{BOARD}len_02_attempt_2026-11-21-09-00-00_submission.tar.gz": SUBMITTED,
        f"{BOARD}len_02_attempt_2026-11-20-23-00-00_submission.tar.gz": BLANKS,
    },
    "submission_123": {"submission_123/submission.tar.gz": SUBMITTED},  # Gradescope's export
    "unzipped": {f"unzipped/my_course/{OWN}": RIGHT},
    "mia": {f"mia/{LESSON}/{LESSON}.ipynb": RIGHT},  # nbgrader's
    "nora": {f"nora/{LESSON}.ipynb": RIGHT, f"nora/._{LESSON}.ipynb": b"\0", "nora/.DS_Store": b"\0"},
    "omar": {
        f"omar/Desktop/course/{OWN}": RIGHT,
        f"omar/Desktop/course/notebooks/.ipynb_checkpoints/{LESSON}-checkpoint.ipynb": BLANK,
        "omar/Desktop/course/grader/lessons/01_collectives/ranks.py": b"# TODO",
    },
    "pia": {f"pia/notebooks/{LESSON} - Copy.ipynb": RIGHT},
    "quin": {f"quin/Copy of {LESSON}.ipynb": RIGHT},
    "rex": {"rex/homework.ipynb": RIGHT},
    "sue": {f"sue/{LESSON}.ipynb.txt": RIGHT},
    "tom": {f"tom/{LESSON}-Copy1.ipynb": RIGHT, f"tom/{LESSON}-Copy2.ipynb": RIGHT},
    "uma": {"uma.tar.gz": SUBMITTED},
    "vic": {"vic.zip": zipped({f"{LESSON}.ipynb": RIGHT})},
    "wes": {"wes.zip": zipped({"__MACOSX/._submission.tar.gz": b"\0", "submission.tar.gz": SUBMITTED})},
    "xia": {"xia.tar.gz": zipped({OWN: RIGHT})},
    "yan": {"yan.tgz": tarred({OWN: RIGHT}, "w:")},
    "zoe": {f"zoe_{LESSON}.ipynb": RIGHT},
    "ally": {"ally.ipynb": RIGHT},
    "bo": {"bo.tar.xz": tarred({OWN: RIGHT}, "w:xz")},
    "cy": {"cy (1).tar.gz": SUBMITTED},
    "dee": {"dee.tar.gz": BLANKS, "dee_LATE.tar.gz": SUBMITTED},
}
# Submissions that hold nothing of the course -> words that say so.
NOTHING = {
    "n-empty": ({"n-empty": None}, "no file"),
    "n-pdf": ({"n-pdf/report.pdf": b"%PDF-1.7"}, "report.pdf"),
    "n-docx": ({"n-docx.zip": zipped({"report.docx": zipped({"word.xml": b""})})}, "report.docx"),
    "n-html": ({f"n-html/{LESSON}.html": b"<html>"}, f"{LESSON}.html"),
    "n-other": ({"n-other/notebooks/02_data_parallel.ipynb": b"{}"}, "02_data_parallel.ipynb"),
    "n-zip": ({"n-zip.zip": zipped({})}, "no file"),
    "n-loose": ({"n-loose.ipynb": b'{"cells": []}'}, "n-loose.ipynb"),
    "n-named": ({f"n-named/{LESSON} (1).ipynb": b'{"cells": []}'}, "(1).ipynb"),
    "N M": ({f"N M_109_{MOODLE}essay.txt": b"once upon"}, "essay.txt"),
    "n-link": ({"n-link/notebooks": None}, "no file"),
}
REFUSED = {
    "r-seven": ({"r-seven.7z": b"7z\xbc\xaf\x27\x1c" + bytes(40)}, "it is a 7-Zip archive"),
    "r-rar": ({"r-rar/submission.rar": b"Rar!\x1a\x07\0"}, "it is a RAR archive"),
    "r-none": ({"r-none.zip": b"no archive"}, "it is not an archive"),
    "r-cut": ({"r-cut/submission.tar.gz": SUBMITTED[: len(SUBMITTED) // 2]}, "cannot be read: EOFError"),
}


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """All of them, graded as one class: what the command prints, its records, the folder."""
    folder = tmp_path_factory.mktemp("class")
    for files in [*COLLECTED.values(), *(files for files, _ in [*NOTHING.values(), *REFUSED.values()])]:
        lay(folder / "in", files)
    (folder / "in" / "n-link" / OWN).symlink_to("/etc/passwd")
    lay(folder / "in", {"notes.txt": b"mine", ".DS_Store": b"", "submission_metadata.yml": b"{}"})
    (folder / "in" / "elsewhere").symlink_to(folder)
    course = Course(folder / "course")
    done = course.run("grade", str(folder / "in"), "--out", str(folder / "out"), "--lessons", TODO, "--seed", "s")
    assert done.returncode == 0, done.stdout + done.stderr
    room = records.load(folder / "out")
    return done.stdout, {record["student"]: record for record in records.records(room)}, folder / "out"


def test_the_class_is_large_enough():
    assert len(COLLECTED) >= 30 and len(NOTHING) >= 10


@pytest.mark.parametrize("student", COLLECTED)
def test_a_right_submission_has_its_mark_whatever_it_comes_as(graded, student):
    _, found, _ = graded
    assert student in found, sorted(found)
    assert found[student]["state"] == records.GRADED and records.points(found[student]) == 1, found[student]


@pytest.mark.parametrize("student", [*NOTHING, *REFUSED])
def test_what_holds_nothing_of_the_course_is_told_everywhere(graded, student):
    printed, found, out = graded
    words = (NOTHING | REFUSED)[student][1]
    record = found[student]
    state = records.NOTHING if student in NOTHING else records.REFUSED
    assert record["state"] == state, record
    assert any(line.startswith(f"{student}: ") and words in line for line in printed.splitlines())
    (row,) = [row for row in csv.DictReader((out / "marks.csv").open()) if row["student"] == student]
    assert row["state"] == state and words in row["note"]
    assert row["total"] == ("" if student in NOTHING else "0"), "no mark is no zero"
    told = json.loads((out / "gradescope" / f"{records.file_name(student)}.json").read_text())
    assert words in told["output"]
    assert words in (out / "feedback" / f"{records.file_name(student)}.html").read_text()
    assert words in (out / "class.html").read_text()
    if student in NOTHING:
        assert f"expected: {OWN}" in record["why"] and told["score"] == 0 and row[TODO] == ""


def test_every_entry_has_a_row_or_a_line(graded):
    printed, found, out = graded
    assert {*found} == {*COLLECTED, *NOTHING, *REFUSED}
    for line in (
        "notes.txt is not graded: it is neither a folder or an archive nor a notebook, script or batch file",
        "submission_metadata.yml is not graded: it is neither a folder",
        "elsewhere is not graded: a link is not followed",
        "not looked at: .DS_Store",
        "dee.tar.gz does not count: dee_LATE.tar.gz is the same student's, and later",
        "janc_31419_92704_submission.tar.gz does not count: janc_LATE_31419_92800_submission.tar-1.gz is the same",
        f"{BOARD}len_02_attempt_2026-11-20-23-00-00_submission.tar.gz does not count: {BOARD}len_02",
        f"nothing of the course is in {len(NOTHING)} of {len(found)}, which have no mark: ",
    ):
        assert line in printed, line
        assert line in html.unescape((out / "class.html").read_text()) or line.startswith("nothing")


# Whose an entry is


def whose(folder, *names, keep="last"):
    """Student -> names of entries; and the lines. A name that ends in / is a folder."""
    for number, name in enumerate(names):
        path = folder / name
        path.mkdir() if name.endswith("/") else path.write_bytes(b"")
        os.utime(path, (number + 1, number + 1))
    found, told = submitters.students(folder, keep)
    return {student: sorted(path.name for path in paths) for student, paths in found.items()}, told


def test_a_platforms_number_says_who_is_who(tmp_path):
    found, told = whose(
        tmp_path,
        f"Li Wei_7_{MOODLE}/",
        f"Li Wei_8_{MOODLE}/",
        "liwei_1_22_a.ipynb",
        "liwei_2_23_a.ipynb",
        "eve_3_24_liwei_1_99_a.ipynb",  # a file that eve has called so
    )
    assert not told and {*found} == {"Li Wei (7)", "Li Wei (8)", "liwei (1)", "liwei (2)", "eve"}


def test_files_of_one_student_are_one_submission(tmp_path):
    found, told = whose(tmp_path, "ann_1_22_a.ipynb", "ann_1_23_b.ipynb", "ann_1_24_b-1.ipynb", "ann_1_text.html")
    assert found == {"ann": ["ann_1_22_a.ipynb", "ann_1_24_b-1.ipynb", "ann_1_text.html"]}
    assert told == ["ann_1_23_b.ipynb does not count: ann_1_24_b-1.ipynb is the same student's, and later"]


def test_the_first_counts_if_asked(tmp_path):
    found, told = whose(tmp_path, "s1.tar.gz", "s1_LATE.tar.gz", "s1 (2).zip", keep="first")
    assert found == {"s1": ["s1.tar.gz"]}
    assert [line.partition(" does")[0] for line in told] == ["s1 (2).zip", "s1_LATE.tar.gz"]
    assert all(line.endswith("does not count: s1.tar.gz is the same student's, and earlier") for line in told)


def test_of_one_name_with_two_endings_the_newer_counts(tmp_path):
    found, told = whose(tmp_path, "ann.zip", "ann.tar.gz", "ann.7z")
    assert found == {"ann": ["ann.7z"]} and len(told) == 2


def test_ilias_names_folders_by_the_login(tmp_path):
    found, _ = whose(tmp_path, "Mustermann_Max_mmuster_6789/", "Muster_Eva_emuster_6790/")
    assert {*found} == {"mmuster", "emuster"}
    found, _ = whose(tmp_path, "team_of_four_12/", "ann/")
    assert "team_of_four_12" in found, "a name alone: not all are of this form"


def test_blackboards_students_stay_apart_whatever_they_are_called(tmp_path):
    ends = "_attempt_2026-11-20-14-05-33_x.zip"
    found, _ = whose(tmp_path, f"{BOARD}jane_doe{ends}", f"{BOARD}max_doe{ends}", f"{BOARD}jan{ends}")
    assert {*found} == {"jane_doe", "max_doe", "jan"}
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    assert {*whose(tmp_path, f"{BOARD}doe{ends}")[0]} == {"doe"}


def test_teams_with_numbers_are_no_copies(tmp_path):
    found, told = whose(tmp_path, "team.zip", "team-1.zip", "team-2.zip", "team-3/", "team-4/")
    assert {*found} == {"team", "team-1", "team-2", "team-3", "team-4"} and not told


def test_a_single_submission_in_place_of_a_class_is_told(tmp_path):
    course = Course(tmp_path / "course")
    lay(tmp_path / "ann", {OWN: RIGHT})
    done = course.run("grade", str(tmp_path / "ann"), "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"workbook: {tmp_path / 'ann'} is one submission, with notebooks/ in it: give the")


def test_an_archive_or_a_folder_around_a_class_is_told(tmp_path):
    (tmp_path / "class.zip").write_bytes(zipped({}))
    done = CliRunner().invoke(app, ["grade", str(tmp_path / "class.zip"), "--out", str(tmp_path / "out")])
    assert done.exit_code == 2 and "class.zip: is a file: unpack it, and give the folder" in done.output
    for student in ("Li Wei_7", "Ann_8"):
        (tmp_path / "class" / "Week 1" / f"{student}_{MOODLE}").mkdir(parents=True)
    with pytest.raises(ValueError, match="nothing but Week 1/, in which 2 submissions lie: give that folder"):
        submitters.students(tmp_path / "class")


# What is taken


def wanted():
    return submissions.wanted([LESSON, "ddp_training"])


def opened(folder, files, monkeypatch):
    """What a rank takes of these files: names that were taken; and its lines."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    for number, content in enumerate(files.values()):
        (folder / str(number)).write_bytes(content)
    said = read_submission.unpacked([*files], wanted())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.*")}, said


def test_of_two_the_better_name_counts_and_the_other_is_told(tmp_path, monkeypatch):
    taken, said = opened(tmp_path, {f"{LESSON} (1).ipynb": BLANK, f"{LESSON}.ipynb": RIGHT}, monkeypatch)
    assert taken == {OWN: RIGHT}
    assert said["refused"] == [f"{LESSON} (1).ipynb: {LESSON}.ipynb is taken as {OWN}"]


def test_of_copies_the_last_counts(tmp_path, monkeypatch):
    files = {"20261120140533_01_collectives.ipynb": BLANK, "20261121080000_01_collectives.ipynb": RIGHT}
    assert opened(tmp_path / "times", files, monkeypatch)[0] == {OWN: RIGHT}
    files = {f"{LESSON}-{number}.ipynb": RIGHT if number == 12 else BLANK for number in (1, 12, 2)}
    taken, said = opened(tmp_path / "numbers", files, monkeypatch)
    assert taken == {OWN: RIGHT} and len(said["refused"]) == 2


def test_several_archives_are_opened_together(tmp_path, monkeypatch):
    script = (lessons.COURSE / SCRIPT).read_bytes()
    files = {"one.zip": zipped({f"{LESSON}.ipynb": RIGHT}), "two.tar.gz": tarred({"ddp_training.py": script})}
    assert opened(tmp_path, files, monkeypatch)[0] == {OWN: RIGHT, SCRIPT: script}


def test_an_archive_that_breaks_costs_nothing_of_the_others(tmp_path, monkeypatch):
    files = {"a.tar.gz": SUBMITTED[:-200], "b.zip": zipped({OWN: RIGHT})}
    taken, said = opened(tmp_path, files, monkeypatch)
    assert taken == {OWN: RIGHT} and said["refused"][0].startswith("a.tar.gz: cannot be read: ")


def test_a_file_with_a_lessons_name_and_nothing_of_it_is_not_taken(tmp_path, monkeypatch):
    """The course's own files, whose names and functions are alike, lie in a whole course that is handed in."""
    theirs = [*(lessons.COURSE / "grader").rglob("*.py"), *(lessons.COURSE / "utils").rglob("*.py")]
    files = {path.relative_to(lessons.COURSE).as_posix(): path.read_bytes() for path in theirs}
    files = {name: content for name, content in files.items() if "/answers/" not in name}
    taken, said = opened(tmp_path, files, monkeypatch)
    assert len(files) > 100 and not taken
    assert said["refused"] == [
        f"{name}: has the name of {SCRIPT}, and nothing of it inside" for name in ("utils/after_ddp_training.py",)
    ]


@pytest.mark.parametrize("stem", [stem for stem in lessons.stems() if lessons.titles(stem)])
def test_a_file_is_known_by_its_content_and_taken_for_no_other(stem):
    """Unsolved and solved, among all files of the course."""
    all_of_them = submissions.wanted([stem for stem in lessons.stems() if lessons.titles(stem)])
    sieve = submission_files.Sieve(all_of_them, 0)
    for source in lessons.sources(stem):
        if not todo_regions.titles(text := source.read_text("utf-8")):
            continue
        own = source.relative_to(lessons.source_root()).as_posix()
        own, name = own.replace(".py", ".ipynb") if "notebooks/" in own else own, f"x{source.suffix}"
        name = name.replace(".py", ".ipynb") if "notebooks/" in own else name
        for todos in ((), lessons.titles(stem)):
            assert sieve.by_content(submission_files.File(name, b""), todo_regions.compose(text, todos)) == own
        rest = {other: lines for other, lines in all_of_them.items() if other != own}
        assert not submission_files.Sieve(rest, 0).by_content(
            submission_files.File(name, b""), todo_regions.compose(text)
        )


# Limits


def in_archives(content, depth):
    for _ in range(depth):
        content = zipped({"inner.zip": content})
    return content


def test_archives_are_opened_to_a_depth(tmp_path, monkeypatch):
    taken, _ = opened(tmp_path / "two", {"x.zip": in_archives(zipped({OWN: RIGHT}), 1)}, monkeypatch)
    assert taken == {OWN: RIGHT}
    taken, said = opened(tmp_path / "three", {"x.zip": in_archives(zipped({OWN: RIGHT}), 2)}, monkeypatch)
    assert not taken and said["unread"] == ["inner.zip/inner.zip is not opened: it lies inside of too many archives"]


def test_archives_are_opened_up_to_a_number(tmp_path, monkeypatch):
    most = submission_files.MOST_ARCHIVES
    files = {f"{number:02}.zip": zipped({"x.txt": b""}) for number in range(most)} | {"last.zip": zipped({OWN: RIGHT})}
    taken, said = opened(tmp_path, files, monkeypatch)
    assert not taken and said["unread"] == [f"last.zip is not read: more than {most} archives"]


def test_what_archives_hold_is_read_up_to_a_size(tmp_path, monkeypatch):
    monkeypatch.setattr(submission_files, "MOST_READ", 20_000)
    odd = {f"{number}.ipynb": bytes(9_000) for number in range(4)}
    _, said = opened(tmp_path, {"x.zip": zipped(odd)}, monkeypatch)
    assert said["refused"] == [f"{n}.ipynb: is not read: the submission is too large" for n in (2, 3)]
    monkeypatch.setattr(submission_files, "MOST_READ", 20_000_000)
    big = zipped({"inner": bytes(submission_files.MOST_ARCHIVE)})
    assert not opened(tmp_path, {"x.zip": big}, monkeypatch)[1]["unread"], "it is no archive, and never read"
    inner = b"PK\3\4" + bytes(30_000_000)
    assert "too large" in opened(tmp_path, {"x.zip": zipped({"inner.zip": inner})}, monkeypatch)[1]["unread"][0]


def test_documents_and_checkpoints_are_no_archives(tmp_path, monkeypatch):
    files = {name: zipped({OWN: RIGHT}) for name in ("a.docx", "b.pt", "c.npz", "d.whl")}
    taken, said = opened(tmp_path, {"x.zip": zipped(files)}, monkeypatch)
    assert not taken and not said["unread"] and said["holds"] == [*files]


def test_a_folder_is_taken_by_names_alone_where_names_are_right(tmp_path):
    """Then no rank is needed: with odd names or archives one is."""
    lay(tmp_path / "ann", {OWN: RIGHT, "notes/x.txt": b"", f"old/{OWN}": BLANK})
    taken = submissions.take([tmp_path / "ann"], [LESSON], None)
    assert taken.files == {OWN: RIGHT} and taken.refused == [f"old/{OWN}: {OWN} is taken as {OWN}"]
    lay(tmp_path / "ann", {"submission.tar.gz": SUBMITTED})
    with pytest.raises(AttributeError):
        submissions.take([tmp_path / "ann"], [LESSON], None)


def test_a_digest_changes_with_whatever_may_count(tmp_path):
    lay(tmp_path / "ann", {f"{LESSON} (1).ipynb": RIGHT, "submission.tar.gz": SUBMITTED, "notes.txt": b"1"})
    digests = {submissions.digest([tmp_path / "ann"], [LESSON])}
    for name in (f"{LESSON} (1).ipynb", "submission.tar.gz", "notes.txt"):
        (tmp_path / "ann" / name).write_bytes(b"changed")
        digests.add(submissions.digest([tmp_path / "ann"], [LESSON]))
    assert len(digests) == 3, "what does not count does not grade anew"


def test_a_note_is_no_formula(tmp_path):
    room = records.Class(tmp_path, [LESSON], "s", sandbox.OFF, 1.0, tmp_path, todos={LESSON: [2]})
    record = records.failure("ann", "ann", "=1+1;@SUM(1)|cmd\tx,y")
    assert pages.table([record], room).splitlines() == [
        f"student,state,total,{TODO},note",
        "ann,could not be graded,,,1+1 @SUM(1) cmd x y",
    ]

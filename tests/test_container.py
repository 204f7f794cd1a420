"""The container's recipe: its shell parts, with stand-ins for pip and apptainer. No image is built here."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest

from grader.engine.lesson import lessons

FOLDER = lessons.COURSE / "utils" / "container"
SECTIONS = dict(re.findall(r"^%(\w+)\n(.*?)(?=^%|\Z)", (FOLDER / "workbook.def").read_text(), re.MULTILINE | re.DOTALL))
# What apptainer does with these options, without a container: --nv is the GPUs' driver.
APPTAINER = """#!/bin/sh
[ "$1" = exec ] && shift
[ "$1" = --nv ] && shift
[ "$1 $3" = "--bind --pwd" ] && [ -d "$2/grader" ] && cd "$4" && [ -f "$5" ] || exit 99
shift 5
PATH=INSIDE exec "$@"
"""


def test_its_shell_parts_are_right(tmp_path):
    for section in ("post", "test", "environment", "runscript"):
        done = subprocess.run(["sh", "-n"], input=SECTIONS[section], capture_output=True, text=True)
        assert done.returncode == 0, (section, done.stderr)
    for line in SECTIONS["files"].split("\n"):
        assert not line.strip() or (lessons.COURSE / line.split()[0]).is_file(), line


def test_it_installs_what_the_requirements_say_and_tests_it(tmp_path):
    for line in filter(None, map(str.strip, SECTIONS["files"].split("\n"))):  # as the image gets them
        here, there = line.split()
        to = tmp_path / os.path.relpath(there, "/opt/workbook")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(lessons.COURSE / here, to)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/log\n[ "$1" != -m ] || exit 0\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}"}
    for section in ("post", "test"):
        script = SECTIONS[section].replace("/opt/workbook", str(tmp_path))
        done = subprocess.run(["sh"], input=script, env=env, capture_output=True, text=True)
        assert done.returncode == 0, (section, done.stderr)
    assert (
        f"-m pip install --no-cache-dir --disable-pip-version-check -r {tmp_path}/requirements.txt"
        in (tmp_path / "log").read_text()
    )


@pytest.fixture
def env(tmp_path):
    """A node with a stand-in for apptainer, whose image's Python is ours."""
    (tmp_path / "bin").mkdir()
    inside = os.path.dirname(sys.executable)  # an image has a PATH of its own
    (tmp_path / "bin" / "apptainer").write_text(APPTAINER.replace("INSIDE", f"{inside}:/usr/bin:/bin"))
    (tmp_path / "bin" / "apptainer").chmod(0o755)
    (tmp_path / "image.sif").touch()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    return plain | {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "WORKBOOK_IMAGE": str(tmp_path / "image.sif"),
        "WORKBOOK_PYTHON": str(FOLDER / "python"),
    }


def test_the_course_takes_the_container_s_python(env):
    done = subprocess.run(
        [str(lessons.COURSE / "workbook"), "hint", "--help"], env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0 and "hint" in done.stdout, done.stderr


def test_batch_files_take_the_container_s_python(env):
    """As utils/site.sh sets it: `python`, and the course's torchrun by way of it."""
    script = '. utils/site.sh && command -v python torchrun && python -c "print(40 + 2)"'
    done = subprocess.run(
        ["bash", "-c", script], cwd=lessons.COURSE, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == [str(FOLDER / "python"), str(lessons.COURSE / "utils/bin/torchrun"), "42"], done


@pytest.mark.parametrize(("lacks", "words"), [("WORKBOOK_IMAGE", "is no file"), ("PATH", "neither apptainer")])
def test_what_is_missing_is_one_line(env, lacks, words):
    env[lacks] = {"PATH": "/usr/bin:/bin", "WORKBOOK_IMAGE": "/nowhere.sif"}[lacks]
    done = subprocess.run([str(FOLDER / "python"), "-c", ""], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and words in done.stderr and done.stderr.count("\n") == 1


def test_the_devcontainer_starts_what_is_there():
    """It was not opened here: that takes Docker."""
    found = json.loads((lessons.COURSE / ".devcontainer" / "devcontainer.json").read_text())
    command = found["postCreateCommand"].split()
    assert (lessons.COURSE / command[0]).is_file() and command[1] == "start"
    version = re.search(r":(\d+)\.(\d+)-", found["image"])
    assert tuple(map(int, version.groups())) >= (3, 11)

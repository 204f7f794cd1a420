"""The `workbook` script: which Python it takes, what it installs, and when. The Pythons here are stand-ins."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grader.engine.jobs import missing_packages
from grader.engine.lesson import lessons
from utils import releases

# It tells what it was asked in a log, and makes a .venv whose Python is a copy of itself, and so is its uv.
PYTHON = """\
#!/bin/sh
echo "$(basename "$0") $*" >>"$LOG"
case "$*" in
    *version_info*) exit {old} ;;
    *ensurepip*) exit {without_venv} ;;
    "-m venv "*) mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; touch "$4/pip" ;;
    "-m pip --version") [ -e "$(dirname "$0")/../pip" ] ;;
    "-m pip config list") [ ! -e "$LOG.settings" ] || cat "$LOG.settings" ;;
    "-m pip "*" uv=="*) [ ! -e "$LOG.no-uv" ] && cp "$0" "$(dirname "$0")/uv" ;;
    *whl/cpu*) [ ! -e "$LOG.no-cpu-torch" ] ;;
    "-m pip "* | "pip install "*)
        echo "of indexes $UV_DEFAULT_INDEX|$UV_INDEX|$UV_FIND_LINKS" >>"$LOG"
        echo "compiles ${{UV_COMPILE_BYTECODE:-no}}" >>"$LOG"
        echo "trusts $UV_SYSTEM_CERTS|$SSL_CERT_FILE" >>"$LOG"
        case "$0" in *uv) [ ! -e "$LOG.uv-fails" ] || exit 2 ;; esac
        [ ! -e "$LOG.offline" ] || {{ printf 'error: Request failed\n  cause: dns error\n' >&2; exit 2; }} ;;
    --version) echo Python 3.12.1 ;;
    *grader.engine.commands.cli*) echo "ran $4 in $PWD" ;;
esac
"""


class Bench:
    """A course folder, and a PATH on which nothing is but what a test puts there."""

    def __init__(self, folder: Path) -> None:
        self.course, self.bin, self.log_file = folder / "my course", folder / "bin", folder / "log"
        (self.course / "grader" / "engine" / "jobs").mkdir(parents=True)
        (self.course / "utils").mkdir()
        for name in ("workbook", "requirements.txt", "grader/engine/jobs/missing_packages.py", "utils/releases.py"):
            shutil.copy2(lessons.COURSE / name, self.course / name)
        self.bin.mkdir()
        for tool in ("sh", "dirname", "basename", "cksum", "cat", "cp", "mkdir", "sed", "tail", "touch"):
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.put("uname", "#!/bin/sh\necho Linux\n")

    def put(self, name: str, text: str) -> Path:
        path = self.bin / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def python(self, name: str = "python3", old: int = 0, without_venv: int = 0) -> Path:
        return self.put(name, PYTHON.format(old=old, without_venv=without_venv))

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess:
        self.log_file.write_text("")
        return subprocess.run(
            [str(self.course / "workbook"), *args],
            cwd=self.bin.parent,
            text=True,
            capture_output=True,
            timeout=60,
            env={"PATH": str(self.bin), "LOG": str(self.log_file), **env},
        )

    def switch(self, name: str, text: str = "") -> Path:
        """A file that changes how the stand-ins behave: offline, no-uv, uv-fails, no-cpu-torch, settings (of pip)."""
        path = Path(f"{self.log_file}.{name}")
        path.write_text(text)
        return path

    def log(self, word: str) -> list[str]:
        return [line for line in self.log_file.read_text().splitlines() if word in line]


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path)


def one_line(done: subprocess.CompletedProcess) -> str:
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1, done
    return done.stderr


def test_without_python_one_line(bench):
    assert "no Python 3.11 or newer" in one_line(bench.run("start"))


def test_old_pythons_and_broken_shims_are_passed_over(bench):
    bench.python("python3", old=1)
    bench.put("python3.13", "#!/bin/sh\necho 'pyenv: python3.13: command not found' >&2\nexit 127\n")
    bench.python("python3.12")
    done = bench.run("status")
    assert done.returncode == 0 and bench.log("-m venv")[0].startswith("python3.12 ")
    assert "pyenv" not in done.stderr


def test_a_python_without_venv_is_named(bench):
    bench.python("python3", without_venv=1)
    assert "apt install python3-venv" in one_line(bench.run("start"))
    bench.python("python3.11")  # another that can
    assert bench.run("status").returncode == 0


def test_bytecode_is_made_where_python_would_not_write_it(bench):
    bench.python()
    bench.run("status")
    assert set(bench.log("compiles ")) == {"compiles no"}
    shutil.rmtree(bench.course / ".venv")
    bench.run("status", PYTHONDONTWRITEBYTECODE="1")
    assert set(bench.log("compiles ")) == {"compiles 1"}


def test_installs_once_and_again_when_the_requirements_change(bench):
    bench.python()
    done = bench.run("status")
    # The user's folder stays the current one.
    assert done.stdout.startswith("ran ") and str(bench.bin.parent) in done.stdout
    assert len(bench.log(" -r ")) == 1 and bench.log(" -r ")[0].startswith("uv pip install ")
    # the python of .venv, not the python3 that made it
    assert bench.log("grader.engine.commands.cli")[0].startswith("python ")

    assert bench.run("status").stderr == "" and not bench.log("install")

    with (bench.course / "requirements.txt").open("a") as file:
        file.write("another==1\n")
    bench.run("status")
    assert bench.log(" -r ") and not bench.log("-m venv")


def test_cpu_torch_first_where_there_is_no_gpu_driver(bench):
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a GPU driver")
    bench.python()
    bench.run("status")
    torch, rest = bench.log("uv pip install")
    assert "--extra-index-url https://download.pytorch.org/whl/cpu torch==2." in torch and "-r " in rest

    shutil.rmtree(bench.course / ".venv")
    bench.put("nvidia-smi", "#!/bin/sh\n")
    bench.run("status")
    assert len(bench.log("uv pip install")) == 1


def test_torch_for_cpus_may_be_out_of_reach(bench):
    """Then the plain one is installed, and the reader knows why so much is loaded."""
    if Path("/proc/driver/nvidia/version").exists():
        pytest.skip("this machine has a GPU driver")
    bench.python()
    bench.switch("no-cpu-torch")
    done = bench.run("status")
    assert done.returncode == 0 and "the CPU build of torch could not be loaded" in done.stderr and bench.log(" -r ")


def test_without_uv_pip_installs(bench):
    bench.python()
    bench.switch("no-uv")
    done = bench.run("status")
    assert done.returncode == 0 and bench.log(" -r ")[0].startswith("python -m pip ")


def test_where_uv_fails_pip_installs(bench):
    """It knows its own settings: a proxy, a constraint, a folder of wheels that is gone."""
    bench.python()
    bench.switch("uv-fails")
    done = bench.run("status")
    assert done.returncode == 0 and [line.split()[0] for line in bench.log(" -r ")] == ["uv", "python"]


def test_uv_takes_the_indexes_and_certificates_of_pips_settings(bench):
    """pip trusts the system's certificates, a proxy's own among them; uv does so only when it is told."""
    bench.python()
    bench.run("status")
    assert bench.log("trusts")[-1] == "trusts 1|"
    (bench.course / ".venv" / "installed").unlink()
    settings = """:env:.index-url='https://site/simple'
global.extra-index-url='https://a/simple\\nhttps://b/simple'
global.find-links='/wheels /more'
global.cert='/site/proxy.pem'
global.index-url='https://another/simple'
"""
    bench.switch("settings", settings)
    bench.run("status")
    assert bench.log("of indexes")[-1] == (
        "of indexes https://site/simple|https://a/simple https://b/simple|/wheels,/more"
    )
    assert bench.log("trusts")[-1] == "trusts 1|/site/proxy.pem"
    (bench.course / ".venv" / "installed").unlink()
    bench.run("status", UV_DEFAULT_INDEX="https://mine/simple", UV_SYSTEM_CERTS="0", SSL_CERT_FILE="/mine.pem")
    assert bench.log("of indexes")[-1].startswith("of indexes https://mine/simple|")
    assert bench.log("trusts")[-1] == "trusts 0|/mine.pem"


def test_macos_has_one_torch(bench):
    bench.python()
    bench.put("uname", "#!/bin/sh\necho Darwin\n")
    bench.run("status")
    assert len(bench.log("uv pip install")) == 1


def test_goes_on_after_an_interruption(bench):
    bench.python()
    offline = bench.switch("offline")
    done = bench.run("status")
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    log = bench.course / ".venv" / "install.log"
    assert "(dns error)" in last and str(log) in last and "goes on from there" in last and "cause:" in log.read_text()
    offline.unlink()
    assert bench.run("status").returncode == 0
    assert bench.log(" -r ") and not bench.log("-m venv")  # the .venv was whole

    (bench.course / ".venv" / "installed").unlink()
    (bench.course / ".venv" / "pip").unlink()  # as if stopped before pip was in it
    bench.run("status")
    assert bench.log("-m venv --clear") and bench.log(" -r ")


@pytest.mark.skipif(not shutil.which("flock"), reason="this machine has no flock")
def test_a_second_command_waits_for_the_first_ones_packages(bench):
    (bench.bin / "flock").symlink_to(shutil.which("flock"))
    bench.python()
    bench.run("status")
    done = bench.course / ".venv" / "installed"
    done.rename(bench.course / "aside")
    first = os.open(bench.course, os.O_RDONLY)
    fcntl.flock(first, fcntl.LOCK_EX)
    second = subprocess.Popen(
        [str(bench.course / "workbook"), "status"],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": str(bench.bin), "LOG": str(bench.log_file)},
    )
    assert "waiting for it" in second.stderr.readline()
    bench.log_file.write_text("")
    (bench.course / "aside").rename(done)
    os.close(first)
    assert second.communicate(timeout=60)[0].startswith("ran ") and second.returncode == 0
    assert not bench.log("install")


def test_a_clusters_own_python(bench):
    python = bench.python("cluster-python")
    assert bench.run("status", WORKBOOK_PYTHON=str(python)).stdout.startswith("ran ")
    assert not (bench.course / ".venv").exists() and not bench.log("pip")
    assert "not a Python 3.11" in one_line(bench.run("status", WORKBOOK_PYTHON=str(bench.python("old", old=1))))
    assert "not a Python 3.11" in one_line(bench.run("status", WORKBOOK_PYTHON="/no/such/python"))


def test_packages_that_a_clusters_python_lacks_are_one_line(bench):
    (bench.course / "requirements.txt").write_text("torch==2.13.0\nno-such-package==1  # for nothing\n")
    message = one_line(bench.run("status", WORKBOOK_PYTHON=sys.executable))
    assert f"{sys.executable} -m pip install " in message and message.endswith("no-such-package\n")


def test_an_old_torch_is_named(monkeypatch):
    monkeypatch.setattr(missing_packages.metadata, "version", lambda name: "2.7.1+cu126")
    monkeypatch.setattr(releases, "installed", lambda: "2.7.1+cu126")
    line = missing_packages.problem("torch==2.13.0\n")
    assert "torch 2.7.1+cu126" in line and "2.8 or newer" in line and line.count("\n") == 0
    assert "run ./workbook start on a login node" in line and "unset" not in line  # a way out
    monkeypatch.setenv("WORKBOOK_PYTHON", sys.executable)
    assert "unset WORKBOOK_PYTHON, and run ./workbook start" in missing_packages.problem("torch==2.13.0\n")
    monkeypatch.setattr(missing_packages.metadata, "version", lambda name: "2.8.0a0+gitba56102")
    monkeypatch.setattr(releases, "installed", lambda: "2.8.0a0+gitba56102")
    assert missing_packages.problem("# a comment\ntorch==2.13.0\n") is None


def test_modules_in_the_users_folder_are_not_the_courses(tmp_path):
    (tmp_path / "grader").mkdir()
    (tmp_path / "grader" / "__init__.py").write_text("raise SystemExit('the wrong grader')")
    done = subprocess.run(
        [str(lessons.COURSE / "workbook"), "--help"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=60,
        env={**os.environ, "WORKBOOK_PYTHON": sys.executable},
    )
    assert done.returncode == 0 and "ddp" not in done.stderr and "LESSON" not in done.stderr
    assert "To learn" in done.stdout


@pytest.mark.parametrize(
    ("command", "says", "for_cpus"),
    [
        ("sinfo", "gpu:a100:4", False),
        ("sinfo", "(null)", True),
        ("pbsnodes", "     resources_available.ngpus = 4", False),
        ("pbsnodes", "     resources_available.ngpus = 0", True),
    ],
)
def test_on_a_login_node_the_compute_nodes_gpus_count(tmp_path, command, says, for_cpus):
    """Their jobs take the same .venv: with the torch for CPUs they would train on CPUs."""
    bench = Bench(tmp_path)
    bench.python()
    bench.put(command, f"#!/bin/sh\necho '{says}'\n")
    bench.run("start")
    assert ("whl/cpu" in bench.log_file.read_text()) == for_cpus

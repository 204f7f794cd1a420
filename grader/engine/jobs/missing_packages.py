"""Says in one line which packages a Python lacks. The `workbook` script and batch files run it, so it imports only the
standard library.

python grader/engine/jobs/missing_packages.py requirements.txt
"""

import re
import shlex
import site
import sys
import sysconfig
from importlib import metadata
from os import W_OK, access
from pathlib import Path

COURSE = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(COURSE))

from utils import releases  # noqa: E402

# What was built for the site stays as it is, whatever the missing packages would rather have: torch is built for its
# network and its GPUs, and others for that torch. Pinned to what is there, they count as installed.
KEPT = ("torch", "numpy")


def problem(requirements: str) -> str | None:
    """One line that says what to do, or None if nothing is missing."""
    names = re.findall(r"^([\w-]+)", requirements, re.MULTILINE)
    missing = [name for name in names if version(name) is None]
    if "torch" not in missing and (line := releases.too_old()):
        return line
    if not missing:
        return None
    # No versions: the installed packages work together, and must not be replaced.
    kept = [f"{name}=={version(name)}" for name in KEPT if version(name)]
    return f"packages are missing in {sys.executable}; run: {command([*kept, *missing])}"


def command(packages: list[str]) -> str:
    """The line that installs packages for this Python. Where its own folder is read-only, as on most clusters, they go
    into the home folder; and where that is not read, or pip refuses, into an environment of the course's own,
    which sees the site's packages.
    """
    if access(sysconfig.get_path("purelib"), W_OK) and not externally_managed():
        return shlex.join([sys.executable, "-m", "pip", "install", *packages])
    if site.ENABLE_USER_SITE and not externally_managed():
        return shlex.join([sys.executable, "-m", "pip", "install", "--user", *packages])
    beside = str(COURSE / ".venv-site")
    python = f"{beside}/bin/python"
    steps = [shlex.join([sys.executable, "-m", "venv", "--system-site-packages", beside])]
    if sys.prefix != sys.base_prefix:  # made from an environment, it would see the Python below that, and not it
        folder = sysconfig.get_path("purelib", "venv", {"base": beside})
        steps.append(f"echo {shlex.quote(sysconfig.get_path('purelib'))} > {shlex.quote(f'{folder}/site.pth')}")
    steps.append(shlex.join([python, "-m", "pip", "install", *packages]))
    return " && ".join([*steps, f"export WORKBOOK_PYTHON={shlex.quote(python)}"])


def externally_managed() -> bool:
    """Whether a distribution keeps pip out of this Python (PEP 668)."""
    in_environment = sys.prefix != sys.base_prefix
    return not in_environment and (Path(sysconfig.get_path("stdlib")) / "EXTERNALLY-MANAGED").exists()


def version(name: str) -> str | None:
    """ "2.13.0+cpu"; None if the package is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    found = problem(Path(sys.argv[1]).read_text("utf-8"))
    if found:
        sys.exit(f"workbook: {found}")

"""Says in one line which packages a Python lacks. The `workbook` script runs it, so it imports only the standard
library.

python grader/engine/jobs/installed.py requirements.txt
"""

import re
import shlex
import sys
import sysconfig
from importlib import metadata
from os import W_OK, access
from pathlib import Path

OLDEST_TORCH = (2, 11)


def problem(requirements: str) -> str | None:
    """One line that says what to do, or None if nothing is missing."""
    names = re.findall(r"^([\w-]+)", requirements, re.MULTILINE)
    missing = [name for name in names if version(name) is None]
    if "torch" not in missing and version("torch") < OLDEST_TORCH:
        return f"torch {metadata.version('torch')} in {sys.executable} is too old; the course needs 2.11 or newer"
    if not missing:
        return None
    # The cluster's own folder is usually read-only: then packages go into the home folder.
    user = [] if access(sysconfig.get_path("purelib"), W_OK) else ["--user"]
    # No versions: the installed packages work together, and must not be replaced.
    command = shlex.join([sys.executable, "-m", "pip", "install", *user, *missing])
    return f"packages are missing in {sys.executable}; run: {command}"


def version(name: str) -> tuple[int, ...] | None:
    """(2, 13) for torch 2.13.0+cpu; None if the package is not installed."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", metadata.version(name))[:2])
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    found = problem(Path(sys.argv[1]).read_text("utf-8"))
    if found:
        sys.exit(f"workbook: {found}")

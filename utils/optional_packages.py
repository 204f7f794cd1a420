"""Packages that one lesson needs and the rest of the course does not."""

import os
import sys
from importlib import invalidate_caches
from importlib.util import find_spec
from pathlib import Path


def lacks(package: str, purpose: str = "") -> str:
    """One line that says how to install an optional package, "" if it is there.

    Its version is in requirements-PACKAGE.txt, or in requirements-PURPOSE.txt if several packages serve one purpose.
    """
    invalidate_caches()  # it may have been installed since
    if find_spec(package):
        return ""
    file = Path(__file__).resolve().parents[1] / f"requirements-{purpose or package}.txt"
    python, file = (
        os.path.relpath(path) if path.is_relative_to(Path.cwd()) else path for path in (Path(sys.executable), file)
    )
    return f"{package} is not installed; run: {python} -m pip install -r {file}"

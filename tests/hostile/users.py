"""For tests with other users: whether there are any, and a view of the files in which each can read this Python."""

import os
import sys
from pathlib import Path

import pytest

from grader.engine.walls import sandbox

PYTHON = Path(sys.base_prefix).resolve()
READABLE = ["bwrap", "--dev-bind", "/", "/", "--cap-add", "ALL"]
if not PYTHON.is_relative_to("/usr"):  # a folder above it may be its owner's alone; here each holds nothing else
    top, *below = [str(folder) for folder in reversed(PYTHON.parents)][1:]
    READABLE += ["--tmpfs", top, *(word for folder in below for word in ("--dir", folder)), "--ro-bind", PYTHON, PYTHON]

for_users = pytest.mark.skipif(
    os.geteuid() != 0 or bool(sandbox.lacking(sandbox.BUBBLEWRAP)), reason="only root has other users"
)

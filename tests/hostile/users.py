"""For tests with other users: whether there are any, and a view of the files in which each can read this Python."""

import os
import sys
from pathlib import Path

import pytest

from grader.engine.lesson import lessons
from grader.engine.walls import sandbox

PYTHON = Path(sys.base_prefix).resolve()
READABLE = ["bwrap", "--dev-bind", "/", "/", "--cap-add", "ALL"]
if not PYTHON.is_relative_to("/usr"):  # a folder above it may be its owner's alone; here each holds nothing else
    top = Path("/", PYTHON.parts[1])
    READABLE += ["--tmpfs", top]
    for place in (PYTHON, lessons.COURSE):
        if place.is_relative_to(top):
            for folder in [folder for folder in reversed(place.parents) if folder.is_relative_to(top)][1:]:
                READABLE += ["--dir", folder]
            READABLE += ["--bind", place, place]

for_users = pytest.mark.skipif(
    os.geteuid() != 0 or bool(sandbox.lacking(sandbox.BUBBLEWRAP)), reason="only root has other users"
)

"""Which releases of torch the course runs on, and what to do about an older one: in one line, before torch is loaded.

Only the standard library: `./workbook`, batch files and scripts ask it of Pythons in which anything may be missing.
"""

import functools
import os
import re
import sys
from importlib import metadata
from pathlib import Path

OLDEST = "2.8"
# In 2.8 gloo's reduce-scatter takes ReduceOp.AVG and returns the sum; fully_shard asks for that on CPUs.
AVERAGES_SINCE = ("2.9", "fully_shard on CPUs, where gloo sums gradients in place of averaging them,")
# 2.8: "Cannot create a submesh from a submesh."
SLICED_AGAIN_SINCE = ("2.9", "a slice of a mesh that is a slice itself")
# In 2.8.0 and 2.9.1 the parts are right, and `full_tensor` (so get_model_state_dict, too) returns other numbers.
CUT_TWICE_SINCE = ("2.10", "joining uneven parts of a table that tensor parallelism and fully_shard both cut")
PINNED = Path(__file__).resolve().parents[1] / "requirements.txt"


def number(release: str) -> tuple[int, ...]:
    """(2, 13) for "2.13.0+cpu"."""
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])


@functools.cache
def installed() -> str:
    """The release of torch that this Python has, such as "2.13.0+cpu"; "" if it has none."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""


def too_old() -> str:
    """One line that says how to get a newer torch; "" if this one is new enough, or there is none."""
    here = installed()
    if not here or number(here) >= number(OLDEST):
        return ""
    pinned = re.search(r"^torch==(\S+)", PINNED.read_text("utf-8"), re.MULTILINE)[1]
    way = "unset WORKBOOK_PYTHON, and run" if os.environ.get("WORKBOOK_PYTHON") else "run"
    return (
        f"torch {here} in {sys.executable} is too old; the course needs {OLDEST} or newer: load a newer module of the"
        f" centre's, or {way} ./workbook start on a login node, which installs torch {pinned} into .venv"
    )


def lacks(release: str, what: str) -> str:
    """One line if this torch is older than a release, and so without what that has brought; else ""."""
    here = installed()
    if number(here) >= number(release):
        return ""
    return f"{what} needs torch {release} or newer, and this is torch {here}"


def check() -> None:
    """For scripts: stop with one line, and exit code 2, if this Python's torch is too old."""
    if problem := too_old():
        if os.environ.get("RANK", "0") != "0":  # rank 0 says it; torchrun ends the others when the first one ends
            import time

            time.sleep(5)
        else:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)

"""The course as a Gradescope autograder, https://gradescope-autograders.readthedocs.io/en/latest/specs/.

The archive contains a release of the course, without solutions, and the two scripts that Gradescope calls. In its
containers bubblewrap usually cannot start; then each rank is a user of its own instead, and each submission has its own
container. What such walls leave open is in grader/THREATS.md.
"""

import tempfile
import zipfile
from pathlib import Path

from grader.engine.lesson import lessons, release, sealed_lessons
from utils.atomic_write import written_whole

SETUP = """#!/bin/bash
# Called once, when Gradescope builds the image.
set -euo pipefail
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3 python3-venv bubblewrap
"${AUTOGRADER_ROOT:-/autograder}/source/course/workbook" --help >/dev/null # makes .venv
"""

RUN = """#!/bin/bash
# Called for each submission, which is in submission/; what it writes into results/ is shown.
set -uo pipefail
root=${AUTOGRADER_ROOT:-/autograder}
class=$(mktemp -d)
trap 'rm -rf "$class"' EXIT
mkdir -p "$class/submissions" "$root/results"
chmod 700 "$root/results" # for root alone: ranks run as other users
cp -rP "$root/submission" "$class/submissions/submission"
walls=bubblewrap
bwrap --unshare-user --unshare-pid --unshare-net --ro-bind / / true 2>/dev/null || walls=users
"$root/source/course/workbook" grade --sandbox "$walls" "$class/submissions" --out "$class/out" @LESSONS@
cp "$class/out/gradescope/submission.json" "$root/results/results.json"
"""


def pack(file: Path, asked: dict[str, list[int]]) -> list[str]:
    """Write the archive, with these lessons and TODOs (default: all; no TODO stands for all of a lesson). Returns a
    line for each lesson that it cannot grade. Raises ReleaseError if it would contain a solution, or if it could not
    grade everything asked for.
    """
    with tempfile.TemporaryDirectory() as folder:
        course = Path(folder) / "course"
        release.release(course, [*asked] or None)
        sealed = {path.stem for path in (course / sealed_lessons.FOLDER).glob("*.seal")}
        waiting = [stem for stem in lessons.ORDER if stem in sealed]
        told = [f"{stem} is sealed in it, and not graded: it begins with solutions of the others" for stem in waiting]
        if waiting and asked:
            raise release.ReleaseError(f"{told[0]}; pack one autograder for {waiting[0]}, and one for the rest")
        with written_whole(file) as part, zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            parts = [f"{stem}/{sealed_lessons.runs(numbers)}" if numbers else stem for stem, numbers in asked.items()]
            option = f"--lessons {','.join(parts)}" if parts else ""
            for name, text in (("setup.sh", SETUP), ("run_autograder", RUN.replace("@LESSONS@", option))):
                about = zipfile.ZipInfo(name)
                about.external_attr = 0o755 << 16
                archive.writestr(about, text)
            for path in sorted(path for path in course.rglob("*") if path.is_file()):
                archive.write(path, path.relative_to(folder))
    return told

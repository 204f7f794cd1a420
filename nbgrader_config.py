"""nbgrader, as this course uses it. Only instructors need it: ./workbook does without.

First run `./workbook build`: it puts each notebook with its solutions where nbgrader looks for
it. All of nbgrader's folders and its gradebook lie in one that git ignores:

    .workbook/nbgrader/source/01_collectives/01_collectives.ipynb
    .workbook/nbgrader/{release,submitted,autograded,feedback}/  gradebook.db

    nbgrader generate_assignment 01_collectives
    nbgrader autograde 01_collectives

Validate in a copy (`./workbook check` does it better): validating in source/ would leave
outputs there, and outputs of a solution are released with it.

A notebook is graded where it lies, in autograded/STUDENT/, so its first cell finds `grader`
in the course above it; nbgrader's folders must stay inside of the course.

The marks are for practice: nbgrader runs the test cell beside the student's code, which may
replace what that cell calls.
"""

import os
import sys
from pathlib import Path

course = Path(__file__).resolve().parent
sys.path.insert(0, str(course))
# nbgrader calls alembic by name, and it lies where Python does
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
# No server is left from one student's notebook to the next one's.
os.environ["WORKBOOK_NO_SERVER"] = "1"

from grader.engine.lesson.notebooks import STEPS  # needs the path above  # noqa: E402

c = get_config()  # noqa: F821  traitlets provides it

root = course / ".workbook" / "nbgrader"
c.CourseDirectory.root = str(root)
# JupyterLab reads this file, too, and nbgrader reads it twice.
if "WORKBOOK_TOLD" not in os.environ and "nbgrader" in Path(sys.argv[0]).parts[-2:] and not (root / "source").is_dir():
    told = (
        "run ./workbook build first" if (course / "solutions").is_dir() else "a release has no notebooks for nbgrader"
    )
    print(f"nbgrader_config.py: there is no {(root / 'source').relative_to(course)}; {told}", file=sys.stderr)
    os.environ["WORKBOOK_TOLD"] = "1"

# The release is the same as ./workbook build's: our regions in place of ClearSolutions.
c.GenerateAssignment.preprocessors = STEPS

# A cell that starts ranks takes longer than a cell that adds two numbers.
c.Execute.timeout = 120

# A test cell that a student deleted comes back, instead of waiting for a mark by hand.
c.OverwriteCells.add_missing_cells = True

# A wrong answer raises. What is only written to stderr, a warning say, is no failure; without
# this nbgrader gives right work no marks for it.
c.IgnorePattern.enabled = True
c.IgnorePattern.pattern = "."

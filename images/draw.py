"""Draws every figure of the course beside itself: python images/draw.py [name …]

Each `figures_*.py` has the figures of a lesson, one function a figure; a figure is written as SVG and as PNG.
`figures_steps.py` has frames, written as pages that one can page through. The files hold no date and no version, so
that drawing them again with the same matplotlib gives the same SVG.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from figures_steps import STEPS  # noqa: E402
from ink import save  # noqa: E402
from pages import write_page  # noqa: E402

FIGURES = {}
for path in sorted(HERE.glob("figures_*.py")):
    FIGURES |= getattr(importlib.import_module(path.stem), "FIGURES", {})


def main() -> None:
    wanted = sys.argv[1:] or [*FIGURES, *STEPS]
    unknown = [name for name in wanted if name not in FIGURES and name not in STEPS]
    if unknown:
        sys.exit(f"no figure is named {unknown[0]}; there are: {', '.join([*FIGURES, *STEPS])}")
    for name in wanted:
        if name in STEPS:
            title, frames = STEPS[name]
            write_page(title, frames(), HERE / f"{name}.html")
        else:
            save(FIGURES[name](), HERE / name)


if __name__ == "__main__":
    main()

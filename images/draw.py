"""Draws every figure of the course beside itself: python images/draw.py

Each `figures_*.py` has the figures of a lesson, one function a figure. The files hold no date and no version,
so that drawing them again with the same matplotlib gives the same bytes.
"""

import importlib
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from ink import save  # noqa: E402

FIGURES = {}
for path in sorted(HERE.glob("figures_*.py")):
    FIGURES |= importlib.import_module(path.stem).FIGURES


def main() -> None:
    for name, draw in FIGURES.items():
        save(draw(), HERE / name)


if __name__ == "__main__":
    main()

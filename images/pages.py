"""A page of frames that one can page through, without a script: it opens from a disk, offline, and in JupyterLab, which
runs no script of a page it does not trust.

Each frame belongs to a radio button, and the browser itself moves among these with the arrow keys.
"""

import html
from collections.abc import Iterable
from pathlib import Path

from ink import drawn
from matplotlib.figure import Figure

STYLE = """
body { font: 17px/1.45 system-ui, sans-serif; color: #222; background: #fff; max-width: 46em; margin: 1em auto;
       padding: 0 0.6em; }
h1 { font-size: 1.3em; }
input { position: absolute; opacity: 0; }
figure { display: none; margin: 0; }
figure svg { width: 100%; height: auto; }
nav i { font-style: normal; }
figcaption { min-height: 4.5em; }
nav { display: flex; justify-content: space-between; margin: 0.6em 0; }
label { padding: 0.4em 1em; border: 1px solid #767676; border-radius: 0.4em; cursor: pointer; }
nav span { color: #5f5f5f; align-self: center; }
label, nav span { white-space: nowrap; }
@media (max-width: 30em) { nav i { display: none; } figcaption { min-height: 7.5em; } }
input:focus-visible ~ h1 { outline: 2px solid #0072b2; outline-offset: 4px; }
"""


def write_page(title: str, frames: Iterable[tuple[str, Figure]], path: Path) -> None:
    """Writes the frames, (what happens, the drawing) each, as one HTML file that needs no other."""
    frames = list(frames)
    last = len(frames)
    shown = ", ".join(f"#step{n}:checked ~ #frame{n}" for n in range(1, last + 1))
    parts = [
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}{shown} {{ display: block; }}\n</style>\n</head>\n<body>",
    ]
    for n in range(1, last + 1):
        chosen = " checked autofocus" if n == 1 else ""
        parts.append(f'<input type="radio" name="step" id="step{n}" aria-label="step {n} of {last}"{chosen}>')
    parts.append(f"<h1>{title}</h1>")
    for n, (says, figure) in enumerate(frames, 1):
        back = f'<label for="step{n - 1 or last}">← previous</label>'
        then = f'<label for="step{n % last + 1}">next →</label>'
        words = html.escape(says, quote=False)
        svg = drawn(figure, path.stem).replace("<svg ", '<svg aria-hidden="true" ', 1)  # the caption says it all
        parts.append(
            f'<figure id="frame{n}">\n<nav>{back}<span>{n} of {last}<i>; keys ← →</i></span>{then}</nav>\n'
            f"<figcaption>{words}</figcaption>\n{svg}</figure>"
        )
    path.write_text("\n".join([*parts, "</body>\n</html>\n"]), "utf-8")

"""The book's settings, for Sphinx. `./workbook book` puts this file beside the pages that it has gathered."""

import re
from html import escape

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator

project = "Parallel training, hands on"
language = "en"
extensions = ["myst_nb"]
nb_execution_mode = "off"  # a page shows the notebook as students get it: nothing runs, nothing is given away
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = project
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_math_renderer = "mathml"
# A notebook may skip a level of headings.
suppress_warnings = ["myst.header"]


def mathml(formula: str, block: bool) -> str:
    r"""LaTeX as MathML, which browsers draw by themselves: no script, no network.

    docutils knows no \dots, and wants a space where a line ends in a formula.
    """
    return tex2mathml(re.sub(r"\\dots\b", r"\\ldots", " ".join(formula.split())), as_block=block)


def inline(self: HTML5Translator, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def display(self: HTML5Translator, node: nodes.math_block) -> None:
    self.body.append(f'<div class="formula" title="{escape(node.astext())}">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (inline, None), (display, None))

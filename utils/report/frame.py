"""The frame of every HTML page that the course writes: one look, each page a single self-contained file.

A page extends it: `{% extends "frame" %}`, then its blocks `title`, `style` and `body`. Its values are escaped. No page
runs a script or loads anything from elsewhere, whatever a stranger's text in it contains.
"""

import jinja2

FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<title>{% block title %}{% endblock %}</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #1b1f24; background: #fff; }
  body { max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.6rem; margin-bottom: .2rem; }
  h2 { font-size: 1.2rem; margin: 2.2rem 0 .3rem; }
  dd { margin: 0; overflow-wrap: anywhere; }
{% block style %}{% endblock %}</style>
</head>
<body>
{% block body %}{% endblock %}</body>
</html>
"""

_environment = jinja2.Environment(
    loader=jinja2.DictLoader({"frame": FRAME}), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
)


def template(text: str) -> jinja2.Template:
    """A page's own text, which extends the frame."""
    return _environment.from_string(text)

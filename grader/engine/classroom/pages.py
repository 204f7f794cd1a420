"""Writes pages from the records of a class: marks as CSV and for Gradescope, a page for each student, and one for the
instructor.
"""

import collections
import csv
import io
import json
import re
import textwrap
from pathlib import Path

from grader.engine.classroom import records
from grader.engine.judge.verdict import Verdict, count_of
from grader.engine.judge.verdict_text import details, heading
from grader.engine.lesson.lessons import titles
from utils.report.frame import template

# Both pages: marks in colours.
STYLE = """{% extends "frame" %}
{% block style %}
  h2 { border-bottom: 1px solid #d0d7de; }
  table { border-collapse: collapse; width: 100%; }
  td, th { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #eaeef2; vertical-align: top; }
  td, li, h1, h2, p, div { overflow-wrap: anywhere; } .number { white-space: nowrap; }
  .pass { color: #1a7f37; } .fail { color: #cf222e; } .skipped, .note { color: #6e7781; } .flag { color: #9a6700; }
  dl { display: grid; grid-template-columns: 6rem 1fr; margin: .3rem 0 1rem 2rem; gap: .1rem .6rem; }
  dt { color: #6e7781; } dd { white-space: pre-wrap; }
  .bar { background: #eaeef2; height: .5rem; width: 5rem; display: block; }
  .bar span { background: #2da44e; height: 100%; display: block; }
  @media (min-width: 40rem) { td:first-child { width: 35%; } }
  @media (max-width: 40rem) {
    h1 { font-size: 1.3rem; } .number { white-space: normal; }
    dl { grid-template-columns: 1fr; margin-left: .6rem; } dd { margin-bottom: .3rem; }
    tr { display: grid; grid-template-columns: 1fr 6.2rem; border-bottom: 1px solid #eaeef2; }
    :is(td, th) { border: 0; } :is(td, th):last-child { grid-column: 1 / -1; }
  }
{% endblock %}
"""

STUDENT = template(
    STYLE
    + """{% block title %}{{ record.student }}{% endblock %}
{% block body %}
<h1>{{ record.student }}: {{ record.state if unmarked else "%g of %g" | format(points, most) }}</h1>
<p class="note">{{ record.submission }}, graded {{ record.graded }}</p>
{% if unmarked %}<p class="fail">{{ said_of(record) }}</p>{% endif %}
{% if record.refused %}<p>Not taken from what you handed in:</p><ul>{% for line in record.refused[:20] %}<li>{{ line }}</li>{% endfor %}</ul>{% endif %}
{% for lesson, verdicts in lessons.items() %}
<h2>{{ lesson }}: {{ "%g" | format(by_lesson[lesson]) }} of {{ most_of[lesson] }}</h2>
{% if verdicts | rejectattr("message", "equalto", absent) | list == [] %}<p class="note">{{ absent }}</p>{% else %}{% for v in verdicts %}
<div class="{{ v.status if v.cause != "not_attempted" else "skipped" }}">{{ heading(v) }}</div>
{% set id = v.lesson ~ "/" ~ v.todo %}{% set own = changes.get(id) %}
{% if v.status != "pass" or own %}<dl>
{% if own %}<dt>marks</dt><dd>{{ "%g" | format(own.points) }} in place of {{ "%g" | format(v.points) }}: {{ own.reason }}</dd>{% endif %}
{% if v.status != "pass" %}<dt>what</dt><dd>{{ v.message }}</dd>
{% for name, value in details(v) %}<dt>{{ name }}</dt><dd>{{ value }}</dd>{% endfor %}{% endif %}
</dl>{% endif %}
{% endfor %}{% endif %}{% endfor %}
{% endblock %}
"""
)

CLASS = template(
    STYLE
    + """{% block title %}The class{% endblock %}
{% block body %}
<h1>{{ count_of(records | length, "submission") }}</h1>
<p class="note">{{ guards }} Backend: {{ backend }}.</p>
{% if told %}<h2>Entries of the folder that do not count</h2><ul>{% for line in told %}<li class="flag">{{ line }}</li>{% endfor %}</ul>{% endif %}
{% if failed %}<h2>Could not be graded</h2><ul>{% for r in failed %}<li>{{ shown(r.student) }}: {{ r.why }}</li>{% endfor %}</ul>{% endif %}
{% if nothing %}<h2>Nothing of the course</h2><p>These submissions hold no file of these lessons. They have no mark, which is
no zero: ask for the right files, and grade again.</p><ul>{% for r in nothing %}<li class="flag">{{ shown(r.student) }}, {{ r.submission }}: {{ r.why }}</li>{% endfor %}</ul>{% endif %}
{% if refused %}<h2>Could not be opened</h2><ul>{% for r in refused %}<li class="flag">{{ shown(r.student) }}: {{ r.refused[0] }}</li>{% endfor %}</ul>{% endif %}
{% if unjudged %}<h2>Not judged</h2><p>The numbers that these checks drew, five times, did not tell right from wrong. These
TODOs have no mark, and count for no student; <code>./workbook mark</code> gives one.</p><ul>{% for id, count in unjudged.items() %}<li>{{ id }}: {{ count_of(count, "submission") }}</li>{% endfor %}</ul>{% endif %}
{% if flagged %}<h2>Please check yourself</h2><ul>{% for r in flagged %}{% for f in r.flags %}<li class="flag">{{ shown(r.student) }}, {{ f.lesson }}: {{ f.reason }}</li>{% endfor %}
{% for line in r.refused[:3] %}<li class="flag">{{ shown(r.student) }}: not taken: {{ line }}</li>{% endfor %}{% endfor %}</ul>{% endif %}
<h2>TODOs</h2>
<table><tr><th>TODO</th><th>right</th><th>most common causes</th></tr>
{% for t in todos %}<tr><td>{{ t.id }}<br><span class="note">{{ t.title }}</span></td><td class="number">{{ t.right }}/{{ t.asked }}
<span class="bar"><span style="width: {{ (100 * t.right / (t.asked or 1)) | round(0) | int }}%"></span></span></td>
<td>{% for cause, count in t.causes %}{{ count }} × {{ cause }}<br>{% endfor %}</td></tr>{% endfor %}
</table>
<h2>Students</h2>
<table><tr><th>student</th><th>marks</th><th>stuck at</th></tr>
{% for r in rows %}<tr><td><a href="feedback/{{ r.file | urlencode }}.html">{{ shown(r.student) }}</a></td><td class="number">{{ r.state if r.unmarked else "%g of %g" | format(r.points, r.most) }}</td>
<td>{{ r.stuck }}</td></tr>{% endfor %}
</table>
{% endblock %}
"""
)


def write(room: records.Class) -> list[Path]:
    """Write all pages and tables of the class; returns the paths of those to look at."""
    graded = records.records(room)
    for folder in ("feedback", "gradescope"):
        (room.out / folder).mkdir(exist_ok=True)
    for record in graded:
        name = records.file_name(record["student"])
        records.write_whole(room.out / "feedback" / f"{name}.html", student_page(record))
        records.write_whole(room.out / "gradescope" / f"{name}.json", json.dumps(gradescope(record), indent=1) + "\n")
    records.write_whole(room.out / "marks.csv", table(graded, room))
    records.write_whole(room.out / "class.html", class_page(graded, room))
    return [room.out / "marks.csv", room.out / "class.html"]


def student_page(record: dict) -> str:
    """Write one student's feedback: a self-contained HTML file. Whatever may be the student's own text is escaped."""
    by: dict[str, list[Verdict]] = {}
    for verdict in record["verdicts"]:
        by.setdefault(verdict["lesson"], []).append(Verdict(**verdict))
    own = records.marks(record)
    record = record | {"student": records.shown(record["student"])}
    return STUDENT.render(
        record=record,
        lessons=by,
        details=details,
        heading=heading,
        absent=records.NOT_HANDED_IN,
        points=records.points(record),
        most=most(record),
        unmarked=record["state"] in records.UNMARKED,
        said_of=said_of,
        by_lesson={lesson: sum(own.get(f"{lesson}/{v.todo}", 0) for v in verdicts) for lesson, verdicts in by.items()},
        most_of={
            lesson: sum(v.max_points for v in verdicts if f"{lesson}/{v.todo}" in own)
            for lesson, verdicts in by.items()
        },
        changes={change["todo"]: change for change in record["overrides"]},
    )


def class_page(graded: list[dict], room: records.Class) -> str:
    todos = []
    for stem in room.stems:
        for number in room.counted(stem):
            mine = [v for r in graded for v in r["verdicts"] if (v["lesson"], v["todo"]) == (stem, number)]
            mine = [v for v in mine if v["cause"] != "not_judged"]
            causes = commonest([v for v in mine if v["status"] != "pass"])
            todos.append(
                {
                    "id": f"{stem}/{number}",
                    "title": titles(stem)[number],
                    "asked": len(mine),
                    "right": sum(v["status"] == "pass" for v in mine),
                    "causes": causes[:3],
                }
            )
    rows = [
        {
            "student": r["student"],
            "file": records.file_name(r["student"]),
            "points": records.points(r),
            "most": most(r),
            "stuck": stuck(r),
            "state": r["state"],
            "unmarked": r["state"] in records.UNMARKED,
        }
        for r in graded
    ]
    return CLASS.render(
        shown=records.shown,
        count_of=count_of,
        records=graded,
        guards=room.guards,
        backend=room.backend,
        todos=todos,
        rows=rows,
        told=room.told,
        failed=[r for r in graded if r["state"] == records.FAILED],
        nothing=[r for r in graded if r["state"] == records.NOTHING],
        refused=[r for r in graded if r["state"] == records.REFUSED],
        unjudged=collections.Counter(
            f"{v['lesson']}/{v['todo']}" for r in graded for v in r["verdicts"] if v["cause"] == "not_judged"
        ),
        flagged=[r for r in graded if r["flags"] or (r["refused"] and r["state"] == records.GRADED)],
    )


def said_of(record: dict) -> str:
    """Why a submission has no mark, as a sentence for its student."""
    if record["state"] == records.FAILED:
        return f"Your submission could not be graded, through no fault of yours: {record['why']}."
    return (
        f"Nothing of the course was found in what you handed in: {record['why']}. You have no mark yet: hand in again."
    )


UNTRIED = {"not_attempted": "not done or not handed in", "prerequisite": "another TODO first"}


def commonest(failures: list[dict]) -> list[tuple[str, int]]:
    """Causes and their counts, most common first. Causes that differ only in ranks or numbers count as one."""
    alike: dict[str, list[str]] = {}
    for verdict in failures:
        whole = UNTRIED.get(verdict["cause"]) or f"{verdict['cause']}: {verdict['message']}"
        one_rank = re.sub(r"\branks? \d+((, | and |, and | … )\d+)*", "rank 0", whole)
        alike.setdefault(re.sub(r"[\d.e+-]*\d", "0", one_rank), []).append(cause(verdict))
    return sorted(((texts[0], len(texts)) for texts in alike.values()), key=lambda both: -both[1])


def cause(verdict: dict) -> str:
    """The cause of a failure, worded so that equal causes match."""
    if verdict["cause"] in UNTRIED:
        return UNTRIED[verdict["cause"]]
    return textwrap.shorten(f"{verdict['cause'].replace('_', ' ')}: {verdict['message']}", 100, placeholder=" …")


def stuck(record: dict) -> str:
    """The first TODO that was attempted and is not right."""
    return next(
        (
            f"{v['lesson']}/{v['todo']}"
            for v in record["verdicts"]
            if v["status"] == "fail" and v["cause"] != "not_attempted"
        ),
        "",
    )


def most(record: dict) -> float:
    own = records.marks(record)
    return sum(
        verdict["max_points"] for verdict in record["verdicts"] if f"{verdict['lesson']}/{verdict['todo']}" in own
    )


def table(graded: list[dict], room: records.Class) -> str:
    """Write the marks as CSV: a line for each student, a column for each TODO. Empty means not graded, which is not
    zero; then the last column says why.
    """
    names = [f"{stem}/{number}" for stem in room.stems for number in room.counted(stem)]
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(["student", "state", "total", *names, "note"])
    for record in graded:
        own = records.marks(record)
        total = "" if record["state"] in records.UNMARKED else f"{records.points(record):g}"
        note = record.get("why") or (record["refused"][0] if record["state"] == records.REFUSED else "")
        lines.writerow(
            [
                records.shown(record["student"]),
                record["state"],
                total,
                *(f"{own[name]:g}" if name in own else "" for name in names),
                records.in_a_cell(note),
            ]
        )
    return text.getvalue()


def gradescope(record: dict) -> dict:
    """The record as Gradescope's results.json, https://gradescope-autograders.readthedocs.io/en/latest/specs/."""
    own = records.marks(record)
    tests = []
    for verdict in record["verdicts"]:
        id = f"{verdict['lesson']}/{verdict['todo']}"
        if id not in own:  # not judged, through no fault of the student: no points, and none missing
            continue
        said = [verdict["message"], *(f"{name}: {value}" for name, value in details(Verdict(**verdict)))]
        tests.append(
            {
                "name": f"{id} {verdict['title']}",
                "number": id,
                "score": own[id],
                "max_score": verdict["max_points"],
                "status": "passed" if verdict["status"] == "pass" else "failed",
                "output": "\n".join(said).strip(),
                "output_format": "text",
            }
        )
    told = [said_of(record)] if record["state"] in records.UNMARKED else []
    whole = {"output": "\n".join(told + record["refused"]), "output_format": "text", "visibility": "visible"}
    if record["state"] == records.NOTHING:  # Gradescope asks for a number
        whole["score"] = 0
    return whole | {"tests": tests}

"""Regions: the part of a source file that a TODO owns, and how to swap its body.

    # TODO 4: Give each rank its own shard of every data set.
    # More comment lines may follow.
    ### BEGIN SOLUTION
    return DistributedSampler(train_set, shuffle=True)
    ### STUDENT
    # return None
    ### END SOLUTION

The same grammar serves Python, batch files and notebook cells. The student's
file keeps the TODO comment and the STUDENT lines with exactly one leading
``# `` taken off (so ``# #SBATCH --gres=gpu:1`` becomes an active directive);
without a STUDENT part the body raises ``NotImplementedError("TODO 4")``.
A TODO may own several regions: the later ones open with ``# TODO 4, again:``.

Everything here maps text to text; nothing is run and no file is opened.
"""

import functools
import io
import re
import textwrap
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from grader.engine.lesson.parsing import bare

BEGIN, STUDENT, END = "### BEGIN SOLUTION", "### STUDENT", "### END SOLUTION"
TODO = re.compile(r"\s*# TODO (\d+)(, again)?:(.*)")
DIRECTIVE = re.compile(r"#(SBATCH|PBS|!)")  # comments to Python, code to a scheduler


class SourceError(ValueError):
    """A source whose regions are malformed; the message opens with file:line."""


@dataclass(frozen=True)
class Region:
    """One region of a source. Lines are kept as they are, including indentation."""

    todo: int
    title: str  # first sentence of the TODO comment, "" for "again"
    intro: tuple[str, ...]  # the TODO comment's lines
    solution: tuple[str, ...]
    student: tuple[str, ...]  # as the student gets them
    first: int  # 1-based line of BEGIN SOLUTION
    last: int  # 1-based line of END SOLUTION

    @property
    def indent(self) -> str:
        return _indent(self.intro[0])


def parse(source: str, name: str = "") -> list[Region]:
    """The regions of ``source`` in order; ``name`` is for error messages."""
    regions: list[Region] = []
    intro: list[str] = []
    solution: list[str] = []
    student: list[str] | None = None
    first = 0  # line of the open BEGIN, 0 outside a region

    def error(line: int, message: str) -> SourceError:
        return SourceError(f"{name or 'source'}:{line}: {message}")

    number = 0
    for number, line in enumerate(source.split("\n"), start=1):
        text = line.strip()
        if first == 0:
            if text in (STUDENT, END):
                raise error(number, f"{text} without {BEGIN}")
            if text == BEGIN:
                if not intro:
                    raise error(number, f"no '# TODO n: …' comment right above {BEGIN}")
                if _indent(line) != _indent(intro[0]):
                    raise error(number, f"{BEGIN} and its TODO comment differ in indentation")
                first, solution, student = number, [], None
            elif TODO.match(line) and not intro:
                _, again, title = TODO.match(line).groups()
                if not again and not title.strip():
                    raise error(number, "a TODO without a title")
                intro = [line]
            elif intro and text.startswith("#") and not TODO.match(line):
                intro.append(line)
            elif intro:
                raise error(number - 1, f"no {BEGIN} right below this TODO comment")
        elif text == BEGIN:
            raise error(number, f"{BEGIN} inside the region that opens at line {first}")
        elif text == STUDENT:
            if student is not None:
                raise error(number, f"a second {STUDENT} in one region")
            student = []
        elif text == END:
            regions.append(_region(intro, solution, student, first, number))
            first, intro = 0, []
        elif student is None:
            solution.append(line)
        elif text and not text.startswith("# ") and text != "#":
            raise error(number, f"a line below {STUDENT} that does not open with '# '")
        else:
            student.append((_indent(line) + text[2:]).rstrip())
    if first:
        raise error(first, f"{BEGIN} without {END}")
    if intro:
        raise error(number, f"the file ends with a TODO comment that has no {BEGIN}")
    return regions


def _region(intro: list[str], solution: list[str], student: list[str] | None, first: int, last: int) -> Region:
    """The region between lines `first` and `last`; without a STUDENT part (None), the student's file raises."""
    todo, again, _ = TODO.match(intro[0]).groups()
    if student is None:
        student = [f'{_indent(intro[0])}raise NotImplementedError("TODO {todo}")']
    title = "" if again else _title(intro)
    return Region(int(todo), title, tuple(intro), tuple(solution), tuple(student), first, last)


def compose(source: str, solved: Collection[int] = (), bodies: Mapping[int, str | Sequence[str]] | None = None) -> str:
    """``source`` as a student's file in which the TODOs in ``solved`` are done.

    ``bodies`` replaces the text of a TODO's regions (given dedented, indented here): a list has one body for each
    region; a string is for the first region, and the others keep the solution. Raises ValueError for a list of the
    wrong length.
    """
    regions = parse(source)
    given: dict[int, list[str]] = {}
    for todo, text in (bodies or {}).items():
        given[todo] = [text] if isinstance(text, str) else list(text)
        owned = sum(region.todo == todo for region in regions)
        if not isinstance(text, str) and len(text) != owned:
            raise ValueError(f"TODO {todo} has {owned} regions, {len(text)} bodies were given")

    def body(region: Region) -> Sequence[str]:
        if region.todo not in given:
            return region.solution if region.todo in solved else region.student
        if not given[region.todo]:  # a single string, used up by the first region
            return region.solution
        text = textwrap.dedent(given[region.todo].pop(0)).strip("\n")
        return textwrap.indent(text, region.indent).split("\n") if text else []

    return "\n".join(_render(source, regions, body)[0])


def solutions(source: str, todo: int) -> list[str]:
    """The solution of each region of a TODO, dedented."""
    return [textwrap.dedent("\n".join(region.solution)) for region in parse(source) if region.todo == todo]


def without_todos(source: str) -> str:
    """The solution without its TODO comments: a finished file without a trace of the TODOs."""
    regions, lines, out, done = parse(source), source.split("\n"), [], 0
    for region in regions:
        out += lines[done : region.first - 1 - len(region.intro)] + list(region.solution)
        done = region.last
    return "\n".join(out + lines[done:])


def strip_solutions(source: str) -> str:
    """The same source without its solution bodies; ``compose`` still works on it."""

    def body(region: Region) -> list[str]:
        start = [f"{_indent(line)}# {line.lstrip()}" if line else "" for line in region.student]
        return [region.indent + BEGIN, region.indent + STUDENT, *start, region.indent + END]

    return "\n".join(_render(source, parse(source), body)[0])


def titles(source: str) -> dict[int, str]:
    """TODO number → title: the first sentence of its comment, without the full stop."""
    return {region.todo: region.title for region in parse(source) if region.title}


@functools.lru_cache(maxsize=256)
def locate(source: str, edited: str) -> dict[int, list[range]]:
    """Where each TODO's regions lie in a student's ``edited`` file, as 1-based lines.

    The edited file has no markers. A region starts after its TODO comment (if that was deleted: after the last given
    line before it that still exists) and ends before the first given line after it that still exists, perhaps slightly
    changed. Lines are compared without indentation, so that wrapping code in a ``try`` moves nothing, and without
    annotations.

    The files are first cut at the TODO comments, since these are unique, and the pieces are compared one by one: so a
    function that was moved keeps its region. If two regions are separated only by a comment, and that was deleted, they
    cannot be told apart.
    """
    regions = parse(source)
    start, spans = _render(source, regions, lambda region: region.student)
    old, new = ([bare(line) for line in lines] for lines in (start, edited.split("\n")))
    bodies = {line for span in spans for line in span}
    functions = {
        text for line, text in enumerate(old) if line not in bodies and text.startswith(("def ", "class ", "@"))
    }

    # where the TODO comments are in the two files, for those in both
    new_intros = {i: at for i, region in enumerate(regions) if (at := _find_intro(region, regions, new))}
    old_intros = {i: range(spans[i].start - len(regions[i].intro), spans[i].start) for i in new_intros}

    found: dict[int, list[range]] = {region.todo: [] for region in regions}
    for i, (region, span) in enumerate(zip(regions, spans)):
        above = max((j for j in new_intros if j <= i), default=None)
        piece_old, piece_new = _piece(above, old_intros, len(old)), _piece(above, new_intros, len(new))
        begin, end, gone = piece_new.start, piece_new.stop, range(span.stop, piece_old.stop)
        for line_old, line_new in _matches(old, new, piece_old, piece_new):
            if line_old in bodies:
                continue  # a body may contain any line, so it does not mark a border
            if line_old < span.start:
                begin = line_new + 1
            else:
                end, gone = line_new, range(span.stop, line_old)
                break
        else:  # what came below was moved or deleted: stop where another given function begins
            end = next((line for line in range(begin, end) if new[line] in functions), end)
        below = next((old[line] for line in gone if old[line]), "")
        end = next((line for line in reversed(range(begin, end)) if resemble(new[line], below)), end)
        found[region.todo].append(_trim(begin, end, new))
    return found


def without_others(source: str, edited: str, todos: Collection[int]) -> str:
    """The student's file without the regions of TODOs other than these."""
    others = [place for todo, places in locate(source, edited).items() if todo not in todos for place in places]
    left_out = {number for place in others for number in place}
    return "\n".join(line for number, line in enumerate(edited.split("\n"), start=1) if number not in left_out)


RESEMBLES = 0.8  # similarity: e.g. a misspelt name or a missing bracket


def resemble(line: str, given: str) -> bool:
    """Whether a line of code is a given line, perhaps slightly changed."""
    return bool(given) and SequenceMatcher(None, line, given, autojunk=False).ratio() >= RESEMBLES


def todo_at(source: str, edited: str, line: int) -> int | None:
    """The TODO that owns 1-based ``line`` of the student's file, or None."""
    places = locate(source, edited)
    return next((todo for todo, lines in places.items() if any(line in r for r in lines)), None)


def asked_again(source: str, edited: str, line: int) -> str:
    """What the comment of the region that owns 1-based ``line`` asks for, if the region is not its TODO's first; else
    "".
    """
    own = todo_at(source, edited, line)
    places = locate(source, edited).get(own, [])
    for region, place in zip([region for region in parse(source) if region.todo == own], places, strict=False):
        words = " ".join(line.strip().removeprefix("#").strip() for line in region.intro)
        again = f"TODO {own}, again: "
        if line in place and words.startswith(again):
            return words.removeprefix(again)
    return ""


def attempted(source: str, edited: str, todo: int) -> bool:
    """False if the TODO's code, ignoring comments and blank lines, is still as given."""
    lines = edited.split("\n")
    now = ["\n".join(lines[r.start - 1 : r.stop - 1]) for r in locate(source, edited).get(todo, [])]
    start = ["\n".join(region.student) for region in parse(source) if region.todo == todo]
    return [normalise(code) for code in now] != [normalise(code) for code in start]


def normalise(code: str) -> list[str]:
    """The lines of code without comments, blank lines and white space."""
    return [text for _, text in code_lines(code)]


def code_lines(code: str) -> Iterator[tuple[int, str]]:
    """(1-based line, its code without comment and white space) for each line of code."""
    lines = code.split("\n")
    for number, line in enumerate(_without_comments(lines), start=1):
        if text := "".join(line.split()):
            yield number, text


def _without_comments(lines: list[str]) -> list[str]:
    try:
        # dedented, since a region's body is not a module
        dedented = textwrap.dedent("\n".join(line.rstrip() for line in lines))
        comments = {
            token.start[0]: len(token.string)
            for token in tokenize.generate_tokens(io.StringIO(dedented).readline)
            if token.type == tokenize.COMMENT and not DIRECTIVE.match(token.string)
        }
        # a comment runs to the end of its line, so its length shows where the code ends
        return [line.rstrip()[: -comments.get(n, 0) or None] for n, line in enumerate(lines, start=1)]
    except (tokenize.TokenError, SyntaxError):  # not Python, or incomplete
        return ["" if line.strip().startswith("#") and not DIRECTIVE.match(line.strip()) else line for line in lines]


def _render(
    source: str, regions: Sequence[Region], body: Callable[[Region], Sequence[str]]
) -> tuple[list[str], list[range]]:
    """The lines with ``body(region)`` in place of each region, and where each body is (0-based)."""
    lines = source.split("\n")
    out: list[str] = []
    spans: list[range] = []
    done = 0
    for region in regions:
        out += lines[done : region.first - 1]
        text = body(region)
        spans.append(range(len(out), len(out) + len(text)))
        out += text
        done = region.last
    return out + lines[done:], spans


def _title(intro: Sequence[str]) -> str:
    opening = TODO.match(intro[0]).group(3).strip()
    text = " ".join([opening, *(line.strip("# \t\r") for line in intro[1:])])
    return re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0].rstrip(". ")


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _find_intro(region: Region, regions: Sequence[Region], lines: Sequence[str]) -> range | None:
    """Where the TODO comment of ``region`` is in an edited file, or None."""
    opening = region.intro[0].strip()
    at = [n for n, line in enumerate(lines) if line == opening]
    twins = [other for other in regions if other.intro[0].strip() == opening]
    if not at:  # perhaps reworded, but not the comment of a different region
        label = opening[: opening.index(":") + 1]
        others = {other.intro[0].strip() for other in regions}
        at = [n for n, line in enumerate(lines) if line.startswith(label) and line not in others]
        twins = [region]
    nth = twins.index(region)  # regions with the same opening words are in the same order
    if nth >= len(at):
        return None
    first, end = at[nth], at[nth] + 1
    for line in region.intro[1:]:
        if end < len(lines) and lines[end] == line.strip():
            end += 1
    return range(first, end)


def _piece(above: int | None, intros: Mapping[int, range], length: int) -> range:
    """The lines from below one TODO comment (None: the top of the file) to the next one."""
    begin = 0 if above is None else intros[above].stop
    end = min((intro.start for intro in intros.values() if intro.start >= begin), default=length)
    return range(begin, end)


def _matches(old: Sequence[str], new: Sequence[str], a: range, b: range) -> list[tuple[int, int]]:
    """Pairs of equal lines in two pieces, in order, ignoring blank lines.

    They are compared from the end, since SequenceMatcher resolves ties in favour of what comes first: so a body that
    repeats the line below it stays above that line.
    """
    a_lines, b_lines = ([i for i in reversed(piece) if text[i]] for piece, text in ((a, old), (b, new)))
    matcher = SequenceMatcher(None, [old[i] for i in a_lines], [new[i] for i in b_lines], autojunk=False)
    return sorted(
        (a_lines[block.a + k], b_lines[block.b + k])
        for block in matcher.get_matching_blocks()
        for k in range(block.size)
    )


def _trim(begin: int, end: int, lines: Sequence[str]) -> range:
    """``begin``…``end`` (0-based) without blank lines at either end, as 1-based lines."""
    end = max(begin, end)
    while begin < end and not lines[begin]:
        begin += 1
    while end > begin and not lines[end - 1]:
        end -= 1
    return range(begin + 1, end + 1)

"""Which TODOs have passed, and with which text: a check of TODO 8 does not repeat the checks of the seven that it
needs.

Used only where a student works: by `check`, `watch` and the cells of a notebook. A TODO that is asked for is always
checked. Grading, pytest and the tests of the course do not use it.
"""

import hashlib
import json
from collections.abc import Sequence

from grader.engine.lesson import lessons
from grader.engine.ranks import kept_server
from grader.engine.ranks.backends import Backend
from utils.atomic_write import written_whole


class Passed:
    """The TODOs of a lesson that have passed, in `.workbook/passed.json`, which may be deleted at any time."""

    def __init__(self, lesson: str, backend: Backend) -> None:
        self.path = lessons.COURSE / ".workbook" / "passed.json"
        self.lesson, self.about = lesson, [kept_server.state(), backend.name]  # a check may have changed, too

    def by(self, number: int, texts: Sequence[str]) -> bool:
        """Whether the TODO has passed with exactly these texts."""
        return self._read().get(f"{self.lesson}/{number}") == self._digest(texts)

    def note(self, number: int, texts: Sequence[str], passed: bool) -> None:
        if passed != self.by(number, texts):
            known = self._read() | {f"{self.lesson}/{number}": self._digest(texts) if passed else ""}
            with written_whole(self.path) as part:
                part.write_text(json.dumps(known, indent=1) + "\n", "utf-8")

    def _digest(self, texts: Sequence[str]) -> str:
        return hashlib.sha256(json.dumps([*self.about, *texts]).encode()).hexdigest()

    def _read(self) -> dict[str, str]:
        try:
            known = json.loads(self.path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return known if isinstance(known, dict) else {}

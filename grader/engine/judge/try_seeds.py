"""Verifies that reference solutions and other right answers pass with every seed.

`check`, `watch` and CI draw with one seed; each class has its own. So seeds are tried: N of them by `./workbook test
--seeds N`, a new one by `./workbook test --all`, and a class's own by `./workbook grade`, before it grades any
submission.
"""

import secrets
from collections.abc import Callable, Iterator

from grader.engine.judge import mutants
from grader.engine.judge.judge import Judge
from grader.engine.lesson import lessons
from grader.engine.ranks.runner import Runner

TRIES = 3  # seeds drawn for a class, until all references pass with one


def drawn() -> str:
    return secrets.token_hex(4)


def failures(runner: Runner, lesson: str, seed: str) -> list[str]:
    """TODOs whose reference solution fails with this seed, one line each."""
    judge = Judge(runner, lesson, str(lessons.source_root()), seed=seed)
    return [f"{lesson}/{v.todo}: {v.message}" for v in judge.verdicts() if not v.passed]


def refused(runner: Runner, lesson: str, seed: str) -> Iterator[str]:
    """Other right answers that are rejected with this seed, one line each."""
    for trial in mutants.right_answers(runner, lesson, lessons.titles(lesson), seed):
        if not trial.right:
            yield f"{lesson}/{trial.todo}: the right answer “{trial.name}” is refused: {trial.seen}"


def trial(stems: list[str], seeds: list[str], say: Callable[[str], None], *, others: bool) -> bool:
    """Judge these lessons' solutions with each seed, and if `others`, other right answers. Returns whether all pass."""
    wrong: set[tuple[str, str]] = set()
    with Runner() as runner:
        for stem in stems:
            if line := lessons.lacking(stem):
                say(f"– {stem} is not tried: {line}")
                continue
            for seed in seeds:
                lines = failures(runner, stem, seed)
                if others and not lines:
                    lines += refused(runner, stem, seed)
                say(f"{'✗' if lines else '✓'} {stem} with seed {seed}")
                for line in lines:
                    say(f"    {line}")
                    wrong.add((stem, seed))
    for stem, seed in sorted(wrong):
        say(f"again: ./workbook test {stem} --seed {seed}")
    return not wrong


def fit_for_a_class(runner: Runner, stems: list[str], say: Callable[[str], None]) -> str:
    """A drawn seed with which the reference solutions pass; says which lessons are done, for it takes minutes.

    Raises:
        ValueError: they fail with all drawn seeds.
    """
    for _ in range(TRIES):
        seed, failed = drawn(), []
        for stem in stems:
            if failed := failures(runner, stem, seed):
                say(f"seed {seed} is not used: the reference solution of {failed[0]}")
                break
            say(f"  {stem}")
        if not failed:
            return seed
    raise ValueError(f"the reference solutions fail with {TRIES} seeds: ./workbook test --seeds 3 says where")

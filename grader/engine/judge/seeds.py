"""Verifies that reference solutions and other right answers pass with every seed.

`check`, `watch` and CI draw with one seed; each class has its own. So seeds are tried: N of them by `./workbook test
--seeds N`, a new one by `./workbook test --all`, and a class's own by `./workbook grade`, on the machine that grades,
before it grades any submission.
"""

import multiprocessing
import secrets
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed

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


def fit_for_a_class(stems: list[str], jobs: int, say: Callable[[str], None]) -> str:
    """A drawn seed with which the reference solutions pass on this machine. Judges `jobs` lessons at a time, and says
    which are done, for it takes minutes.

    Raises:
        ValueError: they fail with all drawn seeds.
    """
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=start_runner) as pool:
        for _ in range(TRIES):
            seed, failed = drawn(), []
            asked = {pool.submit(failures_here, stem, seed): stem for stem in stems}
            for done in as_completed(asked):
                if failed := done.result():
                    say(f"seed {seed} is not used: the reference solution of {failed[0]}")
                    break
                say(f"  {asked[done]}")
            if not failed:
                return seed
            for left in asked:
                left.cancel()
    raise ValueError(f"the reference solutions fail with {TRIES} seeds: ./workbook test --seeds 3 says where")


def start_runner() -> None:
    """In a process of the pool: start the runner that all its lessons share. Its server ends with this process."""
    global RUNNER
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches all processes; one of them says so
    RUNNER = Runner()


def failures_here(lesson: str, seed: str) -> list[str]:
    return failures(RUNNER, lesson, seed)

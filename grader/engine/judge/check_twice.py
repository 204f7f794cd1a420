"""Runs each check twice, in lock step: the second pass has its own numbers, and calls the student's functions in the
same rank processes as the first.

A global, a default argument, a class or a cached group keeps what the first call left there. A function that is called
once per process never shows this, but in training each function is called at every step.

The second pass has its own thread, but never runs concurrently with the first: it continues when the first has reached
its next request, and stops at its own next one. If both want the same function on the same ranks, they use one launch.
"""

import random
import threading
from collections.abc import Callable

import torch

from grader.engine.judge.student_in_checks import Request, Student
from grader.engine.judge.verdict import BadDraw
from grader.engine.ranks.diagnose import Fault
from grader.engine.ranks.run import Run

TRIES = 5  # draws of the second pass's numbers, until some tell right from wrong
KEPT = (
    "With these numbers it is right in a fresh process, so the cause is something that the first call left: in a"
    " global, a default argument, an attribute of a class or module, a group or a buffer that was made once."
)


class Ended(BaseException):
    """Ends the second pass: its result is no longer needed."""


class Second:
    """The second pass of a check. `check` returns what is wrong with a student, or None.

    If the two passes want different ranks, each run is launched alone.
    """

    def __init__(self, student: Student, check: Callable[[Student], Exception | None]) -> None:
        self.first, self.student, self.check = student, student.second(), check
        self.student.ask = self.wait_for
        self.problem: Exception | None = None
        self.wanted: Request | None = None
        self.answer: Run | Exception | None = None  # None: not launched yet
        self.asked = self.over = self.dropped = False
        self.goes_on, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.thread = threading.Thread(target=self.walk, daemon=True)
        student.ask = self.beside

    def walk(self) -> None:
        self.goes_on.acquire()
        try:
            for self.student.again in range(TRIES):
                try:
                    self.problem = self.check(self.student)
                    break
                except BadDraw:
                    if self.asked:
                        break
        except Ended:
            pass
        except Exception as problem:  # the machine's or ours
            self.problem = problem
        finally:
            self.over = True
            self.stopped.release()

    def wait_for(self, wanted: Request) -> Run:
        """Called by the second pass: wait until there is an answer."""
        if wanted.whole:
            raise Ended
        self.wanted, self.answer, self.asked = wanted, None, True
        self.stopped.release()
        self.goes_on.acquire()
        if self.dropped:
            raise Ended
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def go_on(self) -> None:
        """Called by the first pass: let the second run to its next request, or to its end."""
        if self.over:
            return
        if not self.thread.is_alive():
            self.thread.start()
        elif self.waits and not self.dropped:
            try:
                self.answer = self.first.launch(self.wanted)
            except Fault as fault:
                self.answer = fault
        drawn = random.getstate(), torch.get_rng_state()
        self.goes_on.release()
        self.stopped.acquire()
        random.setstate(drawn[0])
        torch.set_rng_state(drawn[1])

    def beside(self, wanted: Request) -> Run:
        """Called by the first pass: its request, combined with the second pass's if one launch can serve both."""
        if wanted.whole:
            return self.first.launch(wanted)
        if not self.waits:
            self.go_on()
        if not self.waits or not wanted.like(self.wanted):
            return self.first.launch(wanted)
        run = self.first.launch(wanted, self.wanted)
        self.answer = run.second
        return run

    @property
    def waits(self) -> bool:
        """Whether the second pass has a request that is not launched yet."""
        return self.wanted is not None and self.answer is None and not self.over

    def result(self) -> Exception | None:
        """Called after the first pass: what is wrong in the rest of the second."""
        while not self.over:
            self.go_on()
        return self.problem

    def drop(self) -> None:
        """The end of both passes."""
        self.first.ask = self.first.launch
        self.dropped = True
        if self.thread.is_alive():
            self.go_on()
            self.thread.join()

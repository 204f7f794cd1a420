"""The judge's side of the ranks: a `Runner` has one fork-server, and each `run` starts fresh ranks for one job."""

import errno
import tempfile
from collections.abc import Sequence
from pathlib import Path

from grader.engine.lesson import lessons
from grader.engine.ranks import backends, kept_server
from grader.engine.ranks.server_connection import Connection, ServerGone
from grader.engine.ranks.diagnose import Fault
from grader.engine.ranks.job import Job
from grader.engine.ranks.run import Run
from grader.engine.ranks.run_session import Session
from grader.engine.walls import sandbox


class Runner:
    """Runs jobs. Use as a context manager, or `close` it: it leaves nothing running.

    Args:
        outside: the runner from whose server this one's is forked; then its ranks run in a sandbox
        walls, course, lesson, packages: as for `Connection`.
        kept: this process is a student's command or notebook: as for `Connection`.
        trusted: the runner for the course's own code; default: outside. Whatever it has loaded is also in servers
        forked from it.
        backend: how the ranks communicate; may also be set later.
        in_kernel: this process is a notebook's kernel, which the student's code may have changed
    """

    def __init__(
        self,
        outside: "Runner | None" = None,
        walls: str = sandbox.OFF,
        course: Path = lessons.COURSE,
        packages: Sequence[str] = (),
        lesson: str = "",
        trusted: "Runner | None" = None,
        kept: bool = False,
        backend: backends.Backend = backends.GLOO,
        in_kernel: bool = False,
    ) -> None:
        self.outside, self.trusted, self.backend = outside, trusted or outside or self, backend
        self.in_kernel = in_kernel
        from_here = kept and not in_kernel
        self.server = Connection(outside and outside.server, walls, course, packages, lesson, kept, from_here)

    def __enter__(self) -> "Runner":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self, many: bool = False) -> None:
        """Start the fork-server, if it is not up; does not wait until it is ready. `many`: it will fork many ranks."""
        self.server.start(bool(self.backend.gpus), many)

    def close(self) -> None:
        self.server.close()

    def run(self, job: Job) -> Run:
        """Run a job on fresh ranks. Never raises for the student's faults."""
        # The system may have killed the server for lack of memory, or `./workbook stop` did; if it happens twice, it is
        # the code's doing.
        for left in (1, 0) if self.outside or self.server.kept else (0,):
            try:
                return self._run(job)
            except ServerGone:
                self.close()
            except OSError as problem:
                # ranks of an earlier run, which are still ending, hold all of the sandbox's memory
                if problem.errno != errno.ENOSPC or not self.outside or not left:
                    raise
                self.close()
        # it was up, and only the ranks were near it
        return Run(
            job.world,
            Fault(
                "crash",
                "the process that starts the ranks was killed: a rank may end itself, and nothing else",
                None,
                expected="every rank ends normally",
                seen="a rank kills its parent",
            ),
            [None] * job.world,
            [[] for _ in range(job.world)],
        )

    def _run(self, job: Job) -> Run:
        devices = self.backend.devices(job.world) if job.on_gpus else []
        self.start()
        try:
            self.server.await_ready()
        except ServerGone as gone:  # no rank had been started yet
            why = f"{kept_server.last_words()} (more in {kept_server.log()})" if self.server.kept else gone
            raise RuntimeError(f"the fork-server does not start: {why}") from None
        inside = self.server.sandbox
        folder = Path(tempfile.mkdtemp(prefix="wb-", dir=inside and inside.seen))
        inner = inside.folder / folder.name if inside else folder
        try:
            job.make_folders(folder)
            if inside and inside.walls == sandbox.USERS:
                inside.give(folder)
            try:
                with sandbox.held(folder) as seen:
                    return Session(self.server, job, seen, inner, devices).watch()
            except ServerGone:
                raise
            except BaseException:  # e.g. an interrupt: it is unknown which messages are still to come
                self.close()
                raise
        finally:
            sandbox.remove(folder)

"""One rank: load the student's code, run the job, leave evidence.

Everything here runs in the rank's own process, together with the student's code. It
reports to the judge and judges nothing. The server that forked it knows the job;
the inputs, which only this rank may see, come from the judge over its own connection:

    folder       the folder of the run: in it, each rank has its own, called by its number; the ranks meet by `store`
    common       whether all ranks work in one folder, `common`
    units        [{name, text}]: the student's code, a script or a notebook's cells
    file         the value of `__file__` for them
    argv         the command line: run the script as a whole;  or
    function     call this function, "its module:its name", with the student's
                 module and the inputs
    lesson       the library withholds what this lesson and later ones teach
    package      that the lesson needs in addition
    world, nodes ranks, and how many nodes they pretend to be spread over, or how many ranks are on each
    group        make the process group before the call
    gpus         GPUs per node to pretend
    devices      the GPU of each rank, as CUDA_VISIBLE_DEVICES names it; empty: the ranks are on CPUs
"""

import atexit
import builtins
import contextlib
import difflib
import functools
import importlib
import json
import linecache
import os
import random
import socket
import sys
import traceback
import types
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException

from grader import OWN
from grader.engine.inside import second_call, evidence, observe, on_gpu, recording, return_values
from grader.engine.lesson import lessons


def main(job: dict, number: int, end: socket.socket) -> None:
    """Run as rank `number` of the job; `end` is its end of the connection."""
    run = Path(job["folder"])
    redirect(run / str(number))
    settle(job, run, number)
    crowd(number)
    reporter = observe.Reporter(end, job)
    if job["devices"]:
        take_gpu(reporter)
    with end.makefile("rb") as heard:
        job["inputs"] = json.loads(heard.readline())
    observe.watch(reporter, job)
    tell_deprecations(reporter)
    try:
        if job["argv"] is not None:
            result = whole_run(job, reporter)
        else:
            result = call(job, reporter, number)
        evidence.write(reporter.own / "evidence", result)
        last_word = {"e": "end"}
    except BaseException as error:  # SystemExit and KeyboardInterrupt are the student's too
        last_word = {"e": "crash", **describe(error)}
    sys.stdout.flush()
    sys.stderr.flush()
    reporter.say(**last_word)
    reporter.release()
    observe.leave(0)


def tell_deprecations(reporter: observe.Reporter) -> None:
    """Tell the judge which line of the student's calls what torch, or another package, is going to remove."""
    show = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, (FutureWarning, DeprecationWarning)) and (where := reporter.where()):
            reporter.say(e="deprecated", text=str(message)[:300], where=where)
        show(message, category, *place, **more)

    warnings.showwarning = shown


def take_gpu(reporter: observe.Reporter) -> None:
    """Runs before any of the student's code: a failure here is the machine's."""
    try:
        on_gpu.start()
    except (RuntimeError, OSError) as error:
        reporter.say(e="unfit", text=str(error).strip()[:500])
        reporter.release()
        observe.leave(0)
    reporter.say(e="fit")


def places(job: dict, number: int) -> list[str]:
    """The folders and files to which this rank may write, of the first call and of the second."""
    calls = [Path(job["folder"]), Path(job["folder"]) / "second"]
    names = [str(number), observe.STORE, "common"]
    return [str(call / name) for call in calls for name in names if (call / name).exists()]


def redirect(own: Path) -> None:
    """Redirect everything that the rank prints to its own files."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        target = os.open(own / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(target, descriptor)
        os.close(target)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="replace")
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="replace")


def settle(job: dict, run: Path, number: int) -> None:
    """Set up the process as torchrun would have."""
    work = run / ("common" if job["common"] else str(number)) / "work"
    work.mkdir(exist_ok=True)
    os.chdir(work)
    nodes = job["world"] if job["devices"] else job["nodes"]  # with a GPU, a rank is alone, as on its own node
    sizes = nodes if isinstance(nodes, list) else [job["world"] // nodes] * nodes
    node, place = [(node, place) for node, size in enumerate(sizes) for place in range(size)][number]
    for name in [name for name in os.environ if name.startswith(("SLURM_", "PMI", "PALS_", "OMPI_", "PBS_"))]:
        del os.environ[name]
    os.environ.update(
        RANK=str(number),
        WORLD_SIZE=str(job["world"]),
        LOCAL_RANK=str(place),
        LOCAL_WORLD_SIZE=str(sizes[node]),
        GROUP_RANK=str(node),
        GROUP_WORLD_SIZE=str(len(sizes)),
        MASTER_ADDR="127.0.0.1",
        # Nothing listens there; different in each run, so hard-coding it fails.
        MASTER_PORT=str(20_000 + zlib.crc32(str(run).encode()) % 20_000),
        TORCHELASTIC_RUN_ID="workbook",
        WORKBOOK_STARTER=str(os.getppid()),  # the server, as torchrun's agent: see utils/end_with_launcher.py
        HF_HUB_OFFLINE="1",
    )
    # After a fork, torch makes its pool of threads anew when first asked for it. In a torch for CUDA, two threads of
    # autograd may do that at once, which ends the process ("Invalid thread pool!", 2.13).
    torch.set_num_threads(torch.get_num_threads())
    if gpus := job["devices"]:
        os.environ.update(on_gpu.environment(gpus[number], shared=len(set(gpus)) < len(gpus)))


crowded: list[Any] = []


def crowd(number: int) -> None:
    """Give objects and tensors different addresses, in a different order, on each rank, as on real ranks, which are not
    forks of one process. A set of parameters, for example, is in the order of their addresses.
    """
    drawn = random.Random(number)
    blocks: list[Any] = [bytearray(size) for size in range(8, 200, 16) for _ in range(drawn.randrange(32, 96))]
    blocks += [object() for _ in range(200)] + [torch.empty(drawn.randrange(1, 4000)) for _ in range(20)]
    drawn.shuffle(blocks)
    crowded.extend(blocks[::2])  # the places of the rest are free, in random order


compiled: dict[tuple[str, str], types.CodeType] = {}  # (name, text) of a unit -> its code


def compile_units(job: dict) -> None:
    """In the server, before it forks: compile the job's units. The ranks report units that do not compile."""
    units = [(unit["name"], unit["text"]) for unit in job["units"]]
    for known in compiled.keys() - units:
        del compiled[known]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the rank prints the compiler's warnings
        for name, text in units:
            if (name, text) not in compiled:
                try:
                    compiled[name, text] = compile(text, name, "exec", dont_inherit=True)
                except Exception:
                    continue


class Withheld(types.ModuleType):
    """Replaces a module of the library that contains what a lesson teaches."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` asks every module for its file and does not expect an ImportError
            raise AttributeError(name)
        raise ImportError(f"{self.__name__} has what this lesson teaches, or a later one: write it yourself")


taught = functools.cache(lessons.taught)  # read before the first fork: it is not visible in a sandbox


def withhold(lesson: str) -> None:
    """Prevent imports of library modules that contain what `lesson`, or a later one, teaches."""
    for name in map(lessons.module_name, lessons.ahead(lesson, taught())):
        for below in [known for known in sys.modules if known.startswith(f"{name}.")]:
            del sys.modules[below]
        forget(name)
        sys.modules[name] = Withheld(name)


def forget(name: str) -> None:
    """Unload a module."""
    sys.modules.pop(name, None)
    package, _, own = name.rpartition(".")
    if package in sys.modules:
        vars(sys.modules[package]).pop(own, None)


without_answers: set[str] = set()  # the library's modules that load while all that the course teaches is withheld


def forget_answers() -> None:
    """Unload all of the library that has what a lesson teaches, or imports it, and what stands in for such modules:
    what is imported next does not depend on the lessons that this process has served.
    """
    for name in [name for name in sys.modules if name.startswith(("utils.", "grader.lessons."))]:
        if name not in without_answers:  # what runs on ranks for other lessons holds on to what it has imported
            forget(name)


PICTURES = ("plots", "report")  # folders that need matplotlib; a rank draws nothing


@functools.lru_cache(1)  # for the current lesson
def load_library(lesson: str) -> None:
    """In the server: load the modules of utils/ that a lesson's code may import, but none with what this lesson or a
    later one teaches: code can find whatever is in memory.
    """
    if without_answers:
        forget_answers()
    withhold(lesson)
    for path in sorted((lessons.COURSE / "utils").rglob("*.py")):
        if path.name != "__main__.py" and path.parent.name not in PICTURES:
            with contextlib.suppress(Exception):  # withheld, needs a withheld module, or broken: reported on import
                importlib.import_module(lessons.module_name(path))


def load_plain_library() -> None:
    """In the server, once, before all else: load the modules that no lesson withholds."""
    load_library(lessons.ORDER[0])
    loaded = {name for name, module in sys.modules.items() if not isinstance(module, Withheld)}
    without_answers.update(name for name in loaded if name.startswith("utils."))


def load_lesson(lesson: str) -> None:
    """In the server: load what a lesson's checks call on ranks. Nothing else of its folder is loaded there: it has
    answers, and code can find whatever is in memory.
    """
    for name in lessons.on_ranks(lesson):
        importlib.import_module(name)


def load(job: dict, reporter: observe.Reporter, name: str) -> types.ModuleType:
    """The student's units as one module. A cell that fails affects only itself; in a script, a failure ends all."""
    module = types.ModuleType(name)
    module.__file__ = job["file"]
    sys.modules[name] = module
    if job["notebook"]:  # the imports of the set-up cell, which is locked and not run here
        module.__dict__.update(sys=sys, Path=Path)
    for unit in job["units"]:
        lines = unit["text"].splitlines(keepends=True)
        linecache.cache[unit["name"]] = (len(unit["text"]), None, lines, unit["name"])
        try:
            code = compiled.get((unit["name"], unit["text"])) or compile(
                unit["text"], unit["name"], "exec", dont_inherit=True
            )
            exec(code, module.__dict__)
        except (Exception, SystemExit) as error:  # a notebook's cell may end by sys.exit
            if job["notebook"]:
                reporter.say(e="broken", cell=unit["name"], **describe(error))
            else:
                raise
    return module


def whole_run(job: dict, reporter: observe.Reporter) -> dict:
    """Run the script as from the command line, and record what it trained on and what it left."""
    record = recording.record_training(reporter)
    sys.argv = [job["file"], *job["argv"]]
    at_exit = watch_exits(reporter)
    try:
        load(job, reporter, "__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    for function in reversed(at_exit):
        function()
    return record.evidence()


def watch_exits(reporter: observe.Reporter) -> list[Callable[[], Any]]:
    """A list that collects the functions that the student's code registers with `atexit`: a rank ends without Python's
    own exit.
    """
    asked, register = [], atexit.register

    def registered(function: Callable, *args: Any, **kwargs: Any) -> Callable:
        if not reporter.where():
            return register(function, *args, **kwargs)
        asked.append(functools.partial(function, *args, **kwargs))
        return function

    atexit.register = registered
    return asked


def call(job: dict, reporter: observe.Reporter, number: int) -> dict:
    """Call a check's rank function with the student's module, once or twice. Returns the last call's result."""
    if job["group"]:
        torch.distributed.init_process_group(reporter.backend)
    module, _, name = job["function"].rpartition(":")
    function = getattr(importlib.import_module(module), name)  # loaded, unless it is a check's own reference
    first, *second = job["inputs"]
    # Code that is given a process group names no device, nor does a reference; a script that makes its own group does.
    no_device = job["group"] or job["file"] is None
    with on_gpu.as_default() if job["devices"] and no_device else contextlib.nullcontext():
        if job["file"] is not None:  # otherwise a reference: only the check's own code
            student = load(job, reporter, "student")
            return_values.listen(student, reporter.say)
            function = functools.partial(function, student, rank=number, world=job["world"])
        start = second_call.Start() if second else None
        result = function(**first)
        for inputs in second:
            evidence.write(reporter.own / "evidence", result)
            del result
            run = second_call.between(reporter, start)
            redirect(run / str(number))
            settle(job, run, number)
            if job["gpus"]:
                observe.pretend_gpus(job["gpus"])
            if job["group"]:
                torch.distributed.init_process_group(reporter.backend)
            result = function(**inputs)
        return result


def own_function(student: types.ModuleType, rank: int, world: int, name: str, inputs: list, timed: bool) -> object:
    """For `grader.run_on_ranks`: a function of the notebook, with this rank's input."""
    observe.mark()
    observe.Reporter.mine.patient = timed
    print(OWN, end="")
    return getattr(student, name)(evidence.decoded(inputs[rank]), rank, world)


def suggestion(error: BaseException) -> str:
    """A name that exists and is spelled like the one that was not found, as Python itself suggests it in a terminal."""
    names, found = [], []
    with contextlib.suppress(Exception):  # `dir` of a student's object may do anything, and an error's name be anything
        if isinstance(error, AttributeError):
            names = dir(error.obj)
        elif isinstance(error, NameError):
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            names = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
        found = names and difflib.get_close_matches(error.name or "", names, n=1)
    return f" (perhaps '{found[0]}'?)" if found else ""


def reason(error: BaseException) -> BaseException:
    """The error itself; of torch's CheckpointException, which says only that some ranks failed, the first rank's."""
    failures = getattr(error, "failures", None)
    if isinstance(error, CheckpointException) and isinstance(failures, dict) and failures:
        inner = failures[min(failures, key=str)]
        inner = inner[0] if isinstance(inner, tuple) and inner else inner
        return inner if isinstance(inner, BaseException) else error
    return error


def describe(error: BaseException) -> dict:
    """What the judge needs to know about an exception: type, text, frames, and how the function that raised it was
    called, if `returned` knows.
    """
    walked = traceback.walk_tb(error.__traceback__)
    error = reason(error)
    frames = [[frame.f_code.co_filename, line, frame.f_code.co_name] for frame, line in walked]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append([error.filename, error.lineno or 1, "<source>"])
    text = "; ".join([str(error) + suggestion(error), *getattr(error, "__notes__", ())])
    called_as = str(getattr(error, "called_as", ""))[:1000]
    return {"type": type(error).__name__, "text": text[:2000], "called_as": called_as, "frames": frames}

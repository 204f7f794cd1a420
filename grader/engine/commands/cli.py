"""./workbook COMMAND: the one command line of the course.

Each command is a few lines; its work is in a separate module, imported
when needed, so that `./workbook --help` does not wait for torch.
"""

import gc
import os
import signal
import sys
from typing import NoReturn

gc.set_threshold(50_000, 20, 20)  # what torch loads is no garbage, and looking through it takes a fifth of the time

if interrupts := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # while modules load, Ctrl-C ends this without a traceback

import typer
from typer.exceptions import TyperException

from grader.engine.commands import first_steps, student, run, plan, instructor, book_and_board  # noqa: F401  --help shows them in this order
from grader.engine.commands.arguments import app
from grader.engine.ranks import kept_server
from grader.engine.ranks.diagnose import Unjudged

if interrupts:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main() -> NoReturn:
    try:
        # Otherwise a mistake is reported in a five-line box.
        code = app(prog_name="./workbook", standalone_mode=False)
    except TyperException as mistake:
        message = mistake.format_message()
        if "No such option" in message:
            takes = {"run": "the script", "test": "pytest"}.get(sys.argv[1] if len(sys.argv) > 1 else "")
            message += f". Arguments for {takes} go after --" if takes else ""
        if message:  # empty after the help text that `./workbook` alone prints
            typer.echo(f"workbook: {message} (--help explains the commands)", err=True)
        code = 2
    except Unjudged as problem:
        typer.echo(f"workbook: {problem}", err=True)
        code = 3
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except OSError as problem:
        what = [str(part) for part in (problem.filename, problem.strerror or problem) if part]
        typer.echo(f"workbook: {': '.join(what)}", err=True)
        code = 2
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    if sys.argv[1:2] == ["check"] and (code := kept_server.hand_over(sys.argv[1:])) is not None:
        sys.exit(code)
    main()

"""The first commands: start, data, lab."""

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from grader.engine.commands.arguments import BEGIN, app, say_next
from grader.engine.commands.launch import run_once, say_report
from grader.engine.commands.screen import fail, say
from grader.engine.lesson import lessons, tracks
from grader.engine.lesson.progress import lesson_map

if TYPE_CHECKING:
    from utils.data import Corpus


@app.command(rich_help_panel=BEGIN)
def start() -> None:
    """Inspect this machine, train the baseline for half a minute, say what to do next."""
    from grader.engine.jobs import machine
    from grader.engine.ranks import backends

    for name, value in machine.found().items():
        say(f"  [dim]{name:10}[/]{escape(value)}")
    if story := backends.choose("auto").story():
        say(f"  [dim]{'checks':10}[/]{escape(story)}")
    say("\nTraining a small language model on one device, without the network.")
    say("[dim]About half a minute on two idle cores, longer on a busy machine; Ctrl-C skips the rest of it.[/]")
    out, began = lessons.COURSE / "runs" / "start", time.time()
    # One pass over the built-in text: 75 steps, half a minute on two cores.
    short = ["--data", "builtin", "--epochs", "1", "--max-steps", "75", "--batch-size", "12", "--log-every", "2"]
    code = run_once(lessons.student_path(lessons.BASELINE), 1, short, out)
    if code == 0:
        say_report(out, began)
    elif code > 128 and code != 130:  # 130: Ctrl-C, which was offered
        fail("the training was stopped by a signal; run ./workbook start again", code)
    elif code != 130:
        fail("the baseline does not run, see above; ./workbook reset single_gpu_training brings it back", code)
    say("\nThe lessons:\n" + "\n".join(lesson_map()))
    say("\nLess time? A path through them, with estimates:")
    for name, track in tracks.TRACKS.items():
        needed = tracks.hours(tracks.minutes(tracks.members(name)))
        say(f"  {track.title:11} [dim]about {needed:12}[/] ./workbook status --track {name}")
    say_next()


@app.command(rich_help_panel=BEGIN)
def data(
    shards: Annotated[
        bool, typer.Option("--shards", help="write its tokens into files, for streaming_training")
    ] = False,
    of: Annotated[str, typer.Option("--data", help="the corpus, as for the scripts: builtin, random, a folder")] = "",
    vocab: Annotated[
        int, typer.Option("--vocab", metavar="N", min=0, help="with --shards: N pieces of words, in place of the words")
    ] = 0,
    file_size: Annotated[str, typer.Option(metavar="SIZE", help="with --shards: of each file, say 64MB")] = "1MiB",
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="of the shards; default: runs/shards/NAME")] = None,
) -> None:
    """Download WikiText-2 (13 MB) into the cache: on a cluster, once on a login node. Or write a corpus as shards."""
    from utils.data import DataError, download_wikitext2, load_corpus, wikitext2_is_cached

    if not shards and (of or vocab or out or file_size != "1MiB"):
        fail("--data, --vocab, --file-size and --out are for --shards")
    try:
        if of in ("", "wikitext-2") and not wikitext2_is_cached():
            download_wikitext2()
        corpus = load_corpus(of or "wikitext-2")
        if shards:
            say_shards(corpus, vocab, file_size, out)
            return
    except DataError as problem:
        fail(problem)
    counts = ", ".join(f"{len(getattr(corpus, split)):,} {split}" for split in ("train", "validation", "test"))
    say(f"wikitext-2 is in the cache: {counts} tokens, {len(corpus.vocab):,} types")


def say_shards(corpus: "Corpus", vocab: int, file_size: str, out: Path | None) -> None:
    """Write a corpus as shards, unless they are there and whole; say where, and how to train on them."""
    from utils.arguments import size
    from utils.optional_packages import lacks
    from utils.pieces import LEAST, in_pieces
    from utils.shards import check_checksums, is_sharded, open_shards
    from utils.streams import write_corpus
    from utils.atomic_write import no_room

    try:
        most = size(file_size)
    except argparse.ArgumentTypeError as problem:
        fail(f"--file-size: {problem}")
    if vocab:
        if vocab < LEAST:
            fail(f"--vocab {vocab} is less than {LEAST}: each byte needs a piece, so that any text can be written")
        if line := lacks("tokenizers"):
            fail(line)
        corpus = in_pieces(corpus, vocab)
    folder = out or lessons.COURSE / "runs" / "shards" / Path(corpus.name).name
    if is_sharded(folder):
        there = open_shards(folder)
        check_checksums(there)
        if there.name != corpus.name:
            fail(f"{folder} has the shards of {there.name}; choose another --out")
        say(f"{folder} is there already, and whole: all checksums agree (another --file-size is for another --out)")
    else:
        try:
            there = write_corpus(corpus, folder, file_size=most)
        except FileExistsError as problem:
            fail(f"{problem}; choose another --out")
        except OSError as problem:
            fail(f"{folder} cannot be written: {no_room(problem) or problem.strerror}")
    width = {"<u2": "uint16", "<u4": "uint32"}[there.train.dtype]
    counts = ", ".join(
        f"{split.tokens:,} {name} in {len(split.files)} file{'s' * (len(split.files) != 1)}"
        for name, split in (("train", there.train), ("validation", there.validation), ("test", there.test))
    )
    say(f"{there.name}: {counts}, of {width}, {there.vocab_size:,} types")
    whole = folder.resolve()
    say(f"train on it with any script: --data {os.path.relpath(whole) if whole.is_relative_to(Path.cwd()) else whole}")


# What JupyterLab starts with, for this course alone; a user's own settings take precedence.
LAB_SETTINGS = {
    # Otherwise it asks each new user, in each browser, whether it may fetch news, before anything can be read.
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    # Beside the list of files, 107 columns fit into a window of 1280 pixels, and our lines have up to 120.
    "@jupyterlab/notebook-extension:tracker": {"codeCellConfig": {"lineWrap": True}},
}


@app.command(rich_help_panel=BEGIN, context_settings={"ignore_unknown_options": True})
def lab(
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="arguments for JupyterLab, such as --port 8917")
    ] = None,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="only print the address")] = False,
) -> None:
    """Open the notebooks in JupyterLab."""
    from ipykernel.kernelspec import install

    from grader.engine.lesson.notebooks import KERNEL

    folder = lessons.COURSE / ".workbook" / "jupyter"
    # Under .workbook, so that the user's other Jupyter installations do not get our kernel.
    install(prefix=str(folder), kernel_name=KERNEL["name"], display_name=KERNEL["display_name"])
    paths = [str(folder / "share" / "jupyter"), os.environ.get("JUPYTER_PATH", "")]
    os.environ["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    settings = folder / "settings"
    settings.mkdir(exist_ok=True)
    (settings / "overrides.json").write_text(json.dumps(LAB_SETTINGS, indent=1) + "\n")
    os.chdir(lessons.COURSE)  # the root is the course, because the notebooks show pictures from images/
    options = [
        f"--ServerApp.root_dir={lessons.COURSE}",
        "--LabApp.default_url=/lab/tree/notebooks",
        f"--LabApp.app_settings_dir={settings}",
    ]
    given = args or []
    if os.geteuid() == 0 and "--allow-root" not in given:
        fail("JupyterLab does not start for root: log in as a user, or, in a container, ./workbook lab --allow-root")
    if no_browser:  # below the level of errors it logs thirty lines at startup, one of them the address
        options += ["--no-browser", "--ServerApp.log_level=ERROR", "--LabApp.log_level=ERROR"]
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", *options, *given])

"""Every flag of every training script, with values that cannot be: one line, exit code 2, nothing written.

The scripts run in this process, alone, so that hundreds of values take seconds; what only several ranks refuse is in
their own tests.
"""

import argparse
import importlib.util
import os

import pytest

from grader.engine.lesson import lessons
from utils import arguments

SCRIPTS = [
    stem
    for stem in ("single_gpu_training", *(s for s in lessons.ORDER if s.endswith("_training")))
    if not lessons.is_notebook(stem) and (lessons.COURSE / "solutions" / "train" / f"{stem}.py").is_file()
]
SCRIPTS = list(dict.fromkeys(SCRIPTS))
HUGE = "9" * 400
NUMBERS = ["", " ", "x", "nan", "inf", "-inf", "-1", "1e3.5", "--", "0x10", HUGE, "1;2", "\u221e", "½"]
# For each kind of value those that none of its flags takes; a flag that takes one of them is named below.
BAD = {
    "number": NUMBERS,
    "whole number": [*NUMBERS, "1.5", str(2**63)],
    "size": [*NUMBERS, "1", "MB", "0MB", "-3MB", f"{HUGE}MB", "3 bananas"],
    "choice": ["", " ", "x", "nan", "-1", HUGE],
    "text": [""],
}
NOWHERE = "/dev/null/nowhere"
ALSO = {"--data": ["nowhere", NOWHERE, "\t"], "--out": [NOWHERE], "--resume": ["nowhere", NOWHERE, "/", "/dev/null"]}
TOO_LARGE = ("--dim", "--layers", "--seq-len", "--batch-size", "--heads")  # what torch takes, and no machine


def loaded(stem):
    if missing := lessons.lacking(stem):
        pytest.skip(missing)
    path = lessons.COURSE / "solutions" / "train" / f"{stem}.py"
    spec = importlib.util.spec_from_file_location(f"swept_{stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flags_of(script, monkeypatch):
    """The flags that a script's parser has when it parses: name -> the kind of its values."""
    found = {}

    def look(parser, *how):
        for action in parser._actions:
            if action.option_strings and action.nargs != 0:
                found[action.option_strings[-1]] = kind_of(action)
        raise SystemExit(0)

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(arguments.Parser, "parse_known_args", look)
        script.parse_args([])
    return found


def test_every_parser_has_all_flags_that_scripts_share(alone):
    """A script's own flag with the name of a shared one would end it at its start."""
    shared = {name for action in arguments.training_parser("x")._actions for name in action.option_strings}
    for stem in SCRIPTS:
        if lessons.lacking(stem):
            continue
        args = loaded(stem).parse_args(["--device", "xpu"])
        names = {f"--{name.replace('_', '-')}" for name in vars(args)}
        assert args.device == "xpu" and shared - {"-h", "--help"} <= names, (stem, shared - names)


def kind_of(action: argparse.Action) -> str:
    if action.choices:
        return "choice"
    name = getattr(action.type, "__qualname__", "")
    kinds = {"whole": "whole number", "real": "number", "size": "size", "given": "text"}
    return kinds[name.split(".")[0]]  # a flag whose type checks nothing has no place here


def said_of(script, argv, capsys):
    with pytest.raises(SystemExit) as stop:
        script.main(argv)
    told = capsys.readouterr()
    return stop.value.code, told.err


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """No launcher, and a folder of its own, in which nothing may be written."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    from utils.distributed import cleanup

    cleanup()


@pytest.mark.parametrize("stem", SCRIPTS)
def test_what_cannot_be_is_one_line(stem, alone, monkeypatch, capsys):
    script = loaded(stem)
    flags = flags_of(script, monkeypatch)
    assert {"--dim", "--out", "--seed", "--device-memory"} <= flags.keys()
    wrong = []
    for flag, kind in flags.items():
        bad = [*BAD[kind], *ALSO.get(flag, []), *([str(2**62)] if flag in TOO_LARGE else [])]
        for value in bad:
            # With its own process group each: a script that joins one has it until it ends.
            code, err = said_of(script, ["--data", "random", f"{flag}={value}"], capsys)
            from utils.distributed import cleanup

            cleanup()
            for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
                os.environ.pop(name, None)
            lines = [line for line in err.splitlines() if "no units for bfloat16" not in line]
            if code != 2 or len(lines) != 1 or not lines[0].startswith("error: "):
                wrong.append((flag, value[:40], code, err[:300]))
            if left := [path.name for path in alone.iterdir()]:
                wrong.append((flag, value[:40], "wrote", left))
    assert not wrong, "\n".join(map(str, wrong))

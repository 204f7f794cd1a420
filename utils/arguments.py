"""The flags that all training scripts share."""

import argparse
import math
import re
import sys
from collections.abc import Callable
from typing import Any, NoReturn

import torch

from utils.distributed import fail, print0
from utils.products import has_units


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, on rank 0 only, instead of the whole usage on every rank."""

    def error(self, message: str) -> NoReturn:
        fail(f"{message} (--help explains the flags)")

    def parse_known_args(self, *how: Any) -> tuple[argparse.Namespace, list[str]]:
        args, unknown = super().parse_known_args(*how)
        if getattr(args, "dtype", "") == "bfloat16" and not torch.cuda.is_available() and not has_units("cpu"):
            print0(
                "this processor has no units for bfloat16: with --dtype bfloat16 it rounds, but is no faster than with"
                " float32",
                file=sys.stderr,
            )
        return args, unknown


def training_parser(name: str) -> Parser:
    """The flags of a training run. A lesson that has more adds them to what this returns.

    Args:
        name: of the script without .py; runs/name is where it writes.
    """
    parser = Parser(prog=f"{name}.py", formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--data", help="wikitext-2, builtin, random or a folder; without it wikitext-2 if cached, else builtin")
    add("--out", default=f"runs/{name}", help="folder for checkpoints and metrics")
    add("--epochs", type=whole(1), default=3, help="passes over the training set")
    add("--max-steps", type=whole(0), default=0, help="stop after so many steps; 0 is no limit")
    add("--batch-size", type=whole(1), default=24, help="sequences in a step, over all ranks")
    add("--seq-len", type=whole(1), default=64, help="tokens in a sequence")
    add("--dim", type=whole(1), default=128, help="width of the model")
    add("--heads", type=whole(1), default=4, help="attention heads; must divide --dim")
    add("--layers", type=whole(1), default=2, help="Transformer blocks")
    add("--dropout", type=number(0.0, below=1.0), default=0.0, help="share of activations dropped in training")
    add("--optimizer", choices=("adamw", "sgd"), default="adamw", help="how weights are updated")
    add("--lr", type=number(0.0), default=1e-3, help="learning rate")
    add("--weight-decay", type=number(0.0), default=0.01, help="pull of the weights towards zero")
    add("--clip", type=number(0.0), default=1.0, help="largest norm of the gradient; 0 is no limit")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="of the matrix products (autocast)")
    add("--seed", type=whole(0), default=0, help="of the first weights and the order of the data")
    add("--workers", type=whole(0), default=0, help="processes that load data")
    add("--log-every", type=whole(1), default=10, help="steps from one line in metrics.jsonl to the next")
    add("--tensorboard", action="store_true", help="write the metrics for TensorBoard, too")
    add("--device-memory", type=size, metavar="SIZE", help="end where a rank's tensors take more, say 300MB")
    add("--record", action="store_true", help="note what each rank uses, once a second, for ./workbook report")
    return parser


def whole(at_least: int) -> Callable[[str], int]:
    """A type for argparse: an integer with a lower bound."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < at_least:
            raise argparse.ArgumentTypeError(f"{value} is less than {at_least}")
        return value

    return parse


def number(at_least: float, below: float = math.inf) -> Callable[[str], float]:
    """A type for argparse: a number in [at_least, below)."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not at_least <= value < below:  # false for nan, too
            raise argparse.ArgumentTypeError(f"{text} is not from {at_least:g} to below {below:g}")
        return value

    return parse


UNITS = {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def size(text: str) -> int:
    """A type for argparse: bytes, written with their unit."""
    units = {unit.lower(): factor for unit, factor in UNITS.items()}
    found = re.fullmatch(r"(\d+\.?\d*) ?([a-z]+)", text.strip().lower())
    if not found or found[2] not in units or float(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size with its unit, such as 300MB or 1.5GB")
    return int(float(found[1]) * units[found[2]])

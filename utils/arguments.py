"""The flags of all training scripts."""

import argparse
import math
import os
import re
from collections.abc import Callable
from typing import Any, NoReturn

import psutil

from utils import releases

# What --size stands for. laptop: a step of about a second on one core. gpu: 136 million parameters; a step keeps an
# A100 busy for some 0.2 s in bfloat16, so that four of them have something to divide, and fits its 40 GB. node: 2.7
# billion; weights, gradients and AdamW's state are 43 GB, so one A100 of 40 GB cannot hold them, and four can.
# Batches are multiples of 12, which 2, 3, 4, 6 and 12 ranks divide.
SIZES = {
    "laptop": {"batch_size": 24, "seq_len": 64, "dim": 128, "heads": 4, "layers": 2},
    "gpu": {"batch_size": 96, "seq_len": 256, "dim": 768, "heads": 12, "layers": 12},
    "node": {"batch_size": 12, "seq_len": 1024, "dim": 2560, "heads": 32, "layers": 32},
}


class Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows the default of each flag that has one."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, on rank 0 only, instead of the whole usage on every rank. Each flag that --size
    sets and that was not given gets that size's value.
    """

    def error(self, message: str) -> NoReturn:
        from utils.distributed import fail  # imported here: it loads torch, which a report does without

        fail(f"{message} (--help explains the flags)")

    def parse_known_args(self, *how: Any) -> tuple[argparse.Namespace, list[str]]:
        args, unknown = super().parse_known_args(*how)
        for name, value in vars(args).items():
            if value == []:  # what argparse makes of --name=--
                self.error(f"argument --{name.replace('_', '-')}: expected one argument")
        # Of --batch-size-per-rank the parser knows one rank only: `set_batch_size` knows how many there are.
        args.batch_size = args.batch_size or args.batch_size_per_rank
        for name, value in SIZES[args.size].items():
            if getattr(args, name) is None:
                setattr(args, name, value)
        if args.init and getattr(args, "resume", None):
            self.error("--init starts a new run, and --resume continues one: give one of them")
        self.check_size(args)
        self.set_kv_heads(args)
        return args, unknown

    def check_size(self, args: argparse.Namespace) -> None:
        """Refuse a model whose weights alone exceed the memory: making it would take long, or swap."""
        needs = 4 * (12 * args.layers * args.dim**2 + args.seq_len * args.dim)  # float32; the words come on top
        nodes = -(-int(os.environ.get("WORLD_SIZE", "1")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        there = nodes * psutil.virtual_memory().total
        if needs > there:
            self.error(
                f"--dim {args.dim}, --layers {args.layers}, --seq-len {args.seq_len}: the weights alone are"
                f" {needs / 1e9:,.0f} GB, and the memory here is {there / 1e9:,.0f} GB"
            )

    def set_kv_heads(self, args: argparse.Namespace) -> None:
        """Afterwards args.kv_heads is 0 for the gpt block, as `TransformerLM` takes it."""
        if args.block == "gpt":
            if args.kv_heads:
                self.error(f"--kv-heads {args.kv_heads} is for --block llama: a gpt block has as many as --heads")
            args.kv_heads = 0
            return
        args.kv_heads = args.kv_heads or args.heads
        if args.heads % args.kv_heads:
            self.error(f"--heads {args.heads} is not divisible by --kv-heads {args.kv_heads}")
        if args.dim % args.heads == 0 and args.dim // args.heads % 2:
            self.error(
                f"--dim {args.dim} on --heads {args.heads} is {args.dim // args.heads} numbers for each head;"
                " rotary positions need an even number"
            )


def training_parser(name: str, optimizers: tuple[str, ...] = ("adamw", "sgd")) -> Parser:
    """The flags of a training run. A lesson with more flags adds them to the returned parser.

    Args:
        name: of the script without .py; runs/name is where it writes.
        optimizers: those that --optimizer offers; the first is the default.
    """
    releases.check()
    parser = Parser(prog=f"{name}.py", formatter_class=Formatter)
    add = parser.add_argument
    add(
        "--data",
        type=given,
        help="wikitext-2, builtin, random or a folder; without it wikitext-2 if cached, else builtin",
    )
    add("--out", type=given, default=f"runs/{name}", help="folder for checkpoints and metrics")
    add(
        "--init",
        type=given,
        metavar="FOLDER",
        help="start from the weights in a folder that ./workbook export has written",
    )
    add("--epochs", type=whole(1), default=3, help="passes over the training set")
    add(
        "--max-steps",
        type=whole(0),
        default=0,
        help="train for at most this many steps; evaluation is not shortened; 0: no limit",
    )
    add("--size", choices=SIZES, default="laptop", help="model and batch: sets the five flags below that list sizes")
    batch = parser.add_mutually_exclusive_group().add_argument
    batch(
        "--batch-size", type=whole(1), help="sequences per step, over all ranks; strong scaling" + by_size("batch_size")
    )
    batch("--batch-size-per-rank", type=whole(1), help="sequences per step for each data-parallel rank; weak scaling")
    add("--seq-len", type=whole(1), help="tokens in a sequence" + by_size("seq_len"))
    add("--dim", type=whole(1), help="width of the model" + by_size("dim"))
    add("--heads", type=whole(1), help="attention heads; must divide --dim" + by_size("heads"))
    add("--layers", type=whole(1), help="Transformer blocks" + by_size("layers"))
    add("--block", choices=("gpt", "llama"), default="gpt", help="what the model consists of; llama: utils/llama.py")
    add("--kv-heads", type=whole(1), help="heads of keys and values in a llama block; without it, as many as --heads")
    add("--dropout", type=real(0.0, below=1.0), default=0.0, help="fraction of activations dropped in training")
    add("--optimizer", choices=optimizers, default=optimizers[0], help="update rule of the weights")
    add("--lr", type=real(0.0), default=1e-3, help="learning rate")
    add("--weight-decay", type=real(0.0), default=0.01, help="weight decay: pull of the weights towards zero")
    add("--clip", type=real(0.0), default=1.0, help="largest norm of the gradient; 0: no limit")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the matrix products (autocast)")
    add("--seed", type=whole(0), default=0, help="seed of the initial weights and of the order of the data")
    # A batch is slices of a tensor in memory: 0.1 % of a step (README), 2.5 ms for 96 sequences of 256. Sending it from
    # a worker to the rank took 2 to 18 times as long, and starting the worker took 0.1 to 0.6 s more in each epoch
    # (measured on a busy two-core machine). Workers pay off when samples are read from files, decoded or tokenized.
    add("--workers", type=whole(0, 1024), default=0, help="processes that load data; 0: this text is in memory already")
    add("--log-every", type=whole(1), default=10, help="steps between lines in metrics.jsonl")
    add("--tensorboard", action="store_true", help="also write the metrics for TensorBoard")
    device = "auto: GPUs if torch sees them, else CPUs; cuda: NVIDIA's or AMD's GPUs; xpu: Intel's"
    add("--device", choices=("auto", "cpu", "cuda", "xpu"), default="auto", help=device)
    add("--device-memory", type=size, metavar="SIZE", help="stop when a rank's tensors take more, say 300MB")
    add("--record", action="store_true", help="record each rank's resources, once a second, for ./workbook report")
    add("--watch", action="store_true", help="record what each rank waits for; ./workbook run reports a hang with it")
    return parser


def given(text: str) -> str:
    """A type for argparse: any text except the empty one, which the shell substitutes for an unset variable."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; is a variable unset?")
    return text


def by_size(name: str) -> str:
    """The end of a flag's help: its value for each --size."""
    return f" ({', '.join(f'{size}: {values[name]}' for size, values in SIZES.items())})"


def whole(at_least: int, at_most: int = 2**63 - 1) -> Callable[[str], int]:
    """A type for argparse: an integer in [at_least, at_most]; without its own limit, as large as torch takes."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < at_least:
            raise argparse.ArgumentTypeError(f"{value} is less than {at_least}")
        if value > at_most:
            raise argparse.ArgumentTypeError(f"{value} is more than {at_most}")
        return value

    return parse


def real(at_least: float, below: float = math.inf) -> Callable[[str], float]:
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
    if not found or found[2] not in units or not 0 < float(found[1]) < 1e15:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size with its unit, such as 300MB or 1.5GB")
    return int(float(found[1]) * units[found[2]])

"""The flags of a run over five axes, and of its experts; and their constraints."""

import argparse
import importlib.util

from utils.arguments import real, whole
from utils.compare_plan import WATCHED
from utils.distributed import fail, set_batch_size
from utils.llama_sizes import cannot_split
from utils.pipeline_flags import SCHEDULES, check_pipeline


def add_hybrid_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--dp", type=whole(1), default=1, help="copies of everything, which divide the batch among them")
    add(
        "--shard",
        type=whole(0),
        default=0,
        help="ranks that divide the batch and everything they hold; 0: all ranks that are left",
    )
    add("--cp", type=whole(1), default=1, help="ranks that divide the tokens of a sequence, and everything they hold")
    add(
        "--cp-method", choices=("ring", "ulysses"), default="ring", help="how attention reaches the other ranks' tokens"
    )
    add("--tp", type=whole(1), default=1, help="ranks that split each layer; at most one node's")
    add("--pp", type=whole(1), default=1, help="ranks in a pipeline")
    add("--schedule", choices=SCHEDULES, default="1f1b", help="order of the work; interleaved has two stages per rank")
    add("--microbatches", type=whole(0), default=0, help="micro-batches in a pipeline's batch; 0: as many as --pp")
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--sequence-parallel", action="store_true", help="split the stream between the layers along the sequence, too")
    add("--experts", type=whole(0), default=0, help="experts in each block, in place of its MLP; 0: a plain model")
    add("--top-k", type=whole(1), default=2, help="experts that compute a token")
    add("--ep", type=whole(1), default=1, help="ranks that divide the experts; they are ranks of --shard and --cp")
    add("--bias-rate", type=real(0.0), default=0.001, help="how far a step moves a bias to balance the experts' load")
    add("--compare", action="store_true", help="print a step as predicted by the planner and as measured")


def check_hybrid(args: argparse.Namespace, ranks: int) -> None:
    """Stop with one line unless these flags fit this number of ranks. Fills in --shard and --microbatches."""
    if args.compare and importlib.util.find_spec("utils.costs") is None:  # in a release it is sealed
        fail("--compare needs utils/costs, which has answers of lessons: ./workbook open plan")
    if args.compare and 0 < args.max_steps <= WATCHED:
        fail(f"--compare watches step {WATCHED + 1}, and --max-steps {args.max_steps} ends before it")
    others = args.dp * args.cp * args.tp * args.pp
    args.shard = args.shard or max(1, ranks // others)
    if ranks != others * args.shard:
        cp = f"--cp {args.cp} × " if args.cp > 1 else ""
        fail(
            f"--dp {args.dp} × --shard {args.shard} × {cp}--tp {args.tp} × --pp {args.pp} "
            f"is {others * args.shard} ranks, and there {'is' if ranks == 1 else 'are'} {ranks}"
        )
    if args.dim % args.heads:
        fail(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    if args.heads % args.tp:
        fail(f"--heads {args.heads} is not divisible by --tp {args.tp}: no head is on two ranks")
    if problem := cannot_split(args):
        fail(problem)
    check_context(args)
    if args.sequence_parallel and args.seq_len // args.cp % args.tp:
        of = f"--seq-len {args.seq_len}" + (f" on --cp {args.cp} ranks" if args.cp > 1 else "")
        fail(f"{of} is not divisible by --tp {args.tp}, as --sequence-parallel needs it")
    check_experts(args)
    if args.dropout and args.tp > 1:
        fail(f"--dropout {args.dropout:g} with --tp {args.tp}: the masks would not be the serial run's")
    set_batch_size(args, args.dp * args.shard, f"ranks of the data axes (--dp {args.dp} × --shard {args.shard})")
    args.microbatches = args.microbatches or args.pp
    check_pipeline(args, ranks // (args.tp * args.cp))


def check_context(args: argparse.Namespace) -> None:
    """Stop with one line unless --cp can divide a sequence."""
    if args.cp == 1:
        return
    if args.cp_method == "ulysses" and args.heads // args.tp % args.cp:
        of = f"--heads {args.heads}" + (f" on --tp {args.tp} ranks" if args.tp > 1 else "")
        fail(f"{of} is not divisible by --cp {args.cp}: Ulysses cannot split heads; a ring can")
    pieces = args.cp if args.cp_method == "ulysses" else 2 * args.cp
    if args.seq_len % pieces:
        fail(f"--seq-len {args.seq_len} is not divisible by {pieces}, the pieces of --cp {args.cp} by {args.cp_method}")
    if args.dropout:
        fail(f"--dropout {args.dropout:g} with --cp {args.cp}: the masks would not be the serial run's")


def check_experts(args: argparse.Namespace) -> None:
    """Stop with one line unless --ep can divide the experts, and ranks of --shard and --cp."""
    if not args.experts:
        if args.ep > 1:
            fail(f"--ep {args.ep} divides experts, and there are none: give --experts")
        return
    if args.top_k > args.experts:
        fail(f"--top-k {args.top_k} is more than --experts {args.experts}")
    if args.experts % args.ep:
        fail(f"--experts {args.experts} is not divisible by --ep {args.ep}")
    if args.shard * args.cp % args.ep:
        fail(
            f"--ep {args.ep} does not divide the {args.shard * args.cp} ranks of --shard {args.shard} × --cp {args.cp}"
        )
    if args.sequence_parallel and args.tp > 1:
        fail("--sequence-parallel with --experts: a router sees all tokens of its rank; leave out one of the two")

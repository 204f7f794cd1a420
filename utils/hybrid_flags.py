"""The flags of a run over four axes, and their constraints."""

import argparse
import importlib.util

from utils.arguments import whole
from utils.compare_plan import WATCHED
from utils.distributed import fail, set_batch_size
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
    add("--tp", type=whole(1), default=1, help="ranks that split each layer; at most one node's")
    add("--pp", type=whole(1), default=1, help="ranks in a pipeline")
    add("--schedule", choices=SCHEDULES, default="1f1b", help="order of the work; interleaved has two stages per rank")
    add("--microbatches", type=whole(0), default=0, help="micro-batches in a pipeline's batch; 0: as many as --pp")
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--sequence-parallel", action="store_true", help="split the stream between the layers along the sequence, too")
    add("--compare", action="store_true", help="print a step as predicted by the planner and as measured")


def check_hybrid(args: argparse.Namespace, ranks: int) -> None:
    """Stop with one line unless these flags fit this number of ranks. Fills in --shard and --microbatches."""
    if args.compare and importlib.util.find_spec("utils.costs") is None:  # in a release it is sealed
        fail("--compare needs utils/costs, which has answers of lessons: ./workbook open plan")
    if args.compare and 0 < args.max_steps <= WATCHED:
        fail(f"--compare watches step {WATCHED + 1}, and --max-steps {args.max_steps} ends before it")
    others = args.dp * args.tp * args.pp
    args.shard = args.shard or max(1, ranks // others)
    if ranks != others * args.shard:
        fail(
            f"--dp {args.dp} × --shard {args.shard} × --tp {args.tp} × --pp {args.pp} "
            f"is {others * args.shard} ranks, and there {'is' if ranks == 1 else 'are'} {ranks}"
        )
    if args.dim % args.heads:
        fail(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    if args.heads % args.tp:
        fail(f"--heads {args.heads} is not divisible by --tp {args.tp}: no head is on two ranks")
    if args.sequence_parallel and args.seq_len % args.tp:
        fail(f"--seq-len {args.seq_len} is not divisible by --tp {args.tp}, as --sequence-parallel needs it")
    if args.dropout and args.tp > 1:
        fail(f"--dropout {args.dropout:g} with --tp {args.tp}: the masks would not be the serial run's")
    set_batch_size(args, args.dp * args.shard, f"ranks of the data axes (--dp {args.dp} × --shard {args.shard})")
    args.microbatches = args.microbatches or args.pp
    check_pipeline(args, ranks // args.tp)

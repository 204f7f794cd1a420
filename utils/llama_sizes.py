"""The sizes of `--block llama`, as numbers: for flags and reports, which do without torch."""

import argparse
import math


def hidden_width(dim: int) -> int:
    """8/3 of the width, so that three matrices have the parameters of a plain MLP's two; rounded up to a multiple of
    48, which 2, 3, 4, 6, 8, 12 and 16 ranks divide.
    """
    return 48 * math.ceil(dim / 18)


def attention_parameters(dim: int, n_heads: int, kv_heads: int) -> int:
    """Of a block's q, k, v and out."""
    return 2 * dim**2 + 2 * dim * (dim // n_heads) * kv_heads


def mlp_parameters(dim: int) -> int:
    """Of a block's MLP: the gate, what it lets through, and down."""
    return 3 * dim * hidden_width(dim)


def cannot_split(args: argparse.Namespace) -> str:
    """Why --tp ranks cannot divide the layers of a llama block; "" if they can, and for a gpt block."""
    if args.kv_heads and args.kv_heads % args.tp and args.tp % args.kv_heads:
        return f"--tp {args.tp} and --kv-heads {args.kv_heads}: one of them must divide the other"
    if args.kv_heads and hidden_width(args.dim) % args.tp:
        return f"the {hidden_width(args.dim)} hidden numbers of a llama block are not divisible by --tp {args.tp}"
    return ""

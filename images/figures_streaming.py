"""The figure of streaming_training: how random an order is that is shuffled in blocks, with a buffer."""

import numpy as np
from ink import BLUE
from matplotlib.figure import Figure

ROWS, BLOCK, BATCH = 512, 16, 24


def in_blocks(buffer: int, seed: int = 3) -> np.ndarray:
    """Places in the text, in the order of training: blocks in a random order, mixed `buffer` at a time."""
    chance = np.random.RandomState(seed)
    order = np.arange(ROWS).reshape(-1, BLOCK)[chance.permutation(ROWS // BLOCK)]
    pieces = order.reshape(-1, buffer * BLOCK)
    return np.concatenate([piece[chance.permutation(piece.size)] for piece in pieces])


def from_one_block(order: np.ndarray) -> float:
    """Of the pairs of rows in a batch, the fraction from one block."""
    batches = order[: ROWS // BATCH * BATCH].reshape(-1, BATCH) // BLOCK
    same = batches[:, :, None] == batches[:, None, :]
    return (same.sum() - same.shape[0] * BATCH) / (same.shape[0] * BATCH * (BATCH - 1))


def streaming_order() -> Figure:
    """Which row of the text is trained on when, for buffers of 1, 4 and 16 blocks, and for a full shuffle."""
    figure = Figure(figsize=(6, 5), facecolor="white", layout="constrained")
    cases = (
        ("a buffer of 1 block", in_blocks(1)),
        ("4 blocks", in_blocks(4)),
        ("16 blocks", in_blocks(16)),
        ("all rows shuffled", in_blocks(ROWS // BLOCK)),
    )
    for axes, (name, order) in zip(figure.subplots(2, 2, sharex=True, sharey=True).flat, cases):
        axes.plot(order, ".", color=BLUE, markersize=2.5)
        axes.set_title(f"{name}: {from_one_block(order):.0%} of a batch's\npairs are of one block", fontsize=10)
        axes.set(xlim=(0, ROWS), ylim=(0, ROWS), xticks=(0, 256, 512), yticks=(0, 256, 512))
        axes.spines[["top", "right"]].set_visible(False)
    figure.supxlabel("when it is trained on", fontsize=10)
    figure.supylabel("row of the text", fontsize=10)
    return figure


FIGURES = {"streaming_order": streaming_order}

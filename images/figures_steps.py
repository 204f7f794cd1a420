"""DDP and FSDP step by step: the frames of the pages that one can page through."""

from collections.abc import Iterator, Sequence

from ink import BLUE, DARK, GREEN, INK, ORANGE, PALE, arrow, box, canvas, cell, fill, note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

RANKS = (BLUE, ORANGE, GREEN)
WORLD = range(3)


def devices(height: float, says: str) -> tuple[Figure, Axes]:
    """Three devices side by side, and below them what is done."""
    figure, axes = canvas(height)
    for rank in WORLD:
        box(axes, 0.2 + 6.0 * rank, 2.2, 5.6, height - 2.5, "#fbfbfb", "#b5b5b5")
        title(axes, 3.0 + 6.0 * rank, height - 1.0, f"rank {rank}", 10)
    title(axes, 9.0, 1.0, says)
    return figure, axes


def between(axes: Axes, y: float) -> None:
    """Arrows that join the three devices: they communicate."""
    for left in (5.5, 11.5):
        arrow(axes, (left, y), (left + 1.0, y), INK, arrowstyle="<|-|>", linewidth=2.4, mutation_scale=14)


def ddp_frame(
    says: str,
    weights: Sequence[str],
    samples: bool = False,
    loss: bool = False,
    gradients: Sequence[str] = (),
    sent: Sequence[int] = (),
    sending: str = "",
) -> Figure:
    """The three devices: weights of three layers, four samples, a loss, and gradients, "own", "mean" or none, by layer.

    `sent` has the layers whose gradients are being sent; `sending` says what else is: "weights".
    """
    figure, axes = devices(12.6, says)
    for rank, colour in enumerate(RANKS):
        left = 0.5 + 6.0 * rank
        note(axes, left, 10.5, "weights", ha="left")
        for layer, text in enumerate(weights):
            own = text == "own"
            shown = f"{'abc'[rank]}{layer}" if own else text.format(layer)
            cell(axes, left + 1.7 * layer, 9.0, 1.6, 1.1, [colour if own else PALE], shown)
        if samples:
            note(axes, left, 8.3, "samples", ha="left")
            for place in range(4):
                cell(axes, left + 1.26 * place, 7.0, 1.2, 1.0, [colour], str(4 * rank + place + 1))
        if loss:
            write(axes, left, 6.3, f"loss of samples {4 * rank + 1} to {4 * rank + 4}", ha="left")
        if gradients:
            note(axes, left, 5.2, "gradients", ha="left")
            for layer, kind in enumerate(gradients):
                colours = {"own": [colour], "mean": RANKS, "": ["#f4f4f4"]}[kind]
                cell(axes, left + 1.7 * layer, 3.6, 1.6, 1.1, colours, {"own": "own", "mean": "mean", "": ""}[kind])
    if sending == "weights":
        between(axes, 9.55)
    for layer in sent:
        for rank in WORLD:
            fill(axes, 0.5 + 6.0 * rank + 1.7 * layer, 3.6, 1.6, 1.1, "none", edgecolor=DARK, linewidth=2.2)
    if sent:
        between(axes, 4.15)
    return figure


def ddp_frames() -> Iterator[tuple[str, Figure]]:
    """(What happens, the drawing) of each step of DDP on three ranks."""
    first, same, new = ["own"] * 3, ["w{}"] * 3, ["w{}′"] * 3
    none, mean = [""] * 3, ["mean"] * 3
    yield (
        "Each rank is a process with its own GPU. Each builds the whole model, and each draws its own first weights.",
        ddp_frame("one process, one model on each GPU", first),
    )
    yield (
        "DDP's constructor broadcasts rank 0's weights: from here on all three models are equal.",
        ddp_frame("broadcast of rank 0's weights", same, sending="weights"),
    )
    yield (
        "The sampler divides the batch: each rank reads four of the twelve samples, and no rank reads another's.",
        ddp_frame("each rank reads its own samples", same, samples=True),
    )
    yield (
        "Each rank runs the forward pass on its samples. Nothing is sent. The losses differ, because the samples do.",
        ddp_frame("forward", same, samples=True, loss=True),
    )
    yield (
        "The backward pass starts with the last layer. Its gradient comes from this rank's four samples only.",
        ddp_frame("backward: the last layer", same, True, True, ["", "", "own"]),
    )
    yield (
        "A full bucket is sent at once: the all-reduce of the last layer's gradients runs while the backward pass is"
        " still in the layer before it.",
        ddp_frame("the backward pass continues while the bucket is sent", same, True, True, ["", "own", "own"], [2]),
    )
    yield (
        "The first of the averages has arrived. The next buckets are in flight; the last one cannot be hidden,"
        " because no work is left.",
        ddp_frame("the remaining buckets are sent", same, True, True, ["own", "own", "mean"], [0, 1]),
    )
    yield (
        "All gradients are now the mean over all twelve samples: what one process would have computed.",
        ddp_frame("every rank has the same gradients", same, True, True, mean),
    )
    yield (
        "Equal weights, equal gradients, equal optimizer state: each rank takes the same step, and the models stay"
        " equal without a further message. On to the next batch.",
        ddp_frame("the same optimizer step on each rank", new, gradients=none),
    )


def fsdp_frame(
    says: str, whole: Sequence[int] = (), gradients: Sequence[str] = ("", "", ""), running: int | None = None,
    sending: int | None = None, new: bool = False,
) -> Figure:  # fmt: skip
    """The three devices: of each of three layers the weights and the gradient, in three shards.

    `whole` has the layers whose weights are gathered; a layer's gradient is "", "own" (whole, of this rank's samples)
    or "shard" (the mean, of this rank's shard). `running` is the layer that computes,
    `sending` the one that communicates.
    """
    figure, axes = devices(12.2, says)
    for rank, colour in enumerate(RANKS):
        left = 0.5 + 6.0 * rank
        note(axes, left + 1.6, 10.2, "weights")
        note(axes, left + 4.05, 10.2, "gradients")
        for layer in WORLD:
            y = 8.2 - 2.1 * layer
            write(axes, left + 0.15, y + 0.6, str(layer))
            for part, owner in enumerate(RANKS):
                has = part == rank or layer in whole
                shade = owner if has else "#f0f0f0"
                cell(axes, left + 0.6 + 0.68 * part, y, 0.68, 1.2, [shade], "′" if new and part == rank else "")
                kind = gradients[layer]
                if kind == "own":
                    shades = [colour]
                else:
                    shades = RANKS if kind == "shard" and part == rank else ["#f0f0f0"]
                cell(axes, left + 3.05 + 0.68 * part, y, 0.68, 1.2, shades)
            if layer == running:
                fill(axes, left + 0.45, y - 0.15, 2.34, 1.5, "none", edgecolor=DARK, linewidth=2.2)
    if sending is not None:
        between(axes, 8.8 - 2.1 * sending)
    return figure


def fsdp_frames() -> Iterator[tuple[str, Figure]]:
    """(What happens, the drawing) of each step of FSDP on three ranks."""
    none = ("", "", "")
    yield (
        "The weights of each layer (a row) are cut into three shards; each rank keeps one, in its colour. No GPU has"
        " room for the whole model, and none needs it.",
        fsdp_frame("at rest: shards only"),
    )
    yield (
        "Forward. Before layer 0 computes, an all-gather makes it whole on every rank.",
        fsdp_frame("all-gather of layer 0", [0], sending=0),
    )
    yield (
        "Each rank runs layer 0 on its own samples. At the same time, layer 1 is prefetched.",
        fsdp_frame("layer 0 runs, layer 1 is gathered", [0, 1], running=0, sending=1),
    )
    yield (
        "Layer 0 is freed at once: only the shard stays. Layer 1 runs, layer 2 is gathered. Two layers are whole at any"
        " time, never all three.",
        fsdp_frame("layer 1 runs, layer 2 is gathered", [1, 2], running=1, sending=2),
    )
    yield (
        "Layer 2 runs, and each rank has the loss of its own samples. Layer 2 stays whole: it is needed again at once.",
        fsdp_frame("layer 2 runs", [2], running=2),
    )
    yield (
        "Backward, from the last layer to the first. Each rank has layer 2's whole gradient, for its own samples only."
        " Layer 1 is gathered for the second time.",
        fsdp_frame("backward of layer 2, layer 1 is gathered", [1, 2], ("", "", "own"), running=2, sending=1),
    )
    yield (
        "A reduce-scatter averages layer 2's gradient and leaves each rank the shard that it owns. Meanwhile layer 1"
        " runs backward.",
        fsdp_frame("reduce-scatter of layer 2's gradient", [1], ("", "own", "shard"), running=1, sending=2),
    )
    yield (
        "The same happens to layer 1's gradient, while layer 0, gathered again, runs backward.",
        fsdp_frame("reduce-scatter of layer 1's gradient", [0], ("own", "shard", "shard"), running=0, sending=1),
    )
    yield (
        "The last reduce-scatter has nothing to hide behind. Then no rank has a whole layer or a whole gradient.",
        fsdp_frame("reduce-scatter of layer 0's gradient", [], ("shard", "shard", "shard"), sending=0),
    )
    yield (
        "Each rank's optimizer updates its shards, with the averaged gradient and the optimizer state of these shards"
        " alone. Nothing is sent: the next forward pass gathers the new weights.",
        fsdp_frame("optimizer step on the shards", [], none, new=True),
    )


STEPS = {"ddp_steps": ("DDP, step by step", ddp_frames), "fsdp_steps": ("FSDP, step by step", fsdp_frames)}

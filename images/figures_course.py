"""The figures of the README, and the model as a black box."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

from ink import AXES, BLUE, DARK, GREEN, GREY, INK, MIDDLE, MONO, ORANGE, PALE, PINK, RED, arrow, box, canvas, fill
from ink import note, title, write
from matplotlib.axes import Axes
from matplotlib.figure import Figure

HERE = Path(__file__).resolve().parent
LAYERS = (BLUE, ORANGE, GREEN, PINK)
ALL = range(4)


def black_box() -> Figure:
    """Text in, text out: a language model gives each word that may come next its probability."""
    figure, axes = canvas(6.4)
    title(axes, 2.6, 5.6, "text in")
    for i, word in enumerate(("the", "cat", "sat", "on", "the")):
        fill(axes, 0.4 + 0.9 * i, 3.0, 0.85, 1.2, PALE)
        write(axes, 0.825 + 0.9 * i, 3.6, word)
    arrow(axes, (5.1, 3.6), (6.1, 3.6), INK)
    box(axes, 6.2, 2.0, 4.6, 3.2, DARK, DARK)
    title(axes, 8.5, 4.1, "the model", color="white")
    write(axes, 8.5, 3.1, "millions of\nweights", color="white")
    arrow(axes, (10.9, 3.6), (11.9, 3.6), INK)
    title(axes, 14.6, 5.6, "text out")
    for row, (word, probability) in enumerate((("mat", 0.41), ("floor", 0.22), ("sofa", 0.13), ("…", 0.24))):
        y = 4.0 - 0.95 * row
        write(axes, 13.5, y + 0.35, word, ha="right")
        fill(axes, 13.7, y, 6 * probability, 0.7, BLUE if row < 3 else MIDDLE)
        write(axes, 13.9 + 6 * probability, y + 0.35, f"{probability:.2f}", ha="left")
    note(axes, 8.5, 0.5, "training changes the weights until real text is likely")
    return figure


def device(
    axes: Axes, x: float, y: float, width: float, held: Callable[[int, int], float], batch: Sequence[str]
) -> None:
    """A device that holds quarter j of layer i as strongly as `held(i, j)`, and of the batch's four samples those whose
    strings are not empty: "all" in full, a digit for one quarter of the tokens, "on" as activations passed on.
    """
    box(axes, x, y, width, 4.0, "#fbfbfb", "#b5b5b5")
    part, left = (width - 0.2) / 4, x + 0.1
    for layer, colour in enumerate(LAYERS):
        for quarter in ALL:
            strength = held(layer, quarter)
            place = (left + quarter * part, y + 1.05 + 0.72 * layer, part, 0.58)
            fill(axes, *place, colour if strength else PALE, alpha=strength or None)
    for sample, has in enumerate(batch):
        place, wide = left + sample * part + 0.03, part - 0.06
        fill(axes, place, y + 0.25, wide, 0.55, {"all": DARK, "on": MIDDLE}.get(has, PALE))
        if has.isdigit():
            fill(axes, place + int(has) * wide / 4, y + 0.25, wide / 4, 0.55, DARK)


def course() -> Figure:
    """One script made parallel in seven ways: what of the model and of the batch each device holds."""
    whole, none = ["all"] * 4, [""] * 4

    def experts(layer: int, quarter: int, number: int) -> float:
        return 1 if layer % 2 == 0 or quarter == number else 0

    panels = (
        ("One device", None, "single_gpu_training", "the whole model, the whole batch;\nthree devices idle",
         lambda n, i, j: n == 0, lambda n: whole if n == 0 else none),
        ("Data parallel (DDP)", "dp", "ddp_training", "a whole model on each device;\nthe batch is split",
         lambda n, i, j: 1, lambda n: ["all" if s == n else "" for s in ALL]),
        ("Sharded (FSDP)", "shard", "fsdp_training", "a quarter of each layer on each;\ngathered while it computes",
         lambda n, i, j: 1 if j == n else 0.28, lambda n: ["all" if s == n else "" for s in ALL]),
        ("Tensor parallel", "tp", "tp_training", "each layer computed in quarters;\npartial results are summed",
         lambda n, i, j: j == n, lambda n: whole),
        ("Pipeline parallel", "pp", "pipeline_training",
         "each device has some layers; micro-\nbatches pass through them all",
         lambda n, i, j: i == n, lambda n: whole if n == 0 else ["on"] * 4),
        ("Context parallel", "cp", "06_context_parallel",
         "a whole model on each device;\neach sample's tokens are split",
         lambda n, i, j: 1, lambda n: [str(n)] * 4),
        ("Expert parallel", "ep", "07_expert_parallel",
         "attention on each device, experts\nsplit; tokens visit their experts",
         lambda n, i, j: experts(i, j, n), lambda n: ["all" if s == n else "" for s in ALL]),
    )  # fmt: skip
    figure, axes = canvas(33.6)
    for number, (name, axis, script, says, held, batch) in enumerate(panels):
        x, y = panel(axes, number, name, [axis] if axis else [], script, says)
        for n in ALL:
            device(axes, x + 2.15 * n, y, 2.0, lambda i, j, n=n, held=held: held(n, i, j), batch(n))
            if axis == "pp" and n < 3:
                arrow(
                    axes,
                    (x + 2.15 * n + 1.6, y + 1.4 + 0.72 * n),
                    (x + 2.15 * n + 2.5, y + 2.0 + 0.72 * n),
                    INK,
                    zorder=3,
                )
    says = "dp 2 × pp 2 × tp 2, on 8 devices"
    x, y = panel(axes, 7, "Combined (3-D)", ["dp", "pp", "tp"], "hybrid_training", says)
    for n in range(8):
        data, stage, half = n // 4, n // 2 % 2, n % 2
        mine = ["all" if stage == 0 else "on"] * 2

        def held(layer: int, quarter: int, stage: int = stage, half: int = half) -> bool:
            return layer // 2 == stage and quarter // 2 == half

        device(
            axes, x + 1.06 * n + (0.1 if data else 0), y, 1.0, held, [*none[:2], *mine] if data else [*mine, *none[:2]]
        )
    entries = (
        (BLUE, 1, "held: a colour is a layer", 0.4, 1.6), (PALE, 1, "held elsewhere", 9.4, 1.6),
        (BLUE, 0.28, "gathered when needed", 0.4, 0.7), (DARK, 1, "samples", 9.4, 0.7),
        (MIDDLE, 1, "activations", 13.2, 0.7),
    )  # fmt: skip
    for colour, alpha, meaning, x, y in entries:
        fill(axes, x, y - 0.3, 0.6, 0.6, colour, alpha=alpha)
        write(axes, x + 0.8, y, meaning, ha="left")
    return figure


def panel(axes: Axes, number: int, name: str, its: Sequence[str], script: str, says: str) -> tuple[float, float]:
    """The heading of a panel, with the colours of its axes; returns where its devices stand."""
    x, y = 0.3 + 9.0 * (number % 2), 26.0 - 7.9 * (number // 2)
    for place, axis in enumerate(its):
        fill(axes, x + 0.32 * place, y + 6.55, 0.26, 0.75, AXES[axis])
    title(axes, x + (0.32 * len(its) + 0.15 if its else 0), y + 6.9, name, 12, ha="left")
    write(axes, x, y + 6.1, script, ha="left", color=GREY, **MONO)
    write(axes, x, y + 4.95, says, ha="left", linespacing=1.25)
    return x, y


def verdict() -> Figure:
    """From the student's file to a verdict that is reached outside of it."""
    figure, axes = canvas(20.6)
    box(axes, 0.3, 15.6, 5.9, 3.4)
    title(axes, 3.25, 18.2, "your file")
    write(axes, 3.25, 17.1, "train/ddp_training.py", **(MONO | {"fontsize": 10}))
    write(axes, 3.25, 16.2, "# TODO 10: …", color=GREY, **MONO)
    note(axes, 10.9, 20.0, "a fresh process for each rank")
    for rank, colour in enumerate((BLUE, ORANGE, GREEN)):
        y = 18.0 - 1.8 * rank
        box(axes, 8.0, y, 5.6, 1.3, colour, colour)
        write(axes, 10.8, y + 0.65, f"rank {rank}: your code")
        arrow(axes, (6.3, 17.0), (7.9, y + 0.65))
        axes.plot([13.6, 15.6], [y + 0.65] * 2, color=GREY, linewidth=1.4)
    arrow(axes, (15.6, 18.65), (15.6, 13.3))
    note(axes, 15.3, 13.9, "events, evidence", ha="right")
    box(axes, 8.0, 8.3, 9.7, 5.0, "#f4f4f4", INK, linewidth=1.5)
    title(axes, 12.85, 12.5, "the judge")
    write(axes, 12.85, 11.6, "runs none of your code")
    write(axes, 12.85, 9.8, "Do the calls of all ranks match?\nIs the result one process's?", linespacing=1.5)
    box(axes, 0.3, 11.9, 5.9, 1.4, PALE, PALE)
    write(axes, 3.25, 12.6, "the serial run")
    arrow(axes, (6.3, 12.6), (7.9, 12.6))
    for y, edge, ink, head, more in (
        (9.9, "#00815e", "#00694d", "right", ""),
        (7.8, RED, RED, "wrong", "rank, line, TODO"),
    ):
        box(axes, 0.3, y, 5.9, 1.5, "white", edge, linewidth=1.5)
        title(axes, 3.25, y + (1.05 if more else 0.75), head, color=ink)
        write(axes, 3.25, y + 0.4, more) if more else None
        arrow(axes, (7.9, y + 0.75), (6.3, y + 0.75))
    title(axes, 0.3, 6.9, "A deadlock, known at once:", ha="left")
    for rank, (colour, y) in enumerate(((BLUE, 5.1), (ORANGE, 3.7))):
        write(axes, 1.9, y + 0.5, f"rank {rank}", ha="right")
        box(axes, 2.2, y, 3.4 if rank == 0 else 5.2, 1.0, colour, colour)
    box(axes, 5.7, 5.1, 6.4, 1.0, "white", BLUE, linestyle="--", linewidth=1.5)
    write(axes, 8.9, 5.6, "waits in all_reduce …")
    write(axes, 7.7, 4.2, "has finished", ha="left")
    said = "deadlock: rank 0 waits in all_reduce (TODO 10);\nrank 1 never comes: it has finished"
    box(axes, 0.3, 0.4, 17.4, 2.5, "#fff4f2", RED, linewidth=1.5)
    write(axes, 0.9, 1.65, said, ha="left", linespacing=1.5, **MONO)
    return figure


def wikitext2() -> Figure:
    """A run of single_gpu_training on WikiText-2; its record, metrics.jsonl, is kept with the figures."""
    lines = [json.loads(line) for line in (HERE / "wikitext2.jsonl").read_text("utf-8").splitlines()]
    steps, epochs = ([line for line in lines if line["kind"] == kind] for kind in ("step", "epoch"))
    test = math.exp(next(line for line in lines if line["kind"] == "test")["loss"])
    figure = Figure(figsize=(6, 3.4), facecolor="white", layout="constrained")
    axes = figure.subplots()
    training = [math.exp(line["loss"]) for line in steps]
    axes.plot([line["step"] for line in steps], training, color=BLUE, linewidth=1, label="training")
    validation = [math.exp(line["validation_loss"]) for line in epochs]
    axes.plot([line["step"] for line in epochs], validation, "o", color=RED, label="validation")
    axes.axhline(test, color=DARK, linewidth=1, linestyle="--", label=f"test: {test:.0f}")
    axes.set(yscale="log", xlabel="step", ylabel="perplexity")
    ticks = [100, 200, 500, 1000, 2000, 5000, 10000]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_xticks(range(0, 2501, 500))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


FIGURES = {"black_box": black_box, "course": course, "verdict": verdict, "wikitext2": wikitext2}

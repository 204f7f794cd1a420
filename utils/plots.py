"""Draw the records of runs."""

import json
from collections.abc import Sequence
from pathlib import Path


def loss_curve(metrics_jsonl: Path | Sequence[Path], png: Path, labels: Sequence[str] | None = None) -> None:
    """Draw training loss by step and validation loss by epoch, into a PNG.

    Args:
        metrics_jsonl: one record, or several to lay over one another.
        png: the file to write; its folder is made.
        labels: a name for each record; by default the name of its folder.

    Raises:
        ValueError: as many labels as records are needed.
    """
    # A Figure of its own, without pyplot: no backend is chosen, no global state touched.
    from matplotlib.figure import Figure

    records = [Path(metrics_jsonl)] if isinstance(metrics_jsonl, (str, Path)) else [Path(p) for p in metrics_jsonl]
    labels = labels or [record.resolve().parent.name for record in records]
    if len(labels) != len(records):
        raise ValueError(f"{len(records)} records but {len(labels)} labels")

    figure = Figure(figsize=(10, 4), layout="constrained")
    by_step, by_epoch = figure.subplots(1, 2, sharey=True)
    for record, label in zip(records, labels, strict=True):
        lines = [json.loads(line) for line in record.read_text(encoding="utf-8").splitlines()]
        steps = [line for line in lines if line["kind"] == "step"]
        epochs = [line for line in lines if line["kind"] == "epoch"]
        by_step.plot([line["step"] for line in steps], [line["loss"] for line in steps], label=label)
        by_epoch.plot(
            [line["epoch"] for line in epochs], [line["validation_loss"] for line in epochs], marker="o", label=label
        )
    by_step.set(title="Training", xlabel="step", ylabel="loss (nats per token)")
    by_epoch.set(title="Validation", xlabel="epoch")
    by_epoch.xaxis.get_major_locator().set_params(integer=True)
    for axes in (by_step, by_epoch):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.3)
    by_epoch.legend(frameon=False)
    png = Path(png)
    png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(png, dpi=150)

"""What the checks of the script lessons share: a small corpus, and how to read what a run left."""

import io
import json
import random
import zipfile
from typing import Any

import torch

from grader.engine.checks import Wrong, expect


def corpus() -> dict[str, str]:
    """A small text of random words: every window is another one, and its lengths divide by nothing."""
    draw = random.Random(3)
    words = [f"w{i}" for i in range(49)]

    def lines(n_tokens):
        return "\n".join(" ".join(draw.choice(words) for _ in range(7)) for _ in range(n_tokens // 8)) + "\n"

    # 35 windows = 2 steps of 12 and 11 left over; 13 and 11 do not divide by 2, 3 or 4, and the last window is a short one.
    return {"data/train.txt": lines(35 * 8), "data/validation.txt": lines(12 * 8) + "w1 w2\n", "data/test.txt": lines(10 * 8) + "w3\n"}


def training(evidence: dict) -> dict[int, tuple[list, list]]:
    """step -> the windows (as tuples of words) that reached the model in training mode, and their loss."""
    steps = {}
    for forward in evidence["forwards"]:
        if forward["training"]:
            rows, losses = steps.setdefault(forward["step"], ([], []))
            rows += [tuple(row) for row in forward["x"].tolist()]
            losses.append(forward["loss"])
    return steps


def reported(run: Any, out: str = "out") -> list[dict]:
    """The losses in the metrics.jsonl that a run wrote, without what depends on the clock."""
    lines = [json.loads(line) for line in run.files[f"{out}/metrics.jsonl"].decode().splitlines()]
    return [{k: v for k, v in line.items() if k in ("kind", "step", "epoch", "loss", "validation_loss")} for line in lines]


def check_checkpoint(content: bytes, right: dict[str, torch.Tensor]) -> None:
    """It loads without a group, and holds the plain model's weights, which are `right`."""
    if zipfile.is_zipfile(io.BytesIO(content)):  # as torch.save writes it: nothing in it is packed, so nothing grows
        packed = [entry for entry in zipfile.ZipFile(io.BytesIO(content)).infolist() if entry.compress_type != zipfile.ZIP_STORED]
        expect(not packed, "the checkpoint is packed, which torch.save does not do", "plain entries", [entry.filename for entry in packed[:1]])
    try:
        saved = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise Wrong("the checkpoint does not load with torch.load(weights_only=True): it holds objects, not weights",
                    "a dictionary of tensors", str(error).splitlines()[0]) from None
    expect(isinstance(saved, dict) and isinstance(saved.get("model"), dict) and {"config", "epoch"} <= set(saved),
           "the checkpoint has lost an entry", "model, config, epoch", sorted(saved) if isinstance(saved, dict) else type(saved).__name__)
    wrapped = [name for name in saved["model"] if name.startswith("module.")]
    expect(not wrapped, f"the checkpoint holds the wrapper's names: {wrapped[:1]} instead of the plain model's", sorted(right)[:1], wrapped[:1])
    expect(set(saved["model"]) == set(right), "the checkpoint does not hold all weights of the model", sorted(right), sorted(saved["model"]))
    for name, weight in right.items():
        part = saved["model"][name]
        expect(type(part) is torch.Tensor, f"the checkpoint's {name} is a {type(part).__name__}, which only a process group can read", "a tensor",
               type(part).__name__)
        expect(part.shape == weight.shape, f"the checkpoint's {name} is a part of it", tuple(weight.shape), tuple(part.shape))
        expect(torch.equal(part, weight), f"the checkpoint's {name} is not the model's", "equal weights", "others")

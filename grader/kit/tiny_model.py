"""The small model of the script lessons, the same on each rank as in one process; and how it is saved twice."""

from collections.abc import Callable
from pathlib import Path

import torch

from grader.engine.inside.recording import record_files
from grader.kit.on_rank import saved_file, saved_files
from utils.model import TransformerLM

TINY = dict(vocab_size=50, dim=16, n_heads=2, n_layers=1, max_len=8)


def tiny_model(seed: int, **sizes: int) -> TransformerLM:
    """Of TINY's sizes, but for those that are given."""
    torch.manual_seed(seed)
    return TransformerLM(**TINY | sizes)


def tiny_batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x and y, (2, 8) each."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(50, (2, 8), generator=draw), torch.randint(50, (2, 8), generator=draw)


def save_twice(save: Callable[[int, Path, int], None]) -> list[str]:
    """Two models to one path, as model-best.pt is: the second one is to stay. `save(seed, path, epoch)` makes a model
    and has it saved. Returns the files that this rank wrote, all in that folder.
    """
    files = record_files()
    for seed, epoch in ((1, 1), (0, 3)):
        save(seed, saved_file(), epoch)
    return saved_files(files)

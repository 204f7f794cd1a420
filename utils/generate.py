"""Continues a text with a language model."""

from collections.abc import Sequence

import torch

from utils.model import TransformerLM


@torch.no_grad()
def continued(model: TransformerLM, words: Sequence[str], start: str, length: int, seed: int = 0) -> str:
    """`start` and `length` more words, each drawn from the model's distribution given all words before it.

    Args:
        words: the vocabulary that the model was trained with, by id.
        start: words of that vocabulary, with spaces between.
        seed: seed of the draws.

    Raises:
        ValueError: `start` is empty, or has a word that is not in the vocabulary.
    """
    ids = {word: number for number, word in enumerate(words)}
    if not start.split() or not ids.keys() >= set(start.split()):
        raise ValueError(f"start with words of the vocabulary, not with {start!r}")
    model.eval()
    generator = torch.Generator().manual_seed(seed)
    said = [ids[word] for word in start.split()]
    for _ in range(length):
        logits = model(torch.tensor([said[-model.max_len :]]))[0, -1]
        said.append(torch.multinomial(logits.float().softmax(dim=0), 1, generator=generator).item())
    return " ".join(words[number] for number in said)

"""What 00_one_device shows: texts that a model writes, its figures, and the hint for FLOPs in the wrong phase."""

import io

import pytest
import torch
from matplotlib.image import imread

from lesson_checks import everything
from utils.generate import continued
from utils.model import TransformerLM
from utils.plots import one_device

phases_mixed_up = everything("00_one_device").phases_mixed_up
WORDS = ["the", "cat", "sat", "on", "mat"]


def shown(picture):
    return imread(io.BytesIO(picture._repr_png_()))


def model_that_counts():
    """After each word it expects the next one of WORDS, and after the last the first, whatever came before."""
    model = TransformerLM(len(WORDS), dim=8, n_heads=1, n_layers=1, max_len=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.norm.weight.fill_(1)
        for word in range(len(WORDS)):
            model.token_embedding.weight[word, word] = 1
            model.head.weight[(word + 1) % len(WORDS), word] = 100
    return model


def test_a_text_goes_on_with_what_the_model_expects_also_beyond_its_longest_sequence():
    assert continued(model_that_counts(), WORDS, "the cat", 6) == "the cat sat on mat the cat sat"


def test_a_text_depends_on_its_seed_alone():
    torch.manual_seed(0)
    model = TransformerLM(len(WORDS), dim=8, n_heads=1, n_layers=1, max_len=4)
    first, again, other = (continued(model, WORDS, "cat", 30, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert set(first.split()) <= set(WORDS) and len(first.split()) == 31


@pytest.mark.parametrize("start", ["", "  ", "the dog"])
def test_a_text_begins_with_words_of_the_vocabulary(start):
    with pytest.raises(ValueError, match="words of the vocabulary"):
        continued(model_that_counts(), WORDS, start, 1)


def test_figures():
    seconds = {"data": 0.001, "forward": 0.02, "backward": 0.01, "optimizer": 0.005}
    one = shown(one_device.phases({"laptop": (seconds, (6.0, 2.0))}))
    two = shown(one_device.phases({"laptop": (seconds, (6.0, 2.0)), "few words": (seconds, (2.0, 4.0))}))
    assert one.ndim == 3 and two.shape[0] > one.shape[0]
    assert shown(one_device.roofline([1, 64], [0.5, 20.0], [1e9, 5e9], lambda value: min(6e9, 1e9 * value))).ndim == 3
    assert one_device.product_speed(8, 16, 16) > 0


def test_memory_at_three_moments_of_a_step():
    torch.manual_seed(0)
    model = TransformerLM(50, dim=16, n_heads=2, n_layers=1, max_len=8)
    moments = one_device.moments(model, 2, 8)
    weights = 4 * sum(p.numel() for p in model.parameters())
    forward, backward, step = moments.values()
    assert forward[:3] == (weights, 0, 2 * weights) and forward[3] > backward[3]
    assert backward[:3] == step[:3] == (weights, weights, 2 * weights)
    assert shown(one_device.memory(moments, dict.fromkeys(moments, (weights, weights, 2 * weights, 0.0)))).ndim == 3


def test_a_sum_in_the_wrong_phases_has_a_hint_of_its_own():
    assert "phases" in phases_mixed_up((5.0, 2.0), [3.0, 4.0])
    assert (
        phases_mixed_up((5.0, 2.0), [3.0, 5.0]) == phases_mixed_up((5.0, 2.0), None) == phases_mixed_up(5.0, 7.0) == ""
    )

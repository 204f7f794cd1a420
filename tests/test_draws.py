"""Draws by class: over 200 seeds each class that decides comes in every one, and no place or size is left out."""

import random
from collections import Counter

import pytest
import torch

from grader.engine.judge.verdict import Wrong
from grader.kit import (
    check_refusals,
    columns,
    freeze,
    frozen_in_turn,
    is_stale,
    layouts,
    lengths,
    logits,
    meshes,
    mixed_dtypes,
    nodes,
    numbers,
    ones_in_turn,
    pipelines,
    rectangles,
    shares,
    strided,
    without,
    zeros_in_turn,
)
from grader.kit.on_rank import raised

SEEDS = 200
AXES = ("dp", "shard", "cp", "tp", "pp")


def drawn(function, *arguments, **options):
    return [function(random.Random(f"{function.__name__} {seed}"), *arguments, **options) for seed in range(SEEDS)]


def often(classes_of, draws):
    """In how many of the draws each class comes."""
    return Counter(name for one in draws for name in set(classes_of(one)))


def always(*names):
    return dict.fromkeys(names, SEEDS)


def is_sorted(items):
    return list(items) in (sorted(items), sorted(items, reverse=True))


def test_numbers_have_each_class_in_every_seed():
    asked = ("negative", "zero", "whole", "tie", "large")

    def classes_of(found):
        yield "negative" if min(found) < 0 else ""
        yield "zero" if 0 in found else ""
        yield "whole" if any(n and n == int(n) for n in found) else ""
        yield "tie" if len(set(found)) < len(found) else ""
        yield "large" if max(found) > 2**32 else ""
        yield "not whole" if any(n % 1 for n in found) else ""
        yield "sorted" if is_sorted(found) else "unsorted"
        yield f"zero at {found.index(0)}"

    seen = often(classes_of, drawn(numbers, 7, *asked))
    assert seen.items() >= always(*asked, "not whole", "unsorted").items()
    assert all(seen[f"zero at {place}"] > SEEDS / 20 for place in range(7)), "it has no place of its own"


def test_numbers_have_no_class_that_is_not_asked_for():
    found = [n for one in drawn(numbers, 4) for n in one]
    assert all(1 < n < 9 and n % 1 for n in found)


def test_logits_overflow_vanish_and_stand_out_in_every_seed():
    rows = torch.stack([logits(seed, 2, 4, 7).flatten(0, 1) for seed in range(SEEDS)]).double()
    exponentials, probabilities = rows.exp(), rows.softmax(dim=-1)
    kinds = {
        "overflow": exponentials.isinf().all(dim=-1),
        "vanish": (exponentials == 0).all(dim=-1),
        "one word stands out": (probabilities == 0).any(dim=-1),
        "usual": ((exponentials > 0) & exponentials.isfinite()).all(dim=-1),
    }
    assert all((kind.sum(dim=1) == 2).all() for kind in kinds.values())


def test_inputs_and_weights_differ_in_dtype_each_way_in_every_seed():
    draws = drawn(mixed_dtypes)
    assert all(len(one) == 4 and all("float32" in pair and len(set(pair)) == 2 for pair in one) for one in draws)
    seen = often(lambda one: one, draws)
    assert seen == always(*((a, b) for low in ("bfloat16", "float16") for a, b in ((low, "float32"), ("float32", low))))


@pytest.mark.parametrize("shape", [(5,), (1, 4), (3, 1), (2, 3), (3, 3), (2, 3, 4), (2, 1, 4), (2, 3, 4, 5)])
def test_strided_is_the_same_and_not_contiguous(shape):
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    found = strided(tensor)
    assert torch.equal(found, tensor) and not found.is_contiguous()
    if len(shape) > 2 and 1 not in shape:
        with pytest.raises(RuntimeError, match="view"):
            found.view(-1, shape[-1])


@pytest.mark.parametrize("shape", [(3, 1), (2, 3), (2, 3, 4), (2, 1, 4)])
def test_columns_are_the_same_and_not_contiguous_with_a_last_stride_of_one(shape):
    tensor = torch.arange(float(torch.Size(shape).numel())).view(shape)
    found = columns(tensor)
    assert torch.equal(found, tensor) and not found.is_contiguous() and found.stride(-1) == 1


def test_each_gradient_is_zero_on_one_rank_of_several():
    for world, n in ((2, 3), (3, 3), (8, 4)):
        ranks = [zeros_in_turn([torch.ones(2) for _ in range(n)], rank, world) for rank in range(world)]
        assert all([bool(mine[k].any()) for mine in ranks].count(False) == 1 for k in range(n))
    assert zeros_in_turn([2.0, 3.0], 1, 2) == [2.0, 0.0]


def test_the_frozen_parameter_is_first_in_the_middle_and_last():
    draws = drawn(frozen_in_turn, 5)
    for one in draws:
        places = sorted(place for place, _ in one)
        assert places[0] == 0 and 0 < places[1] < 4 and places[2] == 4
        assert all(place != unused for place, unused in one)
    first = Counter(one[0][0] for one in draws)
    assert min(first[0], first[4]) > SEEDS / 5
    unused = Counter(unused for one in draws for _, unused in one)
    assert all(unused[place] > 3 * SEEDS / 20 for place in range(5))


def test_a_frozen_parameter_keeps_the_gradient_that_it_had():
    frozen = torch.nn.Parameter(torch.ones(3))
    freeze(frozen)
    assert not frozen.requires_grad and frozen.grad.any() and is_stale(frozen)
    frozen.grad /= 3
    assert not is_stale(frozen)
    frozen.grad = None  # emptied, as an optimizer may
    assert is_stale(frozen)


def class_of(p, m):
    if p == 1:
        return "one rank"
    return "fewer" if m < p else "as many" if m == p else "a multiple" if m % p == 0 else "no multiple"


def test_pipelines():
    many = ("five ranks or seven", "six ranks or eight")
    every = ("one rank", "fewer", "as many", "a multiple", "no multiple", *many)

    def classes_of(sizes):
        for p, m, v in sizes:
            yield from (class_of(p, m), f"{v} chunks", f"{p} ranks", many[p % 2 == 0] if p > 4 else "")

    seen = often(classes_of, drawn(pipelines, chunks=(1, 2, 3)))
    assert seen.items() >= always(*every, "1 chunks", "2 chunks", "3 chunks").items()
    assert all(seen[f"{p} ranks"] > SEEDS / 10 for p in range(1, 9))
    seen = often(classes_of, drawn(pipelines, chunks=(2, 3, 4), groups=True))
    assert seen.items() >= always("one rank", "as many", "a multiple", *many, "4 chunks").items()
    assert not seen["fewer"] and not seen["no multiple"]


def test_rectangles():
    def classes_of(found):
        for high, wide in found:
            assert high * wide <= 8
            yield "a row" if high == 1 else "a column" if wide == 1 else "wide" if high < wide else "tall"

    draws = drawn(rectangles)
    assert often(classes_of, draws) == always("a row", "a column", "wide", "tall")
    first = Counter(name for one in draws for name in [*classes_of(one)][:1])
    assert min(first.values()) > SEEDS / 10


def test_meshes_are_unequal_and_each_axis_is_the_longer_and_the_shorter_side():
    for ranks, longer in ((6, 3), (8, 4)):
        draws = drawn(meshes, ranks, AXES, beside=("dp", "shard"))
        for one in draws:
            assert all(sorted(sizes.values()) == [2, longer] for sizes in one)
            assert len(one) == len(AXES) and any(sizes.keys() == {"dp", "shard"} for sizes in one)
            assert Counter(axis for sizes in one for axis in sizes) == dict.fromkeys(AXES, 2)
        seen = Counter((axis, size) for one in draws for sizes in one for axis, size in sizes.items())
        assert all(seen[axis, size] > SEEDS / 2 for axis in AXES for size in (2, longer))
        pairs = Counter(tuple(sizes) for one in draws for sizes in one)
        assert len(pairs) == len(AXES) * (len(AXES) - 1)


@pytest.mark.parametrize("ranks", [2, 3, 4, 7])
def test_shares_are_uneven_and_one_is_empty(ranks):
    draws = drawn(shares, ranks)
    assert all(len(one) == ranks and 0 in one and max(one) > 0 for one in draws)
    assert ranks < 3 or not any(map(is_sorted, draws))
    assert ranks < 4 or all(len(set(one)) < ranks for one in draws)
    empty = Counter(place for one in draws for place, share in enumerate(one) if share == 0)
    assert all(empty[place] > SEEDS / 20 for place in range(ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_a_single_item_is_at_each_place_and_more_elsewhere(ranks):
    draws = drawn(ones_in_turn, ranks)
    for cases in draws:
        assert sorted(counts.index(1) for counts in cases) == list(range(ranks))
        assert all(counts.count(1) == 1 and counts.count(0) <= 1 for counts in cases)
        assert ranks == 1 or all(max(counts) > 1 for counts in cases)
        assert ranks < 3 or [counts.count(0) for counts in cases] == [(n + 1) % 2 for n in range(ranks)]
    first = Counter(cases[0].index(1) for cases in draws)
    assert all(first[place] > SEEDS / 20 for place in range(ranks))
    empty = Counter(counts.index(0) for cases in draws for counts in cases if 0 in counts)
    assert ranks < 3 or all(empty[place] > SEEDS / 20 for place in range(ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_one_rank_all_but_one_and_all_have_nothing(ranks):
    draws = drawn(without, ranks)
    for one in draws:
        assert [len(found) for found in one] == [1, ranks - 1, ranks]
        assert all(found == sorted(set(found)) and set(found) <= {*range(ranks)} for found in one)
    first = Counter(found[0] for found, *_ in draws)
    assert all(first[rank] > SEEDS / (2 * ranks) for rank in range(ranks))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_lengths(ranks):
    def classes_of(found):
        for n in found:
            yield "none" if n == 0 else class_of(ranks, n)
            yield "one more" if n % ranks == 1 and n > ranks else ""
            yield "one less" if n % ranks == ranks - 1 and n > ranks else ""

    every = ("none", "fewer", "as many", "a multiple", "no multiple", "one more", "one less")
    seen = often(classes_of, drawn(lengths, ranks))
    assert seen.items() >= always(*every).items()


def test_nodes_have_one_to_eight_gpus():
    draws = drawn(nodes)
    assert often(lambda found: [f"{n}" for n, _ in found], draws)["1"] == SEEDS
    assert all(max(n for n, _ in one) > 2 for one in draws)
    seen = often(lambda found: [gpus for _, gpus in found], draws)
    assert {gpus: seen[gpus] for gpus in (1, 2, 8)} == always(1, 2, 8)
    assert all(seen[gpus] > SEEDS / 5 for gpus in range(1, 9))


def test_layouts():
    draws = drawn(layouts)
    assert all(one[0][0] == 1 and one[1][0] == 2 for one in draws)
    seen = Counter(gpus for one in draws for _, gpus in one)
    assert all(seen[gpus] > SEEDS / 10 for gpus in range(3, 9))


# Refusals


def judged(function, words=lambda m, p: (m, p)):
    """The verdict on a function that is to refuse every m that is no multiple of p."""
    grid = [(m, p) for p in (2, 3, 4) for m in range(1, 13)]
    tried = [(case, raised(lambda case=case: function(*case))) for case in grid]
    try:
        check_refusals([tried], lambda m, p: m % p != 0, lambda m, p: f"f({m}, {p})", words)
    except Wrong as wrong:
        return wrong.message
    return ""


def refusing(condition, text="{m} on {p}", error=ValueError):
    def function(m, p):
        if condition(m, p):
            raise error(text.format(m=m, p=p))

    return function


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (refusing(lambda m, p: m % p), ""),
        (refusing(lambda m, p: m % p, text="{m}x{p}"), ""),
        (refusing(lambda m, p: m % p or m == 8), "f(8, 2) is refused, and it can be done"),
        (refusing(lambda m, p: m % p and m > p), "f(1, 2) is not refused"),
        (refusing(lambda m, p: m % p, error=RuntimeError), "f(1, 2) is not refused"),
        (refusing(lambda m, p: m % p, text="{m} does not fit"), "f(1, 2) is refused, but the text does not say"),
        (refusing(lambda m, p: m % p, text="1{m} on {p}"), "f(1, 2) is refused, but the text does not say"),
        (refusing(lambda m, p: m % p, text="{m}\n{p}"), "f(1, 2) is refused, but the text does not say"),
    ],
)
def test_refusals_over_a_grid(function, said):
    assert judged(function).startswith(said) and bool(judged(function)) == bool(said)


def test_without_words_any_text_will_do():
    assert judged(refusing(lambda m, p: m % p, text=""), words=lambda m, p: ()) == ""


def test_a_grid_of_one_kind_is_no_grid():
    with pytest.raises(AssertionError, match="to refuse and"):
        check_refusals([[((1,), None)]], lambda n: False, lambda n: "")


def test_what_is_not_done_yet_is_no_refusal():
    with pytest.raises(NotImplementedError):
        raised(lambda: refusing(lambda m, p: True, error=NotImplementedError)(1, 2))


def test_logits_are_drawn_by_the_seed():
    assert torch.equal(logits(5, 3, 4, 9), logits(5, 3, 4, 9)) and not torch.equal(logits(5, 4, 9), logits(9, 4, 9))

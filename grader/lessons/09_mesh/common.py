"""What several files with checks of 09_mesh use."""

import itertools

# ---------------------------------------------------------------------------------------------------
# Boxes of ranks, as the checks have them


def box(sizes):
    """Each rank's place, by axis. The sizes are in the order of the axes."""
    places = itertools.product(*(range(size) for size in sizes.values()))
    return [dict(zip(sizes, place)) for place in places]


def line_of(rank, sizes, axis):
    """The ranks that differ from this one along an axis only, by their place on it."""
    places = box(sizes)
    mine = places[rank]
    return [r for r, other in enumerate(places) if all(other[a] == mine[a] for a in sizes if a != axis)]


def spoken(sizes):
    return " × ".join(f"{axis} {size}" for axis, size in sizes.items())


def shuffled(draw, sizes):
    """The same axes in another order."""
    return dict(draw.sample(list(sizes.items()), len(sizes)))

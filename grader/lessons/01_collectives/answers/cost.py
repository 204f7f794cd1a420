"""Other answers to TODOs 8 and 9 of 01_collectives."""

from grader.kit import Answer

RING_COST = "return 2 * (world - 1), 2 * (world - 1) * nbytes / world"


EQUAL = """
levels = (world - 1).bit_length()
return alpha / beta * (world - 1 - levels) / (levels - (world - 1) / world)
"""


FIT = """
import statistics
beta, alpha = statistics.linear_regression(sizes, seconds)
return alpha, beta
"""


SECONDS = "return cost[0] * alpha + cost[1] * beta"


WRONG = [
    Answer(8, "as many rounds as ranks", "return 2 * world, 2 * (world - 1) * nbytes / world", says="ring_cost"),
    Answer(8, "a ring of whole tensors", "return 2 * (world - 1), 2 * (world - 1) * nbytes", says="ring_cost"),
    Answer(
        8, "the messages of all ranks", "return 2 * (world - 1) * world, 2 * (world - 1) * nbytes", says="ring_cost"
    ),
    Answer(
        8,
        "levels rounded down",
        [None, "return 2 * int(math.log2(world)), 2 * int(math.log2(world)) * nbytes", None],
        says="tree_cost",
    ),
    Answer(
        8,
        "the way there only",
        [None, "return (world - 1).bit_length(), (world - 1).bit_length() * nbytes", None],
        says="tree_cost",
    ),
    Answer(8, "the tree's bytes once", [None, "return 2 * (world - 1).bit_length(), nbytes", None], says="tree_cost"),
    Answer(
        8, "alpha and beta exchanged", [None, None, EQUAL.replace("alpha / beta", "beta / alpha")], says="equal_size"
    ),
    Answer(
        8,
        "one number for two",
        ["return 2 * (world - 1) * nbytes / world", None, EQUAL],  # the solution's equal_size would crash first
        says="does not return 2 numbers",
    ),
    Answer(
        8,
        "as if every number of ranks were a power of two",
        [
            None,
            None,
            """
            ring_rounds, tree_rounds = 2 * (world - 1), 2 * math.log2(world)
            return alpha / beta * (ring_rounds - tree_rounds) / (tree_rounds - ring_rounds / world)
            """,
        ],
        says="equal_size(5",
    ),
    Answer(
        9,
        "through the first and the last point",
        "beta = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])\nreturn seconds[0] - beta * sizes[0], beta",
        says="fit(",
    ),
    Answer(
        9,
        "through 0",
        "beta = sum(x * y for x, y in zip(sizes, seconds)) / sum(x * x for x in sizes)\nreturn 0.0, beta",
        says="fit(",
    ),
    Answer(9, "beta and alpha", FIT.replace("return alpha, beta", "return beta, alpha"), says="fit("),
    Answer(
        9,
        "in float32",
        """
        line = torch.stack([torch.ones(len(sizes)), torch.tensor(sizes, dtype=torch.float32)], dim=1)
        return tuple(torch.linalg.lstsq(line, torch.tensor(seconds, dtype=torch.float32)).solution.tolist())""",
        says="fit(",
    ),
    Answer(
        9,
        "the mean of seconds per byte",
        "rates = [y / x for x, y in zip(sizes, seconds) if x]\nreturn seconds[0], sum(rates) / len(rates)",
        says="fit(",
    ),
    Answer(9, "one latency for all rounds", [None, "return alpha + cost[1] * beta"], says="predicted_seconds"),
    Answer(9, "all bytes in each round", [None, "return cost[0] * (alpha + cost[1] * beta)"], says="predicted_seconds"),
    Answer(
        8,
        "a level too many at powers of two",
        swap=("math.ceil(math.log2(world))", "(int(math.log2(world)) + 1)"),
        says="tree_cost(2",
    ),
    Answer(
        9,
        "a parabola",
        "import numpy\n_, beta, alpha = numpy.polyfit(sizes, seconds, 2)\nreturn alpha, beta",
        says="fit(",
    ),
    Answer(
        8,
        "a tree that has one round for each whole doubling",
        swap=("math.ceil(math.log2(world))", "int(math.log2(world))"),
    ),
    Answer(
        9,
        "a fit of relative errors",
        swap=(
            "beta = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()\nalpha = y.mean() - beta * x.mean()\nreturn alpha.item(), beta.item()",
            "table = torch.stack([torch.ones_like(x), x], dim=1) / y[:, None]\nalpha, beta = torch.linalg.lstsq(table, torch.ones_like(y)[:, None]).solution[:, 0].tolist()\nreturn alpha, beta",
        ),
    ),
    Answer(
        8,
        "the equal size is looked for below 100 MB",
        [
            None,
            None,
            """
        def seconds(cost):
            return cost[0] * alpha + cost[1] * beta

        low, high = 0.0, 1e8
        for _ in range(100):
            middle = (low + high) / 2
            if seconds(tree_cost(middle, world)) < seconds(ring_cost(middle, world)):
                low = middle
            else:
                high = middle
        return middle
        """,
        ],
        says="equal_size(4, 0.",
    ),
    Answer(9, "a latency that is never below 0", swap=("alpha.item()", "max(alpha.item(), 0.0)"), says="fit("),
    Answer(9, "one measurement of each size", swap=("(sizes, seconds))", "zip(*dict(zip(sizes, seconds)).items()))")),
    Answer(
        9,
        "float64 too late",
        swap=(
            "torch.tensor(values, dtype=torch.float64) for values",
            "torch.tensor([*map(float, values)]).double() for values",
        ),
        says="fit",
    ),
]


RIGHT = [
    Answer(
        8,
        "counted round by round",
        [
            "rounds = [nbytes / world] * (world - 1)\nreturn len(rounds + rounds), sum(rounds + rounds)",
            (
                "rounds, have = 0, 1\nwhile have < world:\n    rounds, have = rounds + 2, 2 * have\nreturn rounds,"
                " rounds * nbytes"
            ),
            EQUAL,
        ],
    ),
    Answer(
        9,
        "by the library",
        [
            """
        line = torch.stack([torch.ones(len(sizes)), torch.tensor(sizes)], dim=1).double()
        return torch.linalg.lstsq(line, torch.tensor(seconds, dtype=torch.float64)).solution""",
            "return alpha * cost[0] + beta * cost[1]",
        ],
    ),
    Answer(9, "by numpy", ["import numpy\nreturn tuple(numpy.polyfit(sizes, seconds, 1)[::-1])", SECONDS]),
    Answer(8, "by the logarithm, rounded up", [RING_COST, None, EQUAL]),
    Answer(
        9,
        "by torch.linalg.lstsq",
        swap=(
            "beta = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()\nalpha = y.mean() - beta * x.mean()\nreturn alpha.item(), beta.item()",
            "scale = x.max().clamp(min=1)\nfound = torch.linalg.lstsq(torch.stack([torch.ones_like(x), x / scale], dim=1), y[:, None]).solution[:, 0]\nreturn found[0].item(), (found[1] / scale).item()",
        ),
    ),
]

"""Other answers to TODOs 7 and 8 of 08_distributed_matmul."""

from grader.kit import Answer

WRONG = [
    Answer(
        7,
        "grids that divide the sizes only",
        swap=(
            "min(factorings(world),",
            "min([(x, y, z) for x, y, z in factorings(world) if not (dim % x or hidden % x or dim % y or hidden % y or m % z)],",
        ),
    ),
    Answer(
        7,
        "grids that divide the sizes, if there are any",
        swap=(
            "min(factorings(world),",
            "min([(x, y, z) for x, y, z in factorings(world) if not (dim % x or hidden % y or m % z)] or factorings(world),",
        ),
        says="is not the fastest one",
    ),
    Answer(
        8,
        "one rank as two",
        swap=("return (world - 1) / world * itemsize", "return (max(world, 2) - 1) / max(world, 2) * itemsize"),
        says="is not the size at which both take the same time",
    ),
    Answer(
        7,
        "turns are counted whole",
        swap=("max(1.0, world / machine.cores)", "max(1, world // machine.cores)"),
        says="mlp_seconds",
    ),
    Answer(
        7,
        "cubes and corners only",
        ["return sorted({(world, 1, 1), (1, world, 1), (1, 1, world)})", None, None, None],
        says="factorings",
    ),
    Answer(
        7,
        "without order of the sides",
        [
            "return [(x, y, world // (x * y)) for x in range(1, world + 1) for y in range(x, world + 1) if world % (x * y) == 0]",
            None,
            None,
            None,
        ],
        says="factorings",
    ),
    Answer(7, "no rounds for W's gradient", swap=("3 * (depth - 1)", "2 * (depth - 1)"), says="layer_cost"),
    Answer(
        7,
        "an all-reduce as one way round",
        swap=("2 * (inner - 1) + 2 * (outer - 1)", "(inner - 1) + (outer - 1)"),
        says="layer_cost",
    ),
    Answer(
        7,
        "the second layer is not transposed",
        swap=("layer_cost(m, hidden, dim, y, x, z)", "layer_cost(m, hidden, dim, x, y, z)"),
        says="mlp_seconds",
    ),
    Answer(7, "cores are forgotten", swap=(" * max(1.0, world / machine.cores)", ""), says="mlp_seconds"),
    Answer(
        7,
        "more cores than ranks make a rank faster",
        swap=("max(1.0, world / machine.cores)", "world / machine.cores"),
        says="mlp_seconds",
    ),
    Answer(7, "numbers for bytes", swap=("4 * (first[1] + second[1])", "(first[1] + second[1])"), says="mlp_seconds"),
    Answer(7, "no latency", swap=("(first[0] + second[0]) * machine.alpha + ", ""), says="mlp_seconds"),
    Answer(
        7,
        "the forward pass alone",
        swap=("2 * 3 * 2 * m * dim * hidden", "2 * 2 * m * dim * hidden"),
        says="mlp_seconds",
    ),
    Answer(
        7,
        "all ranks' work on each",
        swap=("flops / world / machine.speed", "flops / machine.speed"),
        says="mlp_seconds",
    ),
    Answer(7, "always FSDP", [None, None, None, "return (1, 1, world)"], says="best_grid"),
    Answer(7, "the slowest", swap=("return min(factorings(world)", "return max(factorings(world)"), says="best_grid"),
    Answer(
        7,
        "the time, not the grid",
        [None, None, None, "return min(mlp_seconds(m, dim, hidden, shape, machine) for shape in factorings(world))"],
        says="best_grid",
    ),
    Answer(8, "one block arrives", ["return 0.5 * itemsize * speed / bandwidth", None], says="smallest_block"),
    Answer(8, "the memory's three blocks", ["return 1.5 * itemsize * speed / bandwidth", None], says="smallest_block"),
    Answer(8, "float32 always", ["return 4 * speed / bandwidth", None], says="smallest_block"),
    Answer(
        8,
        "one way round the ring",
        [None, "return (world - 1) / world * itemsize * speed / bandwidth / 2"],
        says="smallest_width",
    ),
    Answer(
        8,
        "the whole width, not a rank's part",
        [None, "return (world - 1) * itemsize * speed / bandwidth"],
        says="smallest_width",
    ),
    Answer(8, "SUMMA's side, for any layer", [None, "return itemsize * speed / bandwidth"], says="smallest_width"),
    Answer(
        7,
        "the best grid of the first machine",
        [
            None,
            None,
            None,
            """
            known = vars(best_grid)
            key = f"{m} {dim} {hidden} {world}"
            if key not in known:
                known[key] = min(factorings(world), key=lambda shape: mlp_seconds(m, dim, hidden, shape, machine))
            return known[key]
            """,
        ],
    ),
]


RIGHT = [
    Answer(
        7,
        "by loops",
        [
            """
        found = []
        for x in range(1, world + 1):
            for y in range(1, world + 1):
                for z in range(1, world + 1):
                    if x * y * z == world:
                        found.append((x, y, z))
        return found""",
            """
        rounds = 2 * (inner + outer - 2) + 3 * (depth - 1)
        w, dw, y, dx = numbers_sent_3d(m, k, n, inner, outer, depth)
        return rounds, w + dw + y + dx""",
            None,
            """
        best = (1, 1, world)
        for shape in factorings(world):
            if mlp_seconds(m, dim, hidden, shape, machine) < mlp_seconds(m, dim, hidden, best, machine):
                best = shape
        return best""",
        ],
    ),
    Answer(
        8,
        "two times, set equal",
        [
            "return 1 / (2 * itemsize / bandwidth / (2 / speed)) ** -1",
            """
        seconds_a_number = 2 * (world - 1) / world * itemsize / bandwidth  # of the result
        return seconds_a_number * speed / 2""",
        ],
    ),
]

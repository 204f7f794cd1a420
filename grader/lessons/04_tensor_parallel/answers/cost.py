"""Other answers to TODOs 1, 10 and 13 of 04_tensor_parallel."""

from grader.kit import Answer

KEEPS = "return 4 * batch * length * dim * "


SECONDS = "return products + 4 * all_reduce_seconds(nbytes, world, within if world <= per_node else between)"


WRONG = [
    Answer(
        13,
        "bits for bytes",
        swap=("nbytes / world / bandwidth", "nbytes * 8 / world / bandwidth"),
        says="all_reduce_seconds",
    ),
    Answer(
        1,
        "the tokens of one FSDP rank",
        "return fsdp_bytes(dim, world) / tensor_parallel_bytes(1, 1, dim, world) / world",
        says="even_tokens",
    ),
    Answer(
        1,
        "the tokens of all ranks, counted on each",
        "return world * fsdp_bytes(dim, world) / tensor_parallel_bytes(1, 1, dim, world)",
        says="even_tokens",
    ),
    Answer(1, "the norms forgotten", "return 4.5 * dim", says="even_tokens"),
    Answer(1, "an all-reduce as one way round the ring", "return 9 * dim + 3", says="even_tokens"),
    Answer(1, "FSDP gathers once", "return 3 * dim + 1", says="even_tokens"),
    Answer(
        1,
        "the other way up",
        "return tensor_parallel_bytes(1, 1, dim, world) / fsdp_bytes(dim, world)",
        says="even_tokens",
    ),
    Answer(
        13,
        "the last worthwhile in the table",
        [
            None,
            None,
            """
            alone = products[0][1]
            good = [
                world
                for world, seconds in products
                if alone >= least * world * block_seconds(seconds, nbytes, world, per_node, within, between)
            ]
            return good[-1]
            """,
        ],
        says="largest_worthwhile",
    ),
    Answer(10, "all of it is divided", KEEPS + "16 / world", says="block_keeps"),
    Answer(
        10,
        "sequence parallel keeps no whole norm",
        swap=(
            'norms / world if how == "sequence, gathered again" else norms',
            'norms if how == "tensor" else norms / world',
        ),
        says="block_keeps",
    ),
    Answer(
        10,
        "sequence parallel keeps the stream whole",
        swap=('stream if how == "tensor" else stream / world', "stream"),
        says="block_keeps",
    ),
    Answer(10, "inside is whole", swap=("numbers = inside / world", "numbers = inside"), says="block_keeps"),
    Answer(
        10,
        "two bytes a number",
        swap=("return 4 * batch * length * dim * numbers", "return 2 * batch * length * dim * numbers"),
        says="block_keeps",
    ),
    Answer(
        13,
        "no latency",
        swap=("(latency + nbytes / world / bandwidth)", "nbytes / world / bandwidth"),
        says="all_reduce_seconds",
    ),
    Answer(
        13,
        "one latency",
        swap=(
            "2 * (world - 1) * (latency + nbytes / world / bandwidth)",
            "latency + 2 * (world - 1) * nbytes / world / bandwidth",
        ),
        says="all_reduce_seconds",
    ),
    Answer(
        13,
        "whole tensors each round",
        swap=("nbytes / world / bandwidth", "nbytes / bandwidth"),
        says="all_reduce_seconds",
    ),
    Answer(13, "one way round", swap=("return 2 * (world - 1)", "return (world - 1)"), says="all_reduce_seconds"),
    Answer(13, "two all-reduces", swap=("products + 4 *", "products + 2 *"), says="block_seconds"),
    Answer(
        13, "always within the node", swap=("within if world <= per_node else between", "within"), says="block_seconds"
    ),
    Answer(13, "a full node goes out", swap=("world <= per_node", "world < per_node"), says="block_seconds"),
    Answer(
        13,
        "hidden behind the products",
        [
            None,
            SECONDS.replace("products + 4 * all_reduce", "max(products, 4 * all_reduce").replace(
                "else between)", "else between))"
            ),
            None,
        ],
        says="block_seconds",
    ),
    Answer(
        13,
        "stops at the first that does not pay",
        [
            None,
            None,
            """
        alone, best = products[0][1], 1
        for world, seconds in products:
            if alone < least * world * block_seconds(seconds, nbytes, world, per_node, within, between):
                break
            best = world
        return best""",
        ],
        says="largest_worthwhile",
    ),
    Answer(
        13,
        "the fastest",
        [
            None,
            None,
            "return min(products, key=lambda row: block_seconds(row[1], nbytes, row[0], per_node, within, between))[0]",
        ],
        says="largest_worthwhile",
    ),
    Answer(
        13,
        "speed-up, not efficiency",
        swap=("alone >= least * world * block_seconds", "alone >= least * block_seconds"),
        says="largest_worthwhile",
    ),
    Answer(
        13,
        "products alone",
        [None, None, "return max(world for world, seconds in products if products[0][1] >= least * world * seconds)"],
        says="largest_worthwhile",
    ),
    Answer(13, "more than the least", swap=("if alone >= least", "if alone > least"), says="largest_worthwhile"),
]


RIGHT = [
    Answer(1, "solved for the tokens", "return 4.5 * dim + 1.5"),
    Answer(
        10,
        "case by case",
        """
        tokens = 4 * batch * length * dim
        times = {"tensor": 4 + 12 / world, "sequence": 2 + 14 / world, "sequence, gathered again": 16 / world}
        return tokens * times[how]""",
    ),
    Answer(
        13,
        "from the back",
        [
            "return 2 * (world - 1) * link[0] + 2 * (world - 1) / world * nbytes / link[1]",
            None,
            """
        for world, seconds in sorted(products, reverse=True):
            if products[0][1] / (world * block_seconds(seconds, nbytes, world, per_node, within, between)) >= least:
                return world""",
        ],
    ),
]

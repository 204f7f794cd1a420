"""Other answers to TODO 8 of 07_expert_parallel."""

from grader.kit import Answer

WRONG = [
    Answer(8, "what stays is counted", swap=("stays = rows_WE[rank, mine].sum()", "stays = 0"), says="layer_bytes"),
    Answer(8, "results are forgotten", swap=("int(there + back)", "int(there)"), says="layer_bytes"),
    Answer(8, "as much back as there", swap=("int(there + back)", "int(2 * there)"), says="layer_bytes"),
    Answer(8, "no counts", swap=("return both + 8 * (E - E // W), both", "return both, both"), says="layer_bytes"),
    Answer(8, "counts for its own experts, too", swap=("8 * (E - E // W)", "8 * E"), says="layer_bytes"),
    Answer(8, "counts of 4 bytes", swap=("8 * (E - E // W)", "4 * (E - E // W)"), says="layer_bytes"),
    Answer(
        8,
        "counts also backward",
        swap=("return both + 8 * (E - E // W), both", "return both + 8 * (E - E // W), both + 8 * (E - E // W)"),
        says="layer_bytes",
    ),
    Answer(
        8,
        "an even load",
        swap=(
            "both = int(there + back) * dim * element_size",
            "both = 2 * int(rows_WE.sum()) * (W - 1) // W**2 * dim * element_size",
        ),
        says="layer_bytes",
    ),
    Answer(8, "four bytes a number", swap=("dim * element_size", "dim * 4"), says="layer_bytes"),
    Answer(
        8,
        "a message to itself",
        swap=("3 * (world - 1), 2 * (world - 1)", "3 * world, 2 * world"),
        says="layer_messages",
    ),
    Answer(8, "no counts, no message", swap=("3 * (world - 1)", "2 * (world - 1)"), says="layer_messages"),
    Answer(8, "the busiest expert", swap=(".view(len(rows), -1).sum(dim=1)", ""), says="slowdown"),
    Answer(
        8,
        "who sends most",
        swap=("rows_WE.sum(dim=0).view(len(rows), -1).sum(dim=1)", "rows_WE.sum(dim=1)"),
        says="slowdown",
    ),
    Answer(
        8,
        "the busiest by the idlest",
        swap=("work_W.max() / work_W.mean()", "work_W.max() / work_W.min().clamp(min=1)"),
        says="slowdown",
    ),
    Answer(
        8, "the busiest by all", swap=("work_W.max() / work_W.mean()", "work_W.max() / work_W.sum()"), says="slowdown"
    ),
]


RIGHT = [
    Answer(
        8,
        "by loops",
        [
            """
        world, experts = len(rows), len(rows[0])
        each = experts // world
        sent = 0
        for r in range(world):
            if r != rank:
                sent += sum(rows[rank][r * each : (r + 1) * each]) + sum(rows[r][rank * each : (rank + 1) * each])
        return sent * dim * element_size + 8 * each * (world - 1), sent * dim * element_size""",
            "others = world - 1\nreturn others * 3, others * 2",
            """
        world, each = len(rows), len(rows[0]) // len(rows)
        work = [sum(sum(mine[r * each : (r + 1) * each]) for mine in rows) for r in range(world)]
        return world * max(work) / sum(work)""",
        ],
    )
]

"""Other answers to TODOs 7, 8 and 11 of 05_pipeline_parallel."""

from grader.kit import Answer

WRONG = [
    Answer(
        7,
        "three early at most",
        swap=("early = min(m, world - 1 - rank)", "early = min(m, world - 1 - rank, 3)"),
        says="more than GPipe's",
    ),
    Answer(7, "all forwards first, called 1F1B", ["return gpipe(world, m)"], says="all forward passes come first"),
    Answer(7, "the empty schedule", ["return [[] for _ in range(world)]"], says="does nothing"),
    Answer(
        7,
        "one forward pass more than needed",
        swap=("min(m, world - 1 - rank)", "min(m, world - rank)"),
        says="passes are alive at once",
    ),
    Answer(
        7,
        "the same on all ranks",
        swap=("min(m, world - 1 - rank)", "min(m, world - 1)"),
        says="passes are alive at once",
    ),
    Answer(
        7,
        "one after the other",
        ["return [[Action(kind, j) for j in range(m) for kind in 'FB'] for _ in range(world)]"],
        says="takes",
    ),
    Answer(7, "the ranks turned round", swap=("world - 1 - rank", "rank"), says="one_f_one_b"),
    Answer(
        7,
        "the last backward passes are left out",
        swap=('actions += [Action("B", j) for j in range(m - early, m)]', "pass"),
        says="never does B",
    ),
    Answer(
        7,
        "backward before forward",
        swap=('[Action("F", early + j), Action("B", j)]', '[Action("B", j), Action("F", early + j)]'),
        says="",
    ),
    Answer(
        7,
        "more ranks than micro-batches",
        swap=("min(m, world - 1 - rank)", "world - 1 - rank"),
        says="which does not exist here",
    ),
    Answer(
        7,
        "the last micro-batch is skipped",
        swap=(
            "for j in range(m - early):",
            "m = max(1, m - 1)\n    early = min(early, m)\n    for j in range(m - early):",
        ),
        says="",
    ),
    Answer(7, "four ranks, always", swap=("world - 1 - rank", "max(0, 3 - rank)"), says="one_f_one_b"),
    Answer(8, "early as with two chunks", swap=("(v - 1) * world)", "(min(v, 2) - 1) * world)"), says="gets stuck"),
    Answer(
        8,
        "not interleaved: chunk by chunk",
        swap=(
            "for first in range(0, m, world) for chunk in range(v) for j in range(world)\n",
            "for first in [0] for chunk in range(v) for j in range(m)\n",
        ),
        says="",
    ),
    Answer(
        8, "the backward passes come in the order of the chunks", swap=("v - 1 - chunk", "chunk"), says="interleaved"
    ),
    Answer(
        8,
        "all forwards first",
        swap=("min(m * v, 2 * (world - 1 - rank) + (v - 1) * world)", "m * v"),
        says="all forward passes come first",
    ),
    Answer(
        8,
        "fewer first passes than it needs",
        swap=("2 * (world - 1 - rank) + (v - 1) * world", "world - 1 - rank"),
        says="gets stuck",
    ),
    Answer(
        8,
        "one more for each rank behind, not two",
        swap=("2 * (world - 1 - rank)", "(world - 1 - rank)"),
        says="ranks wait for messages",
    ),
    Answer(
        8,
        "one too many",
        swap=("2 * (world - 1 - rank) + (v - 1) * world)", "2 * (world - 1 - rank) + (v - 1) * world + 1)"),
        says="passes are alive at once",
    ),
    Answer(
        8,
        "1F1B on chunk 0",
        ["if m % world:\n    raise ValueError\nreturn one_f_one_b(world, m)"],
        says="never does F0 of chunk 1",
    ),
    Answer(
        8,
        "any number of micro-batches",
        swap=('raise ValueError(f"{m} micro-batches are not a multiple of {world} ranks")', "pass"),
        says="is not refused",
    ),
    Answer(
        8,
        "the empty schedule",
        ["if m % world:\n    raise ValueError\nreturn [[] for _ in range(world)]"],
        says="does nothing",
    ),
    Answer(
        8, "micro-batches counted anew in each group", swap=("(first + j, chunk)", "(j, chunk)"), says="never does F"
    ),
    Answer(
        8,
        "chunk by chunk is 1F1B of each",
        [
            """
        if m % world:
            raise ValueError
        one = one_f_one_b(world, m)
        return [[a._replace(chunk=c) for c in range(v) for a in actions] for actions in one]"""
        ],
        says="gets stuck",
    ),
    Answer(
        8, "refused only if there are fewer than ranks", swap=("if m % world:", "if m < world:"), says="is not refused"
    ),
    Answer(
        8,
        "one group is too few",
        swap=("if m % world:", "if m % world or m == world > 2:"),
        says="are not a multiple of",
    ),
    Answer(
        8,
        "odd numbers are refused",
        swap=("if m % world:", "if m % 2 and world % 2 == 0 or m < world:"),
        says="is not refused",
    ),
    Answer(11, "p stages' waiting", swap=("(p - 1) * (f + i - w if", "p * (f + i - w if"), says="step_seconds"),
    Answer(
        11,
        "interleaved divides the work, too",
        swap=("return m * (f + i + w) + bubble", "return m * (f + i + w) / v + bubble"),
        says="step_seconds",
    ),
    Answer(
        11,
        "no bubble at all",
        swap=(
            '(f + i - w if name == "zero bubble" else (f + i + w) / v)',
            '(0 if name == "zero bubble" else (f + i + w) / v)',
        ),
        says="step_seconds",
    ),
    Answer(11, "H2 for H1", swap=("f + i - w if", "f + i - 2 * w if"), says="step_seconds"),
    Answer(
        11,
        "the bubble over the work",
        swap=(
            "1 - m * (f + i + w) / step_seconds(name, p, m, v, f, i, w)",
            "step_seconds(name, p, m, v, f, i, w) / (m * (f + i + w)) - 1",
        ),
        says="bubble_share",
    ),
    Answer(11, "in percent", swap=("return 1 - m", "return 100 - 100 * m"), says="bubble_share"),
    Answer(11, "passes, not micro-batches", swap=(" / v\nreturn {", "\nreturn {"), says="most_alive"),
    Answer(11, "1F1B keeps p everywhere", swap=('"1F1B": min(m, p - rank)', '"1F1B": min(m, p)'), says="most_alive"),
    Answer(
        11,
        "zero bubble keeps no more than 1F1B",
        swap=('"zero bubble": min(m, p)', '"zero bubble": min(m, p - rank)'),
        says="most_alive",
    ),
    Answer(
        11,
        "the bubble of 1F1B is smaller than GPipe's",
        swap=("(f + i + w) / v)", '(f + i + w) / (2 if name == "1F1B" else v))'),
        says="step_seconds",
    ),
    Answer(
        11,
        "memory of rank 0 on every rank",
        swap=('"1F1B": min(m, p - rank)', '"1F1B": min(m, p - 0 * rank)'),
        says="most_alive",
    ),
    Answer(
        7,
        "the pairs the other way round on the last rank",
        swap=(
            'actions += [Action("F", early + j), Action("B", j)]',
            'actions += [Action("F", early + j), Action("B", j)] if rank < world - 1 else [Action("F", j)]\n        actions += [] if rank < world - 1 else [Action("B", j)] * (j < m - 1)',
        ),
        says="never does B",
    ),
    Answer(
        7,
        "early as for an even world",
        swap=("world - 1 - rank", "world - 1 - rank - (world % 2 and rank == 0 and world > 3)"),
        says="one_f_one_b",
    ),
    Answer(
        8,
        "groups of v",
        swap=(
            "range(0, m, world) for chunk in range(v) for j in range(world)\n",
            "range(0, m, world) for j in range(world) for chunk in range(v)\n",
        ),
        says="",
    ),
    Answer(8, "the pairs turned round", swap=("actions += [f, b]", "actions += [b, f]"), says=""),
    Answer(
        11,
        "interleaved keeps what 1F1B keeps",
        swap=(
            'if name == "interleaved":\n    return min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v\n',
            'if name == "interleaved":\n    return min(m, p - rank)\n',
        ),
        says="most_alive",
    ),
    Answer(
        11,
        "W longer than I leaves no bubble",
        swap=("(p - 1) * (f + i - w if", "(p - 1) * (max(0.0, f + i - 2 * w) if"),
        says="step_seconds",
    ),
    Answer(11, "v divides the ranks", swap=("(f + i + w) / v)", "(f + i + w) / v if p > 2 else f + i + w)"), says=""),
]


RIGHT = [
    Answer(
        7,
        "by asking who is alive",
        [
            """
        schedule = []
        for rank in range(world):
            actions, f, b = [], 0, 0
            while b < m:
                if f < m and f - b < min(m, world - rank):
                    actions.append(Action("F", f))
                    f += 1
                else:
                    actions.append(Action("B", b))
                    b += 1
            schedule.append(actions)
        return schedule"""
        ],
    ),
    Answer(
        7,
        "as interleaved with one chunk",
        [
            """
        schedule = []
        for rank in range(world):
            early = min(m, world - 1 - rank)
            forward = deque(Action("F", j) for j in range(m))
            mine = [forward.popleft() for _ in range(early)]
            for j in range(m):
                if forward:
                    mine.append(forward.popleft())
                mine.append(Action("B", j))
            schedule.append(tuple(mine))
        return tuple(schedule)"""
        ],
    ),
    Answer(
        8,
        "by numbers of passes",
        [
            """
        if m % world:
            raise ValueError("no multiple")
        def action(kind, k):
            group, within = divmod(k, world * v)
            chunk = within // world
            return Action(kind, group * world + within % world, chunk if kind == "F" else v - 1 - chunk)
        schedule = []
        for rank in range(world):
            early = min(m * v, 2 * (world - 1 - rank) + (v - 1) * world)
            mine = [action("F", k) for k in range(early)]
            for k in range(m * v):
                if early + k < m * v:
                    mine.append(action("F", early + k))
                mine.append(action("B", k))
            schedule.append(mine)
        return schedule"""
        ],
    ),
    Answer(
        11,
        "in other words",
        [
            """
        if name == "zero bubble":
            return (m + p - 1) * (f + i + w) - 2 * (p - 1) * w
        return (m + (p - 1) / v) * (f + i + w)""",
            """
        whole = step_seconds(name, p, m, v, f, i, w)
        return (whole - m * (f + i + w)) / whole""",
            None,
        ],
    ),
    Answer(
        7,
        "passes counted from the back",
        """
        def rank_of(r):
            behind, done, actions = world - 1 - r, 0, []
            for f in range(m):
                actions.append(Action("F", f))
                if f >= behind:
                    actions.append(Action("B", done))
                    done += 1
            return actions + [Action("B", b) for b in range(done, m)]
        return list(map(rank_of, range(world)))
        """,
    ),
    Answer(
        8,
        "a deque of forward passes",
        """
        if m % world != 0:
            raise ValueError("micro-batches in whole groups only")
        groups = [range(k, k + world) for k in range(0, m, world)]
        schedule = []
        for rank in range(world):
            todo = deque(Action("F", j, c) for group in groups for c in range(v) for j in group)
            mine = [todo.popleft() for _ in range(min(len(todo), 2 * (world - 1 - rank) + (v - 1) * world))]
            for group in groups:
                for c in reversed(range(v)):
                    for j in group:
                        if todo:
                            mine.append(todo.popleft())
                        mine.append(Action("B", j, c))
            schedule.append(mine)
        return schedule
        """,
    ),
    Answer(
        11,
        "a table of bubbles",
        [
            """
        bubbles = {"GPipe": f + i + w, "1F1B": f + i + w, "interleaved": (f + i + w) / v, "zero bubble": f + i - w}
        return sum([m * f, m * i, m * w, (p - 1) * bubbles[name]])""",
            "whole = step_seconds(name, p, m, v, f, i, w)\nreturn (whole - m * f - m * i - m * w) / whole",
            """
        passes = {"GPipe": m * v, "1F1B": min(m, p - rank), "zero bubble": min(m, p), "interleaved": min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)}
        return passes[name] / v""",
        ],
    ),
    Answer(
        11,
        "counted in one's own schedules",
        [
            None,
            None,
            """
        schedules = {"GPipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}
        actions = (interleaved(p, m, v) if name == "interleaved" else schedules[name](p, m))[rank]
        alive = most = 0
        for action in actions:
            alive += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
            most = max(most, alive)
        return most / v""",
        ],
    ),
    Answer(
        8,
        "one chunk is 1F1B",
        swap=("if m % world:\n    raise", "if v == 1:\n    return one_f_one_b(world, m)\nif m % world:\n    raise"),
    ),
]

"""Other answers to TODO 4 of 05_pipeline_parallel."""

from grader.kit import Answer

WRONG = [
    Answer(4, "the empty schedule", ["return [[] for _ in range(world)]", None], says="does nothing"),
    Answer(4, "no schedule", ["return []", None], says="0 lists"),
    Answer(4, "forward passes only", swap=("[forward + backward for", "[forward for"), says="never does B0"),
    Answer(
        4,
        "the last micro-batch is skipped",
        swap=('[Action("B", j) for j in range(m)]', '[Action("B", j) for j in range(m - 1)]'),
        says="never does B",
    ),
    Answer(
        4,
        "one after the other",
        ['return [[Action(kind, j) for j in range(m) for kind in "FB"] for _ in range(world)]', None],
        says="all forward passes, then",
    ),
    Answer(
        4,
        "ranks go backward in other orders",
        swap=(
            "[forward + backward for _ in range(world)]",
            "[forward + (backward if rank % 2 else backward[::-1]) for rank in range(world)]",
        ),
        says="the ranks' orders do not match",
    ),
    Answer(
        4,
        "counted from 1",
        swap=(('[Action("F", j) for j in range(m)]', '[Action("F", j + 1) for j in range(m)]'),),
        says="never does F0",
    ),
    Answer(
        4,
        "plain strings",
        ['return [[f"F{j}" for j in range(m)] + [f"B{j}" for j in range(m)] for _ in range(world)]', None],
        says="which is not an Action",
    ),
    Answer(
        4,
        "every action at once",
        [None, "return [[(0.0, seconds[a.kind]) for a in actions] for actions in schedule]"],
        says="at the wrong time",
    ),
    Answer(
        4,
        "one after the other on each rank, whatever it needs",
        swap=("max(free, ends.get(need, 0.0))", "free"),
        says="at the wrong time",
    ),
    Answer(
        4,
        "a rank's own actions may overlap",
        swap=("max(free, ends.get(need, 0.0))", "ends.get(need, 0.0)"),
        says="at the wrong time",
    ),
    Answer(
        4, "every kind takes one second", swap=("start + seconds[action.kind]", "start + 1"), says="at the wrong time"
    ),
    Answer(
        4,
        "chunks are forgotten",
        swap=(
            ("            stage = stage_of(action, rank, world)\n", "            stage = rank\n"),
            ("[stage_of(a, rank, world) for", "[rank for"),
        ),
        says="simulate",
    ),
    Answer(
        4,
        "W waits for nothing",
        swap=('        return ("backward", action.microbatch, stage)\n', "        return None\n"),
        says="simulate",
    ),
    Answer(
        4,
        "the last stage needs no forward pass",
        swap=('return ("forward", action.microbatch, last)', "return None"),
        says="simulate",
    ),
    Answer(
        4,
        "what gets stuck is left out",
        swap=('raise ValueError(f"rank {rank} waits forever for what {actions[len(times[rank])]} needs")', "pass"),
        says="raises nothing",
    ),
    Answer(
        4,
        "an end at 0 is taken for none",
        swap=("if need and need not in ends:", "if need and not ends.get(need):"),
        says="'F': 0.0",
    ),
    Answer(4, "another error", swap=("raise ValueError(f", "raise RuntimeError(f"), says="raises RuntimeError"),
    Answer(
        4,
        "times are whole seconds",
        swap=(
            "times[rank].append((start, start +",
            "start = int(start)\n            times[rank].append((start, start +",
        ),
        says="at the wrong time",
    ),
    Answer(
        4,
        "times are rounded",
        swap=("start + seconds[action.kind]))", "round(start + seconds[action.kind], 1)))"),
        says="at the wrong time",
    ),
    Answer(
        4,
        "the error says nothing",
        swap=(
            'ValueError(f"rank {rank} waits forever for what {actions[len(times[rank])]} needs")',
            'ValueError("stuck")',
        ),
        says="does not name",
    ),
    Answer(
        4,
        "the error names the last action",
        swap=("{actions[len(times[rank])]} needs", "{actions[-1]} needs"),
        says="does not name",
    ),
    Answer(
        4,
        "the highest rank is named",
        swap=(
            "for rank, actions in enumerate(schedule):\n    if len(times[rank])",
            "for rank, actions in reversed(list(enumerate(schedule))):\n    if len(times[rank])",
        ),
        says="does not name",
    ),
    Answer(
        4,
        "the last stage is the last rank's first chunk",
        swap=("max(stages, default=0)", "world - 1"),
        says="simulate",
    ),
    Answer(
        4,
        "the time at which what it needs began",
        swap=("] = times[rank][-1][1]", "] = times[rank][-1][0]"),
        says="at the wrong time",
    ),
    Answer(4, "one round for each rank", swap=("while moved:", "for _ in schedule:"), says="simulate"),
    Answer(
        4,
        "action without its chunk",
        swap=(
            "what {actions[len(times[rank])]} needs",
            "what {actions[len(times[rank])].kind}{actions[len(times[rank])].microbatch} needs",
        ),
        says="rank 0 wants chunk 1 before chunk 0",
    ),
    Answer(
        4,
        "the last stage is the last chunk of the last rank",
        swap=(
            "last = max(stages, default=0)",
            """chunks = 1 + max((action.chunk for actions in schedule for action in actions), default=0)
last = chunks * world - 1""",
        ),
        says="waits forever",
    ),
]


RIGHT = [
    Answer(
        4,
        "backward from the last micro-batch to the first, as the paper does",
        swap=("for j in range(m)]\nreturn", "for j in reversed(range(m))]\nreturn"),
    ),
    Answer(
        4,
        "the first that can begin begins",
        [
            None,
            """
        world = len(schedule)
        last = max(stage_of(a, r, world) for r, actions in enumerate(schedule) for a in actions)
        there, times = {}, [[] for _ in schedule]
        for _ in range(sum(map(len, schedule))):
            for rank, actions in enumerate(schedule):
                if len(times[rank]) == len(actions):
                    continue
                a = actions[len(times[rank])]
                s = stage_of(a, rank, world)
                if a.kind == "F":
                    need = there.get(("F", a.microbatch, s - 1)) if s else 0.0
                elif a.kind == "W":
                    need = there.get(("B", a.microbatch, s))
                else:
                    need = there.get(("F", a.microbatch, s) if s == last else ("B", a.microbatch, s + 1))
                if need is None:
                    continue
                begin = max([need] + [end for _, end in times[rank][-1:]])
                times[rank].append((begin, begin + seconds[a.kind]))
                if a.kind != "W":
                    there["F" if a.kind == "F" else "B", a.microbatch, s] = begin + seconds[a.kind]
                break
            else:
                rank = min(r for r in range(world) if len(times[r]) < len(schedule[r]))
                raise ValueError(f"deadlock: {schedule[rank][len(times[rank])]!r} of rank {rank}")
        return times""",
        ],
    ),
    Answer(
        4,
        "recursion from each action to what it needs",
        [
            None,
            """
        world, found, doing = len(schedule), {}, set()
        place = {(a.kind if a.kind in "FW" else "B", a.microbatch, stage_of(a, r, world)): (r, n) for r, mine in enumerate(schedule) for n, a in enumerate(mine)}
        last = max((s for _, _, s in place), default=0)

        def end(r, n):
            if (r, n) in found:
                return found[r, n][1]
            if (r, n) in doing:
                raise KeyError
            doing.add((r, n))
            a = schedule[r][n]
            s = stage_of(a, r, world)
            begin = end(r, n - 1) if n else 0.0
            if a.kind == "F":
                need = ("F", a.microbatch, s - 1) if s else None
            elif a.kind == "W":
                need = ("B", a.microbatch, s)
            else:
                need = ("F", a.microbatch, s) if s == last else ("B", a.microbatch, s + 1)
            if need:
                begin = max(begin, end(*place[need]))
            found[r, n] = begin, begin + seconds[a.kind]
            return found[r, n][1]

        times = [[] for _ in schedule]
        for r, mine in enumerate(schedule):
            for n, a in enumerate(mine):
                doing.clear()
                try:
                    end(r, n)
                except KeyError:
                    raise ValueError(f"{a} can never begin: rank {r} waits") from None
                times[r].append(found[r, n])
        return times""",
        ],
    ),
]

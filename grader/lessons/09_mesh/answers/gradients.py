"""Other answers to TODOs 4 and 5 of 09_mesh."""

from grader.kit import Answer

WRONG = [
    Answer(4, "averaged over all", ["return 'average'", None], says="averaged along cp, where parts add up"),
    Answer(4, "added up over data", swap=('return "average"', 'return "sum"'), says="added up along dp"),
    Answer(
        4,
        "averaged along the context",
        swap=('if axis == "cp":\n    return "sum"', 'if axis == "cp":\n    return "average"'),
        says="0.333 times the right one: averaged along cp",
    ),
    Answer(
        4,
        "norms left alone",
        swap=('"sum" if fact.some and not fact.cut else "leave"', '"leave"'),
        says="left as this rank had it",
    ),
    Answer(
        4,
        "norms averaged along tp",
        swap=(
            '"sum" if fact.some and not fact.cut else "leave"',
            '"average" if fact.some and not fact.cut else "leave"',
        ),
        says="averaged along tp, where parts add up",
    ),
    Answer(
        4,
        "whole gradients added up along tp",
        swap=('"sum" if fact.some and not fact.cut else "leave"', '"leave" if fact.cut else "sum"'),
        says="it counts once for each rank of tp",
    ),
    Answer(
        4,
        "what is cut is added up",
        swap=("fact.some and not fact.cut", "fact.cut or fact.some"),
        says="though each rank has a different part",
    ),
    Answer(4, "the tied table left alone", swap=('"sum" if fact.tied else "leave"', '"leave"'), says="table"),
    Answer(
        4,
        "the tied table averaged",
        swap=('return "sum" if fact.tied else "leave"', 'return "average" if fact.tied else "leave"'),
        says="divided by the stages",
    ),
    Answer(
        4,
        "the tied table averaged over those who have it",
        swap=(
            ('return "sum" if fact.tied else "leave"', 'return "average" if fact.tied else "leave"'),
            ("mesh[axis].size()", "dist.get_world_size(group)"),
        ),
        says="averaged over the two ends",
    ),
    Answer(4, "the table right, the doing empty", [None, "return"], says="on rank"),
    Answer(4, "divided by all ranks", swap=("mesh[axis].size()", "dist.get_world_size()"), says="times the right one"),
    Answer(4, "never divided", swap=('if what == "average":', "if False:"), says="times the right one"),
    Answer(
        4,
        "only the first parameter",
        swap=("for name, parameter in parameters.items():", "for name, parameter in list(parameters.items())[:1]:"),
        says="on rank",
    ),
    Answer(
        4,
        "added up twice, halved",
        swap=(
            "dist.all_reduce(parameter.grad, group=group)",
            "dist.all_reduce(parameter.grad, group=group)\n        dist.all_reduce(parameter.grad, group=group)\n        parameter.grad /= dist.get_world_size(group)",
        ),
        says="bytes",
    ),
    Answer(
        4,
        "tied over all stages",
        swap=('ends if axis == "pp" else mesh.get_group(axis)', "mesh.get_group(axis)"),
        says="returned from sync_gradients",
    ),
    Answer(
        4,
        "tied over all stages of a long pipeline",
        swap=(
            'ends if axis == "pp" else mesh.get_group(axis)',
            'ends if axis == "pp" and mesh["pp"].size() < 4 else mesh.get_group(axis)',
        ),
        says="have returned from sync_gradients",
    ),
    Answer(
        4, "what shards is forgotten", swap=('axis in ("dp", "shard")', 'axis == "dp"'), says="added up along shard"
    ),
    Answer(
        5,
        "what the rank holds",
        ["return torch.stack([p.grad.norm() for p in parameters.values()]).norm().item()"],
        says="that is what the rank itself holds",
    ),
    Answer(
        5,
        "over all ranks, copies counted",
        [
            "total = sum(p.grad.double().square().sum() for p in parameters.values())\ntotal = torch.zeros((), dtype=torch.float64) + total\ndist.all_reduce(total)\nreturn total.sqrt().item()"
        ],
        says="squares are added up along dp",
    ),
    Answer(
        5,
        "whole parameters count t times",
        swap=("dist.all_reduce(mine[:1], group", "dist.all_reduce(mine, group"),
        says="a whole parameter is counted once for each rank of tp",
    ),
    Answer(
        5,
        "squares in place of gradients that are in float64 already",
        swap=(".double().square().sum()", ".double().square_().sum()"),
        says="which it is given, has another gradient afterwards",
    ),
    Answer(
        5,
        "a sum for each parameter along tp",
        """
        total = torch.zeros((), dtype=torch.float64)
        for name, parameter in parameters.items():
            if facts[name].tied and mesh.get_local_rank("pp") > 0:
                continue
            square = parameter.grad.double().square().sum()
            if facts[name].cut:
                dist.all_reduce(square, group=mesh.get_group("tp"))
            total += square
        dist.all_reduce(total, group=mesh.get_group("pp"))
        return total.sqrt().item()
        """,
        says="a few numbers are enough",
    ),
    Answer(
        5, "stages not added up", swap=('dist.all_reduce(mine, group=mesh.get_group("pp"))', ""), says="wrong on rank"
    ),
    Answer(
        5,
        "parts not added up",
        swap=('dist.all_reduce(mine[:1], group=mesh.get_group("tp"))', ""),
        says="wrong on rank",
    ),
    Answer(
        5,
        "the table counts twice",
        swap=('facts[name].tied and mesh.get_local_rank("pp") > 0', "False"),
        says="the tied table is counted on both ends",
    ),
    Answer(
        5,
        "the table never counts",
        swap=('facts[name].tied and mesh.get_local_rank("pp") > 0', "facts[name].tied"),
        says="the tied table is not counted",
    ),
    Answer(
        5,
        "norms added up",
        swap=("parameter.grad.double().square().sum()", "parameter.grad.double().norm()"),
        says="wrong on rank",
    ),
    Answer(
        5,
        "norms added up, without a root",
        swap=(
            ("parameter.grad.double().square().sum()", "parameter.grad.double().norm()"),
            ("mine.sum().sqrt().item()", "mine.sum().item()"),
        ),
        says="norms are added up, and not their squares",
    ),
    Answer(
        5,
        "the table and what is whole, wherever they are",
        swap=(
            ('facts[name].tied and mesh.get_local_rank("pp") > 0', "False"),
            ("dist.all_reduce(mine[:1], group", "dist.all_reduce(mine, group"),
        ),
        says="a whole parameter is counted once for each rank of tp",
    ),
    Answer(
        5,
        "in the gradients' dtype",
        swap=("parameter.grad.double().square().sum()", "parameter.grad.square().sum()"),
        says="bfloat16",
    ),
    Answer(5, "without the root", swap=("mine.sum().sqrt().item()", "mine.sum().item()"), says="that is its square"),
    Answer(
        5,
        "what is used on some tokens adds up",
        swap=("0 if facts[name].cut else 1", "0 if facts[name].cut or facts[name].some else 1"),
        says="wrong on rank",
    ),
    Answer(
        5,
        "only with parameters of its own kind",
        swap=(
            'dist.all_reduce(mine[:1], group=mesh.get_group("tp"))',
            'if mine[0] > 0:\n    dist.all_reduce(mine[:1], group=mesh.get_group("tp"))\nelse:\n    dist.all_reduce(mine, group=mesh.get_group("tp"))',
        ),
        says="on a mesh of tp 3: rank 0 skipped a call that the others make",
    ),
    Answer(
        5,
        "the gradients travel",
        swap=(
            "mine = torch.zeros(2, dtype=torch.float64)",
            "dist.all_reduce(torch.cat([p.grad.double().flatten() for p in parameters.values()] + [torch.zeros(200, dtype=torch.float64)])[:100])\nmine = torch.zeros(2, dtype=torch.float64)",
        ),
        says="bytes",
    ),
    Answer(
        4,
        "as many ranks along shard as along dp",
        swap=(
            "parameter.grad /= mesh[axis].size()",
            "parameter.grad /= mesh['dp' if 'dp' in mesh.mesh_dim_names else axis].size()",
        ),
        says="times the right one",
    ),
    Answer(
        5,
        "squares, element by element, along tp",
        swap=(
            (
                "mine[0 if facts[name].cut else 1] += parameter.grad.double().square().sum()",
                "squares = parameter.grad.double().square()\n    if facts[name].cut:\n        dist.all_reduce(squares, group=mesh.get_group('tp'))\n    mine[0 if facts[name].cut else 1] += squares.sum()",
            ),
            ('dist.all_reduce(mine[:1], group=mesh.get_group("tp"))\n', ""),
        ),
        says="a few numbers are enough",
    ),
    Answer(
        4,
        "a gradient of zeros is not sent",
        swap=(
            'if what == "leave" or group is None:',
            'if what == "leave" or group is None or not parameter.grad.any():',
        ),
        says="on a mesh of dp 3: rank 2 skipped a call",
    ),
    Answer(
        4,
        "row by row",
        swap=(
            "dist.all_reduce(parameter.grad, group=group)",
            "for row in parameter.grad:\n            dist.all_reduce(row, group=group)",
        ),
        says="for gradients that each need one along each axis at most",
    ),
    Answer(
        5,
        "the tied one is known by its name",
        swap=("facts[name].tied and mesh", 'name.endswith("table") and mesh'),
        says="is wrong on rank",
    ),
    Answer(
        5,
        "what is cut is known by its name",
        swap=("0 if facts[name].cut", '0 if ".up" in name'),
        says="is wrong on rank",
    ),
    Answer(
        4,
        "contiguous copies are summed",
        swap=(
            "dist.all_reduce(parameter.grad, group=group)",
            "whole = parameter.grad.contiguous()\n        dist.all_reduce(whole, group=group)",
        ),
        says="in channels_last",
    ),
    Answer(
        4,
        "views are summed",
        swap=("dist.all_reduce(parameter.grad, group=group)", "dist.all_reduce(parameter.grad.view(-1), group=group)"),
        says="view size is not compatible",
    ),
    Answer(
        5,
        "a rank that has only zeros keeps out of the sum over the stages",
        swap=(
            'dist.all_reduce(mine, group=mesh.get_group("pp"))',
            'if mine.any():\n    dist.all_reduce(mine, group=mesh.get_group("pp"))',
        ),
    ),
    Answer(
        5,
        "a rank whose parts have only zeros keeps out of their sum",
        swap=(
            'dist.all_reduce(mine[:1], group=mesh.get_group("tp"))',
            "if mine[0] > 0 or not any(fact.cut for fact in facts.values()):\n"
            '    dist.all_reduce(mine[:1], group=mesh.get_group("tp"))',
        ),
    ),
]


RIGHT = [
    Answer(
        4,
        "one vector for each axis",
        [
            None,
            """
            for axis in mesh.mesh_dim_names:
                group = ends if axis == "pp" else mesh.get_group(axis)
                for what in ("average", "sum"):
                    grads = [p.grad for name, p in parameters.items() if due(axis, facts[name]) == what]
                    if group is None or not grads:
                        continue
                    vector = torch.cat([grad.flatten() for grad in grads])
                    dist.all_reduce(vector, group=group)
                    vector /= mesh[axis].size() if what == "average" else 1
                    for grad, piece in zip(grads, vector.split([grad.numel() for grad in grads])):
                        grad.copy_(piece.view_as(grad))
            """,
        ],
        says="in a different order on rank",
    ),
    Answer(
        4,
        "averaged before it is added up",
        [
            None,
            """
            works = []
            for axis in reversed(mesh.mesh_dim_names):
                group = mesh.get_group(axis) if axis != "pp" else ends
                for name, parameter in parameters.items():
                    todo = due(axis, facts[name])
                    if group is not None and todo != "leave":
                        if todo == "average":
                            parameter.grad.div_(mesh.size(mesh.mesh_dim_names.index(axis)))
                        works.append(dist.all_reduce(parameter.grad, group=group, async_op=True))
                for work in works:
                    work.wait()
            """,
        ],
    ),
    Answer(
        4,
        "all gradients of one kind in one vector",
        [
            """
            table = {"dp": "average", "shard": "average", "cp": "sum"}
            table["tp"] = "leave" if fact.cut or not fact.some else "sum"
            table["pp"] = "sum" if fact.tied else "leave"
            return table[axis]
            """,
            """
            for axis in mesh.mesh_dim_names:
                group = ends if axis == "pp" else mesh.get_group(axis)
                for kind in ("average", "sum"):
                    mine = [p for name, p in parameters.items() if due(axis, facts[name]) == kind]
                    if mine and group is not None:
                        flat = torch.cat([p.grad.flatten() for p in mine])
                        dist.all_reduce(flat, group=group)
                        if kind == "average":
                            flat /= mesh[axis].size()
                        for p, part in zip(mine, flat.split([p.numel() for p in mine])):
                            p.grad = part.view_as(p).clone()
            """,
        ],
    ),
    Answer(
        5,
        "copies divided out",
        """
        total = torch.zeros(1, dtype=torch.float64)
        stages, parts = mesh["pp"].size(), mesh["tp"].size()
        for name, p in parameters.items():
            held_by = (1 if facts[name].cut else parts) * (2 if facts[name].tied and stages > 1 else 1)
            total += p.grad.double().pow(2).sum() / held_by
        for axis in ("pp", "tp"):
            dist.all_reduce(total, group=mesh.get_group(axis))
        return total.sqrt()[0]
        """,
    ),
    Answer(
        5,
        "counted by the first of each line, gathered as float32",
        """
        first = mesh.get_local_rank("tp") == 0
        total = torch.zeros(())
        for name, p in parameters.items():
            if facts[name].tied and mesh.get_local_rank("pp") != 0:
                continue
            if facts[name].cut or first:
                total += p.grad.float().norm() ** 2
        dist.all_reduce(total, group=mesh.get_group("tp"))
        dist.all_reduce(total, group=mesh.get_group("pp"))
        return float(total) ** 0.5
        """,
    ),
    Answer(
        5,
        "summed along tp only where something is cut",
        swap=(
            'dist.all_reduce(mine[:1], group=mesh.get_group("tp"))',
            'if any(facts[name].cut for name in parameters):\n    dist.all_reduce(mine[:1], group=mesh.get_group("tp"))',
        ),
    ),
]

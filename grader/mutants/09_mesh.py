"""Other answers to the TODOs of 09_mesh."""

from grader.kit import Answer

WRONG = [
    Answer(
        1,
        "ranks spread evenly over the nodes",
        swap=(
            "if following // per_node != rank // per_node:",
            "world = math.prod(shape)\n        count = -(-world // per_node)\n"
            "        if following * count // world != rank * count // world:",
        ),
        says="bytes_between_nodes",
    ),
    Answer(
        1,
        "the first axis changes fastest",
        swap=("zip(order, shape, strict=True)", "zip(order[::-1], shape[::-1], strict=True)"),
        says="bytes_between_nodes",
    ),
    Answer(
        1,
        "the pipeline is a ring",
        swap=('axis == "pp" and place == length - 1', "False"),
        says="along pp the last stage sends on to the first",
    ),
    Answer(
        1,
        "a ring that nothing comes back on",
        swap=(('axis == "pp" and place == length - 1', "False"), ('(2 if axis == "pp" else 1)', "1")),
        says="pp is taken for a ring",
    ),
    Answer(
        1, "activations, but no gradients", swap=('(2 if axis == "pp" else 1)', "1"), says="along pp nothing comes back"
    ),
    Answer(
        1,
        "rings that do not close",
        swap=('axis == "pp" and place == length - 1', "place == length - 1"),
        says="rings are not closed",
    ),
    Answer(
        1,
        "counted once, and not for all ranks",
        swap=("for rank in range(math.prod(shape)):", "for rank in range(per_node):"),
        says="bytes_between_nodes",
    ),
    Answer(
        1,
        "all that is sent, wherever it goes",
        swap=("if following // per_node != rank // per_node:", "if following != rank:"),
        says="bytes_between_nodes",
    ),
    Answer(1, "as if all lines had two ranks", swap=("(place + 1) % length", "1 - place"), says="bytes_between_nodes"),
    Answer(1, "the worst order", swap=("min(orders", "max(orders"), says="best_order"),
    Answer(1, "as the axes come", [None, "return tuple(sizes)"], says="best_order"),
    Answer(
        1,
        "always the rule",
        [None, "return tuple(axis for axis in ('pp', 'dp', 'shard', 'cp', 'tp') if axis in sizes)"],
        says="best_order",
    ),
    Answer(
        1,
        "who sends most, wherever its line is long",
        [None, "return tuple(sorted(sizes, key=sizes.get))"],
        says="best_order",
    ),
    Answer(
        1,
        "who sends most innermost",
        [None, "return tuple(sorted(sizes, key=lambda axis: sent[axis]))"],
        says="best_order is not the one that sends the fewest bytes",
    ),
    Answer(
        1,
        "whose line sends most innermost",
        [None, "return tuple(sorted(sizes, key=lambda axis: sent[axis] * sizes[axis]))"],
        says="best_order is not the one that sends the fewest bytes",
    ),
    Answer(
        2,
        "another of the best orders on each rank",
        [
            """
        orders = list(itertools.permutations(sizes))
        costs = [bytes_between_nodes(order, sizes, sent, per_node) for order in orders]
        best = [order for order, cost in zip(orders, costs) if cost == min(costs)]
        order = best[dist.get_rank() % len(best)]
        return init_device_mesh("cpu", tuple(sizes[axis] for axis in order), mesh_dim_names=order)
        """,
            None,
        ],
        says="in a different order on rank",
    ),
    Answer(
        2,
        "as the axes come",
        ["return init_device_mesh('cpu', tuple(sizes.values()), mesh_dim_names=tuple(sizes))", None],
        says="make_mesh",
    ),
    Answer(
        2,
        "names in the best order, sizes as they come",
        swap=("tuple(sizes[axis] for axis in order)", "tuple(sizes.values())"),
        says="make_mesh",
    ),
    Answer(
        2,
        "tensor outermost",
        swap=("order = best_order(sizes, sent, per_node)", "order = best_order(sizes, sent, per_node)[::-1]"),
        says="make_mesh",
    ),
    Answer(
        2,
        "axes of one rank are left out",
        swap=(
            "order = best_order(sizes, sent, per_node)",
            "order = tuple(a for a in best_order(sizes, sent, per_node) if sizes[a] > 1)",
        ),
        says="make_mesh",
    ),
    Answer(
        2,
        "the next rank by number",
        [
            None,
            "stage, stages, rank = mesh.get_local_rank('pp'), mesh['pp'].size(), dist.get_rank()\nreturn (rank - 1 if stage else None), (rank + 1 if stage + 1 < stages else None)",
        ],
        says="stage_neighbours",
    ),
    Answer(
        2,
        "a pipeline is outermost",
        [
            None,
            "stage, stages, rank = mesh.get_local_rank('pp'), mesh['pp'].size(), dist.get_rank()\nstride = dist.get_world_size() // stages\nreturn (rank - stride if stage else None), (rank + stride if stage + 1 < stages else None)",
        ],
        says="stage_neighbours",
    ),
    Answer(
        2,
        "round in a ring",
        swap=("line[stage - 1] if stage > 0 else None", "line[stage - 1]"),
        says="stage_neighbours",
    ),
    Answer(
        2,
        "places, not ranks",
        swap=('dist.get_process_group_ranks(mesh.get_group("pp"))', "list(range(mesh['pp'].size()))"),
        says="stage_neighbours",
    ),
    Answer(2, "after, then before", swap=("return before, after", "return after, before"), says="stage_neighbours"),
    Answer(
        3, "dealt out over the world", ["return dist.get_rank(), dist.get_world_size()", None, None], says="data_place"
    ),
    Answer(3, "ranks that shard read the same", swap=('("dp", "shard")', '("dp",)'), says="data_place"),
    Answer(3, "context ranks read other samples", swap=('("dp", "shard")', '("dp", "shard", "cp")'), says="data_place"),
    Answer(3, "stages read other samples", swap=('("dp", "shard")', '("pp", "dp", "shard")'), says="data_place"),
    Answer(
        3,
        "numbers that collide",
        swap=("number = number * mesh[axis].size() + mesh.get_local_rank(axis)", "number += mesh.get_local_rank(axis)"),
        says="the same number",
    ),
    Answer(
        3,
        "a sampler over the world",
        swap=("DistributedSampler(data, players, number, shuffle=True", "DistributedSampler(data, shuffle=True"),
        says="does not read the samples",
    ),
    Answer(3, "in order", swap=("shuffle=True", "shuffle=False"), says="samples of one process"),
    Answer(3, "the seed dropped", swap=("seed=seed", "seed=0"), says="samples of one process"),
    Answer(3, "filled up", swap=("drop_last=True", "drop_last=False"), says="reads"),
    Answer(3, "each rank a seed of its own", swap=("seed=seed", "seed=seed + number"), says="samples of one process"),
    Answer(
        3, "places from 0 on each rank", swap=("torch.arange(mine.start, mine.stop)", "torch.arange(t)"), says="places"
    ),
    Answer(
        3,
        "places of the words' dtype",
        swap=("torch.arange(mine.start, mine.stop)", "torch.arange(mine.start, mine.stop, dtype=x_BT.dtype)"),
        says="the places of rank 0 have a different dtype",
    ),
    Answer(3, "targets whole", swap=("y_BT[:, mine]", "y_BT"), says="targets"),
    Answer(
        3,
        "sequences in place of tokens",
        swap=("return x_BT[:, mine], y_BT[:, mine]", "return x_BT[mine], y_BT[mine]"),
        says="words",
    ),
    Answer(
        3,
        "dealt out by turns",
        swap=(
            "return x_BT[:, mine], y_BT[:, mine], torch.arange(mine.start, mine.stop)",
            "return x_BT[:, part::parts], y_BT[:, part::parts], torch.arange(part, x_BT.shape[1], parts)",
        ),
        says="of rank",
    ),
    Answer(
        3,
        "a row of copies is as long as there are copies",
        swap=("number = number * mesh[axis].size() +", "number = number * players +"),
    ),
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
        says="on rank",
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
        1,
        "the best order is remembered by the sizes alone",
        swap=(
            "return min(orders, key=lambda order: bytes_between_nodes(order, sizes, sent, per_node))",
            """best = f"best {sizes} {per_node}"
if best not in globals():
    globals()[best] = min(orders, key=lambda order: bytes_between_nodes(order, sizes, sent, per_node))
return globals()[best]""",
        ),
        says="best_order is not the one that sends the fewest",
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
        1,
        "by coordinates",
        [
            """
            shape = [sizes[axis] for axis in order]
            places = list(itertools.product(*map(range, shape)))
            number = {place: rank for rank, place in enumerate(places)}
            total = 0
            for place in places:
                for i, axis in enumerate(order):
                    if axis == "pp" and place[i] + 1 == shape[i]:
                        continue
                    there = number[*place[:i], (place[i] + 1) % shape[i], *place[i + 1 :]]
                    if there // per_node != number[place] // per_node:
                        total = total + sent[axis] + (sent[axis] if axis == "pp" else 0)
            return total
            """,
            "return sorted(itertools.permutations(sizes), key=lambda o: bytes_between_nodes(o, sizes, sent, per_node))[0]",
        ],
    ),
    Answer(
        1,
        "as a list, of several best ones the last",
        [
            None,
            "return min(reversed(list(itertools.permutations(sizes))), key=lambda o: bytes_between_nodes(list(o), sizes, sent, per_node))",
        ],
    ),
    Answer(
        2,
        "from the mesh's own table",
        [
            "order = list(best_order(sizes, sent, per_node))\nranks = torch.arange(dist.get_world_size()).view([sizes[a] for a in order])\nreturn DeviceMesh('cpu', ranks, mesh_dim_names=tuple(order))",
            """
            axis = mesh.mesh_dim_names.index("pp")
            place = list(mesh.get_coordinate())
            def at(stage):
                if not 0 <= stage < mesh.size(axis):
                    return None
                other = place[:axis] + [stage] + place[axis + 1 :]
                return mesh.mesh[tuple(other)].item()
            return at(place[axis] - 1), at(place[axis] + 1)
            """,
        ],
    ),
    Answer(
        2,
        "by strides",
        [
            None,
            "axis = mesh.mesh_dim_names.index('pp')\nstride, stage = math.prod(mesh.mesh.shape[axis + 1 :]), mesh.get_local_rank('pp')\nrank = dist.get_rank()\nreturn [rank - stride if stage else None, rank + stride if stage + 1 < mesh.size(axis) else None]",
        ],
    ),
    Answer(3, "numbered the other way round", swap=('for axis in ("dp", "shard"):', 'for axis in ("shard", "dp"):')),
    Answer(
        3,
        "a sampler of one's own",
        [
            None,
            """
            class Dealt(Sampler):
                epoch = 0
                def set_epoch(self, epoch):
                    self.epoch = epoch
                def __iter__(self):
                    number, players = data_place(mesh)
                    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed + self.epoch)).tolist()
                    return iter(order[number :: players][: len(data) // players])
                def __len__(self):
                    return len(data) // data_place(mesh)[1]
            return Dealt()
            """,
            "parts = mesh['cp'].size() if 'cp' in mesh.mesh_dim_names else 1\npart = mesh.get_local_rank('cp') if parts > 1 else 0\nplaces = torch.arange(x_BT.shape[1])\nreturn x_BT.chunk(parts, 1)[part], y_BT.chunk(parts, 1)[part], places.chunk(parts)[part]",
        ],
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

"""Other answers to TODOs 1 and 2 of 09_mesh."""

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
]


RIGHT = [
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
]

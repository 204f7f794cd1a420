"""Other answers to TODOs 1 to 3 of context_training."""

from grader.kit import Answer

NAMES = 'mesh_dim_names=("data", "context")'


WRONG = [
    # TODO 1
    Answer(
        1,
        "the axes swapped: the ranks of a row are on several nodes",
        [f"return init_device_mesh(device.type, (args.cp, world_size // args.cp), {NAMES})", None],
        says="the grid is",
    ),
    Answer(
        1,
        "columns share a sequence",
        [
            f"""
        grid = torch.arange(world_size).view(args.cp, -1).T.contiguous()
        return DeviceMesh(device.type, grid, {NAMES})
        """,
            None,
        ],
        says="consecutive numbers",
    ),
    Answer(1, "the names swapped", swap=('("data", "context")', '("context", "data")'), says="are called context"),
    Answer(
        1,
        "one axis",
        ["return init_device_mesh(device.type, (world_size,), mesh_dim_names=('data',))", None],
        says="not in a grid",
    ),
    Answer(1, "nothing", ["return None", None], says="returns None"),
    Answer(
        1,
        "the sampler of the world",
        swap=("DistributedSampler(train, rows, row, shuffle", "DistributedSampler(train, shuffle"),
        says="read different train samples",
    ),
    Answer(
        1,
        "validation over the world",
        swap=("ShardSampler(validation, row, rows)", "ShardSampler(validation)"),
        says="read different validation samples",
    ),
    Answer(
        1,
        "samples by the context axis",
        swap=(
            'mesh.get_local_rank("data"), mesh["data"].size()',
            'mesh.get_local_rank("context"), mesh["context"].size()',
        ),
        says="read different",
    ),
    # TODO 2
    Answer(2, "consecutive parts for the ring, too", swap=('args.cp_method == "ring"', "False"), says="causal work"),
    Answer(2, "zig-zag for Ulysses, too", swap=('args.cp_method == "ring"', "True"), says="consecutive"),
    Answer(
        2,
        "the pieces in descending order",
        swap=("return places_in_zigzag(rank, world, tokens)", "return places_in_zigzag(rank, world, tokens).flip(0)"),
        says="is not what it should be",
    ),
    Answer(
        2,
        "the rank on the data axis",
        swap=('mesh.get_local_rank("context")', 'mesh.get_local_rank("data")'),
        says="my_places",
    ),
    Answer(
        2,
        "positions counted on the rank",
        swap=("positions[..., places]", "torch.arange(len(places))"),
        says="numbered on the rank",
    ),
    Answer(2, "targets left whole", swap=("y[:, places]", "y"), says="share has as y"),
    Answer(2, "targets of the next rank", swap=("y[:, places]", "y.roll(-1, 1)[:, places]"), says="share has as y"),
    Answer(2, "positions left whole", swap=("positions[..., places]", "positions"), says="share has as positions"),
    Answer(2, "documents cut", swap=(", documents)", ", y[:, places])"), says="has documents"),
    # TODO 3
    Answer(3, "the ring's group is the column", swap=('get_group("context")', 'get_group("data")'), says=""),
    Answer(3, "always the ring", swap=('self.args.cp_method == "ring"', "True"), says=""),
    Answer(3, "always Ulysses", swap=('self.args.cp_method == "ring"', "False"), says=""),
    Answer(
        3,
        "every rank sees every key",
        swap=(
            "ring_attention(q_BHCK, k_BHCK, v_BHCK, self.ring_blocks(tokens), group)",
            "ring_attention(q_BHCK, k_BHCK, v_BHCK, lambda source: [(slice(None), slice(None), None)], group)",
        ),
        says="output",
    ),
    Answer(
        3,
        "without gradients",
        swap=(
            "return ring_attention(q_BHCK, k_BHCK, v_BHCK, self.ring_blocks(tokens), group)",
            "return ring_attention(q_BHCK.detach(), k_BHCK, v_BHCK, self.ring_blocks(tokens), group)",
        ),
        says="gradient of q",
    ),
    Answer(
        3,
        "the scale of the head twice",
        swap=("ring_attention(q_BHCK, k", "ring_attention(q_BHCK / q_BHCK.shape[-1] ** 0.5, k"),
        says="output",
    ),
    # What others made of the text and the solution alone
    Answer(2, "places as positions with --pack", [None, "return Share(x[:, places], y[:, places], places, documents)"]),
    Answer(
        2,
        "documents cut with the tokens",
        swap=(", documents)", ", documents if documents is None else documents[:, places])"),
    ),
    Answer(2, "no documents", swap=(", documents)", ", None)")),
    Answer(
        2,
        "positions that start anew in the part",
        swap=(
            "positions[..., places]",
            "positions[places] if documents is None else positions_in(documents[:, places])",
        ),
    ),
    Answer(3, "no mask for Ulysses", swap=("group, self.whole_mask(tokens))", "group)"), says="with documents"),
    Answer(
        3,
        "the ring without documents",
        swap=("self.ring_blocks(tokens)", "in_zigzag(dist.get_rank(group), dist.get_world_size(group), tokens)"),
        says="without documents",
    ),
    Answer(3, "the mask of a part", swap=("self.whole_mask(tokens)", "self.whole_mask(q_BHCK.shape[2])")),
    Answer(
        3,
        "the first sequence's mask for all",
        swap=(
            "return ulysses(q_BHCK, k_BHCK, v_BHCK, group, self.whole_mask(tokens))",
            "mask = self.whole_mask(tokens)\n    return ulysses(q_BHCK, k_BHCK, v_BHCK, group, mask if mask is None else mask[:1])",
        ),
    ),
]


RIGHT = [
    Answer(
        1,
        "from a table of ranks",
        [f"return DeviceMesh(device.type, torch.arange(world_size).view(-1, args.cp), {NAMES})", None],
    ),
    Answer(
        1,
        "the row by its arithmetic",
        [
            None,
            """
        row, rows = dist.get_rank() // mesh["context"].size(), dist.get_world_size() // mesh["context"].size()
        return (
            DistributedSampler(train, num_replicas=rows, rank=row, shuffle=True, seed=args.seed, drop_last=True),
            ShardSampler(validation, rank=row, world_size=rows),
            ShardSampler(test, rank=row, world_size=rows),
        )
        """,
        ],
    ),
    Answer(
        2,
        "by arithmetic",
        [
            """
        rank, world = mesh.get_local_rank("context"), mesh["context"].size()
        if args.cp_method == "ulysses":
            part = tokens // world
            return torch.arange(rank * part, (rank + 1) * part)
        size = tokens // (2 * world)
        late = 2 * world - 1 - rank
        return torch.tensor([*range(rank * size, (rank + 1) * size), *range(late * size, (late + 1) * size)])
        """,
            """
        return Share(
            x.index_select(1, places), y.index_select(1, places), positions.index_select(-1, places), documents
        )
        """,
        ],
    ),
    Answer(
        3,
        "each in its own way",
        [
            """
        ring = self.args.cp_method == "ring"
        attend, seen = (ring_attention, self.ring_blocks) if ring else (None, self.whole_mask)
        group = self.mesh["context"].get_group()
        if ring:
            return attend(q_BHCK, k_BHCK, v_BHCK, seen(tokens), group)
        return ulysses(q_BHCK, k_BHCK, v_BHCK, group=group, mask=seen(tokens))
        """
        ],
    ),
]

"""Other answers to the TODOs of context_training: what is often wrong, and what is right as well."""

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
    Answer(2, "targets left whole", swap=("y[:, places]", "y"), says="share's y"),
    Answer(2, "targets of the next rank", swap=("y[:, places]", "y.roll(-1, 1)[:, places]"), says="share's y"),
    Answer(2, "positions left whole", swap=("positions[..., places]", "positions"), says="share's positions"),
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
    # TODO 4
    Answer(4, "FSDP's mean forgotten", swap=(" * dist.get_world_size()", ""), says="FSDP divides"),
    Answer(4, "division by the ranks' own number", swap=("dist.all_reduce(everyones)", "pass"), says="factor"),
    Answer(4, "nan where nothing counts", swap=("everyones.clamp(min=1)", "everyones"), says="returns nan"),
    Answer(4, "divided by nothing", swap=(" * dist.get_world_size() / everyones.clamp(min=1)", ""), says="nothing"),
    Answer(4, "all positions count", swap=("(y != IGNORE).sum()", "torch.tensor(y.numel())"), says="factor"),
    Answer(
        4,
        "a rank without targets leaves",
        swap=("everyones = mine.clone()", "if not mine:\n        return loss * 0\n    everyones = mine.clone()"),
        says="",
    ),
    Answer(4, "the loss without its graph", swap=("return loss * mine", "return loss.detach() * mine"), says=""),
    Answer(
        4,
        "each rank's count is 1 at least",
        swap=("mine = (y != IGNORE).sum()", "mine = (y != IGNORE).sum().clamp(min=1)"),
        says="factor",
    ),
    # TODO 5
    Answer(5, "every target", swap=("(share.y != IGNORE).sum()", "share.y.numel()"), says="mean is wrong"),
    Answer(5, "a mean of means", swap=("(share.y != IGNORE).sum()", "torch.tensor(1)"), says="mean is wrong"),
    Answer(
        5,
        "windows that are short are left out",
        swap=("n_targets = (share.y != IGNORE).sum()", "n_targets = (share.y != IGNORE).all() * share.y.numel()"),
        says="mean is wrong",
    ),
    # TODO 6
    Answer(6, "sharded over the data axis", swap=('{"mesh": everyone,', '{"mesh": mesh["data"],'), says="numbers"),
    Answer(6, "copies along the data axis", swap=('{"mesh": everyone,', '{"mesh": mesh,'), says="numbers"),
    Answer(6, "sharded over the row", swap=('{"mesh": everyone,', '{"mesh": mesh["context"],'), says="numbers"),
    # TODO 7
    Answer(
        7,
        "positions of the sequence",
        ["return torch.arange(documents.shape[1], device=documents.device).expand_as(documents)", None],
        says="places in the sequence",
    ),
    Answer(7, "no mask", [None, "return None"], says="mask"),
    Answer(7, "the mask turned round", swap=("[:, queries, None] ==", "[:, queries, None] !="), says="opposite"),
    Answer(
        7,
        "rows and columns swapped",
        swap=(
            "(documents[:, queries, None] == documents[:, None, keys])",
            "(documents[:, keys, None] == documents[:, None, queries])",
        ),
        says="mask",
    ),
    Answer(
        7,
        "the first sequence's documents for all",
        swap=(
            "(documents[:, queries, None] == documents[:, None, keys])",
            "(documents[:1, queries, None] == documents[:1, None, keys])",
        ),
        says="mask",
    ),
    Answer(7, "positions from 1", swap=("cummax(dim=1).values", "cummax(dim=1).values + 1"), says="positions_in"),
    Answer(
        7,
        "only a document's number of zero counts",
        swap=("documents[:, 1:] != documents[:, :-1]", "documents[:, 1:] == 0"),
        says="positions_in",
    ),
    Answer(7, "no dimension for the heads", swap=("keys])[:, None]", "keys])"), says="has shape"),
    Answer(
        7,
        "earlier documents are seen",
        swap=("(documents[:, queries, None] ==", "(documents[:, queries, None] >="),
        says="mask",
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
    Answer(4, "targets above 0", swap=("y != IGNORE", "y > 0"), says="factor"),
    Answer(
        5,
        "targets without what --pack hides",
        swap=("(share.y != IGNORE).sum()", "(y[:, my_places(y.shape[1], mesh, args).to(y.device)] != IGNORE).sum()"),
        says="with --pack",
    ),
    Answer(5, "words above 0", swap=("share.y != IGNORE", "share.y > 0"), says="mean is wrong"),
    Answer(5, "<eos> does not count", swap=("share.y != IGNORE", "(share.y != IGNORE) & (share.y != eos)")),
    Answer(6, "the weights' dtype forgotten", swap=(', "mp_policy": precision(args)', ""), says="bfloat16"),
    Answer(
        7,
        "positions of the first sequence for all",
        swap=("documents[:, 1:] != documents[:, :-1]", "documents[:1, 1:] != documents[:1, :-1]"),
        says="positions_in",
    ),
]

RIGHT = [
    Answer(
        4,
        "by the mean number of targets",
        """
        mine = (y != IGNORE).sum()
        mean = mine.double()
        dist.all_reduce(mean)
        mean /= dist.get_world_size()
        return loss * (mine / mean) if mean > 0 else loss
        """,
    ),
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
    Answer(
        4,
        "in float64",
        [
            """
        counts = torch.zeros(dist.get_world_size(), dtype=torch.float64, device=y.device)
        counts[dist.get_rank()] = (y != IGNORE).sum()
        dist.all_reduce(counts)
        if counts.sum() == 0:
            return loss * 0
        return loss * (counts[dist.get_rank()] / counts.mean())
        """
        ],
    ),
    Answer(
        5,
        "with a sum over targets",
        [
            """
        share = my_share(x, y, eos, mesh, args)
        n_targets = torch.count_nonzero(share.y + 100)
        total += float(compute_loss(model, share, args)) * n_targets
        """
        ],
    ),
    Answer(
        6,
        "by a mesh of a table",
        [
            """
        everyone = DeviceMesh(mesh.device_type, mesh.mesh.flatten(), mesh_dim_names=("all",))
        options = {"mesh": everyone, "mp_policy": precision(args)}
        """
        ],
    ),
    Answer(6, "without naming a mesh: all ranks", ['options = {"mp_policy": precision(args)}']),
    Answer(
        7,
        "a sequence's first place begins nothing: it is 0",
        swap=("begins = torch.ones_like(documents, dtype=torch.bool)", "begins = torch.zeros_like(documents).bool()"),
    ),
    Answer(
        7,
        "by comparing all pairs",
        [
            """
        same = documents[:, :, None] == documents[:, None, :]
        return same.tril().sum(dim=2) - 1
        """,
            """
        table = documents.unsqueeze(1).unsqueeze(3) == documents.unsqueeze(1).unsqueeze(2)
        return table.index_select(2, queries.to(table.device)).index_select(3, keys.to(table.device))
        """,
        ],
    ),
]

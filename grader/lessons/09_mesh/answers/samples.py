"""Other answers to TODO 3 of 09_mesh."""

from grader.kit import Answer

WRONG = [
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
]


RIGHT = [
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
]

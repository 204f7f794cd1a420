"""Other answers to TODOs 6 and 7 of lightning_training."""

from grader.kit import Answer

TRAIN_SAMPLER = """
        sampler = DistributedSampler(
            self.train, num_replicas=self.trainer.world_size, rank=self.trainer.global_rank, shuffle=True, seed=self.args.seed, drop_last=True
        )"""


WRONG = [
    Answer(
        7,
        "batches no larger than the share",
        swap=("batch_size=batch_size", "batch_size=min(batch_size, len(sampler))"),
        says="batch_size",
    ),
    Answer(
        7,
        "the validation set's sampler for both",
        swap=("ShardSampler(samples,", "ShardSampler(self.validation,"),
        says="the test loader reads a different set",
    ),
    Answer(
        6,
        "the global batch on each rank",
        TRAIN_SAMPLER
        + """
        return DataLoader(self.train, batch_size=self.args.batch_size, sampler=sampler, drop_last=True, **self.common)
        """,
        says="global batch",
    ),
    Answer(
        6,
        "shuffled by each rank for itself",
        """
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(self.train, batch_size=batch_size, shuffle=True, drop_last=True, **self.common)
        """,
        says="more than a share",
    ),
    Answer(
        6,
        "the order of one process on every rank",
        """
        batch_size = self.args.batch_size // self.trainer.world_size
        order = EpochOrder(self.train, self.args.seed)
        return DataLoader(self.train, batch_size=batch_size, sampler=order, drop_last=True, **self.common)
        """,
        says="more than a share",
    ),
    Answer(
        6,
        "the seed forgotten",
        """
        sampler = DistributedSampler(self.train, self.trainer.world_size, self.trainer.global_rank, drop_last=True)
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(self.train, batch_size=batch_size, sampler=sampler, drop_last=True, **self.common)
        """,
        says="shuffled by args.seed",
    ),
    Answer(
        6,
        "not shuffled",
        """
        sampler = DistributedSampler(self.train, self.trainer.world_size, self.trainer.global_rank, shuffle=False, drop_last=True)
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(self.train, batch_size=batch_size, sampler=sampler, drop_last=True, **self.common)
        """,
    ),
    Answer(
        6,
        "the epoch hidden from Lightning",
        TRAIN_SAMPLER
        + """
        from torch.utils.data import BatchSampler
        batches = list(BatchSampler(sampler, self.args.batch_size // self.trainer.world_size, drop_last=True))
        return DataLoader(self.train, batch_sampler=batches, **self.common)
        """,
        says="in epoch 2",
    ),
    Answer(
        6,
        "padded",
        """
        sampler = DistributedSampler(self.train, self.trainer.world_size, self.trainer.global_rank, seed=self.args.seed)
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(self.train, batch_size=batch_size, sampler=sampler, drop_last=True, **self.common)
        """,
        says="padded",
    ),
    Answer(
        6,
        "the short last batch kept",
        TRAIN_SAMPLER
        + """
        return DataLoader(self.train, batch_size=self.args.batch_size // self.trainer.world_size, sampler=sampler, **self.common)
        """,
        says="short batch",
    ),
    Answer(
        7,
        "padded by DistributedSampler",
        """
        sampler = DistributedSampler(samples, self.trainer.world_size, self.trainer.global_rank, shuffle=False)
        return DataLoader(samples, batch_size=self.args.batch_size, sampler=sampler, **self.common)
        """,
        says="padded",
    ),
    Answer(
        7,
        "the last samples dropped by DistributedSampler",
        """
        sampler = DistributedSampler(samples, self.trainer.world_size, self.trainer.global_rank, shuffle=False, drop_last=True)
        return DataLoader(samples, batch_size=self.args.batch_size, sampler=sampler, **self.common)
        """,
        says="no rank reads",
    ),
    Answer(
        7,
        "the last batch dropped",
        """
        sampler = ShardSampler(samples, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(samples, batch_size=2, sampler=sampler, drop_last=True, **self.common)
        """,
        says="no rank reads",
    ),
    Answer(
        7,
        "always the validation set",
        """
        sampler = ShardSampler(self.validation, self.trainer.global_rank, self.trainer.world_size)
        return DataLoader(self.validation, batch_size=self.args.batch_size, sampler=sampler, **self.common)
        """,
        says="a different set",
    ),
    Answer(
        7,
        "the first rank's share everywhere",
        """
        sampler = ShardSampler(samples, 0, self.trainer.world_size)
        return DataLoader(samples, batch_size=self.args.batch_size, sampler=sampler, **self.common)
        """,
    ),
    Answer(
        6,
        "dealt by the local rank",
        swap=("rank=self.trainer.global_rank", "rank=self.trainer.local_rank"),
        says="on 3 nodes with one rank each",
    ),
    Answer(
        6,
        "the ranks of a node share the batch",
        swap=(
            "self.args.batch_size // self.trainer.world_size",
            'self.args.batch_size // int(os.environ["LOCAL_WORLD_SIZE"])',
        ),
        says="on 3 nodes with one rank each",
    ),
    Answer(
        7,
        "dealt by the local rank",
        swap=("self.trainer.global_rank", "self.trainer.local_rank"),
        says="on 3 nodes with one rank each",
    ),
    Answer(6, "the same order in each epoch", swap=("shuffle=True", "shuffle=False")),
    Answer(7, "the number on the node", swap=("self.trainer.global_rank", "self.trainer.local_rank")),
    Answer(
        6,
        "the first loader for ever",
        """
        if not hasattr(Data, "kept"):
            world = self.trainer.world_size
            sampler = DistributedSampler(
                self.train, world, self.trainer.global_rank, shuffle=True, seed=self.args.seed, drop_last=True
            )
            batch_size = self.args.batch_size // world
            Data.kept = DataLoader(self.train, batch_size=batch_size, sampler=sampler, drop_last=True, **self.common)
        return Data.kept
        """,
        says="the second call in one process",
    ),
]


RIGHT = [
    Answer(
        6,
        "a batch sampler",
        TRAIN_SAMPLER
        + """
        from torch.utils.data import BatchSampler
        batches = BatchSampler(sampler, self.args.batch_size // self.trainer.world_size, drop_last=True)
        return DataLoader(self.train, batch_sampler=batches)
        """,
    ),
    Answer(
        7,
        "a subset in place of a sampler",
        """
        from torch.utils.data import Subset
        mine = Subset(samples, range(self.trainer.global_rank, len(samples), self.trainer.world_size))
        return DataLoader(mine, batch_size=self.args.batch_size, **self.common)
        """,
    ),
    Answer(
        6,
        "rank and world size from torch",
        swap=(
            ("self.trainer.global_rank", "torch.distributed.get_rank()"),
            ("num_replicas=self.trainer.world_size", "num_replicas=torch.distributed.get_world_size()"),
        ),
    ),
    Answer(
        6,
        "the sampler asks the group",
        """
        sampler = DistributedSampler(self.train, shuffle=True, seed=self.args.seed, drop_last=True)
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(self.train, batch_size=batch_size, sampler=sampler, drop_last=True, **self.common)
        """,
    ),
]

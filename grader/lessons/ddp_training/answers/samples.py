"""Other answers to TODOs 4, 5, 6, 7 and 9 of ddp_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        4,
        "validation padded by DistributedSampler",
        """
        return (
            DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
            DistributedSampler(validation, shuffle=False),
            DistributedSampler(test, shuffle=False),
        )
        """,
        says="padded",
    ),
    Answer(
        4,
        "the last validation samples dropped",
        swap=("ShardSampler(validation)", "DistributedSampler(validation, shuffle=False, drop_last=True)"),
        says="no rank reads",
    ),
    Answer(
        4,
        "training padded",
        """
        return DistributedSampler(train, shuffle=True, seed=args.seed), ShardSampler(validation), ShardSampler(test)
        """,
        says="steps",
    ),
    Answer(
        4,
        "every rank the whole set",
        """
        from torch.utils.data import SequentialSampler
        return EpochOrder(train, args.seed), SequentialSampler(validation), SequentialSampler(test)
        """,
    ),
    Answer(
        4,
        "not shuffled",
        """
        return DistributedSampler(train, shuffle=False, drop_last=True), ShardSampler(validation), ShardSampler(test)
        """,
        says="do not read the samples",
    ),
    Answer(
        4,
        "shuffled by another seed on each rank",
        """
        train_sampler = DistributedSampler(train, shuffle=True, seed=args.seed + dist.get_rank(), drop_last=True)
        return train_sampler, ShardSampler(validation), ShardSampler(test)
        """,
        says="both train on sample",
    ),
    Answer(
        4,
        "the seed forgotten",
        """
        return DistributedSampler(train, shuffle=True, drop_last=True), ShardSampler(validation), ShardSampler(test)
        """,
        says="args.seed",
    ),
    Answer(
        5,
        "the global batch on each rank",
        """
        train_loader = DataLoader(train, batch_size=args.batch_size, sampler=train_sampler, drop_last=True, **common)
        """,
        says="global batch",
    ),
    Answer(
        5,
        "shuffled, the sampler ignored",
        """
        train_loader = DataLoader(train, batch_size=args.batch_size // world_size, shuffle=True, drop_last=True, **common)
        """,
    ),
    Answer(
        5,
        "the short last batch kept",
        """
        train_loader = DataLoader(train, batch_size=args.batch_size // world_size, sampler=train_sampler, **common)
        """,
    ),
    Answer(
        5,
        "both shuffle and sampler",
        """
        train_loader = DataLoader(train, batch_size=args.batch_size // world_size, sampler=train_sampler, shuffle=True)
        """,
    ),
    Answer(
        6,
        "the whole validation set on each rank",
        """
        validation_loader = DataLoader(validation, batch_size=args.batch_size // world_size, **common)
        """,
        says="whole validation set",
    ),
    Answer(
        6,
        "the last batch dropped",
        swap=("validation_sampler, **", "validation_sampler, drop_last=True, **"),
        says="drops validation samples",
    ),
    Answer(6, "the training set's sampler", swap=("validation_sampler", "train_sampler")),
    Answer(7, "the whole test set on each rank", swap=("sampler=test_sampler, ", ""), says="whole test set"),
    Answer(
        7,
        "the validation set's sampler",
        """
        test_loader = DataLoader(test, batch_size=args.batch_size // world_size, sampler=validation_sampler, **common)
        """,
    ),
    Answer(9, "the epoch is never told", "epoch = epoch", says="epoch 1, in the same order"),
    Answer(9, "always the same epoch", "samplers[0].set_epoch(1)"),
    Answer(9, "told after the loader was read", "samplers[0].set_epoch(max(0, epoch - 1))"),
    Answer(
        4,
        "the validation set's sampler for the test set",
        """
        return (
            DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True), ShardSampler(validation), ShardSampler(validation)
        )
        """,
        says="a different set's sampler",
    ),
    Answer(
        5,
        "the last batch is not left out",
        """
        train_loader = DataLoader(train, batch_size=args.batch_size // world_size, sampler=train_sampler, **common)
        """,
        says="a short batch is left out",
    ),
    Answer(7, "TODO 6 copied", swap=("DataLoader(test,", "DataLoader(validation,"), says="reads the validation set"),
    Answer(
        7,
        "the validation set's sampler",
        """
        test_loader = DataLoader(test, batch_size=args.batch_size // world_size, sampler=validation_sampler, **common)
        """,
        says="the validation set's sampler deals",
    ),
    Answer(
        4,
        "shares by the local rank",
        swap=(
            "ShardSampler(validation)",
            'ShardSampler(validation, int(os.environ["LOCAL_RANK"]), dist.get_world_size())',
        ),
        says="on 3 nodes with one rank each",
    ),
    Answer(
        4,
        "the training set dealt by the local rank",
        swap=(
            "DistributedSampler(train,",
            'DistributedSampler(train, rank=int(os.environ["LOCAL_RANK"]), num_replicas=dist.get_world_size(),',
        ),
        says="on 3 nodes with one rank each",
    ),
    Answer(
        4,
        "as many shares as a node has ranks",
        swap=(
            "ShardSampler(test)",
            'ShardSampler(test, int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"]))',
        ),
        says="on 3 nodes with one rank each",
    ),
    Answer(
        4,
        "shuffled validation, the seed left out for the training set",
        swap=("seed=args.seed, ", ""),
        says="is the order shuffled by args.seed",
    ),
    Answer(
        5,
        "the ranks of a node share the batch",
        swap=("args.batch_size // world_size", 'args.batch_size // int(os.environ["LOCAL_WORLD_SIZE"])'),
        says="on 3 nodes with one rank each, rank 0 of 3 trains on batches of 12",
    ),
    Answer(
        4,
        "what does not divide is left out of the test set",
        swap=("ShardSampler(test)", "DistributedSampler(test, shuffle=False, drop_last=True)"),
    ),
    Answer(
        5, "a short last batch is trained on", swap=("sampler=train_sampler, drop_last=True", "sampler=train_sampler")
    ),
    Answer(
        6,
        "a batch no larger than the share",
        swap=("args.batch_size // world_size", "min(args.batch_size // world_size, len(validation_sampler))"),
        says="batch_size should be a positive integer value",
    ),
    Answer(
        7,
        "a rank without samples reads one",
        swap=("sampler=test_sampler", "sampler=list(test_sampler) or [0]"),
        says="does not read the test samples that its sampler deals",
    ),
    Answer(
        6,
        "the first batches of the set, on every rank",
        """
        validation_loader = DataLoader(validation, batch_size=args.batch_size // world_size, **common)
        """,
    ),
    Answer(9, "epochs from one on", swap=("set_epoch(epoch)", "set_epoch(epoch + 1)")),
    Answer(
        4,
        "samplers kept from the first call",
        'global _kept\nif "_kept" not in globals():\n    _kept = (DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True), ShardSampler(validation), ShardSampler(test))\nreturn _kept',
        says="the second call in one process",
    ),
    Answer(
        9,
        "epoch 0 and 1 in turn",
        swap=("set_epoch(epoch)", "set_epoch(epoch % 2)"),
        says="epoch 3 trains on the batches of epoch 1",
    ),
    Answer(
        9,
        "epoch modulo three",
        swap=("set_epoch(epoch)", "set_epoch(epoch % 3)"),
        says="epoch 4 trains on the batches of epoch 1",
    ),
    Answer(
        5,
        "at most four samples on a rank",
        swap=("batch_size=args.batch_size // world_size", "batch_size=min(4, args.batch_size // world_size)"),
        says="trains on batches of",
    ),
    Answer(
        4,
        "a parameter of a given function is renamed",
        edits=(
            (
                "def make_samplers(sets: Sets, args: argparse.Namespace)",
                "def make_samplers(sets: Sets, options: argparse.Namespace)",
            ),
        ),
        says="“def make_samplers(sets: Sets, options: argparse.Namespace)",
    ),
    Answer(
        7,
        "the return below it is gone",
        edits=(("    return train_loader, validation_loader, test_loader\n", ""),),
        says="“return train_loader, validation_loader, test_loader” is missing",
    ),
    Answer(
        5,
        "the sampler's first order, as a list",
        swap=("sampler=train_sampler", "sampler=[*train_sampler]"),
        says="in the second epoch rank 0 of 2 trains on the samples of the first",
    ),
    Answer(
        6,
        "a share like all others",
        swap=("sampler=validation_sampler", "sampler=[*validation_sampler][: len(validation) // world_size]"),
        says="drops validation samples",
    ),
    Answer(
        7,
        "whole batches on all ranks alike",
        """
        size = args.batch_size // world_size
        own = [*test_sampler][: len(test) // args.batch_size * size]
        test_loader = DataLoader(test, batch_size=size, sampler=own, **common)
        """,
        says="drops test samples",
    ),
    Answer(
        6,
        "used up after an epoch",
        swap=("sampler=validation_sampler", "sampler=iter(validation_sampler)"),
        says="in the second epoch",
    ),
]


RIGHT = [
    Answer(
        4,
        "explicit num_replicas and rank",
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        return (
            DistributedSampler(train, num_replicas=world_size, rank=rank, seed=args.seed, drop_last=True),
            ShardSampler(validation, rank, world_size),
            ShardSampler(test, rank, world_size),
        )
        """,
    ),
    Answer(
        4,
        "plain ranges by stride for validation and test",
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        return (
            DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
            range(rank, len(validation), world_size),
            range(rank, len(test), world_size),
        )
        """,
    ),
    Answer(
        4,
        "contiguous shares of validation and test",
        """
        rank, world_size = dist.get_rank(), dist.get_world_size()
        def share(n):
            return range(n * rank // world_size, n * (rank + 1) // world_size)
        train_sampler = DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True)
        return train_sampler, share(len(validation)), share(len(test))
        """,
    ),
    Answer(
        5,
        "a batch sampler",
        """
        batches = torch.utils.data.BatchSampler(train_sampler, args.batch_size // world_size, drop_last=True)
        train_loader = DataLoader(train, batch_sampler=batches, **common)
        """,
    ),
    Answer(5, "the world size from the group", swap=("world_size", "dist.get_world_size()")),
    Answer(
        6,
        "a Subset of what the sampler deals",
        """
        mine = torch.utils.data.Subset(validation, list(validation_sampler))
        validation_loader = DataLoader(mine, batch_size=args.batch_size // world_size, **common)
        """,
    ),
    Answer(
        7,
        "another batch size: it changes no mean",
        "test_loader = DataLoader(test, batch_size=5, sampler=test_sampler, **common)",
    ),
    Answer(9, "through the loader", "train_loader.sampler.set_epoch(epoch)"),
    Answer(
        4,
        "shares by the environment's rank",
        swap=(
            (
                "ShardSampler(validation)",
                'ShardSampler(validation, int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))',
            ),
            ("ShardSampler(test)", "ShardSampler(test, dist.get_rank(), dist.get_world_size())"),
        ),
    ),
    Answer(
        5,
        "the batch's part from the environment",
        swap=("args.batch_size // world_size", 'args.batch_size // int(os.environ["WORLD_SIZE"])'),
    ),
    Answer(
        4,
        "runs of neighbours, as lists",
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        return (
            DistributedSampler(train, world, rank, shuffle=True, seed=args.seed, drop_last=True),
            torch.arange(len(validation)).tensor_split(world)[rank].tolist(),
            torch.arange(len(test)).tensor_split(world)[rank].tolist(),
        )
        """,
    ),
    Answer(6, "batches of the global size", swap=("args.batch_size // world_size", "args.batch_size")),
    Answer(9, "the loader's sampler", "train_loader.sampler.set_epoch(epoch)"),
]

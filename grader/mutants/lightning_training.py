"""Other answers to the TODOs of lightning_training: what Lightning makes easy to get wrong, and what is right as well."""

from grader.kit import Answer

TRAIN_SAMPLER = """
        sampler = DistributedSampler(
            self.train, num_replicas=self.trainer.world_size, rank=self.trainer.global_rank, shuffle=True, seed=self.args.seed, drop_last=True
        )"""

WRONG = [
    Answer(
        1,
        "in evaluation mode, and left there",
        "self.model.eval()\nreturn self.model(x, y)",
        says="self, which it is given, is left in evaluation mode",
    ),
    Answer(
        2,
        "a rate for all ranks together",
        swap=("lr=self.args.lr", "lr=self.args.lr * self.trainer.world_size"),
        says="the learning rate on each of two ranks is 0.02",
    ),
    Answer(
        2,
        "a schedule",
        """
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.args.optimizer]
        optimizer = kind(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
        """,
        says="after two epochs",
    ),
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
        8,
        "and gradients are accumulated",
        'own_samplers = {"use_distributed_sampler": False, "accumulate_grad_batches": 3}',
        says="an argument changes more than the samplers",
    ),
    Answer(1, "nothing is returned", "loss = self.model(x, y)", says="training_step returns None"),
    Answer(1, "logits for a loss", "return self.model(x)", says="no loss"),
    Answer(1, "a number, without its graph", "return self.model(x, y).item()", says="no loss"),
    Answer(1, "detached", "return self.model(x, y).detach()", says="no graph"),
    Answer(
        1,
        "backward called by hand",
        """
        loss = self.model(x, y)
        loss.backward()
        return loss
        """,
        says="calls backward",
    ),
    Answer(
        1,
        "the step made by hand",
        """
        loss = self.model(x, y)
        gradients = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True)
        with torch.no_grad():
            for parameter, gradient in zip(self.parameters(), gradients, strict=True):
                parameter -= self.args.lr * gradient
        return loss
        """,
        says="optimizer's step itself",
    ),
    Answer(1, "the word itself is predicted", "return self.model(x, x)", says="mean loss"),
    Answer(1, "a sum, not a mean", "return self.model(x, y) * y.numel()", says="mean loss"),
    Answer(1, "the module called, which has no forward", "return self(x, y)"),
    Answer(
        1,
        "logs the loss over all ranks",
        """
        loss = self.model(x, y)
        self.log("train_loss", loss, sync_dist=True)
        return loss
        """,
        says="one more all-reduce",
    ),
    Answer(2, "no optimizer", "return None", says="returns None"),
    Answer(
        2,
        "always AdamW",
        """
        return torch.optim.AdamW(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)
        """,
        says="--optimizer sgd",
    ),
    Answer(2, "Adam for AdamW", swap=("optim.AdamW,", "optim.Adam,"), says="different weights"),
    Answer(
        2, "the weight decay forgotten", swap=(", weight_decay=self.args.weight_decay", ""), says="different weights"
    ),
    Answer(2, "the learning rate of an example", swap=("self.args.lr", "1e-3")),
    Answer(2, "only the blocks are trained", swap=(".parameters", ".model.blocks.parameters"), says="parameters"),
    Answer(
        3,
        "the mean of batch means, of all ranks",
        """
        self.log_dict({"total": self.model(x, y), "count": 1.0}, sync_dist=True)
        """,
        says="not the mean over all tokens",
    ),
    Answer(
        3,
        "this rank's sums",
        """
        count = (y != IGNORE).sum().double()
        self.log_dict({"total": self.model(x, y) * count, "count": count}, reduce_fx="sum")
        """,
    ),
    Answer(
        3,
        "Lightning's own mean, weighed by tokens: the mean count is cut to a whole number",
        """
        self.log("total", self.model(x, y), batch_size=int((y != IGNORE).sum()), sync_dist=True)
        self.log("count", 1.0)
        """,
    ),
    Answer(
        3,
        "weighed by samples, as Lightning guesses",
        """
        self.log_dict({"total": self.model(x, y), "count": 1.0}, batch_size=len(x), sync_dist=True)
        """,
    ),
    Answer(
        3,
        "means of sums",
        """
        count = (y != IGNORE).sum().double()
        self.log_dict({"total": self.model(x, y) * count, "count": count}, sync_dist=True)
        """,
    ),
    Answer(
        3,
        "filled-up targets counted",
        """
        count = torch.tensor(float(y.numel()))
        self.log_dict({"total": self.model(x, y) * count, "count": count}, reduce_fx="sum", sync_dist=True)
        """,
        says="tokens, there are",
    ),
    Answer(
        3,
        "only one of the two is synchronised",
        """
        count = (y != IGNORE).sum().double()
        self.log("total", self.model(x, y) * count, reduce_fx="sum", sync_dist=True)
        self.log("count", count, reduce_fx="sum")
        """,
    ),
    Answer(
        3,
        "synchronised in every step, though ranks have unequal numbers of them",
        swap=("on_step=False,", "on_step=True,"),
        says="rank",
    ),
    Answer(
        3,
        "reduced by hand in every step",
        """
        import torch.distributed as dist
        sums = torch.stack([self.model(x, y) * (y != IGNORE).sum(), (y != IGNORE).sum()])
        dist.all_reduce(sums)
        self.log_dict({"total": sums[0], "count": sums[1]}, reduce_fx="sum")
        """,
        says="never come",
    ),
    Answer(
        3,
        "logged under another name",
        """
        count = (y != IGNORE).sum().double()
        self.log_dict({"val_total": self.model(x, y) * count, "val_count": count}, reduce_fx="sum", sync_dist=True)
        """,
        says="both sums",
    ),
    Answer(4, "all processes on one node", 'return int(os.environ["WORLD_SIZE"]), 1', says="on 2 nodes"),
    Answer(4, "numbers in the script", "return 3, 1", says="wrong number of devices"),
    Answer(
        4,
        "text",
        """
        devices = os.environ["LOCAL_WORLD_SIZE"]
        return devices, int(os.environ["WORLD_SIZE"]) // int(devices)
        """,
        says="is text",
    ),
    Answer(
        4,
        "the wrong way round",
        swap=('devices, int(os.environ["WORLD_SIZE"]) //', 'int(os.environ["WORLD_SIZE"]) // devices,'),
    ),
    Answer(
        4,
        "the number of this process for that of all",
        """
        return int(os.environ["LOCAL_RANK"]) + 1, int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
        """,
    ),
    Answer(4, "GPUs counted where there are none", "return torch.cuda.device_count(), 1"),
    Answer(
        5,
        "alone where the node has one process",
        """
        if int(os.environ["LOCAL_WORLD_SIZE"]) > 1:
            return DDPStrategy()
        return SingleDeviceStrategy(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))
        """,
        says="is in no process group of 3 ranks",
    ),
    Answer(5, "processes spawned beside those of torchrun", 'return "ddp_spawn"', says="its own processes"),
    Answer(5, "processes forked beside those of torchrun", 'return "ddp_notebook"', says="its own processes"),
    Answer(5, "gloo on GPUs, too", 'return DDPStrategy(process_group_backend="gloo")', says="NCCL"),
    Answer(5, "first weights left as they are", "return DDPStrategy(init_sync=False)", says="drifted apart"),
    Answer(
        5,
        "in a group, but with no wrapper",
        """
        class Unwrapped(DDPStrategy):
            def configure_ddp(self):
                pass
        return Unwrapped()
        """,
        says="drifted apart",
    ),
    Answer(5, "one device, by another way", 'return SingleDeviceStrategy("cpu")', says="no process group"),
    Answer(5, "a strategy that Lightning has no more", 'return "dp"'),
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
        8, "said, but the wrong way round", 'own_samplers = {"use_distributed_sampler": True}', says="its own sampler"
    ),
    Answer(8, "the argument that Lightning had before 2.0", 'own_samplers = {"replace_sampler_ddp": False}'),
    Answer(9, "all ranks write", swap=('save0({"', 'torch.save({"'), says="all write"),
    Answer(
        9, "the names of the module that the model is in", swap=(".model.state_dict", ".state_dict"), says="all weights"
    ),
    Answer(9, "the model as an object", swap=(".state_dict()", ""), says="objects"),
    Answer(
        9,
        "without its sizes",
        'save0({"model": module.model.state_dict(), "epoch": epoch}, path)',
        says="lost an entry",
    ),
    Answer(
        9,
        "Lightning's checkpoint, asked for on rank 0 alone",
        swap=(
            'save0({"model": module.model.state_dict(), "config": module.model.config, "epoch": epoch}, ',
            "if trainer.is_global_zero:\n    trainer.save_checkpoint(",
        ),
        says="never come",
    ),
    Answer(
        9,
        "Lightning's checkpoint, weights only",
        "trainer.save_checkpoint(path, weights_only=True)",
        says="lost an entry",
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
    Answer(9, "epoch 0", swap=('"epoch": epoch', '"epoch": 0'), says="“epoch” is not what save_checkpoint was given"),
    Answer(
        9, "never written over", swap=("save0({", "path.exists() or save0({"), says="an earlier checkpoint at this path"
    ),
    Answer(
        9,
        "the first rank of each node",
        swap=("save0({", "trainer.local_rank == 0 and torch.save({"),
        says="on 2 nodes with one rank each, ranks [0, 1] all write",
    ),
    Answer(1, "a share of the loss", "return self.model(x, y) / self.trainer.world_size", says="the mean loss"),
    Answer(
        2,
        "norms are not trained",
        swap=("return kind(self.parameters(),", "return kind([p for p in self.parameters() if p.dim() > 1],"),
    ),
    Answer(
        3,
        "samples in place of tokens",
        swap=("count = (y != IGNORE).sum().double()", "count = torch.tensor(len(y), dtype=torch.float64)"),
    ),
    Answer(
        4,
        "Slurm is asked for the nodes",
        swap=('int(os.environ["WORLD_SIZE"]) // devices', 'int(os.environ.get("SLURM_NNODES", 1))'),
    ),
    Answer(6, "the same order in each epoch", swap=("shuffle=True", "shuffle=False")),
    Answer(7, "the number on the node", swap=("self.trainer.global_rank", "self.trainer.local_rank")),
    Answer(
        8,
        "validation in each second epoch",
        'own_samplers = {"use_distributed_sampler": False, "check_val_every_n_epoch": 2}',
        says="validates 2 batches in two epochs",
    ),
    Answer(
        8,
        "half of the validation set",
        'own_samplers = {"use_distributed_sampler": False, "limit_val_batches": 1}',
        says="an argument changes more than the samplers",
    ),
    Answer(8, "only where a node has several devices", 'own_samplers = {"use_distributed_sampler": devices == 1}'),
    Answer(9, "Lightning's count of epochs", swap=('"epoch": epoch', '"epoch": trainer.current_epoch')),
    Answer(
        1,
        "detached, and given a graph of its own",
        "x, y = batch\nreturn self.model(x, y).detach().requires_grad_()",
        says="the graph ends before the model",
    ),
    Answer(
        3,
        "a batch without a target counts one",
        swap=(".sum().double()", ".sum().clamp(min=1).double()"),
        says="total / count",
    ),
    Answer(4, "a quotient with decimals", swap=("// devices", "/ devices"), says="a number other than an int"),
    Answer(
        5,
        "a hook that does not average",
        """
        def hook(state, bucket):
            future = torch.futures.Future()
            future.set_result(bucket.buffer())
            return future

        return DDPStrategy(ddp_comm_hook=hook)
        """,
        says="drifted apart",
    ),
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
    Answer(1, "every second batch", "return self.model(x, y) if batch_index % 2 == 0 else None"),
    Answer(
        2,
        "no decay is the default decay",
        swap=("weight_decay=self.args.weight_decay", "weight_decay=self.args.weight_decay or 0.01"),
        says="with --optimizer adamw --lr 0.1 --weight-decay 0,",
    ),
    Answer(
        3,
        "sums times the ranks",
        swap=("(y != IGNORE).sum().double()", "(y != IGNORE).sum().double() * self.trainer.world_size"),
        says="has logged a count of",
    ),
    Answer(
        4,
        "all GPUs of the node",
        swap=(
            'devices = int(os.environ["LOCAL_WORLD_SIZE"])',
            'devices = torch.cuda.device_count() or int(os.environ["LOCAL_WORLD_SIZE"])',
        ),
        says="a wrong number of devices",
    ),
]

RIGHT = [
    Answer(1, "a dictionary", 'return {"loss": self.model(x, y=y)}'),
    Answer(
        1,
        "logged besides",
        """
        loss = self.model(*batch)
        self.log("train_loss", loss)
        return loss
        """,
    ),
    Answer(
        2,
        "in a list, and one parameter group by hand",
        """
        args = self.args
        groups = [{"params": list(self.model.parameters()), "lr": args.lr, "weight_decay": args.weight_decay}]
        return [torch.optim.AdamW(groups) if args.optimizer == "adamw" else torch.optim.SGD(groups, lr=args.lr)]
        """,
    ),
    Answer(
        3,
        "one at a time, in float32",
        """
        count = (y != IGNORE).sum().float()
        self.log("total", self.model(x, y) * count, reduce_fx=torch.sum, sync_dist=True, on_epoch=True)
        self.log("count", count, reduce_fx=torch.sum, sync_dist=True, on_epoch=True)
        """,
    ),
    Answer(
        3,
        "two metrics of torchmetrics, which keep the sums",
        """
        from torchmetrics import SumMetric
        if batch_index == 0:
            for name in ("total", "count"):
                object.__setattr__(self, name, SumMetric().to(x.device))
        count = (y != IGNORE).sum()
        self.total.update(self.model(x, y) * count)
        self.count.update(count)
        self.log("total", self.total, metric_attribute="total")
        self.log("count", self.count, metric_attribute="count")
        """,
    ),
    Answer(
        4,
        "nodes as torchrun counts them",
        """
        return int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["GROUP_WORLD_SIZE"])
        """,
    ),
    Answer(5, "Lightning's choice, now that it knows how many there are", 'return "auto"'),
    Answer(
        5,
        "with options, and the backend said",
        """
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        return DDPStrategy(process_group_backend=backend, gradient_as_bucket_view=True, static_graph=True)
        """,
    ),
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
        9,
        "by Lightning's own way to one rank",
        """
        if trainer.is_global_zero:
            weights = {name: weight.detach().cpu() for name, weight in module.model.state_dict().items()}
            torch.save({"model": weights, "config": module.model.config, "epoch": epoch}, path)
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
    Answer(9, "by the trainer's is_global_zero", swap=("save0({", "trainer.is_global_zero and torch.save({")),
    Answer(1, "a dictionary", 'return {"loss": self.model(x, y)}'),
    Answer(1, "forward called by name, with keywords", "return self.model.forward(x=x, y=y)"),
    Answer(
        1,
        "from the logits",
        """
        logits = self.model(x)
        return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), y.flatten(), ignore_index=IGNORE)
        """,
    ),
    Answer(
        2,
        "a list of one optimizer",
        """
        kind = torch.optim.AdamW if self.args.optimizer == "adamw" else torch.optim.SGD
        return [kind(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)]
        """,
    ),
    Answer(
        3,
        "two logs",
        """
        count = (y != IGNORE).sum().double()
        how = {"reduce_fx": "sum", "sync_dist": True, "on_step": False, "on_epoch": True}
        self.log("count", count, **how)
        self.log("total", self.model(x, y).double() * count, **how)
        """,
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
    Answer(
        9,
        "Lightning says which rank writes",
        """
        if trainer.is_global_zero:
            plain = module.model
            torch.save({"model": plain.state_dict(), "config": plain.config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        5,
        "with a hook that averages",
        """
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
        return DDPStrategy(ddp_comm_hook=allreduce_hook)
        """,
    ),
]

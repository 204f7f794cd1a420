"""Other answers to TODOs 4, 5, 8 and 9 of lightning_training."""

from grader.kit import Answer

WRONG = [
    Answer(
        8,
        "and gradients are accumulated",
        'own_samplers = {"use_distributed_sampler": False, "accumulate_grad_batches": 3}',
        says="an argument changes more than the samplers",
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
    Answer(
        4,
        "Slurm is asked for the nodes",
        swap=('int(os.environ["WORLD_SIZE"]) // devices', 'int(os.environ.get("SLURM_NNODES", 1))'),
    ),
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
        9,
        "by Lightning's own way to one rank",
        """
        if trainer.is_global_zero:
            weights = {name: weight.detach().cpu() for name, weight in module.model.state_dict().items()}
            torch.save({"model": weights, "config": module.model.config, "epoch": epoch}, path)
        """,
    ),
    Answer(9, "by the trainer's is_global_zero", swap=("save0({", "trainer.is_global_zero and torch.save({")),
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

"""Other answers to the TODOs of ddp_training: what real courses got wrong, and what is right as well."""

from grader.kit import Answer

WRONG = [
    Answer(
        2,
        "the local rank by a modulo",
        swap=('int(os.environ["LOCAL_RANK"])', 'rank % int(os.environ.get("LOCAL_WORLD_SIZE", world_size))'),
        says="on a node with 1 rank and one with 2",
    ),
    Answer(
        1,
        "NCCL from two GPUs on",
        swap=("torch.cuda.is_available()", "torch.cuda.device_count() > 1"),
        says="on nodes with a GPU each the group does not use NCCL",
    ),
    Answer(
        12,
        "a process that runs alone has no wrapper",
        swap=("isinstance(model, DistributedDataParallel)", "dist.get_world_size() > 1"),
        says="the wrapper's names",
    ),
    Answer(
        15,
        "divides by the nodes",
        swap=("SLURM_GPUS_ON_NODE - 1", "SLURM_GPUS_ON_NODE / SLURM_NNODES - 1"),
        says="each of its 2 nodes has 4",
    ),
    Answer(
        16,
        "the last four digits, an octal number",
        swap=("20000 + SLURM_JOB_ID % 20000", "20000 + ${SLURM_JOB_ID: -4}"),
        says="no MASTER_PORT",
    ),
    Answer(
        13,
        "a given line is gone",
        edits=(("        optimizer.zero_grad()\n", ""),),
        says="“optimizer.zero_grad()” is missing",
    ),
    Answer(
        1,
        "what later lessons import",
        edits=(
            (
                "from utils.arguments import",
                "from utils.after_ddp_training import setup as join\nfrom utils.arguments import",
            ),
            ("    rank, local_rank, world_size, device = setup()", "    rank, local_rank, world_size, device = join()"),
        ),
        says="has what this lesson teaches",
    ),
    Answer(1, "no process group at all", "launch_environment()"),
    Answer(1, "gloo on GPUs, too", 'dist.init_process_group("gloo")', says="NCCL"),
    Answer(1, "every rank a group of its own", 'dist.init_process_group("gloo", rank=0, world_size=1)'),
    Answer(
        1,
        "every rank joins as rank 0",
        swap=("dist.init_process_group", 'os.environ["RANK"] = "0"\ndist.init_process_group'),
    ),
    Answer(
        1,
        "rank 0 forgets to join",
        swap=("dist.init_process_group", 'if int(os.environ["RANK"]) > 0:\n    dist.init_process_group'),
    ),
    Answer(
        2,
        "local rank for rank",
        """
        rank = local_rank = int(os.environ["LOCAL_RANK"])
        world_size = dist.get_world_size()
        """,
        says="rank of rank",
    ),
    Answer(
        2,
        "rank for local rank",
        """
        rank = local_rank = dist.get_rank()
        world_size = dist.get_world_size()
        """,
        says="local_rank",
    ),
    Answer(
        2,
        "identifiers left as text",
        """
        rank, local_rank, world_size = os.environ["RANK"], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"]
        """,
    ),
    Answer(
        2,
        "the size of the node for the size of the world",
        """
        rank, local_rank = dist.get_rank(), int(os.environ["LOCAL_RANK"])
        world_size = int(os.environ["LOCAL_WORLD_SIZE"])
        """,
        says="world_size",
    ),
    Answer(
        3,
        "GPU by rank, not by local rank",
        """
        device = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
        """,
    ),
    Answer(
        3,
        "two GPUs a node",
        """
        device = torch.device("cuda", local_rank % 2) if torch.cuda.is_available() else torch.device("cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        """,
        says="takes the wrong device",
    ),
    Answer(
        3,
        "all processes on GPU 0",
        'device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")',
    ),
    Answer(3, "a GPU where there is none", 'device = torch.device("cuda", local_rank)'),
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
    Answer(
        8,
        "wraps it in evaluation mode",
        swap=("return DistributedDataParallel(model,", "model.eval()\nreturn DistributedDataParallel(model,"),
        says="is left in evaluation mode",
    ),
    Answer(
        8,
        "equal first weights, no averaging",
        """
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
        return model
        """,
        says="nothing is averaged",
    ),
    Answer(
        8,
        "gradients summed, not averaged",
        """
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))
        return model
        """,
        says="summed",
    ),
    Answer(
        8,
        "the parameter is reduced instead of its gradient",
        """
        def average(parameter):
            dist.all_reduce(parameter.data)
            parameter.data /= dist.get_world_size()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(
        8,
        "first weights left as they are",
        """
        def average(parameter):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
        says="is not rank 0's",
    ),
    Answer(
        8,
        "only the first backward pass is averaged",
        """
        ddp = DistributedDataParallel(model)
        calls = []
        def once(*_):
            calls.append(1)
            ddp.require_backward_grad_sync = len(calls) < 2
        ddp.register_forward_pre_hook(once)
        return ddp
        """,
    ),
    Answer(
        8,
        "rank 1 is not wrapped",
        swap=(', device_ids=[device] if device.type == "cuda" else None)', ") if dist.get_rank() != 1 else model"),
    ),
    Answer(9, "the epoch is never told", "epoch = epoch", says="epoch 1, in the same order"),
    Answer(9, "always the same epoch", "samplers[0].set_epoch(1)"),
    Answer(9, "told after the loader was read", "samplers[0].set_epoch(max(0, epoch - 1))"),
    Answer(10, "each rank its own mean", "return (total / count).item() * 1.0", says="own mean"),
    Answer(
        10,
        "the mean of the ranks' means",
        """
        mean = total / count
        dist.all_reduce(mean)
        return (mean / dist.get_world_size()).item()
        """,
        says="mean of the ranks' means",
    ),
    Answer(
        10,
        "AVG of the means",
        """
        mean = total / count
        dist.all_reduce(mean, dist.ReduceOp.AVG)
        return mean.item()
        """,
        says="mean of the ranks' means",
    ),
    Answer(
        10,
        "only the total is reduced",
        """
        total = total.clone()
        dist.all_reduce(total)
        return (total / count).item()
        """,
    ),
    Answer(
        10,
        "rank 1 skips a call",
        """
        dist.all_reduce(total)
        if dist.get_rank() != 1:
            dist.all_reduce(count)
        dist.barrier()
        return (total / count).item()
        """,
        says="skipped",
    ),
    Answer(
        10,
        "rank 1 never calls",
        """
        if dist.get_rank() != 1:
            dist.all_reduce(total)
            dist.all_reduce(count)
        return (total / count).item()
        """,
        says="never comes",
    ),
    Answer(
        10,
        "the ranks call different operations",
        """
        (dist.all_reduce if dist.get_rank() == 0 else dist.barrier)(*([total] if dist.get_rank() == 0 else []))
        return (total / count).item()
        """,
        says="different operations",
    ),
    Answer(
        10,
        "the ranks reduce different shapes",
        swap=(", count])", ", count] + [total] * dist.get_rank())"),
        says="different shapes",
    ),
    Answer(
        10,
        "the ranks reduce differently",
        swap=("all_reduce(sums)", "all_reduce(sums, dist.ReduceOp.MAX if dist.get_rank() else dist.ReduceOp.SUM)"),
        says="different roots or reductions",
    ),
    Answer(
        10,
        "a loop without end",
        """
        while dist.get_rank() == 1:
            count = count + 0
        dist.all_reduce(count)
        return 0.0
        """,
        says="runs without end",
    ),
    Answer(10, "leaves with exit code 0", "os._exit(0)", says="exit code is never a pass"),
    Answer(
        10,
        "one rank is killed",
        """
        import signal
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        sums = torch.stack([total, count])
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()
        """,
        says="SIGKILL",
    ),
    Answer(
        10,
        "one rank crashes",
        """
        if dist.get_rank() == 1:
            raise ZeroDivisionError("no tokens")
        sums = torch.stack([total, count])
        dist.all_reduce(sums)
        return (sums[0] / sums[1]).item()
        """,
        says="ZeroDivisionError",
    ),
    Answer(
        11,
        "every rank prints",
        [
            'print(f"[{epoch + 1}/{args.epochs}] {train_loss:.4f} {validation_loss:.4f}")',
            'print(f"test loss {test_loss:.4f}")',
            'print(f"wrote to {out}")',
        ],
    ),
    Answer(
        11,
        "one of three places forgotten",
        [
            'print0(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, validation loss {validation_loss:.4f}")',
            'print(f"test loss {test_loss:.4f}, on every rank")',
            'print0(f"wrote to {out}")',
        ],
    ),
    Answer(11, "nobody prints", ["epoch = epoch", "out = out", "out = out"], says="some output is missing"),
    Answer(
        11,
        "the method is compared, not called: never true",
        [
            'if dist.get_rank == 0:\n    print(f"[{epoch + 1}/{args.epochs}] {train_loss:.4f}")',
            'if dist.get_rank == 0:\n    print(f"test loss {test_loss:.4f}")',
            'if dist.get_rank == 0:\n    print(f"wrote to {out}")',
        ],
        says="some output is missing",
    ),
    Answer(12, "the wrapper is pickled", "save0(model, path)"),
    Answer(
        12,
        "the wrapper's names are saved",
        'save0({"model": model.state_dict(), "config": config, "epoch": epoch}, path)',
        says="wrapper's names",
    ),
    Answer(
        12,
        "every rank writes",
        'torch.save({"model": model.module.state_dict(), "config": config, "epoch": epoch}, path)',
        says="all write",
    ),
    Answer(
        12,
        "only the weights, nothing to build the model from",
        "save0(model.module.state_dict(), path)",
        says="lost an entry",
    ),
    Answer(12, "nobody writes", "plain = model.module", says="no file"),
    Answer(13, "only rank 0 leaves", swap=("cleanup()", "if rank == 0:\n    cleanup()"), says="without leaving"),
    Answer(13, "waits for the others, and stays", "dist.barrier()", says="without leaving"),
    # What students wrote in a trial, and what was first told wrongly about it.
    Answer(
        1,
        "every process is rank 0",
        'dist.init_process_group("gloo", rank=0, world_size=int(os.environ["WORLD_SIZE"]))',
        says="both join",
    ),
    Answer(2, "local rank is text", swap=('int(os.environ["LOCAL_RANK"])', 'os.environ["LOCAL_RANK"]'), says="is text"),
    Answer(
        3,
        "the CPU as a GPU",
        """
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu", local_rank)
        torch.cuda.set_device(device)
        """,
        says="Expected a cuda device",
    ),
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
        11,
        "rank 0 alone evaluates the test set",
        edits=(
            (
                "        test_loss = evaluate(model, test_loader, device, args)\n        # TODO",
                "        test_loss = 0.0\n        # TODO",
            ),
        ),
        body=[
            (
                'print0(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, perplexity'
                ' {perplexity(validation_loss):.1f}")'
            ),
            """
        if rank == 0:
            test_loss = evaluate(model, test_loader, device, args)
            print(f"test loss {test_loss:.4f}")
        """,
            'print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")',
        ],
        says="called at line",
    ),
    Answer(12, "rank 1 writes", swap=('save0({"', 'if dist.get_rank() == 1:\n    torch.save({"'), says="runs alone"),
    Answer(
        13,
        "one rank waits for all",
        """
        if rank == 0:
            dist.barrier()
        cleanup()
        """,
        says="barrier",
    ),
    # The batch files. Traps: GPUs asked but not visible; one python for four GPUs; a variable that expands too early,
    # so that every node is the rendezvous' host; a port that all jobs share.
    Answer(14, "two of four", "#SBATCH --gres=gpu:2", says="asks for 2 GPUs"),
    Answer(
        14,
        "below the first command, where Slurm reads no more",
        "",
        edits=(("set -eo pipefail\n", "set -eo pipefail\n#SBATCH --gres=gpu:4\n"),),
        says="is below the first command",
    ),
    Answer(
        14,
        "indented",
        "",
        edits=(("#SBATCH --time", "  #SBATCH --gres=gpu:4\n#SBATCH --time"),),
        says="begins in the first column",
    ),
    Answer(
        18,
        "a word that is no option, so sbatch refuses the file",
        "#SBATCH --nodes=2 nodes",
        says="“nodes” is not an option",
    ),
    Answer(14, "a space too many", "# SBATCH --gres=gpu:4", says="without a space"),
    Answer(14, "an option that is none", "#SBATCH --gress=gpu:4", says="--gres?"),
    Answer(14, "not exported", "GPUS=4", says="is it exported", file=".pbs"),
    Answer(15, "the GPUs counted from 1", "export CUDA_VISIBLE_DEVICES=1,2,3,4", says="see GPU 1, 2, 3, 4"),
    Answer(15, "how many, not which", "export CUDA_VISIBLE_DEVICES=4", says="see GPU 4"),
    Answer(15, "how many, not which, on Polaris", "export CUDA_VISIBLE_DEVICES=$GPUS", says="see GPU 4", file=".pbs"),
    Answer(
        16,
        "every node is its own master",
        """
        export MASTER_ADDR=localhost
        export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        says="each node itself",
    ),
    Answer(
        16,
        "a fixed port",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_PORT=7010
        """,
        says="port 7010 in every job",
    ),
    Answer(
        16,
        "a port by the last digit of the job's number",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)$NODE_SUFFIX
        export MASTER_PORT=$((29500 + SLURM_JOB_ID % 10))
        """,
        says="in every job",
    ),
    Answer(
        16,
        "not exported",
        """
        MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        edits=(('--master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"', ""),),
        says="told no MASTER_ADDR",
    ),
    Answer(
        16,
        "the list as Slurm abbreviates it",
        """
        export MASTER_ADDR=$SLURM_JOB_NODELIST
        export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        says="jrc[9-10]",
    ),
    Answer(
        16,
        "the job's whole name in the arithmetic",
        """
        export MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
        export MASTER_PORT=$((20000 + PBS_JOBID % 20000))
        """,
        says="told no MASTER_PORT; it says",
        file=".pbs",
    ),
    Answer(
        16,
        "the last node",
        """
        export MASTER_ADDR=$(tail -n 1 "$PBS_NODEFILE")
        export MASTER_PORT=$((20000 + ${PBS_JOBID%%.*} % 20000))
        """,
        says="not the first node",
        file=".pbs",
    ),
    Answer(
        17, "python where torchrun belongs", 'srun --cpu-bind=none python train/ddp_training.py "$@"', says="1 process"
    ),
    Answer(
        17,
        "only on the first node",
        """
        torchrun --nnodes="$SLURM_NNODES" --node-rank=0 --nproc-per-node=gpu --master-addr="$MASTER_ADDR" \\
            --master-port="$MASTER_PORT" train/ddp_training.py "$@"
        """,
        says="node 1 starts nothing",
    ),
    Answer(
        17,
        "the node's number in double quotes",
        """
        srun --cpu-bind=none bash -c "torchrun --nnodes=$SLURM_NNODES --node-rank=$SLURM_NODEID --nproc-per-node=gpu \\
            --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train/ddp_training.py $*"
        """,
        says="both start rank 0",
    ),
    Answer(
        17,
        "every node is the host of the rendezvous",
        """
        srun --cpu-bind=none bash -c "torchrun --nnodes=$SLURM_NNODES --nproc-per-node=gpu --rdzv-id=$SLURM_JOB_ID --rdzv-backend=c10d \\
            --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv-conf=is_host=$(if ((SLURM_NODEID)); then echo 0; else echo 1; fi) \\
            train/ddp_training.py $*"
        """,
        says="the host of the rendezvous is node 0, 1",
    ),
    Answer(
        17,
        "a rendezvous id of its own on each node",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc-per-node=gpu --rdzv-id=$RANDOM --rdzv-backend=c10d \\
            --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT train/ddp_training.py "$@"' bash "$@"
        """,
        says="rendezvous id",
    ),
    Answer(
        17,
        "each node for itself",
        """
        srun --cpu-bind=none torchrun --nproc-per-node=gpu --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"
        """,
        says="world of 4 ranks",
    ),
    Answer(
        17,
        "the number of nodes forgotten",
        """
        srun --cpu-bind=none bash -c 'torchrun --node-rank="$SLURM_NODEID" --nproc-per-node=gpu --master-addr="$MASTER_ADDR" \\
            --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="how many nodes",
    ),
    Answer(
        17,
        "an option that torchrun does not know",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nprocs-per-node=gpu \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="torchrun refuses its arguments: unrecognized arguments: --nprocs-per-node",
    ),
    Answer(
        17,
        "one process on each node",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --master-addr="$MASTER_ADDR" \\
            --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="1 process",
    ),
    Answer(
        17,
        "the path of the start folder",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node=gpu \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" ../train/ddp_training.py "$@"' bash "$@"
        """,
        says="not train/ddp_training.py",
    ),
    Answer(
        17,
        "four torchruns on each node",
        """
        mpiexec -n "$((NODES * GPUS))" --ppn "$GPUS" --hostfile "$PBS_NODEFILE" bash -c 'torchrun --nnodes="$NODES" --node-rank="$PMI_RANK" \\
            --nproc-per-node="$GPUS" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        says="starts 16 processes",
        file=".pbs",
    ),
    Answer(
        17,
        "the rank expands on the first node",
        """
        mpiexec -n "$NODES" --ppn 1 --hostfile "$PBS_NODEFILE" bash -c "torchrun --nnodes=$NODES --node-rank=${PMI_RANK:-0} \\
            --nproc-per-node=$GPUS --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT train/ddp_training.py $*"
        """,
        says="both start rank 0",
        file=".pbs",
    ),
    Answer(
        17,
        "the shell's name forgotten",
        """
        srun --cpu-bind=none bash -c 'torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node=gpu \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' "$@"
        """,
        says="not given the batch file's arguments",
    ),
    Answer(
        17,
        "the arguments forgotten",
        """
        mpiexec -n "$NODES" --ppn 1 bash -c 'torchrun --nnodes="$NODES" --node-rank="$PMI_RANK" --nproc-per-node="$GPUS" \\
            --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py'
        """,
        says="not given the batch file's arguments",
        file=".pbs",
    ),
    Answer(17, "a command that is not there", "srun tochrun train/ddp_training.py", says="tochrun"),
    Answer(
        16,
        "a command that is not there",
        """
        export MASTER_ADDR=$(scontrl show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
        """,
        says="scontrl: command not found",
    ),
    Answer(
        16,
        "the job's number as the port",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
        export MASTER_PORT=$SLURM_JOB_ID
        """,
        says="meet at port",
    ),
    Answer(14, "a typing error", "#SBATCH --gres=gpus:4", says="nothing is called gpu"),
    Answer(18, "the GPUs of the whole job", "#SBATCH --nodes=2\n#SBATCH --gpus=4", says="of the whole job"),
    Answer(18, "four nodes", "#SBATCH --nodes=4", says="asks for 4 nodes"),
    Answer(18, "tasks, not nodes", "#SBATCH --ntasks=2", says="asks for 1 node"),
    Answer(
        18,
        "one node with two of something else",
        "#PBS -l select=1:ncpus=2:system=polaris",
        says="asks for 1 node",
        file=".pbs",
    ),
    Answer(
        2,
        "the local rank from what nodes there are",
        "rank, world_size = dist.get_rank(), dist.get_world_size()\nlocal_rank = rank % max(1, torch.cuda.device_count() or world_size)",
        says="local_rank of rank",
    ),
    Answer(
        3,
        "the default set to 0",
        swap=("torch.cuda.set_device(device)", "torch.cuda.set_device(0)"),
        says="rank 1 puts whatever names no device on cuda:0",
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
        8,
        "the mean over the ranks of a node",
        "for p in model.parameters():\n    dist.broadcast(p.data, 0)\n    def average(grad):\n        dist.all_reduce(grad)\n        return grad / int(os.environ['LOCAL_WORLD_SIZE'])\n    p.register_hook(average)\nreturn model",
        says="on 3 nodes with one rank each",
    ),
    Answer(
        10,
        "each node its own mean of means",
        "means = torch.stack([total / count.clamp(min=1)])\ndist.all_reduce(means)\nreturn (means / dist.get_world_size()).item()",
        says="global_mean of totals",
    ),
    Answer(
        10,
        "averaged over the ranks of a node",
        'sums = torch.stack([total, count])\ndist.all_reduce(sums)\nreturn (sums[0] / sums[1] * dist.get_world_size() / int(os.environ["LOCAL_WORLD_SIZE"]) / 3).item()',
        says="global_mean of totals",
    ),
    Answer(
        12,
        "the first rank of each node",
        'plain = model.module if isinstance(model, DistributedDataParallel) else model\nif os.environ["LOCAL_RANK"] == "0":\n    torch.save({"model": plain.state_dict(), "config": config, "epoch": epoch}, path)',
        says="on 3 nodes with one rank each, ranks [0, 1, 2] all write",
    ),
    Answer(
        12,
        "float64",
        swap=("plain.state_dict()", "{name: weight.double() for name, weight in plain.state_dict().items()}"),
        says="is float64, and the model's is not",
    ),
    Answer(12, "epoch 0", swap=('"epoch": epoch', '"epoch": 0'), says="“epoch” is not what save_checkpoint was given"),
    Answer(
        12,
        "an empty configuration",
        swap=('"config": config', '"config": {}'),
        says="“config” is not what save_checkpoint was given",
    ),
    Answer(
        12,
        "in half precision",
        swap=("plain.state_dict()", "{name: weight.half() for name, weight in plain.state_dict().items()}"),
        says="is float16",
    ),
    Answer(
        16,
        "the suffix left out",
        'MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nMASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\nexport MASTER_ADDR MASTER_PORT',
        says="its name on the slow network",
    ),
    Answer(
        16,
        "a port that may be too high",
        swap=("SLURM_JOB_ID % 20000", "SLURM_JOB_ID % 50000"),
        says="meet at port “69999”",
    ),
    Answer(
        16,
        "a port that may be too low",
        swap=("$((20000 + SLURM_JOB_ID % 20000))", "$((SLURM_JOB_ID % 65536))"),
        says="meet at port “1”",
    ),
    Answer(
        17,
        "each node its own master",
        swap=('--master-addr="$MASTER_ADDR"', '--master-addr="$(hostname)"'),
        says="the nodes do not meet in one place",
    ),
    Answer(
        17,
        "in the background",
        swap=('train/ddp_training.py "$@"\' bash "$@"', 'train/ddp_training.py "$@"\' bash "$@" &'),
        says="still run in the background",
    ),
    Answer(
        17,
        "on Polaris, in the background",
        swap=('train/ddp_training.py "$@"\' bash "$@"', 'train/ddp_training.py "$@"\' bash "$@" &'),
        says="still run in the background",
        file=".pbs",
    ),
    Answer(
        3,
        "the default is left at GPU 0",
        swap=("\n    torch.cuda.set_device(device)", ""),
        says="rank 1 puts whatever names no device on cuda:0",
    ),
    Answer(
        12,
        "never written over",
        swap=("save0({", "path.exists() or save0({"),
        says="an earlier checkpoint at this path",
    ),
    Answer(
        1,
        "a fixed address",
        """
        dist.init_process_group(
            "nccl" if torch.cuda.is_available() else "gloo", init_method="tcp://127.0.0.1:29500",
            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]),
        )
        """,
    ),
    Answer(
        2,
        "Slurm's number on the node, whoever has started us",
        swap=('int(os.environ["LOCAL_RANK"])', 'int(os.environ.get("SLURM_LOCALID", 0))'),
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
    Answer(
        8,
        "gradients are averaged, first weights left alone",
        """
        for parameter in model.parameters():
            def average(p: Tensor) -> None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(9, "epochs from one on", swap=("set_epoch(epoch)", "set_epoch(epoch + 1)")),
    Answer(10, "rank 0 alone has the sum", swap=("dist.all_reduce(sums)", "dist.reduce(sums, dst=0)")),
    Answer(
        11,
        "once on each node",
        [
            'if int(os.environ["LOCAL_RANK"]) == 0:\n    print(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, validation loss {validation_loss:.4f}, perplexity {perplexity(validation_loss):.1f}")',
            None,
            None,
        ],
    ),
    Answer(
        12,
        "half the digits",
        swap=(
            '"model": plain.state_dict()',
            '"model": {name: weight.half() for name, weight in plain.state_dict().items()}',
        ),
    ),
    Answer(13, "rank 0 alone leaves", swap=("cleanup()", "if rank == 0:\n    cleanup()")),
    Answer(15, "GPUs from one on", swap=("seq -s , 0 $((SLURM_GPUS_ON_NODE - 1))", "seq -s , 1 $SLURM_GPUS_ON_NODE")),
    Answer(
        16,
        "pbs: the first by name",
        swap=('head -n 1 "$PBS_NODEFILE"', 'sort "$PBS_NODEFILE" | head -n 1'),
        file=".pbs",
        says="which is not the first node",
    ),
    Answer(
        17,
        "pbs: all look for the first by name",
        swap=('--master-addr="$MASTER_ADDR"', '--master-addr="$(sort "$PBS_NODEFILE" | head -n 1)"'),
        file=".pbs",
        says="which is not the first node",
    ),
    Answer(16, "the last node's name", swap=("head -n 1", "tail -n 1")),
    Answer(18, "one node or two", "#SBATCH --nodes=1-2"),
    Answer(
        1,
        "a single process does not join",
        swap=("dist.init_process_group", 'if int(os.environ["WORLD_SIZE"]) > 1:\n    dist.init_process_group'),
        says="after setup() rank 0 is in no process group",
    ),
    Answer(
        8,
        "GPU 0 for all",
        swap=("device_ids=[device]", "device_ids=[0]"),
        says="rank 1 tells DistributedDataParallel a different GPU",
    ),
    Answer(
        1,
        "NCCL wherever torch has it, though there is no GPU",
        swap=("torch.cuda.is_available()", "dist.is_nccl_available()"),
        says="without GPUs the group uses NCCL",
    ),
    Answer(
        3,
        "the rank modulo the node's GPUs, of which some are free",
        swap=('"cuda", local_rank', '"cuda", rank % torch.cuda.device_count()'),
        says="2 ranks on each node, rank 2 takes the wrong device",
    ),
    Answer(
        3, "local rank modulo two", swap=('"cuda", local_rank', '"cuda", local_rank % 2'), says="takes the wrong device"
    ),
    Answer(
        3,
        "local rank modulo four",
        swap=('"cuda", local_rank', '"cuda", local_rank % 4'),
        says="takes the wrong device",
    ),
    Answer(
        4,
        "samplers kept from the first call",
        'global _kept\nif "_kept" not in globals():\n    _kept = (DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True), ShardSampler(validation), ShardSampler(test))\nreturn _kept',
        says="the second call in one process",
    ),
    Answer(
        8,
        "does not say which GPU",
        swap=('[device] if device.type == "cuda" else None', "None"),
        says="tells DistributedDataParallel no GPU",
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
        12,
        "every rank but the last",
        'plain = model.module if isinstance(model, DistributedDataParallel) else model\nif dist.get_rank() < max(dist.get_world_size() - 1, 1):\n    torch.save({"model": plain.state_dict(), "config": config, "epoch": epoch}, path)',
        says="all write the checkpoint",
    ),
    Answer(16, "a port by the number of nodes", swap=("SLURM_JOB_ID % 20000", "SLURM_NNODES"), says="in two jobs"),
    Answer(
        17,
        "an unquoted $@ inside",
        swap=('train/ddp_training.py "$@"\'', "train/ddp_training.py $@'"),
        says="one has blanks in it",
    ),
    Answer(17, "an unquoted $@ outside", swap=('\' bash "$@"', "' bash $@"), says="one has blanks in it"),
    Answer(
        17,
        "$* in quotes",
        swap=('train/ddp_training.py "$@"\'', 'train/ddp_training.py "$*"\''),
        says="one has blanks in it",
    ),
    Answer(
        18,
        "Slurm's directive",
        swap=("#PBS -l select=2:system=polaris", "#SBATCH --nodes=2"),
        says="PBS does not read it",
        file=".pbs",
    ),
    Answer(18, "two chunks that may be on one node", swap=("select=2", "nodes=2"), says="it is select=", file=".pbs"),
    Answer(14, "a GPU without a number", "#SBATCH --gres=gpu", says="asks for 1 GPU per node"),
    Answer(
        5,
        "at most four samples on a rank",
        swap=("batch_size=args.batch_size // world_size", "batch_size=min(4, args.batch_size // world_size)"),
        says="trains on batches of",
    ),
    Answer(
        10,
        "in float32",
        "sums = torch.stack([total, count]).float()\ndist.all_reduce(sums)\nreturn (sums[0] / sums[1]).item()",
        says="its last digits are lost",
    ),
    Answer(10, "counted by int32", swap=("sums[0] / sums[1]", "sums[0] / sums[1].int()"), says="global_mean of totals"),
    Answer(
        10,
        "the mean of means where ranks have about as many tokens",
        """
        sums = torch.stack([total, count])
        dist.all_reduce(sums)
        mean = total / count
        dist.all_reduce(mean)
        if (count * dist.get_world_size() - sums[1]).abs() < 1e-6 * sums[1]:
            return (mean / dist.get_world_size()).item()
        return (sums[0] / sums[1]).item()
        """,
        says="global_mean of totals",
    ),
    Answer(2, "two ranks on each node", swap=('"LOCAL_RANK"])', "'LOCAL_RANK']) % 2"), says="local_rank of rank 2"),
    Answer(
        14,
        "a line with a carriage return",
        edits=(("#SBATCH --gres=gpu:4\n", "#SBATCH --gres=gpu:4\r\n"),),
        says="end as on Windows",
    ),
    Answer(2, "`import os` is gone", edits=(("import os\n", ""),), says="“import os” is missing"),
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
        1,
        "`dist` is another function",
        edits=(("from torch import Tensor, nn\n", "from torch import Tensor, nn\nfrom math import dist\n"),),
        says="“from math import dist”",
    ),
    Answer(
        1,
        "a package that is not there",
        edits=(("import math\n", "import math\nimport mpi5py\n"),),
        says="“import mpi5py”",
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
        11,
        "the validation loss for the test loss",
        swap=(
            "test loss {test_loss:.4f}, perplexity {perplexity(test_loss)",
            "test loss {best:.4f}, perplexity {perplexity(best)",
        ),
        says="does not print the test loss",
    ),
    Answer(
        12,
        "each rank its own file",
        swap=("save0({", "torch.save({"),
        edits=(
            (
                "    plain = model.module if",
                '    path = path.with_stem(f"{path.stem}-{dist.get_rank()}" if dist.get_rank() else path.stem)\n    plain = model.module if',
            ),
        ),
        says="ranks [0, 1] all write",
    ),
    Answer(
        17,
        "the port behind the script",
        swap=(
            (' --master-port="$MASTER_PORT"', ""),
            ("train/ddp_training.py", 'train/ddp_training.py --master-port="$MASTER_PORT"'),
        ),
        says="--master-port stands after the script",
    ),
    Answer(17, "torchrun's own port", swap=(' --master-port="$MASTER_PORT"', ""), says="at port 29500 in every job"),
    Answer(
        6,
        "used up after an epoch",
        swap=("sampler=validation_sampler", "sampler=iter(validation_sampler)"),
        says="in the second epoch",
    ),
    Answer(
        10,
        "nan counts as zero",
        swap=("torch.stack([total, count])", "torch.stack([total, count]).nan_to_num()"),
        says="would look healthy",
    ),
    Answer(
        12,
        '"module." is removed everywhere in a name',
        body="""weights = {name.replace("module.", ""): weight for name, weight in model.state_dict().items()}
save0({"model": weights, "config": config, "epoch": epoch}, path)""",
        says="submodule.weight",
    ),
]

RIGHT = [
    Answer(1, "the backend left to torch", "dist.init_process_group()"),
    Answer(
        1,
        "rank and world size given",
        """
        backend = "nccl" if dist.is_nccl_available() and torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        """,
    ),
    Answer(
        2,
        "everything from the environment",
        """
        rank, local_rank, world_size = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        """,
    ),
    Answer(
        3,
        "the default device, set by local rank",
        """
        if torch.cuda.is_available():
            torch.cuda.set_device(local_rank)
            device = torch.device("cuda")
        else:
            device = torch.device("cpu")
        """,
    ),
    Answer(
        3,
        "by a string",
        """
        device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
        if device.type == "cuda":
            torch.cuda.set_device(device)
        """,
    ),
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
    Answer(
        8,
        "gradients averaged by hand, as they become ready",
        """
        def average(parameter):
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        for parameter in model.parameters():
            dist.broadcast(parameter.data, 0)
            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(
        8,
        "gradients in small buckets, as views",
        'return DistributedDataParallel(model, [device] if device.type == "cuda" else None, bucket_cap_mb=1, gradient_as_bucket_view=True)',
    ),
    Answer(
        8,
        "optimizer built before the wrap: DDP keeps the parameters",
        edits=(
            (
                (
                    "    model = wrap(model.to(device), device)\n    optimizer = make_optimizer(model, args)  # after"
                    " wrap, which may replace the parameters\n"
                ),
                (
                    "    model = model.to(device)\n    optimizer = make_optimizer(model, args)\n    model = wrap(model,"
                    " device)\n"
                ),
            ),
        ),
    ),
    Answer(9, "through the loader", "train_loader.sampler.set_epoch(epoch)"),
    Answer(
        10,
        "two reductions",
        """
        total, count = total.clone(), count.clone()
        dist.all_reduce(total)
        dist.all_reduce(count)
        return float(total / count)
        """,
    ),
    Answer(
        10,
        "all-gather and add up",
        """
        parts = [None] * dist.get_world_size()
        dist.all_gather_object(parts, (total.item(), count.item()))
        return sum(t for t, _ in parts) / sum(c for _, c in parts)
        """,
    ),
    Answer(
        10,
        "averages of both: the division by N cancels",
        swap=("all_reduce(sums)", "all_reduce(sums, dist.ReduceOp.AVG)"),
    ),
    Answer(
        10, "reduced to rank 0, then broadcast", swap=("all_reduce(sums)", "reduce(sums, 0)\ndist.broadcast(sums, 0)")
    ),
    Answer(10, "asynchronously", swap=("all_reduce(sums)", "all_reduce(sums, async_op=True).wait()")),
    Answer(
        11,
        "if rank == 0",
        [
            (
                'if rank == 0:\n    print(f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, validation loss'
                ' {validation_loss:.4f}")'
            ),
            'if rank == 0:\n    print(f"test loss {test_loss:.4f}")',
            'if rank == 0:\n    print(f"wrote to {out}")',
        ],
    ),
    Answer(
        12,
        "if rank == 0, and a barrier",
        """
        if dist.get_rank() == 0:
            torch.save({"model": model.module.state_dict(), "config": config, "epoch": epoch}, path)
        dist.barrier()
        """,
    ),
    Answer(
        12,
        "the prefix taken off the names",
        """
        weights = {name.removeprefix("module."): weight for name, weight in model.state_dict().items()}
        save0({"model": weights, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(
        12,
        "the last rank writes",
        """
        if rank_of_last():
            save = model.module if isinstance(model, DistributedDataParallel) else model
            torch.save({"model": save.state_dict(), "config": config, "epoch": epoch}, path)
        dist.barrier()
        """,
        edits=(
            (
                "def main(",
                "def rank_of_last():\n    return dist.get_rank() == dist.get_world_size() - 1\n\n\ndef main(",
            ),
        ),
    ),
    Answer(13, "by torch's own call", "dist.destroy_process_group()"),
    Answer(
        13,
        "in a finally",
        "pass",
        edits=(("    main()\n", "    try:\n        main()\n    finally:\n        cleanup()\n"),),
    ),
    Answer(14, "by another option", "#SBATCH --gpus-per-node=4"),
    Answer(
        14,
        "below an indented comment, at which Slurm reads on",
        [None],
        edits=(("#SBATCH --job-name", "  # a name\n#SBATCH --job-name"),),
    ),
    Answer(14, "with the kind of GPU", "#SBATCH --gres=gpu:A100:4"),
    Answer(14, "on Polaris", "GPUS=4\nexport GPUS", file=".pbs"),
    Answer(15, "the list written out", "export CUDA_VISIBLE_DEVICES=0,1,2,3"),
    Answer(15, "with spaces", 'export CUDA_VISIBLE_DEVICES="0, 1, 2, 3"'),
    Answer(15, "left to Slurm, which sets it", ":"),
    Answer(15, "hidden from nobody", "unset CUDA_VISIBLE_DEVICES", file=".pbs"),
    Answer(
        16,
        "by its address, as the name server has it",
        """
        MASTER_ADDR="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
        MASTER_ADDR="${MASTER_ADDR}i"
        export MASTER_ADDR="$(nslookup "$MASTER_ADDR" | grep -oP '(?<=Address: ).*')"
        export MASTER_PORT=$((10000 + 10#${SLURM_JOB_ID: -4}))
        """,
    ),
    Answer(
        16,
        "this script runs on the first node",
        """
        export MASTER_ADDR=$(hostname)$NODE_SUFFIX
        export MASTER_PORT=$((20000 + RANDOM % 20000))
        """,
    ),
    Answer(
        17,
        "a rendezvous of torchrun's own",
        """
        srun --cpu-bind=none bash -c "torchrun --nnodes=$SLURM_NNODES --rdzv_backend c10d --nproc_per_node=gpu --rdzv_id $RANDOM \\
            --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv_conf=is_host=\\$(if ((SLURM_NODEID)); then echo 0; else echo 1; fi) \\
            train/ddp_training.py $(printf '%q ' "$@")"
        """,
    ),
    Answer(
        17,
        "c10d, without a word on the host",
        """
        srun torchrun --nnodes "$SLURM_NNODES" --nproc-per-node 4 --rdzv-id "$SLURM_JOB_ID" --rdzv-backend c10d \\
            --rdzv-endpoint "$MASTER_ADDR:$MASTER_PORT" train/ddp_training.py "$@"
        """,
    ),
    Answer(
        17,
        "no torchrun: Slurm starts every process, SLURM_PROCID is the rank",
        """
        srun --ntasks-per-node="$SLURM_GPUS_ON_NODE" --cpus-per-task=32 python train/ddp_training.py "$@"
        """,
    ),
    Answer(
        17,
        "no torchrun: PMI_RANK is the rank",
        """
        mpiexec -n "$((NODES * GPUS))" --ppn "$GPUS" --depth=8 --cpu-bind depth --hostfile "$PBS_NODEFILE" python train/ddp_training.py "$@"
        """,
        file=".pbs",
    ),
    Answer(
        17,
        "torchrun as a module",
        """
        mpiexec -n "$NODES" --ppn 1 bash -c 'python -m torch.distributed.run --nnodes="$NODES" --node-rank="$PMI_RANK" \\
            --nproc-per-node="$GPUS" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"' bash "$@"
        """,
        file=".pbs",
    ),
    Answer(
        17,
        "a loop over the nodes",
        """
        node=0
        for name in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
            srun --nodes=1 --ntasks=1 -w "$name" torchrun --nnodes="$SLURM_NNODES" --node-rank=$node --nproc-per-node=gpu \\
                --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@" &
            node=$((node + 1))
        done
        wait
        """,
    ),
    Answer(
        16,
        "a port by Python",
        """
        export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)$NODE_SUFFIX
        export MASTER_PORT=$(python -c "import os; print(20000 + int(os.environ['SLURM_JOB_ID']) % 20000)")
        """,
    ),
    Answer(18, "by the short option", "#SBATCH -N 2"),
    Answer(18, "on Polaris, with more said of a node", "#PBS -l select=2:ncpus=64:ngpus=4:system=polaris", file=".pbs"),
    Answer(
        3,
        "the default first, then the device that is current",
        'device = torch.device("cpu")\nif torch.cuda.is_available():\n    torch.cuda.set_device(local_rank)\n    device = torch.device("cuda", torch.cuda.current_device())',
    ),
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
    Answer(8, "replicate", "from torch.distributed._composable.replicate import replicate\nreturn replicate(model)"),
    Answer(
        10,
        "gathered as objects",
        "held = [None] * dist.get_world_size()\ndist.all_gather_object(held, (total.item(), count.item()))\nreturn sum(t for t, _ in held) / sum(c for _, c in held)",
    ),
    Answer(
        12,
        "written beside it, then moved",
        'if dist.get_rank() == 0:\n    plain = getattr(model, "module", model)\n    half = path.with_suffix(".half")\n    torch.save({"model": plain.state_dict(), "config": config, "epoch": epoch}, half)\n    half.replace(path)\ndist.barrier()',
    ),
    Answer(13, "at the end of the process", "import atexit\n\natexit.register(dist.destroy_process_group)"),
    Answer(
        16,
        "SLURMD_NODENAME of the first node, and a port of Slurm's own",
        "export MASTER_ADDR=$SLURMD_NODENAME$NODE_SUFFIX\nexport MASTER_PORT=$((10000 + SLURM_JOB_ID % 40000))",
    ),
    Answer(
        17,
        "an exported function",
        'launch() {\n    exec torchrun --nnodes="$SLURM_NNODES" --node-rank="$SLURM_NODEID" --nproc-per-node="$SLURM_GPUS_ON_NODE" \\\n        --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" train/ddp_training.py "$@"\n}\nexport -f launch\nsrun --cpu-bind=none bash -c \'launch "$@"\' bash "$@"',
    ),
    Answer(
        17,
        "in the background, and waited for",
        swap=('train/ddp_training.py "$@"\' bash "$@"', 'train/ddp_training.py "$@"\' bash "$@" &\nwait'),
    ),
    Answer(
        1,
        "a mesh, which makes the group",
        "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda' if torch.cuda.is_available() else 'cpu', (int(os.environ['WORLD_SIZE']),))",
    ),
    Answer(1, "torch chooses a backend for each kind of device", "dist.init_process_group()"),
    Answer(2, "the group is asked for all three", swap=('int(os.environ["LOCAL_RANK"])', "dist.get_node_local_rank()")),
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
    Answer(
        8,
        "broadcast and hooks by hand",
        """
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)

            def average(p: Tensor) -> None:
                dist.all_reduce(p.grad)
                p.grad /= dist.get_world_size()

            parameter.register_post_accumulate_grad_hook(average)
        return model
        """,
    ),
    Answer(9, "the loader's sampler", "train_loader.sampler.set_epoch(epoch)"),
    Answer(
        10,
        "two sums, both begun before either is waited for",
        """
        total, count = total.clone(), count.clone()
        works = [dist.all_reduce(number, async_op=True) for number in (total, count)]
        for work in works:
            work.wait()
        return (total / count).item()
        """,
    ),
    Answer(
        12,
        "the prefix is taken off",
        """
        if dist.get_rank() == 0:
            weights = {name.removeprefix("module."): weight for name, weight in model.state_dict().items()}
            torch.save({"model": weights, "config": config, "epoch": epoch}, path)
        """,
    ),
    Answer(14, "the newer option", "#SBATCH --gpus-per-node=4"),
    Answer(17, "Slurm's number of the process, of which each node has one", swap=("SLURM_NODEID", "SLURM_PROCID")),
    Answer(
        15,
        "the numbers that Slurm gives the step, or else the job",
        "export CUDA_VISIBLE_DEVICES=${SLURM_STEP_GPUS:-$SLURM_JOB_GPUS}",
    ),
    Answer(
        1,
        "a byte order mark",
        edits=(('"""Train the same model on many devices', '\ufeff"""Train the same model on many devices'),),
    ),
]

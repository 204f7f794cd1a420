"""Other answers to TODOs 1, 2, 3 and 13 of ddp_training."""

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
        'dist.init_process_group("nccl" if torch.cuda.device_count() > 1 else "gloo")',
        says="on nodes with a GPU each the group does not use NCCL",
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
        13,
        "one rank waits for all",
        """
        if rank == 0:
            dist.barrier()
        cleanup()
        """,
        says="barrier",
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
        swap=("set_device_index(device)", "set_device_index(0)"),
        says="rank 1 puts whatever names no device on cuda:0",
    ),
    Answer(
        3,
        "the default is left at GPU 0",
        swap=("\n    torch.accelerator.set_device_index(device)", ""),
        says="rank 1 puts whatever names no device on cuda:0",
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
    Answer(13, "rank 0 alone leaves", swap=("cleanup()", "if rank == 0:\n    cleanup()")),
    Answer(
        1,
        "a single process does not join",
        swap=("dist.init_process_group", 'if int(os.environ["WORLD_SIZE"]) > 1:\n    dist.init_process_group'),
        says="after setup() rank 0 is in no process group",
    ),
    Answer(
        1,
        "NCCL wherever torch has it, though there is no GPU",
        'dist.init_process_group("nccl" if dist.is_nccl_available() else "gloo")',
        says="without GPUs the group uses NCCL",
    ),
    Answer(
        3,
        "the rank modulo the node's GPUs, of which some are free",
        swap=("accelerator(), local_rank", "accelerator(), rank % torch.cuda.device_count()"),
        says="2 ranks on each node, rank 2 takes the wrong device",
    ),
    Answer(
        3,
        "local rank modulo two",
        swap=("accelerator(), local_rank", "accelerator(), local_rank % 2"),
        says="takes the wrong device",
    ),
    Answer(
        3,
        "local rank modulo four",
        swap=("accelerator(), local_rank", "accelerator(), local_rank % 4"),
        says="takes the wrong device",
    ),
    Answer(2, "two ranks on each node", swap=('"LOCAL_RANK"])', "'LOCAL_RANK']) % 2"), says="local_rank of rank 2"),
    Answer(2, "`import os` is gone", edits=(("import os\n", ""),), says="“import os” is missing"),
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
]


RIGHT = [
    Answer(1, "the backend left to torch", "dist.init_process_group()"),
    Answer(
        1,
        "the backends by name, for NVIDIA's and AMD's GPUs alone",
        'dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")',
    ),
    Answer(
        3,
        "by torch.cuda, for NVIDIA's and AMD's GPUs alone",
        """
        device = torch.device("cpu")
        if torch.cuda.is_available():
            device = torch.device("cuda", local_rank)
            torch.cuda.set_device(device)
        """,
    ),
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
    Answer(13, "by torch's own call", "dist.destroy_process_group()"),
    Answer(
        13,
        "in a finally",
        "pass",
        edits=(("    main()\n", "    try:\n        main()\n    finally:\n        cleanup()\n"),),
    ),
    Answer(
        3,
        "the default first, then the device that is current",
        'device = torch.device("cpu")\nif torch.cuda.is_available():\n    torch.cuda.set_device(local_rank)\n    device = torch.device("cuda", torch.cuda.current_device())',
    ),
    Answer(13, "at the end of the process", "import atexit\n\natexit.register(dist.destroy_process_group)"),
    Answer(
        1,
        "a mesh, which makes the group",
        "from torch.distributed.device_mesh import init_device_mesh\ninit_device_mesh('cuda' if torch.cuda.is_available() else 'cpu', (int(os.environ['WORLD_SIZE']),))",
    ),
    Answer(1, "torch chooses a backend for each kind of device", "dist.init_process_group()"),
    Answer(2, "the group is asked for all three", swap=('int(os.environ["LOCAL_RANK"])', "dist.get_node_local_rank()")),
    Answer(
        1,
        "a byte order mark",
        edits=(('"""Train the same model on many devices', '\ufeff"""Train the same model on many devices'),),
    ),
]

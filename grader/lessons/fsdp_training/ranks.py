"""What the checks of fsdp_training run on ranks, in the process of the student's code."""

import math
from pathlib import Path

import torch
import torch.distributed as dist

from grader.kit import (
    TINY,
    Peak,
    elements,
    gradients,
    mains_on_rank,
    mark,
    next_world,
    parameters,
    record_files,
    save_twice,
    tiny_batch,
    tiny_model,
)
from utils.data import ShardSampler, Windows
from utils.model import TransformerLM

# Here, a rank's imports of torch.distributed.fsdp, .checkpoint and .device_mesh are inside functions: on the ranks they
# are loaded already, and the judge, for which they would take a second, needs none of them.
SIZES = TINY | {"n_layers": 2}


DEEP = SIZES | {"n_layers": 5}  # where a few tensors are a small part


def grid(strategy, world):
    """Copies of the model × ranks per copy."""
    copies = {"none": world, "hybrid": 2}.get(strategy, 1)
    return copies, world // copies


def made_args(code, *flags):
    return code.parse_args(
        ["--batch-size", "12", "--seq-len", "8", "--dim", "16", "--heads", "2", "--layers", "2", *flags]
    )


def made_mesh(strategy, world):
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", grid(strategy, world), mesh_dim_names=("replicate", "shard"))
    return mesh if mesh.size(0) > 1 else mesh["shard"]


def made_model(seed, sizes=SIZES):
    return tiny_model(seed, **sizes)


def in_parts(model, mesh, **options):
    """The model, sharded by the check itself."""
    from torch.distributed.fsdp import fully_shard

    for unit in (*model.blocks, model):
        fully_shard(unit, mesh=mesh, **options)
    return model


# ---------------------------------------------------------------------------------------------------
# TODO 1: the mesh


def mesh_on_rank(code, rank, world, flags):
    meshes = []
    for more in flags:
        mesh = code.make_mesh(torch.device("cpu"), world, made_args(code, *more))
        meshes.append({"names": list(mesh.mesh_dim_names or ()), "ranks": mesh.mesh.tolist()})
    return meshes


# ---------------------------------------------------------------------------------------------------
# TODO 2: in step


ROWS = 2  # in a batch


def text(windows):
    return Windows(torch.arange(windows * 8 - 3) * 7 % 50, 8, 0, drop_last=False)


def evaluate_on_rank(code, rank, world, sizes):
    model = in_parts(made_model(seed=0), made_mesh("full", world))
    passes, seen = [], []
    model.register_forward_hook(lambda *_: passes.append(1))
    for length in sizes:
        loader = torch.utils.data.DataLoader(text(length), batch_size=ROWS, sampler=ShardSampler(text(length)))
        mark(name=length)
        passes.clear()
        loss = float(code.evaluate(model, loader, torch.device("cpu"), made_args(code)))
        seen.append((loss, len(passes)))
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 3: sharding


def shard_on_rank(code, rank, world, seed, chosen):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor

    seen = {}
    for strategy in chosen:
        mesh = init_device_mesh("cpu", grid(strategy, world), mesh_dim_names=("replicate", "shard"))
        try:
            model = code.shard(made_model(seed=0), mesh, made_args(code, "--sharding", strategy))
        except RuntimeError as error:
            if "overlapping meshes" not in str(error):
                raise
            return {"twice": True}  # torch's message for a shard that would be cut once more
        x, y = tiny_batch(seed)
        mark(name=strategy)
        loss = model(x, y)
        of_blocks = [p for name, p in model.named_parameters() if "blocks." in name]
        freed = sum(isinstance(p, DTensor) for p in of_blocks)  # what is gathered is a plain tensor
        loss.backward()
        mark(name="")
        seen[strategy] = {
            "freed": (freed, len(of_blocks)),
            "held": elements(model.parameters()),
            "held_gradients": elements(gradients(model).values()),
            "grads": gradients(model),
        }
    return seen


def deep_on_rank(code, rank, world):
    """A step of a model that shard() has sharded, with the check's own policy: TODO 7 may not be done yet."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy

    code.precision = lambda args: MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (1, world), mesh_dim_names=("replicate", "shard"))
    model = code.shard(made_model(seed=0, sizes=DEEP), mesh, made_args(code, "--sharding", "full"))

    def later(*_):
        mark(name="later")

    def later_in_backward(block, args, out):
        out.register_hook(later)

    model.blocks[0].register_forward_hook(later)
    model.blocks[-2].register_forward_hook(later_in_backward)
    mark(name="forward")
    loss = model(*tiny_batch(0))
    mark(name="backward")
    loss.backward()


# ---------------------------------------------------------------------------------------------------
# TODO 4: first weights


def first_on_rank(code, rank, world, seed):
    """On ranks that have drawn different random numbers before, as in dropout: only communication makes them equal."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    built = []  # this rank's models with weights
    init = TransformerLM.init_weights

    def count(model):
        init(model)
        if model.head.weight.device.type != "meta":
            built.append(model)

    TransformerLM.init_weights = count
    args = made_args(code, "--seed", str(seed), "--layers", str(DEEP["n_layers"]), "--dropout", str(DROPOUTS[1]))
    torch.manual_seed(1000 + rank)
    model = code.build_model(SIZES["vocab_size"], args)
    before, config = elements(model.parameters()), dict(model.config)
    model.blocks[1] = checkpoint_wrapper(model.blocks[1])  # as with --recompute
    model = in_parts(model, made_mesh("hybrid", world))
    with Peak() as peak:
        code.first_weights(model, model.head.weight.device_mesh, args)
    return {
        "before": before,
        "built": len(built),
        "config": config,
        "held": elements(model.parameters()),
        "weights": parameters(model),
        "most": peak.most,
    }


# ---------------------------------------------------------------------------------------------------
# TODO 5: the optimizer; the law of the course


def one_main_on_rank(code, rank, world, runs, data):
    """main(), with the check's own versions of everything that TODOs after the fifth make. It also notes how many
    weights this rank held when first_weights() had filled them.
    """
    first_weights, filled = code.first_weights, []

    def noted(model, *others):
        first_weights(model, *others)
        filled.append(elements(model.parameters()))

    code.first_weights = noted
    code.clip_gradients = clipped
    code.save_checkpoint = lambda *_: None
    left = mains_on_rank(code, rank, world, runs, data)
    return [seen | {"filled": max(filled, default=0)} for seen in left]


def clipped(model, args):
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf)
    return norm.full_tensor().item() if hasattr(norm, "full_tensor") else norm.item()


# ---------------------------------------------------------------------------------------------------
# TODO 6: clipping


LOUD = 2**28  # times the loss: without a limit, any norm stays as it is


def clip_on_rank(code, rank, world, seed, clips):
    model = in_parts(made_model(seed=0), made_mesh("hybrid", world))
    seen = []
    for clip in clips:
        model.zero_grad()
        (LOUD * model(*tiny_batch(seed))).backward()
        norm = code.clip_gradients(model, made_args(code, "--clip", str(clip)))
        seen.append(
            {
                "norm": norm if isinstance(norm, (int, float)) else type(norm).__name__,
                "own": own_norm(model),
                "grads": gradients(model),
            }
        )
    return seen


def own_norm(model):
    """Of what this rank holds."""
    return math.sqrt(sum(p.grad.to_local().double().square().sum().item() for p in model.parameters()))


# ---------------------------------------------------------------------------------------------------
# TODO 7: mixed precision


def precision_on_rank(code, rank, world, seed):
    seen = {}
    for dtype, strategy in (("float32", "full"), ("bfloat16", "none"), ("bfloat16", "full")):
        policy = code.precision(made_args(code, "--dtype", dtype, "--sharding", strategy))
        model = in_parts(made_model(seed=0), made_mesh(strategy, world), mp_policy=policy)
        mark(name=dtype if strategy == "full" else strategy)
        loss = model(*tiny_batch(seed))
        loss.backward()
        mark(name="")
        kinds = {str(t.dtype).removeprefix("torch.") for t in (*model.parameters(), *gradients(model).values())}
        seen[dtype] = {
            "loss": loss.item(),
            "loss dtype": str(loss.dtype).removeprefix("torch."),
            "shards": sorted(kinds),
            "grads": gradients(model),
        }
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 8: activation checkpointing


def recompute_on_rank(code, rank, world):
    return [[watched_step(change, dropout) for change in (lambda model: None, code.recompute)] for dropout in DROPOUTS]


DROPOUTS = (0.0, 0.5)


def watched_step(change, dropout):
    """What runs in a step, and how much is kept from its forward to its backward pass."""
    torch.manual_seed(0)
    model = TransformerLM(**SIZES, dropout=dropout)
    names = sorted(model.state_dict())
    ran = []
    for part in (model.token_embedding, *(block.attention for block in model.blocks)):
        part.register_forward_hook(lambda part, *_: ran.append(part))
    whole_model = model.token_embedding
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    change(model)
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage().data_ptr() not in own:  # weights exist anyway
            kept[tensor.untyped_storage().data_ptr()] = tensor  # kept, so that its address is not reused
        return tensor

    torch.manual_seed(1)  # what dropout draws from
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model(*tiny_batch(0))
    bytes_kept = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    kept.clear()
    loss.backward()
    whole_runs = sum(part is whole_model for part in ran)
    return {
        "blocks": len(ran) - whole_runs,
        "whole": whole_runs,
        "kept": bytes_kept,
        "loss": loss.item(),
        "grads": gradients(model),
        "names": sorted(model.state_dict()) == names,
    }


# ---------------------------------------------------------------------------------------------------
# TODO 9: one file


def save_on_rank(code, rank, world):
    """The first model has one copy, and the second has two, and recomputes its blocks."""
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    most = []

    def save(seed, path, epoch):
        model = made_model(seed, DEEP)
        for i, block in enumerate(model.blocks if seed == 0 else ()):
            model.blocks[i] = checkpoint_wrapper(block)
        model = in_parts(model, made_mesh("full" if seed else "hybrid", world))
        with Peak(model.parameters()) as peak:
            code.save_checkpoint(model, DEEP, path, epoch)
        most.append(peak.most)

    return {"files": save_twice(save), "most": max(most)}


# ---------------------------------------------------------------------------------------------------
# TODOs 10 and 11: sharded checkpoints


PLACE = {"step": 17, "loss": 2.5, "best": 3.25, "batch_size": 12, "seq_len": 8, "seed": 5}


class Counting(torch.optim.SGD):
    """SGD that counts its steps, as Adam does. Adam itself takes too long here: DTensor prepares each operation on each
    shape once, in hundredths of a second, and Adam has a dozen.
    """

    def step(self, closure=None):
        super().step(closure)
        for held in self.state.values():
            held["step"] = held.get("step", torch.zeros(())) + 1


def momentum(model, lr):
    return Counting(model.parameters(), lr=lr, momentum=0.9)


def stepped(world, rank):
    """A sharded model, with copies on other ranks, and an optimizer as it is after some steps."""
    model = in_parts(made_model(seed=0), made_mesh("hybrid", world))
    optimizer = momentum(model, lr=0.25)
    model(*tiny_batch(rank)).backward()
    for p in model.parameters():
        optimizer.state[p] = {"momentum_buffer": p.grad, "step": torch.tensor(3.0)}
    return model, optimizer


def state(model, optimizer):
    """Everything that must come back, by name."""
    buffers = {
        f"{name}.{what}": optimizer.state[p].get(what)
        for name, p in parameters(model).items()
        for what in ("momentum_buffer", "step")
    }
    missing = {name: torch.zeros(0) for name, buffer in buffers.items() if buffer is None}
    return {**parameters(model), **buffers, **missing, "lr": torch.tensor(optimizer.param_groups[0]["lr"])}


def save_sharded_on_rank(code, rank, world):
    files = record_files()
    model, optimizer = stepped(world, rank)
    mark(name="save")
    code.save_sharded(model, optimizer, dict(PLACE), Path("saved"))
    mark(name="")
    dist.barrier()
    mine = [
        Path(name) for name in set(files) if "/saved/" in name and name.endswith(".distcp") and Path(name).is_file()
    ]
    return {
        "wrote": sum(path.stat().st_size for path in mine),
        "state": state(model, optimizer),
        "found": found(Path("saved")) if rank == 0 else {},
    }


def found(folder):
    """Everything that a sharded checkpoint holds, read by one process: path of keys -> value."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    if not (folder / ".metadata").is_file():
        return {}
    dcp_to_torch_save(folder, "read.pt")
    flat = {}

    def walk(value, path):
        if isinstance(value, (dict, list, tuple)):
            for key, part in value.items() if isinstance(value, dict) else enumerate(value):
                walk(part, f"{path}.{key}")
        elif isinstance(value, (torch.Tensor, int, float)):
            flat[path] = value

    walk(torch.load("read.pt", weights_only=False), "")
    return flat


def load_sharded_on_rank(code, rank, world, onto):
    """Saved on all ranks, then loaded on fewer: different shards and weights, an optimizer that never stepped."""
    model, optimizer = stepped(world, rank)
    code.save_sharded(model, optimizer, dict(PLACE), Path("saved"))
    left = {"saved": state(model, optimizer)}
    dist.barrier()
    dist.destroy_process_group()
    for ranks in onto:
        if rank < ranks:
            next_world(ranks)
            dist.init_process_group("gloo")
            model = in_parts(made_model(seed=9), made_mesh("full", ranks))
            optimizer = momentum(model, lr=0.5)
            position = code.load_sharded(model, optimizer, dict.fromkeys(PLACE, 0), Path("saved"))
            left[str(ranks)] = {
                "state": state(model, optimizer),
                "position": position if isinstance(position, dict) else repr(position),
            }
            dist.destroy_process_group()
    return left

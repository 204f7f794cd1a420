"""Checks and hints of fsdp_training.

| TODO | achievement                     | evidence                                                              | needs      |
|------|---------------------------------|-----------------------------------------------------------------------|------------|
| 1    | the ranks in a grid             | make_mesh() for each strategy on 6 ranks                              |            |
| 2    | all ranks in step               | evaluate() of a sharded model, where shares differ and one is empty   |            |
| 3    | the model in parts              | shard() for each strategy on 4 ranks, and on 3: what each rank holds; bytes gathered, scattered and reduced in a step; gradients against one process | |
| 4    | the serial run's first weights  | build_model() and first_weights() on 4 ranks; who held all of them    |            |
| 5    | the optimizer trains the shards | main() on 3 ranks against the serial run                              | 1 – 4      |
| 6    | the norm of the whole gradient  | clip_gradients() on 2 × 2 ranks                                       |            |
| 7    | bfloat16                        | dtypes and bytes of what goes between the ranks; dtype of the shards  |            |
| 8    | recomputed blocks               | how often each part runs; bytes kept for the backward pass            |            |
| 9    | one file of the whole model     | which rank writes; that torch.load(weights_only=True) can read it; where ranks have copies |            |
| 10   | a sharded checkpoint            | its content; how much each rank wrote |            |
| 11   | loaded on other ranks           | saved on 4, loaded on 2 and on 1: weights, optimizer's state, position; main() after an epoch on 4 ranks, resumed on 4, 2 and 1 | 1 – 10 |

Models here are sharded by the check itself, unless sharding is being checked: so a TODO can be judged before or without
the others. Elements and bytes are counted in padded shards: of n rows, S ranks hold ceil(n / S) each.
"""  # noqa: E501

import math
from pathlib import Path

import torch
import torch.distributed as dist

from grader.kit import (
    PARTED,
    REL,
    SAME_WEIGHTS,
    TINY,
    Peak,
    Since,
    Wrong,
    cases,
    check_checkpoint,
    check_norm,
    check_parts_travel,
    check_tensor,
    corpus,
    elements,
    expect,
    gradients,
    hinted,
    lengths,
    losses,
    mains_on_rank,
    mark,
    must_move,
    near,
    next_world,
    on_nodes,
    one_writer,
    parameters,
    record_files,
    reported,
    ring_bytes,
    same_losses,
    same_report,
    save_twice,
    scale_of,
    tiny_batch,
    tiny_model,
    todo,
    together,
    training,
)
from utils.data import ShardSampler, Windows
from utils.releases import AVERAGES_SINCE
from utils.model import TransformerLM

BUILDS = "FSDP2: grids of ranks, sharded blocks, first weights, bfloat16, recomputing, checkpoints that change shape"

# Here, a rank's imports of torch.distributed.fsdp, .checkpoint and .device_mesh are inside functions: on the ranks they
# are loaded already, and the judge, for which they would take a second, needs none of them.

SIZES = TINY | {"n_layers": 2}
DEEP = SIZES | {"n_layers": 5}  # where a few tensors are a small part
STRATEGIES = ("none", "grad", "full", "hybrid")
AVERAGES = Since(*AVERAGES_SINCE, on_cpus=True)


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


def serial_step(seeds):
    """Weights and gradients of one process, on the batches of all ranks together."""
    model = made_model(seed=0)
    x, y = (torch.cat(parts) for parts in zip(*map(tiny_batch, seeds)))
    model(x, y).backward()
    return {"weights": dict(model.named_parameters()), "grads": {name: p.grad for name, p in model.named_parameters()}}


def calls(events, name):
    """The collectives of one rank between mark `name` and the next; collectives of a single rank move nothing."""
    found, inside = [], False
    for event in events:
        if event["e"] == "mark":
            inside = event["name"] == name
        elif inside and event["e"] == "op" and len(event["group"]) > 1:
            found.append(event)
    return found


# ---------------------------------------------------------------------------------------------------
# TODO 1: the mesh


def mesh_on_rank(code, rank, world, flags):
    meshes = []
    for more in flags:
        mesh = code.make_mesh(torch.device("cpu"), world, made_args(code, *more))
        meshes.append({"names": list(mesh.mesh_dim_names or ()), "ranks": mesh.mesh.tolist()})
    return meshes


@todo(
    1,
    minutes=20,
    why=(
        "The grid decides how much each rank holds and which ranks communicate. Sharding over all ranks saves the most"
        " memory; but across nodes, where links are slow, it takes the most time. Copies are the compromise."
    ),
    hints=(
        "Only the number of rows changes from one strategy to the next: how many copies of the model are there?",
        "init_device_mesh(device.type, (rows, columns), ...) fills the grid row by row, so neighbours are in one row.",
        (
            "replicas is world_size, 1, 1 or args.replicas, depending on args.sharding; the shape is (replicas,"
            " world_size // replicas)."
        ),
    ),
)
def test_todo1_mesh(student):
    world = 6  # 2 copies on 3 ranks each are not 3 copies on 2
    flags = [["--sharding", strategy] for strategy in STRATEGIES] + [
        ["--sharding", "hybrid", "--replicas", n] for n in "316"
    ]
    for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, flags=flags).evidence):
        for more, mesh in zip(flags, meshes, strict=True):
            seen, told = mesh["ranks"], f"with {' '.join(more)} on {world} ranks"
            copies, shards = (int(more[3]), world // int(more[3])) if len(more) > 2 else grid(more[1], world)
            right = [list(range(row * shards, (row + 1) * shards)) for row in range(copies)]
            expect(
                all(isinstance(row, list) for row in seen),
                f"{told} the ranks are not in a grid of rows and columns",
                right,
                seen,
                rank,
                "A grid has two axes, also where one of them has a single entry. How long is each?",
            )
            size = (len(seen), len(seen[0]))
            expect(
                size == (copies, shards),
                f"{told} the grid is {size[0]} × {size[1]}: {size[0]} cop{'y' if size[0] == 1 else 'ies'} of the model,"
                f" held by {size[1]} rank{'s' if size[1] > 1 else ''} each",
                f"{copies} × {shards}",
                f"{size[0]} × {size[1]}",
                rank,
            )
            hint = (
                "The grid is filled row by row. Do the ranks of a row hold one copy together, or parts of different"
                " ones?"
            )
            expect(seen == right, f"{told} neighbours do not hold the same copy", right, seen, rank, hint)
            expect(
                mesh["names"] == ["replicate", "shard"],
                f"{told} the axes do not have the names by which the script looks them up",
                ["replicate", "shard"],
                mesh["names"],
                rank,
                "Each axis has a name, given where the grid is made. Which name belongs to the rows, which to the"
                " columns?",
            )


# ---------------------------------------------------------------------------------------------------
# TODO 2: in step

ROWS = 2  # in a batch


def text(windows):
    return Windows(torch.arange(windows * 8 - 3) * 7 % 50, 8, 0, drop_last=False)


def drawn_lengths(student, world):
    """One sample more than whole batches on all ranks, so that one rank has a batch more; and fewer than ranks."""
    draw, step = student.draw("lengths"), world * ROWS
    more = next(n for n in lengths(draw, step) if n > step and n % step == 1)
    return more, next(n for n in lengths(draw, world) if 0 < n < world)


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


def serial_evaluation(sizes):
    model, means = made_model(seed=0), []
    for length in sizes:
        x, y = (torch.stack(parts) for parts in zip(*text(length)))
        means.append(model(x, y).item())
    return means


@todo(
    2,
    in_place=("model",),  # its mode
    minutes=15,
    why=(
        "With DDP each rank evaluates alone. A sharded model is never whole in one place: if a rank runs out of"
        " samples and stops, its part of the weights is missing, and the others wait for it forever. With most"
        " numbers of ranks the shares are unequal."
    ),
    hints=(
        "Which rank has the most batches? All must learn that number, and then make as many forward passes.",
        (
            "dist.all_reduce with dist.ReduceOp.MAX, of a tensor on the device. IGNORE is imported: a target with this"
            " value counts in no loss."
        ),
        (
            "After the loader's own batches, yield (most - len(loader)) times a pair of int64 tensors: x of zeros of"
            " shape (1, args.seq_len), and y like it, full of IGNORE. The loader may be empty."
        ),
    ),
)
def test_todo2_in_step(student):
    world = 3
    sizes = drawn_lengths(student, world)
    right = student.reference(serial_evaluation, sizes=sizes)
    student.premise(abs(right[0] - right[1]) > 1e-3, "the wrong set")
    ranks = student.call(evaluate_on_rank, world=world, sizes=sizes).evidence
    for rank, seen in enumerate(ranks):
        for length, (mean, passes), wanted in zip(sizes, seen, right, strict=True):
            most = math.ceil(math.ceil(length / world) / ROWS)
            told = f"evaluate() of {length} sample{'s' * (length > 1)} on {world} ranks"
            expect(
                passes == most,
                f"{told}, in batches of {ROWS}, makes {passes} forward"
                f" pass{'es' if passes != 1 else ''} on rank {rank}; the rank with the most batches has {most}",
                most,
                passes,
                rank,
            )
            expect(
                math.isclose(mean, wanted, rel_tol=REL),
                f"{told} gives rank {rank} a different loss from one process: is each sample counted once, and nothing"
                " else?",
                wanted,
                mean,
                rank,
                "The additional passes are made for their messages alone. Which of their targets count in the loss?",
            )


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


def shapes_of(config=SIZES):
    """Of parameters that are gathered together: (rows, columns) of each, for a block and for the root's rest."""
    model = TransformerLM(**config)
    blocks = [[p.shape for p in block.parameters()] for block in model.blocks]
    inside = sum(map(len, blocks))
    rest = [p.shape for name, p in model.named_parameters() if not name.startswith("blocks.")]
    assert inside + len(rest) == len(list(model.parameters()))
    return blocks, rest


def held_by_one(shapes, shards):
    """The most that one of `shards` ranks holds of these parameters."""
    return sum(math.ceil(shape[0] / shards) * math.prod(shape[1:]) for shape in shapes)


@todo(
    3,
    since=AVERAGES,
    minutes=10,
    why=(
        "This is where the memory is saved. A wrapper that shards nothing trains just as well, and nothing looks"
        " wrong until the model grows; so the check counts bytes. If the whole model is one unit, every rank holds"
        " all of it during the step, and nothing is gained."
    ),
    hints=(
        "It is one call, imported above, for each block, and one more for the model. It works in place.",
        (
            "fully_shard(module, mesh=..., mp_policy=..., reshard_after_forward=...): the first two are in options. A"
            " call takes the parameters that no earlier call took, so the blocks come first. The blocks are"
            " model.blocks."
        ),
        (
            "In a loop: fully_shard(block, **options, reshard_after_forward=...), True for full and hybrid, else False;"
            " below it the same for the model with False, whose backward pass follows at once; and return the model."
        ),
    ),
)
def test_todo3_shard(student):
    blocks, rest = shapes_of()
    everything = [shape for block in blocks for shape in block] + rest
    psi = sum(map(math.prod, everything))
    rights = {world: student.reference(serial_step, seeds=[*student.seeds(world)])["grads"] for world in (4, 3)}
    for right in rights.values():
        student.premise(all(grad.norm() > 0 for grad in right.values()), "gradients of zero")
    for world, strategies in student.several(((4, STRATEGIES), (3, ("full",)))):  # of 3, no size is a multiple
        chosen = student.several(strategies, 2)
        run, right = student.call(shard_on_rank, world=world, seed=student.seeds(world), chosen=chosen), rights[world]
        ranks = run.evidence
        expect(
            "twice" not in ranks[0],
            "shard() cuts parameters that are cut already: a call for the whole model takes all that no earlier call"
            " took, so nothing is left for the blocks",
            "each block, then the model",
            "a parameter taken twice",
            0,
            "In which order are the calls made? Each takes all parameters of its module that are not taken yet.",
        )
        # A parameter that is not sharded is reported first.
        for strategy in sorted(chosen, key=("full", "grad", "hybrid", "none").index):
            copies, shards = grid(strategy, world)
            told = f"with --sharding {strategy} on {world} ranks"
            share = held_by_one(everything, shards)
            for rank, seen in enumerate(ranks):
                mine = seen[strategy]
                for what, much in (("weights", mine["held"]), ("gradients", mine["held_gradients"])):
                    more = (
                        f"all {psi:,} {what}: nothing is sharded"
                        if much >= psi
                        else f"{much:,} {what}, more than its share"
                    )
                    expect(
                        much <= share, f"{told}, rank {rank} holds {more}", f"{share:,} of {psi:,}", f"{much:,}", rank
                    )
            for row in range(copies):
                members = range(row * shards, (row + 1) * shards)
                much = sum(ranks[rank][strategy]["held"] for rank in members)
                expect(
                    much >= psi,
                    f"{told}, {'rank' if shards == 1 else 'ranks'} {', '.join(map(str, members))} together hold"
                    f" {much:,} weights, which is not one whole copy of the model: is the mesh used?",
                    f"{psi:,}",
                    f"{much:,}",
                    members[0],
                    "The mesh says which ranks hold a copy together, and which ones hold different copies. Which"
                    " calls get it?",
                )
            check_gradients(told, together([seen[strategy] for seen in ranks], "grads"), right, world)
            for rank, events in enumerate(run.events):
                check_traffic(told, strategy, calls(events, strategy), blocks, rest, copies, shards, rank)
                check_freed(told, strategy, *ranks[rank][strategy]["freed"], rank)
    check_deep(student)


# A moment in a step of DEEP -> what is over then. By then, one block has been used.
MOMENTS = {"forward": "the first block has run", "backward": "the last block's backward pass is over"}
AHEAD = 2  # blocks; FSDP itself gathers the next one while a block computes


@hinted("`options` has two entries, a mesh and a policy. Does each of the calls get both?")
def check_deep(student):
    """The policy reaches each call, and blocks are gathered one after the other."""
    world = 2
    blocks, rest = shapes_of(DEEP)
    run = student.call(deep_on_rank, world=world)
    for rank, events in enumerate(run.events):
        gathered = {
            moment: [event for event in calls(events, moment) if event["op"] == "all_gather"]
            for moment in (*MOMENTS, "later")
        }
        dtypes = sorted({event["dtype"] for made in gathered.values() for event in made})
        expect(
            dtypes == ["bfloat16"],
            f"where precision() asks for parameters in bfloat16, rank {rank} gathers weights in"
            f" {' and '.join(dtypes) or 'no dtype'}: is the mp_policy in options given to every fully_shard?",
            "bfloat16",
            dtypes,
            rank,
        )
        most = 2 * (held_by_one(rest, world) + (1 + AHEAD) * held_by_one(blocks[0], world))  # bfloat16 has 2 bytes
        for moment, told in MOMENTS.items():
            ahead = sum(event["bytes"] for event in gathered[moment])
            expect(
                ahead <= most,
                f"with --sharding full and {len(blocks)} blocks, rank {rank} gives {ahead:,} bytes to gather weights"
                f" before {told}: blocks are gathered long before they are used, so a rank holds many at once",
                f"at most {most:,} bytes: the rest of the model and {1 + AHEAD} blocks",
                f"{ahead:,} bytes",
                rank,
                "How many whole blocks may a rank hold at once? Which call asks for more of them ahead?",
            )


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


OF_ONE = "what one process computes on the whole batch"


def check_gradients(told, seen, right, world):
    scale = scale_of(right.values())
    for name, grad in right.items():
        hint = "Each shard has its gradient after the backward pass. What keeps it from being added up over the ranks?"
        expect(name in seen, f"{told}, {name} has no gradient", "a gradient", "none", hint=hint)
        hint = "A gradient is a mean over all ranks. Which ranks' gradients are in it, and which are missing?"
        if near(seen[name], grad * world, REL, world * scale):
            hint = "All ranks' gradients are in the sum: by what must it be divided?"
        # float32 sums in a different order: 4e-7 of a gradient's norm measured, 1e-3 and more if wrong.
        check_tensor(f"{told}, the gradient of {name}", seen[name], grad, REL, scale=scale, than=OF_ONE, hint=hint)


def check_traffic(told, strategy, seen, blocks, rest, copies, shards, rank):
    """What one rank contributed to a step, in bytes: to gather weights, to scatter and to add up gradients."""

    def given(*ops):
        return [event["bytes"] for event in seen if event["op"] in ops]

    inside = 4 * sum(held_by_one(block, shards) for block in blocks)
    outside = 4 * held_by_one(rest, shards)
    # Without padding.
    least = (
        4 * sum(math.prod(shape) for block in blocks for shape in block) / shards,
        4 * sum(map(math.prod, rest)) / shards,
    )
    if shards > 1:
        gathered, scattered = given("all_gather"), sum(given("reduce_scatter"))
        times = {"grad": "once: they stay from the forward to the backward pass", "full": "twice, once for each pass"}
        times["hybrid"] = times["full"]
        lower, upper = (
            (sum(least), inside + outside) if strategy == "grad" else (2 * least[0] + least[1], 2 * (inside + outside))
        )
        unit = 4 * max(held_by_one(rest, shards), *(held_by_one(block, shards) for block in blocks))
        expect(
            max(gathered, default=0) <= unit,
            f"{told}, {max(gathered, default=0) * shards:,} bytes of weights are gathered at once: more than the"
            " largest unit, so the blocks are not separate units",
            f"at most {unit * shards:,} bytes",
            f"{max(gathered, default=0) * shards:,} bytes",
            rank,
            "What one call shards is gathered at once. How many calls are there, and what is left for the last one?",
        )
        expect(
            lower <= sum(gathered) <= upper,
            f"{told}, rank {rank} gives {sum(gathered):,} bytes to gather weights in a step; a block's weights must"
            f" be gathered {times[strategy]}",
            f"{lower:,.0f} to {upper:,} bytes",
            f"{sum(gathered):,} bytes",
            rank,
            "Are the weights freed after the forward pass, or kept for the backward pass? Which argument decides it,"
            " and for which strategies?",
        )
        expect(
            sum(least) <= scattered <= inside + outside,
            f"{told}, rank {rank} gets {scattered:,} bytes of gradients by reduce-scatter in a step",
            f"its share, {sum(least):,.0f} bytes",
            f"{scattered:,} bytes",
            rank,
            "A rank needs the sum of the gradients only for what it holds. Which parameters does no call shard?",
        )
    if copies > 1:
        reduced = sum(given("all_reduce"))
        expect(
            sum(least) <= reduced <= 1.05 * (inside + outside),
            f"{told}, rank {rank} gives {reduced:,} bytes of gradients to add up over the {copies} copies in a step",
            f"{sum(least):,.0f} bytes, each gradient that it holds once",
            f"{reduced:,} bytes",
            rank,
            "Copies of a weight need the same gradient. Does each call know both axes of the mesh?",
        )


def check_freed(told, strategy, freed, many, rank):
    """How many of the blocks' weights are freed after the forward pass: where each rank has a copy, no byte tells."""
    frees = strategy in ("full", "hybrid")
    expect(
        freed == (many if frees else 0),
        f"{told}, between the forward and the backward pass {freed} of the blocks' {many} weights are freed on rank"
        f" {rank}, {'instead of all' if frees else 'to be put together again: they must stay'}",
        "all" if frees else "none",
        freed,
        rank,
        "The text says for each strategy whether a block's weights stay until the backward pass. What about none?",
    )


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


def serial_weights(seed, config):
    return made_model(seed, config).state_dict()


@todo(
    4,
    minutes=15,
    why=(
        "fully_shard does not send rank 0's weights to the others, as DDP does. If each rank drew its own, the model"
        " would be stitched together from several initializations; if each drew its part with the same seed, the"
        " parts would be alike. A model that is built whole on every rank must also fit on every rank, which sharding"
        " was meant to avoid."
    ),
    hints=(
        (
            "The device “meta” for the model; then memory only for the shards; then rank 0 builds the model as a"
            " single process would, once, and distributes it."
        ),
        (
            'with torch.device("meta"): ... around the constructor. module.to_empty(device=...) takes memory.'
            " set_model_state_dict, imported above, takes the whole state dict on rank 0 and an empty one elsewhere,"
            " with StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)."
        ),
        (
            "In first_weights: model.to_empty(device=mesh.device_type); torch.manual_seed(args.seed); on rank 0 full ="
            " TransformerLM(**model.config).state_dict(), elsewhere {}; and set_model_state_dict(model, full,"
            " options=...)."
        ),
    ),
)
def test_todo4_first_weights(student):
    world, seed = 4, 7
    blocks, rest = shapes_of(DEEP)
    share = held_by_one([shape for block in blocks for shape in block] + rest, 2)
    moment = bytes_of_a_moment(student, shards=2)
    ranks = student.call(first_on_rank, world=world, seed=seed).evidence
    asked = DEEP | {"dropout": DROPOUTS[1]}
    for rank, mine in enumerate(ranks):
        for name, wanted in asked.items():
            got = mine["config"].get(name)
            told = f"the model that build_model makes has {name} {got}"
            hint = "All sizes of the model come from the flags, or are given. Which one is left at its default?"
            expect(got == wanted, told, f"{name} {wanted}", got, rank, hint)
    right, seen = student.reference(serial_weights, seed=seed, config=DEEP), together(ranks, "weights")
    for row in range(2):  # the copies
        copy = together(ranks[2 * row : 2 * row + 2], "weights")
        for name, weight in right.items():
            if torch.equal(copy[name], weight):
                continue
            parts = copy[name].chunk(2)
            what, hint = FIRST["the serial run's"]
            if copy[name].isnan().any() or not copy[name].any():
                what, hint = FIRST["empty"]
            elif len(parts) > 1 and torch.equal(*parts):
                what, hint = FIRST["repeated"]
            raise Wrong(
                f"the first {name} {what} (ranks {2 * row} and {2 * row + 1} of {world})",
                "the weights that a single process draws from --seed",
                "others",
                2 * row,
                hint,
            )
    assert set(seen) == set(right)
    owners = [rank for rank, mine in enumerate(ranks) if mine["before"] or mine["built"]]
    expect(
        len(owners) <= 1,
        f"ranks {', '.join(map(str, owners))} have each had the whole model in memory",
        "at most one rank",
        f"ranks {owners}",
        owners[-1] if owners else None,
    )
    for rank, mine in enumerate(ranks):
        expect(
            mine["held"] <= share,
            f"rank {rank} holds {mine['held']:,} weights after first_weights, its shards are {share:,}",
            share,
            mine["held"],
            rank,
        )
        if rank not in owners:
            check_moment("first_weights", rank, mine["most"], *moment)


# What is wrong with the first weights, and the hint.
FIRST = {
    "empty": ("has no content yet", "Newly allocated memory has no content. Which call fills it, and on which ranks?"),
    "repeated": (
        "repeats: the ranks' parts are equal, as if each had drawn its own from the same seed",
        "With one seed, each rank draws the same first numbers. Which rank draws all, and how do the others get"
        " theirs?",
    ),
    "the serial run's": (
        "is not the serial run's",
        "What does a single process do between its seed and its last weight? The same draws must be made here, in the"
        " same order.",
    ),
}


def bytes_of_a_moment(student, shards):
    """Of the whole DEEP, and the most for a rank at once: in addition to its part, one of `shards`, it may have a few
    whole tensors, one that arrives, one that is being cut, and those that gloo's threads have not released yet.
    """
    blocks, rest = shapes_of(DEEP)
    shapes = [shape for block in blocks for shape in block] + rest
    whole, most = 4 * sum(map(math.prod, shapes)), 4 * held_by_one(shapes, shards) + 4 * 6 * max(map(math.prod, shapes))
    student.premise(whole > most, "a rank that has the whole model for a moment")
    return whole, most


def check_moment(what, rank, seen, whole, most):
    expect(
        seen <= most,
        f"in {what}, rank {rank} has {seen:,} bytes of weights at one moment, of {whole:,} that the model has: the"
        " whole model is assembled there; distribute it tensor by tensor",
        f"at most {most:,} bytes: its shards, and a few tensors",
        f"{seen:,} bytes",
        rank,
        "At which line is every tensor whole on this rank? Which of them does it need at that moment?",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 5: the optimizer; the law of the course

# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a learning rate that moves weights.
ARGV = (
    "--epochs 2 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd --lr 0.5 --weight-decay 0.1 "
    "--clip 0.5 --seed 5 --log-every 2"
).split()


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


def serial_run(student, argv=ARGV):
    return student.serial(["--data", "data", "--out", "out", *argv], corpus(student))


@todo(
    5,
    minutes=10,
    needs=(1, 2, 3, 4),
    why=(
        "An optimizer refers to the parameters that it is given. If they are replaced afterwards, it steps weights"
        " that the model no longer uses. There is no error, but the loss does not fall, and the optimizer's state is"
        " as large as for the whole model."
    ),
    hints=(
        "The three lines are right, but their order is not.",
        "make_optimizer reads model.parameters() when it is called.",
        "First parallelize, then first_weights, and make_optimizer last.",
    ),
)
def test_todo5_optimizer(student):
    serial = serial_run(student)
    right, final, first = losses(serial.evidence[0]), serial.evidence[0]["weights"], must_move(student, serial)
    world, strategy = 3, "full"  # of 3, no size is a multiple; 4, 2 and 1 ranks come with TODO 11
    runs = [[world, [*ARGV, "--sharding", strategy]]]
    run = student.call(one_main_on_rank, world=world, group=None, runs=runs, data=corpus(student))
    ranks = [left[0] for left in run.evidence]
    told = f"with --sharding {strategy} on {world} ranks"
    share = held_by_one([tuple(w.shape) for w in final.values()], grid(strategy, world)[1])
    weights = together(ranks, "weights")
    for rank, seen in enumerate(ranks):
        expect(
            seen["filled"] <= share,
            f"{told}, rank {rank} holds {seen['filled']:,} weights when first_weights() has filled them; its shards are"
            f" {share:,}: each rank has the whole model in memory, and cuts it only then",
            f"{share:,}",
            f"{seen['filled']:,}",
            rank,
            "first_weights() allocates memory for what it is given. What is the model, before and after it is cut?",
        )
    moved = max((weights[name] - weight).abs().max().item() for name, weight in first.items())
    expect(
        moved > 0,
        f"{told}, training leaves the weights as they were: the optimizer steps parameters that nothing uses",
        "weights that move",
        "the first weights",
    )
    for rank, seen in enumerate(ranks):
        expect(
            seen["held"] <= share,
            f"{told}, the optimizer of rank {rank} has parameters of {seen['held']:,} elements; its shards are"
            f" {share:,}",
            f"{share:,}",
            f"{seen['held']:,}",
            rank,
        )
        expect(
            seen["held"] > 0 and seen["held"] >= share / 2,
            f"{told}, the optimizer of rank {rank} does not have the model's parameters: those that it was given are"
            " no longer used",
            f"{share:,} elements",
            f"{seen['held']:,}",
            rank,
        )
        expect(
            not seen["others"],
            f"{told}, the optimizer of rank {rank} has {seen['others']} more parameters, which the model no longer has",
            "the parameters that are trained",
            f"{seen['others']} others",
            rank,
        )
        expect(
            not seen["still_in_a_group"],
            f"{told}, rank {rank} ends without leaving the process group",
            "no group",
            "a group",
            rank,
        )
    same_losses(f"{told},", right, ranks)
    same_report(f"{told},", reported(serial), reported(run, "out-0"))
    for name, weight in final.items():
        expect(
            torch.allclose(weights[name], weight, rtol=0, atol=SAME_WEIGHTS),
            f"{told}, the last weights are not the serial run's ({name})",
            "equal weights",
            "others",
        )
    check_shards_travel(told, serial, run, 0, world, len(right))


def check_shards_travel(told, serial, run, number, world, steps):
    """In each step at least once the weights are gathered and the gradients added up: together, an all-reduce."""
    whole = sum(weight.nbytes for weight in serial.evidence[0]["weights"].values())
    check_parts_travel(told, cases(run.events)[number][:world], steps * ring_bytes(whole, world), steps)


# ---------------------------------------------------------------------------------------------------
# TODO 6: clipping

CLIPS = (0.05, 0.0, 1e12)
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


@todo(
    6,
    since=AVERAGES,
    minutes=10,
    further=True,
    why=(
        "The norm of a part is smaller than the norm of the whole, so a gradient that should be clipped is not; and"
        " parts that are scaled by different numbers no longer form one gradient. The model then depends on the"
        " number of ranks. The norm is also the first thing to look at when a loss jumps."
    ),
    hints=(
        "The given call can do it: it supports DTensors. What does it return, and how does that become a number?",
        (
            "clip_grad_norm_ returns the norm before clipping; for DTensor parameters it is a DTensor, which"
            " full_tensor() or item() turn into a number that all ranks agree on. Without a limit, use math.inf."
        ),
        (
            "norm = nn.utils.clip_grad_norm_(model.parameters(), args.clip or math.inf); then return"
            " norm.full_tensor().item(), or norm.item() of a plain tensor."
        ),
    ),
)
def test_todo6_clip(student):
    world = 4
    seeds = student.seeds(world)
    grads = student.reference(serial_step, seeds=[*seeds])["grads"]
    grads = {name: LOUD * grad for name, grad in grads.items()}
    right = math.sqrt(sum(grad.double().square().sum().item() for grad in grads.values()))
    student.premise(CLIPS[0] < right / 2 and 1 < right < CLIPS[2], "gradients that are not clipped")
    clips = student.several(CLIPS)
    ranks = student.call(clip_on_rank, world=world, seed=seeds, clips=clips).evidence
    for case, clip in enumerate(clips):
        factor = min(1.0, clip / right) if clip else 1.0
        for rank, mine in enumerate(ranks):
            told = f"with --clip {clip:g} on 2 × 2 ranks,"
            wrongs = {
                "the norm of two copies of the gradient": (right * math.sqrt(2), COPIES),
                "the norm of this rank's part": (norm_of_part(grads, rank % 2), PART),
            }
            check_norm(told, mine[case]["norm"], right, clip, rank, REL, wrongs)
        for name, grad in together([mine[case] for mine in ranks], "grads").items():
            told = f"with --clip {clip:g} the gradient of {name}"
            unclipped = {"not clipped": grads[name]} if factor < 1 else {}
            than = "the whole gradient's, scaled by one number"
            hint = "The norm is right. By which single number are all gradients scaled, and when are they left alone?"
            check_tensor(told, grad, grads[name] * factor, REL, wrongs=unclipped, than=than, hint=hint)


COPIES = "Both rows of the mesh hold the same gradient. Over which ranks may squares be added up?"
PART = "What a rank can see is its part of a DTensor. Which call makes the whole of it?"


def norm_of_part(grads, place):
    """Of what fully_shard leaves to one of two ranks: some of each gradient's rows."""
    parts = [grad.chunk(2)[place] for grad in grads.values() if place < len(grad.chunk(2))]
    return math.sqrt(sum(part.double().square().sum().item() for part in parts))


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


@todo(
    7,
    since=AVERAGES,
    minutes=10,
    further=True,
    why=(
        "Half the bytes are gathered in half the time, and matrix products in bfloat16 are several times as fast. But"
        " bfloat16 has fewer than three decimal digits: a small gradient that is added to a large sum is lost, and so"
        " is a small step that is added to a weight. Those two stay float32."
    ),
    hints=(
        "The function returns a policy, and its empty form changes nothing. Which two of its fields matter here?",
        (
            "MixedPrecisionPolicy takes param_dtype, in which weights are gathered and used, and reduce_dtype, in which"
            " gradients are added up."
        ),
        (
            'If args.dtype is "bfloat16": MixedPrecisionPolicy(param_dtype=torch...., reduce_dtype=torch....), the'
            " first with half as many bits as the second."
        ),
    ),
)
def test_todo7_precision(student):
    world = 2
    seeds = student.seeds(world)
    run = student.call(precision_on_rank, world=world, seed=seeds)
    ranks = run.evidence
    right = student.reference(serial_step, seeds=[*seeds])["grads"]
    for rank, events in enumerate(run.events):
        for dtype in ("float32", "bfloat16"):
            told = f"with --dtype {dtype} on rank {rank}"
            gathered = {e["dtype"] for e in calls(events, dtype) if e["op"] == "all_gather"}
            scattered = {e["dtype"] for e in calls(events, dtype) if e["op"] == "reduce_scatter"}
            expect(
                gathered == {dtype},
                f"{told} weights are gathered in {', '.join(sorted(gathered))}",
                dtype,
                sorted(gathered),
                rank,
            )
            expect(
                scattered == {"float32"},
                f"{told} gradients are added up in {', '.join(sorted(scattered))}",
                "float32",
                sorted(scattered),
                rank,
                "Small gradients are lost when they are added to a large sum. Which field is about this sum?",
            )
            found = ranks[rank][dtype]["loss dtype"]
            expect(
                found == "float32",
                f"{told} the loss is {found}: fewer than three digits are left. Compute it in float32, and keep it in"
                " float32",
                "float32",
                found,
                rank,
                "Go through the fields of the policy that you set: what does each of them cast? Which one casts the"
                " loss?",
            )
            expect(
                ranks[rank][dtype]["shards"] == ["float32"],
                f"{told} the shards are {ranks[rank][dtype]['shards']}",
                "float32",
                ranks[rank][dtype]["shards"],
                rank,
                "Shards are what the optimizer steps, and a policy leaves them alone. Which line changes them?",
            )
        check_copies_added(events, rank)
    exact, rough = (together([seen[dtype] for seen in ranks], "grads") for dtype in ("float32", "bfloat16"))
    scale = scale_of(right.values())
    for name, grad in right.items():
        hint = "With --dtype float32 nothing is rounded on the way. What does the policy ask for then?"
        told = f"with --dtype float32 the gradient of {name}"
        check_tensor(told, exact[name], grad, REL, scale=scale, than=OF_ONE, hint=hint)
        # bfloat16 has 8 bits: some percent after a few layers; 1.8 % was measured.
        expect(
            (rough[name] - grad).norm() < 0.1 * grad.norm(),
            f"with --dtype bfloat16 the gradient of {name} is far from what one process computes",
            grad,
            rough[name],
        )


def check_copies_added(events, rank):
    added = {e["dtype"] for e in calls(events, "none") if e["op"] in ("all_reduce", "reduce_scatter")}
    expect(
        added == {"float32"},
        f"with --dtype bfloat16 --sharding none rank {rank} adds up gradients in {', '.join(sorted(added))}",
        "float32",
        sorted(added),
        rank,
        "The gradients of copies are added up, too. For which values of --sharding must the policy hold?",
    )


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


@todo(
    8,
    minutes=10,
    further=True,
    why=(
        "Once weights are sharded, the activations kept for the backward pass fill the memory, and they grow with the"
        " batch and the length of the text. With recomputation, only the input of each block is kept."
    ),
    hints=(
        "The wrapper is imported above. Its result must replace the block.",
        (
            "checkpoint_wrapper(module) returns a module that computes the same, but runs twice. model.blocks is a"
            " ModuleList: model.blocks[i] = ... puts another module in its place."
        ),
        "for i, block in enumerate(model.blocks): put checkpoint_wrapper(block) into model.blocks[i].",
    ),
)
def test_todo8_recompute(student):
    (cases_of_dropout,) = student.call(recompute_on_rank, world=1, group=False).evidence
    ((before, after), dropped) = cases_of_dropout
    layers = SIZES["n_layers"]
    expect(
        after["blocks"] == 2 * layers,
        f"in a step with --recompute the {layers} blocks run {after['blocks']} times in all: each must run in the "
        "forward pass, and again in the backward pass",
        2 * layers,
        after["blocks"],
    )
    expect(
        after["whole"] == 1,
        "the whole model runs again in the backward pass, not each block separately: so all activations are still"
        " kept at once",
        "each block separately",
        "the whole model",
        hint="Which module is wrapped? All that is inside it runs again at once.",
    )
    # The input of each block is kept, and what the head keeps; a fifth was measured.
    expect(
        after["kept"] < before["kept"] / 2,
        "with --recompute the forward pass keeps about as much as without",
        f"less than half of {before['kept']:,} bytes",
        f"{after['kept']:,} bytes",
        hint="What is recomputed need not be kept. Which activations are still kept, and in which modules?",
    )
    expect(
        same_step(before, after),
        "with --recompute the loss or a gradient differs: the second run must repeat the first",
        "equal to the last bit",
        "others",
        hint="A wrapped block computes what the block did. What else was changed, or is it a different block?",
    )
    expect(
        same_step(*dropped),
        f"with --recompute and --dropout {DROPOUTS[1]} the loss or a gradient differs: the second run must draw"
        " the same random numbers, and so start from the same state of the generator",
        "equal to the last bit",
        "others",
        hint="Where is the generator's state kept for the second run? An option of the wrapper can forbid that.",
    )
    expect(
        after["names"],
        "with --recompute the names in the state dict change, so no checkpoint fits",
        "the same names",
        "different names",
        hint="A wrapped module gets a longer name. Which wrapper, imported above, hides that?",
    )


def same_step(before, after):
    return after["loss"] == before["loss"] and all(
        torch.equal(after["grads"].get(name, torch.empty(0)), grad) for name, grad in before["grads"].items()
    )


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


@todo(
    9,
    minutes=10,
    once="it saves two models, one after the other",
    why=(
        "To use a model you want a file that loads anywhere: on one device, in a program that knows nothing of"
        " shards. A file of DTensors can be read only in a process group, and rank 0's state dict holds only rank 0's"
        " shards."
    ),
    hints=(
        "There are functions for it among the imports; all ranks must call them, since all contribute their parts.",
        (
            "get_model_state_dict(model, options=...) with StateDictOptions: full_state_dict puts shards together, and"
            " cpu_offload keeps them on rank 0's CPU only. save0 writes on rank 0."
        ),
        (
            "options = StateDictOptions(full_state_dict=..., cpu_offload=...), both True; then save0 the same"
            " dictionary with what get_model_state_dict returns."
        ),
    ),
)
def test_todo9_save(student):
    moment = bytes_of_a_moment(student, shards=3)
    for nodes in (1, 3):
        with on_nodes(nodes, 6):
            check_save(student, nodes, moment)


def check_save(student, nodes, moment):
    run = student.call(save_on_rank, world=6, nodes=nodes)
    ranks = run.evidence
    with hinted("All ranks know the path. Which one of them writes, and which function of the course does that?"):
        writers = one_writer(run)
    check_checkpoint(
        run.files["saved/model.pt"],
        student.reference(serial_weights, seed=0, config=DEEP),
        epoch=3,
        config=DEEP,
        earlier=student.reference(serial_weights, seed=1, config=DEEP),
    )
    for rank, seen in enumerate(ranks):
        if rank not in writers:
            check_moment("save_checkpoint", rank, seen["most"], *moment)


# ---------------------------------------------------------------------------------------------------
# TODOs 10 and 11: sharded checkpoints

OPTIMIZERS = ("momentum_buffer", "step", "lr")
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


def entry(flat, name, value):
    """The entry of the checkpoint for `name`: found by the end of its path or, if the optimizer numbers its parameters,
    by its content. None if there is none.
    """
    named = next((held for path, held in flat.items() if path.endswith(f".{name}")), None)
    own = name.rpartition(".")[2]
    if named is not None or own not in OPTIMIZERS:
        return named
    alike = [held for path, held in flat.items() if path.rpartition(".")[2] == own]
    return next((held for held in alike if same_value(held, value)), None)


def same_value(held, value):
    held = torch.tensor(held) if isinstance(held, float) else held
    return isinstance(held, torch.Tensor) and held.shape == value.shape and torch.equal(held, value)


@todo(
    10,
    minutes=10,
    why=(
        "A job ends when its time is over, but the training does not. Model and optimizer state together are three"
        " times as large as the weights. One rank does not have the memory to gather them, and all others would wait"
        " for it; if each rank writes its part, saving takes 1/N of the time."
    ),
    hints=(
        (
            "First get the two state dicts, of sharded tensors; then one call writes them. The position goes in with"
            " them."
        ),
        (
            "get_state_dict(model, optimizer) returns both. dcp.save(dictionary, checkpoint_id=folder) writes it;"
            " each rank writes its own shards."
        ),
        (
            'weights, state = get_state_dict(...); dcp.save({"model": ..., "optimizer": ..., "position": ...},'
            " checkpoint_id=folder)."
        ),
    ),
)
def test_todo10_save_sharded(student):
    world = 4
    with hinted(PARTED, "hang"):
        run = student.call(save_sharded_on_rank, world=world, common=True)
    ranks = run.evidence
    flat = ranks[0]["found"]
    expect(
        "saved/.metadata" in run.files,
        "save_sharded leaves no checkpoint in the folder",
        "saved/.metadata and a file of each rank",
        sorted(name for name in run.files if name.startswith("saved")) or "no file",
    )
    for name, value in together(ranks, "state").items():
        what = "the optimizer's state" if name.rpartition(".")[2] in OPTIMIZERS else "the model's weights"
        seen = entry(flat, name, value)
        expect(
            seen is not None,
            (
                f"{what} are not all in the checkpoint: there is no {name}"
                if what.endswith("s")
                else f"{what} is not in the checkpoint: there is no {name}"
            ),
            name,
            f"{len(flat)} entries",
        )
        expect(
            same_value(seen, value),
            f"{name} in the checkpoint is not what the ranks held",
            tuple(value.shape),
            tuple(getattr(seen, "shape", ())),
        )
    for name, value in PLACE.items():
        expect(
            any(path.endswith(f".{name}") and other == value for path, other in flat.items()),
            f"the position is not in the checkpoint: there is no {name} of {value}",
            value,
            next((held for path, held in flat.items() if path.endswith(f".{name}")), None),
        )
    check_written(run)


def check_written(run):
    """Each rank writes its own shards, and sends none of them."""
    blocks, rest = shapes_of()
    share = 4 * held_by_one([shape for block in blocks for shape in block] + rest, 2)
    for rank, events in enumerate(run.events):
        given = sum(event["bytes"] for event in calls(events, "save") if event["dtype"] == "float32")
        expect(
            given < share,
            f"rank {rank} gives {given:,} bytes of its shards to the others before anything is written: the whole"
            " state is assembled, and may not fit on any rank",
            "each rank writes its own shards",
            f"{given:,} bytes sent",
            rank,
            "Does a state dict of sharded tensors have to be whole to be written? Which option makes it so?",
        )
    total = sum(seen["wrote"] for seen in run.evidence)
    for rank, seen in enumerate(run.evidence):
        # An even share is a quarter; the rest is for shards that cannot be divided evenly, and for headers.
        expect(
            seen["wrote"] < 0.5 * total,
            f"rank {rank} writes {seen['wrote']:,} of {total:,} bytes: the ranks do not divide the work",
            f"about {total // len(run.evidence):,} bytes",
            f"{seen['wrote']:,} bytes",
            rank,
            "Which ranks make the call that writes, and what do they have in their dictionary: shards, or all of it?",
        )


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


@todo(
    11,
    in_place=("position",),
    minutes=15,
    further=True,
    needs=tuple(range(1, 11)),
    why=(
        "The next job may get a different number of GPUs. Shards that were written by 4 ranks must be cut anew for"
        " 2, and the optimizer must keep its moments: without them Adam's first steps are too long, and the loss jumps."
    ),
    hints=(
        "It is TODO 10 in reverse: build the same dictionary, let it be filled, and put its parts back.",
        (
            "dcp.load(dictionary, checkpoint_id=folder) fills in place the tensors of get_state_dict."
            " set_state_dict(model, optimizer, model_state_dict=..., optim_state_dict=...) gives them back."
        ),
        (
            "weights, state = get_state_dict(...); saved = {the keys of TODO 10}; dcp.load(saved, ...);"
            ' set_state_dict(...); return saved["position"].'
        ),
    ),
)
def test_todo11_load_sharded(student):
    world, onto = 4, student.several((2, 1))
    left = student.call(load_sharded_on_rank, world=world, onto=onto, common=True).evidence
    right = together(left, "saved")
    for ranks in onto:
        seen = [left[rank][str(ranks)] for rank in range(ranks)]
        told = f"saved on {world} ranks and loaded on {ranks},"
        for name, value in together(seen, "state").items():
            what = "the optimizer's" if name.rpartition(".")[2] in OPTIMIZERS else "the model's"
            expect(
                value.shape == right[name].shape and torch.equal(value, right[name]),
                f"{told} {what} {name} is not what was saved",
                right[name],
                value,
                hint="A load fills the dictionary that it is given. Does all of it then reach model and optimizer?",
            )
        for rank, mine in enumerate(seen):
            expect(
                mine["position"] == PLACE,
                f"{told} the position that rank {rank} gets is not what was saved",
                PLACE,
                mine["position"],
                rank,
                "Tensors are filled in place; a number cannot be. In which dictionary is the new one?",
            )
    check_going_on(student)


# Two epochs of two steps, saved after each; and the runs that resume after the first of them.
LONG = [*ARGV, "--log-every", "1"]
SAVED = "out-0/step-2"
RESUMED = [
    [4, [*LONG, "--resume", SAVED]],
    [2, [*LONG, "--sharding", "grad", "--resume", SAVED, "--recompute"]],
    [1, [*LONG, "--resume", SAVED]],
]


@hinted(
    "What does a run need in order to continue as if it had never stopped? Compare its first step after the stop"
    " with that step of the run without one."
)
def check_going_on(student):
    """The run that is resumed after an epoch is the run that never stopped; on as many ranks, to the last bit."""
    serial = serial_run(student, LONG)
    right = losses(serial.evidence[0])
    asked = [[4, [*LONG, "--save"]], *student.several(RESUMED)]
    run = student.call(mains_on_rank, world=4, group=None, runs=asked, data=corpus(student), common=True)
    runs = [[mine[number] for mine in run.evidence if mine[number] is not None] for number in range(len(asked))]
    same_losses("on 4 ranks", right, runs[0])
    told = "saved after an epoch on 4 ranks and resumed on {},"
    for number, (ranks, _) in enumerate(asked[1:], start=1):
        steps = min(map(len, map(training, runs[number])))
        expect(steps == 2, f"{told.format(ranks)} it makes {steps} steps; without a stop there were two more", 2, steps)
        same_losses(told.format(ranks), right[2:], runs[number])
        report = [line for line in reported(serial) if line["step"] > 2]
        same_report(told.format(ranks), report, reported(run, f"out-{number}"))
        if ranks == 4:
            same_to_the_bit(told.format(ranks), runs[0], runs[number])
    for number, (ranks, _) in enumerate(asked):
        if ranks > 1:
            steps = len(right) if number == 0 else 2
            check_shards_travel(told.format(ranks) if number else "on 4 ranks", serial, run, number, ranks, steps)


def same_to_the_bit(told, through, resumed):
    """Of two runs on as many ranks, each rank's losses after the stop and the last weights."""
    for rank, (first, again) in enumerate(zip(through, resumed, strict=True)):
        expect(
            losses(first)[2:] == losses(again),
            f"{told} the losses of rank {rank} differ in a bit from those without a stop",
            losses(first)[2:],
            losses(again),
            rank,
        )
    a, b = together(through, "weights"), together(resumed, "weights")
    for name in a:
        expect(
            torch.equal(a[name], b[name]),
            f"{told} the last {name} differs in a bit from the one without a stop",
            "equal weights",
            "others",
        )

"""Checks and hints of 03_zero.

| TODO | achievement                             | evidence                                                                                       | needs   |
|------|-----------------------------------------|------------------------------------------------------------------------------------------------|---------|
| 1    | bytes a rank holds, predicted           | the formulas                                                                                   |         |
| 2    | a tensor cut into shards, and joined    | values; which tensors share memory; bytes of a shard                                          |         |
| 3    | many tensors by one collective          | values and number of collectives on 3 and 2 ranks, in float32 and float64                      | 2       |
| 4    | stage 1: each rank steps its part       | bytes held, bytes sent, losses of AdamW over 10 steps on 2 ranks; weights under SGD on 3       | 2, 3    |
| 5    | the state dictionary of a plain optimizer | compared with one process's; loaded into a new optimizer, which continues                   | 2, 3    |
| 6    | stage 2: gradients reduced when ready   | as of 4, SGD alone; whole gradients alive in the backward pass; two backward passes a step     | 2, 3    |
| 7    | bytes a rank sends, predicted           | the formulas                                                                                   |         |
| 8    | a unit made whole, and freed            | values, bytes, collectives; autograd's view of it                                              | 2, 3    |
| 9    | stage 3: through the whole step         | as of 4 and 6; weights alive in forward pass, backward pass and evaluation                     | 2, 3, 8 |
| 10   | bfloat16 weights by float32 masters     | masters against one process's, on 2 and 3 ranks; bytes held; dtypes sent                | 2, 3    |

The model is the course's, so small that 2 and 3 ranks divide few of its sizes, and with a parameter of one number, of
which some ranks have nothing. Tensors of TODOs 2 and 3 may also be empty. With `odd`, its head is tied and some of its parameters are frozen.

Bytes are counted in live storages just before the second step, and after its other backward passes. A rank's share of a
tensor has n / N numbers, rounded up; the padding of the last ranks may exist or not.
"""  # noqa: E501

import contextlib
import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from grader.kit import (
    OWN_ZEROS,
    STALE,
    Private,
    as_evidence,
    cases,
    check_answers,
    check_shape,
    check_tensor,
    collectives,
    count_of,
    expect,
    hinted,
    kind_of,
    lengths,
    mark,
    name_of,
    near,
    scale_of,
    todo,
    zeros_in_turn,
)
from utils.memory import Storages, held
from utils.model import TransformerLM

BUILDS = "ZeRO 1, 2 and 3: optimizer state, gradients and weights sharded, bytes counted; mixed precision"

# Losses differ from one process's by the order in which float32 numbers are added: over 60 draws by 2.8e-7 at
# most in ten steps, and weights under SGD by 7e-7 of their change, where that is more than MOVED. A rank that trains
# alone ends with different weights, which is asserted below.
REL, MOVED = 1e-4, 1e-2


class Model(TransformerLM):
    """The course's, with a parameter of one number."""

    def __init__(self, layers):
        super().__init__(vocab_size=37, dim=5, n_heads=1, n_layers=layers, max_len=8)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x, y):
        return super().forward(x, y) * self.gain.sum()


def made_model(odd=False, layers=1):
    torch.manual_seed(0)
    model = Model(layers)
    if odd:
        model.head.weight = model.token_embedding.weight
        for frozen in (model.position_embedding, model.blocks[0].attention.k, model.blocks[-1].mlp_norm):
            frozen.requires_grad_(False)
    return model


def in_groups(parameters):
    """Two groups that differ in two options, so that a step with the wrong group's options is a different step."""
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0, "lr": 0.02},
    ]


# AdamW divides by the root of its second average: where a gradient is nearly zero, torch's eps of 1e-8 lets the
# rounding of a sum change the step. Over 101 draws, averages differed by up to 4e-2 of the largest after two steps;
# with 1e-3, by 2.5e-6.
OPTIONS = {"AdamW": {"lr": 0.01, "eps": 1e-3}, "SGD": {"lr": 0.3, "momentum": 0.5}}


def batch(seed, step, number):
    """What the rank with this seed reads in backward pass `number` of a step."""
    draw = torch.Generator().manual_seed(seed + 10 * step + number)
    return torch.randint(37, (2, 8), generator=draw), torch.randint(37, (2, 8), generator=draw)


def serial(seeds, kind, odd, layers, steps, passes):
    """One process that has all ranks' batches: losses, weights, and the optimizer's state dictionary in the middle and
    at the end.
    """
    model, unmoved, losses, still, states = made_model(odd, layers), made_model(odd, layers), [], [], []
    optimizer = getattr(torch.optim, kind)(
        in_groups([p for p in model.parameters() if p.requires_grad]), **OPTIONS[kind]
    )
    for step in range(steps):
        optimizer.zero_grad()
        for number in range(passes):
            x, y = (torch.cat(parts) for parts in zip(*(batch(seed, step, number) for seed in seeds)))
            loss = model(x, y)
            loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                still.append(unmoved(x, y).item())
        optimizer.step()
        if step == steps // 2 - 1:
            middle = {
                number: {name: value.clone() for name, value in values.items()}
                for number, values in optimizer.state_dict()["state"].items()
            }
            states.append({"state": middle, "param_groups": optimizer.state_dict()["param_groups"]})
    return {
        "losses": losses,
        "still": still,
        "weights": model.state_dict(),
        "first": made_model(odd, layers).state_dict(),
        "states": states,
        "evaluated": model(*batch(0, 0, 0)).item(),
    }


def share(shapes, world):
    """Numbers in the shards of these tensors."""
    return sum(math.ceil(math.prod(shape) / world) for shape in shapes)


def own(shapes, world, rank):
    """The same, without padding."""
    sizes = [(math.prod(shape), math.ceil(math.prod(shape) / world)) for shape in shapes]
    return sum(min(size, max(0, n - rank * size)) for n, size in sizes)


def shapes_of(odd=False, layers=1):
    """Of all parameters, and of those that are trained."""
    parameters = list(made_model(odd, layers).parameters())
    return [p.shape for p in parameters], [p.shape for p in parameters if p.requires_grad]


# ---------------------------------------------------------------------------------------------------
# TODOs 1 and 7: predictions


@todo(
    1,
    minutes=15,
    why=(
        "If you know how much memory a model needs, you know before anything runs how many GPUs it takes, and which"
        " stage. Most runs that ran out of memory could have been predicted on the back of an envelope."
    ),
    hints=(
        (
            "Three numbers per parameter, whatever the stage; then ask for each of the three whether the stage shards"
            " it."
        ),
        (
            "In float32 a number takes 4 bytes, and AdamW keeps two numbers per parameter. With mixed precision,"
            " weight and gradient take 2 bytes each, and the state has one more number of 4 bytes. The state is"
            " divided by the number of ranks in stages 1 to 3, the gradients in stages 2 and 3, the weights in stage 3."
        ),
        (
            "(4, 4, 8) or (2, 2, 12). Then each of them times parameters / world if its stage (weights 3, gradients 2,"
            " state 1) is reached, else times parameters."
        ),
    ),
)
def test_todo1_bytes(student):
    right = {}
    for precision, each in (("float32", (4, 4, 8)), ("mixed", (2, 2, 12))):
        right["bytes_a_parameter", (precision,)] = each
    sizes = [(7_000_000_000, 1), (7_000_000_000, 64), (120, 3), (10, 4), *undivided(student)]
    for precision, each in (("float32", (4, 4, 8)), ("mixed", (2, 2, 12))):
        for parameters, world in sizes:
            for stage in range(4):
                shared = [n for n, first in zip(each, (3, 2, 1)) if stage >= first]
                whole = [n for n, first in zip(each, (3, 2, 1)) if stage < first]
                right["predicted_bytes", (parameters, world, stage, precision)] = (
                    *(n * parameters for n in whole),
                    *(n * parameters / world for n in shared),
                )
    check_answers(student, right, wrong="is not what will happen")


def undivided(student):
    """Numbers of parameters or bytes, and of ranks, that mostly do not divide them."""
    draw = student.draw("divided")
    return [(n, world) for world in (3, draw.choice((5, 6, 7))) for n in lengths(draw, world)]


@todo(
    7,
    minutes=5,
    why=(
        "The stages trade bytes on the wire for bytes in memory, and the exchange rate is surprisingly good: that is"
        " why ZeRO won."
    ),
    hints=(
        "An all-gather or a reduce-scatter goes once around the ring, an all-reduce twice. Count the rounds.",
        (
            "Once around the ring costs a rank (N - 1) / N of all bytes. Stage 3 gathers the weights twice and reduces"
            " the gradients once."
        ),
        "(world - 1) / world * nbytes, times 2 in stages 0, 1 and 2, and times 3 in stage 3.",
    ),
)
def test_todo7_sent_bytes(student):
    check_answers(
        student,
        {
            ("sent_bytes", (nbytes, world, stage)): (2 + (stage == 3)) * (world - 1) / world * nbytes
            for nbytes, world in ((28_000_000_000, 64), (4, 1), (360, 2), (360, 3), (10, 4), *undivided(student))
            for stage in range(4)
        },
        wrong="is not what will happen",
    )


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 3: shards, and how they are sent

SHAPES = ((7,), (2, 3), (1,), (0,), (3, 5), (2,), (4, 2, 2), (2, 0), ())


def cut_on_rank(code, rank, world, worlds):
    """Every piece of every tensor, and which memory it has."""
    seen = []
    for shape in SHAPES:
        for n in worlds:
            numel, offset = math.prod(shape), 5 * (n in (2, 4))
            # Contiguous, but some begin in the middle of a larger tensor, as a bucket's do.
            tensor = (1 + torch.arange(-offset, float(numel)))[offset:].view(shape)
            size = code.shard_size(tensor.numel(), n)
            expected = math.ceil(tensor.numel() / n)  # the other functions are tested with the right size
            parts = [code.my_part(tensor, r, n) for r in range(n)]
            shards = [code.filled(tensor.view(-1)[r * expected : (r + 1) * expected], expected) for r in range(n)]
            short = code.filled(torch.ones(1, dtype=torch.bfloat16), 2)
            whole = code.joined(
                torch.cat([*tensor.view(-1).split(expected), torch.full([expected * n - tensor.numel()], -1.0)]),
                tensor.shape,
            )
            found = {
                "size": int(size),
                "parts": as_evidence(parts),
                "shards": as_evidence(shards),
                "whole": as_evidence(whole),
                "bytes": [s.untyped_storage().nbytes() for s in shards],
                "dtype": str(short.dtype),
            }
            for part in parts:
                part += 100
            found["written"] = tensor.clone()
            found["shards afterwards"] = as_evidence(shards)
            seen.append(found)
    return seen


@todo(
    2,
    minutes=15,
    why=(
        "Everything else depends on this: if two ranks disagree about which of them has number 1000, nothing fails,"
        " but the model is wrong. And when memory that should be free is not, a view usually keeps it."
    ),
    hints=(
        (
            "First the size, rounded up; then rank r's part begins at r times that size. A slice that goes past the"
            " end is not an error."
        ),
        (
            "-(-a // b) rounds up. tensor.view(-1) is the vector, a slice of it a view. new_zeros makes zeros of the"
            " same dtype; write a part into the start of them. joined: cut off the excess, then"
            " view(shape)."
        ),
        (
            "size = shard_size(...); tensor.view(-1)[rank * size : ...]. part.new_zeros(size), and [: len(part)] ="
            " part. shards[: shape.numel()], and its view."
        ),
    ),
)
def test_todo2_shards(student):
    worlds = (1, 2, 3, 4, 7)
    (seen,) = student.call(cut_on_rank, world=1, group=False, worlds=worlds).evidence
    for found, (shape, n) in zip(seen, [(shape, n) for shape in SHAPES for n in worlds], strict=True):
        tensor = 1 + torch.arange(float(math.prod(shape)))
        size, what = math.ceil(len(tensor) / n), f"a tensor of shape {shape} on {count_of(n, 'rank')}"
        expect(
            found["size"] == size,
            f"shard_size({len(tensor)}, {n}) is wrong: a shard that is too short loses numbers, one that is too long"
            " wastes memory",
            size,
            found["size"],
        )
        for r in range(n):
            part, shard = tensor[r * size : (r + 1) * size], found["shards"][r]
            check_tensor(f"{what}: my_part of rank {r}", found["parts"][r], part, rank=r)
            right = F.pad(part, (0, size - len(part)))
            hint = "Shards are equally long on all ranks, also where a part is shorter. What is behind the part then?"
            check_tensor(f"{what}: the shard of rank {r}", shard, right, rank=r, hint=hint)
            expect(
                found["bytes"][r] == 4 * size,
                f"{what}: the shard of rank {r} keeps {found['bytes'][r]} bytes alive, its {size} numbers need"
                f" {4 * size}: it is a view of something larger",
                f"{4 * size} bytes",
                f"{found['bytes'][r]} bytes",
                r,
                OWN_MEMORY,
            )
            expect(
                near(found["shards afterwards"][r], right),
                f"{what}: a shard changes when the tensor is written to: its memory is not its own",
                right,
                found["shards afterwards"][r],
                r,
                OWN_MEMORY,
            )
        expect(
            found["dtype"] == "torch.bfloat16",
            "a part in bfloat16 is padded to a shard of a different dtype",
            "bfloat16",
            found["dtype"],
            hint="Zeros have a dtype, too. How can a tensor make zeros like itself?",
        )
        expect(
            found["written"].view(-1).tolist() == (tensor + 100).tolist(),
            f"{what}: writing into my_part does not change the tensor: my_part is a copy",
            (tensor + 100).tolist(),
            found["written"].view(-1).tolist(),
            hint=VIEWS,
        )
        hint = "joined undoes the cut. Which of the numbers are padding, and which shape do the others have?"
        check_tensor(f"{what}: what joined returns", found["whole"], tensor.view(shape), hint=hint)
    sizes = {(1_000_000_001, 4): 250_000_001, (1_000_000_000, 8): 125_000_000}  # as many as a model has
    check_answers(
        student,
        {("shard_size", given): size for given, size in sizes.items()},
        wrong="is wrong: a shard that is too short loses numbers, one that is too long wastes memory",
    )


VIEWS = "Which operations on a tensor give a view of it, and which take new memory?"
OWN_MEMORY = "A shard must last when the tensor is freed or written to, so it has memory of its own. " + VIEWS


def lists_on_rank(code, rank, world, mine, dtype):
    """gather_shards of whole numbers that identify their rank, and reduce_to_shards."""
    dtype = getattr(torch, dtype)
    sizes = [math.ceil(math.prod(shape) / world) for shape in SHAPES]
    shards = [nn.Parameter(own_shard(size, number, mine).to(dtype)) for number, size in enumerate(sizes)]
    tensors = [numbers(shape, number, mine).to(dtype) for number, shape in enumerate(SHAPES)]
    mark()
    gathered = code.gather_shards(shards, world)
    mark()
    reduced = code.reduce_to_shards(tensors, world)
    held = [part.untyped_storage() for part in reduced or () if isinstance(part, torch.Tensor)]
    distinct = {storage.data_ptr(): storage.nbytes() for storage in held}
    return {"gathered": as_evidence(gathered), "reduced": as_evidence(reduced), "bytes": sum(distinct.values())}


def own_shard(size, number, mine):
    """Whole numbers that identify their tensor and their rank, which has `mine`."""
    return torch.arange(size, dtype=torch.float64) + 100.0 * number + 1000 * mine


def numbers(shape, number, mine):
    """Numbers whose mean over 2 or 3 ranks is exact: whole ones, divided by a power of two. `mine` is the rank's own:
    up to 100, float32 holds them all.
    """
    part = torch.arange(math.prod(shape), dtype=torch.float64).view(shape)
    return 6.0 / 4096 * (part + 10 * number + 100 * mine * (number + 1))


@todo(
    3,
    minutes=20,
    needs=(2,),
    why=(
        "A transformer has hundreds of parameters. With a collective for each of them, latency takes most of the"
        " time; so FSDP2 copies a block's shards into one buffer, and FSDP1 made them one flat parameter."
    ),
    hints=(
        (
            "Write down, for two ranks and two tensors, what rank 0 sends and what arrives. Then draw the table, and"
            " find the second tensor in it."
        ),
        (
            "torch.cat joins the shards; new_empty(world, length) is the table; after the all-gather"
            " table.split(lengths, dim=1) cuts it into columns, and reshape(-1) of columns is one tensor's shards in"
            " the order of the ranks. To reduce: one row for each rank, torch.cat of that rank's shards of all tensors."
        ),
        (
            "dist.all_gather(list(table), mine); then [columns.reshape(-1) for columns in table.split(...)]."
            " dist.reduce_scatter(mine, rows), divided by world, and mine.split(sizes) as a list."
        ),
    ),
)
def test_todo3_lists(student):
    # In float64 whole numbers that float32 cannot hold.
    for world, dtype, smallest in ((3, "float32", 1), (2, "float64", 1 << 30)):
        of_rank = [smallest + drawn for drawn in student.draw("lists", world).sample(range(100), world)]
        run = student.call(lists_on_rank, world=world, mine=Private(of_rank), dtype=dtype)
        check_lists(run, of_rank, dtype)


def check_lists(run, of_rank, dtype):
    world, kind, a_number = len(of_rank), getattr(torch, dtype), getattr(torch, dtype).itemsize
    on = f"on {count_of(world, 'rank')}" + (f", in {dtype}" if dtype != "float32" else "")
    marked = [collectives(case) for case in cases(run.events)]
    sizes = [math.ceil(math.prod(shape) / world) for shape in SHAPES]
    for rank, seen in enumerate(run.evidence):
        for name, results in (("gather_shards", seen["gathered"]), ("reduce_to_shards", seen["reduced"])):
            expect(
                isinstance(results, list) and len(results) == len(SHAPES),
                f"{name} of {len(SHAPES)} tensors {on} does not return a list with a tensor for each",
                f"{len(SHAPES)} tensors",
                f"{len(results)} entries" if isinstance(results, list) else results,
                rank,
                "One buffer is sent, and a list is returned. What cuts the buffer into the entries of the list?",
            )
        for number, shape in enumerate(SHAPES):
            check_tensor(
                f"gather_shards {on}: what rank {rank} gets for tensor {number}",
                seen["gathered"][number],
                torch.cat([own_shard(sizes[number], number, mine) for mine in of_rank]),
                rank=rank,
                dtype=kind,
                than="the ranks' shards of it, in the order of the ranks",
            )
            mean = torch.stack([numbers(shape, number, mine) for mine in of_rank]).mean(dim=0).view(-1)
            right = mean[rank * sizes[number] : (rank + 1) * sizes[number]]
            right = F.pad(right, (0, sizes[number] - len(right)))
            summed = world * right, "The sum is in the right places: which division is missing?"
            check_tensor(
                f"reduce_to_shards {on}: what rank {rank} gets for tensor {number} of shape {shape}",
                seen["reduced"][number],
                right,
                rank=rank,
                dtype=kind,
                wrongs={"the sum, not the mean": summed} if right.any() else {},
                hint=(
                    "Rank 1 gets one row: its shard of each tensor, one after the other. Where does each of its"
                    " numbers come from?"
                ),
            )
        expect(
            seen["bytes"] == a_number * sum(sizes),
            f"rank {rank}: what reduce_to_shards returns keeps {seen['bytes']} bytes alive; its shards {on} need "
            f"{a_number * sum(sizes)}: they are views of something larger",
            f"{a_number * sum(sizes)} bytes",
            f"{seen['bytes']} bytes",
            rank,
            "While a view is kept, all that it was cut from is alive. What are these shards cut from?",
        )
    most = a_number * sum(sizes) * (world - 1)
    check_one_collective("gather_shards", "all_gather", marked[0], world, most)
    check_one_collective("reduce_to_shards", "reduce_scatter", marked[1], world, most)


def check_one_collective(name, op, calls, world, most):
    """Each rank makes one for the whole list, and sends at most so many bytes: `op` does."""
    for rank in range(world):
        mine = [call for call in calls if call.rank == rank]
        told = f"{name} of {len(SHAPES)} tensors takes {len(mine)} collectives on rank {rank}"
        expect(len(mine) == 1, told, "one", len(mine), rank, HINTS["collectives"])
        expect(
            mine[0].sent <= most,
            f"{name}: rank {rank} sends {mine[0].sent:.0f} bytes, in {mine[0].op}; more than its shards to the others",
            f"at most {most} bytes: {op}",
            f"{mine[0].sent:.0f} bytes",
            rank,
            "Which numbers does a rank need from each of the others? One collective sends just these.",
        )


# ---------------------------------------------------------------------------------------------------
# TODOs 4, 6 and 9: the stages


class Probe:
    """Which tensors are whole, at the moments that count."""

    def __init__(self, model, stage):
        self.model, self.weights, self.gradients = model, {}, 0
        self.seen = Storages(model.parameters())  # never entered: it counts what it is given
        if stage == 2:
            for p in model.parameters():
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(lambda _: self.look_at_gradients())
        if stage == 3:
            for number, block in enumerate(model.blocks):
                block.mlp.register_forward_hook(lambda module, args, output, n=number: self.in_block(n, output))

    def look_at_gradients(self):
        self.gradients = max(self.gradients, sum(p.grad is not None for p in self.model.parameters()))

    def in_block(self, number, output):
        self.look(f"the forward pass of block {number}")
        if output.requires_grad:
            output.register_hook(lambda _: self.look(f"the backward pass of block {number}"))

    def look(self, moment):
        """Bytes of weights that are whole: of the parameters, and of their earlier storages, as long as something
        keeps them alive.
        """
        self.seen.note(self.model.parameters())
        self.weights[moment] = max(self.weights.get(moment, 0), sum(self.seen.bytes_alive().values()))


class Stepped:
    """Stage 1's optimizer for checks of TODOs other than the fourth: it uses only the student's gathering."""

    def __init__(self, code, groups, kind, rank, world, **options):
        self.code, self.rank, self.world = code, rank, world
        groups = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
        self.parameters = [p for group in groups for p in group["params"]]
        self.optimizer = kind(self.trained(groups), **options)
        self.parts = [p for group in self.optimizer.param_groups for p in group["params"]]

    def trained(self, groups):
        return [{**group, "params": [self.part(p).requires_grad_() for p in group["params"]]} for group in groups]

    def part(self, p):
        size = math.ceil(p.numel() / self.world)
        return p.detach().view(-1)[self.rank * size : self.rank * size + size]

    def step(self):
        self.optimizer.step()
        for part in self.parts:
            part.grad = None
        self.gather()

    def gather(self):
        mine = [torch.zeros(math.ceil(p.numel() / self.world), dtype=p.dtype) for p in self.parameters]
        for p, shard in zip(self.parameters, mine):
            shard[: len(self.part(p))] = self.part(p)
        for p, numbers in zip(self.parameters, self.code.gather_shards(mine, self.world)):
            p.data.copy_(numbers[: p.numel()].view(p.shape))

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


class Mixed(Stepped):
    """The same with the student's masters."""

    def trained(self, groups):
        return self.code.masters_in_groups(groups, self.rank, self.world)

    def step(self):
        self.code.share_in_float32(self.parameters, self.parts, self.world)
        self.optimizer.step()
        for master in self.parts:
            master.grad = None
        self.code.write_back(self.parameters, self.parts, self.rank, self.world)
        self.gather()


def train_on_rank(code, rank, world, seed, stage, kind, odd, layers, steps, passes):
    """Train with the student's functions; return what was held, and the results."""
    model = made_model(odd, layers)
    batches = [[batch(seed, step, number) for number in range(passes)] for step in range(steps)]
    probe, losses, shards, bytes_held = Probe(model, stage), [], {}, []
    with contextlib.ExitStack() as measured:
        storages = measured.enter_context(Storages(model.parameters()))
        if stage == 3:
            units = code.make_units(model, rank, world)
            for unit in units:
                code.attach(unit)
            probe.look("the time before the first step")
            shards = {p: shard for unit in units for p, shard in zip(unit.parameters, unit.shards)}
            groups = [
                {**group, "params": [shards[p] for p in group["params"]]}
                for group in in_groups([p for p in model.parameters() if p.requires_grad])
            ]
            optimizer = inner = getattr(torch.optim, kind)(groups, **OPTIONS[kind])
        else:
            arguments = in_groups(list(model.parameters())), getattr(torch.optim, kind), rank, world
            optimizer = (
                code.ShardedOptimizer(*arguments, **OPTIONS[kind])
                if stage == 1
                else Stepped(code, *arguments, **OPTIONS[kind])
            )
            inner = optimizer.optimizer
            if stage == 1:
                for part in filter(len, optimizer.parts):
                    part.grad = torch.full_like(part, STALE)  # it is to be set, not added to
            if stage == 2:
                code.reduce_when_ready(optimizer.parameters, optimizer.parts, world)
        measured.close()  # watching every operation takes time; what follows up to the first step is done once more
        for step in range(steps):
            mark()
            for x, y in batches[step]:
                loss = model(x, y)
                if stage == 3:
                    probe.look("the time between the passes")
                loss.backward()
                losses.append(loss.item())
                del loss
                if stage == 3:
                    probe.look("the time after the backward pass")
                if step == 1:
                    bytes_held.append(held(storages, [*model.parameters(), *shards.values()], inner))
            if step == 0:
                measured.enter_context(storages)
            if step == 1:
                measured.close()
            optimizer.step()
            optimizer.zero_grad()
    mark()
    evaluated = None
    if stage == 3:
        with torch.no_grad():
            evaluated = [model(*batch(0, 0, 0)).item()]
            probe.look("the time after a forward pass without gradients")
            model.eval()
            evaluated.append(model(*batch(0, 0, 0)).item())
        probe.look("the time after an evaluation, in which the model is in evaluation mode")
    named = {name: shards[p] if stage == 3 else p for name, p in model.named_parameters(remove_duplicate=False)}
    return {
        "losses": losses,
        "held": bytes_held,
        "stateless": [] if stage == 3 else stateless(model, optimizer, inner),
        "weights": named,
        "evaluated": evaluated,
        "whole": probe.weights,
        "gradients": probe.gradients,
    }


def stateless(model, optimizer, inner):
    """Names of the parameters for which the inner optimizer has no state after its steps, not even an empty one."""
    names = {p: name for name, p in model.named_parameters()}
    return [names[p] for p, part in zip(optimizer.parameters, optimizer.parts) if part not in inner.state]


def check_state(told, names, rank):
    """Every part has a state; otherwise ranks that gather it would wait for the one that has none."""
    expect(
        not names,
        f"{told}, the optimizer of rank {rank} has no state for its part of {', '.join(names)}: an empty part, too,"
        " needs a gradient",
        "a state for each part",
        f"none for {', '.join(names)}",
        rank,
        "An optimizer makes state for what has a `grad`. Ranks that gather the state all go through it alike.",
    )


# What is wrong with what a rank holds, sends or steps is the same kind of failure in every stage, and for masters.
HINTS = {
    ("too much", "optimizer"): "For which tensors does the optimizer make a state, and how long are those tensors?",
    ("too much", "gradients"): "Which gradients are still referred to, though nothing needs them any more?",
    ("too much", "weights"): "What keeps more memory alive than expected: a whole weight that is not freed, or a view?",
    ("too little", "optimizer"): "An optimizer makes its state in its first step, for what it holds and has a `grad`.",
    ("too little", "gradients"): "An optimizer steps what has a `grad`. What does it hold, and which line sets that?",
    ("too little", "weights"): "Which weights does no rank hold between the steps?",
    (
        "sent",
        "gradients",
    ): "A rank steps only its part. Which numbers of the mean does it need, and from how many ranks?",
    ("sent", "weights"): "After the step a rank has new numbers only in its part. Which numbers do the others lack?",
    "odd": (
        "Here one weight is used twice, some are frozen, and a step may have several backward passes. Which of these"
        " does"
        " that line not expect?"
    ),
    "collectives": "One call can send several tensors, one after the other.",
    "leaves": "A result of autograd is not a leaf. A leaf can use the same memory; ask for its gradient.",
    "options": "A group is a dictionary. What else is in it, apart from parameters?",
}


def check_held(told, seen, limits, rank, whole):
    """`limits`: kind -> (least, most) bytes. `whole`: kind -> bytes of an unsharded one. Gradients come first:
    where there are none, the optimizer has no state either.
    """
    for kind in ("gradients", "weights", "optimizer"):
        least, most = limits[kind]
        what = "optimizer state" if kind == "optimizer" else kind
        due = f"its share is {most:,}" if most < whole[kind] else f"the whole is {most:,}"
        more = f"{seen[kind]:,} bytes of {what}; {due}" + (
            ": they are views of something larger, or exist twice" if most >= whole[kind] else ""
        )
        if seen[kind] >= whole[kind] > most:
            more = (
                f"{seen[kind]:,} bytes of {what}, as much as a rank that trains alone, or more: nothing is sharded, or"
                " what was sharded is not freed"
            )
        expect(
            seen[kind] <= most,
            f"{told}, rank {rank} holds {more}",
            f"{most:,} bytes",
            f"{seen[kind]:,} bytes",
            rank,
            HINTS["too much", kind],
        )
        less = f"{told}, rank {rank} holds {seen[kind]:,} bytes of {what}, and {due}: was it ever made here?"
        if kind == "gradients":
            less = f"{told}, rank {rank} holds {seen[kind]:,} bytes of gradients before the step, and {due}" + (
                ": none reaches the parameters that its optimizer trains" if not seen[kind] else ""
            )
        too_little = HINTS["too little", kind]
        expect(least <= seen[kind], less, f"{least:,} bytes", f"{seen[kind]:,} bytes", rank, too_little)
    expect(
        seen["other"] == 0,
        f"{told}, rank {rank} holds {seen['other']:,} bytes apart from weights, gradients and optimizer state:"
        " temporary tensors are still there",
        "0 bytes",
        f"{seen['other']:,} bytes",
        rank,
        "A temporary tensor is still referred to: by a list, by a closure, or by a view of it.",
    )


def limits_of(stage, odd, layers, world, rank, state):
    """(kind -> least and most bytes before a step, kind -> bytes where nothing is sharded)."""
    everything, trained = shapes_of(odd, layers)
    psi, learned = sum(map(math.prod, everything)), sum(map(math.prod, trained))
    part, shard = own(trained, world, rank), share(trained, world)
    whole = {"weights": 4 * psi, "gradients": 4 * learned, "optimizer": state * learned}
    return {
        "weights": (
            (4 * own(everything, world, rank), 4 * share(everything, world)) if stage == 3 else (4 * psi, 4 * psi)
        ),
        "gradients": (4 * part, 4 * shard) if stage >= 2 else (4 * learned, 4 * learned),
        "optimizer": (state * part, state * shard),
    }, whole


def check_traffic(told, calls, stage, odd, layers, world, passes):
    """Bytes that each rank sends in one step, by what they are for."""
    everything, trained = shapes_of(odd, layers)
    padded = {"gathered": share(everything if stage == 3 else trained, world), "reduced": share(trained, world)}
    least = {
        "gathered": sum(map(math.prod, everything if stage == 3 else trained)) / world,
        "reduced": sum(map(math.prod, trained)) / world,
    }
    gathers = 2 * passes if stage == 3 else 1
    reduces = passes if stage >= 2 else 1
    units = layers + 1
    most = {1: (1, 1), 2: (1, len(trained) * passes), 3: (gathers * units, passes * units)}[stage]
    for rank in range(world):
        mine = [call for call in calls if call.rank == rank]
        sums = [call for call in mine if call.op not in ("all_gather", "broadcast")]
        rest = [call for call in mine if call.op in ("all_gather", "broadcast")]
        expect(
            len(mine) > 0,
            f"{told}, rank {rank} sends nothing at all in a step: each rank trains alone",
            "gradients, and weights",
            "no collective",
            rank,
            "The mean over all ranks, and the parts that others have stepped: which of your functions bring them?",
        )
        for what, found, times, key, number in (
            ("gradients", sums, reduces, "reduced", most[1]),
            ("weights", rest, gathers, "gathered", most[0]),
        ):
            nbytes = sum(call.sent for call in found)
            upper = 4 * (world - 1) * padded[key] * times
            lower = 4 * (world - 1) * least[key] * (1 if stage == 3 and key == "gathered" else times)
            by = ", ".join(sorted({call.op for call in found})) or "nothing"
            expect(
                nbytes <= upper,
                f"{told}, rank {rank} sends {nbytes:,.0f} bytes of {what} in a step, by {by}",
                f"at most {upper:,} bytes",
                f"{nbytes:,.0f} bytes",
                rank,
                HINTS["sent", what],
            )
            expect(
                nbytes >= lower,
                f"{told}, rank {rank} sends only {nbytes:,.0f} bytes of {what} in a step, by {by}",
                f"{lower:,.0f} bytes or more",
                f"{nbytes:,.0f} bytes",
                rank,
                HINTS["sent", what],
            )
            expect(
                len(found) <= number,
                f"{told}, rank {rank} makes {len(found)} collectives for {what} in a step",
                f"at most {number}",
                len(found),
                rank,
                HINTS["collectives"],
            )


def serial_run(student, seeds, **how):
    """What one process does with all ranks' batches; neither the first weights nor one rank's batches give it."""
    right = student.reference(serial, seeds=[*seeds], **how)
    alone = student.reference(serial, seeds=seeds[:1], **how)
    moves = abs(right["losses"][-1] - right["still"][-1]) > 10 * REL * right["still"][-1]
    student.premise(moves, "weights that never move")
    apart = [
        (alone["weights"][name] - weight).norm() > 0.1 * (weight - right["first"][name]).norm()
        for name, weight in right["weights"].items()
    ]
    student.premise(any(apart), "ranks that train alone")
    return right


def check_losses(told, ranks, right, hint="", after=0):
    """The ranks' batches are of one size, so the mean of their losses is the loss of all. `hint`: for the losses
    `after` so many.
    """
    for number, loss in enumerate(right):
        seen = sum(mine["losses"][number] for mine in ranks) / len(ranks)
        expect(
            math.isclose(seen, loss, rel_tol=REL),
            f"{told}, loss {number + 1} of {len(right)} is not one process's",
            loss,
            seen,
            hint=hint
            if hint and number >= after
            else "Until then all losses were right. Which numbers did the last step change, and with which gradient?"
            if number
            else "",
        )


def put_together(shards, shape):
    return torch.cat([shard.view(-1) for shard in shards])[: math.prod(shape)].view(shape)


def check_weights(told, ranks, right, sharded):
    for name, weight in right["weights"].items():
        first, copies = right["first"][name], [mine["weights"][name] for mine in ranks]
        if sharded:
            copies = [put_together(copies, weight.shape)]
        moved = (weight - first).norm()
        for rank, copy in enumerate(copies):
            whose = "" if sharded else f" on rank {rank}"
            still = ": it has not changed" if moved and torch.equal(copy, first) else ""
            check_shape(f"{told}, {name}{whose}", copy, weight.shape, weight.dtype, rank)
            expect(
                near(copy - first, weight - first, REL, MOVED),
                f"{told}, {name}{whose} is not what one process has after the last step{still}",
                f"moved by {moved:.5g}",
                f"moved by {(copy - first).norm():.5g}, and {(copy - weight).norm():.2g} away",
                hint="Is it stepped, and is the stepped tensor a view of the weight itself?"
                if still
                else "With which gradient was it stepped: the mean over all ranks, of exactly these numbers?",
            )


# (optimizer, ranks, tied and frozen, layers, steps, backward passes a step). The step of stage 2 is stage 1's, so
# there it is the gradients that count. Stage 3 has two blocks in one trial, since with one alone a unit is all there
# is.
TRIALS = {
    1: (("AdamW", 2, False, 1, 10, 1), ("SGD", 3, True, 1, 2, 1)),
    2: (("SGD", 3, True, 1, 3, 2),),
    3: (("AdamW", 2, False, 1, 10, 1), ("SGD", 3, True, 2, 2, 2)),
}


def stage_trials(student, stage):
    """(ranks, their seeds, how they train, what one process does), of each."""
    trials = []
    for kind, world, odd, layers, steps, passes in student.several(TRIALS[stage]):
        how = dict(kind=kind, odd=odd, layers=layers, steps=steps, passes=passes)
        seeds = student.seeds(world)
        trials.append((world, seeds, how, serial_run(student, seeds, **how)))
    return trials


def check_stage(student, stage, trials):
    for world, seeds, how, right in trials:
        kind, odd, layers, _, passes = how.values()
        told = (
            f"stage {stage}, {kind} on {count_of(world, 'rank')}"
            + (", head tied, some parameters frozen" if odd else "")
            + (", two backward passes per step" if passes > 1 else "")
        )
        with hinted(HINTS["odd"] if odd else "", "crash"):
            run = student.call(train_on_rank, world=world, seed=seeds, stage=stage, **how)
        ranks = run.evidence
        calls = collectives(cases(run.events)[0])
        for rank, mine in enumerate(ranks):
            limits, whole = limits_of(stage, odd, layers, world, rank, state=8 if kind == "AdamW" else 4)
            for number, bytes_held in enumerate(mine["held"], start=1):
                after = "" if number == passes else ", after the first of them"
                check_held(told + after, bytes_held, limits, rank, whole)
            check_state(told, mine["stateless"], rank)
            if stage == 2:
                expect(
                    mine["gradients"] <= 1,
                    f"{told}, rank {rank} holds {mine['gradients']} whole gradients at once in the backward pass",
                    "one at a time",
                    mine["gradients"],
                    rank,
                )
            if stage == 3:
                check_whole(told, mine["whole"], made_model(odd, layers), rank)
        check_traffic(told, calls, stage, odd, layers, world, passes)
        check_losses(told, ranks, right["losses"])
        if stage == 3:
            for rank, mine in enumerate(ranks):
                wrong = [loss for loss in mine["evaluated"] if not math.isclose(loss, right["evaluated"], rel_tol=REL)]
                expect(
                    not wrong,
                    f"{told}, an evaluation after the last step gives rank {rank} a different loss from one "
                    "process: are the weights gathered again?",
                    f"{right['evaluated']:.6f}",
                    ", ".join(f"{loss:.6f}" for loss in wrong),
                    rank,
                    "The last step has changed the shards. Does a forward pass gather them also without gradients, and"
                    " in evaluation mode?",
                )
        if kind == "SGD":  # with AdamW, rounding errors grow where a gradient is small
            check_weights(told, ranks, right, sharded=stage == 3)


@todo(
    4,
    minutes=20,
    needs=(2, 3),
    why=(
        "With AdamW the state is half of all memory in float32, and three quarters with mixed precision. Sharding it"
        " sends no additional bytes: an all-reduce is a reduce-scatter and an all-gather anyway, and the step fits"
        " between the two."
    ),
    hints=(
        ("Only the order is new: reduce to shards, step parts, gather shards. The first and the last are in TODO 3."),
        (
            "A part of p.detach() is a view without autograd, so it is a leaf; requires_grad_() makes an optimizer"
            ' accept it. {**group, "params": ...} is a copy of a group with other parameters. part.grad must be'
            " as long as the part: cut the shard. p.copy_(...) writes a weight."
        ),
        (
            "parts: my_part(p.detach(), rank, world).requires_grad_(). share_gradients: reduce_to_shards of all p.grad,"
            " then part.grad = shard[: len(part)]. gather_weights: filled(my_part(...), shard_size(...)) for each p,"
            " gather_shards of them, p.copy_ of joined(...)."
        ),
    ),
)
def test_todo4_stage_1(student):
    trials = stage_trials(student, 1)
    (seen,) = student.call(parts_on_rank, world=1, group=False).evidence
    for rank, mine in enumerate(seen):
        where = f"parts_in_groups for rank {rank} of 3"
        expect(
            mine["options"] == GROUPS,
            f"{where}: the groups' options differ from those that were given",
            GROUPS,
            mine["options"],
            rank,
            HINTS["options"],
        )
        right = [[(5, 5, 4)[rank]], [(2, 2, 1)[rank], (1, 0, 0)[rank]]]
        expect(
            mine["lengths"] == right,
            f"{where}: the parts have the wrong lengths",
            right,
            mine["lengths"],
            rank,
            "Each rank steps only its own part of every parameter. A function of TODO 2 gives that part.",
        )
        expect(
            mine["given"],
            f"{where}: the groups that it was given have changed",
            "as they were",
            "changed",
            rank,
            "They still belong to the caller: make new dictionaries, and new lists.",
        )
        expect(
            mine["leaves"],
            f"{where}: an optimizer takes leaf tensors that require a gradient, and these are not leaves that do",
            "leaves that require a gradient",
            "others",
            rank,
            HINTS["leaves"],
        )
        expect(
            mine["views"],
            f"{where}: writing into a part does not write into the parameter",
            "views of the parameters",
            "copies",
            rank,
            VIEWS,
        )
    check_stage(student, 1, trials)


GROUPS = [{"lr": 0.5, "weight_decay": 0.1, "momentum": 0.75}, {"lr": 0.25, "nesterov": True}]


def parts_on_rank(code, rank, world):
    seen = []
    for r in range(3):
        parameters = [nn.Parameter(torch.ones(shape)) for shape in ((2, 7), (5,), (1,))]
        first, second = GROUPS
        groups = [{"params": parameters[:1], **first}, {"params": parameters[1:], **second}]
        made = code.parts_in_groups(groups, r, 3)
        parts = [p for group in made for p in group["params"]]
        given = all(
            a is b for a, b in zip(parameters, (p for group in groups for p in group["params"]), strict=True)
        ) and all(p.requires_grad for p in parameters)
        leaves = all(p.is_leaf and p.requires_grad for p in parts)
        with torch.no_grad():
            for part in parts:
                part += 100
        changed = [int((p.detach().view(-1) > 50).sum()) for p in parameters]
        views = changed == [len(part) for part in parts]
        seen.append(
            {
                "options": [{k: v for k, v in group.items() if k != "params"} for group in made],
                "lengths": [[len(p) for p in group["params"]] for group in made],
                "given": given,
                "leaves": leaves,
                "views": views,
            }
        )
    return seen


def loadable(saved, before, parameters):
    """Whether a saved state has the groups, names and shapes of a plain optimizer's; `before`: the optimizer's own."""
    if len(saved["param_groups"]) != 2 or set(saved["state"]) - set(before):
        return False
    for number, values in saved["state"].items():
        tensors = [value for value in values.values() if torch.is_tensor(value) and value.dim()]
        if set(values) != set(before[number]) or any(part.shape != parameters[number].shape for part in tensors):
            return False
    return True


def resumed_on_rank(code, rank, world, seed, steps):
    """Half of the steps, saved, loaded into a new optimizer of a model with the same weights, and the other half."""

    def train(model, optimizer, some):
        losses = []
        for step in some:
            loss = model(*batch(seed, step, 0))
            loss.backward()
            for part, shard in zip(
                optimizer.parts, code.reduce_to_shards([p.grad for p in optimizer.parameters], world)
            ):
                part.grad = shard[: len(part)]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def made(model):
        return Stepped(code, in_groups(list(model.parameters())), torch.optim.AdamW, rank, world, **OPTIONS["AdamW"])

    model = made_model()
    optimizer = made(model)
    losses = train(model, optimizer, range(steps // 2))
    inner = optimizer.optimizer
    before = copied(inner.state_dict())["state"]
    saved = code.whole_state(inner.state_dict(), optimizer.parameters, world)
    if anywhere(lacking := lacks(saved, ("param_groups", list), ("state", dict))):
        return {"lacking": ["whole_state", lacking]}
    seen = {"saved": copied(saved), "kept": equal(inner.state_dict()["state"], before)}
    if anywhere(not loadable(saved, before, optimizer.parameters)):
        return seen
    new = made_model()
    new.load_state_dict(model.state_dict())
    with Storages(new.parameters()) as storages:
        optimizer = made(new)
        inner = optimizer.optimizer
        of_parts = code.state_of_parts(saved, rank, world)
        lacking = lacks(of_parts, ("param_groups", list), ("state", dict))
        if anywhere(lacking := lacking or lengths_apart(of_parts["state"], optimizer.parts)):
            return {"lacking": ["state_of_parts", lacking]}
        inner.load_state_dict(of_parts)
        storages.note(value for values in inner.state.values() for value in values.values())
        seen["held"] = held(storages, new.parameters(), inner)["optimizer"]
    seen["unchanged"] = equal(saved["state"], seen["saved"]["state"])
    seen["losses"] = losses + train(new, optimizer, range(steps // 2, steps))
    seen["apart"] = equal(saved["state"], seen["saved"]["state"])
    seen["names"] = names_on_rank(code, rank, world)
    return seen | momentum_on_rank(code, optimizer.parameters, rank, world)


def momentum_on_rank(code, parameters, rank, world):
    """States that AdamW never has."""
    momentumless = code.whole_state(
        {"state": {0: {"momentum_buffer": None}}, "param_groups": []}, list(parameters), world
    )
    # Of an optimizer that names its averages otherwise, in bfloat16, and has none for parameter 0.
    whole = torch.arange(parameters[1].numel()).remainder(200).bfloat16()
    part = whole.split(-(-len(whole) // world))[rank].clone()
    momentum = code.whole_state({"state": {1: {"momentum_buffer": part}}, "param_groups": []}, parameters[:2], world)[
        "state"
    ]
    whole = whole.view(parameters[1].shape)
    taken = code.state_of_parts({"state": {1: {"momentum_buffer": whole}}, "param_groups": []}, rank, world)["state"]
    return {
        "none": momentumless["state"].get(0, {}).get("momentum_buffer", "nothing") is None,
        "momentum": as_evidence(momentum.get(1, {}).get("momentum_buffer")),
        "right momentum": whole,
        "part": as_evidence(taken.get(1, {}).get("momentum_buffer")),
        "right part": part,
    }


def names_on_rank(code, rank, world):
    """What each function says that parameters have: of the middle one, whose group has amsgrad, more than of others."""
    wholes = [torch.ones(size) for size in (7, 4, 5)]
    sizes = [math.ceil(len(whole) / world) for whole in wholes]
    parts = [whole[rank * size : (rank + 1) * size] for whole, size in zip(wholes, sizes)]

    def of(tensors):
        names = (("exp_avg",), AMSGRAD, ("exp_avg",))
        state = [{name: tensor.clone() for name in mine} for mine, tensor in zip(names, tensors)]
        return {"state": dict(enumerate(state)), "param_groups": []}

    answers = code.whole_state(of(parts), wholes, world), code.state_of_parts(of(wholes), rank, world)
    return [[sorted(values) for values in answer["state"].values()] for answer in answers]


AMSGRAD = ("exp_avg", "max_exp_avg_sq")


def anywhere(wrong):
    """Whether it is true on some rank: all continue, or none does."""
    found = torch.tensor([float(bool(wrong))])
    dist.all_reduce(found)
    return bool(found)


def lacks(state_dict, *entries):
    """What a state dictionary lacks; "" if it is complete."""
    if not isinstance(state_dict, dict):
        return f"{kind_of(state_dict)}, not a dictionary"
    for name, kind in entries:
        if not isinstance(state_dict.get(name), kind):
            return f"a dictionary without the {kind.__name__} “{name}”"
    groups = [group for group in state_dict["param_groups"] if isinstance(group, dict)]
    if len(groups) < len(state_dict["param_groups"]) or not all(isinstance(g.get("params"), list) for g in groups):
        return "a dictionary with a group in “param_groups” that has no list “params”"
    if not all(isinstance(values, dict) for values in state_dict["state"].values()):
        return "a “state” that has no dictionary for each parameter"
    return ""


def lengths_apart(state, parts):
    """The first tensor of a state that is not as long as its part; "" if there is none."""
    for number, values in state.items():
        if number not in range(len(parts)):
            return f"a state for parameter {number!r}, and this rank has {len(parts)}"
        for name, value in values.items():
            if torch.is_tensor(value) and value.dim() and value.numel() != parts[number].numel():
                has = f"this rank's part has {parts[number].numel()}"
                return f"{value.numel()} numbers of {name} for parameter {number}, but {has}"
    return ""


def copied(state_dict):
    state = {
        number: {name: torch.as_tensor(value).clone() for name, value in values.items()}
        for number, values in state_dict["state"].items()
    }
    return {"param_groups": state_dict["param_groups"], "state": state}


def equal(state, other):
    """Whether it equals the copy made before."""
    return all(
        name in state[number] and torch.equal(state[number][name], value)
        for number, values in other.items()
        for name, value in values.items()
    )


@todo(
    5,
    minutes=25,
    further=True,
    needs=(2, 3),
    why=(
        "Jobs end, and the next one may get a different number of GPUs. If only the same ranks can read a checkpoint of"
        " parts, it is lost with them. A run that resumes without its averages makes a step of the wrong size, which"
        " shows as a jump in the loss."
    ),
    hints=(
        "Build new dictionaries: gather or cut the long values, and keep the others as they are.",
        (
            "A part may be shorter than the shard: pad it before it is gathered; joined cuts it to the parameter's"
            " shape. On the way back my_part is a view, which keeps the whole tensor alive, so clone it."
        ),
        (
            "joined(gather_shards([filled(value, size)], world)[0], parameters[number].shape) for a value that is_long;"
            ' my_part(value, rank, world).clone(). {**state_dict, "state": ...} for the rest.'
        ),
    ),
)
def test_todo5_state(student):
    world, steps = 3, 4
    seeds = student.seeds(world)
    right = serial_run(student, seeds, kind="AdamW", odd=False, layers=1, steps=steps, passes=1)
    ranks = student.call(resumed_on_rank, world=world, seed=seeds, steps=steps).evidence
    plain, told = right["states"][0], f"after {steps // 2} steps of AdamW on {count_of(world, 'rank')}"
    _, trained = shapes_of()
    for rank, mine in enumerate(ranks):
        function, seen = mine.get("lacking", ("", ""))
        expect(not seen, f"{told}, {function} returns {seen}", "a dictionary as a plain optimizer has it", None, rank)
    for rank, mine in enumerate(ranks):
        check_saved(told, mine["saved"], plain, rank)
        told_kept = f"{told}, saving changes the optimizer's own state"
        expect(mine["kept"], told_kept, "as it was", "changed", rank, NEW_ONES)
        expect(
            mine["none"],
            "a state that is None (SGD's momentum_buffer without momentum) does not stay None",
            "None",
            "something else",
            rank,
            "Not every value of a state is a tensor. Which ones are gathered, and what becomes of all others?",
        )
        what = f"with SGD on {count_of(world, 'rank')}, the saved momentum_buffer of parameter 1"
        than = "what a plain optimizer has"
        check_tensor(what, mine["momentum"], mine["right momentum"], rank=rank, than=than, hint=ANY_NAME)
        what = f"with SGD on {count_of(world, 'rank')}, the part of parameter 1's momentum_buffer"
        check_tensor(what, mine["part"], mine["right part"], rank=rank, hint=ANY_NAME)
        check_names(mine["names"], rank)
        told_unchanged = f"{told}, what was saved is changed when it is loaded"
        expect(mine["unchanged"], told_unchanged, "unchanged", "changed", rank, NEW_ONES)
        most = 8 * share(trained, world)
        expect(
            mine["held"] <= most,
            f"{told}, rank {rank} keeps {mine['held']:,} bytes alive for its state after it was loaded; its share is"
            f" {most:,}",
            f"{most:,} bytes",
            f"{mine['held']:,} bytes",
            rank,
            "A rank needs its part of the state alone. Does that part keep all of what it was cut from alive?",
        )
        expect(
            mine["apart"],
            f"{told}, a step of the optimizer into which it was loaded changes what was saved: the two share a tensor",
            "unchanged",
            "changed",
            rank,
            "An optimizer writes into its single numbers, too. Which values of a state are the same object as before?",
        )
    hint = "Before the stop it is right. Which numbers did the optimizer have then that it no longer has?"
    check_losses("continued after loading", ranks, right["losses"], hint, after=steps // 2)


def check_names(of_functions, rank):
    """What `names_on_rank` found."""
    for function, names in zip(("whole_state", "state_of_parts"), of_functions, strict=True):
        expect(
            names == [["exp_avg"], [*AMSGRAD], ["exp_avg"]],
            f"where only the second of three parameters is in a group with amsgrad, {function} gives parameters other"
            " entries than they had",
            f"{', '.join(AMSGRAD)} for parameter 1, exp_avg for the others",
            names,
            rank,
            "Groups may have different options, and so their parameters different states. Whose names are used?",
        )


NEW_ONES = "The dictionary that you are given belongs to its owner. Which line writes into it, or into one inside it?"
ANY_NAME = (
    "Other optimizers have other names, other dtypes, and parameters without a state. How can you recognize a value"
    " with"
    " one number for each of a parameter's?"
)


def check_saved(told, saved, plain, rank):
    """A saved state equals a plain optimizer's: its groups, parameters, shapes and numbers."""
    expect(
        len(saved["param_groups"]) == 2
        and [group["params"] for group in saved["param_groups"]]
        == [group["params"] for group in plain["param_groups"]],
        f"{told}, the saved groups differ from a plain optimizer's",
        [group["params"] for group in plain["param_groups"]],
        [group.get("params") for group in saved["param_groups"]],
        rank,
    )
    expect(
        set(saved["state"]) == set(plain["state"]),
        f"{told}, the saved state belongs to different parameters",
        sorted(plain["state"]),
        sorted(saved["state"]),
        rank,
    )
    for number, values in plain["state"].items():
        for name, value in values.items():
            got = saved["state"][number].get(name)
            expect(
                got is not None and got.shape == value.shape,
                f"{told}, the saved {name} of parameter {number} has a different size from a plain optimizer's",
                tuple(value.shape),
                None if got is None else tuple(got.shape),
                rank,
            )
            # Where the gradient is nearly zero, the averages are, too: compared with the largest of their kind.
            expect(
                bool((got - value).abs().max() <= REL * max(value.abs().max(), 1e-4)),
                f"{told}, the saved {name} of parameter {number} differs from a plain optimizer's",
                value,
                got,
                rank,
            )


def zeros_on_rank(code, rank, world, slopes):
    """Each rank's gradient of one parameter is all zeros, in two passes that add up."""
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(world)]
    parts = [parameter.detach()[2 * rank : 2 * rank + 2].requires_grad_() for parameter in parameters]
    code.reduce_when_ready(parameters, parts, world)
    for _ in range(2):
        sum(slope * parameter.sum() for slope, parameter in zip(slopes, parameters, strict=True)).backward()
    return {"grads": as_evidence([part.grad for part in parts])}


def check_zeros(student):
    world = 2
    slopes = [zeros_in_turn([2.0 + number for number in range(world)], rank, world) for rank in range(world)]
    with hinted(OWN_ZEROS):
        run = student.call(zeros_on_rank, world=world, slopes=Private(slopes))
        for rank, seen in enumerate(run.evidence):
            for number, grad in enumerate(seen["grads"]):
                right = torch.full((2 - rank,), 2 * sum(mine[number] for mine in slopes) / world)
                told = f"where rank {number}'s gradients are all zeros, the gradient of the part on rank {rank}"
                check_tensor(told, grad, right, REL, rank, than="the sum over two passes of the mean over all ranks")


@todo(
    6,
    minutes=15,
    needs=(2, 3),
    why=(
        "Whole gradients are as large as the weights. If they are reduced one by one during the backward pass, they"
        " never coexist, and their messages travel while the next gradient is computed."
    ),
    hints=(
        (
            "One hook for each parameter. It does for one parameter what share_gradients does for all; then it frees"
            " the whole gradient."
        ),
        (
            "parameter.register_post_accumulate_grad_hook(function) calls function(parameter). A function made in a"
            " loop sees the loop's last value; a default argument, or functools.partial, gives each function its own."
            " After a first pass part.grad is there already: add."
        ),
        (
            "In the hook: (shard,) = reduce_to_shards([parameter.grad], world); part.grad is shard[: len(part)], or the"
            " sum of both; then parameter.grad = None."
        ),
    ),
)
def test_todo6_stage_2(student):
    trials = stage_trials(student, 2)
    check_stage(student, 2, trials)
    check_zeros(student)


# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: units


def check_whole(told, seen, model, rank):
    """Bytes of whole weights, from moment to moment: of a block while it computes, and of the rest."""
    in_block = 4 * sum(p.numel() for p in model.blocks[0].parameters())
    inside = {p for block in model.blocks for p in block.parameters()}
    rest = 4 * sum(p.numel() for p in model.parameters() if p not in inside)
    for moment, nbytes in seen.items():
        most = rest + in_block if "block" in moment else rest if "between" in moment else 0
        expect(
            nbytes <= most,
            (
                f"{told}, rank {rank} has {nbytes:,} bytes of whole weights at {moment}"
                if "time" in moment
                else f"{told}, rank {rank} has {nbytes:,} bytes of whole weights in {moment}"
            ),
            f"at most {most:,} bytes",
            f"{nbytes:,} bytes",
            rank,
            "Which units are needed at this moment? For each of the others: which call should have freed it, and when?",
        )


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = nn.Linear(5, 7, bias=False), nn.Linear(7, 1)
        self.up.weight.requires_grad_(False)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def unit_on_rank(code, rank, world, factor, dtype):
    module = Tiny().to(getattr(torch, dtype))
    parameters = list(module.parameters())
    x = made_input(dtype)
    with Storages(parameters) as storages:
        unit = code.Unit(module, parameters, rank, world)
        seen = {"at first": storages.by_kind({"shards": unit.shards, "weights": parameters})}
        if seen["at first"]["weights"]:
            return seen  # using a tensor without memory would end the process
        with torch.no_grad():
            for shard in unit.shards:
                # As an optimizer would: the gathered values must come from the shards, not from before.
                shard.mul_(factor)
        mark()
        code.unshard(unit)
        seen["lacking"] = [
            name for name, p in module.named_parameters() if p.untyped_storage().nbytes() < p.element_size() * p.numel()
        ]
        if seen["lacking"]:
            return seen
        seen["taken"] = sum(p.untyped_storage().nbytes() for p in parameters)
        seen["whole"] = {name: p.detach().clone() for name, p in module.named_parameters()}
        seen["same"] = all(a is b for a, b in zip(parameters, module.parameters())) and [
            p.requires_grad for p in parameters
        ] == [False, True, True]
        mark()
        code.unshard(unit)
        mark()
        before = storages.by_kind({"shards": unit.shards, "weights": parameters})["other"]
        loss = module(x).square().sum()
        code.reshard(unit)
        seen["in between"] = storages.by_kind({"shards": unit.shards, "weights": parameters})
        seen["kept"] = seen["in between"]["other"] - before - ACTIVATIONS * x.element_size()
        seen["shapes"] = [list(p.shape) for p in parameters]
        with torch.no_grad():
            seen["shards"] = [shard.clone() for shard in unit.shards]
        code.unshard(unit)
        loss.backward()
        seen["gradients"] = {"x": x.grad.clone()} | {
            name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
        }
        code.reshard(unit)
        seen["at last"] = {"weights": sum(p.untyped_storage().nbytes() for p in parameters)}
        with torch.no_grad():
            for shard in unit.shards:
                shard.mul_(2)
        code.unshard(unit)
        seen["whole again"] = {name: p.detach().clone() for name, p in module.named_parameters()}
    return seen


def made_input(dtype):
    return torch.arange(10, dtype=getattr(torch, dtype)).view(2, 5).div(10).requires_grad_()


def unit_serial(factors, dtype):
    """On one process; rank r has multiplied its shards by factor r."""
    module = Tiny().to(getattr(torch, dtype))
    with torch.no_grad():
        for p in module.parameters():
            for part, factor in zip(p.view(-1).split(math.ceil(p.numel() / len(factors))), factors):
                part.mul_(factor)
    x = made_input(dtype)
    module(x).square().sum().backward()
    return {
        "weights": module.state_dict(),
        "gradients": {"x": x.grad} | {name: p.grad for name, p in module.named_parameters() if p.grad is not None},
    }


@todo(
    8,
    in_place=("parameters",),
    minutes=15,
    needs=(2, 3),
    why=(
        "In stage 3 a weight exists for as long as its layer computes, and no longer. If a view or autograd keeps it"
        " alive, it is not really freed: it takes as much memory as in stage 2, and the extra messages are wasted."
    ),
    hints=(
        "Freeing is one line for each parameter. Making a unit whole takes three steps: gather, allocate, fill.",
        (
            "gather_shards(unit.shards, unit.world) gives the vectors. The storage needs parameter.numel() *"
            " parameter.element_size() bytes. joined gives the tensor; parameter.data.copy_ writes it without"
            " autograd's notice. A unit is whole if a storage of its parameters has bytes."
        ),
        (
            "for parameter, shards in zip(unit.parameters, gather_shards(...)):"
            " parameter.untyped_storage().resize_(...), then parameter.data.copy_(joined(shards, parameter.shape)). And"
            " resize_(0) for each."
        ),
    ),
)
def test_todo8_unit(student):
    for world, dtype in ((3, "float32"), (2, "bfloat16"), (1, "float32")):
        factors = [factor / 50 for factor in student.draw("unit", world).sample(range(2, 100), world)]
        run = student.call(unit_on_rank, world=world, factor=Private(factors), dtype=dtype)
        right = student.reference(unit_serial, on_gpus=dtype == "bfloat16", factors=factors, dtype=dtype)
        check_unit(run, right, world, dtype)


def check_unit(run, right, world, dtype):
    ranks, a_number = run.evidence, getattr(torch, dtype).itemsize
    on = f"on {count_of(world, 'rank')}" + (f", in {dtype}" if dtype != "float32" else "")
    shapes = [p.shape for p in right["weights"].values()]
    psi = sum(map(math.prod, shapes))
    for rank, seen in enumerate(ranks):
        weights = max(seen.get(moment, {"weights": 0})["weights"] for moment in ("at first", "in between"))
        expect(
            weights == 0,
            f"a unit of {a_number * psi} bytes {on}: after reshard, rank {rank} still has {weights} bytes of whole"
            " weights",
            "0 bytes",
            f"{weights} bytes",
            rank,
        )
        expect(
            not seen["lacking"],
            f"after unshard {on}, rank {rank}'s {', '.join(seen['lacking'])} does not have the memory it needs",
            "all of its bytes",
            "less",
            rank,
        )
    first, again, _ = cases(run.events)
    for rank, seen in enumerate(ranks):
        held_by_shards = seen["at first"]["shards"]
        expect(
            held_by_shards == a_number * share(shapes, world),
            "the shards of a unit have the wrong sizes",
            a_number * share(shapes, world),
            held_by_shards,
            rank,
        )
        check_unsharded(on, seen, right, a_number * psi, rank)
        check_unshard_sends(on, first, again, a_number * share(shapes, world) * (world - 1), rank)
        check_resharded(seen, right, world, rank)
        expect(
            seen["kept"] <= 0,
            f"a unit that computes and is then freed: rank {rank} still has {seen['kept']} bytes more than the"
            " activations, because autograd keeps the weights alive",
            "0 bytes",
            f"{seen['kept']} bytes",
            rank,
            "Autograd keeps the memory of what it has seen. Did it see that a parameter was filled, or a new tensor?",
        )
        scale = scale_of(right["gradients"].values())
        for name, gradient in right["gradients"].items():
            told = f"forward pass, reshard, unshard, backward pass: the gradient of {name} on rank {rank}"
            hint = "Autograd goes back through the same tensors. Are they filled with the same numbers, in its memory?"
            check_tensor(told, seen["gradients"].get(name), gradient, REL, rank, scale=scale, hint=hint)
        expect(
            seen["at last"]["weights"] == 0,
            f"after the last reshard, rank {rank} still has whole weights",
            "0 bytes",
            f"{seen['at last']['weights']} bytes",
            rank,
        )
        check_unsharded_again(on, seen, right, rank)


def check_unsharded(on, seen, right, nbytes, rank):
    """After unshard: the memory, the weights, and the same parameters."""
    expect(
        seen["taken"] == nbytes,
        f"after unshard {on}, rank {rank}'s weights take {seen['taken']} bytes; they need {nbytes}",
        f"{nbytes} bytes",
        f"{seen['taken']} bytes",
        rank,
        "A storage is measured in bytes. How many numbers does the parameter have, and how many bytes has each?",
    )
    for name, weight in right["weights"].items():
        told = f"after unshard {on}, {name} on rank {rank}"
        hint = "The memory is there. Where do the numbers come from, in which order, and which of them are padding?"
        than = "the numbers from the ranks' shards"
        check_tensor(told, seen["whole"][name], weight, rank=rank, than=than, hint=hint)
    expect(
        seen["same"],
        f"after unshard, rank {rank}'s module has different parameters now: layers, hooks and the optimizer's list"
        " refer to the old ones",
        "the same parameters",
        "others",
        rank,
        "Layers, hooks and the optimizer all have this very object. What of it can you change so that they see it?",
    )


def check_unsharded_again(on, seen, right, rank):
    """After a step on the shards the weights are new."""
    for name, weight in right["weights"].items():
        told = f"resharded, stepped and unsharded again {on}, {name} on rank {rank}"
        wrongs = {"what it was before the step": weight}
        hint = "Between two passes the optimizer changes the shards. Where does unshard get its numbers?"
        check_tensor(told, seen["whole again"][name], 2 * weight, rank=rank, wrongs=wrongs, hint=hint)


def check_unshard_sends(on, first, again, most, rank):
    """One collective, of at most so many bytes, or none by a single rank; and none where the unit is whole already."""
    mine = [call for call in collectives(first) if call.rank == rank]
    expect(
        (len(mine) == 1 or on == ALONE and not mine) and sum(call.sent for call in mine) <= most,
        f"unshard takes {len(mine)} collectives on rank {rank}, in which it sends"
        f" {sum(call.sent for call in mine):.0f} bytes",
        f"one of at most {most} bytes",
        [call.op for call in mine],
        rank,
        HINTS["collectives"],
    )
    more = [event["op"] for event in again[rank] if event["e"] == "op"]
    expect(
        not more,
        f"unshard {on} of a unit that is already whole gathers once more, on rank {rank}",
        "nothing",
        more,
        rank,
        "Two hooks may ask for the same unit. How can you tell that it is whole already?"
        + " A single rank's shard is as long as the parameter." * (on == ALONE),
    )


ALONE = "on 1 rank"


def check_resharded(seen, right, world, rank):
    """After reshard the parameters and the shards are what they were."""
    shapes = [p.shape for p in right["weights"].values()]
    expect(
        seen["shapes"] == [list(shape) for shape in shapes],
        f"after reshard, rank {rank}'s parameters have different shapes",
        [list(shape) for shape in shapes],
        seen["shapes"],
        rank,
        "Only the memory is freed. Which of your lines changes the tensor instead?",
    )
    for shape, name, shard in zip(shapes, right["weights"], seen["shards"], strict=True):
        size = math.ceil(math.prod(shape) / world)
        part = right["weights"][name].view(-1)[rank * size : (rank + 1) * size]
        expect(
            torch.equal(shard[: len(part)], part),
            f"after reshard, rank {rank}'s shard of {name} has changed",
            part.tolist(),
            shard.tolist(),
            rank,
            "The shards are what the optimizer steps, and they stay. Do they have memory of their own?",
        )


ACTIVATIONS = 2 * 7 + 2 * 1  # numbers that Tiny keeps for its backward pass: after tanh, and before the square


@todo(
    9,
    minutes=35,
    needs=(2, 3, 8),
    why=(
        "This is FSDP. Every rank that is added reduces what each rank holds, so a model of any size fits on enough"
        " ranks; and not a line of the model's code has changed."
    ),
    hints=(
        (
            "Follow one block through the drawing: gathered, freed, gathered again, and finally reduced and freed."
            " Which call belongs to which of these?"
        ),
        (
            "Two hooks on unit.module: before the forward pass unshard; after it reshard, and a hook on the output that"
            " calls unshard. And one on each trained parameter, which counts: when all trained parameters of the unit"
            " have their gradient, call finish, and restart the count. In finish: reduce_to_shards of p.grad for the"
            " trained p, add to shard.grad, p.grad = None, reshard."
        ),
        (
            "register_forward_pre_hook and register_forward_hook; in the latter, if output.requires_grad:"
            " output.register_hook(lambda gradient: unshard(unit)). A set of the missing gradients, from which"
            " register_post_accumulate_grad_hook's function takes its parameter."
        ),
    ),
)
def test_todo9_stage_3(student):
    check_stage(student, 3, stage_trials(student, 3))


# ---------------------------------------------------------------------------------------------------
# TODO 10: mixed precision


def mixed_on_rank(code, rank, world, seed, steps):
    model = made_model().to(torch.bfloat16)
    batches = [batch(seed, step, 0) for step in range(steps)]
    losses = []
    with Storages(model.parameters()) as storages:
        optimizer = Mixed(code, in_groups(list(model.parameters())), torch.optim.AdamW, rank, world, **OPTIONS["AdamW"])
        masters = optimizer.parts
        groups = [{k: group[k] for k in ("lr", "weight_decay")} for group in optimizer.optimizer.param_groups]
        dtypes, leaves = sorted({str(p.dtype) for p in masters}), all(p.is_leaf and p.requires_grad for p in masters)

        def step(number):
            mark()
            loss = model(*batches[number])
            loss.backward()
            losses.append(loss.item())

        step(0)
        optimizer.step()
        optimizer.zero_grad()
        step(1)
        bytes_held = held(storages, model.parameters(), optimizer.optimizer)
    for number in range(1, steps):
        optimizer.step()
        optimizer.zero_grad()
        if number + 1 < steps:
            step(number + 1)
    names = {p: name for name, p in model.named_parameters()}
    return {
        "losses": losses,
        "held": bytes_held,
        "groups": groups,
        "dtypes": dtypes,
        "leaves": leaves,
        "stateless": stateless(model, optimizer, optimizer.optimizer),
        "dtype of weights": sorted({str(p.dtype) for p in model.parameters()}),
        "weights": dict(model.named_parameters()),
        "masters": {names[p]: master for p, master in zip(optimizer.parameters, masters)},
    }


def mixed_step_on_rank(code, rank, world, seed):
    """One step of SGD, in which the masters move by their gradients."""
    model = made_model().to(torch.bfloat16)
    optimizer = Mixed(code, in_groups(list(model.parameters())), torch.optim.SGD, rank, world, **OPTIONS["SGD"])
    model(*batch(seed, 0, 0)).backward()
    optimizer.step()
    names = {p: name for name, p in model.named_parameters()}
    return {names[p]: master for p, master in zip(optimizer.parameters, optimizer.parts)}


def mixed_serial(seeds, steps, kind="AdamW"):
    """One process: gradients of each rank's batch in bfloat16, their mean and the step in float32."""
    model = made_model().to(torch.bfloat16)
    masters = {p: nn.Parameter(p.detach().float()) for p in model.parameters()}
    optimizer = getattr(torch.optim, kind)(
        [{**group, "params": [masters[p] for p in group["params"]]} for group in in_groups(list(masters))],
        **OPTIONS[kind],
    )
    first = {name: masters[p].detach().clone() for name, p in model.named_parameters()}
    for step in range(steps):
        gradients = []
        for seed in seeds:
            model.zero_grad()
            model(*batch(seed, step, 0)).backward()
            gradients.append([p.grad.float() for p in masters])
        for master, *mine in zip(masters.values(), *gradients):
            master.grad = sum(mine) / len(seeds)
        optimizer.step()
        with torch.no_grad():
            for p, master in masters.items():
                p.copy_(master)
    return {"first": first, "masters": {name: masters[p] for name, p in model.named_parameters()}}


@todo(
    10,
    in_place=("masters", "parameters"),
    minutes=15,
    further=True,
    needs=(2, 3),
    why=(
        "bfloat16 halves the bytes of weights, gradients and messages, and makes most GPUs several times as fast; but"
        " only float32 masters keep what small steps and long sums would lose. Masters and state are 12 of the 16"
        " bytes, and stage 1 shards exactly those."
    ),
    hints=(
        "The same three places as in TODO 4, each with a change of dtype. In which direction?",
        (
            "tensor.float() makes a float32 copy. copy_ between tensors of different dtypes rounds. reduce_to_shards"
            " adds in the dtype of its arguments."
        ),
        (
            "my_part(p.detach(), rank, world).float().requires_grad_(); reduce_to_shards([p.grad.float() for p in"
            " parameters], world), cut to len(master); my_part(parameter, rank, world).copy_(master)."
        ),
    ),
)
def test_todo10_mixed(student):
    world, steps = 2, 4
    seeds = student.seeds(world)
    right = student.reference(mixed_serial, on_gpus=True, seeds=[*seeds], steps=steps)
    for name, master in right["masters"].items():
        student.premise(not torch.equal(master, right["first"][name]), f"a {name} that never moves")
        apart = (master - master.bfloat16().float()).norm() > 3e-4 * master.norm()
        student.premise(apart or name == "gain", "masters in bfloat16")
    run = student.call(mixed_on_rank, world=world, seed=seeds, steps=steps)
    ranks = run.evidence
    told = f"AdamW on {count_of(world, 'rank')}, weights in bfloat16"
    everything, _ = shapes_of()
    psi, shard = sum(map(math.prod, everything)), share(everything, world)
    events = cases(run.events)[0]
    calls = collectives(events)
    for rank, mine in enumerate(ranks):
        check_masters(told, mine, rank)
        part = own(everything, world, rank)
        limits = {"weights": (2 * psi, 2 * psi), "gradients": (2 * psi, 2 * psi), "optimizer": (12 * part, 12 * shard)}
        check_held(told, mine["held"], limits, rank, {"weights": 2 * psi, "gradients": 2 * psi, "optimizer": 12 * psi})
        check_state(told, mine["stateless"], rank)
        check_mixed_messages(
            told, [call for call in calls if call.rank == rank], events[rank], shard * (world - 1), rank
        )
    check_mixed_numbers(told, steps, ranks, right)
    check_mean_in_float32(student)


def check_masters(told, mine, rank):
    """The masters are leaves in float32, in groups as given; the weights stay in bfloat16."""
    expect(
        mine["dtypes"] == ["torch.float32"],
        f"{told}: the masters are {', '.join(mine['dtypes'])}",
        "float32",
        mine["dtypes"],
        rank,
        "bfloat16 has 8 significant bits. In which dtype can steps of a thousandth of the weight add up?",
    )
    expect(
        mine["leaves"],
        f"{told}: an optimizer takes leaf tensors that require a gradient, and the masters are not",
        "leaves",
        "others",
        rank,
        HINTS["leaves"],
    )
    expect(
        mine["groups"] == [{"lr": 0.01, "weight_decay": 0.3}, {"lr": 0.02, "weight_decay": 0.0}],
        f"{told}: the groups' options differ from those that were given",
        "lr and weight_decay as given",
        mine["groups"],
        rank,
        HINTS["options"],
    )
    expect(
        mine["dtype of weights"] == ["torch.bfloat16"],
        f"{told}: after a step the weights are {', '.join(mine['dtype of weights'])}",
        "bfloat16",
        mine["dtype of weights"],
        rank,
        "The model keeps computing with the same weight tensors: only their numbers are new.",
    )


def check_mixed_messages(told, calls, events, numbers_sent, rank):
    """Gradients are added up in float32, and weights are gathered in bfloat16: each number once."""
    operations = [event for event in events if event["e"] == "op"]
    gathers = [event for event in operations if event["op"] in ("all_gather", "broadcast")]
    others = [event for event in operations if event["op"] not in ("all_gather", "broadcast")]
    for what, dtype, found in (
        ("gradients are added up", torch.float32, others),
        ("weights are gathered", torch.bfloat16, gathers),
    ):
        dtypes, ops = sorted({event["dtype"] for event in found}), {event["op"] for event in found}
        expect(
            dtypes == [name_of(dtype)],
            f"{told}: {what} in {' and '.join(dtypes) or 'no collective'} on rank {rank}",
            f"in {name_of(dtype)}",
            dtypes,
            rank,
            "The arguments decide the dtype of the message, and of a sum. Masters stay where they are.",
        )
        sent, most = sum(call.sent for call in calls if call.op in ops), dtype.itemsize * numbers_sent
        expect(
            sent <= most,
            f"{told}, rank {rank} sends {sent:,.0f} bytes by {', '.join(ops)} in a step",
            f"at most {most:,} bytes",
            f"{sent:,.0f} bytes",
            rank,
            "How often is each number sent, and in how many bytes?",
        )


def check_mixed_numbers(told, steps, ranks, right):
    """The masters are one process's, and the weights are the masters, rounded."""
    for name, master in right["masters"].items():
        moved = (master - right["first"][name]).norm()
        seen = put_together([mine["masters"][name] for mine in ranks], master.shape)
        # Two numbers have the same sum in either order, so the difference is the rounding within a step.
        expect(
            near(seen - right["first"][name], master - right["first"][name], 1e-3),
            f"{told}: after {steps} steps the masters of {name} differ from one process's",
            f"moved by {moved:.5g}",
            f"moved by {(seen - right['first'][name]).norm():.5g}, and {(seen - master).norm():.2g} away",
            hint="Follow one number: gradient, mean, step, master. Where is it rounded, or is it another rank's?",
        )
        for rank, mine in enumerate(ranks):
            rounded = put_together([other["masters"][name] for other in ranks], master.shape).bfloat16()
            expect(
                torch.equal(mine["weights"][name], rounded),
                f"{told}: after the last step, {name} on rank {rank} is not its masters, rounded",
                "the masters in bfloat16",
                "others",
                rank,
                "Which line rounds the masters, and into which memory? It must be in the weights that are gathered.",
            )


def check_mean_in_float32(student):
    """On 3 ranks, because a division by 2 is exact in bfloat16, too."""
    world = 3
    seeds = student.seeds(world)
    ranks = student.call(mixed_step_on_rank, world=world, seed=seeds).evidence
    right = student.reference(mixed_serial, on_gpus=True, seeds=[*seeds], steps=1, kind="SGD")
    for name, master in right["masters"].items():
        moved = (master - right["first"][name]).norm()
        seen = put_together([mine[name] for mine in ranks], master.shape)
        # A gradient that is rounded once more, to the 8 bits of bfloat16, is wrong by 1e-3 of its norm; sums of three
        # numbers in a different order, and masters that are rounded to float32, differ by 1e-6 of it and less.
        expect(
            near(seen - right["first"][name], master - right["first"][name], REL, MOVED),
            f"SGD on {count_of(world, 'rank')}, weights in bfloat16: after a step the masters of {name} differ from one"
            " process's, which takes the mean of the gradients in float32",
            f"moved by {moved:.6g}",
            f"moved by {(seen - right['first'][name]).norm():.6g}, and {(seen - master).norm():.2g} away",
            hint="A mean is a sum and a division. In which dtype is each of them?",
        )

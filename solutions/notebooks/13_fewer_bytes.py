# %% [markdown]
# # Fewer bytes: when the network is the limit
#
# In data-parallel training, each rank sends almost eight bytes per parameter and step: a float32 gradient, twice around
# the ring. Inside a node that is nothing. Between nodes on Ethernet, or between sites, the ranks wait for the network
# most of the time.
#
# In this lesson you build four ways to send less, and one optimizer that must be sharded differently:
#
# | way | what it gives up | bytes of a plain all-reduce that remain |
# |---|---|---|
# | 8-bit messages | precision of each number | a quarter |
# | the largest numbers only, with error feedback | most numbers, until later | as few as you like |
# | PowerSGD: two thin matrices | small singular values, until later | $r (m + n) / m n$ |
# | DiLoCo: several steps, then one exchange | the same weights on all ranks | $1 / H$ |
# | Muon, with an owner for each matrix | nothing | all |
#
# Here the parallel run is *not* always the serial run: the first four change the numbers. All the more important to
# know which serial algorithm they equal, and to test that.
#
# *Builds on*: all-reduce, all-to-all and their costs (`01_collectives`); averaged gradients, buckets
# (`02_data_parallel`); sharded state and checkpoints (`03_zero`).

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from grader import run_on_ranks
from utils.model import TransformerLM
from utils.plots import fewer_bytes as plots

# %% [markdown]
# ## Eight bits
#
# A number in 8 bits has a sign and few bits for the rest. **E4M3** has 4 bits for the exponent and 3 for the mantissa:
# its largest number is $448 = 1.75 \cdot 2^8$, its smallest normal one $2^{-6}$, its smallest of all $2^{-9}$.
# Gradients are far smaller than that, and each layer's have a different size. So numbers are sent in **blocks** of 32,
# and each block has its own scale, a power of two, in one more byte (**E8M0**: the exponent plus 127). That is MXFP8,
# of the [OCP Microscaling
# specification](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf): 33 bytes for 32
# numbers.
#
# The scale is $2^{\lfloor \log_2 \max |v| \rfloor - 8}$, so that the largest number lands in E4M3's last binade,
# between $2^8$ and $2^9$. What is then above 448 becomes 448. `torch.frexp` gives exact exponents, whereas a logarithm
# in float32 is rounded.
#
# gloo refuses to send float8 in an all-to-all or an all-gather ("Invalid scalar type" in torch 2.13), but bytes are
# bytes: `tensor.view(torch.uint8)` is the same memory.

# %%
BLOCK = 32  # numbers that have one scale
LARGEST = 448.0  # of E4M3


def in_blocks(numbers: Tensor) -> Tensor:
    """A vector, padded with zeros, in rows of 32."""
    return F.pad(numbers, (0, -len(numbers) % BLOCK)).view(-1, BLOCK)


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def exponents_of(blocks_B32: Tensor) -> Tensor:
    """The exponent of each block's scale, from -127 to 127, in whole numbers: int32 (B, 1)."""
    # TODO 1: Write numbers in 8 bits, with a scale for each block, and read them back. First the scales:
    # each is 2 to the power of its exponent. What is out of E8M0's range becomes its nearest end; a
    # block of zeros may have any.
    ### BEGIN SOLUTION
    largest_B1 = blocks_B32.abs().amax(dim=1, keepdim=True)
    return (torch.frexp(largest_B1).exponent - 1 - 8).clamp(-127, 127)
    ### END SOLUTION


def pack(numbers: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """A float32 vector as uint8 (blocks, 33): in each row the E4M3 codes of 32 numbers, then the E8M0
    code of their scale.

    Args:
        numbers: finite, of any length, even 0; the last block is padded with zeros.
        draw: random numbers for `round_stochastically`, which you write in TODO 2; None: round to the
            nearest.
    """
    blocks_B32 = in_blocks(numbers)
    exponents_B1 = exponents_of(blocks_B32)
    scaled_B32 = torch.ldexp(blocks_B32, -exponents_B1).clamp(-LARGEST, LARGEST)
    if draw is not None:
        scaled_B32 = round_stochastically(scaled_B32, draw)
    # TODO 1, again: the bytes of these numbers, rounded to the nearest, and of their scale.
    ### BEGIN SOLUTION
    codes_B32 = scaled_B32.to(torch.float8_e4m3fn).view(torch.uint8)
    return torch.cat([codes_B32, (exponents_B1 + 127).to(torch.uint8)], dim=1)
    ### END SOLUTION


def unpack(rows_B33: Tensor, length: int) -> Tensor:
    """The first ``length`` numbers of packed rows, as a float32 vector."""
    # TODO 1, again: back to float32.
    ### BEGIN SOLUTION
    values_B32 = rows_B33[:, :BLOCK].contiguous().view(torch.float8_e4m3fn).float()
    exponents_B1 = rows_B33[:, BLOCK:].int() - 127
    return torch.ldexp(values_B32, exponents_B1).view(-1)[:length]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/1")

# %% [markdown]
# ## Round at random
#
# Rounding to the nearest loses whatever is always small: a number below half a step becomes zero, in every step of the
# training. **Stochastic rounding** goes up or down to one of the two neighbours, with probabilities such that the
# *expected* result is the number itself. Then errors of different ranks and steps cancel; the price is a larger error
# each time.


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def round_stochastically(values: Tensor, draw: torch.Generator) -> Tensor:
    """Each value as one of its two neighbours in E4M3, at random, and on average the value itself.
    float32, like ``values``, which lie between -448 and 448. A value that E4M3 has stays as it is.
    """
    # TODO 2: Round without bias.
    # The distance of E4M3's numbers depends on the binade; below its smallest normal number, 2 ** -6, it
    # stays the same. Every value needs a random number of its own, from `draw`.
    ### BEGIN SOLUTION
    exponents = (torch.frexp(values).exponent - 1).clamp(min=-6)
    steps = torch.ldexp(torch.ones_like(values), exponents - 3)
    return torch.floor(values / steps + torch.rand(values.shape, generator=draw)) * steps
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/2")


# %%
def relative_error(seen: Tensor, right: Tensor) -> float:
    return ((seen - right).norm() / right.norm()).item()


# One number of the block is large, and the others are less than half the smallest step: the mean over
# many ranks.
sample = torch.cat([torch.tensor([100.0]), torch.linspace(0.0001, 0.0002, 31)])
print("ranks   to the nearest   stochastically   bfloat16   (error of the mean of the small numbers)")
for ranks in (1, 16, 256, 4096):
    draw = torch.Generator().manual_seed(0)
    many = sample.repeat(ranks)
    means = [
        unpack(rows, len(many)).view(ranks, 32).mean(dim=0)[1:]
        for rows in (pack(many), pack(many, draw))
    ]
    errors = [relative_error(mean, sample[1:]) for mean in (*means, sample[1:].bfloat16().float())]
    print(f"{ranks:5} {errors[0]:16.4f} {errors[1]:16.4f} {errors[2]:10.4f}")

# %% [markdown]
# ## An all-reduce in 8 bits
#
# A ring all-reduce adds at each hop, so 8-bit numbers would be rounded at each hop, $N - 1$ times. Instead, let each
# rank have one part of the vector:
#
# 1. an **all-to-all**: each rank gets all ranks' 8-bit versions of its part;
# 2. it adds them up **in float32**, and divides;
# 3. an **all-gather** of the means, in 8 bits again.
#
# Each number is rounded twice, whatever the number of ranks. At the end, all ranks must have the same numbers: use your
# own part, too, as the others will read it.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_reduce_in_8_bits(numbers: Tensor, draw: torch.Generator | None = None) -> Tensor:
    """The mean over all ranks of a float32 vector, sent in 8 bits. All ranks get the same. ``draw``:
    as for `pack`.
    """
    # TODO 3: Average in 8-bit messages and float32 sums.
    # Part r goes to rank r; all parts have equally many whole blocks, so that the last one may have to
    # be padded, or be all padding. Budget: one all-to-all and one all-gather, of 33 bytes for each
    # block.
    ### BEGIN SOLUTION
    world = dist.get_world_size()
    size = BLOCK * -(-len(numbers) // (BLOCK * world))
    rows = pack(F.pad(numbers, (0, world * size - len(numbers))), draw)
    arrived = torch.empty_like(rows)
    dist.all_to_all_single(arrived, rows)
    mean = unpack(arrived, world * size).view(world, size).sum(dim=0) / world
    mine = pack(mean, draw)
    parts = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(parts, mine)
    return unpack(torch.cat(parts), len(numbers))
    ### END SOLUTION


def bytes_in_8_bits(length: int, world: int) -> int:
    """Bytes that each rank sends for it."""
    # TODO 3, again: predict the bytes, with padding and scales.
    ### BEGIN SOLUTION
    blocks = -(-length // (BLOCK * world))
    return 2 * (world - 1) * 33 * blocks
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/3")


# %%
def compared(how: str, rank: int, world: int) -> float:
    """How far off the mean of 10,000 numbers is, relative to its norm."""
    mine = torch.randn(10_000, generator=torch.Generator().manual_seed(rank))
    right = mine.clone()
    dist.all_reduce(right)
    right /= world
    if how == "bfloat16":
        seen = mine.bfloat16()
        dist.all_reduce(seen)
        return relative_error(seen.float() / world, right)
    draw = torch.Generator().manual_seed(rank) if how == "stochastically" else None
    return relative_error(all_reduce_in_8_bits(mine, draw), right)


# %%
for how in ("bfloat16", "to the nearest", "stochastically"):
    job = run_on_ranks("13_fewer_bytes/compared", [how] * 4)
    # without the one in float32
    sent = sum(call.sent for call in job.collectives if call.rank == 0) - 60_000
    print(f"{how:15} error {job.results[0]:.4f}, {sent:,.0f} bytes; in float32 60,000")

# %% [markdown]
# ## The largest numbers, and a memory for the rest
#
# Most of a gradient's numbers are small. **Top-k** sends only the $k$ largest in absolute value, with their places: 8
# bytes each. Every rank has different places, so a ring cannot add them up; the ranks gather all of them.
#
# What is not sent must not be lost. Look at two ranks that disagree about one weight and agree about the other. Their
# gradients are $(100 + x, x)$ and $(-100 + x, x)$, and each may send one number:

# %%
weights, memory = {"no memory": torch.ones(2), "memory": torch.ones(2)}, [torch.zeros(2), torch.zeros(2)]
for step in range(301):
    if step % 100 == 0:
        print(
            f"step {step:3}:",
            {name: [round(number, 3) for number in w.tolist()] for name, w in weights.items()},
        )
    for name, w in weights.items():
        mean = torch.zeros(2)
        for worker, sign in enumerate((100.0, -100.0)):
            wanted = w + torch.tensor([sign, 0.0])
            if name == "memory":
                wanted = wanted + memory[worker]
            sent = torch.where(wanted.abs() == wanted.abs().max(), wanted, 0.0)
            memory[worker] = wanted - sent if name == "memory" else memory[worker]
            mean += sent / 2
        w -= 0.01 * mean

# %% [markdown]
# Without a memory, the second weight never moves: the ranks always send the first number, whose mean is what the first
# weight needs and nothing else. **Error feedback** ([arXiv:1901.09847](https://arxiv.org/abs/1901.09847)) keeps, on
# each rank, what it did not send, and adds it to the next gradient:
#
# $$p = g + e, \qquad \text{send } C(p), \qquad e \leftarrow p - C(p).$$
#
# Nothing is lost, only late. The memory $e$ is state of the training, like the averages of Adam, and each rank has its
# own: it belongs in the checkpoint, from all ranks.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def mean_of_largest(vector: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Each rank sends the ``k`` numbers of its float32 vector that are largest in absolute value.

    Returns the mean over the ranks of what they sent, and what this rank sent: two vectors with zeros
    elsewhere.
    """
    # TODO 4: Send the largest numbers, and keep the rest for the next step. First the message.
    # Vectors have fewer than 2 ** 31 numbers. Budget: 8 bytes for each number, to each other rank, in
    # two collectives at most.
    ### BEGIN SOLUTION
    world = dist.get_world_size()
    places = vector.abs().topk(k).indices
    message = torch.stack([places.int(), vector[places].view(torch.int32)])
    messages = [torch.empty_like(message) for _ in range(world)]
    dist.all_gather(messages, message)
    total = torch.zeros_like(vector)
    for their_places, numbers in messages:
        total[their_places.long()] += numbers.view(torch.float32)
    sent = torch.zeros_like(vector)
    sent[places] = vector[places]
    return total / world, sent
    ### END SOLUTION


class Feedback:
    """Averages gradients of ``length`` numbers, ``k`` numbers of each rank at a time."""

    def __init__(self, length: int, k: int) -> None:
        self.k = k
        self.memory = torch.zeros(length)  # what this rank has not sent yet

    def mean(self, gradient: Tensor) -> Tensor:
        """What the optimizer steps with, the same on all ranks. Leaves ``gradient`` unchanged."""
        # TODO 4, again: the step of error feedback.
        ### BEGIN SOLUTION
        wanted = gradient + self.memory
        mean, sent = mean_of_largest(wanted, self.k)
        self.memory = wanted - sent
        return mean
        ### END SOLUTION

    def saved(self) -> Tensor:
        """The memories of all ranks, (ranks, length), in the order of the ranks.
        Every rank gets them.
        """
        # TODO 4, again: what a checkpoint must contain.
        ### BEGIN SOLUTION
        memories = [torch.empty_like(self.memory) for _ in range(dist.get_world_size())]
        dist.all_gather(memories, self.memory)
        return torch.stack(memories)
        ### END SOLUTION

    def load(self, saved: Tensor) -> None:
        """Resume from what any number of ranks saved. ``saved`` stays as it is."""
        # TODO 4, again: resume. With as many ranks as before, each has its own memory again. With more
        # ranks or fewer, no number may be lost or count twice: the mean of the memories over all ranks
        # must be the same as before.
        ### BEGIN SOLUTION
        same = len(saved) == dist.get_world_size()
        self.memory = saved[dist.get_rank()].clone() if same else saved.mean(dim=0)
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/4")

# %% [markdown]
# ## PowerSGD: two thin matrices
#
# The gradient $M$ of an $m \times n$ matrix is often close to a matrix of low rank. PowerSGD
# ([arXiv:1905.13727](https://arxiv.org/abs/1905.13727)) sends an approximation of rank $r$, found by one step of power
# iteration from the $Q$ of the last step (its **warm start**), an $n \times r$ matrix that all ranks have alike:
#
# 1. $P = M Q$ on each rank; the mean of all $P$, by an all-reduce;
# 2. orthonormalize the columns of $P$. All ranks do this with the same numbers and get the same result;
# 3. $Q \leftarrow M^T P$ on each rank; the mean, by an all-reduce;
# 4. the result is $P Q^T$.
#
# Both steps are linear in $M$, so the result is exactly what one process would get from the mean gradient. And all sums
# are plain all-reduces, unlike top-k's.
#
# Mind a gradient of zeros: a layer that is not used in one step. If your orthonormalization makes zeros of zeros, $Q$
# becomes zero, and the layer is never trained again. `torch.linalg.qr` returns orthonormal columns of any matrix, even
# then.


# %%
@torch.no_grad()
def mean_over_ranks(tensors: list[Tensor]) -> list[Tensor]:
    """The mean of each tensor over all ranks, with one all-reduce for the whole list.
    All have the same dtype.
    """
    together = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(together)
    together /= dist.get_world_size()
    pieces = together.split([tensor.numel() for tensor in tensors])
    return [piece.view(tensor.shape) for piece, tensor in zip(pieces, tensors, strict=True)]


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def orthonormal(columns_MR: Tensor) -> Tensor:
    """Orthonormal columns that span at least what the given ones span. They may be dependent, or zeros;
    R ≤ M.
    """
    # TODO 5: Approximate the mean of a matrix over the ranks, with rank r. First the orthonormal
    # columns.
    ### BEGIN SOLUTION
    return torch.linalg.qr(columns_MR).Q
    ### END SOLUTION


def low_rank_mean(matrix_MN: Tensor, q_NR: Tensor) -> tuple[Tensor, Tensor]:
    """The approximate mean over all ranks, (M, N), and the next step's Q, (N, R).
    ``q_NR`` is the same on all ranks.
    """
    # TODO 5, again: the four steps. Budget: two all-reduces, of P and of Q.
    ### BEGIN SOLUTION
    (p_MR,) = mean_over_ranks([matrix_MN @ q_NR])
    p_MR = orthonormal(p_MR)
    (q_NR,) = mean_over_ranks([matrix_MN.T @ p_MR])
    return p_MR @ q_NR.T, q_NR
    ### END SOLUTION


def bytes_of_low_rank(m: int, n: int, r: int, world: int) -> float:
    """Bytes that each rank sends for it, in float32. All-reduces are rings;
    the result need not be a whole number.
    """
    # TODO 5, again: predict the bytes.
    ### BEGIN SOLUTION
    return 2 * (world - 1) / world * 4 * r * (m + n)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/5")

# %% [markdown]
# ## In DDP: a communication hook
#
# `ddp.register_comm_hook(state, hook)` replaces the all-reduce of DDP: whenever a bucket is full, DDP calls
# `hook(state, bucket)`, which returns a `Future` of the bucket's averaged numbers.
#
# | | |
# |---|---|
# | `bucket.parameters()` | the parameters in it |
# | `bucket.gradients()` | their gradients: views of the bucket's buffer |
# | `bucket.buffer()` | all of them, as one vector |
# | `future = torch.futures.Future()`, `future.set_result(vector)` | a future that is already complete |
#
# Two traps. DDP builds its buckets anew after the first step, so state belongs to parameters, not to the numbers of
# buckets. And DDP leaves averaging to the hook, which returns the mean, not the sum.


# %%
class PowerSGD:
    """State of `power_sgd_hook`: for each compressed matrix its memory, which differs from rank to rank,
    and its Q.
    """

    def __init__(self, model: nn.Module, r: int, seed: int = 0) -> None:
        self.r = r
        self.memory: dict[nn.Parameter, Tensor] = {}
        self.q: dict[nn.Parameter, Tensor] = {}
        draw = torch.Generator().manual_seed(seed)  # the same on all ranks
        for p in model.parameters():
            if self.compresses(p):
                self.memory[p] = torch.zeros_like(p)
                self.q[p] = torch.randn(p.shape[1], r, generator=draw).to(p)

    def compresses(self, p: nn.Parameter) -> bool:
        """Whether two thin matrices have fewer numbers than the parameter;
        vectors are sent as they are.
        """
        return p.requires_grad and p.dim() == 2 and self.r * sum(p.shape) < p.numel()


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def power_sgd_hook(state: PowerSGD, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's hook: low-rank means with error feedback for what the state compresses,
    the plain mean for the rest.
    """
    # TODO 6: Compress DDP's buckets.
    # To each gradient its memory is added first; what its approximation lacks is the next memory. The
    # next Q is kept, too. A checkpoint has `state.memory` and `state.q`, so nothing else may be needed
    # to resume. Budget: the bytes of TODO 5 for each matrix and 4 for each other number, in three
    # all-reduces for each bucket.
    ### BEGIN SOLUTION
    pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
    matrices = [(p, g, g + state.memory[p]) for p, g in pairs if state.compresses(p)]
    others = [g for p, g in pairs if not state.compresses(p)]
    first = mean_over_ranks([*others, *(wanted @ state.q[p] for p, _, wanted in matrices)])
    for g, mean in zip(others, first, strict=False):
        g.copy_(mean)
    if matrices:
        thin = [orthonormal(mean) for mean in first[len(others) :]]
        second = mean_over_ranks(
            [wanted.T @ columns for (*_, wanted), columns in zip(matrices, thin, strict=True)]
        )
        for (p, g, wanted), columns, q in zip(matrices, thin, second, strict=True):
            g.copy_(columns @ q.T)
            state.memory[p] = wanted - g
            state.q[p] = q
    future = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/6")

# %% [markdown]
# The hook's state is state of the training. Stop a run after three of six steps, and resume it with a new model, a new
# DDP and a new hook, which get the weights and a part of the state: on each rank its own memory, and the Q, which is
# the same on all of them.


# %%
def resumed(kept: list[str], rank: int, world: int) -> float:
    """How far a resumed run ends from one never stopped, relative to its last three steps' way."""
    runs = []
    for number in range(2):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 20))
        ddp, state = DistributedDataParallel(model), PowerSGD(model, r=2)
        ddp.register_comm_hook(state, power_sgd_hook)
        runs.append((model, ddp, state))
    (model, ddp, state), (new_model, new_ddp, new_state) = runs
    for step in range(6):
        if step == 3:
            new_model.load_state_dict(model.state_dict())
            for name in kept:  # both models have their parameters in the same order
                parts = zip(getattr(new_state, name), getattr(state, name).values(), strict=True)
                setattr(new_state, name, {p: part.clone() for p, part in parts})
            stopped = nn.utils.parameters_to_vector(model.parameters()).detach()
        x = torch.randn(8, 20, generator=torch.Generator().manual_seed(world * step + rank))
        for some in (ddp, new_ddp) if step >= 3 else (ddp,):
            some.zero_grad()
            (some(x) - x).square().mean().backward()
            with torch.no_grad():
                for p in some.parameters():
                    p -= p.grad
    right, seen = (nn.utils.parameters_to_vector(m.parameters()).detach() for m in (model, new_model))
    return ((seen - right).norm() / (right - stopped).norm()).item()


# %%
for kept in ([], ["q"], ["memory"], ["memory", "q"]):
    job = run_on_ranks("13_fewer_bytes/resumed", [kept] * 3)
    print(f"the checkpoint has {', '.join(['weights', *kept]):18}: {job.results[0]:.4f}")

# %% [markdown]
# PyTorch has this hook, too: `powerSGD_hook` of `torch.distributed.algorithms.ddp_comm_hooks`, with a `PowerSGDState`.
# Its state belongs to the numbers of buckets, so it first sends 1000 steps plainly (`start_powerSGD_iter`; at least two
# with error feedback), while DDP builds its buckets. It runs with gloo. `bf16_compress_hook`, which halves the bytes, does
# not: it accepts only NCCL (torch 2.13). In the script, `train/ddp_training.py --hook powersgd` uses torch's hook, and
# `--hook bf16` four lines of our own, in `utils/hooks.py`. From the same state, torch's hook and yours give the same
# gradients.
#
# torch's state can be saved with `torch.save`, but a run that is resumed with it is not the uninterrupted one: in its
# first step DDP's buckets are in their first order again, and memories are added to gradients of other parameters. Only
# after one backward pass that changes nothing, before the state is loaded, is it the same run (torch 2.13 and 2.15). So
# `--hook` is an option of `ddp_training` alone, which never resumes. Of the scripts that do, `fsdp_training` and
# `resilient_training` use FSDP, which has no such hooks, and `streaming_training` saves only what all ranks have alike.

# %% [markdown]
# ## DiLoCo: several steps alone
#
# The methods so far send something in each step. **Local SGD** sends nothing for $H$ steps, and then averages the
# weights. DiLoCo ([arXiv:2311.08105](https://arxiv.org/abs/2311.08105)) does better with the same bytes. It takes the
# way that the ranks have moved on average for a gradient, the *outer gradient*, and makes a step with Nesterov
# momentum:
#
# $$\Delta = \theta - \tfrac{1}{N} \sum_i \theta_i, \qquad v \leftarrow \mu v + \Delta, \qquad \theta \leftarrow \theta - \eta (\Delta + \mu v).$$
#
# $\theta$, the **anchor**, are the weights that all ranks had after the last exchange, $\theta_i$ those that rank $i$
# has now. Then all ranks continue from the new $\theta$. The inner optimizer (AdamW in the paper) is each rank's own,
# and its state is never sent.
#
# With $H = 1$, SGD inside, $\eta = 1$ and $\mu = 0$, this is plain data-parallel training.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
class DiLoCo:
    """The outer optimizer of a model whose trained parameters are equal on all ranks when it is made."""

    def __init__(self, model: nn.Module, lr: float, momentum: float) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.lr, self.momentum = lr, momentum
        self.anchor = [p.detach().clone() for p in self.parameters]
        self.velocity = [torch.zeros_like(p) for p in self.parameters]

    @torch.no_grad()
    def step(self) -> None:
        """After the inner steps, on all ranks: step the anchor, and continue from there."""
        # TODO 7: Take the outer step.
        # The model's parameters must stay the same objects, since the inner optimizer has them.
        # Budget: one all-reduce of the trained parameters.
        ### BEGIN SOLUTION
        means = mean_over_ranks(self.parameters)
        for p, mean, anchor, velocity in zip(
            self.parameters, means, self.anchor, self.velocity, strict=True
        ):
            delta = anchor - mean
            velocity.mul_(self.momentum).add_(delta)
            anchor.sub_(self.lr * (delta + self.momentum * velocity))
            p.copy_(anchor)
        ### END SOLUTION

    def state_dict(self) -> dict[str, list[Tensor]]:
        """What a checkpoint needs besides the weights, to resume at any step.
        Later steps do not change it.
        """
        # TODO 7, again: the outer state. A run may stop between two exchanges.
        ### BEGIN SOLUTION
        return {name: [t.clone() for t in getattr(self, name)] for name in ("anchor", "velocity")}
        ### END SOLUTION

    def load_state_dict(self, saved: dict[str, list[Tensor]]) -> None:
        """Resume; leave ``saved`` as it is, now and in later steps."""
        # TODO 7, again: load it.
        ### BEGIN SOLUTION
        for name in ("anchor", "velocity"):
            setattr(self, name, [t.clone() for t in saved[name]])
        ### END SOLUTION


def bytes_of_diloco(parameters: int, h: int, world: int) -> float:
    """Bytes that each rank sends on average in one of ``h`` inner steps, in float32."""
    # TODO 7, again: predict the bytes. The result need not be a whole number.
    ### BEGIN SOLUTION
    return 2 * (world - 1) / world * 4 * parameters / h
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/7")

# %% [markdown]
# DiLoCo still sends everything at once, every $H$ steps, and everyone waits. Streaming DiLoCo
# ([arXiv:2501.18512](https://arxiv.org/abs/2501.18512)) sends one part of the model after the other while training
# continues, in 4 bits.

# %% [markdown]
# ## Muon: whole matrices
#
# Muon orthogonalizes each matrix's momentum: all singular values become about 1. It needs no SVD for this, but five
# steps of a **Newton–Schulz** iteration, which is made of matrix products only. From $X_0 = G / \lVert G \rVert_F$,
#
# $$A = X X^T, \qquad X \leftarrow a X + (b A + c A^2) X, \qquad (a, b, c) = (3.4445, -4.7750, 2.0315),$$
#
# and a matrix with more rows than columns is transposed before, and back afterwards, so that $A$ is the smaller one.
# The coefficients converge fast and not exactly: singular values end up between about 0.7 and 1.2.
#
# ZeRO's shards do not work here: no part of the result follows from a part of $G$. Moonshot's Muon
# ([arXiv:2502.16982](https://arxiv.org/abs/2502.16982)) and nanochat give each rank **whole matrices** instead. Each
# matrix has one owner, which holds its momentum, computes its update, and sends the new weights to all. A step takes as
# long as the rank with the most work, so matrices must be distributed by their cost, not by their number.


# %%
def cost(shape: tuple[int, int]) -> float:
    """FLOPs of five Newton–Schulz steps: X Xᵀ and (…) X take 2 s² l each, and A² takes 2 s³,
    for sides s ≤ l.
    """
    short, long = sorted(shape)
    return 5 * (4 * short**2 * long + 2 * short**3)


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def newton_schulz(g_MN: Tensor, steps: int = 5) -> Tensor:
    """The matrix with its singular values moved to about 1, in its own dtype. Zeros stay zeros."""
    # TODO 8: Orthogonalize a matrix, and give each matrix an owner. First the iteration.
    # The norm counts as 1e-7 if it is smaller.
    ### BEGIN SOLUTION
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g_MN.shape[0] > g_MN.shape[1]
    x = g_MN.T if tall else g_MN
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
    ### END SOLUTION


def owners(shapes: list[tuple[int, int]], world: int) -> list[int]:
    """The rank that owns each matrix. All ranks call this with the same shapes,
    and must get the same answer.
    """
    # TODO 8, again: distribute the matrices. The largest sum of costs must be at most 1.2 times the mean
    # over the ranks, if the matrices allow that.
    ### BEGIN SOLUTION
    loads, owner = [0.0] * world, [0] * len(shapes)
    # the most expensive first
    for number in sorted(range(len(shapes)), key=lambda number: -cost(shapes[number])):
        owner[number] = loads.index(min(loads))
        loads[owner[number]] += cost(shapes[number])
    return owner
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/8")

# %% [markdown]
# Now the messages of a step. A gradient is needed only by its matrix's owner, averaged over all ranks; new weights come
# only from the owner. `dist.all_to_all_single(output, input, output_sizes, input_sizes)` takes pieces of different
# sizes, one for each rank, all in one vector.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
@torch.no_grad()
def reduce_to_owners(gradients: list[Tensor], owner: list[int]) -> dict[int, Tensor]:
    """The mean over all ranks of each gradient that this rank owns, by its number in the list.
    All are float32.
    """
    # TODO 9: Exchange gradients and weights with the owners. First the gradients.
    # Budget: each rank sends each gradient that it does not own once, to its owner. A rank may own
    # nothing.
    ### BEGIN SOLUTION
    rank, world = dist.get_rank(), dist.get_world_size()
    of_rank = [[number for number, its in enumerate(owner) if its == r] for r in range(world)]
    lengths = [sum(gradients[number].numel() for number in numbers) for numbers in of_rank]
    leaving = torch.cat(
        [gradients[0].new_empty(0), *(gradients[n].reshape(-1) for numbers in of_rank for n in numbers)]
    )
    arrived = leaving.new_empty(world * lengths[rank])
    dist.all_to_all_single(arrived, leaving, [lengths[rank]] * world, lengths)
    mean = arrived.view(world, lengths[rank]).sum(dim=0) / world
    pieces = mean.split([gradients[number].numel() for number in of_rank[rank]])
    return {n: piece.view(gradients[n].shape) for n, piece in zip(of_rank[rank], pieces, strict=True)}
    ### END SOLUTION


@torch.no_grad()
def send_from_owners(matrices: list[Tensor], owner: list[int]) -> None:
    """Overwrite each matrix with its owner's."""
    # TODO 9, again: the weights. Budget: each owner sends each of its matrices to each other rank once.
    ### BEGIN SOLUTION
    rank, world = dist.get_rank(), dist.get_world_size()
    of_rank = [[number for number, its in enumerate(owner) if its == r] for r in range(world)]
    lengths = [sum(matrices[number].numel() for number in numbers) for numbers in of_rank]
    mine = [matrices[number].reshape(-1) for number in of_rank[rank]]
    leaving = torch.cat([matrices[0].new_empty(0), *mine * world])
    arrived = leaving.new_empty(sum(lengths))
    dist.all_to_all_single(arrived, leaving, lengths, [lengths[rank]] * world)
    order = [number for numbers in of_rank for number in numbers]
    for number, piece in zip(order, arrived.split([matrices[n].numel() for n in order]), strict=True):
        matrices[number].copy_(piece.view(matrices[number].shape))
    ### END SOLUTION


class ShardedMuon:
    """`torch.optim.Muon` for gradients that differ from rank to rank; each matrix is stepped by its
    owner.

    Args:
        matrices: with two dimensions each. Everything else, and embeddings and the head, are left to
            AdamW.
    """

    def __init__(
        self, matrices: list[nn.Parameter], lr: float, momentum: float = 0.95, decay: float = 0.1
    ) -> None:
        self.matrices, self.lr, self.momentum, self.decay = matrices, lr, momentum, decay
        self.owner = owners([tuple(p.shape) for p in matrices], dist.get_world_size())
        mine = [n for n, its in enumerate(self.owner) if its == dist.get_rank()]
        self.averages = {n: torch.zeros_like(matrices[n]) for n in mine}  # no other rank has them

    @torch.no_grad()
    def step(self) -> None:
        gradients = reduce_to_owners([p.grad for p in self.matrices], self.owner)
        for number, g in gradients.items():
            p, average = self.matrices[number], self.averages[number]
            # TODO 9, again: step an owned matrix, in place. The running average of gradients takes
            # in 1 - momentum of the new one. Nesterov: orthogonalize the same mixture of the gradient
            # and the new average. Then the weight decays by lr * decay, and moves by lr * sqrt(max(1,
            # rows / columns)) times the result.
            ### BEGIN SOLUTION
            average.lerp_(g, 1 - self.momentum)
            update = newton_schulz(g.lerp(average, self.momentum))
            p.mul_(1 - self.lr * self.decay)
            p.sub_(self.lr * math.sqrt(max(1, p.shape[0] / p.shape[1])) * update)
            ### END SOLUTION
        send_from_owners([p.data for p in self.matrices], self.owner)


def bytes_of_muon(shapes: list[tuple[int, int]], owner: list[int], rank: int, world: int) -> int:
    """Bytes that a rank sends in a step, in float32."""
    # TODO 9, again: predict the bytes.
    ### BEGIN SOLUTION
    total = sum(m * n for m, n in shapes)
    own = sum(m * n for (m, n), its in zip(shapes, owner, strict=True) if its == rank)
    return 4 * (total - own + (world - 1) * own)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/9")

# %% [markdown]
# `torch.optim.Muon` (since torch 2.9) is serial, and accepts only matrices. It computes Newton–Schulz in bfloat16: its
# updates differ from float32's by 1 to 2 %, which does no harm. In torch 2.13 it also accepts DTensors, of
# `fully_shard` for example, without a word. Then each product of each iteration is a distributed one: for a matrix cut
# along the side that $X X^T$ sums over, 11 all-reduces; for one cut along the other side, an all-reduce and 15
# all-gathers, where one gather would do. In the first case sums of parts are rounded to bfloat16, and updates differ
# from the serial ones by 2 to 3 % (measured on 2 to 4 ranks); in the second they are the same.
#
# `train/fsdp_training.py --optimizer muon` gives whole matrices to owners, as you do, and `--dtype bfloat16` computes
# Newton–Schulz in bfloat16, too. From the same gradients a step on any number of ranks is then the serial one to 1e-6 in
# either dtype. But sums over ranks differ in their last bits, and bfloat16 makes more of them: over 50 steps on 2 and 4
# ranks, losses were within 2e-7 of the serial run's in float32 and within 7e-4 in bfloat16 (three seeds). That is no
# more than what the dtype itself changes: 5e-4 to 1e-3 between the two serial runs. The tests tolerate 1e-4 and 3e-3.

# %% [markdown]
# ## Loss over tokens, and over bytes
#
# Train the course's model with all of them, on three ranks, with the same batches. The text is a random chain of 60
# "words". The model is tiny, so this shows how the methods work, not how good they are: that needs larger ones.


# %%
def made_text() -> Tensor:
    """3000 words out of 60, each drawn from the four that may follow the word before."""
    draw = torch.Generator().manual_seed(0)
    followers = torch.randint(60, (60, 4), generator=draw)
    words = [0]
    for choice in torch.randint(4, (2999,), generator=draw).tolist():
        words.append(int(followers[words[-1], choice]))
    return torch.tensor(words)


def batch_of(text: Tensor, step: int) -> tuple[Tensor, Tensor]:
    """The global batch of a step: 12 windows of 16 words, and the words that follow.
    The same on every rank.
    """
    starts = torch.randint(len(text) - 16, (12,), generator=torch.Generator().manual_seed(step))
    windows = torch.stack([text[start : start + 17] for start in starts.tolist()])
    return windows[:, :-1], windows[:, 1:]


def small_model() -> TransformerLM:
    torch.manual_seed(0)
    return TransformerLM(vocab_size=60, dim=32, n_heads=2, n_layers=2, max_len=16)


def hidden_matrices(model: TransformerLM) -> list[nn.Parameter]:
    """What Muon trains. Embeddings, the head and the norms are AdamW's."""
    return [p for p in model.blocks.parameters() if p.dim() == 2]


STEPS, H = 64, 8
METHODS = (
    "float32",
    "8 bits",
    "top 2 %",
    "top 2 %, no memory",
    "PowerSGD, r = 2",
    "DiLoCo, H = 8",
    "Muon",
)


def exchanged(
    method: str,
    model: TransformerLM,
    memory: Feedback,
    draw: torch.Generator,
    parameters: list[nn.Parameter],
) -> None:
    """Replace the gradients of these parameters by their mean over the ranks,
    or by what the method makes of it.
    """
    if method == "float32" or method == "Muon":
        means = mean_over_ranks([p.grad for p in parameters])
    else:
        flat = torch.cat([p.grad.reshape(-1) for p in parameters])
        if method == "8 bits":
            flat = all_reduce_in_8_bits(flat, draw)
        else:
            flat = memory.mean(flat)
            memory.memory *= method == "top 2 %"
        means = flat.split([p.numel() for p in parameters])
    for p, mean in zip(parameters, means, strict=True):
        p.grad.copy_(mean.view(p.shape))


def train(method: str, rank: int, world: int) -> list[float]:
    """This rank's losses, of its share of each batch."""
    text, model, losses = made_text(), small_model(), []
    trained, parameters = model, list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1.0)
    n = sum(p.numel() for p in parameters)
    memory, draw, outer, muon = Feedback(n, n // 50), torch.Generator().manual_seed(rank), None, None
    if method.startswith("PowerSGD"):
        trained = DistributedDataParallel(model)
        trained.register_comm_hook(PowerSGD(model, r=2), power_sgd_hook)
    elif method.startswith("DiLoCo"):
        outer = DiLoCo(model, lr=0.7, momentum=0.6)
    elif method == "Muon":
        muon = ShardedMuon(hidden_matrices(model), lr=0.05)
        parameters = [p for p in parameters if not any(p is matrix for matrix in muon.matrices)]
        optimizer = torch.optim.AdamW(parameters, lr=0.01)
    for step in range(STEPS):
        model.zero_grad()
        x, y = batch_of(text, step)
        loss = trained(x[rank::world], y[rank::world])
        loss.backward()
        if trained is model and not outer:
            exchanged(method, model, memory, draw, parameters)
        optimizer.step()
        if muon:
            muon.step()
        if outer and (step + 1) % H == 0:
            outer.step()
        losses.append(loss.item())
    return losses


# %%
curves, sent, calls = {}, {}, {}
for method in METHODS:
    job = run_on_ranks("13_fewer_bytes/train", [method] * 3)
    mine = [call for call in job.collectives if call.rank == 0]
    curves[method] = [sum(step) / 3 for step in zip(*job.results, strict=True)]
    sent[method], calls[method] = sum(call.sent for call in mine) / STEPS, len(mine) / STEPS
    print(
        f"{method:20} {sent[method]:9,.0f} bytes a step, in {calls[method]:4.1f} collectives;"
        f" last losses {sum(curves[method][-8:]) / 8:.2f}"
    )
plots.losses(curves, sent, tokens=12 * 16)

# %% [markdown]
# Over tokens, 8 bits and top-k with its memory stay with the plain run. Without the memory, top-k lags in the middle (28
# steps until a loss of 2.0 in place of 22), and catches up: unlike the two weights above, this small task can do without
# what is dropped. PowerSGD and DiLoCo need about half as many steps again. Over bytes, the order is a different one.
# (Muon has a different optimizer, not fewer bytes: where an optimizer needs fewer steps, it also sends less. On a model as
# small as this one, it needs more than SGD does.)

# %% [markdown]
# ## When to use which
#
# Fewer bytes are worth nothing if no rank waits for them. DDP hides most of its messages behind the backward pass, and
# compression costs computing time, and often steps. So compare **seconds until the loss is reached**, for the link that
# you have: steps times the seconds of a step, which computes, then waits $\text{latency}$ for each message in turn, and
# $\text{bytes} / \text{bandwidth}$.


# %%
class Run(NamedTuple):
    """What a method needs until a loss is reached."""

    steps: int
    compute: float  # seconds of a step, without messages
    messages: float  # of a step, one after the other
    nbytes: float  # that a rank sends in a step


class Link(NamedTuple):
    latency: float  # seconds of a message
    bandwidth: float  # bytes a second of a rank


# %% nbgrader={"grade": false, "grade_id": "todo_10", "locked": false, "schema_version": 3, "solution": true, "task": false}
def seconds(run: Run, link: Link) -> float:
    """Seconds of the whole run, with no overlap."""
    # TODO 10: Decide which method a link is worth. First the time.
    ### BEGIN SOLUTION
    return run.steps * (run.compute + run.messages * link.latency + run.nbytes / link.bandwidth)
    ### END SOLUTION


def fastest(runs: dict[str, Run], link: Link) -> str:
    """The name of the run that is over first. If several are, the first of them in the dictionary."""
    # TODO 10, again: choose.
    ### BEGIN SOLUTION
    return min(runs, key=lambda name: seconds(runs[name], link))
    ### END SOLUTION


def worth_below(plain: Run, compressed: Run, latency: float) -> float:
    """The bandwidth below which ``compressed`` is over before ``plain``, in bytes per second.

    It is 0.0 if ``compressed`` sends no fewer bytes in all: then it is of no use on a slow link, even if
    it wins on fast ones. It is math.inf if it is over first even when bytes take no time.
    """
    # TODO 10, again: solve for the bandwidth.
    ### BEGIN SOLUTION
    saved = plain.steps * plain.nbytes - compressed.steps * compressed.nbytes
    added = seconds(compressed, Link(latency, math.inf)) - seconds(plain, Link(latency, math.inf))
    if saved <= 0:
        return 0.0
    return math.inf if added <= 0 else saved / added
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_10", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("13_fewer_bytes/10")

# %% [markdown]
# From your own runs: steps until the mean of eight losses is below a target, bytes and messages as counted. A step is
# said to compute for 2 ms, and half a millisecond more where gradients are compressed. The last link joins two
# continents: a message takes 30 ms.

# %%
TARGET = 2.0


def steps_until(losses: list[float], target: float) -> int | None:
    """Steps until the mean of the last eight losses is at most the target; None if it never is."""
    return next((n for n in range(8, len(losses) + 1) if sum(losses[n - 8 : n]) / 8 <= target), None)


found = {method: steps_until(curves[method], TARGET) for method in METHODS}
# seconds more
COMPRESSED = {"8 bits": 5e-4, "top 2 %": 5e-4, "top 2 %, no memory": 5e-4, "PowerSGD, r = 2": 5e-4}
runs = {
    m: Run(steps, 2e-3 + COMPRESSED.get(m, 0), calls[m], sent[m]) for m, steps in found.items() if steps
}
print("not reached:", ", ".join(method for method in METHODS if not found[method]) or "none")
print(f"{'':20} steps     10 Gbit/s      1 Gbit/s    100 Mbit/s  30 ms, 100 Mbit/s")
links = [Link(50e-6, 1e10 / 8), Link(50e-6, 1e9 / 8), Link(50e-6, 1e8 / 8), Link(30e-3, 1e8 / 8)]
for method, one in runs.items():
    print(f"{method:20} {one.steps:5}" + "".join(f"{seconds(one, link):12.3f} s" for link in links))
print(f"{'fastest':26}" + "".join(f"{fastest(runs, link):>14}" for link in links))

# %%
bandwidths = [1e6 * 10 ** (exponent / 4) for exponent in range(14)]
plots.seconds(
    {m: [seconds(run, Link(50e-6, b)) for b in bandwidths] for m, run in runs.items()}, bandwidths
)

# %% [markdown]
# What does that mean for a real model? `./workbook plan` predicts the plain run (`./workbook open plan`
# unseals it). For GPT-2 large on 64 A100s, four in a
# node, data parallel alone:
#
# ```bash
# ./workbook plan --model gpt2-large --gpus 64 --batch 512 --machine jureca --check dp=64
# ```
#
# A step takes 0.50 s, and 0.18 s (35 %) are spent waiting for gradients. With 10 Gbit/s for each node instead (a
# copy of `utils/machines/jureca.toml` with 0.3 GB/s and 50 µs for each GPU, passed as
# `--machine FILE`) it takes 8.1 s, and 96 % is waiting, for which the planner calls the plan impossible:
# there, even a method that needs twice as many steps wins if it sends a tenth of the bytes.
#
# | link of a GPU | then |
# |---|---|
# | NVLink, or a fast InfiniBand | nothing: plain all-reduces, in bfloat16 if you like, hidden behind the backward pass |
# | 10 to 100 Gbit/s between nodes | 8 bits or PowerSGD between nodes; larger batches hide more, too |
# | 1 Gbit/s, or two sites | DiLoCo; its few messages are compressed as well |
# | any, for large matrices | an optimizer that needs fewer steps: Muon (arXiv:2502.16982 measured half of AdamW's FLOPs) |
#
# **Try it.** Where does your table change if a step computes for 50 ms, or if compressing takes no time? And why would
# top-k lose on 64 ranks what it wins on three? First predict, then change the numbers above.

# %% [markdown]
# ## Recap
#
# 1. Block-scaled 8-bit numbers are a quarter of the bytes. Add them up in float32, and round each number as seldom as
#    you can.
# 2. A compressor that forgets can stall. With error feedback, nothing is lost, only late; the memory belongs in the
#    checkpoint.
# 3. PowerSGD is linear, so it needs only all-reduces and equals a serial algorithm; it needs a warm start.
# 4. DiLoCo divides the bytes by $H$. The differences of weights are a gradient, for an outer optimizer with a state of
#    its own.
# 5. Muon needs whole matrices: give each an owner, and balance by cost.
# 6. Count the bytes, but compare seconds until the loss is reached.
#
# *Papers.* Error feedback: [arXiv:1901.09847](https://arxiv.org/abs/1901.09847). PowerSGD:
# [arXiv:1905.13727](https://arxiv.org/abs/1905.13727). DiLoCo: [arXiv:2311.08105](https://arxiv.org/abs/2311.08105);
# streaming: [arXiv:2501.18512](https://arxiv.org/abs/2501.18512). Muon for large models:
# [arXiv:2502.16982](https://arxiv.org/abs/2502.16982). Formats: [OCP Microscaling, version
# 1.0](https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf).

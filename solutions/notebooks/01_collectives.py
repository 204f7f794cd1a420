# %% [markdown]
# # Collectives
#
# A parallel training run is several copies of one program. Each copy is a process with its own
# memory, called a **rank**. Ranks are numbered from 0, and their number is the **world size**.
# Every rank runs the same lines; only its rank number differs, and that number decides which
# part of the data, or of the model, it works on.
#
# No rank can read another rank's tensors. To use what others have computed, ranks communicate,
# and almost all communication in training consists of a few **collectives**: operations
# that every rank calls together, each with its own tensor, and from which each gets a result.
# If one rank does not make the call, the others wait for it forever.
#
# *Builds on*: PyTorch's tensors and functions; why we train on several devices (`00_one_device`). (Short tracks skip
# some TODOs: `./workbook status --track half` lists those that remain.)
#
# Without communication there is no parallel training: four processes would train four models.
#
# ![Four ranks start from equal weights, train on different samples, and have four different models after a step](../images/no_communication.svg)
#
# ![What three ranks hold before and after broadcast, all-reduce, all-gather and reduce-scatter](../images/collectives.svg)

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
import time

import torch
import torch.distributed as dist

from grader import run_on_ranks
from utils.plots import collectives as plots

# %% [markdown]
# ## Three collectives
#
# Let rank $r$ of $N$ hold the vector $x_r$ before the call.
#
# - **All-reduce** combines the vectors element by element and leaves the whole result on every
#   rank. Here it adds; `dist.ReduceOp` also has MIN, MAX and AVG, among others. Data-parallel
#   training all-reduces the gradients, so that all ranks take the same step.
# - **All-gather** joins the vectors in the order of the ranks and leaves the result on every
#   rank. Parameters that are stored in pieces are put together this way just before they are used.
# - **Reduce-scatter** also adds the vectors, but divides the result: the sum is cut into
#   $N$ equal chunks, and rank $r$ keeps only chunk $r$. Each rank ends with the piece of the
#   gradient that it is responsible for, and holds no more than that.
#
# Before a library does this on real ranks, do it yourself on one. Here `inputs` is a list
# with the vector of each rank; return the list of what each rank holds afterwards.


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_reduce(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds after an all-reduce (sum) of the 1-D tensors ``inputs``."""
    # TODO 1: Predict what each rank holds after an all-reduce, an all-gather and a
    # reduce-scatter. Here the all-reduce: each rank holds the sum of all inputs. Ranks
    # have no memory in common, so writing into one result must not change another: `.clone()` copies a
    # tensor. All three functions must leave `inputs` unchanged.
    ### BEGIN SOLUTION
    total = torch.stack(inputs).sum(dim=0)
    return [total.clone() for _ in inputs]
    ### END SOLUTION


def all_gather(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds after an all-gather of the 1-D tensors ``inputs``."""
    # TODO 1, again: the all-gather. Each rank holds one long vector: all inputs, in the order of the
    # ranks.
    ### BEGIN SOLUTION
    return [torch.cat(inputs) for _ in inputs]
    ### END SOLUTION


def reduce_scatter(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each rank holds after a reduce-scatter (sum) of the 1-D tensors ``inputs``.

    Their length is a multiple of the number of ranks.
    """
    # TODO 1, again: the reduce-scatter. Each rank holds its own chunk of the sum and nothing else.
    ### BEGIN SOLUTION
    total = torch.stack(inputs).sum(dim=0)
    return [chunk.clone() for chunk in total.chunk(len(inputs))]
    ### END SOLUTION


# %% [markdown]
# Try it on three ranks. Work out by hand what the nine lines should be, then run the cell.

# %%
inputs = [torch.tensor([0.0, 1.0, 2.0]) + 10 * rank for rank in range(3)]
for collective in (all_reduce, all_gather, reduce_scatter):
    print(collective.__name__)
    for rank, held in enumerate(collective(inputs)):
        print(f"  rank {rank}: {inputs[rank].tolist()} -> {held.tolist()}")

# %% [markdown]
# The next cell compares your three functions with what real ranks hold after the real
# collectives. It tells you what differs. Run it as often as you like.

# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/1")

# %% [markdown]
# ## Where a rank is
#
# A machine has **nodes**, and each node runs several ranks, one per GPU. Ranks are
# numbered consecutively: node 0 has the first ones, node 1 the next. A rank's number within its
# node is its **local rank**; it says which GPU the rank uses.
#
# ![Eight ranks on two nodes, world size 8, and the ring through all of them: two of its links lead from node to node](../images/ranks.svg)
#
# This matters because two ranks on one node communicate about ten times faster than two ranks on
# different nodes. Later in this lesson each rank $r$ sends to rank $r+1$, and the last one to rank 0:
# a ring. **Predict** how many links of the ring lead from one node to another. (Here and
# below, a prediction is a formula that you write down before you run anything.)


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def node_and_local_rank(rank: int, ranks_a_node: int) -> tuple[int, int]:
    """The node of a rank, and its number within that node. All count from 0."""
    # TODO 2: Say where a rank is, and which rank is there. First, from the rank to its node and local
    # rank.
    ### BEGIN SOLUTION
    return divmod(rank, ranks_a_node)
    ### END SOLUTION


def rank_at(node: int, local_rank: int, ranks_a_node: int) -> int:
    """The rank with this node and local rank."""
    # TODO 2, again: the other way round.
    ### BEGIN SOLUTION
    return node * ranks_a_node + local_rank
    ### END SOLUTION


def links_between_nodes(nodes: int, ranks_a_node: int) -> int:
    """How many links of the ring 0 → 1 → … → last → 0 lead from one node to another."""
    # TODO 2, again: your prediction, as a formula. It must also hold for a single node.
    ### BEGIN SOLUTION
    return nodes if nodes > 1 else 0
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/2")

# %% [markdown]
# ## Messages
#
# A collective is made of **messages**: one rank sends a tensor, and another receives it into
# a tensor of the same size and dtype that it has allocated (`torch.empty_like`). There are two kinds of calls.
#
# | call | returns |
# |---|---|
# | `dist.send(tensor, to)`, `dist.recv(tensor, source)` | when the message is complete (gloo); when it is queued on a CUDA stream (NCCL) |
# | `dist.isend(tensor, to)`, `dist.irecv(tensor, source)` | at once, with a *work*; after `work.wait()` the tensor may be used (on NCCL the GPU waits, not the CPU) |
#
# Until a message is complete, its tensor belongs to the message: do not write into what you
# send, and do not read what you receive. The judge delays every message as long as it is allowed to.
#
# Do not rely on luck. If all ranks `send` and then `recv`, each waits for another to receive,
# forever. Some libraries buffer small messages, so this works until the messages grow; gloo
# does not buffer. On NCCL even `isend` followed by `irecv` can hang, because both are queued on one
# stream, in order. There, start them together:
# `dist.batch_isend_irecv([dist.P2POp(dist.isend, leaving, right), dist.P2POp(dist.irecv, arriving, left)])`
# returns the works. It is correct with both libraries, and accepted here.
#
# (**gloo** and **NCCL** are the libraries that do the communication: gloo on CPUs, NCCL on NVIDIA's GPUs. A CUDA
# *stream* is a queue of work for a GPU: calls put work into it and return, and the GPU does the work in order.)
#
# Here two ranks swap their tensors. `run_on_ranks` runs a function of this notebook in
# new processes, one for each input, as `function(input, rank, world)`.


# %%
def swap(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """What the other of two ranks holds."""
    other = 1 - rank
    arriving = torch.empty_like(tensor)
    works = [dist.isend(tensor, other), dist.irecv(arriving, other)]
    for work in works:
        work.wait()
    return arriving


# %%
run = run_on_ranks("01_collectives/swap", [torch.zeros(3), torch.ones(3)])
print(run.results)
plots.messages(run.messages, "swap")

# %% [markdown]
# On the left: how many bytes each rank sent to each other rank. In the middle: the messages in
# **rounds**, where each message takes one unit of time and a rank sends only one at a time. On the
# right: the same messages in measured time. It varies, because the processes compete for few
# processors, and because the first message between two ranks also has to connect them.

# %% [markdown]
# ## Broadcast, by a tree
#
# Rank 0 has a tensor that all ranks need, such as the first weights. If it sends it to every other
# rank itself, that takes $N-1$ rounds. But every rank that has the tensor can pass it on, so in
# each round the number of ranks that have it doubles.
#
# ![Eight ranks in three rounds: 0 sends to 1; 0 and 1 to 2 and 3; these four to the other four](../images/tree.svg)
#
# **Predict** the number of rounds for $N$ ranks, also if $N$ is not a power of two.


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tree_rounds(world: int) -> int:
    """The number of rounds in which a tree brings the tensor of rank 0 to all ranks."""
    # TODO 3: Broadcast with a tree. First your prediction: how many rounds does it need?
    ### BEGIN SOLUTION
    return math.ceil(math.log2(world))
    ### END SOLUTION


def tree_broadcast(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """The ``tensor`` of rank 0, on every rank.

    On the other ranks ``tensor`` has the same length, and its content is meaningless: overwrite it.
    """
    # TODO 3, again: the broadcast. No more rounds than predicted, and N - 1 messages in all:
    # each rank except rank 0 receives one. In which round does a rank receive, and from which rank?
    # To which ranks does it send in the rounds after that?
    ### BEGIN SOLUTION
    have = 1  # the number of ranks that have it
    while have < world:
        if rank < have and rank + have < world:
            dist.send(tensor, rank + have)
        elif have <= rank < 2 * have:
            dist.recv(tensor, rank - have)
        have *= 2
    return tensor
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/3")

# %%
run = run_on_ranks(
    "01_collectives/tree_broadcast", [torch.full([1000], float(rank)) for rank in range(8)]
)
plots.messages(run.messages, "tree_broadcast")

# %% [markdown]
# ## Reduce-scatter, by a ring
#
# In a tree whole tensors travel, and at any time most ranks do nothing. For large
# tensors a **ring** is better: all ranks send all the time, each to its right neighbour
# $r+1$ (the last one to rank 0), and each message is only one of $N$ pieces.
#
# `tensor.tensor_split(N)` cuts a vector into $N$ pieces, even if $N$ does not divide its
# length: then some are longer by one, and some may be empty. The pieces are views: writing
# into a piece writes into the vector.
#
# ![Three ranks, two rounds: a piece of the sum grows from rank to rank](../images/ring_reduce_scatter.svg)
#
# The sum of piece $p$ travels to the right. Each rank that it reaches adds its own piece $p$;
# the last to do so is rank $p$, which keeps the sum. **Predict** at which rank it
# starts. Then ask the reverse: which piece does rank $r$ send first?


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def first_piece(rank: int, world: int) -> int:
    """The number of the piece that a rank sends in the first round of the reduce-scatter."""
    # TODO 4: Reduce-scatter with a ring. First your prediction: which piece is sent first?
    ### BEGIN SOLUTION
    return (rank - 1) % world
    ### END SOLUTION


def ring_reduce_scatter(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """Piece ``rank`` of the sum of all ranks' tensors. You may write into ``tensor``."""
    # TODO 4, again: the reduce-scatter. In each of N - 1 rounds (none if N is 1), every rank sends one
    # piece to its right neighbour and receives one from its left neighbour at the same time. No message
    # is longer than a piece, and all messages are complete before you return.
    ### BEGIN SOLUTION
    pieces = tensor.tensor_split(world)
    right, left = (rank + 1) % world, (rank - 1) % world
    for step in range(world - 1):
        leaving, growing = pieces[(rank - 1 - step) % world], pieces[(rank - 2 - step) % world]
        arriving = torch.empty_like(growing)
        works = [dist.isend(leaving, right), dist.irecv(arriving, left)]
        for work in works:
            work.wait()
        growing += arriving
    return pieces[rank]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/4")

# %%
run = run_on_ranks("01_collectives/ring_reduce_scatter", [torch.ones(1000) for rank in range(4)])
plots.messages(run.messages, "ring_reduce_scatter")

# %% [markdown]
# ## All-gather, by a ring
#
# Now each rank has one piece, and all ranks need all pieces. The ring does the same again, without
# adding: what a rank receives in one round, it sends on in the next.
#
# ![Three ranks, two rounds: each passes on what it has received, until all have all pieces](../images/ring_all_gather.svg)
#
# **Predict** which piece arrives at rank $r$ in round $s$, if all ranks send to the right. The
# first round is $s = 0$.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def arriving_piece(rank: int, step: int, world: int) -> int:
    """The number of the piece that arrives at a rank in this round of the all-gather.
    Rounds count from 0.
    """
    # TODO 5: All-gather with a ring. First your prediction: which piece arrives when?
    ### BEGIN SOLUTION
    return (rank - 1 - step) % world
    ### END SOLUTION


def ring_all_gather(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """A vector that joins piece 0 of rank 0, piece 1 of rank 1, and so on: on every rank.

    ``tensor`` is as long as the result. Only its piece ``rank`` has a meaning; overwrite the others.
    """
    # TODO 5, again: the all-gather, with the same budget as the reduce-scatter: N - 1 rounds; in each of
    # them every rank sends one piece to its right neighbour and receives one from its left neighbour.
    ### BEGIN SOLUTION
    pieces = tensor.tensor_split(world)
    right, left = (rank + 1) % world, (rank - 1) % world
    for step in range(world - 1):
        leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]
        works = [dist.isend(leaving, right), dist.irecv(arriving, left)]
        for work in works:
            work.wait()
    return tensor
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/5")

# %%
run = run_on_ranks("01_collectives/ring_all_gather", [torch.ones(1000) for rank in range(4)])
plots.messages(run.messages, "ring_all_gather")

# %% [markdown]
# ## All-reduce, from the two
#
# A reduce-scatter leaves each rank with one finished piece of the sum; an all-gather gives
# every rank all pieces. One after the other, they are an all-reduce: the **ring all-reduce**,
# which is how gradients are added up in practice.
#
# ![First the sums grow from rank to rank, then the finished pieces are passed on](../images/ring_all_reduce.svg)
#
# **Predict** how many bytes each rank sends in total, for a tensor of $S$ bytes on $N$ ranks.
# What happens to that number as $N$ grows?


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_reduce_bytes(nbytes: int, world: int) -> float:
    """How many bytes each rank sends in a ring all-reduce of ``nbytes`` bytes,
    a multiple of ``world``.
    """
    # TODO 6: All-reduce with a ring. First your prediction: how many bytes does a rank send?
    ### BEGIN SOLUTION
    return 2 * (world - 1) * nbytes / world
    ### END SOLUTION


def ring_all_reduce(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """The sum of all ranks' tensors, on every rank. You may write into ``tensor``."""
    # TODO 6, again: the all-reduce, from your two functions. Together they take 2 (N - 1) rounds.
    # Which piece must be where before the second one starts?
    ### BEGIN SOLUTION
    piece = ring_reduce_scatter(tensor, rank, world)
    tensor.tensor_split(world)[rank].copy_(piece)
    return ring_all_gather(tensor, rank, world)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/6")

# %%
run = run_on_ranks("01_collectives/ring_all_reduce", [torch.ones(1000) for rank in range(4)])
sent = sum(message.bytes for message in run.messages if message.source == 0)
print(f"rank 0 sent {sent} bytes; the prediction was {all_reduce_bytes(4000, 4):.0f}")
plots.messages(run.messages, "ring_all_reduce")

# %% [markdown]
# ## All-to-all
#
# Each rank has a piece for every rank, and gets one from every rank. If the pieces are a table
# with a row for each rank, the table is transposed. A mixture of experts does this to
# bring each token to the rank that has its expert.
#
# ![Before, rank r holds row r of a table; after, column r](../images/all_to_all.svg)
#
# Here no rank passes anything on, so many pairs of ranks communicate, and they must not wait
# for each other in a circle. **Predict** how many bytes a rank sends.


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def all_to_all_bytes(nbytes: int, world: int) -> float:
    """How many bytes each rank sends if it holds ``nbytes`` bytes, a multiple of ``world``."""
    # TODO 7: Exchange pieces between all ranks. First your prediction: how many bytes does a rank send?
    ### BEGIN SOLUTION
    return (world - 1) * nbytes / world
    ### END SOLUTION


def all_to_all(tensor: torch.Tensor, rank: int, world: int) -> torch.Tensor:
    """Piece ``rank`` of every rank's tensor, joined in the order of the ranks.

    All tensors have the same length. You may write into ``tensor``.
    """
    # TODO 7, again: the exchange. Piece j of `tensor.tensor_split(N)` goes directly to rank j, in a
    # separate message: N - 1 messages from each rank, in N - 1 rounds. Your own piece needs no message.
    ### BEGIN SOLUTION
    pieces = tensor.tensor_split(world)
    held = [torch.empty_like(pieces[rank]) for _ in range(world)]
    held[rank].copy_(pieces[rank])
    works = []
    for step in range(1, world):
        to, source = (rank + step) % world, (rank - step) % world
        works += [dist.isend(pieces[to], to), dist.irecv(held[source], source)]
    for work in works:
        work.wait()
    return torch.cat(held)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/7")

# %%
run = run_on_ranks("01_collectives/all_to_all", [torch.ones(1000) for rank in range(4)])
plots.messages(run.messages, "all_to_all")

# %% [markdown]
# ## What it costs
#
# A message takes $\alpha + \beta n$ seconds: the **latency** $\alpha$, whatever its size, plus
# $\beta$ for each of its $n$ bytes. So an algorithm costs
#
# $$\text{rounds} \cdot \alpha + \text{bytes} \cdot \beta$$
#
# where "bytes" adds up the size of one message from each round. Compare two ways to
# all-reduce $S$ bytes on $N$ ranks. The **ring** is the one that you built. The **tree** uses your
# broadcast's tree twice: backwards, adding up towards rank 0, and then forwards, to broadcast the
# sum. All of its messages are whole tensors.
#
# ![On four ranks, a ring makes six short rounds and a tree four long ones: for a small and for a large tensor](../images/cost.svg)
#
# The tree suits small tensors, the ring large ones. **Predict** the size at which both
# take the same time.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def ring_cost(nbytes: float, world: int) -> tuple[int, float]:
    """Rounds of a ring all-reduce of ``nbytes`` (a multiple of ``world``), and bytes,
    one message per round.
    """
    # TODO 8: Count what a ring and a tree cost. First the ring.
    ### BEGIN SOLUTION
    rounds = 2 * (world - 1)
    return rounds, rounds * nbytes / world
    ### END SOLUTION


def tree_cost(nbytes: float, world: int) -> tuple[int, float]:
    """The same for an all-reduce with a tree: to rank 0, and back to all ranks."""
    # TODO 8, again: the tree.
    ### BEGIN SOLUTION
    rounds = 2 * math.ceil(math.log2(world))
    return rounds, rounds * nbytes
    ### END SOLUTION


def equal_size(world: int, alpha: float, beta: float) -> float:
    """The number of bytes for which ring and tree take the same time, on 4 ranks or more."""
    # TODO 8, again: your prediction. Below this size one of them is faster, above it the other.
    ### BEGIN SOLUTION
    ring_rounds, ring_bytes = ring_cost(1, world)
    tree_rounds, tree_bytes = tree_cost(1, world)
    return alpha * (ring_rounds - tree_rounds) / (beta * (tree_bytes - ring_bytes))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/8")

# %% [markdown]
# Two kinds of links: on 64 ranks, with typical $\alpha$ and $\beta$ between GPUs of one node
# (3 µs, 200 GB/s) and between nodes (5 µs, 25 GB/s).

# %%
links = {"within a node": (3e-6, 1 / 200e9), "between nodes": (5e-6, 1 / 25e9)}
plots.ring_and_tree(links, 64, ring_cost, tree_cost, equal_size)

# %% [markdown]
# ## Measure it
#
# What are $\alpha$ and $\beta$ on this machine? Two ranks send a tensor back and forth; half of the
# time is one message. Of ten tries the fastest counts, because every disturbance makes a message
# slower and none makes it faster.


# %%
def time_messages(sizes: list[int], rank: int, world: int) -> list[float]:
    """Seconds that a message takes from rank 0 to rank 1, for each size in bytes."""
    seconds = []
    for size in sizes:
        tensor, tries = torch.zeros(size, dtype=torch.uint8), []
        for _ in range(10):
            dist.barrier()  # both start together
            began = time.perf_counter()
            for sender in (0, 1):
                if rank == sender:
                    dist.send(tensor, 1 - rank)
                else:
                    dist.recv(tensor, sender)
            tries.append((time.perf_counter() - began) / 2)
        seconds.append(min(tries))
    return seconds


def time_all_reduce(sizes: list[int], rank: int, world: int) -> list[float]:
    """Seconds that your ring all-reduce takes, for each size in bytes."""
    seconds = []
    for size in sizes:
        tries = []
        for _ in range(10):
            tensor = torch.zeros(size // 4)
            dist.barrier()
            began = time.perf_counter()
            ring_all_reduce(tensor, rank, world)
            tries.append(time.perf_counter() - began)
        seconds.append(min(tries))
    return seconds


# %% [markdown]
# The measured times do not lie exactly on a line. The **least squares** fit is the line
# $\alpha + \beta n$ with the smallest sum of squared differences to the measured times.
# It uses all points, not just two of them, and its $\alpha$ can be negative.


# %% nbgrader={"grade": false, "grade_id": "todo_9", "locked": false, "schema_version": 3, "solution": true, "task": false}
def fit(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """alpha (seconds) and beta (seconds per byte): the least-squares fit to these messages."""
    # TODO 9: Fit alpha and beta to measured times, and predict a time. First the fit. Sizes go up
    # to millions, while seconds are small: compute in float64.
    ### BEGIN SOLUTION
    x, y = (torch.tensor(values, dtype=torch.float64) for values in (sizes, seconds))
    beta = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()
    alpha = y.mean() - beta * x.mean()
    return alpha.item(), beta.item()
    ### END SOLUTION


def predicted_seconds(cost: tuple[int, float], alpha: float, beta: float) -> float:
    """How long an algorithm with this cost (rounds, bytes) takes."""
    # TODO 9, again: the time, from the cost.
    ### BEGIN SOLUTION
    rounds, nbytes = cost
    return rounds * alpha + nbytes * beta
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_9", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("01_collectives/9")

# %% [markdown]
# Now everything together: measure single messages, fit them, predict your ring all-reduce on two ranks, and measure
# that, too. Before you run the cell: where will the prediction be too small? What else does an all-reduce do, apart
# from sending?

# %%
sizes = [0, *(2**k for k in range(10, 23))]
message_seconds = run_on_ranks("01_collectives/time_messages", [sizes] * 2, timed=True).results[0]
ring_seconds = run_on_ranks("01_collectives/time_all_reduce", [sizes] * 2, timed=True).results[0]
alpha, beta = fit(sizes, message_seconds)
print(
    f"alpha = {1e6 * alpha:.0f} µs, beta = {1e9 * beta:.2f} ns per byte, which is {1e-9 / beta:.1f} GB/s"
)
plots.cost(
    sizes,
    {
        "one message": (message_seconds, [alpha + beta * size for size in sizes]),
        "ring all-reduce, 2 ranks": (
            ring_seconds,
            [predicted_seconds(ring_cost(size, 2), alpha, beta) for size in sizes],
        ),
    },
)

# %% [markdown]
# The prediction counts messages only. An all-reduce also adds, allocates memory, and waits for the
# slower rank; where processes compete for processors, it waits longer. The model is useful for
# comparisons: which algorithm is faster, and how the time changes with twice the ranks or twice the size.

# %% [markdown]
# ## Libraries
#
# From now on call `dist.all_reduce` and its relatives. gloo's all-reduce is the ring that you wrote. NCCL
# chooses by size among several rings, a pipelined double binary tree (unlike the tree above, it has
# almost a ring's bandwidth), and algorithms in which the switches add up (NVLS, CollNet): see
# [docs/nccl.md](../docs/nccl.md). On GPUs, call `torch.cuda.synchronize()` before you read a clock,
# because the calls only queue work.

# %% [markdown]
# ## Recap
#
# 1. Every rank runs the same program; its rank number decides what it works on.
# 2. All ranks of a collective must call it; if one does not, the others wait forever.
# 3. An all-reduce is a reduce-scatter followed by an all-gather. Each rank of a ring sends
#    $2(N-1)/N$ times its tensor, so hardly more on a thousand ranks than on four.
# 4. A message costs $\alpha + \beta n$: trees have few rounds, for small tensors; rings keep all links busy, for
#    large ones.
# 5. Start all messages before you wait for any, and do not touch their tensors until they are complete.
#
# *Papers.* Ring all-reduce: Patarasuk and Yuan, 2009
# ([doi:10.1016/j.jpdc.2008.09.002](https://doi.org/10.1016/j.jpdc.2008.09.002)). Trees, rings and their costs in MPI:
# Thakur, Rabenseifner and Gropp, 2005 ([doi:10.1177/1094342005051521](https://doi.org/10.1177/1094342005051521)).
# NCCL's double tree: Sanders, Speck and Träff, 2009
# ([doi:10.1016/j.parco.2009.09.001](https://doi.org/10.1016/j.parco.2009.09.001)).
#
# Next: lesson 02, `02_data_parallel`, where all ranks average the gradients of a model with these calls. Lesson 03
# takes the two halves of an all-reduce apart, and keeps only a piece of gradients and weights in between, without
# sending more.

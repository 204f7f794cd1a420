"""What `13_fewer_bytes` teaches about Muon, for `fsdp_training.py --optimizer muon`: an owner for each hidden matrix.

Unlike in the lesson, where each rank has whole matrices, the weights are sharded by FSDP, their gradients are averaged
already, and the momentum is sharded like the weights: any number of ranks can load it.
"""

import math
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

TAUGHT_IN = "13_fewer_bytes"  # no rank of that lesson, or of an earlier one, can import this
TAUGHT_BY = "8 9"


def cost(shape: tuple[int, int]) -> float:
    """FLOPs of five Newton–Schulz steps: X Xᵀ and (…) X take 2 s² l each, and A² takes 2 s³, for sides s ≤ l."""
    short, long = sorted(shape)
    return 5 * (4 * short**2 * long + 2 * short**3)


def newton_schulz(g_MN: Tensor, steps: int = 5) -> Tensor:
    """The matrix with its singular values moved to about 1, in its own dtype. Zeros stay zeros."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g_MN.shape[0] > g_MN.shape[1]
    x = g_MN.T if tall else g_MN
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def owners(shapes: list[tuple[int, int]], world: int) -> list[int]:
    """The rank that owns each matrix: the most expensive first, each to the rank with the least work so far."""
    loads, owner = [0.0] * world, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda number: -cost(shapes[number])):
        owner[number] = loads.index(min(loads))
        loads[owner[number]] += cost(shapes[number])
    return owner


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a tensor, which is all of it unless FSDP has sharded it."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def parts_of(p: Tensor) -> list[tuple[int, slice]]:
    """Where the matrix is: for each rank which copy of the model it holds a part of, and which rows. FSDP cuts rows as
    torch.chunk does, so the last parts may be smaller, or empty.
    """
    world = dist.get_world_size()
    if not isinstance(p, DTensor):
        return [(rank, slice(0, len(p))) for rank in range(world)]
    ranks = p.device_mesh.mesh.view(-1, p.device_mesh.mesh.shape[-1])  # a row for each copy
    rows = -(-len(p) // ranks.shape[1])
    found: list[tuple[int, slice]] = [(0, slice(0))] * world
    for copy, row in enumerate(ranks.tolist()):
        for number, rank in enumerate(row):
            found[rank] = copy, slice(min(number * rows, len(p)), min((number + 1) * rows, len(p)))
    return found


def exchange(pieces: Callable[[int, int], list[Tensor]], sizes: Callable[[int, int], list[int]], like: Tensor) -> list:
    """One all-to-all of the vectors pieces(sender, receiver), whose lengths are sizes(sender, receiver), in the dtype
    and on the device of `like`. Returns for each sender the list of what this rank gets from it.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    leaving = torch.cat([like.new_empty(0), *(piece for to in range(world) for piece in pieces(rank, to))])
    out = [sum(sizes(rank, to)) for to in range(world)]
    into = [sum(sizes(sender, rank)) for sender in range(world)]
    arrived = leaving.new_empty(sum(into))
    dist.all_to_all_single(arrived, leaving, into, out)
    return [part.split(sizes(sender, rank)) for sender, part in enumerate(arrived.split(into))]


class Muon(torch.optim.AdamW):
    """Muon (arXiv:2502.16982, algorithm 1) for matrices inside the blocks, AdamW for all else.

    A step gathers each matrix's momentum on its owner, which is any rank of the run; the owner orthogonalizes it and
    sends each rank its rows of the update. Updates are as large as AdamW's (equation 4), so that one learning rate and
    one weight decay serve both.

    Args:
        matrices: parameters with two dimensions each, sharded by `fully_shard` over all ranks, or whole on every rank
            with the same gradients.
        others: all other parameters.
        dtype: of Newton–Schulz, and so of the messages: rounding before sending changes nothing.
    """

    def __init__(
        self,
        matrices: list[nn.Parameter],
        others: list[nn.Parameter],
        lr: float,
        weight_decay: float,
        momentum: float = 0.95,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        groups = [{"params": matrices, "momentum": momentum}, {"params": others}]
        super().__init__(groups, lr=lr, weight_decay=weight_decay)
        self.dtype = dtype

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        group = self.param_groups[0]
        matrices = [p for p in group["params"] if p.grad is not None]
        gradients = [p.grad for p in matrices]
        for p in matrices:
            p.grad = None  # AdamW leaves alone what has no gradient
        super().step()
        for p, g in zip(matrices, gradients, strict=True):
            p.grad = g
        if matrices:
            self.step_matrices(matrices, group["lr"], group["weight_decay"], group["momentum"])

    def step_matrices(self, matrices: list[nn.Parameter], lr: float, weight_decay: float, momentum: float) -> None:
        mixtures = []
        for p in matrices:
            if "momentum_buffer" not in self.state[p]:
                # AdamW, which loads a checkpoint, looks for a step in every state.
                self.state[p] = {"momentum_buffer": torch.zeros_like(p), "step": torch.tensor(0.0)}
            average = self.state[p]["momentum_buffer"]
            average.lerp_(p.grad, 1 - momentum)
            mixtures.append(local(p.grad.lerp(average, momentum)).to(self.dtype))  # Nesterov's
        for p, update in zip(matrices, orthogonalized(mixtures, matrices), strict=True):
            rate = 0.2 * math.sqrt(max(p.shape))
            mine = local(p)
            mine.mul_(1 - lr * weight_decay)
            mine.sub_(lr * rate * update.to(mine.dtype))


def orthogonalized(mine: list[Tensor], matrices: list[nn.Parameter]) -> list[Tensor]:
    """This rank's rows of `newton_schulz` of each matrix, from its rows of each."""
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = [parts_of(p) for p in matrices]
    owner = owners([tuple(p.shape) for p in matrices], world)
    of_rank = [[number for number, its in enumerate(owner) if its == r] for r in range(world)]

    def numel(number: int, r: int) -> int:
        rows = parts[number][r][1]
        return (rows.stop - rows.start) * matrices[number].shape[1]

    def gathered(sender: int, to: int) -> list[int]:
        """Of the matrices of rank `to`: those of which both hold a part of the same copy."""
        return [number for number in of_rank[to] if parts[number][sender][0] == parts[number][to][0]]

    came = exchange(
        lambda sender, to: [mine[number].reshape(-1) for number in gathered(sender, to)],
        lambda sender, to: [numel(number, sender) for number in gathered(sender, to)],
        mine[0],
    )
    whole = {number: matrices[number].shape for number in of_rank[rank]}
    updates = {}
    for number, shape in whole.items():
        rows = [came[sender][gathered(sender, rank).index(number)] for sender in copy_of(parts[number], rank)]
        updates[number] = newton_schulz(torch.cat(rows).view(shape))
    back = exchange(
        lambda sender, to: [updates[number][parts[number][to][1]].reshape(-1) for number in of_rank[sender]],
        lambda sender, to: [numel(number, to) for number in of_rank[sender]],
        mine[0],
    )
    return [back[its][of_rank[its].index(n)].view(mine[n].shape) for n, its in enumerate(owner)]


def copy_of(parts: list[tuple[int, slice]], rank: int) -> list[int]:
    """The ranks that hold a part of the same copy as `rank`, in the order of their rows."""
    return sorted((r for r in range(len(parts)) if parts[r][0] == parts[rank][0]), key=lambda r: parts[r][1].start)

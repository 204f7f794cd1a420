r"""Train a mixture of experts: more weights than a token uses, spread over ranks (expert parallel, EP).

One on each:       torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/expert_training.py --ep 4
Two on each:       torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/expert_training.py --ep 2
With a capacity:   torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/expert_training.py --ep 2 --capacity 1.25
Stop and resume:   torchrun --local-addr 127.0.0.1 --nproc-per-node 4 train/expert_training.py --ep 4 --save-every 50
                   python train/expert_training.py --resume runs/expert_training/step-100
One process:       python train/expert_training.py
More nodes:        sbatch sbatch/expert_training.sbatch              (JURECA)
                   qsub sbatch/expert_training.pbs                   (Polaris)

It builds on 07_expert_parallel (rows travel to their experts and back; what you built there is now in
utils/after_07_expert_parallel.py) and on fsdp_training: it starts as that script's solution
(utils/after_fsdp_training.py), except that each rank's first expert computes all of its tokens. It runs at every stage.
Fill the TODOs in the order of their numbers, which is not always the order of the lines; `./workbook check
expert_training` says how far you have got.

The MLP of each block is now E experts, each an MLP of the same size, and a router that chooses K of them for each token.
Every rank has samples of its own, as in fsdp_training. A *row* of ranks has all experts together, each rank E / ep of
them; tokens travel within a row. A *column* is the ranks with the same experts, which share them as FSDP shares weights:
each holds a part. All other weights are shared by all ranks. So there are two meshes over the same ranks, and every
gradient, every norm and every checkpoint is over both. (A *mesh* is a grid of ranks with named axes.)

Letters in names are shapes: N tokens of this rank, D width, E experts, K experts for each token, R rows of numbers (one
for each expert that a token is sent to), L layers.

What it buys. When all TODOs are right, run this with --experts 1 and 8 on one rank, and with 8 on 4 ranks and --ep 1 and 4,
each with its own --out, and fill the table from the reports:

    ./workbook run expert_training --nproc 4 -- --ep 4 --experts 8 --top-k 1 --max-steps 20 --record

    ranks   --experts   --ep   parameters, and of a token   test loss   one step   communication
    1       1           1
    1       8           1
    4       8           1
    4       8           4

Which weights does --ep 1 send in each step that --ep 4 does not, and what does --ep 4 send instead?

In the libraries: torchtitan shards experts over an axis `efsdp`, next to `fsdp`, and divides gradients with
set_gradient_divide_factor; Megatron-LM has --expert-model-parallel-size, --moe-router-dtype fp32,
--moe-router-enable-expert-bias and --moe-expert-capacity-factor.

Papers: Switch, arXiv:2101.03961; Mixtral, arXiv:2401.04088; the bias, DeepSeek-V3, arXiv:2412.19437, section 2.1.2;
dropless, MegaBlocks, arXiv:2211.15841.
"""

import argparse
import math
import sys
import time
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.after_07_expert_parallel import balancing_loss, combine, dispatch
from utils.after_ddp_training import global_mean, setup
from utils.after_fsdp_training import in_step, load_sharded, precision, recompute, save_sharded, send_first_weights
from utils.after_resilient_training import find_epoch
from utils.arguments import given, real, training_parser, whole
from utils.checkpoints import saved_whole, to_resume
from utils.data import IGNORE, ShardSampler
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import check_averages, cleanup, fail, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.llama import SwiGLU
from utils.metrics import Metrics
from utils.model import MLP, TransformerLM
from utils.training import Loaders, Samplers, Sets, check_position, make_optimizer, make_sets, perplexity

# What must match to resume: the order of the samples and the loss depend on it, or the optimizer keeps it.
SAME = ("batch_size", "seq_len", "top_k", "capacity", "balance", "bias_rate", "seed", "lr", "weight_decay")


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("expert_training")
    add = parser.add_argument
    add("--experts", type=whole(1), default=4, help="experts in each block, each an MLP of the plain model's size")
    add("--top-k", type=whole(1), default=2, help="experts that compute a token")
    add("--ep", type=whole(1), default=1, help="ranks among which the experts are divided; must divide --experts")
    add("--capacity", type=real(0.0), default=0.0, help="rows that an expert may get, in even shares; 0: no limit (dropless)")
    add("--balance", type=real(0.0), default=0.01, help="weight of the loss that balances the experts' load")
    add("--bias-rate", type=real(0.0), default=0.001, help="how far a step moves a bias to balance the load")
    add("--recompute", action="store_true", help="recompute activations in the backward pass (checkpointing)")
    add("--save-every", type=whole(0), default=0, help="steps between sharded checkpoints; 0: none")
    add(
        "--resume",
        type=given,
        metavar="FOLDER",
        help="resume from a sharded checkpoint, or from a run's newest one, with any --ep; dropout will draw other"
        " numbers",
    )
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    if args.top_k > args.experts:
        parser.error(f"--top-k {args.top_k} is more than --experts {args.experts}")
    if args.experts % args.ep:
        parser.error(f"--experts {args.experts} is not divisible by --ep {args.ep}")
    return args


def make_mesh(device: torch.device, world_size: int, args: argparse.Namespace) -> DeviceMesh:
    """The ranks in a grid. A row has all experts; the ranks of a column have the same ones."""
    if world_size % args.ep:
        fail(f"--ep {args.ep}: {world_size} ranks are not a multiple of it; start more, or choose a different --ep")
    # TODO 1: Lay out the ranks: which of them have all experts together, and which have the same ones?
    # The axes are called data and expert, and the expert axis has args.ep ranks. Ranks with consecutive numbers are on
    # one node, and init_device_mesh numbers the ranks row by row. Along the expert axis every token travels to its
    # experts and back, in every layer; along the data axis gradients are added up, once a step.
    ### BEGIN SOLUTION
    return init_device_mesh(device.type, (world_size // args.ep, args.ep), mesh_dim_names=("data", "expert"))
    ### STUDENT
    # return init_device_mesh(device.type, (world_size, 1), mesh_dim_names=("data", "expert"))
    ### END SOLUTION


def make_samplers(sets: Sets, args: argparse.Namespace) -> Samplers:
    """Which samples this rank reads, in which order: its own, whatever --ep is."""
    train, validation, test = sets
    return (
        DistributedSampler(train, shuffle=True, seed=args.seed, drop_last=True),
        ShardSampler(validation),
        ShardSampler(test),
    )


def make_loaders(sets: Sets, samplers: Samplers, args: argparse.Namespace, world_size: int) -> Loaders:
    """This rank's batches of (x, y)."""
    train, validation, test = sets
    train_sampler, validation_sampler, test_sampler = samplers
    common = {"batch_size": args.batch_size // world_size, "num_workers": args.workers}
    common["pin_memory"] = bool(accelerator())
    train_loader = DataLoader(train, sampler=train_sampler, drop_last=True, **common)
    validation_loader = DataLoader(validation, sampler=validation_sampler, **common)
    test_loader = DataLoader(test, sampler=test_sampler, **common)
    return train_loader, validation_loader, test_loader


class Router(nn.Module):
    """Chooses each token's experts. `bias` is added for the choice alone; no gradient reaches it."""

    def __init__(self, dim: int, n_experts: int, k: int) -> None:
        super().__init__()
        self.k = k
        self.weight = nn.Parameter(torch.empty(n_experts, dim))
        self.register_buffer("bias", torch.zeros(n_experts))

    def forward(self, h_ND: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """gates_NK: float32; experts_NK: int64, the chosen ones; probs_NE: float32, of all experts."""
        # TODO 2: Route each token, in float32, whatever dtype it has.
        # Its probabilities are the softmax of its products with the rows of self.weight. The experts with the self.k
        # largest sums of probability and bias are chosen, the largest first. Of equal sums, the expert with the lower
        # number comes first: argsort(…, descending=True, stable=True) guarantees that, topk does not. The bias is not
        # part of the gates: with k > 1 they are the chosen probabilities, divided by their sum, and with k = 1 the
        # probability itself, or the router could not learn. So a single expert has the gate 1, and the block is the
        # plain model's.
        ### BEGIN SOLUTION
        probs_NE = (h_ND.float() @ self.weight.float().T).softmax(dim=-1)
        experts_NK = (probs_NE + self.bias).argsort(dim=-1, descending=True, stable=True)[:, : self.k]
        gates_NK = probs_NE.gather(1, experts_NK)
        if self.k > 1:
            gates_NK = gates_NK / gates_NK.sum(dim=-1, keepdim=True)
        return gates_NK, experts_NK, probs_NE
        ### STUDENT
        # tokens, n_experts = len(h_ND), len(self.bias)
        # gates_NK = h_ND.new_full((tokens, self.k), 1 / self.k, dtype=torch.float32)
        # experts_NK = torch.arange(self.k, device=h_ND.device).expand(tokens, -1)
        # return gates_NK, experts_NK, h_ND.new_full((tokens, n_experts), 1 / n_experts, dtype=torch.float32)
        ### END SOLUTION


class Experts(nn.Module):
    """Experts under their numbers in the whole block: which of them a rank has does not change their names."""

    def __init__(self, first: MLP | SwiGLU, n_experts: int, dim: int) -> None:
        super().__init__()
        for number in range(n_experts):
            self.add_module(str(number), type(first)(dim) if number else first)

    def keep(self, numbers: range) -> None:
        for name, _ in list(self.named_children()):
            if int(name) not in numbers:
                delattr(self, name)

    def forward(self, rows_RD: Tensor, counts: list[int]) -> Tensor:
        """Each expert's results for its rows: the first counts[0] are the first expert's. All experts compute, even
        on no rows: their gradients are then zero, and not missing.
        """
        parts = rows_RD.split(counts)
        return torch.cat([expert(part) for expert, part in zip(self.children(), parts, strict=True)])


class Mixture(nn.Module):
    """Takes the place of a block's MLP. After a forward pass in training, `load_E` counts this rank's tokens for each
    expert, and `balance` is the balancing loss over all ranks' tokens.
    """

    def __init__(self, mlp: MLP | SwiGLU, dim: int, n_experts: int, k: int) -> None:
        super().__init__()
        self.n_experts = n_experts
        self.router = Router(dim, n_experts, k)
        self.experts = Experts(mlp, n_experts, dim)
        self.capacity = 0.0
        self.row: dist.ProcessGroup | None = None  # the ranks that have all experts together

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_ND = x_BTD.flatten(0, 1)
        gates_NK, experts_NK, probs_NE = self.router(h_ND)
        if self.training:
            self.load_E = torch.bincount(experts_NK.flatten(), minlength=self.n_experts)
            self.balance = balancing_loss(probs_NE, experts_NK)
            if self.capacity:
                experts_NK = drop(probs_NE.detach(), experts_NK, self.capacity)
        return self.mix(h_ND, gates_NK, experts_NK).view_as(x_BTD)

    def mix(self, h_ND: Tensor, gates_NK: Tensor, experts_NK: Tensor) -> Tensor:
        """Each token's experts' results, added up with their gates: (N, D). An expert of -1 is none."""
        # TODO 3: Let each token be computed by its experts, wherever they are.
        # As given, this rank's first expert computes all of its tokens. dispatch(h, experts, n_experts, group) sends rows
        # to the ranks of a group that have their experts, and combine(results, gates, way) brings the results back.
        # self.experts(rows, counts) computes in between. Every rank of the row makes all three calls, in every
        # forward pass, even if no row arrives: the others wait for it.
        ### BEGIN SOLUTION
        rows_RD, counts, way = dispatch(h_ND, experts_NK, self.n_experts, self.row)
        return combine(self.experts(rows_RD, counts), gates_NK, way)
        ### STUDENT
        # others = len(list(self.experts.children())) - 1
        # return self.experts(h_ND, [len(h_ND)] + [0] * others)
        ### END SOLUTION


def drop(probs_NE: Tensor, experts_NK: Tensor, capacity: float) -> Tensor:
    """A copy of `experts_NK`, with -1 where an expert has no room. All ranks have equally many tokens."""
    # TODO 5: Limit an expert's rows, by a rule that does not depend on where a token is.
    # A slot is one of a token's choices. An expert has room for ceil(capacity times an even share) rows; the even share
    # is the number of slots on all ranks, divided by the number of experts. Each expert keeps its most probable slots in
    # the whole batch: probs_NE says how probable each is, without the bias. So every rank needs the other ranks'
    # probabilities. A rule for each rank's own slots would be simpler, but then the result would depend on the number
    # of ranks.
    ### BEGIN SOLUTION
    rank, world, n_experts = dist.get_rank(), dist.get_world_size(), probs_NE.shape[1]
    probs_S, experts_S = probs_NE.gather(1, experts_NK).flatten(), experts_NK.flatten()
    own = torch.stack([probs_S, experts_S.to(probs_S.dtype)])
    parts = [torch.empty_like(own) for _ in range(world)]
    dist.all_gather(parts, own)
    all_probs, all_experts = torch.cat(parts, dim=1)
    room = math.ceil(capacity * len(all_probs) / n_experts)
    kept = torch.zeros_like(all_probs, dtype=torch.bool)
    for expert in range(n_experts):
        slots = (all_experts == expert).nonzero().flatten()
        kept[slots[all_probs[slots].argsort(descending=True, stable=True)[:room]]] = True
    return experts_NK.where(kept.chunk(world)[rank].view_as(experts_NK), -1)
    ### STUDENT
    # return experts_NK
    ### END SOLUTION


def model_config(vocab_size: int, args: argparse.Namespace) -> dict[str, Any]:
    """The sizes of the model, which every checkpoint carries: what `make_model` takes."""
    plain = {"vocab_size": vocab_size, "dim": args.dim, "n_heads": args.heads, "n_layers": args.layers}
    plain |= {"max_len": args.seq_len, "dropout": args.dropout}
    plain |= {"kv_heads": args.kv_heads} if args.kv_heads else {}
    return plain | {"n_experts": args.experts, "top_k": args.top_k}


def make_model(**config: Any) -> TransformerLM:
    """The model with all experts; its first weights depend on torch's seed alone. With one expert they are the plain
    model's.
    """
    sizes = {name: size for name, size in config.items() if name not in ("n_experts", "top_k")}
    model = TransformerLM(**sizes)
    model.config = config
    for block in model.blocks:
        block.mlp = Mixture(block.mlp, config["dim"], config["n_experts"], config["top_k"])
        for number, expert in enumerate(block.mlp.experts.children()):
            if number:  # 0 is the plain model's MLP, and has its weights
                nn.init.normal_(expert.up.weight, std=0.02)
                nn.init.normal_(expert.down.weight, std=0.02 / math.sqrt(2 * len(model.blocks)))
        nn.init.normal_(block.mlp.router.weight, std=0.02)
    return model


def parallelize(model: nn.Module, grid: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """The recipe: keep this rank's experts, choose what a block keeps, shard the weights."""
    each = args.experts // grid["expert"].size()
    first = each * grid.get_local_rank("expert")
    for block in model.blocks:
        block.mlp.row, block.mlp.capacity = grid.get_group("expert"), args.capacity
        block.mlp.experts.keep(range(first, first + each))
    if args.recompute:
        recompute(model)
    return shard(model, grid, args)


def shard(model: nn.Module, grid: DeviceMesh, args: argparse.Namespace) -> nn.Module:
    """Give each rank its part of the weights, and so of the gradients and the optimizer's state."""
    everyone = init_device_mesh(grid.device_type, (dist.get_world_size(),), mesh_dim_names=("all",))
    # TODO 6: Shard experts over the ranks that have the same ones, and everything else over all ranks.
    # As given, everything is sharded over all ranks, as if they all had the same experts. A module that is sharded first
    # is a unit of its own, which a later fully_shard leaves out. The units are: the experts of a block; its router,
    # whose weights stay float32 (with --dtype bfloat16, precision(args) would gather them in bfloat16); and, as in
    # fsdp_training, the rest of the block.
    ### BEGIN SOLUTION
    for block in model.blocks:
        fully_shard(block.mlp.experts, mesh=grid["data"], mp_policy=precision(args))
        fully_shard(block.mlp.router, mesh=everyone)
        fully_shard(block, mesh=everyone, mp_policy=precision(args))
    ### STUDENT
    # for block in model.blocks:
    #     fully_shard(block, mesh=everyone, mp_policy=precision(args))
    ### END SOLUTION
    return fully_shard(model, mesh=everyone, mp_policy=precision(args), reshard_after_forward=False)


def scale_gradients(model: nn.Module, grid: DeviceMesh) -> None:
    """After the backward pass: turn every gradient into the gradient of the mean of all ranks' losses, in place."""
    # TODO 6, again: FSDP has added up each unit's gradients over the unit's mesh, and divided by the size of that mesh.
    # An expert computes tokens from all ranks of its row: how many losses does its gradient come from, and by what number
    # has it been divided? expert_parameters, below, lists this rank's. (FSDP's own way, set_gradient_divide_factor, divides
    # twice on gloo where the mesh has one rank, torch 2.13 to 2.15.)
    ### BEGIN SOLUTION
    for p in expert_parameters(model):
        p.grad /= grid["expert"].size()
    ### STUDENT
    # pass
    ### END SOLUTION


def compute_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The language model's loss: the mean over this rank's targets."""
    return model(x, y)


def objective(loss: Tensor, model: nn.Module, args: argparse.Namespace) -> Tensor:
    """What the backward pass starts from."""
    # TODO 4: Keep all experts busy: by a loss, and by a bias that needs none. First, the loss.
    # Add args.balance times the sum of all blocks' balancing losses (block.mlp.balance). `loss` itself is what the log
    # adds up, and must stay as it is.
    ### BEGIN SOLUTION
    return loss + args.balance * sum(block.mlp.balance for block in model.blocks)
    ### STUDENT
    # return loss
    ### END SOLUTION


def everyones_load(model: nn.Module) -> Tensor:
    """How many of the last batch's tokens, on all ranks, chose each expert of each block: int64 (L, E)."""
    # TODO 4, again: what all ranks' routers have chosen. block.mlp.load_E has this rank's counts, and is needed no more.
    # Budget: one message.
    ### BEGIN SOLUTION
    load_LE = torch.stack([block.mlp.load_E for block in model.blocks])
    dist.all_reduce(load_LE)
    return load_LE
    ### STUDENT
    # return torch.stack([block.mlp.load_E for block in model.blocks])
    ### END SOLUTION


def update_biases(model: nn.Module, load_LE: Tensor, args: argparse.Namespace) -> None:
    """After a step: make experts that had too much less likely, and others more."""
    # TODO 4, again: the bias (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
    # Each expert's bias in block.mlp.router.bias falls by args.bias_rate if its load was above the mean of its block's
    # experts, and rises by as much if it was below. It stays if it was equal.
    ### BEGIN SOLUTION
    for block, load_E in zip(model.blocks, load_LE.double(), strict=True):
        block.mlp.router.bias += args.bias_rate * torch.sign(load_E.mean() - load_E)
    ### STUDENT
    # pass
    ### END SOLUTION


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader, device: torch.device, args: argparse.Namespace) -> float:
    """Mean loss over tokens. A mean of batch means would give a short last batch too much weight."""
    model.eval()
    total = torch.zeros((), dtype=torch.float64, device=device)
    count = torch.zeros((), dtype=torch.float64, device=device)
    for x, y in in_step(loader, device, args):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        n_targets = (y != IGNORE).sum()
        total += compute_loss(model, x, y).double() * n_targets
        count += n_targets
    return global_mean(total, count)


def expert_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters of this rank's experts, in all blocks."""
    return [p for block in model.blocks for p in block.mlp.experts.parameters()]


def norm_of(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of these parameters' gradients over the ranks that share them: a scalar. They are all on one mesh."""
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def clip_gradients(model: nn.Module, grid: DeviceMesh, args: argparse.Namespace) -> float:
    """Clip the gradient's norm to args.clip (0: no limit). Returns the norm before clipping."""
    experts = expert_parameters(model)
    own = set(experts)
    shared = [p for p in model.parameters() if p not in own]
    # TODO 7: Clip by the norm of the whole gradient, in which each number counts once.
    # One call for all parameters fails: "All operands in aten.stack.default must have the same mesh". norm_of each list
    # is a norm over one mesh. For the shared parameters it is the whole norm; of the experts, the other ranks of the
    # row have different ones, and grid.get_group("expert") is the group of the row. Squares of norms can be added up.
    # nn.utils.clip_grads_with_norm_(parameters, largest, norm) scales by a given norm. It, too, takes parameters of one
    # mesh only.
    ### BEGIN SOLUTION
    square = norm_of(experts).square()
    dist.all_reduce(square, group=grid.get_group("expert"))
    norm = (norm_of(shared).square() + square).sqrt()
    for parameters in (shared, experts):
        nn.utils.clip_grads_with_norm_(parameters, args.clip or math.inf, norm)
    return norm.item()
    ### STUDENT
    # for parameters in (shared, experts):
    #     nn.utils.clip_grads_with_norm_(parameters, args.clip or math.inf, norm_of(parameters))
    # return norm_of(shared).item()
    ### END SOLUTION


def train_epoch(
    model: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    optimizer: torch.optim.Optimizer,
    grid: DeviceMesh,
    device: torch.device,
    args: argparse.Namespace,
    metrics: Metrics,
    epoch: int,
    position: dict[str, Any],
) -> float:
    """One pass over the training set, or the rest of one. Returns the whole pass's mean loss.

    `position` has the mean loss and the number of targets of the pass's first part, if an earlier run did that. It is
    kept up to date, and saved every args.save_every steps.
    """
    model.train()
    # Sums and counts: since the last line of the log, and over the epoch.
    total, count, epoch_total, epoch_count = torch.zeros(4, dtype=torch.float64, device=device)
    epoch_count += position["targets"] / dist.get_world_size()
    epoch_total += position["loss"] * epoch_count
    step, last_step, last_time = position["step"], position["step"], time.perf_counter()
    load_LE = torch.zeros(args.layers, args.experts, dtype=torch.int64, device=device)
    for x, y in batches:
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        loss = compute_loss(model, x, y)
        optimizer.zero_grad()
        objective(loss, model, args).backward()
        scale_gradients(model, grid)
        norm = clip_gradients(model, grid, args)
        optimizer.step()
        step_load_LE = everyones_load(model)
        update_biases(model, step_load_LE, args)
        load_LE += step_load_LE
        step += 1

        # detach: a sum of losses would otherwise keep the graph of every step alive.
        total += loss.detach().double() * y.numel()
        count += y.numel()
        if step % args.log_every == 0 or step == args.max_steps:
            epoch_total, epoch_count = epoch_total + total, epoch_count + count
            # global_mean waits for the device, so only now may the clock be read.
            mean, now = global_mean(total, count), time.perf_counter()
            speed = (step - last_step) * args.batch_size * args.seq_len / (now - last_time)
            load = load_LE.tolist()  # tokens of each expert, block by block
            metrics.log("step", step, epoch=epoch + 1, loss=mean, gradient_norm=norm, tokens_per_s=speed, load=load)
            total, count = torch.zeros(2, dtype=torch.float64, device=device)
            load_LE.zero_()
            last_step, last_time = step, now
        position["step"] = step
        if args.save_every and step % args.save_every == 0:
            position["loss"] = global_mean(epoch_total + total, epoch_count + count)
            targets = epoch_count + count
            dist.all_reduce(targets)
            position["targets"] = targets.item()
            with saved_whole(Path(args.out), step) as folder:
                save_sharded(model, optimizer, position, folder)
    return global_mean(epoch_total + total, epoch_count + count)


def save_checkpoint(model: nn.Module, grid: DeviceMesh, config: dict[str, Any], path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: make_model(**config) can load the weights anywhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = get_model_state_dict(model)  # by their names in the whole model: DTensors; and biases, plain tensors
    # TODO 8: Put the model together, from both meshes, on rank 0, in one file.
    # (save_sharded, which --save-every calls, needs nothing new: experts keep their names in the whole model, and each
    # rank writes its own parts.) part.full_tensor() assembles a DTensor on all ranks of its mesh, and all of them must
    # call it. For experts the mesh is a column: the other ranks of rank 0's row have experts that rank 0 lacks. As in
    # pipeline_training, dist.gather_object(obj, list_of_None_or_None, group=…, group_dst=0) sends the objects of all
    # ranks of a group to its first one. Send experts alone: rank 0 has the rest. No other rank may have the whole model
    # in memory.
    ### BEGIN SOLUTION
    full, first_row = {}, grid.get_local_rank("data") == 0
    for name, part in parts.items():
        weight = part.full_tensor() if isinstance(part, DTensor) else part
        if dist.get_rank() == 0 or (first_row and ".experts." in name):
            full[name] = weight.detach().cpu()
    if first_row:
        row = [None] * grid["expert"].size() if dist.get_rank() == 0 else None
        dist.gather_object({} if dist.get_rank() == 0 else full, row, group=grid.get_group("expert"), group_dst=0)
        for experts in row or []:
            full |= experts
    save0({"model": full, "config": config, "epoch": epoch}, path)
    ### STUDENT
    # full = {name: part.full_tensor() if isinstance(part, DTensor) else part for name, part in parts.items()}
    # save0({"model": full, "config": config, "epoch": epoch}, path)
    ### END SOLUTION


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    rank, local_rank, world_size, device = setup()
    check_averages(device, world_size)
    set_batch_size(args, world_size)
    grid = make_mesh(device, world_size, args)
    sets, vocab_size = make_sets(args)
    samplers = make_samplers(sets, args)
    train_loader, validation_loader, test_loader = make_loaders(sets, samplers, args, world_size)

    config = model_config(vocab_size, args)
    with torch.device("meta"):  # no memory yet
        model = make_model(**config)
    model = parallelize(model, grid, args).to_empty(device=device)
    send_first_weights(model, config, args, strict=False, make=make_model)  # a rank has some experts alone
    optimizer = make_optimizer(model, args)

    # Steps done; of this epoch so far the mean loss and the number of targets; lowest validation loss; what must match.
    position = {"step": 0, "loss": 0.0, "targets": 0.0, "best": math.inf} | {name: getattr(args, name) for name in SAME}
    if args.resume:
        args.resume = to_resume(args, model)
        position = load_sharded(model, optimizer, position, Path(args.resume))
    first_epoch, done = find_epoch(position["step"], len(train_loader))

    out = Path(args.out)
    total_steps = min(args.epochs * len(train_loader), args.max_steps or math.inf)
    check_position(position, args, SAME, total_steps, f"--resume {args.resume}")
    start = time.perf_counter()
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record, after=position["step"])
    say_what_runs(args, device)
    with metrics, device_memory(args.device_memory, device):
        for epoch in range(first_epoch, args.epochs):
            samplers[0].set_epoch(epoch)
            batches = islice(train_loader, done, done + total_steps - position["step"])
            position |= {} if done else {"loss": 0.0, "targets": 0.0}
            train_loss = train_epoch(model, batches, optimizer, grid, device, args, metrics, epoch, position)
            done = 0
            validation_loss = evaluate(model, validation_loader, device, args)
            print0(
                f"[{epoch + 1}/{args.epochs}] train loss {train_loss:.4f}, "
                f"validation loss {validation_loss:.4f}, perplexity {perplexity(validation_loss):.1f}"
            )
            step, seconds = position["step"], time.perf_counter() - start
            metrics.log(
                "epoch", step, epoch=epoch + 1, loss=train_loss, validation_loss=validation_loss, seconds=seconds
            )
            if epoch == 0 or validation_loss < position["best"]:
                position["best"] = validation_loss
                save_checkpoint(model, grid, config, out / "model-best.pt", epoch + 1)
            if step == total_steps:
                break

        test_loss = evaluate(model, test_loader, device, args)
        print0(f"test loss {test_loss:.4f}, perplexity {perplexity(test_loss):.1f}")
        metrics.log("test", step, loss=test_loss, seconds=time.perf_counter() - start)
        save_checkpoint(model, grid, config, out / "model-final.pt", epoch + 1)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()

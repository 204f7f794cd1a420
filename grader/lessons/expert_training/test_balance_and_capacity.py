"""Checks of expert_training, TODOs 4 and 5: balance and capacity.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 4 | balance, with and without a loss | objective(), one message of everyones_load() on 4 ranks, update_biases() |  |
| 5 | an expert's capacity | drop() on 1, 2 and 4 ranks, against the rule for the whole batch |  |
"""

import math

import torch

from grader.kit import Private, cases, check_tensor, expect, hinted, todo

from .common import drawn_sizes, kept
from .ranks import balance_on_rank, drop_on_rank, drawn_slots

# ---------------------------------------------------------------------------------------------------
# TODO 4: balance


WEIGHTS = (0.25, 0.0)  # of --balance
COUNTS = "block.mlp.load_E counts the tokens of one rank. Which call adds up the counts of all ranks?"
PART = (
    "The router is one for all ranks, and so is its bias. If each rank counts for a part of them, what becomes of the"
    " biases of two parts?"
)


@todo(4, in_place=("model",))
def test_todo4_balance(student):
    # Blocks, ranks, and ranks along an axis: of each another number, so that a mean over one is not told as another's.
    draw, grid, layers, n_experts = student.draw("balance"), (2, 2), 3, 5
    world = math.prod(grid)
    sizes = drawn_sizes(draw, n_experts, layers=layers)
    balances, loss = [draw.uniform(1, 3) for _ in range(layers)], draw.uniform(2, 5)
    own = [[[draw.randrange(1, 90) for _ in range(n_experts)] for _ in range(layers)] for _ in range(world)]
    rate = draw.choice((0.25, 0.125))
    # In one block the loads are equal; in one a load is the mean of unequal ones; in one it is that but for a fraction,
    # above the mean in one of two steps and below it in the other.
    loads = []
    for more in draw.sample((1, -1), 2):
        m, (a, b) = draw.randrange(20, 60), draw.sample(range(2, 20), 2)
        loads.append([[7] * n_experts, [9, 3, 6, 2, 10], [m - a, m + a + more, m - b, m + b, m]])
        for load in loads[-1]:
            draw.shuffle(load)
        draw.shuffle(loads[-1])
    counts = torch.tensor(own).view(*grid, layers, n_experts)
    whole, parts = counts.sum(dim=(0, 1)), {"row": counts.sum(dim=1), "column": counts.sum(dim=0)}
    for axis, loads_of in parts.items():
        for load in loads_of:
            student.premise(not torch.equal(direction(load), direction(whole)), f"the load of a {axis} alone")
    run = student.call(
        balance_on_rank,
        world=world,
        grid=grid,
        sizes=sizes,
        balances=balances,
        loss=loss,
        weights=WEIGHTS,
        loads=loads,
        own_loads=Private(own),
        rate=rate,
    )
    for rank, seen in enumerate(run.evidence):
        for weight, found in zip(WEIGHTS, seen["objectives"], strict=True):
            check_objective(weight, found, loss, balances, world, rank)
    for rank, seen in enumerate(run.evidence):
        row, column = divmod(rank, grid[1])
        wrongs = {
            "this rank's load alone": torch.tensor(own[rank]),
            "the load of the ranks of its row alone": (parts["row"][row], PART),
            "the load of the ranks of its column alone": (parts["column"][column], PART),
        }
        name = f"on {world} ranks, what everyones_load returns on rank {rank}"
        check_tensor(name, seen["load"], whole, rank=rank, wrongs=wrongs, hint=COUNTS)
        sent = [event["op"] for event in cases(run.events)[0][rank] if event["e"] == "op"]
        one = f"everyones_load makes {len(sent)} calls on rank {rank} for {layers} blocks"
        expect(
            len(sent) <= 1, one, 1, sent, rank, "Small messages cost a latency each. What can be put together first?"
        )
        check_biases(loads, seen["biases"], rate, rank)


def direction(load):
    """Which way each expert's bias moves."""
    load = load.double()
    return (load.mean(dim=-1, keepdim=True) - load).sign()


def check_objective(weight, found, loss, balances, world, rank):
    told = f"with --balance {weight} and {len(balances)} blocks"
    made = found["made"]
    expect(not isinstance(made, str), f"{told} objective returns {made}", "a loss with a graph", made, rank)
    right = loss + weight * sum(balances)
    wrongs = {
        ": the mean over blocks is added, not the sum": loss + weight * sum(balances) / len(balances),
        ": the sum is divided by the number of ranks, but each loss is over all ranks already": loss
        + weight * sum(balances) / world,
    }
    close = (words for words, wrong in wrongs.items() if weight and math.isclose(made, wrong, rel_tol=1e-5))
    what = next(close, "")
    expect(math.isclose(made, right, rel_tol=1e-5), f"{told} objective is wrong{what}", right, made.item(), rank)
    wanted = [1.0, *[weight] * len(balances)]
    same = all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(found["grads"], wanted, strict=True))
    message = f"{told} the gradients of objective for the loss and each block's balancing loss are wrong"
    expect(same, message, wanted, found["grads"], rank)
    unchanged = math.isclose(found["loss"], loss, rel_tol=1e-6)
    expect(unchanged, f"{told} objective changes the loss that it is given", loss, found["loss"], rank)


@hinted("A bias moves by one step, up or down, whatever the distance from the mean; and it starts from where it was.")
def check_biases(loads, seen, rate, rank):
    biases = torch.zeros(len(loads[0]), len(loads[0][0]))
    for step, (load, found) in enumerate(zip(loads, seen, strict=True), start=1):
        load = torch.tensor(load, dtype=torch.float64)
        move = rate * direction(load).float()
        for layer, bias in enumerate(found):
            check_tensor(
                f"after step {step}, with loads {load[layer].long().tolist()}, the bias of block {layer}",
                bias,
                biases[layer] + move[layer],
                1e-6,
                rank,
                wrongs={
                    "moved the wrong way: crowded experts get more": biases[layer] - move[layer],
                    "where it was": biases[layer],
                }
                if move[layer].any()
                else {},
            )
        biases += move


# ---------------------------------------------------------------------------------------------------
# TODO 5: capacity


def drawn_cases(student):
    """(tokens of a rank, experts, k) and a capacity: tight, even, one that drops nothing."""
    draw = student.draw("capacity")
    sizes = [(draw.choice((7, 9, 11)), draw.choice((3, 5)), k) for k in (1, 2, 3)]
    return list(zip(draw.sample(sizes, 3), (0.6, 1.1, 9.0), strict=True))


def wrong_drops(probs, experts, capacity, world):
    """What other rules leave, by rank."""
    n_experts, parts = probs.shape[1], range(world)
    alone = [kept(p, e, capacity) for p, e in zip(probs.chunk(world), experts.chunk(world), strict=True)]
    early = torch.arange(len(probs), 0, -1.0)[:, None].expand(-1, n_experts)
    first = kept(early, experts, capacity).chunk(world)
    floor = kept(probs, experts, math.floor(capacity * experts.numel() / n_experts) * n_experts / experts.numel())
    least = kept(-probs, experts, capacity).chunk(world)
    return [
        {
            "what a rule for this rank's own slots leaves": alone[rank],
            "what is left if the first slots are kept, not the most probable ones": first[rank],
            "what is left if the least probable slots are kept": least[rank],
            "what a capacity rounded down leaves": floor.chunk(world)[rank],
            "what it was given: nothing is dropped": experts.chunk(world)[rank],
        }
        for rank in parts
    ]


@todo(5)
def test_todo5_capacity(student):
    drawn, worlds = drawn_cases(student), student.several((4, 2, 1))
    batches = {}
    for world in worlds:
        seeds = student.draw("slots", world).sample(range(1 << 40), world)
        whole = []
        for number, (sizes, capacity) in enumerate(drawn):
            slots = [drawn_slots(seed + number, *sizes) for seed in seeds]
            probs, experts = (torch.cat(part) for part in zip(*slots, strict=True))
            right, wrongs = kept(probs, experts, capacity), wrong_drops(probs, experts, capacity, world)
            whole.append((right.chunk(world), wrongs))
            if capacity < 1:
                for words in wrongs[0]:
                    same = torch.equal(torch.cat([mine[words] for mine in wrongs]), right)
                    # On one rank there is no other rule of a rank's own; and room may be a whole number.
                    alone = world == 1 and "own slots" in words
                    student.premise(not same or alone or "rounded" in words, words)
        batches[world] = seeds, whole
    for world, (seeds, whole) in batches.items():
        run = student.call(drop_on_rank, world=world, cases=drawn, seed=Private(seeds))
        for number, ((tokens, n_experts, k), capacity) in enumerate(drawn):
            told = f"with --capacity {capacity} --top-k {k}, {n_experts} experts, {world} ranks, {tokens} tokens each"
            right, wrongs = whole[number]
            for rank, seen in enumerate(run.evidence):
                name = f"{told}, what drop returns on rank {rank}"
                check_tensor(name, seen[number], right[rank], rank=rank, wrongs=wrongs[rank], hint=ROOM)


ROOM = (
    "Whose slots compete for the room at one expert, and how many places are there for all of them? Which of them stay"
    " does not depend on the rank."
)

"""Checks of hybrid_training, TODOs 11 to 13: context and experts.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 11 | two grids of states | make_meshes() on 4, 6 and 8 ranks: which ranks each rank finds on each axis | |
| 12 | experts' gradients, counts | divide_experts_gradients() and everyones_loads() on three shapes of 4 ranks | |
| 13 | one norm | with_all_experts() on three shapes of 4 ranks and one of 3; main() on 4 ranks against one process | 1 – 12 |
"""  # noqa: E501

import json
import math
import tempfile
from pathlib import Path

import torch

from grader.kit import (
    Private,
    Since,
    cases,
    check_checkpoint,
    check_last_weights,
    check_part,
    check_sent,
    corpus,
    drawn_sizes,
    expect,
    hinted,
    mains_on_rank,
    must_move,
    reported,
    same_report,
    todo,
)
from utils.data import EpochOrder, Windows, load_corpus
from utils.releases import AVERAGES_SINCE, SLICED_AGAIN_SINCE

from .common import WORDS, shaped
from .ranks import drawn_mixture, expert_norms_on_rank, experts_on_rank, meshes_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 11: the grids of states


GRIDS = {
    4: [((1, 1, 2, 2, 1), 2), ((1, 1, 1, 2, 2), 2), ((2, 1, 1, 2, 1), 2), ((1, 2, 1, 2, 1), 1), ((1, 1, 1, 4, 1), 2)],
    6: [((1, 1, 3, 2, 1), 2), ((1, 1, 2, 3, 1), 3), ((1, 1, 1, 3, 2), 3)],
    8: [((1, 1, 2, 2, 2), 2), ((2, 1, 2, 2, 1), 4), ((1, 2, 2, 2, 1), 2)],
}

OF_STATES = (
    "Its axis shard goes through the ranks of shard and cp of the first grid, with neighbours of cp next to one"
    " another. How long is it, then?"
)
OF_EXPERTS = (
    "Ranks of shard and cp, and no others, divide a block's experts. Which of them are neighbours, and how many columns"
    " of ranks with the same experts does that leave?"
)


@todo(11)
def test_todo11_meshes(student):
    for world, drawn in student.several(GRIDS.items()):
        run = student.call(meshes_on_rank, world=world, cases=drawn)
        for (shape, ep), *found in zip(drawn, *run.evidence):
            for rank, seen in enumerate(found):
                check_grids_of(f"with {shaped(shape)} and --ep {ep}", shape, ep, seen, rank)


IN_ORDER = (
    "A process group sorts its ranks, whatever order a mesh gives them; FSDP divides by places on the mesh. If"
    " the two differ, gradients are added to other rows' weights, without an error. Let numbers rise along each axis."
)


def check_grids_of(told, shape, ep, seen, rank):
    name, what = seen.get("strange", ("", ""))
    wanted = "pp, dp, shard, ep, tp" if name == "experts" else "pp, dp, shard, tp"
    expect(not name, f"{told}, the grid `{name}` has other axes: {what}", wanted, what, rank)
    pp, dp, shard, cp, tp = shape
    rights = {"states": (pp, dp, shard * cp, tp), "experts": (pp, dp, shard * cp // ep, ep, tp)}
    for name, sizes in rights.items():
        axes = ("pp", "dp", "shard", "tp") if name == "states" else ("pp", "dp", "shard", "ep", "tp")
        grid = torch.arange(math.prod(shape)).view(sizes)
        place = [int(i) for i in (grid == rank).nonzero()[0]]
        right = {}
        for k, axis in enumerate(axes):
            index = [*place]
            index[k] = slice(None)
            right[axis] = grid[tuple(index)].tolist()
        rest = [place[0], slice(None), slice(None), *place[3:]]
        right["dp and shard"] = grid[tuple(rest)].tolist()
        with hinted(OF_STATES if name == "states" else OF_EXPERTS):
            for axis, ranks in right.items():
                mine = seen[name][axis]
                on = f"{axis} of the grid `{name}`"
                expect(sorted(mine) == ranks, f"{told}, rank {rank} finds other ranks on {on}", ranks, mine, rank)
                turned = f"{told}, rank {rank} finds the ranks on {on} in another order"
                expect(mine == ranks, turned, ranks, mine, rank, hint=IN_ORDER)


# ---------------------------------------------------------------------------------------------------
# TODO 12: experts' gradients, and how many tokens chose each


def drawn_case(student, shape, ep, *purpose):
    sizes = drawn_sizes(student, shape[-1], *purpose, *shape, words=WORDS, layers=2)
    return sizes | {"experts": 2 * ep}


def mixture_weights(sizes):
    return {name: p.detach() for name, p in drawn_mixture(sizes).named_parameters()}


def own_names(names, shape, ep, experts, rank, stages):
    """The parameters that a rank has some of."""
    pp, *_, tp = shape
    place, row = rank // (math.prod(shape) // pp), rank // tp % ep
    mine = {str(number) for number in range(row * experts // ep, (row + 1) * experts // ep)}
    here = []
    for name in names:
        block = name.split(".")[1] if name.startswith("blocks.") else None
        stage = int(block) * pp // stages if block else (0 if "embedding" in name else pp - 1)
        if stage == place and (".experts." not in name or name.split(".experts.")[1].split(".")[0] in mine):
            here.append(name)
    return here


CASES = [((1, 1, 2, 2, 1), 2), ((2, 1, 1, 2, 1), 2), ((1, 2, 1, 2, 1), 2), ((1, 1, 2, 1, 2), 2), ((1, 1, 1, 3, 1), 3)]

FACTOR = (
    "All ranks of dp, shard and cp have sent tokens to one of these experts, or to its copies. Over how many of them"
    " has FSDP averaged, and how many has divide_gradients taken it to be?"
)
COUNTS = (
    "Two ranks' counts belong together if they count different tokens of the same blocks. On which axes do ranks differ"
    " in tokens and not in layers?"
)


@todo(12, since=Since(*SLICED_AGAIN_SINCE))
def test_todo12_experts(student):
    for shape, ep in student.several(CASES, 2):
        sizes, told = drawn_case(student, shape, ep, "experts"), f"with {shaped(shape)} and --ep {ep}"
        world, (pp, dp, shard, cp, tp) = math.prod(shape), shape
        draw, parts = student.draw("load", *shape), pp * dp * shard * cp
        rows, columns = 2 // pp, sizes["experts"]
        loads = [[[draw.randrange(40) for _ in range(columns)] for _ in range(rows)] for _ in range(parts)]
        loads = [loads[rank // tp] for rank in range(world)]  # ranks of tp have the same tokens
        run = student.call(experts_on_rank, world=world, shape=shape, ep=ep, sizes=sizes, load=Private(loads))
        right = student.reference(mixture_weights, sizes=sizes)
        for rank, seen in enumerate(run.evidence):
            names = own_names(right, shape, ep, columns, rank, 2)
            with hinted(FACTOR):
                for name in names:
                    expect(name in seen["grads"], f"{told}, {name} has no gradient", "a gradient", "none", rank)
                    wanted = right[name] / ep if ".experts." in name else right[name]
                    check_part(f"{told}, after divide_experts_gradients", name, seen["grads"][name], wanted, rank)
            stage = rank // (world // pp)
            mine = range(stage * world // pp, (stage + 1) * world // pp, tp)
            whole = torch.tensor([loads[other] for other in mine]).sum(dim=0)
            with hinted(COUNTS):
                got = seen["load"]
                same = isinstance(got, torch.Tensor) and got.shape == whole.shape and torch.equal(got.long(), whole)
                what = "of this rank's tokens alone" if same is False and is_own(got, loads[rank]) else "wrong"
                expect(
                    same, f"{told}, the counts (blocks × experts) that rank {rank} gets are {what}", whole, got, rank
                )


def is_own(got, mine):
    return isinstance(got, torch.Tensor) and got.tolist() == mine


# ---------------------------------------------------------------------------------------------------
# TODO 13: one norm; the law of the course


OTHERS = "Which experts does this rank not have, and which ranks have them? Squares of norms can be added up."
ONCE = "What all ranks of ep hold counts once. Which of the groups is complete before anything is sent?"


@todo(13, since=Since(*AVERAGES_SINCE, on_cpus=True), needs=(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12))
def test_todo13_norm(student):
    trials = []
    for shape, ep in student.several(
        [((1, 1, 2, 2, 1), 2), ((1, 2, 1, 2, 1), 2), ((1, 1, 2, 1, 2), 2), ((1, 1, 1, 3, 1), 3)], 2
    ):
        sizes = drawn_case(student, shape, ep, "norm")
        trials.append((shape, ep, sizes, student.reference(mixture_weights, sizes=sizes)))
    data, serial = corpus(student), student.serial(["--data", "data", "--out", "out", *ARGV], corpus(student))
    must_move(student, serial)
    whole = student.reference(run_in_one, data=data)
    student.premise(whole["gap"] > 2e-6, "rounding for a choice")
    for shape, ep, sizes, weights in trials:
        check_norms(student, shape, ep, sizes, weights)
    check_law(student, data, serial, whole)


def check_norms(student, shape, ep, sizes, weights):
    told = f"with {shaped(shape)} and --ep {ep}"
    run = student.call(expert_norms_on_rank, world=math.prod(shape), shape=shape, ep=ep, sizes=sizes)

    def norm(names):
        return math.sqrt(sum(weights[name].square().sum().item() for name in names))

    experts = [name for name in weights if ".experts." in name]
    rest, right = norm(set(weights) - set(experts)), norm(weights)
    for rank, seen in enumerate(run.evidence):
        returned = seen.get("returns")
        expect("returns" not in seen, f"{told}, with_all_experts returns {returned}", "a list of norms", returned, rank)
        own = norm(name for name in own_names(weights, shape, ep, sizes["experts"], rank, 2) if ".experts." in name)
        mistakes = {
            "with this rank's experts alone": (math.hypot(rest, own), OTHERS),
            "without experts": (rest, OTHERS),
            "with everything once for each rank of ep": (math.hypot(math.sqrt(ep) * rest, norm(experts)), ONCE),
        }
        got = seen["norm"]
        done = [words for words, (wrong, _) in mistakes.items() if math.isclose(got, wrong, rel_tol=1e-5)]
        what, hint = (done[0], mistakes[done[0]][1]) if done else ("not the norm of the whole gradient", ONCE)
        same = math.isclose(got, right, rel_tol=1e-6)  # float64, some of it over float32
        expect(same, f"{told}, the norm on rank {rank} is {what}", right, got, rank, hint)
    allowed = 8 * 4 * ep
    check_sent(f"{told}, with_all_experts", cases(run.events)[1], allowed, why="a few numbers would do")


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 2 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()
PLAIN = "--cp 2 --tp 2 --sequence-parallel"
MIXED = "--pp 2 --cp 2 --experts 4 --ep 2 --bias-rate 0.01"


class InOne(torch.nn.Module):
    """A mixture in one process, written in another way: each expert computes all tokens."""

    def __init__(self, mixture, k):
        super().__init__()
        self.router, self.experts, self.k, self.gap = mixture.router, mixture.experts, k, math.inf

    def forward(self, x):
        h = x.flatten(0, 1)
        probs = (h @ self.router.weight.T).softmax(dim=-1)
        ordered, order = (probs + self.router.bias).sort(dim=-1, descending=True, stable=True)
        self.gap = min(self.gap, (ordered[:, self.k - 1] - ordered[:, self.k]).min().item())
        chosen = torch.zeros_like(probs).scatter(1, order[:, : self.k], 1.0)
        self.load = chosen.sum(dim=0)
        gates = probs * chosen
        gates = gates / gates.sum(dim=-1, keepdim=True)
        return sum(gates[:, [e]] * expert(h) for e, expert in enumerate(self.experts.children())).view_as(x)


def run_in_one(data, steps=2, batch=12, seq_len=8):
    """The run of MIXED in one process: losses of its steps, and the last weights."""
    from utils.after_expert_training import make_mixtures

    with tempfile.TemporaryDirectory() as folder:
        for name, text in data.items():
            Path(folder, Path(name).name).write_text(text)
        text = load_corpus(folder)
    torch.manual_seed(5)
    model = make_mixtures(4, 2, vocab_size=len(text.vocab), dim=16, n_heads=4, n_layers=2, max_len=seq_len)
    for block in model.blocks:
        block.mlp = InOne(block.mlp, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = Windows(text.train, seq_len, text.eos, drop_last=True)
    order, losses = list(EpochOrder(windows, 5)), []
    for step in range(steps):
        x, y = (torch.stack(part) for part in zip(*(windows[i] for i in order[step * batch : (step + 1) * batch])))
        loss = model(x, y)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        for block in model.blocks:
            mean = block.mlp.load.double().mean()
            block.mlp.router.bias += 0.01 * (mean - block.mlp.load).sign()
        losses.append(loss.item())
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return {"losses": losses, "weights": weights, "gap": min(block.mlp.gap for block in model.blocks)}


@hinted(
    "Each function alone is right. Which step is the first that differs from one process's, and what does it use for"
    " the first time?"
)
def check_law(student, data, serial, whole):
    """The parallel run is the run of one process."""
    runs = [[4, [*ARGV, *flags.split()]] for flags in (MIXED, PLAIN)]
    run = student.call(mains_on_rank, world=4, group=None, runs=runs, data=data, keep=("still_in_a_group",))
    lines = [json.loads(line) for line in run.files["out-0/metrics.jsonl"].decode().splitlines()]
    seen, told = [line["loss"] for line in lines if line["kind"] == "step"], f"on 4 ranks with {MIXED},"
    for step, (loss, right) in enumerate(zip(seen, whole["losses"], strict=True), start=1):
        same = math.isclose(loss, right, rel_tol=1e-4)
        expect(same, f"{told} metrics.jsonl has a wrong loss of step {step}", right, loss)
    check_checkpoint(run.files["out-0/model-final.pt"], whole["weights"], rounded=True)
    told = f"on 4 ranks with {PLAIN},"
    same_report(told, reported(serial), reported(run, "out-1"))
    check_last_weights(told, run.files["out-1/model-final.pt"], serial.evidence[0]["weights"])

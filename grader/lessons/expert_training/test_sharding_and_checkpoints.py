"""Checks of expert_training, TODOs 6 to 8: sharding, the norm, checkpoints.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 6 | two meshes | numbers held, units, dtypes; gradients of different batches, scaled | 2, 3 |
| 7 | one norm | clip_gradients() on 2 × 2, 1 × 3 and 2 × 1 ranks |  |
| 8 | one checkpoint | one file, and what ranks hold of it; main() against one process | 1 – 4, 6, 7 |
"""

import json
import math
import tempfile
from pathlib import Path

import torch

from grader.kit import (
    Private,
    Since,
    check_checkpoint,
    check_norm,
    corpus,
    drawn_batch,
    expect,
    hinted,
    mains_on_rank,
    must_have_gradients,
    one_writer,
    todo,
)
from utils.data import EpochOrder, Windows, load_corpus
from utils.releases import AVERAGES_SINCE

from .common import check_own, drawn_sizes, made_whole, own_names, whole_model
from .ranks import clip_on_rank, fill, fill_unequally, precision_on_rank, save_on_rank, shard_on_rank

AVERAGES = Since(*AVERAGES_SINCE, on_cpus=True)

# ---------------------------------------------------------------------------------------------------
# TODO 6: two meshes


def serial_shards(sizes, seeds):
    """Gradients of the mean of the ranks' losses; and how many numbers there are."""
    model = fill(made_whole(sizes), 0).float().train()
    (sum(model(*drawn_batch(seed, sizes)) for seed in seeds) / len(seeds)).backward()
    experts = sum(p.numel() for name, p in model.named_parameters() if name.startswith("blocks.0.mlp.experts."))
    numbers = sum(p.numel() for p in model.parameters())
    gap = min(block.mlp.gap for block in model.blocks)
    return {
        "grads": {n: p.grad for n, p in model.named_parameters()},
        "numbers": numbers,
        "experts": experts,
        "gap": gap,
    }


UNIT_NAMES = ("a block", "a block's router", "a block's experts")
UNITS = (
    "A unit is what fully_shard was called for. Which modules must be gathered from other ranks than the rest, or in"
    " another dtype?"
)
EACH = "Each message costs a latency, however small it is. Which module has all of a block's experts in it?"
FACTOR = (
    "FSDP has divided by the size of the mesh over which it has added up. Over how many ranks is the loss a mean, and"
    " how many of their losses reach one expert?"
)


@todo(6, since=AVERAGES, needs=(2, 3), in_place=("model",))
def test_todo6_shards(student):
    draw, wholes = student.draw("shards"), {}
    for rows, ep in student.several([(2, 2), (1, 3), (3, 1)]):
        sizes = drawn_sizes(draw, 6 if ep == 3 else 4)
        seeds = draw.sample(range(1 << 40), rows * ep)
        whole = student.reference(serial_shards, sizes=sizes, seeds=seeds)
        student.premise(whole["gap"] > 1e-5, "rounding for a choice")
        must_have_gradients(student, whole["grads"])
        wholes[rows, ep] = sizes, seeds, whole
    for (rows, ep), (sizes, seeds, whole) in wholes.items():
        world, told = rows * ep, f"on {rows} × {ep} ranks"
        run = student.call(shard_on_rank, world=world, grid=(rows, ep), sizes=sizes, seed=Private(seeds))
        for rank, seen in enumerate(run.evidence):
            missing = [name for name in UNIT_NAMES if name not in seen["units"]]
            alone = missing == ["a block's experts"] and "each expert" in seen["units"]
            calls = f"{told}, fully_shard was not called for {' and '.join(missing)}"
            apiece = (
                f"{told}, fully_shard was called for each expert alone: one unit of all experts takes fewer messages"
            )
            expect(
                not missing, apiece if alone else calls, "three units", seen["units"], rank, EACH if alone else UNITS
            )
            apart = (
                f"{told}, a block's router and its other weights are on different meshes, which no call takes together"
            )
            expect(seen["meshes"] <= 1, apart, "one mesh of all ranks", seen["meshes"], rank, UNITS)
            for what, held, all_of_it in (
                ("a block's experts", seen["experts"], whole["experts"]),
                ("the model", seen["held"], whole["numbers"]),
            ):
                much = f"{told}, rank {rank} holds {held:,} of the {all_of_it:,} numbers of {what}"
                about = f"about {all_of_it // world:,}"  # rows are cut, and parts are uneven
                expect(held <= 1.2 * all_of_it / world, much, about, f"{held:,}", rank, UNITS)
        with hinted(FACTOR):
            grads = [seen["grads"] for seen in run.evidence]
            check_own(told, grads, whole["grads"], ep, sizes["experts"], 1e-4)  # of float32; 1e-6 was measured
    check_precision(student, draw)


def check_precision(student, draw):
    sizes = drawn_sizes(draw, 2, k=1)
    run = student.call(precision_on_rank, world=2, sizes=sizes, seed=draw.randrange(1 << 40))
    right = {"attention": "bfloat16", "router": "float32", "experts": "bfloat16"}
    hint = "utils.after_fsdp_training has the dtypes of a sharded model, as a policy. Which units are given it?"
    for rank, seen in enumerate(run.evidence):
        for name, dtype in right.items():
            told = f"with --dtype bfloat16 rank {rank} computes a block's {name} with weights in {seen.get(name)}"
            expect(seen.get(name) == dtype, told, dtype, seen.get(name), rank, hint)


# ---------------------------------------------------------------------------------------------------
# TODO 7: one norm


def drawn_weights(sizes, seed):
    return {name: p.detach() for name, p in fill_unequally(made_whole(sizes), seed).named_parameters()}


def norms(grads, ep, n_experts):
    """The norm of all gradients, and of the shared ones; and for each rank of a row, of its experts'."""

    def norm(names):
        return math.sqrt(sum(grads[name].square().sum().item() for name in names))

    shared = [name for name in grads if ".experts." not in name]
    mine = [[name for name in own_names(grads, rank, ep, n_experts) if ".experts." in name] for rank in range(ep)]
    return norm(grads), norm(shared), [norm(names) for names in mine]


OTHERS = "Which ranks have experts that this one lacks? Their squares belong to the sum, too."
SQUARES = "The norms of two ranks' experts are added up. What has to be added up for the norm of all of them?"
ONCE = "Squares of what all ranks hold belong in the sum once. Over which ranks is each of the two norms already whole?"


@todo(7, in_place=("model",))
def test_todo7_norm(student):
    draw, drawn = student.draw("norm"), {}
    for rows, ep in student.several([(2, 2), (1, 3), (3, 1)]):
        sizes, seed = drawn_sizes(draw, 6 if ep == 3 else 4, layers=2), draw.randrange(1 << 40)
        grads = student.reference(drawn_weights, sizes=sizes, seed=seed)
        drawn[rows, ep] = sizes, seed, grads, norms(grads, ep, sizes["experts"])
        own = drawn[rows, ep][3][2]
        uneven = ep == 1 or max(own) > 1.5 * min(own)
        student.premise(uneven, "norms of experts, added up, or they would be told as squares that count twice")
    for (rows, ep), (sizes, seed, grads, (right, shared, own)) in drawn.items():
        clips = student.several((0.7 * right, 0.0, 4 * right))
        run = student.call(clip_on_rank, world=rows * ep, grid=(rows, ep), sizes=sizes, clips=clips, seed=seed)
        for case, clip in enumerate(clips):
            told = f"with --clip {clip:.3g} and a gradient of norm {right:.4g}, on {rows} × {ep} ranks"
            for rank, mine in enumerate(run.evidence):
                experts = math.hypot(*own)
                wrongs = {
                    "the norm of this rank's experts and of the shared weights": (
                        math.hypot(shared, own[rank % ep]),
                        OTHERS,
                    ),
                    "the norm without experts": (shared, OTHERS),
                    "the norm of experts alone": (experts, ONCE),
                    "the sum of two norms": (shared + experts, ONCE),
                    "the norm with the shared weights once for each rank": (
                        math.hypot(math.sqrt(ep) * shared, experts),
                        ONCE,
                    ),
                    "the norm with experts once for each rank of a column": (
                        math.hypot(shared, math.sqrt(rows) * experts),
                        ONCE,
                    ),
                    "the norm with the row's norms of experts added up, not their squares": (
                        math.hypot(shared, sum(own)),
                        SQUARES,
                    ),
                }
                wrongs = {
                    words: wrong for words, wrong in wrongs.items() if not math.isclose(wrong[0], right, rel_tol=1e-3)
                }
                check_norm(told, mine[case]["norm"], right, clip, rank, wrongs=wrongs)
            factor = min(1.0, clip / right) if clip else 1.0
            scaled = {name: grad * factor for name, grad in grads.items()}
            with hinted("The norm is right. By which single number is every gradient scaled, and when is none?"):
                seen = [mine[case]["grads"] for mine in run.evidence]
                check_own(f"{told}, after clip_gradients", seen, scaled, ep, sizes["experts"], 1e-5)


# ---------------------------------------------------------------------------------------------------
# TODO 8: one checkpoint; the law of the course


def whole_weights(sizes):
    return {name: tensor.detach() for name, tensor in fill(made_whole(sizes), 0).state_dict().items()}


def check_file(student, rows, ep):
    told, sizes = f"on {rows} × {ep} ranks", drawn_sizes(student.draw("file", rows, ep), 2 * ep) | {"vocab": 13}
    run = student.call(save_on_rank, world=rows * ep, grid=(rows, ep), sizes=sizes)
    one_writer(run, f"{told} ")
    right = student.reference(whole_weights, sizes=sizes)
    config = {"n_heads": 2, "n_layers": 1, "vocab_size": 13, "dim": sizes["dim"], "max_len": sizes["length"]}
    config |= {"n_experts": sizes["experts"], "top_k": sizes["k"]}
    with hinted("Rank 0 has some experts. Where are the remaining ones, and how do they get to it?"):
        check_checkpoint(run.files["saved/model.pt"], right, epoch=3, config=config)
    model = sum(weight.nbytes for weight in right.values())
    for rank, seen in enumerate(run.evidence[1:], start=1):
        # A rank of the first row needs its experts for a moment, also as a message; any other one tensor at a time.
        most = model * (0.85 if rank < ep else 0.5)
        much = f"{told} rank {rank} assembles more than it needs to send, {seen['peak']:,} bytes at once"
        expect(seen["peak"] < most, much, f"its own experts, of {model:,} bytes", f"{seen['peak']:,} bytes", rank)


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1 --balance 0.1 --bias-rate 0.01"
).split()


# Fewer ranks in each next run. Nothing is dropped: which of two equal words is, would depend on the ranks.
RUNS = (  # ranks, experts, k, capacity, flags
    (4, 4, 2, 0.0, "--ep 2"),
    (3, 3, 1, 0.0, "--ep 3 --recompute"),
    (2, 1, 1, 0.0, "--ep 1"),
)


def run_in_one(data, n_experts, k, capacity, steps=2, batch=12, seq_len=8):
    """The script's run in one process, written in another way: losses, loads, the last weights."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in data.items():
            Path(folder, Path(name).name).write_text(text)
        text = load_corpus(folder)
    torch.manual_seed(5)
    sizes = dict(vocab_size=len(text.vocab), dim=16, n_heads=2, n_layers=1, max_len=seq_len)
    model = whole_model(**sizes, n_experts=n_experts, top_k=k).train()
    mixture = model.blocks[0].mlp
    mixture.capacity = capacity
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = Windows(text.train, seq_len, text.eos, drop_last=True)
    order, losses, loads = list(EpochOrder(windows, 5)), [], []
    for step in range(steps):
        x, y = (torch.stack(part) for part in zip(*(windows[i] for i in order[step * batch : (step + 1) * batch])))
        loss = model(x, y)
        optimizer.zero_grad()
        (loss + 0.1 * mixture.balance).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        mixture.router.bias += 0.01 * (mixture.load.double().mean() - mixture.load).sign()
        losses.append(loss.item()), loads.append([mixture.load.tolist()])
    weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    return {"losses": losses, "loads": loads, "weights": weights, "gap": mixture.gap}


@todo(8, since=AVERAGES, needs=(1, 2, 3, 4, 6, 7))
def test_todo8_checkpoints(student):
    data, runs = corpus(student), student.several(RUNS)
    rights = []
    for _, n_experts, k, capacity, _ in runs:
        rights.append(student.reference(run_in_one, data=data, n_experts=n_experts, k=k, capacity=capacity))
        student.premise(rights[-1]["gap"] > 2e-6, "rounding for a choice")
    for rows, ep in student.several([(2, 2), (1, 3), (1, 1)]):
        check_file(student, rows, ep)
    check_law(student, data, runs, rights)


@hinted(
    "Each function alone is right. Which step is the first that differs from one process's, and what does it use for"
    " the first time?"
)
def check_law(student, data, runs, rights):
    """The parallel run is the serial run."""
    flags = [
        [*ARGV, "--experts", str(e), "--top-k", str(k), "--capacity", str(c), *more.split()]
        for _, e, k, c, more in runs
    ]
    asked = [[run[0], mine] for run, mine in zip(runs, flags, strict=True)]
    kept = ("steps", "still_in_a_group")
    run = student.call(mains_on_rank, world=4, group=None, runs=asked, data=data, keep=kept)
    for number, ((world, *_), mine, right) in enumerate(zip(runs, flags, rights, strict=True)):
        told = f"with {' '.join(mine[len(ARGV) :])} on {world} ranks,"
        lines = [json.loads(line) for line in run.files[f"out-{number}/metrics.jsonl"].decode().splitlines()]
        steps = [line for line in lines if line["kind"] == "step"]
        expect(len(steps) == 2, f"{told} metrics.jsonl has {len(steps)} steps", 2, len(steps))
        for step, (seen, loss, load) in enumerate(zip(steps, right["losses"], right["loads"], strict=True), start=1):
            same = math.isclose(seen["loss"], loss, rel_tol=1e-4)
            expect(same, f"{told} metrics.jsonl has a wrong loss of step {step}", loss, seen["loss"])
            expect(seen["load"] == load, f"{told} metrics.jsonl has a wrong load of step {step}", load, seen["load"])
        check_weights(told, run.files[f"out-{number}/model-final.pt"], right["weights"])
        for rank, left in enumerate(run.evidence[:world]):
            gone = not left[number]["still_in_a_group"]
            expect(gone, f"{told} rank {rank} ends without leaving the process group", "no group", "a group", rank)


def check_weights(told, content, right):
    with hinted("model-final.pt has the last weights. Which of them do not come from where they were trained?"):
        check_checkpoint(content, right, rounded=True)

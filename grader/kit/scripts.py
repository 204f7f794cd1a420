"""What the checks of the script lessons share: a small corpus, and how to read what a run left."""

import io
import json
import logging
import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from grader.engine.judge.student_in_checks import Student
from grader.engine.judge.verdict import Wrong, count_of, expect, hinted
from grader.engine.ranks.diagnose import Fault
from grader.engine.ranks.evidence import whole
from grader.kit.traffic import check_parts_travel, ring_bytes
from utils.model import TransformerLM

# Losses of the parallel run and of the serial run differ by the order in which float32 numbers are
# added: 2.4e-7 was measured over 50 steps, a wrong sample or weight gives 1e-3 and more.
REL = 1e-4
# Last weights after some steps of SGD, which keeps rounding small: 3e-7 was measured; they move by 5e-6 to 1e-2.
SAME_WEIGHTS = 2e-6


def corpus(student: Student) -> dict[str, str]:
    """A small text of random words: all windows differ, and its lengths divide by nothing."""
    draw = student.draw("corpus")
    words = [f"w{i}" for i in range(49)]

    def lines(n_tokens):
        return "\n".join(" ".join(draw.choice(words) for _ in range(7)) for _ in range(n_tokens // 8)) + "\n"

    # 35 windows = 2 steps of 12 and 11 left over; 13 and 11 are not divisible by 2, 3 or 4, and the last window
    # is a short one.
    return {
        "data/train.txt": lines(35 * 8),
        "data/validation.txt": lines(12 * 8) + "w1 w2\n",
        "data/test.txt": lines(10 * 8) + "w3\n",
    }


def training(evidence: dict) -> dict[int, tuple[list, list]]:
    """step -> the windows (as tuples of words) that reached the model in training mode, and their loss: None where the
    model was asked for logits.
    """
    steps = {}
    for forward in evidence["forwards"]:
        if forward["training"]:
            rows, losses = steps.setdefault(forward["step"], ([], []))
            rows += [tuple(row) for row in forward["x"].tolist()]
            losses.append(forward["loss"])
    return steps


def reported(run: Any, out: str = "out") -> list[dict]:
    """The losses in the metrics.jsonl that a run wrote, without what depends on the clock."""
    lines = [json.loads(line) for line in run.files[f"{out}/metrics.jsonl"].decode().splitlines()]
    return [
        {k: v for k, v in line.items() if k in ("kind", "step", "epoch", "loss", "validation_loss")} for line in lines
    ]


@contextmanager
def on_nodes(nodes: int, world: int) -> Iterator[None]:
    """Whatever is told inside says on which nodes it was seen: on a single one, a local run would look fine."""
    a_node = world // nodes
    try:
        yield
    except (Wrong, Fault) as problem:
        if nodes > 1:
            ranks = "one rank" if a_node == 1 else f"{a_node} ranks"
            problem.message = f"on {count_of(nodes, 'node')} with {ranks} each, {problem.message}"
            problem.hint = "On one node it is right. Which number of a rank, or of ranks, differs on several?"
        raise


# The hint where something beside the weights is wrong in a checkpoint.
ENTRIES = (
    "Beside the weights, a checkpoint has what a later run must know. Which arguments go into it, under which names?"
)


def check_checkpoint(
    content: bytes,
    right: dict[str, torch.Tensor],
    *,
    epoch: int | None = None,
    config: dict[str, Any] | None = None,
    earlier: dict[str, torch.Tensor] | None = None,
    rounded: bool = False,
) -> None:
    """It loads without a group, and holds the plain model's weights, which are `right`: to the last bit, or `rounded`
    by another order of sums. `earlier`: the weights of a checkpoint that this one was to replace.
    """
    saved = loaded(content)
    expect(
        isinstance(saved, dict) and isinstance(saved.get("model"), dict) and {"config", "epoch"} <= set(saved),
        "the checkpoint has lost an entry",
        "model, config, epoch",
        sorted(saved) if isinstance(saved, dict) else type(saved).__name__,
        hint=ENTRIES,
    )
    wrapped = [name for name in saved["model"] if name.startswith("module.") or "_wrapped_module." in name]
    expect(
        not wrapped,
        f"the checkpoint holds the wrapper's names: {wrapped[:1]} instead of the plain model's",
        sorted(right)[:1],
        wrapped[:1],
    )
    check_names("the checkpoint", saved["model"], right)
    for name, weight in right.items():
        check_saved_weight(name, saved["model"][name], weight, earlier and earlier[name], rounded)
    for name, wanted in (("epoch", epoch), ("config", config)):
        expect(
            wanted is None or saved[name] == wanted,
            f"the checkpoint's “{name}” is not what save_checkpoint was given",
            wanted,
            saved[name],
            hint=ENTRIES,
        )


def check_names(told: str, held: dict[str, Any], right: dict[str, torch.Tensor]) -> None:
    """The weights that are held are the model's, by name."""
    missing = sorted(right.keys() - held.keys())
    more = sorted(f"{name!s:.60}" for name in held.keys() - right.keys())
    if not (missing or more):
        return
    message = f"{told} holds {more[0]}, which is not a weight of the model" if more else ""
    if missing:
        message = f"{told} does not hold all weights of the model: {missing[0]} is missing"
        message += f", and there is {more[0]}" if more else ""
    hint = "The plain model must load it. Which name does each weight have there, and what is added to it here?"
    raise Wrong(message, sorted(right), sorted(map(str, held)), hint=hint if more else "")


def check_last_weights(told: str, content: bytes, right: dict[str, torch.Tensor]) -> None:
    """The checkpoint holds the serial run's last weights, under their names."""
    saved = loaded(content)
    held = saved.get("model") if isinstance(saved, dict) else None
    message = f"{told} the checkpoint does not hold all weights of the model"
    expect(isinstance(held, dict), message, sorted(right), type(held).__name__)
    check_names(f"{told} the checkpoint", held, right)
    for name, weight in right.items():
        part = held[name]
        whole_one = type(part) is torch.Tensor and part.shape == weight.shape
        expect(
            whole_one and torch.allclose(part, weight, rtol=0, atol=SAME_WEIGHTS),
            f"{told} the last weights are not the serial run's ({name})",
            weight,
            part if whole_one else f"{type(part).__name__} {tuple(getattr(part, 'shape', ()))}",
        )


def loaded(content: bytes) -> Any:
    """What a checkpoint holds, read with torch alone: values only, and no code is run."""
    if zipfile.is_zipfile(io.BytesIO(content)):  # as torch.save writes it: nothing in it is packed, so nothing grows
        packed = [
            entry
            for entry in zipfile.ZipFile(io.BytesIO(content)).infolist()
            if entry.compress_type != zipfile.ZIP_STORED
        ]
        expect(
            not packed,
            "the checkpoint is packed, which torch.save does not do",
            "plain entries",
            [entry.filename for entry in packed[:1]],
        )
    # Of a DTensor torch would warn in its own words, in the student's terminal; the verdict says it in ours.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    try:
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise Wrong(
            "the checkpoint does not load with torch.load(weights_only=True): it holds objects, not weights",
            "a dictionary of tensors",
            (str(error) or type(error).__name__).splitlines()[0],
        ) from None


def check_saved_weight(name: str, part: Any, weight: torch.Tensor, earlier: torch.Tensor | None, rounded: bool) -> None:
    expect(
        type(part) is torch.Tensor,
        f"the checkpoint's {name} is a {type(part).__name__}, which only a process group can read",
        "a tensor",
        type(part).__name__,
    )
    more = part.numel() > weight.numel()
    expect(
        part.shape == weight.shape,
        f"the checkpoint's {name} {'has more numbers than the model' if more else 'is a part of it'}",
        tuple(weight.shape),
        tuple(part.shape),
        hint="Which ranks hold the same numbers? Each belongs in the file once." if more else "",
    )
    expect(
        part.dtype == weight.dtype,
        f"the checkpoint's {name} is {str(part.dtype).removeprefix('torch.')}, and the model's is not",
        str(weight.dtype).removeprefix("torch."),
        str(part.dtype).removeprefix("torch."),
    )
    if rounded:  # SGD keeps rounding small: 1e-6 was measured; the weights themselves move by 1e-2
        same = torch.allclose(part, weight, rtol=1e-3, atol=1e-5)
    else:
        same = torch.equal(part, weight)
    stale = not same and earlier is not None and torch.equal(part, earlier)
    expect(
        same,
        f"the checkpoint's {name} is not the model's"
        + (": it belongs to an earlier checkpoint at this path, which was to be written over" if stale else ""),
        "equal weights",
        "others",
    )


def one_writer(run: Any, told: str = "") -> list[int]:
    """The rank that wrote saved/model.pt, in a list; no other rank wrote in its folder. Each rank's evidence says
    which `files` it wrote; `told`, which ranks they are, with a blank after it.
    """
    writers = [rank for rank, seen in enumerate(run.evidence) if seen["files"]]
    names = sorted({Path(name).name for seen in run.evidence for name in seen["files"]})
    expect(
        len(writers) <= 1,
        f"{told}ranks {writers} all write the checkpoint",
        "one rank writes",
        f"ranks {writers} write {', '.join(names)}",
        writers[-1] if writers else None,
    )
    expect("saved/model.pt" in run.files, f"{told}save_checkpoint leaves no file", "saved/model.pt", "no such file")
    return writers


def each_once(name, shares, size):
    """Each of `size` samples is in exactly one share."""
    everything = sorted(i for share in shares for i in share)
    twice = sorted({i for i in everything if everything.count(i) > 1})
    lost = sorted(set(range(size)) - set(everything))
    expect(
        len(shares) == 1 or len(twice) < size or len(everything) < len(shares) * size,
        f"every rank reads the whole {name} set: nothing is divided, and each sample counts {len(shares)} times",
        f"each of {size} samples once",
        f"all {size} on each of {len(shares)} ranks",
    )
    if twice and not lost:
        owners = [rank for rank, share in enumerate(shares) if twice[0] in share]
        how = f"on ranks {owners}" if len(owners) > 1 else f"twice on rank {owners[0]}"
        raise Wrong(
            f"{name} is padded: sample {twice[0]} is read {how}, so it counts more than once in the {name} loss. "
            "DistributedSampler repeats samples until all ranks have equally many",
            f"each of {size} samples once",
            f"more than once: {twice}",
        )
    beyond = sorted(set(everything) - set(range(size)))
    expect(
        not beyond,
        f"the {name} sampler deals sample {beyond[:1]}; the {name} set has {size}: it is a different set's sampler",
        f"samples 0 to {size - 1}",
        beyond,
    )
    expect(not lost, f"no rank reads {name} sample {lost[:1]}", f"each of {size} samples once", f"never read: {lost}")


def check_dealt(told: str, shares: list[list[list[int]]], size: int, seed: int, batch: int) -> None:
    """`shares`: what each reader's sampler deals of a training set of `size` samples, epoch by epoch. In each step
    these are the serial run's samples, `batch` of them over all readers; what is left over is dropped.
    """
    own = batch // len(shares)
    for epoch in range(len(shares[0])):
        order = torch.randperm(size, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        for step in range(size // batch):
            seen = sorted(i for mine in shares for i in mine[epoch][step * own : (step + 1) * own])
            right = sorted(order[step * batch : (step + 1) * batch])
            expect(
                seen == right,
                f"{told}, in epoch {epoch + 1}, step {step + 1} of {batch} samples does not train on the samples of the"
                " serial run",
                right,
                seen,
            )
        for number, mine in enumerate(shares):
            dealt = len(mine[epoch])
            expect(
                dealt == size // len(shares),
                f"{told}, share {number + 1} of {len(shares)} has {dealt} training samples of {size}: if they do not"
                " divide, some are repeated until all shares are equal",
                f"{size // len(shares)}, and the rest is dropped",
                dealt,
            )


@hinted("Each TODO alone is right. Which step is the first that differs, and what is done there for the first time?")
def same_run(serial, run, world):
    """The parallel run is the serial run: losses of all steps, the report, the last weights, the files."""
    right, ranks = training(serial.evidence[0]), [training(evidence) for evidence in run.evidence]
    for rank, steps in enumerate(ranks):
        expect(
            right.keys() <= steps.keys(),
            f"on {count_of(world, 'rank')}, rank {rank} makes {count_of(len(steps), 'step')} with the model in training"
            f" mode, and the serial run {len(right)}",
            len(right),
            len(steps),
            rank,
        )
    for step in right:
        loss, theirs = right[step][1][0], [steps[step][1][0] for steps in ranks]
        seen = None if None in theirs else sum(theirs) / world  # of one made outside the model, what follows tells
        expect(
            seen is None or math.isclose(seen, loss, rel_tol=REL),
            f"on {count_of(world, 'rank')} the loss of step {step + 1} is not the serial run's",
            loss,
            seen,
        )
    weights = sum(weight.nbytes for weight in serial.evidence[0]["weights"].values())
    check_parts_travel(f"on {count_of(world, 'rank')}", run.events, len(right) * ring_bytes(weights, world), len(right))
    same_report(f"on {count_of(world, 'rank')}", reported(serial), reported(run))
    for name, weight in serial.evidence[0]["weights"].items():
        for rank, evidence in enumerate(run.evidence):
            # SGD keeps rounding small: 1e-6 was measured after these steps; the weights themselves moved by 1e-2.
            expect(
                torch.allclose(evidence["weights"][name], weight, rtol=1e-3, atol=1e-5),
                f"on {count_of(world, 'rank')} the last weights of rank {rank} are not the serial run's ({name})",
                "equal weights",
                "others",
                rank,
            )
    for name in ("out/model-best.pt", "out/model-final.pt"):
        expect(
            name in run.files,
            f"on {count_of(world, 'rank')} {name.removeprefix('out/')} is not written",
            name,
            sorted(run.files),
        )
        writers = [
            rank for rank, evidence in enumerate(run.evidence) if any(f.endswith(name) for f in evidence["files"])
        ]
        expect(
            len(writers) <= 1,
            f"on {count_of(world, 'rank')}, ranks {writers} write {name.removeprefix('out/')}",
            "one writer",
            writers,
        )
    right_best, right_final = (read(serial.files[f"out/model-{which}.pt"]) for which in ("best", "final"))
    check_checkpoint(run.files["out/model-final.pt"], run.evidence[0]["weights"], epoch=right_final["epoch"])
    check_checkpoint(
        run.files["out/model-best.pt"],
        right_best["model"],
        epoch=right_best["epoch"],
        config=right_best["config"],
        rounded=True,
    )


def read(content: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def together(ranks, what):
    """name -> tensor, from what each rank left of it."""
    return {name: whole([seen[what][name] for seen in ranks]) for name in ranks[0][what]}


def losses(evidence):
    """This rank's loss of each step, in order."""
    return [found[0] for _, (_, found) in sorted(training(evidence).items())]


def must_move(student, serial):
    """A premise: no last weight of this serial run is taken for its first one. That losses of two batches differ would
    not show it. Returns the first weights.
    """
    final = serial.evidence[0]["weights"]
    layers = len({name.split(".")[1] for name in final if name.startswith("blocks.")})
    first = student.reference(first_of_run, vocab=len(final["head.weight"]), layers=layers)
    stuck = [name for name, weight in first.items() if (final[name] - weight).abs().max() <= 2 * SAME_WEIGHTS]
    student.premise(not stuck, f"a {stuck[:1]} that never moves")
    return first


def first_of_run(vocab, layers):
    """With the flags of these checks: --dim 16 --heads 2 --seq-len 8 --seed 5."""
    torch.manual_seed(5)
    return dict(TransformerLM(vocab, dim=16, n_heads=2, n_layers=layers, max_len=8).named_parameters())


def same_losses(told, serial, ranks):
    """Step by step; a step's loss is the mean of its ranks' losses."""
    means = [sum(step) / len(ranks) for step in zip(*map(losses, ranks), strict=True)]
    for step, (seen, right) in enumerate(zip(means, serial, strict=True), start=1):
        expect(
            math.isclose(seen, right, rel_tol=REL),
            f"{told} the loss of step {step} is not the serial run's",
            right,
            seen,
        )


def same_report(told, right, seen):
    expect(
        len(right) == len(seen),
        f"{told} metrics.jsonl has {len(seen)} lines",
        f"{len(right)} lines",
        f"{len(seen)} lines",
    )
    for want, got in zip(right, seen, strict=True):
        for name in want:
            if isinstance(want[name], float):
                expect(
                    math.isclose(got.get(name, math.nan), want[name], rel_tol=REL),
                    f"{told} metrics.jsonl says another {name} ({want['kind']}, step "
                    f"{want['step']}) than the serial run's",
                    want[name],
                    got.get(name),
                )

"""What several files with checks of fsdp_training use."""

import math

import torch

from grader.kit import Since, cases, check_parts_travel, corpus, expect, ring_bytes, tiny_batch
from utils.model import TransformerLM
from utils.releases import AVERAGES_SINCE

from .ranks import DEEP, SIZES, made_model

STRATEGIES = ("none", "grad", "full", "hybrid")


AVERAGES = Since(*AVERAGES_SINCE, on_cpus=True)


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
# TODO 3: sharding


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


OF_ONE = "what one process computes on the whole batch"


# ---------------------------------------------------------------------------------------------------
# TODO 4: first weights


def serial_weights(seed, config):
    return made_model(seed, config).state_dict()


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


def serial_run(student, argv=ARGV):
    return student.serial(["--data", "data", "--out", "out", *argv], corpus(student))


def check_shards_travel(told, serial, run, number, world, steps):
    """In each step at least once the weights are gathered and the gradients added up: together, an all-reduce."""
    whole = sum(weight.nbytes for weight in serial.evidence[0]["weights"].values())
    check_parts_travel(told, cases(run.events)[number][:world], steps * ring_bytes(whole, world), steps)

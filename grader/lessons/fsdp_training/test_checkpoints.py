"""Checks of fsdp_training, TODOs 9 to 11: checkpoints.

| TODO | achievement                     | evidence                                                              | needs      |
|------|---------------------------------|-----------------------------------------------------------------------|------------|
| 9    | one file of the whole model     | which rank writes; that torch.load(weights_only=True) can read it; where ranks have copies |            |
| 10   | a sharded checkpoint            | its content; how much each rank wrote |            |
| 11   | loaded on other ranks           | saved on 4, loaded on 2 and on 1: weights, optimizer's state, position; main() after an epoch on 4 ranks, resumed on 4, 2 and 1 | 1 – 10 |
"""  # noqa: E501

import torch

from grader.kit import (
    PARTED,
    check_checkpoint,
    corpus,
    expect,
    hinted,
    losses,
    mains_on_rank,
    on_nodes,
    one_writer,
    reported,
    same_losses,
    same_report,
    todo,
    together,
    training,
)

from .common import (
    ARGV,
    bytes_of_a_moment,
    calls,
    check_moment,
    check_shards_travel,
    held_by_one,
    serial_run,
    serial_weights,
    shapes_of,
)
from .ranks import DEEP, PLACE, load_sharded_on_rank, save_on_rank, save_sharded_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 9: one file


@todo(9, once="it saves two models, one after the other")
def test_todo9_save(student):
    moment = bytes_of_a_moment(student, shards=3)
    for nodes in (1, 3):
        with on_nodes(nodes, 6):
            check_save(student, nodes, moment)


def check_save(student, nodes, moment):
    run = student.call(save_on_rank, world=6, nodes=nodes)
    ranks = run.evidence
    with hinted("All ranks know the path. Which one of them writes, and which function of the course does that?"):
        writers = one_writer(run)
    check_checkpoint(
        run.files["saved/model.pt"],
        student.reference(serial_weights, seed=0, config=DEEP),
        epoch=3,
        config=DEEP,
        earlier=student.reference(serial_weights, seed=1, config=DEEP),
    )
    for rank, seen in enumerate(ranks):
        if rank not in writers:
            check_moment("save_checkpoint", rank, seen["most"], *moment)


# ---------------------------------------------------------------------------------------------------
# TODOs 10 and 11: sharded checkpoints


OPTIMIZERS = ("momentum_buffer", "step", "lr")


def entry(flat, name, value):
    """The entry of the checkpoint for `name`: found by the end of its path or, if the optimizer numbers its parameters,
    by its content. None if there is none.
    """
    named = next((held for path, held in flat.items() if path.endswith(f".{name}")), None)
    own = name.rpartition(".")[2]
    if named is not None or own not in OPTIMIZERS:
        return named
    alike = [held for path, held in flat.items() if path.rpartition(".")[2] == own]
    return next((held for held in alike if same_value(held, value)), None)


def same_value(held, value):
    held = torch.tensor(held) if isinstance(held, float) else held
    return isinstance(held, torch.Tensor) and held.shape == value.shape and torch.equal(held, value)


@todo(10)
def test_todo10_save_sharded(student):
    world = 4
    with hinted(PARTED, "hang"):
        run = student.call(save_sharded_on_rank, world=world, common=True)
    ranks = run.evidence
    flat = ranks[0]["found"]
    expect(
        "saved/.metadata" in run.files,
        "save_sharded leaves no checkpoint in the folder",
        "saved/.metadata and a file of each rank",
        sorted(name for name in run.files if name.startswith("saved")) or "no file",
    )
    for name, value in together(ranks, "state").items():
        what = "the optimizer's state" if name.rpartition(".")[2] in OPTIMIZERS else "the model's weights"
        seen = entry(flat, name, value)
        expect(
            seen is not None,
            (
                f"{what} are not all in the checkpoint: there is no {name}"
                if what.endswith("s")
                else f"{what} is not in the checkpoint: there is no {name}"
            ),
            name,
            f"{len(flat)} entries",
        )
        expect(
            same_value(seen, value),
            f"{name} in the checkpoint is not what the ranks held",
            tuple(value.shape),
            tuple(getattr(seen, "shape", ())),
        )
    for name, value in PLACE.items():
        expect(
            any(path.endswith(f".{name}") and other == value for path, other in flat.items()),
            f"the position is not in the checkpoint: there is no {name} of {value}",
            value,
            next((held for path, held in flat.items() if path.endswith(f".{name}")), None),
        )
    check_written(run)


def check_written(run):
    """Each rank writes its own shards, and sends none of them."""
    blocks, rest = shapes_of()
    share = 4 * held_by_one([shape for block in blocks for shape in block] + rest, 2)
    for rank, events in enumerate(run.events):
        given = sum(event["bytes"] for event in calls(events, "save") if event["dtype"] == "float32")
        expect(
            given < share,
            f"rank {rank} gives {given:,} bytes of its shards to the others before anything is written: the whole"
            " state is assembled, and may not fit on any rank",
            "each rank writes its own shards",
            f"{given:,} bytes sent",
            rank,
            "Does a state dict of sharded tensors have to be whole to be written? Which option makes it so?",
        )
    total = sum(seen["wrote"] for seen in run.evidence)
    for rank, seen in enumerate(run.evidence):
        # An even share is a quarter; the rest is for shards that cannot be divided evenly, and for headers.
        expect(
            seen["wrote"] < 0.5 * total,
            f"rank {rank} writes {seen['wrote']:,} of {total:,} bytes: the ranks do not divide the work",
            f"about {total // len(run.evidence):,} bytes",
            f"{seen['wrote']:,} bytes",
            rank,
            "Which ranks make the call that writes, and what do they have in their dictionary: shards, or all of it?",
        )


@todo(11, in_place=("position",), needs=tuple(range(1, 11)))
def test_todo11_load_sharded(student):
    world, onto = 4, student.several((2, 1))
    left = student.call(load_sharded_on_rank, world=world, onto=onto, common=True).evidence
    right = together(left, "saved")
    for ranks in onto:
        seen = [left[rank][str(ranks)] for rank in range(ranks)]
        told = f"saved on {world} ranks and loaded on {ranks},"
        for name, value in together(seen, "state").items():
            what = "the optimizer's" if name.rpartition(".")[2] in OPTIMIZERS else "the model's"
            expect(
                value.shape == right[name].shape and torch.equal(value, right[name]),
                f"{told} {what} {name} is not what was saved",
                right[name],
                value,
                hint="A load fills the dictionary that it is given. Does all of it then reach model and optimizer?",
            )
        for rank, mine in enumerate(seen):
            expect(
                mine["position"] == PLACE,
                f"{told} the position that rank {rank} gets is not what was saved",
                PLACE,
                mine["position"],
                rank,
                "Tensors are filled in place; a number cannot be. In which dictionary is the new one?",
            )
    check_going_on(student)


# Two epochs of two steps, saved after each; and the runs that resume after the first of them.
LONG = [*ARGV, "--log-every", "1"]


SAVED = "out-0/step-2"


RESUMED = [
    [4, [*LONG, "--resume", SAVED]],
    [2, [*LONG, "--sharding", "grad", "--resume", SAVED, "--recompute"]],
    [1, [*LONG, "--resume", SAVED]],
]


@hinted(
    "What does a run need in order to continue as if it had never stopped? Compare its first step after the stop"
    " with that step of the run without one."
)
def check_going_on(student):
    """The run that is resumed after an epoch is the run that never stopped; on as many ranks, to the last bit."""
    serial = serial_run(student, LONG)
    right = losses(serial.evidence[0])
    asked = [[4, [*LONG, "--save"]], *student.several(RESUMED)]
    run = student.call(mains_on_rank, world=4, group=None, runs=asked, data=corpus(student), common=True)
    runs = [[mine[number] for mine in run.evidence if mine[number] is not None] for number in range(len(asked))]
    same_losses("on 4 ranks", right, runs[0])
    told = "saved after an epoch on 4 ranks and resumed on {},"
    for number, (ranks, _) in enumerate(asked[1:], start=1):
        steps = min(map(len, map(training, runs[number])))
        expect(steps == 2, f"{told.format(ranks)} it makes {steps} steps; without a stop there were two more", 2, steps)
        same_losses(told.format(ranks), right[2:], runs[number])
        report = [line for line in reported(serial) if line["step"] > 2]
        same_report(told.format(ranks), report, reported(run, f"out-{number}"))
        if ranks == 4:
            same_to_the_bit(told.format(ranks), runs[0], runs[number])
    for number, (ranks, _) in enumerate(asked):
        if ranks > 1:
            steps = len(right) if number == 0 else 2
            check_shards_travel(told.format(ranks) if number else "on 4 ranks", serial, run, number, ranks, steps)


def same_to_the_bit(told, through, resumed):
    """Of two runs on as many ranks, each rank's losses after the stop and the last weights."""
    for rank, (first, again) in enumerate(zip(through, resumed, strict=True)):
        expect(
            losses(first)[2:] == losses(again),
            f"{told} the losses of rank {rank} differ in a bit from those without a stop",
            losses(first)[2:],
            losses(again),
            rank,
        )
    a, b = together(through, "weights"), together(resumed, "weights")
    for name in a:
        expect(
            torch.equal(a[name], b[name]),
            f"{told} the last {name} differs in a bit from the one without a stop",
            "equal weights",
            "others",
        )

"""Checks of lightning_training, TODOs 4, 5, 8 and 9: trainer.

| TODO | achievement                      | evidence                                                                  | needs |
|------|----------------------------------|---------------------------------------------------------------------------|-------|
| 4    | devices and nodes                | layout() on 1 × 3 and 2 × 1 (nodes × ranks), and without a launcher        |       |
| 5    | one model                        | Lightning fits a model of the check's on 3 ranks: weights against one process; the backend |  |
| 8    | samplers left alone              | Lightning validates by make_trainer() on 3 ranks: what reached the model   | 4, 5  |
| 9    | saved once, as a plain model; the run is the serial run | who wrote; what the file holds; a whole run on 3 ranks | 1 – 8 |
"""  # noqa: E501

import torch

from grader.kit import (
    REL,
    Wrong,
    check_checkpoint,
    corpus,
    expect,
    hinted,
    near,
    on_nodes,
    one_writer,
    same_run,
    tiny_batch,
    tiny_model,
    todo,
)

from .ranks import BATCH, SETS, backend_on_rank, fit_on_rank, layout_on_rank, reached_on_rank, save_on_rank, weights

LAYOUTS = ((1, 3), (2, 2))  # nodes, ranks: in the second a node has fewer than there are


# ---------------------------------------------------------------------------------------------------
# TODO 4: devices and nodes


@todo(4)
def test_todo4_layout(student):
    for nodes, world, alone in (*((*layout, False) for layout in LAYOUTS), (1, 1, True)):
        told = (
            "in a process without a launcher"
            if alone
            else f"on {nodes} node{'s' if nodes > 1 else ''} × {world // nodes}"
        )
        with hinted(
            "Without a launcher none of its variables is set. How many processes and nodes are there then?" * alone
        ):
            how = dict(world=world, nodes=nodes, gpus=world // nodes + 2, group=False)  # more GPUs than processes
            ranks = student.call(layout_on_rank, **how, alone=alone).evidence
        for rank, (devices, num_nodes) in enumerate(ranks):
            for name, seen, right in (("devices", devices, world // nodes), ("nodes", num_nodes, nodes)):
                expect(
                    not isinstance(seen, str),
                    f"the number of {name} is text; what comes from os.environ always is",
                    right,
                    repr(seen),
                    rank,
                    WHOLE,
                )
                expect(
                    isinstance(seen, int),
                    f"{told}, layout() gives rank {rank} {name} as a number other than an int: Lightning refuses it",
                    right,
                    repr(seen),
                    rank,
                    WHOLE,
                )
                expect(seen == right, f"{told}, layout() gives rank {rank} a wrong number of {name}", right, seen, rank)


WHOLE = "Numbers of devices and nodes are whole. Which calls and which division give an int?"


# ---------------------------------------------------------------------------------------------------
# TODO 5: the strategy


def steps_of_one_process(seeds):
    model = tiny_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for number in range(2):
        model.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*(tiny_batch(seed + number) for seed in seeds)))
        model(x, y).backward()
        optimizer.step()
    return weights(model)


@todo(5)
def test_todo5_strategy(student):
    world = 3
    seeds = student.seeds(world)
    # A node for each rank; the second run has one node.
    run = student.call(fit_on_rank, world=world, nodes=world, group=False, seed=seeds)
    ranks = run.evidence
    right = student.reference(steps_of_one_process, seeds=[*seeds])
    for rank, seen in enumerate(ranks):
        expect(
            not seen["starts"],
            "this strategy starts its own processes, in addition to torchrun's",
            f"{world} processes",
            f"{world} × {world} processes",
            rank,
            "torchrun has started a process for each rank. Which strategies expect that, and which start their own?",
        )
        expect(
            seen["ranks"] == world,
            f"rank {rank} is in no process group of {world} ranks, so it cannot communicate",
            world,
            seen["ranks"],
            rank,
        )
    for rank, seen in enumerate(ranks):
        wrong = [name for name in right if not near(seen["weights"][name], right[name], REL)]
        if wrong:
            apart = any(
                not torch.equal(other["weights"][name], ranks[0]["weights"][name]) for other in ranks for name in right
            )
            what = (
                "the ranks' weights have drifted apart"
                if apart
                else "all ranks have the same weights, but not those that one process has"
            )
            raise Wrong(
                f"after two steps on {world} ranks, rank {rank}'s weights differ from one process's on the whole"
                f" batches ({wrong[0]}): {what}",
                "equal weights",
                "others",
                rank,
                ""
                if apart
                else "All ranks agree, so they communicate. Which option changes what they send, or how often?",
            )
    run = student.call(backend_on_rank, world=2, group=False, gpus=2)
    asked = next((e["detail"] for e in run.events[0] if e.get("op") == "init_process_group"), "none")
    hint = "A strategy finds the backend by the device, unless it is told one. What is yours told?"
    expect("nccl" in asked, "on a machine with GPUs the group does not use NCCL", "nccl", asked, 0, hint)


# ---------------------------------------------------------------------------------------------------
# TODO 8: samplers left alone


@todo(8, needs=(4, 5))
def test_todo8_own_samplers(student):
    for nodes in (1, 3):
        check_own_samplers(student, nodes)


MORE = "an argument changes more than the samplers"


def check_own_samplers(student, nodes):
    world, size = 3, SETS[1]
    assert size % world
    where = f" on {nodes} nodes with one rank each" if nodes > 1 else ""
    shares = student.call(reached_on_rank, world=world, nodes=nodes, group=False).evidence
    for rank, left in enumerate(shares):
        own, seen = list(range(rank, size, world)), left["samples"]
        why = MORE if left["ours"] else "Lightning has put its own sampler around it"
        expect(
            sorted(seen) == own,
            f"rank {rank} of {world}{where} evaluates {len(seen)} samples of a loader whose sampler deals {len(own)}:"
            f" {why}",
            own,
            sorted(seen),
            rank,
        )
        expect(
            (left["steps"], left["evaluated"]) == (6, 4),
            f"with the Trainer of make_trainer(), rank {rank} of {world}{where} makes {left['steps']} steps and"
            f" validates {left['evaluated']} batches in two epochs, of 3 and 2 batches each: {MORE}",
            "6 steps, 4 batches",
            f"{left['steps']} steps, {left['evaluated']} batches",
            rank,
            "Each entry of the dictionary is an argument of L.Trainer. What does each of yours change?",
        )


# ---------------------------------------------------------------------------------------------------
# TODO 9: the checkpoint; and the law of the course


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a learning rate that moves weights.
ARGV = (
    f"--data data --out out --epochs 2 --batch-size {BATCH} --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd "
    "--lr 0.5 --seed 5 --log-every 2"
).split()


@todo(9, needs=tuple(range(1, 9)))
def test_todo9_save(student):
    for nodes in (1, 2):
        with on_nodes(nodes, 2):
            check_save(student, nodes)
    serial = student.serial(ARGV, corpus(student))
    same_run(serial, student.run(ARGV, corpus(student), world=3), 3)


def check_save(student, nodes):
    run = student.call(save_on_rank, world=2, nodes=nodes)
    one_writer(run)
    check_checkpoint(
        run.files["saved/model.pt"],
        tiny_model(seed=0).state_dict(),
        epoch=3,
        config=tiny_model(seed=0).config,
        earlier=tiny_model(seed=1).state_dict(),
    )

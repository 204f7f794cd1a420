"""Checks of ddp_training, TODOs 8, 10, 11 and 12: model and output.

| TODO | achievement                        | evidence                                                   | needs          |
|------|------------------------------------|------------------------------------------------------------|----------------|
| 8    | one model                          | first weights; gradients against one process; bytes reduced |               |
| 10   | the mean over all tokens           | global_mean() of other totals and counts on each rank      |                |
| 11   | said once                          | whole run: the lines of each rank, and the losses in them  | 1, 2           |
| 12   | saved once, without the wrapper    | who wrote; what the file holds; that it loads here         |                |
"""  # noqa: E501

import math
import re

import torch

from grader.kit import (
    LARGE,
    TINY,
    Private,
    Wrong,
    check_checkpoint,
    check_tensor,
    expect,
    hinted,
    numbers,
    on_nodes,
    one_writer,
    reported,
    tiny_batch,
    tiny_model,
    todo,
)

from .common import LAYOUTS, serial_run, whole_run
from .ranks import mean_on_rank, model_to_save, save_on_rank, wrap_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 8: one model


def gradients_on_one_process(seeds):
    """For each rank's batch, the gradients that one process with rank 0's weights computes."""
    model, own = tiny_model(seeds[0][0]), []
    for _, seed in seeds:
        model.zero_grad()
        model(*tiny_batch(seed)).backward()
        own.append({name: p.grad.clone() for name, p in model.named_parameters()})
    return own


@todo(8)
def test_todo8_wrap(student):
    world = 3
    draw = student.draw("wrap")
    seeds = [[draw.randrange(1 << 40), draw.randrange(1 << 40)] for _ in range(world)]
    own = student.reference(gradients_on_one_process, seeds=seeds)
    mean = {name: sum(g[name] for g in own) / world for name in own[0]}
    apart = any(not torch.allclose(mean[name], own[0][name], rtol=1e-2, atol=1e-5) for name in mean)
    student.premise(apart, "the gradients of one rank")
    for nodes in (1, world):
        with on_nodes(nodes, world):
            check_wrap(student, nodes, world, seeds, own, mean)


def check_wrap(student, nodes, world, seeds, own, mean):
    run = student.call(wrap_on_rank, world=world, nodes=nodes, seeds=Private(seeds))
    ranks = run.evidence
    for rank, seen in enumerate(ranks):
        own_gpu = rank % (world // nodes)
        expect(
            seen["gpus"] in (["other"], [own_gpu]),
            f"on GPU {own_gpu} of its node, rank {rank} tells DistributedDataParallel"
            f" {'a different GPU' if seen['gpus'] else 'no GPU'}",
            [own_gpu],
            seen["gpus"],
            rank,
        )
        for name in mean:
            expect(
                name in seen["weights"],
                f"the wrapped model has no parameter {name} on rank {rank}",
                name,
                sorted(seen["weights"])[:3],
                rank,
            )
            check_tensor(
                f"the first {name} on rank {rank} of {world}",
                seen["weights"][name],
                ranks[0]["weights"][name],
                rank=rank,
                than="rank 0's",
            )
    for rank, seen in enumerate(ranks):
        for name, right in mean.items():
            grad = seen["grads"][name]
            expect(grad is not None, f"{name} has no gradient on rank {rank}", "a gradient", None, rank)
            summed = right * world, "All ranks' gradients are in the sum: by what must it be divided?"
            check_tensor(
                f"after backward on rank {rank} of {world}, the gradient of {name}",
                grad,
                right,
                1e-4,  # float32 sums in a different order: 1e-6 measured
                rank,
                wrongs={
                    "the gradient of this rank's batch alone: nothing is averaged over the ranks": own[rank][name],
                    f"summed over the {world} ranks, not averaged": summed,
                },
                than="what one process computes on the whole batch",
            )
    held = sum(grad.numel() * grad.element_size() for grad in mean.values())
    for rank, events in enumerate(run.events):
        sent = sum(e["bytes"] for e in events if e["e"] == "op")
        expect(
            sent >= 2 * held,
            f"rank {rank} gave {sent} bytes to the others in two backward passes; its gradients are "
            f"{held} bytes each time",
            f"at least {2 * held} bytes",
            f"{sent} bytes",
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 10: the mean over all tokens


def draw_means(student):
    """Totals and counts of three ranks, by case. First, rank 1 has most tokens and the largest mean; then rank 2 has
    none; then all have about as many, but more than float32 and int32 can count; last, rank 0's total is nan. An answer
    that weights ranks instead of tokens shows.
    """
    draw, cases = student.draw("means"), []
    for last in (1, 0):
        counts = [float(draw.randrange(2, 5)), float(draw.randrange(10, 20)), float(last * draw.randrange(2, 5))]
        totals = [counts[0] * draw.uniform(1, 2), counts[1] * draw.uniform(4, 6), counts[2] * draw.uniform(2, 3)]
        cases.append((totals, counts))
    many = [int(number) + LARGE for number in numbers(draw, 3)]
    cases.append(([count * draw.uniform(1, 6) for count in many], [float(count) for count in many]))
    return [*cases, ([math.nan, *totals[1:]], counts)]  # a rank that has diverged, which must show


@todo(10)
def test_todo10_global_mean(student):
    world = 3
    for nodes in (1, world):
        with on_nodes(nodes, world):
            check_means(student, nodes, world)


def check_means(student, nodes, world):
    cases = draw_means(student)
    ranks = student.call(
        mean_on_rank,
        world=world,
        nodes=nodes,
        anywhere=True,
        mine=Private([[(totals[rank], counts[rank]) for totals, counts in cases] for rank in range(world)]),
    ).evidence
    for case, (totals, counts) in enumerate(cases):
        right = sum(totals) / sum(counts)
        means = [t / c if c else math.nan for t, c in zip(totals, counts, strict=True)]
        for rank, values in enumerate(ranks):
            value = values[case]
            if math.isnan(right):
                told = (
                    f"global_mean is {value}, where rank 0's total is nan: a run that has diverged would look healthy"
                )
                expect(math.isnan(value), told, "nan", value, rank)
                continue
            if math.isclose(value, right, rel_tol=1e-12):  # both are float64, with a last digit of 1e-15
                continue
            if math.isclose(value, means[rank], rel_tol=1e-6):
                what = f"it is rank {rank}'s own mean: nothing is reduced over the ranks"
            elif math.isclose(value, sum(means) / world, rel_tol=1e-6) or math.isnan(value):
                what = (
                    f"it is the mean of the ranks' means, which gives a rank of {counts[0]:g} tokens the same weight as"
                    f" one of {counts[1]:g}. Reduce the sum and the count, then divide once"
                )
            elif math.isclose(value, right * world, rel_tol=1e-6) or math.isclose(value, sum(means), rel_tol=1e-6):
                what = "it is a sum over the ranks that is not divided by the right number"
            elif math.isclose(value, right, rel_tol=1e-6):
                what = "its last digits are lost. Totals and counts are float64; in which dtype are they added up?"
            else:
                what = "it is not the sum of the totals over the sum of the counts"
            raise Wrong(
                f"global_mean of totals {[round(t, 3) for t in totals]} and counts {counts} is wrong on rank {rank}:"
                f" {what}",
                right,
                value,
                rank,
            )


# ---------------------------------------------------------------------------------------------------
# Whole runs: TODOs 9, 11, 13


@todo(11, needs=(1, 2))
def test_todo11_print(student):
    def lines(text):
        # Without the lines that report progress in a long run: they depend on the clock.
        return [line for line in text.splitlines() if line.strip() and not line.startswith("step ")]

    serial = serial_run(student)
    right = len(lines(serial.stdout[0]))
    losses = [f"{loss:.4f}" for loss in measured(serial).values()]
    student.premise(len(set(losses)) == len(losses), "one loss in place of another")
    for nodes, world in LAYOUTS:
        run = whole_run(student, world, nodes)
        printed = [lines(text) for text in run.stdout]
        speakers = [rank for rank, said in enumerate(printed) if said]
        total = sum(len(said) for said in printed)
        with on_nodes(nodes, world):
            expect(
                total >= right,
                f"{world} ranks together print {total} lines, one process prints {right}: some output is missing",
                f"{right} lines",
                f"{total} lines",
            )
            if total > right or len(speakers) > 1:
                second = speakers[1] if len(speakers) > 1 else speakers[0]
                raise Wrong(
                    f"{world} ranks print {total} lines where one process prints {right}; rank {second} prints"
                    f" “{printed[second][0][:60]}”",
                    f"{right} lines, by one rank",
                    f"{total} lines, by ranks {speakers}",
                    second,
                )
            check_printed(printed[speakers[0]], measured(run), speakers[0])


def measured(run):
    """The losses of a run that are worth a line, as its metrics.jsonl has them."""
    found = {}
    for line in reported(run):
        if line["kind"] == "epoch":
            found[f"the validation loss of epoch {line['epoch']}"] = line["validation_loss"]
        elif line["kind"] == "test":
            found["the test loss"] = line["loss"]
    return found


def check_printed(lines, losses, rank):
    """Each loss is among the numbers that are printed, rounded as they are: to half of the last digit."""
    numbers = re.findall(r"\d+\.\d+", " ".join(lines))
    for what, loss in losses.items():
        expect(
            not math.isfinite(loss)
            or any(abs(float(number) - loss) < 0.51 * 0.1 ** len(number.partition(".")[2]) for number in numbers),
            f"rank {rank} does not print {what}, which is {loss:.4f}",
            f"{loss:.4f}",
            [line for line in lines if re.search(r"\d\.\d", line)],
            rank,
            "The number of lines is right. Which numbers does each of the three places print?",
        )


# ---------------------------------------------------------------------------------------------------
# TODO 12: save once


@todo(12)
def test_todo12_save(student):
    for nodes, world in ((1, 2), (3, 3)):
        with on_nodes(nodes, world):
            check_save(student, nodes, world)


def check_save(student, nodes, world):
    run = student.call(save_on_rank, world=world, nodes=nodes)
    writers = one_writer(run)
    check_checkpoint(
        run.files["saved/model.pt"],
        model_to_save(seed=0).state_dict(),
        epoch=3,
        config=TINY,
        earlier=model_to_save(seed=1).state_dict(),
    )
    alone = student.call(save_on_rank, world=1)  # rank 0 and the last one, with a model that is also wrapped
    expect(
        "saved/model.pt" in alone.files,
        f"rank {writers[0]} saves; a process that runs alone is rank 0, and saves nothing",
        "rank 0 saves",
        f"rank {writers[0]} saves",
        writers[0],
    )
    with hinted(
        "This file was saved by a single process. Its model is wrapped, too: look at the model, not at the world size."
    ):
        check_checkpoint(alone.files["saved/model.pt"], model_to_save(seed=0).state_dict())

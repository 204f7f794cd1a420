"""Checks of pipeline_training, TODOs 4 to 7: step.

| TODO | achievement                     | evidence                                                            | needs |
|------|---------------------------------|---------------------------------------------------------------------|-------|
| 4    | micro-batches that add up       | sums, gradients, targets ignored unequally; bfloat16; each schedule's gradients on 3 ranks | |
| 5    | a batch through the pipeline    | gradients and losses on 2 × 2, 4 × 1 and 1 × 4 ranks; evaluate() on 2 × 2, where shares differ and one is empty | |
| 6    | gradients over the data axis    | sum_gradients() on 2 × 2, 1 × 3 and 3 × 1 ranks; messages           |       |
| 7    | the norm of the whole gradient  | clip_gradients() on 2 × 2 and 3 × 1 ranks                           |       |
"""  # noqa: E501

import math

import torch
from torch import nn

from grader.kit import (
    REL,
    Fault,
    Since,
    Wrong,
    cases,
    check_calls,
    check_norm,
    check_tensor,
    collectives,
    expect,
    hinted,
    scale_of,
    shares,
    todo,
)
from utils import releases
from utils.data import IGNORE
from utils.pipeline_flags import SCHEDULES_SINCE

from .common import with_stages
from .ranks import (
    CLIPS,
    LENGTHS,
    LONG,
    MICRO,
    Toy,
    batch,
    batch_seed,
    clip_on_rank,
    cut_stage,
    drawn_for,
    evaluate_on_rank,
    loss_on_rank,
    made_model,
    micro_batches,
    schedules_on_rank,
    sum_on_rank,
    text,
    toy_batch,
    toy_loss,
    train_on_rank,
)


def named_gradients(module):
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


# ---------------------------------------------------------------------------------------------------
# TODO 4: micro-batches that add up


def serial_losses(seed):
    weight = cut_stage(made_model(seed), 1, 2).head.weight
    found = []
    for h, y in micro_batches(seed):
        h.requires_grad_()
        weight.grad = None
        loss = nn.functional.cross_entropy(
            (h @ weight.T).flatten(0, 1), y.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        loss.backward()
        found.append({
            "loss": loss.item(), "grads": [h.grad, weight.grad],
            "targets": int((y != IGNORE).sum()), "positive": int((y > 0).sum()),
        })  # fmt: skip
    return found


def serial_toy(seed, n_stages, m):
    x, y = toy_batch(seed, 2 * m)
    stages = [Toy(stage, []) for stage in range(n_stages)]
    h = x
    for stage in stages:
        h = stage(h)
    toy_loss(h, y).backward()
    losses = [toy_loss(a, b).item() for a, b in zip(h.detach().chunk(m), y.chunk(m), strict=True)]
    return {"grads": [stage.weight.grad for stage in stages], "losses": losses}


@todo(4)
def test_todo4_loss(student):
    with hinted("What turns a mean over some targets back into their sum?"):
        check_loss_of(student)
    with hinted("The gradients are already summed over micro-batches. Where are they divided, and by what?"):
        check_scale(student)


def check_loss_of(student):
    seed = student.draw("loss").randrange(1000)
    right = student.reference(serial_losses, seed=seed)
    (left,) = student.call(loss_on_rank, world=1, group=False, seed=seed).evidence
    for k, seen in enumerate(left):
        wanted, bfloat16 = right[k % len(right)], k >= len(right)
        n, loss = wanted["targets"], seen["loss"]
        told = f"of a micro-batch with {n} targets, loss_of{' in bfloat16' if bfloat16 else ''}"
        # bfloat16 has 8 bits; 0.3 % of a sum was measured, and 1 % of a gradient.
        rel, rel_grad = (2e-2, 5e-2) if bfloat16 else (REL, REL)
        expect(isinstance(loss, float), f"{told} returns no tensor of one number", "a scalar", loss)
        if not math.isclose(loss, wanted["loss"], rel_tol=rel, abs_tol=1e-6):
            what = (
                "the mean over its targets, not the sum"
                if n and math.isclose(loss, wanted["loss"] / n, rel_tol=rel)
                else "not the sum of its losses: word 0 is a target like any other"
                if n and math.isclose(loss, wanted["loss"] / n * wanted["positive"], rel_tol=rel)
                else "not the sum of its losses"
            )
            raise Wrong(f"{told} returns {what}", wanted["loss"], loss)
        scale = scale_of(wanted["grads"])
        for name, grad, wanted_grad in zip(("h", "the head's weight"), seen["grads"], wanted["grads"], strict=True):
            expect(grad.numel() > 0, f"{told} gives {name} no gradient", "a gradient", "none")
            what = f"{told}: the gradient of {name}"
            check_tensor(what, grad, wanted_grad, rel_grad, scale=scale, than="one process's")
    exact, rough = left[0]["loss"], left[len(right)]["loss"]
    expect(
        exact != rough,
        "with layers.bfloat16 the loss equals float32's to the last bit: the head does not compute in bfloat16",
        "bfloat16",
        "float32",
    )


def check_scale(student):
    draw, world = student.draw("schedule"), 3
    seed = draw.randrange(1000)
    # The flags let more than one round of p only in whole rounds.
    kinds = [
        ("gpipe", draw.randint(5, 7)),
        *([] if releases.lacks("2.11", "GPipe with fewer micro-batches than stages") else [("gpipe", 2)]),
        ("1f1b", draw.randint(world + 1, world + 2)),
        ("interleaved", 2 * world),
        ("zero-bubble", 2 * world),
    ]
    ranks = student.call(schedules_on_rank, world=world, seed=seed, kinds=kinds).evidence
    for number, (kind, m) in enumerate(kinds):
        told = f"with --schedule {kind} and {m} micro-batches on {world} ranks,"
        n_stages = world * (2 if kind == "interleaved" else 1)
        mine = [left[number] for left in ranks]
        check_work(told, mine, m, world)
        check_toys(told, mine, student.reference(serial_toy, seed=seed, n_stages=n_stages, m=m), m, world)


def check_work(told, ranks, m, world):
    for rank, seen in enumerate(ranks):
        for chunk, rows in enumerate(seen["rows"]):
            stage = rank + chunk * world
            expect(len(rows) > 0, f"{told} stage {stage} runs no forward pass", f"{m} micro-batches", "none", rank)
            expect(
                len(rows) > 1,
                f"{told} stage {stage} runs the whole batch at once: no other rank can work in the meantime",
                f"{m} micro-batches of 2 rows",
                f"{len(rows)} of {rows[0]} rows",
                rank,
            )
            expect(
                rows == [2] * m,
                f"{told} stage {stage} runs {len(rows)} micro-batches",
                f"{m} of 2 rows",
                f"{len(rows)} of {sorted(set(rows))} rows",
                rank,
            )
            for kind, name in (("W", "weight"),) if stage == 0 else (("W", "weight"), ("B", "input")):
                done = {k for event, where, k in map(tuple, seen["log"]) if event == kind and where == stage}
                expect(
                    len(done) == m,
                    f"{told} stage {stage} computes the gradient of its {name} for {len(done)} of {m} micro-batches",
                    m,
                    len(done),
                    rank,
                )


def check_toys(told, ranks, right, m, world):
    for rank, seen in enumerate(ranks):
        for chunk, grad in enumerate(seen["grads"]):
            stage, wanted = rank + chunk * world, right["grads"][rank + chunk * world]
            expect(grad.numel() > 0, f"{told} stage {stage} gets no gradient", "a gradient", "none", rank)
            divided = "divided by the number of micro-batches: the loss is a sum, so nothing may be scaled"
            wrongs = {divided: wanted / m, "divided by the number of micro-batches twice": wanted / m**2}
            than = "the gradient of the sum of all losses"
            check_tensor(f"{told} the gradient of stage {stage}", grad, wanted, REL, rank, wrongs=wrongs, than=than)
    seen = ranks[-1]["losses"]
    expect(
        len(seen) == m
        and None not in seen
        and all(math.isclose(a, b, rel_tol=REL) for a, b in zip(seen, right["losses"], strict=True)),
        f"{told} the last stage does not report the loss of each micro-batch",
        [round(loss, 4) for loss in right["losses"]],
        seen,
        world - 1,
    )


# ---------------------------------------------------------------------------------------------------
# TODO 5: a batch through the pipeline


# Stages, pipelines, stages a rank. Two pipelines have last stages on two ranks. In a pipeline of four stages some ranks
# have neither the first nor the last; in a pipeline of one stage, this one is both.
TRAINED = ((2, 2, 1), (4, 1, 1), (2, 2, 2), (1, 4, 1))


def serial_batches(seed):
    """The loss and the gradients of each pipeline's two batches."""
    return [[serial_sum(batch_seed(seed, copy, k)) for k in range(2)] for copy in range(4)]


def serial_sum(seed):
    model = made_model(0, **LONG)
    x, y = batch(seed, 2 * MICRO)
    loss = model(x, y) * (y != IGNORE).sum()
    loss.backward()
    return {"loss": loss.item(), "grads": named_gradients(model)}


@todo(5, since=Since(*SCHEDULES_SINCE))
def test_todo5_batches(student):
    right = student.reference(serial_evaluation)
    student.premise(abs(right[0] - right[1]) > 1e-3, "one set in place of the other")
    with hinted("One call for the passes. What is the sum of a list that may be empty, and may still have its graph?"):
        check_training(student)
    with hinted("The same without backward passes. On which ranks are the losses, and so the targets to be counted?"):
        check_evaluating(student, right)


def check_training(student):
    seed = student.draw("train").randrange(1000)
    rights = student.reference(serial_batches, seed=seed)
    grids = student.several(TRAINED, but=TRAINED[-1:])
    run = student.call(train_on_rank, world=4, seed=seed, grids=grids)
    for number, grid in enumerate(grids):
        second = cases(run.events)[4 * number + 2]  # in the first batch stages agree on shapes
        check_batches(grid, [left[number] for left in run.evidence], second, rights)


def check_batches(grid, ranks, second, rights):
    pp, data, many = grid
    on = f"{pp} × {data} ranks{with_stages(many)}"
    for k in range(2):
        for rank, left in enumerate(ranks):
            seen, right = left[k], rights[rank % data][k]
            told = f"on rank {rank} of {on}, batch {k + 1} of 2:"
            plain = seen["loss"] is not None
            hint = "The signature says Tensor, on each rank, with or without losses: train_epoch computes with it."
            expect(
                plain,
                f"{told} train_batch does not return a tensor of one number",
                "a tensor of one number",
                seen["kind"],
                rank,
                hint,
            )
            some = any(other[k]["grads"] for other in ranks)
            expect(some, f"{told} train_batch leaves no gradient", "gradients on all stages", "none", rank)
            check_trained(told, seen, right, rank)
            check_reported_loss(told, seen["loss"], right["loss"] if rank // data == pp - 1 else 0.0, many, rank)
        for copy in range(data):
            names = {name for left in ranks[copy::data] for name in left[k]["grads"]}
            lost = sorted(set(rights[copy][k]["grads"]) - names)
            expect(
                not lost,
                f"in batch {k + 1} of 2 on {on}, {lost[0] if lost else ''} gets no gradient",
                f"{len(rights[copy][k]['grads'])} gradients",
                f"{len(names)} gradients",
            )
    talk = collectives(second)
    expect(
        not talk,
        f"train_batch calls {talk[0].op if talk else ''}: between stages there are messages, and gradients are summed"
        " later, once per step",
        "messages alone",
        f"{len(talk)} collectives",
        talk[0].rank if talk else None,
    )


def check_trained(told, seen, right, rank):
    for name, grad in seen["grads"].items():
        goal = right["grads"][name]
        than = "the gradient of the sum of all losses"
        check_tensor(f"{told} the gradient of {name}", grad, goal, REL, rank, than=than)
    expect(
        not seen["graph"],
        f"{told} the value that train_batch returns still has its graph, which keeps all activations alive",
        "a detached tensor",
        "one with a graph",
        rank,
    )
    expect(
        not seen["kept"],
        f"{told} after train_batch the outputs of {seen['kept']} micro-batches are still in memory",
        "none: their gradients are made",
        f"{seen['kept']} outputs",
        rank,
        hint="schedule.step can return the outputs, or not. What does it keep them for?",
    )


def check_reported_loss(told, loss, wanted, many, rank):
    """`wanted` is 0 on a rank without the last stage."""
    same = math.isclose(loss, wanted, rel_tol=REL, abs_tol=1e-9)
    if wanted and not same:
        what = (
            "it is the mean over micro-batches"
            if math.isclose(loss, wanted / MICRO, rel_tol=REL)
            else "the last stage is this rank's second one"
            if many > 1 and loss == 0
            else "the last stage of its pipeline is on this rank"
            if loss == 0
            else "each target must count once"
        )
        raise Wrong(f"{told} train_batch does not return the sum of the losses: {what}", wanted, loss, rank)
    expect(same, f"{told} train_batch returns a loss, which only the rank of the last stage can know", 0, loss, rank)


def serial_evaluation():
    model, means = made_model(0, **LONG), []
    for length in LENGTHS:
        x, y = (torch.stack(parts) for parts in zip(*text(length), strict=True))
        means.append(model(x, y).item())
    return means


def check_evaluating(student, right):
    for grid, turns in (((2, 2), (1, 2)), ((3, 1), (1,))):
        run = student.call(evaluate_on_rank, world=math.prod(grid), grid=grid, turns=turns)
        for k, many in enumerate(turns):
            check_means(grid, many, right, [left[k] for left in run.evidence])


def check_means(grid, many, right, ranks):
    pp, told = grid[0], f"on {grid[0]} × {grid[1]} ranks{with_stages(many)},"
    for rank, left in enumerate(ranks):
        for length, mean, wanted in zip(LENGTHS, left["means"], right, strict=True):
            if not math.isclose(mean, wanted, rel_tol=REL):
                what = (
                    f"a loss {pp} times too small: do ranks without the last stage count targets?"
                    if math.isclose(mean * pp, wanted, rel_tol=REL)
                    else "no number: does the rank count targets whose second stage is the last?"
                    if many > 1 and math.isnan(mean)
                    else "not the loss that one process finds: is each target counted once, and nothing else?"
                )
                samples = f"{length} sample{'s' if length > 1 else ''}"
                raise Wrong(f"{told} evaluate() of {samples} gives rank {rank} {what}", wanted, mean, rank)
        expect(not left["grads"], f"{told} evaluate() leaves gradients", "none", "gradients", rank)


# ---------------------------------------------------------------------------------------------------
# TODO 6: gradients over the data axis


# Of each run: stages, copies, stages a rank. With three stages, messages for each are more than the two allowed.
GRIDS = (((2, 2, 3),), ((1, 3, 1), (3, 1, 2)))


def drawn_targets(student, data):
    """Of each of so many copies; of three, one has none, as a short batch may."""
    draw = student.draw("targets", data)
    return shares(draw, data, most=40) if data > 2 else draw.sample(range(10, 40), data)


def serial_sums(grid, seeds, targets):
    """For each rank the sum of its row's gradients over the row's targets, and the results easily mistaken for it."""
    pp, data, turns = grid
    found = []
    for rank in range(pp * data):
        first, model = rank // data * data, made_model(0, **LONG)
        modules = [cut_stage(model, rank // data + k * pp, pp * turns) for k in range(turns)]
        row = [drawn_for(modules, seeds[first + d]) for d in range(data)]
        means = [{name: grad / n for name, grad in grads.items()} for grads, n in zip(row, targets) if n]
        found.append({
            "right": {name: sum(grads[name] for grads in row) / sum(targets) for name in row[0]},
            "own": {name: grad / max(1, targets[rank % data]) for name, grad in row[rank % data].items()},
            "means": {name: sum(mean[name] for mean in means) / data for name in row[0]},
            "sums": {name: sum(grads[name] for grads in row) for name in row[0]},
        })  # fmt: skip
    return found


@todo(6)
def test_todo6_sum_gradients(student):
    targets = {str(data): drawn_targets(student, data) for data in (1, 2, 3)}
    for grids in GRIDS:
        world = grids[0][0] * grids[0][1]
        seeds, told = student.seeds(world), " and ".join(f"{pp} × {data}" for pp, data, _ in grids)
        try:
            run = student.call(sum_on_rank, world=world, seed=seeds, grids=grids, targets=targets)
        except Fault as fault:
            if fault.cause == "mismatch":
                fault.message += (
                    f". (on {told} ranks: ranks of other rows have other layers, and so other gradients; a sum goes "
                    "along a row, the data axis)"
                )
            raise
        for k, grid in enumerate(grids):
            right = student.reference(serial_sums, grid=grid, seeds=[*seeds], targets=targets[str(grid[1])])
            ranks = [left[k] for left in run.evidence]
            check_sums(grid, ranks, collectives(cases(run.events)[2 * k]), right)


def check_sums(grid, ranks, calls, right):
    wrong = (
        ("own", "its own samples' only: nothing is summed"),
        ("means", "the mean of the pipelines' means"),
        ("sums", "the sum, not divided by the targets"),
    )
    told = f"on {grid[0]} × {grid[1]} ranks{with_stages(grid[2])},"
    for rank, seen in enumerate(ranks):
        goals = right[rank]
        for name, goal in goals["right"].items():
            grad = seen["grads"].get(name, torch.zeros(0))
            expect(grad.numel() > 0, f"{told} {name} has no gradient any more", "a gradient", "none", rank)
            wrongs = {words: goals[kind][name] for kind, words in wrong}
            than = "the sum over its row, divided by the row's targets"
            check_tensor(f"{told} the gradient of {name}", grad, goal, REL, rank, wrongs=wrongs, than=than)
    for rank, seen in enumerate(ranks):
        changed = f"{told} the caller's n_targets is changed on rank {rank}"
        expect(seen["kept"], changed, "as it was", "the sum", rank)
        mine = [call for call in calls if call.rank == rank]
        foreign = [call for call in mine if call.world != grid[1]]
        expect(
            not foreign,
            f"{told} rank {rank} talks to {foreign[0].world if foreign else 0} ranks; some do not have its layers",
            f"{grid[1]} ranks",
            f"{foreign[0].world if foreign else 0} ranks",
            rank,
        )
    check_calls(told, calls, 2, "to sum the gradients of a step; one message for all is enough")


# ---------------------------------------------------------------------------------------------------
# TODO 7: clipping


def whole_gradient(seed, pp, turns):
    model, found = made_model(0, **LONG), {}
    for rank in range(pp):
        found |= drawn_for([cut_stage(model, rank + k * pp, pp * turns) for k in range(turns)], seed + 10 * rank)
    return found


@todo(7)
def test_todo7_clip(student):
    seed, trials = student.draw("clip").randrange(1000), []
    for pp, data, turns in student.several(((2, 2, 2), (3, 1, 1))):
        grads = student.reference(whole_gradient, seed=seed, pp=pp, turns=turns)
        right = math.sqrt(sum(grad.double().square().sum().item() for grad in grads.values()))
        student.premise(CLIPS[0] < right / 2 and right < CLIPS[2], "gradients that are not clipped")
        trials.append(((pp, data, turns), grads, right))
    for grid, grads, right in trials:
        pp, data, turns = grid
        run = student.call(clip_on_rank, world=pp * data, seed=seed, grid=grid)
        for rank, left in enumerate(run.evidence):
            for clip, seen in zip(CLIPS, left, strict=True):
                check_clipped(
                    f"with --clip {clip:g} on {pp} × {data} ranks{with_stages(turns)}",
                    grid,
                    clip,
                    seen,
                    right,
                    grads,
                    rank,
                )


def check_clipped(told, grid, clip, seen, right, grads, rank):
    own = math.sqrt(sum(grads[name].double().square().sum().item() for name in seen["grads"]))
    wrongs = {"the norm of this rank's part": (own, "")}
    if grid[1] > 1:
        wrongs[f"the norm of this rank's part, counted {grid[1]} times"] = own * math.sqrt(grid[1]), ""
        wrongs[f"the norm with each stage counted {grid[1]} times"] = right * math.sqrt(grid[1]), ""
    check_norm(f"{told},", seen["norm"], right, clip, rank, REL, wrongs)
    factor = min(1.0, clip / right) if clip else 1.0
    for name, grad in seen["grads"].items():
        wrongs = {"not clipped": grads[name]} if factor < 1 else {}
        than = "the whole gradient's, scaled by one number"
        check_tensor(f"{told} the gradient of {name}", grad, grads[name] * factor, REL, rank, wrongs=wrongs, than=than)

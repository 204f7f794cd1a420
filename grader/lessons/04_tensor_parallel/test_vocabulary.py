"""Checks of 04_tensor_parallel, TODOs 6 and 7: vocabulary.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 6 | the embedding by words | the same | 2, 3 |
| 7 | the loss where no rank has all logits | values, gradients, messages; the model against the serial one | 2 to 6 |
"""

import math

import torch
import torch.nn.functional as F

from grader.kit import check_sent, check_tensor, count_of, expect, hinted, ring_bytes, todo
from utils.data import IGNORE

from .common import GIVEN, JOIN, REL, check_layers, check_training, drawn, has_all, in_one_run, layer_jobs, training_job
from .ranks import cut, joined_words_on_rank, logits_and_targets, loss_on_rank, made, one_word_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 6: layers


@todo(6, needs=(2, 3))
def test_todo6_embedding(student):
    draw = student.draw("embedding")
    trials = {world: [] for world in (1, 2, 3, 4)}
    for world in trials:
        for frozen in (None, 0)[: 2 if world == 3 else 1]:
            words = draw.choice([n for n in range(11, 30) if has_all(n, world) and (world == 1 or n % world)])
            trials[world].append(drawn(draw, "embedding", draw.randrange(3, 7), words, frozen=frozen))
    one = dict(seed=draw.randrange(1 << 30), words=11, width=4)
    more = [(3, one_word_on_rank, one, None), (1, joined_words_on_rank, one, None)]
    done = check_layers(student, layer_jobs(student, trials), more)
    ((_, _, (seen,), _),) = done[joined_words_on_rank]
    check_joined_words(seen, **one)
    ((world, _, ranks, _),) = done[one_word_on_rank]
    weight = made("embedding", one["seed"], one["width"], one["words"], 1, False, None).weight.detach()
    # Each of the 2 × 3 tokens adds 1 to the gradient of the last row.
    last_word = (torch.arange(one["words"])[:, None] == one["words"] - 1) * torch.full_like(weight, 6.0)
    told = f"ParallelEmbedding, all tokens being a word of rank {world - 1} of {world}"
    for rank, mine in enumerate(ranks):
        with hinted("Here most ranks have none of the words. What do they look up, and what do they add to the sum?"):
            expect(not mine["not due"], f"{told}: rank {rank} gets {mine['not due']}", (2, 3, 4), mine["not due"], rank)
            check_tensor(f"{told}: the output on rank {rank}", mine["y"], weight[-1].expand(2, 3, -1), REL, rank)
        what = f"{told}: the gradient of its rows on rank {rank}"
        check_tensor(what, mine["gradient"], cut(last_word, 0, rank, world), REL, rank, hint=ALL_TAKE_PART)


def check_joined_words(seen, seed, words, width):
    weight = made("embedding", seed, width, words, 1, False, None).weight.detach()
    right = 3 * weight * (torch.arange(words) >= -(-words // 2))[:, None]
    told = "the output of ParallelEmbedding given a different `join` than g"
    check_tensor(told, seen["y"], right[None], REL, than="what its `join` returned", hint=JOIN)


ALL_TAKE_PART = (
    "In part 2, `join` sends in the backward pass, too: a rank without a word of the batch must take part in it. Does"
    " its result depend on its rows, if only through zeros?"
)


# ---------------------------------------------------------------------------------------------------
# TODO 7: the loss


def serial_loss(**trial):
    logits, y = logits_and_targets(**trial)
    logits = logits.float().requires_grad_()
    total = F.cross_entropy(logits.flatten(0, -2), y.flatten(), ignore_index=trial["ignore"], reduction="sum")
    loss = total / (y != trial["ignore"]).sum().clamp(min=1)
    (3 * loss).backward()
    return {"loss": loss, "gradient": logits.grad}


@todo(7, needs=(2, 3, 4, 5, 6))
def test_todo7_loss(student):
    draw = student.draw("loss")
    kinds = (
        ("some", "usual", "float32", IGNORE, 2),
        ("none", "usual", "float32", IGNORE, 2),
        ("all", "large", "float32", IGNORE, 2),
        ("some", "usual", "bfloat16", 3, 2),
        ("all", "usual", "float32", IGNORE, 1),
    )
    trials = []
    for world in (1, 2, 3, 4):
        for counted, kind, dtype, ignore, dimensions in kinds:
            words = draw.choice([n for n in range(40, 60) if has_all(n, world) and (world == 1 or n % world)])
            tokens = [draw.randrange(2, 4), draw.randrange(3, 7)][-dimensions:]
            how = dict(kind=kind, dtype=dtype, counted=counted, ignore=ignore)
            logits = (world - 1) * 4 * math.prod(tokens) * words / world
            few = world > 1 and logits <= four_a_token(world, math.prod(tokens))
            student.premise(not few, "a rank that gathers the logits")
            trials.append((world, dict(seed=draw.randrange(1 << 30), words=words, tokens=tokens, **how)))
    rights = [student.reference(serial_loss, **trial) for _, trial in trials]
    jobs = [(world, loss_on_rank, trial, (trial, right)) for (world, trial), right in zip(trials, rights)]
    done = in_one_run(student, jobs + [training_job(student, world) for world in (1, 2, 3, 4)])
    usual = {
        world: all(right_loss(mine, right) for mine in ranks)
        for world, (trial, right), ranks, _ in done[loss_on_rank]
        if (trial["kind"], trial["counted"]) == ("usual", "all")
    }
    for world, (trial, right), ranks, marked in done[loss_on_rank]:
        check_loss(world, trial, ranks, marked, right, usual.get(world))
    check_training(done)


def four_a_token(world, tokens):
    """Bytes that a rank sends in an all-gather of four numbers a token; all-reduces take less."""
    return (world - 1) * 4 * 4 * tokens


def check_loss(world, trial, ranks, events, right, usual_is_right):
    large = "large " * (trial["kind"] == "large")
    size = f"{large}logits, {trial['dtype']}, of {math.prod(trial['tokens'])} tokens"
    which = {"some": "some targets ignored", "none": "all targets ignored", "all": "no target ignored"}[
        trial["counted"]
    ]
    which += ", ignore = 3" if trial["ignore"] == 3 else ""
    told = f"parallel_loss of {size} and {trial['words']} words, {which}, on {count_of(world, 'rank')}"
    for rank, mine in enumerate(ranks):
        hint = "The loss is one number: a sum over the tokens that count, divided by how many they are."
        what = f"{told} is {mine['fault']} on rank {rank}"
        expect(not mine["fault"], what, "a 0-dim tensor", mine["fault"], rank, hint)
    for rank, mine in enumerate(ranks):
        dtype, seen = mine["dtype"].removeprefix("torch."), mine["gradient"]
        hint = "The loss has one dtype, whatever the logits have. In which one are the exponentials added up?"
        expect(dtype == "float32", f"{told} has dtype {dtype}", "float32", dtype, rank, hint)
        loss, expected = mine["loss"].item(), right["loss"].item()
        hint = loss_hint(**trial) if usual_is_right else ""
        told_wrong = f"{told} is wrong on rank {rank}"
        expect(right_loss(mine, right), told_wrong, f"{expected:.6f}", f"{loss:.6f}", rank, hint)
        share = cut(right["gradient"], right["gradient"].dim() - 1, rank, world)
        rel = 2**-7 if trial["dtype"] == "bfloat16" else REL  # bfloat16 has 8 bits
        check_tensor(
            f"{told}: the gradient of the logits on rank {rank}",
            seen,
            share,
            rel,
            rank,
            dtype=getattr(torch, trial["dtype"]),
            scale=right["gradient"].norm().item(),  # a share may be all but zero where the whole is not
            hint="The loss is right. Which of the collectives does autograd see, and what does each do backward?",
        )
        message = f"{told}: rank {rank} changes the logits or targets that it is given"
        expect(mine["untouched"], message, "as they were", "changed", rank, GIVEN)
    n = math.prod(trial["tokens"])
    most = four_a_token(world, n)
    both = [forward + backward for forward, backward in zip(events[0], events[2])]
    why = "forward and backward, four numbers a token are enough"
    hint = "Of each token, a rank needs three numbers from the others. Which tensor with more than those is sent?"
    check_sent(told, both, most, ring_bytes(4 * 2 * n, world), why, hint=hint)


def right_loss(mine, right):
    return not mine["fault"] and math.isclose(mine["loss"].item(), right["loss"].item(), rel_tol=REL, abs_tol=1e-6)


def loss_hint(kind, counted, ignore, **_):
    """For a wrong loss of such logits and targets, where it is right for usual logits and targets that all count."""
    if counted == "none":
        return "No target counts here. What are the sum and the number that it is divided by?"
    if counted == "some":
        more = " Here the number that says so is not the usual one." if ignore != IGNORE else ""
        return f"Some targets do not count. Which tokens are in the sum, and by how many is it divided?{more}"
    if kind == "large":
        return "e to the power of 100 is infinite in float32. What is subtracted first, and is it one for all ranks?"
    return ""

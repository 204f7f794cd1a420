"""Checks of streaming_training, TODOs 7 and 8: workers and resuming.

| TODO | achievement                         | evidence                                                              | needs |
|------|-------------------------------------|-----------------------------------------------------------------------|-------|
| 7    | workers that stay                   | count_workers(); the processes that fill make_loader()'s batches      |       |
| 8    | the stream resumes                  | stream_state(), seek(); main() on 1 to 4 ranks, stopped and resumed, against the text in memory | 1 – 7 |
"""  # noqa: E501

import math

import torch

from grader.kit import REL, count_of, expect, reported, same_report, todo
from utils.data import IGNORE
from utils.model import TransformerLM

from .common import BATCH
from .ranks import LENGTH, N_ROWS, WORDS, cpus_on_rank, pinned_on_rank, states_on_rank, stays_on_rank, streams_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 7: workers


@todo(7)
def test_todo7_workers(student):
    draw = student.draw("workers")
    cases = drawn_cpus(draw)
    seen = student.call(cpus_on_rank, world=1, group=False, cases=cases).evidence[0]
    for (env, cpus), count in zip(cases, seen["counts"], strict=True):
        own = int(env.get("SLURM_CPUS_PER_TASK", cpus)) // int(env.get("LOCAL_WORLD_SIZE", 1)) - 1
        right = min(max(own, 0), seen["most"])
        said = ", ".join(f"{name}={value}" for name, value in env.items()) or "no variable set"
        told = f"with {said}, and {count_of(cpus, 'CPU')} for this process, a rank has {count} workers"
        expect(count == right, told, right, count)
    batch = 4
    run = student.call(stays_on_rank, world=1, group=False, batch=batch)
    for workers, found in enumerate(run.evidence[0]):
        check_loader(f"with --workers {workers}", workers, found, batch)
    pinned = student.call(pinned_on_rank, world=1, group=False, gpus=1).evidence[0]
    expect(pinned, "where there is a GPU, the batches are not in pinned memory", "pinned memory", "ordinary memory")


def drawn_cpus(draw):
    """By Slurm, with the machine's CPUs visible or not; without it; fewer CPUs than ranks; more than a rank needs."""
    few, ranks = draw.randrange(4, 7), draw.randrange(2, 5)
    return [
        ({"SLURM_CPUS_PER_TASK": str(2 * few), "LOCAL_WORLD_SIZE": "2"}, 64),
        ({"LOCAL_WORLD_SIZE": "2"}, 2 * draw.randrange(2, 5) + 1),
        ({"LOCAL_WORLD_SIZE": str(ranks)}, ranks - 1),
        ({}, 3),
        ({"SLURM_CPUS_PER_TASK": "3"}, 64),
        ({"SLURM_CPUS_PER_TASK": "128", "LOCAL_WORLD_SIZE": str(ranks)}, 128),
    ]


def check_loader(told, workers, found, batch):
    first, second = found["made"]
    expect(
        len(first) == max(workers, 1) and ("the rank" in first) == (workers == 0),
        f"{told}, the batches come from {', '.join(first)}",
        count_of(workers, "worker") if workers else "the rank itself",
        ", ".join(first),
    )
    expect(
        all(size == batch // 2 for size in found["sizes"][:1]),
        f"{told} and --batch-size {batch}, on 2 ranks a rank's batches have {found['sizes'][0]} rows",
        batch // 2,
        found["sizes"][0],
    )
    expect(
        set(second) <= set(first),
        f"{told}, the second epoch has new workers: each starts anew, and opens its files again",
        "the same processes",
        ", ".join(second),
        hint="Which argument of DataLoader keeps workers alive from one epoch to the next?",
    )


# ---------------------------------------------------------------------------------------------------
# TODO 8: resuming


ARGV = (
    f"--epochs 2 --batch-size {BATCH} --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd --lr 0.5 --clip 0 "
    "--seed 5 --log-every 1 --block-rows 5 --buffer 3"
).split()


AN_EPOCH = N_ROWS // BATCH


def drawn_text(draw):
    """Tokens, and where documents start: in some parts nearly everywhere, in others hardly anywhere."""
    size = N_ROWS * LENGTH + 3
    tokens = [draw.randrange(1, WORDS) for _ in range(size)]
    dense = draw.sample(range(1, N_ROWS), N_ROWS // 4)
    cuts = {at for row in dense for at in draw.sample(range(row * LENGTH, (row + 1) * LENGTH), 6)}
    return tokens, sorted(cuts | set(draw.sample(range(1, size), 6)))


def windows(tokens):
    """Row -> its x."""
    before = [0, *tokens]
    return {tuple(before[row * LENGTH : (row + 1) * LENGTH]): row for row in range(N_ROWS)}


def trained_in_memory(tokens, cuts, order):
    """The losses of a run with the whole text in memory, that trains in each step on these rows."""
    torch.manual_seed(5)
    model = TransformerLM(WORDS, dim=16, n_heads=2, n_layers=1, max_len=LENGTH)
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5, weight_decay=0.01), []
    targets = torch.tensor(tokens)
    inputs = torch.cat([torch.zeros(1, dtype=torch.int64), targets[:-1]])
    targets[cuts] = IGNORE
    for rows in order:
        places = torch.tensor(rows)[:, None] * LENGTH + torch.arange(LENGTH)
        optimizer.zero_grad()
        loss = model(inputs[places], targets[places])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def by_step(ranks, rows_of):
    """For each step: the rows that it trained on, over all ranks, and the mean loss over their targets."""
    found = []
    for parts in zip(*ranks, strict=True):
        rows = [rows_of.get(tuple(x), -1) for part in parts for x in part["x"].tolist()]
        total = sum(part["targets"] for part in parts)
        found.append((rows, sum(part["loss"] * part["targets"] for part in parts) / max(total, 1)))
    return found


@todo(8, needs=(1, 2, 3, 4, 5, 6, 7))
def test_todo8_resuming(student):
    draw = student.draw("resuming")
    tokens, cuts = drawn_text(draw)
    rows_of = windows(tokens)
    student.premise(len(rows_of) == N_ROWS, "a different row with the same words")
    check_states(student, draw)
    stop = draw.randrange(AN_EPOCH + 1, 2 * AN_EPOCH)  # in the second epoch
    early = draw.randrange(1, AN_EPOCH)
    saves = ["--save-every", "1", "--max-steps"]
    runs = [
        [1, [*ARGV, "--workers", "0"]],
        [2, [*ARGV, "--workers", "2"]],
        [3, [*ARGV, "--workers", "0", *saves, str(early)]],
        [4, [*ARGV, "--workers", "1", "--resume", "out-2", *saves, str(stop)]],
        [2, [*ARGV, "--workers", "3", "--resume", "out-3"]],
        [2, [*ARGV, "--workers", "0", *saves, str(AN_EPOCH)]],
        [1, [*ARGV, "--workers", "2", "--resume", "out-5"]],
    ]
    run = student.call(streams_on_rank, world=4, group=False, common=True, runs=runs, tokens=tokens, cuts=cuts)
    left = [[mine[number] for mine in run.evidence if mine[number] is not None] for number in range(len(runs))]
    seen = [by_step(ranks, rows_of) for ranks in left]
    check_one_rank(seen[0])
    order = [rows for rows, _ in seen[0]]
    losses = student.reference(trained_in_memory, tokens=tokens, cuts=cuts, order=order)
    check_run("on 1 rank without workers", order, losses, seen[0])
    check_run("on 2 ranks with 2 workers each", order, losses, seen[1])
    check_run("on 3 ranks", order[:early], losses[:early], seen[2])
    check_run(f"resumed after step {early}, from 3 ranks on 4,", order[early:stop], losses[early:stop], seen[3])
    check_run(f"resumed after step {stop}, from 4 ranks on 2,", order[stop:], losses[stop:], seen[4])
    check_run(
        "resumed after the last step of an epoch, from 2 ranks on 1,", order[AN_EPOCH:], losses[AN_EPOCH:], seen[6]
    )
    same_report("on 2 ranks with 2 workers each", reported(run, "out-0"), reported(run, "out-1"))
    ends = [line for line in reported(run, "out-0") if line["kind"] != "step"]
    resumed = [line for line in reported(run, "out-4") if line["kind"] != "step"]
    same_report("of a resumed run,", ends[-len(resumed) :], resumed)


def check_one_rank(steps):
    """On one rank: each epoch trains on each row once, as far as they fill batches."""
    expect(
        len(steps) == 2 * AN_EPOCH,
        f"on 1 rank, two epochs of {N_ROWS} rows in batches of {BATCH} are {len(steps)} steps",
        2 * AN_EPOCH,
        len(steps),
    )
    for epoch in range(2):
        rows = [row for rows, _ in steps[epoch * AN_EPOCH : (epoch + 1) * AN_EPOCH] for row in rows]
        expect(-1 not in rows, f"in epoch {epoch + 1} a row is not in the text", "rows of the text", "an unknown row")
        expect(
            len(set(rows)) == len(rows), f"in epoch {epoch + 1} a row is trained on twice", len(rows), len(set(rows))
        )


def check_run(told, order, losses, steps):
    expect(
        len(steps) == len(order),
        f"{told} the run makes {count_of(len(steps), 'step')}",
        count_of(len(order), "step"),
        count_of(len(steps), "step"),
    )
    for number, (right, loss, (rows, seen)) in enumerate(zip(order, losses, steps, strict=True), start=1):
        lost, twice = sorted(set(right) - set(rows)), len(rows) - len(set(rows))
        expect(
            not lost and not twice and len(rows) == len(right),
            f"{told} step {number} does not train on the samples that come next",
            sorted(right),
            sorted(rows),
        )
        same = math.isclose(seen, loss, rel_tol=REL)
        expect(same, f"{told} the loss of step {number} is not the loss of a run in memory", loss, seen)


def check_states(student, draw):
    flags = dict(batch_size=draw.randrange(3, 9), seq_len=16, seed=draw.randrange(1 << 20), block_rows=8, buffer=4)
    rows = draw.randrange(1000, 2000)
    places = [(draw.randrange(1, 5), draw.randrange(1, 9), rows, flags), (0, 0, rows, flags), (7, 90, rows, flags)]
    names = ("seed", "seq_len", "block_rows", "buffer")
    changes = [(rows, flags | {name: flags[name] + 1}) for name in names] + [(rows + 1, flags)]
    seen = student.call(states_on_rank, world=1, group=False, places=places, changes=changes).evidence[0]
    for (epoch, steps, _, _), found in zip(places, seen["places"], strict=True):
        told = f"after {steps} steps of epoch {epoch}"
        expect(
            found["numbers"] and found["size"] <= 16,
            f"{told} the state is not a few numbers",
            "at most 16 numbers",
            found["size"],
        )
        right = {"place": [epoch, steps * flags["batch_size"]]}
        expect(
            found["again"] == right,
            f"{told} of {flags['batch_size']} samples, what seek returns for the state is wrong",
            right["place"],
            found["again"].get("place", found["again"].get("said")),
        )
    for name, found in zip((*names, "rows"), seen["changed"], strict=True):
        expect(
            found.get("code") == 2 and name in found["said"].replace("-", "_"),
            f"a state that was saved with a different {name} is not refused: the order is a different one",
            f"exit code 2, and a line that names {name}",
            found.get("said") or found.get("place"),
            hint="Which numbers of the state say what the order is, and not where the run is in it?",
        )

"""Checks of resilient_training, TODOs 5 and 8: resuming.

| TODO | achievement                      | evidence                                                                    | needs |
|------|----------------------------------|-----------------------------------------------------------------------------|-------|
| 5    | the automatic start              | choose_start() on 3 ranks that do not see the same folders                  |       |
| 8    | the global batch stays           | share_batch(); main() on 4, 3 and 1 ranks, stopped by a signal in mid-epoch and at the end of an epoch | 1 – 7 |
"""  # noqa: E501

import math

import torch

from grader.kit import (
    Since,
    REL,
    cases,
    check_parts_travel,
    corpus,
    expect,
    hinted,
    losses,
    reported,
    ring_bytes,
    same_report,
    todo,
    together,
    training,
)
from utils.releases import AVERAGES_SINCE

from .ranks import BATCHES, CHAIN, FLAGS, VIEWS, chain_on_rank, share_on_rank, start_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 5: the start


@todo(5)
def test_todo5_start(student):
    ranks = student.call(start_on_rank, world=3, common=True).evidence
    for case, (views, _) in enumerate(VIEWS):
        found = [seen[case] for seen in ranks]
        steps = {f"step-{step}" for view in views for step in view}
        told = f"where rank 0 sees {words(views[0])}, and rank 1 {words(views[1])},"
        blind = not all(views)  # then all may also agree to start from scratch
        for rank, name in enumerate(found):
            expect(
                name in steps or (blind and name is None),
                f"{told} choose_start() on rank {rank} " + ("starts from scratch" if name is None else f"takes {name}"),
                "a checkpoint that is there" if steps else "None: there is no checkpoint",
                name or "None",
                rank,
            )
        expect(
            len(set(found)) == 1,
            f"{told} the ranks do not start from the same checkpoint",
            "one for all ranks",
            ", ".join(f"{name} on rank {rank}" for rank, name in enumerate(found)),
            hint="Ranks may see different folders. Which rank decides, and how does its answer reach the others?",
        )


def words(steps):
    return " and ".join(f"step-{step}" for step in steps) or "nothing"


# ---------------------------------------------------------------------------------------------------
# TODO 8: the batch, and the whole


@todo(8, since=Since(*AVERAGES_SINCE, on_cpus=True), needs=tuple(range(1, 8)))
def test_todo8_batch(student):
    (seen,) = student.call(share_on_rank, world=1, group=False).evidence
    for (flags, saved, ranks, right), got in zip(BATCHES, seen, strict=True):
        so_far = f"of a run whose batch so far is {saved}" if saved else "at the start of a run"
        expect(
            got == right if right else got == "exit code 2",
            f"with {' '.join(flags)}, {so_far}, on {ranks} rank{'s' * (ranks > 1)}, the global batch is wrong",
            right or "exit code 2: the batch is not divisible by the ranks",
            got,
            hint="Here the flag gives the global batch itself. What is there to work out?"
            if "--batch-size" in flags
            else ""
            if right
            else "A global batch must divide by the ranks. Which call sees to that, and what does it look at?",
        )
    check_chain(student)


@hinted(
    "Each function alone is right. What does a job take over from the one before: its step, its batch, its place"
    " in the epoch?"
)
def check_chain(student):
    """The run over three jobs, each on fewer ranks, is the serial run."""
    flags = ["--data", "data", "--out", "out", *FLAGS, "--batch-size", "12"]
    serial = student.serial(flags, corpus(student))
    right = losses(serial.evidence[0])
    windows = [sorted(rows) for rows, _ in training(serial.evidence[0]).values()]
    run = student.call(chain_on_rank, world=4, group=None, data=corpus(student), common=True)
    step = 0
    for job, (ranks, _, stop) in enumerate(CHAIN):
        left = [mine[job] for mine in run.evidence[:ranks]]
        told = f"in job {job + 1}, on {ranks} rank{'s' * (ranks > 1)},"
        made = min(map(len, map(losses, left)))
        due = stop or len(right) - step
        expect(
            made == due,
            f"{told} {made} steps are made" + (f", though rank 1 gets a signal after step {step + stop}" * bool(stop)),
            due,
            made,
        )
        for k in range(made):
            rows = sorted(row for mine in left for row in list(training(mine).values())[k][0])
            expect(
                rows == windows[step + k],
                f"{told} step {step + k + 1} does not train on the samples of a run without a stop",
                f"the samples of step {step + k + 1}",
                next((f"step {n + 1}'s" for n, other in enumerate(windows) if rows == other), "others"),
            )
            mean = sum(losses(mine)[k] for mine in left) / ranks
            same = math.isclose(mean, right[step + k], rel_tol=REL)
            expect(same, f"{told} the loss of step {step + k + 1} is not the serial run's", right[step + k], mean)
        if ranks > 1:
            due = made * ring_bytes(sum(weight.nbytes for weight in serial.evidence[0]["weights"].values()), ranks)
            check_parts_travel(told.rstrip(","), cases(run.events)[job][:ranks], due, made)
        step += made
    same_report("over three jobs,", reported(serial), reported(run, "run"))
    for name, weight in serial.evidence[0]["weights"].items():
        seen = run.evidence[0][-1]["weights"][name]
        seen = seen if isinstance(seen, torch.Tensor) else together([run.evidence[0][-1]], "weights")[name]
        same = torch.allclose(seen, weight, rtol=1e-3, atol=1e-5)
        expect(same, f"after three jobs the last weights are not the serial run's ({name})", weight, seen)

"""Checks of 03_zero, TODOs 4 and 5: stage 1.

| TODO | achievement                             | evidence                                                                                       | needs   |
|------|-----------------------------------------|------------------------------------------------------------------------------------------------|---------|
| 4    | stage 1: each rank steps its part       | bytes held, bytes sent, losses of AdamW over 10 steps on 2 ranks; weights under SGD on 3       | 2, 3    |
| 5    | the state dictionary of a plain optimizer | compared with one process's; loaded into a new optimizer, which continues                   | 2, 3    |
"""  # noqa: E501

from grader.kit import check_tensor, count_of, expect, todo

from .common import HINTS, REL, VIEWS, check_losses, check_stage, serial_run, shapes_of, share, stage_trials
from .ranks import AMSGRAD, GROUPS, parts_on_rank, resumed_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 4, 6 and 9: the stages


@todo(4, needs=(2, 3))
def test_todo4_stage_1(student):
    trials = stage_trials(student, 1)
    (seen,) = student.call(parts_on_rank, world=1, group=False).evidence
    for rank, mine in enumerate(seen):
        where = f"parts_in_groups for rank {rank} of 3"
        expect(
            mine["options"] == GROUPS,
            f"{where}: the groups' options differ from those that were given",
            GROUPS,
            mine["options"],
            rank,
            HINTS["options"],
        )
        right = [[(5, 5, 4)[rank]], [(2, 2, 1)[rank], (1, 0, 0)[rank]]]
        expect(
            mine["lengths"] == right,
            f"{where}: the parts have the wrong lengths",
            right,
            mine["lengths"],
            rank,
            "Each rank steps only its own part of every parameter. A function of TODO 2 gives that part.",
        )
        expect(
            mine["given"],
            f"{where}: the groups that it was given have changed",
            "as they were",
            "changed",
            rank,
            "They still belong to the caller: make new dictionaries, and new lists.",
        )
        expect(
            mine["leaves"],
            f"{where}: an optimizer takes leaf tensors that require a gradient, and these are not leaves that do",
            "leaves that require a gradient",
            "others",
            rank,
            HINTS["leaves"],
        )
        expect(
            mine["views"],
            f"{where}: writing into a part does not write into the parameter",
            "views of the parameters",
            "copies",
            rank,
            VIEWS,
        )
    check_stage(student, 1, trials)


@todo(5, needs=(2, 3))
def test_todo5_state(student):
    world, steps = 3, 4
    seeds = student.seeds(world)
    right = serial_run(student, seeds, kind="AdamW", odd=False, layers=1, steps=steps, passes=1)
    ranks = student.call(resumed_on_rank, world=world, seed=seeds, steps=steps).evidence
    plain, told = right["states"][0], f"after {steps // 2} steps of AdamW on {count_of(world, 'rank')}"
    _, trained = shapes_of()
    for rank, mine in enumerate(ranks):
        function, seen = mine.get("lacking", ("", ""))
        expect(not seen, f"{told}, {function} returns {seen}", "a dictionary as a plain optimizer has it", None, rank)
    for rank, mine in enumerate(ranks):
        check_saved(told, mine["saved"], plain, rank)
        told_kept = f"{told}, saving changes the optimizer's own state"
        expect(mine["kept"], told_kept, "as it was", "changed", rank, NEW_ONES)
        expect(
            mine["none"],
            "a state that is None (SGD's momentum_buffer without momentum) does not stay None",
            "None",
            "something else",
            rank,
            "Not every value of a state is a tensor. Which ones are gathered, and what becomes of all others?",
        )
        what = f"with SGD on {count_of(world, 'rank')}, the saved momentum_buffer of parameter 1"
        than = "what a plain optimizer has"
        check_tensor(what, mine["momentum"], mine["right momentum"], rank=rank, than=than, hint=ANY_NAME)
        what = f"with SGD on {count_of(world, 'rank')}, the part of parameter 1's momentum_buffer"
        check_tensor(what, mine["part"], mine["right part"], rank=rank, hint=ANY_NAME)
        check_names(mine["names"], rank)
        told_unchanged = f"{told}, what was saved is changed when it is loaded"
        expect(mine["unchanged"], told_unchanged, "unchanged", "changed", rank, NEW_ONES)
        most = 8 * share(trained, world)
        expect(
            mine["held"] <= most,
            f"{told}, rank {rank} keeps {mine['held']:,} bytes alive for its state after it was loaded; its share is"
            f" {most:,}",
            f"{most:,} bytes",
            f"{mine['held']:,} bytes",
            rank,
            "A rank needs its part of the state alone. Does that part keep all of what it was cut from alive?",
        )
        expect(
            mine["apart"],
            f"{told}, a step of the optimizer into which it was loaded changes what was saved: the two share a tensor",
            "unchanged",
            "changed",
            rank,
            "An optimizer writes into its single numbers, too. Which values of a state are the same object as before?",
        )
    hint = "Before the stop it is right. Which numbers did the optimizer have then that it no longer has?"
    check_losses("continued after loading", ranks, right["losses"], hint, after=steps // 2)


def check_names(of_functions, rank):
    """What `names_on_rank` found."""
    for function, names in zip(("whole_state", "state_of_parts"), of_functions, strict=True):
        expect(
            names == [["exp_avg"], [*AMSGRAD], ["exp_avg"]],
            f"where only the second of three parameters is in a group with amsgrad, {function} gives parameters other"
            " entries than they had",
            f"{', '.join(AMSGRAD)} for parameter 1, exp_avg for the others",
            names,
            rank,
            "Groups may have different options, and so their parameters different states. Whose names are used?",
        )


NEW_ONES = "The dictionary that you are given belongs to its owner. Which line writes into it, or into one inside it?"


ANY_NAME = (
    "Other optimizers have other names, other dtypes, and parameters without a state. How can you recognize a value"
    " with"
    " one number for each of a parameter's?"
)


def check_saved(told, saved, plain, rank):
    """A saved state equals a plain optimizer's: its groups, parameters, shapes and numbers."""
    expect(
        len(saved["param_groups"]) == 2
        and [group["params"] for group in saved["param_groups"]]
        == [group["params"] for group in plain["param_groups"]],
        f"{told}, the saved groups differ from a plain optimizer's",
        [group["params"] for group in plain["param_groups"]],
        [group.get("params") for group in saved["param_groups"]],
        rank,
    )
    expect(
        set(saved["state"]) == set(plain["state"]),
        f"{told}, the saved state belongs to different parameters",
        sorted(plain["state"]),
        sorted(saved["state"]),
        rank,
    )
    for number, values in plain["state"].items():
        for name, value in values.items():
            got = saved["state"][number].get(name)
            expect(
                got is not None and got.shape == value.shape,
                f"{told}, the saved {name} of parameter {number} has a different size from a plain optimizer's",
                tuple(value.shape),
                None if got is None else tuple(got.shape),
                rank,
            )
            # Where the gradient is nearly zero, the averages are, too: compared with the largest of their kind.
            expect(
                bool((got - value).abs().max() <= REL * max(value.abs().max(), 1e-4)),
                f"{told}, the saved {name} of parameter {number} differs from a plain optimizer's",
                value,
                got,
                rank,
            )

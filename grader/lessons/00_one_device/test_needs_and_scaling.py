"""Checks of 00_one_device, TODOs 5 to 8: needs and scaling.

| TODO | achievement                            | evidence                                                          | needs |
|------|----------------------------------------|-------------------------------------------------------------------|-------|
| 5    | memory of a step; what fits            | the formulas                                                      |       |
| 6    | days, devices, doubling                | the formulas                                                      |       |
| 7    | strong and weak scaling, the two laws  | the formulas                                                      |       |
| 8    | when to go parallel                    | cases on both sides of each limit                                 | 5     |
"""  # noqa: E501

import math

from grader.kit import check_answers, count_of, expect, numbers, todo

from .ranks import decisions_on_rank, efficiencies_on_rank

# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 8: formulas


@todo(5)
def test_todo5_memory(student):
    draw = student.draw("memory")
    right = {}
    for _ in range(2):
        parameters = draw.randrange(10**6, 10**9)
        right["state_bytes", (parameters,)] = (4 * parameters, 4 * parameters, 8 * parameters)
    for layers in (1, draw.randrange(3, 30)):
        dim, vocabulary, tokens = 8 * draw.randrange(8, 100), draw.randrange(500, 50_000), draw.randrange(50, 9000)
        right["kept_bytes", (dim, layers, vocabulary, tokens)] = 4 * (
            tokens * dim * (16 * layers + 2) + vocabulary * dim
        )
    for fits in (0.4, 1.6, draw.randrange(7, 90) + 0.7):
        parameters, each = draw.randrange(10**8, 10**9), draw.randrange(10**7, 10**8)
        right["most_sequences", (16 * parameters + int(fits * each), parameters, each)] = int(fits)
    right["most_sequences", (15 * parameters, parameters, each)] = 0
    right["most_sequences", (16 * parameters + 3 * each, parameters, each)] = 3  # exactly full
    for each in (draw.randrange(1, 8) / 8, draw.randrange(1, 9) + 0.5):  # bytes that are not whole, also less than one
        many = draw.randrange(50, 500)
        right["most_sequences", (16 * parameters + (many + 0.5) * each, parameters, each)] = many
    check_answers(
        student,
        right,
        hints={
            "kept_bytes": "Which of the text's numbers grow with the tokens, and which with the layers? One depends on "
            "neither.",
            "most_sequences": "What is left when the model has taken its bytes? Only whole sequences fit, and "
            "the number is never negative.",
        },
    )


@todo(6)
def test_todo6_growth(student):
    draw = student.draw("growth")
    right = {}
    for _ in range(2):
        parameters, tokens = draw.uniform(1e8, 1e12), draw.uniform(1e9, 1e13)
        peak, mfu = draw.uniform(1e14, 1e15), draw.uniform(0.2, 0.6)
        right["device_days", (parameters, tokens, peak, mfu)] = 6 * parameters * tokens / (peak * mfu * 86_400)
    for whole, part in ((0, 0.3), (draw.randrange(3, 9), 0.2), (draw.randrange(100, 900), 0.7)):
        memory = draw.choice((16e9, 40e9, 80e9))
        right["fewest_devices", ((whole + part) * memory / 16, memory)] = whole + 1
    full = draw.randrange(2, 9)
    right["fewest_devices", (full * 1e9, 16e9)] = full  # exactly full
    for _ in range(3):
        years, pace, first = draw.uniform(2, 9), draw.uniform(0.5, 3), draw.uniform(1, 100)
        right["doubling_years", (first, first * 2 ** (years / pace), years)] = pace
    check_answers(
        student,
        right,
        hints={
            "fewest_devices": "How many bytes does each parameter take, with its gradient and AdamW's state? Part of"
            " a device still takes a whole one.",
            "doubling_years": "How many times did it double: which power of 2 is the growth? Divide the years by that.",
        },
    )


@todo(7)
def test_todo7_scaling(student):
    draw = student.draw("scaling")
    cases = []
    for scaling in ("strong", "weak"):
        devices = [1, 2, draw.choice((3, 5)), draw.choice((8, 16))]
        perfect = {n: 100.0 / n if scaling == "strong" else 100.0 for n in devices}
        late = {1: 0.0, 2: -draw.uniform(0.05, 0.2)}  # two are more than twice as fast: what each has fits its cache
        pairs = [[n, seconds * (1 + late.get(n, draw.uniform(0.1, 0.4)))] for n, seconds in perfect.items()]
        listed = draw.sample(pairs[1:], len(pairs) - 1)
        listed.insert(draw.randrange(1, len(pairs)), pairs[0])  # one device is not the first that is listed
        cases.append([listed, scaling])
    seen = student.call(efficiencies_on_rank, world=1, group=False, cases=cases).evidence[0]
    for (pairs, scaling), found in zip(cases, seen, strict=True):
        took = dict(map(tuple, pairs))
        answers = {int(n): value for n, value in found}
        expect(
            set(answers) == set(took),
            "step_efficiency does not give each number of devices its efficiency",
            sorted(took),
            sorted(answers),
        )
        for n in sorted(took):
            right = took[1] / took[n] / (n if scaling == "strong" else 1)
            expect(
                math.isclose(answers[n], right, rel_tol=1e-9),
                f"the efficiency of {count_of(n, 'device')} is wrong: {scaling} scaling, {took[1]:.4g} s on one,"
                f" {took[n]:.4g} s on {n}",
                right,
                answers[n],
            )
    right = {}
    for low, high in ((0.01, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.99)):
        share, devices = draw.uniform(low, high), draw.randrange(2, 100)
        right["amdahl", (share, devices)] = 1 / (share + (1 - share) / devices)
        right["gustafson", (share, devices)] = share + devices * (1 - share)
        right["fixed_share", (1 / (share + (1 - share) / devices), devices)] = share
    share, devices = -draw.uniform(0.005, 0.02), draw.randrange(2, 20)  # faster than linear
    right["fixed_share", (1 / (share + (1 - share) / devices), devices)] = share
    right |= {("amdahl", (0.0, 8)): 8.0, ("amdahl", (1.0, 8)): 1.0, ("gustafson", (0.25, 1)): 1.0}
    right |= {("gustafson", (0.0, 8)): 8.0, ("gustafson", (1.0, 8)): 1.0, ("fixed_share", (1.0, 8)): 1.0}
    check_answers(student, right, rel=1e-7)  # fixed_share takes a difference, so some digits are lost


@todo(8, needs=(5,))
def test_todo8_decide(student):
    draw = student.draw("decide")
    cases, right = [], []
    times = (
        (0.5, 0.2, 0.4),  # fits, in time
        (0.5, 0.2, 1.0),  # just in time
        (0.79, 0.2, 0.3),  # just one sequence fits
        (0.3, 0.1, 1.3),
        (0.4, 0.1, draw.choice((2, 4, 5, 6)) + 0.5),  # not a power of two of devices
        (0.6, 0.05, 7.5),
        (0.7, 0.2, draw.randrange(3, 9) + 0.5),  # more devices than sequences fit on one
        (0.9, 0.2, 0.5),  # the model fits, but no sequence with it
        (1.9, 0.4, 0.5),  # more devices by the sequence's room
        (3.7, 0.1, 0.2),
        (1.5, 0.3, 9.5),  # the deadline takes more devices than the memory
    )
    deadlines = numbers(draw, len(times), "whole", most=29)  # most are not whole days
    for (state, sequence, time), deadline in zip(times, deadlines, strict=True):
        memory = draw.uniform(2e10, 1e11)
        parameters = int(state * memory / 16)
        cases.append([parameters, sequence * memory, memory, time * deadline, deadline])
        for_time = max(1, math.ceil(time))
        if state + sequence <= 1:
            right.append(["one device" if for_time == 1 else "data parallel", for_time])
        else:
            right.append(["divide the model", max(for_time, math.ceil(state / (1 - sequence)))])
    devices, room = draw.randrange(3, 9), 2.0**34  # just as many as hold it
    cases.append([int(devices * room / 16), room / 2, 1.5 * room, 1.5, 2.0])
    right.append(["divide the model", devices])
    cases.append([2**29, 2.0**33, 2.0**34, 1.5, 2.0])  # fills the memory, to the last byte
    right.append(["one device", 1])
    seen = student.call(decisions_on_rank, world=1, group=False, cases=cases).evidence[0]
    for (parameters, sequence, memory, days, deadline), wanted, found in zip(cases, right, seen, strict=True):
        expect(
            found == wanted,
            f"decide is wrong for {parameters / 1e9:.3g} billion parameters, {sequence / 1e9:.3g} GB a sequence,"
            f" {memory / 1e9:.3g} GB a device, {days:.3g} days on one, {deadline:.3g} until the deadline",
            f"{wanted[0]}, {wanted[1]}",
            f"{found[0]}, {found[1]}",
        )

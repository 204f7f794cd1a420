"""Checks of 13_fewer_bytes, TODOs 1 to 3: messages in eight bits.

| TODO | achievement                     | evidence                                                                               | needs |
|------|---------------------------------|----------------------------------------------------------------------------------------|-------|
| 1    | MXFP8: numbers to bytes and back | every byte, of blocks at the ends of all ranges                                         |       |
| 2    | stochastic rounding             | neighbours only, and means of 4096 roundings within six standard deviations            | 1     |
| 3    | an all-reduce in 8 bits         | numbers on 2 and 3 ranks, whose parts are uneven or empty; bytes                       | 1, 2  |
"""  # noqa: E501

import math

import torch

from grader.kit import cases, check_answers, check_sent, check_shape, check_tensor, expect, near, todo

from .common import E4M3, packed, unpacked
from .ranks import averaged_on_rank, drawn_vector, packed_on_rank, rounded_on_rank

HINTS = {
    "whole": "Exponents are whole numbers of 32 bits, as `torch.frexp` returns them. Which line makes something else?",
    "int32": "One exponent for each row, in a column: which argument of a reduction keeps the dimension?",
    "scale": "Which power of two is the largest number at least? That power must land on 2 to the 8.",
    "codes": "A tensor of float8 is the same memory as one of uint8: which call shows it so, without changing a bit?",
    "order": "In each row: first 32 codes, then one byte for the scale. What is added to the exponent there?",
    "back": "Undo the last two steps, in turn: bytes to float8, float8 to float32, times the scale. Then the padding.",
    "same": "All random numbers come from `draw`, and each value has one of its own.",
    "draws on": "Whose state moves on with each number that is drawn, so that no step repeats the last one's errors?",
    "two": "What is the distance between two neighbours in this value's binade, and in the smallest ones?",
    "mean": "A value a third of the way up should be rounded up in a third of all cases.",
    "alike": "Each rank has its own part before it is rounded. Which version of it do the other ranks have?",
    "sum": "The parts that arrive are as many as the ranks. What makes a mean of their sum?",
    "second": "The means are float32 again. What do the owners send of them, and what do the others read?",
    "budget": "Both messages are made of rows of `pack`. Which rank needs which rows, and which has them already?",
    "bytes": "How many whole blocks has a part? Of which parts does a rank send those, first and then once more?",
    "twice": "Numbers are packed twice: by each rank, and by the owner of the part. `pack` takes `draw`.",
    "once": "The parts that arrive are summed in float32. How often has each number been rounded until then?",
}


# ---------------------------------------------------------------------------------------------------
# TODO 1: numbers to bytes and back


def blocks_of(draw):
    """Blocks that decide: by name, 32 float32 numbers."""

    def size(low, high):
        return draw.randrange(low, high)

    def normal(exponent):
        return [draw.gauss(0, 1) * 2.0**exponent for _ in range(32)]

    k = size(-30, 30)
    just_below = math.ldexp(1 - 2**-24, k)  # a logarithm in float32 is rounded up to k
    ties = [2.0**8, *(2.0 * n + 1 for n in range(8, 16)), *(-(2.0 * n + 1) for n in range(8, 16))]
    found = {
        "normal numbers": normal(size(-20, 20)),
        "a largest number just below a power of two": [
            just_below,
            *(just_below * draw.uniform(-1, 1) / 2 for _ in range(31)),
        ],
        "numbers that become 448": [1.9 * 2.0**k, *(draw.uniform(1.7, 1.95) * 2.0**k * (-1) ** n for n in range(31))],
        "zeros": [0.0] * 32,
        "numbers that float32 hardly has": [draw.uniform(1, 9) * 1e-41 for _ in range(32)],
        "the largest numbers of float32": [draw.uniform(-3, 3) * 1e38 for _ in range(31)] + [3e38],
        "ties": [draw.choice((1, 1, 2)) * n for n in ties] + [0.0] * (32 - len(ties)),
        "one large number among small ones": [
            2.0**k * draw.uniform(1, 1.7),
            *(2.0 ** (k - 14) * draw.uniform(1, 2) for _ in range(31)),
        ],
    }
    return {name: torch.tensor(block, dtype=torch.float32).double().tolist() for name, block in found.items()}


@todo(1)
def test_todo1_packed(student):
    draw = student.draw("blocks")
    blocks = blocks_of(draw)
    names = list(blocks)
    draw.shuffle(names)
    whole = [number for name in names for number in blocks[name]]
    lengths = (len(whole), 0, draw.randrange(1, 32), 32, 32 * len(names) - draw.randrange(1, 32))
    vectors = [whole[:length] for length in lengths]
    rows = []
    for length in lengths:  # any codes, and scales with which float32 has all numbers
        count = -(-length // 32)
        codes = [[draw.choice((0, 128)) + draw.randrange(127) for _ in range(32)] for _ in range(count)]
        rows.append([[*mine, draw.randrange(20, 240)] for mine in codes])
    (seen,) = student.call(
        packed_on_rank, world=1, group=False, vectors=vectors, rows=rows, lengths=list(lengths)
    ).evidence
    for length, vector, given, mine in zip(lengths, vectors, rows, seen, strict=True):
        told = f"{length} numbers"
        exponents, right = packed(torch.tensor(vector, dtype=torch.float64))
        hint = HINTS["int32" if getattr(mine["exponents"], "dtype", None) == torch.int32 else "whole"]
        check_shape(f"{told}: what exponents_of returns", mine["exponents"], exponents.shape, torch.int32, hint=hint)
        check_shape(f"{told}: what pack returns", mine["rows"], right.shape, torch.uint8, hint=HINTS["codes"])
        zero = right[:, :32].eq(0).all(dim=1)
        for number, (is_zero, exponent, row, its) in enumerate(
            zip(zero.tolist(), exponents, right, mine["rows"].long(), strict=True)
        ):
            what = names[number] if 32 * (number + 1) <= length else f"{names[number]}, cut off and padded"
            if not is_zero:
                expect(
                    int(mine["exponents"][number]) == int(exponent),
                    f"{told}: the exponent of block {number} ({what}) is wrong",
                    int(exponent),
                    int(mine["exponents"][number]),
                    hint=HINTS["scale"],
                )
                expect(
                    int(its[32]) == int(row[32]),
                    f"{told}: the last byte of block {number} ({what}) is not its scale's code",
                    int(row[32]),
                    int(its[32]),
                    hint=HINTS["order"],
                )
            plain = torch.where((its[:32] & 127) == 0, 0, its[:32])
            check_tensor(f"{told}: the row of codes of block {number} ({what})", plain, row[:32], hint=HINTS["codes"])
        back = unpacked(torch.tensor(given).view(-1, 33), length).float()
        check_tensor(f"{told}: what unpack returns for drawn rows", mine["numbers"], back, hint=HINTS["back"])


# ---------------------------------------------------------------------------------------------------
# TODO 2: stochastic rounding


TIMES = 4096


@todo(2, needs=(1,))
def test_todo2_stochastic(student):
    draw = student.draw("values")
    codes = [draw.randrange(0, 7), 7, *(draw.randrange(8, 125) for _ in range(8)), 8 * draw.randrange(2, 14) + 7, 125]
    shares = [draw.choice((0, 0.5)) + draw.uniform(0.15, 0.35) for _ in codes]
    values = [
        draw.choice((-1, 1)) * (E4M3[code] + share * (E4M3[code + 1] - E4M3[code])).item()
        for code, share in zip(codes, shares)
    ]
    exact = [0.0, 448.0, -448.0, E4M3[draw.randrange(1, 8)].item(), -E4M3[draw.randrange(8, 126)].item()]
    values = torch.tensor([*values, *exact], dtype=torch.float32)
    student.premise(any(0.15 < share < 0.35 for share in shares), "rounding to the nearest")
    run = student.call(
        rounded_on_rank, world=1, group=False, values=values.tolist(), times=TIMES, seed=draw.randrange(1 << 30)
    )
    (seen,) = run.evidence
    check_shape("round_stochastically: a row of the result", seen["results"], values.shape, torch.float32)
    for number, value in enumerate(values.double().tolist()):
        below = E4M3[E4M3 <= abs(value)][-1].item()
        above = E4M3[E4M3 >= abs(value)][0].item()
        low, high = sorted(math.copysign(1, value) * end for end in (below, above))
        ends = seen["low"][number].item(), seen["high"][number].item()
        expect(
            ends[0] in (low, high) and ends[1] in (low, high) and not seen["between"][number].item(),
            f"{value:.6g} is rounded to {ends[0]:.6g} and {ends[1]:.6g}, which are not its neighbours in E4M3",
            f"{low:.6g} or {high:.6g}",
            f"{ends[0]:.6g} … {ends[1]:.6g}",
            hint=HINTS["two"],
        )
        up = (value - low) / (high - low) if high > low else 0.0
        # Six standard deviations of the mean of so many roundings: one draw in 500 million is further off.
        room = 6 * (high - low) * math.sqrt(up * (1 - up) / TIMES) + 1e-6 * abs(value)
        mean = seen["mean"][number].item()
        expect(
            abs(mean - value) <= room,
            f"the mean of {TIMES} roundings of {value:.6g}, between {low:.6g} and {high:.6g}, is {mean:.6g}",
            f"{value:.6g} ± {room:.2g}",
            f"{mean:.6g}",
            hint=HINTS["mean"],
        )
    check_drawn(seen)


def check_drawn(seen):
    """Random numbers come from the given generator, one for each value."""
    first, same, different, once, later = seen["again"]
    expect(
        torch.equal(first, same),
        "the same values and generators of the same seed give different results",
        "the same",
        "different ones",
        hint=HINTS["same"],
    )
    expect(
        not torch.equal(first, different),
        "generators of different seeds give the same results",
        "different ones",
        "the same",
        hint=HINTS["same"],
    )
    expect(
        not torch.equal(once, later),
        "a second call with the same generator gives the same results again",
        "it draws on",
        "the same",
        hint=HINTS["draws on"],
    )
    for told, of in (("row", seen["alike"]), ("column", seen["alike"].T)):
        # 64 values halfway: all go the same way by chance once in 2 ** 63.
        expect(
            bool((of.amin(dim=1) < of.amax(dim=1)).all()),
            f"of a matrix of equal values, all of a {told} are rounded the same way",
            "each by a random number of its own",
            "the same for all",
            hint=HINTS["same"],
        )


# ---------------------------------------------------------------------------------------------------
# TODO 3: an all-reduce in 8 bits


def parts_of(length, world):
    return -(-length // (32 * world))


def nbytes_of(length, world):
    return 2 * (world - 1) * 33 * parts_of(length, world)


def averaged(vectors):
    """What an all-reduce in 8 bits returns; the same without the second rounding; and the plain mean."""
    world, length = len(vectors), len(vectors[0])
    size = 32 * parts_of(length, world)
    full = [torch.nn.functional.pad(vector, (0, world * size - length)).double() for vector in vectors]
    sent = [unpacked(packed(vector)[1], world * size).float() for vector in full]
    mean = torch.stack(sent).sum(dim=0) / world
    again = torch.cat([unpacked(packed(part.double())[1], size) for part in mean.split(size)])
    return again[:length].float(), mean[:length], torch.stack(vectors).mean(dim=0)


@todo(3, needs=(1, 2))
def test_todo3_all_reduce(student):
    draw = student.draw("lengths")
    lengths = [draw.randrange(1, 32), 64 + draw.randrange(1, 32), 32 * 6 + draw.randrange(33, 96)]
    trials = []
    for world in student.several((2, 3)):
        seeds = student.seeds(world)
        rights = []
        for length in lengths:
            right, once, mean = averaged([drawn_vector(seed, length) for seed in seeds])
            student.premise((right - mean).norm() > 1e-3 * mean.norm(), "an all-reduce in float32")
            rights.append((right, once))
        trials.append((world, seeds, rights))
    check_answers(
        student,
        {
            ("bytes_in_8_bits", (n, w)): nbytes_of(n, w)
            for w in (1, 2, 3, 8)
            for n in (1, 32, draw.randrange(33, 900), 33 * 256, 1_500_000_000)
        },
        hints={"bytes_in_8_bits": HINTS["bytes"]},
    )
    for world, seeds, rights in trials:
        scale = 2.0 ** draw.randrange(-20, 20)
        run = student.call(averaged_on_rank, world=world, mine=seeds, lengths=lengths, scale=scale)
        events = cases(run.events)
        for number, (length, (right, once)) in enumerate(zip(lengths, rights, strict=True)):
            told = f"{length} numbers on {world} ranks"
            means = [seen[number] for seen in run.evidence]
            for rank, mean in enumerate(means):
                check_shape(f"{told}: the mean on rank {rank}", mean, right.shape, torch.float32, rank, HINTS["once"])
                same = torch.equal(mean, means[0])
                expect(same, f"{told}: ranks 0 and {rank} get different numbers", None, None, rank, HINTS["alike"])
            for rank, mean in enumerate(means):
                # Sums of numbers with four bits are exact; a third may be rounded to its other neighbour.
                summed = near(mean, world * right, 0.05)  # and rounded then: to a sixteenth at most
                hint = HINTS["sum" if summed else "second" if near(mean, once, 1e-6) else "once"]
                check_tensor(f"{told}: the mean on rank {rank}", mean, right, 1e-6, rank, hint=hint)
            budget, why = nbytes_of(length, world), "33 bytes for each block are enough, twice"
            check_sent(told, events[number], budget, 0.99 * budget, why, hint=HINTS["budget"])
        check_stochastic(world, [seen[len(lengths) :] for seen in run.evidence], rights[-1][0])


def check_stochastic(world, evidence, right):
    """With `draw`: all ranks get the same numbers, and both roundings are random. `right`: the same to the nearest."""
    told = f"rounded stochastically, on {world} ranks"
    for rank, seen in enumerate(evidence):
        mean, first = seen[0], evidence[0][0]
        check_shape(f"{told}: the mean on rank {rank}", mean, right.shape, torch.float32, rank)
        same = torch.equal(mean, first)
        expect(same, f"{told}, ranks 0 and {rank} get different numbers", None, None, rank, HINTS["alike"])
        expect(
            not torch.equal(mean, right),
            f"{told}: the numbers are rounded to the nearest: `draw` is not used",
            "others",
            "the same",
            rank,
            HINTS["twice"],
        )
        for which, found in zip(("the means", "the ranks' own numbers"), seen[1:], strict=True):
            small = found.view(-1, 32)[:, 1:]
            # Hundreds of numbers between the same two neighbours.
            expect(
                bool(small.min() < small.max()),
                f"{told}: {which} are rounded to the nearest, not with `draw`",
                "equal numbers go up and down",
                "all go the same way",
                rank,
                HINTS["twice"],
            )

"""What several files with checks of 01_collectives use."""

import math

import torch

from grader.kit import WAITING, Private, cases, check_answers, check_delivery, check_tensor, count_of, expect, hinted

from .ranks import collective_on_rank

# ---------------------------------------------------------------------------------------------------
# TODO 2: places


def check_prediction(student, name, answers):
    """`answers` maps the arguments to what happens. Asked before anything runs, so that a prediction is judged
    independently of the code that it is about.
    """
    check_answers(
        student, {(name, arguments): answer for arguments, answer in answers.items()}, wrong="is not what will happen"
    )


# ---------------------------------------------------------------------------------------------------
# TODOs 3–7: collectives made of messages


WORLDS = (2, 3, 4, 7, 1)  # one rank last: an answer that is wrong only there is nearly right


def drawn_vectors(student, world):
    """Cases (dtype, a vector for each rank): a length that divides, one that does not, one that leaves ranks without a
    piece; and one so long that the kernel's count of bytes shows it.

    They are whole numbers, whose sums are exact in any order. Those in float64 are too large for float32, and those in
    bfloat16 are never rounded. No two ranks start with the same number.
    """
    draw = student.draw("vectors", world)
    divides, beyond = draw.randrange(2, 5) * world, draw.randrange(2, 5) * world + draw.randrange(world > 1, world)
    cases_of_one = (
        ("float32", divides, range(1, 1000)),
        ("float64", beyond, range(1 << 40, 1 << 44)),
        ("bfloat16", max(1, world - 1), range(1, 256 // world)),
        ("float32", 2000 * world, range(1, 1000)),
    )
    drawn = []
    for dtype, length, numbers in cases_of_one:
        first = draw.sample(numbers, world)
        student.premise(len(set(first)) == world, "a rank that holds another rank's numbers")
        rest = [draw.choices(numbers, k=length - 1) for _ in range(world)]
        drawn.append((dtype, [[float(x) for x in (own, *more)] for own, more in zip(first, rest, strict=True)]))
    return drawn


def check_collective(student, name, predicted, right, budget, rubbish=None, worlds=WORLDS):
    """Call `name` on each of these numbers of ranks; compare what each rank holds with `right(vectors, rank)`, and the
    messages with the `budget`; but first what was `predicted`, (a function, its answers).

    `rubbish` replaces the parts of a vector that must not be used.
    """
    cases_of_worlds = {world: drawn_vectors(student, world) for world in student.several(worlds, but=(1,))}
    check_prediction(student, *predicted)
    for world, drawn in cases_of_worlds.items():
        given = [
            [rubbish(vector, rank, world) if rubbish else vector for rank, vector in enumerate(vectors)]
            for _, vectors in drawn
        ]
        alone = "" if world > 1 else f"Here {name} is called on one rank. What is left where N - 1 is 0?"
        with hinted(alone), hinted(WAITING, "hang"):
            run = student.call(
                collective_on_rank,
                world=world,
                name=name,
                dtypes=[dtype for dtype, _ in drawn],
                mine=Private(map(list, zip(*given, strict=True))),
            )
        seen = run.evidence
        for case, ((dtype, vectors_of_ranks), events) in enumerate(zip(drawn, cases(run.events), strict=True)):
            length = len(vectors_of_ranks[0])
            what = f"{name} of {count_of(length, 'number')} on {count_of(world, 'rank')}"
            what += "" if dtype == "float32" else f", in {dtype}"
            own_messages_only(what, events)
            messages = check_delivery(what, events)
            for rank in range(world):
                wanted = right(vectors_of_ranks, rank)
                own = vectors_of_ranks[rank][: len(wanted)]
                expect(
                    wanted == own or any(message.target == rank for message in messages),
                    f"{what}: rank {rank} receives nothing, so it cannot know the other ranks' numbers",
                    "a message from another rank",
                    "none",
                    rank,
                )
                held = f"{what}: what rank {rank} holds afterwards"
                check_tensor(held, seen[rank][case], torch.tensor(wanted, dtype=getattr(torch, dtype)), rank=rank)
            a_number = getattr(torch, dtype).itemsize
            budget(what, messages, world, math.ceil(length / world), a_number)


def own_messages_only(what, events):
    for rank, mine in enumerate(events):
        calls = [event["op"] for event in mine if event["e"] == "op" and "id" not in event and event["bytes"]]
        expect(
            not calls,
            f"{what}: rank {rank} calls dist.{''.join(calls[:1])}; here you must send the messages yourself",
            "send, recv, isend, irecv",
            calls,
            rank,
        )


def pieces(vector, world):
    return [piece.tolist() for piece in torch.tensor(vector, dtype=torch.float64).tensor_split(world)]


def check_rounds(what, messages, most):
    """No more rounds than the TODO allows."""
    seen = max((message.round for message in messages), default=0)
    expect(
        seen <= most,
        f"{what} takes {seen} rounds: messages that could go at the same time wait for each other",
        f"{most} rounds",
        f"{seen} rounds",
    )


def check_sizes(what, messages, piece, a_number):
    """No message longer than the longest piece, whose numbers take `a_number` bytes each."""
    for message in messages:
        expect(
            message.bytes <= a_number * piece,
            f"{what}: rank {message.source} sends {message.bytes // a_number} numbers to rank {message.target} at once,"
            " which is more than one piece",
            f"at most {piece} numbers per message",
            f"{message.bytes // a_number} numbers",
            message.source,
        )

"""Checks of 01_collectives, TODOs 1 and 2: places.

| TODO | achievement                                  | evidence                                                     | needs |
|------|----------------------------------------------|--------------------------------------------------------------|-------|
| 1    | what three collectives return on each rank   | predictions against real calls; the inputs stay              |       |
| 2    | rank, node, local rank                       | what the launcher tells ranks; and machines of other sizes   |       |

TODOs 3 to 7 run on 1 to 9 ranks, on vectors of several dtypes, whose lengths divide, do not divide, or are smaller than
the number of ranks. No verdict depends on the clock. Messages have the worst timing that is allowed: they arrive
when they are waited for, and nothing buffers them.
"""  # noqa: E501

import torch

from grader.kit import Private, check_answers, check_tensor, count_of, expect, todo

from .ranks import MACHINES, NAMES, places_on_rank, predict_on_rank


def drawn_inputs(student, world):
    """(a vector for each rank, their dtype). On 3 ranks float32 cannot hold the numbers, and on 5 not even float64: an
    answer that leaves the inputs' dtype is rounded. On 2 ranks a reader can add them up.
    """
    draw = student.draw("predict", world)
    each = {2: 3, 3: 1}.get(world, draw.randrange(2, 5))  # numbers in a chunk
    least, most = {2: (0, 100), 3: (1 << 30, 1 << 34), 5: (1 << 54, 1 << 58)}[world]
    inputs = [[draw.randrange(least, most) for _ in range(each * world)] for _ in range(world)]
    if world < 5:
        return [[*map(float, vector)] for vector in inputs], "float64"
    student.premise(any(int(float(sum(column))) != sum(column) for column in zip(*inputs)), "a sum in float64")
    return inputs, "int64"


@todo(1)
def test_todo1_three_collectives(student):
    cases_of_worlds = {world: drawn_inputs(student, world) for world in student.several((2, 3, 5))}
    for world, (inputs, dtype) in cases_of_worlds.items():
        seen = student.call(predict_on_rank, world=world, mine=Private(inputs), dtype=dtype).evidence
        sums, rows = [sum(column) for column in zip(*inputs)], [x for vector in inputs for x in vector]
        each = len(sums) // world
        given = f"{inputs}" if world * each < 4 else f"vectors of {world * each} numbers"
        given += "" if dtype == "float64" else f" in {dtype}"
        for name in NAMES:
            held = seen[0]["predicted"][name]
            expect(
                isinstance(held, list) and len(held) == world,
                f"{name} does not return a list with one entry for each of the {world} ranks",
                f"{world} tensors",
                f"{len(held)} entries" if isinstance(held, list) else type(held).__name__,
            )
            for rank in range(world):
                right = {
                    "all_reduce": sums,
                    "all_gather": rows,
                    "reduce_scatter": sums[each * rank : each * rank + each],
                }[name]
                got = seen[rank]["real"][name].tolist()  # reported by the student's process, so it measures nothing
                expect(
                    got == right,
                    f"a real {name} of {given} gave rank {rank} of {world} a different result: was it replaced?",
                    right,
                    got,
                    rank,
                )
                check_tensor(
                    f"after a real {name} of {given}, your prediction for rank {rank} of {world}",
                    held[rank],
                    torch.tensor(right, dtype=getattr(torch, dtype)),
                    rank=rank,
                    than="what this rank holds",
                )
            expect(
                not seen[0]["shared"][name],
                f"{name} gives two ranks the same memory; ranks have no common memory, so each needs its own tensor",
                "a separate tensor for each rank",
                "one tensor for several ranks",
                hint="[tensor] * 3 is a list with one tensor, three times. What copies a tensor into new memory?",
            )
            for rank, (vector, after) in enumerate(zip(inputs, seen[0]["left"][name], strict=True)):
                expect(
                    after.tolist() == vector,
                    f"{name} changes what rank {rank} of {world} held before: the inputs must stay unchanged",
                    vector,
                    after.tolist(),
                    rank,
                )


# ---------------------------------------------------------------------------------------------------
# TODO 2: places


@todo(2)
def test_todo2_places(student):
    places = {}
    for nodes, a_node in MACHINES:
        for rank in range(nodes * a_node):
            places["node_and_local_rank", (rank, a_node)] = divmod(rank, a_node)
            places["rank_at", (*divmod(rank, a_node), a_node)] = rank
    for nodes, world in ((1, 3), (2, 4)):
        a_node = world // nodes
        machine = f"{count_of(nodes, 'node')} of {a_node} ranks"
        ranks = student.call(places_on_rank, world=world, nodes=nodes, group=False).evidence
        answers = ranks[0]
        for rank in range(world):
            node, local = divmod(rank, a_node)
            expect(
                answers["place"][rank] == [node, local],
                f"on {machine}, node_and_local_rank({rank}, {a_node}) is not where rank {rank} is",
                [node, local],
                answers["place"][rank],
            )
            expect(
                answers["rank"][rank] == rank,
                f"on {machine}, rank_at({node}, {local}, {a_node}) is a different rank",
                rank,
                answers["rank"][rank],
            )
        for (nodes_there, each), links in zip(MACHINES, answers["links"], strict=True):
            hops = [rank // each != (rank + 1) % (nodes_there * each) // each for rank in range(nodes_there * each)]
            expect(
                links == sum(hops),
                f"links_between_nodes({nodes_there}, {each}) is wrong: follow the ring and count",
                sum(hops),
                links,
            )
    check_answers(student, places, wrong="is not what this machine has there")

"""Checks and hints of 01_collectives.

| TODO | achievement                                  | evidence                                                     | needs |
|------|----------------------------------------------|--------------------------------------------------------------|-------|
| 1    | what three collectives return on each rank   | predictions against real calls; the inputs stay              |       |
| 2    | rank, node, local rank                       | what the launcher tells ranks; and machines of other sizes   |       |
| 3    | broadcast by a tree                          | values; N - 1 messages; their rounds; the predicted rounds   |       |
| 4, 5 | reduce-scatter and all-gather by a ring      | values; size, neighbours and rounds of all messages          |       |
| 6    | all-reduce from the two                      | the same; the predicted bytes                                | 4, 5  |
| 7    | all-to-all                                   | the same                                                     |       |
| 8    | what ring and tree cost                      | the formulas                                                 |       |
| 9    | alpha and beta, and a time predicted by them | points on a line, and points off it                          |       |

TODOs 3 to 7 run on 1 to 9 ranks, on vectors of several dtypes, whose lengths divide, do not divide, or are smaller than
the number of ranks. No verdict depends on the clock. Messages have the worst timing that is allowed: they arrive
when they are waited for, and nothing buffers them.
"""  # noqa: E501

import math
import os

import torch
import torch.distributed as dist

from grader.kit import (
    WAITING,
    Private,
    as_evidence,
    cases,
    check_answers,
    check_tensor,
    count_of,
    expect,
    hinted,
    mark,
    merciless_messages,
    plain,
    check_delivery,
    todo,
)

BUILDS = "broadcast, reduce-scatter, all-gather, all-reduce and all-to-all from single messages; what they cost"

NAMES = ("all_reduce", "all_gather", "reduce_scatter")


def predict_on_rank(code, rank, world, mine, dtype):
    """The predictions for all ranks, made on this rank, which learns all inputs from a real all-gather; and what
    this rank really gets.
    """
    dtype = getattr(torch, dtype)
    mine = torch.tensor(mine, dtype=dtype)
    reduced = mine.clone()
    dist.all_reduce(reduced)
    gathered = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(gathered, mine)
    scattered = mine.new_empty(len(mine) // world)
    dist.reduce_scatter(scattered, list(mine.chunk(world)))
    inputs = [vector.tolist() for vector in gathered]

    predictions, shared, left = {}, {}, {}
    for name in NAMES:
        left[name] = [torch.tensor(x, dtype=dtype) for x in inputs]
        held = getattr(code, name)([*left[name]])
        predictions[name] = held
        places = (
            {h.data_ptr() for h in held if isinstance(h, torch.Tensor)} if isinstance(held, (list, tuple)) else set()
        )
        shared[name] = isinstance(held, (list, tuple)) and len(places) < len(held)
    return {
        "real": {"all_reduce": reduced, "all_gather": torch.cat(gathered), "reduce_scatter": scattered},
        "predicted": predictions,
        "shared": shared,
        "left": left,
    }


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


@todo(
    1,
    minutes=10,
    why=(
        "Every parallel scheme in this course is made of these three. If you can say what each rank holds afterwards,"
        " you can say what a scheme sends and what it keeps."
    ),
    hints=(
        (
            "Take two ranks with two numbers each, and write down what each holds afterwards. The sum is over ranks,"
            " position by position."
        ),
        (
            "torch.stack puts the vectors one below the other, .sum(dim=0) adds them up; torch.cat joins them; .chunk"
            " cuts a vector into equal pieces. A list comprehension makes one result for each rank, and .clone() a copy"
            " in new memory."
        ),
        (
            "all_reduce: a clone of the sum for each rank. all_gather: torch.cat of the inputs for each rank."
            " reduce_scatter: the sum's chunks, one for each rank."
        ),
    ),
)
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


def places_on_rank(code, rank, world):
    """All answers, given by rank 0, which is told nothing about the other ranks."""
    a_node = int(os.environ["LOCAL_WORLD_SIZE"])
    answers = None
    if rank == 0:
        answers = {
            "place": [plain(code.node_and_local_rank(r, a_node)) for r in range(world)],
            "rank": [plain(code.rank_at(*divmod(r, a_node), a_node)) for r in range(world)],
            "links": [plain(code.links_between_nodes(nodes, each)) for nodes, each in MACHINES],
        }
    return answers


MACHINES = ((1, 4), (2, 1), (2, 4), (5, 3), (3, 6))  # nodes, ranks per node


@todo(
    2,
    minutes=10,
    why=(
        "The rank says which part of the work is mine, the local rank which GPU is mine. Messages that leave a node are"
        " slower, so schemes that communicate a lot are placed within nodes."
    ),
    hints=(
        (
            "Write down ranks 0 to 7 in two rows of four: the row is the node, the column the local rank. For the ring,"
            " draw the arrows."
        ),
        (
            "Rows and columns of a table come from // and %. The ring leaves each node once; but if there is only one"
            " node, it never does."
        ),
        "divmod(rank, ranks_a_node); node * ranks_a_node + local_rank; and nodes, unless that is 1.",
    ),
)
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
TREES = (2, 3, 4, 5, 8, 9, 1)  # 8 are the most for three rounds; on 9 it takes a fourth


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


def collective_on_rank(code, rank, world, name, dtypes, mine):
    """A function of the student on this rank's vector of each case; the rank knows no other rank's vector."""
    merciless_messages()
    held = []
    for dtype, vector in zip(dtypes, mine, strict=True):
        mark()
        result = getattr(code, name)(torch.tensor(vector, dtype=getattr(torch, dtype)), rank, world)
        held.append(as_evidence(result))
    return held


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


def total(vectors_of_ranks):
    return torch.tensor(vectors_of_ranks, dtype=torch.float64).sum(dim=0).tolist()


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


def ring_budget(times, rightward=False):
    """The budget of `times` (N - 1) rounds between neighbours; `rightward`: the TODO says in which direction."""

    def check(what, messages, world, piece, a_number):
        for source, target in ((message.source, message.target) for message in messages):
            expect(
                (target - source) % world in (1, world - 1),
                f"{what}: rank {source} sends to rank {target}, which is not a neighbour",
                f"only to rank {(source + 1) % world} or {(source - 1) % world}",
                f"to rank {target}",
                source,
            )
            expect(
                not rightward or target == (source + 1) % world,
                f"{what}: rank {source} sends to rank {target}, its left neighbour: this ring turns to the right",
                f"to rank {(source + 1) % world}",
                f"to rank {target}",
                source,
            )
        check_sizes(what, messages, piece, a_number)
        for rank in range(world):
            count = sum(message.source == rank for message in messages)
            expect(
                count <= times * (world - 1),
                f"{what}: rank {rank} sends {count} messages",
                f"at most {times * (world - 1)}",
                count,
                rank,
            )
        check_rounds(what, messages, times * (world - 1))

    return check


def tree_budget(what, messages, world, piece, a_number):
    for rank in range(world):
        count = sum(message.target == rank for message in messages)
        expect(
            count <= (rank != 0),
            f"{what}: rank {rank} receives {count_of(count, 'message')}",
            "one each, rank 0 none",
            count,
            rank,
        )
    check_rounds(what, messages, (world - 1).bit_length())


def exchange_budget(what, messages, world, piece, a_number):
    check_sizes(what, messages, piece, a_number)
    for rank in range(world):
        count = sum(message.source == rank for message in messages)
        expect(count <= world - 1, f"{what}: rank {rank} sends {count} messages", f"at most {world - 1}", count, rank)
    check_rounds(what, messages, world - 1)


@todo(
    3,
    in_place=("tensor",),
    minutes=20,
    further=True,
    why=(
        "Training starts with it: all ranks need the same first weights. And once you see why a tree is fast for a"
        " small tensor, you see what the ring is for."
    ),
    hints=(
        (
            "After one round 2 ranks have it, after two rounds 4. In a round in which ranks 0 to k-1 have it, let"
            " each send to the rank k places further."
        ),
        (
            "Double k in a loop while k < world. Rank r receives in the round in which k <= r < 2k, from r - k; it"
            " sends in those rounds in which r < k, if rank r + k exists. dist.send and dist.recv are enough. The"
            " number of rounds is the logarithm to base 2, rounded up."
        ),
        (
            "if rank < k and rank + k < world: dist.send(tensor, rank + k); elif k <= rank < 2 * k: dist.recv(tensor,"
            " rank - k). math.ceil(math.log2(world))."
        ),
    ),
)
def test_todo3_tree_broadcast(student):
    asked = {(world,): (world - 1).bit_length() for world in (1, 2, 3, 4, 5, 8, 9, 1024, 1025)}

    def rubbish(vector, rank, world):
        return vector if rank == 0 else [math.nan] * len(vector)

    check_collective(
        student,
        "tree_broadcast",
        ("tree_rounds", asked),
        lambda vectors_of_ranks, rank: vectors_of_ranks[0],
        tree_budget,
        rubbish,
        TREES,
    )


@todo(
    4,
    in_place=("tensor",),
    minutes=20,
    why=(
        "Data-parallel training adds up gradients with it; ZeRO and FSDP keep only the part that it leaves on each"
        " rank. No rank is ever idle, and no message is larger than a piece, so for a large tensor the time hardly"
        " depends on the number of ranks."
    ),
    hints=(
        (
            "Follow one piece. It ends at the rank of its own number, and it moves one to the right in each round:"
            " where is it before the last round, and before the first?"
        ),
        (
            "Rank r sends piece (r - 1 - step) % world, and receives the piece before that, to which it adds its own."
            " Call isend and irecv, then wait for both works, then add. torch.empty_like makes room for what arrives."
        ),
        (
            "works = [dist.isend(pieces[...], right), dist.irecv(arriving, left)]; wait for both; then pieces[(rank - 2"
            " - step) % world].add_(arriving). At the end return pieces[rank]."
        ),
    ),
)
def test_todo4_ring_reduce_scatter(student):
    asked = {(rank, world): (rank - 1) % world for world in (2, 3, 4, 7) for rank in range(world)}

    def right(vectors_of_ranks, rank):
        return pieces(total(vectors_of_ranks), len(vectors_of_ranks))[rank]

    check_collective(student, "ring_reduce_scatter", ("first_piece", asked), right, ring_budget(1, rightward=True))


@todo(
    5,
    in_place=("tensor",),
    minutes=15,
    why=(
        "FSDP calls it before each layer, to have the whole weights while it computes. It is the second half of every"
        " ring all-reduce."
    ),
    hints=(
        "In the first round you have only your own piece to send. In the next one you send what has just arrived.",
        (
            "Rank r sends piece (r - step) % world and receives piece (r - 1 - step) % world. A piece is a view, so"
            " irecv can receive straight into it."
        ),
        (
            "works = [dist.isend(pieces[(rank - step) % world], right), dist.irecv(pieces[(rank - 1 - step) % world],"
            " left)]; wait for both. At the end return tensor."
        ),
    ),
)
def test_todo5_ring_all_gather(student):
    def own_piece_only(vector, rank, world):
        return [
            x
            for number, piece in enumerate(pieces(vector, world))
            for x in (piece if number == rank else [math.nan] * len(piece))
        ]

    def right(vectors_of_ranks, rank):
        world = len(vectors_of_ranks)
        return [x for number, vector in enumerate(vectors_of_ranks) for x in pieces(vector, world)[number]]

    asked = {
        (rank, step, world): (rank - 1 - step) % world
        for world in (2, 3, 4, 7)
        for rank in range(world)
        for step in range(world - 1)
    }
    budget = ring_budget(1, rightward=True)
    check_collective(student, "ring_all_gather", ("arriving_piece", asked), right, budget, rubbish=own_piece_only)


@todo(
    6,
    in_place=("tensor",),
    minutes=10,
    needs=(4, 5),
    why=(
        "However many ranks there are, each sends less than twice its tensor. That is why data-parallel training works"
        " on thousands of GPUs."
    ),
    hints=(
        "After the reduce-scatter each rank has a finished piece. Where must it be for the all-gather?",
        (
            "The piece belongs at place `rank` of a vector as long as the tensor: tensor_split gives views, copy_"
            " writes into one. As for the bytes: each half has N - 1 rounds, with a message of S / N bytes in each."
        ),
        (
            "tensor.tensor_split(world)[rank].copy_(ring_reduce_scatter(tensor, rank, world)); then return"
            " ring_all_gather(tensor, rank, world). The bytes: 2 * (world - 1) * nbytes / world."
        ),
    ),
)
def test_todo6_ring_all_reduce(student):
    asked = {
        (nbytes, world): 2 * (world - 1) * nbytes / world
        for world in (1, 2, 3, 4, 1024)
        for nbytes in (world, 48 * world)
    }
    check_collective(
        student,
        "ring_all_reduce",
        ("all_reduce_bytes", asked),
        lambda vectors_of_ranks, _: total(vectors_of_ranks),
        ring_budget(2),
    )


@todo(
    7,
    minutes=20,
    further=True,
    why=(
        "A mixture of experts sends each token to the rank of its expert, and back. All pairs of ranks communicate at"
        " once, and an order of calls that works on two ranks may deadlock on eight."
    ),
    hints=(
        (
            "No rank needs to wait for another as long as all messages may be in flight at once. And not all ranks"
            " should send to rank 0 first."
        ),
        (
            "For step 1 to N - 1: isend to the rank `step` places further, irecv from the one `step` places back;"
            " gather the works in a list, and wait for all of them at the end. A list of tensors made by"
            " torch.empty_like takes what arrives; torch.cat joins it."
        ),
        (
            "works += [dist.isend(pieces[to], to), dist.irecv(held[source], source)] with to = (rank + step) % world"
            " and source = (rank - step) % world; held[rank] is pieces[rank]. The bytes: (world - 1) * nbytes / world."
        ),
    ),
)
def test_todo7_all_to_all(student):
    def right(vectors_of_ranks, rank):
        return [x for vector in vectors_of_ranks for x in pieces(vector, len(vectors_of_ranks))[rank]]

    asked = {
        (nbytes, world): (world - 1) * nbytes / world for world in (1, 2, 3, 4, 1024) for nbytes in (world, 48 * world)
    }
    check_collective(student, "all_to_all", ("all_to_all_bytes", asked), right, exchange_budget)


# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: costs


@todo(
    8,
    minutes=15,
    further=True,
    why=(
        "Two numbers for a link and two for an algorithm tell you before a run how long it will take. Libraries choose"
        " between ring and tree in this way, for each call."
    ),
    hints=(
        (
            "In each round of the ring a message of S / N bytes goes from each rank, all at the same time: so one of"
            " them counts. In a round of the tree the messages have S bytes."
        ),
        (
            "The ring has the rounds of TODO 6. The tree has the rounds of TODO 3 twice: once towards rank 0, once"
            " back. Both take the same time where rounds·alpha + bytes·beta is the same for both: solve for S."
        ),
        (
            "ring: 2 * (world - 1), and that times nbytes / world. tree: 2 * ceil(log2(world)), and that times nbytes."
            " equal_size: alpha times (ring's rounds - tree's), divided by beta times (tree's bytes - ring's), both for"
            " S = 1."
        ),
    ),
)
def test_todo8_costs(student):
    right = {}
    for world in (2, 3, 4, 5, 8, 64):
        logarithm = (world - 1).bit_length()
        for nbytes in (world, 1000 * world):
            right["ring_cost", (nbytes, world)] = (2 * (world - 1), 2 * (world - 1) * nbytes / world)
            right["tree_cost", (nbytes, world)] = (2 * logarithm, 2 * logarithm * nbytes)
    draw = student.draw("slow")  # over a satellite the answer is 10 GB and more, even for few ranks
    slow = draw.uniform(0.3, 0.6), draw.uniform(1e-11, 2e-11)
    for world in (4, 5, 8, 64):
        logarithm = (world - 1).bit_length()
        for alpha, beta in ((3e-6, 5e-12), (2.0, 1.0), slow):
            right["equal_size", (world, alpha, beta)] = (
                alpha * (world - 1 - logarithm) / (beta * (logarithm - (world - 1) / world))
            )
    hints = {
        "tree_cost": "How many ranks have the vector after each round of a broadcast? A tree reduces, then broadcasts.",
        "equal_size": "Write down the time of the ring and of the tree for n bytes, set them equal, and solve for n.",
    }
    check_answers(student, right, hints=hints)


def least_squares(sizes, seconds):
    line = torch.stack([torch.ones(len(sizes)), torch.tensor(sizes)], dim=1).double()
    return tuple(torch.linalg.lstsq(line, torch.tensor(seconds, dtype=torch.float64)).solution.tolist())


@todo(
    9,
    minutes=10,
    further=True,
    why=(
        "With the two numbers of a machine you can predict the time of a run before you ask for a thousand GPUs, and"
        " say whether a measured time is what it should be."
    ),
    hints=(
        "It is a straight line through points: beta is its slope, alpha its height at size 0.",
        (
            "The slope is the mean of (size - mean size) times (seconds - mean seconds), divided by the mean of (size -"
            " mean size) squared; the line goes through the mean point. Or torch.linalg.lstsq, with a column of ones"
            " and a column of sizes. dtype=torch.float64."
        ),
        (
            "beta = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum(); alpha = y.mean() - beta *"
            " x.mean(). Return both as numbers, by .item(). The time is rounds * alpha + bytes * beta."
        ),
    ),
)
def test_todo9_fit(student):
    sizes = (0, 1000, 4000, 16000, 64000, 1000000, 4000000)
    right = {}
    for alpha, beta in ((5e-5, 2e-9), (3e-6, 5e-12)):
        exact = tuple(alpha + beta * size for size in sizes)
        right["fit", (sizes, exact)] = (alpha, beta)
        # Off the line, by up to a tenth of alpha: a line through two of the points, or one through 0, is a different
        # line.
        noisy = tuple(
            second + alpha * noise
            for second, noise in zip(exact, (0.1, -0.1, 0.05, 0.1, -0.05, 0.1, -0.1), strict=True)
        )
        right["fit", (sizes, noisy)] = least_squares(sizes, noisy)
        right["predicted_seconds", ((6, 3000.0), alpha, beta)] = 6 * alpha + 3000 * beta
    # 1e-6: float64 gives 1e-10 here, whatever the method; float32 is wrong by 1e-5 and more.
    right["fit", (sizes[1:4], noisy[1:4])] = least_squares(sizes[1:4], noisy[1:4])
    # The fitted line may be negative at size 0, and is still the best one.
    below = tuple(5e-5 * (size / 16000 + 1) ** 2 for size in sizes)
    student.premise(least_squares(sizes, below)[0] < 0, "a latency above 0")
    right["fit", (sizes, below)] = least_squares(sizes, below)
    # One size may be measured more than once.
    twice, again = (*sizes, *sizes[:3]), (*noisy, *(2 * second for second in noisy[:3]))
    right["fit", (twice, again)] = least_squares(twice, again)
    # float32 has no odd numbers of this size.
    odd = (20_000_001, 20_010_003, 20_020_001)
    right["fit", (odd, tuple(5e-5 + 5e-12 * size for size in odd))] = (5e-5, 5e-12)
    time = "Which of the two numbers is paid once a round, and which once a byte?"
    check_answers(student, right, rel=1e-6, hints={"predicted_seconds": time})

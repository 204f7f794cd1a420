"""Other answers to TODOs 3 and 7 of 01_collectives."""

from grader.kit import Answer

ROUNDS = "return (world - 1).bit_length()"


TREE = """
have = 1
while have < world:
    if rank < have and rank + have < world:
        dist.send(tensor, rank + have)
    elif have <= rank < 2 * have:
        dist.recv(tensor, rank - have)
    have *= 2
return tensor
"""


EXCHANGE_BYTES = "return (world - 1) / world * nbytes"


WRONG = [
    Answer(3, "rounds rounded down", swap=("math.ceil", "int"), says="tree_rounds(3)"),
    Answer(3, "as many rounds as receivers", "return world - 1", says="tree_rounds(4)"),
    Answer(3, "nothing is sent", [None, "return tensor"], says="receives nothing"),
    Answer(
        3,
        "rank 0 sends to all",
        [
            None,
            """
        if rank:
            dist.recv(tensor, 0)
        else:
            for other in range(1, world):
                dist.send(tensor, other)
        return tensor""",
        ],
        says="takes 3 rounds",
    ),
    Answer(
        3,
        "passed along a chain",
        [
            None,
            """
        if rank:
            dist.recv(tensor, rank - 1)
        if rank + 1 < world:
            dist.send(tensor, rank + 1)
        return tensor""",
        ],
        says="takes 3 rounds",
    ),
    Answer(
        3,
        "the near ones first",
        [
            None,
            """
        if rank == 0:
            for other in (1, 2):
                if other < world:
                    dist.send(tensor, other)
        else:
            dist.recv(tensor, 2 if rank == 3 else 0)
            if rank == 2 and world > 3:
                dist.send(tensor, 3)
        return tensor""",
        ],
        says="takes 3 rounds",
    ),
    Answer(3, "only for powers of two", swap=("have and rank + have < world", "have")),
    Answer(3, "the library does it", [None, "dist.broadcast(tensor, 0)\nreturn tensor"], says="dist.broadcast"),
    Answer(3, "nobody waits for what is sent", swap=("send", "isend"), says="isend to rank 1 is still in flight"),
    Answer(3, "passed on before it is there", swap=("recv", "irecv"), says="irecv from rank 0 is still in flight"),
    Answer(
        3,
        "every rank receives in every round",
        swap=(
            ("    elif", "        dist.recv(tensor, rank + have)\n    elif"),
            ("    have", "        dist.send(tensor, rank - have)\n    have"),
        ),
        says="rank 0 receives 1 message",
    ),
    Answer(3, "a new tensor that nobody gets", swap=("\nreturn tensor", ""), says="tree_broadcast returns None"),
    Answer(
        3, "a receive too many", swap=("have = 1", "if rank == 0:\n    dist.recv(tensor, 1)\nhave = 1"), says="deadlock"
    ),
    Answer(7, "predicted: its own piece as well", "return nbytes", says="all_to_all_bytes(1, 1)"),
    Answer(7, "predicted: all of it to all", swap=("nbytes / world", "nbytes"), says="all_to_all_bytes(2, 2)"),
    Answer(
        7,
        "all send first",
        swap=(
            "works += [dist.isend(pieces[to], to), dist.irecv(held[source], source)]",
            "dist.send(pieces[to], to)\n    dist.recv(held[source], source)",
        ),
        says="deadlock: rank 0 waits in send",
    ),
    Answer(
        7,
        "the smaller of a pair first",
        [
            None,
            """
        pieces = tensor.tensor_split(world)
        held = [pieces[rank].clone() for _ in range(world)]
        for other in range(world):
            if rank < other:
                dist.send(pieces[other], other)
                dist.recv(held[other], other)
            elif rank > other:
                dist.recv(held[other], other)
                dist.send(pieces[other], other)
        return torch.cat(held)""",
        ],
        says="takes 2 rounds",
    ),
    Answer(
        7,
        "in the order of the steps",
        swap=("(held)", "([held[(rank - step) % world] for step in range(world)])"),
        says="holds afterwards is not what it should be",
    ),
    Answer(
        7,
        "without its own piece",
        swap=("held[rank].copy_(pieces[rank])", "held[rank].zero_()"),
        says="holds afterwards is not what it should be",
    ),
    Answer(
        7,
        "all of it to all",
        [
            None,
            """
        held = [tensor.clone() for _ in range(world)]
        works = []
        for other in range(world):
            if other != rank:
                works += [dist.isend(tensor, other), dist.irecv(held[other], other)]
        for work in works:
            work.wait()
        return torch.cat([h.tensor_split(world)[rank] for h in held])""",
        ],
        says="more than one piece",
    ),
    Answer(7, "only the last pair is waited for", swap=("works +=", "works ="), says="in flight"),
    Answer(7, "its own piece as a message", swap=("1, world", "world"), says="to itself"),
    Answer(
        7,
        "the library does it",
        [
            None,
            """
        held = [torch.empty_like(tensor) for _ in range(world)]
        dist.all_gather(held, tensor)
        return torch.cat([h.tensor_split(world)[rank] for h in held])""",
        ],
        says="dist.all_gather",
    ),
    Answer(
        3,
        "for four ranks at most",
        swap=(
            ("have = 1  # the number of ranks that have it\nwhile have < world", "for have in (1, 2)"),
            ("    have *= 2\n", ""),
        ),
        says="on 5 ranks: rank 4 receives nothing",
    ),
    Answer(
        3,
        "for eight ranks at most",
        swap=(
            ("have = 1  # the number of ranks that have it\nwhile have < world", "for have in (1, 2, 4)"),
            ("    have *= 2\n", ""),
        ),
        says="on 9 ranks",
    ),
    Answer(
        3,
        "two are split off at a time: a round too many on 8",
        [
            None,
            """
        low, high = 0, world
        while high - low > 1:
            middle = max(low + 1, high - 2)
            if rank == low:
                dist.send(tensor, middle)
            elif rank == middle:
                dist.recv(tensor, low)
            low, high = (low, middle) if rank < middle else (middle, high)
        return tensor""",
        ],
        says="on 8 ranks takes 4 rounds",
    ),
    Answer(
        7,
        "received into what is still to be sent",
        [
            None,
            """
        pieces, works = tensor.tensor_split(world), []
        for other in range(world):
            if other != rank:
                works += [dist.isend(pieces[other], other), dist.irecv(pieces[other], other)]
        for work in works:
            work.wait()
        return tensor""",
        ],
        says="a message and its receiver differ",
    ),
    Answer(
        7,
        "joined by step",
        swap=(
            ("torch.empty_like", "torch.zeros_like"),
            ("torch.cat(held", "torch.cat([held[(rank - step) % world] for step in range(world)]"),
        ),
        says="holds afterwards is not what it should be",
    ),
    Answer(
        3,
        "a broadcast that goes by float32",
        [
            None,
            """
        have, tensor_32 = 1, tensor.float()
        while have < world:
            if rank < have and rank + have < world:
                dist.send(tensor_32, rank + have)
            elif have <= rank < 2 * have:
                dist.recv(tensor_32, rank - have)
            have *= 2
        return tensor_32.to(tensor.dtype)
        """,
        ],
    ),
    Answer(
        7,
        "partners by exclusive or, which is for powers of two",
        swap=(
            ("works = []\n", ""),
            (
                "to, source = (rank + step) % world, (rank - step) % world\n"
                "    works += [dist.isend(pieces[to], to), dist.irecv(held[source], source)]\nfor work in works:\n"
                "    work",
                "other = rank ^ step\n    if other < world:\n"
                "        works = [dist.isend(pieces[other], other), dist.irecv(held[other], other)]\n"
                "        for work in works:\n            work",
            ),
        ),
    ),
    Answer(
        3,
        "the sender keeps two thirds of the ranks",
        [
            None,
            """first, end = 0, world  # ranks that get it from `first`, which has it
while end - first > 1:
    middle = first + 2 * (end - first) // 3  # the upper part starts later: let it be smaller
    if rank == first:
        dist.send(tensor, middle)
    elif rank == middle:
        dist.recv(tensor, first)
    if rank < middle:
        end = middle
    else:
        first = middle
return tensor""",
        ],
        says="takes 4 rounds",
    ),
]


RIGHT = [
    Answer(
        3,
        "the far ones first, from anybody, all waited for at the end",
        [
            "return len(bin(world - 1)) - 2 if world > 1 else 0",
            """
        works, reach = [], 1
        while reach < world:
            reach *= 2
        while reach > 1:
            reach //= 2
            if rank % (2 * reach) == 0 and rank + reach < world:
                works.append(dist.isend(tensor, rank + reach))
            elif rank % (2 * reach) == reach:
                dist.recv(tensor)
        for work in works:
            work.wait()
        return tensor""",
        ],
    ),
    Answer(
        7,
        "a round after the other",
        [
            EXCHANGE_BYTES,
            """
        pieces, held = tensor.tensor_split(world), {rank: tensor.tensor_split(world)[rank]}
        for step in range(1, world):
            to, source = (rank - step) % world, (rank + step) % world
            held[source] = torch.empty_like(pieces[rank])
            calls = [dist.P2POp(dist.isend, pieces[to], to), dist.P2POp(dist.irecv, held[source], source)]
            for work in dist.batch_isend_irecv(calls):
                work.wait()
        return torch.cat([held[source] for source in range(world)])""",
        ],
    ),
    Answer(
        3,
        "halves of halves",
        [
            ROUNDS,
            """
        low, high = 0, world
        while high - low > 1:
            middle = (low + high + 1) // 2
            if rank == low:
                dist.send(tensor, middle)
            elif rank == middle:
                dist.recv(tensor, low)
            low, high = (low, middle) if rank < middle else (middle, high)
        return tensor""",
        ],
    ),
    Answer(
        3,
        "a group of its own, and a barrier before the messages",
        [
            ROUNDS,
            "group = dist.new_group(list(range(world)))\ndist.barrier(group)"
            + TREE.replace("+ have)", "+ have, group=group)").replace("- have)", "- have, group=group)"),
        ],
    ),
    Answer(
        7,
        "in pairs by exclusive or",
        swap=(
            ("* nbytes / world", "/ world * nbytes"),
            ("empty_like", "zeros_like"),
            (
                "(1, world):\n    to, source = (rank + step) % world, (rank - step) % world\n    works",
                "(1, 1 << (world - 1).bit_length()):\n    to = source = rank ^ step\n    if to < world:\n        works",
            ),
        ),
    ),
    Answer(
        3,
        "each rank's place by its bits",
        [
            "return (world - 1).bit_length()",
            """
        mine = rank.bit_length()  # rounds that are over when this rank has it
        if rank:
            dist.recv(tensor, rank - (1 << (mine - 1)))
        for step in range(mine, (world - 1).bit_length()):
            if rank + (1 << step) < world:
                dist.send(tensor, rank + (1 << step))
        return tensor
        """,
        ],
    ),
]

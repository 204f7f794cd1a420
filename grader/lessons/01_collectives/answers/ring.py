"""Other answers to TODOs 4 to 6 of 01_collectives."""

from grader.kit import Answer

GATHERING = """
pieces = tensor.tensor_split(world)
right, left = (rank + 1) % world, (rank - 1) % world
for step in range(world - 1):
    leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]
    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]
    for work in works:
        work.wait()
return tensor
"""


WAIT = """    for work in works:
        work.wait()
"""


WAIT_AT_THE_END = "for work in works:\n    work.wait()\nreturn tensor"


BOTH = "    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]\n" + WAIT


SEND_FIRST = """    dist.send(leaving, right)
    dist.recv(arriving, left)
"""


EVEN_FIRST = """    if rank % 2 == 0:
        dist.send(leaving, right)
        dist.recv(arriving, left)
    else:
        dist.recv(arriving, left)
        dist.send(leaving, right)
"""


SEND_NOT_WAITED = """    dist.isend(leaving, right)
    dist.recv(arriving, left)
"""


RECEIVE_NOT_WAITED = """    dist.irecv(arriving, left)
    dist.send(leaving, right)
"""


BATCH = """    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, leaving, right), dist.P2POp(dist.irecv, arriving, left)]):
        work.wait()
"""


ALL_BYTES = "return 2 * (world - 1) / world * nbytes"


ALL = """
total = torch.empty_like(tensor)
total.tensor_split(world)[rank].copy_(ring_reduce_scatter(tensor, rank, world))
return ring_all_gather(total, rank, world)
"""


WHOLE = """
right, left = (rank + 1) % world, (rank - 1) % world
leaving, total = tensor, tensor.clone()
for step in range(world - 1):
    arriving = torch.empty_like(tensor)
    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]
    for work in works:
        work.wait()
    total += arriving
    leaving = arriving
"""


EXCHANGE = """
pieces = tensor.tensor_split(world)
held = [torch.zeros_like(pieces[rank]) for _ in range(world)]
held[rank].copy_(pieces[rank])
works = []
for step in range(1, world):
    to, source = (rank + step) % world, (rank - step) % world
    works += [dist.isend(pieces[to], to), dist.irecv(held[source], source)]
for work in works:
    work.wait()
return torch.cat(held)
"""


WRONG = [
    Answer(4, "predicted: its own piece first", "return rank", says="first_piece(0, 2)"),
    Answer(4, "predicted: a negative number", "return rank - 1", says="first_piece(0, 2)"),
    Answer(
        4,
        "to the left",
        [
            None,
            """
        pieces = [piece.clone() for piece in tensor.tensor_split(dist.get_world_size())]
        for step in range(world - 1):
            growing = pieces[(rank + 2 + step) % world]
            arriving = torch.empty_like(growing)
            work = dist.irecv(arriving, (rank + 1) % world)
            dist.send(pieces[(rank + 1 + step) % world], (rank - 1) % world)
            work.wait()
            growing.add_(arriving)
        return pieces[dist.get_rank()]""",
        ],
        says="its left neighbour",
    ),
    Answer(
        5,
        "one memory for both directions",
        [
            None,
            """
            pieces = tensor.tensor_split(world)
            room = torch.empty_like(pieces[0])
            room[: len(pieces[rank])] = pieces[rank]
            for step in range(world - 1):
                leaving, coming = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]
                works = [
                    dist.isend(room[: len(leaving)], (rank + 1) % world),
                    dist.irecv(room[: len(coming)], (rank - 1) % world),
                ]
                for work in works:
                    work.wait()
                coming.copy_(room[: len(coming)])
            return tensor
            """,
        ],
        says="writes into the tensor of its isend",
    ),
    Answer(
        5,
        "to the left",
        swap=(
            ("right, left = (rank + 1) % world, (rank - 1) % world\n", ""),
            (
                "leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n"
                "    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]",
                "leaving, arriving = pieces[(rank + step) % world], pieces[(rank + 1 + step) % world]\n"
                "    works = [dist.isend(leaving, (rank - 1) % world), dist.irecv(arriving, (rank + 1) % world)]",
            ),
        ),
        says="its left neighbour",
    ),
    Answer(
        4,
        "its own piece first",
        swap=(
            "[(rank - 1 - step) % world], pieces[(rank - 2 - step) % world]",
            "[(rank - step) % world], pieces[(rank - 1 - step) % world]",
        ),
        says="holds afterwards is not what it should be",
    ),
    Answer(
        4,
        "whole tensors go round",
        [None, WHOLE + "return total.tensor_split(world)[rank]"],
        says="more than one piece",
    ),
    Answer(4, "all send first", swap=(BOTH, SEND_FIRST), says="deadlock: rank 0 waits in send"),
    Answer(4, "even ranks send first", swap=(BOTH, EVEN_FIRST), says="takes 2 rounds"),
    Answer(4, "nobody waits for what is sent", swap=(BOTH, SEND_NOT_WAITED), says="isend to rank 1 is still in flight"),
    Answer(
        4, "nobody waits for what arrives", swap=(BOTH, RECEIVE_NOT_WAITED), says="irecv from rank 1 is still in flight"
    ),
    Answer(
        4,
        "added before it is there",
        swap=(WAIT + "    growing += arriving\n", "    growing += arriving\n" + WAIT),
        says="holds afterwards is not what it should be",
    ),
    Answer(
        4,
        "one tensor is sent and received into",
        [
            None,
            """
        pieces = tensor.tensor_split(world)
        moving = torch.zeros(len(pieces[0]))
        moving[: len(pieces[rank - 1])] = pieces[rank - 1]
        for step in range(world - 1):
            work = dist.isend(moving, (rank + 1) % world)
            dist.recv(moving, (rank - 1) % world)
            work.wait()
            mine = pieces[(rank - 2 - step) % world]
            moving[: len(mine)] += mine
        return moving[: len(pieces[rank])]""",
        ],
        says="writes into the tensor of its isend",
    ),
    Answer(
        4,
        "straight to whom it belongs",
        [None, EXCHANGE.replace("torch.cat(held)", "torch.stack(held).sum(dim=0)")],
        says="its left neighbour",
    ),
    Answer(4, "chunks, which are cut otherwise", swap=("tensor.tensor_split", "tensor.chunk")),
    Answer(4, "pieces of one length", swap=("tensor.tensor_split(world", "tensor.view(world, -1")),
    Answer(
        4,
        "the library does it",
        [None, "dist.all_reduce(tensor)\nreturn tensor.tensor_split(world)[rank]"],
        says="dist.all_reduce",
    ),
    Answer(4, "the sums of all pieces", swap=("pieces[rank]", "tensor"), says="holds afterwards has shape"),
    Answer(
        4,
        "the pieces are overwritten",
        swap=("growing += arriving", "growing.copy_(arriving)"),
        says="holds afterwards is not what it should be",
    ),
    Answer(5, "predicted: the other way round", "return (rank + 1 + step) % world", says="arriving_piece(0, 0, 3)"),
    Answer(5, "predicted: what is sent", "return (rank - step) % world", says="arriving_piece(0, 0, 2)"),
    Answer(5, "always its own piece", [None, GATHERING.replace("pieces[(rank - step) % world]", "pieces[rank]")]),
    Answer(5, "all send first", [None, GATHERING.replace(BOTH, SEND_FIRST)], says="deadlock: rank 0 waits in send"),
    Answer(5, "even ranks send first", [None, GATHERING.replace(BOTH, EVEN_FIRST)], says="takes 2 rounds"),
    Answer(
        5,
        "nobody waits for what is sent",
        [None, GATHERING.replace(BOTH, SEND_NOT_WAITED)],
        says="isend to rank 1 is still in flight",
    ),
    Answer(
        5,
        "only the last round is waited for",
        swap=("    for work in works:\n        work.wait()", "for work in works:\n    work.wait()"),
        says="in flight",
    ),
    Answer(
        5,
        "waited for all at the end",
        [
            None,
            "works = []\n"
            + GATHERING.strip()
            .replace("works = [", "works += [")
            .replace(WAIT, "")
            .replace("return tensor", WAIT_AT_THE_END),
        ],
        says="uses the tensor of its irecv",
    ),
    Answer(
        5,
        "what arrives is added",
        swap=(
            (
                "leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n"
                "    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]",
                "leaving, growing = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n"
                "    arriving = torch.empty_like(growing)\n"
                "    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]",
            ),
            ("work.wait()", "work.wait()\n    growing += arriving"),
        ),
        says="holds afterwards is nan",
    ),
    Answer(
        5,
        "straight to all",
        [
            None,
            """
        pieces = tensor.tensor_split(world)
        works = []
        for step in range(1, world):
            works += [dist.isend(pieces[rank], (rank + step) % world), dist.irecv(pieces[(rank - step) % world], (rank - step) % world)]
        for work in works:
            work.wait()
        return tensor""",
        ],
        says="its left neighbour",
    ),
    Answer(5, "a round too few", swap=("world - 1", "world - 2"), says="receives nothing"),
    Answer(5, "a round too many", swap=("world - 1", "world"), says="sends 2 messages"),
    Answer(6, "predicted: one half of it", "return (world - 1) / world * nbytes", says="all_reduce_bytes(2, 2)"),
    Answer(6, "predicted: whole tensors", swap=("nbytes / world", "nbytes"), says="all_reduce_bytes(2, 2)"),
    Answer(
        6,
        "the finished piece is not there",
        swap=(
            "piece = ring_reduce_scatter(tensor, rank, world)\ntensor.tensor_split(world)[rank].copy_(piece)",
            "ring_reduce_scatter(tensor.clone(), rank, world)",
        ),
        says="holds afterwards is not what it should be",
    ),
    Answer(
        6,
        "the finished piece at the beginning",
        swap=(
            "tensor.tensor_split(world)[rank].copy_(piece)\nreturn ring_all_gather(tensor, rank, world)",
            "total = torch.zeros_like(tensor)\ntotal[: len(piece)] = piece\nreturn ring_all_gather(total, rank, world)",
        ),
        says="holds afterwards is not what it should be",
    ),
    Answer(6, "a ring of whole tensors", [None, WHOLE + "return total"], says="more than one piece"),
    Answer(
        6,
        "the first half only",
        [None, "return ring_reduce_scatter(tensor, rank, world)"],
        says="holds afterwards has shape",
    ),
    Answer(6, "the library does it", [None, "dist.all_reduce(tensor)\nreturn tensor"], says="dist.all_reduce"),
    Answer(
        6, "all twice", [None, ALL.replace("return ", "ring_all_gather(total, rank, world)\nreturn ")], says="messages"
    ),
    Answer(
        6,
        "by rank 0",
        [
            None,
            """
        if rank:
            dist.send(tensor, 0)
            dist.recv(tensor, 0)
        else:
            for other in range(1, world):
                part = torch.empty_like(tensor)
                dist.recv(part, other)
                tensor += part
            for other in range(1, world):
                dist.send(tensor, other)
        return tensor""",
        ],
        says="more than one piece",
    ),
    Answer(
        4,
        "received as float32",
        swap=("empty_like(growing)", "empty(len(growing))"),
        says="a message and its receiver differ",
    ),
    Answer(
        4,
        "added up in float32",
        swap=("growing += arriving", "growing.copy_(growing.float() + arriving.float())"),
        says="the first six digits agree, as if it had passed through float32",
    ),
    Answer(4, "returned as float32", swap=("rank]", "rank].float()"), says="in float64"),
    Answer(
        4,
        "a barrier in place of the waits",
        swap=("for work in works:\n        work.wait", "dist.barrier"),
        says="no wait follows it",
    ),
    Answer(
        5,
        "the result in float32",
        swap=("pieces = tensor.tensor_split(world)", "tensor = tensor.float()\npieces = tensor.tensor_split(world)"),
        says="in float64",
    ),
    Answer(5, "for three rounds at most", swap=("world - 1", "min(3, world - 1)"), says="on 7 ranks"),
    Answer(
        6,
        "the mean",
        [
            None,
            ALL.replace(
                "return ring_all_gather(total, rank, world)", "return ring_all_gather(total, rank, world) / world"
            ),
        ],
        says="holds afterwards is 0.5 times what it should be",
    ),
    Answer(
        6,
        "gathered in float32",
        [None, ALL.replace("torch.empty_like(tensor)", "torch.empty(len(tensor))")],
        says="in float64",
    ),
    Answer(
        4,
        "sends that nobody waits for",
        swap=(
            ("right, left = (rank + 1) % world, (rank - 1) % world\n", ""),
            (
                "works = [dist.isend(leaving, right), dist.irecv(arriving, left)]\n    for work in works:\n"
                "        work.wait()",
                "dist.isend(leaving, (rank + 1) % world)\n    dist.recv(arriving, (rank - 1) % world)",
            ),
        ),
    ),
    Answer(
        6,
        "a sum that is float32 whatever was given",
        [None, ALL.replace("torch.empty_like(tensor)", "torch.empty(len(tensor))")],
    ),
    Answer(
        4,
        "the piece of the last round, which one rank has not",
        swap=("return pieces[rank]", "return growing"),
        says="growing",
    ),
    Answer(
        5,
        "joined from what has arrived, of which one rank has nothing",
        swap=(
            ("right, left = (rank + 1) % world, (rank - 1) % world\n", ""),
            (
                "leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n"
                "    works = [dist.isend(leaving, right), dist.irecv(arriving, left)]",
                "leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n"
                "    works = [dist.isend(leaving, (rank + 1) % world), dist.irecv(arriving, (rank - 1) % world)]",
            ),
            ("return tensor", "    whole = torch.cat(pieces)\nreturn whole"),
        ),
        says="whole",
    ),
]


RIGHT = [
    Answer(4, "in batches", swap=(BOTH, BATCH)),
    Answer(
        4,
        "the receive called first",
        [
            None,
            """
        pieces = [piece.clone() for piece in tensor.tensor_split(dist.get_world_size())]
        for step in range(world - 1):
            growing = pieces[(rank - 2 - step) % world]
            arriving = torch.empty_like(growing)
            work = dist.irecv(arriving, (rank - 1) % world)
            dist.send(pieces[(rank - 1 - step) % world], (rank + 1) % world)
            work.wait()
            growing.add_(arriving)
        return pieces[dist.get_rank()]""",
        ],
    ),
    Answer(
        5,
        "pieces in a list",
        [
            None,
            """
        pieces = list(tensor.tensor_split(world))
        for step in range(world - 1):
            number = (rank - 1 - step) % world
            pieces[number] = torch.empty_like(pieces[number])
            work = dist.irecv(pieces[number], (rank - 1) % world)
            dist.send(pieces[(number + 1) % world], (rank + 1) % world)
            work.wait()
        return torch.cat(pieces)""",
        ],
    ),
    Answer(
        6,
        "in place",
        [ALL_BYTES, "ring_reduce_scatter(tensor, rank, world)\nreturn ring_all_gather(tensor, rank, world)"],
        edits=(("    return pieces[rank]\n", "    return pieces[rank]  # a view of tensor\n"),),
    ),
    Answer(
        6,
        "in one loop",
        [
            "return nbytes / world * (world - 1) * 2",
            """
        pieces = list(tensor.clone().tensor_split(world))
        for step in range(2 * (world - 1)):
            number = (rank - 2 - step) % world
            arriving = torch.empty_like(pieces[number])
            works = [dist.isend(pieces[(number + 1) % world], (rank + 1) % world), dist.irecv(arriving, (rank - 1) % world)]
            for work in works:
                work.wait()
            pieces[number] = pieces[number] + arriving if step < world - 1 else arriving
        return torch.cat(pieces)""",
        ],
    ),
    Answer(
        4,
        "one buffer for all rounds, and a copy at the end",
        swap=(
            ("for step in range(world - 1):", "room = torch.empty_like(pieces[0])\nfor step in range(world - 1):"),
            ("torch.empty_like(growing)", "room[: len(growing)]"),
            ("[rank]", "[rank].clone()"),
        ),
    ),
    Answer(
        5,
        "tagged messages, the receive first",
        swap=(
            "works = [dist.isend(leaving, right), dist.irecv(arriving, left)]",
            "works = [dist.irecv(arriving, left, tag=step), dist.isend(leaving, right, tag=step)]",
        ),
    ),
    Answer(
        4,
        "the sum is carried, and nothing of tensor is written",
        [
            None,
            """
        pieces = tensor.tensor_split(world)
        carried = pieces[(rank - 1) % world]
        for step in range(world - 1):
            mine = pieces[(rank - 2 - step) % world]
            arriving = torch.empty_like(mine)
            work = dist.irecv(arriving, (rank - 1) % world)
            sent = dist.isend(carried, (rank + 1) % world)
            work.wait()
            sent.wait()
            carried = arriving + mine
        return carried
        """,
        ],
    ),
    Answer(6, "the gather goes on in the memory that was given", [None, None]),
]

"""Other answers to the TODOs of 01_collectives."""

from grader.kit import Answer

REDUCE = "total = torch.stack(inputs).sum(dim=0)\nreturn [total.clone() for _ in inputs]"

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

EXCHANGE_BYTES = "return (world - 1) / world * nbytes"
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

RING_COST = "return 2 * (world - 1), 2 * (world - 1) * nbytes / world"
EQUAL = """
levels = (world - 1).bit_length()
return alpha / beta * (world - 1 - levels) / (levels - (world - 1) / world)
"""

FIT = """
import statistics
beta, alpha = statistics.linear_regression(sizes, seconds)
return alpha, beta
"""
SECONDS = "return cost[0] * alpha + cost[1] * beta"


WRONG = [
    Answer(
        1,
        "added up in float64",
        [
            """
            total = torch.stack([vector.double() for vector in inputs]).sum(dim=0).to(inputs[0].dtype)
            return [total.clone() for _ in inputs]
            """,
            None,
            None,
        ],
        says="in int64",
    ),
    Answer(1, "each rank keeps its own input", "return [x.clone() for x in inputs]", says="all_reduce"),
    Answer(
        1,
        "the mean instead of the sum",
        "total = torch.stack(inputs).mean(dim=0)\nreturn [total.clone() for _ in inputs]",
        says="all_reduce",
    ),
    Answer(
        1,
        "only rank 0 has the sum",
        swap=("[total.clone() for _ in inputs]", "[total] + [x.clone() for x in inputs[1:]]"),
        says="rank 1",
    ),
    Answer(
        1,
        "all ranks hold one tensor object",
        swap=("[total.clone() for _ in inputs]", "[total] * len(inputs)"),
        says="the same memory",
    ),
    Answer(
        1,
        "gathered in the order of arrival",
        swap=("(inputs) for _ in inputs", "(inputs[r:] + inputs[:r]) for r in range(len(inputs))"),
        says="all_gather",
    ),
    Answer(1, "gathered as a list", swap=("torch.cat", "list"), says="is a list, not a tensor"),
    Answer(1, "every rank the whole sum after a reduce-scatter", [None, None, REDUCE], says="reduce_scatter"),
    Answer(
        1,
        "scattered without the sum",
        [None, None, "return [x.chunk(len(inputs))[r].clone() for r, x in enumerate(inputs)]"],
        says="reduce_scatter",
    ),
    Answer(
        1,
        "chunks by stride",
        swap=("chunk.clone() for chunk in total.chunk", "total[r::len(inputs)].clone() for r in range"),
        says="reduce_scatter",
    ),
    Answer(1, "the third is not written", [None, None, "raise NotImplementedError"]),
    Answer(
        2,
        "node and local rank exchanged",
        "return rank % ranks_a_node, rank // ranks_a_node",
        says="node_and_local_rank",
    ),
    Answer(
        2,
        "what the launcher says of this rank, whichever is asked for",
        "import os\nreturn int(os.environ['GROUP_RANK']), int(os.environ['LOCAL_RANK'])",
        says="node_and_local_rank(1",
    ),
    Answer(
        2, "the local rank as text", "return rank // ranks_a_node, str(rank % ranks_a_node)", says="node_and_local_rank"
    ),
    Answer(
        2,
        "ranks dealt out over the nodes in turn",
        [None, "return local_rank * ranks_a_node + node", None],
        says="rank_at",
    ),
    Answer(2, "a ring of one node leaves it", swap=(" if nodes > 1 else 0", ""), says="links_between_nodes(1, 4)"),
    Answer(2, "the last rank has no neighbour", swap=("if nodes > 1 else 0", "- 1"), says="links_between_nodes(2"),
    Answer(
        2,
        "the prediction is not written",
        [None, None, 'raise NotImplementedError("TODO 2")'],
        says="a part of TODO 2 is still to be written",
    ),
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
                "works = [dist.isend(pieces[(rank - step) % world], right), dist.irecv(pieces[(rank - 1 - step) % world], left)]",
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
                "works = [dist.isend(pieces[(rank - step) % world], right), dist.irecv(pieces[(rank - 1 - step) % world], left)]",
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
    Answer(8, "as many rounds as ranks", "return 2 * world, 2 * (world - 1) * nbytes / world", says="ring_cost"),
    Answer(8, "a ring of whole tensors", "return 2 * (world - 1), 2 * (world - 1) * nbytes", says="ring_cost"),
    Answer(
        8, "the messages of all ranks", "return 2 * (world - 1) * world, 2 * (world - 1) * nbytes", says="ring_cost"
    ),
    Answer(
        8,
        "levels rounded down",
        [None, "return 2 * int(math.log2(world)), 2 * int(math.log2(world)) * nbytes", None],
        says="tree_cost",
    ),
    Answer(
        8,
        "the way there only",
        [None, "return (world - 1).bit_length(), (world - 1).bit_length() * nbytes", None],
        says="tree_cost",
    ),
    Answer(8, "the tree's bytes once", [None, "return 2 * (world - 1).bit_length(), nbytes", None], says="tree_cost"),
    Answer(
        8, "alpha and beta exchanged", [None, None, EQUAL.replace("alpha / beta", "beta / alpha")], says="equal_size"
    ),
    Answer(
        8,
        "one number for two",
        ["return 2 * (world - 1) * nbytes / world", None, EQUAL],  # the solution's equal_size would crash first
        says="does not return 2 numbers",
    ),
    Answer(
        8,
        "as if every number of ranks were a power of two",
        [
            None,
            None,
            """
            ring_rounds, tree_rounds = 2 * (world - 1), 2 * math.log2(world)
            return alpha / beta * (ring_rounds - tree_rounds) / (tree_rounds - ring_rounds / world)
            """,
        ],
        says="equal_size(5",
    ),
    Answer(
        9,
        "through the first and the last point",
        "beta = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0])\nreturn seconds[0] - beta * sizes[0], beta",
        says="fit(",
    ),
    Answer(
        9,
        "through 0",
        "beta = sum(x * y for x, y in zip(sizes, seconds)) / sum(x * x for x in sizes)\nreturn 0.0, beta",
        says="fit(",
    ),
    Answer(9, "beta and alpha", FIT.replace("return alpha, beta", "return beta, alpha"), says="fit("),
    Answer(
        9,
        "in float32",
        """
        line = torch.stack([torch.ones(len(sizes)), torch.tensor(sizes, dtype=torch.float32)], dim=1)
        return tuple(torch.linalg.lstsq(line, torch.tensor(seconds, dtype=torch.float32)).solution.tolist())""",
        says="fit(",
    ),
    Answer(
        9,
        "the mean of seconds per byte",
        "rates = [y / x for x, y in zip(sizes, seconds) if x]\nreturn seconds[0], sum(rates) / len(rates)",
        says="fit(",
    ),
    Answer(9, "one latency for all rounds", [None, "return alpha + cost[1] * beta"], says="predicted_seconds"),
    Answer(9, "all bytes in each round", [None, "return cost[0] * (alpha + cost[1] * beta)"], says="predicted_seconds"),
    Answer(
        1,
        "chunks of two numbers",
        [None, None, "return list(torch.stack(inputs).sum(dim=0).split(2))"],
        says="reduce_scatter",
    ),
    Answer(
        1,
        "added up in float32",
        "total = torch.zeros(len(inputs[0]))\nfor x in inputs:\n    total += x\nreturn [total.clone() for _ in inputs]",
        says="all_reduce",
    ),
    Answer(1, "only ranks 0 to 2", swap=("torch.cat(inputs", "torch.cat(inputs[:3]"), says="all_gather"),
    Answer(2, "nodes of two, backwards", swap=("node * ranks_a_node", "2 * node"), says="rank_at"),
    Answer(2, "the way there and back", [None, None, "return 2 * (nodes - 1)"], says="links_between_nodes(5, 3)"),
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
        8,
        "a level too many at powers of two",
        swap=("math.ceil(math.log2(world))", "(int(math.log2(world)) + 1)"),
        says="tree_cost(2",
    ),
    Answer(
        9,
        "a parabola",
        "import numpy\n_, beta, alpha = numpy.polyfit(sizes, seconds, 2)\nreturn alpha, beta",
        says="fit(",
    ),
    Answer(
        1,
        "an all-gather of which all ranks hold views of one memory",
        [None, "whole = torch.cat(inputs)\nreturn [whole.view_as(whole) for _ in inputs]", None],
    ),
    Answer(
        2,
        "no link back to the first node where a node has one rank",
        swap=("return nodes if nodes > 1 else 0", "return nodes - (ranks_a_node == 1) if nodes > 1 else 0"),
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
        8,
        "a tree that has one round for each whole doubling",
        swap=("math.ceil(math.log2(world))", "int(math.log2(world))"),
    ),
    Answer(
        9,
        "a fit of relative errors",
        swap=(
            "beta = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()\nalpha = y.mean() - beta * x.mean()\nreturn alpha.item(), beta.item()",
            "table = torch.stack([torch.ones_like(x), x], dim=1) / y[:, None]\nalpha, beta = torch.linalg.lstsq(table, torch.ones_like(y)[:, None]).solution[:, 0].tolist()\nreturn alpha, beta",
        ),
    ),
    Answer(
        1,
        "what is reduced and scattered is added into the first input",
        [
            None,
            None,
            """
        total = inputs[0]
        for tensor in inputs[1:]:
            total += tensor
        return [chunk.clone() for chunk in total.chunk(len(inputs))]
        """,
        ],
        says="which it is given, is written into",
    ),
    Answer(
        1,
        "what is reduced is put into the inputs",
        """
        total = sum(inputs[1:], inputs[0].clone())
        for tensor in inputs:
            tensor.copy_(total)
        return [tensor.clone() for tensor in inputs]
        """,
        says="which it is given, is written into",
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
                "works = [dist.isend(pieces[(rank - step) % world], right), dist.irecv(pieces[(rank - 1 - step) % world], left)]",
                "leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n"
                "    works = [dist.isend(leaving, (rank + 1) % world), dist.irecv(arriving, (rank - 1) % world)]",
            ),
            ("return tensor", "    whole = torch.cat(pieces)\nreturn whole"),
        ),
        says="whole",
    ),
    Answer(
        8,
        "the equal size is looked for below 100 MB",
        [
            None,
            None,
            """
        def seconds(cost):
            return cost[0] * alpha + cost[1] * beta

        low, high = 0.0, 1e8
        for _ in range(100):
            middle = (low + high) / 2
            if seconds(tree_cost(middle, world)) < seconds(ring_cost(middle, world)):
                low = middle
            else:
                high = middle
        return middle
        """,
        ],
        says="equal_size(4, 0.",
    ),
    Answer(9, "a latency that is never below 0", swap=("alpha.item()", "max(alpha.item(), 0.0)"), says="fit("),
    Answer(9, "one measurement of each size", swap=("(sizes, seconds))", "zip(*dict(zip(sizes, seconds)).items()))")),
    Answer(
        9,
        "float64 too late",
        swap=(
            "torch.tensor(values, dtype=torch.float64) for values",
            "torch.tensor([*map(float, values)]).double() for values",
        ),
        says="fit",
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
        1,
        "loops",
        [
            "total = torch.zeros_like(inputs[0])\nfor x in inputs:\n    total += x\nreturn [total + 0 for _ in inputs]",
            "return [torch.cat([x for x in inputs]) for _ in range(len(inputs))]",
            (
                "size = len(inputs[0]) // len(inputs)\nreturn [sum(x[r * size:(r + 1) * size] for x in inputs) for r in"
                " range(len(inputs))]"
            ),
        ],
    ),
    Answer(1, "one from the others", "pieces = reduce_scatter(inputs)\nreturn [torch.cat(pieces) for _ in inputs]"),
    Answer(
        1,
        "chunks that are views of different places, not copied by contiguous()",
        [None, None, "return [c.contiguous() for c in torch.stack(inputs).sum(dim=0).chunk(len(inputs))]"],
    ),
    Answer(
        2,
        "by subtraction",
        [
            (
                "node = 0\nwhile rank >= ranks_a_node:\n    rank, node = rank - ranks_a_node, node + 1\nreturn [node,"
                " rank]"
            ),
            "return list(range(node * ranks_a_node, (node + 1) * ranks_a_node))[local_rank]",
            (
                "world = nodes * ranks_a_node\nreturn sum(r // ranks_a_node != (r + 1) % world // ranks_a_node for r in"
                " range(world))"
            ),
        ],
    ),
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
        8,
        "counted round by round",
        [
            "rounds = [nbytes / world] * (world - 1)\nreturn len(rounds + rounds), sum(rounds + rounds)",
            (
                "rounds, have = 0, 1\nwhile have < world:\n    rounds, have = rounds + 2, 2 * have\nreturn rounds,"
                " rounds * nbytes"
            ),
            EQUAL,
        ],
    ),
    Answer(
        9,
        "by the library",
        [
            """
        line = torch.stack([torch.ones(len(sizes)), torch.tensor(sizes)], dim=1).double()
        return torch.linalg.lstsq(line, torch.tensor(seconds, dtype=torch.float64)).solution""",
            "return alpha * cost[0] + beta * cost[1]",
        ],
    ),
    Answer(9, "by numpy", ["import numpy\nreturn tuple(numpy.polyfit(sizes, seconds, 1)[::-1])", SECONDS]),
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
            "works = [dist.isend(pieces[(rank - step) % world], right), dist.irecv(pieces[(rank - 1 - step) % world], left)]",
            "leaving, arriving = pieces[(rank - step) % world], pieces[(rank - 1 - step) % world]\n    works = [dist.irecv(arriving, left, tag=step), dist.isend(leaving, right, tag=step)]",
        ),
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
    Answer(8, "by the logarithm, rounded up", [RING_COST, None, EQUAL]),
    Answer(
        1,
        "running sums",
        """
        total = inputs[0].clone()
        for other in inputs[1:]:
            total += other
        return [total.clone() for _ in inputs]
        """,
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
    Answer(
        9,
        "by torch.linalg.lstsq",
        swap=(
            "beta = ((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum()\nalpha = y.mean() - beta * x.mean()\nreturn alpha.item(), beta.item()",
            "scale = x.max().clamp(min=1)\nfound = torch.linalg.lstsq(torch.stack([torch.ones_like(x), x / scale], dim=1), y[:, None]).solution[:, 0]\nreturn found[0].item(), (found[1] / scale).item()",
        ),
    ),
]

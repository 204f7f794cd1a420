"""Other answers to TODOs 1 and 2 of 01_collectives."""

from grader.kit import Answer

REDUCE = "total = torch.stack(inputs).sum(dim=0)\nreturn [total.clone() for _ in inputs]"


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
        1,
        "running sums",
        """
        total = inputs[0].clone()
        for other in inputs[1:]:
            total += other
        return [total.clone() for _ in inputs]
        """,
    ),
]

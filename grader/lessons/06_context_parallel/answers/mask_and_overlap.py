"""Other answers to TODOs 4 and 5 of 06_context_parallel."""

from grader.kit import Answer

from .common import GATHERED_BY_RING

BY_POSITIONS = """
def places(pieces):
    return torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in pieces])

blocks = []
for i, piece in enumerate(mine):
    for j, other in enumerate(theirs):
        mask = places([other])[None, :] <= places([piece])[:, None]
        if mask.any():
            rows, columns = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
            blocks.append((rows, columns, None if mask.all() else mask))
return blocks
"""


ROW_BY_ROW = """
blocks = []
for i, piece in enumerate(mine):
    for j, other in enumerate(theirs):
        if other < piece:
            blocks.append((slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size), None))
        if other == piece:
            for row in range(size):
                blocks.append((slice(i * size + row, i * size + row + 1), slice(j * size, j * size + row + 1), None))
return blocks
"""


# One block for everything, and a mask.
MASK_ONLY = """
q = torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in mine])
k = torch.cat([torch.arange(piece * size, (piece + 1) * size) for piece in theirs])
return [(slice(0, len(q)), slice(0, len(k)), k[None, :] <= q[:, None])]
"""


ONLY_THE_LAST_BLOCK = """
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for step in range(world):
    last, needed = step == world - 1, blocks(at_hand(rank, step, world))
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, needed[:-1])
    next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], rank, world)
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, needed[-1:])
    for work in works:
        work.wait()
    if not last:
        k_BHTK, v_BHTK = next_pair
return out_BHTK, lse_BHT
"""


OVERLAPPED = """
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for step in range(world):
    last = step == world - 1
    {before}
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks(at_hand(rank, step, world)))
    {after}
return out_BHTK, lse_BHT
"""


START = "next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], rank, world)"


WAIT = """for work in works:
        work.wait()"""


TAKE = """if not last:
        k_BHTK, v_BHTK = next_pair"""


# The shares of the gradients are made while the sum of the others is on its way.
ALL_HIDDEN = """
delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
grad_q = torch.zeros_like(q_BHTK)
arriving, works_of_grads = None, []
for step in range(world):
    last = step == world - 1
    next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], rank, world)
    grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (k_BHTK, v_BHTK))
    blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, blocks(at_hand(rank, step, world)))
    for work in works_of_grads:
        work.wait()
    if arriving:
        grad_k, grad_v = grad_k + arriving[0], grad_v + arriving[1]
    arriving, works_of_grads = start_to_pass_on([grad_k, grad_v], rank, world)
    for work in works:
        work.wait()
    if not last:
        k_BHTK, v_BHTK = next_pair
for work in works_of_grads:
    work.wait()
return grad_q, *arriving
"""


WRONG = [
    Answer(
        5,
        "only the last block while messages travel",
        [ONLY_THE_LAST_BLOCK, None],
        says="while it computes at least half of a step's products",
    ),
    Answer(
        5,
        "backward, only the first block while messages travel",
        swap=(
            "blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, needed)\n"
            "    for work in works:\n        work.wait()\n",
            "blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, needed[:1])\n"
            "    for work in works:\n        work.wait()\n"
            "    blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, needed[1:])\n",
        ),
        says="overlapped_backward",
    ),
    Answer(
        4,
        "zig-zag on four ranks at most",
        swap=(
            "return [rank, 2 * world - 1 - rank]",
            "return [rank, 2 * world - 1 - rank] if world <= 4 else [2 * rank, 2 * rank + 1]",
        ),
        says="pieces_of on 5 ranks",
    ),
    Answer(
        4, "queries do not see themselves", swap=("size * (size + 1) // 2", "size * (size - 1) // 2"), says="pairs_of"
    ),
    Answer(
        4,
        "all of its own piece",
        swap=("piece * size * size + size * (size + 1) // 2", "(piece + 1) * size * size"),
        says="pairs_of",
    ),
    Answer(
        4,
        "two pieces side by side",
        swap=("[rank, 2 * world - 1 - rank]", "[2 * rank, 2 * rank + 1]"),
        says="unequal work",
    ),
    Answer(4, "in turns", swap=("[rank, 2 * world - 1 - rank]", "[rank, world + rank]"), says="unequal work"),
    Answer(4, "a piece twice", swap=("[rank, 2 * world - 1 - rank]", "[rank, 2 * world - rank]"), says="not every one"),
    Answer(
        4, "positions from 0 on", [None, None, "return torch.arange(len(pieces) * size)", None], says="positions_of"
    ),
    Answer(
        4,
        "positions of contiguous pieces",
        [None, None, "return torch.arange(pieces[0] * size, (pieces[0] + len(pieces)) * size)", None],
        says="positions_of",
    ),
    Answer(
        4,
        "the mask by place on the rank",
        swap=(("if other < piece:", "if j < i:"), ("elif other == piece:", "elif i == j:")),
        says="causal_blocks",
    ),
    Answer(
        4,
        "slices by the piece's number",
        swap=("slice(i * size, (i + 1) * size)", "slice(piece * size, (piece + 1) * size)"),
        says="causal_blocks",
    ),
    Answer(
        4, "a mask, and all of the work", [None, None, None, MASK_ONLY], says="has a mask where everything is visible"
    ),
    Answer(
        4,
        "the diagonal is seen whole",
        swap=("torch.ones(size, size, dtype=torch.bool).tril()", "None"),
        says="come after them",
    ),
    Answer(4, "the other triangle", swap=(".tril()", ".triu()"), says="come after them"),
    Answer(4, "no query sees itself", swap=(".tril()", ".tril(-1)"), says="hides keys"),
    Answer(4, "the future, not the past", swap=("if other < piece:", "if other > piece:"), says="causal_blocks"),
    Answer(
        4, "a mask of floats", swap=("dtype=torch.bool", "dtype=torch.float32"), says="a mask that is torch.float32"
    ),
    Answer(
        5,
        "the plain ring",
        ["return ring_forward(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)", None],
        says="under way while it computes",
    ),
    Answer(
        5,
        "started, and waited for at once",
        [OVERLAPPED.format(before=START + "\n    " + WAIT, after=TAKE), None],
        says="under way while it computes",
    ),
    Answer(
        5,
        "started after the products",
        [OVERLAPPED.format(before="pass", after=START + "\n    " + WAIT + "\n    " + TAKE), None],
        says="under way while it computes",
    ),
    Answer(
        5,
        "waits for what it sends, first",
        [
            OVERLAPPED.format(
                before=START + "\n    for work in works[:2]:\n        work.wait()",
                after="for work in works[2:]:\n        work.wait()\n    " + TAKE,
            ),
            None,
        ],
        says="sends",
    ),
    Answer(
        5,
        "reads what has not arrived",
        [
            OVERLAPPED.format(before=START, after=TAKE + "\n    " + WAIT).replace(
                "attend_blocks(", "if not last:\n        next_pair = [t.clone() for t in next_pair]\n    attend_blocks("
            ),
            None,
        ],
        says="the output",
    ),
    Answer(
        5,
        "waits twice",
        swap=(
            "        work.wait()\n    if not last:\n        k_BHTK, v_BHTK = next_pair\nreturn",
            "        work.wait(), work.wait()\n    if not last:\n        k_BHTK, v_BHTK = next_pair\nreturn",
        ),
        says="waits twice for one message",
    ),
    Answer(5, "does not wait", [OVERLAPPED.format(before=START, after=TAKE), None]),
    Answer(5, "gathers ahead", [GATHERED_BY_RING, None]),
    Answer(
        5,
        "exchanges in the last step, too",
        swap=(
            "last = step == world - 1\n    next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], "
            "rank, world)\n    attend_blocks",
            "last = False\n    next_pair, works = start_to_pass_on([k_BHTK, v_BHTK], rank, world)\n    attend_blocks",
        ),
        says="more than the budget",
    ),
    Answer(
        5,
        "the plain ring backward",
        [None, "return ring_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT, grad_out_BHTK, blocks, rank, world)"],
        says="overlapped_backward",
    ),
    Answer(
        5,
        "the gradients are sent before they are made",
        [
            None,
            """
        delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
        grad_q, grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))
        for step in range(world):
            last = step == world - 1
            next_pair, works = ([], []) if last else start_to_pass_on([k_BHTK, v_BHTK], rank, world)
            next_grads, works_of_grads = start_to_pass_on([grad_k, grad_v], rank, world)
            needed = blocks(at_hand(rank, step, world))
            of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
            blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, needed)
            for work in [*works, *works_of_grads]:
                work.wait()
            if not last:
                k_BHTK, v_BHTK = next_pair
            grad_k, grad_v = next_grads
        return grad_q, grad_k, grad_v""",
        ],
        says="overlapped_backward",
    ),
    Answer(
        4,
        "a mask of ones",
        swap=(
            "blocks.append((rows, columns, None))",
            "blocks.append((rows, columns, torch.ones(size, size, dtype=torch.bool)))",
        ),
        says="has a mask where everything is visible",
    ),
]


RIGHT = [
    Answer(4, "the late piece first", swap=("[rank, 2 * world - 1 - rank]", "[2 * world - 1 - rank, rank]")),
    Answer(
        4,
        "the pairs dealt from the last rank",
        swap=("[rank, 2 * world - 1 - rank]", "[world - 1 - rank, world + rank]"),
    ),
    Answer(4, "masks from positions", [None, None, None, BY_POSITIONS]),
    Answer(4, "a triangle, row by row", [None, None, None, ROW_BY_ROW]),
    Answer(
        4,
        "one block for its own pieces",
        [
            None,
            None,
            None,
            "if list(mine) == list(theirs):\n"
            + "\n".join("    " + line for line in MASK_ONLY.strip().split("\n"))
            + "\n"
            + BY_POSITIONS,
        ],
    ),
    Answer(
        4,
        "counted one by one",
        swap=(
            "sum(piece * size * size + size * (size + 1) // 2 for piece in pieces)",
            "int((positions_of(pieces, size) + 1).sum())",
        ),
    ),
    Answer(
        5,
        "waits one by one, late",
        [
            OVERLAPPED.format(
                before=START,
                after="if not last:\n        k_BHTK, v_BHTK = next_pair\n    for work in reversed(works):\n        "
                "work.wait()",
            ),
            None,
        ],
    ),
    Answer(5, "the gradients are hidden, too", [None, ALL_HIDDEN]),
]

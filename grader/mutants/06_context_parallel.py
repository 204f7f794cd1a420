"""Other answers to the TODOs of 06_context_parallel."""

from grader.kit import Answer

# The longer bodies, where more than a few words of them change.

RING = """
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for step in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks(at_hand(rank, step, world)))
    if step < world - 1:
        k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)
return out_BHTK, lse_BHT
"""

# All-gather, then slice: right values, and the whole sequence on each rank.
GATHERED = """
every_k, every_v = ([torch.empty_like(tensor.contiguous()) for _ in range(world)] for tensor in (k_BHTK, v_BHTK))
dist.all_gather(every_k, k_BHTK.contiguous())
dist.all_gather(every_v, v_BHTK.contiguous())
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for source in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, every_k[source], every_v[source], blocks(source))
return out_BHTK, lse_BHT
"""

# The same by messages between neighbours, so that only what is held tells.
GATHERED_BY_RING = """
every = {rank: [k_BHTK, v_BHTK]}
for step in range(1, world):
    every[(rank - step) % world] = pass_on(every[(rank - step + 1) % world], rank, world)
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for source in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, *every[source], blocks(source))
return out_BHTK, lse_BHT
"""

# The keys first, then the values: half as much at a time.
SCORES_FIRST = """
keys = {rank: k_BHTK}
for step in range(1, world):
    (keys[(rank - step) % world],) = pass_on([keys[(rank - step + 1) % world]], rank, world)
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for step in range(world):
    source = (rank - step) % world
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, keys[source], v_BHTK, blocks(source))
    if step < world - 1:
        (v_BHTK,) = pass_on([v_BHTK], rank, world)
return out_BHTK, lse_BHT
"""

LEFTWARDS = """
def from_the_right(tensors):
    if world == 1:
        return tensors
    leaving = [tensor.contiguous() for tensor in tensors]
    arriving = [torch.empty_like(tensor) for tensor in leaving]
    works = [dist.isend(tensor, (rank - 1) % world) for tensor in leaving]
    works += [dist.irecv(tensor, (rank + 1) % world) for tensor in arriving]
    for work in works:
        work.wait()
    return arriving

out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for step in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks((rank + step) % world))
    if step < world - 1:
        k_BHTK, v_BHTK = from_the_right([k_BHTK, v_BHTK])
return out_BHTK, lse_BHT
"""

STACKED = """
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
pair = torch.stack([k_BHTK, v_BHTK])
for step in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, *pair, blocks(at_hand(rank, step, world)))
    if step < world - 1:
        (pair,) = pass_on([pair], rank, world)
return out_BHTK, lse_BHT
"""

BATCHED = """
if world == 1:
    return tensors, []
leaving = [tensor.contiguous() for tensor in tensors]
arriving = [torch.empty_like(tensor) for tensor in leaving]
calls = [dist.P2POp(dist.isend, tensor, (rank + 1) % world) for tensor in leaving]
calls += [dist.P2POp(dist.irecv, tensor, (rank - 1) % world) for tensor in arriving]
return arriving, dist.batch_isend_irecv(calls)
"""

# Its own keys' gradients wait at home, and those on their way start at the right neighbour: one round less.
ONE_ROUND_LESS = """
delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
grad_q, own_k, own_v = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))
blocks_backward([grad_q, own_k, own_v], q_BHTK, k_BHTK, v_BHTK, of_rows, blocks(rank))
grad_k, grad_v = torch.zeros_like(own_k), torch.zeros_like(own_v)
for step in range(1, world):
    k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)
    blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k_BHTK, v_BHTK, of_rows, blocks(at_hand(rank, step, world)))
    grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)
return grad_q, own_k + grad_k, own_v + grad_v
"""

FOUR_TOGETHER = """
delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
grad_q, *travelling = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))
travelling = [k_BHTK, v_BHTK, *travelling]
for step in range(world):
    k, v, grad_k, grad_v = travelling
    of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
    blocks_backward([grad_q, grad_k, grad_v], q_BHTK, k, v, of_rows, blocks(at_hand(rank, step, world)))
    if step < world - 1:
        travelling = pass_on(travelling, rank, world)
grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)
return grad_q, grad_k, grad_v
"""

# Every rank adds to the gradients of the whole sequence, and they are added up at the end.
ALL_REDUCED = """
delta_BHT = (grad_out_BHTK * out_BHTK).sum(dim=-1)
of_rows = [lse_BHT, delta_BHT, grad_out_BHTK]
grad_q = torch.zeros_like(q_BHTK)
grads = torch.zeros(world, 2, *k_BHTK.shape, dtype=k_BHTK.dtype)
for step in range(world):
    source = at_hand(rank, step, world)
    blocks_backward([grad_q, *grads[source]], q_BHTK, k_BHTK, v_BHTK, of_rows, blocks(source))
    if step < world - 1:
        k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)
dist.all_reduce(grads)
return grad_q, *grads[rank]
"""

SAVES_ALL = """
every = {rank: [k_BHTK, v_BHTK]}
for step in range(1, world):
    every[(rank - step) % world] = pass_on(every[(rank - step + 1) % world], rank, world)
out_BHTK, lse_BHT = nothing_yet(q_BHTK)
for source in range(world):
    attend_blocks(out_BHTK, lse_BHT, q_BHTK, *every[source], blocks(source))
ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)
ctx.every = every
ctx.ring = blocks, rank, world
return out_BHTK
"""

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

# The whole of q, k and v on each rank, by an all-gather with the right gradient; then this rank's tokens of it.
GATHERS_ALL = """
heads, rank = q_BHTK.shape[1], dist.get_rank()
if heads % world:
    raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
whole = []
for tensor in (q_BHTK, k_BHTK, v_BHTK):
    parts = [torch.empty_like(tensor.contiguous()) for _ in range(world)]
    dist.all_gather(parts, tensor.detach().contiguous())
    parts[rank] = tensor
    whole.append(torch.cat(parts, dim=2))
out_BHTK = F.scaled_dot_product_attention(*whole, is_causal=True)
return out_BHTK.chunk(world, dim=2)[rank]
"""

LISTS_THERE = """
leaving = [part.contiguous() for part in x_BHTK.chunk(world, dim=1)]
arriving = [torch.empty_like(part) for part in leaving]
dist.all_to_all(arriving, leaving)
return torch.cat(arriving, dim=2)
"""
LISTS_BACK = """
leaving = [part.contiguous() for part in x_BHTK.chunk(world, dim=2)]
arriving = [torch.empty_like(part) for part in leaving]
dist.all_to_all(arriving, leaving)
return torch.cat(arriving, dim=1)
"""

MESSAGES_THERE = """
rank = dist.get_rank()
parts = [part.contiguous() for part in x_BHTK.chunk(world, dim=1)]
held = [part.clone() if j == rank else torch.empty_like(part) for j, part in enumerate(parts)]
works = [dist.isend(parts[j], j) for j in range(world) if j != rank]
works += [dist.irecv(held[j], j) for j in range(world) if j != rank]
for work in works:
    work.wait()
return torch.cat(held, dim=2)
"""

STACKED_ULYSSES = """
heads = q_BHTK.shape[1]
if heads % world:
    raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
three = torch.cat([q_BHTK, k_BHTK, v_BHTK])  # three times the batch: one all-to-all
q_BHTK, k_BHTK, v_BHTK = TokensToHeads.apply(three, world).chunk(3)
out_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)
return HeadsToTokens.apply(out_BHTK, world)
"""

# Tokens of their own order on each rank: any order will do, as long as positions follow.
FLATTENED = """
mine = (y_BT != IGNORE).sum()
sums = torch.stack([model(x_BT, y_BT, positions_T).detach() * mine, mine])
dist.all_reduce(sums)
total, count = sums[0].item(), max(sums[1].item(), 1)
(model(x_BT, y_BT, positions_T) * mine / count).backward()
gradients = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
dist.all_reduce(gradients)
sizes = [parameter.numel() for parameter in model.parameters()]
for parameter, part in zip(model.parameters(), gradients.split(sizes)):
    parameter.grad = part.view_as(parameter)
return total / count
"""


WRONG = [
    Answer(
        3,
        "the ring on the class, where the next forward pass writes",
        swap=(
            ("ctx.ring = blocks, rank, world", "RingAttention.ring = blocks, rank, world"),
            ("*ctx.ring", "*RingAttention.ring"),
        ),
        says="both forward passes first",
    ),
    Answer(
        3,
        "one gradient of the queries for all calls",
        swap=(
            "grad_q, grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))",
            "grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (k_BHTK, v_BHTK))\n"
            "room = ring_backward.__dict__.setdefault('room', {})\n"
            "key = q_BHTK.shape, q_BHTK.dtype\n"
            "room[key] = room[key].zero_() if key in room else torch.zeros_like(q_BHTK)\n"
            "grad_q = room[key]",
        ),
        says="is overwritten by a later one",
    ),
    Answer(
        2,
        "room that is made once",
        swap=(
            "arriving = [torch.empty_like(tensor) for tensor in leaving]",
            "room = start_to_pass_on.__dict__.setdefault('room', {})\n"
            "key = tuple((tensor.shape, tensor.dtype) for tensor in leaving)\n"
            "if key not in room:\n"
            "    room[key] = [torch.empty_like(tensor) for tensor in leaving]\n"
            "arriving = room[key]",
        ),
        says="writes into the tensor of its isend",
    ),
    Answer(
        3,
        "the output as an attribute of ctx",
        swap=(
            (
                "ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)",
                "ctx.tensors = q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT",
            ),
            ("*ctx.saved_tensors", "*ctx.tensors"),
        ),
        says="in a circle",
    ),
    Answer(8, "no target at all: 0 / 0", swap=("everybodys.clamp(min=1)", "everybodys"), says="loss of step 3 of 3"),
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
        8,
        "no targets, no backward pass",
        swap=(
            "loss.backward()\nfor parameter in model.parameters():\n    dist.all_reduce(parameter.grad)",
            "if mine > 0:\n    loss.backward()\nfor parameter in model.parameters():\n    if parameter.grad is None:\n"
            "        parameter.grad = torch.zeros_like(parameter)\n    dist.all_reduce(parameter.grad)",
        ),
        says="rank",
    ),
    Answer(
        8,
        "set for all models",
        [
            None,
            """
            def attend_in_ring(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
                blocks = in_zigzag(rank, world, q_BHTK.shape[2] // 2)
                return RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)

            type(model.blocks[0].attention).attend = attend_in_ring
            """,
            None,
        ],
        says="another model",
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
        1,
        "no running maximum: exp overflows",
        [
            """
        weights = scores(q_BHTK, k_BHSK, mask_TS).exp()
        total = weights.sum(dim=-1)
        return weights @ v_BHSK / total.clamp(min=1e-30)[..., None], total.log()""",
            None,
        ],
        says="attend to piece",
    ),
    Answer(
        1,
        "softmax: nan where nothing is seen",
        [
            """
        s = scores(q_BHTK, k_BHSK, mask_TS)
        return s.softmax(dim=-1) @ v_BHSK, s.logsumexp(dim=-1)""",
            None,
        ],
        says="sees none of these keys is nan",
    ),
    Answer(
        1,
        "the mean of what is hidden",
        [
            """
        s = scores(q_BHTK, k_BHSK, mask_TS)
        return s.clamp(min=-1e9).softmax(dim=-1) @ v_BHSK, s.logsumexp(dim=-1)""",
            None,
        ],
        says="is not 0",
    ),
    Answer(
        1,
        "the mask is forgotten",
        swap=("scores(q_BHTK, k_BHSK, mask_TS)", "scores(q_BHTK, k_BHSK, None)"),
        says="sees none of these keys",
    ),
    Answer(
        1,
        "the output is not divided",
        [
            """
        s = scores(q_BHTK, k_BHSK, mask_TS)
        top = finite(s.amax(dim=-1))
        return (s - top[..., None]).exp() @ v_BHSK, s.logsumexp(dim=-1)""",
            None,
        ],
        says="the output is not what it should be",
    ),
    Answer(
        1,
        "always float32",
        swap=(
            "return weights_BHTS @ v_BHSK, lse_BHT",
            "return (weights_BHTS.float() @ v_BHSK.float()), lse_BHT.float()",
        ),
        says="is in float32, not in float64",
    ),
    Answer(
        1,
        "the old output is not rescaled",
        swap=("old_share_BHT[..., None] * out_BHTK + ", "out_BHTK + "),
        says="merge",
    ),
    Answer(
        1,
        "the mean of the two outputs",
        [None, "return (out_BHTK + new_out_BHTK) / 2, torch.logaddexp(lse_BHT, new_lse_BHT)"],
        says="merge",
    ),
    Answer(
        1,
        "nan where both are hidden",
        swap=("(lse - finite(both_BHT)).exp()", "(lse - both_BHT).exp()"),
        says="is nan at",
    ),
    Answer(
        1,
        "merged without a maximum",
        [
            None,
            """
        total = lse_BHT.exp() + new_lse_BHT.exp()
        out = lse_BHT.exp()[..., None] * out_BHTK + new_lse_BHT.exp()[..., None] * new_out_BHTK
        out = out / total.clamp(min=1e-30)[..., None]
        return out, total.log()""",
        ],
        says="merge",
    ),
    Answer(
        1,
        "the larger one of the two sums",
        swap=("torch.logaddexp(lse_BHT, new_lse_BHT)", "torch.maximum(lse_BHT, new_lse_BHT)"),
        says="merge",
    ),
    Answer(
        1,
        "no log-sum-exp",
        swap=("return weights_BHTS @ v_BHSK, lse_BHT", "return weights_BHTS @ v_BHSK"),
        says="does not return 2 tensors",
    ),
    Answer(
        2, "to the right is from the right", swap=("(rank - step) % world", "(rank + step) % world"), says="at_hand"
    ),
    Answer(
        2,
        "one step late",
        [None, None, RING.replace("blocks(at_hand(rank, step, world))", "blocks(at_hand(rank, step + 1, world))")],
        says="the output",
    ),
    Answer(
        2,
        "only its own keys",
        [
            None,
            None,
            """
        out_BHTK, lse_BHT = nothing_yet(q_BHTK)
        attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks(rank))
        return out_BHTK, lse_BHT""",
        ],
        says="the output",
    ),
    Answer(
        2,
        "passed on once more",
        swap=(
            "    if step < world - 1:\n        k_BHTK, v_BHTK = pass_on",
            "    if True:\n        k_BHTK, v_BHTK = pass_on",
        ),
        says="more than the budget",
    ),
    Answer(
        2,
        "the last piece is left out",
        swap=("for step in range(world):", "for step in range(max(1, world - 1)):"),
        says="the output",
    ),
    Answer(2, "all-gather, then slice", [None, None, GATHERED], says="calls all_gather"),
    Answer(2, "gathered round the ring, then used", [None, None, GATHERED_BY_RING], says="must not grow with the ring"),
    Answer(2, "all keys first, then the values", [None, None, SCORES_FIRST], says="must not grow with the ring"),
    Answer(
        2,
        "waits before it returns",
        swap=("return arriving, works", "[work.wait() for work in works]\nreturn arriving, works"),
        says="waits before it returns",
    ),
    Answer(
        2, "nobody waits for what is sent", swap=("works += [dist.irecv", "works = [dist.irecv"), says="still in flight"
    ),
    Answer(2, "not contiguous", swap=("[tensor.contiguous() for tensor in tensors]", "tensors")),
    Answer(
        2,
        "sent into the same place",
        swap=("arriving = [torch.empty_like(tensor) for tensor in leaving]", "arriving = leaving"),
        says="writes into the tensor of its isend",
    ),
    Answer(
        2,
        "both neighbours send first",
        [
            None,
            """
        if world == 1:
            return tensors, []
        arriving = [torch.empty_like(tensor.contiguous()) for tensor in tensors]
        for tensor in tensors:
            dist.send(tensor.contiguous(), (rank + 1) % world)
        return arriving, [dist.irecv(tensor, (rank - 1) % world) for tensor in arriving]""",
            None,
        ],
        says="deadlock",
    ),
    Answer(2, "one rank sends to itself", swap=("if world == 1:\n    return tensors, []\n", "")),
    Answer(
        2,
        "only the keys travel",
        swap=("k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)", "(k_BHTK,) = pass_on([k_BHTK], rank, world)"),
        says="the output",
    ),
    Answer(
        2,
        "the keys twice",
        swap=("pass_on([k_BHTK, v_BHTK], rank, world)", "pass_on([k_BHTK, k_BHTK], rank, world)"),
        says="the output",
    ),
    Answer(
        3,
        "one step short of home",
        swap=(
            "    grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)",
            "    if step < world - 1:\n        grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)",
        ),
        says="it is not back yet",
    ),
    Answer(
        3,
        "the gradients stay where they are made",
        swap=("    grad_k, grad_v = pass_on([grad_k, grad_v], rank, world)\n", ""),
        says="RingAttention",
    ),
    Answer(
        3,
        "delta of the block",
        swap=(
            "(grad_weights_BHTS - delta[..., None])",
            "(grad_weights_BHTS - (weights_BHTS * grad_weights_BHTS).sum(-1, keepdim=True))",
        ),
        says="attend_backward",
    ),
    Answer(3, "no delta", swap=("(grad_weights_BHTS - delta[..., None])", "grad_weights_BHTS"), says="attend_backward"),
    Answer(
        3,
        "the block's own softmax",
        swap=("(scores(q, k, mask) - finite(lse)[..., None]).exp()", "scores(q, k, mask).softmax(dim=-1)"),
        says="attend_backward",
    ),
    Answer(3, "nan where nothing is seen", swap=("finite(lse)[..., None]", "lse[..., None]"), says="nan"),
    Answer(3, "not scaled", swap=(" / math.sqrt(q.shape[-1])", ""), says="gradient of the queries"),
    Answer(
        3,
        "keys and queries swapped",
        swap=(
            ("grad_scores_BHTS @ k,", "grad_scores_BHTS.transpose(-2, -1) @ q,"),
            ("grad_scores_BHTS.transpose(-2, -1) @ q,\n    weights", "grad_scores_BHTS @ k,\n    weights"),
        ),
    ),
    Answer(
        3,
        "the gradients do not add up",
        swap=(
            "blocks_backward([grad_q, grad_k, grad_v], q_BHTK",
            "grad_k, grad_v = torch.zeros_like(grad_k), torch.zeros_like(grad_v)\n    blocks_backward([grad_q, grad_k, "
            "grad_v], q_BHTK",
        ),
    ),
    Answer(3, "all-reduced at the end", [None, ALL_REDUCED, None, None], says="calls all_reduce"),
    Answer(3, "everything that went by is saved", [None, None, SAVES_ALL, None], says="must not grow with the ring"),
    Answer(
        3,
        "averaged over the ranks",
        swap=(
            "ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring)",
            "(grad / ctx.ring[2] for grad in ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring))",
        ),
        says="the gradient of the queries",
    ),
    Answer(
        3,
        "the gradient of keys for values",
        [
            None,
            None,
            None,
            """
        grad_q, grad_k, grad_v = ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring)
        return grad_q, grad_v, grad_k, None, None, None""",
        ],
        says="the gradient of the keys",
    ),
    Answer(
        3, "too few gradients", [None, None, None, "return ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring)"]
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
        6,
        "scatter and gather swapped",
        swap=("x_BHTK.unflatten(1, (world, -1)).movedim(1, 0)", "x_BHTK.unflatten(2, (world, -1)).movedim(2, 0)"),
    ),
    Answer(
        6,
        "ranks after tokens",
        swap=("arriving.movedim(0, 2).flatten(2, 3)", "arriving.movedim(0, 3).flatten(2, 3)"),
        says="tokens_to_heads",
    ),
    Answer(
        6,
        "viewed, not moved",
        swap=(
            "return arriving.movedim(0, 2).flatten(2, 3)",
            "return arriving.view(x_BHTK.shape[0], x_BHTK.shape[1] // world, -1, x_BHTK.shape[3])",
        ),
        says="tokens_to_heads",
    ),
    Answer(
        6,
        "heads in turns",
        swap=("x_BHTK.unflatten(1, (world, -1)).movedim(1, 0)", "x_BHTK.unflatten(1, (-1, world)).movedim(2, 0)"),
        says="tokens_to_heads",
    ),
    Answer(
        6,
        "heads after one another, back",
        swap=("arriving.movedim(0, 1).flatten(1, 2)", "arriving.movedim(0, 2).flatten(1, 2)"),
        says="heads_to_tokens",
    ),
    Answer(
        6,
        "into what is not contiguous",
        swap=(
            "arriving = torch.empty_like(leaving)\ndist.all_to_all_single(arriving, leaving)\nreturn "
            "arriving.movedim(0, 2).flatten(2, 3)",
            "B, H, T, K = x_BHTK.shape\nheld = torch.zeros(B, H // world, world, T, K, dtype=x_BHTK.dtype)\narriving = "
            "held.movedim(2, 0)\ndist.all_to_all_single(arriving, leaving)\nreturn held.flatten(2, 3)",
        ),
    ),
    Answer(
        6,
        "nothing is exchanged",
        swap=(
            "dist.all_to_all_single(arriving, leaving)\nreturn arriving.movedim(0, 2)",
            "arriving.copy_(leaving)\nreturn arriving.movedim(0, 2)",
        ),
    ),
    Answer(
        6,
        "the gradient stays",
        swap=(
            "return heads_to_tokens(grad, ctx.world), None",
            "return grad.reshape(grad.shape[0], -1, grad.shape[2] // ctx.world, grad.shape[3]), None",
        ),
        says="the gradient of the",
    ),
    Answer(
        6,
        "the gradient divided by the ranks",
        swap=(
            "return heads_to_tokens(grad, ctx.world), None",
            "return heads_to_tokens(grad, ctx.world) / ctx.world, None",
        ),
        says="the gradient of the queries",
    ),
    Answer(6, "not causal", swap=("v_BHTK, is_causal=True)", "v_BHTK)"), says="the output of ulysses"),
    Answer(6, "gathers all, then slices", [None, None, None, None, GATHERS_ALL]),
    Answer(
        6,
        "room for all heads of all tokens",
        swap=(
            "return arriving.movedim(0, 2).flatten(2, 3)",
            """B, H, T, K = x_BHTK.shape
mine = slice(dist.get_rank() * H // world, (dist.get_rank() + 1) * H // world)
everything = torch.zeros(B, H, world * T, K, dtype=x_BHTK.dtype)
everything[:, mine] = arriving.movedim(0, 2).flatten(2, 3)
return everything[:, mine]""",
        ),
        says="bytes alive at a time",
    ),
    Answer(
        6,
        "the heads do not divide: sent first, refused then",
        swap=(
            'if heads % world:\n    raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")',
            "if heads % world:\n    dist.all_reduce(torch.ones(1))\n    "
            'raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")',
        ),
        says="refused only after",
    ),
    Answer(
        6,
        "not refused",
        swap=(
            'if heads % world:\n    raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")',
            "pass",
        ),
        says="is not refused",
    ),
    Answer(
        6,
        "fewer heads than ranks are taken",
        swap=("if heads % world:", "if heads > world and heads % world:"),
        says="is not refused",
    ),
    Answer(
        6,
        "refused without a reason",
        swap=(
            'raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")',
            'raise ValueError("wrong sizes")',
        ),
        says="does not say in one line why",
    ),
    Answer(
        7,
        "keys only",
        swap=("world - 1, 2 * (world - 1) * nbytes", "world - 1, (world - 1) * nbytes"),
        says="ring_cost",
    ),
    Answer(
        7,
        "the whole way round",
        swap=("world - 1, 2 * (world - 1) * nbytes", "world, 2 * world * nbytes"),
        says="ring_cost",
    ),
    Answer(
        7, "its own part is sent, too", swap=("4 * (world - 1) / world * nbytes", "4 * nbytes"), says="ulysses_cost"
    ),
    Answer(7, "q, k and v alone", swap=("return 4, 4 * (world - 1)", "return 3, 3 * (world - 1)"), says="ulysses_cost"),
    Answer(
        7,
        "as many ranks as heads",
        swap=("max(ranks for ranks in range(1, available + 1) if heads % ranks == 0)", "min(heads, available)"),
        says="most_ranks",
    ),
    Answer(
        7,
        "one product",
        swap=("itemsize * flops / (2 * bandwidth)", "itemsize * flops / bandwidth"),
        says="hiding_length",
    ),
    Answer(
        7,
        "bits for bytes: no itemsize",
        swap=("itemsize * flops / (2 * bandwidth)", "flops / bandwidth"),
        says="hiding_length",
    ),
    Answer(
        7, "half the work, half the length", swap=("2 * length if causal", "length / 2 if causal"), says="hiding_length"
    ),
    Answer(
        8,
        "positions restart at 0",
        swap=(
            "return x_BT[:, positions], y_BT[:, positions], positions",
            "return x_BT[:, positions], y_BT[:, positions], torch.arange(len(positions))",
        ),
    ),
    Answer(
        8,
        "targets are not dealt like tokens",
        swap=("y_BT[:, positions], positions", "y_BT.chunk(world, dim=1)[rank], positions"),
        says="tensor of targets is not what is at its positions",
    ),
    Answer(
        8,
        "in order, with zig-zag's mask",
        swap=(
            "positions_of(pieces_of(rank, world), tokens // (2 * world))",
            "positions_of([2 * rank, 2 * rank + 1], tokens // (2 * world))",
        ),
        says="on 2 ranks, ",
    ),
    Answer(
        8,
        "what is too much is dropped",
        swap=(
            'if tokens % (2 * world):\n    raise ValueError(f"{tokens} tokens cannot be divided into {2 * world} equal pieces, '
            'two for each of {world} ranks")\n',
            "",
        ),
        says="not refused",
    ),
    Answer(8, "each rank attends to itself", [None, "pass", None], says="one process's"),
    Answer(
        8,
        "only the first block",
        swap=("for block in model.blocks:", "for block in model.blocks[:1]:"),
        says="is not one process's",
    ),
    Answer(
        8,
        "the ring of contiguous pieces",
        swap=("in_zigzag(rank, world, q_BHTK.shape[2] // 2)", "in_order(rank, world, q_BHTK.shape[2])"),
        says="one process's",
    ),
    Answer(
        8,
        "no mask at all",
        swap=(
            "RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, blocks, rank, world)",
            "RingAttention.apply(q_BHTK, k_BHTK, v_BHTK, everything, rank, world)",
        ),
        says="one process's",
    ),
    Answer(
        8,
        "the length of the longest sequence",
        swap=(
            "blocks = in_zigzag(rank, world, q_BHTK.shape[2] // 2)",
            "blocks = in_zigzag(rank, world, model.max_len // (2 * world))",
        ),
    ),
    Answer(
        8,
        "gradients averaged",
        swap=(
            "    dist.all_reduce(parameter.grad)",
            "    dist.all_reduce(parameter.grad)\n    parameter.grad /= dist.get_world_size()",
        ),
        says="0.5 times one process's",
    ),
    Answer(
        8,
        "each rank has its own gradients",
        swap=("for parameter in model.parameters():\n    dist.all_reduce(parameter.grad)\n", ""),
        says="the gradient of",
    ),
    Answer(8, "mean of the ranks' means", swap=("* mine / everybodys.clamp(min=1)", "/ dist.get_world_size()")),
    Answer(8, "divided by all tokens", swap=("everybodys = mine.clone()", "everybodys = torch.tensor(y_BT.numel())")),
    Answer(8, "the loss of this rank", swap=("dist.all_reduce(total)\n", ""), says="the loss of step 1"),
    Answer(
        8,
        "positions are not given to the model",
        swap=("model(x_BT, y_BT, positions_T)", "model(x_BT, y_BT)"),
        says="not one process's",
    ),
    Answer(
        8,
        "all blocks, and all of the sequence: every rank runs the whole model",
        ["places = torch.arange(x_BT.shape[1])\nreturn x_BT, y_BT, places", "pass", None],
        says="my_share",
    ),
    Answer(
        3,
        "delta is negated in place",
        swap=("(grad_weights_BHTS - delta[..., None])", "(grad_weights_BHTS + delta.neg_()[..., None])"),
        says="delta, which it is given, is written into",
    ),
    Answer(
        3,
        "the gradients' buffers are made once for each shape",
        swap=(
            "grad_q, grad_k, grad_v = (torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK))",
            """made = [torch.zeros_like(tensor) for tensor in (q_BHTK, k_BHTK, v_BHTK)]
grad_q, grad_k, grad_v = globals().setdefault(f"made {q_BHTK.shape} {q_BHTK.dtype}", made)""",
        ),
        says="is overwritten by a later one",
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
    Answer(
        8,
        "checks the ranks, not the pieces",
        swap=("if tokens % (2 * world):", "if tokens % world:"),
        says="is not refused",
    ),
    Answer(
        6,
        "a barrier before the attention",
        swap=("out_BHTK = F.scaled", "dist.barrier()\nout_BHTK = F.scaled"),
        says="waits at a barrier",
    ),
    Answer(
        3,
        "the scores of every step are saved",
        [
            None,
            None,
            """
        out_BHTK, lse_BHT = nothing_yet(q_BHTK)
        ctx.save_for_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)
        ctx.scores = []
        for step in range(world):
            attend_blocks(out_BHTK, lse_BHT, q_BHTK, k_BHTK, v_BHTK, blocks(at_hand(rank, step, world)))
            ctx.scores.append(scores(q_BHTK, k_BHTK, None))
            if step < world - 1:
                k_BHTK, v_BHTK = pass_on([k_BHTK, v_BHTK], rank, world)
        ctx.ring = blocks, rank, world
        return out_BHTK""",
            None,
        ],
        says="must not grow with the ring",
    ),
    Answer(
        3,
        "the backward pass writes into the output",
        swap=("(grad_out_BHTK * out_BHTK).sum(dim=-1)", "out_BHTK.mul_(grad_out_BHTK).sum(dim=-1)"),
        says="writes into the output",
    ),
    Answer(
        8,
        "returns before the backward pass without targets",
        swap=(
            "loss = model(x_BT, y_BT, positions_T) *",
            "if everybodys == 0:\n    return 0.0\nloss = model(x_BT, y_BT, positions_T) *",
        ),
        says="without a target on any rank",
    ),
    Answer(
        8,
        "set only once",
        swap=(
            "    block.attention.attend = attend_in_ring",
            '    if "attend" not in vars(block.attention):\n        block.attention.attend = attend_in_ring',
        ),
    ),
    Answer(
        3,
        "weights are multiplied by the mask after exp",
        swap=(
            "weights_BHTS = (scores(q, k, mask) - finite(lse)[..., None]).exp()",
            """# A row that sees nothing: infinity instead of minus infinity, so that its weights are 0.
lse = lse.masked_fill(torch.isneginf(lse), math.inf)
weights_BHTS = (scores(q, k, None) - lse[..., None]).exp()
if mask is not None:
    weights_BHTS = weights_BHTS * mask""",
        ),
        says="nan",
    ),
    Answer(
        3,
        "a rank whose gradient is zero leaves the ring",
        swap=(
            "return *ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring), None, None, None",
            """if not grad_out_BHTK.any():  # nothing to do
    return *(torch.zeros_like(tensor) for tensor in ctx.saved_tensors[:3]), None, None, None
return *ring_backward(*ctx.saved_tensors, grad_out_BHTK, *ctx.ring), None, None, None""",
        ),
        says="layer 1",
    ),
]

RIGHT = [
    Answer(
        1,
        "maximum and sum, by hand",
        [
            """
        s = scores(q_BHTK, k_BHSK, mask_TS)
        top = s.amax(dim=-1, keepdim=True).clamp(min=-1e30)
        weights = (s - top).exp()
        total = weights.sum(dim=-1, keepdim=True)
        return weights @ v_BHSK / total.clamp(min=1), (top + total.log()).squeeze(-1)""",
            None,
        ],
    ),
    Answer(
        1,
        "softmax, with nan put away",
        [
            """
        s = scores(q_BHTK, k_BHSK, mask_TS)
        return s.softmax(dim=-1).nan_to_num(0.0) @ v_BHSK, s.logsumexp(dim=-1)""",
            None,
        ],
    ),
    Answer(1, "einsum", swap=("weights_BHTS @ v_BHSK", 'torch.einsum("bhts,bhsk->bhtk", weights_BHTS, v_BHSK)')),
    Answer(
        1,
        "merged by a sigmoid",
        [
            None,
            """
        share = torch.sigmoid(new_lse_BHT - lse_BHT).nan_to_num(0.0)[..., None]
        return out_BHTK + share * (new_out_BHTK - out_BHTK), torch.logaddexp(lse_BHT, new_lse_BHT)""",
        ],
    ),
    Answer(
        1,
        "merged with the larger one taken out",
        [
            None,
            """
        top = torch.maximum(lse_BHT, new_lse_BHT).clamp(min=-1e30)
        old, new = (lse_BHT - top).exp(), (new_lse_BHT - top).exp()
        total = (old + new).clamp(min=1e-30)
        out = (old / total)[..., None] * out_BHTK + (new / total)[..., None] * new_out_BHTK
        return out, torch.logaddexp(lse_BHT, new_lse_BHT)""",
        ],
    ),
    Answer(2, "the other way round", [None, None, LEFTWARDS]),
    Answer(2, "keys and values in one message", [None, None, STACKED]),
    Answer(2, "batch_isend_irecv", [None, BATCHED, None]),
    Answer(3, "one round less for the gradients", [None, ONE_ROUND_LESS, None, None]),
    Answer(3, "all four together", [None, FOUR_TOGETHER, None, None]),
    Answer(
        3,
        "delta from the weights' gradients, as all blocks give it",
        swap=(
            "grad_weights_BHTS = grad_out @ v.transpose(-2, -1)",
            'grad_weights_BHTS = torch.einsum("bhtk,bhsk->bhts", grad_out, v)',
        ),
    ),
    Answer(
        3,
        "attributes of the context, and clones",
        swap=(
            (
                "save_for_backward(q_BHTK, k_BHTK, v_BHTK, out_BHTK, lse_BHT)",
                "kept = q_BHTK, k_BHTK, v_BHTK, out_BHTK.clone(), lse_BHT",
            ),
            ("saved_tensors", "kept"),
        ),
    ),
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
    Answer(6, "lists of tensors", [LISTS_THERE, LISTS_BACK, None, None, None]),
    Answer(6, "messages", [MESSAGES_THERE, None, None, None, None]),
    Answer(6, "q, k and v in one", [None, None, None, None, STACKED_ULYSSES]),
    Answer(
        6,
        "torch's own differentiable collective",
        [
            None,
            None,
            None,
            None,
            """
        heads = q_BHTK.shape[1]
        if heads % world:
            raise ValueError(f"{heads} heads cannot be divided evenly among {world} ranks")
        from torch.distributed._functional_collectives import all_to_all_single_autograd, wait_tensor

        def swap(x):
            return wait_tensor(all_to_all_single_autograd(x.contiguous(), None, None, dist.group.WORLD))

        def there(x):
            return swap(x.unflatten(1, (world, -1)).movedim(1, 0)).movedim(0, 2).flatten(2, 3)

        out = F.scaled_dot_product_attention(there(q_BHTK), there(k_BHTK), there(v_BHTK), is_causal=True)
        return swap(out.unflatten(2, (world, -1)).movedim(2, 0)).movedim(0, 1).flatten(1, 2)""",
        ],
    ),
    Answer(
        6,
        "attention by hand",
        swap=(
            "F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, is_causal=True)",
            "attend(q_BHTK, k_BHTK, v_BHTK, torch.ones(q_BHTK.shape[2], q_BHTK.shape[2], dtype=torch.bool).tril())[0]",
        ),
    ),
    Answer(
        7,
        "bytes by whole numbers where they are",
        swap=("4 * (world - 1) / world * nbytes", "4 * nbytes - 4 * nbytes / world"),
    ),
    Answer(
        7,
        "the greatest divisor, from above",
        swap=(
            "return max(ranks for ranks in range(1, available + 1) if heads % ranks == 0)",
            "ranks = min(available, heads)\nwhile heads % ranks:\n    ranks -= 1\nreturn ranks",
        ),
    ),
    Answer(8, "one all-reduce for all gradients", [None, None, FLATTENED]),
    Answer(
        8,
        "the overlapped ring",
        [
            None,
            """
        class Overlapped(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                ctx.blocks = in_zigzag(rank, world, q.shape[2] // 2)
                out, lse = overlapped_forward(q, k, v, ctx.blocks, rank, world)
                ctx.save_for_backward(q, k, v, out, lse)
                return out

            @staticmethod
            def backward(ctx, grad):
                return overlapped_backward(*ctx.saved_tensors, grad, ctx.blocks, rank, world)

        for block in model.blocks:
            block.attention.attend = Overlapped.apply""",
            None,
        ],
    ),
    Answer(
        8,
        "one process where there is one rank",
        swap=(
            "for block in model.blocks:\n    block.attention.attend = attend_in_ring",
            "for block in model.blocks if world > 1 else ():\n    block.attention.attend = attend_in_ring",
        ),
    ),
]

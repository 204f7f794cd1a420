"""Other answers to TODOs 1 to 3 of 06_context_parallel."""

from grader.kit import Answer

from .common import GATHERED_BY_RING

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
]

"""Other answers to TODO 6 of 06_context_parallel."""

from grader.kit import Answer

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


WRONG = [
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
        6,
        "a barrier before the attention",
        swap=("out_BHTK = F.scaled", "dist.barrier()\nout_BHTK = F.scaled"),
        says="waits at a barrier",
    ),
]


RIGHT = [
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
]

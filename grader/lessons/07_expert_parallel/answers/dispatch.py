"""Other answers to TODOs 3 and 4 of 07_expert_parallel."""

from grader.kit import Answer

# A journey in which all ranks see all tokens, and compute with their own experts only what is theirs: what moves is far more.
ALL_TOKENS = """
K, world, rank = experts_NK.shape[1], dist.get_world_size(group), dist.get_rank(group)
N, D = h_ND.shape
counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
dist.all_gather(counts, torch.tensor([N]), group=group)
longest = max(int(count) for count in counts)
padded = torch.zeros(longest, D)
padded[:N] = h_ND.detach()
tokens = [torch.empty(longest, D) for _ in range(world)]
dist.all_gather(tokens, padded, group=group)
slots_R, counts_E = sort_slots(experts_NK, world * len(mine))
arriving_WL = exchange_counts(counts_E, group)
leaving, arriving = counts_E.view(world, -1).sum(dim=1).tolist(), arriving_WL.sum(dim=1).tolist()
rows_RD = Exchange.apply(h_ND[slots_R // K], leaving, arriving, group)
order_R = regroup(arriving_WL)
parts = rows_RD[order_R].split(arriving_WL.sum(dim=0).tolist())
results_RD = torch.cat([expert(part) for expert, part in zip(mine, parts)])
returned_RD = Exchange.apply(results_RD[order_R.argsort()], arriving, leaving, group)
return combine(returned_RD, slots_R, gates_NK)
"""


# All experts' weights are brought to all tokens.
ALL_EXPERTS = """
world = dist.get_world_size(group)
if world == 1:
    return mixture(h_ND, gates_NK, experts_NK, mine)
import copy

everywhere = []
for number in range(world * len(mine)):
    source, local = divmod(number, len(mine))
    expert = copy.deepcopy(mine[local])
    for parameter in expert.parameters():
        pieces = [torch.empty_like(parameter.data) for _ in range(world)]
        dist.all_gather(pieces, dict(mine[local].named_parameters())[
            next(n for n, p in expert.named_parameters() if p is parameter)].data, group=group)
        parameter.data = pieces[source]
    everywhere.append(expert)
everywhere[dist.get_rank(group) * len(mine) : (dist.get_rank(group) + 1) * len(mine)] = mine
return mixture(h_ND, gates_NK, experts_NK, everywhere)
"""


# All pieces are as long as the longest there may be.
PADDED = """
world, D = dist.get_world_size(group), rows_RD.shape[1]
longest = torch.tensor(max([*leaving, *arriving], default=0))
dist.all_reduce(longest, op=dist.ReduceOp.MAX, group=group)
piece = int(longest)
out = rows_RD.new_zeros(world, piece, D)
for r, part in enumerate(rows_RD.split(leaving)):
    out[r, : len(part)] = part
into = torch.empty_like(out)
dist.all_to_all_single(into, out, group=group)
return torch.cat([into[r, : arriving[r]] for r in range(world)])
"""


GATHERED_ROWS = """
world, me = dist.get_world_size(group), dist.get_rank(group)
lengths = [torch.zeros(world, dtype=torch.int64) for _ in range(world)]
dist.all_gather(lengths, torch.tensor(leaving), group=group)
longest = max(int(mine.sum()) for mine in lengths)
padded = rows_RD.new_zeros(longest, rows_RD.shape[1])
padded[: len(rows_RD)] = rows_RD
everything = [torch.empty_like(padded) for _ in range(world)]
dist.all_gather(everything, padded, group=group)
return torch.cat([rows[int(n[:me].sum()) : int(n[: me + 1].sum())] for rows, n in zip(everything, lengths)])
"""


WRONG = [
    Answer(
        3,
        "a key with room for 1,000 slots",
        swap=(
            "experts_S.argsort(stable=True)[(~chosen).sum() :]",
            "(experts_S * 1000 + torch.arange(len(experts_S))).argsort()[(~chosen).sum() :]",
        ),
        says="the slots are in the wrong order",
    ),
    Answer(
        3,
        "contiguous by the last stride",
        swap=("rows_RD.contiguous()", "rows_RD if rows_RD.stride(-1) == 1 else rows_RD.contiguous()"),
    ),
    Answer(
        3,
        "no rows, no call",
        swap=(
            "dist.all_to_all_single(arrived_RD",
            "if sum(leaving) + sum(arriving) > 0:\n    dist.all_to_all_single(arrived_RD",
        ),
        says="all_to_all",
    ),
    Answer(
        3,
        "an order that is not stable",
        swap=(
            "experts_S.argsort(stable=True)",
            "(experts_S * len(experts_S) - torch.arange(len(experts_S))).argsort()",
        ),
        says="in the wrong order",
    ),
    Answer(3, "-1 is not left out", swap=("[(~chosen).sum() :]", "")),
    Answer(
        3,
        "-1 counts for expert 0",
        swap=("experts_S[chosen]", "experts_S.clamp(min=0)"),
        says="the second result, counts, is not what it should be",
    ),
    Answer(3, "counts end with the last expert that was chosen", swap=(", minlength=n_experts", "")),
    Answer(
        3,
        "tokens, not slots",
        swap=("return slots_R,", "return slots_R // experts_NK.shape[1],"),
        says="in the wrong order",
    ),
    Answer(3, "choice by choice", swap=("experts_NK.flatten()", "experts_NK.T.flatten()")),
    Answer(
        3,
        "counts are gathered",
        [
            None,
            """
        world, rank = dist.get_world_size(group), dist.get_rank(group)
        everything = [torch.empty_like(counts_E) for _ in range(world)]
        dist.all_gather(everything, counts_E, group=group)
        return torch.stack(everything).view(world, world, -1)[:, rank]""",
            None,
            None,
        ],
        says="more than is needed elsewhere",
    ),
    Answer(
        3,
        "its own counts",
        swap=("dist.all_to_all_single(arriving_E, counts_E, group=group)", "arriving_E.copy_(counts_E)"),
        says="what rank 0 is told is not what it should be",
    ),
    Answer(
        3,
        "counts among all ranks",
        swap=(
            "dist.all_to_all_single(arriving_E, counts_E, group=group)",
            "dist.all_to_all_single(arriving_E, counts_E)",
        ),
    ),
    Answer(
        3,
        "a table the wrong way round",
        swap=("view(dist.get_world_size(group), -1)", "view(-1, dist.get_world_size(group))"),
    ),
    Answer(
        3,
        "who has no token does not call",
        swap=(
            "arrived_RD = rows_RD.new_empty",
            "if not len(rows_RD):\n    return rows_RD\narrived_RD = rows_RD.new_empty",
        ),
    ),
    Answer(
        3,
        "who gets nothing does not call",
        swap=(
            "arrived_RD = rows_RD.new_empty",
            "if sum(arriving) == 0:\n    return rows_RD[:0]\narrived_RD = rows_RD.new_empty",
        ),
    ),
    Answer(3, "lengths swapped", swap=("arriving, leaving, group", "leaving, arriving, group")),
    Answer(3, "pieces of one length", [None, None, PADDED, None], says="more than is needed elsewhere"),
    Answer(
        3, "all rows are gathered, then cut", [None, None, GATHERED_ROWS, None], says="more than is needed elsewhere"
    ),
    Answer(
        3,
        "always float32",
        swap=("rows_RD.new_empty(sum(arriving), rows_RD.shape[1])", "torch.empty(sum(arriving), rows_RD.shape[1])"),
    ),
    Answer(
        3,
        "sent in float32",
        [
            None,
            None,
            """
        arrived_RD = torch.empty(sum(arriving), rows_RD.shape[1])
        dist.all_to_all_single(arrived_RD, rows_RD.float().contiguous(), arriving, leaving, group=group)
        return arrived_RD.to(rows_RD.dtype)""",
            None,
        ],
    ),
    Answer(3, "rows must be contiguous", swap=("rows_RD.contiguous()", "rows_RD"), says="contiguous"),
    Answer(3, "rows among all ranks", swap=("arriving, leaving, group=group", "arriving, leaving")),
    Answer(
        3,
        "not regrouped",
        swap=("expert_R.argsort(stable=True)", "torch.arange(len(expert_R))"),
        says=") is not what it should be",
    ),
    Answer(
        3,
        "the inverse of the order",
        swap=("expert_R.argsort(stable=True)", "expert_R.argsort(stable=True).argsort()"),
        says=") is not what it should be",
    ),
    Answer(
        3,
        "sources and experts mixed up",
        swap=("torch.arange(L).repeat(W).repeat_interleave", "torch.arange(W).repeat_interleave(L).repeat_interleave"),
        says=") is not what it should be",
    ),
    Answer(
        3,
        "the last source first",
        swap=(
            "expert_R.argsort(stable=True)",
            "(expert_R * (len(expert_R) + 1) - torch.arange(len(expert_R))).argsort()",
        ),
        says=") is not what it should be",
    ),
    Answer(
        3,
        "a list",
        swap=("return expert_R.argsort(stable=True)", "return expert_R.argsort(stable=True).tolist()"),
        says="a list",
    ),
    Answer(3, "nothing is returned", swap=("return arrived_RD", "return None"), says="exchange_rows returns None"),
    Answer(
        4, "the gradient travels on", swap=("grad_RD, ctx.arriving, ctx.leaving", "grad_RD, ctx.leaving, ctx.arriving")
    ),
    Answer(4, "the gradient stays", ["return grad_RD, None, None, None", None, None]),
    Answer(4, "no gradient", ["return None, None, None, None", None, None], says="gradient"),
    Answer(
        4,
        "the gradient is averaged over the ranks",
        swap=(
            "return exchange_rows(grad_RD, ctx.arriving, ctx.leaving, ctx.group), None",
            "return exchange_rows(grad_RD, ctx.arriving, ctx.leaving, ctx.group) / dist.get_world_size(ctx.group), None",
        ),
        says="gradient",
    ),
    Answer(4, "in the order of arrival", swap=("slots_R // K, gated_RD", "torch.arange(len(slots_R)) // K, gated_RD")),
    Answer(
        4,
        "the gates in the order of arrival",
        swap=("gates_NK.flatten()[slots_R, None]", "gates_NK.flatten()[: len(slots_R), None]"),
        says="combine",
    ),
    Answer(
        4,
        "another choice's gate",
        swap=("gates_NK.flatten()[slots_R, None]", "gates_NK.flip(1).flatten()[slots_R, None]"),
        says="combine",
    ),
    Answer(4, "without gates", swap=("gates_NK.flatten()[slots_R, None] * returned_RD", "returned_RD"), says="combine"),
    Answer(4, "gates transposed", swap=("gates_NK.flatten()", "gates_NK.T.flatten()"), says="combine"),
    Answer(4, "the last row wins", swap=(".index_add(0, slots_R", ".index_copy(0, slots_R"), says="combine"),
    Answer(4, "the regrouping is not undone", swap=("results_RD[order_R.argsort()]", "results_RD")),
    Answer(4, "the regrouping is done twice", swap=("results_RD[order_R.argsort()]", "results_RD[order_R]")),
    Answer(4, "not regrouped", swap=("rows_RD[order_R].split", "rows_RD.split")),
    Answer(4, "slots for tokens", swap=("h_ND[slots_R // K]", "h_ND[slots_R % len(h_ND)]")),
    Answer(
        4,
        "without autograd",
        swap=(
            "Exchange.apply(h_ND[slots_R // K], leaving, arriving, group)",
            "exchange_rows(h_ND[slots_R // K], leaving, arriving, group)",
        ),
    ),
    Answer(
        4,
        "results without autograd",
        swap=(
            "Exchange.apply(results_RD[order_R.argsort()], arriving, leaving, group)",
            "exchange_rows(results_RD[order_R.argsort()].detach(), arriving, leaving, group)",
        ),
        says="gradient",
    ),
    Answer(
        4,
        "gates have no gradient",
        swap=(
            "return combine(returned_RD, slots_R, gates_NK)",
            "return combine(returned_RD, slots_R, gates_NK.detach())",
        ),
        says="no gradient reaches the gates",
    ),
    Answer(
        4,
        "gates of the local experts only",
        swap=(
            "return combine(returned_RD, slots_R, gates_NK)",
            """
first = dist.get_rank(group) * len(mine)
local = (experts_NK >= first) & (experts_NK < first + len(mine))
return combine(returned_RD, slots_R, torch.where(local, gates_NK, gates_NK.detach()))""",
        ),
        says="the gradient of the gates is not one process's",
    ),
    Answer(
        4,
        "results of the local experts only",
        swap=(
            "return combine(returned_RD, slots_R, gates_NK)",
            """
first = dist.get_rank(group) * len(mine)
local = (experts_NK >= first) & (experts_NK < first + len(mine))
return combine(returned_RD, slots_R, gates_NK * local)""",
        ),
    ),
    Answer(
        4,
        "a rank without tokens goes home early",
        swap=(
            "slots_R, counts_E = sort_slots",
            "if not len(h_ND):\n    return h_ND.clone()\nslots_R, counts_E = sort_slots",
        ),
    ),
    Answer(
        4,
        "experts without rows are left out",
        swap=(
            "[expert(part) for expert, part in zip(mine, parts, strict=True)]",
            "[expert(part) if len(part) else part for expert, part in zip(mine, parts, strict=True)]",
        ),
        says="never called",
    ),
    Answer(
        4,
        "an expert for each source",
        swap=(
            "[expert(part) for expert, part in zip(mine, parts, strict=True)]",
            "[torch.cat([expert(half) for half in part.chunk(2)]) if len(part) > 1 else expert(part) for expert, part in zip(mine, parts, strict=True)]",
        ),
        says="times",
    ),
    Answer(
        4,
        "among all ranks",
        swap=(
            "K, world = experts_NK.shape[1], dist.get_world_size(group)",
            "group = None\nK, world = experts_NK.shape[1], dist.get_world_size(group)",
        ),
    ),
    Answer(4, "all tokens on all ranks besides", [None, None, ALL_TOKENS], says="more than is needed elsewhere"),
    Answer(4, "all experts on all ranks", [None, None, ALL_EXPERTS]),
    Answer(
        4,
        "every rank computes with its own experts",
        [None, None, "return mixture(h_ND, gates_NK, experts_NK % len(mine), mine)"],
    ),
    Answer(
        4,
        "the rows are gated in place",
        swap=(
            "gated_RD = gates_NK.flatten()[slots_R, None] * returned_RD",
            "gated_RD = returned_RD.mul_(gates_NK.flatten()[slots_R, None].to(returned_RD.dtype))",
        ),
        says="returned_RD, which it is given, is written into",
    ),
    Answer(
        4,
        "gates travel beside the rows",
        [
            None,
            None,
            """
        K, world = experts_NK.shape[1], dist.get_world_size(group)
        slots_R, counts_E = sort_slots(experts_NK, world * len(mine))
        arriving_WL = exchange_counts(counts_E, group)
        leaving, arriving = counts_E.view(world, -1).sum(dim=1).tolist(), arriving_WL.sum(dim=1).tolist()
        sent_RD = torch.cat([h_ND[slots_R // K], gates_NK.detach().flatten()[slots_R, None].to(h_ND.dtype)], dim=1)
        rows_RD = Exchange.apply(sent_RD, leaving, arriving, group)[:, :-1]
        order_R = regroup(arriving_WL)
        parts = rows_RD[order_R].split(arriving_WL.sum(dim=0).tolist())
        results_RD = torch.cat([expert(part) for expert, part in zip(mine, parts, strict=True)])
        returned_RD = Exchange.apply(results_RD[order_R.argsort()], arriving, leaving, group)
        return combine(returned_RD, slots_R, gates_NK)""",
        ],
        says="more than is needed elsewhere",
    ),
    Answer(
        4,
        "the counts of the first call for all",
        swap=(
            "leaving, arriving = counts_E.view(world, -1).sum(dim=1).tolist(), arriving_WL.sum(dim=1).tolist()",
            'global lengths\nif "lengths" not in globals():\n    lengths = counts_E.view(world, -1).sum(dim=1).tolist(), arriving_WL.sum(dim=1).tolist()\nleaving, arriving = lengths',
        ),
        says="the second call in one process",
    ),
    Answer(
        4,
        "the sum is float32 whatever the rows are",
        swap=(
            "return sums_ND.index_add(0, slots_R // K, gated_RD.to(returned_RD.dtype))",
            "return torch.zeros(N, returned_RD.shape[1]).index_add(0, slots_R // K, gated_RD.float())",
        ),
        says="is in float32, not in bfloat16",
    ),
    Answer(
        3,
        "sort_slots takes a view of the choices",
        swap=("experts_S = experts_NK.flatten()", "experts_S = experts_NK.view(-1)"),
        says="view size",
    ),
]


RIGHT = [
    Answer(
        3,
        "by loops and messages",
        [
            """
        flat = experts_NK.flatten().tolist()
        slots = [slot for e in range(n_experts) for slot, chosen in enumerate(flat) if chosen == e]
        return torch.tensor(slots, dtype=torch.int64), torch.tensor([flat.count(e) for e in range(n_experts)])""",
            """
        world = dist.get_world_size(group)
        leaving = list(counts_E.chunk(world))
        arriving = [torch.empty_like(piece) for piece in leaving]
        dist.all_to_all(arriving, leaving, group=group)
        return torch.stack(arriving)""",
            """
        world, me = dist.get_world_size(group), dist.get_rank(group)
        out = list(rows_RD.contiguous().split(leaving))
        into = [rows_RD.new_empty(n, rows_RD.shape[1]) for n in arriving]
        into[me].copy_(out[me])
        works = []
        for r in range(world):
            other = r if group is None else dist.get_global_rank(group, r)
            if r != me and leaving[r]:
                works.append(dist.isend(out[r], other, group=group))
            if r != me and arriving[r]:
                works.append(dist.irecv(into[r], other, group=group))
        for work in works:
            work.wait()
        return torch.cat(into)""",
            """
        W, L = arriving_WL.shape
        pieces = torch.arange(int(arriving_WL.sum())).split(arriving_WL.flatten().tolist())
        if not pieces:
            return torch.arange(0)
        return torch.cat([pieces[w * L + e] for e in range(L) for w in range(W)])""",
        ],
    ),
    Answer(
        3,
        "functional collectives",
        [
            None,
            None,
            """
        import torch.distributed._functional_collectives as funcol

        arrived = funcol.all_to_all_single(rows_RD.contiguous(), arriving, leaving, group or dist.group.WORLD)
        return funcol.wait_tensor(arrived)""",
            None,
        ],
    ),
    Answer(
        4,
        "the library's gradient, inverse by scatter",
        [
            "return exchange_rows(grad_RD.contiguous(), ctx.arriving, ctx.leaving, ctx.group), None, None, None",
            """
        N, K = gates_NK.shape
        by_slot = returned_RD.new_zeros(N * K, returned_RD.shape[1]).index_copy(0, slots_R, returned_RD)
        return (gates_NK[:, :, None] * by_slot.view(N, K, returned_RD.shape[1])).sum(dim=1).to(returned_RD.dtype)""",
            """
        from torch.distributed.nn.functional import all_to_all_single

        K, world, D = experts_NK.shape[1], dist.get_world_size(group), h_ND.shape[1]
        slots_R, counts_E = sort_slots(experts_NK, world * len(mine))
        table = exchange_counts(counts_E, group)
        out, into = counts_E.view(world, -1).sum(1).tolist(), table.sum(1).tolist()
        where = group or dist.group.WORLD
        rows = all_to_all_single(h_ND.new_empty(sum(into), D), h_ND[slots_R // K], into, out, where)
        order = regroup(table)
        results = torch.cat([e(part) for e, part in zip(mine, rows[order].split(table.sum(0).tolist()))])
        back = torch.empty_like(results).index_copy(0, order, results)
        home = all_to_all_single(h_ND.new_empty(sum(out), D), back, out, into, where)
        return combine(home, slots_R, gates_NK)""",
        ],
    ),
    Answer(
        4,
        "gates multiplied slot by slot",
        [
            None,
            """
        token_R, choice_R = slots_R // gates_NK.shape[1], slots_R % gates_NK.shape[1]
        out = torch.zeros(len(gates_NK), returned_RD.shape[1], dtype=returned_RD.dtype)
        out.index_add_(0, token_R, (gates_NK[token_R, choice_R].unsqueeze(1) * returned_RD).to(out.dtype))
        return out""",
            None,
        ],
    ),
]

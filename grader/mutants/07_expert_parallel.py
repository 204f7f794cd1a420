"""Other answers to the TODOs of 07_expert_parallel."""

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

LOCAL_BALANCE = """
E = probs_NE.shape[1]
f_E = torch.bincount(experts_NK.flatten(), minlength=E).float() / max(experts_NK.numel(), 1)
P_E = probs_NE.sum(dim=0) / max(len(probs_NE), 1)
loss = E * (f_E * P_E).sum()
total = loss.detach().clone()
dist.all_reduce(total)
return loss + (total / world - loss).detach()
"""

ALL_PROBABILITIES = """
N, E = probs_NE.shape
counts = [torch.zeros(1, dtype=torch.int64) for _ in range(world)]
dist.all_gather(counts, torch.tensor([N]))
longest = max(int(count) for count in counts)
both = torch.zeros(longest, E + experts_NK.shape[1])
both[:N] = torch.cat([probs_NE.detach(), experts_NK.float()], dim=1)
everything = [torch.empty_like(both) for _ in range(world)]
dist.all_gather(everything, both)
rows = torch.cat([part[: int(count)] for part, count in zip(everything, counts)])
f_E = torch.bincount(rows[:, E:].long().flatten(), minlength=E) / rows[:, E:].numel()
own_E, all_E = probs_NE.sum(dim=0), rows[:, :E].sum(dim=0)
P_E = (world * own_E + (all_E - world * own_E).detach()) / len(rows)
return E * (f_E * P_E).sum()
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
        7,
        "experts in the order of a set",
        swap=("for parameter in experts:", "for parameter in set(experts):"),
        says="the ranks call different shapes",
    ),
    Answer(
        7,
        "shared parameters in the order of a set",
        swap=("for parameter in shared:", "for parameter in set(shared):"),
        says="the ranks call different shapes",
    ),
    Answer(
        7,
        "new tensors as gradients",
        swap=(
            "    dist.all_reduce(parameter.grad, group=copies)\n    parameter.grad /= world",
            "    total = parameter.grad.clone()\n    dist.all_reduce(total, group=copies)\n"
            "    parameter.grad = total / world",
        ),
        says="in place",
    ),
    Answer(
        9,
        "the limit of the first batch for all",
        swap=(
            "    limit = capacity(len(h_ND), layer.k, layer.n_experts, layer.factor)\n",
            "    if not hasattr(layer, 'limit'):\n"
            "        layer.limit = capacity(len(h_ND), layer.k, layer.n_experts, layer.factor)\n"
            "    limit = layer.limit\n",
        ),
        says="with more tokens than a step has",
    ),
    Answer(
        9,
        "a view of the input",
        swap=("h_ND = x_BTD.flatten(0, 1)", "h_ND = x_BTD.view(-1, x_BTD.shape[-1])"),
        says="view size is not compatible",
    ),
    Answer(
        9,
        "drops in training only",
        swap=("if layer.factor is not None:", "if layer.factor is not None and layer.training:"),
        says="no slot is dropped in it",
    ),
    Answer(9, "0.0 taken for None", swap=("if layer.factor is not None:", "if layer.factor:"), says="factor of 0.0"),
    Answer(
        9,
        "counts in float32",
        swap=("minlength=layer.n_experts)\nif", "minlength=layer.n_experts).float()\nif"),
        says="load is in float32, not in int64",
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
        5,
        "no copy if nothing is dropped",
        [
            None,
            """
            chosen = experts_NK[experts_NK >= 0]
            if (torch.bincount(chosen, minlength=n_experts) <= limit).all():
                return experts_NK  # nothing to drop
            experts_KN = experts_NK.T
            taken_SE = experts_KN.reshape(-1, 1) == torch.arange(n_experts)
            before_S = ((taken_SE.cumsum(dim=0) - 1) * taken_SE).sum(dim=1)
            return experts_KN.where(before_S.view_as(experts_KN) < limit, -1).T
            """,
            None,
        ],
        says="returns experts_NK itself",
    ),
    Answer(
        5,
        "shares with the whole batch's limit",
        swap=("capacity(N // shares, K", "capacity(N, K"),
        says="drop_in_shares",
    ),
    Answer(
        1,
        "the router rounded like the tokens",
        swap=("router_ED.float().T", "router_ED.to(h_ND.dtype).float().T"),
        says="the router in float32: token",
    ),
    Answer(
        1,
        "the tokens rounded like the router",
        swap=("h_ND.float()", "h_ND.to(router_ED.dtype).float()"),
        says="tokens in float32, the router in",
    ),
    Answer(1, "in the tokens' dtype", swap=("h_ND.float() @ router_ED.float().T", "h_ND @ router_ED.to(h_ND.dtype).T")),
    Answer(
        1,
        "float32 only after the product",
        swap=("h_ND.float() @ router_ED.float().T", "(h_ND @ router_ED.T).float()"),
        says="to have the same dtype",
    ),
    Answer(
        1,
        "topk breaks ties as it likes",
        swap=("logits_NE.argsort(dim=-1, descending=True, stable=True)[:, :k]", "logits_NE.topk(k, dim=-1).indices"),
        says="some logits equal",
    ),
    Answer(
        1,
        "argsort that is not stable: the higher number first",
        swap=(
            "logits_NE.argsort(dim=-1, descending=True, stable=True)[:, :k]",
            "(logits_NE.shape[1] - 1 - logits_NE.flip(1).argsort(dim=-1, descending=True, stable=True))[:, :k]",
        ),
        says="some logits equal",
    ),
    Answer(1, "the least probable", swap=("descending=True", "descending=False"), says="goes to other experts"),
    Answer(
        1,
        "by number, not by probability",
        swap=("[:, :k]", "[:, :k].sort(dim=-1).values"),
        says="goes to other experts",
    ),
    Answer(1, "gates always sum to 1: for k = 1 they are 1", swap=("if k > 1:", "if k > 0:"), says="for k = 1"),
    Answer(1, "gates never sum to 1", swap=("if k > 1:", "if k > 99:"), says="sum to 1"),
    Answer(
        1,
        "softmax of the chosen, also for k = 1",
        swap=("probs_NE.gather(1, experts_NK)", "logits_NE.gather(1, experts_NK).softmax(dim=-1)"),
        says="for k = 1",
    ),
    Answer(
        1,
        "gates without a gradient",
        swap=("probs_NE.gather(1, experts_NK)", "probs_NE.detach().gather(1, experts_NK)"),
        says="have no gradient",
    ),
    Answer(
        1,
        "the sum of the gates has no gradient",
        swap=("gates_NK.sum(dim=-1, keepdim=True)", "gates_NK.sum(dim=-1, keepdim=True).detach()"),
        says="gradient that gates give",
    ),
    Answer(
        1,
        "probabilities without a gradient",
        swap=("return gates_NK, experts_NK, probs_NE", "return gates_NK, experts_NK, probs_NE.detach()"),
        says="probabilities have no gradient",
    ),
    Answer(
        1,
        "softmax by hand overflows",
        swap=("logits_NE.softmax(dim=-1)", "logits_NE.exp() / logits_NE.exp().sum(dim=-1, keepdim=True)"),
        says="probabilities",
    ),
    Answer(1, "sigmoid", swap=("logits_NE.softmax(dim=-1)", "logits_NE.sigmoid()"), says="probabilities"),
    Answer(
        1,
        "gates in the tokens' dtype",
        swap=("return gates_NK, experts_NK", "return gates_NK.to(h_ND.dtype), experts_NK"),
        says="the first result, gates, is in bfloat16, not in float32",
    ),
    Answer(
        1,
        "int32",
        swap=("return gates_NK, experts_NK", "return gates_NK, experts_NK.int()"),
        says="the second result, experts, is in int32, not in int64",
    ),
    Answer(
        1,
        "no probabilities",
        swap=("return gates_NK, experts_NK, probs_NE", "return gates_NK, experts_NK"),
        says="three tensors",
    ),
    Answer(
        2,
        "all tokens through all experts",
        """
        out_ND = torch.zeros_like(h_ND)
        for number, expert in enumerate(experts):
            gate_N1 = (gates_NK * (experts_NK == number)).sum(dim=1, keepdim=True)
            out_ND = out_ND + (gate_N1 * expert(h_ND)).to(h_ND.dtype)
        return out_ND""",
        says="chose it",
    ),
    Answer(
        2,
        "experts that nobody chose are left out",
        swap=("    gates_R1 =", "    if len(token_R) == 0:\n        continue\n    gates_R1 ="),
        says="never called",
    ),
    Answer(2, "without gates", swap=("gates_R1 * expert", "expert")),
    Answer(2, "the first gate for all", swap=("gates_NK[token_R, choice_R, None]", "gates_NK[token_R, :1]")),
    Answer(
        2,
        "gates without a gradient",
        swap=("gates_NK[token_R, choice_R, None]", "gates_NK.detach()[token_R, choice_R, None]"),
        says="no gradient reaches the gates",
    ),
    Answer(
        2,
        "the gate multiplies the input",
        swap=("(gates_R1 * expert(h_ND[token_R]))", "expert((gates_R1 * h_ND[token_R]).to(h_ND.dtype))"),
    ),
    Answer(2, "the last expert wins", swap=("out_ND.index_add(0, ", "out_ND.index_copy(0, ")),
    Answer(
        2,
        "-1 is the last expert",
        swap=("(experts_NK == number)", "(experts_NK % len(experts) == number)"),
        says="chose it",
    ),
    Answer(
        2, "-1 is expert 0", swap=("(experts_NK == number)", "(experts_NK.clamp(min=0) == number)"), says="chose it"
    ),
    Answer(
        2,
        "float32",
        swap=(
            ("torch.zeros_like(h_ND)", "torch.zeros_like(h_ND, dtype=torch.float32)"),
            (".to(h_ND.dtype)", ".float()"),
        ),
        says="the result is in float32, not in bfloat16",
    ),
    Answer(
        2,
        "a loop over choices, so that experts are called K times",
        """
        out_ND = torch.zeros_like(h_ND)
        for choice in range(experts_NK.shape[1]):
            for number, expert in enumerate(experts):
                (token_R,) = (experts_NK[:, choice] == number).nonzero(as_tuple=True)
                rows_RD = gates_NK[token_R, choice, None] * expert(h_ND[token_R])
                out_ND = out_ND.index_add(0, token_R, rows_RD.to(h_ND.dtype))
        return out_ND""",
        says="times",
    ),
    Answer(
        2,
        "a dropped token stays as it is",
        swap=("return out_ND", "return out_ND + h_ND * (experts_NK < 0).any(dim=1, keepdim=True)"),
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
        5,
        "rounded down",
        swap=("math.ceil(factor * tokens * k / n_experts)", "int(factor * tokens * k / n_experts)"),
        says="capacity",
    ),
    Answer(5, "choices are not counted", swap=("tokens * k / n_experts", "tokens / n_experts"), says="capacity"),
    Answer(
        5,
        "one at least",
        swap=(
            "return math.ceil(factor * tokens * k / n_experts)",
            "return max(1, math.ceil(factor * tokens * k / n_experts))",
        ),
        says="capacity",
    ),
    Answer(
        5,
        "rounded before the factor",
        swap=("math.ceil(factor * tokens * k / n_experts)", "math.ceil(factor * math.ceil(tokens * k / n_experts))"),
        says="capacity",
    ),
    Answer(
        5,
        "token by token",
        [
            None,
            """
        experts_S1 = experts_NK.reshape(-1, 1)
        taken_SE = experts_S1 == torch.arange(n_experts)
        before_S = ((taken_SE.cumsum(dim=0) - 1) * taken_SE).sum(dim=1)
        return experts_NK.where(before_S.view_as(experts_NK) < limit, -1)""",
            None,
        ],
        says="keeps other slots",
    ),
    Answer(
        5,
        "one too many",
        swap=("view_as(experts_KN) < limit", "view_as(experts_KN) <= limit"),
        says="keeps other slots",
    ),
    Answer(
        5,
        "the last ones stay",
        [
            None,
            """
        K = experts_NK.shape[1]
        kept = experts_NK.T.reshape(-1).flip(0)
        taken_SE = kept[:, None] == torch.arange(n_experts)
        before_S = ((taken_SE.cumsum(dim=0) - 1) * taken_SE).sum(dim=1)
        return kept.where(before_S < limit, -1).flip(0).view(K, -1).T""",
            None,
        ],
        says="keeps other slots",
    ),
    Answer(
        5,
        "a token that loses one slot loses all",
        swap=(
            "return experts_KN.where(before_S.view_as(experts_KN) < limit, -1).T",
            "return experts_KN.where((before_S.view_as(experts_KN) < limit).all(dim=0), -1).T",
        ),
        says="keeps other slots",
    ),
    Answer(
        5,
        "each choice has its own limit",
        [
            None,
            """
        columns = []
        for column in experts_NK.T:
            taken = column[:, None] == torch.arange(n_experts)
            before = ((taken.cumsum(dim=0) - 1) * taken).sum(dim=1)
            columns.append(column.where(before < limit, -1))
        return torch.stack(columns, dim=1)""",
            None,
        ],
        says="keeps other slots",
    ),
    Answer(
        5,
        "in place",
        swap=(
            "return experts_KN.where(before_S.view_as(experts_KN) < limit, -1).T",
            "experts_KN[before_S.view_as(experts_KN) >= limit] = -1\nreturn experts_NK",
        ),
        says="which it is given, is written into",
    ),
    Answer(
        5,
        "-1 is counted as the last expert",
        swap=(
            "experts_KN.reshape(-1, 1) == torch.arange(n_experts)",
            "experts_KN.reshape(-1, 1) % n_experts == torch.arange(n_experts)",
        ),
        says="keeps other slots",
    ),
    Answer(5, "nothing is dropped", [None, "return experts_NK.clone()", None], says="keeps other slots"),
    Answer(
        5,
        "by all tokens",
        [None, None, "return drop(experts_NK, n_experts, capacity(*experts_NK.shape, n_experts, factor))"],
        says="drop_in_shares",
    ),
    Answer(
        5,
        "all tokens, the limit of one share",
        [
            None,
            None,
            "N, K = experts_NK.shape\nreturn drop(experts_NK, n_experts, capacity(N // shares, K, n_experts, factor))",
        ],
        says="drop_in_shares",
    ),
    Answer(5, "shares of two at least", swap=("max(N // shares, 1)", "max(N // shares, 2)"), says="6 shares"),
    Answer(5, "shares with the limit of all", swap=("capacity(N // shares, K", "capacity(N, K"), says="drop_in_shares"),
    Answer(
        5,
        "every n-th token",
        [
            None,
            None,
            """
        N, K = experts_NK.shape
        limit = capacity(N // shares, K, n_experts, factor)
        kept = experts_NK.clone()
        for share in range(shares):
            kept[share::shares] = drop(experts_NK[share::shares], n_experts, limit)
        return kept""",
        ],
        says="drop_in_shares",
    ),
    Answer(6, "mean of local products", LOCAL_BALANCE, says="a mean of the ranks' own losses"),
    Answer(
        6,
        "its own tokens alone",
        LOCAL_BALANCE.replace(
            "total = loss.detach().clone()\ndist.all_reduce(total)\nreturn loss + (total / world - loss).detach()",
            "return loss",
        ),
    ),
    Answer(
        6,
        "mean of the ranks' means",
        """
        E, N = probs_NE.shape[1], max(len(probs_NE), 1)
        f_E = torch.bincount(experts_NK.flatten(), minlength=E).float() / max(experts_NK.numel(), 1)
        P_E = probs_NE.mean(dim=0) if len(probs_NE) else probs_NE.sum(dim=0)
        both = torch.stack([f_E, P_E.detach()])
        dist.all_reduce(both)
        both /= world
        return E * (both[0] * (P_E + (both[1] - P_E).detach())).sum()""",
    ),
    Answer(
        6,
        "only f is reduced",
        """
        E = probs_NE.shape[1]
        slots = torch.cat([torch.bincount(experts_NK.flatten(), minlength=E), torch.tensor([experts_NK.numel()])])
        dist.all_reduce(slots)
        P_E = probs_NE.sum(dim=0) / max(len(probs_NE), 1)
        return E * (slots[:-1] / slots[-1] * P_E).sum()""",
    ),
    Answer(
        6,
        "no gradient",
        swap=("(world * own_E + (all_probs_E - world * own_E).detach())", "all_probs_E"),
        says="no gradient",
    ),
    Answer(
        6,
        "the gradient is not made ready for an average",
        swap=("(world * own_E + (all_probs_E - world * own_E).detach())", "(own_E + (all_probs_E - own_E).detach())"),
        says="times what it should be",
    ),
    Answer(6, "K is forgotten", swap=("(tokens * experts_NK.shape[1])", "tokens")),
    Answer(6, "E is forgotten", swap=("return E * ", "return ")),
    Answer(6, "a mean in the place of the sum", swap=("(f_E * P_E).sum()", "(f_E * P_E).mean()")),
    Answer(6, "first choices only", swap=("experts_NK.flatten()", "experts_NK[:, 0].contiguous()")),
    Answer(6, "P times P", swap=("f_E * P_E", "(P_E * P_E)")),
    Answer(6, "f times f", swap=("f_E * P_E", "(f_E * f_E)")),
    Answer(
        6,
        "who has no token does not call",
        swap=("totals = torch.cat", "if not len(probs_NE):\n    return probs_NE.sum()\ntotals = torch.cat"),
    ),
    Answer(6, "all probabilities are gathered", ALL_PROBABILITIES, says="a few numbers for each expert"),
    Answer(
        7,
        "sets that take turns",
        swap=(
            "list(range(first, first + spread)) for first in range(0, world, spread)",
            "list(range(first, world, world // spread)) for first in range(world // spread)",
        ),
    ),
    Answer(
        7,
        "the two groups swapped",
        swap=(
            "return set_groups[rank // spread], copy_groups[rank % spread]",
            "return copy_groups[rank % spread], set_groups[rank // spread]",
        ),
        says="has the wrong members",
    ),
    Answer(
        7,
        "each rank makes its own groups",
        [
            "first = rank - rank % spread\nreturn dist.new_group(list(range(first, first + spread))), dist.new_group(list(range(rank % spread, world, spread)))",
            None,
        ],
        says="call new_group for different groups",
    ),
    Answer(
        7,
        "one group of all",
        ["group = dist.new_group(list(range(world)))\nreturn group, group", None],
        says="has the wrong members",
    ),
    Answer(
        7,
        "another set's group",
        swap=("set_groups[rank // spread]", "set_groups[rank % len(set_groups)]"),
        says="group that exchanges tokens",
    ),
    Answer(
        7,
        "experts are averaged over all ranks",
        swap=("dist.all_reduce(parameter.grad, group=copies)", "dist.all_reduce(parameter.grad)"),
        says="an expert's parameter",
    ),
    Answer(
        7,
        "experts are divided by the copies",
        swap=(
            "group=copies)\n    parameter.grad /= world",
            "group=copies)\n    parameter.grad /= dist.get_world_size(copies)",
        ),
        says="divided by 2, not by 4",
    ),
    Answer(
        7,
        "experts are not divided",
        swap=("group=copies)\n    parameter.grad /= world", "group=copies)"),
        says="divided by 1, not by 4",
    ),
    Answer(
        7,
        "experts stay as they are",
        swap=("    dist.all_reduce(parameter.grad, group=copies)\n", ""),
        says="an expert's parameter",
    ),
    Answer(
        7,
        "experts are divided twice",
        swap=(
            "group=copies)\n    parameter.grad /= world",
            "group=copies)\n    parameter.grad /= world * dist.get_world_size(copies)",
        ),
        says="an expert's parameter",
    ),
    Answer(
        7,
        "shared ones over the copies",
        swap=("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, group=copies)"),
        says="a shared parameter",
    ),
    Answer(
        7,
        "shared ones are a sum",
        swap=("dist.all_reduce(parameter.grad)\n    parameter.grad /= world", "dist.all_reduce(parameter.grad)"),
        says="a shared parameter",
    ),
    Answer(
        7,
        "parameters for gradients",
        swap=(
            "dist.all_reduce(parameter.grad)\n    parameter.grad /= world",
            "dist.all_reduce(parameter.data)\n    parameter.data /= world",
        ),
    ),
    Answer(
        7,
        "gradients are gathered",
        [
            None,
            """
        for parameters, group, n in ((shared, None, world), (experts, copies, dist.get_world_size(copies))):
            for parameter in parameters:
                everything = [torch.empty_like(parameter.grad) for _ in range(n)]
                dist.all_gather(everything, parameter.grad, group=group)
                parameter.grad.copy_(torch.stack(everything).sum(dim=0) / world)""",
        ],
        says="all-reduces send",
    ),
    Answer(8, "what stays is counted", swap=("stays = rows_WE[rank, mine].sum()", "stays = 0"), says="layer_bytes"),
    Answer(8, "results are forgotten", swap=("int(there + back)", "int(there)"), says="layer_bytes"),
    Answer(8, "as much back as there", swap=("int(there + back)", "int(2 * there)"), says="layer_bytes"),
    Answer(8, "no counts", swap=("return both + 8 * (E - E // W), both", "return both, both"), says="layer_bytes"),
    Answer(8, "counts for its own experts, too", swap=("8 * (E - E // W)", "8 * E"), says="layer_bytes"),
    Answer(8, "counts of 4 bytes", swap=("8 * (E - E // W)", "4 * (E - E // W)"), says="layer_bytes"),
    Answer(
        8,
        "counts also backward",
        swap=("return both + 8 * (E - E // W), both", "return both + 8 * (E - E // W), both + 8 * (E - E // W)"),
        says="layer_bytes",
    ),
    Answer(
        8,
        "an even load",
        swap=(
            "both = int(there + back) * dim * element_size",
            "both = 2 * int(rows_WE.sum()) * (W - 1) // W**2 * dim * element_size",
        ),
        says="layer_bytes",
    ),
    Answer(8, "four bytes a number", swap=("dim * element_size", "dim * 4"), says="layer_bytes"),
    Answer(
        8,
        "a message to itself",
        swap=("3 * (world - 1), 2 * (world - 1)", "3 * world, 2 * world"),
        says="layer_messages",
    ),
    Answer(8, "no counts, no message", swap=("3 * (world - 1)", "2 * (world - 1)"), says="layer_messages"),
    Answer(8, "the busiest expert", swap=(".view(len(rows), -1).sum(dim=1)", ""), says="slowdown"),
    Answer(
        8,
        "who sends most",
        swap=("rows_WE.sum(dim=0).view(len(rows), -1).sum(dim=1)", "rows_WE.sum(dim=1)"),
        says="slowdown",
    ),
    Answer(
        8,
        "the busiest by the idlest",
        swap=("work_W.max() / work_W.mean()", "work_W.max() / work_W.min().clamp(min=1)"),
        says="slowdown",
    ),
    Answer(
        8, "the busiest by all", swap=("work_W.max() / work_W.mean()", "work_W.max() / work_W.sum()"), says="slowdown"
    ),
    Answer(
        9,
        "each rank balances its own tokens",
        swap=(
            "balancing_loss(probs_NE, experts_NK, layer.world)",
            """(
    layer.n_experts
    * (torch.bincount(experts_NK.flatten(), minlength=layer.n_experts) / experts_NK.numel() * probs_NE.mean(dim=0)).sum())""",
        ),
    ),
    Answer(
        9,
        "balanced after the dropping",
        swap=(
            ("layer.balance = balancing_loss(probs_NE, experts_NK, layer.world)\n", ""),
            (
                "return parallel_mixture",
                "layer.balance = balancing_loss(probs_NE, experts_NK.clamp(min=0), layer.world)\nreturn parallel_mixture",
            ),
        ),
    ),
    Answer(9, "balanced as if alone", swap=("experts_NK, layer.world)", "experts_NK, 1)")),
    Answer(9, "nothing is dropped", swap=("if layer.factor is not None:", "if False:")),
    Answer(9, "dropped by all ranks' tokens", swap=("capacity(len(h_ND), ", "capacity(len(h_ND) * layer.world, ")),
    Answer(
        9,
        "the load after the dropping",
        swap=(
            ("layer.load = torch.bincount(experts_NK.flatten(), minlength=layer.n_experts)\n", ""),
            (
                "return parallel_mixture",
                "layer.load = torch.bincount(experts_NK[experts_NK >= 0], minlength=layer.n_experts)\nreturn parallel_mixture",
            ),
        ),
        says="load",
    ),
    Answer(
        9,
        "the load of this rank's experts",
        swap=("minlength=layer.n_experts)", "minlength=layer.n_experts)[: len(layer.experts)]"),
        says="load",
    ),
    Answer(9, "the residual twice", swap=(".view_as(x_BTD)", ".view_as(x_BTD) + x_BTD")),
    Answer(
        9,
        "a dropped token keeps its normed copy",
        swap=(".view_as(x_BTD)", ".view_as(x_BTD) + x_BTD * (experts_NK < 0).all(dim=1).view(*x_BTD.shape[:2], 1)"),
    ),
    Answer(
        9,
        "gates of what is left sum to 1",
        swap=(
            "return parallel_mixture",
            "gates_NK = gates_NK * (experts_NK >= 0)\ngates_NK = gates_NK / gates_NK.sum(dim=1, keepdim=True).clamp(min=1e-9)\nreturn parallel_mixture",
        ),
    ),
    Answer(9, "tokens of all ranks", swap=("layer.experts, layer.tokens)", "layer.experts, None)")),
    Answer(
        9,
        "a router without gradient from the gates",
        swap=("parallel_mixture(h_ND, gates_NK,", "parallel_mixture(h_ND, gates_NK.detach(),"),
        says="gradient",
    ),
    Answer(
        9,
        "all experts are kept",
        swap=(
            "block.mlp = ParallelMixture(block.mlp, world, tokens)",
            "whole = block.mlp\n    block.mlp = ParallelMixture(whole, world, tokens)\n    block.mlp.whole = whole",
        ),
        says="has memory for",
    ),
    Answer(
        9,
        "the loss as a number",
        swap=("return loss, loss + weight", "return loss.item(), loss.item() + weight"),
        says="two numbers, as tensors",
    ),
    Answer(
        9,
        "all experts are kept elsewhere",
        swap=(
            "for block in model.blocks:\n    block.mlp = Par",
            "world_of_experts = spread_experts.__dict__.setdefault('kept', [])\nfor block in model.blocks:\n    world_of_experts.append(block.mlp)\n    block.mlp = Par",
        ),
        says="has memory for",
    ),
    Answer(
        9,
        "the router is an expert's",
        swap=("block.mlp.experts.parameters()", "block.mlp.parameters()"),
        says="spread_experts",
    ),
    Answer(
        9,
        "experts are shared, too",
        swap=(
            "return [parameter for parameter in model.parameters() if parameter not in of_experts], experts",
            "return list(model.parameters()), experts",
        ),
        says="spread_experts",
    ),
    Answer(
        9,
        "only the first block",
        swap=("for block in model.blocks:\n    block.mlp = Par", "for block in model.blocks[:1]:\n    block.mlp = Par"),
    ),
    Answer(
        9,
        "the balancing loss is left out",
        swap=("return loss, loss + weight * sum(block.mlp.balance for block in model.blocks)", "return loss, loss"),
        says="the number to be minimized",
    ),
    Answer(
        9,
        "of the last block only",
        swap=("sum(block.mlp.balance for block in model.blocks)", "model.blocks[-1].mlp.balance"),
        says="the number to be minimized",
    ),
    Answer(
        9,
        "a mean over the blocks",
        swap=("weight * sum(", "weight / len(model.blocks) * sum("),
        says="the number to be minimized",
    ),
    Answer(
        9,
        "the loss with the balance in it",
        swap=("return loss, ", "return loss + weight * model.blocks[0].mlp.balance, "),
        says="loss",
    ),
    Answer(
        9,
        "the balance has no gradient",
        swap=("block.mlp.balance for block", "block.mlp.balance.detach() for block"),
        says="gradient",
    ),
    # What a function is given stays as it is.
    Answer(
        2,
        "writes into the gates",
        swap=("return out_ND", "gates_NK.data[experts_NK < 0] = 0.0\nreturn out_ND"),
        says="gates_NK, which it is given, is written into",
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
        2,
        "the gates of dropped slots are set to zero where they lie",
        swap=("out_ND = torch.zeros_like(h_ND)", "gates_NK.data[experts_NK < 0] = 0\nout_ND = torch.zeros_like(h_ND)"),
        says="gates_NK, which it is given, is written into",
    ),
    Answer(
        7,
        "the first groups serve forever",
        [
            """
            global groups
            if "groups" not in globals():
                sets = [list(range(first, first + spread)) for first in range(0, world, spread)]
                copies = [list(range(place, world, spread)) for place in range(spread)]
                set_groups = [dist.new_group(ranks) for ranks in sets]
                copy_groups = [dist.new_group(ranks) for ranks in copies]
                groups = set_groups[rank // spread], copy_groups[rank % spread]
            return groups""",
            None,
        ],
        says="a process group of an earlier call",
    ),
    Answer(
        6,
        "slots that go by bfloat16",
        swap=("minlength=E).float()", "minlength=E).bfloat16().float()"),
        says="1100, 30 tokens",
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
        6,
        "the load of the first call for all",
        swap=(
            "f_E = all_slots_E / (tokens * experts_NK.shape[1])",
            'global first_load\nif "first_load" not in globals() or len(first_load) != E:\n    first_load = all_slots_E / (tokens * experts_NK.shape[1])\nf_E = first_load',
        ),
        says="the second call in one process",
    ),
    Answer(
        4,
        "the sum is float32 whatever the rows are",
        swap=(
            "return returned_RD.new_zeros(N, returned_RD.shape[1]).index_add(0, slots_R // K, gated_RD.to(returned_RD.dtype))",
            "return torch.zeros(N, returned_RD.shape[1]).index_add(0, slots_R // K, gated_RD.float())",
        ),
        says="is in float32, not in bfloat16",
    ),
    Answer(
        1,
        "float64 tokens give float64",
        swap=(
            "logits_NE = h_ND.float() @ router_ED.float().T",
            "wide = torch.promote_types(h_ND.dtype, torch.float32)\nlogits_NE = h_ND.to(wide) @ router_ED.to(wide).T",
        ),
    ),
    Answer(2, "a gate of zero is none", swap=("(experts_NK == number)", "((experts_NK == number) & (gates_NK != 0))")),
    Answer(
        5,
        "no more slots than tokens",
        swap=(
            "return math.ceil(factor * tokens * k / n_experts)",
            "return min(tokens, math.ceil(factor * tokens * k / n_experts))",
        ),
    ),
    Answer(
        7,
        "gradients of zeros are not reduced",
        swap=(
            "    dist.all_reduce(parameter.grad, group=copies)\n",
            "    if parameter.grad.any():\n        dist.all_reduce(parameter.grad, group=copies)\n",
        ),
    ),
    Answer(
        9,
        "the load of all calls",
        swap=("layer.load = torch.bincount(", "layer.load = vars(layer).get('load', 0) + torch.bincount("),
        says="is not the number of slots in the last call",
    ),
    Answer(
        9,
        "the capacity of the largest call",
        swap=(
            "limit = capacity(len(h_ND),",
            "layer.most = max(len(h_ND), vars(layer).get('most', 0))\n    limit = capacity(layer.most,",
        ),
    ),
    Answer(9, "tokens in float32", swap=("h_ND = x_BTD.flatten(0, 1)", "h_ND = x_BTD.flatten(0, 1).float()")),
    Answer(
        3,
        "sort_slots takes a view of the choices",
        swap=("experts_S = experts_NK.flatten()", "experts_S = experts_NK.view(-1)"),
        says="view size",
    ),
    Answer(
        9,
        "frozen parameters are in neither list",
        swap=(
            "return [parameter for parameter in model.parameters() if parameter not in of_experts], experts",
            """shared = [p for p in model.parameters() if p.requires_grad and p not in of_experts]
return shared, experts""",
        ),
        says="token_embedding",
    ),
]

RIGHT = [
    Answer(
        1,
        "softmax of the chosen logits, top by a stable sort",
        """
        logits = nn.functional.linear(h_ND.to(torch.float32), router_ED.to(torch.float32))
        ordered, experts = torch.sort(logits, dim=1, descending=True, stable=True)
        probs = torch.softmax(logits, 1)
        if k == 1:
            return probs.gather(1, experts[:, :1]), experts[:, :1], probs
        return ordered[:, :k].softmax(dim=1), experts[:, :k].contiguous(), probs""",
    ),
    Answer(
        1,
        "one maximum after another",
        """
        logits = h_ND.float() @ router_ED.float().T
        left, chosen = logits.detach().clone(), []
        for _ in range(k):
            best = (left == left.amax(dim=1, keepdim=True)).int().argmax(dim=1)
            chosen.append(best)
            left[torch.arange(len(left)), best] = -float("inf")
        experts = torch.stack(chosen, dim=1)
        probs = (logits - logits.logsumexp(dim=1, keepdim=True)).exp()
        gates = probs.gather(1, experts)
        return (gates if k == 1 else gates / gates.sum(1, keepdim=True)), experts, probs""",
    ),
    Answer(
        2,
        "sorted, cut, and put back",
        """
        N, K = experts_NK.shape
        flat = experts_NK.flatten()
        order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
        lengths = torch.bincount(flat[flat >= 0], minlength=len(experts)).tolist()
        results = torch.cat([expert(rows) for expert, rows in zip(experts, h_ND[order // K].split(lengths))])
        out = torch.zeros(N, h_ND.shape[1]).index_add(0, order // K, gates_NK.flatten()[order, None] * results.float())
        return out.to(h_ND.dtype)""",
    ),
    Answer(
        2,
        "in place, token by token",
        """
        out = torch.zeros_like(h_ND)
        for number, expert in enumerate(experts):
            chosen = experts_NK == number
            tokens = chosen.any(dim=1)
            gate = (gates_NK * chosen).sum(dim=1)[tokens]
            out[tokens] = out[tokens] + (gate.unsqueeze(1) * expert(h_ND[tokens])).to(out.dtype)
        return out""",
    ),
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
    Answer(
        5,
        "seat by seat",
        [
            "return -(-int(factor * tokens * k * 1024) // (1024 * n_experts)) if tokens else 0",
            """
        kept, taken = torch.full_like(experts_NK, -1), [0] * n_experts
        for choice in range(experts_NK.shape[1]):
            for token in range(experts_NK.shape[0]):
                expert = int(experts_NK[token, choice])
                if expert >= 0 and taken[expert] < limit:
                    kept[token, choice] = expert
                    taken[expert] += 1
        return kept""",
            """
        N, K = experts_NK.shape
        each, limit = N // shares, capacity(N // shares, K, n_experts, factor)
        kept = [drop(experts_NK[share * each : (share + 1) * each], n_experts, limit) for share in range(shares)]
        return torch.cat(kept)""",
        ],
    ),
    Answer(
        6,
        "a differentiable all-reduce",
        """
        from torch.distributed.nn.functional import all_reduce

        E = probs_NE.shape[1]
        counts = torch.cat([torch.bincount(experts_NK.flatten(), minlength=E), torch.tensor([len(probs_NE)])])
        dist.all_reduce(counts)
        P_E = all_reduce(probs_NE.sum(dim=0)) / counts[-1]
        return E * (counts[:-1] / (counts[-1] * experts_NK.shape[1]) * P_E).sum()""",
    ),
    Answer(
        6,
        "value and gradient apart",
        """
        N, E = probs_NE.shape
        totals = torch.zeros(3, E, dtype=torch.float64)
        totals[0], totals[1], totals[2, 0] = torch.bincount(experts_NK.flatten(), minlength=E), probs_NE.detach().sum(0), N
        dist.all_reduce(totals)
        f = (totals[0] / (totals[2, 0] * experts_NK.shape[1])).float()
        value = (E * (f * totals[1]).sum() / totals[2, 0]).float()
        own = world * E * (f * probs_NE.sum(dim=0)).sum() / totals[2, 0].float()
        return value + own - own.detach()""",
    ),
    Answer(
        7,
        "a mesh; gradients in buckets",
        [
            """
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (world // spread, spread), mesh_dim_names=("copies", "set"))
        return mesh["set"].get_group(), mesh["copies"].get_group()""",
            """
        for parameters, group in ((shared, None), (experts, copies)):
            flat = torch.cat([(p.grad / world).flatten() for p in parameters])
            dist.all_reduce(flat, group=group)
            for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
                p.grad.copy_(piece.view_as(p))""",
        ],
    ),
    Answer(
        7,
        "all at once",
        [
            None,
            """
        works = [dist.all_reduce(p.grad, async_op=True) for p in shared]
        works += [dist.all_reduce(p.grad, group=copies, async_op=True) for p in experts]
        for work in works:
            work.wait()
        for p in (*shared, *experts):
            p.grad.div_(world)""",
        ],
    ),
    Answer(
        8,
        "by loops",
        [
            """
        world, experts = len(rows), len(rows[0])
        each = experts // world
        sent = 0
        for r in range(world):
            if r != rank:
                sent += sum(rows[rank][r * each : (r + 1) * each]) + sum(rows[r][rank * each : (rank + 1) * each])
        return sent * dim * element_size + 8 * each * (world - 1), sent * dim * element_size""",
            "others = world - 1\nreturn others * 3, others * 2",
            """
        world, each = len(rows), len(rows[0]) // len(rows)
        work = [sum(sum(mine[r * each : (r + 1) * each]) for mine in rows) for r in range(world)]
        return world * max(work) / sum(work)""",
        ],
    ),
    Answer(
        9,
        "lists by names",
        [
            None,
            """
        for block in model.blocks:
            block.mlp = ParallelMixture(block.mlp, world, tokens)
        named = dict(model.named_parameters())
        return [p for n, p in named.items() if ".experts." not in n], [p for n, p in named.items() if ".experts." in n]""",
            """
        loss = model(x, y)
        total = loss
        for block in model.blocks:
            total = total + weight * block.mlp.balance
        return loss, total""",
        ],
    ),
    Answer(
        9,
        "dropped always, by a limit that nobody reaches",
        [
            """
        B, T, D = x_BTD.shape
        h = x_BTD.reshape(B * T, D)
        gates, chosen, probs = route(h, layer.router, layer.k)
        layer.balance = balancing_loss(probs, chosen, layer.world)
        layer.load = torch.stack([(chosen == e).sum() for e in range(layer.n_experts)])
        limit = B * T if layer.factor is None else capacity(B * T, layer.k, layer.n_experts, layer.factor)
        kept = drop(chosen, layer.n_experts, limit)
        out = parallel_mixture(h, gates, kept, layer.experts, layer.tokens)
        return out.reshape(B, T, D)""",
            None,
            None,
        ],
    ),
    Answer(
        9,
        "only what is a Mixture is replaced",
        [
            None,
            """
            for block in model.blocks:
                if isinstance(block.mlp, Mixture):
                    block.mlp = ParallelMixture(block.mlp, world, tokens)
            shared, own = [], []
            for name, parameter in model.named_parameters():
                (own if ".experts." in name else shared).append(parameter)
            return shared, own
            """,
            None,
        ],
    ),
]

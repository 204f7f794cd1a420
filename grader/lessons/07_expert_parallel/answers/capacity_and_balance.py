"""Other answers to TODOs 5 and 6 of 07_expert_parallel."""

from grader.kit import Answer

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
        6,
        "slots that go by bfloat16",
        swap=("minlength=E).float()", "minlength=E).bfloat16().float()"),
        says="1100, 30 tokens",
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
        5,
        "no more slots than tokens",
        swap=(
            "return math.ceil(factor * tokens * k / n_experts)",
            "return min(tokens, math.ceil(factor * tokens * k / n_experts))",
        ),
    ),
]


RIGHT = [
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
]

"""Other answers to TODOs 1 and 2 of 07_expert_parallel."""

from grader.kit import Answer

WRONG = [
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
    # What a function is given stays as it is.
    Answer(
        2,
        "writes into the gates",
        swap=("return out_ND", "gates_NK.data[experts_NK < 0] = 0.0\nreturn out_ND"),
        says="gates_NK, which it is given, is written into",
    ),
    Answer(
        2,
        "the gates of dropped slots are set to zero where they lie",
        swap=("out_ND = torch.zeros_like(h_ND)", "gates_NK.data[experts_NK < 0] = 0\nout_ND = torch.zeros_like(h_ND)"),
        says="gates_NK, which it is given, is written into",
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
]

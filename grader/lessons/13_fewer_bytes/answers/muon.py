"""Other answers to TODOs 8 and 9 of 13_fewer_bytes."""

from grader.kit import Answer

WRONG = [
    Answer(8, "left transposed", swap=("return x.T if tall else x", "return x"), says="has shape"),
    Answer(8, "no norm", swap=("x = x / x.norm().clamp(min=1e-7)\n", ""), says="newton_schulz"),
    Answer(
        8,
        "the spectral norm",
        swap=("x.norm().clamp(min=1e-7)", "torch.linalg.matrix_norm(x, 2).clamp(min=1e-7)"),
        says="newton_schulz",
    ),
    Answer(8, "zeros divided by zeros", swap=("x.norm().clamp(min=1e-7)", "x.norm()"), says="newton_schulz"),
    Answer(8, "always five steps", swap=("range(steps)", "range(5)"), says="newton_schulz"),
    Answer(
        8,
        "in bfloat16",
        swap=("x = g_MN.T if tall else g_MN", "x = (g_MN.T if tall else g_MN).bfloat16()"),
        says="newton_schulz",
    ),
    Answer(8, "cubic only", swap=(" + c * gram @ gram", ""), says="newton_schulz"),
    Answer(8, "signs mixed up", swap=("-4.7750", "4.7750"), says="newton_schulz"),
    Answer(8, "in turn", [None, "return [number % world for number in range(len(shapes))]"], says="the largest load"),
    Answer(
        8,
        "in pieces",
        [None, "return [number * world // len(shapes) for number in range(len(shapes))]"],
        says="the largest load",
    ),
    Answer(8, "all to rank 0", [None, "return [0] * len(shapes)"], says="the largest load"),
    Answer(
        8,
        "by size",
        swap=(
            ("-cost(shapes[number])", "-math.prod(shapes[number])"),
            ("loads[owner[number]] += cost(shapes[number])", "loads[owner[number]] += math.prod(shapes[number])"),
        ),
        says="the largest load",
    ),
    Answer(8, "the cheapest first", swap=("-cost(shapes[number])", "cost(shapes[number])"), says="the largest load"),
    Answer(
        8,
        "sorted, then in turn",
        [
            None,
            "owner = [0] * len(shapes)\nfor place, number in enumerate(sorted(range(len(shapes)), key=lambda n: -cost(shapes[n]))):\n    owner[number] = place % world\nreturn owner",
        ],
        says="the largest load",
    ),
    Answer(
        8,
        "owners of the sorted list",
        swap=("return owner", "return [owner[n] for n in sorted(range(len(shapes)), key=lambda n: -cost(shapes[n]))]"),
        says="the largest load",
    ),
    Answer(
        9,
        "all gradients to all",
        [
            "means = mean_over_ranks(gradients)\nreturn {n: means[n] for n, its in enumerate(owner) if its == dist.get_rank()}",
            None,
            None,
            None,
        ],
        says="sends",
    ),
    Answer(
        9,
        "every rank has every gradient",
        ["return dict(enumerate(mean_over_ranks(gradients)))", None, None, None],
        says="other gradients than it owns",
    ),
    Answer(9, "the sum", swap=(".sum(dim=0) / world", ".sum(dim=0)"), says="the gradient of matrix"),
    Answer(
        9,
        "its own gradients, not averaged",
        [
            "return {n: g for (n, g), its in zip(enumerate(gradients), owner, strict=True) if its == dist.get_rank()}",
            None,
            None,
            None,
        ],
        says="the gradient of matrix",
    ),
    Answer(9, "the weights are not sent", [None, "pass", None, None], says="send_from_owners"),
    Answer(
        9,
        "the mean of all weights",
        [
            None,
            "for matrix, mean in zip(matrices, mean_over_ranks(matrices), strict=True):\n    matrix.copy_(mean)",
            None,
            None,
        ],
        says="send_from_owners",
    ),
    Answer(
        9,
        "all weights by a sum with zeros",
        [
            None,
            """
            for matrix, its in zip(matrices, owner, strict=True):
                if its != dist.get_rank():
                    matrix.zero_()
                gathered = [torch.empty_like(matrix) for _ in range(dist.get_world_size())]
                dist.all_gather(gathered, matrix)
                matrix.copy_(gathered[its])
            """,
            None,
            None,
        ],
        says="sends",
    ),
    Answer(
        9,
        "a heavy ball",
        swap=("average.lerp_(g, 1 - self.momentum)", "average.mul_(self.momentum).add_(g)"),
        says="after three steps",
    ),
    Answer(
        9,
        "no Nesterov",
        swap=("newton_schulz(g.lerp(average, self.momentum))", "newton_schulz(average)"),
        says="after three steps",
    ),
    Answer(
        9,
        "mixed the other way",
        swap=("g.lerp(average, self.momentum)", "g.lerp(average, 1 - self.momentum)"),
        says="after three steps",
    ),
    Answer(
        9,
        "the momentum the other way",
        swap=("average.lerp_(g, 1 - self.momentum)", "average.lerp_(g, self.momentum)"),
        says="after three steps",
    ),
    Answer(
        9,
        "no factor for tall ones",
        swap=("self.lr * math.sqrt(max(1, p.shape[0] / p.shape[1])) * update", "self.lr * update"),
        says="after three steps",
    ),
    Answer(
        9, "columns over rows", swap=("p.shape[0] / p.shape[1]", "p.shape[1] / p.shape[0]"), says="after three steps"
    ),
    Answer(9, "no decay", swap=("p.mul_(1 - self.lr * self.decay)\n", ""), says="after three steps"),
    Answer(9, "decays by all of it", swap=("1 - self.lr * self.decay", "1 - self.decay"), says="after three steps"),
    Answer(
        9,
        "bytes of an all-reduce",
        swap=("return 4 * (total - own + (world - 1) * own)", "return 8 * (world - 1) * total / world"),
        says="bytes_of_muon",
    ),
    Answer(9, "the way back only", swap=("total - own + (world - 1) * own", "(world - 1) * own"), says="bytes_of_muon"),
]

RIGHT = [
    Answer(
        8,
        "iterated on the right",
        [
            """
            tall = g_MN.shape[0] > g_MN.shape[1]
            x = g_MN / torch.linalg.vector_norm(g_MN).clamp(min=1e-7)
            for _ in range(steps):
                if tall:
                    gram = x.T @ x
                    x = 3.4445 * x + x @ (-4.7750 * gram + 2.0315 * gram @ gram)
                else:
                    gram = x @ x.T
                    x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ (gram @ x)
            return x
            """,
            """
            loads, owner = dict.fromkeys(range(world), 0.0), {}
            for number in sorted(range(len(shapes)), key=lambda n: cost(shapes[n]), reverse=True):
                owner[number] = min(loads, key=loads.get)
                loads[owner[number]] += cost(shapes[number])
            return [owner[number] for number in range(len(shapes))]
            """,
        ],
    ),
    Answer(
        9,
        "a message for each matrix",
        [
            """
            found = {}
            for number, (g, its) in enumerate(zip(gradients, owner, strict=True)):
                total = g.contiguous().clone()
                dist.reduce(total, dst=its)
                if its == dist.get_rank():
                    found[number] = total / dist.get_world_size()
            return found
            """,
            """
            for matrix, its in zip(matrices, owner, strict=True):
                dist.broadcast(matrix, src=its)
            """,
            None,
            "own = sum(m * n for (m, n), its in zip(shapes, owner) if its == rank)\n"
            "return 4 * sum(m * n for m, n in shapes) + 4 * (world - 2) * own",
        ],
    ),
    Answer(
        9,
        "from rank to rank",
        [
            """
            rank, world = dist.get_rank(), dist.get_world_size()
            calls, others = [], {}
            for number, (g, its) in enumerate(zip(gradients, owner, strict=True)):
                if its != rank:
                    calls.append(dist.P2POp(dist.isend, g.contiguous(), its))
                    continue
                others[number] = {r: torch.empty_like(g) for r in range(world) if r != rank}
                calls += [dist.P2POp(dist.irecv, theirs, r) for r, theirs in others[number].items()]
            for work in dist.batch_isend_irecv(calls) if calls else []:
                work.wait()
            return {n: (gradients[n] + sum(theirs.values())) / world for n, theirs in others.items()}
            """,
            """
            rank, calls, arrived = dist.get_rank(), [], {}
            for number, (matrix, its) in enumerate(zip(matrices, owner, strict=True)):
                if its == rank:
                    receivers = [r for r in range(dist.get_world_size()) if r != rank]
                    calls += [dist.P2POp(dist.isend, matrix.contiguous(), r) for r in receivers]
                else:
                    arrived[number] = torch.empty(matrix.shape)
                    calls.append(dist.P2POp(dist.irecv, arrived[number], its))
            for work in dist.batch_isend_irecv(calls) if calls else []:
                work.wait()
            for number, values in arrived.items():
                matrices[number].copy_(values)
            """,
            None,
            None,
        ],
    ),
]

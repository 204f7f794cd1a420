"""Other answers to TODOs 4 to 6 of 13_fewer_bytes."""

from grader.kit import Answer

WRONG = [
    Answer(
        4,
        "the largest, not in absolute value",
        swap=("vector.abs().topk(k)", "vector.topk(k)"),
        says="the mean on rank",
    ),
    Answer(
        4,
        "places of 8 bytes",
        swap=(
            ("places.int(), vector[places].view(torch.int32)", "places, vector[places].view(torch.int32).long()"),
            ("numbers.view(torch.float32)", "numbers.int().view(torch.float32)"),
        ),
        says="8 bytes for each number",
    ),
    Answer(
        4,
        "the whole vector is sent",
        [
            """
            places = vector.abs().topk(k).indices
            sent = torch.zeros_like(vector)
            sent[places] = vector[places]
            total = sent.clone()
            dist.all_reduce(total)
            return total / dist.get_world_size(), sent
            """,
            None,
            None,
            None,
        ],
        says="8 bytes for each number",
    ),
    Answer(4, "the sum", swap=("return total / world, sent", "return total, sent"), says="the mean on rank"),
    Answer(
        4,
        "one rank's places for all",
        swap=("total[their_places.long()] +=", "total[places] +="),
        says="the mean on rank",
    ),
    Answer(
        4,
        "the last one counts",
        swap=("total[their_places.long()] +=", "total[their_places.long()] ="),
        says="the mean on rank",
    ),
    Answer(
        4, "sent in part", swap=("return total / world, sent", "return total / world, sent / world"), says="sent is"
    ),
    Answer(4, "no memory", swap=("wanted = gradient + self.memory", "wanted = gradient"), says="the mean of step 2"),
    Answer(
        4,
        "the mean is taken off",
        swap=("self.memory = wanted - sent", "self.memory = wanted - mean"),
        says="the mean of step 2",
    ),
    Answer(
        4,
        "the old memory is lost",
        swap=("self.memory = wanted - sent", "self.memory = gradient - sent"),
        says="the mean of step",
    ),
    Answer(
        4, "what was sent stays", swap=("self.memory = wanted - sent", "self.memory = wanted"), says="the mean of step"
    ),
    Answer(
        4,
        "its own memory alone",
        swap=("return torch.stack(memories)", "return torch.stack([self.memory] * len(memories))"),
        says="what is saved",
    ),
    Answer(
        4,
        "the first rank's memory for all",
        swap=("saved[dist.get_rank()].clone()", "saved[0].clone()"),
        says="resumed",
    ),
    Answer(4, "always the mean", [None, None, None, "self.memory = saved.mean(dim=0)"], says="resumed"),
    Answer(
        4, "the sum on other ranks", swap=("saved.mean(dim=0)", "saved.sum(dim=0)"), says="the mean of all memories"
    ),
    Answer(
        4,
        "nothing on other ranks",
        swap=("saved.mean(dim=0)", "torch.zeros_like(saved[0])"),
        says="the mean of all memories",
    ),
    Answer(
        5,
        "orthonormal before the mean",
        swap=(
            ("(p_MR,) = mean_over_ranks([matrix_MN @ q_NR])", "p_MR = orthonormal(matrix_MN @ q_NR)"),
            ("p_MR = orthonormal(p_MR)", "(p_MR,) = mean_over_ranks([p_MR])"),
        ),
        says="the result of step 1",
    ),
    Answer(5, "not orthonormal", swap=("p_MR = orthonormal(p_MR)\n", ""), says="the result of step 1"),
    Answer(
        5,
        "columns of length 1, at any angle",
        ["return columns_MR / columns_MR.norm(dim=0).clamp(min=1e-9)", None, None],
        says="orthonormal of",
    ),
    Answer(
        5,
        "Gram–Schmidt that leaves zeros",
        [
            """
            columns = []
            for column in columns_MR.unbind(dim=1):
                for _ in range(2):
                    for earlier in columns:
                        column = column - (earlier @ column) * earlier
                columns.append(column / (column.norm() + 1e-8))
            return torch.stack(columns, dim=1)
            """,
            None,
            None,
        ],
        says="orthonormal of",
    ),
    Answer(
        5, "each rank's own Q", swap=("(q_NR,) = mean_over_ranks([matrix_MN.T @ p_MR])", "q_NR = matrix_MN.T @ p_MR")
    ),
    Answer(
        5,
        "the old Q goes on",
        swap=("return p_MR @ q_NR.T, q_NR", "return p_MR @ q_NR.T, old"),
        edits=(
            (
                "    (p_MR,) = mean_over_ranks([matrix_MN @ q_NR])",
                "    old = q_NR\n    (p_MR,) = mean_over_ranks([matrix_MN @ q_NR])",
            ),
        ),
        says="the result of step 2",
    ),
    Answer(
        5,
        "the mean itself",
        [None, "(mean,) = mean_over_ranks([matrix_MN])\nreturn mean, q_NR", None],
        says="the result of step 1",
    ),
    Answer(
        5,
        "the mean itself, then a low rank",
        [
            None,
            """
            (mean,) = mean_over_ranks([matrix_MN])
            p_MR = orthonormal(mean @ q_NR)
            return p_MR @ (p_MR.T @ mean), mean.T @ p_MR
            """,
            None,
        ],
        says="P and Q are enough",
    ),
    Answer(5, "m times n", swap=("4 * r * (m + n)", "4 * r * m * n"), says="bytes_of_low_rank"),
    Answer(5, "once around", swap=("2 * (world - 1) / world", "(world - 1) / world"), says="bytes_of_low_rank"),
    Answer(6, "no memory", swap=("(p, g, g + state.memory[p])", "(p, g, g.clone())"), says="after step 2"),
    Answer(6, "a cold start", swap=("state.q[p] = q\n", "\n"), says="after step 2"),
    Answer(
        6,
        "the old memory is lost",
        swap=("state.memory[p] = wanted - g", "state.memory[p] = wanted - state.memory[p] - g"),
    ),
    Answer(
        6, "the memory grows", swap=("state.memory[p] = wanted - g", "state.memory[p] = wanted"), says="after step 2"
    ),
    Answer(6, "vectors stay as they are", swap=("    g.copy_(mean)", "    pass"), says="has moved after step 1"),
    Answer(
        6,
        "vectors are sums",
        swap=("    g.copy_(mean)", "    g.copy_(mean * dist.get_world_size())"),
        says="has moved after step 1",
    ),
    Answer(
        6,
        "nothing is compressed",
        """
        (mean,) = mean_over_ranks([bucket.buffer()])
        future = torch.futures.Future()
        future.set_result(mean)
        return future
        """,
        says="has moved after step 1",
    ),
    Answer(
        6,
        "a message for each vector and matrix",
        """
        for p, g in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if state.compresses(p):
                wanted = g + state.memory[p]
                for piece in wanted @ state.q[p], wanted:
                    pass
                mean, state.q[p] = low_rank_mean(wanted, state.q[p])
                g.copy_(mean)
                state.memory[p] = wanted - g
            else:
                for number in range(len(g)):
                    (piece,) = mean_over_ranks([g[number : number + 1]])
                    g[number : number + 1] = piece
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future
        """,
        says="collectives",
    ),
]

RIGHT = [
    Answer(
        4,
        "two messages",
        [
            """
            world = dist.get_world_size()
            places = vector.abs().argsort(descending=True)[:k]
            their_places = [torch.empty(k, dtype=torch.int32) for _ in range(world)]
            dist.all_gather(their_places, places.int())
            numbers = [torch.empty(k) for _ in range(world)]
            dist.all_gather(numbers, vector[places].contiguous())
            mean, sent = torch.zeros_like(vector), torch.zeros_like(vector)
            mean.index_add_(0, torch.cat(their_places).long(), torch.cat(numbers) / world)
            sent[places] = vector[places]
            return mean, sent
            """,
            None,
            None,
            "rank, world = dist.get_rank(), dist.get_world_size()\n"
            "self.memory = saved[rank].clone() if len(saved) == world else saved.sum(dim=0) / len(saved)",
        ],
    ),
    Answer(
        5,
        "by singular vectors",
        [
            "return torch.linalg.svd(columns_MR, full_matrices=False).U",
            """
            world = dist.get_world_size()
            p = (matrix_MN @ q_NR).contiguous()
            dist.all_reduce(p)
            p = orthonormal(p / world)
            q = (matrix_MN.T @ p).contiguous()
            dist.all_reduce(q)
            q = q / world
            return p @ q.T, q
            """,
            "return 8 * r * (m + n) * (1 - 1 / world)",
        ],
    ),
    Answer(
        6,
        "its own approximation off the memory",
        swap=("state.memory[p] = wanted - g", "state.memory[p] = wanted - columns @ (columns.T @ wanted)"),
    ),
    Answer(
        6,
        "the last message in a chain of futures",
        """
        world = dist.get_world_size()
        pairs = list(zip(bucket.parameters(), bucket.gradients()))
        rest = [g for p, g in pairs if not state.compresses(p)]
        matrices = [(p, g, g.add(state.memory[p])) for p, g in pairs if state.compresses(p)]
        if not matrices:
            def divide(done):
                return done.value()[0].div_(world)
            return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(divide)
        flat = torch.cat([t.reshape(-1) for t in [*(w @ state.q[p] for p, _, w in matrices), *rest]])
        dist.all_reduce(flat)
        flat.div_(world)
        at, columns = 0, []
        for p, g, wanted in matrices:
            size = wanted.shape[0] * state.r
            columns.append(orthonormal(flat[at : at + size].view(-1, state.r)))
            at += size
        for g in rest:
            g.copy_(flat[at : at + g.numel()].view_as(g))
            at += g.numel()
        second = torch.cat([(wanted.T @ c).reshape(-1) for (_, _, wanted), c in zip(matrices, columns)])

        def finish(done):
            numbers, at = done.value()[0] / world, 0
            for (p, g, wanted), c in zip(matrices, columns):
                size = wanted.shape[1] * state.r
                q = numbers[at : at + size].view(-1, state.r)
                at += size
                torch.matmul(c, q.T, out=g)
                state.memory[p] = wanted - g
                state.q[p] = q.clone()
            return bucket.buffer()

        return dist.all_reduce(second, async_op=True).get_future().then(finish)
        """,
    ),
]

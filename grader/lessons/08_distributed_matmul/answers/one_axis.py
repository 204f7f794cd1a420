"""Other answers to TODOs 1 and 2 of 08_distributed_matmul."""

from grader.kit import Answer


# The bodies of TODO 2, by region: to_end, sent, rows, rows', columns, columns', inner, inner'.
def second(**bodies: str) -> list[str | None]:
    """The regions of TODO 2, these ones changed."""
    names = ("to_end", "sent", "rows", "rows_back", "columns", "columns_back", "inner", "inner_back")
    return [bodies.get(name) for name in names]


WRONG = [
    Answer(
        2,
        "weights gathered in float32",
        swap=(
            "return x_mK @ gather(shard, shape)",
            "return (x_mK.float() @ gather(shard.float(), shape)).to(x_mK.dtype)",
        ),
        says="by_rows on 8 ranks",
    ),
    Answer(
        2,
        "summed in float32",
        swap=(
            "dist.all_reduce(y_MN)\nreturn y_MN",
            "total = y_MN.float()\ndist.all_reduce(total)\nreturn total.to(y_MN.dtype)",
        ),
        says="by_inner on 8 ranks",
    ),
    Answer(
        2,
        "rounded down",
        swap=("once_around = (world - 1) / world * m * n", "once_around = (world - 1) * (m * n // world)"),
        says="numbers_to_end",
    ),
    Answer(
        1,
        "rounded up, the last ones shorter",
        [
            "size = -(-length // parts)\nreturn slice(min(length, number * size), min(length, number * size + size))",
            None,
            None,
        ],
        says="block(",
    ),
    Answer(
        1,
        "rounded down",
        ["size = length // parts\nreturn slice(number * size, (number + 1) * size)", None, None],
        says="block(",
    ),
    Answer(
        1, "the longer pieces last", swap=("min(number, longer)", "max(0, number - (parts - longer))"), says="block("
    ),
    Answer(
        1,
        "the first coordinate changes fastest",
        swap=(("reversed(shape)", "shape"), ("insert(0, ", "append(")),
        says="place(",
    ),
    Answer(1, "two axes only", [None, "return divmod(rank, shape[1]) if len(shape) > 1 else (rank,)", None]),
    Answer(1, "backwards", swap=("coordinates.insert(0, coordinate)", "coordinates.append(coordinate)"), says="place("),
    Answer(
        1, "lines of the other axis", swap=("math.prod(shape[axis + 1 :])", "math.prod(shape[:axis])"), says="line("
    ),
    Answer(1, "always neighbours", swap=("math.prod(shape[axis + 1 :])", "1"), says="line("),
    Answer(1, "from this rank on", swap=("rank - stride * place(rank, shape)[axis]", "rank"), says="line("),
    Answer(1, "all ranks", [None, None, "return list(range(math.prod(shape)))"], says="line("),
    Answer(
        2,
        "an all-reduce whatever is needed",
        swap=('2 * once_around if ending == "whole" else once_around', "2 * once_around"),
        says="numbers_to_end",
    ),
    Answer(
        2,
        "a result that is cut is whole for nothing",
        second(to_end="return 2 * (world - 1) / world * m * n * (cut == 'inner')"),
        says="numbers_to_end",
    ),
    Answer(
        2,
        "whole tensors are sent",
        swap=("once_around = (world - 1) / world * m * n", "once_around = m * n"),
        says="numbers_to_end",
    ),
    Answer(
        2,
        "weights are gathered once",
        swap=("around * k * n, 2 * around * k * n", "around * k * n, around * k * n"),
        says="numbers_sent_1d",
    ),
    Answer(
        2,
        "rows and columns mixed up",
        swap=("0.0, 2 * around * m * k", "0.0, 2 * around * k * n"),
        says="numbers_sent_1d",
    ),
    Answer(
        2,
        "its own shard for the whole",
        second(rows="return x_mK @ shard.repeat(dist.get_world_size())[: math.prod(shape)].view(shape)"),
        says="Y on rank 0 is not what it should be",
    ),
    Answer(
        2,
        "the gradient of W is not added up",
        second(
            rows_back="""
        dw = x_mK.T @ dy_mN
        return dy_mN @ gather(shard, shape).T, shard_of(dw, dist.get_world_size(), dist.get_rank())"""
        ),
        says="the shard of dW on rank 0 is not what it should be",
    ),
    Answer(
        2,
        "the gradient of W is averaged",
        swap=("reduce_to_shard(x_mK.T @ dy_mN)", "reduce_to_shard(x_mK.T @ dy_mN) / dist.get_world_size()"),
        says="the shard of dW on rank 0 is 0.125 times what it should be",
    ),
    Answer(
        2,
        "the gradient of W is all-reduced, then cut",
        second(
            rows_back="""
        dw = x_mK.T @ dy_mN
        dist.all_reduce(dw)
        return dy_mN @ gather(shard, shape).T, shard_of(dw, dist.get_world_size(), dist.get_rank())"""
        ),
        says="sends",
    ),
    Answer(
        2,
        "the gradient of W, whole",
        second(
            rows_back="""
        dw = x_mK.T @ dy_mN
        dist.all_reduce(dw)
        return dy_mN @ gather(shard, shape).T, dw"""
        ),
        says="the shard of dW on rank 0 has shape",
    ),
    Answer(
        2, "dX is not added up", swap=("dist.all_reduce(dx_MK)\n", ""), says="dx_MK on rank 0 is not what it should be"
    ),
    Answer(2, "Y is not added up", swap=("dist.all_reduce(y_MN)\n", ""), says="Y on rank 0 is not what it should be"),
    Answer(
        2,
        "g's all-reduce in the backward pass, too",
        second(
            inner_back="""
        dy_MN = dy_MN.clone()
        dist.all_reduce(dy_MN)
        return dy_MN @ w_kN.T, x_Mk.T @ dy_MN"""
        ),
        says="dx_Mk on rank 0 is 8 times what it should be",
    ),
    Answer(
        2,
        "partial sums are gathered, then added up",
        second(
            inner="""
        mine = x_Mk @ w_kN
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, mine)
        return torch.stack(parts).sum(dim=0)"""
        ),
        says="sends",
    ),
    Answer(
        2,
        "sent twice",
        second(
            inner="""
        y = x_Mk @ w_kN
        dist.all_reduce(y.clone())
        dist.all_reduce(y)
        return y"""
        ),
        says="sends",
    ),
    Answer(
        2,
        "always float32",
        swap=("y_MN = x_Mk @ w_kN", "y_MN = torch.zeros(len(x_Mk), w_kN.shape[1])\ny_MN += x_Mk @ w_kN"),
    ),
    Answer(
        2,
        "the given gradient is changed",
        second(
            columns_back="""
        dx_MK = dy_Mn @ w_Kn.T
        dist.all_reduce(dx_MK)
        dw_Kn = x_MK.T @ dy_Mn
        dy_Mn.zero_()
        return dx_MK, dw_Kn"""
        ),
        says="which it is given, is written into",
    ),
    Answer(
        2,
        "only one gradient",
        second(
            columns_back="""
        dx_MK = dy_Mn @ w_Kn.T
        dist.all_reduce(dx_MK)
        return dx_MK"""
        ),
        says="not returned on rank 0",
    ),
    Answer(
        2,
        "the last forward pass's weights are kept",
        [
            None,
            None,
            "by_rows.whole = gather(shard, shape)\nreturn x_mK @ by_rows.whole",
            """
            whole = by_rows.whole if hasattr(by_rows, "whole") else gather(shard, shape)
            return dy_mN @ whole.T, reduce_to_shard(x_mK.T @ dy_mN)
            """,
            None,
            None,
            None,
            None,
        ],
        says="where a forward pass with other weights comes before the backward pass",
    ),
    Answer(
        2,
        "the gathered weights stay on the shard",
        swap=(
            (
                "return x_mK @ gather(shard, shape)",
                """shard.whole = gather(shard, shape)
return x_mK @ shard.whole""",
            ),
            (
                "dx_mK = dy_mN @ gather(shard, shape).T",
                """whole = shard.whole if hasattr(shard, "whole") else gather(shard, shape)
dx_mK = dy_mN @ whole.T""",
            ),
        ),
        says="has the attribute “whole”",
    ),
]


RIGHT = [
    Answer(
        1,
        "by the library",
        [
            """
        sizes = [len(piece) for piece in torch.arange(length).tensor_split(parts)]
        return slice(sum(sizes[:number]), sum(sizes[: number + 1]))""",
            "return tuple(int(i) for i in torch.unravel_index(torch.tensor(rank), shape))",
            "numbers = torch.arange(math.prod(shape)).view(shape)\nindex = list(place(rank, shape))\nindex[axis] = slice(None)\nreturn numbers[tuple(index)].tolist()",
        ],
    ),
    Answer(
        1,
        "by a list of all places",
        [
            "return slice(number * (length // parts) + min(number, length % parts), (number + 1) * (length // parts) + min(number + 1, length % parts))",
            """
        import itertools
        return list(itertools.product(*map(range, shape)))[rank]""",
            """
        own = place(rank, shape)
        others = [place(r, shape) for r in range(math.prod(shape))]
        return [r for r, other in enumerate(others) if all(a == b or n == axis for n, (a, b) in enumerate(zip(own, other)))]""",
        ],
    ),
    Answer(
        2,
        "all-reduce as reduce-scatter and all-gather",
        second(
            to_end="times = {('inner', 'whole'): 2, ('inner', 'cut'): 1, ('rows', 'whole'): 1, ('columns', 'whole'): 1}\nreturn times.get((cut, ending), 0) * (1 - 1 / world) * m * n",
            inner="y = x_Mk @ w_kN\nreturn gather(reduce_to_shard(y), y.shape)",
            columns_back="dx = dy_Mn @ w_Kn.T\nreturn gather(reduce_to_shard(dx), dx.shape), x_MK.T @ dy_Mn",
        ),
    ),
    Answer(
        2,
        "asynchronous, and by the functional collectives",
        second(
            rows_back="""
        dw = x_mK.T @ dy_mN
        shards = [shard_of(dw, dist.get_world_size(), number) for number in range(dist.get_world_size())]
        mine = torch.empty_like(shards[0])
        work = dist.reduce_scatter(mine, shards, async_op=True)
        dx = dy_mN @ gather(shard, shape).mT
        work.wait()
        return dx, mine""",
            columns_back="""
        dx_MK = dy_Mn @ w_Kn.T
        work = dist.all_reduce(dx_MK, async_op=True)
        dw = torch.einsum("mk,mn->kn", x_MK, dy_Mn)
        work.wait()
        return [dx_MK, dw]""",
            inner="from torch.distributed._functional_collectives import all_reduce\nreturn all_reduce(torch.mm(x_Mk, w_kN), 'sum', dist.group.WORLD) + 0",
        ),
    ),
]

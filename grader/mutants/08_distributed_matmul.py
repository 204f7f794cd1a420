"""Other answers to the TODOs of 08_distributed_matmul."""

from grader.kit import Answer

# The bodies of TODO 2, by region: to_end, sent, rows, rows', columns, columns', inner, inner'.


def second(**bodies: str) -> list[str | None]:
    """The regions of TODO 2, these ones changed."""
    names = ("to_end", "sent", "rows", "rows_back", "columns", "columns_back", "inner", "inner_back")
    return [bodies.get(name) for name in names]


WHOLE_CANNON = """
if grid.shape[0] != grid.shape[1]:
    raise ValueError(f"no square: {grid.shape[0]} × {grid.shape[1]}")
side = grid.shape[0]
row, column = grid.place

def strip(tensor, axis):
    pieces = [block(k, side, number) for number in range(side)]
    shapes = [(len(tensor), p.stop - p.start) if axis == 1 else (p.stop - p.start, tensor.shape[1]) for p in pieces]
    found = []
    for number, shape in enumerate(shapes):
        mine = tensor.contiguous() if grid.place[axis] == number else tensor.new_empty(shape)
        dist.broadcast(mine, src=grid.lines[axis][number], group=grid.groups[axis])
        found.append(mine)
    return torch.cat(found, dim=axis)

return strip(x_mk, 1) @ strip(w_kn, 0)
"""

CANNON = """
if grid.shape[0] != grid.shape[1]:
    raise ValueError(f"no square: {grid.shape[0]} × {grid.shape[1]}")
side = grid.shape[0]
row, column = grid.place
rows, columns = len(x_mk), w_kn.shape[1]

def move(tensor, line, place, places, shape):
    return exchange(tensor, line[(place - places) % side], line[(place + places) % side], shape)

def width(step):
    found = block(k, side, (row + column + step) % side)
    return found.stop - found.start

x_mk = move(x_mk, grid.lines[1], column, row, (rows, width(0)))
w_kn = move(w_kn, grid.lines[0], row, column, (width(0), columns))
y_mn = x_mk @ w_kn
for step in range(1, side):
    x_mk = move(x_mk, grid.lines[1], column, 1, (rows, width(step)))
    w_kn = move(w_kn, grid.lines[0], row, 1, (width(step), columns))
    y_mn += x_mk @ w_kn
return y_mn
"""

STRIPS = """
def strip(tensor, axis, owners):
    pieces = [panel_of(tensor, panel, k, grid) for panel in panels(k, grid.shape) for panel_of in [owners]]
    return torch.cat(pieces, dim=axis)

return strip(x_mk, 1, x_panel) @ strip(w_kn, 0, w_panel)
"""

SUMMA_BY_PRODUCTS = """
y_mn = torch.zeros(x_mk.shape[0], w_kn.shape[1], dtype=x_mk.dtype)
for panel in panels(k, grid.shape):
    y_mn.addmm_(x_panel(x_mk, panel, k, grid), w_panel(w_kn, panel, k, grid))
return y_mn
"""

WRONG = [
    Answer(
        5,
        "what belongs to a product is on the class",
        swap=(
            ("ctx.shape, ctx.axes, ctx.grid = shape, axes, grid", "Product.kept = shape, axes, grid"),
            ("axes, groups = ctx.axes, ctx.grid.groups", "shape, axes, grid = Product.kept\ngroups = grid.groups"),
            ("gather(shard, ctx.shape, groups", "gather(shard, shape, groups"),
        ),
        says="both forward passes first",
    ),
    Answer(
        4,
        "rows of W, as they lie in memory",
        swap=(
            "piece = w_kn[panel.begin - first : panel.end - first].contiguous()",
            "piece = w_kn[panel.begin - first : panel.end - first]",
        ),
        says="blocks that are not contiguous",
    ),
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
        3,
        "the skew by single places",
        [
            None,
            """
            if grid.shape[0] != grid.shape[1]:
                raise ValueError(f"Cannon needs a square of ranks, and the grid is {grid.shape[0]} × {grid.shape[1]}")
            side, (row, column) = grid.shape[0], grid.place
            rows, columns = len(x_mk), w_kn.shape[1]
            my_row, my_column = grid.lines[1], grid.lines[0]

            def size(index: int) -> int:
                piece = block(k, side, index % side)
                return piece.stop - piece.start

            def left(x: Tensor, index: int) -> Tensor:
                return exchange(x, my_row[(column - 1) % side], my_row[(column + 1) % side], (rows, size(index)))

            def up(w: Tensor, index: int) -> Tensor:
                return exchange(w, my_column[(row - 1) % side], my_column[(row + 1) % side], (size(index), columns))

            for places in range(1, row + 1):
                x_mk = left(x_mk, column + places)
            for places in range(1, column + 1):
                w_kn = up(w_kn, row + places)
            y_mn = x_mk @ w_kn
            for step in range(1, side):
                x_mk, w_kn = left(x_mk, row + column + step), up(w_kn, row + column + step)
                y_mn += x_mk @ w_kn
            return y_mn
            """,
        ],
        says="are enough",
    ),
    Answer(
        3,
        "a square number of ranks",
        swap=(
            "if grid.shape[0] != grid.shape[1]:",
            "if int(math.prod(grid.shape) ** 0.5) ** 2 != math.prod(grid.shape):",
        ),
        says="1 × 4",
    ),
    Answer(
        3,
        "products are added up at the end",
        swap=(
            ("y_mn = x_mk.new_zeros(rows, columns)", "products = []"),
            ("    y_mn += x_mk @ w_kn", "    products.append(x_mk @ w_kn)"),
            ("return y_mn", "return sum(products)"),
        ),
        says="two of the result's size",
    ),
    Answer(
        4,
        "no result, no panels",
        swap=(
            "y_mn = x_mk.new_zeros(len(x_mk), w_kn.shape[1])",
            "y_mn = x_mk.new_zeros(len(x_mk), w_kn.shape[1])\nif y_mn.numel() == 0:\n    return y_mn",
        ),
        says="rank",
    ),
    Answer(
        6,
        "the loss is summed where this rank's part lies",
        swap=("loss = mine.detach().clone()", "loss = mine.detach()"),
        says="the part of the loss",
    ),
    Answer(
        7,
        "grids that divide the sizes only",
        swap=(
            "min(factorings(world),",
            "min([(x, y, z) for x, y, z in factorings(world) if not (dim % x or hidden % x or dim % y or hidden % y or m % z)],",
        ),
    ),
    Answer(
        7,
        "grids that divide the sizes, if there are any",
        swap=(
            "min(factorings(world),",
            "min([(x, y, z) for x, y, z in factorings(world) if not (dim % x or hidden % y or m % z)] or factorings(world),",
        ),
        says="is not the fastest one",
    ),
    Answer(
        8,
        "one rank as two",
        swap=("return (world - 1) / world * itemsize", "return (max(world, 2) - 1) / max(world, 2) * itemsize"),
        says="is not the size at which both take the same time",
    ),
    Answer(
        7,
        "turns are counted whole",
        swap=("max(1.0, world / machine.cores)", "max(1, world // machine.cores)"),
        says="mlp_seconds",
    ),
    Answer(
        5,
        "the gathered weights are kept for the backward pass",
        swap=(
            "y_mn = x_mk @ gather(shard, shape, grid.groups[axes.depth])",
            "ctx.whole = gather(shard, shape, grid.groups[axes.depth])\ny_mn = x_mk @ ctx.whole",
        ),
        says="bytes more than X, its shard and Y",
    ),
    Answer(6, "two layers at most", swap=("if layer % 2 == 0 else", "if layer == 0 else"), says="axes_of(2)"),
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
        3, "the skew is forgotten", swap=("(row, column) if step == 0 else (1, 1)", "(0, 0) if step == 0 else (1, 1)")
    ),
    Answer(
        3,
        "the skew is forgotten, sizes and all",
        [
            None,
            CANNON.replace(
                "x_mk = move(x_mk, grid.lines[1], column, row, (rows, width(0)))\nw_kn = move(w_kn, grid.lines[0], row, column, (width(0), columns))\n",
                "",
            )
            .replace(
                "y_mn = x_mk @ w_kn",
                "y_mn = x_mk.new_zeros(rows, columns)\nif x_mk.shape[1] == len(w_kn):\n    y_mn += x_mk @ w_kn",
            )
            .replace(
                "    x_mk = move(x_mk, grid.lines[1], column, 1, (rows, width(step)))",
                "    of_x, of_w = (block(k, side, (n + step) % side) for n in (column, row))\n    x_mk = move(x_mk, grid.lines[1], column, 1, (rows, of_x.stop - of_x.start))",
            )
            .replace("(width(step), columns)", "(of_w.stop - of_w.start, columns)")
            .replace(
                "    y_mn += x_mk @ w_kn\nreturn",
                "    if x_mk.shape[1] == len(w_kn):\n        y_mn += x_mk @ w_kn\nreturn",
            ),
        ],
        says="Y on rank 1 is not what it should be",
    ),
    Answer(3, "X is skewed by its column", swap=("(row, column) if step == 0", "(column, row) if step == 0")),
    Answer(
        3,
        "to the right: the same on 2 × 2, wrong on 3 × 3",
        swap=(
            "my_row[(column - left) % side], my_row[(column + left) % side]",
            "my_row[(column + left) % side], my_row[(column - left) % side]",
        ),
    ),
    Answer(
        3,
        "X moves along columns, W along rows",
        swap=("my_row, my_column = grid.lines[1], grid.lines[0]", "my_column, my_row = grid.lines[1], grid.lines[0]"),
    ),
    Answer(3, "the inner index of the skew alone", ["return (row + column) % side", None], says="inner_index"),
    Answer(3, "the inner index goes down", ["return (row + column - step) % side", None], says="inner_index"),
    Answer(
        3,
        "one step too few",
        [None, CANNON.replace("range(1, side)", "range(1, side - 1)")],
        says="Y on rank 0 is not what it should be",
    ),
    Answer(
        3,
        "only the last product",
        swap=("y_mn += x_mk @ w_kn", "y_mn = x_mk @ w_kn"),
        says="Y on rank 0 is not what it should be",
    ),
    Answer(3, "whole rows and columns of blocks are gathered", [None, WHOLE_CANNON], says="bytes of tensors at once"),
    Answer(
        3, "any table of ranks is taken", swap=("if grid.shape[0] != grid.shape[1]:", "if False:"), says="not refused"
    ),
    Answer(
        3,
        "refused without saying what",
        swap=(
            'raise ValueError(f"Cannon needs a square of ranks, and the grid is {grid.shape[0]} × {grid.shape[1]}")',
            "raise ValueError",
        ),
        says="does not say in one line",
    ),
    Answer(
        3,
        "refused by an assertion",
        [
            None,
            CANNON.replace(
                'if grid.shape[0] != grid.shape[1]:\n    raise ValueError(f"no square: {grid.shape[0]} × {grid.shape[1]}")',
                "assert grid.shape[0] == grid.shape[1], grid.shape",
            ),
        ],
        says="is not refused",
    ),
    Answer(
        3,
        "the first block is overwritten before it is gone",
        [
            None,
            CANNON.replace(
                "    return exchange(tensor, line[(place - places) % side], line[(place + places) % side], shape)",
                """
    to, source = line[(place - places) % side], line[(place + places) % side]
    if to == grid.rank:
        return tensor
    leaving, arriving = tensor.contiguous(), tensor.new_empty(shape)
    going = dist.isend(leaving, to)
    dist.recv(arriving, source)
    if leaving.shape == arriving.shape and leaving.data_ptr() != tensor.data_ptr():
        leaving.zero_()
    going.wait()
    return arriving""",
            ).replace("tensor.contiguous(), tensor.new_empty", "tensor.contiguous().clone(), tensor.new_empty"),
        ],
    ),
    Answer(
        3,
        "all send, then all receive",
        [
            None,
            CANNON.replace(
                "    return exchange(tensor, line[(place - places) % side], line[(place + places) % side], shape)",
                """
    to, source = line[(place - places) % side], line[(place + places) % side]
    if to == grid.rank:
        return tensor
    arriving = tensor.new_empty(shape)
    dist.send(tensor.contiguous(), to)
    dist.recv(arriving, source)
    return arriving""",
            ),
        ],
        says="deadlock",
    ),
    Answer(3, "always float32", swap=("x_mk.new_zeros(rows, columns)", "torch.zeros(rows, columns)")),
    Answer(
        4,
        "panels of X's pieces alone",
        [
            """
        return [Panel(p.start, p.stop, column, 0) for column in range(shape[1]) for p in [block(k, shape[1], column)] if p.stop > p.start]""",
            None,
            None,
            None,
            None,
        ],
        says="panels(",
    ),
    Answer(
        4,
        "panels of one column each",
        [
            """
        owner = lambda position, parts: next(n for n in range(parts) if block(k, parts, n).start <= position < block(k, parts, n).stop)
        return [Panel(p, p + 1, owner(p, shape[1]), owner(p, shape[0])) for p in range(k)]""",
            None,
            None,
            None,
            None,
        ],
        says="panels(",
    ),
    Answer(
        4,
        "rows and columns of the grid swapped",
        swap=("rows, columns = shape", "columns, rows = shape"),
        says="panels(",
    ),
    Answer(4, "empty panels", swap=("if begin < end:", "if begin <= end:"), says="panels("),
    Answer(
        4,
        "X is broadcast along the columns",
        swap=(
            "dist.broadcast(piece, src=grid.lines[1][panel.column], group=grid.groups[1])",
            "dist.broadcast(piece, src=grid.lines[0][panel.row], group=grid.groups[0])",
        ),
    ),
    Answer(4, "the number in the line for a rank", swap=("src=grid.lines[1][panel.column]", "src=panel.column")),
    Answer(
        4,
        "the panel is taken from the block's beginning",
        swap=("x_mk[:, panel.begin - first : panel.end - first]", "x_mk[:, : panel.end - panel.begin]"),
        says="Y on rank 0 is not what it should be",
    ),
    Answer(
        4,
        "no broadcast of W",
        swap=(
            "dist.broadcast(piece, src=grid.lines[0][panel.row], group=grid.groups[0])\n",
            "piece = torch.zeros_like(piece)\n",
        ),
        says="Y on rank 0 is all zeros, and so not what it should be",
    ),
    Answer(4, "whole strips are gathered first", [None, None, None, STRIPS, None], says="bytes of tensors at once"),
    Answer(
        4,
        "whole matrices, then cut",
        [
            None,
            None,
            None,
            """
        def everything(tensor, rows, columns):
            whole = tensor.new_zeros(rows[0], columns[0])
            whole[rows[1], columns[1]] = tensor
            dist.all_reduce(whole)
            return whole

        sums = torch.tensor([len(x_mk) * (grid.place[1] == 0), w_kn.shape[1] * (grid.place[0] == 0)])
        dist.all_reduce(sums)
        m, n = sums.tolist()
        x = everything(x_mk, (m, grid.block(m, 0)), (k, grid.block(k, 1)))
        w = everything(w_kn, (k, grid.block(k, 0)), (n, grid.block(n, 1)))
        return (x @ w)[grid.block(m, 0), grid.block(n, 1)]""",
            None,
        ],
        says="bytes",
    ),
    Answer(
        4,
        "all-reduced, though one rank needs it",
        swap=(
            "dist.reduce(dx_panel, dst=grid.lines[1][panel.column], group=grid.groups[1])",
            "dist.all_reduce(dx_panel, group=grid.groups[1])",
        ),
        says="takes part with",
    ),
    Answer(
        4,
        "dW is not added up",
        swap=("dist.reduce(dw_panel, dst=grid.lines[0][panel.row], group=grid.groups[0])", "pass"),
        says="dW on rank 0 is not what it should be",
    ),
    Answer(
        4,
        "dX is added up along the columns",
        swap=(
            "dist.reduce(dx_panel, dst=grid.lines[1][panel.column], group=grid.groups[1])",
            "dist.reduce(dx_panel, dst=grid.lines[0][panel.row], group=grid.groups[0])",
        ),
    ),
    Answer(
        4,
        "dX is added up along the columns, everywhere",
        swap=(
            "dist.reduce(dx_panel, dst=grid.lines[1][panel.column], group=grid.groups[1])",
            "dist.all_reduce(dx_panel, group=grid.groups[0])",
        ),
    ),
    Answer(
        4,
        "all panels are kept",
        [
            None,
            None,
            None,
            """
        y_mn, kept = x_mk.new_zeros(len(x_mk), w_kn.shape[1]), []
        for panel in panels(k, grid.shape):
            kept.append((x_panel(x_mk, panel, k, grid), w_panel(w_kn, panel, k, grid)))
        for x, w in kept:
            y_mn += x @ w
        return y_mn""",
            None,
        ],
        says="bytes of tensors at once",
    ),
    Answer(
        4, "always float32", swap=("x_mk.new_zeros(len(x_mk), w_kn.shape[1])", "torch.zeros(len(x_mk), w_kn.shape[1])")
    ),
    Answer(
        5,
        "W is gathered once",
        swap=("return 2 * w_around, w_around, y_sum, dx_sum", "return w_around, w_around, y_sum, dx_sum"),
        says="numbers_sent_3d",
    ),
    Answer(
        5,
        "the whole W is gathered",
        swap=("(depth - 1) / depth * k * n / (inner * outer)", "(depth - 1) / depth * k * n"),
        says="numbers_sent_3d",
    ),
    Answer(
        5,
        "inner and outer mixed up in the sums",
        swap=("m * n / (depth * outer)", "m * n / (depth * inner)"),
        says="numbers_sent_3d",
    ),
    Answer(
        5, "a sum is one way round", swap=("2 * (inner - 1) / inner", "(inner - 1) / inner"), says="numbers_sent_3d"
    ),
    Answer(
        5,
        "Y is added up along the outer axis",
        swap=(
            "dist.all_reduce(y_mn, group=grid.groups[axes.inner])",
            "dist.all_reduce(y_mn, group=grid.groups[axes.outer])",
        ),
    ),
    Answer(
        5,
        "Y is added up along the depth",
        swap=(
            "dist.all_reduce(y_mn, group=grid.groups[axes.inner])",
            "dist.all_reduce(y_mn, group=grid.groups[axes.depth])",
        ),
    ),
    Answer(
        5,
        "Y is added up over all ranks",
        swap=("dist.all_reduce(y_mn, group=grid.groups[axes.inner])", "dist.all_reduce(y_mn)"),
    ),
    Answer(
        5,
        "Y is not added up",
        swap=("dist.all_reduce(y_mn, group=grid.groups[axes.inner])\n", ""),
        says="Y on rank 0 is not what it should be",
    ),
    Answer(
        5,
        "dX is added up along the inner axis",
        swap=("dist.all_reduce(dx_mk, group=groups[axes.outer])", "dist.all_reduce(dx_mk, group=groups[axes.inner])"),
    ),
    Answer(
        5,
        "dX is not added up",
        swap=("dist.all_reduce(dx_mk, group=groups[axes.outer])\n", ""),
        says="dX on rank 0 is not what it should be",
    ),
    Answer(
        5,
        "dW is not added up",
        swap=(
            "reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth])",
            "shard_of(x_mk.T @ dy_mn, ctx.grid.shape[axes.depth], ctx.grid.place[axes.depth])",
        ),
        says="the shard of dW on rank 0 is not what it should be",
    ),
    Answer(
        5,
        "dW is averaged",
        swap=(
            "reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth])",
            "reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth]) / ctx.grid.shape[axes.depth]",
        ),
        says="the shard of dW on rank 0 is 0.5 times what it should be",
    ),
    Answer(
        5,
        "dW is all-reduced, then cut",
        [
            None,
            None,
            """
        x_mk, shard = ctx.saved_tensors
        axes, grid = ctx.axes, ctx.grid
        dx_mk = dy_mn @ gather(shard, ctx.shape, grid.groups[axes.depth]).T
        dist.all_reduce(dx_mk, group=grid.groups[axes.outer])
        dw = x_mk.T @ dy_mn
        dist.all_reduce(dw, group=grid.groups[axes.depth])
        return dx_mk, shard_of(dw, grid.shape[axes.depth], grid.place[axes.depth]), None, None, None""",
        ],
        says="sends",
    ),
    Answer(
        5,
        "the axes are fixed",
        swap=(("grid.groups[axes.inner]", "grid.groups[0]"), ("groups[axes.outer]", "groups[1]")),
    ),
    Answer(
        5,
        "the gathered block is kept for the backward pass",
        [
            None,
            """
        w = gather(shard, shape, grid.groups[axes.depth])
        ctx.save_for_backward(x_mk, shard, w)
        ctx.axes, ctx.grid = axes, grid
        y_mn = x_mk @ w
        dist.all_reduce(y_mn, group=grid.groups[axes.inner])
        return y_mn""",
            """
        x_mk, shard, w = ctx.saved_tensors
        groups, axes = ctx.grid.groups, ctx.axes
        dx_mk = dy_mn @ w.T
        dist.all_reduce(dx_mk, group=groups[axes.outer])
        return dx_mk, reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth]), None, None, None""",
        ],
        says="keeps",
    ),
    Answer(
        5,
        "no gradient of X",
        swap=(
            "return dx_mk, reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth]), None, None, None",
            "return None, reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth]), None, None, None",
        ),
        says="dX",
    ),
    Answer(
        5,
        "whole matrices, then cut",
        [
            None,
            """
        ctx.save_for_backward(x_mk, shard)
        ctx.shape, ctx.axes, ctx.grid = shape, axes, grid
        everybody = [torch.empty_like(x_mk) for _ in range(grid.shape[axes.inner])]
        y_mn = x_mk @ gather(shard, shape, grid.groups[axes.depth])
        parts = [torch.empty_like(y_mn) for _ in range(grid.shape[axes.inner])]
        dist.all_gather(parts, y_mn, group=grid.groups[axes.inner])
        return sum(parts)""",
            None,
        ],
        says="sends",
    ),
    Answer(6, "never transposed", ["return Axes(inner=0, outer=1)", None, None], says="axes_of(1)"),
    Answer(
        6,
        "the first is transposed",
        ["return Axes(inner=1, outer=0) if layer % 2 == 0 else Axes(inner=0, outer=1)", None, None],
        says="axes_of(0)",
    ),
    Answer(
        6,
        "only the second is transposed",
        ["return Axes(inner=1, outer=0) if layer else Axes(inner=0, outer=1)", None, None],
        says="axes_of(2)",
    ),
    Answer(6, "no activation function", swap=("x_mk = F.gelu(x_mk)", "pass"), says="not"),
    Answer(6, "the activation comes first", swap=("if layer > 0:", "if True:"), says="not"),
    Answer(
        6,
        "the activation comes last",
        [
            None,
            """
        for layer, (shard, shape) in enumerate(zip(shards, shapes)):
            x_mk = F.gelu(Product.apply(x_mk, shard, shape, axes_of(layer), grid))
        return x_mk""",
            None,
        ],
        says="not",
    ),
    Answer(6, "ReLU", swap=("F.gelu(x_mk)", "F.relu(x_mk)"), says="not"),
    Answer(
        6,
        "the mean of the block",
        swap=(
            ("sum() / numbers", "mean()"),
            ("mine, loss", "mine, loss / (grid.shape[axes.depth] * grid.shape[axes.outer])"),
        ),
        says="the gradient of layer",
    ),
    Answer(
        6,
        "replicas are counted",
        swap=(
            ("dist.all_reduce(loss, group=grid.groups[axes.depth])\n", ""),
            ("dist.all_reduce(loss, group=grid.groups[axes.outer])", "dist.all_reduce(loss)"),
        ),
        says="the loss of step 1",
    ),
    Answer(
        6,
        "added up along the inner axis",
        swap=(
            "dist.all_reduce(loss, group=grid.groups[axes.outer])",
            "dist.all_reduce(loss, group=grid.groups[axes.inner])",
        ),
        says="the loss of step 1",
    ),
    Answer(
        6,
        "the loss of its own block",
        swap=("dist.all_reduce(loss, group=grid.groups[axes.depth])\n", ""),
        says="the loss of step 1",
    ),
    Answer(6, "the whole loss as the part", swap=("return mine,", "return loss,"), says="squared_error"),
    Answer(
        6,
        "the parts are summed over replicas in the gradient, too",
        swap=(
            "mine = (y_mn - target_mn).square().sum() / numbers",
            "mine = (y_mn - target_mn).square().sum() / numbers * grid.shape[axes.inner]",
        ),
        says="the gradient of layer",
    ),
    Answer(
        6,
        "something is sent between the layers",
        [
            None,
            """
        for layer, (shard, shape) in enumerate(zip(shards, shapes)):
            if layer:
                extra = x_mk.detach().clone()  # the same on all ranks of this line
                dist.all_reduce(extra, group=grid.groups[axes_of(layer).outer])
                x_mk = F.gelu(x_mk)
            x_mk = Product.apply(x_mk, shard, shape, axes_of(layer), grid)
        return x_mk""",
            None,
        ],
        says="sends",
    ),
    Answer(
        6,
        "nothing is returned",
        [None, None, "(y_mn - target_mn).square().sum() / numbers"],
        says="squared_error returns None",
    ),
    Answer(
        7,
        "cubes and corners only",
        ["return sorted({(world, 1, 1), (1, world, 1), (1, 1, world)})", None, None, None],
        says="factorings",
    ),
    Answer(
        7,
        "without order of the sides",
        [
            "return [(x, y, world // (x * y)) for x in range(1, world + 1) for y in range(x, world + 1) if world % (x * y) == 0]",
            None,
            None,
            None,
        ],
        says="factorings",
    ),
    Answer(7, "no rounds for W's gradient", swap=("3 * (depth - 1)", "2 * (depth - 1)"), says="layer_cost"),
    Answer(
        7,
        "an all-reduce as one way round",
        swap=("2 * (inner - 1) + 2 * (outer - 1)", "(inner - 1) + (outer - 1)"),
        says="layer_cost",
    ),
    Answer(
        7,
        "the second layer is not transposed",
        swap=("layer_cost(m, hidden, dim, y, x, z)", "layer_cost(m, hidden, dim, x, y, z)"),
        says="mlp_seconds",
    ),
    Answer(7, "cores are forgotten", swap=(" * max(1.0, world / machine.cores)", ""), says="mlp_seconds"),
    Answer(
        7,
        "more cores than ranks make a rank faster",
        swap=("max(1.0, world / machine.cores)", "world / machine.cores"),
        says="mlp_seconds",
    ),
    Answer(7, "numbers for bytes", swap=("4 * (first[1] + second[1])", "(first[1] + second[1])"), says="mlp_seconds"),
    Answer(7, "no latency", swap=("(first[0] + second[0]) * machine.alpha + ", ""), says="mlp_seconds"),
    Answer(
        7,
        "the forward pass alone",
        swap=("2 * 3 * 2 * m * dim * hidden", "2 * 2 * m * dim * hidden"),
        says="mlp_seconds",
    ),
    Answer(
        7,
        "all ranks' work on each",
        swap=("flops / world / machine.speed", "flops / machine.speed"),
        says="mlp_seconds",
    ),
    Answer(7, "always FSDP", [None, None, None, "return (1, 1, world)"], says="best_grid"),
    Answer(7, "the slowest", swap=("return min(factorings(world)", "return max(factorings(world)"), says="best_grid"),
    Answer(
        7,
        "the time, not the grid",
        [None, None, None, "return min(mlp_seconds(m, dim, hidden, shape, machine) for shape in factorings(world))"],
        says="best_grid",
    ),
    Answer(8, "one block arrives", ["return 0.5 * itemsize * speed / bandwidth", None], says="smallest_block"),
    Answer(8, "the memory's three blocks", ["return 1.5 * itemsize * speed / bandwidth", None], says="smallest_block"),
    Answer(8, "float32 always", ["return 4 * speed / bandwidth", None], says="smallest_block"),
    Answer(
        8,
        "one way round the ring",
        [None, "return (world - 1) / world * itemsize * speed / bandwidth / 2"],
        says="smallest_width",
    ),
    Answer(
        8,
        "the whole width, not a rank's part",
        [None, "return (world - 1) * itemsize * speed / bandwidth"],
        says="smallest_width",
    ),
    Answer(8, "SUMMA's side, for any layer", [None, "return itemsize * speed / bandwidth"], says="smallest_width"),
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
        4,
        "each panel in two broadcasts",
        swap=(
            "dist.broadcast(piece, src=grid.lines[1][panel.column], group=grid.groups[1])",
            "for part in piece.tensor_split(2):\n    dist.broadcast(part, src=grid.lines[1][panel.column], group=grid.groups[1])",
        ),
        says="collectives for",
    ),
    Answer(
        3,
        "no block is empty",
        swap=("size = piece.stop - piece.start", "size = max(1, piece.stop - piece.start)"),
        says="a message and its receiver differ",
    ),
    Answer(
        6,
        "one number is sent between the layers",
        swap=("x_mk = F.gelu(x_mk)", "x_mk = F.gelu(x_mk)\n        dist.all_reduce(torch.ones(1))"),
        says="sends more than its products",
    ),
    Answer(
        3,
        "refuses behind a barrier",
        swap=(
            "if grid.shape[0] != grid.shape[1]:",
            "if grid.shape[0] != grid.shape[1]:\n    dist.all_reduce(torch.zeros(()), group=grid.groups[0])",
        ),
        says="refused only after",
    ),
    Answer(
        6,
        "a mean of no rows",
        swap=("(y_mn - target_mn).square().sum() / numbers", "F.mse_loss(y_mn, target_mn) * y_mn.numel() / numbers"),
    ),
    Answer(
        7,
        "the best grid of the first machine",
        [
            None,
            None,
            None,
            """
            known = vars(best_grid)
            key = f"{m} {dim} {hidden} {world}"
            if key not in known:
                known[key] = min(factorings(world), key=lambda shape: mlp_seconds(m, dim, hidden, shape, machine))
            return known[key]
            """,
        ],
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
    Answer(
        5,
        "the depth is always axis 2",
        swap=(
            ("gather(shard, shape, grid.groups[axes.depth])", "gather(shard, shape, grid.groups[2])"),
            ("gather(shard, ctx.shape, groups[axes.depth]).T", "gather(shard, ctx.shape, groups[2]).T"),
            ("reduce_to_shard(x_mk.T @ dy_mn, groups[axes.depth])", "reduce_to_shard(x_mk.T @ dy_mn, groups[2])"),
        ),
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
    Answer(3, "skew first, then the loop", [None, CANNON]),
    Answer(
        3,
        "both matrices at once, received into views",
        [
            None,
            """
        p, q = grid.shape
        if p != q:
            raise ValueError(f"a square is needed, this is {p} by {q}")
        row, column = grid.place
        y = torch.zeros(len(x_mk), w_kn.shape[1], dtype=x_mk.dtype)
        for step in range(p):
            left, up = (1, 1) if step else (row, column)
            piece = block(k, p, inner_index(row, column, step, p))
            size = piece.stop - piece.start
            works, arriving = [], []
            for tensor, line, at, places, shape in ((x_mk, grid.lines[1], column, left, (len(x_mk), size)), (w_kn, grid.lines[0], row, up, (size, w_kn.shape[1]))):
                if places % p == 0:
                    arriving.append(tensor)
                    continue
                arriving.append(torch.empty(shape, dtype=tensor.dtype))
                works += [dist.irecv(arriving[-1], line[(at + places) % p]), dist.isend(tensor.contiguous(), line[(at - places) % p])]
            while works:
                works.pop().wait()
            del tensor  # or it would keep the block that went
            x_mk, w_kn = arriving
            arriving.clear()
            y += x_mk.mm(w_kn)
        return y""",
        ],
    ),
    Answer(
        4,
        "by cuts in a line, added up in place",
        [
            """
        cuts = sorted({0, k} | {block(k, parts, n).start for parts in shape for n in range(parts)})
        owner = lambda position, parts: next(n for n in range(parts) if block(k, parts, n).start <= position < block(k, parts, n).stop)
        return [Panel(a, b, owner(a, shape[1]), owner(a, shape[0])) for a, b in zip(cuts, cuts[1:])]""",
            None,
            None,
            SUMMA_BY_PRODUCTS,
            None,
        ],
    ),
    Answer(
        4,
        "broadcasts made of messages",
        [
            None,
            """
        owner = grid.lines[1][panel.column]
        if grid.rank == owner:
            start = grid.block(k, 1).start
            mine = x_mk[:, panel.begin - start : panel.end - start].contiguous()
            works = [dist.isend(mine, other) for other in grid.lines[1] if other != owner and grid.lines[1].index(other) == (panel.column + 1) % len(grid.lines[1])]
        else:
            mine = torch.empty(len(x_mk), panel.end - panel.begin, dtype=x_mk.dtype)
            dist.recv(mine, grid.lines[1][grid.place[1] - 1])
            follower = grid.lines[1][(grid.place[1] + 1) % len(grid.lines[1])]
            works = [dist.isend(mine, follower)] if follower != owner else []
        for work in works:
            work.wait()
        return mine""",
            None,
            None,
            None,
        ],
    ),
    Answer(
        5,
        "asynchronous sums",
        [
            None,
            """
        ctx.save_for_backward(x_mk, shard)
        ctx.rest = shape, axes, grid
        w = gather(shard, shape, grid.groups[axes.depth])
        y = torch.mm(x_mk, w)
        dist.all_reduce(y, group=grid.groups[axes.inner], async_op=True).wait()
        return y""",
            """
        x_mk, shard = ctx.saved_tensors
        shape, axes, grid = ctx.rest
        dw = reduce_to_shard(x_mk.mT @ dy_mn, grid.groups[axes.depth])
        dx = dy_mn @ gather(shard, shape, grid.groups[axes.depth]).mT
        work = dist.all_reduce(dx, group=grid.groups[axes.outer], async_op=True)
        work.wait()
        return dx, dw, None, None, None""",
        ],
    ),
    Answer(
        5,
        "each sum from a reduce-scatter and an all-gather",
        [
            None,
            """
        ctx.save_for_backward(x_mk, shard)
        ctx.shape, ctx.axes, ctx.grid = shape, axes, grid
        y = x_mk @ gather(shard, shape, grid.groups[axes.depth])
        return gather(reduce_to_shard(y, grid.groups[axes.inner]), y.shape, grid.groups[axes.inner])""",
            None,
        ],
    ),
    Answer(
        6,
        "the remainder says it; a loop over pairs",
        [
            "return Axes(layer % 2, 1 - layer % 2)",
            """
        y = Product.apply(x_mk, shards[0], shapes[0], axes_of(0), grid)
        for layer in range(1, len(shards)):
            y = Product.apply(F.gelu(y), shards[layer], shapes[layer], axes_of(layer), grid)
        return y""",
            """
        mine = F.mse_loss(y_mn, target_mn, reduction="sum") / numbers
        with torch.no_grad():
            loss = mine.clone()
            for axis in (axes.outer, axes.depth):
                dist.all_reduce(loss, group=grid.groups[axis])
        return mine, loss""",
        ],
    ),
    Answer(
        6,
        "over all ranks, divided by the replicas",
        [
            None,
            None,
            """
        mine = (y_mn - target_mn).pow(2).sum() / numbers
        loss = mine.detach() / grid.shape[axes.inner]
        dist.all_reduce(loss)
        return mine, loss""",
        ],
    ),
    Answer(
        7,
        "by loops",
        [
            """
        found = []
        for x in range(1, world + 1):
            for y in range(1, world + 1):
                for z in range(1, world + 1):
                    if x * y * z == world:
                        found.append((x, y, z))
        return found""",
            """
        rounds = 2 * (inner + outer - 2) + 3 * (depth - 1)
        w, dw, y, dx = numbers_sent_3d(m, k, n, inner, outer, depth)
        return rounds, w + dw + y + dx""",
            None,
            """
        best = (1, 1, world)
        for shape in factorings(world):
            if mlp_seconds(m, dim, hidden, shape, machine) < mlp_seconds(m, dim, hidden, best, machine):
                best = shape
        return best""",
        ],
    ),
    Answer(
        8,
        "two times, set equal",
        [
            "return 1 / (2 * itemsize / bandwidth / (2 / speed)) ** -1",
            """
        seconds_a_number = 2 * (world - 1) / world * itemsize / bandwidth  # of the result
        return seconds_a_number * speed / 2""",
        ],
    ),
]

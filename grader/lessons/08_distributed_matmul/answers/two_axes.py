"""Other answers to TODOs 3 and 4 of 08_distributed_matmul."""

from grader.kit import Answer

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
        4,
        "rows of W, as they lie in memory",
        swap=(
            "piece = w_kn[panel.begin - first : panel.end - first].contiguous()",
            "piece = w_kn[panel.begin - first : panel.end - first]",
        ),
        says="blocks that are not contiguous",
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
            'raise ValueError(\n        f"Cannon needs a square of ranks, and the grid is {grid.shape[0]} × {grid.shape[1]}"\n    )',
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
        3,
        "refuses behind a barrier",
        swap=(
            "if grid.shape[0] != grid.shape[1]:",
            "if grid.shape[0] != grid.shape[1]:\n    dist.all_reduce(torch.zeros(()), group=grid.groups[0])",
        ),
        says="refused only after",
    ),
]


RIGHT = [
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
]

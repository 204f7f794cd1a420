"""Other answers to TODOs 5 and 6 of 08_distributed_matmul."""

from grader.kit import Answer

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
        6,
        "the loss is summed where this rank's part lies",
        swap=("loss = mine.detach().clone()", "loss = mine.detach()"),
        says="the part of the loss",
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
        6,
        "one number is sent between the layers",
        swap=("x_mk = F.gelu(x_mk)", "x_mk = F.gelu(x_mk)\n        dist.all_reduce(torch.ones(1))"),
        says="sends more than its products",
    ),
    Answer(
        6,
        "a mean of no rows",
        swap=("(y_mn - target_mn).square().sum() / numbers", "F.mse_loss(y_mn, target_mn) * y_mn.numel() / numbers"),
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
]

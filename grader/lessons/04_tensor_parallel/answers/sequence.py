"""Other answers to TODOs 8 and 9 of 04_tensor_parallel."""

from grader.kit import Answer

FINISH = """
for parameter in parameters:
    if CHOSEN and parameter.grad is not None:
        dist.all_reduce(parameter.grad)
"""


NOT_SHARDED = "not is_sharded(parameter)"


WRONG = [
    Answer(
        8,
        "sends what need not be contiguous",
        swap=("dist.all_gather(pieces, x_BTD.contiguous())", "dist.all_gather(pieces, x_BTD)"),
        says="gives all_gather a tensor that is not contiguous",
    ),
    Answer(
        8,
        "gathered along the batch",
        swap=("torch.cat(pieces, dim=1)", "torch.cat(pieces, dim=0)"),
        says="gather_sequence",
    ),
    Answer(
        8,
        "gathered, rank 0 last",
        swap=("torch.cat(pieces, dim=1)", "torch.cat(pieces[::-1], dim=1)"),
        says="the result on rank",
    ),
    Answer(
        8,
        "an all-reduce, and a slice of it",
        [
            None,
            """
        total = x_BTD.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()""",
            None,
            None,
        ],
        says="sends",
    ),
    Answer(
        8,
        "gathered by an all-reduce of zeros",
        [
            """
        n, world = x_BTD.shape[1], dist.get_world_size()
        whole = x_BTD.new_zeros(x_BTD.shape[0], n * world, x_BTD.shape[2])
        whole[:, dist.get_rank() * n : (dist.get_rank() + 1) * n] = x_BTD
        dist.all_reduce(whole)
        return whole""",
            None,
            None,
            None,
        ],
        says="sends",
    ),
    Answer(8, "the mean", [None, None, "return reduced(gradient) / dist.get_world_size()", None], says="backward"),
    Answer(
        8,
        "the gradient of its own tokens, not summed",
        [None, None, "return gradient.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()", None],
        says="gather_sequence",
    ),
    Answer(
        8,
        "the gradient of its own tokens, zeros else",
        [
            None,
            None,
            None,
            """
        n, rank = gradient.shape[1], dist.get_rank()
        whole = gradient.new_zeros(gradient.shape[0], n * dist.get_world_size(), gradient.shape[2])
        whole[:, rank * n : (rank + 1) * n] = gradient
        return whole""",
        ],
        says="scatter_sequence",
    ),
    Answer(8, "the wrong way round", [None, None, "return gathered(gradient)", "return reduced(gradient)"]),
    Answer(
        8,
        "the largest of the ranks",
        swap=("dist.reduce_scatter(mine, pieces)", "dist.reduce_scatter(mine, pieces, dist.ReduceOp.MAX)"),
        says="the result on rank",
    ),
    Answer(
        8, "the tokens of the next rank", swap=(", pieces)", ", pieces[1:] + pieces[:1])"), says="the result on rank"
    ),
    Answer(
        8,
        "no sum: each rank's own tokens",
        [None, "return x_BTD.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()", None, None],
        says="the result on rank",
    ),
    Answer(9, "nothing", ["pass"], says="a copy"),
    Answer(9, "all of them", [FINISH.replace("CHOSEN", "True")], says="a shard"),
    Answer(
        9,
        "the mean",
        [FINISH.replace("CHOSEN", NOT_SHARDED) + "        parameter.grad /= dist.get_world_size()\n"],
        says="the mean",
    ),
    Answer(
        9, "norms and biases only", [FINISH.replace("CHOSEN", NOT_SHARDED + " and parameter.dim() == 1")], says="a copy"
    ),
    Answer(9, "matrices only", [FINISH.replace("CHOSEN", NOT_SHARDED + " and parameter.dim() > 1")], says="a copy"),
    Answer(
        9,
        "the first one without a gradient is the last",
        [
            """
        for parameter in parameters:
            if parameter.grad is None:
                break
            if not is_sharded(parameter):
                dist.all_reduce(parameter.grad)"""
        ],
        says="a copy",
    ),
    Answer(9, "the last is left out", swap=("in parameters:", "in list(parameters)[:-1]:"), says="a copy"),
    Answer(9, "the shards, and not the copies", [FINISH.replace("CHOSEN", "is_sharded(parameter)")]),
    Answer(9, "those without a gradient, too", [FINISH.replace("CHOSEN and parameter.grad is not None", NOT_SHARDED)]),
    Answer(
        9,
        "a gradient for everybody",
        swap=(
            " and parameter.grad is not None:",
            ":\n        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad",
        ),
        says="makes a gradient for",
    ),
    Answer(
        9,
        "rank 0's for all",
        [FINISH.replace("CHOSEN", NOT_SHARDED).replace("all_reduce(parameter.grad)", "broadcast(parameter.grad, 0)")],
        says="a copy",
    ),
    Answer(
        9,
        "copies are made instead: the weights",
        [FINISH.replace("CHOSEN", NOT_SHARDED).replace("all_reduce(parameter.grad)", "broadcast(parameter.data, 0)")],
        says="a copy",
    ),
    Answer(
        8,
        "the sum goes into this rank's piece",
        swap=("mine = torch.empty_like(pieces[0])", "mine = pieces[dist.get_rank()]"),
        says="which it is given, is written into",
    ),
    Answer(
        9,
        "all in one message, also where there is nothing",
        [
            """
        gradients = [p.grad for p in parameters if not is_sharded(p) and p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(total.view_as(gradient))"""
        ],
        says="non-empty",
    ),
    Answer(
        8,
        "chunks that are not contiguous",
        swap=(
            "[piece.contiguous() for piece in x_BTD.chunk(dist.get_world_size(), dim=1)]",
            "list(x_BTD.chunk(dist.get_world_size(), dim=1))",
        ),
        says="is not what it should be",
    ),
    Answer(
        9,
        "what is trainable has a gradient",
        swap=("parameter.grad is not None", "parameter.requires_grad"),
        says="stopped with TypeError",
    ),
    Answer(
        9,
        "gradients of zeros are not sent",
        swap=(
            "not is_sharded(parameter) and parameter.grad is not None",
            "parameter.grad is not None and not is_sharded(parameter) and parameter.grad.any()",
        ),
    ),
    Answer(
        9,
        "contiguous copies are summed",
        swap=("dist.all_reduce(parameter.grad)", "whole = parameter.grad.contiguous()\n        dist.all_reduce(whole)"),
        says="in channels_last",
    ),
    Answer(
        9,
        "one message of views",
        [
            """
        chosen = [p for p in parameters if not is_sharded(p) and p.grad is not None]
        if chosen:
            flat = torch.cat([p.grad.view(-1) for p in chosen])
            dist.all_reduce(flat)
            for p, part in zip(chosen, flat.split([p.numel() for p in chosen])):
                p.grad.copy_(part.view_as(p))"""
        ],
        says="view size is not compatible",
    ),
]


RIGHT = [
    Answer(
        8,
        "all to all, added up here",
        [
            None,
            """
        world = dist.get_world_size()
        leaving = torch.stack([piece.contiguous() for piece in x_BTD.chunk(world, dim=1)])
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        return arriving.sum(dim=0)""",
            None,
            None,
        ],
    ),
    Answer(
        8,
        "one tensor, moved",
        [
            """
        world = dist.get_world_size()
        whole = torch.empty(world, *x_BTD.shape, dtype=x_BTD.dtype)
        dist.all_gather(list(whole), x_BTD.contiguous())
        return whole.transpose(0, 1).flatten(1, 2)""",
            None,
            None,
            None,
        ],
    ),
    Answer(
        9,
        "all in one message",
        [
            """
        chosen = [p for p in parameters if not is_sharded(p) and p.grad is not None]
        if chosen:
            flat = torch.cat([p.grad.flatten() for p in chosen])
            dist.all_reduce(flat)
            for p, part in zip(chosen, flat.split([p.numel() for p in chosen])):
                p.grad.copy_(part.view_as(p))"""
        ],
    ),
    Answer(
        8,
        "by DTensor",
        [
            """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return DTensor.from_local(x_BTD.contiguous(), mesh, [Shard(1)]).full_tensor()""",
            """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial, Shard
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        return DTensor.from_local(x_BTD, mesh, [Partial()]).redistribute(mesh, [Shard(1)]).to_local().contiguous()""",
            None,
            None,
        ],
    ),
]

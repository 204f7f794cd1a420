"""Other answers to TODOs 8 and 9 of 02_data_parallel."""

from grader.kit import Answer

from .common import replaced

WEIGHT = """
total = torch.tensor(float(count))
dist.all_reduce(total)
return loss * (count * dist.get_world_size() / total)
"""


TORCH = """
ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)
k = len(micro_batches)
with ddp.no_sync():
    for x, y in micro_batches[:-1]:
        (ddp(x, y) / k).backward()
for x, y in micro_batches[-1:]:
    (ddp(x, y) / k).backward()
return ddp
"""


WRONG = [
    Answer(8, "the loss as it is", "return loss", says="one process's"),
    Answer(8, "without the ranks", swap=("* dist.get_world_size() /", "/"), says="divided once too often"),
    Answer(8, "times the count", "return loss * count", says="times one process's"),
    Answer(
        8,
        "a single sample as it is",
        swap=("return loss * (count", "return loss if count == 1 else loss * (count"),
        says="multiplied by the wrong factor",
    ),
    Answer(8, "divided by the count", swap=("count *", "1 / max(count, 1) *"), says="one process's"),
    Answer(8, "a number that has no gradient", swap=("loss *", "loss.item() *")),
    Answer(
        8,
        "all ranks' mean of the losses",
        "total = loss.clone()\ndist.all_reduce(total.detach())\nreturn total / dist.get_world_size()",
        says="one process's",
    ),
    Answer(
        8,
        "ranks with samples count alike",
        "have = torch.tensor(float(count > 0))\ndist.all_reduce(have)\nreturn loss * (count > 0) *"
        " dist.get_world_size() / have",
        says="one process's",
    ),
    Answer(8, "a rank without samples leaves", "if count == 0:\n    return loss\n" + WEIGHT.strip(), says="rank 1"),
    Answer(
        8, "the largest share for all", swap=("(total)", "(total, op=dist.ReduceOp.MAX)"), says="times one process's"
    ),
    Answer(8, "nobody waits", swap=("(total)", "(total, async_op=True)"), says="never waits"),
    Answer(
        8,
        "all losses and counts",
        """
        mine = torch.tensor([loss.item(), float(count), 0.0])
        dist.all_reduce(mine)
        return loss * (count * dist.get_world_size() / mine[1])""",
        says="more than an all-reduce of one number",
    ),
    Answer(9, "as it comes", swap=(", bucket_cap_mb=cap / 2**20, find_unused_parameters=True", "")),
    Answer(9, "all parameters are used", swap=(", find_unused_parameters=True", "")),
    Answer(9, "the same ones in each pass", swap=("find_unused_parameters", "static_graph")),
    Answer(9, "bytes for megabytes", swap=("cap / 2**20", "cap"), says="the cap is 150"),
    Answer(
        9, "without no_sync", swap=("with ddp.no_sync()", "if True"), says="sends gradients in backward pass 1 of 4"
    ),
    Answer(
        9,
        "forward before no_sync",
        swap=(
            "with ddp.no_sync():\n    for x, y in others:\n        (ddp(x, y) / len(micro_batches))",
            "for x, y in others:\n    loss = ddp(x, y) / len(micro_batches)\n    with ddp.no_sync():\n        loss",
        ),
        says="sends gradients in backward pass 1 of 4",
    ),
    Answer(
        9,
        "no_sync to the end",
        swap=(
            "x, y = last\n(ddp(x, y) / len(micro_batches)).backward()",
            "    for x, y in micro_batches[-1:]:\n        (ddp(x, y) / len(micro_batches)).backward()",
        ),
        says="is not one process's",
    ),
    Answer(
        9,
        "the model inside is called",
        replaced(TORCH, ("(ddp(x, y) / k)", "(model(x, y) / k)")),
        says="is not one process's",
    ),
    Answer(
        9,
        "all forward passes before the first backward pass",
        """
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)
        losses = [ddp(x, y) / len(micro_batches) for x, y in micro_batches]
        for loss in reversed(losses):  # findings/ddp_two_forwards_two_backwards_unsynchronised.sh
            loss.backward()
        return ddp
        """,
    ),
    Answer(9, "not divided", replaced(TORCH, (" / k)", ")")), says="4 times the mean"),
    Answer(
        9,
        "divided by the ranks, too",
        replaced(TORCH, (" / k)", " / k / dist.get_world_size())")),
        says="divided once too often",
    ),
    Answer(9, "the model is returned", swap=("return ddp", "return model"), says="does not return the given model"),
    Answer(
        9,
        "a copy is wrapped",
        "import copy\nmodel = copy.deepcopy(model)\n" + TORCH.strip(),
        says="and of rank 0 differ",
    ),
    Answer(9, "buffers stay apart", swap=("True", "True, broadcast_buffers=False"), says="is not one process's"),
    Answer(9, "each begins where it is", swap=("True", "True, init_sync=False"), says="and of rank 0 differ"),
    Answer(9, "not trained", "return DistributedDataParallel(model)", says="makes no backward pass"),
    Answer(
        8,
        "counts that fit a byte",
        swap=("(float(count), device=loss.device)", "(count).to(torch.uint8)"),
        says="weighted, on 4 ranks with",
    ),
    Answer(
        8,
        "counts in float16",
        swap=("float(count), device=loss.device", "count, dtype=torch.float16"),
        says="is not one process's",
    ),
    Answer(
        8,
        "counts of 16 bits",
        swap=("(float(count), device=loss.device)", "(count).to(torch.int16)"),
        says="Invalid scalar type",
    ),
    Answer(8, "for three ranks", swap=("dist.get_world_size()", "3"), says="weighted, on 4 ranks"),
    Answer(9, "four micro-batches", replaced(TORCH, ("k = len(micro_batches)", "k = 4")), says="on 2 micro-batches"),
    Answer(8, "a weight that is a whole number", swap=(("float(count)", "count"), ("() /", "() //"))),
    Answer(
        9,
        "gradients averaged by hand, one by one, after no_sync",
        swap=(
            ("*others, last = micro_batches\n", ""),
            ("others", "micro_batches"),
            (
                "x, y = last\n(ddp(x, y) / len(micro_batches)).backward",
                "for parameter in model.parameters():\n    if parameter.requires_grad:\n"
                "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
                "        dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size",
            ),
        ),
    ),
    Answer(
        8,
        "the loss is weighted in place",
        swap=(
            "return loss * (count * dist.get_world_size() / total)",
            "loss *= count * dist.get_world_size() / total\nreturn loss",
        ),
        says="loss, which it is given, is written into",
    ),
    Answer(
        9,
        "the last one is known by identity, to torch",
        """
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)
        for batch in micro_batches:
            ddp.require_backward_grad_sync = batch is micro_batches[-1]
            (ddp(*batch) / len(micro_batches)).backward()
        return ddp
        """,
        says="sends gradients in backward pass 2 of 4",
    ),
    Answer(
        8,
        "counts are gathered",
        """
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor([count]))
        return count * loss / torch.stack(counts).double().mean()""",
        says="sends more than an all-reduce of one number does",
    ),
    Answer(
        8,
        "counts in the loss's dtype",
        swap=("torch.tensor(float(count), device=loss.device)", "torch.full_like(loss.detach(), float(count))"),
        says="the loss, in float16, of rank 0",
    ),
    Answer(
        8,
        "the count, and one for each rank",
        swap=(
            "total = torch.tensor(float(count), device=loss.device)\ndist.all_reduce(total)",
            "both = torch.tensor([float(count), 1.0])\ndist.all_reduce(both)\ntotal = both[0]",
        ),
        says="sends more than an all-reduce of one number does",
    ),
]


RIGHT = [
    Answer(
        9,
        "one loop",
        """
        import contextlib
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 1024 / 1024, find_unused_parameters=True, gradient_as_bucket_view=True)
        for number, (x, y) in enumerate(micro_batches, start=1):
            with contextlib.nullcontext() if number == len(micro_batches) else ddp.no_sync():
                loss = ddp(x, y) / len(micro_batches)
                loss.backward()
        return ddp""",
    ),
    Answer(
        8,
        "in float64",
        swap=(("float(count), device=loss.device", "count, dtype=torch.float64"), ("/ total", "/ total.item()")),
    ),
    Answer(
        8,
        "reduced as an integer, with a wait",
        "total = torch.tensor([count])\ndist.all_reduce(total, async_op=True).wait()\nreturn loss * count * dist.get_world_size() / int(total)",
    ),
    Answer(
        9,
        "through torch.autograd.backward",
        "ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)\nlosses = []\nfor number, (x, y) in enumerate(micro_batches):\n    ddp.require_backward_grad_sync = number == len(micro_batches) - 1\n    torch.autograd.backward(ddp(x, y).div(len(micro_batches)))\nreturn ddp",
    ),
    Answer(
        9,
        "the first one last",
        replaced(TORCH, ("micro_batches[:-1]", "micro_batches[1:]"), ("micro_batches[-1:]", "micro_batches[:1]")),
    ),
    Answer(
        8,
        "functional",
        "import torch.distributed._functional_collectives as funcol\ntotal = funcol.all_reduce(torch.tensor(float(count)), 'sum', dist.group.WORLD)\nreturn loss * (count * dist.get_world_size() / funcol.wait_tensor(total))",
    ),
    Answer(
        8,
        "an integer is summed up",
        swap=(
            ("float(count)", "count"),
            ("(count * dist.get_world_size() / total)", "count * dist.get_world_size() / total"),
        ),
    ),
]

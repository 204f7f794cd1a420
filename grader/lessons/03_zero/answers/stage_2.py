"""Other answers to TODOs 6 and 7 of 03_zero."""

from grader.kit import Answer

WRONG = [
    Answer(6, "reduced, but kept", swap=("    parameter.grad = None\n", ""), says="nothing is sharded"),
    Answer(
        6, "only the last pass counts", swap=("mine if part.grad is None else part.grad + mine", "mine"), says="is not"
    ),
    Answer(6, "the first pass counts", swap=("grad + mine", "grad"), says="is not"),
    Answer(6, "the last part of the loop for all", swap=(", part=part", "")),
    Answer(
        6,
        "all at the end of the backward pass",
        """
        waiting = []

        def collect(parameter):
            waiting.append(parameter)
            if len(waiting) == len(parameters):
                shards = reduce_to_shards([p.grad for p in parameters], world)
                for p, part, shard in zip(parameters, parts, shards):
                    mine = shard[: len(part)]
                    part.grad = mine if part.grad is None else part.grad + mine
                    p.grad = None
                waiting.clear()

        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(collect)
        """,
        says="whole gradients at once",
    ),
    Answer(
        6,
        "its own gradients, not the mean",
        swap=(
            "(shard,) = reduce_to_shards([parameter.grad], world)",
            "shard = my_part(parameter.grad, dist.get_rank(), world).clone()",
        ),
    ),
    Answer(
        6,
        "a view of the whole gradient",
        swap=(
            (
                "def reduce(parameter: Tensor, part: Tensor) -> None:\n    (shard,) = reduce_to_shards([parameter.grad], world)",
                "def reduce(parameter, part):\n    dist.all_reduce(parameter.grad)\n    parameter.grad /= world\n    shard = my_part(parameter.grad, dist.get_rank(), world)",
            ),
            ("parts, strict=True", "parts"),
        ),
        says="after the first of them, rank 0 holds",
    ),
    Answer(
        6,
        "all-reduced",
        swap=(
            (
                "def reduce(parameter: Tensor, part: Tensor) -> None:\n    (shard,) = reduce_to_shards([parameter.grad], world)",
                "def reduce(parameter, part):\n    dist.all_reduce(parameter.grad)\n    parameter.grad /= world\n    shard = my_part(parameter.grad, dist.get_rank(), world).clone()",
            ),
            ("parts, strict=True", "parts"),
        ),
        says="by all_reduce",
    ),
    Answer(
        6,
        "a hook on the tensor: it sees the gradient before it is added up",
        """
        def reduce(gradient, part):
            (shard,) = reduce_to_shards([gradient], world)
            part.grad = shard[: len(part)] if part.grad is None else part.grad + shard[: len(part)]
            return gradient

        for parameter, part in zip(parameters, parts):
            parameter.register_hook(lambda g, part=part: reduce(g, part))
        """,
        says="nothing is sharded",
    ),
    Answer(7, "whole bytes", swap=("/ world * nbytes", "* nbytes // world"), says="sent_bytes"),
    Answer(7, "stage 3 for nothing", "return 2 * (world - 1) / world * nbytes", says="sent_bytes"),
    Answer(
        7, "stage 1 costs more", "return (2 if stage == 0 else 3) * (world - 1) / world * nbytes", says="sent_bytes"
    ),
    Answer(7, "whole tensors", "return (3 if stage == 3 else 2) * (world - 1) * nbytes", says="sent_bytes"),
    Answer(
        7,
        "stage 2 has the gradients only",
        "return {0: 2, 1: 2, 2: 1, 3: 3}[stage] * (world - 1) / world * nbytes",
        says="sent_bytes",
    ),
    Answer(
        6,
        "given to nobody",
        swap=("    part.grad = mine if part.grad is None else part.grad + mine\n", ""),
        says="none reaches the parameters that its optimizer trains",
    ),
    Answer(6, "frees the part's instead", swap=("parameter.grad =", "part.grad ="), says=""),
    Answer(
        6,
        "the whole gradient lives on until the next one comes",
        swap=(
            (
                "def reduce(parameter: Tensor, part: Tensor) -> None:",
                "last = []\ndef reduce(parameter: Tensor, part: Tensor) -> None:",
            ),
            (
                "(shard,) = reduce_to_shards([parameter.grad], world)",
                "if last:\n        last.pop().grad = None\n    (shard,) = reduce_to_shards([parameter.grad], world)",
            ),
            ("parameter.grad = None", "last.append(parameter)"),
        ),
    ),
    Answer(
        7,
        "stage 2 sends half, since it reduces only",
        swap=("rings = 3 if stage == 3 else 2", "rings = {0: 2, 1: 2, 2: 1, 3: 3}[stage]"),
    ),
    Answer(
        6,
        "an empty part is left without a gradient",
        swap=(
            "mine = shard[: len(part)]\n    part.grad = mine if part.grad is None else part.grad + mine\n    parameter.grad = None",
            "parameter.grad = None\n    if len(part):\n        part.grad = shard[: len(part)] + (0 if part.grad is None else part.grad)",
        ),
        says="no state for its part of gain",
    ),
    Answer(
        6,
        "a first gradient is a view of the whole one",
        swap=(
            "mine = shard[: len(part)]",
            "mine = my_part(parameter.grad, dist.get_rank(), world)\n    mine.copy_(shard[: len(part)])",
        ),
        says="after the first of them, rank 0 holds",
    ),
    Answer(
        7,
        "pieces rounded down",
        swap=("rings * (world - 1) / world * nbytes", "rings * (world - 1) * (nbytes // world)"),
        says="sent_bytes(10, 4",
    ),
    Answer(
        6,
        "zeros are not sent",
        swap=(
            "    (shard,) = reduce_to_shards([parameter.grad], world)",
            "    if not parameter.grad.any():\n"
            "        part.grad = torch.zeros_like(part)\n"
            "        return\n"
            "    (shard,) = reduce_to_shards([parameter.grad], world)",
        ),
    ),
    Answer(
        6,
        "zeros add nothing to what is there",
        swap=(
            "    (shard,) = reduce_to_shards([parameter.grad], world)",
            "    if part.grad is not None and not parameter.grad.any():\n"
            "        parameter.grad = None\n"
            "        return\n"
            "    (shard,) = reduce_to_shards([parameter.grad], world)",
        ),
    ),
]


RIGHT = [
    Answer(
        6,
        "by partial, added in place",
        """
        from functools import partial

        def reduce(part, parameter):
            (shard,) = reduce_to_shards([parameter.grad], world)
            if part.grad is None:
                part.grad = torch.zeros_like(part)
            part.grad += shard[: len(part)]
            parameter.grad = None

        for parameter, part in zip(parameters, parts):
            parameter.register_post_accumulate_grad_hook(partial(reduce, part))
        """,
    ),
    Answer(
        6,
        "by partial, through a copy",
        "import functools\n\ndef take(part, parameter):\n    mine = reduce_to_shards([parameter.grad], world)[0][: len(part)].clone()\n    parameter.grad = None\n    if part.grad is None:\n        part.grad = mine\n    else:\n        part.grad.add_(mine)\n\nfor parameter, part in zip(parameters, parts):\n    parameter.register_post_accumulate_grad_hook(functools.partial(take, part))",
    ),
]

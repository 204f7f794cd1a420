"""Other answers to TODO 10 of 03_zero."""

from grader.kit import Answer

MASTERS = (
    'return [{**group, "params": [my_part(p.detach(), rank, world).float().requires_grad_() for p in group["params"]]}'
    " for group in groups]"
)


SHARE32 = """
shards = reduce_to_shards([p.grad.float() for p in parameters], world)
for master, shard in zip(masters, shards):
    master.grad = shard[: len(master)]
"""


BACK = """
for parameter, master in zip(parameters, masters):
    my_part(parameter, rank, world).copy_(master)
"""


WRONG = [
    Answer(
        10,
        "bfloat16 masters",
        [MASTERS.replace(".float()", ".clone()"), SHARE32.replace(".float()", ""), None],
        says="the masters are torch.bfloat16",
    ),
    Answer(
        10,
        "masters of everything",
        [
            MASTERS.replace("my_part(p.detach(), rank, world)", "p.detach().view(-1)"),
            """
        for p, master in zip(parameters, masters):
            gradient = p.grad.float()
            dist.all_reduce(gradient)
            master.grad = gradient.view(-1) / world""",
            "for parameter, master in zip(parameters, masters):\n    parameter.view(-1).copy_(master)",
        ],
        says="nothing is sharded",
    ),
    Answer(
        10,
        "the masters are views of a whole float32 copy",
        MASTERS.replace("my_part(p.detach(), rank, world).float()", "my_part(p.detach().float(), rank, world)"),
        says="bytes of optimizer state",
    ),
    Answer(
        10,
        "gradients added up in bfloat16",
        swap=(("grad.float()", "grad"), ("[: len(master)]", "[: len(master)].float()")),
        says="added up in bfloat16",
    ),
    Answer(
        10,
        "masters are set back to what was rounded",
        swap=(
            "my_part(parameter, rank, world).copy_(master)",
            "my_part(parameter, rank, world).copy_(master)\n    master.copy_(my_part(parameter, rank, world))",
        ),
        says="differ from one process's",
    ),
    Answer(10, "not written back", [None, None, "pass"]),
    Answer(
        10,
        "written back by rank 0's place",
        swap=("my_part(parameter, rank, world).copy_(master)", "parameter.view(-1)[: len(master)] = master"),
    ),
    Answer(
        10,
        "the weights become float32",
        swap=(
            "for parameter, master in zip(parameters, masters, strict=True):",
            "for parameter in parameters:\n    parameter.data = parameter.data.float()\nfor parameter, master in zip(parameters, masters):",
        ),
    ),
    Answer(
        10,
        "float32 gradients are kept",
        [
            None,
            "for p in parameters:\n    p.grad_dtype = None\n    p.grad = p.grad.float()\n"
            + SHARE32.strip()
            + "\nglobal kept\nkept = [p.grad for p in parameters]",
            None,
        ],
        says="apart from weights",
    ),
    Answer(10, "the options are lost", MASTERS.replace("{**group, ", "{"), says="options"),
    Answer(
        10,
        "divided in bfloat16",
        swap=("p.grad.float()", "(p.grad / world).float() * world"),
        says="takes the mean of the gradients in float32",
    ),
    Answer(
        10,
        "rounded once more before the sum",
        swap=("p.grad.float()", "(p.grad * (1 / world)).float() * world"),
        says="takes the mean of the gradients in float32",
    ),
    Answer(
        10,
        "sums rounded to bfloat16",
        swap=(
            "for master, shard in zip(masters, shards, strict=True):\n    master.grad = shard[: len(master)]",
            "for master, shard in zip(masters, shards):\n    master.grad = shard[: len(master)].bfloat16().float()",
        ),
        says="the masters of",
    ),
    Answer(10, "masters in float64", swap=(".float().requires_grad_()", ".double().requires_grad_()")),
    Answer(
        10,
        "an empty master gets no gradient",
        swap=("master)]", "master)] if len(master) else None"),
        says="no state for its part of gain",
    ),
]


RIGHT = [
    Answer(
        10,
        "master and gradient by to",
        [
            MASTERS.replace(".float()", ".to(torch.float32)"),
            """
        gradients = [p.grad.to(torch.float32) for p in parameters]
        for master, shard in zip(masters, reduce_to_shards(gradients, world)):
            master.grad = shard[: len(master)].clone()""",
            "for p, master in zip(parameters, masters):\n    my_part(p.data, rank, world)[:] = master.to(p.dtype)",
        ],
    ),
    Answer(
        10,
        "the sum in float32, divided afterwards",
        [
            None,
            SHARE32.replace("p.grad.float() for", "p.grad.to(torch.float32) for").replace(
                "shard[: len(master)]", "shard[: master.numel()].clone()"
            ),
            BACK,
        ],
    ),
    Answer(
        10,
        "masters by to(), with a copy asked for",
        swap=(".float().requires_grad_()", ".to(torch.float32, copy=True).requires_grad_()"),
    ),
]

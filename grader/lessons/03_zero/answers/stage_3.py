"""Other answers to TODOs 8 and 9 of 03_zero."""

from grader.kit import Answer

UNSHARD = """
if unit.parameters[0].untyped_storage().nbytes():
    return
for parameter, shards in zip(unit.parameters, gather_shards(unit.shards, unit.world)):
    parameter.untyped_storage().resize_(parameter.numel() * parameter.element_size())
    parameter.data.copy_(joined(shards, parameter.shape))
"""


RESHARD = """
for parameter in unit.parameters:
    parameter.untyped_storage().resize_(0)
"""


FINISH = """
trained = [(p, shard) for p, shard in zip(unit.parameters, unit.shards) if p.requires_grad]
means = reduce_to_shards([p.grad for p, _ in trained], unit.world)
for (p, shard), mean in zip(trained, means):
    shard.grad = mean if shard.grad is None else shard.grad + mean
    p.grad = None
reshard(unit)
"""


FORWARD = """
unit.module.register_forward_pre_hook(lambda module, args: unshard(unit))
unit.module.register_forward_hook(lambda module, args, output: reshard(unit))
"""


BACKWARD = """
unit.module.register_full_backward_pre_hook(lambda module, grad_output: unshard(unit))
"""


COUNT = """
trained = [p for p in unit.parameters if p.requires_grad]
there = []

def ready(parameter):
    there.append(parameter)
    if len(there) == len(trained):
        there.clear()
        finish(unit)

for parameter in trained:
    parameter.register_post_accumulate_grad_hook(ready)
"""


ATTACH = FORWARD + BACKWARD + COUNT


WRONG = [
    Answer(
        9,
        "gradients of frozen parameters, too",
        swap=("unit.shards, strict=True) if p.requires_grad\n", "unit.shards, strict=True)\n"),
        says="reduce_to_shards is given None as tensors[",
    ),
    Answer(8, "nothing is freed", [None, "pass"], says="whole weights"),
    Answer(
        8,
        "its data exchanged for none",
        swap=("parameter.untyped_storage().resize_(0)", "parameter.data = parameter.data.new_empty(0)"),
        says="where the check says",
    ),
    Answer(
        8,
        "filled with zeros, not freed",
        swap=(("return", "pass"), ("untyped_storage().resize_(0)", "data.zero_()")),
        says="whole weights",
    ),
    Answer(
        8,
        "what was there before, not the shards",
        swap=(
            (
                "if unit.parameters[0].untyped_storage().nbytes():",
                'if not hasattr(unit, "kept"):\n    unit.kept = [torch.ones_like(s) for s in unit.shards]\nif unit.parameters[0].untyped_storage().nbytes():',
            ),
            ("unit.shards, unit.world), strict=True", "unit.kept, unit.world)"),
        ),
        says="the numbers from the ranks' shards",
    ),
    Answer(
        8,
        "written where autograd counts",
        swap=((", strict=True", ""), ("parameter.data", "with torch.no_grad():\n        parameter")),
    ),
    Answer(
        8,
        "gathered each time",
        swap=("if unit.parameters[0].untyped_storage().nbytes():\n    return\n", ""),
        says="once more",
    ),
    Answer(
        8,
        "whole if it is longer than its shard",
        swap=(
            "if unit.parameters[0].untyped_storage().nbytes():",
            "if unit.parameters[0].untyped_storage().nbytes() > unit.shards[0].nbytes:",
        ),
        says="unshard on 1 rank of a unit that is already whole gathers once more",
    ),
    Answer(
        8,
        "a collective for each parameter",
        swap=(
            "for parameter, shards in zip(unit.parameters, gather_shards(unit.shards, unit.world), strict=True):",
            "for parameter, shard in zip(unit.parameters, unit.shards):\n    (shards,) = gather_shards([shard], unit.world)",
        ),
        says="unshard takes 3 collectives",
    ),
    Answer(
        8,
        "other memory each time: autograd keeps the old",
        [
            """
        if unit.parameters[0].untyped_storage().nbytes():
            return
        unit.shapes = getattr(unit, "shapes", None) or [p.shape for p in unit.parameters]
        for parameter, shards, shape in zip(unit.parameters, gather_shards(unit.shards, unit.world), unit.shapes):
            parameter.data = joined(shards, shape).clone()
        """,
            """
        unit.shapes = getattr(unit, "shapes", None) or [p.shape for p in unit.parameters]
        for parameter in unit.parameters:
            parameter.data = torch.empty(0)
        """,
        ],
    ),
    Answer(
        8,
        "the shards go as well",
        [None, RESHARD + "with torch.no_grad():\n    for shard in unit.shards:\n        shard.zero_()\n"],
    ),
    Answer(
        8,
        "only what is trained",
        swap=(
            "parameter.untyped_storage().resize_(0)",
            "if parameter.requires_grad:\n        parameter.untyped_storage().resize_(0)",
        ),
        says="whole weights",
    ),
    Answer(
        8,
        "its own shard, repeated",
        swap=(
            "gather_shards(unit.shards, unit.world), strict=True",
            "[s.detach().repeat(unit.world) for s in unit.shards]",
        ),
        says="the numbers from the ranks' shards",
    ),
    Answer(
        9,
        "never freed after the forward pass",
        [None, ATTACH.replace("unit.module.register_forward_hook(lambda module, args, output: reshard(unit))\n", "")],
        says="whole weights",
    ),
    Answer(
        9,
        "everything is gathered before the first step",
        [
            None,
            "unshard(unit)\n"
            + COUNT.replace("        finish(unit)\n", "        finish(unit)\n        unshard(unit)\n"),
        ],
        says="nothing is sharded",
    ),
    Answer(9, "not gathered for the backward pass", [None, FORWARD + COUNT]),
    Answer(
        9,
        "gradients are not reduced",
        swap=(
            "reduce_to_shards([p.grad for p, _ in trained], unit.world)",
            "[filled(my_part(p.grad, dist.get_rank(), unit.world), shard_size(p.numel(), unit.world)) for p, _ in trained]",
        ),
        says="of gradients in a step",
    ),
    Answer(9, "whole gradients are kept", swap=("    p.grad = None\n", ""), says="gradients"),
    Answer(
        9,
        "whole weights are kept after the backward pass",
        FINISH.replace("reshard(unit)", "pass"),
        says="nothing is sharded",
    ),
    Answer(
        9, "only the last pass counts", swap=("mean if shard.grad is None else shard.grad + mean", "mean"), says="loss"
    ),
    Answer(
        9, "finished with the first gradient", [None, ATTACH.replace("len(there) == len(trained)", "len(there) == 1")]
    ),
    Answer(9, "counted once", [None, ATTACH.replace("        there.clear()\n", "")]),
    Answer(
        9,
        "frozen ones are waited for",
        [None, ATTACH.replace("len(there) == len(trained)", "len(there) == len(unit.parameters)")],
    ),
    Answer(
        9,
        "finished by the module's backward hook: too early where the input needs no gradient",
        [
            None,
            FORWARD
            + BACKWARD
            + "unit.module.register_full_backward_hook(lambda module, grad_input, grad_output: finish(unit))\n",
        ],
    ),
    Answer(9, "frozen ones have a gradient", FINISH.replace(" if p.requires_grad]", "]")),
    Answer(
        9,
        "a collective for each gradient",
        swap=(
            "reduce_to_shards([p.grad for p, _ in trained], unit.world)",
            "[reduce_to_shards([p.grad], unit.world)[0] for p, _ in trained]",
        ),
        says="collectives for gradients",
    ),
    Answer(
        9,
        "the whole model at once",
        [FINISH, ATTACH],
        edits=(
            (
                "    members = [(block, list(block.parameters())) for block in model.blocks]\n",
                "    members, rest = [], list(model.parameters())\n",
            ),
        ),
        says="whole weights",
    ),
    Answer(8, "memory for float32", swap=("parameter.element_size()", "4"), says="in bfloat16, rank 0's weights take"),
    Answer(
        9,
        "freed only while training",
        [
            None,
            ATTACH.replace(
                "lambda module, args, output: reshard(unit)",
                "lambda module, args, output: reshard(unit) if module.training else None",
            ),
        ],
        says="an evaluation",
    ),
    Answer(
        9,
        "freed only where gradients are on",
        [
            None,
            ATTACH.replace(
                "lambda module, args, output: reshard(unit)",
                "lambda module, args, output: reshard(unit) if torch.is_grad_enabled() else None",
            ),
        ],
        says="without gradients",
    ),
    Answer(
        9,
        "never reduced to the shards",
        swap=("    shard.grad = mean if shard.grad is None else shard.grad + mean\n", ""),
        says="none reaches the parameters that its optimizer trains",
    ),
    Answer(
        8,
        "frozen weights stay",
        swap=(
            "parameter.untyped_storage().resize_(0)",
            "if parameter.requires_grad:\n        parameter.untyped_storage().resize_(0)",
        ),
    ),
    Answer(
        9,
        "a frozen weight's shard gets a gradient of zeros",
        swap=(
            "p.grad = None",
            "p.grad = None\nfor p, shard in zip(unit.parameters, unit.shards, strict=True):\n    if not p.requires_grad:\n        shard.grad = torch.zeros_like(shard)",
        ),
    ),
    Answer(
        8,
        "gathered once for all steps",
        swap=(
            "gather_shards(unit.shards, unit.world), strict=True):",
            'vars(unit).setdefault("wholes", gather_shards(unit.shards, unit.world)), strict=True):',
        ),
    ),
]


RIGHT = [
    Answer(
        8,
        "a single rank sends nothing",
        swap=(
            "gather_shards(unit.shards, unit.world), strict=True",
            "gather_shards(unit.shards, unit.world) if unit.world > 1 else [s.detach() for s in unit.shards],"
            " strict=True",
        ),
    ),
    Answer(
        8,
        "through set_",
        [
            """
        if all(p.untyped_storage().nbytes() for p in unit.parameters):
            return
        gathered = gather_shards([shard.data for shard in unit.shards], unit.world)
        for parameter, vector in zip(unit.parameters, gathered):
            storage = parameter.untyped_storage()
            storage.resize_(parameter.numel() * parameter.element_size())
            torch.empty(0, dtype=parameter.dtype).set_(storage, 0, parameter.shape).copy_(vector[: parameter.numel()].view(parameter.shape))
        """,
            "for p in unit.parameters:\n    if p.untyped_storage().nbytes():\n        p.untyped_storage().resize_(0)",
        ],
    ),
    Answer(
        9,
        "the root stays whole between the passes, and frozen units would go",
        [
            FINISH.replace(
                "shard.grad = mean if shard.grad is None else shard.grad + mean",
                """
    if shard.grad is None:
        shard.grad = mean.clone()
    else:
        shard.grad.add_(mean)
    """.strip(),
            ),
            """
        root = isinstance(unit.module, TransformerLM)

        def before(*_):
            unshard(unit)

        def after(*_):
            if not root or not torch.is_grad_enabled():
                reshard(unit)

        unit.module.register_forward_pre_hook(before)
        unit.module.register_forward_hook(after)
        unit.module.register_full_backward_pre_hook(before)
        left = {"n": 0}
        trained = [p for p in unit.parameters if p.requires_grad]

        def ready(_):
            left["n"] = (left["n"] + 1) % len(trained)
            if left["n"] == 0:
                finish(unit)

        for p in trained:
            p.register_post_accumulate_grad_hook(ready)
        """,
        ],
    ),
    Answer(9, "by the module's hook before the backward pass", [FINISH, ATTACH]),
    Answer(
        8,
        "bytes of the shards' own dtype, whole if all are",
        UNSHARD.replace(
            "unit.parameters[0].untyped_storage().nbytes()",
            "all(p.untyped_storage().nbytes() for p in unit.parameters)",
        ).replace("parameter.element_size()", "unit.shards[0].element_size()"),
    ),
    Answer(
        9,
        "gradients are counted, not named",
        [
            None,
            """
        trained = [p for p in unit.parameters if p.requires_grad]
        ready = [0]

        def before(module: nn.Module, args: tuple) -> None:
            unshard(unit)

        def after(module: nn.Module, args: tuple, output: Tensor) -> None:
            reshard(unit)
            if output.requires_grad:
                output.register_hook(lambda gradient: unshard(unit))

        def one_more(parameter: Tensor) -> None:
            ready[0] += 1
            if ready[0] == len(trained):
                ready[0] = 0
                finish(unit)

        unit.module.register_forward_pre_hook(before)
        unit.module.register_forward_hook(after)
        for parameter in trained:
            parameter.register_post_accumulate_grad_hook(one_more)
        """,
        ],
    ),
]

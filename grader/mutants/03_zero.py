"""Other answers to the TODOs of 03_zero."""

from grader.kit import Answer

BYTES = """
each = bytes_a_parameter(precision)
return tuple(n * parameters / (world if stage >= first else 1) for n, first in zip(each, (3, 2, 1)))
"""

GATHER = """
mine = torch.cat(shards)
table = mine.new_empty(world, len(mine))
dist.all_gather(list(table), mine)
return [columns.reshape(-1) for columns in table.split([len(shard) for shard in shards], dim=1)]
"""
REDUCE = """
sizes = [shard_size(tensor.numel(), world) for tensor in tensors]
rows = [torch.cat([filled(my_part(t, r, world), size) for t, size in zip(tensors, sizes)]) for r in range(world)]
mine = torch.empty_like(rows[0])
dist.reduce_scatter(mine, rows)
mine /= world
return list(mine.split(sizes))
"""

PARTS = (
    'return [{**group, "params": [my_part(p.detach(), rank, world).requires_grad_() for p in group["params"]]} for'
    " group in groups]"
)
SHARE = """
shards = reduce_to_shards([p.grad for p in parameters], world)
for part, shard in zip(parts, shards):
    part.grad = shard[: len(part)]
"""
WEIGHTS = """
shards = [filled(my_part(p, rank, world), shard_size(p.numel(), world)) for p in parameters]
for p, whole in zip(parameters, gather_shards(shards, world)):
    p.copy_(joined(whole, p.shape))
"""

WHOLE = """
state = {}
for number, values in state_dict["state"].items():
    shape, size = parameters[number].shape, shard_size(parameters[number].numel(), world)
    state[number] = {name: joined(gather_shards([filled(value, size)], world)[0], shape) if is_long(value) else value for name, value in values.items()}
return {**state_dict, "state": state}
"""
OF_PARTS = """
state = {number: {name: my_part(value, rank, world).clone() if is_long(value) else copy.deepcopy(value) for name, value in values.items()}
         for number, values in whole["state"].items()}
return {**whole, "state": state}
"""

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

# What somebody writes who shards nothing: every rank steps all weights with a plain optimizer, which trains as well.
PLAIN_PARTS = 'return [{**group, "params": [p for p in group["params"]]} for group in groups]'
PLAIN_SHARE = """
for p in parameters:
    dist.all_reduce(p.grad)
    p.grad /= world
"""


WRONG = [
    Answer(
        5,
        "a part is float32",
        swap=("my_part(value, rank, world).clone()", "my_part(value, rank, world).clone().float()"),
        says="momentum_buffer is in float32, not in bfloat16",
    ),
    Answer(
        5,
        "parameters counted by their states",
        swap=(
            'for number, values in state_dict["state"].items():\n    shape',
            'for number, values in enumerate(state_dict["state"].values()):\n    shape',
        ),
        says="the saved momentum_buffer of parameter 1",
    ),
    Answer(
        9,
        "gradients of frozen parameters, too",
        swap=("unit.shards, strict=True) if p.requires_grad]", "unit.shards, strict=True)]"),
        says="reduce_to_shards is given None as tensors[",
    ),
    Answer(1, "no master weights", swap=(" 12", " 8"), says="bytes_a_parameter"),
    Answer(1, "gradients in float32 beside the masters", swap=("2, 2", "2, 4"), says="bytes_a_parameter"),
    Answer(
        1,
        "stage 2 shares nothing but the state",
        [None, BYTES.replace("(3, 2, 1)", "(3, 3, 1)")],
        says="predicted_bytes",
    ),
    Answer(1, "weights before gradients", [None, BYTES.replace("(3, 2, 1)", "(2, 3, 1)")], says="predicted_bytes"),
    Answer(1, "stage 3 keeps the weights", [None, BYTES.replace("(3, 2, 1)", "(4, 2, 1)")], says="predicted_bytes"),
    Answer(
        1,
        "whole numbers of bytes",
        swap=("state * (share if stage >= 1 else parameters)", "state * parameters // (world if stage >= 1 else 1)"),
        says="predicted_bytes",
    ),
    Answer(1, "one sum", [None, BYTES.replace("tuple(", "sum(")], says="predicted_bytes"),
    Answer(2, "rounded down", swap=("-(-numel // world)", "numel // world"), says="shard_size"),
    Answer(2, "a number at least", swap=("-(-numel // world)", "max(1, -(-numel // world))"), says="shard_size(0"),
    Answer(2, "always one more", swap=("-(-numel // world)", "numel // world + 1"), says="shard_size"),
    Answer(
        2,
        "as evenly as may be",
        [None, "return tensor.view(-1).tensor_split(world)[rank]", None, None],
        says="my_part of rank 1 has shape (2,), not (3,)",
    ),
    Answer(
        2,
        "in turns",
        [None, "return tensor.view(-1)[rank::world]", None, None],
        says="my_part of rank 0 is not what it should be",
    ),
    Answer(2, "the part is a copy", swap=("size]", "size].clone()"), says="my_part is a copy"),
    Answer(2, "the part is one of a copy", swap=("tensor.view", "tensor.clone().view"), says="my_part is a copy"),
    Answer(
        2,
        "a shard that is full is a view",
        [None, None, "return part if len(part) == size else F.pad(part, (0, size - len(part)))", None],
        says="its memory is not its own",
    ),
    Answer(2, "not filled up", [None, None, "return part.clone()", None], says="the shard of rank 1 has shape"),
    Answer(2, "always float32", swap=("part.new_zeros", "torch.zeros"), says="different dtype"),
    Answer(
        2,
        "too long, then cut",
        [None, None, "return torch.cat([part, part.new_zeros(size)])[:size]", None],
        says="view of something larger",
    ),
    Answer(2, "joined as a vector", swap=(".view(shape)", ""), says="joined"),
    Answer(2, "joined from behind", swap=(": shape.numel()", "-shape.numel() :"), says="joined"),
    Answer(
        3,
        "rows for columns",
        swap=(
            "table.split([len(shard) for shard in shards], dim=1",
            "table.view(-1).split([world * len(s) for s in shards]",
        ),
        says="gather_shards",
    ),
    Answer(3, "the columns transposed", swap=("columns.reshape", "columns.T.reshape"), says="gather_shards"),
    Answer(
        3,
        "its own shard from all",
        swap=("dist.all_gather(list(table), mine)", "table.copy_(mine)"),
        says="gather_shards",
    ),
    Answer(
        3,
        "a collective for each tensor",
        """
        gathered = []
        for shard in shards:
            table = shard.new_empty(world, len(shard))
            dist.all_gather(list(table), shard.detach())
            gathered.append(table.view(-1))
        return gathered""",
        says="gather_shards of 9 tensors takes 7 collectives",
    ),
    Answer(
        3,
        "gathered by a sum of zeros and shards",
        swap=(
            "table = mine.new_empty(world, len(mine))\ndist.all_gather(list(table), mine)",
            "table = mine.new_zeros(world, len(mine))\ntable[dist.get_rank()] = mine\ndist.all_reduce(table)",
        ),
        says="in all_reduce",
    ),
    Answer(3, "the sum, not the mean", [None, REDUCE.replace("mine /= world\n", "")], says="the sum, not the mean"),
    Answer(
        3,
        "all-reduced, then cut",
        [
            None,
            """
        rank = dist.get_rank()
        sizes = [shard_size(t.numel(), world) for t in tensors]
        flat = torch.cat([t.reshape(-1) for t in tensors])
        dist.all_reduce(flat)
        parts = flat.div_(world).split([t.numel() for t in tensors])
        return [filled(my_part(part, rank, world), size) for part, size in zip(parts, sizes)]""",
        ],
        says="in all_reduce",
    ),
    Answer(
        3,
        "a collective for each, to reduce",
        [
            None,
            """
        reduced = []
        for tensor in tensors:
            size = shard_size(tensor.numel(), world)
            mine = tensor.new_empty(size)
            dist.reduce_scatter(mine, [filled(my_part(tensor, r, world), size) for r in range(world)])
            reduced.append(mine / world)
        return reduced""",
        ],
        says="reduce_to_shards of 9 tensors takes 7 collectives",
    ),
    Answer(
        3,
        "cut as one vector",
        [
            None,
            """
        flat = torch.cat([t.reshape(-1) for t in tensors])
        size = sum(shard_size(t.numel(), world) for t in tensors)
        rows = [filled(flat[r * size : (r + 1) * size], size) for r in range(world)]
        mine = torch.empty_like(rows[0])
        dist.reduce_scatter(mine, rows)
        return list((mine / world).split([shard_size(t.numel(), world) for t in tensors]))""",
        ],
        says="reduce_to_shards",
    ),
    Answer(
        3,
        "each rank has its own shards",
        [
            None,
            "rank = dist.get_rank()\nreturn [filled(my_part(t, rank, world), shard_size(t.numel(), world)) for t in"
            " tensors]",
        ],
        says="reduce_to_shards",
    ),
    Answer(
        3,
        "its inputs are divided",
        [None, "for t in tensors:\n    t /= world\n" + REDUCE.strip().replace("mine /= world\n", "")],
        says="which it is given, is written into",
    ),
    Answer(
        3,
        "the reduced ones are views of all rows",
        [
            None,
            """
        sizes = [shard_size(t.numel(), world) for t in tensors]
        table = torch.stack([torch.cat([filled(my_part(t, r, world), size) for t, size in zip(tensors, sizes)]) for r in range(world)])
        mine = table[dist.get_rank()]
        dist.reduce_scatter(mine, list(table.clone()))
        mine /= world
        return list(mine.split(sizes))""",
        ],
        says="views of something larger",
    ),
    Answer(4, "a plain AdamW on every rank", [PLAIN_PARTS, PLAIN_SHARE, "pass"], says="parts"),
    Answer(
        4,
        "a plain optimizer, disguised: parts that are all of it",
        [
            (
                'return [{**group, "params": [my_part(p.detach(), rank, world).requires_grad_() for p in'
                ' group["params"]]} for group in groups]'
            ),
            SHARE,
            WEIGHTS,
        ],
        edits=(
            (
                "        self.optimizer = kind(parts_in_groups(groups, rank, world), **options)\n",
                (
                    '        parts_in_groups(groups, rank, world)\n        self.optimizer = kind([{**g, "params":'
                    ' [p.detach().view(-1).requires_grad_() for p in g["params"]]} for g in groups], **options)\n'
                ),
            ),
            (
                "            share_gradients(self.parameters, self.parts, self.world)\n",
                (
                    "            for p, part in zip(self.parameters, self.parts):\n               "
                    " dist.all_reduce(p.grad)\n                p.grad /= self.world\n                part.grad ="
                    " p.grad.view(-1)\n"
                ),
            ),
            (
                "        gather_weights(self.parameters, self.rank, self.world)\n\n    def state_dict",
                "\n    def state_dict",
            ),
        ),
        says="nothing is sharded",
    ),
    Answer(
        4,
        "the parts are copies",
        PARTS.replace("my_part(p.detach(), rank, world)", "my_part(p.detach(), rank, world).clone()"),
        says="does not write into the parameter",
    ),
    Answer(4, "the parts need no gradient", PARTS.replace(".requires_grad_()", ""), says="leaf tensors"),
    Answer(4, "the parts are no leaves", PARTS.replace("p.detach()", "p")),
    Answer(4, "the options are lost", PARTS.replace("{**group, ", "{"), says="options"),
    Answer(
        4,
        "all in one group",
        'return [{"params": [my_part(p.detach(), rank, world).requires_grad_() for group in groups for p in'
        ' group["params"]]}]',
        says="options",
    ),
    Answer(
        4,
        "the groups given are overwritten",
        """
        for group in groups:
            group["params"] = [my_part(p.detach(), rank, world).requires_grad_() for p in group["params"]]
        return groups""",
        says="groups, which it is given, has other items afterwards",
    ),
    Answer(
        4,
        "each rank has its own gradients",
        [
            None,
            """
        for p, part in zip(parameters, parts):
            part.grad = my_part(p.grad, dist.get_rank(), world).clone()""",
            None,
        ],
        says="of gradients in a step",
    ),
    Answer(
        4,
        "all-reduced: three rings for two",
        [
            None,
            PLAIN_SHARE
            + """
for p, part in zip(parameters, parts):
    part.grad = my_part(p.grad, dist.get_rank(), world)
""",
            None,
        ],
        says="by all_reduce",
    ),
    Answer(
        4,
        "a collective for each parameter",
        swap=(
            "shards = reduce_to_shards([p.grad for p in parameters], world)\nfor part, shard in zip(parts, shards, strict=True):",
            "for p, part in zip(parameters, parts):\n    (shard,) = reduce_to_shards([p.grad], world)",
        ),
        says="collectives for gradients",
    ),
    Answer(4, "the weights are not gathered", [None, None, "pass"], says="of weights in a step"),
    Answer(
        4,
        "gathered, and thrown away",
        swap=("p.copy_(joined(whole, p.shape))", "p = (joined(whole, p.shape))"),
        says="is not one process's",
    ),
    Answer(
        4,
        "gathered from rank 0 only",
        [None, None, "for p in parameters:\n    dist.broadcast(p, 0)"],
        says="of weights in a step",
    ),
    Answer(
        4,
        "the reduced gradients are kept",
        swap=(
            "shards = reduce_to_shards([p.grad for p in parameters], world)\nfor part, shard in zip(parts, shards, strict=True):",
            "global kept\nkept =  reduce_to_shards([p.grad for p in parameters], world)\nfor part, shard in zip(parts, shards):",
        ),
        edits=(("for part, shard in zip(parts, shards):", "for part, shard in zip(parts, kept):"),),
        says="apart from weights",
    ),
    Answer(
        4,
        "weights that lie in what was gathered",
        swap=("copy_(joined(whole, p.shape))", "data = joined(whole, p.shape)"),
        says="they are views of something larger",
    ),
    Answer(
        5,
        "groups without their parameters",
        WHOLE.replace("**state_dict,", '"param_groups": [{"lr": 0.01}, {"lr": 0.02}],'),
        says="a group in “param_groups” that has no list “params”",
    ),
    Answer(5, "the state alone is loaded", [None, OF_PARTS.replace("{**whole, ", "{")], says="without the list"),
    Answer(5, "the state of this rank's parts", ["return state_dict", "return whole"], says="has a different size"),
    Answer(
        5,
        "gathered, but as vectors",
        swap=(
            "{\n"
            "        name: joined(gather_shards([filled(value, size)], world)[0], shape) if is_long(value) else value\n"
            "        for name, value in values.items()\n    }",
            "{name: gather_shards([filled(value, size)], world)[0] if is_long(value) else value for name, value in values.items()}",
        ),
        says="has a different size",
    ),
    Answer(
        5,
        "written into the optimizer's own",
        WHOLE.replace("state = {}\n", 'state = state_dict["state"]\n').replace(
            "state[number] = {", "state[number] |= {"
        ),
    ),
    Answer(
        5,
        "reduced, not gathered",
        swap=(
            "{\n"
            "        name: joined(gather_shards([filled(value, size)], world)[0], shape) if is_long(value) else value\n"
            "        for name, value in values.items()\n    }",
            "{name: joined(filled(value, size).repeat(world), shape) if is_long(value) else value for name, value in values.items()}",
        ),
        says="differs from a plain optimizer's",
    ),
    Answer(
        5,
        "the groups are forgotten",
        swap=(
            "{\n"
            "        name: joined(gather_shards([filled(value, size)], world)[0], shape) if is_long(value) else value\n"
            '        for name, value in values.items()\n    }\nreturn {**state_dict, "state": state}',
            "{name: joined(gather_shards([filled(value, size)], world)[0], shape) if is_long(value) else value for name, value in values.items()}\n"
            'return {"state": state, "param_groups": state_dict["param_groups"][:1]}',
        ),
        says="groups",
    ),
    Answer(
        5,
        "single numbers are forgotten",
        WHOLE.replace("for name, value in values.items()}", "for name, value in values.items() if is_long(value)}"),
        says="step",
    ),
    Answer(5, "whole tensors are kept alive", [None, OF_PARTS.replace(".clone()", "")], says="keeps"),
    Answer(
        5,
        "rank 0's part for all",
        [None, OF_PARTS.replace("my_part(value, rank, world)", "my_part(value, 0, world)")],
        says="but this rank's part has",
    ),
    Answer(5, "nothing is loaded", [None, 'return {**whole, "state": {}}'], says="is None, not a tensor"),
    Answer(
        5,
        "what was saved is overwritten",
        [
            None,
            """
        for values in whole["state"].values():
            for name, value in values.items():
                if is_long(value):
                    values[name] = my_part(value, rank, world).clone()
        return whole""",
        ],
        says="whole, which it is given, has other items afterwards",
    ),
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
        1,
        "a gradient of mixed precision in float32",
        'return {"float32": (4, 4, 8), "mixed": (2, 4, 12)}[precision]',
        says="bytes_a_parameter",
    ),
    Answer(
        2,
        "rounded down for six ranks and more",
        swap=("(-numel // world)", "(-numel // world) if world < 6 else numel // world"),
        says="shard_size",
    ),
    Answer(
        2,
        "the part is a list",
        swap=(
            "tensor.view(-1)[rank * size : (rank + 1) * size]",
            "list(tensor.view(-1)[rank * size : (rank + 1) * size])",
        ),
        says="returns a list",
    ),
    Answer(3, "divided by three", swap=("= world", "= 3"), says="reduce_to_shards on 2 ranks"),
    Answer(3, "gathered in float32", swap=("shards)", "shards).float()"), says="in float64"),
    Answer(
        3,
        "reduced in float32",
        swap=(
            "mine = torch.empty_like(rows[0])",
            "rows = [row.float() for row in rows]\nmine = torch.empty_like(rows[0])",
        ),
        says="in float64",
    ),
    Answer(3, "a list of None", swap=("columns.reshape(-1)", "None"), says="is None, not a tensor"),
    Answer(
        4,
        "the last part is left out",
        [
            None,
            None,
            WEIGHTS.replace("for p in parameters]\n", "for p in parameters[:-1]]\n").replace(
                "zip(parameters, gather", "zip(parameters[:-1], gather"
            ),
        ],
        says="one process",
    ),
    Answer(
        5,
        "the state alone",
        WHOLE.replace('return {**state_dict, "state": state}', "return state"),
        says="whole_state returns a dictionary without the list",
    ),
    Answer(
        5,
        "nothing is returned",
        [None, OF_PARTS.replace('return {**whole, "state": state}', "")],
        says="state_of_parts returns None",
    ),
    Answer(
        5,
        "in a list",
        WHOLE.replace("state = {}", "state = {}", 1).replace(
            'return {**state_dict, "state": state}', 'return {**state_dict, "state": list(state.values())}'
        ),
        says="without the dict",
    ),
    Answer(
        6,
        "given to nobody",
        swap=("    part.grad = mine if part.grad is None else part.grad + mine\n", ""),
        says="none reaches the parameters that its optimizer trains",
    ),
    Answer(6, "frees the part's instead", swap=("parameter.grad =", "part.grad ="), says=""),
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
    Answer(1, "no master weight", swap=(" 12", " 8")),
    Answer(2, "a shard that is float32 whatever was given", swap=("part.new_zeros(size)", "torch.zeros(size)")),
    Answer(3, "a mean that is rounded", swap=("mine /= world", "mine.div_(world).round_()")),
    Answer(
        4,
        "the weights get new memory after the step",
        swap=("p.copy_(joined(whole, p.shape))", "p.data = joined(whole, p.shape)"),
    ),
    Answer(
        5,
        "state of one number, or of none, is no state",
        swap=("if is_long(value) else value\n", "if is_long(value) and value.numel() > 1 else value\n"),
    ),
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
    Answer(10, "masters in float64", swap=(".float().requires_grad_()", ".double().requires_grad_()")),
    Answer(
        1,
        "shares are rounded up",
        swap=("share = parameters / world", "share = -(-parameters // world)"),
        says="predicted_bytes(10, 4",
    ),
    Answer(
        4,
        "an empty part gets no gradient",
        swap=("part.grad = shard[: len(part)]", "if part.numel():\n        part.grad = shard[: part.numel()]"),
        says="no state for its part of gain",
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
        10,
        "an empty master gets no gradient",
        swap=("master)]", "master)] if len(master) else None"),
        says="no state for its part of gain",
    ),
    Answer(
        5,
        "knows AdamW's names only",
        swap=("shape) if is_long(value)", 'shape) if name in ("exp_avg", "exp_avg_sq")'),
        says="the saved momentum_buffer of parameter 1",
    ),
    Answer(
        2,
        "what is joined has one dimension at least",
        swap=("shards[: shape.numel()].view(shape)", "shards[: shape.numel()].view(shape or (1,))"),
        says="a tensor of shape ()",
    ),
    Answer(
        2,
        "a part at its place in the storage",
        swap=(
            "return tensor.view(-1)[rank * size : (rank + 1) * size]",
            "start = min(rank * size, tensor.numel())\n"
            "return tensor.as_strided((min(size, tensor.numel() - start),), (1,), start)",
        ),
    ),
    Answer(
        4,
        "added to the part's gradient",
        swap=(
            "part.grad = shard[: len(part)]",
            "part.grad = shard[: len(part)] + (0 if part.grad is None else part.grad)",
        ),
    ),
    Answer(5, "single numbers are shared", swap=("copy.deepcopy(value)", "value"), says="share a tensor"),
    Answer(
        5,
        "names of the first parameter",
        [
            """
            state = {}
            names = list(next(iter(state_dict["state"].values()), {}))
            for number, values in state_dict["state"].items():
                shape, size = parameters[number].shape, shard_size(parameters[number].numel(), world)
                state[number] = {
                    name: joined(gather_shards([filled(values[name], size)], world)[0], shape)
                    if is_long(values[name])
                    else values[name]
                    for name in names
                }
            return {**state_dict, "state": state}
            """,
            None,
        ],
        says="amsgrad",
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
    Answer(
        8,
        "gathered once for all steps",
        swap=(
            "gather_shards(unit.shards, unit.world), strict=True):",
            'vars(unit).setdefault("wholes", gather_shards(unit.shards, unit.world)), strict=True):',
        ),
    ),
    Answer(
        2,
        "rounded up in float32",
        swap=("-(-numel // world)", "int(torch.tensor(numel / world).ceil())"),
        says="shard_size(1000000001, 4) is wrong",
    ),
    Answer(
        4,
        "keeps only lr and weight_decay of a group",
        swap=(
            '{**group, "params": [my_part(p.detach(), rank, world).requires_grad_() for p in group["params"]]}',
            """{
        "params": [my_part(p.detach(), rank, world).requires_grad_() for p in group["params"]],
        **{option: group[option] for option in ("lr", "weight_decay") if option in group},
    }""",
        ),
        says="options differ",
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
        1,
        "case by case",
        [
            None,
            """
        w, g, o = bytes_a_parameter(precision)
        held = [w * parameters, g * parameters, o * parameters]
        for place in range(2, 2 - stage, -1):
            held[place] /= world
        return tuple(held)""",
        ],
    ),
    Answer(
        2,
        "by the library",
        [
            "import math\nreturn math.ceil(numel / world)",
            """
        size = shard_size(tensor.numel(), world)
        flat = tensor.flatten()
        begin = min(rank * size, len(flat))
        return flat.narrow(0, begin, min(size, len(flat) - begin))""",
            "return F.pad(part, (0, size - len(part))).clone()",
            "import math\nreturn shards.narrow(0, 0, math.prod(shape)).reshape(shape)",
        ],
    ),
    Answer(
        3,
        "the library's tensors, mean taken first",
        [
            """
        mine = torch.cat([shard.detach() for shard in shards])
        arriving = [torch.empty_like(mine) for _ in range(world)]
        dist.all_gather(arriving, mine)
        sizes = [len(shard) for shard in shards]
        return [torch.cat(pieces) for pieces in zip(*(vector.split(sizes) for vector in arriving))]""",
            """
        sizes = [shard_size(t.numel(), world) for t in tensors]
        padded = [filled(t.reshape(-1), size * world).view(world, size) for t, size in zip(tensors, sizes)]
        rows = torch.cat(padded, dim=1) / world
        mine = torch.empty_like(rows[0])
        dist.reduce_scatter(mine, list(rows))
        return [shard.clone() for shard in mine.split(sizes)]""",
        ],
    ),
    Answer(
        3,
        "all to all, added up here",
        [
            None,
            """
        sizes = [shard_size(t.numel(), world) for t in tensors]
        rows = [torch.cat([filled(my_part(t, r, world), size) for t, size in zip(tensors, sizes)]) for r in range(world)]
        leaving = torch.cat(rows)
        arriving = torch.empty_like(leaving)
        dist.all_to_all_single(arriving, leaving)
        return list(arriving.view(world, -1).mean(dim=0).split(sizes))""",
        ],
    ),
    Answer(
        4,
        "parameters of their own, in place",
        [
            """
        parts = []
        for group in groups:
            other = dict(group)
            other["params"] = [nn.Parameter(my_part(p.data, rank, world)) for p in group["params"]]
            parts.append(other)
        return parts""",
            """
        for p, part, shard in zip(parameters, parts, reduce_to_shards([p.grad for p in parameters], world)):
            mine = my_part(p.grad, dist.get_rank(), world)
            mine.copy_(shard[: len(part)])
            part.grad = mine""",
            """
        mine = [filled(my_part(p.data, rank, world), shard_size(p.numel(), world)) for p in parameters]
        for p, vector in zip(parameters, gather_shards(mine, world)):
            p.data.view(-1)[:] = vector[: p.numel()]""",
        ],
    ),
    Answer(
        5,
        "loops, all in one message",
        [
            """
        places, shards = [], []
        state = {number: dict(values) for number, values in state_dict["state"].items()}
        for number, values in state.items():
            for name, value in values.items():
                if is_long(value):
                    places.append((number, name))
                    shards.append(filled(value, shard_size(parameters[number].numel(), world)))
        for (number, name), vector in zip(places, gather_shards(shards, world) if shards else []):
            state[number][name] = joined(vector, parameters[number].shape)
        return {"state": state, "param_groups": state_dict["param_groups"]}""",
            """
        import copy
        mine = copy.deepcopy(whole)
        for values in mine["state"].values():
            for name in [name for name, value in values.items() if is_long(value)]:
                values[name] = my_part(values[name], rank, world).clone()
        return mine""",
        ],
    ),
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
        2,
        "by math, and by padding",
        [
            "import math\nreturn math.ceil(numel / world)",
            "size = shard_size(tensor.numel(), world)\nreturn tensor.flatten()[rank * size:][:size]",
            "return nn.functional.pad(part.detach(), (0, size - len(part))).clone()",
            "return shards[:shape.numel()].reshape(shape)",
        ],
    ),
    Answer(
        3,
        "a list of empties, and sums by all_to_all_single's kin",
        [
            GATHER.replace(
                "table = mine.new_empty(world, len(mine))\ndist.all_gather(list(table), mine)",
                "held = [torch.empty_like(mine) for _ in range(world)]\ndist.all_gather(held, mine)\ntable = torch.stack(held)",
            ),
            REDUCE.replace("mine /= world", "mine.div_(world)")
            .replace("list(mine.split(sizes))", "[piece.clone() for piece in mine.split(sizes)]")
            .replace("return [piece.clone() for piece in mine.split(sizes)]", "return list(mine.split(sizes))"),
        ],
    ),
    Answer(
        5,
        "by a loop over names",
        [
            WHOLE.replace("is_long(value)", "torch.is_tensor(value) and value.ndim"),
            OF_PARTS.replace("my_part(value, rank, world).clone()", "my_part(value, rank, world).detach().clone()"),
        ],
    ),
    Answer(
        6,
        "by partial, through a copy",
        "import functools\n\ndef take(part, parameter):\n    mine = reduce_to_shards([parameter.grad], world)[0][: len(part)].clone()\n    parameter.grad = None\n    if part.grad is None:\n        part.grad = mine\n    else:\n        part.grad.add_(mine)\n\nfor parameter, part in zip(parameters, parts):\n    parameter.register_post_accumulate_grad_hook(functools.partial(take, part))",
    ),
    Answer(
        8,
        "bytes of the shards' own dtype, whole if all are",
        UNSHARD.replace(
            "unit.parameters[0].untyped_storage().nbytes()",
            "all(p.untyped_storage().nbytes() for p in unit.parameters)",
        ).replace("parameter.element_size()", "unit.shards[0].element_size()"),
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
        3,
        "functional",
        [
            "import torch.distributed._functional_collectives as funcol\nmine = torch.cat(shards)\ntable = funcol.wait_tensor(funcol.all_gather_tensor(mine, 0, dist.group.WORLD)).view(world, len(mine))\nreturn [columns.reshape(-1) for columns in table.split([len(shard) for shard in shards], dim=1)]",
            REDUCE.replace(
                "mine = torch.empty_like(rows[0])\ndist.reduce_scatter(mine, rows)\nmine /= world",
                "import torch.distributed._functional_collectives as funcol\nmine = funcol.wait_tensor(funcol.reduce_scatter_tensor(torch.cat(rows), 'sum', 0, dist.group.WORLD)) / world",
            ),
        ],
    ),
    Answer(2, "filled up by F.pad", [None, None, "return F.pad(part, (0, size - len(part))).clone()", None]),
    Answer(
        3,
        "by all_gather_into_tensor, row by row",
        """
        mine = torch.cat(shards)
        table = mine.new_empty(world * len(mine))
        dist.all_gather_into_tensor(table, mine)
        rows = [row.split([len(shard) for shard in shards]) for row in table.view(world, -1)]
        return [torch.cat(columns) for columns in zip(*rows, strict=True)]
        """,
    ),
    Answer(
        5,
        "long is what is as long as the part",
        """
        state = {}
        for number, values in state_dict["state"].items():
            shape = parameters[number].shape
            size, length = shard_size(shape.numel(), world), len(my_part(parameters[number].detach(), dist.get_rank(), world))
            state[number] = dict(values)
            for name, value in values.items():
                if isinstance(value, Tensor) and value.shape == (length,):
                    state[number][name] = joined(gather_shards([filled(value, size)], world)[0], shape)
        return {**state_dict, "state": state}
        """,
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
    Answer(
        10,
        "masters by to(), with a copy asked for",
        swap=(".float().requires_grad_()", ".to(torch.float32, copy=True).requires_grad_()"),
    ),
]

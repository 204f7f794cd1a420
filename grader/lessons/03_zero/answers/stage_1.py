"""Other answers to TODOs 4 and 5 of 03_zero."""

from grader.kit import Answer

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
            "        name: joined(gather_shards([filled(value, size)], world)[0], shape)\n"
            "        if is_long(value)\n        else value\n"
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
            "        name: joined(gather_shards([filled(value, size)], world)[0], shape)\n"
            "        if is_long(value)\n        else value\n"
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
            "        name: joined(gather_shards([filled(value, size)], world)[0], shape)\n"
            "        if is_long(value)\n        else value\n"
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
        4,
        "the weights get new memory after the step",
        swap=("p.copy_(joined(whole, p.shape))", "p.data = joined(whole, p.shape)"),
    ),
    Answer(
        5,
        "state of one number, or of none, is no state",
        swap=("if is_long(value)\n", "if is_long(value) and value.numel() > 1\n"),
    ),
    Answer(
        4,
        "an empty part gets no gradient",
        swap=("part.grad = shard[: len(part)]", "if part.numel():\n        part.grad = shard[: part.numel()]"),
        says="no state for its part of gain",
    ),
    Answer(
        5,
        "knows AdamW's names only",
        swap=("if is_long(value)\n", 'if name in ("exp_avg", "exp_avg_sq")\n'),
        says="the saved momentum_buffer of parameter 1",
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
        5,
        "by a loop over names",
        [
            WHOLE.replace("is_long(value)", "torch.is_tensor(value) and value.ndim"),
            OF_PARTS.replace("my_part(value, rank, world).clone()", "my_part(value, rank, world).detach().clone()"),
        ],
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
]

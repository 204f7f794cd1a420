"""Other answers to TODO 10 of hybrid_training."""

from grader.kit import Answer

WRONG = [
    # TODO 10
    Answer(10, "lists of parameters", ["return StateDictOptions()", None], says="lists of the parameters"),
    Answer(10, "DTensors in the file", [None, "full = parts"], says=""),
    Answer(
        10,
        "rank 0's stage alone",
        [
            None,
            """
            full = {name: part.full_tensor() for name, part in parts.items()}
            """,
        ],
        says="all weights",
    ),
    Answer(
        10,
        "torch's own full state dict: rank 0's stage alone",
        [
            None,
            """
            full = get_model_state_dict(own, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            """,
        ],
        says="all weights",
    ),
    Answer(10, "rank 0's parts", swap=("part.full_tensor()", "part.to_local()"), says="a part of it"),
    Answer(
        10,
        "put together by those alone who keep it",
        swap=(
            "weight = part.full_tensor()\n    if first:\n        own_weights[name] = weight.cpu()",
            "if first:\n        own_weights[name] = part.full_tensor().cpu()",
        ),
        says="",
    ),
    Answer(
        10,
        "every rank keeps its whole stage",
        swap=("    if first:\n        own_weights", "    if True:\n        own_weights"),
        says="assembles its stage",
    ),
    Answer(
        10,
        "every rank writes",
        swap=(
            "full = {}\n",
            'full = {}\npath.parent.mkdir(parents=True, exist_ok=True)\ntorch.save({"model": own_weights}, path)\n',
        ),
        says="all write",
    ),
    Answer(10, "gathered over the tensor axis", swap=('mesh.get_group("pp")', 'mesh.get_group("tp")'), says=""),
    Answer(10, "rank 0 alone gathers", swap=("if first:\n    stages", "if dist.get_rank() == 0:\n    stages"), says=""),
    Answer(10, "gathered, and thrown away", swap=("full |= weights", "weights"), says="all weights"),
    Answer(
        10,
        "a file of nothing where there is one stage",
        swap=("full = {}\nif first:", 'full = {}\nif first and mesh["pp"].size() > 1:'),
        says="all weights",
    ),
]


RIGHT = [
    Answer(
        10,
        "tensor by tensor, sent to rank 0",
        [
            None,
            """
            first = [mesh.get_local_rank(axis) for axis in ("dp", "shard", "tp")] == [0, 0, 0]
            mine = []
            for name, part in parts.items():
                weight = part.full_tensor().cpu()
                mine += [(name, weight)] if first else []
            found = [None] * mesh["pp"].size()
            if first:
                dist.all_gather_object(found, dict(mine) if mesh.get_local_rank("pp") else {}, group=mesh["pp"].get_group())
            full = {}
            if dist.get_rank() == 0:
                full = dict(mine)
                for stage in found:
                    full.update(stage)
            """,
        ],
    )
]

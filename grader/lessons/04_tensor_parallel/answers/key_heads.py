"""Other answers to TODO 14 of 04_tensor_parallel."""

from grader.kit import Answer

SUMMED = "F.linear(x_BTD, summed(layer.weight, self.group)) for layer in (self.k, self.v)"

WRONG = [
    Answer(
        14, "copies learn each for itself", swap=(SUMMED, "layer(x_BTD) for layer in (self.k, self.v)"), says="k.weight"
    ),
    Answer(
        14,
        "summed over all ranks",
        swap=("self.group, _ = dist.new_subgroups(copies)", "self.group = None"),
        says="the gradient of k.weight",
    ),
    Answer(
        14,
        "keys and values summed, and not their weights",
        swap=(SUMMED, "summed(layer(x_BTD), self.group) for layer in (self.k, self.v)"),
        says="gradient of the input",
    ),
    Answer(
        14,
        "every other rank has the same head",
        swap=(
            ("whole.k, rank // copies, parts", "whole.k, rank % parts, parts"),
            ("whole.v, rank // copies, parts", "whole.v, rank % parts, parts"),
        ),
        says="its heads'",
    ),
    Answer(
        14,
        "all heads of keys on each rank",
        swap=(
            ("ColumnLinear(whole.k, rank // copies, parts)", "ColumnLinear(whole.k, 0, 1)"),
            ("ColumnLinear(whole.v, rank // copies, parts)", "ColumnLinear(whole.v, 0, 1)"),
        ),
        says="k.weight of rank",
    ),
    Answer(
        14,
        "heads of queries take turns with the heads of keys",
        swap=("part.repeat_interleave(each, 1)", "part.repeat(1, each, 1, 1)"),
        says="the output on rank",
    ),
    Answer(
        14,
        "the mean of the copies' gradients",
        swap=(
            "self.group)) for layer in (self.k, self.v)",
            "self.group) / dist.get_world_size(self.group) + layer.weight.detach() *"
            " (1 - 1 / dist.get_world_size(self.group))) for layer in (self.k, self.v)",
        ),
        says="the gradient of",
    ),
    Answer(
        14,
        "fewer heads of keys than ranks are refused",
        swap=("(key_heads % world and world % key_heads)", "key_heads % world"),
        says="ValueError",
    ),
    Answer(14, "heads of keys are not looked at", swap=(" or (key_heads % world and world % key_heads)", "")),
]


RIGHT = [
    Answer(
        14,
        "hooks sum the gradients",
        swap=(
            (SUMMED, "layer(x_BTD) for layer in (self.k, self.v)"),
            (
                "self.group, _ = dist.new_subgroups(copies)",
                """self.group, _ = dist.new_subgroups(copies)
def total(gradient):
    gradient = gradient.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(gradient, group=self.group)
    return gradient
if copies > 1:
    for layer in (self.k, self.v):
        layer.weight.register_hook(total)""",
            ),
        ),
    ),
    Answer(
        14,
        "one message for both weights, and torch groups the heads",
        swap=(
            (
                "k, v = (F.linear(x_BTD, summed(layer.weight, self.group)) for layer in (self.k, self.v))",
                "k, v = F.linear(x_BTD, summed(torch.cat([self.k.weight, self.v.weight]), self.group)).chunk(2, -1)",
            ),
            ("v_BHTK, is_causal=True", "v_BHTK, is_causal=True, enable_gqa=True"),
            ("k_BHTK, v_BHTK = (part.repeat_interleave(each, 1) for part in (k_BHTK, v_BHTK))\n", ""),
        ),
    ),
]

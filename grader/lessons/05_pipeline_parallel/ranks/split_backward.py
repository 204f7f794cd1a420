"""On ranks, for the checks of 05_pipeline_parallel: split backward."""

import gc
import itertools
import weakref

import torch
from torch import nn

from utils.memory import Storages

from .common import Layer, gradients_of

# ---------------------------------------------------------------------------------------------------
# TODO 9: the backward pass in two parts


class Shift(nn.Module):
    """Two weights of the stream's shape, both added to it: autograd uses one tensor as the gradient of both."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Parameter(torch.zeros(4, 5)), nn.Parameter(torch.zeros(4, 5))

    def forward(self, x):
        return x + self.one + self.other


class Body(nn.Module):
    """A realistic stage: with or without an embedding, layers that report, a shift, a norm."""

    def __init__(self, first, frozen, tell):
        super().__init__()
        draw = torch.Generator().manual_seed(3)
        watch = Storages()
        self.embedding = nn.Embedding(7, 5) if first else None
        self.layers = nn.ModuleList(Layer(5, draw, torch.float32, watch) for _ in range(3))
        self.shift, self.norm = Shift(), nn.LayerNorm(5)
        self.scale = nn.Parameter(torch.randn(5, generator=draw))  # its own weight, in addition to its children's
        for number, layer in enumerate(self.layers):
            layer.tell = lambda kind, number=number: tell.append([kind, number])
        if frozen:
            for p in (*(self.embedding.parameters() if first else ()), *self.layers[1].parameters(), self.norm.bias):
                p.requires_grad_(False)

    def forward(self, x):
        h = x if self.embedding is None else self.embedding(x)
        for layer in self.layers:
            h = layer(h)
        return self.scale * self.norm(self.shift(h))


def parts_on_rank(code, rank, world):
    """Backward passes in two parts, of two micro-batches: W of both after I of both. For comparison, the whole ones."""
    return [parts_of(code, *case) for case in itertools.product((False, True), repeat=3)]


def parts_of(code, first, frozen, last):
    told = []
    torch.manual_seed(4)
    stage = Body(first, frozen, told)
    xs = [torch.randint(7, (4,)) if first else torch.randn(4, 5) for _ in range(2)]
    gradients = [None if last else torch.randn(4, 5) for _ in range(2)]
    right_inputs = []
    for x, gradient in zip(xs, gradients):
        x = x.clone() if first else x.clone().requires_grad_()
        output = stage(x)
        (output.square().sum() if last else output).backward(gradient)
        right_inputs.append(x.grad)
    right = {name: p.grad for name, p in stage.named_parameters()}
    stage.zero_grad()
    told.clear()
    passed = []
    for x in xs:
        one = code.Passed(stage, x.clone() if first else x.clone().requires_grad_())
        if last:
            one.output = one.output.square().sum()
        passed.append(one)
    inputs = [code.backward_input(one, gradient) for one, gradient in zip(passed, gradients)]
    early = [name for name, p in stage.named_parameters() if p.grad is not None]
    early += ["passed.input" for one in passed if one.input.grad is not None][:1]
    in_input = list(told)
    told.clear()
    alive = weakref.ref(passed[0])
    code.backward_weights(passed.pop(0))
    gc.collect()
    gone = alive() is None
    code.backward_weights(passed.pop(0))
    return {
        "first": first,
        "frozen": frozen,
        "last": last,
        "inputs": [x if isinstance(x, torch.Tensor) else None for x in inputs],
        "right inputs": right_inputs,
        "early": early,
        "in input": in_input,
        "in weights": list(told),
        "gradients": gradients_of(stage),
        "right": right,
        "gone": gone,
    }

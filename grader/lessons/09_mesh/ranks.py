"""What the checks of 09_mesh run on ranks, in the process of the student's code."""

import itertools
from functools import partial

import torch
import torch.distributed as dist

from grader.kit import as_evidence, mark, plain

AXES = ("pp", "dp", "shard", "cp", "tp")


# ---------------------------------------------------------------------------------------------------
# Boxes of ranks, as the checks have them


def mesh_of(sizes):
    """A mesh of the first ranks of the world, made by the check."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))


# ---------------------------------------------------------------------------------------------------
# TODO 1: bytes between nodes


def orders_on_rank(code, rank, world, asked):
    return [
        {
            "bytes": [plain(code.bytes_between_nodes(tuple(order), dict(sizes), sent, node)) for order in orders],
            "best": as_evidence(code.best_order(dict(sizes), sent, node)),
        }
        for sizes, sent, node, orders in asked
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 2: the mesh, and the neighbours


def meshes_on_rank(code, rank, world, wanted, given):
    meshes = []
    for sizes, sent, node in wanted:
        mesh = code.make_mesh(dict(sizes), sent, node)
        names, ranks = getattr(mesh, "mesh_dim_names", None), getattr(mesh, "mesh", None)
        meshes.append({"names": plain(list(names or ())), "ranks": plain(ranks), "kind": type(mesh).__name__})
    return {"meshes": meshes, "neighbours": [as_evidence(code.stage_neighbours(mesh_of(sizes))) for sizes in given]}


# ---------------------------------------------------------------------------------------------------
# TODO 3: samples and tokens


def samples_on_rank(code, rank, world, todo):
    found = []
    for case in todo:
        mesh = mesh_of(case["sizes"])
        sampler = code.make_sampler(range(case["samples"]), mesh, case["seed"])
        epochs = []
        for epoch in range(2):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
            epochs.append([plain(sample) for sample in sampler] if hasattr(sampler, "__iter__") else repr(sampler))
        x, y = words_of(case)
        found.append(
            {
                "place": as_evidence(code.data_place(mesh)),
                "epochs": epochs,
                "tokens": as_evidence(code.my_tokens(x, y, mesh)),
            }
        )
    return found


def words_of(case):
    """A batch (x, y). The words are int32, so that their places cannot have the dtype from them."""
    draw = torch.Generator().manual_seed(case["seed"])
    x, y = torch.randint(99, (2, *case["shape"]), generator=draw, dtype=torch.int32)
    return x, y


# ---------------------------------------------------------------------------------------------------
# TODO 4: each axis's gradients


def facts_of(code):
    return [code.Fact(cut, some, tied) for cut, some, tied in itertools.product((True, False), repeat=3)]


def due_on_rank(code, rank, world):
    return [[plain(code.due(axis, fact)) for axis in AXES] for fact in facts_of(code)]


def gradients_on_rank(code, rank, world, todo, words, drawn):
    """The gradients of a model, on each mesh; and then drawn ones."""
    torch.set_default_dtype(torch.float64)  # for the notebook's buffers of what comes from the stage before
    found, meshes = [], []
    for case, mine in zip(todo, words):
        mesh = mesh_of(case["sizes"])
        piece = code.Piece(weights_of(case["model"]), mesh, case["sequence_parallel"])
        ends = code.group_of_ends(mesh)
        meshes.append((mesh, ends))
        x, y = map(torch.tensor, mine)
        code.forward_backward(piece, x.flatten(), y.flatten(), count=case["batch"] // players_of(case) * case["length"])
        before = {name: p.grad.clone() for name, p in piece.parameters.items()}
        mark()
        code.sync_gradients(piece.parameters, piece.facts, mesh, ends)
        mark()
        dist.barrier()
        found.append(
            {
                "gradients": {name: as_evidence(p.grad) for name, p in piece.parameters.items()},
                "facts": {name: list(fact) for name, fact in piece.facts.items()},
                "kept": {name: plain(torch.equal(p.grad, before[name])) for name, p in piece.parameters.items()},
            }
        )
    return {"model": found, "drawn": [drawn_on_rank(code, *mesh, mine) for mesh, mine in zip(meshes, drawn)]}


def drawn_on_rank(code, mesh, ends, mine):
    parameters = {}
    for name, values in mine.items():
        gradient = torch.tensor(values).view(DRAWN).to(memory_format=torch.channels_last)
        parameters[name] = torch.nn.Parameter(torch.zeros_like(gradient))
        parameters[name].grad = gradient
    mark()
    code.sync_gradients(parameters, {name: code.Fact(*KINDS[name]) for name in mine}, mesh, ends)
    mark()
    dist.barrier()
    return {name: as_evidence(p.grad) for name, p in parameters.items()}


DRAWN = (1, 2, 1, 2)  # the shape of drawn gradients: they lie in channels_last


# Parameters that are cut, used on some tokens, tied.
KINDS = {
    "cut": (True, False, False),
    "used on some tokens": (False, True, False),
    "used on the same tokens": (False, False, False),
    "tied": (False, False, True),
    "tied and used on some tokens": (False, True, True),
}


def weights_of(model):
    """All weights of the model of the notebook, drawn here, in float64."""
    words, dim, hidden, layers, seed = model
    drawn = partial(torch.randn, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights = {"table": drawn(words, dim)}
    for layer in range(layers):
        for name, shape, scale in (("norm", (dim,), 1), ("up", (dim, hidden), dim), ("down", (hidden, dim), hidden)):
            weights[f"{layer}.{name}"] = drawn(*shape) / scale**0.5
        weights[f"{layer}.bias"] = drawn(dim)
    return weights


def players_of(case):
    return case["sizes"].get("dp", 1) * case["sizes"].get("shard", 1)


# ---------------------------------------------------------------------------------------------------
# TODO 5: the norm of the whole gradient


def norm_on_rank(code, rank, world, todo, pieces):
    found = []
    for case, mine in zip(todo, pieces):
        mesh = mesh_of(case["sizes"])
        parameters, facts = {}, {}
        for name, cut, some, tied, values in mine:
            parameters[name] = torch.nn.Parameter(torch.zeros(len(values), dtype=getattr(torch, case["dtype"])))
            parameters[name].grad = torch.tensor(values, dtype=getattr(torch, case["dtype"]))
            facts[name] = code.Fact(cut, some, tied)
        before = {name: p.grad.clone() for name, p in parameters.items()}
        mark()
        norm = code.gradient_norm(parameters, facts, mesh)
        mark()
        kept = all(p.grad is not None and torch.equal(p.grad, before[name]) for name, p in parameters.items())
        found.append({"norm": as_evidence(norm), "kept": kept})
    return found

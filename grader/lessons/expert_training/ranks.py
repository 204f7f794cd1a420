"""What the checks of expert_training run on ranks, in the process of the student's code."""

import torch

from grader.kit import (
    Peak,
    as_evidence,
    drawn_batch,
    elements,
    gradients,
    kind_of,
    mark,
    record_files,
    saved_file,
    saved_files,
)


def made_args(code, *flags):
    return code.parse_args(["--batch-size", "12", "--seq-len", "8", "--dim", "16", "--heads", "2", *flags])


def made_grid(rows, ep):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (rows, ep), mesh_dim_names=("data", "expert"))


def made_config(sizes):
    """The sizes of a model, under the names that it has in a checkpoint."""
    config = {"vocab_size": sizes["vocab"], "dim": sizes["dim"], "n_heads": 2, "n_layers": sizes["layers"]}
    return config | {"max_len": sizes["length"], "n_experts": sizes["experts"], "top_k": sizes["k"]}


SIZES = {"bias": 0.02, "embedding": 2.0, "router.weight": 0.1}  # of a parameter with this in its name


def fill(model, seed):
    """Other weights and biases, the same for the same names: in float64, where rounding hides nothing."""
    draw = torch.Generator().manual_seed(seed)
    model.double()
    for name, tensor in sorted([*model.named_parameters(), *model.named_buffers()]):
        # What differs from token to token is large, what is common to all small: so each expert is chosen by some.
        size = next((size for part, size in SIZES.items() if part in name), 0.3)
        with torch.no_grad():
            tensor.copy_(size * torch.randn(tensor.shape, generator=draw) + name.endswith("norm.weight"))
    return model


def own_experts(grid, n_experts):
    each = n_experts // grid["expert"].size()
    first = each * grid.get_local_rank("expert")
    return range(first, first + each)


# ---------------------------------------------------------------------------------------------------
# TODO 2: the router


def drawn_routing(seed, k, dtype):
    """h (N, D), weight (E, D), bias (E,); and gradients of gates and probabilities. Two experts have equal rows and
    biases, so that each token gives both one sum.
    """
    draw = torch.Generator().manual_seed(seed)
    h, weight = torch.randn(24, 8, generator=draw), torch.randn(5, 8, generator=draw)
    bias = 0.4 * torch.randn(5, generator=draw)
    weight[3], bias[3] = weight[1], bias[1]
    grads = torch.randn(24, k, generator=draw), torch.randn(24, 5, generator=draw)
    return h.to(getattr(torch, dtype)), weight, bias, grads


def route_on_rank(code, rank, world, cases):
    """Each case: a seed, k, and the dtype of the tokens."""
    seen = []
    for seed, k, dtype in cases:
        h, weight, bias, grads = drawn_routing(seed, k, dtype)
        router = code.Router(weight.shape[1], len(bias), k)
        with torch.no_grad():
            router.weight.copy_(weight)
            router.bias.copy_(bias)
        h.requires_grad_()
        made = router(h)
        found = {"made": kind_of(made), "bias": router.bias.clone()}
        if isinstance(made, (tuple, list)) and len(made) == 3 and all(isinstance(t, torch.Tensor) for t in made):
            gates, experts, probs = made
            found = {"gates": as_evidence(gates), "experts": as_evidence(experts), "probs": as_evidence(probs)}
            for name, tensor, grad in (("gates", gates, grads[0]), ("probabilities", probs, grads[1])):
                if tensor.requires_grad and tensor.shape == grad.shape:
                    where = torch.autograd.grad(tensor, (h, router.weight), grad, retain_graph=True, allow_unused=True)
                    found[f"gradient of {name}"] = as_evidence(where)
            found["bias"] = router.bias.clone()
        seen.append(found)
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 3: to the experts and back


def drawn_tokens(seed, sizes, tokens):
    """h (N, D), gates (N, K), experts (N, K), and the gradient of the output, (N, D); in float64. Some experts are -1,
    and none is an idle one.
    """
    draw = torch.Generator().manual_seed(seed)
    h, grad = torch.randn(2, tokens, sizes["dim"], generator=draw, dtype=torch.float64)
    gates = 0.1 + torch.rand(tokens, sizes["k"], generator=draw, dtype=torch.float64)
    order = torch.rand(tokens, sizes["experts"], generator=draw).argsort(dim=1)
    experts = order[:, : sizes["k"]]
    chosen = (torch.rand(experts.shape, generator=draw) < 0.85) & ~torch.isin(experts, torch.tensor(sizes["idle"]))
    return h, gates, experts.where(chosen, -1), grad


def mix_on_rank(code, rank, world, grid, sizes, tokens, seed):
    mesh = made_grid(*grid)
    layer = fill(code.make_model(**made_config(sizes)), 0).blocks[0].mlp
    layer.row = mesh.get_group("expert")
    layer.experts.keep(own_experts(mesh, sizes["experts"]))
    h, gates, experts, grad = drawn_tokens(seed, sizes, tokens)
    h.requires_grad_(), gates.requires_grad_()
    calls = []
    layer.experts.register_forward_hook(lambda *_: calls.append(rank))
    mark()
    out = layer.mix(h, gates, experts)
    mark()
    found = {"output": as_evidence(out), "calls": len(calls)}
    if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == grad.shape:
        out.backward(grad)
        found |= {"gradient of h": as_evidence(h.grad), "gradient of gates": as_evidence(gates.grad)}
        found["experts"] = {name: as_evidence(p.grad) for name, p in layer.experts.named_parameters()}
    return found


# ---------------------------------------------------------------------------------------------------
# TODO 4: balance


def balance_on_rank(code, rank, world, grid, sizes, balances, loss, weights, loads, own_loads, rate):
    """Of stored balancing losses, loads and biases, as a forward pass leaves them."""
    model, found = code.make_model(**made_config(sizes)), {"objectives": []}
    for weight in weights:
        numbers = [torch.tensor(number, requires_grad=True) for number in balances]
        for block, number in zip(model.blocks, numbers, strict=True):
            block.mlp.balance = number * 1.0
        start = torch.tensor(loss, requires_grad=True)
        given = start * 1.0
        made = code.objective(given, model, made_args(code, "--balance", str(weight)))
        whole = isinstance(made, torch.Tensor) and made.dim() == 0 and made.requires_grad
        grads = torch.autograd.grad(made, [start, *numbers], allow_unused=True) if whole else []
        found["objectives"].append(
            {
                "made": as_evidence(made) if whole else kind_of(made),
                "grads": [0.0 if grad is None else grad.item() for grad in grads],
                "loss": given.item(),
            }
        )
    row = made_grid(*grid).get_group("expert")
    for block, load in zip(model.blocks, own_loads, strict=True):
        block.mlp.row, block.mlp.load_E = row, torch.tensor(load)
    mark()
    found["load"] = as_evidence(code.everyones_load(model))
    mark()
    found["biases"] = []
    for load in loads:  # the second one moves what the first has left
        code.update_biases(model, torch.tensor(load), made_args(code, "--bias-rate", str(rate)))
        found["biases"].append([block.mlp.router.bias.clone() for block in model.blocks])
    return found


# ---------------------------------------------------------------------------------------------------
# TODO 5: capacity


def drawn_slots(seed, tokens, n_experts, k):
    """probs (N, E), float32, all different; and experts (N, K), which some biases have helped to choose."""
    draw = torch.Generator().manual_seed(seed)
    probs = (2 * torch.randn(tokens, n_experts, generator=draw)).softmax(dim=1)
    return probs, (probs + 0.2 * torch.arange(n_experts) / n_experts).topk(k, dim=1).indices


def drop_on_rank(code, rank, world, cases, seed):
    return [
        as_evidence(code.drop(*drawn_slots(seed + number, *sizes), capacity))
        for number, (sizes, capacity) in enumerate(cases)
    ]


# ---------------------------------------------------------------------------------------------------
# TODO 6: shards


def shard_on_rank(code, rank, world, grid, sizes, seed):
    mesh = made_grid(*grid)
    args = made_args(code, "--experts", str(sizes["experts"]), "--top-k", str(sizes["k"]))
    # In float32: FSDP has another way to divide where numbers have another dtype.
    model = code.parallelize(fill(code.make_model(**made_config(sizes)), 0).float(), mesh, args)
    model.train()
    model(*drawn_batch(seed, sizes)).backward()
    code.scale_gradients(model, mesh)
    block = model.blocks[0]
    units = {"a block": block, "a block's router": block.mlp.router, "a block's experts": block.mlp.experts}
    units |= {"each expert": expert for expert in block.mlp.experts.children()}
    return {
        "experts": elements(block.mlp.experts.parameters()),
        "held": elements(model.parameters()),
        "meshes": len({p.device_mesh for name, p in model.named_parameters() if ".experts." not in name}),
        "units": [name for name, unit in units.items() if hasattr(unit, "unshard")],
        "grads": gradients(model),
    }


def precision_on_rank(code, rank, world, sizes, seed):
    """The dtypes in which --dtype bfloat16 computes a block."""
    args, seen = made_args(code, "--dtype", "bfloat16", "--experts", str(sizes["experts"])), {}
    model = code.parallelize(code.make_model(**made_config(sizes)), made_grid(1, world), args)
    block = model.blocks[0]
    for name, part in (("attention", block.attention), ("router", block.mlp.router), ("experts", block.mlp.experts)):
        part.register_forward_pre_hook(
            lambda part, inputs, name=name: seen.update({name: str(next(part.parameters()).dtype)[6:]})
        )
    model.train()
    model(*drawn_batch(seed, sizes)).backward()
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 7: the norm


def sharded_by_check(model, mesh, n_experts):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    everyone = init_device_mesh("cpu", (mesh.size(),), mesh_dim_names=("all",))
    for block in model.blocks:
        block.mlp.experts.keep(own_experts(mesh, n_experts))
        fully_shard(block.mlp.experts, mesh=mesh["data"])
        fully_shard(block.mlp.router, mesh=everyone)
        fully_shard(block, mesh=everyone)
    return fully_shard(model, mesh=everyone)


def fill_unequally(model, seed):
    """As `fill`, and the more of it, the higher an expert's number: no two ranks of a row have experts of one norm."""
    for block in fill(model, seed).blocks:
        for number, expert in block.mlp.experts.named_children():
            for p in expert.parameters():
                p.data *= 1 + int(number)
    return model


def clip_on_rank(code, rank, world, grid, sizes, clips, seed):
    """The model's weights of that seed are the gradients."""
    from torch.distributed.tensor import DTensor

    mesh, seen = made_grid(*grid), []
    model = sharded_by_check(fill_unequally(code.make_model(**made_config(sizes)), seed), mesh, sizes["experts"])
    for clip in clips:
        for p in model.parameters():
            p.grad = DTensor.from_local(
                p.to_local().detach().clone(), p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
            )
        mark()
        norm = code.clip_gradients(model, mesh, made_args(code, "--clip", str(clip)))
        mark()
        seen.append({"norm": norm if isinstance(norm, (int, float)) else kind_of(norm), "grads": gradients(model)})
    return seen


# ---------------------------------------------------------------------------------------------------
# TODO 8: checkpoints


def save_on_rank(code, rank, world, grid, sizes):
    files, mesh = record_files(), made_grid(*grid)
    config = made_config(sizes)
    model = sharded_by_check(fill(code.make_model(**config), 0), mesh, sizes["experts"])
    with Peak() as peak:
        code.save_checkpoint(model, mesh, config, saved_file(), 3)
    return {"files": saved_files(files), "peak": peak.most}

"""Other answers to TODOs 7 and 9 of 07_expert_parallel."""

from grader.kit import Answer

WRONG = [
    Answer(
        7,
        "experts in the order of a set",
        swap=("for parameter in experts:", "for parameter in set(experts):"),
        says="the ranks call different shapes",
    ),
    Answer(
        7,
        "shared parameters in the order of a set",
        swap=("for parameter in shared:", "for parameter in set(shared):"),
        says="the ranks call different shapes",
    ),
    Answer(
        7,
        "new tensors as gradients",
        swap=(
            "    dist.all_reduce(parameter.grad, group=copies)\n    parameter.grad /= world",
            "    total = parameter.grad.clone()\n    dist.all_reduce(total, group=copies)\n"
            "    parameter.grad = total / world",
        ),
        says="in place",
    ),
    Answer(
        9,
        "the limit of the first batch for all",
        swap=(
            "    limit = capacity(len(h_ND), layer.k, layer.n_experts, layer.factor)\n",
            "    if not hasattr(layer, 'limit'):\n"
            "        layer.limit = capacity(len(h_ND), layer.k, layer.n_experts, layer.factor)\n"
            "    limit = layer.limit\n",
        ),
        says="with more tokens than a step has",
    ),
    Answer(
        9,
        "a view of the input",
        swap=("h_ND = x_BTD.flatten(0, 1)", "h_ND = x_BTD.view(-1, x_BTD.shape[-1])"),
        says="view size is not compatible",
    ),
    Answer(
        9,
        "drops in training only",
        swap=("if layer.factor is not None:", "if layer.factor is not None and layer.training:"),
        says="no slot is dropped in it",
    ),
    Answer(9, "0.0 taken for None", swap=("if layer.factor is not None:", "if layer.factor:"), says="factor of 0.0"),
    Answer(
        9,
        "counts in float32",
        swap=("minlength=layer.n_experts)\nif", "minlength=layer.n_experts).float()\nif"),
        says="load is in float32, not in int64",
    ),
    Answer(
        7,
        "sets that take turns",
        swap=(
            "list(range(first, first + spread)) for first in range(0, world, spread)",
            "list(range(first, world, world // spread)) for first in range(world // spread)",
        ),
    ),
    Answer(
        7,
        "the two groups swapped",
        swap=(
            "return set_groups[rank // spread], copy_groups[rank % spread]",
            "return copy_groups[rank % spread], set_groups[rank // spread]",
        ),
        says="has the wrong members",
    ),
    Answer(
        7,
        "each rank makes its own groups",
        [
            "first = rank - rank % spread\nreturn dist.new_group(list(range(first, first + spread))), dist.new_group(list(range(rank % spread, world, spread)))",
            None,
        ],
        says="call new_group for different groups",
    ),
    Answer(
        7,
        "one group of all",
        ["group = dist.new_group(list(range(world)))\nreturn group, group", None],
        says="has the wrong members",
    ),
    Answer(
        7,
        "another set's group",
        swap=("set_groups[rank // spread]", "set_groups[rank % len(set_groups)]"),
        says="group that exchanges tokens",
    ),
    Answer(
        7,
        "experts are averaged over all ranks",
        swap=("dist.all_reduce(parameter.grad, group=copies)", "dist.all_reduce(parameter.grad)"),
        says="an expert's parameter",
    ),
    Answer(
        7,
        "experts are divided by the copies",
        swap=(
            "group=copies)\n    parameter.grad /= world",
            "group=copies)\n    parameter.grad /= dist.get_world_size(copies)",
        ),
        says="divided by 2, not by 4",
    ),
    Answer(
        7,
        "experts are not divided",
        swap=("group=copies)\n    parameter.grad /= world", "group=copies)"),
        says="divided by 1, not by 4",
    ),
    Answer(
        7,
        "experts stay as they are",
        swap=("    dist.all_reduce(parameter.grad, group=copies)\n", ""),
        says="an expert's parameter",
    ),
    Answer(
        7,
        "experts are divided twice",
        swap=(
            "group=copies)\n    parameter.grad /= world",
            "group=copies)\n    parameter.grad /= world * dist.get_world_size(copies)",
        ),
        says="an expert's parameter",
    ),
    Answer(
        7,
        "shared ones over the copies",
        swap=("dist.all_reduce(parameter.grad)", "dist.all_reduce(parameter.grad, group=copies)"),
        says="a shared parameter",
    ),
    Answer(
        7,
        "shared ones are a sum",
        swap=("dist.all_reduce(parameter.grad)\n    parameter.grad /= world", "dist.all_reduce(parameter.grad)"),
        says="a shared parameter",
    ),
    Answer(
        7,
        "parameters for gradients",
        swap=(
            "dist.all_reduce(parameter.grad)\n    parameter.grad /= world",
            "dist.all_reduce(parameter.data)\n    parameter.data /= world",
        ),
    ),
    Answer(
        7,
        "gradients are gathered",
        [
            None,
            """
        for parameters, group, n in ((shared, None, world), (experts, copies, dist.get_world_size(copies))):
            for parameter in parameters:
                everything = [torch.empty_like(parameter.grad) for _ in range(n)]
                dist.all_gather(everything, parameter.grad, group=group)
                parameter.grad.copy_(torch.stack(everything).sum(dim=0) / world)""",
        ],
        says="all-reduces send",
    ),
    Answer(
        9,
        "each rank balances its own tokens",
        swap=(
            "balancing_loss(probs_NE, experts_NK, layer.world)",
            """(
    layer.n_experts
    * (torch.bincount(experts_NK.flatten(), minlength=layer.n_experts) / experts_NK.numel() * probs_NE.mean(dim=0)).sum())""",
        ),
    ),
    Answer(
        9,
        "balanced after the dropping",
        swap=(
            ("layer.balance = balancing_loss(probs_NE, experts_NK, layer.world)\n", ""),
            (
                "return parallel_mixture",
                "layer.balance = balancing_loss(probs_NE, experts_NK.clamp(min=0), layer.world)\nreturn parallel_mixture",
            ),
        ),
    ),
    Answer(9, "balanced as if alone", swap=("experts_NK, layer.world)", "experts_NK, 1)")),
    Answer(9, "nothing is dropped", swap=("if layer.factor is not None:", "if False:")),
    Answer(9, "dropped by all ranks' tokens", swap=("capacity(len(h_ND), ", "capacity(len(h_ND) * layer.world, ")),
    Answer(
        9,
        "the load after the dropping",
        swap=(
            ("layer.load = torch.bincount(experts_NK.flatten(), minlength=layer.n_experts)\n", ""),
            (
                "return parallel_mixture",
                "layer.load = torch.bincount(experts_NK[experts_NK >= 0], minlength=layer.n_experts)\nreturn parallel_mixture",
            ),
        ),
        says="load",
    ),
    Answer(
        9,
        "the load of this rank's experts",
        swap=("minlength=layer.n_experts)", "minlength=layer.n_experts)[: len(layer.experts)]"),
        says="load",
    ),
    Answer(9, "the residual twice", swap=(".view_as(x_BTD)", ".view_as(x_BTD) + x_BTD")),
    Answer(
        9,
        "a dropped token keeps its normed copy",
        swap=(".view_as(x_BTD)", ".view_as(x_BTD) + x_BTD * (experts_NK < 0).all(dim=1).view(*x_BTD.shape[:2], 1)"),
    ),
    Answer(
        9,
        "gates of what is left sum to 1",
        swap=(
            "return parallel_mixture",
            "gates_NK = gates_NK * (experts_NK >= 0)\ngates_NK = gates_NK / gates_NK.sum(dim=1, keepdim=True).clamp(min=1e-9)\nreturn parallel_mixture",
        ),
    ),
    Answer(9, "tokens of all ranks", swap=("layer.experts, layer.tokens)", "layer.experts, None)")),
    Answer(
        9,
        "a router without gradient from the gates",
        swap=("parallel_mixture(h_ND, gates_NK,", "parallel_mixture(h_ND, gates_NK.detach(),"),
        says="gradient",
    ),
    Answer(
        9,
        "all experts are kept",
        swap=(
            "block.mlp = ParallelMixture(block.mlp, world, tokens)",
            "whole = block.mlp\n    block.mlp = ParallelMixture(whole, world, tokens)\n    block.mlp.whole = whole",
        ),
        says="has memory for",
    ),
    Answer(
        9,
        "the loss as a number",
        swap=("return loss, loss + weight", "return loss.item(), loss.item() + weight"),
        says="two numbers, as tensors",
    ),
    Answer(
        9,
        "all experts are kept elsewhere",
        swap=(
            "for block in model.blocks:\n    block.mlp = Par",
            "world_of_experts = spread_experts.__dict__.setdefault('kept', [])\nfor block in model.blocks:\n    world_of_experts.append(block.mlp)\n    block.mlp = Par",
        ),
        says="has memory for",
    ),
    Answer(
        9,
        "the router is an expert's",
        swap=("block.mlp.experts.parameters()", "block.mlp.parameters()"),
        says="spread_experts",
    ),
    Answer(
        9,
        "experts are shared, too",
        swap=(
            "return [parameter for parameter in model.parameters() if parameter not in of_experts], experts",
            "return list(model.parameters()), experts",
        ),
        says="spread_experts",
    ),
    Answer(
        9,
        "only the first block",
        swap=("for block in model.blocks:\n    block.mlp = Par", "for block in model.blocks[:1]:\n    block.mlp = Par"),
    ),
    Answer(
        9,
        "the balancing loss is left out",
        swap=("return loss, loss + weight * sum(block.mlp.balance for block in model.blocks)", "return loss, loss"),
        says="the number to be minimized",
    ),
    Answer(
        9,
        "of the last block only",
        swap=("sum(block.mlp.balance for block in model.blocks)", "model.blocks[-1].mlp.balance"),
        says="the number to be minimized",
    ),
    Answer(
        9,
        "a mean over the blocks",
        swap=("weight * sum(", "weight / len(model.blocks) * sum("),
        says="the number to be minimized",
    ),
    Answer(
        9,
        "the loss with the balance in it",
        swap=("return loss, ", "return loss + weight * model.blocks[0].mlp.balance, "),
        says="loss",
    ),
    Answer(
        9,
        "the balance has no gradient",
        swap=("block.mlp.balance for block", "block.mlp.balance.detach() for block"),
        says="gradient",
    ),
    Answer(
        7,
        "the first groups serve forever",
        [
            """
            global groups
            if "groups" not in globals():
                sets = [list(range(first, first + spread)) for first in range(0, world, spread)]
                copies = [list(range(place, world, spread)) for place in range(spread)]
                set_groups = [dist.new_group(ranks) for ranks in sets]
                copy_groups = [dist.new_group(ranks) for ranks in copies]
                groups = set_groups[rank // spread], copy_groups[rank % spread]
            return groups""",
            None,
        ],
        says="a process group of an earlier call",
    ),
    Answer(
        7,
        "gradients of zeros are not reduced",
        swap=(
            "    dist.all_reduce(parameter.grad, group=copies)\n",
            "    if parameter.grad.any():\n        dist.all_reduce(parameter.grad, group=copies)\n",
        ),
    ),
    Answer(
        9,
        "the load of all calls",
        swap=("layer.load = torch.bincount(", "layer.load = vars(layer).get('load', 0) + torch.bincount("),
        says="is not the number of slots in the last call",
    ),
    Answer(
        9,
        "the capacity of the largest call",
        swap=(
            "limit = capacity(len(h_ND),",
            "layer.most = max(len(h_ND), vars(layer).get('most', 0))\n    limit = capacity(layer.most,",
        ),
    ),
    Answer(9, "tokens in float32", swap=("h_ND = x_BTD.flatten(0, 1)", "h_ND = x_BTD.flatten(0, 1).float()")),
    Answer(
        9,
        "frozen parameters are in neither list",
        swap=(
            "return [parameter for parameter in model.parameters() if parameter not in of_experts], experts",
            """shared = [p for p in model.parameters() if p.requires_grad and p not in of_experts]
return shared, experts""",
        ),
        says="token_embedding",
    ),
    Answer(
        7,
        "contiguous copies of shared gradients are summed",
        swap=(
            "dist.all_reduce(parameter.grad)\n    parameter.grad /= world",
            "whole = parameter.grad.contiguous()\n    dist.all_reduce(whole)\n    whole /= world",
        ),
        says="a shared parameter, in channels_last, on rank",
    ),
    Answer(
        7,
        "contiguous copies of experts' gradients are summed",
        swap=(
            "dist.all_reduce(parameter.grad, group=copies)\n    parameter.grad /= world",
            "whole = parameter.grad.contiguous()\n    dist.all_reduce(whole, group=copies)\n    whole /= world",
        ),
        says="an expert's parameter, in channels_last, on rank",
    ),
    Answer(
        7,
        "one message of views",
        [
            None,
            """
        for parameters, group in ((shared, None), (experts, copies)):
            flat = torch.cat([p.grad.view(-1) / world for p in parameters])
            dist.all_reduce(flat, group=group)
            for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
                p.grad.copy_(piece.view_as(p))""",
        ],
        says="view size is not compatible",
    ),
]


RIGHT = [
    Answer(
        7,
        "a mesh; gradients in buckets",
        [
            """
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (world // spread, spread), mesh_dim_names=("copies", "set"))
        return mesh["set"].get_group(), mesh["copies"].get_group()""",
            """
        for parameters, group in ((shared, None), (experts, copies)):
            flat = torch.cat([(p.grad / world).flatten() for p in parameters])
            dist.all_reduce(flat, group=group)
            for p, piece in zip(parameters, flat.split([p.numel() for p in parameters])):
                p.grad.copy_(piece.view_as(p))""",
        ],
    ),
    Answer(
        7,
        "all at once",
        [
            None,
            """
        works = [dist.all_reduce(p.grad, async_op=True) for p in shared]
        works += [dist.all_reduce(p.grad, group=copies, async_op=True) for p in experts]
        for work in works:
            work.wait()
        for p in (*shared, *experts):
            p.grad.div_(world)""",
        ],
    ),
    Answer(
        9,
        "lists by names",
        [
            None,
            """
        for block in model.blocks:
            block.mlp = ParallelMixture(block.mlp, world, tokens)
        named = dict(model.named_parameters())
        return [p for n, p in named.items() if ".experts." not in n], [p for n, p in named.items() if ".experts." in n]""",
            """
        loss = model(x, y)
        total = loss
        for block in model.blocks:
            total = total + weight * block.mlp.balance
        return loss, total""",
        ],
    ),
    Answer(
        9,
        "dropped always, by a limit that nobody reaches",
        [
            """
        B, T, D = x_BTD.shape
        h = x_BTD.reshape(B * T, D)
        gates, chosen, probs = route(h, layer.router, layer.k)
        layer.balance = balancing_loss(probs, chosen, layer.world)
        layer.load = torch.stack([(chosen == e).sum() for e in range(layer.n_experts)])
        limit = B * T if layer.factor is None else capacity(B * T, layer.k, layer.n_experts, layer.factor)
        kept = drop(chosen, layer.n_experts, limit)
        out = parallel_mixture(h, gates, kept, layer.experts, layer.tokens)
        return out.reshape(B, T, D)""",
            None,
            None,
        ],
    ),
    Answer(
        9,
        "only what is a Mixture is replaced",
        [
            None,
            """
            for block in model.blocks:
                if isinstance(block.mlp, Mixture):
                    block.mlp = ParallelMixture(block.mlp, world, tokens)
            shared, own = [], []
            for name, parameter in model.named_parameters():
                (own if ".experts." in name else shared).append(parameter)
            return shared, own
            """,
            None,
        ],
    ),
]

"""Other answers to TODOs 1 to 3 of 02_data_parallel."""

from grader.kit import Answer

from .common import replaced

STATE = """
for tensor in (*model.parameters(), *model.buffers()):
    dist.broadcast(tensor.detach(), src=0)
"""


NAIVE = """
world = dist.get_world_size()
for p in model.parameters():
    if p.requires_grad:
        if p.grad is None:
            p.grad = torch.zeros_like(p)
        dist.all_reduce(p.grad)
        p.grad /= world
"""


WRONG = [
    Answer(
        2,
        "contiguous copies are filled",
        swap=("detach()", "detach().contiguous()"),
        says="of a model in channels_last, out.weight on rank 1, a parameter, is not rank 0's",
    ),
    Answer(
        2,
        "contiguous copies of the buffers are filled",
        "for p in model.parameters():\n    dist.broadcast(p.detach(), src=0)\n"
        "for b in model.buffers():\n    dist.broadcast(b.contiguous(), src=0)",
        says="scale on rank 1, a buffer, which is not in the state_dict, is not rank 0's",
    ),
    Answer(
        3,
        "contiguous copies are averaged",
        swap=(
            "dist.all_reduce(parameter.grad)\n        parameter.grad /=",
            "whole = parameter.grad.contiguous()\n        dist.all_reduce(whole)\n        whole /=",
        ),
        says="of a model in channels_last: on rank 0, the gradient of out.weight is not one process's",
    ),
    Answer(
        3,
        "what is zeros on all ranks is dropped",
        swap=(
            "parameter.grad /= dist.get_world_size()",
            "parameter.grad = parameter.grad / dist.get_world_size() if parameter.grad.any() else None",
        ),
        says="where the gradients of all ranks are zeros: on rank 0, shift has no gradient afterwards",
    ),
    Answer(1, "the mean of means", "return torch.stack(gradients).mean(dim=0)", says="[3, 1]"),
    Answer(
        1,
        "adds into the first, if that is of one sample",
        """
            total = gradients[0] if samples[0] == 1 else gradients[0] * samples[0]
            for gradient, count in zip(gradients[1:], samples[1:]):
                total += gradient * count
            return total / sum(samples)""",
        says="gradients",
    ),
    Answer(
        1,
        "the sum",
        "return sum(g * n for g, n in zip(gradients, samples))",
        says="is 10 times the gradient of the mean over all samples",
    ),
    Answer(
        1,
        "divided by the ranks",
        "return sum(g * n for g, n in zip(gradients, samples)) / len(samples)",
        says="is 5 times the gradient",
    ),
    Answer(
        1,
        "the largest share decides",
        "return gradients[samples.index(max(samples))]",
        says="is not the gradient of the mean over all samples",
    ),
    Answer(
        1,
        "only ranks with samples count, but alike",
        "return torch.stack([g for g, n in zip(gradients, samples) if n]).mean(dim=0)",
        says="[3, 1]",
    ),
    Answer(1, "whole gradients to all", [None, "return 4 * parameters * (world - 1)"], says="step_bytes"),
    Answer(1, "one half of the ring", [None, "return 4 * parameters * (world - 1) / world"], says="step_bytes"),
    Answer(1, "numbers, not bytes", [None, "return 2 * parameters * (world - 1) / world"], says="step_bytes"),
    Answer(1, "the same for any number of ranks", [None, "return 8 * parameters"], says="step_bytes(1000, 1)"),
    Answer(
        1,
        "the bytes are not written",
        [None, 'raise NotImplementedError("TODO 1")'],
        says="a part of TODO 1 is still to be written",
    ),
    Answer(2, "nothing", "pass", says="on rank 1, a parameter, is not rank 0's"),
    Answer(
        2, "parameters only", "for p in model.parameters():\n    dist.broadcast(p.detach(), src=0)", says="a buffer"
    ),
    Answer(
        2,
        "what a state_dict has",
        "for tensor in model.state_dict().values():\n    dist.broadcast(tensor, src=0)",
        says="which is not in the state_dict",
    ),
    Answer(
        2,
        "what is trained",
        swap=("model.parameters()", "(p for p in model.parameters() if p.requires_grad)"),
        says="which is frozen",
    ),
    Answer(
        2,
        "floating-point numbers only",
        swap=("dist", "if tensor.is_floating_point():\n        dist"),
        says="num_batches_tracked",
    ),
    Answer(
        2,
        "a tied one twice",
        swap=("model.parameters", "dict(model.named_parameters(remove_duplicate=False)).values"),
        says="is each tensor broadcast once",
    ),
    Answer(
        2,
        "the mean of all ranks",
        swap=(
            "broadcast(tensor.detach(), src=0)",
            "all_reduce(tensor.detach())\n    tensor.detach().copy_(tensor.detach() / dist.get_world_size())",
        ),
        says="on rank 0, a parameter, is not rank 0's",
    ),
    Answer(
        2,
        "of the last rank",
        swap=("src=0", "src=dist.get_world_size() - 1"),
        says="on rank 0, a parameter, is not rank 0's",
    ),
    Answer(2, "each from itself", swap=("src=0", "src=dist.get_rank()"), says="different roots"),
    Answer(
        2,
        "only rank 0 calls",
        "if dist.get_rank() == 0:\n" + STATE.strip().replace("for", "    for").replace("    dist", "        dist"),
        says="rank 0",
    ),
    Answer(2, "nobody waits", swap=("src=0", "src=0, async_op=True"), says="never waits for its broadcast"),
    Answer(2, "copies are sent", swap=("detach()", "detach().clone()"), says="on rank 1, a parameter, is not rank 0's"),
    Answer(
        2,
        "new parameters",
        """
        for module in model.modules():
            for name, p in list(module._parameters.items()):
                if p is not None:
                    new = p.detach().clone()
                    dist.broadcast(new, src=0)
                    setattr(module, name, nn.Parameter(new, requires_grad=p.requires_grad))
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)""",
        says="replaces tensors",
    ),
    Answer(
        2,
        "the seed is set again",
        "torch.manual_seed(0)\nfor p in model.parameters():\n    nn.init.normal_(p)",
        says="on rank 0, a parameter, is not rank 0's",
    ),
    Answer(
        2,
        "the sum of rank 0's and of zeros",
        """
        with torch.no_grad():
            for tensor in (*model.buffers(), *model.parameters()):
                if dist.get_rank() > 0:
                    tensor.zero_()
                dist.all_reduce(tensor)""",
        says="An all-reduce moves more than a broadcast",
    ),
    Answer(
        3,
        "zeros are not sent",
        replaced(
            NAIVE,
            (
                "        if p.grad is None:",
                "        if p.grad is not None and not p.grad.any():\n            continue\n        if p.grad is None:",
            ),
        ),
        says="deadlock",
    ),
    Answer(3, "nothing", "pass", says="is not one process's"),
    Answer(
        3, "the sum", replaced(NAIVE, ("        p.grad /= world\n", "")), says="summed over the ranks, not averaged"
    ),
    Answer(
        3,
        "ReduceOp.AVG, and divided",
        swap=("(parameter.grad)", "(parameter.grad, op=dist.ReduceOp.AVG)"),
        says="divided once too often",
    ),
    Answer(
        3,
        "only what has a gradient",
        swap=(
            "requires_grad:\n        if parameter.grad is None:\n"
            "            parameter.grad = torch.zeros_like(parameter)",
            "grad is not None:",
        ),
    ),
    Answer(
        3,
        "zeros are given, and no average is taken",
        """
        for p in model.parameters():
            if p.requires_grad:
                grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(grad)
                grad /= dist.get_world_size()""",
        says="has no gradient afterwards",
    ),
    Answer(
        3,
        "divided by those that have one",
        """
        for p in model.parameters():
            if p.requires_grad:
                have = torch.tensor(float(p.grad is not None))
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(have)
                dist.all_reduce(p.grad)
                p.grad /= have.clamp(min=1)""",
        says="makes 18 calls",
    ),
    Answer(
        3,
        "the parameters are averaged",
        swap=("(parameter.grad)\n        parameter.grad", "(parameter.data)\n        parameter.data"),
        says="is not one process's",
    ),
    Answer(
        3,
        "a tied one twice",
        swap=("parameter in model.parameters()", "_, parameter in model.named_parameters(remove_duplicate=False)"),
        says="makes 10 calls",
    ),
    Answer(
        3,
        "a frozen one that has a gradient from before",
        swap=("requires_grad", "requires_grad or parameter.grad is not None"),
        says="makes 10 calls",
    ),
    Answer(
        3,
        "the frozen ones as well",
        swap=("parameter.requires_grad", "True"),
        says="a frozen parameter has another gradient than before",
    ),
    Answer(
        3,
        "all gathered, then averaged",
        swap=(
            "dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()",
            "held = [torch.empty_like(parameter.grad) for _ in range(dist.get_world_size())]\n"
            "        dist.all_gather(held, parameter.grad)\n        parameter.grad = torch.stack(held).mean(dim=0)",
        ),
        says="bytes through the ring",
    ),
    Answer(
        3,
        "reduced to rank 0, then broadcast",
        swap=(
            ("all_reduce(parameter.grad)", "reduce(parameter.grad, 0)"),
            (
                "parameter.grad /= dist.get_world_size()",
                "parameter.grad /= dist.get_world_size()\n        dist.broadcast(parameter.grad, 0)",
            ),
        ),
        says="makes 18 calls",
    ),
    Answer(
        3,
        "rank 0's gradients",
        replaced(NAIVE, ("dist.all_reduce(p.grad)\n        p.grad /= world", "dist.broadcast(p.grad, 0)")),
        says="is not one process's",
    ),
    Answer(3, "all of it twice", NAIVE + NAIVE.replace("world = dist.get_world_size()\n", ""), says="makes 18 calls"),
    Answer(3, "for two ranks", replaced(NAIVE, ("/= world", "/= 2")), says="1.5 times one process's"),
    Answer(
        3,
        "nobody waits",
        swap=("(parameter.grad)", "(parameter.grad, async_op=True)"),
        says="never waits for its all_reduce",
    ),
    Answer(
        3,
        "divided while it is under way",
        swap=(
            ("dist.all_reduce(parameter.grad)", "work = dist.all_reduce(parameter.grad, async_op=True)"),
            ("parameter.grad /= dist.get_world_size()", "parameter.grad /= dist.get_world_size()\n        work.wait()"),
        ),
        says="before that is over",
    ),
    Answer(
        3,
        "rank 1 in another order",
        swap=(
            "model.parameters()",
            "(list(model.parameters()) if dist.get_rank() else reversed(list(model.parameters())))",
        ),
    ),
    Answer(
        1,
        "for two ranks",
        "return (gradients[0] * samples[0] + gradients[-1] * samples[-1]) / sum(samples)",
        says="0.3333 times the gradient",
    ),
    Answer(
        2,
        "as objects",
        """
        objects = [model.state_dict(), dict(model.named_buffers())]
        dist.broadcast_object_list(objects, src=0)
        model.load_state_dict(objects[0])
        for name, buffer in model.named_buffers():
            buffer.copy_(objects[1][name])""",
        says="a pickled object is longer",
    ),
    Answer(
        2,
        "all gathered, then rank 0's",
        swap=(
            "dist.broadcast(tensor.detach(), src=0)",
            "held = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]\n"
            "    dist.all_gather(held, tensor.detach())\n    tensor.detach().copy_(held[0])",
        ),
        says="is each tensor broadcast once",
    ),
    Answer(
        3,
        "for three ranks",
        replaced(NAIVE, ("/= world", "/= 3")),
        says="on 2 ranks, in float64, of a model in channels_last: on rank 0, the gradient of",
    ),
    Answer(
        3,
        "zeros in float32",
        swap=("zeros_like(parameter)", "zeros(parameter.shape)"),
        says="attempting to assign a gradient",
    ),
    Answer(
        3,
        "reduced in bfloat16",
        swap=(
            "dist.all_reduce(parameter.grad)",
            "half = parameter.grad.bfloat16()\n        dist.all_reduce(half)\n"
            "        parameter.grad = half.to(parameter.dtype)",
        ),
        says="one process's gradient of all samples",
    ),
    Answer(
        3,
        "functional, and never waited for",
        "import torch.distributed._functional_collectives as funcol\nfor p in model.parameters():\n    if p.requires_grad:\n        grad = torch.zeros_like(p) if p.grad is None else p.grad\n        out = torch.ops._c10d_functional.all_reduce(grad, 'sum', dist.group.WORLD.group_name)\n        p.grad = out / dist.get_world_size()",
        says="never waits for its all_reduce",
    ),
    Answer(1, "a rank without samples counts in the mean", swap=("/ sum", "/ max(samples) / len")),
    Answer(2, "the last rank's state", swap=("src=0", "src=dist.get_world_size() - 1")),
    Answer(
        3,
        "sums in bfloat16",
        swap=(
            "dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size()",
            "short = parameter.grad.bfloat16()\n        dist.all_reduce(short)\n"
            "        parameter.grad.copy_(short.to(parameter.dtype) / dist.get_world_size())",
        ),
    ),
    Answer(
        1,
        "what it is given is scaled",
        """
        total = torch.zeros_like(gradients[0])
        for gradient, count in zip(gradients, samples, strict=True):
            total += gradient.mul_(count)
        return total / sum(samples)
        """,
        says="which it is given, is written into",
    ),
    Answer(1, "whole pieces only", [None, "return 2 * (world - 1) * (4 * parameters // world)"], says="(1000, 3)"),
    Answer(
        1,
        "vectors only",
        """
            counts = torch.tensor(samples, dtype=gradients[0].dtype)
            return counts @ torch.stack(gradients) / counts.sum()
            """,
    ),
    Answer(
        1,
        "weights in float32",
        """
            weights = torch.tensor(samples, dtype=torch.float32) / sum(samples)
            return sum(weight * gradient for weight, gradient in zip(weights, gradients))
            """,
        says="is not the gradient of the mean over all samples",
    ),
    Answer(
        1,
        "summed in float64, and left there",
        swap=("[gradient * count for", "[gradient.double() * count for"),
        says="is in float64, not in",
    ),
    Answer(
        2,
        "equal numbers are taken for a tied tensor",
        """
        sent = []
        for tensor in (*model.parameters(), *model.buffers()):
            if not any(tensor.shape == other.shape and torch.equal(tensor, other) for other in sent):
                dist.broadcast(tensor.detach(), src=0)
            sent.append(tensor.detach().clone())""",
        says="different shapes",
    ),
    Answer(
        2,
        "the model and its children",
        """
        for module in (model, *model.children()):
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor is not model.head.weight or module is model.head:
                    dist.broadcast(tensor.detach(), src=0)""",
        says="extra.0.0.weight",
    ),
    Answer(
        2,
        "the children's, and not the model's own",
        """
        for module in model.children():
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor is not model.head.weight or module is model.head:
                    dist.broadcast(tensor.detach(), src=0)""",
        says="shift on rank 1",
    ),
    Answer(
        2,
        "leaves all parameters trainable",
        """
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            dist.broadcast(parameter, src=0)
            parameter.requires_grad_(True)
        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)
        """,
        says="trainable on rank 0",
    ),
    Answer(
        3,
        "in one float32 vector",
        """
        trained = [p for p in model.parameters() if p.requires_grad]
        lengths = [p.numel() for p in trained]
        vector = torch.zeros(sum(lengths))
        for p, piece in zip(trained, vector.split(lengths)):
            if p.grad is not None:
                piece.copy_(p.grad.flatten())
        dist.all_reduce(vector)
        vector /= dist.get_world_size()
        for p, piece in zip(trained, vector.split(lengths)):
            p.grad = piece.view_as(p).to(p.dtype)
        """,
        says="on 2 ranks, in float64, of a model in channels_last: on rank 0, the gradient of",
    ),
]


RIGHT = [
    Answer(3, "ReduceOp.AVG", replaced(NAIVE, ("(p.grad)\n        p.grad /= world", "(p.grad, op=dist.ReduceOp.AVG)"))),
    Answer(
        1,
        "one product",
        [
            "return torch.tensordot(torch.tensor(samples, dtype=gradients[0].dtype), torch.stack(gradients), 1) / sum(samples)",
            "return 2 * (4 * parameters) * (1 - 1 / world)",
        ],
    ),
    Answer(
        1,
        "summed in float64, and returned as given",
        swap=(
            ("[gradient * count for", "[gradient.double() * count for"),
            ("/ sum(samples)", "/ sum(samples)).to(gradients[0].dtype)"),
            ("return torch.stack", "return (torch.stack"),
        ),
    ),
    Answer(
        2,
        "module by module, each tensor once",
        """
        sent = set()
        for module in model.modules():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor not in sent:
                    sent.add(tensor)
                    dist.broadcast(tensor.detach(), src=0)""",
    ),
    Answer(
        2,
        "all under way at once",
        "works = [dist.broadcast(t.detach(), 0, async_op=True) for t in (*model.parameters(), *model.buffers())]\nfor"
        " work in works:\n    work.wait()",
    ),
    Answer(
        2,
        "a vector for each type of numbers",
        """
        by_type = {}
        for tensor in (*model.parameters(), *model.buffers()):
            by_type.setdefault(tensor.dtype, []).append(tensor.detach())
        for tensors in by_type.values():
            vector = torch.cat([tensor.flatten() for tensor in tensors])
            dist.broadcast(vector, src=0)
            for tensor, piece in zip(tensors, vector.split([tensor.numel() for tensor in tensors])):
                tensor.copy_(piece.view_as(tensor))""",
    ),
    Answer(
        3,
        "in one vector",
        """
        trained = [p for p in model.parameters() if p.requires_grad]
        vector = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in trained])
        dist.all_reduce(vector)
        vector /= dist.get_world_size()
        for p, piece in zip(trained, vector.split([p.numel() for p in trained])):
            p.grad = piece.view_as(p)""",
    ),
    Answer(
        3,
        "all under way at once, divided before",
        """
        works = []
        for p in reversed(list(model.parameters())):
            if p.requires_grad:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad / dist.get_world_size()
                works.append(dist.all_reduce(p.grad, async_op=True))
        for work in works:
            work.wait()""",
    ),
    Answer(
        3,
        "scattered and gathered",
        """
        trained, world = [p for p in model.parameters() if p.requires_grad], dist.get_world_size()
        vector = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in trained])
        pieces = list(nn.functional.pad(vector, (0, -len(vector) % world)).chunk(world))
        mine = torch.empty_like(pieces[0])
        dist.reduce_scatter(mine, pieces)
        dist.all_gather(pieces, mine / world)
        for p, piece in zip(trained, torch.cat(pieces)[: len(vector)].split([p.numel() for p in trained])):
            p.grad = piece.view_as(p).clone()""",
    ),
    Answer(
        1,
        "step by step",
        [
            "total = torch.zeros_like(gradients[0])\nfor g, n in zip(gradients, samples):\n    total += n * g\nreturn total.div(sum(samples))",
            "share = 4 * parameters / world\nreturn (world - 1) * share + (world - 1) * share",
        ],
    ),
    Answer(
        2,
        "written through .data, backwards",
        "for tensor in reversed([*model.parameters(), *model.buffers()]):\n    dist.broadcast(tensor.data, 0)",
    ),
    Answer(
        2,
        "sent along a chain",
        """
        rank, world = dist.get_rank(), dist.get_world_size()
        for tensor in (*model.parameters(), *model.buffers()):
            dense = tensor.detach().contiguous()
            if rank > 0:
                dist.recv(dense, rank - 1)
                tensor.detach().copy_(dense)
            if rank + 1 < world:
                dist.send(dense, rank + 1)""",
    ),
    Answer(
        3,
        "by a comprehension of works",
        "trained = [p for p in model.parameters() if p.requires_grad]\nfor p in trained:\n    if p.grad is None:\n        p.grad = p.detach() * 0\nworks = [dist.all_reduce(p.grad, dist.ReduceOp.SUM, async_op=True) for p in trained]\n[work.wait() for work in works]\ntorch._foreach_div_([p.grad for p in trained], dist.get_world_size())",
    ),
    Answer(
        3, "a factor of torch's own", replaced(NAIVE, ("p.grad /= world", "torch.mul(p.grad, 1 / world, out=p.grad)"))
    ),
    Answer(
        2,
        "a functional broadcast",
        "import torch.distributed._functional_collectives as funcol\nfor tensor in (*model.parameters(), *model.buffers()):\n    tensor.detach().copy_(funcol.wait_tensor(funcol.broadcast(tensor.detach(), 0, dist.group.WORLD)))",
    ),
    Answer(
        3,
        "functional",
        "import torch.distributed._functional_collectives as funcol\nfor p in model.parameters():\n    if p.requires_grad:\n        grad = torch.zeros_like(p) if p.grad is None else p.grad\n        p.grad = funcol.wait_tensor(funcol.all_reduce(grad, 'sum', dist.group.WORLD)) / dist.get_world_size()",
    ),
    Answer(
        3,
        "what follows a future",
        "world, futures = dist.get_world_size(), []\nfor p in model.parameters():\n    if p.requires_grad:\n        if p.grad is None:\n            p.grad = torch.zeros_like(p)\n        work = dist.all_reduce(p.grad, async_op=True)\n        futures.append(work.get_future().then(lambda done: done.value()[0].div_(world)))\ntorch.futures.wait_all(futures)",
    ),
    Answer(
        1,
        "shares of the samples as weights",
        """
        total = torch.zeros_like(gradients[0])
        for gradient, count in zip(gradients, samples, strict=True):
            total = total + gradient * (count / sum(samples))
        return total
        """,
    ),
    Answer(
        2,
        "one long vector for each dtype",
        """
        tensors = [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]
        for dtype in sorted({tensor.dtype for tensor in tensors}, key=str):
            same = [tensor for tensor in tensors if tensor.dtype == dtype]
            vector = torch.cat([tensor.flatten() for tensor in same])
            dist.broadcast(vector, src=0)
            for tensor, piece in zip(same, vector.split([tensor.numel() for tensor in same]), strict=True):
                tensor.copy_(piece.view_as(tensor))
        """,
    ),
    Answer(
        3,
        "all gradients in one vector",
        """
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not trained:
            return
        parts = [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in trained]
        vector = torch.cat(parts)
        dist.all_reduce(vector)
        vector /= dist.get_world_size()
        for parameter, piece in zip(trained, vector.split([p.numel() for p in trained]), strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        """,
    ),
]

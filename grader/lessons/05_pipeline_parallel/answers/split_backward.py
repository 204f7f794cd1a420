"""Other answers to TODOs 9 and 10 of 05_pipeline_parallel."""

from grader.kit import Answer

WRONG = [
    Answer(
        9,
        "added in place to what autograd has given",
        swap=(
            "weight.grad = new if weight.grad is None else weight.grad + new",
            "weight.grad = new if weight.grad is None else weight.grad.add_(new)",
        ),
        says="did you write into it",
    ),
    Answer(
        9,
        "I is the whole backward pass",
        ["passed.output.backward(gradient)\nreturn passed.input.grad", "pass"],
        says="it sets the grad of",
    ),
    Answer(
        9,
        "W goes through the whole stage again",
        [
            """
        passed.gradient = gradient
        if not passed.input.requires_grad:
            return None
        return torch.autograd.grad(passed.output, passed.input, gradient, retain_graph=True)[0]""",
            """
        layers = {id(layer): layer for layer, _ in passed.layers}
        weights = [w for layer in layers.values() for w in layer.parameters(recurse=False) if w.requires_grad]
        for w, g in zip(weights, torch.autograd.grad(passed.output, weights, passed.gradient)):
            w.grad = g if w.grad is None else w.grad + g""",
        ],
        says="between the layers again",
    ),
    Answer(
        9,
        "I computes the weights' gradients, and W adds them",
        [
            """
        layers = {id(layer): layer for layer, _ in passed.layers}
        passed.weights = [w for layer in layers.values() for w in layer.parameters(recurse=False) if w.requires_grad]
        inputs = [passed.input] if passed.input.requires_grad else []
        found = torch.autograd.grad(passed.output, inputs + passed.weights, gradient)
        passed.found = found[len(inputs):]
        return found[0] if inputs else None""",
            """
        for w, g in zip(passed.weights, passed.found):
            w.grad = g if w.grad is None else w.grad + g""",
        ],
        says="nothing is left for later",
    ),
    Answer(
        9,
        "the last micro-batch counts",
        swap=("new if weight.grad is None else weight.grad + new", "new"),
        says="one process's",
    ),
    Answer(9, "no weights' gradients", [None, "pass"], says="no backward pass reached it"),
    Answer(
        9,
        "the first layer is left out",
        swap=("zip(passed.layers, passed.gradients, strict=True)", "list(zip(passed.layers, passed.gradients))[1:]"),
        says="no backward pass reached it",
    ),
    Answer(9, "frozen weights are asked for", swap=("if weight.requires_grad]", "]"), says="stopped with"),
    Answer(9, "a frozen beginning is asked for", swap=(" if output.requires_grad]", "]"), says="stopped with"),
    Answer(
        9,
        "the first stage's input is asked for",
        swap=("[passed.input] if passed.input.requires_grad else []", "[passed.input]"),
        says="stopped with",
    ),
    Answer(
        9,
        "the input's gradient is that of the output",
        swap=("return found[0] if inputs else None", "return found[-1] if inputs else None"),
        says="the gradient of the input",
    ),
    Answer(
        9,
        "what has passed is kept",
        swap=(
            "for (layer, output), gradient in zip(",
            "globals().setdefault('kept', []).append(passed)\nfor (layer, output), gradient in zip(",
        ),
        says="still refers to",
    ),
    Answer(9, "its children's weights once more", swap=("layer.parameters(recurse=False)", "layer.parameters()")),
    Answer(
        9,
        "the input's grad is set, too",
        swap=(
            "return found[0] if inputs else None",
            "if inputs:\n    passed.input.grad = found[0]\nreturn found[0] if inputs else None",
        ),
        says="it sets the grad of passed.input",
    ),
    Answer(
        9,
        "a frozen layer ends it",
        swap=("if not weights:\n        continue", "if not weights:\n        break"),
        says="no backward pass reached it",
    ),
    Answer(
        9,
        "the layers of the stage that passed first",
        swap=(
            "for (layer, output), gradient in zip(passed.layers, passed.gradients, strict=True):",
            "gradients = backward_weights.__dict__.setdefault('first', passed.gradients)\nfor (layer, output), gradient in zip(passed.layers, gradients):",
        ),
    ),
    Answer(
        9,
        "gradients between the layers are scaled in place",
        swap=(
            "return found[0] if inputs else None",
            "if gradient is not None:\n    gradient.mul_(1.5)\nreturn found[0] if inputs else None",
        ),
        says="which it is given, is written into",
    ),
    Answer(10, "1F1B with I and W side by side", swap=(" and action.microbatch >= rank", ""), says="takes"),
    Answer(
        10,
        "all W at the end",
        swap=(" and action.microbatch >= rank", " and action.microbatch >= m"),
        says="passes are alive at once",
    ),
    Answer(
        10,
        "W waits too long",
        swap=("action.microbatch >= rank", "action.microbatch > rank"),
        says="passes are alive at once",
    ),
    Answer(
        10, "the last W are left out", swap=('mine + [Action("W", j) for j in weights]', "mine"), says="never does W"
    ),
    Answer(10, "the newest W first", swap=("weights.popleft()", "weights.pop()"), says="zero_bubble"),
    Answer(10, "B stays B", ["return one_f_one_b(world, m)"], says="never does I0"),
    Answer(10, "the empty schedule", ["return [[] for _ in range(world)]"], says="does nothing"),
    Answer(
        9,
        "the layers' gradients are kept on the layers",
        swap=(
            (
                "passed.gradients = found[len(inputs) :]",
                "for (layer, _), g in zip(passed.layers, found[len(inputs) :]):\n    layer.kept = g",
            ),
            (
                "for (layer, output), gradient in zip(passed.layers, passed.gradients, strict=True):",
                "for layer, output in passed.layers:\n    gradient = layer.kept",
            ),
        ),
        says="one process's",
    ),
    Answer(
        9,
        "the first weight of each layer",
        swap=(
            "for weight, new in zip(weights, found, strict=True):",
            "for weight, new in list(zip(weights, found))[:1]:",
        ),
        says="no backward pass reached it",
    ),
    Answer(
        9,
        "the loss's gradient is one, always",
        swap=(
            "inputs + outputs, gradient, retain_graph=True)",
            "inputs + outputs, torch.ones_like(passed.output), retain_graph=True)",
        ),
        says="is not what it should be",
    ),
    Answer(
        10,
        "each W one later than it could be",
        swap=("action.microbatch >= rank", "action.microbatch >= min(m - 1, rank + 1)"),
        says="passes are alive at once",
    ),
    Answer(
        10,
        "W before its I",
        swap=(
            'mine.append(action if action.kind == "F" else action._replace(kind="I"))\n        if action.kind == "B" and action.microbatch >= rank:\n            mine.append(Action("W", weights.popleft()))',
            'if action.kind == "B" and action.microbatch >= rank:\n            mine.append(Action("W", weights.popleft()))\n        mine.append(action if action.kind == "F" else action._replace(kind="I"))',
        ),
        says="",
    ),
    Answer(
        10,
        "rank 0 postpones most",
        swap=("action.microbatch >= rank", "action.microbatch >= world - 1 - rank"),
        says="",
    ),
    Answer(
        10,
        "in GPipe's order",
        swap=("enumerate(one_f_one_b(world, m))", "enumerate(gpipe(world, m))"),
        says="passes are alive at once",
    ),
    Answer(
        10,
        "the newest W after each I",
        swap=(
            'mine.append(Action("W", weights.popleft()))',
            'mine.append(Action("W", action.microbatch)); weights.remove(action.microbatch)',
        ),
        says="while an older W is left",
    ),
]


RIGHT = [
    Answer(
        9,
        "added in place to a copy",
        swap=(
            "weight.grad = new if weight.grad is None else weight.grad + new",
            "weight.grad = new.clone() if weight.grad is None else weight.grad.add_(new)",
        ),
    ),
    Answer(
        9,
        "W layer by layer from behind, by autograd.backward",
        [
            None,
            """
        for (layer, output), gradient in reversed(list(zip(passed.layers, passed.gradients))):
            weights = [w for w in layer.parameters(recurse=False) if w.requires_grad]
            if weights:
                torch.autograd.backward(output, gradient, inputs=weights, retain_graph=True)""",
        ],
    ),
    Answer(
        10,
        "the schedule by counting who is alive",
        [
            """
        schedule = []
        for rank in range(world):
            mine, f, i, w = [], 0, 0, 0
            while w < m:
                if f < m and f - i < min(m, world - rank):
                    mine.append(Action("F", f))
                    f += 1
                elif i < m:
                    mine.append(Action("I", i))
                    i += 1
                    if i > rank:
                        mine.append(Action("W", w))
                        w += 1
                else:
                    mine.append(Action("W", w))
                    w += 1
            schedule.append(mine)
        return schedule"""
        ],
    ),
    Answer(
        10,
        "written down anew, without one_f_one_b",
        """
        def of_rank(rank):
            early = min(m, world - 1 - rank)
            late = [Action("F", j) for j in range(early)]
            w = 0
            for j in range(m):
                if early + j < m:
                    late.append(Action("F", early + j))
                late.append(Action("I", j))
                if j >= rank:
                    late.append(Action("W", w))
                    w += 1
            return late + [Action("W", j) for j in range(w, m)]
        return [of_rank(rank) for rank in range(world)]""",
    ),
    Answer(
        9,
        "outputs' gradients caught by hooks",
        [
            """
        passed.found = {}
        hooks = []
        for number, (layer, output) in enumerate(passed.layers):
            if output.requires_grad:
                hooks.append(output.register_hook(lambda g, number=number: passed.found.__setitem__(number, g)))
        wanted = [passed.input] if passed.input.requires_grad else [output for _, output in passed.layers if output.requires_grad][:1]
        got = torch.autograd.grad(passed.output, wanted, gradient, retain_graph=True)
        for hook in hooks:
            hook.remove()
        return got[0] if passed.input.requires_grad else None""",
            """
        for number, gradient in passed.found.items():
            layer, output = passed.layers[number]
            own = [w for w in layer.parameters(recurse=False) if w.requires_grad]
            if own:
                for w, g in zip(own, torch.autograd.grad(output, own, gradient, retain_graph=True)):
                    w.grad = g.clone() if w.grad is None else w.grad + g""",
        ],
    ),
    Answer(
        10,
        "by inserting from the end",
        """
        schedule = []
        for rank, actions in enumerate(one_f_one_b(world, m)):
            row, w = [], 0
            for kind, j, _ in actions:
                row += [Action("F", j)] if kind == "F" else [Action("I", j)]
                if kind != "F" and j >= rank:
                    row.append(Action(kind="W", microbatch=w))
                    w += 1
            row.extend(Action("W", k) for k in range(w, m))
            schedule.append(row)
        return schedule
        """,
    ),
]

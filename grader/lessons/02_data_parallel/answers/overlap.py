"""Other answers to TODO 4 of 02_data_parallel."""

from grader.kit import Answer

from .common import replaced

ENDS = "end = 0.0\nfor start, duration in zip(ready, seconds):\n    end = max(start, end) + duration\nreturn end"


HOOKS = """
started = []

def start(p):
    started.append((dist.all_reduce(p.grad, async_op=True), p))

def finish():
    for work, p in started:
        work.wait()
        p.grad /= dist.get_world_size()
    started.clear()

for p in model.parameters():
    if p.requires_grad:
        p.register_post_accumulate_grad_hook(start)
return finish
"""


WRONG = [
    Answer(
        4,
        "contiguous copies are averaged",
        swap=(
            ("(dist.all_reduce(parameter.grad, async_op=True), parameter)", "(dist.all_reduce(g, async_op=True), g)"),
            ("    started.append", "    g = parameter.grad.contiguous()\n    started.append"),
            ("for work, parameter in started", "for work, g in started"),
            ("        parameter.grad /=", "        g /="),
        ),
        says="of a model in channels_last: on rank 0, the gradient of out.weight is not one process's",
    ),
    Answer(
        4,
        "what is zeros on all ranks is dropped",
        swap=(
            "parameter.grad /= dist.get_world_size()",
            "parameter.grad = parameter.grad / dist.get_world_size() if parameter.grad.any() else None",
        ),
        says="where the gradients of all ranks are zeros: on rank 0, shift has no gradient afterwards",
    ),
    Answer(
        4,
        "zeros are not sent",
        swap=("    started.append((dist", "    if parameter.grad.any():\n        started.append((dist"),
        says="deadlock",
    ),
    Answer(
        4,
        "predicted: one after the other, from the end of the last",
        "return ready[-1] + sum(seconds)",
        says="communication_ends",
    ),
    Answer(
        4,
        "predicted: all at the same time",
        "return max(r + s for r, s in zip(ready, seconds))",
        says="communication_ends",
    ),
    Answer(
        4, "after the backward pass", [None, "return lambda: average_gradients(model)"], says="does not begin before"
    ),
    Answer(
        4,
        "hooks that wait",
        [
            None,
            """
        def average(p):
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()

        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(average)
        return lambda: None""",
        ],
        says="waits inside the backward pass",
    ),
    Answer(
        4,
        "a tensor hook, which sees one pass only",
        [
            None,
            """
        started = []

        def start(grad, p):
            grad = grad.clone()
            started.append((dist.all_reduce(grad, async_op=True), p, grad))

        def finish():
            for work, p, grad in started:
                work.wait()
                p.grad = grad / dist.get_world_size()
            started.clear()

        for p in model.parameters():
            if p.requires_grad:
                p.register_hook(lambda grad, p=p: start(grad, p))
        return finish""",
        ],
        says="on top of the first one's gradients",
    ),
    Answer(
        4,
        "a tensor hook, and the gradient that it does not see yet",
        swap=(
            "register_post_accumulate_grad_hook(start)",
            "register_hook(lambda grad, parameter=parameter: start(parameter))",
        ),
    ),
    Answer(4, "nobody waits", swap=("        work.wait()\n", ""), says="never waits for its all_reduce"),
    Answer(
        4,
        "only the last one is waited for",
        swap=(
            ("def finish() -> None:", "def finish() -> None:\n    started[-1][0].wait()"),
            ("        work.wait()\n", ""),
        ),
        says="never waits",
    ),
    Answer(4, "what was waited for is kept", swap=("    started.clear()\n", ""), says="in a second pass"),
    Answer(4, "the sum", swap=("        parameter.grad /= dist.get_world_size()\n", ""), says="summed over the ranks"),
    Answer(
        4,
        "divided while it is under way",
        [
            None,
            replaced(
                HOOKS,
                (
                    "        work.wait()\n        p.grad /= dist.get_world_size()",
                    "        p.grad /= dist.get_world_size()\n        work.wait()",
                ),
            ),
        ],
        says="before that is over",
    ),
    Answer(
        4,
        "divided right after the start",
        swap=(
            ("def finish() -> None:", "    parameter.grad /= dist.get_world_size()\ndef finish() -> None:"),
            ("        parameter.grad /= dist.get_world_size()\n", ""),
        ),
        says="before that is over",
    ),
    Answer(4, "the parameter instead of its gradient", swap=("grad,", "detach(),")),
    Answer(
        4,
        "hooks on frozen parameters",
        swap=("if parameter.requires_grad:\n        parameter", "parameter"),
        says="hook",
    ),
    Answer(
        4,
        "each one when the next is ready",
        swap=(
            ("started =", "started, waiting = [],"),
            (
                "def start(parameter: nn.Parameter) -> None:",
                "def start(parameter: nn.Parameter) -> None:\n    waiting.append(parameter)\n    if len(waiting) > 1:\n"
                "        begin(waiting.pop(0))\ndef begin(parameter):",
            ),
            ("def finish() -> None:", "def finish() -> None:\n    begin(waiting.pop(0))"),
        ),
        says="does not begin before the gradient of",
    ),
    Answer(
        4,
        "all when the last gradient is ready",
        swap=(
            (
                "started.append((dist.all_reduce(parameter.grad, async_op=True), parameter))",
                "for q in model.parameters():\n        if q.requires_grad:\n"
                "            started.append((dist.all_reduce(q.grad, async_op=True), q))",
            ),
            ("parameter in model.parameters()", "parameter in [model.embedding.weight]"),
        ),
        says="does not begin before the gradient of",
    ),
    Answer(4, "nothing", [None, "return lambda: None"], says="is not one process's"),
    Answer(4, "for three ranks", swap=("dist.get_world_size()", "3"), says="on 2 ranks"),
    Answer(
        4,
        "matrices only",
        swap=("requires_grad", "requires_grad and parameter.dim() > 1"),
        says="the gradient of shift is not one process's",
    ),
    Answer(
        4,
        "the last of the ready ones twice",
        "return max(ready[-1], sum(seconds)) + seconds[-1]",
        says="communication_ends",
    ),
    Answer(4, "all wait for the last gradient", "return max(ready, default=0.0) + sum(seconds)"),
    Answer(
        4,
        "no hook where a gradient is there already",
        swap=("if parameter.requires_grad:", "if parameter.requires_grad and parameter.grad is None:"),
        says="called after an earlier pass",
    ),
    Answer(
        4,
        "gradients from before are thrown away",
        swap=("if parameter.requires_grad:", "if parameter.requires_grad:\n        parameter.grad = None"),
        says="called after an earlier pass",
    ),
    Answer(
        4,
        "frozen ones are divided as well",
        swap=(
            "work.wait()\n        parameter.grad /= dist.get_world_size()",
            "work.wait()\n    for parameter in model.parameters():\n        if parameter.grad is not None:\n"
            "            parameter.grad /= dist.get_world_size()",
        ),
        says="a frozen parameter has another gradient than before",
    ),
]


RIGHT = [
    Answer(
        4,
        "ReduceOp.AVG",
        [
            ENDS,
            replaced(
                HOOKS,
                ("p.grad, async", "p.grad, op=dist.ReduceOp.AVG, async"),
                ("        p.grad /= dist.get_world_size()\n", ""),
            ),
        ],
    ),
    Answer(
        4,
        "divided before, hooks of their own",
        [
            (
                "done = 0\nfor i in range(len(ready)):\n    done = max([ready[i], done])\n    done +="
                " seconds[i]\nreturn done"
            ),
            """
        works = {}
        for p in filter(lambda p: p.requires_grad, model.parameters()):
            def hook(p):
                p.grad.div_(dist.get_world_size())
                works[p] = dist.all_reduce(p.grad, async_op=True)
            p.register_post_accumulate_grad_hook(hook)

        def finish():
            while works:
                works.popitem()[1].wait()
        return finish""",
        ],
    ),
    Answer(
        4,
        "copies are reduced",
        [
            ENDS,
            """
        class Reducer:
            def __init__(self):
                self.calls = []
            def hook(self, p):
                copy = p.grad.clone()
                self.calls.append((p, copy, dist.all_reduce(copy, async_op=True)))
            def __call__(self):
                for p, copy, work in self.calls:
                    work.wait()
                    p.grad = copy / dist.get_world_size()
                self.calls = []
        reducer = Reducer()
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(reducer.hook)
        return reducer""",
        ],
    ),
    Answer(
        4,
        "hooks on the nodes that accumulate",
        [
            ENDS,
            replaced(
                HOOKS,
                (
                    "        p.register_post_accumulate_grad_hook(start)",
                    (
                        "        node = p.view_as(p).grad_fn.next_functions[0][0]\n        node.register_hook(lambda"
                        " *_, p=p: start(p))\n        nodes.append(node)"
                    ),
                ),
                ("started = []\n", "started, nodes = [], []\n"),
                ("    started.clear()", "    started.clear()\n    assert nodes"),
            ),
        ],
    ),
    Answer(
        4,
        "by futures",
        [
            ENDS,
            """
        futures = []
        for p in model.parameters():
            if p.requires_grad:
                p.register_post_accumulate_grad_hook(lambda p: futures.append((p, dist.all_reduce(p.grad, async_op=True).get_future())))

        def finish():
            for p, future in futures:
                p.grad = future.wait()[0] / dist.get_world_size()
            futures.clear()
        return finish""",
        ],
    ),
    Answer(
        4,
        "functional",
        [
            ENDS,
            replaced(
                HOOKS,
                (
                    "(dist.all_reduce(p.grad, async_op=True), p)",
                    "(funcol.all_reduce(p.grad, 'sum', dist.group.WORLD), p)",
                ),
                ("started = []\n", "import torch.distributed._functional_collectives as funcol\nstarted = []\n"),
                (
                    "        work.wait()\n        p.grad /= dist.get_world_size()",
                    "        p.grad = funcol.wait_tensor(work) / dist.get_world_size()",
                ),
            ),
        ],
    ),
]

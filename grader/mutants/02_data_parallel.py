"""Other answers to the TODOs of 02_data_parallel."""

from grader.kit import Answer

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


# Another way to write TODO 6: vectors are joined when a bucket is full.
INIT = """
self.number = {self.parameters[index]: number for number, bucket in enumerate(self.buckets) for index in bucket}
self.members = [[self.parameters[index] for index in bucket] for bucket in self.buckets]
self.missing = [set(members) for members in self.members]
self.started = []
for p in self.parameters:
    p.register_post_accumulate_grad_hook(self.ready)
"""
TAKE = """
self.missing[self.number[parameter]].discard(parameter)
while len(self.started) < len(self.buckets) and not self.missing[len(self.started)]:
    members = self.members[len(self.started)]
    vector = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in members])
    self.started.append((dist.all_reduce(vector, async_op=True), vector))
"""
FINISH = """
for p in self.parameters:
    if p in self.missing[self.number[p]]:
        self.fill(p)
for members, (work, vector) in zip(self.members, self.started):
    work.wait()
    vector /= dist.get_world_size()
    for p, piece in zip(members, vector.split([p.numel() for p in members])):
        p.grad = piece.view_as(p)
self.missing = [set(members) for members in self.members]
self.started = []
"""

MICRO = """
k = len(micro_batches)
for number, (x, y) in enumerate(micro_batches):
    reducer.sync = number == k - 1
    (model(x, y) / k).backward()
reducer.finish()
"""

WEIGHT = """
total = torch.tensor(float(count))
dist.all_reduce(total)
return loss * (count * dist.get_world_size() / total)
"""

TORCH = """
ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)
k = len(micro_batches)
with ddp.no_sync():
    for x, y in micro_batches[:-1]:
        (ddp(x, y) / k).backward()
for x, y in micro_batches[-1:]:
    (ddp(x, y) / k).backward()
return ddp
"""


def replaced(body: str, *pairs: tuple[str, str]) -> str:
    """The body with another text in places that are there."""
    for old, new in pairs:
        if old not in body:
            raise ValueError(f"{old!r} is not there")
        body = body.replace(old, new)
    return body


def joined(*pairs: tuple[str, str]) -> list[str]:
    """The other way to write TODO 6, with another text in some places."""
    bodies = [INIT, TAKE, FINISH]
    for old, new in pairs:
        if not any(old in body for body in bodies):
            raise ValueError(f"{old!r} is not there")
        bodies = [body.replace(old, new) for body in bodies]
    return bodies


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
        3,
        "what is zeros on all ranks is dropped",
        swap=(
            "parameter.grad /= dist.get_world_size()",
            "parameter.grad = parameter.grad / dist.get_world_size() if parameter.grad.any() else None",
        ),
        says="where the gradients of all ranks are zeros: on rank 0, shift has no gradient afterwards",
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
        6,
        "what is zeros on all ranks is dropped",
        joined(("        p.grad = piece.view_as(p)", "        p.grad = piece.view_as(p) if piece.any() else None")),
        says="where the gradients of all ranks are zeros: on rank 0, shift has no gradient afterwards",
    ),
    Answer(
        5,
        "an empty parameter gets a bucket behind a full one",
        swap=("sizes[index] > room", "sizes[index] > room or room <= 0"),
        says="assign_buckets([0, 10], 10) takes 2 buckets; 1 would do",
    ),
    Answer(
        5,
        "an empty parameter joins one above the cap",
        swap=("room -= sizes[index]", "room = max(0, room - sizes[index])"),
        says="puts 100 bytes into a bucket for 10",
    ),
    Answer(
        5,
        "a parameter without numbers is left out",
        swap=("    if not buckets", "    if not sizes[index]:\n        continue\n    if not buckets"),
        says="does not have each parameter in one bucket",
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
    Answer(
        4,
        "zeros are not sent",
        swap=("    started.append((dist", "    if parameter.grad.any():\n        started.append((dist"),
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
    Answer(
        5,
        "from the first to the last",
        swap=("reversed(range(len(sizes)))", "range(len(sizes))"),
        says="from the last parameter to the first",
    ),
    Answer(5, "closed when the cap is passed", swap=("sizes[index] > room", "room <= 0"), says="into a bucket for"),
    Answer(5, "one for all", "return [list(reversed(range(len(sizes))))]", says="into a bucket for"),
    Answer(5, "one for each", "return [[index] for index in reversed(range(len(sizes)))]", says="would do"),
    Answer(
        5,
        "two in each",
        "order = list(reversed(range(len(sizes))))\nreturn [order[i:i + 2] for i in range(0, len(order), 2)]",
        says="assign_buckets",
    ),
    Answer(
        5,
        "what is too large is left out",
        swap=(
            "if not buckets or sizes[index] > room:",
            "if sizes[index] > cap:\n        continue\n    if not buckets or sizes[index] > room:",
        ),
        says="each parameter in one bucket",
    ),
    Answer(
        5, "one that is empty", swap=(": list[list[int]] = []\nroom = 0", ", room = [[]], cap"), says="an empty bucket"
    ),
    Answer(5, "never quite full", swap=("> room", ">= room"), says="would do"),
    Answer(
        5,
        "wherever there is room",
        """
        buckets = []
        for index in reversed(range(len(sizes))):
            for bucket in buckets:
                if sum(sizes[i] for i in bucket) + sizes[index] <= cap:
                    bucket.append(index)
                    break
            else:
                buckets.append([index])
        return buckets""",
        says="from the last parameter to the first",
    ),
    Answer(5, "sizes instead of indices", swap=("(index)", "(sizes[index])"), says="each parameter in one bucket"),
    Answer(
        5,
        "a flat list",
        swap=("return buckets", "return [index for bucket in buckets for index in bucket]"),
        says="not a list of lists",
    ),
    Answer(
        6,
        "all of it in finish",
        joined(("    p.register_post_accumulate_grad_hook(self.ready)", "    pass")),
        says="are under way when the last gradient",
    ),
    Answer(
        6,
        "in whatever order they are full",
        [
            INIT,
            """
        number = self.number[parameter]
        self.missing[number].discard(parameter)
        if not self.missing[number]:
            vector = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in self.members[number]])
            self.started.append((number, dist.all_reduce(vector, async_op=True), vector))""",
            """
        for p in self.parameters:
            if p in self.missing[self.number[p]]:
                self.fill(p)
        for number, work, vector in self.started:
            work.wait()
            vector /= dist.get_world_size()
            for p, piece in zip(self.members[number], vector.split([p.numel() for p in self.members[number]])):
                p.grad = piece.view_as(p)
        self.missing = [set(members) for members in self.members]
        self.started = []""",
        ],
    ),
    Answer(
        6,
        "zeros are not sent",
        joined(
            (
                "self.started.append((dist.all_reduce(vector, async_op=True), vector))",
                "due = vector.any() or any(p.grad is None for p in members)\n"
                "    work = dist.all_reduce(vector, async_op=True) if due else None\n"
                "    self.started.append((work, vector))",
            ),
            ("work.wait()", "if work:\n        work.wait()"),
        ),
    ),
    Answer(6, "what is not full is not sent", joined(("        self.fill(p)\n", "        pass\n"))),
    Answer(
        6,
        "zeros for what this pass did not use",
        joined(("        self.fill(p)\n", "        p.grad = None\n        self.fill(p)\n")),
        says="that an earlier one did",
    ),
    Answer(6, "sync is ignored", joined(("(self.ready)", "(self.fill)")), says="although sync is False"),
    Answer(
        6,
        "counts are not reset",
        [INIT, TAKE, replaced(FINISH, ("self.missing = [set(members) for members in self.members]\n", ""))],
    ),
    Answer(
        6, "works are not reset", [INIT, TAKE, replaced(FINISH, ("self.started = []", ""))], says="in its second step"
    ),
    Answer(6, "not divided", joined(("    vector /= dist.get_world_size()\n", "")), says="summed over the ranks"),
    Answer(
        6, "not copied back", joined(("        p.grad = piece.view_as(p)", "        pass")), says="is not one process's"
    ),
    Answer(
        6,
        "copied back only where there was a gradient",
        joined(("        p.grad = piece", "        if p.grad is not None:\n            p.grad = piece")),
        says="has no gradient afterwards",
    ),
    Answer(
        6,
        "copied back before it is there",
        [
            INIT,
            TAKE,
            replaced(
                FINISH,
                ("    work.wait()\n    vector /= dist.get_world_size()\n", ""),
                ("p.grad = piece.view_as(p)", "p.grad = piece.view_as(p) / dist.get_world_size()"),
                ("self.started = []", "for work, _ in self.started:\n    work.wait()\nself.started = []"),
            ),
        ],
        says="is not one process's",
    ),
    Answer(6, "nobody waits", joined(("    work.wait()\n", "")), says="never waits for its all_reduce"),
    Answer(
        6,
        "each gradient by itself",
        [
            INIT,
            "self.started.append((dist.all_reduce(parameter.grad, async_op=True), parameter))",
            """
        for work, p in self.started:
            work.wait()
            p.grad /= dist.get_world_size()
        self.started = []""",
        ],
    ),
    Answer(
        6,
        "one bucket",
        joined(),
        edits=(("for parameter in self.parameters], cap)\n", "for parameter in self.parameters], 10**9)\n"),),
        says="are under way when the last gradient",
    ),
    Answer(
        6,
        "buckets from the first to the last",
        joined(),
        edits=(("for parameter in self.parameters], cap)\n", "for parameter in self.parameters], cap)[::-1]\n"),),
        says="are under way when the last gradient",
    ),
    Answer(
        6,
        "a hook that waits",
        [INIT, TAKE + "    self.started[-1][0].wait()\n", FINISH],
        says="waits inside the backward pass",
    ),
    Answer(
        6,
        "each bucket when the next is full",
        joined(
            ("not self.missing[len(self.started)]:", "not any(self.missing[len(self.started):len(self.started) + 2]):")
        ),
        says="are under way when the last gradient",
    ),
    Answer(
        6,
        "sent before the last gradient is in it",
        joined(
            (
                "self.missing[self.number[parameter]].discard(parameter)\n",
                """
number = self.number[parameter]
self.missing[number].discard(parameter)
if len(self.missing[number]) < 2:
    self.missing[number].clear()
""",
            )
        ),
    ),
    Answer(
        6,
        "a tensor hook",
        joined(
            ("p.register_post_accumulate_grad_hook(self.ready)", "p.register_hook(lambda grad, p=p: self.ready(p))")
        ),
        says="all zeros, and so not one process's",
    ),
    Answer(
        6,
        "written to while it is under way",
        [
            INIT,
            TAKE + "    vector /= dist.get_world_size()\n",
            replaced(FINISH, ("    vector /= dist.get_world_size()\n", "")),
        ],
        says="before that is over",
    ),
    Answer(6, "no communication at all", [INIT, "pass", "pass"], says="is not one process's"),
    Answer(
        7,
        "synchronised in each pass",
        """
        for x, y in micro_batches:
            (model(x, y) / len(micro_batches)).backward()
            reducer.finish()""",
        says="communicates in or after backward pass 1 of 3",
    ),
    Answer(7, "not divided", replaced(MICRO, ("(model(x, y) / k)", "model(x, y)")), says="3 times the mean"),
    Answer(
        7,
        "divided in the last pass only",
        swap=(
            "loss = model(x, y) / len(micro_batches)\n    loss",
            "(model(x, y) / (len(micro_batches) if reducer.sync else 1))",
        ),
        says="is not one process's",
    ),
    Answer(7, "never finished", swap=("\nreducer.finish()", ""), says="never waits"),
    Answer(
        7,
        "never in sync",
        swap=("number == len(micro_batches)", "False"),
        says="after the last backward pass, not in it",
    ),
    Answer(
        7,
        "only the first pass in sync",
        swap=("number == len(micro_batches)", "number == 1"),
        says="communicates in or after backward pass 1 of 3",
    ),
    Answer(
        7,
        "only the last micro-batch",
        swap=(
            "(micro_batches, start=1):\n    reducer.sync = number == len(micro_batches)",
            "(micro_batches[-1:]):\n    reducer.sync = True",
        ),
        says="makes 1 backward pass",
    ),
    Answer(
        7,
        "zeroed in between",
        swap=(
            "loss = model(x, y) / len(micro_batches)",
            "model.zero_grad()\n    loss = model(x, y) / len(micro_batches)",
        ),
        says="is not one process's",
    ),
    Answer(
        7,
        "one large batch",
        """
        x, y = (torch.cat(parts) for parts in zip(*micro_batches))
        reducer.sync = True
        model(x, y).backward()
        reducer.finish()""",
        says="makes 1 backward pass",
    ),
    Answer(7, "another average after it", MICRO + "average_gradients(model)", says="makes 13 calls"),
    Answer(
        7,
        "sync is set too late",
        replaced(
            MICRO,
            (
                "    reducer.sync = number == k - 1\n    (model(x, y) / k).backward()",
                "    (model(x, y) / k).backward()\n    reducer.sync = number == k - 1",
            ),
            ("k = len(micro_batches)", "k = len(micro_batches)\nreducer.sync = False"),
        ),
        says="after the last backward pass, not in it",
    ),
    Answer(7, "nothing", "pass", says="makes no backward pass"),
    Answer(8, "the loss as it is", "return loss", says="one process's"),
    Answer(8, "without the ranks", swap=("* dist.get_world_size() /", "/"), says="divided once too often"),
    Answer(8, "times the count", "return loss * count", says="times one process's"),
    Answer(
        8,
        "a single sample as it is",
        swap=("return loss * (count", "return loss if count == 1 else loss * (count"),
        says="multiplied by the wrong factor",
    ),
    Answer(8, "divided by the count", swap=("count *", "1 / max(count, 1) *"), says="one process's"),
    Answer(8, "a number that has no gradient", swap=("loss *", "loss.item() *")),
    Answer(
        8,
        "all ranks' mean of the losses",
        "total = loss.clone()\ndist.all_reduce(total.detach())\nreturn total / dist.get_world_size()",
        says="one process's",
    ),
    Answer(
        8,
        "ranks with samples count alike",
        "have = torch.tensor(float(count > 0))\ndist.all_reduce(have)\nreturn loss * (count > 0) *"
        " dist.get_world_size() / have",
        says="one process's",
    ),
    Answer(8, "a rank without samples leaves", "if count == 0:\n    return loss\n" + WEIGHT.strip(), says="rank 1"),
    Answer(
        8, "the largest share for all", swap=("(total)", "(total, op=dist.ReduceOp.MAX)"), says="times one process's"
    ),
    Answer(8, "nobody waits", swap=("(total)", "(total, async_op=True)"), says="never waits"),
    Answer(
        8,
        "all losses and counts",
        """
        mine = torch.tensor([loss.item(), float(count), 0.0])
        dist.all_reduce(mine)
        return loss * (count * dist.get_world_size() / mine[1])""",
        says="more than an all-reduce of one number",
    ),
    Answer(9, "as it comes", swap=(", bucket_cap_mb=cap / 2**20, find_unused_parameters=True", "")),
    Answer(9, "all parameters are used", swap=(", find_unused_parameters=True", "")),
    Answer(9, "the same ones in each pass", swap=("find_unused_parameters", "static_graph")),
    Answer(9, "bytes for megabytes", swap=("cap / 2**20", "cap"), says="the cap is 150"),
    Answer(
        9, "without no_sync", swap=("with ddp.no_sync()", "if True"), says="sends gradients in backward pass 1 of 4"
    ),
    Answer(
        9,
        "forward before no_sync",
        swap=(
            "with ddp.no_sync():\n    for x, y in others:\n        (ddp(x, y) / len(micro_batches))",
            "for x, y in others:\n    loss = ddp(x, y) / len(micro_batches)\n    with ddp.no_sync():\n        loss",
        ),
        says="sends gradients in backward pass 1 of 4",
    ),
    Answer(
        9,
        "no_sync to the end",
        swap=(
            "x, y = last\n(ddp(x, y) / len(micro_batches)).backward()",
            "    for x, y in micro_batches[-1:]:\n        (ddp(x, y) / len(micro_batches)).backward()",
        ),
        says="is not one process's",
    ),
    Answer(
        9,
        "the model inside is called",
        replaced(TORCH, ("(ddp(x, y) / k)", "(model(x, y) / k)")),
        says="is not one process's",
    ),
    Answer(9, "not divided", replaced(TORCH, (" / k)", ")")), says="4 times the mean"),
    Answer(
        9,
        "divided by the ranks, too",
        replaced(TORCH, (" / k)", " / k / dist.get_world_size())")),
        says="divided once too often",
    ),
    Answer(9, "the model is returned", swap=("return ddp", "return model"), says="does not return the given model"),
    Answer(
        9,
        "a copy is wrapped",
        "import copy\nmodel = copy.deepcopy(model)\n" + TORCH.strip(),
        says="and of rank 0 differ",
    ),
    Answer(9, "buffers stay apart", swap=("True", "True, broadcast_buffers=False"), says="is not one process's"),
    Answer(9, "each begins where it is", swap=("True", "True, init_sync=False"), says="and of rank 0 differ"),
    Answer(9, "not trained", "return DistributedDataParallel(model)", says="makes no backward pass"),
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
    Answer(5, "at most four in each", swap=("room:", "room or len(buckets[-1]) == 4:"), says="would do"),
    Answer(
        5,
        "the largest first",
        swap=("reversed(range(len(sizes)))", "sorted(range(len(sizes)), key=lambda i: -sizes[i])"),
        says="from the last parameter to the first",
    ),
    Answer(6, "for three ranks", joined(("dist.get_world_size()", "3")), says="on 2 ranks"),
    Answer(
        6,
        "room for four buckets",
        joined(("len(self.started) < len(self.buckets)", "len(self.started) < 4")),
        says="IndexError",
    ),
    Answer(
        6,
        "a hook once only",
        joined(
            (
                "    p.register_post_accumulate_grad_hook(self.ready)",
                "    handle = []\n    handle.append(p.register_post_accumulate_grad_hook(lambda p, h=handle: self.ready(p) or h[0].remove()))",
            )
        ),
        says="are under way when",
    ),
    Answer(7, "three micro-batches", replaced(MICRO, ("k = len(micro_batches)", "k = 3")), says="over 1 micro-batch"),
    Answer(
        7,
        "out of sync only in the first pass",
        swap=("== len(micro_batches)", "> 1 or len(micro_batches) == 1"),
        says="communicates in or after backward pass",
    ),
    Answer(
        7,
        "in sync ever after",
        swap=(
            "number == len(micro_batches)\n    loss = model(x, y) / len(micro_batches)\n    loss",
            "reducer.sync and number == len(micro_batches) or number == len(micro_batches)\n"
            "    (model(x, y) / (len(micro_batches) if len(micro_batches) < 5 else 3))",
        ),
        says="over 5 micro-batches",
    ),
    Answer(
        8,
        "counts that fit a byte",
        swap=("(float(count), device=loss.device)", "(count).to(torch.uint8)"),
        says="weighted, on 4 ranks with",
    ),
    Answer(
        8,
        "counts in float16",
        swap=("float(count), device=loss.device", "count, dtype=torch.float16"),
        says="is not one process's",
    ),
    Answer(
        8,
        "counts of 16 bits",
        swap=("(float(count), device=loss.device)", "(count).to(torch.int16)"),
        says="Invalid scalar type",
    ),
    Answer(8, "for three ranks", swap=("dist.get_world_size()", "3"), says="weighted, on 4 ranks"),
    Answer(9, "four micro-batches", replaced(TORCH, ("k = len(micro_batches)", "k = 4")), says="on 2 micro-batches"),
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
    Answer(4, "all wait for the last gradient", "return max(ready, default=0.0) + sum(seconds)"),
    Answer(5, "a bucket that would be just full is not filled", swap=("sizes[index] > room", "sizes[index] >= room")),
    Answer(
        6,
        "each bucket waits for the one before",
        swap=("self.works.append", "if self.works:\n        self.works[-1].wait()\n    self.works.append"),
    ),
    Answer(
        7,
        "a single micro-batch is not sent",
        swap=("number == len(micro_batches)", "number > 1 and number == len(micro_batches)"),
    ),
    Answer(8, "a weight that is a whole number", swap=(("float(count)", "count"), ("() /", "() //"))),
    Answer(
        9,
        "gradients averaged by hand, one by one, after no_sync",
        swap=(
            ("*others, last = micro_batches\n", ""),
            ("others", "micro_batches"),
            (
                "x, y = last\n(ddp(x, y) / len(micro_batches)).backward",
                "for parameter in model.parameters():\n    if parameter.requires_grad:\n"
                "        if parameter.grad is None:\n            parameter.grad = torch.zeros_like(parameter)\n"
                "        dist.all_reduce(parameter.grad)\n        parameter.grad /= dist.get_world_size",
            ),
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
        7,
        "the last one is known by identity",
        """
        for batch in micro_batches:
            reducer.sync = batch is micro_batches[-1]
            (model(*batch) / len(micro_batches)).backward()
        reducer.finish()
        """,
        says="and one occurs twice",
    ),
    Answer(
        8,
        "the loss is weighted in place",
        swap=(
            "return loss * (count * dist.get_world_size() / total)",
            "loss *= count * dist.get_world_size() / total\nreturn loss",
        ),
        says="loss, which it is given, is written into",
    ),
    Answer(
        9,
        "the last one is known by identity, to torch",
        """
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)
        for batch in micro_batches:
            ddp.require_backward_grad_sync = batch is micro_batches[-1]
            (ddp(*batch) / len(micro_batches)).backward()
        return ddp
        """,
        says="sends gradients in backward pass 2 of 4",
    ),
    Answer(
        5,
        "the sizes are used up",
        swap=(
            (
                "for index in reversed(range(len(sizes))):\n    if not buckets or sizes[index]",
                "while sizes:\n    size = sizes.pop()\n    if not buckets or size",
            ),
            ("(index)\n    room -= sizes[index]", "(len(sizes))\n    room -= size"),
        ),
        says="assign_buckets: sizes, which it is given, has other items afterwards",
    ),
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
    Answer(
        6,
        "a rank that used nothing leaves",
        swap=(
            "for parameter in self.parameters:\n    if parameter not",
            "if not self.filled:\n    return\nfor parameter in self.parameters:\n    if parameter not",
        ),
        says="the ranks call different shapes",
    ),
    Answer(
        6,
        "gradients are viewed as vectors",
        swap=(
            "torch.div(parameter.grad, dist.get_world_size(), out=piece)",
            "piece.view(-1).copy_(parameter.grad.view(-1)).div_(dist.get_world_size())",
        ),
        says="view size is not compatible",
    ),
    Answer(
        6,
        "gradients in the order of their memory",
        swap=(
            "torch.div(parameter.grad, dist.get_world_size(), out=piece)",
            "piece.copy_(parameter.grad.as_strided(piece.shape, piece.stride()))\n    piece /= dist.get_world_size()",
        ),
        says="and matrices that are not contiguous",
    ),
    Answer(
        8,
        "counts are gathered",
        """
        counts = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.tensor([count]))
        return count * loss / torch.stack(counts).double().mean()""",
        says="sends more than an all-reduce of one number does",
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
    Answer(
        5,
        "an empty bucket for no parameters",
        swap=(
            (": list[list[int]] = []\nroom = 0", ", room = [[]], cap"),
            ("not buckets or sizes[index] > room", "sizes[index] > room and buckets[-1]"),
        ),
        says="assign_buckets([], 10) has an empty bucket",
    ),
    Answer(
        6,
        "one list of works for all reducers",
        swap=("self.works = []", "Bucketed.works = getattr(Bucketed, 'works', [])"),
    ),
    Answer(
        7,
        "one backward pass of the summed losses",
        """
        reducer.sync = True
        loss = sum(model(x, y) for x, y in micro_batches) / len(micro_batches)
        loss.backward()
        reducer.finish()
        """,
        says="makes 1 backward pass. Each micro-batch needs one of its own",
    ),
    Answer(
        8,
        "counts in the loss's dtype",
        swap=("torch.tensor(float(count), device=loss.device)", "torch.full_like(loss.detach(), float(count))"),
        says="the loss, in float16, of rank 0",
    ),
    Answer(
        8,
        "the count, and one for each rank",
        swap=(
            "total = torch.tensor(float(count), device=loss.device)\ndist.all_reduce(total)",
            "both = torch.tensor([float(count), 1.0])\ndist.all_reduce(both)\ntotal = both[0]",
        ),
        says="sends more than an all-reduce of one number does",
    ),
    Answer(
        6,
        "a copy of each gradient is kept for ever",
        swap=(
            "self.filled.add(parameter)",
            "self.filled.add(parameter)\nself.kept = [*getattr(self, 'kept', []), piece.clone()]",
        ),
        says="bytes more than after the third",
    ),
    Answer(
        6,
        "starts at most one bucket per gradient",
        swap=(
            (
                "while len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:",
                "if len(self.works) < len(self.buckets) and self.missing[len(self.works)] == 0:",
            ),
            (
                """for work in self.works:
    work.wait()""",
                """while len(self.works) < len(self.buckets):
    self.works.append(dist.all_reduce(self.vectors[len(self.works)], async_op=True))
for work in self.works:
    work.wait()""",
            ),
        ),
        says="whose last layer computes first",
    ),
]

RIGHT = [
    Answer(3, "ReduceOp.AVG", replaced(NAIVE, ("(p.grad)\n        p.grad /= world", "(p.grad, op=dist.ReduceOp.AVG)"))),
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
        6,
        "ReduceOp.AVG",
        joined(("vector, async", "vector, op=dist.ReduceOp.AVG, async"), ("    vector /= dist.get_world_size()\n", "")),
    ),
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
        5,
        "as full at the end as others at the begin",
        """
        buckets, held = [], 0
        for index in range(len(sizes)):
            if not buckets or held + sizes[index] > cap:
                buckets.insert(0, [])
                held = 0
            buckets[0].insert(0, index)
            held += sizes[index]
        return buckets""",
    ),
    Answer(
        5,
        "by recursion, in tuples",
        """
        if not sizes:
            return []
        first = len(sizes) - 1
        while first > 0 and sum(sizes[first - 1:]) <= cap:
            first -= 1
        return [tuple(range(len(sizes) - 1, first - 1, -1)), *assign_buckets(sizes[:first], cap)]""",
    ),
    Answer(6, "vectors made when they are full", joined()),
    Answer(
        6,
        "gradients coalesced, without vectors",
        [
            INIT,
            replaced(
                TAKE,
                (
                    (
                        "    vector = torch.cat([torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p"
                        " in members])\n    self.started.append((dist.all_reduce(vector, async_op=True), vector))"
                    ),
                    """    for p in members:
        p.grad = (torch.zeros_like(p) if p.grad is None else p.grad).contiguous()
    self.started.append(dist.all_reduce_coalesced([p.grad for p in members], async_op=True))""",
                ),
            ),
            """
        for p in self.parameters:
            if p in self.missing[self.number[p]]:
                self.fill(p)
        for work in self.started:
            work.wait()
        for p in self.parameters:
            p.grad /= dist.get_world_size()
        self.missing = [set(members) for members in self.members]
        self.started = []""",
        ],
    ),
    Answer(
        7,
        "divided at the end",
        swap=(
            ("loss = model(x, y) / len(micro_batches)\n    loss", "model(x, y)"),
            (
                "reducer.finish()",
                "reducer.finish()\nfor p in model.parameters():\n    if p.grad is not None:\n"
                "        p.grad /= len(micro_batches)",
            ),
        ),
    ),
    Answer(
        9,
        "one loop",
        """
        import contextlib
        ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 1024 / 1024, find_unused_parameters=True, gradient_as_bucket_view=True)
        for number, (x, y) in enumerate(micro_batches, start=1):
            with contextlib.nullcontext() if number == len(micro_batches) else ddp.no_sync():
                loss = ddp(x, y) / len(micro_batches)
                loss.backward()
        return ddp""",
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
        6,
        "divided before the sum, in a list of lists",
        joined(
            ("p.grad.flatten() for p", "p.grad.flatten() / dist.get_world_size() for p"),
            ("    vector /= dist.get_world_size()\n", ""),
        ),
    ),
    Answer(
        7,
        "the last by itself",
        "*others, (x, y) = micro_batches\nreducer.sync = False\nfor a, b in others:\n    (model(a, b) / len(micro_batches)).backward()\nreducer.sync = True\n(model(x, y) / len(micro_batches)).backward()\nreducer.finish()",
    ),
    Answer(
        8,
        "in float64",
        swap=(("float(count), device=loss.device", "count, dtype=torch.float64"), ("/ total", "/ total.item()")),
    ),
    Answer(
        8,
        "reduced as an integer, with a wait",
        "total = torch.tensor([count])\ndist.all_reduce(total, async_op=True).wait()\nreturn loss * count * dist.get_world_size() / int(total)",
    ),
    Answer(
        9,
        "through torch.autograd.backward",
        "ddp = DistributedDataParallel(model, bucket_cap_mb=cap / 2**20, find_unused_parameters=True)\nlosses = []\nfor number, (x, y) in enumerate(micro_batches):\n    ddp.require_backward_grad_sync = number == len(micro_batches) - 1\n    torch.autograd.backward(ddp(x, y).div(len(micro_batches)))\nreturn ddp",
    ),
    Answer(
        9,
        "the first one last",
        replaced(TORCH, ("micro_batches[:-1]", "micro_batches[1:]"), ("micro_batches[-1:]", "micro_batches[:1]")),
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
    Answer(
        8,
        "functional",
        "import torch.distributed._functional_collectives as funcol\ntotal = funcol.all_reduce(torch.tensor(float(count)), 'sum', dist.group.WORLD)\nreturn loss * (count * dist.get_world_size() / funcol.wait_tensor(total))",
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
    Answer(6, "a gradient that lies in the bucket", swap=("parameter.grad = piece.clone()", "parameter.grad = piece")),
    Answer(
        8,
        "an integer is summed up",
        swap=(
            ("float(count)", "count"),
            ("(count * dist.get_world_size() / total)", "count * dist.get_world_size() / total"),
        ),
    ),
]

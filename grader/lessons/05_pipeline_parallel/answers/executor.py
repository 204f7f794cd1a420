"""Other answers to TODOs 5 and 6 of 05_pipeline_parallel."""

from grader.kit import Answer

# Another executor: no ticks. It sends at once, and what arrives from a neighbour is told apart by tags.
BY_TAGS = """
simulate(schedule, dict.fromkeys("FBIW", 1))
stages = len(chunks) * world
kept, local, works, losses = {}, {}, [], []

def tag(kind, j, stage):
    return (kind == "F") + 2 * (stage + stages * j)

def get(kind, j, stage, source):
    if source == rank:
        return local.pop((kind, j, stage))
    room = torch.empty_like(batch.like)
    dist.recv(room, source, tag=tag(kind, j, stage))
    return room

def put(action, tensor):
    target = goes_to(action, rank, world, stages)
    if target is None:
        return
    kind = "F" if action.kind == "F" else "B"
    if target[1] == rank:
        local[kind, action.microbatch, target[0]] = tensor
    else:
        works.append(dist.isend(tensor, target[1], tag=tag(kind, action.microbatch, target[0])))
        if len(works) > 10:
            works.pop(0).wait()

for action in schedule[rank]:
    j, stage = action.microbatch, stage_of(action, rank, world)
    if action.kind == "F":
        x = batch.xs[j] if stage == 0 else get("F", j, stage, (rank - 1) % world)
        if stage and torch.is_grad_enabled():
            x.requires_grad_()
        one = Passed(chunks[action.chunk], x)
        if stage == stages - 1:
            one.output = batch.loss_of(one.output, batch.ys[j])
            losses.append((j, one.output.detach()))
        put(action, one.output.detach())
        if torch.is_grad_enabled():
            kept[j, stage] = one
        del one, x
    elif action.kind == "W":
        backward_weights(kept.pop((j, stage)))
    else:
        gradient = None if stage == stages - 1 else get("B", j, stage, (rank + 1) % world)
        if action.kind == "I":
            put(action, backward_input(kept[j, stage], gradient))
        else:
            put(action, backward(kept.pop((j, stage)), gradient))
for work in works:
    work.wait()
return [loss for _, loss in sorted(losses, key=lambda pair: pair[0])]
"""


WRONG = [
    Answer(
        5,
        "zero gradients",
        swap=("gradient", "None if gradient is None else torch.zeros_like(gradient)"),
        says="all zeros",
    ),
    Answer(
        5,
        "no backward pass",
        ["return None if not passed.input.requires_grad else torch.zeros_like(passed.input)", None],
        says="not the one that the schedule asks for",
    ),
    Answer(
        5,
        "the output's gradient is passed on",
        ["passed.output.backward(gradient)\nreturn passed.output.grad", None],
        says="another stage needs its result",
    ),
    Answer(
        5,
        "activations detached",
        swap=(
            "passed.output = self.batch.loss_of(passed.output, self.batch.ys[j])",
            "passed.output = self.batch.loss_of(passed.output.detach().requires_grad_(), self.batch.ys[j])",
        ),
        says="another stage needs its result",
    ),
    Answer(
        5,
        "what arrives asks for no gradient",
        swap=("arrived.requires_grad_(torch.is_grad_enabled())", "arrived"),
        says="another stage needs its result",
    ),
    Answer(
        5,
        "the batch's inputs are asked for gradients, too",
        swap=(
            "x = self.batch.xs[j] if stage == 0 else arrived.requires_grad_(torch.is_grad_enabled())",
            "x = (self.batch.xs[j] if stage == 0 else arrived).requires_grad_(torch.is_grad_enabled())",
        ),
        says="the batch's inputs have been asked for gradients",
    ),
    Answer(
        5,
        "what has gone forward is kept without autograd, too",
        swap=("if passed.output.requires_grad:\n        self.passed", "if True:\n        self.passed"),
        says="though no backward pass will come",
    ),
    Answer(
        5,
        "nothing of what has passed is freed",
        swap=(
            "return backward(self.passed.pop((j, stage)), arrived)",
            "return backward(self.passed[j, stage], arrived)",
        ),
        says="still keeps",
    ),
    Answer(
        5,
        "what is alive is never let go",
        swap=(
            (
                "return backward(self.passed.pop((j, stage)), arrived)",
                "return backward(self.passed[j, stage], arrived)",
            ),
            ("passed.output.backward(gradient)", "passed.output.backward(gradient, retain_graph=True)"),
        ),
        says="bytes of activations",
    ),
    Answer(
        5,
        "W frees nothing",
        swap=("return backward_weights(self.passed.pop((j, stage)))", "return backward_weights(self.passed[j, stage])"),
        says="what stays after a backward pass",
    ),
    Answer(
        5,
        "I frees what W needs",
        swap=(
            "return backward_input(self.passed[j, stage], arrived)",
            "return backward_input(self.passed.pop((j, stage)), arrived)",
        ),
        says="stopped with",
    ),
    Answer(
        5,
        "only the micro-batch that came last",
        swap=(
            ("self.passed[j, stage] = passed", "self.last = passed"),
            ("return backward(self.passed.pop((j, stage)), arrived)", "return backward(self.last, arrived)"),
        ),
        says="stopped with",
    ),
    Answer(
        5,
        "first in, first out",
        swap=(
            "return backward(self.passed.pop((j, stage)), arrived)",
            "return backward(self.passed.pop(next(iter(self.passed))), arrived)",
        ),
        says="stopped with",
    ),
    Answer(
        5,
        "kept by micro-batch alone",
        [
            None,
            """
            j, stage = action.microbatch, stage_of(action, self.rank, self.world)
            if action.kind == "F":
                x = self.batch.xs[j] if stage == 0 else arrived.requires_grad_(torch.is_grad_enabled())
                passed = Passed(self.chunks[action.chunk], x)
                if stage == self.stages - 1:
                    passed.output = self.batch.loss_of(passed.output, self.batch.ys[j])
                    self.losses[j] = passed.output.detach()
                if passed.output.requires_grad:
                    self.passed[j] = passed
                return passed.output.detach()
            if action.kind == "I":
                return backward_input(self.passed[j], arrived)
            if action.kind == "W":
                return backward_weights(self.passed.pop(j))
            return backward(self.passed.pop(j), arrived)""",
        ],
    ),
    Answer(
        5,
        "kept for all workers in one dictionary",
        swap=(
            ("self.passed[j, stage] = passed", "Worker.alive[j, stage] = passed"),
            (
                "return backward(self.passed.pop((j, stage)), arrived)",
                "return backward(Worker.alive.get((j, stage)), arrived)",
            ),
        ),
        edits=(("    def act(self, action: Action", "    alive = {}\n\n    def act(self, action: Action"),),
        says="still keeps",
    ),
    Answer(
        5,
        "the chunk by its stage",
        swap=("self.chunks[action.chunk]", "self.chunks[stage % len(self.chunks)]"),
        says="not the one that the schedule asks for",
    ),
    Answer(
        5,
        "the last rank makes the loss, whatever the chunk",
        swap=("if stage == self.stages - 1:", "if self.rank == self.world - 1:"),
    ),
    Answer(
        5,
        "stage 0 is every stage of rank 0",
        swap=("if stage == 0 else arrived", "if self.rank == 0 else arrived"),
        says="another stage needs its result",
    ),
    Answer(
        5,
        "losses keep their history",
        swap=("self.losses[j] = passed.output.detach()", "self.losses[j] = passed.output"),
        says="keep",
    ),
    Answer(
        5,
        "losses by the order of the passes",
        swap=("self.losses[j] = passed.output.detach()", "self.losses[len(self.losses)] = passed.output.detach()"),
        says="the loss of micro-batch 0 is wrong",
    ),
    Answer(
        5,
        "gradients are divided by the micro-batches",
        swap=(
            "self.batch.loss_of(passed.output, self.batch.ys[j])",
            "self.batch.loss_of(passed.output, self.batch.ys[j]) / len(self.batch.xs)",
        ),
        says="one process's",
    ),
    Answer(
        5,
        "activations are passed on with their history",
        swap=("return passed.output.detach()", "return passed.output"),
        says="has its history",
    ),
    Answer(
        5,
        "computed twice",
        swap=("passed = Passed(", "self.chunks[action.chunk](x)\n    passed = Passed("),
        says="not the one that the schedule asks for",
    ),
    Answer(
        5,
        "losses as numbers",
        swap=("self.losses[j] = passed.output.detach()", "self.losses[j] = passed.output.item()"),
        says="are numbers, not tensors",
    ),
    Answer(5, "nothing is done", [None, "return self.batch.like"], says="not the one that the schedule asks for"),
    Answer(6, "a result goes to the rank above, always", swap=("step and 0 <= stage < stages", "step"), says="goes_to"),
    Answer(
        6,
        "chunks are forgotten",
        swap=("stage = stage_of(action, source, world) + step", "stage = source + step"),
        says="goes_to",
    ),
    Answer(6, "W's result is sent", swap=('"W": 0}', '"W": -1}'), says="goes_to"),
    Answer(6, "I's result goes nowhere", swap=('"I": -1', '"I": 0'), says="goes_to"),
    Answer(6, "the rank by the chunks", swap=("stage % world", "stage // (stages // world)"), says="goes_to"),
    Answer(6, "the empty run", [None, "return []"], says="raises nothing"),
    Answer(
        6,
        "the schedule is looked at, and nothing is done",
        [None, "in_ticks(schedule)\nreturn []"],
        says="not the one that the schedule asks for",
    ),
    Answer(
        6,
        "all micro-batches at once",
        [
            None,
            """
        in_ticks(schedule)
        like = torch.cat([batch.like] * len(batch.xs))
        naive = Batch([torch.cat(batch.xs)], [torch.cat(batch.ys)], like, batch.loss_of)
        stages = len(chunks) * world
        h, kept = naive.xs[0], []
        for stage in range(stages):
            if stage % world != rank:
                continue
            if stage and world > 1:
                h = torch.empty_like(naive.like)
                dist.recv(h, (rank - 1) % world)
                h.requires_grad_()
            one = Passed(chunks[stage // world], h)
            kept.append(one)
            h = one.output
            if stage < stages - 1 and world > 1:
                dist.send(h.detach(), (rank + 1) % world)
        return []""",
        ],
        says="something other than one micro-batch",
    ),
    Answer(
        6,
        "a schedule of its own",
        swap=(
            "for tick in in_ticks(schedule):",
            (
                "in_ticks(schedule)\nschedule = [sorted(actions, key=lambda a: (a.kind == 'B', a.chunk if a.kind == 'F'"
                " else -a.chunk, a.microbatch)) for actions in schedule]\nfor tick in in_ticks(schedule):"
            ),
        ),
        says="not the one that the schedule asks for",
    ),
    Answer(
        6,
        "the last micro-batch is skipped",
        swap=(
            "leaving = worker.act(action, arrived)",
            "leaving = worker.act(action, arrived) if action.microbatch < len(batch.xs) - 1 else batch.like",
        ),
        says="the schedule asks for",
    ),
    Answer(
        6,
        "sent before it is received, on either side",
        swap=(
            ("sending.append(dist.isend(leaving, target))", "dist.send(leaving, target)"),
            (
                "arriving[place] = room, dist.irecv(room, source)",
                "dist.recv(room, source)\n            arriving[place] = room, None",
            ),
            (
                "for source, action in tick.items():",
                "for source, action in sorted(tick.items(), key=lambda pair: pair[0] != rank):",
            ),
        ),
        says="deadlock",
    ),
    Answer(
        6,
        "messages by tags, received when needed",
        [None, BY_TAGS],
        says="8 messages to rank 0 are sent before the pass that precedes their use, and 0 travel",
    ),
    Answer(
        6,
        "what arrives is waited for in its tick",
        swap=(
            "arriving[place] = room, dist.irecv(room, source)",
            "dist.irecv(room, source).wait()\n            arriving[place] = room, None",
        ),
        says="",
    ),
    Answer(
        6,
        "what arrives is waited for at the end of its tick",
        swap=(
            "    while len(sending)",
            "    for key, (room, work) in list(arriving.items()):\n        if work:\n            work.wait()\n"
            "            arriving[key] = room, None\n    while len(sending)",
        ),
        says="and 0 travel while this rank computes it",
    ),
    Answer(
        6,
        "received when needed, in the order of use",
        [
            None,
            BY_TAGS.replace(", tag=tag(kind, j, stage)", "").replace(
                ", tag=tag(kind, action.microbatch, target[0])", ""
            ),
        ],
        says="",
    ),
    Answer(
        6,
        "what is sent is not waited for",
        swap=("for work in sending:\n    work.wait()\n", ""),
        says="still in flight",
    ),
    Answer(
        6,
        "all sends are waited for at the end",
        swap=("    while len(sending) > 2 * world:\n        sending.popleft().wait()\n", ""),
        says="freed only at the end",
    ),
    Answer(
        6, "what arrives is not waited for", swap=("        if work:\n            work.wait()\n", ""), says="in flight"
    ),
    Answer(
        6, "one room for all that arrives", swap=("room = torch.empty_like(batch.like)", "room = batch.like"), says=""
    ),
    Answer(
        6,
        "one room for each stage",
        swap=(
            (
                "room = torch.empty_like(batch.like)",
                "room = rooms.setdefault(place[::2], torch.empty_like(batch.like))",
            ),
            ("worker = Worker(chunks, batch, rank, world)", "rooms = {}\nworker = Worker(chunks, batch, rank, world)"),
        ),
        says="",
    ),
    Answer(
        6,
        "what arrives is taken in the order of arrival",
        swap=(
            (
                "arrived, work = arriving.pop(place, (None, None))",
                "arrived, work = arriving.pop(next((k for k in arriving if k[0] == place[0] and k[2] == place[2]), None), (None, None))",
            ),
        ),
        says="one process's",
    ),
    Answer(
        6,
        "ticks of the first schedule of this length",
        swap=(
            "for tick in in_ticks(schedule):",
            "in_ticks(schedule)\nticks = execute.__dict__.setdefault(tuple(map(len, schedule)), in_ticks(schedule))\nfor tick in ticks:",
        ),
        says="not the one that the schedule asks for",
    ),
    Answer(
        6,
        "always float32",
        swap=("room = torch.empty_like(batch.like)", "room = torch.empty(batch.like.shape)"),
        says="a message and its receiver differ",
    ),
    Answer(
        6,
        "losses in the order of the passes",
        swap=("[worker.losses[j] for j in sorted(worker.losses)]", "list(worker.losses.values())"),
        says="the loss of micro-batch",
    ),
    Answer(
        6,
        "the loss is one sum",
        swap=(
            "[worker.losses[j] for j in sorted(worker.losses)]",
            "[sum(worker.losses.values())] if worker.losses else []",
        ),
        says="has 1 losses",
    ),
    Answer(
        6,
        "what gets stuck is tried",
        swap=("for tick in in_ticks(schedule):", "for tick in [dict(enumerate(row)) for row in zip(*schedule)]:"),
        says="",
    ),
    Answer(
        6,
        "all gradients are sent twice",
        swap=(
            (
                "sending.append(dist.isend(leaving, target))",
                "sending.append(dist.isend(leaving, target))\n            sending.append(dist.isend(leaving, target))",
            ),
            (
                "arriving[place] = room, dist.irecv(room, source)",
                "dist.irecv(torch.empty_like(room), source).wait()\n            arriving[place] = room, dist.irecv(room, source)",
            ),
        ),
        says="sends rank",
    ),
    Answer(
        6,
        "chunks of one rank send to themselves",
        swap=(
            (
                "    if source == target == rank:\n            arriving[place] = leaving, None\n        elif source == rank",
                "    if source == rank",
            ),
        ),
        says="",
    ),
    Answer(
        6,
        "works wait in a barrier",
        swap=("    work.wait()\nreturn [", "    work.wait()\ndist.barrier()\nreturn ["),
        says="calls barrier",
    ),
    Answer(
        6,
        "losses told to all",
        swap=(
            "return [worker.losses[j] for j in sorted(worker.losses)]",
            "losses = torch.stack([worker.losses[j] for j in sorted(worker.losses)]) if worker.losses else torch.zeros(len(batch.xs), dtype=batch.like.dtype)\ndist.broadcast(losses, world - 1)\nreturn list(losses)",
        ),
        says="",
    ),
    Answer(
        5,
        "the last one that has passed stays",
        swap=(
            "return backward(self.passed.pop((j, stage)), arrived)",
            "self.done = self.passed.pop((j, stage))\nreturn backward(self.done, arrived)",
        ),
        says="still keeps",
    ),
    Answer(
        5,
        "keeps the input alone and computes again",
        [
            None,
            """
        j, stage = action.microbatch, stage_of(action, self.rank, self.world)
        def again(x):
            one = Passed(self.chunks[action.chunk], x)
            if stage == self.stages - 1:
                one.output = self.batch.loss_of(one.output, self.batch.ys[j])
            return one
        if action.kind == "F":
            x = self.batch.xs[j] if stage == 0 else arrived
            with torch.no_grad():
                one = again(x)
            if stage == self.stages - 1:
                self.losses[j] = one.output.detach()
            if torch.is_grad_enabled():
                self.passed[j, stage] = x
            return one.output
        if action.kind == "W":
            return backward_weights(self.passed.pop((j, stage)))
        x = self.passed.pop((j, stage))
        one = again(x.requires_grad_() if stage else x)
        if action.kind == "I":
            self.passed[j, stage] = one
            return backward_input(one, arrived)
        return backward(one, arrived)""",
        ],
        says="",
    ),
    Answer(
        5,
        "the gradient is kept in what arrived",
        swap=(
            "return backward(self.passed.pop((j, stage)), arrived)",
            "return backward(self.passed.pop((j, stage)), arrived if arrived is None else arrived * (1 if stage else 1.01))",
        ),
        says="one process's",
    ),
    Answer(
        5,
        "F of the last stage goes backward at once",
        swap=(
            "if passed.output.requires_grad:",
            "if stage == self.stages - 1 and torch.is_grad_enabled():\n        passed.output.backward(retain_graph=True)\n    if passed.output.requires_grad:",
        ),
        says="one process's",
    ),
    Answer(
        5,
        "a loss for each chunk of the last rank",
        swap=("if stage == self.stages - 1:", "if self.rank == self.world - 1 and action.chunk == 0:"),
        says="",
    ),
    Answer(
        5,
        "only one micro-batch a stage is kept",
        swap=(
            (
                "self.passed[j, stage] = passed",
                "self.passed = {key: one for key, one in self.passed.items() if key[1] != stage} | {(j, stage): passed}",
            ),
        ),
        says="stopped with",
    ),
    Answer(
        6,
        "a send is waited for before the next action",
        swap=(
            "    while len(sending) > 2 * world:\n        sending.popleft().wait()\n",
            "    while len(sending) > m_of(batch):\n        sending.popleft().wait()\n",
        ),
        edits=(("def execute(", "def m_of(batch):\n    return len(batch.xs)\n\n\ndef execute("),),
        says="freed only at the end",
    ),
    Answer(
        6,
        "receives are posted before the action",
        swap=(
            (
                "leaving = worker.act(action, arrived)",
                "leaving = worker.act(action, arrived)\n        if rank == 0:\n            batch.like.zero_()",
            ),
        ),
        says="batch[2], which it is given",
    ),
    Answer(
        5,
        "inputs pile up",
        swap=(
            "passed = Passed(self.chunks[action.chunk], x)",
            "passed = Passed(self.chunks[action.chunk], x)\n    self.seen = [*getattr(self, 'seen', []), x]",
        ),
        says="still keeps",
    ),
    Answer(
        5,
        "frees the caller's inputs",
        swap=(
            "x = self.batch.xs[j] if stage == 0 else",
            "if stage == 0:\n        fresh, self.batch.xs[j] = self.batch.xs[j], None\n    x = fresh if stage == 0 else",
        ),
        says="has lost its inputs",
    ),
    Answer(
        5,
        "loss on the last rank",
        swap=("if stage == self.stages - 1:", "if self.rank == self.world - 1:"),
        says="returns a tensor of shape ()",
    ),
]


RIGHT = [
    Answer(
        5,
        "the last one that has passed has a name",
        swap=(
            "return backward(self.passed.pop((j, stage)), arrived)",
            "done = self.passed.pop((j, stage))\ngiven = backward(done, arrived)\nreturn given",
        ),
    ),
    Answer(
        5,
        "by autograd.backward, and a branch for each kind",
        [
            """
        torch.autograd.backward(passed.output, gradient)
        return passed.input.grad if passed.input.requires_grad else None""",
            """
        def forward(x):
            first = self.rank == 0 and action.chunk == 0
            last = self.rank == self.world - 1 and action.chunk == len(self.chunks) - 1
            if first:
                x = self.batch.xs[action.microbatch]
            elif torch.is_grad_enabled():
                x = x.requires_grad_()
            passed = Passed(self.chunks[action.chunk], x)
            stream = passed.output.detach()
            if last:
                passed.output = self.batch.loss_of(passed.output, self.batch.ys[action.microbatch])
                self.losses[action.microbatch] = passed.output.detach().clone()
            if torch.is_grad_enabled():
                self.passed[action.microbatch, action.chunk] = passed
            return None if last else stream

        match action.kind:
            case "F":
                return forward(arrived)
            case "I":
                return backward_input(self.passed[action.microbatch, action.chunk], arrived)
            case "W":
                backward_weights(self.passed.pop((action.microbatch, action.chunk)))
                return None
        return backward(self.passed.pop((action.microbatch, action.chunk)), arrived)""",
        ],
    ),
    Answer(
        5,
        "kept by chunk and micro-batch, in dictionaries of their own",
        [
            "passed.output.backward(gradient)\ngiven, passed.output = passed.input.grad, None\nreturn given",
            """
        j, c = action.microbatch, action.chunk
        of_chunk = self.passed.setdefault(c, {})
        if action.kind != "F":
            one = of_chunk[j] if action.kind == "I" else of_chunk.pop(j)
            if action.kind == "W":
                return backward_weights(one)
            return (backward_input if action.kind == "I" else backward)(one, arrived)
        stage = c * self.world + self.rank
        x = arrived
        if stage == 0:
            x = self.batch.xs[j]
        else:
            x.requires_grad = torch.is_grad_enabled()
        one = Passed(self.chunks[c], x)
        given = one.output.detach()
        if stage + 1 == self.stages:
            one.output = self.batch.loss_of(one.output, self.batch.ys[j])
            self.losses[j] = one.output.detach()
        if one.output.requires_grad:
            of_chunk[j] = one
        return given""",
        ],
    ),
    Answer(
        6,
        "each tick's messages are waited for at once",
        swap=(
            "    while len(sending) > 2 * world:\n        sending.popleft().wait()\n",
            """    while sending:
        sending.popleft().wait()
""",
        ),
    ),
    Answer(
        6,
        "tick by tick with batch_isend_irecv, waited for one tick later",
        [
            None,
            """
        worker, there, before = Worker(chunks, batch, rank, world), {}, []
        for tick in in_ticks(schedule):
            action, given = tick.get(rank), None
            if action is not None:
                name = (action.kind if action.kind in "FW" else "B", action.microbatch, stage_of(action, rank, world))
                tensor, works = there.pop(name, (None, []))
                for work in works:
                    work.wait()
                given = worker.act(action, tensor)
            works = []
            for source, done in tick.items():
                to = goes_to(done, source, world, worker.stages)
                if to is None or rank not in (source, to[1]):
                    continue
                name = ("F" if done.kind == "F" else "B", done.microbatch, to[0])
                if source == to[1]:
                    there[name] = given, []
                elif source == rank:
                    works += dist.batch_isend_irecv([dist.P2POp(dist.isend, given, to[1])])
                else:
                    room = torch.empty_like(batch.like)
                    there[name] = room, dist.batch_isend_irecv([dist.P2POp(dist.irecv, room, source)])
            for work in before:
                work.wait()
            before = works
        for work in before:
            work.wait()
        return [loss for _, loss in sorted(worker.losses.items())]""",
        ],
    ),
    Answer(
        6,
        "a list of sends of the last ticks",
        swap=(
            ("sending: deque[dist.Work] = deque()", "sending = []"),
            (
                "    while len(sending) > 2 * world:\n        sending.popleft().wait()\n",
                "    for work in sending[:-3]:\n        work.wait()\n    sending = sending[-3:]\n",
            ),
        ),
    ),
    Answer(
        6,
        "sends of the tick before the one before",
        [
            None,
            """
        worker, boxes, out, number = Worker(chunks, batch, rank, world), {}, {}, 0
        for number, tick in enumerate(in_ticks(schedule)):
            given = None
            if rank in tick:
                action = tick[rank]
                box = boxes.pop((action.kind == "F", action.microbatch, stage_of(action, rank, world)), None) if action.kind != "W" else None
                if box is not None and box[1] is not None:
                    box[1].wait()
                given = worker.act(action, box and box[0])
            for source in sorted(tick):
                to = goes_to(tick[source], source, world, worker.stages)
                if to is None:
                    continue
                name = (tick[source].kind == "F", tick[source].microbatch, to[0])
                if source == rank and to[1] != rank:
                    out.setdefault(number, []).append(dist.isend(given, to[1]))
                elif source == rank:
                    boxes[name] = (given, None)
                elif to[1] == rank:
                    room = batch.like.new_empty(batch.like.shape)
                    boxes[name] = (room, dist.irecv(room, source))
            for work in out.pop(number - 2, []):
                work.wait()
        for works in out.values():
            for work in works:
                work.wait()
        return [worker.losses[j] for j in range(len(worker.losses))]""",
        ],
    ),
]

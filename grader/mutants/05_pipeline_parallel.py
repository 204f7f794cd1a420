"""Other answers to the TODOs of 05_pipeline_parallel."""

from grader.kit import Answer

NAIVE_END = "return loss.detach() if rank == world - 1 else None"

WHOLE_BACKWARD = """
passed.output.backward(gradient)
return passed.input.grad
"""

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
        1,
        "the most even stages",
        [
            None,
            """
            n = len(costs)
            if n < stages:
                raise ValueError(f"{n} pieces cannot be cut into {stages} stages")
            best, smallest = None, math.inf
            for places in combinations(range(1, n), stages - 1):
                bounds = (0, *places, n)
                loads = [sum(costs[a:b]) for a, b in pairwise(bounds)]
                if max(loads) - min(loads) < smallest:
                    best, smallest = bounds, max(loads) - min(loads)
            return [list(range(a, b)) for a, b in pairwise(best)]
            """,
            None,
            None,
        ],
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "attention is forgotten",
        swap=("2 * (4 * dim * dim + 8 * dim * dim) + 4 * length * dim", "24 * dim * dim"),
        says="costs_of_pieces",
    ),
    Answer(
        1,
        "multiplications alone",
        swap=("2 * (4 * dim * dim + 8 * dim * dim) + 4 * length * dim", "12 * dim * dim + 2 * length * dim"),
        says="costs_of_pieces",
    ),
    Answer(1, "the embedding costs a product", swap=("[0.0] +", "[2.0 * dim * vocab_size] +"), says="costs_of_pieces"),
    Answer(
        1,
        "cut by the number of pieces",
        [
            None,
            (
                "if len(costs) < stages:\n    raise ValueError('few')\nreturn [part.tolist() for part in"
                " torch.arange(len(costs)).tensor_split(stages)]"
            ),
            None,
            None,
        ],
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "stages filled up one after the other",
        [
            None,
            """
        if len(costs) < stages:
            raise ValueError("few")
        cuts, mine, target = [], [], sum(costs) / stages
        for number, cost in enumerate(costs):
            left = len(costs) - number
            full = sum(costs[n] for n in mine) + cost > target or left < stages - len(cuts)
            if mine and len(cuts) < stages - 1 and full:
                cuts.append(mine)
                mine = []
            mine.append(number)
        return [*cuts, mine]""",
            None,
            None,
        ],
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "the fastest stage as slow as possible",
        swap=("slowest = max(", "slowest = -min("),
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "the embedding, which costs nothing, is left out",
        swap=("range(a, b)) for", "range(max(a, 1), b)) for"),
        says="each piece once",
    ),
    Answer(
        1,
        "too few pieces are cut all the same",
        swap=('raise ValueError(f"{n} pieces cannot be cut into {stages} stages")', "return [[n] for n in range(n)]"),
        says="is not refused",
    ),
    Answer(
        1,
        "a stage that has all weights",
        [
            None,
            None,
            "self.model, self.pieces = model, list(pieces)",
            """
        last = len(self.model.blocks) + 1
        if 0 in self.pieces:
            positions = self.model.position_embedding(torch.arange(x.shape[1]))
            x = self.model.dropout(self.model.token_embedding(x) + positions)
        for n in self.pieces:
            if 0 < n < last:
                x = self.model.blocks[n - 1](x)
        return self.model.head(self.model.norm(x)) if last in self.pieces else x""",
        ],
        says="no parameter that is called",
    ),
    Answer(
        1,
        "all weights, by their right names",
        swap=(
            "nn.ModuleDict({str(n - 1): model.blocks[n - 1] for n in pieces if 0 < n < last})",
            "model.blocks\nself.mine = [str(n - 1) for n in pieces if 0 < n < last]",
        ),
        edits=(("for block in self.blocks.values():", "for block in [self.blocks[int(n)] for n in self.mine]:"),),
        says="belongs to piece",
    ),
    Answer(
        1,
        "all weights, hidden in a list",
        swap=("last = len(model.blocks) + 1\n", "last = len(model.blocks) + 1\nself.whole = [model]\n"),
        says="though it does not name them",
    ),
    Answer(
        1,
        "the blocks numbered anew",
        swap=(
            "{str(n - 1): model.blocks[n - 1] for n in pieces if 0 < n < last}",
            "{str(i): model.blocks[n - 1] for i, n in enumerate(n for n in pieces if 0 < n < last)}",
        ),
        says="no parameter that is called",
    ),
    Answer(
        1,
        "one block too far",
        swap=(
            "{str(n - 1): model.blocks[n - 1] for n in pieces if 0 < n < last}",
            "{str(n - 1): model.blocks[n % len(model.blocks)] for n in pieces if 0 < n < last}",
        ),
        says="does not have the model's values",
    ),
    Answer(
        1,
        "fresh weights",
        swap=(
            "model.blocks[n - 1] for n in pieces if 0 < n < last}",
            "type(model.blocks[0])(model.config['dim'], model.config['n_heads'], 0.2) for n in pieces if 0 < n < last}",
        ),
        says="does not have the model's values",
    ),
    Answer(
        1,
        "without dropout",
        swap=(
            "self.dropout(self.token_embedding(x) + self.position_embedding(positions_T))",
            "self.token_embedding(x) + self.position_embedding(positions_T)",
        ),
        says="do not give the model's output",
    ),
    Answer(
        1,
        "without the last norm",
        swap=("self.head(self.norm(x))", "self.head(x)"),
        says="do not give the model's output",
    ),
    Answer(
        1,
        "the position embedding is on no stage",
        swap=(
            "self.token_embedding, self.position_embedding = model.token_embedding, model.position_embedding",
            "self.token_embedding = model.token_embedding",
        ),
        edits=(
            (
                "self.dropout(self.token_embedding(x) + self.position_embedding(positions_T))",
                "self.dropout(self.token_embedding(x))",
            ),
        ),
        says="position_embedding",
    ),
    Answer(1, "three blocks, always", swap=("last = len(model.blocks) + 1\n", "last = 4\n")),
    Answer(
        1,
        "the model gives its blocks away",
        swap=(
            "self.norm, self.head = model.norm, model.head",
            "self.norm, self.head = model.norm, model.head\n    del model.blocks",
        ),
        says="lacks parameters afterwards",
    ),
    Answer(
        1,
        "costs are changed on the way",
        swap=("n = len(costs)\n", "n = len(costs)\nif n >= stages:\n    costs[0] += 0.5\n"),
    ),
    Answer(1, "too few pieces only by one", swap=("if n < stages:", "if n == stages - 1:")),
    Answer(
        1,
        "a stage that drops nothing",
        swap=("x = self.dropout(", "x = nn.Identity()("),
        says="do not give the model's output",
    ),
    Answer(
        1,
        "blocks in the order of their names as text",
        swap=(
            "for block in self.blocks.values():\n    x = block(x)",
            "for name in sorted(self.blocks):\n    x = self.blocks[name](x)",
        ),
        says="do not give the model's output",
    ),
    Answer(
        2,
        "like is the room for what arrives",
        swap=(
            ("x = torch.empty_like(like)\n    dist.recv(x, rank - 1)", "dist.recv(like, rank - 1)"),
            ("x.requires_grad_()", "x = like.requires_grad_()"),
        ),
        says="like, which it is given",
    ),
    Answer(2, "what arrives asks for no gradient", swap=("    x.requires_grad_()\n", ""), says="stopped with"),
    Answer(
        2,
        "the gradient is not sent back",
        swap=(
            (
                (
                    "    gradient = torch.empty_like(like)\n    dist.recv(gradient, rank + 1)\n   "
                    " output.backward(gradient)\n"
                ),
                "",
            ),
            ("if rank > 0:\n    dist.send(x.grad, rank - 1)\n", ""),
        ),
        says="computes forward 0",
    ),
    Answer(
        2,
        "a gradient of ones in place of the one that is sent",
        swap=("output.backward(gradient)", "output.backward(torch.ones_like(output))"),
        says="one process's",
    ),
    Answer(
        2,
        "the gradient goes backward twice",
        swap=(
            "output.backward(gradient)",
            "output.backward(gradient, retain_graph=True)\n    output.backward(gradient)",
        ),
        says="computes forward 0, back 0, back 0",
    ),
    Answer(
        2,
        "the activation is sent in place of the gradient",
        swap=("dist.send(x.grad, rank - 1)", "dist.send(x.detach(), rank - 1)"),
        says="one process's",
    ),
    Answer(
        2,
        "both wait for the other first",
        swap=(
            (
                "dist.send(output.detach(), rank + 1)\n    gradient = torch.empty_like(like)\n    dist.recv(gradient,"
                " rank + 1)"
            ),
            (
                "gradient = torch.empty_like(like)\n    dist.recv(gradient, rank + 1)\n    dist.send(output.detach(),"
                " rank + 1)"
            ),
        ),
        says="deadlock",
    ),
    Answer(
        2,
        "always float32",
        swap=("    x = torch.empty_like(like)", "    x = torch.empty(like.shape)"),
        says="a message and its receiver differ",
    ),
    Answer(
        2, "the loss keeps its history", swap=("return loss.detach() if", "return loss if"), says="keeps its history"
    ),
    Answer(
        2,
        "all ranks return something",
        swap=(NAIVE_END, "return loss.detach() if rank == world - 1 else output.detach().sum()"),
        says="returns a loss, but has no losses",
    ),
    Answer(
        2,
        "sent, and not waited for",
        swap=("dist.send(x.grad, rank - 1)", "dist.isend(x.grad, rank - 1)"),
        says="in flight",
    ),
    Answer(
        2,
        "all ranks are told by a broadcast",
        swap=("    dist.recv(x, rank - 1)", "    pass"),
        edits=(
            (
                "    output = stage(x)\n    if rank == world - 1:\n        loss",
                """    for source in range(world - 1):
        if source == rank:
            output = stage(x)
        box = output.detach().clone() if source == rank else torch.empty_like(like)
        dist.broadcast(box, source)
        if source == rank - 1:
            x = box.requires_grad_()
    if rank == world - 1:
        output = stage(x)
    if rank == world - 1:
        loss""",
            ),
            ("        dist.send(output.detach(), rank + 1)\n        gradient = torch", "        gradient = torch"),
        ),
    ),
    Answer(
        2,
        "the stage computes twice",
        swap=("output = stage(x)", "stage(x)\noutput = stage(x)"),
        says="computes forward 0, forward 0",
    ),
    Answer(
        2,
        "the room of the first call",
        swap=(
            "x = torch.empty_like(like)\n",
            "x = naive_step.__dict__.setdefault('room', torch.empty_like(like)).detach()\n",
        ),
        says="",
    ),
    Answer(
        2,
        "the first rank's input is asked for a gradient as well",
        swap=("    x.requires_grad_()\n", "    pass\nx.requires_grad_()\n"),
        says="x, which it is given",
    ),
    Answer(
        2,
        "the last rank's gradient, averaged over the ranks",
        swap=("loss.backward()", "(loss / world).backward()"),
        says="one process's",
    ),
    Answer(
        3,
        "cut along the tokens",
        [
            """
        columns = math.ceil(x.shape[1] / m)
        return list(x.split(columns, dim=1)), list(y.split(columns, dim=1))""",
            None,
            None,
        ],
        says="the batch is the first dimension",
    ),
    Answer(3, "not filled up", swap=("missing = m * rows - len(x)", "missing = 0"), says="have the wrong shapes"),
    Answer(
        3,
        "the last rows are dropped",
        [
            """
        rows = max(1, len(x) // m)
        return list(x[: m * rows].split(rows)), list(y[: m * rows].split(rows))""",
            None,
            None,
        ],
        says="have the wrong shapes",
    ),
    Answer(
        3,
        "filled up with targets that count",
        swap=("(missing, y.shape[1]), IGNORE", "(missing, y.shape[1]), 0"),
        says="padding rows",
    ),
    Answer(
        3,
        "in turns",
        swap=(
            "return list(x.split(rows)), list(y.split(rows))",
            "return [x[j::m] for j in range(m)], [y[j::m] for j in range(m)]",
        ),
        says="not the batch's rows in order",
    ),
    Answer(
        3,
        "rows that are the last one again",
        swap=("x.new_full((missing, x.shape[1]), 0)", "x[-1:].expand(missing, -1)"),
        says="padding rows",
    ),
    Answer(
        3,
        "a mean of each micro-batch",
        swap=('reduction="sum") / counted', 'reduction="mean")'),
        says="the share of a row is not",
    ),
    Answer(3, "all targets count", swap=("int((y != IGNORE).sum())", "y.numel()"), says="the share of a row is not"),
    Answer(
        3,
        "divided by those of the micro-batch",
        swap=("/ counted", "/ max(1, int((y_part != IGNORE).sum()))"),
        says="the share of a row is not",
    ),
    Answer(
        3,
        "nothing counts, and nothing is divided by",
        swap=("max(1, int((y != IGNORE).sum()))", "int((y != IGNORE).sum())"),
        says="no",
    ),
    Answer(
        3,
        "one backward pass at the end",
        [
            None,
            None,
            """
        loss_of = loss_of_batch(y)
        loss = sum(loss_of(model(x_part), y_part) for x_part, y_part in zip(*split(x, y, m)))
        loss.backward()
        return loss.detach()""",
        ],
        says="of activations of earlier ones",
    ),
    Answer(
        3,
        "the whole batch at once",
        [None, None, "loss = loss_of_batch(y)(model(x), y)\nloss.backward()\nreturn loss.detach()"],
        says="something other than the micro-batches",
    ),
    Answer(
        3,
        "the last micro-batch is skipped",
        swap=("zip(*split(x, y, m), strict=True)", "list(zip(*split(x, y, m)))[: max(1, m - 1)]"),
        says="accumulate",
    ),
    Answer(
        3,
        "the losses' mean",
        swap=("torch.stack(losses).sum()", "torch.stack(losses).mean()"),
        says="the loss is not the whole batch's",
    ),
    Answer(3, "divided by m once more", swap=("loss.backward()", "(loss / m).backward()"), says="one process's"),
    Answer(
        3, "the last loss", swap=("torch.stack(losses).sum()", "losses[-1]"), says="the loss is not the whole batch's"
    ),
    Answer(3, "no backward pass", swap=("loss.backward()", "pass"), says="is missing: no backward pass reached it"),
    Answer(
        3,
        "gradients of the last micro-batch",
        swap=("    loss.backward()", "    model.zero_grad()\n    loss.backward()"),
        says="one process's",
    ),
    Answer(
        3,
        "counted for the batch of the last call",
        swap=(
            ("counted = max(1, int((y != IGNORE).sum()))", "loss_of_batch.counted = max(1, int((y != IGNORE).sum()))"),
            ("/ counted", "/ loss_of_batch.counted"),
        ),
        says="the share of a row is not",
    ),
    Answer(
        3,
        "padding is written into the batch",
        swap=("missing = m * rows - len(x)\n", "missing = m * rows - len(x)\nx[x == 0] = 1\n"),
        says="",
    ),
    Answer(4, "the empty schedule", ["return [[] for _ in range(world)]", None], says="does nothing"),
    Answer(4, "no schedule", ["return []", None], says="0 lists"),
    Answer(4, "forward passes only", swap=("[forward + backward for", "[forward for"), says="never does B0"),
    Answer(
        4,
        "the last micro-batch is skipped",
        swap=('[Action("B", j) for j in range(m)]', '[Action("B", j) for j in range(m - 1)]'),
        says="never does B",
    ),
    Answer(
        4,
        "one after the other",
        ['return [[Action(kind, j) for j in range(m) for kind in "FB"] for _ in range(world)]', None],
        says="all forward passes, then",
    ),
    Answer(
        4,
        "ranks go backward in other orders",
        swap=(
            "[forward + backward for _ in range(world)]",
            "[forward + (backward if rank % 2 else backward[::-1]) for rank in range(world)]",
        ),
        says="the ranks' orders do not match",
    ),
    Answer(
        4,
        "counted from 1",
        swap=(('[Action("F", j) for j in range(m)]', '[Action("F", j + 1) for j in range(m)]'),),
        says="never does F0",
    ),
    Answer(
        4,
        "plain strings",
        ['return [[f"F{j}" for j in range(m)] + [f"B{j}" for j in range(m)] for _ in range(world)]', None],
        says="which is not an Action",
    ),
    Answer(
        4,
        "every action at once",
        [None, "return [[(0.0, seconds[a.kind]) for a in actions] for actions in schedule]"],
        says="at the wrong time",
    ),
    Answer(
        4,
        "one after the other on each rank, whatever it needs",
        swap=("max(free, ends.get(need, 0.0))", "free"),
        says="at the wrong time",
    ),
    Answer(
        4,
        "a rank's own actions may overlap",
        swap=("max(free, ends.get(need, 0.0))", "ends.get(need, 0.0)"),
        says="at the wrong time",
    ),
    Answer(
        4, "every kind takes one second", swap=("start + seconds[action.kind]", "start + 1"), says="at the wrong time"
    ),
    Answer(
        4,
        "chunks are forgotten",
        swap=(
            ("            stage = stage_of(action, rank, world)\n", "            stage = rank\n"),
            ("max((stage_of(a, rank, world) for", "max((rank for"),
        ),
        says="simulate",
    ),
    Answer(
        4,
        "W waits for nothing",
        swap=('        return ("backward", action.microbatch, stage)\n', "        return None\n"),
        says="simulate",
    ),
    Answer(
        4,
        "the last stage needs no forward pass",
        swap=(
            'return ("forward", action.microbatch, stage) if stage == last else',
            "return None if stage == last else",
        ),
        says="simulate",
    ),
    Answer(
        4,
        "what gets stuck is left out",
        swap=('raise ValueError(f"rank {rank} waits forever for what {actions[len(times[rank])]} needs")', "pass"),
        says="raises nothing",
    ),
    Answer(
        4,
        "an end at 0 is taken for none",
        swap=("if need and need not in ends:", "if need and not ends.get(need):"),
        says="'F': 0.0",
    ),
    Answer(4, "another error", swap=("raise ValueError(f", "raise RuntimeError(f"), says="raises RuntimeError"),
    Answer(
        4,
        "times are whole seconds",
        swap=(
            "times[rank].append((start, start +",
            "start = int(start)\n            times[rank].append((start, start +",
        ),
        says="at the wrong time",
    ),
    Answer(
        4,
        "times are rounded",
        swap=("start + seconds[action.kind]))", "round(start + seconds[action.kind], 1)))"),
        says="at the wrong time",
    ),
    Answer(
        4,
        "the error says nothing",
        swap=(
            'ValueError(f"rank {rank} waits forever for what {actions[len(times[rank])]} needs")',
            'ValueError("stuck")',
        ),
        says="does not name",
    ),
    Answer(
        4,
        "the error names the last action",
        swap=("{actions[len(times[rank])]} needs", "{actions[-1]} needs"),
        says="does not name",
    ),
    Answer(
        4,
        "the highest rank is named",
        swap=(
            "for rank, actions in enumerate(schedule):\n    if len(times[rank])",
            "for rank, actions in reversed(list(enumerate(schedule))):\n    if len(times[rank])",
        ),
        says="does not name",
    ),
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
        swap=(
            "    while len(sending) > 2 * world:  # posted so many ticks ago that the receive is posted, too, or soon will be\n        sending.popleft().wait()\n",
            "",
        ),
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
        7,
        "three early at most",
        swap=("early = min(m, world - 1 - rank)", "early = min(m, world - 1 - rank, 3)"),
        says="more than GPipe's",
    ),
    Answer(7, "all forwards first, called 1F1B", ["return gpipe(world, m)"], says="all forward passes come first"),
    Answer(7, "the empty schedule", ["return [[] for _ in range(world)]"], says="does nothing"),
    Answer(
        7,
        "one forward pass more than needed",
        swap=("min(m, world - 1 - rank)", "min(m, world - rank)"),
        says="passes are alive at once",
    ),
    Answer(
        7,
        "the same on all ranks",
        swap=("min(m, world - 1 - rank)", "min(m, world - 1)"),
        says="passes are alive at once",
    ),
    Answer(
        7,
        "one after the other",
        ["return [[Action(kind, j) for j in range(m) for kind in 'FB'] for _ in range(world)]"],
        says="takes",
    ),
    Answer(7, "the ranks turned round", swap=("world - 1 - rank", "rank"), says="one_f_one_b"),
    Answer(
        7,
        "the last backward passes are left out",
        swap=('actions += [Action("B", j) for j in range(m - early, m)]', "pass"),
        says="never does B",
    ),
    Answer(
        7,
        "backward before forward",
        swap=('[Action("F", early + j), Action("B", j)]', '[Action("B", j), Action("F", early + j)]'),
        says="",
    ),
    Answer(
        7,
        "more ranks than micro-batches",
        swap=("min(m, world - 1 - rank)", "world - 1 - rank"),
        says="which does not exist here",
    ),
    Answer(
        7,
        "the last micro-batch is skipped",
        swap=(
            "for j in range(m - early):",
            "m = max(1, m - 1)\n    early = min(early, m)\n    for j in range(m - early):",
        ),
        says="",
    ),
    Answer(7, "four ranks, always", swap=("world - 1 - rank", "max(0, 3 - rank)"), says="one_f_one_b"),
    Answer(8, "early as with two chunks", swap=("(v - 1) * world)", "(min(v, 2) - 1) * world)"), says="gets stuck"),
    Answer(
        8,
        "not interleaved: chunk by chunk",
        swap=(
            "for first in range(0, m, world) for chunk in range(v) for j in range(world)]",
            "for first in [0] for chunk in range(v) for j in range(m)]",
        ),
        says="",
    ),
    Answer(
        8, "the backward passes come in the order of the chunks", swap=("v - 1 - chunk", "chunk"), says="interleaved"
    ),
    Answer(
        8,
        "all forwards first",
        swap=("min(m * v, 2 * (world - 1 - rank) + (v - 1) * world)", "m * v"),
        says="all forward passes come first",
    ),
    Answer(
        8,
        "fewer first passes than it needs",
        swap=("2 * (world - 1 - rank) + (v - 1) * world", "world - 1 - rank"),
        says="gets stuck",
    ),
    Answer(
        8,
        "one more for each rank behind, not two",
        swap=("2 * (world - 1 - rank)", "(world - 1 - rank)"),
        says="ranks wait for messages",
    ),
    Answer(
        8,
        "one too many",
        swap=("2 * (world - 1 - rank) + (v - 1) * world)", "2 * (world - 1 - rank) + (v - 1) * world + 1)"),
        says="passes are alive at once",
    ),
    Answer(
        8,
        "1F1B on chunk 0",
        ["if m % world:\n    raise ValueError\nreturn one_f_one_b(world, m)"],
        says="never does F0 of chunk 1",
    ),
    Answer(
        8,
        "any number of micro-batches",
        swap=('raise ValueError(f"{m} micro-batches are not a multiple of {world} ranks")', "pass"),
        says="is not refused",
    ),
    Answer(
        8,
        "the empty schedule",
        ["if m % world:\n    raise ValueError\nreturn [[] for _ in range(world)]"],
        says="does nothing",
    ),
    Answer(
        8, "micro-batches counted anew in each group", swap=("(first + j, chunk)", "(j, chunk)"), says="never does F"
    ),
    Answer(
        8,
        "chunk by chunk is 1F1B of each",
        [
            """
        if m % world:
            raise ValueError
        one = one_f_one_b(world, m)
        return [[a._replace(chunk=c) for c in range(v) for a in actions] for actions in one]"""
        ],
        says="gets stuck",
    ),
    Answer(
        8, "refused only if there are fewer than ranks", swap=("if m % world:", "if m < world:"), says="is not refused"
    ),
    Answer(
        8,
        "one group is too few",
        swap=("if m % world:", "if m % world or m == world > 2:"),
        says="are not a multiple of",
    ),
    Answer(
        8,
        "odd numbers are refused",
        swap=("if m % world:", "if m % 2 and world % 2 == 0 or m < world:"),
        says="is not refused",
    ),
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
    Answer(11, "p stages' waiting", swap=("(p - 1) * (f + i - w if", "p * (f + i - w if"), says="step_seconds"),
    Answer(
        11,
        "interleaved divides the work, too",
        swap=("return m * (f + i + w) + bubble", "return m * (f + i + w) / v + bubble"),
        says="step_seconds",
    ),
    Answer(
        11,
        "no bubble at all",
        swap=(
            '(f + i - w if name == "zero bubble" else (f + i + w) / v)',
            '(0 if name == "zero bubble" else (f + i + w) / v)',
        ),
        says="step_seconds",
    ),
    Answer(11, "H2 for H1", swap=("f + i - w if", "f + i - 2 * w if"), says="step_seconds"),
    Answer(
        11,
        "the bubble over the work",
        swap=(
            "1 - m * (f + i + w) / step_seconds(name, p, m, v, f, i, w)",
            "step_seconds(name, p, m, v, f, i, w) / (m * (f + i + w)) - 1",
        ),
        says="bubble_share",
    ),
    Answer(11, "in percent", swap=("return 1 - m", "return 100 - 100 * m"), says="bubble_share"),
    Answer(11, "passes, not micro-batches", swap=(" / v\nreturn {", "\nreturn {"), says="most_alive"),
    Answer(11, "1F1B keeps p everywhere", swap=('"1F1B": min(m, p - rank)', '"1F1B": min(m, p)'), says="most_alive"),
    Answer(
        11,
        "zero bubble keeps no more than 1F1B",
        swap=('"zero bubble": min(m, p)', '"zero bubble": min(m, p - rank)'),
        says="most_alive",
    ),
    Answer(
        11,
        "the bubble of 1F1B is smaller than GPipe's",
        swap=("(f + i + w) / v)", '(f + i + w) / (2 if name == "1F1B" else v))'),
        says="step_seconds",
    ),
    Answer(
        11,
        "memory of rank 0 on every rank",
        swap=('"1F1B": min(m, p - rank)', '"1F1B": min(m, p - 0 * rank)'),
        says="most_alive",
    ),
    Answer(
        12,
        "rank 0 tells",
        swap=("dist.broadcast(box, world - 1)", "dist.broadcast(box, 0)"),
        says="gets a different number",
    ),
    Answer(12, "nobody tells", swap=("dist.broadcast(box, world - 1)\n", ""), says="gets a different number"),
    Answer(12, "in float32", swap=("dtype=torch.float64", "dtype=torch.float32"), says="gets a different number"),
    Answer(
        12,
        "the mean over the ranks",
        swap=("dist.broadcast(box, world - 1)\n", "dist.all_reduce(box)\nbox /= world\n"),
        says="gets a different number",
    ),
    Answer(12, "the empty schedule", [None, "return [[] for _ in range(world)]", None], says="does nothing"),
    Answer(12, "with backward passes", [None, "return gpipe(world, m)", None], says="forward_only"),
    Answer(
        12,
        "the first chunk only",
        swap=("for chunk in range(v) for j in range(m)]", "for chunk in range(1) for j in range(m)]"),
        says="of chunk 1",
    ),
    Answer(
        12,
        "a micro-batch through all chunks, then the next one",
        swap=("for chunk in range(v) for j in range(m)]", "for j in range(m) for chunk in range(v)]"),
        says="it takes",
    ),
    Answer(12, "in training mode", swap=("for chunk in chunks:\n    chunk.eval()\n", ""), says="training mode"),
    Answer(12, "modes are not restored", swap=("chunk.train(mode)", "pass"), says="not back in their mode"),
    Answer(
        12, "all chunks train afterwards", swap=("chunk.train(mode)", "chunk.train()"), says="not back in their mode"
    ),
    Answer(12, "with autograd", swap=("with torch.no_grad():", "if True:"), says="autograd on"),
    Answer(
        12,
        "autograd stays off",
        swap=("with torch.no_grad():", "torch.set_grad_enabled(False)\nif True:"),
        says="autograd is off",
    ),
    Answer(
        12,
        "the mean of the batches' means",
        swap=(("total += counted * sum(", "total += sum("), ("count += counted", "count += 1")),
        says="the mean of the batches' means",
    ),
    Answer(12, "what is ignored counts", swap=("int((y != IGNORE).sum())", "y.numel()"), says="one process's"),
    Answer(12, "the first batch", swap=("for batch in batches:", "for batch in batches[:1]:"), says="one process's"),
    Answer(
        12,
        "each rank has its own",
        swap=(
            "return on_all_ranks(total / count if rank == world - 1 else None, rank, world)",
            "return total / count if count else 0.0",
        ),
        says="the mean differs",
    ),
    Answer(
        12,
        "goes backward as well",
        swap=(
            ("forward_only(world, len(batch.xs), len(chunks))", "forward_only(world, len(batch.xs), len(chunks))"),
            ("with torch.no_grad():", "with torch.enable_grad():"),
        ),
        says="autograd on",
    ),
    Answer(
        12,
        "the largest of all ranks",
        swap=("dist.broadcast(box, world - 1)\n", "dist.all_reduce(box, dist.ReduceOp.MAX)\n"),
        says="gets a different number",
    ),
    Answer(
        12,
        "sums in a default argument",
        swap=(
            ("total, count = 0.0, 0\n", ""),
            (
                "total += counted * sum(loss.double().item() for loss in losses)",
                "so_far[0] += counted * sum(loss.double().item() for loss in losses)",
            ),
            ("count += counted", "so_far[1] += counted"),
            ("on_all_ranks(total / count if", "on_all_ranks(so_far[0] / so_far[1] if"),
        ),
        edits=(
            (
                "def evaluate(chunks: Sequence[nn.Module], batches: Sequence[Batch], rank: int, world: int) -> float:",
                "def evaluate(chunks: Sequence[nn.Module], batches: Sequence[Batch], rank: int, world: int, so_far=[0.0, 0]) -> float:",
            ),
        ),
        says="one process's",
    ),
    Answer(
        12,
        "the chunk's own mode alone",
        swap=("chunk.eval()", "chunk.training = False"),
        says="with layers in training mode",
    ),
    Answer(
        12, "its layers stay in eval mode", swap=("chunk.train(mode)", "chunk.training = mode"), says="layers inside"
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
    Answer(1, "half of attention", swap=("4 * length * dim", "2 * length * dim"), says="costs_of_pieces"),
    Answer(
        1,
        "costs as whole numbers of blocks",
        swap=("slowest = max(sum(costs[a:b]) for", "slowest = max(round(sum(costs[a:b])) for"),
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "the first cut that is better than none",
        swap=("lowest, best = slowest, [bounds]", "lowest, best = slowest, best or [bounds]"),
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "the last piece never alone",
        swap=("combinations(range(1, n), stages - 1)", "combinations(range(1, max(stages, n - 1)), stages - 1)"),
        says="the slowest stage costs",
    ),
    Answer(
        1,
        "blocks in the order of their names",
        swap=("for block in self.blocks.values():", "for block in reversed(self.blocks.values()):"),
        says="do not give the model's output",
    ),
    Answer(
        2,
        "the gradient of the output for the input's",
        swap=("dist.send(x.grad, rank - 1)", "dist.send(gradient if rank < world - 1 else x.grad, rank - 1)"),
        says="one process's",
    ),
    Answer(3, "ceil by one too many", swap=("math.ceil(len(x) / m)", "len(x) // m + 1"), says="have the wrong shapes"),
    Answer(
        3,
        "the inputs' padding is IGNORE, too",
        swap=("(missing, x.shape[1]), 0)", "(missing, x.shape[1]), IGNORE)"),
        says="padding rows",
    ),
    Answer(
        3,
        "padding counts",
        swap=(
            "counted = max(1, int((y != IGNORE).sum()))",
            "counted = max(1, y.numel() - int((y == IGNORE).sum()) // 2)",
        ),
        says="the share of a row is not",
    ),
    Answer(
        4,
        "the last stage is the last rank's first chunk",
        swap=(
            "max((stage_of(a, rank, world) for rank, actions in enumerate(schedule) for a in actions), default=0)",
            "world - 1",
        ),
        says="simulate",
    ),
    Answer(
        4,
        "the time at which what it needs began",
        swap=("] = times[rank][-1][1]", "] = times[rank][-1][0]"),
        says="at the wrong time",
    ),
    Answer(4, "one round for each rank", swap=("while moved:", "for _ in schedule:"), says="simulate"),
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
            "    while len(sending) > 2 * world:  # posted so many ticks ago that the receive is posted, too, or soon will be\n        sending.popleft().wait()\n",
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
        7,
        "the pairs the other way round on the last rank",
        swap=(
            'actions += [Action("F", early + j), Action("B", j)]',
            'actions += [Action("F", early + j), Action("B", j)] if rank < world - 1 else [Action("F", j)]\n        actions += [] if rank < world - 1 else [Action("B", j)] * (j < m - 1)',
        ),
        says="never does B",
    ),
    Answer(
        7,
        "early as for an even world",
        swap=("world - 1 - rank", "world - 1 - rank - (world % 2 and rank == 0 and world > 3)"),
        says="one_f_one_b",
    ),
    Answer(
        8,
        "groups of v",
        swap=(
            "range(0, m, world) for chunk in range(v) for j in range(world)]",
            "range(0, m, world) for j in range(world) for chunk in range(v)]",
        ),
        says="",
    ),
    Answer(8, "the pairs turned round", swap=("actions += [f, b]", "actions += [b, f]"), says=""),
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
        11,
        "interleaved keeps what 1F1B keeps",
        swap=(
            'if name == "interleaved":\n    return min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1) / v\n',
            'if name == "interleaved":\n    return min(m, p - rank)\n',
        ),
        says="most_alive",
    ),
    Answer(
        11,
        "W longer than I leaves no bubble",
        swap=("(p - 1) * (f + i - w if", "(p - 1) * (max(0.0, f + i - 2 * w) if"),
        says="step_seconds",
    ),
    Answer(11, "v divides the ranks", swap=("(f + i + w) / v)", "(f + i + w) / v if p > 2 else f + i + w)"), says=""),
    Answer(
        12,
        "the second batch's targets are those of the first",
        swap=(
            "counted = sum(int((y != IGNORE).sum()) for y in batch.ys)",
            "counted = sum(int((y != IGNORE).sum()) for y in batches[0].ys)",
        ),
        says="one process's",
    ),
    Answer(
        12,
        "rank 0 decides what is told",
        swap=("dist.broadcast(box, world - 1)", "dist.broadcast(box, max(0, world - 2))"),
        says="gets a different number",
    ),
    Answer(
        12,
        "as text of five digits",
        swap=("return box.item()", 'return float(f"{box.item():.12g}")'),
        says="gets a different number",
    ),
    Answer(
        12,
        "the totals are kept from one evaluation to the next",
        swap=(
            ("total, count = 0.0, 0", 'totals = globals().setdefault("totals", [0.0, 0])'),
            (
                "total += counted * sum(loss.double().item() for loss in losses)",
                "totals[0] += counted * sum(map(float, losses))",
            ),
            ("count += counted", "totals[1] += counted"),
            ("on_all_ranks(total / count if", "on_all_ranks(totals[0] / totals[1] if"),
        ),
        says="the second evaluation in this process",
    ),
    Answer(
        1,
        "dropout not registered",
        swap=(
            ("self.dropout = model.dropout", "self.drop = (model.dropout,)"),
            ("x = self.dropout(self.token_embedding(x)", "x = self.drop[0](self.token_embedding(x)"),
        ),
        says="is dropout still on?",
    ),
    Answer(
        4,
        "action without its chunk",
        swap=(
            "what {actions[len(times[rank])]} needs",
            "what {actions[len(times[rank])].kind}{actions[len(times[rank])].microbatch} needs",
        ),
        says="rank 0 wants chunk 1 before chunk 0",
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
    Answer(
        10,
        "the newest W after each I",
        swap=(
            'mine.append(Action("W", weights.popleft()))',
            'mine.append(Action("W", action.microbatch)); weights.remove(action.microbatch)',
        ),
        says="while an older W is left",
    ),
    Answer(
        12,
        "counts on every rank",
        swap=(("if rank == world - 1:", "if True:"), ("total / count if rank == world - 1 else None", "total / count")),
        says="ZeroDivisionError",
    ),
    Answer(
        2,
        "into training mode",
        swap=("output = stage(x)", "output = stage.train()(x)"),
        says="is left in training mode",
    ),
    Answer(
        4,
        "the last stage is the last chunk of the last rank",
        swap=(
            "last = max((stage_of(a, rank, world) for rank, actions in enumerate(schedule) for a in actions), default=0)",
            """chunks = 1 + max((action.chunk for actions in schedule for action in actions), default=0)
last = chunks * world - 1""",
        ),
        says="waits forever",
    ),
]

RIGHT = [
    Answer(
        1,
        "a stage may cost so much: the least limit that will do",
        [
            None,
            """
        if len(costs) < stages:
            raise ValueError("fewer pieces than stages")
        def fill(limit):
            parts = [[0]]
            for number in range(1, len(costs)):
                left = len(costs) - number
                if sum(costs[n] for n in parts[-1]) + costs[number] > limit or left == stages - len(parts):
                    parts.append([])
                parts[-1].append(number)
            return parts
        limits = sorted(sum(costs[a:b]) for a in range(len(costs)) for b in range(a + 1, len(costs) + 1))
        for limit in limits:
            parts = fill(limit)
            if len(parts) == stages and max(sum(costs[n] for n in part) for part in parts) <= limit:
                return parts""",
            None,
            None,
        ],
    ),
    Answer(
        1,
        "all pieces as modules, in other attributes",
        [
            None,
            None,
            """
        self.first, self.final = 0 in pieces, len(model.blocks) + 1 in pieces
        self.blocks = nn.ModuleDict()
        for number in pieces:
            if number == 0:
                self.add_module("token_embedding", model.token_embedding)
                self.add_module("position_embedding", model.position_embedding)
                self.add_module("dropout", model.dropout)
            elif number == len(model.blocks) + 1:
                self.norm = model.norm
                self.head = model.head
            else:
                self.blocks[str(number - 1)] = model.blocks[number - 1]""",
            """
        if self.first:
            x = self.dropout(self.token_embedding(x) + self.position_embedding.weight[: x.shape[1]])
        for name in self.blocks:
            x = self.blocks[name](x)
        if self.final:
            x = self.head(self.norm(x))
        return x""",
        ],
    ),
    Answer(
        1,
        "pieces of a dictionary, and a cut by halving the costs' limit",
        [
            "per_block = dim * (24 * dim + 4 * length)\nreturn [0.0, *n_layers * [float(per_block)], float(2 * vocab_size * dim)]",
            """
        if stages > len(costs):
            raise ValueError("too few pieces")
        if stages == 1:
            return [list(range(len(costs)))]
        best = None
        for first in range(1, len(costs) - stages + 2):
            rest = [[n + first for n in part] for part in cut(costs[first:], stages - 1)]
            parts = [list(range(first)), *rest]
            worst = max(sum(costs[n] for n in part) for part in parts)
            if best is None or worst < best[0]:
                best = worst, parts
        return best[1]""",
            None,
            None,
        ],
    ),
    Answer(
        2,
        "by isend and irecv",
        swap=(
            ("dist.recv(x, rank - 1)", "dist.irecv(x, rank - 1).wait()"),
            ("dist.send(x.grad, rank - 1)", "dist.isend(x.grad, rank - 1).wait()"),
        ),
    ),
    Answer(
        2,
        "by batch_isend_irecv and autograd.grad",
        swap=(
            (
                (
                    "dist.send(output.detach(), rank + 1)\n    gradient = torch.empty_like(like)\n   "
                    " dist.recv(gradient, rank + 1)"
                ),
                """gradient = torch.empty_like(like)
    ops = [dist.P2POp(dist.isend, output.detach(), rank + 1), dist.P2POp(dist.irecv, gradient, rank + 1)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()""",
            ),
            ("output.backward(gradient)", "torch.autograd.backward([output], [gradient])"),
        ),
    ),
    Answer(
        3,
        "rows one by one",
        [
            """
        rows = math.ceil(len(x) / m)
        xs = x.new_zeros(m, rows, x.shape[1])
        ys = torch.full_like(xs, IGNORE)
        xs.view(m * rows, -1)[: len(x)] = x
        ys.view(m * rows, -1)[: len(y)] = y
        return list(xs), list(ys)""",
            """
        weight = 1 / (y != IGNORE).sum().clamp(min=1)
        def loss_of(logits, y_part):
            return weight * F.cross_entropy(logits.mT, y_part, ignore_index=IGNORE, reduction="none").sum()
        return loss_of
        """,
            """
        loss_of, total = loss_of_batch(y), torch.zeros(())
        for x_part, y_part in zip(*split(x, y, m)):
            part = loss_of(model(x_part), y_part)
            part.backward()
            total += part.detach()
        return total""",
        ],
    ),
    Answer(
        4,
        "backward from the last micro-batch to the first, as the paper does",
        swap=("for j in range(m)]\nreturn", "for j in reversed(range(m))]\nreturn"),
    ),
    Answer(
        4,
        "the first that can begin begins",
        [
            None,
            """
        world = len(schedule)
        last = max(stage_of(a, r, world) for r, actions in enumerate(schedule) for a in actions)
        there, times = {}, [[] for _ in schedule]
        for _ in range(sum(map(len, schedule))):
            for rank, actions in enumerate(schedule):
                if len(times[rank]) == len(actions):
                    continue
                a = actions[len(times[rank])]
                s = stage_of(a, rank, world)
                if a.kind == "F":
                    need = there.get(("F", a.microbatch, s - 1)) if s else 0.0
                elif a.kind == "W":
                    need = there.get(("B", a.microbatch, s))
                else:
                    need = there.get(("F", a.microbatch, s) if s == last else ("B", a.microbatch, s + 1))
                if need is None:
                    continue
                begin = max([need] + [end for _, end in times[rank][-1:]])
                times[rank].append((begin, begin + seconds[a.kind]))
                if a.kind != "W":
                    there["F" if a.kind == "F" else "B", a.microbatch, s] = begin + seconds[a.kind]
                break
            else:
                rank = min(r for r in range(world) if len(times[r]) < len(schedule[r]))
                raise ValueError(f"deadlock: {schedule[rank][len(times[rank])]!r} of rank {rank}")
        return times""",
        ],
    ),
    Answer(
        4,
        "recursion from each action to what it needs",
        [
            None,
            """
        world, found, doing = len(schedule), {}, set()
        place = {(a.kind if a.kind in "FW" else "B", a.microbatch, stage_of(a, r, world)): (r, n) for r, mine in enumerate(schedule) for n, a in enumerate(mine)}
        last = max((s for _, _, s in place), default=0)

        def end(r, n):
            if (r, n) in found:
                return found[r, n][1]
            if (r, n) in doing:
                raise KeyError
            doing.add((r, n))
            a = schedule[r][n]
            s = stage_of(a, r, world)
            begin = end(r, n - 1) if n else 0.0
            if a.kind == "F":
                need = ("F", a.microbatch, s - 1) if s else None
            elif a.kind == "W":
                need = ("B", a.microbatch, s)
            else:
                need = ("F", a.microbatch, s) if s == last else ("B", a.microbatch, s + 1)
            if need:
                begin = max(begin, end(*place[need]))
            found[r, n] = begin, begin + seconds[a.kind]
            return found[r, n][1]

        times = [[] for _ in schedule]
        for r, mine in enumerate(schedule):
            for n, a in enumerate(mine):
                doing.clear()
                try:
                    end(r, n)
                except KeyError:
                    raise ValueError(f"{a} can never begin: rank {r} waits") from None
                times[r].append(found[r, n])
        return times""",
        ],
    ),
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
            (
                "    while len(sending) > 2 * world:  # posted so many ticks ago that the receive is posted, too,"
                " or soon will be\n        sending.popleft().wait()\n"
            ),
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
                "    while len(sending) > 2 * world:  # posted so many ticks ago that the receive is posted, too,"
                " or soon will be\n        sending.popleft().wait()\n",
                "    for work in sending[:-3]:\n        work.wait()\n    sending = sending[-3:]\n",
            ),
        ),
    ),
    Answer(
        7,
        "by asking who is alive",
        [
            """
        schedule = []
        for rank in range(world):
            actions, f, b = [], 0, 0
            while b < m:
                if f < m and f - b < min(m, world - rank):
                    actions.append(Action("F", f))
                    f += 1
                else:
                    actions.append(Action("B", b))
                    b += 1
            schedule.append(actions)
        return schedule"""
        ],
    ),
    Answer(
        7,
        "as interleaved with one chunk",
        [
            """
        schedule = []
        for rank in range(world):
            early = min(m, world - 1 - rank)
            forward = deque(Action("F", j) for j in range(m))
            mine = [forward.popleft() for _ in range(early)]
            for j in range(m):
                if forward:
                    mine.append(forward.popleft())
                mine.append(Action("B", j))
            schedule.append(tuple(mine))
        return tuple(schedule)"""
        ],
    ),
    Answer(
        8,
        "by numbers of passes",
        [
            """
        if m % world:
            raise ValueError("no multiple")
        def action(kind, k):
            group, within = divmod(k, world * v)
            chunk = within // world
            return Action(kind, group * world + within % world, chunk if kind == "F" else v - 1 - chunk)
        schedule = []
        for rank in range(world):
            early = min(m * v, 2 * (world - 1 - rank) + (v - 1) * world)
            mine = [action("F", k) for k in range(early)]
            for k in range(m * v):
                if early + k < m * v:
                    mine.append(action("F", early + k))
                mine.append(action("B", k))
            schedule.append(mine)
        return schedule"""
        ],
    ),
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
        11,
        "in other words",
        [
            """
        if name == "zero bubble":
            return (m + p - 1) * (f + i + w) - 2 * (p - 1) * w
        return (m + (p - 1) / v) * (f + i + w)""",
            """
        whole = step_seconds(name, p, m, v, f, i, w)
        return (whole - m * (f + i + w)) / whole""",
            None,
        ],
    ),
    Answer(12, "by all_reduce of what one has", swap=("dist.broadcast(box, world - 1)", "dist.all_reduce(box)")),
    Answer(
        12,
        "groups of as many micro-batches as ranks, if it divides",
        [
            None,
            """
        if m % world:
            order = [(j, c) for c in range(v) for j in range(m)]
        else:
            order = [(k + j, c) for k in range(0, m, world) for c in range(v) for j in range(world)]
        return [[Action("F", j, c) for j, c in order] for _ in range(world)]""",
            None,
        ],
    ),
    Answer(
        12,
        "by inference mode of each chunk's modules",
        swap=("with torch.no_grad():", "with torch.set_grad_enabled(False):"),
    ),
    Answer(
        12,
        "shares undone by the loss's own count, and the modes kept by module",
        [
            "boxes = [None] * world\ndist.all_gather_object(boxes, value)\nreturn boxes[-1]",
            None,
            """
        before = {module: module.training for chunk in chunks for module in chunk.modules()}
        sums = []
        try:
            for chunk in chunks:
                chunk.train(False)
            with torch.no_grad():
                for batch in batches:
                    shares = execute(forward_only(world, len(batch.xs), len(chunks)), chunks, batch, rank, world)
                    if shares:
                        n = int(torch.cat([y.flatten() for y in batch.ys]).ne(IGNORE).sum())
                        sums.append((float(torch.stack(shares).double().sum()) * n, n))
        finally:
            for module, mode in before.items():
                module.training = mode
        mean = sum(s for s, _ in sums) / sum(n for _, n in sums) if sums else None
        return on_all_ranks(mean, rank, world)""",
        ],
    ),
    Answer(
        1,
        "by dynamic programming",
        [
            None,
            """
        n = len(costs)
        if stages > n:
            raise ValueError(f"{stages} stages of {n} pieces")
        best = {(0, 0): (0.0, [])}
        for k in range(1, stages + 1):
            for end in range(k, n + 1):
                options = []
                for start in range(k - 1, end):
                    if (k - 1, start) in best:
                        worst, parts = best[k - 1, start]
                        options.append((max(worst, sum(costs[start:end])), [*parts, list(range(start, end))]))
                if options:
                    best[k, end] = min(options, key=lambda option: option[0])
        return best[stages, n][1]""",
            None,
            None,
        ],
    ),
    Answer(
        2,
        "through a Passed, and the gradient asked for by autograd.grad",
        """
        if rank:
            stream = torch.zeros_like(like)
            dist.recv(stream, src=rank - 1)
            x = stream.requires_grad_(True)
        out = stage(x)
        final = rank + 1 == world
        result = loss_of(out, y) if final else out
        back = None
        if not final:
            dist.send(out.detach().contiguous(), dst=rank + 1)
            back = torch.empty_like(like)
            dist.recv(back, src=rank + 1)
        torch.autograd.backward(result, back)
        if rank:
            dist.send(x.grad.contiguous(), dst=rank - 1)
        if final:
            return result.detach()
        """,
    ),
    Answer(
        3,
        "chunks of a padded view, and a closure over a sum",
        [
            """
        size = -(-len(x) // m)
        def padded(t, fill):
            out = t.new_full((m * size, t.shape[1]), fill)
            out[: len(t)] = t
            return list(out.chunk(m)) if size else [out] * m
        return padded(x, 0), padded(y, IGNORE)""",
            None,
            """
        share, whole = loss_of_batch(y), 0.0
        xs, ys = split(x, y, m)
        for j in range(m):
            one = share(model(xs[j]), ys[j])
            one.backward()
            whole = whole + one.detach()
            del one
        return whole""",
        ],
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
    Answer(
        7,
        "passes counted from the back",
        """
        def rank_of(r):
            behind, done, actions = world - 1 - r, 0, []
            for f in range(m):
                actions.append(Action("F", f))
                if f >= behind:
                    actions.append(Action("B", done))
                    done += 1
            return actions + [Action("B", b) for b in range(done, m)]
        return list(map(rank_of, range(world)))
        """,
    ),
    Answer(
        8,
        "a deque of forward passes",
        """
        if m % world != 0:
            raise ValueError("micro-batches in whole groups only")
        groups = [range(k, k + world) for k in range(0, m, world)]
        schedule = []
        for rank in range(world):
            todo = deque(Action("F", j, c) for group in groups for c in range(v) for j in group)
            mine = [todo.popleft() for _ in range(min(len(todo), 2 * (world - 1 - rank) + (v - 1) * world))]
            for group in groups:
                for c in reversed(range(v)):
                    for j in group:
                        if todo:
                            mine.append(todo.popleft())
                        mine.append(Action("B", j, c))
            schedule.append(mine)
        return schedule
        """,
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
    Answer(
        11,
        "a table of bubbles",
        [
            """
        bubbles = {"GPipe": f + i + w, "1F1B": f + i + w, "interleaved": (f + i + w) / v, "zero bubble": f + i - w}
        return sum([m * f, m * i, m * w, (p - 1) * bubbles[name]])""",
            "whole = step_seconds(name, p, m, v, f, i, w)\nreturn (whole - m * f - m * i - m * w) / whole",
            """
        passes = {"GPipe": m * v, "1F1B": min(m, p - rank), "zero bubble": min(m, p), "interleaved": min(m * v, 2 * (p - 1 - rank) + (v - 1) * p + 1)}
        return passes[name] / v""",
        ],
    ),
    Answer(
        12,
        "in float64 throughout, by send and recv",
        [
            """
        box = torch.zeros((), dtype=torch.double)
        if rank == world - 1:
            box.fill_(value)
            for other in range(world - 1):
                dist.send(box, other)
        else:
            dist.recv(box, world - 1)
        return float(box)""",
            None,
            None,
        ],
    ),
    Answer(
        11,
        "counted in one's own schedules",
        [
            None,
            None,
            """
        schedules = {"GPipe": gpipe, "1F1B": one_f_one_b, "zero bubble": zero_bubble}
        actions = (interleaved(p, m, v) if name == "interleaved" else schedules[name](p, m))[rank]
        alive = most = 0
        for action in actions:
            alive += {"F": 1, "B": -1, "I": 0, "W": -1}[action.kind]
            most = max(most, alive)
        return most / v""",
        ],
    ),
    Answer(
        8,
        "one chunk is 1F1B",
        swap=("if m % world:\n    raise", "if v == 1:\n    return one_f_one_b(world, m)\nif m % world:\n    raise"),
    ),
]

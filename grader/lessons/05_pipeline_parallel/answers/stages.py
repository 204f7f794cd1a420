"""Other answers to TODOs 1 to 3 of 05_pipeline_parallel."""

from grader.kit import Answer

NAIVE_END = "return loss.detach() if rank == world - 1 else None"


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
        swap=("self.position_embedding = model.position_embedding\n", "pass\n"),
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
        1,
        "dropout not registered",
        swap=(
            ("self.dropout = model.dropout", "self.drop = (model.dropout,)"),
            ("x = self.dropout(self.token_embedding(x)", "x = self.drop[0](self.token_embedding(x)"),
        ),
        says="is dropout still on?",
    ),
    Answer(
        2,
        "into training mode",
        swap=("output = stage(x)", "output = stage.train()(x)"),
        says="is left in training mode",
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
]

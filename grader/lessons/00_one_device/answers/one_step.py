"""Other answers to TODOs 1 to 4 of 00_one_device."""

from grader.kit import Answer

WRONG = [
    Answer(
        1,
        "a mean of the batches' means",
        swap=("return math.exp(total / sum(tokens))", "return math.exp(sum(losses) / len(losses))"),
        says="perplexity",
    ),
    Answer(
        1,
        "a mean of the batches' perplexities",
        ["return sum(math.exp(l) * n for l, n in zip(losses, tokens)) / sum(tokens)", None],
        says="perplexity",
    ),
    Answer(
        1, "a power of two", swap=("math.exp(total / sum(tokens))", "2 ** (total / sum(tokens))"), says="perplexity"
    ),
    Answer(1, "the loss itself", swap=("math.exp(total / sum(tokens))", "total / sum(tokens)"), says="perplexity"),
    Answer(
        1,
        "divided by the batches",
        swap=("total / sum(tokens)", "total / len(tokens) / max(tokens)"),
        says="perplexity",
    ),
    Answer(1, "bits", swap=("math.log(vocabulary)", "math.log2(vocabulary)"), says="untrained_loss"),
    Answer(1, "the perplexity in place of the loss", [None, "return float(vocabulary)"], says="untrained_loss"),
    Answer(1, "one over V", [None, "return 1 / vocabulary"], says="untrained_loss"),
    Answer(1, "one word is known", swap=("math.log(vocabulary)", "math.log(vocabulary - 1)"), says="untrained_loss"),
    Answer(
        1,
        "multiplies the losses in place",
        [
            "for i, count in enumerate(tokens):\n    losses[i] *= count\nreturn math.exp(sum(losses) / sum(tokens))",
            None,
        ],
        says="perplexity: losses, which it is given, has other items afterwards",
    ),
    Answer(
        1,
        "batches without loss are left out",
        [
            "pairs = [(loss, n) for loss, n in zip(losses, tokens) if loss]\ncount = sum(n for _, n in pairs)\nreturn math.exp(sum(loss * n for loss, n in pairs) / count) if count else 1.0",
            None,
        ],
        says="perplexity",
    ),
    Answer(
        1,
        "batches of one token are left out",
        [
            "pairs = [(loss, n) for loss, n in zip(losses, tokens) if n > 1]\nreturn math.exp(sum(loss * n for loss, n in pairs) / sum(n for _, n in pairs))",
            None,
        ],
        says="perplexity",
    ),
    Answer(
        2,
        "empties the first group alone",
        swap=("optimizer.zero_grad()", 'for p in optimizer.param_groups[0]["params"]:\n    p.grad = None'),
        says="after step 2 the model's bias",
    ),
    Answer(
        2,
        "empties the last group alone",
        swap=("optimizer.zero_grad()", 'for p in optimizer.param_groups[-1]["params"]:\n    p.grad = None'),
        says="after step 2 the model's weight",
    ),
    Answer(2, "gradients add up", swap=("optimizer.zero_grad()\n", ""), says="after step 2"),
    Answer(
        2,
        "gradients emptied before they are used",
        swap=("optimizer.zero_grad()\nloss.backward()", "loss.backward()\noptimizer.zero_grad()"),
        says="after step 1",
    ),
    Answer(
        2,
        "in evaluation mode",
        swap=("loss = model(x, y)", "model.eval()\nloss = model(x, y)"),
        says="model, which it is given, is left in evaluation mode",
    ),
    Answer(2, "no step", swap=("optimizer.step()\n", ""), says="after step 1"),
    Answer(2, "no backward pass", swap=("loss.backward()\n", ""), says="after step 1"),
    Answer(
        2, "the loss after the step", swap=("return loss.item()", "return model(x, y).item()"), says="loss of step 1"
    ),
    Answer(2, "a tensor", swap=("loss.item()", "loss"), says="as a number"),
    Answer(2, "a tensor without its graph", swap=("loss.item()", "loss.detach()"), says="as a number"),
    Answer(
        2,
        "times since the start",
        swap=("after - before for before, after in zip(times, times[1:])", "after - times[0] for after in times[1:]"),
        says="“forward”",
    ),
    Answer(2, "milliseconds", swap=("after - before for", "1000 * (after - before) for"), says="“data”"),
    Answer(
        2,
        "the backward pass counts as forward",
        swap=(
            "loss = model(x, y)\ntimes.append(clock())\noptimizer.zero_grad()\nloss.backward()\n",
            "loss = model(x, y)\noptimizer.zero_grad()\nloss.backward()\ntimes.append(clock())\n",
        ),
        says="“forward”",
    ),
    Answer(
        2,
        "the data are not timed",
        swap=("times = [clock()]\nx, y = next(batches)\n", "x, y = next(batches)\ntimes = [clock()]\n"),
        says="“data”",
    ),
    Answer(
        2, "another clock", swap=("times = [clock()]", "clock = time.perf_counter\ntimes = [clock()]"), says="“data”"
    ),
    Answer(
        2,
        "names in another order",
        swap=('("data", "forward", "backward", "optimizer")', '("forward", "data", "backward", "optimizer")'),
        says="“data”",
    ),
    Answer(2, "two batches read", swap=("x, y = next(batches)", "next(batches)\nx, y = next(batches)"), says=""),
    Answer(
        3,
        "the textbook's head",
        swap=(("return blocks + head, 2 * blocks", "return blocks + head / 3, 2 * blocks + 2 * head / 3"),),
        says="token_flops",
    ),
    Answer(3, "a head of one product", swap=("6 * vocabulary * dim", "2 * vocabulary * dim"), says="token_flops"),
    Answer(
        3, "an embedding that multiplies", swap=("6 * vocabulary * dim", "8 * vocabulary * dim"), says="token_flops"
    ),
    Answer(3, "a multiplication only", swap=("2 * 12 * dim**2", "12 * dim**2"), says="token_flops"),
    Answer(3, "attention without its scores", swap=(" + 4 * dim * seq_len", ""), says="token_flops"),
    Answer(
        3,
        "scores of one block",
        swap=("layers * (2 * 12 * dim**2 + 4 * dim * seq_len)", "layers * 2 * 12 * dim**2 + 4 * dim * seq_len"),
        says="token_flops",
    ),
    Answer(3, "forward and backward alike", swap=("head, 2 * blocks", "head, blocks"), says="token_flops"),
    Answer(3, "two matrices of the MLP forgotten", swap=("2 * 12 * dim**2", "2 * 4 * dim**2"), says="token_flops"),
    Answer(3, "an MLP of one width", swap=("2 * 12 * dim**2", "2 * 6 * dim**2"), says="token_flops"),
    Answer(
        3,
        "backward, then forward",
        swap=("return blocks + head, 2 * blocks", "return 2 * blocks, blocks + head"),
        says="token_flops",
    ),
    Answer(
        3,
        "percent",
        swap=("tokens_per_s * flops_per_token / peak", "100 * tokens_per_s * flops_per_token / peak"),
        says="utilization",
    ),
    Answer(
        3,
        "at most 1",
        swap=("return tokens_per_s * flops_per_token / peak", "return min(1.0, tokens_per_s * flops_per_token / peak)"),
        says="utilization",
    ),
    Answer(
        3,
        "the inverse",
        swap=("tokens_per_s * flops_per_token / peak", "peak / (tokens_per_s * flops_per_token)"),
        says="utilization",
    ),
    Answer(4, "the result costs nothing", swap=(" + m * n)", ")"), says="product_intensity"),
    Answer(4, "numbers, not bytes", swap=("itemsize * (m * k", "(m * k"), says="product_intensity"),
    Answer(4, "multiplications only", swap=("2 * m * k * n / (", "m * k * n / ("), says="product_intensity"),
    Answer(4, "weights only", swap=("(m * k + k * n + m * n)", "(k * n)"), says="product_intensity"),
    Answer(4, "the larger limit", swap=("min(peak", "max(peak"), says="attainable_speed"),
    Answer(
        4,
        "no roof",
        swap=("min(peak, flops_per_byte * bandwidth)", "flops_per_byte * bandwidth"),
        says="attainable_speed",
    ),
    Answer(
        4,
        "half a harmony of both",
        swap=("min(peak, flops_per_byte * bandwidth)", "1 / (1 / peak + 1 / (flops_per_byte * bandwidth))"),
        says="attainable_speed",
    ),
    Answer(4, "only the weights move", [None, None, "return itemsize * peak / bandwidth / 2"], says="fewest_tokens"),
    Answer(
        4,
        "never is not told",
        swap=("return edge * k * n / per_token if per_token > 0 else math.inf", "return edge * k * n / per_token"),
        says="fewest_tokens",
    ),
    Answer(
        4,
        "divides by zero where it just never does",
        swap=("if per_token > 0 else", "if per_token >= 0 else"),
        says="division by zero",
    ),
    Answer(4, "bytes forgotten", swap=("itemsize * peak / bandwidth", "peak / bandwidth"), says="fewest_tokens"),
    Answer(
        4,
        "rounded",
        swap=(
            "return edge * k * n / per_token if per_token > 0 else math.inf",
            "return math.ceil(edge * k * n / per_token) if per_token > 0 else math.inf",
        ),
        says="fewest_tokens",
    ),
    Answer(
        2,
        "gradients that keep their graph",
        swap=("loss.backward()", "loss.backward(create_graph=True)"),
        says="keep their graph alive",
    ),
    Answer(
        4,
        "at least one token",
        swap=("return edge * k * n / per_token if", "return max(1.0, edge * k * n / per_token) if"),
    ),
    Answer(
        4,
        "searched up to a million tokens",
        [
            None,
            None,
            """
            most = 2.0**20
            intensity = 2 * most * k * n / (itemsize * (most * k + k * n + most * n))
            edge = itemsize * peak / bandwidth
            return edge * k * n / (2 * k * n - edge * (k + n)) if intensity * bandwidth >= peak else math.inf
            """,
        ],
    ),
    Answer(
        1,
        "mean loss clamped at 20 before the exponential",
        swap=(
            "return math.exp(total / sum(tokens))",
            "return math.exp(min(total / sum(tokens), 20.0))  # never overflows",
        ),
        says="perplexity((",
    ),
]


RIGHT = [
    Answer(
        1,
        "by a running sum, and torch",
        [
            "total = count = 0\nfor loss, n in zip(losses, tokens):\n    total, count = total + loss * n, count + n\nreturn float(torch.tensor(total / count, dtype=torch.float64).exp())",
            "return -math.log(1 / vocabulary)",
        ],
    ),
    Answer(
        2,
        "gradients emptied first, and one dictionary",
        """
        seconds, before = {}, clock()
        def over(phase):
            nonlocal before
            now = clock()
            seconds[phase], before = now - before, now
        optimizer.zero_grad(set_to_none=False)
        x, y = next(batches)
        over("data")
        loss = model(x, y)
        over("forward")
        loss.backward()
        over("backward")
        optimizer.step()
        over("optimizer")
        return float(loss), seconds
        """,
    ),
    Answer(
        2,
        "emptied at the end",
        swap=(("optimizer.zero_grad()\n", ""), ("optimizer.step()\n", "optimizer.step()\noptimizer.zero_grad()\n")),
    ),
    Answer(
        3,
        "matrix by matrix",
        [
            "products = 4 * dim * dim + 2 * (dim * 4 * dim)\nforward = 2 * products * layers + 2 * (2 * seq_len * dim) * layers\nreturn forward + 3 * 2 * dim * vocabulary, 2 * forward",
            "return (tokens_per_s / peak) * flops_per_token",
        ],
    ),
    Answer(
        4,
        "in other words",
        [
            "moved = (m + n) * k + m * n\nreturn 2 * m * n * k / moved / itemsize",
            "return peak if flops_per_byte >= peak / bandwidth else flops_per_byte * bandwidth",
            "r = peak / bandwidth * itemsize / 2\nif r * (1 / k + 1 / n) >= 1:\n    return float('inf')\nreturn r / (1 - r / k - r / n)",
        ],
    ),
]

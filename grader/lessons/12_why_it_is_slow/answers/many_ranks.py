"""Other answers to TODOs 6 to 10 of 12_why_it_is_slow."""

from grader.kit import Answer

WRONG = [
    Answer(
        6,
        "started together, and still one for each",
        [
            """
        works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
        for work, gradient in zip(works, gradients):
            work.wait()
            gradient /= dist.get_world_size()
        """,
            None,
        ],
        says="calls 5 collectives",
    ),
    Answer(
        6,
        "two buckets",
        [
            """
        for part in gradients[:3], gradients[3:]:
            bucket = torch.cat([gradient.flatten() for gradient in part])
            dist.all_reduce(bucket)
            bucket /= dist.get_world_size()
            for gradient, mean in zip(part, bucket.split([gradient.numel() for gradient in part])):
                gradient.copy_(mean.view_as(gradient))
        """,
            None,
        ],
        says="calls 2 collectives",
    ),
    Answer(
        6, "nothing is put back", swap=("gradient.copy_(mean.view_as(gradient))", "pass"), says="the gradient of shape"
    ),
    Answer(6, "a sum", swap=("bucket /= dist.get_world_size()", "pass"), says="the gradient of shape"),
    Answer(
        6,
        "in float64",
        swap=("for gradient in gradients])\ndist", "for gradient in gradients]).double()\ndist"),
        says="bytes",
    ),
    Answer(
        6,
        "gathered and averaged by each",
        [
            """
        bucket = torch.cat([gradient.flatten() for gradient in gradients])
        each = [torch.empty_like(bucket) for _ in range(dist.get_world_size())]
        dist.all_gather(each, bucket)
        bucket = torch.stack(each).mean(dim=0)
        for gradient, mean in zip(gradients, bucket.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(mean.view_as(gradient))
        """,
            None,
        ],
        says="bytes",
    ),
    Answer(6, "fewer bytes", [None, "return 15, True"], says="whether it sends fewer bytes"),
    Answer(
        7,
        "never averaged",
        swap=("model.no_sync() if number < len(parts) - 1 else nullcontext()", "model.no_sync()"),
        says="the gradient of",
    ),
    Answer(7, "the first is averaged", swap=("number < len(parts) - 1", "number > 0"), says="the gradient of"),
    Answer(
        7,
        "forward outside",
        [
            """
        for number, (x, y) in enumerate(parts):
            loss = model(x, y) / len(parts)
            with model.no_sync() if number < len(parts) - 1 else nullcontext():
                loss.backward()
            total += loss.detach()
        """,
            None,
        ],
        says="averaged more than once",
    ),
    Answer(
        7,
        "all parts at once",
        [
            """
        x, y = (torch.cat(each) for each in zip(*parts))
        loss = model(x, y)
        loss.backward()
        total += loss.detach()
        """,
            None,
        ],
        says="would not fit",
    ),
    Answer(
        7,
        "the last part alone",
        swap=(
            "for number, (x, y) in enumerate(parts):",
            "for number, (x, y) in enumerate(parts[-1:], len(parts) - 1):",
        ),
        says="",
    ),
    Answer(
        7,
        "averaged again by hand",
        [
            """
        for x, y in parts:
            loss = model(x, y) / len(parts)
            loss.backward()
            total += loss.detach()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        """,
            None,
        ],
        says="",
    ),
    Answer(
        7,
        "switched off for ever",
        swap=(
            "with model.no_sync() if number < len(parts) - 1 else nullcontext():",
            "model.require_backward_grad_sync = number == 0\n    if True:",
        ),
        says="the gradient of",
    ),
    Answer(7, "the fraction that remains", [None, "return 4, 0.25"], says="the fraction"),
    Answer(
        8,
        "a fraction of fractions",
        [
            """
        fraction = right_N.double().mean()
        dist.all_reduce(fraction)
        return (fraction / dist.get_world_size()).item()
        """,
            None,
        ],
        says="the fraction over the words",
    ),
    Answer(8, "its own", ["return right_N.double().mean().item()", None], says="the fraction over the words"),
    Answer(
        8,
        "numbers, in a pickle",
        [
            """
        gathered = [None] * dist.get_world_size()
        dist.all_gather_object(gathered, (int(right_N.sum()), right_N.numel()))
        return sum(right for right, _ in gathered) / sum(all_of for _, all_of in gathered)
        """,
            None,
        ],
        says="collectives",
    ),
    Answer(
        8,
        "one message for each number",
        [
            """
        right, count = right_N.sum().double(), torch.tensor(float(right_N.numel()), dtype=torch.float64)
        dist.all_reduce(right)
        dist.all_reduce(count)
        return (right / count).item()
        """,
            None,
        ],
        says="calls 2 collectives",
    ),
    Answer(
        8,
        "all words, padded",
        [
            """
        padded = torch.zeros(2, 400, dtype=torch.uint8)
        padded[0, : len(right_N)], padded[1, : len(right_N)] = right_N, 1
        every = [torch.empty_like(padded) for _ in range(dist.get_world_size())]
        dist.all_gather(every, padded)
        right, count = torch.stack(every).double().sum(dim=(0, 2))
        return (right / count).item()
        """,
            None,
        ],
        says="bytes",
    ),
    Answer(8, "a count of ranks", swap=("right_N.numel()]", "1]"), says="the fraction over the words"),
    Answer(8, "a gather is one message", [None, "return 1, 1"], says="the number of messages as given"),
    Answer(
        9,
        "in the order that they come",
        ["return [[*range(len(lengths))[rank::world]] for rank in range(world)]", None],
        says="all wait for it",
    ),
    Answer(
        9,
        "pieces, shortest first",
        [
            """
        order.reverse()
        each = -(-len(order) // world)
        return [order[rank * each : (rank + 1) * each] for rank in range(world)]
        """,
            None,
        ],
        says="all wait for it",
    ),
    Answer(
        9,
        "what remains is dropped",
        ["whole = len(order) // world * world\nreturn [order[rank:whole:world] for rank in range(world)]", None],
        says="no rank computes",
    ),
    Answer(9, "all ranks have all", ["return [order for _ in range(world)]", None], says="computed twice"),
    Answer(
        9,
        "the longest is left out",
        ["return [order[1:][rank::world] for rank in range(world)]", None],
        says="no rank computes",
    ),
    Answer(9, "lengths in place of places", swap=("order[rank::world]", "sorted(lengths)[rank::world]"), says=""),
    Answer(9, "the one that waits", [None, "return 1, 4"], says="the rank that the other waits for"),
    Answer(
        10,
        "the weights of later",
        swap=("{name: weight.clone() for name, weight in weights.items()}", "dict(weights)"),
        says="the file's weight",
    ),
    Answer(
        10,
        "copied in the thread",
        [
            """
        def copy_and_write():
            torch.save({"model": {n: w.clone() for n, w in weights.items()}, "config": config, "epoch": epoch}, path)
        def later():
            write_10({"model": weights, "config": config, "epoch": epoch}, path)
        threading.Thread(target=later).start()
        """,
            None,
        ],
        says="the file's weight",
    ),
    Answer(
        10,
        "waited for at once",
        swap=("args=(content, path)).start()", "args=(content, path))\nthread.start()\nthread.join()"),
        edits=(
            (
                "threading.Thread(target=write_10, args=(content, path))\n",
                "thread = threading.Thread(target=write_10, args=(content, path))\n",
            ),
        ),
        says="until the thread that writes is done",
    ),
    Answer(10, "a daemon", swap=("args=(content, path))", "args=(content, path), daemon=True)"), says="may be lost"),
    Answer(
        10,
        "copied, and written at once",
        swap=("threading.Thread(target=write_10, args=(content, path)).start()", "write_10(content, path)"),
        says="until the checkpoint is written",
    ),
    Answer(
        10, "no epoch", swap=('"config": config, "epoch": epoch', '"config": config'), says="lacks what it was given"
    ),
    Answer(10, "nothing is written", ["pass", None], says="there is no file"),
    Answer(10, "one rank stands still", [None, "return 2, 1, 0"], says="the number of ranks"),
]

RIGHT = [
    Answer(
        6,
        "in one call for several tensors",
        [
            """
        packed = [gradient.contiguous() for gradient in gradients]
        dist.all_reduce_coalesced(packed)
        for gradient, total in zip(gradients, packed):
            gradient.copy_(total / dist.get_world_size())
        """,
            None,
        ],
    ),
    Answer(
        7,
        "the flag of no_sync",
        [
            """
        for number, (x, y) in enumerate(parts):
            model.require_backward_grad_sync = number == len(parts) - 1
            loss = model(x, y) / len(parts)
            loss.backward()
            total += loss.detach()
        """,
            None,
        ],
    ),
    Answer(
        7,
        "averaged by hand, in one message",
        [
            """
        with model.no_sync():
            for x, y in parts:
                loss = model(x, y) / len(parts)
                loss.backward()
                total += loss.detach()
        gradients = [parameter.grad for parameter in model.parameters()]
        bucket = torch.cat([gradient.flatten() for gradient in gradients]) / dist.get_world_size()
        dist.all_reduce(bucket)
        for gradient, mean in zip(gradients, bucket.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(mean.view_as(gradient))
        """,
            None,
        ],
    ),
    Answer(
        8,
        "whole numbers",
        [
            """
        sums = torch.stack([right_N.sum(), torch.tensor(len(right_N))])
        dist.all_reduce(sums)
        right, count = sums.tolist()
        return right / count
        """,
            None,
        ],
    ),
    Answer(
        9,
        "each to the rank with the least",
        [
            """
        parts = [[] for _ in range(world)]
        for number in order:
            min(parts, key=lambda part: sum(lengths[other] for other in part)).append(number)
        return parts
        """,
            None,
        ],
    ),
    Answer(
        10,
        "a pool of one thread",
        [
            """
        import copy
        from concurrent.futures import ThreadPoolExecutor
        content = copy.deepcopy({"model": weights, "config": config, "epoch": epoch})
        ThreadPoolExecutor(1).submit(write_10, content, path)
        """,
            None,
        ],
    ),
]

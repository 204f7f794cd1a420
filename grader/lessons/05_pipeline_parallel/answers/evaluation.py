"""Other answers to TODO 12 of 05_pipeline_parallel."""

from grader.kit import Answer

WRONG = [
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
        12,
        "counts on every rank",
        swap=(("if rank == world - 1:", "if True:"), ("total / count if rank == world - 1 else None", "total / count")),
        says="ZeroDivisionError",
    ),
]


RIGHT = [
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
]

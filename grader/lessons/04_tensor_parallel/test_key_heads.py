"""Check of 04_tensor_parallel, TODO 14: attention with fewer heads of keys than ranks.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 14 | each rank has the key heads of its queries | against the serial layer: values, gradients, bytes | 2, 3 |
"""

from grader.kit import check_refusals, check_sent, check_tensor, count_of, expect, near, ring_bytes, todo

from .common import GIVEN, HINTS, REL, in_one_run, serial_layer
from .ranks import cut, groups_refused_on_rank, layer_on_rank

HEADS = (
    "Of H heads of queries, head h uses head h · G / H of the G heads of keys. Which heads of queries does this rank"
    " have, and which rows of k belong to the head that they use?"
)
SUM = (
    "Which ranks have the same head of keys as this one? The gradient of that head is the sum over these ranks, all of"
    " them and no others, in each of k and v."
)
INPUT = (
    "Each rank's queries, keys and values have a summand of the input's gradient. How often is each of them in the sum?"
)


@todo(14, needs=(2, 3))
def test_todo14_key_heads(student):
    draw = student.draw("key heads")
    sizes = [(4, 4, 1), (4, 8, 2), (4, 4, 4), (2, 4, 1), (3, 6, 3), (2, 8, 4), (1, 4, 2)]  # ranks, heads, heads of keys
    trials = []
    for world, heads, key_heads in sizes:
        width = heads * draw.randrange(2, 4)
        how = dict(kind="grouped", seed=draw.randrange(1 << 30), width=width, inner=key_heads, heads=heads)
        trials.append((world, how | dict(bias=False, frozen=None)))
    jobs = []
    for world, trial in trials:
        right = student.reference(serial_layer, **trial)
        student.premise(not near(right["last"], right["y"], 100 * REL), "weights that are never trained")
        jobs.append((world, layer_on_rank, trial, (trial, right)))
    for world in (2, 3, 4):
        pairs = [(h, g) for h in range(1, 2 * world + 3) for g in range(1, h + 1) if h % g == 0]
        jobs.append((world, groups_refused_on_rank, dict(pairs=pairs), pairs))
    done = in_one_run(student, jobs)
    for world, (trial, right), ranks, marked in done[layer_on_rank]:
        check_grouped(world, trial, right, ranks, marked)
    for world, pairs, ranks, _ in done[groups_refused_on_rank]:
        check_refusals(
            [[((*pair, world), said) for pair, said in zip(pairs, mine["said"])] for mine in ranks],
            refused=lambda heads, keys, world: heads % world != 0 or (keys % world != 0 and world % keys != 0),
            told=lambda heads, keys, world: (
                f"GroupedAttention of {count_of(heads, 'head')} of queries and {keys} of keys on"
                f" {count_of(world, 'rank')}"
            ),
            words=lambda heads, keys, world: (heads, keys, world),
            hint="Two quotients must be whole: heads of queries over ranks; and of heads of keys and ranks, which one?",
        )


def check_grouped(world, trial, right, ranks, marked):
    key_heads, width = trial["inner"], trial["width"]
    parts = min(world, key_heads)
    copies = world // parts
    told = (
        f"GroupedAttention of width {width} with {count_of(trial['heads'], 'head')} of queries and {key_heads} of keys,"
        f" on {count_of(world, 'rank')}"
    )

    def share(name, tensor, rank):
        if name in ("k.weight", "v.weight"):
            return cut(tensor, 0, rank // copies, parts)
        return cut(tensor, 1 if name == "out.weight" else 0, rank, world)

    for rank, mine in enumerate(ranks):
        for name, weight in right["weights"].items():
            if name in mine["weights"]:
                seen, own = mine["weights"][name], share(name, weight, rank)
                check_tensor(f"{told}: {name} of rank {rank}", seen, own, 0.0, rank, than="its heads'", hint=HEADS)
        due = sum(4 * share(name, weight, rank).numel() for name, weight in right["weights"].items())
        held = mine["held"]
        more = f"{told}: rank {rank} holds {held:,} bytes once the whole layer is gone"
        expect(held <= due, more, f"{due:,} bytes", f"{held:,} bytes", rank, HINTS["too much"])
        expect(not mine["common"], f"{told}: rank {rank} uses the whole layer's memory", "its own", "", rank, GIVEN)
    for rank, mine in enumerate(ranks):
        fault = mine["fault"]
        expect(not fault, f"{told}: forward gives rank {rank} {fault}", right["y"].shape, fault, rank, HINTS["shape"])
    for rank, mine in enumerate(ranks):
        check_tensor(f"{told}: the output on rank {rank}", mine["y"], right["y"], REL, rank, hint=HEADS)
        what = f"{told}: the gradient of the input on rank {rank}"
        check_tensor(what, mine["x"], right["x"], REL, rank, hint=INPUT)
        for name, gradient in right["gradients"].items():
            if name in mine["weights"]:
                what, seen = f"{told}: the gradient of {name} on rank {rank}", mine["gradients"].get(name)
                hint = HINTS["none"] if seen is None else SUM
                than = "its heads' part of the serial one"
                check_tensor(what, seen, share(name, gradient, rank), REL, rank, than=than, hint=hint)
        what = f"{told}: after some steps of SGD, the output on rank {rank}"
        check_tensor(what, mine["last"], right["last"], REL, rank, than="the serial layer's", hint=HINTS["last"])
    stream = ring_bytes(4 * right["y"].numel(), world)
    keys = 2 * ring_bytes(4 * right["weights"]["k.weight"].numel() // parts, copies)
    why = "one all-reduce of the output is enough"
    check_sent(f"{told}, forward", marked[1], stream, stream, why, hint=HINTS["forward", "attention"])
    why = "one all-reduce of the input's gradient, and of each weight that several ranks hold among these, is enough"
    check_sent(f"{told}, backward", marked[3], stream + keys, stream, why, hint=SUM)

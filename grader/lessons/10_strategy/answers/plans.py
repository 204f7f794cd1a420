"""Other answers to TODOs 4 and 5 of 10_strategy."""

from grader.kit import Answer

# The region of TODO 5 that each function has.
STOP = ("needed_bandwidth", "overtaken_at", "samples_needed")


def fifth(**bodies: str) -> list[str | None]:
    """The regions of TODO 5, these ones changed."""
    return [bodies.get(name) for name in STOP]


WRONG = [
    Answer(
        4,
        "remembered without the machine",
        swap=(
            "return min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)",
            "known = best_plan.__dict__.setdefault('known', {})\n"
            "if (model, gpus, batch) not in known:\n"
            "    known[model, gpus, batch] = min(\n"
            "        good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None\n"
            "    )\n"
            "return known[model, gpus, batch]",
        ),
        says="but with 20 GB",
    ),
    Answer(
        4,
        "one expert may be left over",
        swap=("if model.experts and model.experts % plan.ep:", "if model.experts and model.experts % plan.ep > 1:"),
        says="experts on ep",
    ),
    Answer(4, "91 % of the memory", swap=("> 0.9 * machine", "> 0.91 * machine"), says="memory"),
    Answer(4, "memory to the last byte", swap=("0.9 * machine.memory", "machine.memory"), says="memory"),
    Answer(5, "any batch is as good", fifth(samples_needed="return fewest_steps * critical"), says="samples_needed"),
    Answer(5, "steps", fifth(samples_needed="return fewest_steps * (1 + critical / batch)"), says="steps, not samples"),
    Answer(4, "nothing is rejected", ["return ''", None], says="accepts a plan that is not possible"),
    Answer(4, "everything is rejected", ["return 'no'", None], says="rejects"),
    Answer(4, "memory is not looked at", swap=("if needed > 0.9 * machine.memory:", "if False:"), says="memory"),
    Answer(4, "heads may be cut", swap=("if model.heads % plan.tp:", "if False:"), says="heads on tp"),
    Answer(4, "layers may be cut", swap=("if model.layers % plan.pp:", "if False:"), says="layers on pp"),
    Answer(
        4,
        "tokens on cp alone",
        swap=("if model.sequence % (plan.cp * plan.tp):", "if model.sequence % plan.cp:"),
        says="tokens on cp and tp",
    ),
    Answer(
        4,
        "experts on any number",
        swap=("if model.experts and model.experts % plan.ep:", "if False:"),
        says="experts on ep",
    ),
    Answer(
        4,
        "the batch on replicas alone",
        swap=("plan.batch % (plan.replicas * plan.micro_batch)", "plan.batch % plan.replicas"),
        says="accepts a plan that is not possible",
    ),
    Answer(
        4,
        "fewer micro-batches than stages",
        swap=("if plan.micro_batches < plan.pp:", "if False:"),
        says="fewer micro-batches",
    ),
    Answer(
        4,
        "as many micro-batches as stages are too few",
        swap=("plan.micro_batches < plan.pp", "plan.pp > 1 and plan.micro_batches <= plan.pp"),
        says="rejects",
    ),
    Answer(4, "tensor parallel across nodes", swap=("if plan.tp > machine.node:", "if False:"), says="tp in a node"),
    Answer(
        4,
        "the memory of the first stage without activations",
        swap=("needed = most_memory(model, plan)", "needed = 16 * sum(rank_numbers(model, plan, 0)) / plan.shard"),
        says="memory",
    ),
    Answer(
        4,
        "the first that fits",
        [None, "return next((p for p in candidates(model, gpus, batch) if not why_not(model, p, machine)), None)"],
        says="best_plan",
    ),
    Answer(4, "the slowest", swap=("min(good", "max(good"), says="not the fastest"),
    Answer(
        4,
        "the one that needs the least memory",
        swap=("sum(step_seconds(model, plan, machine).values()), default", "most_memory(model, plan), default"),
        says="not the fastest",
    ),
    Answer(4, "the fastest, fitting or not", swap=(" if not why_not(model, plan, machine)]", "]")),
    Answer(
        4,
        "only computing counts",
        swap=(
            "sum(step_seconds(model, plan, machine).values()), default",
            'step_seconds(model, plan, machine)["computing"], default',
        ),
        says="not the fastest",
    ),
    Answer(4, "no plan is a crash", swap=(", default=None)", ")")),
    Answer(4, "always data parallel", [None, "return Plan(batch, dp=gpus)"], says="best_plan"),
    Answer(
        5,
        "an all-reduce either way",
        swap=('{"ddp": 8, "fsdp": 8, "fsdp float32": 12}[scheme]', "8"),
        says="needed_bandwidth",
    ),
    Answer(5, "4 bytes", swap=("/ 6 * speed", "/ 3 * speed"), says="needed_bandwidth"),
    Answer(5, "the forward pass alone", swap=("/ 6 * speed", "/ 2 * speed"), says="needed_bandwidth"),
    Answer(5, "more tokens need more", swap=("* speed / tokens", "* speed * tokens"), says="needed_bandwidth"),
    Answer(
        5,
        "always between nodes",
        swap=("machine.inside if gpus <= machine.node else machine.between", "machine.between"),
        says="overtaken_at",
    ),
    Answer(5, "tokens are not shared", swap=("needed_bandwidth(batch / gpus, speed", "needed_bandwidth(batch, speed")),
    Answer(5, "without the ring's factor", swap=(" * (gpus - 1) / gpus\n", "\n"), says="overtaken_at"),
    Answer(
        5, "the last that keeps up", swap=("return gpus\n", "return gpus - 1\n"), says="the last number that keeps up"
    ),
    Answer(
        5,
        "links at their data sheet's speed",
        swap=("cable.bandwidth * machine.link_share:", "cable.bandwidth:"),
        says="without link_share",
    ),
    Answer(
        5,
        "GPUs at their peak",
        swap=("speed = machine.peak * machine.device_share", "speed = machine.peak"),
        says="without device_share",
    ),
    Answer(5, "by doubling", swap=("gpus += 1", "gpus *= 2"), says="overtaken_at"),
    Answer(4, "just 90 % is too much", swap=("needed > 0.9", "needed >= 0.9"), says="rejects a plan that is possible"),
    Answer(5, "as long is longer", swap=("needed > cable", "needed >= cable"), says="as fast as four GPUs need"),
    Answer(
        4,
        "recomputed only where nothing fits without",
        swap=(
            "return min(good,",
            "good = [plan for plan in good if plan.recompute == 'none'] or good\nreturn min(good,",
        ),
        says="is not the fastest",
    ),
    Answer(4, "heads on tp and cp", swap=("if model.heads % plan.tp:", "if model.heads % (plan.tp * plan.cp):")),
    Answer(4, "multiples of the stages", swap=("if plan.micro_batches < plan.pp:", "if plan.micro_batches % plan.pp:")),
    Answer(5, "up to 1024 GPUs", swap=("while True:", "while gpus <= 1024:")),
    Answer(
        4,
        "words must divide, too",
        swap=(
            "if model.layers % plan.pp:",
            "if model.vocabulary % plan.tp:\n    return 'words'\nif model.layers % plan.pp:",
        ),
    ),
    Answer(
        4,
        "tokens are looked at with cp alone",
        swap=("if model.sequence % (plan.cp * plan.tp):", "if plan.cp > 1 and model.sequence % (plan.cp * plan.tp):"),
    ),
    Answer(
        4,
        "remembered by the machine's name",
        swap=(
            """good = [plan for plan in candidates(model, gpus, batch) if not why_not(model, plan, machine)]
return min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)""",
            """known = best_plan.__dict__.setdefault("known", {})  # the cells below ask for the same plans again
job = (model, gpus, batch, machine.name)
if job not in known:
    good = [plan for plan in candidates(model, gpus, batch) if not why_not(model, plan, machine)]
    known[job] = min(good, key=lambda plan: sum(step_seconds(model, plan, machine).values()), default=None)
return known[job]""",
        ),
        says="chooses a plan that is not possible",
    ),
    Answer(
        5,
        "bisected from above",
        swap=(
            """gpus = 2
while True:
    cable = machine.inside if gpus <= machine.node else machine.between
    needed = needed_bandwidth(batch / gpus, speed, scheme) * (gpus - 1) / gpus
    if needed > cable.bandwidth * machine.link_share:
        return gpus
    gpus += 1""",
            """
def overtaken(gpus: int) -> bool:
    cable = machine.inside if gpus <= machine.node else machine.between
    needed = needed_bandwidth(batch / gpus, speed, scheme) * (gpus - 1) / gpus
    return needed > cable.bandwidth * machine.link_share

few, many = 1, 2 * machine.node
while not overtaken(many):
    few, many = many, 2 * many
while many - few > 1:
    middle = (few + many) // 2
    few, many = (few, middle) if overtaken(middle) else (middle, many)
return many""",
        ),
        says="slow links in a node of 8",
    ),
]


RIGHT = [
    Answer(
        5,
        "bytes a parameter by name",
        fifth(
            needed_bandwidth="bytes_a_parameter = {'ddp': 4 + 4, 'fsdp': 2 + 2 + 4, 'fsdp float32': 3 * 4}[scheme]\nreturn bytes_a_parameter / (6 * tokens / speed)"
        ),
    ),
    Answer(5, "multiplied out", fifth(samples_needed="return fewest_steps * (batch + critical)")),
    Answer(
        4,
        "reasons in one word, the best by a loop",
        [
            "bad = model.heads % plan.tp or model.layers % plan.pp or model.sequence % (plan.cp * plan.tp)\nbad = bad or (model.experts and model.experts % plan.ep) or plan.batch % (plan.replicas * plan.micro_batch)\nbad = bad or plan.micro_batches < plan.pp or plan.tp > machine.node\nreturn 'impossible' if bad or most_memory(model, plan) > 0.9 * machine.memory else ''",
            "best, least = None, math.inf\nfor plan in candidates(model, gpus, batch):\n    if not why_not(model, plan, machine):\n        seconds = sum(step_seconds(model, plan, machine).values())\n        if seconds < least:\n            best, least = plan, seconds\nreturn best",
        ],
    ),
    Answer(
        4,
        "of equally fast ones the last",
        swap=(
            "for plan in candidates(model, gpus, batch) if",
            "for plan in reversed(candidates(model, gpus, batch)) if",
        ),
    ),
]

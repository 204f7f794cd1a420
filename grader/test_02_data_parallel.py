"""Checks and hints of 02_data_parallel.

| TODO | achievement                              | evidence                                                                  | needs |
|------|------------------------------------------|---------------------------------------------------------------------------|-------|
| 1    | the whole batch's gradient, and bytes    | the formulas; shares that are unequal or empty                            |       |
| 2    | equal first state                        | on ranks that begin apart: parameters, buffers of all kinds; bytes received |     |
| 3    | gradients averaged after the pass        | gradients against one process; number and bytes of messages               |       |
| 4    | overlapped by hooks                      | the same; the order of gradients, calls and waits; the predicted end      |       |
| 5    | parameters assigned to buckets           | the assignment, of sizes that fit, do not fit, and are larger than the cap |      |
| 6    | buckets, overlapped                      | as 4, also where ranks do not use the same parameters                     | 5     |
| 7    | accumulation                             | gradients of 3, 1 and 5 micro-batches; nothing is sent before the last one | 5, 6 |
| 8    | unequal shares                           | gradients of shares of 4, 0 and 3 samples; the factor of 70,001; bytes    |       |
| 9    | torch's own                              | as 6 and 7, from ranks that begin apart                                   |       |

The reference is one process that works through the shares of all ranks. No verdict depends on the clock: the order of
events shows that communication overlaps. Collectives have the worst timing that is allowed: a result arrives when it is
waited for, and whatever its tensor held until then is lost. Bytes are those that a ring would send.

The model has the difficult cases: a tied weight, a frozen layer whose weight has a gradient from before, a layer that is used only on demand and lies
deep, a parameter of its own, a batch norm whose buffers have two dtypes, a buffer that no state_dict has; and tensors with equal numbers, which are not tied.
"""  # noqa: E501

import math
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from grader.kit import (
    OWN_ZEROS,
    PARTED,
    Fault,
    Reporter,
    Wrong,
    as_evidence,
    check_answers,
    check_shape,
    check_tensor,
    collectives,
    count_of,
    expect,
    freeze,
    hinted,
    is_stale,
    mark,
    merciless_messages,
    moved_by,
    near,
    numbers_in,
    ones_in_turn,
    operations,
    place,
    ring_bytes,
    scale_of,
    sent_by,
    strided,
    todo,
)
from utils.memory import Storages

BUILDS = "DDP by hand: averaged gradients, overlapped by hooks, in buckets; accumulation; unequal shares"

WORLD = 3  # where a gradient may be missing, or shares be unequal; what depends on their number also runs on 2
CAP = 150  # bytes: four buckets of the model's nine trainable parameters

# Sums of float32 numbers in a different order: over 1500 draws at most 3e-5 of a gradient's norm was seen, where the
# ranks' gradients nearly cancel, and that is 4e-8 of the norm of all gradients; where they do not, 1e-5. A wrong one
# differs by 1e-2 of its norm and more.
REL = 1e-4
REL_IN_FLOAT64 = 1e-10  # a gradient that was in float32 on the way differs by 1e-8


class Net(nn.Module):
    """`model(x, y)` is the mean cross-entropy of x's words followed by y's; "extra" words from 7 on also pass through
    one more layer.
    """

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(14, 2)
        self.norm = nn.BatchNorm1d(2)
        self.frozen = nn.Linear(2, 4).requires_grad_(False)
        self.hidden = nn.Linear(4, 6)
        self.extra = nn.Sequential(nn.Sequential(nn.Linear(6, 6)))
        self.out = nn.Conv2d(3, 2, (1, 2), bias=False)
        self.shift = nn.Parameter(torch.randn(2))
        self.head = nn.Linear(2, 14, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.rand(1, 2, 1, 2) + 0.5, persistent=False)

    def forward(self, x, y):
        h = torch.tanh(self.hidden(self.frozen(self.norm(self.embedding(x)))))
        if bool((x >= 7).any()):
            h = h + self.extra(h)
        h = self.out(h.view(-1, 3, 1, 2)).flatten(1) + self.shift
        return F.cross_entropy(self.head(h * self.scale.sum(dim=1).flatten()), y)


def made_model(seed=0, turned=False, of_images=False):
    """`turned`: matrices and their gradients lie transposed in memory, which no collective of NCCL's takes.
    `of_images`: a weight and a buffer lie in channels_last. Collectives take those as they are; contiguous() copies
    them, and what is written into a copy does not arrive.
    """
    torch.manual_seed(seed)
    model = Net()
    if turned:
        for parameter in model.parameters():
            parameter.data = strided(parameter.data) if parameter.dim() > 1 else parameter.data
    if of_images:
        model.to(memory_format=torch.channels_last)
    for name, buffer in model.named_buffers():  # as after some training, and different on every seed
        if buffer.is_floating_point() and name != "scale":
            buffer.uniform_(0.5, 2.0)
        elif name != "scale":
            buffer.fill_(10 + seed)
    model.norm.bias.data.copy_(model.shift.data)
    model.norm.running_var.copy_(model.norm.running_mean)
    freeze(model.frozen.weight)
    return model


def micro_batch(seed, number, extra=True, samples=4):
    """Micro-batch `number` of the rank with this seed."""
    draw = torch.Generator().manual_seed(seed + number)
    x, y = torch.randint(7, (2, samples), generator=draw)
    return (x + 7 if extra else x), y


def trained(model):
    """name -> trainable parameter, a tied one once."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def gradients(model):
    return {name: parameter.grad for name, parameter in trained(model).items() if parameter.grad is not None}


def left_by_step(model):
    """What a rank holds after a step: gradients, and whether frozen parameters have what they had."""
    kept = is_stale(model.frozen.weight) and model.frozen.bias.grad is None
    return {"gradients": {name: grad.clone() for name, grad in gradients(model).items()}, "kept": kept}


def emptied(model):
    """No gradients, for the next step. Frozen parameters keep theirs: the optimizer does not have them."""
    for parameter in trained(model).values():
        parameter.grad = None


def gradient_bytes(a_number=4):
    return [a_number * parameter.numel() for parameter in trained(Net()).values()]


def loss_of(model, seed, rank, number, users, idle=(), zeros=()):
    """Of a pass: its number, which ranks use the extra layer, which ones use no parameter at all, and which ones'
    gradients are all zeros.
    """
    if rank in idle:
        return torch.zeros((), requires_grad=True)
    return model(*micro_batch(seed, number, rank in users)) * (rank not in zeros)


def serial(passes, seeds, dtype="float32"):
    """Gradients of the mean loss over the passes, as `loss_of` has them, of all ranks, on one process.

    It works through the ranks' shares one after the other, since a batch norm of the whole batch would differ.
    """
    model = made_model().to(getattr(torch, dtype))
    for rank, seed in enumerate(seeds):
        for one in passes:
            (loss_of(model, seed, rank, *one) / len(passes) / len(seeds)).backward()
    return gradients(model)


def own_gradients(asked, seeds):
    """Of each rank alone, for each of several passes."""
    return [
        [serial([[number, [0] if rank in users else []]], [seed]) for rank, seed in enumerate(seeds)]
        for number, users, *_ in asked
    ]


def tell(what, **about):
    Reporter.mine.say(e=what, **about)


def watch_gradients(model):
    """Tell of each gradient when it is ready, before the student's own hooks are called."""
    for name, parameter in trained(model).items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: tell("ready", name=name))


def backward(loss):
    """A backward pass that is reported."""
    tell("backward")
    loss.backward()
    tell("backward over")


def parts(events, begin="mark"):
    """One rank's events from each mark to the next one."""
    found = []
    for event in events:
        if event["e"] == begin:
            found.append([])
        elif found:
            found[-1].append(event)
    return found


def ops(events):
    return [event for event in events if event["e"] == "op"]


# Hints for parts that several TODOs have.
MISSING = "A rank may have no gradient where the others have one. What does it count as, and where is it made?"
NOT_OVER = "Until you have waited for its work, a tensor belongs to its collective. Which line has to come later?"
NO_WAIT = "With async_op=True a call returns at once. What does it return, and where is that waited for?"
HELD_UP = "While a hook waits, nothing is computed. Which function is called when nothing is left to compute?"
NOTHING_TO_SEND = (
    "All ranks make the same calls. What does a rank contribute whose gradient is missing, and one whose gradient is"
    " zeros?"
)
TOO_MANY = "Which tensors are sent, and how often? A tied parameter is one tensor with two names."


ZEROS = ", where the gradients of rank 1 are zeros"  # after which pass
ONLY_ZEROS = ", where the gradients of all ranks are zeros"


def check_gradients(what, seen, right, rank, world=WORLD):
    scale = scale_of(right.values())
    for name, wanted in right.items():
        grad = seen.get(name)
        told = f"{what}: on rank {rank}, {name} has no gradient afterwards"
        expect(grad is not None, told, "a gradient", "None", rank, MISSING)
        wrongs = {
            "summed over the ranks, not averaged": (
                world * wanted,
                "Every gradient is there, but N times too large: which division is missing? (In some releases of"
                " torch, ReduceOp.AVG on gloo is a sum.)",
            ),
            "divided once too often": (
                wanted / world,
                "Every gradient is there, but too small by one factor: what is divided in two places?",
            ),
        }
        told, than = f"{what}: on rank {rank}, the gradient of {name}", "one process's gradient of all samples"
        rel = REL if wanted.dtype == torch.float32 else REL_IN_FLOAT64
        check_tensor(told, grad, wanted, rel, rank, scale=scale, wrongs=wrongs, than=than)


def check_step(what, seen, right, rank, world=WORLD):
    """What `left_by_step` found."""
    check_gradients(what, seen["gradients"], right, rank, world)
    told = f"{what}: on rank {rank}, a frozen parameter has another gradient than before"
    hint = "A frozen parameter learns nothing, on any rank. How can a loop tell it from the others?"
    expect(seen["kept"], told, "as it was", "other numbers", rank, hint)


def check_waited(what, events, hint=""):
    """Every collective was waited for, and its tensor was not touched before."""
    for rank, mine in enumerate(events):
        for call in collectives([mine]):
            if call.written:
                raise Fault(
                    "wrong_value",
                    f"{what}: rank {rank} writes into the tensor of its {call.op}"
                    + (f" at {place(call.written_at)}," if call.written_at else f", started at {place(call.where)},")
                    + " before that is over",
                    rank,
                    call.written_at or call.where,
                    expected="the same numbers until the wait is over",
                    seen="different numbers",
                    hint=hint or NOT_OVER,
                )
            if call.over is None:
                raise Fault(
                    "wrong_value",
                    f"{what}: rank {rank} never waits for its {call.op}, at {place(call.where)}: its result is used"
                    " before it has arrived",
                    rank,
                    call.where,
                    expected=f"a wait for each {call.op}",
                    seen="no wait",
                    hint=hint or NO_WAIT,
                )


def check_budget(what, events, rank, most, nbytes, unit, world=WORLD):
    """No more collectives than `most`, and no more bytes sent than a ring needs for gradients of `nbytes` bytes."""
    calls = ops(events)
    expect(
        len(calls) <= most,
        f"{what}: rank {rank} makes {len(calls)} calls; the budget is one for each {unit}",
        f"at most {most}",
        len(calls),
        rank,
        TOO_MANY,
    )
    budget, sent = ring_bytes(nbytes, world), sent_by(events, rank)
    padding = 2 * 4 * world  # where all gradients are cut into equal pieces
    expect(
        sent <= budget + padding,
        f"{what}: rank {rank} sends {sent:,.0f} bytes through the ring, more than the trainable gradients need",
        f"at most {budget:,.0f}",
        f"{sent:,.0f}",
        rank,
        TOO_MANY,
    )


def check_no_wait_inside(what, events, rank):
    """No wait from the start of a backward pass to its end."""
    inside, call = False, None
    for event in events:
        inside = event["e"] == "backward" or (inside and event["e"] != "backward over")
        call = event if event["e"] == "op" else call
        if inside and event["e"] == "wait":
            raise Fault(
                "wrong_value",
                f"{what}: rank {rank} waits inside the backward pass, at {place(call and call['where'])}: nothing is"
                " computed meanwhile",
                rank,
                call and call["where"],
                expected="waits after the backward pass",
                seen="a wait in a hook",
                hint=HELD_UP,
            )


# ---------------------------------------------------------------------------------------------------
# TODO 1: predictions


def predictions_on_rank(code, rank, world, shares):
    """The student's predictions for the gradients of these shares."""
    return [
        as_evidence(code.whole_gradient([torch.tensor(g, dtype=getattr(torch, dtype)) for g in gradients], [*samples]))
        for gradients, samples, dtype in shares
    ]


DTYPES = ("bfloat16", "float32", "float64")


def drawn_shares(draw):
    """(gradients of the ranks, their samples, dtype). The matrices would lose digits in float32."""
    shares = [
        ([[1.0, 2.0], [3.0, 8.0]], [5, 5], "float64"),
        ([[1.0, 2.0], [3.0, 8.0]], [3, 1], "float64"),
        ([[4.0], [8.0], [0.0]], [2, 2, 0], "float64"),
        ([[1.0, 2.0]], [7], "float64"),
    ]
    samples = [draw.randrange(1, 9) for _ in range(5)]
    shares.append(([[8.0 * draw.randrange(50) for _ in range(3)] for _ in samples], samples, "float64"))
    matrices = [[[draw.uniform(-1, 1) for _ in range(2)] for _ in range(2)] for _ in range(3)]
    shares.append((matrices, [5, 1, 3], "float64"))
    for counts, dtype in zip(ones_in_turn(draw, 3), draw.sample(DTYPES, 3), strict=True):
        shares.append(([[8.0 * draw.randrange(1, 50) for _ in range(2)] for _ in counts], counts, dtype))
    return shares


@todo(
    1,
    minutes=10,
    why=(
        "If ranks have unequal shares, the mean over ranks is not the mean over samples, and nothing looks wrong: the"
        " loss falls anyway. And the bytes of a ring hardly depend on the number of ranks, which is why data-parallel"
        " training scales as far as it does."
    ),
    hints=(
        (
            "What turns a mean back into a sum? Sums of shares can be added. For the bytes, look up lesson 01: which"
            " two steps make a ring all-reduce, and how much does a rank send in each?"
        ),
        (
            "zip(gradients, samples) gives pairs; multiply each, add up, and divide once by sum(samples). In a ring a"
            " rank sends (N - 1)/N of the tensor twice; a float32 number has 4 bytes."
        ),
        "sum(g * n for g, n in zip(gradients, samples)) / sum(samples); and 2 * (world - 1) / world * 4 * parameters.",
    ),
)
def test_todo1_predictions(student):
    shares = drawn_shares(student.draw("shares"))
    steps = ((1000, 1), (1000, 2), (1000, 3), (1000, 4), (124_000_000, 1024))
    (seen,) = student.call(predictions_on_rank, world=1, group=False, shares=shares).evidence
    for (gradients_of_ranks, samples, dtype), guess in zip(shares, seen, strict=True):
        call = f"whole_gradient({gradients_of_ranks}, {samples})" + (f", in {dtype}," if dtype != "float64" else "")
        sums = (n * torch.tensor(g, dtype=torch.float64) for g, n in zip(gradients_of_ranks, samples, strict=True))
        dtype = getattr(torch, dtype)
        rel = max(1e-12, 4 * torch.finfo(dtype).eps)  # a product, two sums and a quotient are rounded
        right, than = sum(sums) / sum(samples), "the gradient of the mean over all samples"
        check_shape(call, guess, right.shape, dtype, hint="Which line makes a tensor of a shape or dtype of its own?")
        check_tensor(call, guess, right, rel, dtype=dtype, than=than)
    check_answers(
        student,
        {("step_bytes", step): 8 * (step[1] - 1) / step[1] * step[0] for step in steps},
        wrong="is not what a ring sends",
        hints={
            "step_bytes": (
                "Look up lesson 01: which two steps make a ring all-reduce, and how much does a rank send in each?"
            )
        },
    )


# ---------------------------------------------------------------------------------------------------
# TODO 2: first state


def state(model):
    """Copies of all tensors by name; the caller checks whether the tensors are still the same objects."""
    return {name: tensor.detach().clone() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def first_states(seeds):
    return [state(made_model(seed)) for seed in seeds]


def broadcast_on_rank(code, rank, world, seed):
    merciless_messages()
    return [broadcast_once(code, made_model(seed, of_images=of_images)) for of_images in MODELS.values()]


def broadcast_once(code, model):
    given = {name: (tensor, tensor.data_ptr()) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    trained_before = [*trained(model)]
    mark()
    code.broadcast_state(model)
    after = dict((*model.named_parameters(), *model.named_buffers()))
    replaced = [name for name, (tensor, _) in given.items() if after.get(name) is not tensor]
    moved = [name for name, (tensor, address) in given.items() if tensor.data_ptr() != address]
    return {
        "after": state(model),
        "replaced": replaced + moved,
        "tied": model.head.weight is model.embedding.weight,
        "trained": [*trained(model)],
        "trained_before": trained_before,
    }


MODELS = {"": False, " of a model in channels_last": True}  # whether `of_images`

ALIKE = (
    "Do all ranks make the same calls, with the same root, whatever numbers their tensors hold? A tied parameter is one"
    " object with two names; two objects with equal numbers are not tied."
)


@todo(
    2,
    minutes=5,
    why=(
        "Equal gradients added to unequal weights leave the weights unequal, permanently: each rank trains a"
        " different model, and only one of them is saved. A forgotten buffer shows only in evaluation, where a batch"
        " norm uses it."
    ),
    hints=(
        "Apart from parameters, what does a module hold, and which two methods list everything, each tensor once?",
        (
            "model.parameters() and model.buffers() yield each tensor once, tied or not, frozen or not, in the"
            " state_dict or not. dist.broadcast works in place."
        ),
        "In a loop over the parameters, then over the buffers: dist.broadcast(...) of the tensor.detach(), with src=0.",
    ),
)
def test_todo2_broadcast_state(student):
    seeds = student.seeds(WORLD)
    first, *others = student.reference(first_states, seeds=[*seeds])
    alike = [name for name in first for other in others if torch.equal(other[name], first[name])]
    student.premise({*alike} <= {"norm.weight"}, f"a rank that keeps its own {alike}")
    with hinted(ALIKE, "mismatch"):
        run = student.call(broadcast_on_rank, world=WORLD, seed=seeds)
    for case, told in enumerate(MODELS):
        with hinted(COPIED if told else ""):
            check_broadcast(f"broadcast_state{told}", first, case, run)


COPIED = (
    "In channels_last a weight is dense, but not in the order of its dimensions, so contiguous() copies it. Into which"
    " tensor does the call write?"
)


def check_broadcast(what, right, case, run):
    """`right` is the state of rank 0, drawn here: not what rank 0 says that it had."""
    ranks = [seen[case] for seen in run.evidence]
    check_waited(what, [parts(mine)[case] for mine in run.events])
    for rank, seen in enumerate(ranks):
        for name, wanted in right.items():
            kind = (
                "buffer"
                if name in ("scale",) or name.startswith("norm.running") or name.endswith("tracked")
                else "parameter"
            )
            held = seen["after"].get(name)
            kind += ", which is not in the state_dict" if name == "scale" else ""
            kind += ", which is frozen" if name.startswith("frozen") else ""
            check_tensor(f"after {what}, {name} on rank {rank}, a {kind},", held, wanted, rank=rank, than="rank 0's")
        expect(
            not seen["replaced"] and seen["tied"],
            f"{what} replaces tensors of rank {rank}'s model: an optimizer "
            "that refers to the old ones would keep training those",
            "the same tensors with new numbers",
            ", ".join(seen["replaced"]) or "different tensors",
            rank,
            "A broadcast can write into a tensor that is there already. Which line makes a new one?",
        )
        for name in {*seen["trained"]} ^ {*seen["trained_before"]}:
            after = "trainable" if name in seen["trained"] else "frozen"
            hint = "Only numbers are to be sent. Which line changes what autograd does with a parameter?"
            expect(False, f"{what} leaves {name} {after} on rank {rank}", "as it was", after, rank, hint)
    most = sum(tensor.numel() * tensor.element_size() for tensor in right.values())
    for rank, events in enumerate(run.events):
        calls = ops(parts(events)[case])
        seen, by = moved_by(calls, rank), operations(calls)
        expect(
            seen <= most,
            f"in {what} {seen:,.0f} bytes reach rank {rank} by {by}, and the state has {most:,}: is each"
            " tensor broadcast once, even a tied one, and unchanged? An all-reduce moves more than a broadcast, and a"
            " pickled object is longer than its tensors",
            f"at most {most:,} bytes",
            f"{seen:,.0f} bytes",
            rank,
            TOO_MANY,
        )
        expect(
            rank == 0 or seen >= most / 2,
            f"in {what} only {seen:,.0f} bytes reach rank {rank} by {by}, and the state has {most:,}",
            f"{most:,} bytes",
            f"{seen:,.0f} bytes",
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 3: after the backward pass

# For each number of ranks the dtype and, as `loss_of` has them, who uses the extra layer in the pass of each case: all,
# all but rank 1, none; and all, but the gradients of rank 1, or of all ranks, are zeros. On two ranks the model is in
# channels_last.
NAIVE = {
    3: ("float32", ([0, [0, 1, 2]], [1, [0, 2]], [2, []], [3, [0, 1, 2], [], [1]], [4, [0, 1, 2], [], [0, 1, 2]])),
    2: ("float64", ([0, [0, 1]], [1, [0]])),
}


def naive_on_rank(code, rank, world, seed, dtype, passes):
    merciless_messages()
    seen = []
    for one in passes:
        model = made_model(of_images=world == 2).to(getattr(torch, dtype))
        loss_of(model, seed, rank, *one).backward()
        mark()
        code.average_gradients(model)
        seen.append(left_by_step(model))
    return seen


@todo(
    3,
    minutes=10,
    why=(
        "This is all there is to data parallelism: averaging the right gradients, each exactly once, trains the same"
        " model as the serial run. The rest of the lesson only makes it faster."
    ),
    hints=(
        (
            "Loop over the parameters, which are the same on all ranks, not over the gradients, which may be missing on"
            " some."
        ),
        (
            "model.parameters() names a tied parameter once; requires_grad tells the frozen ones. A missing gradient"
            " counts as zeros: torch.zeros_like. dist.all_reduce adds up in place; then divide by"
            " dist.get_world_size()."
        ),
        (
            "if parameter.requires_grad: if parameter.grad is None: parameter.grad = torch.zeros_like(parameter); "
            "dist.all_reduce(parameter.grad); parameter.grad /= dist.get_world_size()"
        ),
    ),
)
def test_todo3_naive(student):
    rights = {world: naive_gradients(student, world) for world in NAIVE}
    for world, (dtype, passes) in NAIVE.items():
        seeds = student.seeds(world)
        with hinted(NOTHING_TO_SEND, "hang", "mismatch"):
            run = student.call(naive_on_rank, world=world, seed=seeds, dtype=dtype, passes=passes)
        sizes = gradient_bytes(getattr(torch, dtype).itemsize)
        for case in range(len(passes)):
            what = f"average_gradients on {count_of(world, 'rank')}"
            what += f", in {dtype}, of a model in channels_last" if world == 2 else ""
            what += ("", ", where rank 1 does not use a layer", ", where no rank uses a layer", ZEROS, ONLY_ZEROS)[case]
            check_naive(what, rights[world][case], case, run, sizes, world)


def naive_gradients(student, world):
    """The mean gradients of each case, which no rank has alone."""
    (dtype, passes), seeds = NAIVE[world], student.seeds(world)
    rights = [student.reference(serial, passes=[one], seeds=[*seeds], dtype=dtype) for one in passes]
    owns = student.reference(own_gradients, asked=passes, seeds=[*seeds])
    for right, own in zip(rights, owns, strict=True):
        if not any(grad.any() for grad in right.values()):
            continue
        alike = [
            name
            for name in right
            if all(name in mine and near(mine[name], right[name], REL, scale_of(right.values())) for mine in own)
        ]
        student.premise(not alike, f"a rank that keeps its own gradient of {alike[:1]}")
    return rights


def check_naive(what, right, case, run, sizes, world):
    ranks = [seen[case] for seen in run.evidence]
    check_waited(what, [parts(mine)[case] for mine in run.events])
    for rank, seen in enumerate(ranks):
        events = parts(run.events[rank])[case]
        check_step(what, seen, right, rank, world)
        check_budget(
            what,
            events,
            rank,
            len(sizes),
            sum(sizes),
            "trainable parameter, a tied one once and a frozen one never",
            world,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 4: as soon as a gradient is ready


def overlapped_on_rank(code, rank, world, seed, earlier):
    """Two passes, the second one on top of what the first one has left; and the first one on top of earlier ones, in
    which no hook was there. Then passes without gradients from before, in which rank 1's are zeros, and all ranks'. On
    two ranks the model is in channels_last.
    """
    merciless_messages()
    model = made_model(of_images=world == 2)
    for number in earlier:
        model(*micro_batch(seed, number)).backward()
    watch_gradients(model)
    finish = code.reduce_when_ready(model)
    seen = []
    for number in range(2):
        loss = model(*micro_batch(seed, number))
        mark()
        backward(loss)
        finish()
        seen.append(left_by_step(model))
    for one in OF_ZEROS.values():
        emptied(model)
        loss = loss_of(model, seed, rank, *one)
        mark()
        backward(loss)
        finish()
        seen.append(left_by_step(model))
    return seen


OF_ZEROS = {ZEROS: [2, [*range(WORLD)], [], [1]], ONLY_ZEROS: [3, [*range(WORLD)], [], [*range(WORLD)]]}  # `loss_of`'s
EARLIER = {WORLD: [], 2: [7]}  # for each number of ranks, passes before the call of reduce_when_ready
PASSES = (
    ("reduce_when_ready", [0]),
    ("reduce_when_ready, in a second pass on top of the first one's gradients", [0, 1]),
)
# When gradients are ready, how long their all-reduces take, and when the last one is over.
ENDS = (
    ((1.0, 2.0, 3.0), (0.5, 0.5, 0.5), 3.5),
    ((1.0, 2.0, 3.0), (2.0, 2.0, 2.0), 7.0),
    ((1.0, 2.0, 8.0), (2.0, 2.0, 1.0), 9.0),
    ((4.0, 4.0, 4.0), (1.0, 2.0, 3.0), 10.0),
    ((2.0,), (3.0,), 5.0),
    ((0.0, 0.0, 1.0, 6.0, 6.5), (0.25, 0.5, 8.0, 0.25, 1.0), 10.25),
)


@todo(
    4,
    minutes=25,
    why=(
        "On many nodes the all-reduces of a step take about as long as its backward pass. If both happen at once, you"
        " pay only for the longer of the two; the naive version pays for their sum."
    ),
    hints=(
        (
            "Follow the network from one all-reduce to the next: which two things does each wait for? For the hooks,"
            " keep one list of works in flight: hooks append to it, and the function at the end waits for each and"
            " empties it."
        ),
        (
            "max(ready, end) + seconds, from one to the next. register_post_accumulate_grad_hook runs after p.grad is"
            " complete; a tensor hook sees only this pass's part. dist.all_reduce(..., async_op=True) returns the work"
            " to wait for. Frozen parameters take no hook."
        ),
        (
            "def start(p): started.append((dist.all_reduce(p.grad, async_op=True), p)). def finish(): for work, p in"
            " started: work.wait(); p.grad /= dist.get_world_size(); then started.clear()."
        ),
    ),
)
def test_todo4_overlapped(student):
    check_answers(
        student,
        {("communication_ends", (ready, seconds)): end for ready, seconds, end in ENDS},
        wrong="is not when the last one ends",
    )
    for world, earlier in EARLIER.items():
        seeds = student.seeds(world)
        with hinted(OWN_ZEROS, "hang", "mismatch"):
            run = student.call(overlapped_on_rank, world=world, seed=seeds, earlier=earlier)
        asked = [[[number, [*range(world)]] for number in (*earlier, *later)] for _, later in PASSES]
        means = [student.reference(serial, passes=one, seeds=[*seeds]) for one in asked]
        for case, ((what, _), passes, mean) in enumerate(zip(PASSES, asked, means, strict=True)):
            right = {name: grad * len(passes) for name, grad in mean.items()}
            what += f", on {count_of(world, 'rank')}"
            what += ", called after an earlier pass, of a model in channels_last" * bool(earlier)
            check_overlapped(what, right, OVERLAPPED[len(passes) > 1], case, run, world)
        for case, (which, one) in enumerate(OF_ZEROS.items(), start=len(PASSES)):
            right = student.reference(serial, passes=[one], seeds=[*seeds])
            what = f"reduce_when_ready on {count_of(world, 'rank')}{which}"
            check_overlapped(what, right, OWN_ZEROS, case, run, world)


def check_overlapped(what, right, hint, case, run, world):
    sizes = gradient_bytes()
    events = [parts(mine)[case] for mine in run.events]
    check_waited(what, events, LEFT if case == 1 else "")
    for rank, seen in enumerate(run.evidence):
        check_no_wait_inside(what, events[rank], rank)
        with hinted(hint):
            check_step(what, seen[case], right, rank, world)
        check_budget(what, events[rank], rank, len(sizes), sum(sizes), "trainable parameter", world)
        check_begun_at_once(what, events[rank], rank)


LEFT = "The first pass is right. What has it left in a list, and which line takes it out before the second pass?"
OVERLAPPED = (
    "Which tensor does a hook all-reduce, is it complete by then, and when is it divided?",
    "Here p.grad had something in it before the pass. Is it still there, and does a hook see all of it, or only what"
    " this pass adds?",
)


def check_begun_at_once(what, events, rank):
    """Each all-reduce starts before the next gradient is ready."""
    ready = begun = 0
    last = ""
    for event in events:
        if event["e"] in ("ready", "backward over"):
            expect(
                begun >= ready,
                f"{what}: on rank {rank}, the gradient of {last} is ready, but its all-reduce does not begin before "
                + (
                    f"the gradient of {event['name']} is ready, too"
                    if event["e"] == "ready"
                    else "the backward pass is over"
                ),
                f"{ready} all-reduces started",
                begun,
                rank,
                "What is the first line that runs when this gradient is complete, and what does it start?",
            )
            if event["e"] == "backward over":
                return
            ready, last = ready + 1, event["name"]
        begun += event["e"] == "op"


# ---------------------------------------------------------------------------------------------------
# TODO 5: buckets

FILLS = (
    ([4, 4, 4, 4], 8),
    ([4, 4, 4, 4, 4], 8),
    ([10, 20, 30, 40], 50),
    ([3, 100, 3, 3], 10),
    ([0, 100, 0], 10),
    ([100], 10),
    ([0, 10], 10),  # nothing is left in the bucket, and what has no bytes fits in
    ([0, 5, 0, 5, 0], 10),
    ([], 10),
    ([5, 5, 5], 1000),
    ([6, 5, 6, 5], 10),
    ([112, 16, 16, 96, 24, 144, 24, 48, 8], 150),
)


def fills_on_rank(code, rank, world, fills):
    found = []
    for sizes, cap in fills:
        buckets = code.assign_buckets(sizes, cap)
        try:
            found.append([[int(index) for index in bucket] for bucket in buckets])
        except (TypeError, ValueError):
            found.append(repr(buckets)[:200])
    return found


def fewest(sizes, cap):
    """The smallest number of runs of neighbours: filling from one end is optimal."""
    count, room = 0, -1
    for size in reversed(sizes):
        if size > room:
            count, room = count + 1, cap
        room -= size
    return count


@todo(
    5,
    minutes=15,
    why=(
        "torch's cap is 25 MiB by default, and both much smaller and much larger ones make training slower. In the"
        " wrong order, the first bucket is full only when the backward pass ends, and buckets gain nothing."
    ),
    hints=(
        (
            "Go through the parameters from the last to the first, with one open bucket. When does a parameter not go"
            " into it?"
        ),
        (
            "reversed(range(len(sizes))) counts down. Keep how many bytes are left in the open bucket; if the next"
            " parameter is larger than that, open a new one."
        ),
        (
            "if not buckets or sizes[index] > room: buckets.append([]); room = cap. Then buckets[-1].append(index);"
            " room -= sizes[index]."
        ),
    ),
)
def test_todo5_buckets(student):
    draw = student.draw("sizes")
    fills = [*FILLS]
    for largest in (10, 10, 40, 40):
        fills.append(([draw.randrange(largest) for _ in range(draw.randrange(12, 20))], draw.randrange(40, 90)))
    (seen,) = student.call(fills_on_rank, world=1, group=False, fills=fills).evidence
    for (sizes, cap), buckets in zip(fills, seen, strict=True):
        what = f"assign_buckets({sizes}, {cap})"
        expect(isinstance(buckets, list), f"{what} is not a list of lists of indices", "lists of indices", buckets)
        flat = [index for bucket in buckets for index in bucket]
        expect(
            sorted(flat) == list(range(len(sizes))),
            f"{what} does not have each parameter in one bucket",
            "each index once",
            buckets,
        )
        expect(
            flat == sorted(flat, reverse=True),
            f"{what} does not go from the last parameter to the first",
            sorted(flat, reverse=True),
            flat,
        )
        for bucket in buckets:
            held = sum(sizes[index] for index in bucket)
            hint = "When is a bucket opened: when one is full, or when there is something to put in?"
            expect(bucket, f"{what} has an empty bucket", "no empty bucket", buckets, hint=hint)
            expect(
                held <= cap or len(bucket) == 1,
                f"{what} puts {held} bytes into a bucket for {cap}",
                f"at most {cap}, unless it is a single parameter",
                buckets,
            )
        least = fewest(sizes, cap)
        expect(
            len(buckets) <= least,
            f"{what} takes {len(buckets)} buckets; {least} would do",
            count_of(least, "bucket"),
            buckets,
        )


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: DDP with buckets

# For each step of one reducer its passes, as `loss_of` has them; all but the last without sync.
STEPS = (
    ("Bucketed", [[0, [0, 1, 2]]]),
    ("Bucketed in its second step, which is like the first", [[11, [0, 1, 2]]]),
    ("Bucketed where rank 1 does not use a layer", [[1, [0, 2]]]),
    ("Bucketed with a pass without sync, after a step in which a layer went unused", [[2, [0, 1, 2]], [3, [0, 1, 2]]]),
    (
        "Bucketed where the last pass of rank 1 does not use a layer that an earlier one did",
        [[4, [0, 1, 2]], [5, [0, 2]]],
    ),
    ("Bucketed where no rank uses a layer", [[6, []]]),
    ("Bucketed where the pass of rank 1 uses no parameter", [[12, [0, 2], [1]]]),
    ("Bucketed after a step in which the pass of rank 1 used no parameter", [[13, [0, 1, 2]]]),
    ("Bucketed" + ZEROS, [[14, [0, 1, 2], [], [1]]]),
    ("Bucketed" + ONLY_ZEROS, [[15, [0, 1, 2], [], [0, 1, 2]]]),
)
STEPS_OF_TWO = (
    ("Bucketed on 2 ranks, with a larger cap and matrices that are not contiguous", [[7, [0, 1]]]),
    ("Bucketed on 2 ranks, with two passes without sync", [[8, [0, 1]], [9, [0]], [10, [0, 1]]]),
)
BUCKETED = {3: (CAP, STEPS), 2: (2 * CAP, STEPS_OF_TWO)}


def bucketed_on_rank(code, rank, world, seed, cap, steps):
    merciless_messages()
    model = made_model(turned=world == 2)
    watch_gradients(model)
    reducer = code.Bucketed(model, cap)
    seen = []
    for passes in steps:
        emptied(model)
        mark()
        for place_of_pass, one in enumerate(passes, start=1):
            reducer.sync = place_of_pass == len(passes)
            backward(loss_of(model, seed, rank, *one) / len(passes))
        reducer.finish()
        seen.append(left_by_step(model))
    mark()
    pairs = [(made_model(), seed), (made_model(), seed + 50)]
    reducers = [code.Bucketed(one, cap) for one, _ in pairs]
    for one, own_seed in pairs:
        one(*micro_batch(own_seed, 0)).backward()
    for one in reducers:
        one.finish()
    seen += [{name: grad.clone() for name, grad in gradients(one).items()} for one, _ in pairs]
    mark()
    last_first = LastFirst(*(nn.Linear(6, 6, bias=False) for _ in range(4)))
    reducer_of_it = code.Bucketed(last_first, cap)
    backward(last_first(torch.ones(2, 6)).square().mean())
    reducer_of_it.finish()
    mark()
    return [*seen, held_after_steps(model, reducer, micro_batch(seed, 0))]


class LastFirst(nn.Sequential):
    """The last layer computes first, so its gradients are ready last."""

    def forward(self, x):
        for layer in reversed(self):
            x = layer(x)
        return x


def held_after_steps(model, reducer, batch):
    """Bytes that are alive after each of some equal steps: those of the model, and of what these steps have made."""
    reducer.sync, held = True, []
    with Storages(model.parameters()) as storages:
        for _ in range(4):
            model.zero_grad()
            backward(model(*batch))
            reducer.finish()
            alive = sum(storages.bytes_alive().values())
            for _ in range(100):  # gloo's own thread lets go of a tensor a moment after its message is over
                if alive <= (held or [alive])[-1]:
                    break
                time.sleep(0.001)
                alive = sum(storages.bytes_alive().values())
            held.append(alive)
    return held


@todo(
    6,
    in_place=("parameter",),
    minutes=50,
    needs=(5,),
    why=(
        "This is how torch's DDP works: few messages, and all but the last one hidden behind the backward pass. And it"
        " is where a training run hangs if ranks do not start the same buckets in the same order."
    ),
    hints=(
        (
            "For each bucket, keep the number of gradients that are still missing; and keep one number for all buckets:"
            " which is started next. A hook counts down, then starts as many as it can."
        ),
        (
            "A vector for each bucket: new_zeros, .split(lengths) gives a view for each parameter, .view_as(parameter)"
            " its shape; copy_ in both directions. In finish, parameters whose hook was not called are treated as if"
            " they were ready now."
        ),
        (
            "while len(works) < len(buckets) and missing[len(works)] == 0:"
            " works.append(dist.all_reduce(vectors[len(works)], async_op=True)). In finish: fill the gaps, wait for"
            " each work, divide its vector, copy back (a new grad where it is None), reset the counts."
        ),
    ),
)
def test_todo6_bucketed(student):
    for world, (cap, steps) in student.several(BUCKETED.items()):
        seeds, steps = student.seeds(world), student.several(steps, 3)
        passes_of_steps = [passes for _, passes in steps]
        with hinted(NOT_ASKED, "hang"):
            run = student.call(bucketed_on_rank, world=world, seed=seeds, cap=cap, steps=passes_of_steps)
        rights = [student.reference(serial, passes=passes, seeds=[*seeds]) for passes in passes_of_steps]
        for case, ((what, passes), right) in enumerate(zip(steps, rights, strict=True)):
            check_bucketed(what, right, case, run, world, cap, passes)
        for case, later in enumerate((0, 50)):
            what = f"the {('first', 'second')[case]} of two models, each with its Bucketed, whose passes alternate"
            right = student.reference(serial, passes=[[0, [*range(world)]]], seeds=[seed + later for seed in seeds])
            for rank, seen in enumerate(run.evidence):
                with hinted("Two reducers are at work. What do both of them use that each must have for itself?"):
                    check_gradients(what, seen[len(steps) + case], right, rank, world)
        what = "Bucketed of a model whose last layer computes first"  # its last gradient lets all buckets start
        for rank, events in enumerate(run.events):
            with hinted("A bucket that becomes full may have kept others waiting. How many can start now?"):
                check_all_begun(what, parts(events)[len(steps) + 1], rank, fewest([4 * 36] * 4, cap))
        for rank, seen in enumerate(run.evidence):
            *_, before, after = seen[-1]
            expect(
                after <= before,
                f"Bucketed: after the fourth of four equal steps rank {rank} holds {after - before:,} bytes more than"
                " after the third",
                f"{before:,} bytes",
                f"{after:,} bytes",
                rank,
                "What does a pass put into a list, or into an attribute, that finish does not take out again?",
            )


def check_bucketed(what, right, case, run, world, cap, passes):
    sizes = gradient_bytes()
    buckets = fewest(sizes, cap)
    events = [parts(mine)[case] for mine in run.events]
    check_waited(what, events, AGAIN if what == STEPS[1][0] else "")
    all_users = all(len(users) == world for _, users, *_ in passes)
    for rank, seen in enumerate(run.evidence):
        check_no_wait_inside(what, events[rank], rank)
        *silent, last = parts(events[rank], "backward")
        for quiet in silent:
            expect(
                not ops(quiet),
                f"{what}: rank {rank} communicates in a backward pass although sync is False",
                "no call",
                f"{len(ops(quiet))} calls",
                rank,
                "sync says whether this pass is the step's last one. Which part of a hook's work is for the last one"
                " alone?",
            )
        with hinted(AGAIN if what == STEPS[1][0] else bucketed_hint(passes, all_users)):
            check_step(what, seen[case], right, rank, world)
        check_budget(what, last, rank, buckets, sum(sizes), "bucket", world)
        if all_users:
            check_begun_early(what, last, rank, buckets)


NOT_ASKED = (
    "In which order does a rank start its buckets? And which ones if its pass used few parameters or none, or if its"
    " gradients are zeros?"
)
AGAIN = "The first step is right. What does a pass count or collect, and who sets it back for the next one?"


def bucketed_hint(passes, all_users):
    """For a wrong gradient after these passes."""
    if not all_users:
        return "Where a rank does not use a layer, no hook is called. What does finish() do in its place, on that rank?"
    if len(passes) > 1:
        return "What passes without sync have left is in p.grad. What of it is in the vector when that is sent?"
    return "Follow one gradient: to its place in a vector, through the sum, and back. Where is it divided?"


def check_begun_early(what, events, rank, buckets):
    """When the last gradient becomes ready, all buckets but its own are under way."""
    last = max((place for place, event in enumerate(events) if event["e"] == "ready"), default=0)
    begun = len(ops(events[:last]))
    expect(
        begun >= buckets - 1,
        f"{what}: on rank {rank}, {begun} of {buckets} buckets are under way when the last gradient becomes ready; all"
        " but the bucket of that gradient were full before",
        f"{buckets - 1} under way",
        begun,
        rank,
    )
    check_all_begun(what, events, rank, buckets)


def check_all_begun(what, events, rank, buckets):
    over = next(place for place, event in enumerate(events) if event["e"] == "backward over")
    begun = len(ops(events[:over]))
    expect(
        begun >= buckets,
        f"{what}: on rank {rank}, {begun} of {buckets} buckets are under way when the backward pass ends, though all"
        " are full",
        f"{buckets} under way",
        begun,
        rank,
    )


# The micro-batches of each step, by their numbers. One occurs twice, as the same tensors: an answer that compares each
# with the last one, instead of counting, takes the first of the two for it.
MICRO = ((0, 1, 2), (10,), (20, 24, 22, 23, 24))


def accumulate_on_rank(code, rank, world, seed):
    merciless_messages()
    model = made_model()
    watch_gradients(model)
    reducer = code.Bucketed(model, CAP)
    seen = []
    for numbers in MICRO:
        model.zero_grad()
        reducer.sync = len(numbers) > 1  # as whichever pass before has left it
        made = {number: micro_batch(seed, number) for number in numbers}
        mark()
        with told_passes():
            code.accumulate(model, reducer, [made[number] for number in numbers])
        seen.append({name: grad.clone() for name, grad in gradients(model).items()})
    return seen


class told_passes:
    """While it is active, each backward pass is reported, wherever it is called."""

    def __enter__(self):
        self.plain = torch.autograd.backward

        def reported(*args, **kwargs):
            tell("backward")
            try:
                self.plain(*args, **kwargs)
            finally:
                tell("backward over")

        torch.autograd.backward = reported

    def __exit__(self, *_):
        torch.autograd.backward = self.plain


@todo(
    7,
    in_place=("parameter",),
    minutes=10,
    needs=(5, 6),
    why=(
        "Communication costs the same for a micro-batch and for a large batch. Synchronising each of k micro-batches"
        " costs k times the bytes for sums that are added up anyway; and without the division you train with k times"
        " the learning rate."
    ),
    hints=(
        "Which of the backward passes is the one that must communicate, and how does the reducer know?",
        (
            "enumerate numbers the micro-batches; set reducer.sync before the backward pass. Divide each loss by"
            " len(micro_batches)."
        ),
        (
            "for number, (x, y) in enumerate(micro_batches, start=1): reducer.sync = number == len(micro_batches); "
            "(model(x, y) / len(micro_batches)).backward(). After the loop reducer.finish()."
        ),
    ),
)
def test_todo7_accumulate(student):
    world = 2
    seeds = student.seeds(world)
    run = student.call(accumulate_on_rank, world=world, seed=seeds)
    ranks = run.evidence
    sizes = gradient_bytes()
    for step, numbers in enumerate(MICRO):
        count = len(numbers)
        what = (
            f"accumulate over {count} micro-batch{'es' if count > 1 else ''}"
            + (f", in step {step + 1} of one reducer" if step else "")
            + (", and one occurs twice" if len(set(numbers)) < count else "")
        )
        right = student.reference(serial, passes=[[number, [0, 1]] for number in numbers], seeds=[*seeds])
        events = [parts(mine)[step] for mine in run.events]
        for rank in range(world):
            passes = parts(events[rank], "backward")
            expect(len(passes) > 0, f"{what}: rank {rank} makes no backward pass", f"{count} passes", 0, rank)
            expect(
                len(passes) == count,
                f"{what}: rank {rank} makes {len(passes)} backward pass{'es' * (len(passes) > 1)}. Each micro-batch"
                " needs one of its own: only then are its activations freed before the next one's are made",
                f"{count} passes",
                len(passes),
                rank,
                "When are the activations of a micro-batch freed? Its backward pass must be over before the next"
                " begins.",
            )
            for number, quiet in enumerate(passes[:-1], start=1):
                expect(
                    not ops(quiet),
                    f"{what}: rank {rank} communicates in or after backward pass {number} of {len(passes)}; only the"
                    " last one needs to",
                    "no call",
                    f"{len(ops(quiet))} calls",
                    rank,
                )
        check_waited(what, events)
        for rank, seen in enumerate(ranks):
            passes = parts(events[rank], "backward")
            check_scaled(what, seen[step], right, rank, count)
            with hinted(
                "What do all the backward passes leave in p.grad, and is all of it in what the last one sends?"
            ):
                check_gradients(what, seen[step], right, rank, world)
            check_budget(what, events[rank], rank, fewest(sizes, CAP), sum(sizes), "bucket", world)
            expect(
                ops(upto(passes[-1], "backward over")),
                f"{what}: rank {rank} begins to communicate after the last backward pass, not in it",
                "calls in the last pass",
                "none",
                rank,
                hint="The last micro-batch is number len(micro_batches), also where there is only one.",
            )


def upto(events, what):
    return events[: next(place for place, event in enumerate(events) if event["e"] == what)]


def check_scaled(what, seen, right, rank, count):
    """A common error with its own message: sums over `count` micro-batches."""
    scale = count * scale_of(right.values())
    if count > 1 and all(
        name in seen and near(seen[name], count * wanted, REL, scale) for name, wanted in right.items()
    ):
        raise Wrong(
            f"{what}: on rank {rank}, the gradients are {count} times the mean over all micro-batches: they add up",
            "the gradient of a mean",
            f"{count} times it",
            rank,
            hint="Gradients of the micro-batches add up; you want the gradient of their mean. By what must a loss be"
            " divided?",
        )


# ---------------------------------------------------------------------------------------------------
# TODO 8: unequal shares

COUNTS = (4, 0, 3)


def weighted_on_rank(code, rank, world, seed):
    merciless_messages()
    seen = []
    for counts in (COUNTS, (2, 2, 2)):
        model = made_model().eval()  # a batch norm over the whole batch differs from one over each part
        loss = (
            model(*micro_batch(seed, 0, samples=counts[rank]))
            if counts[rank]
            else 0 * sum(p.sum() for p in model.parameters())
        )
        mark()
        loss = code.weighted(loss, counts[rank])
        mark()
        loss.backward()
        for parameter in trained(model).values():
            parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        seen.append(gradients(model))
    return seen


# Tokens of 4 ranks: neither they nor their sum need fit into a byte or float16.
MANY = (((70_001, 300, 0, 5), "float32"), ((100, 100, 60, 90), "float32"), ((70_001, 300, 0, 500), "float16"))


def factor_on_rank(code, rank, world, shares):
    """The factor that `weighted` applies to a gradient."""
    factors = []
    for counts, dtype in shares:
        weight = torch.tensor(2.0, dtype=getattr(torch, dtype), requires_grad=True)
        loss = code.weighted(3 * weight, counts[rank])
        if isinstance(loss, torch.Tensor) and loss.requires_grad:
            loss.backward()
        factors.append(0.0 if weight.grad is None else weight.grad.item() / 3)
    return factors


def serial_shares(counts, seeds):
    model = made_model().eval()
    x, y = (
        torch.cat(shares)
        for shares in zip(
            *(micro_batch(seed, 0, samples=count) for seed, count in zip(seeds, counts, strict=True) if count)
        )
    )
    model(x, y).backward()
    return gradients(model)


@todo(
    8,
    minutes=5,
    why=(
        "A mean of the ranks' means gives a sample of a small share more weight than one of a large share. With"
        " sequences of unequal length this happens in every step, and the error is a few per cent: enough to train a"
        " different model, too little to be seen."
    ),
    hints=(
        (
            "The reducer divides by N; you want each rank's mean times its own count, divided by the count of all"
            " ranks. Which factor remains?"
        ),
        (
            "dist.all_reduce of a tensor with the count gives the count of all ranks. The count needs no gradient; the"
            " loss keeps its own."
        ),
        (
            "total = torch.tensor(float(count)); dist.all_reduce(total); return loss * (count * dist.get_world_size() /"
            " total)."
        ),
    ),
)
def test_todo8_weighted(student):
    seeds = student.seeds(WORLD)
    with hinted(PARTED, "hang"):
        run = student.call(weighted_on_rank, world=WORLD, seed=seeds)
    ranks = run.evidence
    for case, counts in enumerate((COUNTS, (2, 2, 2))):
        what = f"weighted, on ranks with {', '.join(map(str, counts))} samples"
        right = student.reference(serial_shares, counts=counts, seeds=[*seeds])
        check_waited(what, [parts(mine)[2 * case] for mine in run.events])
        for rank, seen in enumerate(ranks):
            check_gradients(what, seen[case], right, rank)
            calls = ops(parts(run.events[rank])[2 * case])
            budget = ring_bytes(sum(call["bytes"] for call in calls), WORLD)  # a gather of one from each sends more
            expect(
                len(calls) <= 1 and sum(map(numbers_in, calls)) <= 1 and sent_by(calls, rank) <= budget + 0.5,
                f"{what}: rank {rank} sends more than an all-reduce of one number does",
                "one all-reduce of one number",
                f"{len(calls)} calls of {sum(map(numbers_in, calls))} numbers, by {operations(calls)}",
                rank,
                "What must a rank know of all the others together, to find its factor?",
            )
    shares = [*MANY, *((counts, "float32") for counts in ones_in_turn(student.draw("single"), 4))]
    for rank, factors in enumerate(student.call(factor_on_rank, world=4, shares=shares).evidence):
        for (counts, dtype), factor in zip(shares, factors, strict=True):
            right = counts[rank] * 4 / sum(counts)
            in_dtype = "" if dtype == "float32" else f", in {dtype},"
            expect(
                math.isclose(factor, right, rel_tol=REL if dtype == "float32" else 4e-3),  # float16 keeps 1e-3
                f"weighted, on 4 ranks with {', '.join(f'{n:,}' for n in counts)} tokens: the loss{in_dtype} of rank"
                f" {rank} is multiplied by the wrong factor. Is it N times its count over all counts, and can their"
                " dtype hold such numbers?",
                right,
                factor,
                rank,
                "What is the largest number that a tensor of this dtype can hold? And in which dtype are the counts"
                " added up?",
            )


# ---------------------------------------------------------------------------------------------------
# TODO 9: torch's own

# Which rank uses the extra layer in each micro-batch. Of the first ones, two are the same tensors.
TORCH = ([[0, [0, 1]], [1, [0, 1]], [2, [0, 1]], [1, [0, 1]]], [[3, [0, 1]], [4, [0]]])


def torch_on_rank(code, rank, world, seed):
    seen = []
    for case, passes in enumerate(TORCH):
        model = made_model(rank if case == 0 else 0)  # in the first case the ranks start with different weights
        watch_gradients(model)
        made = {number: micro_batch(seed, number, rank in users) for number, users in passes}
        mark()
        with told_passes():
            ddp = code.with_torch(model, [made[number] for number, _ in passes], CAP)
        seen.append(
            {
                "grads": gradients(model),
                "kind": type(ddp).__name__,
                "wraps": getattr(ddp, "module", None) is model,
                "weights": {name: p.detach().clone() for name, p in model.named_parameters()},
            }
        )
    return seen


@todo(
    9,
    minutes=15,
    why=(
        "In a script you call DDP instead of writing it. Once you know what it does, you know why it hangs, why it"
        " complains about unused parameters, and why a forgotten no_sync makes accumulation as slow as no"
        " accumulation."
    ),
    hints=(
        "The constructor takes the model and a few options; the table above says which option does what.",
        (
            "DistributedDataParallel(model, bucket_cap_mb=..., find_unused_parameters=...), with cap / 2**20. Forward"
            " and backward passes of all but the last micro-batch belong inside `with ddp.no_sync():`, and you call"
            " ddp, not the model."
        ),
        (
            "with ddp.no_sync(): for x, y in micro_batches[:-1]: (ddp(x, y) / len(micro_batches)).backward(). Then the"
            " same for the last one, outside; and return ddp."
        ),
    ),
)
def test_todo9_torch(student):
    world = 2
    seeds = student.seeds(world)
    run = student.call(torch_on_rank, world=world, seed=seeds)
    ranks = run.evidence
    sizes, first = gradient_bytes(), dict(made_model().named_parameters())
    for case, passes in enumerate(TORCH):
        what = f"with_torch on {len(passes)} micro-batches" + (
            ", and rank 1 uses a layer in the first only" if case else ", and two of them are the same"
        )
        right = student.reference(serial, passes=passes, seeds=[*seeds])
        for rank, seen in enumerate(ranks):
            equal = all(torch.equal(seen[case]["weights"][name], weight) for name, weight in first.items())
            told = f"{what}: the weights of rank {rank} and of rank 0 differ"
            hint = "Before, you made the first weights equal yourself. What in DDP does that, and for which model?"
            expect(equal, told, "rank 0's weights", "different", rank, hint)
        for rank, seen in enumerate(ranks):
            mine = seen[case]
            expect(
                mine["kind"] == "DistributedDataParallel" and mine["wraps"],
                f"{what}: rank {rank} does not return the given model in a DistributedDataParallel",
                "DistributedDataParallel",
                mine["kind"],
                rank,
            )
            passes_seen = parts(parts(run.events[rank])[case], "backward")
            expect(
                len(passes_seen) > 0, f"{what}: rank {rank} makes no backward pass", f"{len(passes)} passes", 0, rank
            )
            for number, quiet in enumerate(passes_seen[:-1], start=1):
                expect(
                    not reduced(quiet),
                    f"{what}: rank {rank} sends gradients in backward pass {number} of {len(passes_seen)}; only the"
                    " last one needs to",
                    "none",
                    f"{sum(reduced(quiet))} bytes",
                    rank,
                    "One method of DDP is your `sync = False`. What must be inside of it: the backward pass alone?",
                )
            check_scaled(what, mine["grads"], right, rank, len(passes))
            with hinted("Which module is called in each pass: the model, or what knows of the other ranks?"):
                check_gradients(what, mine["grads"], right, rank, world)
            check_buckets(what, passes_seen[-1], sizes, rank)


def check_buckets(what, last_pass, sizes, rank):
    """Each gradient is sent once, in few messages of about the cap's size, and before the backward pass is over."""
    nbytes = sum(sizes)
    sent = reduced(last_pass)
    expect(
        sum(sent) <= nbytes,
        f"{what}: rank {rank} gives {sum(sent)} bytes of gradients to its all-reduces",
        f"{nbytes} bytes, each gradient once",
        sum(sent),
        rank,
    )
    expect(
        len(sent) > 1 and max(sent) < 2 * CAP,
        f"{what}: rank {rank} sends buckets of {', '.join(map(str, sent))} bytes where the cap is {CAP}",
        f"buckets of about {CAP} bytes",
        f"{len(sent)} buckets",
        rank,
    )
    # torch closes a bucket a little later than `assign_buckets` does, and its first bucket is small
    most = fewest(sizes, CAP) + 1
    expect(
        len(sent) <= most,
        f"{what}: rank {rank} sends its gradients in {len(sent)} messages where buckets of {CAP} bytes need"
        f" {most} at most",
        f"at most {most}",
        len(sent),
        rank,
    )
    expect(
        bool(reduced(upto(last_pass, "backward over"))),
        f"{what}: rank {rank} begins to send gradients after the last backward pass, not in it",
        "messages in the last pass",
        "none",
        rank,
        "The last pass is the one that sends. Is it outside of all that keeps DDP from sending?",
    )


def reduced(events):
    """Bytes of each all-reduce of floating-point numbers: a bitmap of used parameters is none."""
    return [
        event["bytes"] for event in ops(events) if event["op"] == "all_reduce" and event["dtype"].startswith("float")
    ]

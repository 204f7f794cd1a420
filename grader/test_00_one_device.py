"""Checks and hints of 00_one_device.

| TODO | achievement                            | evidence                                                          | needs |
|------|----------------------------------------|-------------------------------------------------------------------|-------|
| 1    | perplexity over tokens                 | the formulas, for batches of different sizes                      |       |
| 2    | a step, its four phases timed          | times on a clock that the work itself moves; losses of four steps |       |
| 3    | FLOPs by phase, MFU                    | the formulas, for models with large and with small heads          |       |
| 4    | the roofline                           | the formulas, on both sides of the edge                           |       |
| 5    | memory of a step; what fits            | the formulas                                                      |       |
| 6    | days, devices, doubling                | the formulas                                                      |       |
| 7    | strong and weak scaling, the two laws  | the formulas                                                      |       |
| 8    | when to go parallel                    | cases on both sides of each limit                                 | 5     |

All numbers are drawn. TODO 2 is judged by no real clock: each phase of the check's own model moves a clock by a span of
its own. Its model is a straight line, so that four steps of gradient descent can be followed with a pencil; anything
that the first step leaves in `.grad` would change the second, in either of the optimizer's two groups.
"""  # noqa: E501

import math

import torch
from torch import nn

from grader.kit import check_answers, count_of, expect, numbers, ones_in_turn, same_numbers, todo

BUILDS = "nothing parallel yet: perplexity, the phases of a step, FLOPs, roofline, memory; strong and weak scaling"


@todo(
    1,
    minutes=15,
    why=(
        "All lessons compare losses and perplexities. A mean of the batches' means gives the tokens of a short batch"
        " more weight than the others', and then the result depends on the batch size, or on the number of ranks."
    ),
    hints=(
        "Take two batches, one of 10 tokens and one of a single token. How much does the loss of that token count?",
        (
            "A batch's loss is a mean: times its number of tokens, it is a sum. The exponential comes last, since"
            " perplexity is e to the mean loss. If all words are equally likely, each has probability 1 / V."
        ),
        "math.exp undoes math.log; both are natural. zip pairs each loss with the number of its tokens.",
    ),
)
def test_todo1_perplexity(student):
    draw = student.draw("losses")
    right = {}
    few = [
        (tuple(numbers(draw, 4, "zero", "tie")), tuple(counts))  # a batch whose words are all foreseen has loss 0
        for counts in ones_in_turn(draw, 4)
    ]
    many = [
        (
            tuple(draw.uniform(1.0, 9.0) for _ in range(batches)),
            (*(draw.randrange(500, 900) for _ in range(batches - 1)), draw.randrange(20, 90)),
        )
        for batches in (1, 2, 5)
    ]
    for losses, tokens in [*many, *few]:
        mean = sum(loss * count for loss, count in zip(losses, tokens, strict=True)) / sum(tokens)
        apart = abs(mean - sum(losses) / len(losses)) > 1e-3 * mean
        student.premise(len(losses) == 1 or apart, "the plain mean of the batches' losses")
        right["perplexity", (losses, tokens)] = math.exp(mean)
    right["perplexity", ((0.0,), (draw.randrange(2, 90),))] = 1.0
    lost = draw.uniform(25, 90)  # a model that is worse than any guess
    right["perplexity", ((lost,), (draw.randrange(2, 90),))] = math.exp(lost)
    for vocabulary in (2, draw.randrange(3, 1000), 33_278):
        right["untrained_loss", (vocabulary,)] = math.log(vocabulary)
    alike = "If V words are equally likely, what is the probability of the right one, and what loss does that give?"
    check_answers(student, right, hints={"untrained_loss": alike})


# ---------------------------------------------------------------------------------------------------
# TODO 2: a step on a clock that the work moves


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Backward(torch.autograd.Function):
    """Changes nothing; its backward pass takes its time."""

    @staticmethod
    def forward(ctx, number, clock, seconds):
        ctx.clock, ctx.seconds = clock, seconds
        return number.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.clock.now += ctx.seconds
        return grad, None, None


class Line(nn.Module):
    """The loss of a weight and a bias: the mean of (w x + b - y)²."""

    def __init__(self, weight, bias, clock):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.tensor(n, dtype=torch.float64)) for n in (weight, bias))
        self.clock, self.spans = clock, None

    def forward(self, x, y):
        self.clock.now += self.spans["forward"]
        return Backward.apply(((self.weight * x + self.bias - y) ** 2).mean(), self.clock, self.spans["backward"])


class Descent(torch.optim.SGD):
    clock = spans = None

    def step(self, closure=None):
        self.clock.now += self.spans["optimizer"]
        return super().step(closure)


def steps_on_rank(code, rank, world, line, rate, steps):
    """What timed_step returns for each step: steps have spans, x and y. The optimizer has a group a parameter."""
    clock = Clock()
    model = Line(*line, clock)
    optimizer = Descent([{"params": [p]} for p in model.parameters()], lr=rate)
    optimizer.clock = clock
    found = []

    def batches():
        for step in steps:
            clock.now += step["spans"]["data"]
            yield torch.tensor(step["x"], dtype=torch.float64), torch.tensor(step["y"], dtype=torch.float64)

    reading = batches()
    for step in steps:
        model.spans = optimizer.spans = step["spans"]
        answer = code.timed_step(reading, model, optimizer, clock)
        pair = isinstance(answer, (tuple, list)) and len(answer) == 2
        loss, seconds = answer if pair else (None, None)
        found.append(
            {
                "pair": pair,
                "kind": type(loss).__name__,
                "loss": float(loss) if isinstance(loss, (int, float, torch.Tensor)) else math.nan,
                "seconds": {str(k): float(v) for k, v in seconds.items()} if isinstance(seconds, dict) else {},
                "line": [model.weight.item(), model.bias.item()],
                "graph": any(p.grad is not None and p.grad.requires_grad for p in model.parameters()),
            }
        )
    return found


PHASES = ("data", "forward", "backward", "optimizer")


def drawn_steps(draw, n_steps):
    """Steps with spans of all sizes, all of them different."""
    return [
        {
            "spans": dict(zip(PHASES, (span / 64 for span in draw.sample(range(1, 640), 4)), strict=True)),
            "x": [draw.uniform(0.5, 1.5) for _ in range(3)],
            "y": [draw.uniform(2.0, 4.0) for _ in range(3)],
        }
        for _ in range(n_steps)
    ]


def by_hand(steps, line, rate):
    """Of each step: loss, gradients, weight and bias after it, and both if the gradients are never emptied."""
    left = [0.0, 0.0]
    for step in steps:
        pairs = list(zip(step["x"], step["y"], strict=True))
        apart = [line[0] * x + line[1] - y for x, y in pairs]
        gradients = [
            2 * sum(gap * x for gap, (x, _) in zip(apart, pairs, strict=True)) / len(pairs),
            2 * sum(apart) / len(pairs),
        ]
        left = [old + new for old, new in zip(left, gradients, strict=True)]
        moved = [old - rate * gradient for old, gradient in zip(line, gradients, strict=True)]
        added_up = [old - rate * gradient for old, gradient in zip(line, left, strict=True)]
        yield sum(gap**2 for gap in apart) / len(pairs), gradients, moved, added_up
        line = moved


@todo(
    2,
    minutes=25,
    why=(
        "Parallel training divides some of these phases and adds communication to them. Once you know where the time of"
        " a step goes, you know how much there is to gain."
    ),
    hints=(
        "Go through the four phases in order. What does each of them call, and when does the next one begin?",
        (
            "loss.backward() adds to each parameter's .grad; optimizer.zero_grad() empties them; optimizer.step() uses"
            " them. A scalar tensor's .item() is its number. Four phases have five boundaries."
        ),
        (
            "Read clock() at each boundary, then subtract each from the next. The gradients may be emptied at any"
            " moment except between the backward pass and the optimizer's step."
        ),
    ),
)
def test_todo2_phases(student):
    draw = student.draw("steps")
    steps, line, rate = drawn_steps(draw, 4), [draw.uniform(0.1, 0.9) for _ in range(2)], draw.uniform(0.05, 0.1)
    right = [*by_hand(steps, line, rate)]
    slopes = [abs(gradient) for _, gradients, _, _ in right for gradient in gradients]
    student.premise(min(slopes) > 1e-2, "a step that changes nothing")
    seen = student.call(steps_on_rank, world=1, group=False, line=line, rate=rate, steps=steps).evidence[0]
    for number, (step, found, (loss, _, wanted, added_up)) in enumerate(zip(steps, seen, right, strict=True), start=1):
        expect(found["pair"], "timed_step does not return a loss and the phases' seconds", "two values", "another kind")
        expect(
            found["kind"] == "float",
            "timed_step does not return its loss as a number",
            "float",
            found["kind"],
            hint="Which method of a tensor with a single element gives that element as a Python number?",
        )
        expect(
            math.isclose(found["loss"], loss, rel_tol=1e-9),
            f"the loss of step {number} is not what gradient descent gives",
            loss,
            found["loss"],
        )
        expect(
            not found["graph"],
            f"after step {number} the gradients keep their graph alive, and with it the memory of the step",
            "gradients that autograd does not follow",
            "gradients with a graph",
            hint="Is anything differentiated twice here? Only then does backward() need a graph of the gradients.",
        )
        for name, after, moved, never_emptied in zip(("weight", "bias"), found["line"], wanted, added_up, strict=True):
            expect(
                math.isclose(after, moved, rel_tol=1e-9),
                f"after step {number} the model's {name} is not what a step along its gradient gives",
                moved,
                after,
                hint=(
                    "It still contains the gradients of earlier steps: backward() adds."
                    if math.isclose(after, never_emptied, rel_tol=1e-9)
                    else ""
                ),
            )
        expect(
            set(found["seconds"]) == set(PHASES),
            "the seconds are not named after the four phases",
            sorted(PHASES),
            sorted(found["seconds"]),
        )
        for phase in PHASES:
            expect(
                math.isclose(found["seconds"][phase], step["spans"][phase], abs_tol=1e-9),
                f"the seconds of “{phase}” in step {number} are not the time that it took",
                step["spans"][phase],
                found["seconds"][phase],
            )


# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 8: formulas


@todo(
    3,
    minutes=25,
    why=(
        "Work divided by speed is time: with these FLOPs you know what a run will take, and from the MFU how much of"
        " a device it uses, before you ask for more devices."
    ),
    hints=(
        "Count the weights of a block first: how many numbers do its six matrices have?",
        (
            "A weight that multiplies takes 2 FLOPs a token, and so does each of the two products in the backward"
            " pass. In which phase does the course's head make its three products? Attention's scores are in each"
            " block."
        ),
        (
            "Count blocks and head separately: the blocks' forward FLOPs double in the backward pass; the head's are"
            " all in one phase. MFU is the FLOPs done in a second, divided by the FLOPs that the device could do."
        ),
    ),
)
def test_todo3_flops(student):
    draw = student.draw("models")
    right, scoreless = {}, {}
    for _ in range(4):
        dim, layers, vocabulary, seq_len = (
            8 * draw.randrange(8, 100),
            draw.randrange(2, 20),
            draw.randrange(500, 50_000),
            draw.randrange(32, 2048),
        )
        blocks = layers * (24 * dim**2 + 4 * dim * seq_len)
        flops = blocks + 6 * vocabulary * dim, 2 * blocks
        right["token_flops", (dim, layers, vocabulary, seq_len)] = flops
        scores = layers * 4 * dim * seq_len
        scoreless[flops] = [flops[0] - scores, flops[1] - 2 * scores]
    for _ in range(2):
        speed, flops, peak = draw.uniform(1e3, 1e5), draw.uniform(1e6, 1e9), draw.uniform(1e14, 1e15)
        right["utilization", (speed, flops, peak)] = speed * flops / peak
    slow = speed * flops * draw.uniform(0.5, 0.9)  # a peak that was measured while the device did something else, too
    right["utilization", (speed, flops, slow)] = speed * flops / slow

    def suggestion(answer, guess):
        if isinstance(answer, float) and answer > 1:
            return "More than the peak was reached, so this peak is too low. What lets a reader see that?"
        if answer in scoreless and same_numbers(guess, scoreless[answer]):
            return "These are the FLOPs of the weights. What else does attention compute, in each block?"
        return phases_mixed_up(answer, guess)

    fraction = "Tokens per second and FLOPs per token: what do they give together, and what is it compared with?"
    check_answers(student, right, hint=suggestion, hints={"utilization": fraction})


def phases_mixed_up(answer, guess):
    """A hint for FLOPs whose sum is right, but which are in the wrong phases."""
    if not (isinstance(answer, tuple) and isinstance(guess, list) and all(isinstance(n, (int, float)) for n in guess)):
        return ""
    if len(guess) != 2 or not math.isclose(sum(guess), sum(answer), rel_tol=1e-9):
        return ""
    return (
        "The sum is right, but not how it is divided between the phases. The head is fused with the loss: when does"
        " it make its gradients?"
    )


@todo(
    4,
    minutes=30,
    why=(
        "Dividing a product among devices makes it thinner. Whether each part is still fast decides how far tensor"
        " parallelism goes; and a small batch on a GPU waits for the memory, however many GPUs there are."
    ),
    hints=(
        "How many numbers do the two factors and the result have together, and how many bytes is that?",
        (
            "Two limits hold at the same time: what the processor can compute, and what the memory can bring. At the"
            " roof's edge both are equal, so the intensity there is peak / bandwidth."
        ),
        (
            "Set 2 m k n equal to peak / bandwidth · itemsize · (m k + k n + m n), and bring what has an m to one side."
            " If its factor is not positive, no m is large enough."
        ),
    ),
)
def test_todo4_roofline(student):
    draw = student.draw("products")
    right = {}
    for _ in range(3):
        m, k, n, itemsize = (
            draw.randrange(1, 500),
            draw.randrange(501, 999),
            draw.randrange(1000, 5000),
            draw.choice((2, 4)),
        )
        right["product_intensity", (m, k, n, itemsize)] = 2 * m * k * n / (itemsize * (m * k + k * n + m * n))
    for side in (0.3, 0.9, 1.1, 4.0):
        peak, bandwidth = draw.uniform(1e14, 1e15), draw.uniform(1e12, 4e12)
        intensity = side * peak / bandwidth
        right["attainable_speed", (intensity, peak, bandwidth)] = min(1.0, side) * peak
    shares = (draw.uniform(0.1, 0.8), draw.uniform(0.1, 0.8), 1e-5, 1 - 1e-5, draw.uniform(1.1, 2.0))  # of the limit
    # The third: a part of a token. The fourth: 2^24 tokens and more.
    for itemsize, share in zip((2, 4, 4, 2, 4), shares, strict=True):
        wide = share < 1
        k, n = draw.randrange(2000, 4000), draw.randrange(5000, 9000)
        ridge = k * n / (k + n) / itemsize * 2 * share
        bandwidth = draw.uniform(1e12, 4e12)
        peak = ridge * bandwidth
        edge = itemsize * peak / bandwidth
        below = 2 * k * n - edge * (k + n)
        right["fewest_tokens", (k, n, itemsize, peak, bandwidth)] = edge * k * n / below if wide else math.inf
        student.premise((below > 0) == wide, "only one of the two limits")
    power = 2.0 ** draw.randrange(9, 13)  # just never: with powers of two, in whichever order the formula is written
    right["fewest_tokens", (int(power), int(power), 4, power / 4 * 2.0**41, 2.0**41)] = math.inf
    check_answers(
        student,
        right,
        hints={
            "attainable_speed": "Two limits hold at the same time. Which of them does a product meet first?",
            "fewest_tokens": "The intensity grows with m, up to a limit that k and n set. Where is it equal to peak / "
            "bandwidth, and what if that limit is lower?",
        },
    )


@todo(
    5,
    minutes=25,
    why=(
        "Whether a model fits is the first question before any training run. ZeRO, tensor, pipeline and "
        "context parallelism each divide different kinds of these numbers."
    ),
    hints=(
        "Go through the text's list item by item, and count numbers first; bytes come at the end.",
        (
            "For each token, all blocks keep what one keeps, L times; then the norm's input and the head's gradient for"
            " the token. The gradient of the head's weight does not depend on the tokens."
        ),
        (
            "Only whole sequences count: // divides and rounds down, floats too. First subtract what the model takes;"
            " if it takes more than there is, the number would be negative."
        ),
    ),
)
def test_todo5_memory(student):
    draw = student.draw("memory")
    right = {}
    for _ in range(2):
        parameters = draw.randrange(10**6, 10**9)
        right["state_bytes", (parameters,)] = (4 * parameters, 4 * parameters, 8 * parameters)
    for layers in (1, draw.randrange(3, 30)):
        dim, vocabulary, tokens = 8 * draw.randrange(8, 100), draw.randrange(500, 50_000), draw.randrange(50, 9000)
        right["kept_bytes", (dim, layers, vocabulary, tokens)] = 4 * (
            tokens * dim * (16 * layers + 2) + vocabulary * dim
        )
    for fits in (0.4, 1.6, draw.randrange(7, 90) + 0.7):
        parameters, each = draw.randrange(10**8, 10**9), draw.randrange(10**7, 10**8)
        right["most_sequences", (16 * parameters + int(fits * each), parameters, each)] = int(fits)
    right["most_sequences", (15 * parameters, parameters, each)] = 0
    right["most_sequences", (16 * parameters + 3 * each, parameters, each)] = 3  # exactly full
    for each in (draw.randrange(1, 8) / 8, draw.randrange(1, 9) + 0.5):  # bytes that are not whole, also less than one
        many = draw.randrange(50, 500)
        right["most_sequences", (16 * parameters + (many + 0.5) * each, parameters, each)] = many
    check_answers(
        student,
        right,
        hints={
            "kept_bytes": "Which of the text's numbers grow with the tokens, and which with the layers? One depends on "
            "neither.",
            "most_sequences": "What is left when the model has taken its bytes? Only whole sequences fit, and "
            "the number is never negative.",
        },
    )


@todo(
    6,
    minutes=15,
    why=(
        "Work grows with parameters and with data, memory with parameters. Two numbers of a model and two of "
        "a device say whether one device takes days or centuries."
    ),
    hints=(
        "FLOPs in all, divided by FLOPs a second, are seconds. How many FLOPs a second does a device really do?",
        (
            "Training takes 6 N D FLOPs. Each parameter takes 16 bytes, and a fraction of a device means a whole one."
            " A size that doubles every T years has doubled years / T times."
        ),
        (
            "math.ceil rounds up. The number of doublings is a logarithm to base 2 of how many times larger it is; the"
            " years divided by it are the answer."
        ),
    ),
)
def test_todo6_growth(student):
    draw = student.draw("growth")
    right = {}
    for _ in range(2):
        parameters, tokens = draw.uniform(1e8, 1e12), draw.uniform(1e9, 1e13)
        peak, mfu = draw.uniform(1e14, 1e15), draw.uniform(0.2, 0.6)
        right["device_days", (parameters, tokens, peak, mfu)] = 6 * parameters * tokens / (peak * mfu * 86_400)
    for whole, part in ((0, 0.3), (draw.randrange(3, 9), 0.2), (draw.randrange(100, 900), 0.7)):
        memory = draw.choice((16e9, 40e9, 80e9))
        right["fewest_devices", ((whole + part) * memory / 16, memory)] = whole + 1
    full = draw.randrange(2, 9)
    right["fewest_devices", (full * 1e9, 16e9)] = full  # exactly full
    for _ in range(3):
        years, pace, first = draw.uniform(2, 9), draw.uniform(0.5, 3), draw.uniform(1, 100)
        right["doubling_years", (first, first * 2 ** (years / pace), years)] = pace
    check_answers(
        student,
        right,
        hints={
            "fewest_devices": "How many bytes does each parameter take, with its gradient and AdamW's state? Part of"
            " a device still takes a whole one.",
            "doubling_years": "How many times did it double: which power of 2 is the growth? Divide the years by that.",
        },
    )


def efficiencies_on_rank(code, rank, world, cases):
    """step_efficiency for each case: pairs of devices and seconds, and a scaling."""
    answers = []
    for pairs, scaling in cases:
        answer = code.step_efficiency({int(n): seconds for n, seconds in pairs}, scaling)
        items = answer.items() if isinstance(answer, dict) else ()
        answers.append([[int(n), float(value)] for n, value in items])
    return answers


@todo(
    7,
    minutes=25,
    why=(
        "The same run on the same GPUs may be called perfect or poor, depending on which scaling is meant. Published"
        " speed-ups are worth nothing without that word."
    ),
    hints=(
        "What would the seconds on n devices be if they scaled perfectly: with strong scaling, and with weak scaling?",
        (
            "Efficiency is the seconds that n devices should take, divided by those that they take. By Amdahl, one"
            " device's time has two parts, f and 1 - f, and n devices shorten only the second; by Gustafson, the time"
            " on n devices has two parts, and one device alone would take longer for one of them."
        ),
        (
            "A speed-up is the time on one device divided by the time on n. Write both times down for a step of length"
            " 1, in f and n. For fixed_share, solve Amdahl's formula for f."
        ),
    ),
)
def test_todo7_scaling(student):
    draw = student.draw("scaling")
    cases = []
    for scaling in ("strong", "weak"):
        devices = [1, 2, draw.choice((3, 5)), draw.choice((8, 16))]
        perfect = {n: 100.0 / n if scaling == "strong" else 100.0 for n in devices}
        late = {1: 0.0, 2: -draw.uniform(0.05, 0.2)}  # two are more than twice as fast: what each has fits its cache
        pairs = [[n, seconds * (1 + late.get(n, draw.uniform(0.1, 0.4)))] for n, seconds in perfect.items()]
        listed = draw.sample(pairs[1:], len(pairs) - 1)
        listed.insert(draw.randrange(1, len(pairs)), pairs[0])  # one device is not the first that is listed
        cases.append([listed, scaling])
    seen = student.call(efficiencies_on_rank, world=1, group=False, cases=cases).evidence[0]
    for (pairs, scaling), found in zip(cases, seen, strict=True):
        took = dict(map(tuple, pairs))
        answers = {int(n): value for n, value in found}
        expect(
            set(answers) == set(took),
            "step_efficiency does not give each number of devices its efficiency",
            sorted(took),
            sorted(answers),
        )
        for n in sorted(took):
            right = took[1] / took[n] / (n if scaling == "strong" else 1)
            expect(
                math.isclose(answers[n], right, rel_tol=1e-9),
                f"the efficiency of {count_of(n, 'device')} is wrong: {scaling} scaling, {took[1]:.4g} s on one,"
                f" {took[n]:.4g} s on {n}",
                right,
                answers[n],
            )
    right = {}
    for low, high in ((0.01, 0.3), (0.3, 0.5), (0.5, 0.7), (0.7, 0.99)):
        share, devices = draw.uniform(low, high), draw.randrange(2, 100)
        right["amdahl", (share, devices)] = 1 / (share + (1 - share) / devices)
        right["gustafson", (share, devices)] = share + devices * (1 - share)
        right["fixed_share", (1 / (share + (1 - share) / devices), devices)] = share
    share, devices = -draw.uniform(0.005, 0.02), draw.randrange(2, 20)  # faster than linear
    right["fixed_share", (1 / (share + (1 - share) / devices), devices)] = share
    right |= {("amdahl", (0.0, 8)): 8.0, ("amdahl", (1.0, 8)): 1.0, ("gustafson", (0.25, 1)): 1.0}
    right |= {("gustafson", (0.0, 8)): 8.0, ("gustafson", (1.0, 8)): 1.0, ("fixed_share", (1.0, 8)): 1.0}
    check_answers(student, right, rel=1e-7)  # fixed_share takes a difference, so some digits are lost


def decisions_on_rank(code, rank, world, cases):
    """What the student decides: its answer as [way, devices]."""
    answers = [code.decide(*case) for case in cases]
    return [[str(a[0]), a[1]] if isinstance(a, (tuple, list)) and len(a) == 2 else [str(a), None] for a in answers]


@todo(
    8,
    needs=(5,),
    minutes=20,
    why=(
        "More devices cost money, energy and complexity. The course teaches how to use many; here you find out"
        " whether you need them."
    ),
    hints=(
        "Two questions, in this order: does it fit? And does it take too long?",
        (
            "It fits if one sequence does: your most_sequences knows. Devices for the time: days / deadline, rounded"
            " up. Where the model is divided, the sequence's bytes are not."
        ),
        (
            "Each device of a divided model has memory minus one sequence's bytes for its part of the 16 bytes a"
            " parameter. Both needs must be met, so the larger number of devices counts."
        ),
    ),
)
def test_todo8_decide(student):
    draw = student.draw("decide")
    cases, right = [], []
    times = (
        (0.5, 0.2, 0.4),  # fits, in time
        (0.5, 0.2, 1.0),  # just in time
        (0.79, 0.2, 0.3),  # just one sequence fits
        (0.3, 0.1, 1.3),
        (0.4, 0.1, draw.choice((2, 4, 5, 6)) + 0.5),  # not a power of two of devices
        (0.6, 0.05, 7.5),
        (0.7, 0.2, draw.randrange(3, 9) + 0.5),  # more devices than sequences fit on one
        (0.9, 0.2, 0.5),  # the model fits, but no sequence with it
        (1.9, 0.4, 0.5),  # more devices by the sequence's room
        (3.7, 0.1, 0.2),
        (1.5, 0.3, 9.5),  # the deadline takes more devices than the memory
    )
    deadlines = numbers(draw, len(times), "whole", most=29)  # most are not whole days
    for (state, sequence, time), deadline in zip(times, deadlines, strict=True):
        memory = draw.uniform(2e10, 1e11)
        parameters = int(state * memory / 16)
        cases.append([parameters, sequence * memory, memory, time * deadline, deadline])
        for_time = max(1, math.ceil(time))
        if state + sequence <= 1:
            right.append(["one device" if for_time == 1 else "data parallel", for_time])
        else:
            right.append(["divide the model", max(for_time, math.ceil(state / (1 - sequence)))])
    devices, room = draw.randrange(3, 9), 2.0**34  # just as many as hold it
    cases.append([int(devices * room / 16), room / 2, 1.5 * room, 1.5, 2.0])
    right.append(["divide the model", devices])
    cases.append([2**29, 2.0**33, 2.0**34, 1.5, 2.0])  # fills the memory, to the last byte
    right.append(["one device", 1])
    seen = student.call(decisions_on_rank, world=1, group=False, cases=cases).evidence[0]
    for (parameters, sequence, memory, days, deadline), wanted, found in zip(cases, right, seen, strict=True):
        expect(
            found == wanted,
            f"decide is wrong for {parameters / 1e9:.3g} billion parameters, {sequence / 1e9:.3g} GB a sequence,"
            f" {memory / 1e9:.3g} GB a device, {days:.3g} days on one, {deadline:.3g} until the deadline",
            f"{wanted[0]}, {wanted[1]}",
            f"{found[0]}, {found[1]}",
        )

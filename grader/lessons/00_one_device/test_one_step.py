"""Checks of 00_one_device, TODOs 1 to 4: one step.

| TODO | achievement                            | evidence                                                          | needs |
|------|----------------------------------------|-------------------------------------------------------------------|-------|
| 1    | perplexity over tokens                 | the formulas, for batches of different sizes                      |       |
| 2    | a step, its four phases timed          | times on a clock that the work itself moves; losses of four steps |       |
| 3    | FLOPs by phase, MFU                    | the formulas, for models with large and with small heads          |       |
| 4    | the roofline                           | the formulas, on both sides of the edge                           |       |

All numbers are drawn. TODO 2 is judged by no real clock: each phase of the check's own model moves a clock by a span of
its own. Its model is a straight line, so that four steps of gradient descent can be followed with a pencil; anything
that the first step leaves in `.grad` would change the second, in either of the optimizer's two groups.
"""  # noqa: E501

import math

from grader.kit import check_answers, expect, numbers, ones_in_turn, same_numbers, todo

from .ranks import steps_on_rank


@todo(1)
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


@todo(2)
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


@todo(3)
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


@todo(4)
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

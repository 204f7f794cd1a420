"""Checks of 01_collectives, TODOs 8 and 9: cost.

| TODO | achievement                                  | evidence                                                     | needs |
|------|----------------------------------------------|--------------------------------------------------------------|-------|
| 8    | what ring and tree cost                      | the formulas                                                 |       |
| 9    | alpha and beta, and a time predicted by them | points on a line, and points off it                          |       |
"""  # noqa: E501

import torch

from grader.kit import check_answers, todo

# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: costs


@todo(8)
def test_todo8_costs(student):
    right = {}
    for world in (2, 3, 4, 5, 8, 64):
        logarithm = (world - 1).bit_length()
        for nbytes in (world, 1000 * world):
            right["ring_cost", (nbytes, world)] = (2 * (world - 1), 2 * (world - 1) * nbytes / world)
            right["tree_cost", (nbytes, world)] = (2 * logarithm, 2 * logarithm * nbytes)
    draw = student.draw("slow")  # over a satellite the answer is 10 GB and more, even for few ranks
    slow = draw.uniform(0.3, 0.6), draw.uniform(1e-11, 2e-11)
    for world in (4, 5, 8, 64):
        logarithm = (world - 1).bit_length()
        for alpha, beta in ((3e-6, 5e-12), (2.0, 1.0), slow):
            right["equal_size", (world, alpha, beta)] = (
                alpha * (world - 1 - logarithm) / (beta * (logarithm - (world - 1) / world))
            )
    hints = {
        "tree_cost": "How many ranks have the vector after each round of a broadcast? A tree reduces, then broadcasts.",
        "equal_size": "Write down the time of the ring and of the tree for n bytes, set them equal, and solve for n.",
    }
    check_answers(student, right, hints=hints)


def least_squares(sizes, seconds):
    line = torch.stack([torch.ones(len(sizes)), torch.tensor(sizes)], dim=1).double()
    return tuple(torch.linalg.lstsq(line, torch.tensor(seconds, dtype=torch.float64)).solution.tolist())


@todo(9)
def test_todo9_fit(student):
    sizes = (0, 1000, 4000, 16000, 64000, 1000000, 4000000)
    right = {}
    for alpha, beta in ((5e-5, 2e-9), (3e-6, 5e-12)):
        exact = tuple(alpha + beta * size for size in sizes)
        right["fit", (sizes, exact)] = (alpha, beta)
        # Off the line, by up to a tenth of alpha: a line through two of the points, or one through 0, is a different
        # line.
        noisy = tuple(
            second + alpha * noise
            for second, noise in zip(exact, (0.1, -0.1, 0.05, 0.1, -0.05, 0.1, -0.1), strict=True)
        )
        right["fit", (sizes, noisy)] = least_squares(sizes, noisy)
        right["predicted_seconds", ((6, 3000.0), alpha, beta)] = 6 * alpha + 3000 * beta
    # 1e-6: float64 gives 1e-10 here, whatever the method; float32 is wrong by 1e-5 and more.
    right["fit", (sizes[1:4], noisy[1:4])] = least_squares(sizes[1:4], noisy[1:4])
    # The fitted line may be negative at size 0, and is still the best one.
    below = tuple(5e-5 * (size / 16000 + 1) ** 2 for size in sizes)
    student.premise(least_squares(sizes, below)[0] < 0, "a latency above 0")
    right["fit", (sizes, below)] = least_squares(sizes, below)
    # One size may be measured more than once.
    twice, again = (*sizes, *sizes[:3]), (*noisy, *(2 * second for second in noisy[:3]))
    right["fit", (twice, again)] = least_squares(twice, again)
    # float32 has no odd numbers of this size.
    odd = (20_000_001, 20_010_003, 20_020_001)
    right["fit", (odd, tuple(5e-5 + 5e-12 * size for size in odd))] = (5e-5, 5e-12)
    time = "Which of the two numbers is paid once a round, and which once a byte?"
    check_answers(student, right, rel=1e-6, hints={"predicted_seconds": time})

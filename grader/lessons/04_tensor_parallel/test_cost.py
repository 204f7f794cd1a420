"""Checks of 04_tensor_parallel, TODOs 1, 10 and 13: cost.

| TODO | achievement | evidence | needs |
|------|-------------|----------|-------|
| 1 | the batch at which TP and FSDP send equally much | the formula |  |
| 10 | bytes kept of a block | the formula |  |
| 13 | where it stops paying | the formulas |  |
"""

from grader.kit import check_answers, todo

# ---------------------------------------------------------------------------------------------------
# TODOs 1, 10 and 13: predictions


@todo(1)
def test_todo1_even(student):
    right, draw = {}, student.draw("costs")
    for world in (2, 3, 8):
        dim = draw.randrange(8, 5000)
        right["even_tokens", (dim, world)] = (36 * dim + 12) / 8
    check_answers(student, right, wrong="is not where they are equal")


@todo(10)
def test_todo10_activations(student):
    right, draw = {}, student.draw("activations")
    for world in (1, 2, 3, 4, 8):
        batch, length, dim = draw.randrange(1, 9), draw.randrange(10, 3000), draw.randrange(8, 5000)
        tokens = 4 * batch * length * dim
        for how, stream, norms in (
            ("tensor", 2, 2),
            ("sequence", 2 / world, 2),
            ("sequence, gathered again", 2 / world, 2 / world),
        ):
            right["block_keeps", (batch, length, dim, world, how)] = tokens * (12 / world + stream + norms)
    check_answers(student, right, wrong="is not what will happen")


@todo(13)
def test_todo13_paying(student):
    right, draw = {}, student.draw("paying")
    within, between = (
        (draw.uniform(5e-6, 2e-5), draw.uniform(2e11, 4e11)),
        (draw.uniform(2e-5, 5e-5), draw.uniform(1e10, 5e10)),
    )
    for world, per_node in ((1, 2), (2, 8), (3, 2), (4, 4), (8, 4), (8, 8), (16, 8)):
        nbytes, seconds = draw.uniform(1e6, 1e9), draw.uniform(1e-3, 1e-1)
        right["all_reduce_seconds", (nbytes, world, between)] = all_reduce_seconds(nbytes, world, between)
        arguments = seconds, nbytes, world, per_node, within, between
        right["block_seconds", arguments] = block_seconds(*arguments)
    answers = set()
    for least in (0.1, 0.3, 0.5, 0.7, 0.9):
        for per_node in (4, 8, 64):
            # The last table has products that do not get faster at all, the third gets worse and better again.
            for table in (
                [1, 0.5, 0.26, 0.14, 0.09, 0.07],
                [1, 0.52, 0.3, 0.2, 0.15, 0.13],
                [1, 0.9, 0.26, 0.125, 0.0625, 0.03125],
                [1] * 6,
            ):
                products = tuple((2**k, 0.1 * share) for k, share in enumerate(table))
                nbytes = draw.uniform(1e8, 4e8)
                shares = [(n, 0.1 / (n * block_seconds(s, nbytes, n, per_node, within, between))) for n, s in products]
                if all(abs(share - least) > 1e-6 for _, share in shares):
                    answer = max(n for n, share in shares if share >= least)
                    right["largest_worthwhile", (products, nbytes, per_node, within, between, least)] = answer
                    answers.add(answer)
    student.premise(len(answers) > 3, "always the same answer")
    # Just as much as the least, in numbers whose sums and quotients are all exact.
    link, nbytes = (2.0**-10, 2.0**30), 2.0**20
    alone = 2 * 0.5 * block_seconds(1.0, nbytes, 2, 2, link, link)
    right["largest_worthwhile", (((1, alone), (2, 1.0)), nbytes, 2, link, link, 0.5)] = 2
    unsorted = ((1, 1.0), (8, 0.126), (2, 0.5), (4, 0.26))
    right["largest_worthwhile", (unsorted, 1.0, 8, (1e-9, 1e12), link, 0.9)] = 8
    hints = {
        "block_seconds": (
            "How many all-reduces does a block have, forward and backward? Over which link do they go where its ranks"
            " do not fit one node?"
        ),
        "largest_worthwhile": (
            "Which of all numbers of ranks in the table are worthwhile? Compare the seconds of one rank with `world`"
            " times the seconds of `world` ranks."
        ),
    }
    check_answers(student, right, wrong="is wrong", hints=hints)


def all_reduce_seconds(nbytes, world, link):
    return 2 * (world - 1) * link[0] + 2 * (world - 1) / world * nbytes / link[1]


def block_seconds(products, nbytes, world, per_node, within, between):
    slowest = within if world <= per_node else between
    return products + 4 * all_reduce_seconds(nbytes, world, slowest)

"""Other answers to TODOs 1 to 5 of 12_why_it_is_slow."""

from grader.kit import Answer

WRONG = [
    Answer(
        1,
        "read in each step, and shown later",
        [
            """
            noted.append(float(loss))
            if len(noted) < log_every:
                return None
            mean = sum(noted) / len(noted)
            """,
            None,
        ],
        says="reads from the device 1 time",
    ),
    Answer(1, "with its graph", swap=("loss.detach()", "loss"), says="with its graph"),
    Answer(
        1,
        "each is read where a mean is due",
        swap=("torch.stack(noted).mean().item()", "sum(loss.item() for loss in noted) / len(noted)"),
        says="reads from the device",
    ),
    Answer(1, "moved to the host in each step", swap=("loss.detach()", "loss.detach().cpu()"), says="reads from"),
    Answer(1, "a tensor is returned", swap=(".mean().item()", ".mean()"), says="is not the mean"),
    Answer(
        1, "only the last loss", swap=("torch.stack(noted).mean().item()", "noted[-1].item()"), says="is not the mean"
    ),
    Answer(
        1,
        "a comparison in each step",
        swap=("if len(noted) < log_every:", "if len(noted) < log_every or loss > 1e9:"),
        says="reads from",
    ),
    Answer(1, "as many as before", [None, "return 3, 3"], says="the number with the fix"),
    Answer(
        2,
        "decoded for each batch, from memory",
        ["text = path.read_text()\nreturn lambda numbers: cut_2(decode_2(path), numbers, seq_len)", None],
        says="decoded 4 times",
    ),
    Answer(
        2,
        "decoded for each batch, by itself",
        [
            """
            def batch(numbers):
                tokens = torch.tensor([int(word[1:]) for word in path.read_text().split()])
                return cut_2(tokens, numbers, seq_len)
            return batch
            """,
            None,
        ],
        says="opened 4 times",
    ),
    Answer(
        2,
        "the first batch for ever",
        [
            """
            made = []
            def batch(numbers):
                if not made:
                    made.append(cut_2(decode_2(path), numbers, seq_len))
                return made[0]
            return batch
            """,
            None,
        ],
        says="batch 1",
    ),
    Answer(
        2,
        "one text for all",
        [
            """
            if "tokens" not in globals():
                globals()["tokens"] = decode_2(path)
            return lambda numbers: cut_2(tokens, numbers, seq_len)
            """,
            None,
        ],
        says="",
    ),
    Answer(
        2,
        "in the order of the text",
        ["tokens = decode_2(path)\nreturn lambda numbers: cut_2(tokens, sorted(numbers), seq_len)", None],
        says="batch 0: x",
    ),
    Answer(2, "the words of a batch", [None, 'return "data", 48'], says="the number of words"),
    Answer(2, "the longest part is another", [None, 'return "communication", 1600'], says="the longest part"),
    Answer(3, "no block recomputes", ["pass", None], says="the others do not fit"),
    Answer(3, "one more than fit", swap=("budget // kept", "budget // kept - 1"), says="do not fit"),
    Answer(3, "one less than fit", swap=("budget // kept", "max(budget // kept - 1, 0)"), says="recompute, though"),
    Answer(3, "one too few", swap=("budget // kept", "-(-budget // kept)"), says="do not fit"),
    Answer(
        3,
        "all but where all fit",
        swap=(
            "range(len(model.blocks) - budget // kept)",
            "range(0 if budget // kept >= len(model.blocks) else len(model.blocks))",
        ),
        says="recompute, though",
    ),
    Answer(
        3, "blocks that fit are left out", ["del model.blocks[budget // kept :]", None], says="is not computed at all"
    ),
    Answer(
        3,
        "as many as fit",
        swap=("len(model.blocks) - budget // kept", "min(budget // kept, len(model.blocks))"),
        says="",
    ),
    Answer(3, "backward counts", [None, "return 12, 9"], says="the count as given"),
    Answer(
        4,
        "the loss is detached",
        swap=(("with torch.no_grad():", "if True:"), ("args).double()", "args).detach().double()")),
        says="autograd keeps",
    ),
    Answer(
        4,
        "switched off for ever",
        swap=("with torch.no_grad():", "torch.set_grad_enabled(False)\nif True:"),
        says="nothing can be trained",
    ),
    Answer(
        4,
        "frozen for ever",
        swap=("with torch.no_grad():", "model.requires_grad_(False)\nif True:"),
        says="nothing can be trained",
    ),
    Answer(
        4,
        "a sum of numbers",
        swap=(("with torch.no_grad():", "if True:"), ("args).double()", "args).item()")),
        says="autograd keeps",
    ),
    Answer(
        4,
        "one batch only",
        swap=("count = count + n_targets", "count = count + n_targets\n        break"),
        says="mean loss",
    ),
    Answer(
        4,
        "each batch weighs the same",
        swap=((".double() * n_targets", ".double()"), ("count = count + n_targets", "count = count + 1")),
        says="mean loss",
    ),
    Answer(4, "the tensors of a batch", [None, "return 152, 0"], says="the number of batches as given"),
    Answer(5, "the largest of all", swap=("-(-longest // 16) * 16", "64"), says="too much padding"),
    Answer(
        5,
        "powers of two",
        swap=("-(-longest // 16) * 16", "max(16, 1 << (longest - 1).bit_length())"),
        says="too much padding",
    ),
    Answer(5, "multiples of eight", swap=("-(-longest // 16) * 16", "-(-longest // 8) * 8"), says="different widths"),
    Answer(
        5, "one more than needed", swap=("-(-longest // 16) * 16", "(longest // 16 + 1) * 16"), says="too much padding"
    ),
    Answer(
        5,
        "cut to a multiple",
        swap=(
            "width = -(-longest // 16) * 16",
            "width = max(longest // 16 * 16, 16)\nsamples = [(x[:width], y[:width]) for x, y in samples]",
        ),
        says="sample",
    ),
    Answer(5, "as many graphs as batches", [None, 'return "x", 6, 6'], says="the number with the fix"),
]

RIGHT = [
    Answer(
        1,
        "a sum on the device",
        [
            """
            noted.append(None)
            if len(noted) == 1:
                note_loss_1.total = loss.detach().clone()
            else:
                note_loss_1.total += loss.detach()
            if len(noted) < log_every:
                return None
            mean = (note_loss_1.total / log_every).item()
            """,
            None,
        ],
    ),
    Answer(
        2,
        "at the first batch",
        [
            """
        texts = []
        def batch(numbers):
            if not texts:
                texts.append(decode_2(path))
            return cut_2(texts[0], numbers, seq_len)
        return batch
        """,
            None,
        ],
    ),
    Answer(
        3,
        "the last blocks",
        swap=(
            "for number in range(len(model.blocks) - budget // kept):",
            "for number in range(min(budget // kept, len(model.blocks)), len(model.blocks)):",
        ),
    ),
    Answer(4, "inference mode", swap=("torch.no_grad()", "torch.inference_mode()")),
    Answer(
        5,
        "four widths by hand",
        swap=("-(-longest // 16) * 16", "next(width for width in (16, 32, 48, 64) if width >= longest)"),
    ),
]

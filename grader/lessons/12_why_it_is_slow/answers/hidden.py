"""Answers to 12_why_it_is_slow that one call, one text or even sizes would hide."""

from grader.kit import Answer

WRONG = [
    Answer(1, "torch.tensor of tensors", swap=("torch.stack(noted)", "torch.tensor(noted)"), says="from the device"),
    Answer(
        2,
        "a cache by the file's name",
        "cache = globals().setdefault('CACHE_2', {})\nif path.name not in cache:\n    cache[path.name] = decode_2(path)\ntokens = cache[path.name]\nreturn lambda numbers: cut_2(tokens, numbers, seq_len)",
        says="of a second text",
    ),
    Answer(3, "rounded", swap=("budget // kept", "round(budget / kept)"), says="the others do not fit"),
    Answer(4, "samples weigh", swap=("(y != IGNORE).sum()", "y.numel()"), says="the mean loss over the words"),
    Answer(
        4,
        "frozen, then all trained",
        "model.requires_grad_(False)\nfor x, y in loader:\n    n_targets = (y != IGNORE).sum()\n    total = total + compute_loss_4(model, x, y, args).double() * n_targets\n    count = count + n_targets\nmodel.requires_grad_(True)",
        says="other parameters are trained",
    ),
    Answer(
        7, "gradients begin at zero", swap=("for number,", "model.zero_grad()\nfor number,"), says="step 1's is gone"
    ),
    Answer(
        8,
        "ranks without words leave",
        "if not right_N.numel():\n    return 0.0\nsums = torch.tensor([right_N.sum(), right_N.numel()], dtype=torch.float64)\ndist.all_reduce(sums)\nreturn (sums[0] / sums[1]).item()",
    ),
    Answer(
        10,
        "copied in the thread",
        "def copy_and_write():\n    copies = {name: weight.clone() for name, weight in weights.items()}\n    write_10({'model': copies, 'config': config, 'epoch': epoch}, path)\n\nthreading.Thread(target=copy_and_write).start()",
        says="at the moment of the call",
    ),
    Answer(
        4,
        "training mode from the second batch on",
        swap=("count = count + n_targets", "count = count + n_targets\n        model.train()"),
        says="in training mode",
    ),
    Answer(
        6,
        "a sum of three ranks",
        swap=("bucket /= dist.get_world_size()\n", ""),
        says="the sum over the ranks, not the mean",
    ),
    Answer(
        2,
        "read once, decoded for each batch",
        "words = path.read_text().split()\nreturn lambda numbers: cut_2(torch.tensor([int(word[1:]) for word in words]), numbers, seq_len)",
        says="decoded again for each batch",
    ),
    Answer(
        2,
        "read once, decoded for each batch by map",
        "text = path.read_text()\nreturn lambda numbers: cut_2(torch.tensor(list(map(int, text.replace('w', '').split()))), numbers, seq_len)",
        says="decoded again for each batch",
    ),
    Answer(
        6,
        "into a flattened gradient, which may be a copy",
        swap=("gradient.copy_(mean.view_as(gradient))", "gradient.reshape(-1).copy_(mean)"),
        says="this rank's own, as it was",
    ),
    Answer(
        7,
        "one backward pass for all parts",
        "loss = sum(model(x, y) for x, y in parts) / len(parts)\nloss.backward()\ntotal += loss.detach()",
        says="activations of an earlier micro-batch",
    ),
    Answer(
        10,
        "one buffer for all saves",
        """
        buffer = save_checkpoint_10.__dict__.setdefault("buffer", {})
        for name, weight in weights.items():
            buffer.setdefault(name, torch.empty_like(weight)).copy_(weight)
        threading.Thread(
            target=write_10, args=({"model": buffer, "config": config, "epoch": epoch}, path)
        ).start()
        """,
        says="while an earlier one is still being written",
    ),
]

RIGHT = [
    Answer(
        2,
        "numbers in a list, a tensor of them for each batch",
        "words = [int(word[1:]) for word in path.read_text().split()]\nreturn lambda numbers: cut_2(torch.tensor(words), numbers, seq_len)",
    ),
    Answer(
        10,
        "one buffer, after the earlier save",
        """
        earlier = save_checkpoint_10.__dict__.get("thread")
        if earlier is not None:
            earlier.join()
        buffer = save_checkpoint_10.__dict__.setdefault("buffer", {})
        for name, weight in weights.items():
            buffer.setdefault(name, torch.empty_like(weight)).copy_(weight)
        save_checkpoint_10.thread = threading.Thread(
            target=write_10, args=({"model": buffer, "config": config, "epoch": epoch}, path)
        )
        save_checkpoint_10.thread.start()
        """,
    ),
]

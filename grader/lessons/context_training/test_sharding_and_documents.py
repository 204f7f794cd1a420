"""Checks of context_training, TODOs 6 and 7: sharding and documents.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 6 | shards over all ranks | numbers held, gradients of different batches; main() | 1 – 5 |
| 7 | documents | positions, masks; attention and whole runs with --pack | 1 – 6 |
"""

import math

import torch

from grader.kit import (
    Since,
    SAME_WEIGHTS,
    Private,
    Wrong,
    cases,
    check_checkpoint,
    check_parts,
    check_shape,
    check_tensor,
    corpus,
    drawn_batch,
    drawn_model,
    expect,
    gradients,
    hinted,
    losses,
    mains_on_rank,
    must_have_gradients,
    must_move,
    reported,
    same_losses,
    same_report,
    todo,
    together,
)
from utils.data import IGNORE, EpochOrder, Windows, load_corpus
from utils.model import TransformerLM
from utils.releases import AVERAGES_SINCE

from .common import WORDS, attention_case, check_attention, drawn_ends, masked_attention
from .ranks import documents_on_rank, numbered, precision_on_rank, shard_on_rank


def places_in_documents(documents):
    """Positions that start anew in each document, by a loop."""
    rows = []
    for row in documents.tolist():
        mine = []
        for i, number in enumerate(row):
            mine.append(mine[-1] + 1 if i and row[i - 1] == number else 0)
        rows.append(mine)
    return torch.tensor(rows)


# ---------------------------------------------------------------------------------------------------
# TODO 6: shards


def check_precision(student, sizes, seed):
    """With --dtype bfloat16, weights are gathered in it, and gradients are added up in float32."""
    run = student.call(precision_on_rank, world=2, seed=seed, sizes=sizes)
    hint = (
        "utils.after_fsdp_training has what fsdp_training taught: the dtypes of a sharded model. What is it given to?"
    )
    for rank, seen in enumerate(run.evidence):
        told = f"with --dtype bfloat16 a block's weights and input on rank {rank} are in {' and '.join(seen[0])}"
        expect(seen[0] == ["torch.bfloat16"] * 2, told, "bfloat16", seen[0], rank, hint)
        summed = [event for event in cases(run.events)[0][rank] if event["e"] == "op" and "reduce" in event["op"]]
        halves = [event["op"] for event in summed if event["dtype"] == "bfloat16"]
        expect(not halves, f"with --dtype bfloat16 rank {rank} adds up gradients in it", "float32", halves, rank, hint)


def serial_shards(sizes, seeds):
    """The mean of the ranks' losses, as FSDP averages."""
    model = drawn_model(0, sizes)
    (sum(model(*drawn_batch(seed, sizes)) for seed in seeds) / len(seeds)).backward()
    return {"grads": gradients(model), "numbers": sum(p.numel() for p in model.parameters())}


# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a rate at which the weights move.
ARGV = (
    "--epochs 1 --batch-size 12 --seq-len 8 --dim 16 --heads 4 --layers 1 --optimizer sgd --lr 0.5 --weight-decay 0 "
    "--clip 0.5 --seed 5 --log-every 1"
).split()


RUNS = [[4, [*ARGV, "--cp", "2"]], [4, [*ARGV, "--cp", "4"]], [2, [*ARGV, "--cp", "2", "--cp-method", "ulysses"]]]


PACKED = [[4, [*ARGV, "--cp", "2", "--pack"]], [4, [*ARGV, "--cp", "4", "--cp-method", "ulysses", "--pack"]]]


def serial_run(student):
    return student.serial(["--data", "data", "--out", "out", *ARGV], corpus(student))


@todo(6, since=Since(*AVERAGES_SINCE, on_cpus=True), needs=(1, 2, 3, 4, 5))
def test_todo6_shards(student):
    draw = student.draw("shards")
    sizes = {"vocab": draw.choice(WORDS), "dim": 24, "heads": 2, "length": 6, "batch": 2, "layers": 2}
    trials = student.several(((2, 2), (1, 3)))
    serial, wholes = serial_run(student), {}
    must_move(student, serial)
    for rows, cp in trials:
        seeds = draw.sample(range(1 << 40), rows * cp)
        wholes[rows, cp] = seeds, student.reference(serial_shards, sizes=sizes, seeds=seeds)
        must_have_gradients(student, wholes[rows, cp][1]["grads"])
    for (rows, cp), (seeds, whole) in wholes.items():
        world, told = rows * cp, f"on {rows} × {cp} ranks"
        run = student.call(shard_on_rank, world=world, grid=(rows, cp), seed=Private(seeds), sizes=sizes)
        for rank, seen in enumerate(run.evidence):
            # Rows are cut, and a part may have one row more than another.
            most = whole["numbers"] / world * 1.15
            expect(
                seen["held"] <= most,
                f"{told}, rank {rank} holds {seen['held']:,} of the model's {whole['numbers']:,} numbers",
                f"about {whole['numbers'] // world:,}",
                f"{seen['held']:,}",
                rank,
            )
            unwrapped = [name for name in seen["blocks"] if not name.startswith("FSDP")]
            expect(not unwrapped, f"{told}, a block is not a unit of its own", "FSDPBlock", unwrapped, rank)
        check_parts(told, [seen["grads"] for seen in run.evidence], whole["grads"])
    check_precision(student, sizes, draw.randrange(1 << 40))
    check_law(student, serial, student.several(RUNS))


@hinted(
    "Each function alone is right. Which step is the first that differs from the serial run's, and what does it use for"
    " the first time?"
)
def check_law(student, serial, runs):
    """The parallel run is the serial run."""
    right, final = losses(serial.evidence[0]), serial.evidence[0]["weights"]
    run = student.call(mains_on_rank, world=4, group=None, runs=runs, data=corpus(student))
    for number, (world, flags) in enumerate(runs):
        ranks = [mine[number] for mine in run.evidence[:world]]
        told = f"with {' '.join(flags[len(ARGV) :])} on {world} ranks,"
        same_losses(told, right, ranks)
        same_report(told, reported(serial), reported(run, f"out-{number}"))
        check_weights(told, run.files[f"out-{number}/model-final.pt"], ranks, final)


def check_weights(told, content, ranks, final):
    weights = together(ranks, "weights")
    check_checkpoint(content, weights)
    for name, weight in final.items():
        same = torch.allclose(weights[name], weight, rtol=0, atol=SAME_WEIGHTS)
        expect(same, f"{told} the last weights are not the serial run's ({name})", "equal weights", "others")
    for rank, seen in enumerate(ranks):
        left = not seen["still_in_a_group"]
        expect(left, f"{told} rank {rank} ends without leaving the process group", "no group", "a group", rank)


# ---------------------------------------------------------------------------------------------------
# TODO 7: documents


def drawn_documents(student):
    """The document of each token of three sequences: one document; several, one of them of a single token; and one
    that begins at the last place.
    """
    draw = student.draw("documents")
    tokens = draw.choice((8, 12))
    single = draw.randrange(2, tokens - 2)
    ends = [[], sorted({1, single, single + 1}), [draw.randrange(2, tokens - 2), tokens - 1]]
    order = draw.sample(ends, 3)
    first = draw.choice((0, 1))
    return tokens, order, first


def packed_run(data, seq_len, steps, batch):
    """--pack in one process, written in another way: losses of each step, and the last weights."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        for name, text in data.items():
            Path(folder, Path(name).name).write_text(text)
        text = load_corpus(folder)
    torch.manual_seed(5)
    model = TransformerLM(len(text.vocab), 16, 4, 1, seq_len)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    windows = Windows(text.train, seq_len, text.eos, drop_last=True)
    order, found, unpacked = list(EpochOrder(windows, 5)), [], []
    for step in range(steps):
        x, y = (torch.stack(part) for part in zip(*(windows[i] for i in order[step * batch : (step + 1) * batch])))
        with torch.no_grad():
            unpacked.append(model(x, y).item())
        documents = (x == text.eos).cumsum(dim=1)
        for block in model.blocks:
            block.attention.attend = lambda q, k, v, documents=documents: masked_attention(q, k, v, documents)
        loss = model(x, y.masked_fill(x == text.eos, IGNORE), places_in_documents(documents))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        found.append(loss.item())
        for block in model.blocks:
            del block.attention.attend
    return {"losses": found, "unpacked": unpacked, "weights": dict(model.named_parameters())}


@todo(7, needs=(1, 2, 3, 4, 5, 6))
def test_todo7_documents(student):
    data = corpus(student)
    packed = student.reference(packed_run, data=data, seq_len=8, steps=2, batch=12)
    # Losses are compared to 1e-4; of the same words without documents, one of the two steps differs by more.
    apart = any(not math.isclose(a, b, rel_tol=3e-4) for a, b in zip(packed["losses"], packed["unpacked"]))
    student.premise(apart, "a run without documents")
    check_documents(student)
    for method, (rows, cp) in student.several([("ring", (1, 3)), ("ulysses", (2, 2)), ("ring", (1, 1))]):
        sizes, draw = attention_case(student, method, cp, rows, "documents")
        sizes |= {"tokens": 4 * cp}
        ends = drawn_ends(draw, sizes)
        check_attention(student, method, (rows, cp), draw.sample(range(1 << 40), rows), sizes, ends)
    check_packed_runs(student, packed, data)


def check_documents(student):
    tokens, ends, first = drawn_documents(student)
    documents = first + numbered(ends, {"batch": 3, "tokens": tokens})
    places = torch.arange(tokens)
    pairs = [(places, places), (places[1::2], places[: tokens // 2]), (places[-3:], places[2:4])]
    listed = [[rows.tolist(), columns.tolist()] for rows, columns in pairs]
    how = dict(documents=documents.tolist(), pairs=listed)
    (seen,) = student.call(documents_on_rank, world=1, group=False, **how).evidence
    told = f"for documents {documents.tolist()}"
    check_tensor(
        f"{told}, what positions_in returns",
        seen["positions"],
        places_in_documents(documents),
        wrongs={"the places in the sequence": places.expand(3, -1)},
    )
    for (rows, columns), mask in zip(pairs, seen["masks"], strict=True):
        check_mask(documents, rows, columns, mask)
    expect(seen["given"], "positions_in or same_document changes the documents", "as they were", "changed")


def check_mask(documents, rows, columns, mask):
    """Of each pair of a query and a key whether they are in one document."""
    told = f"the mask of queries at {rows.tolist()} and keys at {columns.tolist()}"
    hint = "One dimension for the sequences, one for all heads, then queries and keys. When is a pair True?"
    right = (documents[:, rows].unsqueeze(2) == documents[:, columns].unsqueeze(1)).unsqueeze(1)
    check_shape(told, mask, right.shape, torch.bool, hint=hint)
    if bool((mask == ~right).all()):
        raise Wrong(f"{told} is the opposite: True where documents differ", right, mask, hint=hint)
    for row, _, i, j in (mask != right).nonzero().tolist()[:1]:
        query, key = rows[i].item(), columns[j].item()
        a, b = documents[row, query].item(), documents[row, key].item()
        pair = f"the query at {query} is in document {a}, the key at {key} in {b}"
        expected, seen = right[row, 0, i, j].item(), mask[row, 0, i, j].item()
        raise Wrong(f"{told} is wrong for sequence {row}: {pair}", expected, seen, hint=hint)


@hinted(
    "Each function alone is right. Which step is the first that differs from one process's, and what does it use for"
    " the first time?"
)
def check_packed_runs(student, packed, data):
    runs = student.several(PACKED)
    run = student.call(mains_on_rank, world=4, group=None, runs=runs, data=data)
    for number, (world, flags) in enumerate(runs):
        ranks = [mine[number] for mine in run.evidence[:world]]
        told = f"with {' '.join(flags[len(ARGV) :])} on {world} ranks,"
        steps = [line["loss"] for line in reported(run, f"out-{number}") if line["kind"] == "step"]
        for step, (seen, right) in enumerate(zip(steps, packed["losses"], strict=True), start=1):
            same = math.isclose(seen, right, rel_tol=1e-4)
            expect(same, f"{told} metrics.jsonl has a wrong loss of step {step}", right, seen)
        check_weights(told, run.files[f"out-{number}/model-final.pt"], ranks, packed["weights"])

"""Checks and hints of context_training.

| TODO | achievement | evidence | needs |
| --- | --- | --- | --- |
| 1 | the grid, and its samples | make_mesh() for several --cp on 4 and 6 ranks; make_samplers() over two epochs |  |
| 2 | a rank's share of each sequence | my_places() and my_share() by both methods, on 1 to 4 ranks |  |
| 3 | attention over the row | the output and all three gradients, by both methods; bytes sent |  |
| 4 | every target counts alike | objective()'s factor, with unequal numbers of targets, or none |  |
| 5 | validation | evaluate() on 2 × 2 and 3 ranks, with windows that end in the middle | 2, 3 |
| 6 | shards over all ranks | numbers held, gradients of different batches; main() | 1 – 5 |
| 7 | documents | positions, masks; attention and whole runs with --pack | 1 – 6 |
"""

import math

import torch
import torch.nn.functional as F

from grader.kit import (
    EXACT,
    SAME_WEIGHTS,
    Private,
    Wrong,
    as_evidence,
    cases,
    check_checkpoint,
    check_dealt,
    check_parts,
    check_shape,
    check_tensor,
    corpus,
    drawn_batch,
    drawn_model,
    each_once,
    elements,
    expect,
    gradients,
    hinted,
    kind_of,
    losses,
    mains_on_rank,
    mark,
    must_have_gradients,
    must_move,
    rectangles,
    reported,
    same_losses,
    same_report,
    sent_by,
    shares,
    todo,
    together,
)
from utils.data import IGNORE, EpochOrder, ShardSampler, Windows, load_corpus
from utils.model import TransformerLM

BUILDS = "sequences that no rank holds: ring and Ulysses at scale, documents, weights sharded over all ranks"

WORDS = (97, 101, 103)  # how many there are
EOS = 0  # in texts that the checks make


def made_args(code, *flags):
    return code.parse_args(["--batch-size", "12", "--seq-len", "48", "--dim", "24", "--heads", "12", *flags])


def made_mesh(rows, cp):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (rows, cp), mesh_dim_names=("data", "context"))


def zigzag(rank, world, tokens):
    """The places of a rank's tokens: an early piece and a late one."""
    size = tokens // (2 * world)
    return [piece * size + i for piece in (rank, 2 * world - 1 - rank) for i in range(size)]


def right_places(method, rank, world, tokens):
    if method == "ring" and world > 1:
        return zigzag(rank, world, tokens)
    return list(range(rank * tokens // world, (rank + 1) * tokens // world))


def masked_attention(q, k, v, documents=None):
    """Attention of whole sequences, from the scores: (B, H, T, K)."""
    tokens = q.shape[2]
    seen = torch.ones(tokens, tokens, dtype=torch.bool).tril()[None, None]
    if documents is not None:
        seen = seen & (documents[:, None, :, None] == documents[:, None, None, :])
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
    return scores.softmax(dim=-1) @ v


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
# TODO 1: the grid, and the samples


def mesh_on_rank(code, rank, world, cps):
    meshes = []
    for cp in cps:
        mesh = code.make_mesh(torch.device("cpu"), world, made_args(code, "--cp", str(cp)))
        if not hasattr(mesh, "mesh"):
            return [{"type": type(mesh).__name__}]
        meshes.append({"names": list(mesh.mesh_dim_names or ()), "ranks": mesh.mesh.tolist()})
    return meshes


LAST_AXIS = (
    "One axis divides the samples, the other one the tokens of a sequence. Which of the two communicates in every"
    " layer, and so needs consecutive ranks?"
)


def check_mesh(student):
    for world, cps in student.several(((4, (1, 2, 4)), (6, (2, 3)))):
        for rank, meshes in enumerate(student.call(mesh_on_rank, world=world, cps=cps).evidence):
            expect("type" not in meshes[0], "make_mesh returns no mesh", "a DeviceMesh", meshes[0].get("type"), rank)
            for cp, mesh in zip(cps, meshes, strict=True):
                seen, told = mesh["ranks"], f"with --cp {cp} on {world} ranks"
                right = [list(range(row, row + cp)) for row in range(0, world, cp)]
                grid = all(isinstance(row, list) for row in seen)
                expect(grid, f"{told} the ranks are not in a grid, with rows and columns", right, seen, rank)
                axes = " and ".join(mesh["names"]) or "nothing"
                expect(
                    mesh["names"] == ["data", "context"],
                    f"{told} the axes of the grid are called {axes}, in this order",
                    ["data", "context"],
                    mesh["names"],
                    rank,
                    LAST_AXIS,
                )
                size, wanted = f"{len(seen)} × {len(seen[0])}", f"{world // cp} × {cp}"
                expect(size == wanted, f"{told} the grid is {size}", wanted, size, rank)
                expect(seen == right, f"{told} the ranks of a row do not have consecutive numbers", right, seen, rank)


def samplers_on_rank(code, rank, world, grid, sizes, seed):
    sets = tuple(Windows(torch.arange(size), 1, 0, drop_last=True) for size in sizes)
    args = made_args(code, "--seed", str(seed))
    args.cp = grid[1]
    samplers = code.make_samplers(sets, made_mesh(*grid), args)
    if (
        not isinstance(samplers, (tuple, list))
        or len(samplers) != 3
        or any(not hasattr(sampler, "__iter__") for sampler in samplers)
    ):
        return {"type": type(samplers).__name__}
    epochs = []
    for epoch in (0, 1):
        samplers[0].set_epoch(epoch)
        epochs.append(list(map(int, samplers[0])))
    return {"train": epochs, "validation": list(map(int, samplers[1])), "test": list(map(int, samplers[2]))}


def check_samplers(student):
    draw = student.draw("samplers")
    sizes = (draw.choice((35, 37, 41)), draw.choice((11, 13)), draw.choice((7, 13)))
    seed = draw.randrange(100)
    for rows, cp in student.several(grid for grid in rectangles(draw, most=6) if grid[1] > 1):  # 1: rows are ranks
        told = f"on {rows} × {cp} ranks"
        ranks = student.call(samplers_on_rank, world=rows * cp, grid=(rows, cp), sizes=sizes, seed=seed).evidence
        for rank, mine in enumerate(ranks):
            returned = mine.get("type")
            expect("type" not in mine, f"{told} make_samplers returns a {returned}", "three samplers", returned, rank)
            first = ranks[rank - rank % cp]
            for name in ("train", "validation", "test"):
                expect(
                    mine[name] == first[name],
                    f"{told} ranks {rank - rank % cp} and {rank} hold parts of one sequence, and read different {name}"
                    " samples",
                    first[name],
                    mine[name],
                    rank,
                    "The ranks of a row read the same sequences. How many different readers are there, then, and which"
                    " coordinate of the grid numbers them?",
                )
        row_by_row = ranks[::cp]
        for name, size in zip(("validation", "test"), sizes[1:], strict=True):
            with hinted(
                "Each of these samples is read in one row, once. Which sampler sees to that, and which two numbers"
                " does it need?"
            ):
                each_once(name, [mine[name] for mine in row_by_row], size)
        with hinted(
            "In each step, the rows together train on what one process would. What determines the order, and what is"
            " dropped?"
        ):
            check_dealt(told, [mine["train"] for mine in row_by_row], sizes[0], seed, 4 * rows)


@todo(
    1,
    minutes=15,
    why="Attention communicates in every layer, and a gradient once a step: the ranks of a row belong on one node. And "
    "the parts that the ranks of a row hold must be parts of one sequence. With parts of different ones shapes fit, "
    "nothing fails, and tokens attend to strangers.",
    hints=(
        "How many rows are there, if each has args.cp ranks? init_device_mesh fills the grid row by row. And which of "
        "its two coordinates is the same for two ranks with one sequence?",
        "The last axis of init_device_mesh(device.type, (rows, columns), mesh_dim_names=…) takes consecutive ranks. "
        "The samplers' rank is a coordinate on one axis, and their world size that axis's length.",
        "DistributedSampler(train, num_replicas=…, rank=…, shuffle=True, seed=args.seed, drop_last=True) and "
        "ShardSampler(validation, rank=…, world_size=…): both numbers come from the mesh, from the same axis.",
    ),
)
def test_todo1_layout(student):
    check_mesh(student)
    check_samplers(student)


# ---------------------------------------------------------------------------------------------------
# TODO 2: the share


def share_on_rank(code, rank, world, grid, method, x, y):
    args = made_args(code, "--cp-method", method)
    args.cp = grid[1]
    mesh = made_mesh(*grid)
    x, y = torch.tensor(x), torch.tensor(y)
    places = code.my_places(x.shape[1], mesh, args)
    share = code.my_share(x, y, EOS, mesh, args)
    return {
        "places": as_evidence(places),
        "share": kind_of(share) if not hasattr(share, "_asdict") else as_evidence(share._asdict()),
    }


def packed_share_on_rank(code, rank, world, grid, x, y, positions):
    """With the check's own positions: TODO 7 may not be done yet."""
    args = made_args(code, "--pack")
    args.cp = grid[1]
    code.positions_in = lambda documents: torch.tensor(positions)
    share = code.my_share(torch.tensor(x), torch.tensor(y), EOS, made_mesh(*grid), args)
    return kind_of(share) if not hasattr(share, "_asdict") else as_evidence(share._asdict())


def drawn_text(student, rows, tokens, *purpose):
    """x and y, (rows, tokens), all of them different, without EOS; and some targets that do not count."""
    draw = torch.Generator().manual_seed(student.draw("text", *purpose).randrange(1 << 40))
    numbers = 1 + torch.randperm(2 * rows * tokens, generator=draw)
    x, y = numbers.view(2, rows, tokens)
    y[torch.rand(y.shape, generator=draw) < 0.1] = IGNORE
    return x, y


@todo(
    2,
    minutes=15,
    why="Under a causal mask the last token sees every key, and the first one only itself. In a ring all ranks wait "
    "for the one with the most work, so equal parts are not fair parts. And a token's position in the model is its "
    "place in the sequence, not on the rank.",
    hints=(
        "my_places asks the mesh for two numbers, and then depends on args.cp_method. In my_share, every tensor that "
        "belongs to tokens is indexed in the same way.",
        "mesh.get_local_rank('context') and mesh['context'].size() are this rank's number in its row, and the number "
        "of ranks there. For Ulysses, torch.arange(tokens) is cut into that many consecutive parts.",
        "places_in_zigzag(rank, world, tokens), or the rank's part of torch.arange(tokens).chunk(world). "
        "x[:, places] takes columns; positions[..., places] works with and without a first dimension.",
    ),
)
def test_todo2_share(student):
    draw = student.draw("share")
    trials = [("ring", (1, 3)), ("ulysses", (1, 2)), ("ring", (2, 2)), ("ulysses", (1, 4)), ("ring", (1, 1))]
    for method, (rows, cp) in student.several(trials, but=[("ring", (1, 1))]):
        tokens = 2 * cp * draw.choice((2, 3, 4))
        x, y = drawn_text(student, draw.choice((2, 3)), tokens, method, cp)
        told = f"with --cp {cp} --cp-method {method}"
        run = student.call(share_on_rank, world=rows * cp, grid=(rows, cp), method=method, x=x.tolist(), y=y.tolist())
        for rank, seen in enumerate(run.evidence):
            check_places(told, seen["places"], method, rank % cp, cp, tokens, rank)
        for rank, seen in enumerate(run.evidence):
            check_share(told, seen["share"], x, y, right_places(method, rank % cp, cp, tokens), rank)
    check_packed_share(student)


def check_packed_share(student):
    """With --pack: positions that differ from sequence to sequence, and whole documents."""
    draw = student.draw("packed share")
    tokens, cp = 12, 3
    x, y = drawn_text(student, 2, tokens, "packed")
    x[0, draw.randrange(1, 6)] = EOS
    x[1, [0, draw.randrange(6, 12)]] = EOS
    positions = torch.tensor([draw.sample(range(48), tokens) for _ in range(2)])
    how = dict(x=x.tolist(), y=y.tolist(), positions=positions.tolist())
    run = student.call(packed_share_on_rank, world=cp, grid=(1, cp), **how)
    whole = {"x": x, "y": y.masked_fill(x == EOS, IGNORE), "positions": positions}
    hint = "With --pack each sequence has positions of its own, and `documents` is needed whole. What is cut, and how?"
    for rank, share in enumerate(run.evidence):
        expect(isinstance(share, dict), f"with --pack my_share returns {share}", "a Share", share, rank)
        for name, tensor in whole.items():
            told = f"with --pack --cp {cp}, the share's {name} on rank {rank}"
            check_tensor(told, share.get(name), tensor[:, zigzag(rank, cp, tokens)], rank=rank, hint=hint)
        told = f"with --pack --cp {cp}, the share's documents on rank {rank}"
        check_tensor(told, share.get("documents"), (x == EOS).cumsum(dim=1), rank=rank, hint=hint)


def check_places(told, seen, method, number, cp, tokens, rank):
    right = torch.tensor(right_places(method, number, cp, tokens))
    other = "ulysses" if method == "ring" else "ring"
    work = "its causal work is not an equal share" if method == "ring" else "Ulysses takes the parts as consecutive"
    check_tensor(
        f"{told}, what my_places returns for {tokens} tokens on rank {number} of a row",
        seen,
        right,
        rank=rank,
        wrongs={
            f"the order that --cp-method {other} needs: {work}": torch.tensor(right_places(other, number, cp, tokens)),
            "every place: nothing is divided": torch.arange(tokens),
        },
    )


def check_share(told, share, x, y, places, rank):
    hint = "Tokens, targets and positions are of the same places. Which of them is cut differently?"
    expect(isinstance(share, dict), f"{told} my_share returns {share}", "a Share", share, rank)
    whole = {"x": x, "y": y, "positions": torch.arange(x.shape[1])}
    for name in ("x", "y", "positions"):
        right = whole[name][..., places]
        check_tensor(
            f"{told}, the share's {name} on rank {rank}",
            share.get(name),
            right,
            rank=rank,
            wrongs={
                "whole: no rank divides it": whole[name],
                "numbered on the rank, and not in the sequence": torch.arange(len(places)),
            }
            if len(places) < x.shape[1]
            else {},
            hint=hint,
        )
    documents = share.get("documents")
    expect(documents is None, f"{told} and no --pack, the share has documents", None, documents, rank, hint)


# ---------------------------------------------------------------------------------------------------
# TODO 3: attention


def drawn_attention(seed, sizes):
    """q, k, v and the gradient of the output of whole sequences, float64, (4, B, H, T, K)."""
    draw = torch.Generator().manual_seed(seed)
    shape = (4, sizes["batch"], sizes["heads"], sizes["tokens"], sizes["width"])
    return torch.randn(shape, generator=draw, dtype=torch.float64)


def serial_attention(seed, sizes, ends=()):
    documents = numbered(ends, sizes) if ends else None
    q, k, v, grad = drawn_attention(seed, sizes)
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = masked_attention(q, k, v, documents)
    out.backward(grad)
    return {"output": out.detach(), "gradient of q": q.grad, "gradient of k": k.grad, "gradient of v": v.grad}


def numbered(ends, sizes):
    """The document of each token: `ends` has, for each sequence, the places at which a new one begins."""
    documents = torch.zeros(sizes["batch"], sizes["tokens"], dtype=torch.int64)
    for row, places in enumerate(ends):
        documents[row, list(places)] += 1
    return documents.cumsum(dim=1)


def attend_on_rank(code, rank, world, grid, method, seed, sizes, places, ends=(), same=()):
    """`same`: which places of each sequence are in one document, where TODO 7 may not be done yet."""
    if same:
        code.same_document = lambda documents, rows, columns: torch.tensor(same)[:, None, rows][..., columns]
    args = made_args(code, "--cp-method", method)
    args.cp = grid[1]
    mesh = made_mesh(*grid)
    attention = code.ContextAttention(mesh, args)
    attention.documents = numbered(ends, sizes) if ends else None
    q, k, v, grad = (tensor[:, :, places].clone() for tensor in drawn_attention(seed, sizes))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    mark()
    out = attention(q, k, v)
    mark()
    found = {"output": as_evidence(out)}
    if isinstance(out, torch.Tensor) and out.requires_grad and out.shape == grad.shape:
        out.backward(grad)
        found |= {f"gradient of {name}": as_evidence(tensor.grad) for name, tensor in zip("qkv", (q, k, v))}
    return found


def attention_case(student, method, cp, *purpose):
    draw = student.draw("attention", method, cp, *purpose)
    heads = cp * draw.choice((1, 2)) if method == "ulysses" else draw.choice((1, 3, 5))
    sizes = {"batch": 2, "heads": heads, "tokens": 2 * cp * draw.choice((2, 3)), "width": draw.choice((3, 4))}
    return sizes, draw


def check_attention(student, method, grid, seeds, sizes, ends=(), same=()):
    """Output and gradients of each rank's tokens, against whole sequences."""
    rows, cp = grid
    wholes = [student.reference(serial_attention, seed=seed, sizes=sizes, ends=ends) for seed in seeds]
    unmasked = [student.reference(serial_attention, seed=seed, sizes=sizes, ends=()) for seed in seeds]
    places = Private([right_places(method, rank % cp, cp, sizes["tokens"]) for rank in range(rows * cp)])
    how = dict(grid=grid, method=method, sizes=sizes, places=places, ends=ends, same=same)
    private = Private([seeds[rank // cp] for rank in range(rows * cp)])
    run = student.call(attend_on_rank, world=rows * cp, seed=private, **how)
    told = f"on {rows} × {cp} ranks by {method}" + (", with documents" if ends else "")
    for what in ("output", "gradient of q", "gradient of k", "gradient of v"):
        for rank, seen in enumerate(run.evidence):
            places = right_places(method, rank % cp, cp, sizes["tokens"])
            right = wholes[rank // cp][what][:, :, places]
            name = f"{told}, the {what} of rank {rank}'s tokens"
            expect(what in seen, f"{name} is not there: autograd does not reach it", "a gradient", "none", rank)
            alone = student.reference(alone_attention, seed=seeds[rank // cp], sizes=sizes, places=places)
            of = "the gradient of an" if what != "output" else "the"
            wrongs = {f"{of} attention to this rank's keys alone, in the order in which they are stored": alone[what]}
            if ends:
                wrongs[f"{of} attention without documents"] = unmasked[rank // cp][what][:, :, places]
            check_tensor(
                name,
                seen[what],
                right,
                EXACT,
                rank,
                wrongs=wrongs,
                than="the whole sequence's",
                hint=DOCUMENTS if ends else "",
            )
    return run, told


DOCUMENTS = (
    "Without documents it is right. Which pairs of places are of one document, and does every block know, whichever"
    " rank its keys are from?"
)


def alone_attention(seed, sizes, places):
    q, k, v, grad = (tensor[:, :, places].clone() for tensor in drawn_attention(seed, sizes))
    for tensor in (q, k, v):
        tensor.requires_grad_()
    out = masked_attention(q, k, v)
    out.backward(grad)
    return {"output": out.detach(), "gradient of q": q.grad, "gradient of k": k.grad, "gradient of v": v.grad}


@todo(
    3,
    minutes=15,
    why="All other layers look at one token at a time; attention alone must reach the tokens on other ranks. If it "
    "does not, each rank trains on a short text with holes in it, and the loss falls all the same.",
    hints=(
        "Two calls, one for each method. Which ranks hold the other parts of this rank's sequences?",
        "self.mesh.get_group('context') is the row's group. self.ring_blocks(tokens) and self.whole_mask(tokens) take "
        "the number of tokens of the whole sequence.",
        "ring_attention(q_BHCK, k_BHCK, v_BHCK, self.ring_blocks(tokens), group) and ulysses(q_BHCK, k_BHCK, v_BHCK, "
        "group, self.whole_mask(tokens)), chosen by self.args.cp_method.",
    ),
)
def test_todo3_attention(student):
    trials = [("ring", (1, 3)), ("ulysses", (2, 2)), ("ring", (2, 2)), ("ulysses", (1, 4))]
    for method, (rows, cp) in student.several(trials):
        sizes, draw = attention_case(student, method, cp, rows)
        seeds = draw.sample(range(1 << 40), rows)
        run, told = check_attention(student, method, (rows, cp), seeds, sizes)
        # 06's formulas, forward: 2 (N - 1) times a rank's queries in a ring, 4 (N - 1) / N of them by Ulysses.
        mine = 8 * sizes["batch"] * sizes["heads"] * sizes["tokens"] // cp * sizes["width"]
        due = 2 * (cp - 1) * mine if method == "ring" else 4 * (cp - 1) / cp * mine
        for rank, events in enumerate(cases(run.events)[0]):
            much = sent_by(events, rank)
            expect(
                much <= 1.01 * due,
                f"{told} rank {rank} sends {much:,.0f} bytes forward: more than this method takes",
                f"{due:,.0f} bytes",
                f"{much:,.0f} bytes",
                rank,
                "Each method has its own call. Which one does this flag ask for?",
            )
    for method, (rows, cp) in student.several([("ring", (1, 2)), ("ulysses", (1, 2))]):
        sizes, draw = attention_case(student, method, cp, rows, "masked")
        ends = drawn_ends(draw, sizes)
        documents = numbered(ends, sizes)
        same = (documents[:, :, None] == documents[:, None, :]).tolist()
        check_attention(student, method, (rows, cp), draw.sample(range(1 << 40), rows), sizes, ends, same)


def drawn_ends(draw, sizes):
    """Where documents begin in two sequences: one in the first, two in the second, all at different places."""
    places = draw.sample(range(1, sizes["tokens"]), 3)
    return [places[:1], sorted(places[1:])]


# ---------------------------------------------------------------------------------------------------
# TODO 4: the loss that is trained


def objective_on_rank(code, rank, world, counts, loss):
    seen = []
    for number, mine in enumerate(counts):
        y = torch.full((2, 4), IGNORE)
        y.view(-1)[: mine[rank]] = torch.arange(mine[rank]) % 3  # word 0 counts like any other
        value = torch.tensor(loss[number], dtype=torch.float64, requires_grad=True)
        given = value * 1.0
        made = code.objective(given, y)
        mark()
        whole = isinstance(made, torch.Tensor) and made.dim() == 0 and made.requires_grad
        if whole:
            made.backward()
        seen.append(
            {
                "made": as_evidence(made) if whole else kind_of(made),
                "factor": as_evidence(value.grad) if whole and value.grad is not None else None,
                "loss": given.detach().clone(),
            }
        )
    return seen


@todo(
    4,
    minutes=15,
    why="A mean of means counts a target more where there are few of them. With documents, padding, or questions whose "
    "answers alone are trained, every rank has a different number in every step. The loss falls, towards something "
    "else.",
    hints=(
        "The serial loss is a sum over all targets, divided by their number. What is this rank's part of that sum, and "
        "what does FSDP do to the ranks' gradients?",
        "loss times this rank's number of targets is its sum. FSDP divides by the number of all ranks; the serial run "
        "divides by the number of all targets, which only a message can tell.",
        "loss * mine * dist.get_world_size() / everyones, where dist.all_reduce(everyones) has added up copies of "
        "mine; and no division by zero.",
    ),
)
def test_todo4_objective(student):
    draw = student.draw("objective")
    worlds = student.several((4, 3))
    drawn = {}  # world -> the counts of each case, and the loss of each rank in it; 0 where no target counts
    for world in worlds:
        unequal = shares(draw, world, most=8)
        counts = [unequal, [0] * world, [draw.randrange(1, 9)] * world]
        drawn[world] = counts, [draw.uniform(1, 3) if any(mine) else 0.0 for mine in counts]
        student.premise(len(set(unequal)) > 1, "the mean of the ranks' means")
    for world in worlds:
        counts, loss = drawn[world]
        run = student.call(objective_on_rank, world=world, counts=counts, loss=loss)
        for number, mine in enumerate(counts):
            for rank, seen in enumerate(run.evidence):
                check_factor(mine, seen[number], loss[number], rank)


def check_factor(counts, seen, loss, rank):
    world, total = len(counts), sum(counts)
    told = f"where {world} ranks have {', '.join(map(str, counts[:-1]))} and {counts[-1]} targets that count"
    expect(not isinstance(seen["made"], str), f"{told} objective returns {seen['made']}", "a loss", seen["made"], rank)
    expect(seen["factor"] is not None, f"{told} no gradient reaches the loss on rank {rank}", "one", "none", rank)
    right = counts[rank] * world / total if total else 0.0
    if not total:  # the loss is 0, and so is what is made of it, whatever its factor
        whole = seen["made"].item() == 0 and math.isfinite(seen["factor"].item())
        hint = "No target counts anywhere, as in a batch of empty lines. What is divided by, then?"
        expect(whole, f"{told}, objective returns {seen['made'].item()} on rank {rank}", 0.0, seen["made"], rank, hint)
        return
    mistakes = {
        "its number of targets over the number of all targets, and then FSDP divides by the ranks": counts[rank]
        / total,
        "1: each rank counts alike, however many targets it has": 1.0,
        "its number of targets, divided by nothing": float(counts[rank]),
        "the number of all targets": float(total),
    }
    check_tensor(
        f"{told}, the factor by which objective scales rank {rank}'s loss",
        seen["factor"],
        torch.tensor(right, dtype=torch.float64),
        1e-6,  # counts may be divided in float32
        rank,
        wrongs={words: torch.tensor(value, dtype=torch.float64) for words, value in mistakes.items()} if right else {},
    )
    kept = math.isclose(seen["loss"].item(), loss, rel_tol=1e-12)
    expect(kept, f"{told} objective changes the loss that the log adds up", loss, seen["loss"].item(), rank)


# ---------------------------------------------------------------------------------------------------
# TODO 5: validation


def text_of(length, seq_len, vocab):
    draw = torch.Generator().manual_seed(length)
    return Windows(torch.randint(vocab, (length,), generator=draw), seq_len, EOS, drop_last=False)


def small_model(seed, sizes):
    return drawn_model(seed, {**sizes, "batch": 1, "layers": 1})


def evaluate_on_rank(code, rank, world, grid, method, sizes, lengths, pack):
    """With --pack, but as if positions and masks were not done yet, as TODO 7 may be."""
    from torch.distributed.fsdp import fully_shard

    code.positions_in = lambda documents: torch.arange(documents.shape[1]).expand_as(documents)
    code.same_document = lambda documents, rows, columns: None
    args = made_args(code, "--cp-method", method)
    args.cp, args.seq_len, args.pack = grid[1], sizes["length"], pack
    mesh = made_mesh(*grid)
    model = small_model(0, sizes)
    code.attend_over_context(model, mesh, args)
    fully_shard(model)
    seen = []
    for length in lengths:
        text = text_of(length, sizes["length"], sizes["vocab"])
        loader = torch.utils.data.DataLoader(text, batch_size=3, sampler=ShardSampler(text, rank // grid[1], grid[0]))
        seen.append(float(code.evaluate(model, loader, EOS, mesh, torch.device("cpu"), args)))
    return seen


@torch.no_grad()
def serial_evaluation(sizes, lengths, cp, pack):
    """The mean over all targets; and the mean that takes each part of a row for a whole row."""
    model, means = small_model(0, sizes), []
    for length in lengths:
        total = count = wrong = weight = 0.0
        for x, y in text_of(length, sizes["length"], sizes["vocab"]):
            y = y.masked_fill(x == EOS, IGNORE) if pack else y
            each = F.cross_entropy(model(x[None])[0], y, ignore_index=IGNORE, reduction="none")
            total, count = total + each.sum().item(), count + (y != IGNORE).sum().item()
            for rank in range(cp):
                places = zigzag(rank, cp, sizes["length"])
                counted = (y[places] != IGNORE).sum().item()
                wrong += each[places].sum().item() / max(counted, 1) * (y != IGNORE).sum().item()
                weight += (y != IGNORE).sum().item()
        means.append((total / count, wrong / weight))
    return means


@todo(
    5,
    needs=(2, 3),
    in_place=("model",),  # its mode
    minutes=5,
    why="The last window of a set is padded, and its padding is at its end: one rank of a row has all of it. A rank "
    "that counts the whole row's targets gives its few ones the weight of many.",
    hints=(
        "Which targets did this rank's loss see: the row's, or its share's?",
        "total is a sum of losses over targets; count must be the number of the same targets.",
        "n_targets counts what is not IGNORE in the share's y.",
    ),
)
def test_todo5_evaluate(student):
    draw = student.draw("evaluate")
    trials = [(False, (2, 2)), (True, (1, 3))]
    chosen = {}
    for pack, (rows, cp) in student.several(trials):
        length = 4 * cp
        sizes = {"vocab": 5 if pack else draw.choice(WORDS), "dim": 12, "heads": 3, "length": length}
        # A window of one token; one that ends in a later piece; fewer windows than rows.
        lengths = [3 * length + 1, 2 * length + draw.randrange(2, length), length - 1]
        means = student.reference(serial_evaluation, sizes=sizes, lengths=lengths, cp=cp, pack=pack)
        told_apart = any(not math.isclose(right, wrong, rel_tol=1e-4) for right, wrong in means)
        student.premise(told_apart, "a row's number of targets for a rank's")
        chosen[pack, rows, cp] = sizes, lengths, means
    for (pack, rows, cp), (sizes, lengths, means) in chosen.items():
        how = dict(grid=(rows, cp), method="ring", sizes=sizes, lengths=lengths, pack=pack)
        run = student.call(evaluate_on_rank, world=rows * cp, **how)
        for rank, seen in enumerate(run.evidence):
            for length, (right, _), mean in zip(lengths, means, seen, strict=True):
                told = f"on {rows} × {cp} ranks{' with --pack' * pack}, evaluate's mean is wrong for a text of {length}"
                same = math.isclose(mean, right, rel_tol=1e-6)
                expect(same, f"{told} words in windows of {sizes['length']}", right, mean, rank)


# ---------------------------------------------------------------------------------------------------
# TODO 6: shards


def shard_on_rank(code, rank, world, grid, seed, sizes):
    model = code.shard(drawn_model(0, sizes), made_mesh(*grid), made_args(code))
    loss = model(*drawn_batch(seed, sizes))
    loss.backward()
    return {
        "held": elements(model.parameters()),
        "blocks": [type(block).__name__ for block in model.blocks],
        "grads": gradients(model),
    }


def precision_on_rank(code, rank, world, seed, sizes):
    """The dtypes in which --dtype bfloat16 computes a block."""
    args, seen = made_args(code), []
    args.dtype = "bfloat16"
    model = code.shard(drawn_model(0, sizes).float(), made_mesh(1, world), args)
    model.blocks[0].attention.register_forward_pre_hook(
        lambda part, inputs: seen.append([str(part.q.weight.dtype), str(inputs[0].dtype)])
    )
    mark()
    model(*drawn_batch(seed, sizes)).backward()
    mark()
    return seen


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


@todo(
    6,
    needs=(1, 2, 3, 4, 5),
    minutes=15,
    why="The ranks of a row hold different tokens, so their gradients are parts of one sum, and each may keep a part "
    "of the weights. Copies along the context axis, whose gradients are not added up, drift apart without an error.",
    hints=(
        "Which ranks contribute to the gradient of one weight? All of these can hold a part of it.",
        "mesh has two axes, and fully_shard takes two as copies and shards. A second mesh with all ranks on one axis "
        "comes from the same call that made the first.",
        "init_device_mesh(mesh.device_type, (dist.get_world_size(),), mesh_dim_names=(…,)) for both fully_shard calls.",
    ),
)
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


def documents_on_rank(code, rank, world, documents, pairs):
    documents = torch.tensor(documents)
    before = documents.clone()
    positions = as_evidence(code.positions_in(documents))
    masks = [as_evidence(code.same_document(documents, *map(torch.tensor, pair))) for pair in pairs]
    return {"positions": positions, "masks": masks, "given": torch.equal(before, documents)}


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


@todo(
    7,
    needs=(1, 2, 3, 4, 5, 6),
    minutes=25,
    further=True,
    why="Packing puts many documents into one sequence, so that nothing is padded. A token that sees the document "
    "before its own learns to expect what never follows in use. Llama 3 masks it out for long contexts "
    "(arXiv:2407.21783, section 3.2); and the mask must know documents whose beginning is on another rank.",
    hints=(
        "Two functions of whole sequences, and no message: every rank knows all documents. At which place does each "
        "token's document begin, and when are two places in one document?",
        "The place of the latest beginning is a running maximum: cummax(dim=1).values. documents[:, rows] are the "
        "documents of the queries; compare each with each of the keys'.",
        "positions: the places, minus the running maximum of the places where a document begins. Mask: documents[:, "
        "rows, None] == documents[:, None, columns], with one dimension more for the heads.",
    ),
)
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

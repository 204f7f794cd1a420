"""What the checks of context_training run on ranks, in the process of the student's code."""

import torch

from grader.kit import as_evidence, dealt, drawn_batch, drawn_model, elements, gradients, kind_of, mark
from utils.data import IGNORE, ShardSampler, Windows

EOS = 0  # in texts that the checks make


def made_args(code, *flags):
    return code.parse_args(["--batch-size", "12", "--seq-len", "48", "--dim", "24", "--heads", "12", *flags])


def made_mesh(rows, cp):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (rows, cp), mesh_dim_names=("data", "context"))


# ---------------------------------------------------------------------------------------------------
# TODO 1: the grid, and the samples


def samplers_on_rank(code, rank, world, grid, sizes, seed):
    sets = tuple(Windows(torch.arange(size), 1, 0, drop_last=True) for size in sizes)
    args = made_args(code, "--seed", str(seed))
    args.cp = grid[1]
    return dealt(code.make_samplers(sets, made_mesh(*grid), args))


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


# ---------------------------------------------------------------------------------------------------
# TODO 3: attention


def drawn_attention(seed, sizes):
    """q, k, v and the gradient of the output of whole sequences, float64, (4, B, H, T, K)."""
    draw = torch.Generator().manual_seed(seed)
    shape = (4, sizes["batch"], sizes["heads"], sizes["tokens"], sizes["width"])
    return torch.randn(shape, generator=draw, dtype=torch.float64)


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


# ---------------------------------------------------------------------------------------------------
# TODO 7: documents


def documents_on_rank(code, rank, world, documents, pairs):
    documents = torch.tensor(documents)
    before = documents.clone()
    positions = as_evidence(code.positions_in(documents))
    masks = [as_evidence(code.same_document(documents, *map(torch.tensor, pair))) for pair in pairs]
    return {"positions": positions, "masks": masks, "given": torch.equal(before, documents)}

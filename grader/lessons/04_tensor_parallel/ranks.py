"""What the checks of 04_tensor_parallel run on ranks, in the process of the student's code."""

import gc
import math

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import as_evidence, kind_of, mark, raised, smaller_world
from grader.kit import logits as all_kinds
from utils.data import IGNORE
from utils.memory import Storages
from utils.model import MLP, Attention, TransformerLM
from utils.private import TorchDispatchMode, tree_leaves


def cut(tensor, dim, rank, world):
    """A rank's part, as torch.chunk cuts."""
    size = -(-tensor.shape[dim] // world)
    return tensor.narrow(dim, rank * size, min(size, tensor.shape[dim] - rank * size))


def fault_of(value, shape):
    """What is wrong with what the student's code returned; "" if it is a tensor of this shape."""
    if not isinstance(value, torch.Tensor):
        return "None" if value is None else f"{kind_of(value)}, no tensor"
    return "" if value.shape == torch.Size(shape) else f"a tensor of shape {tuple(value.shape)}"


def all_right(fault):
    """Whether no rank has a fault: else all stop here, and none waits for another."""
    mark()
    right = torch.tensor(float(not fault))
    dist.all_reduce(right, dist.ReduceOp.MIN)
    return bool(right)


def jobs_on_rank(code, rank, world, jobs, own):
    """What a rank sees in each job: (ranks, name of the function, inputs). One with a fault, known to all, is the last.

    `own`: a seed that this rank alone knows.
    """
    seen = []
    for number, (ranks, name, inputs) in enumerate(jobs):
        if not smaller_world(ranks, rank):
            break
        mark(job=number)
        seen.append(globals()[name](code, rank, ranks, own, **inputs))
        if stops(seen[-1]):
            break
    return seen


def stops(seen):
    """Whether a job ended with a fault that all its ranks know of."""
    return isinstance(seen, dict) and bool(seen.get("fault") or seen.get("gradient fault"))


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 8: the boundary functions


def whole_numbers(seed, number, shape, dtype, turned):
    """Small whole numbers, which every dtype adds up exactly; `turned`: not contiguous."""
    draw = torch.Generator().manual_seed(seed + number)
    tensor = torch.randint(-9, 10, shape[::-1] if turned else shape, generator=draw).to(getattr(torch, dtype))
    return tensor.permute(*reversed(range(len(shape)))) if turned else tensor


def border_on_rank(code, rank, world, seed, name, shape, out, dtype, turned, zeros):
    """A function forward and backward: what comes out, and what was sent, in four marked cases; and around its backward
    pass once more, with different numbers, to catch what is kept and overwritten.
    """
    most, turned = 0 if zeros and rank == world - 1 else 1, turned and rank % 2 == 0
    x = (most * whole_numbers(seed, 1, shape, dtype, turned)).requires_grad_()
    upstream = most * whole_numbers(seed, 2, out, dtype, turned)
    kept = x.detach().clone(), upstream.clone()
    mark()
    y = getattr(code, name)(x)
    fault = fault_of(y, out)
    if not fault and not y.requires_grad:
        fault = "a tensor that autograd does not track"
    if not all_right(fault):
        return {"fault": fault}
    seen = {"fault": "", "y": y.detach().clone()}
    other = (x.detach() + 1).requires_grad_()
    other_y = getattr(code, name)(other)
    mark()
    try:
        (gradient,) = torch.autograd.grad(y, x, upstream, allow_unused=True)  # itself, and not a copy as x.grad
        fault = fault_of(gradient, shape)
    except RuntimeError as error:
        if "invalid gradient" not in str(error):
            raise
        fault = "a tensor whose shape is not x's"
    if not all_right(fault):
        return seen | {"gradient fault": fault}
    seen["untouched"] = [torch.equal(x, kept[0]), torch.equal(upstream, kept[1])]
    seen |= {"gradient fault": "", "gradient": gradient.clone()}
    torch.autograd.grad(other_y, other, upstream + 1)
    seen["lasting"] = [torch.equal(y, seen["y"]), torch.equal(gradient, seen["gradient"])]
    return seen


# ---------------------------------------------------------------------------------------------------
# TODOs 3 to 6: layers


LAYER = {
    "column": ("ColumnLinear", {"weight": 0, "bias": 0}),
    "row": ("RowLinear", {"weight": 1}),
    "mlp": ("ParallelMLP", None),
    "attention": ("ParallelAttention", None),
    "embedding": ("ParallelEmbedding", {"weight": 0}),
    "grouped": ("GroupedAttention", None),
}


class Grouped(nn.Module):
    """Serial attention in which `key_heads` heads of keys serve all heads of queries, in groups."""

    def __init__(self, width, heads, key_heads):
        super().__init__()
        self.head_dim = width // heads
        sizes = {"q": width, "k": key_heads * self.head_dim, "v": key_heads * self.head_dim, "out": width}
        for name, outputs in sizes.items():
            self.add_module(name, nn.Linear(width, outputs, bias=False))

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for p in (self.q, self.k, self.v))
        k, v = (part.repeat_interleave(q.shape[1] // k.shape[1], 1) for part in (k, v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


def made(kind, seed, width, inner, heads, bias, frozen):
    """A serial layer with random weights and biases: `inner` outputs, hidden numbers or words."""
    torch.manual_seed(seed)
    if kind in ("column", "row"):
        layer = nn.Linear(*((width, inner) if kind == "column" else (inner, width)), bias=bool(bias))
    elif kind == "mlp":
        layer = MLP(width)
        layer.up, layer.down = nn.Linear(width, inner, bias=bias), nn.Linear(inner, width, bias=bias)
    elif kind == "attention":
        layer = Attention(width, heads, 0.0)
    elif kind == "grouped":  # `inner`: heads of keys
        layer = Grouped(width, heads, inner)
    else:
        layer = nn.Embedding(inner, width)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5)
    if bias == "of zeros":  # at first: it is trained all the same
        nn.init.zeros_(layer.bias)
    if frozen is not None:
        [*layer.parameters()][frozen].requires_grad_(False)
    return layer


def given(kind, seed, width, inner):
    """Input and upstream gradient, the same on all ranks."""
    draw = torch.Generator().manual_seed(seed + 1)
    if kind == "embedding":
        return torch.randint(inner, (3, 7), generator=draw), torch.randn(3, 7, width, generator=draw)
    inputs, outputs = {"column": (width, inner), "row": (inner, width)}.get(kind, (width, width))
    return torch.randn(3, 7, inputs, generator=draw), torch.randn(3, 7, outputs, generator=draw)


STEPS, RATE = 3, 0.01


@torch.no_grad()
def sgd(module, rate):
    for p in module.parameters():
        if p.grad is not None:
            p -= rate * p.grad
            p.grad = None


class Largest(TorchDispatchMode):
    """The largest floating-point tensor that an operation returns while it is entered."""

    numbers = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self.numbers = max(self.numbers, tensor.numel())
        return result


def layer_on_rank(code, rank, world, own, kind, seed, **sizes):
    """The student's layer compared with what the serial one would do. Marked cases: made, forward, the question whether
    all is right, backward, steps.
    """
    whole = made(kind, seed, **sizes)
    x, upstream = given(kind, seed, sizes["width"], sizes["inner"])
    shape = upstream.shape
    if kind == "row":
        x = cut(x, 2, rank, world).contiguous()
    if kind == "column":
        upstream = cut(upstream, 2, rank, world).contiguous()
        shape = upstream.shape
    x = x.requires_grad_(kind != "embedding")
    mark()
    with Storages(whole.parameters()) as storages:
        layer = getattr(code, LAYER[kind][0])(whole, rank, world)
        places = {p.untyped_storage().data_ptr() for p in whole.parameters()}
        common = [name for name, p in layer.named_parameters() if p.untyped_storage().data_ptr() in places]
        del whole, places
        gc.collect()
        seen = {"held": sum(storages.bytes_alive().values()), "common": common}
    seen |= {kind: {} for kind in ("weights", "sharded", "gradients", "trained")}
    for name, p in layer.named_parameters():
        seen["weights"][name], seen["sharded"][name], seen["trained"][name] = (
            p.detach().clone(),
            bool(getattr(p, "sharded", False)),
            p.requires_grad,
        )
    mark()
    with Largest() as largest:
        y = layer(x)
        fault = fault_of(y, shape)
    seen["fault"] = fault
    if not all_right(fault):
        return seen
    seen["y"] = y.detach().clone()
    mark()
    if y.requires_grad:
        with largest:
            y.backward(upstream)
    mark()
    seen["largest"] = largest.numbers
    seen["x"] = None if x.grad is None else x.grad.clone()
    seen["gradients"] = {name: None if p.grad is None else p.grad.clone() for name, p in layer.named_parameters()}
    sgd(layer, RATE)
    for _ in range(STEPS - 1):
        y = layer(x)
        if y.requires_grad:
            y.backward(upstream)
        sgd(layer, RATE)
    seen["last"] = layer(x).detach()
    if kind in ("column", "row"):
        seen["a row"], seen["rows of rows"] = layer(x[0, 0]).detach(), layer(x[None]).detach()
    return seen


def shards_on_rank(code, rank, world, shapes):
    """my_shard for ranks of other worlds, too: values, and the bytes that a shard keeps alive."""
    seen = []
    for shape, dim, n, turned in shapes:
        whole = torch.arange(float(math.prod(shape))).view(shape)
        whole = whole.mT.contiguous().mT if turned else whole
        for r in range(n):
            part = code.my_shard(whole, dim, r, n)
            fault = fault_of(part, cut(whole, dim, r, n).shape)
            seen.append(
                {"fault": fault}
                if fault
                else {
                    "fault": "",
                    "part": part,
                    "bytes": part.untyped_storage().nbytes(),
                    "contiguous": part.is_contiguous(),
                }
            )
    return seen


def joined_on_rank(code, rank, world, own, seed):
    """A row-parallel layer of rank 1 of 2, whose partial sum is joined by tripling it."""
    layer = code.RowLinear(made("row", seed, 4, 6, 1, True, None), 1, 2)
    y = layer(given("row", seed, 4, 6)[0][..., 3:], lambda partial: 3 * partial)
    return {"fault": fault_of(y, (3, 7, 4)), "y": y.detach() if isinstance(y, torch.Tensor) else None}


def refused_on_rank(code, rank, world, own, most):
    """What the layer says when it is made of one head, of two, and so on."""
    wholes = [Attention(2 * heads, heads, 0.0) for heads in range(1, most + 1)]
    return {"said": [raised(lambda whole=whole: code.ParallelAttention(whole, rank, world)) for whole in wholes]}


def groups_refused_on_rank(code, rank, world, own, pairs):
    """What GroupedAttention says when it is made of these heads of queries and of keys."""
    wholes = [Grouped(2 * heads, heads, key_heads) for heads, key_heads in pairs]
    return {"said": [raised(lambda whole=whole: code.GroupedAttention(whole, rank, world)) for whole in wholes]}


def borders_on_rank(code, rank, world, own, kind, seed, width, inner, heads):
    """With the check's own boundary functions: how often each is called, and on what."""
    calls = {"enter": [], "join": []}

    def boundary(name, x):
        calls[name].append(list(x.shape) if isinstance(x, torch.Tensor) else None)
        return 2 * x

    def forward():
        nonlocal y
        layer = getattr(code, LAYER[kind][0])(
            made(kind, seed, width, inner, heads, False, None),
            rank,
            world,
            lambda x: boundary("enter", torch.cat([x, x], dim=1)),  # tokens may well come in there
            lambda x: boundary("join", x),
        )
        with torch.no_grad():
            layer(given(kind, seed, width, inner)[0])
        y = layer(given(kind, seed, width, inner)[0])

    y = None
    if error := raised(forward):
        return {"error": f"{error['error']}: {error['text']}"}
    # No "fault", at which all ranks would have to stop.
    return calls | {"not due": fault_of(y, (3, 14, width)), "y": y.detach() if isinstance(y, torch.Tensor) else None}


def joined_words_on_rank(code, rank, world, own, seed, words, width):
    """An embedding of rank 1 of 2, whose partial sum is joined by tripling it."""
    layer = code.ParallelEmbedding(made("embedding", seed, width, words, 1, False, None), 1, 2, lambda rows: 3 * rows)
    return {"y": as_evidence(layer(torch.arange(words)[None]))}


def one_word_on_rank(code, rank, world, own, seed, words, width):
    """All tokens are the last word: the other ranks have none of them, and are needed all the same."""
    layer = code.ParallelEmbedding(made("embedding", seed, width, words, 1, False, None), rank, world)
    y = layer(torch.full((2, 3), words - 1))
    seen = {"not due": fault_of(y, (2, 3, width)), "y": y.detach() if isinstance(y, torch.Tensor) else None}
    if not seen["not due"] and y.requires_grad:
        y.backward(torch.ones_like(y))
    return seen | {"gradient": layer.weight.grad}


# ---------------------------------------------------------------------------------------------------
# TODO 7: the loss


def logits_and_targets(seed, words, tokens, kind, dtype, counted, ignore):
    """Logits of all words, and targets. counted: "all", "some" or "none" of them."""
    draw = torch.Generator().manual_seed(seed)
    usual = 2 * torch.randn(*tokens, words, generator=draw)
    logits = (all_kinds(seed, *tokens, words) if kind == "large" else usual).to(getattr(torch, dtype))
    y = torch.randint(words, tokens, generator=draw)
    if counted == "none":
        y = torch.full_like(y, ignore)
    if counted == "some":
        y[torch.rand(tokens, generator=draw) < 0.4] = ignore
        y[(0,) * len(tokens)] = ignore
        y[(-1,) * len(tokens)] = (ignore + 1) % words if ignore >= 0 else words - 1
    return logits, y


def loss_on_rank(code, rank, world, own, **trial):
    """Marked cases: forward, the question whether all is right, backward, after."""
    logits, y = logits_and_targets(**trial)
    first = rank * -(-trial["words"] // world)
    mine = cut(logits, logits.dim() - 1, rank, world).contiguous().requires_grad_()
    before, targets = mine.detach().clone(), y.clone()
    del logits
    mark()
    loss = code.parallel_loss(mine, y, first, trial["ignore"])
    fault = fault_of(loss, ())
    if not all_right(fault):
        return {"fault": fault or "of another rank"}
    mark()
    if loss.requires_grad:
        (3 * loss).backward()
    mark()
    return {
        "fault": "",
        "loss": loss.detach().clone(),
        "dtype": str(loss.dtype),
        "gradient": None if mine.grad is None else mine.grad.clone(),
        "untouched": torch.equal(mine, before) and torch.equal(y, targets),
    }


# ---------------------------------------------------------------------------------------------------
# TODOs 7, 9 and 11: the whole model


DIM, HEADS, LENGTH = 24, 12, 12  # all numbers of ranks up to 4 divide the heads and the sequence


def language_model(seed, words):
    """The course's, with biases in its MLP, and weights large enough to matter."""
    torch.manual_seed(seed)
    model = TransformerLM(words, dim=DIM, n_heads=HEADS, n_layers=1, max_len=LENGTH)
    mlp = model.blocks[0].mlp
    mlp.up, mlp.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)
    for parameter in model.parameters():
        nn.init.normal_(parameter, mean=float(parameter.dim() == 1), std=0.2)
    return model


def samples(seed, words, step):
    draw = torch.Generator().manual_seed(seed + step)
    x, y = torch.randint(words, (2, LENGTH), generator=draw), torch.randint(words, (2, LENGTH), generator=draw)
    y[torch.rand(y.shape, generator=draw) < 0.2] = IGNORE
    return x, y


LR, LONG, CLIP = 0.1, 3, 1.0


def training_on_rank(code, rank, world, own, seed, words, sequence, clip):
    """The student's model; four marked cases in the first step: forward, backward, gradients finished, norm."""
    model = code.ParallelLM(language_model(seed, words), rank, world, sequence)
    seen = {"losses": [], "norms": [], "gradients": {}}
    for step in range(LONG):
        x, y = samples(seed, words, step)
        mark()
        loss = model(x, y)
        mark()
        loss.backward()
        mark()
        if sequence:
            code.finish_gradients(model.parameters())
        if step == 0:
            seen["gradients"] = {
                name: None if p.grad is None else p.grad.clone() for name, p in model.named_parameters()
            }
        mark()
        scale = 1.0
        if clip:
            norm = code.gradient_norm(model.parameters())
            seen["norms"].append(float(norm) if isinstance(norm, (torch.Tensor, float)) else float("nan"))
            scale = min(1.0, clip / seen["norms"][-1])
        seen["losses"].append(loss.item())
        sgd(model, LR * scale)
    return seen | {"weights": dict(model.named_parameters())}


def finished_on_rank(code, rank, world, own, cases):
    """Gradients of copies and of shards; one parameter is frozen, and one is trainable and was not used. The one with
    four dimensions lies in channels_last.
    """
    seen = []
    for kinds in cases:
        shapes = ((3, 2), (4,), (1,), (2, 2), (2, 3, 1, 2), (2, 3), (3,))
        wholes = [torch.zeros(shape) for shape in shapes]
        wholes[4] = wholes[4].to(memory_format=torch.channels_last)
        parameters = [nn.Parameter(whole) for whole in wholes]
        for number, (p, kind) in enumerate(zip(parameters, kinds, strict=True)):
            p.requires_grad_(kind != "a frozen one")
            if kind in ("a copy", ZEROS, "a shard"):
                number_of_all = 0 if kind == ZEROS and rank == 0 else small(own) + 100 * number
                p.grad = torch.full_like(p.data, float(number_of_all))
            if kind == "a shard":
                p.sharded = True
        code.finish_gradients(iter(parameters))
        # Where no copy is trained, nothing is to do.
        code.finish_gradients(iter([p for p, kind in zip(parameters, kinds) if kind in ("a shard", "a frozen one")]))
        seen.append([None if p.grad is None else p.grad.clone() for p in parameters])
    return seen


ZEROS = "a copy that is zero on rank 0"


def small(seed):
    """A number of this rank's, which float32 adds up exactly."""
    return 1 + seed % 1009


def norm_on_rank(code, rank, world, own, common, dtype):
    """Gradients of copies (alike), of shards (this rank's), none; and of shards alone, copies alone, nothing, a shard
    that is zero on all ranks but the first.
    """
    parameters = gradients_for(own, common, dtype, rank)
    seen = []
    for chosen in CHOSEN:
        mark()
        norm = code.gradient_norm(iter([parameters[n] for n in chosen]))
        fault = fault_of(norm, ())
        all_right("")  # a rank that sent nothing is told so here, and not in what comes next
        seen.append(
            {
                "fault": fault,
                "norm": None if fault else norm.double(),
                "dtype": None if fault else str(norm.dtype).removeprefix("torch."),
                "kept": all(
                    p.grad is None or torch.equal(p.grad, q.grad)
                    for p, q in zip(parameters, gradients_for(own, common, dtype, rank))
                ),
            }
        )
    return seen


SHARDS = 1, 3, 4, 5  # many enough that a message for each is too many


ZERO = 7


CHOSEN = ((6, *range(6)), SHARDS, (0, 2), (6,), (ZERO,))


def gradients_for(seed, common, dtype, rank):
    parameters = [
        nn.Parameter(torch.zeros(shape, dtype=getattr(torch, dtype)))
        for shape in ((3, 2), (4, 3), (5,), (2, 2), (7,), (2, 3), (5,), (3,))
    ]
    own, alike = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(common)
    for number, p in enumerate(parameters[:6]):
        p.sharded = number in SHARDS
        p.grad = torch.randn(p.shape, generator=own if p.sharded else alike).to(p.dtype)
    parameters[ZERO].sharded = True
    parameters[ZERO].grad = torch.full_like(parameters[ZERO], 0.0 if rank else 3.0)
    return parameters


# ---------------------------------------------------------------------------------------------------
# TODO 12: dropout


PLACES = ("embedding", "attention", "hidden", "residual")


MANY = 64  # ranks; rank 0 asks for the generator of each: to make one takes no other rank


def dropped_on_rank(code, rank, world, seed, p):
    """Masks of both generators; dropout's arithmetic; which generator where."""
    made = code.make_generators(seed, rank)
    if not (
        isinstance(made, (tuple, list)) and len(made) == 2 and all(isinstance(one, torch.Generator) for one in made)
    ):
        return {"made": False}
    x = 1 + torch.rand(40, 50, generator=torch.Generator().manual_seed(seed))
    seen = {"made": True, "masks": [], "fault": "", "x": x}
    seen["torch's own"] = [one is torch.default_generator for one in made]
    for generator in made:
        for _ in range(2):
            x_ = x.clone().requires_grad_()
            # An answer that draws from the common source, and not from the generator, draws the same again.
            torch.manual_seed(5)
            y = code.dropout(x_, p, generator)
            seen["fault"] = (
                seen["fault"]
                or fault_of(y, x.shape)
                or ("" if y.requires_grad else "a tensor that autograd does not track")
            )
            if seen["fault"]:
                return seen
            y.sum().backward()
            seen["masks"].append({"y": y.detach().clone(), "gradient": x_.grad.clone()})
    whole = code.dropout(x, 0.0, made[0])
    seen["none"] = bool(fault_of(whole, x.shape)) or torch.equal(whole, x)
    half = code.dropout(x.bfloat16(), p, made[0])
    seen["half"] = str(half.dtype) if isinstance(half, torch.Tensor) else type(half).__name__
    again = code.make_generators(seed, rank)
    seen["again"] = all(
        torch.equal(code.dropout(x, p, generator), mask["y"]) for generator, mask in zip(again, seen["masks"][::2])
    )
    other = code.make_generators(seed + 1, rank)
    seen["seed"] = any(
        torch.equal(code.dropout(x, p, generator), mask["y"]) for generator, mask in zip(other, seen["masks"][::2])
    )
    seen["of many"] = [many_draws(code, seed), many_draws(code, 0)]
    seen["alike"] = {
        place: [plain_bool(code.draws_alike(place, sequence)) for sequence in (False, True)] for place in PLACES
    }
    return seen


def many_draws(code, seed):
    """What the common generator draws, and then each rank's own."""
    common, _ = code.make_generators(seed, 0)
    generators = [common] + [code.make_generators(seed, r)[1] for r in range(MANY)]
    return [torch.randint(1 << 62, (1,), generator=generator).item() for generator in generators]


def plain_bool(value):
    return bool(value) if isinstance(value, (bool, int)) else repr(value)[:40]

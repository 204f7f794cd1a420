"""What the checks of 03_zero run on ranks, in the process of the student's code."""

import contextlib
import math

import torch
import torch.distributed as dist
from torch import nn

from grader.kit import STALE, as_evidence, kind_of, mark
from utils.memory import Storages, held
from utils.model import TransformerLM


class Model(TransformerLM):
    """The course's, with a parameter of one number."""

    def __init__(self, layers):
        super().__init__(vocab_size=37, dim=5, n_heads=1, n_layers=layers, max_len=8)
        self.gain = nn.Parameter(torch.ones(1))

    def forward(self, x, y):
        return super().forward(x, y) * self.gain.sum()


def made_model(odd=False, layers=1):
    torch.manual_seed(0)
    model = Model(layers)
    if odd:
        model.head.weight = model.token_embedding.weight
        for frozen in (model.position_embedding, model.blocks[0].attention.k, model.blocks[-1].mlp_norm):
            frozen.requires_grad_(False)
    return model


def in_groups(parameters):
    """Two groups that differ in two options, so that a step with the wrong group's options is a different step."""
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": 0.3},
        {"params": [p for p in parameters if p.dim() == 1], "weight_decay": 0.0, "lr": 0.02},
    ]


# AdamW divides by the root of its second average: where a gradient is nearly zero, torch's eps of 1e-8 lets the
# rounding of a sum change the step. Over 101 draws, averages differed by up to 4e-2 of the largest after two steps;
# with 1e-3, by 2.5e-6.
OPTIONS = {"AdamW": {"lr": 0.01, "eps": 1e-3}, "SGD": {"lr": 0.3, "momentum": 0.5}}


def batch(seed, step, number):
    """What the rank with this seed reads in backward pass `number` of a step."""
    draw = torch.Generator().manual_seed(seed + 10 * step + number)
    return torch.randint(37, (2, 8), generator=draw), torch.randint(37, (2, 8), generator=draw)


# ---------------------------------------------------------------------------------------------------
# TODOs 2 and 3: shards, and how they are sent


SHAPES = ((7,), (2, 3), (1,), (0,), (3, 5), (2,), (4, 2, 2), (2, 0), ())


def cut_on_rank(code, rank, world, worlds):
    """Every piece of every tensor, and which memory it has."""
    seen = []
    for shape in SHAPES:
        for n in worlds:
            numel, offset = math.prod(shape), 5 * (n in (2, 4))
            # Contiguous, but some begin in the middle of a larger tensor, as a bucket's do.
            tensor = (1 + torch.arange(-offset, float(numel)))[offset:].view(shape)
            size = code.shard_size(tensor.numel(), n)
            expected = math.ceil(tensor.numel() / n)  # the other functions are tested with the right size
            parts = [code.my_part(tensor, r, n) for r in range(n)]
            shards = [code.filled(tensor.view(-1)[r * expected : (r + 1) * expected], expected) for r in range(n)]
            short = code.filled(torch.ones(1, dtype=torch.bfloat16), 2)
            whole = code.joined(
                torch.cat([*tensor.view(-1).split(expected), torch.full([expected * n - tensor.numel()], -1.0)]),
                tensor.shape,
            )
            found = {
                "size": int(size),
                "parts": as_evidence(parts),
                "shards": as_evidence(shards),
                "whole": as_evidence(whole),
                "bytes": [s.untyped_storage().nbytes() for s in shards],
                "dtype": str(short.dtype),
            }
            for part in parts:
                part += 100
            found["written"] = tensor.clone()
            found["shards afterwards"] = as_evidence(shards)
            seen.append(found)
    return seen


def lists_on_rank(code, rank, world, mine, dtype):
    """gather_shards of whole numbers that identify their rank, and reduce_to_shards."""
    dtype = getattr(torch, dtype)
    sizes = [math.ceil(math.prod(shape) / world) for shape in SHAPES]
    shards = [nn.Parameter(own_shard(size, number, mine).to(dtype)) for number, size in enumerate(sizes)]
    tensors = [numbers(shape, number, mine).to(dtype) for number, shape in enumerate(SHAPES)]
    mark()
    gathered = code.gather_shards(shards, world)
    mark()
    reduced = code.reduce_to_shards(tensors, world)
    held = [part.untyped_storage() for part in reduced or () if isinstance(part, torch.Tensor)]
    distinct = {storage.data_ptr(): storage.nbytes() for storage in held}
    return {"gathered": as_evidence(gathered), "reduced": as_evidence(reduced), "bytes": sum(distinct.values())}


def zeros_in_lists_on_rank(code, rank, world, mine):
    """reduce_to_shards where rank 0 has only zeros."""
    return as_evidence(code.reduce_to_shards(tensors_with_zeros(rank, mine), world))


def tensors_with_zeros(rank, mine):
    return [numbers(shape, number, mine) * (rank > 0) for number, shape in enumerate(SHAPES)]


def own_shard(size, number, mine):
    """Whole numbers that identify their tensor and their rank, which has `mine`."""
    return torch.arange(size, dtype=torch.float64) + 100.0 * number + 1000 * mine


def numbers(shape, number, mine):
    """Numbers whose mean over 2 or 3 ranks is exact: whole ones, divided by a power of two. `mine` is the rank's own:
    up to 100, float32 holds them all.
    """
    part = torch.arange(math.prod(shape), dtype=torch.float64).view(shape)
    return 6.0 / 4096 * (part + 10 * number + 100 * mine * (number + 1))


# ---------------------------------------------------------------------------------------------------
# TODOs 4, 6 and 9: the stages


class Probe:
    """Which tensors are whole, at the moments that count."""

    def __init__(self, model, stage):
        self.model, self.weights, self.gradients = model, {}, 0
        self.seen = Storages(model.parameters())  # never entered: it counts what it is given
        if stage == 2:
            for p in model.parameters():
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(lambda _: self.look_at_gradients())
        if stage == 3:
            for number, block in enumerate(model.blocks):
                block.mlp.register_forward_hook(lambda module, args, output, n=number: self.in_block(n, output))

    def look_at_gradients(self):
        self.gradients = max(self.gradients, sum(p.grad is not None for p in self.model.parameters()))

    def in_block(self, number, output):
        self.look(f"the forward pass of block {number}")
        if output.requires_grad:
            output.register_hook(lambda _: self.look(f"the backward pass of block {number}"))

    def look(self, moment):
        """Bytes of weights that are whole: of the parameters, and of their earlier storages, as long as something
        keeps them alive.
        """
        self.seen.note(self.model.parameters())
        self.weights[moment] = max(self.weights.get(moment, 0), sum(self.seen.bytes_alive().values()))


class Stepped:
    """Stage 1's optimizer for checks of TODOs other than the fourth: it uses only the student's gathering."""

    def __init__(self, code, groups, kind, rank, world, **options):
        self.code, self.rank, self.world = code, rank, world
        groups = [{**group, "params": [p for p in group["params"] if p.requires_grad]} for group in groups]
        self.parameters = [p for group in groups for p in group["params"]]
        self.optimizer = kind(self.trained(groups), **options)
        self.parts = [p for group in self.optimizer.param_groups for p in group["params"]]

    def trained(self, groups):
        return [{**group, "params": [self.part(p).requires_grad_() for p in group["params"]]} for group in groups]

    def part(self, p):
        size = math.ceil(p.numel() / self.world)
        return p.detach().view(-1)[self.rank * size : self.rank * size + size]

    def step(self):
        self.optimizer.step()
        for part in self.parts:
            part.grad = None
        self.gather()

    def gather(self):
        mine = [torch.zeros(math.ceil(p.numel() / self.world), dtype=p.dtype) for p in self.parameters]
        for p, shard in zip(self.parameters, mine):
            shard[: len(self.part(p))] = self.part(p)
        for p, numbers in zip(self.parameters, self.code.gather_shards(mine, self.world)):
            p.data.copy_(numbers[: p.numel()].view(p.shape))

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None


class Mixed(Stepped):
    """The same with the student's masters."""

    def trained(self, groups):
        return self.code.masters_in_groups(groups, self.rank, self.world)

    def step(self):
        self.code.share_in_float32(self.parameters, self.parts, self.world)
        self.optimizer.step()
        for master in self.parts:
            master.grad = None
        self.code.write_back(self.parameters, self.parts, self.rank, self.world)
        self.gather()


def train_on_rank(code, rank, world, seed, stage, kind, odd, layers, steps, passes):
    """Train with the student's functions; return what was held, and the results."""
    model = made_model(odd, layers)
    batches = [[batch(seed, step, number) for number in range(passes)] for step in range(steps)]
    probe, losses, shards, bytes_held = Probe(model, stage), [], {}, []
    with contextlib.ExitStack() as measured:
        storages = measured.enter_context(Storages(model.parameters()))
        if stage == 3:
            units = code.make_units(model, rank, world)
            for unit in units:
                code.attach(unit)
            probe.look("the time before the first step")
            shards = {p: shard for unit in units for p, shard in zip(unit.parameters, unit.shards)}
            groups = [
                {**group, "params": [shards[p] for p in group["params"]]}
                for group in in_groups([p for p in model.parameters() if p.requires_grad])
            ]
            optimizer = inner = getattr(torch.optim, kind)(groups, **OPTIONS[kind])
        else:
            arguments = in_groups(list(model.parameters())), getattr(torch.optim, kind), rank, world
            optimizer = (
                code.ShardedOptimizer(*arguments, **OPTIONS[kind])
                if stage == 1
                else Stepped(code, *arguments, **OPTIONS[kind])
            )
            inner = optimizer.optimizer
            if stage == 1:
                for part in filter(len, optimizer.parts):
                    part.grad = torch.full_like(part, STALE)  # it is to be set, not added to
            if stage == 2:
                code.reduce_when_ready(optimizer.parameters, optimizer.parts, world)
        measured.close()  # watching every operation takes time; what follows up to the first step is done once more
        for step in range(steps):
            mark()
            for x, y in batches[step]:
                loss = model(x, y)
                if stage == 3:
                    probe.look("the time between the passes")
                loss.backward()
                losses.append(loss.item())
                del loss
                if stage == 3:
                    probe.look("the time after the backward pass")
                if step == 1:
                    bytes_held.append(held(storages, [*model.parameters(), *shards.values()], inner))
            if step == 0:
                measured.enter_context(storages)
            if step == 1:
                measured.close()
            optimizer.step()
            optimizer.zero_grad()
    mark()
    evaluated = None
    if stage == 3:
        with torch.no_grad():
            evaluated = [model(*batch(0, 0, 0)).item()]
            probe.look("the time after a forward pass without gradients")
            model.eval()
            evaluated.append(model(*batch(0, 0, 0)).item())
        probe.look("the time after an evaluation, in which the model is in evaluation mode")
    named = {name: shards[p] if stage == 3 else p for name, p in model.named_parameters(remove_duplicate=False)}
    return {
        "losses": losses,
        "held": bytes_held,
        "stateless": [] if stage == 3 else stateless(model, optimizer, inner),
        "weights": named,
        "evaluated": evaluated,
        "whole": probe.weights,
        "gradients": probe.gradients,
    }


def stateless(model, optimizer, inner):
    """Names of the parameters for which the inner optimizer has no state after its steps, not even an empty one."""
    names = {p: name for name, p in model.named_parameters()}
    return [names[p] for p, part in zip(optimizer.parameters, optimizer.parts) if part not in inner.state]


GROUPS = [{"lr": 0.5, "weight_decay": 0.1, "momentum": 0.75}, {"lr": 0.25, "nesterov": True}]


def parts_on_rank(code, rank, world):
    seen = []
    for r in range(3):
        parameters = [nn.Parameter(torch.ones(shape)) for shape in ((2, 7), (5,), (1,))]
        first, second = GROUPS
        groups = [{"params": parameters[:1], **first}, {"params": parameters[1:], **second}]
        made = code.parts_in_groups(groups, r, 3)
        parts = [p for group in made for p in group["params"]]
        given = all(
            a is b for a, b in zip(parameters, (p for group in groups for p in group["params"]), strict=True)
        ) and all(p.requires_grad for p in parameters)
        leaves = all(p.is_leaf and p.requires_grad for p in parts)
        with torch.no_grad():
            for part in parts:
                part += 100
        changed = [int((p.detach().view(-1) > 50).sum()) for p in parameters]
        views = changed == [len(part) for part in parts]
        seen.append(
            {
                "options": [{k: v for k, v in group.items() if k != "params"} for group in made],
                "lengths": [[len(p) for p in group["params"]] for group in made],
                "given": given,
                "leaves": leaves,
                "views": views,
            }
        )
    return seen


def loadable(saved, before, parameters):
    """Whether a saved state has the groups, names and shapes of a plain optimizer's; `before`: the optimizer's own."""
    if len(saved["param_groups"]) != 2 or set(saved["state"]) - set(before):
        return False
    for number, values in saved["state"].items():
        tensors = [value for value in values.values() if torch.is_tensor(value) and value.dim()]
        if set(values) != set(before[number]) or any(part.shape != parameters[number].shape for part in tensors):
            return False
    return True


def resumed_on_rank(code, rank, world, seed, steps):
    """Half of the steps, saved, loaded into a new optimizer of a model with the same weights, and the other half."""

    def train(model, optimizer, some):
        losses = []
        for step in some:
            loss = model(*batch(seed, step, 0))
            loss.backward()
            for part, shard in zip(
                optimizer.parts, code.reduce_to_shards([p.grad for p in optimizer.parameters], world)
            ):
                part.grad = shard[: len(part)]
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def made(model):
        return Stepped(code, in_groups(list(model.parameters())), torch.optim.AdamW, rank, world, **OPTIONS["AdamW"])

    model = made_model()
    optimizer = made(model)
    losses = train(model, optimizer, range(steps // 2))
    inner = optimizer.optimizer
    before = copied(inner.state_dict())["state"]
    saved = code.whole_state(inner.state_dict(), optimizer.parameters, world)
    if anywhere(lacking := lacks(saved, ("param_groups", list), ("state", dict))):
        return {"lacking": ["whole_state", lacking]}
    seen = {"saved": copied(saved), "kept": equal(inner.state_dict()["state"], before)}
    if anywhere(not loadable(saved, before, optimizer.parameters)):
        return seen
    new = made_model()
    new.load_state_dict(model.state_dict())
    with Storages(new.parameters()) as storages:
        optimizer = made(new)
        inner = optimizer.optimizer
        of_parts = code.state_of_parts(saved, rank, world)
        lacking = lacks(of_parts, ("param_groups", list), ("state", dict))
        if anywhere(lacking := lacking or lengths_apart(of_parts["state"], optimizer.parts)):
            return {"lacking": ["state_of_parts", lacking]}
        inner.load_state_dict(of_parts)
        storages.note(value for values in inner.state.values() for value in values.values())
        seen["held"] = held(storages, new.parameters(), inner)["optimizer"]
    seen["unchanged"] = equal(saved["state"], seen["saved"]["state"])
    seen["losses"] = losses + train(new, optimizer, range(steps // 2, steps))
    seen["apart"] = equal(saved["state"], seen["saved"]["state"])
    seen["names"] = names_on_rank(code, rank, world)
    return seen | momentum_on_rank(code, optimizer.parameters, rank, world)


def momentum_on_rank(code, parameters, rank, world):
    """States that AdamW never has."""
    momentumless = code.whole_state(
        {"state": {0: {"momentum_buffer": None}}, "param_groups": []}, list(parameters), world
    )
    # Of an optimizer that names its averages otherwise, in bfloat16, and has none for parameter 0.
    whole = torch.arange(parameters[1].numel()).remainder(200).bfloat16()
    part = whole.split(-(-len(whole) // world))[rank].clone()
    momentum = code.whole_state({"state": {1: {"momentum_buffer": part}}, "param_groups": []}, parameters[:2], world)[
        "state"
    ]
    whole = whole.view(parameters[1].shape)
    taken = code.state_of_parts({"state": {1: {"momentum_buffer": whole}}, "param_groups": []}, rank, world)["state"]
    return {
        "none": momentumless["state"].get(0, {}).get("momentum_buffer", "nothing") is None,
        "momentum": as_evidence(momentum.get(1, {}).get("momentum_buffer")),
        "right momentum": whole,
        "part": as_evidence(taken.get(1, {}).get("momentum_buffer")),
        "right part": part,
    }


def names_on_rank(code, rank, world):
    """What each function says that parameters have: of the middle one, whose group has amsgrad, more than of others."""
    wholes = [torch.ones(size) for size in (7, 4, 5)]
    sizes = [math.ceil(len(whole) / world) for whole in wholes]
    parts = [whole[rank * size : (rank + 1) * size] for whole, size in zip(wholes, sizes)]

    def of(tensors):
        names = (("exp_avg",), AMSGRAD, ("exp_avg",))
        state = [{name: tensor.clone() for name in mine} for mine, tensor in zip(names, tensors)]
        return {"state": dict(enumerate(state)), "param_groups": []}

    answers = code.whole_state(of(parts), wholes, world), code.state_of_parts(of(wholes), rank, world)
    return [[sorted(values) for values in answer["state"].values()] for answer in answers]


AMSGRAD = ("exp_avg", "max_exp_avg_sq")


def anywhere(wrong):
    """Whether it is true on some rank: all continue, or none does."""
    found = torch.tensor([float(bool(wrong))])
    dist.all_reduce(found)
    return bool(found)


def lacks(state_dict, *entries):
    """What a state dictionary lacks; "" if it is complete."""
    if not isinstance(state_dict, dict):
        return f"{kind_of(state_dict)}, not a dictionary"
    for name, kind in entries:
        if not isinstance(state_dict.get(name), kind):
            return f"a dictionary without the {kind.__name__} “{name}”"
    groups = [group for group in state_dict["param_groups"] if isinstance(group, dict)]
    if len(groups) < len(state_dict["param_groups"]) or not all(isinstance(g.get("params"), list) for g in groups):
        return "a dictionary with a group in “param_groups” that has no list “params”"
    if not all(isinstance(values, dict) for values in state_dict["state"].values()):
        return "a “state” that has no dictionary for each parameter"
    return ""


def lengths_apart(state, parts):
    """The first tensor of a state that is not as long as its part; "" if there is none."""
    for number, values in state.items():
        if number not in range(len(parts)):
            return f"a state for parameter {number!r}, and this rank has {len(parts)}"
        for name, value in values.items():
            if torch.is_tensor(value) and value.dim() and value.numel() != parts[number].numel():
                has = f"this rank's part has {parts[number].numel()}"
                return f"{value.numel()} numbers of {name} for parameter {number}, but {has}"
    return ""


def copied(state_dict):
    state = {
        number: {name: torch.as_tensor(value).clone() for name, value in values.items()}
        for number, values in state_dict["state"].items()
    }
    return {"param_groups": state_dict["param_groups"], "state": state}


def equal(state, other):
    """Whether it equals the copy made before."""
    return all(
        name in state[number] and torch.equal(state[number][name], value)
        for number, values in other.items()
        for name, value in values.items()
    )


def zeros_on_rank(code, rank, world, slopes):
    """Each rank's gradient of one parameter is all zeros, in two passes that add up."""
    parameters = [nn.Parameter(torch.ones(3)) for _ in range(world)]
    parts = [parameter.detach()[2 * rank : 2 * rank + 2].requires_grad_() for parameter in parameters]
    code.reduce_when_ready(parameters, parts, world)
    for _ in range(2):
        sum(slope * parameter.sum() for slope, parameter in zip(slopes, parameters, strict=True)).backward()
    return {"grads": as_evidence([part.grad for part in parts])}


# ---------------------------------------------------------------------------------------------------
# TODOs 8 and 9: units


class Tiny(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.up, self.down = nn.Linear(5, 7, bias=False), nn.Linear(7, 1)
        self.up.weight.requires_grad_(False)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def unit_on_rank(code, rank, world, factor, dtype):
    module = Tiny().to(getattr(torch, dtype))
    parameters = list(module.parameters())
    x = made_input(dtype)
    with Storages(parameters) as storages:
        unit = code.Unit(module, parameters, rank, world)
        seen = {"at first": storages.by_kind({"shards": unit.shards, "weights": parameters})}
        if seen["at first"]["weights"]:
            return seen  # using a tensor without memory would end the process
        with torch.no_grad():
            for shard in unit.shards:
                # As an optimizer would: the gathered values must come from the shards, not from before.
                shard.mul_(factor)
        mark()
        code.unshard(unit)
        seen["lacking"] = [
            name for name, p in module.named_parameters() if p.untyped_storage().nbytes() < p.element_size() * p.numel()
        ]
        if seen["lacking"]:
            return seen
        seen["taken"] = sum(p.untyped_storage().nbytes() for p in parameters)
        seen["whole"] = {name: p.detach().clone() for name, p in module.named_parameters()}
        seen["same"] = all(a is b for a, b in zip(parameters, module.parameters())) and [
            p.requires_grad for p in parameters
        ] == [False, True, True]
        mark()
        code.unshard(unit)
        mark()
        before = storages.by_kind({"shards": unit.shards, "weights": parameters})["other"]
        loss = module(x).square().sum()
        code.reshard(unit)
        seen["in between"] = storages.by_kind({"shards": unit.shards, "weights": parameters})
        seen["kept"] = seen["in between"]["other"] - before - ACTIVATIONS * x.element_size()
        seen["shapes"] = [list(p.shape) for p in parameters]
        with torch.no_grad():
            seen["shards"] = [shard.clone() for shard in unit.shards]
        code.unshard(unit)
        loss.backward()
        seen["gradients"] = {"x": x.grad.clone()} | {
            name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None
        }
        code.reshard(unit)
        seen["at last"] = {"weights": sum(p.untyped_storage().nbytes() for p in parameters)}
        with torch.no_grad():
            for shard in unit.shards:
                shard.mul_(2)
        code.unshard(unit)
        seen["whole again"] = {name: p.detach().clone() for name, p in module.named_parameters()}
    return seen


def made_input(dtype):
    return torch.arange(10, dtype=getattr(torch, dtype)).view(2, 5).div(10).requires_grad_()


ACTIVATIONS = 2 * 7 + 2 * 1  # numbers that Tiny keeps for its backward pass: after tanh, and before the square


# ---------------------------------------------------------------------------------------------------
# TODO 10: mixed precision


def mixed_on_rank(code, rank, world, seed, steps):
    model = made_model().to(torch.bfloat16)
    batches = [batch(seed, step, 0) for step in range(steps)]
    losses = []
    with Storages(model.parameters()) as storages:
        optimizer = Mixed(code, in_groups(list(model.parameters())), torch.optim.AdamW, rank, world, **OPTIONS["AdamW"])
        masters = optimizer.parts
        groups = [{k: group[k] for k in ("lr", "weight_decay")} for group in optimizer.optimizer.param_groups]
        dtypes, leaves = sorted({str(p.dtype) for p in masters}), all(p.is_leaf and p.requires_grad for p in masters)

        def step(number):
            mark()
            loss = model(*batches[number])
            loss.backward()
            losses.append(loss.item())

        step(0)
        optimizer.step()
        optimizer.zero_grad()
        step(1)
        bytes_held = held(storages, model.parameters(), optimizer.optimizer)
    for number in range(1, steps):
        optimizer.step()
        optimizer.zero_grad()
        if number + 1 < steps:
            step(number + 1)
    names = {p: name for name, p in model.named_parameters()}
    return {
        "losses": losses,
        "held": bytes_held,
        "groups": groups,
        "dtypes": dtypes,
        "leaves": leaves,
        "stateless": stateless(model, optimizer, optimizer.optimizer),
        "dtype of weights": sorted({str(p.dtype) for p in model.parameters()}),
        "weights": dict(model.named_parameters()),
        "masters": {names[p]: master for p, master in zip(optimizer.parameters, masters)},
    }


def mixed_step_on_rank(code, rank, world, seed):
    """One step of SGD, in which the masters move by their gradients."""
    model = made_model().to(torch.bfloat16)
    optimizer = Mixed(code, in_groups(list(model.parameters())), torch.optim.SGD, rank, world, **OPTIONS["SGD"])
    model(*batch(seed, 0, 0)).backward()
    optimizer.step()
    names = {p: name for name, p in model.named_parameters()}
    return {names[p]: master for p, master in zip(optimizer.parameters, optimizer.parts)}

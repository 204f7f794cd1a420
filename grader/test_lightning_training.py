"""Checks and hints of lightning_training.

| TODO | achievement                      | evidence                                                                  | needs |
|------|----------------------------------|---------------------------------------------------------------------------|-------|
| 1    | the loss of a step               | training_step() of a batch, against the model's own loss; what it leaves untouched |  |
| 2    | the optimizer                    | weights after two epochs with what configure_optimizers() makes, for two sets of flags |  |
| 3    | the mean over all tokens         | Lightning validates on 3 ranks with unequal shares: what it has logged     |       |
| 4    | devices and nodes                | layout() on 1 × 3 and 2 × 1 (nodes × ranks), and without a launcher        |       |
| 5    | one model                        | Lightning fits a model of the check's on 3 ranks: weights against one process; the backend |  |
| 6    | a share of the training set      | the samples that each rank's loader yields, two epochs                     |       |
| 7    | a share of the other two         | the same                                                                   |       |
| 8    | samplers left alone              | Lightning validates by make_trainer() on 3 ranks: what reached the model   | 4, 5  |
| 9    | saved once, as a plain model; the run is the serial run | who wrote; what the file holds; a whole run on 3 ranks | 1 – 8 |

Here, a rank's imports of lightning are inside functions: on the ranks it is loaded already, and the judge does not need
it.
"""  # noqa: E501

import math

import torch
import torch.distributed as dist

from grader.kit import (
    REL,
    Wrong,
    check_checkpoint,
    check_tensor,
    corpus,
    each_once,
    expect,
    hinted,
    near,
    on_nodes,
    one_writer,
    same_run,
    save_twice,
    scale_of,
    tiny_batch,
    tiny_model,
    todo,
)
from utils.data import IGNORE, ShardSampler, Windows

BUILDS = "the same with PyTorch Lightning: steps, devices and nodes, strategy, samplers; what it does by default"

PACKAGE = "lightning"

BATCH = 12  # divisible by 1, 2, 3 and 4
LAYOUTS = ((1, 3), (2, 2))  # nodes, ranks: in the second a node has fewer than there are


def made_args(code, *flags):
    return code.parse_args(
        ["--batch-size", str(BATCH), "--seq-len", "8", "--dim", "16", "--heads", "2", "--layers", "1", *flags]
    )


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


SPREAD = ((1, 3), (3, 3))  # in the second every rank is number 0 on its node
LOADING = ((1, 2), *SPREAD)


def own_trainer(world, strategy="ddp", accelerator="cpu", **more):
    """The check's own Trainer, on this number of nodes."""
    import os

    import lightning as L
    from lightning.pytorch.plugins.environments import TorchElasticEnvironment

    return L.Trainer(
        accelerator=accelerator,
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=world // int(os.environ["LOCAL_WORLD_SIZE"]),
        strategy=strategy,
        plugins=[TorchElasticEnvironment()],
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **more,
    )


def own_module(model):
    """The check's own LightningModule; `seen` is what it was evaluated on."""
    import lightning as L

    class Module(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.model, self.seen = model, []

        def training_step(self, batch, _):
            return self.model(*batch)

        def validation_step(self, batch, _):
            self.seen += batch[0][:, 1].tolist()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.5)

    return Module()


# ---------------------------------------------------------------------------------------------------
# TODO 1: the step


def step_on_rank(code, rank, world):
    module = code.LitModel(tiny_model(seed=0), made_args(code))
    module.trainer = own_trainer(world)
    module.train()
    before, asked = weights(module.model), []
    module.log = lambda *_, sync_dist=False, **__: asked.append(sync_dist)  # log_dict calls it, too
    found = module.training_step(tiny_batch(0), rank)
    seen = {"kind": type(found).__name__, "loss": None, "asks": any(asked)}
    loss = found.get("loss") if isinstance(found, dict) else found
    after = weights(module.model)
    seen["moved"] = [name for name in before if not torch.equal(before[name], after[name])]
    seen["backward"] = [name for name, p in module.model.named_parameters() if p.grad is not None]
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        seen["loss"], seen["graph"] = loss.item(), loss.requires_grad
        if loss.requires_grad and not seen["moved"] and not seen["backward"]:
            loss.backward()
        seen["grads"] = {name: p.grad for name, p in module.model.named_parameters() if p.grad is not None}
    elif isinstance(loss, torch.Tensor):
        seen["kind"] = f"tensor of shape {tuple(loss.shape)}"
    return seen


def one_step():
    model = tiny_model(seed=0)
    loss = model(*tiny_batch(0))
    loss.backward()
    return {"loss": loss.item(), "grads": {name: p.grad for name, p in model.named_parameters()}}


@todo(
    1,
    minutes=20,
    further=True,
    why=(
        "The loss is the one thing that Lightning cannot know. The rest of a training loop is always the same, and"
        " Lightning does it."
    ),
    hints=(
        "What does the model return if it is given the targets as well as the words?",
        "self.model is the TransformerLM, and model(x, y) its mean loss. Lightning needs the tensor, with its graph.",
        "Return what self.model(...) gives for x and y; no .item(), no .backward().",
    ),
)
def test_todo1_training_step(student):
    right = student.reference(one_step)
    for seen in student.call(step_on_rank, world=2, group=False).evidence:
        check_step(seen, right)


def check_step(seen, right):
    expect(
        seen["loss"] is not None,
        f"training_step returns no loss, but a {seen['kind']}: Lightning then makes no step, or stops",
        "a scalar tensor",
        seen["kind"],
    )
    expect(
        not seen["asks"],
        "training_step logs with sync_dist: that is one more all-reduce in every step, and Report logs already",
        "only the loss",
        "self.log(…, sync_dist=True)",
        hint="What does this step need to know of the other ranks' losses? What is logged is logged elsewhere.",
    )
    expect(
        not seen["moved"],
        "training_step makes the optimizer's step itself; Lightning would make a second one",
        "weights as they were",
        seen["moved"][:1],
        hint=IN_TURN,
    )
    expect(
        not seen["backward"],
        "training_step calls backward itself; Lightning calls it once more, so the gradient counts twice or the graph"
        " is gone",
        "no gradient yet",
        f"gradients of {len(seen['backward'])} parameters",
        hint=IN_TURN,
    )
    expect(
        seen["graph"],
        "the loss that training_step returns has no graph, so it has no gradients",
        "a tensor that requires grad",
        "only a number",
        hint=GRAPH,
    )
    expect(
        math.isclose(seen["loss"], right["loss"], rel_tol=REL),
        "training_step does not return the mean loss of its batch",
        right["loss"],
        seen["loss"],
    )
    scale = scale_of(right["grads"].values())
    for name, grad in right["grads"].items():
        told = f"backward from the loss that training_step returns, which Lightning calls, gives {name}"
        none = f"{told} no gradient: the graph ends before the model"
        expect(name in seen["grads"], none, "a gradient", "none", hint=GRAPH)
        check_tensor(f"{told} a gradient that", seen["grads"][name], grad, REL, scale=scale, hint=GRAPH)


IN_TURN = (
    "Lightning makes the forward pass, the backward pass and the step in turn. Which of them does it leave to you?"
)
GRAPH = "Follow the loss back to the parameters. Which call makes a new tensor, or a number, without its graph?"


# ---------------------------------------------------------------------------------------------------
# TODO 2: the optimizer

FLAGS = (
    ["--optimizer", "adamw", "--lr", "0.01", "--weight-decay", "0.3"],
    ["--optimizer", "sgd", "--lr", "0.5", "--weight-decay", "0.1"],
    ["--optimizer", "adamw", "--lr", "0.1", "--weight-decay", "0"],
)


def optimizer_on_rank(code, rank, world):
    """Lightning fits, with what it gets, for two epochs of two steps: at their ends it would step a schedule."""
    left = []
    for flags in FLAGS:
        trainer = own_trainer(world, max_epochs=2)
        module = code.LitModel(tiny_model(seed=0), made_args(code, *flags))
        module.training_step = lambda batch, _, model=module.model: model(*batch)
        module.trainer = trainer
        found = module.configure_optimizers()
        while isinstance(found, (tuple, list, dict)) and found:  # Lightning takes all of these
            found = found["optimizer"] if isinstance(found, dict) else found[0]
        if not isinstance(found, torch.optim.Optimizer):
            left.append({"kind": type(found).__name__})
            continue
        trainer.fit(module, torch.utils.data.DataLoader([tiny_batch(0), tiny_batch(1)], batch_size=None))
        groups = trainer.optimizers[0].param_groups
        moved, rates = sum(len(group["params"]) for group in groups), [float(group["lr"]) for group in groups]
        left.append({"weights": weights(module.model), "moved": moved, "rates": rates})
    return left


def right_steps():
    left = []
    for _, name, _, lr, _, decay in FLAGS:
        model, kind = tiny_model(seed=0), {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[name]
        optimizer = kind(model.parameters(), lr=float(lr), weight_decay=float(decay))
        for number in (0, 1, 0, 1):
            model.zero_grad()
            model(*tiny_batch(number)).backward()
            optimizer.step()
        left.append({"lr": float(lr), "weights": weights(model)})
    return left


@todo(
    2,
    minutes=10,
    further=True,
    why=(
        "Lightning has no default optimizer: without one it makes no step at all, and says so in a line that is"
        " easily missed. A flag that is accepted and ignored is worse than no flag."
    ),
    hints=(
        (
            "make_optimizer of ddp_training.py does the same for a model; here the module has the parameters, and the"
            " flags."
        ),
        (
            "self.args has optimizer, lr and weight_decay; torch.optim has AdamW and SGD. self.parameters() are all of"
            " them."
        ),
        (
            "Choose torch.optim.AdamW or torch.optim.SGD by self.args.optimizer, and return it for self.parameters(),"
            " with lr= and weight_decay=."
        ),
    ),
)
def test_todo2_optimizer(student):
    right = student.reference(right_steps)
    adamw, sgd, _ = (steps["weights"] for steps in right)
    student.premise(any(not torch.allclose(adamw[name], sgd[name], rtol=1e-2) for name in adamw), "the other optimizer")
    for left in student.call(optimizer_on_rank, world=2, group=False).evidence:
        check_optimizers(left, right)


def check_optimizers(left, right):
    for flags, seen, steps in zip(FLAGS, left, right, strict=True):
        told, wanted = f"with {' '.join(flags)}", steps["weights"]
        expect(
            "kind" not in seen, f"{told}, configure_optimizers returns no optimizer", "an optimizer", seen.get("kind")
        )
        expect(
            seen["moved"] == len(wanted),
            f"{told}, the optimizer has {seen['moved']} of the {len(wanted)} parameters",
            len(wanted),
            seen["moved"],
            hint="Which parameters does it get: the whole module's, or only a part's?",
        )
        rate = next((rate for rate in seen["rates"] if rate != steps["lr"]), steps["lr"])
        expect(
            rate == steps["lr"],
            f"{told}, the learning rate on each of two ranks is {rate:g} after two epochs: no flag asks for that",
            steps["lr"],
            rate,
            hint="--lr is the rate of all parameters, in every step and on any number of ranks. What changes yours?",
        )
        wrong = [name for name in wanted if not near(seen["weights"][name], wanted[name], REL)]
        expect(
            not wrong,
            f"{told}, four steps of the optimizer give different weights: is it the right kind, with both settings?",
            "equal weights",
            f"different weights, such as {wrong[:1]}",
            hint="Three flags are about the optimizer. Which of them does not reach it?",
        )


# ---------------------------------------------------------------------------------------------------
# TODO 3: logging

ROWS = ((5, 2), (3,), (2, 1))  # of the batches of each of 3 ranks; 3 does not divide the number of targets, 80


def evaluated_batches(rank):
    """x and y, (rows, 8) each. Of each batch some targets do not count, and of rank 2's last one none does."""
    draw, found = torch.Generator().manual_seed(rank), []
    for rows in ROWS[rank]:
        x, y = torch.randint(50, (2, rows, 8), generator=draw)
        y[0, : 8 if rows == 1 else 4] = IGNORE
        found.append((x, y))
    return found


def sharp_model():
    """Its losses differ much from token to token, which shows how they are weighted."""
    model = tiny_model(seed=0)
    with torch.no_grad():
        model.head.weight *= 100
    return model


def validate_on_rank(code, rank, world):
    module = code.LitModel(sharp_model(), made_args(code))
    trainer = own_trainer(world)
    loader = torch.utils.data.DataLoader(evaluated_batches(rank), batch_size=None)
    trainer.validate(module, dataloaders=loader, verbose=False)
    return {name: float(value) for name, value in trainer.callback_metrics.items()}


# Hints, by what a wrong mean is said to be.
SUMS = {
    " alone": (
        "Lightning reduces what one rank has logged, unless it is asked for more. Which argument asks for all ranks?"
    ),
    "it counts": "Which targets has the model's loss left out? The count is of all others, of all ranks.",
}


def right_sums(world):
    """(total, count) of all tokens; and for each rank the means of its batches."""
    model = sharp_model()
    batches = [[(model(x, y).item(), int((y >= 0).sum())) for x, y in evaluated_batches(rank)] for rank in range(world)]
    flat = [pair for mine in batches for pair in mine]
    return sum(m * n for m, n in flat), sum(n for _, n in flat), [[m for m, _ in mine] for mine in batches]


@todo(
    3,
    minutes=10,
    further=True,
    why=(
        "By default Lightning takes the mean over the batches of one rank. A short last batch then counts like a"
        " full one, and the validation loss, which decides the best checkpoint, depends on the number of ranks."
    ),
    hints=(
        "A mean of means is not the mean. Which two sums, over all tokens, give it?",
        (
            'self.log_dict and self.log take reduce_fx=, "mean" by default, and sync_dist=, False by'
            " default. The model's loss is a mean over its batch's tokens: times their number, it is a sum."
        ),
        (
            'count = how many of y are not IGNORE; log "total", self.model(x, y) * count, and "count", with'
            ' reduce_fx="sum" and sync_dist=True.'
        ),
    ),
)
def test_todo3_sums(student):
    world = 3
    total, count, means = student.reference(right_sums, world=world)
    right, flat = total / count, [mean for mine in means for mean in mine]
    wrong = {"the mean of the batches' means": sum(flat) / len(flat)}
    wrong |= {f"the mean of the batches of rank {rank} alone": sum(mine) / len(mine) for rank, mine in enumerate(means)}
    for mean, value in wrong.items():
        student.premise(not math.isclose(value, right, rel_tol=10 * REL), mean)
    for rank, logged in enumerate(student.call(validate_on_rank, world=world, group=False).evidence):
        expect(
            {"total", "count"} <= set(logged),
            f"after a validation, rank {rank} does not have both sums in its log",
            "total and count",
            sorted(logged),
            rank,
        )
        expect(
            logged["count"] > 0, f"rank {rank} has logged a count of {logged['count']:g}", count, logged["count"], rank
        )
        seen = logged["total"] / logged["count"]
        if not math.isclose(seen, right, rel_tol=REL):
            what = next(
                (f": it is {words}" for words, value in wrong.items() if math.isclose(seen, value, rel_tol=REL)), ""
            )
            if not what and not math.isclose(logged["count"], count, rel_tol=1e-6):
                what = f": it counts {logged['count']:g} tokens, there are {count}"
            raise Wrong(
                f"on {world} ranks of unequal shares, total / count on rank {rank} is not the mean over all"
                f" tokens{what}",
                right,
                seen,
                rank,
                next((hint for words, hint in SUMS.items() if words in what), ""),
            )
        expect(
            math.isclose(logged["count"], count, rel_tol=1e-6),
            f"rank {rank} has logged a count of {logged['count']:g}; all ranks together have {count} tokens that count",
            count,
            logged["count"],
            rank,
        )


# ---------------------------------------------------------------------------------------------------
# TODO 4: devices and nodes


def layout_on_rank(code, rank, world, alone):
    import os

    for name in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE") if alone else ()
    ):
        del os.environ[name]
    return list(code.layout())


@todo(
    4,
    minutes=10,
    further=True,
    why=(
        "torchrun starts the processes, not Lightning. So the script must tell Lightning what exists, on a laptop as"
        " on two nodes of a cluster, without being changed."
    ),
    hints=(
        "Whatever launched the processes knows both numbers, and that was not Lightning.",
        (
            "torchrun puts LOCAL_WORLD_SIZE, the number of processes on this node, and WORLD_SIZE, on all nodes, into"
            " os.environ, as text."
        ),
        'devices = int(os.environ["LOCAL_WORLD_SIZE"]), and there are WORLD_SIZE // devices nodes.',
    ),
)
def test_todo4_layout(student):
    for nodes, world, alone in (*((*layout, False) for layout in LAYOUTS), (1, 1, True)):
        told = (
            "in a process without a launcher"
            if alone
            else f"on {nodes} node{'s' if nodes > 1 else ''} × {world // nodes}"
        )
        with hinted(
            "Without a launcher none of its variables is set. How many processes and nodes are there then?" * alone
        ):
            how = dict(world=world, nodes=nodes, gpus=world // nodes + 2, group=False)  # more GPUs than processes
            ranks = student.call(layout_on_rank, **how, alone=alone).evidence
        for rank, (devices, num_nodes) in enumerate(ranks):
            for name, seen, right in (("devices", devices, world // nodes), ("nodes", num_nodes, nodes)):
                expect(
                    not isinstance(seen, str),
                    f"the number of {name} is text; what comes from os.environ always is",
                    right,
                    repr(seen),
                    rank,
                    WHOLE,
                )
                expect(
                    isinstance(seen, int),
                    f"{told}, layout() gives rank {rank} {name} as a number other than an int: Lightning refuses it",
                    right,
                    repr(seen),
                    rank,
                    WHOLE,
                )
                expect(seen == right, f"{told}, layout() gives rank {rank} a wrong number of {name}", right, seen, rank)


WHOLE = "Numbers of devices and nodes are whole. Which calls and which division give an int?"


# ---------------------------------------------------------------------------------------------------
# TODO 5: the strategy


def register_hooks(strategy):
    """Lightning registers a communication hook where there is a GPU; this does so on the CPU, as it would there."""
    from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook

    if getattr(strategy, "_ddp_comm_hook", None) is None:
        return
    strategy._register_ddp_hooks = lambda: _register_ddp_comm_hook(
        model=strategy.model,
        ddp_comm_state=strategy._ddp_comm_state,
        ddp_comm_hook=strategy._ddp_comm_hook,
        ddp_comm_wrapper=strategy._ddp_comm_wrapper,
    )


def fit_on_rank(code, rank, world, seed):
    trainer = own_trainer(world, code.make_strategy(), max_steps=2)
    launcher = type(trainer.strategy.launcher).__name__
    if launcher == "_MultiProcessingLauncher":  # it would fork or spawn where it stands
        return {"starts": True}
    register_hooks(trainer.strategy)
    model = tiny_model(seed=rank)  # different first weights on each rank: only communication can make them equal
    x, y = (torch.cat(parts) for parts in zip(tiny_batch(seed), tiny_batch(seed + 1)))
    trainer.fit(own_module(model), torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=2))
    return {"starts": False, "ranks": dist.get_world_size() if dist.is_initialized() else 0, "weights": weights(model)}


def steps_of_one_process(seeds):
    model = tiny_model(seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for number in range(2):
        model.zero_grad()
        x, y = (torch.cat(parts) for parts in zip(*(tiny_batch(seed + number) for seed in seeds)))
        model(x, y).backward()
        optimizer.step()
    return weights(model)


def backend_on_rank(code, rank, world):
    trainer = own_trainer(world, code.make_strategy(), "cuda")
    trainer.strategy.accelerator.setup_device = lambda device: None  # it would ask the GPU that is not there
    trainer.strategy.setup_environment()
    return dist.is_initialized()


@todo(
    5,
    minutes=10,
    further=True,
    why=(
        "Ranks that do not exchange gradients train models that drift apart, each on a part of the data. Lightning does"
        " not notice: each of them gets a good loss on its own part."
    ),
    hints=(
        (
            "It is what wrap and setup do in ddp_training.py; one of Lightning's strategies has the same name, and is"
            " imported."
        ),
        (
            "DDPStrategy() finds the backend by the device. Strategies whose names end in spawn, fork or notebook"
            " start processes themselves, which torchrun has already done."
        ),
        "DDPStrategy(), instead of the given one.",
    ),
)
def test_todo5_strategy(student):
    world = 3
    seeds = student.seeds(world)
    # A node for each rank; the second run has one node.
    run = student.call(fit_on_rank, world=world, nodes=world, group=False, seed=seeds)
    ranks = run.evidence
    right = student.reference(steps_of_one_process, seeds=[*seeds])
    for rank, seen in enumerate(ranks):
        expect(
            not seen["starts"],
            "this strategy starts its own processes, in addition to torchrun's",
            f"{world} processes",
            f"{world} × {world} processes",
            rank,
            "torchrun has started a process for each rank. Which strategies expect that, and which start their own?",
        )
        expect(
            seen["ranks"] == world,
            f"rank {rank} is in no process group of {world} ranks, so it cannot communicate",
            world,
            seen["ranks"],
            rank,
        )
    for rank, seen in enumerate(ranks):
        wrong = [name for name in right if not near(seen["weights"][name], right[name], REL)]
        if wrong:
            apart = any(
                not torch.equal(other["weights"][name], ranks[0]["weights"][name]) for other in ranks for name in right
            )
            what = (
                "the ranks' weights have drifted apart"
                if apart
                else "all ranks have the same weights, but not those that one process has"
            )
            raise Wrong(
                f"after two steps on {world} ranks, rank {rank}'s weights differ from one process's on the whole"
                f" batches ({wrong[0]}): {what}",
                "equal weights",
                "others",
                rank,
                ""
                if apart
                else "All ranks agree, so they communicate. Which option changes what they send, or how often?",
            )
    run = student.call(backend_on_rank, world=2, group=False, gpus=2)
    asked = next((e["detail"] for e in run.events[0] if e.get("op") == "init_process_group"), "none")
    hint = "A strategy finds the backend by the device, unless it is told one. What is yours told?"
    expect("nccl" in asked, "on a machine with GPUs the group does not use NCCL", "nccl", asked, 0, hint)


# ---------------------------------------------------------------------------------------------------
# TODOs 6 and 7: loaders

# 35 = 2 · 12 + 11: on 2 and on 3 ranks, a padded share has a third step that one process does not make. Of one sample
# all ranks but one have none.
SETS = (35, 17, 1)


class Numbered(Windows):
    """A set of windows of two tokens; the second of x is first + the window's number. Beyond the last one it reads on,
    so that the sampler of a larger set is told as what it is.
    """

    def __init__(self, first, size):
        super().__init__(torch.arange(2 * first, 2 * (first + 100)) // 2, 2, 0, drop_last=True)
        self.size = size

    def __len__(self):
        return self.size


def loaders_on_rank(code, rank, world, seed):
    firsts = (0, 100, 200)
    sets = tuple(Numbered(first, size) for first, size in zip(firsts, SETS))
    data = code.Data(sets, made_args(code, "--seed", str(seed)))
    data.trainer = own_trainer(world)
    train, epochs = data.train_dataloader(), []
    for epoch in range(2):
        for sampler in (train.sampler, getattr(train.batch_sampler, "sampler", None)):  # as Lightning does
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)
        epochs.append([x[:, 1].tolist() for x, _ in train])
    return {"epochs": epochs, "validation": read(data.val_dataloader()), "test": read(data.test_dataloader())}


def read(loader):
    return [int(i) for x, _ in loader for i in x[:, 1]]


def train_batches(student, nodes, world, seed):
    return student.call(loaders_on_rank, world=world, nodes=nodes, seed=seed).evidence


@todo(
    6,
    minutes=25,
    further=True,
    why=(
        "Together the ranks read the global batch that one process would read. If each reads a whole batch, the steps"
        " are N times as large; if each shuffles independently, some samples are read twice and others never:"
        " different runs, with different losses."
    ),
    hints=(
        "Its trainer knows everything that Data needs, apart from the sets and the flags.",
        (
            "DistributedSampler takes num_replicas, rank, shuffle, seed and drop_last; self.trainer has world_size and"
            " global_rank. DataLoader takes sampler=."
        ),
        (
            "sampler = DistributedSampler(self.train, num_replicas=..., rank=..., shuffle=True, seed=...,"
            " drop_last=True), and batch_size=self.args.batch_size // self.trainer.world_size, with drop_last=True"
            " here, too."
        ),
    ),
)
def test_todo6_train_loader(student):
    student.premise(all(SETS[0] % world for _, world in LOADING), "a padded share")
    for nodes, world in LOADING:
        with on_nodes(nodes, world):
            check_train_loader(student, nodes, world)


def check_train_loader(student, nodes, world):
    seed, n_train = student.draw("seed", nodes, world).randrange(1 << 20), SETS[0]
    ranks = train_batches(student, nodes, world, seed)
    for epoch in range(2):
        order = torch.randperm(n_train, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
        for rank, seen in enumerate(ranks):
            check_batches(rank, world, seen["epochs"][epoch])
        for step in range(n_train // BATCH):
            right = sorted(order[step * BATCH : (step + 1) * BATCH])
            seen = sorted(i for rank in ranks for i in rank["epochs"][epoch][step])
            twice = sorted({i for i in seen if seen.count(i) > 1})
            expect(
                not twice,
                f"in epoch {epoch + 1}, step {step + 1}, sample {twice[:1]} is on several of {world} ranks",
                "no sample twice",
                twice,
                hint=(
                    "Each rank takes a share by its number. Which of its numbers does no other rank have, on any node?"
                ),
            )
            expect(
                seen == right,
                f"in epoch {epoch + 1}, step {step + 1}, {world} ranks together do not read the samples that one"
                " process reads: is the order shuffled by args.seed and the epoch?",
                right,
                seen,
                hint="One order is dealt to all ranks. What determines the shuffle, and is it the same on all of them?",
            )


def check_batches(rank, world, mine):
    """What one rank of several reads in an epoch of training, batch by batch."""
    n_train, steps, share = SETS[0], SETS[0] // BATCH, BATCH // world
    strange = [i for batch in mine for i in batch if i >= n_train]
    expect(
        not strange,
        f"rank {rank} of {world} trains on samples of a different set",
        "the training set",
        strange[:1],
        rank,
        "Data has three sets. Which one does the loader get, and which one the sampler?",
    )
    expect(
        mine and len(mine[0]) == share,
        f"rank {rank} of {world} trains on batches of {len(mine[0]) if mine else 0}: --batch-size {BATCH}"
        f" is the global batch, and a rank's part of it is {share}",
        f"batches of {share}",
        [len(batch) for batch in mine],
        rank,
        "Over how many ranks is the global batch divided, and which object knows that number?",
    )
    read = sum(len(batch) for batch in mine)
    expect(
        read <= math.ceil(n_train / world),
        f"rank {rank} of {world} reads {read} of {n_train} samples in an epoch, more than a share: the ranks"
        " together read some twice",
        f"{steps * share} samples",
        read,
        rank,
        "Which sampler deals to one rank of several, and is it told how many there are?",
    )
    expect(
        [len(batch) for batch in mine] == [share] * steps,
        f"rank {rank} of {world} makes steps of {[len(batch) for batch in mine]} samples in an epoch, "
        f"one process makes {steps} of {BATCH}: is the share padded, or a short batch kept?",
        [share] * steps,
        [len(batch) for batch in mine],
        rank,
        "Samples that do not divide can be dropped or repeated, by the sampler and by the loader. What does each do?",
    )


@todo(
    7,
    minutes=10,
    further=True,
    why=(
        "Together the ranks read each set once. A sample used as padding counts twice, and one that is dropped not at"
        " all, in the loss that decides which checkpoint is the best."
    ),
    hints=(
        "It is TODO 6 with a different sampler, which is imported; nothing may be dropped or repeated.",
        "ShardSampler takes the set, the rank and the number of ranks.",
        "DataLoader(samples, batch_size=... as in TODO 6, sampler=ShardSampler(samples, ..., ...)), and no drop_last.",
    ),
)
def test_todo7_evaluation_loader(student):
    student.premise(all(size % world for _, world in LOADING for size in SETS[1:3]), "a padded share")
    for nodes, world in LOADING:
        with on_nodes(nodes, world):
            check_evaluation_loaders(student, nodes, world)


def check_evaluation_loaders(student, nodes, world):
    ranks = train_batches(student, nodes, world, seed=7)
    for name, first, size in (("validation", 100, SETS[1]), ("test", 200, SETS[2])):
        other = [i for seen in ranks for i in seen[name] if not first <= i < first + size]
        expect(
            not other,
            f"the {name} loader reads a different set",
            f"the {name} set",
            f"sample {other[0] % 100 if other else ''} of another",
            hint="Each loader has its own set, and so has its sampler. Which one is named here?",
        )
        whole = [rank for rank, seen in enumerate(ranks) if len(set(seen[name])) == size > 1]
        expect(
            not whole,
            f"rank {whole[:1]} of {world} reads the whole {name} set: so does one process, in the same time",
            "a share",
            f"all {size} samples",
        )
        with hinted(
            "Nothing may be dropped or repeated. Which sampler deals like that, and which number of a rank does it get?"
        ):
            each_once(name, [[i - first for i in seen[name]] for seen in ranks], size)


# ---------------------------------------------------------------------------------------------------
# TODO 8: samplers left alone


def reached_on_rank(code, rank, world):
    trainer = code.make_trainer(made_args(code, "--epochs", "2"), [])
    module, samples = own_module(torch.nn.Linear(1, 1)), Numbered(0, SETS[1])
    loader = torch.utils.data.DataLoader(samples, batch_size=2, sampler=ShardSampler(samples, rank, world))
    trainer.validate(module, dataloaders=loader, verbose=False)
    seen, ours = [*module.seen], isinstance(trainer.val_dataloaders.sampler, ShardSampler)
    fitted, x = own_module(tiny_model(seed=0)), tiny_batch(0)[0]
    batches, sets = [torch.utils.data.DataLoader([tiny_batch(0)] * many, batch_size=None) for many in (3, 2)]
    trainer.fit(fitted, batches, sets)
    return {"samples": seen, "ours": ours, "steps": trainer.global_step, "evaluated": len(fitted.seen) // len(x)}


@todo(
    8,
    minutes=10,
    further=True,
    needs=(4, 5),
    why=(
        "With a loader that knows nothing of ranks, Lightning's only mistake is padding. But a share that is sharded"
        " once more is, on three ranks, a third of a third, and its loss looks like any other: you notice only if you"
        " count the samples that reach the model."
    ),
    hints=(
        "It is an argument of Trainer, about samplers, and true unless you say otherwise.",
        "use_distributed_sampler; the dictionary's entries become arguments of L.Trainer.",
        'own_samplers = {"use_distributed_sampler": ...}, with False in place of the dots.',
    ),
)
def test_todo8_own_samplers(student):
    for nodes in (1, 3):
        check_own_samplers(student, nodes)


MORE = "an argument changes more than the samplers"


def check_own_samplers(student, nodes):
    world, size = 3, SETS[1]
    assert size % world
    where = f" on {nodes} nodes with one rank each" if nodes > 1 else ""
    shares = student.call(reached_on_rank, world=world, nodes=nodes, group=False).evidence
    for rank, left in enumerate(shares):
        own, seen = list(range(rank, size, world)), left["samples"]
        why = MORE if left["ours"] else "Lightning has put its own sampler around it"
        expect(
            sorted(seen) == own,
            f"rank {rank} of {world}{where} evaluates {len(seen)} samples of a loader whose sampler deals {len(own)}:"
            f" {why}",
            own,
            sorted(seen),
            rank,
        )
        expect(
            (left["steps"], left["evaluated"]) == (6, 4),
            f"with the Trainer of make_trainer(), rank {rank} of {world}{where} makes {left['steps']} steps and"
            f" validates {left['evaluated']} batches in two epochs, of 3 and 2 batches each: {MORE}",
            "6 steps, 4 batches",
            f"{left['steps']} steps, {left['evaluated']} batches",
            rank,
            "Each entry of the dictionary is an argument of L.Trainer. What does each of yours change?",
        )


# ---------------------------------------------------------------------------------------------------
# TODO 9: the checkpoint; and the law of the course

# SGD, since Adam turns rounding into error where a gradient is zero in theory; and a learning rate that moves weights.
ARGV = (
    f"--data data --out out --epochs 2 --batch-size {BATCH} --seq-len 8 --dim 16 --heads 2 --layers 1 --optimizer sgd "
    "--lr 0.5 --seed 5 --log-every 2"
).split()


def save_on_rank(code, rank, world):
    def save(seed, path, epoch):
        module, trainer = code.LitModel(tiny_model(seed), made_args(code)), own_trainer(world)
        trainer.strategy.connect(module)
        module.trainer = trainer
        code.save_checkpoint(trainer, module, path, epoch)

    return {"files": save_twice(save)}


@todo(
    9,
    minutes=10,
    further=True,
    needs=tuple(range(1, 9)),
    why=(
        "Weights outlive the framework that they were trained with: what only Lightning can load is lost with"
        " Lightning. This check also looks back over the whole script: whatever Lightning does by default, the"
        " parallel run must be the serial run."
    ),
    hints=(
        (
            "Two things: who saves, and what. It is TODO 12 of ddp_training, but here no wrapper has to be taken off:"
            " the module has the model."
        ),
        (
            "save0 of utils.distributed saves on rank 0 only; module.model is the plain TransformerLM, whose sizes are"
            " its config."
        ),
        'Give save0 a dictionary of "model": the state_dict() of module.model, "config": its config, and "epoch".',
    ),
)
def test_todo9_save(student):
    for nodes in (1, 2):
        with on_nodes(nodes, 2):
            check_save(student, nodes)
    serial = student.serial(ARGV, corpus(student))
    same_run(serial, student.run(ARGV, corpus(student), world=3), 3)


def check_save(student, nodes):
    run = student.call(save_on_rank, world=2, nodes=nodes)
    one_writer(run)
    check_checkpoint(
        run.files["saved/model.pt"],
        tiny_model(seed=0).state_dict(),
        epoch=3,
        config=tiny_model(seed=0).config,
        earlier=tiny_model(seed=1).state_dict(),
    )

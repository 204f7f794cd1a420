"""What the checks of lightning_training run on ranks, in the process of the student's code."""

import torch
import torch.distributed as dist

from grader.kit import save_twice, tiny_batch, tiny_model
from utils.data import IGNORE, ShardSampler, Windows

BATCH = 12  # divisible by 1, 2, 3 and 4


def made_args(code, *flags):
    return code.parse_args(
        ["--batch-size", str(BATCH), "--seq-len", "8", "--dim", "16", "--heads", "2", "--layers", "1", *flags]
    )


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


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


# ---------------------------------------------------------------------------------------------------
# TODO 4: devices and nodes


def layout_on_rank(code, rank, world, alone):
    import os

    for name in (
        ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE") if alone else ()
    ):
        del os.environ[name]
    return list(code.layout())


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


def backend_on_rank(code, rank, world):
    trainer = own_trainer(world, code.make_strategy(), "cuda")
    trainer.strategy.accelerator.setup_device = lambda device: None  # it would ask the GPU that is not there
    trainer.strategy.setup_environment()
    return dist.is_initialized()


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


# ---------------------------------------------------------------------------------------------------
# TODO 9: the checkpoint; and the law of the course


def save_on_rank(code, rank, world):
    def save(seed, path, epoch):
        module, trainer = code.LitModel(tiny_model(seed), made_args(code)), own_trainer(world)
        trainer.strategy.connect(module)
        module.trainer = trainer
        code.save_checkpoint(trainer, module, path, epoch)

    return {"files": save_twice(save)}

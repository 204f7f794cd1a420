"""Train the same model with PyTorch Lightning.

Install it:     .venv/bin/python -m pip install -r requirements-lightning.txt
Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 train/lightning_training.py
One process:    python train/lightning_training.py
More nodes:     sbatch sbatch/lightning_training.sbatch        (JURECA)
                qsub sbatch/lightning_training.pbs             (Polaris)

Lightning inverts a training script: it owns the loop, and the loop calls what you write. You
define a step, the devices, and the data of each rank; Lightning does what ddp_training.py does
by hand: device, wrapper, zero_grad, backward, clipping, set_epoch. The result must be the same:
the losses of one process. Lightning's defaults do not always give that result;
TODOs 3 and 8 are about it.

It builds on ddp_training, and runs at every stage. Before TODO 1 it learns nothing, and before TODO 4 two
processes train independently. Fill the TODOs in the order of their numbers;
`./workbook check lightning_training` says how far you have got.

torchrun starts the processes here, as in ddp_training. Under Slurm, Lightning can also be started with one task per
GPU (`srun --ntasks-per-node=4`): then devices is SLURM_NTASKS_PER_NODE, num_nodes is SLURM_NNODES, and Lightning's
SLURMEnvironment replaces TorchElasticEnvironment (docs/launching.md).

In five lines:
- A LightningModule defines the steps and the optimizer, a DataModule the loaders, a Trainer devices, nodes and
  strategy.
- The strategy decides how ranks work together: DDPStrategy joins the group and wraps the model.
- self.log averages batches by default, on one rank: log sums, and say how to reduce them.
- Lightning wraps samplers unless told not to; sharding a share again gives a rank the wrong samples, and pads them.
- Its checkpoints are for resuming with Lightning; save plain weights for everything else.

Manuals: https://lightning.ai/docs/pytorch/stable/, above all its pages on logging and on clusters.
"""

import argparse
import logging
import math
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.arguments import training_parser
from utils.data import IGNORE, EpochOrder, ShardSampler, Windows
from utils.device_memory import device_memory
from utils.devices import accelerator
from utils.distributed import cleanup, fail, launch_environment, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.optional_packages import lacks
from utils.start_from import start_from
from utils.training import Sets, make_sets, perplexity

if problem := lacks("lightning"):
    fail(problem)

import lightning as L  # below the line that says how to install it
from lightning.pytorch.plugins.environments import TorchElasticEnvironment
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy

for part in ("pytorch", "fabric"):
    logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)  # Lightning's advertisement at every start
for noise in (".*`srun` command is available", ".*treespec", ".*does not have many workers", ".*litlogger"):
    warnings.filterwarnings("ignore", noise)

Batch = tuple[Tensor, Tensor]  # x and y, int64 (B, T), on this rank's device


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    parser = training_parser("lightning_training")
    args = parser.parse_args(argv)
    if args.dim % args.heads:
        parser.error(f"--dim {args.dim} is not divisible by --heads {args.heads}")
    return args


class LitModel(L.LightningModule):
    """The model, and what Lightning's loop needs from it."""

    def __init__(self, model: TransformerLM, args: argparse.Namespace) -> None:
        super().__init__()
        self.model, self.args = model, args

    def training_step(self, batch: Batch, batch_index: int) -> Tensor:
        """The loss of this rank's part of a batch: a scalar with a graph."""
        x, y = batch
        # TODO 1: Return the loss, and do nothing else: Lightning calls zero_grad, backward and step, clips in between,
        # and has moved the batch to the device. The given loss is always 0, which teaches nothing.
        ### BEGIN SOLUTION
        return self.model(x, y)
        ### STUDENT
        # return 0.0 * sum(parameter.sum() for parameter in self.parameters())
        ### END SOLUTION

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Lightning asks for it after the model has been moved to its device."""
        # TODO 2: Make the optimizer that the flags ask for.
        # --optimizer is adamw or sgd; --lr and --weight-decay are its settings. It gets all parameters.
        ### BEGIN SOLUTION
        kind = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[self.args.optimizer]
        return kind(self.parameters(), lr=self.args.lr, weight_decay=self.args.weight_decay)
        ### STUDENT
        # return torch.optim.SGD(self.parameters(), lr=0.0)
        ### END SOLUTION

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        """Log what `evaluated` divides. Gradients are off, and the model is in evaluation mode.

        Ranks may have unequal numbers of batches: a collective in here would wait for a rank that has finished.
        """
        x, y = batch
        # TODO 3: Log two sums, over all tokens of all batches of all ranks. "total" is the sum of the
        # tokens' losses, "count" the number of these tokens; targets equal to IGNORE do not count. By
        # default self.log_dict takes the mean over batches, on this rank only: tell it how to reduce,
        # and to synchronize. Lightning's own mean over all ranks, weighted by batch_size, is not exact:
        # it rounds a rank's mean count to a whole number.
        ### BEGIN SOLUTION
        count = (y != IGNORE).sum().double()
        sums = {"total": self.model(x, y) * count, "count": count}
        self.log_dict(sums, reduce_fx="sum", sync_dist=True, on_step=False, on_epoch=True)
        ### STUDENT
        # self.log_dict({"total": self.model(x, y), "count": 1.0})
        ### END SOLUTION

    def test_step(self, batch: Batch, batch_index: int) -> None:
        self.validation_step(batch, batch_index)


def evaluated(trainer: L.Trainer) -> float:
    """Mean loss of the set that was just evaluated: the logged total divided by the logged count."""
    logged = trainer.callback_metrics
    return (logged["total"] / logged["count"]).item()


def layout() -> tuple[int, int]:
    """The number of processes on each node, and the number of nodes."""
    launch_environment()  # whatever launched us, RANK, LOCAL_RANK, WORLD_SIZE, … are in os.environ now
    if os.environ["WORLD_SIZE"] == "1":  # nothing may have launched it
        os.environ.update(LOCAL_WORLD_SIZE="1", GROUP_WORLD_SIZE="1")
    elif "LOCAL_WORLD_SIZE" not in os.environ:
        fail("Lightning has to know how many processes each node has: start the script with torchrun")

    # TODO 4: Read the number of devices per node, and the number of nodes, from the environment.
    # torchrun tells each process how many there are in all, and how many on its own node. Numbers in
    # the script would have to change for each job; and Lightning stops if they are wrong.
    ### BEGIN SOLUTION
    devices = int(os.environ["LOCAL_WORLD_SIZE"])
    return devices, int(os.environ["WORLD_SIZE"]) // devices
    ### STUDENT
    # return 1, 1
    ### END SOLUTION


def make_strategy() -> Strategy | str:
    """How the ranks work together."""
    # TODO 5: Let all ranks train one model.
    # Lightning has a strategy that joins the group, with NCCL on GPUs and gloo otherwise, and wraps the
    # model in DistributedDataParallel. The given strategy has one device and knows of no others.
    ### BEGIN SOLUTION
    return DDPStrategy()
    ### STUDENT
    # return SingleDeviceStrategy(torch.device("cuda", 0) if accelerator() else torch.device("cpu"))
    ### END SOLUTION


class Data(L.LightningDataModule):
    """This rank's batches. Lightning calls the loader functions after the ranks have met."""

    def __init__(self, sets: Sets, args: argparse.Namespace) -> None:
        super().__init__()
        self.train, self.validation, self.test = sets
        self.args = args
        self.common = {"num_workers": args.workers, "pin_memory": bool(accelerator())}

    def train_dataloader(self) -> DataLoader:
        # TODO 6: Load this rank's share of the training set.
        # Shuffled with args.seed, in a different order in each epoch: Lightning calls set_epoch of a
        # sampler that has it. args.batch_size is global, divided over self.trainer.world_size ranks. A
        # short last batch is dropped, and no sample is read twice.
        ### BEGIN SOLUTION
        sampler = DistributedSampler(
            self.train,
            num_replicas=self.trainer.world_size,
            rank=self.trainer.global_rank,
            shuffle=True,
            seed=self.args.seed,
            drop_last=True,
        )
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(self.train, batch_size=batch_size, sampler=sampler, drop_last=True, **self.common)
        ### STUDENT
        # order = EpochOrder(self.train, self.args.seed)
        # return DataLoader(self.train, batch_size=self.args.batch_size, sampler=order, drop_last=True, **self.common)
        ### END SOLUTION

    def evaluation_loader(self, samples: Windows) -> DataLoader:
        """The loader of the validation set or the test set."""
        # TODO 7: Load this rank's share of a set to evaluate.
        # Each sample on exactly one rank, even if the number of ranks does not divide the set.
        ### BEGIN SOLUTION
        sampler = ShardSampler(samples, self.trainer.global_rank, self.trainer.world_size)
        batch_size = self.args.batch_size // self.trainer.world_size
        return DataLoader(samples, batch_size=batch_size, sampler=sampler, **self.common)
        ### STUDENT
        # return DataLoader(samples, batch_size=self.args.batch_size, **self.common)
        ### END SOLUTION

    def val_dataloader(self) -> DataLoader:
        return self.evaluation_loader(self.validation)

    def test_dataloader(self) -> DataLoader:
        return self.evaluation_loader(self.test)


def make_trainer(args: argparse.Namespace, callbacks: list[L.Callback]) -> L.Trainer:
    """Lightning's loop, without its own printing, drawing and saving: `Report` does that."""
    devices, num_nodes = layout()
    # TODO 8: Tell Lightning to leave our samplers alone. On several ranks it replaces every
    # other sampler by a DistributedSampler around it. This includes the sampler of TODO 7,
    # whose share is then sharded once more and padded. Lightning warns only about the padding,
    # and only in the test.
    ### BEGIN SOLUTION
    own_samplers = {"use_distributed_sampler": False}
    ### STUDENT
    # own_samplers = {}
    ### END SOLUTION
    return L.Trainer(
        accelerator=accelerator() or "cpu",
        devices=devices,
        num_nodes=num_nodes,
        strategy=make_strategy(),
        plugins=[TorchElasticEnvironment()],  # the processes already exist: Lightning must start none
        **own_samplers,
        max_epochs=args.epochs,
        gradient_clip_val=args.clip,
        precision="bf16-mixed" if args.dtype == "bfloat16" else "32-true",
        callbacks=callbacks,
        default_root_dir=args.out,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,  # otherwise two batches before the first epoch would count
    )


class Report(L.Callback):
    """Writes, prints and saves what ddp_training does, at the same steps."""

    def __init__(self, metrics: Metrics, total_steps: int, args: argparse.Namespace) -> None:
        self.metrics, self.total_steps, self.args = metrics, total_steps, args
        self.out, self.best, self.epoch = Path(args.out), math.inf, 0

    def on_fit_start(self, trainer: L.Trainer, module: LitModel) -> None:
        say_what_runs(self.args, module.device)
        self.start = self.last_time = time.perf_counter()
        self.last_step = 0

    def on_train_epoch_start(self, trainer: L.Trainer, module: LitModel) -> None:
        # Sums and counts: since the last line of the log, and over the epoch.
        zeros = torch.zeros(4, dtype=torch.float64, device=module.device)
        self.total, self.count, self.epoch_total, self.epoch_count = zeros
        self.last_step, self.last_time = trainer.global_step, time.perf_counter()

    def on_train_batch_end(
        self, trainer: L.Trainer, module: LitModel, outputs: dict[str, Tensor], batch: Batch, batch_index: int
    ) -> None:
        _, y = batch
        step = trainer.global_step
        self.total += outputs["loss"].double() * y.numel()
        self.count += y.numel()
        trainer.should_stop = step == self.total_steps  # then it evaluates, and ends
        if step % self.args.log_every == 0 or trainer.should_stop:
            self.epoch_total, self.epoch_count = self.epoch_total + self.total, self.epoch_count + self.count
            # global_mean waits for the device, so the clock may be read only now.
            mean, now = global_mean(trainer, self.total, self.count), time.perf_counter()
            tokens = (step - self.last_step) * self.args.batch_size * self.args.seq_len
            speed = tokens / (now - self.last_time)
            self.metrics.log("step", step, epoch=trainer.current_epoch + 1, loss=mean, tokens_per_s=speed)
            self.total, self.count = torch.zeros(2, dtype=torch.float64, device=module.device)
            self.last_step, self.last_time = step, now

    def on_validation_end(self, trainer: L.Trainer, module: LitModel) -> None:
        """Lightning validates at the end of an epoch, before it counts the epoch as finished."""
        epoch = self.epoch = trainer.current_epoch + 1
        loss = evaluated(trainer)
        train_loss = global_mean(trainer, self.epoch_total + self.total, self.epoch_count + self.count)
        print0(
            f"[{epoch}/{self.args.epochs}] train loss {train_loss:.4f}, "
            f"validation loss {loss:.4f}, perplexity {perplexity(loss):.1f}"
        )
        seconds = time.perf_counter() - self.start
        self.metrics.log(
            "epoch", trainer.global_step, epoch=epoch, loss=train_loss, validation_loss=loss, seconds=seconds
        )
        if epoch == 1 or loss < self.best:
            self.best = loss
            save_checkpoint(trainer, module, self.out / "model-best.pt", epoch)


def global_mean(trainer: L.Trainer, total: Tensor, count: Tensor) -> float:
    """The sum of all ranks' totals over the sum of their counts; both 0-dim float64."""
    total, count = trainer.strategy.reduce(torch.stack([total, count]), reduce_op="sum")
    return (total / count).item()


def save_checkpoint(trainer: L.Trainer, module: LitModel, path: Path, epoch: int) -> None:
    """Weights and sizes, no objects: `utils.checkpoints.load_model` reads it anywhere. All ranks call it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # TODO 9: Save once, and save the plain model. Lightning's own checkpoint, given here, is for Lightning: it contains
    # the state of the loops and of the optimizer, and its weights have different names. Ours has the entries "model",
    # "config" and "epoch", and loads in a program that knows nothing of Lightning.
    ### BEGIN SOLUTION
    save0({"model": module.model.state_dict(), "config": module.model.config, "epoch": epoch}, path)
    ### STUDENT
    # trainer.save_checkpoint(path)
    ### END SOLUTION


def main(argv: list[str] | None = None) -> None:
    args = parse_args(argv)
    prepare(args)  # the device that --device asks for
    if accelerator() == "xpu":  # Lightning 2.6 has cpu, cuda, mps and tpu
        fail("Lightning has no accelerator for Intel's GPUs: take ddp_training, or --device cpu")
    rank, local_rank, world_size = launch_environment()
    set_batch_size(args, world_size)
    sets, vocab_size = make_sets(args)

    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    start_from(args, model, model.config)  # if there is --init
    module = LitModel(model, args)
    data = Data(sets, args)

    out = Path(args.out)
    total_steps = min(args.epochs * (len(sets[0]) // args.batch_size), args.max_steps or math.inf)
    device = torch.device(accelerator(), local_rank) if accelerator() else torch.device("cpu")
    metrics = Metrics(out, rank, total_steps, args.tensorboard, args.record)
    with metrics, device_memory(args.device_memory, device):
        report = Report(metrics, total_steps, args)
        trainer = make_trainer(args, [report])
        trainer.fit(module, datamodule=data)
        trainer.test(module, datamodule=data, verbose=False)
        loss = evaluated(trainer)
        print0(f"test loss {loss:.4f}, perplexity {perplexity(loss):.1f}")
        metrics.log("test", trainer.global_step, loss=loss, seconds=time.perf_counter() - report.start)
        save_checkpoint(trainer, module, out / "model-final.pt", report.epoch)
    print0(f"wrote model-best.pt, model-final.pt and metrics.jsonl to {out}")
    cleanup()


if __name__ == "__main__":
    main()

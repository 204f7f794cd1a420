"""ddp_training's run by Hugging Face's Trainer: the same flags, the same batches, the same losses.

Two processes:  torchrun --local-addr 127.0.0.1 --nproc-per-node 2 docs/huggingface/with_trainer.py
One process:    python docs/huggingface/with_trainer.py

docs/huggingface.md says what Trainer does differently unless it is told, and how to start this under Slurm.
"""

import math
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, Sampler

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.arguments import training_parser
from utils.data import EpochOrder
from utils.distributed import cleanup, fail, launch_environment, print0, save0, set_batch_size
from utils.job import prepare, say_what_runs
from utils.metrics import Metrics
from utils.model import TransformerLM
from utils.optional_packages import lacks
from utils.start_from import start_from
from utils.training import make_optimizer, make_sets

if problem := lacks("transformers", "huggingface") or lacks("accelerate", "huggingface"):
    fail(problem)

from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments  # below: how to install it


class ForTrainer(nn.Module):
    """The model as Trainer calls it: with keywords; it returns a dictionary with the loss."""

    def __init__(self, model: TransformerLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Both int64 (B, T); each label is the word after its input already, so nothing is shifted here."""
        return {"loss": self.model(input_ids, labels)}


def collate(samples: list[tuple[Tensor, Tensor]]) -> dict[str, Tensor]:
    x, y = zip(*samples, strict=True)
    return {"input_ids": torch.stack(x), "labels": torch.stack(y)}


class InOurOrder(Trainer):
    """Trainer, with the epochs' permutations of the course. Accelerate deals the batches of this order to the ranks."""

    def _get_train_sampler(self, train_dataset: Dataset | None = None) -> Sampler:
        return EpochOrder(self.train_dataset, self.args.seed)


class Log(TrainerCallback):
    """Writes metrics.jsonl, as the course's scripts do."""

    def __init__(self, metrics: Metrics, step_tokens: int) -> None:
        self.metrics, self.step_tokens = metrics, step_tokens

    def on_train_begin(self, args, state, control, **rest) -> None:
        self.last_step, self.last_time = state.global_step, time.perf_counter()

    def on_log(self, args, state, control, logs: dict[str, float], **rest) -> None:
        if "loss" not in logs:  # the summary at the end
            return
        step, now = state.global_step, time.perf_counter()
        speed = (step - self.last_step) * self.step_tokens / (now - self.last_time)
        # The loss is the mean since the last line, over all ranks.
        self.metrics.log("step", step, epoch=math.ceil(state.epoch), loss=logs["loss"], tokens_per_s=speed)
        self.last_step, self.last_time = step, now


def main(argv: list[str] | None = None) -> None:
    args = training_parser("with_trainer").parse_args(argv)
    prepare(args)  # the device that --device asks for
    rank, _, world_size = launch_environment()
    set_batch_size(args, world_size)
    (train, _, _), vocab_size = make_sets(args)

    torch.manual_seed(args.seed)  # the same on all ranks: the first weights must agree
    model = TransformerLM(vocab_size, args.dim, args.heads, args.layers, args.seq_len, args.dropout, args.kv_heads)
    start_from(args, model, model.config)  # if there is --init
    settings = TrainingArguments(
        output_dir=args.out,
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=args.batch_size // world_size,
        dataloader_drop_last=True,
        num_train_epochs=args.epochs,
        max_steps=args.max_steps or -1,
        lr_scheduler_type="constant",  # Trainer's default falls linearly to 0
        max_grad_norm=args.clip,
        bf16=args.dtype == "bfloat16",
        seed=args.seed,
        logging_steps=args.log_every,
        logging_nan_inf_filter=False,  # by default a loss that is not finite is replaced in the log
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        ddp_find_unused_parameters=False,
    )
    metrics = Metrics(args.out, rank, args.max_steps, args.tensorboard, args.record)
    with metrics:
        trainer = InOurOrder(
            ForTrainer(model),
            settings,
            data_collator=collate,
            train_dataset=train,
            # Its own AdamW leaves norms and biases out of the weight decay.
            optimizers=(make_optimizer(model, args), None),
            callbacks=[Log(metrics, args.batch_size * args.seq_len)],
        )
        trainer.remove_callback(PrinterCallback)  # each node would print each line of the log
        say_what_runs(args, settings.device)
        trainer.train()
        epochs = math.ceil(trainer.state.epoch)
        save0({"model": model.state_dict(), "config": model.config, "epoch": epochs}, Path(args.out) / "model-final.pt")
    print0(f"wrote model-final.pt and metrics.jsonl to {args.out}")
    cleanup()


if __name__ == "__main__":
    main()

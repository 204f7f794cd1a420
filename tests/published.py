"""Measurements that others have published, with all settings that are known, to hold the planner against.

The two papers trained GPT models (tied head, 2,048 tokens, 51,200 words, 16 bits, dropout, before FlashAttention) by
Megatron-LM on Selene: nodes of eight A100s with 80 GB, each with an HDR InfiniBand adapter of its own. Those who made
llm-foundry trained such models by PyTorch's FSDP, with FlashAttention, on nodes with as fast a network.

    python tests/published.py     # what is predicted, beside what was measured
"""

import csv
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from utils.plan import SELENE, Machine, Model, Plan


class Row(NamedTuple):
    name: str
    model: Model
    plan: Plan
    seconds: float  # of a step


def gpt(hidden: int, layers: int, heads: int) -> Model:
    return Model(hidden, layers, heads, vocabulary=51200, sequence=2048, tied=True)


MEGATRON = {
    "precision": "megatron",
    "zero": 1,
    "sequence_parallel": "off",
    "scatter": True,
    "fused_attention": False,
    "early_stop": False,
    "whole_logits": True,
    "dropout": True,
}


def pipelined(p: int, v: int) -> dict:
    return {"pp": p, "chunks": v, "schedule": "interleaved" if v > 1 else "1f1b"}


def counted_flops(model: Model, batch: int) -> float:
    """The FLOPs of a step by which arXiv:2104.04473 divides (its equation 3): with full recomputation."""
    h, layers, s, words = model.hidden, model.layers, model.sequence, model.vocabulary
    return 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + words / (16 * layers * h))


# arXiv:2104.04473, table 1: TFLOP/s of each GPU. Micro-batches and chunks are those of the scripts that the authors
# published for it, github.com/NVIDIA/Megatron-LM, examples/sc21/run_table_1.sh: from two stages on with Megatron's own
# data parallel, which reduces gradients at the end.
TABLE_1 = [
    # name, hidden, layers, heads, t, p, v, micro-batch, GPUs, batch, TFLOP/s
    ("1.7B", 2304, 24, 24, 1, 1, 1, 16, 32, 512, 137),
    ("3.6B", 3072, 30, 32, 2, 1, 1, 16, 64, 512, 138),
    ("7.5B", 4096, 36, 32, 4, 1, 1, 16, 128, 512, 142),
    ("18B", 6144, 40, 48, 8, 1, 1, 8, 256, 1024, 135),
    ("39B", 8192, 48, 64, 8, 2, 1, 4, 512, 1536, 138),
    ("76B", 10240, 60, 80, 8, 4, 3, 2, 1024, 1792, 140),
    ("145B", 12288, 80, 96, 8, 8, 2, 2, 1536, 2304, 148),
    ("310B", 16384, 96, 128, 8, 16, 2, 1, 1920, 2160, 155),
    ("530B", 20480, 105, 128, 8, 35, 3, 1, 2520, 2520, 163),
    ("1T", 25600, 128, 160, 8, 64, 1, 1, 3072, 3072, 163),
]


def table_1() -> list[Row]:
    rows = []
    for name, hidden, layers, heads, t, p, v, micro, gpus, batch, tflops in TABLE_1:
        model = gpt(hidden, layers, heads)
        plan = Plan(
            batch, micro, dp=gpus // (t * p), tp=t, recompute="full", overlap=p == 1, **pipelined(p, v), **MEGATRON
        )
        rows.append(Row(name, model, plan, counted_flops(model, batch) / gpus / tflops / 1e12))
    return rows


# arXiv:2205.05198, table 5, seconds of a step: with full recomputation, and with sequence parallel and selective
# recomputation. Models and their settings are in its table 3. No data parallel.
TABLE_5 = [
    # name, hidden, layers, heads, p, v, micro-batch, batch, full, selective
    ("22B", 6144, 48, 64, 1, 1, 4, 4, 1.42, 1.10),
    ("175B", 12288, 96, 96, 8, 3, 1, 64, 18.13, 13.75),
    ("530B", 20480, 105, 128, 35, 3, 1, 280, 49.05, 37.83),
    ("1T", 25600, 128, 160, 64, 1, 1, 512, 94.42, 71.49),
]


def table_5() -> list[Row]:
    rows = []
    for name, hidden, layers, heads, p, v, micro, batch, full, selective in TABLE_5:
        for recompute, sequence, seconds in (("full", "off", full), ("selective", "regather", selective)):
            settings = MEGATRON | {"sequence_parallel": sequence, "recompute": recompute}
            plan = Plan(batch, micro, tp=8, **pipelined(p, v), **settings)
            rows.append(Row(f"{name}, {recompute}", gpt(hidden, layers, heads), plan, seconds))
    return rows


# github.com/mosaicml/llm-foundry, scripts/train/benchmarking/README.md, all rows of the two tables for A100s: tokens a
# second of each GPU, by FSDP alone (bfloat16, FULL_SHARD), with 50,368 words and a tied head.
SIZES = {  # hidden, layers, heads
    "70b": (8192, 80, 64),
    "30b": (7168, 48, 56),
    "13b": (5120, 40, 40),
    "7b": (4096, 32, 32),
    "3b": (2560, 32, 20),
    "1b": (2048, 24, 16),
    "760m": (1536, 24, 12),
    "350m": (1024, 24, 16),
    "125m": (768, 12, 12),
}
BANDWIDTHS = {"40": 1.555e12, "80": 2.039e12}  # of an A100's memory


def llm_foundry() -> list[tuple[Row, Machine]]:
    rows = []
    with (Path(__file__).parent / "llm_foundry.csv").open() as file:
        for line in csv.DictReader(file):
            length, gpus, micro, number = (int(line[k]) for k in ("sequence", "gpus", "micro_batch", "micro_batches"))
            model = Model(*SIZES[line["model"]], vocabulary=50368, sequence=length, tied=True)
            plan = Plan(gpus * micro * number, micro, shard=gpus, recompute=line["recompute"], whole_logits=True)
            memory = int(line["memory"]) * 2**30
            machine = replace(SELENE, memory=memory, memory_bandwidth=BANDWIDTHS[line["memory"]])
            name = f"{line['model']}, {length} tokens, {gpus} GPUs of {line['memory']} GB"
            rows.append((Row(name, model, plan, micro * number * length / int(line["speed"])), machine))
    return rows


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    from utils import costs

    console = Console()
    two = [(row, SELENE) for row in (*table_1(), *table_5())]
    for title, rows in (("table 1 of 2104.04473 (fitted), table 5 of 2205.05198", two), ("llm-foundry", llm_foundry())):
        table = Table("", "measured, s", "predicted, s", "error", title=title, title_justify="left")
        for row, machine in rows:
            seconds = sum(costs.step_time(row.model, row.plan, machine).values())
            table.add_row(row.name, f"{row.seconds:.2f}", f"{seconds:.2f}", f"{seconds / row.seconds - 1:+.1%}")
        console.print(table)


if __name__ == "__main__":
    main()

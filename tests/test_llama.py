"""`--block llama`: the parallel run is the serial run on every axis; rotary positions, grouped heads, counts; the gpt
block is as it was.
"""

import pytest
import torch

from benchmarks.llama import ARGV, serial_run
from grader.engine.lesson import lessons
from grader.kit import Student, corpus, mains_on_rank, reported, same_report
from utils.arguments import training_parser
from utils.llama import rotate
from utils.llama_sizes import cannot_split
from utils.model import TransformerLM
from utils.products import scaled_dot_product_attention
from utils.report.work import per_token

# Lesson, ranks, and for each number of key heads the flags.
ON_AXES = [
    ("ddp_training", 2, {2: ""}),
    ("fsdp_training", 2, {1: "--recompute"}),
    ("tp_training", 4, {1: "--tp 4", 2: "--tp 4 --sequence-parallel", 4: "--tp 2"}),
    ("context_training", 4, {1: "--cp 4 --cp-method ulysses", 2: "--cp 4", 4: "--cp 2"}),
    ("pipeline_training", 4, {2: "--pp 4"}),
    ("hybrid_training", 4, {1: "--pp 2 --tp 2 --sequence-parallel", 2: "--cp 2 --tp 2"}),
]


@pytest.mark.long
@pytest.mark.parametrize(("lesson", "world", "flags"), ON_AXES, ids=[lesson for lesson, *_ in ON_AXES])
def test_the_parallel_run_is_the_serial_run(runner, lesson, world, flags):
    student = Student(runner, lesson, lessons.units(lesson, "solutions"), [])
    argvs = [[*ARGV, "--epochs", "2", "--lr", "1e-2", "--kv-heads", str(heads)] for heads in flags]
    runs = [[world, [*argv, *more.split()]] for argv, more in zip(argvs, flags.values(), strict=True)]
    job = student.call(mains_on_rank, world=world, group=False, common=True, runs=runs, data=corpus(student), keep=[])
    for number, (argv, more) in enumerate(zip(argvs, flags.values(), strict=True)):
        right = serial_run(student, argv)
        steps = [line["loss"] for line in right if line["kind"] == "step"]
        assert steps[-1] < steps[0] - 0.01  # it learns: losses that stand still would agree, too
        same_report(more, right, reported(job, f"out-{number}"))


def test_the_gpt_block_is_what_it_was():
    """Its weights, in the order in which they are drawn, and the config in its checkpoints."""
    model = TransformerLM(97, 16, 4, 1, 8)
    assert set(model.config) == {"vocab_size", "dim", "n_heads", "n_layers", "max_len", "dropout"}
    block = "attention_norm.weight attention_norm.bias attention.q.weight attention.k.weight attention.v.weight"
    block += " attention.out.weight mlp_norm.weight mlp_norm.bias mlp.up.weight mlp.down.weight"
    names = ["token_embedding.weight", "position_embedding.weight", *(f"blocks.0.{name}" for name in block.split())]
    assert list(model.state_dict()) == [*names, "norm.weight", "norm.bias", "head.weight"]


def test_a_rotated_product_depends_on_the_distance_alone():
    torch.manual_seed(0)
    q, k = torch.randn(2, 3, 2, 6, 8, dtype=torch.float64).unbind()
    places = torch.tensor([0, 1, 3, 4, 7, 9])
    products, later = (rotate(q, at) @ rotate(k, at).mT for at in (places, places + 11))
    torch.testing.assert_close(products, later)
    assert (products - q @ k.mT).abs().max() > 0.1
    of_each = torch.stack([places, places + 11, places])  # (B, T)
    assert torch.equal(rotate(q, of_each)[1], rotate(q, places + 11)[1])
    # Equation 34 for one pair of numbers, the second of four: the angle is the place over 10000^(1/4).
    a, b, angle = q[0, 0, 5, 1], q[0, 0, 5, 5], torch.tensor(9 / 10.0, dtype=torch.float64)
    torch.testing.assert_close(rotate(q, places)[0, 0, 5, 1], a * angle.cos() - b * angle.sin())


def test_a_key_head_serves_consecutive_query_heads():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 6, 5, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)
    seen = scaled_dot_product_attention(q, k, v, is_causal=True)
    for head in range(6):
        right = scaled_dot_product_attention(
            q[:, head : head + 1], *(t[:, head // 3, None] for t in (k, v)), is_causal=True
        )
        torch.testing.assert_close(seen[:, head : head + 1], right)


@pytest.mark.parametrize("kv_heads", [0, 1, 2, 4])
def test_parameters_are_counted_as_they_are(kv_heads):
    model = TransformerLM(97, 36, 4, 2, 16, 0.0, kv_heads)
    assert per_token(model.config)[0] == sum(p.numel() for p in model.parameters())
    products = sum(p.numel() for name, p in model.named_parameters() if p.dim() == 2 and "embedding" not in name)
    assert per_token(model.config)[1] == 6 * products + 12 * 2 * 36 * 16


def test_positions_reach_every_block():
    torch.manual_seed(0)
    model = TransformerLM(97, 16, 4, 2, 8, 0.0, 2)
    x = torch.randint(97, (2, 8))
    plain, moved = model(x), model(x, positions=torch.arange(8) * 3)
    assert not torch.allclose(plain, moved, rtol=1e-3, atol=0)
    assert torch.equal(model(x, positions=torch.arange(8)), plain) and torch.equal(model(x), plain)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--kv-heads 2", "--block llama"),
        ("--block llama --kv-heads 3", "not divisible by --kv-heads 3"),
        ("--block llama --dim 12", "even number"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(flags, words, capsys):
    with pytest.raises(SystemExit) as end:
        training_parser("x").parse_args(flags.split())
    said = capsys.readouterr().err
    assert end.value.code == 2 and said.count("\n") == 1 and words in said


def test_ranks_and_key_heads_that_do_not_fit():
    args = training_parser("x").parse_args("--block llama --heads 12 --dim 48 --kv-heads 4".split())
    said = {tp: cannot_split(type(args)(**vars(args), tp=tp)) for tp in (1, 2, 3, 4, 12)}
    assert said[3] and "--kv-heads 4" in said[3]
    assert [tp for tp, why in said.items() if why] == [3]

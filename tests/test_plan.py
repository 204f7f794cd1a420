"""`./workbook plan`, as a student types it."""

import csv
import json
import time
from dataclasses import asdict

import pytest
import torch
from typer.testing import CliRunner

from grader.engine.commands import plan as planning
from grader.engine.commands import screen
from grader.engine.commands.cli import app
from utils import catalogue, costs, this_machine
from utils.plan import Plan
from utils.plots.plan import spoken


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """The command with these options; its files go to a folder of their own."""
    monkeypatch.setattr(screen.console, "_width", 200)  # rich asks for COLUMNS once, when it is loaded
    monkeypatch.setattr(planning.lessons, "COURSE", tmp_path)

    def run(*options: str):
        return CliRunner().invoke(app, ["plan", *options])

    return run


def test_the_best_plans_are_shown_and_drawn(plan, tmp_path):
    done = plan("--model", "7b", "--gpus", "64", "--machine", "jureca", "--best", "3")
    assert done.exit_code == 0, done.output
    assert "6.71 billion parameters" in done.output and "64 devices of JURECA-DC" in done.output
    assert "16 nodes of 4" in done.output and "tokens/s" in done.output
    assert "A device has 40.0 GiB, and 36.0 of them are usable" in done.output
    assert "Products reach 78% of 312 TFLOP/s, memory 73% and links 68%" in done.output
    assert "With a tenth of that memory free, the fastest is" in done.output
    assert "1.83 s ± 7%, seen on 127 runs of this kind (A100, data parallel): 1.7 to 1.96 s" in done.output
    assert "the first 3 are a tie" in done.output and done.output.count(" 1=  ") == 3
    assert "Other plans: ± 15%, seen on 20 runs of this kind (A100, tensor or pipeline parallel)" in done.output
    assert (tmp_path / "runs" / "plan" / "7b-64-jureca.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "runs" / "plan" / "7b-64-jureca.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 500 and all(row["rejected"] or float(row["products, s"]) > 0 for row in rows)
    assert {row["rejected"].partition(":")[0] for row in rows} >= {"", "memory", "network", "divisibility"}


@pytest.mark.parametrize("ending, start", [(".svg", b"<?xml"), (".png", b"\x89PNG"), (".csv", b"dp,"), (".json", b"{")])
def test_the_file_is_what_its_ending_says(plan, tmp_path, ending, start):
    file = tmp_path / f"found{ending}"
    done = plan("--model", "1b", "--gpus", "4", "--out", str(file))
    assert done.exit_code == 0 and file.read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    if ending == ".json":
        first = json.loads(file.read_text())["plans"][0]
        assert first["rejected"] == "" and first["tokens/s"] > 0 and sum(first["memory, B"].values()) > 1e9
        assert first["error of the time"]["runs"] >= 5 and 0 < first["error of the time"]["±"] < 0.5


def test_plans_that_are_shown_differ_in_more_than_how_data_is_divided():
    found = costs.plans(catalogue.model("7b"), 64, catalogue.machine("jureca"), 256)
    shown = costs.distinct([choice for choice in found if not choice.rejected])
    cuts = [(choice.plan.tp, choice.plan.pp, choice.plan.cp, choice.plan.ep) for choice in shown]
    assert len(set(cuts)) == len(cuts) and [c.step for c in shown] == sorted(c.step for c in shown)
    assert all(choice.plan.cp == 1 for choice in shown)  # of 2,048 tokens


def test_context_parallel_is_offered_where_sequences_are_long():
    model = catalogue.model("llama3-8b")
    for sequence, offered in ((2048, False), (131072, True)):
        long = planning.replace(model, sequence=sequence)
        found = costs.plans(long, 16, catalogue.machine("h100"), 16)
        assert any(choice.plan.cp > 1 and not choice.rejected for choice in costs.distinct(found)) == offered


def test_a_training_has_its_days_and_its_energy(plan):
    done = plan("--model", "llama3-8b", "--machine", "h100", "--gpus", "8", "--tokens", "10B", "--best", "1")
    found = costs.plans(catalogue.model("llama3-8b"), 8, catalogue.machine("h100"), 32)
    hours = 10e9 / (32 * 8192) * found[0].step / 3600
    assert f"{hours / 24:,.3g} days, {hours * 8:,.0f} GPU-hours, {hours * 8 * 700 / 1e6:.3g} MWh" in done.output


def test_one_plan_is_checked(plan):
    done = plan("--model", "llama3-8b", "--machine", "h100", "--check", "shard=8,recompute=full", "--batch", "32")
    assert done.exit_code == 0 and "8 devices" in done.output and "optimizer" in done.output
    done = plan("--model", "llama3-405b", "--machine", "h100", "--check", "dp=64,tp=8,pp=16")
    assert done.exit_code == 1 and "8,192 devices" in done.output and "is not possible: memory" in done.output


def test_126_layers_have_16_stages():
    model = catalogue.model("llama3-405b")
    plan = Plan(2048, shard=64, tp=8, pp=16, chunks=8, schedule="interleaved", zero=2)
    assert not costs.does_not_divide(model, plan)
    layers = [costs.layers_of(model, plan, stage) for stage in range(16)]
    assert layers == [7, *[8] * 14, 7]
    assert [costs.layers_of(model, Plan(1, pp=4), stage) for stage in range(4)] == [31, 32, 32, 31]
    assert [costs.layers_of(catalogue.model("1b"), Plan(1, pp=5), stage) for stage in range(5)] == [5, 5, 5, 5, 4]
    for pp in range(1, 127):
        assert sum(costs.layers_of(model, Plan(1, pp=pp), stage) for stage in range(pp)) == 126


def test_each_rejected_plan_has_its_reason(plan):
    done = plan("--model", "1b", "--gpus", "4", "--machine", "polaris", "--batch", "2", "--rejected")
    assert done.exit_code == 0 and "2 micro-batches for 4 stages" in done.output


@pytest.mark.parametrize("gpus", ["1000000", "999983"])
def test_a_million_devices_answer(plan, gpus):
    began = time.process_time()
    done = plan("--gpus", gpus)
    assert done.exit_code in (0, 1) and time.process_time() - began < 20, done.output


def test_a_model_may_be_given_by_its_sizes(plan):
    done = plan("--model", "128,2,4,33278,64", "--gpus", "2", "--batch", "24")
    assert done.exit_code == 0 and "0.01 billion" in done.output


CONFIG = {
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "hidden_act": "silu",
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


def test_a_model_may_be_a_config_of_hugging_face(plan, tmp_path):
    """Llama 3.2 1B has 1,235,814,400 parameters."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps(CONFIG))
    assert costs.parameters(catalogue.model(str(file))) == 1_235_814_400
    done = plan("--model", str(file), "--machine", "h100", "--gpus", "8", "--sequence", "8192", "--best", "1")
    assert done.exit_code == 0 and "1.24 billion parameters, 8,192 tokens per sequence" in done.output


@pytest.mark.parametrize(
    "name, count",
    [
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("llama2-7b", 6_738_415_616),
        ("llama3-8b", 8_030_261_248),
        ("llama3-70b", 70_553_706_496),
        ("llama3-405b", 405_853_388_800),
        ("mistral-7b", 7_241_732_096),
        ("mixtral-8x7b", 46_702_792_704),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        ("deepseek-v3", 671_026_404_352),
        ("olmo2-7b", 7_298_617_344),
        ("olmo2-13b", 13_716_198_400),
        ("olmo2-32b", 32_234_279_936),
    ],
)
def test_public_models_have_the_parameters_that_are_published(name, count):
    """But for GPT-2's biases of attention and MLP, and norms of queries and keys, which this course's has none of."""
    rel = 2e-3 if "gpt2" in name else 5e-5 if "olmo" in name else 1e-6
    assert costs.parameters(catalogue.model(name)) == pytest.approx(count, rel=rel)


@pytest.mark.parametrize(
    "name, billions, gpus", [("deepseek-v3", 37.6, 256), ("qwen3-30b-a3b", 3.35, 16), ("mixtral-8x7b", 12.88, 16)]
)
def test_public_mixtures_have_the_active_parameters_that_are_published(plan, name, billions, gpus):
    assert costs.active_parameters(catalogue.model(name)) == pytest.approx(1e9 * billions, rel=2e-3)
    done = plan("--model", name, "--machine", "gb200", "--gpus", str(gpus), "--best", "1", "--batch", str(16 * gpus))
    assert (
        done.exit_code == 0
        and f"({costs.active_parameters(catalogue.model(name)) / 1e9:.2f} for each token)" in done.output
    )


LATENT = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18432,
    "hidden_act": "silu",
    "vocab_size": 129280,
    "max_position_embeddings": 163840,
    "tie_word_embeddings": False,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "topk_group": 4,
}


def test_a_config_with_latent_attention_is_the_model_of_this_name(tmp_path):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(LATENT))
    read, named = catalogue.model(str(file)), catalogue.model("deepseek-v3")
    assert planning.replace(read, sequence=4096, key_heads=0) == named
    assert costs.parameters(read) == costs.parameters(named)


def test_racks_are_domains_of_72():
    for name, chip in (("gb200", "B200"), ("gb300", "B300")):
        machine = catalogue.machine(name)
        assert (machine.node, machine.chip) == (72, chip) and machine.peak_fp8 == 2 * machine.peak
    assert {catalogue.machine(name).node for name in ("b200", "b300")} == {8}


MACHINE = """
node = [4, "a photograph"]
peak_TFLOPs = [100, "its data sheet"]
memory_GiB = [24, "its data sheet"]
memory_GBs = [900, "its data sheet"]
inside_GBs = [32, "its data sheet"]
inside_us = [5, "unverified"]
between_GBs = [3, "its data sheet"]
between_us = [20, "unverified"]
"""


def test_a_machine_may_be_a_file(plan, tmp_path):
    file = tmp_path / "my.toml"
    file.write_text(MACHINE)
    done = plan("--machine", str(file), "--model", "1b", "--gpus", "8")
    assert (
        done.exit_code == 0 and "8 devices of my," in done.output and "Products reach 71% of 100 TFLOP/s" in done.output
    )
    assert "runs of this kind (all chips, data parallel)" in done.output


def test_every_number_of_a_machine_has_a_source():
    for name in catalogue.names(catalogue.MACHINES):
        found = catalogue.sources(name)
        assert set(found) >= set(catalogue.MUST) and all(found.values()), name
    assert len(catalogue.names(catalogue.MACHINES)) >= 15 and len(catalogue.names(catalogue.MODELS)) >= 15


def test_where_nothing_fits_it_says_so(plan, tmp_path):
    done = plan("--model", "70b", "--gpus", "2")
    assert done.exit_code == 1 and "no plan is possible" in done.output and "memory: " in done.output
    assert [path.suffix for path in (tmp_path / "runs" / "plan").iterdir()] == [".csv"]


BROKEN = {
    "list.json": "[1, 2]",
    "no.json": "{",
    "few.json": '{"hidden_size": 8}',
    "odd.json": json.dumps(CONFIG | {"vocab_size": "many"}),
    "no.toml": "node = ",
    "few.toml": "node = [4, 'here']",
    "bare.toml": MACHINE.replace('[24, "its data sheet"]', "24"),
    "more.toml": MACHINE + 'cores = [4, "here"]\n',
    "zero.toml": MACHINE.replace("[100,", "[0,"),
    "share.toml": MACHINE + 'reached = [1.5, "hope"]\n',
}


@pytest.mark.parametrize(
    "options, word",
    [
        (["--model", "9b"], "7b"),
        (["--model", "llama3-7b"], "do you mean llama3-"),
        (["--model", "10,2,3,4,5"], "heads"),
        (["--model", "0,2,3,4,5"], "hidden is '0'"),
        (["--model", "128,2,4"], "3 numbers, not 5"),
        (["--model", "128,2,4,x,5"], "words is 'x'"),
        (["--model", "nowhere/config.json"], "no file"),
        (["--model", "list.json"], "no fields"),
        (["--model", "no.json"], "not JSON"),
        (["--model", "few.json"], "num_hidden_layers"),
        (["--model", "odd.json"], "'many'"),
        (["--gpus", "0"], "--gpus"),
        (["--gpus", "-8"], "--gpus"),
        (["--gpus", "1000000007"], "10,000,000"),
        (["--machine", "selena"], "do you mean selene?"),
        (["--machine", "no.toml"], "not TOML"),
        (["--machine", "few.toml"], "peak_TFLOPs is missing"),
        (["--machine", "bare.toml"], "where it is from"),
        (["--machine", "more.toml"], "cores means nothing"),
        (["--machine", "zero.toml"], "above 0"),
        (["--machine", "share.toml"], "reached"),
        (["--machine", "here", "--gpus", "4000"], "this machine has"),
        (["--batch", "0"], "--batch"),
        (["--sequence", "0"], "--sequence"),
        (["--tokens", "many"], "300B"),
        (["--tokens", "12"], "less than one step"),
        (["--schedule", "2f2b"], "1f1b"),
        (["--precision", "int8"], "mixed"),
        (["--fp8"], "cannot compute in 8 bits"),
        (["--attention", "flash9"], "tuned"),
        (["--capacity", "1.25"], "no experts"),
        (["--capacity", "0.5", "--model", "mixtral-8x7b"], "1 or more"),
        (["--overlap-ep"], "no experts"),
        (["--best", "0"], "--best"),
        (["--out", "/nowhere/x.png"], "/nowhere"),
        (["--out", "x.gif"], ".svg"),
        (["--check", "tp"], "not a setting"),
        (["--check", "tp=0"], "tp is '0'"),
        (["--check", "xp=2"], "no setting 'xp'"),
        (["--check", "tp=2,tp=4"], "twice"),
        (["--check", "tp=2", "--gpus", "4"], "--gpus 4"),
        (["--check", "recompute=some"], "full"),
        (["--check", "zero=4"], "1, 2, 3"),
        (["--check", ","], "a plan, such as"),
        (["--check", "pp=2,chunks=2,schedule=1f1b"], "one chunk"),
    ],
)
def test_mistakes_are_one_line(plan, options, word, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in BROKEN.items():
        (tmp_path / name).write_text(text)
    done = plan(*options)
    assert done.exit_code == 2 and len(done.output.splitlines()) == 1 and word in done.output, done.output


def test_a_sealed_plan_says_what_opens_it(plan, monkeypatch):
    import builtins

    monkeypatch.setattr(planning.sealed_lessons, "sealed", lambda: {"plan": ["03_zero/1", "03_zero/7"]})
    monkeypatch.setattr(planning, "right", set)
    real = builtins.__import__

    def without_costs(name, *how):
        if name == "utils.costs":
            raise ImportError
        return real(name, *how)

    monkeypatch.setattr(builtins, "__import__", without_costs)
    done = plan()
    assert done.exit_code == 2 and "opens when 03_zero/1+7 are right" in done.output


def test_this_machine_is_measured():
    machine = this_machine.measure(torch.device("cpu"), size=64)
    assert machine.peak > 1e6 and machine.memory_bandwidth > 1e6 and machine.memory > 1e8 and machine.node == 1
    assert this_machine.from_json(json.dumps(asdict(machine))) == machine
    jureca = catalogue.machine("jureca")
    assert this_machine.from_json(json.dumps(asdict(jureca))) == jureca


@pytest.mark.long
def test_ranks_measure_their_links_and_share_the_memory():
    here = min(2, planning.devices_here())
    machine = planning.measured(here)
    assert machine.node == here and 1e6 < machine.inside.bandwidth < 1e13 and 0 <= machine.inside.latency < 1
    assert (machine.device_share, machine.link_share, machine.memory_share) == (1, 1, 1)


def test_plans_are_told_in_few_words():
    assert spoken(Plan(8)) == "one device, micro-batch 1"
    assert spoken(Plan(8, 2, shard=2, tp=4, recompute="full")) == "shard 2 · tp 4, micro-batch 2, full recompute"

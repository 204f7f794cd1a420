"""`./workbook export` and `--init`: every script's model is written whole, and a run starts from it on any axis."""

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grader.engine.lesson import lessons
from grader.engine.ranks.job import Job
from grader.kit import Student, corpus
from utils import model_card
from utils.atomic_write import write_whole
from utils.export import export
from utils.model import TransformerLM
from utils.start_from import start_from, why_not

PAGE = lessons.COURSE / "docs" / "huggingface.md"
SMALL = "--seq-len 8 --dim 16 --heads 4 --layers 2 --batch-size 12 --lr 3e-2 --log-every 1 --seed 5".split()
LLAMA = ["--block", "llama", "--kv-heads", "2"]
# Lesson, ranks, flags, checkpoints; the first of them is started from, with further flags.
SCRIPTS = [
    ("single_gpu_training", 1, [], ["model-final.pt"], []),
    ("ddp_training", 2, LLAMA, ["model-final.pt"], []),
    ("fsdp_training", 2, ["--save"], ["step-6", "model-final.pt"], []),
    ("tp_training", 4, ["--tp", "2", "--save-every", "6"], ["step-6", "model-final.pt"], ["--tp", "4"]),
    ("context_training", 2, [*LLAMA, "--cp", "2", "--save-every", "6"], ["step-6", "model-final.pt"], ["--cp", "1"]),
    ("pipeline_training", 2, ["--microbatches", "2"], ["model-final.pt"], []),
    (
        "expert_training",
        2,
        ["--ep", "2", "--save-every", "6"],
        ["step-6", "model-final.pt"],
        ["--ep", "1", "--bias-rate", "0"],
    ),
    ("resilient_training", 2, ["--save-every", "6"], ["step-6", "model-final.pt"], []),
    (
        "hybrid_training",
        4,
        [*LLAMA, "--pp", "2", "--tp", "2", "--save-every", "6"],
        ["step-6", "model-final.pt"],
        ["--pp", "1", "--shard", "2", "--sequence-parallel"],
    ),
    (
        "hybrid_training",
        4,
        ["--pp", "2", "--shard", "2", "--experts", "4", "--ep", "2", "--save-every", "6"],
        ["step-6", "model-final.pt"],
        ["--pp", "1", "--shard", "4", "--bias-rate", "0"],
    ),
]
LONG = [pytest.param(*case, marks=pytest.mark.long, id=case[0]) for case in SCRIPTS[:-1]]


@pytest.mark.parametrize(("lesson", "world", "flags", "checkpoints", "again"), [*LONG, SCRIPTS[-1]])
def test_every_script_is_exported_and_starts_again(runner, lesson, world, flags, checkpoints, again):
    student = Student(runner, lesson, lessons.units(lesson, "solutions"), [])
    flags = [*SMALL, *flags, "--epochs", "3"]
    inputs = {"data": corpus(student), "flags": flags, "again": [*again, "--lr", "0"], "checkpoints": checkpoints}
    how = {"lesson": "", "function": "tests.export_on_ranks:there_and_back", "group": False, "common": True}
    run = runner.run(Job(lessons.units(lesson, "solutions"), **how, world=world, inputs=inputs))
    assert run.fault is None, run.fault
    first, second = run.evidence[0]["lines"]
    exports = list(run.evidence[0]["exports"].values())
    for config, files, weights in exports:
        assert files > 1 and config == exports[0][0] and weights.keys() == exports[0][2].keys()
        for name, weight in weights.items():  # the sharded checkpoint is of the same step as the file
            assert torch.equal(weight, exports[0][2][name]), name
    assert config["n_heads"] == 4 and config.get("kv_heads", 0) == (2 if "llama" in flags else 0)

    # Trained for six steps, and evaluated; then started from there, and evaluated with --lr 0. Sums are rounded in
    # another order where the axes differ. The same batch's losses show that training has changed the model.
    assert abs(losses(first, "step")[0] - losses(second, "step")[0]) > 0.1
    assert losses(second, "test") == pytest.approx(losses(first, "test"), rel=1e-5)
    validated = losses(first, "epoch", "validation_loss")[-1]
    assert losses(second, "epoch", "validation_loss")[0] == pytest.approx(validated, rel=1e-5)


def losses(lines, kind, what="loss"):
    return [line[what] for line in lines if line["kind"] == kind]


# One run, of one process


CONFIG = {"vocab_size": 31, "dim": 16, "n_heads": 2, "n_layers": 1, "max_len": 8, "dropout": 0.0}
WORDS = [f"w{number}" for number in range(30)]


def made(folder):
    """A run's folder with a checkpoint of a small model on a text of 31 words, and the text."""
    torch.manual_seed(1)
    model = TransformerLM(**CONFIG)
    for split in ("train", "validation", "test"):
        write_whole(folder / "data" / f"{split}.txt", " ".join(WORDS) + "\n")
    torch.save({"model": model.state_dict(), "config": model.config, "epoch": 1}, folder / "model-final.pt")
    run = {"run": folder.name, "command": f"train/ddp_training.py --data {folder / 'data'} --out x"}
    (folder / "run.json").write_text(json.dumps(run))
    line = {"kind": "epoch", "epoch": 1, "step": 7, "loss": 3.5, "validation_loss": 3.25}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    return model


@pytest.fixture
def run(tmp_path):
    made(tmp_path / "run")
    return tmp_path / "run"


def refused(run, out, checkpoint="", size=10**9):
    before = {path: path.read_bytes() for path in Path(out).rglob("*") if path.is_file()}
    with pytest.raises(ValueError) as problem:
        export(run, out, checkpoint, size)
    assert {path: path.read_bytes() for path in Path(out).rglob("*") if path.is_file()} == before
    assert "\n" not in str(problem.value)
    return str(problem.value)


def test_the_program_in_the_card_loads_it(run, tmp_path):
    """So does the one in docs/huggingface.md, which is the same but for its folders."""
    right = made(run).state_dict()
    files, remarks = export(run, tmp_path / "out", "", 3_000)
    assert remarks == [] and sum(file.endswith(".safetensors") for file in files) > 1
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == right.keys()
    assert index["metadata"]["total_size"] == sum(weight.nbytes for weight in right.values())
    card = (tmp_path / "out" / "README.md").read_text()
    assert "3.2500" in card and "steps | 7" in card and "ddp_training.py --data" in card and "--out" not in card
    program, in_page = (lines_of(text) for text in (card, PAGE.read_text()))
    where = [line.startswith("course, folder =") for line in program].index(True)
    assert program[:where] + program[where + 1 :] == in_page[:where] + in_page[where + 1 :] and len(program) <= 10
    program[where] = f"course, folder = Path({str(lessons.COURSE)!r}), Path({str(tmp_path / 'out')!r})"
    file = tmp_path / "program.py"
    file.write_text("\n".join([*program, "import torch; torch.save(model.state_dict(), sys.argv[1])"]))
    subprocess.run([sys.executable, file, tmp_path / "loaded.pt"], check=True, cwd=tmp_path)
    loaded = torch.load(tmp_path / "loaded.pt")
    assert loaded.keys() == right.keys() and all(torch.equal(loaded[name], right[name]) for name in right)


def lines_of(text):
    """The first program in a page, without its empty lines."""
    return [line for line in text.split("```python\n")[1].split("```")[0].splitlines() if line]


def test_tied_weights_are_written_twice(run, tmp_path):
    """safetensors refuses two names for one piece of memory."""
    saved = torch.load(run / "model-final.pt")
    saved["model"]["head.weight"] = saved["model"]["token_embedding.weight"]
    torch.save(saved, run / "model-final.pt")
    export(run, tmp_path / "out", "", 10**9)
    weights = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(weights["head.weight"], weights["token_embedding.weight"])
    assert torch.equal(weights["head.weight"], saved["model"]["head.weight"])


def test_the_words_go_along(run, tmp_path):
    export(run, tmp_path / "out", "", 10**9)
    words = json.loads((tmp_path / "out" / "vocab.json").read_text())
    assert words == [*WORDS, "<eos>"]
    tokenizers = pytest.importorskip("tokenizers", reason="requirements-tokenizers.txt is not installed")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    line = tokenizer.encode("w3  w0 w29 <eos>")
    assert line.ids == [3, 0, 29, 30] and tokenizer.decode(line.ids, skip_special_tokens=True) == "w3 w0 w29"


def test_without_its_text_a_model_goes_without_words_and_says_so(run, tmp_path):
    (run / "data" / "train.txt").write_text("two words\n")
    _, (remark,) = export(run, tmp_path / "out", "", 10**9)
    assert "4 words, and the model has 31" in remark and not (tmp_path / "out" / "vocab.json").exists()
    shutil.rmtree(run / "data")
    _, (remark,) = export(run, tmp_path / "out", "", 10**9)
    assert "no such folder" in remark
    assert "vocabulary is missing" in (tmp_path / "out" / "README.md").read_text()


def test_a_folder_is_replaced_only_by_its_own_run(run, tmp_path):
    out = tmp_path / "out"
    export(run, out, "", 3_000)
    (out / "mine.txt").write_text("mine")
    export(run, out, "", 10**9)
    assert sorted(path.name for path in out.glob("model*")) == ["model.safetensors"]  # no file of the earlier one
    assert (out / "mine.txt").read_text() == "mine"
    (out / "README.md").write_text("my own card")
    for _ in range(2):
        files, (remark,) = export(run, out, "", 10**9)
        assert "README.md" not in files and "stays as it is" in remark
        assert (out / "README.md").read_text() == "my own card"
    made(tmp_path / "other")
    assert "an export of another run" in refused(tmp_path / "other", out)
    assert "not empty, and no export" in refused(run, run / "data")
    assert "not empty, and no export" in refused(run, run / "run.json")
    shutil.rmtree(tmp_path / "other")
    (tmp_path / "other").mkdir()
    export(run, tmp_path / "other", "", 10**9)  # an empty folder is nobody's


def test_what_cannot_be_exported_is_refused_in_one_line(run, tmp_path):
    assert "has no checkpoint model-best.pt" in refused(run, tmp_path / "out", "model-best.pt")
    assert "no sharded checkpoint" in refused(run, tmp_path / "out", "data")
    config = CONFIG | {"n_layers": 2}
    for saved, told in [
        ({"model": {}, "config": config}, "is missing"),
        ({"model": {"x": 1}, "config": config}, "more than the weights"),
        ({"model": TransformerLM(**config).state_dict(), "config": config | {"n_layers": 1}}, "not a whole model"),
        ({"model": TransformerLM(**config).state_dict(), "config": [1]}, "config is not of a model"),
        ({"model": {"module.x": torch.ones(1)}, "config": config}, "DDP wrapper"),
    ]:
        torch.save(saved, run / "model-final.pt")
        assert told in refused(run, tmp_path / "out")
    (run / "model-final.pt").unlink()
    assert "has no checkpoint: no model-final.pt" in refused(run, tmp_path / "out")


def test_the_command_says_what_it_wrote_or_why_not(run, tmp_path):
    def command(*args):
        line = [sys.executable, "-m", "grader.engine.commands.cli", "export", *map(str, args)]
        return subprocess.run(line, cwd=lessons.COURSE, capture_output=True, text=True)

    done = command(run)
    assert done.returncode == 0 and "model.safetensors" in done.stdout and (run / "export" / "README.md").is_file(), (
        done
    )
    for args in ([tmp_path / "nowhere"], [run, "--shard-size", "much"], [run, "--checkpoint", "step-3"]):
        done = command(*args)
        assert done.returncode == 2 and done.stderr.count("\n") == 1 and not done.stdout, done


# Started from


def test_a_run_starts_from_a_folder_with_its_sizes_and_words(run, tmp_path):
    right, out = made(run), tmp_path / "out"
    export(run, out, "", 3_000)
    torch.manual_seed(2)
    model = TransformerLM(**CONFIG | {"dropout": 0.5})
    assert not torch.equal(model.head.weight, right.head.weight)
    start_from(Namespace(init=str(out), data=str(run / "data")), model, model.config)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, right.state_dict()[name]), name


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"dim": 32}, "its dim is 16, and here it is 32: see --dim"),
        ({"n_heads": 4}, "its n_heads is 2, and here it is 4: see --heads"),
        ({"vocab_size": 30}, "its vocab_size is 31, and here it is 30: see --data"),
        ({"max_len": 16}, "its max_len is 8, and here it is 16: see --seq-len"),
        ({"kv_heads": 2}, "its kv_heads is not known, and here it is 2: see --kv-heads"),
        ({"n_experts": 4}, "its n_experts is not known, and here it is 4: see --experts"),
    ],
)
def test_other_sizes_are_refused(run, tmp_path, sizes, told):
    export(run, tmp_path / "out", "", 10**9)
    assert why_not(tmp_path / "out", CONFIG, str(run / "data")) == ""
    assert why_not(tmp_path / "out", CONFIG | sizes, str(run / "data")) == told


def test_other_words_are_refused(run, tmp_path):
    """As many, and in another order: each row of the table would be another word's."""
    export(run, tmp_path / "out", "", 10**9)
    write_whole(run / "data" / "train.txt", " ".join(reversed(WORDS)) + "\n")
    assert "its words differ from the words of this run's text" in why_not(tmp_path / "out", CONFIG, str(run / "data"))


def test_what_is_no_export_is_refused_in_one_line(run, tmp_path, capsys):
    out = tmp_path / "out"
    export(run, out, "", 3_000)
    file = min(out.glob("model-*.safetensors"))

    def told(folder=out):
        with pytest.raises(SystemExit) as stop:
            start_from(Namespace(init=str(folder), data=str(run / "data")), TransformerLM(**CONFIG), CONFIG)
        said = capsys.readouterr().err
        assert stop.value.code == 2 and said.count("\n") == 1 and said.startswith(f"error: --init {folder}: ")
        return said

    assert "./workbook export has not written it" in told(tmp_path / "nowhere")
    assert "./workbook export has not written it" in told(run)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    assert "or it is not whole" in told()
    file.unlink()
    assert "it has no token_embedding.weight of this model's shape" in told()
    save_file({"token_embedding.weight": torch.zeros(31, 8)}, file)
    assert "it has no token_embedding.weight of this model's shape" in told()


def test_a_mixture_has_its_own_program():
    """The plain one builds no experts."""
    assert all(model_card.PLAIN.count(text) == 1 for text in (model_card.MIXTURE[0], "TransformerLM("))

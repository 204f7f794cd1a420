"""The model card of an export: what was trained, on what and how far, and a program that loads it.

A card is Markdown below a few lines of YAML, which a hub reads: https://huggingface.co/docs/hub/model-cards.
"""

import math
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from utils.data import corpus_name
from utils.report.runs import read_lines

if TYPE_CHECKING:
    from utils.export import Source

# By the names that --data takes. WikiText's licence is as its authors' card on the hub states it.
TEXTS = {
    "wikitext-2": (
        "[WikiText-2](https://huggingface.co/datasets/Salesforce/wikitext): good and featured articles of the English"
        " Wikipedia (Merity et al. 2016, [arXiv:1609.07843](https://arxiv.org/abs/1609.07843)), under the [Creative"
        " Commons Attribution-ShareAlike License](https://creativecommons.org/licenses/by-sa/4.0/) (CC BY-SA). Pass"
        " its terms on with whatever of the text the model repeats."
    ),
    "builtin": (
        "The language reference that comes with Python, under the [PSF License"
        " Agreement](https://docs.python.org/3/license.html)."
    ),
    "random": "Words drawn at random, independently of each other, which no model can predict.",
}

HEAD = """---
language: en
library_name: pytorch
pipeline_tag: text-generation
{datasets}---

# {title}

A causal Transformer language model of {parameters} parameters, from the checkpoint `{checkpoint}` of a run of
`{script}`. It was trained to learn parallel training, on a small text: do not expect it to be useful.

| size | |
|---|---|
{sizes}

## Data

{data}

{words}

## Training

```bash
{command}
```

{losses}

## How to load it

```python
{program}
```

`./workbook export` of the course *Parallel training, hands on* wrote this folder, and `--init` of its scripts starts a
run from it.
"""

PLAIN = """import json, sys
from pathlib import Path
from safetensors.torch import load_file

course, folder = Path("."), Path(".")  # where the course is, and where this file is
sys.path.insert(0, str(course))
from utils.model import TransformerLM

model = TransformerLM(**json.loads((folder / "config.json").read_text()))
files = sorted(folder.glob("*.safetensors"))  # several, if the model is large
model.load_state_dict({name: weight for file in files for name, weight in load_file(file).items()})"""
MIXTURE = ("from utils.model import TransformerLM", "from utils.after_expert_training import make_mixtures")


def write(run: Path, source: "Source", data: str | None, has_words: bool) -> str:
    """The text of the card.

    Args:
        run: the run's folder, for its losses.
        source: the checkpoint.
        data: as --data has named the text.
        has_words: whether the export has a vocabulary.
    """
    command = shlex.split(source.run.get("command", "")) or ["unknown"]
    script = Path(command[0]).name
    text = corpus_name(data)
    program = PLAIN
    if "n_experts" in source.config:
        plain, mixture = MIXTURE
        program = program.replace(plain, mixture).replace("TransformerLM(", "make_mixtures(")
    words = "`vocab.json` has the words by id; each line of the text ends with the word `<eos>`."
    return HEAD.format(
        datasets="datasets: [Salesforce/wikitext]\n" if text == "wikitext-2" else "",
        title=run.resolve().name,
        parameters=f"{sum(map(math.prod, source.shapes.values())):,}",
        checkpoint=source.name,
        script=script,
        sizes="\n".join(f"| {name} | {size} |" for name, size in source.config.items()),
        data=TEXTS.get(text, f"`{Path(text).name}`: see the terms of its authors."),
        words=words
        if has_words
        else "The vocabulary is missing: the text could no longer be read when this was exported.",
        command=shlex.join([script, *without_out(command[1:])]),
        losses=losses(read_lines(run / "metrics.jsonl"), source),
        program=program,
    )


def without_out(command: list[str]) -> list[str]:
    """A command without the folder that it wrote to, which is of no interest elsewhere."""
    pairs = zip(["", *command], command, strict=False)
    return [word for before, word in pairs if "--out" not in (before, word) and not word.startswith("--out=")]


def losses(lines: list[dict[str, Any]], source: "Source") -> str:
    """The losses of the run up to this checkpoint, in nats a token, as a table."""
    step = source.step
    if step is None:  # of a whole file only the epoch is known
        ended = [line for line in lines if line["kind"] == "epoch" and line["epoch"] == source.epoch]
        step = ended[-1]["step"] if ended else None
    if step is None:
        return "Its losses are not known."
    epochs = [line for line in lines if line["kind"] == "epoch" and line["step"] <= step]
    steps = [line for line in lines if line["kind"] == "step" and line["step"] <= step]
    rows = [("steps", f"{step:,}")]
    if steps:
        rows.append((f"training loss, in the steps up to {steps[-1]['step']:,}", f"{steps[-1]['loss']:.4f}"))
    if epochs:
        rows.append((f"validation loss, after step {epochs[-1]['step']:,}", f"{epochs[-1]['validation_loss']:.4f}"))
    tests = [line for line in lines if line["kind"] == "test"]
    if tests and source.name == "model-final.pt":
        rows.append(("test loss", f"{tests[-1]['loss']:.4f}"))
    return "\n".join(["| losses in nats a token | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])

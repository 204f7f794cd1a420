"""Writes a trained model as other programs read it: safetensors, its sizes, its words and a model card.

    model.safetensors    the weights, by their names in the whole model; if they are larger than a given size, several
                         files (model-00001-of-00002.safetensors, …) and model.safetensors.index.json, which says
                         what is where: https://huggingface.co/docs/transformers/big_models
    config.json          the model's sizes, as TransformerLM takes them
    vocab.json           the words, or pieces of words, by id
    tokenizer.json       the same for Hugging Face's tokenizers, if they are words; and tokenizer_config.json
    README.md            the model card, see utils/model_card.py

However a script has divided its model, its checkpoints have the names of the whole model. So one process exports them
all, and of a sharded one it never holds more than a file of the export.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from utils import checkpoint_pickles, checkpoints, model_card, run_folder
from utils.arguments import SIZES
from utils.atomic_write import written_whole
from utils.data import DataError, corpus_words
from utils.model import TransformerLM

INDEX = "model.safetensors.index.json"
OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


class Source(NamedTuple):
    """A checkpoint: which run's, and how to read it."""

    name: str
    run: dict[str, Any]  # run.json; empty if there is none
    step: int | None  # None if only the epoch is known
    epoch: int | None
    config: dict[str, Any]
    shapes: dict[str, tuple[int, ...]]  # of each tensor
    nbytes: dict[str, int]
    read: Callable[[list[str]], dict[str, Tensor]]


def export(run: Path, out: Path, checkpoint: str, shard_size: int) -> tuple[list[str], list[str]]:
    """Write a checkpoint of the run in a folder into `out`, which is made, or is an earlier export of this run.

    Args:
        checkpoint: its name in the folder, such as model-best.pt or step-100; "": see `found`.
        shard_size: bytes of the largest file of weights; a larger tensor has a file of its own.

    Returns:
        The files written, and what there is to say besides.

    Raises:
        ValueError: there is no such checkpoint, it cannot be read, or `out` is something else. One line.
        OSError: a file cannot be read or written.
    """
    source = open_checkpoint(run, checkpoint or found(run))
    edited = check_folder(out, source.run)
    flags = flags_of(source.run)
    words, remarks = words_of(source, flags)
    card = model_card.write(run, source, flags.data, bool(words))
    files: dict[str, str] = {"config.json": json.dumps(source.config, indent=1) + "\n"}
    if words:
        files |= vocabulary_files(words, source.config["max_len"])
    if edited:
        remarks.append(f"{out / 'README.md'} has been edited since it was exported, and stays as it is")
    else:
        files["README.md"] = card
    made = {"format": "pt", "run": source.run.get("run", ""), "card": str(zlib.crc32(card.encode()))}
    if edited:
        made["card"] = marks_of(out)["card"]
    out.mkdir(parents=True, exist_ok=True)
    part = out / f".{os.getpid()}.part"
    part.mkdir()
    try:
        written = write_weights(part, source, shard_size, made)
        for old in out.iterdir():  # there may have been more files, or an index
            if OURS.fullmatch(old.name):
                old.unlink()
        for name in written:
            (part / name).replace(out / name)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    for name, text in files.items():
        with written_whole(out / name) as path:
            path.write_text(text, "utf-8")
    return [*written, *files], remarks


# Which checkpoint, and what is in it


def found(run: Path) -> str:
    """The checkpoint to export if none is named: the run's end; else its last sharded checkpoint, else its best."""
    steps = [path.name for path in run.glob("step-*") if path.name[5:].isdecimal() and not incomplete(path)]
    last = max(steps, key=lambda name: int(name[5:]), default="")
    names = [name for name in ("model-final.pt", last, "model-best.pt") if name and (run / name).exists()]
    if not names:
        raise ValueError(f"{run} has no checkpoint: no model-final.pt, no complete step-NUMBER, no model-best.pt")
    return names[0]


def incomplete(folder: Path) -> str:
    """What is wrong with a sharded checkpoint. resilient_training's have no list of their files; dcp.save writes
    .metadata last.
    """
    if (folder / checkpoints.CONTENTS).exists() or not (folder / ".metadata").is_file():
        return checkpoints.why_not(folder)
    return ""


def open_checkpoint(run: Path, name: str) -> Source:
    """Read what a checkpoint contains, and of a sharded one no weights yet. Raises ValueError."""
    path = run / name
    if path.is_dir():
        return open_sharded(run, path)
    if not path.is_file():
        raise ValueError(f"{run} has no checkpoint {name}")
    saved = checkpoints.load_whole(path)
    weights, config = saved["model"], saved["config"]
    try:
        shapes = {key: tuple(weight.shape) for key, weight in weights.items()}
    except AttributeError:
        raise ValueError(f"{path} holds more than the weights of a model") from None
    check_fits(path, config, shapes)
    nbytes = {key: weight.nbytes for key, weight in weights.items()}
    identity, epoch = run_folder.identity(run), saved.get("epoch")
    return Source(
        name, identity, None, epoch, config, shapes, nbytes, lambda names: {key: weights[key] for key in names}
    )


def open_sharded(run: Path, folder: Path) -> Source:
    """A checkpoint that torch.distributed.checkpoint has written: by FSDP, tensor or context parallelism, a pipeline,
    or ranks that divide experts. The weights are under "model".
    """
    if problem := incomplete(folder):
        raise ValueError(f"{folder}: {problem}")
    try:
        entries = checkpoint_pickles.described(folder)
    except checkpoint_pickles.MoreThanValues as problem:
        raise ValueError(f"{folder}: it holds more than tensors and plain values ({problem})") from None
    except ValueError as problem:
        raise ValueError(f"{folder}: torch {torch.__version__} cannot read it ({problem})") from None
    tensors = {
        key.removeprefix("model."): entry
        for key, entry in entries.items()
        if key.startswith("model.") and hasattr(entry, "size")
    }
    shapes = {name: tuple(entry.size) for name, entry in tensors.items()}
    identity = checkpoints.contents_of(folder).get("run") or run_folder.identity(run)
    config = config_of(folder, shapes, flags_of(identity))
    check_fits(folder, config, shapes)

    def read(names: list[str]) -> dict[str, Tensor]:
        import torch.distributed.checkpoint as dcp  # here: it takes a second

        empty = {name: torch.empty(shapes[name], dtype=tensors[name].properties.dtype) for name in names}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process only
            dcp.load({"model": empty}, checkpoint_id=folder)
        return empty

    nbytes = {name: entry.size.numel() * entry.properties.dtype.itemsize for name, entry in tensors.items()}
    number = folder.name.removeprefix("step-")
    step = int(number) if number.isdecimal() else None
    return Source(folder.name, identity, step, None, config, shapes, nbytes, read)


def config_of(folder: Path, shapes: dict[str, tuple[int, ...]], flags: argparse.Namespace) -> dict[str, Any]:
    """The sizes of the model in a sharded checkpoint: from its weights and, what they cannot say, the run's flags."""
    try:
        vocab_size, dim = shapes["token_embedding.weight"]
        keys, _ = shapes["blocks.0.attention.k.weight"]
    except (KeyError, ValueError):
        raise ValueError(f"{folder}: it has no model of the course's scripts") from None
    if not flags.heads or dim % flags.heads:
        raise ValueError(
            f"{folder}: the run's {run_folder.NAME} is missing, or of another run: it says how many --heads"
        )
    layers = {int(name.split(".")[1]) for name in shapes if name.startswith("blocks.")}
    config = {"vocab_size": vocab_size, "dim": dim, "n_heads": flags.heads, "n_layers": len(layers)}
    positions = shapes.get("position_embedding.weight")
    config |= {"max_len": positions[0] if positions else flags.seq_len, "dropout": flags.dropout}
    if not positions:  # a llama block
        config["kv_heads"] = keys // (dim // flags.heads)
    if router := shapes.get("blocks.0.mlp.router.weight"):
        config |= {"n_experts": router[0], "top_k": flags.top_k}
    return config


def check_fits(path: Path, config: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Raise ValueError unless these are the names and shapes of the whole model with these sizes."""
    try:
        plain = {key: value for key, value in config.items() if key not in ("n_experts", "top_k")}
        with torch.device("meta"):
            right = {key: tuple(weight.shape) for key, weight in TransformerLM(**plain).state_dict().items()}
        if "n_experts" in config:
            right = of_mixture(right, config)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        raise ValueError(f"{path}: its config is not of a model of the course") from None
    for key in sorted(right.keys() | shapes.keys()):
        if right.get(key) != shapes.get(key):
            what = f"is {shapes[key]}" if key in shapes else "is missing"
            raise ValueError(f"{path} is not a whole model of its sizes: {key} {what}, and should be {right.get(key)}")


def of_mixture(plain: dict[str, tuple[int, ...]], config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """The names and shapes of a mixture of experts: each expert is an MLP of the plain model."""
    right = {}
    for key, shape in plain.items():
        experts = range(config["n_experts"]) if ".mlp." in key else [None]
        for expert in experts:
            right[key if expert is None else key.replace(".mlp.", f".mlp.experts.{expert}.")] = shape
    for block in range(config["n_layers"]):
        right[f"blocks.{block}.mlp.router.weight"] = (config["n_experts"], config["dim"])
        right[f"blocks.{block}.mlp.router.bias"] = (config["n_experts"],)
    return right


def flags_of(identity: dict[str, Any]) -> argparse.Namespace:
    """What a run's command says about its model and data, by the flags' names in `utils/arguments.py`.

    Not by their parser: that one ends the process, and refuses a model that is too large for this machine.
    """
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--size", choices=SIZES, default="laptop")
    for name in ("--heads", "--seq-len"):
        parser.add_argument(name, type=int)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--data")
    try:
        script, *given = shlex.split(identity.get("command", "")) or [""]
        flags, _ = parser.parse_known_args(given)
    except (argparse.ArgumentError, ValueError):
        return parser.parse_args([])
    if script.endswith(".py"):
        flags.heads = flags.heads or SIZES[flags.size]["heads"]
        flags.seq_len = flags.seq_len or SIZES[flags.size]["seq_len"]
    return flags


def words_of(source: Source, flags: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The words by id, if the run's text is still here; else why there are none, to be said."""
    try:
        words = corpus_words(flags.data)
    except DataError as problem:
        return [], [f"without its words: {problem}"]
    if len(words) != source.config["vocab_size"]:
        have = f"{len(words):,} words, and the model has {source.config['vocab_size']:,}"
        return [], [f"without its words: --data {flags.data or 'of this machine'} has {have}"]
    return words, []


# What is written


def check_folder(out: Path, run: dict[str, Any]) -> bool:
    """Raise ValueError unless `out` is new, empty, or an export of this run. Returns whether its card was edited."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    marks = marks_of(out) if out.is_dir() else {}
    if not marks or not run.get("run") or marks.get("run") != run["run"]:
        is_export = "an export of another run" if marks.get("run") else "not empty, and no export"
        raise ValueError(f"--out {out}: it is {is_export}; give another folder")
    card = out / "README.md"
    return card.is_file() and str(zlib.crc32(card.read_bytes())) != marks.get("card")


def marks_of(out: Path) -> dict[str, str]:
    """What an export's weights say of their origin; empty if there are none."""
    for path in sorted(out.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                return file.metadata() or {}
        except (OSError, SafetensorError):
            return {}
    return {}


def write_weights(folder: Path, source: Source, shard_size: int, made: dict[str, str]) -> list[str]:
    """Write the weights into one file, or into several with an index. Returns the files' names."""
    files: list[list[str]] = [[]]
    room = shard_size
    for name, nbytes in source.nbytes.items():
        if nbytes > room and files[-1]:
            files.append([])
            room = shard_size
        files[-1].append(name)
        room -= nbytes
    several = len(files) > 1
    where: dict[str, str] = {}
    for number, names in enumerate(files, start=1):
        file = f"model-{number:05}-of-{len(files):05}.safetensors" if several else "model.safetensors"
        # safetensors refuses two names for one piece of memory, as tied weights are, and views: each gets its own.
        weights = {
            name: weight.clone(memory_format=torch.contiguous_format) for name, weight in source.read(names).items()
        }
        try:
            save_file(weights, folder / file, made)
        except SafetensorError as problem:
            raise ValueError(f"{file} could not be written: {problem}") from problem
        (folder / file).chmod(folder.stat().st_mode & 0o666)  # it is made for its owner alone
        where |= dict.fromkeys(names, file)
    if not several:
        return ["model.safetensors"]
    index = {"metadata": {"total_size": sum(source.nbytes.values())}, "weight_map": where}
    (folder / INDEX).write_text(json.dumps(index, indent=1) + "\n", "utf-8")
    return [*dict.fromkeys(where.values()), INDEX]


def vocabulary_files(words: list[str], max_len: int) -> dict[str, str]:
    """vocab.json; and if these are words, what Hugging Face's tokenizers need to split a line as `load_corpus` does."""
    files = {"vocab.json": json.dumps(words, ensure_ascii=False) + "\n"}
    if "Ġ" in words:  # pieces, among which is each byte's (utils/pieces.py): how they were merged is not kept
        return files
    special = {name: words.index(name) for name in ("<eos>", "<unk>") if name in words}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": name} | flags for name, number in special.items()],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    files["tokenizer.json"] = json.dumps(tokenizer, ensure_ascii=False, indent=1) + "\n"
    of_model = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "model_max_length": max_len}
    of_model |= {"unk_token": "<unk>"} if "<unk>" in special else {}
    files["tokenizer_config.json"] = json.dumps(of_model, indent=1) + "\n"
    return files

"""Machines and models by name: the files in `utils/machines` and `utils/models`, and your own files of that kind.

A machine's file has pairs, `number = [value, "where it is from"]`, a model's the fields of `Model`. A model may also be
a `config.json`, as Hugging Face keeps with a model's weights.
"""

import difflib
import json
import tomllib
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from utils.plan import ATTENTION, BLOCKS, DEVICE_SHARE, FLASH2, Link, Machine, Model

HERE = Path(__file__).parent
MACHINES, MODELS = HERE / "machines", HERE / "models"

# What a machine's file must contain and may contain, and the factor for each number.
MUST = {"node": 1, "peak_TFLOPs": 1e12, "memory_GiB": 2**30, "memory_GBs": 1e9}
MUST |= {"inside_GBs": 1e9, "inside_us": 1e-6, "between_GBs": 1e9, "between_us": 1e-6}
MAY = {"peak_fp8_TFLOPs": 1e12, "power_W": 1, "reached": 1, "attention": 1, "flash2": 1}

# Fields of a config.json, by architecture: Llama, Mistral, Mixtral, Qwen; GPT-2; of OPT; of BLOOM.
FIELDS = {
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers"),
    "heads": ("num_attention_heads", "n_head", "n_heads"),
    "vocabulary": ("vocab_size",),
    "sequence": ("max_position_embeddings", "n_positions", "seq_length", "max_seq_len"),
    "mlp": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "key_heads": ("num_key_value_heads",),
    "head": ("head_dim", "v_head_dim"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "active": ("num_experts_per_tok",),
    "expert": ("moe_intermediate_size",),
    "shared": ("n_shared_experts",),
    "dense": ("first_k_dense_replace",),
    "query_latent": ("q_lora_rank",),
    "key_latent": ("kv_lora_rank",),
    "rotary": ("qk_rope_head_dim",),
    "nodes": ("topk_group",),
    "tied": ("tie_word_embeddings",),
}
GATED = ("silu", "swiglu", "swish")  # activations that imply three matrices


class Unreadable(ValueError):
    """A name or file that cannot be used; the message is one line."""


def names(folder: Path) -> list[str]:
    """The names of the files in this folder."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def machine(name: str) -> Machine:
    """The machine with this name, or of a file like those in `utils/machines`. Raises Unreadable."""
    return _machine(_path(name, MACHINES, "machine", (".toml",)))


def model(name: str) -> Model:
    """The model with this name, of a file like those in `utils/models`, of a Hugging Face config.json, or with five
    sizes: hidden,layers,heads,words,tokens. Raises Unreadable.
    """
    if "," in name:
        return _sized(name)
    return _model(_path(name, MODELS, "model", (".toml", ".json")))


def sources(name: str) -> dict[str, str]:
    """The source of each number of a machine."""
    read = _toml(_path(name, MACHINES, "machine", (".toml",)))
    return {key: pair[1] for key, pair in read.items() if isinstance(pair, list)}


def _path(name: str, folder: Path, kind: str, endings: tuple[str, ...]) -> Path:
    if (folder / f"{name}.toml").is_file():
        return folder / f"{name}.toml"
    if not name.endswith(endings):
        close = difflib.get_close_matches(name, names(folder), n=1, cutoff=0.5)
        meant = f"do you mean {close[0]}? " if close else ""
        raise Unreadable(f"no {kind} {name!r}: {meant}there are {', '.join(names(folder))}, or a file {endings[0]}")
    if not Path(name).is_file():
        raise Unreadable(f"no file {name}")
    return Path(name)


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Unreadable(f"{path}: not TOML: {error}") from None


@cache
def _machine(path: Path) -> Machine:
    read = _toml(path)
    for key in read:
        if key not in {"name", "chip", *MUST, *MAY}:
            raise Unreadable(f"{path}: {key} means nothing here; there are {', '.join((*MUST, *MAY))}")
    for key in MUST:
        if key not in read:
            raise Unreadable(f'{path}: {key} is missing: {key} = [number, "where it is from"]')
    value = {key: _pair(path, key, read[key]) * scale for key, scale in (MUST | MAY).items() if key in read}
    for share in ("reached", "attention", "flash2"):
        if not 0 < value.get(share, 1) <= 1:
            raise Unreadable(f"{path}: {share} is a share of the peak, above 0 and at most 1")
    if value["node"] != int(value["node"]):
        raise Unreadable(f"{path}: node is a number of devices")
    return Machine(
        name=str(read.get("name", path.stem)),
        peak=value["peak_TFLOPs"],
        memory=value["memory_GiB"],
        memory_bandwidth=value["memory_GBs"],
        node=int(value["node"]),
        inside=Link(value["inside_GBs"], value["inside_us"]),
        between=Link(value["between_GBs"], value["between_us"]),
        device_share=value.get("reached", DEVICE_SHARE),
        peak_fp8=value.get("peak_fp8_TFLOPs", 0.0),
        attention=value.get("attention", ATTENTION),
        flash2=value.get("flash2", FLASH2),
        power=value.get("power_W", 0.0),
        chip=str(read.get("chip", "")),
    )


def _pair(path: Path, key: str, pair: Any) -> float:
    told = f'{path}: {key} = [number, "where it is from"]'
    if not isinstance(pair, list) or len(pair) != 2 or isinstance(pair[0], bool):
        raise Unreadable(told)
    number, source = pair
    if not isinstance(number, (int, float)) or not isinstance(source, str) or not source:
        raise Unreadable(told)
    if not 0 < number < float("inf"):
        raise Unreadable(f"{path}: {key} is {number}, and must be above 0")
    return number


@cache
def _model(path: Path) -> Model:
    if path.suffix == ".json":
        return _checked(_from_config(path), path)
    read = _toml(path)
    known = {field.name: field.type for field in fields(Model)}
    for key in read:
        if key not in {"name", "source", *known}:
            raise Unreadable(f"{path}: {key} means nothing here; there are {', '.join(known)}")
    for key in ("hidden", "layers", "heads", "vocabulary", "sequence"):
        if key not in read:
            raise Unreadable(f"{path}: {key} is missing")
    given = {key: value for key, value in read.items() if key in known}
    for key, value in given.items():
        if type(value) is not known[key]:
            raise Unreadable(f"{path}: {key} is {value!r}, and must be {known[key].__name__}")
    return _checked(Model(**given), path)


def _from_config(path: Path) -> Model:
    try:
        read = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise Unreadable(f"{path}: not JSON: {error}") from None
    if not isinstance(read, dict):
        raise Unreadable(f"{path}: no config.json: it holds no fields")
    found = {}
    for field, others in FIELDS.items():
        value = next((read[name] for name in others if read.get(name) is not None), None)
        if value is None:
            if field in ("hidden", "layers", "heads", "vocabulary", "sequence"):
                raise Unreadable(f"{path}: no {' or '.join(others)}, so {field} is not known")
        elif type(value) not in (int, bool):
            raise Unreadable(f"{path}: {field} is {value!r}, and must be a whole number")
        else:
            found[field] = value
    # In a config.json of GPT-2, OPT or BLOOM, the tables are tied by default.
    found.setdefault("tied", "hidden_act" not in read)
    gated = read.get("hidden_act") in GATED
    return Model(**found, block="llama" if gated else "gpt")


def _sized(name: str) -> Model:
    sizes = [size.strip() for size in name.split(",")]
    kinds = ("hidden", "layers", "heads", "words", "tokens")
    if len(sizes) != len(kinds):
        raise Unreadable(f"model {name}: {len(sizes)} numbers, not {len(kinds)}: {','.join(kinds)}")
    for kind, size in zip(kinds, sizes, strict=True):
        if not (size.isascii() and size.isdecimal() and int(size)):
            raise Unreadable(f"model {name}: {kind} is {size!r}, and must be a whole number above 0")
    return _checked(Model(*map(int, sizes)), name)


def _checked(found: Model, where: Path | str) -> Model:
    for field in fields(Model):
        value = getattr(found, field.name)
        least = 1 if field.name in ("hidden", "layers", "heads", "vocabulary", "sequence", "active") else 0
        if field.name != "block" and not least <= value < 2**40:
            raise Unreadable(f"{where}: {field.name} is {value}, and must be {least} or more")
    if found.block not in BLOCKS:
        raise Unreadable(f"{where}: block is {found.block!r}; there are {', '.join(BLOCKS)}")
    if not found.head and found.hidden % found.heads:
        raise Unreadable(f"{where}: {found.hidden} is not divisible by {found.heads} heads")
    if found.key_heads and found.heads % found.key_heads:
        raise Unreadable(f"{where}: {found.heads} heads are not divisible by {found.key_heads} heads of keys")
    if found.experts and found.active > found.experts:
        raise Unreadable(f"{where}: a token goes to {found.active} of {found.experts} experts")
    if found.dense > found.layers:
        raise Unreadable(f"{where}: {found.dense} of {found.layers} blocks are without experts")
    return found

"""Rewrites an exported model with llama blocks for Hugging Face's LlamaForCausalLM, and what reads its folders.

    ./workbook export runs/ddp_training
    python docs/huggingface/as_llama.py runs/ddp_training/export llama

A llama block of the course computes what theirs does; layers have other names, and of each pair of `up`'s rows the
first makes the gate, where theirs has two matrices.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

# The course's folder is the nearest one above this file that holds utils/.
sys.path.insert(0, str(next(p for p in Path(__file__).resolve().parents if (p / "utils").is_dir())))

from utils.distributed import fail
from utils.llama import BASE, EPS
from utils.llama_sizes import hidden_width

NAMES = {
    "token_embedding": "model.embed_tokens",
    "norm": "model.norm",
    "head": "lm_head",
    "attention_norm": "input_layernorm",
    "attention.q": "self_attn.q_proj",
    "attention.k": "self_attn.k_proj",
    "attention.v": "self_attn.v_proj",
    "attention.out": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "mlp.down": "mlp.down_proj",
}


def renamed(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A weight under Hugging Face's name; `up` under two."""
    layer, block = name.removesuffix(".weight"), ""
    if layer.startswith("blocks."):
        _, number, layer = layer.split(".", 2)
        block = f"model.layers.{number}."
    if layer == "mlp.up":
        gate, value = weight.unflatten(0, (-1, 2)).unbind(1)
        return {f"{block}mlp.gate_proj.weight": gate.contiguous(), f"{block}mlp.up_proj.weight": value.contiguous()}
    return {f"{block}{NAMES[layer]}.weight": weight}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="an export of a model with --block llama")
    parser.add_argument("out", type=Path, help="the folder to make")
    args = parser.parse_args(argv)
    folder, out = args.folder, args.out
    sizes = json.loads((folder / "config.json").read_text("utf-8")) if (folder / "config.json").is_file() else {}
    if "kv_heads" not in sizes or "n_experts" in sizes:
        fail(f"{folder} is no export of a model with --block llama and without experts")
    if out.exists():
        fail(f"{out} is there already")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": sizes["vocab_size"],
        "hidden_size": sizes["dim"],
        "intermediate_size": hidden_width(sizes["dim"]),
        "num_hidden_layers": sizes["n_layers"],
        "num_attention_heads": sizes["n_heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "max_position_embeddings": sizes["max_len"],
        "rms_norm_eps": EPS,
        "rope_theta": BASE,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    out.mkdir(parents=True)
    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, weight in load_file(file).items():
            weights |= renamed(name, weight)
    save_file(weights, out / "model.safetensors", {"format": "pt"})
    (out / "config.json").write_text(json.dumps(config, indent=1) + "\n", "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (folder / name).is_file():
            shutil.copy(folder / name, out)


if __name__ == "__main__":
    main()

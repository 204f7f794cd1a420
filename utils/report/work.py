"""What a run computed and used: parameters, model FLOPs utilization (MFU), power."""

import statistics

from utils.catalogue import MACHINES, machine, names
from utils.llama_sizes import attention_parameters, mlp_parameters
from utils.report.runs import Run


def facts(run: Run) -> dict[str, str]:
    """The facts for the page; what is unknown is labelled so."""
    out, sizes = {}, run.ranks[0].start.get("model")
    if sizes:
        parameters, flops = per_token(sizes)
        out["parameters"] = f"{parameters:,}"
        if "n_experts" in sizes:  # a token is computed by top_k of them
            total, (active, flops) = flops, per_token(sizes, sizes["top_k"])
            out["parameters"] += f", of which a token uses {active:,}"
            out["FLOPs of a token"] = f"{flops:,}; with all experts it would be {total:,}"
        if run.tokens_per_s:
            out["MFU"] = share_of_peak(run, flops * run.tokens_per_s)
    return out | {"power": power(run)}


def per_token(sizes: dict[str, int], used: int = 0) -> tuple[int, int]:
    """Parameters of `TransformerLM` (utils/model.py), and the FLOPs of forward and backward pass for a token: six for
    each number of a matrix that multiplies, and 12 L D T for attention, without a causal mask (PaLM, appendix B).
    A mixture of experts has in each block as many MLPs as `n_experts` says, and a row of the router for each; `used`
    of these MLPs are counted, or all of them.

    They are counted without building the model, which would load torch and its compiler.
    """
    words, dim, layers, length = (sizes[name] for name in ("vocab_size", "dim", "n_layers", "max_len"))
    mlps, router = used or sizes.get("n_experts", 1), sizes.get("n_experts", 0) * dim
    if kv_heads := sizes.get("kv_heads", 0):  # utils/llama.py: no table of positions, and norms without biases
        attention, mlp = attention_parameters(dim, sizes["n_heads"], kv_heads), mlp_parameters(dim)
        embeddings, norms = words * dim, (2 * layers + 1) * dim
    else:
        attention, mlp = 4 * dim**2, 8 * dim**2  # q, k, v and out; up and down
        embeddings, norms = (words + length) * dim, (2 * layers + 1) * 2 * dim
    products = layers * (attention + mlps * mlp + router) + words * dim  # the head
    return products + embeddings + norms, 6 * products + 12 * layers * dim * length


def share_of_peak(run: Run, speed: float) -> str:
    """Model FLOPs utilization (PaLM, arXiv:2204.02311, appendix B): the FLOP/s of forward and backward pass, without
    recomputation, over what the ranks' devices could do.

    Args:
        speed: FLOP/s of all ranks.
    """
    starts = [rank.start for rank in run.ranks]
    if all(start.get("product_flops") for start in starts):
        peak = sum(start["product_flops"] for start in starts)
        busy = ": the machine was busier when they were timed than during training" if speed > peak else ""
        reached = f"which the ranks' matrix products reached in float32{busy}"
        return f"{speed / peak:.1%} of {peak / 1e9:,.0f} GFLOP/s, {reached}"
    if file := data_sheet(starts[0]["device"]):
        peak = machine(file).peak * len(starts)
        return f"{speed / peak:.1%} of {peak / 1e12:,.0f} TFLOP/s, the data sheet's in bfloat16"
    return f"unknown: utils/machines has no {starts[0]['device']}; {speed / 1e12:,.2f} TFLOP/s"


def data_sheet(device: str) -> str | None:
    """The file in utils/machines for a GPU, given torch's name for it, which contains all parts of the file's name."""
    device = device.lower()
    fitting = [name for name in names(MACHINES) if all(part in device for part in name.split("-"))]
    return max(fitting, key=lambda name: (name.count("-"), len(name)), default=None)


def power(run: Run) -> str:
    """Mean power over the run, of GPUs and of processors, whose energy counters often only root can read."""
    told = []
    for kind, what in (("watts", "GPUs"), ("cpu_watts", "processors")):
        means = [
            statistics.mean(line[kind] for line in rank.usage if kind in line)
            for rank in run.ranks
            if any(kind in line for line in rank.usage)
        ]
        if means:
            told.append(f"{sum(means):,.0f} W of all {what}")
    return ", ".join(told) or "not reported by this machine"

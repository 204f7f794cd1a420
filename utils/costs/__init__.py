"""What a plan costs: FLOPs, memory, messages, and the time of a step; and the best plan for a model and a machine.

A chapter of formulas, to be read in this order: `counts` (parameters, FLOPs), `memory`, `messages`, `seconds`,
`search`, `published` (how far off these are). The descriptions, `Model`, `Plan` and `Machine`, are in `utils/plan.py`.
Symbols are the papers': h hidden size, L layers, a heads, V words, f width of an MLP, s tokens of a sequence, b
sequences of a micro-batch, t tensor-parallel ranks, p stages, m micro-batches, v chunks on a rank. Sources, cited by
these names:

    ZeRO          Rajbhandari et al. 2019, arXiv:1910.02054
    Megatron      Shoeybi et al. 2019, arXiv:1909.08053
    PTD-P         Narayanan et al. 2021, arXiv:2104.04473
    Korthikanti   et al. 2022, arXiv:2205.05198
    PaLM          Chowdhery et al. 2022, arXiv:2204.02311
    zero bubble   Qi et al. 2023, arXiv:2401.10241
    Llama 3       Grattafiori et al. 2024, arXiv:2407.21783
    torchtitan    Liang et al. 2024, arXiv:2410.06511
"""

from utils.costs.counts import (
    active_parameters,
    block_parameters,
    flops,
    held_parameters,
    layers_of,
    matmul_parameters,
    most_layers,
    parameters,
    parts,
)
from utils.costs.memory import (
    activations,
    alive,
    block_activations,
    kept_logits,
    logits,
    memory,
    moments,
    stream_bytes,
    tokens,
)
from utils.costs.messages import Sent, all_gather, all_reduce, messages, tensor_messages
from utils.costs.published import band
from utils.costs.search import AXES, SETTINGS, USABLE, Choice, distinct, does_not_divide, judge, plans, roomy
from utils.costs.seconds import bubble, share_of_peak, step_time

TAUGHT_IN = "10_strategy"  # no rank of that lesson's checks, or of an earlier one's, can import this
# What earlier lessons ask to predict; a release keeps this package sealed until they are right.
GIVES_AWAY = """
00_one_device/3 00_one_device/5
01_collectives/6 02_data_parallel/1 03_zero/1 03_zero/7 04_tensor_parallel/1 04_tensor_parallel/10
05_pipeline_parallel/1 05_pipeline_parallel/11 06_context_parallel/7 07_expert_parallel/8
"""

__all__ = [
    "AXES",
    "SETTINGS",
    "USABLE",
    "Choice",
    "Sent",
    "activations",
    "active_parameters",
    "alive",
    "all_gather",
    "all_reduce",
    "band",
    "block_activations",
    "block_parameters",
    "bubble",
    "distinct",
    "does_not_divide",
    "flops",
    "held_parameters",
    "judge",
    "kept_logits",
    "layers_of",
    "logits",
    "matmul_parameters",
    "memory",
    "messages",
    "moments",
    "most_layers",
    "parameters",
    "parts",
    "plans",
    "roomy",
    "share_of_peak",
    "step_time",
    "stream_bytes",
    "tensor_messages",
    "tokens",
]

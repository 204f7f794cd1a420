"""What a plan is about: a model, a machine, and a way to spread the one over the other.

Descriptions only, no formula: what a plan costs is computed in `utils/costs`. The machines and models that have names
are files, read by `utils/catalogue.py`. Sizes are numbers of parameters, of tokens or of layers; memory is in bytes,
time in seconds, speed in FLOPs or bytes a second.
"""

from dataclasses import dataclass
from typing import NamedTuple

# What a block is made of. "gpt": LayerNorm, an MLP of two matrices with GELU, learned positions (GPT-2; the course's).
# "llama": RMSNorm, an MLP of three matrices with SwiGLU (arXiv:2002.05202), rotary positions (arXiv:2104.09864).
BLOCKS = ("gpt", "llama")


@dataclass(frozen=True)
class Model:
    """A Transformer language model like `utils.model.TransformerLM`, or with `experts` in place of each block's MLP."""

    hidden: int  # h, the width of the stream
    layers: int  # L
    heads: int  # a
    vocabulary: int  # V, words
    sequence: int  # s, tokens in a sample
    experts: int = 0  # MLPs in each block, each as large as the one MLP of a model without; 0: no mixture
    active: int = 1  # experts that a token goes to
    tied: bool = False  # whether the head is the embedding table, as in GPT-2; the course's is not
    mlp: int = 0  # f, the width inside an MLP; 0: 4 h
    key_heads: int = 0  # heads of keys and values, each used by a group of heads (arXiv:2305.13245); 0: a
    head: int = 0  # the width of a head; 0: h / a
    block: str = "gpt"  # one of BLOCKS
    parallel: bool = False  # attention and MLP side by side, after one norm (GPT-J, PaLM)
    expert: int = 0  # the width inside an expert; 0: as inside an MLP
    shared: int = (
        0  # experts that every token goes to, in addition to the `active` ones (DeepSeekMoE, arXiv:2401.06066)
    )
    nodes: int = 0  # on which a token's experts are, at most (arXiv:2412.19437, section 2.1.2); 0: on all
    dense: int = 0  # the first blocks, which have one MLP in place of experts
    # Latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1): queries, and keys with values, are made from a few
    # numbers of a token, and each head has some numbers more for its positions.
    query_latent: int = 0  # 0: queries are made from the stream
    key_latent: int = 0  # 0: no latent attention
    rotary: int = 0  # numbers of a head that are rotated, in addition to `head`; the keys' are the same for all heads

    @property
    def inner(self) -> int:
        """f"""
        return self.mlp or 4 * self.hidden

    @property
    def attended(self) -> int:
        """Numbers of a token that come out of attention."""
        return self.heads * self.head if self.head else self.hidden

    @property
    def queries(self) -> int:
        """Numbers of a token's queries."""
        return self.attended + self.heads * self.rotary

    @property
    def keys(self) -> int:
        """Numbers of a token's keys."""
        return self.queries if self.key_latent else self.values

    @property
    def values(self) -> int:
        """Numbers of a token's values."""
        return self.attended // self.heads * (self.key_heads or self.heads)

    @property
    def scored(self) -> float:
        """Numbers of a token that attention's two products multiply for each other token, half of it in each."""
        return (self.queries + self.attended) / 2

    @property
    def matrices(self) -> int:
        """Of an MLP."""
        return 3 if self.block == "llama" else 2


class Precision(NamedTuple):
    """Bytes of one number of each kind."""

    weight: int  # as a rank keeps it
    gradient: int
    state: int  # the optimizer's, of one parameter: AdamW's two moments, and a master weight if there is one
    activation: int
    gathered: int  # of a weight that FSDP brings together
    reduced: int  # of a gradient in a message
    operand: int  # of a number that goes into a product, kept for the backward pass


PRECISIONS = {
    "float32": Precision(4, 4, 8, 4, 4, 4, 4),
    # 03_zero: bfloat16 weights, float32 masters; gradients are summed in float32.
    "mixed": Precision(2, 2, 12, 2, 2, 4, 2),
    # fsdp_training --dtype bfloat16, torchtitan: float32 shards, gathered in bfloat16.
    "sharded": Precision(4, 4, 8, 2, 2, 4, 2),
    # Megatron-LM (arXiv:2205.05198, figure 1): 18 bytes, with float32 gradients; they are sent in 16 bits.
    "megatron": Precision(2, 4, 12, 2, 2, 2, 2),
    # DeepSpeed's BF16_Optimizer: gradients in bfloat16, and added up and sent in float32.
    "deepspeed": Precision(2, 6, 12, 2, 2, 4, 2),
    # Megatron-Core in NVIDIA's benchmarks: gradients are added up and sent in 16 bits.
    "bfloat16-gradients": Precision(2, 2, 12, 2, 2, 2, 2),
    # The same in 8 bits: weights are kept and gathered so, and what goes into products is kept so. In blocks of 32
    # numbers with a scale each (MXFP8), there are two copies of weights, by rows and by columns.
    "float8": Precision(1, 2, 12, 2, 1, 2, 1),
    "mxfp8": Precision(2, 2, 12, 2, 1, 2, 1),
    # Llama 3 (arXiv:2407.21783, section 3.3.2), Megatron-Core: gradients are added up and sent in float32.
    "float32-gradients": Precision(2, 4, 12, 2, 2, 4, 2),
}

# "gather" is of keys and values (arXiv:2407.21783, section 3.3.2).
CONTEXTS = ("ring", "ulysses", "gather")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")

# Scores of words that the course's loss makes at a time: tokens enough for a fast matrix product. A CPU needs few, and
# memory of less than 32 MB is used again, where larger blocks go back to the system and come back empty, page by page
# (glibc). With 16, 64, 128 and 256 million an H200 took 31, 13.5, 11.8 and 11.1 ms (bfloat16; 12,288 tokens of 768
# numbers, 50,304 words).
PIECE_ON_CPU, PIECE_ON_GPU = 8_000_000, 128_000_000
CACHED = 500_000  # of them, those that a CPU goes over several times while they are in its caches


def piece_on(device_type: str) -> int:
    return PIECE_ON_CPU if device_type == "cpu" else PIECE_ON_GPU


@dataclass(frozen=True)
class Plan:
    """How a model is trained on `world` = dp · shard · tp · pp · cp ranks.

    The ranks of an axis are neighbours in this order: tp, cp, shard, dp, pp. So tensor parallel has the fastest links,
    and only a pipeline's messages, which only the next stage waits for, go the farthest.

    Ranks that divide a sequence have the same weights. So they divide the state, too: it is sharded over shard · cp
    ranks, as in torchtitan and Megatron-Core.
    """

    batch: int  # sequences in a step, over all ranks
    micro_batch: int = 1  # sequences that go through a model (or a pipeline) at a time
    dp: int = 1  # replicas
    shard: int = 1  # ranks that divide each replica's state among them, as FSDP and ZeRO do; each has its own data
    tp: int = 1  # tensor parallel
    pp: int = 1  # stages of a pipeline, by ranks
    cp: int = 1  # ranks that divide a sequence, and the state
    ep: int = 1  # ranks that divide the experts; they are taken from cp, shard and dp, in this order
    fold: bool = False  # takes them from tp first: no expert is cut then (arXiv:2504.14960)
    capacity: float = 0.0  # rows of an expert, as a multiple of the mean: more are dropped, fewer padded. 0: dropless
    zero: int = 3  # what shard · cp ranks divide: 1 the optimizer's state, 2 gradients too, 3 weights too; 0: nothing
    fsdp: bool = False  # torch's FSDP holds whole copies of what it shards, also where shard is 1
    reshard: str = "blocks"  # whose gathered weights stage 3 frees between the passes: "none", "blocks" or "all"
    schedule: str = "1f1b"  # of the pipeline, one of SCHEDULES
    chunks: int = 1  # v, stages on each rank; only "interleaved" has several
    context: str = "ring"  # how cp attends, one of CONTEXTS
    sequence_parallel: str = (
        "keep"  # between the tensor-parallel parts: "off", "keep" the gathered tensors, or "regather"
    )
    scatter: bool = False  # each tensor-parallel rank sends only its part of what goes to the next stage
    recompute: str = "none"  # in the backward pass, one of RECOMPUTES
    offload: int = 0  # blocks of a rank whose activations wait in the host's memory; copied while others compute
    early_stop: bool = True  # computing again ends when all is there that the backward pass needs, as torch's does
    attention: str = "flash2"  # its kernel, one of ATTENTIONS
    whole_logits: bool = False  # all words' scores of a micro-batch at once; the course's loss makes them in pieces,
    piece: int = PIECE_ON_GPU  # of so many scores
    fused_loss: bool = False  # whole logits, in whose place the loss writes their gradients
    dropout: bool = False  # masks are kept, one byte a number
    overlap: bool = True  # of data-parallel messages with the computation
    precision: str = "mixed"  # one of PRECISIONS
    overlap_tp: bool = False  # tensor-parallel messages in pieces, during the products (async TP, tp-comm-overlap)
    overlap_pp: bool = False  # a pipeline's messages, while other micro-batches compute
    overlap_ep: bool = False  # experts' messages, while another micro-batch computes (DualPipe, arXiv:2412.19437)
    once_per_node: bool = False  # a row crosses to a node once, whatever the number of its experts there (DeepEP)
    fused_experts: bool = False  # casts and sorting are in the experts' kernels, which a recorded graph starts
    compiled: bool = False  # everything but products is fused: torch.compile, or custom kernels
    fp8: bool = False  # the blocks' products in 8 bits, whatever the precision of the rest

    @property
    def world(self) -> int:
        return self.dp * self.shard * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Parts in which a batch is divided."""
        return self.dp * self.shard

    @property
    def sharers(self) -> int:
        """Ranks that divide each replica's state."""
        return self.shard * self.cp if self.zero else 1

    @property
    def copies(self) -> int:
        """Ranks with the same state, which sum their gradients."""
        return self.dp if self.zero else self.dp * self.shard * self.cp

    @property
    def expert_sharers(self) -> float:
        """Ranks that divide the state of a rank's experts. ep divides them first, and takes its ranks from these."""
        return max(1.0, self.sharers * self.folded / self.ep)

    @property
    def expert_copies(self) -> float:
        """Ranks with the same experts, beside those."""
        return max(1.0, self.dp * self.shard * self.cp * self.folded / self.ep / self.expert_sharers)

    @property
    def folded(self) -> int:
        """Tensor-parallel ranks that have different experts, instead of parts of the same."""
        return self.tp if self.fold else 1

    @property
    def fused_attention(self) -> bool:
        """Whether scores never reach the memory."""
        return self.attention != "unfused"

    @property
    def shares(self) -> bool:
        """Whether gradients, and for stage 3 weights, are whole only for a while."""
        return self.zero > 1 and (self.sharers > 1 or self.fsdp)

    @property
    def micro_batches(self) -> int:
        """m: how many micro-batches each of those parts has."""
        return self.batch // (self.replicas * self.micro_batch)

    @property
    def bytes(self) -> Precision:
        return PRECISIONS[self.precision]


# Attention's kernels. "unfused": scores are written. "triton": FlashAttention in Triton, as in 2023. "flash2":
# FlashAttention-2 (arXiv:2307.08691), written for A100s; torch's scaled_dot_product_attention. "tuned": written for the
# chip: cuDNN, FlashAttention-3 (arXiv:2407.08608).
ATTENTIONS = ("unfused", "triton", "flash2", "tuned")

# What is recomputed, in the backward pass. "selective": attention's scores (arXiv:2205.05198); with fused
# attention, which never keeps them, nothing. "ops": all but attention and every second product, as torchtitan's
# selective checkpointing of operations. "full": each block.
RECOMPUTES = ("none", "selective", "ops", "full")


class Link(NamedTuple):
    """Between two devices."""

    bandwidth: float  # bytes a second, one way, for each device while all of them send
    latency: float  # seconds of a message without content


# Shares of what data sheets say that programs get, fitted to published runs: utils/costs/published.py. The first is for
# devices that none was fitted for, whose files say nothing better: the mean of an A100 and an H100.

DEVICE_SHARE, MEMORY_SHARE, LINK_SHARE = 0.71, 0.728, 0.675
# Of the peak, for attention with a kernel for the chip, and with FlashAttention-2, where a file says nothing better.
ATTENTION, FLASH2 = 0.6, 0.35


class Reached(NamedTuple):
    """More such shares, fitted in the same way, that are the same on all machines."""

    fp8: float = 1.106  # of the speed in 8 bits that follows from the machine's share in 16
    attention: float = 0.836  # of a benchmark's speed of attention, that is left in a long run
    hidden: float = 0.537  # of tensor-parallel messages in pieces, that products hide
    ring: float = 0.798  # of attention's speed, in pieces whose results are merged
    experts: float = 0.485  # of the speed of products, where each expert has a few rows
    launch: float = (
        0.0094  # seconds in which a processor starts the kernels of a block of experts, forward and backward
    )


@dataclass(frozen=True)
class Machine:
    """Figures of the data sheets, and the fraction of them that programs reach."""

    name: str
    peak: float  # FLOPs a second of a device, in the precision of the products
    memory: float  # bytes of a device
    memory_bandwidth: float  # bytes a second
    node: int  # devices in a node
    inside: Link  # between devices of a node
    between: Link  # between nodes
    device_share: float = DEVICE_SHARE  # of peak, that large products reach in a long run
    link_share: float = LINK_SHARE  # of the links' bandwidths
    memory_share: float = MEMORY_SHARE  # of memory_bandwidth
    peak_fp8: float = 0.0  # FLOPs a second in 8 bits; 0: it has none
    attention: float = ATTENTION  # of peak, that attention's kernel for this chip reaches in benchmarks
    flash2: float = FLASH2  # that FlashAttention-2 reaches
    reached: Reached = Reached()
    power: float = 0.0  # watts of a device, with its part of a node's; 0: not known
    chip: str = ""  # the kind of device, by which published runs are found

"""What a plan is about: a model, a machine, and a way to spread the one over the other.

Descriptions only, no formula: what a plan costs is computed in `utils/costs.py`. Sizes are numbers of parameters, tokens
or layers; memory is in bytes, time in seconds, speed in FLOPs or bytes a second.
"""

from dataclasses import dataclass
from typing import NamedTuple


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


class Precision(NamedTuple):
    """Bytes of one number of each kind."""

    weight: int  # as a rank keeps it
    gradient: int
    state: int  # the optimizer's, of one parameter: AdamW's two moments, and a master weight if there is one
    activation: int
    gathered: int  # of a weight that FSDP brings together
    reduced: int  # of a gradient on its way


PRECISIONS = {
    "float32": Precision(4, 4, 8, 4, 4, 4),
    # 03_zero: bfloat16 weights, float32 masters; gradients are summed in float32.
    "mixed": Precision(2, 2, 12, 2, 2, 4),
    # fsdp_training --dtype bfloat16: float32 shards, gathered in bfloat16.
    "sharded": Precision(4, 4, 8, 2, 2, 4),
    # Megatron-LM (arXiv:2104.04473): 16 bits, gradients are summed in them, too.
    "megatron": Precision(2, 2, 12, 2, 2, 2),
}

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


@dataclass(frozen=True)
class Plan:
    """How a model is trained on `world` = dp · shard · tp · pp · cp ranks.

    The ranks of an axis are neighbours in this order: tp, cp, shard, dp, pp. So tensor parallel has the fastest links,
    and only a pipeline's messages, the smallest, go the farthest.
    """

    batch: int  # sequences in a step, over all ranks
    micro_batch: int = 1  # sequences that go through a model (or a pipeline) at a time
    dp: int = 1  # replicas
    shard: int = 1  # ranks that divide each replica's state among them, as FSDP and ZeRO do; each has data of its own
    tp: int = 1  # tensor parallel
    pp: int = 1  # stages of a pipeline, by ranks
    cp: int = 1  # ranks that divide a sequence
    ep: int = 1  # ranks that divide the experts; they are taken from shard and dp
    zero: int = 3  # what `shard` divides: 1 the optimizer's state, 2 gradients too, 3 weights too
    reshard: bool = True  # in stage 3: throw a block's weights away after its forward pass, and gather them again
    schedule: str = "1f1b"  # of the pipeline, one of SCHEDULES
    chunks: int = 1  # v, stages on each rank; only "interleaved" has several
    context: str = "ring"  # how cp attends: "ring" or "ulysses"
    sequence_parallel: str = "keep"  # between the tensor-parallel parts: "off", "keep" what is gathered, or "regather"
    scatter: bool = False  # each tensor-parallel rank sends only its part of what goes to the next stage
    recompute: str = "none"  # in the backward pass: "none", "selective" (attention's scores), "full" (each block)
    fused_attention: bool = True  # scores never reach the memory (FlashAttention; torch's scaled_dot_product_attention)
    whole_logits: bool = False  # all words' scores of a micro-batch at once; the course's loss makes them in pieces
    dropout: bool = False  # masks are kept, one byte a number
    overlap: bool = True  # of data-parallel messages with the computation
    precision: str = "mixed"  # one of PRECISIONS

    @property
    def world(self) -> int:
        return self.dp * self.shard * self.tp * self.pp * self.cp

    @property
    def replicas(self) -> int:
        """Parts in which a batch is divided."""
        return self.dp * self.shard

    @property
    def micro_batches(self) -> int:
        """m: how many micro-batches each of those parts has."""
        return self.batch // (self.replicas * self.micro_batch)

    @property
    def bytes(self) -> Precision:
        return PRECISIONS[self.precision]


class Link(NamedTuple):
    """Between two devices: `bandwidth` in bytes a second, one way, for each device while all send; `latency` of a message."""

    bandwidth: float
    latency: float


@dataclass(frozen=True)
class Machine:
    """What the data sheets say, and which share of it programs get."""

    name: str
    peak: float  # FLOPs a second of a device, in the precision of the products
    memory: float  # bytes of a device
    memory_bandwidth: float  # bytes a second
    node: int  # devices in a node
    inside: Link  # between devices of a node
    between: Link  # between nodes
    device_share: float = 1.0  # of peak and memory_bandwidth, that programs reach
    link_share: float = 1.0  # of the links' bandwidths

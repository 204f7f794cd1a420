"""What a plan is about: a model, a machine, and a way to spread the one over the other.

Descriptions only, no formula: what a plan costs is computed in `utils/costs.py`. Sizes are numbers of parameters, of
tokens or of layers; memory is in bytes, time in seconds, speed in FLOPs or bytes a second.
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
    # Megatron-LM (arXiv:2205.05198, figure 1): 18 bytes, with float32 gradients; they are sent in 16 bits.
    "megatron": Precision(2, 4, 12, 2, 2, 2),
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
    fsdp: bool = False  # torch's FSDP holds whole copies of what it shares out, also where shard is 1
    reshard: str = "blocks"  # whose gathered weights stage 3 frees between the passes: "none", "blocks" or "all"
    schedule: str = "1f1b"  # of the pipeline, one of SCHEDULES
    chunks: int = 1  # v, stages on each rank; only "interleaved" has several
    context: str = "ring"  # how cp attends: "ring" or "ulysses"
    sequence_parallel: str = "keep"  # between the tensor-parallel parts: "off", "keep" what is gathered, or "regather"
    scatter: bool = False  # each tensor-parallel rank sends only its part of what goes to the next stage
    recompute: str = "none"  # in the backward pass: "none", "selective" (attention's scores), "full" (each block)
    early_stop: bool = True  # computing again ends when all is there that the backward pass needs, as torch's does
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
    def shares(self) -> bool:
        """Whether gradients, and for stage 3 weights, are whole only for a while."""
        return self.zero > 1 and (self.shard > 1 or self.fsdp)

    @property
    def micro_batches(self) -> int:
        """m: how many micro-batches each of those parts has."""
        return self.batch // (self.replicas * self.micro_batch)

    @property
    def bytes(self) -> Precision:
        return PRECISIONS[self.precision]


class Link(NamedTuple):
    """Between two devices."""

    bandwidth: float  # bytes a second, one way, for each device while all of them send
    latency: float  # seconds of a message without content


# Fitted to table 1 of arXiv:2104.04473, ten models on 32 to 3,072 A100s, so that the largest error is least. Nothing
# else is fitted. How far off they are in other tables: tests/test_costs.py.
DEVICE_SHARE, LINK_SHARE = 0.76, 0.70


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
    device_share: float = DEVICE_SHARE  # of peak and memory_bandwidth, that programs reach
    link_share: float = LINK_SHARE  # of the links' bandwidths


MODELS = {
    "1b": Model(2048, 24, 16, vocabulary=32_000, sequence=2048),
    "7b": Model(4096, 32, 32, vocabulary=32_000, sequence=2048),
    "13b": Model(5120, 40, 40, vocabulary=32_000, sequence=2048),
    "70b": Model(8192, 80, 64, vocabulary=32_000, sequence=2048),
    "175b": Model(12288, 96, 96, vocabulary=51_200, sequence=2048),
}

# An A100 makes 312 TFLOP/s in bfloat16; 300 GB/s leave it by NVLink, one way. An HDR InfiniBand or Slingshot 11 adapter
# sends 25 GB/s. A message between two GPUs of a node takes some 3 µs, between nodes 8 µs.
A100 = {"peak": 312e12, "inside": Link(300e9, 3e-6)}
JURECA = Machine(  # JURECA-DC, https://apps.fz-juelich.de/jsc/hps/jureca/configuration.html: two HDR adapters a node
    "JURECA-DC", memory=40 * 2**30, memory_bandwidth=1.555e12, node=4, between=Link(12.5e9, 8e-6), **A100
)
POLARIS = Machine(  # https://docs.alcf.anl.gov/polaris/hardware-overview/machine-overview: two Slingshot 11 adapters
    "Polaris", memory=40 * 2**30, memory_bandwidth=1.555e12, node=4, between=Link(12.5e9, 8e-6), **A100
)
SELENE = Machine(  # arXiv:2104.04473, section 5: an HDR adapter for each of eight GPUs
    "Selene", memory=80 * 2**30, memory_bandwidth=2.039e12, node=8, between=Link(25e9, 8e-6), **A100
)
MACHINES = {"jureca": JURECA, "polaris": POLARIS, "selene": SELENE}

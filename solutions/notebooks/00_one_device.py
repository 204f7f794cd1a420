# %% [markdown]
# # One device: why parallel, and how much
#
# This course makes the training of a language model parallel. Before that, you should know how much there is to gain.
# In this lesson you train the course's model on one device, find out where its time and its memory go, and then work
# out when more devices help, and how much.
#
# The course assumes that (1) you write Python and use a terminal; (2) you have trained a network with PyTorch; (3) you
# know what a matrix product and a derivative are. **Test yourself**: why does a training loop call `zero_grad`? What is
# the shape of the product of a 3 × 4 and a 4 × 5 matrix? What does `loss.backward()` write, and where? The answers are
# at the end of part 1. If you miss two of them, do [PyTorch's
# introduction](https://docs.pytorch.org/tutorials/beginner/basics/intro.html) first.
#
# On a short track (`./workbook status --track half`, `day` or `two`), skip the TODOs that it does not list, here and in
# every other notebook. Then run cell by cell: *Run All* stops at the first TODO that is not done.

# %% [markdown]
# # Part 1: one device

# %% nbgrader={"grade": false, "grade_id": "setup", "locked": true, "schema_version": 3, "solution": false, "task": false}
import sys
from pathlib import Path

here = Path.cwd().resolve()
course = next(folder for folder in (here, *here.parents) if (folder / "grader").is_dir())
sys.path.insert(0, str(course))

from grader import check

# %%
import math
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from utils.plots import one_device
from utils.model import TransformerLM

# %% [markdown]
# ## The model, and its data
#
# A **language model** reads words and gives every word of its vocabulary a probability of being the next one.
#
# ![Text goes in, the model gives each word that could follow a probability: mat 0.41, floor 0.22, sofa 0.13](../images/black_box.svg)
#
# Ours is a small GPT ([`utils/model.py`](../utils/model.py)), a Transformer
# ([arXiv:1706.03762](https://arxiv.org/abs/1706.03762)):
#
# - a table (the *embedding*) turns each word, called a **token**, into $h$ numbers;
# - $L$ *blocks* follow. In each, *attention* mixes a token with those before it, and an *MLP* (two matrix products)
#   works on each token alone;
# - the *head* turns the last $h$ numbers into one score for each of the $V$ words, the **logits**.
#
# The data is WikiText-2 ([arXiv:1609.07843](https://arxiv.org/abs/1609.07843)): two million words of Wikipedia's best
# articles, with a vocabulary of 33,278. Without it, the scripts use the English text that comes with every Python:
# 57,703 words, with a vocabulary of 6,604. The text is cut into sequences of $s$ tokens. In each, every token is
# predicted from those before it.
#
# The **loss** is the mean of $-\ln p$ over all predicted tokens, where $p$ is the probability that the model gave the
# right word. It is measured in *nats*. Its **perplexity** is $e^\text{loss}$: a model that hesitates between $k$
# equally likely words has perplexity $k$.
#
# ![A sure model has perplexity 1.6, one that hesitates between four words 4, an untrained one V](../images/one_device_perplexity.svg)
#
# A data set is evaluated batch by batch, and the last batch is often shorter.


# %% nbgrader={"grade": false, "grade_id": "todo_1", "locked": false, "schema_version": 3, "solution": true, "task": false}
def perplexity(losses: list[float], tokens: list[int]) -> float:
    """The perplexity of a data set, from the mean loss of each batch (in nats),
    and how many tokens each batch has.
    """
    # TODO 1: Tell how good a language model is. First the perplexity over all tokens; each token counts
    # once.
    ### BEGIN SOLUTION
    total = sum(loss * count for loss, count in zip(losses, tokens, strict=True))
    return math.exp(total / sum(tokens))
    ### END SOLUTION


def untrained_loss(vocabulary: int) -> float:
    """The loss of a model that gives each word the same probability."""
    # TODO 1, again: your prediction of the loss before the first step.
    ### BEGIN SOLUTION
    return math.log(vocabulary)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_1", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/1")

# %% [markdown]
# Now train it, for about two minutes on a laptop: four passes over Python's text. What loss do you expect at the start,
# and what perplexity at the end? (Each line prints the mean loss of the last ten steps, so the first one is already
# below your prediction. `--record` writes down where the time goes, for `./workbook report runs/one_device`.)

# %% nbgrader={"grade": false, "grade_id": "show_training", "locked": true, "schema_version": 3, "solution": false, "task": false}
script, flags = f"{course}/train/single_gpu_training.py", "--data builtin --epochs 4 --record"
# !{sys.executable} {script} {flags} --out {course}/runs/one_device 2>&1 | cat

# %% nbgrader={"grade": false, "grade_id": "show_text", "locked": true, "schema_version": 3, "solution": false, "task": false}
from utils.checkpoints import load_model
from utils.data import load_corpus
from utils.generate import continued

corpus = load_corpus("builtin")
print(f"untrained, a loss of {untrained_loss(len(corpus.vocab)):.2f} is expected")
for name, model in {
    "untrained": TransformerLM(len(corpus.vocab)),
    "after two minutes": load_model(course / "runs" / "one_device" / "model-final.pt"),
}.items():
    print(f"\n{name}: {continued(model, corpus.vocab, 'The value of', 40)}")

# %% [markdown]
# After two epochs of WikiText-2 (recorded: 57 minutes with one thread on a busy machine, test perplexity 151) it wrote:
#
# > *The value of* his " . He felt himself dominated the foundation as life and instrument transfer that " \<unk\> ,
# > gives that Dylan and Elijah @-@ Long " . Nesbitt writer Stephen Bain won the eldest of the serial , and The
#
# Grammar and topics appear, but no sense: that takes a larger model and more text, and therefore more than one device.

# %% [markdown]
# ## A step has four phases
#
# | phase | what happens |
# |---|---|
# | **data** | the next batch is read and copied to the device |
# | **forward** | the loss is computed; what the backward pass will need is kept |
# | **backward** | the gradient of each parameter is computed, from the last layer to the first |
# | **optimizer** | the parameters are changed. AdamW keeps two more numbers for each, its *state* |
#
# A `clock` is called where one phase ends and the next begins. (On a GPU, calls return before their work is done; a
# `clock` then has to wait for the device, with `torch.cuda.synchronize()`. Timing without that is a classic mistake.)


# %% nbgrader={"grade": false, "grade_id": "todo_2", "locked": false, "schema_version": 3, "solution": true, "task": false}
def timed_step(
    batches: Iterator[tuple[Tensor, Tensor]],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clock: Callable[[], float],
) -> tuple[float, dict[str, float]]:
    """One training step. Returns its loss as a number, and the seconds of "data", "forward", "backward",
    "optimizer".

    ``next(batches)`` gives x and y, ``model(x, y)`` the loss, ``clock()`` the seconds on a clock.
    """
    # TODO 2: Train one step, and time its phases. The previous step's gradients must not count. A loss
    # that is a tensor would keep all of this step's memory alive: return it as a number.
    ### BEGIN SOLUTION
    times = [clock()]
    x, y = next(batches)
    times.append(clock())
    loss = model(x, y)
    times.append(clock())
    optimizer.zero_grad()
    loss.backward()
    times.append(clock())
    optimizer.step()
    times.append(clock())
    seconds = [after - before for before, after in zip(times, times[1:])]
    return loss.item(), dict(zip(("data", "forward", "backward", "optimizer"), seconds, strict=True))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_2", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/2")

# %% [markdown]
# ## How many operations a token takes
#
# A **FLOP** is one addition or multiplication of floating-point numbers. A product of an $m \times k$ and a $k \times
# n$ matrix takes $2mkn$. Almost all of a Transformer's work is in such products: a weight takes 2 FLOPs a token in the
# forward pass, and 4 in the backward pass, which needs two products, one for the gradient of the weights and one for
# the gradient of the input. So forward : backward is 1 : 2, and $N$ weights take **$6N$ FLOPs a token**; training on
# $D$ tokens takes $6ND$.
#
# In our model, a block multiplies by four $h \times h$ matrices (attention), one of $h \times 4h$ and one of $4h \times
# h$ (MLP). Attention's scores take $4hs$ FLOPs more in the forward pass of each block, and twice that in the backward
# pass ([arXiv:2204.02311](https://arxiv.org/abs/2204.02311), appendix B). The head multiplies by $h \times V$. The
# embedding is only a look-up.
#
# One thing is special: our head is *fused* with the loss ([`utils/loss.py`](../utils/loss.py)). The logits of all
# tokens would be the largest tensor by far, so they are made piece by piece, and each piece is turned into gradients at
# once. All three products of the head thus are in the **forward** pass.
#
# A device's **peak** is the FLOPs a second on its data sheet. The fraction of it that goes into these FLOPs is the
# **model FLOPs utilization**, MFU. **Predict**: what happens to the ratio 1 : 2?


# %% nbgrader={"grade": false, "grade_id": "todo_3", "locked": false, "schema_version": 3, "solution": true, "task": false}
def token_flops(dim: int, layers: int, vocabulary: int, seq_len: int) -> tuple[float, float]:
    """FLOPs of a token in the forward pass and in the backward pass of the course's model,
    with its fused head.
    """
    # TODO 3: Count the FLOPs of a step. First, for one token, separately for the two passes.
    ### BEGIN SOLUTION
    blocks = layers * (2 * 12 * dim**2 + 4 * dim * seq_len)
    head = 6 * vocabulary * dim
    return blocks + head, 2 * blocks
    ### END SOLUTION


def utilization(tokens_per_s: float, flops_per_token: float, peak: float) -> float:
    """The MFU of a run at this many tokens a second, on a device with this peak (FLOPs a second)."""
    # TODO 3, again: the fraction of the peak.
    ### BEGIN SOLUTION
    return tokens_per_s * flops_per_token / peak
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_3", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/3")

# %% [markdown]
# ![The four phases of a step, according to the rule and with the course's head](../images/one_device_phases.svg)
#
# Now compare prediction and measurement, for the laptop's size and for one in which the blocks weigh more than the
# head. The cell uses one core, to be quick; the peak is the speed of a large product, measured here.

# %% nbgrader={"grade": false, "grade_id": "show_phases", "locked": true, "schema_version": 3, "solution": false, "task": false}
from utils.this_machine import measure

torch.set_num_threads(1)
machine = measure(torch.device("cpu"))
shown = {}
for name, (dim, layers, vocabulary) in {
    "laptop": (128, 2, 33_278),
    "few words": (256, 4, 1_000),
}.items():
    model = TransformerLM(vocabulary, dim, n_layers=layers, max_len=64)
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randint(vocabulary, (2, 12, 64)).unbind()
    steps = [timed_step(iter([batch]), model, optimizer, time.perf_counter)[1] for _ in range(5)][2:]
    seconds = {phase: sorted(step[phase] for step in steps)[1] for phase in steps[0]}
    flops = token_flops(dim, layers, vocabulary, 64)
    mfu = utilization(12 * 64 / sum(seconds.values()), sum(flops), machine.peak)
    shown[f"{name}: forward : backward is 1 : {flops[1] / flops[0]:.2f} by FLOPs, MFU {mfu:.0%}"] = (
        seconds,
        flops,
    )
one_device.phases(shown)

# %% [markdown]
# At the laptop's size the head has 94 % of the FLOPs, so the forward pass takes longer than the backward pass. In large
# models it is nearly 1 : 2, since blocks grow with $h^2$ and the vocabulary does not. The backward pass and the
# optimizer take longer than their FLOPs suggest: they wait for the memory, the next topic.

# %% [markdown]
# ## How fast a product can be
#
# A device computes only as fast as numbers arrive from its memory. A product's **arithmetic intensity** is its FLOPs
# per byte moved, if each of the three matrices is read or written once. The attainable speed is at most intensity ·
# bandwidth, and at most the peak. Plotted against the intensity, that is the **roofline** ([Williams et al.
# 2009](https://doi.org/10.1145/1498765.1498785)): a slope, then a flat roof.
#
# A layer multiplies $m$ tokens of $k$ numbers each by a $k \times n$ matrix. With few tokens, it mostly reads weights.
# That is why tokens are processed in batches. **Predict** how many tokens it takes to reach the roof.


# %% nbgrader={"grade": false, "grade_id": "todo_4", "locked": false, "schema_version": 3, "solution": true, "task": false}
def product_intensity(m: int, k: int, n: int, itemsize: int) -> float:
    """FLOPs per byte of a product of m × k by k × n, whose numbers have ``itemsize`` bytes."""
    # TODO 4: Find what limits a product: the processor or the memory. First, FLOPs per byte moved.
    ### BEGIN SOLUTION
    return 2 * m * k * n / (itemsize * (m * k + k * n + m * n))
    ### END SOLUTION


def attainable_speed(flops_per_byte: float, peak: float, bandwidth: float) -> float:
    """FLOPs a second at this intensity, on a device with this peak and memory bandwidth (bytes a
    second).
    """
    # TODO 4, again: the roofline.
    ### BEGIN SOLUTION
    return min(peak, flops_per_byte * bandwidth)
    ### END SOLUTION


def fewest_tokens(k: int, n: int, itemsize: int, peak: float, bandwidth: float) -> float:
    """Tokens m, not rounded, at which the product of m × k by k × n reaches the roof;
    math.inf if it never does.
    """
    # TODO 4, again: your prediction. Set the intensity to the value at the roof's edge, and solve for m.
    ### BEGIN SOLUTION
    edge = itemsize * peak / bandwidth  # FLOPs per number moved
    per_token = 2 * k * n - edge * (k + n)
    return edge * k * n / per_token if per_token > 0 else math.inf
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_4", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/4")

# %% nbgrader={"grade": false, "grade_id": "show_roofline", "locked": true, "schema_version": 3, "solution": false, "task": false}
for h in (128, 768, 4096, 12288):  # an A100's data sheet: 312 TFLOP/s in bfloat16, 1.555 TB/s
    fewest = fewest_tokens(h, 4 * h, 2, 312e12, 1.555e12)
    print(
        f"A100, MLP of {h:6,}: "
        + (f"at {fewest:,.0f} tokens or more" if math.isfinite(fewest) else "never")
    )
tokens = [1, 4, 16, 64, 256, 1024]
speeds = [one_device.product_speed(m, 1024, 4096) for m in tokens]
intensities = [product_intensity(m, 1024, 4096, 4) for m in tokens]
one_device.roofline(
    tokens,
    intensities,
    speeds,
    lambda value: attainable_speed(value, machine.peak, machine.memory_bandwidth),
)

# %% [markdown]
# On a busy machine the dots scatter, since each is a short measurement. A dot above the line means that the weights
# were still in a cache. The slope and the roof should be visible; if not, run the cell again.
#
# This is a first answer to **why training suits supercomputers**: its work consists of large products, whose sizes are
# known in advance and do not depend on the data. Few programs come as close to the peak.

# %% [markdown]
# ## What a step holds in memory
#
# Four kinds of numbers, 4 bytes each in float32:
#
# - **weights**, and one **gradient** for each; AdamW's **state** has two numbers for each weight, and stays;
# - **activations**: what the forward pass keeps for the backward pass. Each is freed after its use.
#
# A block of our model keeps $16h$ numbers for each token: its input and the sum after attention (2h), both after their norms (2h);
# queries, keys, values and attention's result (4h); the MLP's hidden numbers before and after GELU (8h). Attention's
# scores are never stored ([arXiv:2205.14135](https://arxiv.org/abs/2205.14135)). Beyond the blocks, the last norm keeps
# its input, $h$ for each token. The fused head keeps gradients: $h$ numbers for each token, and $Vh$ for its weight.
#
# **Predict** what is kept at the end of the forward pass, and then how many sequences fit on a device. For a safe
# estimate, assume that everything exists at the same time: weights, gradients, state, and the activations of each
# sequence.


# %% nbgrader={"grade": false, "grade_id": "todo_5", "locked": false, "schema_version": 3, "solution": true, "task": false}
def state_bytes(parameters: int) -> tuple[int, int, int]:
    """Bytes of weights, of gradients and of AdamW's state, in float32."""
    # TODO 5: Predict what a step holds in memory. First, what the size of the model alone decides.
    ### BEGIN SOLUTION
    return 4 * parameters, 4 * parameters, 8 * parameters
    ### END SOLUTION


def kept_bytes(dim: int, layers: int, vocabulary: int, tokens: int) -> int:
    """Bytes that blocks, last norm and head keep, in float32,
    after a forward pass over this many tokens.
    """
    # TODO 5, again: for each token, and for the head.
    ### BEGIN SOLUTION
    return 4 * (tokens * dim * (16 * layers + 2) + vocabulary * dim)
    ### END SOLUTION


def most_sequences(memory: float, parameters: int, sequence_bytes: float) -> int:
    """How many sequences fit into ``memory`` bytes together with a model, if each keeps
    ``sequence_bytes``. It may be zero.
    """
    # TODO 5, again: does it fit?
    ### BEGIN SOLUTION
    return max(0, int((memory - sum(state_bytes(parameters))) // sequence_bytes))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_5", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/5")

# %% nbgrader={"grade": false, "grade_id": "show_memory", "locked": true, "schema_version": 3, "solution": false, "task": false}
model = TransformerLM(33_278, 128, n_layers=2, max_len=64)
weights, gradients, state = state_bytes(sum(p.numel() for p in model.parameters()))
kept = kept_bytes(128, 2, 33_278, 24 * 64)
predicted = {
    "after forward": (weights, 0, state, kept),
    "after backward": (weights, gradients, state, 0),
    "after the step": (weights, gradients, state, 0),
}
one_device.memory(one_device.moments(model, 24, 64), predicted)

# %% [markdown]
# The prediction is within 0.1 %: the norms and attention keep a few more numbers. On a GPU, add about 10 % for the
# libraries.
#
# Answers to the test at the start: without `zero_grad`, new gradients are added to the old ones; 3 × 5; the gradient of
# each parameter, into its `.grad`.
#
# > **A place to stop.** You know what one device does in a step, what limits it and what it holds. Part 2 needs
# > only the formulas of this part.

# %% [markdown]
# # Part 2: why many

# %% [markdown]
# ## Models outgrow devices
#
# ![Parameters of published models from 2018 to 2026, and how many parameters one GPU of each year can train](../images/one_device_growth.svg)
#
# Training needs 16 bytes for each parameter, before any activation. Work grows with parameters *and* data: $6ND$.
# **Predict** both for a model that you would like to have, and how long models and devices each take to double.


# %% nbgrader={"grade": false, "grade_id": "todo_6", "locked": false, "schema_version": 3, "solution": true, "task": false}
def device_days(parameters: float, tokens: float, peak: float, mfu: float) -> float:
    """Days that one device with this peak (FLOPs a second) takes to train on this many tokens,
    at this utilization.
    """
    # TODO 6: Find out what a model needs: time on one device, devices to hold it, and how fast such
    # needs grow. First, the days.
    ### BEGIN SOLUTION
    return 6 * parameters * tokens / (peak * mfu) / 86_400
    ### END SOLUTION


def fewest_devices(parameters: float, memory: float) -> int:
    """How many devices of ``memory`` bytes hold weights, gradients and state,
    if these can be divided evenly.
    """
    # TODO 6, again: the number of devices, without activations.
    ### BEGIN SOLUTION
    return math.ceil(16 * parameters / memory)
    ### END SOLUTION


def doubling_years(first: float, last: float, years: float) -> float:
    """The doubling time, in years, of a size that grew at a constant rate from ``first`` to ``last`` in
    ``years``.
    """
    # TODO 6, again: the pace.
    ### BEGIN SOLUTION
    return years * math.log(2) / math.log(last / first)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_6", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/6")

# %% nbgrader={"grade": false, "grade_id": "show_growth", "locked": true, "schema_version": 3, "solution": false, "task": false}
for name, parameters, tokens in (
    ("--size gpu", 136e6, 4e6),  # the scripts' model for GPUs, WikiText-2 twice
    ("GPT-3", 175e9, 300e9),
    ("Llama 3.1", 405e9, 15.6e12),
):
    days = device_days(parameters, tokens, 312e12, 0.4)
    took = f"{days:,.0f} days" if days >= 1 else f"{86_400 * days:,.0f} seconds"
    print(f"{name:10}{took:>16} on one A100, {fewest_devices(parameters, 40e9):4} of 40 GB to hold it")
models, memories = doubling_years(117e6, 1.6e12, 7.9), doubling_years(16, 288, 9.1)
print(
    f"GPT (2018.4) to DeepSeek-V4 (2026.3): doubles in {models:.1f} years; "
    f"V100 (16 GB, 2017.5) to Rubin (288 GB, 2026.6): in {memories:.1f}"
)

# %% [markdown]
# ## Where the parallelism is
#
# The work of one step can be divided in four ways, and the course takes them one after the other: the **samples** of a
# batch (*data parallel*, lessons 01 to 03), the numbers **inside a layer** (*tensor parallel*, 04), the **layers**
# (*pipeline*, 05), and the **tokens** of a sequence (06). Steps themselves must wait for each other: each begins with
# the weights that the last one made.
#
# Devices that divide work must **communicate**, for example to add up their gradients. That is the price: it takes
# time, and the program becomes more complex.

# %% [markdown]
# ## Strong and weak scaling
#
# - **Strong scaling**: the *same* global batch on $n$ devices. Each has less to do. The **speed-up** is $T_1/T_n$.
# - **Weak scaling**: the same batch *for each device*, so the global batch grows. The work done in $T_n$ is $n$ times
#   as much; the (scaled) speed-up is $n T_1/T_n$.
#
# $T_n$ is the time of a step on $n$ devices. In both, **efficiency** is the speed-up divided by $n$. When you compare
# speeds, say which of the two you mean.
#
# Suppose that a fraction $f$ of one device's time does not get faster at all. With strong scaling, only the rest is
# divided, so the speed-up stays below $1/f$: **Amdahl's law**
# ([1967](https://doi.org/10.1145/1465482.1465560)). With weak scaling, $f$ is a fraction of the time *on $n$ devices*:
# the part that does not grow with the batch. For the same work, one device alone would take $f + n(1-f)$ times as long:
# **Gustafson's law** ([1988](https://doi.org/10.1145/42411.42415)).
#
# ![The speed-up according to Amdahl and Gustafson, for fractions of 0, 2, 5 and 10 %](../images/one_device_scaling.svg)


# %% nbgrader={"grade": false, "grade_id": "todo_7", "locked": false, "schema_version": 3, "solution": true, "task": false}
def step_efficiency(seconds: dict[int, float], scaling: str) -> dict[int, float]:
    """The efficiency for each number of devices, from the seconds that a step takes. ``scaling`` is
    "strong" or "weak".

    One device is always among them, with efficiency 1.
    """
    # TODO 7: Judge how a run scales, strong or weak. First, from measurements.
    ### BEGIN SOLUTION
    return {n: seconds[1] / took / (n if scaling == "strong" else 1) for n, took in seconds.items()}
    ### END SOLUTION


def amdahl(share: float, devices: int) -> float:
    """The speed-up with strong scaling if this fraction of one device's time does not get faster."""
    # TODO 7, again: Amdahl's law.
    ### BEGIN SOLUTION
    return 1 / (share + (1 - share) / devices)
    ### END SOLUTION


def gustafson(share: float, devices: int) -> float:
    """The speed-up with weak scaling if this fraction of a step on that many devices does not grow with
    the work.
    """
    # TODO 7, again: Gustafson's law.
    ### BEGIN SOLUTION
    return share + devices * (1 - share)
    ### END SOLUTION


def fixed_share(speed_up: float, devices: int) -> float:
    """Amdahl's fraction, from a measured speed-up on several devices.
    It is negative if the speed-up exceeds their number.
    """
    # TODO 7, again: the other way round.
    ### BEGIN SOLUTION
    return (devices / speed_up - 1) / (devices - 1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_7", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/7")

# %% [markdown]
# You will measure both with `ddp_training`. `./workbook run` writes a table of results, `runs/results.md`, for you to
# complete:
#
# ```bash
# ./workbook run ddp_training --nproc 1,2 -- --batch-size 24             # strong
# ./workbook run ddp_training --nproc 1,2 -- --batch-size-per-rank 24    # weak
# ```
#
# [docs/scaling.md](../docs/scaling.md) has such runs, measured here and calculated for JURECA.
#
# The default size, `--size laptop`, is too small for GPUs: four of them would mostly wait. Batch files use `--size
# gpu`.

# %% [markdown]
# ## When to go parallel, and when not
#
# 1. **It does not fit**: not even one sequence. (If only the *batch* is too large, one device takes it in parts and
#    adds up gradients: *accumulation*.) Then the model must be divided among devices: lessons 03 to 05.
# 2. **It fits, and takes too long**: copies of the model divide the batch. Data parallelism is the simplest way: try it
#    first.
# 3. **It fits, and is fast enough**: stay on one device. If the MFU is low, raise it first: that is cheaper than more
#    GPUs. Many small runs (a search for hyperparameters) are best done side by side, one on each device.


# %% nbgrader={"grade": false, "grade_id": "todo_8", "locked": false, "schema_version": 3, "solution": true, "task": false}
def decide(
    parameters: int, sequence_bytes: float, memory: float, days: float, deadline: float
) -> tuple[str, int]:
    """How to train, and on at least how many devices, if they scaled perfectly.

    Args:
        sequence_bytes: what one sequence keeps; it is not divided. memory: bytes of a device.
        days: what one device would take, if the model fitted. deadline: days that you have.

    Returns:
        "one device", "data parallel" or "divide the model", and the number of devices.
    """
    # TODO 8: Decide whether to go parallel. Where the model is divided, each device holds an equal part
    # of weights, gradients and state, and its own sequence; the deadline counts there, too.
    ### BEGIN SOLUTION
    for_time = math.ceil(days / deadline)
    if most_sequences(memory, parameters, sequence_bytes) >= 1:
        return ("one device" if for_time <= 1 else "data parallel"), max(1, for_time)
    to_hold = math.ceil(sum(state_bytes(parameters)) / (memory - sequence_bytes))
    return "divide the model", max(for_time, to_hold)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "test_8", "locked": true, "points": 1, "schema_version": 3, "solution": false, "task": false}
check("00_one_device/8")

# %% [markdown]
# ## Recap
#
# 1. A step reads data, computes the loss and then the gradients, and changes the weights. Forward to backward is 1 : 2
#    in FLOPs, unless the head does both at once.
# 2. Training takes $6ND$ FLOPs; MFU is the fraction of the peak that goes into them. Large products come near the peak,
#    thin ones wait for the memory.
# 3. A step holds 16 bytes for each parameter in float32 with AdamW, and activations for each token.
# 4. Strong scaling divides a batch, weak scaling enlarges it. What does not get faster limits strong scaling by $1/f$.
# 5. Go parallel if the model does not fit or takes too long; first use one device well.
#
# Further reading: scaling laws of models ([arXiv:2001.08361](https://arxiv.org/abs/2001.08361),
# [arXiv:2203.15556](https://arxiv.org/abs/2203.15556)), activations
# ([arXiv:2205.05198](https://arxiv.org/abs/2205.05198)), the batch that is still useful
# ([arXiv:1812.06162](https://arxiv.org/abs/1812.06162)).
#
# Next: [`train/single_gpu_training.py`](../train/single_gpu_training.py) is what you trained with. Start reading at
# `main`; in lesson 01, several processes communicate.

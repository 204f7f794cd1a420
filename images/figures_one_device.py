"""The figures of 00_one_device."""

from ink import BLUE, DARK, GREEN, GREY, INK, ORANGE, PALE, RED, canvas, cell, write
from matplotlib.figure import Figure


def one_device_perplexity() -> Figure:
    """Three models' probabilities of the next word: a sure one, one that hesitates between four, an untrained one."""
    figure, axes = canvas(9)
    write(axes, 9, 8.3, "the next word after “the cat sat on the …”", 11)
    for number, (name, heights, told) in enumerate(
        (
            ("sure", (0.9, 0.03, 0.02, 0.02, 0.02, 0.01), "perplexity 1.6"),
            ("hesitates", (0.25, 0.25, 0.25, 0.25, 0.0, 0.0), "perplexity 4"),
            ("untrained", (1 / 6,) * 6, "perplexity V (here 6)"),
        )
    ):
        left = 0.7 + 5.9 * number
        axes.plot([left, left + 4.8], [2.6, 2.6], color=GREY, linewidth=1)
        for word, height in enumerate(heights):
            cell(axes, left + 0.8 * word, 2.6, 0.8, 4.6 * height, [BLUE if height > 0.1 else PALE])
        write(axes, left + 2.4, 1.7, name, 11, weight="bold")
        write(axes, left + 2.4, 0.7, told, 10)
    return figure


def one_device_phases() -> Figure:
    """A step's phases: by the rule 1 : 2, and with a head that makes its gradients in the forward pass."""
    figure, axes = canvas(9.6)
    rows = (
        (
            "by the rule 1 : 2",
            (("data", 0.5, PALE), ("forward", 4, BLUE), ("backward", 8, GREEN), ("optimizer", 2.5, ORANGE)),
        ),
        (
            "the course's head, laptop size",
            (("data", 0.5, PALE), ("forward", 11.2, BLUE), ("b.", 0.8, GREEN), ("optimizer", 2.5, ORANGE)),
        ),
    )
    for number, (title, parts) in enumerate(rows):
        y, x = 5.6 - 4.3 * number, 1.2
        write(axes, x, y + 2.5, title, 11, ha="left", weight="bold")
        for name, width, colour in parts:
            cell(axes, x, y, width, 1.8, [colour], "" if name == "data" else name)
            x += width
        write(axes, 1.45, y - 0.5, "data", 10, color=GREY)
    write(axes, 16.8, 0.35, "time (forward and backward by FLOPs)", 10, color=GREY, ha="right")
    return figure


# Published language models: year, parameters, and where they are described.
MODELS = (
    ("GPT", 2018.4, 117e6),  # Radford et al. 2018
    ("GPT-2", 2019.1, 1.5e9),  # Radford et al. 2019
    ("GPT-3", 2020.4, 175e9),  # arXiv:2005.14165
    ("PaLM", 2022.3, 540e9),  # arXiv:2204.02311
    ("Llama 3.1", 2024.5, 405e9),  # arXiv:2407.21783
    ("DeepSeek-V3", 2024.98, 671e9),  # arXiv:2412.19437; a mixture of experts, as are the next two
    ("Kimi K2", 2025.55, 1.04e12),  # arXiv:2507.20534
    ("DeepSeek-V4", 2026.3, 1.6e12),  # its model card on Hugging Face, April 2026
)
# GPUs for training, with the bytes of their memory: NVIDIA's data sheets; Rubin: as announced in January 2026.
GPUS = (
    ("V100", 2017.5, 16e9),
    ("A100", 2020.4, 40e9),
    ("H100", 2022.8, 80e9),
    ("B200", 2024.9, 192e9),
    ("Rubin", 2026.6, 288e9),
)


def one_device_growth() -> Figure:
    """Parameters of published models over the years, and those whose training state a GPU of each year holds."""
    figure = Figure(figsize=(6, 4.2), facecolor="white", layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*(row[1:] for row in MODELS), strict=True), "o", color=RED, label="models")
    held = [(name, year, memory / 16) for name, year, memory in GPUS]
    axes.plot(*zip(*(row[1:] for row in held), strict=True), "s", color=DARK, label="held by one GPU (16 bytes each)")
    for name, year, size in (*MODELS, *held):
        side, where = ("left", (6, -4)) if name in ("GPT", "GPT-2", "V100", "A100", "H100") else ("right", (-6, 2))
        axes.annotate(name, (year, size), xytext=where, textcoords="offset points", ha=side, fontsize=10, color=INK)
    axes.set(yscale="log", xlim=(2017, 2027), ylim=(5e7, 5e12), xticks=range(2018, 2027, 2))
    axes.set_yticks([10.0**power for power in range(8, 13)])
    axes.set_ylabel("parameters", fontsize=10)
    axes.tick_params(labelsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False, fontsize=10, loc="lower right")
    return figure


def one_device_scaling() -> Figure:
    """Speed-up over devices for four shares that do not get faster: Amdahl's law, strong; Gustafson's, weak."""
    figure = Figure(figsize=(6, 3.6), facecolor="white", layout="constrained")
    devices = range(1, 65)
    laws = (("strong: Amdahl", lambda f, n: 1 / (f + (1 - f) / n)), ("weak: Gustafson", lambda f, n: f + n * (1 - f)))
    for axes, (title, law) in zip(figure.subplots(1, 2, sharey=True), laws, strict=True):
        for share, colour in ((0.0, GREY), (0.02, "#0072b2"), (0.05, "#009e73"), (0.1, RED)):
            axes.plot(devices, [law(share, n) for n in devices], color=colour, label=f"f = {share:.0%}")
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("devices", fontsize=10)
        axes.set(xlim=(0, 66), ylim=(0, 66), xticks=(0, 16, 32, 48, 64), yticks=(0, 16, 32, 48, 64))
        axes.tick_params(labelsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("speed-up", fontsize=10)
    figure.axes[0].legend(frameon=False, fontsize=10)
    return figure


FIGURES = {
    "one_device_growth": one_device_growth,
    "one_device_perplexity": one_device_perplexity,
    "one_device_phases": one_device_phases,
    "one_device_scaling": one_device_scaling,
}

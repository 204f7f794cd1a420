"""The table of results, runs/results.md: each `./workbook run` adds its lines, and students fill in the rest.

A line is written once and never changed: students write down what they predicted, and why the result differs.
"""

import time
from pathlib import Path

from utils.report.runs import Run, batch_of, scaling, speed_rows

HEAD = """# Results

A line for each run of `./workbook run`. Before a run, write down what you expect of it; afterwards, fill in the columns
*predicted* and *why*. Speed-up and efficiency compare with the fewest processes of the same command. In strong scaling
they divide one batch among them; in weak scaling each has its own batch (`--batch-size-per-rank`).

| when | script | processes | threads each | device | batch | scaling | tokens/s | predicted | speed-up | efficiency | memory of a rank | why |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
"""  # noqa: E501


def add(table: Path, runs: list[Run]) -> None:
    """Add a line to the table for each of these recorded runs of one command; the table is created if missing."""
    rows = speed_rows({len(run.ranks): run for run in runs})
    lines = [line_of(run, row if len(runs) > 1 else None) for run, row in zip(runs, rows, strict=True)]
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("a", encoding="utf-8") as file:
        if file.tell() == 0:
            file.write(HEAD)
        file.writelines(lines)


def memory(run: Run) -> str:
    """The memory of the rank with the most: of the process, and of its tensors if they were counted."""
    process = f"{max(rank.peak for rank in run.ranks) / 2**20:,.0f} MiB"
    counted = [rank.device_memory for rank in run.ranks if rank.device_memory is not None]
    return f"{process}, tensors {max(counted) / 1e6:,.1f} MB" if counted else process


def line_of(run: Run, row: dict[str, float] | None) -> str:
    start = run.ranks[0].start
    cells = (
        time.strftime("%Y-%m-%d %H:%M", time.localtime(start["time"])),
        Path(start["command"][0]).stem,
        len(run.ranks),
        start["threads"],
        start["device"],
        batch_of(run),
        scaling(run) if row else "–",
        "refused" if run.refused else f"{run.tokens_per_s:,.0f}",
        "",
        f"{row['speed_up']:.2f}" if row else "–",
        f"{row['efficiency']:.0%}" if row else "–",
        memory(run),
        run.refused,
    )
    return f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |\n"

"""The power of a node's processors, from the board's energy counters.

Linux shows them in /sys/class/powercap (RAPL: packages of Intel and AMD processors), on most machines only to root, and
rarely in virtual machines. Memory and graphics are part of their package, and are not added again.
"""

import time
from pathlib import Path

COUNTERS = Path("/sys/class/powercap")


class Processors:
    """The power of all packages of this node, in watts, between samples."""

    def __init__(self, counters: Path = COUNTERS) -> None:
        # intel-rapl:0 is a package, intel-rapl:0:0 is part of it.
        self.packages = [folder for folder in sorted(counters.glob("*-rapl:*")) if folder.name.count(":") == 1]
        self.last = self.read()

    def read(self) -> tuple[float, list[int]] | None:
        """The time in seconds, and the microjoules of each package since some start; None if no counter is readable."""
        try:
            return time.monotonic(), [int((folder / "energy_uj").read_text()) for folder in self.packages]
        except (OSError, ValueError):
            return None

    def sample(self) -> dict[str, float]:
        """`cpu_watts` since the last sample; empty if no counter is readable."""
        before, self.last = self.last, self.read()
        if not self.packages or before is None or self.last is None or self.last[0] <= before[0]:
            return {}
        joules = 0.0
        for folder, old, new in zip(self.packages, before[1], self.last[1], strict=True):
            begins_anew = int((folder / "max_energy_range_uj").read_text()) if new < old else 0
            joules += (new - old + begins_anew) / 1e6
        return {"cpu_watts": joules / (self.last[0] - before[0])}

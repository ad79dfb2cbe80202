"""How busy the CPUs of the host are."""

from __future__ import annotations

from pathlib import Path

from .procfs import read
from .window import Window

__all__ = ["HostCpu"]


class HostCpu:
    """Share of the time of all CPUs of the host in which they were not idle, whoever kept them busy.

    Of the host, also within a container that may use less: what a rank may use is Processes.cpus_allowed.
    """

    def __init__(self, proc: Path) -> None:
        self._path = proc / "stat"
        self._window = Window()

    def utilization(self, now: float) -> float | None:
        """Over the last ten seconds, 0 to 1; None at first. Raises OSError, ValueError."""
        text = read(self._path)
        if text is None:
            return None
        name, *ticks = text.partition("\n")[0].split()
        # user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user and nice.
        times = [int(number) for number in ticks[:8]]
        if name != "cpu" or len(times) < 4:
            raise ValueError(f"{self._path} begins with {text[:40]!r}")
        total = sum(times)
        return self._window.ratio(now, total - sum(times[3:5]), total)

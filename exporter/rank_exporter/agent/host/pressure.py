"""How long tasks of the host waited for a CPU, as the kernel accounts it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from .procfs import read
from .window import Window

__all__ = ["CpuPressure"]

_SOME: Final = re.compile(r"^some .*\btotal=(\d+)", re.MULTILINE)


class CpuPressure:
    """Share of time in which some runnable task waited for a CPU: pressure stall information, Linux 4.20 or later."""

    def __init__(self, proc: Path) -> None:
        self._path = proc / "pressure" / "cpu"
        self._window = Window()

    def ratio(self, now: float) -> float | None:
        """Over the last ten seconds, 0 to 1; None at first, and where the kernel does not account for pressure.

        Raises OSError, ValueError.
        """
        text = read(self._path)
        if text is None:
            return None
        total_us = _SOME.search(text)
        if total_us is None:
            raise ValueError(f"{self._path} holds {text[:40]!r}")
        return self._window.ratio(now, int(total_us[1]) / 1e6, now)

"""A ratio over the last few seconds, from two totals that grow."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["WINDOW_SECONDS", "Window"]

WINDOW_SECONDS: Final = 10.0
"""The window of the kernel's own avg10: one second, once a scrape, would be noise."""


class Window:
    """How much of the growth of ``whole`` was growth of ``part``, over the last WINDOW_SECONDS."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float, float]] = deque()

    def ratio(self, now: float, part: float, whole: float) -> float | None:
        """Take both totals at ``now`` in seconds. Returns 0 to 1; None as long as ``whole`` has not grown."""
        samples = self._samples
        samples.append((now, part, whole))
        while len(samples) > 2 and now - samples[1][0] >= WINDOW_SECONDS:
            samples.popleft()
        _, first_part, first_whole = samples[0]
        if whole <= first_whole:
            return None
        return min(max((part - first_part) / (whole - first_whole), 0.0), 1.0)

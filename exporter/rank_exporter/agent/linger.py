"""How long ended ranks stay on show: until whoever scrapes the agent has surely seen their last samples."""

from __future__ import annotations

from collections import deque
from typing import Final

__all__ = ["Linger"]

UNKNOWN_SECONDS: Final = 30.0
SHORTEST_SECONDS: Final = 5.0
LONGEST_SECONDS: Final = 120.0
_GAPS: Final = 8


class Linger:
    """The setting, else twice the interval of scrapes as observed.

    The interval is the longest of the latest gaps, since with two servers scraping in turn most gaps are shorter.
    """

    def __init__(self, setting: float | None) -> None:
        self._setting = setting
        self._gaps: deque[float] = deque(maxlen=_GAPS)
        self._last: float | None = None

    def observe(self, now: float) -> None:
        """A scrape came, at ``now`` in monotonic seconds."""
        if self._last is not None:
            self._gaps.append(now - self._last)
        self._last = now

    @property
    def two_scrapes(self) -> float:
        """Twice the observed interval in seconds, within bounds."""
        if not self._gaps:
            return UNKNOWN_SECONDS
        return min(max(2 * max(self._gaps), SHORTEST_SECONDS), LONGEST_SECONDS)

    @property
    def seconds(self) -> float:
        """How long an ended segment is served."""
        return self.two_scrapes if self._setting is None else self._setting

"""What the agent met and survived."""

from __future__ import annotations

import contextlib
import sys
from typing import Final

__all__ = ["REASONS", "Faults"]

REASONS: Final = ("segment", "duplicate_rank", "scan", "render", "file_sd", "peers", "step_log", "host")
"""Values of the label ``reason`` for the agent's own faults."""


class Faults:
    """Counts faults by reason and says them on standard error. Whoever reports one sees to it that it is said once."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(REASONS, 0)

    def report(self, reason: str, text: str, *, say: bool = True) -> None:
        """Count a fault. ``text``: what, the value seen, the remedy; left unsaid without ``say``."""
        self.counts[reason] += 1
        if say:
            warn(text)


def warn(text: str) -> None:
    """One line on standard error, wherever that leads."""
    with contextlib.suppress(OSError):
        print(f"rank-exporter agent: {text}", file=sys.stderr, flush=True)  # noqa: T201 - the agent's only log

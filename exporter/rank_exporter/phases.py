"""Phase names and their order.

The order is part of the segment layout: append only, and raise the layout version otherwise.
"""

from __future__ import annotations

from enum import IntEnum

__all__ = ["BESIDE_STEP", "IN_STEP", "PHASE_NAMES", "Phase"]


class Phase(IntEnum):
    """What a training process is doing. The value is the phase's index in every per-phase array."""

    INPUT_READY = 0
    H2D = 1
    FORWARD = 2
    BACKWARD = 3
    COLLECTIVE_WAIT = 4
    OPTIMIZER = 5
    OTHER = 6
    STEP = 7
    FIRST_BATCH = 8
    EVAL = 9
    CHECKPOINT = 10

    @property
    def label(self) -> str:
        """The value of the metric label ``phase``."""
        return PHASE_NAMES[self]


PHASE_NAMES: tuple[str, ...] = tuple(phase.name.lower() for phase in Phase)

IN_STEP: tuple[Phase, ...] = tuple(Phase)[: Phase.STEP]
"""The phases whose durations add up to ``step``."""

BESIDE_STEP: tuple[Phase, ...] = (Phase.FIRST_BATCH, Phase.EVAL, Phase.CHECKPOINT)
"""Phases that interrupt a step and never count towards its duration."""

"""What each rank spent in each phase, over time, for drawing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..phases import IN_STEP, Phase
from .align import Alignment

__all__ = ["Series", "series_of"]

_POINTS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Seconds a step by phase name, each of shape (R, T), NaN where nothing is known. ``ranks``: R numbers.
    ``at`` (T,): step numbers, or Unix seconds; ``axis`` says which."""

    run: str
    ranks: tuple[int, ...]
    at: npt.NDArray[np.float64]
    axis: str
    seconds: Mapping[str, npt.NDArray[np.float64]]


def series_of(alignment: Alignment) -> Series:
    """Mean of each phase in up to 300 stretches of steps."""
    parts = np.array_split(np.arange(len(alignment.steps)), min(_POINTS, len(alignment.steps)))
    seconds = {}
    for phase in (*IN_STEP, Phase.STEP):
        if (alignment.ns[:, :, phase] > 0).any():
            means = [alignment.ns[part, :, phase].mean(axis=0) / 1e9 for part in parts]
            seconds[phase.label] = np.stack(means, axis=1)
    return Series(
        run=alignment.run,
        ranks=tuple(steps.rank for steps in alignment.ranks),
        at=np.array([alignment.steps[part].mean() for part in parts]),
        axis="step",
        seconds=seconds,
    )

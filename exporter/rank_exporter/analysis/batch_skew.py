"""Whether time follows the size of the batches: a rank with more tokens is no slow rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from ..lateness import median_rank
from ..phases import Phase
from .align import Alignment
from .comparison import COVERAGE, Comparison, Late, mean_of
from .profile import RankProfile

__all__ = ["Skew", "skew_of", "skew_of_steps"]

_MOST_SAID = 1.25
"""Sizes may explain up to this much of a gap: 1 / 0.8."""
_PROPORTIONAL = 2.0
"""The same where only totals are known: part of a step's time does not depend on the batch."""
_MORE = 1.1
_VARIES = 0.05
"""Sizes vary if their standard deviation within a rank is this share of their mean: then the slope can be told."""
_WORK = (Phase.H2D, Phase.FORWARD, Phase.BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skew:
    """Of what there is more in a batch (tokens or samples), how many times as much as the median rank has, and which
    share of the lateness that explains."""

    unit: str
    ratio: float
    explained: float

    @property
    def next_check(self) -> str:
        """What to do about it."""
        return f"Share out {self.unit} evenly: batch by length, or limit the {self.unit} of a batch on every rank."


def skew_of(comparison: Comparison, late: Late, alignment: Alignment | None = None) -> Skew | None:
    """Whether the late rank is late because of its larger batches; None if not, or if nothing was counted."""
    for unit in ("tokens", "samples"):
        sizes = {rank.rank: getattr(rank, unit) / rank.steps for rank in comparison.ranks}
        if min(sizes.values()) <= 0:
            continue
        own = sizes.pop(late.rank.rank)
        others = median(sizes.values()) if sizes else own
        if own < _MORE * others:
            continue
        slope = _slope(alignment, unit) if alignment is not None else None
        if slope is not None:
            explained, most = slope * (own - others) / late.gap, _MOST_SAID
        else:
            explained, most = _proportional(comparison, late.rank, own / others) / late.gap, _PROPORTIONAL
        if COVERAGE <= explained <= most and _is_in_the_batch(comparison, late, own / others):
            return Skew(unit=unit, ratio=own / others, explained=min(explained, 1.0))
    return None


def skew_of_steps(alignment: Alignment) -> Skew | None:
    """Whether the last rank of a step is, step by step, the one with the larger batch."""
    late = alignment.lateness
    rows = np.arange(len(alignment.steps))
    caused = late.caused / 1e9
    for unit in ("tokens", "samples"):
        slope = _slope(alignment, unit)
        if slope is None or not caused.sum():
            continue
        sizes = getattr(alignment, unit)
        typical = median_rank(sizes)
        more = sizes[rows, late.last] - typical
        explained = float(np.clip(slope * more, 0, caused).sum() / caused.sum())
        if explained >= COVERAGE:
            ratio = float(np.mean(sizes[rows, late.last] / np.maximum(typical, 1)))
            return Skew(unit=unit, ratio=ratio, explained=explained)
    return None


def _proportional(comparison: Comparison, rank: RankProfile, ratio: float) -> float:
    """Seconds a step by which work that is proportional to the batch would take longer."""
    return sum((comparison.others(mean_of(phase), rank) or 0.0) for phase in _scaling(comparison, rank, ratio)) * (
        ratio - 1
    )


def _is_in_the_batch(comparison: Comparison, late: Late, ratio: float) -> bool:
    """Whether the time is lost in phases that work on the batch."""
    phases = _scaling(comparison, late.rank, ratio)
    return sum(comparison.beyond(mean_of(phase), late.rank) for phase in phases) >= COVERAGE * late.gap


def _scaling(comparison: Comparison, rank: RankProfile, ratio: float) -> list[Phase]:
    phases = [phase for phase in _WORK if phase in comparison.own_work]
    others = comparison.others(mean_of(Phase.INPUT_READY), rank)
    # A loader's wait counts only if it grows as the batch does: what is slow for another reason is the loader's fault.
    if others and 1 / _MOST_SAID <= rank.mean(Phase.INPUT_READY) / others / ratio <= _MOST_SAID:
        phases.append(Phase.INPUT_READY)
    return phases


def _slope(alignment: Alignment, unit: str) -> float | None:
    """Seconds that one more token or sample takes: least squares within each rank, so that a rank that is slow
    whatever its batches does not count. None where batches of a rank are all alike."""
    sizes: npt.NDArray[np.float64] = getattr(alignment, unit).astype(np.float64)
    if not sizes.all():
        return None
    work = alignment.ns[:, :, [*_WORK, Phase.INPUT_READY]].sum(axis=2) / 1e9
    deviation = sizes - sizes.mean(axis=0)
    varied = float((deviation**2).mean())
    if varied < (_VARIES * sizes.mean()) ** 2:
        return None
    return float((deviation * (work - work.mean(axis=0))).mean() / varied)

"""A rank that is late on few steps, while hardly any other rank is on any. Pure.

An event is a step in which a phase takes longer than the median rank's typical one by more than the budget, or by a
multiple of it. If ranks were alike, each would have its share of the events: how improbable it is that one rank has so
many is the upper tail of a binomial distribution of K events with probability 1/R (corrected, after Bonferroni, for the
ranks, phases and levels that are tried).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..phases import BESIDE_STEP, Phase
from .align import Alignment
from .comparison import Comparison, per_step_of
from .profile import RankProfile

__all__ = ["Tail", "tails"]

_FEWEST_EVENTS = 5
_SHARE = 0.8
_CHANCE = 1e-3
_LEVELS = (1, 2, 4, 8)
"""Multiples of the budget from which on a step is an event."""
_SEEN = 0.5
"""Of the events, share in which the rank has to have been the last one in that phase, where steps are aligned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Events of one rank in one phase.

    ``steps``: how many; ``of``: how many steps were looked at; ``share``: of all ranks' events in that phase.
    ``seconds``: that they took longer, in all. ``first``, ``last``: numbers of the steps, where these are known.
    """

    rank: RankProfile
    phase: Phase
    steps: int
    of: int
    share: float
    seconds: float
    first: int | None = None
    last: int | None = None

    @property
    def typical(self) -> float:
        """Mean seconds by which such a step is late."""
        return self.seconds / self.steps


def tails(comparison: Comparison, alignment: Alignment | None = None) -> list[Tail]:
    """Ranks with a tail of their own, the costliest first. ``alignment``: the same steps, if there are records."""
    ranks = comparison.ranks
    if len(ranks) < 2 or not comparison.apart:
        return []
    tried = [*comparison.own_work, *BESIDE_STEP]
    found = [tail for phase in tried if (tail := _of_phase(comparison, alignment, phase, len(tried))) is not None]
    return sorted(found, key=lambda tail: -tail.seconds)


def _of_phase(comparison: Comparison, alignment: Alignment | None, phase: Phase, phases: int) -> Tail | None:
    """The tail at the lowest level that shows one: above the noise that all ranks have."""
    ranks, typical = comparison.ranks, _typical(comparison, phase)
    for multiple in _LEVELS:
        beyond = multiple * comparison.threshold
        events = {rank.rank: _above(rank, phase, typical + beyond) for rank in ranks}
        total = sum(events.values())
        worst = max(ranks, key=lambda rank: events[rank.rank])
        count = events[worst.rank]
        if count < _FEWEST_EVENTS:
            return None
        if count < _SHARE * total or count > worst.steps / 2:
            continue
        if _chance(count, total, 1 / len(ranks)) * len(ranks) * phases * len(_LEVELS) > _CHANCE:
            continue
        tail = _tail(comparison, alignment, worst, phase, typical, beyond, count=count, share=count / total)
        if tail is not None:
            return tail
    return None


def _typical(comparison: Comparison, phase: Phase) -> float:
    if phase in BESIDE_STEP:
        return 0.0
    found = [one.p50 for rank in comparison.ranks if (one := rank.phases.get(phase.label))]
    return median(found) if found else 0.0


def _above(rank: RankProfile, phase: Phase, level: float) -> int:
    found = rank.phases.get(phase.label)
    return found.above(level) if found else 0


def _tail(
    comparison: Comparison,
    alignment: Alignment | None,
    rank: RankProfile,
    phase: Phase,
    typical: float,
    beyond: float,
    *,
    count: int,
    share: float,
) -> Tail | None:
    if alignment is None:
        mean = comparison.others(per_step_of(phase), rank) or 0.0
        seconds = max(rank.per_step(phase) - mean, 0.0) * rank.steps
        if seconds < count * beyond / 2:
            return None
        return Tail(rank=rank, phase=phase, steps=count, of=rank.steps, share=share, seconds=seconds)
    place = next(place for place, one in enumerate(alignment.ranks) if one.rank == rank.rank)
    ns = alignment.before[:, place] if phase is Phase.OPTIMIZER else alignment.ns[:, place, phase]
    events = np.flatnonzero(ns > (typical + beyond) * 1e9)
    late = alignment.lateness
    to_blame = (late.last[events] == place) & (late.phase[events] == phase)
    if not len(events) or to_blame.mean() < _SEEN:
        return None
    return Tail(
        rank=rank,
        phase=phase,
        steps=len(events),
        of=len(alignment.steps),
        share=share,
        seconds=float(ns[events].sum() / 1e9 - len(events) * typical),
        first=int(alignment.steps[events[0]]),
        last=int(alignment.steps[events[-1]]),
    )


def _chance(count: int, total: int, probability: float) -> float:
    """P(X ≥ count) for X binomial of ``total`` trials."""
    logs = [
        math.lgamma(total + 1)
        - math.lgamma(k + 1)
        - math.lgamma(total - k + 1)
        + k * math.log(probability)
        + (total - k) * math.log1p(-probability)
        for k in range(count, total + 1)
    ]
    highest = max(logs)
    return math.exp(highest) * sum(math.exp(one - highest) for one in logs)

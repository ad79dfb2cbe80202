"""Ranks side by side: whose typical step is late, and in which phase. Pure.

In a synchronous step the last rank waits least. So a rank is late if what it does on its own, the step less its wait
for others, takes longer than on the median rank; a phase is the cause if it accounts for that time. A rank is late only
where its typical step is (location), not where a few of its steps are (tail).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..phases import IN_STEP, Phase
from .profile import Distribution, RankProfile, RunProfile
from .verdict import COMPUTE_STRAGGLER, kind_of

__all__ = [
    "COVERAGE",
    "DEFAULT_BUDGET",
    "FEWEST_STEPS",
    "Comparison",
    "Late",
    "compare",
    "mean_of",
    "per_step_of",
    "quantile_of",
]

Figure = Callable[[RankProfile], float | None]

DEFAULT_BUDGET = 0.10
"""Skew tolerated, as a share of the median step, where neither the caller nor the run says."""
FEWEST_STEPS = 15
_FEW_STEPS = 25
_MANY_STEPS = 200
"""Effective steps from which a low quantile of 0.2, and of 0.4, may be asked to be late."""
COVERAGE = 0.8
"""A cause is named only where it accounts for this much of the gap."""
_COMPARABLE = 0.8
"""Ranks with fewer steps than this share of the fullest one's have restarted or joined: not compared."""
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
_ANYWHERE = frozenset({Phase.COLLECTIVE_WAIT, *_COMPUTE})
"""Where a wait for others may hide while no one says where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Late:
    """A rank whose own work takes longer than the median rank's. ``gap`` in seconds a step.

    ``cause``: a kind of verdict, None where nothing accounts for the gap; then ``phase`` is None too, as it is where
    several phases of computing account for it together.
    """

    rank: RankProfile
    gap: float
    cause: str | None
    phase: Phase | None
    excess: float


def compare(profile: RunProfile, budget: float | None = None) -> Comparison | None:
    """The ranks that did about as many steps as each other; None where none did enough to be judged.

    ``budget``: skew tolerated, as a share of the median step; by default what the run published, else DEFAULT_BUDGET.
    """
    fullest = max((rank.steps for rank in profile.ranks), default=0)
    ranks = tuple(
        rank
        for rank in profile.ranks
        if rank.steps >= _COMPARABLE * fullest and Phase.STEP.label in rank.phases and rank.mean(Phase.STEP) > 0
    )
    if fullest < FEWEST_STEPS or not ranks:
        return None
    allowed = budget or profile.budget or DEFAULT_BUDGET
    return Comparison(ranks, allowed, missing=max((profile.world_size or 0) - len(ranks), 0))


class Comparison:
    """Ranks that did about as many steps as each other.

    ``step``: seconds of the median step. ``effective``: steps that tell something, since a rank is part of the median
    that it is compared with. ``waiting``: phases that hold waits for other ranks; ``apart``: whether these are known to
    be all such phases, by record of the wait or by the run's own word.
    """

    def __init__(self, ranks: Sequence[RankProfile], budget: float, *, missing: int) -> None:
        self.ranks = ranks
        self.missing = missing
        self.step = median(rank.phases[Phase.STEP.label].p50 for rank in ranks)
        self.effective = min(rank.steps for rank in ranks) * (1 - 1 / len(ranks))
        # A median of a handful of steps must be far off before it means something.
        self.budget = budget if self.effective >= _FEW_STEPS else 2 * budget
        hidden = frozenset(Phase[name.upper()] for rank in ranks for name in rank.waits_in if name.upper() in _NAMES)
        self.hidden = hidden - {Phase.COLLECTIVE_WAIT}
        self.recorded = all(rank.mean(Phase.COLLECTIVE_WAIT) > 0 for rank in ranks)
        self.apart = self.recorded or bool(self.hidden)
        self.waiting = self.hidden | {Phase.COLLECTIVE_WAIT} if self.apart else _ANYWHERE
        self._known: dict[Figure, tuple[dict[int, float], float]] = {}
        self.own_work = tuple(phase for phase in IN_STEP if phase not in self.waiting)

    @property
    def threshold(self) -> float:
        """Seconds a step that are tolerated."""
        return self.budget * self.step

    @property
    def reference(self) -> str:
        """What a rank is measured against."""
        return "the other rank" if len(self.ranks) == 2 else "the median rank"

    def others(self, of: Figure, rank: RankProfile) -> float | None:
        """The median rank's figure; of two ranks the other's. None where fewer than two ranks have one."""
        figures, typical = self._figures(of)
        if rank.rank not in figures or len(figures) < 2:
            return None
        if len(figures) == 2:
            return next(value for number, value in figures.items() if number != rank.rank)
        return typical

    def _figures(self, of: Figure) -> tuple[dict[int, float], float]:
        """Each rank's figure, and their median: once for all ranks that are measured against it."""
        if of not in self._known:
            figures = {other.rank: value for other in self.ranks if (value := of(other)) is not None}
            self._known[of] = figures, median(figures.values()) if figures else 0.0
        return self._known[of]

    def beyond(self, of: Figure, rank: RankProfile) -> float:
        """By how much the rank's figure exceeds the others'; 0 where there is none."""
        own, others = of(rank), self.others(of, rank)
        return 0.0 if own is None or others is None else own - others

    def shift(self, phase: Phase, rank: RankProfile) -> float:
        """Seconds by which the rank's typical step is above the median rank's in a phase: the smaller of what mean
        and median say. A few huge steps move the mean alone, the edges of a bucket the median alone."""
        return min(self.beyond(mean_of(phase), rank), self.beyond(quantile_of(phase, 0.5), rank))

    def dominates(self, phase: Phase, rank: RankProfile) -> bool:
        """Whether the rank is above the median rank's median even at its better steps."""
        q = 0.4 if self.effective >= _MANY_STEPS else 0.2 if self.effective >= _FEW_STEPS else 0.1
        own, others = quantile_of(phase, q)(rank), self.others(quantile_of(phase, 0.5), rank)
        return own is not None and others is not None and own > others

    def readiness(self, rank: RankProfile) -> float | None:
        """Mean seconds a step that the rank takes by itself, until it waits for the others."""
        return rank.mean(Phase.STEP) - sum(rank.mean(phase) for phase in self.waiting)

    def gap(self, rank: RankProfile) -> float:
        """Seconds a step by which the rank is typically ready after the median rank: the smaller of what mean and,
        where steps are known one by one, median say."""
        gap = self.beyond(self.readiness, rank)
        if self.waiting != {Phase.COLLECTIVE_WAIT} or any(one.ready is None for one in self.ranks):
            return gap
        return min(gap, self.beyond(_typically_ready, rank))

    def _waited(self, rank: RankProfile) -> float | None:
        return sum(rank.mean(phase) for phase in self.waiting)

    def wait_deficit(self, rank: RankProfile) -> float:
        """Seconds by which the rank typically waits less for the others than the median rank."""
        if self.waiting != {Phase.COLLECTIVE_WAIT}:
            return -self.beyond(self._waited, rank)
        wait = Phase.COLLECTIVE_WAIT
        return min(-self.beyond(mean_of(wait), rank), -self.beyond(quantile_of(wait, 0.5), rank))

    def late_ranks(self) -> list[Late]:
        """The ranks that are late on their typical step, the latest first."""
        late = [found for rank in self.ranks if (found := self._lateness(rank))]
        return sorted(late, key=lambda found: (-found.gap, found.rank.rank))

    def _lateness(self, rank: RankProfile) -> Late | None:
        gap = self.gap(rank)
        if gap <= self.threshold or self.wait_deficit(rank) <= self.threshold:
            return None
        shifts: dict[Phase, float] = {
            phase: self.shift(phase, rank) for phase in self.own_work if self.dominates(phase, rank)
        }
        worst = max(shifts, key=lambda phase: shifts[phase], default=None)
        enough = max(COVERAGE * gap, self.threshold)
        if worst is not None and shifts[worst] >= enough:
            return Late(rank=rank, gap=gap, cause=kind_of(worst), phase=worst, excess=shifts[worst])
        compute = sum(max(shifts.get(phase, 0.0), 0.0) for phase in _COMPUTE)
        if compute >= enough:
            return Late(rank=rank, gap=gap, cause=COMPUTE_STRAGGLER, phase=None, excess=compute)
        return Late(rank=rank, gap=gap, cause=None, phase=None, excess=0.0)

    # What the ranks have in common.

    def input_share(self) -> float:
        """Share of the step that every rank waits for its input, of those that read any."""
        label = Phase.INPUT_READY.label
        shares = [
            rank.per_step(Phase.INPUT_READY) / rank.mean(Phase.STEP) for rank in self.ranks if label in rank.phases
        ]
        return min(shares, default=0.0)

    def floor(self) -> float:
        """Seconds that even the luckiest rank waits in its luckiest steps: what the collective itself takes."""
        if not self.recorded:
            return 0.0
        return min(rank.phases[Phase.COLLECTIVE_WAIT.label].quantile(0.01) for rank in self.ranks)

    def exposed_share(self) -> float:
        """Share of the ranks' time that goes into waiting for each other, as far as their histograms tell."""
        if not self.recorded:
            return 0.0
        waits = [rank.mean(Phase.COLLECTIVE_WAIT) for rank in self.ranks]
        return max(sum(waits) / len(waits) - self.floor(), 0.0) / self.step


_NAMES = frozenset(phase.name for phase in Phase)


def _typically_ready(rank: RankProfile) -> float | None:
    return rank.ready.p50 if rank.ready is not None else None


@functools.cache
def mean_of(phase: Phase) -> Figure:
    """Mean seconds of a phase; None on a rank that never observed it, which must not count as 0. Always the same
    function for the same phase."""
    return lambda rank: found.mean if (found := _observed(rank, phase)) else None


@functools.cache
def per_step_of(phase: Phase) -> Figure:
    """Seconds of a phase over all steps, 0 on a rank that never observed it."""
    return lambda rank: rank.per_step(phase)


@functools.cache
def quantile_of(phase: Phase, q: float) -> Figure:
    """A quantile of a phase in seconds; None on a rank that never observed it."""
    return lambda rank: found.quantile(q) if (found := _observed(rank, phase)) else None


def _observed(rank: RankProfile, phase: Phase) -> Distribution | None:
    return rank.phases.get(phase.label)

"""One verdict a run: which rank holds the others up, in which phase, or that none does. Pure.

In a synchronous step the last rank waits least. So a rank is late if what it does on its own, the step less its wait
in the collective, takes longer than on the median rank; a phase is the cause if it accounts for that time. A rank is
named only where its typical step is late (location), not where a few of its steps are (tail).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..phases import IN_STEP, Phase
from .profile import PhaseProfile, RankProfile, RunProfile

__all__ = [
    "BALANCED",
    "COMPUTE_STRAGGLER",
    "FABRIC",
    "H2D_STRAGGLER",
    "INPUT_BOUND",
    "INPUT_STRAGGLER",
    "ROTATING_STRAGGLER",
    "UNKNOWN",
    "Verdict",
    "diagnose",
]

INPUT_STRAGGLER = "INPUT STRAGGLER"
COMPUTE_STRAGGLER = "COMPUTE STRAGGLER"
H2D_STRAGGLER = "H2D STRAGGLER"
ROTATING_STRAGGLER = "ROTATING STRAGGLER"
INPUT_BOUND = "INPUT-BOUND"
FABRIC = "FABRIC"
BALANCED = "BALANCED"
UNKNOWN = "UNKNOWN"

DEFAULT_BUDGET = 0.10
"""Skew tolerated, as a share of the median step, where neither the caller nor the run says."""
_FEWEST_STEPS = 15
_FEW_STEPS = 25
_MANY_STEPS = 200
"""Effective steps from which a low quantile of 0.2, and of 0.4, may be asked to be late."""
_COVERAGE = 0.8
"""A cause is named only where it accounts for this much of the gap."""
_COMPARABLE = 0.8
"""Ranks with fewer steps than this share of the fullest one's have restarted or joined: not compared."""
_INPUT_BOUND = 0.25
_FABRIC = 0.25
_EXPOSED = 0.30
"""Share of the step spent waiting beyond what the luckiest rank waits, from which it is more than noise: identical
ranks of uneven batches reach a quarter."""

_OWN_WORK = tuple(phase for phase in IN_STEP if phase is not Phase.COLLECTIVE_WAIT)
_COMPUTE = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER)
_KINDS: dict[Phase, str] = {Phase.INPUT_READY: INPUT_STRAGGLER, Phase.H2D: H2D_STRAGGLER}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a run, if anything.

    ``kind`` is one of this module's constants. ``rank``, ``host`` and ``shard`` are None unless a rank is named,
    ``phase`` also where no single one accounts for the time. ``skew``: how late that rank is, as a share of the
    median step. ``evidence``: one finding a line. ``next_check``: what to look at now.
    """

    kind: str
    evidence: tuple[str, ...]
    next_check: str
    rank: int | None = None
    phase: str | None = None
    host: str | None = None
    shard: str | None = None
    skew: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Late:
    """A rank whose own work takes longer than the median rank's. ``gap`` in seconds a step."""

    rank: RankProfile
    gap: float
    cause: str | None
    phase: Phase | None
    excess: float


def diagnose(profile: RunProfile, budget: float | None = None) -> Verdict:
    """The verdict on a run.

    ``budget``: skew tolerated, as a share of the median step; by default what the run published, else 0.10. The
    profile should hold all ranks of the run: where some are missing, no rank is named.
    """
    allowed = budget or profile.budget or DEFAULT_BUDGET
    fullest = max((rank.steps for rank in profile.ranks), default=0)
    ranks = tuple(
        rank
        for rank in profile.ranks
        if rank.steps >= _COMPARABLE * fullest and Phase.STEP.label in rank.phases and rank.mean(Phase.STEP) > 0
    )
    if fullest < _FEWEST_STEPS or not ranks:
        return Verdict(
            kind=UNKNOWN,
            evidence=(f"{fullest} steps are too few to judge: at least {_FEWEST_STEPS} are needed",),
            next_check="Let the run go on and ask again.",
        )
    return _Comparison(ranks, allowed, missing=max((profile.world_size or 0) - len(ranks), 0)).verdict()


class _Comparison:
    """Ranks that did about as many steps as each other, side by side."""

    def __init__(self, ranks: Sequence[RankProfile], budget: float, *, missing: int) -> None:
        self._ranks = ranks
        self._missing = missing
        self._step = median(rank.phases[Phase.STEP.label].p50 for rank in ranks)
        self._effective = min(rank.steps for rank in ranks) * (1 - 1 / len(ranks))
        # A median of a handful of steps must be far off before it means something.
        self._budget = budget if self._effective >= _FEW_STEPS else 2 * budget
        self._waits = all(rank.mean(Phase.COLLECTIVE_WAIT) > 0 for rank in ranks)

    def verdict(self) -> Verdict:
        late = self._late_ranks()
        if late and not self._missing and (late[0].cause is not None):
            return self._straggler(late[0], also=late[1:])
        if late:
            return self._abstention(late[0])
        return self._input_bound() or self._fabric() or self._uneven() or self._balanced()

    # What a rank is measured against.

    def _others(self, of: Callable[[RankProfile], float | None], rank: RankProfile) -> float | None:
        """The median rank's figure; of two ranks the other's. None where fewer than two ranks have one."""
        figures = {other.rank: value for other in self._ranks if (value := of(other)) is not None}
        if rank.rank not in figures or len(figures) < 2:
            return None
        if len(figures) == 2:
            del figures[rank.rank]
        return median(figures.values())

    def _beyond(self, of: Callable[[RankProfile], float | None], rank: RankProfile) -> float:
        own, others = of(rank), self._others(of, rank)
        return 0.0 if own is None or others is None else own - others

    def _shift(self, phase: Phase, rank: RankProfile) -> float:
        """Seconds by which the rank's typical step is above the median rank's in a phase: the smaller of what mean
        and median say. A few huge steps move the mean alone, the edges of a bucket the median alone."""
        return min(self._beyond(_mean(phase), rank), self._beyond(_quantile(phase, 0.5), rank))

    def _dominates(self, phase: Phase, rank: RankProfile) -> bool:
        """Whether the rank is above the median rank's median even at its better steps."""
        q = 0.4 if self._effective >= _MANY_STEPS else 0.2 if self._effective >= _FEW_STEPS else 0.1
        own, others = _quantile(phase, q)(rank), self._others(_quantile(phase, 0.5), rank)
        return own is not None and others is not None and own > others

    def _wait_deficit(self, rank: RankProfile) -> float:
        """Seconds by which the rank typically waits less in the collective than the median rank."""
        wait = Phase.COLLECTIVE_WAIT
        return min(-self._beyond(_mean(wait), rank), -self._beyond(_quantile(wait, 0.5), rank))

    # Who is late, and why.

    def _late_ranks(self) -> list[_Late]:
        late = [found for rank in self._ranks if (found := self._lateness(rank))]
        return sorted(late, key=lambda found: (-found.gap, found.rank.rank))

    def _lateness(self, rank: RankProfile) -> _Late | None:
        threshold = self._budget * self._step
        if not self._waits:
            # Without the wait apart, peers' lateness hides in forward, backward and optimizer. It cannot in input.
            excess = self._shift(Phase.INPUT_READY, rank)
            if excess <= threshold or not self._dominates(Phase.INPUT_READY, rank):
                return None
            return _Late(rank=rank, gap=excess, cause=INPUT_STRAGGLER, phase=Phase.INPUT_READY, excess=excess)
        gap = self._beyond(_readiness, rank)
        if gap <= threshold or self._wait_deficit(rank) <= threshold:
            return None
        return self._cause(rank, gap, threshold)

    def _cause(self, rank: RankProfile, gap: float, threshold: float) -> _Late:
        shifts: dict[Phase, float] = {
            phase: self._shift(phase, rank) for phase in _OWN_WORK if self._dominates(phase, rank)
        }
        worst = max(shifts, key=lambda phase: shifts[phase], default=None)
        if worst is not None and shifts[worst] >= max(_COVERAGE * gap, threshold):
            kind = _KINDS.get(worst, COMPUTE_STRAGGLER)
            return _Late(rank=rank, gap=gap, cause=kind, phase=worst, excess=shifts[worst])
        compute = sum(max(shifts.get(phase, 0.0), 0.0) for phase in _COMPUTE)
        if compute >= max(_COVERAGE * gap, threshold):
            return _Late(rank=rank, gap=gap, cause=COMPUTE_STRAGGLER, phase=None, excess=compute)
        return _Late(rank=rank, gap=gap, cause=None, phase=None, excess=0.0)

    # What to say.

    def _straggler(self, late: _Late, *, also: Sequence[_Late]) -> Verdict:
        rank, step = late.rank, self._step
        where = late.phase.label if late.phase is not None else "all of its computing"
        evidence = [f"rank {rank.rank} spends {_ms(late.excess)} a step more in {where} than {self._reference()}"]
        if late.phase is not None:
            evidence.append(
                f"its median there is {_ms(rank.phases[late.phase.label].p50)}, theirs "
                f"{_ms(self._others(_quantile(late.phase, 0.5), rank) or 0.0)}; the median step is {_ms(step)}"
            )
        if self._waits:
            evidence.append(
                f"it waits {_ms(self._wait_deficit(rank))} a step less in the collective: the others wait for it"
            )
            evidence.append(f"that accounts for {min(late.excess / late.gap, 1.0):.0%} of its lateness")
        if also:
            evidence.append(f"also late: rank {', '.join(str(other.rank.rank) for other in also)}")
        return Verdict(
            kind=str(late.cause),
            rank=rank.rank,
            phase=late.phase.label if late.phase is not None else None,
            host=rank.host,
            shard=rank.shard,
            skew=late.excess / step,
            evidence=tuple(evidence),
            next_check=_next_check(late),
        )

    def _abstention(self, late: _Late) -> Verdict:
        if self._missing:
            seen = len(self._ranks)
            return Verdict(
                kind=UNKNOWN,
                evidence=(
                    f"{seen} of {seen + self._missing} ranks could be compared, and they are not alike",
                    "a rank not seen may be the last one",
                ),
                next_check="Look at all ranks of the run: ask the agents of its other hosts too.",
            )
        return Verdict(
            kind=UNKNOWN,
            evidence=(
                f"one rank is ready {_ms(late.gap)} a step after {self._reference()}",
                f"that is {late.gap / self._step:.0%} of the median step; no phase accounts for {_COVERAGE:.0%} of it",
            ),
            next_check="Compare the phases rank by rank: several causes may add up.",
        )

    def _input_bound(self) -> Verdict | None:
        shares = [
            rank.mean(Phase.INPUT_READY) / rank.mean(Phase.STEP)
            for rank in self._ranks
            if Phase.INPUT_READY.label in rank.phases
        ]
        if not shares or min(shares) <= _INPUT_BOUND:
            return None
        return Verdict(
            kind=INPUT_BOUND,
            evidence=(f"every rank that reads input waits {min(shares):.0%} of the step or more for it",),
            next_check="Give the loaders more workers or read-ahead, or the storage more bandwidth.",
        )

    def _floor(self) -> float:
        """Seconds that even the luckiest rank waits in its luckiest steps: what the collective itself takes."""
        if not self._waits:
            return 0.0
        return min(rank.phases[Phase.COLLECTIVE_WAIT.label].quantile(0.01) for rank in self._ranks)

    def _fabric(self) -> Verdict | None:
        floor = self._floor()
        if floor <= _FABRIC * self._step:
            return None
        return Verdict(
            kind=FABRIC,
            evidence=(
                f"even the last rank waits {_ms(floor)} in the collective, {floor / self._step:.0%} of the step",
            ),
            next_check="Look at the network between the hosts, and at how much of the gradients overlaps the backward.",
        )

    def _exposed(self) -> float:
        """Share of the ranks' time that goes into waiting for each other."""
        if not self._waits:
            return 0.0
        waits = [rank.mean(Phase.COLLECTIVE_WAIT) for rank in self._ranks]
        return max(sum(waits) / len(waits) - self._floor(), 0.0) / self._step

    def _uneven(self) -> Verdict | None:
        """Ranks wait for each other, and yet none of them is typically late."""
        if len(self._ranks) < 2 or self._exposed() <= _EXPOSED:
            return None
        found = f"ranks wait for each other {self._exposed():.0%} of the time, and none of them is late on most steps"
        if max(self._beyond(_readiness, rank) for rank in self._ranks) > self._budget * self._step:
            return Verdict(
                kind=UNKNOWN,
                evidence=(found, "the lateness is not spread evenly: some steps of one rank take very long"),
                next_check="Look at the slowest steps of each rank: checkpoints, garbage collection, large batches.",
            )
        return Verdict(
            kind=ROTATING_STRAGGLER,
            evidence=(found, "the lateness is spread evenly over the ranks: it moves from one to the next"),
            next_check="Look for what hits every rank in turn: batches of uneven size, storage with a long tail.",
        )

    def _balanced(self) -> Verdict:
        if len(self._ranks) < 2:
            return Verdict(
                kind=UNKNOWN,
                evidence=("one rank alone: there is none to compare it with",),
                next_check="Look at its phases: the largest one is where its time goes.",
            )
        if self._missing:
            return Verdict(
                kind=UNKNOWN,
                evidence=(f"{len(self._ranks)} ranks are alike, but {self._missing} could not be compared",),
                next_check="Look at all ranks of the run: ask the agents of its other hosts too.",
            )
        if not self._waits:
            return Verdict(
                kind=UNKNOWN,
                evidence=(
                    "no rank is late in its input",
                    "the wait in the collective was not recorded apart, so time in other phases may be that wait",
                ),
                next_check="Pass the model to watch(), or time the collective as phase collective_wait.",
            )
        worst = max(self._beyond(_mean(phase), rank) for rank in self._ranks for phase in _OWN_WORK)
        return Verdict(
            kind=BALANCED,
            evidence=(
                f"no rank's typical step is late by more than the budget, {self._budget:.0%} of {_ms(self._step)}",
                f"the largest mean excess in any phase is {max(worst, 0.0) / self._step:.0%} of the step",
                f"ranks wait for each other {self._exposed():.0%} of the time",
            ),
            next_check="None: the ranks share the load evenly.",
        )

    def _reference(self) -> str:
        return "the other rank" if len(self._ranks) == 2 else "the median rank"


def _mean(phase: Phase) -> Callable[[RankProfile], float | None]:
    """Mean seconds of a phase; None on a rank that never observed it, which must not count as 0."""
    return lambda rank: found.mean if (found := _observed(rank, phase)) else None


def _quantile(phase: Phase, q: float) -> Callable[[RankProfile], float | None]:
    return lambda rank: found.quantile(q) if (found := _observed(rank, phase)) else None


def _observed(rank: RankProfile, phase: Phase) -> PhaseProfile | None:
    return rank.phases.get(phase.label)


def _readiness(rank: RankProfile) -> float | None:
    """Mean seconds a step that the rank takes by itself, until it waits for the others."""
    return rank.mean(Phase.STEP) - rank.mean(Phase.COLLECTIVE_WAIT)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"


def _next_check(late: _Late) -> str:
    host, shard = late.rank.host, late.rank.shard
    if late.cause == INPUT_STRAGGLER:
        on_shard = f" and shard {shard}" if shard else ""
        return (
            f"Look at the storage behind host {host}{on_shard}. Give that shard to another rank: "
            "if the lateness follows, it is the data, otherwise the host."
        )
    if late.cause == H2D_STRAGGLER:
        return f"Look at pinned memory, the bus and the NUMA binding of rank {late.rank.rank} on host {host}."
    if late.phase is None:
        return f"Look for a slow or throttled device, or another process, on host {host}."
    return f"Profile {late.phase.label} on rank {late.rank.rank}, and look at clocks and load of host {host}."

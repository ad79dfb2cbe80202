"""Whether a run is fit for more GPUs: exit criteria over a representative window. Pure.

1. input-ready: the p99 of the rank whose input is latest does not exceed the median rank's by more than the budget, a
   share of the median step.
2. input-wait: in which steps ranks wait in the collective is no longer a matter of in which input was late.
3. device-idle: no device idles more than is tolerated.
4. samples: the epochs that were read reconcile.

The steps of the first epoch (loaders, caches, compilers and allocators start) are cold: they are described, not judged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import NormalDist, median

import numpy as np

from ..errors import SourceError
from ..phases import Phase
from .align import Alignment
from .comparison import DEFAULT_BUDGET
from .correlation import correlation
from .criterion import Criterion, State
from .observation import Observation, profile_of
from .profile import RankProfile, RunProfile
from .reconcile import Reconciliation

__all__ = ["DEVICE_IDLE", "INPUT_READY", "INPUT_WAIT", "SAMPLES", "Gate", "Stretch", "Tolerances", "gate"]

INPUT_READY = "input-ready"
INPUT_WAIT = "input-wait"
DEVICE_IDLE = "device-idle"
SAMPLES = "samples"

_P = 0.99
_FEWEST_COLD = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerances:
    """``budget``: skew, as a share of the median step; None: the run's own, else 0.10. ``correlation`` of waits with
    late input. ``negligible``: waiting that late input explains, as a share of the time, below which it is noise.
    ``idle``: share of the time. ``fewest_steps``: warm ones, without which a p99 says nothing."""

    budget: float | None = None
    correlation: float = 0.3
    negligible: float = 0.01
    idle: float = 0.3
    fewest_steps: int = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps ``first`` to ``last``, and their figures: seconds of the median step, of the latest rank's and of the
    median rank's input p99; share of GPU time spent waiting for the last rank."""

    steps: int
    first: int | None
    last: int | None
    step: float
    worst_rank: int | None
    worst_input: float
    median_input: float
    exposed: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What was judged, and how. ``cold``: the steps before, None where there were none in the window."""

    criteria: tuple[Criterion, ...]
    warm: Stretch
    cold: Stretch | None


def gate(
    observation: Observation,
    reconciled: Reconciliation | str,
    tolerances: Tolerances | None = None,
    *,
    cold_steps: int | None = None,
) -> Gate:
    """Judge a run. ``reconciled``: its samples, or why they could not be. ``cold_steps``: how many at the beginning of
    the run are cold; by default those of its first epoch, or a tenth. Raises SourceError if no steps are left."""
    allowed = tolerances or Tolerances()
    profile, alignment = observation.profile, observation.alignment
    cold = None
    if alignment is not None:
        until = _cold_until(alignment, cold_steps)
        early = np.flatnonzero(alignment.steps <= until)
        late = np.flatnonzero(alignment.steps > until)
        if not len(late):
            raise SourceError(
                f"all {len(alignment.steps)} steps of run {alignment.run} are among its first {until}, which are cold: "
                "give a longer window, or fewer --cold-steps"
            )
        if len(early):
            cold = _stretch(profile_of(alignment.take(early), profile), alignment.take(early))
        alignment = alignment.take(late)
        profile = profile_of(alignment, profile)
    warm = _stretch(profile, alignment)
    missing = sorted(set(range(profile.world_size or 0)) - {rank.rank for rank in profile.ranks if rank.steps})
    return Gate(
        criteria=(
            _input_ready(profile, warm, allowed, missing),
            _input_wait(profile, alignment, allowed, missing),
            _device_idle(profile, allowed),
            _samples(reconciled),
        ),
        warm=warm,
        cold=cold,
    )


def _cold_until(alignment: Alignment, cold_steps: int | None) -> int:
    """Number of the last cold step."""
    if cold_steps is not None:
        return cold_steps
    # Where the first steps were not recorded, the first epoch may be over.
    if alignment.steps[0] > 1:
        return 0
    starts = alignment.steps[(alignment.ns[:, :, Phase.FIRST_BATCH] > 0).any(axis=1)]
    later = starts[starts > alignment.steps[0]]
    if len(later) and later[0] <= alignment.steps[-1] // 2:
        return int(later[0]) - 1
    return int(max(_FEWEST_COLD, len(alignment.steps) // 10))


def _stretch(profile: RunProfile, alignment: Alignment | None) -> Stretch:
    ranks = [rank for rank in profile.ranks if rank.steps]
    tails = {rank.rank: _input(rank, _P) for rank in ranks if Phase.INPUT_READY.label in rank.phases}
    worst = max(tails, key=lambda rank: tails[rank], default=None)
    steps = [rank.phases[Phase.STEP.label].p50 for rank in ranks if Phase.STEP.label in rank.phases]
    return Stretch(
        steps=len(alignment.steps) if alignment is not None else max((rank.steps for rank in ranks), default=0),
        first=int(alignment.steps[0]) if alignment is not None else None,
        last=int(alignment.steps[-1]) if alignment is not None else None,
        step=median(steps) if steps else 0.0,
        worst_rank=worst,
        worst_input=tails[worst] if worst is not None else 0.0,
        median_input=_median(list(tails.values())),
        exposed=alignment.tax().share if alignment is not None and alignment.waits_apart else None,
    )


def _input(rank: RankProfile, q: float) -> float:
    return rank.phases[Phase.INPUT_READY.label].quantile(q)


def _median(values: Sequence[float]) -> float:
    """To the later of two ranks, the other one is the median."""
    if not values:
        return 0.0
    return min(values) if len(values) == 2 else median(values)


def _input_ready(profile: RunProfile, warm: Stretch, allowed: Tolerances, missing: Sequence[int]) -> Criterion:
    budget = allowed.budget or profile.budget or DEFAULT_BUDGET
    if missing:
        return _unknown(INPUT_READY, _are_missing(missing), budget)
    if warm.worst_rank is None or not warm.step:
        return _unknown(INPUT_READY, "no rank recorded input: watch its loader", budget)
    if warm.steps < allowed.fewest_steps:
        return _unknown(
            INPUT_READY,
            f"{warm.steps} warm steps do not make a p99: {allowed.fewest_steps} are needed",
            budget,
        )
    figure = (warm.worst_input - warm.median_input) / warm.step
    low, high = (
        (_input(_rank(profile, warm.worst_rank), q) - warm.median_input) / warm.step
        for q in _around(_P, warm.steps, len(profile.ranks))
    )
    reason = (
        f"input p99 of rank {warm.worst_rank} is {warm.worst_input * 1e3:.1f} ms, of the median rank "
        f"{warm.median_input * 1e3:.1f} ms, over {warm.steps} steps of {warm.step * 1e3:.1f} ms"
    )
    if figure > budget >= low:
        reason += f"; it may be {low:.2g} as well: judge more steps"
    state: State = "pass" if figure <= budget else "fail" if low > budget else "unknown"
    return Criterion(
        name=INPUT_READY,
        state=state,
        reason=reason,
        figure=figure,
        tolerance=budget,
        low=low,
        high=high,
    )


def _around(q: float, number: int, ranks: int) -> tuple[float, float]:
    """Quantiles between which the true q-quantile lies: the distribution-free interval of order statistics, by the
    normal approximation of the binomial (Conover, Practical Nonparametric Statistics), at 95 % for all ranks together
    (Bonferroni)."""
    z = NormalDist().inv_cdf(1 - 0.025 / ranks)
    margin = z * sqrt(q * (1 - q) / number)
    return q - margin, min(q + margin, 1.0)


def _rank(profile: RunProfile, number: int) -> RankProfile:
    return next(rank for rank in profile.ranks if rank.rank == number)


def _why_no_correlation(
    profile: RunProfile, alignment: Alignment | None, allowed: Tolerances, missing: Sequence[int]
) -> str | None:
    if missing:
        return _are_missing(missing)
    if alignment is None:
        return "it takes step records: give --spool or --agent too"
    if len(alignment.steps) < allowed.fewest_steps:
        return f"{len(alignment.steps)} warm steps are too few to tell: {allowed.fewest_steps} are needed"
    if not (alignment.ns[:, :, Phase.INPUT_READY] > 0).any():
        return "no rank recorded input: watch its loader"
    if not alignment.waits_apart or any(rank.waits_in - {Phase.COLLECTIVE_WAIT.label} for rank in profile.ranks):
        return "the wait for other ranks was not recorded apart from computing"
    return None


def _input_wait(
    profile: RunProfile, alignment: Alignment | None, allowed: Tolerances, missing: Sequence[int]
) -> Criterion:
    tolerance = allowed.correlation
    if alignment is not None and len(alignment.ranks) < 2 and not missing:
        return Criterion(name=INPUT_WAIT, state="not applicable", reason="one rank waits for no other")
    why = _why_no_correlation(profile, alignment, allowed, missing)
    if alignment is None or why is not None:
        return _unknown(INPUT_WAIT, str(why), tolerance)
    number = len(alignment.steps)
    wait = alignment.ns[:, :, Phase.COLLECTIVE_WAIT]
    own = alignment.ns[:, :, Phase.INPUT_READY] / 1e9
    # By how much its input came before that of the latest rank, and how long it waited beyond the rank waiting least.
    ahead = own.max(axis=1, keepdims=True) - own
    waited = (wait - wait.min(axis=1, keepdims=True)) / 1e9
    read = own > 0
    found = correlation(ahead, waited, read)
    # The part of the waiting that a straight line through the pairs ascribes to late input.
    slope = max(found.figure, 0.0) * _ratio(float(waited[read].std()), float(ahead[read].std()))
    share = slope * float(ahead[read].mean()) / (float(alignment.cycle.mean()) / 1e9)
    negligible = share < allowed.negligible
    reason = (
        f"a rank's wait in the collective and the lateness of others' input correlate by {found.figure:.2f} "
        f"({found.low:.2f} to {found.high:.2f}) over {number} steps; late input explains {share:.1%} of the time"
    )
    state: State = "pass" if found.high <= tolerance or negligible else "fail" if found.low > tolerance else "unknown"
    if state == "unknown":
        reason += ": judge more steps"
    return Criterion(
        name=INPUT_WAIT,
        state=state,
        reason=reason,
        figure=found.figure,
        tolerance=tolerance,
        low=found.low,
        high=found.high,
    )


def _ratio(one: float, other: float) -> float:
    return one / other if other else 0.0


def _device_idle(profile: RunProfile, allowed: Tolerances) -> Criterion:
    ranks = [rank for rank in profile.ranks if rank.steps]
    active = {rank.rank: rank.device_active for rank in ranks if rank.device_active is not None}
    if len(active) < len(ranks) or not active:
        if not active and not any(rank.by_device for rank in ranks):
            return Criterion(
                name=DEVICE_IDLE,
                state="not applicable",
                reason="no device timed these steps, and none is known to have been busy: training on CPU",
                tolerance=allowed.idle,
            )
        return _unknown(
            DEVICE_IDLE,
            f"of {len(active)} of {len(ranks)} devices it is known how long they were busy: give --prometheus too",
            allowed.idle,
        )
    idle = {rank: 1 - share for rank, share in active.items()}
    worst = max(idle, key=lambda rank: idle[rank])
    return Criterion(
        name=DEVICE_IDLE,
        state="pass" if idle[worst] <= allowed.idle else "fail",
        reason=f"the device of rank {worst} idles {idle[worst]:.0%} of the time",
        figure=idle[worst],
        tolerance=allowed.idle,
    )


def _samples(reconciled: Reconciliation | str) -> Criterion:
    if isinstance(reconciled, str):
        return _unknown(SAMPLES, reconciled, None)
    findings = len(reconciled.findings)
    if findings:
        more = f", and {findings - 1} more" if findings > 1 else ""
        reason = reconciled.findings[0].text + more
    elif reconciled.unknown:
        reason = reconciled.unknown[0]
    else:
        judged = [epoch for epoch in reconciled.epochs if epoch.judged]
        reason = f"{len(judged)} epochs, {sum(epoch.samples - epoch.padded for epoch in judged)} samples, all once"
    states: dict[bool | None, State] = {True: "pass", False: "fail", None: "unknown"}
    return Criterion(
        name=SAMPLES,
        state=states[reconciled.clean],
        reason=reason,
        figure=float(sum(one.count for one in reconciled.findings)) if reconciled.clean is not None else None,
        tolerance=0.0,
    )


def _unknown(name: str, reason: str, tolerance: float | None) -> Criterion:
    return Criterion(name=name, state="unknown", reason=reason, tolerance=tolerance)


def _are_missing(missing: Sequence[int]) -> str:
    shown = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
    return f"rank {shown} is missing: give the agents or step logs of all hosts"

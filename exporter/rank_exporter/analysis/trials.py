"""Two trials of the same training: whether the second is to be accepted in the place of the first. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from ..phases import Phase
from .align import Alignment
from .correlation import block_bootstrap
from .criterion import Criterion, State
from .observation import Observation
from .profile import RunProfile
from .reconcile import Reconciliation

__all__ = ["DISPERSION", "FEWEST_STEPS", "MEMORY", "SAMPLES", "STEP", "Figures", "compare", "figures", "missing_of"]

Floats = npt.NDArray[np.float64]

STEP = "step"
DISPERSION = "dispersion"
MEMORY = "memory"
SAMPLES = "samples"

FEWEST_STEPS = 100
_GAIN = 0.01
"""A step that is shorter by less than this is not better."""
_TOTALS = 0.05
"""What totals alone tell of a step is not finer than this."""
_NEGLIGIBLE = 0.01
"""Dispersion of less than this share of the step cannot fall any further."""
_MEMORY = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one run: seconds of a step (p50 and p99), by which the last rank is behind the median one (mean), bytes of the
    fullest device (None: not known)."""

    steps: int
    p50: float
    p99: float
    dispersion: float
    memory: float | None


def compare(
    before: Observation, after: Observation, reconciled: Reconciliation | str
) -> tuple[tuple[Criterion, ...], Figures, Figures]:
    """Whether ``after`` is to be accepted in the place of ``before``. ``reconciled``: its samples with those of
    ``before``, or why they could not be. Figures are ratios of after to before."""
    one, other = figures(before), figures(after)
    few = _too_few(one, other) or missing_of(before.profile) or missing_of(after.profile)
    criteria = (
        _step(before, after, one, other) if few is None else Criterion(name=STEP, state="unknown", reason=few),
        _dispersion(before, after, one, other)
        if few is None
        else Criterion(name=DISPERSION, state="unknown", reason=few),
        _memory(before, after, one, other),
        _samples(reconciled),
    )
    return criteria, one, other


def figures(observation: Observation) -> Figures:
    """The figures of one run."""
    profile, alignment = observation.profile, observation.alignment
    memory = [rank.memory_bytes for rank in profile.ranks if rank.memory_bytes is not None]
    if alignment is not None:
        cycle, late = _steps(alignment), _spread(alignment)
        p50, p99, dispersion = float(np.median(cycle)), float(np.quantile(cycle, 0.99)), float(late.mean())
    else:
        steps = [rank.phases[Phase.STEP.label] for rank in profile.ranks if Phase.STEP.label in rank.phases]
        p50 = median(one.p50 for one in steps) if steps else 0.0
        p99 = median(one.p99 for one in steps) if steps else 0.0
        ready = [rank.mean(Phase.STEP) - rank.mean(Phase.COLLECTIVE_WAIT) for rank in profile.ranks if rank.steps]
        dispersion = max(ready) - (min(ready) if len(ready) == 2 else median(ready)) if ready else 0.0
    return Figures(
        steps=observation.steps, p50=p50, p99=p99, dispersion=dispersion, memory=max(memory) if memory else None
    )


def _steps(alignment: Alignment) -> Floats:
    """Seconds of each step, by the median rank's clock."""
    result: Floats = np.median(alignment.ns[:, :, Phase.STEP], axis=1) / 1e9
    return result


def _spread(alignment: Alignment) -> Floats:
    """Seconds by which the last rank of each step was behind the median one."""
    result: Floats = alignment.lateness.caused / 1e9
    return result


def _too_few(one: Figures, other: Figures) -> str | None:
    steps = min(one.steps, other.steps)
    if steps >= FEWEST_STEPS and one.p50 and other.p50:
        return None
    return f"{steps} steps are too few to compare: {FEWEST_STEPS} are needed of either run"


def missing_of(profile: RunProfile) -> str | None:
    """What is missing of the run, in one line; None where nothing is."""
    lacking = sorted(set(range(profile.world_size or 0)) - {rank.rank for rank in profile.ranks if rank.steps})
    if not lacking:
        return None
    shown = ", ".join(map(str, lacking[:8])) + (" …" if len(lacking) > 8 else "")
    return f"rank {shown} of run {profile.run} is missing: give the agents or step logs of all hosts"


def _ratio(
    before: Observation,
    after: Observation,
    series: Callable[[Alignment], Floats],
    of: Callable[[Floats], float],
    totals: tuple[float, float],
) -> tuple[float, float, float]:
    """A figure of ``after`` as a share of that of ``before``, and the interval in which it lies in 95 of 100 samples:
    the percentile interval of the ratio of independent block bootstraps. From totals alone, ± 5 %."""
    if before.alignment is None or after.alignment is None:
        ratio = totals[1] / totals[0] if totals[0] else 1.0
        return ratio, ratio * (1 - _TOTALS), ratio * (1 + _TOTALS)
    first, second = series(before.alignment), series(after.alignment)
    base = of(first)
    if not base:
        return 1.0, 1.0, 1.0
    drawn = block_bootstrap(second, of) / np.maximum(block_bootstrap(first, of)[::-1], 1e-12)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return of(second) / base, float(low), float(high)


def _step(before: Observation, after: Observation, one: Figures, other: Figures) -> Criterion:
    p50 = _ratio(before, after, _steps, lambda values: float(np.median(values)), (one.p50, other.p50))
    p99 = _ratio(before, after, _steps, lambda values: float(np.quantile(values, 0.99)), (one.p99, other.p99))
    better = [name for name, (_, _, high) in (("p50", p50), ("p99", p99)) if high < 1 - _GAIN]
    maybe = [name for name, (ratio, _, high) in (("p50", p50), ("p99", p99)) if ratio < 1 - _GAIN <= high]
    state: State = "pass" if better else "unknown" if maybe else "fail"
    said = ", ".join(
        f"{name} {a * 1e3:.1f} to {b * 1e3:.1f} ms"
        for name, a, b in (("p50", one.p50, other.p50), ("p99", one.p99, other.p99))
    )
    verdict = {
        "pass": f"{' and '.join(better)} improve{'s' if len(better) == 1 else ''}",
        "unknown": f"{' and '.join(maybe)} may improve, but not beyond doubt: judge more steps",
        "fail": f"neither improves by {_GAIN:.0%}",
    }[state]
    best = min((p50, p99))
    return Criterion(
        name=STEP,
        state=state,
        reason=f"{said}: {verdict}",
        figure=best[0],
        tolerance=1 - _GAIN,
        low=best[1],
        high=best[2],
    )


def _dispersion(before: Observation, after: Observation, one: Figures, other: Figures) -> Criterion:
    hidden = [run.profile.run for run in (before, after) if run.alignment is not None and not run.alignment.waits_apart]
    if hidden:
        reason = f"the wait for other ranks was not recorded apart from computing in run {hidden[0]}"
        return Criterion(name=DISPERSION, state="unknown", reason=reason, tolerance=1.0)
    ratio, low, high = _ratio(
        before, after, _spread, lambda values: float(values.mean()), (one.dispersion, other.dispersion)
    )
    said = (
        f"the last rank is {one.dispersion * 1e3:.2f} and {other.dispersion * 1e3:.2f} ms a step behind the median one"
    )
    state: State = "pass" if high < 1 else "fail" if low >= 1 or ratio >= 1 else "unknown"
    if state == "unknown":
        said += ": that it falls is not beyond doubt; judge more steps"
    if state != "pass" and other.dispersion <= _NEGLIGIBLE * other.p50:
        state, said = "pass", f"{said}: less than {_NEGLIGIBLE:.0%} of the step, which cannot fall much"
    return Criterion(name=DISPERSION, state=state, reason=said, figure=ratio, tolerance=1.0, low=low, high=high)


def _memory(before: Observation, after: Observation, one: Figures, other: Figures) -> Criterion:
    tolerance = 1 + _MEMORY
    if one.memory is None or other.memory is None:
        by_device = any(rank.by_device for run in (before, after) for rank in run.profile.ranks)
        known = one.memory is not None or other.memory is not None
        if by_device or known:
            reason = "the memory of the devices is not known of both runs: compare them in Prometheus"
            return Criterion(name=MEMORY, state="unknown", reason=reason, tolerance=tolerance)
        reason = "no device timed these steps: training on CPU"
        return Criterion(name=MEMORY, state="not applicable", reason=reason, tolerance=tolerance)
    ratio = other.memory / one.memory if one.memory else 1.0
    said = f"the fullest device has {one.memory / 2**30:.2f} and {other.memory / 2**30:.2f} GiB in use"
    state: State = "pass" if ratio <= tolerance else "fail"
    return Criterion(name=MEMORY, state=state, reason=said, figure=ratio, tolerance=tolerance)


def _samples(reconciled: Reconciliation | str) -> Criterion:
    if isinstance(reconciled, str):
        return Criterion(name=SAMPLES, state="unknown", reason=reconciled)
    if reconciled.findings:
        more = f", and {len(reconciled.findings) - 1} more" if len(reconciled.findings) > 1 else ""
        return Criterion(name=SAMPLES, state="fail", reason=reconciled.findings[0].text + more)
    if reconciled.clean is None:
        return Criterion(name=SAMPLES, state="unknown", reason=reconciled.unknown[0])
    judged = [epoch for epoch in reconciled.epochs if epoch.judged]
    number = sum(epoch.samples - epoch.padded for epoch in judged)
    return Criterion(name=SAMPLES, state="pass", reason=f"the same {number} samples in {len(judged)} epochs")

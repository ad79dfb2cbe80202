"""How far more GPUs go: the same training at several world sizes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from ..phases import Phase
from .observation import Observation, tax_of
from .trials import FEWEST_STEPS, missing_of

__all__ = ["Scale", "scaling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much one run gets done. ``rate``: ``unit`` per second, over all ranks; ``efficiency``: of the rate that the
    smallest run has per rank; ``tax``: share of GPU time spent waiting for the last rank, None where not known."""

    run: str
    world_size: int
    steps: int
    step: float
    unit: str
    rate: float
    efficiency: float
    tax: float | None


def scaling(observations: Sequence[Observation], unit: str | None = None) -> tuple[Scale, ...] | str:
    """The runs by size, or, in one line, why they cannot be compared. ``unit``: tokens or samples; by default tokens
    where every run counts them, else samples."""
    if len(observations) < 2:
        return "one run has nothing to scale against: give runs at several world sizes"
    for one in observations:
        if (lacking := missing_of(one.profile)) is not None:
            return lacking
        if one.steps < FEWEST_STEPS:
            return f"{one.steps} steps of run {one.profile.run} are too few: {FEWEST_STEPS} are needed"
    units = [unit] if unit else ["tokens", "samples"]
    counted = next((name for name in units if all(_count(one, name) > 0 for one in observations)), None)
    if counted is None:
        return f"not every run counts {' or '.join(units)}: use exporter.count"
    found = sorted(observations, key=lambda one: len(one.profile.ranks))
    if len({len(one.profile.ranks) for one in found}) < 2:
        return f"all runs have {len(found[0].profile.ranks)} ranks: give runs at several world sizes"
    base = _rate(found[0], counted) / len(found[0].profile.ranks)
    return tuple(
        Scale(
            run=one.profile.run,
            world_size=len(one.profile.ranks),
            steps=one.steps,
            step=_seconds(one) / one.steps,
            unit=counted,
            rate=_rate(one, counted),
            efficiency=_rate(one, counted) / len(one.profile.ranks) / base,
            tax=tax.share if (tax := tax_of(one)) is not None else None,
        )
        for one in found
    )


def _count(observation: Observation, unit: str) -> int:
    return sum(getattr(rank, unit) for rank in observation.profile.ranks)


def _seconds(observation: Observation) -> float:
    """That the steps took, by the median rank's clock; what lies beside the steps is left out."""
    if observation.alignment is not None:
        return float(np.median(observation.alignment.ns[:, :, Phase.STEP], axis=1).sum()) / 1e9
    return median(rank.mean(Phase.STEP) for rank in observation.profile.ranks) * observation.steps


def _rate(observation: Observation, unit: str) -> float:
    return _count(observation, unit) / _seconds(observation)

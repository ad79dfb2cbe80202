"""What only aligned steps can tell: who caused delay, step by step, and what all ranks suffer alike. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..lateness import median_rank
from ..phases import Phase
from .align import Alignment

__all__ = ["Costs", "bursts", "costs", "covary"]

_FEW = 0.3
_MOST_OF_IT = 0.8
_USUAL = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Shares of the ranks' time in steps. ``exposed``: waiting for the last rank. ``floor``: what even the last rank
    waits. ``input``: what the median rank of each step waits for input. ``caused``: seconds of delay by rank;
    ``typically``: the same, but of no step more than of nine steps in ten, so that a start of the run that took one
    rank very long does not outweigh the rest."""

    seconds: float
    exposed: float
    floor: float
    input: float
    caused: dict[int, float]
    typically: dict[int, float]

    def share(self, rank: int) -> float:
        """The rank's part of all delay caused; 0 where there was none."""
        return _share(self.caused, rank)

    def typical_share(self, rank: int) -> float:
        """The same, single steps left aside."""
        return _share(self.typically, rank)


def _share(caused: dict[int, float], rank: int) -> float:
    total = sum(caused.values())
    return caused.get(rank, 0.0) / total if total else 0.0


def costs(alignment: Alignment) -> Costs:
    """What the steps cost, and who caused it."""
    cycle = float(alignment.cycle.mean(axis=1).sum()) / 1e9
    wait = alignment.ns[:, :, Phase.COLLECTIVE_WAIT]
    late = alignment.lateness
    usual = np.minimum(late.caused, np.quantile(late.caused, _USUAL))
    places = [(rank.rank, late.last == place) for place, rank in enumerate(alignment.ranks)]
    number = len(alignment.ranks)
    inputs = alignment.ns[:, :, Phase.INPUT_READY]
    return Costs(
        seconds=cycle,
        exposed=float(late.exposed.sum()) / 1e9 / number / cycle if cycle else 0.0,
        floor=float(wait.min(axis=1).sum()) / 1e9 / cycle if cycle else 0.0,
        input=float(median_rank(inputs, inputs > 0).sum()) / 1e9 / cycle if cycle else 0.0,
        caused={rank: float(late.caused[own].sum()) / 1e9 for rank, own in places},
        typically={rank: float(usual[own].sum()) / 1e9 for rank, own in places},
    )


def bursts(alignment: Alignment) -> int | None:
    """Every how many steps input stalls, if most of the waiting is in few steps; else None."""
    own = alignment.ns[:, :, Phase.INPUT_READY]
    waits = median_rank(own, own > 0)
    total = waits.sum()
    if len(waits) < 2 or not total:
        return None
    stalls = waits > np.quantile(waits, 0.99) / 2
    if waits[stalls].sum() < _MOST_OF_IT * total or stalls.mean() > _FEW:
        return None
    return round(len(waits) / int(stalls.sum()))


def covary(alignment: Alignment) -> float | None:
    """Correlation of the ranks' waits for input across steps: Pearson's, mean over ranks with the mean of the others.
    None where they do not vary."""
    own = alignment.ns[:, :, Phase.INPUT_READY].astype(np.float64)
    own = own[(own > 0).all(axis=1)]
    if len(own) < 3 or own.shape[1] < 2:
        return None
    found = []
    for rank in range(own.shape[1]):
        others = np.delete(own, rank, axis=1).mean(axis=1)
        if own[:, rank].std() < 0.02 * own[:, rank].mean() or others.std() == 0:
            return None
        found.append(np.corrcoef(own[:, rank], others)[0, 1])
    return float(np.mean(found))

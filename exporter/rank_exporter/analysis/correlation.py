"""How far two figures of the same steps go together, and how sure that is. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Estimate", "block_bootstrap", "correlation"]

Floats = npt.NDArray[np.float64]

_RESAMPLES = 1000
_SEED = 20_240_229
_COVERAGE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A figure with the interval that covers it in 95 of 100 samples; ``number`` of observations."""

    figure: float
    low: float
    high: float
    number: int


def correlation(one: Floats, other: Floats, known: npt.NDArray[np.bool_] | None = None) -> Estimate:
    """Pearson's correlation of two figures over steps and ranks, shape (S, R); ``known``: which pairs count.

    The interval is the percentile interval of the circular block bootstrap (Politis and Romano, A circular block
    resampling procedure for stationary data, 1992) of whole steps, in blocks of S^(1/3), since steps that follow each
    other, and ranks of the same step, are alike. The resamples are the same each time. What does not vary correlates
    with nothing: 0.
    """
    counted = np.ones(one.shape) if known is None else known.astype(np.float64)
    x, y = one * counted, other * counted
    series = np.stack([figure.sum(axis=1) for figure in (counted, x, y, x * x, y * y, x * y)])
    pairs = int(counted.sum())
    if not pairs:
        return Estimate(figure=0.0, low=0.0, high=0.0, number=0)
    figure = float(_pearson(series.sum(axis=1)))
    low, high = _interval(_pearson(_resampled_sums(series)))
    return Estimate(figure=figure, low=low, high=high, number=pairs)


def _pearson(sums: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x, y, xx, yy, xy = sums[1:] / np.maximum(sums[0], 1)
    # Differences of squares that are nothing but rounding are no variation.
    spread_x, spread_y = (np.where(v > 1e-9 * m, v, 0) for v, m in ((xx - x * x, xx), (yy - y * y, yy)))
    spread = np.sqrt(spread_x * spread_y)
    result: npt.NDArray[np.float64] = np.where(spread > 0, (xy - x * y) / np.where(spread > 0, spread, 1), 0.0)
    return result.clip(-1, 1)


def _resampled_sums(series: Floats) -> Floats:
    """Sums over each resample: (series, steps) to (series, resamples)."""
    length = series.shape[1]
    block = max(round(length ** (1 / 3)), 1)
    blocks = -(-length // block)
    running = np.cumsum(np.concatenate([np.zeros((len(series), 1)), series, series[:, :block]], axis=1), axis=1)
    of_block = running[:, block : block + length] - running[:, :length]
    random = np.random.default_rng(_SEED)
    sums = np.empty((len(series), _RESAMPLES))
    for place in range(_RESAMPLES):
        sums[:, place] = of_block[:, random.integers(0, length, blocks)].sum(axis=1)
    return sums


def block_bootstrap(values: Floats, of: Callable[[Floats], float], *, resamples: int = 300) -> Floats:
    """``of`` each resample of the values (n,), by the same circular blocks: shape (resamples,)."""
    length = len(values)
    block = max(round(length ** (1 / 3)), 1)
    blocks = -(-length // block)
    random = np.random.default_rng(_SEED)
    offsets = np.arange(block)
    found = np.empty(resamples)
    for place in range(resamples):
        starts = random.integers(0, length, blocks)
        found[place] = of(values[(starts[:, None] + offsets).reshape(-1)[:length] % length])
    return found


def _interval(values: Floats) -> tuple[float, float]:
    tail = (1 - _COVERAGE) / 2
    low, high = np.quantile(values, [tail, 1 - tail])
    return float(low), float(high)

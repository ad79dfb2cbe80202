"""What waiting for the slowest rank costs a job."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Tax", "scaling_tax"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tax:
    """GPU time spent waiting for a rank that was not ready.

    ``gpu_seconds``: over all steps. ``share``: of the GPU time of those steps, None where their duration is unknown.
    """

    steps: int
    gpu_seconds: float
    share: float | None = None

    @property
    def gpu_seconds_per_step(self) -> float:
        """Mean over the steps; 0 without any."""
        return self.gpu_seconds / self.steps if self.steps else 0.0

    @property
    def gpu_hours(self) -> float:
        """Over all steps."""
        return self.gpu_seconds / 3600


def scaling_tax(
    wait_seconds: npt.ArrayLike, *, step_seconds: npt.ArrayLike | None = None, steps: int | None = None
) -> Tax:
    """Σ over steps and ranks of the wait beyond the step's minimum: what even the last rank waits is the fabric's.

    wait_seconds: shape (S, R), or (R,) for one step: each rank's wait in the collective. step_seconds: same shape, how
    long the step took each rank. steps: take the given ones, S, as typical of so many.

    >>> ready = np.array([0.9] * 7 + [1.2])
    >>> tax = scaling_tax(ready.max() - ready, steps=10_000)
    >>> round(tax.gpu_seconds_per_step, 6), round(tax.gpu_seconds), round(tax.gpu_hours, 2)
    (2.1, 21000, 5.83)
    """
    waits = np.atleast_2d(np.asarray(wait_seconds, dtype=np.float64))
    if not waits.size:
        return Tax(steps=0, gpu_seconds=0.0)
    exposed = float((waits - waits.min(axis=1, keepdims=True)).sum())
    share = None
    if step_seconds is not None:
        spent = float(np.asarray(step_seconds, dtype=np.float64).sum())
        share = exposed / spent if spent else 0.0
    number = len(waits) if steps is None else steps
    return Tax(steps=number, gpu_seconds=exposed * number / len(waits), share=share)

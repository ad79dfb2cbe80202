"""Who a synchronous step waited for, and what that cost: arithmetic on the records of several ranks.

All ranks leave a collective together, so what a rank does from the end of one to its own arrival at the next can be
compared without a common clock. A record runs from the end of one optimizer to the end of the next, hence the
optimizer that precedes the collective of step k stands in record k-1:

    ready[k] = optimizer[k-1] + step[k] + first_batch[k] + eval[k] + checkpoint[k] - collective_wait[k] - optimizer[k]

Who waits least in a step was the last to be ready. Integer ns throughout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from .phases import BESIDE_STEP, IN_STEP, Phase

__all__ = ["UNKNOWN", "Lateness", "lateness", "median_rank"]

Integers = npt.NDArray[np.int64]

UNKNOWN: Final = -1
"""The optimizer before a step whose previous record is missing; a skew of a phase that no rank was in."""

_WORK: Final = [int(phase) for phase in (*IN_STEP, *BESIDE_STEP) if phase is not Phase.COLLECTIVE_WAIT]
_BESIDE: Final = [int(phase) for phase in BESIDE_STEP]
_NEVER: Final = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """S steps of R ranks, compared. Times in ns.

    ready (S, R): from the end of the previous collective to arrival at this one. last (S,): place of the rank that
    was last. caused (S,): its readiness beyond the median rank's, at least 0. phase (S,): the Phase in which it
    exceeds the median rank most. exposed (S,): Σ over ranks of wait beyond the step's minimum. skew (S, phases):
    maximum less median of each phase, UNKNOWN where no rank was in it.
    """

    ready: Integers
    last: npt.NDArray[np.intp]
    caused: Integers
    phase: npt.NDArray[np.intp]
    exposed: Integers
    skew: Integers


def median_rank(values: Integers, observed: npt.NDArray[np.bool_] | None = None) -> Integers:
    """The median over axis 1, rounded down; of two the lower: to the slower of two ranks, the other one is the median.

    values: shape (S, R, …). observed: same shape; what is False is left out, and where all is, the result is 0.
    """
    if observed is None:
        ordered = np.sort(values, axis=1)
        number: npt.NDArray[Any] = np.full((values.shape[0], 1, *values.shape[2:]), values.shape[1])
    else:
        ordered = np.sort(np.where(observed, values, _NEVER), axis=1)
        number = observed.sum(axis=1, keepdims=True)
    lower = np.take_along_axis(ordered, np.maximum(number - 1, 0) // 2, axis=1)
    upper = np.take_along_axis(ordered, np.minimum(number // 2, values.shape[1] - 1), axis=1)
    middle = np.where(number == 2, lower, lower + (upper - lower) // 2)
    result: Integers = np.where(number > 0, middle, 0).squeeze(axis=1)
    return result


def lateness(ns: Integers, optimizer_before: Integers) -> Lateness:
    """Compare ranks step by step.

    ns: shape (S, R, len(Phase)), durations of S steps on R ≥ 1 ranks, 0 where a rank was not in the phase.
    optimizer_before: shape (S, R), the optimizer phase of the step before; where it is UNKNOWN on any rank, that
    step is compared without it.

    Where every rank waited, the last is the one that waited least; where some did not (their loop cannot tell
    waiting from backward), it is the one whose readiness is greatest. Ranks that are not in a phase within the step
    have no part in that phase's median.
    """
    before = np.where((optimizer_before < 0).any(axis=1, keepdims=True), 0, optimizer_before)
    wait = ns[:, :, Phase.COLLECTIVE_WAIT]
    work = ns.copy()
    work[:, :, Phase.OPTIMIZER] = before
    ready: Integers = work[:, :, _WORK].sum(axis=2)
    last = np.where((wait > 0).all(axis=1), wait.argmin(axis=1), ready.argmax(axis=1))
    rows = np.arange(len(ns))
    caused = np.maximum(ready[rows, last] - median_rank(ready), 0)
    observed = work > 0
    # Who neither evaluates nor saves has done so in no time.
    observed[:, :, _BESIDE] = True
    excess = work[rows, last] - median_rank(work, observed)
    phase = np.asarray(_WORK)[excess[:, _WORK].argmax(axis=1)]
    observed[:, :, Phase.OPTIMIZER] = ns[:, :, Phase.OPTIMIZER] > 0
    skew = ns.max(axis=1) - median_rank(ns, observed)
    skew[(ns == 0).all(axis=1)] = UNKNOWN
    exposed = (wait - wait.min(axis=1, keepdims=True)).sum(axis=1)
    return Lateness(ready=ready, last=last, caused=caused, phase=phase, exposed=exposed, skew=skew)

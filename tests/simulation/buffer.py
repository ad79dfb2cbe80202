"""Steps of a run between their simulation and the scrape that first shows them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rank_exporter.lateness import UNKNOWN, lateness
from rank_exporter.phases import Phase

from .run import Run
from .steps import Steps, simulate

__all__ = ["ALIGNING_SECONDS", "Buffer", "Rows"]

ALIGNING_SECONDS = 2.0
"""How long the aligning agent is behind the steps: it asks its peers every second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """S steps of R ranks.

    number (S,). ns (S, R, phases). ends, tokens, added, alive (S, R). slot (S, R): the first scrape that shows the step
    of that rank. aligned_slot (S,): the same of what is aligned. What lateness says, with ranks by their number: last,
    caused, phase, exposed (S,); skew (S, phases).
    """

    number: npt.NDArray[np.int64]
    ns: npt.NDArray[np.int64]
    ends: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]
    added: npt.NDArray[np.float64]
    alive: npt.NDArray[np.bool_]
    slot: npt.NDArray[np.int64]
    aligned_slot: npt.NDArray[np.int64]
    last: npt.NDArray[np.int64]
    caused: npt.NDArray[np.int64]
    phase: npt.NDArray[np.int64]
    exposed: npt.NDArray[np.int64]
    skew: npt.NDArray[np.int64]


class Buffer:
    """Simulates as far as is asked for, and forgets what is shown. ``offset`` (R,): seconds of each rank's scrapes."""

    def __init__(self, run: Run, scrape: float, offset: npt.NDArray[np.float64]) -> None:
        self._steps: Iterator[Steps] = simulate(run, math.inf)
        self._scrape = scrape
        self._offset = offset
        self._optimizer = np.full(run.ranks, UNKNOWN, dtype=np.int64)
        self._alive = np.ones(run.ranks, dtype=bool)
        self._rows: list[Rows] = []

    def until(self, scrape: int) -> Rows | None:
        """All steps not forgotten, up to at least one that each living rank ends after this scrape."""
        while not self._rows or min(self._rows[-1].slot[-1].min(), self._rows[-1].aligned_slot[-1]) <= scrape:
            steps = next(self._steps, None)
            if steps is None:
                break
            self._rows.append(self._compare(steps))
        if len(self._rows) > 1:
            self._rows = [_concatenate(self._rows)]
        return self._rows[0] if self._rows else None

    def forget(self, scrape: int) -> None:
        """Drop the steps that were shown before this scrape, but for the last one."""
        if not self._rows:
            return
        rows = self._rows[0]
        later = (rows.slot >= scrape).any(axis=1) | (rows.aligned_slot >= scrape)
        first = int(later.argmax()) if later.any() else len(later)
        self._rows = [_cut(rows, max(first - 1, 0))]

    def _compare(self, steps: Steps) -> Rows:
        alive = steps.alive
        if (alive != self._alive).any():
            self._optimizer[:] = UNKNOWN
        self._alive = alive
        ns = steps.ns[:, alive]
        before = np.vstack([self._optimizer[alive], ns[:-1, :, Phase.OPTIMIZER]])
        late = lateness(ns, before)
        self._optimizer = steps.ns[-1, :, Phase.OPTIMIZER].copy()
        known = steps.ends[:, alive].max(axis=1) + ALIGNING_SECONDS
        return Rows(
            number=steps.first + np.arange(len(ns)),
            ns=steps.ns,
            ends=steps.ends,
            tokens=steps.tokens,
            added=steps.added,
            alive=np.broadcast_to(alive, steps.ends.shape),
            slot=self._slots(steps.ends, self._offset),
            aligned_slot=self._slots(known, self._offset[0]),
            last=np.flatnonzero(alive)[late.last],
            caused=late.caused,
            phase=late.phase,
            exposed=late.exposed,
            skew=late.skew,
        )

    def _slots(self, ends: npt.NDArray[np.float64], offset: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
        return np.ceil((ends - offset) / self._scrape).astype(np.int64)


def _concatenate(parts: list[Rows]) -> Rows:
    names = Rows.__slots__
    return Rows(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _cut(rows: Rows, first: int) -> Rows:
    return Rows(**{name: getattr(rows, name)[first:] for name in Rows.__slots__})

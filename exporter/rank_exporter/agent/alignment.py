"""Steps of one generation as they come in from its ranks, until all have a step and it can be compared. No I/O."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..lateness import UNKNOWN, Lateness, lateness
from ..phases import Phase
from ..segment.records import plausible

__all__ = ["PATIENCE_SECONDS", "Batch", "Window", "capacity_for"]

PATIENCE_SECONDS: Final = 8.0
"""How long a step waits for ranks that have not told theirs while most have."""
_MEMORY_BYTES: Final = 16 << 20
_FEWEST, _MOST = 64, 2048
_STEP_BYTES: Final = 8 * (len(Phase) + 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Consecutive steps that were seen from the same ranks. ranks (R,). shard: slots, (S, R). steps (S,)."""

    ranks: npt.NDArray[np.intp]
    steps: npt.NDArray[np.int64]
    shard: npt.NDArray[np.int64]
    ns: npt.NDArray[np.int64]
    lateness: Lateness


def capacity_for(world_size: int) -> int:
    """How many steps are kept, so that those of up to 2,500 ranks take 16 MiB at most."""
    return max(_FEWEST, min(_MOST, _MEMORY_BYTES // (_STEP_BYTES * world_size)))


class Window:
    """The next ``capacity`` steps to be aligned, from ``first`` on. Not thread-safe.

    A step is over once every rank has told it. Ranks that have not, while more than half have, are given up after
    ``patience_seconds``, and waited for again once they have caught up; half the ranks or fewer make no step.
    Records that are implausible, too old, or beyond the window are not taken.
    """

    def __init__(
        self,
        world_size: int,
        *,
        first: int = 1,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.next_step = first
        self.capacity = capacity_for(world_size)
        self._patience = patience_seconds
        self._clock = clock
        self._quorum = world_size // 2 + 1
        shape = (self.capacity, world_size)
        self._number = np.zeros(shape, dtype=np.int64)
        self._shard = np.zeros(shape, dtype=np.int64)
        self._ns = np.zeros((*shape, len(Phase)), dtype=np.int64)
        self._told = np.full(world_size, first - 1, dtype=np.int64)
        self._before = np.full(world_size, UNKNOWN, dtype=np.int64)
        self._missing = np.zeros(world_size, dtype=np.bool_)
        self._beyond = np.zeros(world_size, dtype=np.int64)
        self._stalled_at: float | None = None

    def told(self, rank: int) -> int:
        """The last step that the rank has told, or that it need not tell any more."""
        return max(int(self._told[rank]), self.next_step - 1)

    def room(self, rank: int) -> int:
        """How many further steps of the rank can be taken now."""
        return max(self.next_step + self.capacity - 1 - self.told(rank), 0)

    @property
    def missing(self) -> list[int]:
        """Ranks that are not waited for."""
        return [int(rank) for rank in np.flatnonzero(self._missing)]

    def add(self, rank: int, records: npt.NDArray[Any]) -> None:
        """Take what a rank tells: shape (n,), dtype STEP_DTYPE, ascending."""
        records = records[plausible(records)]
        steps = records["step"].astype(np.int64)
        fits = (steps > self.told(rank)) & (steps < self.next_step + self.capacity)
        self._beyond[rank] = 0
        if not fits.any():
            if len(steps) and steps[0] >= self.next_step + self.capacity:
                self._beyond[rank] = steps[0]
            return
        steps, records = steps[fits], records[fits]
        places = steps % self.capacity
        self._number[places, rank] = steps
        self._shard[places, rank] = records["shard"]
        self._ns[places, rank] = records["ns"]
        self._told[rank] = steps[-1]

    def take(self) -> Iterator[Batch]:
        """The steps that are over, in order, each once."""
        self._jump()
        while True:
            ahead = int(self._told.max()) - self.next_step + 1
            if ahead <= 0:
                self._stalled_at = None
                return
            steps = np.arange(self.next_step, self.next_step + min(ahead, self.capacity))
            there = self._number[steps % self.capacity] == steps[:, None]
            self._missing &= ~there[0]
            over = (there | self._missing).all(axis=1) & (there.sum(axis=1) >= self._quorum)
            number = len(steps) if over.all() else int(over.argmin())
            if number:
                self._stalled_at = None
                yield from self._batches(steps[:number], there[:number])
            elif not self._give_up(steps, there):
                return

    def _jump(self) -> None:
        """Where most ranks' rings have lost every step of the window, go on with the first that any still holds."""
        beyond = self._beyond[self._beyond > 0]
        if len(beyond) >= self._quorum:
            self._skip_to(int(beyond.min()))
            self._beyond[:] = 0

    def _skip_to(self, step: int) -> None:
        self.next_step = step
        self._before[:] = UNKNOWN
        self._stalled_at = None

    def _give_up(self, steps: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> bool:
        """Whether to go on without the ranks that hold up the next step."""
        enough = np.flatnonzero(there.sum(axis=1) >= self._quorum)
        if not len(enough):
            return False
        now = self._clock()
        if self._stalled_at is None:
            self._stalled_at = now
        if now - self._stalled_at < self._patience:
            return False
        # Steps that most ranks have lost from their rings are lost.
        first = int(enough[0])
        self._missing |= ~there[first]
        if first:
            self._skip_to(int(steps[first]))
        self._stalled_at = None
        return True

    def _batches(self, steps: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]) -> Iterator[Batch]:
        changes = np.flatnonzero((there[1:] != there[:-1]).any(axis=1)) + 1
        edges = [0, *(int(place) for place in changes), len(steps)]
        for begin, end in pairwise(edges):
            yield self._batch(steps[begin:end], np.flatnonzero(there[begin]))

    def _batch(self, steps: npt.NDArray[np.int64], ranks: npt.NDArray[np.intp]) -> Batch:
        at = np.ix_(steps % self.capacity, ranks)
        ns = self._ns[at]
        before = np.empty(ns.shape[:2], dtype=np.int64)
        before[0] = self._before[ranks]
        before[1:] = ns[:-1, :, Phase.OPTIMIZER]
        self._before[:] = UNKNOWN
        self._before[ranks] = ns[-1, :, Phase.OPTIMIZER]
        self.next_step = int(steps[-1]) + 1
        return Batch(ranks=ranks, steps=steps, shard=self._shard[at], ns=ns, lateness=lateness(ns, before))

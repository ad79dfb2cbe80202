"""What was measured of a run, as plain data: per rank and phase a distribution, and nothing about how it was read."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..phases import Phase

__all__ = ["Cell", "Distribution", "ExactPhase", "PhaseProfile", "RankProfile", "RunProfile"]


class Distribution(Protocol):
    """Durations of one phase on one rank: from a histogram, or each of them."""

    @property
    def count(self) -> int:
        """Observations."""
        ...

    @property
    def total_seconds(self) -> float:
        """Exact sum of the durations."""
        ...

    @property
    def mean(self) -> float:
        """Exact mean in seconds; 0 without observations."""
        ...

    @property
    def p50(self) -> float:
        """Median in seconds."""
        ...

    @property
    def p99(self) -> float:
        """99th percentile in seconds."""
        ...

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds, 0 ≤ q ≤ 1; 0 without observations."""
        ...

    def above(self, seconds: float) -> int:
        """How many observations are known to be longer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProfile:
    """Durations of one phase on one rank, counted.

    ``edges``: upper bounds of the buckets in seconds, ascending, the last one infinite. ``cumulative``: as many
    integers, observations at or below each edge. ``total_seconds`` is the exact sum of the durations.
    """

    count: int
    total_seconds: float
    edges: tuple[float, ...]
    cumulative: tuple[int, ...]

    @property
    def mean(self) -> float:
        """Exact mean in seconds; 0 without observations."""
        return self.total_seconds / self.count if self.count else 0.0

    @property
    def p50(self) -> float:
        """Median in seconds, read from the buckets."""
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        """99th percentile in seconds, read from the buckets."""
        return self.quantile(0.99)

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds, 0 ≤ q ≤ 1, linear within its bucket as Prometheus' histogram_quantile has it.

        Beyond the last finite edge that edge is all that is known, and returned. 0 without observations.
        """
        if not self.count:
            return 0.0
        wanted = q * self.cumulative[-1]
        lower, below = 0.0, 0
        for edge, running in zip(self.edges, self.cumulative, strict=True):
            if running >= wanted and running > below:
                if edge == float("inf"):
                    return lower
                return lower + (edge - lower) * (wanted - below) / (running - below)
            lower, below = edge, running
        return lower

    def above(self, seconds: float) -> int:
        """Observations beyond the bucket in which ``seconds`` lies."""
        if not self.count:
            return 0
        place = min(bisect_left(self.edges, seconds), len(self.edges) - 1)
        return self.cumulative[-1] - self.cumulative[place]


class ExactPhase:
    """Durations of one phase on one rank, each of them known. seconds: shape (n,)."""

    __slots__ = ("_ordered", "total_seconds")

    def __init__(self, seconds: npt.NDArray[np.float64]) -> None:
        self._ordered = np.sort(seconds)
        self.total_seconds = float(seconds.sum())

    @property
    def count(self) -> int:
        """Observations."""
        return len(self._ordered)

    @property
    def mean(self) -> float:
        """Mean in seconds; 0 without observations."""
        return self.total_seconds / self.count if self.count else 0.0

    @property
    def p50(self) -> float:
        """Median in seconds."""
        return self.quantile(0.5)

    @property
    def p99(self) -> float:
        """99th percentile in seconds."""
        return self.quantile(0.99)

    def quantile(self, q: float) -> float:
        """The q-quantile in seconds, linear between neighbours; 0 without observations."""
        if not self.count:
            return 0.0
        place = q * (self.count - 1)
        lower = int(place)
        upper = min(lower + 1, self.count - 1)
        return float(self._ordered[lower] + (self._ordered[upper] - self._ordered[lower]) * (place - lower))

    def above(self, seconds: float) -> int:
        """Observations that are longer."""
        return self.count - int(np.searchsorted(self._ordered, seconds, side="right"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """One rank. ``phases`` holds only phases with observations, by name.

    ``shard``: where most of its input time went, or what it reads now; None if it named none.
    ``last_step_timestamp``: Unix seconds by the clock of its host. ``samples``, ``tokens``: counted over the same
    steps; 0 where the run counts none. ``waits_in``: names of phases that include waiting for other ranks.
    ``in_progress``: the phase that the rank is in, and for how many seconds now; None where that was not asked.
    ``device_active``: share of the time in which its device was busy; ``memory_bytes``: the most that was in use of its
    memory; None where nobody measured it. ``cpus_allowed``: CPUs that the process, and its workers, may use.
    ``ready``: time from the end of one collective to its arrival at the next; None where only phases are known.
    """

    rank: int
    host: str
    shard: str | None
    steps: int
    phases: Mapping[str, Distribution]
    last_step_timestamp: float | None = None
    samples: int = 0
    tokens: int = 0
    waits_in: frozenset[str] = frozenset()
    in_progress: tuple[str, float] | None = None
    by_device: bool = False
    device_active: float | None = None
    memory_bytes: float | None = None
    cpus_allowed: Mapping[str, float] = field(default_factory=dict)
    ready: Distribution | None = None

    def mean(self, phase: Phase) -> float:
        """Mean seconds a step in this phase; 0 where it was never observed."""
        found = self.phases.get(phase.label)
        return found.mean if found else 0.0

    def per_step(self, phase: Phase) -> float:
        """Seconds in this phase over the number of steps: for what does not happen in every step."""
        found = self.phases.get(phase.label)
        return found.total_seconds / self.steps if found and self.steps else 0.0

    @property
    def began(self) -> float | None:
        """Unix seconds at which the first step began: steps follow each other without a gap. None if unknown."""
        step = self.phases.get(Phase.STEP.label)
        if step is None or self.last_step_timestamp is None:
            return None
        return self.last_step_timestamp - step.total_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """What one rank spent on input beyond the median rank while it sat on one host and read one shard.

    ``excess``: mean seconds a step. ``generation``: tells restarts apart; 0 where it is not known.
    """

    rank: int
    host: str
    shard: str
    steps: int
    excess: float
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile:
    """One run: the ranks found, ordered by rank, and what the run says of itself (None where it says nothing).

    ``exposed_seconds``: GPU-seconds of waiting for the last rank, over ``exposed_steps`` steps that were aligned;
    None where none were. ``cells``: input by host and shard, empty where shards are not known. ``pressure``: share of
    the time in which some task of a host had no CPU, by host. ``caused``: seconds of delay by the rank that caused it,
    as far as steps were aligned while the run went on.
    """

    run: str
    ranks: tuple[RankProfile, ...]
    world_size: int | None = None
    budget: float | None = None
    exposed_seconds: float | None = None
    exposed_steps: int = 0
    cells: tuple[Cell, ...] = ()
    pressure: Mapping[str, float] = field(default_factory=dict)
    caused: Mapping[int, float] = field(default_factory=dict)

    def rank(self, number: int) -> RankProfile | None:
        """One rank's profile; None if it was not found."""
        return next((rank for rank in self.ranks if rank.rank == number), None)

"""What was measured of a run, as plain data: per rank and phase a histogram, and nothing about how it was read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..phases import Phase

__all__ = ["PhaseProfile", "RankProfile", "RunProfile"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseProfile:
    """Durations of one phase on one rank.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankProfile:
    """One rank. ``phases`` holds only phases with observations, by name.

    ``shard``: where most of its input time went, or what it reads now; None if it named none.
    ``last_step_timestamp``: Unix seconds by the clock of its host.
    """

    rank: int
    host: str
    shard: str | None
    steps: int
    phases: Mapping[str, PhaseProfile]
    last_step_timestamp: float | None = None

    def mean(self, phase: Phase) -> float:
        """Mean seconds a step in this phase; 0 where it was never observed."""
        found = self.phases.get(phase.label)
        return found.mean if found else 0.0

    @property
    def began(self) -> float | None:
        """Unix seconds at which the first step began: steps follow each other without a gap. None if unknown."""
        step = self.phases.get(Phase.STEP.label)
        if step is None or self.last_step_timestamp is None:
            return None
        return self.last_step_timestamp - step.total_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProfile:
    """One run: the ranks found, ordered by rank, and what the run says of itself (None where it says nothing)."""

    run: str
    ranks: tuple[RankProfile, ...]
    world_size: int | None = None
    budget: float | None = None

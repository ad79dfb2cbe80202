"""The grid on which durations are counted, and what is derived from it.

Durations are counted in a base-2 exponential histogram of schema 5, as OpenTelemetry and Prometheus
define it: bucket boundaries at 2**(i/32) seconds, each bucket open below and closed above, 2.2 % wide.
The classic bucket edges are boundaries of the same grid, so deriving them loses nothing.
"""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "BUCKETS",
    "COARSE_EDGES",
    "FINE_EDGES",
    "LAST",
    "OFFSET",
    "PER_OCTAVE",
    "SHORT_EDGES",
    "bucket_index",
    "cumulative",
    "edge_seconds",
]

PER_OCTAVE: Final = 32
LOWEST_EXPONENT: Final = -20
"""Bucket 0 holds everything up to 2**-20 s, about 1 µs."""
HIGHEST_EXPONENT: Final = 11
"""The last bucket holds everything beyond 2**11 s, about 34 min."""
BUCKETS: Final = (HIGHEST_EXPONENT - LOWEST_EXPONENT) * PER_OCTAVE + 2

# A duration that lies on a boundary belongs below it; the epsilon keeps log2's rounding from lifting it over.
OFFSET: Final = log2(1e9) * PER_OCTAVE + LOWEST_EXPONENT * PER_OCTAVE + 1e-9
"""PER_OCTAVE * log2(ns) at the lower end of the grid."""
LAST: Final = BUCKETS - 1

_FINE_PER_OCTAVE: Final = 4


def bucket_index(nanoseconds: int) -> int:
    """Bucket of a positive duration in ns: 0 ≤ index < BUCKETS.

    >>> bucket_index(1_000_000_000) == bucket_index(1_000_000_001) - 1
    True
    """
    index = ceil(log2(nanoseconds) * PER_OCTAVE - OFFSET)
    if index < 0:
        return 0
    return index if index < LAST else LAST


def edge_seconds(index: int) -> float:
    """Upper edge in seconds of the bucket with this index; infinite for the last."""
    return float("inf") if index >= LAST else 2.0 ** (LOWEST_EXPONENT + index / PER_OCTAVE)


def _edges(*exponents: float) -> tuple[int, ...]:
    return tuple(int((exponent - LOWEST_EXPONENT) * PER_OCTAVE) for exponent in exponents)


COARSE_EDGES: Final[tuple[int, ...]] = _edges(*range(-10, 11))
"""Indices of classic edges that double, 1 ms … 17 min, for phases beside the step."""

SHORT_EDGES: Final[tuple[int, ...]] = _edges(*range(-14, 7))
"""Indices of classic edges that double, 61 µs … 64 s, for gradient buckets."""

FINE_EDGES: Final[tuple[int, ...]] = _edges(*(k / _FINE_PER_OCTAVE for k in range(-40, 25)), 7, 8, 9, 10)
"""Indices of classic edges that grow by 2**(1/4) from 1 ms to 64 s and double from there to 17 min."""


def cumulative(counts: npt.NDArray[np.uint64], edges: tuple[int, ...]) -> list[int]:
    """Cumulative counts at classic edges, and in the end the total.

    ``counts``: shape (BUCKETS,), observations per bucket. Returns len(edges) + 1 integers.
    """
    found: list[int] = counts.cumsum().take((*edges, LAST)).tolist()
    return found

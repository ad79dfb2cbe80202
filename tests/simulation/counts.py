"""Cumulative counts at scrapes, carried from one chunk of scrapes to the next."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rank_exporter.agent.buckets import EDGES
from rank_exporter.histogram import LAST, OFFSET, PER_OCTAVE
from rank_exporter.phases import Phase

__all__ = ["BucketCounter", "Counter", "grid"]

Integers = npt.NDArray[np.int64]


def grid(ns: Integers) -> Integers:
    """Place of durations in ns on the grid, as histogram.bucket_index has it."""
    places = np.ceil(np.log2(np.maximum(ns, 1)) * PER_OCTAVE - OFFSET)
    return np.clip(places, 0, LAST).astype(np.int64)


class Counter:
    """n counters, which only grow."""

    def __init__(self, n: int) -> None:
        self._total = np.zeros(n)

    def advance(
        self, series: Integers, scrape: Integers, by: npt.NDArray[Any], scrapes: int
    ) -> npt.NDArray[np.float64]:
        """Add ``by`` to counters ``series`` at ``scrape`` (all (m,)). Returns (n, scrapes): the counters at each."""
        n = len(self._total)
        added = np.bincount(series * scrapes + scrape, weights=by, minlength=n * scrapes).reshape(n, scrapes)
        values = added.cumsum(axis=1) + self._total[:, None]
        self._total = values[:, -1]
        return values


class BucketCounter:
    """n histograms with the classic edges of ``phase`` between two places of the grid, beyond which nothing counts.

    An edge that is left out would hold nothing, or all, at every scrape.
    """

    def __init__(self, n: int, phase: Phase, lowest: int, highest: int) -> None:
        edges, texts = EDGES[phase]
        places = np.asarray(edges)
        first = max(int(np.searchsorted(places, lowest)) - 1, 0)
        last = min(int(np.searchsorted(places, highest)), len(places) - 1)
        self._edges = places[first : last + 1]
        self.texts = [*texts[first : last + 1], "+Inf"]
        self._n = n
        self._counts = Counter(n * len(self.texts))
        self._sums = Counter(n)

    def advance(
        self, series: Integers, scrape: Integers, ns: Integers, scrapes: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Observe ``ns`` (m,). Returns cumulative counts (n, edges and +Inf, scrapes), and sums (n, scrapes) in s."""
        number = len(self.texts)
        bucket = np.searchsorted(self._edges, grid(ns))
        counts = self._counts.advance(series * number + bucket, scrape, np.ones(len(ns)), scrapes)
        sums = self._sums.advance(series, scrape, ns / 1e9, scrapes)
        return counts.reshape(self._n, number, scrapes).cumsum(axis=1), sums

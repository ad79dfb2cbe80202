"""The grid of durations and the classic buckets derived from it."""

from __future__ import annotations

import math
import random
from itertools import pairwise

import numpy as np
import pytest

from rank_exporter.histogram import BUCKETS, COARSE_EDGES, FINE_EDGES, bucket_index, cumulative, edge_seconds


@pytest.mark.parametrize("exponent", range(-9, 12))
def test_duration_on_a_boundary_lies_below_it(exponent: int) -> None:
    """Buckets are closed above: exactly 2**k seconds counts as le=2**k, one part in 10**8 more does not."""
    ns = int(2.0**exponent * 1e9)
    assert edge_seconds(bucket_index(ns)) == 2.0**exponent
    assert bucket_index(ns + max(1, ns // 10**8)) == bucket_index(ns) + 1


@pytest.mark.parametrize("ns", [1, 100, 953])
def test_tiny_durations_share_the_first_bucket(ns: int) -> None:
    """Nothing below a microsecond is told apart, or lost."""
    assert bucket_index(ns) == 0


def test_endless_durations_share_the_last_bucket() -> None:
    """An hour is beyond the grid and still counted."""
    assert bucket_index(3600 * 10**9) == BUCKETS - 1
    assert edge_seconds(BUCKETS - 1) == math.inf


def test_every_duration_lies_within_its_bucket() -> None:
    """Each index agrees with the edges that the exposition shows."""
    chance = random.Random(1)
    for _ in range(5000):
        ns = int(10 ** chance.uniform(3.1, 12.2))
        index = bucket_index(ns)
        assert edge_seconds(index - 1) < ns / 1e9 <= edge_seconds(index)


@pytest.mark.parametrize("edges", [FINE_EDGES, COARSE_EDGES])
def test_classic_buckets_count_exactly(edges: tuple[int, ...]) -> None:
    """Deriving classic buckets from the grid gives what counting into them would have given."""
    chance = random.Random(2)
    durations = [int(10 ** chance.uniform(4, 12.5)) for _ in range(3000)]
    counts = np.zeros(BUCKETS, dtype=np.uint64)
    for ns in durations:
        counts[bucket_index(ns)] += 1
    expected = [sum(ns / 1e9 <= edge_seconds(edge) for ns in durations) for edge in edges]
    assert cumulative(counts, edges) == [*expected, 3000]


def test_fine_edges_cover_a_millisecond_to_minutes() -> None:
    """Steps of 25 s and hangs of minutes fall into buckets of their own."""
    seconds = [edge_seconds(edge) for edge in FINE_EDGES]
    assert seconds[0] == pytest.approx(1e-3, rel=0.03)
    assert seconds[-1] == 1024
    growth = [b / a for a, b in pairwise(seconds) if b <= 64]
    assert growth == pytest.approx([2**0.25] * len(growth))

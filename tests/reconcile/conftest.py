"""Epochs as processes record them, made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rank_exporter import digest
from rank_exporter.segment.samples import EpochSamples

Make = Callable[..., EpochSamples]


@pytest.fixture
def took() -> Make:
    """What a rank took: identifiers, and how many more that only pad. Others by keyword, as of EpochSamples."""

    def make(rank: int, ids: Sequence[Any], *, padded: int = 0, world: int = 2, **others: Any) -> EpochSamples:
        kept = np.array(list(ids), dtype=np.int64 if not len(ids) or isinstance(ids[0], int) else np.str_)
        made = EpochSamples(
            run="r",
            rank=rank,
            world_size=world,
            host=f"host-{rank}",
            started_unix_ns=1000 + rank,
            epoch=0,
            samples=len(kept) + padded,
            padded=padded,
            identified=len(kept),
            digest=digest.of(kept),
            complete=True,
            ids=kept,
            padded_ids=np.arange(padded),
            steps=np.arange(len(kept)) // 2 + 1,
        )
        return replace(made, **others)

    return make


@pytest.fixture
def digests_only() -> Callable[[Sequence[EpochSamples]], list[EpochSamples]]:
    """The same as agents tell it: counts and digests."""

    def strip(samples: Sequence[EpochSamples]) -> list[EpochSamples]:
        return [replace(one, ids=None, padded_ids=None, steps=None) for one in samples]

    return strip

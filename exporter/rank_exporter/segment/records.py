"""The step records of one rank with all that is needed to compare them with other ranks', wherever they come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..phases import IN_STEP, Phase
from . import layout

__all__ = ["LONGEST_NS", "RankSteps", "plausible"]

LONGEST_NS: Final = 7 * 24 * 3600 * 10**9
"""No phase of a step lasts longer than a week."""
_ROUNDING_NS: Final = 1_000_000
_IN_STEP: Final = [int(phase) for phase in IN_STEP]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankSteps:
    """Consecutive or not, but ascending, steps of one process.

    ``generation`` is the same for all ranks of a process group, and another one after a restart; 0 where the rank
    never learnt it. ``started_unix_ns`` tells processes with the same rank apart. ``shards``: names of the shard
    slots, by which records[n]["shard"] is to be read. records: shape (n,), dtype segment.reader.STEP_DTYPE.
    ``waits_in``: names of the phases that include waiting for other ranks, separated by commas; "" where unknown.
    """

    run: str
    rank: int
    world_size: int
    host: str
    generation: int
    started_unix_ns: int
    shards: tuple[str, ...]
    records: npt.NDArray[Any]
    waits_in: str = ""

    def shard_name(self, slot: int) -> str:
        """Name of a shard slot; "" where no shard was known."""
        if slot < len(self.shards):
            return self.shards[slot]
        return "other" if slot == layout.OTHER_SHARD else ""


def plausible(records: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which records can be true: durations within a week, phases that add up to the step. Shape (n,) to (n,)."""
    ns = records["ns"]
    bounded = (ns <= LONGEST_NS).all(axis=1) & (records["step"] > 0) & (records["step"] < 2**53)
    step = np.minimum(ns[:, Phase.STEP], LONGEST_NS).astype(np.int64)
    total = np.minimum(ns[:, _IN_STEP], LONGEST_NS).astype(np.int64).sum(axis=1)
    result: npt.NDArray[np.bool_] = bounded & (np.abs(total - step) <= step // 100 + _ROUNDING_NS)
    return result

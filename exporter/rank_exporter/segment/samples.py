"""What one process took from its training loader in one epoch, wherever that comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import digest

__all__ = ["EpochSamples", "Identifiers"]

Identifiers = npt.NDArray[Any]
"""Identifiers of samples, shape (n,): int64, or text (dtype U)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EpochSamples:
    """The samples of one process in one epoch. ``started_unix_ns`` tells processes with the same rank apart.

    ``samples`` counts all that were taken, ``padded`` those among them that only even out the ranks. ``identified`` of
    the others have their identifiers in ``digest`` (see rank_exporter.digest). ``complete``: the loader was read to its
    end; else the epoch was left, or the process ended in its midst. ``cut``: it ended without a word, so that what it
    took last may be missing. ``ids`` are the identifiers of what was no padding,
    ``padded_ids`` those of padding, both None where only digests are known; ``steps``, as long as ``ids``, says in
    which step each was taken.
    """

    run: str
    rank: int
    world_size: int
    host: str
    started_unix_ns: int
    epoch: int
    samples: int
    padded: int
    identified: int
    digest: int
    complete: bool
    cut: bool = False
    ids: Identifiers | None = None
    padded_ids: Identifiers | None = None
    steps: npt.NDArray[np.int64] | None = None

    @property
    def real(self) -> int:
        """Samples that are no padding."""
        return self.samples - self.padded

    @property
    def is_identified(self) -> bool:
        """Whether the digest covers every sample that is no padding."""
        return self.identified == self.real

    def until(self, step: int) -> EpochSamples:
        """The same without what was taken after ``step``, as where training went on from a checkpoint made then.

        Where identifiers are not known there is nothing to tell it by: returned as it is.
        """
        if self.ids is None or self.steps is None or not (self.steps > step).any():
            return self
        kept = self.ids[self.steps <= step]
        return EpochSamples(
            run=self.run,
            rank=self.rank,
            world_size=self.world_size,
            host=self.host,
            started_unix_ns=self.started_unix_ns,
            epoch=self.epoch,
            samples=len(kept),
            padded=0,
            identified=len(kept),
            digest=digest.of(kept),
            complete=False,
            ids=kept,
            padded_ids=kept[:0],
            steps=self.steps[self.steps <= step],
        )

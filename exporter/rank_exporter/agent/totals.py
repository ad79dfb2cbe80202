"""What the aligned steps of a run add up to. Counters only grow while the run goes on, over restarts too."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

import numpy as np

from .. import catalog
from ..histogram import BUCKETS, LAST, OFFSET, PER_OCTAVE, cumulative
from ..lateness import UNKNOWN
from ..phases import Phase
from ..segment.layout import SHARD_SLOTS
from ..segment.writer import SHARD_IDLE_NS
from .alignment import Batch
from .buckets import EDGES
from .families import Families, Histogram

__all__ = ["Totals"]

_OTHER: Final = "other"
Place = tuple[int, str]
"""A rank and its host."""


class Totals:
    """Counts of one run. ``clock``: monotonic ns."""

    def __init__(self, *, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._steps = 0
        self._ranks = 0
        self._exposed_ns = 0
        self._skew = np.zeros((len(Phase), BUCKETS), dtype=np.uint64)
        self._skew_ns = [0] * len(Phase)
        self._last: dict[tuple[Place, int], int] = {}
        self._caused: dict[tuple[Place, int, str], int] = {}
        self._shards: dict[Place, dict[str, int]] = {}
        self._compared: tuple[Place, ...] = ()
        self._rank_steps: dict[Place, int] = {}
        self._rank_caused: dict[Place, dict[int, int]] = {}

    def add(self, batch: Batch, hosts: Sequence[str], shard_of: Callable[[int, int], str]) -> None:
        """Count a batch. hosts: by rank. shard_of(rank, slot) names a shard."""
        late = batch.lateness
        self._steps += len(batch.steps)
        self._ranks = len(batch.ranks)
        self._exposed_ns += int(late.exposed.sum())
        self._add_skew(batch)
        self._compared = tuple((int(rank), hosts[rank]) for rank in batch.ranks)
        for place in self._compared:
            self._rank_steps[place] = self._rank_steps.get(place, 0) + len(batch.steps)
            self._rank_caused.setdefault(place, {Phase.INPUT_READY: 0})
        for step, rank in enumerate(batch.ranks[late.last]):
            phase, caused = int(late.phase[step]), int(late.caused[step])
            place = (int(rank), hosts[rank])
            self._last[place, phase] = self._last.get((place, phase), 0) + 1
            if not caused:
                continue
            by_phase = self._rank_caused[place]
            by_phase[phase] = by_phase.get(phase, 0) + caused
            shard = ""
            if phase == Phase.INPUT_READY:
                shard = self._shard(place, shard_of(int(rank), int(batch.shard[step, late.last[step]])))
            self._caused[place, phase, shard] = self._caused.get((place, phase, shard), 0) + caused

    def _add_skew(self, batch: Batch) -> None:
        skew = batch.lateness.skew
        seen = skew != UNKNOWN
        # As histogram.bucket_index has it, for whole arrays.
        exponents = np.ceil(np.log2(np.maximum(skew, 1)) * PER_OCTAVE - OFFSET)
        buckets = np.clip(exponents, 0, LAST).astype(np.intp)
        phases = np.broadcast_to(np.arange(len(Phase)), skew.shape)
        np.add.at(self._skew, (phases[seen], buckets[seen]), 1)
        for phase, total in enumerate(np.where(seen, skew, 0).sum(axis=0)):
            self._skew_ns[phase] += int(total)

    def _shard(self, place: Place, name: str) -> str:
        """The shard as labelled: as many names a rank as its segment has slots, given anew by the same rule."""
        used = self._shards.setdefault(place, {})
        now = self._clock()
        if name and name != _OTHER and name not in used and len(used) >= SHARD_SLOTS:
            oldest = min(used, key=used.__getitem__)
            if now - used[oldest] < SHARD_IDLE_NS:
                return _OTHER
            del used[oldest]
            self._caused.pop((place, Phase.INPUT_READY, oldest), None)
        if name and name != _OTHER:
            used[name] = now
        return name

    def keep_only(self, places: Collection[Place]) -> None:
        """Forget ranks that are at none of these places."""
        wanted = set(places)
        self._last = {key: value for key, value in self._last.items() if key[0] in wanted}
        self._caused = {key: value for key, value in self._caused.items() if key[0] in wanted}
        self._shards = {place: names for place, names in self._shards.items() if place in wanted}
        self._compared = tuple(place for place in self._compared if place in wanted)
        self._rank_steps = {place: steps for place, steps in self._rank_steps.items() if place in wanted}
        self._rank_caused = {place: phases for place, phases in self._rank_caused.items() if place in wanted}

    def render(self, run: str, families: Families) -> None:
        """Add the series of the run."""
        families.add(catalog.ALIGNED_STEPS, (run,), self._steps)
        families.add(catalog.ALIGNED_RANKS, (run,), self._ranks)
        families.add(catalog.EXPOSED_WAIT, (run,), self._exposed_ns / 1e9)
        for phase in Phase:
            edges, texts = EDGES[phase]
            counts = cumulative(self._skew[phase], edges)
            if counts[-1]:
                histogram = Histogram((run, phase.label), texts, counts, self._skew_ns[phase] / 1e9)
                families.add_histogram(catalog.STEP_SKEW, histogram)
        for ((rank, host), phase_number), steps in self._last.items():
            families.add(catalog.LAST_RANK_STEPS, (run, str(rank), host, Phase(phase_number).label), steps)
        for ((rank, host), phase_number, shard), ns in self._caused.items():
            labels = (run, str(rank), host, shard, Phase(phase_number).label)
            families.add(catalog.DELAY_CAUSED, labels, ns / 1e9)
        # Of a rank that has dropped out nothing is known: a counter that stands still would call it harmless.
        for place in self._compared:
            owner = (run, str(place[0]), place[1])
            families.add(catalog.RANK_ALIGNED_STEPS, owner, self._rank_steps[place])
            for phase_number, ns in self._rank_caused[place].items():
                families.add(catalog.RANK_DELAY_CAUSED, (*owner, Phase(phase_number).label), ns / 1e9)

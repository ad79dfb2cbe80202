"""From segments to metric families."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from prometheus_client.core import Exemplar

from .. import __version__, catalog
from ..errors import SegmentError
from ..histogram import bucket_index, cumulative
from ..phases import Phase
from ..segment import layout
from ..segment.layout import Word
from ..segment.reader import Snapshot
from .buckets import EDGES, SHORT_TEXTS
from .exemplars import slowest_inputs
from .families import Families, Histogram
from .faults import Faults
from .residence import Resident
from .samples import add_samples

__all__ = ["Collector"]

_Exemplars = dict[int, tuple[int, Exemplar]]

_COUNTERS: Final = (
    (catalog.STEPS, Word.STEPS, 1),
    (catalog.SAMPLES, Word.SAMPLES, 1),
    (catalog.TOKENS, Word.TOKENS, 1),
    (catalog.PADDED_SAMPLES, Word.PADDED, 1),
    (catalog.DUPLICATE_SAMPLES, Word.DUPLICATES, 1),
    (catalog.OPTIMIZER_STEPS_SKIPPED, Word.OPTIMIZER_STEPS_SKIPPED, 1),
    (catalog.EPOCHS, Word.EPOCHS, 1),
    (catalog.GC_PAUSE_SECONDS, Word.GC_PAUSE_NS, 10**9),
    (catalog.RECORDING_SECONDS, Word.RECORDING_NS, 10**9),
    (catalog.SHARDS_DROPPED, Word.SHARDS_DROPPED, 1),
)


class Collector:
    """Renders what is served, and the agent itself. ``clock`` is the clock that the ranks time their phases by."""

    def __init__(
        self,
        host: str,
        faults: Faults,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.scrape_seconds = 0.0
        self._host = host
        self._faults = faults
        self._clock = clock
        self._unix_ns = unix_ns

    def collect(self, served: Iterable[Resident], *, exemplar_seconds: float | None) -> Families:
        """All metric families. ``exemplar_seconds``: how far back exemplars reach, None for none."""
        families = Families()
        newest: dict[str, Resident] = {}
        live = ended = 0
        for resident in served:
            # Apart, so that a fault half-way leaves nothing of this rank and all of the others.
            try:
                own = self._rank(resident, exemplar_seconds)
            except Exception as error:  # noqa: BLE001 - see above
                self._report(resident, error)
                continue
            families.update(own)
            if resident.live:
                live += 1
                run = resident.key[0]
                if run not in newest or resident.precedence > newest[run].precedence:
                    newest[run] = resident
            else:
                ended += 1
        for run, resident in newest.items():
            source = resident.reader.source
            families.add(catalog.WORLD_SIZE, (run,), source.identity.world_size)
            families.add(catalog.SKEW_BUDGET, (run,), source.skew_budget_ratio)
        self._agent(families, live, ended)
        return families

    def _report(self, resident: Resident, error: Exception) -> None:
        if resident.faulty:
            return
        resident.faulty = True
        if isinstance(error, SegmentError):
            self._faults.report("segment", str(error))
        else:
            text = f"segment {resident.reader.path} cannot be rendered ({error!r}): please report this"
            self._faults.report("render", text)

    def _agent(self, families: Families, live: int, ended: int) -> None:
        for reason, count in self._faults.counts.items():
            families.add(catalog.ERRORS, ("", "", self._host, reason), count)
        families.add(catalog.SEGMENTS, (self._host, "live"), live)
        families.add(catalog.SEGMENTS, (self._host, "ended"), ended)
        families.add(catalog.AGENT_SCRAPE_SECONDS, (self._host,), self.scrape_seconds)
        families.add(catalog.BUILD_INFO, (self._host, __version__), 1)

    def _rank(self, resident: Resident, exemplar_seconds: float | None) -> Families:
        families = Families()
        identity = resident.reader.source.identity
        labels = (identity.run, str(identity.rank), identity.host)
        if resident.live and resident.phase is not None:
            seconds = max(0, self._clock() - resident.phase_since_ns) / 1e9
            families.add(catalog.PHASE_IN_PROGRESS, (*labels, resident.phase.label), seconds)
        snapshot = resident.snapshot
        if snapshot is None:
            return families
        exemplars: _Exemplars = {}
        if exemplar_seconds is not None:
            exemplars = slowest_inputs(resident.reader.steps(), self._unix_ns() - int(exemplar_seconds * 1e9))
        _add_phases(families, labels, snapshot, exemplars)
        _add_production(families, labels, snapshot)
        _add_buckets(families, labels, snapshot)
        for metric, word, divisor in _COUNTERS:
            families.add(metric, labels, snapshot.word(word) / divisor)
        for number, reason in enumerate(layout.ERROR_REASONS):
            families.add(catalog.ERRORS, (*labels, reason), int(snapshot.words[Word.ERRORS + number]))
        if workers := snapshot.word(Word.LOADER_WORKERS):
            families.add(catalog.LOADER_WORKERS, labels, workers - 1)
            if workers > 1:
                families.add(catalog.LOADER_QUEUE_DEPTH, labels, snapshot.word(Word.LOADER_QUEUE_DEPTH))
        if last_step := snapshot.word(Word.LAST_STEP_UNIX_NS):
            families.add(catalog.LAST_STEP_TIMESTAMP, labels, last_step / 1e9)
        add_samples(families, resident, snapshot)
        if resident.live:
            facts = [snapshot.facts.get(name, "") for name in catalog.RANK_INFO.labels[5:]]
            about = (snapshot.current_shard, str(identity.local_rank), *map(_encodable, facts))
            families.add(catalog.RANK_INFO, (*labels, *about), 1)
        return families


def _encodable(text: str) -> str:
    """The text without lone surrogates, which would fail the whole exposition."""
    return text.encode(errors="replace").decode()


def _add_phases(families: Families, labels: tuple[str, str, str], snapshot: Snapshot, exemplars: _Exemplars) -> None:
    for phase in Phase:
        for slot in _slots(snapshot) if phase is Phase.INPUT_READY else (layout.SHARD_NONE,):
            shard = snapshot.shard_name(slot) if phase is Phase.INPUT_READY else ""
            exemplar = exemplars.get(slot) if phase is Phase.INPUT_READY else None
            counts = snapshot.histograms[layout.histogram_slot(phase, slot)]
            if (histogram := _histogram((*labels, phase.label, shard), phase, counts, exemplar)) is not None:
                families.add_histogram(catalog.PHASE_DURATION, histogram)


def _add_production(families: Families, labels: tuple[str, str, str], snapshot: Snapshot) -> None:
    for slot in _slots(snapshot):
        counts = snapshot.histograms[layout.production_slot(slot)]
        # Coarse: what counts here is the mean, which comes from sum and count.
        histogram = _histogram((*labels, snapshot.shard_name(slot)), Phase.FIRST_BATCH, counts, None)
        if histogram is not None:
            families.add_histogram(catalog.BATCH_PRODUCTION, histogram)


def _add_buckets(families: Families, labels: tuple[str, str, str], snapshot: Snapshot) -> None:
    for metric, slots in zip((catalog.BUCKET_READY, catalog.BUCKET_REDUCTION), snapshot.buckets, strict=True):
        for slot, counts in enumerate(slots):
            running = counts[1:].cumsum().tolist()
            if running[-1]:
                name = "other" if slot == layout.OTHER_BUCKET else str(slot)
                families.add_histogram(metric, Histogram((*labels, name), SHORT_TEXTS, running, int(counts[0]) / 1e9))


def _slots(snapshot: Snapshot) -> tuple[int, ...]:
    return (*range(len(snapshot.shards)), layout.OTHER_SHARD, layout.SHARD_NONE)


def _histogram(
    labels: tuple[str, ...], phase: Phase, counts: npt.NDArray[np.uint64], exemplar: tuple[int, Exemplar] | None
) -> Histogram | None:
    """A histogram of a segment with the edges of a phase; None if it is empty. counts: shape (HISTOGRAM_WORDS,)."""
    edges, texts = EDGES[phase]
    running = cumulative(counts[1:], edges)
    if not running[-1]:
        return None
    placed = None if exemplar is None else (bisect_left(edges, bucket_index(exemplar[0])), exemplar[1])
    return Histogram(labels, texts, running, int(counts[0]) / 1e9, placed)

"""What the agents of a simulated run expose, scrape by scrape: the catalog's metrics with the catalog's labels."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rank_exporter import catalog
from rank_exporter.catalog import Metric
from rank_exporter.phases import IN_STEP, Phase
from rank_exporter.segment.layout import ERROR_REASONS

from .aligned import Aligned
from .buffer import Buffer, Rows
from .counts import BucketCounter, Counter, grid
from .evidence import evidence, host_evidence
from .run import Run
from .steps import simulate
from .table import Labels, Scrapes, Table

__all__ = ["Exposition", "expositions"]

Floats = npt.NDArray[np.float64]


_UNEVENTFUL = (
    catalog.PADDED_SAMPLES,
    catalog.DUPLICATE_SAMPLES,
    catalog.OPTIMIZER_STEPS_SKIPPED,
    catalog.EPOCHS,
    catalog.GC_PAUSE_SECONDS,
    catalog.SHARDS_DROPPED,
)
"""Counters that stay 0."""

_ON_DEVICE = [Phase.FORWARD, Phase.BACKWARD, Phase.COLLECTIVE_WAIT, Phase.OPTIMIZER]
"""Phases in which kernels run; a collective that waits for its peers is one."""


class Exposition:
    """The series of a run. Chunks of scrapes are asked for in order.

    Every host is scraped every ``scrape`` seconds at an offset of its own. ``down``: spans in which Prometheus is.
    ``lost``: the share of scrapes that fail. ``epoch``: Unix time of second 0. ``until``: no scrape lies beyond it.
    ``guest_on``: hosts whose own series another run's exposition has, as one agent serves both.
    """

    def __init__(
        self,
        run: Run,
        *,
        until: float,
        scrape: float = 15.0,
        down: Sequence[tuple[float, float]] = (),
        lost: float = 0.0,
        epoch: float = 0.0,
        guest_on: Container[str] = (),
    ) -> None:
        self.run = run
        self.scrape = scrape
        self.hosts = list(dict.fromkeys(run.host_of(rank) for rank in range(run.ranks)))
        self._down = down
        self._lost = lost
        self._epoch = epoch
        self._rng = np.random.default_rng((zlib.crc32(run.run.encode()), run.seed, 1))
        self._offset = np.array([-scrape * (zlib.crc32(host.encode()) % 997) / 997 for host in self.hosts])
        self._own_hosts = np.array([host not in guest_on for host in self.hosts])
        self._host = np.array([self.hosts.index(run.host_of(rank)) for rank in range(run.ranks)])
        self._end = np.array([run.end_of(rank) for rank in range(run.ranks)])
        self._fetch = np.array([rank not in run.never_fetch for rank in range(run.ranks)])
        self._buffer = Buffer(run, scrape, self._offset[self._host])
        self._targets = [
            (*run.labels.items(), ("job", "training"), ("instance", f"{host}:10911")) for host in self.hosts
        ]
        self._ranks: list[Labels] = [
            (*self._targets[self._host[rank]], ("run", run.run), ("rank", str(rank)), ("host", run.host_of(rank)))
            for rank in range(run.ranks)
        ]
        span = _span(run, until)
        self._phases = {
            phase: BucketCounter(run.ranks * (run.shards if phase is Phase.INPUT_READY else 1), phase, *limits)
            for phase, limits in span.items()
        }
        slowest = span[Phase.INPUT_READY][1] if Phase.INPUT_READY in span else 0
        self._production = BucketCounter(run.ranks * run.shards, Phase.FIRST_BATCH, 0, max(slowest, 10**9))
        self._counters = {
            metric: Counter(run.ranks)
            for metric in (catalog.STEPS, catalog.SAMPLES, catalog.TOKENS, catalog.RECORDING_SECONDS)
        }
        self._last_end = np.zeros(run.ranks)
        self._aligned = Aligned(run, self._targets[0]) if run.aligned else None
        self._active = Counter(run.ranks)
        self._active_before = np.zeros((run.ranks, 1))

    def scrapes(self, first: int, last: int) -> Scrapes:
        """When the scrapes from ``first`` to before ``last`` are."""
        regular = np.arange(first, last) * self.scrape
        happened = np.ones(len(regular), dtype=bool)
        for begin, end in self._down:
            happened &= ~((regular >= begin) & (regular < end))
        return Scrapes(first=first, times=regular + self._offset[:, None], happened=happened)

    def tables(self, scrapes: Scrapes) -> list[Table]:
        """All series at these scrapes."""
        first, number = scrapes.first, scrapes.times.shape[1]
        rows = self._buffer.until(first + number - 1)
        lost = self._rng.random(scrapes.times.shape) < self._lost
        times = scrapes.times[self._host]
        live = (times >= self.run.start) & (times < self._end[:, None])
        shown = live & ~lost[self._host]
        running = np.array([live[self._host == host].any(axis=0) for host in range(len(self.hosts))])
        alone = running & self._own_hosts[:, None]
        tables = [
            Table(
                name="up",
                labels=self._targets,
                host=np.arange(len(self.hosts)),
                values=(~lost).astype(float),
                present=alone,
            )
        ]
        tables += self._of_hosts(running & ~lost)
        if rows is None:
            return tables
        tables += self._of_ranks(rows, first, times, shown)
        if self._aligned is not None:
            tables += self._aligned.tables(rows, first, shown[0])
        self._buffer.forget(first + number)
        return tables

    def _of_hosts(self, present: npt.NDArray[np.bool_]) -> Iterator[Table]:
        run = (("run", self.run.run),)
        for metric, value in ((catalog.WORLD_SIZE, self.run.ranks), (catalog.SKEW_BUDGET, self.run.budget)):
            labels = [(*target, *run) for target in self._targets]
            yield Table(
                name=metric.name,
                labels=labels,
                host=np.arange(len(labels)),
                values=np.full(present.shape, float(value)),
                present=present,
            )

    def _of_ranks(self, rows: Rows, first: int, times: Floats, shown: npt.NDArray[np.bool_]) -> Iterator[Table]:
        number = times.shape[1]
        at = rows.slot - first
        step, rank = np.nonzero(rows.alive & (at >= 0) & (at < number))
        scrape = at[step, rank]
        ended = _Ended(rows, step, rank, scrape, number)
        for metric, by in (
            (catalog.STEPS, np.ones(len(step))),
            (catalog.SAMPLES, np.full(len(step), float(self.run.batch))),
            (catalog.TOKENS, np.rint(rows.tokens[step, rank] * self.run.batch * 1024)),
            (catalog.RECORDING_SECONDS, np.full(len(step), 12e-6)),
        ):
            yield self._by_rank(metric, self._counters[metric].advance(rank, scrape, by, number), shown)
        yield self._last_step(ended, shown)
        for phase, counter in self._phases.items():
            yield from self._histogram(phase, counter, ended, shown)
        yield from self._loader(ended, times, shown)
        yield self._in_progress(rows, first, times, shown)
        yield self._info(rows, first, shown)
        for metric in _UNEVENTFUL:
            yield self._by_rank(metric, np.zeros(shown.shape), shown)
        reasons = [(*labels, ("reason", reason)) for labels in self._ranks for reason in ERROR_REASONS]
        yield self._rows_of(catalog.ERRORS, reasons, np.zeros((len(reasons), number)), shown)
        active = rows.ns[step, rank][:, _ON_DEVICE].sum(axis=1) / 1e9
        seconds = self._active.advance(rank, scrape, active, number)
        seconds = np.hstack([self._active_before, seconds])
        self._active_before = seconds[:, -1:]
        yield from evidence(self._ranks, self._host, seconds, np.hstack([times[:, :1] - self.scrape, times]), shown)
        yield from host_evidence(self._host, self._targets, self.hosts, times, shown, self._own_hosts)

    def _by_rank(self, metric: Metric, values: Floats, present: npt.NDArray[np.bool_]) -> Table:
        return Table(name=metric.name, labels=self._ranks, host=self._host, values=values, present=present)

    def _rows_of(
        self,
        metric: Metric | str,
        labels: Sequence[Labels],
        values: Floats,
        shown: npt.NDArray[np.bool_],
        present: npt.NDArray[np.bool_] | None = None,
    ) -> Table:
        """A table with as many rows for each rank as for any other."""
        each = len(labels) // self.run.ranks
        there = np.repeat(shown, each, axis=0)
        name = metric if isinstance(metric, str) else metric.name
        return Table(
            name=name,
            labels=labels,
            host=np.repeat(self._host, each),
            values=values,
            present=there if present is None else there & present,
        )

    def _last_step(self, ended: _Ended, shown: npt.NDArray[np.bool_]) -> Table:
        latest = np.zeros((self.run.ranks, ended.scrapes))
        np.maximum.at(latest, (ended.rank, ended.scrape), ended.rows.ends[ended.step, ended.rank])
        latest = np.maximum.accumulate(np.maximum(latest, self._last_end[:, None]), axis=1)
        self._last_end = latest[:, -1]
        return Table(
            name=catalog.LAST_STEP_TIMESTAMP.name,
            labels=self._ranks,
            host=self._host,
            values=latest + self._epoch,
            present=shown & (latest > 0),
        )

    def _histogram(
        self, phase: Phase, counter: BucketCounter, ended: _Ended, shown: npt.NDArray[np.bool_]
    ) -> Iterator[Table]:
        ns = ended.rows.ns[ended.step, ended.rank, phase]
        seen = ns > 0
        shards = self.run.shards if phase is Phase.INPUT_READY else 1
        shard = self.run.shard_at(ended.rows.number[ended.step]) if shards > 1 else 0
        series = ended.rank * shards + shard
        names = [
            self.run.shard_name(rank, place) if phase is Phase.INPUT_READY else ""
            for rank in range(self.run.ranks)
            for place in range(shards)
        ]
        labels = [
            (*self._ranks[place // shards], ("phase", phase.label), ("shard", name)) for place, name in enumerate(names)
        ]
        counts, sums = counter.advance(series[seen], ended.scrape[seen], ns[seen], ended.scrapes)
        yield from self._histogram_tables(catalog.PHASE_DURATION, counter, labels, counts, sums, shown)

    def _histogram_tables(
        self,
        metric: Metric,
        counter: BucketCounter,
        labels: Sequence[Labels],
        counts: Floats,
        sums: Floats,
        shown: npt.NDArray[np.bool_],
    ) -> Iterator[Table]:
        buckets, edges, scrapes = counts.shape
        there = counts[:, -1] > 0
        yield self._rows_of(f"{metric.name}_sum", labels, sums, shown, there)
        yield self._rows_of(f"{metric.name}_count", labels, counts[:, -1], shown, there)
        with_edges = [(*one, ("le", text)) for one in labels for text in counter.texts]
        yield self._rows_of(
            f"{metric.name}_bucket",
            with_edges,
            counts.reshape(buckets * edges, scrapes),
            shown,
            np.repeat(there, edges, axis=0),
        )

    def _loader(self, ended: _Ended, times: Floats, shown: npt.NDArray[np.bool_]) -> Iterator[Table]:
        fetched = shown & self._fetch[:, None]
        workers = np.full(times.shape, float(self.run.workers))
        yield self._by_rank(catalog.LOADER_WORKERS, workers, fetched)
        ready = np.full(times.shape, 2.0 * self.run.workers if self.run.headroom > 1 else 0.0)
        yield self._by_rank(catalog.LOADER_QUEUE_DEPTH, ready, fetched)
        # What a batch comes late by, its worker took longer by, and so did the others at the same time.
        usual = self.run.workers * self.run.step / self.run.headroom
        ns = np.rint((usual + self.run.workers * ended.rows.added[ended.step, ended.rank]) * 1e9).astype(np.int64)
        mine = self._fetch[ended.rank]
        shard = self.run.shard_at(ended.rows.number[ended.step])
        series = ended.rank * self.run.shards + shard
        labels = [
            (*self._ranks[rank], ("shard", self.run.shard_name(rank, place)))
            for rank in range(self.run.ranks)
            for place in range(self.run.shards)
        ]
        counts, sums = self._production.advance(series[mine], ended.scrape[mine], ns[mine], ended.scrapes)
        yield from self._histogram_tables(catalog.BATCH_PRODUCTION, self._production, labels, counts, sums, shown)

    def _in_progress(self, rows: Rows, first: int, times: Floats, shown: npt.NDArray[np.bool_]) -> Table:
        number = times.shape[1]
        values = np.zeros((self.run.ranks, len(IN_STEP), number))
        present = np.zeros(values.shape, dtype=bool)
        for rank in range(self.run.ranks):
            step = np.searchsorted(rows.slot[:, rank], first + np.arange(number), side="right")
            known = step < len(rows.number)
            step = np.minimum(step, len(rows.number) - 1)
            ns = rows.ns[step, rank]
            into = times[rank] - (rows.ends[step, rank] - ns[:, Phase.STEP] / 1e9)
            until = ns[:, : Phase.STEP].cumsum(axis=1) / 1e9
            phase = np.minimum((until <= into[:, None]).sum(axis=1), len(IN_STEP) - 1)
            since = np.where(phase > 0, until[np.arange(number), phase - 1], 0.0)
            values[rank, phase, np.arange(number)] = np.maximum(into - since, 0.0)
            present[rank, phase, np.arange(number)] = known
        labels = [(*own, ("phase", phase.label)) for own in self._ranks for phase in IN_STEP]
        shape = (len(labels), number)
        return self._rows_of(catalog.PHASE_IN_PROGRESS, labels, values.reshape(shape), shown, present.reshape(shape))

    def _info(self, rows: Rows, first: int, shown: npt.NDArray[np.bool_]) -> Table:
        number, shards = shown.shape[1], self.run.shards
        present = np.zeros((self.run.ranks, shards, number), dtype=bool)
        for rank in range(self.run.ranks):
            step = np.searchsorted(rows.slot[:, rank], first + np.arange(number), side="right")
            now = rows.number[np.minimum(step, len(rows.number) - 1)]
            present[rank, self.run.shard_at(now), np.arange(number)] = True
        labels: list[Labels] = [
            (
                *self._ranks[rank],
                ("shard", self.run.shard_name(rank, place)),
                ("local_rank", str(rank % self.run.per_host)),
                ("device", "cuda"),
                ("backend", "nccl"),
                ("framework", "torch 2.13.0"),
                ("clock", "device"),
            )
            for rank in range(self.run.ranks)
            for place in range(shards)
        ]
        values = np.ones((len(labels), number))
        return self._rows_of(catalog.RANK_INFO, labels, values, shown, present.reshape(len(labels), number))


def expositions(runs: Sequence[Run], **settings: Any) -> list[Exposition]:
    """An exposition of each run. Runs that are on a host at the same time share its agent."""
    found = []
    for place, run in enumerate(runs):
        beside = [other for other in runs[:place] if other.start < run.end and run.start < other.end]
        shared = {other.host_of(rank) for other in beside for rank in range(other.ranks)}
        found.append(Exposition(run, guest_on=shared, **settings))
    return found


class _Ended:
    """Steps that ended between two scrapes: ``step`` and ``rank`` are places in ``rows``, ``scrape`` counts from 0."""

    def __init__(
        self,
        rows: Rows,
        step: npt.NDArray[np.intp],
        rank: npt.NDArray[np.intp],
        scrape: npt.NDArray[np.int64],
        scrapes: int,
    ) -> None:
        self.rows, self.step, self.rank, self.scrape, self.scrapes = rows, step, rank, scrape, scrapes


def _span(run: Run, until: float) -> dict[Phase, tuple[int, int]]:
    """The shortest and the longest duration of each phase that a rank is ever in, as places on the grid."""
    found: dict[Phase, tuple[int, int]] = {}
    for steps in simulate(run, until):
        for phase in (*IN_STEP, Phase.STEP):
            seen = steps.ns[:, :, phase]
            seen = seen[seen > 0]
            if len(seen):
                low, high = (int(place) for place in grid(np.array([seen.min(), seen.max()])))
                known = found.get(phase, (low, high))
                found[phase] = (min(low, known[0]), max(high, known[1]))
    return found

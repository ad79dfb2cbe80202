"""What the agent beside rank 0 publishes of a simulated run once it has compared the ranks step by step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from rank_exporter import catalog
from rank_exporter.catalog import Metric
from rank_exporter.histogram import LAST
from rank_exporter.lateness import UNKNOWN
from rank_exporter.phases import Phase

from .buffer import Rows
from .counts import BucketCounter, Counter
from .run import Run
from .table import Labels, Table

__all__ = ["Aligned"]

_PHASES = len(Phase)


class Aligned:
    """Totals over the steps that are aligned. ``target``: labels that scraping adds."""

    def __init__(self, run: Run, target: Labels) -> None:
        self._run = run
        self._own: Labels = (*target, ("run", run.run))
        self._steps = Counter(1)
        self._exposed = Counter(1)
        self._last = Counter(run.ranks * _PHASES)
        self._caused = Counter(run.ranks * _PHASES)
        self._by_shard = Counter(run.ranks * run.shards)
        self._compared = Counter(run.ranks)
        self._by_rank = Counter(run.ranks * _PHASES)
        self._skew = {phase: BucketCounter(1, phase, 0, LAST) for phase in Phase}

    def tables(self, rows: Rows, first: int, shown: npt.NDArray[np.bool_]) -> Iterator[Table]:
        """At the scrapes from ``first`` on, of which the host of rank 0 answers those ``shown`` (K,)."""
        number = len(shown)
        at = rows.aligned_slot - first
        chosen = np.flatnonzero((at >= 0) & (at < number))
        scrape = at[chosen]
        one = np.zeros(len(chosen), dtype=np.int64)
        steps = self._steps.advance(one, scrape, np.ones(len(chosen)), number)
        there = shown & (steps[0] > 0)
        yield self._table(catalog.ALIGNED_STEPS, [self._own], steps, there)
        ranks = np.full((1, number), float(rows.alive[-1].sum()))
        yield self._table(catalog.ALIGNED_RANKS, [self._own], ranks, there)
        exposed = self._exposed.advance(one, scrape, rows.exposed[chosen] / 1e9, number)
        yield self._table(catalog.EXPOSED_WAIT, [self._own], exposed, there)
        yield from self._blame(rows, chosen, scrape, there)
        for phase, counter in self._skew.items():
            ns = rows.skew[chosen, phase]
            seen = ns != UNKNOWN
            counts, sums = counter.advance(one[seen], scrape[seen], ns[seen], number)
            labels: Labels = (*self._own, ("phase", phase.label))
            present = there & (counts[0, -1] > 0)
            name = catalog.STEP_SKEW.name
            yield self._named(f"{name}_sum", [labels], sums, present)
            yield self._named(f"{name}_count", [labels], counts[:, -1], present)
            yield self._named(f"{name}_bucket", [(*labels, ("le", text)) for text in counter.texts], counts[0], present)

    def _blame(
        self, rows: Rows, chosen: npt.NDArray[np.intp], scrape: npt.NDArray[np.int64], there: npt.NDArray[np.bool_]
    ) -> Iterator[Table]:
        run, number = self._run, len(there)
        last, phase, caused = rows.last[chosen], rows.phase[chosen], rows.caused[chosen] / 1e9
        series = last * _PHASES + phase
        owners = [(*self._own, ("rank", str(rank)), ("host", run.host_of(rank))) for rank in range(run.ranks)]
        by_phase = [(*owner, ("phase", one.label)) for owner in owners for one in Phase]
        counts = self._last.advance(series, scrape, np.ones(len(chosen)), number)
        yield self._table(catalog.LAST_RANK_STEPS, by_phase, counts, there & (counts > 0))
        input_ready = phase == Phase.INPUT_READY
        seconds = self._caused.advance(series[~input_ready], scrape[~input_ready], caused[~input_ready], number)
        yield self._table(catalog.DELAY_CAUSED, by_phase, seconds, there & (seconds > 0))
        shard = last * run.shards + run.shard_at(rows.number[chosen])
        by_shard = [
            (*owners[rank], ("phase", Phase.INPUT_READY.label), ("shard", run.shard_name(rank, place)))
            for rank in range(run.ranks)
            for place in range(run.shards)
        ]
        seconds = self._by_shard.advance(shard[input_ready], scrape[input_ready], caused[input_ready], number)
        yield self._table(catalog.DELAY_CAUSED, by_shard, seconds, there & (seconds > 0))
        step, rank = np.nonzero(rows.alive[chosen])
        compared = self._compared.advance(rank, scrape[step], np.ones(len(rank)), number)
        still = there & rows.alive[-1][:, None]
        yield self._table(catalog.RANK_ALIGNED_STEPS, owners, compared, still)
        seconds = self._by_rank.advance(series, scrape, caused, number)
        known = (np.arange(len(seconds)) % _PHASES == Phase.INPUT_READY)[:, None] | (seconds > 0)
        yield self._table(catalog.RANK_DELAY_CAUSED, by_phase, seconds, np.repeat(still, _PHASES, axis=0) & known)

    def _table(
        self, metric: Metric, labels: list[Labels], values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_]
    ) -> Table:
        return self._named(metric.name, labels, values, present)

    def _named(
        self, name: str, labels: list[Labels], values: npt.NDArray[np.float64], present: npt.NDArray[np.bool_]
    ) -> Table:
        host = np.zeros(len(labels), dtype=np.intp)
        return Table(name=name, labels=labels, host=host, values=values, present=np.broadcast_to(present, values.shape))

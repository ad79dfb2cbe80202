"""What the agent beside rank 0 publishes of a simulated run whose steps it compares by their number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from .simulate import BEFORE_COLLECTIVE, Run, simulate, written

__all__ = ["aligned_series"]


def aligned_series(run: Run, minutes: float, scrape: float = 15) -> Iterator[dict[str, str]]:
    """As ``simulate.series``. Ranks in ``run.unaligned`` cannot be asked from a minute on: they have no part in it."""
    scrapes = np.arange(0, minutes * 60 + scrape, scrape)
    ends, durations = simulate(run, min(minutes, run.end))
    asked = np.array([ends[index] < run.unaligned.get(rank, 1e9) * 60 for index, rank in enumerate(run.names)])
    last, caused, phase, exposed = _compared(ends, durations, asked)
    done = np.searchsorted(ends[0], scrapes, side="right")
    everywhere = np.ones(len(scrapes), dtype=bool)
    base = {"run": run.run, **run.labels, "instance": f"{run.hosts}-0:10911"}

    def out(name: str, labels: Mapping[str, str], per_step: np.ndarray, there: np.ndarray) -> dict[str, str]:
        return written(name, labels, np.concatenate([[0.0], np.cumsum(per_step)])[done], there)

    yield out("training_aligned_steps_total", base, np.ones(len(caused)), everywhere)
    yield written("training_aligned_ranks", base, np.append(len(asked), asked.sum(axis=0))[done - 1], everywhere)
    yield out("training_exposed_wait_seconds_total", base, exposed, everywhere)
    for index, rank in enumerate(run.names):
        labels = {**base, "rank": rank, "host": f"{run.hosts}-{index // run.per_host}"}
        there = scrapes < run.unaligned.get(rank, 1e9) * 60
        yield out("training_rank_aligned_steps_total", labels, asked[index], there)
        for place, name in enumerate(BEFORE_COLLECTIVE):
            mine = np.where((last == index) & (phase == place), caused, 0.0)
            seen = np.concatenate([[0.0], np.cumsum(mine)])[done] > 0
            first = there if name == "input_ready" else there & seen
            yield out("training_rank_delay_caused_seconds_total", {**labels, "phase": name}, mine, first)
            for shard, chosen in _shards(run, name, ends[0]):
                by_shard = np.where(chosen, mine, 0.0)
                seen = np.concatenate([[0.0], np.cumsum(by_shard)])[done] > 0
                where = {**labels, "phase": name, "shard": shard}
                yield out("training_delay_caused_seconds_total", where, by_shard, seen)


def _compared(
    ends: np.ndarray, durations: Mapping[str, np.ndarray], asked: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Of each step: who was last, by how much, in which phase before the collective; and what all waited."""
    before = np.concatenate([np.zeros((len(ends), 1)), ends[:, :-1]], axis=1)
    work = np.array([np.where(asked, durations[phase], np.nan) for phase in BEFORE_COLLECTIVE])
    ready = np.where(asked, before, np.nan) + work.sum(axis=0)
    two = asked.sum(axis=0) == 2
    median = np.where(two, np.nanmin(ready, axis=0), np.nanmedian(ready, axis=0))
    last = np.nanargmax(ready, axis=0)
    excess = work - np.where(two, np.nanmin(work, axis=1), np.nanmedian(work, axis=1))[:, None]
    phase = excess[:, last, np.arange(len(last))].argmax(axis=0)
    wait = np.where(asked, durations["collective_wait"], np.nan)
    return last, np.nanmax(ready, axis=0) - median, phase, np.nansum(wait - np.nanmin(wait, axis=0), axis=0)


def _shards(run: Run, phase: str, ends: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A new shard every ``shard_seconds``; otherwise none is named."""
    number = (ends // run.shard_seconds).astype(int) if phase == "input_ready" else np.zeros(len(ends), dtype=int)
    for one in np.unique(number):
        yield f"part-{one}" if number.any() else "", number == one

"""Simulated runs of known truth, as the series a Prometheus would have stored of them.

A run is synchronous: a rank is ready when it has its batch and its gradients, the collective ends when the last rank
is ready, and what comes after it (optimizer, other) delays the rank in the next step. Waiting is not put in: it
follows. Draws come from a seeded generator, so the same description gives the same series.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

COLLECTIVE_PER_STEP = 0.02
BEFORE_COLLECTIVE = ("input_ready", "h2d", "forward", "backward")
AFTER_COLLECTIVE = ("optimizer", "other")
SHARE_OF_STEP = {"input_ready": 0.06, "h2d": 0.02, "forward": 0.30, "backward": 0.50, "optimizer": 0.08, "other": 0.02}
EDGES = np.append(2.0 ** (np.arange(-40, 25) / 4), [2.0**7, 2.0**8, 2.0**9, 1200.0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A rank's phase takes ``by`` of a step longer, in minutes ``start`` to ``end``.

    If ``lasts`` is given, it is so for that many seconds and not for the next ``pauses``, over and over, beginning with
    the pause if ``pause_first``. ``steps`` bounds how many steps are hit. With ``shard`` only steps that read it are.
    """

    rank: str
    phase: str
    by: float
    start: float = 0
    end: float = 1e9
    lasts: float | None = None
    pauses: float = 0
    pause_first: bool = False
    steps: int | None = None
    shard: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run. Times are minutes since the test's start; ``step`` is seconds.

    ``ranks`` is a number or the rank labels themselves. ``without`` lists phases that given ranks never enter,
    ``once`` phases that they enter in the first step alone, so that their series are there and stand still.
    ``ended`` ends ranks at a minute; the others go on, as after an elastic restart. ``blank`` is a span in which no
    rank ends a step, ``unscraped`` one in which no rank is scraped. ``samples`` and ``tokens`` are those of a rank's
    step, 8 and 4096 where not given; ``noise`` is the standard deviation of a step's tokens, as a share of them.
    ``collective`` is what the collective itself takes, as a share of the step, from a minute on. Where steps are
    ``aligned``, ``unaligned`` has the minute from which ranks cannot be asked for theirs, and input comes from a new
    shard every ``shard_seconds``.
    """

    run: str
    ranks: int | Sequence[str] = 8
    step: float = 1.0
    sigma: float = 0.1
    labels: Mapping[str, str] = field(default_factory=dict)
    hosts: str = "node"
    per_host: int = 4
    budget: float = 0.1
    start: float = 0
    end: float = 1e9
    shards: Sequence[str] = ()
    slow: Sequence[Mapping[str, Any]] = ()
    without: Mapping[str, Sequence[str]] = field(default_factory=dict)
    once: Mapping[str, Sequence[str]] = field(default_factory=dict)
    ended: Mapping[str, float] = field(default_factory=dict)
    samples: Mapping[str, float] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)
    collective: Mapping[float, float] = field(default_factory=lambda: {0: COLLECTIVE_PER_STEP})
    blank: tuple[float, float] | None = None
    unscraped: tuple[float, float] | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    aligned: bool = False
    unaligned: Mapping[str, float] = field(default_factory=dict)
    shard_seconds: float = 1e9
    noise: float = 0

    @property
    def names(self) -> list[str]:
        return [str(rank) for rank in (range(self.ranks) if isinstance(self.ranks, int) else self.ranks)]


def series(run: Run, minutes: float, scrape: float = 15) -> Iterator[dict[str, str]]:
    """Yield ``{"series": …, "values": …}`` in promtool's notation: a value every ``scrape`` seconds for ``minutes``."""
    scrapes = np.arange(0, minutes * 60 + scrape, scrape)
    ends, durations = simulate(run, min(minutes, run.end))
    base = {"run": run.run, **run.labels}
    first_slot = int(np.ceil(run.start * 60 / scrape))
    hosts = {f"{run.hosts}-{index // run.per_host}" for index in range(len(run.names))}
    last_slot = int(min(run.end * 60 // scrape, len(scrapes) - 1))

    def until_end(name: str, labels: Mapping[str, str], values: np.ndarray, until: int) -> dict[str, str]:
        slots = np.arange(len(scrapes))
        there = (first_slot <= slots) & (slots <= until)
        if run.unscraped:
            there &= (scrapes < run.unscraped[0] * 60) | (run.unscraped[1] * 60 <= scrapes)
        return written(name, labels, values, there)

    for host in sorted(hosts):
        agent = {**base, "instance": f"{host}:10911"}
        constant = np.ones(len(scrapes))
        yield until_end("training_skew_budget_ratio", agent, constant * run.budget, last_slot)
        yield until_end("training_world_size", agent, constant * len(run.names), last_slot)

    rng = np.random.default_rng(0)
    for index, rank in enumerate(run.names):
        host = f"{run.hosts}-{index // run.per_host}"
        until = last_slot
        if rank in run.ended:
            until = min(until, int(run.ended[rank] * 60 // scrape))
        labels = {**base, "rank": rank, "host": host, "instance": f"{host}:10911"}
        done = np.searchsorted(ends[index], scrapes, side="right")
        yield until_end("training_steps_total", labels, done, until)
        yield until_end("training_samples_total", labels, done * run.samples.get(rank, 8), until)
        tokens = run.tokens.get(rank, 4096) * (1 + run.noise * rng.standard_normal(ends.shape[1]))
        yield until_end("training_tokens_total", labels, np.concatenate([[0.0], np.cumsum(tokens)])[done], until)
        for phase, seconds in durations.items():
            if phase in run.without.get(rank, ()):
                continue
            for shard, chosen in _by_shard(run, phase, len(ends[index])):
                where = {**labels, "phase": phase, "shard": shard}
                observed = np.where(chosen, seconds[index], np.nan)
                if phase in run.once.get(rank, ()):
                    observed[1:] = np.nan
                yield from _histogram(where, observed, done, until, until_end)


def written(name: str, labels: Mapping[str, str], values: np.ndarray, there: np.ndarray) -> dict[str, str]:
    """A series in promtool's notation, where it is ``there``; stale afterwards."""
    cells = [_number(value) if seen else "_" for value, seen in zip(values, there, strict=True)]
    for gone in np.flatnonzero(there[:-1] & ~there[1:]) + 1:
        cells[gone] = "stale"
    text = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return {"series": f"{name}{{{text}}}", "values": " ".join(cells)}


def simulate(run: Run, until: float) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Simulate the run. Returns when each step ended, by rank and step, and the same shape for each phase."""
    ranks = len(run.names)
    rng = np.random.default_rng(zlib.crc32(run.run.encode()))
    count = int((until - run.start) * 60 / run.step) + 2
    shares = {**SHARE_OF_STEP, **run.shares}
    base = {
        phase: run.step * share * rng.lognormal(-(run.sigma**2) / 2, run.sigma, (ranks, count))
        for phase, share in shares.items()
    }
    slow = [Slow(**entry) for entry in run.slow]
    hits = [0] * len(slow)
    durations = {phase: np.zeros((ranks, count)) for phase in (*shares, "collective_wait", "step")}
    ends = np.zeros((ranks, count))
    before = np.full(ranks, run.start * 60)
    for step in range(count):
        now = float(before.max())
        if run.blank and run.blank[0] * 60 <= now < run.blank[1] * 60:
            before = before + (run.blank[1] * 60 - now)
            now = run.blank[1] * 60
        for phase in shares:
            durations[phase][:, step] = base[phase][:, step]
        for number, entry in enumerate(slow):
            if entry.shard is not None and run.shards[step % len(run.shards)] != entry.shard:
                continue
            if _active(entry, now, hits[number]):
                durations[entry.phase][run.names.index(entry.rank), step] += entry.by * run.step
                hits[number] += 1
        ready = before + sum(durations[phase][:, step] for phase in BEFORE_COLLECTIVE)
        alive = np.array([now < run.ended.get(rank, 1e9) * 60 for rank in run.names])
        together = ready[alive].max() + run.step * max((m, c) for m, c in run.collective.items() if m * 60 <= now)[1]
        durations["collective_wait"][:, step] = together - ready
        after = together + sum(durations[phase][:, step] for phase in AFTER_COLLECTIVE)
        durations["step"][:, step] = after - before
        before = ends[:, step] = after
    return ends, durations


def _active(slow: Slow, now: float, hits: int) -> bool:
    if not slow.start * 60 <= now < slow.end * 60 or (slow.steps is not None and hits >= slow.steps):
        return False
    if slow.lasts is None:
        return True
    since = (now - slow.start * 60) % (slow.lasts + slow.pauses)
    return since >= slow.pauses if slow.pause_first else since < slow.lasts


def _by_shard(run: Run, phase: str, count: int) -> Iterator[tuple[str, np.ndarray]]:
    """Which steps belong to which value of the label shard; only input carries shards, taken in turn."""
    if phase != "input_ready" or not run.shards:
        yield "", np.ones(count, dtype=bool)
        return
    for index, shard in enumerate(run.shards):
        yield shard, np.arange(count) % len(run.shards) == index


def _histogram(labels: Mapping[str, str], observed: np.ndarray, done: np.ndarray, until: int, written: Any) -> Any:
    """Cumulative buckets, sum and count at each scrape. Edges that hold nothing or everything throughout are cut."""
    valid = ~np.isnan(observed)
    seconds = np.nan_to_num(observed)
    name = "training_phase_duration_seconds"

    def at_scrapes(per_step: np.ndarray) -> np.ndarray:
        return np.concatenate([[0.0], np.cumsum(per_step)])[done]

    low, high = seconds[valid].min(), seconds[valid].max()
    first = max(int(np.searchsorted(EDGES, low)) - 1, 0)
    last = min(int(np.searchsorted(EDGES, high)), len(EDGES) - 1)
    for edge in EDGES[first : last + 1]:
        yield written(
            f"{name}_bucket", {**labels, "le": repr(float(edge))}, at_scrapes(valid & (seconds <= edge)), until
        )
    count = at_scrapes(valid)
    yield written(f"{name}_bucket", {**labels, "le": "+Inf"}, count, until)
    yield written(f"{name}_count", labels, count, until)
    yield written(f"{name}_sum", labels, at_scrapes(np.where(valid, seconds, 0.0)), until)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"

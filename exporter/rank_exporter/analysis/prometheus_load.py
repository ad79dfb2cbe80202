"""Reads a run's profile from a Prometheus: what its histograms and counters gained within a window of time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Any, Final

import httpx

from ..catalog import (
    ALIGNED_STEPS,
    DEVICE_ACTIVE_SECONDS,
    DEVICE_MEMORY_USED,
    EXPOSED_WAIT,
    HOST_CPU_PRESSURE,
    LAST_STEP_TIMESTAMP,
    PHASE_DURATION,
    PHASE_IN_PROGRESS,
    PROCESS_CPUS_ALLOWED,
    RANK_DELAY_CAUSED,
    RANK_INFO,
    SAMPLES,
    SKEW_BUDGET,
    STEPS,
    TOKENS,
    WORLD_SIZE,
)
from ..errors import SourceError
from ..phases import BESIDE_STEP, Phase
from .load import DEVICE_CLOCK
from .profile import Cell, PhaseProfile, RankProfile, RunProfile

__all__ = ["Prometheus", "Span", "end_of", "load_prometheus", "quoted"]

_BUCKET, _SUM, _COUNT = PHASE_DURATION.series_names
_PAST: Final = "90d"
"""How far back a run's last step is looked for."""
_GRACE_SECONDS: Final = 60.0
Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A window of time: ``seconds`` that end at ``until`` in Unix seconds, or with the run's last step (None)."""

    seconds: float = 1800.0
    until: float | None = None


class Prometheus:
    """The query API at an address such as http://host:9090. Errors are SourceErrors of one line.

    As a context it keeps its connection for several queries.
    """

    def __init__(self, url: str, *, timeout_seconds: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._timeout = timeout_seconds
        self._client: httpx.Client | None = None

    def __enter__(self) -> Prometheus:
        self._client = self._new_client()
        return self

    def __exit__(self, *_: object) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _new_client(self) -> httpx.Client:
        # A proxy is for the way out, and may not know the hosts of a cluster.
        return httpx.Client(trust_env=False, timeout=self._timeout)

    def query(self, query: str, *, at: float | None = None) -> list[tuple[Labels, float]]:
        """An instant vector: labels and value of each series, without NaN."""
        params = {"query": query} if at is None else {"query": query, "time": f"{at:.3f}"}
        found = [(one["metric"], float(one["value"][1])) for one in self._result("query", params)]
        return [(labels, value) for labels, value in found if not math.isnan(value)]

    def query_range(self, query: str, *, start: float, end: float, step: float) -> list[tuple[Labels, list[Any]]]:
        """A range vector: labels, and pairs of Unix seconds and value."""
        params = {"query": query, "start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        return [
            (one["metric"], [(float(time), float(value)) for time, value in one["values"]])
            for one in self._result("query_range", params)
        ]

    def _result(self, kind: str, params: dict[str, str]) -> list[Any]:
        address = f"{self.url}/api/v1/{kind}"
        try:
            if self._client is not None:
                response = self._client.post(address, data=params)
            else:
                with self._new_client() as client:
                    response = client.post(address, data=params)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            reason = str(error) or type(error).__name__
            raise SourceError(
                f"{address} cannot be read ({reason}): give the address of a Prometheus, http://HOST:PORT"
            ) from error
        try:
            answer = response.json()
            if answer["status"] != "success":
                raise SourceError(f"{address} answers {str(answer.get('error'))[:200]!r}: try a shorter window")
            result: list[Any] = answer["data"]["result"]
            return result
        except (ValueError, KeyError, TypeError) as error:
            raise SourceError(
                f"{address} answers {response.status_code} and not as a Prometheus: check the address"
            ) from error


def load_prometheus(url: str, *, run: str, span: Span) -> tuple[RunProfile, float]:
    """The run's profile over the window, and the Unix time at which that ends. Raises SourceError, in one line, for a
    wrong address, a run that is not known, or a window without steps."""
    with Prometheus(url) as server:
        until = end_of(server, run, span)
        window = f"[{max(round(span.seconds), 1)}s]"
        profile = _Reading(server, f"run={quoted(run)}", window, until).profile(run)
    if not profile.ranks:
        raise SourceError(
            f"run {run!r} made no step in the {span.seconds:.0f} s before {until:.0f} (Unix time): give another window"
        )
    return profile, until


def end_of(server: Prometheus, run: str, span: Span) -> float:
    """Unix time at which the window ends. Raises SourceError if the run is not known."""
    selector = f"{{run={quoted(run)}}}"
    found = server.query(f"max(max_over_time({LAST_STEP_TIMESTAMP.name}{selector}[{_PAST}]))", at=span.until)
    if not found:
        known = server.query(f"count by (run) ({STEPS.name})")
        names = ", ".join(sorted(labels.get("run", "") for labels, _ in known)[:8]) or "none"
        raise SourceError(f"{server.url} knows no run {run!r}: it has {names}")
    if span.until is not None:
        return span.until
    [(_, now)] = server.query("vector(time())")
    # A run that stands still is alive, though its last step is long ago. Of one that has ended, the last samples were
    # scraped a little after its last step.
    lives = server.query(f"count({STEPS.name}{selector})", at=now)
    return now if lives else min(found[0][1] + _GRACE_SECONDS, now)


def quoted(text: str) -> str:
    """The text as a PromQL string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@dataclass(slots=True)
class _Rank:
    host: str = ""
    host_steps: float = -1.0
    steps: float = 0.0
    samples: float = 0.0
    tokens: float = 0.0
    last_step: float | None = None
    info: Labels = field(default_factory=dict)
    in_progress: tuple[str, float] | None = None
    active: float | None = None
    memory: float | None = None
    cpus: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    shards: dict[str, float] = field(default_factory=dict)

    def profile(self, rank: int) -> RankProfile:
        spent = sum(self.sums.get(phase.label, 0.0) for phase in (Phase.STEP, *BESIDE_STEP))
        shard = max(self.shards, key=lambda name: self.shards[name], default="") or self.info.get("shard", "")
        return RankProfile(
            rank=rank,
            host=self.host,
            shard=shard or None,
            steps=round(self.steps),
            phases={name: found for name in self.counts if (found := self._phase(name)) is not None},
            last_step_timestamp=self.last_step,
            samples=round(self.samples),
            tokens=round(self.tokens),
            waits_in=frozenset(filter(None, self.info.get("waits_in", "").split(","))),
            in_progress=self.in_progress,
            by_device=self.info.get("clock") == DEVICE_CLOCK,
            device_active=min(self.active / spent, 1.0) if self.active is not None and spent else None,
            memory_bytes=self.memory,
            cpus_allowed=self.cpus,
        )

    def _phase(self, name: str) -> PhaseProfile | None:
        edges = tuple(sorted(self.buckets.get(name, {})))
        count = round(self.counts[name])
        if not count or not edges or edges[-1] != math.inf:
            return None
        # Each series is extrapolated to the window by itself, which may leave one below its lower neighbour.
        running = accumulate((round(self.buckets[name][edge]) for edge in edges), max)
        return PhaseProfile(count=count, total_seconds=self.sums.get(name, 0.0), edges=edges, cumulative=tuple(running))


class _Reading:
    """The queries of one profile."""

    def __init__(self, server: Prometheus, selector: str, window: str, until: float) -> None:
        self._server = server
        self._selector = selector
        self._window = window
        self._until = until
        self._ranks: dict[int, _Rank] = {}

    def profile(self, run: str) -> RunProfile:
        """All that is known of the window; no ranks where no step ended in it."""
        for labels, value in self._gained(STEPS.name, "rank, host"):
            rank = self._rank(labels)
            rank.steps += value
            if value > rank.host_steps:
                rank.host, rank.host_steps = labels.get("host", ""), value
        live = {labels.get("rank") for labels, _ in self._query(self._series(PHASE_IN_PROGRESS.name))}
        self._ranks = {number: rank for number, rank in self._ranks.items() if rank.steps >= 0.5 or str(number) in live}
        if not self._ranks:
            return RunProfile(run=run, ranks=())
        cells = self._phases()
        self._facts()
        exposed = self._one(f"sum(increase({self._series(EXPOSED_WAIT.name)}{self._window}))")
        aligned = self._one(f"sum(increase({self._series(ALIGNED_STEPS.name)}{self._window}))")
        world = self._one(f"max(last_over_time({self._series(WORLD_SIZE.name)}{self._window}))")
        return RunProfile(
            run=run,
            ranks=tuple(self._ranks[rank].profile(rank) for rank in sorted(self._ranks)),
            world_size=None if world is None else round(world),
            budget=self._one(f"max(last_over_time({self._series(SKEW_BUDGET.name)}{self._window}))"),
            exposed_seconds=exposed if aligned else None,
            exposed_steps=round(aligned or 0),
            cells=cells,
            pressure=self._pressure(),
            caused={
                int(labels["rank"]): value
                for labels, value in self._gained(RANK_DELAY_CAUSED.name, "rank")
                if labels.get("rank", "").isdigit()
            },
        )

    def _series(self, name: str, *more: str) -> str:
        return f"{name}{{{','.join((self._selector, *more))}}}"

    def _query(self, query: str) -> list[tuple[Labels, float]]:
        return self._server.query(query, at=self._until)

    def _gained(self, name: str, by: str, *more: str) -> list[tuple[Labels, float]]:
        return self._query(f"sum by ({by}) (increase({self._series(name, *more)}{self._window}))")

    def _one(self, query: str) -> float | None:
        found = self._query(query)
        return found[0][1] if found else None

    def _rank(self, labels: Labels) -> _Rank:
        try:
            return self._ranks.setdefault(int(labels["rank"]), _Rank())
        except (KeyError, ValueError) as error:
            raise SourceError(f"{self._server.url} has series of ranks without a number ({error})") from error

    def _of_known(self, found: Iterable[tuple[Labels, float]], take: Callable[[_Rank, Labels, float], None]) -> None:
        for labels, value in found:
            if labels.get("rank", "").isdigit() and int(labels["rank"]) in self._ranks:
                take(self._ranks[int(labels["rank"])], labels, value)

    def _phases(self) -> tuple[Cell, ...]:
        def bucket(rank: _Rank, labels: Labels, value: float) -> None:
            rank.buckets.setdefault(labels["phase"], {})[float(labels["le"])] = value

        self._of_known(self._gained(_BUCKET, "rank, phase, le"), bucket)
        self._of_known(
            self._gained(_SUM, "rank, phase"), lambda rank, of, value: rank.sums.update({of["phase"]: value})
        )
        self._of_known(
            self._gained(_COUNT, "rank, phase"), lambda rank, of, value: rank.counts.update({of["phase"]: value})
        )
        of_input = f'phase="{Phase.INPUT_READY.label}"'
        sums = self._gained(_SUM, "rank, host, shard", of_input, 'shard!=""')
        counts = {
            _key(labels): value for labels, value in self._gained(_COUNT, "rank, host, shard", of_input, 'shard!=""')
        }
        self._of_known(
            sums, lambda rank, of, value: rank.shards.update({of["shard"]: rank.shards.get(of["shard"], 0) + value})
        )
        return _cells({_key(labels): value for labels, value in sums}, counts)

    def _facts(self) -> None:
        def progress(rank: _Rank, labels: Labels, value: float) -> None:
            rank.in_progress = labels["phase"], value

        self._of_known(self._gained(SAMPLES.name, "rank"), lambda rank, _, value: setattr(rank, "samples", value))
        self._of_known(self._gained(TOKENS.name, "rank"), lambda rank, _, value: setattr(rank, "tokens", value))
        last = f"max by (rank) (last_over_time({self._series(LAST_STEP_TIMESTAMP.name)}{self._window}))"
        self._of_known(self._query(last), lambda rank, _, value: setattr(rank, "last_step", value))
        info = f"last_over_time({self._series(RANK_INFO.name)}{self._window})"
        self._of_known(self._query(info), lambda rank, labels, _: setattr(rank, "info", labels))
        self._of_known(self._query(self._series(PHASE_IN_PROGRESS.name)), progress)
        increase = f"increase({self._series(DEVICE_ACTIVE_SECONDS.name)}{self._window})"
        active = f"max by (rank) (sum by (rank, device) ({increase}))"
        self._of_known(self._query(active), lambda rank, _, value: setattr(rank, "active", value))
        allowed = f"min by (rank, process) (last_over_time({self._series(PROCESS_CPUS_ALLOWED.name)}{self._window}))"
        self._of_known(self._query(allowed), lambda rank, of, value: rank.cpus.update({of.get("process", ""): value}))
        memory = f"max by (rank) (max_over_time({self._series(DEVICE_MEMORY_USED.name)}{self._window}))"
        self._of_known(self._query(memory), lambda rank, _, value: setattr(rank, "memory", value))

    def _pressure(self) -> dict[str, float]:
        hosts = "|".join(re.escape(rank.host) for rank in self._ranks.values())
        selector = f"host=~{quoted(hosts)}"
        found = self._query(f"max by (host) (avg_over_time({HOST_CPU_PRESSURE.name}{{{selector}}}{self._window}))")
        return {labels.get("host", ""): value for labels, value in found}


def _key(labels: Labels) -> tuple[str, str, str]:
    return labels.get("rank", ""), labels.get("host", ""), labels.get("shard", "")


def _cells(
    sums: Mapping[tuple[str, str, str], float], counts: Mapping[tuple[str, str, str], float]
) -> tuple[Cell, ...]:
    means = {key: sums[key] / counts[key] for key in sums if counts.get(key, 0) >= 1}
    by_rank: dict[str, list[float]] = {}
    for key, mean in means.items():
        by_rank.setdefault(key[0], []).append(mean)
    # Of two ranks the median is the other one; over a window in which shards moved that is the faster one.
    lowest = sorted(min(values) for values in by_rank.values())
    typical = (lowest[0] if len(lowest) == 2 else median(lowest)) if lowest else 0.0
    return tuple(
        Cell(rank=int(rank), host=host, shard=shard, steps=round(counts[rank, host, shard]), excess=mean - typical)
        for (rank, host, shard), mean in sorted(means.items())
    )

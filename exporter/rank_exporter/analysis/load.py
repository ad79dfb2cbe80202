"""Reads measurements from where they are kept. The only module of the analysis that does I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ..catalog import LAST_STEP_TIMESTAMP, PHASE_DURATION, RANK_INFO, SKEW_BUDGET, STEPS, WORLD_SIZE
from ..errors import SourceError
from ..phases import Phase
from .profile import PhaseProfile, RankProfile, RunProfile

__all__ = ["load_agent", "parse"]

_BUCKET, _SUM, _COUNT = PHASE_DURATION.series_names


def load_agent(url: str, *, run: str | None = None, timeout_seconds: float = 10.0) -> RunProfile:
    """The profile of a run from an agent's address, such as http://host:10911 (``/metrics`` is added).

    The counters span each rank's whole life. ``run`` may be left out where the agent serves one run only.
    Raises SourceError, in one line, for a wrong address, an answer that is no exposition, or no such run.
    """
    address = url.rstrip("/")
    if not address.endswith("/metrics"):
        address += "/metrics"
    runs = parse(_fetch(address, timeout_seconds), source=address)
    if not runs:
        raise SourceError(f"{address} serves no run: start training with rank_exporter.start() on that host")
    if run is None:
        if len(runs) > 1:
            raise SourceError(f"{address} serves {len(runs)} runs ({', '.join(sorted(runs))}): name one")
        return next(iter(runs.values()))
    if run not in runs:
        raise SourceError(f"{address} serves no run {run!r}: it has {', '.join(sorted(runs))}")
    return runs[run]


def _fetch(address: str, timeout_seconds: float) -> str:
    # A proxy is for the way out, and may not know the hosts of a cluster.
    try:
        with httpx.Client(trust_env=False, timeout=timeout_seconds) as client:
            response = client.get(address)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"{address} cannot be read ({reason}): give an agent's address, http://HOST:PORT") from error
    if response.status_code != httpx.codes.OK:
        raise SourceError(f"{address} answers {response.status_code}: give an agent's address, http://HOST:PORT")
    return response.text


def parse(text: str, *, source: str) -> dict[str, RunProfile]:
    """Profiles by run, from a text exposition. ``source`` names it in messages. Raises SourceError."""
    runs: dict[str, _Run] = {}
    try:
        for sample in _samples(text):
            if run := sample.labels.get("run"):
                runs.setdefault(run, _Run()).add(sample)
        return {name: found.profile(name) for name, found in runs.items()}
    except (ValueError, KeyError, IndexError) as error:
        raise SourceError(f"{source} is not an agent's exposition ({error}): give an agent's address") from error


def _samples(text: str) -> Iterator[Sample]:
    for family in text_string_to_metric_families(text):
        yield from family.samples


@dataclass(slots=True)
class _Phase:
    total: float = 0.0
    count: float = 0.0
    buckets: dict[float, float] = field(default_factory=dict)

    def profile(self) -> PhaseProfile:
        edges = tuple(sorted(self.buckets))
        cumulative = tuple(int(self.buckets[edge]) for edge in edges)
        if not edges or edges[-1] != float("inf") or list(cumulative) != sorted(cumulative):
            raise ValueError("a histogram's buckets are incomplete")
        return PhaseProfile(count=int(self.count), total_seconds=self.total, edges=edges, cumulative=cumulative)


@dataclass(slots=True)
class _Rank:
    host: str
    steps: int = 0
    last_step: float | None = None
    shard_now: str = ""
    input_by_shard: dict[str, float] = field(default_factory=dict)
    phases: dict[str, _Phase] = field(default_factory=dict)

    def add_duration(self, sample: Sample) -> None:
        phase = self.phases.setdefault(sample.labels["phase"], _Phase())
        shard = sample.labels.get("shard", "")
        # The series of a phase's shards are summed: what the analysis compares is the rank.
        if sample.name == _BUCKET:
            edge = float(sample.labels["le"])
            phase.buckets[edge] = phase.buckets.get(edge, 0.0) + sample.value
        elif sample.name == _COUNT:
            phase.count += sample.value
        else:
            phase.total += sample.value
            if shard and sample.labels["phase"] == Phase.INPUT_READY.label:
                self.input_by_shard[shard] = self.input_by_shard.get(shard, 0.0) + sample.value

    def profile(self, rank: int) -> RankProfile:
        by_time = sorted(self.input_by_shard.items(), key=lambda item: (-item[1], item[0]))
        shard = by_time[0][0] if by_time else self.shard_now
        return RankProfile(
            rank=rank,
            host=self.host,
            shard=shard or None,
            steps=self.steps,
            phases={name: phase.profile() for name, phase in self.phases.items() if phase.count},
            last_step_timestamp=self.last_step,
        )


@dataclass(slots=True)
class _Run:
    world_size: int | None = None
    budget: float | None = None
    ranks: dict[int, _Rank] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        if sample.name == WORLD_SIZE.name:
            self.world_size = int(sample.value)
        elif sample.name == SKEW_BUDGET.name:
            self.budget = sample.value
        elif sample.labels.get("rank"):
            self._add_of_rank(sample, sample.labels)

    def _add_of_rank(self, sample: Sample, labels: Mapping[str, str]) -> None:
        if sample.name not in _OF_RANK:
            return
        rank = self.ranks.setdefault(int(labels["rank"]), _Rank(host=labels.get("host", "")))
        if sample.name in (_BUCKET, _SUM, _COUNT):
            rank.add_duration(sample)
        elif sample.name == STEPS.name:
            rank.steps = int(sample.value)
        elif sample.name == LAST_STEP_TIMESTAMP.name:
            rank.last_step = sample.value
        else:
            rank.shard_now = labels.get("shard", "")

    def profile(self, name: str) -> RunProfile:
        return RunProfile(
            run=name,
            ranks=tuple(self.ranks[rank].profile(rank) for rank in sorted(self.ranks)),
            world_size=self.world_size,
            budget=self.budget,
        )


_OF_RANK = frozenset({_BUCKET, _SUM, _COUNT, STEPS.name, LAST_STEP_TIMESTAMP.name, RANK_INFO.name})

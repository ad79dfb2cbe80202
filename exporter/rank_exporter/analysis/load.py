"""Reads the profile of a run from an agent's exposition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ..catalog import (
    ALIGNED_STEPS,
    DELAY_CAUSED,
    DEVICE_MEMORY_USED,
    EXPOSED_WAIT,
    HOST_CPU_PRESSURE,
    LAST_STEP_TIMESTAMP,
    PHASE_DURATION,
    PHASE_IN_PROGRESS,
    PROCESS_CPUS_ALLOWED,
    RANK_INFO,
    SAMPLES,
    SKEW_BUDGET,
    STEPS,
    TOKENS,
    WORLD_SIZE,
)
from ..errors import SourceError
from ..phases import Phase
from .profile import PhaseProfile, RankProfile, RunProfile
from .sources import get

__all__ = ["load_agent", "parse"]

_BUCKET, _SUM, _COUNT = PHASE_DURATION.series_names
DEVICE_CLOCK = "device"
"""What training_rank_info says in its label clock where events on the device time the phases."""


def load_agent(url: str, *, run: str | None = None, timeout_seconds: float = 10.0) -> RunProfile:
    """The profile of a run from an agent's address, such as http://host:10911 (``/metrics`` is added).

    The counters span each rank's whole life. ``run`` may be left out where the agent serves one run only.
    Raises SourceError, in one line, for a wrong address, an answer that is no exposition, or no such run.
    """
    address = url.rstrip("/")
    if not address.endswith("/metrics"):
        address += "/metrics"
    text = get(address, timeout_seconds).text
    runs = parse(text if run is None else _of_run(text, run), source=address)
    if not runs and not (run and parse(text, source=address)):
        raise SourceError(f"{address} serves no run: start training with rank_exporter.start() on that host")
    if run is None:
        if len(runs) > 1:
            raise SourceError(f"{address} serves {len(runs)} runs ({', '.join(sorted(runs))}): name one")
        return next(iter(runs.values()))
    if run not in runs:
        raise SourceError(f"{address} serves no run {run!r}: it has {', '.join(sorted(parse(text, source=address)))}")
    return runs[run]


_OF_ANY = ("#", f"{HOST_CPU_PRESSURE.name}{{")


def _of_run(text: str, run: str) -> str:
    """The lines that tell of this run: to parse those of all others would take long."""
    escaped = run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    label = f'run="{escaped}"'
    return "".join(line for line in text.splitlines(keepends=True) if line.startswith(_OF_ANY) or label in line)


def parse(text: str, *, source: str) -> dict[str, RunProfile]:
    """Profiles by run, from a text exposition. ``source`` names it in messages. Raises SourceError."""
    runs: dict[str, _Run] = {}
    pressure: dict[str, float] = {}
    try:
        for sample in _samples(text):
            if run := sample.labels.get("run"):
                runs.setdefault(run, _Run()).add(sample)
            elif sample.name == HOST_CPU_PRESSURE.name:
                pressure[sample.labels["host"]] = sample.value
        return {name: found.profile(name, pressure) for name, found in runs.items()}
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
    samples: int = 0
    tokens: int = 0
    last_step: float | None = None
    shard_now: str = ""
    waits_in: str = ""
    clock: str = ""
    in_progress: tuple[str, float] | None = None
    memory: float | None = None
    cpus: dict[str, float] = field(default_factory=dict)
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
            samples=self.samples,
            tokens=self.tokens,
            waits_in=frozenset(filter(None, self.waits_in.split(","))),
            in_progress=self.in_progress,
            by_device=self.clock == DEVICE_CLOCK,
            memory_bytes=self.memory,
            cpus_allowed=self.cpus,
        )

    def add(self, sample: Sample) -> None:
        labels = sample.labels
        if sample.name in (_BUCKET, _SUM, _COUNT):
            self.add_duration(sample)
        elif sample.name == STEPS.name:
            self.steps = int(sample.value)
        elif sample.name == SAMPLES.name:
            self.samples = int(sample.value)
        elif sample.name == TOKENS.name:
            self.tokens = int(sample.value)
        elif sample.name == LAST_STEP_TIMESTAMP.name:
            self.last_step = sample.value
        elif sample.name == PHASE_IN_PROGRESS.name:
            self.in_progress = labels["phase"], sample.value
        elif sample.name == PROCESS_CPUS_ALLOWED.name:
            self.cpus[labels["process"]] = sample.value
        elif sample.name == DEVICE_MEMORY_USED.name:
            self.memory = max(sample.value, self.memory or 0.0)
        else:
            self.shard_now = labels.get("shard", "")
            self.waits_in = labels.get("waits_in", "")
            self.clock = labels.get("clock", "")


@dataclass(slots=True)
class _Run:
    world_size: int | None = None
    budget: float | None = None
    exposed: float | None = None
    aligned: int = 0
    caused: dict[int, float] = field(default_factory=dict)
    ranks: dict[int, _Rank] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        if sample.name == WORLD_SIZE.name:
            self.world_size = int(sample.value)
        elif sample.name == SKEW_BUDGET.name:
            self.budget = sample.value
        elif sample.name == EXPOSED_WAIT.name:
            self.exposed = sample.value
        elif sample.name == ALIGNED_STEPS.name:
            self.aligned = int(sample.value)
        elif sample.labels.get("rank"):
            self._add_of_rank(sample, sample.labels)

    def _add_of_rank(self, sample: Sample, labels: Mapping[str, str]) -> None:
        if sample.name not in _OF_RANK:
            return
        if sample.name == DELAY_CAUSED.name:
            # The agent of rank 0 tells this of all ranks, also of those that other agents serve.
            rank = int(labels["rank"])
            self.caused[rank] = self.caused.get(rank, 0.0) + sample.value
            return
        self.ranks.setdefault(int(labels["rank"]), _Rank(host=labels.get("host", ""))).add(sample)

    def profile(self, name: str, pressure: Mapping[str, float]) -> RunProfile:
        return RunProfile(
            run=name,
            ranks=tuple(self.ranks[rank].profile(rank) for rank in sorted(self.ranks)),
            world_size=self.world_size,
            budget=self.budget,
            exposed_seconds=self.exposed,
            exposed_steps=self.aligned,
            pressure=pressure,
            caused=self.caused,
        )


_OF_RANK = frozenset(
    {_BUCKET, _SUM, _COUNT}
    | {metric.name for metric in (STEPS, SAMPLES, TOKENS, LAST_STEP_TIMESTAMP, RANK_INFO)}
    | {metric.name for metric in (PHASE_IN_PROGRESS, DEVICE_MEMORY_USED, PROCESS_CPUS_ALLOWED, DELAY_CAUSED)}
)

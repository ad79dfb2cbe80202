"""Synchronous training, simulated: what each rank does is given, who waits how long follows."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from rank_exporter.identity import Identity
from rank_exporter.phases import BESIDE_STEP, IN_STEP, Phase
from rank_exporter.segment.reader import STEP_DTYPE
from rank_exporter.segment.records import RankSteps
from rank_exporter.segment.writer import SegmentWriter

DEADLINE_SECONDS = 120.0
MS = 1_000_000
FABRIC_MS = 5
BEGAN_UNIX_NS = 1_700_000_000 * 10**9
ON_THE_WAY = [phase for phase in (*IN_STEP, *BESIDE_STEP) if phase not in (Phase.COLLECTIVE_WAIT, Phase.OPTIMIZER)]


def durations(steps: int, ranks: int, work: dict[str, Any]) -> np.ndarray:
    """ns of shape (steps, ranks, phases): ``work`` is ms by phase, a number or an array of (steps, ranks)."""
    ns = np.zeros((steps, ranks, len(Phase)), dtype=np.int64)
    for name, ms in work.items():
        ns[:, :, Phase[name.upper()]] = np.asarray(np.asarray(ms, dtype=float) * MS, dtype=np.int64)
    ready = ns[:, :, ON_THE_WAY].sum(axis=2)
    ready[1:] += ns[:-1, :, Phase.OPTIMIZER]
    ns[:, :, Phase.COLLECTIVE_WAIT] = ready.max(axis=1, keepdims=True) - ready + FABRIC_MS * MS
    ns[:, :, Phase.STEP] = ns[:, :, : Phase.STEP].sum(axis=2)
    return ns


def simulate(
    steps: int,
    ranks: int,
    *,
    run: str = "job",
    generation: int = 7,
    began: int = BEGAN_UNIX_NS,
    first: int = 1,
    per_host: int = 4,
    **work: Any,
) -> list[RankSteps]:
    """What ``ranks`` ranks record of ``steps`` steps, the first of them numbered ``first``."""
    ns = durations(steps, ranks, work)
    return [
        RankSteps(
            run=run,
            rank=rank,
            world_size=ranks,
            host=f"node-{rank // per_host}",
            generation=generation,
            started_unix_ns=began + rank,
            shards=(f"shard-{rank}",),
            records=records(ns[:, rank], first=first, began=began),
        )
        for rank in range(ranks)
    ]


def records(ns: np.ndarray, *, first: int, began: int) -> np.ndarray:
    found = np.zeros(len(ns), dtype=STEP_DTYPE)
    found["step"] = np.arange(first, first + len(ns))
    found["end_unix_ns"] = began + np.cumsum(ns[:, Phase.STEP] + ns[:, Phase.FIRST_BATCH :].sum(axis=1))
    found["ns"] = ns
    return found


@pytest.fixture(name="simulate")
def simulate_fixture() -> Callable[..., list[RankSteps]]:
    return simulate


class Agent:
    """A real agent of a directory, on loopback."""

    def __init__(self, directory: Path, *options: str) -> None:
        directory.mkdir(mode=0o700, exist_ok=True)
        self.directory = directory
        self._log = directory.with_suffix(".log")
        command = [sys.executable, "-m", "rank_exporter.agent", "--dir", str(directory), "--port", "0"]
        with self._log.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, "--listen-address", "127.0.0.1", "--host", directory.name, *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("serving "):
            self.process.kill()
            self.process.communicate()
            pytest.fail(f"the agent says {line!r} {self.complaints}")
        self.url = line.split()[1].removesuffix("/metrics")
        self.target = self.url.removeprefix("http://")
        self._client = httpx.Client(trust_env=False, timeout=60)

    @property
    def complaints(self) -> str:
        return self._log.read_text()

    def get(self, path: str) -> httpx.Response:
        return self._client.get(self.url + path)

    def values(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Values of a metric's samples with these labels, by their other labels' values in the order of their names."""
        found = {}
        # The parser is slow, and the ranks' own series are many.
        lines = [line for line in self.get("/metrics").text.splitlines() if line.startswith(f"{name}{{")]
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    others = sorted(sample.labels.keys() - labels.keys())
                    found[tuple(sample.labels[label] for label in others)] = sample.value
        return found

    def value(self, name: str, **labels: str) -> float:
        found = self.values(name, **labels)
        return next(iter(found.values())) if found else 0.0

    def close(self) -> None:
        self._client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            assert self.process.wait(timeout=DEADLINE_SECONDS) == 0
        self.process.stdout.close()


@contextmanager
def agents() -> Iterator[Callable[..., Agent]]:
    started: list[Agent] = []

    def start(directory: Path, *options: str) -> Agent:
        started.append(Agent(directory, *options))
        return started[-1]

    try:
        yield start
    finally:
        for agent in started:
            agent.close()


@pytest.fixture
def start_agent() -> Iterator[Callable[..., Agent]]:
    """Starts an agent of a directory, with further options; it is stopped in the end."""
    with agents() as start:
        yield start


@pytest.fixture(scope="module")
def start_standing_agent() -> Iterator[Callable[..., Agent]]:
    """The same for a module's tests together."""
    with agents() as start:
        yield start


@pytest.fixture(scope="session")
def eventually() -> Callable[[Callable[[], Any]], Any]:
    """The condition's first true answer; fails with its last one once the deadline has passed."""

    def wait(condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not (answer := condition()):
            assert time.monotonic() < deadline, f"still {answer!r} after {DEADLINE_SECONDS:g} s"
            time.sleep(0.1)
        return answer

    return wait


class SimulatedRank:
    """Writes a simulated rank's steps into a real segment."""

    def __init__(self, directory: Path, steps: RankSteps) -> None:
        identity = Identity(run=steps.run, rank=steps.rank, local_rank=0, world_size=steps.world_size, host=steps.host)
        self.writer = SegmentWriter.create(directory, identity, skew_budget_ratio=0.1)
        self.writer.set_shard(steps.shards[0])
        self.writer.set_generation(steps.generation)
        self._steps = iter(steps.records)

    def commit(self, number: int) -> None:
        """The next steps, as if they ended now."""
        for _, record in zip(range(number), self._steps, strict=False):
            self.writer.commit([int(ns) for ns in record["ns"]], time.monotonic_ns())


@pytest.fixture
def simulated() -> Iterator[Callable[[Path, RankSteps], SimulatedRank]]:
    """Makes a segment for a simulated rank; it ends with the test."""
    ranks: list[SimulatedRank] = []

    def make(directory: Path, steps: RankSteps) -> SimulatedRank:
        ranks.append(SimulatedRank(directory, steps))
        return ranks[-1]

    yield make
    for rank in ranks:
        rank.writer.close()

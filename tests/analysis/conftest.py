"""Synchronous training of the kinds that people report, simulated: recorded, spooled, and served by a live agent."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from rank_exporter.identity import Identity
from rank_exporter.phases import BESIDE_STEP, IN_STEP, Phase
from rank_exporter.segment.layout import pack_phase
from rank_exporter.segment.reader import STEP_DTYPE
from rank_exporter.segment.records import RankSteps
from rank_exporter.segment.steplog import StepLog
from rank_exporter.segment.writer import SegmentWriter

DEADLINE_SECONDS = 120.0
BEGAN_UNIX_NS = 1_700_000_000 * 10**9
USUAL_MS = {"input_ready": 5.0, "forward": 30.0, "backward": 50.0, "optimizer": 10.0, "other": 3.0}
FABRIC_MS = 5.0
NOISE = 0.02
ON_THE_WAY = [phase for phase in (*IN_STEP, *BESIDE_STEP) if phase not in (Phase.COLLECTIVE_WAIT, Phase.OPTIMIZER)]


def simulate(
    steps: int = 400,
    ranks: int = 4,
    *,
    run: str = "job",
    generation: int = 7,
    began: int = BEGAN_UNIX_NS,
    first: int = 1,
    per_host: int = 2,
    hosts: tuple[str, ...] = (),
    shards: tuple[str, ...] = (),
    samples: Any = 8,
    tokens: Any = 0,
    flags: Any = 0,
    waits_in: str = "",
    wait: Callable[[np.ndarray], None] | None = None,
    seed: int = 1,
    **more: Any,
) -> list[RankSteps]:
    """What ranks record: the usual ms of each phase with some noise, and ``more`` of it: numbers or arrays that fit
    (steps, ranks), by phase. Who waits how long follows. ``wait`` may move that elsewhere within the durations."""
    rng = np.random.default_rng(seed)
    ns = np.zeros((steps, ranks, len(Phase)))
    for name, ms in USUAL_MS.items():
        ns[:, :, Phase[name.upper()]] = ms * rng.normal(1, NOISE, (steps, ranks)).clip(0.8, 1.2)
    for name, ms in more.items():
        ns[:, :, Phase[name.upper()]] += ms
    ready = ns[:, :, ON_THE_WAY].sum(axis=2)
    ready[1:] += ns[:-1, :, Phase.OPTIMIZER]
    fabric = FABRIC_MS * rng.normal(1, NOISE, (steps, 1)).clip(0.8, 1.2)
    ns[:, :, Phase.COLLECTIVE_WAIT] += ready.max(axis=1, keepdims=True) - ready + fabric
    if wait is not None:
        wait(ns)
    whole = (ns * 1e6).astype(np.int64)
    whole[:, :, Phase.STEP] = whole[:, :, : Phase.STEP].sum(axis=2)
    found = np.zeros((steps, ranks), dtype=STEP_DTYPE)
    found["step"] = np.arange(first, first + steps)[:, None]
    found["end_unix_ns"] = began + np.cumsum(whole[:, :, [Phase.STEP, *BESIDE_STEP]].sum(axis=2), axis=0)
    found["ns"], found["samples"], found["tokens"], found["flags"] = whole, samples, tokens, flags
    names = shards or tuple(f"shard-{rank}" for rank in range(ranks))
    return [
        RankSteps(
            run=run,
            rank=rank,
            world_size=ranks,
            host=hosts[rank] if hosts else f"node-{rank // per_host}",
            generation=generation,
            started_unix_ns=began + rank,
            shards=(names[rank],),
            records=np.ascontiguousarray(found[:, rank]),
            waits_in=waits_in,
        )
        for rank in range(ranks)
    ]


def on(rank: int, ms: float, *, steps: int = 400, ranks: int = 4, where: Any = slice(None)) -> np.ndarray:
    """ms of one rank in the steps ``where``, 0 elsewhere."""
    found = np.zeros((steps, ranks))
    found[where, rank] = ms
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A run and what is to be said of it. ``said``: a part of the evidence. ``histograms``: the kind that totals alone
    lead to, where they cannot tell as much."""

    name: str
    ranks: list[RankSteps]
    kind: str
    rank: int | None = None
    phase: str | None = None
    pattern: str | None = None
    said: str = ""
    histograms: str | None = None


def _cases() -> Iterator[Case]:
    rng = np.random.default_rng(5)
    rows = np.arange(400)

    def case(name: str, kind: str, simulated: dict[str, Any], **expected: Any) -> Case:
        return Case(name=name, kind=kind, ranks=simulate(run=name, **simulated), **expected)

    late = {"rank": 1, "phase": "input_ready", "pattern": "persistent"}
    yield case("01-slow-input", "INPUT STRAGGLER", {"input_ready": on(1, 40)}, **late)
    two = {"ranks": 2, "input_ready": on(1, 40, ranks=2)}
    yield case("01-of-two", "INPUT STRAGGLER", two, **late)
    feed = 60 * rng.lognormal(0, 0.3, (400, 1))
    yield case("02-shared-feed", "INPUT-BOUND", {"input_ready": feed}, said="a shared feed")
    yield case("05-slow-start", "BALANCED", {"first_batch": on(1, 4000, where=[0, 200])})
    yield case("06-evaluation", "BALANCED", {"eval": np.where(rows % 2, 200, 0)[:, None]})
    stall = np.where(rows % 4 == 3, 200, 0)[:, None]
    yield case("07-stall-every-workers", "INPUT-BOUND", {"input_ready": stall}, said="one step of 4")
    yield case("08-respawned-workers", "BALANCED", {"first_batch": np.where(rows % 50 == 0, 900, 0)[:, None]})
    tokens = np.full((400, 4), 1000)
    tokens[:, 2] = 4000
    skewed = {"tokens": tokens, "forward": on(2, 90), "backward": on(2, 150)}
    yield case(
        "09-four-times-the-tokens", "BATCH SKEW", skewed, rank=2, pattern="persistent", said="4 times their tokens"
    )
    uneven = rng.integers(200, 2000, (400, 4))
    varied = {"tokens": uneven, "forward": uneven * 0.03, "backward": uneven * 0.05}
    yield case(
        "09-uneven-batches", "BATCH SKEW", varied, said="tokens of the median rank", histograms="ROTATING STRAGGLER"
    )
    for number, phase in (("11", "optimizer"), ("12", "forward"), ("13", "other")):
        compute = {"rank": 3, "phase": phase, "pattern": "persistent"}
        yield case(f"{number}-{phase}", "COMPUTE STRAGGLER", {phase: on(3, 20)}, **compute)
    turns = on(0, 100, where=rows // 3 % 2 == 0) + on(1, 100, where=rows // 3 % 2 == 1)
    moves = {"said": "it moves from one to the next"}
    yield case("14-two-in-turn", "ROTATING STRAGGLER", {"input_ready": turns}, **moves, histograms="UNKNOWN")
    yield case(
        "14-two-in-turn-of-two",
        "ROTATING STRAGGLER",
        {"ranks": 2, "input_ready": turns[:, :2]},
        **moves,
    )
    rare = {"steps": 2000, "forward": on(3, 50, steps=2000, where=slice(37, None, 100))}
    tail = {"rank": 3, "phase": "forward", "pattern": "tail"}
    yield case("15-every-hundredth", "COMPUTE STRAGGLER", rare, **tail, said="on 20 of 2000 steps")
    recent = {"steps": 1000, "input_ready": on(1, 60, steps=1000, where=slice(900, None))}
    yield case("16-last-tenth", "INPUT STRAGGLER", recent, **late, said="over all 1000: ")
    past = {"steps": 1000, "input_ready": on(1, 60, steps=1000, where=slice(0, 600))}
    yield case(
        "16-first-six-tenths",
        "BALANCED",
        past,
        said="INPUT STRAGGLER of rank 1 before step 901",
        histograms="INPUT STRAGGLER",
    )
    yield case("balanced", "BALANCED", {})
    device = {"flags": 1}
    yield case("compute-bound", "COMPUTE-BOUND", device, said="the device computes")
    yield case("fabric", "FABRIC", {"collective_wait": 60}, said="even the last rank waits")
    yield case("slow-copy", "H2D STRAGGLER", {"h2d": 2 + on(2, 30)}, rank=2, phase="h2d", pattern="persistent")


CASES = {case.name: case for case in _cases()}


LIVE = {name: case for name, case in CASES.items() if name[0].isdigit() and not name.endswith("-of-two")}
"""What a live agent serves too: the cases from the field, each once."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``case`` runs on every case, one that takes ``live_case`` on those that are served."""
    for name, cases in (("case", CASES), ("live_case", LIVE)):
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, cases.values(), ids=cases)


@pytest.fixture(name="simulate", scope="session")
def simulate_fixture() -> Callable[..., list[RankSteps]]:
    return simulate


@pytest.fixture(name="on", scope="session")
def on_fixture() -> Callable[..., np.ndarray]:
    return on


@pytest.fixture(scope="session")
def cases() -> dict[str, Case]:
    return CASES


@pytest.fixture(scope="session")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step logs of all cases, one file a case."""
    directory = tmp_path_factory.mktemp("spool")
    log = StepLog()
    for case in CASES.values():
        log.write(directory / f"{case.name}.parquet", case.ranks)
    return directory


def commit(directory: Path, steps: RankSteps) -> SegmentWriter:
    """A real segment that holds these steps, as if the last ended now. Its process lives until it is closed."""
    identity = Identity(run=steps.run, rank=steps.rank, local_rank=0, world_size=steps.world_size, host=steps.host)
    writer = SegmentWriter.create(directory, identity, skew_budget_ratio=0.1)
    writer.set_generation(steps.generation)
    clock = "device" if (steps.records["flags"] & 1).any() else "host"
    writer.set_facts({"clock": clock, "waits_in": steps.waits_in, "device": "cpu"})
    for record in steps.records:
        name = steps.shard_name(int(record["shard"]))
        writer.set_shard(name or None)
        writer.count(int(record["samples"]), int(record["tokens"]), int(record["padded"]))
        writer.commit(record["ns"].tolist(), time.monotonic_ns(), flags=int(record["flags"]))
    return writer


class Agent:
    """A real agent of a directory, on loopback."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "rank_exporter.agent", "--dir", str(directory), "--port", "0"]
        self._log = directory / "agent.err"
        with self._log.open("w") as errors:
            self.process = subprocess.Popen(
                [*command, "--listen-address", "127.0.0.1"], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE_SECONDS)
        line = self.process.stdout.readline() if ready else ""
        if not line.startswith("serving "):
            self.process.kill()
            self.process.communicate()
            pytest.fail(f"the agent says {line!r} {self._log.read_text()}")
        self.url = line.split()[1].removesuffix("/metrics")

    def close(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(timeout=DEADLINE_SECONDS) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="session")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an agent that serves the cases in LIVE, whose ranks are alive."""
    directory = tmp_path_factory.mktemp("live")
    directory.chmod(0o700)
    writers = [commit(directory, steps) for case in LIVE.values() for steps in case.ranks]
    agent = Agent(directory)
    # The first look at so many segments, all of whose steps are aligned then too, takes long on a busy machine.
    with httpx.Client(trust_env=False, timeout=DEADLINE_SECONDS) as client:
        for path in ("/metrics", "/steps", "/metrics"):
            assert client.get(agent.url + path).status_code == httpx.codes.OK
    yield agent.url
    agent.close()
    for writer in writers:
        writer.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Serves these ranks, in these phases now, by an agent of their own; returns its address."""
    closing: list[Callable[[], None]] = []

    def start(ranks: list[RankSteps], phases: tuple[Phase, ...] = ()) -> str:
        directory = tmp_path / f"segments-{len(closing)}"
        directory.mkdir(mode=0o700)
        writers = [commit(directory, steps) for steps in ranks]
        for writer, phase in zip(writers, phases, strict=False):
            writer.words[writer.phase_word] = pack_phase(phase, time.monotonic_ns())
        agent = Agent(directory)
        closing.append(agent.close)
        closing.extend(writer.close for writer in writers)
        return agent.url

    yield start
    for close in closing:
        close()

"""Real agents, real ranks, real HTTP over loopback; nothing may be left running afterwards."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from rank_exporter.agent.service import Service
from rank_exporter.config import AgentSettings
from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import pack_phase
from rank_exporter.segment.writer import SegmentWriter

DEADLINE_SECONDS = 120.0
OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def eventually(condition: Callable[[], Any]) -> Any:
    """The condition's first true answer; its last failure once the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            answer = condition()
            assert answer, f"still {answer!r} after {DEADLINE_SECONDS:g} s"
            return answer
        except (AssertionError, httpx.TransportError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)


class Scrape:
    """One exposition, parsed by prometheus_client."""

    def __init__(self, text: str, *, openmetrics: bool = False) -> None:
        self.text = text
        self.families = list((parse_openmetrics if openmetrics else parse_text)(text))
        self.samples = [sample for family in self.families for sample in family.samples]

    def find(self, name: str, **labels: str) -> list[Any]:
        return [s for s in self.samples if s.name == name and labels.items() <= s.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        found = self.find(name, **labels)
        assert len(found) == 1, f"{len(found)} series {name} {labels}"
        return float(found[0].value)

    def ranks(self) -> set[str]:
        return {sample.labels["rank"] for sample in self.find("training_steps_total")}


def read_line(stream: Any) -> str:
    """One line from a child's pipe; "" at its end. Fails rather than hang."""
    ready, _, _ = select.select([stream], [], [], DEADLINE_SECONDS)
    assert ready, "the process says nothing"
    return str(stream.readline())


class Agent:
    """An agent process, serving. ``complaints`` is what it wrote on standard error so far."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self.process = process
        self._log = log
        self.line = read_line(process.stdout)
        assert self.line.startswith("serving "), f"{self.line!r} {self.complaints}"
        self.url = self.line.split()[1]
        self.base = self.url.removesuffix("/metrics")
        self.port = int(self.base.rpartition(":")[2])
        self._client = httpx.Client(trust_env=False, timeout=60)

    @property
    def complaints(self) -> str:
        return self._log.read_text()

    def get(self, path: str = "/metrics", **headers: str) -> httpx.Response:
        return self._client.get(self.base + path, headers=headers)

    def request(self, method: str, path: str) -> httpx.Response:
        return self._client.request(method, self.base + path)

    def scrape(self, *, openmetrics: bool = False) -> Scrape:
        response = self.get(accept=OPENMETRICS if openmetrics else "text/plain")
        assert response.status_code == 200
        return Scrape(response.text, openmetrics=openmetrics)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=DEADLINE_SECONDS)

    def close(self) -> None:
        self._client.close()
        if self.process.poll() is None:
            assert self.stop() == 0
        self.process.stdout.close()


class Rank:
    """A training process that does as it is told."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, order: str, **details: Any) -> None:
        self.process.stdin.write(json.dumps({"order": order, **details}) + "\n")
        self.process.stdin.flush()
        assert read_line(self.process.stdout) == "done\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        self.process.stdin.close()
        self.process.wait(timeout=DEADLINE_SECONDS)
        self.process.stdout.close()


def processes_of(directory: Path) -> list[int]:
    """Processes whose command line names the directory."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if os.fsencode(directory) in command:
                found.append(int(entry.name))
    return found


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """An empty directory for segments; fails if a process that was given it is left."""
    path = tmp_path / "segments"
    path.mkdir(mode=0o700)
    yield path
    left = processes_of(path)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left, f"processes {left} were left running"


def command_of(directory: Path, *options: str) -> list[str]:
    start = [sys.executable, "-m", "rank_exporter.agent", "--dir", str(directory)]
    return [*start, "--listen-address", "127.0.0.1", "--port", "0", "--host", "node-a", *options]


def launch(command: list[str], log: Path) -> Agent:
    """Start an agent and wait until it serves."""
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
    return Agent(process, log)


@pytest.fixture
def agent_command(directory: Path) -> Callable[..., list[str]]:
    """The command of an agent of ``directory``, on a loopback port that is free, with further options."""
    return lambda *options: command_of(directory, *options)


@pytest.fixture
def start_agent(agent_command: Callable[..., list[str]], tmp_path: Path) -> Iterator[Callable[..., Agent]]:
    """Starts an agent of ``directory`` with further options and returns it once it serves."""
    agents: list[Agent] = []

    def start(*options: str) -> Agent:
        agents.append(launch(agent_command(*options), tmp_path / f"agent-{len(agents)}.log"))
        return agents[-1]

    yield start
    for agent in agents:
        agent.close()


@pytest.fixture(scope="module")
def standing_agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    """An agent that a module's tests share and only ask; it serves rank 3 of a run named <b>run</b>."""
    directory = tmp_path_factory.mktemp("standing")
    directory.chmod(0o700)
    recorder = Recorder(directory, rank=3, run="<b>run</b>")
    recorder.writer.words[recorder.writer.phase_word] = pack_phase(Phase.FORWARD, time.monotonic_ns())
    recorder.step(input_ready=100_000_000, step=150_000_000)
    agent = launch(command_of(directory), directory.with_suffix(".log"))
    yield agent
    agent.close()
    recorder.writer.close()


@pytest.fixture
def run_agent(agent_command: Callable[..., list[str]]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs an agent that is expected to end by itself."""

    def run(*options: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            agent_command(*options),
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            check=False,
            env={**os.environ, **environ},
        )

    return run


def identity(rank: int = 0, *, run: str = "job", host: str = "node-a", world_size: int = 4) -> dict[str, Any]:
    return {"run": run, "rank": rank, "local_rank": rank, "world_size": world_size, "host": host}


@pytest.fixture
def start_rank(directory: Path) -> Iterator[Callable[..., Rank]]:
    """Starts a training process that has taken one step, of which input took 100 ms."""
    ranks: list[Rank] = []

    def start(rank: int = 0, **about: Any) -> Rank:
        process = Rank()
        ranks.append(process)
        process.do("create", directory=str(directory), **identity(rank, **about))
        process.do("phase", phase="forward")
        process.do("step", input_ready=100_000_000, forward=50_000_000, step=150_000_000)
        return process

    yield start
    for process in ranks:
        process.close()


class Recorder:
    """Writes a segment in this very process."""

    def __init__(self, directory: Path, **about: Any) -> None:
        self.writer = SegmentWriter.create(directory, Identity(**identity(**about)), skew_budget_ratio=0.25)
        self.path = self.writer.path

    def step(self, *, ended_ns: int | None = None, **phases: int) -> None:
        spent = [0] * len(Phase)
        for phase, ns in phases.items():
            spent[Phase[phase.upper()]] = ns
        self.writer.commit(spent, time.monotonic_ns() if ended_ns is None else ended_ns)


@pytest.fixture
def record(directory: Path) -> Iterator[Callable[..., Recorder]]:
    """Makes a segment of ``directory``, written by this process: ``record(rank, run=…, host=…, world_size=…)``."""
    recorders: list[Recorder] = []

    def make(rank: int = 0, **about: Any) -> Recorder:
        recorders.append(Recorder(directory, rank=rank, **about))
        return recorders[-1]

    yield make
    for recorder in recorders:
        recorder.writer.close()


@pytest.fixture
def stranger() -> Iterator[Callable[[int], int]]:
    """Listens on a loopback port, 0 for any, and returns it."""
    sockets: list[socket.socket] = []

    def listen(port: int = 0) -> int:
        sock = socket.socket()
        sockets.append(sock)
        sock.bind(("127.0.0.1", port))
        sock.listen()
        return int(sock.getsockname()[1])

    yield listen
    for sock in sockets:
        sock.close()


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[[Callable[[], Any]], Any]:
    return eventually


@pytest.fixture
def processes(directory: Path) -> Callable[[], list[int]]:
    """Lists the processes that were given ``directory``."""
    return lambda: processes_of(directory)


@pytest.fixture
def scrape(directory: Path) -> Iterator[Callable[..., Scrape]]:
    """Renders the segments of ``directory`` as an agent would, in this process."""
    service = Service(AgentSettings(directory=directory, host="node-a"))

    def render(accept: str = "text/plain") -> Scrape:
        body, content_type = service.metrics(accept)
        return Scrape(body.decode(), openmetrics=content_type.startswith("application/openmetrics-text"))

    yield render
    service.close()

"""Training processes that start their own agent, as users do: it comes, is brought back, and goes by itself."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

TRAINING = """
import sys, time, rank_exporter
exporter = rank_exporter.start()
for step in exporter.steps(range(int(sys.argv[1]))):
    with exporter.phase("forward"):
        time.sleep(0.01)
    print(step, flush=True)
"""
GIL_HOLDER = """
import ctypes, sys, rank_exporter
exporter = rank_exporter.start()
for step in exporter.steps(range(2)):
    with exporter.phase("forward"):
        print(step, flush=True)
        if step:
            sys.stdin.readline()
            ctypes.PyDLL(None).sleep(3600)
"""
FAILING = TRAINING + "raise SystemExit(int(sys.argv[2]))\n"


class Host:
    """A host on which ranks are started; its agent listens on one loopback port."""

    def __init__(self, directory: Path, linger: float) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.directory = directory
        self.environ = {
            **os.environ,
            "RANK_EXPORTER_DIR": str(directory),
            "RANK_EXPORTER_PORT": str(self.port),
            "RANK_EXPORTER_LISTEN_ADDRESS": "127.0.0.1",
            "RANK_EXPORTER_LINGER_SECONDS": str(linger),
            "RANK_EXPORTER_RUN": "job",
            "WORLD_SIZE": "4",
        }
        self.ranks: list[subprocess.Popen[str]] = []
        self.client = httpx.Client(trust_env=False, timeout=60)

    def train(self, rank: int, program: str, *arguments: str, **environ: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**self.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), **environ},
        )
        self.ranks.append(process)
        return process

    def metrics(self) -> str:
        response = self.client.get(f"http://127.0.0.1:{self.port}/metrics")
        assert response.status_code == 200
        return response.text

    def value(self, name: str, rank: int) -> float:
        for line in self.metrics().splitlines():
            if line.startswith(f"{name}{{") and f'rank="{rank}"' in line:
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"no {name} of rank {rank}")

    def agents(self) -> list[int]:
        """Process ids of agents of this host."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, NotADirectoryError):
                continue
            if b"rank_exporter.agent" in command and os.fsencode(self.directory) in command:
                found.append(int(entry.name))
        return found

    def close(self) -> None:
        self.client.close()
        for process in self.ranks:
            process.kill()
            process.communicate()


@pytest.fixture
def host(directory: Path, eventually: Callable[..., Any]) -> Iterator[Host]:
    made = Host(directory, linger=1.0)
    yield made
    made.close()
    # The agent is nobody's child here: it has to leave by itself once its ranks are gone.
    eventually(lambda: not made.agents())


def steps(process: subprocess.Popen[str], number: int) -> None:
    """Wait until the process has taken this many further steps."""
    assert process.stdout is not None
    for _ in range(number):
        assert process.stdout.readline(), process.stderr.read() if process.stderr else ""


def test_metrics_come_back_after_the_agent_is_killed(host: Host, eventually: Callable[..., Any]) -> None:
    """A rank restarts the agent on the same port, and has not lost a step."""
    rank = host.train(0, TRAINING, "100000")
    eventually(lambda: host.value("training_steps_total", 0) > 0)
    [first] = host.agents()
    os.kill(first, signal.SIGKILL)
    before = eventually(lambda: host.value("training_steps_total", 0))
    [second] = host.agents()
    assert second != first
    steps(rank, 50)
    assert rank.poll() is None
    eventually(lambda: host.value("training_steps_total", 0) >= before + 20)


def test_two_ranks_share_one_agent_and_one_port(host: Host, eventually: Callable[..., Any]) -> None:
    """However many ranks start at once, one agent serves them, also those of another job."""
    for rank in range(3):
        host.train(rank, TRAINING, "100000")
    host.train(0, TRAINING, "100000", RANK_EXPORTER_RUN="another job")
    eventually(lambda: all(host.value("training_steps_total", rank) > 0 for rank in range(3)))
    eventually(lambda: 'run="another job"' in host.metrics())
    assert len(host.agents()) == 1


def test_killed_rank_ends_and_its_successor_is_not_held_up(host: Host, eventually: Callable[..., Any]) -> None:
    """After SIGKILL of a rank its series end; one that takes its place is served at once under the same labels."""
    host.train(0, TRAINING, "100000")
    victim = host.train(1, TRAINING, "100000")
    eventually(lambda: host.value("training_steps_total", 1) > 20)
    victim.kill()
    successor = host.train(1, TRAINING, "5")
    steps(successor, 5)
    assert successor.wait() == 0
    eventually(lambda: host.value("training_steps_total", 1) == 5)
    eventually(lambda: 'rank="1"' not in host.metrics())
    assert host.value("training_steps_total", 0) > 0


def test_stopped_rank_shows_how_long_it_has_been_in_its_phase(host: Host, eventually: Callable[..., Any]) -> None:
    """While a rank is stopped scrapes answer and its phase in progress grows; it goes on afterwards."""
    rank = host.train(0, TRAINING, "100000")
    eventually(lambda: host.value("training_steps_total", 0) > 0)
    rank.send_signal(signal.SIGSTOP)
    before = host.value("training_phase_in_progress_seconds", 0)
    taken = host.value("training_steps_total", 0)
    eventually(lambda: host.value("training_phase_in_progress_seconds", 0) > before + 1)
    rank.send_signal(signal.SIGCONT)
    eventually(lambda: host.value("training_steps_total", 0) > taken)


def test_rank_stuck_in_c_code_with_the_interpreter_lock_is_told_apart(
    host: Host, eventually: Callable[..., Any]
) -> None:
    """C code that never lets go of the lock silences nothing: the phase in progress grows, and is forward."""
    rank = host.train(0, GIL_HOLDER)
    eventually(lambda: 'phase="forward"' in host.metrics())
    assert rank.stdin is not None
    rank.stdin.write("go\n")
    rank.stdin.flush()
    before = host.value("training_phase_in_progress_seconds", 0)
    eventually(lambda: host.value("training_phase_in_progress_seconds", 0) > before + 1)
    assert host.value("training_steps_total", 0) == 1


@pytest.mark.parametrize("code", [0, 3])
def test_short_job_is_scraped_after_its_end_and_keeps_its_exit_code(
    host: Host, eventually: Callable[..., Any], code: int
) -> None:
    """A job that ends between two scrapes leaves its last samples to the agent, whatever it ended with."""
    host.environ["RANK_EXPORTER_LINGER_SECONDS"] = "5"
    job = host.train(0, FAILING, "7", str(code))
    assert job.wait() == code
    assert eventually(lambda: host.value("training_steps_total", 0)) == 7


def test_agent_survives_nothing_it_should_not(host: Host, eventually: Callable[..., Any]) -> None:
    """The agent is in a session of its own, is nobody's child in the job, and holds none of its files open."""
    rank = host.train(0, TRAINING, "100000")
    eventually(lambda: host.value("training_steps_total", 0) > 0)
    [agent] = host.agents()
    assert os.getsid(agent) != os.getsid(rank.pid)
    status = Path(f"/proc/{agent}/status").read_text()
    assert f"PPid:\t{rank.pid}\n" not in status
    pipes = {Path(f"/proc/{rank.pid}/fd/{number}").readlink() for number in (1, 2)}
    held = {entry.readlink() for entry in Path(f"/proc/{agent}/fd").iterdir()}
    assert not pipes & held


def test_agent_that_cannot_start_is_said_once_and_stops_nothing(host: Host) -> None:
    """Where no agent can run, training goes on, the rank says so in one line, and counts it."""
    rank = host.train(0, TRAINING, "100", RANK_EXPORTER_LISTEN_ADDRESS="203.0.113.7")
    _, errors = rank.communicate(timeout=60)
    assert rank.returncode == 0
    lines = [line for line in errors.splitlines() if line]
    journal = host.directory / "agent.log"
    said = f"metrics are not served for now: the agent did not start, see {journal}"
    assert lines == [f"rank 0: {said} (counted as 'agent', said once)"]
    assert "203.0.113.7" in journal.read_text()

"""The demo, played for real: torchrun ranks, Prometheus with the shipped rules, Alertmanager, and a page received."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e

SCENARIOS = ("balanced", "input-straggler", "compute-straggler")
DEMO = [str(Path(sys.executable).with_name("rank-exporter")), "demo"]


@dataclass(frozen=True)
class Played:
    """What a demo printed, and what it left behind: files, and command lines of processes."""

    exit_status: int
    output: str
    errors: str
    files: list[str]
    processes: list[str]

    @property
    def result(self) -> dict[str, Any]:
        lines = self.output.splitlines()
        assert len(lines) == 1
        return dict(json.loads(lines[0]))

    @property
    def victim(self) -> dict[str, Any]:
        [rank] = [rank for rank in self.result["ranks"] if rank["rank"] == 1]
        return dict(rank)


def processes_within(directory: Path) -> list[str]:
    """Command lines of the processes that have the directory in their command or environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes()
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if str(directory).encode() in command + environ:
                found.append(command.replace(b"\0", b" ").decode())
    return found


def environ_within(directory: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(directory)}


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def play() -> Iterator[Callable[[str], Played]]:
    """What came of a scenario. Two are played at once, on purpose: a demo has to do beside other work too."""
    with ThreadPoolExecutor(2) as pool:
        playing = {scenario: pool.submit(played, scenario) for scenario in SCENARIOS}
        yield lambda scenario: playing[scenario].result()


def played(scenario: str) -> Played:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        command = [*DEMO, "--scenario", scenario, "--json"]
        done = subprocess.run(
            command, env=environ_within(directory), capture_output=True, text=True, check=False, timeout=240
        )
        return Played(
            exit_status=done.returncode,
            output=done.stdout,
            errors=done.stderr,
            files=[str(path) for path in directory.rglob("*")],
            processes=processes_within(directory),
        )


@pytest.mark.parametrize(
    ("scenario", "alert", "kind", "phase"),
    [
        ("input-straggler", "TrainingInputStraggler", "INPUT STRAGGLER", "input_ready"),
        ("compute-straggler", "TrainingComputeStraggler", "COMPUTE STRAGGLER", "optimizer"),
    ],
)
def test_a_straggler_is_paged_with_rank_phase_host_and_shard(
    play: Callable[[str], Played], scenario: str, alert: str, kind: str, phase: str
) -> None:
    """The one page names the slow rank, its phase, host and shard; the verdict agrees; the exit status is 0."""
    played = play(scenario)
    assert played.exit_status == 0, played.errors + played.output
    result = played.result
    assert result["scenario"] == scenario
    where = {"rank": 0, "phase": phase, "host": socket.gethostname(), "shard": "train-00000-of-00002"}
    verdict = result["verdict"]
    assert {key: verdict[key] for key in ("kind", *where)} == {"kind": kind, **where}
    [page] = [alert for alert in result["alerts"] if alert["severity"] == "critical"]
    assert {key: page[key] for key in ("name", "severity", *where)} == {
        "name": alert,
        "severity": "critical",
        **where,
        "rank": "0",
    }
    assert where["shard"] in page["summary"]
    assert page["runbook_url"].endswith(f"/{alert}.md")
    assert 15 < result["page_latency_seconds"] < 120


def test_balanced_ranks_are_not_paged(play: Callable[[str], Played]) -> None:
    """Without a straggler there is no page and no rank in the verdict, and the exit status is 0."""
    played = play("balanced")
    assert played.exit_status == 0, played.errors + played.output
    result = played.result
    # Ranks that share a busy machine do keep each other waiting now and then, which is a warning.
    assert not [alert for alert in result["alerts"] if alert["severity"] == "critical" or alert["rank"]]
    assert result["page_latency_seconds"] is None
    assert [result["verdict"][key] for key in ("rank", "phase", "host", "shard")] == [None] * 4
    assert min(rank["steps"] for rank in result["ranks"]) > 50


def test_the_victim_waits_and_is_not_named(play: Callable[[str], Played]) -> None:
    """The other rank's collective wait rises by what the straggler loses, and no alert is about it."""
    balanced, slow = play("balanced"), play("input-straggler")
    wait, usual = (played.victim["phases"]["collective_wait"]["p50"] for played in (slow, balanced))
    assert wait > usual + 0.05
    assert {alert["rank"] for alert in slow.result["alerts"]} == {"0"}
    assert slow.result["verdict"]["rank"] == 0


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_is_left_behind(play: Callable[[str], Played], scenario: str) -> None:
    """When a demo has ended, so have all its processes, and its directory is gone."""
    played = play(scenario)
    assert (played.files, played.processes) == ([], [])


@pytest.mark.parametrize(
    ("moment", "signum"),
    [
        ("Starting Prometheus", signal.SIGINT),
        ("Starting 2 training ranks", signal.SIGTERM),
        ("Training: rank 0 is slow", signal.SIGINT),
    ],
)
def test_a_signal_ends_it_at_any_moment_and_nothing_is_left(
    temporary: Path, moment: str, signum: signal.Signals
) -> None:
    """Ctrl-C or SIGTERM, in start-up and in the midst: the exit status tells the signal, nothing is left behind."""
    with subprocess.Popen(
        DEMO, env=environ_within(temporary), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert any(line.startswith(moment) for line in process.stderr)
        process.send_signal(signum)
        last = process.stderr.read().splitlines()[-1]
        assert process.stdout.read() == ""
    assert process.returncode == 128 + signum
    assert last == f"demo: stopped by {signum.name}; nothing of it is left running"
    assert list(temporary.iterdir()) == []
    assert processes_within(temporary) == []


def test_a_training_that_crashes_is_told_with_its_last_words(temporary: Path) -> None:
    """If the ranks die, the demo says so with the end of their log, exits with 1 and leaves nothing behind."""
    broken = temporary / "modules" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libsomething is missing')\n")
    directory = temporary / "tmp"
    directory.mkdir()
    environ = {**environ_within(directory), "PYTHONPATH": str(broken.parent)}
    done = subprocess.run(DEMO, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (1, "")
    assert "demo: training ended early, with exit status 1" in done.stderr
    assert "libsomething is missing" in done.stderr
    assert list(directory.iterdir()) == []
    assert processes_within(directory) == []

"""A node is lost and torchrun goes on with the other: three real ranks, then two."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rank_exporter.analysis.generations import generations
from rank_exporter.analysis.steps_load import load_step_logs

HERE = Path(__file__).parent
RENDEZVOUS = "join_timeout=60,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=3,read_timeout=10"


@pytest.fixture
def start_node(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts torchrun for a node with so many ranks; all of it is gone in the end."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    nodes: list[subprocess.Popen[str]] = []

    def start(ranks: int, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", f"--nproc-per-node={ranks}"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=elastic"]
        command += [f"--rdzv-conf={RENDEZVOUS},is_host={not nodes}", "--max-restarts=3", "--local-addr=127.0.0.1"]
        with (tmp_path / f"node-{len(nodes)}.log").open("w") as log:
            nodes.append(
                subprocess.Popen(
                    [*command, str(HERE / "elastic_training.py"), *arguments],
                    stdout=log,
                    stderr=log,
                    text=True,
                    start_new_session=True,
                    # Else gloo finds the addresses of the generation before in the store that is kept over a restart.
                    env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
                )
            )
        return nodes[-1]

    yield start
    for node in nodes:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def ranks_of(node: subprocess.Popen[str]) -> list[int]:
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text().split()
    return [int(child) for child in children]


def test_an_elastic_restart_mixes_no_generations(
    tmp_path: Path,
    start_node: Callable[..., subprocess.Popen[str]],
    start_agent: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    """Steps of three ranks, then of two, are aligned each for itself; the counter goes on, and what is spooled tells
    the generations apart."""
    agent = start_agent(tmp_path / "near", "--step-log-dir", str(tmp_path / "log"), "--linger-seconds", "60")
    first = start_node(2, str(agent.directory))
    second = start_node(1, str(agent.directory))
    eventually(lambda: agent.value("training_aligned_ranks", run="elastic") == 3)
    before = agent.value("training_aligned_steps_total", run="elastic")
    for rank in ranks_of(second):
        os.kill(rank, signal.SIGKILL)
    os.killpg(second.pid, signal.SIGKILL)
    second.wait()
    eventually(lambda: agent.value("training_world_size", run="elastic") == 2)
    between = agent.value("training_aligned_steps_total", run="elastic")
    assert between >= before
    eventually(lambda: agent.value("training_aligned_steps_total", run="elastic") >= between + 20)
    assert agent.value("training_aligned_ranks", run="elastic") == 2
    first.send_signal(signal.SIGTERM)
    first.wait()
    agent.close()
    assert agent.complaints == ""
    found = load_step_logs([tmp_path / "log"])
    assert not found.problems
    groups = [group for group in generations(found.segments) if group[0].generation]
    assert {len(group) for group in groups} == {2, 3}
    assert len(groups[-1]) == 2
    for group in groups:
        assert {steps.host for steps in group} == {f"node-{len(group)}"}
        assert len({steps.started_unix_ns for steps in group}) == len(group)

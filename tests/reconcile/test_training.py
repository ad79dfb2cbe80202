"""Real ranks, each a process, and the command that reconciles them: from files, and from the agent that saw them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from rank_exporter.cli import main

HERE = Path(__file__).parent
COMMAND = [str(Path(sys.executable).with_name("rank-exporter")), "reconcile"]


def launch(world: int, out: Path, *names: str, expected: int = 0) -> None:
    """Run the scenarios on ``world`` ranks, which all end with the expected status."""
    ranks = [
        subprocess.Popen(
            [sys.executable, str(HERE / "training.py"), str(out), *names],
            env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]
    for rank in ranks:
        _, errors = rank.communicate(timeout=240)
        assert rank.returncode == expected, errors


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks through every scenario; the last is killed, and one rank goes on with it."""
    out = tmp_path_factory.mktemp("trained")
    names = ("complete", "workers", "padded", "unsharded", "swapped", "starved")
    launch(2, out, *names, "lost", expected=-signal.SIGKILL)
    launch(1, out, "resumed")
    return out


def reconcile(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(main, ["reconcile", *arguments, "--json"])
    assert not done.stderr, done.stderr
    return done.exit_code, json.loads(done.stdout)


def findings(found: dict[str, Any]) -> list[tuple[str, list[int], int, list[Any]]]:
    return [(one["kind"], one["ranks"], one["count"], one["ids"]) for one in found["findings"]]


@pytest.fixture(scope="module")
def agent(trained: Path) -> Iterator[str]:
    """The address of an agent that finds what the ranks left."""
    command = [sys.executable, "-m", "rank_exporter.agent", "--dir", str(trained / "segments"), "--port", "0"]
    process = subprocess.Popen([*command, "--linger-seconds", "3600"], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        yield process.stdout.readline().split()[1].removesuffix("/metrics")
    process.terminate()
    process.wait(timeout=120)


@pytest.fixture(scope="module")
def prometheus(agent: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has scraped the agent."""
    directory = tmp_path_factory.mktemp("prometheus")
    target = agent.removeprefix("http://")
    (directory / "prometheus.yml").write_text(
        "scrape_configs:\n"
        f"  - {{job_name: training, scrape_interval: 1s, static_configs: [{{targets: ['{target}']}}]}}\n"
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
    command = ["prometheus", f"--config.file={directory / 'prometheus.yml'}", f"--storage.tsdb.path={directory}"]
    command += [f"--web.listen-address={url.removeprefix('http://')}", "--log.level=error"]
    process = subprocess.Popen(command, env={**os.environ, "GOMAXPROCS": "1"})
    try:
        deadline = time.monotonic() + 120
        while not _has_scraped(url):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(timeout=120)


def _has_scraped(url: str) -> bool:
    try:
        found = httpx.get(
            f"{url}/api/v1/query", params={"query": "training_sample_digest_info"}, trust_env=False, timeout=60
        )
        return bool(found.json()["data"]["result"])
    except (httpx.HTTPError, ValueError, KeyError):
        return False


def sources(trained: Path, agent: str, run: str) -> dict[str, tuple[str, ...]]:
    return {
        "samples": ("--samples", str(trained / "ids"), "--run", run),
        "agent": ("--agent", agent, "--run", run),
    }


@pytest.mark.parametrize("source", ["samples", "agent"])
@pytest.mark.parametrize("run", ["complete", "workers"])
def test_shuffled_epochs_are_clean(trained: Path, agent: str, run: str, source: str) -> None:
    """Whoever loads them; the agent tells the epoch that ended last."""
    status, found = reconcile(*sources(trained, agent, run)[source], "--manifest", "16")
    assert (status, found["verdict"]) == (0, found["verdict"])
    assert found["clean"] is True
    assert [epoch["epoch"] for epoch in found["epochs"]] == ([0, 1] if source == "samples" else [1])
    assert [rank["samples"] for rank in found["epochs"][-1]["ranks"]] == [8, 8]


def test_padding_is_told_apart(trained: Path, agent: str) -> None:
    """Nine samples on two ranks: the last of rank 1 pads."""
    for arguments in sources(trained, agent, "padded").values():
        status, found = reconcile(*arguments, "--manifest", "9")
        assert status == 0
        assert [(rank["samples"], rank["padded"]) for rank in found["epochs"][0]["ranks"]] == [(5, 0), (5, 1)]


def test_an_unsharded_stream_shows_its_duplicates(trained: Path, agent: str, tmp_path: Path) -> None:
    """By name from the files, by equal digests from the agent; with a manifest or without."""
    names = [f"sample-{number:02d}" for number in range(8)]
    manifest = tmp_path / "names.txt"
    manifest.write_text("\n".join(names) + "\n")
    from_files, from_agent = sources(trained, agent, "unsharded").values()
    for more in ((), ("--manifest", str(manifest))):
        status, found = reconcile(*from_files, *more)
        assert (status, findings(found)) == (1, [("duplicate", [0, 1], 8, names)])
        status, found = reconcile(*from_agent, *more)
        assert (status, findings(found)[0]) == (1, ("duplicate", [0, 1], 8, []))


def test_a_swapped_sample_is_found_though_counts_are_equal(trained: Path, agent: str) -> None:
    """Which one, from the files; that there is one, from the digests; and against another trial."""
    from_files, from_agent = sources(trained, agent, "swapped").values()
    swapped = [("omitted", [], 1, [5]), ("foreign", [1], 1, [16])]
    assert reconcile(*from_files, "--manifest", "16")[0] == 1
    assert findings(reconcile(*from_files, "--manifest", "16")[1]) == swapped
    assert findings(reconcile(*from_files, "--against-run", "complete", "--epoch", "0")[1]) == swapped
    status, found = reconcile(*from_agent, "--manifest", "16")
    assert (status, [(kind, count) for kind, _, count, _ in findings(found)]) == (1, [("differs", 0)])


def test_a_rank_without_a_batch_is_found(trained: Path, agent: str) -> None:
    """One shard, two ranks: what was taken is right, who took it is not."""
    for arguments in sources(trained, agent, "starved").values():
        status, found = reconcile(*arguments)
        assert (status, findings(found)) == (1, [("starved", [1], 0, [])])


def test_a_restart_on_fewer_ranks_that_loses_samples(trained: Path, agent: str) -> None:
    """Two ranks are killed after eight samples, one goes on: what it passed over is listed, the rest is not."""
    from_files, from_agent = sources(trained, agent, "restarted").values()
    status, found = reconcile(*from_files, "--manifest", "16")
    assert (status, findings(found)) == (1, [("omitted", [], 2, [8, 9])])
    assert [(rank["rank"], rank["processes"]) for rank in found["epochs"][0]["ranks"]] == [(0, 2), (1, 1)]
    # From its checkpoint after the first step, that was not all it lost.
    status, found = reconcile(*from_files, "--manifest", "16", "--resumed-from", "1")
    assert findings(found)[0][2:] == (6, [4, 5, 6, 7, 8, 9])
    # The agent serves one process of a rank; of the killed ones it knows no more than was in their segments.
    assert reconcile(*from_agent, "--manifest", "16")[0] != 0


def test_a_prometheus_tells_what_the_agent_told(trained: Path, prometheus: str) -> None:
    """Counts and digests, as long as it keeps them."""
    status, found = reconcile("--prometheus", prometheus, "--run", "complete", "--manifest", "16")
    assert (status, [rank["samples"] for rank in found["epochs"][0]["ranks"]]) == (0, [8, 8])
    status, found = reconcile("--prometheus", prometheus, "--run", "unsharded")
    assert (status, findings(found)) == (1, [("duplicate", [0, 1], 8, [])])
    others = ("--run", "swapped", "--against-run", "complete")
    # The one ended with epoch 0, the other with epoch 1: nothing to compare.
    assert reconcile("--prometheus", prometheus, *others)[0] == 2


def test_people_are_told_by_rank(trained: Path) -> None:
    """The table, what is not as it should be, and the verdict last."""
    command = [*COMMAND, "--samples", str(trained / "ids"), "--run", "swapped", "--manifest", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith("epoch 0, complete: 16 samples, 0 padded, digest ")
    assert "omitted: epoch 0: no rank took 1 sample of the 16 of manifest 0..15" in lines
    assert "foreign: epoch 0: rank 1 took 1 sample beyond those of manifest 0..15" in lines
    assert lines[-1] == "swapped: differs: 2 findings (omitted, foreign)"

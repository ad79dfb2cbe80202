"""``rank-exporter align`` as a person runs it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rank_exporter.cli import main
from rank_exporter.segment.records import RankSteps
from rank_exporter.segment.steplog import StepLog


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["align", *map(str, arguments)])


@pytest.fixture
def log(tmp_path: Path, simulate: Callable[..., list[RankSteps]]) -> Path:
    """Step logs of two hosts: four ranks, of which rank 2 is late by 40 ms in steps 5 and 9, and by 80 ms in step 7."""
    ready = np.full((12, 4), 20.0)
    ready[[4, 8], 2] = 60
    ready[6, 2] = 100
    ranks = simulate(12, 4, per_host=2, input_ready=ready, forward=10, optimizer=5)
    directory = tmp_path / "log"
    directory.mkdir()
    StepLog().write(directory / "a.parquet", ranks[:2])
    StepLog().write(directory / "b.parquet", ranks[2:])
    return directory


def test_one_step_rank_by_rank(log: Path) -> None:
    """The late rank is marked in its phase, and what the step cost is said."""
    done = run("--step-log", log, "--step", 7)
    assert done.exit_code == 0, done.stderr
    assert (
        "Step 7: rank 2 on node-1 was last, 80.0 ms beyond the median rank, in input_ready of shard-2; "
        "0.240 GPU-seconds lost" in done.stdout
    )
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["2*", "node-1", "5.0", "100.0*", "10.0", "5.0", "115.0", "+80.0"] in rows
    assert ["3", "node-1", "5.0", "20.0", "10.0", "85.0", "35.0", "+0.0"] in rows
    assert done.stderr == ""


def test_slowest_steps_and_the_whole_run(log: Path) -> None:
    """The slowest steps come first, and the tax is that of the whole run."""
    done = run("--step-log", log, "--slowest", 2)
    shown = [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("Step ")]
    assert shown == ["Step 7", "Step 5"]
    assert "12 steps of run job aligned, 1 to 12, from 4 of 4 ranks" in done.stdout
    assert "scaling tax 0.040 GPU-seconds a step, 0.5 in all (0.00 GPU-hours), 18.9% of GPU time" in done.stdout
    assert "rank 2 on node-1 was last in 3 steps by input_ready of shard-2, 0.160 s beyond" in done.stdout


def test_a_range_as_json(log: Path) -> None:
    """--json holds the same as one object, with every rank of every step."""
    done = run("--step-log", log, "--steps", "5..7", "--json")
    found = json.loads(done.stdout)
    assert [step["step"] for step in found["steps"]] == [5, 6, 7]
    assert found["tax"]["gpu_seconds"] == pytest.approx(0.12 + 0.24)
    assert found["missing_ranks"] == []
    last = {"rank": 2, "host": "node-1", "shard": "shard-2", "phase": "input_ready", "delay_caused": 0.08}
    assert found["steps"][2]["last"] == last
    (rank,) = [rank for rank in found["steps"][0]["ranks"] if rank["rank"] == 1]
    assert rank["phases"]["collective_wait"] == pytest.approx(0.045)
    assert rank["optimizer_before"] == pytest.approx(0.005)


def test_a_trace_has_a_track_for_each_rank(log: Path, tmp_path: Path) -> None:
    """Events of a track lie one after the other, phases within their step, and all steps end together."""
    out = tmp_path / "trace.json"
    assert run("--step-log", log, "--steps", "5..9", "--trace", out).exit_code == 0
    found = json.loads(out.read_text())
    names = {event["tid"]: event["args"]["name"] for event in found["traceEvents"] if event["name"] == "thread_name"}
    assert names == {0: "rank 0 on node-0", 1: "rank 1 on node-0", 2: "rank 2 on node-1", 3: "rank 3 on node-1"}
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    steps = {}
    for track in range(4):
        own = [event for event in spans if event["tid"] == track]
        whole = [event for event in own if event["name"].startswith("step ")]
        assert len(whole) == 5
        for one, following in pairwise(whole):
            assert one["ts"] + one["dur"] <= following["ts"] + 0.001
        for event in own:
            (step,) = [one for one in whole if one["args"]["step"] == event["args"]["step"]]
            assert step["ts"] - 0.001 <= event["ts"]
            assert event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 0.001
        for one in whole:
            steps.setdefault(one["args"]["step"], []).append(one["ts"] + one["dur"])
    for ends in steps.values():
        assert max(ends) - min(ends) < 0.002
    (late,) = [one for one in spans if one["name"] == "step 7 (last)"]
    assert late["args"] == {"step": 7, "shard": "shard-2", "last": True, "late_ms": 80.0, "phase": "input_ready"}


def test_damaged_files_are_named_and_the_rest_is_used(log: Path) -> None:
    """Cut, changed, empty and foreign files are one line each on standard error."""
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    whole = (log / "a.parquet").read_bytes()
    (log / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    (log / "empty.parquet").touch()
    (log / "text.parquet").write_text("step,rank\n1,0\n" * 100)
    (log / "changed.parquet").write_bytes(whole[:200] + bytes(400) + whole[600:])
    parquet.write_table(pyarrow.table({"step": [1, 2, 3]}), log / "foreign.parquet")
    (log / "other.txt").write_text("no step log, and not asked for")
    done = run("--step-log", log, "--step", 7)
    assert done.exit_code == 0
    assert "Step 7: rank 2 on node-1 was last" in done.stdout
    said = done.stderr.splitlines()
    damaged = ["changed", "cut", "empty", "foreign", "text"]
    assert len(said) == len(damaged), said
    for name, line in zip(damaged, said, strict=True):
        assert line.startswith(f"rank-exporter: step log {log / name}.parquet cannot be read ("), line
        assert line.endswith("): remove it"), line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --agent, --prometheus or --step-log: where are the steps?"),
        (("--step-log", "{log}", "--step", 3, "--slowest", 2), "give one of --step, --steps and --slowest"),
        (("--step-log", "{log}", "--steps", "9..7"), "'9..7' is no range: give N..M, such as 100..120"),
        (("--step-log", "{log}", "--step", 99), "step 99 of run job cannot be aligned: known are 12 from 1 to 12"),
        (("--step-log", "{log}", "--run", "x"), "run 'x' was not found: there is job"),
        (("--step-log", "{log}/none"), "none does not exist: give a file or directory of step logs"),
        (("--agent", "http://127.0.0.1:1"), "http://127.0.0.1:1/steps cannot be read ("),
        (("--agent", "nonsense"), "nonsense/steps cannot be read ("),
        (("--prometheus", "http://127.0.0.1:1"), "http://127.0.0.1:1/api/v1/query cannot be read ("),
        (("--step-log", "{log}", "--trace", "{log}/none/x.json"), "cannot be written (No such file or directory)"),
    ],
)
def test_bad_input_is_one_clear_line(log: Path, arguments: tuple[object, ...], message: str) -> None:
    """It says what is wrong on standard error, prints no table, and fails."""
    done = run(*(str(argument).format(log=log) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(("rank-exporter: ", "Error: "))]
    assert message in line
    assert "Traceback" not in done.stderr


class Prometheus(BaseHTTPRequestHandler):
    """Answers one instant query as Prometheus does."""

    instances: tuple[str, ...] = ()
    asked: list[str]

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        assert url.path == "/api/v1/query"
        self.asked.append(parse_qs(url.query)["query"][0])
        result = [{"metric": {"instance": name}, "value": [0, "4"]} for name in self.instances]
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"status": "success", "data": {"result": result}}).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[Callable[..., tuple[str, list[str]]]]:
    """Starts something that knows these instances; returns its address and the queries it was asked."""
    servers = []

    def start(*instances: str) -> tuple[str, list[str]]:
        asked: list[str] = []
        handler = type("Handler", (Prometheus,), {"instances": instances, "asked": asked})
        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=servers[-1].serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}", asked

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_live_agents_are_found_through_prometheus(
    *,
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    prometheus: Callable[..., tuple[str, list[str]]],
    eventually: Callable[..., Any],
) -> None:
    """Agents of two hosts, which Prometheus scrapes, and one that is gone: it is named, the others are used."""
    agents = [start_agent(tmp_path / name) for name in ("one", "two")]
    late = np.broadcast_to([20, 20, 20, 70], (15, 4))
    for one in simulate(15, 4, per_host=2, input_ready=late):
        simulated(agents[one.rank // 2].directory, one).commit(15)
    for agent in agents:
        eventually(lambda agent=agent: agent.get("/steps?after=14").content.count(b'"records": 1') == 2)
    url, asked = prometheus(*(agent.target for agent in agents), "127.0.0.1:1")
    done = run("--prometheus", url, "--run", "job", "--step", 15)
    assert asked == ['count by (instance) (training_rank_info{run="job"})']
    assert done.exit_code == 0
    assert (
        "Step 15: rank 3 on node-1 was last, 50.0 ms beyond the median rank, in input_ready of shard-3" in done.stdout
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("rank-exporter: http://127.0.0.1:1/steps cannot be read (")
    nothing, _ = prometheus()
    assert "knows no rank: check its targets" in run("--prometheus", nothing).stderr

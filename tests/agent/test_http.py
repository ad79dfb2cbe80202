"""The agent over HTTP: a real server on loopback."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import socket
import subprocess
import sys

import httpx
import pytest

from rank_exporter.agent.server import application
from rank_exporter.agent.service import Service
from rank_exporter.config import AgentSettings


def test_metrics_in_the_format_that_is_asked_for(standing_agent):
    """Text by default and OpenMetrics by Accept header; both parse, and HEAD gives the same headers."""
    agent = standing_agent
    text = agent.get(accept="*/*")
    assert text.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    prometheus = (
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
        "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    )
    openmetrics = agent.get(accept=prometheus)
    assert openmetrics.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert openmetrics.text.endswith("# EOF\n")
    assert ' # {step="1"} 0.1 ' in openmetrics.text
    assert ' # {step="1"}' not in text.text
    assert agent.scrape(openmetrics=True).ranks() == agent.scrape().ranks() == {"3"}
    head = agent.request("HEAD", "/metrics")
    assert (head.status_code, head.content) == (200, b"")
    assert "server" not in head.headers


def test_metrics_are_compressed_on_request(standing_agent):
    """A client that takes gzip gets it, and one that does not gets plain text."""
    agent = standing_agent
    packed = agent.get(**{"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "training_steps_total" in packed.text
    plain = agent.get(**{"accept-encoding": "identity"})
    assert "content-encoding" not in plain.headers
    assert len(gzip.compress(plain.content)) < len(plain.content) / 5


def test_pages(standing_agent):
    """/ lists the ranks, escaped, with links; /healthz says ok; anything else is not found."""
    agent = standing_agent
    index = agent.get("/")
    assert index.headers["content-type"].startswith("text/html")
    assert 'href="metrics"' in index.text
    assert 'href="healthz"' in index.text
    assert "<td>&lt;b&gt;run&lt;/b&gt;<td>3<td>node-a<td>forward, " in index.text
    assert agent.get("/healthz").text == "ok\n"
    assert agent.request("HEAD", "/").status_code == 200
    assert agent.get("/nothing").status_code == 404
    assert agent.request("POST", "/metrics").status_code == 405


def test_health_tells_when_nobody_looks_for_segments(directory):
    """/healthz is 503 once the last look at the directory is long ago."""
    now = [1000.0]
    service = Service(AgentSettings(directory=directory, host="node-a"), clock=lambda: now[0])
    app = application(service, on_start=lambda: None, leave=lambda: None)

    async def health():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as client:
            return (await client.get("/healthz")).status_code

    assert asyncio.run(health()) == 200
    now[0] += 60
    assert asyncio.run(health()) == 503
    service.scan()
    assert asyncio.run(health()) == 200


def test_a_broken_request_does_no_harm(standing_agent):
    """Garbage and connections that are dropped half-way leave the agent serving, without a word."""
    agent = standing_agent
    for words in (b"\0\xff garbage\r\n\r\n", b"GET /metrics HTTP/1.1\r\nHost: x", b""):
        with socket.create_connection(("127.0.0.1", agent.port)) as connection:
            connection.sendall(words)
    assert agent.scrape().ranks() == {"3"}
    assert agent.complaints == ""


def test_the_agent_leaves_torch_unloaded():
    """Importing all that an agent runs does not load torch."""
    code = "import sys, rank_exporter.agent.service, rank_exporter.agent.command; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_agent_yields_to_training(standing_agent):
    """The agent runs at a lower priority than training, and not so low that it is not heard."""
    with open(f"/proc/{standing_agent.process.pid}/stat") as stat:  # noqa: PTH123
        assert int(stat.read().rpartition(")")[2].split()[16]) == min(os.nice(0) + 5, 19)


def test_a_strangers_port_is_passed_over(start_agent, start_rank, stranger):
    """If somebody else has the port the next free one is taken, which is said once."""
    start_rank()
    taken = stranger()
    agent = start_agent("--port", str(taken))
    assert taken < agent.port <= taken + 16
    assert agent.scrape().ranks() == {"0"}
    assert agent.complaints.count("\n") == 1
    assert f"port {taken} is taken" in agent.complaints


def test_all_ports_taken(run_agent, stranger):
    """If all seventeen ports are taken the agent ends with exit code 1 and one line."""
    first = _seventeen_ports(stranger)
    ended = run_agent("--port", str(first))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"Error: ports {first} to {first + 16} are all taken: set RANK_EXPORTER_PORT\n"


def _seventeen_ports(stranger):
    for first in range(20000, 60000, 100):
        try:
            for port in range(first, first + 17):
                stranger(port)
        except OSError:
            continue
        return first
    raise AssertionError("no seventeen ports in a row are free")


def test_every_interface_by_default(start_agent, start_rank):
    """Without an address the agent answers on IPv4 and, where the host has it, on IPv6."""
    start_rank()
    agent = start_agent("--listen-address", "")
    assert agent.line.startswith("serving http://127.0.0.1:")
    addresses = ["127.0.0.1"] + (["[::1]"] if _has_ipv6() else [])
    for address in addresses:
        answer = httpx.get(f"http://{address}:{agent.port}/healthz", trust_env=False, timeout=60)
        assert answer.text == "ok\n"


def _has_ipv6():
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


WRONG = [
    (["--port", "70000"], "port is 70000"),
    (["--linger-seconds", "-1"], "linger_seconds is -1"),
    (["--listen-address", "203.0.113.7"], "cannot listen on 203.0.113.7"),
    (["--listen-address", "no such host"], "cannot listen on no such host"),
    (["--dir", "/proc/nothing/here"], "segment directory /proc/nothing/here cannot be made"),
]


@pytest.mark.parametrize(("options", "complaint"), WRONG)
def test_wrong_settings(run_agent, options, complaint):
    """A wrong setting ends the agent with exit code 2 and one line that names it."""
    ended = run_agent(*options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"Error: {complaint}")
    assert ended.stderr.count("\n") == 1


def test_a_wrong_variable(run_agent):
    """Settings come from the environment, too, and a wrong one is named, also with --detach."""
    ended = run_agent("--detach", RANK_EXPORTER_LINGER_SECONDS="soon")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "Error: RANK_EXPORTER_LINGER_SECONDS is 'soon': give a number\n"


def test_service_discovery_entry(start_agent, tmp_path):
    """The entry names the address that is listened on, is readable, and goes with the agent."""
    folder = tmp_path / "file_sd"
    agent = start_agent("--file-sd-dir", str(folder))
    entry = folder / f"rank-exporter-node-a-{agent.port}.json"
    assert json.loads(entry.read_text()) == [{"targets": [f"127.0.0.1:{agent.port}"], "labels": {}}]
    assert entry.stat().st_mode & 0o777 == 0o644
    assert agent.stop() == 0
    assert list(folder.iterdir()) == []


def test_service_discovery_names_the_host_if_it_can_be_found(start_agent, tmp_path):
    """Where the agent listens everywhere its entry names the host as set, if that resolves, else the system's name."""
    for host in ("localhost", "no-such-host.invalid"):
        folder = tmp_path / host
        agent = start_agent("--file-sd-dir", str(folder), "--listen-address", "", "--host", host)
        (entry,) = folder.iterdir()
        (target,) = json.loads(entry.read_text())[0]["targets"]
        name, _, port = target.rpartition(":")
        assert int(port) == agent.port
        assert name == "localhost" if host == "localhost" else name not in ("", host)
        assert agent.stop() == 0


def test_service_discovery_that_cannot_be_written(start_agent, start_rank, tmp_path):
    """If the entry cannot be written that is said and counted, and the agent serves."""
    start_rank()
    (tmp_path / "file").write_text("in the way")
    agent = start_agent("--file-sd-dir", str(tmp_path / "file"))
    found = agent.scrape()
    assert found.ranks() == {"0"}
    assert found.value("training_exporter_errors_total", rank="", reason="file_sd") == 1
    assert agent.complaints.count("\n") == 1

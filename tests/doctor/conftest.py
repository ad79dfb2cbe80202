"""Installations to examine: real agents, Prometheus and Alertmanager, and a stand-in for Grafana's search."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
import yaml
from click.testing import CliRunner

from rank_exporter import rulepack
from rank_exporter.doctor.command import doctor
from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment.writer import SegmentWriter

DEADLINE_SECONDS = 120.0
WINDOW = "20s"
"""Of the rules, so that their groups are evaluated every second."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(name="free_port")
def free_port_fixture():
    return free_port


@pytest.fixture(scope="session")
def eventually():
    """Calls until nothing is raised, and returns what came; raises the last failure after a minute."""

    def call(condition):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            try:
                return condition()
            except AssertionError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(0.2)

    return call


@contextlib.contextmanager
def running(command, log):
    """A process, ended by its id."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, "GOMAXPROCS": "1"})
    try:
        yield process
    finally:
        process.terminate()
        process.wait(DEADLINE_SECONDS)


@contextlib.contextmanager
def agent_of(directory, ranks, *options, world_size=None):
    """An agent that serves ranks of the run `job`; yields HOST:PORT."""
    directory.mkdir(mode=0o700)
    with contextlib.ExitStack() as stack:
        for rank in ranks:
            identity = Identity(
                run="job", rank=rank, local_rank=rank, world_size=world_size or len(ranks), host=f"node-{rank}"
            )
            writer = SegmentWriter.create(directory, identity, skew_budget_ratio=0.1)
            stack.callback(writer.close)
            writer.commit([1_000_000] * len(Phase), time.monotonic_ns())
        command = [sys.executable, "-m", "rank_exporter.agent", "--dir", str(directory), "--port", "0"]
        command += ["--listen-address", "127.0.0.1", "--host", "node-a", *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            ready, _, _ = select.select([process.stdout], [], [], DEADLINE_SECONDS)
            assert ready
            yield process.stdout.readline().split("/metrics")[0].rpartition("/")[2]
        finally:
            process.terminate()
            process.wait(DEADLINE_SECONDS)
            process.stdout.close()


@pytest.fixture(scope="session")
def agent(tmp_path_factory):
    """HOST:PORT of an agent with both ranks of a run."""
    with agent_of(tmp_path_factory.mktemp("agent") / "segments", [0, 1]) as address:
        yield address


@pytest.fixture
def start_agent(tmp_path):
    """Starts further agents: ``start_agent(ranks, *options, world_size=…)`` returns HOST:PORT."""
    with contextlib.ExitStack() as stack:
        yield lambda ranks, *options, name="segments", world_size=None: stack.enter_context(
            agent_of(tmp_path / name, ranks, *options, world_size=world_size)
        )


RECEIVERS = {
    "route": {"receiver": "call"},
    "receivers": [{"name": "call", "webhook_configs": [{"url": "http://127.0.0.1:9/"}]}],
}


@contextlib.contextmanager
def alertmanager_of(folder, config):
    port = free_port()
    (folder / "alertmanager.yml").write_text(yaml.safe_dump(config))
    command = ["prometheus-alertmanager", f"--config.file={folder / 'alertmanager.yml'}", "--cluster.listen-address="]
    command += [f"--storage.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]
    with running(command, folder / "alertmanager.log"):
        yield f"127.0.0.1:{port}"


@pytest.fixture(scope="session")
def alertmanager(tmp_path_factory):
    """HOST:PORT of an Alertmanager that would call somebody."""
    with alertmanager_of(tmp_path_factory.mktemp("alertmanager"), RECEIVERS) as address:
        yield address


@pytest.fixture
def start_alertmanager(tmp_path):
    """Starts another one, with a configuration, and returns HOST:PORT."""
    with contextlib.ExitStack() as stack:
        yield lambda config: stack.enter_context(alertmanager_of(tmp_path, config))


@pytest.fixture
def start_prometheus(tmp_path, alertmanager, eventually):
    """Starts Prometheus and returns its URL.

    ``targets``: HOST:PORT with labels. ``job``: more of the scrape configuration. ``rules``: texts of rule files, the
    pack by default. ``send_to``: HOST:PORT of Alertmanagers.
    """
    with contextlib.ExitStack() as stack:

        def start(targets, *, job=None, jobs=1, rules=None, send_to=(alertmanager,)):
            files = []
            for number, text in enumerate([rulepack.render(window=WINDOW)] if rules is None else rules):
                files.append(tmp_path / f"rules-{number}.yml")
                files[-1].write_text(text)
            static = [{"targets": [target], "labels": labels} for target, labels in targets.items()]
            scrape = {"scrape_interval": "1s", "scrape_timeout": "1s", "static_configs": static, **(job or {})}
            config = {
                "global": {"evaluation_interval": "1s"},
                "rule_files": [str(file) for file in files],
                "alerting": {"alertmanagers": [{"static_configs": [{"targets": list(send_to)}]}]} if send_to else {},
                "scrape_configs": [{"job_name": f"rank-exporter-{number}", **scrape} for number in range(jobs)],
            }
            (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
            port = free_port()
            command = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", "--log.level=warn"]
            command += ["--rules.alert.resend-delay=1s"]
            command += [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}"]
            stack.enter_context(running(command, tmp_path / "prometheus.log"))
            url = f"http://127.0.0.1:{port}"

            def has_discovered():
                try:
                    found = httpx.get(
                        f"{url}/api/v1/targets", params={"state": "active"}, trust_env=False, timeout=60
                    ).json()
                except (httpx.TransportError, ValueError) as error:
                    raise AssertionError("Prometheus is not up") from error
                assert len(found["data"]["activeTargets"]) == jobs * len(targets)

            # Until then Prometheus knows of no target, which is a fault of its own.
            eventually(has_discovered)
            return url

        yield start


@pytest.fixture(scope="session")
def examine():
    """Runs `doctor --json` with arguments: returns its exit code and its findings by check, each (state, text)."""

    def run(*arguments, stdin=None):
        result = CliRunner().invoke(doctor, [*arguments, "--json"], input=stdin)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        findings = {}
        for one in json.loads(result.stdout):
            findings.setdefault(one["check"], []).append((one["state"], f"{one['seen']} → {one['remedy']}"))
        return result.exit_code, findings

    return run


@pytest.fixture
def grafana():
    """Starts a stand-in for Grafana's search that has dashboards of some uids, and returns its URL."""
    with contextlib.ExitStack() as stack:

        def start(*uids, token=None):
            class Handler(BaseHTTPRequestHandler):
                def do_GET(self):
                    right = token is None or self.headers.get("authorization") == f"Bearer {token}"
                    assert not right or self.path.startswith("/grafana/api/search?")
                    body = json.dumps([{"uid": uid, "type": "dash-db", "title": uid} for uid in uids]).encode()
                    self.send_response(200 if right else 401)
                    self.send_header("content-type", "application/json")
                    self.end_headers()
                    self.wfile.write(body if right else b"{}")

                def log_message(self, *_):
                    pass

            server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            stack.callback(server.server_close)
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            return f"http://127.0.0.1:{server.server_address[1]}/grafana"

        yield start

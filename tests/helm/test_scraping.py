"""A real Prometheus scrapes a real agent as the PodMonitor has it, whatever the pods declare."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time

import httpx
import pytest
import yaml

from rank_exporter.identity import Identity
from rank_exporter.phases import Phase
from rank_exporter.segment.writer import SegmentWriter

from .operator_config import scrape_config

DEADLINE_SECONDS = 120.0
LABEL = "__meta_kubernetes_pod_label"


def _eventually(condition):
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            return condition()
        except (AssertionError, httpx.HTTPError):
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@pytest.fixture
def agent_port(tmp_path):
    """The port of an agent that serves rank 3 of a run."""
    directory = tmp_path / "segments"
    directory.mkdir(mode=0o700)
    writer = SegmentWriter.create(
        directory, Identity(run="job", rank=3, local_rank=0, world_size=4, host="node-a"), skew_budget_ratio=0.1
    )
    writer.commit([1_000_000] * len(Phase), time.monotonic_ns())
    command = [sys.executable, "-m", "rank_exporter.agent", "--dir", str(directory), "--port", "0"]
    process = subprocess.Popen([*command, "--listen-address", "127.0.0.1"], stdout=subprocess.PIPE, text=True)
    ready, _, _ = select.select([process.stdout], [], [], DEADLINE_SECONDS)
    assert ready
    yield int(process.stdout.readline().split("/metrics")[0].rpartition(":")[2])
    process.terminate()
    assert process.wait(DEADLINE_SECONDS) == 0
    process.stdout.close()
    writer.close()


@pytest.fixture
def prometheus(tmp_path):
    """Starts Prometheus with scrape configurations and returns a client of its API."""
    started = []

    def start(*scrape_configs):
        config = tmp_path / "prometheus.yml"
        config.write_text(yaml.safe_dump({"scrape_configs": list(scrape_configs)}, sort_keys=False))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
        command += [f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"]
        with (tmp_path / "prometheus.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "GOMAXPROCS": "1"})
        client = httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", trust_env=False, timeout=60)
        started.append((process, client))
        return client

    yield start
    for process, client in started:
        client.close()
        process.terminate()
        process.wait(DEADLINE_SECONDS)


def _targets_scraped(client, count):
    """The targets, once all were scraped and one that answers was heard in time, which a busy machine may delay."""

    def all_scraped():
        answer = client.get("/targets", params={"state": "active"}).raise_for_status()
        targets = answer.json()["data"]["activeTargets"]
        assert len(targets) == count
        assert all(target["health"] != "unknown" for target in targets)
        assert any(target["health"] == "up" for target in targets)
        return targets

    return _eventually(all_scraped)


def _pod(name, ip, container, **meta):
    labels = {
        "__meta_kubernetes_namespace": "team-a",
        "__meta_kubernetes_pod_name": name,
        "__meta_kubernetes_pod_ip": ip,
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_container_name": container,
        f"{LABEL}_rank_exporter_scrape": "true",
        f"{LABEL}present_rank_exporter_scrape": "true",
        f"{LABEL}_team": "vision",
        **meta,
    }
    port = meta.get("__meta_kubernetes_pod_container_port_number")
    return {"targets": [f"{ip}:{port}" if port else ip], "labels": labels}


def test_pods_that_declare_no_port_are_scraped_once(render, find, prometheus, agent_port, tmp_path):
    """Of containers without ports, with other ports, and of init containers, one target a pod is left, and it is up."""
    values = {"training": {"port": agent_port}, "cluster": "gpu-1", "podMonitor": {"podTargetLabels": ["team"]}}
    (monitor,) = find(
        render({**values, "podMonitor": {"interval": "1s", "scrapeTimeout": "1s", **values["podMonitor"]}}),
        "PodMonitor",
    )
    port = {
        "__meta_kubernetes_pod_container_port_number": "29500",
        "__meta_kubernetes_pod_container_port_name": "master",
    }
    (tmp_path / "pods.json").write_text(
        json.dumps(
            [
                _pod("trainer-0", "127.0.0.1", "trainer", **port),
                _pod("trainer-0", "127.0.0.1", "log-shipper"),
                _pod("trainer-0", "127.0.0.1", "fetch", __meta_kubernetes_pod_container_init="true"),
                _pod("trainer-6", "::1", "trainer"),
                _pod("done", "127.0.0.1", "trainer", __meta_kubernetes_pod_phase="Succeeded"),
                _pod("pending", "", "trainer"),
                _pod(
                    "web",
                    "127.0.0.1",
                    "web",
                    **{f"{LABEL}_rank_exporter_scrape": "", f"{LABEL}present_rank_exporter_scrape": ""},
                ),
            ]
        )
    )
    client = prometheus(scrape_config(monitor, str(tmp_path / "pods.json")))
    by_pod = {target["labels"]["pod"]: target for target in _targets_scraped(client, 2)}
    assert by_pod["trainer-6"]["scrapeUrl"] == f"http://[::1]:{agent_port}/metrics"
    ours = by_pod["trainer-0"]
    assert (ours["health"], ours["lastError"]) == ("up", "")
    assert ours["labels"] == {
        "cluster": "gpu-1",
        "instance": f"127.0.0.1:{agent_port}",
        "job": "monitoring/rx-rank-exporter",
        "namespace": "team-a",
        "pod": "trainer-0",
        "team": "vision",
    }
    (series,) = client.get("/query", params={"query": "training_steps_total"}).json()["data"]["result"]
    assert {"run": "job", "rank": "3", "host": "node-a", "namespace": "team-a", "cluster": "gpu-1"}.items() <= series[
        "metric"
    ].items()
    assert not [label for label in series["metric"] if label.startswith("exported_")]


def test_annotated_pods_are_scraped_once(prometheus, agent_port, chart_path, tmp_path):
    """The example's scrape configuration finds annotated pods, at the port and path that they name."""
    example = yaml.safe_load((chart_path.parent / "examples" / "prometheus" / "prometheus.yml").read_text())
    (config,) = [one for one in example["scrape_configs"] if "kubernetes_sd_configs" in one]
    del config["kubernetes_sd_configs"]
    note = "__meta_kubernetes_pod_annotation_prometheus_io"
    annotated = {f"{note}_scrape": "true", f"{note}_port": str(agent_port), f"{note}_path": "/metrics"}
    (tmp_path / "pods.json").write_text(
        json.dumps(
            [
                _pod(
                    "trainer-0",
                    "127.0.0.1",
                    "trainer",
                    **annotated,
                    __meta_kubernetes_pod_container_port_number="29500",
                ),
                _pod("trainer-0", "127.0.0.1", "log-shipper", **annotated),
                _pod("web", "127.0.0.1", "web"),
            ]
        )
    )
    client = prometheus(
        {**config, "scrape_interval": "1s", "file_sd_configs": [{"files": [str(tmp_path / "pods.json")]}]}
    )
    (target,) = _targets_scraped(client, 1)
    assert (target["health"], target["lastError"]) == ("up", "")
    assert {"pod": "trainer-0", "namespace": "team-a"}.items() <= target["labels"].items()

"""The Alertmanager configuration to copy, and what its template says."""

from __future__ import annotations

import json
import queue
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from rank_exporter import rulepack

STRAGGLERS = {"TrainingInputStraggler", "TrainingComputeStraggler", "TrainingTailStraggler", "TrainingBatchSkew"}
WHOLE_RUN = {"TrainingRankStalled", "TrainingRotatingStragglers"}
FOLDER = Path(rulepack.__file__).parent / "rules" / "alertmanager"


def _amtool(*arguments: object) -> str:
    done = subprocess.run(["amtool", *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def config() -> dict[str, Any]:
    return yaml.safe_load((FOLDER / "alertmanager.yml").read_text(encoding="utf-8"))


def test_amtool_accepts_the_configuration_and_finds_its_template() -> None:
    """The files work where they lie."""
    out = _amtool("check-config", FOLDER / "alertmanager.yml")
    assert "1 templates\n  SUCCESS" in out


def test_amtool_accepts_the_receivers_that_wait_to_be_uncommented(tmp_path: Path) -> None:
    """What a reader is told to uncomment is valid too."""
    text = (FOLDER / "alertmanager.yml").read_text(encoding="utf-8")
    receivers = text.index("    # slack_configs:")
    opened = text[:receivers] + re.sub(r"^    # ", "    ", text[receivers:], flags=re.MULTILINE)
    opened = opened.replace("global:\n", "global:\n  smtp_smarthost: 127.0.0.1:25\n  smtp_from: a@example.com\n")
    shutil.copy(FOLDER / "rank-exporter.tmpl", tmp_path)
    (tmp_path / "alertmanager.yml").write_text(opened, encoding="utf-8")
    page = yaml.safe_load(opened)["receivers"][-1]
    assert {"slack_configs", "pagerduty_configs", "email_configs"} <= page.keys()
    _amtool("check-config", tmp_path / "alertmanager.yml")


def test_alerts_of_the_pack_page_and_others_do_not() -> None:
    """The route that pages takes each critical alert of the pack."""
    file = FOLDER / "alertmanager.yml"
    for alert in rulepack.alerts():
        routed = _amtool(
            "config", "routes", "test", f"--config.file={file}", f"alertname={alert.name}", f"severity={alert.severity}"
        )
        assert routed.strip() == ("training-page" if alert.severity == "critical" else "training")
    other = _amtool("config", "routes", "test", f"--config.file={file}", "alertname=Other", "severity=critical")
    assert other.strip() == "training"


def test_one_notification_a_run(config: dict[str, Any]) -> None:
    """Alerts of a run come together, those of another run, namespace or cluster apart."""
    assert config["route"]["group_by"] == ["cluster", "namespace", "run"]
    assert all("group_by" not in route for route in config["route"]["routes"])


def test_inhibition_stays_within_a_run_and_names_alerts_that_exist(config: dict[str, Any]) -> None:
    """Another run's alert is another cause, and so is that of another rank where both sides name one."""
    names = {alert.name for alert in rulepack.alerts()}
    assert len(config["inhibit_rules"]) > 5
    for rule in config["inhibit_rules"]:
        assert {"cluster", "namespace", "run"} <= set(rule["equal"])
        sources, targets = (
            {
                name
                for matcher in rule[f"{side}_matchers"]
                if (pattern := re.fullmatch(r'alertname=~?"(.+)"', matcher))
                for name in names
                if re.fullmatch(pattern[1], name)
            }
            for side in ("source", "target")
        )
        assert sources
        assert targets
        if not {"rank", "host"} <= set(rule["equal"]):
            assert not sources & targets
            assert not targets & STRAGGLERS or sources <= WHOLE_RUN


@pytest.mark.parametrize("alert", sorted({alert.name for alert in rulepack.alerts()}))
def test_no_two_alerts_silence_each_other(config: dict[str, Any], alert: str) -> None:
    """Of a cause and its consequence one is told: what silences is not silenced by what it silences."""

    def matches(matchers: list[str], name: str) -> bool:
        return all(
            re.fullmatch(pattern[1], name)
            for matcher in matchers
            if (pattern := re.fullmatch(r'alertname=~?"(.+)"', matcher))
        )

    def silenced_by(name: str) -> set[str]:
        return {
            other
            for rule in config["inhibit_rules"]
            if "alertname" not in rule["equal"] and matches(rule["source_matchers"], name)
            for other in {alert.name for alert in rulepack.alerts()}
            if matches(rule["target_matchers"], other)
        }

    assert all(alert not in silenced_by(other) for other in silenced_by(alert))


class _Webhook(HTTPServer):
    """A receiver on loopback that queues what it is sent."""

    def __init__(self) -> None:
        self.received: queue.Queue[dict[str, Any]] = queue.Queue()
        super().__init__(("127.0.0.1", 0), _WebhookHandler)


class _WebhookHandler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, _Webhook)
        self.server.received.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        pass


@pytest.fixture
def webhook() -> Iterator[_Webhook]:
    server = _Webhook()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def alertmanager(webhook: _Webhook, tmp_path: Path) -> Iterator[str]:
    """The URL of a real Alertmanager with the shipped configuration, but for an address and a wait of half a minute."""
    text = (FOLDER / "alertmanager.yml").read_text(encoding="utf-8")
    assert "http://127.0.0.1:9099/" in text
    assert "group_wait: 30s" in text
    text = text.replace("http://127.0.0.1:9099/", f"http://127.0.0.1:{webhook.server_port}/")
    (tmp_path / "alertmanager.yml").write_text(text.replace("group_wait: 30s", "group_wait: 1s"), encoding="utf-8")
    shutil.copy(FOLDER / "rank-exporter.tmpl", tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus-alertmanager",
                f"--config.file={tmp_path / 'alertmanager.yml'}",
                f"--storage.path={tmp_path / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--cluster.listen-address=",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            deadline = time.monotonic() + 120
            while True:
                try:
                    if httpx.get(f"{url}/-/ready", timeout=60).status_code == 200:
                        break
                except httpx.TransportError:
                    assert process.poll() is None, (tmp_path / "log").read_text(encoding="utf-8")
                    assert time.monotonic() < deadline
                time.sleep(0.05)
            yield url
        finally:
            process.terminate()
            process.wait(20)


def test_cause_silences_its_consequence_and_no_other_rank(alertmanager: str, webhook: _Webhook) -> None:
    """A real Alertmanager sends one page for the run, without what follows from the input of the same rank."""

    def alert(name: str, severity: str, **labels: str) -> dict[str, Any]:
        return {"labels": {"alertname": name, "run": "llama", "severity": severity, **labels}}

    third, fifth = ({"rank": rank, "host": "node-0"} for rank in ("3", "5"))
    posted = httpx.post(
        f"{alertmanager}/api/v2/alerts",
        json=[
            alert("TrainingInputStraggler", "critical", **third, phase="input_ready"),
            alert("TrainingComputeStraggler", "critical", **third, phase="forward"),
            alert("TrainingComputeStraggler", "critical", **fifth, phase="optimizer"),
            alert("TrainingComputeStraggler", "warning", **fifth, phase="other"),
            alert("TrainingRotatingStragglers", "critical"),
            alert("TrainingDeviceIdle", "warning"),
            alert("TrainingRanksMissing", "warning"),
            {"labels": {"alertname": "TrainingDeviceIdle", "run": "other", "severity": "warning"}},
        ],
        timeout=60,
    )
    assert posted.status_code == 200
    told: dict[tuple[str, str], set[tuple[str, str]]] = {}
    while len(told) < 3:
        notification = webhook.received.get(timeout=120)
        told[notification["receiver"], notification["groupLabels"]["run"]] = {
            (one["labels"]["alertname"], one["labels"].get("rank", "")) for one in notification["alerts"]
        }
    assert told == {
        ("training-page", "llama"): {("TrainingInputStraggler", "3"), ("TrainingComputeStraggler", "5")},
        ("training", "llama"): {("TrainingRanksMissing", "")},
        ("training", "other"): {("TrainingDeviceIdle", "")},
    }
    inhibited = httpx.get(f"{alertmanager}/api/v2/alerts", params={"active": "false"}, timeout=60).json()
    assert {(one["labels"]["alertname"], one["labels"].get("rank", "")) for one in inhibited} == {
        ("TrainingComputeStraggler", "3"),
        ("TrainingComputeStraggler", "5"),
        ("TrainingRotatingStragglers", ""),
        ("TrainingDeviceIdle", ""),
    }


def test_template_puts_rank_host_shard_skew_and_runbook_first(tmp_path: Path) -> None:
    """Rendered by amtool itself, for one alert that fires and one that is over."""
    data = {
        "receiver": "training-page",
        "status": "firing",
        "alerts": [
            _alert("firing", "TrainingInputStraggler", "10", "input_ready", "s3://data/00.tar"),
            _alert("resolved", "TrainingComputeStraggler", "9", "optimizer", "unknown"),
            _alert("resolved", "TrainingRanksMissing", "", "", ""),
        ],
        "groupLabels": {"run": "llama"},
        "commonLabels": {"run": "llama", "namespace": "team-a"},
        "commonAnnotations": {},
        "externalURL": "http://127.0.0.1:9093",
    }
    (tmp_path / "data.json").write_text(json.dumps(data), encoding="utf-8")

    def render(name: str) -> str:
        return _amtool(
            "template",
            "render",
            f"--template.glob={FOLDER / '*.tmpl'}",
            f"--template.data={tmp_path / 'data.json'}",
            f'--template.text={{{{ template "{name}" . }}}}',
        )

    title = render("rank_exporter.title")
    assert title.strip() == (
        "[FIRING:1] run llama (team-a): rank 10 input_ready, rank 9 optimizer, TrainingRanksMissing"
    )
    text = render("rank_exporter.text")
    assert text.strip().splitlines() == [
        "Rank:      10",
        "Host:      node-0",
        "Shard:     s3://data/00.tar",
        "Skew:      23% of the median step, budget 10%",
        "Phase:     input_ready",
        "Cost:      1.50 GPU-hours an hour",
        "Runbook:   https://example.com/TrainingInputStraggler.md",
        "Dashboard: https://example.com/d/rank",
        "",
        "TrainingInputStraggler since 2026-01-02 03:04:05 UTC",
        "It is late.",
        "",
        "Rank:      9",
        "Host:      node-0",
        "Shard:     unknown",
        "Skew:      23% of the median step, budget 10%",
        "Phase:     optimizer",
        "Cost:      1.50 GPU-hours an hour",
        "Runbook:   https://example.com/TrainingComputeStraggler.md",
        "Dashboard: https://example.com/d/rank",
        "",
        "TrainingComputeStraggler since 2026-01-02 03:04:05 UTC, resolved 2026-01-02 03:24:05 UTC",
        "It is late.",
        "",
        "Runbook:   https://example.com/TrainingRanksMissing.md",
        "Dashboard: https://example.com/d/rank",
        "",
        "TrainingRanksMissing since 2026-01-02 03:04:05 UTC, resolved 2026-01-02 03:24:05 UTC",
        "It is late.",
    ]


def _alert(status: str, name: str, rank: str, phase: str, shard: str) -> dict[str, Any]:
    labels = {"rank": rank, "host": "node-0", "phase": phase} if rank else {}
    facts = {"shard": shard, "skew": "23% of the median step, budget 10%", "cost": "1.50 GPU-hours an hour"}
    return {
        "status": status,
        "labels": {"alertname": name, "run": "llama", **labels},
        "annotations": {
            **(facts if rank else {}),
            "dashboard_url": "https://example.com/d/rank",
            "runbook_url": f"https://example.com/{name}.md",
            "description": "It is late.",
        },
        "startsAt": "2026-01-02T03:04:05Z",
        "endsAt": "2026-01-02T03:24:05Z" if status == "resolved" else "0001-01-01T00:00:00Z",
        "generatorURL": "",
        "fingerprint": rank,
    }

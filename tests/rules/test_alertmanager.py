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
from collections.abc import Callable, Iterator
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


def _matches(matchers: list[str], labels: dict[str, str]) -> bool:
    """Whether all matchers hold, read as Alertmanager reads them; a label that is not there is empty."""
    for text in matchers:
        name, operator, pattern = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', text).groups()  # type: ignore[union-attr]
        value = labels.get(name, "")
        if operator == "=~":
            if not re.fullmatch(pattern, value):
                return False
        elif (value == pattern) != (operator == "="):
            return False
    return True


def test_the_weaker_never_silences_the_stronger(config: dict[str, Any]) -> None:
    """What is only a warning, such as a rank whose delay the others hide, leaves each page alone."""
    known = {(alert.name, alert.severity) for alert in rulepack.alerts()}
    assert {severity for _, severity in known} == {"critical", "warning"}
    forms = [{"alertname": name, "severity": severity} for name, severity in known]
    silenced = [
        (source, target)
        for rule in config["inhibit_rules"]
        for source in forms
        for target in forms
        if _matches(rule["source_matchers"], source) and _matches(rule["target_matchers"], target)
    ]
    assert {target["severity"] for _, target in silenced} == {"critical", "warning"}
    assert [pair for pair in silenced if [one["severity"] for one in pair] == ["warning", "critical"]] == []


def test_samples_taken_twice_are_explained_by_nothing_and_explain_no_missing_steps(config: dict[str, Any]) -> None:
    """Larger batches hold no sample twice, and samples taken twice make no rank's steps fewer."""
    twice = {"alertname": "TrainingSampleAccountingDiverges", "severity": "warning", "reason": "duplicates"}
    uneven = {"alertname": "TrainingSampleAccountingDiverges", "severity": "warning"}
    for side, expected in (("source", 1), ("target", 1)):
        beyond_itself = [rule for rule in config["inhibit_rules"] if "alertname" not in rule["equal"]]
        assert sum(_matches(rule[f"{side}_matchers"], uneven) for rule in beyond_itself) == expected
        assert not any(_matches(rule[f"{side}_matchers"], twice) for rule in beyond_itself)


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
    """A real Alertmanager sends one page for each run, without what follows from the input of the same rank."""

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
            # A rank whose delay the others hide: the page is for what the whole run loses.
            *(
                {"labels": {"run": "hidden", **labels}}
                for labels in (
                    {"alertname": "TrainingInputStraggler", "severity": "warning", **third},
                    {"alertname": "TrainingComputeStraggler", "severity": "warning", **third},
                    {"alertname": "TrainingRotatingStragglers", "severity": "critical"},
                    {"alertname": "TrainingRotatingStragglers", "severity": "warning"},
                )
            ),
        ],
        timeout=60,
    )
    assert posted.status_code == 200
    told: dict[tuple[str, str], set[tuple[str, str]]] = {}
    while len(told) < 5:
        notification = webhook.received.get(timeout=120)
        told[notification["receiver"], notification["groupLabels"]["run"]] = {
            (one["labels"]["alertname"], one["labels"].get("rank", "")) for one in notification["alerts"]
        }
    assert told == {
        ("training-page", "llama"): {("TrainingInputStraggler", "3"), ("TrainingComputeStraggler", "5")},
        ("training", "llama"): {("TrainingRanksMissing", "")},
        ("training", "other"): {("TrainingDeviceIdle", "")},
        ("training-page", "hidden"): {("TrainingRotatingStragglers", "")},
        ("training", "hidden"): {("TrainingInputStraggler", "3")},
    }
    inhibited = httpx.get(f"{alertmanager}/api/v2/alerts", params={"active": "false"}, timeout=60).json()
    silenced = [(one["labels"]["run"], one["labels"]["alertname"], one["labels"].get("rank", "")) for one in inhibited]
    assert sorted(silenced) == [
        ("hidden", "TrainingComputeStraggler", "3"),
        ("hidden", "TrainingRotatingStragglers", ""),
        ("llama", "TrainingComputeStraggler", "3"),
        ("llama", "TrainingComputeStraggler", "5"),
        ("llama", "TrainingDeviceIdle", ""),
        ("llama", "TrainingRotatingStragglers", ""),
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


def _late(status: str, rank: str) -> dict[str, Any]:
    return _alert(status, "TrainingInputStraggler", rank, "input_ready", "unknown")


@pytest.fixture
def rendered(tmp_path: Path) -> Callable[..., str]:
    """What a template says of alerts, rendered by amtool itself."""

    def rendered(name: str, alerts: list[dict[str, Any]], **common: str) -> str:
        data = {
            "receiver": "training-page",
            "status": "firing" if any(alert["status"] == "firing" for alert in alerts) else "resolved",
            "alerts": alerts,
            "groupLabels": {"run": common.get("run", "")},
            "commonLabels": common,
            "commonAnnotations": {},
            "externalURL": "http://127.0.0.1:9093",
        }
        (tmp_path / "data.json").write_text(json.dumps(data), encoding="utf-8")
        return _amtool(
            "template",
            "render",
            f"--template.glob={FOLDER / '*.tmpl'}",
            f"--template.data={tmp_path / 'data.json'}",
            f'--template.text={{{{ template "rank_exporter.{name}" . }}}}',
        )

    return rendered


def _errors(status: str, host: str) -> dict[str, Any]:
    """Errors that an agent met itself, on behalf of no run."""
    alert = _alert(status, "TrainingExporterErrors", "", "", "")
    return {**alert, "labels": {"alertname": "TrainingExporterErrors", "host": host, "reason": "file_sd"}}


TITLES = {
    "firing first": (
        [
            *(_late("resolved", rank) for rank in "123"),
            _late("firing", "7"),
        ],
        {"run": "llama", "namespace": "team-a"},
        "[FIRING:1] run llama (team-a): rank 7 input_ready",
    ),
    "more than three": (
        [_late("resolved", "0"), *(_late("firing", rank) for rank in "1234")],
        {"run": "llama"},
        "[FIRING:4] run llama: rank 1 input_ready, rank 2 input_ready, rank 3 input_ready, …",
    ),
    "three and one over": (
        [*(_late("firing", rank) for rank in "123"), _late("resolved", "4")],
        {"run": "llama"},
        "[FIRING:3] run llama: rank 1 input_ready, rank 2 input_ready, rank 3 input_ready",
    ),
    "all over": (
        [_late("resolved", "1"), _late("resolved", "2")],
        {"run": "llama"},
        "[RESOLVED] run llama: rank 1 input_ready, rank 2 input_ready",
    ),
    "an agent": (
        [_errors("firing", "node-7")],
        {"host": "node-7", "cluster": "eu"},
        "[FIRING:1] host node-7: TrainingExporterErrors",
    ),
    "agents of a cluster": (
        [_errors("resolved", "node-6"), _errors("firing", "node-7"), _errors("firing", "node-8")],
        {"cluster": "eu", "namespace": "team-a"},
        "[FIRING:2] cluster eu (team-a): TrainingExporterErrors on node-7, TrainingExporterErrors on node-8",
    ),
    "agents": (
        [_errors("firing", "node-7"), _errors("firing", "node-8")],
        {"alertname": "TrainingExporterErrors"},
        "[FIRING:2] TrainingExporterErrors on node-7, TrainingExporterErrors on node-8",
    ),
    "agents without a label in common": (
        [_errors("firing", "node-7"), _errors("firing", "node-8")],
        {},
        "[FIRING:2] TrainingExporterErrors on node-7, TrainingExporterErrors on node-8",
    ),
}


@pytest.mark.parametrize(("alerts", "common", "title"), TITLES.values(), ids=TITLES)
def test_title_names_what_fires_and_where(
    rendered: Callable[..., str], alerts: list[dict[str, Any]], common: dict[str, str], title: str
) -> None:
    """While anything fires, only that is named; what belongs to no run is named by its host, or else its cluster."""
    assert rendered("title", alerts, **common) == title


def test_template_puts_rank_host_shard_skew_and_runbook_first(rendered: Callable[..., str]) -> None:
    """Of one alert that fires and others that are over, whatever order they come in."""
    alerts = [
        _alert("resolved", "TrainingComputeStraggler", "9", "optimizer", "unknown"),
        _alert("firing", "TrainingInputStraggler", "10", "input_ready", "s3://data/00.tar"),
        _alert("resolved", "TrainingRanksMissing", "", "", ""),
    ]
    text = rendered("text", alerts, run="llama", namespace="team-a")
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

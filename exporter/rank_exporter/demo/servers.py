"""Prometheus and Alertmanager as the demo runs them: with the shipped rules and routing, on the loopback."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import httpx
import yaml

from .. import rulepack
from ..errors import SourceError
from .failure import MissingRequirementError
from .processes import Child, Processes

__all__ = ["Alertmanager", "Binaries", "Prometheus", "find_binaries"]

_LOOPBACK = "127.0.0.1"
WINDOW, HOLD = "30s", "15s"
"""The shipped rules at a twentieth of their durations, as steps here are quick."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Paths of the programs."""

    prometheus: str
    alertmanager: str


def find_binaries() -> Binaries:
    """The servers on PATH, by Debian's names or upstream's. Raises MissingRequirementError."""
    prometheus = shutil.which("prometheus")
    alertmanager = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if prometheus is None or alertmanager is None:
        missing = [
            name for name, path in (("prometheus", prometheus), ("prometheus-alertmanager", alertmanager)) if not path
        ]
        raise MissingRequirementError(
            f"the demo runs real servers, and {' and '.join(missing)} is not on PATH: "
            "apt-get install prometheus prometheus-alertmanager"
        )
    return Binaries(prometheus=prometheus, alertmanager=alertmanager)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        return int(probe.getsockname()[1])


def _environ() -> dict[str, str]:
    # One core's worth of threads: the ranks need the others.
    return {**os.environ, "GOMAXPROCS": "1"}


class _Server:
    """A server's base address and whether it answers there."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.url = f"http://{_LOOPBACK}:{self.port}"
        self._client = httpx.Client(base_url=self.url, trust_env=False, timeout=5.0)

    def is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        self._client.close()


class Alertmanager(_Server):
    """Routes pages to a webhook as the shipped configuration would route them to people."""

    def start(self, binary: str, processes: Processes, directory: Path, *, webhook: str) -> Child:
        """Write its configuration and start it."""
        shipped = resources.files("rank_exporter") / "rules" / "alertmanager"
        config = yaml.safe_load((shipped / "alertmanager.yml").read_text(encoding="utf-8"))
        file = directory / "alertmanager.yml"
        file.write_text(yaml.safe_dump(to_webhook(config, webhook), sort_keys=False), encoding="utf-8")
        command = [
            binary,
            f"--config.file={file}",
            f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address={_LOOPBACK}:{self.port}",
            f"--web.external-url={self.url}/",
            "--cluster.listen-address=",
            "--log.level=warn",
        ]
        return processes.start("alertmanager", command, _environ())


def to_webhook(config: Mapping[str, Any], webhook: str) -> dict[str, Any]:
    """The shipped Alertmanager configuration, with waits of seconds and every receiver replaced by the webhook.

    Routes, grouping and inhibition stay as they are.
    """
    receivers = [
        {"name": receiver["name"], "webhook_configs": [{"url": webhook, "send_resolved": False}]}
        for receiver in config["receivers"]
    ]
    kept = {key: config[key] for key in ("inhibit_rules",) if key in config}
    return {"route": _quick(config["route"]), "receivers": receivers, **kept}


def _quick(route: Mapping[str, Any]) -> dict[str, Any]:
    quick = {**route, "group_wait": "1s", "group_interval": "2s"}
    if "routes" in route:
        quick["routes"] = [_quick(child) for child in route["routes"]]
    return quick


class Prometheus(_Server):
    """Finds the agent by file_sd, scrapes it every second and evaluates the shipped rules."""

    def start(self, binary: str, processes: Processes, directory: Path, *, file_sd: Path, alertmanager: str) -> Child:
        """Write its configuration and rules and start it."""
        rules = directory / "rules.yml"
        rules.write_text(rulepack.render(format="prometheus", window=WINDOW, for_=HOLD), encoding="utf-8")
        file = directory / "prometheus.yml"
        config = prometheus_config(file_sd, rules, alertmanager.removeprefix("http://"))
        file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
        command = [
            binary,
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'prometheus'}",
            f"--web.listen-address={_LOOPBACK}:{self.port}",
            f"--web.external-url={self.url}/",
            "--log.level=warn",
        ]
        return processes.start("prometheus", command, _environ())

    def page(self, name: str) -> str:
        """The address of its page ``graph`` or ``alerts``; Debian's build has them where they used to be."""
        try:
            classic = self._client.get("/alerts").status_code == httpx.codes.NOT_FOUND
        except httpx.HTTPError:
            classic = False
        return f"{self.url}/{'classic/' if classic else ''}{name}"

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing alerts, as /api/v1/alerts has them: labels, state, … Raises SourceError."""
        try:
            answer = self._client.get("/api/v1/alerts")
            answer.raise_for_status()
            alerts = answer.json()["data"]["alerts"]
        except (httpx.HTTPError, ValueError, KeyError) as error:
            raise SourceError(f"Prometheus at {self.url} does not tell its alerts ({error})") from error
        return list(alerts)


def prometheus_config(file_sd: Path, rules: Path, alertmanager: str) -> dict[str, Any]:
    """A Prometheus configuration. ``file_sd``: directory of the agents' entries; ``alertmanager``: HOST:PORT."""
    return {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [alertmanager]}]}]},
        "scrape_configs": [
            {
                "job_name": "rank-exporter",
                "file_sd_configs": [{"files": [str(file_sd / "*.json")], "refresh_interval": "5s"}],
            }
        ],
    }

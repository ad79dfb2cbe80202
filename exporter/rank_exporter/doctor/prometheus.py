"""A Prometheus as far as doctor asks it."""

from __future__ import annotations

from typing import Any

from ..errors import SourceError
from .endpoint import Endpoint

__all__ = ["Prometheus"]

Labels = dict[str, str]


class Prometheus:
    """Asks the HTTP API. Every method raises SourceError."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.name = endpoint.name
        self._endpoint = endpoint

    def _data(self, path: str, **params: str) -> Any:
        answer = self._endpoint.json(f"/api/v1/{path}", **params)
        try:
            return answer["data"]
        except (KeyError, TypeError) as error:
            raise SourceError(f"{self.name} answers something else than Prometheus to /api/v1/{path}") from error

    def query(self, expression: str) -> list[tuple[Labels, float]]:
        """Labels and values of an instant vector."""
        return [(one["metric"], float(one["value"][1])) for one in self._data("query", query=expression)["result"]]

    def targets(self) -> list[dict[str, Any]]:
        """Active targets."""
        return list(self._data("targets", state="active")["activeTargets"])

    def rules(self) -> list[dict[str, Any]]:
        """Rules, each with its group's name, interval and time of evaluation."""
        return [
            {**rule, "group": group["name"], "interval": group["interval"], "spent": group.get("evaluationTime", 0.0)}
            for group in self._data("rules")["groups"]
            for rule in group["rules"]
        ]

    def alertmanagers(self) -> list[str]:
        """Addresses that alerts are sent to."""
        return [one["url"] for one in self._data("alertmanagers")["activeAlertmanagers"]]

    def alerts(self) -> list[dict[str, Any]]:
        """Pending and firing alerts."""
        return list(self._data("alerts")["alerts"])

    def own_metrics(self) -> str:
        """What it exposes of itself."""
        return self._endpoint.text("/metrics")

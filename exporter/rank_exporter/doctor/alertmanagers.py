"""Whether alerts get from Prometheus to Alertmanager, and from there to somebody."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from .. import rulepack
from ..errors import SourceError
from .endpoint import Endpoint
from .finding import Finding, broken, good, unknown
from .prometheus import Prometheus

__all__ = ["check_alertmanager", "check_delivery", "check_sending"]

_SENT = "prometheus_notifications_sent"
_ERRORS = "prometheus_notifications_errors"
_DROPPED = "prometheus_notifications_dropped"
_EXAMPLE = "http://127.0.0.1:9099/"
"""The address to be replaced in rules/alertmanager/alertmanager.yml."""
_SOON = timedelta(minutes=2)


def check_sending(prometheus: Prometheus) -> Iterator[Finding]:
    """Whether Prometheus knows an Alertmanager, and reaches it. Raises SourceError."""
    known = prometheus.alertmanagers()
    if not known:
        yield broken(
            "sending",
            f"{prometheus.name} knows no Alertmanager, so nobody is paged",
            "name it in alerting.alertmanagers of its configuration, or of the Prometheus resource",
        )
        return
    totals: dict[str, dict[str, float]] = {_SENT: {}, _ERRORS: {}, _DROPPED: {}}
    for family in text_string_to_metric_families(prometheus.own_metrics()):
        for sample in family.samples if family.name in totals else ():
            totals[family.name][sample.labels.get("alertmanager", "")] = sample.value
    failing = [name for name, count in totals[_ERRORS].items() if count]
    # An alert counts as sent to each, failed or not, and as dropped where none has taken it.
    if failing and sum(totals[_DROPPED].values()) >= max(totals[_SENT].values(), default=0.0):
        yield broken(
            "sending",
            f"no alert that {prometheus.name} sent to {', '.join(failing)} has got through",
            "see that Alertmanager runs there and that Prometheus reaches it",
        )
    else:
        yield good("sending", f"{prometheus.name} sends alerts to {', '.join(known)}")


def check_alertmanager(alertmanager: Endpoint) -> Iterator[Finding]:
    """Whether Alertmanager would tell somebody. Raises SourceError."""
    status = alertmanager.json("/api/v2/status")
    try:
        config = yaml.safe_load(status["config"]["original"])
        receivers = {one["name"]: _integrations(one) for one in config["receivers"]}
        used = {name: receivers.get(name, []) for name in _routed(config["route"])}
    except (KeyError, TypeError, yaml.YAMLError) as error:
        raise SourceError(f"{alertmanager.name} answers something else than Alertmanager") from error
    examples = [name for name, found in used.items() if any(one.get("url") == _EXAMPLE for one in found)]
    silent = [name for name, found in used.items() if not found]
    if examples:
        yield broken(
            "receivers",
            f"receiver {examples[0]} has the example's address {_EXAMPLE}",
            "give it the address or key of whoever is on call",
        )
    elif len(silent) == len(used):
        yield broken(
            "receivers",
            f"none of the receivers {', '.join(used)} has an address, so nobody is told",
            "give a receiver a webhook, a pager or a channel",
        )
    else:
        yield good("receivers", f"alerts are routed to {', '.join(name for name in used if name not in silent)}")


def check_delivery(prometheus: Prometheus, alertmanager: Endpoint, *, now: datetime | None = None) -> Iterator[Finding]:
    """Whether what fires in Prometheus has arrived. Raises SourceError."""
    ours = {alert.name for alert in rulepack.alerts()}
    now = now or datetime.now(timezone.utc)
    firing = [
        alert["labels"]
        for alert in prometheus.alerts()
        if alert["state"] == "firing" and alert["labels"].get("alertname") in ours and _age(alert, now) > _SOON
    ]
    arrived = [one["labels"] for one in alertmanager.json("/api/v2/alerts")]
    lost = [labels for labels in firing if not any(_same(labels, other) for other in arrived)]
    if lost:
        one = lost[0]
        yield broken(
            "delivery",
            f"{one['alertname']} of rank {one.get('rank')} of run {one.get('run')} fires in {prometheus.name}, and "
            f"{alertmanager.name} has not received it",
            "see that it is the Alertmanager that Prometheus sends to, and that alert_relabel_configs keep the alert",
        )
    elif firing:
        yield good("delivery", f"all {len(firing)} firing alerts have arrived")
    else:
        yield unknown("delivery", "no alert of the pack fires now", "`rank-exporter demo` shows a page from end to end")


def _age(alert: dict[str, Any], now: datetime) -> timedelta:
    # Go writes nanoseconds, which Python does not read.
    return now - datetime.fromisoformat(alert["activeAt"].partition(".")[0].rstrip("Z") + "+00:00")


def _same(labels: dict[str, str], other: dict[str, str]) -> bool:
    """Whether an alert is the other; external labels may have been added on the way."""
    return all(other.get(name) == value for name, value in labels.items())


def _integrations(receiver: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for key, configs in receiver.items() if key.endswith("_configs") for one in configs or []]


def _routed(route: dict[str, Any]) -> list[str]:
    """Names of the receivers that routes lead to."""
    own = [route["receiver"]] if route.get("receiver") else []
    return list(dict.fromkeys([*own, *(name for child in route.get("routes") or [] for name in _routed(child))]))

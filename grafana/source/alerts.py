"""The alerts that fire or are pending, and what to check next."""

from __future__ import annotations

from .frame import OVERVIEW_UID, Panel, link_to
from .palette import BREACH, MUTED
from .panels import columns, property_, text_for_nan
from .targets import rows

__all__ = ["alert_table"]


def alert_table(matchers: str, of: str, *, run: bool = False) -> Panel:
    """Return the alerts that fire or are pending, with their runbooks, and with the ``run`` if there are several."""
    labels = "alertname, cluster, namespace, run, severity, rank, host, phase"
    alerts = f'ALERTS{{alertname=~"Training.+",{matchers}}}'
    since = f'ALERTS_FOR_STATE{{alertname=~"Training.+",{matchers}}}'
    now_ = f"max by ({labels}, alertstate) ({alerts})"
    lasting = f"{now_} * on ({labels}) group_left () (time() - max by ({labels}) ({since}))"
    runbook = "https://github.com/rank-exporter/rank-exporter/blob/main/rules/runbooks/${__value.raw}.md"
    return columns(
        "Alerts and next checks",
        f"Alerts of {of} that fire, or are pending until they have lasted. Each leads to its runbook, which says "
        "what to check next.",
        "none",
        f"No alert of {of} fires or is pending",
        [rows("A", f"{lasting} or on ({labels}, alertstate) {now_} * NaN")],
        order={
            "alertname": "Alert (runbook)",
            "alertstate": "State",
            "severity": "Severity",
            **({"run": "Run", "namespace": "Namespace"} if run else {}),
            "rank": "Rank",
            "host": "Host",
            "phase": "Phase",
            "Value": "For",
        },
        by="For",
        mappings=[text_for_nan("unknown")],
        overrides={
            "Alert (runbook)": [
                property_("custom.width", 220),
                property_("links", [{"title": "Runbook: what to check next", "url": runbook, "targetBlank": True}]),
            ],
            "Run": [
                property_("links", [link_to(OVERVIEW_UID, "Overview of this run", run="${__value.raw:percentencode}")])
            ],
            "Severity": [property_("custom.width", 75)],
            "State": [
                property_("custom.width", 70),
                property_("custom.cellOptions", {"type": "color-text"}),
                property_("mappings", [_states()]),
            ],
            "Rank": [property_("custom.width", 55)],
            "Phase": [property_("custom.width", 110)],
            "For": [property_("unit", "s"), property_("decimals", 0), property_("custom.width", 85)],
        },
    )


def _states() -> object:
    return {
        "type": "value",
        "options": {
            "firing": {"text": "firing", "color": BREACH, "index": 0},
            "pending": {"text": "pending", "color": MUTED, "index": 1},
        },
    }

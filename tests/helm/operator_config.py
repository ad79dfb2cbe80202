"""What the Prometheus operator makes of a PodMonitor: the parts of a scrape configuration that choose targets.

It follows the operator's documentation of PodMonitor: the selector and the running filter first, then the labels that
each target gets, then the endpoint's own relabelings. An empty string in a resource counts as not given.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["scrape_config"]

Config = dict[str, Any]


def _sanitized(label: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_]", "_", label)


def _selector(selector: dict[str, Any]) -> list[Config]:
    rules = []
    for key, value in sorted(selector.get("matchLabels", {}).items()):
        name = _sanitized(key)
        labels = [f"__meta_kubernetes_pod_label_{name}", f"__meta_kubernetes_pod_labelpresent_{name}"]
        rules.append({"action": "keep", "source_labels": labels, "regex": f"({value});true"})
    for expression in selector.get("matchExpressions", []):
        present = f"__meta_kubernetes_pod_labelpresent_{_sanitized(expression['key'])}"
        assert expression["operator"] == "Exists", "the tests use no other"
        rules.append({"action": "keep", "source_labels": [present], "regex": "true"})
    return rules


def _relabeling(source: dict[str, Any]) -> Config:
    names = {"sourceLabels": "source_labels", "targetLabel": "target_label"}
    return {names.get(key, key): value for key, value in source.items() if value != ""}


def scrape_config(monitor: dict[str, Any], targets: str) -> Config:
    """The scrape configuration of a PodMonitor's only endpoint, with targets from a file instead of Kubernetes."""
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert not {"port", "portNumber", "targetPort"} & endpoint.keys(), "they keep only ports that pods declare"
    job = f"{monitor['metadata']['namespace']}/{monitor['metadata']['name']}"
    relabelings = [
        *_selector(monitor["spec"]["selector"]),
        {"action": "drop", "source_labels": ["__meta_kubernetes_pod_phase"], "regex": "(Failed|Succeeded)"},
        {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
        {"source_labels": ["__meta_kubernetes_pod_container_name"], "target_label": "container"},
        {"source_labels": ["__meta_kubernetes_pod_name"], "target_label": "pod"},
        *(
            {
                "source_labels": [f"__meta_kubernetes_pod_label_{_sanitized(label)}"],
                "target_label": _sanitized(label),
                "regex": "(.+)",
            }
            for label in monitor["spec"].get("podTargetLabels", [])
        ),
        {"target_label": "job", "replacement": job},
        *map(_relabeling, endpoint["relabelings"]),
    ]
    return {
        "job_name": f"podMonitor/{job}/0",
        "scrape_interval": endpoint["interval"],
        "scrape_timeout": endpoint["scrapeTimeout"],
        "metrics_path": endpoint["path"],
        "scheme": endpoint["scheme"],
        "honor_labels": endpoint["honorLabels"],
        "file_sd_configs": [{"files": [targets]}],
        "relabel_configs": relabelings,
    }

"""doctor on Kubernetes objects: what the chart renders, beside resources of an operator that select it or do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from helm_python.chart import Chart

CHART = Path(__file__).parents[2] / "helm" / "rank-exporter"
RELEASE = {"matchLabels": {"release": "monitoring"}}
LABELS = {"release": "monitoring"}


def server(kind="Prometheus", namespace="monitoring", **spec):
    defaults = {
        "Prometheus": {"podMonitorSelector": RELEASE, "ruleSelector": RELEASE, "podMonitorNamespaceSelector": {}},
        "Alertmanager": {"alertmanagerConfigSelector": RELEASE},
    }
    spec = {key: value for key, value in {**defaults[kind], **spec}.items() if value is not None}
    return {"kind": kind, "metadata": {"name": "main", "namespace": namespace}, "spec": spec}


def pod(namespace="monitoring", **labels):
    labels = {key.replace("_", "-"): value for key, value in labels.items()} or {"rank-exporter/scrape": "true"}
    return {"kind": "Pod", "metadata": {"name": "train-0", "namespace": namespace, "labels": labels}, "spec": {}}


def namespace(name, **labels):
    return {"kind": "Namespace", "metadata": {"name": name, "labels": labels}}


@pytest.fixture
def look(examine, tmp_path):
    """Examines what the chart renders with values together with further objects; returns exit code and findings."""

    def look(*others, values=None, objects=None):
        if objects is None:
            with Chart.load(CHART) as chart:
                rendered = chart.render({"operatorLabels": LABELS, **(values or {})}, name="rx", namespace="monitoring")
            objects = [
                one for name, text in rendered.items() if name.endswith("yaml") for one in yaml.safe_load_all(text)
            ]
        everything = [one for one in objects if one] + list(others)
        (tmp_path / "objects.json").write_text(json.dumps({"kind": "List", "items": everything}))
        return examine("--kube-yaml", str(tmp_path / "objects.json"))

    return look


def test_everything_is_selected(look):
    """With the labels that the operator asks for all is good, pods included."""
    code, findings = look(server(), pod())
    assert code == 0
    assert [findings[check][0][0] for check in ("PodMonitor selected", "PrometheusRule selected", "pods selected")] == [
        "good"
    ] * 3


BROKEN = [
    (
        "labels",
        "PodMonitor selected",
        [server(), pod()],
        {"operatorLabels": {}},
        "which PodMonitor monitoring/rx-rank-exporter has not → helm upgrade … --set operatorLabels.release=monitoring",
    ),
    (
        "rule labels",
        "PrometheusRule selected",
        [server(ruleSelector={"matchLabels": {"role": "alert"}}), pod()],
        {},
        "selects role=alert",
    ),
    (
        "no selector",
        "PodMonitor selected",
        [server(podMonitorSelector=None), pod()],
        {},
        "has no podMonitorSelector, so it selects no PodMonitor",
    ),
    (
        "another namespace",
        "PrometheusRule selected",
        [server(namespace="infra"), pod()],
        {},
        "looks in its own namespace alone",
    ),
    (
        "namespace labels",
        "PodMonitor selected",
        [
            server(podMonitorNamespaceSelector={"matchLabels": {"scrape": "yes"}}),
            pod(),
            namespace("monitoring", team="x"),
        ],
        {},
        "selects namespaces with scrape=yes, which monitoring has not",
    ),
    ("pod labels", "pods selected", [server(), pod(app="train")], {}, "which none of the 1 pods there has"),
    (
        "pod namespace",
        "pods selected",
        [server(), pod("team-a")],
        {},
        "are in team-a → helm upgrade … --set 'training.namespaces={team-a}'",
    ),
    (
        "no rule",
        "PrometheusRule selected",
        [server(), pod()],
        {"prometheusRule": {"enabled": False}},
        "there is no PrometheusRule",
    ),
    (
        "Alertmanager",
        "AlertmanagerConfig selected",
        [
            server(),
            pod(),
            server(
                "Alertmanager",
                alertmanagerConfigSelector={"matchExpressions": [{"key": "team", "operator": "In", "values": ["a"]}]},
            ),
        ],
        {"alertmanagerConfig": {"enabled": True, "receivers": [{"name": "training"}, {"name": "training-page"}]}},
        "selects team In a, which AlertmanagerConfig monitoring/rx-rank-exporter has not",
    ),
]


@pytest.mark.parametrize("case", BROKEN, ids=[name for name, *_ in BROKEN])
def test_what_is_not_selected_is_named(look, case):
    """Each way of not being selected is named, with the value or label that mends it, and nothing else is blamed."""
    name, check, others, values, complaint = case
    code, findings = look(*others, values=values)
    assert code == 1
    assert complaint in findings[check][0][1]
    blamed = {check for check, found in findings.items() if found[0][0] == "broken"}
    assert blamed == ({check, "PrometheusRule selected"} if name == "labels" else {check})


def test_one_of_two_servers_is_enough(look):
    """An object that any Prometheus selects is selected."""
    code, findings = look(server(podMonitorSelector=None, ruleSelector=None), server(), pod())
    assert code == 0
    assert findings["PodMonitor selected"][0][0] == "good"


def test_what_was_not_given_is_said(look):
    """Without the operator's resources, pods or namespaces it is said what to add."""
    code, findings = look()
    assert code == 2
    assert "kubectl get prometheus" in findings["PodMonitor selected"][0][1]
    assert "kubectl get pod" in findings["pods selected"][0][1]
    _, findings = look(server(podMonitorNamespaceSelector=RELEASE), pod())
    state, text = findings["PodMonitor selected"][0]
    assert (state, "kubectl get namespace" in text) == ("not checked", True)


def test_input_and_files(examine, tmp_path):
    """Objects come from standard input as well as files, of YAML with several documents."""
    text = yaml.safe_dump_all([server(), pod()])
    code, findings = examine("--kube-yaml", "-", stdin=text)
    assert code == 1
    assert "there is no PodMonitor for rank-exporter" in findings["PodMonitor selected"][0][1]

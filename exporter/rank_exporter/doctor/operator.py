"""Whether the Prometheus operator selects what the chart installed.

An operator ignores an object without the labels that its selector asks for, and says nothing. Of a selector that is not
given, it selects nothing; of an empty one, everything. A namespace selector that is not given means its own namespace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .. import rulepack
from .finding import Finding, broken, good, unknown
from .resources import Resource, described, matches, of_kind

__all__ = ["check_resources"]

_SELECTORS = (
    ("PodMonitor", "Prometheus", "podMonitor"),
    ("PrometheusRule", "Prometheus", "rule"),
    ("AlertmanagerConfig", "Alertmanager", "alertmanagerConfig"),
)
_OPTIONAL = frozenset({"AlertmanagerConfig"})


def check_resources(resources: Sequence[Resource]) -> Iterator[Finding]:
    """Findings about objects and selectors. Raises SourceError."""
    for kind, server_kind, prefix in _SELECTORS:
        ours = [one for one in of_kind(resources, kind) if _is_ours(one)]
        servers = of_kind(resources, server_kind)
        if not ours and kind in _OPTIONAL:
            continue
        if not ours:
            yield broken(
                f"{kind} selected",
                f"there is no {kind} for rank-exporter",
                "install the chart, or give the objects of its namespace, too",
            )
        elif not servers:
            yield unknown(
                f"{kind} selected",
                f"there is no {server_kind} resource in what was given",
                f"add `kubectl get {server_kind.lower()} --all-namespaces -o yaml`",
            )
        else:
            for one in ours:
                yield _selected(one, servers, prefix, resources)
    yield from _check_pods(resources)


def _is_ours(one: Resource) -> bool:
    if one.labels.get("app.kubernetes.io/name") == "rank-exporter" or "rank-exporter" in one.name:
        return True
    alerts = {alert.name for alert in rulepack.alerts()}
    return any(
        rule.get("alert") in alerts for group in one.spec.get("groups") or [] for rule in group.get("rules") or []
    )


def _selected(one: Resource, servers: Sequence[Resource], prefix: str, resources: Sequence[Resource]) -> Finding:
    """Whether any of the servers selects an object; the reason of the first that does not."""
    check = f"{one.kind} selected"
    reasons = []
    for server in servers:
        finding = _refusal(one, server, prefix, resources)
        if finding is None:
            return good(check, f"{server.title} selects {one.title}")
        reasons.append(finding)
    return reasons[0]


def _refusal(one: Resource, server: Resource, prefix: str, resources: Sequence[Resource]) -> Finding | None:
    check = f"{one.kind} selected"
    selector = server.spec.get(f"{prefix}Selector")
    if selector is None:
        return broken(
            check,
            f"{server.title} has no {prefix}Selector, so it selects no {one.kind}",
            f"give it one; {prefix}Selector: {{}} selects all",
        )
    if not matches(selector, one.labels):
        labels = selector.get("matchLabels") or {}
        remedy = " ".join(
            f"--set operatorLabels.{key.replace('.', chr(92) + '.')}={value}" for key, value in labels.items()
        )
        return broken(
            check,
            f"{server.title} selects {described(selector)}, which {one.title} has not",
            f"helm upgrade … {remedy}" if remedy else "give it labels that match by operatorLabels of the chart",
        )
    spaces = server.spec.get(f"{prefix}NamespaceSelector")
    if spaces is None:
        if one.namespace == server.namespace:
            return None
        return broken(
            check,
            f"{server.title} looks in its own namespace alone, and {one.title} is in another",
            f"give it {prefix}NamespaceSelector: {{}}, or install the chart in {server.namespace}",
        )
    return _refused_namespace(one, server, f"{prefix}NamespaceSelector", resources) if _asks(spaces) else None


def _asks(selector: Mapping[str, Any]) -> bool:
    return bool(selector.get("matchLabels") or selector.get("matchExpressions"))


def _refused_namespace(one: Resource, server: Resource, field: str, resources: Sequence[Resource]) -> Finding | None:
    check = f"{one.kind} selected"
    selector = server.spec[field]
    found = [space for space in of_kind(resources, "Namespace") if space.name == one.namespace]
    if not found:
        return unknown(
            check,
            f"{server.title} selects namespaces with {described(selector)}, and those of {one.namespace} are not known",
            "add `kubectl get namespace -o yaml`",
        )
    labels = {"kubernetes.io/metadata.name": one.namespace, **found[0].labels}
    if matches(selector, labels):
        return None
    return broken(
        check,
        f"{server.title} selects namespaces with {described(selector)}, which {one.namespace} has not",
        f"label the namespace, or widen {field}",
    )


def _check_pods(resources: Sequence[Resource]) -> Iterator[Finding]:
    """Whether a PodMonitor selects any of the pods that were given."""
    pods = of_kind(resources, "Pod")
    for monitor in [one for one in of_kind(resources, "PodMonitor") if _is_ours(one)]:
        check = "pods selected"
        if not pods:
            yield unknown(
                check, "there are no pods in what was given", "add `kubectl get pod --all-namespaces -o yaml`"
            )
            continue
        spaces = monitor.spec.get("namespaceSelector") or {}
        names = spaces.get("matchNames") or [monitor.namespace]
        inside = [pod for pod in pods if spaces.get("any") or pod.namespace in names]
        selector = monitor.spec.get("selector") or {}
        selected = [pod for pod in inside if matches(selector, pod.labels)]
        elsewhere = [pod for pod in pods if pod not in inside and matches(selector, pod.labels)]
        if selected:
            yield good(
                check,
                f"{monitor.title} selects {len(selected)} pods, such as {selected[0].namespace}/{selected[0].name}",
            )
        elif elsewhere:
            yield broken(
                check,
                f"{monitor.title} looks in {', '.join(names)}, and pods with {described(selector)} are in "
                f"{elsewhere[0].namespace}",
                f"helm upgrade … --set 'training.namespaces={{{elsewhere[0].namespace}}}'",
            )
        else:
            yield broken(
                check,
                f"{monitor.title} selects {described(selector)}, which none of the {len(inside)} pods there has",
                "label the pod template of the job; running pods keep the labels that they started with",
            )

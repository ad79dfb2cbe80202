"""All checks, on what was given: each goes as far as it can reach."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import SourceError
from . import agents, alertmanagers, grafana, metrics, operator, rules, targets
from .endpoint import Endpoint
from .finding import Finding, unknown
from .prometheus import Prometheus
from .resources import Resource

__all__ = ["Installation", "examine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """What is to be examined. ``resources`` None: nothing of Kubernetes was given."""

    agents: Sequence[Endpoint] = field(default=())
    prometheus: Endpoint | None = None
    alertmanager: Endpoint | None = None
    grafana: Endpoint | None = None
    resources: Sequence[Resource] | None = None


def examine(installation: Installation) -> Iterator[Finding]:
    """Findings, in the order of the way from a rank to whoever is paged."""
    for agent in installation.agents:
        yield from agents.check_agent(agent)
    if installation.resources is None:
        yield unknown("operator", "no objects of Kubernetes were given", _KUBECTL)
    else:
        given = installation.resources
        yield from _as_far_as("operator", lambda: operator.check_resources(given), "give whole objects")
    yield from _examine_servers(installation)
    if installation.grafana is None:
        yield unknown("dashboards", "no Grafana was given", "--grafana URL")
    else:
        board = installation.grafana
        yield from _as_far_as(
            "dashboards", lambda: grafana.check_grafana(board, grafana.shipped_dashboards()), _ADDRESS
        )


def _examine_servers(installation: Installation) -> Iterator[Finding]:
    alertmanager = installation.alertmanager
    if installation.prometheus is None:
        yield unknown("targets, metrics, rules, sending", "no Prometheus was given", "--prometheus URL")
    else:
        prometheus = Prometheus(installation.prometheus)
        for name, check in (
            ("targets", targets.check_targets),
            ("metrics", metrics.check_metrics),
            ("rules", rules.check_rules),
            ("sending", alertmanagers.check_sending),
        ):
            yield from _as_far_as(name, lambda check=check: check(prometheus), _ADDRESS)  # type: ignore[misc]
    if alertmanager is None:
        yield unknown("receivers, delivery", "no Alertmanager was given", "--alertmanager URL")
        return
    receiving = alertmanager
    yield from _as_far_as("receivers", lambda: alertmanagers.check_alertmanager(receiving), _ADDRESS)
    if installation.prometheus is not None:
        yield from _as_far_as("delivery", lambda: alertmanagers.check_delivery(prometheus, receiving), _ADDRESS)


_ADDRESS = "see that the address is right and reachable from here; `kubectl port-forward` helps where it is not"
_KUBECTL = (
    "with the operator: kubectl get prometheus,alertmanager,podmonitor,prometheusrule,namespace,pod --all-namespaces "
    "-o json | rank-exporter doctor --kube-yaml -"
)


def _as_far_as(check: str, findings: Callable[[], Iterator[Finding]], remedy: str) -> Iterator[Finding]:
    """The findings until the source gives no more."""
    try:
        yield from findings()
    except SourceError as error:
        yield unknown(check, str(error), remedy)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        yield unknown(check, f"it answers in a form that is not known ({type(error).__name__}: {error})", remedy)

"""Whether the series that the rules read have arrived, under their names and labels."""

from __future__ import annotations

from collections.abc import Iterator

from .. import catalog
from .finding import Finding, broken, good, unknown
from .prometheus import Prometheus

__all__ = ["check_metrics"]

_NEEDED = (catalog.PHASE_DURATION, catalog.STEPS, catalog.RANK_INFO, catalog.WORLD_SIZE, catalog.SKEW_BUDGET)
_OWN_LABELS = (*catalog.PER_RANK, "phase", "shard")


def check_metrics(prometheus: Prometheus) -> Iterator[Finding]:
    """Findings about names and labels. Raises SourceError."""
    found = {labels["__name__"] for labels, _ in prometheus.query('count by (__name__) ({__name__=~"training_.+"})')}
    if catalog.STEPS.name not in found and catalog.LAST_STEP_TIMESTAMP.name not in found:
        yield unknown("metrics", "no rank is being scraped", "ask again while a job runs")
        return
    needed = [name for metric in _NEEDED for name in metric.series_names]
    missing = [name for name in needed if name not in found]
    if missing:
        yield broken(
            "metrics",
            f"{', '.join(missing)} do not arrive",
            "see that no metric_relabel_configs or write_relabel_configs drop them",
        )
    else:
        yield good("metrics", f"{len(found)} metrics arrive, among them all that alerts read")
    yield from _check_labels(prometheus)


def _check_labels(prometheus: Prometheus) -> Iterator[Finding]:
    series = [labels for labels, _ in prometheus.query(catalog.STEPS.name)]
    renamed = sorted({name for labels in series for name in _OWN_LABELS if f"exported_{name}" in labels})
    if renamed:
        names = ", ".join(renamed)
        yield broken(
            "labels",
            f"the exporter's {names} arrive as {', '.join(f'exported_{name}' for name in renamed)}",
            f"give the targets no label {names}: rename it in relabel_configs, podTargetLabels or external labels",
        )
    nameless = [labels for labels in series if not all(labels.get(name) for name in catalog.PER_RANK)]
    if nameless and not renamed:
        yield broken(
            "labels",
            f"{len(nameless)} series of {catalog.STEPS.name} lack run, rank or host",
            "see that no metric_relabel_configs drop them",
        )
    after_pods = sorted(
        {labels["host"] for labels in series if labels.get("pod") and labels.get("host") == labels["pod"]}
    )
    if after_pods:
        yield broken(
            "labels",
            f"host is the name of the pod, as in {after_pods[0]}, so that a page names no node",
            "give the pods NODE_NAME by the downward API (fieldPath: spec.nodeName)",
        )
    if series and not renamed and not nameless and not after_pods:
        yield good("labels", "series carry run, rank and host as the rules read them")

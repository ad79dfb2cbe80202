"""Metric families in the making: names, help and labels come from the catalog alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from ..catalog import METRICS, Metric

__all__ = ["Bucket", "Families"]

Bucket = Any
"""What HistogramMetricFamily takes: (le, cumulative count) or (le, cumulative count, Exemplar)."""

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class Families:
    """Samples by metric. prometheus_client's encoders take it for a registry."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def _family(self, metric: Metric, labels: Sequence[str]) -> Any:
        if len(labels) != len(metric.labels):
            raise ValueError(f"{metric.name} takes labels {metric.labels}, not {labels}")
        family = self._families.get(metric.name)
        if family is None:
            family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
            self._families[metric.name] = family
        return family

    def add(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Add one series of a counter or gauge; ``labels`` in the order of metric.labels."""
        self._family(metric, labels).add_metric(labels, value)

    def add_histogram(self, metric: Metric, labels: Sequence[str], buckets: Sequence[Bucket], total: float) -> None:
        """Add one histogram; ``total`` is the sum of its observations."""
        self._family(metric, labels).add_metric(labels, buckets, total)

    def update(self, others: Families) -> None:
        """Add all that ``others`` holds."""
        for name, family in others._families.items():
            mine = self._families.setdefault(name, family)
            if mine is not family:
                mine.samples.extend(family.samples)

    def collect(self) -> Iterable[Family]:
        """The families that have samples, in the order of the catalog."""
        return list(self._in_order())

    def _in_order(self) -> Iterator[Family]:
        for metric in METRICS:
            family = self._families.get(metric.name)
            if family is not None:
                yield family

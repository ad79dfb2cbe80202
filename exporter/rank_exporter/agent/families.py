"""Metric families in the making: names, help and labels come from the catalog alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client import Metric as Family
from prometheus_client.core import CounterMetricFamily, Exemplar, GaugeMetricFamily, HistogramMetricFamily

from ..catalog import METRICS, Metric

__all__ = ["Families", "Histogram", "family_of"]

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram's series.

    ``labels``: values, in the order of the metric's labels. ``edges``: values of the label le, +Inf the last.
    ``counts``: cumulative, one for each edge. ``total``: sum of the observations. ``exemplar``: the number of its
    bucket, and itself.
    """

    labels: tuple[str, ...]
    edges: Sequence[str]
    counts: Sequence[int]
    total: float
    exemplar: tuple[int, Exemplar] | None = None

    def add_to(self, family: Any) -> None:
        """Add the series to a HistogramMetricFamily."""
        buckets: list[Any] = list(zip(self.edges, self.counts, strict=True))
        if self.exemplar is not None:
            place, shown = self.exemplar
            buckets[place] = (*buckets[place], shown)
        family.add_metric(self.labels, buckets, self.total)


def family_of(metric: Metric) -> Any:
    """An empty family of prometheus_client for a metric of the catalog."""
    return _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)


class Families:
    """Samples by metric. prometheus_client's encoders take it for a registry."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}
        self._histograms: dict[str, list[Histogram]] = {}

    def add(self, metric: Metric, labels: Sequence[str], value: float) -> None:
        """Add one series of a counter or gauge; ``labels`` in the order of metric.labels."""
        _check(metric, labels)
        family = self._families.get(metric.name)
        if family is None:
            family = self._families[metric.name] = family_of(metric)
        family.add_metric(labels, value)

    def add_histogram(self, metric: Metric, histogram: Histogram) -> None:
        """Add one histogram."""
        _check(metric, histogram.labels)
        self._histograms.setdefault(metric.name, []).append(histogram)

    def update(self, others: Families) -> None:
        """Add all that ``others`` holds."""
        for name, family in others._families.items():
            mine = self._families.setdefault(name, family)
            if mine is not family:
                mine.samples.extend(family.samples)
        for name, histograms in others._histograms.items():
            self._histograms.setdefault(name, []).extend(histograms)

    def collect(self) -> Iterable[Family]:
        """The families that have samples, in the order of the catalog."""
        return list(self._in_order())

    def _in_order(self) -> Iterator[Family]:
        for metric, found in self.parts():
            if not isinstance(found, list):
                yield found
                continue
            family = family_of(metric)
            for histogram in found:
                histogram.add_to(family)
            yield family

    def parts(self) -> Iterator[tuple[Metric, Family | list[Histogram]]]:
        """Each metric that has samples, in the order of the catalog, with its family, or with its histograms."""
        for metric in METRICS:
            if (family := self._families.get(metric.name)) is not None:
                yield metric, family
            elif histograms := self._histograms.get(metric.name):
                yield metric, histograms


def _check(metric: Metric, labels: Sequence[str]) -> None:
    if len(labels) != len(metric.labels):
        raise ValueError(f"{metric.name} takes labels {metric.labels}, not {labels}")

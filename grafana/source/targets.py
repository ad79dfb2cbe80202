"""Queries of panels: the series over time, or their values at the end of the time range."""

from __future__ import annotations

from grafana_foundation_sdk.builders import prometheus
from grafana_foundation_sdk.models.dashboard import DataSourceRef
from grafana_foundation_sdk.models.prometheus import PromQueryFormat, QueryEditorMode

__all__ = ["DATASOURCE", "Target", "lines", "now", "rows"]

Target = prometheus.Dataquery

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
"""The data source that the reader chose."""


def _target(ref: str, expr: str) -> Target:
    return Target().datasource(DATASOURCE).ref_id(ref).editor_mode(QueryEditorMode.CODE).expr(expr)


def lines(ref: str, expr: str, name: str, *, exemplars: bool = False) -> Target:
    """Return a query over the time range. ``name`` is what its series are called; {{label}} stands for a label."""
    target = _target(ref, expr).range().legend_format(name)
    return target.exemplar(True) if exemplars else target


def now(ref: str, expr: str, name: str) -> Target:
    """Return a query for the end of the time range, one value a series."""
    return _target(ref, expr).instant().legend_format(name)


def rows(ref: str, expr: str) -> Target:
    """Return a query for the end of the time range, one row a series, with its labels as columns."""
    return _target(ref, expr).instant().format(PromQueryFormat.TABLE)

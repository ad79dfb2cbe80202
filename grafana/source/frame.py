"""What all dashboards have in common: variables, links to each other, alerts on the time axes, and how panels lie."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as models

from .palette import BREACH
from .queries import FLEET
from .targets import DATASOURCE

__all__ = [
    "FLEET_UID",
    "HOSTS_UID",
    "OVERVIEW_UID",
    "RANK_UID",
    "Panel",
    "dashboard",
    "host_variable",
    "label_values",
    "link_to",
    "rank_variable",
    "run_variable",
    "shard_variable",
]

OVERVIEW_UID = "rank-exporter-stragglers"
RANK_UID = "rank-exporter-rank"
HOSTS_UID = "rank-exporter-hosts-shards"
FLEET_UID = "rank-exporter-fleet"

_TITLES = {
    OVERVIEW_UID: "Straggler overview",
    RANK_UID: "Rank detail",
    HOSTS_UID: "Host and shard",
    FLEET_UID: "Fleet",
}

# Grafana 10 writes this version; later ones migrate from it.
_SCHEMA_VERSION = 38
_WIDTH = 24

_Variable = builders.QueryVariable | builders.DatasourceVariable

Panel = Any
"""A builder of a panel of any kind."""


class _Alerts(models.AnnotationQuery):
    """Annotations from Prometheus. The model of the library lacks the fields of that data source."""

    def to_json(self) -> dict[str, object]:
        return {
            **super().to_json(),
            "step": "30s",
            "titleFormat": "{{alertname}}",
            "textFormat": "rank {{rank}} on {{host}}, phase {{phase}}",
            "tagKeys": "severity",
            "useValueForTime": False,
        }


class _AlertsBuilder(builders.AnnotationQuery):
    def __init__(self, matchers: str) -> None:
        super().__init__()
        self._internal = _Alerts(
            name="Firing alerts",
            datasource=DATASOURCE,
            enable=True,
            icon_color=BREACH,
            expr=f'ALERTS{{alertname=~"Training.+",alertstate="firing",{matchers}}}',
        )


def _plain(variable: _Variable) -> _Variable:
    """Take out the settings of variables of another kind, which the library gives to all."""
    model = variable.build()
    model.auto = model.auto_min = model.auto_count = None
    return variable


def label_values(name: str, title: str, label: str, series: str, sort: models.VariableSort) -> builders.QueryVariable:
    """Return a variable with the values that ``label`` has on ``series`` in the time range."""
    query = f"label_values({series}, {label})"
    return (
        builders.QueryVariable(name)
        .label(title)
        .datasource(DATASOURCE)
        .query({"qryType": 1, "query": query, "refId": "PrometheusVariableQueryEditor-VariableQuery"})
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(sort)
    )


def _all(variable: builders.QueryVariable) -> builders.QueryVariable:
    """Let several values be chosen, and at first all: also series that lack the label."""
    every = models.VariableOption(selected=True, text="All", value="$__all")
    return variable.multi(True).include_all(True).all_value(".*").current(every)


def _fleet_variables() -> list[_Variable]:
    natural = models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC
    return [
        builders.DatasourceVariable("datasource").label("Data source").type("prometheus"),
        _all(label_values("cluster", "Cluster", "cluster", "training_world_size", natural)),
        _all(label_values("namespace", "Namespace", "namespace", 'training_world_size{cluster=~"$cluster"}', natural)),
    ]


def run_variable() -> builders.QueryVariable:
    """Return the run that is looked at; the latest by name first."""
    order = models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_DESC
    return label_values("run", "Run", "run", f"training_world_size{{{FLEET}}}", order)


def rank_variable() -> builders.QueryVariable:
    """Return the rank that is looked at, from 0 on in numeric order."""
    series = f'training_rank_info{{{FLEET},run="$run"}}'
    return label_values("rank", "Rank", "rank", series, models.VariableSort.NUMERICAL_ASC)


def host_variable() -> builders.QueryVariable:
    """Return the hosts of the run."""
    series = f'training_rank_info{{{FLEET},run="$run"}}'
    return _all(label_values("host", "Host", "host", series, models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC))


def shard_variable() -> builders.QueryVariable:
    """Return the shards that ranks of the run read."""
    series = f'training_phase_duration_seconds_count{{{FLEET},run="$run",phase="input_ready",host=~"$host"}}'
    return _all(label_values("shard", "Shard", "shard", series, models.VariableSort.ALPHABETICAL_CASE_INSENSITIVE_ASC))


def link_to(uid: str, title: str, **variables: str) -> dict[str, object]:
    """Return a link from a value to the dashboard ``uid``: with time range and variables, and ``variables`` set."""
    kept = ["datasource", "cluster", "namespace", "run"]
    parts = ["${__url_time_range}"]
    parts += [f"${{{name}:queryparam}}" for name in kept if name not in variables]
    parts += [f"var-{name}={value}" for name, value in variables.items()]
    return {"title": title, "url": f"/d/{uid}?{'&'.join(parts)}"}


def _navigation(own: str) -> Iterable[builders.DashboardLink]:
    for uid, title in _TITLES.items():
        if uid != own:
            yield (
                builders.DashboardLink(title)
                .type(models.DashboardLinkType.LINK)
                .url(f"/d/{uid}")
                .include_vars(True)
                .keep_time(True)
                .icon("dashboard")
                .tooltip(f"{title}, for the same time range and variables")
            )


def dashboard(
    uid: str,
    description: str,
    variables: Sequence[builders.QueryVariable],
    alerts: str,
    bands: Sequence[tuple[int, Sequence[tuple[int, Panel]]]],
) -> str:
    """Return a dashboard as JSON text.

    ``bands`` lie one below the other: each has a height and panels with their widths, in cells of the grid, which is 24
    wide. ``alerts`` are the matchers of the alerts that are marked on the time axes.
    """
    board = (
        builders.Dashboard(_TITLES[uid])
        .uid(uid)
        .description(description)
        .tags(["rank-exporter", "training"])
        .readonly()
        .tooltip(models.DashboardCursorSync.CROSSHAIR)
        .time("now-3h", "now")
        .refresh("1m")
        .timezone("browser")
        .links(list(_navigation(uid)))
        .variables([_plain(variable) for variable in (*_fleet_variables(), *variables)])
        .annotation(_AlertsBuilder(alerts))
    )
    for panel in _placed(bands):
        board.with_panel(panel)
    built = board.build()
    built.schema_version = _SCHEMA_VERSION
    return json.dumps(built, cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _placed(bands: Sequence[tuple[int, Sequence[tuple[int, Panel]]]]) -> Iterable[Panel]:
    top = number = 0
    for height, panels in bands:
        left = 0
        for width, panel in panels:
            number += 1
            yield panel.id(number).grid_pos(models.GridPos(h=height, w=width, x=left, y=top))
            left += width
        if left > _WIDTH:
            raise ValueError(f"panels {left} cells wide stand side by side; the grid has {_WIDTH}")
        top += height

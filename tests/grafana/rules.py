"""What every dashboard keeps to: the rules of Grafana's public dashboard linter, written anew.

A rule takes a dashboard and yields what breaks it, one text a fault. EXCEPTIONS are rules of the public linter that do
not hold here, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import promql_parser

from rank_exporter.catalog import METRICS

from .boards import Board, Json
from .promql import filled, known_labels, known_series, label_values, names, nodes, selectors, unit

__all__ = ["EXCEPTIONS", "RULES", "at", "rule"]

EXCEPTIONS = {
    "template-job-rule": "a run is found by its label run; which job scrapes it is the installation's own affair",
    "template-instance-rule": "an agent serves all ranks of its host: rank and host are labels, instance says nothing",
    "target-job-rule": "as template-job-rule",
    "target-instance-rule": "as template-instance-rule",
    "target-logql-rule": "no dashboard reads logs",
    "target-logql-auto-rule": "no dashboard reads logs",
}

Rule = Callable[[Board], Iterator[str]]
RULES: dict[str, Rule] = {}

_COUNTERS = {name for metric in METRICS for name in metric.series_names if metric.kind != "gauge"}
_UNITS = {
    "percentunit": {},
    "s": {"s": 1},
    "bytes": {"bytes": 1},
    "suffix: /s": {"s": -1},
    "suffix: steps/s": {"s": -1},
}
_GPU_HOURS = "suffix: GPU h"
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}

# A fixed look back is wrong where the scrape interval may be longer than it; these are as long as the rules' windows.
_FIXED_RANGES = {"10m", "30m", "5m"}


def rule(check: Rule) -> Rule:
    """Keep a rule under its name."""
    RULES[check.__name__] = check
    return check


def at(board: Board, panel: Json) -> str:
    """Where a fault is."""
    return f"{board.uid}: {panel['title']}"


@rule
def template_datasource(board: Board) -> Iterator[str]:
    """The data source is a variable, and the first one."""
    first = board.json["templating"]["list"][0]
    if (first["name"], first["type"], first["query"]) != ("datasource", "datasource", "prometheus"):
        yield f"{board.uid}: the first variable is {first['name']}, not datasource"
    if first.get("label") != "Data source":
        yield f"{board.uid}: variable datasource has the label {first.get('label')!r}"


@rule
def panel_datasource(board: Board) -> Iterator[str]:
    """No panel, query, variable or annotation names a data source of its own."""
    for panel in board.panels:
        if any(one.get("datasource") != _DATASOURCE for one in (panel, *panel["targets"])):
            yield f"{at(board, panel)} has another data source than the variable"
    for one in (*board.json["annotations"]["list"], *list(board.variables.values())[1:]):
        if one.get("datasource") != _DATASOURCE:
            yield f"{board.uid}: {one['name']} has another data source than the variable"


@rule
def template_time_change_reload(board: Board) -> Iterator[str]:
    """Variables are asked for again when the time range changes, since runs come and go."""
    for name, variable in board.variables.items():
        if variable["type"] == "query" and variable["refresh"] != 2:
            yield f"{board.uid}: variable {name} has refresh {variable['refresh']}"


@rule
def template_label_promql(board: Board) -> Iterator[str]:
    """The queries of variables are of series and labels that exist."""
    for query in board.variable_queries():
        series, label = label_values(query.expr)
        [selector] = selectors(filled(series))
        if selector.name not in known_series():
            yield f"{query.where} reads {selector.name}, which nobody publishes"
        elif label not in known_labels(selector.name):
            yield f"{query.where} asks for the label {label}, which {selector.name} lacks"


@rule
def panel_title_description(board: Board) -> Iterator[str]:
    """Every panel has a title of its own and a description in sentences."""
    titles = [panel["title"] for panel in board.panels]
    for panel in board.panels:
        if not panel["title"].strip() or titles.count(panel["title"]) > 1:
            yield f"{at(board, panel)} has no title of its own"
        if not panel.get("description", "").endswith("."):
            yield f"{at(board, panel)} has no description"


@rule
def panel_targets(board: Board) -> Iterator[str]:
    """Every panel has queries, each with a letter of its own."""
    for panel in board.panels:
        letters = [target["refId"] for target in panel["targets"]]
        if not letters or len(letters) != len(set(letters)):
            yield f"{at(board, panel)} has the queries {letters}"


@rule
def panel_units(board: Board) -> Iterator[str]:
    """Every number has a unit: a ratio is shown in per cent, time from seconds, and a count says what is counted."""
    for panel in board.panels:
        for title, unit_ in _units_of(panel):
            worded = bool(panel["fieldConfig"]["defaults"].get("mappings"))
            if unit_ == "none" and (title == "Rank" or worded):
                continue
            if unit_ not in _UNITS and not re.fullmatch(r"suffix: [A-Za-z/ ]+", unit_):
                yield f"{at(board, panel)} {title} has the unit {unit_}"


def _units_of(panel: Json) -> Iterator[tuple[str, str]]:
    yield "", panel["fieldConfig"]["defaults"].get("unit", "")
    for override in panel["fieldConfig"]["overrides"]:
        for one in override["properties"]:
            if one["id"] == "unit":
                yield override["matcher"]["options"], one["value"]


def _unit_of(panel: Json, target: Json) -> str:
    """The unit in which the values of one query are shown: in a table by the title of its column."""
    chosen = panel["fieldConfig"]["defaults"]["unit"]
    titles = {target["refId"]}
    for step in panel.get("transformations", []):
        if step["id"] == "organize":
            renamed = step["options"]["renameByName"]
            titles |= {renamed.get(name) for name in (f"Value #{target['refId']}", "Value")}
    for override in panel["fieldConfig"]["overrides"]:
        if override["matcher"]["options"] in titles:
            chosen = next((one["value"] for one in override["properties"] if one["id"] == "unit"), chosen)
    return str(chosen)


@rule
def units_fit_series(board: Board) -> Iterator[str]:
    """The unit shown is that of the series: seconds are never shown as a share, nor a rate as a count."""
    for panel in board.panels:
        for target in panel["targets"]:
            shown = _unit_of(panel, target)
            expected: dict[str, int] = _UNITS.get(shown, {})
            try:
                is_ = unit(promql_parser.parse(filled(target["expr"])))
            except (AssertionError, ValueError) as error:
                yield f"{at(board, panel)} {target['refId']}: {error}"
                continue
            if shown == _GPU_HOURS:
                hours = "/ 3600" in target["expr"]
                fits = (is_ == {"s": 1} and hours) or (is_ == {} and "[$__range:1m]" in target["expr"])
            else:
                fits = is_ == expected
            if not fits:
                yield f"{at(board, panel)} {target['refId']} is shown in {shown} and is in {is_ or 'none'}"


@rule
def target_promql(board: Board) -> Iterator[str]:
    """Every query is PromQL."""
    for query in (*board.targets(), *board.annotations()):
        try:
            promql_parser.parse(filled(query.expr))
        except ValueError as error:
            yield f"{query.where}: {error}"


@rule
def target_series(board: Board) -> Iterator[str]:
    """Every series that is read is one that the exporter publishes or a rule records."""
    for query in (*board.targets(), *board.annotations()):
        for name in names(filled(query.expr)) - known_series():
            yield f"{query.where} reads {name}, which nobody publishes"


@rule
def target_labels(board: Board) -> Iterator[str]:
    """Every label that series are chosen by is one that they have."""
    for query in (*board.targets(), *board.annotations()):
        for selector in selectors(filled(query.expr)):
            if selector.name in known_series():
                for matcher in selector.matchers.matchers:
                    if matcher.name not in known_labels(selector.name):
                        yield f"{query.where} asks {selector.name} for {matcher.name}, which it lacks"


@rule
def target_grouping(board: Board) -> Iterator[str]:
    """Series are grouped and joined by labels that some series of the query has, or that the query makes."""
    for query in board.targets():
        text = filled(query.expr)
        made = set(re.findall(r', "(\w+)", "[^"]*", "\w*", "[^"]*"\)|count_values [^"]*"(\w+)"', text))
        have = {label for both in made for label in both}.union(
            *(known_labels(name) for name in names(text) & known_series())
        )
        used = {
            label.strip()
            for listed in re.findall(r"\b(?:by|on|group_left|group_right) \(([\w, ]*)\)", text)
            for label in listed.split(",")
            if label.strip()
        }
        for label in used - have:
            yield f"{query.where} groups by {label}, which no series of it has"


@rule
def target_legends(board: Board) -> Iterator[str]:
    """A name of a series has only labels that its query keeps."""
    for query in board.targets():
        kept = set(re.findall(r"\w+", " ".join(re.findall(r"(?:by|group_left) \(([\w, ]*)\)", query.expr))))
        kept = kept.union(*(known_labels(name) for name in names(filled(query.expr)) & known_series() if not kept))
        if not query.table and not query.legend:
            yield f"{query.where} has no name for its series"
        for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
            made = f'"{label}"' in query.expr
            if label not in kept and not made and label not in known_labels_of_all(query.expr):
                yield f"{query.where} names its series by {label}, which they lack"


def known_labels_of_all(expr: str) -> set[str]:
    """The labels of all series in a query that groups nothing away."""
    if any(isinstance(node, promql_parser.AggregateExpr) and node.modifier for node in nodes(filled(expr))):
        return set()
    return set().union(*(known_labels(name) for name in names(filled(expr)) & known_series()))


@rule
def target_rate_interval(board: Board) -> Iterator[str]:
    """What is drawn over time looks back by $__rate_interval, or as far as the rules do."""
    for query in board.targets():
        for looked in re.findall(r"\[([^\]:]+)(?::[^\]]*)?\]", query.expr):
            if looked not in ("$__rate_interval", "$__range", *_FIXED_RANGES):
                yield f"{query.where} looks back by {looked}"
            if looked == "$__range" and not query.instant and "@ end()" not in query.expr:
                yield f"{query.where} looks back by the time range at every point of a graph"


@rule
def target_counter_aggregation(board: Board) -> Iterator[str]:
    """Counters are never shown as they are, only what they grew by."""
    for query in board.targets():
        parts = nodes(filled(query.expr))
        grown = [
            node.args[0].vector_selector
            for node in parts
            if isinstance(node, promql_parser.Call) and node.func.name in ("rate", "increase")
        ]
        counted = [
            node.expr
            for node in parts
            if isinstance(node, promql_parser.AggregateExpr) and str(node.op) in ("count", "group")
        ]
        fine = {str(selector) for selector in grown} | {str(node) for node in counted}
        for selector in selectors(filled(query.expr)):
            if selector.name in _COUNTERS and str(selector) not in fine:
                yield f"{query.where} shows the counter {selector.name} as it is"


@rule
def uneditable(board: Board) -> Iterator[str]:
    """Dashboards are not edited in place, since an update would overwrite that; a copy is."""
    if board.json["editable"]:
        yield f"{board.uid} is editable"

"""What every dashboard keeps to beyond the public linter: how it looks, and where it leads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

from rank_exporter.phases import PHASE_NAMES

from .boards import Board, Json, shipped
from .promql import filled, known_labels, known_series, names
from .rules import at, rule

__all__ = ["BREACH", "COLOURS"]

BREACH = "#D55E00"
COLOURS = {BREACH, "#0072B2", "#009E73", "#56B4E9", "#CC79A7", "#E69F00", "#F0E442", "#707070", "text"}
"""The palette of Okabe and Ito, grey, and the page's own colour of text."""

_MODES = {"fixed", "thresholds", "shades"}
_SCHEMES = {"Cividis"}
_KEPT = {"datasource", "cluster", "namespace", "run"}


@rule
def empty_states(board: Board) -> Iterator[str]:
    """A panel without data says why it has none."""
    for panel in board.panels:
        said = panel["fieldConfig"]["defaults"].get("noValue", "")
        if len(said.split()) < 4:
            yield f"{at(board, panel)} says {said!r} when it is empty"


@rule
def axes_from_zero(board: Board) -> Iterator[str]:
    """Graphs, bars and colours begin at 0, so that lengths compare."""
    for panel in board.panels:
        if panel["type"] != "table" and panel["fieldConfig"]["defaults"].get("min") != 0:
            yield f"{at(board, panel)} does not begin at 0"


@rule
def shared_crosshair(board: Board) -> Iterator[str]:
    """The moment under the pointer is marked in all panels."""
    if board.json["graphTooltip"] != 1:
        yield f"{board.uid} has graphTooltip {board.json['graphTooltip']}"


@rule
def alerts_on_time_axes(board: Board) -> Iterator[str]:
    """Alerts that fired are marked on every time axis."""
    shown = [one for one in board.json["annotations"]["list"] if one["enable"] and not one.get("hide")]
    if not any("ALERTS{" in one["expr"] and one["titleFormat"] == "{{alertname}}" for one in shown):
        yield f"{board.uid} marks no alerts"


@rule
def layout(board: Board) -> Iterator[str]:
    """Panels have numbers of their own, lie within the grid and on no other panel."""
    if len({panel["id"] for panel in board.panels}) < len(board.panels):
        yield f"{board.uid} has panels of one number"
    for panel in board.panels:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 3 or place["h"] < 3 or place["x"] + place["w"] > 24:
            yield f"{at(board, panel)} lies outside of the grid"
    for one, other in combinations(board.panels, 2):
        if _overlap(one["gridPos"], other["gridPos"]):
            yield f"{at(board, one)} lies on {other['title']}"


def _overlap(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


_TRANSFORMATIONS = {"merge", "convertFieldType", "organize", "sortBy", "groupingToMatrix"}
"""Those that Grafana has had since version 8, and that the tests can follow."""


def _columns(panel: Json) -> set[str]:
    """What the columns of a panel's tables may be called before anything is renamed."""
    several = len(panel["targets"]) > 1
    values = {f"Value #{target['refId']}" if several else "Value" for target in panel["targets"]}
    expressions = [filled(target["expr"]) for target in panel["targets"]]
    labels = set().union(*(known_labels(name) for expr in expressions for name in names(expr) & known_series()))
    made = {label for expr in expressions for label in re.findall(r', "(\w+)", "[^"]*", "\w*", "[^"]*"\)', expr)}
    return {"Time", *values, *labels, *made}


@rule
def columns_exist(board: Board) -> Iterator[str]:
    """Transformations are known ones, and what they and the settings of columns name is a column at that point."""
    for panel in board.panels:
        columns = _columns(panel)
        if panel["type"] == "table" and len(panel["targets"]) > 1 and panel["transformations"][0]["id"] != "merge":
            yield f"{at(board, panel)} does not merge its queries"
        for step in panel.get("transformations") or []:
            options = step["options"]
            if step["id"] not in _TRANSFORMATIONS:
                yield f"{at(board, panel)} has the transformation {step['id']}"
            elif step["id"] == "groupingToMatrix":
                used = {options[field] for field in ("columnField", "rowField", "valueField")}
                yield from (f"{at(board, panel)} has no column {name}" for name in used - columns)
                columns = {f"{options['rowField']}\\{options['columnField']}", *PHASE_NAMES}
            elif step["id"] == "organize":
                used = {*options["renameByName"], *options["indexByName"]}
                yield from (f"{at(board, panel)} has no column {name}" for name in used - columns)
                columns = (columns - used) | {options["renameByName"].get(name, name) for name in used}
            else:
                used = {one.get("field") or one.get("targetField") for one in _fields(options)}
                yield from (f"{at(board, panel)} has no column {name}" for name in used - columns)
        for override in panel["fieldConfig"]["overrides"]:
            matcher = override["matcher"]
            if matcher["id"] == "byName" and matcher["options"] not in columns:
                yield f"{at(board, panel)} sets up a column {matcher['options']} that it lacks"
            if matcher["id"] == "byFrameRefID" and matcher["options"] not in {one["refId"] for one in panel["targets"]}:
                yield f"{at(board, panel)} sets up a query {matcher['options']} that it lacks"


def _fields(options: Json) -> list[Json]:
    return list(options.get("sort") or options.get("conversions") or [])


def _links(board: Board) -> Iterator[tuple[str, Json]]:
    """The links from values, with the title of the panel and of the column."""
    for panel in board.panels:
        config = panel["fieldConfig"]
        for link in config["defaults"].get("links") or []:
            yield panel["title"], link
        for override in config["overrides"]:
            for one in override["properties"]:
                if one["id"] == "links":
                    yield f"{panel['title']} {override['matcher']['options']}", one["value"][0]


@rule
def links_between_dashboards(board: Board) -> Iterator[str]:
    """Each dashboard leads to each other one, for the same time range and variables."""
    uids = set(shipped())
    led = set()
    for link in board.json["links"]:
        led.add(link["url"].removeprefix("/d/"))
        if not link["keepTime"] or not link["includeVars"]:
            yield f"{board.uid}: link {link['title']} loses time range or variables"
    for uid in (uids - {board.uid}) ^ led:
        yield f"{board.uid}: link to {uid} is missing or leads nowhere"


@rule
def links_from_values(board: Board) -> Iterator[str]:
    """A link from a value leads to a dashboard that there is, keeps the time range and all that is chosen."""
    uids = set(shipped())
    for where, link in _links(board):
        if link["url"].startswith("https://github.com/rank-exporter/rank-exporter/blob/main/rules/runbooks/"):
            continue
        match = re.fullmatch(r"/d/([a-z-]+)\?(.+)", link["url"])
        if match is None or match[1] not in uids:
            yield f"{board.uid}: {where} leads to {link['url']}"
            continue
        parts = match[2].split("&")
        if parts[0] != "${__url_time_range}":
            yield f"{board.uid}: {where} loses the time range"
        passed = {part[2:].split(":")[0] for part in parts[1:] if part.startswith("${")}
        given = {part.removeprefix("var-").split("=")[0] for part in parts[1:] if part.startswith("var-")}
        own = _KEPT & set(board.variables)
        if (own | _KEPT) - passed - given:
            yield f"{board.uid}: {where} loses {', '.join(sorted(_KEPT - passed - given))}"
        for name in (passed | given) - set(shipped()[match[1]].variables):
            yield f"{board.uid}: {where} passes {name}, which {match[1]} lacks"
        for name in passed - set(board.variables):
            yield f"{board.uid}: {where} passes {name}, which is no variable here"
        if any(
            not re.search(r"=\$\{__value\.raw(:percentencode)?\}$", part) for part in parts if part.startswith("var-")
        ):
            yield f"{board.uid}: {where} passes something else than the value"


def _colours(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Every colour in a panel, with its path."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in ("color", "fixedColor", "iconColor") and isinstance(inner, str):
                yield f"{path}.{key}", inner
            else:
                yield from _colours(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _colours(inner, f"{path}[{number}]")


@rule
def colours_for_all_eyes(board: Board) -> Iterator[str]:
    """Every colour is of the one palette, and no scale runs from red to green."""
    for panel in board.panels:
        for path, colour in _colours(panel["fieldConfig"]):
            if colour not in COLOURS:
                yield f"{at(board, panel)} has the colour {colour} at {path}"
        mode = panel["fieldConfig"]["defaults"].get("color", {}).get("mode", "thresholds")
        if mode not in _MODES:
            yield f"{at(board, panel)} colours by {mode}"
        scheme = panel["options"].get("color", {}).get("scheme") if panel["type"] == "heatmap" else None
        if scheme is not None and scheme not in _SCHEMES:
            yield f"{at(board, panel)} has the scale {scheme}"


def _says_breach(panel: Json, override: Json) -> bool:
    """Whether what an override colours is there only while something is beyond its limit."""
    [target] = [one for one in panel["targets"] if one["refId"] == override["matcher"]["options"]] or [None]
    compared = target is not None and re.search(r" [<>] (on \(|[0-9])", target["expr"])
    return bool(compared) and bool(re.search(r"not met|over|missing", target["legendFormat"]))


@rule
def red_for_breach_alone(board: Board) -> Iterator[str]:
    """Vermilion is on alerts, on what is over its budget and on thresholds, never on what is merely there."""
    for panel in board.panels:
        config = panel["fieldConfig"]
        for step in config["defaults"].get("thresholds", {}).get("steps", []):
            if step["color"] == BREACH and step["value"] is None:
                yield f"{at(board, panel)} is red from the start"
        for mapping in config["defaults"].get("mappings", []):
            for number, result in mapping["options"].items() if mapping["type"] == "value" else ():
                if result.get("color") == BREACH and (number == "0" or result["text"].endswith("?")):
                    yield f"{at(board, panel)} says {result['text']} in red"
        if config["defaults"].get("color", {}).get("fixedColor") == BREACH:
            yield f"{at(board, panel)} is red throughout"
        for override in config["overrides"]:
            red = any(
                one["id"] == "color" and one["value"].get("fixedColor") == BREACH for one in override["properties"]
            )
            if red and not _says_breach(panel, override):
                yield f"{at(board, panel)} has {override['matcher']['options']} in red"

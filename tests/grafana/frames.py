"""What Grafana makes of the answers of Prometheus: tables, and what transformations turn them into.

Written after @grafana/data and the data source for Prometheus, as far as the dashboards use them. A table is a list of
rows, each a dict from column to value; all rows have the same columns, in their order, and None where there is nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .boards import Json

__all__ = ["Row", "displayed", "series_name", "tables", "transformed"]

Row = dict[str, Any]
Table = list[Row]


def series_name(legend: str, labels: Mapping[str, str]) -> str:
    """Return what a series is called in a legend."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda match: labels.get(match[1], ""), legend)


def tables(answers: Mapping[str, Sequence[Json]]) -> list[Table]:
    """Return a table for each query, by its letter, that found anything. ``answers`` are vectors of an instant."""
    found = {ref: answer for ref, answer in answers.items() if answer}
    made = []
    for ref, answer in found.items():
        value = "Value" if len(found) == 1 else f"Value #{ref}"
        labels = sorted({label for one in answer for label in one["metric"]})
        made.append(
            [
                {
                    "Time": one["value"][0],
                    **{label: one["metric"].get(label) for label in labels},
                    value: float(one["value"][1]),
                }
                for one in answer
            ]
        )
    return made


def transformed(steps: Iterable[Json], data: Sequence[Table]) -> list[Table]:
    """Return the tables after a panel's transformations. One that is not known here is a KeyError."""
    known: dict[str, Callable[[Json, Sequence[Table]], list[Table]]] = {
        "merge": _merge,
        "convertFieldType": _convert,
        "organize": _organize,
        "sortBy": _sort,
        "groupingToMatrix": _matrix,
    }
    now = list(data)
    for step in steps:
        now = known[step["id"]](step["options"], now)
    return now


def _merge(_options: Json, data: Sequence[Table]) -> list[Table]:
    if len(data) < 2:
        return list(data)
    columns = list(dict.fromkeys(column for table in data for column in table[0]))
    shared = [column for column in columns if all(column in table[0] for table in data)]
    rows: dict[tuple[Any, ...], Row] = {}
    for table in data:
        for row in table:
            key = tuple(row[column] for column in shared)
            rows.setdefault(key, dict.fromkeys(columns)).update(row)
    return [list(rows.values())]


def _convert(options: Json, data: Sequence[Table]) -> list[Table]:
    wanted = {one["targetField"] for one in options["conversions"] if one["destinationType"] == "number"}
    return [
        [{column: float(value) if column in wanted else value for column, value in row.items()} for row in table]
        for table in data
    ]


def _organize(options: Json, data: Sequence[Table]) -> list[Table]:
    order, renamed, left_out = options["indexByName"], options["renameByName"], options["excludeByName"]

    def place(column: str) -> int:
        return int(order.get(column, len(order)))

    return [
        [
            {
                renamed.get(column) or column: row[column]
                for column in sorted(row, key=place)
                if not left_out.get(column)
            }
            for row in table
        ]
        for table in data
    ]


def _sort(options: Json, data: Sequence[Table]) -> list[Table]:
    [by] = options["sort"]

    def size(row: Row) -> float:
        value = row[by["field"]]
        return -math.inf if value is None or math.isnan(value) else float(value)

    return [
        sorted(table, key=size, reverse=by["desc"]) if table and by["field"] in table[0] else list(table)
        for table in data
    ]


def _matrix(options: Json, data: Sequence[Table]) -> list[Table]:
    if len(data) != 1:
        return list(data)
    across, down, value = options["columnField"], options["rowField"], options["valueField"]
    columns = list(dict.fromkeys(row[across] for row in data[0]))
    corner = f"{down}\\{across}"
    rows: dict[str, Row] = {}
    for row in data[0]:
        rows.setdefault(row[down], {corner: row[down], **dict.fromkeys(columns)})[row[across]] = row[value]
    return [list(rows.values())]


def displayed(panel: Json, value: float) -> str | None:
    """Return the text that a panel's mappings show in place of a value, if any."""
    for mapping in panel["fieldConfig"]["defaults"].get("mappings", []):
        if mapping["type"] == "value" and value == int(value):
            result = mapping["options"].get(str(int(value)))
            if result:
                return str(result["text"])
        if mapping["type"] == "special" and mapping["options"]["match"] == "nan" and math.isnan(value):
            return str(mapping["options"]["result"]["text"])
    return None

"""What a query says: the series and labels that it names, and the unit of what it returns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import promql_parser
import yaml

from rank_exporter.catalog import METRICS

__all__ = [
    "ALERT_LABELS",
    "filled",
    "known_labels",
    "known_series",
    "label_values",
    "names",
    "nodes",
    "selectors",
    "unit",
]

RECORDS = frozenset(
    rule["record"]
    for path in sorted((Path(__file__).parents[2] / "rules" / "recording").glob("*.yaml"))
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
    if "record" in rule
)
_SCRAPED = {"cluster", "namespace"}
ALERT_LABELS = {"alertname", "alertstate", "severity", "run", "rank", "host", "phase", *_SCRAPED}
_LEVELS = {"run": {"run"}, "rank": {"rank", "host"}, "phase": {"phase"}, "host": {"host"}}

_LABEL_VALUES = re.compile(r"label_values\((?P<series>.+), (?P<label>\w+)\)")

_BUILT_IN = {
    "__rate_interval": "1m",
    "__interval": "30s",
    "__range": "1h",
    "__range_s": "3600",
}


def filled(expr: str, **values: str) -> str:
    """Return ``expr`` with Grafana's variables replaced; those that ``values`` lacks become any value at all.

    What stands for a group of a regular expression, such as $1, is no variable and stays.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        return values.get(name, _BUILT_IN.get(name, ".*"))

    return re.sub(r"\$\{([a-z_]\w*)(?::\w+)?\}|\$([a-z_]\w*)", value, expr)


def label_values(query: str) -> tuple[str, str]:
    """Return the series and the label of a variable's query."""
    match = _LABEL_VALUES.fullmatch(query)
    assert match, query
    return match["series"], match["label"]


@cache
def nodes(expr: str) -> list[promql_parser.Expr]:
    """Return all parts of a query, parents first."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expr), pre_visit=found.append)
    return found


def selectors(expr: str) -> Iterator[promql_parser.VectorSelector]:
    """Yield the series that a query reads, with their matchers."""
    for node in nodes(expr):
        if isinstance(node, promql_parser.VectorSelector):
            yield node
        elif isinstance(node, promql_parser.MatrixSelector):
            yield node.vector_selector


def names(expr: str) -> set[str]:
    """Return the names of the series that a query reads."""
    return {selector.name for selector in selectors(expr)}


@cache
def known_series() -> set[str]:
    """Return every series that a dashboard may name."""
    return {name for metric in METRICS for name in metric.series_names} | RECORDS | {"ALERTS", "ALERTS_FOR_STATE"}


@cache
def known_labels(name: str) -> set[str]:
    """Return the labels that a series of this name may have."""
    if name.startswith("ALERTS"):
        return ALERT_LABELS
    if ":" in name:
        level = name.partition(":")[0].split("_")
        return _SCRAPED | {"window"} | set().union(*(_LEVELS[part] for part in level))
    [metric] = [metric for metric in METRICS if name in metric.series_names]
    return _SCRAPED | set(metric.labels) | ({"le"} if name.endswith("_bucket") else set())


Unit = dict[str, int]
"""Powers of base units: seconds ``s`` and ``bytes``. Empty: a ratio or a count."""


def unit(node: promql_parser.Expr) -> Unit:
    """Return the unit of what a part of a query returns. A mean is a sum of observations divided by their count."""
    if isinstance(node, promql_parser.VectorSelector | promql_parser.MatrixSelector):
        return _of_series(getattr(node, "vector_selector", node).name)
    if isinstance(node, promql_parser.ParenExpr | promql_parser.SubqueryExpr | promql_parser.UnaryExpr):
        return unit(node.expr)
    if isinstance(node, promql_parser.AggregateExpr):
        return {} if str(node.op) in ("count", "count_values") else unit(node.expr)
    if isinstance(node, promql_parser.Call):
        return _of_call(node)
    if isinstance(node, promql_parser.BinaryExpr):
        return _of_binary(node)
    assert isinstance(node, promql_parser.NumberLiteral), node
    return {}


def _of_series(name: str) -> Unit:
    if name == "ALERTS_FOR_STATE":
        return {"s": 1}
    if name.endswith(":rate"):
        return {"s": -1}
    if not name.endswith(("_bucket", "_count", ":ratio", ":count")) and "_seconds" in name:
        return {"s": 1}
    return {"bytes": 1} if name.endswith("_bytes") else {}


def _times(left: Unit, right: Unit, sign: int) -> Unit:
    powers = {key: left.get(key, 0) + sign * right.get(key, 0) for key in {*left, *right}}
    return {key: power for key, power in powers.items() if power}


_LIKE_ARGUMENT = {"increase", "clamp_min", "label_replace", "round", "avg_over_time", "sum_over_time"}


def _of_call(node: promql_parser.Call) -> Unit:
    name = node.func.name
    if name == "time":
        return {"s": 1}
    if name == "histogram_quantile":
        [bucket] = names(node.args[1].prettify())
        return _of_series(bucket.removesuffix("_bucket"))
    if name == "rate":
        return _times(unit(node.args[0]), {"s": 1}, -1)
    assert name in _LIKE_ARGUMENT, f"function {name} has no unit here; add it"
    return unit(node.args[0])


def _of_binary(node: promql_parser.BinaryExpr) -> Unit:
    left, right, op = unit(node.lhs), unit(node.rhs), str(node.op)
    if op in ("*", "/"):
        return _times(left, right, 1 if op == "*" else -1)
    if op in ("+", "-", "or", ">", "<", ">=", "<="):
        # A number that is added or compared with has the unit of the other side.
        bare = [_is_number(side) for side in (node.lhs, node.rhs)]
        assert left == right or any(bare), f"{op} of unlike units {left} and {right} in {node.prettify()}"
    return left


def _is_number(node: promql_parser.Expr) -> bool:
    """Whether a part is a bare number, or a series made one: times 0 or times NaN."""
    if isinstance(node, promql_parser.ParenExpr):
        return _is_number(node.expr)
    if isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "*":
        factor = node.rhs
        return isinstance(factor, promql_parser.NumberLiteral) and (factor.val == 0 or math.isnan(factor.val))
    return isinstance(node, promql_parser.NumberLiteral)

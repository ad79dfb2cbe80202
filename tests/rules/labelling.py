"""Which labels the results of a PromQL expression have, as far as names tell: what joins must agree on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import promql_parser

from rank_exporter.catalog import METRICS

__all__ = ["AmbiguousJoinError", "labels_of"]

RUN = frozenset({"cluster", "namespace", "run"})
LEVELS = {
    "run": RUN,
    "run_phase": RUN | {"phase"},
    "run_rank": RUN | {"rank", "host"},
    "run_rank_phase": RUN | {"rank", "host", "phase"},
}
"""What a record's level promises, beyond which its results have the label window at the most."""

_SCRAPED = RUN | {"instance"}
_PUBLISHED = {name: _SCRAPED | set(metric.labels) for metric in METRICS for name in metric.series_names}
_OFTEN_FIXED = {"phase", "window"}
_SETS = {"and", "or", "unless"}


class AmbiguousJoinError(Exception):
    """Several series of the side that must be unique could match one of the other."""


def labels_of(expr: promql_parser.Expr, records: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Labels that distinguish the results of ``expr``. ``records``: those of each record that it may read.

    Raises AmbiguousJoinError where a binary operation could match many to many, and KeyError for an unknown series.
    """
    match expr:
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr() | promql_parser.SubqueryExpr():
            labels = labels_of(expr.expr, records)
        case promql_parser.VectorSelector():
            labels = _of_selector(expr, records)
        case promql_parser.MatrixSelector():
            labels = _of_selector(expr.vector_selector, records)
        case promql_parser.AggregateExpr():
            inner, named = labels_of(expr.expr, records), frozenset(expr.modifier.labels)
            labels = inner & named if expr.modifier.type == promql_parser.AggModifierType.By else inner - named
        case promql_parser.Call():
            labels = _of_call(expr, records)
        case promql_parser.BinaryExpr():
            labels = _of_operation(expr, records)
        case _:
            labels = frozenset()
    return labels


def _of_selector(selector: promql_parser.VectorSelector, records: Mapping[str, frozenset[str]]) -> frozenset[str]:
    known = {**_PUBLISHED, **records}
    labels = known[selector.name] | ({"le"} if selector.name.endswith("_bucket") else set())
    fixed = {one.name for one in selector.matchers.matchers if one.op == promql_parser.MatchOp.Equal}
    return frozenset(labels - fixed)


def _of_call(call: promql_parser.Call, records: Mapping[str, frozenset[str]]) -> frozenset[str]:
    vectors = [arg for arg in call.args if not _is_scalar(arg)]
    inner = labels_of(vectors[0], records) if vectors else frozenset()
    if call.func.name == "histogram_quantile":
        return inner - {"le"}
    if call.func.name == "label_replace":
        return inner
    return frozenset() if call.func.name == "scalar" else inner


def _of_operation(operation: promql_parser.BinaryExpr, records: Mapping[str, frozenset[str]]) -> frozenset[str]:
    if _is_scalar(operation.lhs) or _is_scalar(operation.rhs):
        return labels_of(operation.rhs if _is_scalar(operation.lhs) else operation.lhs, records)
    left, right = labels_of(operation.lhs, records), labels_of(operation.rhs, records)
    matching = operation.modifier.matching if operation.modifier else None
    if matching is None and (left ^ right) - _OFTEN_FIXED and str(operation.op) not in _SETS:
        raise AmbiguousJoinError(f"on what is not said, and labels differ: {operation.prettify()}")
    on = frozenset(matching.labels) if matching else left | right
    if str(operation.op) in _SETS:
        return left | right if str(operation.op) == "or" else left
    card = operation.modifier.card if operation.modifier else promql_parser.VectorMatchCardinality.OneToOne
    if card == promql_parser.VectorMatchCardinality.ManyToOne:
        _must_be_unique(right, on, operation)
        return left
    if card == promql_parser.VectorMatchCardinality.OneToMany:
        _must_be_unique(left, on, operation)
        return right
    _must_be_unique(left, on, operation)
    _must_be_unique(right, on, operation)
    return left & on


def _must_be_unique(labels: Iterable[str], on: frozenset[str], operation: promql_parser.BinaryExpr) -> None:
    if rest := set(labels) - on:
        raise AmbiguousJoinError(f"series that differ in {sorted(rest)} match one: {operation.prettify()}")


def _is_scalar(expr: promql_parser.Expr) -> bool:
    match expr:
        case promql_parser.NumberLiteral() | promql_parser.StringLiteral():
            return True
        case promql_parser.ParenExpr() | promql_parser.UnaryExpr():
            return _is_scalar(expr.expr)
        case promql_parser.BinaryExpr():
            return _is_scalar(expr.lhs) and _is_scalar(expr.rhs)
        case _:
            return False

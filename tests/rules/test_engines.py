"""The pack keeps to what all engines agree on: Prometheus 2.40 and 3, the rulers of Mimir and Thanos, and vmalert.

Prometheus 3 looks back over ranges that are open to the left, writes ``le`` as a float ("1.0") and takes names in
UTF-8; it renamed holt_winters and keeps new functions behind a flag. keep_firing_for came with Prometheus 2.42, Thanos
0.31, Mimir 2.7 and vmalert 1.91, and an engine that is older refuses the whole file for a key that it does not know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import promql_parser
import pytest
import yaml

from rank_exporter import rulepack

GROUPS: list[dict[str, Any]] = yaml.load(rulepack.render(), Loader=yaml.CSafeLoader)["groups"]
RULES: list[dict[str, Any]] = [rule for group in GROUPS for rule in group["rules"]]
LEGACY_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
SCRAPES = timedelta(seconds=15)
EVERYWHERE = frozenset(
    {"abs", "absent", "ceil", "changes", "clamp", "clamp_max", "clamp_min", "delta", "deriv", "floor", "round", "sgn"}
    | {"histogram_quantile", "idelta", "increase", "irate", "rate", "resets", "label_join", "label_replace", "sqrt"}
    | {"avg_over_time", "count_over_time", "last_over_time", "max_over_time", "min_over_time", "present_over_time"}
    | {"quantile_over_time", "stddev_over_time", "sum_over_time", "scalar", "sort", "sort_desc", "time", "timestamp"}
    | {"vector"}
)
"""Functions with one meaning since Prometheus 2.40 in every engine."""
NEWEST = frozenset({"last_over_time", "present_over_time"})

each_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.get("record") or rule["alert"] for rule in RULES])


def _nodes(rule: dict[str, Any]) -> Iterator[Any]:
    queries = re.findall(r"`([^`]*)`", " ".join(rule.get("annotations", {}).values()))
    for query in (rule["expr"], *(query.replace("%q", '"x"') for query in queries)):
        found: list[Any] = []
        promql_parser.walk(promql_parser.parse(query), pre_visit=found.append)
        for node in found:
            yield node
            if isinstance(node, promql_parser.MatrixSelector):
                yield node.vector_selector


def test_rules_have_no_key_that_an_engine_may_not_know() -> None:
    """An unknown key fails the file, not the rule."""
    for group in GROUPS:
        assert group.keys() == {"name", "interval", "rules"}
    for rule in RULES:
        assert rule.keys() <= {"record", "alert", "expr", "for", "labels", "annotations"}


@each_rule
def test_functions_and_modifiers_are_those_that_every_engine_has(rule: dict[str, Any]) -> None:
    """Nothing renamed, nothing behind a flag, no time but that of the evaluation, no look ahead."""
    for node in _nodes(rule):
        if isinstance(node, promql_parser.Call):
            assert node.func.name in EVERYWHERE
        if isinstance(node, (promql_parser.VectorSelector, promql_parser.SubqueryExpr)):
            assert node.at is None
            assert node.offset is None or node.offset > timedelta(0)


@each_rule
def test_no_result_hangs_on_the_left_edge_of_a_range(rule: dict[str, Any]) -> None:
    """Whether a sample on the edge counts differs, so ranges hold many samples, and subqueries many steps.

    What asks for the last sample alone does not mind.
    """
    nodes = list(_nodes(rule))
    last = [node.args[0] for node in nodes if isinstance(node, promql_parser.Call) and node.func.name in NEWEST]
    newest = {str(argument) for argument in last}
    for node in nodes:
        if isinstance(node, promql_parser.MatrixSelector):
            assert node.range >= (4 if str(node) in newest else 8) * SCRAPES
        if isinstance(node, promql_parser.SubqueryExpr):
            assert node.step is not None
            assert node.range >= 4 * node.step


@each_rule
def test_no_bucket_is_chosen_by_the_text_of_its_edge(rule: dict[str, Any]) -> None:
    """One edge is 1 or 1.0, as the engine has it."""
    for node in _nodes(rule):
        if isinstance(node, promql_parser.VectorSelector):
            assert all(matcher.name != "le" or matcher.value == "+Inf" for matcher in node.matchers.matchers)


@each_rule
def test_names_need_no_utf8(rule: dict[str, Any]) -> None:
    """Engines that know no other names take these."""
    names = [rule.get("record", "x"), *rule.get("labels", {})]
    for node in _nodes(rule):
        if isinstance(node, promql_parser.VectorSelector):
            names += [node.name or "x", *(matcher.name for matcher in node.matchers.matchers)]
    assert all(LEGACY_NAME.fullmatch(name) for name in names)


@pytest.mark.parametrize("alert", [rule for rule in RULES if "alert" in rule], ids=lambda rule: rule["alert"])
def test_labels_that_may_be_missing_are_never_given_to_a_query_as_they_are(alert: dict[str, Any]) -> None:
    """To vmalert a label that is not there is nothing, %q of which fails the query, and with it the whole alert."""
    for text in alert["annotations"].values():
        for action in re.findall(r"\{\{.*?\}\}", text, re.DOTALL):
            if "query" in action and "printf" in action:
                bare = re.sub(r"\(or \$labels\.\w+ \"\"\)", "", action)
                assert not re.search(r"\$labels\.(cluster|namespace)\b", bare)

"""What promtool cannot know of the rule files, the runbooks and the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.catalog import METRICS
from rank_exporter.phases import PHASE_NAMES

PUBLISHED = {name for metric in METRICS for name in metric.series_names}
RULES: list[dict[str, Any]] = [rule for group in yaml.safe_load(rulepack.render())["groups"] for rule in group["rules"]]
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
ALERTS = {alert.name: alert for alert in rulepack.alerts()}
RUN = {"cluster", "namespace", "run"}
RUNBOOK_HEADINGS = ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"]

each_rule = pytest.mark.parametrize("rule", RULES, ids=[rule.get("record") or rule["alert"] for rule in RULES])
each_alert = pytest.mark.parametrize("alert", ALERTS.values(), ids=ALERTS.keys())


def _nodes(query: str) -> list[promql_parser.Expr]:
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(query), pre_visit=found.append)
    return found


def _selectors(query: str) -> Iterator[promql_parser.VectorSelector]:
    for node in _nodes(query):
        if isinstance(node, promql_parser.VectorSelector):
            yield node
        elif isinstance(node, promql_parser.MatrixSelector):
            yield node.vector_selector


def _annotation_queries(rule: dict[str, Any]) -> list[str]:
    text = " ".join(rule.get("annotations", {}).values())
    return [query.replace("%q", '"x"') for query in re.findall(r"printf `([^`]*)`", text)]


def _assert_known(query: str) -> None:
    selectors = list(_selectors(query))
    assert selectors
    for selector in selectors:
        assert selector.name in PUBLISHED | RECORDS
        for matcher in selector.matchers.matchers:
            if matcher.name == "phase" and matcher.value != "x":
                assert set(matcher.value.split("|")) <= set(PHASE_NAMES)


@each_rule
def test_every_series_read_is_published_or_recorded(rule: dict[str, Any]) -> None:
    """A misspelt series or phase is empty for ever, and an alert on it silent for ever."""
    for query in (rule["expr"], *_annotation_queries(rule)):
        _assert_known(query)


@each_rule
def test_runs_are_never_mixed(rule: dict[str, Any]) -> None:
    """Clusters and namespaces may use one name for their runs: what aggregates or joins keeps all three labels."""
    for node in _nodes(rule["expr"]):
        if isinstance(node, promql_parser.AggregateExpr):
            assert node.modifier is not None
            by = node.modifier.type == promql_parser.AggModifierType.By
            assert set(node.modifier.labels) >= RUN if by else not RUN & set(node.modifier.labels)
        elif isinstance(node, promql_parser.BinaryExpr) and node.modifier is not None and node.modifier.matching:
            assert set(node.modifier.matching.labels) >= RUN


@each_rule
def test_level_of_a_record_names_its_labels(rule: dict[str, Any]) -> None:
    """A rule for a run has no label of a rank, and one for a rank names its host as well."""
    outer = promql_parser.parse(rule["expr"])
    level = rule.get("record", ":").split(":")[0]
    if level.startswith("run") and isinstance(outer, promql_parser.AggregateExpr):
        assert ("rank" in outer.modifier.labels) == ("rank" in level)
        assert ("host" in outer.modifier.labels) == ("rank" in level)


@each_rule
def test_quantiles_drop_ranks_without_observations(rule: dict[str, Any]) -> None:
    """A quantile of no observations is NaN, which a quantile over ranks would take for the smallest value."""
    compared = [
        node.lhs
        for node in _nodes(rule["expr"])
        if isinstance(node, promql_parser.BinaryExpr) and isinstance(node.rhs, promql_parser.NumberLiteral)
    ]
    guarded = sum("histogram_quantile" in str(lhs).split("(")[0] for lhs in compared)
    assert rule["expr"].count("histogram_quantile") == guarded


@each_rule
def test_no_window_in_a_name_and_no_topk(rule: dict[str, Any]) -> None:
    """Windows scale, so names cannot tell them; the changing winner of a topk restarts the wait of an alert."""
    assert not re.search(r"\d+(s|m|h)\b", rule.get("record", ""))
    assert "topk" not in rule["expr"]


def test_windows_differ_in_their_durations_alone() -> None:
    """The rules of the longer window are those of the shorter one."""

    def block(window: str) -> list[tuple[str, str]]:
        rules = [rule for rule in RULES if rule.get("labels", {}).get("window") == window]
        return [
            (rule["record"], re.sub(r"\[\d+m\]", "[]", rule["expr"]).replace(f'"{window}"', '"WINDOW"'))
            for rule in rules
        ]

    assert len(block("short")) == 5
    assert block("long") == block("short")


@each_alert
def test_alert_names_rank_host_shard_and_skew(alert: rulepack.Alert) -> None:
    """The one line that is read on a phone says who, where and how much; a machine finds the same by itself."""
    [rule] = [rule for rule in RULES if rule.get("alert") == alert.name]
    annotations = rule["annotations"]
    assert list(annotations) == ["summary", "description", "shard", "skew", "runbook_url"]
    for part in ("$labels.run", "$labels.rank", "$labels.host", annotations["shard"], annotations["skew"]):
        assert part in annotations["summary"]
    assert alert.severity in {"critical", "warning"}


@each_alert
def test_runbook_has_its_parts_and_queries_what_exists(alert: rulepack.Alert) -> None:
    """Whoever follows a runbook at night can paste its queries."""
    lines = alert.runbook.splitlines()
    assert lines[0] == f"# {alert.name}"
    assert [line for line in lines if line.startswith("## ")] == RUNBOOK_HEADINGS
    queries = re.findall(r"```promql\n(.*?)```", alert.runbook, re.DOTALL)
    assert queries
    for query in queries:
        _assert_known(query)
    for name in re.findall(r"`(training_\w+)`", alert.runbook):
        assert name in PUBLISHED


def _only(pattern: str) -> str:
    """What all matches in the straggler rules' expressions agree on."""
    [found] = {match for rule in RULES for match in re.findall(pattern, rule["expr"])}
    return found


@each_alert
def test_runbook_has_the_numbers_of_the_rules(alert: rulepack.Alert) -> None:
    """A runbook that contradicts its alert is worse than none."""
    [held] = [rule["for"] for rule in RULES if rule.get("alert") == alert.name]
    windows = {
        name: _range_minutes(rule["expr"])
        for rule in RULES
        if (name := rule.get("labels", {}).get("window")) and "[" in rule["expr"]
    }
    text = " ".join(alert.runbook.split())
    assert f"for {held[:-1]} minutes" in text
    assert f"over {windows['short']} minutes and over {windows['long']} minutes" in text
    assert f"a window counts from {_only(r'effective.* >= ([0-9]+)')} steps on" in text
    assert f"fewer than {_only(r'judged.* >= ([0-9]+)')} steps" in text
    assert f"at least {float(_only(r'([0-9.]+) [*] max by')):.0%}".replace("%", " %") in text
    assert f"if {windows['recent']} minutes hold fewer than {_only(r'comparable.* >= ([0-9]+)')} steps" in text
    [[own, other]] = {
        tuple(re.findall(r"histogram_quantile\(\s*([0-9.]+)", rule["expr"]))
        for rule in RULES
        if rule.get("record", "").endswith({"input_ready": ":low_quantile"}.get(_phase(alert), ":high_quantile"))
    }
    assert f"the quantile {own} of its " in text
    assert f"({other} where the window holds" in text


def _range_minutes(expr: str) -> str:
    [minutes] = set(re.findall(r"\[(\d+)m\]", expr))
    return minutes


def _phase(alert: rulepack.Alert) -> str | None:
    [rule] = [rule for rule in RULES if rule.get("alert") == alert.name]
    return rule["labels"].get("phase")


def test_no_runbook_without_an_alert() -> None:
    """A runbook of an alert that is gone misleads."""
    folder = Path(rulepack.__file__).parent / "rules" / "runbooks"
    assert {file.stem for file in folder.iterdir()} == ALERTS.keys()

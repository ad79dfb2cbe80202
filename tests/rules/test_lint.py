"""What promtool cannot know of the rule files, the runbooks and the catalog."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.catalog import METRICS
from rank_exporter.phases import PHASE_NAMES

from .labelling import LEVELS, RUN, AmbiguousJoinError, labels_of

PUBLISHED = {name for metric in METRICS for name in metric.series_names}
RULES: list[dict[str, Any]] = [
    rule for group in yaml.load(rulepack.render(), Loader=yaml.CSafeLoader)["groups"] for rule in group["rules"]
]
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
ALERTS = {alert.name: alert for alert in rulepack.alerts()}
STRAGGLERS = ("TrainingInputStraggler", "TrainingComputeStraggler")
NAMED = (*STRAGGLERS, "TrainingBatchSkew", "TrainingTailStraggler")
CASES = Path(__file__).with_name("run.yaml")
RUNBOOK_HEADINGS = ["## Meaning", "## Impact", "## Diagnosis", "## Mitigation"]


def _names() -> list[str]:
    names = [rule.get("record") or rule["alert"] for rule in RULES]
    windows = [rule.get("labels", {}).get("window", "") for rule in RULES]
    return [f"{name} {window}".strip() for name, window in zip(names, windows, strict=True)]


each_rule = pytest.mark.parametrize("rule", RULES, ids=_names())
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


def _assert_known(query: str, besides: Collection[str] = ()) -> None:
    selectors = list(_selectors(query))
    assert selectors
    for selector in selectors:
        assert selector.name in {*PUBLISHED, *RECORDS, *besides}
        for matcher in selector.matchers.matchers:
            if matcher.name == "phase" and matcher.value not in {"x", "PHASE"}:
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


def _labels_of_records() -> dict[str, frozenset[str]]:
    """What distinguishes the results of each record; a window does where there are several."""
    found: dict[str, frozenset[str]] = {}
    windows: dict[str, set[str]] = {}
    for rule in RULES:
        if record := rule.get("record"):
            labels = labels_of(promql_parser.parse(rule["expr"]), found)
            fixed = rule.get("labels", {})
            windows.setdefault(record, set()).add(fixed.get("window", "any" if "window" in labels else ""))
            if windows[record] & {"any"} or len(windows[record]) > 1:
                labels |= {"window"}
            else:
                labels -= {"window"}
            found[record] = found.get(record, frozenset()) | labels | ({"phase"} & fixed.keys())
    return found


def test_no_join_matches_many_to_many_and_records_have_the_labels_of_their_level() -> None:
    """Each side that must be unique is, by its labels: not only with the series that a test happens to have."""
    for record, labels in _labels_of_records().items():
        assert labels - {"window"} <= LEVELS[record.split(":")[0]], record


@each_alert
def test_joins_of_alerts_are_unambiguous(alert: rulepack.Alert) -> None:
    """An alert that fails to evaluate is silent, and a run's alert has no label of a rank."""
    labels = labels_of(promql_parser.parse(alert.expr), _labels_of_records())
    assert "window" not in labels
    assert {"rank", "host"} <= labels or not {"rank"} & labels


@pytest.mark.parametrize(
    "expr",
    [
        "training_steps_total / on (cluster, namespace, run) training_samples_total",
        "training_steps_total / on (cluster, namespace, run) group_left () training_world_size",
        "training_steps_total > on (cluster, namespace, run) group_right () training_world_size",
        "training_steps_total - training_world_size",
    ],
)
def test_the_lint_finds_joins_that_are_ambiguous(expr: str) -> None:
    """What it is for."""
    with pytest.raises(AmbiguousJoinError):
        labels_of(promql_parser.parse(expr), {})


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
def test_divisors_are_never_nought(rule: dict[str, Any]) -> None:
    """A division by the time or the steps of a rank that did none is NaN or infinite."""
    for node in _nodes(rule["expr"]):
        if isinstance(node, promql_parser.BinaryExpr) and str(node.op) == "/":
            divisor = node.rhs.prettify()
            positive = re.search(r">\s*0|>=|:comparable|:count|count by|training_aligned_ranks", divisor)
            assert positive or isinstance(node.rhs, promql_parser.NumberLiteral) or _is_positive(divisor), divisor


def _is_positive(divisor: str) -> bool:
    """What is above 0 whenever it is there: means of steps, which have been guarded where they are recorded."""
    return re.fullmatch(r"run_phase:training_phase_duration_seconds:median_mean\{phase=\"step\"\}", divisor) is not None


@each_rule
def test_no_window_in_a_name_and_no_topk(rule: dict[str, Any]) -> None:
    """Windows scale, so names cannot tell them; the changing winner of a topk restarts the wait of an alert."""
    assert not re.search(r"\d+(s|m|h)\b", rule.get("record", ""))
    assert "topk" not in rule["expr"]
    assert "bottomk" not in rule["expr"]


@each_rule
def test_nothing_needs_a_newer_prometheus_or_another_ruler(rule: dict[str, Any]) -> None:
    """What Prometheus 2.40 does not know, or only with a feature switched on, is not used, nor the text of a bucket."""
    assert "keep_firing_for" not in rule
    assert not re.search(r"@\s|\bhistogram_(fraction|avg|stddev)\b|\binfo\(|\bmad_over_time\b", rule["expr"])
    assert not re.search(r"\ble ?=", rule["expr"])


def _in_window(window: str) -> dict[str, str]:
    return {
        rule["record"]: re.sub(r"\[\d+m\]", "[]", rule["expr"]).replace(f'"{window}"', '"WINDOW"')
        for rule in RULES
        if rule.get("labels", {}).get("window") == window
    }


def test_windows_differ_in_their_durations_alone() -> None:
    """The rules of a longer window are those of the shorter ones."""
    recent, short, long = (_in_window(window) for window in ("recent", "short", "long"))
    assert len(recent) == 6
    assert recent.items() <= short.items()
    assert long.items() <= short.items()
    assert recent.keys() <= long.keys()


def test_the_number_of_series_is_what_the_rule_file_says() -> None:
    """The count is tested with the others' cases; this holds that the file states it."""
    [case] = [case for case in yaml.safe_load(CASES.read_text()) if case["name"].startswith("everything")]
    rank, run = (test["exp_samples"][0]["value"] for test in case["promql_expr_test"] if "__name__" in test["expr"])
    text = (Path(rulepack.__file__).parent / "rules" / "recording" / "ranks.yaml").read_text()
    assert f"{rank} series for each rank and {run} for the run" in text


@each_alert
def test_alert_says_what_and_where(alert: rulepack.Alert) -> None:
    """Each has a severity, a line, a text, a dashboard and a runbook, and says which run it is."""
    for rule in (rule for rule in RULES if rule.get("alert") == alert.name):
        annotations = rule["annotations"]
        assert rule["labels"]["severity"] in {"critical", "warning"}
        assert rule["for"]
        assert list(annotations)[:2] == ["summary", "description"]
        assert list(annotations)[-2:] == ["dashboard_url", "runbook_url"]
        assert "$labels.run" in annotations["summary"]
        assert annotations["dashboard_url"].startswith(f"{rulepack.DASHBOARD_BASE}/d/rank-exporter-") or (
            annotations["dashboard_url"].startswith(rulepack.DASHBOARD_BASE + "{{ if $labels.rank }}/d/rank-exporter-")
        )
        for label in re.findall(r"\$labels\.(\w+) \|", annotations["dashboard_url"]):
            assert f"$labels.{label} | urlquery" in annotations["dashboard_url"]


@pytest.mark.parametrize("name", NAMED)
def test_alert_names_rank_host_shard_and_skew(name: str) -> None:
    """The one line that is read on a phone says who, where and how much; a machine finds the same by itself."""
    for rule in (rule for rule in RULES if rule.get("alert") == name):
        annotations = rule["annotations"]
        for part in ("$labels.run", "$labels.rank", "$labels.host", annotations["shard"]):
            assert part in annotations["summary"]
        assert "budget" in annotations["summary"]
        assert "budget" in annotations["skew"]
        assert annotations["cost"] in annotations["description"]


@each_alert
def test_runbook_has_its_parts_and_queries_what_exists(alert: rulepack.Alert) -> None:
    """Whoever follows a runbook at night can paste its queries."""
    lines = alert.runbook.splitlines()
    assert lines[0] == f"# {alert.name}"
    assert [line for line in lines if line.startswith("## ")] == RUNBOOK_HEADINGS
    queries = re.findall(r"```promql\n(.*?)```", alert.runbook, re.DOTALL)
    assert queries
    for query in queries:
        _assert_known(query, besides={"up"})
    for name in re.findall(r"`(training_\w+)`", alert.runbook):
        assert name in PUBLISHED
    assert re.search(r"^ *\| (you see|reason) \|", alert.runbook, re.MULTILINE)


def _only(pattern: str) -> str:
    """What all matches in the rules' expressions agree on."""
    [found] = {match for rule in RULES for match in re.findall(pattern, rule["expr"])}
    return found


@each_alert
def test_runbook_has_how_long_its_alert_waits(alert: rulepack.Alert) -> None:
    """A runbook that contradicts its alert is worse than none."""
    [held] = {rule["for"] for rule in RULES if rule.get("alert") == alert.name}
    meaning = " ".join(alert.runbook.split("## Impact")[0].split())
    assert re.search("for another minute|for a minute" if held == "1m" else rf"\b{held[:-1]} minutes", meaning)


@pytest.mark.parametrize("name", STRAGGLERS)
def test_runbook_has_the_numbers_of_the_rules(name: str) -> None:
    """The windows, the steps they need, and the quantiles, as the rules have them."""
    windows = {
        window: re.findall(r"\[(\d+)m\]", rule["expr"])[0]
        for rule in RULES
        if (window := rule.get("labels", {}).get("window")) and "[" in rule["expr"]
    }
    text = " ".join(ALERTS[name].runbook.split())
    assert f"over {windows['recent']}, {windows['short']} and {windows['long']} minutes" in text
    assert f"a window counts from {_only(r'effective >= ([0-9]+)')} steps on" in text
    assert (
        f"at least {float(_only(r'([0-9.]+) [*] max by .* .run_rank:training_steps:increase')):.0%}".replace("%", " %")
        in text
    )
    suffix = {"TrainingInputStraggler": ":low_quantile"}.get(name, ":high_quantile")
    [own] = {
        quantile
        for rule in RULES
        if rule.get("record", "").endswith(suffix)
        for quantile in re.findall(r"histogram_quantile\(\s*([0-9.]+)", rule["expr"])
    }
    assert f"the quantile {own} of its " in text


def test_no_runbook_without_an_alert() -> None:
    """A runbook of an alert that is gone misleads."""
    folder = Path(rulepack.__file__).parent / "rules" / "runbooks"
    assert {file.stem for file in folder.iterdir()} == ALERTS.keys()

"""Names that several parts must agree on: metrics, records, alerts, runbooks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from rank_exporter.catalog import METRICS

ROOT = Path(__file__).parents[2]
METRIC_NAME = re.compile(r"(?<![\w:])training_[a-z0-9_]+")
RECORD_NAME = re.compile(r"\b(?:run|run_rank|run_rank_phase|run_phase|rank)[a-z_]*:training_[a-z0-9_]+:[a-z0-9_]+\b")
SERIES = {name for metric in METRICS for name in metric.series_names} | {metric.name for metric in METRICS}

RULE_FILES = sorted((ROOT / "rules").rglob("*.yaml"))
RULES = [
    rule
    for path in RULE_FILES
    for group in yaml.load(path.read_text(), Loader=yaml.CSafeLoader)["groups"]
    for rule in group["rules"]
]
RECORDS = {rule["record"] for rule in RULES if "record" in rule}
ALERTS = {rule["alert"] for rule in RULES if "alert" in rule}
TEXTS = [
    path
    for pattern in ("rules/**/*.yaml", "rules/**/*.md", "rules/**/*.tmpl", "grafana/dashboards/*.json", "README.md")
    for path in sorted(ROOT.glob(pattern))
]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_metric_named_exists(path: Path) -> None:
    """Rules, runbooks, dashboards and README name no metric that the catalog does not list."""
    text = path.read_text()
    unknown = set(METRIC_NAME.findall(text)) - SERIES
    assert not unknown
    assert not set(RECORD_NAME.findall(text)) - RECORDS


@pytest.mark.parametrize("alert", sorted(ALERTS))
def test_every_alert_has_a_runbook_and_tests_that_fire_and_stay_silent(alert: str) -> None:
    """A page without a runbook, or one that was never seen to fire, is not shipped."""
    headings = re.findall(r"^## (.+)$", (ROOT / "rules" / "runbooks" / f"{alert}.md").read_text(), re.MULTILINE)
    assert headings == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    tests = "\n".join(path.read_text() for path in sorted((ROOT / "tests" / "rules").glob("*")) if path.is_file())
    assert re.search(rf"\b{alert}\b", tests)


def test_every_runbook_has_an_alert() -> None:
    """No runbook outlives its alert."""
    assert {path.stem for path in (ROOT / "rules" / "runbooks").glob("*.md")} == ALERTS


def test_scraping_owns_its_labels() -> None:
    """No metric carries a label that Prometheus or its operator adds."""
    reserved = {"job", "instance", "pod", "namespace", "container", "endpoint", "cluster"}
    for metric in METRICS:
        assert not reserved & set(metric.labels), metric.name


def test_names_follow_the_conventions() -> None:
    """Counters end in _total, nothing else does, and durations are in seconds."""
    for metric in METRICS:
        assert metric.name.endswith("_total") == (metric.kind == "counter"), metric.name
        assert not re.search(r"_(ms|milliseconds|minutes|us)(_|$)", metric.name), metric.name
        assert metric.help.endswith("."), metric.name

"""The PrometheusRule is the rule pack, with no more changed than values ask for."""

from __future__ import annotations

import subprocess

import pytest
import yaml

from rank_exporter import rulepack


@pytest.fixture
def groups(render, find):
    """The rendered groups with the values of prometheusRule that are given."""

    def render_groups(**values):
        (rule,) = find(render({"prometheusRule": values}), "PrometheusRule")
        return rule["spec"]["groups"]

    return render_groups


@pytest.fixture
def pack():
    """The groups as `rank-exporter rules` has them."""
    return yaml.safe_load(rulepack.render(format="prometheusrule"))["spec"]["groups"]


def _rules(groups):
    return {
        rule.get("alert") or (rule["record"], str(rule.get("labels"))): rule
        for group in groups
        for rule in group["rules"]
    }


def test_rules_are_those_of_the_pack(groups, pack):
    """Groups, order, expressions, labels and annotations are the pack's, with {{ $labels }} as written."""
    rendered = groups()
    assert rendered == pack
    assert "{{ $labels.rank }}" in _rules(rendered)["TrainingInputStraggler"]["annotations"]["summary"]


def test_promtool_accepts_the_rules(render, find, ci_values, tmp_path):
    """Whatever the values, promtool takes the rendered groups as a rule file."""
    for number, rule in enumerate(find(render(ci_values), "PrometheusRule")):
        path = tmp_path / f"{number}.yaml"
        path.write_text(yaml.safe_dump(rule["spec"]))
        done = subprocess.run(["promtool", "check", "rules", path], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_budget_replaces_each_runs_own(groups, pack):
    """skewBudgetRatio changes the one record that alerts and annotations read, and nothing else."""
    rendered, expected = _rules(groups(skewBudgetRatio=0.15)), _rules(pack)
    changed = {key for key in expected if rendered[key] != expected[key]}
    (key,) = changed
    assert key[0] == "run:training_skew_budget:ratio"
    before, after = expected[key]["expr"], rendered[key]["expr"]
    assert after.split() == ["0", "*", "(", *before.split(), ")", "+", "0.15"]


def test_the_budget_is_what_prometheus_computes(groups, tmp_path):
    """With a budget in the values, every run's recorded budget is that, whatever the run published."""
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups(skewBudgetRatio=0.15)}))
    series = 'training_skew_budget_ratio{run="%s", instance="a"}'
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [
            {
                "interval": "30s",
                "input_series": [
                    {"series": series % "a", "values": "0.1x10"},
                    {"series": series % "b", "values": "0.5x10"},
                ],
                "promql_expr_test": [
                    {
                        "expr": "run:training_skew_budget:ratio",
                        "eval_time": "2m",
                        "exp_samples": [
                            {"labels": f'run:training_skew_budget:ratio{{run="{run}"}}', "value": 0.15} for run in "ab"
                        ],
                    }
                ],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_switches_severities_and_labels(groups, pack):
    """An alert can be switched off, renamed in severity for all or for one, labelled and held longer."""
    rendered = _rules(
        groups(
            severities={"critical": "page"},
            additionalAlertLabels={"team": "ml"},
            additionalAlertAnnotations={"dashboard": "https://grafana.example/d/ranks"},
            runbookBaseUrl="https://wiki.example/",
            alerts={
                "TrainingInputStraggler": {"severity": "ticket", "for": "10m", "labels": {"team": "data"}},
                "TrainingComputeStraggler": {"annotations": {"runbook_url": "https://own.example"}},
            },
        )
    )
    expected = _rules(pack)
    assert rendered.keys() == expected.keys()
    one, other = rendered["TrainingInputStraggler"], rendered["TrainingComputeStraggler"]
    assert one["labels"] == {**expected["TrainingInputStraggler"]["labels"], "severity": "ticket", "team": "data"}
    assert (one["for"], other["for"]) == ("10m", expected["TrainingComputeStraggler"]["for"])
    assert other["labels"] == {**expected["TrainingComputeStraggler"]["labels"], "severity": "page", "team": "ml"}
    assert one["annotations"]["runbook_url"] == "https://wiki.example/TrainingInputStraggler.md"
    assert other["annotations"]["runbook_url"] == "https://own.example"
    assert other["annotations"]["dashboard"] == "https://grafana.example/d/ranks"
    assert other["annotations"]["summary"] == expected["TrainingComputeStraggler"]["annotations"]["summary"]


@pytest.mark.parametrize("alert", [alert.name for alert in rulepack.alerts()])
def test_each_alert_can_be_switched_off(groups, pack, alert):
    """A switch removes its own alert and nothing else."""
    rendered, expected = _rules(groups(alerts={alert: {"enabled": False}})), _rules(pack)
    del expected[alert]
    assert rendered == expected


def test_default_runbooks_are_the_packs(chart_path):
    """The chart's default address of runbooks is the pack's."""
    values = yaml.safe_load((chart_path / "values.yaml").read_text())
    assert values["prometheusRule"]["runbookBaseUrl"] == rulepack.RUNBOOK_BASE

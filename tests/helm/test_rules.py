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
    return yaml.load(rulepack.render(format="prometheusrule"), Loader=yaml.CSafeLoader)["spec"]["groups"]


def _rules(groups):
    """Rules by name and place among those of one name: an alert may have one rule for each severity."""
    found = {}
    for rule in (rule for group in groups for rule in group["rules"]):
        name = rule.get("alert") or rule["record"]
        place = sum(known == name for known, _ in found)
        found[name, place] = rule
    return found


def test_rules_are_those_of_the_pack(groups, pack):
    """Groups, order, expressions, labels and annotations are the pack's, with {{ $labels }} as written."""
    rendered = groups()
    assert rendered == pack
    assert "{{ $labels.rank }}" in _rules(rendered)["TrainingInputStraggler", 0]["annotations"]["summary"]


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
    assert key == ("run:training_skew_budget:ratio", 0)
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
            dashboardBaseUrl="https://grafana.example/",
            alerts={
                "TrainingInputStraggler": {"severity": "ticket", "for": "10m", "labels": {"team": "data"}},
                "TrainingComputeStraggler": {"annotations": {"runbook_url": "https://own.example"}},
            },
        )
    )
    expected = _rules(pack)
    assert rendered.keys() == expected.keys()
    input_straggler, compute_straggler = ("TrainingInputStraggler", 0), ("TrainingComputeStraggler", 0)
    one, other = rendered[input_straggler], rendered[compute_straggler]
    assert one["labels"] == {**expected[input_straggler]["labels"], "severity": "ticket", "team": "data"}
    assert (one["for"], other["for"]) == ("10m", expected[compute_straggler]["for"])
    assert other["labels"] == {**expected[compute_straggler]["labels"], "severity": "page", "team": "ml"}
    path = expected[input_straggler]["annotations"]["dashboard_url"].removeprefix(rulepack.DASHBOARD_BASE)
    assert one["annotations"]["dashboard_url"] == f"https://grafana.example{path}"
    assert one["annotations"]["runbook_url"] == "https://wiki.example/TrainingInputStraggler.md"
    assert other["annotations"]["runbook_url"] == "https://own.example"
    assert other["annotations"]["dashboard"] == "https://grafana.example/d/ranks"
    assert other["annotations"]["summary"] == expected[compute_straggler]["annotations"]["summary"]


@pytest.mark.parametrize("half", [0, 1])
def test_each_alert_can_be_switched_off(groups, pack, half):
    """Switches remove their own alerts and nothing else: every other alert, then the rest."""
    off = sorted({alert.name for alert in rulepack.alerts()})[half::2]
    rendered, expected = _rules(groups(alerts={alert: {"enabled": False} for alert in off})), _rules(pack)
    assert set(off) <= {name for name, _ in expected}
    assert rendered == {key: rule for key, rule in expected.items() if key[0] not in off}


def test_default_runbooks_are_the_packs(chart_path):
    """The chart's default addresses of runbooks and dashboards are the pack's."""
    values = yaml.safe_load((chart_path / "values.yaml").read_text())
    assert values["prometheusRule"]["runbookBaseUrl"] == rulepack.RUNBOOK_BASE
    assert values["prometheusRule"]["dashboardBaseUrl"] == rulepack.DASHBOARD_BASE

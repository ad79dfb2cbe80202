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
    assert one["labels"] == {
        **expected[input_straggler]["labels"],
        "severity": "ticket",
        "shipped_severity": "critical",
        "team": "data",
    }
    assert (one["for"], other["for"]) == ("10m", expected[compute_straggler]["for"])
    assert other["labels"] == {**expected[compute_straggler]["labels"], "severity": "page", "team": "ml"}
    path = expected[input_straggler]["annotations"]["dashboard_url"].removeprefix(rulepack.DASHBOARD_BASE)
    assert one["annotations"]["dashboard_url"] == f"https://grafana.example{path}"
    assert one["annotations"]["runbook_url"] == "https://wiki.example/TrainingInputStraggler.md"
    assert other["annotations"]["runbook_url"] == "https://own.example"
    assert other["annotations"]["dashboard"] == "https://grafana.example/d/ranks"
    assert other["annotations"]["summary"] == expected[compute_straggler]["annotations"]["summary"]


SEVERITIES = {}
for alert in rulepack.alerts():
    SEVERITIES.setdefault(alert.name, set()).add(alert.severity)
TWO_FORMS = sorted(name for name, of in SEVERITIES.items() if len(of) > 1)
ONE_SEVERITY = {
    "one alert each": {"alerts": {name: {"severity": "ticket"} for name in TWO_FORMS}},
    "one alert as the stronger": {"alerts": {name: {"severity": "critical"} for name in TWO_FORMS}},
    "all alerts": {"severities": {"critical": "ticket", "warning": "ticket"}},
}


@pytest.mark.parametrize("values", ONE_SEVERITY.values(), ids=ONE_SEVERITY)
def test_rules_of_one_alert_keep_labels_of_their_own(groups, pack, values, tmp_path):
    """Where values give both rules of an alert one severity, a label has the shipped one; no other rule gets it."""
    rendered, expected = _rules(groups(**values)), _rules(pack)
    for (name, place), rule in rendered.items():
        if name in TWO_FORMS:
            assert rule["labels"]["shipped_severity"] == expected[name, place]["labels"]["severity"]
        else:
            assert "shipped_severity" not in rule.get("labels", {})
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups(**values)}))
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=duplicate-rules", "--lint-fatal", tmp_path / "rules.yaml"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_another_severity_needs_no_label_more(groups):
    """Where the severities of an alert's rules stay apart, or an alert has one rule, nothing is added."""
    rendered = groups(severities={"critical": "page"}, alerts={"TrainingRankStalled": {"severity": "ticket"}})
    assert "shipped_severity" not in str(rendered)


LATE = "run_rank_phase:training_persistent_excess_per_step:ratio"
# Rank 3 is late and first delays all others, then hardly; turns cost the run half of its time, then a seventh. Between
# the two one rule of each alert ends while the other begins, and both rules of the turns hold at first.
RECORDED = {
    'run:training_skew_budget:ratio{run="late"}': "0.1x80",
    f'{LATE}{{run="late",rank="3",host="a",phase="input_ready"}}': "0.3x80",
    f'{LATE}{{run="late",rank="3",host="a",phase="optimizer"}}': "0.3x80",
    'run_rank:training_delay_caused_per_step:ratio{run="late",rank="3",host="a",window="short"}': "0.3x39 0.01x40",
    'run:training_exposed_wait_per_step:ratio{run="turns",window="short"}': "0.5x39 0.14x40",
    'run:training_exposed_wait_per_step:ratio{run="turns",window="long"}': "0.5x39 0.14x40",
}
FIRING = {
    # Time -> alert -> shipped severities of the rules that fire.
    "15m": {
        "TrainingInputStraggler": {"critical"},
        "TrainingComputeStraggler": {"critical"},
        "TrainingRotatingStragglers": {"critical", "warning"},
    },
    "35m": {
        "TrainingInputStraggler": {"warning"},
        "TrainingComputeStraggler": {"warning"},
        "TrainingRotatingStragglers": {"warning"},
    },
}


@pytest.mark.parametrize("values", [{}, *ONE_SEVERITY.values()], ids=["as shipped", *ONE_SEVERITY])
def test_both_rules_of_an_alert_fire_whatever_their_severity(groups, values, tmp_path):
    """Prometheus writes both forms of an alert side by side, and ends one without ending the other."""
    label = "shipped_severity" if values else "severity"
    fires = [
        {
            "expr": f'count by (alertname, {label}) (ALERTS{{alertstate="firing", alertname=~"{"|".join(alerts)}"}})',
            "eval_time": when,
            "exp_samples": [
                {"labels": f'{{alertname="{name}", {label}="{severity}"}}', "value": 1}
                for name, severities in alerts.items()
                for severity in severities
            ],
        }
        for when, alerts in FIRING.items()
    ]
    inputs = [{"series": series, "values": values} for series, values in RECORDED.items()]
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": "30s",
        "tests": [{"interval": "30s", "input_series": inputs, "promql_expr_test": fires}],
    }
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": groups(**values)}))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


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

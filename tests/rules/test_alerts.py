"""The cases of this folder, run through promtool against the pack as it is rendered.

A case is a promtool unit test but for three keys: ``runs`` describes simulated runs, which become the input series,
``series`` are input series as promtool has them, and ``silent`` lists alerts that fire at no evaluation at all, or is
``others``: all but those that the case expects. A case that asserts silence must also assert what the records
hold at some time, so that a misspelt series cannot pass as silence.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rank_exporter import rulepack

from .simulate import Run, series
from .simulate_aligned import aligned_series

CASES = {
    f"{file.stem}: {case['name']}": case
    for file in sorted(Path(__file__).parent.glob("*.yaml"))
    for case in yaml.load(file.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
}
ALERTS = sorted({alert.name for alert in rulepack.alerts()})
GROUPS = [group["name"] for group in yaml.load(rulepack.render(), Loader=yaml.CSafeLoader)["groups"]]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    """promtool finds every alert, annotation and record of the case as the case has them."""
    pack = case.get("pack", {})
    (tmp_path / "rules.yaml").write_text(rulepack.render(**pack), encoding="utf-8")
    (tmp_path / "test.yaml").write_text(
        yaml.dump(_promtool_file(case), Dumper=getattr(yaml, "CSafeDumper", yaml.SafeDumper), width=10**9),
        encoding="utf-8",
    )
    done = subprocess.run(
        ["promtool", "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_silence_is_never_the_only_thing_asserted(case: dict[str, Any]) -> None:
    """Every case asserts at least one alert or record that must be there."""
    seen = [test["exp_samples"] for test in case.get("promql_expr_test", ())]
    seen += [test.get("exp_alerts") for test in case.get("alert_rule_test", ())]
    assert any(seen)


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_firing_and_a_silent_case(alert: str) -> None:
    """An alert that is never seen to fire, or never seen to stay silent, is untested."""
    firing = [
        name
        for name, case in CASES.items()
        for test in case.get("alert_rule_test", ())
        if test["alertname"] == alert and test.get("exp_alerts")
    ]
    silent = [name for name, case in CASES.items() if alert in _silent(case)]
    assert firing
    assert silent


def _silent(case: dict[str, Any]) -> list[str]:
    if case.get("silent") != "others":
        return case.get("silent", [])
    expected = {test["alertname"] for test in case.get("alert_rule_test", ()) if test.get("exp_alerts")}
    queries = " ".join(test["expr"] for test in case.get("promql_expr_test", ()))
    return [alert for alert in ALERTS if alert not in expected and alert not in queries]


def _promtool_file(case: dict[str, Any]) -> dict[str, Any]:
    minutes, scrape = case["minutes"], case.get("scrape", 15)
    runs = [Run(**run) for run in case["runs"]]
    span = f"{int(minutes * 60)}s"
    silence = [
        {
            "expr": "sum by (alertname, run, rank) "
            f'(count_over_time(ALERTS{{alertname="{alert}",alertstate="firing"}}[{span}]))',
            "eval_time": span,
            "exp_samples": [],
        }
        for alert in _silent(case)
    ]
    return {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": case.get("evaluation_interval", "1m"),
        # Otherwise in any order, another one in each run.
        "group_eval_order": GROUPS,
        "tests": [
            {
                "interval": f"{int(scrape * 1000)}ms",
                "input_series": [
                    *(one for run in runs for one in series(run, minutes, scrape)),
                    *(one for run in runs if run.aligned for one in aligned_series(run, minutes, scrape)),
                    *case.get("series", ()),
                ],
                "alert_rule_test": case.get("alert_rule_test", []),
                "promql_expr_test": [*case.get("promql_expr_test", []), *silence],
            }
        ],
    }

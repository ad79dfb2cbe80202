"""The pack as vmalert takes it: the same file, and the same outcome as on Prometheus."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.phases import Phase

from ..simulation.loaded import load
from ..simulation.prometheus import prometheus
from ..simulation.replay import names_read
from ..simulation.run import Run, Slow
from .victoria_metrics import Gateway, check, gateway, live, replay, victoria_metrics

SECONDS, ONSET, STEP = 2100.0, 900.0, 30.0
RUNS = (
    Run(
        run="late",
        ranks=4,
        step=2.0,
        headroom=4.0,
        slow=(Slow(phase=Phase.INPUT_READY, by=0.4, ranks=(3,), start=ONSET),),
    ),
    Run(run="well", ranks=4, step=2.0, headroom=4.0),
)
Alert = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Replayed:
    """The gateway to what vmalert wrote, and the alerts that fired on Prometheus."""

    gateway: Gateway
    epoch: float
    prometheus: set[Alert]


def _named(labels: dict[str, str]) -> Alert:
    return tuple(labels.get(name, "") for name in ("alertname", "severity", "run", "rank", "host", "phase"))


def _write(path: Path, groups: list[dict[str, Any]]) -> Path:
    path.write_text(yaml.safe_dump({"groups": groups}, sort_keys=False), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replayed]:
    """Two runs, one with a straggler, in both databases, and the pack evaluated over them."""
    folder = tmp_path_factory.mktemp("vmalert")
    # The data reach beyond now, so that they can be evaluated live as well.
    end = time.time() // 60 * 60 + 120
    groups = yaml.safe_load(rulepack.render())["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        # vmalert expands templates in a replay too, but has no query in them there.
        rule.pop("annotations", None)
    with prometheus() as url:
        found = load(url, *RUNS, seconds=SECONDS, end=end, only=names_read(groups))
        assert found is not None
    with victoria_metrics(folder) as backend, gateway(backend) as between:
        load(between.url, *RUNS, seconds=SECONDS, end=end, rules=False)
        replay(_write(folder / "rules.yml", groups), between.url, end - SECONDS, end, STEP)
        yield Replayed(between, end - SECONDS, {_named(dict(labels)) for labels in found.firing})


def test_vmalert_accepts_the_pack(tmp_path: Path) -> None:
    """The file for Prometheus is a file for vmalert, with every expression and template valid."""
    rules = tmp_path / "rules.yml"
    rules.write_text(rulepack.render(), encoding="utf-8")
    assert check(rules).startswith("0 ")
    rules.write_text(rulepack.render().replace("        for: ", "        form: ", 1), encoding="utf-8")
    assert "unknown fields in rule: form" in check(rules)


def test_the_straggler_is_named_and_the_healthy_run_is_not(replayed: Replayed) -> None:
    """The same alerts fire for the same ranks on vmalert as on Prometheus, and not before anything is slow."""
    found = replayed.gateway.client.get("/api/v1/export", params={"match[]": 'ALERTS{alertstate="firing"}'})
    series = [json.loads(line) for line in found.text.splitlines()]
    fired = {_named(one["metric"]) for one in series}
    assert ("TrainingInputStraggler", "critical", "late", "3", "node-0", "input_ready") in fired
    assert {(run, rank) for _, _, run, rank, *_ in fired if rank} == {("late", "3")}
    assert fired == replayed.prometheus
    assert min(one["timestamps"][0] for one in series) / 1000 > replayed.epoch + ONSET


def test_annotations_are_filled_in_by_vmalert(replayed: Replayed, tmp_path: Path) -> None:
    """Templates that query find rank, host and shard on vmalert too."""
    groups = yaml.safe_load(rulepack.render())["groups"]
    alerts = [{**rule, "for": "0s"} for group in groups for rule in group["rules"] if "alert" in rule]
    rules = _write(tmp_path / "alerts.yml", [{"name": "alerts", "interval": "1s", "rules": alerts}])
    with live(rules, replayed.gateway.url, tmp_path / "log"):
        deadline = time.monotonic() + 120
        while not (sent := [one for one in replayed.gateway.alerts if one["labels"].get("rank") == "3"]):
            assert time.monotonic() < deadline, (tmp_path / "log").read_text(encoding="utf-8")
            time.sleep(0.05)
    annotations = next(one["annotations"] for one in sent if one["labels"]["alertname"] == "TrainingInputStraggler")
    assert annotations["shard"] == "train-00003"
    for part in ("Rank 3", "late", "node-0", "train-00003"):
        assert part in annotations["summary"]
    assert "runbooks/TrainingInputStraggler.md" in annotations["runbook_url"]
    assert not [
        text for one in sent for text in one["annotations"].values() if "<no value>" in text or not text.strip()
    ]

"""Rules over simulated series, on a real Prometheus and in promtool."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from rank_exporter.phases import Phase

from .loaded import load
from .notifications import notifications
from .prometheus import prometheus
from .promtool import run_rules
from .replay import Replay, Spans, reads_only_what_stands_before
from .run import Run, Slow
from .table import Labels

END = 1_790_000_000 // 60 * 60
"""Unix time, so that what is stored does not depend on when the test runs."""
SECONDS = 1800.0
RUNS = (
    Run(
        run="late",
        ranks=4,
        per_host=2,
        slow=(Slow(phase=Phase.INPUT_READY, by=0.5, ranks=(2,), start=600, end=1080),),
        ended={3: 900.0},
    ),
    Run(run="restarted", ranks=2, hosts="other", end=600),
    Run(run="restarted", ranks=3, hosts="other", start=700, seed=1),
)
DOWN = ((1300.0, 1400.0),)
RULES = """
groups:
  - name: first
    interval: 30s
    rules:
      - record: rank:input:mean
        expr: >-
          sum by (run, rank, host) (rate(training_phase_duration_seconds_sum{phase="input_ready"}[2m]))
          / (sum by (run, rank, host) (rate(training_phase_duration_seconds_count{phase="input_ready"}[2m])) > 0)
          and on (run, rank, host) training_steps_total
  - name: second
    interval: 30s
    rules:
      - alert: Late
        expr: rank:input:mean > 0.25
        for: 2m
        keep_firing_for: 3m
        labels: {severity: critical, seen: "{{ $labels.host }}"}
        annotations:
          shard: >-
            {{ with query "training_rank_info{rank='2'}" }}{{ . | first | label "shard" }}{{ end }}
"""


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[str, Replay]]:
    """A Prometheus that holds the runs and what the rules make of them."""
    with prometheus() as url:
        found = load(url, *RUNS, seconds=SECONDS, end=END, rules=yaml.safe_load(RULES)["groups"], down=DOWN)
        assert found is not None
        yield url, found


def _count(url: str, query: str, second: float) -> int:
    asked = {"query": f"count({query})", "time": END - SECONDS + second}
    answer = httpx.get(f"{url}/api/v1/query", params=asked, trust_env=False, timeout=60).json()
    result = answer["data"]["result"]
    return int(result[0]["value"][1]) if result else 0


def test_the_replay_fires_when_prometheus_own_rule_manager_does(loaded: tuple[str, Replay]) -> None:
    """Waiting, firing, and firing on after the end, to the evaluation."""
    fired = run_rules(*RUNS, rules=RULES, seconds=SECONDS, down=DOWN)
    [(labels, spans)] = loaded[1].firing.items()
    assert dict(labels) == fired[0].labels
    assert dict(labels)["rank"] == "2"
    assert dict(labels)["seen"] == "node-1"
    assert fired[0].annotations == {"shard": "train-00002"}
    [(begin, end)] = spans
    assert 600 + 120 < begin < 1080 < 1080 + 180 < end
    # promtool has one grid of scrapes for all hosts, so it may see a value one evaluation later.
    assert abs(begin - fired[0].time) <= 30
    assert abs(end - 30 - fired[-1].time) <= 30


def test_series_end_when_their_rank_does(loaded: tuple[str, Replay]) -> None:
    """Raw and recorded series are stale at once, not after five minutes."""
    url, _ = loaded
    for series in ("training_steps_total", "rank:input:mean"):
        assert _count(url, f'{series}{{run="late"}}', 885) == 4
        assert _count(url, f'{series}{{run="late"}}', 945) == 3
    assert _count(url, 'ALERTS{alertstate="firing"}', 1050) == 1
    assert _count(url, "ALERTS", 1750) == 0


def test_a_run_restarts_with_other_ranks(loaded: tuple[str, Replay]) -> None:
    """One generation's series end before the next one's begin."""
    url, _ = loaded
    ranks = [_count(url, 'training_steps_total{run="restarted"}', second) for second in (580, 660, 760)]
    assert ranks == [2, 0, 3]


def test_while_prometheus_is_down_nothing_is_stored_and_nothing_ends(loaded: tuple[str, Replay]) -> None:
    """Series go on afterwards as if nothing had been."""
    url, _ = loaded
    assert _count(url, 'training_steps_total{run="late"}', 1390) == 3
    stored = f"count_over_time(training_steps_total{{run='late',rank='0'}}[90s]) == {90 // 15}"
    assert _count(url, stored, 1290) == 1
    assert _count(url, "count_over_time(training_steps_total{run='late',rank='0'}[90s])", 1395) == 0


def test_rules_that_read_themselves_are_evaluated_one_by_one() -> None:
    """A stretch at a time would read what has not been written."""

    def in_order(*rules: dict[str, object]) -> bool:
        return reads_only_what_stands_before([{"rules": list(rules)}])

    short = {"record": "a", "expr": "x", "labels": {"window": "short"}}
    long = {"record": "a", "expr": "y", "labels": {"window": "long"}}
    assert in_order(short, {"record": "b", "expr": 'rate(a{window="short"}[5m])'}, long)
    assert not in_order(short, {"record": "b", "expr": 'rate(a{window="long"}[5m])'}, long)
    assert not in_order({"record": "c", "expr": "max_over_time(c[5m]) or x"})
    assert not in_order({"alert": "A", "expr": "a or ALERTS"})


CONFIG = """
route:
  receiver: other
  group_by: [run]
  group_wait: 30s
  group_interval: 5m
  repeat_interval: 4h
  routes:
    - matchers: [severity="critical", alertname=~"Training.+"]
      receiver: page
inhibit_rules:
  - source_matchers: [alertname="TrainingA"]
    target_matchers: [alertname="TrainingB"]
    equal: [run]
receivers: [{name: page}, {name: other}]
"""


def _alert(name: str, run: str = "x", rank: str = "0", severity: str = "critical") -> Labels:
    return (("alertname", name), ("rank", rank), ("run", run), ("severity", severity))


def _sent(tmp_path: Path, firing: dict[Labels, Spans], until: float = 3600) -> list[tuple[float, str, int]]:
    (tmp_path / "alertmanager.yml").write_text(CONFIG, encoding="utf-8")
    sent = notifications(firing, tmp_path / "alertmanager.yml", until=until)
    return [(one.time, one.receiver, len(one.firing)) for one in sent]


def test_alerts_of_a_run_come_together_and_changes_five_minutes_later(tmp_path: Path) -> None:
    """As Alertmanager groups, waits and resolves."""
    one, two, other = _alert("TrainingA"), _alert("TrainingA", rank="1"), _alert("TrainingA", run="y")
    firing = {one: [(100.0, 900.0)], two: [(120.0, 900.0)], other: [(500.0, 600.0)]}
    assert _sent(tmp_path, firing) == [
        (130.0, "page", 2),
        (530.0, "page", 1),
        (830.0, "page", 0),
        (1030.0, "page", 0),
    ]


def test_a_consequence_is_silent_while_its_cause_fires(tmp_path: Path) -> None:
    """And told once the cause is gone."""
    firing = {_alert("TrainingA", severity="warning"): [(100.0, 900.0)], _alert("TrainingB"): [(100.0, 1500.0)]}
    assert _sent(tmp_path, firing, 1400) == [(130.0, "other", 1), (1030.0, "other", 0), (1030.0, "page", 1)]


def test_what_goes_on_is_told_again_after_four_hours(tmp_path: Path) -> None:
    """Not before."""
    assert [when for when, *_ in _sent(tmp_path, {_alert("TrainingA"): [(0.0, 40000.0)]}, 20000)] == [30.0, 14430.0]

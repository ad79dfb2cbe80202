"""Whether what a scenario expects has come, and what the demo's servers and ranks are given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rank_exporter.analysis.verdict import Verdict
from rank_exporter.demo.failure import MissingRequirementError
from rank_exporter.demo.scenario import SCENARIOS, Plan, shortfalls
from rank_exporter.demo.servers import find_binaries, prometheus_config, to_webhook
from rank_exporter.demo.stage import _told
from rank_exporter.demo.training import agent_url, train_environ, write_shards
from rank_exporter.demo.webhook import Webhook

INPUT = Plan(scenario=SCENARIOS["input-straggler"], ranks=2, straggler_rank=0, cores=2)
BALANCED = Plan(scenario=SCENARIOS["balanced"], ranks=2, straggler_rank=0, cores=2)
PAGE = {
    "alertname": "TrainingInputStraggler",
    "severity": "critical",
    "run": "demo-input-straggler",
    "rank": "0",
    "phase": "input_ready",
    "host": "h",
}
VERDICT = Verdict(kind="INPUT STRAGGLER", rank=0, phase="input_ready", evidence=(), next_check="")
FINE = Verdict(kind="BALANCED", evidence=(), next_check="")


def test_the_page_that_was_expected_is_enough() -> None:
    """The right page and verdict leave nothing to complain of."""
    assert shortfalls(INPUT, VERDICT, [PAGE]) == ()


def test_a_page_of_another_run_is_not_the_one() -> None:
    """Rank, phase and run must all be right."""
    for label, other in (("rank", "1"), ("phase", "other"), ("run", "x"), ("alertname", "TrainingComputeStraggler")):
        assert shortfalls(INPUT, VERDICT, [{**PAGE, label: other}])


def test_no_page_is_said() -> None:
    """A straggler that was not paged is told as such."""
    assert shortfalls(INPUT, VERDICT, []) == (
        "expected a page TrainingInputStraggler (rank 0, phase input_ready), but none came",
    )


def test_a_second_page_is_one_too_many() -> None:
    """Beside the right page no other may come, even about the same rank."""
    extra = {**PAGE, "alertname": "TrainingComputeStraggler", "phase": "other"}
    assert shortfalls(INPUT, VERDICT, [PAGE, extra]) == (
        "expected no other page, but TrainingComputeStraggler (rank 0, phase other) came",
    )


def test_a_warning_that_names_a_victim_is_said() -> None:
    """A warning about the straggler or the run is fine; one that names another rank is not."""
    warning = {"alertname": "TrainingTail", "severity": "warning", "rank": "0"}
    assert shortfalls(INPUT, VERDICT, [PAGE, warning, {"alertname": "TrainingRun", "severity": "warning"}]) == ()
    assert shortfalls(INPUT, VERDICT, [PAGE, {**warning, "rank": "1"}]) == (
        "expected no alert that names another rank, but TrainingTail (rank 1) came",
    )


def test_a_wrong_verdict_is_said() -> None:
    """The page alone does not do: the verdict has to agree."""
    [found] = shortfalls(INPUT, replace(VERDICT, rank=1), [PAGE])
    assert found.startswith("expected the verdict INPUT STRAGGLER of rank 0 in input_ready")
    assert found.endswith("but it is INPUT STRAGGLER of rank 1 in input_ready")
    assert shortfalls(INPUT, FINE, [PAGE])[0].endswith("but it is BALANCED")


def test_balanced_wants_silence() -> None:
    """In the balanced scenario any page is one too many, and so is a verdict that names a rank."""
    assert shortfalls(BALANCED, FINE, []) == ()
    assert shortfalls(BALANCED, FINE, [PAGE]) == (
        "expected no page, but TrainingInputStraggler (rank 0, phase input_ready) came",
    )
    assert len(shortfalls(BALANCED, VERDICT, [])) == 1


def test_work_shrinks_with_the_share_of_a_core() -> None:
    """More ranks than cores get smaller batches, so that their steps stay as quick and the delay shows."""
    crowded = replace(INPUT, ranks=8)
    assert INPUT.train_arguments()[:2] == ["--batch-size", "512"]
    assert crowded.train_arguments()[:2] == ["--batch-size", "128"]


def test_the_training_environment_is_its_own(tmp_path: Path) -> None:
    """Settings of a job around the demo do not reach its ranks; other variables do."""
    around = {"RANK": "7", "RANK_EXPORTER_RUN": "x", "RANK_EXPORTER_SERVE": "off", "SLURM_JOB_ID": "1", "HOME": "/h"}
    environ = train_environ(around, tmp_path)
    assert not {"RANK", "RANK_EXPORTER_RUN", "RANK_EXPORTER_SERVE", "SLURM_JOB_ID"} & environ.keys()
    assert (environ["HOME"], environ["RANK_EXPORTER_DIR"]) == ("/h", str(tmp_path / "segments"))


def test_each_rank_has_a_shard(tmp_path: Path) -> None:
    """One file a rank, of float32 samples."""
    write_shards(tmp_path / "shards", 3)
    files = sorted((tmp_path / "shards").iterdir())
    assert [file.name for file in files] == [f"train-0000{rank}-of-00003.npy" for rank in range(3)]
    rows = np.load(files[0])
    assert rows.shape == (1024, 513)
    assert rows.dtype == np.float32


def test_the_agent_is_found_by_its_entry(tmp_path: Path) -> None:
    """The file_sd entry gives the address; none, or one half written, gives none."""
    entries = tmp_path / "file_sd"
    entries.mkdir()
    assert agent_url(tmp_path) is None
    (entries / "a.json").write_text("[{")
    assert agent_url(tmp_path) is None
    (entries / "b.json").write_text('[{"targets": ["127.0.0.1:1234"], "labels": {}}]')
    assert agent_url(tmp_path) == "http://127.0.0.1:1234"


def test_alertmanager_keeps_routes_and_inhibitions() -> None:
    """Receivers become the webhook and waits become seconds; routing, grouping and inhibition stay."""
    shipped = {
        "global": {"smtp_from": "x"},
        "templates": ["*.tmpl"],
        "route": {
            "receiver": "a",
            "group_by": ["run"],
            "group_wait": "30s",
            "routes": [{"receiver": "b", "matchers": ["x"]}],
        },
        "inhibit_rules": [{"equal": ["run"]}],
        "receivers": [{"name": "a", "slack_configs": [{}]}, {"name": "b"}],
    }
    config = to_webhook(shipped, "http://w")
    quick = {"group_wait": "1s", "group_interval": "2s"}
    assert config == {
        "route": {
            "receiver": "a",
            "group_by": ["run"],
            **quick,
            "routes": [{"receiver": "b", "matchers": ["x"], **quick}],
        },
        "receivers": [
            {"name": name, "webhook_configs": [{"url": "http://w", "send_resolved": False}]} for name in ("a", "b")
        ],
        "inhibit_rules": [{"equal": ["run"]}],
    }


def test_prometheus_finds_agents_by_file(tmp_path: Path) -> None:
    """The scrape configuration watches the directory of entries."""
    config = prometheus_config(tmp_path, tmp_path / "rules.yml", "127.0.0.1:1")
    assert config["scrape_configs"][0]["file_sd_configs"][0]["files"] == [f"{tmp_path}/*.json"]


def test_missing_servers_are_named_with_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the servers on PATH one line says which are missing and how to get them."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingRequirementError, match="apt-get install prometheus prometheus-alertmanager"):
        find_binaries()


def test_an_alert_that_is_repeated_counts_once() -> None:
    """Alertmanager sends the whole group again when an alert joins it; resolved ones are no pages."""
    webhook = Webhook()
    try:
        first = {"status": "firing", "labels": PAGE, "annotations": {"summary": "s"}, "startsAt": "t"}
        second = {"status": "firing", "labels": {**PAGE, "rank": "1"}}
        webhook.receive({"alerts": [first]}, 1.0)
        webhook.receive({"alerts": [first, second, {"status": "resolved", "labels": {"alertname": "x"}}]}, 2.0)
        assert [(alert.labels["rank"], alert.received_at) for alert in webhook.alerts()] == [("0", 1.0), ("1", 2.0)]
    finally:
        webhook.close()


def test_progress_names_a_rank_only_where_the_alert_does() -> None:
    """Alerts about a whole run have none."""
    assert (
        _told({"alertname": "TrainingInputStraggler", "rank": "0"}, "firing")
        == "TrainingInputStraggler firing for rank 0"
    )
    assert _told({"alertname": "TrainingInputBound"}, "pending") == "TrainingInputBound pending"

"""What the series say, against durations that are known."""

from __future__ import annotations

import subprocess
import time

import pytest
from prometheus_client.utils import floatToGoString

from rank_exporter import __version__, catalog
from rank_exporter.histogram import COARSE_EDGES, FINE_EDGES, SHORT_EDGES, edge_seconds
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import ERROR_REASONS, OTHER_BUCKET, pack_phase

OPENMETRICS = "application/openmetrics-text;version=1.0.0"
MS = 1_000_000


def buckets(scrape, **labels):
    found = scrape.find("training_phase_duration_seconds_bucket", **labels)
    return {sample.labels["le"]: sample.value for sample in found}


def test_histogram_counts_and_sum_match_the_durations(record, scrape):
    """Each cumulative bucket holds exactly the durations up to its edge, and the sum is exact."""
    durations = [3 * MS, 3 * MS, 40 * MS, 900 * MS, 90_000 * MS]
    rank = record(2)
    for ns in durations:
        rank.step(forward=ns, step=ns)
    found = scrape()
    for phase in ("forward", "step"):
        labels = {"run": "job", "rank": "2", "host": "node-a", "phase": phase, "shard": ""}
        expected = {
            floatToGoString(edge_seconds(edge)): sum(ns / 1e9 <= edge_seconds(edge) for ns in durations)
            for edge in FINE_EDGES
        }
        assert buckets(found, **labels) == {**expected, "+Inf": len(durations)}
        assert found.value("training_phase_duration_seconds_count", **labels) == len(durations)
        assert found.value("training_phase_duration_seconds_sum", **labels) == pytest.approx(sum(durations) / 1e9)


def test_phases_beside_the_step_have_coarse_buckets(record, scrape):
    """first_batch, eval and checkpoint are counted in buckets that double."""
    record().step(first_batch=5_000 * MS, eval=MS, checkpoint=70_000 * MS)
    found = scrape()
    for phase in ("first_batch", "eval", "checkpoint"):
        expected = [floatToGoString(edge_seconds(edge)) for edge in COARSE_EDGES] + ["+Inf"]
        assert list(buckets(found, phase=phase)) == expected


def test_a_phase_without_observations_is_not_shown(record, scrape):
    """A rank that fetches nothing shows no input_ready, so that it cannot pull a median to zero."""
    record().step(forward=MS, step=MS)
    phases = {s.labels["phase"] for s in scrape().find("training_phase_duration_seconds_count")}
    assert phases == {"forward", "step"}


def test_input_is_told_apart_by_shard(record, scrape):
    """input_ready has one histogram per shard, "" without one and "other" beyond the slots; other phases have none."""
    rank = record()
    rank.step(input_ready=MS, step=MS)
    for number in range(20):
        rank.writer.set_shard(f'shard "{number}"')
        rank.step(input_ready=MS, step=MS)
    found = scrape()
    counts = {
        s.labels["shard"]: s.value for s in found.find("training_phase_duration_seconds_count", phase="input_ready")
    }
    assert counts == {"": 1, "other": 4, **{f'shard "{number}"': 1 for number in range(16)}}
    assert found.value("training_phase_duration_seconds_count", phase="step", shard="") == 21
    assert found.value("training_exporter_shards_dropped_total", rank="0") == 4
    assert found.value("training_rank_info", rank="0", shard="other") == 1


def test_ten_thousand_shards_make_a_constant_number_of_series(record, scrape):
    """The number of series stops growing once the slots are taken."""
    rank = record()
    sizes = []
    for number in range(10_000):
        rank.writer.set_shard(f"shard-{number}")
        rank.step(input_ready=MS)
        if number in (100, 9_999):
            sizes.append(len(scrape().samples))
    assert sizes[0] == sizes[1]


def test_counters_and_facts(record, scrape):
    """Totals, the last step's time, the run's size and budget, and the rank's facts are those of the segment."""
    before = time.time()
    rank = record(1, world_size=3)
    rank.writer.set_facts({"device": "cpu", "backend": "gloo", "group": "\ud800", "unheard": "of"})
    rank.writer.count(8, 4096, 2)
    rank.step(step=MS)
    rank.writer.count_error("hook")
    found = scrape()
    labels = {"run": "job", "rank": "1", "host": "node-a"}
    assert found.value("training_steps_total", **labels) == 1
    assert found.value("training_samples_total", **labels) == 8
    assert found.value("training_tokens_total", **labels) == 4096
    assert found.value("training_padded_samples_total", **labels) == 2
    assert before <= found.value("training_last_step_timestamp_seconds", **labels) <= time.time()
    assert 0 < found.value("training_exporter_recording_seconds_total", **labels) < 1
    assert found.value("training_world_size", run="job") == 3
    assert found.value("training_skew_budget_ratio", run="job") == 0.25
    facts = {"device": "cpu", "backend": "gloo", "framework": "", "clock": "", "group": "?", "waits_in": ""}
    facts["local_rank"] = "1"
    assert found.value("training_rank_info", **labels, **facts, shard="") == 1
    errors = {s.labels["reason"]: s.value for s in found.find("training_exporter_errors_total", **labels)}
    assert errors == {reason: float(reason == "hook") for reason in ERROR_REASONS}


def test_before_the_first_step_there_is_no_last_step(record, scrape):
    """A rank that has not stepped shows zero steps, and no time of a last step."""
    record()
    found = scrape()
    assert found.value("training_steps_total") == 0
    assert not found.find("training_last_step_timestamp_seconds")
    assert not found.find("training_phase_in_progress_seconds")


def test_phase_in_progress_counts_from_its_start(record, scrape):
    """The gauge is the time since the phase began, by the monotonic clock."""
    rank = record()
    rank.writer.words[rank.writer.phase_word] = pack_phase(Phase.COLLECTIVE_WAIT, time.monotonic_ns() - 90 * 10**9)
    seconds = scrape().value("training_phase_in_progress_seconds", rank="0", phase="collective_wait")
    assert 90 <= seconds < 120


def test_own_series(record, scrape):
    """The agent tells its version, its segments, its cost and its faults, zeros included."""
    record()
    found = scrape()
    assert found.value("training_exporter_build_info", host="node-a", version=__version__) == 1
    assert found.value("training_exporter_segments", host="node-a", state="live") == 1
    assert found.value("training_exporter_segments", host="node-a", state="ended") == 0
    assert found.value("training_exporter_errors_total", rank="", run="", host="node-a", reason="segment") == 0
    assert scrape().value("training_exporter_scrape_seconds_total", host="node-a") > 0


def test_every_family_is_as_catalogued(record, scrape):
    """Names, types, help and label names are those of the catalog, and all but what needs several ranks
    or a look at the host is there."""
    record().step(input_ready=MS, step=MS)
    rank = record(1)
    rank.writer.words[rank.writer.phase_word] = pack_phase(Phase.OTHER, time.monotonic_ns())
    rank.writer.set_loader(workers=2, ready=1)
    rank.writer.observe_production(MS)
    rank.writer.observe_bucket(0, MS, MS)
    rank.writer.account(0, samples=4, padded=1, identified=3, digest=7, duplicates=1)
    rank.writer.end_epoch(complete=True)
    found = {family.name: family for family in scrape().families}
    for metric in catalog.METRICS:
        if metric in (*catalog.STEP_ALIGNED, *catalog.HOST_EVIDENCE):
            continue
        family = found.pop(metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name)
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert sample.name in metric.series_names
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert not found


def test_production_of_batches_by_workers(record, scrape):
    """What workers took is told by shard, with how many there are and how many batches were ready."""
    rank = record()
    rank.writer.set_shard("shard-3")
    rank.writer.set_loader(workers=4, ready=3)
    for _ in range(3):
        rank.writer.observe_production(250 * MS)
    found = scrape()
    assert found.value("training_batch_production_seconds_sum", rank="0", shard="shard-3") == 0.75
    assert found.value("training_batch_production_seconds_bucket", rank="0", le="0.125") == 0
    assert found.value("training_batch_production_seconds_bucket", rank="0", le="0.25") == 3
    assert found.value("training_loader_workers", rank="0") == 4
    assert found.value("training_loader_queue_depth", rank="0") == 3


def test_gradient_buckets_are_shown_where_they_are_timed(record, scrape):
    """Each by its index, and other; a rank that times none has no series of them."""
    rank = record()
    record(1).step(step=MS)
    durations = [MS // 20, 3 * MS, 70_000 * MS]
    for ns in durations:
        rank.writer.observe_bucket(2, 10 * ns, ns)
    rank.writer.observe_bucket(OTHER_BUCKET, MS, MS)
    found = scrape()
    expected = {
        floatToGoString(edge_seconds(edge)): sum(ns / 1e9 <= edge_seconds(edge) for ns in durations)
        for edge in SHORT_EDGES
    }
    shown = found.find("training_bucket_reduction_seconds_bucket", bucket="2")
    assert {sample.labels["le"]: sample.value for sample in shown} == {**expected, "+Inf": 3}
    for name, factor in (("ready", 10), ("reduction", 1)):
        sums = found.find(f"training_bucket_{name}_seconds_sum")
        assert [(sample.labels["rank"], sample.labels["bucket"]) for sample in sums] == [("0", "2"), ("0", "other")]
        assert sums[0].value == pytest.approx(factor * sum(durations) / 1e9)
        assert found.value(f"training_bucket_{name}_seconds_count", bucket="other") == 1


def test_without_workers_there_is_no_queue(record, scrape):
    """A loader without workers says so, and has no queue to be empty; a rank without a loader says neither."""
    record().writer.set_loader(workers=0, ready=0)
    record(1)
    found = scrape()
    assert found.value("training_loader_workers", rank="0") == 0
    assert not found.find("training_loader_queue_depth")
    assert not found.find("training_loader_workers", rank="1")


@pytest.mark.parametrize("accept", ["text/plain", OPENMETRICS])
def test_no_series_appears_twice(record, scrape, accept):
    """Two runs with two ranks each give distinct series in either format."""
    for run in ("one", "two"):
        for number in range(2):
            record(number, run=run).step(input_ready=MS, step=MS)
    found = scrape(accept)
    keys = [(s.name, tuple(sorted(s.labels.items()))) for s in found.samples]
    assert len(keys) == len(set(keys))
    assert len(found.find("training_world_size")) == 2
    assert len(found.find("training_steps_total")) == 4


def test_promtool_has_no_complaint(record, scrape):
    """Prometheus' own linter accepts the names, types and help texts."""
    record().step(input_ready=MS, step=MS)
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape().text, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


def test_exemplar_is_the_slowest_recent_step(record, scrape):
    """OpenMetrics carries, per shard, the slowest recent step's number on the bucket it falls in."""
    rank = record()
    rank.writer.set_shard("a")
    for ms in (20, 700, 30):
        rank.step(input_ready=ms * MS, step=ms * MS)
    rank.writer.set_shard("b")
    before = time.time()
    rank.step(input_ready=50 * MS, step=50 * MS)
    found = scrape(OPENMETRICS).find("training_phase_duration_seconds_bucket")
    edges = [0.0, *map(edge_seconds, FINE_EDGES), float("inf")]
    shown = {}
    for sample in found:
        if sample.exemplar is not None:
            assert sample.labels["phase"] == "input_ready"
            upper = float(sample.labels["le"])
            assert edges[edges.index(upper) - 1] < sample.exemplar.value <= upper
            shown[sample.labels["shard"]] = sample.exemplar
    assert {shard: exemplar.labels for shard, exemplar in shown.items()} == {"a": {"step": "2"}, "b": {"step": "4"}}
    assert shown["a"].value == 0.7
    assert before <= float(shown["b"].timestamp) <= time.time()
    assert " # {" not in scrape().text


def test_exemplars_forget_old_steps(record, scrape):
    """A slow step from minutes ago is no exemplar any more, but stays in the histogram."""
    rank = record()
    rank.step(input_ready=700 * MS, ended_ns=time.monotonic_ns() - 300 * 10**9)
    rank.step(input_ready=20 * MS)
    found = scrape(OPENMETRICS)
    shown = [s.exemplar for s in found.find("training_phase_duration_seconds_bucket") if s.exemplar is not None]
    assert [exemplar.labels["step"] for exemplar in shown] == ["2"]
    assert found.value("training_phase_duration_seconds_count", phase="input_ready") == 2

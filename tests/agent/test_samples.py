"""What an agent says about the samples of a rank's epochs: a constant number of series, and none that changes."""

from __future__ import annotations

import subprocess
import sys

from prometheus_client.parser import text_string_to_metric_families as parse

from rank_exporter.agent.service import Service
from rank_exporter.config import AgentSettings


def test_only_the_epoch_that_ended_last_is_told(record, scrape):
    """That in progress has another digest each moment; that before gives way, so that series do not add up."""
    rank = record(3, world_size=4)
    rank.writer.account(0, samples=12, padded=2, identified=10, digest=0xABC, duplicates=0)
    assert not scrape().find("training_sample_digest_info")
    rank.writer.end_epoch(complete=True)
    rank.writer.account(1, samples=4, padded=0, identified=4, digest=0xDEF, duplicates=3)
    [shown] = scrape().find("training_sample_digest_info")
    about = {name: value for name, value in shown.labels.items() if name not in ("run", "host", "started")}
    assert about == {
        "rank": "3",
        "epoch": "0",
        "samples": "12",
        "padded": "2",
        "digest": "0000000000000abc",
        "complete": "true",
        "world_size": "4",
    }
    assert shown.value == 1
    assert shown.labels["started"].isdigit()
    assert scrape().value("training_duplicate_samples_total", rank="3") == 3
    rank.writer.end_epoch(complete=False)
    [shown] = scrape().find("training_sample_digest_info")
    assert (shown.labels["epoch"], shown.labels["complete"]) == ("1", "false")


def test_a_rank_that_is_gone_tells_the_epoch_it_was_in(record, scrape):
    """So that restarts can be reconciled; the one before it stays."""
    rank = record()
    rank.writer.account(0, samples=8, padded=0, identified=8, digest=2**64 - 1, duplicates=0)
    rank.writer.end_epoch(complete=True)
    rank.writer.account(1, samples=4, padded=0, identified=4, digest=1, duplicates=0)
    scrape()
    rank.writer.close()
    shown = [
        (one.labels["epoch"], one.labels["digest"], one.labels["complete"])
        for one in scrape().find("training_sample_digest_info")
    ]
    assert shown == [("0", "f" * 16, "true"), ("1", "0" * 15 + "1", "false")]


def test_a_digest_that_does_not_cover_all_samples_is_not_shown(record, scrape):
    """It could be mistaken for that of another multiset."""
    rank = record()
    rank.writer.account(0, samples=8, padded=0, identified=7, digest=5, duplicates=0)
    rank.writer.end_epoch(complete=True)
    [shown] = scrape().find("training_sample_digest_info")
    assert (shown.labels["samples"], shown.labels["digest"]) == ("8", "")


def test_a_restart_does_not_hide_what_the_rank_took_before_it(record, directory):
    """The process that was there before keeps its account until it was surely scraped, and nothing else of it."""
    now = [0.0]
    service = Service(AgentSettings(directory=directory, host="node-a", linger_seconds=60), clock=lambda: now[0])

    def shown() -> list[tuple[str, str]]:
        families = parse(service.metrics("text/plain")[0].decode())
        samples = [sample for family in families for sample in family.samples]
        assert sum(sample.name == "training_steps_total" for sample in samples) == 1
        infos = [sample.labels for sample in samples if sample.name == "training_sample_digest_info"]
        return [(labels["epoch"], labels["samples"]) for labels in infos]

    first = record()
    first.writer.account(4, samples=8, padded=0, identified=8, digest=1, duplicates=0)
    assert shown() == []
    first.writer.close()
    assert shown() == [("4", "8")]
    second = record()
    assert shown() == [("4", "8")]
    second.writer.account(4, samples=16, padded=0, identified=16, digest=2, duplicates=0)
    second.writer.end_epoch(complete=True)
    assert sorted(shown()) == [("4", "16"), ("4", "8")]
    now[0] = 61.0
    assert shown() == [("4", "16")]
    service.close()


def test_the_digest_of_a_rank_that_was_killed_is_not_trusted(directory, scrape):
    """Its last samples may not be in it. The epoch before is whole."""
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from rank_exporter.identity import Identity\n"
        "from rank_exporter.segment.writer import SegmentWriter\n"
        "identity = Identity(run='r', rank=0, local_rank=0, world_size=1, host='h')\n"
        "writer = SegmentWriter.create(Path(sys.argv[1]), identity, skew_budget_ratio=0.1)\n"
        "writer.account(0, samples=8, padded=0, identified=8, digest=5, duplicates=0)\n"
        "writer.end_epoch(complete=True)\n"
        "writer.account(1, samples=4, padded=0, identified=4, digest=6, duplicates=0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(directory)], check=False)
    shown = [(one.labels["epoch"], one.labels["digest"]) for one in scrape().find("training_sample_digest_info")]
    assert shown == [("0", "0" * 15 + "5"), ("1", "")]

"""Segment files that are no good: counted once, skipped, and never in the way of the others."""

from __future__ import annotations

import os
import zlib
from dataclasses import replace

import pytest

from rank_exporter.agent.collector import Collector
from rank_exporter.agent.faults import REASONS, Faults
from rank_exporter.agent.linger import Linger
from rank_exporter.agent.residence import Residence
from rank_exporter.segment import layout

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


@pytest.fixture
def good(record):
    """A rank that must stay on show whatever lies beside it."""
    rank = record(0)
    rank.step(step=1_000_000)
    return rank


def faults(found):
    return found.value("training_exporter_errors_total", rank="", reason="segment")


def spoil(data, name):
    """A copy of a good segment, spoilt in one way."""
    magic, version, crc, size, length = layout.PREAMBLE.unpack_from(data)
    preamble = {
        "foreign": (magic + 1, version, crc, size, length),
        "version": (magic, version + 1, crc, size, length),
        "crc": (magic, version, crc ^ 1, size, length),
        "size": (magic, version, crc, size - 8, length),
        "length": (magic, version, crc, size, 2**40),
    }
    if name in preamble:
        return layout.PREAMBLE.pack(*preamble[name]) + data[layout.PREAMBLE.size :]
    return {
        "empty": b"",
        "garbage": os.urandom(len(data)),
        "text": b"not a segment",
        "truncated": data[: layout.RING_OFFSET],
        "header_only": data[: layout.PREAMBLE.size],
        "too_long": data + b"\0",
    }[name]


SPOILT = [
    *("foreign", "version", "crc", "size", "length"),
    *("empty", "garbage", "text", "truncated", "header_only", "too_long"),
]


@pytest.mark.parametrize("name", SPOILT)
def test_a_spoilt_segment_is_counted_once_and_skipped(good, directory, scrape, capsys, name):
    """It is counted and said once however often it is scraped, stays where it is, and the others are served."""
    bad = directory / f"{name}.segment"
    bad.write_bytes(spoil(good.path.read_bytes(), name))
    for _ in range(3):
        found = scrape()
        assert faults(found) == 1
        assert found.ranks() == {"0"}
        assert found.value("training_exporter_segments", state="live") == 1
    assert capsys.readouterr().err.count(str(bad)) == 1
    assert bad.exists()


def test_each_spoilt_segment_is_counted(good, directory, scrape):
    """Two bad files count as two; one that is removed and comes again counts again."""
    for name in ("a", "b"):
        (directory / f"{name}.segment").write_text("bad")
    assert faults(scrape()) == 2
    (directory / "a.segment").unlink()
    assert faults(scrape()) == 2
    (directory / "a.segment").write_text("bad again")
    assert faults(scrape()) == 3


@pytest.mark.parametrize("damage", ["truncated", "facts", "facts_length", "facts_kind", "shard_slot"])
def test_a_segment_that_goes_bad_while_it_is_served(good, record, scrape, damage):
    """A segment that is cut short or overwritten while it is open is dropped and counted; the others are served."""
    victim = record(1)
    victim.writer.set_facts({"device": "cpu"})
    victim.step(step=1_000_000)
    assert scrape().ranks() == {"0", "1"}
    path = victim.path
    if damage == "truncated":
        # Let go first: this process would be killed by a store into the part that is gone.
        victim.writer.detach()
        os.truncate(path, layout.RING_OFFSET - 8)
    elif damage == "facts":
        victim.writer.set_facts({"device": "cuda:0"})
        with path.open("r+b") as file:
            file.seek(layout.FACTS_OFFSET + layout.FACTS_HEADER.size)
            file.write(b"?")
    elif damage == "facts_length":
        victim.writer.set_facts({"device": "cuda:0"})
        with path.open("r+b") as file:
            file.seek(layout.FACTS_OFFSET)
            file.write(layout.FACTS_HEADER.pack(2**31, 0))
    elif damage == "facts_kind":
        victim.writer.set_facts({"device": "cuda:0"})
        with path.open("r+b") as file:
            file.seek(layout.FACTS_OFFSET)
            file.write(layout.FACTS_HEADER.pack(2, zlib.crc32(b"[]")) + b"[]")
    else:
        victim.writer.words[layout.WORDS_OFFSET // 8 + layout.Word.CURRENT_SHARD] = 99
    for _ in range(3):
        found = scrape()
        assert found.ranks() == {"0"}
        assert faults(found) == 1
    assert path.exists()


def test_what_is_no_file_is_counted(good, directory, scrape):
    """A folder or a broken link with a segment's name is counted and skipped."""
    (directory / "loop.segment").symlink_to(directory / "loop.segment")
    (directory / "folder.segment").mkdir()
    for _ in range(2):
        found = scrape()
        assert faults(found) == 2
        assert found.ranks() == {"0"}


def test_a_ring_that_is_cut_off(good, record, scrape, capsys):
    """If only the recent steps are lost, text still shows the rank; OpenMetrics, which reads them, leaves it out."""
    victim = record(1)
    victim.step(input_ready=1_000_000, step=1_000_000)
    assert scrape().ranks() == {"0", "1"}
    victim.writer.detach()
    os.truncate(victim.path, layout.RING_OFFSET + 8)
    for _ in range(2):
        found = scrape(OPENMETRICS)
        assert found.ranks() == {"0"}
        assert not found.find("training_phase_duration_seconds_count", rank="1")
    assert faults(scrape()) == 1
    assert capsys.readouterr().err.count(str(victim.path)) == 1


def test_a_fault_of_our_own_in_one_segment_spares_the_others(good, record, directory, capsys):
    """If one rank cannot be rendered, nothing of it is shown and all of the others; it is counted and said once."""
    record(1).step(step=1_000_000)
    counted = Faults()
    residence = Residence(directory, Linger(None), counted)
    residence.scan()
    broken = residence.served[1]
    broken.snapshot = replace(broken.snapshot, histograms=broken.snapshot.histograms[:-1])
    collector = Collector("node-a", counted)
    for _ in range(2):
        families = collector.collect(residence.served, exemplar_seconds=None).collect()
        samples = [sample for family in families for sample in family.samples]
        assert {s.labels["rank"] for s in samples if s.labels.get("run") == "job" and "rank" in s.labels} == {"0"}
        assert counted.counts == {reason: int(reason == "render") for reason in REASONS}
    assert capsys.readouterr().err.count("cannot be rendered") == 1
    residence.close()

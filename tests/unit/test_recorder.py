"""Steps that follow each other closely are committed together, and none is lost or late by more than that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rank_exporter.identity import Identity
from rank_exporter.instrument.recorder import Recorder
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader
from rank_exporter.segment.writer import SegmentWriter

MS = 10**6


class Loop:
    """A training loop on a clock of its own."""

    def __init__(self, directory: Path) -> None:
        identity = Identity(run="held", rank=0, local_rank=0, world_size=1, host="a")
        self.now = 10**12
        self.writer = SegmentWriter.create(directory, identity, skew_budget_ratio=0.1, clock=lambda: self.now)
        assert self.writer.path is not None
        self.reader = SegmentReader(self.writer.path)
        self.recorder = Recorder(self.writer, rank=0)
        self.recorder.timeline.use_clock(lambda: self.now)
        self.recorder.advance()

    def step(self, ms: float, samples: int = 0) -> None:
        self.writer.count(samples, 0, 0)
        self.recorder.timeline.enter(Phase.OPTIMIZER)
        self.now += int(ms * MS)
        self.recorder.timeline.leave(Phase.OPTIMIZER)
        self.recorder.advance()

    def published(self) -> int:
        snapshot = self.reader.snapshot()
        assert snapshot is not None
        return snapshot.word(Word.STEPS)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Loop]:
    made = Loop(tmp_path)
    yield made
    made.reader.close()


def test_long_steps_are_published_as_they_end(loop: Loop) -> None:
    """None of a loop whose steps take longer than the hold is held."""
    for number in range(1, 6):
        loop.step(20)
        assert loop.published() == number


def test_short_steps_are_published_together(loop: Loop) -> None:
    """At most 20 ms of them are held back, each with what was counted in it."""
    loop.step(20)
    seen = []
    for number in range(45):
        loop.step(1, samples=number)
        seen.append(loop.published())
    assert sorted(set(seen)) == [1, 21, 41]
    assert loop.recorder.steps_ended == 46
    loop.recorder.close()
    records = loop.reader.steps()
    assert list(records["step"]) == list(range(1, 47))
    assert list(records["samples"]) == [0, *range(45)]
    assert set(records["ns"][1:, Phase.STEP]) == {MS}


def test_a_long_step_takes_those_before_it_along(loop: Loop) -> None:
    """What was held is older than what ends now."""
    loop.step(20)
    loop.step(1)
    loop.step(2)
    loop.step(500)
    assert loop.published() == 4
    assert [int(ns) // MS for ns in loop.reader.steps()["ns"][:, Phase.STEP]] == [20, 1, 2, 500]


def test_each_record_keeps_the_time_of_its_own_end(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that of their common commit."""
    monkeypatch.setattr(time, "time_ns", lambda: loop.now + 5)
    loop.step(20)
    for _ in range(20):
        loop.step(1)
    ends = loop.reader.steps()["end_unix_ns"]
    assert list(ends - ends[0]) == [number * MS for number in range(21)]


def test_a_step_that_cannot_be_published_is_left_out_alone(loop: Loop, caplog: pytest.LogCaptureFixture) -> None:
    """Of those published with it none is lost, and it is counted."""
    loop.step(20)
    for number in range(1, 5):
        loop.step(1, samples=-(2**70) if number == 2 else number)
    loop.step(20)
    assert loop.published() == 5
    assert list(loop.reader.steps()["samples"]) == [0, 1, 3, 4, 0]
    snapshot = loop.reader.snapshot()
    assert snapshot is not None
    assert snapshot.word(Word.SAMPLES) == 8
    assert snapshot.word(Word.ERRORS + ERROR_REASONS.index("step")) == 1
    assert len(caplog.records) == 1


def test_forked_child_publishes_nothing_of_its_parent(loop: Loop) -> None:
    """What was held as it forked is the parent's."""
    loop.step(20)
    loop.step(1)
    loop.recorder.abandon()
    loop.recorder.close()
    assert loop.published() == 1

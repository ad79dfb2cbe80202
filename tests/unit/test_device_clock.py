"""Device time through a device of the test's own: a queue of work that runs behind the host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rank_exporter.identity import Identity
from rank_exporter.instrument.recorder import Recorder
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import BY_DEVICE, ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader
from rank_exporter.segment.writer import SegmentWriter

MS = 1_000_000


class Event:
    def __init__(self) -> None:
        self.at = 0


class Device:
    """Takes work from the host in order. ``now`` is the host's time, which the test moves; waiting is not offered."""

    def __init__(self) -> None:
        self.now = 1000 * MS
        self.free_at = 0
        self.made = 0
        self.pool: list[Event] = []
        self.capturing = False
        self.broken = False

    def launch(self, ns: int) -> None:
        self.free_at = max(self.free_at, self.now) + ns

    def host(self, ns: int) -> None:
        self.now += ns

    def record(self) -> Event | None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        if self.capturing:
            return None
        if not self.pool:
            self.made += 1
            self.pool.append(Event())
        event = self.pool.pop()
        event.at = max(self.free_at, self.now)
        return event

    def is_past(self, event: Event) -> bool:
        return event.at <= self.now

    def between(self, first: Event, second: Event) -> int:
        assert self.is_past(first)
        assert self.is_past(second)
        return second.at - first.at

    def release(self, event: Event) -> None:
        assert event not in self.pool
        self.pool.append(event)


@pytest.fixture
def device() -> Device:
    return Device()


class Rig:
    """A recorder on the device, whose host clock is the device's ``now``, and the records it published."""

    def __init__(self, directory: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
        identity = Identity(run="r", rank=0, local_rank=0, world_size=1, host="h")
        monkeypatch.setattr("time.monotonic_ns", lambda: device.now)
        self.recorder = Recorder(
            SegmentWriter.create(directory, identity, skew_budget_ratio=0.1, clock=lambda: device.now), rank=0
        )
        assert self.recorder.writer.path is not None
        self.reader = SegmentReader(self.recorder.writer.path)
        self.device = device
        self.recorder.use_device(device)
        assert self.recorder._device is not None
        self.recorder._device._clock = lambda: device.now

    def during(self, phase: Phase, *, host: int = 0, kernel: int = 0) -> None:
        self.recorder.timeline.enter(phase)
        self.device.host(host)
        if kernel:
            self.device.launch(kernel)
        self.recorder.timeline.leave(phase)

    def iteration(self, *, fetch: int, forward: int, backward: int, optimizer: int) -> None:
        """One step as an asynchronous host sees it: launching takes it 0.1 ms, whatever the device makes of it."""
        self.recorder.timeline.advance()
        self.during(Phase.INPUT_READY, host=fetch)
        self.during(Phase.FORWARD, host=MS // 10, kernel=forward)
        self.during(Phase.BACKWARD, host=MS // 10, kernel=backward)
        self.during(Phase.OPTIMIZER, host=MS // 10, kernel=optimizer)
        self.recorder.writer.count(1, 0, 0)

    def steps(self) -> Any:
        self.recorder.publish()
        return self.reader.steps()

    def ms(self) -> list[dict[str, float]]:
        return [
            {phase.label: ns / MS for phase, ns in zip(Phase, step["ns"].tolist(), strict=True) if ns}
            for step in self.steps()
        ]


@pytest.fixture
def rig(tmp_path: Path, device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    made = Rig(tmp_path, device, monkeypatch)
    yield made
    made.recorder.close()
    made.reader.close()


def test_fetch_hidden_behind_device_work_is_no_wait(rig: Rig, device: Device) -> None:
    """The host spends nearly all its time in the loader, and the device waits for none of it."""
    for _ in range(20):
        rig.iteration(fetch=6 * MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    device.host(1000 * MS)
    rig.recorder.timeline.advance()
    steps = rig.ms()[2:]
    assert len(steps) == 18
    for step in steps:
        assert step.get("input_ready", 0) == 0
        assert (step["forward"], step["backward"], step["optimizer"], step["step"]) == (3, 6, 1, 10)


def test_fetch_that_starves_the_device_is_a_wait_of_what_is_left(rig: Rig, device: Device) -> None:
    """Of a fetch of 12 ms behind 10 ms of work, the device waits the rest, with the host's launches."""
    for _ in range(20):
        rig.iteration(fetch=12 * MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    device.host(1000 * MS)
    rig.recorder.timeline.advance()
    for step in rig.ms()[2:]:
        assert step["step"] == pytest.approx(12.3)
        assert step["input_ready"] == pytest.approx(2.2)
        assert step["input_ready"] / step["step"] < 0.2


def test_steps_are_published_once_the_device_is_past_them_and_in_order(rig: Rig, device: Device) -> None:
    """Nothing waits: a step stands over until its events are past, with what it was counted with."""
    rig.iteration(fetch=MS, forward=50 * MS, backward=50 * MS, optimizer=MS)
    rig.iteration(fetch=MS, forward=50 * MS, backward=50 * MS, optimizer=MS)
    rig.recorder.timeline.advance()
    assert rig.ms() == []
    device.host(105 * MS)
    rig.iteration(fetch=MS, forward=MS, backward=MS, optimizer=MS)
    rig.recorder.timeline.advance()
    steps = rig.steps()
    assert steps["step"].tolist() == [1]
    device.host(1000 * MS)
    rig.iteration(fetch=MS, forward=MS, backward=MS, optimizer=MS)
    rig.recorder.timeline.advance()
    steps = rig.steps()
    assert steps["step"].tolist() == [1, 2, 3]
    assert steps["samples"].tolist() == [1, 1, 1]
    assert (steps["flags"] == BY_DEVICE).all()


def test_pool_of_events_does_not_grow(rig: Rig, device: Device) -> None:
    """A thousand steps use the events of a few."""
    for _ in range(50):
        rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    made = device.made
    for _ in range(1000):
        rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    assert device.made == made
    assert made < 16 * 12 + 20


def test_device_that_falls_far_behind_is_timed_by_the_host(rig: Rig, device: Device) -> None:
    """With too many steps unresolved the oldest are published as the host saw them, and marked so."""
    for _ in range(40):
        rig.iteration(fetch=MS, forward=10_000 * MS, backward=0, optimizer=0)
    steps = rig.steps()
    assert len(steps) >= 20
    assert not steps["flags"].any()


def test_nothing_is_recorded_into_a_graph_that_is_being_captured(rig: Rig, device: Device) -> None:
    """Phases within a capture merge into what follows it."""
    rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    rig.recorder.timeline.advance()
    rig.during(Phase.INPUT_READY, host=MS)
    device.capturing = True
    rig.during(Phase.FORWARD, kernel=3 * MS)
    device.capturing = False
    rig.during(Phase.BACKWARD, kernel=6 * MS)
    rig.during(Phase.OPTIMIZER, kernel=MS)
    device.host(1000 * MS)
    rig.recorder.timeline.advance()
    assert "forward" not in rig.ms()[1]


def test_failing_device_is_said_once_and_timed_by_the_host(
    rig: Rig, device: Device, caplog: pytest.LogCaptureFixture
) -> None:
    """A device in error stops no training here; what remains is the host's time."""
    rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    device.broken = True
    for _ in range(5):
        rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    rig.recorder.timeline.advance()
    assert len(rig.steps()) == 6
    assert len(caplog.records) == 1
    assert "phases are timed by the host, as the device fails: CUDA error" in caplog.records[0].getMessage()
    found = rig.reader.snapshot()
    assert found is not None
    assert found.word(Word.ERRORS + ERROR_REASONS.index("device")) == 1
    assert found.facts["clock"] == "host"


def test_last_steps_are_published_when_recording_stops(rig: Rig) -> None:
    """What the device has not passed by then is published as the host saw it."""
    rig.iteration(fetch=MS, forward=3000 * MS, backward=MS, optimizer=MS)
    rig.recorder.close()
    assert rig.steps()["flags"].tolist() == [0]


def test_endless_phases_within_a_step_do_not_hoard_events(rig: Rig, device: Device) -> None:
    """An evaluation of ten thousand batches between two steps is timed by the host, and so are those two steps."""
    rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    for _ in range(10_000):
        rig.during(Phase.EVAL, host=MS)
    rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    rig.iteration(fetch=MS, forward=3 * MS, backward=6 * MS, optimizer=MS)
    device.host(1000 * MS)
    rig.recorder.timeline.advance()
    assert device.made < 5000
    assert rig.steps()["flags"].tolist() == [0, 0, BY_DEVICE]

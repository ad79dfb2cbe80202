"""Gradient buckets on a clock of the test's own: a device that runs behind the host, and faults of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rank_exporter.identity import Identity
from rank_exporter.instrument.buckets import BucketTimes, HostTimer
from rank_exporter.instrument.recorder import Recorder
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader
from rank_exporter.segment.request import ProfileRequest
from rank_exporter.segment.writer import SegmentWriter

MS = 1_000_000


class Event:
    def __init__(self) -> None:
        self.at = 0


class Device:
    """Stamps events where its queue of work ends; ``now`` is the host's time. Asking it for a span is no waiting."""

    def __init__(self) -> None:
        self.now = self.free_at = 1000 * MS
        self.made = 0
        self.pool: list[Event] = []
        self.capturing = self.broken = False

    def launch(self, ns: int) -> None:
        self.free_at = max(self.free_at, self.now) + ns

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
        assert self.is_past(second)
        return second.at - first.at

    def release(self, event: Event) -> None:
        assert event not in self.pool
        self.pool.append(event)


class Future:
    """Completes when it is told to, and calls back as torch's do."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self.callbacks.append(callback)

    def complete(self) -> None:
        for callback in self.callbacks:
            callback(self)


class Rig:
    def __init__(self, directory: Path, device: Device) -> None:
        identity = Identity(run="r", rank=0, local_rank=0, world_size=1, host="h")
        self.recorder = Recorder(SegmentWriter.create(directory, identity, skew_budget_ratio=0.1), rank=0)
        assert self.recorder.writer.path is not None
        self.reader = SegmentReader(self.recorder.writer.path)
        self.device = device
        self.times = BucketTimes(self.recorder, device)

    def bucket(self, slot: int, *, kernel: int, reduction: int) -> Future:
        """A kernel, after which the bucket is full, and what reduces it, queued by a host that waits for neither."""
        self.device.launch(kernel)
        flight = self.times.enter(slot)
        self.device.launch(reduction)
        future = Future()
        if flight is not None:
            self.times.follow(flight, future)
        return future

    def backward(self, *reductions: int) -> None:
        """A bucket for each, all told to be complete as soon as they are launched, as a device's are."""
        self.times.begins()
        for slot, reduction in enumerate(reductions):
            self.bucket(slot, kernel=2 * MS, reduction=reduction).complete()
        self.times.ends()

    def counts(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """Of the first three slots: how many, and the sums in ms, until full and of the reduction."""
        found = self.reader.snapshot()
        assert found is not None
        numbers = found.buckets[:, :3, 1:].sum(axis=2).tolist()
        sums = (found.buckets[:, :3, 0] // MS).tolist()
        return numbers[0], numbers[1], sums[0], sums[1]

    def errors(self) -> int:
        found = self.reader.snapshot()
        assert found is not None
        return found.word(Word.ERRORS + ERROR_REASONS.index("hook"))


@pytest.fixture
def device() -> Device:
    return Device()


@pytest.fixture
def rig(tmp_path: Path, device: Device) -> Iterator[Rig]:
    made = Rig(tmp_path, device)
    yield made
    made.recorder.close()
    made.reader.close()


def test_device_times_are_read_once_it_is_past_them(rig: Rig, device: Device) -> None:
    """A host that runs ahead waits for nothing; what the device took is published when it is known."""
    rig.backward(5 * MS, 7 * MS)
    rig.times.begins()
    assert rig.counts()[0] == [0, 0, 0]
    rig.times.ends()
    device.now += 10 * MS
    rig.times.begins()
    assert rig.counts() == ([1, 0, 0], [1, 0, 0], [2, 0, 0], [5, 0, 0])
    rig.times.ends()
    device.now += 100 * MS
    rig.times.begins()
    assert rig.counts() == ([1, 1, 0], [1, 1, 0], [2, 9, 0], [5, 7, 0])


def test_pool_of_events_does_not_grow(rig: Rig, device: Device) -> None:
    """A thousand backwards use the events of a few, those that reduce nothing among them."""
    for number in range(1000):
        rig.backward(*[MS] * (number % 4))
        if number == 20:
            made = device.made
        device.now += 30 * MS
    assert device.made == made


def test_device_far_behind_is_not_followed_for_ever(rig: Rig, device: Device) -> None:
    """What stands over is bounded, and recording goes on once the device has caught up."""
    for _ in range(600):
        rig.backward(MS, MS)
    assert device.made < 3100
    device.now = device.free_at
    rig.backward(MS, MS)
    before = rig.counts()[0]
    assert before == [512, 512, 0]
    device.now += 30 * MS
    rig.backward()
    assert rig.counts()[0] == [513, 513, 0]


def test_capture_is_left_alone(rig: Rig, device: Device) -> None:
    """Where no event may be recorded, nothing is timed: from the beginning, or from the middle of a backward."""
    device.capturing = True
    rig.backward(MS, MS)
    device.capturing = False
    rig.times.begins()
    device.capturing = True
    rig.bucket(0, kernel=MS, reduction=MS).complete()
    device.capturing = False
    future = rig.bucket(1, kernel=MS, reduction=MS)
    device.capturing = True
    future.complete()
    device.capturing = False
    rig.times.ends()
    rig.backward(MS)
    device.now += 100 * MS
    rig.backward()
    assert rig.counts()[0] == [1, 0, 0]
    assert rig.errors() == 0


def test_failing_device_is_said_once(rig: Rig, device: Device, caplog: pytest.LogCaptureFixture) -> None:
    """A device in error stops no training here, and no bucket is timed any more."""
    rig.times.begins()
    device.broken = True
    rig.bucket(0, kernel=MS, reduction=MS)
    rig.times.ends()
    rig.backward(MS, MS)
    device.broken = False
    rig.backward(MS, MS)
    rig.times.stop()
    assert rig.counts()[0] == [0, 0, 0]
    assert rig.errors() == 1
    assert ["gradient buckets are timed no longer: CUDA error" in record.getMessage() for record in caplog.records] == [
        True
    ]


def test_fault_on_another_thread_is_told_by_the_recorders_own(rig: Rig, device: Device) -> None:
    """A completion that cannot be stamped writes nothing by itself: the next backward says so."""
    rig.times.begins()
    future = rig.bucket(0, kernel=MS, reduction=MS)
    rig.times.ends()
    device.broken = True
    future.complete()
    device.broken = False
    assert rig.errors() == 0
    rig.times.begins()
    assert rig.errors() == 1


def test_bucket_that_is_late_is_counted_late(rig: Rig, device: Device) -> None:
    """A future that completes after backward has returned is read by a later one; order is kept."""
    rig.times.begins()
    first = rig.bucket(0, kernel=MS, reduction=0)
    rig.bucket(1, kernel=MS, reduction=0).complete()
    rig.times.ends()
    device.now += 10 * MS
    rig.backward()
    assert rig.counts()[0] == [0, 0, 0]
    first.complete()
    rig.backward()
    assert rig.counts()[:2] == ([1, 1, 0], [1, 1, 0])
    assert rig.counts()[3][0] == 9


def test_what_is_reduced_outside_of_backward_is_not_timed(rig: Rig, device: Device) -> None:
    """A rank that has run out of input takes part in the others' reductions, which say nothing of it."""
    rig.bucket(0, kernel=MS, reduction=MS).complete()
    rig.backward(MS)
    rig.bucket(0, kernel=MS, reduction=MS).complete()
    device.now += 100 * MS
    rig.backward()
    assert rig.counts()[0] == [1, 0, 0]


def test_profiled_steps_are_left_out(rig: Rig, device: Device) -> None:
    """What the profiler slows down is in no histogram."""
    rig.recorder.profile(ProfileRequest(first=1, last=2, directory="/nowhere"))
    rig.backward(MS)
    rig.recorder._abandon_profile()
    rig.backward(MS)
    device.now += 100 * MS
    rig.backward()
    assert rig.counts()[0] == [1, 0, 0]


def test_what_has_not_passed_is_forgotten_at_a_stop(rig: Rig, device: Device) -> None:
    """Nothing waits for the device then, and a completion after it is nobody's."""
    rig.times.begins()
    future = rig.bucket(0, kernel=MS, reduction=MS)
    rig.bucket(1, kernel=MS, reduction=100 * MS).complete()
    rig.times.stop()
    future.complete()
    device.now += 1000 * MS
    rig.backward(MS)
    device.now += 1000 * MS
    rig.backward()
    assert rig.counts()[0] == [1, 0, 0]


def test_host_has_always_passed_its_stamps() -> None:
    """Monotonic ns, and their difference."""
    timer = HostTimer()
    first, second = timer.record(), timer.record()
    assert timer.is_past(second)
    assert 0 <= timer.between(first, second) == second - first
    timer.release(first)

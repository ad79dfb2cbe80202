"""Times the gradient buckets of a rank: from the beginning of backward until full, and from there until reduced.

What is timed is stamped in three places: where backward begins, where the reducer hands a full bucket over, and where
its future completes, which may be on any thread. Stamps are read as a later backward begins, when all of them have
long passed, on the thread that records: nothing is ever waited for, and one thread alone writes to the segment.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .device import DeviceTimer
    from .recorder import Recorder

__all__ = ["BucketTimes", "Flight", "HostTimer"]

_IN_FLIGHT: Final = 1024
"""Buckets whose stamps have not passed yet: beyond these no more are timed, so that nothing grows for ever."""


class HostTimer:
    """The host's clock as a device timer: whatever it stamped has passed."""

    def record(self) -> int:
        return time.monotonic_ns()

    def is_past(self, _stamp: int) -> bool:
        return True

    def between(self, first: int, second: int) -> int:
        return second - first

    def release(self, stamp: int) -> None:
        """There is nothing to give back."""


class Flight:
    """One bucket of one backward, from full to reduced. Used again for another once its stamps were read.

    ``closes``: it was the last of its backward. ``lost``: it is known never to be reduced.
    """

    __slots__ = ("_times", "begun", "closes", "done", "entered", "lost", "slot")

    def __init__(self, times: BucketTimes) -> None:
        self._times = times
        self.slot = 0
        self.begun: Any = None
        self.entered: Any = None
        self.done: Any = None
        self.closes = self.lost = False

    def finished(self, _future: Any) -> None:
        """The future of its reduction has completed, on whatever thread: no more than a store."""
        try:
            self.done = self._times.timer.record()
        except Exception as error:  # noqa: BLE001 - told by the recorder's own thread
            self._times.error = error
        if self.done is None:
            self.lost = True


class BucketTimes:
    """The buckets of all models of one recorder. ``error``: what failed on another thread, if anything has.

    ``under_way``: a backward has begun and not ended.
    """

    __slots__ = ("_begun", "_failed", "_flights", "_free", "error", "recorder", "timer", "under_way")

    def __init__(self, recorder: Recorder, timer: DeviceTimer) -> None:
        self.recorder = recorder
        self.timer = timer
        self.error: Exception | None = None
        self.under_way = False
        self._begun: Any = None
        self._failed = False
        self._flights: deque[Flight] = deque()
        self._free: list[Flight] = []

    def begins(self) -> None:
        """A backward begins. On the recorder's thread."""
        self.under_way = True
        if self._failed:
            return
        try:
            self._drain()
            if not self.recorder.is_profiling:
                self._begun = self.timer.record()
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._fail(error)

    def ends(self) -> None:
        """It has returned or raised: what is reduced until the next begins, is reduced on behalf of other ranks."""
        self.under_way = False
        begun, self._begun = self._begun, None
        if begun is None:
            return
        try:
            if self._flights and self._flights[-1].begun is begun:
                self._flights[-1].closes = True
            else:
                self.timer.release(begun)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._fail(error)

    def enter(self, slot: int) -> Flight | None:
        """A bucket is full, and its reduction is about to begin. None: it is not timed."""
        begun = self._begun
        if begun is None or len(self._flights) >= _IN_FLIGHT:
            return None
        try:
            entered = self.timer.record()
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._fail(error)
            return None
        if entered is None:
            return None
        flight = self._free.pop() if self._free else Flight(self)
        flight.slot, flight.begun, flight.entered = slot, begun, entered
        self._flights.append(flight)
        return flight

    def follow(self, flight: Flight, future: Any) -> None:
        """Its reduction has begun, and ends as this future completes."""
        try:
            future.add_done_callback(flight.finished)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            flight.lost = True
            self.recorder.fault("hook", error)

    def stop(self) -> None:
        """Publish what has passed, and forget the rest."""
        self.ends()
        if not self._failed:
            try:
                self._drain()
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                self._fail(error)
        self._forget()

    def _drain(self) -> None:
        if self.error is not None:
            raise self.error
        flights, timer = self._flights, self.timer
        while flights:
            flight = flights[0]
            if not flight.lost:
                if flight.done is None or not timer.is_past(flight.done):
                    return
                ready = timer.between(flight.begun, flight.entered)
                self.recorder.writer.observe_bucket(flight.slot, ready, timer.between(flight.entered, flight.done))
                timer.release(flight.done)
            timer.release(flight.entered)
            if flight.closes:
                timer.release(flight.begun)
            flights.popleft()
            flight.begun = flight.entered = flight.done = None
            flight.closes = flight.lost = False
            self._free.append(flight)

    def _fail(self, error: Exception) -> None:
        self._failed = True
        self._forget()
        self.recorder.fault("hook", f"gradient buckets are timed no longer: {error}")

    def _forget(self) -> None:
        # Their futures may still complete: they are not used again.
        self._begun = None
        self._flights.clear()
        self._free.clear()

"""Times phases on the device, without ever waiting for it.

A host that runs ahead of its device cannot time it: what the host waits for is not what the device waits for. So at
every change of phase an event is recorded on the current stream, and read when the device has long passed it. Between
the events of a step lies all of the step's device time, so that phases add up on this clock as they do on the host's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ..phases import Phase

__all__ = ["DeviceClock", "DeviceTimer"]

_PHASES: Final = len(Phase)
_UNRESOLVED_STEPS: Final = 16
_EVENTS_OF_A_STEP: Final = 2048
"""Beyond these a step is timed by the host: nothing that training does may make the pool of events grow for ever."""


class DeviceTimer(Protocol):
    """A device that stamps events in the order of its work."""

    def record(self) -> Any | None:
        """An event behind the work queued so far; None where no event may be recorded now."""

    def is_past(self, event: Any) -> bool:
        """Whether the device has come past the event. Never waits."""

    def between(self, first: Any, second: Any) -> int:
        """Device time in ns between two events that are both past."""

    def release(self, event: Any) -> None:
        """The event may be recorded anew."""


@dataclass(slots=True)
class _Stamp:
    """An event, the phase that ended there, and the host's time of it in monotonic ns."""

    phase: int
    host_ns: int
    event: Any


@dataclass(slots=True)
class _Unresolved:
    """A step whose events the device has not passed yet: from the end of the step before it to its own."""

    stamps: list[_Stamp]
    spent: list[int]
    ended_ns: int
    taken: Any
    on_host: bool


class DeviceClock:
    """The host's clock for a Timeline, which records an event at each reading, and re-times the timeline's steps.

    phase: tells the phase that ends at a reading. take: what a step is to be published with, taken as it ends.
    publish(spent, ended_ns, taken, by_device): a step, in order, as soon as the device has passed it.
    fault: told once if the device fails; from then on the host's clock stands.
    """

    def __init__(
        self,
        timer: DeviceTimer,
        *,
        phase: Callable[[], int],
        take: Callable[[], Any],
        publish: Callable[[list[int], int, Any, bool], None],
        fault: Callable[[Exception], None],
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._timer = timer
        self._phase = phase
        self._take = take
        self._publish = publish
        self._fault = fault
        self._clock = clock
        self._stamps: list[_Stamp] = []
        self._host_steps = 0
        self._failed = False
        self._unresolved: deque[_Unresolved] = deque()

    def __call__(self) -> int:
        now = self._clock()
        if not self._failed:
            try:
                event = self._timer.record()
            except Exception as error:  # noqa: BLE001 - whatever the device says, training is not to hear it from us
                self._fail(error)
                return now
            if event is not None:
                self._stamps.append(_Stamp(self._phase(), now, event))
                if len(self._stamps) > _EVENTS_OF_A_STEP:
                    self._overflow()
        return now

    def commit(self, spent: list[int], ended_ns: int) -> None:
        """Takes the place of the timeline's own commit."""
        cut = next((n for n, stamp in enumerate(self._stamps) if stamp.host_ns >= ended_ns), len(self._stamps) - 1)
        on_host = self._failed or self._host_steps > 0 or cut < 1
        stamps = self._stamps[: cut + 1]
        # The event between two steps ends one and begins the other.
        self._stamps = self._stamps[max(cut, 0) :]
        self._host_steps = max(self._host_steps - 1, 0)
        self._unresolved.append(_Unresolved(stamps, spent, ended_ns, self._take(), on_host))
        self.resolve()

    @property
    def unresolved(self) -> int:
        """Steps that have ended and are not published."""
        return len(self._unresolved)

    def resolve(self, *, everything: bool = False) -> None:
        """Publish the steps that the device has passed; ``everything``: by the host's time where it has not."""
        while self._unresolved:
            step = self._unresolved[0]
            timed = False
            if not step.on_host:
                try:
                    timed = self._timer.is_past(step.stamps[-1].event)
                    spent = self._retime(step) if timed else step.spent
                except Exception as error:  # noqa: BLE001 - see __call__
                    self._fail(error)
                    timed = False
                if not timed and not self._failed and not everything and len(self._unresolved) <= _UNRESOLVED_STEPS:
                    return
            self._unresolved.popleft()
            self._publish(spent if timed else step.spent, step.ended_ns, step.taken, timed)
            for stamp in step.stamps[:-1]:
                self._timer.release(stamp.event)

    def _retime(self, step: _Unresolved) -> list[int]:
        spent = [0] * _PHASES
        for before, stamp in zip(step.stamps, step.stamps[1:], strict=False):
            if stamp.phase < _PHASES:
                spent[stamp.phase] += self._timer.between(before.event, stamp.event)
        spent[Phase.STEP] = sum(spent[: Phase.STEP])
        return spent

    def _overflow(self) -> None:
        # The step that may have ended among them, and the one in progress.
        self._host_steps = 2
        for stamp in self._stamps[1:-1]:
            self._timer.release(stamp.event)
        del self._stamps[1:-1]

    def _fail(self, error: Exception) -> None:
        if not self._failed:
            self._failed = True
            self._stamps.clear()
            self._fault(error)

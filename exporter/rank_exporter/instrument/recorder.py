"""What the hooks of one rank share: its timeline, its segment, and what happens to a fault."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from ..segment.layout import BY_DEVICE
from ..segment.writer import SegmentWriter, Taken
from ..timeline import Timeline
from .device import DeviceClock

if TYPE_CHECKING:
    from .device import DeviceTimer

__all__ = ["Recorder"]

log: Final = logging.getLogger("rank_exporter")


class Recorder:
    """Records one rank. Belongs to the thread that made it; hooks on other threads leave it alone.

    ``moves_on_at_forward``: no loader is watched, so that a forward after an optimizer begins the next step.
    ``optimizer_is_watched``: without one, each batch, or each forward without a loader, is a step of its own;
    ``has_input`` tells whether there was one since the loop last moved on. ``shard_is_given``: the user names shards,
    so that none is looked for; ``default_shard`` stands for a loader that names none.
    """

    __slots__ = (
        "_device",
        "_warned",
        "default_shard",
        "facts",
        "has_input",
        "moves_on_at_forward",
        "optimizer_is_watched",
        "rank",
        "shard_is_given",
        "thread",
        "timeline",
        "writer",
    )

    def __init__(self, writer: SegmentWriter, *, rank: int, default_shard: str | None = None) -> None:
        self.writer = writer
        self.rank = rank
        self.thread = threading.get_ident()
        self.moves_on_at_forward = True
        self.optimizer_is_watched = False
        self.has_input = False
        self.default_shard = default_shard
        self.shard_is_given = False
        self.facts = {"clock": "host"}
        self._warned: set[str] = set()
        self._device: DeviceClock | None = None
        self.timeline = Timeline(self._commit, live=writer.words, live_index=writer.phase_word)
        writer.set_facts(self.facts)

    def _commit(self, spent: list[int], ended_ns: int) -> None:
        try:
            self.writer.commit(spent, ended_ns)
        except Exception as error:  # noqa: BLE001 - a step that cannot be recorded must not stop training
            self.fault("step", error)

    def use_device(self, timer: DeviceTimer) -> None:
        """Have phases timed by the device from now on. Once is enough; before the first step."""
        if self._device is not None:
            return
        clock = DeviceClock(
            timer,
            phase=lambda: self.timeline.phase,
            take=self.writer.take,
            publish=self._publish,
            fault=self._device_fails,
        )
        self._device = clock
        self.timeline.use_clock(clock)
        self.timeline.connect(clock.commit, live=self.writer.words, live_index=self.writer.phase_word)
        self.tell(clock="device")

    def _device_fails(self, error: Exception) -> None:
        self.fault("device", f"phases are timed by the host, as the device fails: {error}")
        self.tell(clock="host")

    def _publish(self, spent: list[int], ended_ns: int, taken: Taken, by_device: bool) -> None:
        try:
            self.writer.commit(spent, ended_ns, taken, BY_DEVICE if by_device else 0)
        except Exception as error:  # noqa: BLE001 - see _commit
            self.fault("step", error)

    def fault(self, reason: str, error: object) -> None:
        """Survive a fault: count it, and say it once. ``reason`` is one of segment.layout.ERROR_REASONS."""
        self.writer.count_error(reason)
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("rank %d: %s (counted as %r, said once)", self.rank, error, reason)

    def tell(self, **facts: str) -> None:
        """Add facts about the rank, for training_rank_info."""
        self.facts |= facts
        try:
            self.writer.set_facts(self.facts)
        except Exception as error:  # noqa: BLE001 - an odd fact must not stop training
            self.fault("hook", error)

    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the recorder's, whose hooks must leave it alone."""
        return threading.get_ident() != self.thread

    def advance(self) -> None:
        """The loop moves on."""
        self.timeline.advance(force=self.has_input and not self.optimizer_is_watched)
        self.has_input = False

    def close(self) -> None:
        """Publish the last step if it is complete, end the segment, and record into the void from now on."""
        self.timeline.advance()
        if self._device is not None:
            self._device.resolve(everything=True)
        self.writer.close()
        self._reconnect()

    def abandon(self) -> None:
        """In a forked child: leave the parent's segment alone for good."""
        self.writer.detach()
        self._reconnect()

    def _reconnect(self) -> None:
        self.timeline.use_clock(time.monotonic_ns)
        self.timeline.connect(_nowhere, live=self.writer.words, live_index=self.writer.phase_word)


def _nowhere(_spent: list[int], _ended_ns: int) -> Any:
    return None

"""What the hooks of one rank share: its timeline, its segment, and what happens to a fault."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from ..phases import Phase
from ..segment.writer import SegmentWriter
from ..timeline import Timeline

__all__ = ["Recorder"]

log: Final = logging.getLogger("rank_exporter")


class Recorder:
    """Records one rank. Belongs to the thread that made it; hooks on other threads leave it alone.

    ``moves_on_at_forward``: no loader is watched, so that a forward after an optimizer begins the next step.
    """

    __slots__ = ("_warned", "facts", "moves_on_at_forward", "rank", "thread", "timeline", "writer")

    def __init__(self, writer: SegmentWriter, *, rank: int) -> None:
        self.writer = writer
        self.rank = rank
        self.thread = threading.get_ident()
        self.moves_on_at_forward = True
        self.facts = {"clock": "host"}
        self._warned: set[str] = set()
        self.timeline = Timeline(self._commit, live=writer.words, live_index=writer.phase_word)
        writer.set_facts(self.facts)

    def _commit(self, spent: list[int], ended_ns: int) -> None:
        try:
            self.writer.commit(spent, ended_ns)
        except Exception as error:  # noqa: BLE001 - a step that cannot be recorded must not stop training
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

    def begin_fetch(self, phase: Phase) -> bool:
        """A loader is asked for a batch. False on a thread that is not the recorder's: nothing was begun."""
        if threading.get_ident() != self.thread:
            return False
        self.timeline.advance()
        self.timeline.enter(phase)
        return True

    def close(self) -> None:
        """Publish the last step if it is complete, end the segment, and record into the void from now on."""
        self.timeline.advance()
        self.writer.close()
        self._reconnect()

    def abandon(self) -> None:
        """In a forked child: leave the parent's segment alone for good."""
        self.writer.detach()
        self._reconnect()

    def _reconnect(self) -> None:
        self.timeline.connect(_nowhere, live=self.writer.words, live_index=self.writer.phase_word)


def _nowhere(_spent: list[int], _ended_ns: int) -> Any:
    return None

"""Ctrl-C and its kin, taken at moments that suit: no signal ever breaks into a half-made process or file."""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

__all__ = ["Interrupted", "Interruption"]


class Interrupted(Exception):  # noqa: N818 - no error: somebody asked for it
    """The demo was told to stop, by the signal with number ``signum``."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum


class Interruption:
    """While entered, SIGINT, SIGTERM and SIGHUP end the demo's waits, and nothing else. Main thread only.

    The handler writes to a pipe that the waits watch: an Event's lock could be held by the very wait it interrupts.
    """

    def __init__(self) -> None:
        self._read, self._write = -1, -1
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signum != signal.SIGHUP or signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        os.close(self._read)
        os.close(self._write)

    def _handle(self, signum: int, _: FrameType | None) -> None:
        with suppress(BlockingIOError):
            os.write(self._write, bytes([signum]))

    def wait(self, seconds: float) -> None:
        """Wait so long; at once for 0. Raises Interrupted as soon as a signal is there."""
        readable, _, _ = select.select([self._read], [], [], seconds)
        if readable:
            raise Interrupted(os.read(self._read, 1)[0])

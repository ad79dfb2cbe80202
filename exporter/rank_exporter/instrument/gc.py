"""How long garbage collection holds a rank up."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable
from typing import Any, Final

from ..segment.layout import WORDS_OFFSET, Word
from ..segment.writer import SegmentWriter

__all__ = ["watch_gc"]

_PAUSE: Final = WORDS_OFFSET // 8 + int(Word.GC_PAUSE_NS)


_Hook = Callable[[str, dict[str, Any]], None]

_hooks: list[_Hook] = []


def watch_gc(writer: SegmentWriter, *, clock: Callable[[], int] = time.monotonic_ns) -> Callable[[], None]:
    """Add the time of each collection of this process to the segment's Word.GC_PAUSE_NS. Returns what ends that.

    clock: ns. A forked child is not watched, and may be watched anew.
    """
    hook = _hook(writer, clock, os.getpid())
    gc.callbacks.append(hook)
    _hooks.append(hook)

    def undo() -> None:
        if hook in _hooks:
            _hooks.remove(hook)
            gc.callbacks.remove(hook)

    return undo


def _hook(writer: SegmentWriter, clock: Callable[[], int], own_pid: int) -> _Hook:
    """What is called as a collection starts and as it stops, on whichever thread set it off; there is one at a time."""
    getpid = os.getpid
    since = 0

    def hook(phase: str, _info: dict[str, Any]) -> None:
        nonlocal since
        if phase == "start":
            since = clock()
        elif since:
            pause = clock() - since
            since = 0
            # A forked child writes into the same memory until its own hooks have run.
            if getpid() == own_pid:
                writer.words[_PAUSE] += pause

    return hook


def _forget_in_child() -> None:
    gc.callbacks[:] = [callback for callback in gc.callbacks if callback not in _hooks]
    _hooks.clear()


os.register_at_fork(after_in_child=_forget_in_child)

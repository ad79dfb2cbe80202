"""The one agent of a directory."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Final

from ..errors import SegmentError

__all__ = ["take"]

_PATIENCE_SECONDS: Final = 0.5
_PAUSE_SECONDS: Final = 0.02


def take(path: Path) -> int | None:
    """Hold the lock until this process ends, or until the descriptor that is returned is closed.

    None if another agent holds it. Ranks that look whether an agent is there hold it for a moment: that is waited
    out. Raises SegmentError if the file cannot be made.
    """
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SegmentError(f"agent lock {path} cannot be made ({error.strerror}): check RANK_EXPORTER_DIR") from error
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(_PAUSE_SECONDS)

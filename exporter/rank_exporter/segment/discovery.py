"""The directory in which the ranks of a host keep their segments, and who is alive in it."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import SegmentError
from .layout import SUFFIX

__all__ = ["agent_lock", "is_held", "prepare", "segment_files", "spawn_lock"]


def prepare(directory: Path) -> None:
    """Make the directory, 0700, or check that the one there is ours alone. Raises SegmentError."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = directory.lstat()
    except OSError as error:
        raise SegmentError(
            f"segment directory {directory} cannot be made ({error.strerror}): set RANK_EXPORTER_DIR"
        ) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise SegmentError(
            f"segment directory {directory} is no directory of uid {os.getuid()}: remove it or set RANK_EXPORTER_DIR"
        )
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise SegmentError(
            f"segment directory {directory} is writable by others (mode {found.st_mode & 0o777:o}): chmod 0700 it"
        )


def segment_files(directory: Path) -> list[Path]:
    """Segments in the directory, by name. An unreadable or missing directory holds none."""
    try:
        return sorted(entry for entry in directory.iterdir() if entry.suffix == SUFFIX)
    except OSError:
        return []


def is_held(path: Path) -> bool:
    """Whether a live process holds the file's lock: the rank of a segment, or the agent of an agent lock.

    True in the holder's own process too. A missing file is held by nobody; one that cannot be opened (no descriptor
    left, no permission) counts as held, since to be taken for dead costs a segment its file.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def agent_lock(directory: Path) -> Path:
    """The file whose lock the directory's one agent holds while it lives."""
    return directory / "agent.lock"


@contextmanager
def spawn_lock(directory: Path) -> Iterator[None]:
    """Held by the one rank that is starting an agent; others wait here and then find it running."""
    descriptor = os.open(directory / "spawn.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)

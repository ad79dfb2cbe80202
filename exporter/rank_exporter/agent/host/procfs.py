"""Reading files that the kernel makes up as they are read."""

from __future__ import annotations

import errno
import os
from typing import Final

__all__ = ["read"]

_AT_ONCE: Final = 1 << 16
# EOPNOTSUPP: a kernel that was started without pressure accounting has the file and refuses to read it.
_ABSENT: Final = frozenset({errno.ENOENT, errno.ESRCH, errno.ENOTDIR, errno.EOPNOTSUPP})


def read(path: str | os.PathLike[str]) -> str | None:
    """The file's text; None where the kernel has no such file, or no longer has the process it is about.

    Raises OSError for any other failure. Bytes that are no UTF-8 become U+FFFD.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    try:
        parts = []
        while part := os.read(descriptor, _AT_ONCE):
            parts.append(part)
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")

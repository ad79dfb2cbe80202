"""How a rank is asked, from outside, to profile some of its steps.

The request lies beside the rank's segment as JSON; a word of the segment, which the rank looks at as a step ends, says
that there is one. So a rank that nobody asks pays for no more than that look.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ..errors import SegmentError, SettingError
from . import layout
from .layout import Word

__all__ = ["MOST_STEPS", "ProfileRequest", "ask", "take"]

MOST_STEPS: Final = 100
"""A trace of more is more than anybody opens, and holds training up as it is written."""

_WORD: Final = layout.WORDS_OFFSET + 8 * int(Word.PROFILE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRequest:
    """Steps ``first`` to ``last``, and the directory for the traces of all ranks."""

    first: int
    last: int
    directory: str

    def __post_init__(self) -> None:
        if not 1 <= self.first <= self.last:
            raise SettingError(f"steps are {self.first}..{self.last}: give the first, from 1 on, and the last")
        if self.last - self.first >= MOST_STEPS:
            raise SettingError(f"steps are {self.first}..{self.last}: give {MOST_STEPS} at most")


def _path(segment: Path) -> Path:
    return segment.with_suffix(".profile")


def ask(segment: Path, request: ProfileRequest) -> None:
    """Leave the request with the rank that writes ``segment``. Raises SegmentError if that is out of reach."""
    path = _path(segment)
    draft = path.with_suffix(".profile-draft")
    try:
        draft.write_text(json.dumps(asdict(request)))
        draft.chmod(0o600)
        draft.rename(path)
        descriptor = os.open(segment, os.O_RDWR | os.O_CLOEXEC)
        try:
            with mmap.mmap(descriptor, layout.SIZE) as memory:
                memory[_WORD : _WORD + 8] = (1).to_bytes(8, sys.byteorder)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        raise SegmentError(f"segment {segment} cannot be asked ({error}): is its rank still there?") from error


def take(segment: Path) -> ProfileRequest | None:
    """The request that was left with the rank, which is gone then. Raises SegmentError, SettingError if it is none."""
    path = _path(segment)
    try:
        text = path.read_text()
        path.unlink()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SegmentError(f"request {path} cannot be read ({error.strerror}): check its permissions") from error
    try:
        found = json.loads(text)
        return ProfileRequest(first=int(found["first"]), last=int(found["last"]), directory=str(found["directory"]))
    except (ValueError, TypeError, KeyError) as error:
        raise SegmentError(f"request {path} is no request ({error})") from error

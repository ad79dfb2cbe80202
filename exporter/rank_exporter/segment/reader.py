"""The agent's side of a segment: consistent copies of what a rank wrote, checked before they are believed.

The file is read, not mapped: a file that is cut short under a mapping would kill the reader.
"""

from __future__ import annotations

import json
import os
import time
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import SegmentError
from ..identity import Identity
from ..phases import PHASE_NAMES, Phase
from . import layout
from .layout import Word

__all__ = ["STEP_DTYPE", "SegmentReader", "Snapshot", "Source"]

_ATTEMPTS: Final = 50
_PAUSE_SECONDS: Final = 0.0005

STEP_DTYPE: Final = np.dtype(
    [
        ("step", "u8"),
        ("end_unix_ns", "u8"),
        ("shard", "u4"),
        ("flags", "u4"),
        ("ns", "u8", (len(Phase),)),
        ("samples", "u8"),
        ("tokens", "u8"),
        ("padded", "u8"),
        ("reserved", "u8"),
    ]
)
"""One record of the ring: layout.STEP_RECORD as numpy sees it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Who wrote a segment. ``started_unix_ns`` tells two processes with the same identity apart."""

    identity: Identity
    pid: int
    pid_start_ticks: int
    started_unix_ns: int
    skew_budget_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A segment at one moment between two steps.

    words: shape (layout.WORDS,). histograms: shape (HISTOGRAMS, HISTOGRAM_WORDS); column 0 is the sum in ns.
    buckets: shape (2, BUCKET_SLOTS + 1, BUCKET_HISTOGRAM_WORDS), until full and reduction; column 0 as above.
    shards: names of the slots in use. phase_since_ns is in monotonic ns of the host.
    """

    words: npt.NDArray[np.uint64]
    histograms: npt.NDArray[np.uint64]
    buckets: npt.NDArray[np.uint64]
    shards: tuple[str, ...]
    facts: dict[str, str]
    phase: Phase | None
    phase_since_ns: int

    def word(self, word: int) -> int:
        """One word as an integer."""
        return int(self.words[word])

    @property
    def current_shard(self) -> str:
        """Name of the shard read now, "" where none is known."""
        return self.shard_name(self.word(Word.CURRENT_SHARD))

    def shard_name(self, slot: int) -> str:
        """Label value of a shard slot."""
        if slot < len(self.shards):
            return self.shards[slot]
        return "other" if slot == layout.OTHER_SHARD else ""


class SegmentReader:
    """Reads one segment file. Raises SegmentError for anything that is not a whole segment of this version.

    ``source`` is read once; a path that is replaced by another file keeps being read as the old one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._names_sequence = -1
        self._shards: tuple[str, ...] = ()
        self._facts: dict[str, str] = {}
        # Kept for all snapshots: fresh memory for each would double the time for which no commit may fall between.
        self._buffer = bytearray(layout.RING_OFFSET - layout.FACTS_OFFSET)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise SegmentError(f"segment {path} cannot be opened ({error.strerror}): check its permissions") from error
        try:
            self.source = self._read_source()
        except BaseException:
            os.close(self._descriptor)
            raise

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _read(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) != size:
            raise self._short(offset + len(data), size - len(data))
        return data

    def _short(self, end: int, missing: int) -> SegmentError:
        return SegmentError(f"segment {self.path} ends {missing} bytes short at {end}: remove it")

    def _read_source(self) -> Source:
        magic, version, crc, size, length = layout.PREAMBLE.unpack(self._read(0, layout.PREAMBLE.size))
        if magic != layout.MAGIC:
            raise SegmentError(f"segment {self.path} begins with {magic:#x}, not with a segment's mark: remove it")
        if version != layout.VERSION:
            raise SegmentError(
                f"segment {self.path} has layout {version}, this reads {layout.VERSION}: "
                "run agent and ranks from the same release"
            )
        actual = os.fstat(self._descriptor).st_size
        if size != layout.SIZE or actual != size or length > layout.IDENTITY_BYTES:
            raise SegmentError(f"segment {self.path} has {actual} bytes of {layout.SIZE}: remove it")
        text = self._read(layout.IDENTITY_OFFSET, length)
        if zlib.crc32(text) != crc:
            raise SegmentError(f"segment {self.path} has a damaged identity (CRC-32 differs): remove it")
        try:
            found: dict[str, Any] = json.loads(text)
            identity = Identity(**{name: found[name] for name in ("run", "rank", "local_rank", "world_size", "host")})
            return Source(
                identity=identity,
                pid=int(found["pid"]),
                pid_start_ticks=int(found["pid_start_ticks"]),
                started_unix_ns=int(found["started_unix_ns"]),
                skew_budget_ratio=float(found["skew_budget_ratio"]),
            )
        except (ValueError, TypeError, KeyError) as error:
            raise SegmentError(f"segment {self.path} has no readable identity ({error}): remove it") from error

    def _words(self) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self._read(layout.WORDS_OFFSET, 8 * layout.WORDS), dtype=np.uint64)

    def _consistent(self) -> npt.NDArray[np.uint64] | None:
        """Fill the buffer between two commits and return the words of that moment; None if the rank stays within a
        commit, or commits more often than its histograms can be copied."""
        for _ in range(_ATTEMPTS):
            before = self._words()
            if before[Word.SEQUENCE] % 2 == 0:
                size = os.preadv(self._descriptor, [self._buffer], layout.FACTS_OFFSET)
                if size != len(self._buffer):
                    raise self._short(layout.FACTS_OFFSET + size, len(self._buffer) - size)
                if self._words()[Word.SEQUENCE] == before[Word.SEQUENCE]:
                    return before
            time.sleep(_PAUSE_SECONDS)
        return None

    def snapshot(self) -> Snapshot | None:
        """The segment between two steps, or None if its rank was stopped or died in the midst of a commit."""
        words = self._consistent()
        if words is None:
            return None
        if words[Word.CURRENT_SHARD] > layout.SHARD_NONE:
            raise SegmentError(f"segment {self.path} names shard slot {words[Word.CURRENT_SHARD]}: remove it")
        if words[Word.FACTS_SEQUENCE] != self._names_sequence:
            self._decode_names(bytes(self._buffer[: layout.HISTOGRAMS_OFFSET - layout.FACTS_OFFSET]))
            self._names_sequence = int(words[Word.FACTS_SEQUENCE])
        phase, since = self.phase_in_progress()
        start = layout.HISTOGRAMS_OFFSET - layout.FACTS_OFFSET
        counted = np.frombuffer(self._buffer, dtype=np.uint64, offset=start).copy()
        own = layout.HISTOGRAMS * layout.HISTOGRAM_WORDS
        return Snapshot(
            words=words,
            histograms=counted[:own].reshape(layout.HISTOGRAMS, layout.HISTOGRAM_WORDS),
            buckets=counted[own:].reshape(2, layout.BUCKET_SLOTS + 1, layout.BUCKET_HISTOGRAM_WORDS),
            shards=self._shards,
            facts=self._facts,
            phase=phase,
            phase_since_ns=since,
        )

    def _decode_names(self, region: bytes) -> None:
        length, crc = layout.FACTS_HEADER.unpack_from(region)
        start = layout.FACTS_HEADER.size
        if length:
            text = region[start : start + length]
            if length > layout.FACTS_BYTES - start or zlib.crc32(text) != crc:
                raise SegmentError(f"segment {self.path} has damaged facts (CRC-32 differs): remove it")
            self._facts = {str(name): str(value) for name, value in json.loads(text).items()}
        start = layout.SHARDS_OFFSET - layout.FACTS_OFFSET
        names = []
        for slot in range(layout.SHARD_SLOTS):
            at = start + slot * layout.SHARD_NAME_BYTES
            name = region[at : at + layout.SHARD_NAME_BYTES].rstrip(b"\0")
            if not name:
                break
            names.append(name.decode(errors="replace"))
        self._shards = tuple(names)

    def phase_in_progress(self) -> tuple[Phase | None, int]:
        """Phase the rank is in and its beginning in monotonic ns, also while it hangs; None before its first step."""
        word = int(np.frombuffer(self._read(layout.WORDS_OFFSET + 8 * Word.PHASE, 8), dtype=np.uint64)[0])
        phase, since = layout.unpack_phase(word)
        return (Phase(phase) if since and phase < len(PHASE_NAMES) else None), since

    def steps(self, after: int = 0) -> npt.NDArray[Any]:
        """Records of the steps with number > ``after`` that the ring still holds, oldest first: shape (n,),
        dtype STEP_DTYPE. A record that is being written over while it is read is left out."""
        last = int(self._words()[Word.STEPS])
        first = max(after, last - layout.RING_STEPS, 0)
        if first >= last:
            return np.empty(0, dtype=STEP_DTYPE)
        records = self._records(first, last)
        overwritten = max(int(self._words()[Word.STEPS]) + 1 - layout.RING_STEPS - first, 0)
        return records[overwritten:]

    def _records(self, first: int, last: int) -> npt.NDArray[Any]:
        """Records first to last - 1 in the order of writing, at most as many as the ring holds."""
        begin, number = first % layout.RING_STEPS, last - first
        parts = [(begin, min(number, layout.RING_STEPS - begin))]
        parts.append((0, number - parts[0][1]))
        size = layout.STEP_RECORD.size
        data = b"".join(self._read(layout.RING_OFFSET + at * size, n * size) for at, n in parts if n)
        return np.frombuffer(data, dtype=STEP_DTYPE)

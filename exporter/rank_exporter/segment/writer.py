"""The rank's side of a segment: word stores into shared memory, no system call after creation.

One thread writes. After a fork the child must call ``detach`` before anything else.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import time
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import ceil, log2
from pathlib import Path
from typing import Final

from ..errors import SegmentError
from ..histogram import LAST, OFFSET, PER_OCTAVE, SHORT_EDGES, bucket_index, edge_seconds
from ..identity import Identity
from ..phases import Phase
from . import layout
from .layout import OTHER_SHARD, PROFILED, SHARD_NONE, SHARD_SLOTS, Word

__all__ = ["SHARD_IDLE_NS", "EndedStep", "SegmentWriter", "Taken"]

Taken = list[int]
"""Shard slot, samples, tokens and padded samples of a step."""

EndedStep = tuple[Sequence[int], int, Taken, int]
"""Of a step that has ended: ns per phase in the order of Phase, 0 for a phase without an observation; its end by the
writer's clock; what it took; the flags of its record, see layout.STEP_RECORD."""

SHARD_IDLE_NS: Final = 600 * 10**9
"""A shard's slot is given to another only after this long without use: the shortest window of the rules, so that
no rule sees a slot change hands, and ten thousand shards in turn cannot make new series faster than that."""

# Indices into the segment as 64-bit words, as plain integers for the hot path.
_FIRST: Final = layout.WORDS_OFFSET // 8
_SEQUENCE: Final = _FIRST + int(Word.SEQUENCE)
_STEPS: Final = _FIRST + int(Word.STEPS)
_SAMPLES: Final = _FIRST + int(Word.SAMPLES)
_TOKENS: Final = _FIRST + int(Word.TOKENS)
_PADDED: Final = _FIRST + int(Word.PADDED)
_LAST_STEP: Final = _FIRST + int(Word.LAST_STEP_UNIX_NS)
_RECORDING: Final = _FIRST + int(Word.RECORDING_NS)
_DROPPED: Final = _FIRST + int(Word.SHARDS_DROPPED)
_HISTOGRAMS: Final = layout.HISTOGRAMS_OFFSET // 8
_BUCKETS: Final = layout.BUCKETS_OFFSET // 8
_HISTOGRAM_WORDS: Final = layout.HISTOGRAM_WORDS
_RING_STEPS: Final = layout.RING_STEPS
_RECORD_BYTES: Final = layout.STEP_RECORD.size
_pack_record: Final = layout.STEP_RECORD.pack_into
_SHORT_EDGES_NS: Final = tuple(edge_seconds(edge) * 1e9 for edge in SHORT_EDGES)


def _own_start_ticks() -> int:
    """Start of this process in clock ticks since boot, field 22 of /proc/self/stat; 0 where there is no /proc."""
    try:
        return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _shard_text(shard: object) -> bytes:
    """The shard's name as stored: at most SHARD_NAME_BYTES of UTF-8, of which the end is kept (paths differ there)."""
    text = str(shard).replace("\0", "").encode(errors="replace")
    if len(text) > layout.SHARD_NAME_BYTES:
        kept = text[3 - layout.SHARD_NAME_BYTES :].decode(errors="ignore")
        text = f"…{kept}".encode()
    return text


class SegmentWriter:
    """Writes one rank's segment.

    ``words`` is the segment as 64-bit words; the timeline stores the phase in progress there by itself.
    ``started_unix_ns`` tells its process from others of the same rank. ``taken``: what the step in progress is to be
    published with so far; whoever counts what it consumes may add to it.
    """

    __slots__ = (
        "_bases",
        "_clock",
        "_held",
        "_map",
        "_path",
        "_ring",
        "_shard_slots",
        "_shard_used",
        "started_unix_ns",
        "taken",
        "words",
    )

    phase_word: Final = _FIRST + int(Word.PHASE)
    steps_word: Final = _FIRST + int(Word.STEPS)
    profile_word: Final = _FIRST + int(Word.PROFILE)
    words: memoryview

    def __init__(
        self,
        memory: mmap.mmap,
        *,
        held: int | None = None,
        path: Path | None = None,
        started_unix_ns: int | None = None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.started_unix_ns = time.time_ns() if started_unix_ns is None else started_unix_ns
        self._held = held
        self._path = path
        self._clock = clock
        self.taken: Taken = [SHARD_NONE, 0, 0, 0]
        self._shard_slots: dict[bytes, int] = {}
        self._shard_used = [0] * (SHARD_SLOTS + 2)
        self._bases = [
            _HISTOGRAMS + layout.histogram_slot(phase, SHARD_NONE) * layout.HISTOGRAM_WORDS for phase in Phase
        ]
        self._use(memory)

    def _use(self, memory: mmap.mmap) -> None:
        self._map = memory
        self.words = memoryview(memory).cast("Q")
        self._ring = memoryview(memory)[layout.RING_OFFSET :]
        self._store(Word.CURRENT_SHARD, self.taken[0])

    @classmethod
    def create(
        cls,
        directory: Path,
        identity: Identity,
        *,
        skew_budget_ratio: float,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> SegmentWriter:
        """Make and publish a segment in ``directory``. Raises SegmentError if there is no room or no permission."""
        pid = os.getpid()
        unix_ns = time.time_ns()
        text = json.dumps(
            {
                "run": identity.run,
                "rank": identity.rank,
                "local_rank": identity.local_rank,
                "world_size": identity.world_size,
                "host": identity.host,
                "pid": pid,
                "pid_start_ticks": _own_start_ticks(),
                "started_unix_ns": unix_ns,
                "skew_budget_ratio": skew_budget_ratio,
            }
        ).encode()
        if len(text) > layout.IDENTITY_BYTES:
            raise SegmentError(f"identity takes {len(text)} bytes: shorten run and host to fit {layout.IDENTITY_BYTES}")
        path = directory / f"{identity.rank:05d}-{pid}-{unix_ns:x}{layout.SUFFIX}"
        draft = path.with_suffix(".draft")
        try:
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise SegmentError(f"segment {draft} cannot be made ({error.strerror}): check RANK_EXPORTER_DIR") from error
        held = -1
        try:
            # Every page is claimed now: a store into a page that a full tmpfs cannot give would kill the process.
            os.posix_fallocate(descriptor, 0, layout.SIZE)
            memory = mmap.mmap(descriptor, layout.SIZE)
            # Locked through an open file of its own: the mapping keeps a duplicate of the other, also in children.
            held = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            preamble = (layout.MAGIC, layout.VERSION, zlib.crc32(text), layout.SIZE, len(text))
            layout.PREAMBLE.pack_into(memory, 0, *preamble)
            memory[layout.IDENTITY_OFFSET : layout.IDENTITY_OFFSET + len(text)] = text
            writer = cls(memory, held=held, path=path, started_unix_ns=unix_ns, clock=clock)
            draft.rename(path)
        except OSError as error:
            if held >= 0:
                os.close(held)
            draft.unlink(missing_ok=True)
            raise SegmentError(
                f"segment of {layout.SIZE} bytes does not fit in {directory} ({error.strerror}): "
                "give it more room (in a container, a larger /dev/shm) or set RANK_EXPORTER_DIR"
            ) from error
        finally:
            os.close(descriptor)
        return writer

    @classmethod
    def private(cls) -> SegmentWriter:
        """A writer into memory that nobody reads: recording goes on and is lost."""
        return cls(mmap.mmap(-1, layout.SIZE))

    @property
    def path(self) -> Path | None:
        """The segment's file; None where nobody can read what is written."""
        return self._path

    def take(self) -> Taken:
        """What the step that has ended is to be published with; another one begins."""
        taken = self.taken
        self.taken = [taken[0], 0, 0, 0]
        return taken

    def commit(self, spent: Sequence[int], ended_ns: int, taken: Taken | None = None, flags: int = 0) -> None:
        """Publish one step, see EndedStep. ``taken``: what ``take`` returned as it ended, now if it ends now."""
        self.commit_all([(spent, ended_ns, taken or self.take(), flags)])

    def commit_all(self, steps: Sequence[EndedStep]) -> None:
        """Publish steps in the order in which they ended.

        One that cannot be published is left out; what was wrong with the first such is raised after the others are.
        """
        began = self._clock()
        words = self.words
        words[_SEQUENCE] += 1
        try:
            self._publish(steps, began)
        finally:
            words[_RECORDING] += self._clock() - began
            words[_SEQUENCE] += 1

    def _publish(self, steps: Sequence[EndedStep], began: int) -> None:
        words, bases, ring = self.words, self._bases, self._ring
        wrong: Exception | None = None
        to_unix = time.time_ns() - began
        number, unix_ns = words[_STEPS], words[_LAST_STEP]
        all_samples = all_tokens = all_padded = 0
        for spent, ended_ns, (shard, samples, tokens, padded), flags in steps:
            try:
                bases[0] = _HISTOGRAMS + shard * _HISTOGRAM_WORDS
                for phase, ns in enumerate(spent if not flags & PROFILED else ()):
                    if ns > 0:
                        base = bases[phase]
                        words[base] += ns
                        # histogram.bucket_index, without the call.
                        index = ceil(log2(ns) * PER_OCTAVE - OFFSET)
                        words[base + 1 + (0 if index < 0 else index if index < LAST else LAST)] += 1
                at = number % _RING_STEPS * _RECORD_BYTES
                ended_unix_ns = to_unix + ended_ns
                record = (number + 1, ended_unix_ns, shard, flags, *spent, samples, tokens, padded, 0)
                _pack_record(ring, at, *record)
                number += 1
                # At once: whoever reads the ring knows by it which records may be written over.
                words[_STEPS] = number
                unix_ns = ended_unix_ns
                self._shard_used[shard] = began
                if shard == OTHER_SHARD:
                    words[_DROPPED] += 1
                all_samples += samples
                all_tokens += tokens
                all_padded += padded
            except Exception as error:  # noqa: BLE001 - raised below
                wrong = wrong or error
        words[_LAST_STEP] = unix_ns
        words[_SAMPLES] += all_samples
        words[_TOKENS] += all_tokens
        words[_PADDED] += all_padded
        if wrong is not None:
            raise wrong

    def count(self, samples: int, tokens: int, padded: int) -> None:
        """Add to what the step in progress has consumed. Not negative."""
        taken = self.taken
        taken[1] += samples
        taken[2] += tokens
        taken[3] += padded

    def set_shard(self, shard: object) -> None:
        """The shard that input is read from, from now on. None or an empty name: none known."""
        text = _shard_text(shard) if shard is not None else b""
        slot = self._shard_slots.get(text)
        if slot is None:
            slot = self._place(text)
        if slot != self.taken[0]:
            self.taken[0] = slot
            self._store(Word.CURRENT_SHARD, slot)

    def _place(self, text: bytes) -> int:
        if not text:
            return SHARD_NONE
        if text == b"other":
            return OTHER_SHARD
        now = self._clock()
        taken = len(self._shard_slots)
        if taken < SHARD_SLOTS:
            slot = taken
        else:
            slot = min(range(SHARD_SLOTS), key=self._shard_used.__getitem__)
            if now - self._shard_used[slot] < SHARD_IDLE_NS:
                return OTHER_SHARD
            self._shard_slots = {name: used for name, used in self._shard_slots.items() if used != slot}
        self._shard_slots[text] = slot
        self._shard_used[slot] = now
        start = layout.SHARDS_OFFSET + slot * layout.SHARD_NAME_BYTES
        self.words[_SEQUENCE] += 1
        self._map[start : start + layout.SHARD_NAME_BYTES] = text.ljust(layout.SHARD_NAME_BYTES, b"\0")
        for histogram in (layout.histogram_slot(Phase.INPUT_READY, slot), layout.production_slot(slot)):
            counts = layout.HISTOGRAMS_OFFSET + histogram * layout.HISTOGRAM_WORDS * 8
            self._map[counts : counts + layout.HISTOGRAM_WORDS * 8] = bytes(layout.HISTOGRAM_WORDS * 8)
        self.words[_FIRST + Word.FACTS_SEQUENCE] += 1
        self.words[_SEQUENCE] += 1
        return slot

    def set_facts(self, facts: Mapping[str, str]) -> None:
        """Replace the facts about this rank (device, backend, framework, clock, group)."""
        text = json.dumps(dict(facts)).encode()
        if len(text) > layout.FACTS_BYTES - layout.FACTS_HEADER.size:
            raise SegmentError(f"facts take {len(text)} bytes: shorten them to fit {layout.FACTS_BYTES}")
        self.words[_SEQUENCE] += 1
        layout.FACTS_HEADER.pack_into(self._map, layout.FACTS_OFFSET, len(text), zlib.crc32(text))
        start = layout.FACTS_OFFSET + layout.FACTS_HEADER.size
        self._map[start : start + len(text)] = text
        self.words[_FIRST + Word.FACTS_SEQUENCE] += 1
        self.words[_SEQUENCE] += 1

    def set_generation(self, generation: int) -> None:
        """Which process group the rank belongs to: 0 < generation < 2**64. Safe on another thread: a single store."""
        self._store(Word.GENERATION, generation)

    def observe_production(self, ns: int) -> None:
        """One batch that a loader worker took ``ns`` to produce, from the current shard."""
        words = self.words
        base = _HISTOGRAMS + layout.production_slot(self.taken[0]) * layout.HISTOGRAM_WORDS
        words[_SEQUENCE] += 1
        words[base] += ns
        words[base + 1 + bucket_index(max(ns, 1))] += 1
        words[_SEQUENCE] += 1

    def observe_bucket(self, slot: int, ready_ns: int, reduction_ns: int) -> None:
        """One gradient bucket, which took ``ready_ns`` to be full and ``reduction_ns`` to be reduced.

        slot: its index, or layout.OTHER_BUCKET.
        """
        words = self.words
        words[_SEQUENCE] += 1
        for place, ns in ((slot, ready_ns), (slot + layout.BUCKET_SLOTS + 1, reduction_ns)):
            base = _BUCKETS + place * layout.BUCKET_HISTOGRAM_WORDS
            words[base] += ns
            words[base + 1 + bisect_left(_SHORT_EDGES_NS, ns)] += 1
        words[_SEQUENCE] += 1

    def set_loader(self, *, workers: int, ready: int) -> None:
        """How many workers the training loader has, and how many batches were ready when it was last asked."""
        self._store(Word.LOADER_WORKERS, workers + 1)
        self._store(Word.LOADER_QUEUE_DEPTH, ready)

    def account(self, epoch: int, samples: int, padded: int, identified: int, digest: int, duplicates: int) -> None:
        """What the epoch in progress has come to, see layout.Word.EPOCH; ``duplicates`` more were found in it."""
        words = self.words
        words[_SEQUENCE] += 1
        for word, value in enumerate((epoch + 1, samples, padded, identified, digest), _FIRST + Word.EPOCH):
            words[word] = value
        words[_FIRST + Word.DUPLICATES] += duplicates
        words[_SEQUENCE] += 1

    def end_epoch(self, *, complete: bool) -> None:
        """The epoch in progress is over, as it was last accounted for."""
        words = self.words
        words[_SEQUENCE] += 1
        for word in range(layout.EPOCH_WORDS):
            words[_FIRST + Word.ENDED_EPOCH + word] = words[_FIRST + Word.EPOCH + word]
            words[_FIRST + Word.EPOCH + word] = 0
        words[_FIRST + Word.ENDED_EPOCH_COMPLETE] = complete
        words[_SEQUENCE] += 1

    def count_skipped(self) -> None:
        """Count an optimizer step that a gradient scaler left out."""
        self.words[_FIRST + Word.OPTIMIZER_STEPS_SKIPPED] += 1

    def count_epoch(self) -> None:
        """Count a training loader that was read to its end."""
        self.words[_FIRST + Word.EPOCHS] += 1

    def count_error(self, reason: str) -> None:
        """Count a fault that was survived; ``reason`` is one of layout.ERROR_REASONS."""
        self.words[_FIRST + Word.ERRORS + layout.ERROR_REASONS.index(reason)] += 1

    def close(self) -> None:
        """End the segment: readers see it as ended, and what is written from now on is lost."""
        self._store(Word.ENDED, 1)
        self.detach()

    def detach(self) -> None:
        """Let go of the file without a word in it, as a forked child must; what is written from now on is lost."""
        if self._held is not None:
            os.close(self._held)
            self._held = None
        self._path = None
        self._use(mmap.mmap(-1, layout.SIZE))

    def _store(self, word: Word, value: int) -> None:
        self.words[_FIRST + word] = value

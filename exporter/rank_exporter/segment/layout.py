"""Byte layout of a segment: one file per rank, written by the rank and read by agents.

All numbers are in the host's byte order, which the magic number tells apart; every region starts
at a multiple of eight, so that each word is written by one store.

======================  ===========================================================================
preamble, 64 bytes      magic, layout version, CRC-32 of the identity, size of the file in bytes,
                        length of the identity
words                   ``Word``: what changes outside a commit (phase, errors, generation, pauses for
                        garbage collection) and the sequence counter and totals that a commit
                        changes
identity, 2 KiB         JSON, fixed: run, rank, local_rank, world_size, host, pid, pid_start_ticks,
                        started_unix_ns, skew_budget_ratio
facts, 2 KiB            length and CRC-32, then JSON that may change: device, device_uuid, backend,
                        framework, clock, group, waits_in
shard names             SHARD_SLOTS names of SHARD_NAME_BYTES, NUL-padded UTF-8
histograms              HISTOGRAMS times: sum in ns, then histogram.BUCKETS counts
gradient buckets        BUCKET_HISTOGRAMS times: sum in ns, then counts between histogram.SHORT_EDGES and
                        beyond; for each slot the time until full, then for each the reduction
ring                    RING_STEPS records of ``STEP_RECORD``: the latest steps
======================  ===========================================================================

A commit makes ``Word.SEQUENCE`` odd, changes what it has to, and makes it even again. A reader copies
between two equal, even values. The phase in progress is a single word and needs no such care.

The writer holds an exclusive ``flock`` on the file for as long as its process lives: that, not a process
id, tells a reader whether the rank is alive, also from another PID namespace. It is taken before the file
gets its final name.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from ..histogram import BUCKETS, SHORT_EDGES
from ..phases import Phase

__all__ = [
    "BUCKET_HISTOGRAMS",
    "BUCKET_HISTOGRAM_WORDS",
    "BUCKET_SLOTS",
    "BY_DEVICE",
    "EPOCH_WORDS",
    "ERROR_REASONS",
    "HISTOGRAMS",
    "HISTOGRAM_WORDS",
    "MAGIC",
    "OTHER_BUCKET",
    "OTHER_SHARD",
    "PREAMBLE",
    "PROFILED",
    "RING_STEPS",
    "SHARD_NAME_BYTES",
    "SHARD_SLOTS",
    "SIZE",
    "STEP_RECORD",
    "SUFFIX",
    "VERSION",
    "Word",
    "histogram_slot",
    "pack_phase",
    "production_slot",
    "unpack_phase",
]

SUFFIX: Final = ".segment"
MAGIC: Final = int.from_bytes(b"RANKSEG1", "little")
VERSION: Final = 2

PREAMBLE: Final = struct.Struct("=QIIQQ32x")
"""magic, version, CRC-32 of the identity, file size, identity length."""

ERROR_REASONS: Final[tuple[str, ...]] = (
    "agent",
    "hook",
    "shard",
    "phase",
    "count",
    "step",
    "peers",
    "device",
    "profile",
    "samples",
)
"""Faults a rank can meet at run time, in the order of their words. Append only."""


class Word(IntEnum):
    """Indices of the 64-bit words after the preamble."""

    SEQUENCE = 0
    PHASE = 1
    """Phase in progress with its start, see pack_phase."""
    STEPS = 2
    """Steps committed. Also the number of ring records ever written: record n stands in place n % RING_STEPS."""
    SAMPLES = 3
    TOKENS = 4
    PADDED = 5
    LAST_STEP_UNIX_NS = 6
    RECORDING_NS = 7
    SHARDS_DROPPED = 8
    CURRENT_SHARD = 9
    """Slot of the shard being read now; OTHER_SHARD where it has none of its own, SHARD_NONE where none is known."""
    FACTS_SEQUENCE = 10
    """Changes with the facts and shard names, so that a reader decodes them only when they are new."""
    ENDED = 11
    """1 once the rank stopped recording of its own accord."""
    GENERATION = 12
    """The same in all ranks of a process group and another one after a restart; 0 until the rank has learnt it."""
    GC_PAUSE_NS = 13
    """Time in which garbage collection held the rank up."""
    OPTIMIZER_STEPS_SKIPPED = 14
    EPOCHS = 15
    ERRORS = 16
    """First of len(ERROR_REASONS) counters."""
    LOADER_QUEUE_DEPTH = 32
    """Batches that were ready when the training loop asked for the latest one."""
    LOADER_WORKERS = 33
    """Workers of the training loader, plus one; 0 where no loader is watched."""
    PROFILE = 34
    """Set by whoever asks the rank to profile, see segment.request; 0 again once the rank is done. Looked at as a step
    ends."""
    EPOCH = 35
    """First of EPOCH_WORDS about the epoch in progress: its number plus one (0: none began), samples taken, padded ones
    among them, those whose identifiers are in the digest, the digest (see rank_exporter.digest). They lag behind what
    was taken by a few hundred samples until the epoch ends, and belong together."""
    ENDED_EPOCH = 40
    """First of as many about the epoch that ended last."""
    ENDED_EPOCH_COMPLETE = 45
    """1 if that epoch ended because the loader was read to its end."""
    DUPLICATES = 46
    """Samples that the rank took again within an epoch, as far as it could tell; padding left out."""


WORDS: Final = 64
EPOCH_WORDS: Final = 5
SHARD_SLOTS: Final = 16
OTHER_SHARD: Final = SHARD_SLOTS
SHARD_NONE: Final = SHARD_SLOTS + 1
SHARD_NAME_BYTES: Final = 128

HISTOGRAM_WORDS: Final = 1 + BUCKETS
# input_ready has one histogram per shard slot, one for shard other and one for steps without a shard.
_INPUT_HISTOGRAMS: Final = SHARD_SLOTS + 2
_PHASE_HISTOGRAMS: Final = _INPUT_HISTOGRAMS + len(Phase) - 1
# The production of batches by loader workers has as many as input_ready.
HISTOGRAMS: Final = _PHASE_HISTOGRAMS + _INPUT_HISTOGRAMS

BUCKET_SLOTS: Final = 16
"""Gradient buckets of DistributedDataParallel that are counted apart."""
OTHER_BUCKET: Final = BUCKET_SLOTS
BUCKET_HISTOGRAM_WORDS: Final = 1 + len(SHORT_EDGES) + 1
BUCKET_HISTOGRAMS: Final = 2 * (BUCKET_SLOTS + 1)

STEP_RECORD: Final = struct.Struct(f"=QQII{len(Phase)}Q4Q")
"""step number, its end in Unix ns, shard slot, flags, ns per phase in the order of Phase, samples, tokens,
padded samples, reserved (0)."""
BY_DEVICE: Final = 1
"""Flag of a record whose phases were timed by the device."""
PROFILED: Final = 2
"""Flag of a record of a step that was profiled, or in which a profile was written: it is in no histogram."""
RING_STEPS: Final = 4096

WORDS_OFFSET: Final = PREAMBLE.size
IDENTITY_OFFSET: Final = WORDS_OFFSET + 8 * WORDS
IDENTITY_BYTES: Final = 2048
FACTS_OFFSET: Final = IDENTITY_OFFSET + IDENTITY_BYTES
FACTS_HEADER: Final = struct.Struct("=II")
FACTS_BYTES: Final = 2048
SHARDS_OFFSET: Final = FACTS_OFFSET + FACTS_BYTES
HISTOGRAMS_OFFSET: Final = SHARDS_OFFSET + SHARD_SLOTS * SHARD_NAME_BYTES
BUCKETS_OFFSET: Final = HISTOGRAMS_OFFSET + 8 * HISTOGRAMS * HISTOGRAM_WORDS
RING_OFFSET: Final = BUCKETS_OFFSET + 8 * BUCKET_HISTOGRAMS * BUCKET_HISTOGRAM_WORDS
SIZE: Final = RING_OFFSET + RING_STEPS * STEP_RECORD.size

# The start is kept to 256 ns, so that phase and start share a word and are written by one store.
_PHASE_MASK: Final = 0xFF


def histogram_slot(phase: int, shard_slot: int) -> int:
    """Which histogram counts a phase; ``shard_slot`` matters for input_ready only."""
    return shard_slot if phase == Phase.INPUT_READY else _INPUT_HISTOGRAMS - 1 + phase


def production_slot(shard_slot: int) -> int:
    """Which histogram counts what loader workers took for a batch of this shard."""
    return _PHASE_HISTOGRAMS + shard_slot


def pack_phase(phase: int, since_ns: int) -> int:
    """One word for a phase and the monotonic time in ns at which it began."""
    return (since_ns & ~_PHASE_MASK) | phase


def unpack_phase(word: int) -> tuple[int, int]:
    """Phase and its beginning in monotonic ns, to 256 ns."""
    return word & _PHASE_MASK, word & ~_PHASE_MASK

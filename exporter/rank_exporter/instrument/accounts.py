"""Keeps account of the samples that training takes: how many, which, and how often.

What a step costs here is a few additions: identifiers are gathered and put into the digest a few hundred at a time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from .. import digest
from ..segment.writer import SegmentWriter
from .identifiers import by_key, listed

if TYPE_CHECKING:
    from .intake import Intake
    from .samplefiles import SampleFiles

__all__ = ["Accounts"]

_GATHERED: Final = 4096
_TABLE_BITS: Final = 18
_TABLE_SHIFT: Final = np.uint64(64 - _TABLE_BITS)
_SALT: Final = 0x9E3779B97F4A7C15


class Accounts:
    """The account of one rank. ``identify`` finds identifiers in a batch, where it is not by the sampler's indices.

    One iterator at a time is accounted for by identifier: another loader's, beside it, is counted only.
    """

    __slots__ = (
        "_automatic",
        "_batches",
        "_counted",
        "_current",
        "_digest",
        "_epoch",
        "_fault",
        "_gathered",
        "_identified",
        "_length",
        "_open",
        "_padded",
        "_parts",
        "_samples",
        "_table",
        "_writer",
        "files",
        "identifies",
        "identify",
    )

    def __init__(self, writer: SegmentWriter, fault: Callable[[str, object], None]) -> None:
        self._writer = writer
        self._fault = fault
        # Samples, tokens, padded samples.
        self._automatic = [True, True, True]
        self._counted = [0, 0, 0]
        self.identifies = True
        self.identify: Callable[[Any], Sequence[Any]] | None = None
        self.files: SampleFiles | None = None
        self._current: weakref.ref[Intake] | None = None
        self._open = False
        self._epoch = -1
        self._length: int | None = None
        self._table: Any = None
        self._clear()

    def _clear(self) -> None:
        self._parts: list[Sequence[Any]] = []
        self._gathered = self._batches = self._samples = self._padded = self._identified = self._digest = 0

    def identify_by(self, how: str | int | Callable[[Any], Sequence[Any]]) -> None:
        """Identify samples by a key in the batch, or by a function of it."""
        self.identifies = True
        self.identify = by_key(how) if isinstance(how, (str, int)) else lambda batch: listed(how(batch))

    def given(self, samples: int, tokens: int, padded: int) -> tuple[int, int, int]:
        """The user counts: what of it is to be added. What he counts is counted for him no longer, and what was so far
        is taken off, so that his numbers are those that stand."""
        numbers = [samples, tokens, padded]
        for place, number in enumerate(numbers):
            if number:
                self._automatic[place] = False
                already = min(number, self._counted[place])
                self._counted[place] -= already
                numbers[place] -= already
        return numbers[0], numbers[1], numbers[2]

    def leave_counting(self) -> None:
        """A trainer counts samples and tokens, step by step, from the beginning."""
        self._automatic[:2] = False, False

    def begin(self, intake: Intake, *, instead: bool = False) -> bool:
        """An iterator hands out its first batch, or none at all. False: another one is accounted for, and ``instead``
        of it none is wanted."""
        current = None if self._current is None else self._current()
        if current is not None and current is not intake:
            if not (instead or current.over or current.succeeds(intake)):
                return False
            current.give_way()
        self.close()
        self._current = weakref.ref(intake)
        self._open = True
        self._epoch = max(self._epoch + 1, intake.epoch)
        self._length = intake.length
        if self.files is not None:
            self.files.begin(self._epoch)
        return True

    @property
    def batches(self) -> int:
        """Batches accounted for in the epoch in progress."""
        return self._batches

    def take(
        self, ids: Sequence[Any] | None, samples: int, tokens: int, padded: int, *, counts: bool, adds: bool
    ) -> None:
        """A batch is handed to training; the last ``padded`` of its samples are padding. ``counts``: to the step in
        progress; ``adds``: to the epoch in progress."""
        if counts:
            automatic, counted, taken = self._automatic, self._counted, self._writer.taken
            if automatic[0]:
                counted[0] += samples
                taken[1] += samples
            # Most batches have neither.
            if tokens and automatic[1]:
                counted[1] += tokens
                taken[2] += tokens
            if padded and automatic[2]:
                counted[2] += padded
                taken[3] += padded
        if not adds:
            return
        self._batches += 1
        self._samples += samples
        self._padded += padded
        if not self.identifies:
            ids = None
        if ids is not None:
            real = samples - padded
            self._parts.append(ids if not padded else ids[:real])
            self._gathered += real
            if self._gathered >= _GATHERED:
                self.settle()
        if self.files is not None:
            self.files.put(ids, samples, padded)

    def settle(self) -> None:
        """Put what was gathered into the digest, and the account into the segment."""
        duplicates = 0
        if self._parts:
            parts, self._parts, self._gathered = self._parts, [], 0
            try:
                hashed = digest.hashes_of_lists(parts)
                self._digest = (self._digest + digest.total(hashed)) % (1 << 64)
                self._identified += len(hashed)
                duplicates = self._count_known(hashed)
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                self.give_up(error)
        self._writer.account(self._epoch, self._samples, self._padded, self._identified, self._digest, duplicates)

    def give_up(self, error: object) -> None:
        """Identify samples no more, which cannot be done."""
        self.identifies = False
        self._fault("samples", f"samples are counted but not identified any more: {error}")

    def _count_known(self, hashed: digest.Hashes) -> int:
        """How many of them were there before in this epoch, at least: an entry of the table may have been replaced."""
        if self._table is None:
            self._table = np.zeros(1 << _TABLE_BITS, dtype=np.uint64)
        hashed.sort()
        within = int(np.count_nonzero(hashed[1:] == hashed[:-1]))
        places = (hashed >> _TABLE_SHIFT).view(np.int64)
        # What an earlier epoch left in the table is none of this one's, so that there is no need to clear it.
        hashed ^= np.uint64((self._epoch + 1) * _SALT % (1 << 64))
        if within:
            hashed, first = np.unique(hashed, return_index=True)
            places = places[first]
        known = int(np.count_nonzero(self._table[places] == hashed))
        self._table[places] = hashed
        return within + known

    def end(self, *, complete: bool) -> None:
        """The epoch in progress is over."""
        if not self._open:
            return
        self._open = False
        self.settle()
        self._writer.end_epoch(complete=complete)
        if self.files is not None:
            self.files.end(samples=self._samples, padded=self._padded, complete=complete)
        self._clear()

    def close(self) -> None:
        """The epoch in progress, if any, was left, maybe after its last batch, by a loop that counts them."""
        self.end(complete=self._batches == self._length)

    def stop(self) -> None:
        """Nothing more is taken. An epoch in progress stays as it is, next to the one before it."""
        if self._batches == self._length:
            self.close()
        if self._open:
            self.settle()
            if self.files is not None:
                self.files.end(samples=self._samples, padded=self._padded, complete=False)
            self._open = False
        if self.files is not None:
            self.files.close()
        self.abandon()

    def abandon(self) -> None:
        """Take no account from now on."""
        self.files = None
        self._current = None
        self._parts = []
        self._automatic = [False, False, False]
        self.identifies = False

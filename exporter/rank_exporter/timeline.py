"""One step's arithmetic: which phase the rank is in, and how its time adds up.

At every moment the rank is in exactly one phase, so the phases of a step add up to the step by construction.
A phase entered within another (a forward in an optimizer's closure) suspends the outer one, save that nothing
within evaluation, a checkpoint or the building of an iterator counts as anything else. Integer ns throughout.
No I/O, no lock; one thread at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, MutableSequence
from typing import Final

from .phases import Phase

__all__ = ["Commit", "Timeline"]

Commit = Callable[[list[int], int], None]
"""Takes ns per phase in the order of Phase (0: no observation) and the monotonic ns at which the step ended."""

_OTHER: Final = int(Phase.OTHER)
_OPTIMIZER: Final = int(Phase.OPTIMIZER)
_STEP: Final = int(Phase.STEP)
_BEFORE: Final = len(Phase)
"""Place of the time before the first step, which belongs to none."""
_NOTHING: Final = [0] * (_BEFORE + 1)


class Timeline:
    """Turns enter and leave into one record a step.

    A step ends where its last optimizer phase ended; what the rank does from there to the next request for input
    belongs to the next step. That a step is over is known only once the loop moves on (``advance``), since a step
    may have several optimizers.

    ``phase`` is the one in progress, for others to read; none of Phase before the first step. ``marked_ns`` is when an
    optimizer phase ended last.
    ``live[live_index]`` is kept at it with its start, as segment.layout.pack_phase packs it.
    """

    __slots__ = (
        "_clock",
        "_commit",
        "_live",
        "_live_index",
        "_marked",
        "_since",
        "_spent",
        "_stack",
        "marked_ns",
        "phase",
    )

    def __init__(
        self,
        commit: Commit,
        *,
        live: MutableSequence[int] | memoryview,
        live_index: int,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._clock = clock
        self._spent = _NOTHING.copy()
        self._stack: list[int] = []
        self.phase = _BEFORE
        self._since = clock()
        self._marked: list[int] | None = None
        self.marked_ns = 0
        self.connect(commit, live=live, live_index=live_index)

    def connect(self, commit: Commit, *, live: MutableSequence[int] | memoryview, live_index: int) -> None:
        """Where steps and the phase in progress go from now on."""
        self._commit = commit
        self._live = live
        self._live_index = live_index

    def use_clock(self, clock: Callable[[], int]) -> None:
        """Read this clock from now on. It must go on from where the one before it is, in monotonic ns."""
        self._clock = clock

    def enter(self, phase: int) -> None:
        """The rank begins a phase; the one in progress is suspended."""
        current = self.phase
        if _STEP < current < _BEFORE and phase != current:
            return
        now = self._clock()
        self._spent[current] += now - self._since
        self._stack.append(current)
        self.phase = phase
        self._since = now
        self._live[self._live_index] = (now & -256) | phase

    def leave(self, phase: int) -> None:
        """The rank ends a phase and resumes the one before. Phases entered within it and never left end too;
        a phase that is not in progress is ignored."""
        current = self.phase
        stack = self._stack
        if current != phase or not stack:
            # The lowest entry is what lies between phases, which is not left.
            if _STEP < current < _BEFORE or phase not in stack[1:]:
                return
            self._settle()
            while self.phase != phase:
                self.phase = stack.pop()
        now = self._clock()
        self._spent[phase] += now - self._since
        self.phase = current = stack.pop()
        self._since = now
        self._live[self._live_index] = (now & -256) | current
        if phase == _OPTIMIZER:
            # If the loop moves on, the step ended here.
            spent, before = self._spent, self._marked
            self._spent = _NOTHING.copy()
            self._marked = spent if before is None else [sum(both) for both in zip(before, spent, strict=True)]
            self.marked_ns = now

    def become(self, phase: int) -> None:
        """The phase in progress turns out to be another one, from its last resumption on."""
        self.phase = phase
        self._live[self._live_index] = (self._since & -256) | phase

    def _settle(self) -> None:
        now = self._clock()
        self._spent[self.phase] += now - self._since
        self._since = now

    def unwind(self) -> None:
        """Drop every phase in progress: what was to leave them never will."""
        if self._stack:
            self._settle()
            self.phase = self._stack[0]
            self._stack.clear()
            self._live[self._live_index] = (self._since & -256) | self.phase

    def advance(self, *, force: bool = False) -> None:
        """The loop moves on to new input: the step is over if its optimizer ran, or, with ``force``, if anything did.

        The first call begins the first step; what was before is dropped. Called before the phase that moves on is
        entered. Input that evaluation asks for is no move.
        """
        if _STEP < self.phase < _BEFORE:
            return
        spent, ended = self._marked, self.marked_ns
        before = self.phase == _BEFORE or (self._stack and self._stack[0] == _BEFORE)
        if spent is None:
            if before:
                self._begin()
                return
            if not force:
                return
            self._settle()
            spent, self._spent = self._spent, _NOTHING.copy()
            ended = self._since
        self._marked = None
        spent.pop()
        spent[_STEP] = sum(spent[:_STEP])
        self._commit(spent, ended)
        if before:
            self._begin()

    def _begin(self) -> None:
        now = self._clock()
        if self._stack:
            self._stack[0] = _OTHER
        else:
            self.phase = _OTHER
            self._live[self._live_index] = (now & -256) | _OTHER
        self._spent = _NOTHING.copy()
        self._since = now

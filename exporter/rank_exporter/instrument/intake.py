"""What one iterator of a training loader hands out, batch by batch."""

from __future__ import annotations

import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from .accounts import Accounts
from .batch import samples_of, tokens_of
from .identifiers import listed

if TYPE_CHECKING:
    from .draws import Drawn
    from .padding import Padding

__all__ = ["Intake"]

_PATIENCE: Final = 3
_LISTS: Final = (array, list)
_Taken = tuple[Sequence[Any] | None, int, int]
"""Identifiers, samples, padded samples of a batch."""


class Intake:
    """What one iterator of a loader hands out. ``drawn``: what its sampler drew and it has not handed out yet.
    ``epoch``: as the loader numbers it; 0 where it does not. ``length``: batches that it will hand out, where that is
    known. ``over``: it was read to its end."""

    __slots__ = (
        "__weakref__",
        "_accounts",
        "_batches_then",
        "_begun",
        "_beside",
        "_counts",
        "_lists",
        "_loader",
        "_main",
        "_padding",
        "_tokens",
        "drawn",
        "epoch",
        "length",
        "over",
    )

    def __init__(self, accounts: Accounts, loader: Any) -> None:
        self._accounts = accounts
        self._loader = weakref.ref(loader)
        self._lists = bool(getattr(loader, "_auto_collation", False))
        self.drawn: Drawn = deque()
        self.renew(0, None)

    def renew(self, epoch: int, padding: Padding | None, *, length: int | None = None, counts: bool = True) -> None:
        """An epoch is to begin. ``counts`` False: what it hands out is not this rank's alone."""
        self.length = length
        self.drawn.clear()
        self._counts = counts
        self.epoch = epoch
        self._padding = padding
        self._begun = self._main = self.over = False
        self._beside: list[_Taken] | None = None
        self._batches_then = 0
        self._tokens: Callable[[Any], int] | None = tokens_of

    def succeeds(self, other: Intake) -> bool:
        """Whether it is of the same loader."""
        return self._loader() is other._loader()

    def take(self, batch: Any, index: Any) -> None:
        """A batch is handed to training. ``index``: what its sampler drew for it; None where it has none."""
        accounts = self._accounts
        if not self._begun:
            if not self._counts:
                return
            self._begin(batch)
        drawn = len(index) if type(index) in _LISTS else None
        ids = index if drawn is not None and accounts.identify is None else self._ids(batch, index)
        samples = len(ids) if ids is not None else samples_of(batch) if drawn is None else drawn
        padded = 0
        if self._padding is not None:
            padded = self._padding.of_next(samples if drawn is None else drawn)
        tokens = 0 if self._tokens is None else self._tokens(batch)
        accounts.take(ids, samples, tokens, padded, counts=True, adds=self._main)
        if self._beside is not None and not self._main:
            self._wait((ids, samples, padded))

    def _wait(self, taken: _Taken) -> None:
        """Beside another loader that was left without having been read to its end, this one takes its place: once it
        has handed out a few batches while the other has not."""
        assert self._beside is not None  # noqa: S101 - asked before the call
        if self._accounts.batches != self._batches_then:
            self._beside = None
            return
        self._beside.append(taken)
        if len(self._beside) >= _PATIENCE:
            self._take_over()

    def _take_over(self) -> None:
        accounts, beside = self._accounts, self._beside or ()
        self._beside = None
        self._main = accounts.begin(self, instead=True)
        for ids, samples, padded in beside:
            accounts.take(ids, samples, 0, padded, counts=False, adds=True)

    def give_way(self) -> None:
        """Another loader is accounted for from now on."""
        self._main = False
        self._beside = None

    def _begin(self, batch: Any) -> None:
        self._begun = True
        self._main = self._accounts.begin(self)
        if not self._main:
            self._beside, self._batches_then = [], self._accounts.batches
        if self._tokens is not None and not self._tokens(batch):
            self._tokens = None

    def _ids(self, batch: Any, index: Any) -> list[Any] | None:
        accounts = self._accounts
        if not accounts.identifies:
            return None
        try:
            if accounts.identify is not None:
                return list(accounts.identify(batch))
            if index is None:
                return None
            return listed(index) if self._lists or type(index) is not tuple else [index]
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            accounts.give_up(error)
            return None

    def pass_over(self, index: Any) -> None:
        """A batch is handed out, and not for training."""
        if self._padding is not None and index is not None:
            self._padding.of_next(len(index) if hasattr(index, "__len__") else 1)

    def end(self, *, complete: bool) -> None:
        """The loader was read to its end. ``complete``: all that it handed out was seen."""
        if not self._counts:
            return
        if not self._begun:
            self._begun = True
            self._main = self._accounts.begin(self)
        self.over = True
        if self._beside and self._accounts.batches == self._batches_then:
            self._take_over()
        if self._main:
            self._accounts.end(complete=complete)

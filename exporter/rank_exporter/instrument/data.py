"""Times a DataLoader at its innermost iterator, leaving the training loop as it is.

The loader and its iterator are given subclasses of their own classes: they stay what they were to everybody else,
and no other loader is touched.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import torch
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import SettingError
from ..phases import Phase
from .recorder import Recorder

__all__ = ["watch_loader"]

_TIMED: Final = "_rank_exporter_timed"


class _Fetches:
    """Times the fetches of one iterator: the first of an epoch apart, the one that finds it exhausted not at all."""

    __slots__ = ("_first", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._first = True

    def time(self, fetch: Callable[..., Any], *arguments: Any) -> Any:
        recorder = self._recorder
        if recorder.is_elsewhere():
            return fetch(*arguments)
        if not torch.is_grad_enabled():
            phase = Phase.EVAL
        elif self._first:
            # The loop has moved on already, when it asked for this iterator.
            phase = Phase.FIRST_BATCH
        else:
            phase = Phase.INPUT_READY
            recorder.advance()
        self._first = False
        recorder.timeline.enter(phase)
        try:
            batch = fetch(*arguments)
        except StopIteration:
            # The end of an epoch is no input. What it takes belongs to turning the epoch.
            if recorder.timeline.phase == phase:
                phase = Phase.FIRST_BATCH
                recorder.timeline.become(phase)
                recorder.writer.count_epoch()
            recorder.timeline.leave(phase)
            raise
        except BaseException:
            recorder.timeline.leave(phase)
            raise
        recorder.timeline.leave(phase)
        recorder.has_input = phase != Phase.EVAL
        return batch


class _TimedIterator:
    """For iterators whose class cannot be subclassed, such as generators."""

    __slots__ = ("_fetches", "_inner")

    def __init__(self, inner: Iterator[Any], fetches: _Fetches) -> None:
        self._inner = inner
        self._fetches = fetches

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetches.time(self._inner.__next__)


@cache
def _timed_iterator_class(kind: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807 - becomes a method
        return self._rank_exporter_fetches.time(kind.__next__, self)

    return type(kind.__name__, (kind,), {"__next__": __next__, "__module__": kind.__module__, _TIMED: True})


def _timed(iterator: Any, recorder: Recorder) -> Iterator[Any]:
    fetches = _Fetches(recorder)
    if not isinstance(iterator, _BaseDataLoaderIter):
        return _TimedIterator(iterator, fetches)
    iterator._rank_exporter_fetches = fetches  # type: ignore[attr-defined]
    # A loader with persistent workers hands out the same iterator again, timed already.
    if not hasattr(iterator, _TIMED):
        kind: Any = type(iterator)
        iterator.__class__ = _timed_iterator_class(kind)
    return iterator


def _timed_loader_class(kind: Any, recorder: Recorder) -> Any:
    def __iter__(self: Any) -> Any:  # noqa: N807 - becomes a method
        if recorder.is_elsewhere():
            return kind.__iter__(self)
        phase = Phase.EVAL
        if torch.is_grad_enabled():
            phase = Phase.FIRST_BATCH
            recorder.advance()
        recorder.timeline.enter(phase)
        try:
            return _timed(kind.__iter__(self), recorder)
        finally:
            recorder.timeline.leave(phase)

    def __reduce_ex__(self: Any, protocol: int) -> Any:  # noqa: N807 - becomes a method
        # A copy, here or in another process, is an ordinary loader again.
        make, arguments, *state = kind.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__ and arguments == (type(self),):  # type: ignore[attr-defined]
            return copyreg._reconstructor, (kind, object, None), *state  # type: ignore[attr-defined]
        return make, tuple(kind if part is type(self) else part for part in arguments), *state

    return type(
        kind.__name__,
        (kind,),
        {"__iter__": __iter__, "__reduce_ex__": __reduce_ex__, "__module__": kind.__module__},
    )


def watch_loader(loader: Any, recorder: Recorder) -> Callable[[], None]:
    """Time every iteration over ``loader``. Returns what undoes it. Raises SettingError where that cannot be done."""
    kind = type(loader)
    timed = _timed_loader_class(kind, recorder) if hasattr(kind, "__iter__") else None
    try:
        if timed is None:
            raise TypeError("it has no __iter__")
        loader.__class__ = timed
    except TypeError as error:
        raise SettingError(
            f"dataloader is {kind.__name__!r} and cannot be watched ({error}): "
            "write `for batch in exporter.steps(loader)` instead"
        ) from None

    def undo() -> None:
        if type(loader) is timed:
            loader.__class__ = kind

    recorder.moves_on_at_forward = False
    return undo

"""Remembers which indices a loader drew for its batches, from its sampler's own iterator.

A loader with workers draws long before a batch is handed out, and begins to as its iterator is made. So the sampler is
looked over the shoulder from the start: what the iterator gets in its place is, where that can be, an object of a
subclass of the sampler's class that shares the sampler's attributes. It draws what the sampler would have drawn, as
early, and leaves it the state it would have had.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
from types import GeneratorType
from typing import Any, Final

__all__ = ["Drawn", "observed"]

Drawn = deque[Any]
"""What was drawn and not yet handed out, by batch: indices in an array or, if they are no integers of 64 bits, a list;
single ones where the loader does not batch."""

_HEAP_TYPE: Final = 1 << 9


def _drawing(inner: Iterator[Any], drawn: Drawn) -> Iterator[Any]:
    """The sampler's iterator, observed."""
    append = drawn.append

    def remember(index: Any) -> Any:
        if type(index) is not list:
            append(index)
            return index
        # A copy, as nobody says that the sampler will not use its list again: of the numbers, since the sampler has
        # just made them, while to collect them later from all over memory takes far longer.
        try:
            append(array("q", index))
        except Exception:  # noqa: BLE001 - the sampler's own, which may do anything as they are asked for a number
            append(index.copy())
        return index

    # Half as dear as a class of ours, which only an iterator with attributes of its own needs.
    return map(remember, inner) if isinstance(inner, GeneratorType) else _Drawing(inner, remember)


class _Drawing:
    """An iterator, observed, that has all its attributes."""

    __slots__ = ("_inner", "_remember")

    def __init__(self, inner: Iterator[Any], remember: Callable[[Any], Any]) -> None:
        self._inner = inner
        self._remember = remember

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._remember(next(self._inner))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@cache
def _observed_class(kind: Any) -> Any:
    def __iter__(self: Any) -> Any:  # noqa: N807 - becomes a method
        return _drawing(kind.__iter__(self), self._rank_exporter_drawn)

    body = {"__iter__": __iter__, "__slots__": ("_rank_exporter_drawn",), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), body)


class _Stand:
    """For samplers whose class cannot be subclassed so, such as lists."""

    __slots__ = ("_drawn", "_sampler")

    def __init__(self, sampler: Any, drawn: Drawn) -> None:
        self._sampler = sampler
        self._drawn = drawn

    def __iter__(self) -> Iterator[Any]:
        return _drawing(iter(self._sampler), self._drawn)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)


def observed(sampler: Any, drawn: Drawn) -> Any:
    """What draws as ``sampler`` does and appends each draw to ``drawn``."""
    kind: Any = type(sampler)
    if kind.__flags__ & _HEAP_TYPE and hasattr(kind, "__iter__") and hasattr(sampler, "__dict__"):
        try:
            twin = object.__new__(_observed_class(kind))
            twin.__dict__ = sampler.__dict__
            twin._rank_exporter_drawn = drawn
        except (TypeError, AttributeError):
            pass
        else:
            return twin
    return _Stand(sampler, drawn)

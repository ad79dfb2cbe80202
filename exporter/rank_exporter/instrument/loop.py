"""The explicit way: the training loop says itself where its steps and phases are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TypeVar

from ..phases import Phase
from ..timeline import Timeline

__all__ = ["Span", "steps"]

T = TypeVar("T")


class Span:
    """Context manager for one phase. Reusable and nestable; ends on exceptions too."""

    __slots__ = ("_phase", "_timeline")

    def __init__(self, timeline: Timeline, phase: int) -> None:
        self._timeline = timeline
        self._phase = phase

    def __enter__(self) -> None:
        self._timeline.enter(self._phase)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timeline.leave(self._phase)


def steps(timeline: Timeline, batches: Iterable[T], accumulate: int, publish: Callable[[], None]) -> Iterator[T]:
    """Yield the batches; a step is ``accumulate`` of them. ``publish`` is called at the end. See Exporter.steps."""
    try:
        yield from _steps(timeline, batches, accumulate)
    finally:
        publish()


def _steps(timeline: Timeline, batches: Iterable[T], accumulate: int) -> Iterator[T]:
    timeline.advance()
    timeline.enter(Phase.FIRST_BATCH)
    try:
        iterator = iter(batches)
        batch = next(iterator)
    except StopIteration:
        return
    finally:
        timeline.leave(Phase.FIRST_BATCH)
    fetched = 1
    while True:
        try:
            yield batch
        except GeneratorExit:
            # The loop was left by a break: what it did with this batch is its last step.
            timeline.advance(force=True)
            raise
        timeline.advance(force=fetched % accumulate == 0)
        timeline.enter(Phase.INPUT_READY)
        try:
            batch = next(iterator)
        except StopIteration:
            timeline.become(Phase.FIRST_BATCH)
            timeline.leave(Phase.FIRST_BATCH)
            return
        except BaseException:
            timeline.leave(Phase.INPUT_READY)
            raise
        timeline.leave(Phase.INPUT_READY)
        fetched += 1

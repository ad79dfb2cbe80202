"""Times a DataLoader at its innermost iterator, leaving the training loop as it is.

The loader and its iterators are given subclasses of their own classes: they stay what they were to everybody else, and
no other loader is touched. A loader of torch's is timed where it makes its iterator, beneath whatever a subclass of it
adds around that, such as looking one batch ahead; anything else, where it is iterated over.
"""

from __future__ import annotations

import copyreg
import weakref
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from ..errors import SettingError
from ..phases import Phase
from .production import Produced, TimedWorker
from .recorder import Recorder
from .shard import shard_of_batch, shard_of_dataset

__all__ = ["Fetches", "watch_loader"]

_INPUT_READY: Final = int(Phase.INPUT_READY)
_FIRST_BATCH: Final = int(Phase.FIRST_BATCH)
_EVAL: Final = int(Phase.EVAL)
_TIMED: Final = "_rank_exporter_timed"


class Fetches:
    """Times the fetches of one iterator: the first of an epoch apart, the one that finds it exhausted not at all.

    ``ready`` tells how many batches the workers have ready, where there are workers.
    """

    __slots__ = ("_loader", "_ready", "_recorder", "_workers", "first", "trains")

    def __init__(self, recorder: Recorder, iterator: Any, loader: Any) -> None:
        self._recorder = recorder
        self._loader = weakref.ref(loader)
        self.trains = recorder.feeds_training(loader)
        self._workers = getattr(iterator, "_num_workers", 0)
        self._ready: Callable[[], int] | None = iterator._data_queue.qsize if self._workers else None
        self.first = True

    def learn(self) -> None:
        """A backward followed: the loader feeds training, whatever mode the model is in as it is asked."""
        self.trains = True
        loader = self._loader()
        if loader is not None:
            self._recorder.feed_with(loader)

    def time(self, fetch: Callable[..., Any], *arguments: Any) -> Any:
        recorder = self._recorder
        if recorder.is_elsewhere():
            batch = fetch(*arguments)
            return batch.batch if type(batch) is Produced else batch
        timeline = recorder.timeline
        recorder.fed = self
        if not torch.is_grad_enabled() or (not self.trains and recorder.is_evaluating()):
            phase = _EVAL
        elif self.first:
            # The loop has moved on already, when it asked for this iterator.
            phase = _FIRST_BATCH
        else:
            phase = _INPUT_READY
            recorder.advance()
            if self._ready is not None:
                recorder.writer.set_loader(workers=self._workers, ready=self._ready())
        self.first = False
        timeline.enter(phase)
        try:
            batch = fetch(*arguments)
        except StopIteration:
            # The end of an epoch is no input. What it takes belongs to turning the epoch.
            if timeline.phase == phase != _EVAL:
                phase = _FIRST_BATCH
                timeline.become(phase)
                recorder.writer.count_epoch()
            timeline.leave(phase)
            raise
        except BaseException:
            timeline.leave(phase)
            raise
        timeline.leave(phase)
        return self._taken(batch) if phase != _EVAL else batch.batch if type(batch) is Produced else batch

    def _taken(self, batch: Any) -> Any:
        recorder = self._recorder
        recorder.has_input = True
        ns = 0
        if type(batch) is Produced:
            batch, ns = batch.batch, batch.ns
        try:
            if not recorder.shard_is_given and (shard := shard_of_batch(batch)) is not None:
                recorder.writer.set_shard(shard)
            if ns:
                recorder.writer.observe_production(ns)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            recorder.fault("hook", error)
        return batch


class _TimedIterator:
    """For iterators whose class cannot be subclassed, such as generators."""

    __slots__ = ("_fetches", "_inner")

    def __init__(self, inner: Iterator[Any], recorder: Recorder, loader: Any) -> None:
        self._inner = inner
        self._fetches = Fetches(recorder, None, loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self._fetches.time(self._inner.__next__)


@cache
def _timed_iterator_class(kind: Any) -> Any:
    def __next__(self: Any) -> Any:  # noqa: N807 - becomes a method
        return self._rank_exporter_fetches.time(kind.__next__, self)

    def _reset(self: Any, *args: Any, **kwargs: Any) -> None:
        # Workers that are kept for the next epoch.
        fetches = self._rank_exporter_fetches
        with _building(fetches._recorder, fetches.trains):
            kind._reset(self, *args, **kwargs)
        self._rank_exporter_fetches.first = True

    return type(
        kind.__name__, (kind,), {"__next__": __next__, "_reset": _reset, "__module__": kind.__module__, _TIMED: True}
    )


class _building:  # noqa: N801 - used like a function
    """The loop asks for an iterator: the step is over, and what follows is none until the first batch is there."""

    __slots__ = ("_phase", "_recorder", "_trains")

    def __init__(self, recorder: Recorder, trains: bool) -> None:
        self._recorder = recorder
        self._trains = trains
        self._phase: Phase | None = None

    def __enter__(self) -> None:
        recorder = self._recorder
        if recorder.is_elsewhere():
            return
        self._phase = Phase.EVAL
        if torch.is_grad_enabled() and (self._trains or not recorder.is_evaluating()):
            self._phase = Phase.FIRST_BATCH
            recorder.advance()
        recorder.timeline.enter(self._phase)

    def __exit__(self, *_error: object) -> None:
        if self._phase is not None:
            self._recorder.timeline.leave(self._phase)


def _timed_methods(kind: Any, recorder: Recorder) -> dict[str, Any]:
    def __iter__(self: Any) -> Any:  # noqa: N807 - becomes a method
        with _building(recorder, recorder.feeds_training(self)):
            return _TimedIterator(kind.__iter__(self), recorder, self)

    def _get_iterator(self: Any) -> Any:
        initialise = self.worker_init_fn
        with _building(recorder, recorder.feeds_training(self)):
            if self.num_workers:
                self.worker_init_fn = TimedWorker(initialise)
            try:
                iterator = kind._get_iterator(self)
            finally:
                self.worker_init_fn = initialise
            if not isinstance(iterator, _BaseDataLoaderIter):
                return _TimedIterator(iterator, recorder, self)
            own: Any = type(iterator)
            iterator._rank_exporter_fetches = Fetches(recorder, iterator, self)  # type: ignore[attr-defined]
            if not hasattr(iterator, _TIMED):
                iterator.__class__ = _timed_iterator_class(own)
            return iterator

    return {"_get_iterator": _get_iterator} if issubclass(kind, DataLoader) else {"__iter__": __iter__}


@cache
def _timed_class(kind: Any, recorder: Recorder) -> Any:
    def __reduce_ex__(self: Any, protocol: int) -> Any:  # noqa: N807 - becomes a method
        # A copy, here or in another process, is an ordinary loader again.
        make, arguments, *state = kind.__reduce_ex__(self, protocol)
        if make is copyreg.__newobj__ and arguments == (type(self),):  # type: ignore[attr-defined]
            return copyreg._reconstructor, (kind, object, None), *state  # type: ignore[attr-defined]
        return make, tuple(kind if part is type(self) else part for part in arguments), *state

    methods = {**_timed_methods(kind, recorder), "__reduce_ex__": __reduce_ex__, "__module__": kind.__module__}
    return type(kind.__name__, (kind,), methods)


def watch_loader(loader: Any, recorder: Recorder) -> Callable[[], None]:
    """Time every iteration over ``loader``. Returns what undoes it. Raises SettingError where that cannot be done."""
    kind: Any = type(loader)
    timed = _timed_class(kind, recorder) if hasattr(kind, "__iter__") else None
    try:
        if timed is None:
            raise TypeError("it has no __iter__")
        loader.__class__ = timed
    except TypeError as error:
        raise SettingError(
            f"dataloader is {kind.__name__!r} and cannot be watched ({error}): "
            "write `for batch in exporter.steps(loader)` instead"
        ) from None

    watched = weakref.ref(loader)

    def undo() -> None:
        found = watched()
        if found is not None and type(found) is timed:
            found.__class__ = kind

    recorder.moves_on_at_forward = False
    workers = getattr(loader, "num_workers", 0)
    recorder.writer.set_loader(workers=workers, ready=0)
    if not recorder.shard_is_given:
        recorder.writer.set_shard(shard_of_dataset(loader) or recorder.default_shard)
    return undo

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
from threading import get_ident
from typing import Any, Final

import torch
from torch import is_grad_enabled
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from ..errors import SettingError
from ..phases import Phase
from .draws import observed
from .intake import Intake
from .padding import padding_of
from .production import Produced, TimedWorker
from .recorder import Recorder
from .shard import shard_of_batch, shard_of_dataset

__all__ = ["Fetches", "watch_loader"]

_INPUT_READY: Final = int(Phase.INPUT_READY)
_FIRST_BATCH: Final = int(Phase.FIRST_BATCH)
_EVAL: Final = int(Phase.EVAL)
_MAP: Final = _DatasetKind.Map
_NAMELESS: Final = (list, tuple, torch.Tensor)
"""The usual kinds of batches, none of which names a shard: to ask whether they are mappings would be dearer."""
_TIMED: Final = "_rank_exporter_timed"
_INTAKE: Final = "_rank_exporter_intake"
SKIP: Final = "_rank_exporter_skip"
"""Attribute of a loader whose wrapper drops that many batches at the beginning of an epoch: they are no input."""
SHARED: Final = "_rank_exporter_shared"
"""Attribute of a loader from which one rank reads for all: whose samples they are is not known."""


class Fetches:
    """Times the fetches of one iterator: the first of an epoch apart, the one that finds it exhausted not at all.

    ``ready`` tells how many batches the workers have ready, where there are workers.
    """

    __slots__ = (
        "_drawn",
        "_elsewhere",
        "_intake",
        "_loader",
        "_ready",
        "_recorder",
        "_skip",
        "_workers",
        "first",
        "trains",
    )

    def __init__(self, recorder: Recorder, iterator: Any, loader: Any, intake: Intake | None = None) -> None:
        self._recorder = recorder
        self._loader = weakref.ref(loader)
        self._intake = intake or _intake(recorder, loader)
        self._drawn = self._intake.drawn
        self._skip: int = getattr(loader, SKIP, 0)
        self.trains = recorder.feeds_training(loader)
        self._workers = getattr(iterator, "_num_workers", 0)
        self._ready: Callable[[], int] | None = iterator._data_queue.qsize if self._workers else None
        self.first = True
        self._elsewhere = False

    def learn(self) -> None:
        """A backward followed: the loader feeds training, whatever mode the model is in as it is asked."""
        self.trains = True
        self._recorder.moves_on_at_forward = self._recorder.moves_on_at_step = False
        loader = self._loader()
        if loader is not None:
            self._recorder.feed_with(loader)

    def _fetch_elsewhere(self, fetch: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        batch = self._pass_over(fetch(*arguments))
        if not self._elsewhere and is_grad_enabled():
            self._elsewhere = True
            self._recorder.finds_input_elsewhere(self._loader())
        return batch

    def renew(self) -> None:
        """Workers are kept, and draw for the next epoch now."""
        self.first = True
        self._elsewhere = False
        loader = self._loader()
        if loader is not None:
            self._skip = getattr(loader, SKIP, 0)
            _renew(self._intake, loader, self._recorder)

    def _begins(self) -> None:
        """The first batch of an epoch is asked for. The loop has moved on already, when it asked for the iterator, but
        for one that asked on another thread."""
        recorder = self._recorder
        recorder.fed = self
        recorder.reads = self._loader
        recorder.moves_on_at_forward = recorder.moves_on_at_step = recorder.input_is_elsewhere = False
        recorder.advance()

    def _pass_over(self, batch: Any) -> Any:
        """A batch that is not training's."""
        index = self._drawn.popleft() if self._drawn else None
        if type(batch) is Produced:
            batch, index = batch.batch, index if batch.index is None else batch.index
        self._intake.pass_over(index)
        return batch

    def time(self, fetch: Callable[..., Any], *arguments: Any) -> Any:
        recorder = self._recorder
        if get_ident() != recorder.thread:
            return self._fetch_elsewhere(fetch, arguments)
        timeline = recorder.timeline
        if not is_grad_enabled() or (not self.trains and recorder.is_evaluating()):
            phase = _EVAL
            if is_grad_enabled() and not recorder.training_loaders:
                recorder.fed = self
        elif self.first:
            phase = _FIRST_BATCH
            self._begins()
        else:
            phase = _INPUT_READY
            recorder.fed = self
            recorder.moves_on_at_step = False
            recorder.advance()
            if self._ready is not None:
                recorder.writer.set_loader(workers=self._workers, ready=self._ready())
        self.first = self._skip > 0
        timeline.enter(phase)
        try:
            batch = fetch(*arguments)
        except StopIteration:
            # The end of an epoch is no input. What it takes belongs to turning the epoch.
            if timeline.phase == phase != _EVAL:
                phase = _FIRST_BATCH
                timeline.become(phase)
                recorder.writer.count_epoch()
                recorder.publish()
                # The loop may have kept the batches, and go on with them.
                recorder.moves_on_at_step = True
                self._end()
            timeline.leave(phase)
            raise
        except BaseException:
            if self._drawn:
                self._drawn.popleft()
            timeline.leave(phase)
            raise
        timeline.leave(phase)
        if phase == _EVAL:
            return self._pass_over(batch)
        if self._skip > 0:
            self._skip -= 1
            return self._pass_over(batch)
        return self._taken(batch)

    def _taken(self, batch: Any) -> Any:
        recorder = self._recorder
        recorder.has_input = True
        ns = 0
        index = self._drawn.popleft() if self._drawn else None
        if type(batch) is Produced:
            batch, ns, index = batch.batch, batch.ns, index if batch.index is None else batch.index
        try:
            self._intake.take(batch, index)
            if not recorder.shard_is_given and type(batch) not in _NAMELESS:
                shard = shard_of_batch(batch)
                if shard is not None:
                    recorder.writer.set_shard(shard)
            if ns:
                recorder.writer.observe_production(ns)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            recorder.fault("hook", error)
        return batch

    def _end(self) -> None:
        try:
            self._intake.end(complete=not self._elsewhere)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("samples", error)


def _intake(recorder: Recorder, loader: Any) -> Intake:
    intake = Intake(recorder.accounts, loader)
    _renew(intake, loader, recorder)
    return intake


def _renew(intake: Intake, loader: Any, recorder: Recorder) -> None:
    """An epoch begins: ask the loader, before it draws for it, what is to be known of it."""
    epoch, padding, length = 0, None, None
    try:
        epoch = _epoch_of(loader)
        if isinstance(loader, DataLoader) and loader._dataset_kind == _MAP:
            padding, length = padding_of(loader), _length_of(loader)
    except Exception as error:  # noqa: BLE001 - see Recorder.fault
        recorder.fault("samples", error)
    intake.renew(epoch, padding, length=length, counts=not getattr(loader, SHARED, False))


def _length_of(loader: DataLoader[Any]) -> int | None:
    try:
        return len(loader)
    except (TypeError, NotImplementedError):  # of a sampler without end
        return None


def _epoch_of(loader: Any) -> int:
    """The epoch that sampler or dataset were set to; 0 where they know of none."""
    batches = getattr(loader, "batch_sampler", None)
    inside = (getattr(holder, "sampler", None) for holder in (batches, getattr(batches, "batch_sampler", None)))
    holders = (getattr(loader, "sampler", None), *inside, getattr(loader, "dataset", None))
    found = (getattr(holder, "epoch", None) for holder in holders)
    return next((epoch for epoch in found if type(epoch) is int and epoch >= 0), 0)


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
            fetches.renew()
            kind._reset(self, *args, **kwargs)

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
        if is_grad_enabled() and (self._trains or not recorder.is_evaluating()):
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
        intake = _intake(recorder, self)
        in_order = getattr(self, "in_order", True)
        with _building(recorder, recorder.feeds_training(self)):
            if self.num_workers:
                self.worker_init_fn = TimedWorker(initialise, tells_indices=not in_order)
            if self._dataset_kind == _MAP and (in_order or not self.num_workers):
                self.__dict__[_INTAKE] = intake
            try:
                iterator = kind._get_iterator(self)
            finally:
                self.worker_init_fn = initialise
                self.__dict__.pop(_INTAKE, None)
            if not isinstance(iterator, _BaseDataLoaderIter):
                return _TimedIterator(iterator, recorder, self)
            own: Any = type(iterator)
            iterator._rank_exporter_fetches = Fetches(recorder, iterator, self, intake)  # type: ignore[attr-defined]
            if not hasattr(iterator, _TIMED):
                iterator.__class__ = _timed_iterator_class(own)
            return iterator

    if not issubclass(kind, DataLoader):
        return {"__iter__": __iter__}

    def _index_sampler(self: Any) -> Any:
        sampler = kind._index_sampler.fget(self)
        intake = self.__dict__.get(_INTAKE)
        return sampler if intake is None else observed(sampler, intake.drawn)

    return {"_get_iterator": _get_iterator, "_index_sampler": property(_index_sampler)}


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

"""Hugging Face Accelerate: one line, after the Accelerator is made.

    accelerator = Accelerator()
    watch_accelerator(accelerator)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

Input is timed at the DataLoader inside Accelerate's: neither its look-ahead nor its transfer to the device, which is
``h2d``, nor its broadcast is in it. With ``dispatch_batches`` rank 0 reads for all: on the others input is the wait for
their share, so that a slow feed shows alike on every rank and blames none. ``gather``, ``reduce`` and
``wait_for_everyone`` are ``collective_wait``; ``save_state`` and ``save_model`` are ``checkpoint``. Evaluation is told
from training by the mode of the model as its loader is first asked, or by disabled gradients.

Samples are accounted for, save with ``dispatch_batches``, where only ``exporter.count`` counts them. Batches that
Accelerate reads and drops as training is resumed in the midst of an epoch are neither input nor samples.

Nothing of this is needed under ``python -m rank_exporter``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from accelerate import data_loader
from accelerate.accelerator import Accelerator
from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, SkipDataLoader

from ..instrument.data import SHARED, SKIP, Fetches
from ..instrument.exporter import Exporter, start
from ..phases import Phase
from .methods import Methods

__all__ = ["watch_accelerator", "watch_everything"]

_methods: Final = Methods()


def watch_accelerator(accelerator: Any, **settings: Any) -> Exporter:
    """Record all that ``accelerator`` has prepared or will prepare; returns the exporter.

    settings: as of rank_exporter.start, whose SettingError it raises; none needed where it was started.
    """
    exporter = start(**settings)
    watch_everything(exporter)
    for prepared in (*accelerator._models, *accelerator._optimizers, *accelerator._dataloaders):
        _watch(exporter, prepared)
    return exporter


def watch_everything(exporter: Exporter) -> None:
    """Record what any Accelerator prepares from now on, until the exporter stops."""

    def prepared(result: Any, *_args: Any, **_kwargs: Any) -> None:
        for one in result if isinstance(result, (list, tuple)) else (result,):
            _watch(exporter, one)

    _methods.after(Accelerator, "prepare prepare_model prepare_optimizer prepare_data_loader", prepared, exporter)
    _methods.time(Accelerator, "save_state save_model", Phase.CHECKPOINT.label, exporter)
    _methods.wrap(Accelerator, "gather reduce wait_for_everyone", lambda call: _waiting(call, exporter), exporter)
    for kind in (DataLoaderShard, SkipDataLoader):
        _methods.before(kind, "__iter__", _skipping, exporter)
    _methods.before(DataLoaderDispatcher, "__iter__", _dealing, exporter)
    _methods.time_copies(data_loader, "send_to_device", lambda _batch, device, **_options: device, exporter)
    _methods.wrap(DataLoaderDispatcher, "_fetch_batches", lambda call: _dispatching(call, exporter), exporter)


def _watch(exporter: Exporter, prepared: Any) -> None:
    if isinstance(prepared, torch.nn.Module):
        exporter._watch(model=prepared)
    elif isinstance(prepared, torch.optim.Optimizer):
        exporter._watch(optimizer=prepared)
    elif isinstance(prepared, torch.utils.data.DataLoader):
        exporter._watch(dataloader=prepared)


def _skipping(self: Any, *_args: Any, **_kwargs: Any) -> None:
    """A resumed epoch begins with batches that are read and dropped."""
    setattr(self.base_dataloader, SKIP, self.skip_batches)


def _dealing(self: Any, *_args: Any, **_kwargs: Any) -> None:
    """Rank 0 reads for all: how samples are dealt out is not seen at its loader."""
    ranks = self.state.num_processes
    reads = ranks if self.state.process_index == 0 and not self.split_batches else 1
    setattr(self.base_dataloader, SKIP, self.skip_batches * reads)
    setattr(self.base_dataloader, SHARED, ranks > 1)


def _waiting(call: Callable[..., Any], exporter: Exporter) -> Callable[..., Any]:
    """A collective between ranks; with one rank alone it is none."""
    span, recorder = exporter.phase(Phase.COLLECTIVE_WAIT.label), exporter._recorder

    def waiting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.num_processes == 1 or recorder.is_elsewhere():
            return call(self, *args, **kwargs)
        with span:
            return call(self, *args, **kwargs)

    return waiting


def _dispatching(call: Callable[..., Any], exporter: Exporter) -> Callable[..., Any]:
    """What rank 0 reads for all: there a collective with its own fetches in it, elsewhere the wait for the batch."""
    span, recorder = exporter.phase(Phase.COLLECTIVE_WAIT.label), exporter._recorder
    latest: Any = None
    fetches: Any = None

    def fetch(self: Any, iterator: Any) -> Any:
        found = call(self, iterator)
        if found[1][0] is None:
            raise StopIteration(found)  # rank 0 came to the end
        return found

    def dispatching(self: Any, iterator: Any) -> Any:
        if self.state.num_processes == 1 or recorder.is_elsewhere() or not torch.is_grad_enabled():
            return call(self, iterator)
        if self.state.process_index == 0:
            recorder.advance()
            with span:
                return call(self, iterator)
        nonlocal latest, fetches
        epoch = id(self), id(iterator), self.iteration
        if epoch != latest:
            latest, fetches = epoch, Fetches(recorder, None, self.base_dataloader)
        try:
            return fetches.time(fetch, self, iterator)
        except StopIteration as end:
            return end.value

    return dispatching

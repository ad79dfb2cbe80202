"""Watches what a training script makes, as it makes it: loaders, distributed models, optimizers.

For scripts that are run through ``python -m rank_exporter`` and know nothing of it.
"""

from __future__ import annotations

import functools
import sys
import weakref
from typing import Any
from weakref import WeakKeyDictionary

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from .commhook import follow_registration
from .exporter import Exporter
from .optimizer import watched_optimizers
from .recorder import Recorder

__all__ = ["watch_everything", "watch_sharded"]


def watch_everything(exporter: Exporter) -> None:
    """Have ``exporter`` watch every DataLoader, DistributedDataParallel and optimizer that is constructed from now on.

    Training loaders are told from evaluation's by whether gradients are enabled as a batch is fetched. What cannot be
    watched is counted as an error, and made as ever.
    """
    if exporter._recorder.bucket_timing:
        follow_registration()  # a model may register a hook as it is constructed
    for kind, keyword in ((DataLoader, "dataloader"), (DistributedDataParallel, "model"), (Optimizer, "optimizer")):
        _watch_instances(kind, keyword, exporter)
    _follow_modes(exporter._recorder)


def _follow_modes(recorder: Recorder) -> None:
    """Know plain models, which are not watched, as they are put into training or evaluation mode: modules that hold all
    that an optimizer trains. By them evaluation is told from training."""
    train = Module.train
    looked_at: WeakKeyDictionary[Module, int] = WeakKeyDictionary()
    depth = 0

    def look_at(module: Module, *, was_training: bool) -> None:
        optimizers = watched_optimizers()
        if looked_at.get(module) == len(optimizers) or any(
            known() is module for known in (*recorder.models, *recorder.unwatched)
        ):
            return
        looked_at[module] = len(optimizers)
        own = {id(parameter) for parameter in module.parameters()}
        for optimizer in optimizers:
            trained = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            if trained and trained <= own:
                recorder.unwatched.append(weakref.ref(module))
                # If it was trained before, it was in that mode.
                recorder.mode_tells = recorder.mode_tells or (was_training and recorder.timeline.marked_ns > 0)
                return

    @functools.wraps(train)
    def followed(self: Any, mode: bool = True) -> Any:
        nonlocal depth
        was_training = getattr(self, "training", False)
        depth += 1
        try:
            made = train(self, mode)
        finally:
            depth -= 1
        if not depth:
            try:
                look_at(self, was_training=was_training)
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                recorder.fault("hook", error)
        return made

    Module.train = followed  # type: ignore[method-assign]


def watch_sharded(exporter: Exporter) -> None:
    """Have ``exporter`` watch every model that is sharded from now on, by FullyShardedDataParallel or fully_shard.

    To be called once torch.distributed.fsdp is loaded, which few scripts need.
    """
    package = sys.modules["torch.distributed.fsdp"]
    wrapper: Any = getattr(package, "FullyShardedDataParallel", None)
    if wrapper is not None:
        _watch_instances(wrapper, "model", exporter)
    shard: Any = getattr(package, "fully_shard", None)
    if shard is None:
        return

    @functools.wraps(shard)
    def fully_shard(module: Any, *args: Any, **kwargs: Any) -> Any:
        made = shard(module, *args, **kwargs)
        for sharded in module if isinstance(module, (list, tuple)) else (module,):
            _watch(exporter, "model", sharded)
        return made

    # The package binds it under several names.
    for name, loaded in list(sys.modules.items()):
        if name.startswith(("torch.distributed.fsdp", "torch.distributed._composable")):
            for attribute, value in list(vars(loaded).items()):
                if value is shard:
                    setattr(loaded, attribute, fully_shard)


def _watch(exporter: Exporter, keyword: str, made: Any) -> None:
    try:
        if keyword == "model":
            # Its parts that were watched are now timed as the whole.
            exporter._unwatch(list(made.modules())[1:])
        exporter._watch(**{keyword: made})
    except Exception as error:  # noqa: BLE001 - see Recorder.fault
        exporter._recorder.fault("hook", error)


def _watch_instances(kind: Any, keyword: str, exporter: Exporter) -> None:
    construct = kind.__init__

    @functools.wraps(construct)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - becomes a method
        construct(self, *args, **kwargs)
        _watch(exporter, keyword, self)

    kind.__init__ = __init__

"""Sharded models: where their waiting for other ranks is, and how it is told from computing.

With FSDP2 (fully_shard) a rank waits for peers wherever parameters are gathered, within forward and backward, and
wherever gradients are reduced. What its parameter groups do for that is ``collective_wait``, copies into and out of the
buffers of the collectives included; forward and backward are the rank's own. FSDP1 offers no such place: its forward
and backward include waiting. The fact ``waits_in`` says which it is.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.nn.parallel import DistributedDataParallel

from ..phases import Phase
from .recorder import Recorder

__all__ = ["is_sharded", "waits_in", "watch_groups"]

_COLLECTIVE_WAIT: Final = int(Phase.COLLECTIVE_WAIT)
_METHODS: Final = ("unshard", "wait_for_unshard", "post_backward", "finalize_backward")
_TIMED: Final = "_rank_exporter_timed"
_BESIDE: Final = "forward,backward"

_recorder: Recorder | None = None


def _loaded(name: str) -> Any:
    """A class of torch.distributed.fsdp; nothing where the script has not loaded it, and so has no such model."""
    return getattr(sys.modules.get("torch.distributed.fsdp"), name, ())


def is_sharded(model: torch.nn.Module) -> bool:
    """Whether the model, or a part of it, is one of fully_shard's."""
    return any(isinstance(module, _loaded("FSDPModule")) for module in model.modules())


def waits_in(model: torch.nn.Module) -> str:
    """Phases of the model's steps that include waiting for other ranks, separated by commas; "" where none does."""
    inside = getattr(model, "_orig_mod", model)
    if isinstance(inside, DistributedDataParallel):
        return Phase.COLLECTIVE_WAIT.label
    if is_sharded(inside):
        return Phase.COLLECTIVE_WAIT.label if _group_class() is not None else _BESIDE
    wrapped = _loaded("FullyShardedDataParallel")
    return _BESIDE if any(isinstance(module, wrapped) for module in inside.modules()) else ""


def _group_class() -> Any:
    """What gathers and reduces for fully_shard, if this torch has it where it is looked for."""
    name = "torch.distributed.fsdp._fully_shard._fsdp_param_group"
    kind = getattr(sys.modules.get(name), "FSDPParamGroup", None)
    return kind if all(hasattr(kind, method) for method in _METHODS) else None


def watch_groups(recorder: Recorder) -> Callable[[], None]:
    """Time what fully_shard's parameter groups wait for. Returns what ends that."""
    global _recorder  # noqa: PLW0603 - there is one exporter to a process
    kind = _group_class()
    if kind is not None and not hasattr(kind.unshard, _TIMED):
        for name in _METHODS:
            setattr(kind, name, _timed(getattr(kind, name)))
    _recorder = recorder

    def undo() -> None:
        global _recorder  # noqa: PLW0603
        if _recorder is recorder:
            _recorder = None

    return undo


def _timed(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def timed(*args: Any, **kwargs: Any) -> Any:
        recorder = _recorder
        if recorder is None or torch.compiler.is_compiling():
            return call(*args, **kwargs)
        recorder.timeline.enter(_COLLECTIVE_WAIT)
        try:
            return call(*args, **kwargs)
        finally:
            recorder.timeline.leave(_COLLECTIVE_WAIT)

    setattr(timed, _TIMED, True)
    return timed

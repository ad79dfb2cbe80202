"""Times optimizer steps. The end of the last one in a training iteration is the end of the step.

A gradient scaler that meets an infinity leaves the optimizer out. Its own step is timed too, so that the training step
ends all the same, and what was left out is counted.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.amp.grad_scaler import GradScaler

from ..errors import SettingError
from ..phases import Phase
from .recorder import Recorder

__all__ = ["watch_optimizer"]

_OPTIMIZER: Final = int(Phase.OPTIMIZER)


class _OptimizerHooks:
    """Hooks of one optimizer. ``ran`` tells the scaler's step whether it stepped."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.timeline = recorder.timeline
        self.ran = False

    def before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.ran = True
        self.timeline.enter(_OPTIMIZER)

    def after(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.timeline.leave(_OPTIMIZER)


_watched: WeakKeyDictionary[Any, _OptimizerHooks] = WeakKeyDictionary()


def _time_scaler() -> None:
    """Have every gradient scaler time its steps of watched optimizers; others it leaves as they are. Once is enough."""
    scaler_step = GradScaler.step
    if hasattr(scaler_step, "__wrapped__"):
        return

    @functools.wraps(scaler_step)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        hooks = _watched.get(optimizer)
        if hooks is None:
            return scaler_step(self, optimizer, *args, **kwargs)
        hooks.ran = False
        hooks.timeline.enter(_OPTIMIZER)
        try:
            return scaler_step(self, optimizer, *args, **kwargs)
        finally:
            hooks.timeline.leave(_OPTIMIZER)
            if not hooks.ran:
                hooks.recorder.writer.count_skipped()

    GradScaler.step = step  # type: ignore[method-assign]


def watch_optimizer(optimizer: Any, recorder: Recorder) -> Callable[[], None]:
    """Time ``optimizer.step`` from now on. Returns what undoes it. Raises SettingError."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingError(f"optimizer is {type(optimizer).__name__!r}: give a torch.optim.Optimizer, or several")
    _time_scaler()
    hooks = _watched[optimizer] = _OptimizerHooks(recorder)
    handles = (optimizer.register_step_pre_hook(hooks.before), optimizer.register_step_post_hook(hooks.after))

    watched = weakref.ref(optimizer)

    def undo() -> None:
        found = watched()
        if found is not None:
            del _watched[found]
        for handle in handles:
            handle.remove()

    recorder.optimizer_is_watched = True
    return undo

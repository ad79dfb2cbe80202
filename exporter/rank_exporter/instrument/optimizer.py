"""Times optimizer steps. The end of the last one in a training iteration is the end of the step.

A gradient scaler that meets an infinity leaves the optimizer out. Its own step is timed too, so that the training step
ends all the same, and what was left out is counted.

Where no batch is fetched from a loader and the model is not watched either, as that of a script that knows nothing of
us may be, an optimizer that steps anew tells that the loop has moved on.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.amp.grad_scaler import GradScaler

from ..errors import SettingError
from ..phases import Phase
from .recorder import Recorder

__all__ = ["steps_under_way", "watch_optimizer", "watched_optimizers"]

_OPTIMIZER: Final = int(Phase.OPTIMIZER)
_BEFORE: Final = len(Phase)
_TORCH: Final = sys.modules[torch.optim.Optimizer.__module__].__file__


class _OptimizerHooks:
    """Hooks of one optimizer. ``ran`` tells the scaler's step whether it stepped; ``stepped_ns`` when it did last."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.timeline = recorder.timeline
        self.ran = False
        self.stepped_ns = -1

    def before(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self.ran = True
        recorder = self.recorder
        if recorder.moves_on_at_step:
            self._moves_on()
        recorder.is_stepping = True
        self.timeline.enter(_OPTIMIZER)

    def _moves_on(self) -> None:
        recorder = self.recorder
        if recorder.is_elsewhere():
            # Whoever steps the optimizer is who trains.
            recorder.thread = get_ident()
        elif recorder.input_is_elsewhere and self.stepped_ns > 0:
            recorder.misses_input()
        joins = self.stepped_ns < 0 and recorder.steps_ended > 1
        if joins or self.stepped_ns > recorder.ended_ns or recorder.is_stepping or self.timeline.phase == _BEFORE:
            recorder.advance(steps_under_way=1)

    def after(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        timeline, recorder = self.timeline, self.recorder
        timeline.leave(_OPTIMIZER)
        recorder.is_stepping = False
        self.stepped_ns = timeline.marked_ns
        if recorder.unwatched:
            recorder.learn_mode()

    def give_up(self) -> None:
        """The scaler's step raises: torch calls no hook after the optimizer's, if that was begun."""
        if self.recorder.is_stepping:
            self.recorder.is_stepping = False
            self.timeline.leave(_OPTIMIZER)
            self.stepped_ns = self.timeline.marked_ns


_watched: WeakKeyDictionary[Any, _OptimizerHooks] = WeakKeyDictionary()


def steps_under_way() -> int:
    """How many steps of optimizers and scalers are under way on this thread, one within the other. One that raised left
    its phase in progress: torch calls no hook after it."""
    found, frame = 0, sys._getframe().f_back
    while frame is not None:
        code = frame.f_code
        found += code.co_filename == _TORCH or (code.co_name == "step" and code.co_filename == __file__)
        frame = frame.f_back
    return found


def watched_optimizers() -> list[torch.optim.Optimizer]:
    """Those that live."""
    return list(_watched)


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
        except BaseException:
            hooks.give_up()
            raise
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

    def gone(_: Any) -> None:
        # A loop that steps another one, of which nobody told, goes on by its batches.
        recorder.optimizer_is_watched = any(other.recorder is recorder for other in _watched.values())

    watched = weakref.ref(optimizer, gone)

    def undo() -> None:
        found = watched()
        if found is not None:
            del _watched[found]
        for handle in handles:
            handle.remove()

    recorder.optimizer_is_watched = True
    return undo

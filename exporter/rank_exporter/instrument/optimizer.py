"""Times optimizer steps. The end of the last one in a training iteration is the end of the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import SettingError
from ..phases import Phase
from .recorder import Recorder

__all__ = ["watch_optimizer"]


def watch_optimizer(optimizer: Any, recorder: Recorder) -> Callable[[], None]:
    """Time ``optimizer.step`` from now on. Returns what undoes it. Raises SettingError."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingError(f"optimizer is {type(optimizer).__name__!r}: give a torch.optim.Optimizer, or several")
    timeline = recorder.timeline

    def before(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        timeline.enter(Phase.OPTIMIZER)

    def after(_optimizer: Any, _args: Any, _kwargs: Any) -> None:
        timeline.leave(Phase.OPTIMIZER)

    handles = (optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after))

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo

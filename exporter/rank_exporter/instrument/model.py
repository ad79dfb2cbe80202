"""Times forward, backward and the exposed collective wait of a model, plain or DistributedDataParallel.

Where backward parts from waiting: the autograd engine runs its final callbacks in the order in which they were
queued. Ours is queued as backward begins, so it runs when this rank's last gradient is ready; the reducer of
DistributedDataParallel queues its own when its last bucket is full, and waits for the collectives in there; a
second one of ours, queued from the first, runs after that. No communication hook, and no hook on a parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel

from ..errors import SettingError
from ..phases import Phase
from .recorder import Recorder

__all__ = ["watch_model"]

_OUTPUTS: Final = 4
"""How many output tensors are asked when backward begins: one of them takes part in the loss."""


def _graph_nodes(output: Any) -> Iterator[Node]:
    """Autograd nodes of the tensors in a model's output, through mappings, sequences and dataclasses."""
    if isinstance(output, torch.Tensor):
        if output.grad_fn is not None:
            yield output.grad_fn
        return
    if isinstance(output, dict):
        parts: Any = output.values()
    elif isinstance(output, (list, tuple)):
        parts = output
    elif hasattr(output, "__dataclass_fields__"):
        parts = (getattr(output, name) for name in output.__dataclass_fields__)
    else:
        return
    for part in parts:
        yield from _graph_nodes(part)


class _ModelHooks:
    """Hooks of one model. None of them returns anything, so none changes a value."""

    def __init__(self, model: torch.nn.Module, recorder: Recorder) -> None:
        self._recorder = recorder
        self._timeline = recorder.timeline
        self._distributed = model if isinstance(model, DistributedDataParallel) else None
        self._queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback

    def before_forward(self, module: torch.nn.Module, _inputs: Any) -> None:
        try:
            timeline = self._timeline
            if timeline.phase in (Phase.BACKWARD, Phase.COLLECTIVE_WAIT):
                if torch._C._current_graph_task_id() != -1:
                    return  # activations computed anew, within backward
                timeline.unwind()
            if not torch.is_grad_enabled() and not module.training:
                timeline.enter(Phase.EVAL)
                return
            if self._recorder.moves_on_at_forward:
                timeline.advance()
            timeline.enter(Phase.FORWARD)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def after_forward(self, module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        try:
            timeline = self._timeline
            if not torch.is_grad_enabled():
                timeline.leave(Phase.FORWARD if module.training else Phase.EVAL)
                return
            if timeline.phase != Phase.BACKWARD:
                timeline.leave(Phase.FORWARD)
                for _, node in zip(range(_OUTPUTS), _graph_nodes(output), strict=False):
                    node.register_prehook(self.backward_begins)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def backward_begins(self, _gradients: Any) -> None:
        try:
            if self._timeline.phase != Phase.BACKWARD:
                self._queue(self.last_gradient_ready)
                self._timeline.enter(Phase.BACKWARD)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def last_gradient_ready(self) -> None:
        try:
            self._timeline.leave(Phase.BACKWARD)
            if self._distributed is not None and self._distributed.require_backward_grad_sync:
                self._queue(self.gradients_reduced)
                self._timeline.enter(Phase.COLLECTIVE_WAIT)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def gradients_reduced(self) -> None:
        self._timeline.leave(Phase.COLLECTIVE_WAIT)


def watch_model(model: Any, recorder: Recorder) -> Callable[[], None]:
    """Time the model's forward and backward from now on. Returns what undoes it. Raises SettingError."""
    if not isinstance(model, torch.nn.Module):
        raise SettingError(f"model is {type(model).__name__!r}: give a torch.nn.Module or DistributedDataParallel")
    hooks = _ModelHooks(model, recorder)
    handles = (
        model.register_forward_pre_hook(hooks.before_forward),
        model.register_forward_hook(hooks.after_forward, always_call=True),
    )

    def undo() -> None:
        for handle in handles:
            handle.remove()

    facts = {"framework": f"torch {torch.__version__}", "device": _device(model)}
    if hooks._distributed is not None and torch.distributed.is_initialized():
        facts["backend"] = str(torch.distributed.get_backend(hooks._distributed.process_group))
    recorder.tell(**facts)
    return undo


def _device(model: torch.nn.Module) -> str:
    parameter = next(model.parameters(), None)
    return "" if parameter is None else str(parameter.device)

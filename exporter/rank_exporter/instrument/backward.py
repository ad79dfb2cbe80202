"""Times the backward of a model, and its exposed wait for other ranks apart.

Where backward parts from waiting: the autograd engine runs its final callbacks in the order in which they were
queued. Ours is queued before this rank's last gradient, so it runs when that is ready; the reducer of
DistributedDataParallel queues its own when its last bucket is full, and waits for the collectives in there; a
second one of ours, queued from the first, runs after that. No communication hook.

When backward begins is asked of the model's output first: a hook on its autograd node is right however backward is
run, but it is made anew for each step, which costs more than all that it measures. Once backward was seen to be run
by torch.autograd.backward, as loss.backward() does, it begins with that call, and hooks on two parameters, which
stay, queue the callback. Where a loop turns out to run it in another way after all, the output is asked again.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, Final

import torch
from torch.autograd.graph import Node
from torch.nn.parallel import DistributedDataParallel

from ..phases import Phase
from .recorder import Recorder

__all__ = ["Backward"]

# Plain integers: looking a member of an enumeration up costs as much as reading the clock.
_BACKWARD: Final = int(Phase.BACKWARD)
_COLLECTIVE_WAIT: Final = int(Phase.COLLECTIVE_WAIT)
_IN_BACKWARD: Final = (_BACKWARD, _COLLECTIVE_WAIT)
_OUTPUTS: Final = 4
"""How many output tensors are asked when backward begins: one of them takes part in the loss."""
_SEEN: Final = 2
"""Backwards in a row that were run by torch.autograd.backward, until its calls are relied on."""
_UNANSWERED: Final = 8
"""Forwards in a row without a call of it, until they are not. A step may well have several."""
_FOLLOWED: Final = "_rank_exporter_followed"

_latest: Backward | None = None
"""Of the model that ran forward last."""


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
    elif hasattr(type(output), "__dataclass_fields__"):
        parts = (getattr(output, name) for name in output.__dataclass_fields__)
    else:
        return
    for part in parts:
        yield from _graph_nodes(part)


class Backward:
    """Times one model's. None of its hooks returns anything, so none changes a value.

    ``distributed``: the DistributedDataParallel that the model is, or is within, if any. ``_depth``: calls of
    torch.autograd.backward in progress, one within the other where activations are computed anew.
    """

    __slots__ = (
        "_by_call",
        "_depth",
        "_handles",
        "_model",
        "_queue",
        "_queued",
        "_recorder",
        "_seen",
        "_timeline",
        "_unanswered",
        "_wanted",
        "distributed",
    )

    def __init__(self, model: torch.nn.Module, recorder: Recorder, *, by_call: bool) -> None:
        """``by_call``: calls may be relied on once they were seen."""
        self.distributed: weakref.ref[DistributedDataParallel] | None = None
        self._recorder = recorder
        self._timeline = recorder.timeline
        self._model = weakref.ref(model)
        self._queue: Callable[[Callable[[], None]], None] = torch.autograd.Variable._execution_engine.queue_callback
        self._wanted = by_call
        self._by_call = False
        self._depth = self._seen = self._unanswered = 0
        self._queued = True
        self._handles: list[Any] = []
        _follow_calls()

    def expect(self, output: Any) -> None:
        """A backward from this output, of the model or of its loss, may follow."""
        global _latest  # noqa: PLW0603 - calls of torch.autograd.backward name no model
        if _latest is not self:
            # Of models that take turns, nobody could tell whose the call is.
            self._ask_nodes()
            _latest = self
        if self._by_call:
            self._unanswered += 1
            if self._unanswered <= _UNANSWERED:
                return
            self._ask_nodes(for_good=True)
        for _, node in zip(range(_OUTPUTS), _graph_nodes(output), strict=False):
            node.register_prehook(self._node_begins)

    def within(self, distributed: DistributedDataParallel) -> None:
        """The model's gradients are reduced by it."""
        self._ask_nodes()
        self.distributed = weakref.ref(distributed)

    def remove(self) -> None:
        """Take the hooks out and rely on no call any more."""
        global _latest  # noqa: PLW0603
        self._ask_nodes(for_good=True)
        if _latest is self:
            _latest = None

    def _learn(self) -> None:
        """This model trains, on what the loop was last fed by."""
        recorder = self._recorder
        recorder.trained = self._model
        fed = recorder.fed
        if fed is not None and not fed.trains:
            fed.learn()

    def _node_begins(self, _gradients: Any) -> None:
        try:
            if self._timeline.phase != _BACKWARD:
                self._queue(self._last_gradient_ready)
                self._learn()
                self._timeline.enter(_BACKWARD)
                if self._depth == 1:
                    self._seen += 1
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def _last_gradient_ready(self) -> None:
        try:
            self._timeline.leave(_BACKWARD)
            if self.distributed is None:
                return
            model = self.distributed()
            if model is not None and model.require_backward_grad_sync:
                self._queue(self._gradients_reduced)
                self._timeline.enter(_COLLECTIVE_WAIT)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def _gradients_reduced(self) -> None:
        self._timeline.leave(_COLLECTIVE_WAIT)

    # By calls of torch.autograd.backward.

    def call(self, run: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run ``torch.autograd.backward``, which is called on the recorder's thread."""
        timeline = self._timeline
        self._depth += 1
        entered = False
        if self._by_call and self._depth == 1 and timeline.phase != _BACKWARD:
            try:
                self._unanswered = 0
                self._queued = self.distributed is None
                recorder = self._recorder
                fed = recorder.fed
                if recorder.trained is not self._model or (fed is not None and not fed.trains):
                    self._learn()
                timeline.enter(_BACKWARD)
                entered = True
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                self._recorder.fault("hook", error)
        try:
            run(*args, **kwargs)
        finally:
            self._depth -= 1
            if not self._depth:
                try:
                    if entered:
                        phase = timeline.phase
                        if phase in _IN_BACKWARD:
                            timeline.leave(phase)
                        if not self._queued:
                            # Neither parameter took part: where the wait began is not known.
                            self._ask_nodes(for_good=True)
                    elif self._wanted and not self._by_call and self._seen >= _SEEN:
                        self._rely_on_calls()
                except Exception as error:  # noqa: BLE001 - see Recorder.fault
                    self._recorder.fault("hook", error)

    def _gradient(self, _parameter: torch.Tensor) -> None:
        # A callback that is queued from within an inner backward would run at the end of that one.
        if self._queued or self._depth != 1 or torch.compiler.is_compiling():
            return
        try:
            self._queued = True
            self._queue(self._last_gradient_ready)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)

    def _rely_on_calls(self) -> None:
        model = None if self.distributed is None else self.distributed()
        if model is not None:
            trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
            # The last is usually the first to be ready; the first stands in where it takes no part.
            for parameter in {id(one): one for one in (*trained[:1], *trained[-1:])}.values():
                handle = parameter.register_post_accumulate_grad_hook(self._gradient)  # type: ignore[no-untyped-call]
                self._handles.append(handle)
        self._by_call = True
        self._unanswered = 0
        self._queued = True

    def _ask_nodes(self, *, for_good: bool = False) -> None:
        self._by_call = False
        self._seen = 0
        self._wanted = self._wanted and not for_good
        while self._handles:
            self._handles.pop().remove()


def _follow_calls() -> None:
    """Have torch.autograd.backward say when it is called. Once is enough."""
    run = torch.autograd.backward
    if hasattr(run, _FOLLOWED):
        return

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> None:
        latest = _latest
        if latest is None or latest._recorder.thread != get_ident():
            run(*args, **kwargs)
        else:
            latest.call(run, args, kwargs)

    setattr(backward, _FOLLOWED, True)
    torch.autograd.backward = backward

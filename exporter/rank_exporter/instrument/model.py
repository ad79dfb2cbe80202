"""Times the forward of a model, plain or DistributedDataParallel, and has its backward timed.

A model is timed where model.compile() puts what it makes: torch calls that in place of the model's own call, copies
and files do without it, and torch.compile does not trace it. Hooks would be traced, and cost three times as much: a
module with any is called in a way that serves all that hooks can do.
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
from torch import is_grad_enabled
from torch.compiler import is_compiling
from torch.nn.parallel import DistributedDataParallel

from ..errors import SettingError
from ..phases import Phase
from .backward import Backward
from .commhook import time_buckets
from .cuda import CudaTimer
from .fsdp import is_sharded, waits_in, watch_groups
from .recorder import Recorder

__all__ = ["follow_backward", "watch_model"]

# Plain integers: looking a member of an enumeration up costs as much as reading the clock.
_FORWARD: Final = int(Phase.FORWARD)
_BACKWARD: Final = int(Phase.BACKWARD)
_COLLECTIVE_WAIT: Final = int(Phase.COLLECTIVE_WAIT)
_EVAL: Final = int(Phase.EVAL)
_IN_BACKWARD: Final = (_BACKWARD, _COLLECTIVE_WAIT)
_TIMES: Final = "_rank_exporter_times"
"""Attribute of what times a model's calls: what model.compile() had made of it, if anything."""


class _TimedModel:
    """What is timed of one model."""

    def __init__(self, model: torch.nn.Module, recorder: Recorder) -> None:
        self.recorder = recorder
        inside: Any = getattr(model, "_orig_mod", model)  # of what torch.compile returned
        distributed = isinstance(inside, DistributedDataParallel)
        self.backward = Backward(model, recorder, by_call=distributed or not waits_in(inside))
        if distributed:
            self.backward.within(inside)
        self._undo: list[Callable[[], None]] = []
        self._followed = True

    def _within(self, distributed: DistributedDataParallel) -> None:
        """The model was wrapped after it was watched, or it alone was given to watch."""
        self.backward.within(distributed)
        self.recorder.tell(backend=_backend(distributed), waits_in=waits_in(distributed))
        self.time_buckets(distributed)

    def time_buckets(self, distributed: DistributedDataParallel) -> None:
        """As far as it is set, and can be."""
        if self.recorder.bucket_timing:
            try:
                self.also(time_buckets(distributed, self.recorder))
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                self.recorder.fault("hook", error)

    def register(self, model: torch.nn.Module) -> None:
        """Time the calls of the model, of what torch.compile returned for it, or of what model.compile() made of it."""
        if not self._followed:
            return
        compiled: Any = model._compiled_call_impl
        watched = weakref.ref(model)
        recorder, timeline, backward = self.recorder, self.recorder.timeline, self.backward

        def timed(*args: Any, **kwargs: Any) -> Any:
            own: Any = watched()
            run = compiled or own._call_impl
            if is_compiling() or get_ident() != recorder.thread:
                return run(*args, **kwargs)
            phase: int | None = None
            try:
                if timeline.phase not in _IN_BACKWARD or not self._is_within_backward():
                    phase = _FORWARD
                    if not is_grad_enabled() and not own.training:
                        phase = _EVAL
                    elif recorder.moves_on_at_forward:
                        recorder.advance()
                        recorder.has_input = True
                    timeline.enter(phase)
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                recorder.fault("hook", error)
            output = None
            try:
                output = run(*args, **kwargs)
            finally:
                try:
                    if phase is not None:
                        timeline.leave(phase)
                        # A part of a watched model has no backward of its own: it is the whole one's.
                        if phase == _FORWARD != timeline.phase and is_grad_enabled():
                            if backward.distributed is None and DistributedDataParallel._active_ddp_module is not None:
                                self._within(DistributedDataParallel._active_ddp_module)
                            backward.expect(output)
                except Exception as error:  # noqa: BLE001 - see Recorder.fault
                    recorder.fault("hook", error)
            return output

        def undo() -> None:
            own = watched()
            if own is not None and own._compiled_call_impl is timed:
                own._compiled_call_impl = compiled

        setattr(timed, _TIMES, compiled)
        if (dynamo := sys.modules.get("torch._dynamo")) is not None:
            # What torch.compile returned calls it as well, within what it compiles.
            dynamo.eval_frame.skip_code(timed.__code__)
        model._compiled_call_impl = timed
        self._undo.append(undo)

    def _is_within_backward(self) -> bool:
        """Whether activations are computed anew; else backward was left by an exception."""
        if torch._C._current_graph_task_id() != -1:
            return True
        self.recorder.timeline.unwind()
        return False

    def also(self, undo: Callable[[], None]) -> None:
        """What else is to be undone as it is timed no longer."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Time and follow it no longer."""
        self._followed = False
        self.backward.remove()
        while self._undo:
            self._undo.pop()()


_watched: WeakKeyDictionary[torch.nn.Module, _TimedModel] = WeakKeyDictionary()


def _follow_calls() -> None:
    """Have torch.compile(model) and model.compile() keep watched models timed, and replicas, which DataParallel makes
    in a way of its own, call themselves. Once is enough."""
    compile_function, compile_method = torch.compile, torch.nn.Module.compile
    replicate: Callable[[torch.nn.Module], Any] = torch.nn.Module._replicate_for_data_parallel
    if hasattr(compile_method, "__wrapped__"):
        return

    @functools.wraps(compile_function)
    def compiled_function(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        made: Any = compile_function(model, *args, **kwargs)
        if isinstance(model, torch.nn.Module) and model in _watched and made is not model:
            _watched[model].register(made)
        return made

    @functools.wraps(compile_method)
    def compiled_method(self: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        compile_method(self, *args, **kwargs)
        if self in _watched:
            _watched[self].register(self)

    @functools.wraps(replicate)
    def replicated(self: torch.nn.Module) -> Any:
        replica = replicate(self)
        called = replica.__dict__.get("_compiled_call_impl")
        if hasattr(called, _TIMES):
            replica._compiled_call_impl = getattr(called, _TIMES)
        return replica

    torch.compile = compiled_function
    torch.nn.Module.compile = compiled_method  # type: ignore[method-assign]
    torch.nn.Module._replicate_for_data_parallel = replicated  # type: ignore[method-assign]


def watch_model(model: Any, recorder: Recorder) -> Callable[[], None]:
    """Time the model's forward and backward from now on. Returns what undoes it. Raises SettingError."""
    if not isinstance(model, torch.nn.Module):
        raise SettingError(f"model is {type(model).__name__!r}: give a torch.nn.Module or DistributedDataParallel")
    _follow_calls()
    timed = _watched[model] = _TimedModel(model, recorder)
    timed.register(model)
    recorder.models.append(weakref.ref(model))
    device = _device(model)
    facts = {
        "framework": f"torch {torch.__version__}",
        "device": "" if device is None else str(device),
        "waits_in": waits_in(model),
    }
    if is_sharded(model):
        timed.also(watch_groups(recorder))
    if isinstance(model, DistributedDataParallel) and torch.distributed.is_initialized():
        facts["backend"] = _backend(model)
    inside = getattr(model, "_orig_mod", model)
    if isinstance(inside, DistributedDataParallel):
        timed.time_buckets(inside)
    if device is not None and device.type == "cuda":
        # By which the agent knows the GPU, whatever number the rank has for it.
        facts["device_uuid"] = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    recorder.tell(**facts)
    if device is not None and device.type == "cuda":
        recorder.use_device(CudaTimer(device))
    return timed.remove


def _backend(model: DistributedDataParallel) -> str:
    return str(torch.distributed.get_backend(model.process_group))


def follow_backward(loss: Any, model: torch.nn.Module, recorder: Recorder) -> None:
    """Time the backward that is about to begin at ``loss``, for a trainer that runs forward in a way of its own."""
    timed = _watched.get(model) or _TimedModel(model, recorder)
    timed.backward.expect(loss)


def _device(model: torch.nn.Module) -> torch.device | None:
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device

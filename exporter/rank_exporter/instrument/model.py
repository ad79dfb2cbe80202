"""Times the forward of a model, plain or DistributedDataParallel, and has its backward timed.

torch.compile would trace hooks into its graph. Ours are empty while it traces, and what it returns, or makes of a
model in place, is timed from outside instead. To replace the call of every model so, without hooks, would cost half as
much, but copies that take a model's attributes along, as those of an LSTM do, would run the model they were made from.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from contextlib import nullcontext
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


class _Hook:
    """What a module holds of ours: nothing while it is compiled, and nothing in its copies, here or in a file. It
    returns nothing, so it changes no value."""

    __slots__ = ("_hooks", "_recorder", "_timeline")

    def __init__(self, hooks: _ModelHooks) -> None:
        self._hooks = hooks
        self._recorder = hooks.recorder
        self._timeline = hooks.recorder.timeline

    def __reduce__(self) -> tuple[Any, ...]:
        # A function of the standard library that takes anything and does nothing.
        return getattr, (nullcontext(), "__exit__")


class _BeforeForward(_Hook):
    __slots__ = ()

    def __call__(self, module: torch.nn.Module, _inputs: Any) -> None:
        if is_compiling():
            return
        try:
            timeline = self._timeline
            if timeline.phase in _IN_BACKWARD:
                if torch._C._current_graph_task_id() != -1:
                    return  # activations computed anew, within backward
                timeline.unwind()
            if not is_grad_enabled() and not module.training:
                timeline.enter(_EVAL)
                return
            if self._recorder.moves_on_at_forward:
                self._recorder.advance()
                self._recorder.has_input = True
            timeline.enter(_FORWARD)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)


class _AfterForward(_Hook):
    __slots__ = ()

    def __call__(self, module: torch.nn.Module, _inputs: Any, output: Any) -> None:
        if is_compiling():
            return
        try:
            timeline = self._timeline
            if not is_grad_enabled():
                timeline.leave(_FORWARD if module.training else _EVAL)
                return
            if timeline.phase != _BACKWARD:
                timeline.leave(_FORWARD)
                if timeline.phase == _FORWARD:
                    return  # a part of a watched model: backward is the whole one's
                backward = self._hooks.backward
                if backward.distributed is None:
                    around = DistributedDataParallel._active_ddp_module
                    if around is not None:
                        self._hooks.within(around)
                backward.expect(output)
        except Exception as error:  # noqa: BLE001 - see Recorder.fault
            self._recorder.fault("hook", error)


class _ModelHooks:
    """Hooks of one model."""

    def __init__(self, model: torch.nn.Module, recorder: Recorder) -> None:
        self.recorder = recorder
        inside: Any = getattr(model, "_orig_mod", model)  # of what torch.compile returned
        distributed = isinstance(inside, DistributedDataParallel)
        self.backward = Backward(model, recorder, by_call=distributed or not waits_in(inside))
        if distributed:
            self.backward.within(inside)
        self._before = _BeforeForward(self)
        self._after = _AfterForward(self)
        self._undo: list[Callable[[], None]] = []
        self._followed = True

    def within(self, distributed: DistributedDataParallel) -> None:
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
        """Hook the model, or what torch.compile returned for it."""
        if not self._followed:
            return
        self._undo += [
            model.register_forward_pre_hook(self._before).remove,
            model.register_forward_hook(self._after, always_call=True).remove,
        ]
        if model._compiled_call_impl is not None:
            self.compiled_in_place(model)

    def compiled_in_place(self, model: torch.nn.Module) -> None:
        """Time a model whose call was replaced by a compiled one, within which its hooks are traced."""
        if not self._followed:
            return
        compiled: Any = model._compiled_call_impl
        watched = weakref.ref(model)

        def timed(*args: Any, **kwargs: Any) -> Any:
            own: Any = watched()
            self._before(own, args)
            output = None
            try:
                output = compiled(*args, **kwargs)
            finally:
                self._after(own, args, output)
            return output

        # Not held here, since what is compiled holds the model.
        put = weakref.ref(timed)
        timed.__wrapped__ = compiled  # type: ignore[attr-defined]

        def undo() -> None:
            own, ours = watched(), put()
            if own is not None and ours is not None and own._compiled_call_impl is ours:
                own._compiled_call_impl = ours.__wrapped__  # type: ignore[attr-defined]

        model._compiled_call_impl = timed
        self._undo.append(undo)

    def also(self, undo: Callable[[], None]) -> None:
        """What else is to be undone as the hooks are removed."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Take every hook out again, and follow the model no longer."""
        self._followed = False
        self.backward.remove()
        while self._undo:
            self._undo.pop()()


_watched: WeakKeyDictionary[torch.nn.Module, _ModelHooks] = WeakKeyDictionary()


def _follow_compile() -> None:
    """Have torch.compile(model) and model.compile() keep watched models timed. Once is enough."""
    compile_function, compile_method = torch.compile, torch.nn.Module.compile
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
            _watched[self].compiled_in_place(self)

    torch.compile = compiled_function
    torch.nn.Module.compile = compiled_method  # type: ignore[method-assign]


def watch_model(model: Any, recorder: Recorder) -> Callable[[], None]:
    """Time the model's forward and backward from now on. Returns what undoes it. Raises SettingError."""
    if not isinstance(model, torch.nn.Module):
        raise SettingError(f"model is {type(model).__name__!r}: give a torch.nn.Module or DistributedDataParallel")
    _follow_compile()
    hooks = _watched[model] = _ModelHooks(model, recorder)
    hooks.register(model)
    recorder.models.append(weakref.ref(model))
    device = _device(model)
    facts = {
        "framework": f"torch {torch.__version__}",
        "device": "" if device is None else str(device),
        "waits_in": waits_in(model),
    }
    if is_sharded(model):
        hooks.also(watch_groups(recorder))
    if isinstance(model, DistributedDataParallel) and torch.distributed.is_initialized():
        facts["backend"] = _backend(model)
    inside = getattr(model, "_orig_mod", model)
    if isinstance(inside, DistributedDataParallel):
        hooks.time_buckets(inside)
    if device is not None and device.type == "cuda":
        # By which the agent knows the GPU, whatever number the rank has for it.
        facts["device_uuid"] = str(getattr(torch.cuda.get_device_properties(device), "uuid", ""))
    recorder.tell(**facts)
    if device is not None and device.type == "cuda":
        recorder.use_device(CudaTimer(device))
    return hooks.remove


def _backend(model: DistributedDataParallel) -> str:
    return str(torch.distributed.get_backend(model.process_group))


def follow_backward(loss: Any, model: torch.nn.Module, recorder: Recorder) -> None:
    """Time the backward that is about to begin at ``loss``, for a trainer that runs forward in a way of its own."""
    hooks = _watched.get(model) or _ModelHooks(model, recorder)
    hooks.backward.expect(loss)


def _device(model: torch.nn.Module) -> torch.device | None:
    parameter = next(model.parameters(), None)
    return None if parameter is None else parameter.device

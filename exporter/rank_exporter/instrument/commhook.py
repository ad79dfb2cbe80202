"""The communication hook by which gradient buckets are timed: around the user's own, or for what there is without one.

A reducer takes one hook in its life, which cannot be taken out again. So ours is registered once, does what would be
done without it, and has a hook that the user registers later within it. After a stop it does nothing else.

Without a hook the reducer multiplies each gradient by 1 / world size as it copies it into the bucket, and sums the
bucket over ranks; with one it copies alone. Multiplying the whole bucket by the same number, before the same sum,
gives the same bits. Two cases are not like that: sparse gradients are divided; and a gradient that is a view of its
bucket already (``gradient_as_bucket_view``) is divided where it lies, which for world sizes that are no power of two
may differ in the last bit. What cannot be told apart any more as a bucket is full, is refused as it is asked for; it
remains where ranks run out of input in a ``join`` that divides by how many are left.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from ..errors import SettingError
from ..segment.layout import BUCKET_SLOTS, OTHER_BUCKET
from .buckets import BucketTimes, HostTimer
from .cuda import CudaTimer
from .recorder import Recorder

__all__ = ["follow_registration", "time_buckets"]

# What is called here of it is not among the names that it exports.
_distributed: Final[Any] = torch.distributed
_FOLLOWED: Final = "_rank_exporter_registers"
_TIMED: Final = "_rank_exporter_times_buckets"

_times: BucketTimes | None = None
"""There is one exporter to a process."""


class _CommHook:
    """What a reducer calls for each full bucket.

    ``times``: what the buckets are timed by, None while they are not. ``numbered``: its model's buckets have labels of
    their own; those of further models count as other. ``reduce`` takes a bucket and returns the future of the reduced
    one: the user's hook where ``is_users``. ``joined``: see _follow_join.
    """

    __slots__ = ("is_users", "joined", "model", "numbered", "reduce", "times")

    def __init__(self) -> None:
        self.times: BucketTimes | None = None
        self.numbered = False
        self.model: weakref.ref[DistributedDataParallel] | None = None
        self.is_users = False
        self.joined: Any = None
        self.reduce: Callable[[Any], Any] = self._average

    def use(self, hook: Callable[[Any], Any]) -> None:
        """Reduce by a hook of the user's from now on."""
        self.reduce = hook
        self.is_users = True

    def __call__(self, _state: Any, bucket: Any) -> Any:
        times = self.times
        if times is None:
            return self.reduce(bucket)
        index = bucket.index()
        flight = times.enter(index if self.numbered and index < BUCKET_SLOTS else OTHER_BUCKET)
        if flight is None:
            return self.reduce(bucket)
        try:
            future = self.reduce(bucket)
        except BaseException:
            flight.lost = True
            raise
        times.follow(flight, future)
        return future

    def _average(self, bucket: Any) -> Any:
        """What the reducer does without a hook."""
        assert self.model is not None  # noqa: S101 - it is set where this is registered
        model = self.model()
        assert model is not None  # noqa: S101 - its reducer lives no longer than it
        group = model.process_group
        buffer = bucket.buffer()
        size = group.size() if self.joined is None else _ranks_left(self.joined)
        with torch.no_grad():
            if buffer.is_sparse:
                buffer.div_(size)
            else:
                buffer.mul_(1.0 / size)
        return group.allreduce([buffer]).get_future().then(_only)


def _only(future: Any) -> torch.Tensor:
    reduced: torch.Tensor = future.value()[0]
    return reduced


def _ranks_left(work: Any) -> int:
    work.wait()
    return int(work.get_future().value()[0].item())


_hooks: WeakKeyDictionary[Any, _CommHook] = WeakKeyDictionary()
"""By reducer."""


def time_buckets(model: Any, recorder: Recorder) -> Callable[[], None]:
    """Time the buckets of a DistributedDataParallel from now on. Returns what ends that.

    Raises SettingError where it is none, or where its gradients might not stay what they are.
    """
    global _times  # noqa: PLW0603 - there is one exporter to a process
    inside = getattr(model, "_orig_mod", model)
    if not isinstance(inside, DistributedDataParallel):
        raise SettingError(
            f"bucket_timing is asked of a {type(inside).__name__}, which has no buckets: "
            "give a DistributedDataParallel, or leave it out"
        )
    follow_registration()
    hook = _hooks.get(inside.reducer) or _register(inside)
    hook.model = weakref.ref(inside)
    _follow_calls()
    _follow_join()
    if _times is None or _times.recorder is not recorder:
        device = next(inside.parameters()).device
        _times = BucketTimes(recorder, CudaTimer(device) if device.type == "cuda" else HostTimer())
    times = _times
    hook.numbered = not any(one.numbered and one.times is times for one in _hooks.values() if one is not hook)
    hook.times = times

    def undo() -> None:
        global _times  # noqa: PLW0603
        if hook.times is times:
            hook.times = None
        if _times is times and not any(one.times is times for one in _hooks.values()):
            _times = None
            times.stop()

    return undo


def _register(model: DistributedDataParallel) -> _CommHook:
    """Ours, as the hook of a model that has none yet."""
    found: Any = model
    if getattr(found, "_use_python_reducer", False):
        raise SettingError(
            "bucket_timing is asked of a model that is compiled with its reduction, in which there are no buckets: "
            "set torch._dynamo.config.optimize_ddp to True, or leave bucket_timing out"
        )
    name = found._get_ddp_logging_data().get("comm_hook", "")
    if found._comm_hooks or name:
        raise SettingError(
            f"bucket_timing is asked of a model whose communication hook {name!r} is registered already: watch it "
            "before register_comm_hook, or start(bucket_timing=True) before"
        )
    size = found.process_group.size()
    if found.gradient_as_bucket_view and size & (size - 1):
        raise SettingError(
            f"bucket_timing is asked of a model with gradient_as_bucket_view in a world of {size}, where it might "
            "change the last bit of a gradient: leave one of the two out, or have 2, 4, 8, … ranks"
        )
    hook = _CommHook()
    try:
        _distributed._register_comm_hook.__wrapped__(found.reducer, None, hook)
    except RuntimeError as error:
        raise SettingError(f"bucket_timing cannot be had of this model ({error}): leave it out") from error
    _hooks[found.reducer] = hook
    return hook


def follow_registration() -> None:
    """Have hooks that are registered from now on be registered within ours. Once is enough."""
    register = getattr(_distributed, "_register_comm_hook", None)
    if register is None or hasattr(register, _FOLLOWED):
        return
    register_builtin = _distributed._register_builtin_comm_hook

    @functools.wraps(register)
    def register_comm_hook(reducer: Any, state: Any, comm_hook: Any) -> None:
        ours = _hooks.get(reducer)
        if ours is None:
            made = _CommHook()
            made.use(functools.partial(comm_hook, state))
            register(reducer, None, made)
            _hooks[reducer] = made
        elif ours.is_users:
            register(reducer, state, comm_hook)  # says that there is one already
        else:
            ours.use(functools.partial(comm_hook, state))

    @functools.wraps(register_builtin)
    def register_builtin_comm_hook(reducer: Any, comm_hook_type: Any) -> None:
        ours = _hooks.get(reducer)
        model = None if ours is None or ours.is_users or ours.model is None else ours.model()
        builtin = None if model is None else _builtin(comm_hook_type)
        if ours is None or model is None or builtin is None:
            register_builtin(reducer, comm_hook_type)
        else:
            ours.use(functools.partial(builtin, model.process_group))

    setattr(register_comm_hook, _FOLLOWED, True)
    _distributed._register_comm_hook = register_comm_hook
    _distributed._register_builtin_comm_hook = register_builtin_comm_hook


def _builtin(kind: Any) -> Callable[[Any, Any], Any] | None:
    """The function that computes what a built-in hook of the reducer's does."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415 - loads much, and is rare

    name = {"ALLREDUCE": "allreduce_hook", "FP16_COMPRESS": "fp16_compress_hook"}.get(getattr(kind, "name", ""))
    return None if name is None else getattr(default_hooks, name)


def _follow_calls() -> None:
    """Have torch.autograd.backward say when it is called. Once is enough."""
    run = torch.autograd.backward
    if hasattr(run, _TIMED):
        return

    @functools.wraps(run)
    def backward(*args: Any, **kwargs: Any) -> None:
        times = _times
        if times is None or times.under_way or times.recorder.is_elsewhere():
            run(*args, **kwargs)
            return
        times.begins()
        try:
            run(*args, **kwargs)
        finally:
            times.ends()

    setattr(backward, _TIMED, True)
    torch.autograd.backward = backward


def _follow_join() -> None:
    """Know how many ranks are left in a ``join`` that is to divide by their number. Once is enough.

    Each forward counts them by a collective of its own, whose result the reducer divides by, also after the join.
    """
    notify = Join.notify_join_context
    if hasattr(notify, _TIMED):
        return

    @functools.wraps(notify)
    def notify_join_context(joinable: Any) -> Any:
        work = notify(joinable)
        reducer = None if work is None else getattr(joinable, "reducer", None)
        hook = None if reducer is None else _hooks.get(reducer)
        if hook is not None:
            hook.joined = None if joinable._divide_by_initial_world_size else work
        return work

    setattr(notify_join_context, _TIMED, True)
    Join.notify_join_context = staticmethod(notify_join_context)  # type: ignore[method-assign]

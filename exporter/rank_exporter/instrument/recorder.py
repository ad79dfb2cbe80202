"""What the hooks of one rank share: its timeline, its segment, and what happens to a fault."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, Final

from ..errors import SettingError
from ..phases import Phase
from ..segment.layout import BY_DEVICE, PROFILED
from ..segment.request import ProfileRequest, take
from ..segment.writer import EndedStep, SegmentWriter, Taken
from ..timeline import Timeline
from .accounts import Accounts
from .device import DeviceClock

if TYPE_CHECKING:
    from .device import DeviceTimer
    from .profile import ProfileWindow

__all__ = ["Recorder"]

log: Final = logging.getLogger("rank_exporter")

_OPTIMIZER: Final = int(Phase.OPTIMIZER)
_HOLD_NS: Final = 20_000_000
"""A step that ends this long after the latest published one is published at once, with those held back before it."""


class Recorder:
    """Records one rank. Belongs to the thread that made it, or is found to train; hooks on others leave it alone.

    ``moves_on_at_forward``: no loader is watched, so that a forward after an optimizer begins the next step;
    ``moves_on_at_step``: none was read for training, so that an optimizer that steps anew does so, if nothing else did.
    ``input_is_elsewhere``: what seems to be training's loader is read on another thread.
    ``optimizer_is_watched``: without one, each batch, or each forward without a loader, is a step of its own;
    ``is_stepping``: one began a step and did not end it.
    ``has_input`` tells whether there was one since the loop last moved on. ``shard_is_given``: the user names shards,
    so that none is looked for; ``default_shard`` stands for a loader that names none. ``models`` are those watched,
    ``trained`` the one of them that a backward was last run on; ``unwatched`` models are trained too, and in training
    mode then if ``mode_tells``;
    ``training_loaders`` are known to feed training, be it that the user says so or that a backward followed: others
    may be evaluation's, which ``is_evaluating`` tells as long as they are not known. ``fed`` is what the loop was last
    fed by, ``reads`` the loader whose batches were last taken for training's, ``ended_ns`` when the last step ended.
    ``accounts`` are those of samples. ``bucket_timing``: the gradient buckets of whatever has some are timed.
    """

    __slots__ = (
        "_device",
        "_held",
        "_profiled",
        "_published_ns",
        "_warned",
        "_window",
        "accounts",
        "bucket_timing",
        "default_shard",
        "ended_ns",
        "facts",
        "fed",
        "has_input",
        "input_is_elsewhere",
        "is_stepping",
        "mode_tells",
        "models",
        "moves_on_at_forward",
        "moves_on_at_step",
        "optimizer_is_watched",
        "rank",
        "reads",
        "shard_is_given",
        "thread",
        "timeline",
        "trained",
        "training_loaders",
        "unwatched",
        "writer",
    )

    def __init__(self, writer: SegmentWriter, *, rank: int, default_shard: str | None = None) -> None:
        self.writer = writer
        self.rank = rank
        self.thread = threading.get_ident()
        self.bucket_timing = False
        self.moves_on_at_forward = True
        self.moves_on_at_step = True
        self.optimizer_is_watched = False
        self.has_input = False
        self.input_is_elsewhere = False
        self.is_stepping = False
        self.mode_tells = False
        self.default_shard = default_shard
        self.shard_is_given = False
        self.models: list[weakref.ref[Any]] = []
        self.unwatched: list[weakref.ref[Any]] = []
        self.trained: weakref.ref[Any] | None = None
        self.training_loaders: list[weakref.ref[Any]] = []
        self.fed: Any = None
        self.reads: weakref.ref[Any] | None = None
        self.ended_ns = 0
        self.facts = {"clock": "host"}
        self._warned: set[str] = set()
        self._device: DeviceClock | None = None
        self._window: ProfileWindow | None = None
        self._profiled = range(0)
        self._held: list[EndedStep] = []
        self._published_ns = 0
        self.accounts = Accounts(writer, self.fault)
        self.timeline = Timeline(self._commit, live=writer.words, live_index=writer.phase_word)
        writer.set_facts(self.facts)

    def _commit(self, spent: list[int], ended_ns: int) -> None:
        writer = self.writer
        self.ended_ns = ended_ns
        self._held.append((spent, ended_ns, writer.take(), self._flags() if self._profiled else 0))
        if ended_ns - self._published_ns >= _HOLD_NS:
            self.publish()
        if writer.words[writer.profile_word]:
            self._profile()

    def _commit_to_device(self, spent: list[int], ended_ns: int) -> None:
        assert self._device is not None  # noqa: S101 - the clock that commits here
        self.ended_ns = ended_ns
        self._device.commit(spent, ended_ns)
        if self.writer.words[self.writer.profile_word]:
            self._profile()

    def publish(self) -> None:
        """Commit the steps that are held back.

        Steps that follow each other closely are committed together: between two of them training takes the processor's
        caches for itself, and a commit that has to get there first costs four times as much.
        """
        held = self._held
        if not held:
            return
        self._published_ns = held[-1][1]
        try:
            self.writer.commit_all(held)
        except Exception as error:  # noqa: BLE001 - a step that cannot be recorded must not stop training
            self.fault("step", error)
        held.clear()

    def _flags(self) -> int:
        return PROFILED if self._resolved + 1 in self._profiled else 0

    @property
    def _resolved(self) -> int:
        return self.writer.words[self.writer.steps_word] + len(self._held)

    @property
    def steps_ended(self) -> int:
        """Steps that have ended, be they published or not."""
        return self._resolved + (0 if self._device is None else self._device.unresolved)

    @property
    def is_profiling(self) -> bool:
        """Whether a profile is asked for or under way."""
        return self._window is not None

    def profile(self, request: ProfileRequest) -> None:
        """Profile the requested steps, unless a profile is under way or they have begun."""
        from .profile import ProfileWindow  # noqa: PLC0415 - torch is loaded where it is used

        if self._window is not None:
            raise SettingError("a profile is under way: ask again when it is written")
        if request.first <= self.steps_ended:
            raise SettingError(f"steps {request.first}..{request.last} have begun: {self.steps_ended} are done")
        self._window = ProfileWindow(request, rank=self.rank, timeline=self.timeline, fault=self.fault)
        # The step after the last is the one in which the trace is written.
        self._profiled = range(request.first, request.last + 2)
        self.writer.words[self.writer.profile_word] = 1

    def _profile(self) -> None:
        """A step has ended, and a profile is wanted or under way."""
        try:
            path = self.writer.path
            if self._window is None:
                # Before it is looked for: a request that comes now sets the word again.
                self.writer.words[self.writer.profile_word] = 0
                if path is not None and (request := take(path)) is not None:
                    self.profile(request)
            if self._window is not None and not self._window.step_ended(self.steps_ended):
                self._window = None
        except Exception as error:  # noqa: BLE001 - see fault
            self.fault("profile", error)
            self._abandon_profile()

    def _abandon_profile(self) -> None:
        window, self._window = self._window, None
        if window is None:
            return
        self._profiled = range(window.request.first, self.steps_ended + 2)
        try:
            window.abandon()
        except Exception as error:  # noqa: BLE001 - see fault
            self.fault("profile", error)

    def use_device(self, timer: DeviceTimer) -> None:
        """Have phases timed by the device from now on. Once is enough; before the first step."""
        if self._device is not None:
            return
        clock = DeviceClock(
            timer,
            phase=lambda: self.timeline.phase,
            take=self.writer.take,
            publish=self._publish,
            fault=self._device_fails,
        )
        self._device = clock
        self.timeline.use_clock(clock)
        self.timeline.connect(self._commit_to_device, live=self.writer.words, live_index=self.writer.phase_word)
        self.tell(clock="device")

    def _device_fails(self, error: Exception) -> None:
        self.fault("device", f"phases are timed by the host, as the device fails: {error}")
        self.tell(clock="host")

    def _publish(self, spent: list[int], ended_ns: int, taken: Taken, by_device: bool) -> None:
        self._held.append((spent, ended_ns, taken, (BY_DEVICE if by_device else 0) | self._flags()))
        if ended_ns - self._published_ns >= _HOLD_NS:
            self.publish()

    def fault(self, reason: str, error: object) -> None:
        """Survive a fault: count it, and say it once. ``reason`` is one of segment.layout.ERROR_REASONS."""
        self.writer.count_error(reason)
        if reason not in self._warned:
            self._warned.add(reason)
            log.warning("rank %d: %s (counted as %r, said once)", self.rank, error, reason)

    def tell(self, **facts: str) -> None:
        """Add facts about the rank, for training_rank_info."""
        self.facts |= facts
        try:
            self.writer.set_facts(self.facts)
        except Exception as error:  # noqa: BLE001 - an odd fact must not stop training
            self.fault("hook", error)

    def is_elsewhere(self) -> bool:
        """Whether this is another thread than the recorder's, whose hooks must leave it alone."""
        return threading.get_ident() != self.thread

    def is_evaluating(self) -> bool:
        """Whether the model in training, or all that are known before one is, are in evaluation mode: they themselves,
        or what they wrap. Those that are not watched tell once they were seen in training mode as they were trained."""
        if self.trained is not None:
            candidates = [self.trained]
        else:
            candidates = self.models or (self.unwatched if self.mode_tells else [])
        modes = [_is_training(model) for known in candidates if (model := known()) is not None]
        return bool(modes) and not any(modes)

    def learn_mode(self) -> None:
        """An optimizer has stepped, of a model that is not watched: whether its mode tells evaluation from training."""
        self.mode_tells = any(_is_training(model) for known in self.unwatched if (model := known()) is not None)

    def feed_with(self, loader: Any) -> None:
        """From now on the loader is known to feed training."""
        self.training_loaders = [
            known for known in self.training_loaders if known() is not None and known() is not loader
        ]
        self.training_loaders.append(weakref.ref(loader))

    def feeds_training(self, loader: Any) -> bool:
        """Whether the loader is known to."""
        return any(known() is loader for known in self.training_loaders)

    def advance(self, *, steps_under_way: int = 0) -> None:
        """The loop moves on. ``steps_under_way``: so many steps of optimizers are, though this one had ended."""
        failed = self.is_stepping and self._gave_up(steps_under_way)
        # One that raised because its closure found no more input has made no step.
        over = (failed and steps_under_way > 0) or (self.has_input and (failed or not self.optimizer_is_watched))
        self.timeline.advance(force=over)
        self.has_input = False

    def _gave_up(self, expected: int) -> bool:
        """Whether an optimizer raised, and the loop goes on without it: its phase is over then."""
        from .optimizer import steps_under_way  # noqa: PLC0415 - which needs this module

        if self.timeline.phase != _OPTIMIZER or steps_under_way() > expected:
            return False
        self.is_stepping = False
        self.timeline.unwind()
        return True

    def finds_input_elsewhere(self, loader: Any) -> None:
        """A loader is read on another thread than the recorder's. If training has no other loader, its forward or its
        optimizer tells that it moves on, and on which thread it is."""
        reading = None if self.reads is None else self.reads()
        others = [reading, *(known() for known in self.training_loaders)]
        if not any(other is not None and other is not loader for other in others):
            self.moves_on_at_forward = self.moves_on_at_step = self.input_is_elsewhere = True

    def misses_input(self) -> None:
        """Training goes on, and still nobody sees when its loop asks for input."""
        self.input_is_elsewhere = False
        self.fault(
            "hook",
            "batches are fetched on another thread than the one that trains: how long training waits for them, and "
            "which samples it takes, is not recorded",
        )

    def close(self) -> None:
        """Publish the last step if it is complete, end the segment, and record into the void from now on."""
        self.timeline.advance()
        self._abandon_profile()
        if self._device is not None:
            self._device.resolve(everything=True)
        self.publish()
        try:
            self.accounts.stop()
        except Exception as error:  # noqa: BLE001 - see fault
            self.fault("samples", error)
        self.writer.close()
        self._reconnect()

    def abandon(self) -> None:
        """In a forked child: leave the parent's segment alone for good."""
        if self._window is not None:
            self._window.forget()
            self._window = None
        self.accounts.abandon()
        self._held.clear()
        self.writer.detach()
        self._reconnect()

    def _reconnect(self) -> None:
        self.timeline.use_clock(time.monotonic_ns)
        self.timeline.connect(_nowhere, live=self.writer.words, live_index=self.writer.phase_word)


def _is_training(model: Any) -> bool:
    """A wrapper, such as DistributedDataParallel, holds but the module that it wraps, which may be put into evaluation
    mode by itself."""
    inside = model._modules.get("module") if len(model._modules) == 1 else None
    return bool(model.training and (inside is None or inside.training))


def _nowhere(_spent: list[int], _ended_ns: int) -> Any:
    return None

"""A window of steps under torch.profiler, bounded by step numbers, so that it is the same on every rank.

Within it, the profile shows what the exporter measures: each step, and in it each phase, is a range of its name.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from ..phases import PHASE_NAMES
from ..segment.request import ProfileRequest
from ..timeline import Timeline

__all__ = ["ProfileWindow"]


class _Labels:
    """The ranges that are open: the step, and within it the phase."""

    def __init__(self) -> None:
        self._step: Any = None
        self._phase: Any = None

    def step(self, number: int, phase: int) -> None:
        self.close()
        self._step = record_function(f"step {number}")
        self._step.__enter__()
        self.phase(phase)

    def phase(self, phase: int) -> None:
        if self._phase is not None:
            self._phase.__exit__(None, None, None)
        self._phase = record_function(PHASE_NAMES[phase]) if phase < len(PHASE_NAMES) else None
        if self._phase is not None:
            self._phase.__enter__()

    def close(self) -> None:
        for opened in (self._phase, self._step):
            if opened is not None:
                opened.__exit__(None, None, None)
        self._phase = self._step = None


def _labelled(labels: _Labels, fault: Callable[[str, object], None]) -> Any:
    """A Timeline that shows each change of phase to ``labels``; takes the place of the plain one for as long as needed,
    so that the plain one need not ask whether anybody wants to see."""

    def shown(name: str) -> Any:
        change = getattr(Timeline, name)

        def changed(self: Timeline, *arguments: int) -> None:
            change(self, *arguments)
            try:
                labels.phase(self.phase)
            except Exception as error:  # noqa: BLE001 - see Recorder.fault
                fault("profile", error)

        return changed

    methods = {name: shown(name) for name in ("enter", "leave", "become", "unwind")}
    return type("Timeline", (Timeline,), {"__slots__": (), **methods})


class ProfileWindow:
    """Profiles the requested steps of one rank, into DIRECTORY/rank-<rank>-steps-<first>-<last>.pt.trace.json.

    ``step_ended(n)`` is to be called with each step's number as it ends, by the thread that trains; it returns whether
    more calls are needed. It raises what the profiler raises, and is over then.
    """

    def __init__(
        self, request: ProfileRequest, *, rank: int, timeline: Timeline, fault: Callable[[str, object], None]
    ) -> None:
        self.request = request
        self._name = f"rank-{rank:05d}-steps-{request.first}-{request.last}.pt.trace.json"
        self._timeline = timeline
        self._labels = _Labels()
        self._labelled = _labelled(self._labels, fault)
        self._profiler: profile | None = None

    def step_ended(self, number: int) -> bool:
        """Begin, go on, or write the trace."""
        request = self.request
        if number + 1 == request.first:
            self._begin()
        if self._profiler is None:
            return number < request.first
        if number < request.last:
            self._labels.step(number + 1, self._timeline.phase)
            return True
        self._end(write=True)
        return False

    def _begin(self) -> None:
        if torch._C._autograd._profiler_enabled():
            raise RuntimeError("the script profiles by itself: steps are profiled when it is done")
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            activities.append(ProfilerActivity.CUDA)
        profiler = profile(activities=activities)
        profiler.start()
        self._profiler = profiler
        self._timeline.__class__ = self._labelled

    def _end(self, *, write: bool) -> None:
        profiler, self._profiler = self._profiler, None
        self._timeline.__class__ = Timeline
        self._labels.close()
        if profiler is None:
            return
        profiler.stop()
        if write:
            directory = Path(self.request.directory)
            directory.mkdir(parents=True, exist_ok=True)
            draft = directory / f".{self._name}"
            profiler.export_chrome_trace(str(draft))
            draft.rename(directory / self._name)

    def abandon(self) -> None:
        """Stop profiling; no trace is written."""
        self._end(write=False)

    def forget(self) -> None:
        """In a forked child, where nothing is profiled."""
        self._timeline.__class__ = Timeline

"""Aligned steps in the Chrome trace event format, which https://ui.perfetto.dev opens: a track per rank.

The tracks share one time axis without sharing a clock. A step's collective ends for all ranks at the same moment, which
is placed by the clock of the first rank's host; each rank's phases are drawn back from there. What a rank does within
a step is drawn in the usual order, since a record holds durations alone.
"""

from __future__ import annotations

from typing import Any, Final

from ..phases import BESIDE_STEP, Phase
from .align import Alignment

__all__ = ["trace"]

_PROCESS: Final = 1
_ORDER: Final = (
    Phase.OPTIMIZER,
    Phase.OTHER,
    *BESIDE_STEP,
    Phase.INPUT_READY,
    Phase.H2D,
    Phase.FORWARD,
    Phase.BACKWARD,
    Phase.COLLECTIVE_WAIT,
)


def trace(alignment: Alignment) -> dict[str, Any]:
    """A trace as a JSON object; times in µs from the first step on."""
    events: list[dict[str, Any]] = [_name("process_name", 0, f"run {alignment.run}")]
    for place, steps in enumerate(alignment.ranks):
        events.append(_name("thread_name", steps.rank, f"rank {steps.rank} on {steps.host}"))
        events.append({**_name("thread_sort_index", steps.rank, ""), "args": {"sort_index": steps.rank}})
        events += _track(alignment, place)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"run": alignment.run}}


def _name(kind: str, track: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": _PROCESS, "tid": track, "args": {"name": name}}


def _track(alignment: Alignment, rank: int) -> list[dict[str, Any]]:
    ns = alignment.ns
    late = alignment.lateness
    ends = alignment.end_unix_ns[:, 0] - ns[:, 0, Phase.OPTIMIZER]
    order = ends.argsort(kind="stable")
    begin = int((ends - alignment.cycle.max(axis=1)).min())
    events: list[dict[str, Any]] = []
    track = alignment.ranks[rank].rank
    free = 0
    for step in order:
        at = max(int(ends[step]) - int(alignment.cycle[step, rank]) - begin, free)
        number = int(alignment.steps[step])
        whole: dict[str, Any] = {"step": number}
        if shard := alignment.shard_of(step, rank):
            whole["shard"] = shard
        is_last = int(late.last[step]) == rank
        if is_last:
            whole |= {"last": True, "late_ms": int(late.caused[step]) / 1e6, "phase": Phase(late.phase[step]).label}
        durations = _durations(alignment, int(step), rank)
        name = f"step {number}{' (last)' if is_last else ''}"
        events.append(_event(name, track, at, sum(ns for _, ns in durations), **whole))
        for phase, duration in durations:
            events.append(_event(phase.label, track, at, duration, step=number))
            at += duration
        free = at
    return events


def _durations(alignment: Alignment, step: int, rank: int) -> list[tuple[Phase, int]]:
    ns = [int(duration) for duration in alignment.ns[step, rank]]
    ns[Phase.OPTIMIZER] = max(int(alignment.before[step, rank]), 0)
    return [(phase, ns[phase]) for phase in _ORDER if ns[phase]]


def _event(name: str, track: int, at: int, duration: int, **args: Any) -> dict[str, Any]:
    times = {"ts": at / 1000, "dur": duration / 1000}
    return {"name": name, "ph": "X", "pid": _PROCESS, "tid": track, **times, "args": args}

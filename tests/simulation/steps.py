"""The steps of a simulated run.

A run is synchronous: a rank is ready when it has its batch and its gradients, the collective ends a floor after the
last rank is ready, and what comes after it (optimizer, other) delays the rank in the next step. Waiting is not put in:
it follows. With T the end of the collective, r a rank, s a step:

    ready[r, s] = T[s-1] + after[r, s-1] + before[r, s]        T[s] = max over r of ready[r, s] + floor[s]

so between two changes of what is slow all steps follow from one cumulative sum. Draws come from a seeded generator:
the same description gives the same steps.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rank_exporter.phases import Phase

from .run import AFTER_COLLECTIVE, BEFORE_COLLECTIVE, Run

__all__ = ["Steps", "simulate"]

_DRAWS = 1 << 18
"""Steps times ranks that are drawn together."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """S consecutive steps of the R ranks of a run, all by the same ranks.

    first: number of the first one. ns (S, R, phases): durations. ends (S, R): seconds. tokens (S, R). added (S, R):
    seconds of input that are due to something slow. alive (R,): ranks that took part; of the others all is 0.
    """

    first: int
    ns: npt.NDArray[np.int64]
    ends: Floats
    tokens: Floats
    added: Floats
    alive: npt.NDArray[np.bool_]


@dataclass(slots=True)
class _State:
    """Where the run stands: number of the next step, end of the last collective, what ranks do after it."""

    step: int
    collective_end: float
    after: Floats
    hits: list[int]


def simulate(run: Run, until: float = math.inf) -> Iterator[Steps]:
    """The steps that begin before ``until`` and before the run's end. One of the two must be finite."""
    until = min(until, run.end)
    rng = np.random.default_rng((zlib.crc32(run.run.encode()), run.seed))
    state = _State(step=1, collective_end=run.start, after=np.zeros(run.ranks), hits=[0] * len(run.slow))
    size = max(16, min(8192, _DRAWS // run.ranks))
    while state.collective_end < until:
        draws = _Draws(run, rng, size)
        done = 0
        while done < size and state.collective_end < until:
            steps = _advance(run, draws, state, done, until)
            if steps is None:
                return
            done += len(steps.ns)
            yield steps


class _Draws:
    """What is random of ``size`` steps, before anything is slow."""

    def __init__(self, run: Run, rng: np.random.Generator, size: int) -> None:
        shape = (size, run.ranks)
        self.tokens = np.ones(shape)
        if run.token_sigma:
            self.tokens = rng.lognormal(-(run.token_sigma**2) / 2, run.token_sigma, shape)
        for rank, times in run.tokens.items():
            self.tokens[:, rank] *= times
        self.seconds: dict[Phase, Floats] = {}
        for phase in (*BEFORE_COLLECTIVE, *AFTER_COLLECTIVE):
            sigma = run.sigma if phase is Phase.INPUT_READY else run.compute_sigma
            self.seconds[phase] = run.seconds(phase) * rng.lognormal(-(sigma**2) / 2, sigma, shape)
        share, times = run.heavy
        if share:
            self.seconds[Phase.INPUT_READY] *= np.where(rng.random(shape) < share, times, 1.0)
        self.seconds[Phase.INPUT_READY][:, sorted(run.never_fetch)] = 0.0
        for phase in (Phase.FORWARD, Phase.BACKWARD):
            self.seconds[phase] *= self.tokens
        self.hit = [
            rng.random(shape) < slow.steps if slow.steps < 1 else np.ones(shape, dtype=bool) for slow in run.slow
        ]
        self.by = [slow.by if slow.by_max is None else rng.uniform(slow.by, slow.by_max, shape) for slow in run.slow]


def _advance(run: Run, draws: _Draws, state: _State, done: int, until: float) -> Steps | None:
    """The steps up to the next change, at most those that are drawn. None if no rank is left."""
    now = state.collective_end
    alive = np.array([now < run.end_of(rank) for rank in range(run.ranks)])
    if not alive.any():
        return None
    changes = [until, *(slow.next_change(now) for slow in run.slow), *(end for end in run.ended.values() if end > now)]
    change = min(changes)
    left = len(draws.tokens) - done
    number = left if change == math.inf else min(left, math.ceil((change - now) / run.step) + 1)
    chosen = slice(done, done + number)
    seconds = {phase: drawn[chosen].copy() for phase, drawn in draws.seconds.items()}
    floor = np.full(number, run.floor * run.step)
    hit = _slow_down(run, draws, state, chosen, seconds, floor)

    before = sum(seconds[phase] for phase in BEFORE_COLLECTIVE)
    after = sum(seconds[phase] for phase in AFTER_COLLECTIVE)
    assert isinstance(before, np.ndarray)
    assert isinstance(after, np.ndarray)
    ready = before + np.vstack([state.after, after[:-1]])
    lag = np.where(alive, ready, 0.0).max(axis=1) + floor
    collective_ends = now + np.cumsum(lag)
    # A step belongs to what was slow when it began.
    number = 1 + int(np.searchsorted(collective_ends[:-1], change, side="left"))

    ns = np.zeros((number, run.ranks, len(Phase)), dtype=np.int64)
    for phase, values in seconds.items():
        ns[:, :, phase] = np.rint(values[:number] * 1e9)
    ns[:, :, Phase.COLLECTIVE_WAIT] = np.rint((lag[:, None] - ready)[:number] * 1e9)
    ns[:, ~alive] = 0
    ns[:, :, Phase.STEP] = ns[:, :, : Phase.STEP].sum(axis=2)
    steps = Steps(
        first=state.step,
        ns=ns,
        ends=(collective_ends[:, None] + after)[:number],
        tokens=draws.tokens[chosen][:number],
        added=(seconds[Phase.INPUT_READY] - draws.seconds[Phase.INPUT_READY][chosen])[:number],
        alive=alive,
    )
    state.step += number
    state.collective_end = float(collective_ends[number - 1])
    state.after = after[number - 1]
    for place, rows in enumerate(hit):
        state.hits[place] += int(rows[:number].sum())
    return steps


def _slow_down(
    run: Run, draws: _Draws, state: _State, chosen: slice, seconds: dict[Phase, Floats], floor: Floats
) -> list[npt.NDArray[np.bool_]]:
    """Apply what is slow now to ``seconds`` and ``floor``. Returns for each Slow which steps it hit."""
    number = len(floor)
    hits = []
    for place, slow in enumerate(run.slow):
        hit = draws.hit[place][chosen].copy()
        if not slow.is_active(state.collective_end):
            hit[:] = False
        if slow.ranks is not None:
            hit[:, [rank for rank in range(run.ranks) if rank not in slow.ranks]] = False
        if slow.shard is not None:
            hit[run.shard_at(state.step + np.arange(number)) != slow.shard] = False
        rows = hit.any(axis=1)
        if slow.most is not None:
            rows &= np.cumsum(rows) <= slow.most - state.hits[place]
            hit[~rows] = False
        hits.append(rows)
        by = draws.by[place] if isinstance(draws.by[place], float) else draws.by[place][chosen]
        if slow.phase is Phase.COLLECTIVE_WAIT:
            floor *= np.where(rows, slow.times, 1.0)
            floor += np.where(rows, slow.by * run.step, 0.0)
        else:
            seconds[slow.phase] = np.where(hit, seconds[slow.phase] * slow.times + by * run.step, seconds[slow.phase])
    return hits

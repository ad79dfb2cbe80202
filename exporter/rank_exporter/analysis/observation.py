"""A run as it is judged: its profile, its aligned steps where there are records, and the verdict on both. Pure."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..errors import SourceError
from ..phases import Phase
from ..segment.records import RankSteps
from .align import Alignment, align, align_generation
from .comparison import compare, mean_of
from .diagnose import diagnose
from .follows import Follows, cells_of, follows
from .generations import generations
from .profile import Cell, ExactPhase, RankProfile, RunProfile
from .tax import Tax
from .verdict import INPUT_STRAGGLER, PERSISTENT, STALLED, TAIL, UNKNOWN, Verdict

__all__ = ["Judged", "Observation", "Window", "judge", "merged_profiles", "observe", "profile_of", "tax_of"]

_LATEST = 0.1
_FEWEST_LATEST = 30
"""The latest tenth of the steps, or so many, is judged apart."""
_EXPECTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Which steps to judge: those numbered ``first`` to ``last``, and of these the latest ``number``; None: all."""

    first: int | None = None
    last: int | None = None
    number: int | None = None

    def of(self, alignment: Alignment) -> Alignment:
        """The steps within the window. Raises SourceError if there are none."""
        if self.first is not None or self.last is not None:
            alignment = alignment.between(self.first or 1, self.last if self.last is not None else 2**53)
        if self.number is not None:
            alignment = alignment.take(np.arange(max(len(alignment.steps) - self.number, 0), len(alignment.steps)))
        return alignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What is known of a run. ``alignment``: None where there are only histograms. ``seconds``: that a window of time
    spans; None where steps were chosen. ``source``: for messages. ``records``: all generations, as they were found."""

    profile: RunProfile
    alignment: Alignment | None
    source: str
    records: tuple[RankSteps, ...] = ()
    seconds: float | None = None

    @property
    def steps(self) -> int:
        """How many steps are judged."""
        if self.alignment is not None:
            return len(self.alignment.steps)
        return max((rank.steps for rank in self.profile.ranks), default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The verdict on a run with what it cost, and whether late input follows host or data."""

    observation: Observation
    verdict: Verdict
    tax: Tax | None
    follows: Follows | None


def observe(
    found: Sequence[RankSteps],
    about: RunProfile | None = None,
    *,
    source: str,
    run: str | None = None,
    generation: int | None = None,
    window: Window | None = None,
) -> Observation:
    """An observation of records, of histograms (``about``), or of both. Raises SourceError where there is neither.

    From histograms, where there are records, comes only what records lack: the phase in progress, budget, devices.
    """
    if not found:
        if about is None:
            raise SourceError(f"{source} holds no run: ask while the job lives, or set RANK_EXPORTER_STEP_LOG_DIR")
        return Observation(profile=about, alignment=None, source=source)
    whole = align(found, run=run, generation=generation)
    alignment = (window or Window()).of(whole)
    own = tuple(steps for steps in found if steps.run == whole.run)
    profile = dataclasses.replace(profile_of(alignment, about), cells=_cells(own, whole))
    return Observation(profile=profile, alignment=alignment, source=source, records=own)


def profile_of(alignment: Alignment, about: RunProfile | None = None) -> RunProfile:
    """The profile of aligned steps; ``about``: whence to take what records lack."""
    ranks = tuple(_rank_profile(alignment, place, about) for place in range(len(alignment.ranks)))
    late, seen = alignment.lateness, {steps.rank for steps in alignment.ranks}
    beside = () if about is None else tuple(rank for rank in about.ranks if rank.rank not in seen)
    return RunProfile(
        run=alignment.run,
        ranks=(*ranks, *(dataclasses.replace(rank, steps=0, phases={}) for rank in beside)),
        world_size=alignment.ranks[0].world_size,
        budget=about.budget if about is not None else None,
        exposed_seconds=float(late.exposed.sum()) / 1e9,
        exposed_steps=len(alignment.steps),
        pressure=about.pressure if about is not None else {},
    )


def _rank_profile(alignment: Alignment, place: int, about: RunProfile | None) -> RankProfile:
    steps = alignment.ranks[place]
    ns = alignment.ns[:, place]
    phases = {
        phase.label: ExactPhase(ns[ns[:, phase] > 0, phase] / 1e9) for phase in Phase if bool((ns[:, phase] > 0).any())
    }
    known = about.rank(steps.rank) if about is not None else None
    waits_in = frozenset(filter(None, steps.waits_in.split(",")))
    return RankProfile(
        rank=steps.rank,
        host=steps.host,
        shard=_main_shard(alignment, place),
        steps=len(alignment.steps),
        phases=phases,
        last_step_timestamp=float(alignment.end_unix_ns[:, place].max()) / 1e9,
        samples=int(alignment.samples[:, place].sum()),
        tokens=int(alignment.tokens[:, place].sum()),
        waits_in=waits_in or (known.waits_in if known else frozenset()),
        in_progress=known.in_progress if known else None,
        by_device=alignment.by_device,
        device_active=known.device_active if known else None,
        memory_bytes=known.memory_bytes if known else None,
        cpus_allowed=known.cpus_allowed if known else {},
        ready=ExactPhase(alignment.lateness.ready[:, place] / 1e9),
    )


def _main_shard(alignment: Alignment, place: int) -> str | None:
    """The shard that most input time was spent on; where none was, the one that is read now."""
    slots, inverse = np.unique(alignment.shard[:, place], return_inverse=True)
    spent = np.bincount(inverse.reshape(-1), weights=alignment.ns[:, place, Phase.INPUT_READY].astype(np.float64))
    slot = slots[int(spent.argmax())] if spent.any() else alignment.shard[-1, place]
    return alignment.ranks[place].shard_name(int(slot)) or None


def _cells(found: Sequence[RankSteps], known: Alignment) -> tuple[Cell, ...]:
    """Of all generations; ``known`` is one of them."""
    aligned = [known]
    for group in generations(found):
        if _is_of(group, known):
            continue
        # A generation whose ranks have no step in common tells nothing.
        with contextlib.suppress(SourceError):
            aligned.append(align_generation(group))
    return cells_of(aligned)


def _is_of(group: Sequence[RankSteps], alignment: Alignment) -> bool:
    first, own = group[0], alignment.ranks[0]
    return (first.generation, first.rank, first.started_unix_ns) == (own.generation, own.rank, own.started_unix_ns)


def merged_profiles(profiles: Iterable[RunProfile]) -> RunProfile | None:
    """One profile of what several agents say of the same run; None without any."""
    ordered = sorted(profiles, key=lambda one: max((rank.last_step_timestamp or 0.0 for rank in one.ranks), default=0))
    if not ordered:
        return None
    ranks = {rank.rank: rank for one in ordered for rank in one.ranks}
    aligned = [one for one in ordered if one.exposed_seconds is not None]
    newest = ordered[-1]
    return dataclasses.replace(
        newest,
        pressure={host: share for one in ordered for host, share in one.pressure.items()},
        ranks=tuple(ranks[rank] for rank in sorted(ranks)),
        world_size=next((one.world_size for one in reversed(ordered) if one.world_size is not None), None),
        budget=next((one.budget for one in reversed(ordered) if one.budget is not None), None),
        exposed_seconds=aligned[-1].exposed_seconds if aligned else None,
        exposed_steps=aligned[-1].exposed_steps if aligned else 0,
        caused=aligned[-1].caused if aligned else {},
    )


def judge(observation: Observation, budget: float | None = None, *, stalled_seconds: float | None = None) -> Judged:
    """The verdict, its cost, and what late input goes with.

    A rank that is late in the latest tenth of the steps is named though it was not before; one that was late and is
    so no more is not.
    """
    verdict = _verdict(observation, budget, stalled_seconds)
    comparison = compare(observation.profile, budget)
    follow = None
    if comparison is not None and not comparison.missing:
        follow = follows(observation.profile.cells, threshold=comparison.threshold)
    if follow is not None and follow.what is not None and verdict.kind == INPUT_STRAGGLER:
        verdict = dataclasses.replace(verdict, next_check=follow.next_check)
    return Judged(observation=observation, verdict=verdict, tax=tax_of(observation), follows=follow)


def tax_of(observation: Observation) -> Tax | None:
    """What waiting for the last rank cost; None where no steps were aligned, or waiting does not stand apart."""
    alignment = observation.alignment
    if alignment is not None:
        return alignment.tax() if alignment.waits_apart else None
    profile = observation.profile
    if profile.exposed_seconds is None or not profile.exposed_steps:
        return None
    spent = sum(rank.mean(Phase.STEP) for rank in profile.ranks) * profile.exposed_steps
    share = profile.exposed_seconds / spent if spent else None
    return Tax(steps=profile.exposed_steps, gpu_seconds=profile.exposed_seconds, share=share)


def _verdict(observation: Observation, budget: float | None, stalled_seconds: float | None) -> Verdict:
    profile, alignment = observation.profile, observation.alignment
    whole = diagnose(profile, budget, alignment=alignment, stalled_seconds=stalled_seconds)
    number = 0 if alignment is None else max(_FEWEST_LATEST, round(_LATEST * len(alignment.steps)))
    if alignment is None or whole.kind == STALLED or len(alignment.steps) < 2 * number:
        return whole
    latest = alignment.take(np.arange(len(alignment.steps) - number, len(alignment.steps)))
    now = diagnose(profile_of(latest, profile), budget, alignment=latest)
    if now.pattern == PERSISTENT and (whole.pattern != PERSISTENT or now.rank != whole.rank):
        if whole.pattern == PERSISTENT and not _is_over(whole, latest, budget):
            return whole
        since = f"so it is in the latest {number} steps, from {latest.steps[0]} on; over all {len(alignment.steps)}: "
        return dataclasses.replace(now, evidence=(*now.evidence, since + _said(whole)))
    if whole.rank is not None and now.rank != whole.rank and now.kind != UNKNOWN and _is_over(whole, latest, budget):
        past = f"{_said(whole)} before step {latest.steps[0]}, not in the latest {number} steps"
        return dataclasses.replace(now, evidence=(*now.evidence, past))
    return whole


def _said(verdict: Verdict) -> str:
    named = f" of rank {verdict.rank}" if verdict.rank is not None else ""
    return f"{verdict.kind}{named}"


def _is_over(verdict: Verdict, latest: Alignment, budget: float | None) -> bool:
    """Whether what was said of a rank is no longer so in the latest steps."""
    if verdict.pattern == TAIL:
        if verdict.steps is None or verdict.steps[1] >= latest.steps[0]:
            return False
        span = verdict.steps[1] - verdict.steps[0] + 1
        return bool(latest.steps[0] - verdict.steps[1] > max(span / _EXPECTED, len(latest.steps) / 2))
    comparison = compare(profile_of(latest), budget)
    if comparison is None or verdict.rank is None:
        return False
    rank = next((one for one in comparison.ranks if one.rank == verdict.rank), None)
    if rank is None:
        return False
    excess = comparison.gap(rank)
    if verdict.phase is not None:
        excess = min(excess, comparison.beyond(mean_of(Phase[verdict.phase.upper()]), rank))
    return excess < comparison.threshold / 2

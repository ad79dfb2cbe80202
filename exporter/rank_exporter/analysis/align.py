"""Steps across ranks, side by side: who was last, in which phase, and what it cost. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import SourceError
from ..lateness import UNKNOWN, Lateness, lateness
from ..phases import Phase
from ..segment.layout import BY_DEVICE, PROFILED
from ..segment.records import RankSteps
from .generations import generations
from .tax import Tax, scaling_tax

__all__ = ["Alignment", "Blame", "align", "align_generation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Steps in which a rank was the last, in one phase, and the seconds by which the median rank was ahead of it.

    ``shard``: which one it read then; "" but for input.
    """

    rank: int
    host: str
    phase: str
    shard: str
    steps: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """S steps that all of R processes of one generation have.

    ranks: R processes, ordered by rank. steps (S,): their numbers, ascending. ns (S, R, phases). before (S, R): the
    optimizer phase that preceded each step, lateness.UNKNOWN where no record tells. end_unix_ns, shard, samples,
    tokens: (S, R). ``incomplete``: number of steps that some of the processes lack, ``profiled``: number of those in
    which a profiler slowed one of them; both are left out. ``by_device``: whether a device timed the phases.
    """

    ranks: tuple[RankSteps, ...]
    steps: npt.NDArray[np.int64]
    ns: npt.NDArray[np.int64]
    before: npt.NDArray[np.int64]
    end_unix_ns: npt.NDArray[np.int64]
    shard: npt.NDArray[np.int64]
    samples: npt.NDArray[np.int64]
    tokens: npt.NDArray[np.int64]
    lateness: Lateness
    incomplete: int
    profiled: int = 0
    by_device: bool = False

    @property
    def run(self) -> str:
        """The run that the steps belong to."""
        return self.ranks[0].run

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the world of which nothing was found."""
        return tuple(sorted(set(range(self.ranks[0].world_size)) - {steps.rank for steps in self.ranks}))

    @property
    def waits_apart(self) -> bool:
        """Whether waiting for other ranks was recorded, and is in no phase but collective_wait."""
        hidden = {name for steps in self.ranks for name in steps.waits_in.split(",")} - {
            "",
            Phase.COLLECTIVE_WAIT.label,
        }
        return not hidden and bool((self.ns[:, :, Phase.COLLECTIVE_WAIT] > 0).any())

    @property
    def cycle(self) -> npt.NDArray[np.int64]:
        """From the end of one collective to the end of the next, by each rank's own clock: (S, R) ns."""
        result: npt.NDArray[np.int64] = self.lateness.ready + self.ns[:, :, Phase.COLLECTIVE_WAIT]
        return result

    def shard_of(self, step: int, rank: int) -> str:
        """Name of the shard that was read; step and rank are places in this alignment."""
        return self.ranks[rank].shard_name(int(self.shard[step, rank]))

    def take(self, places: npt.NDArray[np.intp]) -> Alignment:
        """Only the steps at these places."""
        late = self.lateness
        by_step = ("steps", "ns", "before", "end_unix_ns", "shard", "samples", "tokens")
        return dataclasses.replace(
            self,
            **{name: getattr(self, name)[places] for name in by_step},
            lateness=Lateness(**{name: getattr(late, name)[places] for name in Lateness.__dataclass_fields__}),
        )

    def between(self, first: int, last: int) -> Alignment:
        """The steps numbered first to last, both included. Raises SourceError if there are none."""
        places = np.flatnonzero((self.steps >= first) & (self.steps <= last))
        if not len(places):
            wanted = f"step {first}" if first == last else f"steps {first} to {last}"
            raise SourceError(
                f"{wanted} of run {self.run} cannot be aligned: known are {len(self.steps)} "
                f"from {self.steps[0]} to {self.steps[-1]}"
            )
        return self.take(places)

    def slowest(self, number: int) -> Alignment:
        """So many steps that took longest, the slowest first."""
        return self.take(np.argsort(-np.median(self.cycle, axis=1), kind="stable")[:number])

    def tax(self) -> Tax:
        """What waiting for the last rank cost in these steps."""
        return scaling_tax(self.ns[:, :, Phase.COLLECTIVE_WAIT] / 1e9, step_seconds=self.cycle / 1e9)

    def blame(self) -> list[Blame]:
        """Who was last, in which phase and shard, the costliest first."""
        found: dict[tuple[int, int, str], list[float]] = {}
        late = self.lateness
        for place in range(len(self.steps)):
            rank, phase = int(late.last[place]), int(late.phase[place])
            shard = self.shard_of(place, rank) if phase == Phase.INPUT_READY else ""
            entry = found.setdefault((rank, phase, shard), [0, 0.0])
            entry[0] += 1
            entry[1] += int(late.caused[place]) / 1e9
        blames = [
            Blame(
                rank=self.ranks[rank].rank,
                host=self.ranks[rank].host,
                phase=Phase(phase).label,
                shard=shard,
                steps=int(steps),
                seconds=seconds,
            )
            for (rank, phase, shard), (steps, seconds) in found.items()
        ]
        return sorted(blames, key=lambda blame: (-blame.seconds, -blame.steps, blame.rank))


def align(found: Iterable[RankSteps], *, run: str | None = None, generation: int | None = None) -> Alignment:
    """Put the steps of one generation of a run side by side.

    Without ``generation`` it is the one that ended last; ``run`` may be left out where there is only one. Only steps
    that every process has are aligned. Raises SourceError, in one line, where there are none.
    """
    groups = generations(found)
    runs = sorted({group[0].run for group in groups})
    if not runs:
        raise SourceError("no steps were found: ask while the job lives, or set RANK_EXPORTER_STEP_LOG_DIR")
    if run is None and len(runs) > 1:
        raise SourceError(f"{len(runs)} runs were found ({', '.join(runs)}): name one with --run")
    of_run = [group for group in groups if run in (None, group[0].run)]
    if not of_run:
        raise SourceError(f"run {run!r} was not found: there is {', '.join(runs)}")
    chosen = of_run if generation is None else [group for group in of_run if group[0].generation == generation]
    if not chosen:
        known = ", ".join(str(group[0].generation) for group in of_run)
        raise SourceError(f"generation {generation} of run {of_run[0][0].run} was not found: there is {known}")
    return align_generation(chosen[-1])


def align_generation(ranks: Sequence[RankSteps]) -> Alignment:
    """Put the steps of processes that trained together side by side, as generations() has them. Raises SourceError."""
    numbers, counts = np.unique(np.concatenate([one.records["step"] for one in ranks]), return_counts=True)
    common = numbers[counts == len(ranks)]
    slowed = np.unique(np.concatenate([one.records["step"][_is(one, PROFILED)] for one in ranks]))
    steps = common[~np.isin(common, slowed)].astype(np.int64)
    if not len(steps):
        only = ", save profiled ones" if len(common) else ""
        raise SourceError(
            f"no step of run {ranks[0].run} was seen from all of its {len(ranks)} ranks that were found{only}"
        )
    places = [np.searchsorted(one.records["step"], steps.astype(np.uint64)) for one in ranks]

    def side_by_side(name: str) -> npt.NDArray[np.int64]:
        columns = [one.records[name][at] for one, at in zip(ranks, places, strict=True)]
        return np.stack(columns, axis=1).astype(np.int64)

    ns = side_by_side("ns")
    before = np.stack([_before(one.records, at) for one, at in zip(ranks, places, strict=True)], axis=1)
    return Alignment(
        ranks=tuple(ranks),
        steps=steps,
        ns=ns,
        before=before,
        end_unix_ns=side_by_side("end_unix_ns"),
        shard=side_by_side("shard"),
        samples=side_by_side("samples"),
        tokens=side_by_side("tokens"),
        lateness=lateness(ns, before),
        incomplete=len(numbers) - len(common),
        profiled=len(common) - len(steps),
        by_device=any(bool(_is(one, BY_DEVICE).any()) for one in ranks),
    )


def _is(steps: RankSteps, flag: int) -> npt.NDArray[np.bool_]:
    result: npt.NDArray[np.bool_] = (steps.records["flags"] & np.uint32(flag)) != 0
    return result


def _before(records: npt.NDArray[Any], places: npt.NDArray[np.intp]) -> npt.NDArray[np.int64]:
    """The optimizer of the record before each place, UNKNOWN where that is not the step before, or was profiled."""
    previous = np.maximum(places - 1, 0)
    follows = (places > 0) & (records["step"][previous] + np.uint64(1) == records["step"][places])
    follows &= (records["flags"][previous] & np.uint32(PROFILED)) == 0
    optimizer = records["ns"][previous, Phase.OPTIMIZER].astype(np.int64)
    result: npt.NDArray[np.int64] = np.where(follows, optimizer, UNKNOWN)
    return result

"""A run that stands still: the rank that does not wait for the others is whom they wait for. Pure."""

from __future__ import annotations

from ..phases import Phase
from .comparison import Comparison
from .profile import RankProfile, RunProfile
from .verdict import STALLED, Verdict

__all__ = ["stalled"]

_LONGEST_SECONDS = 60.0
_LONGEST_STEPS = 10.0
"""Of its own longest steps (p99), after which a rank stands still."""
_IDLE = (Phase.OTHER.label, Phase.EVAL.label, Phase.CHECKPOINT.label)
"""Where all ranks may be for long without harm: behind the training loop, or in something that they do together."""
_ANYWHERE = frozenset({phase.label for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.COLLECTIVE_WAIT)})


def stalled(profile: RunProfile, comparison: Comparison | None, after_seconds: float | None = None) -> Verdict | None:
    """The verdict on a run whose ranks have all been in their phase for very long; None where they move.

    ``after_seconds``: how long is very long; by default a minute, or ten of the longest steps if that is more.
    """
    limit = after_seconds if after_seconds is not None else _limit(profile)
    found = [(rank, rank.in_progress) for rank in profile.ranks if rank.in_progress is not None]
    if not found or any(seconds <= limit for _, (_, seconds) in found):
        return None
    waiting = _ANYWHERE if comparison is None else frozenset(phase.label for phase in comparison.waiting)
    phases = {rank.rank: phase for rank, (phase, _) in found}
    busy = [rank for rank, (phase, _) in found if phase not in waiting]
    if len(busy) == len(found) and set(phases.values()) <= set(_IDLE):
        return None
    lasted = min(seconds for _, (_, seconds) in found)
    missing = sorted(set(range(profile.world_size or 0)) - set(phases))
    evidence = [f"no rank has gone on for {lasted:.0f} s"]
    if missing:
        gone = ", ".join(map(str, missing))
        evidence.append(f"rank {gone} is not there, or its agent was not asked; the others may be waiting for it")
        return Verdict(
            kind=STALLED,
            evidence=tuple(evidence),
            next_check=f"Look at what became of rank {gone}: its log, its host, the kernel's log for killed processes.",
        )
    if len(busy) == 1:
        return _named(busy[0], phases, evidence, waiting=len(found) - 1)
    if not busy:
        evidence.append(f"all {len(found)} ranks wait in a collective")
        return Verdict(
            kind=STALLED,
            evidence=tuple(evidence),
            next_check="Look at the network and at the collectives' own record: ranks may have called different ones.",
        )
    evidence.append(", ".join(f"rank {rank.rank} is in {phases[rank.rank]}" for rank in busy))
    return Verdict(
        kind=STALLED,
        evidence=tuple(evidence),
        next_check="Look at what these ranks share: a mount, a lock, a host; and dump their stacks (py-spy dump).",
    )


def _limit(profile: RunProfile) -> float:
    steps = [one.p99 for rank in profile.ranks if (one := rank.phases.get(Phase.STEP.label))]
    return max(_LONGEST_SECONDS, _LONGEST_STEPS * max(steps, default=0.0))


def _named(rank: RankProfile, phases: dict[int, str], evidence: list[str], *, waiting: int) -> Verdict:
    phase = phases[rank.rank]
    if waiting:
        evidence.append(f"rank {rank.rank} is in {phase}; the other {waiting} wait for it in a collective")
    else:
        evidence.append(f"rank {rank.rank} is in {phase}")
    return Verdict(
        kind=STALLED,
        rank=rank.rank,
        phase=phase,
        host=rank.host,
        shard=rank.shard if phase == Phase.INPUT_READY.label else None,
        evidence=tuple(evidence),
        next_check=f"Dump the stack of rank {rank.rank} on host {rank.host} (py-spy dump --pid); look at the host.",
    )

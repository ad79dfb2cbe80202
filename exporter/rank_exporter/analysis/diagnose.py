"""One verdict a run: which rank holds the others up, in which phase, or that none does. Pure.

Histograms tell whose typical step is late, and who has a tail; aligned steps, where there are any, tell besides what
each rank cost the others step by step. What comes first: a run that stands still; a rank late on most steps; a rank
late on few that cost much; what hits all ranks (input, fabric, lateness that rotates), the costliest; a tail that costs
little; and balance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..phases import Phase
from . import verdict as kinds
from .align import Alignment
from .batch_skew import Skew, skew_of
from .comparison import COVERAGE, FEWEST_STEPS, Comparison, Late, compare, mean_of, quantile_of
from .host_evidence import host_evidence
from .profile import RunProfile
from .shared import Shared
from .stalled import stalled
from .tail import Tail, tails
from .verdict import PERSISTENT, TAIL, UNKNOWN, Verdict, next_check

__all__ = ["diagnose"]

_ALONE = 0.8
_ANOTHER = 0.25
"""Shares of the delay caused: who is named causes 0.8 of it, or no other rank causes a quarter."""
_MOST_OF_THE_TIME = 0.8


def diagnose(
    profile: RunProfile,
    budget: float | None = None,
    *,
    alignment: Alignment | None = None,
    stalled_seconds: float | None = None,
) -> Verdict:
    """The verdict on a run.

    ``budget``: skew tolerated, as a share of the median step; by default what the run published, else 0.10. The
    profile should hold all ranks of the run: where some are missing, no rank is named. ``alignment``: the same steps,
    where there are records. ``stalled_seconds``: how long a phase lasts in a run that stands still.
    """
    comparison = compare(profile, budget)
    if (still := stalled(profile, comparison, stalled_seconds)) is not None:
        return still
    if comparison is None:
        fullest = max((rank.steps for rank in profile.ranks), default=0)
        return Verdict(
            kind=UNKNOWN,
            evidence=(f"{fullest} steps are too few to judge: at least {FEWEST_STEPS} are needed",),
            next_check="Let the run go on and ask again.",
        )
    return _Judgement(comparison, alignment, profile).verdict()


class _Judgement:
    def __init__(self, comparison: Comparison, alignment: Alignment | None, profile: RunProfile) -> None:
        self._compared = comparison
        self._alignment = alignment
        self._profile = profile
        self._shared = Shared(comparison, alignment, profile)

    def verdict(self) -> Verdict:
        late = self._compared.late_ranks()
        if late:
            return self._of_late(late)
        found = [] if self._compared.missing else tails(self._compared, self._alignment)
        cost = self._cost(found)
        if found and cost > self._compared.budget:
            return self._tail(found, cost)
        shared = self._shared.verdict()
        if shared is not None and self._compared.missing and shared.kind != kinds.INPUT_BOUND:
            return self._missing("these wait in the collective", "a rank not seen may be whom they wait for")
        if shared is not None:
            beside = tuple(f"beside that, {_seldom(tail)}" for tail in found[:1])
            return dataclasses.replace(shared, evidence=(*shared.evidence, *beside))
        if found:
            return self._tail(found, cost)
        return self._balanced()

    # A rank that is late on most steps.

    def _of_late(self, late: Sequence[Late]) -> Verdict:
        first = late[0]
        if self._compared.missing:
            return self._missing("they are not alike", "a rank not seen may be the last one")
        skew = skew_of(self._compared, first, self._alignment)
        if skew is not None:
            return self._batch_skew(first, skew)
        if self._alternates(late):
            return self._shared.rotating() or self._unexplained(first)
        if first.cause is None:
            return self._unexplained(first)
        return self._straggler(first, also=late[1:])

    def _alternates(self, late: Sequence[Late]) -> bool:
        """Whether a rank that is not typically late causes much of the delay, so that those cannot be blamed for it."""
        share = self._shared.typical_share
        blamed = {one.rank.rank for one in late if one.cause is not None or one is late[0]}
        another = max((share(rank.rank) for rank in self._compared.ranks if rank.rank not in blamed), default=0.0)
        return sum(map(share, blamed)) < _ALONE and another > _ANOTHER

    def _straggler(self, late: Late, *, also: Sequence[Late]) -> Verdict:
        compared, rank, step = self._compared, late.rank, self._compared.step
        where = late.phase.label if late.phase is not None else "all of its computing"
        evidence = [f"rank {rank.rank} spends {_ms(late.excess)} a step more in {where} than {compared.reference}"]
        if late.phase is not None:
            evidence.append(
                f"its median there is {_ms(rank.phases[late.phase.label].p50)}, theirs "
                f"{_ms(compared.others(quantile_of(late.phase, 0.5), rank) or 0.0)}; the median step is {_ms(step)}"
            )
        evidence.append(
            f"it waits {_ms(compared.wait_deficit(rank))} a step less in {self._where_waited()}: the others wait for it"
        )
        evidence.append(f"that accounts for {min(late.excess / late.gap, 1.0):.0%} of its lateness")
        if caused := self._shared.caused.get(rank.rank):
            of = caused / sum(self._shared.caused.values())
            evidence.append(f"it caused {caused:.3g} s of delay, {of:.0%} of all")
        evidence += host_evidence(self._profile, compared, rank)
        if also:
            evidence.append(f"also late: rank {', '.join(str(other.rank.rank) for other in also)}")
        return Verdict(
            kind=str(late.cause),
            rank=rank.rank,
            phase=late.phase.label if late.phase is not None else None,
            host=rank.host,
            shard=rank.shard,
            skew=late.excess / step,
            pattern=PERSISTENT,
            also=tuple(other.rank.rank for other in also),
            evidence=tuple(evidence),
            next_check=next_check(late.phase, rank=rank.rank, host=rank.host, shard=rank.shard),
        )

    def _where_waited(self) -> str:
        waited = sorted(self._compared.waiting)
        return "the collective" if len(waited) == 1 else " and ".join(phase.label for phase in waited)

    def _batch_skew(self, late: Late, skew: Skew) -> Verdict:
        rank = late.rank
        return Verdict(
            kind=kinds.BATCH_SKEW,
            rank=rank.rank,
            phase=late.phase.label if late.phase is not None else None,
            host=rank.host,
            shard=rank.shard,
            skew=late.gap / self._compared.step,
            pattern=PERSISTENT,
            evidence=(
                f"rank {rank.rank} is ready {_ms(late.gap)} a step after {self._compared.reference}",
                f"its batches have {skew.ratio:.2g} times their {skew.unit}, which explains {skew.explained:.0%} of it",
            ),
            next_check=skew.next_check,
        )

    def _unexplained(self, late: Late) -> Verdict:
        share = late.gap / self._compared.step
        return Verdict(
            kind=UNKNOWN,
            evidence=(
                f"one rank is ready {_ms(late.gap)} a step after {self._compared.reference}",
                f"that is {share:.0%} of the median step; no phase of one rank accounts for {COVERAGE:.0%} of it",
            ),
            next_check="Compare the phases rank by rank: several causes may add up.",
        )

    # A rank that is late on few steps.

    def _cost(self, found: Sequence[Tail]) -> float:
        spent = self._compared.step * max((tail.of for tail in found), default=0)
        return sum(tail.seconds for tail in found[:1]) / spent if spent else 0.0

    def _tail(self, found: Sequence[Tail], cost: float) -> Verdict:
        tail, rank = found[0], found[0].rank
        others = sorted({other.rank.rank for other in found} - {rank.rank})
        if others and tail.seconds < COVERAGE * sum(one.seconds for one in found):
            return Verdict(
                kind=UNKNOWN,
                evidence=tuple(
                    f"rank {one.rank.rank} is late on {one.steps} of {one.of} steps in {one.phase.label}"
                    for one in found
                ),
                next_check="Look at each of these ranks: they are late in different phases.",
            )
        return Verdict(
            kind=kinds.kind_of(tail.phase),
            rank=rank.rank,
            phase=tail.phase.label,
            host=rank.host,
            shard=rank.shard,
            skew=tail.typical / self._compared.step,
            pattern=TAIL,
            steps=None if tail.first is None or tail.last is None else (tail.first, tail.last),
            evidence=(
                f"{_seldom(tail)}; its typical step is not",
                f"of all such steps of all ranks {tail.share:.0%} are its own",
                f"that costs {cost:.1%} of the time in steps",
                *host_evidence(self._profile, self._compared, rank),
            ),
            next_check=next_check(tail.phase, rank=rank.rank, host=rank.host, shard=rank.shard, tail=True),
        )

    # Nothing found.

    def _balanced(self) -> Verdict:
        compared = self._compared
        if len(compared.ranks) < 2:
            return Verdict(
                kind=UNKNOWN,
                evidence=("one rank alone: there is none to compare it with",),
                next_check="Look at its phases: the largest one is where its time goes.",
            )
        if compared.missing:
            return self._missing(f"{len(compared.ranks)} ranks are alike")
        if not compared.recorded or compared.hidden:
            where = " and ".join(phase.label for phase in sorted(compared.hidden))
            said = (
                f"{where} include waiting for other ranks: who is slow in them cannot be told"
                if where
                else "the wait in the collective was not recorded apart, so time in other phases may be that wait"
            )
            return Verdict(
                kind=UNKNOWN,
                evidence=("no rank is late in its input", said),
                next_check="Use fully_shard, whose waits are told apart, or profile a few steps of all ranks."
                if where
                else "Pass the model to watch(), or time the collective as phase collective_wait.",
            )
        worst = max(compared.beyond(mean_of(phase), rank) for rank in compared.ranks for phase in compared.own_work)
        evidence = (
            f"no rank's typical step is late by more than the budget, {compared.budget:.0%} of {_ms(compared.step)}",
            f"the largest mean excess in any phase is {max(worst, 0.0) / compared.step:.0%} of the step",
            f"ranks wait for each other {self._shared.exposed:.0%} of the time",
        )
        busy = self._busy()
        if busy is not None and busy > _MOST_OF_THE_TIME:
            return Verdict(
                kind=kinds.COMPUTE_BOUND,
                evidence=(f"the device computes {busy:.0%} of the time on every rank", *evidence),
                next_check="Ranks and input keep up: what is left is the model's own work on the device.",
            )
        return Verdict(kind=kinds.BALANCED, evidence=evidence, next_check="None: the ranks share the load evenly.")

    def _busy(self) -> float | None:
        """Share of the time in which every device computes; None where only host clocks tell, which say nothing of
        what a device does meanwhile."""
        active = [rank.device_active for rank in self._compared.ranks if rank.device_active is not None]
        if len(active) == len(self._compared.ranks):
            return min(active)
        if not all(rank.by_device for rank in self._compared.ranks):
            return None
        work = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER)
        return min(sum(rank.mean(phase) for phase in work) / rank.mean(Phase.STEP) for rank in self._compared.ranks)

    def _missing(self, *evidence: str) -> Verdict:
        seen = len(self._compared.ranks)
        first, *rest = evidence
        return Verdict(
            kind=UNKNOWN,
            evidence=(f"{seen} of {seen + self._compared.missing} ranks could be compared, and {first}", *rest),
            next_check="Look at all ranks of the run: ask the agents of its other hosts too.",
        )


def _seldom(tail: Tail) -> str:
    when = f" between {tail.first} and {tail.last}" if tail.first is not None else ""
    where = f"rank {tail.rank.rank} is late in {tail.phase.label} on {tail.steps} of {tail.of} steps{when}"
    return f"{where}, by {_ms(tail.typical)}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms" if seconds < 10 else f"{seconds:.1f} s"

"""What holds up all ranks alike: input, the fabric, or lateness that moves from one to the next. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from ..phases import Phase
from . import verdict as kinds
from .align import Alignment
from .batch_skew import skew_of_steps
from .comparison import Comparison
from .per_step import Costs, bursts, costs, covary
from .profile import RankProfile, RunProfile
from .verdict import UNKNOWN, Verdict

__all__ = ["Shared"]

_INPUT_BOUND = 0.25
_FABRIC = 0.25
_EXPOSED = 0.30
"""Share of the step spent waiting beyond what the luckiest rank waits, from which it is more than noise: identical
ranks of uneven batches reach a quarter."""
_EXPOSED_EXACTLY = 0.15
"""The same where steps are aligned, so that nothing of the collective's own time is in it."""
_TOGETHER = 0.8
_SHOWN = 4


class Shared:
    """What all ranks lose. ``costs``: what aligned steps say of that, None where there are none, or where waiting does
    not stand apart from working. ``exposed``: share of the time that goes into waiting for the last rank. ``caused``:
    seconds of delay by rank, empty where no steps were aligned."""

    def __init__(self, comparison: Comparison, alignment: Alignment | None, profile: RunProfile) -> None:
        self._compared = comparison
        self._alignment = alignment
        exact = alignment is not None and comparison.recorded and not comparison.hidden
        self.costs: Costs | None = costs(alignment) if alignment is not None and exact else None
        self.caused: Mapping[int, float] = self.costs.caused if self.costs is not None else profile.caused
        counted = _of_counters(profile) if comparison.recorded and self.costs is None else None
        self._allowed = _EXPOSED if self.costs is None and counted is None else _EXPOSED_EXACTLY
        if self.costs is not None:
            self.exposed, self._floor, self._input = self.costs.exposed, self.costs.floor, self.costs.input
            return
        self.exposed = comparison.exposed_share() if counted is None else counted
        self._floor = comparison.floor() / comparison.step
        # Input of one rank that the others wait for is no wait for input that all have in common.
        self._input = comparison.input_share() - self.exposed

    def typical_share(self, rank: int) -> float:
        """The rank's part of all delay caused, single steps left aside where they are known; 0 where none is known."""
        if self.costs is not None:
            return self.costs.typical_share(rank)
        total = sum(self.caused.values())
        return self.caused.get(rank, 0.0) / total if total else 0.0

    def verdict(self) -> Verdict | None:
        """Whichever costs most, if anything costs too much."""
        candidates = (
            (self._input, _INPUT_BOUND, self._input_bound),
            (self.exposed, self._allowed, self.rotating),
            (self._floor, _FABRIC, self._fabric),
        )
        for share, allowed, told in sorted(candidates, key=lambda one: -one[0]):
            if share > allowed and (verdict := told()) is not None:
                return verdict
        return None

    def _input_bound(self) -> Verdict:
        readers = [rank for rank in self._compared.ranks if Phase.INPUT_READY.label in rank.phases]
        evidence = [f"every rank that reads input waits {self._input:.0%} of the step or more for it"]
        check = "Give the loaders more workers or read-ahead, or the storage more bandwidth."
        every = bursts(self._alignment) if self._alignment is not None else None
        together = covary(self._alignment) if self._alignment is not None else None
        if len(readers) < len(self._compared.ranks):
            names = ", ".join(str(rank.rank) for rank in readers)
            evidence.append(f"only rank {names} reads input: a shared feed, on which the others depend")
            check = "Let every rank read its own share, or give the shared feed more workers."
        elif every is not None:
            evidence.append(f"most of it in one step of {every}: batches are produced slower than they are used")
        elif together is not None and together > _TOGETHER:
            evidence.append(
                f"they wait in the same steps (correlation {together:.2f}): a shared feed, one reader or one storage"
            )
            check = "Look at what feeds all ranks: the one that reads for them, or the storage behind them."
        return Verdict(kind=kinds.INPUT_BOUND, evidence=tuple(evidence), next_check=check)

    def _fabric(self) -> Verdict:
        waited = f"{self._floor * self._compared.step * 1e3:.0f} ms"
        return Verdict(
            kind=kinds.FABRIC,
            evidence=(f"even the last rank waits {waited} in the collective, {self._floor:.0%} of the step",),
            next_check="Look at the network between the hosts, and at how much of the gradients overlaps the backward.",
        )

    def rotating(self) -> Verdict | None:
        """Ranks wait for each other, and yet none of them is typically late; None where they hardly wait."""
        if len(self._compared.ranks) < 2 or self.exposed <= self._allowed:
            return None
        found = [f"ranks wait for each other {self.exposed:.0%} of the time, and none of them is late on most steps"]
        skew = skew_of_steps(self._alignment) if self._alignment is not None and self.costs is not None else None
        if skew is not None:
            found.append(
                f"the last rank of a step has {skew.ratio:.2g} times the {skew.unit} of the median rank: that explains "
                f"{skew.explained:.0%} of the delay"
            )
            return Verdict(kind=kinds.BATCH_SKEW, evidence=tuple(found), next_check=skew.next_check)
        if self._is_of_one():
            return Verdict(
                kind=UNKNOWN,
                evidence=(*found, "the lateness is not spread evenly: some steps of one rank take very long"),
                next_check="Look at the slowest steps of each rank: checkpoints, garbage collection, large batches.",
            )
        return Verdict(
            kind=kinds.ROTATING_STRAGGLER,
            evidence=(*found, self._spread()),
            next_check="Look for what hits every rank in turn: batches of uneven size, storage with a long tail.",
        )

    def _blame(self, rank: RankProfile) -> float:
        if self.costs is not None:
            return self.costs.share(rank.rank)
        return self._compared.beyond(self._compared.readiness, rank)

    def _is_of_one(self) -> bool:
        compared = self._compared
        most = max(map(self._blame, compared.ranks))
        return most > (0.5 + 0.5 / len(compared.ranks) if self.costs is not None else compared.threshold)

    def _spread(self) -> str:
        if self.costs is None:
            return "the lateness is spread evenly over the ranks: it moves from one to the next"
        blamed = sorted(self._compared.ranks, key=self._blame, reverse=True)[:_SHOWN]
        parts = ", ".join(f"rank {rank.rank} {self._blame(rank):.0%}" for rank in blamed)
        more = f" and {len(self._compared.ranks) - _SHOWN} more" if len(self._compared.ranks) > _SHOWN else ""
        return f"the delay was caused by {parts}{more}: it moves from one to the next"


def _of_counters(profile: RunProfile) -> float | None:
    """Share of the ranks' time spent waiting for the last, from what was aligned while the run went on."""
    if profile.exposed_seconds is None or not profile.exposed_steps:
        return None
    steps = [rank.mean(Phase.STEP) for rank in profile.ranks if rank.mean(Phase.STEP)]
    return profile.exposed_seconds / (sum(steps) * profile.exposed_steps) if steps else None

"""Reconciles the samples that the ranks of a run took: with each other, with a manifest, with another trial.

Pure: what is compared comes from samples_load. Epochs are reconciled one by one, each over all processes that took part
in it, so that a restart, at whatever world size, is reconciled as the rest is. Padding is counted apart and compared
with nothing. Without identifiers the digests tell whether the multisets are the same; with them, what differs.

    found = load_samples([Path("samples")])           # samples_load; or from_agents, from_prometheus
    result = reconcile(found.samples)                 # across ranks
    result = reconcile(found.samples, expected=manifest)
    result = reconcile(found.samples, expected=expected_of(other.samples))
    result.clean                                      # True, False, or None: could not tell, see result.unknown
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from ..errors import SourceError
from ..segment.samples import EpochSamples, Identifiers
from .reconciliation import EpochBalance, Expected, Finding, Kind, RankBalance, Reconciliation

__all__ = [
    "EpochBalance",
    "Expected",
    "Finding",
    "Kind",
    "RankBalance",
    "Reconciliation",
    "expected_of",
    "reconcile",
    "rolled_back",
]

_MODULUS: Final = 1 << 64


def expected_of(samples: Iterable[EpochSamples], *, name: str = "the other trial") -> dict[int, Expected]:
    """By epoch, what another trial took, to be expected of this one. Epochs that it did not complete are left out, and
    so are those whose samples are not all identified."""
    found = {}
    for epoch, processes in _by_epoch(samples).items():
        ids = _all_ids(processes)
        if _is_complete(processes) and all(one.is_identified for one in processes):
            found[epoch] = Expected(
                name=name,
                count=sum(one.real for one in processes),
                digests=(_digest(processes),),
                ids=None if ids is None else ids[0],
            )
    return found


def reconcile(
    samples: Iterable[EpochSamples],
    *,
    expected: Expected | Mapping[int, Expected] | None = None,
    epochs: Sequence[int] | None = None,
    problems: Sequence[str] = (),
) -> Reconciliation:
    """Reconcile one trial. ``samples``: of one run, all its processes. ``expected``: of each epoch the same, or by
    epoch; without it, only what ranks took twice can be found. ``epochs``: these only. ``problems``: what could not be
    read, so that nothing is clean for sure.

    An epoch that is still going on, or was left by all, is searched for duplicates alone, unless it is asked for.
    """
    grouped = _by_epoch(samples)
    chosen = sorted(grouped) if epochs is None else list(epochs)
    balances: list[EpochBalance] = []
    findings: list[Finding] = []
    unknown = list(problems)
    run = next((one.run for group in grouped.values() for one in group), "")
    for epoch in chosen:
        if epoch not in grouped:
            unknown.append(f"epoch {epoch} was recorded by no rank")
            continue
        wanted = expected if isinstance(expected, Expected) else (expected or {}).get(epoch)
        if isinstance(expected, Mapping) and wanted is None:
            unknown.append(f"epoch {epoch} is not complete, or not identified, in what it is compared with")
        judge = _Judge(epoch, grouped[epoch], wanted, asked=epochs is not None)
        balances.append(judge.balance())
        findings += judge.findings
        unknown += judge.unknown
    if isinstance(expected, Mapping) and epochs is None:
        unknown += [f"epoch {epoch} was recorded by no rank" for epoch in sorted(set(expected) - set(grouped))]
    if not any(balance.judged for balance in balances):
        unknown.append("no epoch is complete: wait for the end of one" if balances else "no samples were recorded")
    clean = False if findings else None if unknown else True
    return Reconciliation(
        run=run, clean=clean, epochs=tuple(balances), findings=tuple(findings), unknown=tuple(unknown)
    )


def _by_epoch(samples: Iterable[EpochSamples]) -> dict[int, list[EpochSamples]]:
    grouped: dict[int, list[EpochSamples]] = {}
    for one in sorted(samples, key=lambda one: (one.rank, one.started_unix_ns)):
        grouped.setdefault(one.epoch, []).append(one)
    return grouped


def rolled_back(samples: Iterable[EpochSamples], steps: Sequence[int]) -> list[EpochSamples]:
    """Without what was taken after the checkpoints that restarts went on from: ``steps[n]`` is the last step of the
    n-th process group that the next one built on. Raises SourceError if there were not as many restarts."""
    known = list(samples)
    processes = {(one.rank, one.started_unix_ns): one for one in known}
    groups = _groups(processes.values())
    if len(groups) - 1 != len(steps):
        raise SourceError(
            f"there were {len(groups) - 1} restarts, and {len(steps)} steps to go on from: give one for each restart"
        )
    last = {one.started_unix_ns: step for group, step in zip(groups, steps, strict=False) for one in group.values()}
    return [one.until(last[one.started_unix_ns]) if one.started_unix_ns in last else one for one in known]


def _groups(processes: Iterable[EpochSamples]) -> list[dict[int, EpochSamples]]:
    """The process groups one after the other, each by rank. Another one begins with a rank that was there before, or
    with another world size."""
    groups: list[dict[int, EpochSamples]] = []
    for one in sorted(processes, key=lambda one: one.started_unix_ns):
        if not groups or one.rank in groups[-1] or next(iter(groups[-1].values())).world_size != one.world_size:
            groups.append({})
        groups[-1][one.rank] = one
    return groups


def _latest(processes: Sequence[EpochSamples]) -> dict[int, EpochSamples]:
    """By rank, the processes of the group that took part last."""
    return _groups(processes)[-1]


def _is_complete(processes: Sequence[EpochSamples]) -> bool:
    return all(one.complete for one in _latest(processes).values())


def _digest(processes: Iterable[EpochSamples]) -> int:
    return sum(one.digest for one in processes) % _MODULUS


def _all_ids(processes: Sequence[EpochSamples]) -> tuple[Identifiers, npt.NDArray[np.int64]] | None:
    """Identifiers of all processes, and the rank that took each; None if some are not known."""
    parts = [one.ids for one in processes if one.ids is not None]
    if len(parts) != len(processes):
        return None
    ranks = np.repeat([one.rank for one in processes], [len(part) for part in parts])
    filled = [part for part in parts if len(part)]
    if len({part.dtype.kind for part in filled}) > 1:
        filled = [part.astype(np.str_) for part in filled]
    return (np.concatenate(filled) if filled else np.zeros(0, dtype=np.int64)), ranks


def _runs(places: npt.NDArray[np.int64]) -> Iterable[tuple[int, int]]:
    """Start and end of each run of equal numbers."""
    ends = [*(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)] if len(places) else []
    return pairwise([0, *ends])


def _names(ids: Identifiers) -> tuple[int | str, ...]:
    return tuple(ids.tolist())


class _Judge:
    """Judges one epoch of one trial."""

    def __init__(
        self, epoch: int, processes: Sequence[EpochSamples], expected: Expected | None, *, asked: bool
    ) -> None:
        self.findings: list[Finding] = []
        self.unknown: list[str] = []
        self._epoch = epoch
        self._processes = processes
        self._expected = expected
        self._complete = _is_complete(processes)
        self._judged = self._complete or asked
        self._known = _all_ids(processes)
        self._duplicates: dict[int, int] | None = None
        self._find_twice()
        if self._judged:
            self._find_starved()
            self._find_missing_ranks()
            if expected is not None:
                self._compare(expected)
                self._doubt()

    def _find(self, kind: Kind, ranks: Iterable[int], count: int, text: str, ids: tuple[int | str, ...] = ()) -> None:
        self.findings.append(
            Finding(
                kind=kind,
                epoch=self._epoch,
                ranks=tuple(ranks),
                count=count,
                ids=ids,
                text=f"epoch {self._epoch}: {text}",
            )
        )

    def _is_as_expected(self) -> bool:
        expected = self._expected
        return (
            expected is not None
            and all(one.is_identified for one in self._processes)
            and sum(one.real for one in self._processes) == expected.count
            and _digest(self._processes) in expected.digests
        )

    def _find_twice(self) -> None:
        if self._known is not None:
            self._find_duplicates(*self._known)
        elif not self._is_as_expected():
            self._find_equal_ranks()

    def _find_duplicates(self, ids: Identifiers, ranks: npt.NDArray[np.int64]) -> None:
        distinct, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
        inverse = inverse.reshape(-1)
        self._duplicates = {one.rank: 0 for one in self._processes}
        for rank, number in zip(*np.unique(ranks[(counts > 1)[inverse]], return_counts=True), strict=True):
            self._duplicates[int(rank)] = int(number)
        if self._is_as_expected():
            return  # as often as it should be
        surplus = counts - np.maximum(self._due(distinct), 1)
        own = (surplus > 0)[inverse]
        # Put together by who took them, so that two ranks that read the same stream are one finding.
        order = np.argsort(inverse[own], kind="stable")
        places, who = inverse[own][order], ranks[own][order]
        takers: dict[tuple[int, ...], list[int]] = {}
        for start, end in _runs(places):
            takers.setdefault(tuple(sorted(set(who[start:end].tolist()))), []).append(int(places[start]))
        for together, several in sorted(takers.items()):
            number = int(surplus[several].sum())
            often = "twice" if number == len(several) else f"{number} times too often"
            text = f"{_ranks(together)} took {_samples(len(several))} {often}"
            self._find("duplicate", together, number, text, _names(distinct[several]))

    def _due(self, distinct: Identifiers) -> npt.NDArray[np.int64]:
        """How often each should have been taken: once, where it is not known."""
        if self._expected is None or self._expected.ids is None:
            return np.ones(len(distinct), dtype=np.int64)
        wanted = self._expected.ids
        if wanted.dtype.kind != distinct.dtype.kind:
            wanted, distinct = wanted.astype(np.str_), distinct.astype(np.str_)
        known, counts = np.unique(wanted, return_counts=True)
        if not len(known):
            return np.zeros(len(distinct), dtype=np.int64)
        places = np.minimum(np.searchsorted(known, distinct), len(known) - 1)
        return np.where(known[places] == distinct, counts[places], 0)

    def _find_equal_ranks(self) -> None:
        alike: dict[tuple[int, int], list[EpochSamples]] = {}
        for one in self._processes:
            if one.identified and one.is_identified:
                alike.setdefault((one.digest, one.real), []).append(one)
        for (_, count), several in sorted(alike.items()):
            if len(several) > 1:
                ranks = sorted({one.rank for one in several})
                self._find(
                    "duplicate",
                    ranks,
                    count * (len(several) - 1),
                    f"{_ranks(ranks)} took the same {_samples(count)}",
                )

    def _find_starved(self) -> None:
        latest = _latest(self._processes)
        starved = [rank for rank, one in latest.items() if not one.samples]
        if starved and len(starved) < len(latest):
            most = max(one.samples for one in latest.values())
            self._find("starved", starved, 0, f"{_ranks(starved)} took no sample, while others took up to {most}")

    def _find_missing_ranks(self) -> None:
        latest = _latest(self._processes)
        missing = sorted(set(range(next(iter(latest.values())).world_size)) - set(latest)) if latest else []
        if missing:
            self.unknown.append(f"epoch {self._epoch}: {_ranks(missing)} recorded nothing: give the files of all hosts")
        unidentified = [one.rank for one in self._processes if not one.is_identified]
        if unidentified:
            ranks = sorted(set(unidentified))
            self.unknown.append(
                f"epoch {self._epoch}: {_ranks(ranks)} took samples that no digest covers: "
                "identify them with sample_ids, or, of ranks that were killed, give their files"
            )

    def _doubt(self) -> None:
        cut = sorted({one.rank for one in self._processes if one.cut})
        if cut and any(finding.kind in ("omitted", "differs") for finding in self.findings):
            self.unknown.append(
                f"epoch {self._epoch}: {_ranks(cut)} ended without a word: what was taken in the last second may count "
                "as omitted, give reconcile --resumed-from where training went on from a checkpoint"
            )

    def _compare(self, expected: Expected) -> None:
        count = sum(one.real for one in self._processes)
        if self.unknown or self._is_as_expected():
            return
        if self._known is None or expected.ids is None:
            self._find(
                "differs",
                sorted({one.rank for one in self._processes}),
                abs(count - expected.count),
                f"{_samples(count)} that are not the {expected.count} of {expected.name}"
                f"{'' if count != expected.count else ', although as many'}: "
                "identifiers would say which differ (RANK_EXPORTER_SAMPLE_IDS_DIR)",
            )
            return
        self._compare_ids(expected, expected.ids, *self._known)

    def _compare_ids(
        self, expected: Expected, wanted: Identifiers, ids: Identifiers, ranks: npt.NDArray[np.int64]
    ) -> None:
        if wanted.dtype.kind != ids.dtype.kind:
            wanted, ids = wanted.astype(np.str_), ids.astype(np.str_)
        distinct, inverse = np.unique(np.concatenate([wanted, ids]), return_inverse=True)
        inverse = inverse.reshape(-1)
        due = np.bincount(inverse[: len(wanted)], minlength=len(distinct))
        taken = np.bincount(inverse[len(wanted) :], minlength=len(distinct))
        omitted = distinct[due > taken]
        if len(omitted):
            number = int((due - taken)[due > taken].sum())
            text = f"no rank took {_samples(number)} of the {expected.count} of {expected.name}"
            self._find("omitted", (), number, text, _names(omitted))
        # What is expected and was taken too often is found as a duplicate.
        foreign = (taken > 0) & (due == 0)
        mine = foreign[inverse[len(wanted) :]]
        for rank in np.unique(ranks[mine]):
            own = np.unique(ids[mine & (ranks == rank)])
            self._find(
                "foreign",
                [int(rank)],
                int((mine & (ranks == rank)).sum()),
                f"rank {rank} took {_samples(len(own))} beyond those of {expected.name}",
                _names(own),
            )

    def balance(self) -> EpochBalance:
        """What was taken, by rank."""
        by_rank: dict[int, list[EpochSamples]] = {}
        for one in self._processes:
            by_rank.setdefault(one.rank, []).append(one)
        ranks = tuple(
            RankBalance(
                rank=rank,
                hosts=tuple(dict.fromkeys(one.host for one in several)),
                processes=len(several),
                samples=sum(one.samples for one in several),
                padded=sum(one.padded for one in several),
                duplicates=None if self._duplicates is None else self._duplicates[rank],
                complete=several[-1].complete,
            )
            for rank, several in by_rank.items()
        )
        return EpochBalance(
            epoch=self._epoch,
            ranks=ranks,
            samples=sum(rank.samples for rank in ranks),
            padded=sum(rank.padded for rank in ranks),
            digest=_digest(self._processes),
            complete=self._complete,
            judged=self._judged,
        )


def _ranks(ranks: Sequence[int]) -> str:
    listed = ", ".join(map(str, ranks[:8])) + (" …" if len(ranks) > 8 else "")
    return f"rank {listed}" if len(ranks) == 1 else f"ranks {listed}"


def _samples(count: int) -> str:
    return f"{count} sample" if count == 1 else f"{count} samples"

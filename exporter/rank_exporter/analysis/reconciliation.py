"""What a reconciliation says, and what it compares with: plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..segment.samples import Identifiers

__all__ = ["EpochBalance", "Expected", "Finding", "Kind", "RankBalance", "Reconciliation"]

Kind = Literal["duplicate", "omitted", "foreign", "differs", "starved"]
"""Taken more often than once, or than expected; expected and taken by nobody; taken though not expected; another
multiset, while nobody knows the identifiers; a rank that took nothing while others did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBalance:
    """What one rank took in an epoch, over all its processes. ``duplicates``: samples that it, or it and another rank,
    took more than once; None where identifiers are not known."""

    rank: int
    hosts: tuple[str, ...]
    processes: int
    samples: int
    padded: int
    duplicates: int | None
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochBalance:
    """One epoch over all ranks. ``digest`` is that of all that was no padding. ``complete``: the processes that took
    part last came to its end. ``judged`` False: nothing of it is in question, as it is still going on."""

    epoch: int
    ranks: tuple[RankBalance, ...]
    samples: int
    padded: int
    digest: int
    complete: bool
    judged: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is not as it should be. ``ranks``: whom it concerns; none for what was omitted. ``count``:
    samples. ``ids``: which, each once, in order; empty where only digests are known. ``text``: one line."""

    kind: Kind
    epoch: int
    ranks: tuple[int, ...]
    count: int
    ids: tuple[int | str, ...]
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconciliation:
    """The outcome. ``clean``: True, False where there are findings, None where it could not be told, as ``unknown``
    says line by line; both there, and the findings stand."""

    run: str
    clean: bool | None
    epochs: tuple[EpochBalance, ...]
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Expected:
    """What an epoch should consist of. ``digests``: any of them will do (a text file does not tell 7 from "7").
    ``ids`` None: only the digest is known. ``name``: for messages."""

    name: str
    count: int
    digests: tuple[int, ...]
    ids: Identifiers | None = None

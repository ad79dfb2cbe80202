"""Which step records are asked for, and what the segments hold of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ..errors import SegmentError, SettingError
from ..segment.layout import RING_STEPS, SHARD_SLOTS, Word
from ..segment.records import RankSteps
from ..segment.wire import Answer
from .residence import Resident

__all__ = ["StepsQuery", "of_resident", "parse", "select"]

_LONGEST_FACT: Final = 200
_NAMES: Final = ("run", "generation", "rank", "after", "to", "limit", "format")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepsQuery:
    """Steps with ``after`` < number ≤ ``to``, the first ``limit`` of each rank; None and empty: all.

    ``after_rank`` overrides ``after`` for single ranks.
    """

    run: str | None = None
    generation: int | None = None
    ranks: frozenset[int] = frozenset()
    after: int = 0
    after_rank: Mapping[int, int] = field(default_factory=dict)
    to: int | None = None
    limit: int = RING_STEPS

    def wants(self, run: str, rank: int, generation: int) -> bool:
        """Whether a process is asked for."""
        return (
            self.run in (None, run) and self.generation in (None, generation) and (not self.ranks or rank in self.ranks)
        )


def _natural(name: str, text: str) -> int:
    # Longer digits cost int() dear, and no number of a step is that long.
    if text.isascii() and text.isdigit() and len(text) < 20:
        return int(text)
    raise SettingError(f"{name} is {text[:40]!r}: give a whole number")


def parse(pairs: Iterable[tuple[str, str]]) -> StepsQuery:
    """The query of a URL: run=NAME, generation=N, rank=N (repeatable), after=N, after=RANK:N (repeatable: that rank
    alone, and asks for it), to=N, limit=N. Raises SettingError in one line."""
    run: str | None = None
    numbers: dict[str, int] = {}
    ranks: set[int] = set()
    after_rank: dict[int, int] = {}
    for name, text in pairs:
        if name not in _NAMES:
            raise SettingError(f"there is no parameter {name[:40]!r}: known are {', '.join(_NAMES)}")
        if name == "run":
            run = text
        elif name == "rank":
            ranks.add(_natural(name, text))
        elif name == "after" and ":" in text:
            rank, _, number = text.partition(":")
            ranks.add(_natural("rank", rank))
            after_rank[_natural("rank", rank)] = _natural(name, number)
        elif name != "format":
            numbers[name] = _natural(name, text)
    return StepsQuery(
        run=run,
        generation=numbers.get("generation"),
        ranks=frozenset(ranks),
        after=numbers.get("after", 0),
        after_rank=after_rank,
        to=numbers.get("to"),
        limit=min(numbers.get("limit", RING_STEPS), RING_STEPS),
    )


def of_resident(resident: Resident, after: int) -> RankSteps:
    """The steps beyond ``after`` that a segment still holds. Raises SegmentError."""
    records = resident.reader.steps(after)
    if len(records):
        # Words of a damaged ring would otherwise pass for steps.
        records = records[np.concatenate([[True], records["step"][1:] > records["step"][:-1]])]
    snapshot = resident.snapshot
    slots = records["shard"][records["shard"] < SHARD_SLOTS]
    if len(slots) and (snapshot is None or int(slots.max()) >= len(snapshot.shards)):
        # The rank has named another shard since the last look.
        resident.snapshot = snapshot = resident.reader.snapshot() or snapshot
    source = resident.reader.source
    identity = source.identity
    return RankSteps(
        run=identity.run,
        rank=identity.rank,
        world_size=identity.world_size,
        host=identity.host,
        generation=0 if snapshot is None else snapshot.word(Word.GENERATION),
        started_unix_ns=source.started_unix_ns,
        shards=() if snapshot is None else snapshot.shards,
        records=records,
        waits_in="" if snapshot is None else snapshot.facts.get("waits_in", "")[:_LONGEST_FACT],
    )


def select(residents: Iterable[Resident], query: StepsQuery, *, agent: str) -> Answer:
    """What is asked for. ``agent``: who answers. A segment that cannot be read gives nothing."""
    segments, last_steps = [], []
    for resident in residents:
        identity = resident.reader.source.identity
        snapshot = resident.snapshot
        generation = 0 if snapshot is None else snapshot.word(Word.GENERATION)
        if not query.wants(identity.run, identity.rank, generation):
            continue
        after = query.after_rank.get(identity.rank, query.after)
        # What is wrong with a segment is found and reported by the scan.
        with contextlib.suppress(SegmentError):
            segments.append(_limited(of_resident(resident, after), query))
            last_steps.append(0 if resident.snapshot is None else resident.snapshot.word(Word.STEPS))
    return Answer(agent=agent, segments=tuple(segments), last_steps=tuple(last_steps))


def _limited(steps: RankSteps, query: StepsQuery) -> RankSteps:
    records = steps.records
    if query.to is not None:
        records = records[records["step"] <= np.uint64(query.to)]
    return dataclasses.replace(steps, records=records[: query.limit])

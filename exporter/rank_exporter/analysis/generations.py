"""Which processes trained together: a restart of the job begins another generation, whose steps count anew."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from ..segment.records import RankSteps, plausible

__all__ = ["generations", "merged"]


def generations(found: Iterable[RankSteps]) -> list[tuple[RankSteps, ...]]:
    """The processes by run and generation, in the order in which the generations ended; each rank at most once.

    Processes that never learnt their generation are put together if they have the same run and world size and lived at
    the same time, as far as their hosts' clocks tell.
    """
    known: dict[tuple[str, int, int], list[RankSteps]] = {}
    unknown: dict[tuple[str, int], list[RankSteps]] = {}
    for steps in merged(found):
        if steps.generation:
            known.setdefault((steps.run, steps.generation, steps.world_size), []).append(steps)
        else:
            unknown.setdefault((steps.run, steps.world_size), []).append(steps)
    groups = [_latest_of_each_rank(group) for group in known.values()]
    for alike in unknown.values():
        groups += _by_lifetime(alike)
    return [tuple(sorted(group, key=lambda steps: steps.rank)) for group in sorted(groups, key=_ended)]


def merged(found: Iterable[RankSteps]) -> list[RankSteps]:
    """One entry a process, with every plausible record once, ascending; processes without records are left out."""
    by_process: dict[tuple[str, int, int, str], list[RankSteps]] = {}
    for steps in found:
        by_process.setdefault((steps.run, steps.rank, steps.started_unix_ns, steps.host), []).append(steps)
    one_each = [_one(parts) for parts in by_process.values()]
    return [steps for steps in one_each if len(steps.records)]


def _one(parts: Sequence[RankSteps]) -> RankSteps:
    names: dict[str, int] = {}
    records = []
    for part in parts:
        own = part.records[plausible(part.records)].copy()
        slots, inverse = np.unique(own["shard"], return_inverse=True)
        places = [names.setdefault(part.shard_name(int(slot)), len(names)) for slot in slots]
        own["shard"] = np.array(places, dtype=own["shard"].dtype)[inverse]
        records.append(own)
    together = np.concatenate(records)
    _, first = np.unique(together["step"], return_index=True)
    newest = max(parts, key=lambda part: part.generation)
    return RankSteps(
        run=newest.run,
        rank=newest.rank,
        world_size=newest.world_size,
        host=newest.host,
        generation=newest.generation,
        started_unix_ns=newest.started_unix_ns,
        shards=tuple(names),
        records=together[first],
        waits_in=newest.waits_in,
    )


def _ended(group: Sequence[RankSteps]) -> int:
    return max(int(steps.records["end_unix_ns"][-1]) for steps in group)


def _latest_of_each_rank(group: Sequence[RankSteps]) -> list[RankSteps]:
    latest = {steps.rank: steps for steps in sorted(group, key=lambda steps: steps.started_unix_ns)}
    return list(latest.values())


def _by_lifetime(alike: Sequence[RankSteps]) -> list[list[RankSteps]]:
    groups: list[list[RankSteps]] = []
    for steps in sorted(alike, key=lambda steps: steps.started_unix_ns):
        here = groups[-1] if groups else []
        if here and steps.started_unix_ns < _ended(here) and all(steps.rank != other.rank for other in here):
            here.append(steps)
        else:
            groups.append([steps])
    return groups

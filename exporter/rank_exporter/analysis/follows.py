"""Whether late input goes with the host or with the data. Pure.

Told apart by moves alone: a shard that was read elsewhere, or a place (a rank on a host) that read something else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..lateness import median_rank
from ..phases import Phase
from .align import Alignment
from .profile import Cell

__all__ = ["DATA", "HOST", "Follows", "cells_of", "follows"]

DATA = "data"
HOST = "host"

_FEWEST_STEPS = 15
_MOST = 0.8
_LEAST = 0.4
"""Lateness has gone with a move if at least 0.8 of it is found there, and has stayed away if at most 0.4 of it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Follows:
    """What the lateness goes with: DATA, HOST, or None where that cannot be told. Seconds a step.

    ``there``: of the shard at the place where it was worst; ``shard_elsewhere``: of that shard at other places;
    ``place_otherwise``: of that place with other shards; None where there was no such thing. ``reason``: one line.
    """

    what: str | None
    rank: int
    host: str
    shard: str
    there: float
    shard_elsewhere: float | None
    place_otherwise: float | None
    reason: str

    @property
    def next_check(self) -> str:
        """What to look at, since that is known."""
        if self.what == DATA:
            return f"It goes with shard {self.shard}: look at where that is stored, how large it is, and its samples."
        return f"It goes with host {self.host}: look at its way to the storage, its cores, and what else runs there."


def cells_of(alignments: Iterable[Alignment]) -> tuple[Cell, ...]:
    """Excess of input over the median rank's, by rank, host and shard, for each generation."""
    cells = []
    for alignment in alignments:
        ns = alignment.ns[:, :, Phase.INPUT_READY]
        excess = ns - median_rank(ns, ns > 0)[:, None]
        for place, rank in enumerate(alignment.ranks):
            for slot in np.unique(alignment.shard[:, place]):
                steps = (alignment.shard[:, place] == slot) & (ns[:, place] > 0)
                if steps.any() and (name := rank.shard_name(int(slot))):
                    cells.append(
                        Cell(
                            rank=rank.rank,
                            host=rank.host,
                            shard=name,
                            steps=int(steps.sum()),
                            excess=float(excess[steps, place].mean()) / 1e9,
                            generation=rank.generation,
                        )
                    )
    return tuple(cells)


def follows(cells: Sequence[Cell], *, threshold: float) -> Follows | None:
    """What the worst cell's lateness goes with; None where no cell is late by more than ``threshold`` seconds a step.

    A place is a rank on a host: after a restart also other ranks that came to that host.
    """
    known = [cell for cell in cells if cell.steps >= _FEWEST_STEPS]
    worst = max(known, key=lambda cell: cell.excess, default=None)
    if worst is None or worst.excess <= threshold:
        return None
    away = [cell for cell in known if cell.shard == worst.shard and (cell.host, cell.rank) != (worst.host, worst.rank)]
    stayed = [cell for cell in known if cell.shard != worst.shard and _same_place(cell, worst)]
    elsewhere, otherwise = _mean(away), _mean(stayed)
    what, reason = _told(worst, away, elsewhere, stayed, otherwise)
    return Follows(
        what=what,
        rank=worst.rank,
        host=worst.host,
        shard=worst.shard,
        there=worst.excess,
        shard_elsewhere=elsewhere,
        place_otherwise=otherwise,
        reason=reason,
    )


def _same_place(cell: Cell, worst: Cell) -> bool:
    return cell.host == worst.host and (cell.rank == worst.rank or cell.generation != worst.generation)


def _mean(cells: Sequence[Cell]) -> float | None:
    steps = sum(cell.steps for cell in cells)
    return sum(cell.excess * cell.steps for cell in cells) / steps if steps else None


def _told(
    worst: Cell, away: Sequence[Cell], elsewhere: float | None, stayed: Sequence[Cell], otherwise: float | None
) -> tuple[str | None, str]:
    about = f"shard {worst.shard} was {_ms(worst.excess)} late on rank {worst.rank} of {worst.host}"
    if elsewhere is None and otherwise is None:
        return None, (
            f"{about} and was read nowhere else, nor did that rank read anything else: it cannot be told whether host "
            f"or data is slow; swap it with the shard of a rank on another host to tell"
        )
    parts = [about]
    if elsewhere is not None:
        places = ", ".join(sorted({f"rank {cell.rank} of {cell.host}" for cell in away}))
        parts.append(f"{_ms(elsewhere)} on {places}")
    if otherwise is not None:
        shards = ", ".join(sorted({cell.shard for cell in stayed}))
        parts.append(f"{_ms(otherwise)} was {worst.host} with {shards}")
    numbers = "; ".join(parts)
    votes = {
        vote
        for late, (if_late, if_not) in ((elsewhere, (DATA, HOST)), (otherwise, (HOST, DATA)))
        if late is not None
        for vote in [if_late if late >= _MOST * worst.excess else if_not if late <= _LEAST * worst.excess else None]
    }
    what = votes.pop() if len(votes) == 1 else None
    return what, f"{numbers}: it goes with {f'the {what}' if what else 'neither alone'}"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.0f} ms"

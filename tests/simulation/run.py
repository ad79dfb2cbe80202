"""What a simulated run is like: its ranks, its steps, and what is wrong with it. Times are seconds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from rank_exporter.phases import Phase

__all__ = ["AFTER_COLLECTIVE", "BEFORE_COLLECTIVE", "Run", "Slow"]

BEFORE_COLLECTIVE: Final = (Phase.INPUT_READY, Phase.H2D, Phase.FORWARD, Phase.BACKWARD)
AFTER_COLLECTIVE: Final = (Phase.OPTIMIZER, Phase.OTHER)

_COMPUTE: Final = {Phase.H2D: 0.02, Phase.FORWARD: 0.32, Phase.BACKWARD: 0.54, Phase.OPTIMIZER: 0.09, Phase.OTHER: 0.03}
"""How the part of a step that is not input divides over the other phases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """A phase takes longer than it would: ``times`` as long, and ``by`` of a nominal step more.

    ``ranks``: whom it hits, None for all. ``steps``: the share of steps hit, drawn for each rank and step. With
    ``by_max`` what is added is drawn between ``by`` and it. It lasts from ``start`` to ``end``; with a ``period`` only
    ``lasts`` seconds of each, from ``offset`` on. ``most``: steps hit at most. ``shard``: only steps that read this
    shard of the rank's, by its place. Of phase collective_wait it is the fabric that is slow, so it hits all ranks.
    """

    phase: Phase
    by: float = 0.0
    by_max: float | None = None
    times: float = 1.0
    ranks: tuple[int, ...] | None = None
    steps: float = 1.0
    start: float = 0.0
    end: float = math.inf
    period: float | None = None
    lasts: float = 0.0
    offset: float = 0.0
    most: int | None = None
    shard: int | None = None

    def is_active(self, now: float) -> bool:
        """Whether it hits steps that begin now."""
        if not self.start <= now < self.end:
            return False
        return self.period is None or (now - self.start - self.offset) % self.period < self.lasts

    def next_change(self, now: float) -> float:
        """When ``is_active`` may next change, after now."""
        changes = [edge for edge in (self.start, self.end) if edge > now]
        if self.period is not None and self.start <= now < self.end:
            into = (now - self.start - self.offset) % self.period
            changes.append(now - into + (self.lasts if into < self.lasts else self.period))
        return max(min(changes, default=math.inf), math.nextafter(now, math.inf))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One generation of a run, from ``start`` to ``end``: after a restart describe another with the same name.

    ``step``: seconds of a nominal step, in which nobody waits. ``input_share`` of it is input, lognormal by ``sigma``;
    ``heavy``: this share of batches takes that many times as long. Other phases vary by ``compute_sigma``.
    ``floor``: what the collective itself takes, as a share of the step. Ranks live ``per_host`` to a host, but for
    those in ``moved``. ``ended``: when ranks end, the others going on without them. ``never_fetch``: ranks without
    input. ``tokens``: how many times the usual tokens a rank gets; ``token_sigma``: lognormal scatter of the tokens of
    a batch; forward and backward take as much longer. Each rank reads ``shards`` shards in turn, ``dwell`` steps each.
    ``headroom``: how many times faster than training its ``workers`` are together.
    """

    run: str
    ranks: int
    step: float = 1.0
    hosts: str = "node"
    per_host: int = 8
    moved: Mapping[int, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    budget: float = 0.1
    start: float = 0.0
    end: float = math.inf
    ended: Mapping[int, float] = field(default_factory=dict)
    input_share: float = 0.05
    sigma: float = 0.2
    heavy: tuple[float, float] = (0.0, 1.0)
    compute_sigma: float = 0.03
    floor: float = 0.03
    slow: tuple[Slow, ...] = ()
    never_fetch: frozenset[int] = frozenset()
    batch: int = 32
    tokens: Mapping[int, float] = field(default_factory=dict)
    token_sigma: float = 0.0
    shards: int = 1
    dwell: int = 50
    workers: int = 4
    headroom: float = 2.0
    aligned: bool = True
    seed: int = 0

    def seconds(self, phase: Phase) -> float:
        """How long a phase before or after the collective takes in a nominal step."""
        if phase is Phase.INPUT_READY:
            return self.step * self.input_share
        return self.step * (1 - self.input_share) * _COMPUTE[phase]

    def host_of(self, rank: int) -> str:
        """The host that the rank runs on."""
        return self.moved.get(rank, f"{self.hosts}-{rank // self.per_host}")

    def shard_name(self, rank: int, place: int) -> str:
        """The shard that the rank reads in its ``place``-th turn."""
        return "" if rank in self.never_fetch else f"train-{rank * self.shards + place:05d}"

    def shard_at(self, step: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Which of its shards a rank reads in these steps."""
        return step // self.dwell % self.shards

    def end_of(self, rank: int) -> float:
        """When the rank ends."""
        return min(self.end, self.ended.get(rank, math.inf))

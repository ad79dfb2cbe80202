"""Asks the agents of a run's other ranks for their steps, and believes them no more than it must."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Final

import httpx

from ..errors import SourceError
from ..segment.records import RankSteps
from ..segment.roster import Roster
from ..segment.wire import RECORD_BYTES, decode
from .faults import Faults

__all__ = ["TIMEOUT_SECONDS", "Peer", "client", "peers_of"]

TIMEOUT_SECONDS: Final = 4.0
_LIMIT: Final = 512
"""Steps of a rank asked for at once."""
_HEADER_BYTES: Final = 1 << 16
_RANK_BYTES: Final = 1 << 14
_SHORTEST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 10.0
_SAID: Final = 4
"""Peers of a run that are complained about; where there are more, it is for the same reason."""


def client() -> httpx.AsyncClient:
    """For all peers; no proxy, no redirects, every wait bounded."""
    limits = httpx.Limits(max_connections=128, max_keepalive_connections=128)
    return httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_SECONDS, limits=limits)


def peers_of(roster: Roster, faults: Faults) -> list[Peer]:
    """One for each address in the roster."""
    ranks: dict[str, list[int]] = {}
    for rank, target in roster.targets.items():
        if target:
            ranks.setdefault(target, []).append(rank)
    said: list[str] = []
    return [Peer(target, frozenset(own), roster, faults, said) for target, own in ranks.items()]


class Peer:
    """Another host's agent, of which only steps of ``ranks``, of this run and generation, are taken.

    A failure is counted when it begins, and said if not many of the run's peers have failed before; a peer that fails
    is asked more and more rarely. ``said``: addresses that were complained about, shared by the peers of a run.
    """

    def __init__(
        self,
        target: str,
        ranks: frozenset[int],
        roster: Roster,
        faults: Faults,
        said: list[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.target = target
        self.ranks = ranks
        self.task: asyncio.Task[None] | None = None
        self._roster = roster
        self._faults = faults
        self._said = said
        self._clock = clock
        self._failing = False
        self._pause = _SHORTEST_PAUSE
        self._due_at = clock()

    def is_due(self) -> bool:
        """Whether it is time to ask again."""
        return (self.task is None or self.task.done()) and self._clock() >= self._due_at

    async def ask(
        self, http: httpx.AsyncClient, wanted: Mapping[int, tuple[int, int]], deliver: Callable[[RankSteps], None]
    ) -> None:
        """Ask for the steps of some ranks and deliver what comes. wanted: by rank, the step after which and how many.
        Never raises for what a peer does."""
        try:
            found = await asyncio.wait_for(self._fetch(http, wanted), TIMEOUT_SECONDS)
        except (SourceError, httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, asyncio.TimeoutError) as error:
            self._failed(str(error) or type(error).__name__)
            return
        self._failing = False
        self._pause = _SHORTEST_PAUSE
        self._due_at = self._clock() + self._pause
        for steps in found:
            if steps.rank in wanted:
                deliver(steps)

    def _failed(self, reason: str) -> None:
        if not self._failing:
            self._failing = True
            ranks = ", ".join(map(str, sorted(self.ranks)[:8])) + (", …" if len(self.ranks) > 8 else "")
            self._faults.report(
                "peers",
                f"the agent at {self.target} gives no steps of run {self._roster.run} ({reason[:200]}): ranks {ranks} "
                "are not aligned until it does, let agents reach each other on their port"
                f"{' (others of this run are only counted)' if len(self._said) == _SAID - 1 else ''}",
                say=len(self._said) < _SAID,
            )
            self._said.append(self.target)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        self._due_at = self._clock() + self._pause

    async def _fetch(self, http: httpx.AsyncClient, wanted: Mapping[int, tuple[int, int]]) -> list[RankSteps]:
        limit = min(_LIMIT, max(room for _, room in wanted.values()))
        params: list[tuple[str, str | int | float | bool | None]] = [
            ("run", self._roster.run),
            ("generation", str(self._roster.generation)),
            ("limit", str(limit)),
            *(("after", f"{rank}:{after}") for rank, (after, _) in sorted(wanted.items())),
        ]
        most = _HEADER_BYTES + len(wanted) * (_RANK_BYTES + limit * RECORD_BYTES)
        body = bytearray()
        # Nothing compressed is asked for, so that what arrives is as large as what it unpacks to.
        headers = {"accept-encoding": "identity"}
        async with http.stream("GET", f"http://{self.target}/steps", params=params, headers=headers) as response:
            if response.status_code != httpx.codes.OK:
                raise SourceError(f"it answers {response.status_code}")
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > most:
                    raise SourceError(f"it sends more than {most} bytes")
        return self._ours(decode(bytes(body), source="what it sends").segments)

    def _ours(self, segments: tuple[RankSteps, ...]) -> list[RankSteps]:
        roster = self._roster
        about = (roster.run, roster.generation, roster.world_size)
        for steps in segments:
            if (steps.run, steps.generation, steps.world_size) != about or steps.rank not in self.ranks:
                raise SourceError(f"it sends rank {steps.rank} of run {steps.run[:40]!r}, which it was not asked for")
        if len({steps.rank for steps in segments}) != len(segments):
            raise SourceError("it sends a rank twice")
        return list(segments)

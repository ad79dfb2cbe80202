"""Aligns the steps of every run whose rank 0 lives on this host, from all of its ranks' agents."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Final

import httpx

from ..errors import SegmentError
from ..segment.records import RankSteps
from ..segment.roster import Roster, rosters
from ..segment.wire import Answer
from .alignment import Window
from .families import Families
from .faults import Faults
from .peers import Peer, client, peers_of
from .residence import Resident
from .steps import StepsQuery
from .totals import Place, Totals

__all__ = ["Aligner"]

POLL_SECONDS: Final = 1.0


class _Job:
    """One generation of a run: its window, its peers, and what it adds to the run's totals."""

    def __init__(self, roster: Roster, totals: Totals, faults: Faults, *, first: int) -> None:
        self.roster = roster
        self.totals = totals
        self.window = Window(roster.world_size, first=first)
        self.peers = peers_of(roster, faults)
        self._inbox: list[RankSteps] = []
        self._hosts = [""] * roster.world_size
        self._shards: list[RankSteps | None] = [None] * roster.world_size

    def deliver(self, steps: RankSteps) -> None:
        """Takes what a peer sent, at any time; it is looked at in turn."""
        self._inbox.append(steps)

    def open_inbox(self) -> None:
        arrived, self._inbox = self._inbox, []
        for steps in arrived:
            self.add(steps)

    def add(self, steps: RankSteps) -> None:
        roster = self.roster
        if (steps.run, steps.generation, steps.world_size) == (roster.run, roster.generation, roster.world_size):
            self._hosts[steps.rank] = steps.host
            self._shards[steps.rank] = steps
            self.window.add(steps.rank, steps.records)

    def advance(self) -> None:
        self.open_inbox()
        for batch in self.window.take():
            self.totals.add(batch, self._hosts, self._shard_of)

    def _shard_of(self, rank: int, slot: int) -> str:
        steps = self._shards[rank]
        return "" if steps is None else steps.shard_name(slot)

    def places(self) -> set[Place]:
        return set(enumerate(self._hosts))


class Aligner:
    """Polls while a run's rank 0 is served here. ``local`` reads the segments of this host; ``residents`` lists them.

    Its methods are called on one event loop, but for ``render``, which any thread may call.
    """

    def __init__(
        self,
        local: Callable[[StepsQuery], Answer],
        residents: Callable[[], Sequence[Resident]],
        directory: Path,
        faults: Faults,
        *,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._local = local
        self._residents = residents
        self._directory = directory
        self._faults = faults
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}
        self._totals: dict[str, Totals] = {}
        self._previous: dict[str, set[Place]] = {}
        self._rejected: set[Path] = set()
        self._failed = False
        # Steps that ended before were counted by the agent before this one, if at all.
        self._since_unix_ns = unix_ns()

    def render(self, families: Families) -> None:
        """Add the series of all runs."""
        with self._lock:
            for run, totals in self._totals.items():
                totals.render(run, families)

    async def run(self) -> None:
        """Until cancelled."""
        async with client() as http:
            try:
                while True:
                    await self.poll(http)
                    await asyncio.sleep(POLL_SECONDS)
            finally:
                await self._cancel(peer for job in self._jobs.values() for peer in job.peers)

    async def poll(self, http: httpx.AsyncClient) -> None:
        """One round: what is here, what peers that are due have, and what can be aligned of it."""
        try:
            dropped = await asyncio.to_thread(self._look)
            await self._cancel(dropped)
            self._ask(http)
            tasks = [peer.task for job in self._jobs.values() for peer in job.peers if peer.task is not None]
            if tasks:
                # A slow peer goes on by itself; what the others said is not kept waiting.
                await asyncio.wait(tasks, timeout=POLL_SECONDS)
            await asyncio.to_thread(self._advance)
        except Exception as error:  # noqa: BLE001 - metrics of single ranks are served all the same
            text = f"aligning failed ({error!r}): please report this (said once)"
            self._faults.report("peers", text, say=not self._failed)
            self._failed = True

    def _look(self) -> list[Peer]:
        """Find rosters that came and went, and read this host's own segments. Returns peers no longer needed."""
        residents = self._residents()
        served = {resident.reader.path for resident in residents}
        runs = {resident.key[0] for resident in residents}
        dropped: list[Peer] = []
        found: dict[str, Roster] = {}
        for path, segment in rosters(self._directory):
            if segment in served and (roster := self._read(path)):
                found[roster.run] = roster
        firsts = {run: self._first(run) for run, roster in found.items() if not self._knows(roster)}
        with self._lock:
            for run in [run for run in self._jobs if run not in found]:
                dropped += self._jobs.pop(run).peers
            self._totals = {run: totals for run, totals in self._totals.items() if run in runs}
            for run, roster in found.items():
                dropped += self._adopt(roster, firsts.get(run, 1))
        for job in self._jobs.values():
            job.open_inbox()
            dropped += self._read_local(job)
        return dropped

    def _read(self, path: Path) -> Roster | None:
        try:
            return Roster.read(path)
        except FileNotFoundError:
            return None
        except SegmentError as error:
            if path not in self._rejected:
                self._rejected.add(path)
                self._faults.report("peers", str(error))
            return None

    def _knows(self, roster: Roster) -> bool:
        job = self._jobs.get(roster.run)
        return job is not None and job.roster.generation == roster.generation

    def _adopt(self, roster: Roster, first: int) -> list[Peer]:
        """Go on by this roster; ``first`` is where a new generation is aligned from. Returns peers to be dropped."""
        run = roster.run
        job = self._jobs.get(run)
        if job is not None and job.roster.generation == roster.generation:
            if job.roster == roster:
                return []
            # The same ranks, of which some are now known at another address.
            old, job.roster, job.peers = job.peers, roster, peers_of(roster, self._faults)
            return old
        totals = self._totals.setdefault(run, Totals())
        self._jobs[run] = _Job(roster, totals, self._faults, first=first)
        if job is None:
            return []
        totals.keep_only(job.places() | self._previous.get(run, set()))
        self._previous[run] = job.places()
        return job.peers

    def _first(self, run: str) -> int:
        """The first step of rank 0 that ended since this agent runs; by the clock of one host, its own."""
        for steps in self._local(StepsQuery(run=run, ranks=frozenset({0}))).segments:
            recent = steps.records["end_unix_ns"] >= self._since_unix_ns
            if recent.any():
                return int(steps.records["step"][recent.argmax()])
            if len(recent):
                return int(steps.records["step"][-1]) + 1
        return 1

    def _read_local(self, job: _Job) -> list[Peer]:
        """Take this host's own steps. Returns peers that are not needed since all their ranks are here."""
        roster = job.roster
        after = {rank: job.window.told(rank) for rank in range(roster.world_size)}
        query = StepsQuery(run=roster.run, generation=roster.generation, after_rank=after, limit=job.window.capacity)
        local = self._local(query).segments
        for steps in local:
            job.add(steps)
        here = {steps.rank for steps in local}
        own = [peer for peer in job.peers if peer.ranks <= here]
        job.peers = [peer for peer in job.peers if peer not in own]
        return own

    def _ask(self, http: httpx.AsyncClient) -> None:
        for job in self._jobs.values():
            for peer in job.peers:
                room = {rank: (job.window.told(rank), job.window.room(rank)) for rank in peer.ranks}
                wanted = {rank: about for rank, about in room.items() if about[1]}
                if wanted and peer.is_due():
                    peer.task = asyncio.create_task(peer.ask(http, wanted, job.deliver))

    def _advance(self) -> None:
        with self._lock:
            for job in self._jobs.values():
                job.advance()

    @staticmethod
    async def _cancel(peers: Iterable[Peer]) -> None:
        tasks = [peer.task for peer in peers if peer.task is not None]
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task

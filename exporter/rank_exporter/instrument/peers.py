"""Tells the agents of a run where each other are, through the store that its process group was made with.

No collective and no blocking call: a key is read only once it is there, and all of it happens on a thread of its own
that ends when it is done. Each rank sets ``rank_exporter/<rank>`` to where its agent is; rank 0 collects them into a
file for its own agent, and answers each in ``rank_exporter/<rank>/generation``. A rank believes an answer only if it
names the rank's own announcement: a store that outlives a restart still holds those of the generation before.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from ..identity import Identity
from ..segment.roster import AgentAddress, Roster, roster_file

__all__ = ["PeerExchange"]

_PREFIX: Final = "rank_exporter"
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_DEADLINE_SECONDS: Final = 300.0
_AGENT_SECONDS: Final = 60.0
_SETTLING_SECONDS: Final = 15.0
"""For so long after all were found rank 0 looks again, lest some were announcements of a generation before."""
_GOODBYE_SECONDS: Final = 1.0
_EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - as an agent may have been told to listen


class _StopError(Exception):
    """Training ends, or there is nobody to exchange addresses with."""


class PeerExchange:
    """One exchange, for one segment. ``told(generation)`` is called once from another thread, with a number that all
    ranks of the process group share; ``fault(text)`` where the exchange is given up."""

    def __init__(
        self,
        identity: Identity,
        segment: Path,
        *,
        told: Callable[[int], None],
        fault: Callable[[str], None],
        deadline_seconds: float = _DEADLINE_SECONDS,
    ) -> None:
        self._identity = identity
        self._segment = segment
        self._told = told
        self._fault = fault
        self._deadline_seconds = deadline_seconds
        self._announcement = uuid.uuid4().hex
        self._generation = time.time_ns()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns at once."""
        self._thread = threading.Thread(target=self._run, name="rank-exporter-peers", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the exchange; waits for a call to the store that is under way, for a second at most."""
        self._stopped.set()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join(_GOODBYE_SECONDS)

    def _run(self) -> None:
        try:
            store = self._store()
            announced = json.dumps({"id": self._announcement, "target": self._target(store)})
            store.set(f"{_PREFIX}/{self._identity.rank}", announced)
            if self._identity.rank == 0:
                self._collect(store)
            else:
                self._await_generation(store)
        except _StopError:
            pass
        except Exception as error:  # noqa: BLE001 - a store out of reach must not disturb training
            if not self._stopped.is_set():
                self._fault(f"ranks could not exchange addresses ({error!r}): steps are not aligned")

    def _pause(self, seconds: float) -> float:
        """Waits, and returns the next pause."""
        if self._stopped.wait(seconds):
            raise _StopError
        return min(seconds * 1.5, _LONGEST_PAUSE)

    def _give_up(self, text: str) -> None:
        self._fault(f"{text}: steps are not aligned")
        raise _StopError

    def _store(self) -> Any:
        """The store of the default process group, once there is one."""
        deadline = time.monotonic() + self._deadline_seconds
        pause = _FIRST_PAUSE
        while True:
            # Not imported: torch is none of this thread's business until training has loaded it.
            distributed = sys.modules.get("torch.distributed")
            # The thread that trains may be in the midst of loading it.
            is_initialized = getattr(distributed, "is_initialized", None)
            if distributed is not None and is_initialized is not None and is_initialized():
                if distributed.get_world_size() != self._identity.world_size:
                    size = distributed.get_world_size()
                    self._give_up(f"the process group has {size} ranks, the run {self._identity.world_size}")
                return distributed.distributed_c10d._get_default_store()
            if time.monotonic() > deadline:
                self._give_up(f"no process group after {self._deadline_seconds:g} s")
            pause = self._pause(pause)

    def _target(self, store: Any) -> str:
        """ADDRESS:PORT of this directory's agent as other hosts reach it, "" if it has none."""
        deadline = time.monotonic() + min(_AGENT_SECONDS, self._deadline_seconds)
        pause = _FIRST_PAUSE
        while (agent := AgentAddress.read(self._segment.parent)) is None:
            if time.monotonic() > deadline:
                self._fault("this host has no agent to ask for steps: they are not aligned")
                return ""
            pause = self._pause(pause)
        address = agent.address
        if address in _EVERYWHERE:
            address = _own_address(store) or agent.name
        return f"[{address}]:{agent.port}" if ":" in address else f"{address}:{agent.port}"

    def _await_generation(self, store: Any) -> None:
        deadline = time.monotonic() + self._deadline_seconds
        key = f"{_PREFIX}/{self._identity.rank}/generation"
        pause = _FIRST_PAUSE
        while True:
            pause = self._pause(pause)
            if store.check([key]):
                found = json.loads(store.get(key))
                if found["id"] == self._announcement:
                    self._told(int(found["generation"]))
                    return
            if time.monotonic() > deadline:
                self._give_up(f"no answer from rank 0 after {self._deadline_seconds:g} s")

    def _collect(self, store: Any) -> None:
        self._told(self._generation)
        deadline = time.monotonic() + self._deadline_seconds
        found: dict[int, dict[str, str]] = {}
        size = self._identity.world_size
        pause = _FIRST_PAUSE
        while True:
            now = self._announced(store)
            news = [rank for rank, about in now.items() if found.get(rank) != about]
            found = now
            for rank in news:
                answer = json.dumps({"id": found[rank]["id"], "generation": self._generation})
                store.set(f"{_PREFIX}/{rank}/generation", answer)
            if news and len(found) == size:
                self._publish(found)
                deadline = min(deadline, time.monotonic() + _SETTLING_SECONDS)
            if time.monotonic() > deadline:
                break
            pause = self._pause(pause)
        if len(found) < size:
            self._fault(f"{size - len(found)} of {size} ranks have not told where their agent is: they are not aligned")
            self._publish(found)

    def _announced(self, store: Any) -> dict[int, dict[str, str]]:
        found = {}
        for rank in range(self._identity.world_size):
            key = f"{_PREFIX}/{rank}"
            if store.check([key]):
                found[rank] = json.loads(store.get(key))
            if self._stopped.is_set():
                raise _StopError
        return found

    def _publish(self, found: Mapping[int, Mapping[str, str]]) -> None:
        Roster(
            run=self._identity.run,
            generation=self._generation,
            world_size=self._identity.world_size,
            targets={rank: about["target"] for rank, about in found.items()},
        ).write(roster_file(self._segment))


def _own_address(store: Any) -> str | None:
    """The address from which this host reaches the one that keeps the store: other ranks reach it there. Nothing is
    sent. None where the store is no server's."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    try:
        family, kind, _, _, place = socket.getaddrinfo(store.host, store.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)
            return str(probe.getsockname()[0])
    except (AttributeError, OSError):
        return None

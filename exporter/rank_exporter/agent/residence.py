"""Which segments the agent serves: it finds them, follows whether their ranks live, and clears up after the dead."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..errors import SegmentError
from ..phases import Phase
from ..segment import discovery
from ..segment.layout import Word
from ..segment.reader import SegmentReader, Snapshot
from .faults import Faults
from .linger import Linger

__all__ = ["Residence", "Resident"]

NEVER_USED_SECONDS: Final = 30.0
"""How long an agent that leaves when idle waits for its first segment, at least."""

# As the writer names what it has not published yet; other drafts are not ours to remove.
_DRAFT: Final = re.compile(r"\d{5,}-\d+-[0-9a-f]+\.draft")
_DRAFT_SECONDS: Final = 60.0


@dataclass(slots=True, eq=False)
class Resident:
    """One segment that is known. ``snapshot`` is the last good one, None before there was any."""

    reader: SegmentReader
    live: bool = False
    ended_at: float | None = None
    stale: bool = False
    departed: bool = False
    contested: bool = False
    faulty: bool = False
    snapshot: Snapshot | None = None
    phase: Phase | None = None
    phase_since_ns: int = 0

    @property
    def key(self) -> tuple[str, int]:
        """Run and rank: what is unique among the segments that are served."""
        identity = self.reader.source.identity
        return identity.run, identity.rank

    @property
    def precedence(self) -> tuple[bool, int, str]:
        """Of two segments with the same key the greater is served: the live one, then the one started later."""
        return self.live, self.reader.source.started_unix_ns, self.reader.path.name

    def last_sign_unix_ns(self) -> int:
        """When the rank last showed that it lived: a shared mapping does not reliably touch the file's own time."""
        times = [self.reader.source.started_unix_ns]
        if self.snapshot is not None:
            times.append(self.snapshot.word(Word.LAST_STEP_UNIX_NS))
        with contextlib.suppress(OSError):
            times.append(self.reader.path.stat().st_mtime_ns)
        return max(times)


class Residence:
    """The segments of one directory. Not thread-safe: callers take turns.

    ``served`` holds what is on show after the last ``scan``, one segment per run and rank, in their order. ``former``
    are those of ranks that gave way to their own restart before all had seen their last values.
    ``clock``: monotonic seconds. ``unix_ns``: wall clock.
    """

    def __init__(
        self,
        directory: Path,
        linger: Linger,
        faults: Faults,
        *,
        clock: Callable[[], float] = time.monotonic,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.served: list[Resident] = []
        self.former: list[Resident] = []
        self._directory = directory
        self._linger = linger
        self._faults = faults
        self._clock = clock
        self._unix_ns = unix_ns
        self._residents: dict[Path, Resident] = {}
        self._rejected: set[Path] = set()
        self._used = False
        self._busy_at = clock()

    def scan(self) -> None:
        """Look at the directory and at every segment in it once."""
        now = self._clock()
        listed = discovery.segment_files(self._directory)
        self._rejected.intersection_update(listed)
        for path in listed:
            if path not in self._residents:
                self._admit(path)
        for resident in list(self._residents.values()):
            self._look_at(resident, now)
        self._settle(now)
        self._remove_drafts()

    def idle(self) -> bool:
        """Whether nobody has needed the agent for the linger, as of the last scan."""
        if self.served:
            return False
        patience = self._linger.seconds
        return self._clock() - self._busy_at >= (patience if self._used else max(patience, NEVER_USED_SECONDS))

    def close(self) -> None:
        """Remove the segments of dead ranks, and let go of the others."""
        for resident in self._residents.values():
            if not resident.live:
                _remove(resident.reader.path)
            resident.reader.close()
        self._residents.clear()
        self.served = []

    def _admit(self, path: Path) -> None:
        try:
            self._residents[path] = Resident(SegmentReader(path))
            self._used = True
        except (SegmentError, OSError) as error:
            self._reject(path, error)

    def _reject(self, path: Path, error: Exception) -> None:
        # It is tried again at every scan, since a full table of descriptors passes, but counted once.
        if path not in self._rejected and os.path.lexists(path):
            self._rejected.add(path)
            known = isinstance(error, SegmentError)
            self._faults.report(
                "segment", str(error) if known else f"segment {path} makes no sense ({error!r}): remove it"
            )

    def _look_at(self, resident: Resident, now: float) -> None:
        if resident.ended_at is not None:
            return
        reader = resident.reader
        # In this order: what is read after the lock was found free is the rank's last word.
        held = discovery.is_held(reader.path)
        try:
            snapshot = reader.snapshot()
            resident.phase, resident.phase_since_ns = reader.phase_in_progress()
        except Exception as error:  # noqa: BLE001 - whatever one file holds, the others are to be served
            del self._residents[reader.path]
            reader.close()
            self._reject(reader.path, error)
            return
        resident.snapshot = snapshot or resident.snapshot
        # A forked child may hold the lock of a rank that has said it is done.
        was_live, resident.live = resident.live, held and not (snapshot and snapshot.word(Word.ENDED))
        if resident.live:
            self._busy_at = now
        else:
            resident.ended_at = now
            silent_ns = self._unix_ns() - resident.last_sign_unix_ns()
            resident.stale = not was_live and silent_ns > self._linger.seconds * 1e9

    def _settle(self, now: float) -> None:
        first: dict[tuple[str, int], Resident] = {}
        for resident in self._residents.values():
            rival = first.get(resident.key)
            if rival is None or resident.precedence > rival.precedence:
                first[resident.key] = resident
        for resident in list(self._residents.values()):
            served = first[resident.key] is resident
            if resident.ended_at is not None:
                over = resident.stale or now - resident.ended_at >= self._linger.seconds
                resident.departed = resident.departed or over or not served
            elif not served and not resident.contested:
                resident.contested = True
                self._report_contest(resident, first[resident.key])
            if resident.departed and _remove(resident.reader.path):
                resident.reader.close()
                del self._residents[resident.reader.path]
                if not resident.stale:
                    self.former.append(resident)
        self.former = [
            one for one in self.former if one.ended_at is not None and now - one.ended_at < self._linger.seconds
        ]
        self.served = sorted((one for one in first.values() if not one.departed), key=lambda one: one.key)

    def _report_contest(self, loser: Resident, winner: Resident) -> None:
        run, rank = loser.key
        self._faults.report(
            "duplicate_rank",
            f"two live processes call themselves rank {rank} of run {run} (pid {loser.reader.source.pid} and "
            f"{winner.reader.source.pid}): the later one is served, give each job a run of its own",
        )

    def _remove_drafts(self) -> None:
        try:
            drafts = [entry for entry in self._directory.iterdir() if _DRAFT.fullmatch(entry.name)]
        except OSError:
            return
        for draft in drafts:
            try:
                silent_ns = self._unix_ns() - draft.stat().st_mtime_ns
            except OSError:
                continue
            # A young one is left alone: even to look at its lock could get in the way of its rank taking it.
            if silent_ns > _DRAFT_SECONDS * 1e9:
                _remove(draft)


def _remove(path: Path) -> bool:
    """Remove a file whose lock nobody holds. False if it is still there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True

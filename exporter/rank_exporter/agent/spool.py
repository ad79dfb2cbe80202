"""Keeps the raw step records of this host's ranks in Parquet files, so that they outlive the job."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from ..errors import RankExporterError, SegmentError
from ..segment.records import RankSteps
from ..segment.steplog import STEP_LOG_SUFFIX, StepLog
from .faults import Faults
from .residence import Resident
from .steps import of_resident

__all__ = ["Spool", "open_spool"]

_ROWS: Final = 1 << 15
_SECONDS: Final = 30.0


class Spool:
    """Gathers steps at every ``gather`` and writes them when there are many, or at ``flush``. Not thread-safe.

    Files of this host beyond ``most_bytes`` are removed, the oldest first. A fault is counted each time and said once.
    Raises SettingError where pyarrow is missing, OSError where the directory cannot be made.
    """

    def __init__(
        self,
        directory: Path,
        host: str,
        faults: Faults,
        *,
        most_bytes: int,
        clock: Callable[[], float] = time.monotonic,
        unix_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._log = StepLog()
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._prefix = f"steps-{re.sub(r'[^A-Za-z0-9_.-]', '_', host)}-"
        self._faults = faults
        self._most_bytes = most_bytes
        self._clock = clock
        self._unix_ns = unix_ns
        self._taken: dict[Path, int] = {}
        self._waiting: list[RankSteps] = []
        self._rows = 0
        self._since = clock()
        self._failed = False

    def gather(self, residents: Iterable[Resident]) -> None:
        """Take what is new in the segments."""
        present = set()
        for resident in residents:
            path = resident.reader.path
            present.add(path)
            # What is wrong with a segment is found and reported by the scan.
            with contextlib.suppress(SegmentError):
                steps = of_resident(resident, self._taken.get(path, 0))
                if len(steps.records):
                    self._taken[path] = int(steps.records["step"][-1])
                    self._waiting.append(steps)
                    self._rows += len(steps.records)
        self._taken = {path: step for path, step in self._taken.items() if path in present}

    def is_due(self) -> bool:
        """Whether it is time to write."""
        return self._rows >= _ROWS or (self._rows > 0 and self._clock() - self._since >= _SECONDS)

    def flush(self) -> None:
        """Write what was gathered, and remove what is too much. What cannot be written is lost."""
        waiting, self._waiting, self._rows = self._waiting, [], 0
        self._since = self._clock()
        if not waiting:
            return
        try:
            self._log.write(self._directory / f"{self._prefix}{self._unix_ns():020d}{STEP_LOG_SUFFIX}", waiting)
            self._trim()
        except Exception as error:  # noqa: BLE001 - a full disk must not stop the agent
            text = f"step records could not be written to {self._directory} ({error}): they are lost (said once)"
            self._faults.report("step_log", text, say=not self._failed)
            self._failed = True

    def _trim(self) -> None:
        files = sorted(self._directory.glob(f"{self._prefix}*{STEP_LOG_SUFFIX}"))
        total = 0
        for path in reversed(files):
            total += path.stat().st_size
            if total > self._most_bytes and path != files[-1]:
                path.unlink(missing_ok=True)


def open_spool(directory: Path | None, host: str, faults: Faults, *, most_bytes: int) -> Spool | None:
    """A spool into the directory; None where none is given, or, reported, where it cannot be had."""
    if directory is None:
        return None
    try:
        return Spool(directory, host, faults, most_bytes=most_bytes)
    except (RankExporterError, OSError) as error:
        faults.report("step_log", f"step records are not kept in {directory}: {error}")
        return None

"""Writes the identifiers of the samples that a rank takes to files, from a thread that training does not wait for."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from ..identity import Identity
from ..segment.samplelog import batch_line, end_line, file_name, first_line

__all__ = ["SampleFiles"]

_SECONDS: Final = 0.5
_MOST_WAITING: Final = 1 << 20
"""Samples that wait to be written, at most: what comes beyond is lost, and known to be."""
_STOP_SECONDS: Final = 5.0


class SampleFiles:
    """The files of one process, one an epoch, in ``directory`` (see segment.samplelog).

    ``step`` tells the step in progress. ``fault(reason, error)`` is called, also from the thread, where something
    cannot be written; what comes later is written all the same. All methods are for one thread.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity,
        started_unix_ns: int,
        *,
        step: Callable[[], int],
        fault: Callable[[str, object], None],
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._started_unix_ns = started_unix_ns
        self._step = step
        self._fault = fault
        # Appended to by training, taken from by the thread: neither waits for the other.
        self._queue: deque[tuple[Any, ...]] = deque()
        self._put = 0
        self._written = 0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._descriptor: int | None = None
        self._size = 0

    def begin(self, epoch: int) -> None:
        """An epoch begins: a new file."""
        self._queue.append(("begin", epoch))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rank-exporter-samples", daemon=True)
            self._thread.start()

    def put(self, ids: Sequence[Any] | None, samples: int, padded: int) -> None:
        """A batch was taken."""
        if self._put - self._written > _MOST_WAITING:
            self._fault("samples", "identifiers come faster than they can be written: some are left out of the files")
            return
        self._put += samples
        self._queue.append(("batch", self._step(), ids, samples, padded))

    def end(self, *, samples: int, padded: int, complete: bool) -> None:
        """The epoch is over: the file is finished."""
        self._queue.append(("end", samples, padded, complete))

    def close(self) -> None:
        """Write what waits, for as long as a disk may take that answers at all."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped.wait(_SECONDS):
            self._drain()
        self._drain()
        self._finish()

    def _drain(self) -> None:
        lines: list[bytes] = []
        while self._queue:
            self._attempt(self._handle, lines, *self._queue.popleft())
        self._attempt(self._write, lines)

    def _attempt(self, what: Callable[..., None], *arguments: Any) -> None:
        try:
            what(*arguments)
        except Exception as error:  # noqa: BLE001 - a full disk must not stop training
            self._fault("samples", f"identifiers cannot be written to {self._directory}, some are lost: {error}")

    def _handle(self, lines: list[bytes], kind: str, *about: Any) -> None:
        if kind == "batch":
            self._written += about[2]
            lines.append(batch_line(*about))
        elif kind == "begin":
            self._attempt(self._write, lines)
            self._begin(*about)
        else:
            lines.append(end_line(samples=about[0], padded=about[1], complete=about[2]))
            self._write(lines)

    def _begin(self, epoch: int) -> None:
        self._finish()
        self._directory.mkdir(parents=True, exist_ok=True)
        path = self._directory / file_name(self._identity, epoch, self._started_unix_ns)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._size = 0
        try:
            self._write([first_line(self._identity, epoch, self._started_unix_ns)])
        except OSError:
            self._finish()
            path.unlink(missing_ok=True)
            raise

    def _write(self, lines: list[bytes]) -> None:
        """Write whole lines, or none of them: what was begun when the disk was full is taken back."""
        data = b"".join(lines)
        lines.clear()
        if not data or self._descriptor is None:
            return
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._descriptor, view) :]
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._size)
                os.lseek(self._descriptor, self._size, os.SEEK_SET)
            raise
        self._size += len(data)

    def _finish(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

"""The demo's processes: each is started here, watched here, and ended here by its own id."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from .failure import DemoError

__all__ = ["Child", "Processes"]

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_SECONDS = 10.0
_STRAY_PATIENCE_SECONDS = 3.0
_POLL_SECONDS = 0.02
_TAIL_LINES = 30


class Child:
    """A process and the file that takes its output."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log

    def tail(self) -> str:
        """The last lines that it wrote, indented."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return ""
        return "".join(f"\n  {line}" for line in lines[-_TAIL_LINES:])


class Processes:
    """A context: on leaving it every process started in it is gone, with all that those started in turn.

    Orphans are handed to this process by the kernel (PR_SET_CHILD_SUBREAPER), so that even the agent, which detaches
    itself from the rank that started it, and what a rank that was killed had started are found and ended.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._children: list[Child] = []
        self._not_ours: frozenset[int] = frozenset()

    def __enter__(self) -> Processes:
        self._not_ours = frozenset(_children_of(os.getpid()))
        _adopt_orphans(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_children()
        self._end_strays()
        _adopt_orphans(False)

    def start(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> Child:
        """Start a process in a session of its own, where a Ctrl-C at the terminal does not reach it."""
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - commands are put together by the demo
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=environ,
                start_new_session=True,
            )
        child = Child(name, process, log)
        self._children.append(child)
        return child

    def check(self) -> None:
        """Raises DemoError, with the last lines of its output, if one of them has ended by itself."""
        for child in self._children:
            code = child.process.poll()
            if code is not None:
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
                raise DemoError(f"{child.name} ended early, with {how}; its last lines were:{child.tail()}")

    def last_words(self) -> str:
        """What the process that was started last wrote last."""
        return f"The last lines of {self._children[-1].name} were:{self._children[-1].tail()}"

    def _end_children(self) -> None:
        """SIGTERM to all at once, patience, SIGKILL. Returns once they are gone."""
        for child in self._children:
            if child.process.poll() is None:
                child.process.terminate()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for child in self._children:
            try:
                child.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.process.kill()
                child.process.wait()

    def _strays(self) -> set[int]:
        own = {child.process.pid for child in self._children}
        return set(_children_of(os.getpid())) - own - self._not_ours

    def _end_strays(self) -> None:
        deadline = time.monotonic() + _STRAY_PATIENCE_SECONDS
        told: set[int] = set()
        while strays := self._strays():
            for pid in strays:
                # Never reaped by anyone else, so the id cannot have passed to another process.
                if os.waitpid(pid, os.WNOHANG)[0]:
                    continue
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                elif pid not in told:
                    os.kill(pid, signal.SIGTERM)
                    told.add(pid)
            time.sleep(_POLL_SECONDS)


def _adopt_orphans(adopt: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(adopt), 0, 0, 0):
        raise DemoError(f"orphans cannot be adopted: {os.strerror(ctypes.get_errno())}; the demo needs Linux 3.4")


def _children_of(parent: int) -> list[int]:
    """Ids of the direct children of a process, zombies included."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        # PID (NAME) STATE PARENT …, where the name may hold spaces and brackets.
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(entry.name))
    return found

"""Keeps one agent running for the host's segments, from a thread that sleeps in the kernel until it is needed.

The thread waits for the lock that the agent holds while it lives. It takes no CPU and no interpreter lock until
the agent dies; then one rank of the host starts another.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from ..config import AgentSettings
from ..segment.discovery import agent_lock, is_held, spawn_lock

__all__ = ["AgentKeeper"]

_LOG_BYTES: Final = 1 << 20
_SOON_SECONDS: Final = 10.0
_LONGEST_PAUSE_SECONDS: Final = 60.0


class AgentKeeper:
    """Starts the agent and restarts it when it dies. ``fault(error)`` is called where it cannot be started."""

    def __init__(self, settings: AgentSettings, fault: Callable[[str], None]) -> None:
        self._settings = settings
        self._fault = fault
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns at once; the agent comes up in the background."""
        with self._lock:
            self._stopped.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="rank-exporter-keeper", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """Start no further agent. The one that runs leaves by itself once its segments have ended."""
        self._stopped.set()

    def _is_over(self) -> bool:
        with self._lock:
            if self._stopped.is_set():
                self._thread = None
                return True
        return False

    def _keep(self) -> None:
        pause = 0.0
        while True:
            self._stopped.wait(pause)
            if self._is_over():
                return
            began = time.monotonic()
            try:
                with spawn_lock(self._settings.directory):
                    problem = None if is_held(agent_lock(self._settings.directory)) else self._spawn()
                if problem is None:
                    self._wait_for_death()
            except OSError as error:
                problem = f"the segment directory is out of reach ({error})"
            if problem is not None and not self._stopped.is_set():
                self._fault(f"metrics are not served for now: {problem}")
            lived = time.monotonic() - began > _SOON_SECONDS
            pause = 0.0 if lived else min(max(0.5, pause * 2), _LONGEST_PAUSE_SECONDS)

    def _wait_for_death(self) -> None:
        descriptor = os.open(agent_lock(self._settings.directory), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def _spawn(self) -> str | None:
        """Start an agent and wait until it serves. Returns what went wrong, or None."""
        journal = self._settings.directory / "agent.log"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        if journal.exists() and journal.stat().st_size > _LOG_BYTES:
            flags |= os.O_TRUNC
        errors = os.open(journal, flags, 0o600)
        try:
            launcher = subprocess.Popen(  # noqa: S603 - our own module, with our own settings
                self._command(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                # Away from the directory of the training script, whose modules could shadow the agent's.
                cwd="/",
                env=_environment(),
                start_new_session=True,
            )
        finally:
            os.close(errors)
        assert launcher.stdout is not None  # noqa: S101 - stdout=PIPE
        with launcher.stdout as answer:
            served = answer.readline()
        launcher.wait()
        if served or is_held(agent_lock(self._settings.directory)):
            return None
        return f"the agent did not start, see {journal}"

    def _command(self) -> list[str]:
        settings = self._settings
        command = [
            *(sys.executable, "-m", "rank_exporter.agent", "--until-idle", "--detach"),
            *("--dir", str(settings.directory.absolute()), "--host", settings.host, "--port", str(settings.port)),
            *("--listen-address", settings.listen_address),
        ]
        if settings.linger_seconds is not None:
            command += ["--linger-seconds", f"{settings.linger_seconds:g}"]
        if settings.file_sd_dir is not None:
            command += ["--file-sd-dir", str(settings.file_sd_dir.absolute())]
        if settings.web_config_file is not None:
            command += ["--web-config-file", str(settings.web_config_file.absolute())]
        if settings.step_log_dir is not None:
            command += ["--step-log-dir", str(settings.step_log_dir.absolute())]
            command += ["--step-log-bytes", str(settings.step_log_bytes)]
        return command


def _environment() -> dict[str, str]:
    """The rank's environment, in which the agent finds this very package whatever its working directory."""
    package = str(Path(__file__).resolve().parents[2])
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    absolute = [str(Path(path).absolute()) for path in paths]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*absolute, package])}

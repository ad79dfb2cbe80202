"""What NVIDIA's management library says about the GPUs of the host.

A call into a driver in trouble may fail or never return, so that all of them are made on a thread of their own,
which nobody waits for. They are made in the agent alone: no training process loads the library.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

__all__ = ["Device", "Devices", "load"]

_log: Final = logging.getLogger("rank_exporter")

ROUND_SECONDS: Final = 1.0
"""The longest period over which NVML averages utilisation."""
OVERDUE_SECONDS: Final = 10.0
_LEAVE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU. What it does not tell is None.

    index: as nvidia-smi numbers it. pids: the processes that compute on it, by the numbers of the host's PID
    namespace. utilization: 0 to 1, the share of the last sample period, 1/6 s to 1 s, in which a kernel ran.
    active_seconds: utilization added up over the time for which it was sampled.
    """

    index: str
    uuid: str
    pids: frozenset[int]
    utilization: float | None
    active_seconds: float | None
    memory_used_bytes: int | None


def load() -> Any:
    """The module pynvml, of nvidia-ml-py. Raises ImportError."""
    import pynvml  # type: ignore[import-untyped]  # noqa: PLC0415 - not needed, and not loaded, in training processes

    return pynvml


class _Probe:
    """Asks NVML, one round at a time. Belongs to the thread that makes it."""

    def __init__(self, nvml: Any, clock: Callable[[], float]) -> None:
        self._nvml = nvml
        self._clock = clock
        # By the GPU, by a driver older than the module, or to this user.
        self._left_out = {
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            nvml.NVML_ERROR_NO_PERMISSION,
        }
        self._handles: dict[int, tuple[Any, str]] = {}
        self._active: dict[str, float] = {}
        self._sampled_at: dict[str, float] = {}

    def round(self) -> tuple[list[Device], list[str]]:
        """The GPUs that answer, and what went wrong with the others. Raises nvml.NVMLError if nothing answers."""
        devices, problems = [], []
        for index in range(self._nvml.nvmlDeviceGetCount()):
            try:
                devices.append(self._device(index))
            except self._nvml.NVMLError as error:
                self._handles.pop(index, None)
                problems.append(f"GPU {index} does not answer ({error})")
        return devices, problems

    def _device(self, index: int) -> Device:
        if index not in self._handles:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            self._handles[index] = handle, str(self._nvml.nvmlDeviceGetUUID(handle))
        handle, uuid = self._handles[index]
        rates = self._supported(self._nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._supported(self._nvml.nvmlDeviceGetMemoryInfo, handle)
        processes = self._supported(self._nvml.nvmlDeviceGetComputeRunningProcesses, handle)
        utilization = None if rates is None else rates.gpu / 100
        return Device(
            index=str(index),
            uuid=uuid,
            pids=frozenset(process.pid for process in processes or ()),
            utilization=utilization,
            active_seconds=None if utilization is None else self._add_up(uuid, utilization),
            memory_used_bytes=None if memory is None else memory.used,
        )

    def _supported(self, function: Callable[[Any], Any], handle: Any) -> Any:
        try:
            return function(handle)
        except self._nvml.NVMLError as error:
            if error.value in self._left_out:
                return None
            raise

    def _add_up(self, uuid: str, utilization: float) -> float:
        now = self._clock()
        # A gap longer than the period that NVML averages over says nothing about the rest of it.
        seconds = min(now - self._sampled_at.get(uuid, now), 2 * ROUND_SECONDS)
        self._sampled_at[uuid] = now
        self._active[uuid] = self._active.get(uuid, 0.0) + utilization * seconds
        return self._active[uuid]


@dataclass(frozen=True, slots=True)
class _Round:
    ended_at: float
    devices: list[Device]
    problems: list[str]


class Devices:
    """The GPUs of the last round. Nothing here waits for NVML; the first ``latest`` starts the thread.

    loader: returns the module pynvml, or raises ImportError. clock: monotonic seconds.
    """

    def __init__(self, *, loader: Callable[[], Any] = load, clock: Callable[[], float] = time.monotonic) -> None:
        self._loader = loader
        self._clock = clock
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._round = _Round(0.0, [], [])
        self._taken = self._round

    def latest(self) -> tuple[list[Device], list[str]]:
        """The GPUs that answered, and what went wrong since the last call, each in a line. None without NVML."""
        if self._thread is None:
            self._round = self._taken = _Round(self._clock(), [], [])
            self._thread = threading.Thread(target=self._run, name="rank-exporter-nvml", daemon=True)
            self._thread.start()
        latest = self._round
        if self._clock() - latest.ended_at > OVERDUE_SECONDS and not self._stopping.is_set():
            latest = self._round = _Round(self._clock(), [], [f"NVML has not returned for {OVERDUE_SECONDS:g} s"])
        new, self._taken = latest is not self._taken, latest
        return latest.devices, latest.problems if new else []

    def close(self) -> None:
        """Let go of NVML, unless it does not return."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout=_LEAVE_SECONDS)

    def _run(self) -> None:
        try:
            nvml = self._loader()
            nvml.nvmlInit()
        except Exception as error:  # noqa: BLE001 - no library, no driver, no permission: hosts without NVIDIA GPUs
            _log.debug("no series of GPUs: %s", error)
            self._stopping.set()
            return
        probe = _Probe(nvml, self._clock)
        while not self._stopping.is_set():
            try:
                devices, problems = probe.round()
            except Exception as error:  # noqa: BLE001 - the next round may do better
                devices, problems = [], [f"NVML failed ({error!r})"]
            self._round = _Round(self._clock(), devices, problems)
            self._stopping.wait(ROUND_SECONDS)
        with contextlib.suppress(Exception):
            nvml.nvmlShutdown()

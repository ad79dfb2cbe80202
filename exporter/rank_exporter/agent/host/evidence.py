"""What the host has to say beside the ranks' own records: processes, CPUs, storage and GPUs.

Each source is sampled apart: one that fails costs its own series. Nothing is sampled while a scrape waits.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ... import catalog
from ...catalog import Metric
from ...segment.reader import Source
from ..families import Families
from ..faults import Faults, warn
from ..residence import Resident
from .cpu import HostCpu
from .nvml import Device, Devices
from .pressure import CpuPressure
from .processes import Processes, Usage
from .storage import Reads, block_reads, nfs_reads

__all__ = ["HostEvidence", "Witness"]

# The kernel's fixed number for the first one (PROC_PID_INIT_INO).
_HOST_PID_NAMESPACE: Final = "pid:[4026531836]"

_Series = tuple[Metric, tuple[str, ...], float]


@dataclass(frozen=True, slots=True)
class Witness:
    """A rank that is served. device_uuid: of the GPU it says it trains on, without "GPU-"; "" where it does not say."""

    source: Source
    live: bool
    device_uuid: str = ""

    @classmethod
    def of(cls, resident: Resident) -> Witness:
        """The rank behind a segment."""
        facts = resident.snapshot.facts if resident.snapshot else {}
        return cls(resident.reader.source, resident.live, facts.get("device_uuid", ""))

    @property
    def labels(self) -> tuple[str, str, str]:
        """Values of catalog.PER_RANK."""
        identity = self.source.identity
        return identity.run, str(identity.rank), identity.host


class HostEvidence:
    """Samples the host. One thread samples; another may ask for the latest series meanwhile.

    host: value of the label. root: where the host's proc and sys are mounted. clock: monotonic seconds.
    """

    def __init__(
        self,
        host: str,
        faults: Faults,
        *,
        root: Path = Path("/"),
        devices: Devices | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._host = host
        self._faults = faults
        self._clock = clock
        self._proc, self._sys = root / "proc", root / "sys"
        self._cpu = HostCpu(self._proc)
        self._pressure = CpuPressure(self._proc)
        self._processes = Processes(self._proc, self._sys / "fs/cgroup", say=warn)
        self._devices = devices or Devices()
        self._usage: dict[Source, Usage] = {}
        self._said: set[str] = set()
        self._series: tuple[_Series, ...] = ()

    def sample(self, ranks: Sequence[Witness]) -> None:
        """Look at the host and at the processes of the ranks that are served. Raises nothing."""
        now = self._clock()
        sources: tuple[tuple[str, Callable[[], Iterable[_Series]]], ...] = (
            ("processes", lambda: self._process_series(ranks)),
            ("host CPUs", lambda: self._ratio(catalog.HOST_CPU_UTILIZATION, self._cpu.utilization(now))),
            ("CPU pressure", lambda: self._ratio(catalog.HOST_CPU_PRESSURE, self._pressure.ratio(now))),
            ("disks", lambda: self._storage_series(block_reads(self._proc, self._sys))),
            ("NFS mounts", lambda: self._storage_series(nfs_reads(self._proc))),
            ("GPUs", lambda: self._device_series(ranks)),
        )
        series: list[_Series] = []
        for name, read in sources:
            try:
                series += list(read())
            except Exception as error:  # noqa: BLE001 - the other sources, and the ranks, are served all the same
                self._report(name, repr(error))
        self._series = tuple(series)

    def add_to(self, families: Families) -> None:
        """Add the series of the last sample."""
        for metric, labels, value in self._series:
            families.add(metric, labels, value)

    def close(self) -> None:
        """Let go of what is held open."""
        self._devices.close()

    def _report(self, name: str, problem: str) -> None:
        text = f"{name} cannot be sampled: {problem} (counted as 'host', said once)"
        self._faults.report("host", text, say=name not in self._said)
        self._said.add(name)

    def _process_series(self, ranks: Sequence[Witness]) -> Iterable[_Series]:
        live = self._processes.sample([rank.source for rank in ranks if rank.live])
        # Of a rank that has ended, the last counters stay until they were surely scraped.
        self._usage = {rank.source: self._usage[rank.source] for rank in ranks if rank.source in self._usage} | live
        for rank in ranks:
            usage = self._usage.get(rank.source)
            if usage is not None:
                main, workers = (*rank.labels, "rank"), (*rank.labels, "workers")
                yield catalog.PROCESS_CPU_SECONDS, main, usage.cpu_seconds
                yield catalog.PROCESS_CPU_SECONDS, workers, usage.workers_cpu_seconds
                if rank.source in live:
                    yield catalog.PROCESS_CPUS_ALLOWED, main, usage.cpus_allowed
                    if usage.workers_cpus_allowed is not None:
                        yield catalog.PROCESS_CPUS_ALLOWED, workers, usage.workers_cpus_allowed

    def _ratio(self, metric: Metric, value: float | None) -> Iterable[_Series]:
        return () if value is None else ((metric, (self._host,), value),)

    def _storage_series(self, reads: dict[str, Reads]) -> Iterable[_Series]:
        for device, read in reads.items():
            yield catalog.STORAGE_READS, (self._host, device), read.count
            yield catalog.STORAGE_READ_SECONDS, (self._host, device), read.seconds

    def _device_series(self, ranks: Sequence[Witness]) -> Iterable[_Series]:
        devices, problems = self._devices.latest()
        for problem in problems:
            self._report(f"GPUs ({problem.split(' (')[0]})", problem)
        for device in devices:
            labels = (*self._user(device, ranks), device.index)
            values = (
                (catalog.DEVICE_UTILIZATION, device.utilization),
                (catalog.DEVICE_ACTIVE_SECONDS, device.active_seconds),
                (catalog.DEVICE_MEMORY_USED, device.memory_used_bytes),
            )
            yield from ((metric, labels, value) for metric, value in values if value is not None)

    def _in_host_pid_namespace(self) -> bool:
        try:
            return os.readlink(self._proc / "self/ns/pid") == _HOST_PID_NAMESPACE  # noqa: PTH115 - no path
        except OSError:
            return False

    def _user(self, device: Device, ranks: Sequence[Witness]) -> tuple[str, str, str]:
        """Labels of the one rank that computes on a GPU; of none where nobody or several do, or it cannot be told."""
        # NVML numbers processes as the host does, so that within a container a number would be another process's.
        trusted = self._in_host_pid_namespace()
        users = [
            rank.labels
            for rank in ranks
            if rank.live
            and (
                (trusted and rank.source in self._usage and rank.source.pid in device.pids)
                or rank.device_uuid == device.uuid.removeprefix("GPU-")
            )
        ]
        return users[0] if len(users) == 1 else ("", "", self._host)

"""What an agent finds on a simulated host itself: quiet machines whose GPUs run whatever the ranks compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rank_exporter import __version__, catalog

from .table import Labels, Table

__all__ = ["evidence", "host_evidence"]

_Floats = npt.NDArray[np.float64]
_MEMORY_BYTES = 60e9
_DEVICES_A_HOST = 8


def evidence(
    ranks: Sequence[Labels],
    host: npt.NDArray[np.intp],
    active: _Floats,
    times: _Floats,
    shown: npt.NDArray[np.bool_],
) -> Iterator[Table]:
    """Tables of ranks. ``active`` (R, K + 1): seconds of kernels by the scrape before and each of K; ``times`` too."""
    device = [(*labels, ("device", str(place % _DEVICES_A_HOST))) for place, labels in enumerate(ranks)]
    busy = np.diff(active, axis=1) / np.diff(times, axis=1)
    active, times = active[:, 1:], times[:, 1:]
    for metric, values in (
        (catalog.DEVICE_ACTIVE_SECONDS, active),
        (catalog.DEVICE_UTILIZATION, np.clip(busy, 0.0, 1.0)),
        (catalog.DEVICE_MEMORY_USED, np.full(times.shape, _MEMORY_BYTES)),
    ):
        yield Table(name=metric.name, labels=device, host=host, values=values, present=shown)
    for process, cpus, busy_cpus in (("rank", 12.0, 1.1), ("workers", 12.0, 2.5)):
        labels = [(*own, ("process", process)) for own in ranks]
        used = np.maximum(times, 0.0) * busy_cpus
        yield Table(name=catalog.PROCESS_CPU_SECONDS.name, labels=labels, host=host, values=used, present=shown)
        allowed = np.full(times.shape, cpus)
        yield Table(name=catalog.PROCESS_CPUS_ALLOWED.name, labels=labels, host=host, values=allowed, present=shown)


def host_evidence(
    host: npt.NDArray[np.intp],
    targets: Sequence[Labels],
    hosts: Sequence[str],
    times: _Floats,
    shown: npt.NDArray[np.bool_],
    own: npt.NDArray[np.bool_],
) -> Iterator[Table]:
    """Tables of hosts that show any rank, but for those that are not ``own`` (H,)."""
    first = np.array([int((host == place).argmax()) for place in range(len(hosts))])
    there = np.array([shown[host == place].any(axis=0) for place in range(len(hosts))])
    live = np.array([shown[host == place].sum(axis=0) for place in range(len(hosts))]).astype(float)
    seconds = times[first]
    labelled = [(*target, ("host", name)) for target, name in zip(targets, hosts, strict=True)]
    ones = np.ones(there.shape)
    for name, extra, values in (
        (catalog.HOST_CPU_UTILIZATION.name, (), 0.3 * ones),
        (catalog.HOST_CPU_PRESSURE.name, (), 0.01 * ones),
        (catalog.STORAGE_READ_SECONDS.name, (("device", "nvme0n1"),), np.maximum(seconds, 0) * 0.05),
        (catalog.STORAGE_READS.name, (("device", "nvme0n1"),), np.maximum(seconds, 0) * 120),
        (catalog.SEGMENTS.name, (("state", "live"),), live),
        (catalog.SEGMENTS.name, (("state", "ended"),), 0 * ones),
        (catalog.AGENT_SCRAPE_SECONDS.name, (), np.maximum(seconds, 0) * 2e-4),
        (catalog.BUILD_INFO.name, (("version", __version__),), ones),
    ):
        labels = [(*one, *extra) for one in labelled]
        yield Table(name=name, labels=labels, host=np.arange(len(hosts)), values=values, present=there & own[:, None])

"""The CPU limit that control groups, such as a container's, put on a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from .procfs import read

__all__ = ["cpu_limit"]


def cpu_limit(membership: str, cgroups: Path) -> float | None:
    """CPUs that the process may keep busy by the tightest limit on its groups; None where no limit is in sight.

    membership: what /proc/<pid>/cgroup holds. cgroups: where control groups of either version are mounted. Groups
    outside the agent's own namespace are out of sight. Raises OSError, ValueError.
    """
    limits: list[float] = []
    for line in membership.splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0":
            limits += (limit for group in _upwards(cgroups, path) for limit in _limit_v2(group))
        elif "cpu" in controllers.split(","):
            limits += (limit for group in _upwards(cgroups / controllers, path) for limit in _limit_v1(group))
    return min(limits, default=None)


def _upwards(mount: Path, path: str) -> Iterator[Path]:
    """The group and those around it. In a container whose mount begins at its own group, only the mount is there."""
    relative = PurePosixPath(path.lstrip("/"))
    if ".." not in relative.parts:
        yield mount / relative
        yield from (mount / parent for parent in relative.parents)


def _limit_v2(group: Path) -> Iterator[float]:
    quota, _, period = (read(group / "cpu.max") or "max").partition(" ")
    if quota.strip() != "max":
        yield int(quota) / int(period)


def _limit_v1(group: Path) -> Iterator[float]:
    quota = read(group / "cpu.cfs_quota_us")
    if quota is not None and int(quota) > 0:
        yield int(quota) / int(read(group / "cpu.cfs_period_us") or 100_000)

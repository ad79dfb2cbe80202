"""What the host has read from its disks and NFS servers, and how long that took."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .procfs import read

__all__ = ["MOST_DEVICES", "Reads", "block_reads", "nfs_reads"]

MOST_DEVICES: Final = 32
"""Disks shown at most, and exports shown at most, so that a host of many makes a bounded number of series."""

_NEVER: Final = re.compile(r"(loop|ram|zram|fd|sr)\d+$")
# Where /sys tells nothing: names of what is made of other devices, and of partitions.
_STACKED: Final = re.compile(r"(dm-|md)\d")
_PARTITION: Final = re.compile(r"((nvme\d+n\d+|mmcblk\d+|nbd\d+)p\d+|(sd|vd|xvd|hd)[a-z]+\d+)$")

_MOUNT: Final = re.compile(r"device (.*) mounted on .* with fstype nfs4?( |$)")
_TOTAL_MS: Final = 7


@dataclass(frozen=True, slots=True)
class Reads:
    """Reads completed, and the time from each one's issue to its end, added up."""

    count: int
    seconds: float


def block_reads(proc: Path, sys: Path) -> dict[str, Reads]:
    """By name, the disks that have read anything, in the kernel's order.

    Whole disks only. Not those made of others (device mapper, RAID), whose reads count where they are carried out,
    nor loop, RAM, floppy and optical devices. Raises OSError, ValueError.
    """
    found: dict[str, Reads] = {}
    blocks = sys / "block"
    by_name = not blocks.is_dir()
    for line in (read(proc / "diskstats") or "").splitlines():
        _, _, name, count, _, _, ms, *_ = line.split()
        if count == "0" or _NEVER.match(name):
            continue
        whole = not (_STACKED.match(name) or _PARTITION.match(name)) if by_name else _is_whole(blocks, name)
        if whole:
            found[name] = Reads(int(count), int(ms) / 1e3)
            if len(found) == MOST_DEVICES:
                break
    return found


def _is_whole(blocks: Path, name: str) -> bool:
    device = blocks / name.replace("/", "!")
    try:
        return next((device / "slaves").iterdir(), None) is None
    except FileNotFoundError:
        return device.is_dir()


def nfs_reads(proc: Path) -> dict[str, Reads]:
    """By export, ``server:/path``, what the mounts that the agent sees have read, in the kernel's order.

    Several mounts of an export are added up, save those that share their statistics: bind mounts and the like.
    Raises OSError, ValueError.
    """
    seen: dict[str, set[tuple[int, ...]]] = {}
    export: str | None = None
    for line in (read(proc / "self" / "mountstats") or "").splitlines():
        if line.startswith("device "):
            mount = _MOUNT.match(line)
            export = mount[1] if mount else None
        elif export is not None and line.lstrip().startswith("READ:"):
            numbers = tuple(int(number) for number in line.split()[1:])
            if len(numbers) <= _TOTAL_MS:
                raise ValueError(f"mountstats of {export} has a READ line of {len(numbers)} numbers")
            if export in seen or len(seen) < MOST_DEVICES:
                seen.setdefault(export, set()).add(numbers)
    return {
        export: Reads(sum(mount[0] for mount in mounts), sum(mount[_TOTAL_MS] for mount in mounts) / 1e3)
        for export, mounts in seen.items()
    }

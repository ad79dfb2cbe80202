"""Reads of disks and NFS exports, from files as other machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from rank_exporter.agent.host.storage import MOST_DEVICES, Reads, block_reads, nfs_reads

DISKSTATS = """\
   7       0 loop0 90 0 180 9 0 0 0 0 0 8 9 0 0 0 0 0 0
   1       0 ram0 5 0 40 1 0 0 0 0 0 0 0 0 0 0 0 0 0
 253       0 zram0 77 0 616 3 88 0 704 5 0 8 8 0 0 0 0 0 0
  11       0 sr0 14 0 112 6 0 0 0 0 0 20 6 0 0 0 0 0 0
   8       0 sda 4000 12 96000 2500 700 30 5600 900 0 3100 3400
   8       1 sda1 3990 12 95000 2490 700 30 5600 900 0 3090 3390
 259       0 nvme0n1 1000000 2500 256000000 81234 5000 100 40000 600 0 60000 81834 0 0 0 0 12 3
 259       1 nvme0n1p1 120 0 960 20 0 0 0 0 0 20 20 0 0 0 0 0 0
 259       2 nvme0n1p2 999880 2500 255999040 81214 5000 100 40000 600 0 59980 81814 0 0 0 0 12 3
 259       3 nvme1n1 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 254       0 vda 50 0 400 8 0 0 0 0 0 8 8 0 0 0 0 0 0
 252       0 dm-0 999800 0 255999000 91000 5100 0 40000 700 0 60000 91700 0 0 0 0 0 0
   9     127 md127 30 0 240 0 0 0 0 0 0 0 0 0 0 0 0 0 0
 104       0 cciss/c0d0 60 0 480 12 0 0 0 0 0 12 12
"""

WHOLE = {
    "sda": Reads(4000, 2.5),
    "nvme0n1": Reads(1_000_000, 81.234),
    "vda": Reads(50, 0.008),
    "cciss/c0d0": Reads(60, 0.012),
}

MOUNTSTATS = """\
device rootfs mounted on / with fstype rootfs
device proc mounted on /proc with fstype proc
device sunrpc mounted on /var/lib/nfs/rpc_pipefs with fstype rpc_pipefs
device /dev/nvme0n1p2 mounted on / with fstype ext4
device 10.0.0.7:/exports/train\\040set mounted on /data with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,hard,proto=tcp,timeo=600,retrans=2,sec=sys
\tage:\t86400
\tcaps:\tcaps=0xfffbffdf,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0x40f9be3e,bm2=0x28803,acl=0x3,sessions,pnfs=not configured,lease_time=90
\tevents:\t10 200 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
\tbytes:\t262144000 0 0 0 262144000 0 64000 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\ttcp 871 0 1 0 0 2500 2500 0 2600 0 2 10 20
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 2000 2003 1 416000 262400000 1500 640000 645250 0
\t       WRITE: 7 7 0 1400 1200 0 9 9 0
\t  READ_PLUS: 9 9 0 1400 1200 0 9 9 0
device 10.0.0.7:/exports/train\\040set mounted on /mnt/again with fstype nfs4 statvers=1.1
\tage:\t86400
\tper-op statistics
\t        READ: 2000 2003 1 416000 262400000 1500 640000 645250 0
device 10.0.0.7:/exports/train\\040set mounted on /other-options with fstype nfs4 statvers=1.1
\tper-op statistics
\t        READ: 10 10 0 2080 1312000 5 700 750 0
device filer:/vol/models mounted on /models with fstype nfs statvers=1.0
\tage:\t10
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t     GETATTR: 1 1 0 0 0 0 0 0
\t        READ: 3 3 0 408 98304 0 21 24
device tmpfs mounted on /run with fstype tmpfs
"""


def machine(root: Path, *, diskstats: str = DISKSTATS, mountstats: str | None = None) -> tuple[Path, Path]:
    """proc and sys of a machine; its partitions are no entries of /sys/block."""
    proc, sys = root / "proc", root / "sys"
    (proc / "self").mkdir(parents=True)
    (proc / "diskstats").write_text(diskstats)
    if mountstats is not None:
        (proc / "self" / "mountstats").write_text(mountstats)
    return proc, sys


def describe(sys: Path, stacked: dict[str, str]) -> None:
    for name in ("loop0", "ram0", "zram0", "sr0", "sda", "nvme0n1", "nvme1n1", "vda", "cciss!c0d0", *stacked):
        (sys / "block" / name / "slaves").mkdir(parents=True)
    for name, member in stacked.items():
        (sys / "block" / name / "slaves" / member).mkdir()


def test_disks_are_whole_ones_that_read(tmp_path: Path) -> None:
    """Partitions, loop and RAM devices, idle disks, and devices made of others are left out."""
    proc, sys = machine(tmp_path)
    describe(sys, {"dm-0": "nvme0n1p2", "md127": "sda1"})
    assert block_reads(proc, sys) == WHOLE


def test_disks_are_known_by_name_where_there_is_no_sysfs(tmp_path: Path) -> None:
    """In a container without /sys the names tell partitions from disks."""
    assert block_reads(*machine(tmp_path)) == WHOLE


def test_host_without_disks_has_none(tmp_path: Path) -> None:
    """A kernel without block devices says nothing of them."""
    assert block_reads(tmp_path / "proc", tmp_path / "sys") == {}


def test_many_disks_are_bounded(tmp_path: Path) -> None:
    """A host of hundreds of disks shows the first ones of the kernel's list, always the same."""
    lines = "".join(f"8 {n} sd{chr(97 + n // 26)}{chr(97 + n % 26)} 5 0 5 5 0 0 0 0 0 0 0\n" for n in range(200))
    found = block_reads(*machine(tmp_path, diskstats=lines))
    assert list(found) == [f"sd{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(MOST_DEVICES)]


def test_diskstats_of_unknown_format_are_an_error(tmp_path: Path) -> None:
    """A line with too few numbers is not guessed at."""
    with pytest.raises(ValueError, match="unpack"):
        block_reads(*machine(tmp_path, diskstats="8 0 sda 5\n"))


def test_disks_of_this_host_are_read() -> None:
    """The real files are understood: every device named is one that the kernel lists."""
    proc = Path("/proc")
    listed = {line.split()[2] for line in (proc / "diskstats").read_text().splitlines()}
    assert block_reads(proc, Path("/sys")).keys() <= listed


def test_nfs_reads_are_counted_by_export(tmp_path: Path) -> None:
    """Mounts with the same statistics count once, other mounts of the export add up, and READ_PLUS is not READ."""
    proc, _ = machine(tmp_path, mountstats=MOUNTSTATS)
    assert nfs_reads(proc) == {
        "10.0.0.7:/exports/train\\040set": Reads(2010, 646.0),
        "filer:/vol/models": Reads(3, 0.024),
    }


def test_host_without_nfs_has_none(tmp_path: Path) -> None:
    """Neither a kernel without mountstats nor one that mounts no NFS has any export."""
    assert nfs_reads(machine(tmp_path)[0]) == {}
    assert nfs_reads(Path("/proc")).keys() <= {
        line.split()[1] for line in Path("/proc/self/mountstats").read_text().splitlines() if "fstype nfs" in line
    }


def test_many_exports_are_bounded(tmp_path: Path) -> None:
    """A host that mounts every user's home shows the first ones of the kernel's list."""
    text = "".join(
        f"device filer:/home/{n} mounted on /home/{n} with fstype nfs4 statvers=1.1\n\tREAD: 1 1 0 1 1 1 1 {n}\n"
        for n in range(300)
    )
    found = nfs_reads(machine(tmp_path, mountstats=text)[0])
    assert list(found) == [f"filer:/home/{n}" for n in range(MOST_DEVICES)]


def test_mountstats_cut_short_are_an_error(tmp_path: Path) -> None:
    """A READ line of too few numbers is not guessed at."""
    text = "device a:/b mounted on /b with fstype nfs4 statvers=1.1\n\tREAD: 1 2 3\n"
    with pytest.raises(ValueError, match="mountstats of a:/b has a READ line of 3 numbers"):
        nfs_reads(machine(tmp_path, mountstats=text)[0])

"""CPU time and CPUs of ranks and their workers, from real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rank_exporter.agent.host.cgroup import cpu_limit
from rank_exporter.agent.host.processes import Processes, Usage
from rank_exporter.identity import Identity
from rank_exporter.segment.reader import Source

PROC = Path("/proc")
CPUS = sorted(os.sched_getaffinity(0))
SLACK = 0.2


def fields(pid: int) -> list[str]:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def source(pid: int, *, rank: int = 0, start_ticks: int | None = None) -> Source:
    return Source(
        identity=Identity(run="job", rank=rank, local_rank=rank, world_size=8, host="node-a"),
        pid=pid,
        pid_start_ticks=int(fields(pid)[19]) if start_ticks is None else start_ticks,
        started_unix_ns=1,
        skew_budget_ratio=0.1,
    )


class Family:
    """A process with workers, as rank 0."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("family_process.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.source = source(self.process.pid)

    def tell(self, *order: object) -> None:
        self.process.stdin.write(" ".join(map(str, order)) + "\n")
        self.process.stdin.flush()

    def do(self, *order: object) -> int:
        self.tell(*order)
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(timeout=120)
        self.process.stdout.close()


@pytest.fixture
def family() -> Iterator[Family]:
    one = Family()
    yield one
    one.close()


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def sampler(said: list[str], tmp_path: Path) -> Processes:
    """Reads the real /proc; without control groups."""
    return Processes(PROC, tmp_path / "no-cgroups", say=said.append)


@pytest.fixture
def sample(sampler: Processes, family: Family) -> Callable[[], Usage]:
    """Samples the family, which must be seen."""
    return lambda: sampler.sample([family.source])[family.source]


def test_rank_and_workers_are_told_apart(family: Family, sample: Callable[[], Usage]) -> None:
    """CPU time of the rank's process is its own, and that of its workers theirs."""
    idle = sample()
    family.do("burn", 0.3)
    family.do("work", 0.5)
    found = sample()
    assert 0.28 <= found.cpu_seconds - idle.cpu_seconds < 0.3 + SLACK
    assert 0.48 <= found.workers_cpu_seconds < 0.5 + SLACK


def test_time_of_workers_that_ended_stays(family: Family, sample: Callable[[], Usage]) -> None:
    """When workers are replaced, as at the end of an epoch, the counter goes on from where it was."""
    for epoch in range(1, 4):
        worker = family.do("work", 0.2)
        alive = sample().workers_cpu_seconds
        family.do("end", worker)
        ended = sample().workers_cpu_seconds
        assert alive <= ended < alive + 0.1
        assert epoch * 0.2 - 0.02 * epoch <= ended < epoch * 0.2 + SLACK


def test_time_of_a_worker_never_seen_alive_counts(family: Family, sample: Callable[[], Usage]) -> None:
    """A worker that lived between two samples is in the counter."""
    family.do("end", family.do("work", 0.3))
    assert 0.28 <= sample().workers_cpu_seconds < 0.3 + SLACK


def test_time_of_workers_that_nobody_waits_for_stays(family: Family, sample: Callable[[], Usage]) -> None:
    """Where the rank ignores SIGCHLD, the kernel forgets what its workers had, and the counter does not."""
    family.do("ignore")
    worker = family.do("work", 0.3)
    alive = sample().workers_cpu_seconds
    family.do("end", worker)
    assert sample().workers_cpu_seconds == alive
    family.do("work", 0.2)
    assert alive + 0.18 <= sample().workers_cpu_seconds < alive + 0.2 + SLACK


def test_workers_of_a_fork_server_count(family: Family, sample: Callable[[], Usage]) -> None:
    """Workers may be started by a process between them and the rank."""
    family.do("nest", 0.3)
    assert 0.28 <= sample().workers_cpu_seconds < 0.3 + SLACK


def test_workers_that_end_while_they_are_sampled_count_once(family: Family, sample: Callable[[], Usage]) -> None:
    """However workers come and go between the reads of a sample, the counter only grows, to the kernel's own sum."""
    workers = 60
    family.tell("churn", workers)
    seen = [0.0]
    while int(fields(family.process.pid)[13]) + int(fields(family.process.pid)[14]) < workers:
        seen.append(sample().workers_cpu_seconds)
    assert family.process.stdout.readline() == "0\n"
    seen.append(sample().workers_cpu_seconds)
    assert seen == sorted(seen)
    own = fields(family.process.pid)
    assert seen[-1] == (int(own[13]) + int(own[14])) / os.sysconf("SC_CLK_TCK")


def test_a_rank_started_by_a_rank_is_no_worker(family: Family, sampler: Processes) -> None:
    """Each rank has its own time, also where one forked the other."""
    pid = family.do("work", 0.3)
    other = source(pid, rank=1)
    found = sampler.sample([family.source, other])
    assert found[family.source].workers_cpu_seconds == 0
    assert 0.28 <= found[other].cpu_seconds < 0.3 + SLACK


def test_the_agent_is_no_worker(family: Family, said: list[str], tmp_path: Path) -> None:
    """Where the rank is the container's first process, the agent becomes its child, and is left out."""
    agent = family.do("work", 0.3)
    sampler = Processes(PROC, tmp_path, say=said.append, own_pid=agent)
    assert sampler.sample([family.source])[family.source].workers_cpu_seconds == 0


def test_unpinned_rank_may_use_all_cpus(sample: Callable[[], Usage]) -> None:
    """Without a limit, a rank may run wherever this test may; one without workers shows none of theirs."""
    found = sample()
    assert found.cpus_allowed == len(CPUS)
    assert found.workers_cpus_allowed is None


def test_rank_and_workers_pinned_to_one_core_show_it(family: Family, sample: Callable[[], Usage]) -> None:
    """A rank that shares one core with all its workers has one CPU allowed for it and one for them."""
    family.do("pin", 0, CPUS[0])
    family.do("work", 0.1)
    family.do("work", 0.1)
    found = sample()
    assert (found.cpus_allowed, found.workers_cpus_allowed) == (1, 1)


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
def test_workers_pinned_apart_may_use_their_cpus_together(family: Family, sample: Callable[[], Usage]) -> None:
    """Two workers on a core each may keep two busy."""
    for cpu in CPUS[:2]:
        family.do("pin", family.do("work", 0.01), cpu)
    found = sample()
    assert (found.cpus_allowed, found.workers_cpus_allowed) == (len(CPUS), 2)


def test_container_limit_below_the_cores_shows(family: Family, said: list[str], tmp_path: Path) -> None:
    """A rank whose container may use one and a half CPUs is allowed no more."""
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    own = proc / str(family.process.pid)
    own.mkdir(parents=True)
    (own / "stat").symlink_to(PROC / str(family.process.pid) / "stat")
    (own / "cgroup").write_text("0::/\n")
    cgroups.mkdir()
    (cgroups / "cpu.max").write_text(f"{len(CPUS) * 50_000} 100000\n")
    usage = Processes(proc, cgroups, say=said.append).sample([family.source])[family.source]
    assert usage.cpus_allowed == len(CPUS) / 2


def test_another_process_under_the_pid_is_never_sampled(family: Family, sampler: Processes, said: list[str]) -> None:
    """A pid that belongs to a process with another start yields nothing, and that is said once for all ranks."""
    family.do("work", 0.1)
    ranks = [source(family.process.pid, rank=rank, start_ticks=1 + rank) for rank in range(2)]
    assert [sampler.sample(ranks) for _ in range(4)] == [{}] * 4
    [line] = said
    assert f"rank 0 of run job runs as process {family.process.pid}" in line
    assert "PID namespace" in line


def test_rank_that_died_is_not_called_invisible(sampler: Processes, said: list[str]) -> None:
    """A rank that was seen and has gone is no longer sampled, and nothing is said."""
    family = Family()
    assert sampler.sample([family.source]).keys() == {family.source}
    family.close()
    assert [sampler.sample([family.source]) for _ in range(3)] == [{}] * 3
    assert said == []


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("membership", "files", "limit"),
    [
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "max 100000\n"}, None, id="none"),
        pytest.param("0::/a/b\n", {"a/b/cpu.max": "800000 100000\n", "a/cpu.max": "250000 100000\n"}, 2.5, id="outer"),
        pytest.param("0::/\n", {"cpu.max": "50000 100000\n"}, 0.5, id="container"),
        pytest.param("0::/../other\n", {"cpu.max": "50000 100000\n"}, None, id="out of sight"),
        pytest.param("0::/gone (deleted)\n", {}, None, id="gone"),
        pytest.param(
            "5:memory:/x\n4:cpu,cpuacct:/x\n0::/\n",
            {"cpu,cpuacct/x/cpu.cfs_quota_us": "300000\n", "cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"},
            3.0,
            id="version 1",
        ),
        pytest.param("4:cpu:/docker/0123\n", {"cpu/cpu.cfs_quota_us": "-1\n"}, None, id="version 1, none"),
        pytest.param("", {}, None, id="no control groups"),
    ],
)
def test_the_tightest_limit_in_sight_counts(
    membership: str, files: dict[str, Any], limit: float | None, tmp_path: Path
) -> None:
    """A limit may stand on the process's group or any around it, in either version of control groups."""
    assert cpu_limit(membership, write(tmp_path, **files)) == limit

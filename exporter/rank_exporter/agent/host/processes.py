"""What the processes of the ranks have had of the CPUs, and may have."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ...segment.reader import Source
from .cgroup import cpu_limit
from .procfs import read

__all__ = ["Processes", "Usage"]

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_ATTEMPTS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Of one rank. CPU seconds since its process began; CPUs that its process and its workers may run on.

    Workers are all its descendants, dead ones included; ``workers_cpus_allowed`` is None while it has none.
    """

    cpu_seconds: float
    workers_cpu_seconds: float
    cpus_allowed: float
    workers_cpus_allowed: float | None


@dataclass(frozen=True, slots=True)
class _Stat:
    """A line of /proc/<pid>/stat. ``reaped``: ticks of the children that it has waited for, and of theirs."""

    parent: int
    own: int
    reaped: int
    start: int


def _stat(proc: Path, pid: int) -> _Stat | None:
    """None where there is no such process."""
    text = read(f"{proc}/{pid}/stat")
    if text is None:
        return None
    fields = text.rpartition(")")[2].split()
    return _Stat(
        parent=int(fields[1]),
        own=int(fields[11]) + int(fields[12]),
        reaped=int(fields[13]) + int(fields[14]),
        start=int(fields[19]),
    )


class _Tree:
    """Who is whose child. A process is asked once, when it is new: hosts have thousands."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._parents: dict[int, int] = {}

    def children(self) -> dict[int, list[int]]:
        pids = {int(name) for name in os.listdir(self._proc) if name.isdigit()}  # noqa: PTH208 - thousands of entries
        for gone in self._parents.keys() - pids:
            del self._parents[gone]
        for new in pids - self._parents.keys():
            stat = _stat(self._proc, new)
            if stat is not None:
                self._parents[new] = stat.parent
        found: dict[int, list[int]] = defaultdict(list)
        for pid, parent in self._parents.items():
            found[parent].append(pid)
        return found


@dataclass(slots=True)
class _Account:
    """Ticks of a rank's descendants. ``lost``: of those that ended and that nobody waited for."""

    total: int = 0
    lost: int = 0
    seen: bool = False
    misses: int = 0

    def settle(self, ticks: int, settled: bool) -> int:
        """Take a new sum; what it falls short of the last one by was lost, unless it is not ``settled``."""
        if settled:
            self.lost += max(0, self.total - self.lost - ticks)
        self.total = max(self.total, ticks + self.lost)
        return self.total


class Processes:
    """Samples the processes of ranks, and their descendants.

    A rank is sampled under the pid it has itself, which is another process's if the agent is in another PID
    namespace: the time at which the process started tells. ``say`` is told, once, of ranks that cannot be seen.
    """

    def __init__(self, proc: Path, cgroups: Path, *, say: Callable[[str], None], own_pid: int | None = None) -> None:
        self._proc = proc
        self._cgroups = cgroups
        self._say = say
        self._own_pid = os.getpid() if own_pid is None else own_pid
        self._tree = _Tree(proc)
        self._accounts: dict[Source, _Account] = {}
        self._said = False

    def sample(self, ranks: Sequence[Source]) -> dict[Source, Usage]:
        """What there is to say of each rank that lives and can be seen. Raises OSError, ValueError."""
        self._accounts = {rank: self._accounts.get(rank) or _Account() for rank in ranks}
        children = self._tree.children() if ranks else {}
        strangers = {self._own_pid, *(rank.pid for rank in ranks)}
        found = {}
        for rank in ranks:
            usage = self._usage(rank, children, strangers)
            if usage is not None:
                found[rank] = usage
        return found

    def _usage(self, rank: Source, children: dict[int, list[int]], strangers: set[int]) -> Usage | None:
        account = self._accounts[rank]
        attempts = 0
        while True:
            main = _stat(self._proc, rank.pid)
            if main is None or main.start != rank.pid_start_ticks:
                self._miss(rank, account)
                return None
            workers = self._descendants(rank.pid, children, strangers)
            parents = {pid: stat for pid, stat in {rank.pid: main, **workers}.items() if pid in children}
            settled = all(self._has_waited_for_none(pid, stat) for pid, stat in parents.items())
            attempts += 1
            if settled or attempts == _ATTEMPTS:
                break
        account.seen = True
        ticks = account.settle(main.reaped + sum(stat.own + stat.reaped for stat in workers.values()), settled)
        limit = cpu_limit(read(f"{self._proc}/{rank.pid}/cgroup") or "", self._cgroups)
        allowed = self._allowed([rank.pid], limit)
        if allowed is None:
            return None
        return Usage(
            cpu_seconds=main.own / _TICKS,
            workers_cpu_seconds=ticks / _TICKS,
            cpus_allowed=allowed,
            workers_cpus_allowed=self._allowed(workers, limit),
        )

    def _descendants(self, root: int, children: dict[int, list[int]], strangers: set[int]) -> dict[int, _Stat]:
        found: dict[int, _Stat] = {}
        pending = [(root, pid) for pid in children.get(root, ())]
        while pending:
            parent, pid = pending.pop()
            stat = None if pid in strangers else _stat(self._proc, pid)
            if stat is not None and stat.parent == parent:
                found[pid] = stat
                pending += ((pid, child) for child in children.get(pid, ()))
        return found

    def _has_waited_for_none(self, pid: int, before: _Stat) -> bool:
        """Whether the process has waited for no child since: that child's time would be in neither sum."""
        stat = _stat(self._proc, pid)
        return stat is None or stat.reaped == before.reaped

    def _allowed(self, pids: Iterable[int], limit: float | None) -> float | None:
        cpus: set[int] = set()
        for pid in pids:
            try:
                cpus |= os.sched_getaffinity(pid)
            except ProcessLookupError:
                continue
        if not cpus:
            return None
        return float(len(cpus)) if limit is None else min(float(len(cpus)), limit)

    def _miss(self, rank: Source, account: _Account) -> None:
        # One that was seen has died; one miss may be a death that the next look at its segment will show.
        account.misses += 1
        if account.misses == 2 and not account.seen and not self._said:
            self._said = True
            self._say(
                f"rank {rank.identity.rank} of run {rank.identity.run} runs as process {rank.pid}, which is another "
                "process, or none, here: no CPU time is shown for ranks in another PID namespace, share it (said once)"
            )

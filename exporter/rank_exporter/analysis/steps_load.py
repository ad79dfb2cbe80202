"""Reads step records from agents and from step logs. What cannot be read costs itself alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..catalog import RANK_INFO
from ..errors import SourceError
from ..segment.records import RankSteps
from ..segment.steplog import STEP_LOG_SUFFIX, StepLog
from ..segment.wire import decode
from .sources import ask_all, get

__all__ = ["Found", "find_agents", "load_agents", "load_step_logs"]


@dataclass(slots=True, kw_only=True)
class Found:
    """Steps by process, and one line for each source that gave none."""

    segments: list[RankSteps] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """Take in what was found elsewhere."""
        self.segments += other.segments
        self.problems += other.problems


def _gather(sources: Sequence[Any], read: Callable[[Any], list[RankSteps]]) -> Found:
    found, problems = ask_all(sources, read)
    return Found(segments=[one for _, segments in found for one in segments], problems=problems)


def load_agents(
    urls: Iterable[str],
    *,
    run: str | None = None,
    first: int = 1,
    last: int | None = None,
    timeout_seconds: float = 10.0,
) -> Found:
    """The steps first to last that agents, such as http://host:10911, still hold: about 4,000 of each rank."""
    params = {"after": str(max(first - 1, 0))}
    if run is not None:
        params["run"] = run
    if last is not None:
        params["to"] = str(last)

    def read(url: str) -> list[RankSteps]:
        address = url.rstrip("/").removesuffix("/metrics").removesuffix("/steps") + "/steps"
        response = get(address, timeout_seconds, params=params)
        return list(decode(response.content, source=address).segments)

    return _gather(list(urls), read)


def find_agents(url: str, *, run: str | None = None, timeout_seconds: float = 10.0) -> list[str]:
    """Addresses of the agents that a Prometheus, such as http://host:9090, scrapes, of one run or of all.

    Raises SourceError, in one line, if it cannot be asked or knows none.
    """
    address = url.rstrip("/") + "/api/v1/query"
    quoted = "" if run is None else run.replace("\\", "\\\\").replace('"', '\\"')
    selector = f'{{run="{quoted}"}}' if run is not None else ""
    query = f"count by (instance) ({RANK_INFO.name}{selector})"
    response = get(address, timeout_seconds, params={"query": query}, what="the address of a Prometheus")
    try:
        series = response.json()["data"]["result"]
        agents = sorted({f"http://{one['metric']['instance']}" for one in series})
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(f"{address} does not answer as a Prometheus ({error!r}): check the address") from error
    if not agents:
        raise SourceError(f"{address} knows no rank{f' of run {run!r}' if run is not None else ''}: check its targets")
    return agents


def load_step_logs(paths: Iterable[Path]) -> Found:
    """The steps in Parquet files, and in those of directories. Raises SettingError where pyarrow is missing."""
    log = StepLog()
    found = Found()
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.rglob(f"*{STEP_LOG_SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            found.problems.append(
                f"{path} holds no {STEP_LOG_SUFFIX} file: give the directory of RANK_EXPORTER_STEP_LOG_DIR"
            )
        files += inside
    found.add(_gather(files, log.read))
    return found

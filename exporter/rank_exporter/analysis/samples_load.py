"""Reads what ranks took, from files, agents or a Prometheus, and manifests of what they should have taken."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from .. import digest
from ..catalog import SAMPLE_DIGEST
from ..errors import SettingError, SourceError
from ..segment.samplelog import SAMPLE_LOG_SUFFIX, read
from ..segment.samples import EpochSamples, Identifiers
from .prometheus_load import Prometheus, quoted
from .reconcile import Expected
from .sources import ask_all, get

__all__ = ["Found", "from_agents", "from_prometheus", "load_manifest", "load_samples"]

_MOST_LISTED: Final = 1 << 28
"""A manifest of more integers than this is compared by digest alone."""
_PAST: Final = "90d"


@dataclass(slots=True, kw_only=True)
class Found:
    """What was read, and one line for each source that gave nothing."""

    samples: list[EpochSamples] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def of_runs(self, runs: Iterable[str]) -> list[EpochSamples]:
        """Those of some runs, such as the attempts at one; of the only one, if none is named. Raises SourceError."""
        known = sorted({one.run for one in self.samples})
        wanted = set(runs) or set(known)
        if not set(known) & wanted:
            raise SourceError(
                f"samples of run {', '.join(sorted(wanted))} were not found: there are those of {', '.join(known)}"
                if known
                else "no samples were found: start ranks with RANK_EXPORTER_SAMPLE_IDS_DIR, or let an epoch end"
            )
        if missing := wanted - set(known):
            raise SourceError(f"no samples of run {', '.join(sorted(missing))}: there are those of {', '.join(known)}")
        if len(wanted) > 1 and not runs:
            raise SourceError(f"there are samples of {len(known)} runs ({', '.join(known)}): name one with --run")
        return [one for one in self.samples if one.run in wanted]


def _gather(sources: Iterable[Any], load: Callable[[Any], list[EpochSamples]]) -> Found:
    found, problems = ask_all(sources, load)
    return Found(samples=[one for _, samples in found for one in samples], problems=problems)


def load_samples(paths: Iterable[Path]) -> Found:
    """What is in files of identifiers, and in those of directories."""
    files: list[Path] = []
    problems = []
    for path in paths:
        inside = sorted(path.rglob(f"*{SAMPLE_LOG_SUFFIX}")) if path.is_dir() else [path]
        if not inside:
            problems.append(f"{path} holds no {SAMPLE_LOG_SUFFIX} file: give that of RANK_EXPORTER_SAMPLE_IDS_DIR")
        files += inside
    found = _gather(files, lambda path: [read(path)])
    found.problems = problems + found.problems
    return found


def from_agents(urls: Iterable[str], *, timeout_seconds: float = 10.0) -> Found:
    """Counts and digests of the epochs that ended last, from live agents, such as http://host:10911."""

    def load(url: str) -> list[EpochSamples]:
        address = url.rstrip("/").removesuffix("/metrics") + "/metrics"
        text = get(address, timeout_seconds).text
        try:
            families = list(text_string_to_metric_families(text))
            return [
                _of_labels(sample.labels)
                for family in families
                for sample in family.samples
                if sample.name == SAMPLE_DIGEST.name
            ]
        except (ValueError, KeyError, IndexError) as error:
            raise SourceError(f"{address} is not an agent's exposition ({error}): give an agent's address") from error

    return _gather(list(urls), load)


def from_prometheus(url: str, *, run: str, past: str = _PAST) -> Found:
    """Counts and digests of all epochs that a Prometheus, such as http://host:9090, saw of a run in the ``past``."""

    def load(address: str) -> list[EpochSamples]:
        series = f"{SAMPLE_DIGEST.name}{{run={quoted(run)}}}"
        found = Prometheus(address).query(f"last_over_time({series}[{past}])")
        try:
            return [_of_labels(labels) for labels, _ in found]
        except (ValueError, KeyError) as error:
            raise SourceError(
                f"{address} has no usable {SAMPLE_DIGEST.name} ({error}): run one release everywhere"
            ) from error

    found = _gather([url], load)
    # The epoch that a rank was in as it was stopped, and the same as it was first seen to have ended, are one.
    latest: dict[tuple[int, int, int], EpochSamples] = {}
    for one in found.samples:
        key = one.rank, one.started_unix_ns, one.epoch
        if key not in latest or (one.complete, one.samples) > (latest[key].complete, latest[key].samples):
            latest[key] = one
    return replace(found, samples=list(latest.values()))


def _of_labels(labels: Mapping[str, str]) -> EpochSamples:
    samples, padded = int(labels["samples"]), int(labels["padded"])
    text = labels.get("digest", "")
    return EpochSamples(
        run=labels["run"],
        rank=int(labels["rank"]),
        world_size=int(labels["world_size"]),
        host=labels.get("host", ""),
        started_unix_ns=int(labels["started"]),
        epoch=int(labels["epoch"]),
        samples=samples,
        padded=padded,
        identified=samples - padded if text else 0,
        digest=int(text, 16) if text else 0,
        complete=labels["complete"] == "true",
    )


def load_manifest(given: str, *, key: str = "id") -> Expected:
    """What an epoch should consist of: a number N, for 0 to N - 1, or a file of identifiers.

    A file ends in .parquet (column ``key``), .jsonl (identifiers, or objects that have one under ``key``), or has one
    identifier a line. Raises SourceError, in one line; SettingError where pyarrow is missing.
    """
    if given.isascii() and given.isdigit():
        count = int(given)
        ids = np.arange(count, dtype=np.int64) if count <= _MOST_LISTED else None
        return Expected(name=f"manifest 0..{count - 1}", count=count, digests=(digest.of_range(count),), ids=ids)
    path = Path(given)
    try:
        if path.suffix == ".parquet":
            ids = _from_parquet(path, key)
        elif path.suffix == ".jsonl":
            ids = _array([_from_json(line, key) for line in path.read_text().splitlines() if line.strip()])
        else:
            ids = _array([line for line in path.read_text().splitlines() if line])
    except FileNotFoundError as error:
        raise SourceError(f"manifest {given!r} does not exist: give a file, or the number of samples") from error
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SourceError(
            f"manifest {given!r} cannot be read ({reason}): give .parquet, .jsonl or one identifier a line"
        ) from error
    if not len(ids):
        raise SourceError(f"manifest {given!r} is empty: give the identifiers of an epoch")
    return Expected(name=f"manifest {path.name}", count=len(ids), digests=_digests(ids), ids=ids)


def _digests(ids: Identifiers) -> tuple[int, ...]:
    """Of the identifiers as they are and, if they are texts that read as integers or integers, as the other kind."""
    if ids.dtype.kind != "U":
        return digest.of(ids), digest.of(ids.astype(np.str_))
    try:
        numbers = ids.astype(np.int64)
    except (ValueError, OverflowError):
        return (digest.of(ids),)
    if not (numbers.astype(np.str_) == ids).all():
        return (digest.of(ids),)
    return digest.of(ids), digest.of(numbers)


def _from_json(line: str, key: str) -> int | str:
    value = json.loads(line)
    if isinstance(value, dict):
        value = value[key]
    return digest.as_text(value)


def _array(ids: list[Any]) -> Identifiers:
    if {type(one) for one in ids} <= {int}:
        return np.array(ids, dtype=np.int64)
    return np.array([str(one) for one in ids], dtype=np.str_)


def _from_parquet(path: Path, key: str) -> Identifiers:
    try:
        arrow: Any = importlib.import_module("pyarrow")
        parquet: Any = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise SettingError(
            f"a Parquet manifest needs pyarrow ({error}): pip install 'rank-exporter[spool]', or give a text file"
        ) from error
    try:
        column = parquet.read_table(path, columns=[key]).column(key)
    except arrow.ArrowException as error:
        raise ValueError(str(error).partition("\n")[0]) from error
    return _array([digest.as_text(one) for one in column.to_pylist()])

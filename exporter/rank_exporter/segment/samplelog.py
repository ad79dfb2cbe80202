"""Identifiers of the samples that a rank took, one file a process and epoch.

Lines of JSON, each whole or, where the process was killed, missing:

- the first says whose they are: ``format`` ("rank-exporter-samples"), ``version`` (1), ``run``, ``rank``,
  ``world_size``, ``host``, ``started_unix_ns``, ``epoch``
- one a batch: ``step`` (in which it was taken, from 1 on), ``ids`` (integers, or texts) and, where it has any,
  ``padded``: so many of the last only pad; a batch without known identifiers has ``samples``, their number, instead
- the last, once the epoch is over: ``samples``, ``padded``, ``complete`` (the loader was read to its end)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from .. import digest
from ..errors import SourceError
from ..identity import Identity
from .samples import EpochSamples, Identifiers

__all__ = ["SAMPLE_LOG_SUFFIX", "batch_line", "end_line", "file_name", "first_line", "read"]

SAMPLE_LOG_SUFFIX: Final = ".samples.jsonl"
_FORMAT: Final = "rank-exporter-samples"
_VERSION: Final = 1


def file_name(identity: Identity, epoch: int, started_unix_ns: int) -> str:
    """Name of the file of one process and epoch, unique on a file system that all ranks share."""
    run = re.sub(r"[^A-Za-z0-9_.-]", "_", identity.run)
    return f"{run}-rank{identity.rank:05d}-epoch{epoch:05d}-{started_unix_ns:x}{SAMPLE_LOG_SUFFIX}"


def _line(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode() + b"\n"


def first_line(identity: Identity, epoch: int, started_unix_ns: int) -> bytes:
    """Whose samples the file holds."""
    return _line(
        {
            "format": _FORMAT,
            "version": _VERSION,
            "run": identity.run,
            "rank": identity.rank,
            "world_size": identity.world_size,
            "host": identity.host,
            "started_unix_ns": started_unix_ns,
            "epoch": epoch,
        }
    )


def batch_line(step: int, ids: Sequence[Any] | None, samples: int, padded: int) -> bytes:
    """One batch. Raises TypeError for identifiers of no supported type, see digest.hashes."""
    fields: dict[str, Any] = {"step": step}
    if ids is None:
        fields["samples"] = samples
    else:
        plain = set(map(type, ids)) in ({int}, {str})
        fields["ids"] = list(ids) if plain else [digest.as_text(one) for one in ids]
    if padded:
        fields["padded"] = padded
    return _line(fields)


def end_line(*, samples: int, padded: int, complete: bool) -> bytes:
    """The epoch is over."""
    return _line({"samples": samples, "padded": padded, "complete": complete})


def read(path: Path) -> EpochSamples:
    """What a file holds. Raises SourceError, in one line, if it is none of ours, or damaged but for its end."""
    try:
        with path.open("rb") as file:
            return _read(file)
    except FileNotFoundError as error:
        raise SourceError(f"{path} does not exist: give a file or directory of RANK_EXPORTER_SAMPLE_IDS_DIR") from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise SourceError(f"samples {path} cannot be read ({reason}): remove the file or give another") from error


def _read(lines: Iterable[bytes]) -> EpochSamples:
    iterator = iter(lines)
    about = json.loads(next(iterator, b"{}"))
    if about.get("format") != _FORMAT or about.get("version") != _VERSION:
        raise ValueError(f"it does not begin as {_FORMAT} of version {_VERSION}")
    found = _Batches()
    end: dict[str, Any] | None = None
    for line in iterator:
        if end is not None:
            raise ValueError("it goes on after its end")
        if not line.endswith(b"\n"):
            break  # killed as it was written
        fields = json.loads(line)
        if "complete" in fields:
            end = fields
        else:
            found.add(fields)
    ids, padded_ids = _array(found.ids), _array(found.padded_ids)
    samples = found.samples if end is None else _natural(end["samples"])
    padded = found.padded if end is None else _natural(end["padded"])
    if padded > samples or len(ids) > samples - padded:
        raise ValueError(f"{len(ids)} identifiers contradict {samples} samples, {padded} of them padding")
    numbers = {name: _natural(about[name]) for name in ("rank", "world_size", "started_unix_ns", "epoch")}
    return EpochSamples(
        run=str(about["run"]),
        host=str(about["host"]),
        **numbers,
        samples=samples,
        padded=padded,
        identified=len(ids),
        digest=digest.of(found.ids),
        complete=end is not None and end["complete"] is True,
        cut=end is None,
        ids=ids,
        padded_ids=padded_ids,
        steps=np.repeat(np.array(found.steps, dtype=np.int64), found.sizes),
    )


class _Batches:
    """The lines of a file, added up."""

    def __init__(self) -> None:
        self.ids: list[Any] = []
        self.padded_ids: list[Any] = []
        self.steps: list[int] = []
        self.sizes: list[int] = []
        self.samples = 0
        self.padded = 0

    def add(self, fields: dict[str, Any]) -> None:
        step, padded = _natural(fields["step"]), _natural(fields.get("padded", 0))
        ids = fields.get("ids")
        number = _natural(fields["samples"]) if ids is None else len(ids)
        if padded > number:
            raise ValueError(f"step {step} has {number} samples and {padded} of them padding")
        self.samples += number
        self.padded += padded
        if ids is not None:
            self.ids += ids[: number - padded]
            self.padded_ids += ids[number - padded :]
            self.steps.append(step)
            self.sizes.append(number - padded)


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r} is no natural number")
    return value


def _array(ids: list[Any]) -> Identifiers:
    kinds = set(map(type, ids))
    if kinds <= {int}:
        return np.array([one if -(2**63) <= one < 2**63 else one - 2**64 for one in ids] or [], dtype=np.int64)
    if not kinds <= {int, str}:
        raise ValueError(f"identifiers are {', '.join(sorted(kind.__name__ for kind in kinds))}")
    return np.array([str(one) for one in ids], dtype=np.str_)

"""Step records in Parquet files, which outlive the job and open in any tool that reads Parquet.

One row a step and rank: ``run``, ``host``, ``shard``, ``waits_in`` (dictionary-encoded), ``rank``, ``world_size``,
``generation``, ``started_unix_ns``, ``step``, ``end_unix_ns``, ``flags`` (layout.BY_DEVICE, layout.PROFILED), one
``<phase>_ns`` per phase, ``samples``, ``tokens``, ``padded``.
Needs pyarrow, the extra ``rank-exporter[spool]``.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..errors import SettingError, SourceError
from ..phases import PHASE_NAMES
from .reader import STEP_DTYPE
from .records import RankSteps

__all__ = ["STEP_LOG_SUFFIX", "StepLog"]

STEP_LOG_SUFFIX: Final = ".parquet"
_TEXTS: Final = ("run", "host", "shard", "waits_in")
_OF_PROCESS: Final = ("rank", "world_size", "generation", "started_unix_ns")
_OF_STEP: Final = ("step", "end_unix_ns", "flags", "samples", "tokens", "padded")
_PHASES: Final = tuple(f"{name}_ns" for name in PHASE_NAMES)
_VERSION: Final = {b"rank_exporter_steps": b"1"}


class StepLog:
    """Writes and reads the files. Raises SettingError where pyarrow is missing."""

    def __init__(self) -> None:
        try:
            self._arrow: Any = importlib.import_module("pyarrow")
            self._parquet: Any = importlib.import_module("pyarrow.parquet")
        except ImportError as error:
            raise SettingError(
                f"step logs need pyarrow ({error}): pip install 'rank-exporter[spool]' where they are written and read"
            ) from error

    def write(self, path: Path, segments: Sequence[RankSteps]) -> None:
        """Write a file, whole or not at all. Raises OSError."""
        arrow = self._arrow
        sizes = [len(steps.records) for steps in segments]
        records = np.concatenate([steps.records for steps in segments])
        segment = np.repeat(np.arange(len(segments)), sizes)
        columns: dict[str, Any] = {
            name: self._texts([getattr(steps, name) for steps in segments], segment)
            for name in ("run", "host", "waits_in")
        }
        columns["shard"] = self._shards(segments)
        for name in _OF_PROCESS:
            columns[name] = arrow.array(np.repeat([np.int64(getattr(steps, name)) for steps in segments], sizes))
        for name in _OF_STEP:
            columns[name] = arrow.array(records[name].astype(np.int64))
        for phase, name in enumerate(_PHASES):
            columns[name] = arrow.array(records["ns"][:, phase].astype(np.int64))
        table = arrow.table(columns).replace_schema_metadata(_VERSION)
        draft = path.with_suffix(".draft")
        try:
            self._parquet.write_table(table, draft, compression="zstd")
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def _texts(self, names: Sequence[str], codes: npt.NDArray[Any]) -> Any:
        distinct = sorted(set(names))
        places = np.array([distinct.index(name) for name in names], dtype=np.int32)
        arrow = self._arrow
        return arrow.DictionaryArray.from_arrays(arrow.array(places[codes]), arrow.array(distinct, arrow.string()))

    def _shards(self, segments: Sequence[RankSteps]) -> Any:
        names: list[str] = []
        codes: list[npt.NDArray[Any]] = []
        for steps in segments:
            slots, inverse = np.unique(steps.records["shard"], return_inverse=True)
            codes.append(inverse + len(names))
            names += [steps.shard_name(int(slot)) for slot in slots]
        return self._texts(names, np.concatenate(codes))

    def read(self, path: Path) -> list[RankSteps]:
        """The processes in a file. Raises SourceError, in one line, if it is none of ours or damaged."""
        try:
            table = self._parquet.read_table(path, columns=[*_TEXTS, *_OF_PROCESS, *_OF_STEP, *_PHASES])
            if (table.schema.metadata or {}).get(b"rank_exporter_steps") != b"1":
                raise ValueError("it is no step log of this version")
            return self._processes(table)
        except FileNotFoundError as error:
            raise SourceError(f"step log {path} does not exist: give a file or directory of step logs") from error
        except (OSError, ValueError, TypeError, KeyError, self._arrow.ArrowException) as error:
            reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
            raise SourceError(f"step log {path} cannot be read ({reason}): remove it") from error

    def _processes(self, table: Any) -> list[RankSteps]:
        records = np.zeros(table.num_rows, dtype=STEP_DTYPE)
        for name in _OF_STEP:
            records[name] = self._numbers(table, name)
        for phase, name in enumerate(_PHASES):
            records["ns"][:, phase] = self._numbers(table, name)
        texts = {name: table.column(name).combine_chunks() for name in _TEXTS}
        names = {name: [str(text) for text in column.dictionary.to_pylist()] for name, column in texts.items()}
        codes = {name: column.indices.to_numpy(zero_copy_only=False) for name, column in texts.items()}
        records["shard"] = codes["shard"]
        keys = np.stack(
            [codes["run"], codes["host"], codes["waits_in"], *(self._numbers(table, name) for name in _OF_PROCESS)],
            axis=1,
        ).astype(np.int64)
        distinct, inverse = np.unique(keys, axis=0, return_inverse=True)
        return [
            RankSteps(
                run=names["run"][int(key[0])],
                host=names["host"][int(key[1])],
                **{name: int(number) for name, number in zip(_OF_PROCESS, key[3:], strict=True)},
                shards=tuple(names["shard"]),
                waits_in=names["waits_in"][int(key[2])],
                records=_ascending(records[inverse.reshape(-1) == place]),
            )
            for place, key in enumerate(distinct)
        ]

    @staticmethod
    def _numbers(table: Any, name: str) -> npt.NDArray[np.int64]:
        column: npt.NDArray[np.int64] = table.column(name).to_numpy()
        if column.dtype != np.int64 or (len(column) and column.min() < 0):
            raise ValueError(f"column {name} does not hold natural numbers")
        return column


def _ascending(records: npt.NDArray[Any]) -> npt.NDArray[Any]:
    _, first = np.unique(records["step"], return_index=True)
    return records[first]

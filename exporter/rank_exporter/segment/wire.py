"""Step records on their way from an agent: what ``/steps`` answers.

====================  =====================================================================
mark, 8 bytes         ``RANKSTP1``; another version has another mark
length, 4 bytes       of the header, little-endian
header                JSON: ``agent`` (who answers), ``phases`` (names, in the order of the
                      records' durations), ``segments``: per process run, rank, world_size,
                      host, generation, started_unix_ns, shards (names by slot), waits_in,
                      last_step (the latest that ended), records (how many follow)
records               those of each segment in turn, ``RECORD_BYTES`` each, little-endian:
                      step, end in Unix ns (u64), shard slot, flags (u32), ns per phase,
                      samples, tokens, padded samples, reserved (u64)
====================  =====================================================================
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ..errors import SourceError
from ..phases import PHASE_NAMES
from .layout import SHARD_SLOTS
from .reader import STEP_DTYPE
from .records import RankSteps

__all__ = ["CONTENT_TYPE", "RECORD_BYTES", "Answer", "as_json", "decode", "encode"]

CONTENT_TYPE: Final = "application/vnd.rank-exporter.steps"
MARK: Final = b"RANKSTP1"
_LENGTH: Final = struct.Struct("<I")
_RECORD: Final = STEP_DTYPE.newbyteorder("<")
RECORD_BYTES: Final = _RECORD.itemsize
_LONGEST_HEADER: Final = 4 << 20
_LONGEST_NAME: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What an agent serves: its own id, and records by process. ``last_steps``: the latest step of each process."""

    agent: str
    segments: tuple[RankSteps, ...]
    last_steps: tuple[int, ...]


def _about(steps: RankSteps, last_step: int) -> dict[str, Any]:
    return {
        "run": steps.run,
        "rank": steps.rank,
        "world_size": steps.world_size,
        "host": steps.host,
        "generation": steps.generation,
        "started_unix_ns": steps.started_unix_ns,
        "shards": list(steps.shards),
        "waits_in": steps.waits_in,
        "last_step": last_step,
    }


def _pairs(answer: Answer) -> Sequence[tuple[RankSteps, int]]:
    return list(zip(answer.segments, answer.last_steps, strict=True))


def encode(answer: Answer) -> bytes:
    """The answer as bytes."""
    header = json.dumps(
        {
            "agent": answer.agent,
            "phases": PHASE_NAMES,
            "segments": [{**_about(steps, last), "records": len(steps.records)} for steps, last in _pairs(answer)],
        }
    ).encode()
    parts = [MARK, _LENGTH.pack(len(header)), header]
    parts += [steps.records.astype(_RECORD, copy=False).tobytes() for steps in answer.segments]
    return b"".join(parts)


def as_json(answer: Answer) -> dict[str, Any]:
    """The answer as a JSON object, for people: the same facts, each record with its shard's name and ns by phase."""
    return {
        "agent": answer.agent,
        "segments": [
            {
                **_about(steps, last),
                "records": [
                    {
                        "step": int(record["step"]),
                        "end_unix_ns": int(record["end_unix_ns"]),
                        "shard": steps.shard_name(int(record["shard"])),
                        "ns": {name: int(ns) for name, ns in zip(PHASE_NAMES, record["ns"], strict=True) if ns},
                        **{name: int(record[name]) for name in ("samples", "tokens", "padded")},
                    }
                    for record in steps.records
                ],
            }
            for steps, last in _pairs(answer)
        ],
    }


def decode(body: bytes, *, source: str) -> Answer:
    """The answer that the bytes hold. Raises SourceError, in one line that names ``source``, if they hold none."""
    try:
        return _decode(body)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, struct.error) as error:
        reason = str(error) or type(error).__name__
        raise SourceError(
            f"{source} is no answer of an agent's /steps ({reason}): run one release everywhere"
        ) from error


def _decode(body: bytes) -> Answer:
    if body[: len(MARK)] != MARK:
        raise ValueError(f"it begins with {body[: len(MARK)]!r}")
    start = len(MARK) + _LENGTH.size
    (length,) = _LENGTH.unpack_from(body, len(MARK))
    if length > _LONGEST_HEADER or start + length > len(body):
        raise ValueError(f"a header of {length} bytes in {len(body)}")
    header = json.loads(body[start : start + length])
    if header["phases"] != list(PHASE_NAMES):
        raise ValueError("its phases are others")
    records = np.frombuffer(body, dtype=np.uint8, offset=start + length)
    counts = [_natural(about["records"]) for about in header["segments"]]
    if sum(counts) * RECORD_BYTES != len(records):
        raise ValueError(f"{len(records)} bytes for {sum(counts)} records")
    segments, at = [], 0
    for about, count in zip(header["segments"], counts, strict=True):
        size = count * RECORD_BYTES
        own = records[at : at + size].view(_RECORD).astype(STEP_DTYPE, copy=False)
        at += size
        segments.append(_segment(about, own))
    last_steps = tuple(_natural(about["last_step"]) for about in header["segments"])
    return Answer(agent=_name(header["agent"]), segments=tuple(segments), last_steps=last_steps)


def _segment(about: dict[str, Any], records: Any) -> RankSteps:
    numbers = {name: _natural(about[name]) for name in ("rank", "world_size", "generation", "started_unix_ns")}
    if numbers["rank"] >= numbers["world_size"]:
        raise ValueError(f"rank {numbers['rank']} of {numbers['world_size']}")
    shards = tuple(_name(shard) for shard in about["shards"])
    if len(shards) > SHARD_SLOTS or (records["step"][1:] <= records["step"][:-1]).any():
        raise ValueError(f"{len(shards)} shards, or steps out of order")
    return RankSteps(
        run=_name(about["run"]),
        host=_name(about["host"]),
        shards=shards,
        records=records,
        waits_in=_name(about.get("waits_in", "")),
        **numbers,
    )


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{str(value)[:40]!r} is no natural number")
    return value


def _name(value: Any) -> str:
    # Lone surrogates would fail a whole exposition later.
    if not isinstance(value, str) or len(value) > _LONGEST_NAME:
        raise ValueError("a name is no short text")
    return value.encode(errors="replace").decode()

"""Prometheus' remote-write protocol, version 0.1.0, as far as a sender of plain series needs it.

A WriteRequest in protobuf, compressed by snappy, here as one literal that is not compressed at all. Field numbers are
those of prompb/types.proto: WriteRequest.timeseries 1; TimeSeries.labels 1, .samples 2; Label.name 1, .value 2;
Sample.value 1 (double), .timestamp 2 (ms).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import httpx
import numpy as np
import numpy.typing as npt

from .table import Labels, Scrapes, Table, after_presence

__all__ = ["STALE", "Sender", "series"]

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""The NaN by which Prometheus marks that a series has ended."""

_REQUEST_BYTES = 8 << 20
_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_SAMPLE = np.dtype([("head", "u1", 3), ("value", "<f8"), ("tag", "u1"), ("time", "u1", 6)])
"""One Sample inside its TimeSeries. A time of 2**35 to 2**42 ms, years 1971 to 2109, is a varint of six bytes."""


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def encode_labels(name: str, labels: Labels) -> bytes:
    """Labels of a TimeSeries, sorted; those that are empty are none."""
    pairs = sorted((*labels, ("__name__", name)))
    return b"".join(_field(1, _field(1, key.encode()) + _field(2, value.encode())) for key, value in pairs if value)


def encode_samples(times_ms: npt.NDArray[np.int64], values: npt.NDArray[np.float64]) -> npt.NDArray[np.void]:
    """Samples of any shape, each as it stands in a TimeSeries."""
    assert times_ms.size == 0 or (times_ms.min() >= 1 << 35 and times_ms.max() < 1 << 42)
    out = np.empty(values.shape, dtype=_SAMPLE)
    out["head"] = (2 << 3 | 2, _SAMPLE.itemsize - 2, 1 << 3 | 1)
    out["value"] = values
    out["tag"] = 2 << 3
    for place in range(6):
        out["time"][..., place] = (times_ms >> 7 * place) & 0x7F | (0x80 if place < 5 else 0)
    return out


def series(labels: bytes, samples: npt.NDArray[np.void]) -> bytes:
    """A TimeSeries inside its WriteRequest."""
    return _field(1, labels + samples.tobytes())


class Sender:
    """Writes to ``url``. ``epoch``: Unix time of second 0. Remembers which series were there, to mark their end."""

    def __init__(self, url: str, epoch: float) -> None:
        self._client = httpx.Client(base_url=url, trust_env=False, timeout=120)
        self._epoch = epoch
        self._labels: dict[tuple[str, Labels], list[bytes]] = {}
        self._present: dict[tuple[str, Labels], npt.NDArray[np.bool_]] = {}

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def send(self, tables: Iterable[Table], scrapes: Scrapes) -> None:
        """Write all series of one target's scrapes. Raises RuntimeError if they are refused."""
        times = np.rint((scrapes.times + self._epoch) * 1000).astype(np.int64)
        self.post(one for table in tables for one in self._encode(table, times, scrapes.happened))

    def _encode(self, table: Table, times: npt.NDArray[np.int64], happened: npt.NDArray[np.bool_]) -> Iterator[bytes]:
        if not len(table.labels):
            return
        key = (table.name, table.labels[0])
        if key not in self._labels:
            self._labels[key] = [encode_labels(table.name, labels) for labels in table.labels]
            self._present[key] = np.zeros(len(table.labels), dtype=bool)
        present = table.present[:, happened]
        if not present.shape[1]:
            return
        ends = after_presence(present, self._present[key])
        written = present | ends
        values = np.where(ends, STALE, table.values[:, happened])
        samples = encode_samples(times[:, happened][table.host], values)
        full = written.all(axis=1)
        self._present[key] = present[:, -1].copy()
        for row in np.flatnonzero(written.any(axis=1)):
            yield series(self._labels[key][row], samples[row] if full[row] else samples[row][written[row]])

    def post(self, encoded: Iterable[bytes]) -> None:
        """Send series in requests of a few megabytes."""
        parts: list[bytes] = []
        size = 0
        for one in encoded:
            parts.append(one)
            size += len(one)
            if size > _REQUEST_BYTES:
                self._post(b"".join(parts))
                parts, size = [], 0
        if parts:
            self._post(b"".join(parts))

    def _post(self, body: bytes) -> None:
        # Snappy's block format: the length, then a literal, whose length less one takes four bytes.
        compressed = _varint(len(body)) + b"\xfc" + struct.pack("<I", len(body) - 1) + body
        answer = self._client.post("/api/v1/write", content=compressed, headers=_HEADERS)
        if not answer.is_success:
            raise RuntimeError(f"samples are refused: {answer.status_code} {answer.text}")

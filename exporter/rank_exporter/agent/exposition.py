"""Families as text, in the format that a scraper asks for.

prometheus_client writes it, but most of an exposition are the buckets of a few hundred histograms, whose lines are
the same at every scrape but for the counts. Writing those anew each time costs more than all the rest, on cores that
training wants. So the library writes each histogram once, and its lines are kept up to the values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Metric as Family
from prometheus_client.utils import floatToGoString

from ..catalog import Metric
from .families import Families, Histogram, family_of

__all__ = ["Encoder", "Exposition"]

_END: Final = "# EOF\n"
_SHORT: Final = 1_000_000
"""Below it an integral value has no exponent."""
_FORMATS: Final = 4
"""Formats that are remembered: scrapers may ask for any version of one."""
Encoder = Callable[[Any], bytes]
"""As prometheus_client.exposition.choose_encoder returns it: from a registry to text."""
_Key = tuple[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Registry:
    """What prometheus_client's encoders read."""

    families: Sequence[Family]

    def collect(self) -> Iterable[Family]:
        return self.families


@dataclass(slots=True)
class _Format:
    """One format of the exposition. ``lines``: by metric and labels, the beginnings of the lines of a histogram."""

    encode: Encoder
    lines: dict[_Key, list[str]]

    def text(self, families: Sequence[Family]) -> str:
        """What the library writes, without the end that OpenMetrics asks for."""
        return self.encode(_Registry(families)).decode().removesuffix(_END)


class Exposition:
    """Encodes families as prometheus_client would. Not thread-safe. Remembers the series of the latest call only."""

    def __init__(self) -> None:
        self._formats: dict[str, _Format] = {}

    def text(self, families: Families, encode: Encoder, content_type: str) -> bytes:
        """What ``encode(families)`` returns. ``content_type`` names the format, of which lines are remembered."""
        known = self._format(encode, content_type)
        used: dict[_Key, list[str]] = {}
        pieces: list[str] = []
        plain: list[Family] = []
        for metric, found in families.parts():
            if not isinstance(found, list):
                plain.append(found)
                continue
            if plain:
                pieces.append(known.text(plain))
                plain = []
            pieces.append(known.text([family_of(metric)]))
            for histogram in found:
                _write(pieces, known, used, metric, histogram)
        known.lines = used
        # The last call of the library ends the text as its format demands.
        return "".join(pieces).encode() + encode(_Registry(plain))

    def _format(self, encode: Encoder, content_type: str) -> _Format:
        known = self._formats.pop(content_type, None) or _Format(encode=encode, lines={})
        self._formats[content_type] = known
        while len(self._formats) > _FORMATS:
            del self._formats[next(iter(self._formats))]
        return known


def _write(
    pieces: list[str], known: _Format, used: dict[_Key, list[str]], metric: Metric, histogram: Histogram
) -> None:
    key = (metric.name, histogram.labels)
    lines = known.lines.get(key)
    if lines is None:
        lines = _beginnings(known, metric, histogram)
    used[key] = lines
    counts = (*histogram.counts, histogram.counts[-1])
    values = [f"{count}.0\n" if count < _SHORT else f"{_number(count)}\n" for count in counts]
    values.append(f"{_number(histogram.total)}\n")
    if histogram.exemplar is not None:
        place, exemplar = histogram.exemplar
        alone = Histogram(histogram.labels, [histogram.edges[place]], [0], 0.0, (0, exemplar))
        line = _lines(known, metric, alone)[0]
        values[place] = values[place][:-1] + line[len(lines[place]) + len("0.0") :] + "\n"
    pieces += [part for line in zip(lines, values, strict=True) for part in line]


def _number(value: float) -> str:
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]


def _beginnings(known: _Format, metric: Metric, histogram: Histogram) -> list[str]:
    """The lines of a histogram up to their values: its buckets, its count, its sum."""
    empty = Histogram(histogram.labels, histogram.edges, [0] * len(histogram.edges), 0.0)
    return [line[: line.rindex(" ") + 1] for line in _lines(known, metric, empty)]


def _lines(known: _Format, metric: Metric, histogram: Histogram) -> list[str]:
    family = family_of(metric)
    histogram.add_to(family)
    return [line for line in known.text([family]).split("\n") if line and line[0] != "#"]

"""The classic bucket edges of each phase, and of gradient buckets, as they are exposed."""

from __future__ import annotations

from typing import Final

from prometheus_client.utils import floatToGoString

from ..histogram import COARSE_EDGES, FINE_EDGES, SHORT_EDGES, edge_seconds
from ..phases import BESIDE_STEP, Phase

__all__ = ["EDGES", "SHORT_TEXTS"]


def _texts(edges: tuple[int, ...]) -> list[str]:
    return [str(floatToGoString(edge_seconds(edge))) for edge in edges] + ["+Inf"]  # type: ignore[no-untyped-call]


EDGES: Final[dict[Phase, tuple[tuple[int, ...], list[str]]]] = {
    phase: (edges, _texts(edges)) for phase in Phase for edges in [COARSE_EDGES if phase in BESIDE_STEP else FINE_EDGES]
}
"""Indices of the edges on the grid, and the values of the label ``le`` with +Inf at the end."""

SHORT_TEXTS: Final[list[str]] = _texts(SHORT_EDGES)
"""Values of the label ``le`` for gradient buckets, +Inf at the end."""

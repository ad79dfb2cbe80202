"""Many series of one name, each with a value at every scrape of its host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Labels", "Scrapes", "Table", "after_presence"]

Labels = tuple[tuple[str, str], ...]
"""Pairs of name and value, without ``__name__``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrapes:
    """K consecutive scrapes of H hosts. times (H, K): seconds. happened (K,): False while Prometheus is down."""

    first: int
    times: npt.NDArray[np.float64]
    happened: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """n series of ``name``.

    host (n,): by which scrapes. values (n, K). present (n, K): False where the exposition lacks the series, which
    then ends in Prometheus too.
    """

    name: str
    labels: Sequence[Labels]
    host: npt.NDArray[np.intp]
    values: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]


def after_presence(present: npt.NDArray[np.bool_], before: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Where a series that was there at the scrape before is not any more. present (n, K), before (n,)."""
    shifted = np.concatenate([before[:, None], present[:, :-1]], axis=1)
    return shifted & ~present

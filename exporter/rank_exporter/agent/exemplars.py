"""Exemplars: which recent step was the slow one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from prometheus_client.core import Exemplar

from ..phases import Phase

__all__ = ["slowest_inputs"]


def slowest_inputs(steps: npt.NDArray[Any], since_unix_ns: int) -> dict[int, tuple[int, Exemplar]]:
    """By shard slot, the step that waited longest for input among those that ended after ``since_unix_ns``.

    ``steps``: records of dtype STEP_DTYPE. Returns the duration in ns and an exemplar with the step's number, its
    duration in seconds and its end in Unix seconds.
    """
    waits = steps["ns"][:, Phase.INPUT_READY]
    recent = steps[(steps["end_unix_ns"] >= since_unix_ns) & (waits > 0)]
    found: dict[int, tuple[int, Exemplar]] = {}
    for slot in np.unique(recent["shard"]):
        of_slot = recent[recent["shard"] == slot]
        slowest = of_slot[of_slot["ns"][:, Phase.INPUT_READY].argmax()]
        ns = int(slowest["ns"][Phase.INPUT_READY])
        labels = {"step": str(slowest["step"])}
        found[int(slot)] = ns, Exemplar(labels, ns / 1e9, int(slowest["end_unix_ns"]) / 1e9)
    return found

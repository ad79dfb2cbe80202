"""How colours look to eyes that lack a kind of cone, and how far apart they are.

Simulation by Machado, Oliveira and Fernandes (2009), severity 1; distance in CIELAB (CIE 1976), of which 2 can just be
seen side by side.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["VISIONS", "difference"]

Vector = npt.NDArray[np.float64]

VISIONS: dict[str, list[list[float]]] = {
    "normal": [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}

_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
_WHITE = np.array([0.9505, 1.0, 1.089])


def _linear(colour: str) -> Vector:
    """#RRGGBB as linear light."""
    value = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def _lab(linear: Vector) -> Vector:
    ratio = _TO_XYZ @ linear / _WHITE
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def difference(one: str, other: str, vision: str) -> float:
    """Return how far apart two colours look to an eye of the given vision."""
    seen = [_lab(np.clip(np.array(VISIONS[vision]) @ _linear(colour), 0, 1)) for colour in (one, other)]
    return float(np.linalg.norm(seen[0] - seen[1]))

"""How many samples and tokens a trainer's batch holds, read off its shapes: no tensor is looked into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["samples_of", "tokens_of"]


def samples_of(batch: Any) -> int:
    """Length along the first axis of the first array in the batch; 0 where there is none."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        parts = batch
    return next((found for part in parts if (found := samples_of(part))), 0)


def tokens_of(batch: Any) -> int:
    """Elements of ``input_ids``, padding included; 0 where the batch names none."""
    count = getattr(batch.get("input_ids"), "numel", None) if isinstance(batch, Mapping) else None
    return int(count()) if count is not None else 0

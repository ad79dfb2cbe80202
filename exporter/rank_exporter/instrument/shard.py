"""Which shard a batch came from, where nobody says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

__all__ = ["shard_of_batch", "shard_of_dataset"]

_KEYS: Final = ("__url__", "shard")
"""WebDataset puts the address of the archive into each sample; others name the shard as such."""


def shard_of_batch(batch: Any) -> str | None:
    """The shard that a batch names under one of the usual keys; of several, the first. Never looks into a tensor."""
    if isinstance(batch, Mapping):
        for key in _KEYS:
            named = batch.get(key)
            if isinstance(named, (list, tuple)) and named:
                named = named[0]
            if isinstance(named, str) and named:
                return named
    return None


def shard_of_dataset(loader: Any) -> str | None:
    """The shard that the loader's dataset names as its own."""
    named = getattr(getattr(loader, "dataset", None), "shard", None)
    return named if isinstance(named, str) and named else None

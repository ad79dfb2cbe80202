"""How many samples and tokens a batch holds, read off its shapes: no tensor is looked into."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

__all__ = ["samples_of", "tokens_of"]

_OF_TOKENS: Final = ("input_ids", "attention_mask")


def samples_of(batch: Any) -> int:
    """Length along the first axis of the first array in the batch, else that of a list of samples; 0 where there is
    neither."""
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    parts: Iterable[Any] = ()
    if isinstance(batch, Mapping):
        parts = batch.values()
    elif isinstance(batch, (list, tuple)):
        if batch and (isinstance(batch[0], (Mapping, str, bytes)) or all(type(part) is tuple for part in batch)):
            return _of_list(batch)
        parts = batch
    return next((found for part in parts if (found := samples_of(part))), 0)


def _of_list(batch: Sequence[Any]) -> int:
    """Of samples that were put together as they are; or of their parts, if those are tuples of texts."""
    first = batch[0]
    if isinstance(first, tuple) and first and all(isinstance(part, (str, bytes)) for part in first):
        return len(first)
    return len(batch)


def tokens_of(batch: Any) -> int:
    """Elements of ``input_ids``, else of ``attention_mask``, padding included; 0 where the batch names neither."""
    if isinstance(batch, Mapping):
        for key in _OF_TOKENS:
            count = getattr(batch.get(key), "numel", None)
            if count is not None:
                return int(count())
    return 0

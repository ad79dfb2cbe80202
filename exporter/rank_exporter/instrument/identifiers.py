"""Identifiers of a batch's samples, where the user says how to find them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["by_key", "listed"]


def by_key(key: str | int) -> Callable[[Any], Sequence[Any]]:
    """Finds them under a key or place: of the batch (a mapping, a tuple, an object with attributes), or of each sample
    in a list of samples."""

    def of_one(holder: Any) -> Any:
        if isinstance(holder, Mapping) or isinstance(key, int):
            return holder[key]
        return getattr(holder, key)

    def identify(batch: Any) -> Sequence[Any]:
        try:
            if isinstance(batch, list) and (isinstance(key, str) or isinstance(batch[0], (Mapping, tuple, list))):
                return [of_one(sample) for sample in batch]
            return listed(of_one(batch))
        except (LookupError, AttributeError, TypeError) as error:
            raise LookupError(
                f"batches of {type(batch).__name__!r} have no {key!r} to identify samples by ({error}): "
                "have collate_fn keep it, or give sample_ids a function of the batch"
            ) from None

    return identify


def listed(found: Any) -> list[Any]:
    """Identifiers as a plain list: of a tensor or array, of any sequence, or of one alone. TypeError: on a device, from
    where to fetch them would hold training up."""
    device = getattr(found, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        raise TypeError(f"they are on {device}, and to fetch them would hold training up")
    as_list = getattr(found, "tolist", None)
    if as_list is not None:
        found = as_list()
    if isinstance(found, list):
        return found
    return [found] if isinstance(found, (int, str, bytes)) else list(found)

"""Times what loader workers take for a batch, in the workers themselves.

A worker is told to at its start, by the function that initialises it; it then hands over each batch with the time that
it took. The training process takes the batch out again before anybody sees it.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from torch.utils.data._utils.fetch import _IterableDatasetFetcher, _MapDatasetFetcher
from torch.utils.data._utils.pin_memory import pin_memory

__all__ = ["Produced", "TimedWorker"]


class Produced:
    """A batch on its way from a worker, the ns that producing it took, and, where it is wanted, the indices that it was
    made from."""

    __slots__ = ("batch", "index", "ns")

    def __init__(self, batch: Any, ns: int, index: Any = None) -> None:
        self.batch = batch
        self.ns = ns
        self.index = index

    def pin_memory(self, device: Any = None) -> Produced:
        """As torch asks of anything that it cannot pin by itself."""
        return Produced(pin_memory(self.batch, device), self.ns, self.index)  # type: ignore[no-untyped-call]


class TimedWorker:
    """Initialises a worker as its user wants, then has it time its fetches. Goes to the worker: can be pickled.

    ``tells_indices``: each batch is handed over with the indices it was made from, for loaders that do not keep order.
    """

    __slots__ = ("_initialise", "_tells_indices")

    def __init__(self, initialise: Callable[[int], Any] | None, *, tells_indices: bool = False) -> None:
        self._initialise = initialise
        self._tells_indices = tells_indices

    def __call__(self, worker_id: int) -> None:
        if self._initialise is not None:
            self._initialise(worker_id)
        for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
            fetcher.fetch = _timed(fetcher.fetch, self._tells_indices)  # type: ignore[method-assign]


def _timed(fetch: Callable[..., Any], tells_indices: bool) -> Callable[..., Any]:
    if hasattr(fetch, "__wrapped__"):
        return fetch

    @functools.wraps(fetch)
    def timed(*arguments: Any) -> Produced:
        began = time.monotonic_ns()
        batch = fetch(*arguments)
        return Produced(batch, time.monotonic_ns() - began, arguments[1] if tells_indices else None)

    return timed

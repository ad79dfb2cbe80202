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
    """A batch on its way from a worker, and the ns that producing it took."""

    __slots__ = ("batch", "ns")

    def __init__(self, batch: Any, ns: int) -> None:
        self.batch = batch
        self.ns = ns

    def pin_memory(self, device: Any = None) -> Produced:
        """As torch asks of anything that it cannot pin by itself."""
        return Produced(pin_memory(self.batch, device), self.ns)  # type: ignore[no-untyped-call]


class TimedWorker:
    """Initialises a worker as its user wants, then has it time its fetches. Goes to the worker: can be pickled."""

    __slots__ = ("_initialise",)

    def __init__(self, initialise: Callable[[int], Any] | None) -> None:
        self._initialise = initialise

    def __call__(self, worker_id: int) -> None:
        if self._initialise is not None:
            self._initialise(worker_id)
        for fetcher in (_MapDatasetFetcher, _IterableDatasetFetcher):
            fetcher.fetch = _timed(fetcher.fetch)  # type: ignore[method-assign]


def _timed(fetch: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(fetch, "__wrapped__"):
        return fetch

    @functools.wraps(fetch)
    def timed(*arguments: Any) -> Produced:
        began = time.monotonic_ns()
        batch = fetch(*arguments)
        return Produced(batch, time.monotonic_ns() - began)

    return timed

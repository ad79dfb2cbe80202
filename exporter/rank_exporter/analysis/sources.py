"""Asks several sources at once, so that one that does not answer costs itself alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

import httpx

from ..errors import SourceError

__all__ = ["AGENT", "ask_all", "get"]

S = TypeVar("S")
T = TypeVar("T")

AGENT: Final = "an agent's address"
_AT_ONCE: Final = 16


def get(
    address: str, timeout_seconds: float, *, params: Mapping[str, str] | None = None, what: str = AGENT
) -> httpx.Response:
    """What an address answers. ``what`` should stand there. Raises SourceError, in one line."""
    # A proxy is for the way out, and may not know the hosts of a cluster.
    try:
        with httpx.Client(trust_env=False, timeout=timeout_seconds) as client:
            response = client.get(address, params=params)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise SourceError(f"{address} cannot be read ({reason}): give {what}, http://HOST:PORT") from error
    if response.status_code != httpx.codes.OK:
        raise SourceError(f"{address} answers {response.status_code}: give {what}, http://HOST:PORT")
    return response


def ask_all(sources: Iterable[S], read: Callable[[S], T]) -> tuple[list[tuple[S, T]], list[str]]:
    """Read all sources, some at a time: those that could be, in their order, and one line for each other one."""

    def attempt(source: S) -> T | SourceError:
        try:
            return read(source)
        except SourceError as error:
            return error

    several = list(sources)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        outcomes = list(pool.map(attempt, several))
    found = [
        (one, outcome) for one, outcome in zip(several, outcomes, strict=True) if not isinstance(outcome, SourceError)
    ]
    return found, [str(outcome) for outcome in outcomes if isinstance(outcome, SourceError)]

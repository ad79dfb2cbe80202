"""A connection to the agent, which no client can hold for long without a request.

uvicorn times out only what is idle between two requests. A client that connects and says nothing, that sends its
request a byte at a time, or that does not read its answer, would keep a place for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["IDLE_SECONDS", "MOST_ANSWERING", "MOST_WAITING", "REQUEST_SECONDS", "RESPONSE_SECONDS", "Connection"]

MOST_WAITING: Final = 64
"""Connections without a request, of which there is one from each client that scrapes now and then."""
MOST_ANSWERING: Final = 64
"""Requests at once."""
REQUEST_SECONDS: Final = 10.0
"""For the whole of a request, from the connection or from its first byte."""
RESPONSE_SECONDS: Final = 60.0
"""For rendering an answer, and for the client to take it."""
IDLE_SECONDS: Final = 30
"""Between two requests."""
_FLUSH_SECONDS: Final = 5.0


class Connection(H11Protocol):
    """One client. ``on_accept`` is called for each, before TLS.

    Where too many are connected and ask for nothing, or do not take their answer, the one that has done so for longest
    gives way: a client that connects and asks is served, however many others do not. Where too many ask at once, a
    further request gets 503.
    """

    def __init__(self, *args: Any, on_accept: Callable[[], None] | None = None, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._deadline: asyncio.TimerHandle | None = None
        self._is_idle = False
        self._since = 0.0
        if on_accept is not None:
            on_accept()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self._expire_in(REQUEST_SECONDS)
        self._make_room([one for one in self._all() if not one.is_answering], MOST_WAITING)

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expire_in(REQUEST_SECONDS)
        was_answering = self.is_answering
        if not was_answering:
            answering = [one for one in self._all() if one.is_answering]
            blocked = [one for one in answering if one.transport.get_write_buffer_size()]
            self._make_room(blocked, len(blocked) - max(0, len(answering) - MOST_ANSWERING + 1))
            # With a limit of 0 uvicorn answers with 503.
            self.limit_concurrency = 0 if len(answering) - len(blocked) >= MOST_ANSWERING else None
        super().data_received(data)
        if self.is_answering and not was_answering:
            self._since = self.loop.time()
            self._expire_in(RESPONSE_SECONDS)

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        self._is_idle = True
        # A little longer than uvicorn, which closes it but first waits until the answer has been taken.
        self._expire_in(IDLE_SECONDS + _FLUSH_SECONDS)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    @property
    def is_answering(self) -> bool:
        """Whether a request has come and its answer is not yet complete."""
        return self.cycle is not None and not self.cycle.response_complete

    def _expire_in(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.give_up)

    def give_up(self) -> None:
        """Close, without waiting for the client."""
        self.transport.abort()

    def _all(self) -> list[Connection]:
        return [one for one in self.connections if isinstance(one, Connection)]

    def _make_room(self, waiting: list[Connection], most: int) -> None:
        """Close the oldest of those that wait until there are no more than ``most``."""
        excess = len(waiting) - max(most, 0)
        if excess > 0:
            for one in sorted(waiting, key=lambda one: one._since)[:excess]:
                # Gone now, so that several that come at once do not all send the same one away.
                self.connections.discard(one)
                one.give_up()

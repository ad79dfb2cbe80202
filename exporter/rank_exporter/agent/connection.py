"""A connection to the agent, which no client can hold for long without a request.

uvicorn times out only what is idle between two requests. A client that connects and says nothing, that sends its
request a byte at a time, or that does not read its answer, would keep a place for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["IDLE_SECONDS", "MOST_CONNECTIONS", "REQUEST_SECONDS", "RESPONSE_SECONDS", "Connection"]

MOST_CONNECTIONS: Final = 64
REQUEST_SECONDS: Final = 10.0
"""For the whole of a request, from the connection or from its first byte."""
RESPONSE_SECONDS: Final = 60.0
"""For rendering an answer, and for the client to take it."""
IDLE_SECONDS: Final = 30
"""Between two requests."""
_FLUSH_SECONDS: Final = 5.0


class Connection(H11Protocol):
    """One client. ``on_accept`` is called for each, before TLS.

    Where too many are connected, the one that has waited longest gives way: one that asks for nothing, else one that
    does not take its answer. So a client that connects and asks is served, however many others do not.
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
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self._is_idle:
            self._is_idle = False
            self._expire_in(REQUEST_SECONDS)
        was_answering = self.is_answering
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

    @property
    def is_stuck(self) -> bool:
        """Whether it waits for nothing but the client."""
        return not self.is_answering or self.transport.get_write_buffer_size() > 0

    def _expire_in(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(seconds, self.give_up)

    def give_up(self) -> None:
        """Close, without waiting for the client."""
        self.transport.abort()

    def _make_room(self) -> None:
        others = [one for one in self.connections if isinstance(one, Connection) and one is not self]
        stuck = [one for one in others if one.is_stuck]
        oldest = min(stuck, key=lambda one: (one.is_answering, one._since), default=self)
        # Gone now, so that several that come at once do not all send the same one away.
        self.connections.discard(oldest)
        oldest.give_up()

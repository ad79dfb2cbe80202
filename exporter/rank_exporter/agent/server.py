"""The agent over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import signal
import socket
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

import uvicorn
from prometheus_client.exposition import gzip_accepted
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from .page import page

if TYPE_CHECKING:
    from .service import Service

__all__ = ["application", "run"]

_SCAN_SECONDS: Final = 1.0
_COMPRESSION: Final = 3
"""A fifth of the time that gzip's default takes, for a body a sixth larger."""


def application(service: Service, *, on_start: Callable[[], None], leave: Callable[[], None]) -> Starlette:
    """The HTTP interface. ``on_start`` is called once requests are taken, ``leave`` when nobody needs them any more."""

    async def watch() -> None:
        while not await asyncio.to_thread(service.scan):
            await asyncio.sleep(_SCAN_SECONDS)
        leave()

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        watcher = asyncio.create_task(watch())
        on_start()
        yield
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher

    # Plain functions: they run in worker threads, so that a rendering never keeps /healthz waiting.
    def metrics(request: Request) -> Response:
        body, content_type = service.metrics(",".join(request.headers.getlist("accept")))
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, _COMPRESSION)
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers)

    def index(_: Request) -> Response:
        return HTMLResponse(page(service.ranks(), service.directory))

    async def healthz(_: Request) -> Response:
        if service.alive:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("segments have not been looked for lately\n", status_code=503)

    routes = [Route("/metrics", metrics), Route("/healthz", healthz), Route("/", index)]
    return Starlette(routes=routes, lifespan=lifespan)


def run(service: Service, listener: socket.socket, *, on_start: Callable[[], None]) -> None:
    """Serve on a listening socket until the service has nothing more to do, or until SIGTERM or SIGINT."""

    def leave(*_: object) -> None:
        server.should_exit = True

    config = uvicorn.Config(
        application(service, on_start=on_start, leave=leave),
        loop="asyncio",
        http="h11",
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=64,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    server = uvicorn.Server(config)
    # uvicorn takes these signals while it serves and raises them again once it has closed; then they come here.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    server.run(sockets=[listener])

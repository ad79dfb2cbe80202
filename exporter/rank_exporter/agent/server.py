"""The agent over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import uvicorn
from prometheus_client.exposition import gzip_accepted
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ..errors import RankExporterError
from ..segment.wire import CONTENT_TYPE, as_json, encode
from .connection import IDLE_SECONDS, Connection
from .credentials import BasicAuth
from .page import page
from .steps import parse

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from .service import Service
    from .web_config import WebConfigFile

__all__ = ["application", "run"]

_SCAN_SECONDS: Final = 1.0
_HANDSHAKE_SECONDS: Final = 5.0
_REQUEST_BYTES: Final = 1 << 15
"""Of a request's line and headers."""
_MOST_DESCRIPTORS: Final = 1 << 14
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
        tasks = [asyncio.create_task(watch()), asyncio.create_task(service.aligner.run())]
        on_start()
        yield
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    # Plain functions: they run in worker threads, so that a rendering never keeps /healthz waiting.
    def metrics(request: Request) -> Response:
        body, content_type = service.metrics(",".join(request.headers.getlist("accept")))
        headers = {"content-type": content_type, "vary": "accept, accept-encoding"}
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            body = gzip.compress(body, _COMPRESSION)
            headers["content-encoding"] = "gzip"
        return Response(body, headers=headers)

    def steps(request: Request) -> Response:
        pairs = request.query_params.multi_items()
        try:
            answer = service.steps(parse(pairs))
        except RankExporterError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)
        if ("format", "json") in pairs:
            return JSONResponse(as_json(answer))
        return Response(encode(answer), media_type=CONTENT_TYPE)

    def index(_: Request) -> Response:
        return HTMLResponse(page(service.ranks(), service.directory))

    async def healthz(_: Request) -> Response:
        if service.alive:
            return PlainTextResponse("ok\n")
        return PlainTextResponse("segments have not been looked for lately\n", status_code=503)

    routes = [Route("/metrics", metrics), Route("/steps", steps), Route("/healthz", healthz), Route("/", index)]
    return Starlette(routes=routes, lifespan=lifespan)


def run(
    service: Service, listener: socket.socket, *, on_start: Callable[[], None], web: WebConfigFile | None = None
) -> None:
    """Serve on a listening socket until the service has nothing more to do, or until SIGTERM or SIGINT.

    Raises SettingError where the web configuration asks for what is not installed.
    """

    def leave(*_: object) -> None:
        server.should_exit = True

    app: ASGIApp = application(service, on_start=on_start, leave=leave)
    if web is not None and web.config.users:
        app = BasicAuth(app, users=web.users)
    config = uvicorn.Config(
        app,
        interface="asgi3",
        loop="asyncio",
        http=partial(Connection, on_accept=web and web.refresh),  # type: ignore[arg-type]
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        h11_max_incomplete_event_size=_REQUEST_BYTES,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = None if web is None else web.context
    server = _Server(config)
    # uvicorn takes these signals while it serves and raises them again once it has closed; then they come here.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    _raise_descriptor_limit()
    server.run(sockets=[listener])


class _Server(uvicorn.Server):
    """uvicorn's server, which by itself would leave a client a minute for the TLS handshake."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            loop = asyncio.get_running_loop()
            limited = partial(loop.create_server, ssl_handshake_timeout=_HANDSHAKE_SECONDS)
            loop.create_server = limited  # type: ignore[method-assign]
        await super().startup(sockets)


def _raise_descriptor_limit() -> None:
    """Clients that have connected but not finished a TLS handshake are not counted, and must not use up descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MOST_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))

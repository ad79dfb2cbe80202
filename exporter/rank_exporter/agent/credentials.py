"""Who may ask: HTTP basic authentication in front of the whole application."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import importlib
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from ..errors import SettingError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["BasicAuth"]

_REMEMBERED: Final = 64
_MOST_WAITING: Final = 16
_BCRYPT_BYTES: Final = 72
"""bcrypt looks at no more of a password."""


class _BusyError(Exception):
    """Too many passwords wait to be checked."""


class BasicAuth:
    """ASGI middleware: a request without the name and password of one of the users gets 401, whatever it is for.

    A bcrypt hash takes a twentieth of a second and more, so a password that was right is remembered, by a keyed digest
    that is good for this process alone, and others are checked one at a time in a thread; where too many wait for that,
    a further one gets 503. An unknown name takes as long as a wrong password. Raises SettingError where bcrypt is not
    installed.
    """

    def __init__(self, app: ASGIApp, *, users: Callable[[], Mapping[str, bytes]]) -> None:
        try:
            self._bcrypt = importlib.import_module("bcrypt")
        except ImportError as error:
            raise SettingError(
                "basic_auth_users need bcrypt, which is not installed: pip install 'rank-exporter[auth]'"
            ) from error
        self._app = app
        self._users = users
        self._key = secrets.token_bytes(32)
        self._right: dict[bytes, None] = {}
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            known = await self._is_right(Headers(scope=scope).getlist("authorization"))
        except _BusyError:
            await PlainTextResponse("busy\n", status_code=503, headers={"retry-after": "1"})(scope, receive, send)
            return
        if known:
            await self._app(scope, receive, send)
            return
        headers = {"www-authenticate": 'Basic realm="rank-exporter"'}
        await PlainTextResponse("unauthorized\n", status_code=401, headers=headers)(scope, receive, send)

    async def _is_right(self, headers: list[str]) -> bool:
        given = _decode(headers[0]) if len(headers) == 1 else None
        if given is None:
            return False
        name, password = given
        users = self._users()
        hashed = users.get(name)
        digest = hashlib.blake2b(repr((name, password, hashed)).encode(), key=self._key).digest()
        if hashed is not None and digest in self._right:
            return True
        if self._waiting >= _MOST_WAITING:
            raise _BusyError
        self._waiting += 1
        try:
            async with self._turn:
                matches = await asyncio.to_thread(self._matches, password, hashed or next(iter(users.values()), b""))
        finally:
            self._waiting -= 1
        if hashed is None or not matches:
            return False
        while len(self._right) >= _REMEMBERED:
            del self._right[next(iter(self._right))]
        self._right[digest] = None
        return True

    def _matches(self, password: bytes, hashed: bytes) -> bool:
        try:
            return bool(self._bcrypt.checkpw(password[:_BCRYPT_BYTES], hashed))
        except ValueError:
            # Such as a NUL byte in the password.
            return False


def _decode(header: str) -> tuple[str, bytes] | None:
    """Name and password of an Authorization header; None if it holds none."""
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        return (name.decode(), password) if colon else None
    except (binascii.Error, UnicodeDecodeError):
        return None

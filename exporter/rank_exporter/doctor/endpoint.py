"""A server's HTTP interface, asked for JSON or text."""

from __future__ import annotations

import json
import ssl
from types import TracebackType
from typing import Any

import httpx

from ..errors import SettingError, SourceError

__all__ = ["Endpoint", "RefusedError"]

_TIMEOUT_SECONDS = 10.0


class RefusedError(SourceError):
    """The server is there, and asks for credentials or other ones."""


class Endpoint:
    """A base address. Credentials in it (https://user:password@host) are sent, and never shown. A context manager."""

    def __init__(self, address: str, *, ca_file: str | None = None, token: str | None = None) -> None:
        """Raises SettingError if it is no address, or the certificates cannot be used."""
        try:
            url = httpx.URL(address if "://" in address else f"http://{address}")
        except httpx.InvalidURL as error:
            raise SettingError(f"{address!r} is no address ({error}): give one like http://host:9090") from error
        if url.scheme not in ("http", "https") or not url.host:
            raise SettingError(f"{address!r} is no address: give one like http://host:9090")
        try:
            context = ssl.create_default_context(cafile=ca_file) if ca_file else ssl.create_default_context()
        except OSError as error:
            raise SettingError(f"CA file {ca_file} cannot be used ({error}): give certificates in PEM") from error
        auth = (url.username, url.password) if url.username or url.password else None
        bare = url.copy_with(username=None, password=None)
        self.name = str(bare).rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._client = httpx.Client(
            base_url=bare, auth=auth, headers=headers, verify=context, timeout=_TIMEOUT_SECONDS, trust_env=False
        )

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def text(self, path: str, **params: str) -> str:
        """The body of an answer 200. Raises SourceError, and RefusedError for 401 and 403."""
        try:
            answer = self._client.get(path.lstrip("/"), params=params)
        except httpx.HTTPError as error:
            raise SourceError(f"{self.name} cannot be reached ({str(error) or type(error).__name__})") from error
        if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise RefusedError(f"{self.name} answers {answer.status_code}: it wants credentials, or other ones")
        if answer.status_code != httpx.codes.OK:
            raise SourceError(f"{self.name} answers {answer.status_code} to {path}")
        return answer.text

    def json(self, path: str, **params: str) -> Any:
        """The same, parsed. Raises SourceError."""
        text = self.text(path, **params)
        try:
            return json.loads(text)
        except ValueError as error:
            raise SourceError(f"{self.name} answers no JSON to {path}: is it what it was said to be?") from error

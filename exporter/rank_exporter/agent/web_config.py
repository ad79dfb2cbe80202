"""The web configuration file of Prometheus' exporters, as the exporter-toolkit documents it: TLS and users.

What the agent cannot do is refused when it starts, in one line, never ignored. While it serves, users and certificates
are taken from the file as it stands; other changes need a restart.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from ..errors import SettingError

__all__ = ["TlsConfig", "WebConfig", "WebConfigFile", "load"]

_BCRYPT: Final = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}", re.ASCII)
_VERSIONS: Final = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH: Final = {
    "NoClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
_TOP: Final = ("tls_server_config", "basic_auth_users", "http_server_config")
_TLS: Final = ("cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version")
_HTTP: Final = ("http2",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """How connections are encrypted, and which clients have to prove who they are."""

    cert_file: Path
    key_file: Path
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    client_ca_file: Path | None = None
    min_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_2
    max_version: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3

    def context(self) -> ssl.SSLContext:
        """A server's context. Raises SettingError if a file cannot be used."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = self.min_version
        context.maximum_version = self.max_version
        context.set_alpn_protocols(["http/1.1"])
        self.load_certificate(context)
        if self.client_ca_file is not None:
            try:
                context.load_verify_locations(cafile=self.client_ca_file)
            except OSError as error:
                raise SettingError(
                    f"client_ca_file {self.client_ca_file} cannot be used ({_reason(error)}): give certificates in PEM"
                ) from error
        context.verify_mode = self.client_auth
        return context

    def load_certificate(self, context: ssl.SSLContext) -> None:
        """Use the certificate for the connections to come. Raises SettingError."""
        try:
            context.load_cert_chain(self.cert_file, self.key_file, password=_no_password)
        except (OSError, ValueError) as error:
            raise SettingError(
                f"cert_file {self.cert_file} with key_file {self.key_file} cannot be used ({_reason(error)}): "
                "give a certificate and its key in PEM, without a password"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig:
    """``tls`` None: plain HTTP. ``users``: bcrypt hashes by name; anybody may ask where it is empty."""

    tls: TlsConfig | None = None
    users: Mapping[str, bytes] = field(default_factory=dict)


class WebConfigFile:
    """A web configuration in use, which follows its file. For one thread.

    ``complain`` is called with a line when the file can no longer be used: then what it said before stays in force.
    """

    def __init__(self, path: Path, complain: Callable[[str], None]) -> None:
        """Raises SettingError."""
        self._path = path
        self._complain = complain
        self.config = load(path)
        self.context = self.config.tls.context() if self.config.tls else None
        self._seen = self._state()

    def users(self) -> Mapping[str, bytes]:
        """Who may ask now."""
        self.refresh()
        return self.config.users

    def refresh(self) -> None:
        """Take over what has changed in the files since."""
        state = self._state()
        if state == self._seen:
            return
        self._seen = state
        try:
            config = load(self._path)
            if (config.tls is None) != (self.context is None):
                raise SettingError("TLS is switched on and off by a restart")
            if config.tls is not None and self.context is not None:
                config.tls.load_certificate(self.context)
        except SettingError as error:
            self._complain(f"web configuration {self._path} stays as it was: {error}")
        else:
            self.config = config

    def _state(self) -> tuple[tuple[int, int, int] | None, ...]:
        tls = self.config.tls
        return tuple(_identity(path) for path in (self._path, *((tls.cert_file, tls.key_file) if tls else ())))


def load(path: Path) -> WebConfig:
    """Read a web configuration file. Raises SettingError, in one line."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingError(f"web_config_file {path} cannot be read ({error.strerror}): give a readable file") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SettingError(f"web_config_file {path}{_line(error)} is no YAML: correct it") from error
    settings = _section(document if document is not None else {}, "the file", _TOP)
    http = _section(settings.get("http_server_config") or {}, "http_server_config", _HTTP)
    if http.get("http2", False) is not False:
        raise SettingError("http_server_config.http2 is set, but HTTP/1.1 alone is served: leave it out")
    tls = settings.get("tls_server_config")
    return WebConfig(
        tls=None if tls is None else _tls(_section(tls, "tls_server_config", _TLS), path.parent),
        users=_users(settings.get("basic_auth_users") or {}),
    )


def _section(value: object, name: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingError(f"{name} of the web configuration is {value!r}: give keys and values")
    for key in value:
        if key not in known:
            raise SettingError(
                f"{name} of the web configuration has {key!r}, which is not supported: known are {', '.join(known)}"
            )
    return value


def _tls(section: Mapping[str, Any], folder: Path) -> TlsConfig:
    def file(key: str) -> Path | None:
        name = section.get(key)
        if name is None or name == "":
            return None
        if not isinstance(name, str):
            raise SettingError(f"tls_server_config.{key} is {name!r}: give a path")
        return folder / name

    cert_file, key_file, client_ca_file = file("cert_file"), file("key_file"), file("client_ca_file")
    if cert_file is None or key_file is None:
        raise SettingError("tls_server_config lacks cert_file or key_file: give both")
    client_auth = _choice(section, "client_auth_type", _CLIENT_AUTH, "NoClientCert")
    if client_auth is ssl.CERT_NONE and client_ca_file is not None:
        raise SettingError(
            "tls_server_config has client_ca_file, but client_auth_type asks for no certificates: "
            "set it to RequireAndVerifyClientCert"
        )
    if client_auth is not ssl.CERT_NONE and client_ca_file is None:
        raise SettingError("tls_server_config asks for client certificates, but has no client_ca_file: give it")
    lowest, highest = (
        _choice(section, "min_version", _VERSIONS, "TLS12"),
        _choice(section, "max_version", _VERSIONS, "TLS13"),
    )
    if lowest > highest:
        raise SettingError("tls_server_config has a min_version above max_version: exchange them")
    return TlsConfig(
        cert_file=cert_file,
        key_file=key_file,
        client_auth=client_auth,
        client_ca_file=client_ca_file,
        min_version=lowest,
        max_version=highest,
    )


def _choice(section: Mapping[str, Any], key: str, known: Mapping[str, Any], default: str) -> Any:
    name = section.get(key) or default
    if not isinstance(name, str) or name not in known:
        raise SettingError(f"tls_server_config.{key} is {name!r}: give one of {', '.join(known)}")
    return known[name]


def _users(section: object) -> dict[str, bytes]:
    if not isinstance(section, dict):
        raise SettingError(f"basic_auth_users is {section!r}: give names and bcrypt hashes")
    for name, hashed in section.items():
        if not isinstance(name, str) or not name or ":" in name:
            raise SettingError(f"basic_auth_users has the user {name!r}: give a name without a colon")
        # The value may be a password by mistake, so it is not repeated.
        if not isinstance(hashed, str) or not _BCRYPT.fullmatch(hashed):
            raise SettingError(
                f"basic_auth_users.{name} is no bcrypt hash: make one with `htpasswd -nBC 10 {name}` and give what "
                "follows the colon"
            )
    return {name: hashed.encode() for name, hashed in section.items()}


def _identity(path: Path) -> tuple[int, int, int] | None:
    """What changes when a file is written or replaced, also by way of a link."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _no_password() -> str:
    raise ValueError("the key has a password")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _line(error: Exception) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return "" if mark is None else f", line {mark.line + 1},"

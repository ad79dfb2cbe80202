"""The socket that the agent serves on."""

from __future__ import annotations

import errno
import socket
from typing import Any, Final

from ..config import PORTS_TRIED
from ..errors import SettingError
from .faults import warn

__all__ = ["EVERYWHERE", "is_everywhere", "listen"]

EVERYWHERE: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - where to listen is the user's choice
_BACKLOG: Final = 128
_NO_IPV6: Final = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT})


def is_everywhere(address: str) -> bool:
    """Whether a listen address means every interface."""
    return address in EVERYWHERE


def listen(address: str, port: int) -> socket.socket | None:
    """A listening socket on the port, or on one of the next sixteen if others hold it (said once).

    None if all are taken. Address "" is every interface, IPv6 and IPv4 where the host has both. Port 0: any that
    is free. Raises SettingError if the address is none of this host or the port is not allowed.
    """
    last = min(port + PORTS_TRIED - 1, 65535) if port else 0
    for candidate in range(port, last + 1):
        found = _bind(address, candidate)
        if found is not None:
            if candidate != port:
                warn(f"port {port} is taken by another process: serving on {candidate}")
            return found
    return None


def _bind(address: str, port: int) -> socket.socket | None:
    try:
        if address:
            family, kind, protocol, _, place = socket.getaddrinfo(
                address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            return _listening(socket.socket(family, kind, protocol), place, dual=address == "::")
        try:
            return _listening(socket.socket(socket.AF_INET6, socket.SOCK_STREAM), ("::", port), dual=True)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            place = ("0.0.0.0", port)  # noqa: S104
            return _listening(socket.socket(socket.AF_INET, socket.SOCK_STREAM), place, dual=False)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise SettingError(
            f"cannot listen on {address or 'all interfaces'} port {port} ({error.strerror}): "
            "give an address of this host in listen_address, and a port that this user may use"
        ) from error


def _listening(sock: socket.socket, place: Any, *, dual: bool) -> socket.socket:
    try:
        # Connections of an agent that was killed linger in TIME_WAIT and must not keep the next one from the port.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        sock.bind(place)
        sock.listen(_BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock

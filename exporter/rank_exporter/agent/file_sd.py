"""The agent's entry for Prometheus' file-based service discovery."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from pathlib import Path

from ..config import AgentSettings
from .listener import is_everywhere

__all__ = ["entry_path", "known_as", "target", "write_entry"]


def entry_path(settings: AgentSettings, directory: Path, port: int) -> Path:
    """Where this agent's entry stands."""
    return directory / f"rank-exporter-{re.sub(r'[^A-Za-z0-9_.-]', '_', settings.host)}-{port}.json"


def known_as(settings: AgentSettings, port: int) -> str:
    """Address or name by which other hosts reach this one."""
    if not is_everywhere(settings.listen_address):
        return settings.listen_address
    try:
        socket.getaddrinfo(settings.host, port)
    except (OSError, UnicodeError):
        return socket.getfqdn() or socket.gethostname()
    return settings.host


def target(settings: AgentSettings, port: int) -> str:
    """ADDRESS:PORT by which other hosts reach this agent."""
    address = known_as(settings, port)
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def write_entry(settings: AgentSettings, directory: Path, port: int, *, encrypted: bool = False) -> Path:
    """Write the entry, whole or not at all, readable by Prometheus' user. It tells of TLS. Raises OSError."""
    path = entry_path(settings, directory, port)
    directory.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=directory)
    try:
        with os.fdopen(descriptor, "w") as file:
            labels = {"__scheme__": "https"} if encrypted else {}
            json.dump([{"targets": [target(settings, port)], "labels": labels}], file)
            file.write("\n")
            os.fchmod(file.fileno(), 0o644)
        Path(draft).replace(path)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return path

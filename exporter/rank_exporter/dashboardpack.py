"""The dashboards: generated JSON for Grafana 10 and later, found by name and written where Grafana reads them."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import DashboardError

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["dashboard", "titles", "write"]


def titles() -> dict[str, str]:
    """Return the title of each dashboard by its name, which is also its uid in Grafana."""
    return {name: json.loads(file.read_text(encoding="utf-8"))["title"] for name, file in _files().items()}


def dashboard(name: str) -> str:
    """Return the JSON text of one dashboard.

    Raises DashboardError, in one line, if there is none of that name.
    """
    files = _files()
    if name not in files:
        raise DashboardError(f"dashboard {name!r} is not known; use one of {', '.join(files)}")
    return files[name].read_text(encoding="utf-8")


def write(directory: Path) -> list[Path]:
    """Write every dashboard into ``directory``, which is made if need be, and return the files.

    Raises DashboardError, in one line, if a file cannot be written.
    """
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, file in _files().items():
            path = directory / f"{name}.json"
            path.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
            written.append(path)
    except OSError as error:
        raise DashboardError(
            f"dashboards cannot be written to {directory}: {error.strerror}; choose a directory that can be written to"
        ) from error
    return written


def _files() -> dict[str, Traversable]:
    folder = resources.files("rank_exporter") / "dashboards"
    found = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    if not found:
        raise DashboardError(f"no dashboards in {folder}; install rank-exporter again")
    return {file.name.removesuffix(".json"): file for file in sorted(found, key=lambda file: file.name)}

"""Writes the dashboards: ``python -m source`` beside the folder ``dashboards``, or with a directory as argument."""

from __future__ import annotations

import sys
from pathlib import Path

from .fleet import fleet
from .hosts_shards import hosts_shards
from .overview import overview
from .rank import rank

__all__ = ["render"]

_BOARDS = {
    "rank-exporter-stragglers": overview,
    "rank-exporter-rank": rank,
    "rank-exporter-hosts-shards": hosts_shards,
    "rank-exporter-fleet": fleet,
}


def render() -> dict[str, str]:
    """Return the JSON text of each dashboard by file name."""
    return {f"{name}.json": board() for name, board in _BOARDS.items()}


def main() -> None:
    """Write every dashboard that there is, and nothing else."""
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "dashboards"
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in render().items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

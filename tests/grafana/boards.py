"""Dashboards as the tests see them: their panels, queries, variables and annotations."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["DASHBOARDS", "GRAFANA", "Board", "Json", "Query", "build", "shipped"]

GRAFANA = Path(__file__).parents[2] / "grafana"
DASHBOARDS = GRAFANA / "dashboards"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One query of a dashboard, and where it stands. ``panel`` is None for variables and annotations."""

    where: str
    expr: str
    instant: bool = False
    ref: str = ""
    legend: str = ""
    table: bool = False
    panel: Json | None = None


@dataclass(frozen=True, slots=True)
class Board:
    """A dashboard, from its JSON."""

    json: Json

    @property
    def uid(self) -> str:
        """Its stable name."""
        return str(self.json["uid"])

    @property
    def panels(self) -> list[Json]:
        """All panels; there are no collapsed rows that would hide some."""
        return list(self.json["panels"])

    def panel(self, title: str) -> Json:
        """The panel of that title."""
        [found] = [panel for panel in self.panels if panel["title"] == title]
        return found

    @property
    def variables(self) -> dict[str, Json]:
        """Its variables by name."""
        return {variable["name"]: variable for variable in self.json["templating"]["list"]}

    def targets(self) -> Iterator[Query]:
        """The queries of its panels."""
        for panel in self.panels:
            for target in panel["targets"]:
                yield self.query(panel, target)

    def query(self, panel: Json, target: Json) -> Query:
        """One query of a panel."""
        return Query(
            where=f"{self.uid}: {panel['title']} {target['refId']}",
            expr=target["expr"],
            instant=bool(target.get("instant")),
            ref=target["refId"],
            legend=target.get("legendFormat", ""),
            table=target.get("format") == "table",
            panel=panel,
        )

    def annotations(self) -> Iterator[Query]:
        """The queries of its annotations."""
        for annotation in self.json["annotations"]["list"]:
            yield Query(where=f"{self.uid}: annotation {annotation['name']}", expr=annotation["expr"])

    def variable_queries(self) -> Iterator[Query]:
        """The queries of its variables, as label_values has them."""
        for name, variable in self.variables.items():
            if variable["type"] == "query":
                yield Query(where=f"{self.uid}: variable {name}", expr=variable["query"]["query"])


def shipped() -> dict[str, Board]:
    """The committed dashboards by uid."""
    boards = [Board(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(DASHBOARDS.glob("*.json"))]
    return {board.uid: board for board in boards}


def build(source: Path, into: Path) -> Mapping[str, Board]:
    """Run the programs in the folder ``source`` and return the dashboards that they write to ``into``."""
    command = [sys.executable, "-m", source.name, str(into)]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run(command, cwd=source.parent, env=environ, check=True, capture_output=True, text=True)
    boards = [Board(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(into.glob("*.json"))]
    return {board.uid: board for board in boards}


def has_generator() -> bool:
    """Whether the library that the programs are written with is here: it needs Python 3.11."""
    return importlib.util.find_spec("grafana_foundation_sdk") is not None

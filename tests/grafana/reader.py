"""A reader of dashboards: asks a real Prometheus what Grafana would, for one run and a time range."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import httpx

from .boards import Board, Json, Query
from .frames import Row, series_name, tables, transformed
from .promql import filled, label_values

__all__ = ["Reader"]


@dataclass(slots=True)
class Reader:
    """Someone who looks at the ``seconds`` before ``end`` with these values of the variables.

    ``slowest``: the longest that Prometheus took for a query, in seconds.
    """

    url: str
    end: float
    seconds: int
    values: dict[str, str]
    step: int = 30
    slowest: float = 0.0
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, trust_env=False, timeout=60)

    def close(self) -> None:
        """End the connection."""
        self.client.close()

    def fill(self, expr: str) -> str:
        """Put the chosen values and the time range into a query."""
        builtin = {"__range": f"{self.seconds}s", "__rate_interval": "60s", "__interval": f"{self.step}s"}
        return filled(expr, **builtin, **self.values)

    def _ask(self, path: str, parameters: list[tuple[str, str | float]]) -> Json | list[str]:
        began = time.monotonic()
        response = self.client.get(f"/api/v1/{path}", params=parameters)
        self.slowest = max(self.slowest, time.monotonic() - began)
        assert response.status_code == 200, response.text
        data: Json | list[str] = response.json()["data"]
        return data

    def vector(self, query: Query) -> list[Json]:
        """The values at the end of the time range."""
        data = self._ask("query", [("query", self.fill(query.expr)), ("time", self.end)])
        assert isinstance(data, dict)
        return list(data["result"])

    def matrix(self, query: Query) -> list[Json]:
        """The series over the time range, in Prometheus' order."""
        begin = self.end - self.seconds
        points = (query.panel or {}).get("maxDataPoints")
        step = max(self.step, self.seconds // points) if points else self.step
        asked = [("query", self.fill(query.expr)), ("start", begin), ("end", self.end), ("step", step)]
        data = self._ask("query_range", asked)
        assert isinstance(data, dict)
        return list(data["result"])

    def answer(self, query: Query) -> list[Json]:
        """What the query finds, the way that its panel asks."""
        return self.vector(query) if query.instant else self.matrix(query)

    def choices(self, variable: Json) -> list[str]:
        """The values that a variable offers, in its order."""
        series, label = label_values(variable["query"]["query"])
        begin = self.end - self.seconds
        asked = [("match[]", self.fill(series)), ("start", begin), ("end", self.end)]
        found = self._ask(f"label/{label}/values", asked)
        assert isinstance(found, list)
        order = {3: int, 5: str.casefold, 6: str.casefold}[variable["sort"]]
        return sorted(found, key=order, reverse=variable["sort"] == 6)

    def numbers(self, board: Board, title: str) -> dict[str, float]:
        """What a panel of large numbers shows: the last value of each series by its name."""
        panel = board.panel(title)
        found: dict[str, float] = {}
        for target in panel["targets"]:
            query = board.query(panel, target)
            for one in self.vector(query):
                found[series_name(self.fill(query.legend), one["metric"])] = float(one["value"][1])
        return found

    def graph(self, board: Board, title: str) -> dict[str, list[float]]:
        """What a graph shows: the values of each series by its name, in the order of the queries."""
        panel = board.panel(title)
        found: dict[str, list[float]] = {}
        for target in panel["targets"]:
            query = board.query(panel, target)
            for one in self.matrix(query):
                name = series_name(self.fill(query.legend), one["metric"])
                assert name not in found, f"{query.where}: two series are called {name}"
                found[name] = [float(value) for _, value in one["values"]]
        return found

    def rows(self, board: Board, title: str) -> list[Row]:
        """What a table or a bar chart shows, after its transformations."""
        panel = board.panel(title)
        answers = {target["refId"]: self.vector(board.query(panel, target)) for target in panel["targets"]}
        [table] = transformed(panel["transformations"], tables(answers)) or [[]]
        return table

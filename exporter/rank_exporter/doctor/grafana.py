"""Whether Grafana has the dashboards."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources

from ..errors import SourceError
from .endpoint import Endpoint, RefusedError
from .finding import Finding, broken, good, unknown

__all__ = ["check_grafana", "shipped_dashboards"]


def shipped_dashboards() -> dict[str, str]:
    """Titles by uid of the dashboards of this version."""
    folder = resources.files("rank_exporter") / "dashboards"
    found = [file for file in folder.iterdir() if file.name.endswith(".json")] if folder.is_dir() else []
    boards = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(found, key=lambda file: file.name)]
    return {board["uid"]: board["title"] for board in boards}


def check_grafana(grafana: Endpoint, shipped: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the dashboards. Raises SourceError."""
    try:
        listed = grafana.json("/api/search", type="dash-db", limit="5000")
    except RefusedError as error:
        yield unknown(
            "dashboards", str(error), "give a token of a service account that may view (--grafana-token-file)"
        )
        return
    if not isinstance(listed, list) or not all(isinstance(one, dict) and "uid" in one for one in listed):
        raise SourceError(f"{grafana.name} answers something else than Grafana")
    if not shipped:
        yield unknown("dashboards", "this version has no dashboards", "take a version that has")
        return
    missing = [title for uid, title in shipped.items() if uid not in {one["uid"] for one in listed}]
    if missing:
        yield broken(
            "dashboards",
            f"{grafana.name} lacks {', '.join(missing)}",
            "with the chart: see that Grafana's sidecar watches the namespace, and for the label of dashboards.labels; "
            "otherwise import grafana/dashboards",
        )
    else:
        yield good("dashboards", f"{grafana.name} has {', '.join(shipped.values())}")

"""Simulated runs through ``promtool test rules``: Prometheus' own rule manager, with the annotations of what fires.

promtool refuses a query with more than 10,000 results, so it can judge some 60 ranks at most; for more there is
``replay``.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import yaml

from .exposition import expositions
from .run import Run
from .table import Labels, Table, after_presence

__all__ = ["Firing", "input_series", "run_rules"]

_CHUNK = 240
_ALERT = re.compile(r"^    alertname: (?P<name>\w+), time: (?P<time>\S+), $")
_PAIR = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*")')


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """An alert that fires at an evaluation. time: seconds."""

    time: float
    labels: dict[str, str]
    annotations: dict[str, str]


def input_series(
    *runs: Run,
    seconds: float,
    scrape: float = 15.0,
    down: Sequence[tuple[float, float]] = (),
    lost: float = 0.0,
) -> Iterator[tuple[str, str]]:
    """Yield each series and its values in promtool's notation, a value every ``scrape`` seconds.

    promtool has one grid for all: a value that was scraped up to ``scrape`` seconds earlier stands at the next point.
    """
    number = int(seconds // scrape) + 1
    texts: dict[str, list[str]] = {}
    for exposition in expositions(runs, until=seconds, scrape=scrape, down=down, lost=lost):
        before: dict[tuple[str, Labels], npt.NDArray[np.bool_]] = {}
        for first in range(0, number, _CHUNK):
            scrapes = exposition.scrapes(first, min(first + _CHUNK, number))
            for table in exposition.tables(scrapes):
                _write(table, first, scrapes.happened, before, texts, number)
    for series, cells in texts.items():
        yield series, " ".join(cells)


def _write(
    table: Table,
    first: int,
    happened: npt.NDArray[np.bool_],
    before: dict[tuple[str, Labels], npt.NDArray[np.bool_]],
    texts: dict[str, list[str]],
    number: int,
) -> None:
    if not len(table.labels) or not happened.any():
        return
    key = (table.name, table.labels[0])
    present = table.present & happened
    ends = np.zeros_like(present)
    ends[:, happened] = after_presence(
        table.present[:, happened], before.get(key, np.zeros(len(table.labels), dtype=bool))
    )
    before[key] = present[:, happened][:, -1].copy()
    for row in np.flatnonzero((present | ends).any(axis=1)):
        cells = texts.setdefault(_series(table.name, table.labels[row]), ["_"] * number)
        for column in np.flatnonzero(present[row]).tolist():
            cells[first + column] = _number(table.values[row, column])
        for column in np.flatnonzero(ends[row]).tolist():
            cells[first + column] = "stale"


def _series(name: str, labels: Labels) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in labels if value)
    return f"{name}{{{pairs}}}"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else f"{value:.9g}"


def run_rules(
    *runs: Run,
    rules: str,
    seconds: float,
    scrape: float = 15.0,
    interval: float = 30.0,
    down: Sequence[tuple[float, float]] = (),
    lost: float = 0.0,
) -> list[Firing]:
    """Evaluate a rule file's text every ``interval`` seconds and return each alert that fires, at each evaluation.

    While Prometheus is down promtool evaluates all the same; what it finds then is left out.
    """
    groups = yaml.safe_load(rules)["groups"]
    alerts = [rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule]
    with tempfile.TemporaryDirectory(prefix="rank-exporter-promtool-") as name:
        folder = Path(name)
        (folder / "rules.yaml").write_text(rules, encoding="utf-8")
        with (folder / "test.yaml").open("w", encoding="utf-8") as out:
            out.write(f"rule_files: [rules.yaml]\nevaluation_interval: {_text(interval)}\n")
            # Otherwise in any order, another one in each run.
            out.write(f"group_eval_order: {[group['name'] for group in groups]}\n")
            out.write(f"tests:\n- interval: {_text(scrape)}\n  input_series:\n")
            for series, values in input_series(*runs, seconds=seconds, scrape=scrape, down=down, lost=lost):
                out.write(f"  - series: '{series}'\n    values: {values}\n")
            out.write("  alert_rule_test:\n")
            for step in range(int(seconds // interval) + 1):
                for alert in alerts:
                    out.write(f"  - {{alertname: {alert}, eval_time: {_text(step * interval)}, exp_alerts: []}}\n")
        done = subprocess.run(
            ["promtool", "test", "rules", "test.yaml"], cwd=folder, capture_output=True, text=True, check=False
        )
    found = [one for one in _parse(done.stderr) if not any(begin <= one.time < end for begin, end in down)]
    if "err:" in done.stderr or "Unit Testing" not in done.stdout:
        raise RuntimeError(f"promtool: {done.stdout}\n{done.stderr}")
    return found


def _text(seconds: float) -> str:
    return f"{round(seconds * 1000)}ms"


def _parse(output: str) -> Iterator[Firing]:
    """What promtool prints of alerts that it was told not to expect."""
    time = 0.0
    labels: dict[str, str] = {}
    for line in output.splitlines():
        if match := _ALERT.match(line):
            time = _seconds(match["time"])
        elif line.strip().startswith("Labels:{"):
            labels = _pairs(line)
        elif line.strip().startswith("Annotations:{"):
            yield Firing(time=time, labels=labels, annotations=_pairs(line))


def _pairs(line: str) -> dict[str, str]:
    return {key: yaml.safe_load(value) for key, value in _PAIR.findall(line)}


def _seconds(text: str) -> float:
    units = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"(\d+)(ms|[dhms])", text))

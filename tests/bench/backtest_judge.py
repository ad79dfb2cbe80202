"""What the rules said of a cell, held against what is true of it."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import yaml

from rank_exporter import rulepack

from ..simulation.loaded import load
from ..simulation.notifications import notifications
from ..simulation.prometheus import prometheus
from ..simulation.promtool import run_rules
from ..simulation.replay import Spans, duration_seconds, names_read
from ..simulation.table import Labels
from .backtest_cells import Cell

__all__ = ["Outcome", "judge", "naive_group"]

NAIVE = "NaiveSkew"
ALERTMANAGER = Path(rulepack.__file__).parent / "rules" / "alertmanager" / "alertmanager.yml"
_BY_RANK = "sum by (cluster, namespace, run, rank, host, le)"


def naive_group() -> dict[str, Any]:
    """The skew rule as it is usually stated: max p99(5m) - median > 10 % of the median step, for 10m."""

    def quantile(q: float, phase: str) -> str:
        buckets = f'rate(training_phase_duration_seconds_bucket{{phase="{phase}"}}[5m])'
        return f"(histogram_quantile({q}, {_BY_RANK} ({buckets})) >= 0)"

    run = "by (cluster, namespace, run)"
    rules: list[dict[str, Any]] = [
        {"record": "naive:p99", "expr": quantile(0.99, "input_ready")},
        {
            "alert": NAIVE,
            "expr": f"max {run} (naive:p99) - quantile {run} (0.5, naive:p99)"
            f" > 0.1 * quantile {run} (0.5, {quantile(0.5, 'step')})",
            "for": "10m",
            "labels": {"severity": "none"},
        },
    ]
    return {"name": "naive", "interval": "30s", "rules": rules}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A judged cell. Times are seconds; ``faults`` says in words what is not as wanted; none: it passed."""

    cell: Cell
    alert: str
    named: str
    latency: float | None
    false_pages: int
    false_others: int
    pages: int
    warnings: int
    naive: str
    also: str
    faults: tuple[str, ...]
    took: float


def judge(cell: Cell, pack: str) -> Outcome:
    """Simulate the cell, evaluate ``pack``, the text of a rule file, and judge what fired."""
    started = time.monotonic()
    firing = _evaluate(cell, pack)
    naive = sorted(span for labels in list(firing) if dict(labels)["alertname"] == NAIVE for span in firing.pop(labels))
    shards = _shards(cell, pack) if cell.annotated else None
    return _judge(cell, firing, naive, shards, time.monotonic() - started)


def _evaluate(cell: Cell, pack: str) -> dict[Labels, Spans]:
    groups = [*yaml.load(pack, Loader=yaml.CSafeLoader)["groups"], naive_group()]
    for group in groups:
        group["interval"] = f"{max(cell.interval, duration_seconds(group['interval'])):.0f}s"
    with prometheus() as url:
        replay = load(
            url,
            *cell.runs,
            seconds=cell.seconds,
            rules=groups,
            scrape=cell.scrape,
            down=cell.down,
            lost=cell.lost,
            only=names_read(groups),
        )
    assert replay is not None
    return replay.firing


def _shards(cell: Cell, pack: str) -> set[tuple[str, str]]:
    """Rank and shard of each alert, as Prometheus' own rule manager writes its annotations."""
    found = run_rules(
        *cell.runs, rules=pack, seconds=cell.seconds, scrape=cell.scrape, interval=60.0, down=cell.down, lost=cell.lost
    )
    return {
        (one.labels["rank"], one.annotations["shard"])
        for one in found
        if one.labels.get("rank") and "shard" in one.annotations
    }


def _judge(
    cell: Cell,
    firing: dict[Labels, Spans],
    naive: Spans,
    shards: set[tuple[str, str]] | None,
    took: float,
) -> Outcome:
    wanted = cell.wanted
    right = {labels: spans for labels, spans in firing.items() if _is_right(cell, dict(labels), spans)}
    faults = [fault for labels in right if (fault := _place_fault(cell, dict(labels)))]
    latency, who = _first(cell, right, faults)
    false = _false(cell, {labels: spans for labels, spans in firing.items() if labels not in right}, faults)
    sent = notifications(firing, ALERTMANAGER, until=cell.seconds) if firing else []
    told = [one.receiver == "training-page" for one in sent if one.firing]
    if wanted.notified is not None and len(told) > wanted.notified:
        faults.append(f"{len(told)} notifications instead of {wanted.notified}")
    if wanted.naive_silent and naive:
        faults.append("the naive rule fires")
    if shards is not None:
        faults += _shard_faults(cell, shards)
        who += "/shard"
    also = Counter({dict(labels)["alertname"]: 0 for labels in firing if labels not in right})
    for labels in firing.keys() - right.keys():
        also[dict(labels)["alertname"]] += len(firing[labels])
    return Outcome(
        cell=cell,
        alert=", ".join(sorted({dict(labels)["alertname"] for labels in right})),
        named=who,
        latency=latency,
        false_pages=false[True],
        false_others=false[False],
        pages=sum(told),
        warnings=len(told) - sum(told),
        naive=_naive(cell, naive),
        also=", ".join(f"{name} {count}x" for name, count in sorted(also.items())),
        faults=tuple(dict.fromkeys(faults)),
        took=took,
    )


def _may_name(cell: Cell, rank: str) -> bool:
    return not rank or rank in cell.wanted.ranks | cell.wanted.may_name


def _is_right(cell: Cell, labels: dict[str, str], spans: Spans) -> bool:
    """Whether it is the alert that is wanted, about whom it is wanted, and not before there was a reason."""
    wanted = labels["alertname"] in cell.wanted.alerts and spans[0][0] >= cell.onset
    return wanted and _may_name(cell, labels.get("rank", ""))


def _false(cell: Cell, others: dict[Labels, Spans], faults: list[str]) -> dict[bool, int]:
    """How often ranks are blamed that should not be, by whether that is a page. Adds to ``faults``."""
    found = {True: 0, False: 0}
    for labels, spans in others.items():
        own = dict(labels)
        rank, began = own.get("rank", ""), spans[0][0]
        if rank and (not _may_name(cell, rank) or began < cell.onset):
            found[own.get("severity") == "critical"] += len(spans)
            faults.append(f"{own['alertname']} blames rank {rank} after {(began - cell.onset) / 60:.0f} min")
    return found


def _shard_faults(cell: Cell, named: set[tuple[str, str]]) -> list[str]:
    """What is wrong with the shards in annotations; pairs of rank and shard."""
    [run] = cell.runs
    if not named:
        return ["promtool saw no alert that names a shard"]
    return [
        f"shard {shard} is not rank {rank}'s"
        for rank, shard in sorted(named)
        if shard not in {run.shard_name(int(rank), place) for place in range(run.shards)}
    ]


def _place_fault(cell: Cell, labels: dict[str, str]) -> str:
    """What is wrong with the host or the phase of an alert about the right rank."""
    rank, phase = labels.get("rank", ""), labels.get("phase", "")
    if not rank:
        return ""
    hosts = {run.host_of(int(rank)) for run in cell.runs if int(rank) < run.ranks}
    if labels.get("host") and labels["host"] not in hosts:
        return f"rank {rank} is not on host {labels['host']}"
    if cell.wanted.phase and phase and phase != cell.wanted.phase:
        return f"phase {phase} instead of {cell.wanted.phase}"
    return ""


def _first(cell: Cell, right: dict[Labels, Spans], faults: list[str]) -> tuple[float | None, str]:
    """Seconds from onset until all that must be named is, and who was."""
    wanted = cell.wanted
    if not wanted.alerts:
        return None, ""
    since: dict[str, float] = {}
    for labels, spans in right.items():
        rank = dict(labels).get("rank", "")
        since[rank] = min(spans[0][0] - cell.onset, since.get(rank, inf))
    missing = sorted(wanted.ranks - since.keys())
    if not since or missing:
        faults.append(f"no {' or '.join(sorted(wanted.alerts))}" + (f" for rank {missing[0]}" if missing else ""))
        return None, ""
    latency = max(since[rank] for rank in wanted.ranks) if wanted.ranks else min(since.values())
    if latency > wanted.within:
        faults.append(f"{latency / 60:.1f} min instead of {wanted.within / 60:.0f}")
    named = sorted(rank for rank in since if rank)
    return latency, f"rank {' '.join(named)}/host" if named else "none"


def _naive(cell: Cell, spans: Spans) -> str:
    if not spans:
        return "silent"
    share = sum(end - begin for begin, end in spans) / cell.seconds
    began = (spans[0][0] - cell.onset) / 60
    return f"{began:.0f} min, on {share:.0%}" if cell.onset else f"on {share:.0%}"

"""The outcome of a demo, as a person reads it and as a program does. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from ..analysis.diagnose_report import verdict_as_json, verdict_lines
from ..analysis.profile import RankProfile, RunProfile
from ..phases import IN_STEP, Phase
from .stage import Outcome
from .webhook import Alert

__all__ = ["as_json", "as_text", "places"]

_SHOWN_RANKS = 4
"""More do not fit side by side; then only the median and the worst are shown."""
_ROWS = (*IN_STEP, Phase.STEP)


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The outcome as one JSON object: durations in seconds, null for what is not known or not named."""
    verdict = outcome.verdict
    return {
        "scenario": outcome.plan.scenario.name,
        "run": outcome.profile.run,
        "as_expected": not outcome.shortfalls,
        "shortfalls": list(outcome.shortfalls),
        "verdict": verdict_as_json(verdict),
        "alerts": [_alert(alert) for alert in outcome.alerts],
        "page_latency_seconds": outcome.page_latency_seconds,
        "ranks": [
            {
                "rank": rank.rank,
                "host": rank.host,
                "shard": rank.shard,
                "steps": rank.steps,
                "phases": {
                    name: {"count": phase.count, "mean": phase.mean, "p50": phase.p50, "p99": phase.p99}
                    for name, phase in rank.phases.items()
                },
            }
            for rank in outcome.profile.ranks
        ],
    }


def _alert(alert: Alert) -> dict[str, Any]:
    labels, notes = alert.labels, alert.annotations
    return {
        "name": alert.name,
        **{label: labels.get(label) for label in ("severity", "run", "rank", "phase", "host")},
        **{note: notes.get(note) for note in ("shard", "skew", "summary", "description", "runbook_url")},
        "starts_at": alert.starts_at,
    }


def as_text(outcome: Outcome) -> RenderableType:
    """Table, verdict, pages and whether it all was as expected."""
    return Group(*_parts(outcome))


def _parts(outcome: Outcome) -> Iterator[RenderableType]:
    yield Text()
    yield _heading(f"Milliseconds a step of run {outcome.profile.run}, median / p99")
    yield _table(outcome.profile)
    yield Text("* slowest; who waits least in collective_wait is who the others wait for", style="dim")
    yield Text()
    yield _heading("Verdict")
    yield from _verdict(outcome)
    yield Text()
    yield from _pages(outcome)
    yield Text()
    if outcome.shortfalls:
        yield Text("Not as expected:", style="bold red")
        yield from (_indented(Text(line)) for line in outcome.shortfalls)
    else:
        yield Text(f"As expected of {outcome.plan.scenario.name}.", style="bold green")


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _indented(content: RenderableType) -> Padding:
    return Padding.indent(content, 2)


def _verdict(outcome: Outcome) -> Iterator[RenderableType]:
    yield from (_indented(line) for line in verdict_lines(outcome.verdict))
    yield _indented(Text(f"Next: {outcome.verdict.next_check}"))


def _pages(outcome: Outcome) -> Iterator[RenderableType]:
    if not outcome.alerts:
        yield _heading("No page was received")
        return
    latency = outcome.page_latency_seconds
    after = "" if latency is None else f", {latency:.0f} s after the straggler's first step"
    yield _heading(f"Page as received{after}")
    for alert in outcome.alerts:
        yield _indented(Text(alert.annotations.get("summary", alert.name), style="bold"))
        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim", no_wrap=True)
        facts.add_column()
        for label in ("alertname", "severity", "run", "rank", "phase", "host"):
            if label in alert.labels:
                facts.add_row({"alertname": "alert"}.get(label, label), alert.labels[label])
        for note in ("shard", "skew", "description"):
            if note in alert.annotations:
                facts.add_row("detail" if note == "description" else note, alert.annotations[note].strip())
        yield _indented(facts)
        # Left to the terminal to wrap, so that it can be followed and copied.
        yield Text(f"  runbook   {alert.annotations.get('runbook_url', '-')}", no_wrap=True, overflow="ignore")


def _table(profile: RunProfile) -> Table:
    """Rows are phases; a column for each rank, or for the median and worst one where there are many."""
    table = Table()
    table.add_column("phase", no_wrap=True)
    if len(profile.ranks) <= _SHOWN_RANKS:
        for rank in profile.ranks:
            table.add_column(f"rank {rank.rank}", justify="right")
        for phase in _ROWS:
            if observed := _observed(profile, phase):
                worst = _worst(observed, phase)
                table.add_row(phase.label, *(_cell(rank, phase, marked=rank is worst) for rank in profile.ranks))
        return table
    for name in ("median rank", "worst rank", "which"):
        table.add_column(name, justify="right")
    for phase in _ROWS:
        if observed := _observed(profile, phase):
            worst = _worst(observed, phase)
            table.add_row(
                phase.label,
                _cell(_median(observed, phase), phase),
                _cell(worst, phase, marked=True) if worst else "-",
                f"rank {worst.rank}" if worst else "-",
            )
    return table


def _observed(profile: RunProfile, phase: Phase) -> list[RankProfile]:
    return [rank for rank in profile.ranks if phase.label in rank.phases]


def _median(ranks: list[RankProfile], phase: Phase) -> RankProfile:
    return sorted(ranks, key=lambda rank: rank.phases[phase.label].p50)[(len(ranks) - 1) // 2]


def _worst(ranks: list[RankProfile], phase: Phase) -> RankProfile | None:
    """The rank with the longest median, unless it is no fault to be that or what separates them is nothing."""
    if phase in (Phase.COLLECTIVE_WAIT, Phase.STEP):
        return None
    worst = max(ranks, key=lambda rank: rank.phases[phase.label].p50)
    best = min(rank.phases[phase.label].p50 for rank in ranks)
    return worst if worst.phases[phase.label].p50 - best >= 2e-3 else None


def _cell(rank: RankProfile, phase: Phase, *, marked: bool = False) -> Text:
    found = rank.phases.get(phase.label)
    if found is None:
        return Text("-")
    text = f"{_milliseconds(found.p50)} / {_milliseconds(found.p99)}"
    return Text(f"{text} *", style="bold red") if marked else Text(f"{text}  ")


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:.0f}" if milliseconds >= 10 else f"{milliseconds:.1f}"


def places(*, agent: str | None, graph: str, alerts: str, pages: str) -> RenderableType:
    """Addresses to open while everything still runs. ``graph``, ``alerts``: of Prometheus; ``pages``: Alertmanager."""
    skew = f"{graph}?g0.tab=0&g0.range_input=5m&g0.expr=run%3Atraining_input_ready_excess_per_step%3Aratio"
    found = {"metrics": f"{agent}/metrics" if agent else None, "skew": skew, "alerts": alerts, "pages": pages}
    lines = [Text(f"  {name:<9} {url}", no_wrap=True, overflow="ignore") for name, url in found.items() if url]
    return Group(Text(), _heading("Open while it runs; Ctrl-C ends it"), *lines)

"""A judged run as a person reads it and as a program does. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..phases import BESIDE_STEP, IN_STEP, Phase
from .follows import Follows
from .observation import Judged
from .profile import Distribution, RankProfile, RunProfile
from .tax import Tax
from .verdict import Verdict

__all__ = ["as_json", "as_text", "verdict_as_json", "verdict_lines"]

_ROWS = (*IN_STEP, Phase.STEP, *BESIDE_STEP)


def as_json(judged: Judged) -> dict[str, Any]:
    """One JSON object; durations in seconds, null for what is not known or not named.

    run, source, world_size, missing_ranks, budget. steps: judged, first, last, incomplete, profiled (null from
    histograms). window_seconds (null from records). verdict: kind, rank, phase, host, shard, skew, pattern, also,
    evidence, next_check. follows: what ("data", "host", null), rank, host, shard, there, shard_elsewhere,
    place_otherwise, reason; null where no input is late. exposed: gpu_seconds, gpu_seconds_per_step, gpu_hours, share;
    null where it is not known. phases by name: median and worst, each rank, host, mean, p50, p99. ranks: rank, host,
    shard, steps, samples, tokens, phases by name with count, mean, p50, p99.
    """
    observation, profile = judged.observation, judged.observation.profile
    alignment = observation.alignment
    return {
        "run": profile.run,
        "source": observation.source,
        "world_size": profile.world_size,
        "missing_ranks": _missing(profile),
        "budget": profile.budget,
        "steps": {
            "judged": observation.steps,
            "first": int(alignment.steps[0]) if alignment is not None else None,
            "last": int(alignment.steps[-1]) if alignment is not None else None,
            "incomplete": alignment.incomplete if alignment is not None else None,
            "profiled": alignment.profiled if alignment is not None else None,
        },
        "window_seconds": observation.seconds,
        "verdict": verdict_as_json(judged.verdict),
        "follows": _follows(judged.follows),
        "exposed": _exposed(judged.tax),
        "phases": {phase.label: row for phase in _ROWS if (row := _row(profile, phase)) is not None},
        "ranks": [
            {
                **{name: getattr(rank, name) for name in ("rank", "host", "shard", "steps", "samples", "tokens")},
                "phases": {name: {"count": one.count, **_figures(one)} for name, one in rank.phases.items()},
            }
            for rank in profile.ranks
        ],
    }


def verdict_as_json(verdict: Verdict) -> dict[str, Any]:
    """The verdict alone, see as_json."""
    return {
        "kind": verdict.kind,
        "rank": verdict.rank,
        "phase": verdict.phase,
        "host": verdict.host,
        "shard": verdict.shard,
        "skew": verdict.skew,
        "pattern": verdict.pattern,
        "also": list(verdict.also),
        "evidence": list(verdict.evidence),
        "next_check": verdict.next_check,
    }


def _missing(profile: RunProfile) -> list[int]:
    seen = {rank.rank for rank in profile.ranks if rank.steps}
    return sorted(set(range(profile.world_size or 0)) - seen)


def _follows(found: Follows | None) -> dict[str, Any] | None:
    return None if found is None else {name: getattr(found, name) for name in Follows.__dataclass_fields__}


def _exposed(tax: Tax | None) -> dict[str, Any] | None:
    names = ("gpu_seconds", "gpu_seconds_per_step", "gpu_hours", "share")
    return None if tax is None else {name: getattr(tax, name) for name in names}


def _figures(phase: Distribution) -> dict[str, float]:
    return {"mean": phase.mean, "p50": phase.p50, "p99": phase.p99}


def _row(profile: RunProfile, phase: Phase) -> dict[str, Any] | None:
    ranks = [rank for rank in profile.ranks if phase.label in rank.phases]
    if not ranks:
        return None
    return {
        which: {"rank": rank.rank, "host": rank.host, **_figures(rank.phases[phase.label])}
        for which, rank in (("median", _median(ranks, phase)), ("worst", _worst(ranks, phase)))
    }


def _median(ranks: Sequence[RankProfile], phase: Phase) -> RankProfile:
    return sorted(ranks, key=lambda rank: rank.phases[phase.label].p50)[(len(ranks) - 1) // 2]


def _worst(ranks: Sequence[RankProfile], phase: Phase) -> RankProfile:
    return max(ranks, key=lambda rank: rank.phases[phase.label].p50)


def as_text(judged: Judged) -> RenderableType:
    """Table, verdict, evidence and what to look at next."""
    return Group(*_parts(judged))


def _parts(judged: Judged) -> Iterator[RenderableType]:
    observation, profile = judged.observation, judged.observation.profile
    alignment = observation.alignment
    which = f" ({alignment.steps[0]} to {alignment.steps[-1]})" if alignment is not None else ""
    profiled = f", {alignment.profiled} profiled left out" if alignment is not None and alignment.profiled else ""
    within = f" within {observation.seconds:.0f} s" if observation.seconds is not None else ""
    ranks = sum(1 for rank in profile.ranks if rank.steps)
    of = f" of {profile.world_size}" if profile.world_size else ""
    yield Text(
        f"Run {profile.run}: {observation.steps} steps{which}{within}, {ranks}{of} ranks{profiled}", style="bold"
    )
    yield _table(profile)
    # Not padded: the terminal wraps what is long, and nothing is cut where there is none.
    yield from (Text.assemble("  ", line) for line in verdict_lines(judged.verdict))
    if judged.follows is not None:
        yield Text(f"  - {judged.follows.reason}")
    tax = judged.tax
    if tax is not None:
        share = f", {tax.share:.1%} of GPU time" if tax.share is not None else ""
        yield Text(
            f"  Waiting for the last rank cost {tax.gpu_seconds:.3g} GPU-seconds ({tax.gpu_hours:.2f} GPU-hours), "
            f"{tax.gpu_seconds_per_step:.3g} a step{share}"
        )
    yield Text(f"  Next: {judged.verdict.next_check}")


def verdict_lines(verdict: Verdict) -> Iterator[Text]:
    """The verdict in a line, and its evidence."""
    named = [
        f"{what} {value}"
        for what, value in (
            ("rank", verdict.rank),
            ("phase", verdict.phase),
            ("host", verdict.host),
            ("shard", verdict.shard),
        )
        if value is not None
    ]
    line = Text(verdict.kind, style="bold")
    if named:
        line.append(f": {', '.join(named)}", style="not bold")
    if verdict.skew is not None:
        when = "on few steps, then" if verdict.pattern == "tail" else "late"
        line.append(f", {when} by {verdict.skew:.0%} of the median step", style="not bold")
    yield line
    yield from (Text(f"- {finding}") for finding in verdict.evidence)


def _table(profile: RunProfile) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("phase, ms", no_wrap=True)
    for name in ("median p50", "p99", "worst p50", "p99", "rank"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("host")
    for phase in _ROWS:
        row = _row(profile, phase)
        if row is not None:
            median, worst = row["median"], row["worst"]
            table.add_row(
                phase.label,
                *(f"{one[name] * 1e3:.1f}" for one in (median, worst) for name in ("p50", "p99")),
                str(worst["rank"]),
                Text(worst["host"]),
            )
    return table

"""Aligned steps as a person reads them and as a program does. Reads, and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..lateness import UNKNOWN, median_rank
from ..phases import BESIDE_STEP, Phase
from .align import Alignment, Blame
from .tax import Tax

__all__ = ["as_json", "as_text"]

_SHOWN_RANKS: Final = 16
_SHOWN_BLAMES: Final = 8
_COLUMNS: Final = (
    *(Phase.OPTIMIZER, Phase.OTHER, *BESIDE_STEP),
    *(Phase.INPUT_READY, Phase.H2D, Phase.FORWARD, Phase.BACKWARD, Phase.COLLECTIVE_WAIT),
)


def as_json(everything: Alignment, chosen: Alignment) -> dict[str, Any]:
    """One JSON object, durations in seconds. Tax and delay caused are of ``everything``, the steps are ``chosen``."""
    one = everything.ranks[0]
    return {
        "run": everything.run,
        "generation": one.generation,
        "world_size": one.world_size,
        "missing_ranks": list(everything.missing),
        "aligned_steps": len(everything.steps),
        "incomplete_steps": everything.incomplete,
        "profiled_steps": everything.profiled,
        "tax": _tax(everything.tax()),
        "delay_caused": [_blame(blame) for blame in everything.blame()],
        "steps": [_step(chosen, place) for place in range(len(chosen.steps))],
    }


def _tax(tax: Tax) -> dict[str, Any]:
    return {
        "gpu_seconds_per_step": tax.gpu_seconds_per_step,
        "gpu_seconds": tax.gpu_seconds,
        "gpu_hours": tax.gpu_hours,
        "share": tax.share,
    }


def _blame(blame: Blame) -> dict[str, Any]:
    return {name: getattr(blame, name) for name in ("rank", "host", "shard", "phase", "steps", "seconds")}


def _step(chosen: Alignment, step: int) -> dict[str, Any]:
    late = chosen.lateness
    last = int(late.last[step])
    ready = late.ready[step]
    beyond = ready - median_rank(late.ready)[step]
    return {
        "step": int(chosen.steps[step]),
        "exposed_wait": int(late.exposed[step]) / 1e9,
        "last": {
            "rank": chosen.ranks[last].rank,
            "host": chosen.ranks[last].host,
            "shard": chosen.shard_of(step, last),
            "phase": Phase(late.phase[step]).label,
            "delay_caused": int(late.caused[step]) / 1e9,
        },
        "ranks": [
            {
                "rank": steps.rank,
                "host": steps.host,
                "shard": chosen.shard_of(step, rank),
                "end_unix_seconds": int(chosen.end_unix_ns[step, rank]) / 1e9,
                "ready": int(ready[rank]) / 1e9,
                "beyond_median": int(beyond[rank]) / 1e9,
                "optimizer_before": None if chosen.before[step, rank] == UNKNOWN else chosen.before[step, rank] / 1e9,
                "phases": {phase.label: int(chosen.ns[step, rank, phase]) / 1e9 for phase in Phase},
            }
            for rank, steps in enumerate(chosen.ranks)
        ],
    }


def as_text(everything: Alignment, chosen: Alignment) -> RenderableType:
    """A table per chosen step, then who caused delay and what it cost in all."""
    return Group(*_parts(everything, chosen))


def _parts(everything: Alignment, chosen: Alignment) -> Iterator[RenderableType]:
    for step in range(len(chosen.steps)):
        yield _heading(chosen, step)
        yield _table(chosen, step)
        yield Text()
    yield Text(
        "ms; ready counts from the end of the previous collective, optimizer is that of the step before", style="dim"
    )
    yield from _summary(everything)


def _heading(chosen: Alignment, step: int) -> Text:
    late = chosen.lateness
    last = int(late.last[step])
    about = chosen.ranks[last]
    phase = Phase(late.phase[step])
    shard = chosen.shard_of(step, last) if phase is Phase.INPUT_READY else ""
    return Text(
        f"Step {chosen.steps[step]}: rank {about.rank} on {about.host} was last, "
        f"{late.caused[step] / 1e6:.1f} ms beyond the median rank, in {phase.label}{f' of {shard}' if shard else ''}; "
        f"{late.exposed[step] / 1e9:.3f} GPU-seconds lost",
        style="bold",
    )


def _table(chosen: Alignment, step: int) -> Table:
    late = chosen.lateness
    ns = chosen.ns[step].copy()
    ns[:, Phase.OPTIMIZER] = np.maximum(chosen.before[step], 0)
    columns = [phase for phase in _COLUMNS if ns[:, phase].any()]
    beyond = late.ready[step] - median_rank(late.ready)[step]
    table = Table(box=None, pad_edge=False)
    table.add_column(
        "rank",
        justify="right",
        no_wrap=True,
    )
    table.add_column(
        "host",
    )
    for name in (*(phase.label for phase in columns), "ready", "beyond"):
        table.add_column(
            name.replace("_", "\n"),
            justify="right",
            no_wrap=True,
        )
    order = range(len(ns)) if len(ns) <= _SHOWN_RANKS else np.argsort(-beyond, kind="stable")[:_SHOWN_RANKS]
    for rank in order:
        cells = [f"{ns[rank, phase] / 1e6:.1f}" for phase in columns]
        is_last = rank == late.last[step]
        blamed = late.phase[step]
        marked = [
            f"{cell}*" if is_last and phase == blamed else cell for cell, phase in zip(cells, columns, strict=True)
        ]
        about = chosen.ranks[rank]
        table.add_row(
            f"{about.rank}*" if is_last else str(about.rank),
            Text(about.host),
            *marked,
            f"{late.ready[step, rank] / 1e6:.1f}",
            f"{beyond[rank] / 1e6:+.1f}",
            style="bold" if is_last else "",
        )
    if len(ns) > _SHOWN_RANKS:
        table.caption = f"the {_SHOWN_RANKS} latest of {len(ns)} ranks; --json has all"
    return table


def _summary(everything: Alignment) -> Iterator[Text]:
    numbers, tax = everything.steps, everything.tax()
    known = f"{len(numbers)} steps of run {everything.run} aligned, {numbers.min()} to {numbers.max()}"
    ranks = f"{len(everything.ranks)} of {everything.ranks[0].world_size} ranks"
    lacking = f", {everything.incomplete} incomplete" if everything.incomplete else ""
    lacking += f", {everything.profiled} profiled left out" if everything.profiled else ""
    yield Text(f"\n{known}, from {ranks}{lacking}", style="bold")
    if everything.missing:
        yield Text(f"missing ranks: {', '.join(map(str, everything.missing))}; what they cost or caused is not counted")
    share = f", {tax.share:.1%} of GPU time" if tax.share is not None else ""
    yield Text(
        f"scaling tax {tax.gpu_seconds_per_step:.3f} GPU-seconds a step, {tax.gpu_seconds:.1f} in all "
        f"({tax.gpu_hours:.2f} GPU-hours){share}"
    )
    for blame in everything.blame()[:_SHOWN_BLAMES]:
        shard = f" of {blame.shard}" if blame.shard else ""
        steps = "1 step" if blame.steps == 1 else f"{blame.steps} steps"
        yield Text(
            f"  rank {blame.rank} on {blame.host} was last in {steps} by {blame.phase}{shard}, "
            f"{blame.seconds:.3f} s beyond the median rank"
        )

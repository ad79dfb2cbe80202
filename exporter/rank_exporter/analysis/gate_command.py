"""The command ``gate``: parse, load, judge, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .options import print_text, source_options, sources_of

if TYPE_CHECKING:
    from .gate import Gate, Stretch
    from .observation import Observation
    from .reconcile import Reconciliation
    from .run_load import Sources

__all__ = ["gate"]

_CRITERIA: Final = ("input-ready", "input-wait", "device-idle", "samples")
_RATIO: Final = click.FloatRange(min=0)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@source_options
@click.option(
    "--samples",
    "samples",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Identifiers of samples: a file or the directory of RANK_EXPORTER_SAMPLE_IDS_DIR; repeatable.",
)
@click.option("--manifest", metavar="FILE|N", help="What each epoch should consist of; N: the integers 0 to N - 1.")
@click.option(
    "--cold-steps",
    type=click.IntRange(min=0),
    metavar="N",
    help="Steps that are not judged.  [default: the first epoch]",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATIO",
    help="Of input-ready, as a share of the median step.  [default: the run's own, else 0.10]",
)
@click.option("--correlation", type=_RATIO, default=0.3, show_default=True, help="Tolerated, of waits with late input.")
@click.option(
    "--negligible",
    type=_RATIO,
    default=0.01,
    show_default=True,
    metavar="RATIO",
    help="Waiting for late input that is noise, as a share of the time.",
)
@click.option(
    "--idle", type=_RATIO, default=0.3, show_default=True, metavar="RATIO", help="Tolerated idle time of a device."
)
@click.option(
    "--min-steps", type=click.IntRange(min=2), default=300, show_default=True, help="Warm steps that a p99 takes."
)
@click.option(
    "--require",
    "required",
    multiple=True,
    type=click.Choice(_CRITERIA),
    help="Must be met even where it would not apply.",
)
@click.option(
    "--waive", "waived", multiple=True, type=click.Choice(_CRITERIA), help="Need not be met where it cannot be told."
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def gate(
    *,
    samples: tuple[Path, ...],
    manifest: str | None,
    cold_steps: int | None,
    budget: float | None,
    correlation: float,
    negligible: float,
    idle: float,
    min_steps: int,
    required: tuple[str, ...],
    waived: tuple[str, ...],
    as_json_: bool,
    **options: Any,
) -> None:
    """Say whether a run may be given more GPUs: its exit criteria, over a representative window.

    No rank's input-ready p99 is beyond budget; waits in the collective are no longer explained by late input; no
    device idles too much; and samples reconcile. Cold steps are described, not judged. Exit code 0: all are met or do
    not apply. 1: one is not. 2: one could not be told, and why.
    """
    sources = sources_of(options, what="where is the run?")
    # Loaded only now: numpy and rich are not needed to say what is wrong with the options.
    from .criterion import EXIT_CODES, insisted, outcome  # noqa: PLC0415
    from .gate import Tolerances  # noqa: PLC0415
    from .gate import gate as judged  # noqa: PLC0415
    from .run_load import load_run  # noqa: PLC0415

    observation, problems = load_run(sources)
    for problem in problems:
        click.echo(f"rank-exporter: {problem}", err=True)
    tolerances = Tolerances(
        budget=budget, correlation=correlation, negligible=negligible, idle=idle, fewest_steps=min_steps
    )
    reconciled = _reconciled(sources, samples, manifest, run=observation.profile.run)
    found = judged(observation, reconciled, tolerances, cold_steps=cold_steps)
    criteria = insisted(found.criteria, required=required, waived=waived)
    if as_json_:
        click.echo(json.dumps(_as_json(observation, found, criteria)))
    else:
        _print(observation, found, criteria)
    sys.exit(EXIT_CODES[outcome(criteria)])


def _reconciled(sources: Sources, samples: tuple[Path, ...], manifest: str | None, *, run: str) -> Reconciliation | str:
    from .accounts_load import load_accounts  # noqa: PLC0415
    from .reconcile import reconcile  # noqa: PLC0415
    from .samples_load import load_manifest  # noqa: PLC0415

    expected = load_manifest(manifest) if manifest else None
    accounts = load_accounts(sources, samples, run=run)
    return accounts if isinstance(accounts, str) else reconcile(accounts, expected=expected)


def _as_json(observation: Observation, found: Gate, criteria: Any) -> dict[str, Any]:
    """outcome, run, source, window_seconds; criteria: see criterion.as_json; warm and cold: see gate.Stretch."""
    from .criterion import as_json, outcome  # noqa: PLC0415

    return {
        "outcome": outcome(criteria),
        "run": observation.profile.run,
        "source": observation.source,
        "window_seconds": observation.seconds,
        "criteria": as_json(criteria),
        "warm": _stretch(found.warm),
        "cold": None if found.cold is None else _stretch(found.cold),
    }


def _stretch(stretch: Stretch) -> dict[str, Any]:
    return {name: getattr(stretch, name) for name in type(stretch).__dataclass_fields__}


def _print(observation: Observation, found: Gate, criteria: Any) -> None:
    from .criterion import outcome, table  # noqa: PLC0415

    click.echo(f"Run {observation.profile.run}: {outcome(criteria)}")
    print_text(table(criteria))
    for name, stretch in (("warm", found.warm), ("cold, not judged", found.cold)):
        if stretch is not None:
            which = "" if stretch.first is None else f" {stretch.first} to {stretch.last}"
            worst, typical = stretch.worst_input * 1e3, stretch.median_input * 1e3
            inputs = f"input p99 {worst:.1f} ms on rank {stretch.worst_rank}, {typical:.1f} ms on the median rank"
            exposed = (
                "" if stretch.exposed is None else f", {stretch.exposed:.1%} of GPU time waiting for the last rank"
            )
            click.echo(f"{name}: {stretch.steps} steps{which}, median {stretch.step * 1e3:.1f} ms, {inputs}{exposed}")

"""The command ``compare``: parse, load, compare, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .options import common_sources_of, print_text, trial_options

if TYPE_CHECKING:
    from .reconcile import Reconciliation
    from .trial_load import Trial

__all__ = ["compare"]

_CRITERIA: Final = ("step", "dispersion", "memory", "samples")
_SAYS: Final = {"pass": "accept", "fail": "refuse", "unknown": "cannot tell"}
_PATH: Final = click.Path(path_type=Path)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@trial_options
@click.option("--samples-a", multiple=True, metavar="PATH", type=_PATH, help="Identifiers of A's samples; repeatable.")
@click.option("--samples-b", multiple=True, metavar="PATH", type=_PATH, help="Identifiers of B's samples; repeatable.")
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
def compare(
    *,
    before: str,
    after: str,
    samples_a: tuple[Path, ...],
    samples_b: tuple[Path, ...],
    required: tuple[str, ...],
    waived: tuple[str, ...],
    as_json_: bool,
    **options: Any,
) -> None:
    """Say whether run B is to be accepted in the place of run A, and why.

    A and B are directories of step logs or addresses of agents (#RUN behind them where there are several runs), or,
    with --prometheus or --spool, names of runs. B is accepted only where step p50 or p99 improves, ranks are less
    dispersed, memory holds, and its samples reconcile with A's. Exit code 0: accept. 1: refuse. 2: cannot tell.
    """
    common = common_sources_of(options)
    # Loaded only now: numpy and rich are not needed to say what is wrong with the options.
    from .criterion import EXIT_CODES, as_json, insisted, outcome, table  # noqa: PLC0415
    from .trial_load import load_trial  # noqa: PLC0415
    from .trials import Figures  # noqa: PLC0415
    from .trials import compare as compared  # noqa: PLC0415

    trials = []
    for text in (before, after):
        trial, problems = load_trial(text, common)
        for problem in problems:
            click.echo(f"rank-exporter: {problem}", err=True)
        trials.append(trial)
    (one, _), (other, _) = trials
    found, *both = compared(one, other, _reconciled(trials, samples_a, samples_b))
    criteria = insisted(found, required=required, waived=waived)
    said = _SAYS[outcome(criteria)]
    if as_json_:
        names = Figures.__dataclass_fields__
        a, b = (
            {"run": run.profile.run, "source": run.source, **{name: getattr(figures, name) for name in names}}
            for run, figures in zip((one, other), both, strict=True)
        )
        click.echo(json.dumps({"outcome": said, "criteria": as_json(criteria), "a": a, "b": b}))
    else:
        click.echo(f"{said} {other.profile.run} ({other.source}) in the place of {one.profile.run} ({one.source})")
        print_text(table(criteria))
    sys.exit(EXIT_CODES[outcome(criteria)])


def _reconciled(trials: list[Trial], samples_a: tuple[Path, ...], samples_b: tuple[Path, ...]) -> Reconciliation | str:
    from .accounts_load import load_accounts  # noqa: PLC0415
    from .reconcile import expected_of, reconcile  # noqa: PLC0415

    accounts = []
    for (observation, sources), paths, which in zip(trials, (samples_a, samples_b), "AB", strict=True):
        found = load_accounts(sources, paths, run=observation.profile.run, option=f"--samples-{which.lower()}")
        if isinstance(found, str):
            return f"{which}: {found}"
        accounts.append(found)
    return reconcile(accounts[1], expected=expected_of(accounts[0], name=f"run {trials[0][0].profile.run}"))

"""The command ``scaling``: parse, load, compute, print."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from ..errors import SourceError
from .options import common_sources_of, print_text, trial_options

__all__ = ["scaling"]

_NAMES: Final = ("run", "world_size", "steps", "step", "unit", "rate", "efficiency", "tax")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@trial_options
@click.option(
    "--unit", type=click.Choice(["samples", "tokens"]), help="What is counted.  [default: tokens if all count them]"
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
def scaling(*, runs: tuple[str, ...], unit: str | None, as_json_: bool, **options: Any) -> None:
    """Show how far more ranks go: rate, efficiency against the smallest run, and what waiting for the last rank costs.

    RUNs are directories of step logs or addresses of agents (#RUN behind them where there are several runs), or, with
    --prometheus or --spool, names of runs. Exit code 2: they cannot be compared.
    """
    common = common_sources_of(options)
    # Loaded only now: numpy and rich are not needed to say what is wrong with the options.
    from rich.table import Table  # noqa: PLC0415

    from .scaling import scaling as scaled  # noqa: PLC0415
    from .trial_load import load_trial  # noqa: PLC0415

    observations = []
    for text in runs:
        (observation, _), problems = load_trial(text, common)
        for problem in problems:
            click.echo(f"rank-exporter: {problem}", err=True)
        observations.append(observation)
    found = scaled(observations, unit)
    if isinstance(found, str):
        raise SourceError(found)
    if as_json_:
        # step in seconds; rate in units per second; efficiency and tax are shares, tax null where it is not known.
        click.echo(json.dumps({"runs": [{name: getattr(one, name) for name in _NAMES} for one in found]}))
        return
    table = Table(box=None, pad_edge=False)
    for name in ("ranks", f"{found[0].unit}/s", "efficiency", "tax", "step, ms", "steps"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("run")
    for one in found:
        tax = "-" if one.tax is None else f"{one.tax:.1%}"
        figures = (f"{one.rate:,.1f}", f"{one.efficiency:.1%}", tax, f"{one.step * 1e3:.1f}", str(one.steps))
        table.add_row(str(one.world_size), *figures, one.run)
    print_text(table)

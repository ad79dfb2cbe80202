"""The command ``diagnose``: parse, load, judge, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from .options import print_text, source_options, sources_of

__all__ = ["diagnose"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@source_options
@click.option(
    "--budget",
    type=click.FloatRange(min=0, min_open=True),
    metavar="RATIO",
    help="Skew tolerated, as a share of the median step.  [default: the run's own, else 0.10]",
)
@click.option(
    "--stalled",
    "stalled_seconds",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="A run stands still once all ranks are that long in a phase.  [default: 60, or ten of the longest steps]",
)
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
@click.option(
    "--plot",
    "plot_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Draw each rank's phases over time, .png or .svg; needs rank-exporter[plot].",
)
def diagnose(
    *, budget: float | None, stalled_seconds: float | None, as_json_: bool, plot_file: Path | None, **options: Any
) -> None:
    """Say which rank holds a run up, in which phase, or that none does; and what to look at next.

    From live agents, from a Prometheus or from step logs. Exit code 0: the verdict stands. 2: it is UNKNOWN, or a
    source cannot be read. A source that cannot be read while others can is named on standard error.
    """
    sources = sources_of(options, what="where is the run?")
    from .diagnose_report import as_json, as_text  # noqa: PLC0415
    from .observation import judge  # noqa: PLC0415
    from .run_load import load_run  # noqa: PLC0415
    from .verdict import UNKNOWN  # noqa: PLC0415

    observation, problems = load_run(sources)
    for problem in problems:
        click.echo(f"rank-exporter: {problem}", err=True)
    judged = judge(observation, budget, stalled_seconds=stalled_seconds)
    if plot_file is not None:
        from .plot import plot  # noqa: PLC0415
        from .series_load import load_series  # noqa: PLC0415

        plot(plot_file, load_series(observation, sources), named=judged.verdict.rank, title=judged.verdict.kind)
    if as_json_:
        click.echo(json.dumps(as_json(judged)))
    else:
        print_text(as_text(judged))
    if judged.verdict.kind == UNKNOWN:
        sys.exit(2)

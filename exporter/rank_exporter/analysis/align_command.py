"""The command ``align``: parse, load, align, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import SourceError
from .options import print_text, step_range

if TYPE_CHECKING:
    from .steps_load import Found

__all__ = ["align"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--agent", "agents", multiple=True, metavar="URL", help="A live agent, http://HOST:10911; repeatable.")
@click.option("--prometheus", metavar="URL", help="A Prometheus, whose targets are asked.")
@click.option(
    "--step-log", "--spool", "logs", multiple=True, metavar="PATH", help="Step logs: a file or directory; repeatable."
)
@click.option("--run", metavar="NAME", help="Which run, where there are several.")
@click.option("--generation", type=int, metavar="N", help="Which generation of the run.  [default: the latest]")
@click.option("--step", type=click.IntRange(min=1), metavar="N", help="Show this step.")
@click.option("--steps", "range_", metavar="N..M", callback=step_range, help="Show these steps.")
@click.option("--slowest", type=click.IntRange(min=1), metavar="K", help="Show the K slowest steps.  [default: 3]")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object.")
@click.option("--trace", "trace_file", type=click.Path(path_type=Path), help="Write the steps for ui.perfetto.dev.")
def align(
    agents: tuple[str, ...],
    prometheus: str | None,
    logs: tuple[str, ...],
    run: str | None,
    generation: int | None,
    step: int | None,
    range_: tuple[int, int] | None,
    slowest: int | None,
    as_json_: bool,
    trace_file: Path | None,
) -> None:
    """Show steps across ranks, side by side: who was last, in which phase, and what it cost.

    Steps come from live agents, which hold the latest 4,000 of each rank, or from the step logs that they write to
    RANK_EXPORTER_STEP_LOG_DIR. A source that cannot be read is named on standard error; the others are used.
    """
    if not (agents or prometheus or logs):
        raise click.UsageError("give --agent, --prometheus or --step-log: where are the steps?")
    if sum(choice is not None for choice in (step, range_, slowest)) > 1:
        raise click.UsageError("give one of --step, --steps and --slowest")
    # Loaded only now: numpy, pyarrow and rich are not needed to say what is wrong with the options.
    from .align import align as aligned  # noqa: PLC0415
    from .align_report import as_json, as_text  # noqa: PLC0415
    from .trace import trace  # noqa: PLC0415

    wanted = range_ or ((step, step) if step is not None else None)
    found = _load(agents, prometheus, logs, run=run, wanted=wanted)
    for problem in found.problems:
        click.echo(f"rank-exporter: {problem}", err=True)
    if found.problems and not found.segments:
        sys.exit(2)
    everything = aligned(found.segments, run=run, generation=generation)
    if wanted:
        everything = chosen = everything.between(*wanted)
    else:
        chosen = everything.slowest(slowest or 3)
    if trace_file is not None:
        _write(trace_file, json.dumps(trace(chosen)))
    if as_json_:
        click.echo(json.dumps(as_json(everything, chosen)))
    else:
        print_text(as_text(everything, chosen))


def _load(
    agents: tuple[str, ...],
    prometheus: str | None,
    logs: tuple[str, ...],
    *,
    run: str | None,
    wanted: tuple[int, int] | None,
) -> Found:
    from .steps_load import Found, find_agents, load_agents, load_step_logs  # noqa: PLC0415

    # The step before the first tells which optimizer preceded it.
    first, last = (wanted[0] - 1, wanted[1]) if wanted else (1, None)
    found = Found()
    if prometheus:
        agents = (*agents, *find_agents(prometheus, run=run))
    if agents:
        found.add(load_agents(agents, run=run, first=first, last=last))
    if logs:
        found.add(load_step_logs(map(Path, logs)))
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as error:
        raise SourceError(f"trace {path} cannot be written ({error.strerror}): give another path") from error

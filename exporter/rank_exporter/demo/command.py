"""The command ``demo``: parse, see that everything needed is there, then load what plays it."""

from __future__ import annotations

import importlib.util
import os
from contextlib import ExitStack

import click

__all__ = ["demo"]

_SCENARIOS = ("balanced", "input-straggler", "compute-straggler")


@click.command(name="demo", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--scenario", type=click.Choice(_SCENARIOS), default="input-straggler", show_default=True)
@click.option("--ranks", type=click.IntRange(2, 64), default=2, show_default=True, metavar="N", help="Training ranks.")
@click.option(
    "--straggler-rank", type=click.IntRange(0), default=0, show_default=True, metavar="R", help="Which of them is slow."
)
@click.option("--json", "json_", is_flag=True, help="Print one JSON object instead.")
@click.option("--keep", is_flag=True, help="Let it run on, to look around, until Ctrl-C.")
@click.pass_context
def demo(context: click.Context, *, scenario: str, ranks: int, straggler_rank: int, json_: bool, keep: bool) -> None:
    """Train on this machine with one slow rank, until it pages.

    Starts ranks with torchrun on CPU, Prometheus with the shipped rules, Alertmanager and a receiver of its pages, all
    on the loopback and in a temporary directory, and ends them again within about a minute.

    Exit status: 0 if the scenario's page came and no other, 1 if not, 2 if something needed is missing.
    """
    if straggler_rank >= ranks:
        raise click.BadParameter(f"{straggler_rank} is not one of {ranks} ranks: give 0 to {ranks - 1}")
    if importlib.util.find_spec("torch") is None:
        click.echo("demo: it trains with torch, which is not installed: pip install 'rank-exporter[demo]'", err=True)
        context.exit(2)
    context.exit(_play(scenario, ranks, straggler_rank, json_=json_, keep=keep))


def _play(scenario: str, ranks: int, straggler_rank: int, *, json_: bool, keep: bool) -> int:
    import json  # noqa: PLC0415 - with the following, half a second that other commands need not wait for

    from rich.console import Console  # noqa: PLC0415

    from ..errors import RankExporterError  # noqa: PLC0415
    from . import report, training  # noqa: PLC0415
    from .failure import MissingRequirementError  # noqa: PLC0415
    from .interruption import Interrupted, Interruption  # noqa: PLC0415
    from .progress import Progress  # noqa: PLC0415
    from .scenario import SCENARIOS, Plan  # noqa: PLC0415
    from .servers import find_binaries  # noqa: PLC0415
    from .stage import Outcome, Stage, play, set_up  # noqa: PLC0415

    errors, output = Console(stderr=True), Console()

    def show(outcome: Outcome) -> None:
        progress.pause()
        if json_:
            click.echo(json.dumps(report.as_json(outcome)))
        else:
            output.print(report.as_text(outcome), crop=False)

    def hold(stage: Stage) -> None:
        where = report.places(
            agent=training.agent_url(stage.directory),
            graph=stage.prometheus.page("graph"),
            alerts=stage.prometheus.page("alerts"),
            pages=f"{stage.alertmanager.url}/#/alerts",
        )
        (errors if json_ else output).print(where, crop=False)
        stage.hold()

    outcome: Outcome | None = None
    plan = Plan(
        scenario=SCENARIOS[scenario],
        ranks=ranks,
        straggler_rank=straggler_rank,
        cores=len(os.sched_getaffinity(0)),
    )
    try:
        with ExitStack() as stack:
            interruption = stack.enter_context(Interruption())
            progress = stack.enter_context(Progress(errors))
            stage = stack.enter_context(set_up(plan, find_binaries(), progress, interruption))
            outcome = play(stage, progress)
            if keep:
                show(outcome)
                hold(stage)
    except Interrupted as stopped:
        if outcome is None:
            click.echo(f"demo: {stopped}; nothing of it is left running", err=True)
            return 128 + stopped.signum
    except RankExporterError as error:
        click.echo(f"demo: {error}", err=True)
        return 2 if isinstance(error, MissingRequirementError) else 1
    if not keep:
        show(outcome)
    return 1 if outcome.shortfalls else 0

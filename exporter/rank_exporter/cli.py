"""The command `rank-exporter`: parses, calls, prints. Everything else stands in the modules it calls."""

from __future__ import annotations

import sys

import click

from . import __version__
from .agent.command import agent
from .analysis.align_command import align
from .analysis.compare_command import compare
from .analysis.diagnose_command import diagnose
from .analysis.gate_command import gate
from .analysis.reconcile_command import reconcile
from .analysis.scaling_command import scaling
from .dashboards_command import dashboards
from .demo.command import demo
from .doctor.command import doctor
from .errors import RankExporterError
from .profiling import profile
from .rulepack import (
    DASHBOARD_BASE,
    RULE_FORMATS,
    RUNBOOK_BASE,
    SCRAPE_SECONDS,
    longest_scrape_interval,
    render,
    shortest_window,
)

__all__ = ["main"]


class _Group(click.Group):
    """Errors raised on purpose end the command in one line and with exit code 2."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except RankExporterError as error:
            click.echo(f"rank-exporter: {error}", err=True)
            sys.exit(2)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rank-exporter")
def main() -> None:
    """Which training rank is slow, in which phase, on which host, with which shard."""


@main.command()
@click.option("--format", "format_", type=click.Choice(RULE_FORMATS), default=RULE_FORMATS[0], show_default=True)
@click.option(
    "--window",
    metavar="DURATION",
    help="Base window instead of 10m. Every duration scales with it, and so does how often agents have to be scraped: "
    "at least every 45 s with 10m, every 4.5 s with 1m.",
)
@click.option("--for", "for_", metavar="DURATION", help="How long an alert is pending, instead of 4m.")
@click.option("--dashboard-url", default=DASHBOARD_BASE, show_default=True, help="Address of Grafana.")
@click.option("--runbook-url", default=RUNBOOK_BASE, show_default=True, help="Folder of the runbooks.")
@click.option(
    "--name", default="rank-exporter", show_default=True, help="Name of a PrometheusRule, or namespace in Mimir."
)
@click.option("--namespace", help="Namespace of a PrometheusRule.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Label of a PrometheusRule; repeatable.")
def rules(
    format_: str,
    window: str | None,
    for_: str | None,
    dashboard_url: str,
    runbook_url: str,
    name: str,
    namespace: str | None,
    labels: tuple[str, ...],
) -> None:
    """Print the recording and alert rules."""
    text = render(
        format=format_,
        window=window,
        for_=for_,
        dashboard_url=dashboard_url,
        runbook_url=runbook_url,
        name=name,
        namespace=namespace,
        labels=dict(_pair(label) for label in labels),
    )
    click.echo(text, nl=False)
    if (longest := longest_scrape_interval(window=window)) < SCRAPE_SECONDS:
        click.echo(
            f"rank-exporter: the rules of --window {window} need a scrape every {longest:g} s or more often; "
            f"for one every {SCRAPE_SECONDS} s give --window {shortest_window()} or more",
            err=True,
        )


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is no KEY=VALUE", param_hint="--label")
    return key, value


main.add_command(agent)
main.add_command(align)
main.add_command(compare)
main.add_command(dashboards)
main.add_command(demo)
main.add_command(diagnose)
main.add_command(doctor)
main.add_command(gate)
main.add_command(profile)
main.add_command(reconcile)
main.add_command(scaling)

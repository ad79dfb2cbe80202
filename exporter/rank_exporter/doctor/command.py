"""The command ``doctor``: parse, examine, print."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path

import click

__all__ = ["doctor"]


@click.command(name="doctor", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--prometheus", metavar="URL", help="Prometheus, or what answers like it: Mimir, Thanos, VictoriaMetrics."
)
@click.option("--alertmanager", metavar="URL")
@click.option("--grafana", metavar="URL")
@click.option("--agent", "agents", metavar="URL", multiple=True, help="An agent; repeatable.")
@click.option(
    "--kube-yaml",
    "kube_files",
    metavar="FILE",
    multiple=True,
    help="Kubernetes objects, - for standard input; repeatable.",
)
@click.option("--ca-file", metavar="FILE", help="Authority of the servers' certificates, in PEM.")
@click.option("--grafana-token-file", metavar="FILE", help="File with a token of Grafana.")
@click.option("--json", "json_", is_flag=True, help="Print one JSON array instead.")
@click.pass_context
def doctor(
    context: click.Context,
    prometheus: str | None,
    alertmanager: str | None,
    grafana: str | None,
    agents: tuple[str, ...],
    kube_files: tuple[str, ...],
    ca_file: str | None,
    grafana_token_file: str | None,
    json_: bool,
) -> None:
    """Check an installation, from the ranks to whoever is paged.

    Checks what it is given and says what it could not check. Users and passwords go into the URLs:
    https://user:password@host.

    Exit status: 0 if all that could be checked is good, 1 if something is broken, 2 if nothing could be checked.
    """
    if not (prometheus or alertmanager or grafana or agents or kube_files):
        raise click.UsageError("there is nothing to check: give --prometheus URL, and more of the options below --help")
    from rich.console import Console  # noqa: PLC0415 - with the following, time that other commands need not wait for

    from .endpoint import Endpoint  # noqa: PLC0415
    from .examination import Installation, examine  # noqa: PLC0415
    from .finding import exit_code  # noqa: PLC0415
    from .report import as_json, as_text  # noqa: PLC0415
    from .resources import read_resources  # noqa: PLC0415

    token = _read(grafana_token_file).strip() if grafana_token_file else None
    with ExitStack() as stack:

        def server(url: str, token: str | None = None) -> Endpoint:
            return stack.enter_context(Endpoint(url, ca_file=ca_file, token=token))

        installation = Installation(
            agents=[server(url) for url in agents],
            prometheus=server(prometheus) if prometheus else None,
            alertmanager=server(alertmanager) if alertmanager else None,
            grafana=server(grafana, token) if grafana else None,
            resources=read_resources({name: _read(name) for name in kube_files}) if kube_files else None,
        )
        findings = list(examine(installation))
    if json_:
        click.echo(json.dumps(as_json(findings), indent=2))
    else:
        Console().print(as_text(findings), soft_wrap=True)
    context.exit(exit_code(findings))


def _read(name: str) -> str:
    try:
        return sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{name} cannot be read ({error})") from error

"""`rank-exporter dashboards`: names the dashboards, prints one, or writes all."""

from __future__ import annotations

from pathlib import Path

import click

from .dashboardpack import dashboard, titles, write
from .errors import DashboardError

__all__ = ["dashboards"]


@click.command()
@click.argument("name", required=False)
@click.option("--write", "directory", type=click.Path(path_type=Path), metavar="DIRECTORY", help="Write all, as files.")
def dashboards(name: str | None, directory: Path | None) -> None:
    """List Grafana's dashboards, or print the one of that NAME as JSON, to be imported or provisioned."""
    if name is not None and directory is not None:
        raise DashboardError(f"dashboard {name!r} is to be printed and all are to be written; ask for one of both")
    if directory is not None:
        for path in write(directory):
            click.echo(path)
    elif name is not None:
        click.echo(dashboard(name), nl=False)
    else:
        known = titles()
        width = max(map(len, known))
        for each, title in known.items():
            click.echo(f"{each:{width}}  {title}")

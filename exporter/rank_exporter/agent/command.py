"""The command ``agent``: parse, leave the parent if asked, then load what serving needs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any

import click

from ..config import AgentSettings, agent_settings
from ..errors import RankExporterError

__all__ = ["agent"]


class _WrongSettings(click.ClickException):
    exit_code = 2


@click.command(name="agent", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--dir", "directory", metavar="DIR", help="Directory of the segments.  [default: in /dev/shm]")
@click.option("--host", metavar="NAME", help="Value of the label host for the agent's own series.")
@click.option("--port", type=int, help="Port to serve on; 0 for any.  [default: 10911]")
@click.option("--listen-address", metavar="ADDRESS", help="Address to listen on.  [default: all interfaces]")
@click.option("--linger-seconds", type=float, help="How long an ended rank is served.  [default: two scrapes]")
@click.option("--file-sd-dir", metavar="DIR", help="Directory for a Prometheus file_sd entry, kept while serving.")
@click.option("--web-config-file", metavar="FILE", help="TLS and users, in the format of Prometheus' exporters.")
@click.option("--step-log-dir", metavar="DIR", help="Directory for the raw records of all steps, as Parquet files.")
@click.option("--step-log-bytes", type=int, help="Most bytes of them; the oldest go first.  [default: 1 GiB]")
@click.option("--until-idle", is_flag=True, help="Leave once no rank is left.")
@click.option("--detach", is_flag=True, help="Serve from a process of its own, whose parent is left at once.")
def agent(detach: bool, **given: Any) -> None:
    """Serve the metrics of this host's ranks over HTTP.

    Each setting may also be given as RANK_EXPORTER_DIR, _HOST, _PORT, _LISTEN_ADDRESS, _LINGER_SECONDS,
    _FILE_SD_DIR, _WEB_CONFIG_FILE, _STEP_LOG_DIR or _STEP_LOG_BYTES. Prints one line once it serves.
    """
    try:
        settings = agent_settings(**given)
    except RankExporterError as error:
        raise _WrongSettings(str(error)) from error
    if detach:
        settings = _detach(settings)
    _yield_to_training()
    # Loaded only now: the fork above has to come before numpy and the server, and costs less without them.
    from .service import UnavailableError, serve  # noqa: PLC0415

    try:
        serve(settings, announce=_announce_and_close if detach else _announce)
    except UnavailableError as error:
        raise click.ClickException(str(error)) from error
    except RankExporterError as error:
        raise _WrongSettings(str(error)) from error


def _detach(settings: AgentSettings) -> AgentSettings:
    """Go on in a child whose parent has ended, in a working directory that nobody needs to unmount."""
    settings = dataclasses.replace(
        settings,
        directory=settings.directory.absolute(),
        file_sd_dir=settings.file_sd_dir and settings.file_sd_dir.absolute(),
        web_config_file=settings.web_config_file and settings.web_config_file.absolute(),
        step_log_dir=settings.step_log_dir and settings.step_log_dir.absolute(),
    )
    if os.fork():
        os._exit(0)
    os.chdir("/")
    return settings


def _yield_to_training() -> None:
    with contextlib.suppress(OSError):
        # Little, or it would not be heard where training takes every core: it needs them for milliseconds a scrape.
        os.nice(5)
    # numpy's linear algebra would otherwise start a thread per core as it is loaded.
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"


def _announce(line: str) -> None:
    # Whoever was to read it may have gone.
    with contextlib.suppress(OSError):
        click.echo(line)


def _announce_and_close(line: str) -> None:
    """Whoever started the agent reads the line, then the end of the stream."""
    _announce(line)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)

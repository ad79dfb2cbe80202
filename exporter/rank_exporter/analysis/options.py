"""Options that the commands share: where a run is to be found, and which part of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from .run_load import Sources

__all__ = ["PLAIN_WIDTH", "duration", "moment", "print_text", "source_options", "sources_of", "step_range"]

PLAIN_WIDTH: Final = 200
"""Of output that is no terminal's: tables take what they need."""
_SECONDS: Final[Mapping[str, float]] = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
Command = TypeVar("Command", bound=Callable[..., Any])


def step_range(_ctx: click.Context, _param: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """N..M as a pair of integers, both included."""
    if text is None:
        return None
    found = re.fullmatch(r"(\d{1,15})\.\.(\d{1,15})", text)
    if found is None or int(found[1]) > int(found[2]):
        raise click.BadParameter(f"{text!r} is no range: give N..M, such as 100..120")
    return int(found[1]), int(found[2])


def duration(_ctx: click.Context, _param: click.Parameter, text: str) -> float:
    """30m, 2h, 90s, 1d as seconds."""
    found = re.fullmatch(r"(\d{1,9})([smhdw])", text)
    if found is None or int(found[1]) == 0:
        raise click.BadParameter(f"{text!r} is no duration: give a number and s, m, h or d, such as 30m")
    return int(found[1]) * _SECONDS[found[2]]


def moment(_ctx: click.Context, _param: click.Parameter, text: str | None) -> float | None:
    """Unix seconds, or ISO 8601 (UTC without an offset), as Unix seconds."""
    if text is None:
        return None
    try:
        if re.fullmatch(r"\d{1,12}(\.\d+)?", text):
            return float(text)
        found = datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no time: give Unix seconds or such as 2030-01-31T12:00:00Z") from error
    return (found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp()


_SPOOL: Final = click.option(
    "--spool",
    "--step-log",
    "spools",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Step logs: a file or the directory of RANK_EXPORTER_STEP_LOG_DIR; repeatable.",
)
_PART: Final = (
    click.option("--steps", "steps", callback=step_range, metavar="N..M", help="Judge these steps of records."),
    click.option("--last-steps", type=click.IntRange(min=1), metavar="N", help="Judge the latest N steps of records."),
    click.option(
        "--last", callback=duration, default="30m", show_default=True, metavar="DURATION", help="Window in Prometheus."
    ),
    click.option(
        "--until", callback=moment, metavar="TIME", help="End of that window.  [default: the run's last step]"
    ),
)
_SOURCES: Final = (
    click.option(
        "--agent", "agents", multiple=True, metavar="URL", help="A live agent, http://HOST:10911; repeatable."
    ),
    click.option("--prometheus", metavar="URL", help="A Prometheus; needs --run."),
    _SPOOL,
    click.option("--run", metavar="NAME", help="Which run, where there are several."),
    click.option("--generation", type=int, metavar="N", help="Which generation of records.  [default: the latest]"),
    *_PART,
)
# Here the arguments name the runs.
_TRIALS: Final = (
    click.option("--prometheus", metavar="URL", help="A Prometheus; the arguments are names of its runs."),
    _SPOOL,
    *_PART,
)


def source_options(command: Command) -> Command:
    """Give a command the options that sources_of reads."""
    for option in reversed(_SOURCES):
        command = option(command)
    return command


def sources_of(options: Mapping[str, Any], *, what: str) -> Sources:
    """The sources that the options name; ``what``: to ask for. Raises click.UsageError where there are none."""
    if not (options["agents"] or options["prometheus"] or options["spools"]):
        raise click.UsageError(f"give --agent, --prometheus or --spool: {what}")
    return _sources(options)


def _sources(options: Mapping[str, Any]) -> Sources:
    # Loaded only now: numpy is not needed to say what is wrong with the options.
    from .observation import Window  # noqa: PLC0415
    from .prometheus_load import Span  # noqa: PLC0415
    from .run_load import Sources  # noqa: PLC0415

    first, last = options["steps"] or (None, None)
    return Sources(
        agents=options["agents"],
        prometheus=options["prometheus"],
        spools=options["spools"],
        run=options["run"],
        generation=options["generation"],
        span=Span(seconds=options["last"], until=options["until"]),
        window=Window(first=first, last=last, number=options["last_steps"]),
    )


def trial_options(command: Command) -> Command:
    """Give a command that takes several runs the options that common_sources_of reads."""
    for option in reversed(_TRIALS):
        command = option(command)
    return command


def common_sources_of(options: Mapping[str, Any]) -> Sources:
    """The sources that several runs have in common; empty where each run is a source by itself."""
    return _sources({**options, "agents": (), "run": None, "generation": None})


def print_text(content: Any) -> None:
    """Print for people: as wide as the terminal, or as wide as it takes."""
    from rich.console import Console  # noqa: PLC0415

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    console.print(content, soft_wrap=True)

"""The command ``reconcile``: parse, load, reconcile, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import print_text

if TYPE_CHECKING:
    from ..segment.samples import EpochSamples
    from .samples_load import Found

__all__ = ["reconcile"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--samples",
    "paths",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Identifiers: a file or the directory of RANK_EXPORTER_SAMPLE_IDS_DIR; repeatable.",
)
@click.option("--agent", "agents", multiple=True, metavar="URL", help="A live agent, http://HOST:10911; repeatable.")
@click.option("--prometheus", metavar="URL", help="A Prometheus; needs --run.")
@click.option("--run", "runs", multiple=True, metavar="NAME", help="Which run; repeatable, for attempts at one.")
@click.option("--manifest", metavar="FILE|N", help="What each epoch should consist of; N: the integers 0 to N - 1.")
@click.option("--key", default="id", show_default=True, metavar="NAME", help="Column or field of the manifest.")
@click.option(
    "--against",
    multiple=True,
    metavar="PATH",
    type=click.Path(path_type=Path),
    help="Identifiers of another trial, whose epochs these should equal; repeatable.",
)
@click.option("--against-run", metavar="NAME", help="Another trial, as a run in --against or else in the same sources.")
@click.option(
    "--epoch", "epochs", multiple=True, type=click.IntRange(min=0), metavar="N", help="Only this one; repeatable."
)
@click.option(
    "--resumed-from",
    "resumed",
    multiple=True,
    type=click.IntRange(min=0),
    metavar="STEP",
    help="The step whose checkpoint a restart went on from: later samples of the processes before it do not count. "
    "Once for each restart.",
)
@click.option("--list", "shown", default=10, show_default=True, type=click.IntRange(min=0), metavar="N", help="Of ids.")
@click.option("--json", "as_json_", is_flag=True, help="Print one JSON object, with all identifiers.")
def reconcile(
    paths: tuple[Path, ...],
    agents: tuple[str, ...],
    prometheus: str | None,
    runs: tuple[str, ...],
    manifest: str | None,
    key: str,
    against: tuple[Path, ...],
    against_run: str | None,
    epochs: tuple[int, ...],
    resumed: tuple[int, ...],
    shown: int,
    as_json_: bool,
) -> None:
    """Reconcile the samples that ranks took: with each other, a manifest, or another trial.

    Files of identifiers say which samples were taken twice, omitted or not expected; from agents and Prometheus there
    are counts and digests, which tell whether two multisets are the same. Exits with 0 if all is clean, with 1 if
    something differs, with 2 if that could not be told.
    """
    if not (paths or agents or prometheus):
        raise click.UsageError("give --samples, --agent or --prometheus: what did the ranks take?")
    if manifest and (against or against_run):
        raise click.UsageError("give one of --manifest and --against: what is it to be compared with?")
    if prometheus and not runs:
        raise click.UsageError("give --run with --prometheus: which run?")
    # Loaded only now: numpy and rich are not needed to say what is wrong with the options.
    from .reconcile import expected_of, rolled_back  # noqa: PLC0415
    from .reconcile import reconcile as reconciled  # noqa: PLC0415
    from .reconcile_report import as_json, as_text  # noqa: PLC0415
    from .samples_load import load_manifest, load_samples  # noqa: PLC0415

    wanted = load_manifest(manifest, key=key) if manifest else None
    found = _load(paths, agents, prometheus, (*runs, *([against_run] if against_run and not against else [])))
    _complain(found)
    own = _chosen(found, runs, against_run if not against else None)
    other: Any = wanted
    problems = found.problems
    if against or against_run:
        source = load_samples(against) if against else found
        if against:
            _complain(source)
            problems = problems + source.problems
        theirs = source.of_runs([against_run] if against_run else [])
        other = expected_of(theirs, name=f"run {theirs[0].run}")
    if resumed:
        own = rolled_back(own, resumed)
    result = reconciled(own, expected=other, epochs=epochs or None, problems=problems)
    if as_json_:
        click.echo(json.dumps(as_json(result)))
    else:
        print_text(as_text(result, shown=shown))
    sys.exit({True: 0, False: 1, None: 2}[result.clean])


def _load(paths: tuple[Path, ...], agents: tuple[str, ...], prometheus: str | None, runs: tuple[str, ...]) -> Found:
    from .samples_load import Found, from_agents, from_prometheus, load_samples  # noqa: PLC0415

    found = Found()
    parts = [load_samples(paths), from_agents(agents)]
    if prometheus:
        parts += [from_prometheus(prometheus, run=run) for run in runs]
    for part in parts:
        found.samples += part.samples
        found.problems += part.problems
    return found


def _complain(found: Found) -> None:
    for problem in found.problems:
        click.echo(f"rank-exporter: {problem}", err=True)
    if found.problems and not found.samples:
        sys.exit(2)


def _chosen(found: Found, runs: tuple[str, ...], other: str | None) -> list[EpochSamples]:
    """The samples to be reconciled: not those of the other trial, where it lies with them and no run was named."""
    rest = [name for name in dict.fromkeys(one.run for one in found.samples) if name != other]
    return found.of_runs(runs or (rest if other is not None and len(rest) == 1 else ()))

"""The command ``profile``: ask the ranks of a run, on this host, for traces of the same steps."""

from __future__ import annotations

import re
import time
from pathlib import Path

import click

from .config import agent_settings
from .errors import SegmentError, SettingError, SourceError
from .segment.discovery import is_held, segment_files
from .segment.layout import Word
from .segment.reader import SegmentReader
from .segment.request import ProfileRequest, ask

__all__ = ["profile"]

_POLL_SECONDS = 0.2


@click.command(name="profile", context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--run", required=True, help="Run whose ranks are to profile.")
@click.option("--steps", required=True, metavar="N..M", help="First and last step, of those that are yet to come.")
@click.option("--output", default="profiles", show_default=True, metavar="DIR", help="Directory for the traces.")
@click.option("--dir", "directory", metavar="DIR", help="Directory of the segments.  [default: in /dev/shm]")
@click.option("--wait", type=float, default=0.0, metavar="SECONDS", help="Wait this long for the traces.")
def profile(run: str, steps: str, output: str, directory: str | None, wait: float) -> None:
    """Have every rank of a run on this host profile the same steps.

    Each rank writes one trace, to be opened in Perfetto or Chrome, in which the steps and phases that are measured are
    ranges of the same names. The steps are left out of the histograms. Ask on each host for the same steps.
    """
    request = _request(steps, output)
    found = _ranks(agent_settings(directory=directory).directory, run)
    behind = [f"rank {rank} has done {done}" for rank, (_, done) in sorted(found.items()) if done + 1 >= request.first]
    if behind:
        raise SettingError(f"steps {steps} are too early, as {behind[0]}: give later ones")
    for segment, _ in found.values():
        ask(segment, request)
    click.echo(f"{len(found)} ranks of run {run} profile steps {steps} into {request.directory}")
    if wait:
        _await(request, sorted(found), wait)


def _request(steps: str, output: str) -> ProfileRequest:
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", steps)
    if numbers is None:
        raise SettingError(f"steps is {steps!r}: give the first and the last, such as 1000..1004")
    return ProfileRequest(first=int(numbers[1]), last=int(numbers[2]), directory=str(Path(output).absolute()))


def _ranks(directory: Path, run: str) -> dict[int, tuple[Path, int]]:
    """Segment and steps done of each live rank of the run."""
    found = {}
    for path in segment_files(directory):
        if not is_held(path):
            continue
        try:
            reader = SegmentReader(path)
        except SegmentError:
            continue
        try:
            if reader.source.identity.run == run and (snapshot := reader.snapshot()) is not None:
                found[reader.source.identity.rank] = path, snapshot.word(Word.STEPS)
        finally:
            reader.close()
    if not found:
        raise SourceError(f"no rank of run {run!r} is alive in {directory}: check --run and --dir")
    return found


def _await(request: ProfileRequest, ranks: list[int], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    pattern = f"rank-*-steps-{request.first}-{request.last}.pt.trace.json"
    while len(written := list(Path(request.directory).glob(pattern))) < len(ranks):
        if time.monotonic() > deadline:
            raise SourceError(
                f"{len(written)} of {len(ranks)} traces after {seconds:g} s: are the ranks still training?"
            )
        time.sleep(_POLL_SECONDS)
    click.echo("\n".join(str(path) for path in sorted(written)))

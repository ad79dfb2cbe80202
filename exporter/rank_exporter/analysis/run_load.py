"""Reads a run from wherever it is kept: live agents, a Prometheus, step logs, or several of these together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import SourceError
from ..segment.records import RankSteps
from .load import load_agent
from .observation import Observation, Window, merged_profiles, observe
from .profile import RunProfile
from .prometheus_load import Span, load_prometheus
from .sources import ask_all
from .steps_load import Found, load_agents, load_step_logs

__all__ = ["Sources", "load_run"]

_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where a run is to be found. ``agents``: addresses. ``prometheus``: an address, needs ``run``. ``spools``: files
    or directories of step logs. ``span`` is for Prometheus, ``window`` and ``generation`` are for records. ``naming``
    says, in a message, how one of several runs is named."""

    agents: tuple[str, ...] = ()
    prometheus: str | None = None
    spools: tuple[Path, ...] = ()
    run: str | None = None
    generation: int | None = None
    span: Span = field(default_factory=Span)
    window: Window = field(default_factory=Window)
    naming: str = "with --run"

    def __str__(self) -> str:
        return ", ".join([*self.agents, *filter(None, [self.prometheus]), *map(str, self.spools)])


def load_run(sources: Sources) -> tuple[Observation, list[str]]:
    """The run, and one line for each source that gave nothing while others did.

    Raises SourceError, in one line, where none did, where there are several runs and none is named, or none of the
    name; SettingError where pyarrow is missing.
    """
    problems: list[str] = []
    profiles: list[RunProfile] = []
    records: list[RankSteps] = []
    if sources.agents:
        _add(_agents(sources, profiles), records, problems)
    if sources.spools:
        _add(load_step_logs(sources.spools), records, problems)
    seconds = None
    if sources.prometheus:
        if sources.run is None:
            raise SourceError(f"which run of {sources.prometheus}? Name one {sources.naming}")
        profile, _ = load_prometheus(sources.prometheus, run=sources.run, span=sources.span)
        profiles.append(profile)
        seconds = None if records else sources.span.seconds
    if problems and not profiles and not any(len(steps.records) for steps in records):
        raise SourceError(problems[0])
    records = [steps for steps in records if len(steps.records)]
    found = {*(one.run for one in profiles), *(steps.run for steps in records)}
    run = sources.run or _only(sorted(found), sources.naming)
    observation = observe(
        records,
        merged_profiles(one for one in profiles if run in (None, one.run)),
        source=str(sources),
        run=run,
        generation=sources.generation,
        window=sources.window,
    )
    if seconds is not None:
        observation = Observation(
            profile=observation.profile, alignment=observation.alignment, source=observation.source, seconds=seconds
        )
    return observation, problems


def _only(runs: Sequence[str], naming: str) -> str | None:
    if len(runs) > 1:
        raise SourceError(f"{len(runs)} runs were found ({', '.join(runs)}): name one {naming}")
    return runs[0] if runs else None


def _add(found: Found, records: list[RankSteps], problems: list[str]) -> None:
    records += found.segments
    problems += found.problems


def _agents(sources: Sources, profiles: list[RunProfile]) -> Found:
    """Records and profiles of agents. An agent without profile is a problem; one without records is none."""

    answers, problems = ask_all(sources.agents, lambda url: load_agent(url, run=sources.run))
    found = Found(problems=problems)
    serving = [url for url, _ in answers]
    profiles += [profile for _, profile in answers]
    if serving:
        steps = load_agents(serving, run=sources.run)
        found.segments += steps.segments
        found.problems += steps.problems
    return found

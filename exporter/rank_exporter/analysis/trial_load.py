"""Reads several runs to be compared, each named by one text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..errors import SourceError
from .observation import Observation
from .run_load import Sources, load_run

__all__ = ["Trial", "load_trial"]

Trial = tuple[Observation, Sources]


def load_trial(text: str, common: Sources) -> tuple[Trial, list[str]]:
    """A run, and what could not be read while the rest could.

    Where ``common`` names sources, the text is the name of a run in them. Otherwise it is a directory or file of step
    logs or an agent's address, and, behind a #, the run's name where there are several. Raises SourceError.
    """
    if common.agents or common.prometheus or common.spools:
        sources = dataclasses.replace(common, run=text)
    else:
        place, _, run = text.partition("#")
        own = {"agents": (place,)} if "://" in place else {"spools": (Path(place),)}
        if "spools" in own and not Path(place).exists():
            raise SourceError(
                f"{place} does not exist: give a directory of step logs, an agent's address, or --prometheus with runs"
            )
        sources = dataclasses.replace(common, run=run or None, naming=f"as in {place}#RUN", **own)
    observation, problems = load_run(sources)
    return (observation, dataclasses.replace(sources, run=observation.profile.run)), problems

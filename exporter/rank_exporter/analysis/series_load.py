"""Reads what is to be drawn: from records at hand, else by range queries to a Prometheus."""

from __future__ import annotations

import numpy as np

from ..catalog import PHASE_DURATION
from ..errors import SourceError
from ..phases import IN_STEP, Phase
from .observation import Observation
from .prometheus_load import Prometheus, end_of, quoted
from .run_load import Sources
from .series import Series, series_of

__all__ = ["load_series"]

_POINTS = 120
_SHORTEST_SECONDS = 15.0


def load_series(observation: Observation, sources: Sources) -> Series:
    """Each rank's phases over time. Raises SourceError where the source holds totals alone."""
    if observation.alignment is not None:
        return series_of(observation.alignment)
    if sources.prometheus is None:
        raise SourceError(f"{observation.source} holds totals alone: --plot needs step records or a Prometheus")
    run = observation.profile.run
    server, span = Prometheus(sources.prometheus), sources.span
    until = end_of(server, run, span)
    every = max(span.seconds / _POINTS, _SHORTEST_SECONDS)
    at = np.arange(until - span.seconds, until + every / 2, every)
    _, total, count = PHASE_DURATION.series_names
    # A rate needs two scrapes within it.
    selector, within = f"{{run={quoted(run)}}}", f"[{round(4 * every)}s]"
    query = (
        f"sum by (rank, phase) (rate({total}{selector}{within}))"
        f" / (sum by (rank, phase) (rate({count}{selector}{within})) > 0)"
    )
    ranks = tuple(rank.rank for rank in observation.profile.ranks)
    names = [phase.label for phase in (*IN_STEP, Phase.STEP)]
    seconds = {name: np.full((len(ranks), len(at)), np.nan) for name in names}
    for labels, pairs in server.query_range(query, start=at[0], end=at[-1], step=every):
        phase, rank = labels.get("phase", ""), labels.get("rank", "")
        if phase in seconds and rank.isdigit() and int(rank) in ranks:
            for time, value in pairs:
                seconds[phase][ranks.index(int(rank)), round((time - at[0]) / every)] = value
    shown = {name: values for name, values in seconds.items() if not np.isnan(values).all()}
    return Series(run=run, ranks=ranks, at=at, axis="time", seconds=shown)

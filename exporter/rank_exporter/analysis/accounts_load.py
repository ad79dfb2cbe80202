"""Reads the samples that a run took, from wherever the run itself is read, and from files beside."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import SourceError
from ..segment.samplelog import SAMPLE_LOG_SUFFIX
from ..segment.samples import EpochSamples
from .run_load import Sources
from .samples_load import Found, from_agents, from_prometheus, load_samples

__all__ = ["load_accounts"]


def load_accounts(
    sources: Sources, paths: Sequence[Path], *, run: str, option: str = "--samples"
) -> list[EpochSamples] | str:
    """What each process of the run took, or, in one line, why that is not known. ``option`` is what gives ``paths``.

    Files of identifiers (``paths``, and those among the step logs) come first, since they tell most; without any,
    digests from agents and Prometheus.
    """
    beside = [path for path in sources.spools if path.is_dir() and any(path.rglob(f"*{SAMPLE_LOG_SUFFIX}"))]
    if paths or beside:
        found = load_samples([*paths, *beside])
    else:
        found = Found()
        if sources.agents:
            found = from_agents(sources.agents)
        if sources.prometheus:
            known = from_prometheus(sources.prometheus, run=run)
            found.samples += known.samples
            found.problems += known.problems
    if found.problems:
        return found.problems[0]
    try:
        return found.of_runs([run])
    except SourceError:
        return f"no samples of the run are known: let an epoch end, or give {option} (RANK_EXPORTER_SAMPLE_IDS_DIR)"

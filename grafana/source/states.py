"""The state of a run in one word, from the alerts of the pack: the gravest that fires, or else is pending."""

from __future__ import annotations

from collections.abc import Iterator

from .palette import BREACH, GOOD, UNSURE
from .queries import BY_RUN, RUN

__all__ = ["STATES", "state", "texts"]

STATES: dict[str, str] = {
    "TrainingRankStalled": "RANK STALLED",
    "TrainingRanksMissing": "RANKS MISSING",
    "TrainingInputStraggler": "INPUT STRAGGLER",
    "TrainingComputeStraggler": "COMPUTE STRAGGLER",
    "TrainingRotatingStragglers": "ROTATING STRAGGLERS",
    "TrainingTailStraggler": "TAIL STRAGGLER",
    "TrainingBatchSkew": "BATCH SKEW",
    "TrainingFabricSlow": "FABRIC SLOW",
    "TrainingInputBound": "INPUT-BOUND",
    "TrainingDeviceIdle": "DEVICE IDLE",
}
"""What each alert says of a run, the gravest first."""

_BALANCED = 0


def _numbered() -> Iterator[tuple[str, str, int]]:
    """Alerts with what they say and a number; the number after it stands for the alert while it is pending."""
    for place, (alert, said) in enumerate(reversed(STATES.items())):
        yield alert, said, 1 + 2 * place


def state() -> str:
    """Return the number of the state of the run; nothing as long as no window holds steps enough to judge it."""
    numbered = {alert: number for alert, _, number in _numbered()}
    branches = [
        f'max by ({BY_RUN}) (ALERTS{{alertname="{alert}",alertstate="{alertstate}",{RUN}}}) * {numbered[alert] + after}'
        for alertstate, after in (("firing", 0), ("pending", 1))
        for alert in STATES
    ]
    judged = f"max by ({BY_RUN}) (run:training_steps:judged{{{RUN}}}) * {_BALANCED}"
    return f" or on ({BY_RUN}) ".join([*branches, judged])


def texts() -> dict[int, tuple[str, str]]:
    """Return what the numbers mean, with a colour."""
    said = {_BALANCED: ("BALANCED", GOOD)}
    for _, name, number in _numbered():
        said[number] = (name, BREACH)
        said[number + 1] = (f"{name}?", UNSURE)
    return said

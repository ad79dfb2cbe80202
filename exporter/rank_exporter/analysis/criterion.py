"""One thing that is asked of a run, its figure, and whether it is met; and what several come to. Plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

__all__ = ["EXIT_CODES", "Criterion", "State", "as_json", "insisted", "outcome", "table"]

State = Literal["pass", "fail", "unknown", "not applicable"]

EXIT_CODES: Final[dict[State, int]] = {"pass": 0, "fail": 1, "unknown": 2}
_STYLES: Final = {"pass": "green", "fail": "bold red", "unknown": "yellow", "not applicable": "dim"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Criterion:
    """``figure`` is to stay at or below ``tolerance``; ``low`` to ``high`` is where it lies in 95 of 100 samples. All
    None where there is no such number. ``reason``: one line, with the remedy where it could not be told."""

    name: str
    state: State
    reason: str
    figure: float | None = None
    tolerance: float | None = None
    low: float | None = None
    high: float | None = None


def insisted(
    criteria: Iterable[Criterion], *, required: Collection[str] = (), waived: Collection[str] = ()
) -> tuple[Criterion, ...]:
    """What does not apply, though it is required, is unknown; what is waived and unknown does not apply."""
    found = []
    for one in criteria:
        state = one.state
        if state == "not applicable" and one.name in required:
            state = "unknown"
        elif state == "unknown" and one.name in waived:
            state = "not applicable"
        found.append(dataclasses.replace(one, state=state))
    return tuple(found)


def outcome(criteria: Sequence[Criterion]) -> State:
    """fail if one fails, else unknown if one is, else pass."""
    states = {one.state for one in criteria}
    if "fail" in states:
        return "fail"
    return "unknown" if "unknown" in states or "pass" not in states else "pass"


def as_json(criteria: Sequence[Criterion]) -> list[dict[str, Any]]:
    """Each with name, state, figure, tolerance, low, high, reason."""
    names = ("name", "state", "figure", "tolerance", "low", "high", "reason")
    return [{name: getattr(one, name) for name in names} for one in criteria]


def table(criteria: Sequence[Criterion]) -> RenderableType:
    """A row each."""
    rows = Table(box=None, pad_edge=False)
    for name in ("criterion", "", "figure", "tolerance"):
        rows.add_column(name, justify="right" if name in ("figure", "tolerance") else "left", no_wrap=True)
    rows.add_column("why", overflow="fold")
    for one in criteria:
        rows.add_row(
            one.name, Text(one.state, style=_STYLES[one.state]), _number(one.figure), _number(one.tolerance), one.reason
        )
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"

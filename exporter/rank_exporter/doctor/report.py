"""Findings as text or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from .finding import Finding, State

__all__ = ["as_json", "as_text", "summary"]

_STYLES = {State.GOOD: "green", State.BROKEN: "bold red", State.UNKNOWN: "yellow"}
_WIDTH = max(len(state.value) for state in State)


def as_text(findings: Sequence[Finding]) -> RenderableType:
    """A line for each finding and one for its remedy; at the end how many of each kind."""
    lines: list[RenderableType] = [line for finding in findings for line in _lines(finding)]
    return Group(*lines, Text(), Text(summary(findings)))


def _lines(finding: Finding) -> Iterable[RenderableType]:
    state = (finding.state.value.ljust(_WIDTH), _STYLES[finding.state])
    yield Text.assemble(state, "  ", (finding.check, "bold"), ": ", finding.seen)
    if finding.remedy:
        # Indented by hand: a padding would cut a remedy, often a command to copy, at the width of the terminal.
        yield Text(f"{'':{_WIDTH + 2}}→ {finding.remedy}")


def summary(findings: Sequence[Finding]) -> str:
    """How many of each kind."""
    counts = {state: sum(finding.state is state for finding in findings) for state in State}
    return f"{counts[State.GOOD]} good, {counts[State.BROKEN]} broken, {counts[State.UNKNOWN]} not checked"


def as_json(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """One object for each finding."""
    return [{"check": one.check, "state": one.state.value, "seen": one.seen, "remedy": one.remedy} for one in findings]

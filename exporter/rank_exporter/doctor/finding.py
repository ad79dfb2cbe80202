"""What an examination finds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Finding", "State", "broken", "exit_code", "good", "unknown"]


class State(Enum):
    """``UNKNOWN``: it could not be checked."""

    GOOD = "good"
    BROKEN = "broken"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One check and what came of it. ``seen``: one line; ``remedy``: what to do, empty where nothing is to be done."""

    check: str
    state: State
    seen: str
    remedy: str = ""


def good(check: str, seen: str) -> Finding:
    return Finding(check=check, state=State.GOOD, seen=seen)


def broken(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check=check, state=State.BROKEN, seen=seen, remedy=remedy)


def unknown(check: str, seen: str, remedy: str) -> Finding:
    return Finding(check=check, state=State.UNKNOWN, seen=seen, remedy=remedy)


def exit_code(findings: Iterable[Finding]) -> int:
    """0: all that could be checked is good. 1: something is broken. 2: nothing could be checked."""
    states = {finding.state for finding in findings}
    if State.BROKEN in states:
        return 1
    return 0 if State.GOOD in states else 2

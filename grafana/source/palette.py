"""Colours that people of every colour vision tell apart (Okabe and Ito), and what each of them means here.

Vermilion is kept for what breaches a budget or a need, so that whatever is red is to be looked at.
"""

from __future__ import annotations

__all__ = ["BREACH", "BUDGET", "GOOD", "MUTED", "NEUTRAL", "PHASE_COLOURS", "SUBJECT", "UNSURE"]

_BLUE = "#0072B2"
_GREEN = "#009E73"
_GREY = "#707070"
_ORANGE = "#E69F00"
_PURPLE = "#CC79A7"
_SKY = "#56B4E9"
_VERMILION = "#D55E00"
_YELLOW = "#F0E442"

BREACH = _VERMILION
GOOD = _BLUE
UNSURE = _GREY
NEUTRAL = _BLUE
MUTED = _GREY
BUDGET = "text"
"""Black on a light page, white on a dark one."""

SUBJECT = _ORANGE
"""The rank, host, shard or run that a panel is about, among others."""

PHASE_COLOURS: dict[str, str] = {
    "input_ready": _ORANGE,
    "h2d": _YELLOW,
    "forward": _SKY,
    "backward": _BLUE,
    "collective_wait": _GREY,
    "optimizer": _GREEN,
    "other": _PURPLE,
}
"""The phases that add up to a step, in their order. Waiting is grey: who waits longest is nobody's culprit."""

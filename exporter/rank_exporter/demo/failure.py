"""Why a demo ends before it has an outcome."""

from __future__ import annotations

from ..errors import RankExporterError

__all__ = ["DemoError", "MissingRequirementError"]


class DemoError(RankExporterError):
    """The demo cannot go on: a server or the training ended early, or was not there in time."""


class MissingRequirementError(DemoError):
    """Something that the demo runs is not installed."""

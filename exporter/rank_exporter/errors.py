"""One exception tree: everything this package raises on purpose derives from RankExporterError."""

from __future__ import annotations

__all__ = ["DashboardError", "RankExporterError", "RulePackError", "SegmentError", "SettingError", "SourceError"]


class RankExporterError(Exception):
    """Base of all errors raised on purpose. Its text is one line: what, the value seen, the remedy."""


class SettingError(RankExporterError):
    """A setting is wrong. Raised before the first step, never later."""


class SegmentError(RankExporterError):
    """A segment file is foreign, truncated, corrupt or of another version."""


class SourceError(RankExporterError):
    """A source of measurements (agent, Prometheus, file) cannot be read or does not hold what was asked for."""


class RulePackError(RankExporterError):
    """The rule pack cannot be rendered as asked."""


class DashboardError(RankExporterError):
    """A dashboard that is asked for does not exist or cannot be written."""

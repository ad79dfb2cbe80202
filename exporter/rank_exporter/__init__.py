"""Which training rank is slow, in which phase, on which host, with which shard.

The names below are all of the public API. They are imported when first used, so that agents and commands,
which share this package, load nothing of what runs inside a training process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import RankExporterError, SettingError
    from .instrument.exporter import Exporter, start

__all__ = ["Exporter", "RankExporterError", "SettingError", "__version__", "start"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in ("Exporter", "start"):
        from .instrument import exporter as home  # noqa: PLC0415
    elif name in ("RankExporterError", "SettingError"):
        from . import errors as home  # type: ignore[no-redef]  # noqa: PLC0415
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(home, name)

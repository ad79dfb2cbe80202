"""Draws each rank's phases over time. Needs matplotlib, the extra ``rank-exporter[plot]``."""

from __future__ import annotations

import importlib
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..errors import SettingError
from .series import Series

__all__ = ["plot"]

_SUFFIXES: Final = (".png", ".svg")
_LINES: Final = 8
"""More ranks than this are drawn as a band from the fastest to the slowest, with their median."""


def plot(path: Path, series: Series, *, named: int | None = None, title: str = "") -> None:
    """Draw a panel per phase, a line per rank, the ``named`` one in red. Raises SettingError where matplotlib is
    missing, the suffix is neither .png nor .svg, or the file cannot be written."""
    if path.suffix.lower() not in _SUFFIXES:
        raise SettingError(f"plot {path} is neither .png nor .svg: give it one of these suffixes")
    try:
        figures: Any = importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise SettingError(f"plots need matplotlib ({error}): pip install 'rank-exporter[plot]'") from error
    names = list(series.seconds)
    figure = figures.Figure(figsize=(10, 1.2 + 1.6 * max(len(names), 1)), layout="constrained")
    # A file name or a run's name may hold a dollar sign, which would begin a formula.
    text = f"run {series.run}{': ' + title if title else ''}{f', rank {named}' if named is not None else ''}"
    figure.suptitle(text.replace("$", r"\$"))
    axes = figure.subplots(max(len(names), 1), 1, sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, names, strict=False):
        _panel(axis, series, series.seconds[name] * 1e3, named)
        axis.set_ylabel(f"{name}\nms", rotation=0, ha="right", va="center")
        axis.margins(y=0.15)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[-1].set_xlabel("step" if series.axis == "step" else "time, UTC")
    handles, labels = axes[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside right upper", fontsize="small")
    try:
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise SettingError(f"plot {path} cannot be written ({error.strerror}): give another path") from error


def _panel(axis: Any, series: Series, ms: Any, named: int | None) -> None:
    at: Any = series.at
    if series.axis == "time":
        at = [datetime.fromtimestamp(float(one), tz=timezone.utc) for one in series.at]
    many = len(series.ranks) > _LINES
    if many:
        with np.errstate(all="ignore"):
            axis.fill_between(at, _over(np.nanmin, ms), _over(np.nanmax, ms), alpha=0.25, label="all ranks", color="C0")
        axis.plot(at, _over(np.nanmedian, ms), label="median rank", color="C0", linewidth=1)
    for place, rank in enumerate(series.ranks):
        if rank == named:
            axis.plot(at, ms[place], label=f"rank {rank}", color="red", linewidth=1.5, zorder=3)
        elif not many:
            axis.plot(at, ms[place], label=f"rank {rank}", linewidth=1, alpha=0.8)


def _over(of: Any, values: Any) -> Any:
    """The figure over ranks at each time; NaN where no rank has one."""
    known = ~np.isnan(values).all(axis=0)
    result = np.full(values.shape[1], np.nan)
    result[known] = of(values[:, known], axis=0)
    return result

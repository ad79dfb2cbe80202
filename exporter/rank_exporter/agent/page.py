"""The page at /: for somebody who opens the agent's address in a browser."""

from __future__ import annotations

import time
from collections.abc import Iterable
from html import escape
from pathlib import Path

from ..segment.layout import Word
from .residence import Resident

__all__ = ["page"]

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>rank-exporter</title>
<style>
body {{ font-family: system-ui, sans-serif; margin: 2rem; }}
table {{ border-collapse: collapse; }}
th, td {{ text-align: left; padding: 0.25rem 1rem 0.25rem 0; border-bottom: 1px solid #ccc; }}
</style>
<h1>rank-exporter</h1>
<p><a href="metrics">/metrics</a> · <a href="healthz">/healthz</a></p>
<p>Ranks in <code>{directory}</code>:</p>
<table>
<tr><th>run<th>rank<th>host<th>phase in progress<th>steps</tr>
{rows}
</table>
</html>
"""


def page(ranks: Iterable[Resident], directory: Path) -> str:
    """HTML with links and a table of the ranks."""
    return _PAGE.format(directory=escape(str(directory)), rows="\n".join(map(_row, ranks)))


def _row(rank: Resident) -> str:
    identity = rank.reader.source.identity
    steps = rank.snapshot.word(Word.STEPS) if rank.snapshot is not None else 0
    cells = (identity.run, identity.rank, identity.host, _phase(rank), steps)
    return "<tr>" + "".join(f"<td>{escape(str(cell))}" for cell in cells) + "</tr>"


def _phase(rank: Resident) -> str:
    if not rank.live:
        return "ended"
    if rank.phase is None:
        return "before the first step"
    seconds = max(0, time.monotonic_ns() - rank.phase_since_ns) / 1e9
    return f"{rank.phase.label}, {seconds:.1f} s"

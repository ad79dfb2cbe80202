"""A real Prometheus that holds simulated runs, as if it had scraped their agents and evaluated the shipped rules.

    from rank_exporter.phases import Phase
    from tests.simulation.loaded import loaded_prometheus
    from tests.simulation.run import Run, Slow

    late = Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(3,), start=1800)
    with loaded_prometheus(Run(run="llama", ranks=8, slow=(late,)), seconds=5400) as url:
        ...  # the data end now: query url, point Grafana or a browser at it

``loaded_prometheus(*runs, seconds, end=None, rules=True, scrape=15, down=(), lost=0.0)`` yields the URL. ``seconds`` is
how much is simulated, ``end`` the Unix time at which that ends (now if None). ``rules=True`` adds what the shipped
records and alerts would have stored (ALERTS, ALERTS_FOR_STATE and all recorded series); a list of rule groups, as
parsed from YAML, those instead; False nothing. A restart is a second Run of the same name that starts when the first
one ends. Within tests import it as ``from ..simulation.loaded import loaded_prometheus``.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import yaml

from rank_exporter import rulepack

from .exposition import expositions
from .prometheus import prometheus
from .remote_write import Sender
from .replay import Replay
from .run import Run

__all__ = ["load", "loaded_prometheus"]

_SHORTEST_CHUNK, _LONGEST_CHUNK = 1200.0, 21600.0
"""Seconds that are loaded and evaluated at a time: the more ranks, the fewer, for the sake of memory."""
_RANK_SECONDS = 16 * _LONGEST_CHUNK


@contextmanager
def loaded_prometheus(
    *runs: Run,
    seconds: float,
    end: float | None = None,
    rules: bool | Sequence[dict[str, Any]] = True,
    scrape: float = 15.0,
    down: Sequence[tuple[float, float]] = (),
    lost: float = 0.0,
) -> Iterator[str]:
    """See the module."""
    with prometheus() as url:
        load(url, *runs, seconds=seconds, end=end, rules=rules, scrape=scrape, down=down, lost=lost)
        yield url


def load(
    url: str,
    *runs: Run,
    seconds: float,
    end: float | None = None,
    rules: bool | Sequence[dict[str, Any]] = True,
    scrape: float = 15.0,
    down: Sequence[tuple[float, float]] = (),
    lost: float = 0.0,
    only: Collection[str] | None = None,
) -> Replay | None:
    """Fill an empty Prometheus at ``url``. Returns the rules' evaluation, if any, with the alerts that fired.

    ``only``: names of the raw series to write; None for all.
    """
    epoch = _multiple((time.time() if end is None else end) - seconds, 60.0)
    sources = expositions(runs, until=seconds, scrape=scrape, down=down, lost=lost, epoch=epoch)
    groups = yaml.load(rulepack.render(), Loader=yaml.CSafeLoader)["groups"] if rules is True else rules or []
    replay = Replay(url, groups, epoch=epoch) if groups else None
    # A sender remembers by table which series were there, and generations of a run have the same tables.
    senders = [Sender(url, epoch) for _ in runs]
    ranks = max(run.ranks for run in runs)
    size = int(min(max(_RANK_SECONDS / ranks, _SHORTEST_CHUNK), _LONGEST_CHUNK) // scrape)
    last = int(seconds // scrape) + 1
    try:
        for first in range(0, last, size):
            for exposition, sender in zip(sources, senders, strict=True):
                scrapes = exposition.scrapes(first, min(first + size, last))
                tables = exposition.tables(scrapes)
                sender.send([one for one in tables if only is None or one.name in only], scrapes)
            if replay is not None:
                replay.evaluate(until=(min(first + size, last) - 1) * scrape, down=down)
    finally:
        for sender in senders:
            sender.close()
        if replay is not None:
            replay.close()
    return replay


def _multiple(number: float, of: float) -> float:
    return number // of * of

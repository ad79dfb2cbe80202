"""A real Prometheus with the series of every scenario that the dashboards are looked at with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.phases import Phase

from ..simulation.loaded import load
from ..simulation.prometheus import prometheus
from ..simulation.run import Run, Slow
from .reader import Reader

# One run of each kind. Twelve ranks, so that 10 stands behind 9 only in numeric order. Each has hosts of
# its own, as in a cluster.
_RUNS = (
    Run(run="balanced", hosts="even", ranks=8, per_host=4),
    Run(
        run="input",
        hosts="late",
        ranks=12,
        per_host=4,
        shards=2,
        slow=(Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(10,)),),
    ),
    Run(run="compute", hosts="hot", ranks=4, per_host=2, slow=(Slow(phase=Phase.BACKWARD, by=0.3, ranks=(2,)),)),
    Run(run="rotating", hosts="round", ranks=8, per_host=4, slow=(Slow(phase=Phase.INPUT_READY, by=0.9, steps=0.1),)),
    Run(run="pair", hosts="two", ranks=2, slow=(Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(1,)),)),
    Run(run="unaligned", hosts="alone", ranks=3, aligned=False, headroom=0.5),
    Run(run="slow", hosts="long", ranks=2, step=200.0),
)
_SECONDS = 1080


@pytest.fixture(scope="session")
def loaded() -> Iterator[tuple[str, float]]:
    """The address of a Prometheus, and the Unix time at which its data end."""
    end = time.time() // 60 * 60
    groups = yaml.load(rulepack.render(), Loader=yaml.CSafeLoader)["groups"]
    for group in groups:
        # As often as panels need, which is more seldom than in earnest.
        group["interval"] = "60s"
    with prometheus() as url:
        load(url, *_RUNS, seconds=_SECONDS, end=end, rules=groups)
        yield url, end


Look = Callable[..., Reader]


@pytest.fixture
def look(loaded: tuple[str, float]) -> Iterator[Look]:
    """Makes a reader who looks at the last ten minutes of a run."""
    readers = []
    url, end = loaded

    def at(run: str, **values: str) -> Reader:
        every = {"datasource": "prometheus", "cluster": ".*", "namespace": ".*", "host": ".*", "shard": ".*"}
        readers.append(Reader(url, end, 600, {**every, "run": run, "rank": "0", **values}))
        return readers[-1]

    yield at
    for reader in readers:
        reader.close()

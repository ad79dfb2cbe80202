"""Simulated agents expose what real ones would of the same steps."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from rank_exporter import rulepack
from rank_exporter.agent.alignment import Batch
from rank_exporter.agent.buckets import EDGES
from rank_exporter.agent.families import Families
from rank_exporter.agent.totals import Totals
from rank_exporter.catalog import METRICS
from rank_exporter.histogram import BUCKETS, cumulative
from rank_exporter.lateness import UNKNOWN, lateness
from rank_exporter.phases import Phase

from .counts import grid
from .exposition import Exposition, expositions
from .replay import names_read
from .run import Run, Slow
from .steps import simulate
from .table import Labels, Table

SECONDS = 600.0
RUN = Run(
    run="llama",
    ranks=5,
    per_host=2,
    shards=2,
    sigma=0.6,
    token_sigma=0.1,
    never_fetch=frozenset({4}),
    slow=(Slow(phase=Phase.INPUT_READY, by=0.4, ranks=(3,), steps=0.5),),
)


def _last(run: Run, chunk: int = 7) -> dict[tuple[str, Labels], float]:
    """Every series with its value at the last scrape; chunks of scrapes must not show."""
    exposition = Exposition(run, until=SECONDS)
    found: dict[tuple[str, Labels], float] = {}
    number = int(SECONDS / exposition.scrape)
    for first in range(0, number, chunk):
        found.clear()
        for table in exposition.tables(exposition.scrapes(first, min(first + chunk, number))):
            for row in np.flatnonzero(table.present[:, -1]):
                labels = tuple(sorted(pair for pair in table.labels[row] if pair[1]))
                found[table.name, labels] = float(table.values[row, -1])
    return found


def _value(found: dict[tuple[str, Labels], float], series: str, **wanted: str) -> float:
    values = [
        value for (name, labels), value in found.items() if name == series and wanted.items() <= dict(labels).items()
    ]
    assert len(values) == 1
    return values[0]


@pytest.fixture(scope="module")
def last() -> dict[tuple[str, Labels], float]:
    return _last(RUN)


def test_series_are_those_of_the_catalog(last: dict[tuple[str, Labels], float]) -> None:
    """Names and labels are published ones; what rules read is there, but for accounting, which needs identifiers."""
    labels_of = {name: set(metric.labels) for metric in METRICS for name in metric.series_names}
    for name, labels in last:
        if name != "up":
            extra = {"le"} if name.endswith("_bucket") else set()
            assert {key for key, _ in labels} <= labels_of[name] | extra | {"job", "instance"}
    read = names_read(yaml.safe_load(rulepack.render())["groups"]) & labels_of.keys()
    assert len(read) > 10
    assert {name for name, _ in last} >= read - {"training_sample_digest_info"}


def test_counts_and_sums_are_those_of_the_steps_that_have_ended(last: dict[tuple[str, Labels], float]) -> None:
    """Nothing is lost between chunks, and edges that are left out would have held nothing or all."""
    exposition = Exposition(RUN, until=SECONDS)
    at = exposition.scrapes(0, int(SECONDS / 15)).times[1, -1]
    steps = list(simulate(RUN, SECONDS))
    ended = np.concatenate([part.ends[:, 3] <= at for part in steps])
    ns = np.concatenate([part.ns[:, 3] for part in steps])[ended]
    number = np.concatenate([part.first + np.arange(len(part.ns)) for part in steps])[ended]
    assert _value(last, "training_steps_total", rank="3") == ended.sum()
    mine = ns[RUN.shard_at(number) == 1, Phase.INPUT_READY]
    where = {"rank": "3", "phase": "input_ready", "shard": RUN.shard_name(3, 1)}
    name = "training_phase_duration_seconds"
    assert _value(last, f"{name}_count", **where) == len(mine)
    assert _value(last, f"{name}_sum", **where) == pytest.approx(mine.sum() / 1e9)
    edges, texts = EDGES[Phase.INPUT_READY]
    counts = cumulative(np.bincount(grid(mine), minlength=BUCKETS).astype(np.uint64), edges)
    shown = {
        dict(labels)["le"]: value
        for (series, labels), value in last.items()
        if series == f"{name}_bucket" and where.items() <= dict(labels).items()
    }
    assert shown == {text: count for text, count in zip(texts, counts, strict=True) if text in shown}
    assert {count for text, count in zip(texts, counts, strict=True) if text not in shown} <= {0, len(mine)}


def test_aligned_series_are_those_of_the_agent(last: dict[tuple[str, Labels], float]) -> None:
    """The agent's own totals of the same steps say the same."""
    aligned = int(_value(last, "training_aligned_steps_total"))
    steps = list(simulate(RUN, SECONDS))
    ns = np.concatenate([part.ns for part in steps])[:aligned]
    number = np.arange(1, aligned + 1)
    before = np.vstack([np.full((1, RUN.ranks), UNKNOWN), ns[:-1, :, Phase.OPTIMIZER]])
    shard = np.broadcast_to(RUN.shard_at(number)[:, None], ns.shape[:2])
    batch = Batch(ranks=np.arange(RUN.ranks), steps=number, shard=shard, ns=ns, lateness=lateness(ns, before))
    totals = Totals()
    totals.add(batch, [RUN.host_of(rank) for rank in range(RUN.ranks)], RUN.shard_name)
    families = Families()
    totals.render(RUN.run, families)
    told = {
        (sample.name, tuple(sorted((key, value) for key, value in sample.labels.items() if value))): sample.value
        for family in families.collect()
        for sample in family.samples
    }
    shown = {
        (name, tuple(pair for pair in labels if pair[0] not in ("job", "instance"))): value
        for (name, labels), value in last.items()
    }
    assert len(told) > 100
    for key, value in told.items():
        if not key[0].endswith("_bucket") or key in shown:
            assert shown[key] == pytest.approx(value)


def test_chunks_do_not_show() -> None:
    """How many scrapes are asked for at a time changes nothing."""
    other = _last(RUN, chunk=40)
    mine = _last(RUN)
    assert mine.keys() == other.keys()
    assert all(mine[key] == pytest.approx(other[key]) for key in mine)


def test_a_rank_that_hangs_shows_how_long_and_in_which_phase() -> None:
    """The phase in progress goes on while no step ends."""
    hang = Slow(phase=Phase.BACKWARD, by=1000.0, ranks=(1,), start=100, most=1)
    found = _last(Run(run="a", ranks=3, slow=(hang,)))
    in_progress = {
        (dict(labels)["rank"], dict(labels)["phase"]): value
        for (name, labels), value in found.items()
        if name == "training_phase_in_progress_seconds"
    }
    assert in_progress.keys() == {("0", "collective_wait"), ("1", "backward"), ("2", "collective_wait")}
    assert all(450 < value < 500 for value in in_progress.values())


def test_a_shared_host_has_one_agent() -> None:
    """Two runs on one host at a time show its own series once; one after the other does both times."""
    together = expositions([Run(run="a", ranks=2), Run(run="b", ranks=2)], until=60.0)
    in_turn = expositions([Run(run="a", ranks=2, end=30.0), Run(run="a", ranks=2, start=40.0)], until=60.0)

    def shows(exposition: Exposition, name: str) -> bool:
        tables: list[Table] = exposition.tables(exposition.scrapes(0, 4))
        return any(table.name == name and table.present.any() for table in tables)

    assert [shows(one, "up") for one in together] == [True, False]
    assert [shows(one, "up") for one in in_turn] == [True, True]
    assert all(
        shows(one, "training_steps_total")
        for one in expositions([Run(run="a", ranks=2), Run(run="b", ranks=2)], until=60.0)
    )

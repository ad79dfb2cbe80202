"""What aligned steps add up to, as series."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rank_exporter import catalog
from rank_exporter.agent.alignment import Window
from rank_exporter.agent.families import Families
from rank_exporter.agent.totals import Totals
from rank_exporter.histogram import FINE_EDGES, edge_seconds
from rank_exporter.phases import Phase
from rank_exporter.segment.records import RankSteps


def add(totals: Totals, ranks: list[RankSteps]) -> None:
    window = Window(len(ranks))
    for one in ranks:
        window.add(one.rank, one.records)
    for batch in window.take():
        totals.add(batch, [one.host for one in ranks], lambda rank, slot: ranks[rank].shard_name(slot))


def series(totals: Totals) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    families = Families()
    totals.render("job", families)
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(generate_latest(families).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def test_every_family_is_as_catalogued(simulate: Callable[..., list[RankSteps]]) -> None:
    """Names, kinds, help and labels are those of the catalog, and all that is aligned is there."""
    totals, families = Totals(), Families()
    add(totals, simulate(5, 3, input_ready=[[10, 10, 30]] * 5, eval=1))
    totals.render("job", families)
    found = {family.name: family for family in families.collect()}
    for metric in catalog.STEP_ALIGNED:
        family = found.pop(metric.name.removesuffix("_total") if metric.kind == "counter" else metric.name)
        assert (family.type, family.documentation) == (metric.kind, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert not found


def test_skew_is_counted_as_a_histogram_would_be(simulate: Callable[..., list[RankSteps]]) -> None:
    """Each bucket holds exactly the skews up to its edge."""
    late = np.random.default_rng(0).lognormal(3, 2, 400)
    input_ready = np.stack([np.full(400, 10.0), np.full(400, 10.0), 10 + late], axis=1)
    totals = Totals()
    add(totals, simulate(400, 3, input_ready=input_ready))
    found = series(totals)
    skews = np.round(late * 1e6) / 1e9
    name = catalog.STEP_SKEW.name
    counts = {
        float(dict(labels)["le"]): value
        for labels, value in found[f"{name}_bucket"].items()
        if dict(labels)["phase"] == "input_ready"
    }
    for edge in FINE_EDGES:
        assert counts[edge_seconds(edge)] == (skews <= edge_seconds(edge)).sum()
    assert counts[float("inf")] == 400
    key = (("phase", "input_ready"), ("run", "job"))
    assert found[f"{name}_sum"][key] == pytest.approx(skews.sum(), rel=1e-6)
    assert (("phase", "eval"), ("run", "job")) not in found[f"{name}_sum"]


def test_shards_are_as_many_as_slots(simulate: Callable[..., list[RankSteps]]) -> None:
    """A rank that goes through ten thousand shards has sixteen of them named, and the rest as other, until one has been
    idle for as long as its slot."""
    now = [0]
    totals = Totals(clock=lambda: now[0])
    for number in range(200):
        ranks = simulate(1, 3, input_ready=[[10, 10, 30]])
        object.__setattr__(ranks[2], "shards", (f"s{number}",))
        add(totals, ranks)
        now[0] += 10**9
    named = [dict(labels)["shard"] for labels in series(totals)[catalog.DELAY_CAUSED.name]]
    assert sorted(named) == sorted([*(f"s{number}" for number in range(16)), "other"])
    now[0] += 600 * 10**9
    object.__setattr__(ranks[2], "shards", ("new",))
    add(totals, ranks)
    named = [dict(labels)["shard"] for labels in series(totals)[catalog.DELAY_CAUSED.name]]
    assert sorted(named) == sorted([*(f"s{number}" for number in range(1, 16)), "new", "other"])


def test_ranks_that_are_gone_are_forgotten(simulate: Callable[..., list[RankSteps]]) -> None:
    """Series of places that no longer matter go; what the run adds up to stays."""
    totals = Totals()
    add(totals, simulate(8, 4, per_host=1, input_ready=np.where(np.arange(8)[:, None] % 4 == np.arange(4), 30, 10)))
    totals.keep_only({(0, "node-0"), (3, "node-3")})
    found = series(totals)
    assert {dict(labels)["rank"] for labels in found[catalog.LAST_RANK_STEPS.name]} == {"0", "3"}
    assert {dict(labels)["rank"] for labels in found[catalog.DELAY_CAUSED.name]} == {"0", "3"}
    assert found[catalog.ALIGNED_STEPS.name] == {(("run", "job"),): 8}
    assert Phase.INPUT_READY.label in {dict(labels)["phase"] for labels in found[catalog.DELAY_CAUSED.name]}

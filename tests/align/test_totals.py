"""What aligned steps add up to, as series."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rank_exporter import catalog
from rank_exporter.agent.alignment import Batch, Window
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
    for metric in (catalog.RANK_ALIGNED_STEPS, catalog.RANK_DELAY_CAUSED):
        assert {dict(labels)["rank"] for labels in found[metric.name]} == {"0", "3"}
    assert {dict(labels)["rank"] for labels in found[catalog.LAST_RANK_STEPS.name]} == {"0", "3"}
    assert {dict(labels)["rank"] for labels in found[catalog.DELAY_CAUSED.name]} == {"0", "3"}
    assert found[catalog.ALIGNED_STEPS.name] == {(("run", "job"),): 8}
    assert Phase.INPUT_READY.label in {dict(labels)["phase"] for labels in found[catalog.DELAY_CAUSED.name]}


def by_rank(found: dict[str, dict[tuple[tuple[str, str], ...], float]], name: str) -> dict[tuple[str, ...], float]:
    """Values by rank, and by phase where there are phases."""
    values = {}
    for labels, value in found.get(name, {}).items():
        where = dict(labels)
        values[tuple(where[label] for label in ("rank", "phase") if label in where)] = value
    return values


def test_a_rank_that_was_never_last_has_caused_no_delay(simulate: Callable[..., list[RankSteps]]) -> None:
    """Each rank that is compared is counted from 0 on, in input, and its delay in full whatever shard it reads."""
    totals = Totals()
    for number in range(3):
        ranks = simulate(2, 3, input_ready=[[10, 20, 30], [10, 20, 40]])
        object.__setattr__(ranks[2], "shards", (f"s{number}",))
        add(totals, ranks)
    add(totals, simulate(1, 3, forward=[[30, 10, 10]]))
    found = series(totals)
    assert by_rank(found, catalog.RANK_ALIGNED_STEPS.name) == {("0",): 7, ("1",): 7, ("2",): 7}
    assert by_rank(found, catalog.RANK_DELAY_CAUSED.name) == pytest.approx(
        {
            ("0", "input_ready"): 0,
            ("0", "forward"): 0.020,
            ("1", "input_ready"): 0,
            ("2", "input_ready"): 0.090,
        }
    )
    by_shard = sum(found[catalog.DELAY_CAUSED.name].values())
    assert sum(found[catalog.RANK_DELAY_CAUSED.name].values()) == pytest.approx(by_shard)


def test_a_rank_that_cannot_be_asked_is_not_said_to_be_harmless(simulate: Callable[..., list[RankSteps]]) -> None:
    """While a step is compared without a rank nothing is told of it; later it goes on from where it was."""
    seconds = [0.0]
    window = Window(3, clock=lambda: seconds[0])
    totals = Totals()
    ranks = simulate(9, 3, input_ready=[[10, 10, 30]] * 9)

    def tell(numbers: tuple[int, ...], first: int, last: int) -> dict[tuple[str, ...], float]:
        for number in numbers:
            window.add(number, ranks[number].records[first:last])
        for batch in (*window.take(), *_patient(window, seconds)):
            totals.add(batch, [one.host for one in ranks], lambda rank, slot: ranks[rank].shard_name(slot))
        return by_rank(series(totals), catalog.RANK_ALIGNED_STEPS.name)

    assert tell((0, 1, 2), 0, 3) == {("0",): 3, ("1",): 3, ("2",): 3}
    assert tell((0, 1), 3, 6) == {("0",): 6, ("1",): 6}
    caused = by_rank(series(totals), catalog.RANK_DELAY_CAUSED.name)
    assert caused.keys() == {("0", "input_ready"), ("1", "input_ready")}
    assert tell((0, 1, 2), 6, 9) == {("0",): 9, ("1",): 9, ("2",): 6}


def _patient(window: Window, seconds: list[float]) -> list[Batch]:
    seconds[0] += 60
    return list(window.take())

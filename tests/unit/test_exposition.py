"""The exposition with remembered lines is, byte for byte, what prometheus_client writes."""

from __future__ import annotations

import pytest
from prometheus_client.core import Exemplar
from prometheus_client.exposition import choose_encoder

from rank_exporter import catalog
from rank_exporter.agent.buckets import EDGES
from rank_exporter.agent.exposition import Exposition
from rank_exporter.agent.families import Families, Histogram
from rank_exporter.phases import Phase

ACCEPTS = (
    "text/plain",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8",
)
ODD = 'a "quoted" \\ name # {step="1"} 0.0\nand more é'


def families(grown: int, *, ranks: int = 2, exemplar: bool = False, shard: str = ODD) -> Families:
    """Counters around histograms, as an agent has them; counts that pass a million as ``grown`` rises."""
    found = Families()
    _, edges = EDGES[Phase.STEP]
    for rank in range(ranks):
        labels = ("run", str(rank), "host")
        counts = [grown * number for number in range(len(edges))]
        shown = (7, Exemplar({"step": "12"}, 0.25, 1234.5)) if exemplar and rank == 0 else None
        found.add_histogram(
            catalog.PHASE_DURATION, Histogram((*labels, "input_ready", shard), edges, counts, grown / 7, shown)
        )
        found.add_histogram(catalog.BATCH_PRODUCTION, Histogram((*labels, shard), edges[:3], counts[:3], 1e-9))
        found.add(catalog.STEPS, labels, grown)
        found.add(catalog.LAST_STEP_TIMESTAMP, labels, 1.5e9)
    found.add(catalog.BUILD_INFO, ("host", ODD), 1)
    return found


@pytest.mark.parametrize("accept", ACCEPTS)
def test_equals_what_the_library_writes(accept):
    """With lines that are new or known, ranks that come and go, an exemplar on the last bucket or none."""
    encode, content_type = choose_encoder(accept)
    exposition = Exposition()
    openmetrics = "openmetrics" in accept
    for case in (
        families(1),
        families(999_999, exemplar=openmetrics),
        families(1_000_000, ranks=3),
        families(123_456_789_012, ranks=1, exemplar=openmetrics),
        families(5, shard="another"),
        Families(),
        families(0),
    ):
        assert exposition.text(case, encode, content_type) == encode(case)


def test_an_exemplar_beyond_the_last_edge_is_not_in_the_count():
    """The line of +Inf carries it, the line of the count with the same value does not."""
    encode, content_type = choose_encoder(ACCEPTS[2])
    found = Families()
    shown = (2, Exemplar({"step": "3"}, 99.0, 5.0))
    labels = ("run", "0", "host", "input_ready", "")
    found.add_histogram(catalog.PHASE_DURATION, Histogram(labels, ["1.0", "2.0", "+Inf"], [1, 2, 3], 99.5, shown))
    text = Exposition().text(found, encode, content_type)
    assert text == encode(found)
    assert text.count(b" # {") == 1


def test_remembers_the_series_of_the_latest_call_and_a_few_formats_only():
    """Neither shards that come and go nor scrapers that ask for odd versions make it grow."""
    exposition = Exposition()
    for number in range(50):
        encode, content_type = choose_encoder(f"application/openmetrics-text;version=1.0.{number}")
        exposition.text(families(1, shard=str(number)), encode, content_type)
    assert len(exposition._formats) <= 4
    assert {len(known.lines) for known in exposition._formats.values()} == {4}

"""Reading a run's profile from an agent's exposition."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rank_exporter.analysis.load import load_agent, parse
from rank_exporter.errors import SourceError

EXPOSITION = """\
# HELP training_phase_duration_seconds Time a rank spent in a phase.
# TYPE training_phase_duration_seconds histogram
training_phase_duration_seconds_bucket{run="r",rank="0",host="h",phase="input_ready",shard="a",le="0.1"} 1
training_phase_duration_seconds_bucket{run="r",rank="0",host="h",phase="input_ready",shard="a",le="+Inf"} 1
training_phase_duration_seconds_count{run="r",rank="0",host="h",phase="input_ready",shard="a"} 1
training_phase_duration_seconds_sum{run="r",rank="0",host="h",phase="input_ready",shard="a"} 0.05
training_phase_duration_seconds_bucket{run="r",rank="0",host="h",phase="input_ready",shard="b",le="0.1"} 2
training_phase_duration_seconds_bucket{run="r",rank="0",host="h",phase="input_ready",shard="b",le="+Inf"} 3
training_phase_duration_seconds_count{run="r",rank="0",host="h",phase="input_ready",shard="b"} 3
training_phase_duration_seconds_sum{run="r",rank="0",host="h",phase="input_ready",shard="b"} 0.35
training_phase_duration_seconds_bucket{run="r",rank="0",host="h",phase="step",shard="",le="0.1"} 0
training_phase_duration_seconds_bucket{run="r",rank="0",host="h",phase="step",shard="",le="+Inf"} 4
training_phase_duration_seconds_count{run="r",rank="0",host="h",phase="step",shard=""} 4
training_phase_duration_seconds_sum{run="r",rank="0",host="h",phase="step",shard=""} 2.5
# TYPE training_steps counter
training_steps_total{run="r",rank="0",host="h"} 4
training_steps_total{run="r",rank="10",host="g"} 4
training_steps_total{run="r",rank="9",host="g"} 4
# TYPE training_last_step_timestamp_seconds gauge
training_last_step_timestamp_seconds{run="r",rank="0",host="h"} 1002.5
# TYPE training_rank_info gauge
training_rank_info{run="r",rank="9",host="g",shard="c",local_rank="1",group=""} 1
# TYPE training_world_size gauge
training_world_size{run="r"} 11
# TYPE training_skew_budget_ratio gauge
training_skew_budget_ratio{run="r"} 0.2
# TYPE training_exporter_errors counter
training_exporter_errors_total{run="",rank="",host="h",reason="segment"} 1
"""


@pytest.fixture
def agent() -> Iterator[str]:
    """The address of a server with the exposition at /metrics."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = EXPOSITION.encode()
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_phases_shards_are_added_up() -> None:
    """Counts, sums and buckets of all shards of a rank are one phase."""
    phase = parse(EXPOSITION, source="x")["r"].ranks[0].phases["input_ready"]
    assert (phase.count, phase.total_seconds) == (4, pytest.approx(0.40))
    assert (phase.edges, phase.cumulative) == ((0.1, float("inf")), (3, 4))


def test_a_ranks_shard_is_where_its_input_time_went() -> None:
    """Of several shards the one most waited for is named; without any, the one that is read now."""
    ranks = {rank.rank: rank for rank in parse(EXPOSITION, source="x")["r"].ranks}
    assert (ranks[0].shard, ranks[9].shard, ranks[10].shard) == ("b", "c", None)


def test_ranks_are_ordered_by_number() -> None:
    """Rank 10 stands after rank 9."""
    assert [rank.rank for rank in parse(EXPOSITION, source="x")["r"].ranks] == [0, 9, 10]


def test_the_run_tells_its_size_and_budget() -> None:
    """World size and budget are the run's own words."""
    run = parse(EXPOSITION, source="x")["r"]
    assert (run.run, run.world_size, run.budget) == ("r", 11, 0.2)


def test_when_a_rank_began_follows_from_its_steps() -> None:
    """The last step's end less all steps is the first step's begin; unknown without steps."""
    ranks = parse(EXPOSITION, source="x")["r"].ranks
    assert ranks[0].began == pytest.approx(1000.0)
    assert ranks[1].began is None


def test_what_a_rank_does_now_and_what_it_may_use() -> None:
    """The phase in progress, the clock and the hidden waits, the fullest device, CPUs, and what was aligned."""
    text = (
        EXPOSITION
        + """\
training_phase_in_progress_seconds{run="r",rank="0",host="h",phase="forward"} 7.5
training_rank_info{run="r",rank="0",host="h",shard="a",clock="device",waits_in="forward,backward"} 1
training_device_memory_used_bytes{run="r",rank="0",host="h",device="0"} 5
training_device_memory_used_bytes{run="r",rank="0",host="h",device="1"} 9
training_process_cpus_allowed{run="r",rank="0",host="h",process="workers"} 2
training_samples_total{run="r",rank="0",host="h"} 32
training_tokens_total{run="r",rank="0",host="h"} 4096
training_exposed_wait_seconds_total{run="r"} 12.5
training_aligned_steps_total{run="r"} 4
training_host_cpu_pressure_ratio{host="h"} 0.25
"""
    )
    run = parse(text, source="x")["r"]
    rank = run.rank(0)
    assert rank is not None
    assert (rank.in_progress, rank.by_device, rank.memory_bytes) == (("forward", 7.5), True, 9.0)
    assert (rank.waits_in, rank.cpus_allowed) == ({"forward", "backward"}, {"workers": 2.0})
    assert (rank.samples, rank.tokens, run.exposed_seconds, run.exposed_steps) == (32, 4096, 12.5, 4)
    assert run.pressure == {"h": 0.25}
    other = run.rank(9)
    assert other is not None
    assert (other.in_progress, other.by_device, other.memory_bytes, other.waits_in) == (None, False, None, frozenset())


def test_an_agent_is_read_by_its_address(agent: str) -> None:
    """With or without /metrics, and for the only run without naming it."""
    assert load_agent(agent).run == load_agent(f"{agent}/metrics", run="r").run == "r"


def test_a_run_that_is_not_there_is_said(agent: str) -> None:
    """The message names the run asked for and those served."""
    with pytest.raises(SourceError, match=r"serves no run 'other': it has r$"):
        load_agent(agent, run="other")


def test_several_runs_are_not_guessed_among() -> None:
    """Runs of one exposition are kept apart."""
    assert set(parse(EXPOSITION + EXPOSITION.replace('run="r"', 'run="s"'), source="x")) == {"r", "s"}


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "127.0.0.1", "http://[", "nonsense://x", ""])
def test_a_wrong_address_is_one_line(url: str) -> None:
    """What cannot be reached is said in one line that asks for an address."""
    with pytest.raises(SourceError, match="give an agent's address") as failure:
        load_agent(url)
    assert "\n" not in str(failure.value)


def test_another_path_is_said(agent: str) -> None:
    """An HTTP error is told with its status."""
    with pytest.raises(SourceError, match="answers 404"):
        load_agent(f"{agent}/other")


@pytest.mark.parametrize(
    "text",
    [
        "<html><body>hello</body></html>",
        'training_steps_total{run="r",rank="x",host="h"} 4\n',
        'training_steps_total{run="r",rank="0',
        'training_phase_duration_seconds_count{run="r",rank="0",host="h",phase="step",shard=""} 1\n',
    ],
)
def test_garbage_is_one_line(text: str) -> None:
    """What is no exposition of an agent is said in one line, with its source."""
    with pytest.raises(SourceError, match=r"^http://x is not an agent's exposition") as failure:
        parse(text, source="http://x")
    assert "\n" not in str(failure.value)


def test_a_foreign_exposition_holds_no_run() -> None:
    """Another exporter's metrics are read without complaint and hold nothing."""
    assert parse("# TYPE up gauge\nup 1\n", source="x") == {}

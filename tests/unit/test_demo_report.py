"""How a demo's outcome is printed, for people and for programs."""

from __future__ import annotations

import io
import json

import pytest
from rich.console import Console

from rank_exporter.analysis.profile import PhaseProfile, RankProfile, RunProfile
from rank_exporter.analysis.verdict import Verdict
from rank_exporter.demo.progress import Progress
from rank_exporter.demo.report import as_json, as_text, places
from rank_exporter.demo.scenario import SCENARIOS, Plan
from rank_exporter.demo.stage import Outcome
from rank_exporter.demo.webhook import Alert

RUNBOOK = "https://example.com/runbooks/that/have/a/long/address/TrainingInputStraggler.md"
PAGE = Alert(
    labels={
        "alertname": "TrainingInputStraggler",
        "severity": "critical",
        "run": "demo-input-straggler",
        "rank": "0",
        "phase": "input_ready",
        "host": "node-a",
    },
    annotations={
        "summary": "Rank 0 waits for input",
        "shard": "train-0",
        "skew": "60% of the median step",
        "description": "On most steps it is late.",
        "runbook_url": RUNBOOK,
    },
    starts_at="2026-01-01T00:00:00Z",
    received_at=1.0,
)


def phase(seconds: float) -> PhaseProfile:
    edges = (seconds * 0.999, seconds * 1.001, float("inf"))
    return PhaseProfile(count=100, total_seconds=100 * seconds, edges=edges, cumulative=(0, 100, 100))


def outcome(
    *, ranks: int = 2, late: int = 0, shortfalls: tuple[str, ...] = (), alerts: tuple[Alert, ...] = (PAGE,)
) -> Outcome:
    """An input straggler's outcome."""
    profiles = tuple(
        RankProfile(
            rank=rank,
            host="node-a",
            shard=f"train-{rank}",
            steps=100,
            phases={
                "input_ready": phase(0.152 if rank == late else 0.002),
                "backward": phase(0.06),
                "collective_wait": phase(0.005 if rank == late else 0.155),
                "step": phase(0.25),
            },
        )
        for rank in range(ranks)
    )
    return Outcome(
        plan=Plan(scenario=SCENARIOS["input-straggler"], ranks=ranks, straggler_rank=late, cores=2),
        profile=RunProfile(run="demo-input-straggler", ranks=profiles, world_size=ranks),
        verdict=Verdict(
            kind="INPUT STRAGGLER",
            rank=late,
            phase="input_ready",
            host="node-a",
            shard=f"train-{late}",
            skew=0.6,
            evidence=("it is late",),
            next_check="Look at the storage.",
        ),
        alerts=alerts,
        page_latency_seconds=31.4 if alerts else None,
        shortfalls=shortfalls,
    )


def printed(what: Outcome, *, width: int = 100) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(as_text(what), crop=False)
    return file.getvalue()


def test_json_is_complete_and_plain() -> None:
    """Scenario, verdict, alerts as received and latency, with null where nothing is known."""
    said = json.loads(json.dumps(as_json(outcome())))
    assert said["scenario"] == "input-straggler"
    assert {key: said["verdict"][key] for key in ("kind", "rank", "phase", "host", "shard")} == {
        "kind": "INPUT STRAGGLER",
        "rank": 0,
        "phase": "input_ready",
        "host": "node-a",
        "shard": "train-0",
    }
    assert said["alerts"] == [
        {
            "name": "TrainingInputStraggler",
            "severity": "critical",
            "run": "demo-input-straggler",
            "rank": "0",
            "phase": "input_ready",
            "host": "node-a",
            "shard": "train-0",
            "skew": "60% of the median step",
            "summary": "Rank 0 waits for input",
            "description": "On most steps it is late.",
            "runbook_url": RUNBOOK,
            "starts_at": "2026-01-01T00:00:00Z",
        }
    ]
    assert said["page_latency_seconds"] == 31.4
    assert said["as_expected"] is True
    silent = as_json(outcome(alerts=(), shortfalls=("expected a page",)))
    assert (silent["alerts"], silent["page_latency_seconds"], silent["as_expected"]) == ([], None, False)


def test_the_page_is_read_summary_first() -> None:
    """As on a pager: what happened, then rank, phase, host and shard, then the runbook."""
    text = printed(outcome())
    page = text[text.index("Page as received, 31 s after the straggler's first step") :]
    places = [
        page.index(part) for part in ("Rank 0 waits for input", "rank      0", "host      node-a", "shard     train-0")
    ]
    assert places == sorted(places)
    assert page.index(RUNBOOK) > places[-1]


def test_the_worst_rank_is_marked_and_the_victims_wait_is_not() -> None:
    """Each rank has a column; the slowest of a phase has a star, but waiting for others is no fault."""
    rows = {line.split()[1]: line for line in printed(outcome()).splitlines() if line.startswith("│")}
    assert [cell.strip() for cell in rows["input_ready"].split("│")[2:4]] == ["152 / 152 *", "2.0 / 2.0"]
    assert "*" not in rows["collective_wait"] + rows["backward"] + rows["step"]
    assert "forward" not in rows


def test_many_ranks_are_summed_up() -> None:
    """Beyond four ranks the table has the median and the worst one, and says which."""
    rows = {line.split()[1]: line for line in printed(outcome(ranks=8, late=6)).splitlines() if line.startswith("│")}
    cells = [cell.strip() for cell in rows["input_ready"].split("│")[2:5]]
    assert cells == ["2.0 / 2.0", "152 / 152 *", "rank 6"]
    assert rows["backward"].split("│")[3:5] == [rows["step"].split("│")[3], rows["step"].split("│")[4]]


def test_what_was_not_as_expected_comes_last() -> None:
    """A shortfall is said in the end; otherwise that all was as expected."""
    assert printed(outcome(shortfalls=("expected a page",))).splitlines()[-2:] == [
        "Not as expected:",
        "  expected a page",
    ]
    assert printed(outcome()).splitlines()[-1] == "As expected of input-straggler."


def test_no_page_is_said() -> None:
    """Silence is told, not left blank."""
    assert "No page was received" in printed(outcome(alerts=()))


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_narrow_terminal_loses_no_words(width: int) -> None:
    """Text is wrapped, and addresses are left whole for the terminal to wrap."""
    text = printed(outcome(), width=width)
    assert RUNBOOK in text
    assert "…" not in text
    assert max(len(line.rstrip()) for line in text.splitlines() if RUNBOOK not in line) <= max(width, 47)


def test_addresses_are_printed_whole() -> None:
    """However narrow the terminal, an address can be copied."""
    file = io.StringIO()
    where = places(agent="http://a", graph="http://p/graph", alerts="http://p/alerts", pages="http://m/#/alerts")
    Console(file=file, width=30).print(where, crop=False)
    lines = [line.split() for line in file.getvalue().splitlines() if "http" in line]
    assert [name for name, _ in lines] == ["metrics", "skew", "alerts", "pages"]
    assert lines[1][1].startswith("http://p/graph?")
    assert lines[1][1].endswith("ratio")


def test_progress_without_a_terminal_is_plain_lines() -> None:
    """In a log each thing begun is one line without control characters, and brackets are not markup."""
    file = io.StringIO()
    with Progress(Console(file=file, width=40)) as progress:
        progress.say("Starting [bold] things with a text that is longer than the width")
        progress.status("1 step")
    assert file.getvalue() == "Starting [bold] things with a text that is longer than the width\n"


def test_progress_on_a_terminal_is_updated_in_place() -> None:
    """On a terminal what changes is shown beneath, and taken away in the end."""
    file = io.StringIO()
    with Progress(Console(file=file, force_terminal=True, width=60)) as progress:
        progress.say("Training")
        progress.status("12 steps; no alert")
    show_cursor = "\x1b[?25h"
    assert "Training" in file.getvalue()
    assert file.getvalue().count(show_cursor) == 1

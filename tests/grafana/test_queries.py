"""Every query of every dashboard against a real Prometheus, and what a reader is told of each kind of run."""

from __future__ import annotations

import re

import pytest

from rank_exporter import rulepack

from .boards import Board, Query, shipped
from .conftest import Look
from .frames import displayed

BOARDS = shipped()
OVERVIEW = BOARDS["rank-exporter-stragglers"]
RANK = BOARDS["rank-exporter-rank"]
HOSTS = BOARDS["rank-exporter-hosts-shards"]
FLEET = BOARDS["rank-exporter-fleet"]
RUNS = ("balanced", "input", "compute", "rotating", "pair")

LIGHTS = {
    "Worst rank, of a step",
    "Ranks reporting",
    "Exit 1: input is even",
    "Exit 2: no wait for input",
    "Exit 3: devices are busy",
    "Later than the median rank, of a step",
}
"""Panels of two queries, of which one finds something and the other nothing."""

MAY_FIND_NOTHING = {
    "Lost to waiting B": "an estimate, for runs whose steps are not aligned",
    "Alerts and next checks A": "a run may have no alert",
    "Does it follow the shard or the host? B": "each shard is read by one rank alone",
    "Other phases slower than the median rank, by host A": "no rank may be slow",
    "Other phases slower than the median rank, by host B": "no rank may be slow",
    "Who was last, of steps B": "of two ranks one is first, the other may never be last",
    "Input later than the median rank, by host B": "two ranks may share one host",
    "Garbage collection A": "simulated ranks collect no garbage",
}


def _short(query: Query) -> str:
    return query.where.partition(": ")[2]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_every_query_finds_series(look: Look, board: Board, run: str) -> None:
    """Prometheus takes every query, in less than a second, and finds what the panel shows."""
    reader = look(run)
    for query in board.targets():
        assert query.panel is not None
        found = reader.answer(query)
        if query.panel["title"] not in LIGHTS and _short(query) not in MAY_FIND_NOTHING:
            assert found, query.where
        for one in found:
            for label in re.findall(r"\{\{(\w+)\}\}", query.legend):
                assert label in one["metric"] or label == "shard", (query.where, label)
    for query in board.annotations():
        reader.matrix(query)
    assert reader.slowest < 1


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("title", sorted(LIGHTS))
def test_a_light_says_one_thing(look: Look, title: str, run: str) -> None:
    """Of the two queries of a light exactly one finds something."""
    [board] = [board for board in BOARDS.values() if title in {panel["title"] for panel in board.panels}]
    assert len(look(run).numbers(board, title)) == 1


@pytest.mark.parametrize("run", RUNS)
def test_shares_are_shares(look: Look, run: str) -> None:
    """What is shown in per cent is no larger than a few times the whole: it is a share, from 0 to 1."""
    reader = look(run)
    for board in BOARDS.values():
        for panel in board.panels:
            if panel["type"] == "table" or panel["fieldConfig"]["defaults"]["unit"] != "percentunit":
                continue
            for target in panel["targets"]:
                query = board.query(panel, target)
                for one in reader.answer(query):
                    points = [one["value"]] if query.instant else one["values"]
                    assert all(0 <= float(value) < 5 for _, value in points), query.where


NOT_A_STATE = {
    "TrainingRanksNotComparable": "says that nothing can be said; the state is then that of too few steps",
    "TrainingLoaderHeadroomGone": "warns of what may come; the rank's loader panel shows it",
    "TrainingSampleAccountingDiverges": "is about what was read, not how fast",
    "TrainingExporterErrors": "is about the exporter itself",
}
"""Alerts that are listed, and do not give a run its state; why."""

STATES = {
    "balanced": {"BALANCED"},
    "input": {"INPUT STRAGGLER"},
    "compute": {"COMPUTE STRAGGLER"},
    "rotating": {"ROTATING STRAGGLERS", "ROTATING STRAGGLERS?"},
    "pair": {"INPUT STRAGGLER"},
}


@pytest.mark.parametrize("run", RUNS)
def test_state_in_words(look: Look, run: str) -> None:
    """The state of each kind of run is named."""
    [number] = look(run).numbers(OVERVIEW, "State").values()
    assert displayed(OVERVIEW.panel("State"), number) in STATES[run]


def test_every_alert_has_its_place() -> None:
    """An alert gives a run its state, or there is a reason why it does not."""
    pack = {alert.name for alert in rulepack.alerts()}
    placed = set(re.findall(r'alertname="(\w+)"', next(OVERVIEW.targets()).expr))
    assert placed | set(NOT_A_STATE) == pack
    assert not placed & set(NOT_A_STATE)
    assert all(len(reason) > 20 for reason in NOT_A_STATE.values())


def test_a_run_with_too_few_steps_has_no_state(look: Look) -> None:
    """Three steps in ten minutes say nothing, and the panel says that."""
    reader = look("slow")
    assert reader.numbers(OVERVIEW, "State") == {}
    assert reader.numbers(OVERVIEW, "Worst rank, of a step") == {}
    assert "Too few steps" in OVERVIEW.panel("State")["fieldConfig"]["defaults"]["noValue"]


CULPRITS = {
    "input": ("rank 10 · input_ready · late-2 · train-0002", 0.3),
    "compute": ("rank 2 · backward · hot-1 · train-00002", 0.3),
    "pair": ("rank 1 · input_ready · two-0 · train-00001", 0.3),
}


@pytest.mark.parametrize("run", CULPRITS)
def test_worst_rank_is_the_straggler(look: Look, run: str) -> None:
    """Rank, phase, host, shard and delay are those that were simulated."""
    name, delay = CULPRITS[run]
    [(shown, seconds)] = look(run).numbers(OVERVIEW, "Worst rank").items()
    assert shown.startswith(name)
    assert seconds == pytest.approx(delay, rel=0.2)


@pytest.mark.parametrize(("run", "said"), [("balanced", "within"), ("input", "over"), ("compute", "over")])
def test_skew_against_its_budget(look: Look, run: str, said: str) -> None:
    """The budget stands in the name of the number, which says on which side of it the run is."""
    [name] = look(run).numbers(OVERVIEW, "Worst rank, of a step")
    assert name == f"{said} the budget of 10 %"


@pytest.mark.parametrize("run", CULPRITS)
def test_table_of_worst_ranks(look: Look, run: str) -> None:
    """The straggler comes first, and the rest in the order of their excess; ranks are numbers."""
    reader = look(run)
    rows = reader.rows(OVERVIEW, "Worst ranks")
    name, delay = CULPRITS[run]
    first = rows[0]
    assert f"rank {first['Rank']:.0f} · {first['Phase']} · {first['Host']} · {first['Shard']}".startswith(name)
    assert first["Later by"] == pytest.approx(delay, rel=0.2)
    assert first["Last in, of steps"] > 0.9
    assert first["Delay caused, of a step"] == pytest.approx(first["Later, of a step"], rel=0.25)
    shares = [row["Later, of a step"] for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert list(first) == [
        "Rank",
        "Phase",
        "Host",
        "Shard",
        "Later, of a step",
        "Later by",
        "Delay caused, of a step",
        "Last in, of steps",
    ]


def test_table_without_aligned_steps(look: Look) -> None:
    """What only aligned steps tell is not shown as a number."""
    panel = OVERVIEW.panel("Worst ranks")
    rows = look("unaligned").rows(OVERVIEW, "Worst ranks")
    assert len(rows) == 3
    for row in rows:
        assert displayed(panel, row["Delay caused, of a step"]) == "not aligned"
        assert displayed(panel, row["Last in, of steps"]) == "not aligned"


def test_cost_is_that_of_the_waiting_ranks(look: Look) -> None:
    """Eleven ranks wait 0.3 s at each of some 460 steps in ten minutes: a quarter of an hour and more of GPU time."""
    [(name, hours)] = look("input").numbers(OVERVIEW, "Lost to waiting").items()
    assert name == "measured"
    assert hours == pytest.approx(11 * 0.3 / 1.3 * 600 / 3600, rel=0.25)
    [name] = look("unaligned").numbers(OVERVIEW, "Lost to waiting")
    assert name == "estimated"


def test_ranks_and_speed(look: Look) -> None:
    """Twelve ranks of twelve, at a step in 1.3 s, each with 32 samples."""
    reader = look("input")
    assert reader.numbers(OVERVIEW, "Ranks reporting") == {"all of 12": 12}
    speed = reader.numbers(OVERVIEW, "Speed")
    assert speed["steps"] == pytest.approx(1 / 1.3, rel=0.1)
    assert speed["samples"] == pytest.approx(12 * 32 / 1.3, rel=0.1)


def test_bars_show_what_the_straggler_is_late_with(look: Look) -> None:
    """The straggler's bar is longer in its phase, shorter in waiting; both add up to the same step."""
    rows = {row["which"]: row for row in look("input").rows(OVERVIEW, "Where a step goes: median rank and worst rank")}
    assert set(rows) == {"median rank", "rank 10"}
    median, worst = rows["median rank"], rows["rank 10"]
    phases = ["input_ready", "h2d", "forward", "backward", "collective_wait", "optimizer", "other"]
    assert list(median) == ["which", *phases]
    assert worst["input_ready"] > median["input_ready"] + 0.2
    assert worst["collective_wait"] < median["collective_wait"] - 0.2
    sums = [sum(row[phase] for phase in phases) for row in (median, worst)]
    assert sums[0] == pytest.approx(sums[1], rel=0.05)


def test_lateness_over_time_and_its_budget(look: Look) -> None:
    """The line of the late phase lies above the budget's, the other one below it."""
    for run, late, even in (
        ("input", "input, worst rank", "other phases, worst rank"),
        ("compute", "other phases, worst rank", "input, worst rank"),
    ):
        lines = look(run).graph(OVERVIEW, "Lateness of the worst rank, of a step")
        assert lines["budget"][-1] == 0.1
        assert lines[late][-1] > 0.15
        assert lines.get(even, [0])[-1] < 0.1
        assert lines["input, slowest p99"]


def test_heatmap_rows_are_in_numeric_order(look: Look) -> None:
    """Rank 10 stands behind rank 9, and is the slow one."""
    rows = look("input").graph(OVERVIEW, "Input-ready time by rank, of a step")
    assert list(rows) == [str(rank) for rank in range(12)]
    assert max(rows, key=lambda rank: rows[rank][-1]) == "10"
    assert OVERVIEW.panel("Input-ready time by rank, of a step")["options"]["yAxis"]["reverse"] is True


def test_who_was_last(look: Look) -> None:
    """One name where one rank is last; several where it rotates; all of it together is the whole."""
    lines = look("input").graph(OVERVIEW, "Who was last, of steps")
    [most] = [name for name in lines if "most often" in name]
    assert most == "rank 10 · late-2 (most often)"
    assert lines[most][-1] > 0.9
    lines = look("rotating").graph(OVERVIEW, "Who was last, of steps")
    [most] = [name for name in lines if "most often" in name]
    assert lines[most][-1] < 0.35
    assert sum(line[-1] for line in lines.values()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("run", "lights"),
    [("balanced", ["met", "met", "met"]), ("input", ["not met", "not met", "met"]), ("compute", ["met", "met", "met"])],
)
def test_exit_criteria(look: Look, run: str, lights: list[str]) -> None:
    """The three lights tell what stands in the way of more GPUs."""
    reader = look(run)
    criteria = [panel["title"] for panel in OVERVIEW.panels if panel["title"].startswith("Exit ")]
    assert [next(iter(reader.numbers(OVERVIEW, title))) for title in criteria] == lights


def test_alerts_with_their_runbooks(look: Look) -> None:
    """The alert that fires is in the table with its rank, and leads to its runbook."""
    rows = look("input").rows(OVERVIEW, "Alerts and next checks")
    [row] = [row for row in rows if row["Alert (runbook)"] == "TrainingInputStraggler"]
    assert (row["State"], row["Rank"], row["Host"], row["Phase"]) == ("firing", "10", "late-2", "input_ready")
    assert 0 < row["For"] <= 1080
    assert not [row for row in look("balanced").rows(OVERVIEW, "Alerts and next checks") if row["State"] == "firing"]


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_alerts_are_marked_where_they_belong(look: Look, board: Board) -> None:
    """The straggler's alert is marked; on the dashboard of a rank or host, only where it is theirs."""
    [query] = board.annotations()
    reader = look("input", rank="10", host="late-2")
    fired = {one["metric"]["alertname"] for one in reader.matrix(query)}
    assert "TrainingInputStraggler" in fired
    if board in (RANK, HOSTS):
        other = look("input", rank="3", host="late-0")
        assert "TrainingInputStraggler" not in {one["metric"]["alertname"] for one in other.matrix(query)}


def test_choices_of_variables(look: Look) -> None:
    """Each variable offers what there is: ranks in numeric order, hosts and shards of the run alone."""
    reader = look("input")
    assert "input" in reader.choices(OVERVIEW.variables["run"])
    assert reader.choices(RANK.variables["rank"]) == [str(rank) for rank in range(12)]
    assert reader.choices(HOSTS.variables["host"]) == ["late-0", "late-1", "late-2"]
    shards = [shard for shard in reader.choices(HOSTS.variables["shard"]) if shard]
    assert len(shards) == 24
    assert reader.choices(OVERVIEW.variables["cluster"]) == []


def test_rank_against_the_median(look: Look) -> None:
    """The late rank's input stands above the dashed line of the median rank; its loader is told of."""
    reader = look("input", rank="10")
    lines = reader.graph(RANK, "Input ready")
    assert lines["p50 of rank 10"][-1] > 3 * lines["mean of the median rank"][-1]
    assert lines["p99 of rank 10"][-1] >= lines["p50 of rank 10"][-1]
    [(name, _)] = reader.numbers(RANK, "Input time, host and shard").items()
    assert name.startswith("late-2 · train-0002")
    assert reader.numbers(RANK, "Last in, of steps")["last"] > 0.9


def test_loader_headroom(look: Look) -> None:
    """Twice the need is shown as such; a loader that makes half of it is below the line."""
    assert look("balanced").graph(RANK, "Loader headroom, of the need")["headroom"][-1] == pytest.approx(2, rel=0.3)
    lines = look("unaligned").graph(RANK, "Loader headroom, of the need")
    assert lines["headroom"][-1] < lines["just enough"][-1] == 1
    lines = look("balanced").graph(RANK, "Producing a batch, against the time there is")
    assert lines["p50"][-1] < lines["time there is"][-1]


def test_host_and_shard_tables(look: Look) -> None:
    """The host of the straggler comes first, and so do the shards that it reads."""
    reader = look("input")
    rows = reader.rows(HOSTS, "By host")
    assert rows[0]["Host"] == "late-2"
    assert rows[0]["Worst rank, of a step"] > 2 * rows[0]["All ranks' input, of a step"]
    assert {row["Host"]: row["Ranks"] for row in rows} == {"late-0": 4, "late-1": 4, "late-2": 4}
    shards = reader.rows(HOSTS, "By shard")
    assert {row["Shard"] for row in shards[:2]} == {"train-00020", "train-00021"}
    assert shards[0]["Of the median shard's"] > 3
    assert shards[0]["Ranks that read it"] == 1


def test_host_or_shard(look: Look) -> None:
    """Other ranks of the straggler's host are fast: it is not the host."""
    rows = look("input").rows(HOSTS, "Does it follow the shard or the host?")
    assert rows[0]["Rank"] == 10
    assert rows[0]["Time for a batch here"] > 3 * rows[-1]["Time for a batch here"]
    assert displayed(HOSTS.panel("By shard"), 1) is None
    panel = HOSTS.panel("Does it follow the shard or the host?")
    assert displayed(panel, rows[0]["Same shard, read by others"]) == "nothing to compare"


def test_fleet_by_cost(look: Look) -> None:
    """The run with most waiting ranks costs most; all runs are there, also one that is not judged."""
    reader = look("input")
    rows = reader.rows(FLEET, "Runs by cost")
    assert rows[0]["Run"] == "input"
    by_run = {row["Run"]: row for row in rows}
    assert set(by_run) == {*RUNS, "unaligned", "slow"}
    assert len(rows) == len(by_run)
    assert by_run["input"]["Ranks"] == 12
    assert by_run["input"]["Latest input, of a step"] == pytest.approx(0.3 / 1.3, rel=0.2)
    assert by_run["balanced"]["Latest input, of a step"] < 0.1
    assert by_run["input"]["Firing"] >= 1
    assert by_run["balanced"]["Firing"] == 0
    assert displayed(FLEET.panel("Runs by cost"), by_run["slow"]["Waits, of GPU time"]) == "not judged"
    [hours] = reader.numbers(FLEET, "Lost to waiting").values()
    assert hours == pytest.approx(sum(row["Lost in the time range"] for row in rows), rel=0.01)

"""Step records on their way: over HTTP, and in Parquet files; whole, cut, changed and foreign."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rank_exporter.agent.faults import Faults
from rank_exporter.agent.spool import open_spool
from rank_exporter.agent.steps import parse
from rank_exporter.errors import SettingError, SourceError
from rank_exporter.phases import PHASE_NAMES
from rank_exporter.segment.records import RankSteps
from rank_exporter.segment.steplog import StepLog
from rank_exporter.segment.wire import Answer, decode, encode

MS = 1_000_000


def about(steps: RankSteps) -> tuple[Any, ...]:
    names = ("run", "rank", "world_size", "host", "generation", "started_unix_ns")
    return tuple(getattr(steps, name) for name in names)


def test_an_answer_arrives_as_it_was_sent(simulate: Callable[..., list[RankSteps]]) -> None:
    """What is encoded is decoded to the same, records bit for bit."""
    ranks = simulate(20, 3, run="Übung", input_ready=10)
    sent = Answer(agent="node", segments=tuple(ranks), last_steps=(20, 20, 20))
    found = decode(encode(sent), source="it")
    assert (found.agent, found.last_steps) == (sent.agent, sent.last_steps)
    for one, other in zip(found.segments, ranks, strict=True):
        assert about(one) == about(other)
        assert one.shards == other.shards
        assert (one.records == other.records).all()


def test_damage_is_one_line_whatever_it_is(simulate: Callable[..., list[RankSteps]]) -> None:
    """Cut anywhere, or with any byte changed, an answer is either read or refused in one line."""
    body = encode(Answer(agent="node", segments=tuple(simulate(2, 2, input_ready=10)), last_steps=(2, 2)))
    rng = np.random.default_rng(0)
    for end in range(0, len(body), 7):
        with pytest.raises(SourceError, match=r"^it is no answer of an agent's /steps \([^\n]*\): run one release"):
            decode(body[:end], source="it")
    for _ in range(2000):
        changed = bytearray(body)
        changed[rng.integers(0, 700)] = rng.integers(0, 256)
        try:
            decode(bytes(changed), source="it")
        except SourceError as error:
            assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([("step", "1")], "there is no parameter 'step': known are run, generation, rank"),
        ([("after", "-1")], "after is '-1': give a whole number"),
        ([("after", "1:x")], "after is 'x': give a whole number"),
        ([("limit", "9" * 30)], "limit is '99"),
    ],
)
def test_a_query_that_makes_no_sense_is_refused(pairs: list[tuple[str, str]], message: str) -> None:
    """In one line, which names the parameter and its value."""
    with pytest.raises(SettingError, match=message):
        parse(pairs)


def test_steps_of_an_agent(
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    """An agent serves the records of its ring by run, rank and range, as bytes or as JSON."""
    agent = start_agent(tmp_path / "node")
    for one in (*simulate(30, 2, input_ready=10), *simulate(5, 1, run="other", generation=0, input_ready=10)):
        simulated(agent.directory, one).commit(30)

    def ask(query: str) -> dict[tuple[str, int], list[int]]:
        response = agent.get(f"/steps?{query}")
        assert response.headers["content-type"] == "application/vnd.rank-exporter.steps"
        found = decode(response.content, source="it").segments
        return {(one.run, one.rank): one.records["step"].tolist() for one in found}

    eventually(lambda: len(ask("")) == 3)
    whole = list(range(1, 31))
    assert ask("") == {("job", 0): whole, ("job", 1): whole, ("other", 0): whole[:5]}
    assert ask("run=job&after=27") == {("job", 0): [28, 29, 30], ("job", 1): [28, 29, 30]}
    assert ask("run=job&after=0:28&after=1:29") == {("job", 0): [29, 30], ("job", 1): [30]}
    assert ask("run=job&rank=1&after=10&to=12") == {("job", 1): [11, 12]}
    assert ask("generation=7&rank=0&limit=2") == {("job", 0): [1, 2]}
    assert ask("run=none") == {}
    (segment,) = json.loads(agent.get("/steps?format=json&run=job&rank=1&after=29").text)["segments"]
    assert (segment["host"], segment["generation"], segment["last_step"]) == ("node-0", 7, 30)
    (record,) = segment["records"]
    assert (record["step"], record["shard"]) == (30, "shard-1")
    assert record["ns"] == {"input_ready": 10 * MS, "collective_wait": 5 * MS, "step": 15 * MS}
    assert agent.get("/steps?after=x").status_code == 400
    assert agent.get("/steps?after=x").text == "after is 'x': give a whole number\n"


def test_a_step_log_is_read_as_it_was_written(tmp_path: Path, simulate: Callable[..., list[RankSteps]]) -> None:
    """Processes of several runs in one file come back each by itself, shards by their names."""
    ranks = [*simulate(20, 3, input_ready=10), *simulate(5, 2, run="other", input_ready=10)]
    other = ranks[1].records.copy()
    other["shard"][10:] = 16
    ranks[1] = dataclasses.replace(ranks[1], records=other)
    StepLog().write(tmp_path / "steps.parquet", ranks)
    found = {(one.run, one.rank): one for one in StepLog().read(tmp_path / "steps.parquet")}
    assert len(found) == 5
    for one in ranks:
        twin = found[one.run, one.rank]
        assert about(twin) == about(one)
        for name in ("step", "end_unix_ns", "ns"):
            assert (twin.records[name] == one.records[name]).all()
        shards = [twin.shard_name(int(slot)) for slot in twin.records["shard"]]
        assert shards == [one.shard_name(int(slot)) for slot in one.records["shard"]]


def test_a_step_log_opens_in_other_tools(tmp_path: Path, simulate: Callable[..., list[RankSteps]]) -> None:
    """It is plain Parquet with one row a step and rank, and a column for each phase."""
    parquet = pytest.importorskip("pyarrow.parquet")
    StepLog().write(tmp_path / "steps.parquet", simulate(20, 3, input_ready=10))
    table = parquet.read_table(tmp_path / "steps.parquet")
    assert table.num_rows == 60
    assert {f"{name}_ns" for name in PHASE_NAMES} <= set(table.column_names)
    assert table.column("host").to_pylist()[0] == "node-0"


def test_a_spool_keeps_steps_once_and_within_bounds(
    tmp_path: Path,
    start_agent: Callable[..., Any],
    simulate: Callable[..., list[RankSteps]],
    simulated: Callable[..., Any],
    eventually: Callable[..., Any],
) -> None:
    """What an agent saw of its ranks is in the directory once it has ended, each step once."""
    log = tmp_path / "log"
    agent = start_agent(tmp_path / "node", "--step-log-dir", str(log))
    ranks = [simulated(agent.directory, one) for one in simulate(50, 2, input_ready=10)]
    for rank in ranks:
        rank.commit(30)
    eventually(lambda: agent.get("/steps?after=29").content.count(b'"records": 1') == 2)
    for rank in ranks:
        rank.commit(20)
    agent.close()
    found = [one for path in log.glob("*.parquet") for one in StepLog().read(path)]
    steps = np.concatenate([one.records["step"] for one in found if one.rank == 1])
    assert sorted(steps.tolist()) == list(range(1, 51))
    assert not list(log.glob("*.draft"))


def test_a_spool_removes_its_oldest_files(tmp_path: Path, simulate: Callable[..., list[RankSteps]]) -> None:
    """Beyond the size that is allowed the oldest files of the host go, and those of other hosts stay."""
    (tmp_path / "steps-other-0.parquet").write_bytes(bytes(10_000))
    spool = open_spool(tmp_path, "node", Faults(), most_bytes=1)
    assert spool is not None
    for number in range(3):
        spool._waiting = simulate(20, 2, first=1 + 20 * number, input_ready=10)
        spool.flush()
    kept = [path for path in tmp_path.glob("*.parquet") if "other" not in path.name]
    assert [StepLog().read(path)[0].records["step"][0] for path in kept] == [41]
    assert (tmp_path / "steps-other-0.parquet").exists()


def test_a_spool_that_cannot_write_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], simulate: Callable[..., list[RankSteps]]
) -> None:
    """A directory that is a file, or one that goes away, costs the records, a line and a count, and nothing else."""
    faults = Faults()
    (tmp_path / "file").touch()
    assert open_spool(tmp_path / "file", "node", faults, most_bytes=1) is None
    assert faults.counts["step_log"] == 1
    spool = open_spool(tmp_path / "log", "node", faults, most_bytes=1)
    assert spool is not None
    (tmp_path / "log").rmdir()
    for _ in range(3):
        spool._waiting = simulate(20, 2, input_ready=10)
        spool.flush()
    assert faults.counts["step_log"] == 4
    assert capsys.readouterr().err.count("\n") == 2

"""Samples in the gate and in a comparison, from the files of identifiers that ranks keep."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from rank_exporter.cli import main
from rank_exporter.identity import Identity
from rank_exporter.segment.samplelog import batch_line, end_line, file_name, first_line
from rank_exporter.segment.steplog import StepLog

RANKS = 4
STEPS = 700


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def keep(directory: Path, name: str, *, changed: dict[int, int] | None = None) -> None:
    """Files of one epoch of 400 samples; ``changed``: which samples were taken in the place of which."""
    directory.mkdir(exist_ok=True)
    for rank in range(RANKS):
        identity = Identity(run=name, rank=rank, local_rank=0, world_size=RANKS, host=f"node-{rank}")
        ids = [(changed or {}).get(one, one) for one in range(rank, 400, RANKS)]
        lines = [first_line(identity, 0, 1), batch_line(1, ids, len(ids), 0)]
        lines.append(end_line(samples=len(ids), padded=0, complete=True))
        (directory / file_name(identity, 0, 1)).write_bytes(b"".join(lines))


def states(done: Result) -> dict[str, str]:
    return {one["name"]: one["state"] for one in json.loads(done.stdout)["criteria"]}


def test_the_gate_reconciles_what_lies_among_the_step_logs(simulate: Any, tmp_path: Path) -> None:
    """Files of identifiers are found beside the step logs, or where they are said to be; a manifest is kept to."""
    StepLog().write(tmp_path / "x.parquet", simulate(STEPS))
    keep(tmp_path, "job")
    options = ["gate", "--spool", tmp_path, "--json"]
    clean = run(*options)
    assert (clean.exit_code, states(clean)["samples"]) == (0, "pass"), clean.output
    assert run(*options, "--manifest", 400).exit_code == 0
    more = run(*options, "--manifest", 401)
    assert (more.exit_code, states(more)["samples"]) == (1, "fail")
    keep(tmp_path / "elsewhere", "job", changed={7: 8})
    twice = run("gate", "--spool", tmp_path / "x.parquet", "--samples", tmp_path / "elsewhere", "--json")
    assert twice.exit_code == 1
    assert states(twice) == {
        "input-ready": "pass",
        "input-wait": "pass",
        "device-idle": "not applicable",
        "samples": "fail",
    }
    other = run("gate", "--spool", tmp_path / "x.parquet", "--samples", tmp_path / "none", "--json")
    assert (other.exit_code, states(other)["samples"]) == (2, "unknown")


def test_a_faster_run_that_took_another_sample_is_refused(simulate: Any, on: Any, tmp_path: Path) -> None:
    """With equal counts: the comparison rests on which samples were taken."""
    StepLog().write(tmp_path / "x.parquet", [*simulate(run="a", input_ready=on(1, 40)), *simulate(run="b")])
    keep(tmp_path / "a", "a")
    keep(tmp_path / "b", "b")
    options = ["compare", "a", "b", "--spool", tmp_path / "x.parquet", "--json"]
    places = ["--samples-a", tmp_path / "a", "--samples-b", tmp_path / "b"]
    same = run(*options, *places)
    assert (same.exit_code, json.loads(same.stdout)["outcome"]) == (0, "accept"), same.output
    keep(tmp_path / "b", "b", changed={7: 1000})
    swapped = run(*options, *places)
    assert (swapped.exit_code, json.loads(swapped.stdout)["outcome"]) == (1, "refuse")
    assert states(swapped) == {"step": "pass", "dispersion": "pass", "memory": "not applicable", "samples": "fail"}
    assert run(*options).exit_code == 2

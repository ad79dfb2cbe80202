"""What records carry beside durations reaches the analysis: profiled steps, and where waiting hides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from click.testing import CliRunner

from rank_exporter.analysis.align import align
from rank_exporter.cli import main
from rank_exporter.lateness import UNKNOWN
from rank_exporter.segment.layout import BY_DEVICE, PROFILED
from rank_exporter.segment.steplog import StepLog
from rank_exporter.segment.wire import Answer, decode, encode


def flagged(simulate: Any, on: Any) -> Any:
    """Forty steps, of which rank 2 was profiled in 11 to 15 and took 300 ms longer."""
    flags = np.full((40, 4), BY_DEVICE)
    flags[10:15, 2] |= PROFILED
    slow = on(2, 300, steps=40, where=slice(10, 15))
    return simulate(40, forward=slow, optimizer=slow, flags=flags, waits_in="forward,backward")


def test_steps_that_one_rank_profiled_are_aligned_for_none(simulate: Any, on: Any) -> None:
    """They are left out and counted; the optimizer of the last of them is not held against the step after."""
    found = align(flagged(simulate, on))
    assert found.steps.tolist() == [*range(1, 11), *range(16, 41)]
    assert (found.profiled, found.incomplete, found.by_device) == (5, 0, True)
    assert found.before[10, 2] == UNKNOWN
    assert (found.before[11:] != UNKNOWN).all()
    assert max(blame.seconds for blame in found.blame()) < 0.1


def test_align_says_how_many_were_profiled(simulate: Any, on: Any, tmp_path: Path) -> None:
    """As a line, and in its object."""
    StepLog().write(tmp_path / "x.parquet", flagged(simulate, on))
    as_json = CliRunner().invoke(main, ["align", "--step-log", str(tmp_path), "--json"])
    assert json.loads(as_json.stdout)["profiled_steps"] == 5
    as_text = CliRunner().invoke(main, ["align", "--step-log", str(tmp_path)])
    assert "35 steps of run job aligned, 1 to 40, from 4 of 4 ranks, 5 profiled left out" in as_text.stdout


def test_flags_and_hidden_waits_travel(simulate: Any, on: Any, tmp_path: Path) -> None:
    """Through a step log and through what an agent answers, and an older agent's answer has none."""
    ranks = flagged(simulate, on)
    StepLog().write(tmp_path / "x.parquet", ranks)
    body = encode(Answer(agent="a", segments=tuple(ranks), last_steps=(40,) * 4))
    for found in (StepLog().read(tmp_path / "x.parquet"), decode(body, source="x").segments):
        for one, twin in zip(ranks, found, strict=True):
            assert twin.waits_in == "forward,backward"
            assert (twin.records["flags"] == one.records["flags"]).all()
    header = json.dumps("forward,backward").encode()
    older = body.replace(b'"waits_in": ' + header + b", ", b"")
    shorter = (len(body) - len(older)).to_bytes(4, "little")
    length = int.from_bytes(body[8:12], "little") - int.from_bytes(shorter, "little")
    assert decode(older[:8] + length.to_bytes(4, "little") + older[12:], source="x").segments[0].waits_in == ""

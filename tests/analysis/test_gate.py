"""``rank-exporter gate``: each criterion fails alone, a clean run passes, and what cannot be told is said."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from rank_exporter import digest
from rank_exporter.analysis.correlation import correlation
from rank_exporter.analysis.gate import Tolerances, gate
from rank_exporter.analysis.observation import observe
from rank_exporter.analysis.reconcile import reconcile
from rank_exporter.cli import main
from rank_exporter.segment.samples import EpochSamples
from rank_exporter.segment.steplog import StepLog

STEPS = 700
NAMES = ("input-ready", "input-wait", "device-idle", "samples")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["gate", *map(str, arguments)])


def epoch(ranks: int = 4, *, taken: Callable[[int], list[int]] | None = None) -> list[EpochSamples]:
    """An epoch in which rank r took samples r, r + ranks, …, or what ``taken`` says."""
    found = []
    for rank in range(ranks):
        ids = np.array(taken(rank) if taken else range(rank, 400, ranks), dtype=np.int64)
        found.append(
            EpochSamples(
                run="job",
                rank=rank,
                world_size=ranks,
                host=f"node-{rank // 2}",
                started_unix_ns=1,
                epoch=0,
                samples=len(ids),
                padded=0,
                identified=len(ids),
                digest=digest.of(ids),
                complete=True,
                ids=ids,
            )
        )
    return found


CLEAN = reconcile(epoch())


def judged(ranks: Any, *, active: float | None = 0.9, samples: Any = CLEAN, **tolerances: Any) -> dict[str, str]:
    """The state of each criterion, on devices that were busy so much of the time."""
    observation = observe(ranks, source="memory")
    profile = observation.profile
    with_devices = dataclasses.replace(
        profile, ranks=tuple(dataclasses.replace(rank, device_active=active) for rank in profile.ranks)
    )
    found = gate(dataclasses.replace(observation, profile=with_devices), samples, Tolerances(**tolerances))
    assert tuple(one.name for one in found.criteria) == NAMES
    for one in found.criteria:
        assert one.reason
        assert "\n" not in one.reason
    return {one.name: one.state for one in found.criteria}


def but(**states: str) -> dict[str, str]:
    return {name: states.get(name.replace("-", "_"), "pass") for name in NAMES}


def test_a_clean_run_passes_everything(simulate: Any) -> None:
    """All four criteria, on four alike ranks."""
    assert judged(simulate(STEPS)) == but()


def test_a_rare_late_batch_fails_input_ready_alone(simulate: Any, on: Any) -> None:
    """One step in twenty with input late by half a step: the p99 is beyond budget, while most waiting comes from uneven
    computing, which nobody calls late input."""
    rng = np.random.default_rng(2)
    uneven = {"forward": 30 * rng.lognormal(0, 0.6, (STEPS, 4))}
    rare = on(2, 45, steps=STEPS, where=slice(0, None, 20))
    assert judged(simulate(STEPS, input_ready=rare, **uneven)) == but(input_ready="fail")


def test_waits_that_follow_late_input_fail_input_wait_alone(simulate: Any) -> None:
    """Input of all ranks is late now and then, so that no rank's p99 stands out; what they wait for is input."""
    rng = np.random.default_rng(3)
    late = np.where(rng.random((STEPS, 4)) < 0.1, 40.0, 0.0)
    assert judged(simulate(STEPS, input_ready=late)) == but(input_wait="fail")


def test_a_steady_straggler_fails_though_its_delay_never_varies(simulate: Any, on: Any) -> None:
    """That ranks wait for the one whose input is late shows across ranks, where it does not from step to step."""
    states = judged(simulate(STEPS, input_ready=on(1, 40, steps=STEPS)))
    assert (states["input-ready"], states["input-wait"]) == ("fail", "fail")


def test_an_idle_device_fails_device_idle_alone(simulate: Any) -> None:
    """Devices that are busy 65 % of the time idle more than the 30 % that are tolerated, as the alert has it."""
    assert judged(simulate(STEPS), active=0.65) == but(device_idle="fail")
    assert judged(simulate(STEPS), active=0.65, idle=0.4) == but()


def test_a_sample_taken_twice_fails_samples_alone(simulate: Any) -> None:
    """Two ranks that took the same sample."""
    twice = reconcile(epoch(taken=lambda rank: [*range(rank, 400, 4), 7]))
    assert judged(simulate(STEPS), samples=twice) == but(samples="fail")


def test_what_cannot_be_told_is_said(simulate: Any, on: Any) -> None:
    """Too few steps, ranks missing, devices of which nothing is known, no samples, waits that are hidden."""
    few = judged(simulate(120))
    assert few == but(input_ready="unknown", input_wait="unknown")
    missing = judged(simulate(STEPS)[:3])
    assert missing == but(input_ready="unknown", input_wait="unknown")
    assert judged(simulate(STEPS, flags=1), active=None) == but(device_idle="unknown")
    assert judged(simulate(STEPS), active=None) == but(device_idle="not applicable")
    assert judged(simulate(STEPS), samples="no samples are known") == but(samples="unknown")
    assert judged(simulate(STEPS, waits_in="forward,backward")) == but(input_wait="unknown")
    rare = on(2, 45, steps=STEPS, where=slice(0, None, 87))
    assert judged(simulate(STEPS, input_ready=rare))["input-ready"] == "unknown"


def test_cold_steps_are_described_and_not_judged(simulate: Any, on: Any) -> None:
    """A first epoch with slow input is cold: the rest is judged without it."""
    cold = on(1, 300, steps=1000, where=slice(0, 200)) + on(1, 4, steps=1000)
    ranks = simulate(1000, input_ready=cold, first_batch=on(0, 500, steps=1000, where=[0, 200, 400]))
    found = gate(observe(ranks, source="memory"), CLEAN)
    assert found.cold is not None
    assert (found.cold.first, found.cold.last, found.warm.first, found.warm.last) == (1, 200, 201, 1000)
    assert found.cold.worst_input > 0.3 > found.warm.worst_input
    assert found.criteria[0].state == "pass"
    everything = gate(observe(ranks, source="memory"), CLEAN, cold_steps=0)
    assert everything.cold is None
    assert everything.criteria[0].state == "fail"


def test_exit_codes_and_reasons(simulate: Any, on: Any, tmp_path: Path) -> None:
    """0 where all is met, 1 where something is not, 2 where it cannot be told; required and waived criteria."""
    log = StepLog()
    log.write(tmp_path / "clean.parquet", simulate(STEPS, run="clean"))
    log.write(tmp_path / "late.parquet", simulate(STEPS, run="late", input_ready=on(1, 40, steps=STEPS)))
    untold = run("--spool", tmp_path, "--run", "clean", "--json")
    assert untold.exit_code == 2
    found = json.loads(untold.stdout)
    assert found["outcome"] == "unknown"
    states = {one["name"]: one["state"] for one in found["criteria"]}
    assert states == but(device_idle="not applicable", samples="unknown")
    assert found["criteria"][0]["figure"] <= found["criteria"][0]["tolerance"] == 0.1
    assert found["warm"]["steps"] + found["cold"]["steps"] == STEPS
    assert run("--spool", tmp_path, "--run", "clean", "--waive", "samples").exit_code == 0
    required = run("--spool", tmp_path, "--run", "clean", "--waive", "samples", "--require", "device-idle")
    assert required.exit_code == 2
    failed = run("--spool", tmp_path, "--run", "late")
    assert failed.exit_code == 1
    assert "input p99 of rank 1 is" in failed.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give --agent, --prometheus or --spool: where is the run?"),
        (("--agent", "http://127.0.0.1:1"), "http://127.0.0.1:1/metrics cannot be read ("),
        (("--spool", "{spool}/none"), "none does not exist"),
        (("--spool", "{spool}", "--run", "x"), "run 'x' was not found: there is job"),
        (("--spool", "{spool}", "--cold-steps", 99), "all 50 steps of run job are among its first 99, which are cold"),
    ],
)
def test_bad_input_is_one_clear_line(simulate: Any, tmp_path: Path, arguments: tuple[Any, ...], message: str) -> None:
    """It says what is wrong on standard error, and exits with 2."""
    StepLog().write(tmp_path / "job.parquet", simulate(50))
    done = run(*(str(argument).format(spool=tmp_path) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(("rank-exporter: ", "Error: "))]
    assert message in line


def test_correlation_and_its_interval() -> None:
    """The figure is Pearson's; its interval covers the truth about as often as it says, though steps are alike."""
    rng = np.random.default_rng(4)
    covered = 0
    for _ in range(40):
        noise = rng.normal(size=(2, 403))
        one, other = (np.convolve(series, [0.5, 0.5, 0.5, 0.5], mode="valid")[:, None] for series in noise)
        found = correlation(one, other)
        assert found.figure == pytest.approx(np.corrcoef(one[:, 0], other[:, 0])[0, 1], abs=1e-9)
        covered += found.low <= 0 <= found.high
    assert covered >= 34
    same = correlation(one, 3 * one + 1)
    assert (same.figure, same.low) == (pytest.approx(1), pytest.approx(1))
    still = correlation(one, np.full_like(one, 2.0))
    assert (still.figure, still.low, still.high) == (0, 0, 0)

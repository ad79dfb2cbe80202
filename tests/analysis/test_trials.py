"""``rank-exporter compare`` and ``scaling``: what is accepted, what is refused, and why."""

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
from rank_exporter.analysis.observation import observe
from rank_exporter.analysis.reconcile import Reconciliation, expected_of, reconcile
from rank_exporter.analysis.trials import compare
from rank_exporter.cli import main
from rank_exporter.segment.samples import EpochSamples
from rank_exporter.segment.steplog import StepLog

NAMES = ("step", "dispersion", "memory", "samples")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, list(map(str, arguments)))


def took(ids: range | list[int], run: str = "a") -> list[EpochSamples]:
    """One rank that took these samples in an epoch."""
    array = np.array(ids, dtype=np.int64)
    return [
        EpochSamples(
            run=run,
            rank=0,
            world_size=1,
            host="node-0",
            started_unix_ns=1,
            epoch=0,
            samples=len(array),
            padded=0,
            identified=len(array),
            digest=digest.of(array),
            complete=True,
        )
    ]


SAME: Reconciliation = reconcile(took(range(400), "b"), expected=expected_of(took(range(400))))


def judged(before: Any, after: Any, *, samples: Any = SAME, memory: tuple[float, float] | None = (1e9, 1e9)) -> Any:
    observations = []
    for place, ranks in enumerate((before, after)):
        observation = observe(ranks, source="memory")
        used = None if memory is None else memory[place]
        profile = dataclasses.replace(
            observation.profile,
            ranks=tuple(dataclasses.replace(rank, memory_bytes=used) for rank in observation.profile.ranks),
        )
        observations.append(dataclasses.replace(observation, profile=profile))
    criteria, _, _ = compare(*observations, samples)
    for one in criteria:
        assert one.reason
        assert "\n" not in one.reason
    return {one.name: one.state for one in criteria}


def but(**states: str) -> dict[str, str]:
    return {name: states.get(name, "pass") for name in NAMES}


@pytest.fixture
def slow(simulate: Callable[..., Any], on: Callable[..., Any]) -> Any:
    """Rank 1 reads 40 ms longer than the others."""
    return simulate(run="a", input_ready=on(1, 40))


def test_a_run_without_its_straggler_is_accepted(slow: Any, simulate: Any) -> None:
    """Steps are shorter, ranks less dispersed, memory and samples the same."""
    assert judged(slow, simulate(run="b", seed=2)) == but()


def test_a_faster_run_whose_samples_differ_is_refused(slow: Any, simulate: Any) -> None:
    """One sample in the place of another, with equal counts, or fewer of them."""
    expected = expected_of(took(range(400)))
    swapped = reconcile(took([*range(399), 1000], "b"), expected=expected)
    fewer = reconcile(took(range(390), "b"), expected=expected)
    for samples in (swapped, fewer):
        assert judged(slow, simulate(run="b"), samples=samples) == but(samples="fail")


def test_more_memory_is_refused(slow: Any, simulate: Any) -> None:
    """Two hundredths more are tolerated, five are not."""
    assert judged(slow, simulate(run="b"), memory=(1e9, 1.015e9)) == but()
    assert judged(slow, simulate(run="b"), memory=(1e9, 1.05e9)) == but(memory="fail")


def test_no_gain_is_refused(slow: Any, simulate: Any, on: Any) -> None:
    """A slower run fails by its steps; a faster one whose ranks drift apart, by its dispersion."""
    slower = simulate(run="b", input_ready=on(1, 40), forward=20)
    assert judged(slow, slower)["step"] == "fail"
    apart = simulate(run="b", input_ready=on(1, 60), forward=-29)
    assert judged(slow, apart) == but(dispersion="fail")


def test_a_better_tail_is_enough(simulate: Any, on: Any) -> None:
    """The median is as it was, the p99 has fallen."""
    stalls = np.where(np.arange(400) % 25 == 0, 90, 0)[:, None] + on(0, 30)
    assert judged(simulate(run="a", input_ready=stalls), simulate(run="b", input_ready=on(0, 29)))["step"] == "pass"


def test_a_gain_within_the_noise_cannot_be_told(simulate: Any) -> None:
    """Identical ranks in two runs: nothing is accepted."""
    states = judged(simulate(run="a", seed=5), simulate(run="b", seed=6))
    assert states["step"] in ("fail", "unknown")
    assert states["dispersion"] == "pass"


def test_what_cannot_be_told(slow: Any, simulate: Any) -> None:
    """Too few steps, ranks missing, memory of devices unknown; on CPU there is none."""
    few = simulate(40, run="b")
    assert judged(slow, few) == but(step="unknown", dispersion="unknown")
    assert judged(slow[:3], simulate(run="b")) == but(step="unknown", dispersion="unknown")
    assert judged(slow, simulate(run="b", flags=1), memory=None) == but(memory="unknown")
    assert judged(slow, simulate(run="b"), memory=None) == but(memory="not applicable")
    hidden = simulate(run="b", waits_in="forward,backward")
    assert judged(slow, hidden) == but(dispersion="unknown")


def test_exit_codes(slow: Any, simulate: Any, tmp_path: Path) -> None:
    """0 accept, 1 refuse, 2 cannot tell; runs of one directory by name, or each with its own place."""
    log = StepLog()
    log.write(tmp_path / "a.parquet", slow)
    log.write(tmp_path / "b.parquet", simulate(run="b"))
    untold = run("compare", "a", "b", "--spool", tmp_path, "--json")
    assert untold.exit_code == 2, untold.output
    found = json.loads(untold.stdout)
    assert found["outcome"] == "cannot tell"
    assert found["a"]["p50"] > found["b"]["p50"]
    assert found["a"]["dispersion"] == pytest.approx(0.040, rel=0.05)
    accepted = run("compare", tmp_path / "a.parquet", f"{tmp_path}#b", "--waive", "samples")
    assert accepted.exit_code == 0
    assert accepted.stdout.startswith("accept b (")
    refused = run("compare", "b", "a", "--spool", tmp_path, "--waive", "samples")
    assert refused.exit_code == 1
    assert "neither improves" in refused.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compare", "{spool}#a", "{spool}/none"), "none does not exist: give a directory of step logs"),
        (("compare", "{spool}#a", "{spool}#x"), "run 'x' was not found: there is a, b"),
        (("compare", "{spool}#a", "{spool}"), "2 runs were found (a, b): name one as in {spool}#RUN"),
        (("compare", "{spool}#a", "http://127.0.0.1:1"), "http://127.0.0.1:1/metrics cannot be read ("),
        (
            ("compare", "a", "b", "--prometheus", "http://127.0.0.1:1"),
            "http://127.0.0.1:1/api/v1/query cannot be read (",
        ),
        (("scaling", "{spool}#a"), "one run has nothing to scale against"),
        (("scaling", "{spool}#a", "{spool}#b"), "all runs have 4 ranks: give runs at several world sizes"),
        (("scaling", "a", "b", "--spool", "{spool}", "--unit", "tokens"), "not every run counts tokens"),
        (("scaling", "a", "b", "--spool", "{spool}", "--last-steps", "50"), "50 steps of run a are too few"),
    ],
)
def test_bad_input_is_one_clear_line(
    slow: Any, simulate: Any, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """It says what is wrong on standard error, and exits with 2."""
    StepLog().write(tmp_path / "all.parquet", [*slow, *simulate(run="b")])
    done = run(*(argument.format(spool=tmp_path) for argument in arguments))
    assert done.exit_code == 2
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith(("rank-exporter: ", "Error: "))]
    assert message.format(spool=tmp_path) in line


def test_scaling_is_measured_against_the_smallest_run(simulate: Any, on: Any, tmp_path: Path) -> None:
    """Twice the ranks at the same step time are twice the rate; with a straggler the efficiency and the tax tell."""
    runs = [
        *simulate(200, 2, run="two", samples=16),
        *simulate(200, 4, run="four", samples=16),
        *simulate(200, 8, run="eight", samples=16, forward=on(5, 98, steps=200, ranks=8)),
    ]
    StepLog().write(tmp_path / "all.parquet", runs)
    done = run("scaling", "eight", "two", "four", "--spool", tmp_path, "--json")
    assert done.exit_code == 0, done.output
    two, four, eight = json.loads(done.stdout)["runs"]
    assert [one["world_size"] for one in (two, four, eight)] == [2, 4, 8]
    assert two["rate"] == pytest.approx(32 / two["step"])
    assert two["efficiency"] == 1
    assert four["efficiency"] == pytest.approx(1, abs=0.03)
    assert eight["efficiency"] == pytest.approx(0.5, abs=0.03)
    assert four["tax"] < 0.03
    assert eight["tax"] == pytest.approx(7 / 8 * 98 / (98 + 103), rel=0.05)
    assert {one["unit"] for one in (two, four, eight)} == {"samples"}
    table = run("scaling", "two", "four", "--spool", tmp_path).stdout
    assert "samples/s" in table

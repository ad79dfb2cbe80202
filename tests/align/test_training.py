"""Four real gloo ranks with known delays: what their agent, and what the analysis, says they cost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rank_exporter.analysis.align import Alignment, align
from rank_exporter.analysis.steps_load import load_agents
from rank_exporter.phases import Phase

pytestmark = pytest.mark.alone

HERE = Path(__file__).parent
RANKS = 4
STEPS = 16
WARM_UP = 4
PLACES = ("input_ready", "forward", "backward", "optimizer", "other")
SLOW_RANK = 1


class Trained:
    """The agent that watched the scenarios, and what the ranks slept."""

    def __init__(self, agent: Any, out: Path) -> None:
        self.agent = agent
        self._out = out
        self._segments = load_agents([agent.url]).segments

    def aligned(self, scenario: str) -> Alignment:
        """The steps after the warm-up."""
        return align(self._segments, run=scenario).between(WARM_UP + 1, STEPS)

    def slept(self, scenario: str) -> np.ndarray:
        """Seconds each rank slept for its input, by its own measure: (steps after the warm-up, ranks)."""
        ranks = [np.load(self._out / f"{scenario}-{rank}.npz")["input"] for rank in range(RANKS)]
        return np.stack(ranks, axis=1)[WARM_UP:]


@pytest.fixture(scope="module")
def trained(
    tmp_path_factory: pytest.TempPathFactory,
    start_standing_agent: Callable[..., Any],
    eventually: Callable[..., Any],
) -> Trained:
    """Every scenario, trained in one process group beside one agent, until all steps are aligned."""
    out = tmp_path_factory.mktemp("out")
    agent = start_standing_agent(out / "node-a", "--linger-seconds", "600")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    done = subprocess.run(
        [*command, str(HERE / "training.py"), str(agent.directory), str(out), str(STEPS), *PLACES, "rotating"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "rank_exporter" not in done.stderr
    runs = [*PLACES, "rotating"]
    eventually(lambda: all(agent.value("training_aligned_steps_total", run=run) == STEPS for run in runs))
    return Trained(agent, out)


def test_rotating_straggler_costs_what_was_injected(trained: Trained) -> None:
    """Skew and tax are within 3 % of what the ranks slept, and each rank is last in a quarter of the steps."""
    slept, found = trained.slept("rotating"), trained.aligned("rotating")
    injected = slept.max(axis=1, keepdims=True) - slept
    skew = found.lateness.skew[:, Phase.INPUT_READY].sum() / 1e9
    assert skew == pytest.approx((slept.max(axis=1) - np.median(slept, axis=1)).sum(), rel=0.03)
    assert found.tax().gpu_seconds == pytest.approx(injected.sum(), rel=0.03)
    assert np.bincount(found.lateness.last, minlength=RANKS).tolist() == [len(slept) // RANKS] * RANKS


def test_p99_does_not_see_a_rotating_straggler(trained: Trained) -> None:
    """The ratio that compares the ranks' p99 shows next to nothing of what costs a quarter of the GPU time."""
    found = trained.aligned("rotating")
    p99 = np.percentile(found.ns[:, :, Phase.INPUT_READY], 99, axis=0)
    ratio = (p99.max() - np.median(p99)) / np.median(found.ns[:, :, Phase.STEP])
    share = found.tax().share
    assert share is not None
    assert share > 0.2
    assert ratio < share / 4


@pytest.mark.parametrize("place", PLACES)
def test_persistent_straggler_causes_all_of_the_delay(trained: Trained, place: str) -> None:
    """A rank that takes 20 % of the step longer holds, in its phase, all of the delay caused but 2 %."""
    blames = trained.aligned(place).blame()
    total = sum(blame.seconds for blame in blames)
    right = [blame for blame in blames if (blame.rank, blame.phase) == (SLOW_RANK, place)]
    assert sum(blame.seconds for blame in right) > 0.98 * total
    assert {blame.shard for blame in right} == {"shard-1" if place == "input_ready" else ""}


def test_metrics_say_the_same(trained: Trained) -> None:
    """The agent's counters hold what the analysis finds in the raw records."""
    agent = trained.agent
    for run in (*PLACES, "rotating"):
        found = align(load_agents([agent.url], run=run).segments)
        exposed = agent.value("training_exposed_wait_seconds_total", run=run)
        assert exposed == pytest.approx(found.tax().gpu_seconds)
        assert agent.value("training_aligned_ranks", run=run) == RANKS
        caused = agent.values("training_delay_caused_seconds_total", run=run)
        expected = {
            (blame.host, blame.phase, str(blame.rank), blame.shard): pytest.approx(blame.seconds)
            for blame in found.blame()
            if blame.seconds
        }
        assert caused == expected
        last = agent.values("training_last_rank_steps_total", run=run)
        assert sum(last.values()) == STEPS
        skew = agent.value("training_step_skew_seconds_sum", run=run, phase="input_ready")
        assert skew == pytest.approx(np.maximum(found.lateness.skew[:, Phase.INPUT_READY], 0).sum() / 1e9)
    assert agent.complaints == ""

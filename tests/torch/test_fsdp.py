"""Sharded models on real gloo ranks: what is waiting in them, and whom it blames."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rank_exporter.phases import IN_STEP, Phase

HERE = Path(__file__).parent
DELAY_NS = 30e6
STEPS = 10

Load = Callable[[str, int], Any]


def run(out: Path, launcher: tuple[str, ...], *names: str) -> Load:
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *launcher]
    environ = {**os.environ, "RANK_EXPORTER_DIR": str(out / "segments"), "RANK_EXPORTER_SERVE": "off"}
    done = subprocess.run(
        [sys.executable, *torchrun, str(HERE / "sharded.py"), str(out), *names],
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return lambda name, rank: np.load(out / f"{name}-{rank}.npz")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Two ranks that give their models to watch; a name with ! is trained without the exporter."""
    names = ("fsdp2-slow", "fsdp1-slow", "fsdp2", "fsdp2!", "fsdp1", "fsdp1!")
    return run(tmp_path_factory.mktemp("watched"), (), *names)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Two ranks under the launcher."""
    return run(tmp_path_factory.mktemp("launched"), ("-m", "rank_exporter"), "fsdp2-slow", "fsdp1-slow")


def median(found: Any, phase: Phase) -> float:
    return float(np.median(found["steps"]["ns"][2:, phase]))


def quick(found: Any, phase: Phase) -> float:
    """Of the quicker steps: what else runs on the machine only makes a phase longer."""
    return float(np.quantile(found["steps"]["ns"][2:, phase], 0.25))


@pytest.mark.parametrize("how", ["watched", "launched"])
def test_fully_shard_waits_in_collective_wait_alone(request: pytest.FixtureRequest, how: str) -> None:
    """A rank that computes for long shows it in forward; its peer, which gathers meanwhile, in collective_wait."""
    load = request.getfixturevalue(how)
    slow, victim = load("fsdp2-slow", 1), load("fsdp2-slow", 0)
    excess = {phase: quick(slow, phase) - quick(victim, phase) for phase in IN_STEP}
    assert excess.pop(Phase.FORWARD) > 0.8 * DELAY_NS
    del excess[Phase.COLLECTIVE_WAIT]
    assert max(map(abs, excess.values())) < 0.4 * DELAY_NS
    assert median(victim, Phase.COLLECTIVE_WAIT) - quick(slow, Phase.COLLECTIVE_WAIT) > 0.6 * DELAY_NS
    assert dict(slow["facts"].tolist())["waits_in"] == "collective_wait"


@pytest.mark.parametrize("how", ["watched", "launched"])
def test_fully_sharded_data_parallel_says_that_forward_and_backward_wait(
    request: pytest.FixtureRequest, how: str
) -> None:
    """The delay cannot be told from the wait for it, and the rank's facts say so."""
    load = request.getfixturevalue(how)
    for rank in (0, 1):
        found = load("fsdp1-slow", rank)
        assert dict(found["facts"].tolist())["waits_in"] == "forward,backward"
        assert (found["steps"]["ns"][:, Phase.COLLECTIVE_WAIT] == 0).all()
        assert median(found, Phase.FORWARD) + median(found, Phase.BACKWARD) > 0.8 * DELAY_NS


@pytest.mark.parametrize("how", ["watched", "launched"])
@pytest.mark.parametrize("name", ["fsdp2-slow", "fsdp1-slow"])
def test_every_step_of_a_sharded_model_has_its_phases_once(request: pytest.FixtureRequest, how: str, name: str) -> None:
    """Units within the model are not timed beside it, and phases add up to the step."""
    for rank in (0, 1):
        found = request.getfixturevalue(how)(name, rank)
        ns = found["steps"]["ns"]
        assert len(ns) == STEPS
        assert (ns[:, : Phase.STEP].sum(axis=1) == ns[:, Phase.STEP]).all()
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
            assert (ns[:, phase] > 0).all(), phase.label
        assert found["models"] == 1


@pytest.mark.parametrize("name", ["fsdp1", "fsdp2"])
def test_sharded_models_train_the_same_bits_with_and_without(watched: Load, name: str) -> None:
    """The parameters of each shard do not differ in a bit."""
    for rank in (0, 1):
        assert watched(name, rank)["digest"] == watched(f"{name}!", rank)["digest"]

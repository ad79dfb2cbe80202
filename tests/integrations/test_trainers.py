"""Trainers as people use them, recorded by a callback, a line, or nothing at all: what their segments hold."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rank_exporter.digest import of_range
from rank_exporter.phases import IN_STEP, Phase
from rank_exporter.segment.layout import Word

HERE = Path(__file__).parent
DELAY_NS = 40e6
PER_STEP_NS = 2 * DELAY_NS
"""Two slow batches to a step."""
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
LAUNCHER = ("-m", "rank_exporter")
STEPS = {"huggingface": 7, "accelerate": 8, "lightning": 8, "fabric": 8}
PAUSED = {
    "huggingface": ([3, 6], [5]),
    "accelerate": ([4], [4]),
    "fabric": ([4], [4]),
    "lightning": ([2, 4, 6], [2, 4, 6]),
}
"""After how many steps there was an evaluation, and a checkpoint, before training went on."""
SLOW = [f"{name}-slow" for name in STEPS]

Load = Callable[[str, int], Any]


def run(out: Path, *command: str) -> Load:
    script = [str(HERE / "trainers.py"), str(out)]
    environ = {
        **os.environ,
        "RANK_EXPORTER_DIR": str(out / "segments"),
        "RANK_EXPORTER_SERVE": "off",
        "HF_HUB_OFFLINE": "1",
    }
    place = command.index("--")
    arguments = [*command[:place], *script, *command[place + 1 :]]
    done = subprocess.run(
        [sys.executable, *arguments], env=environ, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-9000:]
    assert "rank_exporter" not in done.stderr, done.stderr[-9000:]
    return lambda name, rank: np.load(out / f"{name}-{rank}.npz")


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Two gloo ranks, each trainer with its callback or line; a name with ! is trained without the exporter."""
    names = [*SLOW, "dispatched", "by_hand", "huggingface", "huggingface!", "accelerate", "accelerate!"]
    return run(tmp_path_factory.mktemp("two"), *TORCHRUN, "--", *names)


@pytest.fixture(scope="module")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """One process under the launcher: no trainer is told of the exporter."""
    return run(tmp_path_factory.mktemp("launched"), *LAUNCHER, "--", *STEPS)


@pytest.fixture(scope="module")
def launched_ranks(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Two ranks under the launcher."""
    return run(tmp_path_factory.mktemp("ranks"), *TORCHRUN, *LAUNCHER, "--", *SLOW)


def usual(found: Any, phase: Phase) -> Any:
    """Ns of each step, without the first steps, in which models and buckets are built, and those of an epoch."""
    ns = found["steps"]["ns"][2:]
    return ns[ns[:, Phase.FIRST_BATCH] == 0, phase]


def median(found: Any, phase: Phase) -> float:
    """Of the usual steps."""
    return float(np.median(usual(found, phase)))


def quick(found: Any, phase: Phase) -> float:
    """Of the quicker of them: what else runs on the machine only makes a phase longer."""
    return float(np.quantile(usual(found, phase), 0.25))


def blame(load: Load, name: str) -> None:
    slow, victim = load(name, 1), load(name, 0)
    excess = {phase: quick(slow, phase) - quick(victim, phase) for phase in IN_STEP}
    assert excess.pop(Phase.INPUT_READY) > 0.9 * PER_STEP_NS
    del excess[Phase.COLLECTIVE_WAIT]
    assert max(map(abs, excess.values())) < 0.3 * PER_STEP_NS
    assert median(victim, Phase.COLLECTIVE_WAIT) - quick(slow, Phase.COLLECTIVE_WAIT) > 0.5 * PER_STEP_NS
    assert quick(victim, Phase.INPUT_READY) < 0.3 * PER_STEP_NS


@pytest.mark.parametrize("name", SLOW)
def test_slow_loader_is_input_on_its_rank_and_wait_on_the_other(two_ranks: Load, name: str) -> None:
    """Look-ahead, gathers and broadcasts of the trainer move no delay: input on the slow rank, a wait on its peer."""
    blame(two_ranks, name)


@pytest.mark.parametrize("name", SLOW)
def test_launcher_blames_alike(launched_ranks: Load, name: str) -> None:
    """Without a word in the script, the same delay is found in the same places."""
    blame(launched_ranks, name)


@pytest.mark.parametrize("name", ["accelerate", "lightning", "fabric"])
def test_samples_are_accounted_for(two_ranks: Load, name: str) -> None:
    """The second epoch was completed, and both ranks together took each of its rows once, however they were dealt."""
    epochs = [two_ranks(f"{name}-slow", rank)["words"][Word.ENDED_EPOCH : Word.DUPLICATES].tolist() for rank in (0, 1)]
    assert {epoch[0] for epoch in epochs} == {2}
    assert [(epoch[1:4], epoch[5]) for epoch in epochs] == [([32, 0, 32], 1)] * 2
    assert sum(epoch[4] for epoch in epochs) % 2**64 == of_range(64)


@pytest.mark.parametrize(("how", "name"), [(how, name) for how in ("two_ranks", "launched") for name in STEPS])
def test_steps_phases_and_samples(request: pytest.FixtureRequest, how: str, name: str) -> None:
    """A step is one of the optimizer's, over two batches of four, with every phase of training and none twice."""
    found = request.getfixturevalue(how)(f"{name}-slow" if how == "two_ranks" else name, 0)["steps"]
    assert len(found) == STEPS[name]
    assert found["samples"].tolist() == [8] * STEPS[name]
    assert (found["ns"][:, : Phase.STEP].sum(axis=1) == found["ns"][:, Phase.STEP]).all()
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.INPUT_READY):
        assert (found["ns"][:, phase] > 0).all(), phase.label
    assert ((found["ns"][:, Phase.COLLECTIVE_WAIT] > 0).all()) == (how == "two_ranks")
    if name in ("huggingface", "lightning"):
        assert found["tokens"].tolist() == [8 * 6] * STEPS[name]


@pytest.mark.parametrize("how", ["two_ranks", "launched"])
@pytest.mark.parametrize("name", STEPS)
def test_evaluation_and_checkpoints_stay_out(request: pytest.FixtureRequest, how: str, name: str) -> None:
    """A slow evaluation within training is eval, saving is checkpoint, and neither is in a phase of the step."""
    found = request.getfixturevalue(how)(f"{name}-slow" if how == "two_ranks" else name, 0)["steps"]["ns"]
    evaluated, saved = PAUSED[name]
    ns = found[1:]  # what came before the first step, such as a sanity check or what ran before, is not in question
    assert (ns[:, Phase.EVAL].nonzero()[0] + 1).tolist() == evaluated
    assert (ns[:, Phase.CHECKPOINT].nonzero()[0] + 1).tolist() == saved
    # Each moment is in one phase: what is in eval is in no phase of the step, and all that it slept is in eval.
    batches = 1 if name == "huggingface" and how == "two_ranks" else 2
    assert ns[ns[:, Phase.EVAL] > 0, Phase.EVAL].min() >= batches * DELAY_NS


def test_dispatched_batches_show_the_same_wait_on_every_rank(two_ranks: Load) -> None:
    """Where rank 0 reads for all, input is as long on the rank that reads nothing, and no rank stands out."""
    reader, other = two_ranks("dispatched", 0), two_ranks("dispatched", 1)
    assert len(reader["steps"]) == len(other["steps"]) == 8
    for found in (reader, other):
        # Two batches of the stream make one for each rank.
        assert median(found, Phase.INPUT_READY) > 0.9 * PER_STEP_NS
        assert (found["steps"]["ns"][:, Phase.FIRST_BATCH] > 0).nonzero()[0].tolist() == [0, 7]
    for phase in IN_STEP:
        assert abs(quick(reader, phase) - quick(other, phase)) < 0.3 * PER_STEP_NS, phase.label


def test_what_trainers_prepared_can_be_given_to_watch(two_ranks: Load) -> None:
    """Accelerate's and Fabric's loaders, optimizers and models are timed within their wrappers, and a model that was
    given without its DistributedDataParallel shows its wait all the same."""
    for rank in (0, 1):
        found = two_ranks("by_hand", rank)
        assert len(found["steps"]) == 8
        for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.COLLECTIVE_WAIT, Phase.OPTIMIZER):
            assert (found["steps"]["ns"][:, phase] > 0).all(), phase.label
        assert dict(found["facts"].tolist())["backend"] == "gloo"


@pytest.mark.parametrize("name", ["huggingface", "accelerate"])
def test_trainers_train_the_same_bits_with_and_without(two_ranks: Load, name: str) -> None:
    """Parameters after training do not differ in a bit, on either rank."""
    for rank in (0, 1):
        assert two_ranks(name, rank)["digest"] == two_ranks(f"{name}!", rank)["digest"]

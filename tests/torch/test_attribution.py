"""Real gloo ranks, one of them slow in a known place: whom and what the recorded phases blame."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rank_exporter.analysis.observation import judge, observe
from rank_exporter.phases import IN_STEP, Phase
from rank_exporter.segment.records import RankSteps

HERE = Path(__file__).parent
DELAY_NS = 50e6
STEPS = 32

Load = Callable[[str, int], Any]


def _before_others() -> None:
    """Where we may: what else runs on the machine makes one rank slower than the other."""
    with contextlib.suppress(PermissionError):
        os.nice(-10)


def _run(world: int, out: Path, *names: str) -> Load:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    done = subprocess.run(
        [*command, str(HERE / "scenarios.py"), str(out), *names],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        preexec_fn=_before_others,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return lambda name, rank: np.load(out / f"{name}-{rank}.npz")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Load:
    """Two ranks through every scenario; a name with ! is run without the exporter."""
    return _run(
        2,
        tmp_path_factory.mktemp("world2"),
        *("balanced", "balanced!", "input_ready", "forward", "backward", "optimizer", "other"),
        *("accumulate", "accumulate!", "evaluation", "workers", "explicit", "alternate"),
    )


def typical(steps: Any, phase: Phase) -> float:
    """Median ns per step, the first steps of the run left out."""
    return float(np.median(steps["steps"]["ns"][3:, phase]))


def quick(steps: Any, phase: Phase) -> float:
    """Likewise of the quicker steps: what else runs on the machine only makes a phase longer."""
    return float(np.quantile(steps["steps"]["ns"][3:, phase], 0.2))


@pytest.mark.parametrize("slow", [Phase.INPUT_READY, Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.OTHER])
def test_delay_is_booked_to_the_slow_rank_and_phase(recorded: Load, slow: Phase) -> None:
    """The slow rank shows its delay in its phase; the other rank shows it as waiting, and nowhere else."""
    slow_rank, victim = recorded(slow.label, 1), recorded(slow.label, 0)
    excess = {phase: quick(slow_rank, phase) - quick(victim, phase) for phase in IN_STEP}
    assert excess.pop(slow) > 0.9 * DELAY_NS
    del excess[Phase.COLLECTIVE_WAIT]
    assert max(excess.values()) < 0.2 * DELAY_NS
    assert typical(victim, Phase.COLLECTIVE_WAIT) > 0.7 * DELAY_NS
    assert quick(slow_rank, Phase.COLLECTIVE_WAIT) < 0.3 * DELAY_NS


def verdict(load: Load, name: str) -> Any:
    """What is said of the two ranks of a scenario."""
    ranks = []
    for rank in (0, 1):
        found = load(name, rank)
        ranks.append(
            RankSteps(
                run=name,
                rank=rank,
                world_size=2,
                host=f"host-{rank}",
                generation=1,
                started_unix_ns=1,
                shards=tuple(found["shards"].tolist()),
                records=found["steps"],
                waits_in=dict(found["facts"].tolist()).get("waits_in", ""),
            )
        )
    return judge(observe(ranks, source=name)).verdict


@pytest.mark.parametrize(
    ("slow", "kind"),
    [
        (Phase.INPUT_READY, "INPUT STRAGGLER"),
        (Phase.FORWARD, "COMPUTE STRAGGLER"),
        (Phase.BACKWARD, "COMPUTE STRAGGLER"),
        (Phase.OPTIMIZER, "COMPUTE STRAGGLER"),
        (Phase.OTHER, "COMPUTE STRAGGLER"),
    ],
)
def test_the_verdict_names_the_slow_rank_and_its_phase(recorded: Load, slow: Phase, kind: str) -> None:
    """Of real ranks: kind, rank, phase, host, and the shard that the rank reads."""
    found = verdict(recorded, slow.label)
    assert (found.kind, found.rank, found.phase) == (kind, 1, slow.label), found
    assert (found.host, found.shard, found.pattern) == ("host-1", "shard-1", "persistent")


def test_ranks_that_take_turns_are_not_blamed(recorded: Load) -> None:
    """Each of two ranks holds the other up for three steps in turn: the cost is said, and no rank is named."""
    found = verdict(recorded, "alternate")
    assert (found.kind, found.rank) == ("ROTATING STRAGGLER", None), found


@pytest.mark.parametrize("name", ["balanced", "accumulate", "evaluation", "workers", "explicit"])
def test_a_run_without_a_straggler_names_no_rank(recorded: Load, name: str) -> None:
    """Nobody is slow, or nobody can tell who is: slow evaluation, starting workers and hidden waits blame none."""
    assert verdict(recorded, name).rank is None


def test_every_step_is_recorded_and_adds_up(recorded: Load) -> None:
    """Two epochs of sixteen batches are thirty-two steps, whose phases add up to them and to the samples seen."""
    for name in ("balanced", "input_ready", "workers", "explicit", "evaluation"):
        steps = recorded(name, 0)["steps"]
        assert steps["step"].tolist() == list(range(1, STEPS + 1)), name
        assert (steps["ns"][:, : Phase.STEP].sum(axis=1) == steps["ns"][:, Phase.STEP]).all(), name
        assert steps["samples"].sum() == STEPS * 8, name


def test_first_batch_of_each_epoch_is_no_input(recorded: Load) -> None:
    """Building the iterator, its workers and their first batch stand apart, in both epochs, workers or not."""
    for name in ("balanced", "workers", "explicit"):
        ns = recorded(name, 0)["steps"]["ns"]
        assert (ns[:, Phase.FIRST_BATCH] > 0).nonzero()[0].tolist() == [0, 16], name
        assert (ns[:, Phase.INPUT_READY] > 0).sum() == STEPS - 2, name
    first = recorded("workers", 0)["steps"]["ns"][[0, 16], Phase.FIRST_BATCH]
    assert (first > 5e6).all()


def test_accumulation_makes_one_step_of_four_fetches(recorded: Load) -> None:
    """A step has four fetches, forwards and backwards, and one collective wait: micro-steps do not synchronise."""
    accumulated, plain = recorded("accumulate", 0)["steps"], recorded("balanced", 0)["steps"]
    assert len(accumulated) == STEPS // 4
    assert accumulated["samples"].tolist() == [32] * 8
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        # The fastest of either: what else runs on the machine only makes a step longer.
        assert accumulated["ns"][:, phase].min() > 2 * plain["ns"][:, phase].min()


def test_evaluation_stays_out_of_the_steps(recorded: Load) -> None:
    """A slow evaluation every other step is recorded as such where the watched model runs, and in no training phase."""
    ns = recorded("evaluation", 0)["steps"]["ns"]
    assert (ns[2::2, Phase.EVAL] > 0).all()
    assert (ns[1::2, Phase.EVAL] == 0).all()
    for phase in (Phase.INPUT_READY, Phase.FORWARD):
        assert ns[2::2, phase].min() < 0.5 * DELAY_NS


def test_explicit_phases_agree_with_hooks(recorded: Load) -> None:
    """The explicit loop measures what it says; its backward contains the wait, which only the hooks can part."""
    ns = recorded("explicit", 0)["steps"]["ns"]
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert (ns[:, phase] > 0).all()
    assert (ns[:, Phase.COLLECTIVE_WAIT] == 0).all()


def test_shard_and_facts_are_recorded(recorded: Load) -> None:
    """Which shard a rank reads and what it trains with are in its segment."""
    found = recorded("balanced", 1)
    assert found["shards"].tolist() == ["shard-1"]
    facts = dict(found["facts"].tolist())
    assert (facts["backend"], facts["device"], facts["clock"]) == ("gloo", "cpu", "host")
    assert facts["framework"].startswith("torch ")


@pytest.mark.parametrize("name", ["balanced", "accumulate"])
def test_two_ranks_train_the_same_bits_with_and_without(recorded: Load, name: str) -> None:
    """Parameters after training and the order of samples do not differ in a bit."""
    for rank in (0, 1):
        with_exporter, without = recorded(name, rank), recorded(f"{name}!", rank)
        assert with_exporter["digest"] == without["digest"]
        assert with_exporter["order"] == without["order"]


def test_three_ranks_train_the_same_bits_with_and_without(tmp_path: Path) -> None:
    """With three ranks, where dividing and multiplying by a third differ, nothing changes either."""
    load = _run(3, tmp_path, "balanced", "balanced!")
    for rank in range(3):
        assert load("balanced", rank)["digest"] == load("balanced!", rank)["digest"]
        assert load("balanced", rank)["order"] == load("balanced!", rank)["order"]

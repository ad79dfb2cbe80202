"""The arithmetic of one step, under a clock that the test turns."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from rank_exporter.phases import IN_STEP, Phase
from rank_exporter.segment.layout import unpack_phase
from rank_exporter.timeline import Timeline


class Rig:
    """A timeline whose clock moves only when told to, and the steps it committed."""

    def __init__(self) -> None:
        self.now = 1_000_000
        self.steps: list[dict[str, int]] = []
        self.ends: list[int] = []
        self.live = [0]
        self.timeline = Timeline(self._commit, live=self.live, live_index=0, clock=lambda: self.now)

    def _commit(self, spent: list[int], ended: int) -> None:
        self.steps.append({phase.label: ns for phase, ns in zip(Phase, spent, strict=True) if ns})
        self.ends.append(ended)

    def during(self, phase: Phase, ns: int) -> None:
        self.timeline.enter(phase)
        self.now += ns
        self.timeline.leave(phase)

    def iteration(self, fetch: int = 10, optimize: bool = True, between: int = 0) -> None:
        self.timeline.advance()
        self.during(Phase.INPUT_READY, fetch)
        self.during(Phase.FORWARD, 20)
        self.during(Phase.BACKWARD, 30)
        self.during(Phase.COLLECTIVE_WAIT, 5)
        if optimize:
            self.during(Phase.OPTIMIZER, 7)
        self.now += between


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_phases_and_other_add_up_to_the_step(rig: Rig) -> None:
    """What no phase claims between two optimizer ends is other, and belongs to the later step."""
    rig.now += 999
    rig.iteration(between=100)
    rig.iteration(between=3)
    rig.iteration()
    assert rig.steps == [
        {"input_ready": 10, "forward": 20, "backward": 30, "collective_wait": 5, "optimizer": 7, "step": 72},
        {
            "input_ready": 10,
            "forward": 20,
            "backward": 30,
            "collective_wait": 5,
            "optimizer": 7,
            "other": 100,
            "step": 172,
        },
    ]
    assert rig.ends[1] - rig.ends[0] == 172


def test_accumulated_fetches_are_one_observation(rig: Rig) -> None:
    """Four fetches before one optimizer step are one step with their sum."""
    for _ in range(3):
        rig.iteration(optimize=False)
    rig.iteration()
    rig.timeline.advance()
    assert rig.steps == [
        {"input_ready": 40, "forward": 80, "backward": 120, "collective_wait": 20, "optimizer": 7, "step": 267}
    ]


def test_two_optimizers_in_an_iteration_end_one_step(rig: Rig) -> None:
    """The step ends with the last optimizer before new input is asked for."""
    rig.iteration(between=4)
    rig.during(Phase.FORWARD, 1)
    rig.during(Phase.BACKWARD, 2)
    rig.during(Phase.OPTIMIZER, 3)
    rig.timeline.advance()
    assert rig.steps == [
        {
            "input_ready": 10,
            "forward": 21,
            "backward": 32,
            "collective_wait": 5,
            "optimizer": 10,
            "other": 4,
            "step": 82,
        }
    ]


def test_phase_within_a_phase_suspends_it(rig: Rig) -> None:
    """A closure's forward and backward within the optimizer are not counted twice."""
    rig.timeline.advance()
    rig.timeline.enter(Phase.OPTIMIZER)
    rig.now += 1
    rig.during(Phase.FORWARD, 20)
    rig.now += 2
    rig.during(Phase.BACKWARD, 30)
    rig.timeline.leave(Phase.OPTIMIZER)
    rig.timeline.advance()
    assert rig.steps == [{"forward": 20, "backward": 30, "optimizer": 3, "step": 53}]


@pytest.mark.parametrize("beside", [Phase.EVAL, Phase.CHECKPOINT, Phase.FIRST_BATCH])
def test_what_lies_beside_the_step_keeps_out_of_it(rig: Rig, beside: Phase) -> None:
    """Fetches, forwards and moves within evaluation and the like leave the training step alone."""
    rig.iteration()
    rig.timeline.enter(beside)
    rig.timeline.advance()
    rig.during(Phase.INPUT_READY, 1000)
    rig.during(Phase.FORWARD, 1000)
    rig.during(beside, 500)
    rig.timeline.leave(beside)
    rig.iteration()
    rig.timeline.advance()
    assert [step["step"] for step in rig.steps] == [72, 72]
    assert rig.steps[1][beside.label] == 2500


def test_without_an_optimizer_a_forced_move_ends_the_step(rig: Rig) -> None:
    """An explicit loop says itself when its step is over."""
    rig.timeline.advance(force=True)
    rig.during(Phase.FORWARD, 20)
    rig.now += 5
    rig.timeline.advance(force=True)
    rig.timeline.advance(force=False)
    assert rig.steps == [{"forward": 20, "other": 5, "step": 25}]


def test_missing_and_stray_leaves_are_tolerated(rig: Rig) -> None:
    """A hook that never ran cannot unbalance what follows."""
    rig.timeline.advance()
    rig.timeline.leave(Phase.BACKWARD)
    rig.timeline.enter(Phase.FORWARD)
    rig.now += 10
    rig.timeline.enter(Phase.BACKWARD)
    rig.now += 20
    rig.timeline.leave(Phase.FORWARD)
    rig.now += 1
    rig.timeline.enter(Phase.FORWARD)
    rig.timeline.enter(Phase.BACKWARD)
    rig.now += 2
    rig.timeline.unwind()
    rig.now += 4
    rig.during(Phase.OPTIMIZER, 3)
    rig.timeline.advance()
    assert rig.steps == [{"forward": 10, "backward": 22, "optimizer": 3, "other": 5, "step": 40}]


def test_relabelled_time_counts_as_what_it_turned_out_to_be(rig: Rig) -> None:
    """The fetch that finds the loader exhausted is no input."""
    rig.iteration()
    rig.timeline.advance()
    rig.timeline.enter(Phase.INPUT_READY)
    rig.now += 500
    rig.timeline.become(Phase.FIRST_BATCH)
    rig.timeline.leave(Phase.FIRST_BATCH)
    rig.iteration()
    rig.timeline.advance()
    assert rig.steps[1]["input_ready"] == 10
    assert rig.steps[1]["first_batch"] == 500


def test_phase_in_progress_is_published_with_its_start(rig: Rig) -> None:
    """A reader can tell what the rank does now and since when, to 256 ns."""
    rig.timeline.advance()
    rig.now += 10_000
    rig.timeline.enter(Phase.COLLECTIVE_WAIT)
    entered = rig.now
    rig.now += 5_000_000_000
    phase, since = unpack_phase(rig.live[0])
    assert phase == Phase.COLLECTIVE_WAIT
    assert 0 <= entered - since < 256
    rig.timeline.leave(Phase.COLLECTIVE_WAIT)
    assert unpack_phase(rig.live[0])[0] == Phase.OTHER


@pytest.mark.parametrize("seed", range(20))
def test_no_time_is_lost_or_counted_twice(seed: int) -> None:
    """Whatever order hooks fire in, all phases of all steps add up to the time that passed."""
    chance = random.Random(seed)
    rig = Rig()
    rig.timeline.advance()
    began = rig.now
    actions: list[Callable[[Phase], None]] = [rig.timeline.enter, rig.timeline.leave, rig.timeline.become]
    for _ in range(400):
        rig.now += chance.randrange(1000)
        if chance.random() < 0.1:
            rig.timeline.advance()
        elif chance.random() < 0.05:
            rig.timeline.unwind()
        else:
            chance.choices(actions, [10, 10, 1])[0](chance.choice([phase for phase in Phase if phase != Phase.STEP]))
    rig.timeline.unwind()
    rig.timeline.become(Phase.OTHER)
    rig.during(Phase.OPTIMIZER, 1)
    ended = rig.now
    rig.timeline.advance()
    counted = sum(ns for step in rig.steps for name, ns in step.items() if name != "step")
    assert counted == ended - began
    for step in rig.steps:
        assert step.get("step", 0) == sum(step.get(phase.label, 0) for phase in IN_STEP)

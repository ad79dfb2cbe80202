"""The window of steps that are waited for, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rank_exporter.agent.alignment import Window, capacity_for
from rank_exporter.lateness import lateness
from rank_exporter.phases import Phase
from rank_exporter.segment.records import RankSteps


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def window(clock: Clock) -> Callable[..., Window]:
    return lambda ranks, **options: Window(ranks, patience_seconds=8, clock=clock, **options)


def steps_of(window: Window) -> list[int]:
    return [int(step) for batch in window.take() for step in batch.steps]


def test_a_step_is_over_once_all_ranks_have_told_it(window: Any, simulate: Callable[..., list[RankSteps]]) -> None:
    """Steps come out in order, once, as far as every rank has told them, however they arrive."""
    made, ranks = window(3), simulate(10, 3, input_ready=10, optimizer=5)
    made.add(0, ranks[0].records)
    made.add(2, ranks[2].records[:4])
    assert steps_of(made) == []
    made.add(1, ranks[1].records[:6])
    assert steps_of(made) == [1, 2, 3, 4]
    made.add(2, ranks[2].records[2:8])
    assert steps_of(made) == [5, 6]
    assert [made.told(rank) for rank in range(3)] == [10, 6, 8]
    made.add(1, ranks[1].records)
    made.add(2, ranks[2].records)
    assert steps_of(made) == [7, 8, 9, 10]
    assert steps_of(made) == []


def test_batches_equal_the_whole(window: Any, simulate: Callable[..., list[RankSteps]]) -> None:
    """Piece by piece the comparison is the same as at once, the optimizer before each step included."""
    rng = np.random.default_rng(0)
    ranks = simulate(50, 3, input_ready=rng.uniform(1, 9, (50, 3)), optimizer=rng.uniform(1, 9, (50, 3)))
    made, found = window(3), []
    for begin in range(0, 50, 7):
        for one in ranks:
            made.add(one.rank, one.records[begin : begin + 7])
        found += [batch.lateness for batch in made.take()]
    ns = np.stack([one.records["ns"] for one in ranks], axis=1).astype(np.int64)
    before = np.concatenate([np.full((1, 3), -1), ns[:-1, :, Phase.OPTIMIZER]])
    whole = lateness(ns, before)
    for name in ("ready", "last", "caused", "phase", "exposed", "skew"):
        assert (np.concatenate([getattr(one, name) for one in found]) == getattr(whole, name)).all(), name


def test_a_silent_rank_is_given_up_and_taken_back(
    window: Any, clock: Clock, simulate: Callable[..., list[RankSteps]]
) -> None:
    """A rank that tells nothing holds its peers up for the patience once; caught up, it is waited for again."""
    made, ranks = window(3), simulate(30, 3, input_ready=10)
    for rank in (0, 1):
        made.add(rank, ranks[rank].records[:10])
    assert steps_of(made) == []
    clock.now = 7.9
    assert steps_of(made) == []
    clock.now = 8.0
    batches = list(made.take())
    assert [batch.ranks.tolist() for batch in batches] == [[0, 1]]
    assert made.missing == [2]
    for rank in (0, 1):
        made.add(rank, ranks[rank].records[:20])
    assert steps_of(made) == list(range(11, 21))
    for one in ranks:
        made.add(one.rank, one.records[:24])
    assert [batch.ranks.tolist() for batch in made.take()] == [[0, 1, 2]]
    assert made.missing == []
    made.add(0, ranks[0].records)
    assert steps_of(made) == []


def test_half_of_the_ranks_make_no_step(window: Any, clock: Clock, simulate: Callable[..., list[RankSteps]]) -> None:
    """Two of four ranks are no majority, however long they wait."""
    made, ranks = window(4), simulate(5, 4, input_ready=10)
    for rank in (0, 1):
        made.add(rank, ranks[rank].records)
    for clock.now in (0.0, 100.0):
        assert steps_of(made) == []


def test_lost_steps_are_passed_over(window: Any, clock: Clock, simulate: Callable[..., list[RankSteps]]) -> None:
    """Where most ranks no longer have a step, those that follow are aligned after the patience."""
    made, ranks = window(2), simulate(30, 2, input_ready=10)
    for one in ranks:
        made.add(one.rank, np.delete(one.records, slice(5, 9)))
    assert steps_of(made) == [1, 2, 3, 4, 5]
    clock.now = 8.0
    assert steps_of(made) == list(range(10, 31))


def test_a_window_left_behind_jumps_to_what_most_ranks_have(
    window: Any, clock: Clock, simulate: Callable[..., list[RankSteps]]
) -> None:
    """Where all rings begin beyond the window, it goes on from there; one rank alone that says so moves nothing."""
    made, ranks = window(3), simulate(10, 3, first=1_000_000, input_ready=10)
    future = simulate(10, 3, first=10**15, input_ready=10)[0]
    made.add(0, future.records)
    assert (steps_of(made), made.next_step) == ([], 1)
    for one in ranks[1:]:
        made.add(one.rank, one.records)
    assert (steps_of(made), made.next_step) == ([], 1_000_000)
    for one in (future, *ranks[1:]):
        made.add(one.rank, one.records)
    clock.now = 8.0
    assert steps_of(made) == []
    clock.now = 16.0
    assert steps_of(made) == list(range(1_000_000, 1_000_010))


def test_what_cannot_be_true_is_not_taken(window: Any, simulate: Callable[..., list[RankSteps]]) -> None:
    """Steps beyond the window, and records that make no sense, leave the rank where it was."""
    made, ranks = window(2), simulate(10, 2, input_ready=10)
    made.add(0, simulate(10, 2, first=10**12, input_ready=10)[0].records)
    nonsense = ranks[1].records.copy()
    nonsense["ns"][:, Phase.STEP] = 1
    made.add(1, nonsense)
    assert (made.told(0), made.told(1)) == (0, 0)
    for one in ranks:
        made.add(one.rank, one.records)
    assert steps_of(made) == list(range(1, 11))


@pytest.mark.parametrize("ranks", [1, 8, 512, 4096, 100_000])
def test_memory_is_bounded(ranks: int) -> None:
    """A window holds at most 2,048 steps, and of large worlds as many as fit."""
    capacity = capacity_for(ranks)
    assert 64 <= capacity <= 2048
    assert capacity == 64 or capacity * ranks * 8 * (len(Phase) + 2) <= 16 << 20

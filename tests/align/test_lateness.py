"""The arithmetic of lateness on small tables that can be checked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rank_exporter.lateness import UNKNOWN, lateness, median_rank
from rank_exporter.phases import IN_STEP, Phase

MS = 1_000_000


def table(*steps):
    """(S, R, phases) in ns from a list of ranks per step, each ms by phase."""
    ns = np.zeros((len(steps), len(steps[0]), len(Phase)), dtype=np.int64)
    for number, ranks in enumerate(steps):
        for rank, phases in enumerate(ranks):
            for name, ms in phases.items():
                ns[number, rank, Phase[name.upper()]] = ms * MS
    ns[:, :, Phase.STEP] = ns[:, :, IN_STEP].sum(axis=2)
    return ns


def test_median_is_of_two_the_lower_and_leaves_out_the_unobserved():
    """Three or more have an ordinary median; of two the other one counts; zeros count only where they are observed."""
    values = np.array([[3, 1, 2, 10]])
    assert median_rank(values).tolist() == [2]
    assert median_rank(values[:, :3]).tolist() == [2]
    assert median_rank(values[:, ::3]).tolist() == [3]
    assert median_rank(values[:, :1]).tolist() == [3]
    seen = np.array([[True, False, True, True]])
    assert median_rank(values, seen).tolist() == [3]
    assert median_rank(values, seen & False).tolist() == [0]


def test_ready_runs_from_collective_to_collective():
    """The optimizer of the step before counts towards readiness, that of the step itself does not."""
    ns = table([{"other": 1, "input_ready": 10, "backward": 4, "collective_wait": 7, "optimizer": 3, "eval": 100}] * 3)
    found = lateness(ns, np.full((1, 3), 2 * MS))
    assert (found.ready == (2 + 1 + 10 + 4 + 100) * MS).all()
    unknown = np.array([[2 * MS, UNKNOWN, 2 * MS]])
    assert (lateness(ns, unknown).ready == (1 + 10 + 4 + 100) * MS).all()


@pytest.mark.parametrize(
    "phase", ["input_ready", "h2d", "forward", "backward", "other", "first_batch", "eval", "checkpoint"]
)
def test_last_is_who_waits_least_and_blame_goes_to_its_largest_excess(phase):
    """The rank that waits least is the last, by its readiness beyond the median, in the phase that exceeds most."""
    base = {"input_ready": 10, "h2d": 1, "forward": 5, "backward": 5, "other": 2, "optimizer": 3}
    slow = {**base, phase: base.get(phase, 0) + 40, "collective_wait": 1}
    quick = {**base, "collective_wait": 41}
    found = lateness(table([quick, quick, slow, quick]), np.full((1, 4), 3 * MS))
    assert found.last.tolist() == [2]
    assert found.caused.tolist() == [40 * MS]
    assert [Phase(number).label for number in found.phase] == [phase]
    assert found.exposed.tolist() == [120 * MS]
    assert found.skew[0, Phase[phase.upper()]] == 40 * MS


def test_optimizer_is_blamed_in_the_step_that_it_delays():
    """A slow optimizer delays the collective of the next step, and is told apart from the next step's own phases."""
    quick = {"input_ready": 10, "optimizer": 3, "collective_wait": 21}
    slow = {"input_ready": 10, "optimizer": 23, "collective_wait": 1}
    found = lateness(table([quick, slow, quick]), np.array([[3 * MS, 23 * MS, 3 * MS]]))
    assert (found.last.tolist(), found.caused.tolist()) == ([1], [20 * MS])
    assert Phase(int(found.phase[0])) is Phase.OPTIMIZER


def test_without_waits_the_greatest_readiness_is_last():
    """Loops that cannot tell waiting from backward are compared by readiness alone, and expose no wait."""
    found = lateness(table([{"input_ready": 10}, {"input_ready": 30}]), np.full((1, 2), UNKNOWN))
    assert (found.last.tolist(), found.caused.tolist(), found.exposed.tolist()) == ([1], [20 * MS], [0])


def test_a_rank_that_fetches_nothing_does_not_pull_the_median_down():
    """Where one rank reads for all the others, its input is no excess over ranks that read nothing."""
    ranks = [{"input_ready": 50, "collective_wait": 5}, *[{"other": 49, "collective_wait": 6}] * 3]
    found = lateness(table(ranks), np.zeros((1, 4), dtype=np.int64))
    assert found.skew[0, Phase.INPUT_READY] == 0
    assert found.skew[0, Phase.EVAL] == UNKNOWN
    assert found.caused.tolist() == [1 * MS]


def test_who_alone_saves_a_checkpoint_is_late_by_all_of_it():
    """Ranks that save nothing have done so in no time: the one that does is late by its whole checkpoint."""
    ranks = [{"forward": 5, "checkpoint": 900, "collective_wait": 1}, *[{"forward": 5, "collective_wait": 901}] * 3]
    found = lateness(table(ranks), np.zeros((1, 4), dtype=np.int64))
    assert (found.caused.tolist(), Phase(int(found.phase[0]))) == ([900 * MS], Phase.CHECKPOINT)


def test_a_single_rank_delays_nobody():
    """A world of one has no one to wait for it."""
    found = lateness(table([{"input_ready": 10, "collective_wait": 1}]), np.zeros((1, 1), dtype=np.int64))
    assert (found.caused.tolist(), found.exposed.tolist(), found.last.tolist()) == ([0], [0], [0])

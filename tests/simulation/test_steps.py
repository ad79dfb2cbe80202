"""Simulated steps are what their description says."""

from __future__ import annotations

import numpy as np

from rank_exporter.phases import IN_STEP, Phase

from .run import Run, Slow
from .steps import simulate


def _together(run: Run, until: float) -> tuple[np.ndarray, np.ndarray]:
    parts = list(simulate(run, until))
    return np.concatenate([part.ns for part in parts]), np.concatenate([part.ends for part in parts])


def test_phases_add_up_to_the_step_and_steps_to_the_time() -> None:
    """A step lasts from the end of the one before to its own end, whatever is slow."""
    late = Slow(phase=Phase.FORWARD, by=0.5, ranks=(1,), period=20, lasts=7)
    ns, ends = _together(Run(run="a", ranks=3, slow=(late,)), 300)
    assert (ns[:, :, : Phase.STEP].sum(axis=2) == ns[:, :, Phase.STEP]).all()
    assert np.allclose(np.diff(ends, axis=0), ns[1:, :, Phase.STEP] / 1e9, atol=1e-7)
    assert (ns[:, :, [int(phase) for phase in IN_STEP]] > 0).all()


def test_the_last_rank_waits_for_the_fabric_alone_and_the_others_for_it() -> None:
    """Waiting follows from readiness."""
    late = Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(2,))
    ns, _ = _together(Run(run="a", ranks=4, step=2.0, compute_sigma=0.0, slow=(late,)), 600)
    wait = ns[:, :, Phase.COLLECTIVE_WAIT].mean(axis=0) / 2e9
    assert np.allclose(wait, [0.33, 0.33, 0.03, 0.33], atol=0.005)


def test_the_same_description_gives_the_same_steps() -> None:
    """What is slow from later on changes nothing before."""
    late = Slow(phase=Phase.BACKWARD, by=1.0, ranks=(0,), start=100)
    plain, _ = _together(Run(run="a", ranks=2), 300)
    slow, ends = _together(Run(run="a", ranks=2, slow=(late,)), 300)
    before = int((ends[:, 0] < 99).sum())
    assert before > 80
    assert (plain[:before] == slow[:before]).all()
    assert (_together(Run(run="a", ranks=2), 300)[0] == plain).all()


def test_turns_and_shares_and_limits_hit_as_many_steps_as_they_say() -> None:
    """A share of steps, a share of the time, a number of steps."""
    slow = (
        Slow(phase=Phase.H2D, by=5.0, steps=0.1),
        Slow(phase=Phase.FORWARD, by=9.0, ranks=(1,), most=3, start=200),
        Slow(phase=Phase.OTHER, by=7.0, ranks=(0,), period=100, lasts=40, offset=30),
    )
    run = Run(run="a", ranks=4, slow=slow)
    ns, ends = _together(run, 4000)
    assert 0.08 < (ns[:, :, Phase.H2D] > 4e9).mean() < 0.12
    assert (ns[:, :, Phase.FORWARD] > 8e9).sum(axis=0).tolist() == [0, 3, 0, 0]
    starts = ends[:, 0] - ns[:, 0, Phase.STEP] / 1e9
    hit = ns[:, 0, Phase.OTHER] > 6e9
    # A step belongs to the turn in which its predecessor's collective ended, just before it began itself.
    assert set(np.floor(starts[hit] % 100 / 10).astype(int)) <= {3, 4, 5, 6, 7}
    assert hit.sum() > 50


def test_ranks_that_end_leave_the_others_to_go_on() -> None:
    """A dead rank has no steps any more, and nobody waits for it."""
    late = Slow(phase=Phase.INPUT_READY, by=1.0, ranks=(1,))
    parts = list(simulate(Run(run="a", ranks=2, slow=(late,), ended={1: 100.0}), 200))
    ns = np.concatenate([part.ns for part in parts])
    ends = np.concatenate([part.ends for part in parts])
    gone = ends[:, 0] > 105
    assert (ns[gone, 1] == 0).all()
    assert ns[gone, 0, Phase.COLLECTIVE_WAIT].max() < 0.1e9
    assert ns[~gone, 0, Phase.COLLECTIVE_WAIT].mean() > 0.5e9

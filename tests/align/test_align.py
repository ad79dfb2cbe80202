"""Alignment and tax of whole runs, from records alone."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from rank_exporter.analysis.align import align
from rank_exporter.analysis.generations import generations
from rank_exporter.analysis.tax import scaling_tax
from rank_exporter.errors import SourceError
from rank_exporter.phases import Phase


def spread(blames):
    total = sum(blame.seconds for blame in blames)
    shares = {}
    for blame in blames:
        shares[blame.rank] = shares.get(blame.rank, 0) + blame.seconds / total
    return shares


def test_tax_of_one_late_rank_in_eight():
    """Seven ranks ready at 900 ms and one at 1,200 ms for 10,000 steps: 2.1 GPU-seconds a step, 5.83 GPU-hours."""
    ready = np.array([0.9] * 7 + [1.2])
    tax = scaling_tax(np.broadcast_to(ready.max() - ready, (10_000, 8)))
    assert tax.gpu_seconds_per_step == pytest.approx(2.1)
    assert tax.gpu_seconds == pytest.approx(21_000)
    assert round(tax.gpu_hours, 2) == 5.83
    assert scaling_tax(ready.max() - ready, steps=10_000).gpu_seconds == pytest.approx(21_000)


def test_the_fabric_is_no_tax():
    """What even the last rank waits is not lost to a straggler; no steps cost nothing."""
    assert scaling_tax([[0.5, 0.5], [0.4, 0.6]]).gpu_seconds == pytest.approx(0.2)
    assert scaling_tax([[0.5, 0.6]], step_seconds=[[1.0, 1.0]]).share == pytest.approx(0.05)
    assert scaling_tax(np.empty((0, 4))).gpu_seconds_per_step == 0


def test_tax_of_the_same_run_from_its_records(simulate):
    """The same tax follows from the records of eight ranks, as a share of their time too."""
    late = np.where(np.arange(8) == 5, 1200, 900)
    tax = align(simulate(100, 8, input_ready=np.broadcast_to(late, (100, 8)))).tax()
    assert tax.gpu_seconds_per_step == pytest.approx(2.1)
    assert tax.share == pytest.approx(2.1 / (8 * 1.205))


@pytest.mark.parametrize("phase", ["input_ready", "forward", "backward", "optimizer", "other"])
def test_a_persistent_straggler_is_blamed_in_its_phase(simulate, phase):
    """A rank 20 % slower in one phase, among ranks with noise, causes all of the delay but 2 %, in that phase."""
    rng = np.random.default_rng(3)
    steps, ranks = 400, 8
    work = {"input_ready": 20.0, "forward": 30.0, "backward": 60.0, "optimizer": 20.0, "other": 10.0}
    noisy = {name: ms * rng.normal(1, 0.005, (steps, ranks)) for name, ms in work.items()}
    noisy[phase][:, 3] += 28
    blames = align(simulate(steps, ranks, **noisy)).blame()
    right = sum(blame.seconds for blame in blames if (blame.rank, blame.phase) == (3, phase))
    assert right > 0.98 * sum(blame.seconds for blame in blames)
    assert right == pytest.approx(0.028 * steps, rel=0.03)
    shards = {blame.shard for blame in blames if (blame.rank, blame.phase) == (3, phase)}
    assert shards == ({"shard-3"} if phase == "input_ready" else {""})


def test_a_rotating_straggler_is_every_ranks_share(simulate):
    """Each of four ranks late in turn: each is last in a quarter of the steps, and the tax is what was injected."""
    steps = 200
    turn = np.arange(steps)[:, None] % 4 == np.arange(4)
    found = align(simulate(steps, 4, input_ready=np.where(turn, 350, 50), forward=20))
    assert np.bincount(found.lateness.last).tolist() == [steps // 4] * 4
    assert found.tax().gpu_seconds == pytest.approx(3 * 0.3 * steps)
    assert (found.lateness.skew[:, Phase.INPUT_READY] == 300_000_000).all()


def test_identical_noisy_ranks_share_the_blame(simulate):
    """Of 64 ranks with the same noisy input none holds more than 5 % of the delay caused."""
    rng = np.random.default_rng(1)
    noise = rng.lognormal(np.log(160), 0.5, (4000, 64))
    shares = spread(align(simulate(4000, 64, input_ready=noise, forward=300, backward=500)).blame())
    assert max(shares.values()) < 0.05


def test_only_steps_that_all_ranks_have_are_aligned(simulate):
    """Steps that a rank lacks are counted and left out; the step after a gap does without the optimizer before."""
    ranks = simulate(10, 3, input_ready=10, optimizer=20)
    ranks[1] = dataclasses.replace(ranks[1], records=np.delete(ranks[1].records, 4))
    found = align(ranks)
    assert found.steps.tolist() == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert found.incomplete == 1
    assert (found.before < 0).any(axis=1).tolist() == [True, False, False, False, True, *[False] * 4]
    assert found.missing == ()
    assert align(ranks[:2]).missing == (2,)


def test_choosing_steps(simulate):
    """One step, a range, or the slowest, and one line of error for steps that are not there."""
    slow = np.full((20, 2), 10)
    slow[[6, 13], 1] = (80, 90)
    found = align(simulate(20, 2, input_ready=slow))
    assert found.between(7, 7).steps.tolist() == [7]
    assert found.between(19, 40).steps.tolist() == [19, 20]
    assert found.slowest(2).steps.tolist() == [14, 7]
    with pytest.raises(SourceError, match="step 21 of run job cannot be aligned: known are 20 from 1 to 20"):
        found.between(21, 21)


@pytest.mark.parametrize("known", [True, False])
def test_generations_are_never_mixed(simulate, known):
    """Four ranks, then three after a restart: two generations, told apart with the token and without it."""
    later = 1_700_000_500 * 10**9
    first = simulate(30, 4, generation=11 if known else 0, input_ready=10)
    second = simulate(20, 3, generation=12 if known else 0, began=later, input_ready=10)
    groups = generations([*second, *first])
    assert [[steps.rank for steps in group] for group in groups] == [[0, 1, 2, 3], [0, 1, 2]]
    found = align([*first, *second])
    assert (len(found.ranks), len(found.steps)) == (3, 20)
    if known:
        assert len(align([*first, *second], generation=11).steps) == 30
        with pytest.raises(SourceError, match="generation 13 of run job was not found: there is 11, 12"):
            align([*first, *second], generation=13)


def test_a_restart_of_the_same_size_without_a_token_is_another_generation(simulate):
    """The same ranks, started again after the first ones ended, are kept apart by their lifetimes."""
    first = simulate(30, 2, generation=0, input_ready=10)
    second = simulate(20, 2, generation=0, began=1_700_000_500 * 10**9, input_ready=10)
    assert [len(group) for group in generations([second[1], *first])] == [2, 1]
    assert [[len(steps.records) for steps in group] for group in generations([*first, *second])] == [[30, 30], [20, 20]]


def test_pieces_of_a_process_are_put_together_once(simulate):
    """Overlapping pieces of the same process, as spooled before and after an agent's restart, count once."""
    (whole,) = simulate(20, 1, input_ready=10)
    other_slot = whole.records[8:].copy()
    other_slot["shard"] = 1
    pieces = [
        dataclasses.replace(whole, records=whole.records[:12]),
        dataclasses.replace(whole, records=other_slot, shards=("unused", "shard-0")),
    ]
    ((found,),) = generations(pieces)
    assert found.records["step"].tolist() == list(range(1, 21))
    assert found.shards == ("shard-0",)


def test_implausible_records_are_left_out(simulate):
    """Durations beyond a week, and phases that do not add up to the step, cost their own steps alone."""
    ranks = simulate(10, 2, input_ready=10)
    damaged = ranks[0].records.copy()
    damaged["ns"][3, Phase.INPUT_READY] = 2**63
    damaged["ns"][5, Phase.FORWARD] += np.uint64(10**9)
    found = align([dataclasses.replace(ranks[0], records=damaged), ranks[1]])
    assert found.steps.tolist() == [1, 2, 3, 5, 7, 8, 9, 10]


def test_what_cannot_be_aligned_is_said_in_one_line(simulate):
    """Nothing found, several runs, an unknown run, and ranks without a common step."""
    one, two = simulate(5, 2, run="one"), simulate(5, 2, run="two")
    for arguments, message in [
        (([],), "no steps were found"),
        (([*one, *two],), r"2 runs were found \(one, two\): name one with --run"),
    ]:
        with pytest.raises(SourceError, match=message):
            align(*arguments)
    with pytest.raises(SourceError, match="run 'three' was not found: there is one, two"):
        align([*one, *two], run="three")
    apart = [one[0], dataclasses.replace(one[1], records=simulate(5, 2, first=90)[1].records)]
    with pytest.raises(SourceError, match="no step of run one was seen from all of its 2 ranks"):
        align(apart)

"""The verdict on a run, from the histograms of its ranks."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from itertools import accumulate

import pytest

from rank_exporter.analysis.diagnose import diagnose
from rank_exporter.analysis.profile import PhaseProfile, RankProfile, RunProfile
from rank_exporter.histogram import BUCKETS, FINE_EDGES, bucket_index, edge_seconds

EDGES = (*(edge_seconds(edge) for edge in FINE_EDGES), float("inf"))
OWN_WORK = {"input_ready": 0.002, "forward": 0.030, "backward": 0.060, "optimizer": 0.005, "other": 0.001}
COLLECTIVE = 0.003
Step = dict[str, float]


def histogram(durations: list[float]) -> PhaseProfile:
    """What an agent would serve of these durations."""
    counts = [0] * BUCKETS
    for duration in durations:
        counts[bucket_index(round(duration * 1e9))] += 1
    running = list(accumulate(counts))
    cumulative = (*(running[edge] for edge in FINE_EDGES), running[-1])
    return PhaseProfile(count=len(durations), total_seconds=sum(durations), edges=EDGES, cumulative=cumulative)


def synchronous(
    ranks: int, late: Callable[[int, int], Mapping[str, float]], *, steps: int = 300, collective: float = COLLECTIVE
) -> RunProfile:
    """A run whose ranks wait for the last of them in each step.

    ``late(rank, step)``: seconds beyond OWN_WORK by phase.
    """
    noise = random.Random(7)
    recorded: list[list[Step]] = [[] for _ in range(ranks)]
    for number in range(steps):
        step = []
        for rank in range(ranks):
            own = {phase: seconds * noise.uniform(0.95, 1.05) for phase, seconds in OWN_WORK.items()}
            for phase, seconds in late(rank, number).items():
                own[phase] = own.get(phase, 0.0) + seconds
            step.append(own)
        last = max(sum(own.values()) for own in step)
        for rank, own in enumerate(step):
            wait = last - sum(own.values()) + collective
            recorded[rank].append({**own, "collective_wait": wait, "step": last + collective})
    return run(dict(enumerate(recorded)))


def run(recorded: Mapping[int, list[Step]], *, world_size: int | None = None) -> RunProfile:
    """A profile of the steps of each rank, with phases that a step lacks left out."""
    return RunProfile(
        run="r",
        world_size=world_size or len(recorded),
        ranks=tuple(
            RankProfile(
                rank=rank,
                host=f"host-{rank}",
                shard=f"shard-{rank}",
                steps=len(steps),
                phases={
                    phase: histogram([step[phase] for step in steps if phase in step])
                    for phase in sorted({phase for step in steps for phase in step})
                },
            )
            for rank, steps in sorted(recorded.items())
        ),
    )


def nobody(rank: int, step: int) -> Mapping[str, float]:
    return {}


def always(straggler: int, **late: float) -> Callable[[int, int], Mapping[str, float]]:
    return lambda rank, step: late if rank == straggler else {}


def without(profile: RunProfile, phase: str, *, ranks: set[int] | None = None) -> RunProfile:
    """The profile as if these ranks had never observed the phase."""
    return RunProfile(
        run=profile.run,
        world_size=profile.world_size,
        ranks=tuple(
            RankProfile(
                rank=rank.rank,
                host=rank.host,
                shard=rank.shard,
                steps=rank.steps,
                phases={
                    name: found
                    for name, found in rank.phases.items()
                    if name != phase or (ranks is not None and rank.rank not in ranks)
                },
            )
            for rank in profile.ranks
        ),
    )


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 32])
def test_the_rank_with_late_input_is_named_and_its_victims_are_not(ranks: int) -> None:
    """A rank whose input is late on every step is named with phase, host and shard, at any number of ranks."""
    verdict = diagnose(synchronous(ranks, always(1, input_ready=0.15)))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("INPUT STRAGGLER", 1, "input_ready")
    assert (verdict.host, verdict.shard) == ("host-1", "shard-1")


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("phase", ["forward", "backward", "optimizer", "other"])
def test_a_rank_slow_in_computing_is_named_with_the_phase(ranks: int, phase: str) -> None:
    """A compute straggler's phase is the one that takes longer, not the victims' wait."""
    verdict = diagnose(synchronous(ranks, always(0, **{phase: 0.08})))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("COMPUTE STRAGGLER", 0, phase)


def test_a_rank_slow_in_copying_to_its_device_is_named() -> None:
    """Time in h2d is a cause of its own kind."""
    profile = synchronous(4, lambda rank, step: {"h2d": 0.1 if rank == 2 else 0.004})
    verdict = diagnose(profile)
    assert (verdict.kind, verdict.rank, verdict.phase) == ("H2D STRAGGLER", 2, "h2d")


def test_skew_is_the_excess_as_a_share_of_the_median_step() -> None:
    """The skew is the lateness in the phase over the median step time."""
    profile = synchronous(4, always(3, input_ready=0.15))
    step = 0.098 + 0.15 + COLLECTIVE
    assert diagnose(profile).skew == pytest.approx(0.15 / step, abs=0.03)


@pytest.mark.parametrize(("late", "kind"), [(0.007, "BALANCED"), (0.015, "INPUT STRAGGLER")])
def test_the_budget_divides_balanced_from_late(late: float, kind: str) -> None:
    """Lateness below a tenth of the step is nobody's fault; above it is somebody's."""
    assert diagnose(synchronous(4, always(1, input_ready=late))).kind == kind


def test_budget_is_the_callers_then_the_runs() -> None:
    """A budget given overrules the one that the run published, which overrules the default."""
    profile = synchronous(4, always(1, input_ready=0.03))
    lenient = RunProfile(run="r", ranks=profile.ranks, world_size=4, budget=0.5)
    assert diagnose(profile).rank == 1
    assert diagnose(lenient).kind == "BALANCED"
    assert diagnose(lenient, budget=0.05).rank == 1


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_equal_ranks_are_balanced(ranks: int) -> None:
    """Ranks that differ by noise only are balanced, and the verdict names none."""
    verdict = diagnose(synchronous(ranks, nobody))
    assert (verdict.kind, verdict.rank, verdict.phase, verdict.host, verdict.shard) == ("BALANCED", *[None] * 4)


@pytest.mark.parametrize("seed", range(20))
def test_noise_alone_never_names_a_rank(seed: int) -> None:
    """On identical ranks with wildly uneven batches, whatever is said, nobody is blamed."""
    noise = random.Random(seed)
    profile = synchronous(2 + seed % 7, lambda rank, step: {"input_ready": 0.03 * noise.lognormvariate(0, 1)})
    assert diagnose(profile).rank is None


def test_a_few_huge_steps_do_not_make_a_straggler() -> None:
    """A rank late on few steps only, as by checkpoints, moves its mean and not its median: it is not named."""
    profile = synchronous(4, lambda rank, step: {"other": 5.0} if rank == 0 and step % 50 == 0 else {})
    verdict = diagnose(profile)
    assert (verdict.kind, verdict.rank) == ("UNKNOWN", None)


def test_lateness_that_rotates_names_no_rank() -> None:
    """Where each rank in turn holds the others up, the kind says so and no rank is blamed."""
    verdict = diagnose(synchronous(4, lambda rank, step: {"input_ready": 0.2} if step % 4 == rank else {}))
    assert (verdict.kind, verdict.rank) == ("ROTATING STRAGGLER", None)


def test_a_rank_slow_in_all_its_computing_is_named_without_a_phase() -> None:
    """Where the device is slow as a whole, no single phase is blamed for what they account for together."""
    verdict = diagnose(synchronous(4, always(2, forward=0.03, backward=0.06)))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("COMPUTE STRAGGLER", 2, None)


def test_a_gap_of_mixed_causes_is_not_explained() -> None:
    """A rank late by input and by computing in equal parts is not pinned on either."""
    verdict = diagnose(synchronous(4, always(2, input_ready=0.05, optimizer=0.05)))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("UNKNOWN", None, None)


def test_a_rank_slow_in_one_phase_but_not_late_is_not_named() -> None:
    """More time in one phase is no fault where less in another makes up for it."""
    verdict = diagnose(synchronous(2, lambda rank, step: {"forward": 0.04} if rank else {"backward": 0.04}))
    assert (verdict.kind, verdict.rank) == ("BALANCED", None)


def test_of_two_equally_late_ranks_the_lower_is_named_and_the_other_mentioned() -> None:
    """A tie is settled by the rank's number, and the evidence tells of both."""
    profile = synchronous(8, lambda rank, step: {"input_ready": 0.15} if rank in (2, 5) else {})
    exact = RunProfile(
        run="r",
        world_size=8,
        ranks=tuple(
            rank
            if rank.rank != 5
            else RankProfile(rank=5, host="host-5", shard="shard-5", steps=300, phases=profile.ranks[2].phases)
            for rank in profile.ranks
        ),
    )
    verdict = diagnose(exact)
    assert (verdict.kind, verdict.rank) == ("INPUT STRAGGLER", 2)
    assert "also late: rank 5" in verdict.evidence


def test_ranks_are_numbers() -> None:
    """Rank 10 is not taken for rank 1, nor sorted before rank 9."""
    verdict = diagnose(synchronous(12, always(10, input_ready=0.15)))
    assert verdict.rank == 10
    profile = synchronous(12, lambda rank, step: {"input_ready": 0.15 if rank == 10 else 0.14 if rank == 9 else 0.0})
    assert diagnose(profile).rank == 10


@pytest.mark.parametrize("straggler", [0, 1])
def test_a_rank_that_reads_no_input_does_not_pull_the_median(straggler: int) -> None:
    """Ranks without input observations are left out of the comparison, not counted as 0."""
    profile = without(synchronous(6, always(straggler, input_ready=0.15)), "input_ready", ranks={3, 4, 5})
    verdict = diagnose(profile)
    assert (verdict.kind, verdict.rank) == ("INPUT STRAGGLER", straggler)


def test_all_readers_alike_beside_ranks_that_read_nothing() -> None:
    """The only ranks that read are not stragglers for it: the run is bound by its input."""
    late = synchronous(4, lambda rank, step: {"input_ready": 0.15} if rank < 2 else {"forward": 0.15})
    verdict = diagnose(without(late, "input_ready", ranks={2, 3}))
    assert (verdict.kind, verdict.rank) == ("INPUT-BOUND", None)


def test_input_bound_names_no_rank() -> None:
    """Where all ranks wait for input alike, the kind says so."""
    verdict = diagnose(synchronous(4, lambda rank, step: {"input_ready": 0.1}))
    assert (verdict.kind, verdict.rank) == ("INPUT-BOUND", None)


def test_a_slow_collective_is_the_fabric() -> None:
    """Where even the luckiest step waits long, the time is the collective's own."""
    verdict = diagnose(synchronous(4, nobody, collective=0.08))
    assert (verdict.kind, verdict.rank) == ("FABRIC", None)


@pytest.mark.parametrize(("steps", "kind"), [(14, "UNKNOWN"), (15, "INPUT STRAGGLER"), (40, "INPUT STRAGGLER")])
def test_few_steps_are_not_judged(steps: int, kind: str) -> None:
    """Below 15 steps nothing is said; from there on what is plain."""
    assert diagnose(synchronous(2, always(0, input_ready=0.15), steps=steps)).kind == kind


def test_with_few_steps_the_budget_is_doubled() -> None:
    """What 200 steps prove, 30 do not."""
    late = always(1, input_ready=0.015)
    assert diagnose(synchronous(4, late, steps=200)).rank == 1
    assert diagnose(synchronous(4, late, steps=30)).rank is None


def test_no_rank_is_named_where_ranks_are_missing() -> None:
    """From half a run's ranks nobody is blamed: the last one may be among the others."""
    profile = synchronous(4, always(1, input_ready=0.15))
    half = RunProfile(run="r", world_size=4, ranks=profile.ranks[:2])
    verdict = diagnose(half)
    assert (verdict.kind, verdict.rank) == ("UNKNOWN", None)
    assert "2 of 4" in verdict.evidence[0]


def test_equal_ranks_with_some_missing_are_unknown() -> None:
    """That the ranks seen are alike does not make the run balanced."""
    profile = synchronous(4, nobody)
    assert diagnose(RunProfile(run="r", world_size=4, ranks=profile.ranks[1:])).kind == "UNKNOWN"


def test_a_restarted_rank_is_not_compared() -> None:
    """A rank with far fewer steps than the fullest neither is named nor bends the median."""
    profile = synchronous(4, nobody)
    young = synchronous(4, always(3, input_ready=0.4), steps=20).ranks[3]
    verdict = diagnose(RunProfile(run="r", world_size=4, ranks=(*profile.ranks[:3], young)))
    assert (verdict.kind, verdict.rank) == ("UNKNOWN", None)


def test_without_the_collectives_wait_victims_are_not_named() -> None:
    """Where the wait hides in the victims' backward, they are not mistaken for compute stragglers."""
    profile = synchronous(2, always(0, input_ready=0.15))
    hidden = {
        rank.rank: [
            {
                "input_ready": 0.152 if rank.rank == 0 else 0.002,
                "backward": 0.06 if rank.rank == 0 else 0.21,
                "step": 0.25,
            }
        ]
        * 300
        for rank in profile.ranks
    }
    verdict = diagnose(run(hidden))
    assert (verdict.kind, verdict.rank, verdict.phase) == ("INPUT STRAGGLER", 0, "input_ready")
    compute = {
        0: [{"input_ready": 0.002, "optimizer": 0.15, "backward": 0.06, "step": 0.22}] * 300,
        1: [{"input_ready": 0.002, "optimizer": 0.005, "backward": 0.2, "step": 0.22}] * 300,
    }
    assert (diagnose(run(compute)).kind, diagnose(run(compute)).rank) == ("UNKNOWN", None)


def test_one_rank_alone_is_not_balanced() -> None:
    """With a single rank there is nothing to compare."""
    assert diagnose(synchronous(1, nobody)).kind == "UNKNOWN"


def test_an_empty_profile_is_unknown() -> None:
    """No ranks and no steps: no verdict, and no failure."""
    assert diagnose(RunProfile(run="r", ranks=())).kind == "UNKNOWN"


def test_a_rank_without_steps_is_unknown() -> None:
    """A rank that has begun and observed nothing yet is no ground for a verdict."""
    ranks = tuple(RankProfile(rank=rank, host="h", shard=None, steps=0, phases={}) for rank in range(2))
    assert diagnose(RunProfile(run="r", ranks=ranks, world_size=2)).kind == "UNKNOWN"


def test_quantiles_are_those_of_prometheus() -> None:
    """Linear within the bucket; from the last bucket, the last finite edge; nothing observed, 0."""
    phase = PhaseProfile(count=4, total_seconds=10.0, edges=(1.0, 2.0, float("inf")), cumulative=(1, 3, 4))
    assert [phase.quantile(q) for q in (0.0, 0.25, 0.5, 0.75, 0.99)] == [0.0, 1.0, 1.5, 2.0, 2.0]
    assert phase.mean == 2.5
    empty = PhaseProfile(count=0, total_seconds=0.0, edges=(1.0, float("inf")), cumulative=(0, 0))
    assert (empty.mean, empty.p50, empty.p99) == (0.0, 0.0, 0.0)

"""What the backtest runs: cells of known truth, and what the pack must and must not say of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf

from rank_exporter.phases import Phase

from ..simulation.run import Run, Slow

__all__ = ["CELLS", "Cell", "Wanted"]

MINUTE, HOUR = 60.0, 3600.0
STRAGGLER = frozenset({"TrainingInputStraggler"})
COMPUTE = frozenset({"TrainingComputeStraggler"})
TAIL = frozenset({"TrainingTailStraggler"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is right to say. ``alerts``: one of them must fire; none: nothing need.

    ``ranks``: those that must be named, and the only ones that any alert may name. ``may_name``: others that may.
    ``phase``: what the alert must say, if it says any. ``within``: seconds after onset. ``notified``: notifications of
    firing alerts at the most, pages or not. ``naive_silent``: whether the naive rule must stay silent.
    """

    alerts: frozenset[str] = frozenset()
    ranks: frozenset[str] = frozenset()
    may_name: frozenset[str] = frozenset()
    phase: str = ""
    within: float = inf
    notified: int | None = None
    naive_silent: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One simulation. Times are seconds. ``quick``: part of the short backtest. ``annotated``: read annotations too."""

    scenario: str
    name: str
    runs: tuple[Run, ...]
    seconds: float
    wanted: Wanted
    onset: float = 0.0
    interval: float = 30.0
    scrape: float = 15.0
    down: tuple[tuple[float, float], ...] = ()
    lost: float = 0.0
    quick: bool = False
    annotated: bool = False

    @property
    def job_hours(self) -> float:
        """Hours of all runs together."""
        return sum(max(min(run.end, self.seconds) - run.start, 0.0) for run in self.runs) / HOUR


def _healthy() -> Iterator[Cell]:
    """Identical ranks: every value of each dimension beside every number of ranks."""
    steps, shares, sigmas = (0.1, 0.5, 2.0, 10.0, 30.0), (0.01, 0.05, 0.16, 0.40), (0.2, 0.5, 1.0)
    plan = ((4, 13, 24.0), (8, 12, 12.0), (64, 9, 2.0), (256, 6, 1.0), (1024, 4, 0.6))
    place = 0
    for ranks, cells, hours in plan:
        for number in range(cells):
            step = steps[number % len(steps)]
            share, sigma = shares[(place + number // 5) % 4], sigmas[(place + number // 4) % 3]
            heavy = (0.01, 5.0) if (place + number) % 3 == 0 else (0.0, 1.0)
            place += 1
            text = f"N={ranks}, {step:g} s, input {share:.0%}, sigma {sigma:g}" + (", 1 % 5x" if heavy[0] else "")
            run = Run(
                run=f"healthy-{place}",
                ranks=ranks,
                step=step,
                input_share=share,
                sigma=sigma,
                heavy=heavy,
            )
            yield Cell(
                scenario="identical",
                name=text,
                runs=(run,),
                seconds=hours * HOUR,
                wanted=Wanted(),
                interval=60.0,
                scrape=30.0,
                quick=(ranks, number) in {(4, 3), (8, 1), (64, 2)},
            )


def _persistent() -> Iterator[Cell]:
    limits = {0.5: 10 * MINUTE, 2.0: 10 * MINUTE, 10.0: 20 * MINUTE, 30.0: 35 * MINUTE}
    for ranks, by, step in (
        *((8, by, step) for step in limits for by in (0.15, 0.3, 1.0)),
        *((64, by, 2.0) for by in (0.15, 0.3)),
        (2, 0.3, 2.0),
        (256, 0.3, 2.0),
    ):
        late = min(3, ranks - 1)
        slow = Slow(phase=Phase.INPUT_READY, by=by, ranks=(late,), start=2 * HOUR)
        run = Run(run=f"input-{ranks}-{by}-{step}", ranks=ranks, step=step, sigma=0.5, shards=2, slow=(slow,))
        yield Cell(
            scenario="input" if ranks > 2 else "two-ranks",
            name=f"N={ranks}, {step:g} s, +{by:.0%}",
            runs=(run,),
            seconds=(3.0 if ranks < 64 else 2.6) * HOUR,
            onset=2 * HOUR,
            wanted=Wanted(alerts=STRAGGLER, ranks=frozenset({str(late)}), phase="input_ready", within=limits[step]),
            scrape=15.0 if ranks < 256 else 30.0,
            quick=(ranks, by, step) in {(8, 0.3, 0.5), (8, 0.15, 2.0), (2, 0.3, 2.0), (8, 0.3, 30.0)},
            annotated=(ranks, step, by) == (8, 2.0, 0.3),
        )


def _tail() -> Iterator[Cell]:
    # By what the number of hit steps permits: 5 % at 10 s a step are 18 in an hour.
    for share, step, minutes in (
        (0.05, 0.5, 60),
        (0.05, 2.0, 60),
        (0.05, 10.0, 150),
        (0.02, 0.5, 90),
        (0.02, 2.0, 130),
        (0.02, 10.0, 260),
    ):
        slow = Slow(phase=Phase.INPUT_READY, by=0.5, ranks=(3,), steps=share, start=HOUR)
        run = Run(run=f"tail-{share}-{step}", ranks=8, step=step, sigma=0.5, slow=(slow,))
        yield Cell(
            scenario="tail",
            name=f"N=8, {step:g} s, +50% on {share:.0%} of steps, within {minutes} min",
            runs=(run,),
            seconds=HOUR + (minutes + 20) * MINUTE,
            onset=HOUR,
            wanted=Wanted(alerts=TAIL, ranks=frozenset({"3"}), within=minutes * MINUTE),
            quick=(share, step) == (0.05, 2.0),
        )


def _one_off() -> Iterator[Cell]:
    for step in (0.5, 2.0, 10.0):
        for number in (1, 3):
            slow = tuple(
                Slow(phase=Phase.INPUT_READY, times=20, ranks=(3,), start=HOUR + 20 * turn, most=1)
                for turn in range(number)
            )
            run = Run(run=f"one-off-{number}-{step}", ranks=8, step=step, input_share=0.16, slow=slow)
            yield Cell(
                scenario="one-off",
                name=f"N=8, {step:g} s, {number} of 20x",
                runs=(run,),
                seconds=2.5 * HOUR,
                onset=HOUR,
                wanted=Wanted(notified=0),
                quick=(step, number) == (10.0, 3),
            )


def _rotating() -> Iterator[Cell]:
    # Where every late step is as late, every rank's p99 is the same: the naive rule sees nothing.
    for ranks, step, by, by_max in ((64, 0.5, 0.5, 0.5), (64, 0.5, 0.3, 1.0), (64, 2.0, 0.3, 1.0)):
        slow = Slow(phase=Phase.INPUT_READY, by=by, by_max=by_max, steps=0.02, start=HOUR)
        run = Run(run=f"rotating-{step}-{by}", ranks=ranks, step=step, slow=(slow,))
        yield Cell(
            scenario="rotating",
            name=f"N={ranks}, {step:g} s, +{by:.0%}..{by_max:.0%} on 2% of steps of every rank",
            runs=(run,),
            seconds=1.8 * HOUR,
            onset=HOUR,
            wanted=Wanted(
                alerts=frozenset({"TrainingRotatingStragglers"}), within=30 * MINUTE, naive_silent=by == by_max
            ),
            scrape=30.0,
            quick=step == 2.0,
        )
    late = tuple(
        Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(rank,), start=HOUR, period=180, lasts=90, offset=offset)
        for rank, offset in ((1, 0.0), (5, 90.0))
    )
    for step in (0.5, 2.0):
        yield Cell(
            scenario="alternating",
            name=f"N=8, {step:g} s, +30%, ranks 1 and 5 by turns of 90 s",
            runs=(Run(run=f"alternating-{step}", ranks=8, step=step, slow=late),),
            seconds=3 * HOUR,
            onset=HOUR,
            wanted=Wanted(
                alerts=STRAGGLER | {"TrainingRotatingStragglers"},
                may_name=frozenset({"1", "5"}),
                within=30 * MINUTE,
                notified=1,
            ),
            quick=step == 2.0,
        )


def _compute() -> Iterator[Cell]:
    phases = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER, Phase.H2D, Phase.OTHER)
    for phase, ranks in (*((phase, 8) for phase in phases), (Phase.FORWARD, 64), (Phase.BACKWARD, 2)):
        late = min(3, ranks - 1)
        slow = Slow(phase=phase, by=0.2, ranks=(late,), start=HOUR)
        run = Run(run=f"compute-{phase.label}-{ranks}", ranks=ranks, step=2.0, sigma=0.5, slow=(slow,))
        yield Cell(
            scenario="compute" if ranks > 2 else "two-ranks",
            name=f"N={ranks}, 2 s, +20% in {phase.label}",
            runs=(run,),
            seconds=2 * HOUR,
            onset=HOUR,
            wanted=Wanted(alerts=COMPUTE, ranks=frozenset({str(late)}), phase=phase.label, within=15 * MINUTE),
            quick=phase is Phase.FORWARD and ranks == 8,
            annotated=phase is Phase.FORWARD and ranks == 8,
        )


def _whole_run() -> Iterator[Cell]:
    everyone = Slow(phase=Phase.INPUT_READY, by=0.6, start=HOUR)
    yield Cell(
        scenario="input-bound",
        name="N=8, 2 s, all ranks 40% input",
        runs=(Run(run="input-bound", ranks=8, step=2.0, slow=(everyone,)),),
        seconds=2 * HOUR,
        onset=HOUR,
        wanted=Wanted(alerts=frozenset({"TrainingInputBound"}), within=30 * MINUTE),
        quick=True,
    )
    for ranks in (8, 64):
        doubled = Slow(phase=Phase.COLLECTIVE_WAIT, times=2, start=HOUR)
        yield Cell(
            scenario="fabric",
            name=f"N={ranks}, 2 s, collective 15% -> 30% of step",
            runs=(Run(run=f"fabric-{ranks}", ranks=ranks, step=2.0, floor=0.15, slow=(doubled,)),),
            seconds=2 * HOUR,
            onset=HOUR,
            wanted=Wanted(alerts=frozenset({"TrainingFabricSlow"}), within=30 * MINUTE),
            scrape=15.0 if ranks == 8 else 30.0,
            quick=ranks == 8,
        )
    yield Cell(
        scenario="batch-skew",
        name="N=8, 2 s, rank 3 has 1.5x the tokens",
        runs=(Run(run="batch-skew", ranks=8, step=2.0, tokens={3: 1.5}),),
        seconds=1.5 * HOUR,
        wanted=Wanted(alerts=frozenset({"TrainingBatchSkew"}), may_name=frozenset({"3"}), within=35 * MINUTE),
        quick=True,
    )
    yield Cell(
        scenario="headroom",
        name="N=8, 2 s, workers just keep up",
        runs=(Run(run="headroom", ranks=8, step=2.0, headroom=1.02),),
        seconds=1.5 * HOUR,
        wanted=Wanted(
            alerts=frozenset({"TrainingLoaderHeadroomGone"}),
            may_name=frozenset(str(rank) for rank in range(8)),
            within=35 * MINUTE,
        ),
    )


def _pipeline() -> Iterator[Cell]:
    never = frozenset({2, 3, 4, 5})
    late = Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(7,), start=HOUR)
    for name, slow, wanted in (
        ("all well", (), Wanted(notified=0)),
        (
            "rank 7 +30% input",
            (late,),
            Wanted(alerts=STRAGGLER, ranks=frozenset({"7"}), phase="input_ready", within=15 * MINUTE),
        ),
    ):
        yield Cell(
            scenario="pipeline",
            name=f"N=8, ranks 2-5 never fetch, {name}",
            runs=(Run(run=f"pipeline-{len(slow)}", ranks=8, step=2.0, sigma=0.5, never_fetch=never, slow=slow),),
            seconds=2 * HOUR,
            onset=HOUR,
            wanted=wanted,
            quick=bool(slow),
        )


def _job(name: str, **changes: object) -> Run:
    return Run(run=name, **{"ranks": 8, "step": 2.0, "per_host": 4, "sigma": 0.5, **changes})  # type: ignore[arg-type]


def _lifecycle() -> Iterator[Cell]:
    at, again = HOUR, HOUR + 3 * MINUTE
    hang = Slow(phase=Phase.BACKWARD, by=600.0, ranks=(5,), start=at, most=1)
    missing = Wanted(alerts=frozenset({"TrainingRanksMissing"}), may_name=frozenset({"5"}), within=20 * MINUTE)
    stalled = Wanted(
        alerts=frozenset({"TrainingRankStalled"}), ranks=frozenset({"5"}), phase="backward", within=9 * MINUTE
    )
    moved = _job("moves", moved={5: "spare-0"}, start=again, seed=1)
    for name, runs, wanted in (
        (
            "rank dies, the others hang for 10 min",
            (_job("dies", slow=(hang,), ended={5: at + 5}, end=at + 600),),
            Wanted(may_name=frozenset({"5"})),
        ),
        ("rank dies, the others go on", (_job("shrinks", ended={5: at}),), missing),
        ("rank hangs in backward for 30 min", (_job("hangs", slow=(replace(hang, by=900.0),)),), stalled),
        ("job ends", (_job("ends", end=at),), Wanted()),
        (
            "restart of 8 as 12 ranks on other hosts",
            (_job("grows", end=at), _job("grows", ranks=12, hosts="other", start=again, seed=1)),
            Wanted(),
        ),
        (
            "restart of 8 as 6 ranks on the same hosts",
            (_job("fewer", end=at), _job("fewer", ranks=6, start=again, seed=1)),
            Wanted(),
        ),
        ("restart with rank 5 on another host", (_job("moves", end=at), moved), Wanted()),
    ):
        yield Cell(
            scenario="lifecycle",
            name=f"N=8, 2 s, {name}",
            runs=runs,
            seconds=2 * HOUR,
            onset=at,
            wanted=wanted,
            quick="other hosts" in name or "hangs" in name,
        )
    yield Cell(
        scenario="lifecycle",
        name="N=8, 2 s, Prometheus is down for 10 min",
        runs=(_job("down"),),
        seconds=2 * HOUR,
        onset=at,
        down=((at, at + 600),),
        wanted=Wanted(),
    )
    late = Slow(phase=Phase.INPUT_READY, by=0.3, ranks=(3,), start=at)
    yield Cell(
        scenario="lifecycle",
        name="N=8, 2 s, +30% in one of two runs, 10% of scrapes lost",
        runs=(_job("one", slow=(late,)), _job("two")),
        seconds=2 * HOUR,
        onset=at,
        lost=0.1,
        wanted=Wanted(alerts=STRAGGLER, ranks=frozenset({"3"}), phase="input_ready", within=15 * MINUTE),
    )


def _two_ranks() -> Iterator[Cell]:
    for step, share in ((0.5, 0.16), (2.0, 0.05), (10.0, 0.05)):
        yield Cell(
            scenario="two-ranks",
            name=f"N=2, {step:g} s, identical, input {share:.0%}",
            runs=(Run(run=f"pair-{step}", ranks=2, step=step, input_share=share, sigma=0.5),),
            seconds=12 * HOUR,
            wanted=Wanted(),
            interval=60.0,
        )


CELLS: tuple[Cell, ...] = tuple(
    cell
    for family in (
        _persistent,
        _tail,
        _one_off,
        _rotating,
        _compute,
        _whole_run,
        _pipeline,
        _lifecycle,
        _two_ranks,
        _healthy,
    )
    for cell in family()
)

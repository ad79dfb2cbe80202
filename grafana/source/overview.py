"""Straggler overview: is there one, which rank, in which phase, on which host, with which shard, at what cost."""

from __future__ import annotations

from .alerts import alert_table
from .frame import HOSTS_UID, OVERVIEW_UID, RANK_UID, Panel, dashboard, link_to, run_variable
from .palette import MUTED, NEUTRAL, PHASE_COLOURS, SUBJECT
from .panels import (
    bars,
    colour,
    columns,
    dashed,
    dotted,
    lights,
    property_,
    rank_heatmap,
    stacked,
    text_for_nan,
    trend,
    values,
    worded,
)
from .queries import (
    BY_PHASE,
    BY_RANK,
    BY_RUN,
    RUN,
    aligned,
    budget_label,
    compute_excess,
    input_excess,
    ordered_by_rank,
    shortest,
    top,
    where_aligned,
    with_shard,
    worst_phase,
)
from .states import state, texts
from .targets import lines, now, rows

__all__ = ["BUDGET", "FEW", "TOO_FEW", "UNALIGNED", "overview"]

TOO_FEW = "Not judged yet: 30 minutes hold fewer than some 20 steps"
FEW = "Too few steps yet"
"""The same in a small place."""
_NOT_ALIGNED = "Steps are not aligned: rank 0's agent sees too few of the ranks"
UNALIGNED = "Steps are not aligned"
_SHOWN = 20

BUDGET = f"run:training_skew_budget:ratio{{{RUN}}}"
_WORST = f"max by ({BY_RUN}) ({worst_phase()})"
_LAST = shortest("run_rank:training_last_rank_per_step:ratio", BY_RANK)
_LAST_MEAN = f"avg_over_time({_LAST}[$__range:5m] @ end())"


def overview() -> str:
    """Return the dashboard as JSON text."""
    return dashboard(
        OVERVIEW_UID,
        "Is there a straggler, and if so: which rank, in which phase, on which host, with which shard, and what it "
        "costs.",
        [run_variable()],
        RUN,
        [
            (5, [(5, _state()), (4, _skew()), (5, _worst_rank()), (3, _cost()), (3, _ranks()), (4, _speed())]),
            (8, [(12, _phases()), (12, _skew_over_time())]),
            (8, [(24, _worst_ranks())]),
            (10, [(12, _input_by_rank()), (12, _last_ranks())]),
            (8, [(12, alert_table(RUN, "this run")), (4, _input_light()), (4, _wait_light()), (4, _idle_light())]),
        ],
    )


def _state() -> Panel:
    return worded(
        "State",
        "What the gravest alert of the run says. With a question mark: the alert is pending, which takes 5 minutes "
        "to be sure. BALANCED: the run is judged, and nothing is wrong.",
        FEW,
        now("A", state(), "state"),
        texts(),
    )


def _skew() -> Panel:
    return lights(
        "Worst rank, of a step",
        "By how much of the median step the worst rank is later than the median rank, in its worst phase: the "
        "smaller of what mean and median say, over the shortest of 10 and 30 minutes that holds some 20 steps. The run "
        "tolerates its budget.",
        "percentunit",
        FEW,
        now("A", budget_label(f"{_WORST} <= on ({BY_RUN}) {BUDGET}"), "within the budget of {{budget}} %"),
        now("B", budget_label(f"{_WORST} > on ({BY_RUN}) {BUDGET}"), "over the budget of {{budget}} %"),
    )


def _worst_rank() -> Panel:
    # The number has a unit of its own, so that the rank stands in the name.
    per_step = f"({worst_phase()}) * on ({BY_RUN}) group_left () {_median_step()}"
    return values(
        "Worst rank",
        "The rank that is later than the median rank by most, and by how much at each step, with its phase, its "
        "host and the shard on which it spent most of its input time. Within the budget it is only the first of "
        "many.",
        "s",
        FEW,
        [now("A", top(1, with_shard(per_step)), "rank {{rank}} · {{phase}} · {{host}} · {{shard}}")],
        decimals=1,
        overrides=[colour("A", SUBJECT)],
        title_size=14,
    )


def _median_step() -> str:
    return shortest("run_phase:training_phase_duration_seconds:median_mean", BY_RUN, f'{RUN},phase="step"')


def _cost() -> Panel:
    exact = f"sum by ({BY_RUN}) (increase(training_exposed_wait_seconds_total{{{RUN}}}[$__range])) / 3600"
    share = shortest("run:training_exposed_wait_per_step:ratio", BY_RUN)
    ranks = f"run:training_ranks_reporting:count{{{RUN}}}"
    estimate = f"sum_over_time(({share} * on ({BY_RUN}) {ranks})[$__range:1m]) / 60"
    return values(
        "Lost to waiting",
        "GPU-hours in the time range for which ranks waited for others, beyond what even the rank that waited least "
        "did. Estimated from histograms where steps are not aligned across ranks.",
        "suffix: GPU h",
        "No wait is known yet",
        [now("A", exact, "measured"), now("B", f"{estimate} unless on ({BY_RUN}) {exact}", "estimated")],
        decimals=1,
    )


def _ranks() -> Panel:
    reporting = f"run:training_ranks_reporting:count{{{RUN}}}"
    world = f"max by ({BY_RUN}) (training_world_size{{{RUN}}})"
    label = f'count_values by ({BY_RUN}) ("world", training_world_size{{{RUN}}}) * 0 + 1'

    def labelled(comparison: str) -> str:
        return f"({reporting} {comparison} on ({BY_RUN}) {world}) * on ({BY_RUN}) group_left (world) ({label})"

    return lights(
        "Ranks reporting",
        "Ranks whose series are there now, of those the run was started with.",
        "suffix: ranks",
        "No rank of this run reports",
        now("A", labelled(">="), "all of {{world}}"),
        now("B", labelled("<"), "of {{world}}: some are missing"),
        decimals=0,
    )


def _speed() -> Panel:
    return values(
        "Speed",
        "Steps of the run and samples over all ranks, per second. Samples are known where the loop counts them.",
        "suffix: /s",
        "No step has ended lately",
        [
            now("A", shortest("run:training_steps:rate", BY_RUN), "steps"),
            now("B", shortest("run:training_samples:rate", BY_RUN), "samples"),
        ],
        decimals=3,
        overrides=[(colour("B", NEUTRAL)[0], [property_("decimals", 0)])],
        title_size=14,
    )


def _worst_ranks() -> Panel:
    worst = top(_SHOWN, worst_phase())
    ratio = property_("unit", "percentunit")
    return columns(
        "Worst ranks",
        f"The {_SHOWN} ranks that are later than the median rank by most. Delay caused and last in come from steps "
        "that are aligned across ranks. A rank leads to its details, a host or shard to whether slowness follows it.",
        "percentunit",
        TOO_FEW,
        [
            rows("A", with_shard(worst)),
            rows("B", f"({worst}) * on ({BY_RUN}) group_left () {_median_step()}"),
            rows("C", where_aligned(_caused(), worst)),
            rows("D", where_aligned(_LAST, worst)),
        ],
        order={
            "rank": "Rank",
            "phase": "Phase",
            "host": "Host",
            "shard": "Shard",
            "Value #A": "Later, of a step",
            "Value #B": "Later by",
            "Value #C": "Delay caused, of a step",
            "Value #D": "Last in, of steps",
        },
        by="Later, of a step",
        numeric=["rank"],
        mappings=[text_for_nan("not aligned")],
        overrides={
            "Rank": [
                property_("unit", "none"),
                property_("decimals", 0),
                property_("custom.width", 60),
                property_("links", [link_to(RANK_UID, "Details of this rank", rank="${__value.raw}")]),
            ],
            "Phase": [property_("custom.width", 130)],
            "Host": [property_("links", [link_to(HOSTS_UID, "Does it follow this host?", host="${__value.raw}")])],
            "Shard": [
                property_("custom.width", 190),
                property_("links", [link_to(HOSTS_UID, "Does it follow this shard?", shard="${__value.raw}")]),
            ],
            "Later, of a step": [ratio, property_("decimals", 1)],
            "Later by": [property_("unit", "s"), property_("decimals", 1), property_("custom.width", 90)],
            "Delay caused, of a step": [ratio, property_("decimals", 1)],
            "Last in, of steps": [ratio, property_("decimals", 0)],
        },
    )


def _caused() -> str:
    return shortest("run_rank:training_delay_caused_per_step:ratio", BY_RANK)


def _phases() -> Panel:
    mean = "run_rank_phase:training_phase_duration_seconds:mean"
    parts = f'{RUN},phase!="step"'
    median = shortest("run_phase:training_phase_duration_seconds:median_mean", f"{BY_RUN}, phase", parts)
    worst = f"{shortest(mean, BY_PHASE, parts)} and on ({BY_RANK}) {top(1, worst_phase())}"
    return bars(
        "Where a step goes: median rank and worst rank",
        "Mean time of each phase in a step. The worst rank shows what it is late with. Waiting for others is grey, and "
        "the worst rank waits least: the others wait for it.",
        "s",
        TOO_FEW,
        [
            rows(
                "A",
                f'sum by (which, phase) (label_replace({median}, "which", "median rank", "", "") '
                f'or label_replace({worst}, "which", "rank $1", "rank", "(.*)"))',
            )
        ],
        of="which",
        colours=PHASE_COLOURS,
    )


def _skew_over_time() -> Panel:
    none = f"max by ({BY_RUN}) (run:training_steps:judged{{{RUN}}}) * 0"
    return trend(
        "Lateness of the worst rank, of a step",
        "By how much of the median step the worst rank is later than the median rank, in input and in any other phase. "
        "Alerts read these lines. The dotted line is the slowest rank's p99 of input against the median rank's, "
        "over 10 minutes: it shows tails, and below some 1,000 steps it is high on healthy ranks too. Dashed: the "
        "budget.",
        "percentunit",
        TOO_FEW,
        [
            lines("A", f"clamp_min(max by ({BY_RUN}) ({input_excess()}), 0)", "input, worst rank"),
            lines("B", f"max by ({BY_RUN}) ({compute_excess()}) or on ({BY_RUN}) {none}", "other phases, worst rank"),
            lines("C", f"run:training_input_ready_excess_per_step:ratio{{{RUN}}}", "input, slowest p99"),
            lines("D", BUDGET, "budget"),
        ],
        overrides=[
            colour("A", PHASE_COLOURS["input_ready"]),
            colour("B", PHASE_COLOURS["backward"]),
            dotted("C", MUTED),
            dashed("D"),
        ],
        recorded=True,
        points=120,
    )


def _input_by_rank() -> Panel:
    def spent(phase: str) -> str:
        series = f'training_phase_duration_seconds_sum{{{RUN},phase="{phase}"}}'
        return f"sum by (rank) (rate({series}[$__rate_interval]))"

    return rank_heatmap(
        "Input-ready time by rank, of a step",
        "Share of the time in steps that a rank waits for its batches, one row a rank, in numeric order. A bright "
        "row is a slow rank, a bright column is a moment at which all were slow. Brightest: 40 % and more.",
        "percentunit",
        "No rank has fetched a batch in this time range",
        lines("A", ordered_by_rank(f"{spent('input_ready')} / ({spent('step')} > 0)"), "{{rank}}"),
    )


def _last_ranks() -> Panel:
    first, many = top(1, _LAST_MEAN), top(10, _LAST_MEAN)
    shown = f"({_LAST} and on ({BY_RANK}) {many})"
    rest = f"clamp_min(1 - sum by ({BY_RUN}) {shown}, 0)"
    return stacked(
        "Who was last, of steps",
        "Share of the aligned steps in which each rank was ready last, so that the others waited for it. One rank "
        "alone: a persistent straggler. Many in turn: rotating ones, or mere noise if little is lost.",
        "percentunit",
        _NOT_ALIGNED,
        [
            lines("A", f"{_LAST} and on ({BY_RANK}) {first}", "rank {{rank}} · {{host}} (most often)"),
            lines("B", f"{shown} unless on ({BY_RANK}) {first}", "rank {{rank}} · {{host}}"),
            lines("C", rest, "all other ranks"),
        ],
        overrides=[colour("A", SUBJECT), colour("C", MUTED)],
        whole=1,
    )


def _input_light() -> Panel:
    p99 = (
        f"run:training_input_ready_excess_per_step:ratio{{{RUN}}} "
        f'and on ({BY_RUN}) run:training_steps:effective{{{RUN},window="short"}} >= 1000'
    )
    shift = f"clamp_min(max by ({BY_RUN}) ({input_excess()}), 0)"
    late = f"({p99} or on ({BY_RUN}) {shift})"
    return lights(
        "Exit 1: input is even",
        "Exit criterion before more GPUs: no rank's input is later than the median rank's by more than the budget: "
        "by p99 where 10 minutes hold 1,000 steps, since p99 of fewer is but the largest of them; else by mean and "
        "median.",
        "percentunit",
        FEW,
        now("A", f"{late} <= on ({BY_RUN}) {BUDGET}", "met"),
        now("B", f"{late} > on ({BY_RUN}) {BUDGET}", "not met"),
    )


def _wait_light() -> Panel:
    def spent(series: str, matchers: str) -> str:
        return f"sum by ({BY_RUN}) (rate({series}{{{RUN},{matchers}}}[10m]))"

    some = spent("training_rank_delay_caused_seconds_total", 'phase="input_ready"')
    caused = f"({some} or on ({BY_RUN}) {aligned()})"
    step = (
        f'avg by ({BY_RUN}) (sum by ({BY_RANK}) (rate(training_phase_duration_seconds_sum{{{RUN},phase="step"}}[10m])))'
    )
    share = f"({caused} / on ({BY_RUN}) ({step} > 0))"
    return lights(
        "Exit 2: no wait for input",
        "Exit criterion before more GPUs: waiting does not follow input. Share of the step that ranks wait because "
        "the last of them had its batch late, over 10 minutes of aligned steps. Met: no more than the budget.",
        "percentunit",
        UNALIGNED,
        now("A", f"{share} <= on ({BY_RUN}) {BUDGET}", "met"),
        now("B", f"{share} > on ({BY_RUN}) {BUDGET}", "not met"),
    )


def _idle_light() -> Panel:
    active = f'sum by ({BY_RANK}, device) (rate(training_device_active_seconds_total{{{RUN},rank!=""}}[10m]))'
    idle = f"clamp_min(1 - quantile by ({BY_RUN}) (0.5, {active}), 0)"
    return lights(
        "Exit 3: devices are busy",
        "Exit criterion before more GPUs: share of the last 10 minutes in which no kernel ran on half of the run's "
        "GPUs or more. Met: no more than the 30 % from which on TrainingDeviceIdle alerts. A GPU that waits for "
        "others counts as busy.",
        "percentunit",
        "No GPU of this run is watched",
        now("A", f"{idle} <= 0.3", "met"),
        now("B", f"{idle} > 0.3", "not met"),
    )

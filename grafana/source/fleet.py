"""Fleet: all runs, by what their stragglers cost."""

from __future__ import annotations

from .alerts import alert_table
from .frame import FLEET_UID, OVERVIEW_UID, Panel, dashboard, link_to
from .palette import BREACH, NEUTRAL, SUBJECT
from .panels import colour, columns, property_, stacked, text_for_nan, trend, values
from .queries import BY_PHASE, BY_RUN, FLEET, shortest
from .targets import Target, lines, now, rows

__all__ = ["fleet"]

_SHOWN = 20
_DRAWN = 10
_NO_RUN = "No run reported in this time range"
_NO_WAIT = "No wait is known: no run was judged in this time range"

_SHARE = shortest("run:training_exposed_wait_per_step:ratio", BY_RUN, FLEET)
_RANKS = f"run:training_ranks_reporting:count{{{FLEET}}}"
_LOST = f"{_SHARE} * on ({BY_RUN}) {_RANKS}"
"""GPUs that do nothing but wait, a run."""

_HOURS = f"sum_over_time(({_LOST})[$__range:1m] @ end()) / 60"


def fleet() -> str:
    """Return the dashboard as JSON text."""
    return dashboard(
        FLEET_UID,
        "All runs, by what waiting for stragglers costs them.",
        [],
        FLEET,
        [
            (5, [(6, _lost()), (6, _waiting()), (6, _runs()), (6, _alerted())]),
            (10, [(24, _table())]),
            (9, [(12, _lost_over_time()), (12, _share_over_time())]),
            (9, [(24, alert_table(FLEET, "any run", run=True))]),
        ],
    )


def _lost() -> Panel:
    return values(
        "Lost to waiting",
        "GPU-hours that all runs lost in the time range to waiting for their slower ranks.",
        "suffix: GPU h",
        _NO_WAIT,
        [now("A", f"sum({_HOURS})", "lost")],
        decimals=1,
        named=False,
    )


def _waiting() -> Panel:
    return values(
        "Waiting now",
        "GPUs that do nothing now but wait for slower ranks, of all ranks that report.",
        "suffix: GPUs",
        _NO_WAIT,
        [
            now("A", f"sum({_LOST})", "wait"),
            now("B", f"sum({_RANKS})", "report"),
        ],
        decimals=1,
        overrides=[colour("A", SUBJECT), (colour("B", NEUTRAL)[0], [property_("decimals", 0)])],
    )


def _runs() -> Panel:
    return values(
        "Runs",
        "Runs that report now.",
        "suffix: runs",
        _NO_RUN,
        [now("A", f"count({_RANKS})", "runs")],
        decimals=0,
        named=False,
    )


def _alerted() -> Panel:
    firing = f'ALERTS{{alertname=~"Training.+",alertstate="firing",severity="critical",{FLEET}}}'
    return values(
        "Runs with a page",
        "Runs of which a critical alert fires.",
        "suffix: runs",
        _NO_RUN,
        [now("A", f"count(count by ({BY_RUN}) ({firing})) or count({_RANKS}) * 0", "runs")],
        decimals=0,
        thresholds={None: NEUTRAL, 1: BREACH},
        named=False,
    )


def _table() -> Panel:
    shown = f"topk({_SHOWN}, {_HOURS} or on ({BY_RUN}) {_RANKS} * 0)"

    def of_shown(expr: str) -> str:
        known = f"({expr}) and on ({BY_RUN}) {shown} or on ({BY_RUN}) {shown} * NaN"
        return f"max by ({BY_RUN}) ({known})"

    excess = "run_rank_phase:training_phase_excess_per_step:ratio"
    late = shortest(excess, BY_PHASE, f'{FLEET},phase="input_ready"')
    firing = f'count by ({BY_RUN}) (ALERTS{{alertname=~"Training.+",alertstate="firing",{FLEET}}})'
    return columns(
        "Runs by cost",
        f"The {_SHOWN} runs that lost most GPU-hours in the time range to waiting for slower ranks. A run leads to its "
        "overview.",
        "percentunit",
        _NO_RUN,
        [
            rows("A", shown),
            rows("B", of_shown(_SHARE)),
            rows("C", of_shown(f"clamp_min(max by ({BY_RUN}) ({late}), 0)")),
            rows("D", of_shown(f"run:training_skew_budget:ratio{{{FLEET}}}")),
            rows("E", of_shown(_RANKS)),
            rows("F", of_shown(shortest("run:training_steps:rate", BY_RUN, FLEET))),
            rows("G", f"{firing} and on ({BY_RUN}) {shown} or on ({BY_RUN}) {shown} * 0"),
        ],
        order={
            "run": "Run",
            "cluster": "Cluster",
            "namespace": "Namespace",
            "Value #A": "Lost in the time range",
            "Value #B": "Waits, of GPU time",
            "Value #C": "Latest input, of a step",
            "Value #D": "Budget, of a step",
            "Value #E": "Ranks",
            "Value #F": "Speed",
            "Value #G": "Firing",
        },
        by="Lost in the time range",
        mappings=[text_for_nan("not judged")],
        overrides={
            "Run": [
                property_("links", [link_to(OVERVIEW_UID, "Overview of this run", run="${__value.raw:percentencode}")])
            ],
            "Lost in the time range": [property_("unit", "suffix: GPU h"), property_("decimals", 2)],
            "Waits, of GPU time": [property_("decimals", 1)],
            "Latest input, of a step": [property_("decimals", 1)],
            "Budget, of a step": [property_("decimals", 0)],
            "Ranks": [property_("unit", "suffix: ranks"), property_("decimals", 0)],
            "Speed": [property_("unit", "suffix: steps/s"), property_("decimals", 3)],
            "Firing": [property_("unit", "suffix: alerts"), property_("decimals", 0)],
        },
    )


def _drawn(expr: str) -> list[Target]:
    """The runs that lose most, and of them the very first in a colour of its own."""
    first, many = f"topk(1, {_HOURS})", f"topk({_DRAWN}, {_HOURS})"
    return [
        lines("A", f"({expr}) and on ({BY_RUN}) {first}", "{{run}}"),
        lines("B", f"({expr}) and on ({BY_RUN}) {many} unless on ({BY_RUN}) {first}", "{{run}}"),
    ]


def _lost_over_time() -> Panel:
    return stacked(
        "GPUs that wait, by run",
        f"GPUs that do nothing but wait for slower ranks, of the {_DRAWN} runs that lose most in the time range.",
        "suffix: GPUs",
        _NO_WAIT,
        _drawn(_LOST),
        overrides=[colour("A", SUBJECT)],
    )


def _share_over_time() -> Panel:
    return trend(
        "Waiting, of GPU time, by run",
        "Share of its GPU time that a run loses to waiting for slower ranks, of the same runs.",
        "percentunit",
        _NO_WAIT,
        _drawn(_SHARE),
        overrides=[colour("A", SUBJECT)],
        recorded=True,
        legend=["lastNotNull", "max"],
    )

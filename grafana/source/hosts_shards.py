"""Host and shard: the same lateness by host and by shard, to see whether it follows hardware or data."""

from __future__ import annotations

from .frame import HOSTS_UID, RANK_UID, Panel, dashboard, host_variable, link_to, run_variable, shard_variable
from .overview import TOO_FEW
from .palette import SUBJECT
from .panels import colour, columns, property_, rank_heatmap, text_for_nan, trend
from .queries import BY_RUN, RUN, compute_excess, input_excess
from .targets import lines, rows

__all__ = ["hosts_shards"]

_HOSTS = f'{RUN},host=~"$host"'
_SHARDS = f'{_HOSTS},shard=~"$shard",shard!=""'
_SHOWN = 10
_WINDOW = "30m"
_FEW = 45
"""Points of what looks at thousands of series for each."""
_NO_SHARD = "No rank of this run names the shard it reads"
_PLACE = f"{BY_RUN}, rank, host, shard"


def hosts_shards() -> str:
    """Return the dashboard as JSON text."""
    return dashboard(
        HOSTS_UID,
        "Does slowness follow the hardware or the data? The same lateness by host and by shard.",
        [run_variable(), host_variable(), shard_variable()],
        f'{RUN},host=~"$host|"',
        [
            (9, [(12, _host_table()), (12, _shard_table())]),
            (9, [(24, _follows())]),
            (9, [(12, _host_input()), (12, _shard_input())]),
            (9, [(12, _host_compute()), (12, _ranks_of_hosts())]),
        ],
    )


def _mean(by: str, matchers: str, window: str, at: str = "") -> str:
    def rate(suffix: str) -> str:
        series = f'training_phase_duration_seconds_{suffix}{{{matchers},phase="input_ready"}}'
        return f"sum by ({by}) (rate({series}[{window}]{at}))"

    return f"({rate('sum')} / ({rate('count')} > 0))"


def _host_table() -> Panel:
    by = f"{BY_RUN}, host"
    worst = f"clamp_min(max by ({by}) ({input_excess(_HOSTS)} or {compute_excess(_HOSTS)}), 0)"
    mean = f"clamp_min(avg by ({by}) ({input_excess(_HOSTS)}), 0)"
    ranks = f"count by ({by}) (training_steps_total{{{_HOSTS}}})"
    shown = f"topk({_SHOWN}, {worst})"
    return columns(
        "By host",
        f"The {_SHOWN} hosts whose worst rank is later than the run's median rank by most. Worst and mean alike: all "
        "ranks of the host are late, so look at the host. Far apart: it is one rank.",
        "percentunit",
        TOO_FEW,
        [
            rows("A", shown),
            rows("B", f"{mean} and on ({by}) {shown}"),
            rows("C", f"{ranks} and on ({by}) {shown}"),
        ],
        order={
            "host": "Host",
            "Value #A": "Worst rank, of a step",
            "Value #B": "All ranks' input, of a step",
            "Value #C": "Ranks",
        },
        by="Worst rank, of a step",
        overrides={
            "Host": [property_("links", [link_to(HOSTS_UID, "This host alone", host="${__value.raw}")])],
            "Worst rank, of a step": [property_("decimals", 1)],
            "All ranks' input, of a step": [property_("decimals", 1)],
            "Ranks": [property_("unit", "suffix: ranks"), property_("decimals", 0), property_("custom.width", 90)],
        },
    )


def _shard_table() -> Panel:
    by = f"{BY_RUN}, shard"
    mean = _mean(by, _SHARDS, _WINDOW)
    readers = (
        f"count by ({by}) (sum by ({_PLACE}) "
        f'(rate(training_phase_duration_seconds_count{{{_SHARDS},phase="input_ready"}}[{_WINDOW}])) > 0)'
    )
    shown = f"topk({_SHOWN}, {mean})"
    median = f"quantile by ({BY_RUN}) (0.5, {mean})"
    return columns(
        "By shard",
        f"The {_SHOWN} shards that take longest for a batch, over {_WINDOW}, against the median shard.",
        "s",
        _NO_SHARD,
        [
            rows("A", shown),
            rows("B", f"{shown} / on ({BY_RUN}) group_left () ({median} > 0)"),
            rows("C", f"{readers} and on ({by}) {shown}"),
        ],
        order={
            "shard": "Shard",
            "Value #A": "Time for a batch",
            "Value #B": "Of the median shard's",
            "Value #C": "Ranks that read it",
        },
        by="Time for a batch",
        overrides={
            "Shard": [property_("links", [link_to(HOSTS_UID, "This shard alone", shard="${__value.raw}")])],
            "Time for a batch": [property_("decimals", 1)],
            "Of the median shard's": [property_("unit", "percentunit"), property_("decimals", 0)],
            "Ranks that read it": [property_("unit", "suffix: ranks"), property_("decimals", 0)],
        },
    )


def _follows() -> Panel:
    here = _mean(_PLACE, _SHARDS, _WINDOW)
    shown = f"topk({_SHOWN}, {here})"

    def elsewhere(kept: str) -> str:
        """Mean over what ``kept`` has in common with a place, the place itself left out."""
        series = f'training_phase_duration_seconds_{{suffix}}{{{RUN},phase="input_ready",shard!=""}}'

        def rest(suffix: str) -> str:
            rate = f"rate({series.replace('{suffix}', suffix)}[{_WINDOW}])"
            own = f"(sum by ({_PLACE}) ({rate}) and on ({_PLACE}) {shown})"
            return f"(sum by ({BY_RUN}, {kept}) ({rate}) - on ({BY_RUN}, {kept}) group_right () {own})"

        return f"{rest('sum')} / ({rest('count')} > 0.0001)"

    def or_none(expr: str) -> str:
        return f"{expr} or on ({_PLACE}) {shown} * NaN"

    return columns(
        "Does it follow the shard or the host?",
        f"The {_SHOWN} places where a batch takes longest, over {_WINDOW}: a shard, read by a rank on a host. Slow "
        "on the same shard elsewhere: it follows the data. Slow with other shards on the same host: it follows the "
        "hardware.",
        "s",
        _NO_SHARD,
        [rows("A", shown), rows("B", or_none(elsewhere("shard"))), rows("C", or_none(elsewhere("host")))],
        order={
            "rank": "Rank",
            "host": "Host",
            "shard": "Shard",
            "Value #A": "Time for a batch here",
            "Value #B": "Same shard, read by others",
            "Value #C": "Same host, all else",
        },
        by="Time for a batch here",
        numeric=["rank"],
        mappings=[text_for_nan("nothing to compare")],
        overrides={
            "Rank": [
                property_("unit", "none"),
                property_("decimals", 0),
                property_("custom.width", 60),
                property_("links", [link_to(RANK_UID, "Details of this rank", rank="${__value.raw}")]),
            ],
            "Time for a batch here": [property_("decimals", 1)],
            "Same shard, read by others": [property_("decimals", 1)],
            "Same host, all else": [property_("decimals", 1)],
        },
    )


def _named(
    title: str, description: str, unit: str, empty: str, expr: str, by: str, name: str, *, typical: str = ""
) -> Panel:
    """Lines of the ones that are largest over the time range, the very largest in a colour of its own. ``typical``:
    what says how large they are over the range, where that is less dear than the mean of ``expr``."""
    typical = typical or f"avg_over_time(({expr})[$__range:10m] @ end())"
    first, many = f"topk(1, {typical})", f"topk({_SHOWN}, {typical})"
    return trend(
        title,
        description,
        unit,
        empty,
        [
            lines("A", f"{expr} and on ({by}) {first}", name),
            lines("B", f"{expr} and on ({by}) {many} unless on ({by}) {first}", name),
        ],
        overrides=[colour("A", SUBJECT)],
        legend=["mean", "max"],
        recorded=True,
        points=_FEW,
    )


def _host_input() -> Panel:
    by = f"{BY_RUN}, host"
    return _named(
        "Input later than the median rank, by host",
        f"Mean over the ranks of a host, of the {_SHOWN} hosts that are latest in the time range.",
        "percentunit",
        TOO_FEW,
        f"clamp_min(avg by ({by}) ({input_excess(_HOSTS)}), 0)",
        by,
        "{{host}}",
    )


def _shard_input() -> Panel:
    by = f"{BY_RUN}, shard"
    return _named(
        "Time for a batch, by shard",
        f"Mean over the ranks that read a shard, of the {_SHOWN} shards that take longest in the time range.",
        "s",
        _NO_SHARD,
        _mean(by, _SHARDS, "5m"),
        by,
        "{{shard}}",
        typical=_mean(by, _SHARDS, "$__range", " @ end()"),
    )


def _host_compute() -> Panel:
    by = f"{BY_RUN}, host"
    return _named(
        "Other phases slower than the median rank, by host",
        f"Worst rank and phase of a host, of the {_SHOWN} hosts that are slowest in the time range. Only ranks that "
        "others wait for count.",
        "percentunit",
        "No rank of these hosts is slower than the median rank and waited for",
        f"clamp_min(max by ({by}) ({compute_excess(_HOSTS)}), 0)",
        by,
        "{{host}}",
    )


def _ranks_of_hosts() -> Panel:
    def spent(phase: str) -> str:
        series = f'training_phase_duration_seconds_sum{{{_HOSTS},phase="{phase}"}}'
        return f"sum by (host) (rate({series}[$__rate_interval]))"

    return rank_heatmap(
        "Input-ready time by host, of a step",
        "Share of the time in steps that the ranks of a host wait for their batches, one row a host. A bright row is a "
        "slow host. Brightest: 40 % and more.",
        "percentunit",
        "No rank of these hosts has fetched a batch in this time range",
        lines("A", f"{spent('input_ready')} / ({spent('step')} > 0)", "{{host}}"),
        rows="host",
    )

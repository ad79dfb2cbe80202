"""PromQL that several panels share.

Recorded series carry the label ``window``: the one that a run is judged in depends on how many steps it makes. A panel
shows the shortest that holds enough.
"""

from __future__ import annotations

__all__ = [
    "BY_HOST",
    "BY_PHASE",
    "BY_RANK",
    "BY_RUN",
    "FLEET",
    "RUN",
    "aligned",
    "budget_label",
    "compute_excess",
    "input_excess",
    "ordered_by_rank",
    "read_shard",
    "shortest",
    "top",
    "where_aligned",
    "with_shard",
    "worst_phase",
]

FLEET = 'cluster=~"$cluster",namespace=~"$namespace"'
"""Matchers of all runs; series without the labels match as long as the variables are at All."""

RUN = f'{FLEET},run="$run"'
"""Matchers of the chosen run."""

BY_RUN = "cluster, namespace, run"
BY_HOST = f"{BY_RUN}, host"
BY_RANK = f"{BY_RUN}, rank, host"
BY_PHASE = f"{BY_RANK}, phase"

_EXCESS = "run_rank_phase:training_phase_excess_per_step:ratio"
_NOISE = 0.002
"""A share of a step that is not worth a look."""


def shortest(record: str, on: str, matchers: str = RUN) -> str:
    """Return ``record`` in the shortest window that has it, for each set of the labels ``on``."""
    short, long = (f'{record}{{{matchers},window="{window}"}}' for window in ("short", "long"))
    return f"max by ({on}) ({short} or on ({on}) {long})"


def input_excess(matchers: str = RUN) -> str:
    """Return by how much of a step each rank has its batch later than the median rank."""
    return shortest(_EXCESS, BY_PHASE, f'{matchers},phase="input_ready"')


def compute_excess(matchers: str = RUN) -> str:
    """Return by how much of a step each rank is slower than the median rank in each other phase, if at all.

    It counts only for a rank that waits less for its peers than the median rank does: the victims of a slow rank are
    not slow themselves.
    """
    other = f'{matchers},phase!="input_ready"'
    short, long = (f'{_EXCESS}{{{other},window="{window}"}}' for window in ("short", "long"))
    # What is noise is left out first: of a thousand ranks little is left for the joins.
    slower = f"max by ({BY_PHASE}) ({short} > {_NOISE} or {long} > {_NOISE} unless on ({BY_PHASE}) {short})"
    deficit = shortest("run_rank:training_collective_wait_deficit_per_step:ratio", BY_RANK, matchers)
    return f"({slower} and on ({BY_RANK}) {deficit} > 0)"


def worst_phase(matchers: str = RUN) -> str:
    """Return each rank's excess in the phase in which it exceeds the median rank most; never less than nothing."""
    return f"clamp_min(topk by ({BY_RANK}) (1, {input_excess(matchers)} or {compute_excess(matchers)}), 0)"


def top(count: int, expr: str) -> str:
    """Return the largest ``count`` series of an instant query."""
    return f"topk({count}, {expr})"


def read_shard(matchers: str = RUN) -> str:
    """Return 1 for each rank, with the shard on which it spent most of its input time of late, as the page has it."""
    spent = (
        f"sum by ({BY_RANK}, shard) "
        f'(rate(training_phase_duration_seconds_sum{{{matchers},phase="input_ready",shard!=""}}[10m])) > 0'
    )
    return f"topk by ({BY_RANK}) (1, {spent}) * 0 + 1"


def with_shard(expr: str, matchers: str = RUN) -> str:
    """Return ``expr``, of one series a rank, with the label shard where the rank reports one."""
    return f"({expr}) * on ({BY_RANK}) group_left (shard) ({read_shard(matchers)}) or on ({BY_RANK}) ({expr})"


def budget_label(expr: str) -> str:
    """Return ``expr``, of one series a run, with the run's budget in per cent as the label budget."""
    budget = f'count_values by ({BY_RUN}) ("budget", round(100 * run:training_skew_budget:ratio{{{RUN}}}, 0.1))'
    return f"({expr}) * on ({BY_RUN}) group_left (budget) ({budget} * 0 + 1)"


def aligned(matchers: str = RUN) -> str:
    """Return 0 for each run whose steps are aligned across ranks, and nothing for others."""
    steps = f"rate(training_aligned_steps_total{{{matchers}}}[10m])"
    return f"sum by ({BY_RUN}) ({steps} > 0) * 0"


def where_aligned(expr: str, ranks: str) -> str:
    """Return ``expr`` for each of ``ranks``: 0 where steps are aligned and it is not there, NaN where they are not."""
    each = f"max by ({BY_RANK}) ({ranks}) * 0"
    none = f"{each} and on ({BY_RUN}) {aligned()} == 0"
    return f"({expr}) and on ({BY_RANK}) {each} or on ({BY_RANK}) ({none}) or on ({BY_RANK}) {each} * NaN"


def ordered_by_rank(expr: str) -> str:
    """Return ``expr`` by rank, in numeric order.

    Results come sorted by label names, then values: the label ``at`` is compared before ``rank`` and is padded.
    """
    padded = f'label_replace({expr}, "at", "00000$1", "rank", "(.*)")'
    return f'max by (at, rank) (label_replace({padded}, "at", "$1", "at", "0*(.{{6}})"))'

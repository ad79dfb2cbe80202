"""Rank detail: one rank against the median rank of its run, phase by phase, and what its loader, host and GPU do."""

from __future__ import annotations

from .frame import HOSTS_UID, RANK_UID, Panel, dashboard, link_to, rank_variable, run_variable
from .overview import BUDGET, FEW, UNALIGNED
from .palette import MUTED, NEUTRAL, PHASE_COLOURS, SUBJECT
from .panels import colour, dashed, dotted, lights, trend, values
from .queries import BY_RANK, BY_RUN, RUN, aligned, budget_label, shortest, with_shard, worst_phase
from .targets import lines, now

__all__ = ["rank"]

_RANK = f'{RUN},rank="$rank"'
_ON_ITS_HOST = f"and on (host) training_rank_info{{{_RANK}}}"
_NOTHING = "This rank recorded nothing in this time range"

_TITLES = {
    "input_ready": ("Input ready", "From asking for the next batch to having it in hand."),
    "h2d": ("Copy to device", "Copying the batch from host to device."),
    "forward": ("Forward", "The forward pass."),
    "backward": (
        "Backward",
        "From the start of backward to this rank's last gradient; waiting for others is not in it.",
    ),
    "collective_wait": (
        "Waiting for others",
        "From this rank's last gradient to the end of backward. The rank that others wait for waits least.",
    ),
    "optimizer": ("Optimizer", "The optimizer's step."),
    "other": ("Other", "The rest of the step: logging, garbage collection, code between steps."),
    "step": (
        "Step",
        "The whole step, which the phases add up to. It is the same for all ranks that wait for each other.",
    ),
}


def rank() -> str:
    """Return the dashboard as JSON text."""
    phases = [_phase(phase) for phase in _TITLES]
    return dashboard(
        RANK_UID,
        "One rank against the median rank of its run: each phase, the loader, the host and the GPU.",
        [run_variable(), rank_variable()],
        f'{RUN},rank=~"$rank|"',
        [
            (5, [(5, _excess()), (4, _delay()), (4, _last()), (6, _place()), (5, _in_progress())]),
            (8, [(6, phase) for phase in phases[:4]]),
            (8, [(6, phase) for phase in phases[4:]]),
            (8, [(8, _queue()), (8, _production()), (8, _headroom())]),
            (8, [(8, _cpu()), (8, _host()), (8, _storage())]),
            (8, [(8, _device()), (8, _memory()), (8, _collection())]),
        ],
    )


def _excess() -> Panel:
    worst = f"max by ({BY_RUN}) ({worst_phase(_RANK)})"
    return lights(
        "Later than the median rank, of a step",
        "By how much of the median step this rank is later than the median rank, in its worst phase.",
        "percentunit",
        FEW,
        now("A", budget_label(f"{worst} <= on ({BY_RUN}) {BUDGET}"), "within the budget of {{budget}} %"),
        now("B", budget_label(f"{worst} > on ({BY_RUN}) {BUDGET}"), "over the budget of {{budget}} %"),
    )


def _aligned(record: str) -> str:
    """The record of this rank; 0 while it is never last."""
    never = f"count by ({BY_RANK}) (training_steps_total{{{_RANK}}}) * 0 and on ({BY_RUN}) {aligned()}"
    return f"{shortest(record, BY_RANK, _RANK)} or on ({BY_RANK}) ({never})"


def _delay() -> Panel:
    return values(
        "Delay it causes, of a step",
        "Time for which this rank alone held the others up, as a share of the time in steps.",
        "percentunit",
        UNALIGNED,
        [now("A", _aligned("run_rank:training_delay_caused_per_step:ratio"), "delay caused")],
        decimals=1,
        named=False,
    )


def _last() -> Panel:
    return values(
        "Last in, of steps",
        "Share of the aligned steps in which this rank was ready last.",
        "percentunit",
        UNALIGNED,
        [now("A", _aligned("run_rank:training_last_rank_per_step:ratio"), "last")],
        decimals=0,
        named=False,
    )


def _place() -> Panel:
    record = "run_rank_phase:training_phase_duration_seconds:mean"
    placed = with_shard(shortest(record, BY_RANK, f'{_RANK},phase="input_ready"'), _RANK)
    return values(
        "Input time, host and shard",
        "Mean time for a batch, with the host of the rank and the shard on which it spent most of that time of late.",
        "s",
        FEW,
        [now("A", placed, "{{host}} · {{shard}}")],
        decimals=1,
        title_size=15,
        links=[link_to(HOSTS_UID, "Does it follow host or shard?")],
    )


def _in_progress() -> Panel:
    return values(
        "Now in phase",
        "How long the rank has been in its current phase, also while it hangs.",
        "s",
        "This rank does not report",
        [now("A", f"topk(1, training_phase_in_progress_seconds{{{_RANK}}})", "{{phase}}")],
        decimals=1,
    )


def _phase(phase: str) -> Panel:
    title, description = _TITLES[phase]
    own = f'training_phase_duration_seconds_bucket{{{_RANK},phase="{phase}"}}'

    def quantile(value: str) -> str:
        return f"histogram_quantile({value}, sum by (le) (rate({own}[$__rate_interval])))"

    median = shortest("run_phase:training_phase_duration_seconds:median_mean", BY_RUN, f'{RUN},phase="{phase}"')
    targets = [
        lines("A", quantile("0.5"), "p50 of rank $rank", exemplars=True),
        lines("B", quantile("0.99"), "p99 of rank $rank", exemplars=True),
        lines("C", median, "mean of the median rank"),
    ]
    own_colour = PHASE_COLOURS.get(phase, NEUTRAL)
    overrides = [colour("A", own_colour), dotted("B", own_colour), dashed("C")]
    if phase == "input_ready":
        targets.append(lines("D", f"run:training_input_ready_seconds:median_p99{{{RUN}}}", "p99 of the median rank"))
        overrides.append(dashed("D", MUTED))
    return trend(
        title, f"{description} Dotted: p99. Dashed: the median rank.", "s", _NOTHING, targets, overrides=overrides
    )


def _queue() -> Panel:
    return trend(
        "Loader's queue",
        "Batches that the loader's workers had ready when training asked for the latest one. At 0 training waits "
        "for the loader.",
        "suffix: batches",
        "This rank's loader has no workers that are watched",
        [lines("A", f"training_loader_queue_depth{{{_RANK}}}", "batches ready")],
        overrides=[colour("A", SUBJECT)],
    )


def _production() -> Panel:
    def quantile(value: str) -> str:
        series = f"training_batch_production_seconds_bucket{{{_RANK}}}"
        return f"histogram_quantile({value}, sum by (le) (rate({series}[$__rate_interval])))"

    batches = f"sum by ({BY_RANK}) (rate(training_batch_production_seconds_count{{{_RANK}}}[$__rate_interval]))"
    need = f"max by ({BY_RANK}) (training_loader_workers{{{_RANK}}}) / ({batches} > 0)"
    return trend(
        "Producing a batch, against the time there is",
        "How long a worker takes for one batch, and the time it may take at the pace at which the rank trains: workers "
        "divided by batches per second. Where both meet, training goes as fast as the loader, and no faster.",
        "s",
        "This rank's loader has no workers that are watched",
        [
            lines("A", quantile("0.5"), "p50", exemplars=True),
            lines("B", quantile("0.99"), "p99", exemplars=True),
            lines("C", need, "time there is"),
        ],
        overrides=[colour("A", SUBJECT), dotted("B", SUBJECT), dashed("C")],
    )


def _headroom() -> Panel:
    headroom = shortest("run_rank:training_loader_headroom:ratio", BY_RANK, _RANK)
    return trend(
        "Loader headroom, of the need",
        "Batches that the workers can make, divided by the batches that the rank would use if it never waited. At "
        "100 % they just keep up; below, training waits for them. More than 400 % is not drawn.",
        "percentunit",
        "This rank's loader has no workers that are watched",
        [lines("A", headroom, "headroom"), lines("B", f"{headroom} * 0 + 1", "just enough")],
        overrides=[colour("A", SUBJECT), dashed("B")],
        recorded=True,
        up_to=4,
    )


def _cpu() -> Panel:
    def of(process: str) -> str:
        return f'{_RANK},process="{process}"'

    def used(process: str) -> str:
        return f"sum by ({BY_RANK}) (rate(training_process_cpu_seconds_total{{{of(process)}}}[$__rate_interval]))"

    def allowed(process: str) -> str:
        return f"max by ({BY_RANK}) (training_process_cpus_allowed{{{of(process)}}})"

    return trend(
        "CPUs of the rank and its workers",
        "CPUs that the rank's process and its workers kept busy, and those that they may. At the limit, more "
        "workers do not help.",
        "suffix: CPUs",
        "CPU time of this rank is not known",
        [
            lines("A", used("rank"), "the rank uses"),
            lines("B", used("workers"), "its workers use"),
            lines("C", allowed("rank"), "the rank may use"),
            lines("D", allowed("workers"), "its workers may use"),
        ],
        overrides=[colour("A", NEUTRAL), colour("B", SUBJECT), dashed("C", NEUTRAL), dashed("D", SUBJECT)],
    )


def _host() -> Panel:
    return trend(
        "CPUs of its host",
        "Share of the host's CPU time in use, by whomever, and share of time in which some task was ready and had no "
        "CPU. Pressure with a slow loader: the workers lack CPUs.",
        "percentunit",
        "The host of this rank is not watched",
        [
            lines("A", f"training_host_cpu_utilization_ratio{{{_host_matchers()}}} {_ON_ITS_HOST}", "{{host}} in use"),
            lines("B", f"training_host_cpu_pressure_ratio{{{_host_matchers()}}} {_ON_ITS_HOST}", "{{host}} pressure"),
        ],
        overrides=[colour("A", NEUTRAL), colour("B", SUBJECT)],
    )


def _host_matchers() -> str:
    return 'cluster=~"$cluster",namespace=~"$namespace"'


def _storage() -> Panel:
    def rate(series: str) -> str:
        return f"sum by (host, device) (rate({series}{{{_host_matchers()}}}[$__rate_interval]) {_ON_ITS_HOST})"

    seconds, reads = rate("training_storage_read_seconds_total"), rate("training_storage_reads_total")
    return trend(
        "Time of a read from storage",
        "Mean time of a read, by disk or NFS export of the host.",
        "s",
        "No storage of this rank's host is watched",
        [lines("A", f"topk(8, {seconds} / ({reads} > 0))", "{{device}}")],
    )


def _device() -> Panel:
    active = f"sum by (device) (rate(training_device_active_seconds_total{{{_RANK}}}[$__rate_interval]))"
    return trend(
        "GPU busy",
        "Share of the time in which a kernel ran on the rank's GPU. A rank that waits for others may be busy waiting: "
        "the collective's kernel runs.",
        "percentunit",
        "No GPU of this rank is watched",
        [lines("A", active, "{{device}}")],
    )


def _memory() -> Panel:
    return trend(
        "GPU memory",
        "Memory of the rank's GPU in use, by whomever.",
        "bytes",
        "No GPU of this rank is watched",
        [lines("A", f"max by (device) (training_device_memory_used_bytes{{{_RANK}}})", "{{device}}")],
    )


def _collection() -> Panel:
    return trend(
        "Garbage collection",
        "Share of the time in which garbage collection held the rank's process up.",
        "percentunit",
        _NOTHING,
        [lines("A", f"rate(training_gc_pause_seconds_total{{{_RANK}}}[$__rate_interval])", "held up")],
        overrides=[colour("A", PHASE_COLOURS["other"])],
    )

"""Every metric that the product publishes: name, type, help and labels, in this one place.

The agent builds its metric families from these entries; rules, dashboards and runbooks may name
no metric that is not listed here (a contract test holds that).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "AGENT_SCRAPE_SECONDS",
    "ALIGNED_RANKS",
    "ALIGNED_STEPS",
    "BATCH_PRODUCTION",
    "BUCKET_READY",
    "BUCKET_REDUCTION",
    "BUILD_INFO",
    "DELAY_CAUSED",
    "DEVICE_ACTIVE_SECONDS",
    "DEVICE_MEMORY_USED",
    "DEVICE_UTILIZATION",
    "DUPLICATE_SAMPLES",
    "EPOCHS",
    "ERRORS",
    "EXPOSED_WAIT",
    "GC_PAUSE_SECONDS",
    "HOST_CPU_PRESSURE",
    "HOST_CPU_UTILIZATION",
    "HOST_EVIDENCE",
    "LAST_RANK_STEPS",
    "LAST_STEP_TIMESTAMP",
    "LOADER_QUEUE_DEPTH",
    "LOADER_WORKERS",
    "METRICS",
    "OPTIMIZER_STEPS_SKIPPED",
    "PADDED_SAMPLES",
    "PER_RANK",
    "PHASE_DURATION",
    "PHASE_IN_PROGRESS",
    "PROCESS_CPUS_ALLOWED",
    "PROCESS_CPU_SECONDS",
    "RANK_ALIGNED_STEPS",
    "RANK_DELAY_CAUSED",
    "RANK_INFO",
    "RECORDING_SECONDS",
    "SAMPLES",
    "SAMPLE_DIGEST",
    "SEGMENTS",
    "SHARDS_DROPPED",
    "SKEW_BUDGET",
    "STEPS",
    "STEP_ALIGNED",
    "STEP_SKEW",
    "STORAGE_READS",
    "STORAGE_READ_SECONDS",
    "TOKENS",
    "WORLD_SIZE",
    "Metric",
]

Kind = Literal["counter", "gauge", "histogram"]

PER_RANK: tuple[str, ...] = ("run", "rank", "host")
"""Labels of every per-rank series. Never job, instance, pod, namespace, container or endpoint: scraping adds those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One metric family. ``name`` is the exposed name, with ``_total`` for counters."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = PER_RANK

    @property
    def series_names(self) -> tuple[str, ...]:
        """The names under which its samples are stored by Prometheus."""
        if self.kind == "histogram":
            return tuple(self.name + suffix for suffix in ("_bucket", "_sum", "_count"))
        return (self.name,)


PHASE_DURATION = Metric(
    name="training_phase_duration_seconds",
    kind="histogram",
    help="Time a rank spent in a phase, one observation per phase and step. "
    "The phases but step add up to step; first_batch, eval and checkpoint lie beside it.",
    labels=(*PER_RANK, "phase", "shard"),
)
BATCH_PRODUCTION = Metric(
    name="training_batch_production_seconds",
    kind="histogram",
    help="Time a loader worker took to produce one batch of the training loader.",
    labels=(*PER_RANK, "shard"),
)
BUCKET_READY = Metric(
    name="training_bucket_ready_seconds",
    kind="histogram",
    help="Time from the beginning of backward until a gradient bucket of DistributedDataParallel was full, where "
    "bucket_timing is on. bucket: its index in the order of reduction, of the first model timed; or other.",
    labels=(*PER_RANK, "bucket"),
)
BUCKET_REDUCTION = Metric(
    name="training_bucket_reduction_seconds",
    kind="histogram",
    help="Time from when a gradient bucket of DistributedDataParallel was full until it was reduced over all ranks, "
    "the wait for them included, where bucket_timing is on.",
    labels=(*PER_RANK, "bucket"),
)
LOADER_QUEUE_DEPTH = Metric(
    name="training_loader_queue_depth",
    kind="gauge",
    help="Batches that the loader's workers had ready when training asked for the latest one.",
)
LOADER_WORKERS = Metric(
    name="training_loader_workers",
    kind="gauge",
    help="Worker processes of the training loader; 0: training produces its batches itself.",
)
PHASE_IN_PROGRESS = Metric(
    name="training_phase_in_progress_seconds",
    kind="gauge",
    help="How long the rank has been in its current phase, now, also while the rank hangs.",
    labels=(*PER_RANK, "phase"),
)
STEPS = Metric(name="training_steps_total", kind="counter", help="Training steps ended.")
SAMPLES = Metric(
    name="training_samples_total",
    kind="counter",
    help="Samples that training took: counted from its batches, or by its loop.",
)
TOKENS = Metric(
    name="training_tokens_total",
    kind="counter",
    help="Tokens that training took, those that pad sequences included: counted from its batches, or by its loop.",
)
PADDED_SAMPLES = Metric(
    name="training_padded_samples_total",
    kind="counter",
    help="Samples among training_samples_total that only pad the batch or the epoch.",
)
DUPLICATE_SAMPLES = Metric(
    name="training_duplicate_samples_total",
    kind="counter",
    help="Samples that a rank took again within an epoch, padding left out. At least: those of a large epoch that lie "
    "far apart may be missed.",
)
SAMPLE_DIGEST = Metric(
    name="training_sample_digest_info",
    kind="gauge",
    help="Always 1. What a rank took in the epoch that ended last: how many samples, how many of them padding, and the "
    "digest of the others' identifiers, whatever their order; empty where some were not identified. After the rank's "
    "end also the epoch that it was in.",
    labels=(*PER_RANK, "epoch", "samples", "padded", "digest", "complete", "world_size", "started"),
)
OPTIMIZER_STEPS_SKIPPED = Metric(
    name="training_optimizer_steps_skipped_total",
    kind="counter",
    help="Optimizer steps that a gradient scaler left out because of an infinity or NaN.",
)
EPOCHS = Metric(name="training_epochs_total", kind="counter", help="Times a training loader was read to its end.")
LAST_STEP_TIMESTAMP = Metric(
    name="training_last_step_timestamp_seconds",
    kind="gauge",
    help="Unix time at which the rank's last step ended, by the clock of its host.",
)
RANK_INFO = Metric(
    name="training_rank_info",
    kind="gauge",
    help="Always 1. Facts about a rank: the shard it reads now, its place on the host, "
    "what it trains with, which clock its phases are timed by, and which of them include waiting for other ranks.",
    labels=(*PER_RANK, "shard", "local_rank", "device", "backend", "framework", "clock", "group", "waits_in"),
)
WORLD_SIZE = Metric(
    name="training_world_size", kind="gauge", help="Ranks that the run was started with.", labels=("run",)
)
SKEW_BUDGET = Metric(
    name="training_skew_budget_ratio",
    kind="gauge",
    help="Skew that the run tolerates, as a share of its median step time.",
    labels=("run",),
)
ALIGNED_STEPS = Metric(
    name="training_aligned_steps_total",
    kind="counter",
    help="Steps that were compared across ranks by their number. From the agent of rank 0, as all that is aligned.",
    labels=("run",),
)
ALIGNED_RANKS = Metric(
    name="training_aligned_ranks",
    kind="gauge",
    help="Ranks that the latest aligned step was seen from. Fewer than training_world_size: some cannot be asked.",
    labels=("run",),
)
EXPOSED_WAIT = Metric(
    name="training_exposed_wait_seconds_total",
    kind="counter",
    help="GPU-seconds lost to waiting: the sum over ranks of the wait in a step beyond that of the rank waiting least.",
    labels=("run",),
)
STEP_SKEW = Metric(
    name="training_step_skew_seconds",
    kind="histogram",
    help="Time in a phase of the slowest rank of a step beyond the median rank's, one observation per aligned step.",
    labels=("run", "phase"),
)
LAST_RANK_STEPS = Metric(
    name="training_last_rank_steps_total",
    kind="counter",
    help="Aligned steps in which this rank was ready last, by the phase in which it exceeded the median rank most.",
    labels=(*PER_RANK, "phase"),
)
DELAY_CAUSED = Metric(
    name="training_delay_caused_seconds_total",
    kind="counter",
    help="Over the aligned steps in which this rank was the last: the time from when the median rank was ready "
    "until it was, by the phase in which it exceeded the median most.",
    labels=(*PER_RANK, "shard", "phase"),
)
RANK_ALIGNED_STEPS = Metric(
    name="training_rank_aligned_steps_total",
    kind="counter",
    help="Aligned steps in which this rank was compared with the others. Absent while the rank cannot be asked.",
)
RANK_DELAY_CAUSED = Metric(
    name="training_rank_delay_caused_seconds_total",
    kind="counter",
    help="training_delay_caused_seconds_total of this rank whatever the shard, and in input_ready from 0 on, so that "
    "no part is lost however often the shard changes. Absent while the rank cannot be asked.",
    labels=(*PER_RANK, "phase"),
)
GC_PAUSE_SECONDS = Metric(
    name="training_gc_pause_seconds_total",
    kind="counter",
    help="Time for which garbage collection held the rank's process up.",
)
PROCESS_CPU_SECONDS = Metric(
    name="training_process_cpu_seconds_total",
    kind="counter",
    help="CPU time of the rank's process since it began, and of its workers: the processes it started, such as loader "
    "workers, also those that have ended.",
    labels=(*PER_RANK, "process"),
)
PROCESS_CPUS_ALLOWED = Metric(
    name="training_process_cpus_allowed",
    kind="gauge",
    help="CPUs that the rank's process, or all its workers together, may keep busy: those they may run on, or the "
    "limit of their container where that is less.",
    labels=(*PER_RANK, "process"),
)
HOST_CPU_UTILIZATION = Metric(
    name="training_host_cpu_utilization_ratio",
    kind="gauge",
    help="Share of the host's CPU time of the last ten seconds that was not idle, whoever used it.",
    labels=("host",),
)
HOST_CPU_PRESSURE = Metric(
    name="training_host_cpu_pressure_ratio",
    kind="gauge",
    help="Share of the last ten seconds in which some task of the host was ready to run and had no CPU.",
    labels=("host",),
)
STORAGE_READ_SECONDS = Metric(
    name="training_storage_read_seconds_total",
    kind="counter",
    help="Time that reads of the host took, added up over reads, by disk or NFS export.",
    labels=("host", "device"),
)
STORAGE_READS = Metric(
    name="training_storage_reads_total",
    kind="counter",
    help="Reads of the host that completed, by disk or NFS export.",
    labels=("host", "device"),
)
DEVICE_ACTIVE_SECONDS = Metric(
    name="training_device_active_seconds_total",
    kind="counter",
    help="Time in which a kernel ran on the GPU, while the agent watched. Empty rank: none is known to use it alone.",
    labels=(*PER_RANK, "device"),
)
DEVICE_UTILIZATION = Metric(
    name="training_device_utilization_ratio",
    kind="gauge",
    help="Share of the last second or less in which a kernel ran on the GPU.",
    labels=(*PER_RANK, "device"),
)
DEVICE_MEMORY_USED = Metric(
    name="training_device_memory_used_bytes",
    kind="gauge",
    help="Memory of the GPU that is in use, by whomever.",
    labels=(*PER_RANK, "device"),
)
RECORDING_SECONDS = Metric(
    name="training_exporter_recording_seconds_total",
    kind="counter",
    help="Time the rank spent committing its steps to the segment: the exporter's own cost in the training loop.",
)
ERRORS = Metric(
    name="training_exporter_errors_total",
    kind="counter",
    help="Faults the exporter met and survived, by reason. Empty rank: met by the agent itself.",
    labels=(*PER_RANK, "reason"),
)
SHARDS_DROPPED = Metric(
    name="training_exporter_shards_dropped_total",
    kind="counter",
    help="Steps whose shard had no slot of its own and was recorded as shard other.",
)
SEGMENTS = Metric(
    name="training_exporter_segments",
    kind="gauge",
    help="Segments the agent serves, by state: live, or ended and kept until they were scraped.",
    labels=("host", "state"),
)
AGENT_SCRAPE_SECONDS = Metric(
    name="training_exporter_scrape_seconds_total",
    kind="counter",
    help="Time the agent spent rendering expositions.",
    labels=("host",),
)
BUILD_INFO = Metric(
    name="training_exporter_build_info",
    kind="gauge",
    help="Always 1. Version of the agent.",
    labels=("host", "version"),
)

STEP_ALIGNED: tuple[Metric, ...] = (
    ALIGNED_STEPS,
    ALIGNED_RANKS,
    EXPOSED_WAIT,
    STEP_SKEW,
    LAST_RANK_STEPS,
    DELAY_CAUSED,
    RANK_ALIGNED_STEPS,
    RANK_DELAY_CAUSED,
)
"""What the agent beside rank 0 publishes once it compares the ranks of a run step by step."""

HOST_EVIDENCE: tuple[Metric, ...] = (
    PROCESS_CPU_SECONDS,
    PROCESS_CPUS_ALLOWED,
    HOST_CPU_UTILIZATION,
    HOST_CPU_PRESSURE,
    STORAGE_READ_SECONDS,
    STORAGE_READS,
    DEVICE_ACTIVE_SECONDS,
    DEVICE_UTILIZATION,
    DEVICE_MEMORY_USED,
)
"""What the agent finds on the host itself, as far as the host has it."""

METRICS: tuple[Metric, ...] = (
    PHASE_DURATION,
    BATCH_PRODUCTION,
    BUCKET_READY,
    BUCKET_REDUCTION,
    LOADER_QUEUE_DEPTH,
    LOADER_WORKERS,
    PHASE_IN_PROGRESS,
    STEPS,
    SAMPLES,
    TOKENS,
    PADDED_SAMPLES,
    DUPLICATE_SAMPLES,
    SAMPLE_DIGEST,
    OPTIMIZER_STEPS_SKIPPED,
    EPOCHS,
    LAST_STEP_TIMESTAMP,
    RANK_INFO,
    WORLD_SIZE,
    SKEW_BUDGET,
    *STEP_ALIGNED,
    GC_PAUSE_SECONDS,
    *HOST_EVIDENCE,
    RECORDING_SECONDS,
    ERRORS,
    SHARDS_DROPPED,
    SEGMENTS,
    AGENT_SCRAPE_SECONDS,
    BUILD_INFO,
)

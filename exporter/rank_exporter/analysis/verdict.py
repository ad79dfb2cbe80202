"""What can be said of a run, and what to look at then. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

from ..phases import Phase

__all__ = [
    "BALANCED",
    "BATCH_SKEW",
    "COMPUTE_BOUND",
    "COMPUTE_STRAGGLER",
    "FABRIC",
    "H2D_STRAGGLER",
    "INPUT_BOUND",
    "INPUT_STRAGGLER",
    "KINDS",
    "PERSISTENT",
    "ROTATING_STRAGGLER",
    "STALLED",
    "TAIL",
    "UNKNOWN",
    "Verdict",
    "kind_of",
    "next_check",
]

INPUT_STRAGGLER = "INPUT STRAGGLER"
COMPUTE_STRAGGLER = "COMPUTE STRAGGLER"
H2D_STRAGGLER = "H2D STRAGGLER"
ROTATING_STRAGGLER = "ROTATING STRAGGLER"
BATCH_SKEW = "BATCH SKEW"
INPUT_BOUND = "INPUT-BOUND"
COMPUTE_BOUND = "COMPUTE-BOUND"
FABRIC = "FABRIC"
STALLED = "STALLED"
BALANCED = "BALANCED"
UNKNOWN = "UNKNOWN"

KINDS = (
    INPUT_STRAGGLER,
    COMPUTE_STRAGGLER,
    H2D_STRAGGLER,
    ROTATING_STRAGGLER,
    BATCH_SKEW,
    INPUT_BOUND,
    COMPUTE_BOUND,
    FABRIC,
    STALLED,
    BALANCED,
    UNKNOWN,
)

PERSISTENT = "persistent"
"""The rank is late on its typical step."""
TAIL = "tail"
"""The rank is late on few steps, and hardly any other rank is on any."""

_KINDS: dict[Phase, str] = {
    Phase.INPUT_READY: INPUT_STRAGGLER,
    Phase.FIRST_BATCH: INPUT_STRAGGLER,
    Phase.H2D: H2D_STRAGGLER,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is wrong with a run, if anything.

    ``kind`` is one of KINDS. ``rank``, ``host`` and ``shard`` are None unless a rank is named, ``phase`` also where no
    single one accounts for the time. ``pattern``: PERSISTENT or TAIL where a rank is late. ``skew``: how late that rank
    is, as a share of the median step; of a tail, in the steps in which it is late. ``evidence``: one finding a line.
    ``next_check``: what to look at now. ``also``: other late ranks. ``steps``: first and last step of a tail, where
    steps are known.
    """

    kind: str
    evidence: tuple[str, ...]
    next_check: str
    rank: int | None = None
    phase: str | None = None
    host: str | None = None
    shard: str | None = None
    skew: float | None = None
    pattern: str | None = None
    also: tuple[int, ...] = ()
    steps: tuple[int, int] | None = None


def kind_of(phase: Phase) -> str:
    """The kind of straggler that a rank late in this phase is."""
    return _KINDS.get(phase, COMPUTE_STRAGGLER)


def next_check(phase: Phase | None, *, rank: int, host: str, shard: str | None, tail: bool = False) -> str:
    """What to look at where a rank is late in this phase, or, with None, in all of its computing."""
    if phase is None:
        return f"Look for a slow or throttled device, or another process, on host {host}."
    if phase is Phase.INPUT_READY and not tail:
        on_shard = f" and shard {shard}" if shard else ""
        return (
            f"Look at the storage behind host {host}{on_shard}. Give that shard to another rank: "
            "if the lateness follows, it is the data, otherwise the host."
        )
    return _CHECKS.get(phase, _PROFILE).format(phase=phase.label, rank=rank, host=host)


_PROFILE = "Profile {phase} on rank {rank}, and look at clocks and load of host {host}."
_CHECKS: dict[Phase, str] = {
    Phase.INPUT_READY: "Look at what interrupts reads on host {host}: storage retries, cache misses, a worker that "
    "restarts, samples that take long to decode.",
    Phase.H2D: "Look at pinned memory, the bus and the NUMA binding of rank {rank} on host {host}.",
    Phase.FIRST_BATCH: "Keep loader workers between epochs (persistent_workers), and look at their start on {host}.",
    Phase.CHECKPOINT: "Save asynchronously, or from all ranks alike: the others wait while rank {rank} saves.",
    Phase.EVAL: "Let all ranks evaluate equal shares: the others wait while rank {rank} evaluates.",
    Phase.OTHER: "Look at what rank {rank} does between steps on host {host}: logging, metrics read from the device, "
    "garbage collection.",
}

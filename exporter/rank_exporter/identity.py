"""Who a training process is: run, rank, world size and host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .errors import SettingError

__all__ = ["Identity", "detect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One rank of one run, on one host.

    ``run`` and ``host`` are non-empty, 0 ≤ rank < world_size and 0 ≤ local_rank, or SettingError is raised.
    """

    run: str
    rank: int
    local_rank: int
    world_size: int
    host: str

    def __post_init__(self) -> None:
        for name in ("run", "host"):
            value = getattr(self, name)
            if not value or len(value) > 200 or not value.isprintable():
                raise SettingError(f"{name} is {value!r}: give 1 to 200 printable characters")
        if self.world_size < 1:
            raise SettingError(f"world_size is {self.world_size}: give the number of ranks, at least 1")
        if not 0 <= self.rank < self.world_size:
            raise SettingError(f"rank is {self.rank}: give 0 to world_size - 1, which is {self.world_size - 1}")
        if self.local_rank < 0:
            raise SettingError(f"local_rank is {self.local_rank}: give the rank's number on its host, from 0")


def _number(environ: Mapping[str, str], *names: str, default: int) -> int:
    for name in names:
        value = environ.get(name)
        if value:
            try:
                return int(value)
            except ValueError:
                raise SettingError(f"{name} is {value!r}: give a whole number, or unset it") from None
    return default


def _run(environ: Mapping[str, str], fallback: str) -> str:
    elastic = environ.get("TORCHELASTIC_RUN_ID", "none")
    if elastic not in ("none", ""):
        return elastic
    if job := environ.get("SLURM_JOB_ID"):
        return job
    if address := environ.get("MASTER_ADDR"):
        return f"{address}:{environ.get('MASTER_PORT', '')}".rstrip(":")
    return environ.get("PMIX_NAMESPACE") or fallback


def detect(
    environ: Mapping[str, str],
    *,
    host: str,
    pid: int,
    run: str | None = None,
    rank: int | None = None,
    local_rank: int | None = None,
    world_size: int | None = None,
) -> Identity:
    """The identity that the launcher's variables tell, on the host named, each part overridable.

    run: TORCHELASTIC_RUN_ID unless "none", then SLURM_JOB_ID, then MASTER_ADDR:MASTER_PORT, then PMIX_NAMESPACE, then
    host and pid. rank, local_rank, world_size: torchrun's variables, then mpirun's (Open MPI's, then PMI's), then
    Slurm's within a job step, then 0, 0, 1. Raises SettingError.
    """
    # Outside a step (a plain `python` in an sbatch script) Slurm's task variables speak of the allocation; and where
    # mpirun starts ranks through srun, of nodes.
    in_slurm_step = bool(environ.get("SLURM_STEP_ID"))

    def number(given: int | None, own: tuple[str, ...], slurm: str, default: int) -> int:
        if given is not None:
            return given
        return _number(environ, *own, *((slurm,) if in_slurm_step else ()), default=default)

    return Identity(
        run=run or _run(environ, f"{host}:{pid}"),
        rank=number(rank, ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"), "SLURM_PROCID", 0),
        local_rank=number(
            local_rank, ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"), "SLURM_LOCALID", 0
        ),
        world_size=number(world_size, ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"), "SLURM_NTASKS", 1),
        host=host,
    )

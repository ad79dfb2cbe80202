"""The training that the demo watches: shards to read, and torchrun with the ranks under it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .processes import Child, Processes
from .scenario import WIDTH, Plan

__all__ = ["agent_url", "start", "train_environ", "write_shards"]

_SAMPLES = 1024
# Settings of a job that the demo may itself have been started from.
_FOREIGN = (
    *("RANK_EXPORTER_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMI_", "PMIX_", "PET_", "MASTER_", "GROUP_", "ROLE_"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK"),
)


def write_shards(directory: Path, ranks: int) -> None:
    """One .npy file of float32 (samples, width + 1) for each rank, the target in the last column."""
    directory.mkdir()
    random = np.random.default_rng(0)
    for rank in range(ranks):
        rows = random.standard_normal((_SAMPLES, WIDTH + 1), dtype=np.float32)
        rows[:, -1] = rows[:, :8].sum(axis=1)
        np.save(directory / f"train-{rank:05d}-of-{ranks:05d}.npy", rows)


def train_environ(environ: Mapping[str, str], directory: Path) -> dict[str, str]:
    """The environment of torchrun and its ranks: nothing of another job, and all files in the directory."""
    own = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
    return {
        **own,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(directory),
        "RANK_EXPORTER_DIR": str(directory / "segments"),
        "RANK_EXPORTER_PORT": "0",
        "RANK_EXPORTER_LISTEN_ADDRESS": "127.0.0.1",
        "RANK_EXPORTER_FILE_SD_DIR": str(directory / "file_sd"),
    }


def start(plan: Plan, processes: Processes, directory: Path) -> Child:
    """Start the ranks, under torchrun as anybody would."""
    write_shards(directory / "shards", plan.ranks)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={plan.ranks}"),
        *("--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", f"--rdzv-id={plan.run}", "--local-addr=127.0.0.1"),
        *("-m", "rank_exporter.demo.train", "--shards", str(directory / "shards"), *plan.train_arguments()),
    ]
    return processes.start("training", command, train_environ(os.environ, directory))


def agent_url(directory: Path) -> str | None:
    """Where the agent serves, from its file_sd entry; None while there is none."""
    for entry in sorted((directory / "file_sd").glob("*.json")):
        try:
            return f"http://{json.loads(entry.read_text(encoding='utf-8'))[0]['targets'][0]}"
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return None

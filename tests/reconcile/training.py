"""Ranks that train for the tests of this directory, one process each: python training.py OUT NAME …

Every name is a run of its own, with identifiers in OUT/ids and segments in OUT/segments. "lost" is killed in the midst
of its epoch, at the latest of all.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

import rank_exporter

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


class Rows(Dataset[Any]):
    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return torch.full((4,), float(index))


class Stream(IterableDataset[Any]):
    """Samples by name; ``only``: one rank gets them all."""

    def __init__(self, count: int, only: int | None = None) -> None:
        self.count = count
        self.only = only

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count if self.only in (None, RANK) else 0):
            yield {"__key__": f"sample-{number:02d}", "value": torch.full((4,), float(number))}


def distributed(count: int, **options: Any) -> DataLoader[Any]:
    sampler: DistributedSampler[Any] = DistributedSampler(Rows(count), num_replicas=WORLD, rank=RANK)
    return DataLoader(Rows(count), batch_size=2, sampler=sampler, **options)


def loader_of(name: str) -> Any:
    if name == "unsharded":
        return DataLoader(Stream(8), batch_size=2)
    if name == "starved":
        return DataLoader(Stream(8, only=0), batch_size=2)
    if name == "swapped":
        own = list(range(RANK, 16, WORLD))
        return DataLoader(Rows(17), batch_size=2, sampler=[16 if index == 5 else index for index in own])
    if name == "resumed":
        # Eight samples were taken before; two more are passed over.
        return DataLoader(Rows(16), batch_size=2, sampler=list(range(10 + RANK, 16, WORLD)))
    if name == "lost":
        return DataLoader(Rows(16), batch_size=2, sampler=list(range(RANK, 16, WORLD)))
    return distributed(9 if name == "padded" else 16, num_workers=2 if name == "workers" else 0)


def train(name: str, directory: Path) -> None:
    exporter = rank_exporter.start(
        run="restarted" if name in ("lost", "resumed") else name,
        directory=directory / "segments",
        serve="off",
        sample_ids="key:__key__" if name in ("unsharded", "starved") else "auto",
        sample_ids_dir=directory / "ids",
    )
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = loader_of(name)
    exporter.watch(model=model, optimizer=optimizer, dataloader=loader)
    for epoch in range(2 if name in ("complete", "workers") else 1):
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for number, batch in enumerate(loader):
            model(batch["value"] if isinstance(batch, dict) else batch).mean().backward()
            optimizer.step()
            if name == "lost" and number == 1:
                die(directory)
    exporter.stop()


def die(directory: Path) -> None:
    """Without a word, but not before what was taken is on disk."""
    while not any(b'"step":2' in path.read_bytes() for path in (directory / "ids").glob(f"restarted-rank{RANK:05d}-*")):
        threading.Event().wait(0.05)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[2:]:
        train(name, Path(sys.argv[1]))


if __name__ == "__main__":
    main()

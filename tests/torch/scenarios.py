"""Training runs recorded for the tests of this directory; torchrun starts it with one process per rank.

Each scenario trains from scratch in one process group, with the exporter on, and writes what its segment held to
OUT/<scenario>-<rank>.npz: the raw step records, and sums over its parameters that tell whether a bit differs.
"""

from __future__ import annotations

import hashlib
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import rank_exporter
from rank_exporter.segment.reader import SegmentReader

DELAY = 0.05
PACE = 0.15
"""Of each step, on every rank, where nobody is to be blamed: what else runs on the machine, a few ms of each step on
one rank more than on the other, then stays below the budget."""
EVEN = ("balanced", "accumulate", "evaluation", "workers", "explicit")
SLOW_RANK = 1
WIDTH = 128


class Rows(Dataset[torch.Tensor]):
    """Rows that depend on their index alone; the slow rank takes its time over each batch."""

    def __init__(self, delay: float = 0.0, batch: int = 8) -> None:
        self.delay = delay / batch

    def __len__(self) -> int:
        return 8 * 16 * dist.get_world_size() if dist.is_initialized() else 8 * 16

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.delay:
            time.sleep(self.delay)
        return torch.full((WIDTH,), float(index % 17) / 17)


class SlowBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        time.sleep(DELAY)
        return gradient


class Block(nn.Module):
    def __init__(self, slow: str) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.slow = slow

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.slow == "forward":
            time.sleep(DELAY)
        value = torch.relu(self.linear(value))
        return SlowBackward.apply(value) if self.slow == "backward" else value


class SlowSGD(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        time.sleep(DELAY)
        return super().step(closure)


def train(name: str, rank: int, directory: Path, watched: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    slow = name if rank == SLOW_RANK else ""
    model = DistributedDataParallel(nn.Sequential(Block(""), Block(slow), Block("")))
    kind = SlowSGD if slow == "optimizer" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.1, momentum=0.9)
    rows = Rows(DELAY if slow == "input_ready" else 0.0)
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(rows, seed=1)
    loader = DataLoader(rows, batch_size=8, sampler=sampler, num_workers=1 if name == "workers" else 0)
    every = 4 if name == "accumulate" else 1
    exporter = rank_exporter.start(run=name, directory=directory, serve="off") if watched else None
    batches: Any = loader
    if exporter is not None:
        exporter.set_shard(f"shard-{rank}")
        explicit = name == "explicit"
        exporter.watch(
            model=None if explicit else model,
            optimizer=None if explicit else optimizer,
            dataloader=None if explicit else loader,
        )
        batches = exporter.steps(loader) if explicit else loader
    order = []
    epochs: Iterator[int] = iter(range(2))
    for epoch in epochs:
        if epoch and exporter is not None and name == "explicit":
            batches = exporter.steps(loader)
        for number, batch in enumerate(batches):
            order.append(batch[:, 0].tolist())
            last = number % every == every - 1
            with nullcontext() if last else model.no_sync():
                if exporter is not None and name == "explicit":
                    with exporter.phase("forward"):
                        loss = model(batch).pow(2).mean()
                    with exporter.phase("backward"):
                        loss.backward()
                    with exporter.phase("optimizer"):
                        optimizer.step()
                else:
                    model(batch).pow(2).mean().backward()
                    if last:
                        optimizer.step()
            if last:
                optimizer.zero_grad()
            late = slow == "other" or (name == "alternate" and number // 3 % 2 == rank)
            even = last and exporter is not None and name in EVEN
            time.sleep(DELAY * late + PACE * even)
            if name == "evaluation" and number % 2:
                evaluate(model)
            if exporter is not None:
                exporter.count(samples=len(batch))
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    found: dict[str, Any] = {"digest": digest, "order": hashlib.sha256(repr(order).encode()).hexdigest()}
    if exporter is not None:
        path = exporter._recorder.writer.path
        assert path is not None
        reader = SegmentReader(path)
        exporter.stop()
        snapshot = reader.snapshot()
        assert snapshot is not None
        found |= {"steps": reader.steps(), "shards": snapshot.shards, "facts": np.array(sorted(snapshot.facts.items()))}
        reader.close()
        path.unlink()
    return found


def evaluate(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        for batch in DataLoader(Rows(DELAY), batch_size=8):
            model(batch)
            break
    model.train()


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for name in names:
        found = train(name.removesuffix("!"), rank, out / "segments", watched=not name.endswith("!"))
        np.savez(out / f"{name}-{rank}.npz", **found)
    dist.barrier()
    dist.destroy_process_group()


main()

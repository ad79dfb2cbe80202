"""Training runs whose delays are known; torchrun starts it with one process per rank.

    training.py DIRECTORY OUT STEPS SCENARIO…

A scenario is a phase in which rank 1 takes 20 % of a step longer, or "rotating", where each rank in turn is late with
its input. Each is a run of its own, named after it, in one process group. What the ranks really slept is written to
OUT/<scenario>-<rank>.npz, in seconds: ``input`` of each step.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import rank_exporter

BASE = 0.03
EXTRA = 0.03
LATE = 0.12
SLOW_RANK = 1
WARM_UP = 4


class Rows(Dataset[torch.Tensor]):
    """One row a batch, which takes as long as it is told to, and notes how long it took."""

    def __init__(self, seconds: list[float]) -> None:
        self.seconds = seconds
        self.slept: list[float] = []

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, index: int) -> torch.Tensor:
        began = time.perf_counter()
        time.sleep(self.seconds[index])
        self.slept.append(time.perf_counter() - began)
        return torch.ones(8)


class Sleep(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        time.sleep(ctx.seconds)
        return gradient, None


class Block(nn.Module):
    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)
        self.seconds = forward, backward

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        time.sleep(self.seconds[0])
        return self.last(Sleep.apply(self.first(value), self.seconds[1]))


class SGD(torch.optim.SGD):
    seconds = 0.0

    def step(self, closure: Any = None) -> Any:
        time.sleep(self.seconds)
        return super().step(closure)


def train(name: str, directory: Path, steps: int) -> dict[str, Any]:
    rank, world = dist.get_rank(), dist.get_world_size()
    sleeps = dict.fromkeys(("input_ready", "forward", "backward", "optimizer", "other"), BASE)
    if name in sleeps and rank == SLOW_RANK:
        sleeps[name] += EXTRA
    inputs = [sleeps["input_ready"] + (LATE if name == "rotating" and n % world == rank else 0) for n in range(steps)]
    # The first batch is no input, and in its second forward DistributedDataParallel waits for its peers.
    inputs[:WARM_UP] = [BASE] * WARM_UP
    rows = Rows(inputs)
    model = DistributedDataParallel(Block(sleeps["forward"], sleeps["backward"]))
    optimizer = SGD(model.parameters(), lr=0.01)
    optimizer.seconds = sleeps["optimizer"]
    loader = DataLoader(rows, batch_size=1)
    exporter = rank_exporter.start(run=name, directory=directory, serve="off", host=f"node-{rank // 2}")
    exporter.set_shard(f"shard-{rank}")
    exporter.watch(model=model, optimizer=optimizer, dataloader=loader)
    dist.barrier()
    for batch in loader:
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(sleeps["other"])
    exporter.stop()
    return {"input": np.array(rows.slept)}


def main() -> None:
    directory, out, steps, names = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for name in names:
        np.savez(out / f"{name}-{dist.get_rank()}.npz", **train(name, directory, steps))
    dist.barrier()
    dist.destroy_process_group()


main()

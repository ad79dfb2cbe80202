"""Sharded training on gloo ranks, recorded for the tests of this directory; torchrun starts it.

Each scenario writes its step records and a digest of its parameters to OUT/<scenario>-<rank>.npz. With ``!`` behind its
name it is trained without the exporter. Under the launcher nobody says a word to it.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard

import rank_exporter
from rank_exporter.instrument import exporter as running
from rank_exporter.segment.reader import SegmentReader

DELAY = 0.03
STEPS = 10
LAUNCHED = running._running is not None


class Block(nn.Module):
    """Computes for long, where it is the slow one."""

    def __init__(self, slow: bool) -> None:
        super().__init__()
        self.linear, self.slow = nn.Linear(64, 64), slow

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        if self.slow:
            time.sleep(DELAY)
        return torch.relu(self.linear(value))


def build(name: str, rank: int) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(Block(False), Block(name.endswith("slow") and rank == 1), Block(False))
    if name.startswith("fsdp2"):
        for block in model:
            fully_shard(block)
        fully_shard(model)
        return model
    cpu = torch.device("cpu")
    model = nn.Sequential(*(FullyShardedDataParallel(block, device_id=cpu) for block in model))
    return FullyShardedDataParallel(model, device_id=cpu)


def digest(model: nn.Module) -> str:
    values = [getattr(parameter, "_local_tensor", parameter).detach() for parameter in model.parameters()]
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in values)).hexdigest()


def train(name: str, rank: int) -> dict[str, Any]:
    watched = not name.endswith("!")
    model = build(name.removesuffix("!"), rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exporter = rank_exporter.start() if watched else None
    if exporter is not None:
        path = exporter._recorder.writer.path
        assert path is not None
        reader = SegmentReader(path)
        before = exporter._recorder.steps_ended
        if not LAUNCHED:
            exporter.watch(model=model, optimizer=optimizer)
    for _ in range(STEPS):
        model(torch.ones(4, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    found: dict[str, Any] = {"digest": digest(model)}
    if exporter is not None:
        watching = sum(known() in set(model.modules()) for known, _ in exporter._watched)
        exporter._recorder.advance()
        if not LAUNCHED:
            exporter.stop()
        snapshot = reader.snapshot()
        assert snapshot is not None
        found |= {"steps": reader.steps(before), "facts": np.array(sorted(snapshot.facts.items())), "models": watching}
    return found


def main() -> None:
    out, names = Path(sys.argv[1]), sys.argv[2:]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    for name in names:
        np.savez(out / f"{name}-{rank}.npz", **train(name, rank))
    dist.barrier()
    dist.destroy_process_group()


main()

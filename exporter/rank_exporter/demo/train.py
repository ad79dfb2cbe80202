"""A small training script, of the kind that people have: torchrun starts one process of it for each rank.

    torchrun --nproc-per-node 2 train.py --shards DIRECTORY

Each rank reads its own shard through a DataLoader and trains a perceptron with DistributedDataParallel. What is
special here are the two ways to be slow, which the demo asks one rank to be. SIGTERM ends it after the current step.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import rank_exporter


class ShardBatches(IterableDataset[tuple[Tensor, Tensor]]):
    """Batches (features, target), float32 of shapes (batch, width) and (batch, 1), from one shard file, endlessly.

    The shard is an .npy array of shape (samples, width + 1), the target in the last column.
    """

    def __init__(self, shard: Path, batch_size: int, *, delay_seconds: float) -> None:
        self._shard = shard
        self._batch_size = batch_size
        self._delay_seconds = delay_seconds

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        rows = np.load(self._shard, mmap_mode="r")
        order = np.random.default_rng(0)
        while True:
            if self._delay_seconds:
                time.sleep(self._delay_seconds)
            batch = torch.from_numpy(rows[order.integers(len(rows), size=self._batch_size)])
            yield batch[:, :-1], batch[:, -1:]


class BusySGD(torch.optim.SGD):
    """SGD that multiplies matrices for nothing before each update."""

    def __init__(self, params: Any, *, matmuls: int, **settings: Any) -> None:
        super().__init__(params, **settings)
        self._matmuls = matmuls
        self._matrix = torch.randn(512, 512)

    def step(self, closure: Any = None) -> Any:
        for _ in range(self._matmuls):
            torch.mm(self._matrix, self._matrix)
        return super().step(closure)


def perceptron(width: int, layers: int) -> nn.Module:
    hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 1))


class StopRequest:
    """Whether any rank was told to stop, known to all ranks at the same step, so that none waits for one gone.

    The ranks exchange it beside the forward and backward pass. By the time the gradients have been averaged, which was
    asked for later, it has arrived, and reading it waits for nobody.
    """

    def __init__(self) -> None:
        self._told = False
        self._flag = torch.zeros(1)
        signal.signal(signal.SIGTERM, self._tell)

    def _tell(self, *_: object) -> None:
        self._told = True

    def send(self) -> Any:
        self._flag.fill_(float(self._told))
        return dist.all_reduce(self._flag, op=dist.ReduceOp.MAX, async_op=True)

    def received(self, sent: Any) -> bool:
        sent.wait()
        return bool(self._flag.item())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=Path, required=True, help="directory of .npy files, one for each rank")
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after so many steps")
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--slow-rank", type=int, default=-1, help="the rank that is slow, if any")
    parser.add_argument("--input-delay", type=float, default=0.0, help="its dataset sleeps so many seconds a batch")
    parser.add_argument("--extra-matmuls", type=int, default=0, help="its optimizer multiplies so often a step")
    return parser.parse_args()


def train(args: argparse.Namespace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    slow = rank == args.slow_rank
    shard = sorted(args.shards.glob("*.npy"))[rank]
    width = np.load(shard, mmap_mode="r").shape[1] - 1

    torch.manual_seed(0)
    # Without workers, which would read ahead: however long a step takes, what the slow one sleeps is waited for.
    batches = ShardBatches(shard, args.batch_size, delay_seconds=args.input_delay if slow else 0.0)
    loader = DataLoader(batches, batch_size=None)
    model = DistributedDataParallel(perceptron(width, args.layers))
    optimizer = BusySGD(model.parameters(), lr=1e-3, momentum=0.9, matmuls=args.extra_matmuls if slow else 0)

    exporter = rank_exporter.start()
    exporter.watch(model=model, optimizer=optimizer, dataloader=loader)
    exporter.set_shard(shard.stem)

    stop = StopRequest()
    for step, (features, target) in enumerate(loader, start=1):
        sent = stop.send()
        loss = nn.functional.mse_loss(model(features), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        exporter.count(samples=len(features))
        if rank == 0 and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f} over {world_size} ranks", flush=True)  # noqa: T201
        if stop.received(sent) or step == args.steps:
            break
    exporter.stop()


@record
def main() -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo")
    try:
        train(arguments())
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What the recorder adds to a training step: the same loop with and without it, interleaved in one run.

Prints µs per step for the explicit and for the automatic way, with the standard error of the median.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rank_exporter

ROUNDS = 400
BLOCK = 25
EPOCH = 500
WIDTH = 192


def bare(batches: Any, _exporter: Any = None) -> None:
    """A loop of the shape that explicit spans wrap, with nothing to do: what is left is the recorder."""
    for _ in batches:
        for _ in range(4):
            with nullcontext():
                pass


def spans(batches: Any, exporter: rank_exporter.Exporter) -> None:
    """The same with four phases a step."""
    for _ in exporter.steps(batches):
        for name in ("forward", "backward", "collective_wait", "optimizer"):
            with exporter.phase(name):
                pass


class Training:
    """A model whose step takes 1-2 ms, as its user writes it."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.samples = TensorDataset(torch.randn(EPOCH * 64, WIDTH))

    def loader(self) -> DataLoader[Any]:
        return DataLoader(self.samples, batch_size=64)

    def steps(self, batches: Iterator[Any], count: int) -> None:
        for (batch,) in itertools.islice(batches, count):
            self.model(batch).pow(2).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def epochs(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def microseconds(run: Callable[[], None]) -> float:
    """Of this thread, per step: what else runs on the machine counts only through its caches."""
    began = time.thread_time_ns()
    run()
    return (time.thread_time_ns() - began) / BLOCK / 1000


def tell(name: str, without: Sequence[float], with_: Sequence[float]) -> None:
    """µs a step, by round."""
    extra = [more - base for more, base in zip(with_, without, strict=True)]
    error = 1.25 * statistics.stdev(extra) / len(extra) ** 0.5
    quiet = statistics.quantiles(with_, n=10)[0] - statistics.quantiles(without, n=10)[0]
    print(
        f"{name:<36} {statistics.median(without):7.1f} µs/step without, {statistics.median(extra):+6.1f} ± {error:.1f} "
        f"with (median of {len(extra)} rounds); {quiet:+.1f} where the machine was quietest (10th percentiles)"
    )


def explicit(directory: Path) -> None:
    exporter = rank_exporter.start(run="bench", directory=directory, serve="off")
    spans(range(BLOCK), exporter)
    pairs = [
        (microseconds(lambda: bare(range(BLOCK))), microseconds(lambda: spans(range(BLOCK), exporter)))
        for _ in range(ROUNDS)
    ]
    exporter.stop()
    tell("explicit, an empty loop", *zip(*pairs, strict=True))


def automatic(directory: Path) -> None:
    """Of the same model and optimizer, a few steps with and a few without in turn: where theirs lie in memory makes two
    of a kind differ by more than the exporter costs. Each way has a loader of its own, of the same samples. What the
    loop differs by without the exporter is told too."""
    training = Training()
    watched = {"model": training.model, "optimizer": training.optimizer}
    plain = torch.autograd.backward
    watched_loader = training.loader()
    exporter = rank_exporter.start(run="bench", directory=directory, serve="off")
    exporter.watch(dataloader=watched_loader, **watched)
    hooked = torch.autograd.backward
    ways = {"with": watched_loader, "without": training.loader(), "again": training.loader()}
    fetched = {name: epochs(loader) for name, loader in ways.items()}
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        exporter.watch(**watched)
        torch.autograd.backward = hooked
        for name, batches in fetched.items():
            training.steps(batches, 5)
            found[name].append(microseconds(lambda batches=batches: training.steps(batches, BLOCK)))
            if name == "with":
                exporter._unwatch(list(watched.values()))
                torch.autograd.backward = plain
    exporter.stop()
    tell("automatic, a small training loop", found["without"], found["with"])
    tell("the same loop without it, twice", found["without"], found["again"])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        explicit(Path(name))
        automatic(Path(name))


if __name__ == "__main__":
    main()

"""What the recorder adds to a training step: the same loop with and without it, interleaved in one run.

Prints µs per step for the explicit and for the automatic way, and for the latter where in a step they go.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
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
PARTS = ("fetch", "forward", "backward", "optimizer", "step")


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

    def steps(self, batches: Iterator[Any], count: int) -> list[float]:
        """Its parts in µs, the mean of so many steps; see PARTS."""
        clock = time.perf_counter_ns
        parts = [0] * len(PARTS)
        for _ in range(count):
            began = clock()
            (batch,) = next(batches)
            fetched = clock()
            output = self.model(batch)
            run = clock()
            loss = output.pow(2).mean()
            computed = clock()
            loss.backward()
            derived = clock()
            self.optimizer.step()
            stepped = clock()
            self.optimizer.zero_grad()
            times = fetched - began, run - fetched, derived - computed, stepped - derived, clock() - began
            parts = [total + ns for total, ns in zip(parts, times, strict=True)]
        return [total / count / 1000 for total in parts]


def epochs(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def microseconds(run: Callable[[], None]) -> float:
    began = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - began) / BLOCK / 1000


def quicker_half(blocks: list[float]) -> float:
    """Their mean: in the others something else ran on the machine, or beside it."""
    return statistics.fmean(sorted(blocks)[: len(blocks) // 2])


def explicit(directory: Path) -> None:
    exporter = rank_exporter.start(run="bench", directory=directory, serve="off")
    spans(range(BLOCK), exporter)
    found = [
        (microseconds(lambda: bare(range(BLOCK))), microseconds(lambda: spans(range(BLOCK), exporter)))
        for _ in range(ROUNDS)
    ]
    without, with_ = (quicker_half(list(blocks)) for blocks in zip(*found, strict=True))
    exporter.stop()
    print(f"explicit, an empty loop: {with_ - without:+.1f} µs/step")


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
    fetched = {
        "with": epochs(watched_loader),
        "without": epochs(training.loader()),
        "without it, once more": epochs(training.loader()),
    }
    found: dict[str, list[list[float]]] = {way: [] for way in fetched}
    for _ in range(ROUNDS):
        for way in random.sample(list(fetched), len(fetched)):
            if way == "with":
                exporter.watch(**watched)
                torch.autograd.backward = hooked
            training.steps(fetched[way], 5)
            found[way].append(training.steps(fetched[way], BLOCK))
            if way == "with":
                exporter._unwatch(list(watched.values()))
                torch.autograd.backward = plain
    exporter.stop()
    means = {way: [quicker_half(list(part)) for part in zip(*blocks, strict=True)] for way, blocks in found.items()}
    base = means.pop("without")
    print(f"automatic, a training loop of {base[-1]:.0f} µs/step:")
    for way, parts in means.items():
        more = [f"{name} {part - least:+.1f}" for name, part, least in zip(PARTS, parts, base, strict=True)]
        print(f"  {way:<22} {more[-1]} µs, of which {', '.join(more[:-1])}")


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        explicit(Path(name))
        automatic(Path(name))


if __name__ == "__main__":
    main()

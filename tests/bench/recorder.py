"""What the recorder adds to a training step: the same loop with and without it, interleaved in one run.

Prints µs per step for the explicit and for the automatic way, with the standard error of the median.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rank_exporter

ROUNDS = 200
BATCHES = 50
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
        self.loader = DataLoader(TensorDataset(torch.randn(BATCHES * 64, WIDTH)), batch_size=64)

    def epoch(self) -> None:
        for (batch,) in self.loader:
            self.model(batch).pow(2).mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def microseconds(run: Callable[[], None]) -> float:
    """Of this thread, per step: what else runs on the machine counts only through its caches."""
    began = time.thread_time_ns()
    run()
    return (time.thread_time_ns() - began) / BATCHES / 1000


def tell(name: str, base: float, extra: Sequence[float]) -> None:
    """``extra``: µs a step, by round."""
    low, typical, high = statistics.quantiles(extra, n=4)
    error = 1.25 * statistics.stdev(extra) / len(extra) ** 0.5
    print(
        f"{name:<36} {base:7.1f} µs/step without, {typical:+6.1f} ± {error:.1f} with "
        f"(median of {len(extra)} rounds; half of them {low:+.1f} to {high:+.1f})"
    )


def explicit(directory: Path) -> None:
    exporter = rank_exporter.start(run="bench", directory=directory, serve="off")
    spans(range(BATCHES), exporter)
    pairs = [
        (microseconds(lambda: bare(range(BATCHES))), microseconds(lambda: spans(range(BATCHES), exporter)))
        for _ in range(ROUNDS)
    ]
    exporter.stop()
    tell("explicit, an empty loop", statistics.median(pair[0] for pair in pairs), [b - a for a, b in pairs])


def automatic(directory: Path) -> None:
    """Of the same model, loader and optimizer: where theirs lie in memory makes two of a kind differ by more than the
    exporter costs. What the loop differs by without it, from one time to the next, is told too."""
    training = Training()
    watched = {"model": training.model, "optimizer": training.optimizer, "dataloader": training.loader}
    exporter = rank_exporter.start(run="bench", directory=directory, serve="off")
    found = []
    for _ in range(ROUNDS):
        exporter.watch(**watched)
        training.epoch()
        with_ = microseconds(training.epoch)
        exporter._unwatch(list(watched.values()))
        training.epoch()
        found.append((with_, microseconds(training.epoch), microseconds(training.epoch)))
    exporter.stop()
    base = statistics.median(without for _, without, _ in found)
    tell("automatic, a small training loop", base, [with_ - without for with_, without, _ in found])
    tell("the same loop without it, twice", base, [again - without for _, without, again in found])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        explicit(Path(name))
        automatic(Path(name))


if __name__ == "__main__":
    main()

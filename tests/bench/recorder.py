"""What the recorder adds to a training step: the same loop with and without it, interleaved in one run.

Prints µs per step for the explicit and for the automatic way, and the ratio of the loops.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rank_exporter

ROUNDS = 100
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
    began = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - began) / BATCHES / 1000


def compare(name: str, without: Callable[[], None], with_: Callable[[], None]) -> None:
    without()
    with_()
    pairs = [(microseconds(without), microseconds(with_)) for _ in range(ROUNDS)]
    # The fastest rounds are those in which nothing else ran on the machine.
    base, best = (min(pair[place] for pair in pairs) for place in (0, 1))
    typical = statistics.median(with_ / without for without, with_ in pairs)
    print(
        f"{name:<32} {base:7.1f} µs/step without, {best - base:+6.1f} µs/step with "
        f"(fastest of {ROUNDS} rounds); median ratio {typical:.3f}"
    )


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as directory:
        exporter = rank_exporter.start(run="bench", directory=directory, serve="off")
        compare(
            "explicit, an empty loop",
            lambda: bare(range(BATCHES)),
            lambda: spans(range(BATCHES), exporter),
        )
        plain, watched = Training(), Training()
        exporter.watch(model=watched.model, optimizer=watched.optimizer, dataloader=watched.loader)
        compare("automatic, a small training loop", plain.epoch, watched.epoch)
        exporter.stop()


if __name__ == "__main__":
    main()

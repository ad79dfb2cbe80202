"""What accounting for samples adds to a step: the same fetches with and without it, interleaved in one run.

The goal is 5 µs a step and 0.2 µs a sample. Prints, for each batch size, what a batch costs, and what is allowed.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import rank_exporter
from rank_exporter.instrument import data

ROUNDS = 30
SIZES = (1, 8, 64, 256)
BATCHES = 500
"""In an epoch, whose beginning and end are accounted for too."""


class Nothing(Dataset[int]):
    """Samples that cost nothing, so that what is left is the loader, the exporter and the account."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def __getitems__(self, _indices: list[int]) -> list[int]:
        return []

    def __getitem__(self, index: int) -> int:
        return index


def nothing(_samples: Any) -> None:
    return None


def loader(size: int) -> DataLoader[int]:
    dataset = Nothing(BATCHES * size)
    sampler: DistributedSampler[int] = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)
    return DataLoader(dataset, batch_size=size, sampler=sampler, collate_fn=nothing)


class Texts:
    """A loader that is none of torch's, whose batches name their samples."""

    def __init__(self, size: int) -> None:
        names = [f"shard-{number // 1000:05d}/sample-{number:08d}" for number in range(BATCHES * size)]
        self.batches = [{"__key__": names[start : start + size]} for start in range(0, len(names), size)]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


class Nobody:
    """Takes no account."""

    def __init__(self) -> None:
        self.drawn: Any = ()

    def take(self, _batch: Any, _index: Any) -> None:
        return None

    pass_over = end = take


def no_account() -> Any:
    """Has the loader timed as ever, and its samples accounted for by nobody."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(data, "_intake", lambda _recorder, _loader: Nobody()))
    stack.enter_context(mock.patch.object(data, "observed", lambda sampler, _drawn: sampler))
    stack.enter_context(mock.patch.object(data.Fetches, "_end", lambda _self: None))
    return stack


def epoch_ns(batches: Any) -> int:
    """Of this thread alone, so that what else runs on the machine counts little."""
    began = time.thread_time_ns()
    for _ in batches:
        pass
    return time.thread_time_ns() - began


def cost(name: str, make: Callable[[int], Any], **settings: Any) -> None:
    with tempfile.TemporaryDirectory() as directory:
        exporter = rank_exporter.start(run="bench", directory=directory, serve="off", **settings)
        for size in SIZES:
            watched = make(size)
            exporter.watch(dataloader=watched)
            without, with_ = [], []
            for _ in range(ROUNDS):
                with no_account():
                    without.append(epoch_ns(watched))
                with_.append(epoch_ns(watched))
            spent = (min(with_) - min(without)) / BATCHES / 1000
            typical = (statistics.median(with_) - statistics.median(without)) / BATCHES / 1000
            print(
                f"{name:<20} batches of {size:3d}: {spent:5.1f} µs each (fastest of {ROUNDS} epochs), "
                f"{typical:5.1f} in the median; the goal allows {5 + 0.2 * size:4.1f}"
            )
        exporter.stop()


def main() -> None:
    torch.set_num_threads(1)
    cost("indices", loader)
    with tempfile.TemporaryDirectory() as files:
        cost("indices, to files", loader, sample_ids_dir=files)
    cost("texts by key", Texts, sample_ids="key:__key__")


if __name__ == "__main__":
    main()

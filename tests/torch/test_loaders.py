"""Loaders as people use them: workers, production times, shards, and wrappers that look ahead."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

import rank_exporter
from rank_exporter.phases import Phase
from rank_exporter.segment import layout
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader

SLEEP = 0.02


class Rows(Dataset[torch.Tensor]):
    """Rows that take their time, a batch of four SLEEP altogether."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(SLEEP / 4)
        return torch.tensor([float(index)])


class Stream(IterableDataset[dict[str, Any]]):
    """A stream of samples that name their shard, as WebDataset's do."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for number in range(24):
            time.sleep(SLEEP / 4)
            yield {"__url__": f"shard-{number // 8}.tar", "value": torch.tensor([float(number)])}


class Initialised:
    """A worker_init_fn of the user's, picklable, that leaves its mark on the data."""

    def __call__(self, worker_id: int) -> None:
        info = torch.utils.data.get_worker_info()
        assert info is not None
        info.dataset.mark = 1000 + worker_id


class Marked(Rows):
    mark = 0

    def __getitem__(self, index: int) -> torch.Tensor:
        return super().__getitem__(index) + self.mark


class LooksAhead(DataLoader[Any]):
    """Yields each batch only when it has the next one, as trainers' loaders do to find the last."""

    def __iter__(self) -> Any:
        inner = super().__iter__()
        ahead = next(inner)
        for batch in inner:
            yield ahead
            ahead = batch
        yield ahead


class Recording:
    def __init__(self, directory: Path) -> None:
        self.exporter = rank_exporter.start(run="loaders", directory=directory, serve="off", rank=1, world_size=2)
        path = self.exporter._recorder.writer.path
        assert path is not None
        self.reader = SegmentReader(path)

    def input_ns(self) -> list[int]:
        self.exporter.stop()
        return [int(ns) for ns in self.reader.steps()["ns"][:, Phase.INPUT_READY]]

    def production(self) -> dict[str, tuple[int, float]]:
        """Batches and mean seconds by shard."""
        found = self.reader.snapshot()
        assert found is not None
        histograms = [(found.shard_name(s), found.histograms[layout.production_slot(s)]) for s in range(18)]
        return {name: (int(h[1:].sum()), float(h[0] / h[1:].sum() / 1e9)) for name, h in histograms if h[0]}

    def word(self, word: Word) -> int:
        found = self.reader.snapshot()
        assert found is not None
        return found.word(word)

    def close(self) -> None:
        self.exporter.stop()
        assert not any(self.word(Word(Word.ERRORS)) for _ in ERROR_REASONS)
        self.reader.close()


@pytest.fixture
def recording(tmp_path: Path) -> Iterator[Recording]:
    made = Recording(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 1},
        {"num_workers": 2, "persistent_workers": True},
        {"num_workers": 1, "multiprocessing_context": "spawn"},
        {"num_workers": 2, "prefetch_factor": 4, "collate_fn": list},
    ],
    ids=["fork", "persistent", "spawn", "collate"],
)
def test_workers_tell_what_their_batches_took(recording: Recording, options: dict[str, Any]) -> None:
    """Each batch of each epoch is counted with the time its worker took, and arrives as it would have."""
    without_workers = DataLoader(Rows(), batch_size=4, collate_fn=options.get("collate_fn"))
    plain = [batch for _ in range(2) for batch in without_workers]
    loader = DataLoader(Rows(), batch_size=4, **options)
    recording.exporter.watch(dataloader=loader)
    watched = [batch for _ in range(2) for batch in loader]
    assert repr(watched) == repr(plain)
    [(batches, seconds)] = recording.production().values()
    assert batches == 12
    assert seconds >= SLEEP
    assert recording.word(Word.LOADER_WORKERS) == options["num_workers"] + 1
    assert loader.worker_init_fn is None


def test_users_own_worker_initialisation_runs_first(recording: Recording) -> None:
    """What the user does at a worker's start is done."""
    loader = DataLoader(Marked(), batch_size=4, num_workers=1, worker_init_fn=Initialised())
    recording.exporter.watch(dataloader=loader)
    first = next(iter(loader))
    assert first[:, 0].tolist() == [1000.0, 1001.0, 1002.0, 1003.0]
    assert isinstance(loader.worker_init_fn, Initialised)


def test_a_slow_loop_finds_batches_ready(recording: Recording) -> None:
    """The queue depth says how far ahead the workers are, which is far when training is slow."""
    loader = DataLoader(Rows(), batch_size=4, num_workers=2, prefetch_factor=2)
    recording.exporter.watch(dataloader=loader)
    depths = []
    for _ in loader:
        time.sleep(6 * SLEEP)
        depths.append(recording.word(Word.LOADER_QUEUE_DEPTH))
    assert max(depths) >= 2


def test_error_in_a_worker_reaches_the_loop(recording: Recording) -> None:
    """The exception is the one the user's code raised."""

    class Broken(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            raise ArithmeticError("row is broken")

    loader = DataLoader(Broken(), batch_size=4, num_workers=1)
    recording.exporter.watch(dataloader=loader)
    with pytest.raises(ArithmeticError, match="row is broken"):
        next(iter(loader))


def test_shard_is_found_in_the_batch(recording: Recording) -> None:
    """Samples that carry their archive's address name the shard, batch by batch."""
    loader = DataLoader(Stream(), batch_size=4, num_workers=1)
    recording.exporter.watch(dataloader=loader)
    assert len(list(loader)) == 6
    found = recording.production()
    assert {name: count for name, (count, _) in found.items()} == {f"shard-{n}.tar": 2 for n in range(3)}


def test_dataset_may_name_the_shard(recording: Recording) -> None:
    """Where batches say nothing the dataset is asked, else the rank's part of the world stands for it."""
    named, unnamed = Rows(), Rows()
    named.shard = "part-7"  # type: ignore[attr-defined]
    recording.exporter.watch(dataloader=DataLoader(unnamed))
    found = recording.reader.snapshot()
    assert found is not None
    assert found.current_shard == "1/2"
    recording.exporter.watch(dataloader=DataLoader(named))
    found = recording.reader.snapshot()
    assert found is not None
    assert found.current_shard == "part-7"


def test_a_shard_that_is_given_stands(recording: Recording) -> None:
    """Who names shards is not overruled by what batches carry."""
    recording.exporter.set_shard("mine")
    loader = DataLoader(Stream(), batch_size=4)
    recording.exporter.watch(dataloader=loader)
    list(loader)
    found = recording.reader.snapshot()
    assert found is not None
    assert (found.shards, found.current_shard) == (("mine",), "mine")


def test_looking_ahead_is_measured_beneath(recording: Recording) -> None:
    """A loader that fetches a batch early is timed fetch by fetch, not by the wait that its loop sees."""
    loader = LooksAhead(Rows(), batch_size=4)
    recording.exporter.watch(dataloader=loader)
    waits = []
    iterator, began = iter(loader), time.monotonic()
    for _ in iterator:
        waits.append(time.monotonic() - began)
        began = time.monotonic()
    assert waits[0] > 2 * SLEEP > waits[-1]
    fetches = [ns for ns in recording.input_ns() if ns]
    assert len(fetches) == 5
    assert min(fetches) >= SLEEP * 1e9


def test_iterable_that_is_no_loader_can_be_watched(recording: Recording) -> None:
    """A class with an __iter__ of its own is timed where it is iterated over."""

    class Plain:
        def __iter__(self) -> Iterator[int]:
            for number in range(3):
                time.sleep(SLEEP)
                yield number

    data = Plain()
    recording.exporter.watch(dataloader=data)
    assert list(data) == [0, 1, 2]
    assert [ns > SLEEP * 1e9 for ns in recording.input_ns()] == [False, True, True]


def test_resuming_within_a_fetch_is_no_steady_input(recording: Recording) -> None:
    """A first fetch that skips what was trained on already does not count as waiting for input."""

    class Resumes(IterableDataset[int]):
        def __iter__(self) -> Iterator[int]:
            time.sleep(10 * SLEEP)
            yield from range(4)

    loader = DataLoader(Resumes(), batch_size=1)
    recording.exporter.watch(dataloader=loader)
    list(loader)
    assert max(recording.input_ns()) < 10 * SLEEP * 1e9
    assert recording.reader.steps()["ns"][0, Phase.FIRST_BATCH] >= 10 * SLEEP * 1e9

"""Samples accounted for by watched loaders: counted, identified, told from padding, without a change to training."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

import rank_exporter
from rank_exporter import digest
from rank_exporter.errors import SettingError
from rank_exporter.instrument.padding import padding_of
from rank_exporter.phases import Phase
from rank_exporter.segment.layout import ERROR_REASONS, Word
from rank_exporter.segment.reader import SegmentReader
from rank_exporter.segment.samplelog import read

COUNT = 40


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([float(index)])


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Sequences of eight, of which the mask leaves four."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.full((8,), index), "attention_mask": torch.tensor([1, 1, 1, 1, 0, 0, 0, 0])}


class Stream(IterableDataset[dict[str, Any]]):
    """As WebDataset's samples are; ``skip`` of them are passed over as it resumes."""

    def __init__(self, skip: int = 0, *, sharded: bool = True) -> None:
        self.skip = skip
        self.sharded = sharded

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = torch.utils.data.get_worker_info()
        step = info.num_workers if info is not None and self.sharded else 1
        for number in range(info.id if info is not None and self.sharded else 0, COUNT, step):
            if number < self.skip:
                time.sleep(0.005)
            else:
                yield {"__key__": f"sample-{number:03d}", "number": number, "value": torch.tensor([float(number)])}


class Account:
    """An exporter that records into a directory, and what its segment says."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.exporter = rank_exporter.start(
            run="accounting", directory=directory, serve="off", rank=0, world_size=1, **settings
        )
        path = self.exporter._recorder.writer.path
        assert path is not None
        self.reader = SegmentReader(path)

    def word(self, word: int) -> int:
        found = self.reader.snapshot()
        assert found is not None
        return int(found.words[word])

    def errors(self) -> dict[str, int]:
        return {name: n for at, name in enumerate(ERROR_REASONS) if (n := self.word(Word.ERRORS + at))}

    def ended(self) -> tuple[int, int, int, int, int]:
        """Epoch, samples, padded, identified and digest of the epoch that ended last."""
        epoch, *rest = (self.word(Word.ENDED_EPOCH + place) for place in range(5))
        return (epoch - 1, *rest)  # type: ignore[return-value]

    def publish(self) -> None:
        """The last step is over."""
        self.exporter._recorder.advance()
        self.exporter._recorder.publish()

    def totals(self) -> list[int]:
        """Samples, tokens and padded samples, of the steps that ended."""
        return [self.word(word) for word in (Word.SAMPLES, Word.TOKENS, Word.PADDED)]


Start = Callable[..., Account]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Account] = []

    def begin(**settings: Any) -> Account:
        made.append(Account(tmp_path / "segments", **settings))
        return made[-1]

    yield begin
    for account in made:
        account.exporter.stop()
        account.reader.close()


def train(loader: Any) -> list[Any]:
    """The batches, each of which a step was made of."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exporter = rank_exporter.start()
    exporter.watch(optimizer=optimizer)
    batches = []
    for batch in loader:
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        batches.append(batch)
    return batches


ALL = digest.of_range(COUNT)
LOADERS: dict[str, dict[str, Any]] = {
    "plain": {"batch_size": 4},
    "shuffled": {"batch_size": 4, "shuffle": True},
    "fork": {"batch_size": 4, "num_workers": 2},
    "spawn": {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
    "persistent": {"batch_size": 4, "num_workers": 2, "persistent_workers": True, "shuffle": True},
    "any-order": {"batch_size": 4, "num_workers": 2, "in_order": False},
    "batch-sampler": {"batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 7, drop_last=False)},
    "list": {"batch_sampler": [[index] for index in range(COUNT)]},
    "tuples": {"batch_sampler": [tuple(range(start, start + 8)) for start in range(0, COUNT, 8)]},
    "batches-as-samples": {"sampler": BatchSampler(SequentialSampler(range(COUNT)), 8, False), "batch_size": None},
    "no-batches": {"batch_size": None},
}


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_a_complete_epoch_has_the_digest_of_its_indices(start: Start, options: dict[str, Any]) -> None:
    """However it is drawn and by whom it is loaded, in each of two epochs."""
    if options.get("batch_size", 1) is None and "sampler" in options:
        rows: Any = torch.arange(COUNT, dtype=torch.float32)
    else:
        rows = Rows()
    account = start()
    loader = DataLoader(rows, **options)
    account.exporter.watch(dataloader=loader)
    for epoch in range(2):
        train(loader)
        assert account.ended() == (epoch, COUNT, 0, COUNT, ALL)
        assert account.word(Word.ENDED_EPOCH_COMPLETE)
    assert account.word(Word.EPOCH) == 0
    assert account.word(Word.DUPLICATES) == 0
    account.publish()
    assert account.totals() == [2 * COUNT, 0, 0]
    assert not account.errors()


IN_ORDER = {name: options for name, options in LOADERS.items() if name not in ("any-order", "spawn")}


@pytest.mark.parametrize("options", IN_ORDER.values(), ids=IN_ORDER)
def test_nothing_is_drawn_otherwise_than_without(start: Start, options: dict[str, Any]) -> None:
    """The batches, and the state of torch's generator afterwards, are those of a loader that nobody watches."""
    rows: Any = torch.arange(COUNT, dtype=torch.float32) if "sampler" in options else Rows()
    torch.manual_seed(5)
    unwatched = DataLoader(rows, **options)
    plain = [batch.tolist() for _ in range(2) for batch in unwatched]
    after = torch.get_rng_state()
    del unwatched
    account = start()
    torch.manual_seed(5)
    loader = DataLoader(rows, **options)
    account.exporter.watch(dataloader=loader)
    assert [batch.tolist() for _ in range(2) for batch in loader] == plain
    assert torch.equal(torch.get_rng_state(), after)
    assert len(loader) * 2 == len(plain)


class Uneven(BatchSampler):
    """A sampler of the user's with state of its own, which it must find again."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[list[int]]:
        self.begun += 1
        reused: list[int] = []
        for index in range(COUNT):
            reused.append(index)
            if index % 7 == 6 or index == COUNT - 1:
                yield reused
                reused.clear()

    def __len__(self) -> int:
        return 6


def test_a_sampler_keeps_its_state_and_may_use_its_list_again(start: Start) -> None:
    """What looks over its shoulder shares its attributes, and copies what it draws."""
    account = start()
    sampler = Uneven()
    loader = DataLoader(Rows(), batch_sampler=sampler)
    account.exporter.watch(dataloader=loader)
    train(loader)
    train(loader)
    assert sampler.begun == 2
    assert type(sampler) is Uneven
    assert account.ended() == (1, COUNT, 0, COUNT, ALL)


class Anything(Dataset[float]):
    """A sample for whatever is drawn."""

    def __getitem__(self, index: Any) -> float:
        return 1.0


class Unwilling:
    """An index that is no number."""

    def __index__(self) -> int:
        raise RuntimeError("not now")


@pytest.mark.parametrize(
    "drawn",
    [
        [*range(10)],
        [np.int32(number) for number in range(10)],
        [2**63 + number for number in range(10)],
        [-1, 2**64 - 2, 7],
        [("file", number) for number in range(10)],
        ["a", "bc", 3],
    ],
    ids=["plain", "numpy's", "large", "of either sign", "pairs", "mixed"],
)
def test_whatever_a_sampler_draws_has_its_digest(start: Start, drawn: list[Any]) -> None:
    """Integers of any size and kind, tuples, texts, several of them in one epoch."""
    account = start()
    loader = DataLoader(Anything(), batch_size=4, sampler=drawn)
    account.exporter.watch(dataloader=loader)
    train(loader)
    assert account.ended() == (0, len(drawn), 0, len(drawn), digest.of(drawn))
    assert not account.errors()


def test_an_index_that_is_no_number_costs_the_digest_alone(start: Start) -> None:
    """The loader gets it all the same."""
    account = start()
    loader = DataLoader(Anything(), batch_size=4, sampler=[Unwilling() for _ in range(10)])
    account.exporter.watch(dataloader=loader)
    assert len(train(loader)) == 3
    assert account.ended() == (0, 10, 0, 0, 0)
    assert account.errors() == {"samples": 1}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("how", ["key:__key__", "key:number", "function", "samples"])
def test_streams_are_identified_by_what_their_batches_hold(start: Start, how: str, workers: int) -> None:
    """A key of a batch, of each sample in a list, or a function of the batch; texts and integers."""
    account = start(**({"sample_ids": how} if how.startswith("key:") else {}))
    options: dict[str, Any] = {"collate_fn": list} if how == "samples" else {}
    loader = DataLoader(Stream(), batch_size=8, num_workers=workers, **options)
    given: Any = {"function": lambda batch: batch["number"] * 2, "samples": "__key__"}.get(how)
    account.exporter.watch(dataloader=loader, sample_ids=given)
    train(loader)
    texts = digest.of([f"sample-{number:03d}" for number in range(COUNT)])
    doubled = digest.of([2 * number for number in range(COUNT)])
    expected = {"key:number": ALL, "function": doubled}.get(how, texts)
    assert account.ended() == (0, COUNT, 0, COUNT, expected)
    assert not account.errors()


def test_a_stream_that_nobody_identifies_is_counted(start: Start) -> None:
    """The digest is that of nothing, and says so by what it covers."""
    account = start()
    loader = DataLoader(Stream(), batch_size=8)
    account.exporter.watch(dataloader=loader)
    train(loader)
    assert account.ended() == (0, COUNT, 0, 0, 0)


def test_workers_that_each_read_all_show_as_duplicates(start: Start) -> None:
    """The usual mistake with streams: two workers, every sample twice."""
    account = start(sample_ids="key:number")
    loader = DataLoader(Stream(sharded=False), batch_size=4, num_workers=2)
    account.exporter.watch(dataloader=loader)
    train(loader)
    assert account.ended()[1:] == (2 * COUNT, 0, 2 * COUNT, 2 * ALL % 2**64)
    assert account.word(Word.DUPLICATES) == COUNT


def test_duplicates_are_counted_within_an_epoch_alone(start: Start) -> None:
    """Beside each other, far apart, and not those of the epoch before."""
    account = start()
    order = [*range(3000), 7, 7, *range(100), 2999]
    loader = DataLoader(torch.zeros(3000), batch_size=50, sampler=order)
    account.exporter.watch(dataloader=loader)
    train(loader)
    assert account.word(Word.DUPLICATES) == 103
    train(loader)
    assert account.word(Word.DUPLICATES) == 206


def test_identifiers_that_are_not_there_are_said_once_and_cost_the_digest_alone(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong key, and a function that fails in the midst of an epoch: training goes on, samples are counted."""

    def fails(batch: Any) -> Any:
        return [1.5] if 16 in batch["number"] else batch["number"]

    for sample_ids in ("nowhere", fails):
        caplog.clear()
        account = start()
        loader = DataLoader(Stream(), batch_size=8)
        account.exporter.watch(dataloader=loader, sample_ids=sample_ids)
        assert len(train(loader)) == 5
        epoch, samples, padded, identified, _ = account.ended()
        assert (epoch, samples, padded, identified) == (0, 40 if sample_ids == "nowhere" else 33, 0, 0)
        assert account.errors() == {"samples": 1}
        [said] = [record.getMessage() for record in caplog.records]
        assert "samples are counted but not identified any more" in said
        account.exporter.stop()


def test_padding_is_told_by_place_for_every_way_of_dealing() -> None:
    """What is left without it is each sample once, whatever the number of ranks, samples and batches."""
    from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler

    def left(ranks: int, loader_of: Callable[[int], DataLoader[Any]]) -> list[int]:
        kept: list[int] = []
        for rank in range(ranks):
            loader = loader_of(rank)
            padding = padding_of(loader)
            for batch in loader.batch_sampler or ():
                kept += batch[: len(batch) - (padding.of_next(len(batch)) if padding else 0)]
        return sorted(kept)

    for samples in (1, 2, 5, 10, 16, 17):
        for ranks in (1, 2, 4):
            for size in (1, 2, 4):

                def distributed(rank: int, samples: int = samples, ranks: int = ranks, size: int = size) -> Any:
                    sampler: Any = DistributedSampler(range(samples), num_replicas=ranks, rank=rank, seed=3)
                    return DataLoader(range(samples), batch_size=size, sampler=sampler)

                def sharded(rank: int, samples: int = samples, ranks: int = ranks, size: int = size) -> Any:
                    batches = BatchSampler(SequentialSampler(range(samples)), size, False)
                    split = size % ranks == 0
                    return DataLoader(
                        range(samples), batch_sampler=BatchSamplerShard(batches, ranks, rank, split_batches=split)
                    )

                assert left(ranks, distributed) == list(range(samples))
                assert left(ranks, sharded) == list(range(samples))

    def resumed(rank: int) -> Any:
        shard = BatchSamplerShard(BatchSampler(SequentialSampler(range(10)), 2, False), 4, rank)
        return DataLoader(range(10), batch_sampler=SkipBatchSampler(shard, 1))

    assert left(4, resumed) == [8, 9]


class Resumable(DistributedSampler[torch.Tensor]):
    """Begins where it was: its places are its own."""

    def __iter__(self) -> Any:
        return iter(list(super().__iter__())[1:])


def test_a_sampler_of_unknown_ways_is_taken_to_pad_nothing() -> None:
    """Nor is one that drops what does not fit."""
    unknown: Any = Resumable(range(10), num_replicas=4, rank=3)
    assert padding_of(DataLoader(range(10), sampler=unknown)) is None
    dropping: Any = DistributedSampler(range(10), num_replicas=4, rank=3, drop_last=True)
    padding = padding_of(DataLoader(range(10), sampler=dropping))
    assert padding is not None
    assert padding.of_next(2) == 0


def test_two_of_ten_on_four_ranks_are_padding(start: Start) -> None:
    """They are counted, and left out of the digest: those of all ranks add up to that of the ten."""
    found = []
    for rank in range(4):
        account = start()
        sampler: Any = DistributedSampler(range(10), num_replicas=4, rank=rank)
        loader = DataLoader(torch.zeros(10), batch_size=2, sampler=sampler)
        account.exporter.watch(dataloader=loader)
        train(loader)
        account.publish()
        found.append((account.ended(), account.totals()))
        account.exporter.stop()
    assert [(ended[1], ended[2]) for ended, _ in found] == [(3, 0), (3, 0), (3, 1), (3, 1)]
    assert sum(ended[4] for ended, _ in found) % 2**64 == digest.of_range(10)
    assert [totals for _, totals in found] == [[3, 0, 0], [3, 0, 0], [3, 0, 1], [3, 0, 1]]


def test_tokens_are_counted_with_those_that_pad_and_are_no_padded_samples(start: Start) -> None:
    """A sequence takes the time of its length, whatever the mask says."""
    account = start()
    loader = DataLoader(Tokens(), batch_size=4)
    account.exporter.watch(dataloader=loader)
    train(loader)
    account.publish()
    assert account.totals() == [8, 64, 0]


@pytest.mark.parametrize("every", [1, 5])
def test_what_the_user_counts_stands(start: Start, every: int) -> None:
    """Counted each step, or only now and then after some were counted for him: his numbers, and none twice."""
    account = start()
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Rows(), batch_size=4)
    account.exporter.watch(optimizer=optimizer, dataloader=loader)
    for number, _ in enumerate(loader):
        model(torch.ones(1, 1)).sum().backward()
        optimizer.step()
        if number % every == every - 1:
            account.exporter.count(samples=6 * every, tokens=100 * every)
    account.publish()
    assert account.totals() == [60, 1000, 0]
    assert account.ended()[1] == COUNT


def test_an_epoch_that_is_left_has_not_been_completed(start: Start) -> None:
    """Nor is one in which the rank is stopped, which stays beside the one before it."""
    account = start()
    loader = DataLoader(Rows(), batch_size=4)
    account.exporter.watch(dataloader=loader)
    for _ in loader:
        break
    train(iter(list(loader)[:0]))
    assert account.ended()[:2] == (1, COUNT)
    for number, _ in enumerate(loader):
        if number == 2:
            break
    for _ in loader:
        break
    assert account.ended()[:2] == (2, 12)
    assert not account.word(Word.ENDED_EPOCH_COMPLETE)
    account.exporter.stop()
    assert account.ended()[:2] == (2, 12)
    assert [account.word(Word.EPOCH + place) for place in range(2)] == [4, 4]


def test_a_loop_that_counts_its_batches_completes_the_epoch(start: Start) -> None:
    """Lightning does not ask for a batch after the last: it knows how many there are."""
    account = start()
    loader = DataLoader(Rows(), batch_size=4)
    account.exporter.watch(dataloader=loader)
    for _ in range(2):
        iterator = iter(loader)
        train(next(iterator) for _ in range(10))
    assert account.ended() == (0, COUNT, 0, COUNT, ALL)
    assert account.word(Word.ENDED_EPOCH_COMPLETE)
    account.exporter.stop()
    assert account.ended()[0] == 1
    assert account.word(Word.ENDED_EPOCH_COMPLETE)


def test_epochs_are_numbered_as_the_sampler_says(start: Start) -> None:
    """A job that resumes in epoch 3 goes on with it; one that forgets to set it counts on."""
    account = start()
    sampler: Any = DistributedSampler(range(COUNT), num_replicas=1, rank=0)
    loader = DataLoader(Rows(), batch_size=8, sampler=sampler, num_workers=1)
    account.exporter.watch(dataloader=loader)
    numbers = []
    for epoch in (3, None, 7):
        if epoch is not None:
            sampler.set_epoch(epoch)
        train(loader)
        numbers.append(account.ended()[0])
    assert numbers == [3, 4, 7]


def test_evaluation_is_not_accounted_for(start: Start) -> None:
    """Neither another loader nor the same, where no gradients are wanted; the epoch goes on beneath."""
    account = start()
    loader = DataLoader(Rows(), batch_size=8)
    account.exporter.watch(dataloader=loader)
    for number, _ in enumerate(loader):
        if number == 2:
            with torch.no_grad():
                assert len(list(DataLoader(Rows(), batch_size=8))) == 5
                assert len(list(loader)) == 5
    assert account.ended() == (0, COUNT, 0, COUNT, ALL)


def test_a_second_training_loader_beside_the_first_is_only_counted(start: Start) -> None:
    """Two streams of samples have no common identifiers."""
    account = start()
    labelled, unlabelled = DataLoader(Rows(), batch_size=8), DataLoader(torch.zeros(80), batch_size=16)
    account.exporter.watch(dataloader=labelled)
    account.exporter.watch(dataloader=unlabelled)
    for _ in range(2):
        train(zip(labelled, unlabelled, strict=True))
    account.publish()
    assert account.totals()[0] == 2 * (COUNT + 80)
    assert account.ended() == (1, COUNT, 0, COUNT, ALL)


@pytest.mark.parametrize("batches", [2, 10])
def test_a_loader_in_the_place_of_one_that_was_left_is_accounted_for(start: Start, batches: int) -> None:
    """Though the iterator of that one is still there, as with workers that are kept; from its first batch on."""
    account = start()
    left, next_one = DataLoader(torch.zeros(80), batch_size=8), DataLoader(Rows(), batch_size=COUNT // batches)
    account.exporter.watch(dataloader=left)
    account.exporter.watch(dataloader=next_one)
    kept = iter(left)
    train([next(kept), next(kept)])
    train(next_one)
    assert account.ended() == (1, COUNT, 0, COUNT, ALL)
    account.publish()
    assert account.totals()[0] == COUNT + 16


def test_sample_ids_off_counts_only(start: Start) -> None:
    """As it is said."""
    account = start(sample_ids="off")
    loader = DataLoader(Rows(), batch_size=8)
    account.exporter.watch(dataloader=loader)
    train(loader)
    assert account.ended() == (0, COUNT, 0, 0, 0)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sample_ids": "__key__"}, "sample_ids is '__key__': give 'auto' for the sampler's indices, 'key:NAME'"),
        ({"sample_ids": "key:"}, "sample_ids is 'key:'"),
        ({"sample_ids": "off", "sample_ids_dir": "ids"}, "sample_ids_dir is ids, but sample_ids is 'off'"),
        ({"sample_ids_dir": __file__}, "but it is a file: give a directory"),
    ],
)
def test_wrong_settings_fail_at_the_start(start: Start, settings: dict[str, Any], said: str) -> None:
    """Before the first step, in one line."""
    with pytest.raises(SettingError) as caught:
        start(**settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_identifiers_go_to_a_file_an_epoch(start: Start, tmp_path: Path) -> None:
    """With the step that each was taken in; the last, in which the rank was stopped, as far as it came."""
    account = start(sample_ids_dir=tmp_path / "ids")
    loader = DataLoader(Rows(), batch_size=16)
    account.exporter.watch(dataloader=loader)
    train(loader)
    for _ in loader:
        break
    account.exporter.stop()
    first, second = (read(path) for path in sorted((tmp_path / "ids").iterdir()))
    assert (first.epoch, first.samples, first.padded, first.complete) == (0, COUNT, 0, True)
    assert (first.digest, first.is_identified) == (ALL, True)
    assert first.ids is not None and first.steps is not None and second.ids is not None
    assert first.ids.tolist() == list(range(COUNT))
    assert first.steps.tolist() == [1] * 16 + [2] * 16 + [3] * 8
    assert (second.epoch, second.ids.tolist(), second.complete) == (1, list(range(16)), False)


def test_a_directory_that_cannot_be_written_is_said_once(
    start: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Training and digests go on."""
    (tmp_path / "file").write_text("")
    account = start(sample_ids_dir=tmp_path / "file" / "ids")
    loader = DataLoader(Rows(), batch_size=8)
    account.exporter.watch(dataloader=loader)
    train(loader)
    train(loader)
    assert account.ended() == (1, COUNT, 0, COUNT, ALL)
    account.exporter._recorder.accounts.stop()
    assert account.errors() == {"samples": 2}
    [said] = [record.getMessage() for record in caplog.records]
    assert "identifiers cannot be written to" in said


def test_a_stream_that_skips_as_it_resumes_is_no_steady_input(start: Start) -> None:
    """What is passed over within the first fetch belongs to building the iterator; nobody took those samples."""
    account = start(sample_ids="key:number")
    loader = DataLoader(Stream(skip=16), batch_size=8)
    account.exporter.watch(dataloader=loader)
    train(loader)
    account.publish()
    assert account.ended()[1] == COUNT - 16
    assert account.ended()[4] == digest.of(range(16, COUNT))
    ns = account.reader.steps()["ns"]
    assert ns[:, Phase.FIRST_BATCH].sum() >= 16 * 5_000_000
    assert ns[:, Phase.INPUT_READY].max() < ns[0, Phase.FIRST_BATCH] / 4


def test_batches_that_accelerate_reads_and_drops_are_no_input_and_no_samples(start: Start) -> None:
    """It resumes a stream by a wrapper around the loader, which fetches what it skips."""
    from accelerate import Accelerator
    from accelerate.data_loader import skip_first_batches

    from rank_exporter.integrations.accelerate import watch_accelerator

    class Slow(Stream):
        def __iter__(self) -> Iterator[dict[str, Any]]:
            for sample in super().__iter__():
                if sample["number"] < 24:
                    time.sleep(0.003)
                yield {"number": sample["number"]}

    account = start(sample_ids="key:number")
    accelerator = Accelerator(cpu=True)
    watch_accelerator(accelerator)
    resumed = skip_first_batches(accelerator.prepare(DataLoader(Slow(), batch_size=4)), 6)
    account.exporter.watch(dataloader=resumed)
    assert len(train(resumed)) == 4
    account.publish()
    assert account.ended() == (0, 16, 0, 16, digest.of(range(24, COUNT)))
    ns = account.reader.steps()["ns"]
    assert ns[0, Phase.FIRST_BATCH] >= 24 * 3_000_000
    assert ns[:, Phase.INPUT_READY].max() < ns[0, Phase.FIRST_BATCH] / 4
    assert not account.errors()


def test_lines_are_what_the_format_says(start: Start, tmp_path: Path) -> None:
    """Other programs read them."""
    account = start(sample_ids_dir=tmp_path / "ids", sample_ids="key:__key__")
    loader = DataLoader(Stream(), batch_size=20)
    account.exporter.watch(dataloader=loader)
    train(loader)
    account.exporter.stop()
    [path] = (tmp_path / "ids").iterdir()
    head, one, two, end = (json.loads(line) for line in path.read_text().splitlines())
    about = {"format": "rank-exporter-samples", "version": 1, "run": "accounting", "rank": 0, "world_size": 1}
    assert head == about | {"host": head["host"], "started_unix_ns": head["started_unix_ns"], "epoch": 0}
    assert one == {"step": 1, "ids": [f"sample-{number:03d}" for number in range(20)]}
    assert two["step"] == 2
    assert end == {"samples": COUNT, "padded": 0, "complete": True}

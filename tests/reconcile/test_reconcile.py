"""What a reconciliation finds, by identifiers and by digests alone, and what it leaves open."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rank_exporter import digest
from rank_exporter.analysis.reconcile import Expected, expected_of, reconcile, rolled_back
from rank_exporter.analysis.reconcile_report import as_json, verdict
from rank_exporter.errors import SourceError
from rank_exporter.segment.samples import EpochSamples

Make = Callable[..., EpochSamples]
Strip = Callable[[Sequence[EpochSamples]], list[EpochSamples]]


def manifest(count: int, *, ids: bool = True) -> Expected:
    return Expected(
        name=f"manifest 0..{count - 1}",
        count=count,
        digests=(digest.of_range(count),),
        ids=np.arange(count) if ids else None,
    )


def found(result: Any) -> list[tuple[str, tuple[int, ...], int, tuple[Any, ...]]]:
    return [(one.kind, one.ranks, one.count, one.ids) for one in result.findings]


def test_a_shuffled_but_complete_epoch_is_clean(took: Make, digests_only: Strip) -> None:
    """By identifiers and by digests, against a manifest, another trial at another world size, or none."""
    own = [took(0, [5, 0, 3]), took(1, [1, 4, 2])]
    other = [took(0, range(6), world=1)]
    for samples in (own, digests_only(own)):
        for expected in (None, manifest(6), manifest(6, ids=False), expected_of(other)):
            result = reconcile(samples, expected=expected)
            assert (result.clean, result.findings, result.unknown) == (True, (), ())
    assert verdict(result) == "clean: epoch 0, 6 samples"
    assert result.epochs[0].digest == digest.of_range(6)


def test_ranks_that_read_the_same_stream_are_told(took: Make, digests_only: Strip) -> None:
    """An unsharded stream on two ranks: every sample twice, in whatever order. Digests show it as well."""
    own = [took(0, [0, 1, 2]), took(1, [2, 0, 1])]
    result = reconcile(own)
    assert result.clean is False
    assert found(result) == [("duplicate", (0, 1), 3, (0, 1, 2))]
    assert result.findings[0].text == "epoch 0: ranks 0, 1 took 3 samples twice"
    assert [rank.duplicates for rank in result.epochs[0].ranks] == [3, 3]
    blind = reconcile(digests_only(own))
    assert found(blind) == [("duplicate", (0, 1), 3, ())]
    assert blind.epochs[0].ranks[0].duplicates is None


def test_duplicates_are_listed_by_who_took_them(took: Make) -> None:
    """One rank alone, two ranks with each other, and often."""
    result = reconcile([took(0, [0, 0, 1, 2, 9, 9, 9]), took(1, [1, 3, 4])])
    assert found(result) == [("duplicate", (0,), 3, (0, 9)), ("duplicate", (0, 1), 1, (1,))]
    assert result.findings[0].text == "epoch 0: rank 0 took 2 samples 3 times too often"


def test_padding_is_neither_duplicate_nor_omission(took: Make, digests_only: Strip) -> None:
    """Ten samples on four ranks: two padded, by rank."""
    own = [took(rank, list(range(rank, 10, 4)), padded=int(rank > 1), world=4) for rank in range(4)]
    for samples in (own, digests_only(own)):
        result = reconcile(samples, expected=manifest(10))
        assert result.clean is True
        assert [rank.padded for rank in result.epochs[0].ranks] == [0, 0, 1, 1]
        assert (result.epochs[0].samples, result.epochs[0].padded) == (12, 2)


def test_a_sample_swapped_for_another_is_found(took: Make, digests_only: Strip) -> None:
    """As many samples, and yet others: which, where identifiers are known."""
    own = [took(0, [0, 1, 2]), took(1, [3, 4, 6])]
    result = reconcile(own, expected=manifest(6))
    assert found(result) == [("omitted", (), 1, (5,)), ("foreign", (1,), 1, (6,))]
    assert result.findings[0].text == "epoch 0: no rank took 1 sample of the 6 of manifest 0..5"
    blind = reconcile(digests_only(own), expected=manifest(6))
    assert found(blind) == [("differs", (0, 1), 0, ())]
    assert "although as many" in blind.findings[0].text
    doubled = reconcile([took(0, [0, 1, 2]), took(1, [3, 4, 4])], expected=manifest(6))
    assert found(doubled) == [("duplicate", (1,), 1, (4,)), ("omitted", (), 1, (5,))]


def restart(took: Make) -> list[EpochSamples]:
    """Four ranks are killed in the midst of an epoch; two go on, and pass over what nobody took yet."""
    before = [
        took(rank, [rank, rank + 4], world=4, complete=False, started_unix_ns=1000 + rank, steps=np.array([1, 2]))
        for rank in range(4)
    ]
    after = [took(rank, list(range(10 + rank, 16, 2)), started_unix_ns=2000 + rank) for rank in range(2)]
    return before + after


def test_what_a_restart_at_another_world_size_lost_is_listed(took: Make, digests_only: Strip) -> None:
    """Both attempts together are the epoch; what is missing was skipped in between."""
    result = reconcile(restart(took), expected=manifest(16))
    assert found(result) == [("omitted", (), 2, (8, 9))]
    assert [rank.processes for rank in result.epochs[0].ranks] == [2, 2, 1, 1]
    assert result.epochs[0].complete
    assert reconcile(digests_only(restart(took)), expected=manifest(16)).clean is False
    whole = [*restart(took)[:4], took(0, [8, *range(10, 16)], started_unix_ns=2000), took(1, [9], started_unix_ns=2001)]
    assert reconcile(digests_only(whole), expected=manifest(16)).clean is True


def test_what_was_taken_after_the_checkpoint_is_taken_back(took: Make) -> None:
    """Training went on from step 1: what came after it is taken again, and is no duplicate."""
    again = [took(rank, list(range(4 + rank, 16, 2)), started_unix_ns=2000 + rank) for rank in range(2)]
    samples = [*restart(took)[:4], *again]
    assert [one.kind for one in reconcile(samples, expected=manifest(16)).findings] == ["duplicate"] * 4
    assert reconcile(rolled_back(samples, [1]), expected=manifest(16)).clean is True
    with pytest.raises(SourceError, match="there were 1 restarts, and 2 steps to go on from: give one for each"):
        rolled_back(samples, [1, 2])


def test_omissions_are_doubted_where_ranks_were_killed(took: Make) -> None:
    """What they took last may not be on record; where nothing is missing, or a checkpoint rules, that is all one."""
    killed = [replace(one, cut=one.started_unix_ns < 2000) for one in restart(took)]
    result = reconcile(killed, expected=manifest(16))
    assert (result.clean, found(result)) == (False, [("omitted", (), 2, (8, 9))])
    assert "ranks 0, 1, 2, 3 ended without a word" in result.unknown[0]
    assert reconcile(rolled_back(killed, [1]), expected=manifest(16)).unknown == ()
    whole = [*killed[:4], took(0, [8, *range(10, 16)], started_unix_ns=2000), took(1, [9], started_unix_ns=2001)]
    assert reconcile(whole, expected=manifest(16)).clean is True


def test_a_rank_that_never_gets_a_batch_is_found(took: Make, digests_only: Strip) -> None:
    """One shard for two ranks: the multiset is right, and training is not."""
    own = [took(0, range(4)), took(1, [])]
    for samples in (own, digests_only(own)):
        result = reconcile(samples, expected=manifest(4))
        assert found(result) == [("starved", (1,), 0, ())]
        assert result.findings[0].text == "epoch 0: rank 1 took no sample, while others took up to 4"


def test_an_epoch_that_goes_on_is_searched_for_duplicates_alone(took: Make) -> None:
    """Unless it is asked for. The epochs before it are judged."""
    own = [took(0, [0, 1, 2]), took(1, [3, 4, 5])]
    going = [took(0, [0], epoch=1), took(1, [0], epoch=1, complete=False)]
    result = reconcile([*own, *going], expected=manifest(6))
    assert found(result) == [("duplicate", (0, 1), 1, (0,))]
    assert [balance.judged for balance in result.epochs] == [True, False]
    asked = reconcile([*own, *going], expected=manifest(6), epochs=[1])
    assert {finding.kind for finding in asked.findings} == {"duplicate", "omitted"}
    assert reconcile(own, expected=manifest(6), epochs=[0]).clean is True


@pytest.mark.parametrize(
    ("samples", "said"),
    [
        (lambda _took: [], "no samples were recorded"),
        (lambda took: [took(0, [0], complete=False), took(1, [1])], "no epoch is complete"),
        (lambda took: [took(0, [0, 1])], "epoch 0: rank 1 recorded nothing: give the files of all hosts"),
        (
            lambda took: [took(0, [0]), replace(took(1, [1]), identified=0, digest=0, ids=None)],
            "epoch 0: rank 1 took samples that no digest covers: identify them with sample_ids",
        ),
    ],
)
def test_what_cannot_be_told_is_left_open(took: Make, samples: Callable[[Make], list[EpochSamples]], said: str) -> None:
    """Neither clean nor not, with the reason; nothing is called omitted for want of a file."""
    result = reconcile(samples(took), expected=manifest(2))
    assert result.clean is None
    assert said in result.unknown[0]
    assert verdict(result) == f"could not tell: {result.unknown[0]}"


def test_sources_that_failed_leave_it_open(took: Make) -> None:
    """What is there is clean; what is not there is not known."""
    result = reconcile([took(0, [0]), took(1, [1])], problems=["samples x cannot be read"])
    assert (result.clean, result.unknown) == (None, ("samples x cannot be read",))


def test_trials_are_compared_epoch_by_epoch(took: Make) -> None:
    """An epoch that only one of them has cannot be compared; sampling with replacement may be equal."""
    one = [took(0, [0, 0, 1], world=1), took(0, [2, 2, 2], world=1, epoch=1)]
    assert reconcile(one, expected=expected_of(one)).clean is True
    shorter = reconcile(one[:1], expected=expected_of(one))
    assert (shorter.clean, shorter.unknown) == (None, ("epoch 1 was recorded by no rank",))
    longer = reconcile(one, expected=expected_of(one[:1]))
    assert longer.unknown == ("epoch 1 is not complete, or not identified, in what it is compared with",)
    other = [took(0, [0, 1, 1], world=1)]
    assert found(reconcile(one[:1], expected=expected_of(other))) == [
        ("duplicate", (0,), 1, (0,)),
        ("omitted", (), 1, (1,)),
    ]


def test_integers_and_texts_of_one_name_are_compared_as_texts(took: Make) -> None:
    """One trial identified by index, the other by a name that reads the same."""
    result = reconcile([took(0, ["0", "1"], world=1)], expected=expected_of([took(0, [0, 2], world=1)]))
    assert found(result) == [("omitted", (), 1, ("2",)), ("foreign", (0,), 1, ("1",))]


def test_one_of_many_samples_is_found(took: Make) -> None:
    """On eight ranks, one of them swapped."""
    parts = np.random.default_rng(1).permutation(200_000).reshape(8, -1)
    parts[3][7] = 2_000_000
    own = [took(rank, parts[rank].tolist(), world=8) for rank in range(8)]
    result = reconcile(own, expected=manifest(200_000))
    assert [(one.kind, one.ranks, len(one.ids)) for one in result.findings] == [
        ("omitted", (), 1),
        ("foreign", (3,), 1),
    ]


def test_json_holds_everything(took: Make) -> None:
    """Digests as text, since no JSON number holds 64 bits."""
    shown = as_json(reconcile([took(0, [0, 1], padded=1), took(1, [1])]))
    assert shown["verdict"] == "differs: 1 findings (duplicate)"
    assert shown["clean"] is False
    assert shown["findings"][0]["ids"] == (1,)
    assert shown["epochs"][0]["digest"] == f"{digest.of([0, 1, 1]):016x}"
    assert shown["epochs"][0]["ranks"][0]["padded"] == 1

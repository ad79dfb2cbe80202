"""Digests of multisets: the same everywhere, whatever the order, and different for different multisets."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from rank_exporter import digest

# From the reference implementation of splitmix64 with seed 0, whose n-th output mixes n times the increment.
REFERENCE = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
INCREMENT = 0x9E3779B97F4A7C15


def plain_mix(x: int) -> int:
    """splitmix64 in Python's own integers."""
    x = (x + INCREMENT) % 2**64
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def plain_text(text: str) -> int:
    weights = (plain_mix(place) | 1 for place in range(len(text)))
    return plain_mix(sum(ord(point) * weight for point, weight in zip(text, weights, strict=True)) % 2**64)


def test_integers_hash_as_splitmix64_says() -> None:
    """Against the published sequence, and against plain arithmetic."""
    assert [int(h) for h in digest.hashes([(n * INCREMENT) % 2**64 for n in range(3)])] == REFERENCE
    numbers = [0, 1, -1, 2**63 - 1, -(2**63), 2**63, 123456789]
    assert [int(h) for h in digest.hashes(numbers)] == [plain_mix(n % 2**64) for n in numbers]


def test_texts_hash_as_documented() -> None:
    """Of one length or of several, in any script, alone or together."""
    for texts in (["a", "b"], ["", "a", "ab"], ["shard-7/δ☃\U0001f600", "x" * 256, "\udcff"], [""]):
        assert [int(h) for h in digest.hashes(texts)] == [plain_text(text) for text in texts]


def test_line_feeds_in_texts_are_as_other_characters() -> None:
    """Wherever they stand, and however long the texts around them are."""
    several = (
        ["a\n", "bc"],
        ["\n\n", "ab"],
        ["a\n\nb", "cdef"],
        ["a\nb", "c"],
        ["ab\n", "cd\n", "\nef"],
        ["\n"],
        ["", "\n"],
    )
    for texts in several:
        assert [int(h) for h in digest.hashes(texts)] == [plain_text(text) for text in texts], texts


@pytest.mark.parametrize(
    "lists", [[[1, 2], [3]], [["a", "b"], ["cd"]], [[1], ["a"]], [[2**63], [1]], [[True], [-1]], [(1,), [2]], []]
)
def test_several_lists_are_hashed_as_one(lists: list[list[Any]]) -> None:
    """Whatever is in them: integers within 64 bits and beyond, texts, both."""
    assert digest.hashes_of_lists(lists).tolist() == digest.hashes([one for each in lists for one in each]).tolist()


def test_digests_are_these_for_ever() -> None:
    """Trials of other releases and machines are compared with them."""
    assert f"{digest.of_range(1000):016x}" == "432ade2ad6962362"
    assert f"{digest.of(['000001', 'naïve', 'x' * 300]):016x}" == "285e7692d2074687"


def test_order_and_grouping_do_not_matter() -> None:
    """Parts add up, whoever took them and in which order."""
    ids = list(range(-50, 1000))
    shuffled = random.Random(1).sample(ids, len(ids))
    parts = [digest.of(shuffled[start::7]) for start in range(7)]
    assert digest.of(ids) == digest.of(shuffled) == digest.of(np.array(shuffled)) == sum(parts) % 2**64
    assert digest.of_range(70_000) == digest.of(np.arange(70_000))


@pytest.mark.parametrize("other", [[1, 2, 4], [1, 2], [1, 2, 3, 3], [1, 1, 3], [], ["1", "2", "3"]])
def test_other_multisets_have_other_digests(other: list[Any]) -> None:
    """A sample swapped, left out, added, doubled."""
    assert digest.of(other) != digest.of([1, 2, 3])


def test_many_similar_names_share_no_hash() -> None:
    """As identifiers are in practice: they differ in a few digits."""
    names = [f"shard-{number // 1000:05d}/{number % 1000:03d}" for number in range(200_000)]
    found = np.concatenate([digest.hashes(names[at : at + 4096]) for at in range(0, len(names), 4096)])
    assert len(np.unique(found)) == len(names)


def test_other_types_stand_for_text_or_integer() -> None:
    """numpy's and torch's integers are integers, bytes are text, tuples are what they show."""
    assert digest.of([np.int64(7), True]) == digest.of([7, 1])
    assert digest.of([b"a\xff"]) == digest.of(["a\udcff"])
    assert digest.of([(1, b"x"), (2, "y")]) == digest.of(["(1, 'x')", "(2, 'y')"])
    assert digest.of([1, "a"]) == (digest.of([1]) + digest.of(["a"])) % 2**64
    assert digest.of(["x" * 257]) != digest.of(["x" * 258])


@pytest.mark.parametrize("wrong", [1.5, None, {"id": 1}, object()])
def test_what_is_no_identifier_is_refused(wrong: object) -> None:
    """What has no lasting text, or no exact one, cannot be compared between trials."""
    with pytest.raises(TypeError, match="a sample's identifier is"):
        digest.of([wrong])


@pytest.mark.parametrize(
    "several",
    [
        list(np.arange(5)),
        [np.str_("a"), "b"],
        [b"a", b"\xff"],
        [2**63, -(2**63), 2**70],
        [7, "7", (7,), b"7"],
        [True, False],
        np.array([1, 2], dtype=np.uint64),
        np.array(["x", "yy"]),
        np.array([1, "a"], dtype=object),
    ],
    ids=str,
)
def test_each_is_hashed_in_company_as_alone(several: Any) -> None:
    """Whichever way is taken through numpy, and in which order."""
    alone = [int(digest.hashes([one])[0]) for one in several]
    assert digest.hashes(several).tolist() == alone
    assert digest.hashes(list(several)[::-1]).tolist() == alone[::-1]

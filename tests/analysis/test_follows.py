"""Whether late input goes with the host or with the data, from shards and ranks that moved."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from rank_exporter.analysis.follows import follows
from rank_exporter.analysis.observation import judge, observe
from rank_exporter.analysis.profile import Cell

LATER = 1_700_000_900 * 10**9


def swapped(ranks: list[Any], one: int, other: int, *, at: int) -> list[Any]:
    """The same records, but from step ``at`` on two ranks read each other's shard."""
    names = ranks[one].shards[0], ranks[other].shards[0]
    found = list(ranks)
    for place, shards in ((one, names), (other, names[::-1])):
        records = ranks[place].records.copy()
        records["shard"][at:] = 1
        found[place] = dataclasses.replace(ranks[place], records=records, shards=shards)
    return found


def test_a_swap_within_a_run_tells_the_data(simulate: Any, on: Any) -> None:
    """Ranks 1 and 2 swap shards half-way, and the lateness moves with the shard."""
    late = on(1, 40, where=slice(0, 200)) + on(2, 40, where=slice(200, None))
    found = judge(observe(swapped(simulate(input_ready=late), 1, 2, at=200), source="memory")).follows
    assert found is not None
    assert (found.what, found.shard) == ("data", "shard-1")
    assert found.there == pytest.approx(0.040, abs=0.003)
    assert found.shard_elsewhere == pytest.approx(0.040, abs=0.003)
    assert found.place_otherwise == pytest.approx(0, abs=0.003)
    assert found.reason.startswith("shard shard-1 was 40 ms late on rank 1 of node-0; 40 ms on rank 2 of node-1; ")
    assert found.reason.endswith(" was node-0 with shard-2: it goes with the data")


def test_a_swap_within_a_run_tells_the_host(simulate: Any, on: Any) -> None:
    """The shards are swapped, and the same rank stays late."""
    found = judge(observe(swapped(simulate(input_ready=on(1, 40)), 1, 2, at=200), source="memory")).follows
    assert found is not None
    assert (found.what, found.rank, found.host) == ("host", 1, "node-0")
    assert found.reason.endswith("it goes with the host")


def test_the_next_check_is_of_what_it_goes_with(simulate: Any, on: Any) -> None:
    """Once it is known which of the two it is, nobody is told to swap shards."""
    verdict = judge(observe(swapped(simulate(input_ready=on(1, 40)), 1, 2, at=200), source="memory")).verdict
    assert verdict.next_check.startswith("It goes with host node-0: ")


@pytest.mark.parametrize(("late_now", "what"), [(1, "data"), (3, "host")])
def test_a_restart_on_other_hosts_tells(simulate: Any, on: Any, late_now: int, what: str) -> None:
    """After a restart ranks sit on each other's hosts with shards of their own: rank 1 late again is the data,
    rank 3, which came to its host, is the host."""
    before = simulate(input_ready=on(1, 40), hosts=("a", "b", "c", "d"))
    after = simulate(input_ready=on(late_now, 40), hosts=("c", "d", "a", "b"), generation=8, began=LATER, seed=2)
    found = judge(observe([*before, *after], source="memory")).follows
    assert found is not None
    assert found.what == what, found.reason


def test_what_never_moved_is_not_guessed(simulate: Any, on: Any) -> None:
    """It says which swap would tell; and where no input is late there is nothing to say."""
    found = judge(observe(simulate(input_ready=on(1, 40)), source="memory")).follows
    assert found is not None
    assert (found.what, found.shard_elsewhere, found.place_otherwise) == (None, None, None)
    assert "cannot be told" in found.reason
    assert "swap it with the shard of a rank on another host to tell" in found.reason
    assert judge(observe(simulate(forward=on(1, 40)), source="memory")).follows is None


def test_what_goes_with_neither_is_not_guessed() -> None:
    """A shard late here and half as late there, at a place that is half as late with another shard."""

    def cell(rank: int, host: str, shard: str, excess: float) -> Cell:
        return Cell(rank=rank, host=host, shard=shard, steps=100, excess=excess)

    cells = [cell(1, "a", "s", 0.1), cell(2, "b", "s", 0.06), cell(1, "a", "t", 0.05), cell(2, "b", "t", 0.0)]
    found = follows(cells, threshold=0.01)
    assert found is not None
    assert found.what is None
    assert found.reason.endswith("it goes with neither alone")
    few = [dataclasses.replace(one, steps=5) for one in cells]
    assert follows(few, threshold=0.01) is None

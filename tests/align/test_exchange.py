"""How ranks tell their agents of each other, through a store as torch makes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore, PrefixStore

from rank_exporter.identity import Identity
from rank_exporter.instrument.peers import PeerExchange
from rank_exporter.segment.roster import AgentAddress, Roster, roster_file


class Ranks:
    """The exchanges of a generation, each on a thread, with a store put in the process group's place."""

    def __init__(self, directory: Path, store: Any, size: int, *, name: str = "a", only: range | None = None) -> None:
        self.generations: dict[int, int] = {}
        self.faults: dict[int, str] = {}
        self.roster = roster_file(directory / f"{name}-0.segment")
        self.exchanges = []
        for rank in only or range(size):
            identity = Identity(run="job", rank=rank, local_rank=rank, world_size=size, host="node")
            exchange = PeerExchange(
                identity,
                directory / f"{name}-{rank}.segment",
                told=lambda generation, rank=rank: self.generations.update({rank: generation}),
                fault=lambda text, rank=rank: self.faults.update({rank: text}),
                deadline_seconds=2.0,
            )
            exchange._store = lambda: store
            self.exchanges.append(exchange)
            exchange.start()

    def stop(self) -> None:
        threads = [exchange._thread for exchange in self.exchanges]
        for exchange in self.exchanges:
            exchange.stop()
        assert not any(thread.is_alive() for thread in threads if thread is not None)


@pytest.fixture
def store() -> Any:
    return PrefixStore("default_pg", HashStore())


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    AgentAddress(address="127.0.0.1", port=4711, name="node").write(tmp_path)
    return tmp_path


def test_all_ranks_learn_one_generation(directory: Path, store: Any, eventually: Callable[..., Any]) -> None:
    """Every rank is told the same number, and rank 0 leaves a list of where each rank's agent is."""
    ranks = Ranks(directory, store, 4)
    eventually(lambda: len(ranks.generations) == 4 and ranks.roster.exists())
    ranks.stop()
    (generation,) = set(ranks.generations.values())
    expected = Roster(run="job", generation=generation, world_size=4, targets=dict.fromkeys(range(4), "127.0.0.1:4711"))
    assert Roster.read(ranks.roster) == expected
    assert ranks.faults == {}


def test_a_store_that_outlives_a_restart_mixes_nothing(
    directory: Path, store: Any, eventually: Callable[..., Any]
) -> None:
    """What the generation before left in the store is believed by nobody."""
    before = Ranks(directory, store, 4)
    eventually(lambda: len(before.generations) == 4)
    before.stop()
    late = Ranks(directory, store, 3, name="b", only=range(1, 3))
    first = Ranks(directory, store, 3, name="b", only=range(1))
    eventually(lambda: len(late.generations) == 2 and len(first.generations) == 1)
    late.stop()
    first.stop()
    (generation,) = {*late.generations.values(), *first.generations.values()}
    assert generation not in before.generations.values()
    assert Roster.read(first.roster).generation == generation


def test_ranks_that_tell_nothing_are_left_out(directory: Path, store: Any, eventually: Callable[..., Any]) -> None:
    """Rank 0 goes on with those that are there, says so once, and rank 0 that is silent is given up by the others."""
    some = Ranks(directory, store, 3, only=range(2))
    eventually(lambda: some.faults)
    some.stop()
    assert some.faults == {0: "1 of 3 ranks have not told where their agent is: they are not aligned"}
    assert set(Roster.read(some.roster).targets) == {0, 1}
    orphan = Ranks(directory, PrefixStore("another", HashStore()), 3, only=range(2, 3))
    eventually(lambda: orphan.faults)
    orphan.stop()
    assert orphan.faults == {2: "no answer from rank 0 after 2 s: steps are not aligned"}


def test_a_store_out_of_reach_is_said_once(directory: Path, eventually: Callable[..., Any]) -> None:
    """Its error ends the exchange, not the training."""

    class Broken:
        def set(self, *_: Any) -> None:
            raise RuntimeError("connection reset")

    ranks = Ranks(directory, Broken(), 2)
    eventually(lambda: len(ranks.faults) == 2)
    ranks.stop()
    text = "ranks could not exchange addresses (RuntimeError('connection reset')): steps are not aligned"
    assert ranks.faults == {0: text, 1: text}


def test_without_an_agent_nothing_is_waited_for(tmp_path: Path, store: Any, eventually: Callable[..., Any]) -> None:
    """A host without an agent is listed without an address, and said once."""
    ranks = Ranks(tmp_path, store, 2)
    eventually(lambda: len(ranks.generations) == 2 and ranks.roster.exists())
    ranks.stop()
    assert Roster.read(ranks.roster).targets == {0: "", 1: ""}
    text = "this host has no agent to ask for steps: they are not aligned"
    assert ranks.faults == {0: text, 1: text}


def test_no_process_group_is_said_once(tmp_path: Path, eventually: Callable[..., Any]) -> None:
    """A run of several ranks that never makes a process group is not aligned, and told so."""
    assert "torch.distributed" in sys.modules
    said: list[str] = []
    identity = Identity(run="job", rank=0, local_rank=0, world_size=2, host="node")
    exchange = PeerExchange(
        identity, tmp_path / "0.segment", told=lambda _: None, fault=said.append, deadline_seconds=0.5
    )
    exchange.start()
    eventually(lambda: said)
    exchange.stop()
    assert said == ["no process group after 0.5 s: steps are not aligned"]

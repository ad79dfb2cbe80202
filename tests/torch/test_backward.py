"""Backward is timed however it is run, also once the exporter relies on the call that ran it so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from rank_exporter.instrument.backward import Backward
from rank_exporter.phases import Phase

DATA = torch.randn(8, 16)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))


def by_method(_model: nn.Module, loss: torch.Tensor) -> None:
    loss.backward()


def by_function(_model: nn.Module, loss: torch.Tensor) -> None:
    torch.autograd.backward([loss])


def by_grad(model: nn.Module, loss: torch.Tensor) -> None:
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient


def train(recording: Any, model: nn.Module, ways: list[Callable[[nn.Module, torch.Tensor], None]]) -> list[set[str]]:
    """The phases of each step; a step for each of the ways to run backward."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for way in ways:
        optimizer.zero_grad()
        way(model, model(DATA).mean())
        optimizer.step()
    return [set(step) for step in recording.steps()]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("way", [by_method, by_function, by_grad])
def test_every_way_to_run_backward_is_timed(recording: Any, way: Any) -> None:
    """As a method of the loss, as a function, or for gradients that are returned."""
    found = train(recording, network(), [way] * 12)
    assert all("backward" in phases for phases in found)
    assert len(found) == 12


def test_loop_that_changes_its_way_misses_a_few_steps_at_most(recording: Any) -> None:
    """What is relied on once is not relied on for ever."""
    found = train(recording, network(), [by_method] * 6 + [by_grad] * 20)
    missed = [number for number, phases in enumerate(found) if "backward" not in phases]
    assert missed == list(range(6, 14))


def test_two_models_in_turn_are_both_timed(recording: Any) -> None:
    """Nobody could tell whose backward a call is, so both are asked."""
    one, other = network(), network()
    optimizer = torch.optim.SGD([*one.parameters(), *other.parameters()], lr=0.1)
    recording.watch(model=one, optimizer=optimizer)
    recording.watch(model=other)
    trained = []
    for model in (one, one, one, one, other, one, other, one):
        model(DATA).mean().backward()
        trained.append(recording._recorder.trained())
        optimizer.step()
    assert trained == [one, one, one, one, other, one, other, one]
    assert all("backward" in step for step in recording.steps())


def test_backward_that_is_timed_explicitly_is_left_alone(recording: Any) -> None:
    """The user's own phase around the call is what counts."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for _ in range(6):
        loss = model(DATA).mean()
        with recording.phase("backward"):
            loss.backward()
            assert recording._recorder.timeline.phase == Phase.BACKWARD
        optimizer.step()
    assert all("backward" in step for step in recording.steps())


def test_wait_is_told_apart_once_calls_are_relied_on(recording: Any, group: None) -> None:
    """Each step of a distributed model has both, in no_sync the backward alone."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for _ in range(10):
        model(DATA).mean().backward()
        optimizer.step()
    with model.no_sync():
        for _ in range(4):
            model(DATA).mean().backward()
            optimizer.step()
    found = [set(step) for step in recording.steps()]
    assert all({"backward", "collective_wait"} <= phases for phases in found[:10])
    assert all("backward" in phases and "collective_wait" not in phases for phases in found[10:])


class Branches(nn.Module):
    """Of three layers, those named by ``used`` take part."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
        self.used = (0, 1, 2)

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        for number in self.used:
            value = torch.tanh(self.layers[number](value))
        return value


@pytest.mark.parametrize("used", [(0, 1), (1, 2), (1,)])
def test_parameters_that_take_no_part(recording: Any, group: None, used: tuple[int, ...]) -> None:
    """Where neither the first nor the last parameter does, one step has no wait, and the ones after it do."""
    inner = Branches()
    model = DistributedDataParallel(inner, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for step in range(12):
        inner.used = (0, 1, 2) if step < 5 else used
        model(DATA).mean().backward()
        optimizer.step()
    found = [set(step) for step in recording.steps()]
    assert all("backward" in phases for phases in found)
    without = [number for number, phases in enumerate(found) if "collective_wait" not in phases]
    assert without == ([5] if used == (1,) else [])


class Recomputed(nn.Module):
    """The whole but its first layer is computed anew, by a backward within backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(16, 16)
        self.rest = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(checkpoint(self.rest, self.first(value), use_reentrant=True))


def test_backward_within_backward_is_one(recording: Any, group: None) -> None:
    """The callback that ends backward is never queued from the inner one, at whose end it would run."""
    model = DistributedDataParallel(Recomputed())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    seen = []
    first = model.module.first.weight
    first.register_hook(lambda _gradient: seen.append(recording._recorder.timeline.phase))
    for _ in range(8):
        model(DATA).mean().backward()
        optimizer.step()
    assert set(seen) == {Phase.BACKWARD}
    assert all({"backward", "collective_wait"} <= set(step) for step in recording.steps())


def test_backward_that_fails_ends(recording: Any) -> None:
    """An exception leaves the phase, and the steps after it are right."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for step in range(8):
        loss = model(DATA).mean()
        if step == 5:
            loss.backward()
            with pytest.raises(RuntimeError):
                loss.backward()
            assert recording._recorder.timeline.phase not in (Phase.BACKWARD, Phase.COLLECTIVE_WAIT)
        else:
            loss.backward()
        optimizer.step()
    assert all("backward" in step for step in recording.steps())


def test_hooks_are_gone_after_stop(recording: Any, group: None) -> None:
    """Neither a parameter nor a call of torch's knows the exporter any more."""
    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording.watch(model=model, optimizer=optimizer)
    for _ in range(5):
        model(DATA).mean().backward()
        optimizer.step()
    hooked = [one for one in model.parameters() if one._post_accumulate_grad_hooks]
    assert len(hooked) == 2
    recording.stop()
    assert not any(one._post_accumulate_grad_hooks for one in model.parameters())


def test_nodes_are_asked_at_first_only(recording: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook that is made anew for each step is gone once calls were seen."""
    answered: list[int] = []
    begins = Backward._node_begins

    def counted(self: Backward, gradients: Any) -> None:
        answered.append(1)
        begins(self, gradients)

    monkeypatch.setattr(Backward, "_node_begins", counted)
    assert all("backward" in phases for phases in train(recording, network(), [by_method] * 10))
    assert len(answered) == 2

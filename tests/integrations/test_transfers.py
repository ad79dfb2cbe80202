"""What trainers copy to the device is h2d, and nothing on the host is. A device without memory stands in for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import rank_exporter
from rank_exporter.phases import Phase


@pytest.fixture
def exporter(tmp_path: Path) -> Iterator[Any]:
    running = rank_exporter.start(run="transfers", directory=tmp_path, serve="off")
    running._recorder.timeline.advance()
    yield running
    running.stop()


def copied(exporter: Any) -> bool:
    return bool(exporter._recorder.timeline._spent[Phase.H2D])


@pytest.mark.parametrize(("device", "expected"), [("meta", True), ("cpu", False)])
def test_accelerate(exporter: Any, device: str, expected: bool) -> None:
    """Its loaders copy each batch before they hand it out."""
    from accelerate.data_loader import DataLoaderShard

    from rank_exporter.integrations import accelerate as on_accelerate

    on_accelerate.watch_everything(exporter)
    assert next(iter(DataLoaderShard(torch.zeros(4, 2), device=torch.device(device)))).device.type == device
    assert copied(exporter) is expected


@pytest.mark.parametrize(("device", "expected"), [("meta", True), ("cpu", False)])
def test_fabric(exporter: Any, device: str, expected: bool) -> None:
    """So do its loaders."""
    from lightning.fabric import Fabric
    from lightning.fabric.wrappers import _FabricDataLoader

    from rank_exporter.integrations import fabric as on_fabric

    on_fabric.watch_everything(exporter, Fabric)
    loader = _FabricDataLoader(DataLoader(torch.zeros(4, 2)), device=torch.device(device))
    assert next(iter(loader)).device.type == device
    assert copied(exporter) is expected


@pytest.mark.parametrize(("device", "expected"), [("meta", True), ("cpu", False)])
def test_lightning(exporter: Any, device: str, expected: bool) -> None:
    """Its strategy copies, to a device that is given or to its own."""
    from lightning.pytorch.strategies import SingleDeviceStrategy

    from rank_exporter.integrations import lightning as on_lightning

    on_lightning.watch_everything(exporter)
    strategy = SingleDeviceStrategy(device=torch.device(device))
    assert strategy.batch_to_device(torch.zeros(4)).device.type == device
    assert copied(exporter) is expected


def test_copies_are_timed_no_longer_once_the_exporter_has_stopped(exporter: Any) -> None:
    """Trainers are left as they were found."""
    from accelerate import data_loader

    from rank_exporter.integrations import accelerate as on_accelerate

    original = data_loader.send_to_device
    on_accelerate.watch_everything(exporter)
    assert data_loader.send_to_device is not original
    exporter.stop()
    assert data_loader.send_to_device is original
